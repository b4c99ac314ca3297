"""Is it UTF-8? And bytes -> str, with every byte that is none named."""

from __future__ import annotations

import re

import numpy as np

from ..support.errors import RecordError
from ..support.model import Change, Changes

BOM = b"\xef\xbb\xbf"
_ESCAPED_BYTES = re.compile("[\udc80-\udcff]+")


def is_utf8(data: bytes) -> bool:
    """Tell whether bytes are UTF-8, without a `str` of them: mostly in NumPy, which lets other threads run.

    >>> is_utf8("naïve".encode()), is_utf8(b"na\\xefve"), is_utf8(b"na\\xc3"), is_utf8(b"\\xc3a\\xaf")
    (True, False, False, False)
    """
    if data.isascii():
        return True
    array = np.frombuffer(data, np.uint8)
    is_kept = array >= 0x80
    is_kept[1:] |= is_kept[:-1]  # and the character after each run, so that no two runs come together
    try:
        array[is_kept].tobytes().decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def decode(data: bytes, errors: str, byte: int, record: int = 0) -> tuple[str, Changes]:
    """Decode UTF-8 that stands at `byte` of a file; return the text and what was replaced or left out.

    >>> text, changes = decode(b"caf\\xe9", "replace", byte=100)
    >>> text, list(changes)
    ('caf\ufffd', [Change(record=0, byte=103, kind='replaced', detail='1 byte of invalid UTF-8: e9', n=1)])

    Raises `RecordError` for such bytes when `errors` is "strict".
    """
    try:
        return data.decode("utf-8"), Changes()
    except UnicodeDecodeError as error:
        if errors == "strict":
            raise RecordError(
                record,
                byte + error.start,
                f"invalid UTF-8 (0x{data[error.start]:02x})",
                "--errors replace puts U+FFFD in its place, --errors ignore leaves it out;"
                " a file in another encoding: iconv -f latin1 -t utf-8 OLD > NEW",
            ) from None
    kind = "replaced" if errors == "replace" else "left out"
    changes = Changes()
    escaped = data.decode("utf-8", "surrogateescape")
    position, at = byte, 0
    for match in _ESCAPED_BYTES.finditer(escaped):
        position += len(escaped[at : match.start()].encode("utf-8", "surrogateescape"))
        at = match.start()
        bad = match.group().encode("utf-8", "surrogateescape")
        plural = "s" if len(bad) > 1 else ""
        changes.append(Change(record, position, kind, f"{len(bad)} byte{plural} of invalid UTF-8: {bad[:8].hex(' ')}"))
    return data.decode("utf-8", errors), changes
