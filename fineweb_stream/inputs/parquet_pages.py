"""How large the pages of a parquet column are, which are decoded whole, and how much text repeats come to.

The header of a page is a struct in Thrift's compact protocol: fields 1 to 4 are 32-bit integers (the kind of the page,
its size after decompression and before, an optional checksum), and the first field of the struct that follows is how
many values it has. (Sources: `parquet.thrift` of apache/parquet-format; Thrift's description of the compact protocol: a
field is a byte, of the step to its number and its type, and the value; integers are zigzag varints.)

Writers that count rows, not bytes, make pages of hundreds of MB out of large documents; and a dictionary may stand for
a thousand times its size, as may a value that begins as the one before (`DELTA_BYTE_ARRAY`). pyarrow tells none of it.
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
"""The encodings by which values are as long as what stands for them (one is `DELTA_LENGTH_BYTE_ARRAY`), and those of
places in a dictionary."""
_UNKNOWN = -1
_HEADER_BYTES = 16 << 10
"""More than a header has: its statistics are two values, which writers leave out where they are long."""


class Page(NamedTuple):
    """A page's size after decompression (bytes), how many values it has, and how long it is in the file (bytes)."""

    n_bytes: int
    n_values: int
    n_file_bytes: int
    is_dictionary: bool = False
    encoding: int = _UNKNOWN


_NO_PAGE = Page(0, 0, 0)


class Pages(NamedTuple):
    """A column chunk's pages: all, and the largest (bytes, decompressed), and how the values in them are encoded.

    `repeats` is the most that a dictionary's values may come to beside itself (bytes), if each is used that it has.
    """

    n_bytes: int
    largest: int
    encodings: set[int]
    repeats: int = 0


def iter_pages(file: BinaryIO, chunk: pq.ColumnChunkMetaData) -> Iterator[Page]:
    """Yield the pages of a column chunk, one after the other, that of the dictionary first."""
    start, stop = byte_range(chunk)
    while start < stop:
        file.seek(start)
        page = parse_page(file.read(min(_HEADER_BYTES, stop - start)))
        if not page.n_file_bytes:
            return
        yield page
        start += page.n_file_bytes


def measure(file: BinaryIO, chunk: pq.ColumnChunkMetaData, n_pages: int | None = None) -> Pages:
    """Measure a column chunk by its first `n_pages`."""
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
    """Return about how much text a column chunk comes to: more than it has itself where a dictionary is most of it."""
    n_bytes = int(chunk.total_uncompressed_size)
    if byte_range(chunk)[0] == chunk.data_page_offset and not any(
        "DICTIONARY" in encoding for encoding in chunk.encodings or ["DICTIONARY"]
    ):
        return n_bytes
    # Some writers leave out where the dictionary is: then it is the first page, and only that tells its size.
    pages = iter_pages(file, chunk)
    dictionary = next(pages, _NO_PAGE)
    if not dictionary.is_dictionary:
        return n_bytes
    n_values = sum(page.n_values for page in itertools.takewhile(lambda page: page.encoding in DICTIONARY, pages))
    return max(n_bytes + (n_values - dictionary.n_values) * dictionary.n_bytes // max(dictionary.n_values, 1), 0)


def byte_range(chunk: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """Return where a column chunk begins and ends in its file: 0 and None mean that there is no offset."""
    start = min(filter(None, (chunk.dictionary_page_offset, chunk.data_page_offset)), default=0)
    return start, start + chunk.total_compressed_size


def parse_page(data: bytes) -> Page:
    """Read what is wanted out of the header of a page that `data` begin with; zeros where they do not.

    >>> parse_page(bytes([0x15, 0x04, 0x15, 0xC8, 0x01, 0x15, 0x50, 0x4C, 0x15, 0x0A, 0x15, 0, 0, 0]))  # a dictionary's
    Page(n_bytes=100, n_values=5, n_file_bytes=54, is_dictionary=True, encoding=0)
    """
    try:
        numbers, at, kind = _numbers(data, 0)
        inner, _, _ = _numbers(data, at)
        if not 3 <= len(numbers) <= 4 or kind != _STRUCT:
            return _NO_PAGE
        encoding = inner[3 if numbers[0] == _DATA_PAGE_V2 else 1]
        at = _skip(data, _skip(data, at, _STRUCT), _STRUCT)  # the inner struct, and what is left of the outer one
    except IndexError:
        return _NO_PAGE
    return Page(numbers[1], inner[0], at + numbers[2], numbers[0] == _DICTIONARY_PAGE, encoding)


def _numbers(data: bytes, at: int) -> tuple[list[int], int, int]:
    """Read the 32-bit integers that a struct begins with; return them, where the next field is, and its type."""
    numbers: list[int] = []
    at, kind = _field(data, at)
    while kind == _I32:
        number, at = _varint(data, at)
        numbers.append(number >> 1)
        at, kind = _field(data, at)
    return numbers, at, kind


def _field(data: bytes, at: int) -> tuple[int, int]:
    """Read a field's first byte; return where its value begins, and its type: 0 is the end of the struct."""
    if data[at] and not data[at] >> 4:  # the number itself follows, not the step to it
        return _varint(data, at + 1)[1], data[at] & 0x0F
    return at + 1, data[at] & 0x0F


def _skip(data: bytes, at: int, kind: int) -> int:
    """Return where a value of a type ends; true and false have no bytes besides."""
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
    """Return a number of 7 bits a byte, the least first, and where it ends."""
    number = shift = 0
    while data[at] >= 0x80:
        number |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return number | data[at] << shift, at + 1
