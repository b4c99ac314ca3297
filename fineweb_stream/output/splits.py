"""Which ids go to `val.bin` and which to `train.bin`: the same in every run, whatever its blocks and workers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..tokenizer.ids import Ends, Ids


class Split(NamedTuple):
    """The ids of one block for each split, and how many documents each has."""

    train: Ids
    val: Ids
    train_documents: int
    val_documents: int


def place_eot(ids: Ids, ends: Ends, place: str) -> tuple[Ids, Ends]:
    """Put each document's end-of-text, now after it, where `place` says; return the ids and the documents' ends.

    >>> ids, ends = np.array([1, 2, 50256, 3, 50256], dtype=np.uint16), np.array([3, 5])
    >>> place_eot(ids, ends, "before")[0].tolist()
    [50256, 1, 2, 50256, 3]
    >>> [part.tolist() for part in place_eot(ids, ends, "both")]
    [[50256, 1, 2, 50256, 50256, 3, 50256], [4, 7]]
    """
    if place == "after" or not len(ends):
        return ids, ends
    if place == "before":
        return np.roll(ids, 1), ends  # the last one comes to the front, each other one to the next document
    starts = np.concatenate([[0], ends[:-1]])
    return np.insert(ids, starts, ids[-1]), ends + np.arange(1, len(ends) + 1)


def split_documents(
    ids: Ids, ends: Ends, first_document: int, n_val: int, *, ratio: float, tokens: int | None, seed: int, room: int
) -> Split:
    """Split the documents that end at `ends` in `ids`; the first of them is number `first_document` of the run.

    A document is in val if a 64-bit hash of its number and `seed` falls under `ratio`; number 0 always is. With
    `tokens`, documents go to val, which has `n_val` tokens so far, until it holds that many. What comes after the
    document with which train has more than `room` ids is left out, of both splits.

    >>> ids, ends = np.arange(6, dtype=np.uint16), np.array([2, 3, 6])
    >>> split = split_documents(ids, ends, 0, 0, ratio=0.0005, tokens=None, seed=0, room=9)
    >>> split.val.tolist(), split.train.tolist(), split.train_documents
    ([0, 1], [2, 3, 4, 5], 2)
    """
    if tokens is not None:
        n = int(np.searchsorted(ends, tokens - n_val)) + 1 if n_val < tokens else 0
        is_val = np.arange(len(ends)) < n
    else:
        is_val = hash_numbers(first_document, len(ends), seed) < np.uint64(ratio * 2.0**64)
        if first_document == 0:
            is_val[:1] = True
    if room < len(ids):
        n_train = np.cumsum(np.where(is_val, 0, np.diff(ends, prepend=0)))
        n = min(int(np.searchsorted(n_train, room, "right")) + 1, len(ends))
        ids, ends, is_val = ids[: ends[n - 1]], ends[:n], is_val[:n]
    n_documents = int(is_val.sum())
    if n_documents == 0:
        return Split(ids, ids[:0], len(ends), 0)
    runs = np.split(ids, ends[np.flatnonzero(is_val[1:] != is_val[:-1])])  # alternately of one split and of the other
    first = int(is_val[0])
    train, val = (np.concatenate([ids[:0], *runs[start::2]]) for start in (first, 1 - first))
    return Split(train, val, len(ends) - n_documents, n_documents)


def split_whole(ids: Ids, n_documents: int, is_val: bool) -> Split:
    """Give all ids and documents of a block to one split, if val has inputs of its own."""
    if is_val:
        return Split(ids[:0], ids, 0, n_documents)
    return Split(ids, ids[:0], n_documents, 0)


def split_text(ids: Ids, split: str | None, n_val: int, tokens: int | None) -> Split:
    """Split the ids of plain text: with `tokens` the first ones are val, else `split` names the split of the block."""
    n = min(max(tokens - n_val, 0), len(ids)) if tokens is not None else len(ids) * (split == "val")
    return Split(ids[n:], ids[:n], 0, 0)


def hash_numbers(first: int, n: int, seed: int) -> npt.NDArray[np.uint64]:
    """Hash the numbers from `first` to before `first + n` to distinct 64-bit numbers.

    By splitmix64 (Steele, Lea and Flood 2014), seeded with its own output.
    """
    start = _mix(np.array([seed % 2**64], np.uint64))
    return _mix(np.arange(first, first + n, dtype=np.uint64) + start)


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = x * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x9E3779B97F4A7C15)  # array arithmetic wraps around silently
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
