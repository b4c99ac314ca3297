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
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

from ..remote.network import Data, Network
from ..support.errors import GrownError, InputError, MemoryLimitError
from ..support.model import Change, Changes, Input, ReadOptions, name_hint
from ..support.ranged import RangedFile
from ..support.units import format_size
from .blocks import BLOCK_BYTES, Batch, Block, batch_of
from .column import NoTextError, choose_column, find_field, read_column, repeated_bytes, take_column, take_text
from .parquet_pages import DICTIONARY, PLAIN, Pages, decoded_bytes, measure
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


@dataclass(frozen=True)
class Parquet:
    """A `.parquet` file."""

    number: int
    input: Input
    options: ReadOptions
    block_bytes: int = BLOCK_BYTES
    unit: str = "row"
    network: Network = field(default_factory=Network, repr=False, kw_only=True)

    def iter_blocks(self, start: int = 0) -> Iterator[Block]:
        """Yield runs of row groups, or batches of rows of a large one; one that carries why where all are skipped."""
        metadata, sizes = _metadata(self.input, self.network), _text_sizes(self)
        if start < metadata.num_rows and (reason := _why_skipped(self)):
            yield self._block(metadata, start, metadata.num_rows, 0, reason)
            return
        first_row = n_bytes = run_start = 0
        run_groups = 0
        for i in range(metadata.num_row_groups):
            group = metadata.row_group(i)
            next_row = first_row + group.num_rows
            if next_row > start:
                group_bytes = sizes[i]
                is_long = group_bytes > MAX_ROW_GROUP_BYTES or group.num_rows > MAX_BLOCK_ROWS
                is_large = is_long and group.num_rows > 1  # a row alone is its own block, whatever its length
                is_full = n_bytes + group_bytes > self.block_bytes or next_row - run_start > MAX_BLOCK_ROWS
                if run_groups and (is_large or is_full):
                    yield self._block(metadata, run_start, first_row, n_bytes)
                    run_groups = n_bytes = 0
                if is_large or first_row < start:
                    yield from self._stream(metadata, i, first_row, max(start, first_row))
                else:
                    if not run_groups:
                        run_start = first_row
                    run_groups += 1
                    n_bytes += group_bytes
            first_row = next_row
        if run_groups:
            yield self._block(metadata, run_start, first_row, n_bytes)

    def read(self, block: Block) -> Batch:
        """Read the block's rows, or take the ones that it carries."""
        if isinstance(block.data, str):
            n_rows = block.stop - block.start
            change = Change(0, None, "skipped", f"all {n_rows:,} rows: {block.data}", n_rows)
            return batch_of([], 0, n_rows, Changes([change]))
        if block.data is not None and not isinstance(block.data, Chunks):
            return read_column(block.data, _column(_metadata(self.input, self.network), self)[0], self.options)
        chunks = block.data or find_chunks(self, block)
        name, column = _column(chunks.metadata, self)
        with chunks.open(self) as file, _damage_named(self.input, block.start, block.stop):
            pages = [measure(file, chunks.metadata.row_group(group).column(column)) for group in chunks.groups]
            max_bytes = MAX_GROWTH * max(block.n_bytes, self.block_bytes)
            table = _read_groups(file, chunks, name, pages, max_bytes if block.stop - block.start > 1 else math.inf)
        _check_rows(self.input, block.start, block.stop, len(table))
        return read_column(take_text(table, name), name, self.options)

    def cut(self, block: Block) -> Iterator[Block]:
        """Yield a block's rows anew, in blocks that carry them: for one that came to more than was announced."""
        metadata, first_rows = _metadata(self.input, self.network), _first_rows(self.input, self.network)
        for group in range(bisect_left(first_rows, block.start), bisect_left(first_rows, block.stop)):
            yield from self._stream(metadata, group, first_rows[group], first_rows[group])

    def sample(self, n: int) -> list[Block]:
        """Return rows spread over the text; of a row group the first ones, or of its first MiB where it is here."""
        metadata, first_rows = _metadata(self.input, self.network), _first_rows(self.input, self.network)
        if _why_skipped(self):
            return []
        n = min(n, 16)  # each takes a page or so of decoding
        sizes = [max(size, 1) for size in _text_sizes(self)]
        ends = list(itertools.accumulate(sizes))
        places: dict[int, list[float]] = {}
        for place in (ends[-1] * (k + 0.5) / n for k in range(n if ends else 0)):
            group = bisect_right(ends, place)
            places.setdefault(group, []).append((place - ends[group]) / sizes[group] + 1)
        small, blocks = replace(self, block_bytes=SAMPLE_BYTES), list[Block]()
        for group, shares in places.items():
            reach = min(sizes[group], (n << 20) // len(places))
            stream = small._stream(metadata, group, first_rows[group], first_rows[group])
            blocks += _at(stream, [0.0] if self.input.is_remote else [reach * share for share in shares])
        return blocks

    def text_bytes(self) -> int:
        """Return the decoded size of the text column."""
        return sum(_text_sizes(self))

    def _block(self, metadata: pq.FileMetaData, start: int, stop: int, n_bytes: int, data: Any = None) -> Block:
        share = int(self.input.size * stop / metadata.num_rows) - int(self.input.size * start / metadata.num_rows)
        return Block(self, start, stop, n_bytes, share, data=data)

    def _measure(self, file: BinaryIO, chunk: pq.ColumnChunkMetaData, start: int, stop: int) -> Pages:
        limit, n_bytes = self.options.max_document_bytes, int(chunk.total_uncompressed_size)
        if self.input.is_remote and (limit is None or n_bytes <= limit):
            return Pages(n_bytes, n_bytes, set())  # each page is a request there
        pages = measure(file, chunk, 2 if self.input.is_remote else None)
        if limit is not None and pages.largest > limit:
            raise MemoryLimitError(
                f"{self.input.shown}, rows {start + 1:,} to {stop:,}: a page of {format_size(pages.largest)}, which has"
                f" to be decoded whole, but the memory budget has room for one of {format_size(limit)}",
                "give it more with --memory, or write the file anew with smaller pages"
                " (pyarrow: write_table(..., use_dictionary=False, write_batch_size=1))",
            )
        return pages

    def _stream(self, metadata: pq.FileMetaData, group: int, first_row: int, start: int) -> Iterator[Block]:
        """Decode one row group in order; yield its rows from `start` in blocks that carry them."""
        info = metadata.row_group(group)
        name, column = _column(metadata, self)
        chunk = info.column(column)
        mean_bytes = _text_sizes(self)[group] // max(info.num_rows, 1)
        stop = first_row + info.num_rows
        with open_file(self.input, self.network) as file, _damage_named(self.input, start, stop):
            pages = self._measure(file, chunk, first_row, stop)
        batch_rows = min(BATCH_BYTES // max(mean_bytes, 1), MAX_BATCH_ROWS, MAX_BATCH_BYTES // max(pages.largest, 1))
        _, end = _byte_range(chunk)
        with (
            open_file(self.input, self.network, is_stream=True, stop=end) as file,
            _damage_named(self.input, start, stop),
        ):
            batches = _open(file, metadata, buffer_bytes=STREAM_BUFFER_BYTES).iter_batches(
                batch_size=max(batch_rows, 1),
                row_groups=[group],
                columns=[name],
                use_threads=False,
            )
            held: list[pa.Array] = []
            n_bytes = 0
            held_row = row = first_row
            texts = (take_text(batch, name) for batch in batches)
            for rows in _iter_rows(texts, self.block_bytes):
                if row + len(rows) > start:
                    rows = rows.slice(max(start - row, 0))
                    row = max(start, row)
                    if not held:
                        held_row = row
                    elif n_bytes + rows.nbytes > 2 * self.block_bytes:  # a long row stands alone: it may be too large
                        yield self._block(metadata, held_row, row, n_bytes, _joined(held))
                        held, n_bytes, held_row = [], 0, row
                    held.append(rows)
                    n_bytes += rows.nbytes
                    if len(held) > MAX_HELD:
                        held = _joined(held).chunks
                row += len(rows)
                if n_bytes >= self.block_bytes:
                    yield self._block(metadata, held_row, row, n_bytes, _joined(held))
                    held, n_bytes = [], 0
            if held:
                yield self._block(metadata, held_row, row, n_bytes, _joined(held))
            _check_rows(self.input, first_row, stop, row - first_row)


def _at(blocks: Iterator[Block], places: list[float]) -> Iterator[Block]:
    """Yield the blocks that stand at some places among all (bytes of text, ascending), or else the last."""
    end, left = 0, iter([*places, math.inf])
    place = next(left)
    for block in blocks:
        end += block.n_bytes
        if place < end:
            yield block
            while place < end:
                place = next(left)
        if place == math.inf:
            return


def _joined(arrays: list[pa.Array]) -> pa.ChunkedArray:
    """Join what was decoded a few rows at a time: tiny documents would take several times their text as they are."""
    import pyarrow as pa

    return pa.chunked_array(arrays if len(arrays) == 1 else [pa.concat_arrays(arrays)])


def _read_groups(file: BinaryIO, chunks: Chunks, name: str, pages: Sequence[Pages], max_bytes: float) -> pa.Table:
    """Read a column of row groups; `GrownError` where it comes to more than `max_bytes`, before it takes the memory.

    Of a dictionary's places it is counted what they stand for, unless most stand for a value of their own: so it is
    where a writer made the dictionary, while a column of categories may have more of them than it uses. By another
    encoding that repeats, few rows are decoded at a time.
    """
    import pyarrow as pa

    n_bytes = sum(each.n_bytes for each in pages)
    if n_bytes > max_bytes:
        raise GrownError
    encodings = set[int]().union(*(each.encodings for each in pages)) if max_bytes < math.inf else set[int]()
    fields = find_field(chunks.metadata.schema.to_arrow_schema(), name)
    is_category = not fields or pa.types.is_dictionary(fields[-1].type)
    is_bounded = not is_category and n_bytes + sum(each.repeats for each in pages) <= max_bytes
    is_counted = not encodings <= (PLAIN | DICTIONARY if is_bounded else PLAIN)
    if not is_counted or ("." not in name and encodings <= PLAIN | DICTIONARY):  # Arrow's structs have no dictionaries
        parquet = _open(file, chunks.metadata, dictionary=name if is_counted else None)
        table = parquet.read_row_groups(chunks.groups, [name], use_threads=False)
        if is_counted and repeated_bytes(take_column(table, name)) > max_bytes:
            raise GrownError
        return table
    n_rows = max(min(int(max_bytes) // max(1, *(each.largest for each in pages)), MAX_BATCH_ROWS), 1)
    parquet, n_bytes, batches = _open(file, chunks.metadata), 0, []
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
    """What a block's worker needs of a file: its footer, row groups, and the bytes of their text columns.

    `ranges` are where those are; `data` are what they hold, where they were fetched.
    """

    metadata: pq.FileMetaData
    groups: list[int]
    ranges: list[tuple[int, int]]
    data: list[Data] | None = None

    def open(self, source: Parquet) -> BinaryIO:
        """Open the file, or what was fetched of it."""
        if self.data is None:
            return open_file(source.input, source.network)
        return cast(BinaryIO, _Fetched(source.input.size, self.ranges, self.data))


class _Fetched(RangedFile):
    """A file of which only some ranges are here; `OSError` for a byte that is in none."""

    def __init__(self, size: int, ranges: list[tuple[int, int]], data: list[Data]) -> None:
        super().__init__(size)
        self._ranges = ranges
        self._data = data

    def _read_range(self, start: int, stop: int) -> bytes:
        return bytes(self._find(start, stop))

    def read_buffer(self, size: int, /) -> memoryview:
        """Read without a copy: Arrow calls this where there is one."""
        start = self.tell()
        return self._find(start, self.seek(min(start + size, self._size)))

    def _find(self, start: int, stop: int) -> memoryview:
        at = bisect_right(self._ranges, start, key=lambda range: range[0]) - 1
        if at < 0 or stop > self._ranges[at][1]:
            raise OSError(f"bytes {start:,} to {stop:,} belong to no column of text")
        first = self._ranges[at][0]
        return memoryview(self._data[at])[start - first : stop - first]


def find_chunks(source: Parquet, block: Block) -> Chunks:
    """Return which bytes of the file a block needs; columns of text that are near one another make one range."""
    metadata, first_rows = _metadata(source.input, source.network), _first_rows(source.input, source.network)
    groups = list(range(bisect_left(first_rows, block.start), bisect_left(first_rows, block.stop)))
    _, column = _column(metadata, source)
    ranges = [_byte_range(metadata.row_group(group).column(column)) for group in groups]
    if not all(0 <= start <= stop <= source.input.size for start, stop in ranges):
        raise InputError(f"{source.input.shown}: damaged: a column ends behind the file", "fetch the file again")
    return Chunks(metadata, groups, join_ranges(ranges))


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
    metadata = _metadata(source.input, source.network)
    if _why_skipped(source):
        return 0.0
    _, column = _column(metadata, source)
    groups = (metadata.row_group(i) for i in range(metadata.num_row_groups))
    n_bytes = sum(int(group.column(column).total_compressed_size) for group in groups)
    return n_bytes / max(source.input.size, 1)


def n_rows(source: Parquet) -> int:
    """Return how many rows there are, by the footer."""
    return 0 if _why_skipped(source) else int(_metadata(source.input, source.network).num_rows)


def _byte_range(chunk: pq.ColumnChunkMetaData) -> tuple[int, int]:
    start = min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)
    return start, start + chunk.total_compressed_size


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


def _iter_rows(columns: Iterable[pa.Array], max_bytes: int) -> Iterator[pa.Array]:
    """Yield the columns; where one holds more than `max_bytes`, row by row."""
    for column in columns:
        if column.nbytes <= max_bytes:
            yield column
        else:
            yield from (column.slice(i, 1) for i in range(len(column)))


def check_parquet(source: Parquet) -> None:
    """Raise `InputError` unless the file is parquet and has the text column as text, or may be skipped."""
    metadata = _metadata(source.input, source.network)
    if not source.options.skip_bad:
        _column(metadata, source)


def find_column_error(source: Parquet) -> InputError | None:
    """Return what is wrong with the text column of a file, None where the file itself cannot be read."""
    try:
        metadata = _metadata(source.input, source.network)
    except InputError:
        return None
    try:
        _column(metadata, source)
    except InputError as error:
        return error
    return None


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
            raise InputError(
                f"{input.shown}: not a whole parquet file ({str(error).partition(chr(10))[0]})", "fetch the file again"
            ) from None


def _column(metadata: pq.FileMetaData, source: Parquet) -> tuple[str, int]:
    """Return the name of the column of texts, and which physical column it is."""
    leaves = [metadata.schema.column(i).path for i in range(len(metadata.schema))]
    try:
        fields = choose_column(metadata.schema.to_arrow_schema(), leaves, source.options.text_columns)
    except NoTextError as error:
        hint = name_hint(source.options.text_column, error.columns, "columns of text", source.number == 0)
        raise InputError(
            f"{source.input.shown}: {error.message}", f"{hint}; or skip the rows of such files with --skip-bad"
        ) from None
    name = ".".join(field.name for field in fields)
    return name, leaves.index(name)


def _why_skipped(source: Parquet) -> str:
    """Return why a file without its column is passed over; "" where it is read."""
    if source.options.skip_bad:
        try:
            _column(_metadata(source.input, source.network), source)
        except InputError as error:
            return error.message.removeprefix(f"{source.input.shown}: ")
    return ""


@functools.lru_cache(maxsize=N_FOOTERS)
def _text_sizes(source: Parquet) -> list[int]:
    """Return about how much text each row group holds (bytes)."""
    metadata = _metadata(source.input, source.network)
    if _why_skipped(source):
        return [0] * metadata.num_row_groups
    _, column = _column(metadata, source)
    if source.input.is_remote:  # a request for each row group would cost more than it tells
        return [metadata.row_group(i).column(column).total_uncompressed_size for i in range(metadata.num_row_groups)]
    with open_file(source.input, source.network) as file:
        return [decoded_bytes(file, metadata.row_group(i).column(column)) for i in range(metadata.num_row_groups)]


@functools.lru_cache(maxsize=N_FOOTERS)
def _first_rows(input: Input, network: Network) -> list[int]:
    """Return the number of the first row of each row group."""
    metadata = _metadata(input, network)
    n_rows = (metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
    return list(itertools.accumulate(n_rows, initial=0))[:-1]
