"""File fingerprints: the modification time, and hashes of the first and the last bytes.

During a run, the time reveals that a file is being written to. A resumed run compares only sizes and hashes, so that a
file may have been copied or renamed.
"""

from __future__ import annotations

import hashlib
import os
import re
from datetime import datetime, timezone
from pathlib import Path

END_BYTES = 4096

_FINGERPRINT = re.compile(r"(-?\d{1,20}) head:([0-9a-f]{32}) tail:([0-9a-f]{32})")


def file_fingerprint(path: str | os.PathLike[str], head_bytes: int = END_BYTES) -> str:
    """Return the fingerprint of a file as it is now, with `head_bytes` as its head. Raises `OSError`."""
    with Path(path).open("rb") as file:
        info = os.fstat(file.fileno())
        head = file.read(head_bytes)
        file.seek(max(info.st_size - END_BYTES, 0))
        tail = file.read(END_BYTES)
    return f"{info.st_mtime_ns} head:{hash_bytes(head)[:32]} tail:{hash_bytes(tail)[:32]}"


def changed_at(fingerprint: str) -> str:
    """Return the modification time in a fingerprint (nanoseconds since 1970), "" if it has none."""
    return fingerprint.partition(" ")[0] if _FINGERPRINT.fullmatch(fingerprint) else ""


def content_of(fingerprint: str) -> str:
    """Return the part of a fingerprint that stays the same when the file is copied.

    >>> content_of(f"5 head:{'0' * 32} tail:{'0' * 32}")[:10], content_of("W/x")
    ('head:00000', 'W/x')
    """
    return fingerprint.partition(" ")[2] if _FINGERPRINT.fullmatch(fingerprint) else fingerprint


def head_of(fingerprint: str) -> str:
    """Return the hash of the file's head in a fingerprint, "" if it has none."""
    match = _FINGERPRINT.fullmatch(fingerprint)
    return match[2] if match else ""


def date_of(fingerprint: str) -> str:
    """Return the modification time in a fingerprint as local date and time, "" if it has none."""
    try:
        moment = datetime.fromtimestamp(int(changed_at(fingerprint)) / 1e9, timezone.utc).astimezone()
    except (ValueError, OverflowError, OSError):
        return ""
    return f"{moment:%Y-%m-%d %H:%M:%S}"


def hash_bytes(data: bytes) -> str:
    """Return the SHA-256 of `data` (hexadecimal)."""
    return hashlib.sha256(data).hexdigest()
