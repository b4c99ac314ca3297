"""The record of a run: its state, `prepare.json`, and until it is done its manifest, `prepare.manifest.json`.

The manifest says what was asked, of which inputs, by which versions: it is written once. The state says where the run
stands: it is small, and replaced atomically after the data it describes is durable. A hash ties the two. What is on
disk beyond the state is truncated on resume. When a run is done, `prepare.json` includes the manifest, and the separate
file is deleted.

A record is data, not a command: somebody else may have written it. Names in it must match known patterns, its numbers
and its size are bounded, and its inputs are read only if a command names them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import sys
import zlib
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..support.errors import InputError, PrepareError
from ..support.model import Input
from ..support.ranged import read_bounded
from ..support.redact import kept
from ..tokenizer.gpt2 import GPT2
from ..tokenizer.tokenizer import Tokenizer, id_dtype
from . import files
from .layouts import LAYOUTS, NANOGPT, Layout, get_layout, spool_of
from .own import CHANGES_NAME, MANIFEST_NAME, RECORD_NAME, TRAIN_NAME, Owned, own_parts
from .state import DONE, ENCODING, MERGING, SHUFFLING, State, check, check_state, is_count, same_types

FORMAT = 3  # increases when an older version could not resume a run that this one began
READABLE = (2, FORMAT)  # the formats of runs that are continued. In 2, train was always written in shards first.
MAX_BYTES = 256 << 20  # the maximum size of a record, which has 300 bytes for an input, and 150 for a shard

_ABOUT = {"program": str, "engine": str, "versions": dict, "end_of_text": dict, "dtype": str, "tokenizer": dict}


def settings_of(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the settings by which a manifest describes a tokenizer."""
    return {
        "tokenizer": tokenizer.name,
        "tokenizer_sha256": tokenizer.vocabulary_sha256,
        "n_ids": tokenizer.n_ids,
        "eot_id": tokenizer.eot_id,
    }


GPT2_SETTINGS = settings_of(GPT2)  # the tokenizer of a manifest that names none: at first there was no other

_FIRST_SETTINGS: dict[str, Any] = {
    **{"layout": NANOGPT.name, "eot": "after", "shuffle": False, "val_files": 0, "val_at": "start"},
    **GPT2_SETTINGS,
}
"""Settings that the first runs did not record, because they had no choice."""


