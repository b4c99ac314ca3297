"""Ids -> `train_shard_0000.bin`, `train_shard_0001.bin`, ... of an exact length, and `val.bin`."""

from __future__ import annotations

import re
from pathlib import Path
from types import TracebackType

from . import disk
from .encoder import Ids
from .record import State
from .vocab import TOKEN_DTYPE

TRAIN_NAME, VAL_NAME = "train.bin", "val.bin"


def shard_path(folder: Path, number: int) -> Path:
    """The final name of a shard."""
    return folder / f"train_shard_{number:04d}.bin"


class ShardWriter:
    """Writes both splits of a run, and takes up again what `state` says is there; the rest is cut off.

    Every shard but the last holds exactly `shard_tokens` ids, whatever the documents' lengths.

    Raises `DiskError`; `PrepareError` when there is less than the state says.
    """

    def __init__(self, folder: Path, shard_tokens: int, state: State) -> None:
        self._folder = folder
        self._shard_tokens = shard_tokens
        self._state = state
        self._val = disk.Part(folder / VAL_NAME, state.val_tokens * TOKEN_DTYPE.itemsize)
        self._shard: disk.Part | None = None
        try:
            n_complete = len(state.shard_sha256)
            self._remove_shards_after(n_complete)
            self._open_shard(state.train_tokens - n_complete * shard_tokens)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def write_train(self, ids: Ids) -> bool:
        """Append ids (uint16, any number) to the shards; return whether one was completed."""
        self._state.train_tokens += len(ids)
        n_before = len(self._state.shard_sha256)
        while len(ids):  # a document may span many shards
            assert self._shard
            room = self._shard_tokens - self._shard.n_bytes // TOKEN_DTYPE.itemsize
            self._shard.write(ids[:room].data)
            ids = ids[room:]
            if len(ids) or room == 0:
                self._complete_shard()
                self._open_shard(0)
        return len(self._state.shard_sha256) > n_before

    def write_val(self, ids: Ids) -> None:
        """Append ids (uint16) to the validation split."""
        self._val.write(ids.data)
        self._state.val_tokens += len(ids)

    def sync(self) -> None:
        """Make durable all that was written; the state may be recorded then."""
        self._val.sync()
        if self._shard:
            self._shard.sync()

    def finish(self) -> str:
        """Complete the last shard; return the hash of val.bin, which keeps its temporary name."""
        self._complete_shard()
        self._val.sync()
        self.close()
        return self._val.sha256

    def close(self) -> None:
        """Leave everything as it is."""
        self._val.close()
        if self._shard:
            self._shard.close()

    def _open_shard(self, n_tokens: int) -> None:
        number = len(self._state.shard_sha256)
        self._shard = disk.Part(shard_path(self._folder, number), n_tokens * TOKEN_DTYPE.itemsize)

    def _complete_shard(self) -> None:
        assert self._shard
        self._shard.finish()
        self._state.shard_sha256.append(self._shard.sha256)
        self._shard = None

    def _remove_shards_after(self, number: int) -> None:
        """Delete shards that were begun after the state was recorded."""
        for path in self._folder.glob("train_shard_*.bin*"):
            match = re.fullmatch(r"train_shard_(\d{4,})\.bin(\.part)?", path.name)
            if match and int(match.group(1)) > number:
                disk.remove(path)
