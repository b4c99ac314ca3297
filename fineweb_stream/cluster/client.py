"""Workers on other machines: Dask's executor under the same ordered window, with several blocks per task.

Dask schedules, moves, retries and guards the workers' memory. This module only connects, checks what each worker has,
groups blocks (a task costs about a millisecond, whatever its size) and explains Dask's failures.

Not covered: starting workers (see docs/cluster.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import CancelledError
from dataclasses import replace
from typing import Any, NamedTuple, cast

from ..inputs.blocks import Block
from ..pipeline.schedule import Window, WorkerError, map_ordered
from ..pipeline.worker import Encoded
from ..remote.network import Fetcher, Network
from ..support.cancel import NEVER, TICK_SECONDS, Cancel, aside
from ..support.errors import InputError, PrepareError
from ..support.log import log
from .needs import Needs, check_here, find_missing, install_hint, is_file

GROUP_BYTES = 8 << 20  # the approximate limit of text per task; a single block may exceed it
RETRIES = 2  # how often Dask retries a failed task. (For tasks of lost workers, Dask's `allowed-failures` counts.)
COUNT_SECONDS = 1.0  # how long a count of threads is good
_FETCHERS: dict[str, Fetcher] = {}  # in a worker: what fetches for each run

Encode = Callable[[Block], Encoded]


class Group(NamedTuple):
    """Consecutive blocks that make one task, and the connections it may use; `map_ordered` takes it for a block."""

    blocks: list[Block]
    n_bytes: int
    n_connections: int = 0


class GroupError(Exception):
    """A block of a group failed with `error`; `done` are the results of the blocks before it."""

    def __init__(self, done: list[Encoded], error: Exception) -> None:
        super().__init__(done, error)
        self.done = done
        self.error = error


def encode_blocks(group: Group, function: Encode, needs: Needs, folder: str, run: str = "") -> list[Encoded]:
    """In a task: encode a group's blocks, with paths relative to `folder`. Raises `GroupError` with the results so far.

    Remote inputs are fetched by the worker's fetcher for that `run`.
    """
    done: list[Encoded] = []
    try:
        check_here(needs)
        for block in group.blocks:
            done.append(function(_placed(block, folder, run, group.n_connections)))
    except Exception as error:
        raise GroupError(done, error) from error
    return done


class Cluster:
    """A connection to a scheduler, whose workers have what is needed; made by `connect`."""

    def __init__(self, address: str, client: Any, needs: Needs, n_connections: int) -> None:
        self._address, self._client, self._needs = address, client, needs
        self._n_connections, self._n_workers = n_connections, 1
        self.run = f"fineweb_stream {uuid.uuid4()}"
        self._executor = client.get_executor(pure=False, retries=RETRIES)
        self._n_threads = 0
        self._counted = -COUNT_SECONDS

    def count_threads(self) -> int:
        """Return how many threads the workers have, as of a second ago at most; 0, after a message, if all are gone."""
        if time.monotonic() - self._counted < COUNT_SECONDS:
            return self._n_threads
        before = self._n_threads
        # A busy scheduler; a lost one is found by `_check_status`. (asyncio's error is no OSError in Python 3.10.)
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            n_threads = self._client.nthreads(callback_timeout=5)
            self._n_threads, self._n_workers = sum(n_threads.values()), max(len(n_threads), 1)
        self._counted = time.monotonic()
        if before and not self._n_threads:
            log.info(f"{self._address}: all workers are gone; waiting for one (dask worker {self._address})")
        return self._n_threads

    def map_blocks(
        self, function: Encode, blocks: Iterable[Block | None], window: Window, tick: Callable[[], None]
    ) -> Iterator[tuple[Block, Encoded]]:
        """Yield each block with `function(block)`, like `map_ordered`; `window` counts tasks, `function` must pickle.

        Raises `WorkerError`, and `PrepareError` when the scheduler is lost.
        """

        def watch() -> None:
            self._check_status()
            self.count_threads()  # it says if all workers are gone
            tick()

        encode: Any = functools.partial(
            encode_blocks, function=function, needs=self._needs, folder=os.getcwd(), run=self.run
        )
        groups: Any = self._iter_groups(blocks, window)
        try:
            for item, encoded in map_ordered(self._executor, encode, groups, window, watch):
                yield from zip(cast(Group, item).blocks, cast(list[Encoded], encoded), strict=True)
        except WorkerError as error:
            group, cause = cast(Group, error.block), error.__cause__
            done = cause.done if isinstance(cause, GroupError) else []
            yield from zip(group.blocks, done, strict=False)
            raise WorkerError(group.blocks[len(done)]) from _explain(group, cause)
        except CancelledError:
            raise self._lost() from None
        finally:
            if isinstance(blocks, Generator):
                blocks.close()  # else a traceback may keep it alive, with an open file

    def _iter_groups(self, blocks: Iterable[Block | None], window: Window) -> Iterator[Group | None]:
        """Group blocks so that the window has room for two tasks per thread; a late block delays no task."""
        group: list[Block] = []
        n_bytes = 0
        for block in blocks:
            if block is not None:
                group.append(block)
                n_bytes += block.n_bytes
            elif not group:
                yield None
            limit = min(GROUP_BYTES, window.max_bytes // (2 * max(self.count_threads(), 1)))
            if group and (block is None or n_bytes >= limit):
                yield Group(group, n_bytes, self._connections_each())
                group, n_bytes = [], 0
        if group:
            yield Group(group, n_bytes, self._connections_each())

    def _connections_each(self) -> int:
        return max(self._n_connections // self._n_workers, 1)  # a server's limit is for all workers together

    def check_workers(self) -> None:
        """Check every worker. Raises `InputError` that names the first that lacks something, and how many do."""
        found = self._client.run(find_missing, self._needs, on_error="return")
        complaints = []
        for address, missing in found.items():
            if isinstance(missing, OSError):
                continue  # this worker has just left
            if isinstance(missing, Exception):
                version = self._needs.version
                missing = f"cannot run fineweb_stream {version}: {missing}", install_hint(version)
            if missing:
                complaints.append((f"worker {address}: {missing[0]}", missing[1]))
        if complaints:
            message, hint = complaints[0]
            more = f" ({len(complaints)} of {len(found)} workers)" if len(complaints) > 1 else ""
            raise InputError(message + more, hint)

    def wait_for_workers(self, seconds: float, cancel: Cancel = NEVER) -> None:
        """Wait until there is a worker. Raises `InputError` if there is none within `seconds`."""
        deadline = time.monotonic() + seconds
        start = f"dask worker {self._address}"
        if not self.count_threads():
            log.info(f"{self._address}: no worker yet; waiting up to {seconds:,.0f} s for one ({start})")
        while not self.count_threads():
            self._check_status()
            if time.monotonic() > deadline:
                raise InputError(f"{self._address}: no worker came within {seconds:,.0f} s", f"start some: {start}")
            cancel.wait(TICK_SECONDS)

    def _check_status(self) -> None:
        if self._client.status != "running":
            raise self._lost()

    def _lost(self) -> PrepareError:
        return PrepareError(f"lost the scheduler {self._address}", "start it again, or go on without --cluster")


@contextlib.contextmanager
def connect(
    address: str,
    needs: Needs,
    cancel: Cancel = NEVER,
    wait_seconds: float = 600,
    connect_seconds: float = 10,
    n_connections: int = 0,
) -> Iterator[Cluster]:
    """Connect to a scheduler, wait until it has a worker, and check that all workers have what is needed.

    The workers share `n_connections` to fetch remote inputs, 0 if there are none.

    Raises `InputError` for what can be fixed before the start: no Dask, no scheduler, no worker, or one that lacks
    something.
    """
    try:
        import distributed
        from distributed.comm.addressing import resolve_address
    except ImportError:
        raise InputError("a cluster needs Dask", "pip install -U distributed") from None
    try:
        with contextlib.suppress(OSError):  # a host that is unknown now may be known soon
            resolve_address(address)
    except ValueError as error:  # checked here: a client that cannot be made complains at exit
        raise InputError(f"{address!r} is no scheduler's address: {error}", "as in --cluster tcp://host:8786") from None
    logger = logging.getLogger("distributed")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # we report its problems ourselves
    try:
        # Results come straight from the workers: through the scheduler they would cross the network twice.
        make: Any = distributed.Client
        options = {"timeout": connect_seconds, "set_as_default": False, "direct_to_workers": True}
        client = aside(lambda: make(address, **options), cancel)
    except OSError as error:
        raise InputError(
            f"no scheduler answers at {address}: {error}", "start one (dask scheduler) and give the address it prints"
        ) from None
    try:
        cluster = Cluster(address, client, needs, n_connections)
        cluster.wait_for_workers(wait_seconds, cancel)
        aside(cluster.check_workers, cancel)
        try:
            yield cluster
        finally:
            if n_connections:
                with contextlib.suppress(Exception):  # the scheduler may be lost
                    aside(lambda: client.run(_close_fetcher, cluster.run), NEVER, 5)
    finally:
        client.close(timeout=5)
        logger.setLevel(level)


def _close_fetcher(run: str) -> None:
    """In a worker: close the connections of a run."""
    if fetcher := _FETCHERS.pop(run, None):
        fetcher.close()


def _placed(block: Block, folder: str, run: str, n_connections: int) -> Block:
    """Return the block with what depends on the worker: its network, or the input's path, joined to `folder`."""
    source: Any = block.source
    if source.input.is_remote:
        fetcher = _FETCHERS.setdefault(run, Fetcher())
        fetcher.n_connections = n_connections
        return replace(block, source=replace(source, network=Network(fetcher)))
    if not is_file(source):
        return block
    path = os.path.join(folder, source.input.path)
    return replace(block, source=replace(source, input=replace(source.input, path=path)))


def _explain(group: Group, cause: BaseException | None) -> BaseException | None:
    """Return why a group failed; for a lost worker, an error that says so."""
    if isinstance(cause, GroupError):
        return cause.error
    if type(cause).__name__ != "KilledWorker":
        return cause
    first, last = group.blocks[0], group.blocks[-1]
    return PrepareError(
        f"{first.source.input.shown}, from {first.start:,}: each worker that took this was lost ({len(group.blocks)}"
        f" blocks, to {last.stop:,})",
        "their logs say why; if memory ran out: dask worker --memory-limit, with fewer --nthreads",
    )
