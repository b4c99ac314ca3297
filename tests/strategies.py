"""Texts that are hard on a tokenizer: all scripts, whitespace of every kind, contractions, line ends, emoji."""

from __future__ import annotations

from hypothesis import strategies as st

_PIECES = st.sampled_from(
    [
        "Hello", " world", "don't", "we'll", "I'VE", "'s", "''", "'", " '", "naïve", "1", "23", " 456", "½", "٣",
        ".", "...", " -", "--", "\n", "\n\n", "\r\n", "\r", "\t", " ", "  ", "    ", "\u00a0", "\u3000", "\u2028",
        "\x85", "\x0b", "\x0c", "\x1c", "\x1f", "\x00",
        "漢字", "かな", "한글", "Русский", "עברית", "हिन्दी", "ไทย",
        "👩‍👩‍👧", "🇩🇪", "e\u0301", "\ufeff", "\u200b",
        "<|endoftext|>", "<|", "|>", "https://a.b/c?d=1", "{'a': [1]}", "a" * 40,
    ]
)  # fmt: skip

texts = st.lists(st.one_of(_PIECES, st.text(max_size=8)), max_size=30).map("".join)
"""Any valid text: no lone surrogates (`st.text` makes none)."""

documents = st.lists(texts, min_size=2, max_size=12)
