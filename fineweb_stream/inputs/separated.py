"""A text file as documents between separators, every byte of them kept. Blocks are byte ranges; each is read once."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..support.model import Change, Input, ReadOptions
from .blocks import BLOCK_BYTES, Block, Texts
from .decoding import BOM, decode
from .storage import InputFile, iter_record_blocks, read_block, sample_blocks

_SCAN_BYTES = 1 << 16


@dataclass(frozen=True)
class SeparatedText:
    """Documents between occurrences of a byte sequence; nothing else separates, and nothing between is changed.

    Empty documents (two separators in a row, one at the start or the end) are none.
    """

    number: int
    input: Input
    options: ReadOptions
    block_bytes: int = BLOCK_BYTES
    unit: str = "document"

    def iter_blocks(self, start: int = 0) -> Iterator[Block]:
        """Return byte ranges that end right after a separator."""
        return iter_record_blocks(self, start, self.block_bytes, self._find_end, self._last_end)

    def read(self, block: Block) -> Texts:
        """Read the documents of a byte range."""
        assert self.options.separator
        data = read_block(block)
        texts: list[str] = []
        changes: list[Change] = []
        offset = block.start
        if block.start == 0 and data.startswith(BOM):
            data, offset = data[len(BOM) :], len(BOM)
        for document in data.split(self.options.separator):
            if document:
                text, replaced = decode(document, self.options.errors, offset, len(texts))
                texts.append(text)
                changes += replaced
            offset += len(document) + len(self.options.separator)
        return Texts(texts, len(data), len(texts), changes)

    def sample(self, n: int) -> list[Block]:
        """Return byte ranges spread over the file."""
        return sample_blocks(self, n, self._find_end)

    def text_bytes(self) -> int:
        """Return the file's size."""
        return self.input.size

    def _last_end(self, data: bytes) -> int:
        """Return where the last whole document ends in data that begin with one; 0 if none does."""
        assert self.options.separator
        end = 0
        while (at := data.find(self.options.separator, end)) >= 0:
            end = at + len(self.options.separator)
        return end

    def _find_end(self, file: InputFile, target: int) -> int:
        assert self.options.separator
        return _find_separator_end(file, self.options.separator, target)


def _find_separator_end(file: InputFile, separator: bytes, target: int) -> int:
    """Return the end of the first separator that ends at `target` or later, or the file's end.

    Occurrences may overlap (`\\n\\n` in `\\n\\n\\n`), and which of them separate depends on the first of the row: so
    only one that overlaps none before it will do.
    """
    n = len(separator)
    position = max(target - 2 * n + 1, 0)
    last_start = -n
    while True:
        window = file.read_at(position, _SCAN_BYTES + n - 1)
        for row in _row(separator).finditer(window):
            start = position + row.start()
            if start - last_start >= n and start + n >= target:
                return start + n
            last_start = position + row.end() - n
        if len(window) < _SCAN_BYTES + n - 1:
            return file.end()
        position += _SCAN_BYTES


@functools.lru_cache(maxsize=4)
def _row(separator: bytes) -> re.Pattern[bytes]:
    """Match a separator and all that overlap in a row from there on: millions of newlines are one match.

    >>> _row(b"\\n\\n").match(b"\\n\\n\\n\\n\\nx").end()
    5
    """
    n = len(separator)
    shifts = (shift for shift in range(1, n) if separator.startswith(separator[shift:]))
    further = b"|".join(re.escape(separator[n - shift :]) for shift in shifts)
    return re.compile(re.escape(separator) + (b"(?:" + further + b")*" if further else b""))
