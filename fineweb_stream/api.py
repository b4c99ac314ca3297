"""`prepare()`: what a script calls, and what the command line is made of."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from .cluster.needs import find_needs
from .inputs.blocks import Source
from .inputs.demo import demo_input
from .inputs.discover import as_names, find_inputs, leave_out
from .inputs.sources import check_first, find_without_text, make_sources
from .inputs.storage import place_hash
from .memory.guard import MemoryGuard
from .output import files
from .output.compare import names_of
from .output.layouts import LAYOUTS, NANOGPT
from .output.lock import locked
from .output.manifest import DONE, ENCODING, MERGING, Record
from .output.meta import META_NAME
from .output.resume import earlier_names, keep_names, open_record, recorded_inputs, reopen, wants_more
from .pipeline import report
from .pipeline.budget import MemoryPlan, plan_memory
from .pipeline.fits import check_fit, check_neighbours, fit_warnings
from .pipeline.schedule import count_workers
from .pipeline.settings import DEFAULT_VAL_RATIO, Settings, layout_named
from .remote import session
from .support.cancel import Cancel, cancel_on_signals
from .support.errors import InputError
from .support.log import has_listener, log, printed
from .support.model import Input, ReadOptions, join_names
from .support.waiting import until
from .tokenizer.gpt2 import GPT2
from .tokenizer.load import load_tokenizer
from .tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from .pipeline.plan import Estimate

DEMO_VAL_RATIO = 0.1
"""The demo has some 80 documents: with the usual share, only the one that always is would be in val."""


@dataclass(frozen=True)
class Result:
    """What a run made: the folder of `train.bin` and `val.bin`, tokens and documents of each, and how long it took."""

    out: Path
    train_tokens: int
    val_tokens: int
    train_documents: int
    val_documents: int
    seconds: float


def prepare(
    inputs: str | Path | Sequence[str | Path] = (),
    out: str | Path = ".",
    *,
    val: str | Path | Sequence[str | Path] = (),
    val_ratio: float | None = None,
    val_tokens: int | None = None,
    val_at: str = "start",
    shard_tokens: int | None = None,
    max_tokens: int | None = None,
    keep_shards: bool = False,
    layout: str = NANOGPT.name,
    names: str | None = None,
    fit: str | None = None,
    eot: str = "after",
    shuffle: bool = False,
    tokenizer: str | Path = "gpt2",
    pattern: str | None = None,
    eot_id: str | int | None = None,
    index: bool = False,
    format: str | None = None,
    text_column: str = "text",
    separator: str | None = None,
    errors: str = "strict",
    skip_bad: bool = False,
    engine: str = "auto",
    workers: int | None = None,
    connections: int = session.DEFAULT_CONNECTIONS,
    memory: str | int | None = None,
    seed: int = 0,
    overwrite: bool = False,
    dry_run: bool = False,
    demo: bool = False,
    cluster: str | None = None,
    executor: Executor | None = None,
    quiet: bool = False,
) -> Result:
    """Turn text into `train.bin` and `val.bin` in the folder `out`; the same call continues an interrupted run.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = prepare(demo=True, out=folder, quiet=True)
    ...     (result.out / "train.bin").stat().st_size == 2 * result.train_tokens
    True

    The parameters are those of the command line; `fit` is its `--for`, and `val` names files as `inputs` does. With
    `dry_run` nothing is written and the result is an estimate.
    With `executor`, any `concurrent.futures` executor does the encoding; with `cluster`, the workers of the Dask
    scheduler at that address.

    Raises `PrepareError` (`InputError`, `MemoryLimitError`, `DiskError`, `EngineError`), and `Interrupted` on a signal.
    """
    layout = layout_named(layout, names)
    settings = Settings(
        val_ratio=val_ratio if val_ratio is not None else DEMO_VAL_RATIO if demo else DEFAULT_VAL_RATIO,
        val_tokens=val_tokens,
        shard_tokens=shard_tokens,  # type: ignore[arg-type]
        text_column=text_column,
        separator=separator,
        seed=seed,
        errors=errors,
        skip_bad=skip_bad,
        keep_shards=keep_shards,
        max_tokens=max_tokens,
        engine=engine,
        layout=layout,
        fit=fit,
        eot=eot,
        shuffle=shuffle,
        tokenizer=load_tokenizer(str(tokenizer), pattern, eot_id),
        val_at=val_at,
    )
    val_names = as_names(val)
    others = {
        "--demo": demo,
        "--val-ratio": val_ratio is not None,
        "--val-tokens": val_tokens is not None,
        "--val-at": val_at != "start",
    }
    if val_names and (other := next((name for name, is_given in others.items() if is_given), None)):
        raise InputError(f"--val and {other}: the files of --val are all of val, and nothing else", "leave one out")
    if index and eot != "after":
        raise InputError(f"--index and --eot {eot}: an index says where documents end, by --eot after", "leave out one")
    check_neighbours(Path(out), LAYOUTS[layout])
    input_names, folder = as_names(inputs), Path(out)
    if os.path.isfile(folder):  # False for a name that is too long: that is said later
        raise InputError(f"{folder}: a file, not a folder", "--out names the folder that the outputs go into")
    if demo and input_names:
        raise InputError(f"demo=True takes no inputs: {input_names[0]}", "it is a corpus itself: leave one out")
    with (
        contextlib.nullcontext() if quiet or has_listener() else printed(),
        cancel_on_signals() as cancel,
        until(cancel),
        session.session(connections) as network,
    ):
        if demo:
            found, n_val = [demo_input()], 0
        else:
            found, n_val = _find(folder, val_names, input_names, format, overwrite)
        settings = replace(settings, val_files=n_val)
        named = [*val_names, *input_names]
        if settings.separator and not any(file.format == "text" for file in found):
            log.warning("note: --separator is for text files, and no input is one")
        guard = MemoryGuard(memory)
        formats = {file.format for file in found}
        is_local, n_connections = cluster is None, connections if any(file.is_remote for file in found) else 0
        plan = plan_memory(
            guard,
            _usable(engine, settings.tokenizer),
            count_workers(workers),
            formats,
            is_local,
            n_connections,
            settings.tokenizer,
        )
        network.n_connections, network.ahead_bytes = plan.n_connections, plan.fetch_bytes
        network.is_streaming = is_local
        with _engine_loading(plan.engine, settings.tokenizer):
            options = settings.read_options(plan.max_document_bytes)
            earlier = "" if overwrite else earlier_names(folder)
            columns = join_names(text_column, earlier) if earlier else text_column
            sources = _sources(found, dataclasses.replace(options, text_column=columns), settings)
            check_first(sources)
            if settings.shuffle:
                _check_documents(sources)
            cancel.check()
            settings = _fitted(settings, sources, plan, cancel)
            if dry_run:
                from .pipeline.fetch import measure_link
                from .pipeline.plan import link_lines

                record = open_record(
                    folder, settings, found, named, overwrite=overwrite, dry_run=True, place_hash=place_hash
                )
                sources = _make_sources(found, options, settings, record, cancel)
                estimated = _say_plan(record, settings, sources, plan, folder, cancel, is_strict=True)
                for line in link_lines(measure_link(sources)):
                    log.info(line)
                return Result(folder, *(estimated.splits(settings) if estimated else (0, 0)), 0, 0, 0.0)
            with files.disk_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
            with locked(folder):
                record = open_record(folder, settings, found, named, overwrite=overwrite, place_hash=place_hash)
                sources = _make_sources(found, options, settings, record, cancel, is_kept=True)
                if record.state.status == MERGING and wants_more(record, settings):
                    from .pipeline.run import Run

                    Run(folder, settings, sources, record, cancel, quiet, guard, plan).work()  # it has only to merge
                reopen(folder, record, settings, cancel.check)
                if record.state.status == DONE:
                    said = report.outputs(folder, record), fit_warnings(record, settings)
                    for line in ("already done; nothing to do", *report.compared(record), *chain(*said)):
                        log.info(line)
                else:
                    _say_plan(record, settings, sources, plan, folder, cancel)
                    from .pipeline.run import Run  # with all that needs NumPy, it is imported while the engine loads

                    run = Run(folder, settings, sources, record, cancel, quiet, guard, plan)
                    if cluster is None:
                        run.work(executor)
                    else:
                        from .cluster.client import connect  # it loads distributed

                        needs = find_needs(plan.engine, sources, settings.tokenizer.reference)
                        with connect(cluster, needs, cancel) as workers_there:
                            run.work(cluster=workers_there)
                _index(folder, record, index, cancel)
            state = record.state
    return Result(
        folder, state.train_tokens, state.val_tokens, state.train_documents, state.val_documents, state.seconds
    )


def _check_documents(sources: Sequence[Source]) -> None:
    """Raise `InputError` for the first text that is no documents: there is nothing to shuffle."""
    for source in sources:
        if not source.unit:
            raise InputError(
                f"{source.input.shown}: plain text has no documents, and --shuffle puts documents in another order",
                r"say what parts them, as --separator '\n\n', or leave --shuffle out",
            )


def _find(
    folder: Path, val: list[str], names: list[str], format: str | None, overwrite: bool
) -> tuple[list[Input], int]:
    """Return all inputs, those of `val` first, and how many these are."""

    def find(part: list[str], is_val: bool) -> list[Input]:
        known = None if overwrite else recorded_inputs(folder, [*val, *names], _belongs, part, is_val)
        return known or find_inputs(part, format)

    found = find(val, True) if val else []
    others = find(names, False)
    return [*found, *(leave_out(others, found) if found else others)], len(found)


def _sources(found: Sequence[Input], options: ReadOptions, settings: Settings) -> list[Source]:
    return make_sources(found, options, settings.val_share, settings.val_files, settings.val_at == "end")


def _make_sources(
    found: Sequence[Input],
    options: ReadOptions,
    settings: Settings,
    record: Record,
    cancel: Cancel,
    is_kept: bool = False,
) -> list[Source]:
    """Return the sources of a run, by the names of columns that count in it.

    Raises `InputError` for a file ahead that has none of them; with `is_kept` that is kept on record.
    """
    options = dataclasses.replace(options, text_column=names_of(record))
    sources = _sources(found, options, settings)
    is_done = record.state.status != ENCODING and not wants_more(record, settings)
    error = None if is_done else find_without_text(sources[record.state.input :], cancel)
    if error:
        if is_kept:
            keep_names(record)
        raise error
    return sources


def _index(folder: Path, record: Record, is_asked: bool, cancel: Cancel) -> None:
    """Say where documents end in what is finished, if asked to; else name an index that is another's."""
    from .token_files.documents import index_outputs, name_stale

    outputs = [folder / name for name in record.state.outputs if name != META_NAME]
    if is_asked:
        index_outputs(outputs, cancel)
    else:
        name_stale(outputs)


