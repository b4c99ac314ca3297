"""Bytes -> str, with every byte that is no UTF-8 named."""

from __future__ import annotations

import re

from ..support.errors import RecordError
from ..support.model import Change

BOM = b"\xef\xbb\xbf"
_ESCAPED_BYTES = re.compile("[\udc80-\udcff]+")


def decode(data: bytes, errors: str, byte: int, record: int = 0) -> tuple[str, list[Change]]:
    """Decode UTF-8 that stands at `byte` of a file; return the text and what was replaced or left out.

    >>> decode(b"caf\\xe9", "replace", byte=100)
    ('caf\ufffd', [Change(record=0, byte=103, kind='replaced', detail='1 byte that is no UTF-8: e9')])

    Raises `RecordError` for such bytes when `errors` is "strict".
    """
    try:
        return data.decode("utf-8"), []
    except UnicodeDecodeError as error:
        if errors == "strict":
            raise RecordError(
                record,
                byte + error.start,
                f"not UTF-8 (0x{data[error.start]:02x})",
                "--errors replace puts U+FFFD in its place, --errors ignore leaves it out;"
                " a file in another encoding: iconv -f latin1 -t utf-8 OLD > NEW",
            ) from None
    kind = "replaced" if errors == "replace" else "left out"
    changes = []
    escaped = data.decode("utf-8", "surrogateescape")
    position, at = byte, 0
    for match in _ESCAPED_BYTES.finditer(escaped):
        position += len(escaped[at : match.start()].encode("utf-8", "surrogateescape"))
        at = match.start()
        bad = match.group().encode("utf-8", "surrogateescape")
        plural = "s" if len(bad) > 1 else ""
        changes.append(Change(record, position, kind, f"{len(bad)} byte{plural} that is no UTF-8: {bad[:8].hex(' ')}"))
    return data.decode("utf-8", errors), changes
