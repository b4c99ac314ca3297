"""What is in the folder already: nothing, a run to continue, a finished one, or what must not be touched."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from ..pipeline.settings import Settings
from ..support.errors import InputError, PrepareError
from ..support.log import log
from ..support.model import Input
from ..support.redact import kept
from . import files
from .changes import CHANGES_NAME
from .layouts import ID_BYTES, LAYOUTS
from .manifest import DONE, ENCODING, RECORD_NAME, Record, State, portable, read_record
from .shards import TRAIN_NAME, shard_path

MAX_DIFFERENCES = 5
"""How many of what is not as it was are said."""


def open_record(
    folder: Path,
    settings: Settings,
    inputs: list[Input],
    names: list[str],
    *,
    overwrite: bool,
    dry_run: bool = False,
) -> Record:
    """Return the record of the run to do: a fresh one, that of an interrupted run, or one that is done.

    With `overwrite`, what another run has left is deleted; an interrupted run of the same inputs and settings is
    continued all the same. A finished demo makes way for anything. With `dry_run` nothing is deleted, and what is
    in the way is said.

    Raises `InputError` for outputs of another run or of unknown origin, or of more than `max_tokens`; `PrepareError`
    for a damaged record.
    """
    refusal: InputError | None = None
    try:
        record = read_record(folder)
    except PrepareError:
        if not overwrite:
            raise
        record = None
    if record is not None:
        differences = record.differences(settings.fixed(), inputs)
        n_tokens, is_done = record.state.train_tokens, record.state.status == DONE
        has_more = n_tokens > (settings.max_tokens or sys.maxsize)
        if not (differences or has_more or (overwrite and is_done)):
            _check_outputs(folder, record)
            return record
        is_demo = is_done and all(input.format == "demo" for input in record.inputs)
        if differences and not is_demo:
            refusal = _refusal(folder, record, differences)
        elif settings.max_tokens is not None and has_more and not is_demo:
            refusal = InputError(
                f"{folder}: {n_tokens:,} tokens of train are there already, --max-tokens is {settings.max_tokens:,}",
                "nothing is taken away: leave it out or give a larger number, choose another --out, or --overwrite",
            )
    elif found := next(_outputs(folder), None):
        refusal = InputError(
            f"{found} is already there, and no {RECORD_NAME} says what it was made of",
            "it is left alone: choose another folder with --out, or replace it with --overwrite",
        )
    if dry_run:
        if refusal and not overwrite:
            for line in f"note: {refusal}".split("\n"):
                log.warning(line)
    elif refusal and not overwrite:
        raise refusal
    else:
        clear(folder)
    return Record(folder / RECORD_NAME, settings.fixed(), portable(inputs), State(), [kept(name) for name in names])


def recorded_inputs(folder: Path, names: list[str]) -> list[Input] | None:
    """Return the inputs that an earlier run of the same names has found at URLs, at the version it found.

    None where there is no such run, or a name is a local file's, or was not kept as it is for its secrets.
    """
    if names != [kept(name) for name in names]:
        return None
    with contextlib.suppress(PrepareError):
        record = read_record(folder)
        if record and record.names == names and all(input.is_remote for input in record.inputs):
            return record.inputs
    return None


def reopen(folder: Path, record: Record, settings: Settings) -> None:
    """Make a finished run that stopped at its `max_tokens` one to continue, if it may have more now.

    The last shard, which was cut short, becomes the one that is written; what is complete stays in train.bin.
    """
    state = record.state
    if state.status != DONE or state.is_exhausted or (settings.max_tokens or sys.maxsize) <= state.train_tokens:
        return
    n_complete = len(state.shard_sha256) - 1
    n_before = n_complete * settings.shard_tokens * ID_BYTES
    if not settings.keep_shards:
        with contextlib.closing(files.Part(shard_path(folder, n_complete), is_hashed=False)) as part:
            for data in files.read_pieces(folder / TRAIN_NAME, n_before, sys.maxsize):
                part.write(data)
            part.sync()
    del state.shard_sha256[n_complete:]
    state.merged_shards = min(state.merged_shards, n_complete)
    state.outputs.clear()
    state.status = ENCODING
    record.write()


def clear(folder: Path) -> None:
    """Delete what a run writes: outputs, shards, temporary files and, last, the record."""
    for path in (*_outputs(folder), folder / RECORD_NAME):
        files.remove(path)
        files.remove(files.part_path(path))


def _outputs(folder: Path) -> Iterator[Path]:
    """Yield what a run writes, complete files before their temporary forms."""
    suffixes = sorted({layout.suffix for layout in LAYOUTS.values()})
    names = [folder / name for name in (TRAIN_NAME, *(f"val{suffix}" for suffix in suffixes), CHANGES_NAME)]
    for end in ("", ".part"):
        yield from (path for name in names if (path := name.with_name(name.name + end)).exists())
        for suffix in suffixes:
            yield from sorted(folder.glob(f"train_shard_[0-9][0-9][0-9][0-9]*{suffix}{end}"))


def _check_outputs(folder: Path, record: Record) -> None:
    if record.state.status != DONE:
        return
    for name, output in record.state.outputs.items():
        path = folder / name
        if not path.exists() or path.stat().st_size != output["bytes"]:
            raise InputError(
                f"{path}: missing or not {output['bytes']:,} bytes long, as {RECORD_NAME} says it is",
                "make it again with --overwrite",
            )


def _refusal(folder: Path, record: Record, differences: list[str]) -> InputError:
    what = "a finished result" if record.state.status == DONE else "an interrupted run"
    said = "; ".join(differences[:MAX_DIFFERENCES])
    if len(differences) > MAX_DIFFERENCES:
        said += f"; and {len(differences) - MAX_DIFFERENCES:,} more"
    return InputError(
        f"{folder / RECORD_NAME}: {what} of other inputs or settings is already there: {said}",
        "it is left alone: choose another folder with --out, put things back, or start over with --overwrite",
    )
