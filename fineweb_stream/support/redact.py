"""What may be shown, and what may be kept on record.

Names, fields, records, servers' answers and decoded text are foreign until escaped: a control character can move the
cursor, recolour, rename the window or answer for the user; a newline in a name can forge a line of ours; U+202E and its
kin reverse what is read. And URLs carry secrets: neither a message nor a record has any.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex

_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0, DEL, C1
    "\u061c\u200b\u200e\u200f\u202a-\u202e\u2066-\u206f\ufeff\ufff9-\ufffb"  # direction, and what is not seen
    "\u2028\u2029\ud800-\udfff]"  # separators of lines and paragraphs, surrogates (bytes of names that are no UTF-8)
)

# What signs an address or logs in, as storages and web servers call it. It is another each time that it is given out.
_SECRET = re.compile(
    r"x-[a-z]+-.*|.*(sig|signature|token|auth|key|key-pair-id|secret|pass|password|pwd|credential)|expires?|policy"
    r"|awsaccesskeyid|googleaccessid|s[vterpas]|srt|spr|sip|sk[a-z]+",
    re.IGNORECASE,
)

# A login; a password with a / that nobody escaped looks like a port that is no number.
_LOGIN = re.compile(r"^([^:]+://)(?:[^/]*@|[^/@:]*:(?!\d+/).*@)")


def escape(text: str, keep: str = "") -> str:
    """Write as Python's escapes what must not reach a terminal; `keep` names characters that may.

    >>> print(escape("a\\x1b[31m\\u202etxt.exe\\nprepare: done"))
    a\\x1b[31m\\u202etxt.exe\\nprepare: done
    >>> escape("漢字 👩‍👩‍👧 naïve\\tC:\\\\new", keep="\\t")
    '漢字 👩\\u200d👩\\u200d👧 naïve\\tC:\\\\new'

    What is escaped already stays as it is, so that it does no harm twice.
    """
    return _UNSAFE.sub(lambda match: match[0] if match[0] in keep else repr(match[0])[1:-1], text)


def shown(name: str) -> str:
    """Return a name for messages: on one line, nothing in it that steers a terminal; of a URL, no login and no query.

    >>> shown("https://me:password@example.org/a.txt?signature=secret"), shown("what?.txt")
    ('https://example.org/a.txt', 'what?.txt')
    """
    return escape(_without_secrets(name) if "://" in name else name)


def quoted(text: str) -> str:
    """Return a path or a pattern as a shell wants it, and no command takes for an option.

    >>> quoted("data/corpus"), quoted("data/my corpus")[1:-1], quoted("-c.txt")
    ('data/corpus', 'data/my corpus', './-c.txt')
    """
    return as_word(f"./{text}" if text.startswith("-") else text)


def as_word(text: str) -> str:
    """Return any text as one word for a shell."""
    if os.name != "nt":
        return shlex.quote(text)
    from subprocess import list2cmdline

    return list2cmdline([text])


def kept(name: str) -> str:
    """Return a name for the record, by which it is known again: with a hash of each value, and no secret at all.

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
    """Leave out the values of parameters that are secrets: elsewhere than on the web a ? may be a wildcard."""
    return re.sub(r"(?<=[?&;])([\w-]+)=[^&;#]*", lambda m: f"{m[1]}=..." if _SECRET.fullmatch(m[1]) else m[0], name)


def is_web(url: str) -> bool:
    """Tell whether a URL is read by HTTP itself; elsewhere ? is a wildcard."""
    return url.lower().startswith(("http://", "https://"))
