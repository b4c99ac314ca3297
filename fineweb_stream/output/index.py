"""The index of a token file, which says where its documents end: its path and format, and whether it fits a file.

The index of `train.bin` is `train.bin.index`: for each end-of-text in the file, in order, the number of tokens up to
and including it, as little-endian uint64. The index of a `.npy` file is in the folder `index` beside it, because
build-nanogpt's loader takes every name with `train` in it for a shard.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..tokenizer.ids import Ids
from . import files
from .layouts import Layout

END_DTYPE = np.dtype("<u8")

_N_LOOKS, _NEAR_TOKENS = 16, 1 << 16


def index_path(path: Path) -> Path:
    """Return the path of a token file's index.

    >>> index_path(Path("a/val.bin")).as_posix(), index_path(Path("a/val.npy")).as_posix()
    ('a/val.bin.index', 'a/index/val.npy.index')
    """
    return (path.parent / "index" if path.suffix == ".npy" else path.parent) / f"{path.name}.index"


def is_index(path: Path) -> bool:
    """Tell whether a file may be an index, by its size and its first numbers, which must ascend."""
    if not path.is_file() or path.stat().st_size % END_DTYPE.itemsize:
        return False
    ends = np.fromfile(path, END_DTYPE, 1024).astype(np.float64)
    return bool((ends < 2**48).all() and (np.diff(ends, prepend=0) > 0).all())


def map_ends(index: Path) -> npt.NDArray[Any]:
    """Map a file that has the size of an index. Raises `OSError`."""
    return np.memmap(index, END_DTYPE, "r").view(np.ndarray) if index.stat().st_size else np.empty(0, END_DTYPE)


def fits(ends: npt.NDArray[Any], ids: Ids, eot_id: int | None) -> bool:
    """Tell whether samples of an index fit: an end-of-text at each, none just before the first or after the last."""
    looks = [int(end) for end in ends[np.linspace(0, len(ends) - 1, _N_LOOKS, dtype=np.int64)]] if len(ends) else []
    if looks and not 0 < looks[0] <= looks[-1] <= len(ids):
        return False
    if any(ids[end - 1] != eot_id for end in looks):
        return False
    before, behind = (looks[0] - 1, looks[-1]) if looks else (len(ids), 0)
    near = ids[max(before - _NEAR_TOKENS, 0) : before], ids[behind : behind + _NEAR_TOKENS]
    return not any((part == eot_id).any() for part in near)


def remove_index(path: Path, layout: Layout, eot_id: int | None) -> None:
    """Delete the index of an output, if it belongs to it."""
    index = index_path(path)
    with suppress(OSError, ValueError):  # what cannot be accessed is left alone, and so is the index of no ids
        if path.suffix != layout.suffix or files.kind_of(index) or not is_index(index):
            return
        if fits(map_ends(index), np.memmap(path, layout.dtype, "r", layout.header_bytes), eot_id):
            files.remove(index)
            if index.parent != path.parent:
                index.parent.rmdir()  # fails unless it is empty
