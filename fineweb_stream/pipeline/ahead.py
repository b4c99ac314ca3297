"""Inputs are cut into blocks by a thread of their own each: the main thread never waits for a pipe or a network.

Streams are read ahead, several at once, so that decompression does not wait for its turn.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from ..inputs.blocks import Block, Source
from ..inputs.storage import check_unchanged
from ..support.cancel import NEVER, TICK_SECONDS, Cancel
from ..support.waiting import until

T = TypeVar("T")

JOIN_SECONDS = 5.0
"""How long a thread is waited for at the end: on Windows nothing ends the read of a silent pipe."""


class _Room:
    """What may wait in all readers together: `max_bytes`, and one item of the reader whose turn it is."""

    def __init__(self, max_bytes: float) -> None:
        self.changed = threading.Condition()
        self.max_bytes = max_bytes
        self.n_bytes = 0


class _Reader(Generic[T]):
    """Runs an iterator in a thread, `depth` items ahead where there is room; with 0 only when one is waited for."""

    is_next = False

    def __init__(
        self,
        make: Callable[[], Iterator[T]],
        depth: int,
        size: Callable[[T], int],
        room: _Room,
        cancel: Cancel,
    ) -> None:
        self._items: deque[tuple[T | None, int, BaseException | None]] = deque()
        self._depth, self._size, self._room, self._cancel = depth, size, room, cancel
        self._is_asked = False
        self._thread = threading.Thread(target=self._run, args=(make,), name="encode-ahead", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[T | None]:
        while True:
            found = self._take()
            if found is None:
                yield None
                continue
            item, error = found
            if error is not None:
                raise error
            if item is None:
                return
            yield item

    def _take(self) -> tuple[T | None, BaseException | None] | None:
        """Ask for the next item and wait for it; None where it did not come in time."""
        room = self._room
        with room.changed:
            self.is_next = self._is_asked = True
            room.changed.notify_all()
            if not room.changed.wait_for(lambda: self._items, TICK_SECONDS):
                return None
            self._is_asked = False
            item, n_bytes, error = self._items.popleft()
            room.n_bytes -= n_bytes
            room.changed.notify_all()
        return item, error

    def join(self) -> None:
        self._thread.join(JOIN_SECONDS)

    def _run(self, make: Callable[[], Iterator[T]]) -> None:
        try:
            with until(self._cancel):
                items = make()
                while self._wait(self._may_begin):
                    item = next(items, None)
                    if item is None:
                        self._put(None, 0, None)
                        return
                    self._put(item, self._size(item), None)
        except BaseException as error:
            self._put(None, 0, error)

    def _may_begin(self) -> bool:
        return self._depth > 0 or (self._is_asked and not self._items)

    def _put(self, item: T | None, n_bytes: int, error: BaseException | None) -> None:
        room = self._room

        def has_room() -> bool:
            if self.is_next and not self._items:
                return True
            return len(self._items) < self._depth and room.n_bytes + n_bytes <= room.max_bytes

        with room.changed:
            if self._wait(has_room):
                self._items.append((item, n_bytes, error))
                room.n_bytes += n_bytes
                room.changed.notify_all()

    def _wait(self, condition: Callable[[], bool]) -> bool:
        """Wait until it is so; False when it is time to end."""
        with self._room.changed:
            while not self._cancel.is_set:
                if self._room.changed.wait_for(condition, TICK_SECONDS):  # on Windows nothing ends a wait without end
                    return True
        return False


def _weightless(item: object) -> int:
    return 0


def read_ahead(
    makers: Iterable[Callable[[], Iterator[T]]],
    n_ahead: int,
    depth: int = 3,
    max_bytes: float = float("inf"),
    size: Callable[[T], int] = _weightless,
    cancel: Cancel = NEVER,
) -> Iterator[T | None]:
    """Yield the items of all iterators in order, with up to `n_ahead` of them running, `depth` items ahead each.

    >>> [item for item in read_ahead([lambda: iter("ab"), lambda: iter("c")], n_ahead=2) if item]
    ['a', 'b', 'c']

    None comes in between whenever nothing else came for TICK_SECONDS. By their `size` no more than `max_bytes` wait
    here, unless a single item is more. With a depth of 0 an iterator is only asked when it is waited for. What an
    iterator raises is raised here when its turn comes. Leaving early stops the threads, and so does `cancel`.
    """
    stop, room = Cancel(cancel), _Room(max_bytes)
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


def iter_blocks(
    sources: Sequence[Source], start: int, n_ahead: int, max_bytes: int, cancel: Cancel = NEVER
) -> Iterator[Block | None]:
    """Yield the blocks of all sources, the first from `start` on; None whenever a while has passed without one.

    Raises `InputError` for an input that changes while it is read.
    """
    starts = [start] + [0] * len(sources)
    makers = [functools.partial(_source_blocks, *pair) for pair in zip(sources, starts, strict=False)]
    return read_ahead(makers, max(n_ahead, 1), 3 if n_ahead else 0, max_bytes, _carried_bytes, cancel)


def _source_blocks(source: Source, start: int) -> Iterator[Block]:
    yield from source.iter_blocks(start)
    check_unchanged(source.input)


def _carried_bytes(block: Block) -> int:
    return block.n_bytes if block.data is not None else 0
