"""Summarizes a token file: one pass in bounded memory, whatever its size.

A document ends at an end-of-text id (50256 for GPT-2); its length is in tokens, without the end-of-text. The manifest
says whether end-of-text stands before documents instead. Without a manifest such a file shows an empty first document,
and a last one without an end.
"""

from __future__ import annotations

import os
import textwrap
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..output.own import RECORD_NAME
from ..support.errors import InputError
from ..support.redact import escape
from ..support.units import counted
from ..tokenizer.gpt2 import GPT2
from ..tokenizer.ids import Ends, Ids
from .joined import Tokens, check_ids
from .made_by import WHOSE, MadeBy
from .open import find_paths

LONG_TOKENS = 1024  # GPT-2's context: a longer document does not fit in one training sequence

_ASSUMED = f"assumed: ids of GPT-2, as no {RECORD_NAME} names a tokenizer; if they are another tokenizer's: {WHOSE}"

N_TOP, EXCERPT_CHARS = 10, 300


class TopToken(NamedTuple):
    """One of the most frequent ids, its count, and its text as a Python literal."""

    id: int
    n: int
    text: str


class Excerpt(NamedTuple):
    """The beginning of a document: its number (from 0), its first token's position, and at most 300 characters."""

    number: int
    place: int
    text: str


@dataclass(frozen=True)
class Lengths:
    """Document lengths in tokens; `share_long` (0 to 1) is the share of documents with more than 1,024.

    `median` and `p90` are the smallest lengths that half and 90 % of the documents do not exceed. `values` (int64,
    ascending) are the lengths that occur, `counts` (int64, same shape) the number of documents of each.
    """

    median: int
    p90: int
    longest: int
    share_long: float
    values: npt.NDArray[np.int64] = field(compare=False, repr=False)
    counts: npt.NDArray[np.int64] = field(compare=False, repr=False)


@dataclass(frozen=True)
class Summary:
    """The content of a token file; `lengths` and `random` are None if it has no documents (no end-of-text).

    `n_tokens_after` is the number of tokens after the last document: 0 if every document has its end.
    """

    name: str
    n_tokens: int
    n_documents: int
    n_tokens_after: int
    lengths: Lengths | None
    top: tuple[TopToken, ...]
    first: Excerpt
    random: Excerpt | None
    made_by: MadeBy

    def render(self) -> list[str]:
        """Return lines for a terminal; control characters in the text are escaped."""
        by = "" if self.made_by.name == GPT2.name else f" of {self.made_by.name}, {self.made_by.dtype.name}"
        lines = [escape(f"{self.name}: {counted(self.n_tokens, 'token')}{by}")]
        top = [f"  {token.id} {token.text} {token.n / self.n_tokens:.1%} " for token in self.top]
        rows = ["".join(top[:5]).rstrip(), "".join(top[5:]).rstrip()]
        lines += [*self._render_lengths(), "most frequent ids:", *filter(None, rows)]
        lines += ["first document:" if self.lengths else "it begins:", *_quote(self.first.text)]
        if self.random:
            lines += [f"document {self.random.number:,}, at token {self.random.place:,}:", *_quote(self.random.text)]
        if self.made_by.is_assumed:
            lines += [_ASSUMED]
        return lines

    def _render_lengths(self) -> list[str]:
        if not (of := self.lengths):
            end = self.made_by.eot_id
            return [f"no documents: plain text, without end-of-text ({'none' if end is None else f'id {end}'})"]
        after = ""
        if self.n_tokens_after:
            after = f", and {counted(self.n_tokens_after, 'token')} after the last end-of-text"
        return [
            f"{counted(self.n_documents, 'document')}{after}",
            f"tokens per document: median {of.median:,}, 90% have at most {of.p90:,}, longest {of.longest:,};"
            f" {of.share_long:.1%} have more than {LONG_TOKENS:,}",
        ]


def summarize(path: str | os.PathLike[str], *, seed: int = 0) -> Summary:
    """Read a token file, or the files that `open_tokens` finds in a folder, once, and return a summary.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.array([15496, 995, 50256, 50256, 31373, 50256], np.uint16).tofile(f"{folder}/train.bin")
    ...     summary = summarize(folder)
    >>> summary.n_documents, summary.lengths.longest, summary.first.text
    (3, 2, 'Hello world')

    `seed` chooses the random document: all are equally likely, and shards and the merged file give the same one.

    Raises `InputError` as `open_tokens` does, and for an id that the tokenizer does not have.
    """
    tokens = Tokens(find_paths(path))
    tally, table = _Tally(np.random.default_rng(seed % 2**64), tokens.made_by), tokens.made_by.tokenizer().token_bytes()
    for ids in tokens.iter_pieces():
        tally.add(check_ids(ids, tokens, tally.n_tokens))
    tally.finish()
    top = np.argsort(-tally.id_counts, kind="stable")[:N_TOP].tolist()
    return Summary(
        name=tokens.name,
        n_tokens=len(tokens),
        n_documents=tally.n_documents,
        n_tokens_after=len(tokens) - tally.start,
        lengths=tally.lengths() if tally.n_documents else None,
        top=tuple(TopToken(i, int(tally.id_counts[i]), _spell(table[i])) for i in top if tally.id_counts[i]),
        first=_excerpt(tokens, 0, tally.first_start),
        random=_excerpt(tokens, tally.random_number, tally.random_start) if tally.n_documents else None,
        made_by=tokens.made_by,
    )


