"""Finds recently assigned characters, which engines with different Unicode tables classify differently.

gigatoken 0.10 has the tables of Unicode 17, tiktoken 0.14 and tokenizers 0.23 those of 16, in which 4,657 letters and
digits of 17 are unassigned. So the engines disagree on whether `'s` after one of them is a pre-token. Text with such a
character is encoded by the reference.
"""

from __future__ import annotations

import unicodedata

import numpy as np
import numpy.typing as npt

from .batch import beyond_ascii

# The letters, digits and marks that Unicode 17 added, whichever tables this Python has.
_UNICODE_17 = (
    (0x88F, 0x88F), (0xC5C, 0xC5C), (0xCDC, 0xCDC), (0xA7CE, 0xA7CF), (0xA7D2, 0xA7D2), (0xA7D4, 0xA7D4),
    (0xA7F1, 0xA7F1), (0x10940, 0x10959), (0x10EC5, 0x10EC7), (0x11DB0, 0x11DDB), (0x11DE0, 0x11DE9),
    (0x16EA0, 0x16EB8), (0x16EBB, 0x16ED3), (0x16FF2, 0x16FF6), (0x187F8, 0x187FF), (0x18D09, 0x18D1E),
    (0x18D80, 0x18DF2), (0x1E6C0, 0x1E6DE), (0x1E6E0, 0x1E6E2), (0x1E6E4, 0x1E6E5), (0x1E6E7, 0x1E6ED),
    (0x1E6F0, 0x1E6F4), (0x1E6FE, 0x1E6FF), (0x2B73A, 0x2B73F), (0x2CEA2, 0x2CEAD), (0x323B0, 0x33479),
    # Marks, which are a class of their own in o200k_base's pattern.
    (0x1ACF, 0x1ADD), (0x1AE0, 0x1AEB), (0x10EFA, 0x10EFB), (0x11B60, 0x11B67), (0x1E6E3, 0x1E6E3),
    (0x1E6E6, 0x1E6E6), (0x1E6EE, 0x1E6EF), (0x1E6F5, 0x1E6F5),
)  # fmt: skip

_FIRST_LEAD = 0xD4
"""First UTF-8 byte of U+0500. The code points unassigned below it (Greek) are gaps that will never become letters."""

_UNKNOWN, _OLD, _NEW = 0, 1, 2
_kinds = np.zeros(0x110000, np.uint8)  # filled as characters occur: to look up all would take 0.1 s


def has_newest(data: bytes | memoryview) -> bool:
    """Tell whether UTF-8 has a character that Unicode 17 added, or one that this Python's tables do not know.

    >>> has_newest("naïve 日本語 👍".encode()), has_newest("\\u088f".encode()), has_newest("\\U0003fffd".encode())
    (False, True, True)
    """
    found = _code_points(np.frombuffer(beyond_ascii(data), np.uint8))
    if not len(found):
        return False
    kinds = _kinds[found]
    if not kinds.all():
        for code in set(found[kinds == _UNKNOWN].tolist()):  # np.unique would import numpy.ma
            _kinds[code] = _NEW if _is_new(code) else _OLD
        kinds = _kinds[found]
    return bool((kinds == _NEW).any())


def _code_points(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
    """Return the code points from U+0500 on, uint8 in, int32 out, by NumPy, which releases the GIL."""
    at = np.flatnonzero(data >= _FIRST_LEAD)
    leads = data[at]
    codes = ((leads.astype(np.int32) & 0x1F) << 6) | (data[at + 1] & 0x3F)
    for i, lead in ((2, 0xE0), (3, 0xF0)):
        longer = np.flatnonzero(leads >= lead)
        codes[longer] = (codes[longer] << 6) | (data[at[longer] + i] & 0x3F)
    return codes & 0x1FFFFF  # clears the remaining marker bits of the lead byte


def _is_new(code: int) -> bool:
    if code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF:
        return False  # a noncharacter, never assigned
    return unicodedata.category(chr(code)) == "Cn" or any(first <= code <= last for first, last in _UNICODE_17)
