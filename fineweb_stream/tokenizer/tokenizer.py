"""The `Tokenizer`: everything that depends on which tokenizer is used, in one frozen object."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ..support.errors import InputError
from .cuts import GPT2_CUTS, CutRule

if TYPE_CHECKING:
    import numpy as np


MAX_IDS = 1 << 24  # no vocabulary is larger: a file with such an id is damaged


class TokenizerSpec(NamedTuple):
    """How to load a tokenizer: the values of `--tokenizer`, `--pattern` and `--eot-id`, paths made absolute.

    `characters` is the vocabulary of `chars`, in order, once it is known.
    """

    name: str
    pattern: str | None = None
    eot: str | None = None
    characters: str | None = None


@dataclass(frozen=True, repr=False, eq=False)
class Tokenizer:
    """A vocabulary, the pattern that splits a text into pre-tokens, and the rule for where a text may be cut.

    >>> from fineweb_stream.tokenizer.gpt2 import GPT2
    >>> GPT2.name, GPT2.eot_id, GPT2.dtype.str
    ('gpt2', 50256, '<u2')

    `eot_id` is None if no id ends a document. `vocabulary_sha256` hashes everything that decides the ids; for GPT-2 it
    is the hash of the rank file, whose lines `iter_ranks` yields. `token_bytes` returns the bytes of each id, b"" for
    an unused one. `reference` names the engine that is right by definition, and `load_reference` builds it: a
    `tiktoken.Encoding`, a `tokenizers.Tokenizer`, or (`numpy`) an `Engine`. `scheme` is gigatoken's name for the
    pattern of these ranks; without one it loads `hf_json`, the text of a `tokenizer.json` with a token of id `eot_id`.
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
        """Pickle the spec and the hash: a worker loads the tokenizer once, and checks that it is the same."""
        from .load import reload

        return reload, (self.spec, self.vocabulary_sha256)

    @property
    def engines(self) -> tuple[str, ...]:
        """The values that `--engine` may have."""
        return ("auto", self.reference, *(["gigatoken"] if self.has_fast else []))

    @property
    def fastest_engine(self) -> str:
        """The engine that "auto" stands for: gigatoken if it is installed and supports the tokenizer."""
        return "gigatoken" if self.has_fast and has_gigatoken() else self.reference

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger[Any]]:
        """The dtype of an id, in memory and in files: little-endian uint16, or uint32 above 65,536 ids."""
        return id_dtype(self.n_ids)

    def check_engine(self, engine: str) -> None:
        """Raise `InputError` for an engine that does not support this tokenizer."""
        if engine not in self.engines:
            raise InputError(f"no such engine: {engine!r}", f"the engines are {', '.join(self.engines)}")


def has_gigatoken() -> bool:
    """Tell whether the fast engine is installed."""
    return importlib.util.find_spec("gigatoken") is not None


def find_eot(eot: str, special: Mapping[str, int], kind: str) -> int:
    """Return the id of the special token that `--eot-id` gives by id or text; `InputError` if there is none."""
    if eot in special:
        return special[eot]
    if eot.isdecimal() and int(eot) in special.values():
        return int(eot)
    by_id = sorted(special.items(), key=lambda item: item[1])
    known = ", ".join(f"{i} ({text})" for text, i in by_id[:8])
    raise InputError(f"--eot-id {eot}: no {kind}", f"it has {known}")


def id_dtype(n_ids: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Return the dtype for `n_ids` ids: uint16 up to 65,536 of them, else uint32, little-endian."""
    import numpy as np  # imported late: the engine loads meanwhile

    return np.dtype("<u2" if n_ids <= 1 << 16 else "<u4")
