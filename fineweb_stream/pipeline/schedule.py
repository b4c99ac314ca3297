"""Run blocks on any `concurrent.futures` executor, within a bounded window; results come back in order."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ..support.cancel import TICK_SECONDS
from ..support.cgroups import usable_cpus
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
"""How long to wait for threads at the end. A block takes 0.1 s; megabytes without a cut, in one call, take seconds."""

BLOCKS_PER_WORKER = 8
"""How many blocks are in flight per worker: one being encoded, and enough others that a slow disk idles none."""


@dataclass
class Window:
    """Limits of what is in flight: blocks, and bytes of their text. A single block may exceed the bytes.

    `max_blocks` is called each time, because the memory guard may lower it; 0 pauses.
    """

    max_blocks: Callable[[], int]
    max_bytes: int

    def admits(self, n_blocks: int, n_bytes: int) -> bool:
        """Tell whether another block may be submitted while this much is in flight."""
        return n_blocks < self.max_blocks() and (n_blocks == 0 or n_bytes < self.max_bytes)


class Workers(Protocol):
    """Workers on other machines. Their `map_blocks` does what `map_ordered` does; its window counts tasks."""

    def count_threads(self) -> int:
        """Return how many threads the workers have now."""

    def map_blocks(
        self, function: Any, blocks: Iterable[Block | None], window: Window, tick: Callable[[], None]
    ) -> Iterator[tuple[Block, Any]]:
        """Yield each block with `function(block)`, in order."""


def map_ordered(
    executor: Executor,
    function: Callable[[Block], T],
    blocks: Generator[Block | None, None, None],
    window: Window,
    tick: Callable[[], None],
) -> Iterator[tuple[Block, T]]:
    """Yield each block with `function(block)`, in order, with no more in flight than the window admits.

    A None among the blocks means that the next one is slow to come. `tick` is called every TICK_SECONDS while waiting,
    and may raise to end everything; blocks not yet begun are then cancelled. What a worker raises, `BaseException`
    included, becomes the cause of a `WorkerError` in its turn. What `blocks` raises is raised in its turn, too, except
    for `KeyboardInterrupt`, which is raised at once.
    """
    pending: deque[tuple[Block, Future[T]]] = deque()
    n_bytes = 0
    is_exhausted = False
    failure: BaseException | None = None
    try:
        while pending or not is_exhausted:
            # Submit one for each result, even if several are done: else workers idle while those are written.
            admits = not is_exhausted and window.admits(len(pending), n_bytes)
            if admits:
                try:
                    block = next(blocks)
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
        blocks.close()


def wait(future: Future[Any], tick: Callable[[], None]) -> None:
    """Wait for a future, and call `tick`, which may raise, every TICK_SECONDS until it is done."""
    tick()
    while not (wait_for([future], TICK_SECONDS).done or future.done()):  # the first never has one that was cancelled
        tick()


@contextmanager
def local_executor(n_workers: int) -> Iterator[ThreadPoolExecutor]:
    """Yield a pool of threads: the engines and pyarrow release the GIL, and all threads share one vocabulary.

    At the end, a thread inside an engine's call, which cannot be interrupted, is waited for LEAVE_SECONDS at most.
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
    """Return how many workers to use: as many as `asked`, else one for each CPU allotted.

    Raises `InputError` for anything but a whole number of 1 or more.
    """
    if asked is None:
        return allotted_cpus()
    return read_as("workers", asked, parse_count)


def allotted_cpus() -> int:
    """Return how many CPUs this process may use by affinity, control groups and Slurm, at least 1."""
    n_cpus = math.ceil(usable_cpus())
    if allotted := read_variable("SLURM_CPUS_PER_TASK"):
        n_cpus = min(n_cpus, allotted)
    return max(n_cpus, 1)
