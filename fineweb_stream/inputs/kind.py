"""A kind of file that is not a corpus, and parts of the commands that make text of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

HEAD_BYTES = 32 << 10  # how much of an input's content is looked at (bytes)
OPENED = "open(0, newline='', encoding='utf-8-sig')"  # standard input in a Python command


class Foreign(NamedTuple):
    """A kind of file, the command that makes text of it, and the suffix of the new file.

    The command reads standard input and writes standard output, or contains `{path}` and `{new}`. Without one, `hint`
    says what to do. `is_text`: it could be read as it is. `promise` is what the command does, by default by the suffix.
    """

    kind: str
    command: str = ""
    suffix: str = ".txt"
    hint: str = "name text, jsonl or parquet files"
    is_text: bool = False
    promise: str = ""


def first_match(kinds: Iterable[tuple[bytes, Foreign]], data: bytes) -> Foreign | None:
    """Return the kind of the first pattern that matches the beginning of `data`."""
    return next((kind for pattern, kind in kinds if re.match(pattern, data, re.DOTALL)), None)
