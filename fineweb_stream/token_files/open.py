"""`train.bin`, or the shards where it is not there (yet), as one array that stays on disk, in any layout.

Not covered: ids of more than 16 bits.
"""

from __future__ import annotations

import errno
import operator
import os
import re
import struct
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, overload

import numpy as np
import numpy.typing as npt

from ..output.layouts import ID_BYTES, LAYOUTS, LLMC, LLMC_MAGIC, LLMC_VERSION, NPY_MAGIC
from ..output.shards import TRAIN_NAME, shard_path
from ..support.errors import InputError
from ..tokenizer.ids import TOKEN_DTYPE, Ids


def open_tokens(path: str | os.PathLike[str], split: str = "train") -> Tokens:
    """Open a token file, or the split of a folder that `prepare` filled, without reading it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for number, ids in enumerate([[15496, 11], [995, 50256]]):
    ...         np.array(ids, TOKEN_DTYPE).tofile(shard_path(Path(folder), number))
    ...     tokens = open_tokens(folder)
    ...     len(tokens), tokens[1:3].tolist(), int(tokens[-1])
    (4, [11, 995], 50256)

    Of a folder, `split="val"` opens `val.bin`; `split="train"` opens `train.bin`, or else all its
    `train_shard_NNNN.bin` in order, so that training can start before they are merged; or `val.npy` and the `.npy`
    shards. `split` says nothing of a file. Headers of llm.c and NumPy are known by what they hold, not by the name.

    Raises `InputError` for what is missing, empty, of an odd number of bytes, a shard short, or not as its header says.
    """
    path = Path(path)
    if split not in ("train", "val"):
        raise InputError(f"no such split: {split!r}", "train or val")
    if not path.is_dir():
        return Tokens([path])
    if split == "val":
        names = [path / layout.val_name for layout in LAYOUTS.values()]
        return Tokens([next((name for name in names if name.exists()), names[0])])
    whole = path / TRAIN_NAME
    return Tokens([whole] if whole.exists() else _find_shards(path))


