"""The stage before the workers: cut inputs into blocks, and fetch what is remote ahead of its turn.

Files on this machine are cut by the main thread. Every other input, and a compressed one, is cut in its own thread: the
main thread never waits for a pipe or a network. Streams are read ahead, many at once, so that decompression does not
wait for its turn. For parquet at a URL, the bytes of a block are requested as soon as the block is known and there is
room for them: a worker never waits for a network.
"""

from __future__ import annotations

import functools
import math
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

from ..inputs.blocks import Block, Source
from ..inputs.parquet import Chunks, Parquet, find_chunks, join_ranges, text_share
from ..inputs.storage import check_unchanged, remote_file
from ..remote.network import MAX_RANGE_BYTES, Data, Network
from ..support.cancel import NEVER, Cancel
from ..support.redact import is_web
from .ahead import Piece, read_ahead

STREAM_DEPTH, FETCH_DEPTH = 3, 1000
"""How many blocks of a stream wait ready; how many of a parquet file are requested, if there is room for them."""

PARQUET_AHEAD = 4  # how many parquet files at URLs are begun at once, so that nothing waits for a footer
MEASURED_BYTES = 1 << 20  # how much each connection fetches to measure the network


def count_ahead(sources: Sequence[Source], n_workers: int) -> int:
    """Return how many inputs are read ahead of their turn; 0 if none is compressed or remote."""
    n_parquet = PARQUET_AHEAD if any(map(_is_fetched, sources)) else 0
    is_stream = any(s.input.compression or (s.input.is_remote and not _is_fetched(s)) for s in sources)
    return max(n_parquet, n_workers if is_stream else 0)


def iter_blocks(
    sources: Sequence[Source], start: int, n_workers: int, max_bytes: int, cancel: Cancel = NEVER
) -> Generator[Block | None, None, None]:
    """Yield the blocks of all sources, the first source from `start` on; None whenever no block comes for a while.

    What is fetched comes after a first None, and is being fetched from then on.

    Raises `InputError` for an input that changes while it is read.
    """
    stop, n_ahead = Cancel(cancel), count_ahead(sources, n_workers)
    is_fetching = any(map(_is_fetched, sources))
    makers = [functools.partial(_iter_pieces, source, start if source is sources[0] else 0, stop) for source in sources]
    if not n_ahead and not any(source.input.is_stdin for source in sources):
        return (piece.item for make in makers for piece in make())
    return read_ahead(
        makers,
        max(n_ahead, 1),
        FETCH_DEPTH if is_fetching else STREAM_DEPTH if n_ahead else 0,
        max(max_bytes, sources[0].network.fetcher.ahead_bytes) if is_fetching else max_bytes,
        stop,
    )


class Link(NamedTuple):
    """The bytes a run must fetch, and the rate of all connections together (bytes per second)."""

    n_bytes: int
    bytes_per_second: float

    @property
    def seconds(self) -> float:
        """How long it takes to fetch them."""
        return self.n_bytes / max(self.bytes_per_second, 1)


