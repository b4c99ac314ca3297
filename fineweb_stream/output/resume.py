"""What is already in the folder: nothing, a run to resume, a finished one, or files that must not be touched."""

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
from .columns import set_names
from .compare import PlaceHash, compare, has_more
from .manifest import Record, new_run, portable, read_record
from .own import (
    CHANGES_NAME,
    MANIFEST_NAME,
    RECORD_NAME,
    TRAIN_NAME,
    check_folder,
    check_inputs,
    has_work,
    looks_own,
    orphans,
    own_parts,
)
from .shards import written_name
from .state import DONE, ENCODING, State

MAX_DIFFERENCES = 5  # how many differences a message lists


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
    """Return the record of the run to do: a fresh one, that of an interrupted run, or of a finished one.

    With `overwrite`, what another run has left is deleted; an interrupted run of the same settings and inputs, none of
    them changed, is resumed all the same. A finished demo is replaced by any run. With `dry_run`, nothing is deleted,
    and what is in the way is logged. Files that are not a run's own are never touched.

    Raises `InputError` for outputs of another run or of unknown origin, for an input with the name of an output, or for
    more than `max_tokens`; `PrepareError` for a damaged record.
    """
    fresh = Record(
        folder / RECORD_NAME, settings, portable(inputs), State(run=new_run()), [kept(name) for name in names]
    )
    try:
        record = _find(fresh, [input.path for input in inputs if not input.is_remote], overwrite, dry_run)
        if record is None:
            return fresh
        if record.state.status != ENCODING or record.state.n_tokens or record.state.old:
            inputs = inputs if overwrite else _with_gone(record, fresh, inputs)
            refused, notes = compare(record, settings, inputs, place_hash)
            is_demo = record.state.status == DONE and all(input.format == "demo" for input in record.inputs)
            refusal = None if refused and is_demo else _refuse(record, max_tokens, inputs, refused)
            if refusal and not overwrite:
                raise refusal
            is_other = record.state.status == DONE or bool(notes)
            if not (refusal or refused or (overwrite and is_other)):
                return _continued(record, fresh, notes, dry_run)
        if not dry_run:
            clear(record)
    except InputError as error:
        if not dry_run:
            raise
        for line in f"note: {error}".split("\n"):
            log.warning(line)
    return fresh


def _find(fresh: Record, paths: list[str], overwrite: bool, dry_run: bool) -> Record | None:
    """Return the record in the folder, None if there is none. `paths` are those of local inputs.

    Raises `InputError` if files with a run's names are not the run's own.
    """
    check_inputs(fresh.folder, paths)
    record = read_record(fresh.folder)
    if record and not dry_run:
        record.settle()
    if record and not record.has_state and not overwrite:
        _refuse_gone(record)
    check_folder(fresh.folder, record.owned() if record else {}, (record or fresh).layout)
    for path in orphans(fresh.folder) if not (record or dry_run) else ():
        files.remove(path)
    return record


def recorded_inputs(
    folder: Path,
    names: list[str],
    belongs: Callable[[str, str], bool],
    part: list[str],
    is_val: bool,
) -> list[Input] | None:
    """Return the inputs that an earlier run with the same names found at URLs, in the versions that it found.

    `part` are the names whose inputs are wanted: those of `--val` with `is_val`, else all others.

    A record is data, not a command: each input must be one that a name stands for, as `belongs(name, url)` tells.

    None if there is no such run, if a name is a local file's, or if secrets in a name kept it from being recorded.
    """
    if names != [kept(name) for name in names]:
        return None
    with contextlib.suppress(PrepareError):
        record = read_record(folder)
        if record is None or record.names != names:
            return None
        n_val = record.settings["val_files"]
        inputs = record.inputs[:n_val] if is_val else record.inputs[n_val:]
        if inputs and all(i.is_remote and any(belongs(name, i.path) for name in part) for i in inputs):
            return inputs
    return None


def reopen(record: Record, check: files.Check) -> None:
    """Turn a finished run that `--max-tokens` ended into one to resume: from the start of the block it ended in.

    Its files stay as they are for those who read them; what will grow is copied first. (The merge checks the shards
    before it.)

    Raises `PrepareError` if that is not what the run has written.
    """
    record.clear_parts()
    before, folder, layout, shard_tokens = record.state, record.folder, record.layout, record.shard_tokens
    n_before = before.snapshot["train_tokens"]
    n_complete = before.n_lasting(shard_tokens)
    if record.keeps_shards:
        source, start = before.shard_name(n_complete, layout), layout.header_bytes
    else:
        source, start = TRAIN_NAME, n_complete * shard_tokens * layout.id_bytes
    n_last, val_name = before.shard_lengths(shard_tokens)[n_complete], layout.val_name
    val, n_val = before.outputs[val_name], before.snapshot["val_tokens"]
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
    n_shard, id_bytes, header_bytes = n_before - n_complete * shard_tokens, layout.id_bytes, layout.header_bytes
    shard_sha256, shard_name = before.shard_sha256[n_complete], written_name(n_complete, shard_tokens, layout)
    for name, first, n_bytes, sha256, target, room, n_kept in (
        (source, start, n_last * id_bytes, shard_sha256, shard_name, header_bytes, n_shard * id_bytes),
        (val_name, header_bytes, val["tokens"] * id_bytes, val["sha256"], val_name, header_bytes, n_val * id_bytes),
        (CHANGES_NAME, 0, state.changes_bytes, "", CHANGES_NAME, 0, state.changes_bytes),
    ):
        if n_kept:
            with contextlib.closing(state.open_part(folder / target, header_bytes=room)) as part:
                part.copy_from(folder / name, first, n_bytes, sha256, check, n_kept)
                state.sync(part)
    record.begin()


