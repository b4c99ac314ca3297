"""`batches`: every window of a token file once per epoch, in a random order that the seed decides; needs only NumPy.

The order is computed, not stored (a Feistel network over any number of windows: Black and Rogaway 2002, "Ciphers with
arbitrary finite domains"): memory does not grow with the file, and resuming at any step is immediate.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..support.errors import InputError
from ..support.units import parse_flag, parse_whole, read_as
from ..tokenizer.ids import Ids
from .joined import Tokens

_ROUNDS = 4

Numbers = npt.NDArray[np.uint64]
Batch = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]


@dataclass(frozen=True, eq=False)  # equality of the tokens would read them all
class Batches:
    """The batches of one epoch: pairs of inputs and targets, int64, shape (batch_size, block_size).

    >>> tokens = np.arange(101, dtype=np.uint16)
    >>> order = [int(x[0, 0]) for x, y in batches(tokens, block_size=10, batch_size=1, seed=1)]
    >>> order, sorted(order) == list(range(0, 100, 10))
    ([30, 20, 10, 40, 60, 50, 80, 90, 0, 70], True)
    >>> [int(x[0, 0]) for x, y in batches(tokens, 10, 1, seed=1, start=8)]  # goes on at step 8
    [0, 70]

    `tokens` is the result of `open_tokens`. Window i is the `block_size + 1` tokens from `i * block_size` on: targets
    are inputs shifted by one. All ranks together see each window once per epoch, in an order that `seed` and `epoch`
    decide; each rank has the same number of batches, from step `start` on. The last batch may be smaller, or empty for
    some ranks; with `drop_last` every batch is full, and fewer than `batch_size * world_size` windows are left out,
    different ones each epoch.

    Memory does not grow with the file. Raises `InputError` for invalid numbers.
    """

    tokens: Ids | Tokens
    block_size: int
    batch_size: int
    seed: int = 0
    rank: int = 0
    world_size: int = 1
    epoch: int = 0
    start: int = 0
    drop_last: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.tokens, str | bytes | os.PathLike):
            path = os.fspath(self.tokens)
            raise InputError(f"tokens={path!r}: a path, not tokens", f"open it first: open_tokens({path!r})")
        least = {"block_size": 1, "batch_size": 1, "seed": None, "rank": 0, "world_size": 1, "epoch": 0, "start": 0}
        for name, n in least.items():
            parse = functools.partial(parse_whole, least=n)
            object.__setattr__(self, name, read_as(name, getattr(self, name), parse))
        object.__setattr__(self, "drop_last", read_as("drop_last", self.drop_last, parse_flag))
        if self.rank >= self.world_size:
            raise InputError(f"rank={self.rank}", f"rank is from 0 to world_size - 1, {self.world_size - 1}")
        if not self.n_windows:
            raise InputError(
                f"{len(self.tokens):,} tokens, and a window needs block_size + 1, {self.block_size + 1:,}",
                "choose a smaller block_size, or other tokens",
            )
        if not self.n_steps:
            raise InputError(
                f"{self.n_windows:,} windows, too few for a full batch on each rank (drop_last)",
                f"batch_size times world_size is {self.batch_size * self.world_size:,}: choose less, or no drop_last",
            )
        if self.start > self.n_steps:
            raise InputError(f"start={self.start}", f"an epoch has {self.n_steps:,} steps")

    @property
    def n_windows(self) -> int:
        """The number of windows; tokens at the end that do not fill one are left out."""
        return max(len(self.tokens) - 1, 0) // self.block_size

    @property
    def n_steps(self) -> int:
        """The number of batches that each rank has in a whole epoch."""
        per_step = self.batch_size * self.world_size
        return self.n_windows // per_step if self.drop_last else -(-self.n_windows // per_step)

    def __len__(self) -> int:
        return self.n_steps - self.start

    def __iter__(self) -> Iterator[Batch]:
        tokens = self.tokens
        if isinstance(tokens, np.memmap):
            tokens = tokens.view(np.ndarray)  # slices nine times as fast
        for step in range(self.start, self.n_steps):
            places = np.arange(*self._places(step), dtype=np.uint64)
            windows = shuffled(places, self.n_windows, self.seed, self.epoch).astype(np.int64)
            yield self._read(tokens, (windows * self.block_size).tolist())

    def _places(self, step: int) -> tuple[int, int]:
        """Return the range of this rank's positions in a step; the ranks' numbers differ by at most one."""
        begin = step * self.batch_size * self.world_size
        n = min(self.batch_size * self.world_size, self.n_windows - begin)
        return begin + n * self.rank // self.world_size, begin + n * (self.rank + 1) // self.world_size

    def _read(self, tokens: Any, starts: list[int]) -> Batch:
        inputs = np.empty((len(starts), self.block_size), np.int64)
        targets = np.empty_like(inputs)
        for row, start in enumerate(starts):
            window = tokens[start : start + self.block_size + 1]
            inputs[row], targets[row] = window[:-1], window[1:]
        return inputs, targets


batches = Batches  # the public name


def shuffled(places: Numbers, n: int, seed: int, epoch: int) -> Numbers:
    """Return the numbers at some positions of a random permutation of range(n) (all uint64, shape (m,)).

    >>> sorted(shuffled(np.arange(5, dtype=np.uint64), 5, seed=3, epoch=0).tolist())
    [0, 1, 2, 3, 4]
    """
    rows = math.isqrt(n - 1) + 1
    columns = -(-n // rows)  # rows * columns may exceed n: larger numbers are permuted again
    keys = np.random.SeedSequence([seed % 2**64, epoch]).generate_state(_ROUNDS, np.uint64)
    numbers = _feistel(places, rows, columns, keys)
    while (is_above := numbers >= n).any():
        numbers[is_above] = _feistel(numbers[is_above], rows, columns, keys)
    return numbers


def _feistel(numbers: Numbers, rows: int, columns: int, keys: Any) -> Numbers:
    """Permute the numbers below `rows * columns`: shift row and column in turn by a hash of the other."""
    row, column = numbers // columns, numbers % columns
    for key in keys:
        row = (row + _hash(column, key) % rows) % rows
        column = (column + _hash(row, ~key) % columns) % columns
    return row * columns + column


def _hash(numbers: Numbers, key: np.uint64) -> Numbers:
    """Mix 64 bits as splitmix64 does (Steele, Lea and Flood 2014)."""
    x = (numbers ^ key) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
