"""Work on blocks elsewhere, results here in order: a bounded window over any `concurrent.futures` executor."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ..memory.cgroups import cpu_quota
from ..support.cancel import TICK_SECONDS
from ..support.units import parse_count, read_as, read_variable

if TYPE_CHECKING:
    from ..inputs.blocks import Block

T = TypeVar("T")


class WorkerError(Exception):
    """A block could not be read or encoded; the reason is its `__cause__`."""

    def __init__(self, block: Block) -> None:
        super().__init__(block)
        self.block = block


LEAVE_SECONDS = 2.0
"""A block takes 0.1 s; some megabytes without a place to cut, which are one call, take seconds."""

BLOCKS_PER_WORKER = 8
"""How many are in flight for each worker: one in work, and enough beside it that none waits while the disk is slow."""


@dataclass
class Window:
    """How much may be in flight: blocks, and bytes of their text. One block may be, whatever its size.

    `max_blocks` is asked each time, for the memory guard may lower it; 0 is a pause.
    """

    max_blocks: Callable[[], int]
    max_bytes: int

    def admits(self, n_blocks: int, n_bytes: int) -> bool:
        """Tell whether one more block may go out when this much is."""
        return n_blocks < self.max_blocks() and (n_blocks == 0 or n_bytes < self.max_bytes)


class Workers(Protocol):
    """Workers elsewhere: `map_blocks` does as `map_ordered`, which see; its window counts tasks."""

    @property
    def n_threads(self) -> int:
        """How many threads they have now."""

    def map_blocks(
        self, function: Any, blocks: Iterable[Block | None], window: Window, tick: Callable[[], None]
    ) -> Iterator[tuple[Block, Any]]:
        """Yield each block with `function(block)`, in order."""


def map_ordered(
    executor: Executor,
    function: Callable[[Block], T],
    blocks: Iterable[Block | None],
    window: Window,
    tick: Callable[[], None],
) -> Iterator[tuple[Block, T]]:
    """Yield each block with `function(block)`, in order; no more than the window holds is out at a time.

    A None among the blocks says that the next one is long in coming. `tick` is called every TICK_SECONDS while waiting,
    and may raise to end it all: what has not begun is cancelled then. Whatever a worker raises, `BaseException`
    included, becomes the cause of a `WorkerError` when its turn comes; what `blocks` raises comes in its turn, too, but
    for Ctrl+C in a script, which ends it all.
    """
    pending: deque[tuple[Block, Future[T]]] = deque()
    n_bytes = 0
    remaining = iter(blocks)
    is_exhausted = False
    failure: BaseException | None = None
    try:
        while pending or not is_exhausted:
            # One goes out for each that comes in, even if more are done: else workers wait while those are written.
            admits = not is_exhausted and window.admits(len(pending), n_bytes)
            if admits:
                try:
                    block = next(remaining)
                except StopIteration:
                    is_exhausted = True
                    continue
                except KeyboardInterrupt:
                    raise
                except BaseException as broken:
                    failure, is_exhausted = broken, True
                    continue
                if block is None:
                    tick()
                else:
                    pending.append((block, executor.submit(function, block)))
                    n_bytes += block.n_bytes
            elif not pending:
                tick()
                time.sleep(TICK_SECONDS)
            if pending and (pending[0][1].done() or not admits):
                done, future = pending.popleft()
                n_bytes -= done.n_bytes
                wait(future, tick)
                if error := future.exception():
                    raise WorkerError(done) from error
                yield done, future.result()
        if failure:
            raise failure
    finally:
        for _, future in pending:
            future.cancel()
        if isinstance(remaining, Generator):
            remaining.close()


def wait(future: Future[Any], tick: Callable[[], None]) -> None:
    """Wait for a future; `tick` is called every TICK_SECONDS until it is done, and may raise."""
    tick()
    while not wait_for([future], TICK_SECONDS).done:
        tick()


@contextmanager
def local_executor(n_workers: int) -> Iterator[ThreadPoolExecutor]:
    """Threads of this process: the engines and pyarrow release the GIL, and one vocabulary serves them all.

    At the end a thread in the midst of an engine's call, which nothing can end, is waited for LEAVE_SECONDS at most.
    """
    threads: list[threading.Thread] = []
    pool = ThreadPoolExecutor(n_workers, "encode", lambda: threads.append(threading.current_thread()))
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        end = time.monotonic() + LEAVE_SECONDS
        for thread in threads:
            thread.join(max(end - time.monotonic(), 0))


def count_workers(asked: str | float | None) -> int:
    """Return how many workers there shall be: as many as were asked for, else one for each CPU allotted.

    Raises `InputError` for what is no whole number of 1 or more.
    """
    if asked is None:
        return allotted_cpus()
    return read_as("workers", asked, parse_count)


def allotted_cpus() -> int:
    """Return how many CPUs this process was given, not how many there are: affinity, control groups, Slurm."""
    try:
        n_cpus = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        n_cpus = os.cpu_count() or 1
    if quota := cpu_quota():
        n_cpus = min(n_cpus, math.ceil(quota))
    if allotted := read_variable("SLURM_CPUS_PER_TASK"):
        n_cpus = min(n_cpus, allotted)
    return max(n_cpus, 1)
