"""`open_tokens`: opens `train.bin`, or the shards if it does not exist (yet), in any layout; the data stay on disk.

The manifest beside the files names the tokenizer, and so the dtype; without one, GPT-2 and uint16 are assumed.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import numpy as np

from ..output.layouts import LAYOUTS
from ..output.manifest import read_record
from ..output.own import TRAIN_NAME
from ..output.state import DONE
from ..support.errors import InputError, PrepareError
from ..support.shell import program, quoted
from ..support.units import counted
from .joined import Tokens, map_ids
from .made_by import made_by


def open_tokens(
    path: str | os.PathLike[str], split: str = "train"
) -> np.memmap[Any, np.dtype[np.unsignedinteger[Any]]] | Tokens:
    """Open a token file, or a split of a folder that `prepare` filled, without reading it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for number, ids in enumerate([[15496, 11], [995, 50256]]):
    ...         np.array(ids, np.uint16).tofile(f"{folder}/train_shard_{number:04}.bin")
    ...     tokens = open_tokens(folder)
    ...     len(tokens), tokens[1:3].tolist(), int(tokens[-1])
    (4, [11, 995], 50256)

    One file is a read-only `np.memmap` (uint16, uint32 above 65,536 ids; shape (number of ids,)).
    Several shards are `Tokens`, which is indexed and sliced like one array and refuses all other operations.

    In a folder, `split="val"` opens `val.bin`; `split="train"` opens `train.bin`, or else all `train_shard_NNNN.bin` in
    order (with `--keep-shards`, training can start before they are merged); or the files of another layout, including
    `rest.bin`. For a file, `split` is ignored. Headers of llm.c and NumPy are recognized by content, not by file name.

    Raises `InputError` for a file that is missing, unfinished, empty, truncated or not a token file (text, say), and
    for a missing shard.
    """
    paths = find_paths(path, split)
    return map_ids(paths[0]) if len(paths) == 1 else Tokens(paths)


def find_paths(path: str | os.PathLike[str], split: str = "train") -> list[Path]:
    """Return the files that `open_tokens` opens, in order."""
    path = Path(os.path.expanduser(os.fsdecode(path)))  # as `prepare` takes `out`
    if split not in ("train", "val"):
        raise InputError(f"no such split: {split!r}", "train or val")
    if not path.is_dir():
        return [path]
    begun = [layout.val_name if split == "val" else layout.shard_name(0) for layout in LAYOUTS.values()]
    wholes = begun if split == "val" else [TRAIN_NAME]
    for name in wholes:
        if (path / name).exists():
            return [path / name]
    if split == "train" and (shards := _find_shards(path)):
        return shards
    if unfinished := _not_finished(path, [*wholes, *begun]):
        raise unfinished
    if split == "val":
        return [path / wholes[0]]  # opening it raises an error that says what to do
    raise InputError(
        f"{path}: neither {TRAIN_NAME} nor train_shard_0000.bin in this folder",
        f"name the folder that prepare.py filled, or fill it: {program()} INPUT --out {quoted(str(path))}",
    )


def _find_shards(folder: Path) -> list[Path]:
    """Return the paths of all shards in order, then of the rest that is too short for one; [] without shards."""
    names = [path.name for path in folder.iterdir()]
    for layout in LAYOUTS.values():
        if numbers := {number for name in names if (number := layout.shard_number(name)) is not None}:
            break
    else:
        return []
    made = map(layout.shard_number, made_by(folder / layout.shard_name(0)).sizes)
    if missing := {*range(len(numbers)), *(number for number in made if number is not None)} - numbers:
        raise InputError(
            f"{folder / layout.shard_name(min(missing))}: this shard is missing",
            f"copy it there too; or, if a run was stopped while it merged, let the same command finish {TRAIN_NAME}",
        )
    rest = [layout.rest_name] if layout.rest_name in names else []
    return [folder / name for name in [*map(layout.shard_name, range(len(numbers))), *rest]]


def _not_finished(folder: Path, names: list[str]) -> InputError | None:
    """Return the error for a folder in which a run is writing one of these files, or was interrupted; else None."""
    saved = ""
    where = next((folder / name for name in names if any(folder.glob(f"{name}*.part"))), None)
    with contextlib.suppress(PrepareError):
        if (record := read_record(folder)) and record.state.status != DONE:
            inputs = [*record.names[:3], *["..."] * (len(record.names) > 3)]
            saved = f": {counted(record.state.n_tokens, 'token')} of {', '.join(inputs) or 'its inputs'} are saved"
            where = folder
    if where is None:
        return None
    return InputError(
        f"{where}: not finished: the run in this folder is still working, or was stopped{saved}",
        "wait for it, or run its command again: it continues",
    )
