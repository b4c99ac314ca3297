"""Reading any range of remote files, many at a time, in place: nothing lands in a cache.

A `Fetcher` has threads of its own that do all that speaks to a network; whoever waits for them looks up now and then,
and leaves at once when it is time to.
"""

from __future__ import annotations

import io
import itertools
import os
import queue
import re
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from typing import Any, NamedTuple, TypeVar

from ..support import waiting
from ..support.cancel import TICK_SECONDS
from ..support.errors import Cancelled, InputError
from ..support.redact import shown
from .connections import Connections, Response, is_hub
from .retry import Pacing, Patience, Refused, with_patience

T = TypeVar("T")

CHANGED = "it changed while it was read: once it is complete, start over with --overwrite"
PIECE_BYTES = 1 << 18
MAX_RANGE_BYTES, MIN_RANGE_BYTES = 4 << 20, 1 << 18
"""How much of a stream one request brings: much, for each costs a round trip; less where there is little room."""

LATER = 1
"""The priority of what is fetched ahead; what is waited for comes before it."""


class RemoteFile(NamedTuple):
    """One file: where it is read, its size in bytes, and what tells its version (a hash, an ETag or a time; or "")."""

    url: str
    size: int
    version: str


class _Found(NamedTuple):
    """Where a file's own address leads to, and what redirects said of the file."""

    url: str
    linked_etag: str


