"""Parsing and formatting of sizes, counts and durations."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, TypeVar

from .errors import InputError
from .log import log

T = TypeVar("T")

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9, "T": 10**12}
_UNITS |= {"KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}

_NUMBER = r"((?:\d{1,3}(?:,\d{3})+|\d[\d_]*)(?:\.\d*)?|\.\d+)(e\+?\d+)?"


def parse_size(value: str | float) -> int:
    """Parse a count or a size: `500M`, `1B` (a billion), `4GB`, `2GiB`, `1e6`, `1,000,000`, or a number.

    >>> parse_size("500M"), parse_size("1B"), parse_size("1.5 GB"), parse_size("2TiB"), parse_size(1e6)
    (500000000, 1000000000, 1500000000, 2199023255552, 1000000)

    Raises `InputError` for anything else: also for less than 1, `1.5` without a unit, and a decimal comma (`1,5GB`).
    """
    match = re.fullmatch(_NUMBER + r"\s*([KMGT]i?B?|B)?", _plain(value), re.IGNORECASE | re.ASCII)
    unit = (match[3] or "").upper() if match else ""
    if unit not in _UNITS:
        unit = unit.removesuffix("B")
    try:
        number = float((match[1] + (match[2] or "")).replace("_", "").replace(",", "")) if match else 0
        size = int(number * _UNITS[unit])
    except (ValueError, OverflowError):
        number = size = 0
    if size < 1 or not (unit or number == size):
        text, hint = str(value), "write it like 500M, 1B or 4GB; 1 or more"
        if re.fullmatch(r"\s*\d+,\d+\s*[a-z]*\s*", text, re.IGNORECASE):
            hint = f"write it with a point: {text.strip().replace(',', '.')}"
        raise InputError(f"not a size: {text!r}", hint)
    return size


def parse_share(value: str | float) -> float:
    """Parse a share: `0.1` or `10%`.

    >>> parse_share("10%"), parse_share(0.0005)
    (0.1, 0.0005)

    Raises `InputError` for anything else, and for a value that is not between 0 and 1 (both excluded).
    """
    text = _plain(value)
    try:
        share = round(float(text[:-1]) / 100, 12) if text.endswith("%") else float(text)
    except ValueError:
        hint = f"write it with a point: {text.replace(',', '.')}" if re.search(r"\d,\d", text) else "write it like 0.1"
        raise InputError(f"not a share: {str(value)!r}", hint) from None
    if not 0 < share < 1:
        raise InputError(
            f"{value}: must be more than 0 and less than 1", f"try {share:g}%" if 1 <= share < 100 else "try 0.0005"
        )
    return share


def parse_whole(value: Any, least: int | None = None) -> int:
    """Parse a whole number, of at least `least` if that is given.

    >>> parse_whole("7", least=1), parse_whole(-3.0)
    (7, -3)

    Raises `InputError` for anything else.
    """
    try:
        number = int(value)
        is_whole = not isinstance(value, bool) and (isinstance(value, str) or number == value)
        if is_whole and (least is None or number >= least):
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    what = "" if least is None else f" of {least} or more"
    raise InputError(f"not a whole number{what}", f"write it like {least or 0} or 42")


def parse_count(value: Any) -> int:
    """Parse a whole number of at least 1."""
    return parse_whole(value, 1)


def parse_flag(value: Any) -> bool:
    """Parse True or False, also NumPy's.

    Raises `InputError` for anything else: the string "no" would count as true.
    """
    if isinstance(value, str) or str(value) not in ("True", "False"):
        raise InputError("neither True nor False", "write True or False")
    return bool(value)


def read_as(name: str, value: Any, parse: Callable[[Any], T]) -> T:
    """Parse the value of a parameter; an `InputError` names the parameter."""
    try:
        return parse(value)
    except InputError as error:
        raise InputError(f"{name}={value!r}: {error.message.removeprefix(f'{value}: ')}", error.hint) from None


def read_variable(name: str, unit: int = 1) -> int:
    """Return the number in an environment variable, in units of `unit` if it has no suffix.

    Returns 0 if the variable is unset, empty, 0 (for Slurm: no limit) or, with a warning, not a number.
    """
    text = os.environ.get(name, "").strip()
    try:
        return parse_size(text) * (unit if re.fullmatch(r"[\d.,_]+", text) else 1)
    except InputError:
        if text.strip("0.") and text:
            log.warning("note: %s=%s is not a number, and is ignored", name, text)
        return 0


def _plain(value: str | float) -> str:
    return "" if isinstance(value, bool) else str(value).strip()


def counted(n: int, noun: str) -> str:
    """Format a number of things.

    >>> counted(1, "document"), counted(2000, "token")
    ('1 document', '2,000 tokens')
    """
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def format_size(n_bytes: float) -> str:
    """Format a size in a readable unit.

    >>> format_size(12_345_678_901), format_size(200_000), format_size(12)
    ('12.3 GB', '200.0 kB', '12 bytes')
    """
    if n_bytes < 1e3:
        return counted(int(n_bytes), "byte")
    unit, name = (1e9, "GB") if n_bytes >= 1e9 else (1e6, "MB") if n_bytes >= 1e6 else (1e3, "kB")
    return f"{n_bytes / unit:,.1f} {name}"


def format_duration(seconds: float) -> str:
    """Format a duration in readable units.

    >>> format_duration(7), format_duration(95), format_duration(8000)
    ('7 s', '1 min 35 s', '2 h 13 min')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"


def sizes_said(before: int, now: int) -> str:
    """Return how a file has changed, given its size before and now (bytes).

    >>> sizes_said(1000, 2000), sizes_said(1000, 1000)
    ('it had 1,000 bytes, now 2,000', 'it was rewritten')
    """
    return "it was rewritten" if before == now else f"it had {before:,} bytes, now {now:,}"
