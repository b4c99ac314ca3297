"""Write documents in a random order, drawn from all orders, in bounded memory; a kill costs only seconds of work.

Documents are ordered by their keys: a document's key is a hash of the seed and of its number within its split, and no
two keys of a split are equal. Sorting by random numbers draws uniformly from all orders. (External shuffles by ranges
of random numbers: Rao 1961, "Generation of random permutations of given number of elements using random sampling
numbers"; Sandelius 1962, "A simple randomization procedure".)

While the inputs are encoded, documents wait in a spool, in input order. If they fit into memory, they are read, ordered
and written. If not, they are first copied to buckets by ranges of the key; then each bucket is read, ordered, written
and deleted. Neither the number of buckets nor the memory changes the result.
"""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..support.log import log
from ..support.units import counted
from ..tokenizer.ids import Ids
from . import files
from .files import Check
from .manifest import Record
from .own import CHANGES_NAME
from .shards import ShardWriter
from .spool import PIECE_TOKENS, Bucket, Source, Spool, gather, pack
from .state import MERGING, SHUFFLE, State

Write = Callable[[Ids], None]

COMMIT_TOKENS = 128 << 20
"""After this many tokens were copied to buckets, the state is committed and the copied spool files are deleted."""

MOST_BUCKETS = 64  # all are open at once, and macOS lets a process open 256 files
N_BINS = 1 << 32  # the number of bins: the first half of a key is its bin, the smallest range of keys
FRAGMENT_BYTES = 64  # memory that a fragment takes besides its ids, while it is ordered

_WRITTEN = ("train_tokens", "val_tokens", "shard_sha256", "shard_heads", "parts")
_N_SLOTS = 4096


class Range(NamedTuple):
    """The bins from `start` to before `stop`; their documents take at most `n_bytes` of memory."""

    start: int
    stop: int
    n_bytes: int


def shuffle(record: Record, least_tokens: int, limit_bytes: int, commit: Check, check: Check) -> None:
    """Write a spool's documents in shuffled order, as a run writes what it encodes; then the state is ready to merge.

    Resumes where the state says. About `limit_bytes` of documents are held at a time; `commit` records the state,
    `check` is called now and then and may raise.

    Raises `DiskError`; `PrepareError` when a file holds less than the state says.
    """
    state = record.state
    at = state.shuffle = state.shuffle or copy.deepcopy(SHUFFLE)
    record.clear_parts()
    changes = {name: part for name, part in state.parts.items() if name == CHANGES_NAME}  # the others are the spool's
    written = State(run=state.run, old=state.old, **copy.deepcopy({name: at[name] for name in _WRITTEN}))
    writer = ShardWriter(record.folder, record.shard_tokens, written, record.layout, least_tokens, check)
    with contextlib.closing(writer):

        def save(n_bins: int) -> None:
            writer.sync()
            at.update(copy.deepcopy({name: getattr(written, name) for name in _WRITTEN}), n_bins=n_bins)
            commit()
            writer.give_names()

        for split in range(at["split"], 2):
            spool = Spool(record, split, check)

            def write(ids: Ids, split: int = split) -> None:
                check()
                (writer.write_train if split else writer.write_val)(ids)

            _shuffle_split(record, spool, limit_bytes, write, save, commit)
            if split == 0:
                at.update(split=1, n_buckets=0, parted_tokens=0, parted_eot=0, n_bins=0)
                state.parts = dict(changes)
                commit()
                spool.remove(spool.n_tokens)
        writer.finish()
    for name in ("shard_sha256", "shard_heads", "has_rest", "outputs"):
        setattr(state, name, getattr(written, name))
    state.parts = changes | written.parts
    state.shuffle, state.status = {}, MERGING
    commit()


