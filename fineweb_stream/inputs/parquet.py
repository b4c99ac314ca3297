"""Parquet: one text column. Blocks are runs of whole row groups of about a block's size, read in the worker.

A larger row group is decoded in order, batch by batch, and its blocks carry their texts: so memory does not follow the
row group. Only the text column's bytes are read. (Position: the row in the file.)
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, BinaryIO

from ..support.errors import InputError, MemoryLimitError
from ..support.model import Input, ReadOptions
from ..support.units import format_size
from .blocks import BLOCK_BYTES, Batch, Block
from .column import find_field, is_text, read_column, take_text
from .parquet_pages import decoded_bytes, largest_page
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


@dataclass(frozen=True)
class Parquet:
    """A `.parquet` file."""

    number: int
    input: Input
    options: ReadOptions
    block_bytes: int = BLOCK_BYTES
    unit: str = "row"

    def iter_blocks(self, start: int = 0) -> Iterator[Block]:
        """Yield runs of row groups, or batches of rows of a large one."""
        metadata, sizes = _metadata(self.input), _text_sizes(self)
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
        if block.data is not None:
            return read_column(block.data, self.options)
        metadata = _metadata(self.input)
        first_rows = _first_rows(self.input)
        groups = list(range(bisect_left(first_rows, block.start), bisect_left(first_rows, block.stop)))
        with open_file(self.input) as file, _damage_named(self.input, block.start, block.stop):
            table = _open(file, metadata).read_row_groups(groups, [self.options.text_column], use_threads=False)
        _check_rows(self.input, block.start, block.stop, len(table))
        return read_column(take_text(table, self.options.text_column), self.options)

    def sample(self, n: int) -> list[Block]:
        """Return the first rows of row groups spread over the file."""
        metadata, first_rows = _metadata(self.input), _first_rows(self.input)
        n = min(n, 16)  # each takes a page or so of decoding
        groups = sorted({len(first_rows) * i // n for i in range(n)}) if first_rows else []
        small = replace(self, block_bytes=SAMPLE_BYTES)
        streams = (small._stream(metadata, group, first_rows[group], first_rows[group]) for group in groups)
        return [block for block in (next(stream, None) for stream in streams) if block]

    def text_bytes(self) -> int:
        """Return the decoded size of the text column."""
        return sum(_text_sizes(self))

    def _block(self, metadata: pq.FileMetaData, start: int, stop: int, n_bytes: int, data: Any = None) -> Block:
        share = int(self.input.size * stop / metadata.num_rows) - int(self.input.size * start / metadata.num_rows)
        return Block(self, start, stop, n_bytes, share, data=data)

    def _check_pages(self, file: BinaryIO, chunk: pq.ColumnChunkMetaData, start: int, stop: int) -> None:
        limit = self.options.max_document_bytes
        if limit is None or chunk.total_uncompressed_size <= limit:
            return  # no page is larger than all of them: nothing needs to be read
        n_pages = 2 if self.input.is_remote else math.inf  # each is a request there
        if (n_bytes := largest_page(file, chunk, limit, n_pages)) > limit:
            raise MemoryLimitError(
                f"{self.input.shown}, rows {start + 1:,} to {stop:,}: a page of {format_size(n_bytes)}, which has to be"
                f" decoded whole, but the memory budget has room for one of {format_size(limit)}",
                "give it more with --memory, or write the file anew with smaller pages"
                " (pyarrow: write_table(..., use_dictionary=False, write_batch_size=1))",
            )

    def _stream(self, metadata: pq.FileMetaData, group: int, first_row: int, start: int) -> Iterator[Block]:
        """Decode one row group in order; yield its rows from `start` in blocks that carry them."""
        import pyarrow as pa

        info = metadata.row_group(group)
        chunk = info.column(_column_index(metadata, self))
        mean_bytes = _text_sizes(self)[group] // max(info.num_rows, 1)
        stop = first_row + info.num_rows
        with open_file(self.input) as file, _damage_named(self.input, start, stop):
            self._check_pages(file, chunk, first_row, stop)
            batches = _open(file, metadata, buffer_bytes=STREAM_BUFFER_BYTES).iter_batches(
                batch_size=max(min(BATCH_BYTES // max(mean_bytes, 1), MAX_BATCH_ROWS), 1),
                row_groups=[group],
                columns=[self.options.text_column],
                use_threads=False,
            )
            held: list[pa.Array] = []
            n_bytes = 0
            held_row = row = first_row
            texts = (take_text(batch, self.options.text_column) for batch in batches)
            for rows in _iter_rows(texts, self.block_bytes):
                if row + len(rows) > start:
                    rows = rows.slice(max(start - row, 0))
                    row = max(start, row)
                    if not held:
                        held_row = row
                    elif n_bytes + rows.nbytes > 2 * self.block_bytes:  # a long row stands alone: it may be too large
                        yield self._block(metadata, held_row, row, n_bytes, pa.chunked_array(held))
                        held, n_bytes, held_row = [], 0, row
                    held.append(rows)
                    n_bytes += rows.nbytes
                row += len(rows)
                if n_bytes >= self.block_bytes:
                    yield self._block(metadata, held_row, row, n_bytes, pa.chunked_array(held))
                    held, n_bytes = [], 0
            if held:
                yield self._block(metadata, held_row, row, n_bytes, pa.chunked_array(held))
            _check_rows(self.input, first_row, stop, row - first_row)


def _check_rows(input: Input, start: int, stop: int, n_rows: int) -> None:
    """Raise `InputError` where a file has not the rows that its footer speaks of: Arrow reads on without a word."""
    if n_rows != stop - start:
        raise InputError(
            f"{input.shown}, rows {start + 1:,} to {stop:,}: damaged (only {n_rows:,} rows are there)",
            "fetch the file again",
        )


@contextlib.contextmanager
def _damage_named(input: Input, start: int, stop: int) -> Iterator[None]:
    """Turn what Arrow says of rows that it cannot decode into an `InputError`."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(
            f"{input.shown}, rows {start + 1:,} to {stop:,}: damaged ({str(error).partition(chr(10))[0]})",
            "fetch the file again",
        ) from error