@dataclass
class Record:
    """The record in a folder: what the run was asked, what it reads, and its state.

    `manifest_sha256` is the hash of the manifest's own file, "" if there is none; `has_state` tells that the state was
    read from disk, and is not just the initial one.
    """

    path: Path
    settings: dict[str, Any]
    inputs: list[Input]
    state: State
    names: list[str] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)
    manifest_sha256: str = ""
    has_state: bool = False

    @property
    def folder(self) -> Path:
        """Where the files are."""
        return self.path.parent

    @property
    def layout(self) -> Layout:
        """The layout of the files."""
        return get_layout(self.settings["layout"], id_dtype(self.settings["n_ids"]).itemsize)

    @property
    def written_layout(self) -> Layout:
        """The layout of the shards that `state` describes: the spool's, until its documents are shuffled."""
        is_spool = self.settings["shuffle"] and self.state.status in (ENCODING, SHUFFLING)
        return spool_of(self.layout) if is_spool else self.layout

    @property
    def shard_tokens(self) -> int:
        """How many tokens each shard but the last has; if train is only written as one file, it is a single shard."""
        is_whole = self.settings["shuffle"] and not self.keeps_shards
        return sys.maxsize if is_whole else self.written_tokens

    @property
    def written_tokens(self) -> int:
        """How many tokens each shard of `written_layout` has while inputs are encoded."""
        return int(self.settings["shard_tokens"] or sys.maxsize)

    @property
    def base_tokens(self) -> int:
        """How many tokens of the finished run that is extended are only in its `train.bin`, and still to be copied."""
        return self.state.base_shards * self.shard_tokens

    @property
    def keeps_shards(self) -> bool:
        """Whether the shards stay: beside `train.bin`, or because they are the result."""
        return not self.layout.is_merged or bool(self.settings["keep_shards"])

    @property
    def rest_tokens(self) -> int:
        """How many tokens of train are not in its shards, but in a separate file."""
        return self.state.shard_lengths(self.shard_tokens)[-1] if self.state.has_rest else 0

    def read_so_far(self) -> tuple[int, bool]:
        """Return how many inputs were read to the end, and whether another was begun."""
        state = self.state
        if state.is_exhausted:
            return len(self.inputs), False
        if state.status != ENCODING:  # part of the block in which --max-tokens ended is written
            return state.input, True
        if not state.offset:
            return state.input, False
        input = self.inputs[state.input]
        is_whole = 0 < input.size <= state.input_read and not input.is_stream  # a stream is read ahead
        return state.input + is_whole, not is_whole

    @property
    def run(self) -> str:
        """The run's number, which is in the names of its temporary files."""
        return self.state.run

    def begin(self, about: dict[str, Any] | None = None) -> None:
        """Write the manifest, unless it is there and up to date, and the state."""
        self.about = about or self.about
        data = self._manifest()
        tie = hashlib.sha256(data).hexdigest()
        if self.manifest_sha256 != tie:
            if self.manifest_sha256:  # tied to both, in case power fails between the two writes
                self._write_state([tie, self.manifest_sha256])
            self._put(self.folder / MANIFEST_NAME, data)
            if not self.manifest_sha256:
                self._write_state([tie])
            self.manifest_sha256 = tie

    def write(self) -> None:
        """Record durably where the run stands; until it is done, the cost does not grow with the number of inputs."""
        if self.state.status == DONE:
            self._put(self.path, self._manifest(state=vars(self.state)))
            self.remove_manifest()
        elif self.manifest_sha256:
            self._write_state([self.manifest_sha256])
        else:
            self.begin()

    def settle(self) -> None:
        """Rename a state that was left under its temporary name, if nothing has taken its final name."""
        if self.has_state and not os.path.lexists(self.path):
            files.replace(files.part_path(self.path, self.run), self.path)

    def remove(self) -> None:
        """Delete the record, if it is this run's."""
        with contextlib.suppress(InputError):
            self._check_own(self.path)
            files.remove(self.path)
        self.remove_manifest()

    def remove_manifest(self) -> None:
        """Delete the manifest's own file, if it is this run's."""
        path = self.folder / MANIFEST_NAME
        with contextlib.suppress(PrepareError):  # somebody else's file, not a manifest
            if (found := _read_manifest(self.path)) and found.run == self.run:
                files.remove(path)
        self.manifest_sha256 = ""

    def owned(self) -> Owned:
        """Return what the record says of files with final names, including those of a finished run that is extended."""
        state, layout, shard_tokens = self.state, self.layout, self.shard_tokens
        known: dict[str, list[dict[str, Any]]] = {}
        for name, entry in [*state.old.items(), *state.outputs.items()]:
            if "bytes" in entry:
                known.setdefault(name, []).append(entry)
        heads, train_tokens = state.shard_heads, state.train_tokens
        if self.written_layout.is_spool:
            heads, train_tokens = state.shuffle.get("shard_heads", []), state.shuffle.get("train_tokens", 0)
        has_train = TRAIN_NAME in state.outputs or files.part_path(self.folder / TRAIN_NAME, self.run).exists()
        n_joined = 0 if self.keeps_shards else max(state.base_shards, has_train)  # which are in train.bin now
        for number in range(n_joined, 0 if state.status == DONE else len(heads)):  # then they are outputs, if they stay
            n = min(train_tokens - number * shard_tokens, shard_tokens)
            entry = {"bytes": layout.n_bytes(n), "tokens": n, "head": heads[number]}
            known.setdefault(state.shard_name(number, layout), []).append(entry)
        if state.status != ENCODING and state.changes_bytes:
            entry = {"bytes": state.changes_bytes, "head": state.changes_head}
            known.setdefault(CHANGES_NAME, []).append(entry)
        return known

    def clear_parts(self) -> None:
        """Delete the temporary files of the run, except for those that the state describes."""
        state = self.state
        names = [*state.parts, *state.shuffle.get("parts", ())]
        if state.status == MERGING:
            names += [TRAIN_NAME, *state.outputs]
        if state.status != DONE:
            names += map(self.written_layout.shard_name, range(len(state.shard_sha256)))
        names += map(self.layout.shard_name, range(len(state.shuffle.get("shard_sha256", ()))))
        known = {files.part_path(self.folder / name, self.run) for name in names}
        for path in own_parts(self.folder, self.run):
            if path not in known:
                files.remove(path)

    def _manifest(self, **more: Any) -> bytes:
        content = {
            "format": FORMAT,
            "status": DONE if more else "begun",
            "run": self.run,
            **self.about,
            "names": self.names,
            "settings": self.settings,
            "inputs": [asdict(input) for input in self.inputs],
            **more,
        }
        text = json.dumps(content | {"checksum": _checksum(content)}, indent=1, ensure_ascii=False) + "\n"
        return text.encode("utf-8", "surrogateescape")

    def _write_state(self, ties: list[str]) -> None:
        state = json.dumps(vars(self.state), ensure_ascii=False)
        checksum = zlib.crc32(state.encode("utf-8", "surrogateescape"))
        text = f'{{"format": {FORMAT}, "manifest": {json.dumps(ties)}, "checksum": {checksum}, "state": {state}}}\n'
        self._put(self.path, text.encode("utf-8", "surrogateescape"))

    def _put(self, path: Path, data: bytes) -> None:
        """Write a file of the record. If somebody else's file took its name, the data stay under the temporary name.

        Raises `InputError` then.
        """
        files.write_whole(path, [data], self.run, lambda: self._check_own(path))

    def _check_own(self, path: Path) -> None:
        """Raise `InputError` if the file there does not name this run."""
        if (data := _read(path)) is not None and f'"run": "{self.run}"'.encode() not in data:
            raise InputError(f"{path}: not the file that this run has written", _CONTINUES)


