"""Oracles: what the outputs must be, said in the plainest way; and runs that are cut up, or whose system is another."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import tiktoken

from fineweb_stream import Result, prepare
from fineweb_stream.inputs.blocks import Batch
from fineweb_stream.output.layouts import NANOGPT
from fineweb_stream.pipeline import job
from fineweb_stream.tokenizer.gpt2 import EOT_ID


def read_ids(path: Path) -> list[int]:
    """All ids of a file, read as any nanoGPT script does."""
    if path.stat().st_size == 0:
        return []
    return np.memmap(path, dtype=np.uint16, mode="r").tolist()  # type: ignore[no-any-return]


def shard_path(folder: Path, number: int) -> Path:
    """The path of one of nanoGPT's shards."""
    return folder / NANOGPT.shard_name(number)


def both_splits(folder: Path) -> list[int]:
    """The ids of val.bin followed by those of train.bin."""
    return read_ids(folder / "val.bin") + read_ids(folder / "train.bin")


def document_ids(reference: tiktoken.Encoding, documents: Sequence[str]) -> list[list[int]]:
    """C2: every document becomes its ids and an end-of-text."""
    return [[*reference.encode_ordinary(document), EOT_ID] for document in documents]


def split_at_eot(ids: Sequence[int]) -> list[list[int]]:
    """The documents of a split, each with its end-of-text."""
    documents: list[list[int]] = [[]]
    for i in ids:
        documents[-1].append(i)
        if i == EOT_ID:
            documents.append([])
    assert documents[-1] == [], "ids after the last end-of-text"
    return documents[:-1]


def write_jsonl(path: Path, documents: Sequence[str], ensure_ascii: bool = True) -> Path:
    """One JSON object a line."""
    lines = (json.dumps({"id": i, "text": d}, ensure_ascii=ensure_ascii) for i, d in enumerate(documents))
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8", newline="")
    return path


def write_parquet(path: Path, documents: Sequence[str], row_group_size: int = 100, **options: object) -> Path:
    """FineWeb's shape: text among other columns, zstd, small row groups."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    ids = options.pop("ids", None) or [f"<urn:{i}>" for i in range(len(documents))]
    table = pa.table(
        {"id": ids, "text": pa.array(documents, options.pop("type", pa.string())), "score": [0.5] * len(ids)}
    )
    pq.write_table(table, path, row_group_size=row_group_size, **({"compression": "zstd"} | options))
    return path


def outputs(folder: Path) -> dict[str, bytes]:
    """Every .bin file of a folder, by name."""
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.bin"))}


def texts_of(batch: Batch) -> list[str]:
    """The documents of a batch."""
    ends = batch.ends.tolist()
    return [str(batch.data[start:end], "utf-8") for start, end in zip([0, *ends], ends, strict=False)]


@contextlib.contextmanager
def in_blocks(block_bytes: int) -> Iterator[None]:
    """Cut inputs into blocks of another size."""

    def make_sources(*args: object) -> list[object]:
        return [replace(source, block_bytes=block_bytes) for source in real(*args)]

    real = job.make_sources
    with mock.patch.object(job, "make_sources", make_sources):
        yield


def prepare_in_blocks(block_bytes: int, inputs: object, out: Path, **options: object) -> Result:
    """As `prepare`, with blocks of another size."""
    with in_blocks(block_bytes):
        return prepare(inputs, out, quiet=True, **options)


class System:
    """Stands in for `os` in a module: what a subclass has is done its way."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


class Inline(Executor):
    """Stands in for threads: does all at once."""

    def __init__(self, *args: object) -> None:
        pass

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:  # type: ignore[override]
        future: Future[Any] = Future()
        future.set_result(function(*args))
        return future
