"""Which names of text columns a resumed run uses: those on record, and those that the command gives."""

from __future__ import annotations

import contextlib
from pathlib import Path

from ..support.errors import PrepareError
from ..support.model import join_names
from .manifest import Record, read_record

_BEFORE = "text_column_before"  # the setting that says which names were used earlier, and up to where


def names_of(record: Record) -> str:
    """Return the names of text columns on record."""
    return str(record.settings.get("text_column", "text"))


def earlier_names(folder: Path) -> str:
    """Return the names of text columns that an earlier run in the folder used, "" if there is none."""
    with contextlib.suppress(PrepareError):
        if record := read_record(folder):
            return names_of(record)
    return ""


def names_now(record: Record, text_column: str) -> str:
    """Return the names of text columns for a resumed run: the given names first, then the earlier ones.

    So a hint with another name can be followed while files without that name keep theirs, and each command that a run
    was ever given resumes it.
    """
    before = names_of(record)
    known, given = ([part.strip() for part in name.split(",")] for name in (before, text_column))
    is_known = _BEFORE in record.settings and [name for name in known if name in given] == given
    return before if is_known else join_names(text_column, before)


def may_have_names(record: Record, names: str, n_inputs: int) -> bool:
    """Tell whether other names of text columns would change nothing that was already read."""
    before = names_of(record)
    if names == before or (names.startswith(f"{before},") and not record.state.n_changes):
        return True
    behind, is_begun = record.read_so_far()
    if record.state.is_exhausted:
        return n_inputs > len(record.inputs)
    return not is_begun or record.inputs[behind].format == "jsonl"  # each line has its own fields


def set_names(record: Record, text_column: str) -> None:
    """Resume a run with the names that a command gives, and record which were used before."""
    before, state, names = names_of(record), record.state, names_now(record, text_column)
    if names != before:
        place = f"{before} up to input {state.input + 1:,}, record {state.n_records:,}"
        record.settings[_BEFORE] = "; ".join(filter(None, [record.settings.get(_BEFORE), place]))
        record.settings["text_column"] = names
