"""Cases that time themselves: what a part of the work costs alone, without start-up and without the other parts.

    python -m tests.bench.inside CASE CORPUS_FOLDER

Prints one line of JSON with `seconds`, and the process's CPU time as `cpu_seconds`.
"""

from __future__ import annotations

import codecs
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .corpus import iter_jsonl, iter_parquet

BATCH_CHARS = 1 << 20  # about what a block of ours holds
Timed = dict[str, float]


def timed(work: Callable[[], Any]) -> Timed:
    """Do the work; return what it cost in wall and CPU time (of all threads)."""
    time.sleep(0.2)  # numpy's OpenBLAS threads spin for a while after they were made: not this work's CPU time
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}


def exhaust(items: Iterable[Any]) -> None:
    for _ in items:
        pass


def batches(texts: Iterable[str]) -> list[list[str]]:
    found, n_chars = [[]], 0
    for text in texts:
        if n_chars >= BATCH_CHARS:
            found.append([])
            n_chars = 0
        found[-1].append(text)
        n_chars += len(text)
    return found


# ---- encoding, from memory ----


def encode_tiktoken_ordinary(folder: Path) -> Timed:
    """The base: tiktoken's own `encode_ordinary`, one document after the other."""
    from fineweb_stream.tokenizer.gpt2 import tiktoken_encoding

    encoding, texts = tiktoken_encoding(), list(iter_parquet(folder / "corpus.parquet"))
    return timed(lambda: exhaust(map(encoding.encode_ordinary, texts)))


def encode_tiktoken_batch(folder: Path, n_threads: int) -> Timed:
    """Its `encode_ordinary_batch`, about a MiB of documents a call: the lists of all would fill memory."""
    from fineweb_stream.tokenizer.gpt2 import tiktoken_encoding

    encoding, groups = tiktoken_encoding(), batches(iter_parquet(folder / "corpus.parquet"))
    return timed(lambda: exhaust(encoding.encode_ordinary_batch(group, num_threads=n_threads) for group in groups))


def encode(folder: Path, engine: str, n_threads: int) -> Timed:
    """Our Encoder over documents, end-of-text ids included, in as many threads."""
    return _encode(batches(iter_parquet(folder / "corpus.parquet")), engine, n_threads, eot=True)


def encode_text(folder: Path, engine: str, n_threads: int) -> Timed:
    """Our Encoder over one long text, in chunks cut where no id changes."""
    from fineweb_stream.tokenizer.cuts import iter_pieces

    data = (folder / "corpus.txt").read_bytes()
    pieces = [piece.decode() for piece in iter_pieces(data, BATCH_CHARS)]
    return _encode([[piece] for piece in pieces], engine, n_threads, eot=False)


def _encode(groups: list[list[str]], engine: str, n_threads: int, eot: bool) -> Timed:
    from fineweb_stream import Encoder

    encoder = Encoder(engine)
    with ThreadPoolExecutor(n_threads) as pool:
        exhaust(pool.map(lambda _: encoder.encode(["warm up"]), range(n_threads)))
        return timed(lambda: exhaust(pool.map(lambda group: len(encoder.encode(group, eot=eot)[0]), groups)))


# ---- reading, without encoding ----


def read_parquet(folder: Path) -> Timed:
    """The text column to str, one row group after the other."""
    return _read(iter_parquet, folder, "parquet")


def read_jsonl(folder: Path) -> Timed:
    """Lines to str, by orjson where installed."""
    return _read(iter_jsonl, folder, "jsonl")


def read_txt(folder: Path) -> Timed:
    """UTF-8 to str, 64 KiB at a time: with a MiB, giving the memory back and forth would take most of the time."""
    return _read(_iter_decoded, folder, "txt")


def _read(iter_texts: Callable[[Path], Iterator[str]], folder: Path, kind: str) -> Timed:
    exhaust(iter_texts(folder / f"tiny.{kind}"))  # imports are start-up
    return timed(lambda: exhaust(iter_texts(folder / f"corpus.{kind}")))


def _iter_decoded(path: Path) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    with path.open("rb", buffering=0) as file:
        while data := file.read(1 << 16):
            yield decoder.decode(data)


# ---- what limits ----


