"""HTTP that waits out an unreliable network, and knows who the Hub is. Standard library only.

`with_patience` is the one retry loop: it repeats what may pass (429, 5xx, cut connections) and refuses at once what
does not (401, 403, 404). The token goes to HF_ENDPOINT's own host and never to where that redirects.
"""

from __future__ import annotations

import base64
import functools
import http.client
import os
import random
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from email.message import Message
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

from ..support.cancel import aside
from ..support.errors import InputError, RemoteError
from ..support.redact import shown
from ..support.waiting import check, current
from .connections import KeepAlive

T = TypeVar("T")
Waiter = Callable[[float, str], None]
"""Waits so many seconds; the second argument is for whom and why ("huggingface.co: HTTP 429")."""

TIMEOUT_SECONDS = 20.0
"""How long one operation of a socket may take; also how long a thread may outlive its run, while it connects."""

PATIENCE_SECONDS = 600.0
"""How long to go on without a single new byte."""

CONTACT_SECONDS = 6.0
"""The same before a listing's first answer, when no work is at stake: without a network, say so soon."""

FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 1.0, 60.0

_PASSING = {408, 425, 429, 500, 502, 503, 504, *range(520, 530)}  # 52x: Cloudflare could not reach the server


class Patience:
    """How long to wait before the next try, and when to give up: after `limit` seconds without `progressed()`."""

    def __init__(self, url: str, wait: Waiter, limit: float | None = None) -> None:
        self.limit = PATIENCE_SECONDS if limit is None else limit
        self._place = urlsplit(url).netloc.rpartition("@")[2] or shown(url)
        self._pause = wait
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

    def wait(self, reason: str, retry_after: float | None = None) -> None:
        """Wait as long as the server says, else longer each time; `RemoteError` when it has been too long."""
        left = self.left
        if left <= 0:
            raise RemoteError(
                f"{self._place}: {reason}; nothing came for {self.limit - left:.0f} s",
                "check the network; the same command continues once it is back",
            )
        seconds = self._next_seconds if retry_after is None else max(retry_after, FIRST_WAIT_SECONDS)
        self._next_seconds = min(2 * self._next_seconds, LONGEST_WAIT_SECONDS)
        seconds = min(seconds * random.uniform(1, 1.25), left)  # threads shall not come back in step
        self._pause(seconds, f"{self._place}: {reason}")


def with_patience(url: str, patience: Patience, attempt: Callable[[], T]) -> T:
    """Return what `attempt` returns, called again until it does; `InputError` for what waiting does not mend."""
    while True:
        check()
        retry_after = None
        try:
            if patience.limit >= PATIENCE_SECONDS:
                return attempt()
            return aside(attempt, current(), max(patience.left, 1))  # names and addresses can take minutes to fail
        except urllib.error.HTTPError as error:
            patience.answered()
            with error:
                # Where the Hub redirects to, 403 means that the signature in that address has expired.
                is_stale = error.code == 403 and is_hub(url) and not is_hub(error.url)
                if error.code not in _PASSING and not is_stale:
                    raise _refusal(url, error) from None
                reason, retry_after = f"HTTP {error.code}", _retry_after(error.headers)
        except (http.client.InvalidURL, ValueError):
            raise InputError(f"{shown(url)}: not an address that can be read", "check it") from None
        except (OSError, http.client.HTTPException) as error:
            cause = getattr(error, "reason", error)
            if isinstance(cause, ssl.SSLCertVerificationError):
                raise InputError(
                    f"{shown(url)}: the certificate is not trusted ({cause})",
                    "behind a proxy that has its own: SSL_CERT_FILE=/path/to/its/ca.pem",
                ) from None
            reason = getattr(cause, "strerror", None) or ("timeout" if isinstance(cause, TimeoutError) else "hung up")
        patience.wait(reason, retry_after)


