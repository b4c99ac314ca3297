"""What is on record of a run: its state, `prepare.json`, and while it works its manifest, `prepare.manifest.json`.

The manifest says what was asked, of which inputs, by which versions: it is written once. The state says where the run
stands: it is small, and replaced as a whole after the data it speaks of is durable. A hash ties the two. What is on
disk beyond the state is cut off when a run continues. When a run is done, `prepare.json` holds the manifest, too, and
the other file is gone.

A record is input, not command: somebody else may have written it. Names in it are of known patterns, its numbers and
its size are bounded, and its inputs are compared with what a command names, never read.
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
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ..support.errors import DiskError, InputError, PrepareError
from ..support.model import Input
from ..support.redact import kept
from ..tokenizer.gpt2 import GPT2
from ..tokenizer.tokenizer import id_dtype
from . import files
from .layouts import LAYOUTS, NANOGPT, Layout, get_layout, spool_of
from .own import Owned, is_output, is_temporary, own_parts

RECORD_NAME, MANIFEST_NAME = "prepare.json", "prepare.manifest.json"
FORMAT = 2
"""Goes up when an older program could not continue a run that this one began."""

ENCODING, SHUFFLING, MERGING, DONE = "encoding", "shuffling", "merging", "done"

MAX_BYTES = 256 << 20
"""No record is larger: it has 300 bytes for an input, and 150 for a shard."""

POSITION = (
    *("input", "offset", "n_records", "input_read", "val_end", "train_tokens", "val_tokens"),
    *("train_documents", "val_documents", "has_text", "n_eot_in_text", "text_bytes", "input_bytes"),
    *("n_changes", "changes_bytes"),
)
"""What of a state says how far the inputs were read, and what came of it."""

SHUFFLE: dict[str, Any] = {
    **{"split": 0, "n_buckets": 0, "parted_tokens": 0, "parted_eot": 0, "n_bins": 0},
    **{"train_tokens": 0, "val_tokens": 0, "shard_sha256": [], "shard_heads": [], "parts": {}},
}
"""What a state says while documents are shuffled, where that begins.

