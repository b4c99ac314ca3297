"""Texts -> GPT-2 ids, by one of two engines behind one face.

tiktoken is the reference: whatever it returns is right. fastokens (the `fast` extra) is over ten times as fast; it must
equal tiktoken on a set of hard texts before it is used, and on samples while it works (`check_chars`).

Not covered: special tokens. `<|endoftext|>` inside a text is plain text; id 50256 only ever ends a document.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ..pipeline.settings import ENGINES
from ..support.cancel import NEVER, Cancel
from ..support.errors import EngineError, InputError
from .cuts import CHUNK_CHARS, iter_chunks
from .engines import END, engine_version, fastokens_engine, tiktoken_engine
from .gpt2 import EOT_ID
from .ids import TOKEN_DTYPE, Ends, Ids
from .loading import start_fastokens

BATCH_CHARS = 1 << 20
"""How much text an engine gets in one call (characters): bounds its uint32 result and the time to a stop."""

BATCH_TEXTS = 8192
"""How many texts an engine gets in one call: tiny documents cost more as objects than as text."""

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
)
"""Every class of the pattern and every kind of border between two, in little."""


class Encoder:
    """GPT-2's encoder: a batch of texts -> their ids as uint16.

    >>> ids, ends = Encoder("tiktoken").encode(["hello world", "hello"], eot=True)
    >>> ids.tolist(), ends.tolist()
    ([31373, 995, 50256, 31373, 50256], [3, 5])

    `engine` is "fastokens", "tiktoken", or "auto": fastokens where it is installed, else tiktoken. `encode` may be
    called from several threads at once.

    Raises `InputError` for an engine that is unknown or not installed, `EngineError` where fastokens is not exact.
    """

    def __init__(self, engine: str = "auto") -> None:
        if engine not in ENGINES:
            raise InputError(f"no such engine: {engine!r}", f"the engines are {', '.join(ENGINES)}")
        has_fastokens = importlib.util.find_spec("fastokens") is not None
        if engine == "fastokens" and not has_fastokens:
            raise InputError(
                "the engine fastokens is not installed", "pip install fastokens, or choose --engine tiktoken"
            )
        self.engine = "tiktoken" if engine == "tiktoken" or not has_fastokens else "fastokens"
        if self.engine == "tiktoken":
            self._encode = self._reference = tiktoken_engine()
        else:
            start_fastokens()  # it is built while tiktoken is
            self._reference = tiktoken_engine()
            self._encode = fastokens_engine()
            for text in HARD_TEXTS:
                self._compare(text, self._encode([text])[0])

    @property
    def version(self) -> str:
        """The engine's name and version, as the run's record states it."""
        return f"{self.engine} {engine_version(self.engine)}"

    def encode(
        self,
        texts: Sequence[str],
        *,
        eot: bool = False,
        check_chars: int = 0,
        cancel: Cancel = NEVER,
    ) -> tuple[Ids, Ends]:
        """Return the ids of all texts, one after the other, and where the ids of each end.

        The ids are uint16, shape (n,); the ends int64, shape (len(texts),): text i is `ids[ends[i - 1]:ends[i]]`. With
        `eot` each text ends with id 50256, counted in its end. Lone surrogates count as U+FFFD, as in tiktoken.

        About the first `check_chars` characters are encoded by tiktoken too and compared. `cancel` is looked at
        between calls of the engine (about a MiB each).

        Raises `EngineError` when the engines differ, `Cancelled`, `TypeError` for a text that is no `str`, or not in a
        sequence.
        """
        if isinstance(texts, str | bytes):
            raise TypeError("texts are a sequence of str, not one of them: encode([text])")
        n_pieces: list[int] = []
        parts, lengths = [], []
        for batch in _iter_batches(texts, eot, n_pieces):
            cancel.check()
            batch_ids, batch_lengths = self._encode(batch)
            if check_chars > 0 and self.engine != "tiktoken":
                check_chars -= self._check(batch, batch_ids, batch_lengths, check_chars)
            parts.append(batch_ids.astype(TOKEN_DTYPE))
            lengths.append(batch_lengths)
        ends = np.cumsum(np.concatenate(lengths), dtype=np.int64) if lengths else np.empty(0, np.int64)
        if len(ends) > len(texts):
            ends = ends[np.cumsum(n_pieces) - 1]
        ids = parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, TOKEN_DTYPE), *parts])
        if eot:
            ids[ends - 1] = EOT_ID
        return ids, ends

    def _check(
        self, texts: Sequence[str], ids: npt.NDArray[np.uint32], lengths: npt.NDArray[np.int64], n_chars: int
    ) -> int:
        """Compare the first texts of a batch with tiktoken until `n_chars` are done; return how many were."""
        n_checked = n_tokens = 0
        for text, length in zip(texts, lengths.tolist(), strict=True):
            if n_checked >= n_chars:
                break
            self._compare(text, ids[n_tokens : n_tokens + length])
            n_checked += len(text)
            n_tokens += length
        return n_checked

    def _compare(self, text: str, ids: npt.NDArray[np.uint32]) -> None:
        expected = self._reference([text])[0]
        if np.array_equal(ids, expected):
            return
        n_same = int(np.cumprod(ids[: len(expected)] == expected[: len(ids)]).sum())
        before = sum(len(token) for token in self._token_bytes(expected[:n_same]))
        near = text.encode("utf-8", "replace")[before : before + 60].decode("utf-8", "replace")
        raise EngineError(
            f"{self.version} and tiktoken {engine_version('tiktoken')} encode {near!r} differently",
            "use --engine tiktoken, which is slower and always right, and please report this text",
        )

    @staticmethod
    def _token_bytes(ids: npt.NDArray[np.uint32]) -> Iterator[bytes]:
        from .gpt2 import token_bytes

        return (token_bytes()[i] for i in ids.tolist())


def _iter_batches(texts: Sequence[str], eot: bool, n_pieces: list[int]) -> Iterator[list[str]]:
    """Yield what the engine gets in one call each; `n_pieces` gets for each text how many pieces it makes.

    That is the text, or its chunks when it is long, and with `eot` one more, `END`. No generator per text: documents
    may be a few words.
    """
    start = n_chars = 0
    for i, length in enumerate(map(len, texts)):
        if length > CHUNK_CHARS:
            if start < i:
                yield _pieces(texts[start:i], eot, n_pieces)
            yield from _iter_chunk_batches(texts[i], eot, n_pieces)
            start, n_chars = i + 1, 0
            continue
        n_chars += length
        if n_chars >= BATCH_CHARS or i + 1 - start >= BATCH_TEXTS:
            yield _pieces(texts[start : i + 1], eot, n_pieces)
            start, n_chars = i + 1, 0
    if start < len(texts):
        yield _pieces(texts[start:], eot, n_pieces)


def _pieces(texts: Sequence[str], eot: bool, n_pieces: list[int]) -> list[str]:
    n_pieces += [1 + eot] * len(texts)
    if not eot:
        return list(texts)
    pieces = [END] * (2 * len(texts))
    pieces[::2] = texts
    return pieces


def _iter_chunk_batches(text: str, eot: bool, n_pieces: list[int]) -> Iterator[list[str]]:
    """Yield the chunks of one long text, about BATCH_CHARS at a time."""
    batch: list[str] = []
    n_chunks = n_chars = 0
    for chunk in iter_chunks(text):
        if n_chars >= BATCH_CHARS:
            yield batch
            batch, n_chars = [], 0
        batch.append(chunk)
        n_chunks += 1
        n_chars += len(chunk)
    n_pieces.append(n_chunks + eot)
    yield [*batch, END] if eot else batch
