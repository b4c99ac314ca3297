"""How large the pages of a parquet column are, which are decoded whole whatever is asked for.

The header of a page is a struct in Thrift's compact protocol; its first two fields are 32-bit integers, the kind of the
page and its size after decompression. (Sources: `parquet.thrift` of apache/parquet-format; Thrift's description of the
compact protocol: a byte 0x15 says "the next field, an i32", which is a zigzag varint.) Writers that count rows, not
bytes, make pages of hundreds of MB out of large documents, and pyarrow tells no page's size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_NEXT_FIELD_I32 = 0x15


def page_bytes(file: BinaryIO, chunk: pq.ColumnChunkMetaData) -> int:
    """Return the size of the larger of a column chunk's dictionary page and first data page (bytes, decompressed)."""
    sizes = []
    for offset in (chunk.dictionary_page_offset, chunk.data_page_offset):
        if offset is not None:
            file.seek(offset)
            sizes.append(uncompressed_size(file.read(16)))
    return max(sizes)


def uncompressed_size(header: bytes) -> int:
    """Read the size after decompression out of a page's header; 0 where it is not the header of a page.

    >>> uncompressed_size(bytes([0x15, 0x04, 0x15, 0xC8, 0x01, 0x15, 0x50]))  # a dictionary page of 100 bytes
    100
    """
    at = value = 0
    for _ in range(2):
        if header[at : at + 1] != bytes([_NEXT_FIELD_I32]):
            return 0
        end = next((i for i in range(at + 1, len(header)) if header[i] < 0x80), at)
        value = sum((byte & 0x7F) << 7 * i for i, byte in enumerate(header[at + 1 : end + 1]))
        at = end + 1
    return value >> 1
