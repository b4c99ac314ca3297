"""Parquet: one text column. Blocks are runs of whole row groups of about a block's size, read in the worker.

A larger row group is decoded in order, batch by batch, and its blocks carry their texts, so that memory does not grow
with row groups. Only the text column's bytes are read. (Position: the row in the file.)
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

from ..remote.network import Data, Network
from ..support.errors import GrownError, InputError, MemoryLimitError, NoTextError, NotWholeError
from ..support.model import Change, Changes, Input
from ..support.ranged import RangedFile
from ..support.units import format_size
from .blocks import Batch, Block, Source, batch_of
from .column import choose_column, find_field, joined, read_column, repeated_bytes, take_column
from .parquet_pages import DICTIONARY, PLAIN, Pages, byte_range, decoded_bytes, measure
from .storage import SAMPLE_BYTES, open_file

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

MAX_ROW_GROUP_BYTES = 8 << 20  # a row group with more text than this is decoded batch by batch (decompressed bytes)
STREAM_BUFFER_BYTES = 2 << 20  # how much of a large column chunk is read at a time (bytes)
MAX_BLOCK_ROWS = 50_000  # most rows of a block, or of a row group read whole: tiny documents take more memory than text
MAX_BATCH_ROWS = 16  # how many rows of a large row group are decoded at a time
MAX_BATCH_BYTES = 16 << 20  # how much text that may be if each row is a page of the largest size
MAX_HELD = 500  # arrays of a few rows that a block collects before they are joined: each takes a kB besides its text
MAX_GROWTH = 2  # a block with more than this many times the planned text is cut again
N_FOOTERS = 8  # how many files' footers are cached: some files are begun before their turn
MAX_GAP_BYTES = 256 << 10  # the largest gap between ranges that one request fetches: it costs less than another request

MIN_FOOTER_BYTES, MAX_FOOTER_BYTES = 1 << 16, 1 << 20
"""Bounds of what is fetched first of a remote file's end: a 64th of the file, which has all or most of its footer."""

SIGNATURE_BYTES = 28
"""By how much the footer of a file with encrypted columns is longer than its metadata (parquet's Encryption.md)."""


class Footer(NamedTuple):
    """What is needed to read a file: its footer, the text column, and the rows.

    `column` is the index of the physical column; `first_rows` has the first row of each row group, and then the number
    of all rows. `skipped` is set if the whole file is skipped: then it has no row groups here.
    """

    metadata: pq.FileMetaData
    name: str
    column: int
    first_rows: list[int]
    skipped: Change | None = None

    @property
    def n_rows(self) -> int:
        """The number of rows to read."""
        return self.first_rows[-1]

    @property
    def n_bytes(self) -> int:
        """The decompressed size of the text column, with each dictionary once."""
        return sum(chunk.total_uncompressed_size for chunk in self.chunks())

    def chunk(self, group: int) -> pq.ColumnChunkMetaData:
        """Return the text column's chunk in a row group."""
        return self.metadata.row_group(group).column(self.column)

    def chunks(self) -> Iterator[pq.ColumnChunkMetaData]:
        """Return the text column's chunk in each row group."""
        return map(self.chunk, range(len(self.first_rows) - 1))

    def groups(self, block: Block) -> range:
        """Return the row groups that a block consists of."""
        return range(bisect_left(self.first_rows, block.start), bisect_left(self.first_rows, block.stop))


