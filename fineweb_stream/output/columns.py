"""Which names of text columns count in a run that goes on: those on record, and those that a command gives now."""

from __future__ import annotations

import contextlib
from pathlib import Path

from ..support.errors import PrepareError
from ..support.model import join_names
from .manifest import Record, read_record

_BEFORE = "text_column_before"
"""The setting that says which names of columns counted before others did, and up to where."""


def names_of(record: Record) -> str:
    """Return the names of columns that are on record."""
    return str(record.settings.get("text_column", "text"))


def earlier_names(folder: Path) -> str:
    """Return the names of columns that count in an earlier run in a folder, "" where there is none."""
    with contextlib.suppress(PrepareError):
        if record := read_record(folder):
            return names_of(record)
    return ""


def names_now(record: Record, text_column: str) -> str:
    """Return the names of columns that count when a run goes on: those that are given come first, then the earlier.

    So a hint of another name can be followed, and files that have none of that name keep theirs; and each of the
    commands that a run was given continues it.
    """
    before = names_of(record)
    known, given = ([part.strip() for part in name.split(",")] for name in (before, text_column))
    is_known = _BEFORE in record.settings and [name for name in known if name in given] == given
    return before if is_known else join_names(text_column, before)


def may_have_names(record: Record, names: str, n_inputs: int) -> bool:
    """Tell whether nothing that was read would be read otherwise by other names of its columns."""
    before = names_of(record)
    if names == before or (names.startswith(f"{before},") and not record.state.n_changes):
        return True
    behind, is_begun = record.read_so_far()
    if record.state.is_exhausted:
        return n_inputs > len(record.inputs)
    return not is_begun or record.inputs[behind].format == "jsonl"  # a line has its text by itself


def set_names(record: Record, text_column: str) -> None:
    """Let a run go on with the names that a command gives, and keep on record which counted before."""
    before, state, names = names_of(record), record.state, names_now(record, text_column)
    if names != before:
        place = f"{before} up to input {state.input + 1:,}, record {state.n_records:,}"
        record.settings[_BEFORE] = "; ".join(filter(None, [record.settings.get(_BEFORE), place]))
        record.settings["text_column"] = names


def keep_names(record: Record) -> None:
    """Leave on record, where nothing was begun yet, which column a run asked for: the next may name another's alone."""
    if not record.state.n_tokens and not record.state.old:
        record.settings.setdefault(_BEFORE, "")
        record.begin()


def take_kept(record: Record, fresh: Record) -> None:
    """Let a fresh run of the same inputs have the names that `keep_names` left, behind its own."""
    given, is_same = fresh.settings["text_column"], [i.path for i in record.inputs] == [i.path for i in fresh.inputs]
    if _BEFORE in record.settings and is_same and given != names_of(record):
        fresh.settings |= {"text_column": names_now(record, given), _BEFORE: ""}
