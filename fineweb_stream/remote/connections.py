"""HTTP by urllib3: pooled connections that can be closed from outside, redirects that are seen, a token kept home.

The token goes to HF_ENDPOINT's own scheme, host and port, and never to where that redirects; a login in an address goes
to that address's server. Only http and https are followed.
"""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import threading
import weakref
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.connection import HTTPConnection

from ..support.errors import InputError
from ..support.redact import shown
from ..support.version import __version__
from .hub import is_hub, is_web
from .retry import Answer, Pacing, Refused

MAX_REDIRECTS = 8

MAX_KEPT = 256
"""How many connections to a server are kept: more than there are ever."""

MAX_DRAINED_BYTES = 65536
"""A redirect's answer is read if it is no longer: then the connection can be used again."""


class Response:
    """An answer, its body not read yet; `linked_etag` is what redirects said of the file."""

    def __init__(self, url: str, answer: urllib3.BaseHTTPResponse, linked_etag: str) -> None:
        self.url = url
        self.status = answer.status
        self.headers: Mapping[str, str] = answer.headers
        self.linked_etag = answer.headers.get("X-Linked-Etag") or linked_etag
        self._answer = answer

    def __enter__(self) -> Response:
        return self

    def __exit__(self, *_: object) -> None:
        if self._answer.length_remaining != 0:
            self._answer.close()  # what is left of one answer is never taken for the next
        self._answer.release_conn()

    def read_some(self, n_bytes: int) -> bytes:
        """Return what has come, up to `n_bytes`; b"" at the end."""
        return self._answer.read1(n_bytes)

    @property
    def etag(self) -> str:
        """The file's ETag, the Hub's own rather than a CDN's; "" where there is none."""
        return (self.linked_etag or self.headers.get("ETag") or "").removeprefix("W/").strip('"')


class Connections:
    """The pools of all servers."""

    def __init__(self, pacing: Pacing) -> None:
        self.pacing = pacing
        self._lock = threading.Lock()
        self._managers: dict[str, urllib3.PoolManager] = {}  # by proxy, "" for none
        self._opened: weakref.WeakSet[HTTPConnection] = weakref.WeakSet()

    def send(
        self,
        url: str,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        limit: float = 60.0,
        linked_etag: str = "",
    ) -> Response:
        """Open an address once, redirects followed; a server that wants to be left alone is left alone up to `limit` s.

        Raises `Refused` for what is no success, urllib3's errors and `OSError` for what fails on the way.
        """
        begun = url
        for _ in range(MAX_REDIRECTS):
            answer = self._send_once(url, method, headers or {}, limit)
            response = Response(url, answer, linked_etag)
            location, linked_etag = answer.get_redirect_location(), response.linked_etag
            if not location and answer.status < 300:
                return response
            with response:
                if not location:
                    is_stale = answer.status == 403 and is_hub(begun) and not is_hub(url)
                    raise Refused(Answer(answer.status, answer.headers, is_hub(url), is_stale))
                if (answer.length_remaining or MAX_DRAINED_BYTES) < MAX_DRAINED_BYTES:
                    answer.drain_conn()
            url = urljoin(url, location)
        raise InputError(f"{shown(url)}: redirected {MAX_REDIRECTS} times", "check the address")

    def _send_once(self, url: str, method: str, headers: Mapping[str, str], limit: float) -> urllib3.BaseHTTPResponse:
        if not is_web(url):
            what = f"{shown(url)}: the server leads there: only http and https are followed"
            raise InputError(what, "check the name")
        address, login = _part_login(url)
        sent = {"Accept-Encoding": "identity", "User-Agent": f"fineweb_stream/{__version__}", **headers}
        sent |= (is_hub(url) and _hub_login()) or login
        seconds = self.pacing.timeouts.operation
        options: Any = {"headers": sent, "timeout": seconds, "redirect": False, "retries": False}
        options |= {"preload_content": False, "decode_content": False}
        manager = self._manager(address)
        with self.pacing.turn(url, limit) as said:
            try:
                answer = manager.request(method, address, **options)
            except urllib3.exceptions.ProtocolError:  # a server may close a connection that waits: by a new one, then
                self.pacing.closed.check()
                answer = manager.request(method, address, **options)
            said.update(answer.headers)
        return answer

    def _manager(self, url: str) -> urllib3.PoolManager:
        """Return the pools of the proxy that the environment names for an address."""
        parts = urlsplit(url)
        proxies = {} if proxy_bypass(parts.hostname or "") else getproxies()
        proxy = proxies.get(parts.scheme.lower()) or proxies.get("all") or ""
        with self._lock:
            if proxy not in self._managers:
                self._managers[proxy] = self._make_manager(proxy)
            return self._managers[proxy]

    def _make_manager(self, proxy: str) -> urllib3.PoolManager:
        options: Any = {"maxsize": MAX_KEPT, "ssl_context": ssl.create_default_context()}
        if proxy:
            address, login = _part_login(proxy if "://" in proxy else f"http://{proxy}", "Proxy-Authorization")
            manager: urllib3.PoolManager = urllib3.ProxyManager(address, proxy_headers=login, **options)
        else:
            manager = urllib3.PoolManager(**options)
        pools: dict[str, Any] = manager.pool_classes_by_scheme
        manager.pool_classes_by_scheme = {
            scheme: type(pool.__name__, (pool,), {"ConnectionCls": _tracked(pool.ConnectionCls, self._opened)})
            for scheme, pool in pools.items()
        }
        return manager

    def close(self) -> None:
        """End all reads that are under way, and close what is idle."""
        for connection in list(self._opened):
            sock: Any = connection.sock
            with contextlib.suppress(OSError, AttributeError, TypeError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
        for manager in self._managers.values():
            manager.clear()


def _tracked(base: Any, opened: weakref.WeakSet[HTTPConnection]) -> Any:
    """Return a class of connections that are known once they are made: reads of them can be ended."""

    class Tracked(base):  # type: ignore[misc]
        def connect(self) -> None:
            super().connect()
            opened.add(self)

    return Tracked


def _part_login(url: str, header: str = "Authorization") -> tuple[str, dict[str, str]]:
    """Return a URL without its login, and the header that says it."""
    parts = urlsplit(url)
    login, at, server = parts.netloc.rpartition("@")
    if not at:
        return url, {}
    said = urllib3.make_headers(basic_auth=unquote(login if ":" in login else f"{login}:"))
    return parts._replace(netloc=server).geturl(), {header: said["authorization"]}


def _hub_login() -> dict[str, str]:
    """Return the header that logs in to the Hub, with the token from wherever huggingface_hub keeps it; {} for none."""
    try:
        from huggingface_hub import get_token
    except ImportError:  # an address of the Hub's may be read without it, if all may
        return {}
    token = get_token()
    if token and not re.fullmatch("[!-~]+", token):  # the HTTP client would show it in its error
        raise InputError("the Hub's token has characters that no token has", "set HF_TOKEN anew, or: hf auth login")
    return {"Authorization": f"Bearer {token}"} if token else {}