def measure_link(sources: Sequence[Source]) -> Link | None:
    """Measure the network by a request per connection, spread over the largest remote file; None if there is none."""
    remote = [source for source in sources if source.input.is_remote]
    if not remote:
        return None
    largest = max(remote, key=lambda source: source.input.size)  # the first may have a few bytes
    network, file = largest.network, remote_file(largest.input)
    fetcher = network.fetcher
    n, each = fetcher.n_connections, min(MEASURED_BYTES, file.size // fetcher.n_connections)
    network.read(file, 0, min(file.size, 1))  # so that redirects are not timed
    begun = time.monotonic()
    for future in [fetcher.fetch(file, file.size * i // n, file.size * i // n + each) for i in range(n)]:
        network.result(future)
    share = text_share(largest) if isinstance(largest, Parquet) else 1
    n_bytes = sum(int(s.input.size * (share if isinstance(s, Parquet) else 1)) for s in remote)
    return Link(n_bytes, n * each / (time.monotonic() - begun)) if n_bytes else None


def _is_fetched(source: Source) -> bool:
    return source.input.is_remote and isinstance(source, Parquet)


def _iter_pieces(source: Source, start: int, stop: Cancel) -> Iterator[Piece[Block]]:
    fetcher, given = source.network.fetcher, cast(Any, source)
    is_fetched = _is_fetched(source) and fetcher.is_streaming
    own: Source = replace(given, network=Network(fetcher, stop))
    blocks = (replace(block, source=source) for block in own.iter_blocks(start))  # may be cut again after `stop`
    held: deque[Piece[Block]] = deque()
    for piece in _iter_fetched(source, blocks) if is_fetched else map(_piece, blocks):
        held.append(piece)
        del piece  # else it would be kept alive while the workers use it
        if len(held) > 1:
            yield held.popleft()
    if not is_web(source.input.path):  # whose last answer has said that the file is as it was
        check_unchanged(own)  # before the last block, which ends where the file did
    yield from held


def _piece(block: Block) -> Piece[Block]:
    return Piece(block, block.n_bytes if block.data is not None else 0)


def _iter_fetched(source: Source, blocks: Iterator[Block]) -> Iterator[Piece[Block]]:
    """Yield blocks that will carry the bytes their workers need; neighbouring blocks share a request.

    A request is no longer than the part of the file before it, from the first block on: so that one is there soon.
    """
    assert isinstance(source, Parquet)
    fetcher, max_document_bytes = source.network.fetcher, source.options.max_document_bytes or math.inf
    most_bytes = min(fetcher.ahead_bytes // fetcher.n_connections, MAX_RANGE_BYTES)
    held: list[tuple[Block, Chunks]] = []
    begin: int | None = None
    max_bytes = 0
    for block in blocks:
        is_named = block.n_bytes > max_document_bytes  # a single record, which will be refused
        chunks = find_chunks(source, block) if block.data is None and not is_named else None
        if held and not (chunks and _is_near(held[0][1], held[-1][1], chunks, max_bytes)):
            yield from _fetched(source, held)
            held = []
        if chunks:
            start = chunks.ranges[0][0]
            begin = start if begin is None else begin
            max_bytes = max_bytes if held else min(most_bytes, start - begin)
            held.append((block, chunks))
        else:
            yield _piece(block)
    yield from _fetched(source, held)


def _is_near(first: Chunks, last: Chunks, chunks: Chunks, max_bytes: float) -> bool:
    """Tell whether one request may fetch all of these, with the bytes between them."""
    is_joined = len(join_ranges([last.ranges[-1], chunks.ranges[0]])) == 1
    return is_joined and chunks.ranges[-1][1] - first.ranges[0][0] <= max_bytes


def _fetched(source: Parquet, held: Sequence[tuple[Block, Chunks]]) -> Iterator[Piece[Block]]:
    """Yield blocks that will carry their part of what one request, or a few, fetches for all of them.

    The bytes between two blocks count as the second's.
    """
    file, fetcher = remote_file(source.input), source.network.fetcher
    ranges = join_ranges(range for _, chunks in held for range in chunks.ranges)

    def fetch() -> list[Data]:
        return [fetcher.web.fetch(file, *range) for range in ranges]

    def give(block: Block, chunks: Chunks, data: list[Data]) -> Block:
        return replace(block, data=chunks._replace(fetched=(ranges, data)))

    begin = functools.cache(lambda: fetcher.submit(fetch, priority=1 + source.number))
    end = ranges[0][0] if ranges else 0
    for block, chunks in held:
        n_bytes = chunks.ranges[0][0] - end + sum(stop - start for start, stop in chunks.ranges)
        end = chunks.ranges[-1][1]
        yield Piece(block, n_bytes, begin, functools.partial(give, block, chunks))
