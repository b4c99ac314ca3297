"""`meta.pkl`: where nanoGPT's `train.py` finds `vocab_size`, and its `sample.py` how ids become text.

It holds only built-in types, so that loading it needs no package. For GPT-2 there is none, as nanoGPT expects.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable

from ..tokenizer.gpt2 import GPT2
from ..tokenizer.tokenizer import Tokenizer
from .manifest import Record
from .own import META_NAME


def make_meta(tokenizer: Tokenizer) -> bytes:
    """Return the pickle: `vocab_size`, `itos` (id -> text), `stoi` (character -> id), and facts about the tokenizer.

    >>> from fineweb_stream.tokenizer.load import load_tokenizer
    >>> meta = pickle.loads(make_meta(load_tokenizer("bytes")))
    >>> meta["vocab_size"], meta["stoi"]["a"], meta["itos"][97]
    (257, 97, 'a')

    An id that is only a part of a character is U+FFFD in `itos`. `stoi` has the characters that are a single id.
    """
    tokens = tokenizer.token_bytes()[: tokenizer.n_ids]
    itos = {i: token.decode("utf-8", "replace") for i, token in enumerate(tokens)}
    stoi = {text: i for i, text in reversed(itos.items()) if len(text) == 1 and tokens[i].decode(errors="ignore")}
    meta = {
        "vocab_size": tokenizer.n_ids,
        "itos": itos,
        "stoi": dict(sorted(stoi.items())),
        "tokenizer": tokenizer.name,
        "tokenizer_sha256": tokenizer.vocabulary_sha256,
        "eot_id": tokenizer.eot_id,
        "dtype": tokenizer.dtype.name,
    }
    return pickle.dumps(meta, protocol=4)


def add_meta(record: Record, tokenizer: Tokenizer, commit: Callable[[], None]) -> None:
    """Write `meta.pkl` under a temporary name and add it to the outputs, which get their final names together.

    Raises `DiskError`.
    """
    state = record.state
    if tokenizer is GPT2 or META_NAME in state.outputs:
        return
    with contextlib.closing(state.open_part(record.folder / META_NAME)) as part:
        part.write(make_meta(tokenizer))
        part.sync()
        state.outputs[META_NAME] = {"sha256": part.sha256, "head": part.head, "tokens": 0, "bytes": part.n_bytes}
    commit()