def new_run() -> str:
    """Return a number for a new run (hexadecimal)."""
    return secrets.token_hex(6)


def read_record(folder: Path) -> Record | None:
    """Return the record in `folder`, None if there is none.

    Raises `PrepareError` for a damaged one or that of another version, `InputError` for anything but a regular file,
    `DiskError` if it cannot be read.
    """
    path = folder / RECORD_NAME
    data = _read(path)
    begun = _read_manifest(path)  # of a finished run, too: a file that is no manifest raises
    if data is None:
        return _left_aside(begun) if begun else None
    try:
        with _named(path):
            return _parse_record(path, data, begun)
    except PrepareError as error:
        if begun and _left_aside(begun).has_state:
            raise PrepareError(error.message, _CONTINUES) from None
        raise


def _left_aside(begun: Record) -> Record:
    """Return the record with the state that was left whole under its temporary name; else with the initial state."""
    with contextlib.suppress(PrepareError):
        if data := _read(part := files.part_path(begun.path, begun.run)):
            with _named(part):
                return _parse_record(begun.path, data, begun)
    return begun


def _parse_record(path: Path, data: bytes, begun: Record | None) -> Record:
    """Return the record in a file and the manifest beside it. Raises `ValueError` and its like for a damaged one."""
    content = _parse(path, data)
    if is_done := "settings" in content:
        record = _record_of(path, content)
    else:
        text = data.decode("utf-8", "surrogateescape").partition('"state": ')[2][:-2]
        if zlib.crc32(text.encode("utf-8", "surrogateescape")) != content["checksum"]:
            raise ValueError(_WRONG_CHECKSUM)
        if begun is None or begun.manifest_sha256 not in content["manifest"]:
            raise ValueError(f"its {MANIFEST_NAME} is {'gone' if begun is None else 'of another run'}")
        record = replace(begun)
    record.state = check_state(content["state"], record.run, len(record.inputs), record.written_tokens)
    check(is_done == (record.state.status == DONE), "status")
    record.has_state = True
    return record