Of `split` (0 is val, 1 train) the first `parted_tokens`, with `parted_eot` end-of-text ids, are in `n_buckets` files
(with 1 of them all stay where they are), and the documents of the first `n_bins` ranges of keys are written. What is
written by then is said as a `State` says it of a run that encodes.
"""

_ABOUT = {"program": str, "engine": str, "versions": dict, "end_of_text": dict, "dtype": str, "tokenizer": dict}

GPT2_SETTINGS = {
    "tokenizer": GPT2.name,
    "tokenizer_sha256": GPT2.vocabulary_sha256,
    "n_ids": GPT2.n_ids,
    "eot_id": GPT2.eot_id,
}
"""What a manifest means that names no tokenizer: there was no other."""

_FIRST_SETTINGS: dict[str, Any] = {
    **{"layout": NANOGPT.name, "eot": "after", "shuffle": False, "val_files": 0, "val_at": "start"},
    **GPT2_SETTINGS,
}
"""Settings that the first runs did not record, for they had no other."""


@dataclass
class State:
    """Where a run stands: what is next to read, and what is durably written.

    `input`, `offset` and `n_records` name the next record: which input, the byte (parquet: row), and how many lines,
    rows or documents of that input came before; `input_read` bytes of it were read. `val_end` is the byte where the
    validation split of a stream of plain text ends (0 elsewhere). `place` is the length and SHA-256 of what stands
    right before `offset`, where that can be known. Shards before `len(shard_sha256)` are complete; `shard_heads` are
    their first bytes; with `has_rest` the last is too short for the layout's reader, and called the rest. `parts` has
    the length and hash of what is written under a temporary name.
    `snapshot` is the position from which a run that `--max-tokens` ended goes on: the start of the block it ended in.
    `shuffle` says how far the documents are shuffled: SHUFFLE. Until they are, the shards are those of the spool.
    `old` are the files of a finished run that goes on, which stay until new ones replace them; of its `train.bin` the
    first `base_shards` shards are part of the new one. Each SHA-256 is that of the ids alone; without a header, as
    nanoGPT's files are, that is the file's.
    """

    status: str = ENCODING
    input: int = 0
    offset: int = 0
    n_records: int = 0
    input_read: int = 0
    val_end: int = 0
    train_tokens: int = 0
    val_tokens: int = 0
    train_documents: int = 0
    val_documents: int = 0
    is_exhausted: bool = False
    has_text: bool = False
    n_eot_in_text: int = 0
    text_bytes: int = 0
    input_bytes: int = 0
    seconds: float = 0.0
    n_changes: dict[str, int] = field(default_factory=dict)
    changes_bytes: int = 0
    changes_head: str = ""
    shard_sha256: list[str] = field(default_factory=list)
    shard_heads: list[str] = field(default_factory=list)
    has_rest: bool = False
    merged_shards: int = 0
    base_shards: int = 0
    parts: dict[str, list[Any]] = field(default_factory=dict)
    place: list[Any] = field(default_factory=list)
    snapshot: dict[str, Any] = field(default_factory=dict)
    shuffle: dict[str, Any] = field(default_factory=dict)
    old: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)
    timeline: list[list[float]] = field(default_factory=list)
    outputs: dict[str, Any] = field(default_factory=dict)
    run: str = ""

    @property
    def n_tokens(self) -> int:
        """Tokens of both splits."""
        return self.train_tokens + self.val_tokens

    @property
    def n_documents(self) -> int:
        """Documents of both splits."""
        return self.train_documents + self.val_documents

    def wants_more(self, max_tokens: int | None) -> bool:
        """Tell whether there is more to do than what a run that ended, or only merges, has done."""
        return not self.is_exhausted and (max_tokens or sys.maxsize) > self.train_tokens

    def shard_name(self, number: int, layout: Layout) -> str:
        """The final name of a complete shard."""
        is_rest = self.has_rest and number == len(self.shard_sha256) - 1
        return layout.rest_name if is_rest else layout.shard_name(number)

    def position(self) -> dict[str, Any]:
        """Return a copy of the values of POSITION."""
        return {name: getattr(self, name) for name in POSITION} | {"n_changes": dict(self.n_changes)}


@dataclass
class Record:
    """The record in a folder: what the run was told, what it reads, and its state.

    `on_disk` is the SHA-256 of the manifest's own file, "" where there is none to go on with; `has_state` says that the
    state was found, and is not only that of a beginning; `is_old` that the version before wrote the record.
    """

    path: Path
    settings: dict[str, Any]
    inputs: list[Input]
    state: State
    names: list[str] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)
    on_disk: str = ""
    has_state: bool = False
    is_old: bool = False

    @property
    def folder(self) -> Path:
        """Where the files are."""
        return self.path.parent

    @property
    def layout(self) -> Layout:
        """What the files look like."""
        return get_layout(self.settings["layout"], id_dtype(self.settings["n_ids"]).itemsize)

    @property
    def written_layout(self) -> Layout:
        """What the shards look like that `state` speaks of: a spool's, until its documents are shuffled."""
        is_spool = self.settings["shuffle"] and self.state.status in (ENCODING, SHUFFLING)
        return spool_of(self.layout) if is_spool else self.layout

    @property
    def shard_tokens(self) -> int:
        """How many tokens each shard but the last has; what is shuffled into one file is one shard."""
        is_whole = self.settings["shuffle"] and not self.keeps_shards
        return sys.maxsize if is_whole else int(self.settings["shard_tokens"])

    @property
    def keeps_shards(self) -> bool:
        """Whether the shards stay: beside `train.bin`, or because they are the result."""
        return not self.layout.is_merged or bool(self.settings["keep_shards"])

    @property
    def rest_tokens(self) -> int:
        """How many tokens of train are not in its shards, but in a file of their own."""
        n_shards = len(self.state.shard_sha256) - 1
        return self.state.train_tokens - n_shards * self.shard_tokens if self.state.has_rest else 0

    @property
    def run(self) -> str:
        """The run's number, which is in the names of its temporary files."""
        return self.state.run

    def begin(self, about: dict[str, Any] | None = None) -> None:
        """Write the manifest, unless it is there as it should be, and the state."""
        self.about = about or self.about
        data = self._manifest()
        tie = hashlib.sha256(data).hexdigest()
        if self.on_disk != tie:
            if self.on_disk:  # a state that belongs to both: power may go off between the two
                self._write_state([tie, self.on_disk])
            self._put(self.path.with_name(MANIFEST_NAME), data)
            if not self.on_disk:
                self._write_state([tie])
            self.on_disk = tie

    def write(self) -> None:
        """Record durably where the run stands; what that costs does not grow with the number of inputs."""
        if self.state.status == DONE:
            self._put(self.path, self._manifest(state=vars(self.state)))
            self.remove_manifest()
        elif self.on_disk:
            self._write_state([self.on_disk])
        else:
            self.begin()

    def settle(self) -> None:
        """Give a state that was left under its temporary name its own, where nothing stands in its place now."""
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
        path = self.path.with_name(MANIFEST_NAME)
        with contextlib.suppress(PrepareError):  # somebody's, and no manifest
            if (found := _read_manifest(self.path)) and found.run == self.run:
                files.remove(path)
        self.on_disk = ""

    def owned(self) -> Owned:
        """Return what the record says of the files that have their final names, those of the run before included."""
        state, layout, shard_tokens = self.state, self.layout, self.shard_tokens
        known: dict[str, list[dict[str, Any]]] = {}
        for name, entry in [*state.old.items(), *state.outputs.items()]:
            if "bytes" in entry:
                known.setdefault(name, []).append(entry)
        is_gone = state.status == DONE and not self.keeps_shards
        heads, train_tokens = state.shard_heads, state.train_tokens
        if self.written_layout.is_spool:
            heads, train_tokens = state.shuffle.get("shard_heads", []), state.shuffle.get("train_tokens", 0)
        for number, head in enumerate([] if is_gone else heads):
            n = min(train_tokens - number * shard_tokens, shard_tokens)
            entry = {"bytes": layout.n_bytes(n), "tokens": n, "head": head}
            known.setdefault(state.shard_name(number, layout), []).append(entry)
        if state.status != ENCODING and state.changes_bytes:
            entry = {"bytes": state.changes_bytes, "head": state.changes_head}
            known.setdefault("prepare.changes.jsonl", []).append(entry)
        return known

    def clear_parts(self) -> None:
        """Delete the temporary files of the run, but for those that the state speaks of."""
        state = self.state
        names = [*state.parts, *state.shuffle.get("parts", ())]
        if state.status != DONE:
            names += map(self.written_layout.shard_name, range(len(state.shard_sha256)))
        names += map(self.layout.shard_name, range(len(state.shuffle.get("shard_sha256", ()))))
        known = {files.part_path(self.path.with_name(name), self.run) for name in names}
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
        """Write a file of the record; where somebody's has come in its place, the data stay under their temporary name.

        Raises `InputError` then.
        """
        files.write_whole(path, data, self.run, lambda: self._check_own(path))

    def _check_own(self, path: Path) -> None:
        """Raise `InputError` where something stands that does not name this run; the version before named none."""
        if self.run and (data := _read(path)) is not None and f'"run": "{self.run}"'.encode() not in data:
            raise InputError(f"{path}: not what this run has written there", _CONTINUES)


