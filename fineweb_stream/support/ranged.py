"""Files that are read by ranges, from wherever these come, or as a whole up to a size."""

from __future__ import annotations

import io
import os
from typing import Any, BinaryIO

_PIECE_BYTES = 1 << 20


def read_bounded(file: BinaryIO, max_bytes: int) -> bytes | None:
    """Return all of a file, None where there is more than `max_bytes`: Python would take the memory for those at once.

    >>> read_bounded(io.BytesIO(b"four"), 4), read_bounded(io.BytesIO(b"four"), 3)
    (b'four', None)
    """
    data = bytearray()
    while len(data) <= max_bytes and (piece := file.read(min(_PIECE_BYTES, max_bytes + 1 - len(data)))):
        data += piece
    return bytes(data) if len(data) <= max_bytes else None


class RangedFile(io.RawIOBase):
    """A file of `size` bytes that is read by ranges: a subclass has `_read_range`, for what is not empty."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._position = 0

    def _read_range(self, start: int, stop: int) -> bytes:
        raise NotImplementedError

    def read(self, size: int | None = -1, /) -> bytes:
        """Read `size` bytes, less only at the end; all that is left when negative."""
        if self.closed:
            raise ValueError("read of a closed file")
        start = self._position
        stop = self._size if size is None or size < 0 else min(start + size, self._size)
        data = self._read_range(start, stop) if start < stop else b""
        self._position = max(start, stop)
        return data

    def readinto(self, buffer: Any, /) -> int:
        """Read as much as fits."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move to a byte, counted from the start, from here or from the end."""
        position = offset + (0, self._position, self._size)[whence]
        if position < 0:
            raise ValueError(f"seek to {position}")
        self._position = position
        return position

    def readable(self) -> bool:
        """Return True."""
        return True

    seekable = readable
