"""Streams are read in order, each by one thread: several at once, so that decompression does not wait for its turn."""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from .blocks import Block, Source
from .storage import check_unchanged
from .waiting import TICK_SECONDS, until

T = TypeVar("T")


class _Room:
    """What may wait in all readers together: `max_bytes`, and one item of the reader whose turn it is."""

    def __init__(self, max_bytes: float) -> None:
        self.changed = threading.Condition()
        self.max_bytes = max_bytes
        self.n_bytes = 0


class _Reader(Generic[T]):
    """Runs an iterator in a thread, `depth` items ahead where there is room."""

    is_next = False

    def __init__(
        self,
        make: Callable[[], Iterator[T]],
        depth: int,
        size: Callable[[T], int],
        room: _Room,
        stop: threading.Event,
    ) -> None:
        self._items: deque[tuple[T | None, int, BaseException | None]] = deque()
        self._depth, self._size, self._room, self._stop = depth, size, room, stop
        self._thread = threading.Thread(target=self._run, args=(make,), name="encode-ahead", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[T]:
        self.is_next = True
        room = self._room
        while True:
            with room.changed:
                room.changed.notify_all()
                while not self._items:
                    room.changed.wait(TICK_SECONDS)  # on Windows nothing ends a wait that has no end
                item, n_bytes, error = self._items.popleft()
                room.n_bytes -= n_bytes
                room.changed.notify_all()
            if error is not None:
                raise error
            if item is None:
                return
            yield item

    def join(self) -> None:
        self._thread.join()

    def _run(self, make: Callable[[], Iterator[T]]) -> None:
        try:
            with until(self._stop.is_set):
                for item in make():
                    if not self._put(item, self._size(item), None):
                        return
            self._put(None, 0, None)
        except BaseException as error:
            self._put(None, 0, error)

    def _put(self, item: T | None, n_bytes: int, error: BaseException | None) -> bool:
        room = self._room
        with room.changed:
            while not self._stop.is_set():
                has_room = len(self._items) < self._depth and room.n_bytes + n_bytes <= room.max_bytes
                if has_room or (self.is_next and not self._items):
                    self._items.append((item, n_bytes, error))
                    room.n_bytes += n_bytes
                    room.changed.notify_all()
                    return True
                room.changed.wait(TICK_SECONDS)
        return False


def _weightless(item: object) -> int:
    return 0


def read_ahead(
    makers: Iterable[Callable[[], Iterator[T]]],
    n_ahead: int,
    depth: int = 3,
    max_bytes: float = float("inf"),
    size: Callable[[T], int] = _weightless,
) -> Iterator[T]:
    """Yield the items of all iterators in order, with up to `n_ahead` of them running, `depth` items ahead each.

    >>> list(read_ahead([lambda: iter("ab"), lambda: iter("c")], n_ahead=2))
    ['a', 'b', 'c']

    By their `size` no more than `max_bytes` wait here, unless a single item is more. What an iterator raises is raised
    here when its turn comes. Leaving early stops the threads.
    """
    stop, room = threading.Event(), _Room(max_bytes)
    remaining = iter(makers)
    readers: deque[_Reader[T]] = deque()
    try:
        while True:
            while len(readers) < n_ahead and (make := next(remaining, None)):
                readers.append(_Reader(make, depth, size, room, stop))
            if not readers:
                return
            yield from readers[0]
            readers.popleft().join()
    finally:
        stop.set()
        for reader in readers:
            reader.join()


def count_ahead(sources: Sequence[Source], n_workers: int) -> int:
    """Return how many inputs are read ahead of their turn; 0 where nothing must be decompressed."""
    return n_workers if any(source.input.compression for source in sources) else 0


def iter_blocks(sources: Sequence[Source], start: int, n_ahead: int, max_bytes: int) -> Iterator[Block]:
    """Yield the blocks of all sources, the first from `start` on; no input may change while it is read."""
    starts = [start] + [0] * len(sources)
    makers = [functools.partial(_source_blocks, *pair) for pair in zip(sources, starts, strict=False)]
    if n_ahead:
        yield from read_ahead(makers, n_ahead, max_bytes=max_bytes, size=_carried_bytes)
    else:
        for make in makers:
            yield from make()


def _source_blocks(source: Source, start: int) -> Iterator[Block]:
    yield from source.iter_blocks(start)
    check_unchanged(source.input)


def _carried_bytes(block: Block) -> int:
    return block.n_bytes if block.data is not None else 0
