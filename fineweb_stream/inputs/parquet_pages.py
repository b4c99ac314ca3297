"""How large the pages of a parquet column are, which are decoded whole, and how much text repeats come to.

The header of a page is a struct in Thrift's compact protocol: fields 1 to 4 are 32-bit integers (the kind of the page,
its size after decompression and before, an optional checksum), and the first field of the struct that follows is how
many values it has. (Sources: `parquet.thrift` of apache/parquet-format; Thrift's description of the compact protocol: a
field is a byte, of the step to its number and its type, and the value; integers are zigzag varints.)

Writers that count rows, not bytes, make pages of hundreds of MB out of large documents; and a dictionary may stand for
a thousand times its size. pyarrow tells neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, NamedTuple

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(3, 13)
_DICTIONARY_PAGE = 2
_HEADER_BYTES = 16 << 10
"""More than a header has: its statistics are two values, which writers leave out where they are long."""


class Page(NamedTuple):
    """A page's size after decompression (bytes), how many values it has, and how long it is in the file (bytes)."""

    n_bytes: int
    n_values: int
    n_file_bytes: int
    is_dictionary: bool = False


def largest_page(file: BinaryIO, chunk: pq.ColumnChunkMetaData, enough: int, n_pages: float) -> int:
    """Return the size of the largest of a column chunk's first `n_pages` (bytes, decompressed), or of one > `enough`.

    The pages stand one after the other, that of the dictionary first.
    """
    start, largest = _start(chunk), 0
    stop = start + chunk.total_compressed_size
    while start < stop and largest <= enough and n_pages > 0:
        page = _read_page(file, start)
        if not page.n_file_bytes:
            break
        start, largest, n_pages = start + page.n_file_bytes, max(largest, page.n_bytes), n_pages - 1
    return largest


def decoded_bytes(file: BinaryIO, chunk: pq.ColumnChunkMetaData) -> int:
    """Return about how much text a column chunk comes to: more than it has itself where a dictionary is most of it."""
    start, first_data = _start(chunk), chunk.data_page_offset
    if start == first_data and not any("DICTIONARY" in encoding for encoding in chunk.encodings or ["DICTIONARY"]):
        return int(chunk.total_uncompressed_size)
    # Some writers leave out where the dictionary is: then it is the first page, and only that tells its size.
    share = (first_data - start) / max(chunk.total_compressed_size, 1)
    page = _read_page(file, start) if share > 0.5 or start == first_data else Page(0, 0, 0)
    if not page.is_dictionary:
        page = Page(0, 0, 0)
    return int(max(chunk.total_uncompressed_size, chunk.num_values * page.n_bytes // max(page.n_values, 1)))


def _start(chunk: pq.ColumnChunkMetaData) -> int:
    """Return where the first page of a column chunk is: 0 and None mean that there is no offset."""
    return int(min(filter(None, (chunk.dictionary_page_offset, chunk.data_page_offset)), default=0))


def _read_page(file: BinaryIO, offset: int) -> Page:
    file.seek(offset)
    return parse_page(file.read(_HEADER_BYTES))


def parse_page(data: bytes) -> Page:
    """Read what is wanted out of the header of a page that `data` begin with; zeros where they do not.

    >>> parse_page(bytes([0x15, 0x04, 0x15, 0xC8, 0x01, 0x15, 0x50, 0x4C, 0x15, 0x0A, 0, 0]))  # a dictionary's
    Page(n_bytes=100, n_values=5, n_file_bytes=52, is_dictionary=True)
    """
    numbers: list[int] = []
    try:
        at, kind = _field(data, 0)
        while kind == _I32:
            number, at = _varint(data, at)
            numbers.append(number >> 1)
            at, kind = _field(data, at)
        first, first_kind = _field(data, at)
        if not 3 <= len(numbers) <= 4 or kind != _STRUCT or first_kind != _I32:
            return Page(0, 0, 0)
        n_values = _varint(data, first)[0] >> 1
        at = _skip(data, _skip(data, at, _STRUCT), _STRUCT)  # the inner struct, and what is left of the outer one
    except IndexError:
        return Page(0, 0, 0)
    return Page(numbers[1], n_values, at + numbers[2], numbers[0] == _DICTIONARY_PAGE)


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
