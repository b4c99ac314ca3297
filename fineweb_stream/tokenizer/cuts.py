"""Where a text may be cut without changing any id: one rule for each kind of pattern.

GPT-2's pattern has no lookbehind, so a place where a pre-token always begins, whatever surrounds it, is a safe cut.
There are two kinds:

* before a run of whitespace that follows another character. (Not after a newline: `"\\n\\n"` may be one pre-token.)
* between two characters of different classes (letter, digit, other), except right after an apostrophe (`'s`, `'ll`).
  Only for text without the first kind: base64, Chinese, Japanese.

Later patterns (cl100k_base, o200k_base, Llama 3's, Qwen 2's) join line ends to the punctuation before them, and a
symbol to the letters after it. With these a pre-token always begins

* at a space or tab that follows a visible character,
* at a line end or a symbol (not an apostrophe) that follows a letter or a digit, and between a letter and a digit. Only
  letters and symbols that every version of Unicode knows count.

Positions are indices into a `str`. Lone surrogates stand for invalid UTF-8 (`errors="surrogateescape"`); there is no
cut next to one, because it may be replaced later (`--errors`).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

# Unicode's White_Space, as the pattern's \s. Python's str.isspace() and \s also count \x1c-\x1f.
WHITESPACE = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_SPACE_AFTER_TEXT = f"(?<=[^{WHITESPACE}\ud800-\udfff])[{WHITESPACE}]"
WHITESPACE_RUN = re.compile(f"[{WHITESPACE}]{{100000,}}")
_IS_SPACE = re.compile(f"[{WHITESPACE}]").match
# Skips a run of one class at once: letters (Latin, Han, Hangul), digits, other ASCII, whitespace.
_SAME_KIND = re.compile(rf"[A-Za-z\u4e00-\u9fef\uac00-\ud7a3]+|[0-9]+|[!-/:-@\[-`{{-~]+|[{WHITESPACE}]+|.", re.DOTALL)

_VISIBLE = "!-~\u00a1-\u167f\u1681-\u180d\u1810-\u1fff\u2010-\u2027\u2030-\u205e\u2070-\u2fff\u3001-\ud7ff\uff01-\uffef"
_LETTER = "A-Za-zÀ-ÖØ-öø-ɏА-ҁא-תؠ-ي\u0904-\u0939ก-ะぁ-ゖァ-ヺ\u3400-\u4db5\u4e00-\u9fa5가-힣"
_SIGN = r"!-&(-/:-@\[-`{-~、。「」，：；！？（）"
_TAB_OR_SPACE_AFTER_VISIBLE = f"(?<=[{_VISIBLE}])[ \t]"
_SPACE_AFTER_VISIBLE = f"(?<=[{_VISIBLE}]) "
_AFTER_WORD = rf"(?<=[{_LETTER}0-9])[\r\n{_SIGN}]|(?<=[{_LETTER}])[0-9]|(?<=[0-9])[{_LETTER}]"
_BETWEEN_CHARACTERS = "(?<=[^\r\ud800-\udfff])[^\ud800-\udfff]"

Find = Callable[[str, int, int], int | None]
"""Callable (text, start, stop) -> the position of a safe cut in that range, or None if there is none."""


def iter_pieces(data: bytes, size: int, rule: CutRule | None = None) -> Iterator[bytes]:
    """Split UTF-8 into pieces of about `size` bytes whose concatenated ids are the ids of the whole.

    Characters stay whole. A piece is much longer than `size` only if there is no safe cut. The default rule is GPT-2's.

    >>> list(iter_pieces("some words für später".encode(), size=4))
    [b'some', b' words', b' f\\xc3\\xbcr', b' sp\\xc3\\xa4ter']
    >>> [piece.decode() for piece in iter_pieces("中文，没有空格".encode(), size=3)]
    ['中文', '，', '没有空格']
    """
    start, rule = 0, rule or GPT2_CUTS
    while cut := _find_byte_cut(data, start + size, rule):
        yield data[start:cut]
        start = cut
    yield data[start:]


def _find_byte_cut(data: bytes, start: int, rule: CutRule) -> int:
    """Return a safe cut at byte `start` or soon after, or 0 if there is none."""
    width = 4096
    while start < len(data) and rule.find:
        stop = _character_start(data, min(start + width, len(data)))
        before = _character_start(data, start - 1)
        text = data[before:stop].decode("utf-8")
        if cut := rule.find(text, 1, len(text)):
            return before + len(text[:cut].encode("utf-8"))
        start, width = stop, width * 8
    return 0


def _character_start(data: bytes, position: int) -> int:
    """Return the first byte of the character at byte `position`; the end of the data is its own start."""
    while 0 < position < len(data) and data[position] & 0xC0 == 0x80:
        position -= 1
    return position


def _find_by(*patterns: str, then: Find | None = None) -> Find:
    """Return a `Find` that tries each pattern in turn, then another way, on a short range and on ever longer ones."""

    def find(text: str, start: int, stop: int) -> int | None:
        start, width = max(start, 1), 4096
        while start < stop:
            end = min(start + width, stop)
            for pattern in map(re.compile, patterns):  # on first use: large classes take milliseconds
                if match := pattern.search(text, start, end):
                    return match.start()
            if then and (cut := then(text, start, end)):
                return cut
            start, width = end, width * 8
        return None

    return find


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
    """Return L, N or O (other), or "" for a character next to which there is no safe cut.

    Those are whitespace, surrogates, and characters that this Python's Unicode tables lack: the engine's may have them.
    """
    category = unicodedata.category(char)
    if category in ("Cn", "Cs") or _IS_SPACE(char):
        return ""
    return category[0] if category[0] in "LN" else "O"


@dataclass(frozen=True)
class CutRule:
    """Where a text may be cut; `find` is None if no place is known to be safe.

    >>> find = GPT2_CUTS.find
    >>> find("several words here", 3, 18), find("中文，没有空格", 1, 7), find("oneword", 3, 7)
    (7, 2, None)
    >>> CUT_RULES["words"].find("wait!\\nnext one", 1, 14), CUT_RULES["spaces"].find("wait, next one", 1, 14)
    (10, 5)
    """

    name: str
    find: Find | None


GPT2_CUTS = CutRule("gpt2", _find_by(_SPACE_AFTER_TEXT, then=_find_class_change))
WORD_CUTS = CutRule("words", _find_by(_TAB_OR_SPACE_AFTER_VISIBLE, _AFTER_WORD))
SPACE_CUTS = CutRule("spaces", _find_by(_SPACE_AFTER_VISIBLE))
"""For a vocabulary with added tokens that match before its pattern; none may have a space after another character."""

ANY_CUTS = CutRule("anywhere", _find_by(_BETWEEN_CHARACTERS))
NO_CUTS = CutRule("none", None)

CUT_RULES = {rule.name: rule for rule in (GPT2_CUTS, WORD_CUTS, SPACE_CUTS, ANY_CUTS, NO_CUTS)}

_SUFFIX, _WORD, _SIGNS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"[^\r\n\p{L}\p{N}]?\p{L}+", r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SPACES = r"\s+(?!\S)|\s+"
_SPACES_AND_ENDS = rf"\s*[\r\n]+|{_SPACES}"

WORD_PATTERNS = {
    "cl100k": (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
        r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
        rf"{_SUFFIX}|{_WORD}|\p{{N}}{{1,3}}|{_SIGNS}|\s*[\r\n]|{_SPACES}",
        rf"{_SUFFIX}|{_WORD}|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACES_AND_ENDS}",  # Llama 3
    ),
    "o200k": (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SUFFIX}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SUFFIX}?"
        rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES_AND_ENDS}",
    ),
    "qwen2": (rf"{_SUFFIX}|{_WORD}|\p{{N}}|{_SIGNS}|{_SPACES_AND_ENDS}",),
    "gpt2": (
        r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
        rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_SPACES}",
        rf"'(?:[sdmt]|ll|ve|re)| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_SPACES}",
    ),
}
"""Patterns for which WORD_CUTS is proven, by gigatoken's name for the scheme; the first of each is tiktoken's form."""


def scheme_of(pattern: str) -> str:
    """Return the name of a known pattern, "" for any other."""
    return next((name for name, patterns in WORD_PATTERNS.items() if pattern in patterns), "")


def rule_beside(rule: CutRule, whole_texts: Sequence[str]) -> CutRule:
    """Return the rule that is still safe if some texts are always tokens of their own.

    >>> rule_beside(WORD_CUTS, []).name, rule_beside(WORD_CUTS, ["<think>"]).name, rule_beside(WORD_CUTS, ["a b"]).name
    ('words', 'spaces', 'none')
    """
    if rule is NO_CUTS or not whole_texts:
        return rule
    return NO_CUTS if any(re.search(r"\S ", text) for text in whole_texts) else SPACE_CUTS