def new_run() -> str:
    """Return a number for a new run."""
    return secrets.token_hex(6)


def read_record(folder: Path) -> Record | None:
    """Return the record in `folder`, None where there is none.

    Raises `PrepareError` for one that is damaged, or that another version wrote; `InputError` for what is no regular
    file; `DiskError` for one out of reach.
    """
    path = folder / RECORD_NAME
    data = _read(path)
    begun = _read_manifest(path)  # of a finished run, too: one that is no manifest is somebody's
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
    """Return the record with the state that was left whole under its temporary name; without, that of the beginning."""
    with contextlib.suppress(PrepareError):
        if data := _read(part := files.part_path(begun.path, begun.run)):
            with _named(part):
                return _parse_record(begun.path, data, begun)
    return begun


def _parse_record(path: Path, data: bytes, begun: Record | None) -> Record:
    """Return the record that a file and the manifest beside it hold; `ValueError` and its like for a damaged one."""
    content = _parse(data)
    if is_old := content["format"] == 1:
        from .format1 import read_format1  # no other run needs it

        record = read_format1(path, content)
    elif content["format"] != FORMAT:
        raise other_version(path, content["format"])
    elif is_done := "settings" in content:
        record = _record_of(path, content)
    else:
        text = data.decode("utf-8", "surrogateescape").partition('"state": ')[2][:-2]
        if zlib.crc32(text.encode("utf-8", "surrogateescape")) != content["checksum"]:
            raise ValueError("its checksum is not that of its content")
        if begun is None or begun.on_disk not in content["manifest"]:
            raise ValueError(f"its {MANIFEST_NAME} is {'gone' if begun is None else 'of another run'}")
        record = replace(begun)
    if not is_old:
        record.state = check_state(content["state"], record)
        if is_done != (record.state.status == DONE):
            raise ValueError("status")
    record.has_state = True
    return record