def _iter_rows(columns: Iterable[pa.Array], max_bytes: int) -> Iterator[pa.Array]:
    """Yield the columns; where one holds more than `max_bytes`, row by row."""
    for column in columns:
        if column.nbytes <= max_bytes:
            yield column
        else:
            yield from (column.slice(i, 1) for i in range(len(column)))


def check_parquet(source: Parquet) -> None:
    """Raise `InputError` unless the file is parquet and has the text column as text."""
    _column_index(_metadata(source.input), source)


def _open(file: Any, metadata: pq.FileMetaData | None = None, buffer_bytes: int = 0) -> pq.ParquetFile:
    """Open for reading in order: a column chunk in one read, or through a buffer; checksums, where there are, count.

    With `pre_buffer` a batch reader would hold the whole row group.
    """
    import pyarrow.parquet as pq

    return pq.ParquetFile(
        file, metadata=metadata, pre_buffer=False, buffer_size=buffer_bytes, page_checksum_verification=True
    )


@functools.lru_cache(maxsize=4)
def _metadata(input: Input) -> pq.FileMetaData:
    """Read the footer: large in files of many row groups, so it is kept for the blocks that follow."""
    try:
        import pyarrow as pa
    except ImportError:
        raise InputError(f"{input.shown}: reading parquet needs pyarrow", "pip install pyarrow") from None
    with open_file(input) as file:
        try:
            return _open(file).metadata
        except (pa.ArrowException, OSError) as error:
            raise InputError(
                f"{input.shown}: not a whole parquet file ({str(error).partition(chr(10))[0]})", "fetch the file again"
            ) from None


def _column_index(metadata: pq.FileMetaData, source: Parquet) -> int:
    """Return which physical column holds the texts."""
    name, path = source.options.text_column, source.input.shown
    schema = metadata.schema.to_arrow_schema()
    if schema.names.count(name) > 1:
        raise InputError(f"{path}: {schema.names.count(name)} columns are called {name!r}", "--text-column NAME")
    leaves = [metadata.schema.column(i).path for i in range(len(metadata.schema))]
    found = find_field(schema, name)
    if found is None:
        columns = [*schema.names, *(leaf for leaf in leaves if "." in leaf and find_field(schema, leaf))]
        raise InputError(f"{path}: no column {name!r}; the columns are: {', '.join(columns)}", "--text-column NAME")
    if not is_text(found[-1].type):
        fields = {leaf: find_field(schema, leaf) for leaf in [*schema.names, *leaves]}
        columns = [leaf for leaf, field in fields.items() if field and is_text(field[-1].type)]
        raise InputError(
            f"{path}: the column {name!r} is {found[-1].type}, not text",
            f"--text-column NAME; columns of text: {', '.join(columns) or 'none'}",
        )
    return leaves.index(".".join(field.name for field in found))


@functools.lru_cache(maxsize=4)
def _text_sizes(source: Parquet) -> list[int]:
    """Return about how much text each row group holds (bytes)."""
    metadata = _metadata(source.input)
    column = _column_index(metadata, source)
    if source.input.is_remote:  # a request for each row group would cost more than it tells
        return [metadata.row_group(i).column(column).total_uncompressed_size for i in range(metadata.num_row_groups)]
    with open_file(source.input) as file:
        return [decoded_bytes(file, metadata.row_group(i).column(column)) for i in range(metadata.num_row_groups)]


@functools.lru_cache(maxsize=4)
def _first_rows(input: Input) -> list[int]:
    """Return the number of the first row of each row group."""
    metadata = _metadata(input)
    n_rows = (metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
    return list(itertools.accumulate(n_rows, initial=0))[:-1]
