"""Documents in input order -> the same in an order drawn from all orders, in bounded memory; a kill costs seconds.

A document's place follows from its key, a hash of the seed and of its number within its split. No two keys of a split
are the same, and the order is that of the keys: to sort by drawn numbers is to draw from all orders. (External shuffles
by ranges of the number drawn: Rao 1961, "Generation of random permutations of given number of elements using random
sampling numbers"; Sandelius 1962, "A simple randomization procedure".)

While the inputs are encoded their documents wait in a spool, in input order. What fits into memory is read, ordered and
written. More is first parted into buckets by ranges of the key; then bucket after bucket is read, ordered, written and
deleted. Neither the number of buckets nor the memory changes what comes out.

All is read in pieces, and what of a document is in one of them is a *fragment*. Fragments of one document have the same
key and are ordered stably. So a document may be longer than a piece, a shard of the spool or the memory.
"""

from __future__ import annotations

import contextlib
import copy
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from ..support.log import log
from ..support.units import counted
from ..tokenizer.ids import Ids
from . import files
from .manifest import Record
from .own import SPOOL_NAME, own_parts
from .shards import ShardWriter
from .splits import hash_numbers
from .state import MERGING, SHUFFLE, State

Keys = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]
Check = Callable[[], None]

PIECE_TOKENS = 1 << 20
COMMIT_TOKENS = 128 << 20
"""After so much was parted the state is made durable, and what was parted is deleted."""

MOST_BUCKETS = 64
"""They are all open at a time, and macOS lets a process open 256 files."""

N_BINS = 1 << 32
"""The first half of a key: so many ranges of keys may be told apart."""

FRAGMENT_BYTES = 64
"""What a fragment takes in memory beside its ids, while it is ordered."""

_WRITTEN = ("train_tokens", "val_tokens", "shard_sha256", "shard_heads", "parts")
_SPOOL = re.compile(SPOOL_NAME)
_N_SLOTS = 4096
_LAST_KEY = np.uint64(2**64 - 1)


class Fragments(NamedTuple):
    """Ids, the lengths of the fragments that they are, and the key of each."""

    keys: Keys
    lengths: Numbers
    ids: Ids

    @property
    def bins(self) -> Numbers:
        """The range of keys that each is in."""
        return (self.keys >> np.uint64(32)).astype(np.int64)

    def within(self, start: int, stop: int) -> Fragments:
        """Return those in the bins from `start` to before `stop`."""
        chosen = (self.bins >= start) & (self.bins < stop)
        return self if chosen.all() else self._only(chosen)

    def of(self, key: np.uint64) -> Fragments:
        """Return those of one document."""
        return self._only(self.keys == key)

    def take(self, order: Numbers) -> Fragments:
        """Return some of them, in an order of their own."""
        starts = np.cumsum(self.lengths) - self.lengths
        lengths = self.lengths[order]
        return Fragments(self.keys[order], lengths, gather(self.ids, starts[order], lengths))

    def _only(self, chosen: npt.NDArray[np.bool_]) -> Fragments:
        ids = self.ids[np.repeat(chosen, self.lengths)] if len(self.ids) else self.ids
        return Fragments(self.keys[chosen], self.lengths[chosen], ids)


def gather(ids: Ids, starts: Numbers, lengths: Numbers) -> Ids:
    """Return slices of an array, one after another.

    >>> gather(np.array([1, 2, 3, 4, 5], np.uint16), np.array([3, 0]), np.array([2, 1])).tolist()
    [4, 5, 1]
    """
    n_tokens = int(lengths.sum())
    if len(starts) * 100 < n_tokens:  # measured: a slice costs as much as a hundred ids by their index
        ends = (starts + lengths).tolist()
        return np.concatenate([ids[start:end] for start, end in zip(starts.tolist(), ends, strict=True)])
    places = np.arange(n_tokens)
    places += np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
    return ids[places]


class Range(NamedTuple):
    """The bins from `start` to before `stop`, whose documents take `n_bytes` of memory at most."""

    start: int
    stop: int
    n_bytes: int


