"""The record that version 0.1.0 wrote: one file that includes the state, replaced as a whole at each commit.

It is converted to a record of today, so that the run can be resumed, or its files recognized. Temporary files were
named `NAME.part`: such a run's number is empty.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..support.errors import PrepareError
from .manifest import Record, check_manifest, check_sum
from .own import CHANGES_NAME, TRAIN_NAME
from .state import DONE, ENCODING, State, check_state

_SKIPPED = ("train_tokens", "val_tokens", "train_documents", "val_documents", "text_bytes", "input_bytes")
_COUNTERS = (
    *("skip_train", "skip_val", "skip_train_documents", "skip_val_documents"),
    *("skip_text_bytes", "skip_input_bytes"),
)


def read_format1(path: Path, content: dict[str, Any]) -> Record:
    """Return the record; `PrepareError` if only version 0.1.0 can resume it, `ValueError` and its like if damaged."""
    check_sum(content)
    content["inputs"] = [
        {"fingerprint" if name == "modified" else name: value for name, value in input.items()}
        for input in content["inputs"]
    ]
    inputs, settings, names, about = check_manifest(content)
    record = Record(path, settings, inputs, State(), names, about, has_state=True)
    old = dict(content["state"])
    old["shard_heads"] = [""] * len(old["shard_sha256"])
    state = record.state = check_state(old, "", len(inputs), settings["shard_tokens"])
    skipped = [old.get(name, 0) for name in _COUNTERS]
    if not all(type(n) is int and n >= 0 for n in skipped):
        raise TypeError("skip counters")
    if old.get("skip_changes") or (any(skipped) and state.status == ENCODING):
        raise PrepareError(
            f"{path}: version 0.1.0 stopped this run inside a block (--max-tokens), with changes or interrupted again",
            "continue with version 0.1.0, or move it and the outputs away, or choose another folder with --out",
        )
    _find_val_end(record)
    _find_parts(record)
    if state.status != ENCODING:  # it may be extended from the start of that block
        state.snapshot = state.position()
        for name, n in zip(_SKIPPED, skipped, strict=True):
            state.snapshot[name] = max(state.snapshot[name] - n, 0)
    if state.status == DONE and not set(state.outputs):
        raise ValueError("outputs")
    return record


def _find_val_end(record: Record) -> None:
    """Note that val of a stream of plain text has ended, if it has: where it ends was not recorded."""
    state, settings = record.state, record.settings
    is_stream = any(input.is_stream and input.format == "text" for input in record.inputs[state.input :][:1])
    is_share = settings["separator"] is None and settings["val_tokens"] is None
    if state.is_exhausted or not (state.offset and is_stream and is_share):
        return
    if len(record.inputs) > 1 or not state.train_tokens:
        raise PrepareError(
            f"{record.path}: version 0.1.0 stopped this run in a stream, and where its val ends is not known",
            "continue with version 0.1.0, or move it and the outputs away, or choose another folder with --out",
        )
    state.val_end = 1


def _find_parts(record: Record) -> None:
    """Note the lengths of the temporary files; their hashes are unknown."""
    state, layout, shard_tokens = record.state, record.layout, record.settings["shard_tokens"]
    n_shards = len(state.shard_sha256)
    lengths = {
        layout.val_name: state.val_tokens,
        layout.shard_name(n_shards): state.train_tokens - n_shards * shard_tokens,
        TRAIN_NAME: min(state.merged_shards * shard_tokens, state.train_tokens),
    }
    parts = {name: [n * layout.id_bytes, ""] for name, n in lengths.items() if n > 0}
    if state.changes_bytes:
        parts[CHANGES_NAME] = [state.changes_bytes, ""]
    state.parts = parts if state.status != DONE else {}
