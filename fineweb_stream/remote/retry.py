"""When to try again, how long to wait before, and when to give up.

What passes (429, 5xx, cut connections) is tried again until nothing new came for PATIENCE_SECONDS; what does not pass
(401, 403, 404) is refused at once, with the way out. A server that asks to be left alone is left alone by all.
"""

from __future__ import annotations

import random
import re
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

from urllib3.exceptions import HTTPError, LocationParseError, LocationValueError, TimeoutError

from ..support.cancel import TICK_SECONDS
from ..support.errors import InputError, RemoteError
from ..support.log import log
from ..support.redact import shown

T = TypeVar("T")

TIMEOUT_SECONDS = 20.0
"""How long one operation of a socket may take."""

PATIENCE_SECONDS = 600.0
"""How long to go on without a single new byte."""

CONTACT_SECONDS = 6.0
"""The same before a listing's first answer, when no work is at stake: without a network, say so soon."""

FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 1.0, 60.0

_PASSING = {408, 425, 429, 500, 502, 503, 504, *range(520, 530)}  # 52x: Cloudflare could not reach the server


class Answer(NamedTuple):
    """What a server said that is no success: status, headers, whether it is the Hub.

    `is_stale` is a refusal where the Hub redirects to: the signature in that address has expired.
    """

    status: int
    headers: Mapping[str, str]
    is_hub: bool = False
    is_stale: bool = False


class Refused(Exception):
    """A server's answer is no success: its only argument is an `Answer`."""


class Pacing:
    """What all connections know of the servers: when one may be asked again, and which waits were announced.

    `check` raises when it is time to end.
    """

    def __init__(self, check: Callable[[], None]) -> None:
        self.check = check
        self._lock = threading.Lock()
        self._closed_until: dict[str, float] = {}
        self._n_under_way: dict[str, int] = {}
        self._announced: dict[str, float] = {}

    def enter(self, url: str, seconds: float) -> None:
        """Wait until the server may be asked, `seconds` at most; `leave` must follow."""
        server, end = _server(url), time.monotonic() + seconds
        while True:
            with self._lock:
                left = min(self._closed_until.get(server, 0.0), end) - time.monotonic()
                if left <= 0:
                    self._n_under_way[server] = self._n_under_way.get(server, 0) + 1
                    return
            self.pause(left, f"{server}: its limit of requests")

    def leave(self, url: str, headers: Mapping[str, str] | None) -> None:
        """Note what an answer says of requests that are left: `"api";r=489;t=189` are 489 for the next 189 seconds."""
        server, said = _server(url), headers.get("RateLimit", "") if headers else ""
        limit = re.search(r"r=(\d{1,9});\s*t=(\d{1,9})", said)
        with self._lock:
            self._n_under_way[server] -= 1
            if limit and int(limit[1]) <= self._n_under_way[server]:
                self._close(server, float(limit[2]))

    def hold(self, url: str, seconds: float) -> None:
        """Leave a server alone for so long, as it asked."""
        with self._lock:
            self._close(_server(url), seconds)

    def _close(self, server: str, seconds: float) -> None:
        self._closed_until[server] = max(self._closed_until.get(server, 0.0), time.monotonic() + seconds)

    def pause(self, seconds: float, what: str) -> None:
        """Sleep, with one notice: threads that wait for the same meanwhile add none."""
        end = time.monotonic() + seconds
        with self._lock:
            is_new = end - seconds >= self._announced.get(what, 0)
            if is_new:
                self._announced[what] = end
        if is_new:
            log.warning("waiting for %s, again in %.0f s", what, seconds)
        self.check()
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, TICK_SECONDS))
            self.check()


def _server(url: str) -> str:
    """Return what counts requests together: the Hub's API has a limit of its own."""
    parts = urlsplit(url)
    return parts.netloc.rpartition("@")[2] + ("/api" if parts.path.startswith("/api/") else "")


class Patience:
    """How long to wait before the next try, and when to give up: after `limit` seconds without `progressed()`."""

    def __init__(self, url: str, pacing: Pacing, limit: float | None = None) -> None:
        self.limit = PATIENCE_SECONDS if limit is None else limit
        self._url = url
        self._place = urlsplit(url).netloc.rpartition("@")[2] or shown(url)
        self._pacing = pacing
        self.progressed()

    def progressed(self) -> None:
        """Begin to count again."""
        self._since = time.monotonic()
        self._next_seconds = FIRST_WAIT_SECONDS

    def answered(self) -> None:
        """The server is there: from now on it is worth waiting for."""
        self.limit = max(self.limit, PATIENCE_SECONDS)

    @property
    def left(self) -> float:
        """How many seconds are left."""
        return self.limit - (time.monotonic() - self._since)

    def give_up(self, reason: str) -> RemoteError:
        """Return the error to raise when it has been too long."""
        return RemoteError(
            f"{self._place}: {reason}; nothing came for {self.limit - self.left:.0f} s",
            "check the network; the same command continues once it is back",
        )

    def wait(self, reason: str, retry_after: float | None = None) -> None:
        """Wait as long as the server says, else longer each time; `RemoteError` when it has been too long."""
        left = self.left
        if left <= 0:
            raise self.give_up(reason)
        seconds = self._next_seconds if retry_after is None else max(retry_after, FIRST_WAIT_SECONDS)
        self._next_seconds = min(2 * self._next_seconds, LONGEST_WAIT_SECONDS)
        seconds = min(seconds * random.uniform(1, 1.25), left)  # threads shall not come back in step
        if retry_after is not None:
            self._pacing.hold(self._url, seconds)
        self._pacing.pause(seconds, f"{self._place}: {reason}")


