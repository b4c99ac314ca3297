"""`--verify`: read the outputs again and compare them with the record, whose hashes are of the ids without headers.

An index beside an output, which is on no record, is compared with the ids.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ..support.cancel import NEVER, Cancel
from ..support.errors import InputError
from ..support.shell import program, quoted
from . import files
from .index import END_DTYPE, index_path
from .manifest import Record, read_record
from .own import META_NAME, RECORD_NAME, TRAIN_NAME
from .resume import check_lengths
from .state import DONE

_CHANGED = "move it away, then make it again with --overwrite"


def verify(folder: Path, cancel: Cancel = NEVER) -> list[str]:
    """Check size, header, SHA-256, largest id, end-of-text ids and index of every output; return a line for each.

    Raises `InputError` if something is missing or not as the record says, `DiskError` if it cannot be read.
    """
    record = read_record(folder)
    if record is None:
        raise InputError(f"{folder / RECORD_NAME}: no finished run in this folder", "name its folder with --out")
    state, layout, lines, n_eot = record.state, record.layout, [], 0
    if state.status != DONE:
        raise InputError(f"{record.path}: the run is not finished", "the command that began it continues it")
    parts = {layout.val_name, TRAIN_NAME} if layout.is_merged else set(state.outputs)  # kept shards are copies
    check_lengths(record)
    for name, expected in sorted(state.outputs.items()):
        path = folder / name
        if name == META_NAME:
            data = b"".join(files.read_pieces(path, 0, expected["bytes"]))
            _check_hash(path, hashlib.sha256(data).hexdigest(), expected)
            continue
        largest, n_eot_here = _check_ids(path, expected, record, cancel)
        n_eot += n_eot_here if name in parts else 0
        lines.append(f"{path}: {expected['tokens']:,} tokens, largest id {largest}, SHA-256 as recorded")
    n_expected, per_document = state.n_documents, 2 if record.settings["eot"] == "both" else 1
    if n_expected and n_eot // per_document != n_expected:
        raise InputError(f"{folder}: {n_eot:,} end-of-text ids, but {n_expected:,} documents", _CHANGED)
    return [*lines, f"{n_eot:,} end-of-text ids" + (f" for {n_expected:,} documents" if n_expected else "")]


def _check_ids(path: Path, expected: dict[str, Any], record: Record, cancel: Cancel) -> tuple[int, int]:
    """Return a file's largest id and how many ids are end-of-text. Raises `InputError` if it is not as expected."""
    layout, settings, n_tokens = record.layout, record.settings, expected["tokens"]
    header = b"".join(files.read_pieces(path, 0, layout.header_bytes))
    if n_tokens > layout.max_tokens or header != layout.make_header(n_tokens):
        raise InputError(f"{path}: its header is not that of {n_tokens:,} tokens", _CHANGED)
    digest, largest, n_eot, last_id = hashlib.sha256(), 0, 0, settings["n_ids"] - 1
    index, indexed, n_before = index_path(path), hashlib.sha256(), 0
    for data in files.read_pieces(path, layout.header_bytes, expected["bytes"]):
        cancel.check()
        ids = np.frombuffer(data, layout.dtype)
        digest.update(data)
        largest = max(largest, int(ids.max()))
        places = np.flatnonzero(ids == settings["eot_id"]) if settings["eot_id"] is not None else ids[:0]
        indexed.update((places.astype(END_DTYPE) + (n_before + 1)).astype(END_DTYPE).data)
        n_eot += len(places)
        n_before += len(ids)
    if largest > last_id:
        raise InputError(f"{path}: holds id {largest}, more than {settings['tokenizer']}'s {last_id}", _CHANGED)
    _check_hash(path, digest.hexdigest(), expected)
    if index.exists() and settings["eot"] == "after" and settings["eot_id"] is not None:
        found = hashlib.sha256()
        for data in files.read_pieces(index, 0, sys.maxsize):
            found.update(data)
        if found.digest() != indexed.digest():
            raise InputError(
                f"{index}: not the index of this {path.name}",
                f"move it away, then make it: {program()} index {quoted(str(path))}",
            )
    return largest, n_eot


def _check_hash(path: Path, sha256: str, expected: dict[str, Any]) -> None:
    if sha256 != expected["sha256"]:
        raise InputError(f"{path}: its SHA-256 is not the recorded one: the file was changed", _CHANGED)
