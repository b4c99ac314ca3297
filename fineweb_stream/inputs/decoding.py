"""Validating UTF-8, repairing invalid bytes and reporting each, and normalizing line ends."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator

import numpy as np

from ..support.errors import RecordError
from ..support.model import Change, Changes
from ..support.units import counted
from ..tokenizer.batch import beyond_ascii

BOM = b"\xef\xbb\xbf"
_PIECE_BYTES = 1 << 20
_ASCII = re.compile(rb"[\x00-\x7f]")
ZEROS = bytes(4096)  # more zero bytes in a row than text has
_ZEROS_OR_WIDE = re.compile(rb"\0(?:\0{%d}|[\t-~](?:\0[\t-~]){63})" % (len(ZEROS) - 1))  # UTF-16 is valid UTF-8, too
NOT_WHOLE = "is the file still being downloaded? Wait until it is complete"
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89abAB]")
_ESCAPED_BYTES = re.compile("[\udc80-\udcff]+")
_NOT_UTF8 = (
    "--errors replace puts U+FFFD in its place, --errors ignore leaves it out;"
    " a file in another encoding: iconv -f ENCODING -t utf-8 OLD > NEW (most Western text is in cp1252)"
)


def is_utf8(data: bytes) -> bool:
    """Tell whether bytes are UTF-8, mostly outside the GIL, and without a `str` of all of them.

    >>> is_utf8("naïve".encode()), is_utf8(b"na\\xefve"), is_utf8(b"na\\xc3"), is_utf8(b"\\xc3a\\xaf")
    (True, False, False, False)
    """
    if data.isascii():
        return True
    try:
        beyond_ascii(data).decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def begins_as_utf8(head: bytes) -> bool:
    """Tell whether bytes are UTF-8, but for a last character that is cut off."""
    try:
        codecs.utf_8_decode(head, "strict", False)
    except UnicodeDecodeError:
        return False
    return True


def find_zeros(data: bytes) -> re.Match[bytes] | None:
    """Find a long run of zero bytes, space that a download reserved but has not filled yet, or UTF-16 after UTF-8."""
    return None if np.frombuffer(data, np.uint8).min(initial=1) else _ZEROS_OR_WIDE.search(data)


def normalized(data: bytes) -> bytes:
    """Return text with line ends as `open()` reads them: `\\r\\n` and `\\r` become `\\n`."""
    return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in data else data


def repair(data: bytes, errors: str, byte: int, record: int = 0) -> tuple[bytes, Changes]:
    """Return data from offset `byte` of a file as valid UTF-8, and what was replaced or left out.

    >>> data, changes = repair(b"caf\\xe9", "replace", byte=100)
    >>> data.decode(), list(changes)
    ('caf\ufffd', [Change(record=0, byte=103, kind='replaced', detail='1 byte of invalid UTF-8: e9', n=1)])

    It works like `bytes.decode`, but piece by piece: a single wide character makes a `str` take four bytes for each.

    Raises `RecordError` if `errors` is "strict", for invalid bytes and for a long run of zero bytes.
    """
    changes = Changes()
    if is_utf8(data):
        if errors == "strict" and (zeros := find_zeros(data)):
            is_wide = zeros[0][1:2] != b"\0"
            what = "text in UTF-16 among UTF-8" if is_wide else f"{len(ZEROS):,} or more zero bytes, not text"
            how = "convert it (iconv -f utf-16 -t utf-8) before files are joined" if is_wide else NOT_WHOLE
            raise RecordError(record, byte + zeros.start(), what, f"{how}; --errors replace reads it as it is")
        return data, changes
    kind = "replaced" if errors == "replace" else "left out"
    parts: list[bytes] = []
    start = 0
    while start < len(data):
        found = _ASCII.search(data, start + _PIECE_BYTES)  # no character or invalid run continues after ASCII
        piece = data[start : found.end() if found else None]
        for at, bad in _bad_bytes(piece):
            if errors == "strict":
                raise RecordError(record, byte + start + at, f"invalid UTF-8 (0x{bad[0]:02x})", _NOT_UTF8)
            detail = f"{counted(len(bad), 'byte')} of invalid UTF-8: {bad[:8].hex(' ')}"
            changes.append(Change(record, byte + start + at, kind, detail))
        parts.append(piece.decode("utf-8", errors).encode())
        start += len(piece)
    return b"".join(parts), changes


def _bad_bytes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the offset and the bytes of each run of invalid UTF-8."""
    escaped = data.decode("utf-8", "surrogateescape")
    position = at = 0
    for match in _ESCAPED_BYTES.finditer(escaped):
        position += len(escaped[at : match.start()].encode("utf-8", "surrogateescape"))
        at = match.start()
        yield position, match.group().encode("utf-8", "surrogateescape")


def char_bytes(data: bytes) -> int:
    """Return how many bytes a character of JSON's strings takes in a `str`, at most: 1, 2 or 4, by the widest one.

    >>> char_bytes(b"plain"), char_bytes("na\xefve \u2019".encode()), char_bytes(b'"\\\\ud83d\\\\ude00"')
    (1, 2, 4)
    """
    largest = int(np.frombuffer(data, np.uint8).max(initial=0))
    if largest >= 0xF0 or _ESCAPED_SURROGATE.search(data):
        return 4
    return 2 if largest >= 0xC4 or b"\\u" in data else 1
