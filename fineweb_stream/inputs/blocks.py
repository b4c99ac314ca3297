"""What passes between the stages: a block says where about 1.5 MiB of input is, and reads it into a batch.

A block is small and picklable, because its reader may be another thread, process or machine. It carries its data only
if it cannot be read again on its own (a pipe, a compressed file, a large row group), or if its data were prefetched.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from ..remote.network import Network
from ..support.model import Changes, Input, ReadOptions
from ..tokenizer.batch import join_texts
from ..tokenizer.ids import Ends

BLOCK_BYTES = 3 << 19  # about how much text a block holds; it has at least one document, whatever its length
TEXT_COST = 5  # how many bytes of memory a byte of text takes at most while it is read and encoded


class Batch(NamedTuple):
    """A block's documents: one buffer of UTF-8, and where each ends in it (int64); no object per document.

    Document i is `data[ends[i - 1]:ends[i]]`; plain text, which continues in the next block, has no ends. `n_records`
    lines, rows or documents of about `n_bytes` were read, skipped ones included.
    """

    data: bytes | memoryview
    ends: Ends
    n_bytes: int
    n_records: int
    changes: Changes


def batch_of(texts: Sequence[str], n_bytes: int, n_records: int, changes: Changes) -> Batch:
    """Make a batch of texts that are `str`; lone surrogates become U+FFFD, as in tiktoken."""
    return Batch(*join_texts(texts), n_bytes, n_records, changes)


@dataclass(frozen=True)
class Source(ABC):
    """One input of one format, which travels with every block.

    `number` is its index in the run, and `first` that of the first input of its corpus (validation, then training).
    `block_bytes` is about how much text a block holds. `network` reads remote inputs.
    """

    unit: ClassVar[str]
    """What messages call a record: line, row, document, or "" for plain text."""

    number: int
    input: Input
    options: ReadOptions
    block_bytes: int = BLOCK_BYTES
    network: Network = field(default_factory=Network, repr=False, kw_only=True)
    first: int = field(default=0, kw_only=True)

    @abstractmethod
    def iter_blocks(self, start: int = 0) -> Iterator[Block]:
        """Yield the blocks from position `start` (a byte offset; for parquet a row) to the end."""

    @abstractmethod
    def read(self, block: Block) -> Batch:
        """Read one block.

        Raises `RecordError` for a record that cannot be used, `GrownError` for a block of parquet to be cut again.
        """

    @abstractmethod
    def sample(self, n: int) -> list[Block]:
        """Return up to `n` small blocks spread over the input, for estimates; none if it can be read only once."""

    def text_bytes(self) -> int:
        """Return about how many bytes of text the input has, counted as in `Block.n_bytes`: by default its size."""
        return self.input.size


@dataclass(frozen=True)
class Block:
    """Where some text is: `start` and `stop` are byte offsets in the file, or rows of a parquet file.

    `n_bytes` is about how much text that is, `n_input_bytes` how much of the file. `split` is set if the offset alone
    decides it (plain text), `joins` if an end-of-text id comes before the block, `is_hard_cut` if the cut at its end
    may change ids. `val_end` is where the validation split of a plain-text stream ends (a byte offset; else 0).
    """

    source: Source
    start: int
    stop: int
    n_bytes: int
    n_input_bytes: int
    split: str | None = None
    joins: bool = False
    is_hard_cut: bool = False
    val_end: int = 0
    data: Any = field(default=None, repr=False)

    def read(self) -> Batch:
        """Read the documents; called in the worker."""
        return self.source.read(self)
