"""Streams are read in order, each by one thread: several at once, so that decompression does not wait for its turn."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from .waiting import until

T = TypeVar("T")


class _Reader(Generic[T]):
    """Runs an iterator in a thread, `depth` items ahead."""

    def __init__(self, make: Callable[[], Iterator[T]], depth: int, stop: threading.Event) -> None:
        self._items: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(depth)
        self._stop = stop
        self._thread = threading.Thread(target=self._run, args=(make,), name="encode-ahead", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[T]:
        while True:
            item, error = self._items.get()
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
                    if not self._put((item, None)):
                        return
            self._put((None, None))
        except BaseException as error:
            self._put((None, error))

    def _put(self, entry: tuple[T | None, BaseException | None]) -> bool:
        while not self._stop.is_set():
            try:
                self._items.put(entry, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False


def read_ahead(makers: Iterable[Callable[[], Iterator[T]]], n_ahead: int, depth: int = 3) -> Iterator[T]:
    """Yield the items of all iterators in order, with up to `n_ahead` of them running, `depth` items ahead each.

    >>> list(read_ahead([lambda: iter("ab"), lambda: iter("c")], n_ahead=2))
    ['a', 'b', 'c']

    What an iterator raises is raised here when its turn comes. Leaving early stops the threads.
    """
    stop = threading.Event()
    remaining = iter(makers)
    readers: deque[_Reader[T]] = deque()
    try:
        while True:
            while len(readers) < n_ahead and (make := next(remaining, None)):
                readers.append(_Reader(make, depth, stop))
            if not readers:
                return
            yield from readers[0]
            readers.popleft().join()
    finally:
        stop.set()
        for reader in readers:
            reader.join()
