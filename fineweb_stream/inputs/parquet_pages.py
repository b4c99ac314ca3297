"""The sizes of a parquet column's pages, which are decoded whole, and how much text their repeated values take.

A page header is a struct in Thrift's compact protocol: field 2 is the page's size decompressed, 3 compressed, and 5, 7
or 8 a struct of what it has, whose field 1 is the number of its values. (Sources: `parquet.thrift` of
apache/parquet-format; Thrift's specification of the compact protocol: a field is a byte with the delta of its number
and its type, and the value; integers are zigzag varints.)

Writers that count rows, not bytes, make pages of hundreds of MB from large documents; and a dictionary may decode to a
thousand times its size, as may values that share a prefix (`DELTA_BYTE_ARRAY`). pyarrow reports none of these sizes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_TRUE, _FALSE, _I32, _I64, _BINARY, _STRUCT = 1, 2, 5, 6, 8, 12
PLAIN, DICTIONARY = frozenset({0, 6}), frozenset({2, 8})
"""The encodings that store every value in full (6 is `DELTA_LENGTH_BYTE_ARRAY`), and those that store indices into a
dictionary."""
_UNKNOWN = -1
_HEADER_BYTES = 16 << 10  # more than a header has: its statistics have two values, which writers omit if they are long


class Page(NamedTuple):
    """A page's decompressed size (bytes), its number of values, and its size in the file with its header (bytes)."""

    n_bytes: int
    n_values: int
    n_file_bytes: int
    is_dictionary: bool = False
    encoding: int = _UNKNOWN


_NO_PAGE = Page(0, 0, 0)


class Pages(NamedTuple):
    """A column chunk's pages: the size of all and of the largest (decompressed bytes), and their values' encodings.

    `repeats` is how much text a dictionary may decode to at most besides itself (bytes), if each of its values is used.
    """

    n_bytes: int
    largest: int
    encodings: set[int]
    repeats: int = 0


def iter_pages(file: BinaryIO, chunk: pq.ColumnChunkMetaData) -> Iterator[Page]:
    """Yield the pages of a column chunk in order, the dictionary first, up to a header that cannot be parsed."""
    start, stop = byte_range(chunk)
    while 0 <= start < stop:
        file.seek(start)
        page = parse_page(file.read(min(_HEADER_BYTES, stop - start)))
        if not page.n_file_bytes:
            return
        yield page
        start += page.n_file_bytes


def measure(file: BinaryIO, chunk: pq.ColumnChunkMetaData, n_pages: int | None = None) -> Pages:
    """Measure a column chunk by its first `n_pages`, by default all."""
    pages = list(itertools.islice(iter_pages(file, chunk), n_pages))
    data = [page for page in pages if not page.is_dictionary]
    encodings = {page.encoding for page in data}
    if sum(page.n_values for page in data) < chunk.num_values:
        encodings.add(_UNKNOWN)
    dictionary = next((page for page in pages if page.is_dictionary), _NO_PAGE)
    n_repeats = sum(page.n_values for page in data if page.encoding in DICTIONARY) - dictionary.n_values
    sizes = [page.n_bytes for page in pages]
    return Pages(sum(sizes), max(sizes, default=0), encodings, max(n_repeats, 0) * dictionary.n_bytes)


def decoded_bytes(file: BinaryIO, chunk: pq.ColumnChunkMetaData) -> int:
    """Return about how much text a column chunk decodes to (bytes), which is more than its size with a dictionary."""
    n_bytes = int(chunk.total_uncompressed_size)
    if byte_range(chunk)[0] == chunk.data_page_offset and not any(
        "DICTIONARY" in encoding for encoding in chunk.encodings or ["DICTIONARY"]
    ):
        return n_bytes
    # Some writers omit the dictionary's offset, but it is the first page, and only this tells its size.
    pages = iter_pages(file, chunk)
    dictionary = next(pages, _NO_PAGE)
    if not dictionary.is_dictionary:
        return n_bytes
    n_values = sum(page.n_values for page in itertools.takewhile(lambda page: page.encoding in DICTIONARY, pages))
    return max(n_bytes + (n_values - dictionary.n_values) * dictionary.n_bytes // max(dictionary.n_values, 1), 0)


def byte_range(chunk: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """Return where a column chunk begins and ends in its file; offsets of 0 or None are unset."""
    start = min(filter(None, (chunk.dictionary_page_offset, chunk.data_page_offset)), default=0)
    return start, start + chunk.total_compressed_size


def parse_page(data: bytes) -> Page:
    """Parse the page header at the start of `data`; return zeros if there is none.

    >>> parse_page(bytes([0x15, 0x04, 0x15, 0xC8, 0x01, 0x15, 0x50, 0x4C, 0x15, 0x0A, 0x15, 0, 0, 0]))  # a dictionary
    Page(n_bytes=100, n_values=5, n_file_bytes=54, is_dictionary=True, encoding=0)
    """
    try:
        header, at = _struct(data, 0)
        page = header.get(5) or header.get(7) or header[8]  # of data, with a dictionary, of data of version 2
        encoding = page[4 if 8 in header else 2]
        return Page(header[2], page[1], at + header[3], 7 in header, encoding)
    except (IndexError, KeyError, TypeError, RecursionError):
        return _NO_PAGE


def _struct(data: bytes, at: int) -> tuple[dict[int, Any], int]:
    """Return the integers and structs of a struct by their numbers (none is negative), and the offset of its end."""
    fields: dict[int, Any] = {}
    number = 0
    while head := data[at]:
        step, kind, at = head >> 4, head & 0x0F, at + 1
        number += step
        if not step:  # the field's number follows
            zigzag, at = _varint(data, at)
            number = zigzag >> 1
        if kind in (_I32, _I64):
            zigzag, at = _varint(data, at)
            fields[number] = zigzag >> 1
        elif kind == _STRUCT:
            fields[number], at = _struct(data, at)
        elif kind == _BINARY:
            length, at = _varint(data, at)
            at += length
        elif kind not in (_TRUE, _FALSE):  # these have no bytes: their type is their value
            raise KeyError("no header of a page has a field of another type")
    return fields, at + 1


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a varint (7 bits per byte, the least significant first) and the offset of its end."""
    number = shift = 0
    while data[at] >= 0x80:
        number |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return number | data[at] << shift, at + 1
