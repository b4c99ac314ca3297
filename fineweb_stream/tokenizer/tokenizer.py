"""What a tokenizer is: everything that depends on which one it is, in one frozen object that is handed around."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..support.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import tiktoken

ENGINES = ("auto", "tiktoken", "gigatoken")
"""What may encode: tiktoken is the reference, gigatoken (the extra `fast`) is over ten times as fast."""


@dataclass(frozen=True, repr=False)
class Tokenizer:
    """A vocabulary, the pattern that cuts a text into pre-tokens, and where a text may be cut without changing an id.

    >>> from fineweb_stream.tokenizer.gpt2 import GPT2
    >>> GPT2.name, GPT2.eot_id, GPT2.dtype.str, GPT2.id_bytes
    ('gpt2', 50256, '<u2', 2)

    `vocabulary_sha256` is that of the rank file, whose lines `iter_ranks` yields; `scheme` is what gigatoken calls the
    pattern. `load_reference` builds the `tiktoken.Encoding`, `hf_json` the text of a `tokenizer.json` with an added
    token of id `eot_id`. `iter_pieces` cuts UTF-8 in pieces of about so many bytes.
    """

    name: str
    eot_id: int
    n_ids: int
    vocabulary_sha256: str
    scheme: str
    iter_ranks: Callable[[], Iterator[bytes]]
    load_reference: Callable[[], tiktoken.Encoding]
    hf_json: Callable[[str], str]
    iter_pieces: Callable[[bytes, int], Iterator[bytes]]
    engines: tuple[str, ...] = ENGINES

    def __repr__(self) -> str:
        return f"Tokenizer({self.name!r})"

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """What holds an id, here and in the files: little-endian uint16, or uint32 where there are more ids."""
        import numpy as np  # the engine is loaded while NumPy is imported

        return np.dtype("<u2" if self.n_ids <= 1 << 16 else "<u4")

    @property
    def id_bytes(self) -> int:
        """How many bytes an id takes in a file."""
        return self.dtype.itemsize


def unknown_engine(engine: str) -> InputError:
    """Return the error for an engine that there is none of."""
    if engine == "fastokens":
        return InputError(
            "the engine fastokens is no longer used: gigatoken took its place, and is faster",
            "pip install gigatoken, and leave --engine out or give --engine gigatoken",
        )
    return InputError(f"no such engine: {engine!r}", f"the engines are {', '.join(ENGINES)}")
