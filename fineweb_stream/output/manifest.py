"""`prepare.json`: the one record of a run, of where it stands while it works and of what it made when it is done.

It is replaced as a whole, and only after the data it speaks of is durable. What is on disk beyond it is cut off when
a run continues.
"""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ..support.errors import DiskError, PrepareError
from ..support.model import Input
from ..support.redact import kept
from . import files
from .layouts import LAYOUTS, NANOGPT, Layout

RECORD_NAME = "prepare.json"
FORMAT = 1
"""Goes up when an older program could not continue a run that this one began."""

ENCODING, MERGING, DONE = "encoding", "merging", "done"


@dataclass
class State:
    """Where a run stands: what is next to read, and what is durably written.

    `input`, `offset` and `n_records` name the next record: which input, the byte (parquet: row), and how many lines,
    rows or documents of that input came before. `skip_train` and `skip_val` ids from there on are written already, and
    `skip_changes` changes said, and `skip_text_bytes` and `skip_input_bytes` counted (the run was told to stop after so
    many tokens). Shards before `len(shard_sha256)` are complete. Each SHA-256 here and in `outputs` is that of the ids
    alone; without a header, as nanoGPT's files are, that is the file's.
    """

    status: str = ENCODING
    input: int = 0
    offset: int = 0
    n_records: int = 0
    train_tokens: int = 0
    val_tokens: int = 0
    train_documents: int = 0
    val_documents: int = 0
    skip_train: int = 0
    skip_val: int = 0
    skip_train_documents: int = 0
    skip_val_documents: int = 0
    skip_changes: int = 0
    skip_text_bytes: int = 0
    skip_input_bytes: int = 0
    is_exhausted: bool = False
    has_text: bool = False
    n_eot_in_text: int = 0
    text_bytes: int = 0
    input_bytes: int = 0
    seconds: float = 0.0
    n_changes: dict[str, int] = field(default_factory=dict)
    changes_bytes: int = 0
    shard_sha256: list[str] = field(default_factory=list)
    merged_shards: int = 0
    memory: dict[str, Any] = field(default_factory=dict)
    timeline: list[list[float]] = field(default_factory=list)
    outputs: dict[str, Any] = field(default_factory=dict)

    @property
    def n_tokens(self) -> int:
        """Tokens of both splits."""
        return self.train_tokens + self.val_tokens

    @property
    def n_documents(self) -> int:
        """Documents of both splits."""
        return self.train_documents + self.val_documents


@dataclass
class Record:
    """The record in a folder: what the run was told, what it reads, and its state."""

    path: Path
    settings: dict[str, Any]
    inputs: list[Input]
    state: State
    names: list[str] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        """What the files look like."""
        return LAYOUTS[self.settings["layout"]]

    def write(self) -> None:
        """Replace the record durably."""
        content = {
            "format": FORMAT,
            "status": self.state.status,
            **self.about,
            "names": self.names,
            "settings": self.settings,
            "inputs": [asdict(input) for input in self.inputs],
            "state": asdict(self.state),
        }
        text = json.dumps(content | {"checksum": _checksum(content)}, indent=1, ensure_ascii=False) + "\n"
        files.write_whole(self.path, text.encode("utf-8", "surrogateescape"))

    def differences(self, settings: dict[str, Any], inputs: list[Input]) -> list[str]:
        """Say what of a new command is not as in this record, one sentence each."""
        inputs = portable(inputs)
        changed = [name for name, value in settings.items() if self.settings.get(name) != value]
        if "layout" in changed and "keep_shards" in changed:
            changed.remove("keep_shards")  # a layout whose shards are the result says so by itself
        found = [
            f"--{name.replace('_', '-')} was {self.settings.get(name)!r} and is {settings[name]!r}" for name in changed
        ]
        before = {input.path: input for input in self.inputs}
        now = {input.path: input for input in inputs}
        found += [f"the input {path} was not there" for path in now if path not in before]
        found += [f"the input {path} was there and is not named now" for path in before if path not in now]
        for path in now:
            if path in before and now[path] != before[path] and now[path].is_stdin:
                found.append("standard input begins with something else")
            elif path in before and now[path] != before[path]:
                found.append(f"the input {path} changed: {_describe(before[path])}, now {_describe(now[path])}")
        if not found and [input.path for input in self.inputs] != [input.path for input in inputs]:
            found.append("the inputs were named in another order")
        return found


def read_record(folder: Path) -> Record | None:
    """Return the record in `folder`, None where there is none.

    Raises `PrepareError` for one that is damaged, or that a newer program wrote; `DiskError` for one out of reach.
    """
    path = folder / RECORD_NAME
    try:
        text = path.read_bytes().decode("utf-8", "surrogateescape")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DiskError(
            f"{path}: {error.strerror}", "check the folder's permissions, or choose another --out"
        ) from None
    start_over = "start over with --overwrite, or delete the file and what the run has written"
    try:
        content = json.loads(text)
        if content["format"] != FORMAT:
            raise PrepareError(
                f"{path}: written by another version of the program (format {content['format']}, here {FORMAT})",
                f"continue with that version, or {start_over}",
            )
        known = {f.name for f in fields(State)}
        if content.pop("checksum") != _checksum(content):
            raise ValueError("its checksum is not that of its content")
        state = State(**{name: value for name, value in content["state"].items() if name in known})
        _check_state(state)
        inputs = [Input(**input) for input in content["inputs"]]
        if not isinstance(content["settings"], dict):
            raise TypeError("settings")
        about = {
            k: v for k, v in content.items() if k not in ("format", "status", "names", "settings", "inputs", "state")
        }
        settings = {"layout": NANOGPT.name} | content["settings"]  # there was no other when the first runs began
        if settings["layout"] not in LAYOUTS:
            raise ValueError(f"layout {settings['layout']!r}")
        return Record(path, settings, inputs, state, content["names"], about)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PrepareError(f"{path}: not a record of a run ({type(error).__name__}: {error})", start_over) from None


def _checksum(content: dict[str, Any]) -> int:
    """CRC-32 of the record's content in a canonical form: a record that was altered is no place to go on from."""
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _check_state(state: State) -> None:
    """Raise `TypeError` or `ValueError` for a state that no run has written."""
    fresh = State()
    for name, value in asdict(state).items():
        if type(value) is not type(getattr(fresh, name)):
            raise TypeError(name)
        if isinstance(value, int | float) and value < 0:
            raise ValueError(name)
    if state.status not in (ENCODING, MERGING, DONE):
        raise ValueError(f"status {state.status!r}")


def portable(inputs: list[Input]) -> list[Input]:
    """Return the inputs as a record keeps them: paths as UTF-8, whatever the locale, and URLs without secrets."""
    return [replace(input, path=kept(os.fsencode(input.path).decode("utf-8", "surrogateescape"))) for input in inputs]


def _describe(input: Input) -> str:
    return f"{input.size:,} bytes of {input.format}, modified {input.fingerprint}"