class _Place:
    """Where a file is, once somebody has asked: one asks, and the others wait for that."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.found: _Found | None = None


class Fetcher:
    """Up to `n_connections` threads that fetch, until it is closed."""

    def __init__(self, n_connections: int = 1) -> None:
        self.n_connections = n_connections
        self.pacing = Pacing(self.check)
        self.connections = Connections(self.pacing)
        self.n_bytes = 0  # that came from networks
        self.n_readers = 0  # streams that are read ahead
        self._jobs: queue.PriorityQueue[tuple[float, int, Future[Any] | None, Callable[[], Any]]] = (
            queue.PriorityQueue()
        )
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._n_threads = self._n_unfinished = 0
        self._places: dict[str, _Place] = {}
        self._is_closed = False

    def check(self) -> None:
        """Raise `Cancelled` once it is closed."""
        if self._is_closed:
            raise Cancelled

    def close(self) -> None:
        """End all that is under way."""
        self._is_closed = True
        for _ in range(self._n_threads):
            self._jobs.put((-1, next(self._numbers), None, _nothing))
        self.connections.close()

    def submit(self, job: Callable[[], T], priority: float = 0) -> Future[T]:
        """Let a thread call `job`, which uses `connections`; jobs of a lower priority number come first."""
        future: Future[T] = Future()
        with self._lock:
            self._n_unfinished += 1
            if self._n_threads < min(self._n_unfinished, self.n_connections):
                self._n_threads += 1
                # Python waits at its end for threads that are no daemons: a connection may hang for long.
                threading.Thread(target=self._work, name=f"fetch-{self._n_threads}", daemon=True).start()
            self._jobs.put((priority, next(self._numbers), future, job))
        return future

    def _work(self) -> None:
        while True:
            _, _, future, job = self._jobs.get()
            if future is None:
                return
            if future.set_running_or_notify_cancel():
                self._run(future, job)
            else:
                self._finish()
            del future, job  # an idle thread holds no data

    def _run(self, future: Future[Any], job: Callable[[], Any]) -> None:
        try:
            result = job()
        except BaseException as error:
            self._finish()
            future.set_exception(error)
        else:
            self._finish()
            future.set_result(result)

    def _finish(self) -> None:
        with self._lock:
            self._n_unfinished -= 1

    def result(self, future: Future[T], patience: Patience | None = None) -> T:
        """Wait for a job; leave it behind when it is time to, or with the `patience` for a first contact."""
        waiting.check()
        while not wait_for([future], TICK_SECONDS).done:
            waiting.check()
            self.check()
            if patience and patience.left < 0:
                raise patience.give_up("timeout")
        return future.result()

    def fetch_now(self, file: RemoteFile, ranges: list[tuple[int, int]]) -> list[bytes]:
        """In a job: fetch some ranges, one after the other (see `fetch`)."""
        return [self._fetch(file, start, stop) for start, stop in ranges]

    def read(self, file: RemoteFile, start: int, stop: int) -> bytes:
        """Return a range of a file (see `fetch`)."""
        return self.result(self.fetch(file, start, stop))

    def fetch(self, file: RemoteFile, start: int, stop: int, priority: float = 0) -> Future[bytes]:
        """Begin to fetch the bytes from `start` to `stop`, all of them: a cut answer is continued where it ended.

        The future raises `InputError` when the file is gone, forbidden or not as listed, `RemoteError` when not a byte
        came for PATIENCE_SECONDS.
        """
        assert 0 <= start <= stop <= file.size
        if start == stop:
            future: Future[bytes] = Future()
            future.set_result(b"")
            return future
        return self.submit(lambda: self._fetch(file, start, stop), priority)

    def _fetch(self, file: RemoteFile, start: int, stop: int) -> bytes:
        from .hub import address_of, is_web, read_fsspec  # they list with a fetcher

        address = address_of(file.url)
        patience = Patience(address, self.pacing)
        data = bytearray()

        def attempt() -> None:
            if not is_web(address):
                data[:] = read_fsspec(file, start, stop)
                return
            first = start + len(data)
            with self._open(file, address, first, stop, patience) as response:
                while len(data) < stop - start:
                    piece = response.read_some(min(PIECE_BYTES, stop - start - len(data)))
                    if not piece:
                        raise ConnectionError
                    data.extend(piece)
                    self.n_bytes += len(piece)
                    patience.progressed()
                    self.check()

        with_patience(address, patience, self.pacing, attempt)
        return bytes(data)

    def _open(self, file: RemoteFile, address: str, first: int, stop: int, patience: Patience) -> Response:
        """Ask for a range where the file is, and for where that is if nobody knows."""
        with self._lock:
            place = self._places.setdefault(address, _Place())
        headers = {"Range": f"bytes={first}-{stop - 1}"}
        limit = max(patience.left, 0)
        while True:
            if not (found := place.found):
                with place.lock:
                    if not (found := place.found):
                        self.check()
                        response = self.connections.send(address, headers=headers, limit=limit)
                        place.found = _Found(response.url, response.linked_etag)
                        break
            try:
                response = self.connections.send(found.url, headers=headers, limit=limit)
                response.linked_etag = response.linked_etag or found.linked_etag
                break
            except Exception as error:
                if found.url == address:
                    raise
                with place.lock:
                    if place.found is found:
                        place.found = None
                if not (isinstance(error, Refused) and error.args[0].status in (401, 403, 404, 410)):
                    raise
        try:
            _check_answer(file, response, first, stop)
        except BaseException:
            response.__exit__()
            raise
        patience.answered()
        return response


def _nothing() -> None:
    """Do nothing."""


class RemoteReader(io.RawIOBase):
    """A listed file as a file object, for pyarrow and decompressors; `read` returns all that was asked for.

    Small reads are served from one buffer of `buffer_bytes`; 0 makes each read one exact request. With `ahead_bytes`
    the file is read as a stream up to `stop`: large ranges, several under way. (Each reader is told its part.)
    """

    def __init__(
        self,
        fetcher: Fetcher,
        file: RemoteFile,
        buffer_bytes: int = 1 << 20,
        ahead_bytes: int = 0,
        stop: int | None = None,
    ) -> None:
        self._fetcher = fetcher
        self._file = file
        self._buffer_bytes = buffer_bytes
        self._ahead_bytes = ahead_bytes
        self._stop = file.size if stop is None else stop
        self._position = 0
        self._held = b""
        self._held_start = 0
        self._ahead: deque[tuple[int, int, Future[bytes]]] = deque()
        self._is_counted = False

    def read(self, size: int | None = -1, /) -> bytes:
        """Read `size` bytes, less only at the end; all that is left when negative."""
        if self.closed:
            raise ValueError("read of a closed file")
        start = self._position
        stop = self._file.size if size is None or size < 0 else min(start + size, self._file.size)
        parts = []
        while start < stop:
            at = start - self._held_start
            if not 0 <= at < len(self._held):
                self._fill(start, stop)
                at = start - self._held_start
            parts.append(self._held[at : at + stop - start])
            start += len(parts[-1])
        self._position = max(stop, self._position)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _fill(self, start: int, stop: int) -> None:
        """Hold what begins at `start`."""
        file, fetcher = self._file, self._fetcher
        self._held, self._held_start = b"", start
        if not self._ahead_bytes or start >= self._stop:
            ahead = min(max(stop - start, self._buffer_bytes), file.size - start)
            self._held = fetcher.read(file, start, start + ahead)
            return
        while self._ahead and self._ahead[0][1] <= start:
            self._ahead.popleft()[2].cancel()
        if self._ahead and self._ahead[0][0] > start:
            self._forget()
        if not self._is_counted:
            fetcher.n_readers += 1
            self._is_counted = True
        share = self._ahead_bytes // max(fetcher.n_readers, 1)
        each = min(max(share // 4, MIN_RANGE_BYTES), MAX_RANGE_BYTES)
        next_start = self._ahead[-1][1] if self._ahead else start
        while next_start < self._stop and (
            not self._ahead or (next_start - start + each <= share and len(self._ahead) < fetcher.n_connections)
        ):
            next_stop = min(next_start + each, self._stop)
            future = fetcher.fetch(file, next_start, next_stop, priority=0 if next_start == start else LATER)
            self._ahead.append((next_start, next_stop, future))
            next_start = next_stop
        self._held_start, _, future = self._ahead.popleft()
        self._held = fetcher.result(future)

    def _forget(self) -> None:
        for *_, future in self._ahead:
            future.cancel()
        self._ahead.clear()

    def close(self) -> None:
        """Forget what is under way."""
        self._forget()
        self._held = b""
        if self._is_counted:
            self._fetcher.n_readers -= 1
            self._is_counted = False
        super().close()

    def readinto(self, buffer: Any, /) -> int:
        """Read as much as fits."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move to a byte, counted from the start, from here or from the end."""
        position = offset + (0, self._position, self._file.size)[whence]
        if position < 0:
            raise ValueError(f"seek to {position}")
        self._position = position
        return position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True


def _check_answer(file: RemoteFile, response: Response, first: int, stop: int) -> None:
    """Raise `InputError` unless the answer has the bytes that were asked for, of the file that was listed."""
    headers, url, etag = response.headers, shown(file.url), response.etag
    if file.url.startswith("hf://") and not response.linked_etag and not is_hub(response.url):
        etag = ""  # of another server that names its files differently; a commit's files never change
    now = headers.get("Last-Modified", "") if file.version.endswith(" GMT") else etag
    total = file.size
    if response.status == 206:
        part = re.fullmatch(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18})", headers.get("Content-Range", ""))
        if not part or int(part[1]) != first:
            raise InputError(f"{url}: the server sends another part than asked for", "fetch it, name the copy")
        total = int(part[2])
    elif (first, stop) != (0, file.size):
        raise InputError(
            f"{url}: the server does not serve parts of files (HTTP {response.status})",
            "fetch it and name the local copy",
        )
    elif re.fullmatch(r"\d{1,18}", headers.get("Content-Length", "")):
        total = int(headers["Content-Length"])
    if total != file.size or (file.version and now and now != file.version):
        raise InputError(f"{url}: changed (it had {file.size:,} bytes, now {total:,})", CHANGED)
