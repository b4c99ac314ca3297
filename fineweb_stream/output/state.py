"""Where a run stands: the state that its record holds, and the checks of a state that is read."""

from __future__ import annotations

import copy
import re
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from . import files
from .layouts import Layout
from .own import is_output, is_temporary

ENCODING, SHUFFLING, MERGING, DONE = "encoding", "shuffling", "merging", "done"

POSITION = (
    *("input", "offset", "n_records", "input_read", "val_end", "train_tokens", "val_tokens"),
    *("train_documents", "val_documents", "has_text", "n_eot_in_text", "text_bytes", "input_bytes"),
    *("n_changes", "changes_bytes"),
)
"""The fields of a state that say how far the inputs were read, and what came of it."""

SHUFFLE: dict[str, Any] = {
    **{"split": 0, "n_buckets": 0, "parted_tokens": 0, "parted_eot": 0, "n_bins": 0},
    **{"train_tokens": 0, "val_tokens": 0, "shard_sha256": [], "shard_heads": [], "parts": {}},
}
"""The initial progress of a shuffle (`State.shuffle`).

Of `split` (0 is val, 1 train) the first `parted_tokens`, with `parted_eot` end-of-text ids, are in `n_buckets` buckets
(with 1, all stay in the spool), and the documents of the first `n_bins` bins are written. The other fields say what is
written, like those of a `State`.
"""


@dataclass
class State:
    """Where a run stands: what is next to read, and what is durably written.

    `input`, `offset` and `n_records` name the next record: which input, the byte (parquet: row), and how many lines,
    rows or documents of that input come before it; `input_read` bytes of the input were read. `val_end` is the byte at
    which the validation split of a stream of plain text ends, else 0. `place` is the length and SHA-256 of the text
    just before `offset`, if it can be known. The shards in `shard_sha256` are complete; `shard_heads` are their first
    bytes; with `has_rest`, the last is too short for the layout's reader, and is named `rest`. `parts` has the length
    and hash of each file under a temporary name.

    `snapshot` is the position from which a finished run is extended: if `--max-tokens` ended it, the start of the block
    it ended in. `shuffle` is the progress of a shuffle (SHUFFLE); until that is done, the shards are the spool's. `old`
    are the files of a finished run that is extended, which stay until new ones replace them; the first `base_shards`
    shards of its `train.bin` are part of the new one. Each SHA-256 is of the ids alone, which is the file's if it has
    no header, like nanoGPT's.
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

    def open_part(self, path: Path, n_bytes: int = 0, **options: Any) -> files.Part:
        """Open a file that must hold the `n_bytes` that `parts` describes, or create it if `n_bytes` is 0."""
        _, sha256 = self.parts.get(path.name, (0, ""))
        return files.Part(path, n_bytes, run=self.run, sha256=sha256, **options)

    def sync(self, part: files.Part) -> None:
        """Make a file's data durable, then describe it in `parts`."""
        part.sync()
        self.parts[part.path.name] = [part.n_bytes, part.sha256]

    def wants_more(self, max_tokens: int | None) -> bool:
        """Tell whether `max_tokens` allows more than the tokens of a run that has ended or only has to merge."""
        return not self.is_exhausted and (max_tokens or sys.maxsize) > self.train_tokens

    def shard_name(self, number: int, layout: Layout) -> str:
        """Return the final name of a complete shard."""
        is_rest = self.has_rest and number == len(self.shard_sha256) - 1
        return layout.rest_name if is_rest else layout.shard_name(number)

    def shard_lengths(self, shard_tokens: int) -> list[int]:
        """Return how many tokens each complete shard has."""
        return [min(shard_tokens, self.train_tokens - n * shard_tokens) for n in range(len(self.shard_sha256))]

    def n_lasting(self, shard_tokens: int) -> int:
        """Return how many shards of a finished run stay as they are when it is extended."""
        return max(int(self.snapshot.get("train_tokens", 0)) - 1, 0) // shard_tokens

    def copy(self) -> State:
        """Return a copy that does not change when this state does."""
        return State(**{name: copy.copy(value) for name, value in vars(self).items()})

    def position(self) -> dict[str, Any]:
        """Return a copy of the POSITION fields."""
        return {name: getattr(self, name) for name in POSITION} | {"n_changes": dict(self.n_changes)}


