"""The bounded, ordered map: what is out at a time, in which order it comes back, and what a slow source may hold up."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fineweb_stream import InputError, PrepareError, prepare
from fineweb_stream.inputs.blocks import Block
from fineweb_stream.inputs.text import PlainText
from fineweb_stream.pipeline import ahead, schedule
from fineweb_stream.pipeline.schedule import Window, WorkerError, local_executor, map_ordered
from fineweb_stream.support.model import Input, ReadOptions

from .conftest import ROOT
from .helpers import outputs, write_jsonl

SOURCE = PlainText(0, Input("c.txt", "text", 100, ""), ReadOptions())


def blocks(n: int, n_bytes: int = 1) -> Iterator[Block]:
    return (Block(SOURCE, i, i + 1, n_bytes, n_bytes) for i in range(n))


def nothing() -> None:
    pass


@pytest.mark.parametrize("n_workers", [1, 2, 8])
def test_order_and_bounds(n_workers: int) -> None:
    """Results come in the order of the blocks, and neither blocks nor bytes in flight exceed the window."""
    out, most = set(), [0, 0]

    def source() -> Iterator[Block]:
        for block in blocks(200, 10):
            out.add(block.start)
            most[0] = max(most[0], len(out))
            most[1] = max(most[1], 10 * len(out))
            yield block

    def work(block: Block) -> int:
        time.sleep(0.001 * (block.start % 3))
        return block.start

    with ThreadPoolExecutor(n_workers) as pool:
        found = []
        for block, result in map_ordered(pool, work, source(), Window(lambda: 5, 35), nothing):
            out.discard(block.start)
            found.append(result)
    assert found == list(range(200))
    assert most[0] <= 5
    assert most[1] <= 40  # one block may begin while less than the bound is out


def test_what_is_done_is_not_held_back() -> None:
    """A pipe may be silent for an hour: all that is done is written meanwhile."""
    n_yielded = 0
    is_done = threading.Semaphore(0)

    def source() -> Iterator[Block | None]:
        for block in blocks(5):
            if block.start == 4:
                assert all(is_done.acquire(timeout=10) for _ in range(4))
                time.sleep(0.05)  # the futures are done a moment after their work
                for _ in range(4):
                    yield None
                assert n_yielded == 4
            yield block

    def work(block: Block) -> None:
        is_done.release()

    with ThreadPoolExecutor(1) as pool:
        for _ in map_ordered(pool, work, source(), Window(lambda: 100, 10**9), nothing):
            n_yielded += 1
    assert n_yielded == 5


def test_workers_get_more_before_all_that_is_done_is_written() -> None:
    """One block goes out for each that comes in: workers have work while the writer catches up."""
    n_out = 0
    may_end = threading.Event()
    n_done = threading.Semaphore(0)

    def source() -> Iterator[Block]:
        nonlocal n_out
        for block in blocks(8):
            n_out += 1
            yield block

    def work(block: Block) -> None:
        may_end.wait(10)
        n_done.release()

    def n_admitted() -> int:
        if n_out == 4 and not may_end.is_set():  # the window is full: now all of it gets done
            may_end.set()
            assert all(n_done.acquire(timeout=10) for _ in range(4))
            time.sleep(0.05)
        return 4

    with ThreadPoolExecutor(1) as pool:
        seen = [n_out for _ in map_ordered(pool, work, source(), Window(n_admitted, 10**9), nothing)]
    assert seen == [4, 5, 6, 7, 8, 8, 8, 8]


@pytest.mark.parametrize("error, n_yielded", [(ValueError("bad"), 3), (SystemExit(), 3), (KeyboardInterrupt(), 0)])
def test_error_of_the_source_comes_in_its_turn(error: BaseException, n_yielded: int) -> None:
    """The blocks before it are yielded first, however slow they are; a signal ends it all."""
    may_end = threading.Event()

    def source() -> Iterator[Block]:
        yield from blocks(3)
        may_end.set()
        raise error

    seen = []
    with ThreadPoolExecutor(1) as pool, pytest.raises(type(error)):
        for block, _ in map_ordered(pool, lambda _: may_end.wait(10), source(), Window(lambda: 9, 10**9), nothing):
            seen.append(block)
    assert len(seen) == n_yielded


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt()])
def test_error_comes_in_its_turn(error: BaseException) -> None:
    """The blocks before a bad one are yielded; what has not begun is cancelled."""
    begun = []

    def work(block: Block) -> int:
        begun.append(block.start)
        if block.start == 3:
            raise error
        return block.start

    found = []
    with ThreadPoolExecutor(1) as pool, pytest.raises(WorkerError) as raised:
        for _, result in map_ordered(pool, work, blocks(100), Window(lambda: 8, 10**9), nothing):
            found.append(result)
    assert found == [0, 1, 2]
    assert raised.value.block.start == 3
    assert raised.value.__cause__ is error
    assert max(begun) < 20


def test_pause_and_leave() -> None:
    """A window of no blocks is a pause in which `tick` is called; what it raises ends all."""
    n_ticks = 0

    def tick() -> None:
        nonlocal n_ticks
        n_ticks += 1
        if n_ticks > 3:
            raise TimeoutError

    with ThreadPoolExecutor(1) as pool, pytest.raises(TimeoutError):
        list(map_ordered(pool, lambda block: 0, blocks(3), Window(lambda: 0, 10**9), tick))
    assert n_ticks == 4


@pytest.mark.parametrize("is_failing", [False, True])
def test_a_call_that_nothing_ends_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, is_failing: bool) -> None:
    """The end of a run does not wait for an engine's long call, which goes on."""
    monkeypatch.setattr(schedule, "LEAVE_SECONDS", 0.01)
    has_begun, may_end = threading.Event(), threading.Event()

    def work() -> None:
        has_begun.set()
        assert may_end.wait(60)

    with contextlib.suppress(ZeroDivisionError), local_executor(1) as pool:
        future, never = pool.submit(work), pool.submit(work)
        assert has_begun.wait(60)
        if is_failing:
            raise ZeroDivisionError
    assert not future.done()
    assert never.cancelled()
    may_end.set()
    future.result(60)
    for thread in threading.enumerate():
        if thread.name.startswith("encode_"):
            thread.join(60)