class Parquet(Source):
    """A `.parquet` file."""

    unit = "row"

    @property
    def footer(self) -> Footer:
        """The file's footer. Raises `NotWholeError` or `NoTextError` for a file that is unusable and not skipped."""
        return _footer(self)

    def iter_blocks(self, start: int = 0) -> Iterator[Block]:
        """Yield runs of row groups, or parts of a large one; for a skipped file, a block that carries the reason."""
        footer, sizes = self.footer, _text_sizes(self)
        if footer.skipped and start == 0:
            yield Block(self, 0, footer.skipped.n, 0, self.input.size, data=footer.skipped)
        run_start, n_bytes = start, 0
        for group, (first, stop) in enumerate(itertools.pairwise(footer.first_rows)):
            if stop <= start:
                continue
            is_long = sizes[group] > MAX_ROW_GROUP_BYTES or stop - first > MAX_BLOCK_ROWS
            is_large = is_long and stop - first > 1  # a single row is a block, whatever its length
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
        """Read the block's rows, or take those that it carries."""
        import pyarrow as pa

        if isinstance(block.data, Change):
            return batch_of([], 0, block.data.n, Changes([block.data]))
        if block.data is not None and not isinstance(block.data, Chunks):
            return read_column(pa.chunked_array([block.data]), self.footer.name, self.options)
        chunks = block.data or find_chunks(self, block)
        footer = chunks.footer
        with chunks.open(self) as file, _damage_named(self.input, block.start, block.stop):
            pages = [measure(file, footer.chunk(group)) for group in chunks.groups]
            max_bytes = MAX_GROWTH * max(block.n_bytes, self.block_bytes)
            table = _read_groups(file, chunks, pages, max_bytes if block.stop - block.start > 1 else math.inf)
        _check_rows(self.input, block.start, block.stop, len(table))
        return read_column(take_column(table, footer.name), footer.name, self.options)

    def cut(self, block: Block) -> Iterator[Block]:
        """Yield the rows of a block with more text than planned (`GrownError`) as smaller blocks that carry them."""
        for group in self.footer.groups(block):
            yield from self._stream(group, self.footer.first_rows[group])

    def sample(self, n: int) -> list[Block]:
        """Return rows spread over the text: the first ones of many row groups, or some of the first MiBs of a few.

        Of a remote row group, only the first ones.
        """
        n = min(n, 16)  # each takes a page or so of decoding
        sizes = [max(size, 1) for size in _text_sizes(self)]
        ends = list(itertools.accumulate(sizes))
        chosen = Counter(bisect_right(ends, ends[-1] * (k + 0.5) / n) for k in range(n if ends else 0))
        blocks: list[Block] = []
        for group, n_wanted in chosen.items():
            is_first = self.input.is_remote or len(chosen) == n
            stream = self._stream(group, self.footer.first_rows[group], SAMPLE_BYTES)
            found = list(_first_of(stream, 1 if is_first else min(sizes[group], (n << 20) // len(chosen))))
            blocks += found[:: max(len(found) // n_wanted, 1)][:n_wanted]
        return blocks

    def text_bytes(self) -> int:
        """Return the decoded size of the text column (bytes)."""
        return sum(_text_sizes(self))

    def _block(self, start: int, stop: int, n_bytes: int, data: Any = None) -> Block:
        size, n_rows = self.input.size, self.footer.n_rows
        return Block(self, start, stop, n_bytes, int(size * stop / n_rows) - int(size * start / n_rows), data=data)

    def _stream(self, group: int, start: int, sample_bytes: int = 0) -> Iterator[Block]:
        """Decode one row group in order; yield its rows from `start` on in blocks that carry them.

        Samples are small blocks, and nothing is fetched ahead for them.
        """
        block_bytes = sample_bytes or self.block_bytes
        first_row, stop = self.footer.first_rows[group : group + 2]
        next_row, held_row = first_row, start
        held: list[pa.Array] = []
        n_bytes = 0
        with _damage_named(self.input, start, stop):
            for texts in self._decode(group, block_bytes, is_ahead=not sample_bytes):
                row, next_row = next_row, next_row + len(texts)
                if next_row <= start:
                    continue
                texts = texts.slice(max(start - row, 0))
                if held and n_bytes + texts.nbytes > block_bytes:  # a longer row is a block: it may be too large
                    yield self._block(held_row, row, n_bytes, joined(held))
                    held, n_bytes, held_row = [], 0, row
                held.append(texts)
                n_bytes += texts.nbytes
                if len(held) > MAX_HELD:
                    held = [joined(held)]
            if held:
                yield self._block(held_row, next_row, n_bytes, joined(held))
            _check_rows(self.input, first_row, stop, next_row - first_row)

    def _decode(self, group: int, block_bytes: int, is_ahead: bool) -> Iterator[pa.Array]:
        """Yield the texts of a row group a few at a time; one by one if these have more than `block_bytes`."""
        import pyarrow as pa

        footer, stop = self.footer, byte_range(self.footer.chunk(group))[1]
        n_rows = min(MAX_BATCH_BYTES // max(self._largest_page(group), 1), MAX_BATCH_ROWS)
        with open_file(self.input, self.network, is_stream=is_ahead, stop=stop) as file:
            parquet = _open(file, footer.metadata, buffer_bytes=STREAM_BUFFER_BYTES)
            for batch in parquet.iter_batches(max(n_rows, 1), [group], [footer.name], use_threads=False):
                texts = take_column(batch, footer.name).cast(pa.large_binary())
                is_much = texts.nbytes > block_bytes
                yield from (texts.slice(i, 1) for i in range(len(texts))) if is_much else [texts]

    def _largest_page(self, group: int) -> int:
        """Return about how large the largest page is (bytes). Raises `MemoryLimitError` if it is too large."""
        chunk, limit = self.footer.chunk(group), self.options.max_document_bytes
        n_bytes = int(chunk.total_uncompressed_size)
        if self.input.is_remote and (limit is None or n_bytes <= limit):
            return n_bytes  # no page is larger; to measure them takes a request for each
        with open_file(self.input, self.network) as file:
            largest = measure(file, chunk, 2 if self.input.is_remote else None).largest
        if limit is not None and largest > limit:
            first, stop = self.footer.first_rows[group : group + 2]
            raise MemoryLimitError(
                f"{self.input.shown}, rows {first + 1:,} to {stop:,}: a page of {format_size(largest)}, which has"
                f" to be decoded whole, but the memory budget has room for one of {format_size(limit)}",
                "give it more with --memory, or rewrite the file with smaller pages"
                " (pyarrow: write_table(..., use_dictionary=False, write_batch_size=1))",
            )
        return largest


def _first_of(blocks: Iterator[Block], n_bytes: int) -> Iterator[Block]:
    """Yield the first blocks with so much text, at least one."""
    for block in blocks:
        yield block
        n_bytes -= block.n_bytes
        if n_bytes <= 0:
            return


def _read_groups(file: BinaryIO, chunks: Chunks, pages: Sequence[Pages], max_bytes: float) -> pa.Table:
    """Read the text column of row groups; raise `GrownError` rather than hold more than `max_bytes` of text.

    A dictionary column is read as indices, and the text they stand for is counted, unless `Pages.repeats` bounds it
    well enough. (It does not for Arrow's dictionary type, whose dictionary may have unused values.) With any other
    encoding that repeats text, few rows are decoded at a time.
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
    if not is_counted or ("." not in name and encodings <= PLAIN | DICTIONARY):  # Arrow: no dictionaries in structs
        parquet = _open(file, metadata, dictionary=name if is_counted else None)
        table = parquet.read_row_groups(chunks.groups, [name], use_threads=False)
        if is_counted and repeated_bytes(take_column(table, name)) > max_bytes:
            raise GrownError
        return table
    # Decode few rows at a time, because each may be as large as the largest page, and count their text.
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
    """Raise `InputError` if a file does not have the rows that its footer promises, which Arrow does not report."""
    if n_rows != stop - start:
        raise InputError(
            f"{input.shown}, rows {start + 1:,} to {stop:,}: damaged (only {n_rows:,} rows are there)",
            "fetch the file again",
        )


class Chunks(NamedTuple):
    """What a block's worker needs of a file: its footer, the row groups, and the byte ranges of their text columns.

    `fetched` has the ranges that were fetched, which include these, and their data.
    """

    footer: Footer
    groups: range
    ranges: list[tuple[int, int]]
    fetched: tuple[list[tuple[int, int]], Sequence[Data]] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the block's own bytes, not all that were fetched with them."""
        own = self.fetched and [bytes(_Fetched(0, *self.fetched).find(*range)) for range in self.ranges]
        return Chunks, (self.footer, self.groups, self.ranges, own and (self.ranges, own))

    def open(self, source: Parquet) -> BinaryIO:
        """Open the file, or the ranges that were fetched of it."""
        if not self.fetched:
            return open_file(source.input, source.network)
        return cast(BinaryIO, _Fetched(source.input.size, *self.fetched))


class _Fetched(RangedFile):
    """A file of which only some ranges are in memory. Reading other bytes raises `OSError`."""

    def __init__(self, size: int, ranges: list[tuple[int, int]], data: Sequence[Data]) -> None:
        super().__init__(size)
        self._ranges = ranges
        self._data = data

    def _read_range(self, start: int, stop: int) -> bytes:
        return bytes(self.find(start, stop))

    def read_buffer(self, size: int, /) -> memoryview:
        """Read without a copy: Arrow calls this method if a file has it."""
        start = self.tell()
        return self.find(start, self.seek(min(start + size, self._size)))

    def find(self, start: int, stop: int) -> memoryview:
        """Return a range of bytes that lies within one of the ranges in memory."""
        at = bisect_right(self._ranges, start, key=lambda range: range[0]) - 1
        if at < 0 or stop > self._ranges[at][1]:
            raise OSError(f"bytes {start:,} to {stop:,} belong to no column of text")
        first = self._ranges[at][0]
        return memoryview(self._data[at])[start - first : stop - first]


def find_chunks(source: Parquet, block: Block) -> Chunks:
    """Return which bytes of the file a block needs; column chunks that are close together become one range."""
    groups = source.footer.groups(block)
    ranges = [byte_range(source.footer.chunk(group)) for group in groups]
    if not all(0 <= start <= stop <= source.input.size for start, stop in ranges):
        raise InputError(f"{source.input.shown}: damaged: a column ends after the file", "fetch the file again")
    return Chunks(source.footer, groups, join_ranges(ranges))


def join_ranges(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join byte ranges with small gaps between them, so that one request fetches them.

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
    """Return the text column's share of the file's bytes; the rest is not read."""
    n_bytes: int = sum(chunk.total_compressed_size for chunk in source.footer.chunks())
    return n_bytes / max(source.input.size, 1)


@contextlib.contextmanager
def _damage_named(input: Input, start: int, stop: int) -> Iterator[None]:
    """Turn Arrow's errors in decoding some rows into an `InputError` that names them."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        where, reason = f"{input.shown}, rows {start + 1:,} to {stop:,}", str(error).partition("\n")[0]
        if isinstance(error, NotImplementedError) or "Not yet implemented" in reason:
            message = f"{where}: pyarrow {pa.__version__} cannot read them ({reason})"
            raise InputError(message, "rewrite the file with another encoding") from error
        raise InputError(f"{where}: damaged ({reason})", "fetch the file again") from error


def _open(
    file: Any, metadata: pq.FileMetaData | None = None, buffer_bytes: int = 0, dictionary: str | None = None
) -> pq.ParquetFile:
    """Open a file to read it in order: a column chunk in one read, or through a buffer; verifies checksums, if any.

    With `pre_buffer` a batch reader would hold the whole row group. The column `dictionary` is read as a dictionary.
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
    """Read the footer. It is large in files with many row groups, so it is cached for the next blocks."""
    try:
        import pyarrow as pa
    except ImportError:
        raise InputError(f"{input.shown}: reading parquet needs pyarrow", "pip install -U pyarrow") from None
    if pa.__version__ == "19.0.0":  # apache/arrow#45283
        raise InputError(f"{input.shown}: pyarrow 19.0.0 may end the process here", "pip install -U pyarrow")
    n_bytes = min(max(input.size // 64, MIN_FOOTER_BYTES), MAX_FOOTER_BYTES)
    with open_file(input, network, buffer_bytes=n_bytes) as file:
        try:
            metadata = _open(file).metadata
            file.seek(input.size - 8)
            is_signed = int.from_bytes(file.read(4), "little") == metadata.serialized_size + SIGNATURE_BYTES
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # the last, of a name of a column
            reason = str(error).partition("\n")[0]
            if getattr(error, "errno", None):  # an error of the disk, not of the file's content
                raise InputError(f"{input.shown}: {reason}", "check the disk, and run the command again") from None
            raise NotWholeError(f"{input.shown}: not a whole parquet file ({reason})", "fetch the file again") from None
    if is_signed:  # Arrow would end the process at the first column that it has no key for
        raise NotWholeError(f"{input.shown}: has encrypted columns", "write it again without encryption")
    return metadata


@functools.lru_cache(maxsize=N_FOOTERS)
def _footer(source: Parquet) -> Footer:
    """Find the text column; an unusable file is skipped with `skip_bad`, which errors advise after the first file."""
    shown, n_rows = source.input.shown, 1
    try:
        metadata = _metadata(source.input, source.network)
        n_rows = metadata.num_rows
        leaves = [metadata.schema.column(i).path for i in range(len(metadata.schema))]
        name = choose_column(metadata.schema.to_arrow_schema(), leaves, source)
    except (NotWholeError, NoTextError) as error:
        if not source.options.skip_bad:  # advised if earlier files were usable
            way = "; or skip such files with --skip-bad" if source.number > source.first else ""
            raise type(error)(error.message, error.hint + way) from None
        is_whole = isinstance(error, NoTextError)
        what = f"all {n_rows:,} rows" if is_whole else "the whole file, however many rows it had"
        detail = f"{what}: {error.message.removeprefix(f'{shown}: ')}"
        return Footer(None, "", 0, [0], Change(0, None, "skipped", detail, n_rows))
    group_rows = (metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
    return Footer(metadata, name, leaves.index(name), [*itertools.accumulate(group_rows, initial=0)])


@functools.lru_cache(maxsize=N_FOOTERS)
def _text_sizes(source: Parquet) -> list[int]:
    """Return about how much text each row group has (bytes)."""
    if source.input.is_remote:  # measuring would take a request for each row group
        return [chunk.total_uncompressed_size for chunk in source.footer.chunks()]
    with open_file(source.input, source.network) as file:
        return [decoded_bytes(file, chunk) for chunk in source.footer.chunks()]
