"""Shards -> `train.bin`, each deleted once its bytes are safe there: the disk holds one shard twice at most."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import disk
from .errors import PrepareError
from .executors import wait
from .record import State
from .shards import TRAIN_NAME, shard_path
from .vocab import TOKEN_DTYPE


def merge(
    folder: Path,
    state: State,
    shard_tokens: int,
    keep_shards: bool,
    commit: Callable[[], None],
    check: Callable[[], None],
) -> str:
    """Concatenate the shards into `train.bin.part`, durably, and return its SHA-256 (hexadecimal).

    Takes up where `state.merged_shards` says; `commit` records the state, `check` is called now and then and may raise.

    Raises `DiskError`; `PrepareError` when a file holds less than the state says.
    """
    n_shards = len(state.shard_sha256)
    sizes = [shard_tokens * TOKEN_DTYPE.itemsize] * (n_shards - 1)
    sizes.append(state.train_tokens * TOKEN_DTYPE.itemsize - sum(sizes))
    _check_shards(folder, state, sizes, keep_shards)
    if not keep_shards:
        _remove_merged(folder, state, commit)
        if n_shards == 1:
            return state.shard_sha256[0]
    target = folder / TRAIN_NAME
    n_merged = sum(sizes[: state.merged_shards])
    part = disk.Part(target, n_merged, is_hashed=False)
    digest, stop = hashlib.sha256(), threading.Event()
    with ThreadPoolExecutor(1, "hash") as hasher:
        try:
            hashed = hasher.submit(_hash, digest, disk.part_path(target), n_merged, stop)
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
                    disk.remove(shard)
            wait(hashed, check)
            hashed.result()
        finally:
            stop.set()
            part.close()
    return digest.hexdigest()


def _check_shards(folder: Path, state: State, sizes: list[int], keep_shards: bool) -> None:
    """Raise `PrepareError` unless every shard that is left to merge is there and whole."""
    for number in range(state.merged_shards, len(sizes)):
        path, part = shard_path(folder, number), disk.part_path(folder / TRAIN_NAME)
        if number == 0 and not keep_shards and not path.exists() and (part.exists() or (folder / TRAIN_NAME).exists()):
            continue  # it is the beginning of train.bin already
        n_bytes = path.stat().st_size if path.exists() else 0
        if n_bytes != sizes[number]:
            raise PrepareError(
                f"{path}: holds {n_bytes:,} bytes, but the record of the run says {sizes[number]:,}",
                "the file was changed by something else: start over with --overwrite",
            )


def _remove_merged(folder: Path, state: State, commit: Callable[[], None]) -> None:
    """Let the first shard become the beginning of train.bin; delete what is left of shards that are in it."""
    part = disk.part_path(folder / TRAIN_NAME)
    if state.merged_shards == 0:
        if shard_path(folder, 0).exists():
            disk.replace(shard_path(folder, 0), part)
        state.merged_shards = 1
        commit()
    for number in range(state.merged_shards):
        disk.remove(shard_path(folder, number))


def _hash(digest: hashlib._Hash, path: Path, n_bytes: int, stop: threading.Event) -> None:
    for data in disk.read_pieces(path, 0, n_bytes):
        if stop.is_set():
            return
        digest.update(data)
