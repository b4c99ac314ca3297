"""Escaping and redaction: what may be shown to the user, and what may be kept in the run's record.

Names, fields, records, server responses and decoded text are untrusted until escaped: control characters can move the
cursor, change colours, rename the window or type for the user; a newline in a name can fake a line of output; U+202E
and similar characters reverse text. URLs contain secrets, which belong neither in messages nor in the record.
"""

from __future__ import annotations

import hashlib
import re

_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0, DEL, C1
    "\u061c\u200b\u200e\u200f\u202a-\u202e\u2066-\u206f\ufeff\ufff9-\ufffb"  # direction marks, invisible characters
    "\u2028\u2029\ud800-\udfff]"  # line and paragraph separators, surrogates (invalid UTF-8 in file names)
)

# URL parameters that sign or authenticate, in storage services and web servers; signing anew changes their values.
_SECRET = re.compile(
    r"x-[a-z]+-.*|.*(sig|signature|token|auth|key|key-pair-id|secret|pass|password|pwd|credential)|expires?|policy"
    r"|awsaccesskeyid|googleaccessid|s[vterpas]|srt|spr|sip|sk[a-z]+",
    re.IGNORECASE,
)

# A login. A password with an unescaped / looks like a port that is not a number.
_LOGIN = re.compile(r"^([^:]+://)(?:[^/]*@|[^/@:]*:(?!\d+/).*@)")


def escape(text: str, keep: str = "") -> str:
    """Replace characters that must not reach a terminal with Python escapes, except those in `keep`.

    >>> print(escape("a\\x1b[31m\\u202etxt.exe\\nprepare: done"))
    a\\x1b[31m\\u202etxt.exe\\nprepare: done
    >>> escape("漢字 👩‍👩‍👧 naïve\\tC:\\\\new", keep="\\t")
    '漢字 👩\\u200d👩\\u200d👧 naïve\\tC:\\\\new'

    Escaped text stays as it is, so text may be escaped twice.
    """
    return _UNSAFE.sub(lambda match: match[0] if match[0] in keep else repr(match[0])[1:-1], text)


def shown(name: str) -> str:
    """Return a name for messages: on one line, with control characters escaped, and without a URL's secrets.

    >>> shown("https://me:password@example.org/a.txt?signature=secret"), shown("what?.txt")
    ('https://example.org/a.txt', 'what?.txt')
    """
    return escape(_without_secrets(name) if "://" in name else name)


def kept(name: str) -> str:
    """Return a name for the record: without secrets, and with other query values hashed, so names can be compared.

    >>> kept("https://me:password@example.org/a?id=7&X-Amz-Signature=0f1e"), kept("ftp://me:password@example.org/a")
    ('https://example.org/a?id=7902699be42c&X-Amz-Signature=...', 'ftp://me:...@example.org/a')
    """
    if "://" not in name:
        return name
    if not is_web(name):
        return re.sub(r"^([^:]+://[^/@:]*:)(?:[^/]*@|(?=\D).*@)", r"\1...@", _hide_parameters(name))
    query = name.partition("#")[0].partition("?")[2]
    return _without_secrets(name) + ("?" + "&".join(map(_kept_parameter, query.split("&"))) if query else "")


def _without_secrets(url: str) -> str:
    if is_web(url):
        return re.split("[?#]", _LOGIN.sub(r"\1", url))[0]
    return _LOGIN.sub(r"\1", _hide_parameters(url))


def _kept_parameter(parameter: str) -> str:
    name, equals, value = parameter.partition("=")
    if equals and _SECRET.fullmatch(name):
        return f"{name}=..."
    sha256 = hashlib.sha256((value if equals else name).encode("utf-8", "surrogateescape")).hexdigest()
    return f"{name}={sha256[:12]}" if equals else sha256[:12]


def _hide_parameters(name: str) -> str:
    """Hide the values of secret parameters in a URL that is not HTTP, where ? may also be a wildcard."""
    return re.sub(r"(?<=[?&;])([\w-]+)=[^&;#]*", lambda m: f"{m[1]}=..." if _SECRET.fullmatch(m[1]) else m[0], name)


def is_web(url: str) -> bool:
    """Tell whether a URL is HTTP or HTTPS; in other URLs, ? is a wildcard."""
    return url.lower().startswith(("http://", "https://"))
