"""Connections that are used again: each thread keeps one to each server. Reads hear that the run ends.

urllib makes a connection for each request, which costs several round trips where it is encrypted; a run has one request
for each few hundred kB. A server may close a connection that waits: then the request is sent once more by a new one.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
import urllib.request
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.error import URLError

from ..support.cancel import TICK_SECONDS
from ..support.waiting import check

_thread = threading.local()

IDLE_SECONDS = 30.0
"""A connection that was not used for so long is not tried any more."""


class _Ticking:
    """A socket that looks up now and then while it waits for data, and gives up after `limit` seconds."""

    limit = 0.0

    def recv_into(self, *args: Any, **options: Any) -> int:
        end = time.monotonic() + self.limit
        while True:
            try:
                return super().recv_into(*args, **options)  # type: ignore[misc,no-any-return]
            except TimeoutError:
                check()
                if time.monotonic() >= end:
                    raise


class _Socket(_Ticking, socket.socket):
    pass


class _SSLSocket(_Ticking, ssl.SSLSocket):
    pass


class _Connections(dict[tuple[str, ...], tuple[HTTPConnection, HTTPResponse, float]]):
    """A thread's connections by server, each with its last answer and when that came; closed when the thread ends."""

    def __del__(self) -> None:
        for connection, response, _ in self.values():
            if response.isclosed():  # else it was handed to another thread, and keeps the socket until it is read
                connection.close()


class KeepAlive(urllib.request.HTTPSHandler, urllib.request.HTTPHandler):
    """What opens http:// and https:// for urllib."""

    def __init__(self) -> None:
        context = ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
        context.sslsocket_class = _SSLSocket
        super().__init__(context=context)
        self._ssl_context = context

    def http_open(self, req: urllib.request.Request) -> HTTPResponse:
        """Send a request by a connection that is there, or a new one; the answer is not read yet."""
        if not hasattr(_thread, "connections"):
            _thread.connections = _Connections()
        connections: _Connections = _thread.connections
        headers = {name.title(): value for name, value in {**req.headers, **req.unredirected_hdrs}.items()}
        tunnel = getattr(req, "_tunnel_host", None)  # behind a proxy: `host` is the proxy's then
        login = {"Proxy-Authorization": headers.pop("Proxy-Authorization", "")} if tunnel else {}
        server = (req.type, req.host, tunnel or "")
        response = None
        if kept := _take(connections, server):
            connection = kept
            try:
                response = _exchange(connection, req, headers)
            except TimeoutError:
                connection.close()
                raise
            except (OSError, HTTPException):  # it was closed while nobody used it
                connection.close()
        if response is None:
            connection = self._connect(req, tunnel, {name: value for name, value in login.items() if value})
            try:
                response = _exchange(connection, req, headers)
            except BaseException:
                connection.close()
                raise
        connections[server] = (connection, response, time.monotonic())
        return response

    https_open = http_open

    def _connect(self, req: urllib.request.Request, tunnel: str | None, login: dict[str, str]) -> HTTPConnection:
        assert req.host and req.timeout
        if req.type == "https":
            connection: HTTPConnection = HTTPSConnection(req.host, timeout=req.timeout, context=self._ssl_context)
        else:
            connection = HTTPConnection(req.host, timeout=req.timeout)
        try:
            if tunnel:
                connection.set_tunnel(tunnel, headers=login)
            connection.connect()
            if not isinstance(connection.sock, _SSLSocket):
                connection.sock = _Socket(fileno=connection.sock.detach())
        except OSError as error:
            connection.close()
            raise URLError(error) from None  # as urllib does: an error of a certificate is also a ValueError
        return connection


def _take(connections: _Connections, server: tuple[str, ...]) -> HTTPConnection | None:
    """Return the connection to a server if it is fit for another request."""
    if server not in connections:
        return None
    connection, response, since = connections.pop(server)
    # An answer in chunks has no length: whether all of it was read cannot be seen.
    if connection.sock and response.length == 0 and time.monotonic() - since < IDLE_SECONDS:
        return connection
    connection.close()
    return None


def _exchange(connection: HTTPConnection, req: urllib.request.Request, headers: dict[str, str]) -> HTTPResponse:
    assert isinstance(connection.sock, _Socket | _SSLSocket) and req.timeout
    connection.sock.limit = req.timeout
    connection.sock.settimeout(min(TICK_SECONDS, req.timeout))
    connection.request(req.get_method(), req.selector, headers=headers)
    response = connection.getresponse()
    response.url, response.msg = req.full_url, response.reason  # type: ignore[assignment]  # as urllib does
    return response