def _read_manifest(path: Path) -> Record | None:
    """Return the record at `path` as the manifest beside it says it begins, None where there is none."""
    beside = path.with_name(MANIFEST_NAME)
    if (data := _read(beside)) is None:
        return None
    with _named(beside):
        content = _parse(data)
        if content["format"] != FORMAT:
            raise other_version(beside, content["format"])
        record = _record_of(path, content)
    record.on_disk = hashlib.sha256(data).hexdigest()
    return record


def _record_of(path: Path, content: dict[str, Any]) -> Record:
    """Return the record that a manifest tells of, its state still that of the beginning."""
    if content.pop("checksum") != _checksum(content):
        raise ValueError("its checksum is not that of its content")
    run = content["run"]
    if not re.fullmatch(r"[0-9a-f]{12}|", run):
        raise ValueError("run")
    inputs, settings, names, about = check_manifest(content)
    return Record(path, settings, inputs, State(run=run), names, about)


def _read(path: Path) -> bytes | None:
    try:
        fd = files.open_regular(path, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DiskError(
            f"{path}: {error.strerror}", "check the folder's permissions, or choose another --out"
        ) from None
    with os.fdopen(fd, "rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise PrepareError(f"{path}: more than {MAX_BYTES:,} bytes, so not a record of a run", _AWAY)
    return data


_AWAY = "move it and the outputs away, or choose another folder with --out"
_CONTINUES = "it is left alone: move it away, and the same command continues"


@contextlib.contextmanager
def _named(path: Path) -> Any:
    """Say in one sentence what is wrong with a record."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        reason = ascii(str(error))[1:-1][:200]
        raise PrepareError(f"{path}: not a record of a run ({type(error).__name__}: {reason})", _AWAY) from None


def _parse(data: bytes) -> dict[str, Any]:
    content = json.loads(data.decode("utf-8", "surrogateescape"))
    if not isinstance(content, dict):
        raise TypeError("no object")
    return content


def other_version(path: Path, format: Any) -> PrepareError:
    """Return the error for a record that this version cannot continue."""
    return PrepareError(
        f"{path}: written by another version of the program (format {ascii(str(format))[1:-1][:20]}, here {FORMAT})",
        f"continue with that version, or {_AWAY}",
    )


def check_manifest(content: dict[str, Any]) -> tuple[list[Input], dict[str, Any], list[str], dict[str, Any]]:
    """Return inputs, settings, names and versions of a manifest; `TypeError`, `ValueError`, `KeyError` if odd."""
    inputs = [Input(**input) for input in content["inputs"]]
    fresh = Input("", "", 0, "")
    for input in inputs:
        _same_types(vars(input), vars(fresh))
    settings = {**_FIRST_SETTINGS, **content["settings"]}
    if settings["layout"] not in LAYOUTS:
        raise ValueError(f"layout {settings['layout']!r}")
    if type(settings["shard_tokens"]) is not int or not 0 < settings["shard_tokens"] < 1 << 60:
        raise ValueError("shard_tokens")
    if type(settings["n_ids"]) is not int or not 0 < settings["n_ids"] < 1 << 32:
        raise ValueError("n_ids")
    if not isinstance(settings["tokenizer"], str) or type(settings["eot_id"]) not in (int, type(None)):
        raise TypeError("tokenizer")
    if type(settings["val_files"]) is not int or not 0 <= settings["val_files"] <= len(inputs):
        raise ValueError("val_files")
    if not all(isinstance(value, str | int | float | None) for value in settings.values()):
        raise TypeError("settings")
    names = content["names"]
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise TypeError("names")
    about = {name: content[name] for name, kind in _ABOUT.items() if isinstance(content.get(name), kind)}
    return inputs, settings, names, about


def check_state(content: dict[str, Any], record: Record) -> State:
    """Return the state that a record holds; `TypeError` or `ValueError` for one that no run has written."""
    known = {f.name for f in fields(State)}
    state = State(**{name: value for name, value in content.items() if name in known})
    fresh = vars(State())
    _same_types(vars(state), fresh)
    _same_types(state.snapshot, {name: fresh[name] for name in POSITION})
    if state.snapshot and set(state.snapshot) != set(POSITION):
        raise ValueError("snapshot")
    for changes in (state.n_changes, state.snapshot.get("n_changes", {})):
        _check(all(type(n) is int and n >= 0 and kind.isprintable() for kind, n in changes.items()), "n_changes")
    _check(state.status in (ENCODING, SHUFFLING, MERGING, DONE), "status")
    _check(not state.shuffle or set(state.shuffle) == set(SHUFFLE), "shuffle")
    _same_types(state.shuffle, SHUFFLE)
    shuffled = SHUFFLE | state.shuffle
    _check(shuffled["split"] <= 1 and shuffled["n_buckets"] <= 1 << 16 and shuffled["n_bins"] <= 1 << 32, "shuffle")
    _check(state.run == record.run, "run")
    _check(state.input <= len(record.inputs), "input")
    for shards in (vars(state), shuffled):
        _check(all(map(_is_hash, shards["shard_sha256"])), "shard_sha256")
        _check(len(shards["shard_heads"]) == len(shards["shard_sha256"]), "shard_heads")
        _check(all(map(_is_head, [*shards["shard_heads"], state.changes_head])), "heads")
    n_shards, shard_tokens = len(state.shard_sha256), record.settings["shard_tokens"]
    _check((n_shards - 1) * shard_tokens < max(state.train_tokens, 1), "train_tokens")
    _check(state.merged_shards <= n_shards or state.merged_shards <= 1, "merged_shards")
    _check(state.base_shards <= n_shards + 1, "base_shards")
    places = [*state.parts.items(), *shuffled["parts"].items(), *([("val.bin", state.place)] if state.place else [])]
    for name, part in places:
        _check(is_temporary(name) and len(part) == 2 and _is_count(part[0]) and _is_hash(part[1] or "0" * 64), "parts")
    for name, output in [*state.outputs.items(), *state.old.items()]:
        _check(is_output(name) and isinstance(output, dict), "outputs")
        _check(all(_is_count(output.get(key, 0)) for key in ("bytes", "tokens")), "outputs")
        _check(_is_hash(output.get("sha256", "0" * 64)) and _is_head(output.get("head", "")), "outputs")
        _check(state.status != DONE or {"bytes", "tokens", "sha256"} <= set(output) or name in state.old, "outputs")
    _check(all(len(sample) == 3 and all(map(_is_number, sample)) for sample in state.timeline), "timeline")
    _check(_is_number(state.memory.get("peak_bytes", 0)), "memory")
    _check(isinstance(state.memory.get("steps", []), list), "memory")
    return state


def _check(is_right: bool, name: str) -> None:
    if not is_right:
        raise ValueError(name)


def _same_types(values: dict[str, Any], examples: dict[str, Any]) -> None:
    """Raise `TypeError` or `ValueError` unless each value has its example's type, and numbers are no less than 0."""
    for name, value in values.items():
        if type(value) is not type(examples[name]):
            raise TypeError(name)
        if isinstance(value, int | float) and not 0 <= value < 1 << 63:
            raise ValueError(name)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value < 1 << 63


def _is_hash(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


def _is_head(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(f"([0-9a-f]{{2}}){{0,{files.HEAD_BYTES}}}", value) is not None


def _checksum(content: dict[str, Any]) -> int:
    """CRC-32 of the record's content in a canonical form: a record that was altered is no place to go on from."""
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def portable(inputs: list[Input]) -> list[Input]:
    """Return the inputs as a record keeps them: paths as UTF-8, whatever the locale, and URLs without secrets."""
    return [replace(input, path=kept(os.fsencode(input.path).decode("utf-8", "surrogateescape"))) for input in inputs]