def with_patience(url: str, patience: Patience, pacing: Pacing, attempt: Callable[[], T]) -> T:
    """Return what `attempt` returns, called again until it does; `InputError` for what waiting does not mend."""
    while True:
        pacing.check()
        retry_after = None
        try:
            return attempt()
        except Refused as error:
            answer: Answer = error.args[0]
            patience.answered()
            if answer.status not in _PASSING and not answer.is_stale:
                raise refusal(url, answer) from None
            reason, retry_after = f"HTTP {answer.status}", _retry_after(answer.headers)
        except (LocationParseError, LocationValueError, ValueError):
            raise InputError(f"{shown(url)}: not an address that can be read", "check it") from None
        except (HTTPError, OSError) as error:
            reason = _reason(url, error)
        pacing.check()  # what failed may have been closed because it is time to end
        patience.wait(reason, retry_after)


def _reason(url: str, error: BaseException) -> str:
    """Say in a word or two why a connection failed.

    Raises `InputError` for what waiting does not mend: a certificate, or a proxy that refuses to connect.
    """
    cause: BaseException | None = error
    while cause:
        if isinstance(cause, ssl.SSLCertVerificationError):
            raise InputError(
                f"{shown(url)}: the certificate is not trusted ({cause})",
                "behind a proxy that has its own: SSL_CERT_FILE=/path/to/its/ca.pem",
            ) from None
        if found := re.match(r"Tunnel connection failed: (\d{3})\b", str(cause)):
            if int(found[1]) not in _PASSING:
                raise _proxy_refusal(url, int(found[1]))
            return f"the proxy says HTTP {found[1]}"
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        if isinstance(cause, TimeoutError | OSError) and "time" in type(cause).__name__.lower():
            return "timeout"
        cause = cause.__cause__ or cause.__context__
    return "the server closed the connection"


def refusal(url: str, answer: Answer) -> InputError:
    """Return the error for an answer that no waiting mends."""
    if answer.status == 407:
        return _proxy_refusal(url, answer.status)
    said = re.sub(r"[^ -~]", "", answer.headers.get("X-Error-Message", ""))[:200]
    said = re.sub(r"\bhf_\w+", "...", said)
    message = f"{shown(url)}: HTTP {answer.status}" + (f" ({said})" if said else "")
    repo = re.search(r"/datasets/([^/]+/[^/?]+)", url)
    if answer.status in (401, 403) and answer.is_hub and repo:
        return InputError(
            message,
            "check the name; log in: hf auth login, or set HF_TOKEN; for a gated dataset accept its terms at "
            f"https://huggingface.co/datasets/{repo[1]}",
        )
    hints = {
        401: "the server wants a login: fetch the file with its own tools and name the local copy",
        403: "the server does not give it: fetch the file with its own tools and name the local copy",
        404: "check the name (and, on the Hub, the revision)",
        416: "the file changed while it was read: once it is complete, start over with --overwrite",
    }
    if answer.status == 403 and "?" in url:
        return InputError(message, "if its signature has expired: the same command with the new address continues")
    return InputError(message, hints.get(answer.status, "the server does not serve it"))


def _proxy_refusal(url: str, status: int) -> InputError:
    """Return the error for a proxy that does not let anything through, with the variable that says another."""
    parts = urlsplit(url)
    around = f"no_proxy={parts.hostname} goes without a proxy"
    if status != 407:
        return InputError(f"{shown(url)}: the proxy does not connect to it (HTTP {status})", around)
    return InputError(
        f"{shown(url)}: the proxy refuses the login (HTTP {status})",
        f"set {parts.scheme.lower()}_proxy=http://USER:PASSWORD@PROXY:PORT (in the password %40 is @, %3A is :,"
        f" %2F is /); {around}",
    )


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return how many seconds the server asks to stay away; it says so in seconds or as a date."""
    value = (headers.get("Retry-After") or "").strip()
    if value.isdecimal():
        return float(value[:9])
    try:
        return parsedate_to_datetime(value).timestamp() - time.time()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
