"""A cut never changes an id."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineweb_stream.tokenizer.cuts import _SAME_KIND, GPT2_CUTS, WHITESPACE, _kind, iter_pieces
from fineweb_stream.tokenizer.encoder import HARD_TEXTS

from .strategies import texts


@given(text=texts, start=st.integers(0, 50))
def test_every_cut_keeps_the_ids(reference, text: str, start: int) -> None:
    """Both sides of a cut, encoded apart, give the ids of the whole."""
    cut = GPT2_CUTS.find(text, start, len(text))
    if cut is not None:
        assert 0 < cut < len(text)
        assert cut >= start
        whole = reference.encode_ordinary(text)
        assert reference.encode_ordinary(text[:cut]) + reference.encode_ordinary(text[cut:]) == whole


@given(text=texts, size=st.integers(1, 20))
def test_pieces_keep_the_ids(reference, text: str, size: int) -> None:
    """UTF-8 in pieces of any size is the same text, whole characters in each, with the same ids."""
    pieces = list(iter_pieces(text.encode(), size))
    assert b"".join(pieces) == text.encode()
    ids = [i for piece in pieces for i in reference.encode_ordinary(piece.decode())]
    assert ids == reference.encode_ordinary(text)


def test_pieces_are_of_the_size_asked() -> None:
    """Pieces are longer only if there is no place to cut."""
    assert list(map(len, iter_pieces(b"12345 78\n" * 3, 7))) == [8, 9, 9, 1]
    assert list(iter_pieces(b"12345," * 900, 6)) == [b"12345,"] * 900
    assert list(map(len, iter_pieces("漢".encode() * 50_000 + b"1" * 9, 7))) == [150_000, 9]
    assert list(iter_pieces(b"", 5)) == [b""]


@pytest.mark.parametrize("text", HARD_TEXTS)
def test_all_cuts_of_the_hard_texts(reference, text: str) -> None:
    """In the texts that have every class of the pattern, each cut that is found from any start keeps the ids."""
    whole = reference.encode_ordinary(text)
    for cut in {GPT2_CUTS.find(text, start, len(text)) for start in range(len(text))} - {None}:
        assert reference.encode_ordinary(text[:cut]) + reference.encode_ordinary(text[cut:]) == whole
    for size in range(1, 20):
        pieces = [piece.decode() for piece in iter_pieces(text.encode(), size)]
        assert [i for piece in pieces for i in reference.encode_ordinary(piece)] == whole


def test_whitespace_is_that_of_the_pattern() -> None:
    r"""The class here has the characters that the pattern's \s has: `x y` and `xy` part there and nowhere else."""
    regex = pytest.importorskip("regex")

    for code in range(0x3100):
        assert bool(regex.match(r"\s", chr(code))) == bool(regex.match(f"[{WHITESPACE}]", chr(code))), hex(code)


def test_no_cut_in_one_class() -> None:
    """A run of a single class has no place to cut."""
    for run in ("a" * 9000, "7" * 9000, "-" * 9000, " " * 9000, "漢" * 9000):
        assert GPT2_CUTS.find(run, 10, len(run)) is None


@pytest.mark.parametrize("first", ["a", "漢", "한", "7", " ", "-", "'", "\udcff"])
def test_what_is_passed_over_is_of_one_kind(first: str) -> None:
    """No character joins a run of another kind: no place where a cut may be is skipped."""
    kind, match = _kind(first), _SAME_KIND.match
    joins = [char for char in map(chr, range(0x110000)) if match(first + char).end() > 1]
    assert not [hex(ord(char)) for char in joins if _kind(char) != kind]


def test_no_cut_beside_bytes_that_are_no_utf8() -> None:
    """Such a byte may be replaced later, so there is no cut beside it."""
    assert GPT2_CUTS.find("ab\udcff cd", 1, 6) is None
    assert GPT2_CUTS.find("ab\udcff-\udcff", 1, 5) is None
