"""From a request to a job: plan its inputs, memory and engine, then estimate it or run it.

Modules that are slow to import, or need the engine, are imported on first use: the engine loads meanwhile.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from ..inputs.blocks import Source
from ..inputs.demo import demo_input
from ..inputs.discover import find_inputs, leave_out
from ..inputs.sources import check_documents, check_first, find_without_text, make_sources
from ..inputs.storage import place_hash
from ..memory.guard import MemoryGuard
from ..output.columns import earlier_names, names_of
from ..output.manifest import Record
from ..output.merge import check_shards
from ..output.own import RECORD_NAME
from ..output.resume import clear, clearable_bytes, open_record, recorded_inputs, reopen
from ..output.state import DONE, ENCODING, MERGING, State
from ..remote.hub import is_remote, may_stand_for
from ..remote.network import Network
from ..support.cancel import Cancel
from ..support.errors import DamagedError
from ..support.log import log, say
from ..support.model import Input, join_names
from ..support.redact import is_web
from ..tokenizer.gpt2 import GPT2
from ..tokenizer.tokenizer import Tokenizer
from . import report
from .budget import MemoryPlan, count_connections, plan_for, sure_engine
from .fits import check_fit, fit_warnings
from .schedule import Workers
from .settings import Settings

if TYPE_CHECKING:
    from .plan import Estimate
    from .run import Run
    from .samples import Sampled


@dataclass(frozen=True)
class Request:
    """What the caller asks for; `names` and `val_names` are the inputs and the files of `--val`, as typed."""

    settings: Settings
    folder: Path
    names: list[str]
    val_names: list[str]
    format: str | None
    is_demo: bool
    overwrite: bool
    workers: int | None
    connections: int
    memory: str | int | None
    is_local: bool  # encodes on this machine, not on a cluster


@dataclass
class Job:
    """A request and its plan: the input files, how much memory they may use, and the engine."""

    request: Request
    settings: Settings
    inputs: list[Input]
    guard: MemoryGuard
    plan: MemoryPlan
    network: Network
    is_recorded: bool  # files at URLs are those of an earlier run: whether they have changed was not asked
    _sampled: tuple[list[Source], Sampled | None] | None = field(default=None, init=False, repr=False)

    @property
    def cancel(self) -> Cancel:
        """The token that ends the job early."""
        return self.network.cancel

    @property
    def n_connections(self) -> int:
        """How many connections were requested for inputs at URLs; 0 if all inputs are local."""
        return count_connections(self.inputs, self.request.connections)

    @property
    def folder(self) -> Path:
        """Where the outputs go."""
        return self.request.folder

    def check_inputs(self) -> None:
        """Check the inputs and fit the tokenizer to them. Raises `InputError` for inputs that cannot be used."""
        earlier = "" if self.request.overwrite else earlier_names(self.folder)
        given = self.settings.text_column
        sources = self._sources(join_names(given, earlier) if earlier else given)
        check_first(sources)
        if self.settings.shuffle:
            check_documents(sources)
        self.cancel.check()
        if self.settings.tokenizer is not GPT2:
            from .vocabulary import fitted

            self.settings = fitted(self.settings, sources, self.plan, self.cancel)

    def estimate(self) -> Estimate:
        """Log and return what a run would make and take; write nothing."""
        from .fetch import measure_link
        from .plan import finished, link_line, with_link

        record = self._open_record(dry_run=True)
        if not self.request.overwrite:
            check_shards(record)
        sources = self._recorded_sources(record)
        if record.state.status == DONE and not record.state.wants_more(self.settings.max_tokens):
            self._say_done(record, "already done: the same command has nothing to do; --overwrite starts over")
            return finished(record.state, sources, self.folder, self.plan, self.guard.budget_bytes)
        found, link = self._say_plan(record, sources, is_strict=not self.settings.skip_bad), measure_link(sources)
        if link:
            log.info(link_line(link))
        return with_link(found, link) if link else found

    def check_disk(self, found: Estimate) -> None:
        """Raise `DiskError` if there is no room for the estimated output."""
        from .plan import check_disk

        check_disk(found, self.settings)

    def run(
        self,
        quiet: bool = False,
        executor: Executor | None = None,
        connect: Callable[[Sequence[Source]], AbstractContextManager[Workers]] | None = None,
    ) -> Record:
        """Do all that is left to do in the folder, which must be locked, and return its record.

        An `executor`, or the workers that `connect` reaches and that can read the sources, encode instead of local
        threads. For `overwrite` nothing is deleted before samples, the plan, the disk and the workers were checked.
        """
        if self.request.overwrite and os.path.lexists(self.folder / RECORD_NAME):
            sources = self._sources(self.settings.text_column)
            sampled = self._sample(sources, is_strict=not self.settings.skip_bad)
            if sampled:
                self._check_sampled(sampled, State())
            self.check_disk(self._estimate(sampled, sources, State()))
            with connect(sources) if connect else contextlib.nullcontext():
                pass
        record = self._open_record()
        try:
            return self._run_rest(record, quiet, executor, connect)
        except DamagedError as error:
            if not self.request.overwrite:
                raise
            log.warning("note: %s; so all of it is made again", error.message)
        clear(record)
        return self._run_rest(self._open_record(), quiet, executor, connect)

    def _run_rest(
        self,
        record: Record,
        quiet: bool,
        executor: Executor | None,
        connect: Callable[[Sequence[Source]], AbstractContextManager[Workers]] | None,
    ) -> Record:
        check_shards(record)
        sources = self._recorded_sources(record)
        if record.state.status == MERGING and record.state.wants_more(self.settings.max_tokens):
            run = self._run(record, sources, quiet)
            with run.explained():
                run.work()  # only the merge is left: finish it before the run is extended
        if record.state.status == DONE and record.state.wants_more(self.settings.max_tokens):
            with self._run(record, sources, quiet).explained():
                self.check_disk(self._estimate(self._sample(sources, is_strict=False), sources, record.state))
                reopen(record, self.cancel.check)
        if record.state.status == DONE:
            self._say_done(record, "already done; nothing to do")
        else:
            with contextlib.closing(self._run(record, sources, quiet)) as run, run.explained():
                if not executor:
                    run.begin()
                self.check_disk(self._say_plan(record, sources))
                with connect(sources) if connect else contextlib.nullcontext() as workers:
                    run.work(executor, workers)
        return record

    def _run(self, record: Record, sources: Sequence[Source], quiet: bool) -> Run:
        from .run import Run

        return Run(self, sources, record, quiet)

    def _open_record(self, dry_run: bool = False) -> Record:
        return open_record(
            self.folder,
            self.settings.fixed(),
            self.inputs,
            [*self.request.val_names, *self.request.names],
            max_tokens=self.settings.max_tokens,
            overwrite=self.request.overwrite,
            dry_run=dry_run,
            place_hash=place_hash,
        )

    def _sources(self, text_column: str) -> list[Source]:
        settings = self.settings
        options = dataclasses.replace(settings.read_options(self.plan), text_column=text_column)
        is_at_end = settings.val_at == "end"
        return make_sources(self.inputs, options, settings.val_share, settings.val_files, is_at_end, self.network)

    def _recorded_sources(self, record: Record) -> list[Source]:
        """Return the sources of a run, with the names of text columns that are on record.

        Logs a note on a file not yet read that has none of these columns: the run saves all before it, and stops there.
        """
        sources = self._sources(names_of(record))
        is_done = record.state.status != ENCODING and not record.state.wants_more(self.settings.max_tokens)
        error = None if is_done else find_without_text(sources[record.state.input :], self.cancel)
        if error:
            log.warning("note: %s: the run will stop there; %s", error.message, error.hint)
        return sources

    def _say_done(self, record: Record, what: str) -> None:
        lines = [what]
        if self.is_recorded:
            lines.append("note: no server was asked whether files at URLs have changed; if they have: --overwrite")
        said = report.compared(record), report.outputs(self.folder, record), fit_warnings(record, self.settings)
        say((*lines, *chain(*said)))
        if record.state.n_changes:
            log.warning("note: changed or skipped as asked then; for another --errors or --skip-bad: --overwrite")

    def _sample(self, sources: Sequence[Source], is_strict: bool) -> Sampled | None:
        """Sample the sources, unless that was done: a run with `overwrite` does it before anything is deleted."""
        from .samples import sample

        if not self._sampled or self._sampled[0] != sources:
            engine, tokenizer, n_val = self.plan.engine, self.settings.tokenizer, self.settings.val_files
            self._sampled = list(sources), sample(sources, engine, is_strict, self.cancel, tokenizer, n_val)
        return self._sampled[1]

    def _say_plan(self, record: Record, sources: Sequence[Source], is_strict: bool = False) -> Estimate:
        """Log what was found, what the run will make and what that takes; return the estimate."""
        from .plan import plan_lines

        say([*report.found(record), self.plan.line])
        sampled = self._sample(sources, is_strict)
        found = self._estimate(sampled, sources, record.state, record.base_tokens)
        say(plan_lines(sampled, found, self.settings, sources))
        if sampled:
            say(self._check_sampled(sampled, record.state))
        return found

    def _estimate(
        self, sampled: Sampled | None, sources: Sequence[Source], state: State, base_tokens: int = 0
    ) -> Estimate:
        """Return what a run from a state on will make; free are also the bytes that `overwrite` is about to delete."""
        from .plan import make_estimate

        settings, plan, budget = self.settings, self.plan, self.guard.budget_bytes
        found = make_estimate(sampled, sources, settings, state, base_tokens, self.folder, plan, budget)
        n_freed = clearable_bytes(self.folder) if self.request.overwrite and not state.n_tokens else 0
        return dataclasses.replace(found, disk_free_bytes=found.disk_free_bytes + n_freed)

    def _check_sampled(self, sampled: Sampled, state: State) -> list[str]:
        """Return notes on files that will be too short. Raises `InputError` for a plan that cannot be carried out."""
        from .plan import check_plan

        check_plan(sampled, self.settings)
        train, val = sampled.splits(self.settings)
        is_begun = state.n_tokens > 0
        return check_fit(train, val, sampled.spread, self.settings, sampled.has_documents, is_begun, sampled.is_rough)


@contextlib.contextmanager
def planned(request: Request, network: Network) -> Iterator[Job]:
    """Yield the job for a request, with its inputs checked; the engine, which takes longest, loads meanwhile.

    Raises `InputError` for what cannot be used, `MemoryLimitError` if not even one worker fits.
    """
    guard = MemoryGuard(request.memory)
    with _engine_loading_early(request, guard, network):
        n_val, inputs, is_recorded = _find(request, network)
    settings = dataclasses.replace(request.settings, val_files=n_val)
    if settings.separator and not any(input.format == "text" for input in inputs):
        log.warning("note: --separator is for text files, and no input is one")
    if not settings.has_shards and settings.shard_tokens != settings.file_layout.shard_tokens:
        log.warning("note: --shard-tokens is for shards, and train is one file; --keep-shards writes both")
    plan = plan_for(inputs, settings, guard, network, request.workers, request.connections, request.is_local)
    network.fetcher.is_streaming = request.is_local
    job = Job(request, settings, inputs, guard, plan, network, is_recorded)
    with _engine_loading(plan.engine, settings.tokenizer):
        job.check_inputs()
        yield job


def _find(request: Request, network: Network) -> tuple[int, list[Input], bool]:
    """Return the number of validation inputs, all inputs, the validation ones first, and whether some are on record."""
    val, names = request.val_names, request.names
    if request.is_demo:
        return 0, [demo_input()], False
    is_recorded = False

    def find(part: list[str], is_val: bool) -> list[Input]:
        nonlocal is_recorded
        is_new = request.overwrite
        known = None if is_new else recorded_inputs(request.folder, [*val, *names], may_stand_for, part, is_val)
        is_recorded |= bool(known)
        return known or find_inputs(part, request.format, network)

    found = find(val, True) if val else []
    others = find(names, False)
    return len(found), [*found, *(leave_out(others, found) if found else others)], is_recorded


def _engine_loading_early(request: Request, guard: MemoryGuard, network: Network) -> AbstractContextManager[None]:
    """Load the engine while a server lists the inputs, if it is the engine of any plan: that takes as long.

    What is needed next comes first: pyarrow, for what is probably parquet.
    """
    names = list(filter(is_remote, [*request.val_names, *request.names]))
    engine = sure_engine(guard, request.settings) if names else None
    if not engine:
        return contextlib.nullcontext()
    has_parquet = any(not is_web(name) or ".parquet" in name for name in names)
    return _engine_loading(engine, request.settings.tokenizer, network.fetcher.has_asked, has_parquet)


@contextlib.contextmanager
def _engine_loading(
    engine: str, tokenizer: Tokenizer, begin: threading.Event | None = None, has_parquet: bool = False
) -> Iterator[None]:
    """Load the engine in a thread while everything else is prepared; it holds the GIL, so not before `begin` is set."""
    from .worker import get_encoder

    left = Cancel()

    def load() -> None:
        if begin:
            begin.wait()
        with contextlib.suppress(Exception):  # raised again when the engine is used
            left.check()
            if has_parquet:
                importlib.import_module("pyarrow.parquet")
            get_encoder(engine, tokenizer)

    thread = threading.Thread(target=load, name="encode-load")
    with contextlib.suppress(RuntimeError):  # there may be no more threads: the run will say so
        thread.start()
    try:
        yield
    finally:
        left.set()  # nothing was asked, because the inputs are on record or cannot be used
        if begin:
            begin.set()
        if thread.ident:
            thread.join()