def clear(record: Record) -> None:
    """Delete what the record names: outputs with their indexes, shards, temporary files and, last, the record."""
    from .index import remove_index  # loads numpy, which most runs need only later

    for path in _own_outputs(record):
        remove_index(path, record.layout, record.settings["eot_id"])
        files.remove(path)
    for path in own_parts(record.folder, record.run):
        files.remove(path)
    with files.disk_errors(record.folder):
        files.sync_folder(record.folder)  # no file may outlive its record
    record.remove()


def clearable_bytes(folder: Path) -> int:
    """Return how many bytes `clear` would free in a folder."""
    with contextlib.suppress(PrepareError):
        if record := read_record(folder):
            paths = [*_own_outputs(record), *own_parts(folder, record.run), record.path, folder / MANIFEST_NAME]
            found = [path.lstat() for path in paths if path.exists()]
            return sum(info.st_size for info in found if info.st_nlink == 1)
    return 0


def _own_outputs(record: Record) -> list[Path]:
    paths = [(record.folder / name, entries) for name, entries in record.owned().items()]
    return [path for path, known in paths if os.path.lexists(path) and looks_own(path, known, record.layout)]


def _with_gone(record: Record, fresh: Record, inputs: list[Input]) -> list[Input]:
    """Return the inputs, with those of a finished run that the same names no longer find: read inputs may be gone."""
    now = {input.path: whole for input, whole in zip(fresh.inputs, inputs, strict=True)}
    before = [input.path for input in record.inputs]
    is_finished = record.state.status == DONE and record.state.is_exhausted
    names, before_names = (list(map(os.path.normpath, names)) for names in (fresh.names, record.names))
    if not (is_finished and names == before_names and set(now) < set(before)):  # a shell completes DIR to DIR/
        return inputs
    gone = [f"the input {path} no longer exists" for path in before if path not in now]
    for note in _few(gone):
        log.warning("note: %s; the finished outputs contain it, and are kept", note)
    fresh.inputs = record.inputs
    return [now.get(input.path, input) for input in record.inputs]


def _continued(record: Record, fresh: Record, notes: list[str], dry_run: bool) -> Record:
    """Return the record of a resumed run, updated to what a command names now."""
    if record.state.status == DONE:
        check_lengths(record)
        if not dry_run:
            record.state.parts = {}
            record.clear_parts()
            record.remove_manifest()
    for note in _few(notes):
        log.warning(note)
    set_names(record, fresh.settings["text_column"])
    if has_more(record, fresh.inputs):
        record.state.is_exhausted = False
    record.inputs, record.names = fresh.inputs, fresh.names
    return record


def _refuse(record: Record, max_tokens: int | None, inputs: list[Input], refused: list[str]) -> InputError | None:
    """Return why a command cannot resume the run, None if it can; `refused` are the reasons that were found.

    Nothing can be added to a run that is shuffled, or about to be: each document may belong anywhere.
    """
    state, n_tokens = record.state, record.state.train_tokens
    if refused:
        what = "a finished result" if state.status == DONE else "an interrupted run"
        return InputError(
            f"{record.path}: {what} with other inputs or settings is already there: {'; '.join(_few(refused))}",
            "it is left alone: choose another folder with --out, undo these changes, or start over with --overwrite",
        )
    if max_tokens is not None and n_tokens > max_tokens:
        return InputError(
            f"{record.folder}: train already has {n_tokens:,} tokens, --max-tokens is {max_tokens:,}",
            "none are removed: leave it out or give a larger number, choose another --out, or --overwrite",
        )
    is_shuffled = record.settings["shuffle"] and state.status != ENCODING
    if is_shuffled and (state.wants_more(max_tokens) or has_more(record, inputs)):
        return InputError(
            f"{record.path}: the {n_tokens:,} tokens of train are already shuffled, and with more of them the order of"
            " all would change",
            "start over with --overwrite, or choose another folder with --out",
        )
    return None


def _refuse_gone(record: Record) -> None:
    """Refuse to start over if a run has written something, but the record of how far it came is gone."""
    if has_work(record.folder, record.run, record.written_layout):
        raise InputError(
            f"{record.path}: missing, although the files that its run has written still exist",
            "put it back, or move these files away, or choose another folder with --out",
        )


def check_lengths(record: Record) -> None:
    """Raise `InputError` if an output of a finished run is missing, or has another length."""
    for name, output in record.state.outputs.items():
        path = record.folder / name
        if not path.exists() or path.stat().st_size != output["bytes"]:
            raise InputError(
                f"{path}: missing or not {output['bytes']:,} bytes long, as {RECORD_NAME} says it is",
                f"{'move it away, then ' * path.exists()}make it again with --overwrite",
            )


def _few(differences: list[str]) -> list[str]:
    n_more = len(differences) - MAX_DIFFERENCES
    return [*differences[:MAX_DIFFERENCES], *([f"and {n_more:,} more"] if n_more > 0 else [])]
