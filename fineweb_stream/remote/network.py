"""A run's access to the network: threads that fetch, and remote files of which they fetch any range.

Nothing is cached on disk. Waiting for the threads can be cancelled. Libraries for networks are imported only when
something is read from a network.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..support.cancel import NEVER, TICK_SECONDS, Cancel
from ..support.errors import InputError
from ..support.ranged import RangedFile

if TYPE_CHECKING:
    from .retry import Patience
    from .web import Web

T = TypeVar("T")
Data = bytes | memoryview  # fetched bytes

DEFAULT_CONNECTIONS = 16
CHANGED = "it changed while it was read: once it is complete, start over with --overwrite"
MAX_RANGE_BYTES, MIN_RANGE_BYTES = 4 << 20, 1 << 18
"""How much of a stream one request fetches: much, as each costs a round trip, but less if there is little room."""

LATER = 1  # the priority of prefetched data; data that a reader waits for comes first


class RemoteFile(NamedTuple):
    """A remote file: its URL, its size in bytes, and its version (a hash, an ETag or a time; "" if unknown)."""

    url: str
    size: int
    version: str


class Timeouts(NamedTuple):
    """How long to wait before giving up or retrying (seconds).

    For one `operation` of a socket; for a new byte (`progress`); for the first response to a listing (`contact`), short
    because no work is lost if the network is down; for a `page` of a listing, however slowly it arrives. The first
    retry comes after `first_wait`, and each further one after twice as long, up to `longest_wait`.
    """

    operation: float = 20.0
    progress: float = 600.0
    contact: float = 6.0
    first_wait: float = 1.0
    longest_wait: float = 60.0
    page: float = 120.0


class Fetcher:
    """Up to `n_connections` threads that fetch, until it is closed. A run has one, so that it keeps servers' limits.

    `ahead_bytes` is how much may be prefetched; `is_streaming` is False if workers on other machines do the reading.
    """

    timeouts = Timeouts()
    ahead_bytes = 32 << 20
    is_streaming = True

    def __init__(self, n_connections: int = DEFAULT_CONNECTIONS) -> None:
        self.n_connections = n_connections
        self.n_readers = 0  # open readers that prefetch
        self.closed = Cancel()
        self.has_asked = threading.Event()  # a first request is on its way
        self._web: Web | None = None
        self._jobs: list[tuple[float, int, Future[Any], Callable[[], Any]]] = []  # a heap
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._n_threads = self._n_later = self._n_reserved = 0

    def __enter__(self) -> Fetcher:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel all requests and close all connections."""
        self.closed.set()
        if self._web:
            self._web.close()

    @property
    def n_bytes(self) -> int:
        """How many bytes were received so far."""
        return self._web.n_bytes if self._web else 0

    @property
    def web(self) -> Web:
        """The HTTP client, created on first use."""
        with self._lock:
            if not self._web:
                try:
                    from .web import Web
                except ImportError:
                    raise InputError("reading from a network needs urllib3", "pip install -U urllib3") from None
                self._web = Web(self.closed, self.timeouts, self.has_asked)
            return self._web

    def submit(self, job: Callable[[], T], priority: float = 0) -> Future[T]:
        """Let a thread call `job`; jobs with a lower priority number come first."""
        future: Future[T] = Future()
        with self._lock:
            heapq.heappush(self._jobs, (priority, next(self._numbers), future, job))
            self._add_thread()
        return future

    def reserve(self, n_connections: int) -> None:
        """Keep so many connections free for jobs of priority 0; jobs that waited for others are begun."""
        with self._lock:
            self._n_reserved = n_connections
            for _ in self._jobs:
                self._add_thread()

    def _add_thread(self) -> None:
        if self._n_threads < self.n_connections:
            self._n_threads += 1
            # A daemon, because Python waits for other threads at exit, and a connection may hang for long.
            threading.Thread(target=self._work, name=f"fetch-{self._n_threads}", daemon=True).start()

    def _work(self) -> None:
        """Do jobs until there are no more, or more threads than connections, or no connection for a later job."""
        while True:
            with self._lock:
                has_room = self._n_later < self.n_connections - self._n_reserved
                is_left = self._jobs and (has_room or self._jobs[0][0] == 0)
                if not is_left or self._n_threads > self.n_connections:
                    self._n_threads -= 1
                    return
                priority, _, future, job = heapq.heappop(self._jobs)
                self._n_later += priority > 0
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(job())
                except BaseException as error:
                    future.set_exception(error)
            del future, job
            with self._lock:
                self._n_later -= priority > 0

    def fetch(self, file: RemoteFile, start: int, stop: int, priority: float = 0) -> Future[Data]:
        """Start to fetch all bytes from `start` to `stop` (see `Web.fetch`)."""
        web = self.web
        return self.submit(lambda: web.fetch(file, start, stop), priority)


