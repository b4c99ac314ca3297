"""Iterators that are read ahead of their turn, a thread each, within bounds; what they yield comes in order."""

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
"""How long a thread is waited for at the end: on Windows nothing ends the read of a silent pipe."""

LATER_SHARE = 1 / 8
"""How much of the room is for what comes later, while what comes first has not asked for all of its own."""


@dataclass(frozen=True)
class Piece(Generic[T]):
    """An item, what it takes while it waits (bytes), and what begins to fetch what takes its place, if anything."""

    item: T
    n_bytes: int
    begin: Callable[[], Future[T]] | None = None


def read_ahead(
    makers: Iterable[Callable[[], Iterator[Piece[T]]]],
    n_ahead: int,
    depth: int = 3,
    max_bytes: float = float("inf"),
    stop: Cancel | None = None,
) -> Generator[T | None, None, None]:
    """Yield the items of all iterators in order, with up to `n_ahead` of them running, `depth` items ahead each.

    >>> makers = [lambda: iter([Piece("a", 1), Piece("b", 1)]), lambda: iter([Piece("c", 1)])]
    >>> [item for item in read_ahead(makers, n_ahead=2) if item]
    ['a', 'b', 'c']

    None comes in between whenever nothing else came for TICK_SECONDS. No more than `max_bytes` wait here, unless a
    single item is more. With a depth of 0 an iterator is only asked when it is waited for. What an iterator raises is
    raised here when its turn comes. Leaving early sets `stop`, which ends the threads: what waits in them looks at it.
    """
    ahead: _Ahead[T] = _Ahead(depth, max_bytes, stop or Cancel())
    remaining = iter(makers)
    try:
        while True:
            while len(ahead.readers) < n_ahead and (make := next(remaining, None)):
                ahead.begin(make)
            if not ahead.readers:
                return
            yield from ahead.iter_first()
    finally:
        ahead.close()


@dataclass(eq=False)
class _Reader(Generic[T]):
    """What waits of one iterator: items with their sizes, None for the end; `has_all` when there will be no more."""

    items: deque[tuple[Future[T | None], int]] = field(default_factory=deque)
    n_bytes: int = 0
    has_all: bool = False
    thread: threading.Thread = field(init=False)


class _Ahead(Generic[T]):
    """The readers that are at work, in order; `changed` guards all that is in them and here.

    The first one always has room for an item. Beyond that all share `max_bytes`; of that those share LATER_SHARE
    before which a reader has not asked for all of its own, and they begin after the first item of all: else what
    comes last would take the place, or a connection, of what is needed next.
    """

    def __init__(self, depth: int, max_bytes: float, stop: Cancel) -> None:
        self.readers: deque[_Reader[T]] = deque()
        self._depth, self._max_bytes, self._stop = depth, max_bytes, stop
        self._changed = threading.Condition()
        self._n_bytes = 0
        self._is_begun = False  # a first item was asked for
        self._is_asked = False  # the first reader is waited for

    def begin(self, make: Callable[[], Iterator[Piece[T]]]) -> None:
        """Add a reader, whose thread runs what `make` returns."""
        reader: _Reader[T] = _Reader()
        reader.thread = threading.Thread(target=self._run, args=(reader, make), name="encode-ahead", daemon=True)
        with self._changed:  # it waits for that before it looks at its place
            reader.thread.start()
            self.readers.append(reader)

    def iter_first(self) -> Iterator[T | None]:
        """Yield all items of the first reader, None whenever there was none for TICK_SECONDS; then it is gone."""
        while True:
            future = self._take(self.readers[0])
            if future is None:
                yield None
                continue
            item = future.result()
            if item is None:
                break
            del future  # it is not held here while the workers have it
            yield item
        with self._changed:
            reader = self.readers.popleft()
            self._changed.notify_all()
        reader.thread.join(JOIN_SECONDS)

    def close(self) -> None:
        """End all threads, and what they have begun."""
        self._stop.set()
        for reader in self.readers:
            reader.thread.join(JOIN_SECONDS)
            for future, _ in reader.items:
                future.cancel()

    def _take(self, reader: _Reader[T]) -> Future[T | None] | None:
        """Ask for the next item and wait for it; None where it did not come in time."""
        with self._changed:
            self._is_asked = True
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: reader.items and reader.items[0][0].done(), TICK_SECONDS):
                return None
            self._is_asked = False
            future, n_bytes = reader.items.popleft()
            self._count(reader, -n_bytes)
        return future

    def _run(self, reader: _Reader[T], make: Callable[[], Iterator[Piece[T]]]) -> None:
        ended: Future[T | None] = Future()
        try:
            pieces = make()
            while self._wait(lambda: self._may_ask(reader)) and (piece := next(pieces, None)):
                self._put(reader, piece)
                del piece
            ended.set_result(None)
        except BaseException as error:
            ended.set_exception(error)
        with self._changed:
            reader.has_all = True
            self._changed.notify_all()
        self._put(reader, Piece(None, 0, lambda: ended))

    def _may_ask(self, reader: _Reader[T]) -> bool:
        return self._depth > 0 or (self._is_asked and not reader.items)

    def _put(self, reader: _Reader[T], piece: Piece[Any]) -> None:
        """Begin to fetch an item as soon as there is room for it."""
        with self._changed:
            if self._wait(lambda: self._has_room(reader, piece.n_bytes)):
                future = piece.begin() if piece.begin else _done(piece.item)
                reader.items.append((future, piece.n_bytes))
                self._count(reader, piece.n_bytes)
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
        """Return the first readers, up to one that has not asked for all of its own."""
        n_done = sum(1 for _ in itertools.takewhile(lambda reader: reader.has_all, self.readers))
        return list(itertools.islice(self.readers, n_done + 1))

    def _count(self, reader: _Reader[T], n_bytes: int) -> None:
        reader.n_bytes += n_bytes
        self._n_bytes += n_bytes
        self._changed.notify_all()

    def _notify(self, future: Future[Any]) -> None:
        with self._changed:
            self._changed.notify_all()

    def _wait(self, condition: Callable[[], bool]) -> bool:
        """Wait until it is so; False when it is time to end."""
        with self._changed:
            while not self._stop.is_set:
                if self._changed.wait_for(condition, TICK_SECONDS):  # on Windows nothing ends a wait without end
                    return True
        return False


def _done(item: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(item)
    return future