def decode(path: str | os.PathLike[str], start: int = 0, count: int = 256) -> str:
    """Return the text of `count` tokens from position `start` (negative: from the end); fewer if the file ends.

    End-of-text is written `<|endoftext|>`, incomplete characters U+FFFD.

    Raises `InputError` as `open_tokens` does, for positions out of range, and for an id that the tokenizer lacks.
    """
    tokens = Tokens(find_paths(path))
    if count < 1 or not -len(tokens) <= start < len(tokens):
        raise InputError(
            f"{path}: {count:,} tokens from {start:,} on: there are {len(tokens):,} tokens",
            f"--start is from {-len(tokens)} to {len(tokens) - 1}, --count at least 1",
        )
    start %= len(tokens)
    return _decode(check_ids(tokens[start : start + count], tokens, start), tokens)


class _Tally:
    """Counters of ids and lengths, in little memory (n tokens have at most sqrt(2n) different lengths).

    `start` is where the current document begins.
    """

    def __init__(self, rng: np.random.Generator, made: MadeBy) -> None:
        self.id_counts = np.zeros(made.n_ids, np.int64)
        self._eot_id, self._eot = made.eot_id, made.eot
        self._n_ends = self.first_start = 0
        self.n_tokens = self.n_documents = self.start = 0
        self.random_number = self.random_start = 0
        self._lowest_key = 1.0
        self._rng = rng
        self._n_of: Counter[int] = Counter()

    def add(self, ids: Ids) -> None:
        """Count the next ids of the file."""
        self.id_counts += np.bincount(ids, minlength=len(self.id_counts))
        ends = _find_ends(ids, self._eot_id) + self.n_tokens
        if not self.n_tokens:
            self._eot = self._eot if 0 in ends[:1] else "after"  # plain texts: end-of-text only between them
            self.start = self.first_start = int(self._eot != "after")
            ends = ends[self.start :]
        self.n_tokens += len(ids)
        if len(ends):
            every = slice(self._n_ends % 2, None, 2) if self._eot == "both" else slice(None)  # the others are empty
            self._add_documents(np.r_[self.start, ends[:-1] + 1][every], ends[every])
            self._n_ends += len(ends)
            self.start = int(ends[-1]) + 1

    def finish(self) -> None:
        """Count the last document if end-of-text stands before documents: the end of the file ends it."""
        if self._eot == "before":
            self._add_documents(np.array([self.start]), np.array([self.n_tokens]))
            self.start = self.n_tokens

    def _add_documents(self, starts: Ends, ends: Ends) -> None:
        lengths = ends - starts
        if not len(lengths):
            return
        self._n_of.update(lengths.tolist())
        keys = self._rng.random(len(lengths))  # the lowest key wins, wherever pieces end
        if keys.min() < self._lowest_key:
            chosen = int(keys.argmin())
            self._lowest_key = keys[chosen]
            self.random_number, self.random_start = self.n_documents + chosen, int(starts[chosen])
        self.n_documents += len(lengths)

    def lengths(self) -> Lengths:
        """Return the lengths of the documents, of which there is at least one."""
        values, counts = np.array(sorted(self._n_of.items()), np.int64).T
        ranks = np.cumsum(counts)
        median, p90 = values[np.searchsorted(ranks * 10, [5 * self.n_documents, 9 * self.n_documents])].tolist()
        share_long = float(counts[values > LONG_TOKENS].sum() / self.n_documents)
        return Lengths(median, p90, int(values[-1]), share_long, values, counts)


def _find_ends(ids: Ids, eot_id: int | None) -> Ends:
    return np.empty(0, np.int64) if eot_id is None else np.flatnonzero(ids == eot_id)


def _decode(ids: Ids, tokens: Tokens) -> str:
    table = tokens.made_by.tokenizer().token_bytes()
    return b"".join(map(table.__getitem__, ids.tolist())).decode("utf-8", "replace")


def _excerpt(tokens: Tokens, number: int, start: int) -> Excerpt:
    """Decode the beginning of a document."""
    ids = tokens[start : start + 4 * EXCERPT_CHARS + 1]  # a character has 4 bytes at most, a token 1 at least
    ends = _find_ends(ids, tokens.made_by.eot_id)
    text = _decode(ids[: ends[0]] if len(ends) else ids, tokens)
    return Excerpt(number, start, text if len(text) <= EXCERPT_CHARS else text[: EXCERPT_CHARS - 1] + "…")


def _spell(token: bytes) -> str:
    """Write a token as a Python literal (`' the'`), of bytes if it is not UTF-8."""
    try:
        return repr(token.decode("utf-8"))
    except UnicodeDecodeError:
        return repr(token)


def _quote(text: str) -> list[str]:
    """Wrap text and mark each line as quoted."""
    lines = escape(text, keep="\t\n").split("\n")
    return [f"  | {line}".rstrip() for whole in lines for line in textwrap.wrap(whole, 96) or [""]]
