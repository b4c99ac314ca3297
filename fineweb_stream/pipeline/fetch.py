"""The stage before the workers: inputs are cut into blocks, and what lies behind a network is fetched ahead.

Each input is cut by a thread of its own: the main thread never waits for a pipe or a network. Streams are read ahead,
several at once, so that decompression does not wait for its turn. Of parquet at a URL the bytes that a block needs are
asked for as soon as the block is known and there is room for them: a worker never waits for a network.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar, cast

from ..inputs.blocks import Block, Source
from ..inputs.parquet import MAX_GAP_BYTES, Chunks, Parquet, find_chunks, join_ranges, text_share
from ..inputs.storage import check_unchanged, remote_file
from ..remote.network import MAX_RANGE_BYTES, Data, Fetcher, Network
from ..support.cancel import NEVER, TICK_SECONDS, Cancel

T = TypeVar("T")
U = TypeVar("U")

JOIN_SECONDS = 5.0
"""How long a thread is waited for at the end: on Windows nothing ends the read of a silent pipe."""

STREAM_DEPTH, FETCH_DEPTH = 3, 1000
"""How many blocks of a stream wait ready; how many of a parquet file are asked for, where there is room for them."""

PARQUET_AHEAD = 4
"""How many parquet files at URLs are begun at once, so that no one waits for a footer."""


MEASURED_BYTES = 1 << 20
"""What each connection brings to measure the network."""


@dataclass(frozen=True)
class Piece(Generic[T]):
    """An item, what it takes while it waits (bytes), and what begins to fetch what takes its place, if anything."""

    item: T
    n_bytes: int
    begin: Callable[[], Future[T]] | None = None


class _Room:
    """What may wait in all readers together: `max_bytes`, and one item of the reader whose turn it is.

    Those share an eighth before which a reader has not asked for all of its own, and begin after the first: else what
    comes last would take the place, or a connection, of what is needed next.
    """

    def __init__(self, max_bytes: float) -> None:
        self.changed = threading.Condition()
        self.max_bytes = max_bytes
        self.n_bytes = 0
        self.n_later_bytes = 0
        self.is_begun = False


class _Reader(Generic[T]):
    """Runs an iterator in a thread, `depth` items ahead where there is room; with 0 only when one is waited for."""

    def __init__(
        self,
        make: Callable[[], Iterator[Piece[T]]],
        depth: int,
        room: _Room,
        cancel: Cancel,
        before: _Reader[T] | None = None,
    ) -> None:
        self._items: deque[tuple[Future[T | None], int]] = deque()  # None is the end
        self._n_bytes = 0
        self._depth, self._room, self._cancel = depth, room, cancel
        self._is_asked = self._is_next = self._is_first = self._has_all = False
        self._after: _Reader[T] | None = None
        if before:
            before._after = self
            before._pass_on()
        self._thread = threading.Thread(target=self._run, args=(make,), name="encode-ahead", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[T | None]:
        while True:
            future = self._take()
            if future is None:
                yield None
                continue
            item = future.result()
            if item is None:
                return
            del future  # it is not held here while the workers have it
            yield item

    def _take(self) -> Future[T | None] | None:
        """Ask for the next item and wait for it; None where it did not come in time."""
        room = self._room
        with room.changed:
            self._is_next = True
            self._come_first()
            self._is_asked = True
            room.changed.notify_all()
            if not room.changed.wait_for(lambda: self._items and self._items[0][0].done(), TICK_SECONDS):
                return None
            self._is_asked = False
            future, n_bytes = self._items.popleft()
            self._n_bytes -= n_bytes
            room.n_bytes -= n_bytes
            room.changed.notify_all()
        return future

    def join(self) -> None:
        self._thread.join(JOIN_SECONDS)
        for future, _ in self._items:
            future.cancel()

    def _run(self, make: Callable[[], Iterator[Piece[T]]]) -> None:
        ended: Future[T | None] = Future()
        try:
            pieces = make()
            while self._wait(self._may_begin):
                piece = next(pieces, None)
                if piece is None:
                    ended.set_result(None)
                    break
                self._put(piece)
                del piece
        except BaseException as error:
            ended.set_exception(error)
        with self._room.changed:
            self._has_all = True
            self._pass_on()
        self._put(Piece(None, 0, lambda: ended))

    def _come_first(self) -> None:
        """Share all the room there is."""
        if not self._is_first:
            self._is_first = True
            self._room.n_later_bytes -= self._n_bytes
            self._room.changed.notify_all()
            self._pass_on()

    def _pass_on(self) -> None:
        """Let the next one come first, too, once this one has asked for all that it has."""
        with self._room.changed:
            if self._is_first and self._has_all and self._after:
                self._after._come_first()

    def _may_begin(self) -> bool:
        return self._depth > 0 or (self._is_asked and not self._items)

    def _put(self, piece: Piece[Any]) -> None:
        room = self._room

        def has_room() -> bool:
            if self._is_next and not self._items:
                return True
            if not (self._is_next or room.is_begun):
                return False
            is_later_full = not self._is_first and room.n_later_bytes + piece.n_bytes > room.max_bytes / 8
            is_full = room.n_bytes + piece.n_bytes > room.max_bytes
            return len(self._items) < self._depth and not is_full and not is_later_full

        with room.changed:
            if self._wait(has_room):
                future = piece.begin() if piece.begin else _done(piece.item)
                self._items.append((future, piece.n_bytes))
                self._n_bytes += piece.n_bytes
                room.n_bytes += piece.n_bytes
                room.n_later_bytes += 0 if self._is_first else piece.n_bytes
                room.is_begun = True
                future.add_done_callback(self._notify)

    def _notify(self, future: Future[Any]) -> None:
        with self._room.changed:
            self._room.changed.notify_all()

    def _wait(self, condition: Callable[[], bool]) -> bool:
        """Wait until it is so; False when it is time to end."""
        with self._room.changed:
            while not self._cancel.is_set:
                if self._room.changed.wait_for(condition, TICK_SECONDS):  # on Windows nothing ends a wait without end
                    return True
        return False


def _done(item: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(item)
    return future


def read_ahead(
    makers: Iterable[Callable[[], Iterator[Piece[T]]]],
    n_ahead: int,
    depth: int = STREAM_DEPTH,
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
    stop, room = stop or Cancel(), _Room(max_bytes)
    remaining = iter(makers)
    readers: deque[_Reader[T]] = deque()
    try:
        while True:
            while len(readers) < n_ahead and (make := next(remaining, None)):
                readers.append(_Reader(make, depth, room, stop, readers[-1] if readers else None))
            if not readers:
                return
            yield from readers[0]
            readers.popleft().join()
    finally:
        stop.set()
        for reader in readers:
            reader.join()


def count_ahead(sources: Sequence[Source], n_workers: int) -> int:
    """Return how many inputs are read ahead of their turn; 0 where all are files here that any worker can open."""
    n_parquet = PARQUET_AHEAD if any(map(_is_fetched, sources)) else 0
    is_stream = any(s.input.compression or (s.input.is_remote and not _is_fetched(s)) for s in sources)
    return max(n_parquet, n_workers if is_stream else 0)


class Supply:
    """How a run is supplied with blocks: how long they were waited for, and what came from networks (bytes)."""

    waited_seconds = 0.0

    def __init__(self, fetcher: Fetcher | None = None) -> None:
        self._fetcher = fetcher or Fetcher()

    @property
    def n_network_bytes(self) -> int:
        """What came from networks so far."""
        return self._fetcher.n_bytes


def iter_blocks(
    sources: Sequence[Source],
    start: int,
    n_workers: int,
    max_bytes: int,
    cancel: Cancel = NEVER,
    supply: Supply | None = None,
) -> Iterator[Block | None]:
    """Yield the blocks of all sources, the first from `start` on; None whenever a while has passed without one.

    Raises `InputError` for an input that changes while it is read.
    """
    stop, fetcher = Cancel(cancel), sources[0].network.fetcher
    n_ahead, supply = count_ahead(sources, n_workers), supply or Supply(fetcher)
    is_fetching = any(map(_is_fetched, sources))
    starts = [start] + [0] * len(sources)
    blocks = read_ahead(
        [functools.partial(_iter_pieces, *pair, stop) for pair in zip(sources, starts, strict=False)],
        max(n_ahead, 1),
        FETCH_DEPTH if is_fetching else STREAM_DEPTH if n_ahead else 0,
        max(max_bytes, fetcher.ahead_bytes) if is_fetching else max_bytes,
        stop,
    )
    with contextlib.closing(blocks):
        begun = time.monotonic()
        for block in blocks:
            supply.waited_seconds += time.monotonic() - begun
            yield block
            del block
            begun = time.monotonic()
        supply.waited_seconds += time.monotonic() - begun


class Link(NamedTuple):
    """What a run has to fetch from networks (bytes), and what all connections bring together (bytes a second)."""

    n_bytes: int
    bytes_per_second: float


def measure_link(sources: Sequence[Source]) -> Link | None:
    """Measure the network by one request of each connection, spread over the first file; None where all is here."""
    remote = [source for source in sources if source.input.is_remote]
    if not remote:
        return None
    network, file = remote[0].network, remote_file(remote[0].input)
    fetcher = network.fetcher
    n, each = fetcher.n_connections, min(MEASURED_BYTES, file.size // fetcher.n_connections)
    network.read(file, 0, min(file.size, 1))  # where it is is known then
    begun = time.monotonic()
    for future in [fetcher.fetch(file, file.size * i // n, file.size * i // n + each) for i in range(n)]:
        network.result(future)
    share = text_share(remote[0]) if isinstance(remote[0], Parquet) else 1
    n_bytes = sum(int(s.input.size * (share if isinstance(s, Parquet) else 1)) for s in remote)
    return Link(n_bytes, n * each / (time.monotonic() - begun))


def _is_fetched(source: Source) -> bool:
    return source.input.is_remote and isinstance(source, Parquet)


def _iter_pieces(source: Source, start: int, stop: Cancel) -> Iterator[Piece[Block]]:
    fetcher, given = source.network.fetcher, cast(Any, source)
    is_fetched = _is_fetched(source) and fetcher.is_streaming
    own: Source = replace(given, network=Network(fetcher, stop))
    blocks = (replace(block, source=source) for block in own.iter_blocks(start))  # `stop` may be set when one is cut
    yield from _iter_fetched(source, blocks) if is_fetched else map(_piece, blocks)
    check_unchanged(own)


def _piece(block: Block) -> Piece[Block]:
    return Piece(block, block.n_bytes if block.data is not None else 0)


def _iter_fetched(source: Source, blocks: Iterator[Block]) -> Iterator[Piece[Block]]:
    """Yield blocks that become ones which carry the bytes that their workers need; neighbours share a request."""
    assert isinstance(source, Parquet)
    fetcher, max_document_bytes = source.network.fetcher, source.options.max_document_bytes or math.inf
    max_bytes = min(fetcher.ahead_bytes // fetcher.n_connections, MAX_RANGE_BYTES)
    held: list[tuple[Block, Chunks]] = []
    for block in blocks:
        is_named = block.n_bytes > max_document_bytes  # it is one record, and will be named
        chunks = find_chunks(source, block) if block.data is None and not is_named else None
        if held and not (chunks and _is_near(held[0][1], held[-1][1], chunks, max_bytes)):
            yield from _fetched(source, held)
            held = []
        if chunks:
            held.append((block, chunks))
        else:
            yield _piece(block)
    if held:
        yield from _fetched(source, held)


def _is_near(first: Chunks, last: Chunks, chunks: Chunks, max_bytes: float) -> bool:
    """Tell whether one request may bring what lies between, too."""
    gap = chunks.ranges[0][0] - last.ranges[-1][1]
    return 0 <= gap <= MAX_GAP_BYTES and chunks.ranges[-1][1] - first.ranges[0][0] <= max_bytes


def _fetched(source: Parquet, held: Sequence[tuple[Block, Chunks]]) -> Iterator[Piece[Block]]:
    """Yield blocks that become ones which carry what one request, or a few, bring for all of them."""
    file, fetcher = remote_file(source.input), source.network.fetcher
    ranges = join_ranges(range for _, chunks in held for range in chunks.ranges)

    def fetch() -> list[Data]:
        return [fetcher.web.fetch(file, *range) for range in ranges]

    def give(block: Block, chunks: Chunks, data: list[Data]) -> Block:
        return replace(block, data=chunks._replace(ranges=ranges, data=data))

    begin = functools.cache(lambda: fetcher.submit(fetch, priority=1 + source.number))
    for block, chunks in held:
        n_bytes = sum(stop - start for start, stop in chunks.ranges)
        yield Piece(block, n_bytes, functools.partial(_then, begin, functools.partial(give, block, chunks)))


def _then(begin: Callable[[], Future[T]], use: Callable[[T], U]) -> Future[U]:
    """Return what `use` makes of what is begun here."""
    future: Future[U] = Future()

    def pass_on(done: Future[T]) -> None:
        try:
            future.set_result(use(done.result()))
        except BaseException as error:
            future.set_exception(error)

    begin().add_done_callback(pass_on)
    return future