class Tokens:
    """One read-only array of ids (uint16) over one or more memory-mapped files; `paths` names them, in order.

    `starts` are the bytes at which their ids begin: 0, or where a header ends.

    It is indexed as the array would be: by integers, slices of any step, and arrays or lists of integers. A slice is
    read-only; inside one file it is a view that costs nothing, across files a copy. `np.asarray` gives the whole.
    Pickled, it holds the paths alone: a data loader's workers open the files again.

    Raises `IndexError` past the ends, `TypeError` for other keys, `InputError` as `open_tokens` does.
    """

    dtype = TOKEN_DTYPE

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)
        maps = [_map(path) for path in self.paths]
        self.starts = tuple(start for start, _ in maps)
        self._parts = [ids for _, ids in maps]
        self._ends: list[int] = np.cumsum([len(part) for part in self._parts]).tolist()

    def __len__(self) -> int:
        return self._ends[-1]

    def __repr__(self) -> str:
        return f"<Tokens: {len(self):,} in {self.name}>"

    def __reduce__(self) -> tuple[type[Tokens], tuple[tuple[Path, ...]]]:
        return Tokens, (self.paths,)

    @property
    def name(self) -> str:
        """What to call it: the first file, and how many more there are."""
        return str(self.paths[0]) + (f" and {len(self.paths) - 1:,} more" if len(self.paths) > 1 else "")

    @property
    def shape(self) -> tuple[int]:
        """As an array's."""
        return (len(self),)

    def locate(self, place: int) -> tuple[Path, int]:
        """Return the file in which a token stands, and its place there."""
        number = bisect_right(self._ends, place)
        return self.paths[number], place - self._ends[number] + len(self._parts[number])

    @overload
    def __getitem__(self, key: int | np.integer[Any]) -> np.uint16: ...

    @overload
    def __getitem__(self, key: slice | npt.NDArray[np.integer[Any]] | list[int]) -> Ids: ...

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            places = range(len(self))[key]
            ids = self._gather(places) if places.step > 0 else self._gather(places[::-1])[::-1]
            ids.flags.writeable = False  # also a copy: where files end must not change what a script may do
            return ids
        if isinstance(key, list) or getattr(key, "ndim", None):
            return self._take(np.asarray(key, None if len(key) else np.intp))
        place = operator.index(key)
        if not -len(self) <= place < len(self):
            raise IndexError(f"place {place:,} is not within {len(self):,} tokens")
        number = bisect_right(self._ends, place % len(self))
        return self._parts[number][place % len(self) - self._ends[number]]  # negative: counted from the file's end

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Return all ids as NumPy asks for them; over several files, or with another dtype, that takes their memory."""
        dtype = TOKEN_DTYPE if dtype is None else np.dtype(dtype)
        is_view = len(self._parts) == 1
        if copy is False and not (is_view and dtype == TOKEN_DTYPE):
            raise ValueError(f"the ids of {len(self._parts):,} files cannot be an array of {dtype} without a copy")
        return self._gather(range(len(self))).astype(dtype, copy=bool(copy) and is_view)

    def _gather(self, places: range) -> Ids:
        """Return the ids at ascending places: a view if they are in one file."""
        if not places:
            return self._parts[0][:0]
        pieces = []
        for number in range(bisect_right(self._ends, places[0]), bisect_right(self._ends, places[-1]) + 1):
            start = self._ends[number] - len(self._parts[number])
            n_before = max(0, -((places.start - start) // places.step))
            first = places.start + n_before * places.step - start
            pieces.append(self._parts[number][first : places.stop - start : places.step])
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _take(self, index: npt.NDArray[Any]) -> Ids:
        """Return the ids at any places, in the shape of `index`."""
        if not np.issubdtype(index.dtype, np.integer):
            raise TypeError(f"tokens are indexed by integers and slices, not by {index.dtype}")
        places = index.astype(np.int64)
        if places.size and not -len(self) <= places.min() <= places.max() < len(self):
            raise IndexError(f"places {places.min():,} to {places.max():,} are not all within {len(self):,} tokens")
        places = np.where(places < 0, places + len(self), places)
        ids = np.empty(places.shape, TOKEN_DTYPE)
        numbers = np.searchsorted(self._ends, places, side="right")
        for number in np.unique(numbers).tolist():
            is_here = numbers == number
            ids[is_here] = self._parts[number][places[is_here] - self._ends[number]]  # negative, as above
        return ids


def _find_shards(folder: Path) -> list[Path]:
    """Return the paths of all shards, in order."""
    names = [path.name for path in folder.iterdir()]
    for layout in LAYOUTS.values():
        matches = (re.fullmatch(rf"train_shard_(\d{{4,}})\{layout.suffix}", name) for name in names)
        if numbers := {int(match.group(1)) for match in matches if match}:
            break
    else:
        raise InputError(
            f"{folder}: neither {TRAIN_NAME} nor train_shard_0000.bin in this folder",
            "a run that is not finished is continued by its own command; else name the folder that prepare.py filled,"
            f" or fill it: python prepare.py INPUT --out {folder}",
        )
    missing = min(set(range(len(numbers) + 1)) - numbers)
    if missing < len(numbers):
        raise InputError(
            f"{shard_path(folder, missing, layout)}: this shard is missing, and later ones are there",
            f"copy it there too; or, if a run was stopped while it merged, let the same command finish {TRAIN_NAME}",
        )
    return [shard_path(folder, number, layout) for number in range(len(numbers))]


def _map(path: Path) -> tuple[int, Ids]:
    """Map a file; return the byte at which its ids begin, and them: uint16, shape (number of ids,)."""
    try:
        with path.open("rb") as file:
            n_bytes = os.fstat(file.fileno()).st_size
            start, n_ids = _find_ids(file, path, n_bytes)
        if n_ids == 0:
            raise InputError(f"{path}: the file is empty", "make it again, or name another file")
        if start + n_ids * ID_BYTES != n_bytes:
            what = f"its header says {n_ids:,} ids" if start else "an odd number: not a whole number of 2-byte ids"
            raise InputError(
                f"{path}: {n_bytes:,} bytes, {what}",
                "was it copied completely? Copy or make it again; text is made into ids by prepare.py",
            )
        ids = np.memmap(path, TOKEN_DTYPE, "r", start, (n_ids,))
        return start, ids.view(np.ndarray)  # it slices nine times as fast
    except FileNotFoundError:
        hint = f"check the path, or make it: python prepare.py INPUT --out {path.parent}"
        raise InputError(f"{path}: no such file", hint) from None
    except OSError as error:
        is_limit = error.errno == errno.EMFILE  # every map holds a file open
        hint = "allow more (ulimit -n 65536), or merge the shards" if is_limit else "check the file's permissions"
        raise InputError(f"{path}: {error.strerror}", hint) from None


def _find_ids(file: IO[bytes], path: Path, n_bytes: int) -> tuple[int, int]:
    """Return at which byte the ids begin, and how many there are by the header, or else by the size.

    A file that only happens to begin with llm.c's magic has other numbers than a header where the rest should be zeros.
    """
    start = file.read(LLMC.header_bytes)
    if start.startswith(NPY_MAGIC):
        return _find_npy_ids(file, path)
    if len(start) == LLMC.header_bytes:
        magic, version, n_ids = struct.unpack_from("<3i", start)
        is_header = n_bytes == LLMC.n_bytes(n_ids) or start == LLMC.make_header(n_ids)
        if (magic, version) == (LLMC_MAGIC, LLMC_VERSION) and n_ids >= 0 and is_header:
            return LLMC.header_bytes, n_ids
    return 0, -(-n_bytes // ID_BYTES)


def _find_npy_ids(file: IO[bytes], path: Path) -> tuple[int, int]:
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    file.seek(0)
    try:
        shape, _, dtype = readers[np.lib.format.read_magic(file)](file)
    except (ValueError, KeyError) as error:
        raise InputError(f"{path}: its .npy header cannot be read: {error}", "copy or make it again") from None
    if dtype != TOKEN_DTYPE or len(shape) != 1:
        raise InputError(f"{path}: an array of {dtype} and shape {shape}", "ids are one row of uint16 (<u2)")
    return file.tell(), shape[0]
