"""A text file as one long text. Blocks are byte ranges; each byte is read once.

UTF-8; a leading byte-order mark is dropped, and `\\r\\n` and `\\r` become `\\n`, as `open()` does.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..tokenizer.cuts import CUT_RULES, CutRule
from .blocks import Batch, Block, Source
from .decoding import BOM, normalized, repair
from .storage import InputFile, count_unpacked, open_input, read_block, sample_blocks

MAX_RUN_BYTES = 1 << 20  # plain text is cut after this much without a good place: only there may ids differ
STREAM_HEAD_BYTES = 32 << 20  # how much of a stream determines its validation split (bytes)
HELD_BYTES = 2 << 20  # how much of a compressed file is buffered rather than unpacked a second time (bytes)


@dataclass(frozen=True)
class PlainText(Source):
    """A whole file as one text: the first `val_bytes` of it, up to the next good cut, are the validation split.

    With `val_at_end` it is the last `val_bytes`, from the next good cut on.

    With `joins` an end-of-text id comes before the text, with `joins_then` before the second of its splits: there, too,
    it follows another text.

    The length of a stream is unknown: its validation split is `val_ratio` of its first STREAM_HEAD_BYTES, determined
    once, at its start. Each block says where the split ends, for a resumed run.
    """

    unit = ""
    val_bytes: int = 0
    val_ratio: float | None = None
    val_at_end: bool = False
    joins: bool = False
    joins_then: bool = False

    @property
    def n_joins(self) -> int:
        """How many end-of-text ids come before parts of this text."""
        has_both = self.val_ratio is not None or 0 < self.val_bytes < self.input.size
        return self.joins + (self.joins_then and has_both)

    def iter_blocks(self, start: int = 0) -> Iterator[Block]:
        """Yield byte ranges that end where a cut cannot change an id, except for hard cuts."""
        with open_input(self.input, self.network, start, max_window=self.options.max_window_bytes) as file:
            val_bytes = self._n_val_bytes(file)
            rule = CUT_RULES[self.options.cuts]
            first, then = ("train", "val") if self.val_at_end else ("val", "train")
            n_first = self.input.size - val_bytes if self.val_at_end else val_bytes
            while True:
                target = start + self.block_bytes
                stop, is_hard = find_byte_cut(file, min(target, n_first) if start < n_first else target, rule)
                if start < n_first < stop:
                    stop, is_hard = find_byte_cut(file, n_first, rule)
                if stop <= start:
                    break
                split = first if start < n_first else then
                if start < n_first <= stop:
                    n_first = stop  # on record as `val_end`: a resumed run knows the first block of train by it
                joins = (self.joins and start == 0) or (self.joins_then and start == n_first)
                yield replace(
                    file.block(self, start, stop), split=split, joins=joins, is_hard_cut=is_hard,
                    val_end=n_first if self.input.is_stream or self.joins_then else 0,
                )  # fmt: skip
                start = stop

    def _n_val_bytes(self, file: InputFile) -> int:
        n_bytes = self.val_bytes if self.val_ratio is None else _share(file, self.val_ratio)
        if 0 < n_bytes <= len(BOM) and not (self.val_at_end or file.first) and file.read_at(0, len(BOM)) == BOM:
            return len(BOM) + 1  # a byte-order mark alone is no text
        return n_bytes

    def read(self, block: Block) -> Batch:
        """Read a byte range, whose text continues in the next block."""
        data = read_block(block)
        if block.start == 0:
            data = data.removeprefix(BOM)
        n_bytes = len(data)
        data, changes = repair(data, self.options.errors, block.stop - n_bytes)
        return Batch(normalized(data), np.empty(0, np.int64), n_bytes, 0, changes)

    def sample(self, n: int) -> list[Block]:
        """Return byte ranges spread over the file."""
        rule = CUT_RULES[self.options.cuts]
        return sample_blocks(self, n, lambda file, target: find_byte_cut(file, target, rule)[0])


def _share(file: InputFile, ratio: float) -> int:
    """Return `ratio` of a stream's length (bytes), of which only the first STREAM_HEAD_BYTES count.

    They are buffered, unless the file is local and can be unpacked twice: several files may be open before their turn.
    """
    can_count = file.input.compression and not (file.input.is_remote or file.input.is_stdin)
    n_bytes = len(file.read_at(0, HELD_BYTES if can_count else STREAM_HEAD_BYTES))
    if can_count and n_bytes == HELD_BYTES:
        n_bytes = count_unpacked(file.input, STREAM_HEAD_BYTES)
    return math.ceil(n_bytes * ratio)


def find_byte_cut(file: InputFile, target: int, rule: CutRule) -> tuple[int, bool]:
    """Return the first offset at `target` or later where UTF-8 may be cut (or the end), and whether it is a hard cut.

    A hard cut is made after MAX_RUN_BYTES without a good place.
    """
    # A character has up to four bytes: the one before the target is read whole. (A buffer begins with a whole one.)
    begin = max(target - 4, file.first)
    width = 4096
    while True:
        window = file.read_at(begin, target - begin + width)
        skipped = _n_continuation_bytes(window)
        text = window[skipped:].decode("utf-8", "surrogateescape")
        first = len(window[skipped : target - begin].decode("utf-8", "surrogateescape"))
        cut = rule.find(text, first, len(text) - 1) if rule.find else None  # the last character may be incomplete
        if cut is not None:
            return begin + skipped + len(text[:cut].encode("utf-8", "surrogateescape")), False
        if len(window) < target - begin + width:
            return file.end(), False
        if width >= MAX_RUN_BYTES:
            _, n_whole = codecs.utf_8_decode(window, "surrogateescape", False)  # without an incomplete last character
            window = window[:n_whole]
            return begin + len(window) - window.endswith(b"\r"), True  # never between \r and \n
        width *= 16


def _n_continuation_bytes(data: bytes) -> int:
    """Count the bytes at the start that belong to a character that began before them (0 to 3)."""
    return next((i for i, byte in enumerate(data[:3]) if byte & 0xC0 != 0x80), 3 if len(data) > 3 else 0)