def _usable(engine: str, tokenizer: Tokenizer) -> str:
    """Return the engine to plan with."""
    if tokenizer is GPT2:  # it need not be looked at first, and all that has NumPy is imported while it loads
        return engine
    from .pipeline.vocabulary import usable_engine

    return usable_engine(engine, tokenizer)


def _fitted(settings: Settings, sources: Sequence[Source], plan: MemoryPlan, cancel: Cancel) -> Settings:
    if settings.tokenizer is GPT2:
        return settings
    from .pipeline.vocabulary import fitted

    return fitted(settings, sources, plan, cancel)


def _belongs(name: str, url: str) -> bool:
    """Tell whether a URL is one that a name may stand for."""
    from .remote.hub import may_stand_for  # it loads what speaks to networks

    return may_stand_for(name, url)


def _say_plan(
    record: Record,
    settings: Settings,
    sources: Sequence[Source],
    plan: MemoryPlan,
    folder: Path,
    cancel: Cancel,
    is_strict: bool = False,
) -> Estimate | None:
    """Say what was found, what will be made and what it takes."""
    from .pipeline.plan import check_plan, estimate, larger_ratio, plan_lines

    for line in report.found(record):
        log.info(line)
    log.info(plan.line)
    found = estimate(
        sources, plan.engine, is_strict and not settings.skip_bad, cancel, settings.tokenizer, settings.val_files
    )
    n_workers = plan.n_workers if plan.is_local else None
    for line in plan_lines(found, settings, record.state, folder, n_workers, sources):
        log.info(line)
    if found:
        check_plan(found, settings, record.state, folder)
        train, val = found.splits(settings)
        is_val_named = larger_ratio(found, settings, val) is not None
        for line in check_fit(train, val, found.spread, settings, found.has_documents, is_val_named):
            log.warning(line)
    return found


@contextlib.contextmanager
def _engine_loading(engine: str, tokenizer: Tokenizer) -> Iterator[None]:
    """Load the engine, which takes longest, while all else is made ready."""
    from .pipeline.worker import get_encoder

    def load() -> None:
        with contextlib.suppress(Exception):  # raised again, and seen, where the engine is used
            get_encoder(engine, tokenizer)

    thread = threading.Thread(target=load, name="encode-load")
    thread.start()
    try:
        yield
    finally:
        thread.join()
