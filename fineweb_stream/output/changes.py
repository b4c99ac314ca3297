"""The log of every record skipped and every text altered: counted, located, printed, kept beside the outputs."""

from __future__ import annotations

import json
from pathlib import Path

from ..support.log import log
from ..support.model import Changes, Input
from . import files
from .own import CHANGES_NAME
from .state import State

MAX_SHOWN = 10  # how many changes are logged one by one

_WRITE_BYTES = 1 << 20


class ChangeLog:
    """`prepare.changes.jsonl`, one line per change. Created with the first one; truncated to what `state` says."""

    def __init__(self, folder: Path, state: State) -> None:
        self._path = folder / CHANGES_NAME
        self._state = state
        self._part: files.Part | None = None
        self._n_printed = 0
        if state.changes_bytes:
            self._open()

    def append(self, input: Input, unit: str, changes: Changes) -> None:
        """Log the changes of an input whose records are called `unit`; they count from `state.n_records`."""
        if not len(changes):
            return
        part, lines = self._part or self._open(), bytearray()
        for change in changes:
            place = locate(input, unit, change.record + self._state.n_records, change.byte)
            if self._n_printed < MAX_SHOWN:
                log.warning(f"{change.kind}: {place}: {change.detail}")
            elif self._n_printed == MAX_SHOWN:
                log.warning(f"more records are skipped or changed: see {self._path}")
            self._n_printed += 1
            line = {"kind": change.kind, "place": place, "byte": change.byte, "detail": change.detail}
            line |= {"records": change.n} if change.n > 1 else {}
            lines += (json.dumps(line, ensure_ascii=False) + "\n").encode("utf-8", "replace")
            if len(lines) >= _WRITE_BYTES:
                part.write(bytes(lines))
                lines.clear()
            self._state.n_changes[change.kind] = self._state.n_changes.get(change.kind, 0) + change.n
        part.write(bytes(lines))
        self._state.changes_bytes = part.n_bytes

    def sync(self) -> None:
        """Make what was written durable; call it after the shards' `sync`."""
        if self._part:
            self._state.sync(self._part)
            self._state.changes_head = self._part.head

    def close(self) -> None:
        """Close the file as it is."""
        if self._part:
            self._part.close()

    def _open(self) -> files.Part:
        self._part = self._state.open_part(self._path, self._state.changes_bytes)
        return self._part


def locate(input: Input, unit: str, record: int, byte: int | None) -> str:
    """Return where a record is: file, number (from 1) and byte.

    `record` counts from 0, the input's first.
    """
    place = input.shown + (f", {unit} {record + 1:,}" if unit else "")
    if byte is None:
        return place
    return f"{place} (byte {byte:,})" if unit else f"{place}, byte {byte:,}"
