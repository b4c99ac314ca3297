"""`bytes` and `chars`: tokenizers whose tokens are single bytes or characters; nothing to train, nothing to load.

`chars` numbers the characters of the corpus in order of code point, as nanoGPT's character-level example does.
"""

from __future__ import annotations

import functools
import hashlib

import numpy as np
import numpy.typing as npt

from ..support.errors import InputError
from .cuts import ANY_CUTS, iter_pieces
from .engines import Engine
from .ids import Ends, Ids
from .tokenizer import Tokenizer, TokenizerSpec

N_BYTES = 256

PIECE_BYTES = 1 << 20  # how much of a text is processed at a time (bytes): each character takes 12 bytes meanwhile


def make_plain(spec: TokenizerSpec) -> Tokenizer:
    """Return `bytes`, whose end-of-text is id 256, or `chars`, whose vocabulary is in the spec once it is known.

    `chars` has an end-of-text only if `spec.eot` gives its id, which must be the first above the characters.
    """
    is_bytes = spec.name == "bytes"
    characters = spec.characters or ""
    n_known = N_BYTES if is_bytes else len(characters)
    eot_id = N_BYTES if is_bytes else n_known if spec.eot is not None else None
    if spec.eot not in (None, str(eot_id)) and (is_bytes or characters):
        raise InputError(f"--eot-id {spec.eot}: the end-of-text of {spec.name} is {eot_id}", "leave it out")

    @functools.cache
    def token_bytes() -> list[bytes]:
        tokens = [bytes([i]) for i in range(N_BYTES)] if is_bytes else [char.encode() for char in characters]
        return [*tokens, b"<|endoftext|>"]

    def load_reference() -> Engine:
        if not is_bytes and spec.characters is None:
            raise InputError("chars numbers the characters of files and encodes no others", "use prepare or iter_ids")
        return _engine(eot_id, None if is_bytes else _code_points(characters.encode()))

    return Tokenizer(
        name=spec.name,
        eot_id=eot_id,
        n_ids=n_known + (eot_id is not None),
        vocabulary_sha256=hashlib.sha256(f"{spec.name} {characters}".encode()).hexdigest(),
        spec=spec,
        load_reference=load_reference,
        token_bytes=token_bytes,
        reference="numpy",
        cuts=ANY_CUTS,
    )


def find_characters(data: bytes | memoryview) -> npt.NDArray[np.uint32]:
    """Return the distinct code points of UTF-8, ascending.

    >>> find_characters("hello".encode()).tolist()
    [101, 104, 108, 111]
    """
    pieces = iter_pieces(bytes(data), PIECE_BYTES, ANY_CUTS)
    return np.unique(np.concatenate([np.empty(0, np.uint32), *(np.unique(_code_points(piece)) for piece in pieces)]))


def _code_points(data: bytes | memoryview) -> npt.NDArray[np.uint32]:
    return np.frombuffer(str(data, "utf-8").encode("utf-32-le"), np.uint32)


def _engine(eot_id: int | None, table: npt.NDArray[np.uint32] | None) -> Engine:
    def encode(data: bytes | memoryview, ends: Ends) -> Ids:
        ids = np.frombuffer(data, np.uint8).astype(np.uint32) if table is None else _look_up(data, table)
        if not len(ends):
            return ids
        assert eot_id is not None
        places = ends  # byte offsets; with a table, character offsets
        if table is not None:
            begins = np.frombuffer(data, np.uint8) & 0xC0 != 0x80
            places = np.concatenate([[0], np.cumsum(begins)])[ends]
        return np.insert(ids, places, eot_id)

    return encode


def _look_up(data: bytes | memoryview, table: npt.NDArray[np.uint32]) -> Ids:
    codes = _code_points(data)
    places = np.searchsorted(table, codes)
    known = places < len(table)
    known[known] = table[places[known]] == codes[known]
    if not known.all():
        char = chr(int(codes[np.argmin(known)]))
        raise InputError(
            f"the character {char!r} is not in the vocabulary: the input has changed since its first pass",
            "start over with --overwrite",
        )
    return places.astype(np.uint32)
