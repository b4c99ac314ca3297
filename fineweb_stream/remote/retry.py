"""When to retry, how long to wait before, and when to give up.

Temporary failures (429, 5xx, closed connections) are retried until no new byte came for `Timeouts.progress`; permanent
ones (401, 403, 404) are reported at once, with a hint. If a server asks for a pause, all connections to it pause.
"""

from __future__ import annotations

import contextlib
import random
import re
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from urllib3 import BaseHTTPResponse, Retry
from urllib3.exceptions import HTTPError, ProxyError, TimeoutError

from ..support.cancel import Cancel
from ..support.errors import InputError, RemoteError
from ..support.log import log
from ..support.redact import shown
from .hub import is_hub, login_command
from .network import CHANGED

if TYPE_CHECKING:
    from .web import Web

T = TypeVar("T")

PIECE_BYTES = 1 << 20  # the most that is read at once: what has arrived, in few steps, because each takes the GIL
_PASSING = {408, 425, 429, 500, 502, 503, 504, *range(520, 530)}  # 52x: Cloudflare could not reach the server


class Refused(Exception):
    """A response with an error status; the response is the only argument."""


class Pacing:
    """What all connections share about servers: when each may be asked again, and which waits were announced."""

    def __init__(self, closed: Cancel) -> None:
        self._closed = closed  # cancels all waits
        self._lock = threading.Lock()
        self._closed_until: dict[str, float] = {}
        self._n_under_way: Counter[str] = Counter()
        self._announced: dict[str, float] = {}

    def ask(self, url: str, seconds: float, send: Callable[[], BaseHTTPResponse]) -> BaseHTTPResponse:
        """Call `send` as soon as the server may be asked, but after `seconds` at the latest, and return its response.

        A header says what is left of the server's limit: `"api";r=489;t=189` is 489 requests in the next 189 seconds.
        """
        server, end, limit = _server(url), time.monotonic() + seconds, None
        while (left := self._enter(server, end)) > 0:
            self.pause(left, f"{server}: its request limit")
        try:
            answer = send()
            limit = re.search(r"r=(\d{1,9});\s*t=(\d{1,9})", answer.headers.get("RateLimit", ""))
            return answer
        finally:
            with self._lock:
                self._n_under_way[server] -= 1
                is_last = limit and int(limit[1]) <= self._n_under_way[server]
            if limit and is_last:
                self.hold(url, float(limit[2]))

    def _enter(self, server: str, end: float) -> float:
        """Return how many seconds a request has to wait; if 0 or less, count it as under way."""
        with self._lock:
            left = min(self._closed_until.get(server, 0.0), end) - time.monotonic()
            self._n_under_way[server] += left <= 0
            return left

    def hold(self, url: str, seconds: float) -> None:
        """Send a server no requests for `seconds`, as it asked."""
        server, end = _server(url), time.monotonic() + seconds
        with self._lock:
            self._closed_until[server] = max(self._closed_until.get(server, 0.0), end)

    def pause(self, seconds: float, what: str) -> None:
        """Sleep, and log it once, even if several threads wait for the same reason."""
        now = time.monotonic()
        with self._lock:
            is_new = now >= self._announced.get(what, 0)
            if is_new:
                self._announced[what] = now + seconds
        if is_new:
            log.warning("waiting for %s, again in %.0f s", what, seconds)
        self._closed.wait(seconds)


def _server(url: str) -> str:
    """Return the key by which requests are counted: the host, and for an API its path, as it has its own limit."""
    parts = urlsplit(url)
    return parts.netloc.rpartition("@")[2] + ("/api" if parts.path.startswith("/api/") else "")


