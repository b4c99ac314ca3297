"""Documents -> a larger corpus whose repeats are varied in their words, so that no engine's cache is flattered.

How a corpus of `mb` megabytes is made of fewer documents: the documents are passed over again and again, in a new order
each time, until there are enough. The first pass is the documents as they are. For every later pass:

* a *word* is 4 to 20 ASCII letters with no letter, digit or underscore beside them; a *word type* is a word in lower
  case;
* 30% of all word types are drawn anew, each as likely as any other, and replaced wherever they occur in this pass by a
  pseudo-word of the same length and the same pattern of capitals: "Water water WATER" -> "Thell thell THELL";
* pseudo-words are spelled by a Markov chain of letters: first letters and pairs of letters as often as they are in the
  documents' own word types (for an English corpus: English letter-pair statistics).

So ten passes hold some 3.7 times the word types of one, about as vocabularies grow in real text (Heaps' law).
Everything else (other scripts, numbers, code with underscores, punctuation, shorter words) repeats as it is.
Pseudo-words cost more tokens than words (English, one pass after the first: 2.8 bytes a token instead of 3.2), so the
text is a little harder than the original. The seed decides all of it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

SHARE_OF_TYPES = 0.3
_MAX_LETTERS = 20
_WORD = re.compile(rf"\b[A-Za-z]{{4,{_MAX_LETTERS}}}\b")


def iter_varied(documents: Sequence[str], n_bytes: int, seed: int = 0) -> Iterator[str]:
    """Yield documents until they hold `n_bytes` of UTF-8: each pass in another order, with other words."""
    words = WordTypes(documents)
    n_pass = n_done = 0
    while n_done < n_bytes:
        rng = np.random.default_rng([seed, n_pass])
        replaced = words.draw(rng) if n_pass else {}
        for i in rng.permutation(len(documents)).tolist():
            text = documents[i]
            if replaced:
                text = _WORD.sub(lambda match, get=replaced.get: get(match[0], match[0]), text)
            yield text
            n_done += len(text) if text.isascii() else len(text.encode())
            if n_done >= n_bytes:
                return
        n_pass += 1


class WordTypes:
    """The word types of some documents, the forms in which each occurs, and how they are spelled."""

    def __init__(self, documents: Sequence[str]) -> None:
        forms: set[str] = set()
        for text in documents:
            forms.update(_WORD.findall(text))
        self._forms: dict[str, list[str]] = defaultdict(list)
        for form in sorted(forms):
            self._forms[form.lower()].append(form)
        self._types = sorted(self._forms)
        self._first, self._next = _letter_statistics(self._types)

    def draw(self, rng: np.random.Generator) -> dict[str, str]:
        """Draw the types that a pass replaces; return what becomes of each of their forms."""
        chosen = np.flatnonzero(rng.random(len(self._types)) < SHARE_OF_TYPES).tolist()
        table = {}
        for i, spelled in zip(chosen, self._spell(len(chosen), rng), strict=True):
            word = self._types[i]
            for form in self._forms[word]:
                table[form] = _in_case_of(form, spelled[: len(word)])
        return table

    def _spell(self, n_words: int, rng: np.random.Generator) -> Iterator[str]:
        letters = np.empty((n_words, _MAX_LETTERS), np.uint8)
        letters[:, 0] = np.searchsorted(self._first, rng.random(n_words))
        for i in range(1, _MAX_LETTERS):
            letters[:, i] = (self._next[letters[:, i - 1]] < rng.random((n_words, 1))).sum(axis=1)
        data = (letters + ord("a")).tobytes().decode("ascii")
        return (data[start : start + _MAX_LETTERS] for start in range(0, len(data), _MAX_LETTERS))


def _letter_statistics(types: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return cumulative shares of first letters, shape (26,), and of each letter's successors, shape (26, 26)."""
    first, pairs = np.full(26, 1e-6), np.full((26, 26), 1e-6)
    for word in types:
        codes = np.frombuffer(word.encode("ascii"), np.uint8) - ord("a")
        first[codes[0]] += 1
        np.add.at(pairs, (codes[:-1], codes[1:]), 1)
    first = np.cumsum(first / first.sum())
    pairs = np.cumsum(pairs / pairs.sum(axis=1, keepdims=True), axis=1)
    first[-1] = pairs[:, -1] = 1.0  # sums of floats may end a little below
    return first, pairs


def _in_case_of(form: str, word: str) -> str:
    if form.islower():
        return word
    if form.isupper():
        return word.upper()
    return "".join(b.upper() if a.isupper() else b for a, b in zip(form, word, strict=True))
