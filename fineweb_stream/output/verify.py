"""`--verify`: read the outputs again and hold them against the record, whose hashes are of the ids, no header."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from ..support.cancel import NEVER, Cancel
from ..support.errors import InputError
from ..tokenizer.tokenizer import id_dtype
from . import files
from .manifest import read_record
from .own import META_NAME, RECORD_NAME, TRAIN_NAME
from .state import DONE


def verify(folder: Path, cancel: Cancel = NEVER) -> list[str]:
    """Check size, header, SHA-256, largest id and number of end-of-text ids of every output; return a line for each.

    Raises `InputError` when something is missing or not as the record says.
    """
    record = read_record(folder)
    missing, changed = "make it again with --overwrite", "move it away, then make it again with --overwrite"
    if record is None:
        raise InputError(f"{folder / RECORD_NAME}: no finished run in this folder", "name its folder with --out")
    if record.state.status != DONE:
        raise InputError(f"{folder / RECORD_NAME}: the run is not finished", "the command that began it continues it")
    layout, lines, n_eot, settings = record.layout, [], 0, record.settings
    dtype, last_id, eot_id = id_dtype(settings["n_ids"]), settings["n_ids"] - 1, settings["eot_id"]
    parts = {layout.val_name, TRAIN_NAME} if layout.is_merged else set(record.state.outputs)  # shards beside are copies
    for name, expected in sorted(record.state.outputs.items()):
        path = folder / name
        if not path.exists() or path.stat().st_size != expected["bytes"]:
            hint = changed if path.exists() else missing
            raise InputError(f"{path}: missing or not {expected['bytes']:,} bytes long", hint)
        if name == META_NAME:
            if hashlib.sha256(path.read_bytes()).hexdigest() != expected["sha256"]:
                raise InputError(f"{path}: its SHA-256 is not the recorded one: the file was changed", changed)
            continue
        header = b"".join(files.read_pieces(path, 0, layout.header_bytes))
        if header != layout.make_header(expected["tokens"]):
            raise InputError(f"{path}: its header is not that of {expected['tokens']:,} tokens", changed)
        digest, largest = hashlib.sha256(), 0
        for data in files.read_pieces(path, layout.header_bytes, expected["bytes"]):
            cancel.check()
            ids = np.frombuffer(data, dtype)
            digest.update(data)
            largest = max(largest, int(ids.max()))
            n_eot += int(np.count_nonzero(ids == eot_id)) if name in parts and eot_id is not None else 0
        if largest > last_id:
            raise InputError(f"{path}: holds id {largest}, more than {settings['tokenizer']}'s {last_id}", changed)
        if digest.hexdigest() != expected["sha256"]:
            raise InputError(f"{path}: its SHA-256 is not the recorded one: the file was changed", changed)
        lines.append(f"{path}: {expected['tokens']:,} tokens, largest id {largest}, SHA-256 as recorded")
    state = record.state
    n_expected = state.n_documents
    per_document = 2 if record.settings["eot"] == "both" else 1
    if n_expected and n_eot // per_document != n_expected:
        raise InputError(f"{folder}: {n_eot:,} end-of-text ids, but {n_expected:,} documents", changed)
    lines.append(f"{n_eot:,} end-of-text ids" + (f" for {n_expected:,} documents" if n_expected else ""))
    return lines
