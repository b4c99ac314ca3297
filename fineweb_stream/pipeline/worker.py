"""Encode one block, in a thread here or a process on another machine; and a loop over all blocks."""

from __future__ import annotations

import codecs
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from ..inputs.blocks import Batch, Block, Source, batch_of
from ..inputs.parquet import Parquet
from ..output.changes import locate
from ..support.cancel import NEVER, Cancel
from ..support.errors import EngineError, GrownError, InputError, PrepareError, RecordError, TooLargeError
from ..support.model import Change, Changes
from ..support.units import format_size
from ..tokenizer.encoder import Encoder
from ..tokenizer.gpt2 import GPT2
from ..tokenizer.ids import Ends, Ids
from ..tokenizer.tokenizer import Tokenizer
from .budget import MemoryPlan
from .fetch import iter_blocks
from .schedule import BLOCKS_PER_WORKER, Window, WorkerError, local_executor, map_ordered

T = TypeVar("T")

FIRST_CHECK_BYTES, CHECK_BYTES, CHECK_EVERY = 1 << 18, 1 << 15, 32
"""Bytes that the reference encodes too, of the first block and of one in CHECK_EVERY others: under 1% of all text."""

PIECE_BYTES = 4096

EOT_TEXT, MANY_STARTS = b"<|endoftext|>", 1000
"""What is counted in plain text, and with how many `<|` in a block one count is faster than a look at each."""


@dataclass(frozen=True)
class Encoded:
    """The result of one block: its ids, shape (n,), and where each document ends in them, int64.

    Plain text has no documents: `ends` is empty.
    """

    ids: Ids
    ends: Ends
    n_bytes: int
    n_records: int
    changes: Changes
    has_text: bool
    n_eot_in_text: int


def encode_block(
    block: Block,
    engine: str,
    cancel: Cancel = NEVER,
    is_checked: bool = True,
    tokenizer: Tokenizer = GPT2,
) -> Encoded | None:
    """Read and encode one block; with `is_checked`, samples of the text are compared with the reference engine.

    A block of more than `max_document_bytes` is a single document that the memory budget has no room for. Returns None
    for a block that is much larger than announced: `in_parts` cuts it again.

    Raises `RecordError`, `InputError`, `EngineError`; `Cancelled` soon after `cancel` is set.
    """
    try:
        batch = read(block)
    except GrownError:
        return None
    ids, ends = _encode(block, batch, get_encoder(engine, tokenizer), _check_bytes(block) if is_checked else 0, cancel)
    n_eot = 0
    if not block.source.unit:
        n_eot = _count_eot(batch.data)
        if block.joins:
            ids = np.concatenate([np.array([tokenizer.eot_id], tokenizer.dtype), ids])
    changes = batch.changes
    if block.is_hard_cut:
        detail = "a run of one kind of character was cut: ids may differ there"
        changes.append(Change(0, block.stop, "hard cut", detail))
    return Encoded(ids, ends, batch.n_bytes, batch.n_records, changes, _has_text(batch.data), n_eot)


def in_parts(
    pairs: Iterable[tuple[Block, T | None]], function: Callable[[Block], T | None]
) -> Iterator[tuple[Block, T]]:
    """Yield each block with its result; one with the result None is cut into parts, which are processed here."""
    for block, result in pairs:
        if result is not None:
            yield block, result
            continue
        assert isinstance(block.source, Parquet)
        for part in block.source.cut(block):
            try:
                result = function(part)
            except Exception as error:
                raise WorkerError(part) from error
            assert result is not None
            yield part, result


def work_through(
    sources: Sequence[Source], function: Callable[[Block], T | None], plan: MemoryPlan, cancel: Cancel
) -> Iterator[tuple[Block, T]]:
    """Yield each block of all sources with `function(block)`, in order, by local threads; set `cancel` at the end.

    `function` returns None for a block that must be cut again. Raises what it raises; a `RecordError` becomes an
    `InputError` that names the place.
    """
    window = Window(lambda: BLOCKS_PER_WORKER * plan.n_workers, plan.window_bytes)
    blocks = iter_blocks(sources, 0, plan.n_workers, plan.window_bytes, cancel)
    with local_executor(plan.n_workers) as pool:
        try:
            yield from in_parts(map_ordered(pool, function, blocks, window, cancel.check), function)
        except WorkerError as error:
            cause = error.__cause__
            raise (locate_error(error.block, cause) if isinstance(cause, RecordError) else cause or error) from None
        finally:
            cancel.set()


