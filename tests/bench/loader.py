"""`batches` beside nanoGPT's `get_batch`, restated in NumPy: `python tests/bench/loader.py [FILE]`, batches per second.

The file is in the page cache and the batches go nowhere: it is what the loaders themselves cost. Passes interleave.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from fineweb_stream import batches, open_tokens

BLOCK_SIZE, BATCH_SIZE, N_BATCHES, N_PASSES = 1024, 12, 2000, 5


def get_batch(path: Path, rng: np.random.Generator) -> tuple[Any, Any]:
    """Random windows with replacement; the map is made anew for each batch, as nanoGPT does against a leak."""
    data = np.memmap(path, dtype=np.uint16, mode="r")
    starts = rng.integers(0, len(data) - BLOCK_SIZE, BATCH_SIZE)
    x = np.stack([data[i : i + BLOCK_SIZE].astype(np.int64) for i in starts])
    y = np.stack([data[i + 1 : i + 1 + BLOCK_SIZE].astype(np.int64) for i in starts])
    return x, y


def take_random(path: Path) -> None:
    rng = np.random.default_rng(0)
    for _ in range(N_BATCHES):
        get_batch(path, rng)


def take_once(path: Path) -> None:
    found = batches(open_tokens(path), BLOCK_SIZE, BATCH_SIZE)
    for _ in itertools.islice(found, N_BATCHES):
        pass


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(sys.argv[1]) if sys.argv[1:] else Path(folder, "train.bin")
        if not sys.argv[1:]:
            np.random.default_rng(0).integers(0, 50257, 50_000_000, np.uint16).tofile(path)
        loaders: dict[str, Callable[[Path], None]] = {"get_batch": take_random, "batches": take_once}
        seconds: dict[str, list[float]] = {name: [] for name in loaders}
        for _ in range(N_PASSES):
            for name, take in loaders.items():
                start = time.perf_counter()
                take(path)
                seconds[name].append(time.perf_counter() - start)
        for name, times in seconds.items():
            print(
                f"{name}: {N_BATCHES / statistics.median(times):,.0f} batches of {BATCH_SIZE} x {BLOCK_SIZE} a second"
            )


if __name__ == "__main__":
    main()
