"""`Tokens`: shards as one array of ids that a data loader can index; operations that would read all are refused."""

from __future__ import annotations

import errno
import operator
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, overload

import numpy as np
import numpy.typing as npt

from ..output.own import RECORD_NAME
from ..support.errors import InputError
from ..support.shell import program, quoted
from ..support.units import format_size
from ..tokenizer.ids import Ids
from .headers import find_ids
from .made_by import WHOSE, MadeBy, made_by

PIECE_TOKENS = 1 << 19  # read at a time (1 MiB): np.bincount takes three times as long on 8 MiB: beyond CPU caches


class Refused(TypeError, AttributeError):
    """An operation that `Tokens` does not support; an `AttributeError`, too, so that `hasattr` returns False."""


class Tokens:
    """One read-only array of ids over memory-mapped files; `paths` lists them in order, `name` is for messages.

    `starts` are the bytes at which the ids of each file begin (0, or the end of its header); `firsts` are the positions
    of each file's first token.

    Index it like an array: by integers, slices with any step, and arrays or lists of integers. A slice is a read-only
    array: inside one file a view, across files a copy. `np.asarray` copies everything. All other array operations
    (comparisons, arithmetic, NumPy's functions, `astype`) raise `TypeError`, because they would read all files. A
    pickle holds only the paths: a data loader's workers open the files again.

    Raises `IndexError` out of range, `TypeError` for other keys, `InputError` as `open_tokens` does.
    """

    ndim = 1

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)
        self.made_by = made_by(self.paths[0])
        self.dtype = self.made_by.dtype
        maps = [map_ids(path, self.made_by) for path in self.paths]
        self.starts = tuple(ids.offset for ids in maps)
        self._parts = [ids.view(np.ndarray) for ids in maps]  # slices nine times as fast
        self._ends: list[int] = np.cumsum([len(part) for part in self._parts]).tolist()
        self.firsts: tuple[int, ...] = (0, *self._ends[:-1])
        self.size: int = self._ends[-1]
        self.shape, self.nbytes = (self.size,), self.size * self.dtype.itemsize
        n_more = len(self.paths) - 1
        self.name = f"{self.paths[0]} and {n_more:,} more" if n_more else str(self.paths[0])

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"<Tokens: {len(self):,} in {self.name}>"

    def __reduce__(self) -> tuple[type[Tokens], tuple[tuple[Path, ...]]]:
        return Tokens, (self.paths,)

    def locate(self, place: int) -> tuple[Path, int]:
        """Return the file that holds a token, and the token's position in it."""
        number = bisect_right(self._ends, place)
        return self.paths[number], place - self.firsts[number]

    def iter_pieces(self) -> Iterator[Ids]:
        """Yield all ids, read rather than mapped: mapped pages count as this process's memory until reclaimed."""
        for path, start in zip(self.paths, self.starts, strict=True):
            with path.open("rb") as file:
                file.seek(start)
                while len(ids := np.fromfile(file, self.dtype, PIECE_TOKENS)):
                    yield ids

    @overload
    def __getitem__(self, key: int | np.integer[Any]) -> np.unsignedinteger[Any]: ...

    @overload
    def __getitem__(self, key: slice | npt.NDArray[np.integer[Any]] | list[int]) -> Ids: ...

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            places = range(len(self))[key]
            ids = self._gather(places) if places.step > 0 else self._gather(places[::-1])[::-1]
            ids.flags.writeable = False  # copies, too: a slice must not depend on where files end
            return ids
        if isinstance(key, list) or getattr(key, "ndim", None):
            return self._take(np.asarray(key, None if len(key) else np.intp))
        place = operator.index(key)
        if not -len(self) <= place < len(self):
            raise IndexError(f"index {place:,} is out of range ({len(self):,} tokens)")
        place %= len(self)
        number = bisect_right(self._ends, place)
        return self._parts[number][place - self.firsts[number]]

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Return a copy of all ids as one NumPy array."""
        if copy is False:
            raise ValueError(f"the ids of {len(self._parts):,} files cannot be an array without a copy")
        return np.concatenate(self._parts, dtype=self.dtype if dtype is None else dtype, casting="unsafe")

    def _refuse(self, what: str) -> NoReturn:
        raise Refused(
            f"{what} is not for tokens in {len(self.paths):,} files, which are not one array: take a slice, which is"
            f" (tokens[a:b]), or copy all into memory: np.asarray(tokens), {format_size(self.nbytes)}"
        )

    def __array_function__(self, function: Any, types: Any, inputs: Any, options: Any) -> NoReturn:
        """Refuse `np.sum(tokens)` and the like."""
        self._refuse(f"np.{function.__name__}")

    def __getattr__(self, name: str) -> NoReturn:
        if not name.startswith("_") and hasattr(np.ndarray, name):
            self._refuse(f"tokens.{name}")
        raise AttributeError(f"Tokens has no attribute {name!r}")

    def _refuse_operator(self, other: object) -> NoReturn:
        self._refuse("an operator (==, !=, in)")

    __array_ufunc__ = None  # so NumPy and Python refuse all other operators themselves
    __eq__ = __contains__ = _refuse_operator
    __hash__ = object.__hash__

    def _gather(self, places: range) -> Ids:
        """Return the ids at ascending positions: a view if they are in one file."""
        if not places:
            return self._parts[0][:0]
        pieces = []
        for number in range(bisect_right(self._ends, places[0]), bisect_right(self._ends, places[-1]) + 1):
            start = self.firsts[number]
            n_before = max(0, -((places.start - start) // places.step))
            first = places.start + n_before * places.step - start
            pieces.append(self._parts[number][first : places.stop - start : places.step])
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _take(self, index: npt.NDArray[Any]) -> Ids:
        """Return the ids at any positions, in the shape of `index`."""
        if not np.issubdtype(index.dtype, np.integer):
            raise TypeError(f"tokens are indexed by integers and slices, not by {index.dtype}")
        places = index.astype(np.int64)
        if places.size and not -len(self) <= places.min() <= places.max() < len(self):
            raise IndexError(f"places {places.min():,} to {places.max():,} are not all within {len(self):,} tokens")
        places = np.where(places < 0, places + len(self), places)
        ids = np.empty(places.shape, self.dtype)
        numbers = np.searchsorted(self._ends, places, side="right")
        for number in np.unique(numbers).tolist():
            is_here = numbers == number
            ids[is_here] = self._parts[number][places[is_here] - self.firsts[number]]
        return ids


def check_ids(ids: Ids, tokens: Tokens, start: int) -> Ids:
    """Return `ids`, which begin at position `start`; raise `InputError` if one is not the tokenizer's."""
    made = tokens.made_by
    if ids.max() >= made.n_ids:
        first = int(np.argmax(ids >= made.n_ids))
        path, place = tokens.locate(start + first)
        byte = tokens.starts[tokens.paths.index(path)] + place * tokens.dtype.itemsize
        raise InputError(
            f"{path}, token {place:,} (byte {byte:,}): id {ids[first]}, but {made.name}'s ids end at {made.n_ids - 1}",
            f"not a file of {made.name} ids as {tokens.dtype.name}: it has an unknown header, or another tokenizer or"
            " dtype made it" + (f": {WHOSE}" if made.is_assumed else ""),
        )
    return ids


