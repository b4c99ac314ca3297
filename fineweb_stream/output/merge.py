"""Shards -> `train.bin`, each deleted once its bytes are safe there: the disk holds one shard twice at most.

In a layout whose shards are the result they are only held against the record.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..pipeline.schedule import wait
from ..pipeline.settings import Settings
from ..support.errors import PrepareError
from . import files
from .layouts import LAYOUTS, Layout
from .manifest import State
from .shards import TRAIN_NAME, shard_path


def merge(
    folder: Path,
    state: State,
    settings: Settings,
    commit: Callable[[], None],
    check: Callable[[], None],
) -> None:
    """Concatenate the shards into `train.bin.part`, durably, if that is the layout; complete `state.outputs`.

    Takes up where `state.merged_shards` says; `commit` records the state, `check` is called now and then and may raise.

    Raises `DiskError`; `PrepareError` when a file holds less than the state says.
    """
    layout = LAYOUTS[settings.layout]
    lengths = [settings.shard_tokens] * (len(state.shard_sha256) - 1)
    lengths.append(state.train_tokens - sum(lengths))
    sizes = [layout.n_bytes(n) for n in lengths]
    _check_shards(folder, state, sizes, settings.keep_shards, layout)
    n_tokens = {layout.val_name: state.val_tokens}
    if layout.is_merged:
        sha256 = _join(folder, state, sizes, settings.keep_shards, commit, check)
        n_tokens[TRAIN_NAME], state.outputs[TRAIN_NAME] = state.train_tokens, {"sha256": sha256}
    if settings.keep_shards:
        for number, sha256 in enumerate(state.shard_sha256):
            name = layout.shard_name(number)
            n_tokens[name], state.outputs[name] = lengths[number], {"sha256": sha256}
    for name, n in n_tokens.items():
        state.outputs[name] |= {"tokens": n, "bytes": layout.n_bytes(n)}


def give_names(folder: Path, state: State) -> None:
    """Give the outputs, which are complete, their final names where they have them not yet.

    Raises `PrepareError` for one that is not as `state` says.
    """
    for name, output in state.outputs.items():
        path, part = folder / name, files.part_path(folder / name)
        is_part = part.exists()
        _check_size(part if is_part else path, output["bytes"])
        if is_part:
            files.replace(part, path)


def _join(
    folder: Path,
    state: State,
    sizes: list[int],
    keep_shards: bool,
    commit: Callable[[], None],
    check: Callable[[], None],
) -> str:
    """Do as `merge` says with shards of these sizes (bytes); return the SHA-256 of all (hexadecimal)."""
    n_shards = len(sizes)
    if not keep_shards:
        _remove_merged(folder, state, commit)
        if n_shards == 1:
            return state.shard_sha256[0]
    target = folder / TRAIN_NAME
    n_merged = sum(sizes[: state.merged_shards])
    part = files.Part(target, n_merged, is_hashed=False)
    digest, stop = hashlib.sha256(), threading.Event()
    with ThreadPoolExecutor(1, "hash") as hasher:
        try:
            hashed = hasher.submit(_hash, digest, files.part_path(target), n_merged, stop)
            for number in range(state.merged_shards, n_shards):
                shard = shard_path(folder, number)
                wait(hashed, check)
                hashed.result()
                hashed = hasher.submit(_hash, digest, shard, sizes[number], stop)
                part.copy_from(shard, check)
                part.sync()
                state.merged_shards = number + 1
                commit()
                wait(hashed, check)
                hashed.result()
                if not keep_shards:
                    files.remove(shard)
            wait(hashed, check)
            hashed.result()
        finally:
            stop.set()
            part.close()
    return digest.hexdigest()


def _check_shards(folder: Path, state: State, sizes: list[int], keep_shards: bool, layout: Layout) -> None:
    """Raise `PrepareError` unless every shard that is left to merge is there and whole."""
    for number in range(state.merged_shards, len(sizes)):
        path, part = shard_path(folder, number, layout), files.part_path(folder / TRAIN_NAME)
        if number == 0 and not keep_shards and not path.exists() and (part.exists() or (folder / TRAIN_NAME).exists()):
            continue  # it is the beginning of train.bin already
        _check_size(path, sizes[number])


def _check_size(path: Path, expected: int) -> None:
    n_bytes = path.stat().st_size if path.exists() else 0
    if n_bytes != expected:
        raise PrepareError(
            f"{path}: holds {n_bytes:,} bytes, but the record of the run says {expected:,}",
            "the file was changed by something else: start over with --overwrite",
        )


def _remove_merged(folder: Path, state: State, commit: Callable[[], None]) -> None:
    """Let the first shard become the beginning of train.bin; delete what is left of shards that are in it."""
    part = files.part_path(folder / TRAIN_NAME)
    if state.merged_shards == 0:
        if shard_path(folder, 0).exists():
            files.replace(shard_path(folder, 0), part)
        state.merged_shards = 1
        commit()
    for number in range(state.merged_shards):
        files.remove(shard_path(folder, number))


def _hash(digest: hashlib._Hash, path: Path, n_bytes: int, stop: threading.Event) -> None:
    for data in files.read_pieces(path, 0, n_bytes):
        if stop.is_set():
            return
        digest.update(data)
