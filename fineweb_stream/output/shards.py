"""Write ids to `train_shard_0000.bin`, `train_shard_0001.bin`, ... of an exact length, and `val.bin`, in any layout.

Without shards, train is a single one of any length, under the name of `train.bin`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..support.errors import InputError
from . import files
from .layouts import Layout
from .own import TRAIN_NAME, check_own
from .state import State

if TYPE_CHECKING:
    from ..tokenizer.ids import Ids


def written_name(number: int, shard_tokens: int, layout: Layout) -> str:
    """Return the name that a shard is written under; one of any length is all of `train.bin`."""
    return TRAIN_NAME if shard_tokens == sys.maxsize else layout.shard_name(number)


def give_name(folder: Path, name: str, state: State, layout: Layout, written_as: str = "") -> None:
    """Give a file that is complete and on record its final name, if it does not have it yet.

    `written_as` is the name it was written under, if that is another.

    Raises `InputError` if the name is taken by a file that is not of the finished run that is extended.
    """
    part = files.part_path(folder / (written_as or name), state.run)
    if part.exists():
        check_own(folder / name, {name: [state.old[name]]} if name in state.old else {}, layout)
        files.replace(part, folder / name)


class ShardWriter:
    """Writes both splits of a run; resumes from what `state` says is there, and truncates the rest.

    Every shard but the last holds exactly `shard_tokens` ids, whatever the documents' lengths. A complete shard gets
    its final name from `give_names` once it is on record, which then says whose it is. If shards are the result, the
    last of several is the rest if it has fewer than `least_tokens` ids and the others do not. `check` is called now and
    then while a resumed shard is read, and may raise.

    Raises `DiskError`; `PrepareError` if there is less than the state says; `InputError` when val outgrows a file.
    """

    def __init__(
        self, folder: Path, shard_tokens: int, state: State, layout: Layout, least_tokens: int, check: files.Check
    ) -> None:
        self._folder = folder
        self._least_tokens = least_tokens
        self._shard_tokens = shard_tokens
        self._state = state
        self._layout = layout
        self._check = check
        self._val = self._open(folder / layout.val_name, state.val_tokens)
        self._n_named = 0
        try:
            self.give_names()
            self._shard = self._open_shard(state.train_tokens - len(state.shard_sha256) * shard_tokens)
        except BaseException:
            self._val.close()
            raise

    def write_train(self, ids: Ids) -> bool:
        """Append ids of the layout's width to the shards; return whether a shard was completed."""
        self._state.train_tokens += len(ids)
        n_before = len(self._state.shard_sha256)
        while len(ids):  # a document may span many shards
            room = self._shard_tokens - self._n_shard
            self._shard.write(ids[:room].data)
            ids = ids[room:]
            if len(ids) or room == 0:
                self._complete_shard()
                self._shard = self._open_shard(0)
        return len(self._state.shard_sha256) > n_before

    def write_val(self, ids: Ids) -> None:
        """Append ids to the validation split."""
        if self._state.val_tokens + len(ids) > self._layout.max_tokens:
            raise InputError(
                f"{self._val.path}: more than {self._layout.max_tokens:,} tokens, and --layout {self._layout.name}"
                " cannot count them",
                "start over with --overwrite and a lower --val-ratio or --val-tokens, or less text in --val",
            )
        self._val.write(ids.data)
        self._state.val_tokens += len(ids)

    def sync(self) -> None:
        """Make everything written durable; then the state may be recorded."""
        self._state.parts = {}
        for part in (self._val, self._shard):
            self._state.sync(part)

    def give_names(self) -> None:
        """Give the complete shards, which are on record, their final names; a spool's shards have none."""
        if self._layout.is_spool:
            return
        for number in range(self._n_named, len(self._state.shard_sha256)):
            give_name(self._folder, self._layout.shard_name(number), self._state, self._layout)
        self._n_named = len(self._state.shard_sha256)

    def finish(self) -> None:
        """Complete the last shard and the validation split, which keeps its temporary name."""
        self._state.has_rest = self._is_rest()
        self._complete_shard()
        self._val.write_header(self._layout.make_header(self._state.val_tokens))
        self._state.parts = {}
        self._state.sync(self._val)
        self.close()
        self._state.outputs[self._layout.val_name] = {"sha256": self._val.sha256, "head": self._val.head}

    def close(self) -> None:
        """Close the files as they are."""
        self._val.close()
        self._shard.close()

    @property
    def n_open_bytes(self) -> int:
        """How much is in the files that are not complete, which a resumed run reads again."""
        return self._val.n_bytes + self._shard.n_bytes

    @property
    def _n_shard(self) -> int:
        """How many ids are in the shard that is being written."""
        return self._shard.n_bytes // self._layout.id_bytes

    def _open_shard(self, n_tokens: int) -> files.Part:
        number = len(self._state.shard_sha256)
        name = self._layout.shard_name(number)
        if name not in self._state.parts:  # else an earlier version has begun to write it
            name = written_name(number, self._shard_tokens, self._layout)
        return self._open(self._folder / name, n_tokens)

    def _open(self, path: Path, n_tokens: int) -> files.Part:
        layout = self._layout
        n_bytes, header_bytes = n_tokens * layout.id_bytes, layout.header_bytes
        return self._state.open_part(path, n_bytes, header_bytes=header_bytes, check=self._check)

    def _is_rest(self) -> bool:
        """Tell whether the last shard is too short for the layout's reader, and not the only one."""
        if self._layout.is_merged or self._layout.is_spool or not self._state.shard_sha256:
            return False
        return self._n_shard < self._least_tokens <= self._shard_tokens

    def _complete_shard(self) -> None:
        self._shard.write_header(self._layout.make_header(self._n_shard))
        self._shard.sync()
        self._shard.close()
        self._state.shard_sha256.append(self._shard.sha256)
        self._state.shard_heads.append(self._shard.head)