def check_state(content: dict[str, Any], run: str, n_inputs: int, shard_tokens: int) -> State:
    """Return the state in a record. Raises `TypeError` or `ValueError` for one that no such run has written."""
    known = {f.name for f in fields(State)}
    state = State(**{name: value for name, value in content.items() if name in known})
    fresh = vars(State())
    same_types(vars(state), fresh)
    same_types(state.snapshot, {name: fresh[name] for name in POSITION})
    check(not state.snapshot or set(state.snapshot) == set(POSITION), "snapshot")
    for changes in (state.n_changes, state.snapshot.get("n_changes", {})):
        check(all(type(n) is int and n >= 0 and kind.isprintable() for kind, n in changes.items()), "n_changes")
    check(state.status in (ENCODING, SHUFFLING, MERGING, DONE), "status")
    check(not state.shuffle or set(state.shuffle) == set(SHUFFLE), "shuffle")
    same_types(state.shuffle, SHUFFLE)
    shuffled = SHUFFLE | state.shuffle
    check(shuffled["split"] <= 1 and shuffled["n_buckets"] <= 1 << 16 and shuffled["n_bins"] <= 1 << 32, "shuffle")
    check(state.run == run, "run")
    check(state.input < n_inputs, "input")
    _check_shards(state, shuffled, shard_tokens)
    _check_files(state, shuffled)
    check(all(len(sample) == 3 and all(map(_is_number, sample)) for sample in state.timeline), "timeline")
    check(_is_number(state.memory.get("peak_bytes", 0)), "memory")
    check(isinstance(state.memory.get("steps", []), list), "memory")
    return state


def _check_shards(state: State, shuffled: dict[str, Any], shard_tokens: int) -> None:
    for shards in (vars(state), shuffled):
        check(all(map(_is_hash, shards["shard_sha256"])), "shard_sha256")
        check(len(shards["shard_heads"]) == len(shards["shard_sha256"]), "shard_heads")
        check(all(map(_is_head, [*shards["shard_heads"], state.changes_head])), "heads")
    n_shards = len(state.shard_sha256)
    check((n_shards - 1) * shard_tokens < max(state.train_tokens, 1), "train_tokens")
    check(state.merged_shards <= n_shards or state.merged_shards <= 1, "merged_shards")
    check(state.base_shards <= n_shards + 1, "base_shards")
    check(not state.has_rest or n_shards > 0, "has_rest")


def _check_files(state: State, shuffled: dict[str, Any]) -> None:
    places = [*state.parts.items(), *shuffled["parts"].items(), *([("val.bin", state.place)] if state.place else [])]
    for name, part in places:
        check(is_temporary(name) and len(part) == 2 and is_count(part[0]) and _is_hash(part[1] or "0" * 64), "parts")
    for name, output in [*state.outputs.items(), *state.old.items()]:
        check(is_output(name) and isinstance(output, dict), "outputs")
        check(all(is_count(output.get(key, 0)) for key in ("bytes", "tokens")), "outputs")
        check(_is_hash(output.get("sha256", "0" * 64)) and _is_head(output.get("head", "")), "outputs")
        check(state.status != DONE or {"bytes", "tokens", "sha256"} <= set(output) or name in state.old, "outputs")


def check(is_right: bool, name: str) -> None:
    """Raise `ValueError` with the name of a part of a record unless it is as a run writes it."""
    if not is_right:
        raise ValueError(name)


def same_types(values: dict[str, Any], examples: dict[str, Any]) -> None:
    """Raise `TypeError` or `ValueError` unless values have their examples' types, and numbers are in range."""
    for name, value in values.items():
        if type(value) is not type(examples[name]):
            raise TypeError(name)
        if isinstance(value, int | float) and not 0 <= value < 1 << 63:
            raise ValueError(name)


def is_count(value: Any, least: int = 0, stop: int = 1 << 63) -> bool:
    """Tell whether a value is a whole number from `least` to before `stop`."""
    return type(value) is int and least <= value < stop


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value < 1 << 63


def _is_hash(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


def _is_head(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(f"([0-9a-f]{{2}}){{0,{files.HEAD_BYTES}}}", value) is not None