class Request(urllib.request.Request):
    """A request with the token where it belongs; `linked_etags` is what redirects said of the file they lead to."""

    def __init__(
        self, url: str, headers: Mapping[str, str], method: str, linked_etags: list[str] | None = None
    ) -> None:
        super().__init__(quote(url, safe="%/:=&?~#+!$,;'@()*[]"), headers=dict(headers), method=method)
        self.linked_etags = [] if linked_etags is None else linked_etags
        if is_hub(url) and (token := read_token()):
            self.add_unredirected_header("Authorization", f"Bearer {token}")


class _Redirects(urllib.request.HTTPRedirectHandler):
    http_error_308 = urllib.request.HTTPRedirectHandler.http_error_302  # Python 3.10 does not know it

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> Request:
        assert isinstance(req, Request)
        if etag := headers.get("X-Linked-Etag"):
            req.linked_etags.append(etag)
        return Request(newurl, req.headers, req.get_method(), req.linked_etags)


@functools.cache
def _opener() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(KeepAlive, _Redirects)


def send(url: str, patience: Patience, *, method: str = "GET", **headers: str) -> http.client.HTTPResponse:
    """Open a URL once; the answer's `X-Linked-Etag` is also that of a redirect. Header names with _ for -."""
    found = {"Accept-Encoding": "identity"} | {k.replace("_", "-"): headers[k] for k in headers}
    url, login = _part_login(url)
    request = Request(url, found, method)
    if login:
        request.add_unredirected_header("Authorization", login)
    response: http.client.HTTPResponse = _opener().open(request, timeout=TIMEOUT_SECONDS)
    patience.answered()
    if request.linked_etags and "X-Linked-Etag" not in response.headers:
        response.headers["X-Linked-Etag"] = request.linked_etags[-1]
    return response


def _part_login(url: str) -> tuple[str, str]:
    """Return a URL without its login, and the header that says it ("" for none)."""
    parts = urlsplit(url)
    login, at, server = parts.netloc.rpartition("@")
    if not at:
        return url, ""
    user, _, password = login.partition(":")
    pair = f"{unquote(user)}:{unquote(password)}".encode()
    return parts._replace(netloc=server).geturl(), f"Basic {base64.b64encode(pair).decode()}"


def endpoint() -> str:
    """Return where the Hub is, by HF_ENDPOINT."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def is_hub(url: str) -> bool:
    """Tell whether an address is of the Hub's own scheme, host and port: only there the token may go."""
    return urlsplit(url)[:2] == urlsplit(endpoint())[:2]


def read_token() -> str | None:
    """Return the Hub's token from HF_TOKEN, or the file where `hf auth login` leaves it."""
    token = os.environ.get("HF_TOKEN", "").strip()
    if not token:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
        path = os.environ.get("HF_TOKEN_PATH") or Path(os.environ.get("HF_HOME") or cache, "token")
        try:
            token = Path(path).expanduser().read_text(encoding="utf-8", errors="replace").strip()
        except (OSError, RuntimeError):  # RuntimeError: there is no home
            return None
    if token and not re.fullmatch("[!-~]+", token):  # http.client would show it in its error
        raise InputError("the Hub's token has characters that no token has", "set HF_TOKEN anew, or: hf auth login")
    return token or None


def _refusal(url: str, error: urllib.error.HTTPError) -> InputError:
    said = re.sub(r"[^ -~]", "", error.headers.get("X-Error-Message", ""))[:200]
    said = said.replace(read_token() or "\0", "...")
    message = f"{shown(url)}: HTTP {error.code}" + (f" ({said})" if said else "")
    repo = re.search(r"/datasets/([^/]+/[^/?]+)", url)
    if error.code in (401, 403) and is_hub(url) and repo:
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
    if error.code == 403 and "?" in url:
        return InputError(message, "if its signature has expired: the same command with the new address continues")
    return InputError(message, hints.get(error.code, "the server does not serve it"))


def _retry_after(headers: Message) -> float | None:
    """Return how many seconds the server asks to stay away; it says so in seconds or as a date."""
    value = (headers.get("Retry-After") or "").strip()
    if value.isdecimal():
        return float(value[:9])
    try:
        return parsedate_to_datetime(value).timestamp() - time.time()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
