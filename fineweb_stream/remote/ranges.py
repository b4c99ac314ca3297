"""Fetching one range of one file, whatever the network does: in its version, each byte once."""

from __future__ import annotations

import re
import threading

from ..support.cancel import Cancel
from ..support.errors import InputError
from ..support.redact import shown
from .connections import Connections, Response
from .hub import address_of, is_hub, is_web, read_fsspec
from .network import CHANGED, RemoteFile, Timeouts
from .retry import Pacing, Patience, Refused

PIECE_BYTES = 1 << 18


class _Place:
    """Where a file's own address leads to, and what redirects said of it: one asks, and the others wait for that."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.found: tuple[str, str] | None = None


class Ranges:
    """Fetches ranges, from as many threads as there are; `n_bytes` have come so far."""

    def __init__(self, closed: Cancel, timeouts: Timeouts) -> None:
        self.connections = Connections(Pacing(closed, timeouts))
        self.n_bytes = 0
        self._closed = closed
        self._lock = threading.Lock()
        self._places: dict[str, _Place] = {}

    def fetch(self, file: RemoteFile, start: int, stop: int) -> bytes:
        """Return the bytes from `start` to `stop`, all of them: a cut answer is continued where it ended.

        Raises `InputError` when the file is gone, forbidden or not as listed, `RemoteError` when not a byte came for
        `Timeouts.progress`.
        """
        assert 0 <= start <= stop <= file.size
        if start == stop:
            return b""
        address = address_of(file.url)
        patience = Patience(address, self.connections.pacing)
        data = bytearray()

        def attempt() -> None:
            if not is_web(address):
                data[:] = read_fsspec(file, start, stop)
                return
            first = start + len(data)
            with self._open(address, first, stop, max(patience.left, 0)) as response:
                _check_answer(file, response, first, stop)
                patience.answered()
                while len(data) < stop - start:
                    piece = response.read_some(min(PIECE_BYTES, stop - start - len(data)))
                    if not piece:
                        raise ConnectionError
                    data.extend(piece)
                    self.n_bytes += len(piece)
                    patience.progressed()
                    self._closed.check()

        patience.retry(attempt)
        return bytes(data)

    def _open(self, address: str, first: int, stop: int, limit: float) -> Response:
        """Ask for a range where the file is, and for where that is if nobody knows."""
        with self._lock:
            place = self._places.setdefault(address, _Place())
        headers = {"Range": f"bytes={first}-{stop - 1}"}
        while True:
            with place.lock:
                found = place.found
                if not found:
                    self._closed.check()
                    response = self.connections.send(address, headers=headers, limit=limit)
                    place.found = response.url, response.linked_etag
                    return response
            url, linked_etag = found
            try:
                return self.connections.send(url, headers=headers, limit=limit, linked_etag=linked_etag)
            except Exception as error:
                if url == address:
                    raise
                with place.lock:
                    place.found = None if place.found is found else place.found
                if not (isinstance(error, Refused) and error.args[0].status in (401, 403, 404, 410)):
                    raise


def _check_answer(file: RemoteFile, response: Response, first: int, stop: int) -> None:
    """Raise `InputError` unless the answer has the bytes that were asked for, of the file that was listed."""
    headers, url, etag = response.headers, shown(file.url), response.etag
    if file.url.startswith("hf://") and not response.linked_etag and not is_hub(response.url):
        etag = ""  # of another server that names its files differently; a commit's files never change
    now = headers.get("Last-Modified", "") if file.version.endswith(" GMT") else etag
    total = file.size
    if response.status == 206:
        part = re.fullmatch(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18})", headers.get("Content-Range", ""))
        if not part or int(part[1]) != first:
            raise InputError(f"{url}: the server sends another part than asked for", "fetch it, name the copy")
        total = int(part[2])
    elif (first, stop) != (0, file.size):
        what = f"{url}: the server does not serve parts of files (HTTP {response.status})"
        raise InputError(what, "fetch it and name the local copy")
    elif re.fullmatch(r"\d{1,18}", headers.get("Content-Length", "")):
        total = int(headers["Content-Length"])
    if total != file.size or (file.version and now and now != file.version):
        raise InputError(f"{url}: changed (it had {file.size:,} bytes, now {total:,})", CHANGED)
