"""Parquet: one text column. Blocks are runs of whole row groups of about a block's size, read in the worker.

A larger row group is decoded in order, batch by batch, and its blocks carry their texts: so memory does not follow the
row group. Only the text column's bytes are read. (Position: the row in the file.)
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

from ..remote.network import Data, Network
from ..support.errors import GrownError, InputError, MemoryLimitError, NoTextError, NotWholeError
from ..support.model import Change, Changes, Input
from ..support.ranged import RangedFile
from ..support.units import format_size
from .blocks import Batch, Block, Source, batch_of
from .column import choose_column, find_field, read_column, repeated_bytes, take_column, take_text
from .parquet_pages import DICTIONARY, PLAIN, Pages, byte_range, decoded_bytes, measure
from .storage import SAMPLE_BYTES, open_file

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

MAX_ROW_GROUP_BYTES = 8 << 20
"""A row group with more text than this is decoded batch by batch (bytes, decompressed)."""

STREAM_BUFFER_BYTES = 2 << 20
"""How much of a large column chunk is read at a time."""

MAX_BLOCK_ROWS = 50_000
"""A row group of more rows is too: tiny documents take more memory as objects than as text."""

MAX_BATCH_ROWS, BATCH_BYTES = 16, 4096
"""How many rows are decoded at a time: this many, or of this much text on average. Few: any of them may be huge."""

MAX_BATCH_BYTES = 16 << 20
"""How much text these may come to, where each of them is as long as a page; a row alone may be more."""

MAX_HELD = 500
"""How many arrays are held for a block before they become one: each takes a kB beside its text."""

MAX_GROWTH = 2
"""How much more than was announced a block may come to (times); one that is more is cut again."""

N_FOOTERS = 8
"""Of how many files the footers are kept; some files are begun before their turn."""

MIN_FOOTER_BYTES, MAX_FOOTER_BYTES = 1 << 16, 1 << 20
"""How much of the end of a file at a URL is asked for at once: a 64th of it holds its footer, or nearly all of that."""

MAX_GAP_BYTES = 256 << 10
"""What of other columns is fetched along so that one request brings several row groups: less than a request costs."""


class Footer(NamedTuple):
    """What a file is read by: its footer, the column of texts, and the rows.

    `column` is the physical one, and `first_rows` are of each row group, and how many rows there are. What is `skipped`
    is all of a file, of which no row group is looked at.
    """

    metadata: pq.FileMetaData
    name: str
    column: int
    first_rows: list[int]
    skipped: Change | None = None

    @property
    def n_rows(self) -> int:
        """How many rows are read."""
        return self.first_rows[-1]

    def chunk(self, group: int) -> pq.ColumnChunkMetaData:
        """Return where the texts of a row group are."""
        return self.metadata.row_group(group).column(self.column)

    def chunks(self) -> Iterator[pq.ColumnChunkMetaData]:
        """Yield where the texts of each row group are."""
        return map(self.chunk, range(len(self.first_rows) - 1))

    def groups(self, block: Block) -> range:
        """Return which row groups a block's rows are."""
        return range(bisect_left(self.first_rows, block.start), bisect_left(self.first_rows, block.stop))