def _read_manifest(path: Path) -> Record | None:
    """Return the record at `path` with its initial state, from the manifest beside it; None without a manifest."""
    beside = path.with_name(MANIFEST_NAME)
    if (data := _read(beside)) is None:
        return None
    with _named(beside):
        record = _record_of(path, _parse(beside, data))
    record.manifest_sha256 = hashlib.sha256(data).hexdigest()
    return record


def _record_of(path: Path, content: dict[str, Any]) -> Record:
    """Return the record that a manifest describes, with its initial state."""
    check(content.pop("checksum") == _checksum(content), _WRONG_CHECKSUM)
    run = content["run"]
    check(re.fullmatch(r"[0-9a-f]{12}", run) is not None, "run")
    inputs, settings, names, about = _check_manifest(content)
    return Record(path, settings, inputs, State(run=run), names, about)


def _read(path: Path) -> bytes | None:
    try:
        with os.fdopen(files.open_regular(path, os.O_RDONLY), "rb") as file:
            data = read_bounded(file, MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise files.unreadable(path, error, "check the folder's permissions, or choose another --out") from None
    if data is None:
        raise PrepareError(f"{path}: more than {MAX_BYTES:,} bytes, so not a record of a run", _AWAY)
    return data


_AWAY = "move it and the outputs away, or choose another folder with --out"
_WRONG_CHECKSUM = "its checksum does not match its content"
_CONTINUES = "it is left alone: move it away, and the same command continues"


@contextlib.contextmanager
def _named(path: Path) -> Any:
    """Turn what parsing a record raises into a `PrepareError` that names the file."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        reason = ascii(str(error))[1:-1][:200]
        raise PrepareError(f"{path}: not a record of a run ({type(error).__name__}: {reason})", _AWAY) from None


def _parse(path: Path, data: bytes) -> dict[str, Any]:
    """Return the content of a file of a record; `PrepareError` if this version cannot continue it."""
    content: dict[str, Any] = json.loads(data.decode("utf-8", "surrogateescape"))
    check(isinstance(content, dict), "not an object")
    if (found := content["format"]) not in READABLE:
        raise PrepareError(
            f"{path}: written by another version of the program (format {ascii(str(found))[1:-1][:20]}, here {FORMAT})",
            f"continue with that version, or {_AWAY}",
        )
    return content


def _check_manifest(content: dict[str, Any]) -> tuple[list[Input], dict[str, Any], list[str], dict[str, Any]]:
    """Return inputs, settings, names and versions of a manifest; `TypeError`, `ValueError`, `KeyError` if invalid."""
    inputs = [Input(**input) for input in content["inputs"]]
    fresh = Input("", "", 0, "")
    for input in inputs:
        same_types(vars(input), vars(fresh))
    settings = {**_FIRST_SETTINGS, **content["settings"]}
    check(settings["layout"] in LAYOUTS, f"layout {settings['layout']!r}")
    check(settings["shard_tokens"] is None or is_count(settings["shard_tokens"], 1, sys.maxsize), "shard_tokens")
    check(is_count(settings["n_ids"], 1, 1 << 32), "n_ids")
    if not isinstance(settings["tokenizer"], str) or type(settings["eot_id"]) not in (int, type(None)):
        raise TypeError("tokenizer")
    check(is_count(settings["val_files"], 0, len(inputs) + 1), "val_files")
    if not all(isinstance(value, str | int | float | None) for value in settings.values()):
        raise TypeError("settings")
    names = content["names"]
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise TypeError("names")
    about = {name: content[name] for name, kind in _ABOUT.items() if isinstance(content.get(name), kind)}
    return inputs, settings, names, about


def _checksum(content: dict[str, Any]) -> int:
    """CRC-32 of a record's content in a canonical form: a record that was altered must not be resumed."""
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def portable(inputs: list[Input]) -> list[Input]:
    """Return the inputs as a record keeps them: paths as UTF-8 in any locale, and URLs without secrets."""
    return [replace(input, path=kept(os.fsencode(input.path).decode("utf-8", "surrogateescape"))) for input in inputs]
