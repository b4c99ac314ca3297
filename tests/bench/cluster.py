"""Measure the limit of one writer: from memory, through Dask from workers that only return arrays, and as it is used.

python tests/bench/cluster.py writer                     the writer alone: ids in memory -> val.bin, train.bin, merged
python tests/bench/cluster.py arrays --workers 2         through Dask: workers return arrays, the writer takes them
python tests/bench/cluster.py arrays --workers 2 --no-writer            the same, and the client drops them
python tests/bench/cluster.py arrays --workers 2 --through-scheduler    the same, over the scheduler
python tests/bench/cluster.py encode --workers 1 2 3     through Dask: real text, encoded by gigatoken or tiktoken
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn
from unittest import mock

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ["PYTHONPATH"] = str(ROOT)  # for the worker processes

from fineweb_stream import __version__, prepare  # noqa: E402
from fineweb_stream.cluster import client  # noqa: E402
from fineweb_stream.cluster.needs import Needs, find_needs  # noqa: E402
from fineweb_stream.inputs.blocks import Block, Source  # noqa: E402
from fineweb_stream.pipeline import run  # noqa: E402
from fineweb_stream.pipeline.schedule import BLOCKS_PER_WORKER, Window  # noqa: E402
from fineweb_stream.pipeline.worker import Encoded  # noqa: E402
from fineweb_stream.support.model import Input, ReadOptions  # noqa: E402

BLOCK_TOKENS = 250_000
"""What a block of 1 MiB of English text comes to, in documents of 1,000 tokens."""


def returned_array(block: Block) -> Encoded:
    """In a worker: ids without the work of encoding."""
    ids = np.full(BLOCK_TOKENS, block.start % 50_000, np.uint16)
    ends = np.arange(1000, BLOCK_TOKENS + 1, 1000, dtype=np.int64)
    ids[ends - 1] = 50256
    return Encoded(ids, ends, block.n_bytes, len(ends), [], True, 0)


class Arrays(Source):
    """A source whose blocks cost nothing to plan."""

    unit = "line"

    def iter_blocks(self, start: int = 0) -> Iterator[Block]:
        for i in range(start >> 20, self.input.size >> 20):
            yield Block(self, i << 20, (i + 1) << 20, 1 << 20, 1 << 20)

    def read(self, block: Block) -> NoReturn:
        raise NotImplementedError

    def sample(self, n: int) -> list[Block]:
        return []


def arrays(path: str, n_blocks: int) -> Arrays:
    return Arrays(0, Input(path, "jsonl", n_blocks << 20, "", is_stream=True), ReadOptions())


def written(mapped: Callable[..., object], n_blocks: int, folder: Path) -> tuple[int, float, float]:
    """Run the real writer over what `mapped` yields: tokens, seconds of encoding, seconds of all (sync and merge)."""
    seconds = [0.0]
    finish = run.Run._finish_encoding

    def timed(self: object, *args: object) -> None:
        finish(self, *args)
        seconds[0] = time.perf_counter() - started

    source = arrays(str(folder / "in.jsonl"), n_blocks)
    (folder / "in.jsonl").write_text("{}\n")
    with (
        mock.patch("fineweb_stream.pipeline.job.make_sources", lambda *_: [source]),
        mock.patch.object(run, "map_ordered", lambda _, encode, *args: mapped(*args)),
        mock.patch("fineweb_stream.pipeline.fetch.check_unchanged", lambda _: None),
        mock.patch.object(run.Run, "_finish_encoding", timed),
    ):
        started = time.perf_counter()
        result = prepare(folder / "in.jsonl", folder / "out", executor=mock.Mock(), quiet=True, engine="tiktoken")
        return result.train_tokens + result.val_tokens, seconds[0], time.perf_counter() - started


def from_memory(blocks: Iterator[Block], window: Window, tick: Callable[[], None]) -> Iterator[tuple[Block, Encoded]]:
    for block in blocks:
        tick_if_due(tick)
        yield block, returned_array(Block(block.source, 0, 0, block.n_bytes, 0))


_ticked = [0.0]


def tick_if_due(tick: Callable[[], None]) -> None:
    if time.monotonic() - _ticked[0] > 0.1:
        _ticked[0] = time.monotonic()
        tick()


@contextlib.contextmanager
def connected(n_workers: int, needs: Needs, direct: bool) -> Iterator[client.Cluster]:
    """Start worker processes of one thread on this machine, and connect to them."""
    import distributed

    real = distributed.Client

    def made(*args: object, **options: object) -> object:
        return real(*args, **(options | {"direct_to_workers": direct}))

    with (
        distributed.LocalCluster(n_workers=n_workers, threads_per_worker=1, dashboard_address=None) as local,
        mock.patch.object(distributed, "Client", made),
        client.connect(local.scheduler_address, needs) as found,
    ):
        yield found


def measure_arrays(n_workers: int, n_blocks: int, writes: bool, direct: bool, folder: Path, window: int) -> str:
    needs = Needs(__version__, (), "", 0)
    with connected(n_workers, needs, direct) as found:
        limits = Window(lambda: BLOCKS_PER_WORKER * n_workers, window)
        warm = arrays("x", 64)
        for _ in found.map_blocks(returned_array, warm.iter_blocks(), limits, lambda: None):
            pass
        if writes:
            cpu = time.process_time()
            n, seconds, all_seconds = written(
                lambda blocks, _, tick: found.map_blocks(returned_array, blocks, limits, tick), n_blocks, folder
            )
            return rate(n, seconds, per_cpu(n, cpu) + f", {n / all_seconds / 1e6:,.0f}M/s with the merge")
        cpu, started, n = time.process_time(), time.perf_counter(), 0
        for _, encoded in found.map_blocks(returned_array, arrays("x", n_blocks).iter_blocks(), limits, lambda: None):
            n += len(encoded.ids)
        return rate(n, time.perf_counter() - started, per_cpu(n, cpu))


def measure_encode(n_workers: int, corpus: Path, engine: str, repeat: int, window: int) -> str:
    from fineweb_stream.inputs.discover import find_inputs
    from fineweb_stream.inputs.sources import make_sources
    from fineweb_stream.pipeline.worker import encode_block

    sources = make_sources(find_inputs([str(corpus)]), ReadOptions())
    blocks = [block for source in sources for block in source.iter_blocks(0)]
    encode = functools.partial(encode_block, engine=engine)
    with connected(n_workers, find_needs(engine, sources), True) as found:
        limits = Window(lambda: BLOCKS_PER_WORKER * n_workers, window)
        for _ in found.map_blocks(encode, blocks[: 8 * n_workers], limits, lambda: None):
            pass  # each worker loads its vocabulary
        started, n = time.perf_counter(), 0
        for _, encoded in found.map_blocks(encode, blocks * repeat, limits, lambda: None):
            n += len(encoded.ids)
        return rate(n, time.perf_counter() - started)


def rate(n: int, seconds: float, more: str = "") -> str:
    return f"{n / 1e6:,.0f}M tokens in {seconds:.1f} s: {n / seconds / 1e6:,.1f}M tokens/s{more}"


def per_cpu(n: int, since: float) -> str:
    """What one CPU would bring if this process had it all: on a busy machine this varies less than the rate."""
    return f", {n / (time.process_time() - since) / 1e6:,.0f}M per CPU second of the client"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["writer", "arrays", "encode"])
    parser.add_argument("--workers", type=int, nargs="+", default=[2])
    parser.add_argument("--mb", type=int, default=4000, help="MiB of text that the arrays stand for")
    parser.add_argument("--window-mb", type=int, default=96, help="MiB of text in flight")
    parser.add_argument("--no-writer", action="store_true")
    parser.add_argument("--through-scheduler", action="store_true")
    parser.add_argument("--corpus", type=Path, help="for encode: txt, jsonl or parquet")
    parser.add_argument("--repeat", type=int, default=8, help="for encode: how often the corpus is gone through")
    parser.add_argument("--engine", default="gigatoken")
    arguments = parser.parse_args()
    window = arguments.window_mb << 20
    with tempfile.TemporaryDirectory() as folder:
        if arguments.what == "writer":
            cpu = time.process_time()
            n, seconds, all_seconds = written(from_memory, arguments.mb, Path(folder))
            print("writer:", rate(n, seconds, per_cpu(n, cpu) + f", {n / all_seconds / 1e6:,.0f}M/s with the merge"))
            return
        for n_workers in arguments.workers:
            if arguments.what == "arrays":
                out = Path(folder, str(n_workers))
                out.mkdir()
                direct = not arguments.through_scheduler
                said = measure_arrays(n_workers, arguments.mb, not arguments.no_writer, direct, out, window)
            else:
                said = measure_encode(n_workers, arguments.corpus, arguments.engine, arguments.repeat, window)
            print(f"{arguments.what}, {n_workers} workers: {said}", flush=True)


if __name__ == "__main__":
    main()
