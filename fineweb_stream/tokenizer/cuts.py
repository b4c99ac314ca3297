"""Where a text may be cut without changing a single id.

GPT-2's pattern looks behind nowhere, so a place where a new piece (pre-token) always begins, whatever surrounds it,
is a place to cut. There are two kinds:

* before a run of whitespace that follows another character. (After a newline is wrong: `"\\n\\n"` may be one piece.)
* between a letter, a digit and a character of a third kind, except right after an apostrophe (`'s`, `'ll`). Only for
  text without the first kind: base64, Chinese, Japanese.

Positions here are indices into a `str`; lone surrogates stand for invalid UTF-8
(`errors="surrogateescape"`) and are never cut next to, because what becomes of them is decided later.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

# Unicode's White_Space, as the pattern's \s. Python's str.isspace() and \s also count \x1c-\x1f.
WHITESPACE = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_SPACE_AFTER_TEXT = re.compile(f"(?<=[^{WHITESPACE}\ud800-\udfff])[{WHITESPACE}]")
_SPACE_AFTER_TEXT_IN_ASCII = re.compile(rb"(?<=[!-~])[ \n]")
WHITESPACE_RUN = re.compile(f"[{WHITESPACE}]{{100000,}}")
_IS_SPACE = re.compile(f"[{WHITESPACE}]").match
# Runs of one kind are passed over at once: letters (Latin, Han, Hangul), digits, ASCII's others, whitespace.
_SAME_KIND = re.compile(rf"[A-Za-z\u4e00-\u9fef\uac00-\ud7a3]+|[0-9]+|[!-/:-@\[-`{{-~]+|[{WHITESPACE}]+|.", re.DOTALL)


def iter_pieces(data: bytes, size: int) -> Iterator[bytes]:
    """Yield UTF-8 in pieces of about `size` bytes whose ids, one after the other, are the ids of all of it.

    Whole characters stay together. A space or a newline after a printable ASCII character is found fastest. A piece is
    longer only where there is no place to cut.

    >>> list(iter_pieces("some words für später".encode(), size=4))
    [b'some', b' words', b' f\\xc3\\xbcr', b' sp\\xc3\\xa4ter']
    >>> [piece.decode() for piece in iter_pieces("中文，没有空格".encode(), size=3)]
    ['中文', '，', '没有空格']
    """
    start = 0
    while cut := _find_byte_cut(data, start + size):
        yield data[start:cut]
        start = cut
    yield data[start:]


def _find_byte_cut(data: bytes, start: int) -> int:
    """Return the first good place at byte `start` or later where UTF-8 may be cut, else 0."""
    width = 4096
    while start < len(data):
        stop = _character_end(data, min(start + width, len(data)))
        if match := _SPACE_AFTER_TEXT_IN_ASCII.search(data, start, stop):
            return match.start()
        before = start - 1
        while before and data[before] & 0xC0 == 0x80:
            before -= 1
        text = data[before:stop].decode("utf-8")
        if cut := find_cut(text, 1):
            return before + len(text[:cut].encode("utf-8"))
        start, width = stop, width * 8
    return 0


def _character_end(data: bytes, position: int) -> int:
    """Return the first byte at `position` or later that begins a character, or the end."""
    while position < len(data) and data[position] & 0xC0 == 0x80:
        position += 1
    return position


def find_cut(text: str, start: int, stop: int | None = None) -> int | None:
    """Return the first good place at `start` or later (and before `stop`) where `text` may be cut, else None.

    Whitespace is preferred within each stretch that is searched: it is found faster.

    >>> find_cut("several words here", 3)
    7
    >>> find_cut("中文，没有空格", 1)
    2
    >>> find_cut("oneword", 3) is None
    True
    """
    stop = len(text) if stop is None else stop
    start, width = max(start, 1), 4096
    while start < stop:
        end = min(start + width, stop)
        if match := _SPACE_AFTER_TEXT.search(text, start, end):
            return match.start()
        if cut := _find_class_change(text, start, end):
            return cut
        start, width = end, width * 8
    return None


def _find_class_change(text: str, start: int, end: int) -> int | None:
    previous = _kind(text[start - 1])
    while start < end:
        kind = _kind(text[start])
        if kind != previous and kind and previous and text[start - 1] != "'":
            return start
        previous = kind
        run = _SAME_KIND.match(text, start, end)
        assert run is not None
        start = run.end()
    return None


def _kind(char: str) -> str:
    """Return L, N or O (other), or "" for a character that must not be cut next to.

    That is whitespace, a surrogate, or one that this Python's Unicode tables do not know yet: the engine's may.
    """
    category = unicodedata.category(char)
    if category in ("Cn", "Cs") or _IS_SPACE(char):
        return ""
    return category[0] if category[0] in "LN" else "O"
