"""Documents -> token ids, by a tokenizer's reference engine or by the fast engine.

The reference (tiktoken, unless the tokenizer names another) is right by definition. gigatoken (the `fast` extra) is
over ten times as fast. It must match the reference on a set of hard texts before it is used, and on samples during the
run (`check_bytes`).

Special tokens are not supported: `<|endoftext|>` in a text is plain text. The end-of-text id only ever ends a document.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..support.cancel import NEVER, Cancel
from ..support.errors import EngineError, InputError
from ..support.version import version_of
from .batch import encode_text, join_texts
from .cuts import CutRule, iter_pieces
from .engines import Gigatoken, count_same, reference_engine
from .ids import Ends, Ids
from .load import load_tokenizer
from .newest import has_newest
from .tokenizer import Tokenizer, has_gigatoken

CALL_BYTES, CALL_DOCUMENTS = 7 << 18, 7000
"""How much text (bytes) and how many documents an engine gets per call: with the ends of documents, no more than
`SHARED_CALL_BYTES`. They bound the engine's uint32 result and the delay of a cancellation.

A block of plain text, slightly less, is one call.
"""

HARD_TEXTS = (
    "",
    " ",
    "Hello world, it's GPT-2's n't we'll I'd you're 'tis 'S 'LL ''s",
    "tabs\t\tand\n\n\nnewlines \n \r\n end \n",
    " \u00a0\u2003\u3000wide\u0085spaces\u2028and\x1cno\x1fspaces\x0b\x0c",
    "1234567890 ½ ² ٣ Ⅷ 100,000.00 0x1F",
    "日本語のテキスト、中文文本。한국어 텍스트 Русский текст ελληνικά עברית العربية हिन्दी ไทย",
    "naïve café e\u0301 a\u0300\u0301 ﬁ ŉ ǆ ß İ ı",
    "👩‍👩‍👧‍👦 🇩🇪 👍🏽 \ufe0f\u200d\u200b\ufeff",
    "<|endoftext|> <|endoftext|>x < | endoftext | >",
    "def f(x):\n    return {'a': [x**2 for x in range(10)]}  # ok\n\n\tpass",
    'https://example.com/a?b=c&d=%20#frag <p class="x">&amp;</p> $x_1^2$ ©®™ ---===***',
    "\x00\x01\x7f\u0080\uffff\U0010ffff\ue000",
    "a" * 700 + " " * 700 + "é" * 300 + "!?" * 300,
    "\n\u00a0",
    "\u00a0\n\u2003 \n",
    "x\n\u00a0y \n\u3000z\r\n\u2003",
    "\t\n\u0085 \u2028\n",
)
"""Short texts with every character class of the pattern, and every kind of border between two classes."""


class Encoder:
    """Encodes batches of documents with one tokenizer.

    >>> ids, ends = Encoder("tiktoken").encode(["hello world", "hello"], eot=True)
    >>> ids.tolist(), ends.tolist()
    ([31373, 995, 50256, 31373, 50256], [3, 5])

    `engine` is "gigatoken", the reference's name ("tiktoken"), or "auto": gigatoken if it is installed and supports the
    tokenizer, else the reference. `pattern` and `eot_id` are those of `prepare()`. `encode` may be called from several
    threads at once.

    Raises `InputError` for an engine that is unknown or not installed, `EngineError` if gigatoken is not exact.
    """

    def __init__(
        self,
        engine: str = "auto",
        tokenizer: str | Path | Tokenizer = "gpt2",
        *,
        pattern: str | None = None,
        eot_id: str | int | None = None,
    ) -> None:
        if not isinstance(tokenizer, Tokenizer):
            tokenizer = load_tokenizer(str(tokenizer), pattern, eot_id)
        tokenizer.check_engine(engine)
        self.tokenizer = tokenizer
        self.engine = tokenizer.fastest_engine if engine == "auto" else engine
        if self.engine == "gigatoken" and not has_gigatoken():
            raise InputError(
                "the engine gigatoken is not installed",
                f"pip install gigatoken, or choose --engine {tokenizer.reference}",
            )
        self._encode = self._reference = reference_engine(tokenizer)
        if self.engine == "gigatoken":
            self._encode = Gigatoken(tokenizer)
            data, ends = join_texts(HARD_TEXTS)
            self._compare(data, self._encode(data, ends), self._reference(data, ends))

    def __reduce__(self) -> tuple[type[Encoder], tuple[str, Tokenizer]]:
        return Encoder, (self.engine, self.tokenizer)

    @property
    def version(self) -> str:
        """The engine's name and version, as recorded in the manifest."""
        return f"{self.engine} {version_of(self.engine)}"

    def encode(self, texts: Sequence[str], *, eot: bool = False) -> tuple[Ids, Ends]:
        """Return the concatenated ids of all texts, and the end offset of each.

        The ids are uint16 (uint32 above 65,536 ids), shape (n,); the ends int64, shape (len(texts),): text i is
        `ids[ends[i - 1]:ends[i]]`. With `eot`, each text ends with the end-of-text id, included in its end. Lone
        surrogates become U+FFFD, as in tiktoken.

        Raises `InputError` for `eot` without an end-of-text id, `TypeError` unless `texts` is a sequence of `str`, and
        `EngineError` if the engine returns a wrong number of end-of-text ids.
        """
        if isinstance(texts, str | bytes):
            raise TypeError("texts must be a sequence of str, not one str: encode([text])")
        if isinstance(texts, Mapping) or getattr(texts, "ndim", 1) != 1:  # else the names of columns would be the texts
            raise TypeError(f"texts must be a sequence of str, not a {type(texts).__name__}: encode(texts['text'])")
        if self.tokenizer.eot_id is None:  # nothing says where a text ends: one call for each
            if eot:
                raise InputError(f"{self.tokenizer.name} has no end-of-text id", "leave out eot=True")
            no_ends = np.empty(0, np.int64)
            parts = [self.encode_utf8(encode_text(text), no_ends)[0] for text in texts]
            ids = np.concatenate([np.empty(0, self.tokenizer.dtype), *parts])
            return ids, np.cumsum([len(part) for part in parts], dtype=np.int64)
        ids, ends = self.encode_utf8(*join_texts(texts))
        if not eot:
            ids, ends = np.delete(ids, ends - 1), ends - np.arange(1, len(ends) + 1)
        return ids, ends

    def encode_utf8(
        self, data: bytes | memoryview, ends: Ends, *, check_bytes: int = 0, cancel: Cancel = NEVER
    ) -> tuple[Ids, Ends]:
        """Return the ids of the documents in a UTF-8 buffer, with end-of-text after each, and the end offset of each.

        Document i is `data[ends[i - 1]:ends[i]]`; its ids are `ids[ends[i - 1]:ends[i]]` with the returned `ends`.
        The last of `ends` is the length of `data`, whose UTF-8 must be valid and is not checked. Empty `ends` mean that
        the buffer is a piece of one text: only its ids are returned. `cancel` is checked between calls of the engine
        (up to 1.75 MiB each).

        Raises `EngineError` if the engines differ, or if one returns a wrong number of end-of-text ids; `ValueError`
        for invalid `ends`; `Cancelled`.
        """
        ends = np.asarray(ends, np.int64)
        if len(ends) and (ends[0] < 0 or ends[-1] != len(data) or (ends[1:] < ends[:-1]).any()):
            raise ValueError(f"ends must rise from 0 to {len(data)}, the length of data")
        eot_id, dtype = self.tokenizer.eot_id, self.tokenizer.dtype
        parts: list[Ids] = []
        part_places: list[Ends] = []
        n_ids = n_ends = 0
        is_sure = self.engine != "gigatoken" or not has_newest(data)  # else it might differ on some of the characters
        for part, part_ends in _iter_calls(data, ends, self.tokenizer.cuts):
            cancel.check()
            encode = self._encode if is_sure or not has_newest(part) else self._reference
            engine_ids = encode(part, part_ends)
            ids = engine_ids.astype(dtype)
            places = np.flatnonzero(ids == eot_id) + 1 if eot_id is not None else ends[:0]
            if len(places) != len(part_ends) or (len(places) and places[-1] != len(ids)):
                raise self._wrong_ends(n_ends, len(part_ends), len(places))
            if check_bytes > 0 and self.engine == "gigatoken":
                check_bytes -= self._check(part, part_ends, engine_ids, check_bytes)
            parts.append(ids)
            part_places.append(places + n_ids)
            n_ids += len(ids)
            n_ends += len(places)
        return _joined(parts), _joined(part_places)

    def _check(self, data: bytes | memoryview, ends: Ends, ids: Ids, n_bytes: int) -> int:
        """Compare about the first `n_bytes` of a call with the reference; return how many were compared."""
        n = int(np.searchsorted(ends, n_bytes, "right"))
        if n:
            sample = data[: int(ends[n - 1])]
        else:  # the first document, or the piece of one, is longer
            whole = int(ends[0]) if len(ends) else len(data)
            sample = next(iter_pieces(bytes(data[:whole]), n_bytes, self.tokenizer.cuts))
        expected = self._reference(sample, ends[:n])
        self._compare(sample, ids[: len(expected)], expected)
        return len(sample)

    def _compare(self, data: bytes | memoryview, ids: Ids, expected: Ids) -> None:
        """Raise `EngineError` unless the ids are the expected ones; it shows the text at the first difference."""
        if np.array_equal(ids, expected):
            return
        n_same = count_same(ids, expected)
        tokens, reference = self.tokenizer.token_bytes(), self.tokenizer.reference
        before = sum(len(tokens[i]) for i in expected[:n_same].tolist() if i != self.tokenizer.eot_id)
        near = bytes(data[before : before + 60]).decode("utf-8", "replace")
        raise EngineError(
            f"{self.version} and {reference} {version_of(reference)} encode {near!r} differently",
            f"use --engine {reference}, which is slower and always right, and please report this text",
        )

    def _wrong_ends(self, first: int, n_documents: int, n_found: int) -> EngineError:
        tokenizer = self.tokenizer
        what = f"{n_found:,} ends of documents for {n_documents:,}"
        where = f"documents {first + 1:,} to {first + n_documents:,} of a block"
        if self.engine == tokenizer.reference:
            return EngineError(
                f"{tokenizer.name} spells its end-of-text id {tokenizer.eot_id} in a text: {what} ({where})",
                "take that text out, or choose another end-of-text with --eot-id",
            )
        return EngineError(
            f"{self.version} returned {what} ({where})",
            f"use --engine {tokenizer.reference}, which is slower and always right, and please report this",
        )


def _iter_calls(data: bytes | memoryview, ends: Ends, rule: CutRule) -> Iterator[tuple[bytes | memoryview, Ends]]:
    """Yield the arguments of each engine call: up to CALL_DOCUMENTS with their ends, or a piece of one.

    A longer document is split into pieces: the last has its end, the others none.
    """
    view = memoryview(data)
    if not len(ends):
        yield from ((piece, ends) for piece in iter_pieces(bytes(data), CALL_BYTES, rule))
    i = start = 0
    while i < len(ends):
        stop = max(int(np.searchsorted(ends[: i + CALL_DOCUMENTS], start + CALL_BYTES, "right")), i + 1)
        end = int(ends[stop - 1])
        if end - start <= CALL_BYTES:
            yield view[start:end], ends[i:stop] - start
        else:  # one long document
            for piece in iter_pieces(bytes(view[start:end]), CALL_BYTES, rule):
                start += len(piece)
                yield piece, np.array([len(piece)] if start == end else [], np.int64)
        i, start = stop, end


def _joined(parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return arrays as one, without a copy if there is only one."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
