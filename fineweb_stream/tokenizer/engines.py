"""The two engines behind one face: a batch of texts -> ids as uint32 and how many each text has."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from .cuts import WHITESPACE
from .gpt2 import tiktoken_encoding
from .loading import start_fastokens

EngineResult = tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]
Engine = Callable[[Sequence[str]], EngineResult]

END = "!"
"""What an engine gets where an end-of-text id is wanted: a text of one token, which the caller puts that id over.

So the room for it is there from the start: putting it in between afterwards would copy all ids once more.
"""

# A run of a million whitespace characters before text overflows tiktoken 0.14's regex stack: a panic, not an Exception.
_LONG_SPACE_RUN = re.compile(f"[{WHITESPACE}]{{100000,}}")


def engine_version(engine: str) -> str:
    """The installed version of an engine's package."""
    from importlib.metadata import version

    return version(engine)


def tiktoken_engine() -> Engine:
    """Return the reference, mended where it fails: lone surrogates, very long runs of whitespace."""
    encoding = tiktoken_encoding()
    end = encoding.encode_to_numpy(END)

    def encode_one(text: str) -> npt.NDArray[np.uint32]:
        if text is END:
            return end
        try:
            return encoding.encode_to_numpy(text, disallowed_special=())
        except UnicodeEncodeError:
            return encoding.encode_to_numpy(_replace_surrogates(text), disallowed_special=())

    def encode(texts: Sequence[str]) -> EngineResult:
        per_text = [[encode_one(part) for part in _split_long_space_runs(text)] for text in texts]
        lengths = np.array([sum(map(len, parts)) for parts in per_text], np.int64)
        return np.concatenate([np.empty(0, np.uint32), *(ids for parts in per_text for ids in parts)]), lengths

    return encode


def _split_long_space_runs(text: str) -> Iterable[str]:
    """Cut very long whitespace runs before their last character, where GPT-2's pattern cuts them too.

    A run before text is one piece up to its last character, and at the end of a text it is one piece: so a part that
    ends with the run less that character has the very same pieces.
    """
    if len(text) < 100_000:
        return (text,)
    cuts = [match.end() - 1 for match in _LONG_SPACE_RUN.finditer(text) if match.end() < len(text)]
    return (text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True))


def _replace_surrogates(text: str) -> str:
    """Do as tiktoken's `encode_ordinary`: pairs become their character, lone ones U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def fastokens_engine() -> Engine:
    """Return the fast engine, pinned to one thread a call."""
    tokenizer = start_fastokens().result()

    def encode(texts: Sequence[str]) -> EngineResult:
        try:
            ids, offsets = tokenizer.encode_batch_flat(texts)
        except UnicodeEncodeError:
            ids, offsets = tokenizer.encode_batch_flat([_replace_surrogates(text) for text in texts])
        ends = np.frombuffer(offsets, np.int64)
        return np.frombuffer(ids, np.uint32), ends[1:] - ends[:-1]

    return encode
