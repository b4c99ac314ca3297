"""The sizes of a parquet column's pages, which are decoded whole, and how much text their repeated values take.

A page header is a struct in Thrift's compact protocol: fields 1 to 4 are 32-bit integers (the page's type, its size
decompressed and compressed, an optional checksum), and the first field of the struct that follows is the number of its
values. (Sources: `parquet.thrift` of apache/parquet-format; Thrift's specification of the compact protocol: a field is
a byte with the delta of its number and its type, and the value; integers are zigzag varints.)

Writers that count rows, not bytes, make pages of hundreds of MB from large documents; and a dictionary may decode to a
thousand times its size, as may values that share a prefix (`DELTA_BYTE_ARRAY`). pyarrow reports none of these sizes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(3, 13)
_DICTIONARY_PAGE, _DATA_PAGE_V2 = 2, 3
PLAIN, DICTIONARY = frozenset({0, 6}), frozenset({2, 8})
"""The encodings that store every value in full (6 is `DELTA_LENGTH_BYTE_ARRAY`), and those that store indices into a
dictionary."""
_UNKNOWN = -1
_HEADER_BYTES = 16 << 10
"""More than a header has: its statistics have two values, which writers omit if they are long."""


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
        numbers, at, kind = _numbers(data, 0)
        inner, _, _ = _numbers(data, at)
        if not 3 <= len(numbers) <= 4 or kind != _STRUCT:
            return _NO_PAGE
        encoding = inner[3 if numbers[0] == _DATA_PAGE_V2 else 1]
        at = _skip(data, _skip(data, at, _STRUCT), _STRUCT)  # the rest of the inner struct, and of the outer one
    except IndexError:
        return _NO_PAGE
    return Page(numbers[1], inner[0], at + numbers[2], numbers[0] == _DICTIONARY_PAGE, encoding)


def _numbers(data: bytes, at: int) -> tuple[list[int], int, int]:
    """Read the 32-bit integers that a struct begins with; return them, and the next field's offset and type."""
    numbers: list[int] = []
    at, kind = _field(data, at)
    while kind == _I32:
        number, at = _varint(data, at)
        numbers.append(number >> 1)
        at, kind = _field(data, at)
    return numbers, at, kind


def _field(data: bytes, at: int) -> tuple[int, int]:
    """Read the header of a field; return the offset of its value and its type, 0 at the end of the struct."""
    if data[at] and not data[at] >> 4:  # the long form: the field's number follows
        return _varint(data, at + 1)[1], data[at] & 0x0F
    return at + 1, data[at] & 0x0F


def _skip(data: bytes, at: int, kind: int) -> int:
    """Return the offset at which a value of a type ends; booleans have no bytes, as their type is their value."""
    if kind in (_I16, _I32, _I64):
        return _varint(data, at)[1]
    if kind == _BINARY:
        length, at = _varint(data, at)
        return at + length
    if kind == _STRUCT:
        at, inner = _field(data, at)
        while inner:
            at, inner = _field(data, _skip(data, at, inner))
        return at
    if kind in (_LIST, _SET, _MAP):
        raise IndexError("no header of a page has one")
    return at + {_BYTE: 1, _DOUBLE: 8}.get(kind, 0)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a varint (7 bits per byte, the least significant first) and the offset of its end."""
    number = shift = 0
    while data[at] >= 0x80:
        number |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return number | data[at] << shift, at + 1
