"""What passes between the stages: a block says where some MiB of input are, and reads them where it is told to.

A block is small and picklable: it is read in the worker, a thread here or a process elsewhere. Only a block of a stream
that cannot be read twice (a pipe, a compressed file) carries its data.
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

BLOCK_BYTES = 1 << 20
"""About how much text a block holds. Fixed: one document is the least, whatever its length."""

TEXT_COST = 5
"""How many bytes a byte of text takes at most while it is read and encoded."""


class Batch(NamedTuple):
    """What a block holds: one buffer of UTF-8 and where each document ends in it (int64), so no object for each.

    Document i is `data[ends[i - 1]:ends[i]]`; plain text has no ends, for it goes on. `n_records` lines, rows or
    documents were read, skipped ones included, out of about `n_bytes`.
    """

    data: bytes | memoryview
    ends: Ends
    n_bytes: int
    n_records: int
    changes: Changes

    @property
    def texts(self) -> list[str]:
        """The documents as `str`: for errors, scripts and tests.

        >>> batch_of(["one", "zwölf"], 9, 2, Changes()).texts
        ['one', 'zwölf']
        """
        ends = self.ends.tolist() or [len(self.data)][: len(self.data)]
        return [str(self.data[start:end], "utf-8") for start, end in zip([0, *ends], ends, strict=False)]


def batch_of(texts: Sequence[str], n_bytes: int, n_records: int, changes: Changes) -> Batch:
    """Make a batch of texts that are `str` already; lone surrogates become U+FFFD, as in tiktoken."""
    return Batch(*join_texts(texts), n_bytes, n_records, changes)


@dataclass(frozen=True)
class Source(ABC):
    """One input of one format, the `number`th of the run, of those that begin with the `first`: all, or all but val's.

    It travels with every block. `block_bytes` is about how much text a block holds. What is not here is read by the
    `network`.
    """

    unit: ClassVar[str]
    """What a record is called in messages: line, row, document, or "" for plain text."""

    number: int
    input: Input
    options: ReadOptions
    block_bytes: int = BLOCK_BYTES
    network: Network = field(default_factory=Network, repr=False, kw_only=True)
    first: int = field(default=0, kw_only=True)

    @abstractmethod
    def iter_blocks(self, start: int = 0) -> Iterator[Block]:
        """Yield the blocks from position `start` (a byte; for parquet a row) to the end."""

    @abstractmethod
    def read(self, block: Block) -> Batch:
        """Read one block; `RecordError` names a record that cannot be used.

        `GrownError` says that it is one to be cut again, as only those of parquet are.
        """

    @abstractmethod
    def sample(self, n: int) -> list[Block]:
        """Return up to `n` small blocks spread over the input, to estimate from; none for a stream."""

    def text_bytes(self) -> int:
        """Return about how many bytes of text there are, in the measure of `Block.n_bytes`: the file's size."""
        return self.input.size


@dataclass(frozen=True)
class Block:
    """Where some text is: `start` and `stop` are bytes of the file, or rows of a parquet file.

    `n_bytes` is about how much text that is, `n_input_bytes` how much of the file. `split` is set where the place alone
    decides (plain text), `joins` where an end-of-text id stands before it, `is_hard_cut` where its end may change ids,
    `val_end` where the validation split of a stream of plain text ends (bytes; 0 elsewhere).
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
        """Read the documents, in the worker."""
        return self.source.read(self)
