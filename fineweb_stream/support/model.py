"""Data that every stage uses: an input, how its records become texts, and how they were changed."""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .redact import shown
from .shell import as_word

STDIN = "-"  # the name of standard input among the inputs
STDIN_SHOWN = "standard input"  # its name in messages


@dataclass(frozen=True)
class Input:
    """One file: its path, format (`text`, `jsonl`, `parquet`), size in bytes, and a fingerprint that reveals changes.

    A stream can only be read in order, and its `size` is not the length of its text (0 if unknown); `compression` is
    the suffix of its compression, such as `.gz`, or "".
    """

    path: str
    format: str
    size: int
    fingerprint: str
    is_stream: bool = False
    compression: str = ""

    @property
    def shown(self) -> str:
        """The path for messages, without a URL's secrets; standard input in words."""
        return STDIN_SHOWN if self.is_stdin else shown(self.path)

    @property
    def is_stdin(self) -> bool:
        """Whether it is standard input, which can be read only once."""
        return self.path == STDIN

    @property
    def is_remote(self) -> bool:
        """Whether it is read over a network."""
        return "://" in self.path


@dataclass(frozen=True)
class ReadOptions:
    """How records become texts. `errors` is `strict`, `replace` or `ignore`, as for `bytes.decode`.

    The memory budget has room for documents of up to `max_document_bytes` (None: of any size) and for compressed files
    with a window of up to `max_window_bytes`. `cuts` names the tokenizer's rule for where a text may be cut.
    """

    text_column: str = "text"
    separator: bytes | None = None
    errors: str = "strict"
    skip_bad: bool = False
    max_document_bytes: int | None = None
    cuts: str = "gpt2"
    max_window_bytes: int = sys.maxsize

    @property
    def text_columns(self) -> list[str]:
        """The names in `text_column`: the first that a file has as a column, or a record as a field, is its text."""
        return split_names(self.text_column)


def split_names(text_column: str) -> list[str]:
    """Return the names in `--text-column`; the whole comes first, because a name may contain a comma.

    >>> split_names("text"), split_names("text, body")
    (['text'], ['text, body', 'text', 'body'])
    """
    parts = [part.strip() for part in text_column.split(",")]
    return [text_column] if len(parts) == 1 else [text_column, *parts]


def join_names(first: str, then: str) -> str:
    """Return the union of two comma-separated lists of names.

    >>> join_names("body", "text"), join_names("text,body", "text")
    ('body,text', 'text,body')
    """
    names = [part.strip() for name in (first, then) for part in name.split(",")]
    return first if first == then else ",".join(dict.fromkeys(names))


def name_hint(text_column: str, others: Sequence[str], what: str, is_first: bool) -> str:
    """Return what to type to name the text among `others`; unless it `is_first`, the present names stay in use.

    >>> name_hint("text", ["body"], "fields of text", is_first=True)
    '--text-column body (fields of text: body)'
    >>> name_hint("text", ["body", "id"], "fields of text", is_first=False)
    '--text-column text,NAME takes the first that exists (fields of text: body, id)'
    >>> name_hint("text", ["-t"], "fields of text", is_first=True)
    '--text-column=-t (fields of text: -t)'
    """
    name, among = others[0] if len(others) == 1 else "NAME", f"({what}: {', '.join(others)})"
    if not others:
        return f"there are no {what}: name other files"
    column = as_word(name if is_first else f"{text_column},{name}")
    option = f"--text-column={column}" if column.startswith("-") else f"--text-column {column}"
    return f"{option} {among}" if is_first else f"{option} takes the first that exists {among}"


class Change(NamedTuple):
    """`n` records that were skipped, or text that was altered; `record`, the first, counts from the block's first."""

    record: int
    byte: int | None
    kind: str
    detail: str
    n: int = 1


class Changes:
    """The changes of one block, in order, in little memory: text full of invalid bytes has half a million.

    >>> changes = Changes([Change(0, 5, "skipped", "not JSON")])
    >>> changes.append(Change(7, 90, "skipped", "not JSON"))
    >>> len(changes), [change.record for change in changes]
    (2, [0, 7])

    Fewer than PACKED of them, the last, are objects; earlier ones are compressed to a few bytes each.
    """

    PACKED = 1024

    def __init__(self, changes: Iterable[Change] = ()) -> None:
        self._packed: list[bytes] = []
        self._last: list[Change] = []
        self.extend(changes)

    def __len__(self) -> int:
        return len(self._packed) * self.PACKED + len(self._last)

    def __iter__(self) -> Iterator[Change]:
        for packed in self._packed:
            yield from (Change(*change) for change in json.loads(zlib.decompress(packed)))
        yield from self._last

    def append(self, change: Change) -> None:
        """Add a change at the end."""
        self._last.append(change)
        if len(self._last) == self.PACKED:
            self._packed.append(zlib.compress(json.dumps(self._last).encode(), 1))
            self._last = []

    def extend(self, changes: Iterable[Change]) -> None:
        """Add several changes at the end."""
        for change in changes:
            self.append(change)
