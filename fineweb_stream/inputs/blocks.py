"""What passes between the stages: a block says where some MiB of input are, and reads them where it is told to.

A block is small and picklable: it is read in the worker, a thread here or a process elsewhere. Only a block of a stream
that cannot be read twice (a pipe, a compressed file) carries its data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from ..support.model import Change, Input, ReadOptions

BLOCK_BYTES = 1 << 20
"""About how much text a block holds. Fixed: one document is the least, whatever its length."""


class Texts(NamedTuple):
    """What a block holds: `n_records` lines, rows or documents, skipped ones included."""

    texts: list[str]
    n_bytes: int
    n_records: int
    changes: list[Change]


class Source(Protocol):
    """One input of one format. A frozen dataclass: it travels with every block."""

    @property
    def input(self) -> Input:
        """The file."""

    @property
    def number(self) -> int:
        """Which input of the run it is."""

    @property
    def options(self) -> ReadOptions:
        """How records become texts."""

    @property
    def unit(self) -> str:
        """What a record is called in messages: line, row, document, or "" for plain text."""

    def iter_blocks(self, start: int) -> Iterator[Block]:
        """Yield the blocks from position `start` (a byte; for parquet a row) to the end."""

    def read(self, block: Block) -> Texts:
        """Read one block; `RecordError` names a record that cannot be used."""

    def sample(self, n: int) -> list[Block]:
        """Return up to `n` small blocks spread over the input, to estimate from; none for a stream."""

    def text_bytes(self) -> int:
        """Return about how many bytes of text there are, in the measure of `Block.n_bytes`."""


@dataclass(frozen=True)
class Block:
    """Where some text is: `start` and `stop` are bytes of the file, or rows of a parquet file.

    `n_bytes` is about how much text that is, `n_input_bytes` how much of the file. `split` is set where the place alone
    decides (plain text), `joins` where an end-of-text id stands before it, `is_hard_cut` where its end may change ids.
    """

    source: Source
    start: int
    stop: int
    n_bytes: int
    n_input_bytes: int
    split: str | None = None
    joins: bool = False
    is_hard_cut: bool = False
    data: Any = field(default=None, repr=False)

    def read(self) -> Texts:
        """Read the texts, in the worker."""
        return self.source.read(self)
