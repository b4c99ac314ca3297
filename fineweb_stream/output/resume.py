"""What is in the folder already: nothing, a run to continue, a finished one, or what must not be touched."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..support.errors import InputError, PrepareError
from ..support.log import log
from ..support.model import Input
from ..support.redact import kept
from . import files
from .compare import NAMES_BEFORE, PlaceHash, compare, has_more, names_now, names_of
from .manifest import Record, new_run, portable, read_record
from .own import (
    CHANGES_NAME,
    RECORD_NAME,
    TRAIN_NAME,
    check_folder,
    check_inputs,
    has_work,
    is_output,
    looks_own,
    orphans,
)
from .shards import shard_path
from .state import DONE, ENCODING, State

MAX_DIFFERENCES = 5
"""How many of what is not as it was are said."""


def open_record(
    folder: Path,
    settings: dict[str, Any],
    inputs: list[Input],
    names: list[str],
    *,
    max_tokens: int | None,
    overwrite: bool,
    dry_run: bool = False,
    place_hash: PlaceHash,
) -> Record:
    """Return the record of the run to do: a fresh one, that of an interrupted run, or one that is done.

    With `overwrite`, what another run has left is deleted; an interrupted run of the same inputs and settings is
    continued all the same. A finished demo makes way for anything. With `dry_run` nothing is deleted, and what is
    in the way is said. What is not a run's own is never touched.

    Raises `InputError` for outputs of another run or of unknown origin, for an input in an output's place, or of more
    than `max_tokens`; `PrepareError` for a damaged record.
    """
    fresh = Record(
        folder / RECORD_NAME,
        settings,
        portable(inputs),
        State(run=new_run()),
        [kept(name) for name in names],
    )
    try:
        check_inputs(folder, [input.path for input in inputs if not input.is_remote])
        record = read_record(folder)
        if record and not dry_run:
            record.settle()
        if record and not record.has_state and not overwrite:
            _refuse_gone(record)
        check_folder(folder, record.owned() if record else {}, (record or fresh).layout)
    except InputError as error:
        if not dry_run:
            raise
        _note(error)
        return fresh
    if record is None:
        for path in orphans(folder) if not dry_run else ():
            files.remove(path)
        return fresh
    refusal: InputError | None = None
    if record.state.status == ENCODING and not record.state.n_tokens and not record.state.old:
        is_same = [input.path for input in record.inputs] == [input.path for input in fresh.inputs]
        given = fresh.settings["text_column"]
        columns = names_now(record, given)
        if NAMES_BEFORE in record.settings and is_same and given != names_of(record):  # nothing else was kept yet
            fresh.settings |= {"text_column": columns, NAMES_BEFORE: ""}
    else:
        inputs = inputs if overwrite else _with_gone(record, fresh, inputs)
        refused, notes = compare(record, settings, inputs, place_hash)
        refusal = _refuse(record, max_tokens, refused)
        if not refused:
            refusal = refusal or _refuse_more(record, max_tokens, inputs)
        if not (refusal or (overwrite and record.state.status == DONE) or _makes_way(record, refused)):
            _check_outputs(record)
            if record.state.status == DONE and not dry_run:
                record.state.parts = {}
                record.clear_parts()
                record.remove_manifest()
            return _continued(record, fresh, notes)
    if dry_run:
        if refusal and not overwrite:
            _note(refusal)
    elif refusal and not overwrite:
        raise refusal
    else:
        clear(record)
    return fresh


def recorded_inputs(
    folder: Path,
    names: list[str],
    belongs: Callable[[str, str], bool],
    part: list[str] | None = None,
    is_val: bool = False,
) -> list[Input] | None:
    """Return the inputs that an earlier run of the same names has found at URLs, at the version it found.

    `part` are those of the names whose inputs are asked for: all that are not for validation, or with `is_val` those.

    A record is no command: each of them must be what a name stands for, which `belongs(name, url)` tells.

    None where there is no such run, or a name is a local file's, or was not kept as it is for its secrets.
    """
    if names != [kept(name) for name in names]:
        return None
    with contextlib.suppress(PrepareError):
        record = read_record(folder)
        if record is None or record.names != names:
            return None
        n_val = record.settings["val_files"]
        inputs = record.inputs[:n_val] if is_val else record.inputs[n_val:]
        part = names if part is None else part
        if inputs and all(i.is_remote and any(belongs(name, i.path) for name in part) for i in inputs):
            return inputs
    return None


def reopen(record: Record, max_tokens: int | None, check: Callable[[], None]) -> None:
    """Make a finished run one to continue, if it may have more now: from the start of the block in which it ended.

    Its files stay as they are for who reads them; what will grow is copied first.
    """
    if record.state.status != DONE or not record.state.wants_more(max_tokens):
        return
    record.clear_parts()
    before, folder, layout, shard_tokens = record.state, record.folder, record.layout, record.shard_tokens
    n_before = before.snapshot["train_tokens"]
    n_complete = max(n_before - 1, 0) // shard_tokens
    state = record.state = replace(
        before,
        **before.snapshot | {"n_changes": dict(before.snapshot["n_changes"])},
        status=ENCODING,
        shard_sha256=before.shard_sha256[:n_complete],
        shard_heads=before.shard_heads[:n_complete],
        merged_shards=0,
        base_shards=0 if record.keeps_shards else n_complete,
        parts={},
        snapshot={},
        has_rest=False,
        outputs={},
        old={name: entries[0] for name, entries in record.owned().items()},
    )
    shard = shard_path(folder, n_complete, layout)
    n_shard = (n_before - n_complete * shard_tokens) * layout.id_bytes
    if record.keeps_shards:
        source, start = folder / before.shard_name(n_complete, layout), layout.header_bytes
    else:
        source, start = folder / TRAIN_NAME, n_complete * shard_tokens * layout.id_bytes
    _copy(state, source, start, shard, layout.header_bytes, n_shard, check)
    val = folder / layout.val_name
    _copy(state, val, layout.header_bytes, val, layout.header_bytes, state.val_tokens * layout.id_bytes, check)
    changes = folder / CHANGES_NAME
    _copy(state, changes, 0, changes, 0, state.changes_bytes, check)
    record.begin()


def _copy(
    state: State, source: Path, start: int, target: Path, header_bytes: int, n_bytes: int, check: Callable[[], None]
) -> None:
    """Make a file to go on with of `n_bytes` of one that stays."""
    if n_bytes:
        part = files.Part(target, run=state.run, header_bytes=header_bytes)
        with contextlib.closing(part):
            part.copy_from(source, start, n_bytes, check)
            part.sync()
            state.parts[target.name] = [part.n_bytes, part.sha256]


def clear(record: Record) -> None:
    """Delete what the record names: outputs, shards, temporary files and, last, the record."""
    folder = record.folder
    for name, entries in record.owned().items():
        if os.path.lexists(folder / name) and looks_own(folder / name, entries, record.layout):
            files.remove(folder / name)
    record.state.parts, record.state.shard_sha256, record.state.shuffle = {}, [], {}
    record.clear_parts()
    with files.disk_errors(folder):
        files.sync_folder(folder)  # of what is still there a record speaks
    record.remove()


def _with_gone(record: Record, fresh: Record, inputs: list[Input]) -> list[Input]:
    """Return the inputs, with those of a finished run that the same names do not find now: what was read may go."""
    now = {input.path: whole for input, whole in zip(fresh.inputs, inputs, strict=True)}
    before = [input.path for input in record.inputs]
    is_finished = record.state.status == DONE and record.state.is_exhausted
    if not (is_finished and record.names == fresh.names and set(now) < set(before)):
        return inputs
    gone = [f"the input {path} is there no longer" for path in before if path not in now]
    for note in _few(gone):
        log.warning("note: %s; what is finished has it, and stays", note)
    fresh.inputs = record.inputs
    return [now.get(input.path, input) for input in record.inputs]


def _continued(record: Record, fresh: Record, notes: list[str]) -> Record:
    """Return the record of a run that goes on with what a command names now."""
    for note in _few(notes):
        log.warning("%s: the run goes on, for this concerns what was not read yet", note)
    _set_names(record, names_now(record, fresh.settings["text_column"]))
    if has_more(record, fresh.inputs):
        record.state.is_exhausted = False
    record.inputs, record.names = fresh.inputs, fresh.names
    return record


def _set_names(record: Record, names: str) -> None:
    """Give a record the names of columns that count from now on, and keep on record which did before."""
    before, state = names_of(record), record.state
    if names != before:
        place = f"{before} up to input {state.input + 1:,}, record {state.n_records:,}"
        record.settings[NAMES_BEFORE] = "; ".join(filter(None, [record.settings.get(NAMES_BEFORE), place]))
        record.settings["text_column"] = names


def earlier_names(folder: Path) -> str:
    """Return the names of columns that count in an earlier run in a folder, "" where there is none."""
    with contextlib.suppress(PrepareError):
        if record := read_record(folder):
            return names_of(record)
    return ""


def keep_names(record: Record) -> None:
    """Leave on record, where nothing was begun yet, which column a run asked for: the next may name another's alone."""
    if not record.state.n_tokens and not record.state.old:
        record.settings.setdefault(NAMES_BEFORE, "")
        record.begin()


