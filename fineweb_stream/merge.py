"""Shards -> `train.bin`, each deleted once its bytes are safe there: the disk holds one shard twice at most."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import disk
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
    if not keep_shards:
        _remove_merged(folder, state, commit)
        if n_shards == 1:
            return state.shard_sha256[0]
    target = folder / TRAIN_NAME
    n_merged = min(state.merged_shards * shard_tokens, state.train_tokens) * TOKEN_DTYPE.itemsize
    part = disk.Part(target, n_merged, is_hashed=False)
    digest, stop = hashlib.sha256(), threading.Event()
    with ThreadPoolExecutor(1, "hash") as hasher:
        try:
            hashed = hasher.submit(_hash, digest, disk.part_path(target), n_merged, stop)
            for number in range(state.merged_shards, n_shards):
                shard = shard_path(folder, number)
                wait(hashed, check)
                hashed.result()
                hashed = hasher.submit(_hash, digest, shard, shard.stat().st_size, stop)
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