class Parquet(Source):
    """A `.parquet` file."""

    unit = "row"

    @property
    def footer(self) -> Footer:
        """What the footer says; `NotWholeError` or `NoTextError` for a file that is of no use and not skipped."""
        return _footer(self)

    def iter_blocks(self, start: int = 0) -> Iterator[Block]:
        """Yield runs of row groups, or batches of rows of a large one; one that carries why where all are skipped."""
        footer, sizes = self.footer, _text_sizes(self)
        if footer.skipped and start == 0:
            yield Block(self, 0, footer.skipped.n, 0, self.input.size, data=footer.skipped)
        run_start, n_bytes = start, 0
        for group, (first, stop) in enumerate(itertools.pairwise(footer.first_rows)):
            if stop <= start:
                continue
            is_long = sizes[group] > MAX_ROW_GROUP_BYTES or stop - first > MAX_BLOCK_ROWS
            is_large = is_long and stop - first > 1  # a row alone is its own block, whatever its length
            is_full = n_bytes + sizes[group] > self.block_bytes or stop - run_start > MAX_BLOCK_ROWS
            if run_start < first and (is_large or is_full):
                yield self._block(run_start, first, n_bytes)
                run_start, n_bytes = first, 0
            if is_large or first < start:
                yield from self._stream(group, max(start, first))
                run_start = stop
            else:
                n_bytes += sizes[group]
        if run_start < footer.n_rows:
            yield self._block(run_start, footer.n_rows, n_bytes)

    def read(self, block: Block) -> Batch:
        """Read the block's rows, or take the ones that it carries."""
        if isinstance(block.data, Change):
            return batch_of([], 0, block.data.n, Changes([block.data]))
        if block.data is not None and not isinstance(block.data, Chunks):
            return read_column(block.data, self.footer.name, self.options)
        chunks = block.data or find_chunks(self, block)
        footer = chunks.footer
        with chunks.open(self) as file, _damage_named(self.input, block.start, block.stop):
            pages = [measure(file, footer.chunk(group)) for group in chunks.groups]
            max_bytes = MAX_GROWTH * max(block.n_bytes, self.block_bytes)
            table = _read_groups(file, chunks, pages, max_bytes if block.stop - block.start > 1 else math.inf)
        _check_rows(self.input, block.start, block.stop, len(table))
        return read_column(take_text(table, footer.name), footer.name, self.options)

    def cut(self, block: Block) -> Iterator[Block]:
        """Yield a block's rows anew, in blocks that carry them: for one that came to more than was announced."""
        for group in self.footer.groups(block):
            yield from self._stream(group, self.footer.first_rows[group])

    def sample(self, n: int) -> list[Block]:
        """Return rows spread over the text; of a row group the first ones, or of its first MiBs where it is here."""
        n = min(n, 16)  # each takes a page or so of decoding
        sizes = [max(size, 1) for size in _text_sizes(self)]
        ends = list(itertools.accumulate(sizes))
        places: dict[int, list[float]] = {}
        for place in (ends[-1] * (k + 0.5) / n for k in range(n if ends else 0)):
            group = bisect_right(ends, place)
            places.setdefault(group, []).append((place - ends[group]) / sizes[group] + 1)
        blocks: list[Block] = []
        for group, shares in places.items():
            reach = min(sizes[group], (n << 20) // len(places))
            stream = self._stream(group, self.footer.first_rows[group], SAMPLE_BYTES)
            blocks += _at(stream, [0.0] if self.input.is_remote else [reach * share for share in shares])
        return blocks

    def text_bytes(self) -> int:
        """Return the decoded size of the text column."""
        return sum(_text_sizes(self))

    def _block(self, start: int, stop: int, n_bytes: int, data: Any = None) -> Block:
        size, n_rows = self.input.size, self.footer.n_rows
        return Block(self, start, stop, n_bytes, int(size * stop / n_rows) - int(size * start / n_rows), data=data)

    def _stream(self, group: int, start: int, block_bytes: int = 0) -> Iterator[Block]:
        """Decode one row group in order; yield its rows from `start` in blocks that carry them."""
        block_bytes = block_bytes or self.block_bytes
        first_row, stop = self.footer.first_rows[group : group + 2]
        row, held_row = first_row, start
        held: list[pa.Array] = []
        n_bytes = 0
        with _damage_named(self.input, start, stop):
            for texts in self._decode(group, block_bytes):
                texts, row = texts.slice(max(start - row, 0)), row + len(texts)
                if not len(texts):
                    continue
                if held and n_bytes + texts.nbytes > 2 * block_bytes:  # a long row stands alone: may be too large
                    yield self._block(held_row, row - len(texts), n_bytes, _joined(held))
                    held, n_bytes, held_row = [], 0, row - len(texts)
                held.append(texts)
                n_bytes += texts.nbytes
                if len(held) > MAX_HELD:
                    held = _joined(held).chunks
                if n_bytes >= block_bytes:
                    yield self._block(held_row, row, n_bytes, _joined(held))
                    held, n_bytes, held_row = [], 0, row
            if held:
                yield self._block(held_row, row, n_bytes, _joined(held))
            _check_rows(self.input, first_row, stop, row - first_row)

    def _decode(self, group: int, block_bytes: int) -> Iterator[pa.Array]:
        """Yield the texts of a row group a few at a time; where these are more than a block, one by one."""
        footer, chunk = self.footer, self.footer.chunk(group)
        first, stop = footer.first_rows[group : group + 2]
        mean_bytes, largest = _text_sizes(self)[group] // max(stop - first, 1), self._largest_page(first, stop, chunk)
        n_rows = min(BATCH_BYTES // max(mean_bytes, 1), MAX_BATCH_ROWS, MAX_BATCH_BYTES // max(largest, 1))
        with open_file(self.input, self.network, is_stream=True, stop=byte_range(chunk)[1]) as file:
            parquet = _open(file, footer.metadata, buffer_bytes=STREAM_BUFFER_BYTES)
            for batch in parquet.iter_batches(max(n_rows, 1), [group], [footer.name], use_threads=False):
                texts = take_text(batch, footer.name)
                is_much = texts.nbytes > block_bytes
                yield from (texts.slice(i, 1) for i in range(len(texts))) if is_much else [texts]

    def _largest_page(self, first: int, stop: int, chunk: pq.ColumnChunkMetaData) -> int:
        """Return how large the largest page is, which is decoded whole (bytes); `MemoryLimitError` without room."""
        limit, n_bytes = self.options.max_document_bytes, int(chunk.total_uncompressed_size)
        if self.input.is_remote and (limit is None or n_bytes <= limit):
            return n_bytes  # each page is a request there
        with open_file(self.input, self.network) as file:
            largest = measure(file, chunk, 2 if self.input.is_remote else None).largest
        if limit is not None and largest > limit:
            raise MemoryLimitError(
                f"{self.input.shown}, rows {first + 1:,} to {stop:,}: a page of {format_size(largest)}, which has"
                f" to be decoded whole, but the memory budget has room for one of {format_size(limit)}",
                "give it more with --memory, or write the file anew with smaller pages"
                " (pyarrow: write_table(..., use_dictionary=False, write_batch_size=1))",
            )
        return largest


def _at(blocks: Iterator[Block], places: list[float]) -> Iterator[Block]:
    """Yield the blocks that stand at some places among all (bytes of text, ascending), or else the last."""
    end, left = 0, iter([*places, math.inf])
    place, last = next(left), None
    for block in blocks:
        end += block.n_bytes
        last = block
        if place < end:
            yield block
            last = None
            while place < end:
                place = next(left)
        if place == math.inf:
            return
    if last:  # there is less than was announced
        yield last


def _joined(arrays: list[pa.Array]) -> pa.ChunkedArray:
    """Join what was decoded a few rows at a time: tiny documents would take several times their text as they are."""
    import pyarrow as pa

    return pa.chunked_array(arrays if len(arrays) == 1 else [pa.concat_arrays(arrays)])


def _read_groups(file: BinaryIO, chunks: Chunks, pages: Sequence[Pages], max_bytes: float) -> pa.Table:
    """Read the column of row groups; `GrownError` where it comes to more than `max_bytes`, before it takes the memory.

    Of a dictionary's places it is counted what they stand for, unless most stand for a value of their own: so it is
    where a writer made the dictionary, while a column of categories may have more of them than it uses. By another
    encoding that repeats, few rows are decoded at a time.
    """
    import pyarrow as pa

    metadata, name, n_bytes = chunks.footer.metadata, chunks.footer.name, sum(each.n_bytes for each in pages)
    if n_bytes > max_bytes:
        raise GrownError
    encodings = set[int]().union(*(each.encodings for each in pages)) if max_bytes < math.inf else set[int]()
    fields = find_field(metadata.schema.to_arrow_schema(), name)
    is_category = not fields or pa.types.is_dictionary(fields[-1].type)
    is_bounded = not is_category and n_bytes + sum(each.repeats for each in pages) <= max_bytes
    is_counted = not encodings <= (PLAIN | DICTIONARY if is_bounded else PLAIN)
    if not is_counted or ("." not in name and encodings <= PLAIN | DICTIONARY):  # Arrow's structs have no dictionaries
        parquet = _open(file, metadata, dictionary=name if is_counted else None)
        table = parquet.read_row_groups(chunks.groups, [name], use_threads=False)
        if is_counted and repeated_bytes(take_column(table, name)) > max_bytes:
            raise GrownError
        return table
    # Few rows at a time, as there is room for so many pages, and what comes is counted.
    largest = max(each.largest for each in pages)
    n_rows = max(min(int(max_bytes) // max(largest, 1), MAX_BATCH_ROWS), 1)
    parquet, n_bytes, batches = _open(file, metadata), 0, []
    for batch in parquet.iter_batches(n_rows, chunks.groups, [name], use_threads=False):
        n_bytes += batch.nbytes
        if n_bytes > max_bytes:
            raise GrownError
        batches.append(batch)
    return pa.Table.from_batches(batches) if batches else parquet.schema_arrow.empty_table()


def _check_rows(input: Input, start: int, stop: int, n_rows: int) -> None:
    """Raise `InputError` where a file has not the rows that its footer speaks of: Arrow reads on without a word."""
    if n_rows != stop - start:
        raise InputError(
            f"{input.shown}, rows {start + 1:,} to {stop:,}: damaged (only {n_rows:,} rows are there)",
            "fetch the file again",
        )


class Chunks(NamedTuple):
    """What a block's worker needs of a file: its footer, row groups, and where the bytes of their text columns are.

    `fetched` is which ranges were fetched, these among them, and what they hold.
    """

    footer: Footer
    groups: range
    ranges: list[tuple[int, int]]
    fetched: tuple[list[tuple[int, int]], Sequence[Data]] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Let another process have its own bytes, not all that came with them."""
        own = self.fetched and [bytes(_Fetched(0, *self.fetched).find(*range)) for range in self.ranges]
        return Chunks, (self.footer, self.groups, self.ranges, own and (self.ranges, own))

    def open(self, source: Parquet) -> BinaryIO:
        """Open the file, or what was fetched of it."""
        if not self.fetched:
            return open_file(source.input, source.network)
        return cast(BinaryIO, _Fetched(source.input.size, *self.fetched))


class _Fetched(RangedFile):
    """A file of which only some ranges are here; `OSError` for a byte that is in none."""

    def __init__(self, size: int, ranges: list[tuple[int, int]], data: Sequence[Data]) -> None:
        super().__init__(size)
        self._ranges = ranges
        self._data = data

    def _read_range(self, start: int, stop: int) -> bytes:
        return bytes(self.find(start, stop))

    def read_buffer(self, size: int, /) -> memoryview:
        """Read without a copy: Arrow calls this where there is one."""
        start = self.tell()
        return self.find(start, self.seek(min(start + size, self._size)))

    def find(self, start: int, stop: int) -> memoryview:
        """Return a range that is in one of those that are here."""
        at = bisect_right(self._ranges, start, key=lambda range: range[0]) - 1
        if at < 0 or stop > self._ranges[at][1]:
            raise OSError(f"bytes {start:,} to {stop:,} belong to no column of text")
        first = self._ranges[at][0]
        return memoryview(self._data[at])[start - first : stop - first]


def find_chunks(source: Parquet, block: Block) -> Chunks:
    """Return which bytes of the file a block needs; columns of text that are near one another make one range."""
    groups = source.footer.groups(block)
    ranges = [byte_range(source.footer.chunk(group)) for group in groups]
    if not all(0 <= start <= stop <= source.input.size for start, stop in ranges):
        raise InputError(f"{source.input.shown}: damaged: a column ends behind the file", "fetch the file again")
    return Chunks(source.footer, groups, join_ranges(ranges))


def join_ranges(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges of bytes with those made one that a request may bring together.

    >>> join_ranges([(0, 10), (20, 30), (1_000_000, 1_000_010)])
    [(0, 30), (1000000, 1000010)]
    """
    joined: list[tuple[int, int]] = []
    for start, stop in ranges:
        if joined and 0 <= start - joined[-1][1] <= MAX_GAP_BYTES:
            start = joined.pop()[0]
        joined.append((start, stop))
    return joined


def text_share(source: Parquet) -> float:
    """Return which part of the file its text column is: the rest is not read."""
    n_bytes: int = sum(chunk.total_compressed_size for chunk in source.footer.chunks())
    return n_bytes / max(source.input.size, 1)


@contextlib.contextmanager
def _damage_named(input: Input, start: int, stop: int) -> Iterator[None]:
    """Turn what Arrow says of rows that it cannot decode into an `InputError`."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        where, reason = f"{input.shown}, rows {start + 1:,} to {stop:,}", str(error).partition("\n")[0]
        if isinstance(error, NotImplementedError) or "Not yet implemented" in reason:
            message = f"{where}: pyarrow {pa.__version__} cannot read them ({reason})"
            raise InputError(message, "write the file anew with another encoding") from error
        raise InputError(f"{where}: damaged ({reason})", "fetch the file again") from error


def _open(
    file: Any, metadata: pq.FileMetaData | None = None, buffer_bytes: int = 0, dictionary: str | None = None
) -> pq.ParquetFile:
    """Open for reading in order: a column chunk in one read, or through a buffer; checksums, where there are, count.

    With `pre_buffer` a batch reader would hold the whole row group. The column `dictionary` is read as one.
    """
    import pyarrow.parquet as pq

    return pq.ParquetFile(
        file,
        metadata=metadata,
        read_dictionary=[dictionary] if dictionary else None,
        pre_buffer=False,
        buffer_size=buffer_bytes,
        page_checksum_verification=True,
    )


@functools.lru_cache(maxsize=N_FOOTERS)
def _metadata(input: Input, network: Network) -> pq.FileMetaData:
    """Read the footer: large in files of many row groups, so it is kept for the blocks that follow."""
    try:
        import pyarrow as pa
    except ImportError:
        raise InputError(f"{input.shown}: reading parquet needs pyarrow", "pip install pyarrow") from None
    n_bytes = min(max(input.size // 64, MIN_FOOTER_BYTES), MAX_FOOTER_BYTES)
    with open_file(input, network, buffer_bytes=n_bytes) as file:
        try:
            return _open(file).metadata
        except (pa.ArrowException, OSError) as error:
            reason = str(error).partition("\n")[0]
            if getattr(error, "errno", None):  # of the disk, and not of what is on it
                raise InputError(f"{input.shown}: {reason}", "check the disk, and give the command again") from None
            raise NotWholeError(f"{input.shown}: not a whole parquet file ({reason})", "fetch the file again") from None


@functools.lru_cache(maxsize=N_FOOTERS)
def _footer(source: Parquet) -> Footer:
    """Find the column of texts; a file of no use is skipped or, unless it is the first, that is said to be a way."""
    shown, n_rows = source.input.shown, 1
    try:
        metadata = _metadata(source.input, source.network)
        n_rows = metadata.num_rows
        leaves = [metadata.schema.column(i).path for i in range(len(metadata.schema))]
        name = choose_column(metadata.schema.to_arrow_schema(), leaves, source)
    except (NotWholeError, NoTextError) as error:
        is_whole = isinstance(error, NoTextError)
        if not source.options.skip_bad:
            what = "the rows of such files" if is_whole else "such files"
            has_others = source.number > source.first  # that were of use
            way = f"; or skip {what} with --skip-bad" if has_others else ""
            raise type(error)(error.message, error.hint + way) from None
        what = f"all {n_rows:,} rows" if is_whole else "the whole file, however many rows it had"
        detail = f"{what}: {error.message.removeprefix(f'{shown}: ')}"
        return Footer(None, "", 0, [0], Change(0, None, "skipped", detail, n_rows))
    group_rows = (metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
    return Footer(metadata, name, leaves.index(name), [*itertools.accumulate(group_rows, initial=0)])


@functools.lru_cache(maxsize=N_FOOTERS)
def _text_sizes(source: Parquet) -> list[int]:
    """Return about how much text each row group holds (bytes)."""
    if source.input.is_remote:  # a request for each row group would cost more than it tells
        return [chunk.total_uncompressed_size for chunk in source.footer.chunks()]
    with open_file(source.input, source.network) as file:
        return [decoded_bytes(file, chunk) for chunk in source.footer.chunks()]