def test_threads_that_have_done_are_not_left() -> None:
    """As a rule none is left: each is joined."""
    with local_executor(4) as pool:
        assert list(pool.map(abs, range(-9, 1))) == list(range(9, -1, -1))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("encode_")]


@pytest.mark.skipif(os.name == "nt", reason="no such signal")
def test_a_worker_process_that_is_killed(new_process: Callable[[], ProcessPoolExecutor], tmp_path: Path) -> None:
    """It is said what happened, with no traceback; another executor does the rest, and the bytes are the same."""
    path = write_jsonl(tmp_path / "c.jsonl", ["some words " * 99] * 9)
    options = {"val_ratio": 0.1, "engine": "tiktoken", "quiet": True}
    with new_process() as pool:
        os.kill(pool.submit(os.getpid).result(), signal.SIGKILL)
        with pytest.raises(PrepareError, match="a worker of it was killed") as caught:
            prepare(path, tmp_path / "out", executor=pool, **options)
    assert caught.value.exit_status == 1 and not (tmp_path / "out").exists()
    with new_process() as pool:
        prepare(path, tmp_path / "out", executor=pool, **options)
    prepare(path, tmp_path / "expected", **options)
    assert outputs(tmp_path / "out") == outputs(tmp_path / "expected")


def test_an_executor_that_is_shut_down(tmp_path: Path) -> None:
    """What it cancels is not waited for: the run ends, and with another executor it has the same bytes."""
    path = write_jsonl(tmp_path / "c.jsonl", ["some words " * 99] * 9)
    options = {"val_ratio": 0.1, "engine": "tiktoken", "quiet": True}
    pool, may_end = ThreadPoolExecutor(1), threading.Event()

    class Busy(Executor):
        """Its only thread is busy when it is shut down, so the run's blocks are cancelled."""

        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            pool.submit(may_end.wait, 60)
            future = pool.submit(fn, *args, **kwargs)
            pool.shutdown(wait=False, cancel_futures=True)
            return future

    with pytest.raises(PrepareError, match="the executor was shut down"):
        prepare(path, tmp_path / "out", executor=Busy(), **options)
    may_end.set()
    assert not (tmp_path / "out").exists()


def test_a_script_that_starts_itself_again(tmp_path: Path) -> None:
    """In a script without the usual last lines, each process of an executor would be another run: that is said."""
    path = write_jsonl(tmp_path / "c.jsonl", ["some words " * 99] * 9)
    (tmp_path / "script.py").write_text(f"""
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from fineweb_stream import prepare
pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
prepare({str(path)!r}, {str(tmp_path / "out")!r}, executor=pool, val_ratio=0.1, engine="tiktoken")
""")
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, tmp_path / "script.py"], env=env, timeout=60, capture_output=True, text=True)
    assert done.returncode == 1 and "if __name__ == '__main__':" in done.stderr and not (tmp_path / "out").exists()


def test_an_executor_and_a_cluster(tmp_path: Path) -> None:
    """Only one can do the encoding: both are refused, before the scheduler is looked for."""
    with ThreadPoolExecutor(1) as pool, pytest.raises(InputError, match="executor and cluster"):
        prepare(demo=True, out=tmp_path / "out", executor=pool, cluster="tcp://localhost:1", quiet=True)


def test_the_end_wakes_the_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that waits for room in what is read ahead ends with the run, not at its next look."""
    monkeypatch.setattr(ahead, "TICK_SECONDS", 600.0)
    items = ahead.read_ahead([lambda: itertools.repeat(ahead.Piece("a", 1))], n_ahead=1)
    assert next(items) is None
    time.sleep(0.2)  # by now it waits
    items.close()
    assert "encode-ahead" not in [thread.name for thread in threading.enumerate()]
