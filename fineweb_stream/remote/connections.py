"""HTTP by urllib3: pooled connections that can be closed from outside, redirects that are seen, a token kept home.

The token goes to HF_ENDPOINT's own scheme, host and port, and never to where that redirects; a login in an address goes
to that address's server. Only http and https are followed.
"""

from __future__ import annotations

import contextlib
import os
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
from urllib3.connection import HTTPConnection, HTTPSConnection

from ..support.errors import InputError
from ..support.redact import shown
from ..support.version import __version__
from . import retry
from .retry import Answer, Pacing, Refused

MAX_REDIRECTS = 8

MAX_KEPT = 256
"""How many connections to a server are kept: more than there are ever."""


class Response:
    """An answer that is a success, its body not read yet; `linked_etag` is what redirects said of the file."""

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
        self._pacing = pacing
        self._lock = threading.Lock()
        self._managers: dict[str, urllib3.PoolManager] = {}  # by proxy, "" for none
        self._opened: weakref.WeakSet[HTTPConnection] = weakref.WeakSet()

    def send(
        self, url: str, method: str = "GET", headers: Mapping[str, str] | None = None, limit: float = 60.0
    ) -> Response:
        """Open an address once, redirects followed; a server that wants to be left alone is left alone up to `limit` s.

        Raises `Refused` for what is no success, urllib3's errors and `OSError` for what fails on the way.
        """
        begun, linked_etag = url, ""
        for _ in range(MAX_REDIRECTS):
            answer = self._send_once(url, method, headers or {}, limit)
            linked_etag = answer.headers.get("X-Linked-Etag") or linked_etag
            location = answer.get_redirect_location()
            if not location:
                if answer.status >= 300:
                    with Response(url, answer, ""):
                        is_stale = answer.status == 403 and is_hub(begun) and not is_hub(url)
                        raise Refused(Answer(answer.status, answer.headers, is_hub(url), is_stale))
                return Response(url, answer, linked_etag)
            with Response(url, answer, ""):
                if (
                    answer.headers.get("Content-Length", "").isdecimal()
                    and int(answer.headers["Content-Length"]) < 65536
                ):
                    answer.drain_conn()  # then the connection can be used again
            url = urljoin(url, location)
        raise InputError(f"{shown(url)}: redirected {MAX_REDIRECTS} times", "check the address")

    def _send_once(self, url: str, method: str, headers: Mapping[str, str], limit: float) -> urllib3.BaseHTTPResponse:
        if urlsplit(url).scheme.lower() not in ("http", "https"):
            raise InputError(
                f"{shown(url)}: the server leads there: only http and https are followed", "check the name"
            )
        address, login = _part_login(url)
        sent = {"Accept-Encoding": "identity", "User-Agent": f"fineweb_stream/{__version__}", **headers, **login}
        if is_hub(url):
            sent |= _hub_headers()
        timeout = urllib3.Timeout(connect=retry.TIMEOUT_SECONDS, read=retry.TIMEOUT_SECONDS)
        options: Any = {"headers": sent, "timeout": timeout, "redirect": False, "retries": False}
        manager = self._manager(address)
        self._pacing.enter(url, limit)
        answer = None
        try:
            try:
                answer = manager.request(method, address, preload_content=False, decode_content=False, **options)
            except urllib3.exceptions.ProtocolError:  # a server may close a connection that waits: by a new one, then
                self._pacing.check()
                answer = manager.request(method, address, preload_content=False, decode_content=False, **options)
        finally:
            self._pacing.leave(url, answer.headers if answer else None)
        return answer

    def _manager(self, url: str) -> urllib3.PoolManager:
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
            address, login = _part_login(proxy if "://" in proxy else f"http://{proxy}")
            headers = {"Proxy-Authorization": login["Authorization"]} if login else {}
            manager: urllib3.PoolManager = urllib3.ProxyManager(address, proxy_headers=headers, **options)
        else:
            manager = urllib3.PoolManager(**options)
        pools: dict[str, Any] = manager.pool_classes_by_scheme
        manager.pool_classes_by_scheme = {
            scheme: type(pool.__name__, (pool,), {"ConnectionCls": self._tracked(pool.ConnectionCls)})
            for scheme, pool in pools.items()
        }
        return manager

    def _tracked(self, base: Any) -> type[HTTPConnection | HTTPSConnection]:
        """Return a class of connections that are known here once they are made: reads of them can be ended."""
        opened = self._opened

        class Tracked(base):  # type: ignore[misc]
            def connect(self) -> None:
                super().connect()
                opened.add(self)

        return Tracked

    def close(self) -> None:
        """End all reads that are under way, and close what is idle."""
        for connection in list(self._opened):
            sock: Any = connection.sock
            with contextlib.suppress(OSError, AttributeError, TypeError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
        for manager in self._managers.values():
            manager.clear()


def _part_login(url: str) -> tuple[str, dict[str, str]]:
    """Return a URL without its login, and the header that says it."""
    parts = urlsplit(url)
    login, at, server = parts.netloc.rpartition("@")
    if not at:
        return url, {}
    user, _, password = login.partition(":")
    headers = urllib3.make_headers(basic_auth=f"{unquote(user)}:{unquote(password)}")
    return parts._replace(netloc=server).geturl(), {"Authorization": headers["authorization"]}


def endpoint() -> str:
    """Return where the Hub is, by HF_ENDPOINT."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def is_hub(url: str) -> bool:
    """Tell whether an address is of the Hub's own scheme, host and port: only there the token may go."""
    return urlsplit(url)[:2] == urlsplit(endpoint())[:2]


def _hub_headers() -> dict[str, str]:
    """Return the header that logs in to the Hub, with the token from wherever huggingface_hub keeps it; {} for none."""
    try:
        from huggingface_hub import get_token
    except ImportError:  # an address of the Hub's may be read without it, if all may
        return {}
    token = get_token()
    if token and not re.fullmatch("[!-~]+", token):  # the HTTP client would show it in its error
        raise InputError("the Hub's token has characters that no token has", "set HF_TOKEN anew, or: hf auth login")
    return {"Authorization": f"Bearer {token}"} if token else {}
