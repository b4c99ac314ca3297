"""HTTP by urllib3: byte ranges of files, over reused connections that can be closed from another thread.

The token is sent only to HF_ENDPOINT's own scheme, host and port, never to the target of a redirect elsewhere; a login
in a URL is sent to that URL's server. Only redirects to http and https are followed.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import re
import socket
import ssl
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import numpy as np
import urllib3

from ..support.cancel import Cancel
from ..support.errors import InputError
from ..support.redact import is_web, shown
from ..support.units import sizes_said
from ..support.version import __version__
from .hub import address_of, etag_of, is_hub, read_fsspec, token_header
from .network import CHANGED, Data, RemoteFile, Timeouts
from .retry import Pacing, Patience, Refused

LINKED_ETAG = "X-Linked-Etag"  # The Hub's header for a file's ETag, in the response that redirects

MAX_REDIRECTS = 8

MAX_KEPT = 256  # how many connections to a server are kept open: more than there ever are

ASK_SECONDS = 3.0
"""How long requests wait for another's response, which says where the file is, before they ask on their own."""

_CODINGS = re.compile(r"gzip|deflate|compress|\bbr\b|zstd", re.IGNORECASE)
"""What `Content-Encoding` names: of a file that is stored so, which is read as it is, or of what is sent."""

_EXPIRED = (400, 401, 403, 404, 410)
"""What storage services say of a signed address whose time is over: 400 is S3's and Google's for an expired token."""

MAX_DRAINED_BYTES = 65536  # a shorter body of a redirect is read to its end, so that the connection can be reused


