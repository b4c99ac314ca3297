"""A cut never changes an id."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineweb_stream.cuts import WHITESPACE, find_cut, iter_chunks
from fineweb_stream.encoder import HARD_TEXTS

from .strategies import texts


@given(text=texts, start=st.integers(0, 50))
def test_every_cut_keeps_the_ids(reference, text: str, start: int) -> None:
    """Both sides of a cut, encoded apart, give the ids of the whole."""
    cut = find_cut(text, start)
    if cut is not None:
        assert 0 < cut < len(text)
        assert cut >= start
        whole = reference.encode_ordinary(text)
        assert reference.encode_ordinary(text[:cut]) + reference.encode_ordinary(text[cut:]) == whole


@given(text=texts, size=st.integers(1, 20))
def test_chunks_keep_the_ids(reference, text: str, size: int) -> None:
    """A text in chunks of any size is the same text with the same ids."""
    chunks = list(iter_chunks(text, size))
    assert "".join(chunks) == text
    assert [i for chunk in chunks for i in reference.encode_ordinary(chunk)] == reference.encode_ordinary(text)


@pytest.mark.parametrize("text", HARD_TEXTS)
def test_all_cuts_of_the_hard_texts(reference, text: str) -> None:
    """At every start, in the texts that hold every class of the pattern."""
    whole = reference.encode_ordinary(text)
    for start in range(len(text)):
        if cut := find_cut(text, start):
            assert reference.encode_ordinary(text[:cut]) + reference.encode_ordinary(text[cut:]) == whole


def test_whitespace_is_that_of_the_pattern(reference) -> None:
    r"""The class here has the characters that the pattern's \s has: `x y` and `xy` part there and nowhere else."""
    regex = pytest.importorskip("regex")

    for code in range(0x3100):
        assert bool(regex.match(r"\s", chr(code))) == bool(regex.match(f"[{WHITESPACE}]", chr(code))), hex(code)


def test_no_cut_in_one_class() -> None:
    """A run of a single class has no place to cut."""
    for run in ("a" * 9000, "7" * 9000, "-" * 9000, " " * 9000, "漢" * 9000):
        assert find_cut(run, 10) is None


def test_no_cut_beside_bytes_that_are_no_utf8() -> None:
    """What becomes of such a byte is decided later, so no cut relies on it."""
    assert find_cut("ab\udcff cd", 1) is None
    assert find_cut("ab\udcff-\udcff", 1) is None
