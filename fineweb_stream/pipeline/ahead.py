"""Read several iterators ahead, each in its own thread and within bounds; yield their items in order."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ..support.cancel import TICK_SECONDS, Cancel

T = TypeVar("T")

JOIN_SECONDS = 5.0
"""How long to wait for a thread at the end: on Windows, a read from a silent pipe cannot be interrupted."""

LATER_SHARE = 1 / 8  # the share of the room for later iterators while an earlier one is not exhausted


@dataclass(frozen=True)
class Piece(Generic[T]):
    """An item and the bytes it takes while it waits; `begin` starts to fetch what `complete` makes the item of."""

    item: T
    n_bytes: int
    begin: Callable[[], Future[Any]] | None = None
    complete: Callable[[Any], T] | None = None


def read_ahead(
    makers: Iterable[Callable[[], Iterator[Piece[T]]]],
    n_ahead: int,
    depth: int = 3,
    max_bytes: float = float("inf"),
    stop: Cancel | None = None,
) -> Generator[T | None, None, None]:
    """Yield the items of all iterators in order, with up to `n_ahead` of them running, each `depth` items ahead.

    The first item is None: from then on, the iterators run.

    >>> makers = [lambda: iter([Piece("a", 1), Piece("b", 1)]), lambda: iter([Piece("c", 1)])]
    >>> [item for item in read_ahead(makers, n_ahead=2) if item]
    ['a', 'b', 'c']

    Yields None, too, whenever nothing arrives for TICK_SECONDS. At most `max_bytes` wait here, unless a single item is
    larger. With a depth of 0, an iterator is asked only when its item is waited for. What an iterator raises is raised
    here in its turn. When this generator ends or is closed, it sets `stop`, which ends the threads.
    """
    ahead: _Ahead[T] = _Ahead(depth, max_bytes, stop or Cancel())
    remaining = iter(makers)

    def begin() -> None:
        while len(ahead.readers) < n_ahead and (make := next(remaining, None)):
            ahead.begin(make)

    try:
        begin()
        yield None
        while ahead.readers:
            yield from ahead.iter_first()
            begin()
    finally:
        ahead.close()


@dataclass(eq=False)
class _Reader(Generic[T]):
    """What one iterator has waiting: pieces, None for the end, with what they wait for; `has_all` if no more come."""

    items: deque[tuple[Future[Any], Piece[T] | None]] = field(default_factory=deque)
    n_bytes: int = 0
    has_all: bool = False
    thread: threading.Thread = field(init=False)


class _Ahead(Generic[T]):
    """The running readers, in order; `_changed` guards their data and this object's.

    The first reader always has room for one item. Beyond that all share `max_bytes`. The readers after the first
    unfinished one share LATER_SHARE of it, and start after the first item of all: otherwise later items would take the
    room, or a connection, of those needed next.
    """

    def __init__(self, depth: int, max_bytes: float, stop: Cancel) -> None:
        self.readers: deque[_Reader[T]] = deque()
        self._depth, self._max_bytes, self._stop = depth, max_bytes, stop
        self._changed = threading.Condition()
        self._n_bytes = 0
        self._is_begun = False  # the first item of all is on its way
        self._is_asked = False  # the consumer waits for the first reader

    def begin(self, make: Callable[[], Iterator[Piece[T]]]) -> None:
        """Add a reader, with a thread that runs the iterator that `make` returns."""
        reader: _Reader[T] = _Reader()
        reader.thread = threading.Thread(target=self._run, args=(reader, make), name="encode-ahead", daemon=True)
        with self._changed:  # the thread needs the lock before it looks for its reader
            reader.thread.start()
            self.readers.append(reader)

    def iter_first(self) -> Iterator[T | None]:
        """Yield all items of the first reader, None after TICK_SECONDS without one; then remove the reader."""
        while True:
            taken = self._take(self.readers[0])
            if taken is None:
                yield None
                continue
            future, piece = taken
            data = future.result()
            if piece is None:
                break
            item = piece.complete(data) if piece.complete else piece.item
            del taken, future, piece, data  # else they would be kept alive while the workers use the item
            yield item
            del item
        with self._changed:
            reader = self.readers.popleft()
            self._changed.notify_all()
        reader.thread.join(JOIN_SECONDS)

    def close(self) -> None:
        """End all threads, and cancel the fetches that they have begun."""
        self._stop.set()
        self._notify()
        for reader in self.readers:
            reader.thread.join(JOIN_SECONDS)
            for future, _ in reader.items:
                future.cancel()

    def _take(self, reader: _Reader[T]) -> tuple[Future[Any], Piece[T] | None] | None:
        """Ask for the reader's next piece; return None if it does not come within TICK_SECONDS."""
        with self._changed:
            self._is_asked = True
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: reader.items and reader.items[0][0].done(), TICK_SECONDS):
                return None
            self._is_asked = False
            future, piece = reader.items.popleft()
            self._count(reader, -piece.n_bytes if piece else 0)
        return future, piece

    def _run(self, reader: _Reader[T], make: Callable[[], Iterator[Piece[T]]]) -> None:
        ended: Future[None] = Future()
        try:
            pieces = make()
            while self._wait(lambda: self._may_ask(reader)) and (piece := next(pieces, None)):
                self._put(reader, piece, piece.begin or _nothing)
                del piece
            ended.set_result(None)
        except BaseException as error:
            ended.set_exception(error)
        with self._changed:
            reader.has_all = True
            self._changed.notify_all()
        self._put(reader, None, lambda: ended)

    def _may_ask(self, reader: _Reader[T]) -> bool:
        return self._depth > 0 or (self._is_asked and not reader.items)

    def _put(self, reader: _Reader[T], piece: Piece[T] | None, begin: Callable[[], Future[Any]]) -> None:
        """Begin to fetch what a piece needs as soon as there is room for it."""
        n_bytes = piece.n_bytes if piece else 0
        with self._changed:
            if self._wait(lambda: self._has_room(reader, n_bytes)):
                future = begin()
                reader.items.append((future, piece))
                self._count(reader, n_bytes)
                self._is_begun = True
                future.add_done_callback(self._notify)

    def _has_room(self, reader: _Reader[T], n_bytes: int) -> bool:
        is_first = reader is self.readers[0]
        if is_first and not reader.items:
            return True
        if not (is_first or self._is_begun) or len(reader.items) >= self._depth:
            return False
        early = self._early()
        n_later_bytes = 0 if reader in early else n_bytes + self._n_bytes - sum(r.n_bytes for r in early)
        return n_bytes + self._n_bytes <= self._max_bytes and n_later_bytes <= self._max_bytes * LATER_SHARE

    def _early(self) -> list[_Reader[T]]:
        """Return the first readers, up to and including the first that is not exhausted."""
        n_done = sum(1 for _ in itertools.takewhile(lambda reader: reader.has_all, self.readers))
        return list(itertools.islice(self.readers, n_done + 1))

    def _count(self, reader: _Reader[T], n_bytes: int) -> None:
        reader.n_bytes += n_bytes
        self._n_bytes += n_bytes
        self._changed.notify_all()

    def _notify(self, _: object = None) -> None:
        with self._changed:
            self._changed.notify_all()

    def _wait(self, condition: Callable[[], bool]) -> bool:
        """Wait until the condition is true; return False if `stop` is set first."""
        with self._changed:
            # Without a timeout, Windows cannot interrupt it.
            while not self._changed.wait_for(lambda: self._stop.is_set or condition(), TICK_SECONDS):
                pass
            return not self._stop.is_set


def _nothing() -> Future[None]:
    future: Future[None] = Future()
    future.set_result(None)
    return future
