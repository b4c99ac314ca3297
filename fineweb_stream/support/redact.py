"""What of an input's name may be shown, and what may be kept: neither has the secrets that URLs carry."""

from __future__ import annotations

import hashlib
import re

from .shown import escape

# What signs an address or logs in, as storages and web servers call it. It is another each time that it is given out.
_SECRET = re.compile(
    r"x-[a-z]+-.*|.*(sig|signature|token|auth|key|key-pair-id|secret|pass|password|pwd|credential)|expires?|policy"
    r"|awsaccesskeyid|googleaccessid|s[vterpas]|srt|spr|sip|sk[a-z]+",
    re.IGNORECASE,
)

# A login; a password with a / that nobody escaped looks like a port that is no number.
_LOGIN = re.compile(r"^([^:]+://)(?:[^/]*@|[^/@:]*:(?!\d+/).*@)")


def shown(name: str) -> str:
    """Return a name for messages: on one line, nothing in it that steers a terminal; of a URL, no login and no query.

    >>> shown("https://me:password@example.org/a.txt?signature=secret"), shown("what?.txt")
    ('https://example.org/a.txt', 'what?.txt')
    """
    return escape(_without_secrets(name) if "://" in name else name)


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
    if not equals:  # the value alone
        return hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:12]
    if _SECRET.fullmatch(name):
        return f"{name}=..."
    return f"{name}={hashlib.sha256(value.encode('utf-8', 'surrogateescape')).hexdigest()[:12]}"


def _hide_parameters(name: str) -> str:
    """Leave out the values of parameters that are secrets: elsewhere than on the web a ? may be a wildcard."""
    return re.sub(r"(?<=[?&;])([\w-]+)=[^&;#]*", lambda m: f"{m[1]}=..." if _SECRET.fullmatch(m[1]) else m[0], name)


def is_web(url: str) -> bool:
    """Tell whether a URL is read by HTTP itself; elsewhere ? is a wildcard."""
    return url.lower().startswith(("http://", "https://"))