def map_ids(path: Path, made: MadeBy | None = None) -> np.memmap[Any, np.dtype[np.unsignedinteger[Any]]]:
    """Map a file's ids, read-only: shape (number of ids,), in the dtype of the tokenizer that made them.

    Raises `InputError` if the file is missing, unreadable, truncated, or not a token file.
    """
    try:
        made = made or made_by(path)
        start, n_ids = find_ids(path, made.dtype)
        n_bytes = start + n_ids * made.dtype.itemsize
        if n_bytes < (n_made := made.sizes.get(path.name, 0)):
            raise InputError(
                f"{path}: {n_bytes:,} bytes, but its run made {n_made:,}, as {RECORD_NAME} says",
                "copy or make it again",
            )
        return np.memmap(path, made.dtype, "r", start, (n_ids,))
    except FileNotFoundError:
        folder = path.parent if path.suffix else path
        hint = f"check the path, or make it: {program()} INPUT --out {quoted(str(folder))}"
        raise InputError(f"{path}: no such file", hint) from None
    except OSError as error:
        is_limit = error.errno == errno.EMFILE  # every map holds a file open
        hint = "allow more (ulimit -n 65536), or merge the shards" if is_limit else "check the file's permissions"
        raise InputError(f"{path}: {error.strerror}", hint) from None
