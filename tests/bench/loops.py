"""What people run today, told again in our own words: each turns `corpus.parquet` into files of ids in a folder.

    python -m tests.bench.loops NAME CORPUS_FOLDER OUT

What is left out, always in their favour: progress bars, downloads, the conversion of parquet to the datasets library's
own format (made once, before the timed runs), and building GPT-2's encoding from files (ours comes from the package).
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import sys
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

N_PROCESSES = 2
SHARD_TOKENS = 100_000_000


@functools.cache
def gpt2() -> Any:
    """Return GPT-2's encoding, and put it where `tiktoken.get_encoding` looks: then no copy of it needs the network."""
    import tiktoken

    from fineweb_stream.tokenizer.gpt2 import tiktoken_encoding

    tiktoken.registry.ENCODINGS["gpt2"] = tiktoken_encoding()
    return tiktoken.get_encoding("gpt2")


def load_rows(folder: Path) -> Any:
    """Return the rows as the datasets library has them, its cache beside the corpus."""
    import datasets

    datasets.disable_caching()  # else a second `map` would find the results of the first
    path = str(folder / "corpus.parquet")
    return datasets.load_dataset("parquet", data_files=path, split="train", cache_dir=str(folder / "datasets"))


def iter_rows(folder: Path) -> Iterable[dict[str, Any]]:
    """The rows as `load_dataset` iterates over them: dicts of all columns; where it is not installed, pyarrow's."""
    try:
        return load_rows(folder)
    except ImportError:
        import pyarrow.parquet as pq

        batches = pq.ParquetFile(folder / "corpus.parquet").iter_batches(1000)
        return (row for batch in batches for row in batch.to_pylist())


# ---- build-nanogpt, fineweb.py ----


def ids_of_row(row: dict[str, Any]) -> np.ndarray:
    """One task of the pool: one document, its end-of-text id in front."""
    encoding = gpt2()  # built before the fork
    ids = np.array([encoding.eot_token, *encoding.encode_ordinary(row["text"])])
    assert ids.min() >= 0 and ids.max() < 2**16
    return ids.astype(np.uint16)


def build_nanogpt(folder: Path, out: Path) -> None:
    """A pool, one document a task; a preallocated shard that is filled, saved as .npy, and filled again."""
    gpt2()
    rows = iter_rows(folder)
    shard = np.empty(SHARD_TOKENS, np.uint16)
    n_shards = n_tokens = 0
    with multiprocessing.get_context("fork").Pool(N_PROCESSES) as pool:
        for ids in pool.imap(ids_of_row, rows, chunksize=16):
            room = SHARD_TOKENS - n_tokens
            head, tail = ids[:room], ids[room:]
            shard[n_tokens : n_tokens + len(head)] = head
            n_tokens += len(head)
            if len(ids) >= room:
                np.save(out / f"shard_{n_shards:06}", shard)
                n_shards += 1
                shard[: len(tail)] = tail
                n_tokens = len(tail)
    if n_tokens:
        np.save(out / f"shard_{n_shards:06}", shard[:n_tokens])


# ---- nanoGPT, data/openwebtext/prepare.py ----


def openwebtext(folder: Path, out: Path) -> None:
    """Random split, `map` over documents in two processes, then each split into a memmap in 1024 steps."""
    import multiprocess

    multiprocess.set_start_method("fork", force=True)
    encoding = gpt2()
    splits = load_rows(folder).select_columns(["text"]).train_test_split(test_size=0.0005, seed=2357, shuffle=True)

    def encode(row: dict[str, Any]) -> dict[str, Any]:
        ids = encoding.encode_ordinary(row["text"])
        ids.append(encoding.eot_token)
        return {"ids": ids, "len": len(ids)}

    encoded = splits.map(encode, remove_columns=["text"], num_proc=N_PROCESSES)
    for name, rows in encoded.items():
        n_tokens = int(np.sum(rows["len"], dtype=np.uint64))
        target = np.memmap(out / f"{name}.bin", np.uint16, mode="w+", shape=(n_tokens,))
        n_steps, start = min(1024, len(rows)), 0  # theirs has more than 1024 documents in either split
        for step in range(n_steps):
            part = rows.shard(num_shards=n_steps, index=step, contiguous=True).with_format("numpy")
            ids = np.concatenate(part["ids"])
            target[start : start + len(ids)] = ids
            start += len(ids)
        target.flush()


# ---- the plain streaming script ----


def plain(folder: Path, out: Path) -> None:
    """One process: read, encode, extend a buffer, write it when it is large."""
    encoding = gpt2()
    buffer = array("H")
    with (out / "train.bin").open("wb") as file:
        for text in _iter_texts(folder):
            buffer.extend(encoding.encode_ordinary(text))
            buffer.append(encoding.eot_token)
            if len(buffer) >= 1_000_000:
                buffer.tofile(file)
                buffer = array("H")
        buffer.tofile(file)


def _iter_texts(folder: Path) -> Iterator[str]:
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(folder / "corpus.parquet").iter_batches(1000, columns=["text"]):
        yield from batch.column(0).to_pylist()


def rows_come_from() -> str:
    try:
        import datasets
    except ImportError:
        return "pyarrow (datasets is not installed)"
    return f"datasets {datasets.__version__}"


if __name__ == "__main__":
    loop = {"build-nanogpt": build_nanogpt, "openwebtext": openwebtext, "plain": plain}[sys.argv[1]]
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    loop(Path(sys.argv[2]), Path(sys.argv[3]))
    print(json.dumps({"rows": rows_come_from()} if loop is build_nanogpt else {}))