def _makes_way(record: Record, refused: list[str]) -> bool:
    return bool(refused) and _is_demo(record)


def _is_demo(record: Record) -> bool:
    return record.state.status == DONE and all(input.format == "demo" for input in record.inputs)


def _refuse(record: Record, max_tokens: int | None, refused: list[str]) -> InputError | None:
    n_tokens = record.state.train_tokens
    if _is_demo(record) and refused:
        return None
    if refused:
        return _refusal(record, refused)
    if max_tokens is not None and n_tokens > max_tokens:
        return InputError(
            f"{record.folder}: {n_tokens:,} tokens of train are there already, --max-tokens is {max_tokens:,}",
            "nothing is taken away: leave it out or give a larger number, choose another --out, or --overwrite",
        )
    return None


def _refuse_more(record: Record, max_tokens: int | None, inputs: list[Input]) -> InputError | None:
    """Refuse to add to what is shuffled, or about to be: each document may have its place anywhere."""
    if not record.settings["shuffle"] or record.state.status == ENCODING:
        return None
    if not (record.state.wants_more(max_tokens) or has_more(record, inputs)):
        return None
    return InputError(
        f"{record.path}: {record.state.train_tokens:,} tokens of train are shuffled there, and with more of"
        " them the order of all would be another",
        "make them anew with --overwrite, or choose another folder with --out",
    )