def _shuffle_split(
    record: Record, spool: Spool, limit_bytes: int, write: Write, save: Callable[[int], None], commit: Check
) -> None:
    """Write one split's documents in the order of their keys, resuming where the state says."""
    state = record.state
    at = state.shuffle
    cost = spool.n_tokens * spool.dtype.itemsize + spool.n_documents * FRAGMENT_BYTES
    if not at["n_buckets"]:
        at["n_buckets"] = min(-(-cost * 9 // 8 // limit_bytes), MOST_BUCKETS) if cost > limit_bytes else 1
    n_buckets = at["n_buckets"]
    log.info(f"shuffling {counted(spool.n_documents, 'document')}" + f", in {n_buckets} parts" * (n_buckets > 1))
    if n_buckets == 1:
        _write_ordered(spool, Range(at["n_bins"], N_BINS, cost), limit_bytes, write, save)
        return
    paths = [record.folder / f"prepare.bucket_{number:04d}.bin" for number in range(n_buckets)]
    _part(paths, state, spool, commit)
    for number, path in enumerate(paths):
        start, stop = -(-number * N_BINS // n_buckets), -(-(number + 1) * N_BINS // n_buckets)
        part = files.part_path(path, state.run)
        if at["n_bins"] < stop:
            bucket = Bucket(part, state.parts[path.name][0], spool.dtype, spool.check)
            _write_ordered(bucket, Range(max(start, at["n_bins"]), stop, sys.maxsize), limit_bytes, write, save)
        files.remove(part)


def _part(paths: list[Path], state: State, spool: Spool, commit: Check) -> None:
    """Copy the spool into buckets by ranges of the keys, and delete what was copied."""
    at, n_buckets = state.shuffle, len(paths)
    spool.remove(at["parted_tokens"])
    if at["parted_tokens"] == spool.n_tokens:
        return
    with contextlib.ExitStack() as opened:
        parts = []
        for path in paths:
            n_bytes, _ = state.parts.get(path.name, (0, ""))
            part = state.open_part(path, n_bytes, hash_bytes=0, check=spool.check)  # many are open: none holds data
            parts.append(opened.enter_context(contextlib.closing(part)))
        done = at["parted_tokens"]
        for fragments, n_eot in spool.read(done, at["parted_eot"]):
            numbers = fragments.bins * n_buckets >> 32
            order = np.argsort(numbers, kind="stable")
            bounds = np.searchsorted(numbers[order], np.arange(n_buckets + 1))
            for part, start, stop in zip(parts, bounds[:-1], bounds[1:], strict=True):
                if start < stop:
                    part.write(pack(fragments.take(order[start:stop])))
            done += len(fragments.ids)
            if done - at["parted_tokens"] >= COMMIT_TOKENS or done == spool.n_tokens:
                for part in parts:
                    state.sync(part)
                at.update(parted_tokens=done, parted_eot=n_eot)
                commit()
                spool.remove(done)


def _write_ordered(source: Source, whole: Range, limit_bytes: int, write: Write, save: Callable[[int], None]) -> None:
    """Write a range's documents in the order of their keys: as many at a time as may be held, then save."""
    for part in [whole] if whole.n_bytes <= limit_bytes else _iter_ranges(source, whole, limit_bytes):
        iter_ids = _iter_held if part.n_bytes <= limit_bytes else _iter_long
        for ids in iter_ids(source, part):
            write(ids)
        save(part.stop)


def _iter_ranges(source: Source, whole: Range, limit_bytes: int) -> Iterator[Range]:
    """Yield parts of a range whose documents take up to `limit_bytes`, and what they take; a single bin may be more."""
    first, last, _ = whole
    width = -(-(last - first) // _N_SLOTS)
    costs = np.zeros(_N_SLOTS)
    for fragments in source.iter_fragments(with_ids=False):
        fragments = fragments.within(first, last)
        slots = (fragments.bins - first) // width
        costs += np.bincount(slots, fragments.lengths * source.dtype.itemsize + FRAGMENT_BYTES, _N_SLOTS)
    start, total = first, 0
    for slot, cost in enumerate(costs.astype(np.int64).tolist()):
        here = min(first + slot * width, last)
        if total + cost > limit_bytes and start < here:
            yield Range(start, here, total)
            start, total = here, 0
        total += cost
        if cost > limit_bytes and width > 1:
            start, total = min(here + width, last), 0
            yield from _iter_ranges(source, Range(here, start, cost), limit_bytes)
    if start < last:
        yield Range(start, last, total)


def _iter_held(source: Source, part: Range) -> Iterator[Ids]:
    """Yield the ids of a range's documents in the order of their keys, in pieces; holds all of them."""
    held, n_held = np.empty(part.n_bytes // source.dtype.itemsize, source.dtype), 0
    tables = []
    for fragments in source.iter_fragments():
        chosen = fragments.within(part.start, part.stop)
        held[n_held : n_held + len(chosen.ids)] = chosen.ids
        n_held += len(chosen.ids)
        tables.append(chosen[:2])
    if not tables:
        return
    keys, lengths = (np.concatenate(column) for column in zip(*tables, strict=True))
    order = np.argsort(keys, kind="stable")
    starts, lengths = (np.cumsum(lengths) - lengths)[order], lengths[order]
    first, ends = 0, np.cumsum(lengths)
    while first < len(ends):
        n_before = int(ends[first - 1]) if first else 0
        last = max(int(np.searchsorted(ends, n_before + PIECE_TOKENS, "right")), first + 1)
        yield gather(held, starts[first:last], lengths[first:last])
        first = last


def _iter_long(source: Source, part: Range) -> Iterator[Ids]:
    """Do the same for a range too large to be held: key by key, reading the source anew for each."""
    tables = (table.within(part.start, part.stop) for table in source.iter_fragments(with_ids=False))
    for key in sorted({key for table in tables for key in table.keys.tolist()}):
        for fragments in source.iter_fragments():
            yield fragments.only(fragments.keys == np.uint64(key)).ids
