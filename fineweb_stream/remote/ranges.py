"""Reading any range of a remote file (see `listing`), in place: nothing lands in a cache."""

from __future__ import annotations

import io
import os
import re
from http.client import HTTPResponse, IncompleteRead
from typing import Any

from ..support.errors import InputError
from ..support.redact import shown
from ..support.waiting import check, pause
from .hub import find_etag, find_filesystem, fsspec_errors, hub_address, list_remote
from .retry import Patience, Waiter, is_hub, send, with_patience

_CHANGED = "it changed while it was read: once it is complete, start over with --overwrite"
_PIECE_BYTES = 1 << 16


def check_remote(url: str, version: str, size: int, wait: Waiter = pause) -> None:
    """Raise `InputError` when a file is not what it was when it was listed; one pinned on the Hub always is."""
    if not url.startswith("hf://"):
        (now,) = list_remote(url, wait=wait)
        if (now.size, now.version) != (size, version):
            raise InputError(f"{shown(url)}: changed (it had {size:,} bytes, now {now.size:,})", _CHANGED)


def read_remote(url: str, version: str, size: int, start: int, stop: int, wait: Waiter = pause) -> bytes:
    """Return the bytes from `start` to `stop` of a listed file, all of them: a cut answer is continued where it ended.

    Raises `InputError` when the file is gone, forbidden or not as listed, `RemoteError` when not a byte came for
    PATIENCE_SECONDS, `Cancelled` when the run ends.
    """
    assert 0 <= start <= stop <= size
    is_hf = url.startswith("hf://")
    address = hub_address(url) if is_hf else url
    patience = Patience(address, wait)
    data = bytearray()

    def attempt_http() -> None:
        first = start + len(data)
        with send(address, patience, Range=f"bytes={first}-{stop - 1}") as response:
            _check_answer(url, response, version, size, first, stop)
            while len(data) < stop - start:
                piece = response.read1(min(_PIECE_BYTES, stop - start - len(data)))
                if not piece:
                    raise IncompleteRead(b"", stop - start - len(data))
                data.extend(piece)
                patience.progressed()
                check()

    def attempt_fsspec() -> None:
        fs, path = find_filesystem(url)
        with fsspec_errors(url):
            data[:] = fs.cat_file(path, start=start, end=stop)
        if len(data) != stop - start:
            raise InputError(f"{shown(url)}: ends at byte {start + len(data):,}", _CHANGED)

    if start < stop:
        is_http = is_hf or address.lower().startswith(("http://", "https://"))
        with_patience(address, patience, attempt_http if is_http else attempt_fsspec)
    return bytes(data)


class RemoteReader(io.RawIOBase):
    """A listed file as a file object, for pyarrow and decompressors; `read` returns all that was asked for.

    Small reads are served from one buffer of `buffer_bytes`; 0 makes each read one exact request.
    """

    def __init__(self, url: str, version: str, size: int, buffer_bytes: int = 1 << 20, wait: Waiter = pause) -> None:
        self._file = (url, version, size)
        self._size = size
        self._wait = wait
        self._buffer_bytes = buffer_bytes
        self._position = 0
        self._held = b""
        self._held_start = 0

    def read(self, size: int | None = -1, /) -> bytes:
        """Read `size` bytes, less only at the end; all that is left when negative."""
        start = self._position
        stop = self._size if size is None or size < 0 else min(start + size, self._size)
        if self.closed:
            raise ValueError("read of a closed file")
        if start >= stop:
            return b""
        at = start - self._held_start
        data = self._held[at : at + stop - start] if at >= 0 else b""
        missing = stop - start - len(data)
        if missing:
            first = stop - missing
            ahead = min(max(missing, self._buffer_bytes), self._size - first)
            fetched = read_remote(*self._file, first, first + ahead, self._wait)
            self._held, self._held_start = (fetched, first) if ahead > missing else (b"", 0)
            data += fetched[:missing]
        self._position = stop
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

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True


def _check_answer(url: str, response: HTTPResponse, version: str, size: int, first: int, stop: int) -> None:
    """Raise `InputError` unless the answer has the bytes that were asked for, of the file that was listed."""
    headers = response.headers
    etag = find_etag(response)
    if url.startswith("hf://") and "X-Linked-Etag" not in headers and not is_hub(response.url):
        etag = ""  # of another server that names its files differently; a commit's files never change
    now = headers.get("Last-Modified", "") if version.endswith(" GMT") else etag
    total = size
    if response.status == 206:
        part = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", headers.get("Content-Range", ""))
        if not part or int(part[1]) != first:
            raise InputError(f"{shown(url)}: the server sends another part than asked for", "fetch it, name the copy")
        total = int(part[2])
    elif (first, stop) != (0, size):
        raise InputError(
            f"{shown(url)}: the server does not serve parts of files (HTTP {response.status})",
            "fetch it and name the local copy",
        )
    elif headers.get("Content-Length", "").isdecimal():
        total = int(headers["Content-Length"])
    if total != size or (version and now and now != version):
        raise InputError(f"{shown(url)}: changed (it had {size:,} bytes, now {total:,})", _CHANGED)