def _refuse_gone(record: Record) -> None:
    """Refuse to begin anew where a run has written something, and how far it came is known no more."""
    if has_work(record.folder, record.run, record.written_layout):
        has_names = any(map(is_output, os.listdir(record.folder)))  # nothing says any more whose they are
        start_over = "move what is there away" if has_names else "start over with --overwrite"
        raise InputError(
            f"{record.path}: gone, while what its run has written is still there",
            f"put it back, or {start_over}, or choose another folder with --out",
        )


def _check_outputs(record: Record) -> None:
    if record.state.status != DONE:
        return
    for name, output in record.state.outputs.items():
        path = record.folder / name
        if not path.exists() or path.stat().st_size != output["bytes"]:
            raise InputError(
                f"{path}: missing or not {output['bytes']:,} bytes long, as {RECORD_NAME} says it is",
                f"{'move it away, then ' * path.exists()}make it again with --overwrite",
            )


def _refusal(record: Record, differences: list[str]) -> InputError:
    what = "a finished result" if record.state.status == DONE else "an interrupted run"
    return InputError(
        f"{record.path}: {what} of other inputs or settings is already there: {'; '.join(_few(differences))}",
        "it is left alone: choose another folder with --out, put things back, or start over with --overwrite",
    )


def _note(error: InputError) -> None:
    for line in f"note: {error}".split("\n"):
        log.warning(line)


def _few(differences: list[str]) -> list[str]:
    n_more = len(differences) - MAX_DIFFERENCES
    return [*differences[:MAX_DIFFERENCES], *([f"and {n_more:,} more"] if n_more > 0 else [])]
