"""How large the pages of a parquet column are, which are decoded whole, and how much text repeats come to.

The header of a page is a struct in Thrift's compact protocol: fields 1 to 4 are 32-bit integers (the kind of the page,
its size after decompression and before, an optional checksum), and the first field of the struct that follows is how
many values it has. (Sources: `parquet.thrift` of apache/parquet-format; Thrift's description of the compact protocol: a
byte 0x15 says "the next field, an i32", which is a zigzag varint; the low bits 0xC of a byte say "a struct".) Writers
that count rows, not bytes, make pages of hundreds of MB out of large documents; and a dictionary may stand for a
thousand times its size. pyarrow tells neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, NamedTuple

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_NEXT_FIELD_I32, _STRUCT = 0x15, 0x0C
_HEADER_BYTES = 48


class Page(NamedTuple):
    """A page's size after decompression (bytes), and how many values it has."""

    n_bytes: int
    n_values: int


def largest_page(file: BinaryIO, chunk: pq.ColumnChunkMetaData) -> int:
    """Return the size of the larger of a column chunk's dictionary page and first data page (bytes, decompressed)."""
    offsets = (chunk.dictionary_page_offset, chunk.data_page_offset)
    return max(_read_page(file, offset).n_bytes for offset in offsets if offset is not None)


def decoded_bytes(file: BinaryIO, chunk: pq.ColumnChunkMetaData) -> int:
    """Return about how much text a column chunk comes to: more than it has itself where a dictionary is most of it."""
    if chunk.dictionary_page_offset is None:
        return int(chunk.total_uncompressed_size)
    share = (chunk.data_page_offset - chunk.dictionary_page_offset) / max(chunk.total_compressed_size, 1)
    page = _read_page(file, chunk.dictionary_page_offset) if share > 0.5 else Page(0, 0)
    return int(max(chunk.total_uncompressed_size, chunk.num_values * page.n_bytes // max(page.n_values, 1)))


def _read_page(file: BinaryIO, offset: int) -> Page:
    file.seek(offset)
    return parse_page(file.read(_HEADER_BYTES))


def parse_page(header: bytes) -> Page:
    """Read what is wanted out of a page's header; zeros where it is not the header of a page.

    >>> parse_page(bytes([0x15, 0x04, 0x15, 0xC8, 0x01, 0x15, 0x50, 0x4C, 0x15, 0x0A]))  # a dictionary's: 5 values
    Page(n_bytes=100, n_values=5)
    """
    numbers: list[int] = []
    rest = header
    while rest[:1] == bytes([_NEXT_FIELD_I32]):
        number, rest = _parse_varint(rest[1:])
        numbers.append(number >> 1)
    if not 3 <= len(numbers) <= 4 or not rest or rest[0] & 0x0F != _STRUCT or rest[1:2] != bytes([_NEXT_FIELD_I32]):
        return Page(0, 0)
    return Page(numbers[1], _parse_varint(rest[2:])[0] >> 1)


def _parse_varint(data: bytes) -> tuple[int, bytes]:
    """Return a number of 7 bits a byte, the least first, and what follows it."""
    end = next((i + 1 for i, byte in enumerate(data) if byte < 0x80), len(data))
    return sum((byte & 0x7F) << 7 * i for i, byte in enumerate(data[:end])), data[end:]