class Spool:
    """The documents of one split (0 is val, 1 train) as they were encoded."""

    def __init__(self, record: Record, split: int) -> None:
        state, settings, layout = record.state, record.settings, record.written_layout
        self.n_tokens = state.train_tokens if split else state.val_tokens
        self.n_documents = state.train_documents if split else state.val_documents
        self.dtype = np.dtype(layout.dtype)
        self._eot, self._eot_id = settings["eot"], settings["eot_id"]
        self._seed = int(hash_numbers(split, 1, settings["seed"])[0])  # of keys: they must not follow from what is val
        self._file_tokens = settings["shard_tokens"] if split else max(self.n_tokens, 1)
        names = map(layout.shard_name, range(len(state.shard_sha256))) if split else [layout.val_name]
        self._paths = [files.part_path(record.folder / name, state.run) for name in names]

    def iter_fragments(self, with_ids: bool = True) -> Iterator[Fragments]:
        """Yield the fragments of all documents in their order, in any case with the ids."""
        return (fragments for fragments, _ in self.read(0, 0))

    def read(self, start: int, n_eot: int) -> Iterator[tuple[Fragments, int]]:
        """Yield them from token `start`, before which there are `n_eot` end-of-text ids; with each, how many are then.

        A document without its end, which `--max-tokens` cut, has the last key of all.
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
        """Delete the files that are wholly before token `stop`."""
        n_files = len(self._paths) if stop >= self.n_tokens else stop // self._file_tokens
        for path in self._paths[:n_files]:
            files.remove(path)

    def _iter_ids(self, start: int) -> Iterator[Ids]:
        while start < self.n_tokens:
            number, place = divmod(start, self._file_tokens)
            stop = min((number + 1) * self._file_tokens, self.n_tokens)
            with _open(self._paths[number]) as file:
                file.seek(place * self.dtype.itemsize)
                while start < stop:
                    ids = _read(file, self._paths[number], self.dtype, min(PIECE_TOKENS, stop - start))
                    start += len(ids)
                    yield ids


class Bucket:
    """Fragments of some range of keys, as they were met: a row of tables with the ids that belong to them."""

    def __init__(self, path: Path, n_bytes: int, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self._path = path
        self._n_bytes = n_bytes

    def iter_fragments(self, with_ids: bool = True) -> Iterator[Fragments]:
        """Yield all, in the order in which they were put here; without the ids, keys and lengths are read alone."""
        if not self._n_bytes:
            return
        with _open(self._path) as file:
            while file.tell() < self._n_bytes:
                n, n_tokens = _read(file, self._path, np.dtype("<u8"), 2).tolist()
                keys = _read(file, self._path, np.dtype("<u8"), n)
                lengths = _read(file, self._path, np.dtype("<u4"), n).astype(np.int64)
                if not with_ids:
                    file.seek(n_tokens * self.dtype.itemsize, os.SEEK_CUR)
                ids = _read(file, self._path, self.dtype, n_tokens * with_ids)
                yield Fragments(keys, lengths, ids)


def pack(fragments: Fragments) -> bytes:
    """Return fragments as they stand in a bucket: how many fragments and ids follow, keys, lengths, ids."""
    keys, lengths, ids = fragments
    header = np.array([len(keys), len(ids)], "<u8")
    return b"".join((header.data, keys.astype("<u8").data, lengths.astype("<u4").data, ids.data))


Source = Spool | Bucket
"""What is ordered as one: the spool of a split, or a bucket."""


def shuffle(record: Record, least_tokens: int, limit_bytes: int, commit: Check, check: Check) -> None:
    """Write the documents of a spool, shuffled, as a run writes what it encodes; the state then says what is to merge.

    Takes up where the state says. About `limit_bytes` of documents are held at a time; `commit` records the state,
    `check` is called now and then and may raise.

    Raises `DiskError`; `PrepareError` when a file holds less than the state says.
    """
    state = record.state
    at = state.shuffle = state.shuffle or copy.deepcopy(SHUFFLE)
    record.clear_parts()
    written = State(run=state.run, old=state.old, **copy.deepcopy({name: at[name] for name in _WRITTEN}))
    writer = ShardWriter(record.folder, record.shard_tokens, written, record.layout, least_tokens)
    with contextlib.closing(writer):

        def save(n_bins: int) -> None:
            writer.sync()
            at.update(copy.deepcopy({name: getattr(written, name) for name in _WRITTEN}), n_bins=n_bins)
            commit()
            writer.give_names()

        for split in range(at["split"], 2):
            spool = Spool(record, split)
            write = writer.write_train if split else writer.write_val
            _shuffle_split(record, spool, limit_bytes, write, save, commit, check)
            if split == 0:
                at.update(split=1, n_buckets=0, parted_tokens=0, parted_eot=0, n_bins=0)
                state.parts = _without_spool(state.parts)
                commit()
                spool.remove(spool.n_tokens)
        writer.finish()
    for name in ("shard_sha256", "shard_heads", "has_rest", "outputs"):
        setattr(state, name, getattr(written, name))
    state.parts = _without_spool(state.parts) | written.parts
    state.shuffle, state.status = {}, MERGING
    commit()


def clear_spool(record: Record) -> None:
    """Delete what held the documents until they were shuffled."""
    for path in own_parts(record.folder, record.run):
        if _SPOOL.fullmatch(path.name.removesuffix(f".{record.run}.part")):
            files.remove(path)


def _without_spool(parts: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Return what a state says of temporary files, but for those of documents that wait."""
    return {name: part for name, part in parts.items() if not _SPOOL.fullmatch(name)}