class Patience:
    """Retries one request until `limit` seconds have passed without a new byte."""

    def __init__(self, url: str, web: Web, limit: float | None = None) -> None:
        self.web = web
        self.limit = web.timeouts.progress if limit is None else limit
        self._url = url
        self._place = urlsplit(url).netloc.rpartition("@")[2] or shown(url)
        self._progressed()

    def _progressed(self) -> None:
        self._since = time.monotonic()
        self._next_seconds = self.web.timeouts.first_wait

    @property
    def left(self) -> float:
        """How many seconds are left before giving up."""
        return self.limit - (time.monotonic() - self._since)

    def pieces(self, answer: BaseHTTPResponse, n_bytes: int) -> Iterator[bytes]:
        """Yield the pieces of a response as they arrive, up to `n_bytes` in all."""
        self._answered()
        while n_bytes > 0 and (piece := answer.read1(min(PIECE_BYTES, n_bytes))):
            self._progressed()
            self.web.closed.check()
            self.web.n_bytes += len(piece)
            n_bytes -= len(piece)
            yield piece

    def _answered(self) -> None:
        """Note that the server has responded: from now on, wait for it as long as `Timeouts.progress`."""
        self.limit = max(self.limit, self.web.timeouts.progress)

    def retry(self, attempt: Callable[[], T], url: str = "") -> T:
        """Call `attempt` until it succeeds, and return its result.

        Raises `RemoteError` when the time is up, `InputError` for an error that no retry can fix (it names `url`).
        """
        url = url or self._url
        while True:
            self.web.closed.check()
            retry_after = None
            try:
                return attempt()
            except Refused as error:
                answer: BaseHTTPResponse = error.args[0]
                self._answered()
                # From a server that the Hub redirects to, 403 means that the signature in its URL has expired.
                is_stale = answer.status == 403 and is_hub(url) and not is_hub(answer.url or "")
                if answer.status not in _PASSING and not is_stale:
                    raise _refusal(url, answer) from None
                reason, retry_after = f"HTTP {answer.status}", _retry_after(answer)
            except ValueError:  # urllib3's error for an invalid URL
                raise InputError(f"{shown(url)}: not an address that can be read", "check it") from None
            except (HTTPError, OSError) as error:
                reason = _reason(url, error)
            self.web.closed.check()  # it may have failed because `Web.close` closed it
            self._wait(reason, retry_after)

    def _wait(self, reason: str, retry_after: float | None) -> None:
        """Wait as long as the server asks, else longer each time. Raises `RemoteError` when the time is up."""
        left, timeouts = self.left, self.web.timeouts
        if left <= 0:
            raise self.give_up(reason)
        seconds = self._next_seconds if retry_after is None else max(retry_after, timeouts.first_wait)
        self._next_seconds = min(2 * self._next_seconds, timeouts.longest_wait)
        seconds = min(seconds * random.uniform(1, 1.25), left)  # jitter: threads must not retry in step
        if retry_after is not None:
            self.web.pacing.hold(self._url, seconds)
        self.web.pacing.pause(seconds, f"{self._place}: {reason}")

    def give_up(self, reason: str) -> RemoteError:
        """Return the error to raise when the time is up."""
        return RemoteError(
            f"{self._place}: {reason}; no data for {self.limit - self.left:.0f} s",
            "check the network; the same command continues once it is back",
        )


def _reason(url: str, error: BaseException) -> str:
    """Return in a few words why a connection failed.

    Raises `InputError` for what no retry can fix: an untrusted certificate, or a proxy that refuses to connect.
    """
    cause: BaseException | None = error
    place, whose = ("the proxy: ", "the proxy's") if isinstance(error, ProxyError) else ("", "the")
    while cause:
        if isinstance(cause, ssl.SSLCertVerificationError):
            raise InputError(
                f"{shown(url)}: {whose} certificate is not trusted ({cause})",
                "behind a proxy that has its own: SSL_CERT_FILE=/path/to/its/ca.pem",
            ) from None
        if found := re.match(r"Tunnel connection failed: (\d{3})\b", str(cause)):
            if int(found[1]) not in _PASSING:
                raise _proxy_refusal(url, int(found[1]))
            return f"the proxy says HTTP {found[1]}"
        if isinstance(cause, OSError) and cause.strerror:
            return place + cause.strerror
        if isinstance(cause, TimeoutError | OSError) and "time" in type(cause).__name__.lower():
            return f"{place}timeout"
        wrapped = next((value for value in cause.args if isinstance(value, BaseException)), None)  # urllib3's way
        cause = cause.__cause__ or cause.__context__ or wrapped
    return "the server closed the connection"


def _refusal(url: str, answer: BaseHTTPResponse) -> InputError:
    """Return the error for a response that no retry can change."""
    if answer.status == 407:
        return _proxy_refusal(url, answer.status)
    said = re.sub(r"[^ -~]", "", answer.headers.get("X-Error-Message", ""))[:200]
    said = re.sub(r"\bhf_\w+", "...", said)
    message = f"{shown(url)}: HTTP {answer.status}" + (f" ({said})" if said else "")
    repo = re.search(r"/datasets/([^/]+/[^/?]+)", url)
    hints = {
        401: "the server wants a login: fetch the file with its own tools and name the local copy",
        403: "the server refuses it: fetch the file with its own tools and name the local copy",
        404: "check the name (and, on the Hub, the revision)",
        416: CHANGED,
    }
    hint = hints.get(answer.status, "the server does not serve it")
    if answer.status in (401, 403) and is_hub(answer.url or "") and repo:
        hint = f"check the name; log in: {login_command()}, or set HF_TOKEN; for a gated dataset accept its terms at"
        hint += f" https://huggingface.co/datasets/{repo[1]}"
    elif answer.status == 403 and "?" in url:
        hint = "if its signature has expired: the same command with the new address continues"
    return InputError(message, hint)


def _proxy_refusal(url: str, status: int) -> InputError:
    """Return the error for a proxy that refuses a request, with the environment variables that change proxies."""
    parts = urlsplit(url)
    around = f"no_proxy={parts.hostname} goes without a proxy"
    if status != 407:
        return InputError(f"{shown(url)}: the proxy does not connect to it (HTTP {status})", around)
    return InputError(
        f"{shown(url)}: the proxy refuses the login (HTTP {status})",
        f"set {parts.scheme.lower()}_proxy=http://USER:PASSWORD@PROXY:PORT (in the password %40 is @, %3A is :,"
        f" %2F is /); {around}",
    )


def _retry_after(answer: BaseHTTPResponse) -> float | None:
    """Return how many seconds the server asks to wait, in seconds or as a date; None if it does not."""
    with contextlib.suppress(HTTPError, ValueError, OverflowError):
        return min(Retry().parse_retry_after(answer.headers.get("Retry-After", "")), 1e9)
    return None
