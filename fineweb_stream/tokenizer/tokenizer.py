"""What a tokenizer is: everything that depends on which one it is, in one frozen object that is handed around."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ..support.errors import InputError
from .cuts import GPT2_CUTS, CutRule, iter_pieces

if TYPE_CHECKING:
    import numpy as np


class TokenizerSpec(NamedTuple):
    """What a tokenizer is loaded by: what `--tokenizer`, `--pattern` and `--eot-id` say, paths made absolute.

    `characters` is the vocabulary of `chars`, in order, once it is known.
    """

    name: str
    pattern: str | None = None
    eot: str | None = None
    characters: str | None = None


@dataclass(frozen=True, repr=False, eq=False)
class Tokenizer:
    """A vocabulary, the pattern that cuts a text into pre-tokens, and where a text may be cut without changing an id.

    >>> from fineweb_stream.tokenizer.gpt2 import GPT2
    >>> GPT2.name, GPT2.eot_id, GPT2.dtype.str, GPT2.id_bytes
    ('gpt2', 50256, '<u2', 2)

    `eot_id` is None where no id ends a document. `vocabulary_sha256` is that of what decides the ids: GPT-2's is that
    of the rank file, whose lines `iter_ranks` yields. `token_bytes` gives the bytes of each id, b"" for one that is
    none. `reference` names what is right by definition, and `load_reference` builds it: a `tiktoken.Encoding`, a
    `tokenizers.Tokenizer`, or (`numpy`) what encodes a buffer. `scheme` is what gigatoken calls the pattern; without
    one it takes `hf_json`, the text of a `tokenizer.json` with an added token of id `eot_id`.
    """

    name: str
    eot_id: int | None
    n_ids: int
    vocabulary_sha256: str
    spec: TokenizerSpec
    load_reference: Callable[[], Any]
    token_bytes: Callable[[], Sequence[bytes]]
    reference: str = "tiktoken"
    has_fast: bool = False
    scheme: str = ""
    iter_ranks: Callable[[], Iterator[bytes]] | None = None
    hf_json: Callable[[str], str] | None = None
    cuts: CutRule = GPT2_CUTS

    def __repr__(self) -> str:
        return f"Tokenizer({self.name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what it is loaded by: a worker elsewhere loads it once, and must find the same."""
        from .load import reload

        return reload, (self.spec, self.vocabulary_sha256)

    @property
    def engines(self) -> tuple[str, ...]:
        """What `--engine` may be."""
        return ("auto", self.reference, *(["gigatoken"] if self.has_fast else []))

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger[Any]]:
        """What holds an id, here and in the files: little-endian uint16, or uint32 where there are more ids."""
        return id_dtype(self.n_ids)

    @property
    def id_bytes(self) -> int:
        """How many bytes an id takes in a file."""
        return self.dtype.itemsize

    def iter_pieces(self, data: bytes, size: int) -> Iterator[bytes]:
        """Cut UTF-8 in pieces of about `size` bytes whose ids, one after the other, are the ids of all of it."""
        return iter_pieces(data, size, self.cuts)

    def check_engine(self, engine: str) -> None:
        """Raise `InputError` for an engine that does not encode for this tokenizer."""
        if engine == "fastokens":
            raise InputError(
                "the engine fastokens is no longer used: gigatoken took its place, and is faster",
                "pip install gigatoken, and leave --engine out or give --engine gigatoken",
            )
        if engine not in self.engines:
            raise InputError(f"no such engine: {engine!r}", f"the engines are {', '.join(self.engines)}")


def find_eot(eot: str, special: Mapping[str, int], kind: str) -> int:
    """Return the id of the special token that `--eot-id` names by its id or its text; `InputError` for any other."""
    if eot in special:
        return special[eot]
    if eot.isdecimal() and int(eot) in special.values():
        return int(eot)
    by_id = sorted(special.items(), key=lambda item: item[1])
    known = ", ".join(f"{i} ({text})" for text, i in by_id[:8]) or "no added token at all"
    raise InputError(f"--eot-id {eot}: no {kind}", f"it has {known}")


def id_dtype(n_ids: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Return what holds ids below `n_ids`: uint16 up to 65,536 of them, else uint32, little-endian."""
    import numpy as np  # the engine is loaded while NumPy is imported

    return np.dtype("<u2" if n_ids <= 1 << 16 else "<u4")