@dataclass(frozen=True)
class Network:
    """How remote inputs are read: a run's fetcher, and the token that cancels waiting for it.

    It is not part of a source's identity: all networks are equal, and unpickling makes a new one.
    """

    fetcher: Fetcher = field(default_factory=Fetcher, compare=False)
    cancel: Cancel = field(default=NEVER, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return Network, ()

    def result(self, future: Future[T], patience: Patience | None = None) -> T:
        """Return a job's result; abandon the job when the run is cancelled or `patience` (for a listing) runs out."""
        self.cancel.check()
        while not wait_for([future], TICK_SECONDS).done:
            self.cancel.check()
            self.fetcher.closed.check()
            if patience and patience.left < 0:
                raise patience.give_up("timeout")
        return future.result()

    def read(self, file: RemoteFile, start: int, stop: int) -> Data:
        """Return a byte range of a file (see `Web.fetch`)."""
        return self.result(self.fetcher.fetch(file, start, stop))


class RemoteReader(RangedFile):
    """A remote file as a file object, for pyarrow and decompressors; `read` returns all bytes that were asked for.

    Small reads are served from one buffer of `buffer_bytes`, near the end of the file its last ones; 0 makes each read
    one exact request. With `ahead_bytes`, which all open readers share, the file is prefetched up to `stop` in large
    ranges, several at a time.
    """

    def __init__(
        self,
        network: Network,
        file: RemoteFile,
        buffer_bytes: int = 1 << 20,
        ahead_bytes: int = 0,
        stop: int | None = None,
    ) -> None:
        super().__init__(file.size)
        self._network = network
        self._file = file
        self._buffer_bytes = buffer_bytes
        self._ahead_bytes = ahead_bytes
        self._stop = file.size if stop is None else stop
        self._held, self._held_start = memoryview(b""), 0
        self._ahead: deque[tuple[int, int, Future[Data]]] = deque()
        network.fetcher.n_readers += ahead_bytes > 0

    def _read_range(self, start: int, stop: int) -> bytes:
        parts = []
        while start < stop:
            if not 0 <= start - self._held_start < len(self._held):
                self._held, self._held_start = memoryview(b""), start
                is_ahead = start < self._stop and self._ahead_bytes
                self._held = memoryview(self._next_ahead(start) if is_ahead else self._exact(stop))
            at = start - self._held_start
            parts.append(self._held[at : at + stop - start])
            start += len(parts[-1])
        return b"".join(parts)

    def _exact(self, stop: int) -> Data:
        start = self._held_start = max(min(self._held_start, self._size - self._buffer_bytes), 0)
        return self._network.read(self._file, start, min(max(stop, start + self._buffer_bytes), self._size))

    def _next_ahead(self, start: int) -> Data:
        """Return the range with the byte `start`, and request the ranges after it as far as there is room."""
        fetcher, ahead = self._network.fetcher, self._ahead
        while ahead and not ahead[0][0] <= start < ahead[0][1]:
            ahead.popleft()[2].cancel()
        share = self._ahead_bytes // max(fetcher.n_readers, 1)
        each = min(max(share // 4, MIN_RANGE_BYTES), MAX_RANGE_BYTES)
        at = ahead[-1][1] if ahead else start
        while at < self._stop and (not ahead or (at - start + each <= share and len(ahead) < fetcher.n_connections)):
            stop = min(at + each, self._stop)
            ahead.append((at, stop, fetcher.fetch(self._file, at, stop, priority=0 if at == start else LATER)))
            at = stop
        self._held_start, _, future = ahead.popleft()
        return self._network.result(future)

    def close(self) -> None:
        """Cancel the prefetching."""
        if not self.closed:
            for *_, future in self._ahead:
                future.cancel()
            self._ahead.clear()
            self._held = memoryview(b"")
            self._network.fetcher.n_readers -= self._ahead_bytes > 0
        super().close()
