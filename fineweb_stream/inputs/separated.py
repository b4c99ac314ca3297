"""A text file as documents between separators. Blocks are byte ranges; each is read once.

Line ends are as in plain text: `\\r\\n` and `\\r` become `\\n` in documents, and a newline in the separator matches
`\\r\\n`, too. (A lone `\\r` separates nothing.) Everything else in a document is kept as it is.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator

from ..support.errors import RecordError
from ..support.model import Change, Changes
from ..tokenizer.batch import join_bytes
from .blocks import Batch, Block, Source
from .decoding import BOM, find_zeros, is_utf8, normalized, repair
from .storage import InputFile, StreamFull, open_input, read_block, sample_blocks

_SCAN_BYTES = 1 << 16


class Records(Source):
    """A file of records, separated by nothing but the `separator`."""

    @property
    def separator(self) -> bytes:
        """The bytes between two records, with normalized line ends."""
        assert self.options.separator
        return normalized(self.options.separator)

    def iter_blocks(self, start: int = 0) -> Iterator[Block]:
        """Yield byte ranges that end right after a separator.

        A record longer than two blocks is a block of its own, because it may be too large. If a record of a stream is
        too large, it is skipped, and its block has no data.
        """
        limit, max_window = self.options.max_document_bytes, self.options.max_window_bytes
        max_held = None if limit is None else limit + 2 * self.block_bytes
        with open_input(self.input, self.network, start, max_held, max_window=max_window) as file:
            while True:
                try:
                    stop, passed = self._find_end(file, start + self.block_bytes), 0
                except StreamFull as full:
                    stop = passed = full.position
                if stop <= start:
                    return
                if stop - start > 2 * self.block_bytes:
                    head = _pattern(self.separator).finditer(file.read_at(start, self.block_bytes))
                    before = max((match.end() for match in head), default=0)  # whole records before the long one
                    stop = start + before if before else file.pass_over(self._find_end, passed) if passed else stop
                yield file.block(self, start, stop)
                start = stop

    def sample(self, n: int) -> list[Block]:
        """Return byte ranges spread over the file."""
        return sample_blocks(self, n, self._find_end)

    def _find_end(self, file: InputFile, target: int) -> int:
        return _find_separator_end(file, self.separator, target)


class SeparatedText(Records):
    """A text as documents. Empty ones (between two separators, or before or after all text) do not count."""

    unit = "document"

    def read(self, block: Block) -> Batch:
        """Read the documents of a byte range."""
        data = read_block(block)
        offset = block.start
        if block.start == 0 and data.startswith(BOM):
            data, offset = data[len(BOM) :], len(BOM)
        texts: list[bytes] = []
        changes = Changes()
        is_valid = is_utf8(data) and not find_zeros(data)
        n_records = 0
        for n_records, (start, text) in enumerate(split(data, self.separator), 1):
            if not is_valid:
                try:
                    text, replaced = repair(text, self.options.errors, offset + start, n_records - 1)
                except RecordError as error:
                    if not self.options.skip_bad:
                        raise
                    changes.append(Change(error.record, error.byte, "skipped", error.message))
                    continue
                changes.extend(replaced)
            texts.append(normalized(text))
        return Batch(*join_bytes(texts), len(data), n_records, changes)


def _find_separator_end(file: InputFile, separator: bytes, target: int) -> int:
    """Return the end of the first separator that ends at `target` or later, or the file's end.

    Occurrences may overlap (`\\n\\n` in `\\n\\n\\n`), and which of them separate depends on the first of the run: only
    an occurrence that overlaps none before it counts. If all its characters are the same, a run is passed over at once.
    """
    n = len(separator) + separator.count(b"\n")  # its greatest length in a file
    position = max(target - 2 * n + 1, file.first)
    last_end, pattern, run = 0, _pattern(separator), _run(separator)
    while True:
        window = file.read_at(position, _SCAN_BYTES + n - 1)
        match = pattern.search(window)
        while match:
            start, end = position + match.start(), position + match.end()
            if start >= last_end and end >= target:
                return end
            whole = run.match(window, match.start()) if run else None
            last_end = position + whole.end() if whole else end
            match = pattern.search(window, whole.end() if whole else match.start() + 1)
        if len(window) < _SCAN_BYTES + n - 1:
            return file.end()
        position += _SCAN_BYTES


@functools.lru_cache(maxsize=4)
def _run(separator: bytes) -> re.Pattern[bytes] | None:
    """Match what occurrences of a separator that overlap each other take up; None if only a search can tell."""
    if len(separator) == 1 or len(set(separator)) > 1:
        return None
    return re.compile(b"(?:%b)+" % _escaped(separator[:1]))


def split(data: bytes, separator: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the non-empty documents in `data`, which begins with a document, each after its offset.

    >>> list(split(b"one\\r\\n\\r\\ntwo\\n\\nthree", b"\\n\\n"))
    [(0, b'one'), (7, b'two'), (12, b'three')]
    """
    start = 0
    if b"\n" not in separator or b"\r" not in data:
        for document in data.split(separator):
            if document:
                yield start, document
            start += len(document) + len(separator)
        return
    for match in itertools.chain(_pattern(separator).finditer(data), [None]):
        document = data[start : match.start() if match else None]
        if match and separator.startswith(b"\n"):
            document = document.removesuffix(b"\r")
        if document:
            yield start, document
        start = match.end() if match else start


@functools.lru_cache(maxsize=4)
def _pattern(separator: bytes) -> re.Pattern[bytes]:
    """Match a separator, without a `\\r` before a newline at its start: so the search is fast."""
    return re.compile(_escaped(separator).removeprefix(rb"\r?"))


def _escaped(separator: bytes) -> bytes:
    return b"".join(rb"\r?\n" if byte == 10 else re.escape(bytes([byte])) for byte in separator)
