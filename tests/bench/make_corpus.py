"""Documents -> a larger corpus whose repeats are varied in their words, so that no engine's cache is flattered.

How a corpus of `mb` megabytes is made of fewer documents: the documents are passed over again and again, in a new order
each time, until there are enough. The first pass is the documents as they are. For every later pass:

* a *word* is 4 to 20 ASCII letters, or 3 to 20 digits, with no letter, digit or underscore beside them; a *word type*
  is a word in lower case;
* every word type that occurs in one document only is drawn anew, and replaced wherever it occurs in this pass by a
  pseudo-word of the same length and the same pattern of capitals: "Water water WATER" -> "Thell thell THELL";
* pseudo-words are spelled by a Markov chain of letters: first letters and pairs of letters as often as they are in the
  documents' own word types (for an English corpus: English letter-pair statistics); digits are drawn evenly.

Why these words: what share of fresh text is words never met before is the share of the words met once (Good 1953; here
once is one document, for words come in bursts). So a pass brings about as much that is new as fresh documents of the
same kind would. On 48 MB of English web text 5.3% of the running words and 69% of the word types are drawn anew; of one
random half of it, 6.9% of the running words and 61% of the types are not in the other. Everything else (other scripts,
code with underscores, punctuation, shorter words) repeats as it is. The seed decides all of it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

_MAX_LETTERS = 20
_WORD = re.compile(rf"\b(?:[A-Za-z]{{4,{_MAX_LETTERS}}}|[0-9]{{3,{_MAX_LETTERS}}})\b")


def iter_varied(documents: Sequence[str], n_bytes: int, seed: int = 0) -> Iterator[str]:
    """Yield documents until they hold `n_bytes` of UTF-8: each pass in another order, with other rare words."""
    words = RareWords(documents)
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


class RareWords:
    """The word types that only one document has, the forms in which each occurs, and how words are spelled."""

    def __init__(self, documents: Sequence[str]) -> None:
        forms: set[str] = set()
        n_documents: Counter[str] = Counter()
        for text in documents:
            found = set(_WORD.findall(text))
            forms |= found
            n_documents.update({form.lower() for form in found})
        self._forms: dict[str, list[str]] = defaultdict(list)
        for form in sorted(forms):
            if n_documents[form.lower()] == 1:
                self._forms[form.lower()].append(form)
        self._first, self._next = _letter_statistics([word for word in sorted(n_documents) if word.isalpha()])

    def draw(self, rng: np.random.Generator) -> dict[str, str]:
        """Return what becomes of each form of each type in one pass."""
        table = {}
        digits = rng.integers(ord("0"), ord("9") + 1, (len(self._forms), _MAX_LETTERS), np.uint8)
        for i, (word, spelled) in enumerate(zip(self._forms, self._spell(len(self._forms), rng), strict=True)):
            new = (spelled if word.isalpha() else digits[i].tobytes().decode("ascii"))[: len(word)]
            for form in self._forms[word]:
                table[form] = _in_case_of(form, new)
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
    if form.islower() or form.isdigit():
        return word
    if form.isupper():
        return word.upper()
    return "".join(b.upper() if a.isupper() else b for a, b in zip(form, word, strict=True))
