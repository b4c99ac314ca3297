"""Carry out a run, from blocks to `train.bin`: encode, shard, shuffle if asked, merge, report."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ..inputs.blocks import TEXT_COST, Block, Source
from ..inputs.sources import N_REMOTE_SAMPLES
from ..inputs.storage import place_hash
from ..output import files
from ..output.changes import ChangeLog
from ..output.manifest import Record
from ..output.merge import give_names, merge
from ..output.meta import add_meta
from ..output.resume import clear
from ..output.shards import ShardWriter
from ..output.shuffle import shuffle
from ..output.splits import Split, place_eot, split_documents, split_text, split_whole
from ..output.spool import check_spool
from ..output.state import DONE, ENCODING, MERGING, SHUFFLING, State
from ..support.cancel import Cancel
from ..support.errors import ChangedError, DiskError, InputError, Interrupted, PrepareError, RecordError
from ..support.fingerprint import END_BYTES, hash_bytes
from ..support.log import say
from . import report
from .budget import plan_shuffle
from .failures import explain
from .fetch import count_ahead, iter_blocks
from .progress import Progress
from .schedule import Window, WorkerError, Workers, local_executor, map_ordered
from .watch import Watch
from .worker import Encoded, encode_block, forget_encoders, get_encoder, in_parts

if TYPE_CHECKING:
    from .job import Job

MAX_REREAD_BYTES = 1 << 30
"""How much of what is written is read again when the disk is full, to save the last seconds of work, too."""

COMMIT_SECONDS = 5.0  # how often the state is committed: about this much work is repeated at most after an interruption


class Run:
    """Does the work that a record leaves to do. Whatever ends it early, the same command resumes it."""

    def __init__(self, job: Job, sources: Sequence[Source], record: Record, quiet: bool) -> None:
        self._folder = job.folder
        self._settings = job.settings
        self._sources = sources
        self._record = record
        self._state = record.state
        self._cancel = job.cancel
        self._fetcher = job.network.fetcher
        self._quiet = quiet
        self._guard = job.guard
        self._watch = Watch(job.guard, record.state)
        self._plan = job.plan
        self._cluster: Workers | None = None
        self._n_saved = self._state.n_tokens
        self._is_resumed = self._n_saved > 0
        self._has_encoded = False  # in this process
        self._is_whole = True  # False while the state and the files disagree: no commit then
        self._is_full = False  # --max-tokens are reached
        self._before: State | None = None  # the state before the last block, until that is committed
        self._is_worthless = False  # the result is of no use: nothing is kept
        self._is_stream_counted = not self._state.input_read
        self._tail = b""  # the end of the last block written, if it is of a stream
        self._clock = time.monotonic()
        self._ended = Cancel(job.cancel)  # ends the workers and what is read ahead
        self._blocks: Generator[Block | None, None, None] | None = None  # that are already being fetched

    def begin(self) -> None:
        """Begin to fetch inputs at URLs while samples of them are taken, until `close`."""
        is_remote = all(source.input.is_remote for source in self._sources[self._state.input :])
        if self._state.status == ENCODING and is_remote and self._fetcher.is_streaming:
            self._fetcher.reserve(N_REMOTE_SAMPLES)
            self._blocks = self._iter_blocks()
            next(self._blocks)

    def close(self) -> None:
        """End what is under way. May be called twice."""
        self._ended.set()
        if self._blocks:
            self._blocks.close()

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Turn what stops the run, from its plan on, into the error to show, with a note on what is saved."""
        try:
            yield
        except BaseException as error:
            shown = explain(error, self._state, self._sources, self._folder, self._cancel)
            is_lost = re.search("(?<!even with )--overwrite", getattr(shown, "hint", ""))  # what it advises starts over
            if isinstance(shown, PrepareError | Interrupted) and not is_lost:
                shown.saved = self._saved(self._way_on(error, shown))
            if shown is error:
                raise
            raise shown from error

    def work(self, executor: Executor | None = None, cluster: Workers | None = None) -> None:
        """Do everything that is left."""
        state = self._state
        self._clock = time.monotonic()
        self._fetcher.reserve(0)
        if state.status == ENCODING:
            encoder = get_encoder(self._plan.engine, self._settings.tokenizer)
            self._record.begin(report.about(encoder.version, self._settings))
            self._record.clear_parts()
            self._cluster, is_here = cluster, executor is None and cluster is None
            with local_executor(self._plan.n_workers) if is_here else contextlib.nullcontext(executor) as pool:
                mapped = cluster.map_blocks if cluster else functools.partial(map_ordered, cast(Executor, pool))
                self._encode(mapped, is_local=isinstance(pool, ThreadPoolExecutor))
        if state.status == SHUFFLING:
            if self._is_resumed:
                check_spool(self._record, self._cancel.check)
            self._shuffle()
        self._merge()
        say(report.result(self._folder, self._record, self._settings))

    def _encode(self, mapped: Callable[..., Iterator[tuple[Block, Encoded | None]]], is_local: bool) -> None:
        cancel, plan, state = self._ended, self._plan, self._state
        encode = functools.partial(encode_block, engine=plan.engine, tokenizer=self._settings.tokenizer)
        if is_local:  # the token cannot be shared with other processes
            encode = functools.partial(encode, cancel=cancel)
        sources = self._sources_left()
        window = self._window(count_ahead(sources, plan.n_workers) > 0)
        total = sum(source.input.size for source in self._sources)
        with closing(self._open_writer(cancel.check)) as writer, closing(ChangeLog(self._folder, state)) as changes:
            progress = Progress(state, total, self._fetcher, self._quiet, self._record.keeps_shards)
            blocks = progress.timed(self._blocks or self._iter_blocks())
            self._has_encoded = True

            def tick() -> None:
                cancel.check()
                progress.update()
                self._watch.check(self._seconds())
                if time.monotonic() - self._clock > COMMIT_SECONDS and state.n_tokens > self._n_saved:
                    self._commit(writer, changes)

            try:
                for block, encoded in in_parts(mapped(encode, blocks, window, tick), encode):
                    has_completed_shard = self._absorb(block, encoded, writer, changes)
                    if self._is_full:
                        break
                    if has_completed_shard:
                        self._commit(writer, changes)
                else:
                    cancel.check()
                    state.is_exhausted = True
                self._finish_encoding(writer, changes)
            except BaseException as error:
                if state.status == ENCODING:
                    if _has_no_room(error):
                        self._cut_back(writer, changes)
                    elif self._is_whole:
                        self._commit(writer, changes)
                raise
            finally:
                self.close()
                progress.close()

    def _iter_blocks(self) -> Generator[Block | None, None, None]:
        plan = self._plan
        return iter_blocks(self._sources_left(), self._state.offset, plan.n_workers, plan.window_bytes, self._ended)

    def _sources_left(self) -> list[Source]:
        """Return the sources not yet read to the end. A stream's `val_end`, once decided, stays."""
        first, *others = self._sources[self._state.input :]
        if self._state.val_end:
            first = dataclasses.replace(cast(Any, first), val_bytes=self._state.val_end, val_ratio=None)
        return [first, *others]

    def _window(self, is_ahead: bool) -> Window:
        """Return the limits of text in flight: a byte read ahead takes 1 byte of memory, one in flight TEXT_COST."""
        plan, cluster = self._plan, self._cluster
        if cluster:
            return Window(lambda: self._watch.max_blocks(cluster.count_threads()), plan.cluster_window_bytes)
        n_bytes = plan.window_bytes - (plan.window_bytes // TEXT_COST if is_ahead else 0)
        return Window(lambda: self._watch.max_blocks(plan.n_workers), n_bytes)

    def _open_writer(self, check: files.Check = lambda: None) -> ShardWriter:
        record, least = self._record, self._settings.least_tokens
        return ShardWriter(self._folder, record.written_tokens, self._state, record.written_layout, least, check)

    def _absorb(self, block: Block, encoded: Encoded, writer: ShardWriter, changes: ChangeLog) -> bool:
        """Write a block's ids to their splits and advance the state; return whether a shard was completed."""
        state = self._state
        self._is_whole = False
        self._before = before = state.copy()
        if block.source.number != state.input:
            state.input, state.offset, state.n_records = block.source.number, 0, 0
            state.input_read = state.val_end = 0
            self._is_stream_counted = True
        changes.append(block.source.input, block.source.unit, encoded.changes)
        room = (self._settings.max_tokens or sys.maxsize) - state.train_tokens
        split = self._split(block, encoded, room)
        train = split.train[:room]
        writer.write_val(split.val)
        has_completed_shard = writer.write_train(train)
        state.has_text = state.has_text or encoded.has_text
        state.val_documents += split.val_documents
        self._is_full = room < len(split.train)
        n_ids = len(encoded.ids) + (self._settings.eot_per_document - 1) * len(encoded.ends)
        share = (len(train) + len(split.val)) / n_ids if self._is_full else 1
        state.text_bytes += int(encoded.n_bytes * share)
        state.input_bytes += int(block.n_input_bytes * share)
        if self._is_full:  # a larger --max-tokens resumes from the start of this block
            n_eot = int(np.count_nonzero(train == self._settings.tokenizer.eot_id)) if block.source.unit else 0
            state.train_documents += n_eot // self._settings.eot_per_document
            state.snapshot = before.position()
            return has_completed_shard
        state.train_documents += split.train_documents
        state.n_records += encoded.n_records
        state.n_eot_in_text += encoded.n_eot_in_text
        self._move_on(block)
        self._is_whole = True
        return has_completed_shard

    def _move_on(self, block: Block) -> None:
        """Record how far the input was read."""
        state = self._state
        if block.source.input.compression and not self._is_stream_counted:
            state.input_bytes -= state.input_read  # decompressed, and counted, from its start again
            state.input_read = 0
        self._is_stream_counted = True
        state.offset = block.stop
        state.input_read += block.n_input_bytes
        state.val_end = block.val_end
        self._tail = block.data[-END_BYTES:] if isinstance(block.data, bytes) else b""

    def _place(self) -> list[Any]:
        """Return length and SHA-256 of the text just before the offset; [] if no later run could compare it."""
        state, source = self._state, self._sources[self._state.input]
        if source.input.is_remote or source.input.is_stdin or source.unit == "row" or not state.offset:
            return []
        n_bytes = min(END_BYTES, state.offset)
        if not source.input.is_stream:
            sha256 = place_hash(source.input, state.offset, n_bytes)
            return [n_bytes, sha256] if sha256 else []
        return [len(self._tail), hash_bytes(self._tail)] if self._tail else state.place

    def _split(self, block: Block, encoded: Encoded, room: int) -> Split:
        settings, state = self._settings, self._state
        ids, ends = place_eot(encoded.ids, encoded.ends, settings.eot)
        if settings.val_files:
            return split_whole(ids, len(ends), block.source.number < settings.val_files)
        if not block.source.unit:
            return split_text(ids, block.split, state.val_tokens, settings.val_tokens)
        return split_documents(
            ids,
            ends,
            state.n_documents,
            state.val_tokens,
            ratio=settings.val_ratio,
            tokens=settings.val_tokens,
            seed=settings.seed,
            room=room,
        )

    def _commit(self, writer: ShardWriter, changes: ChangeLog) -> None:
        """Make the data durable, then the record that describes it."""
        writer.sync()
        changes.sync()
        self._state.place = self._place()
        self._write_record()
        writer.give_names()

    def _cut_back(self, writer: ShardWriter, changes: ChangeLog) -> None:
        """Cut the last block off again, in the middle of which the disk got full, and save everything before it.

        To hash what stays, all of it is read: if that is much, what was committed some seconds ago is enough.
        """
        if not self._before or (self._n_saved and writer.n_open_bytes > MAX_REREAD_BYTES):
            return
        with contextlib.suppress(PrepareError):  # the original error is the one to report
            writer.sync()  # raises if an fsync has failed: what was written may be lost
            changes.sync()
            writer.close()
            changes.close()
            vars(self._state).update(vars(self._before), parts={})
            with closing(self._open_writer()) as writer, closing(ChangeLog(self._folder, self._state)) as changes:
                self._commit(writer, changes)

    def _seconds(self) -> float:
        """Return how long the run has worked, over all invocations."""
        return self._state.seconds + time.monotonic() - self._clock

    def _write_record(self) -> None:
        now = time.monotonic()
        self._state.seconds += now - self._clock
        self._clock = now
        self._watch.record()
        self._record.write()
        self._n_saved, self._before = self._state.n_tokens, None

    def _finish_encoding(self, writer: ShardWriter, changes: ChangeLog) -> None:
        self._is_whole = False
        try:
            report.check_worth(self._state, self._sources, self._settings.val_files)
        except InputError:
            self._is_worthless = True
            raise
        self._state.snapshot = self._state.snapshot or self._state.position()
        writer.finish()
        changes.sync()
        self._state.place = self._place()
        self._state.status = MERGING
        if self._settings.shuffle:
            self._state.status, self._state.outputs = SHUFFLING, {}
        self._is_whole = True
        self._write_record()

    def _shuffle(self) -> None:
        def check() -> None:
            self._cancel.check()
            self._watch.check(self._seconds())

        forget_encoders()
        limit_bytes = plan_shuffle(self._guard)
        shuffle(self._record, self._settings.least_tokens, limit_bytes, commit=self._write_record, check=check)

    def _merge(self) -> None:
        state = self._state
        self._record.clear_parts()
        is_hashed = merge(self._record, self._write_record, self._cancel.check)
        is_hashed = is_hashed or (self._has_encoded and len(state.shard_sha256) == 1)  # while it was written
        add_meta(self._record, self._settings.tokenizer, self._write_record)
        self._cancel.check()
        give_names(self._record, self._cancel.check, self._is_resumed, is_hashed)
        state.status = DONE
        self._write_record()

    def _way_on(self, error: BaseException, shown: BaseException) -> str:
        """Return what continues the run. What was read of a file must stay, but only of some can that be compared."""
        if not isinstance(shown, InputError):
            return "the same command continues"
        is_changed = isinstance(shown, ChangedError)
        if isinstance(error, WorkerError) and isinstance(error.__cause__, RecordError) and not is_changed:
            source = error.block.source
            is_begun = source.number == self._state.input and self._state.offset > 0
            is_fixed = source.input.is_remote or source.input.compression or source.unit == "row"
            if is_begun and is_fixed and not source.input.is_stdin:
                return "with such an option, the same command continues; with a mended file, --overwrite starts over"
        return "once that is fixed, the same command continues"

    def _saved(self, way_on: str) -> str:
        if (not self._n_saved or self._is_worthless) and not self._state.old:
            with contextlib.suppress(PrepareError, OSError):  # the original error is the one to report
                clear(self._record)  # nothing worth keeping was saved
            return ""
        if not self._folder.is_dir():
            return f"{self._n_saved:,} tokens were saved in it: without it, the same command starts over"
        return f"{self._n_saved:,} tokens are saved: {way_on}"


def _has_no_room(error: BaseException) -> bool:
    """Tell whether a write failed for lack of space: what was written before is good."""
    return isinstance(error, DiskError) and getattr(error.__cause__, "errno", 0) in files.NO_ROOM
