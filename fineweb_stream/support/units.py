"""Sizes, counts and times as people write them."""

from __future__ import annotations

import re

from .errors import InputError

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30}


def parse_size(text: str | int) -> int:
    """Read a count or a size: `500M`, `1B` (a billion), `4GB`, `2GiB`, `1e6`.

    >>> parse_size("500M"), parse_size("1B"), parse_size("1.5 GB"), parse_size("2GiB")
    (500000000, 1000000000, 1500000000, 2147483648)

    Raises `InputError` for anything else, and for less than 1.
    """
    match = re.fullmatch(r"([\d_,.]+(?:e\d+)?)\s*([KMGT]i?B?|B)?", str(text).strip(), re.IGNORECASE)
    unit = (match.group(2) or "").upper() if match else ""
    if unit not in _UNITS:
        unit = unit.removesuffix("B")
    try:
        size = int(float(match.group(1).replace("_", "").replace(",", "")) * _UNITS[unit]) if match else 0
    except (ValueError, OverflowError):
        size = 0
    if size < 1:
        raise InputError(f"not a size: {str(text)!r}", "write it like 500M, 1B or 4GB; 1 or more")
    return size


def counted(n: int, noun: str) -> str:
    """Write a number of things.

    >>> counted(1, "document"), counted(2000, "token")
    ('1 document', '2,000 tokens')
    """
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def format_size(n_bytes: float) -> str:
    """Write a size as people say it.

    >>> format_size(12_345_678_901), format_size(200_000)
    ('12.3 GB', '200.0 kB')
    """
    unit, name = (1e9, "GB") if n_bytes >= 1e9 else (1e6, "MB") if n_bytes >= 1e6 else (1e3, "kB")
    return f"{n_bytes / unit:,.1f} {name}"


def format_duration(seconds: float) -> str:
    """Write a time as people say it.

    >>> format_duration(7), format_duration(95), format_duration(8000)
    ('7 s', '1 min 35 s', '2 h 13 min')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"
