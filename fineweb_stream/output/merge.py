"""Make the outputs of what a run has written, and give them their final names.

Shards that stay beside `train.bin` are copied into it; if they are the result, they are only compared with the record.
Otherwise train was written as `train.bin`. An earlier version wrote shards then, too: its runs are continued, and each
shard is deleted once its copy is durable. The `train.bin` of a finished run that is extended stays as it is until the
new one replaces it atomically.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from . import files
from .files import Check
from .manifest import Record
from .own import CHANGES_NAME, META_NAME, TRAIN_NAME, check_own, looks_own
from .shards import give_name
from .state import ENCODING


def merge(record: Record, commit: Check, check: Check) -> bool:
    """Concatenate the shards into the new `train.bin`, durably, if the layout has one; complete `state.outputs`.

    Resumes where `state.merged_shards` says; `commit` records the state, `check` is called now and then and may raise.
    What is copied is hashed; returns whether `train.bin` was.

    Raises `DiskError`; `DamagedError` when a file holds less than the state says, `PrepareError` if it was altered.
    """
    folder, state, layout = record.folder, record.state, record.layout
    if not record.keeps_shards:  # a power loss may have kept the last one; number 0 became the beginning of train.bin
        for number in range(max(state.base_shards, 1), state.merged_shards):
            files.remove(folder / layout.shard_name(number))
    val = state.outputs[layout.val_name]
    if "bytes" in val:  # interrupted while final names were given
        return False
    lengths = state.shard_lengths(record.shard_tokens)
    sizes = [layout.n_bytes(n) for n in lengths]
    _name_shards(record, sizes)

    def add(name: str, n_tokens: int, sha256: str, head: str) -> None:
        numbers = {"tokens": n_tokens, "bytes": layout.n_bytes(n_tokens)}
        state.outputs[name] = {"sha256": sha256, "head": head, **numbers}

    if layout.is_merged:
        add(TRAIN_NAME, state.train_tokens, *_join(record, sizes, commit, check))
    if record.keeps_shards:
        for number, shard in enumerate(zip(lengths, state.shard_sha256, state.shard_heads, strict=True)):
            add(state.shard_name(number, layout), *shard)
    add(layout.val_name, state.val_tokens, val["sha256"], val.get("head", ""))
    commit()  # on record before they get their final names
    is_only_shard = len(sizes) == 1 and not (record.keeps_shards or state.base_shards)
    return layout.is_merged and not is_only_shard


def check_shards(record: Record) -> None:
    """Raise `DamagedError` if a complete shard of an interrupted run is gone: only the merge would notice it."""
    state, layout = record.state, record.written_layout
    for number in range(state.base_shards, len(state.shard_sha256) if state.status == ENCODING else 0):
        _check_size(record.folder / layout.shard_name(number), state.run, layout.n_bytes(record.written_tokens))


def give_names(record: Record, check: Check, is_resumed: bool, is_hashed: bool) -> None:
    """Give the outputs, which are complete and on record, the final names that they do not have yet.

    Deletes the files of the earlier run that nothing has replaced.

    Raises `PrepareError` for an output that is not as `state` says. val is hashed, and if the run `is_resumed`, so is
    all else that has been waiting, but for `train.bin` if it `is_hashed`.
    """
    folder, state, layout = record.folder, record.state, record.layout
    written = state.outputs | ({CHANGES_NAME: {"bytes": state.changes_bytes}} if state.changes_bytes else {})
    for name, entry in written.items():
        path = _check_size(folder / name, state.run, entry["bytes"])
        is_known = (name == TRAIN_NAME and is_hashed) or (layout.is_merged and path == folder / name)
        if name == layout.val_name or (is_resumed and "sha256" in entry and not is_known):
            start = 0 if name == META_NAME else layout.header_bytes
            files.check_hash(path, start, entry["bytes"] - start, entry["sha256"], check)
    for name in written:
        give_name(folder, name, state, layout)
    for name, entry in state.old.items():
        is_there = os.path.lexists(folder / name)  # False if resumed after an interruption here
        if is_there and name not in written and looks_own(folder / name, [entry], layout):
            files.remove(folder / name)
    state.old, state.parts, state.base_shards = {}, {}, 0


def _join(record: Record, sizes: list[int], commit: Check, check: Check) -> tuple[str, str]:
    """Merge shards of these sizes (bytes) as `merge` says; return SHA-256 and first bytes of all (hexadecimal)."""
    folder, state, keep_shards = record.folder, record.state, record.keeps_shards
    target, shards = folder / TRAIN_NAME, [folder / record.layout.shard_name(number) for number in range(len(sizes))]
    if not keep_shards and not state.base_shards:  # the first shard is, or becomes, the beginning of train.bin
        if state.merged_shards == 0:
            state.merged_shards = 1
            commit()
        part_path = files.part_path(target, state.run)
        if state.merged_shards == 1 and shards[0].exists() and not part_path.exists():
            files.replace(shards[0], part_path)
        if len(sizes) == 1:
            return state.shard_sha256[0], state.shard_heads[0]
    n_bytes, sha256 = state.parts.get(TRAIN_NAME, (0, ""))
    if state.merged_shards == 1 and not n_bytes:  # it is the first shard
        n_bytes, sha256 = sizes[0], state.shard_sha256[0]
    with contextlib.closing(files.Part(target, n_bytes, run=state.run, sha256=sha256, check=check)) as part:

        def add(source: Path, first: int, stop: int) -> None:
            start = 0
            for number in range(first, stop):
                part.copy_from(source, start, sizes[number], state.shard_sha256[number], check)
                start += sizes[number]
            state.sync(part)
            state.merged_shards = stop
            commit()

        if state.base_shards > state.merged_shards:
            add(target, 0, state.base_shards)
        for number in range(state.merged_shards, len(sizes)):
            add(shards[number], number, number + 1)
            if not keep_shards:
                files.remove(shards[number])
        return part.sha256, part.head


def _name_shards(record: Record, sizes: list[int]) -> None:
    """Give the shards still to merge their final names. Raises `PrepareError` unless each is there and complete.

    And `InputError` unless it begins as it was written; what is merged is hashed while it is copied.
    """
    folder, state, layout, owned = record.folder, record.state, record.layout, record.owned()
    for number in range(max(state.merged_shards, state.base_shards), len(sizes)):
        path = folder / state.shard_name(number, layout)
        give_name(folder, path.name, state, layout, layout.shard_name(number))
        if number == 0 and not record.keeps_shards and not path.exists():
            path = folder / TRAIN_NAME  # as which it was written, or became that right before an interruption
        else:
            check_own(path, owned, layout)
        _check_size(path, state.run, sizes[number])


def _check_size(path: Path, run: str, expected: int) -> Path:
    """Check the size of a file under its temporary name or, if that is gone, its final one; return which it is."""
    part = files.part_path(path, run)
    path = part if part.exists() else path
    n_bytes = path.stat().st_size if path.exists() else 0
    if n_bytes != expected:
        raise files.changed(path, n_bytes, expected)
    return path
