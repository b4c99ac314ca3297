"""Where documents wait to be shuffled: the spool, in input order, and buckets, by ranges of their keys.

Everything is read in pieces, and the part of a document in one piece is a *fragment*. Fragments of a document have the
same key, and stable sorting keeps their order: a document may be longer than a piece, a spool file or the memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from ..tokenizer.ids import Ids
from . import files
from .manifest import Record
from .splits import hash_numbers

Keys = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]

PIECE_TOKENS = 1 << 20
_LAST_KEY = np.uint64(2**64 - 1)


class Fragments(NamedTuple):
    """The ids of some fragments, one after the other, and the length and key of each fragment."""

    keys: Keys
    lengths: Numbers
    ids: Ids

    @property
    def bins(self) -> Numbers:
        """The bin of each fragment: the first half of its key."""
        return (self.keys >> np.uint64(32)).astype(np.int64)

    def within(self, start: int, stop: int) -> Fragments:
        """Return the fragments in the bins from `start` to before `stop`."""
        chosen = (self.bins >= start) & (self.bins < stop)
        return self if chosen.all() else self.only(chosen)

    def only(self, chosen: npt.NDArray[np.bool_]) -> Fragments:
        """Return the fragments for which `chosen` is true."""
        ids = self.ids[np.repeat(chosen, self.lengths)] if len(self.ids) else self.ids
        return Fragments(self.keys[chosen], self.lengths[chosen], ids)

    def take(self, order: Numbers) -> Fragments:
        """Return the fragments at the positions `order`, in that order."""
        starts = np.cumsum(self.lengths) - self.lengths
        lengths = self.lengths[order]
        return Fragments(self.keys[order], lengths, gather(self.ids, starts[order], lengths))


def gather(ids: Ids, starts: Numbers, lengths: Numbers) -> Ids:
    """Return slices of an array, one after another.

    >>> gather(np.array([1, 2, 3, 4, 5], np.uint16), np.array([3, 0]), np.array([2, 1])).tolist()
    [4, 5, 1]
    """
    n_tokens = int(lengths.sum())
    if len(starts) * 100 < n_tokens:  # measured: a slice costs as much as indexing a hundred ids
        ends = (starts + lengths).tolist()
        return np.concatenate([ids[start:end] for start, end in zip(starts.tolist(), ends, strict=True)])
    places = np.arange(n_tokens)
    places += np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
    return ids[places]


class Spool:
    """The documents of one split (0 is val, 1 train) in input order; `check` is called for each piece."""

    def __init__(self, record: Record, split: int, check: files.Check) -> None:
        state, settings, layout = record.state, record.settings, record.written_layout
        self.n_tokens = state.train_tokens if split else state.val_tokens
        self.n_documents = state.train_documents if split else state.val_documents
        self.dtype = np.dtype(layout.dtype)
        self.check = check
        self._eot, self._eot_id = settings["eot"], settings["eot_id"]
        self._seed = int(hash_numbers(split, 1, settings["seed"])[0])  # keys must not depend on the choice of val
        self._file_tokens = record.written_tokens if split else max(self.n_tokens, 1)
        names = map(layout.shard_name, range(len(state.shard_sha256))) if split else [layout.val_name]
        self._paths = [files.part_path(record.folder / name, state.run) for name in names]

    def iter_fragments(self, with_ids: bool = True) -> Iterator[Fragments]:
        """Yield the fragments of all documents in input order, always with their ids."""
        return (fragments for fragments, _ in self.read(0, 0))

    def read(self, start: int, n_eot: int) -> Iterator[tuple[Fragments, int]]:
        """Yield fragments from token `start`, before which are `n_eot` end-of-text ids; with each, the number after it.

        A document without its end, cut by `--max-tokens`, has the largest key: it comes last.
        """
        for ids in self._iter_ids(start):
            places = np.flatnonzero(ids == self._eot_id)
            cuts, n_before = {
                "after": (places + 1, n_eot),
                "before": (places, n_eot - 1),
                "both": (places[(n_eot + 1) % 2 :: 2] + 1, n_eot // 2),
            }[self._eot]
            first = n_before + int((cuts == 0).sum())
            cuts = cuts[(cuts > 0) & (cuts < len(ids))]
            lengths = np.diff(cuts, prepend=0, append=len(ids))
            keys = hash_numbers(first, len(lengths), self._seed)
            keys[max(self.n_documents - first, 0) :] = _LAST_KEY
            n_eot += len(places)
            yield Fragments(keys, lengths, ids), n_eot

    def remove(self, stop: int) -> None:
        """Delete the files that end at or before token `stop`."""
        n_files = len(self._paths) if stop >= self.n_tokens else stop // self._file_tokens
        for path in self._paths[:n_files]:
            files.remove(path)

    def _iter_ids(self, start: int) -> Iterator[Ids]:
        while start < self.n_tokens:
            self.check()
            number, place = divmod(start, self._file_tokens)
            n = min(PIECE_TOKENS, self._file_tokens - place, self.n_tokens - start)
            path, n_before = self._paths[number], place * self.dtype.itemsize
            with _open(path, n_before + n * self.dtype.itemsize) as file:  # Windows cannot delete an open file
                file.seek(n_before)
                ids = _read(file, path, self.dtype, n)
            start += n
            yield ids


class Bucket:
    """Fragments of a range of keys, in the order in which they were added: a sequence of tables, each with its ids."""

    def __init__(self, path: Path, n_bytes: int, dtype: np.dtype[Any], check: files.Check) -> None:
        self.dtype = dtype
        self.check = check
        self._path = path
        self._n_bytes = n_bytes

    def iter_fragments(self, with_ids: bool = True) -> Iterator[Fragments]:
        """Yield all fragments in the order in which they were added; without `with_ids`, read only keys and lengths."""
        with _open(self._path, self._n_bytes) as file:
            while file.tell() < self._n_bytes:
                self.check()
                n, n_tokens = _read(file, self._path, np.dtype("<u8"), 2).tolist()
                keys = _read(file, self._path, np.dtype("<u8"), n)
                lengths = _read(file, self._path, np.dtype("<u4"), n).astype(np.int64)
                if not with_ids:
                    file.seek(n_tokens * self.dtype.itemsize, os.SEEK_CUR)
                ids = _read(file, self._path, self.dtype, n_tokens * with_ids)
                yield Fragments(keys, lengths, ids)


def pack(fragments: Fragments) -> bytes:
    """Return fragments as a bucket stores them: the numbers of fragments and of ids, then keys, lengths, ids."""
    keys, lengths, ids = fragments
    header = np.array([len(keys), len(ids)], "<u8")
    return b"".join((header.data, keys.astype("<u8").data, lengths.astype("<u4").data, ids.data))


Source = Spool | Bucket  # what is ordered at a time: the spool of a split, or a bucket


def check_spool(record: Record, check: files.Check) -> None:
    """Raise `PrepareError` if a file that waits to be shuffled does not hold what the run has written."""
    state, layout = record.state, record.written_layout
    lengths = state.shard_lengths(record.written_tokens)
    parts = dict(state.parts)
    for number, (n_tokens, sha256) in enumerate(zip(lengths, state.shard_sha256, strict=True)):
        parts[layout.shard_name(number)] = [n_tokens * layout.id_bytes, sha256]
    for name, (n_bytes, sha256) in parts.items():
        path = files.part_path(record.folder / name, state.run)
        if path.exists():  # else it is in buckets, or the shuffle will miss it
            files.check_hash(path, 0, n_bytes, sha256, check)


def _open(path: Path, n_bytes: int) -> BinaryIO:
    """Open a file of the spool, which must have `n_bytes`. Raises `DamagedError` if it is gone."""
    if not path.exists():
        raise files.changed(path, 0, n_bytes)
    with files.disk_errors(path):
        return os.fdopen(files.open_regular(path, os.O_RDONLY), "rb")


def _read(file: BinaryIO, path: Path, dtype: np.dtype[Any], n: int) -> npt.NDArray[Any]:
    """Read `n` numbers. Raises `PrepareError` if there are fewer, `DiskError` if they cannot be read."""
    try:
        data = file.read(n * dtype.itemsize)
    except OSError as error:
        raise files.unreadable(path, error) from error
    if len(data) < n * dtype.itemsize:
        raise files.changed(path, file.tell(), file.tell() + n * dtype.itemsize - len(data))
    return np.frombuffer(data, dtype)
