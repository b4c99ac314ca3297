"""What every stage knows: an input, how its records become texts, and what was changed on the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .redact import shown

STDIN = "-"
"""What standard input is called among the inputs."""


@dataclass(frozen=True)
class Input:
    """One file: its path, format (`text`, `jsonl`, `parquet`), size in bytes and a fingerprint that tells a change.

    A stream can only be read in order, and its `size` is not the length of its text (0 where unknown); `compression` is
    the suffix that says how it is packed.
    """

    path: str
    format: str
    size: int
    fingerprint: str
    is_stream: bool = False
    compression: str = ""

    @property
    def shown(self) -> str:
        """The path for messages: a URL's secrets are not in it."""
        return shown(self.path)

    @property
    def is_stdin(self) -> bool:
        """Whether it is standard input, which can be read once."""
        return self.path == STDIN

    @property
    def is_remote(self) -> bool:
        """Whether it lies behind a network."""
        return "://" in self.path


@dataclass(frozen=True)
class ReadOptions:
    """How records become texts. `errors` is `strict`, `replace` or `ignore`, as for `bytes.decode`.

    A document of more than `max_document_bytes` is one that the memory budget has no room for.
    """

    text_column: str = "text"
    separator: bytes | None = None
    errors: str = "strict"
    skip_bad: bool = False
    max_document_bytes: int | None = None


class Change(NamedTuple):
    """One record that was skipped, or text that was altered; `record` counts from the block's first."""

    record: int
    byte: int | None
    kind: str
    detail: str
