"""A block -> its ids: what runs in a worker, a thread here or a process on another machine."""

from __future__ import annotations

import threading
import zlib
from dataclasses import dataclass

import numpy as np

from ..inputs.blocks import Block, Texts
from ..support.cancel import NEVER, Cancel
from ..support.errors import TooLargeError
from ..support.model import Change
from ..support.units import format_size
from ..support.waiting import until
from ..tokenizer.encoder import Encoder
from ..tokenizer.gpt2 import EOT_ID
from ..tokenizer.ids import TOKEN_DTYPE, Ends, Ids

FIRST_CHECK_CHARS, CHECK_CHARS, CHECK_EVERY = 1 << 18, 1 << 15, 32
"""How much of the first block, and of one in CHECK_EVERY others, tiktoken encodes too: under a percent of the text."""


@dataclass(frozen=True)
class Encoded:
    """What became of a block: its ids, uint16, shape (n,), and where each document ends in them, int64.

    Plain text has no documents: then `ends` is empty.
    """

    ids: Ids
    ends: Ends
    n_bytes: int
    n_records: int
    changes: list[Change]
    has_text: bool
    n_eot_in_text: int


def encode_block(
    block: Block,
    engine: str,
    cancel: Cancel = NEVER,
    is_checked: bool = True,
) -> Encoded:
    """Read and encode one block; with `is_checked` the first one, and a sample of the others, by both engines.

    A block of more than `max_document_bytes` is a single document that the memory budget has no room for.

    Raises `RecordError`, `InputError`, `EngineError`; `Cancelled` soon after `cancel` is set.
    """
    max_bytes = block.source.options.max_document_bytes
    with until(cancel):
        texts = block.read() if max_bytes is None or block.n_bytes <= max_bytes else _skip_too_large(block, max_bytes)
    is_plain = not block.source.unit
    ids, ends = get_encoder(engine).encode(
        texts.texts, eot=not is_plain, check_chars=_check_chars(block) if is_checked else 0, cancel=cancel
    )
    n_eot = 0
    if is_plain:
        n_eot = sum(text.count("<|endoftext|>") for text in texts.texts if "|" in text)  # one character is found faster
        ends = ends[:0]
        if block.joins:
            ids = np.concatenate([np.array([EOT_ID], TOKEN_DTYPE), ids])
    changes = texts.changes
    if block.is_hard_cut:
        detail = "a run of one kind of character was cut: ids may differ there"
        changes = [*changes, Change(0, block.stop, "hard cut", detail)]
    has_text = any(text and not text.isspace() for text in texts.texts)
    return Encoded(ids, ends, texts.n_bytes, texts.n_records, changes, has_text, n_eot)


def _skip_too_large(block: Block, max_bytes: int) -> Texts:
    size, limit = format_size(block.n_bytes), format_size(max_bytes)
    message = f"a document of {size}, but the memory budget has room for one of {limit}"
    byte = None if block.source.unit == "row" else block.start
    if not block.source.options.skip_bad:
        raise TooLargeError(0, byte, message, "give it more with --memory, or skip such documents with --skip-bad")
    return Texts([], block.n_bytes, 1, [Change(0, byte, "skipped", message)])


def _check_chars(block: Block) -> int:
    if block.start == 0 and block.source.number == 0:
        return FIRST_CHECK_CHARS
    sample = zlib.crc32(f"{block.source.number} {block.start}".encode())
    return CHECK_CHARS if sample % CHECK_EVERY == 0 else 0


_encoders: dict[str, Encoder] = {}
_building = threading.Lock()


def get_encoder(engine: str) -> Encoder:
    """Return this process's encoder: one vocabulary serves all threads. The first call builds it."""
    if engine not in _encoders:
        with _building:
            if engine not in _encoders:
                _encoders[engine] = Encoder(engine)
    return _encoders[engine]
