"""File objects that read byte ranges from any source, and reading a whole file up to a size limit."""

from __future__ import annotations

import io
import os
from typing import BinaryIO

_PIECE_BYTES = 1 << 20


def read_bounded(file: BinaryIO, max_bytes: int) -> bytes | None:
    """Return the content of a file, or None if it exceeds `max_bytes`; in pieces, as `read(n)` allocates n bytes.

    >>> read_bounded(io.BytesIO(b"four"), 4), read_bounded(io.BytesIO(b"four"), 3)
    (b'four', None)
    """
    data = bytearray()
    while len(data) <= max_bytes and (piece := file.read(min(_PIECE_BYTES, max_bytes + 1 - len(data)))):
        data += piece
    return bytes(data) if len(data) <= max_bytes else None


class RangedFile(io.RawIOBase):
    """A file of `size` bytes that is read by ranges: a subclass implements `_read_range`, for non-empty ranges."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._position = 0

    def _read_range(self, start: int, stop: int) -> bytes:
        raise NotImplementedError

    def read(self, size: int | None = -1, /) -> bytes:
        """Read `size` bytes, fewer only at the end of the file; all the rest if `size` is negative or None."""
        if self.closed:
            raise ValueError("read of a closed file")
        start = self._position
        stop = self._size if size is None or size < 0 else min(start + size, self._size)
        data = self._read_range(start, stop) if start < stop else b""
        self._position = max(start, stop)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move to an offset from the start, the current position or the end; return the new position."""
        position = offset + (0, self._position, self._size)[whence]
        if position < 0:
            raise ValueError(f"seek to {position}")
        self._position = position
        return position

    def readable(self) -> bool:
        """Return True."""
        return True

    seekable = readable
