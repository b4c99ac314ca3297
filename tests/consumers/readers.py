"""What the trainers' readers ask of a folder, restated in our words; each takes it as the trainer would, or refuses.

Sources: nanoGPT's `train.py`; build-nanogpt's `train_gpt2.py` (`DataLoaderLite`); llm.c's `llmc/dataloader.h` and
`train_gpt2.py`; modded-nanogpt's `train_gpt.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

C_INT_MAX = 2**31 - 1
END_OF_TEXT = 50256
MODDED_VAL_TOKENS = 10_485_760


class Refused(Exception):
    """The reader stops, or reads past the end."""


def need(is_so: object, what: str) -> None:
    if not is_so:
        raise Refused(what)


def read_nanogpt(folder: Path, batch: int, block: int, ranks: int) -> None:
    """Random windows: there must be one more place to begin at than none, in each split."""
    for split in ("train", "val"):
        data = np.memmap(folder / f"{split}.bin", dtype=np.uint16, mode="r")
        need(len(data) - block > 0, f"{split}: no place for a window of {block} and its targets")
        last = len(data) - block - 1
        need(len(data[last + 1 : last + 1 + block]) == block, f"{split}: targets are cut")
        need(data.max() <= END_OF_TEXT, f"{split}: an id that the model has not")


def read_build_nanogpt(folder: Path, batch: int, block: int, ranks: int) -> None:
    """Every name with the split in it is loaded as `.npy`; each process takes its part of each step of each shard."""
    for split in ("train", "val"):
        names = sorted(name for name in os.listdir(folder) if split in name)
        need(names, f"no shards of {split}")
        for name in names:
            try:
                tokens = np.load(folder / name).astype(np.int32)
            except ValueError as error:
                raise Refused(f"{name}: {error}") from None
            for rank in range(ranks):
                place = batch * block * rank
                step = tokens[place : place + batch * block + 1]
                need(len(step) == batch * block + 1, f"{name}: too short for rank {rank}")


def _read_llmc_shard(path: Path) -> tuple[np.ndarray, int]:
    header = np.fromfile(path, "<i4", 256)
    need(len(header) == 256 and header[0] == 20240520, f"{path.name}: bad magic")
    need(header[1] == 1, f"{path.name}: bad version")
    n_tokens = int(header[2])
    need(n_tokens > 0, f"{path.name}: no tokens")
    need(path.stat().st_size == 256 * 4 + 2 * n_tokens, f"{path.name}: file size is not as expected")
    need(path.stat().st_size <= C_INT_MAX, f"{path.name}: more than 2 GiB, and places are ints")
    return np.fromfile(path, "<u2", offset=1024), n_tokens


def read_llmc(folder: Path, batch: int, block: int, ranks: int) -> None:
    """All shards of both patterns are looked at before the first step."""
    is_fineweb = bool(list(folder.glob("fineweb_*.bin")))
    for pattern in ("fineweb_train_*.bin", "fineweb_val_*.bin") if is_fineweb else ("train_shard_*.bin", "val.bin"):
        paths = sorted(folder.glob(pattern))
        need(paths, f"no files found matching the pattern: {pattern}")
        for path in paths:
            tokens, n_tokens = _read_llmc_shard(path)
            need(n_tokens >= ranks * batch * block + 1, f"{path.name}: fewer tokens than a step of all processes")
            need(len(tokens) == n_tokens, f"{path.name}: cut")


def read_modded_nanogpt(folder: Path, batch: int, block: int, ranks: int) -> None:
    """llm.c's header; val of a fixed size; windows begin at end-of-text ids; the next shard is read ahead."""
    val = [_read_llmc_shard(path)[0] for path in sorted(folder.glob("*val*.bin"))]
    need(sum(map(len, val)) >= MODDED_VAL_TOKENS, "val is too short")
    paths = sorted(folder.glob("*train_*.bin"))
    need(len(paths) >= 2, "one shard, and the next is read ahead")
    for path in paths:
        tokens, _ = _read_llmc_shard(path)
        need((tokens == END_OF_TEXT).any(), f"{path.name}: no end-of-text to begin at")


READERS: dict[str, Callable[[Path, int, int, int], None]] = {
    "nanogpt": read_nanogpt,
    "npy": read_build_nanogpt,
    "llmc": read_llmc,
    "llmc-fineweb": read_llmc,
    "modded-nanogpt": read_modded_nanogpt,
}