def locate_error(block: Block, error: RecordError) -> InputError:
    """Return the error for a bad record, with its place; a line has no number if those before its block are unknown."""
    source, n_before = block.source, block.start if block.source.unit == "row" else 0
    unit = "" if block.start > n_before else source.unit
    byte = block.start if not unit and error.byte is None else error.byte
    place = locate(source.input, unit, error.record + n_before, byte)
    return InputError(f"{place}: {error.message}", error.hint)


def range_of(block: Block) -> str:
    """Return which part of its input a block is, for messages."""
    unit = "rows" if block.source.unit == "row" else "bytes"
    return f"{unit} {block.start:,} to {block.stop:,}"


def _encode(block: Block, batch: Batch, encoder: Encoder, check_bytes: int, cancel: Cancel) -> tuple[Ids, Ends]:
    try:
        return encoder.encode_utf8(batch.data, batch.ends, check_bytes=check_bytes, cancel=cancel)
    except EngineError as error:
        message = f"{block.source.input.shown}, {range_of(block)}: {error.message}"
        raise EngineError(message, error.hint) from error


def _count_eot(data: bytes | memoryview) -> int:
    """Count `<|endoftext|>`; the few `<|` that most texts have are found by NumPy, which releases the GIL."""
    n_found = 0
    for k in (0, 1) if len(data) >= len(EOT_TEXT) else ():
        is_start = np.frombuffer(data, "<u2", (len(data) - k) // 2, k) == int.from_bytes(EOT_TEXT[:2], "little")
        if is_start.any():
            starts = 2 * np.flatnonzero(is_start) + k
            if len(starts) > MANY_STARTS:
                return bytes(data).count(EOT_TEXT)
            n_found += sum(data[start : start + len(EOT_TEXT)] == EOT_TEXT for start in starts)
    return n_found


def _has_text(data: bytes | memoryview) -> bool:
    """Tell whether there is anything but whitespace; the first piece usually has it."""
    decode = codecs.getincrementaldecoder("utf-8")().decode
    pieces = (decode(bytes(data[at : at + PIECE_BYTES])) for at in range(0, len(data), PIECE_BYTES))
    return any(map(str.strip, pieces))


def read(block: Block) -> Batch:
    """Read a block, unless it is a single document that the memory budget has no room for.

    Raises `RecordError`, or skips bad records if the options say so; `GrownError` for a block that must be cut again.
    """
    try:
        return _read(block)
    except RecordError as error:
        is_way = _leaves_some(block, isinstance(error, TooLargeError))
        way = f", or skip such {block.source.unit}s with --skip-bad" if is_way else ""
        raise type(error)(error.record, error.byte, error.message, error.hint + way) from None


def _leaves_some(block: Block, is_large: bool) -> bool:
    """Tell whether --skip-bad would leave any documents, as far as is known at a block with a bad record.

    Blocks before this one were good. If there are none, this block decides; after one large document, more may follow.
    """
    source: Any = block.source
    skipping = replace(block, source=replace(source, options=replace(source.options, skip_bad=True)))
    try:
        n_documents = len(_read(skipping).ends)
    except (RecordError, PrepareError):  # not a record that could be skipped
        return False
    is_part = is_large and block.n_input_bytes != source.input.size
    return n_documents > 0 or source.number > source.first or block.start > 0 or is_part


def _read(block: Block) -> Batch:
    max_bytes = block.source.options.max_document_bytes
    if max_bytes is None or block.n_bytes <= max_bytes:
        return block.read()
    size, limit = format_size(block.n_bytes), format_size(max_bytes)
    message = f"a document of {size}, but the memory budget has room for one of {limit}"
    byte = None if block.source.unit == "row" else block.start
    if not block.source.options.skip_bad:
        raise TooLargeError(0, byte, message, "give it more with --memory")
    return batch_of([], block.n_bytes, 1, Changes([Change(0, byte, "skipped", message)]))


def _check_bytes(block: Block) -> int:
    if block.start == 0 and block.source.number == 0:
        return FIRST_CHECK_BYTES
    sample = zlib.crc32(f"{block.source.number} {block.start}".encode())
    return CHECK_BYTES if sample % CHECK_EVERY == 0 else 0


_encoders: dict[tuple[Any, ...], Encoder] = {}
_building = threading.Lock()


def forget_encoders() -> None:
    """Drop this process's encoders, to free their memory."""
    _encoders.clear()


def get_encoder(engine: str, tokenizer: Tokenizer = GPT2) -> Encoder:
    """Return this process's encoder, which all threads share. The first call builds it."""
    key = (engine, tokenizer.vocabulary_sha256, tokenizer.eot_id)
    if key not in _encoders:
        with _building:
            if key not in _encoders:
                _encoders[key] = Encoder(engine, tokenizer)
    return _encoders[key]