def _shuffle_split(
    record: Record,
    spool: Spool,
    limit_bytes: int,
    write: Callable[[Ids], Any],
    save: Callable[[int], None],
    commit: Check,
    check: Check,
) -> None:
    """Write one split's documents in the order of their keys, from where the state says."""
    state = record.state
    at = state.shuffle
    cost = spool.n_tokens * spool.dtype.itemsize + spool.n_documents * FRAGMENT_BYTES
    if not at["n_buckets"]:
        at["n_buckets"] = min(-(-cost * 9 // 8 // limit_bytes), MOST_BUCKETS) if cost > limit_bytes else 1
    n_buckets = at["n_buckets"]
    log.info(f"shuffling {counted(spool.n_documents, 'document')}" + f", in {n_buckets} parts" * (n_buckets > 1))
    if n_buckets == 1:
        bins = (at["n_bins"], N_BINS)
        ranges = [Range(*bins, cost)] if cost <= limit_bytes else _iter_ranges(spool, bins, limit_bytes, check)
        _write_ordered(spool, ranges, limit_bytes, write, save, check)
        return
    paths = [record.folder / f"prepare.bucket_{number:04d}.bin" for number in range(n_buckets)]
    _part(paths, state, spool, commit, check)
    for number, path in enumerate(paths):
        start, stop = -(-number * N_BINS // n_buckets), -(-(number + 1) * N_BINS // n_buckets)
        if at["n_bins"] < stop:
            bucket = Bucket(files.part_path(path, state.run), state.parts[path.name][0], spool.dtype)
            ranges = _iter_ranges(bucket, (max(start, at["n_bins"]), stop), limit_bytes, check)
            _write_ordered(bucket, ranges, limit_bytes, write, save, check)
        files.remove(files.part_path(path, state.run))


def _part(paths: list[Path], state: State, spool: Spool, commit: Check, check: Check) -> None:
    """Copy the spool into buckets by ranges of the keys, and delete what was copied."""
    at, n_buckets = state.shuffle, len(paths)
    spool.remove(at["parted_tokens"])
    if at["parted_tokens"] == spool.n_tokens:
        return
    with contextlib.ExitStack() as opened:
        parts = []
        for path in paths:
            n_bytes, sha256 = state.parts.get(path.name, (0, ""))
            part = files.Part(path, n_bytes, run=state.run, sha256=sha256, check=check)
            parts.append(opened.enter_context(contextlib.closing(part)))
        done = at["parted_tokens"]
        for fragments, n_eot in spool.read(done, at["parted_eot"]):
            check()
            numbers = fragments.bins * n_buckets >> 32
            order = np.argsort(numbers, kind="stable")
            bounds = np.searchsorted(numbers[order], np.arange(n_buckets + 1))
            for part, start, stop in zip(parts, bounds[:-1], bounds[1:], strict=True):
                if start < stop:
                    part.write(pack(fragments.take(order[start:stop])))
            done += len(fragments.ids)
            if done - at["parted_tokens"] >= COMMIT_TOKENS or done == spool.n_tokens:
                for part in parts:
                    part.sync()
                state.parts |= {part.path.name: [part.n_bytes, part.sha256] for part in parts}
                at.update(parted_tokens=done, parted_eot=n_eot)
                commit()
                spool.remove(done)


def _write_ordered(
    source: Source,
    ranges: Iterable[Range],
    limit_bytes: int,
    write: Callable[[Ids], Any],
    save: Callable[[int], None],
    check: Check,
) -> None:
    """Write the documents of some ranges in the order of their keys, and save after each."""
    for part in ranges:
        iter_ids = _iter_held if part.n_bytes <= limit_bytes else _iter_long
        for ids in iter_ids(source, part, check):
            check()
            write(ids)
        save(part.stop)


def _iter_ranges(source: Source, bins: tuple[int, int], limit_bytes: int, check: Check) -> Iterator[Range]:
    """Yield ranges of bins whose documents take `limit_bytes`, and what they take; of a single bin it may be more."""
    first, last = bins
    width = -(-(last - first) // _N_SLOTS)
    costs = np.zeros(_N_SLOTS)
    for fragments in source.iter_fragments(with_ids=False):
        check()
        fragments = fragments.within(first, last)
        slots = (fragments.bins - first) // width
        costs += np.bincount(slots, fragments.lengths * source.dtype.itemsize + FRAGMENT_BYTES, _N_SLOTS)
    start, total = first, 0
    for slot, cost in enumerate(costs.astype(np.int64).tolist()):
        here = min(first + slot * width, last)
        if total + cost > limit_bytes and start < here:
            yield Range(start, here, total)
            start, total = here, 0
        total += cost
        if cost > limit_bytes and width > 1:
            start, total = min(here + width, last), 0
            yield from _iter_ranges(source, (here, start), limit_bytes, check)
    if start < last:
        yield Range(start, last, total)


def _iter_held(source: Source, part: Range, check: Check) -> Iterator[Ids]:
    """Yield the ids of the documents of a range, in the order of their keys, in pieces; all of them are held."""
    held, n_held = np.empty(part.n_bytes // source.dtype.itemsize, source.dtype), 0
    tables = []
    for fragments in source.iter_fragments():
        check()
        chosen = fragments.within(part.start, part.stop)
        held[n_held : n_held + len(chosen.ids)] = chosen.ids
        n_held += len(chosen.ids)
        tables.append(chosen[:2])
    if not tables:
        return
    keys, lengths = (np.concatenate(column) for column in zip(*tables, strict=True))
    order = np.argsort(keys, kind="stable")
    starts, lengths = (np.cumsum(lengths) - lengths)[order], lengths[order]
    first, ends = 0, np.cumsum(lengths)
    while first < len(ends):
        n_before = int(ends[first - 1]) if first else 0
        last = max(int(np.searchsorted(ends, n_before + PIECE_TOKENS, "right")), first + 1)
        yield gather(held, starts[first:last], lengths[first:last])
        first = last


def _iter_long(source: Source, part: Range, check: Check) -> Iterator[Ids]:
    """Yield the same of a range that is too large to be held: document by document, from first to last fragment."""
    tables = (table.within(part.start, part.stop) for table in source.iter_fragments(with_ids=False))
    for key in sorted({key for table in tables for key in table.keys.tolist()}):
        for fragments in source.iter_fragments():
            check()
            yield fragments.of(np.uint64(key)).ids


def _open(path: Path) -> BinaryIO:
    with files.disk_errors(path):
        return os.fdopen(files.open_regular(path, os.O_RDONLY), "rb")


def _read(file: BinaryIO, path: Path, dtype: np.dtype[Any], n: int) -> npt.NDArray[Any]:
    """Read `n` numbers; `PrepareError` where there are fewer."""
    data = file.read(n * dtype.itemsize)
    if len(data) < n * dtype.itemsize:
        raise files.changed(path, file.tell(), file.tell() + n * dtype.itemsize - len(data))
    return np.frombuffer(data, dtype)