def bare_parquet(folder: Path, n_threads: int) -> Timed:
    """The bare pipeline: a row group, its documents joined by Arrow, one call of gigatoken, uint16.

    Each thread has a tokenizer of its own, because a text of this length would wait for the other's.
    """
    import pyarrow.parquet as pq

    from fineweb_stream.inputs.column import batch_of_array
    from fineweb_stream.tokenizer.engines import Gigatoken
    from fineweb_stream.tokenizer.gpt2 import GPT2

    engines = [Gigatoken(GPT2) for _ in range(n_threads)]

    def encode_groups(first: int) -> None:
        engine = engines[first]
        file = pq.ParquetFile(folder / "corpus.parquet", pre_buffer=False)
        for i in range(first, file.num_row_groups, n_threads):
            column = file.read_row_group(i, ["text"], use_threads=False).column(0)
            batch = batch_of_array(column.cast("large_string").combine_chunks(), 0)
            engine(batch.data, batch.ends).astype(GPT2.dtype)

    with ThreadPoolExecutor(n_threads) as pool:
        return timed(lambda: exhaust(pool.map(encode_groups, range(n_threads))))


def lock(folder: Path, kind: str) -> Timed:
    """How long the global lock is held in a whole run: see `gil.py`."""
    from .gil import sample_lock

    return sample_lock(folder / f"corpus.{kind}")


# ---- the cross-check ----


def check_share(folder: Path) -> Timed:
    """CPU time of a whole run in this process, and the share of it that the same run without the cross-check saves.

    The worker's constants that say how much is checked are set to 0 for that. The check at the engine's start is in
    neither: the encoder is made in a run before these, which also warms what is slow the first time. Of the four runs
    the middle two are checked, so that a drift hits both kinds alike.
    """
    from fineweb_stream.pipeline import worker

    names = [name for name in vars(worker) if name.endswith("CHECK_BYTES")]
    assert names, "fineweb_stream.worker has no constant *CHECK_BYTES: how is the cross-check set now?"
    values = {name: getattr(worker, name) for name in names}
    run_here(folder / "corpus.parquet")
    checked, unchecked = [], []
    for is_checked in (False, True, True, False):
        for name, value in values.items():
            setattr(worker, name, value if is_checked else 0)
        (checked if is_checked else unchecked).append(run_here(folder / "corpus.parquet"))
    share = 1 - sum(run["cpu_seconds"] for run in unchecked) / sum(run["cpu_seconds"] for run in checked)
    return checked[0] | {"share": share}


def run_here(path: Path) -> Timed:
    from fineweb_stream import prepare

    with tempfile.TemporaryDirectory(dir=path.parent) as out:
        return timed(lambda: prepare(path, out, engine="gigatoken", workers=1, quiet=True))


CASES: dict[str, Callable[[Path], Timed]] = {
    "encode-tiktoken-ordinary": encode_tiktoken_ordinary,
    "encode-tiktoken-batch-1": lambda folder: encode_tiktoken_batch(folder, 1),
    "encode-tiktoken-batch-2": lambda folder: encode_tiktoken_batch(folder, 2),
    "encode-tiktoken-1": lambda folder: encode(folder, "tiktoken", 1),
    "encode-tiktoken-2": lambda folder: encode(folder, "tiktoken", 2),
    "encode-gigatoken-1": lambda folder: encode(folder, "gigatoken", 1),
    "encode-gigatoken-2": lambda folder: encode(folder, "gigatoken", 2),
    "encode-txt-gigatoken-1": lambda folder: encode_text(folder, "gigatoken", 1),
    "encode-txt-gigatoken-2": lambda folder: encode_text(folder, "gigatoken", 2),
    "read-parquet": read_parquet,
    "read-jsonl": read_jsonl,
    "read-txt": read_txt,
    "bare-parquet-1": lambda folder: bare_parquet(folder, 1),
    "bare-parquet-2": lambda folder: bare_parquet(folder, 2),
    "gil-parquet": lambda folder: lock(folder, "parquet"),
    "gil-jsonl": lambda folder: lock(folder, "jsonl"),
    "gil-txt": lambda folder: lock(folder, "txt"),
    "check-share": check_share,
}

if __name__ == "__main__":
    print(json.dumps(CASES[sys.argv[1]](Path(sys.argv[2]))))