class Web:
    """A run's HTTP client: connections, rate limits and the URLs that files redirect to; it has received `n_bytes`."""

    def __init__(self, closed: Cancel, timeouts: Timeouts, has_asked: threading.Event) -> None:
        self.closed, self.timeouts, self.pacing = closed, timeouts, Pacing(closed)
        self._has_asked = has_asked
        self.n_bytes = 0
        self._lock = threading.Lock()
        self._asking: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)  # by a file's URL
        self._places: dict[str, tuple[str, str]] = {}  # by the same: the URL it redirects to, and its LINKED_ETAG
        self._managers: dict[tuple[str, str], urllib3.PoolManager] = {}  # by scheme and proxy, "" for none
        self._opened: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def first_contact(self, url: str) -> Patience:
        """Return the patience for a listing, which gives up soon if there is no network."""
        return Patience(url, self, self.timeouts.contact)

    def patience(self, url: str) -> Patience:
        """Return the patience for all other requests."""
        return Patience(url, self)

    def fetch(self, file: RemoteFile, start: int, stop: int) -> Data:
        """Return all bytes from `start` to `stop`: a response that breaks off is continued where it ended.

        Raises `InputError` if the file is gone, forbidden or not as it was listed, `RemoteError` if no byte came for
        `Timeouts.progress`.
        """
        assert 0 <= start <= stop <= file.size
        if start == stop:
            return b""
        address = address_of(file.url)
        patience = self.patience(address)
        if not is_web(address):
            return patience.retry(lambda: read_fsspec(file, start, stop))
        data, first = np.empty(stop - start, np.uint8), start  # NumPy copies outside the GIL

        def attempt() -> memoryview:
            nonlocal first
            while first < stop:  # some servers send less than was asked for
                begun = first
                with contextlib.ExitStack() as stack:
                    answer = self._open(stack, address, first, stop, patience.left)
                    try:
                        _check_answer(file, answer, first, stop)
                    except InputError:
                        if answer.length_remaining != 0 and not answer.read1(1):
                            raise ConnectionError from None  # cut off in its headers
                        raise
                    for piece in patience.pieces(answer, stop - first):
                        data[first - start : first - start + len(piece)] = np.frombuffer(piece, np.uint8)
                        first += len(piece)
                if first == begun:
                    raise ConnectionError
            return data.data

        return patience.retry(attempt)

    def _open(self, stack: contextlib.ExitStack, address: str, first: int, stop: int, limit: float) -> Any:
        """Request a range from the URL that the file redirects to; if unknown, one thread asks and the others wait.

        They wait for ASK_SECONDS: the response may be to the last of their ranges, and not come.
        """
        with self._lock:
            asking = self._asking[address]
        headers = {"Range": f"bytes={first}-{stop - 1}"}
        while True:
            place = self._places.get(address)
            if not place:
                is_turn = asking.acquire(timeout=ASK_SECONDS)
                try:
                    place = self._places.get(address)
                    if not place:
                        answer = stack.enter_context(self.send(address, limit, headers))
                        self._places[address] = answer.url or address, answer.headers.get(LINKED_ETAG, "")
                        return answer
                finally:
                    if is_turn:
                        asking.release()
            url, linked_etag = place
            try:
                return stack.enter_context(self.send(url, limit, headers, linked_etag))
            except Exception as error:
                if url == address:
                    raise
                with self._lock:
                    if self._places.get(address) is place:
                        del self._places[address]
                if not (isinstance(error, Refused) and error.args[0].status in _EXPIRED):
                    raise

    @contextlib.contextmanager
    def send(
        self, url: str, limit: float, headers: Mapping[str, str] | None = None, linked_etag: str = ""
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        """Request a URL and follow redirects; if a server has asked for a pause, wait for up to `limit` seconds.

        The response's headers include the redirects' LINKED_ETAG. Raises `Refused` for an error status, urllib3's
        errors and `OSError` for failed connections.
        """
        for _ in range(MAX_REDIRECTS):
            answer = self._send_once(url, limit, headers or {})
            try:
                answer.url = url
                linked_etag = answer.headers.setdefault(LINKED_ETAG, linked_etag) or ""
                location = answer.get_redirect_location()
                if not location:
                    if answer.status not in (200, 206):
                        raise Refused(answer)
                    yield answer
                    return
                if (answer.length_remaining or MAX_DRAINED_BYTES) < MAX_DRAINED_BYTES:
                    answer.drain_conn()
            finally:
                if answer.length_remaining == 0:
                    answer.drain_conn()  # one without a body stays open, and the next request would fail
                else:
                    answer.close()  # else unread bytes would be taken for the next response
                answer.release_conn()
            with contextlib.suppress(UnicodeError):  # http.client reads headers as Latin-1, and many are UTF-8
                location = location.encode("latin-1").decode()
            url = _with_login(url, urljoin(url, location))
        raise InputError(f"{shown(url)}: redirected {MAX_REDIRECTS} times", "check the address")

    def _send_once(self, url: str, limit: float, headers: Mapping[str, str]) -> urllib3.BaseHTTPResponse:
        if not is_web(url):
            what = f"{shown(url)}: the server redirects there, but only http and https are followed"
            raise InputError(what, "check the name")
        address, login = _part_login(url)
        sent = {"Accept-Encoding": "identity", "User-Agent": f"fineweb_stream/{__version__}", **headers, **login}
        options: Any = {"headers": sent | token_header(url), "timeout": self.timeouts.operation}
        options |= {"redirect": False, "retries": False, "preload_content": False, "decode_content": False}
        request = functools.partial(self._manager(address).request, "GET", address, **options)

        def send_again() -> urllib3.BaseHTTPResponse:
            try:
                return request()
            except urllib3.exceptions.ProtocolError:  # the server may have closed an idle connection
                self.closed.check()
                return request()

        self.closed.check()
        self._has_asked.set()
        return self.pacing.ask(url, limit, send_again)

    def _manager(self, url: str) -> urllib3.PoolManager:
        """Return the connection pools for the proxy that the environment names for a URL."""
        parts = urlsplit(url)
        proxies = {} if proxy_bypass(parts.hostname or "") else getproxies()
        key = scheme, proxy = parts.scheme.lower(), proxies.get(parts.scheme.lower()) or proxies.get("all") or ""
        with self._lock:
            if key not in self._managers:
                self._managers[key] = self._make_manager(scheme, proxy)
            return self._managers[key]

    def _make_manager(self, scheme: str, proxy: str) -> urllib3.PoolManager:
        options: Any = {"maxsize": MAX_KEPT}
        if "https" in (scheme, urlsplit(proxy).scheme):  # it takes 0.02 s to load the system's certificates
            options["ssl_context"] = ssl.create_default_context()
        manager = urllib3.PoolManager(**options)
        if proxy:
            address, login = _part_login(proxy if "://" in proxy else f"http://{proxy}", "Proxy-Authorization")
            try:
                manager = urllib3.ProxyManager(address, proxy_headers=login, **options)
            except ValueError:
                what = f"the proxy {shown(address)}: not an address of an HTTP proxy"
                raise InputError(what, "as in https_proxy=http://HOST:PORT, and likewise http_proxy") from None
        pools: dict[str, Any] = manager.pool_classes_by_scheme
        manager.pool_classes_by_scheme = {
            scheme: type(
                pool.__name__,
                (pool,),
                {"ConnectionCls": _tracked(pool.ConnectionCls, self._track), "QueueCls": _OpenFirst},
            )
            for scheme, pool in pools.items()
        }
        return manager

    def _track(self, sock: socket.socket) -> None:
        """Let `close` end what is read from a socket. Raises `Cancelled` if that was called before."""
        with self._lock:
            self._opened.add(sock)
        self.closed.check()

    def close(self) -> None:
        """End all reads in progress, also of connections that are being made, and close idle connections."""
        self.closed.set()
        with self._lock:
            opened, managers = list(self._opened), list(self._managers.values())
        for sock in opened:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
        for pools in [manager.pools for manager in managers]:
            for pool in filter(None, map(pools.get, pools.keys())):
                pool.close()  # urllib3 leaves what is idle to the garbage collection


class _OpenFirst(queue.LifoQueue[Any]):
    """A pool's connections; open ones come before places for new ones, of which a server may allow no more."""

    def _put(self, item: Any) -> None:
        self.queue.insert(len(self.queue) if item and item.sock else 0, item)


def _tracked(base: Any, track: Callable[[socket.socket], None]) -> Any:
    """Return a connection class that calls `track` for the socket of each connection, so that reads can be ended.

    The socket outlives the connection's attribute `sock` while a last response is read.
    """

    class Tracked(base):  # type: ignore[misc]
        def connect(self) -> None:
            with contextlib.ExitStack() as self._until_made:
                super().connect()
                made: Any = self.sock
                track(getattr(made, "socket", made))  # in TLS inside TLS, the outer one

        def _new_conn(self) -> socket.socket:
            sock: socket.socket = super()._new_conn()
            twin = self._until_made.enter_context(sock.dup())  # `sock` itself is detached before TLS's handshake
            try:
                track(twin)
            except BaseException:
                sock.close()
                raise
            return sock

    return Tracked


def _part_login(url: str, header: str = "Authorization") -> tuple[str, dict[str, str]]:
    """Return a URL without its login, and the login as a header."""
    parts = urlsplit(url)
    login, at, server = parts.netloc.rpartition("@")
    if not at:
        return url, {}
    said = urllib3.make_headers(basic_auth=unquote(login if ":" in login else f"{login}:"))
    return parts._replace(netloc=server).geturl(), {header: said["authorization"]}


def _with_login(url: str, target: str) -> str:
    """Return the target of a redirect with the login of the URL that redirects, if it is on the same server."""
    login, at, server = urlsplit(url).netloc.rpartition("@")
    parts = urlsplit(target)
    is_same = (parts.scheme.lower(), parts.netloc.lower()) == (urlsplit(url).scheme.lower(), server.lower())
    return parts._replace(netloc=f"{login}@{parts.netloc}").geturl() if at and is_same else target


def _check_answer(file: RemoteFile, answer: urllib3.BaseHTTPResponse, first: int, stop: int) -> None:
    """Raise `InputError` unless the response is the requested range, of the file as it was listed."""
    headers, url, total = answer.headers, shown(file.url), file.size
    version = headers.get("Last-Modified", "") if file.version.endswith(" GMT") else etag_of(headers)
    if file.url.startswith("hf://") and not headers.get(LINKED_ETAG) and not is_hub(answer.url or ""):
        version = ""  # a CDN has its own ETag, and a commit's files never change
    n_bytes, length = file.size, headers.get("Content-Length", "")
    if answer.status == 206:
        part = re.fullmatch(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})", headers.get("Content-Range", ""))
        if not part or int(part[1]) != first:
            what = f"{url}: the server sends another part than requested"
            raise InputError(what, "fetch it and name the local copy")
        total, n_bytes = int(part[3]), int(part[2]) + 1 - first
    elif (first, stop) != (0, file.size):
        what = f"{url}: the server does not serve parts of files (HTTP {answer.status})"
        raise InputError(what, "fetch it and name the local copy")
    elif re.fullmatch(r"\d{1,18}", length):
        total = int(length)
    if (coding := _CODINGS.search(headers.get("Content-Encoding", ""))) and length != str(n_bytes):
        what = f"{url}: the server compresses what it sends ({coding[0]}), which was not asked for"
        raise InputError(what, "fetch it and name the local copy")
    if total != file.size or (file.version and version and version != file.version):
        raise InputError(f"{url}: changed ({sizes_said(file.size, total)})", CHANGED)
