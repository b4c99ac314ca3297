"""What a run is told, and which of it must stay the same for a run to continue."""

from __future__ import annotations

import codecs
from dataclasses import asdict, dataclass
from typing import Any

from ..output.layouts import LAYOUTS, NANOGPT
from ..support.errors import InputError
from ..support.model import ReadOptions
from ..tokenizer.tokenizer import ENGINES, unknown_engine

FORMATS = ("text", "jsonl", "parquet")

DEFAULT_VAL_RATIO = 0.0005


def parse_separator(text: str) -> str:
    """Understand the escapes of a separator as a shell hands them over: `\\\\n` is a newline.

    >>> parse_separator(r"\\n\\n")
    '\\n\\n'
    """
    try:
        return codecs.escape_decode(text.encode())[0].decode()
    except ValueError as error:
        raise InputError(f"--separator {text!r}: {error}", r"write it like '\\n\\n' or '<|endoftext|>'") from None


@dataclass(frozen=True)
class Settings:
    """The parameters of a run that decide its bytes, how it reads what is bad, and what the files must fit (`fit`).

    `shard_tokens` of 0 is what the layout's reader is used to.

    Raises `InputError` for values that make no sense.
    """

    val_ratio: float = DEFAULT_VAL_RATIO
    val_tokens: int | None = None
    shard_tokens: int = 0
    text_column: str = "text"
    separator: str | None = None
    seed: int = 0
    errors: str = "strict"
    skip_bad: bool = False
    keep_shards: bool = False
    engine: str = "auto"
    max_tokens: int | None = None
    layout: str = NANOGPT.name
    fit: str | None = None

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise InputError(f"no such layout: {self.layout!r}", f"the layouts are {', '.join(LAYOUTS)}")
        layout = LAYOUTS[self.layout]
        if self.shard_tokens == 0:
            object.__setattr__(self, "shard_tokens", layout.shard_tokens)
        if not 0 < self.val_ratio < 1:
            raise InputError(f"--val-ratio {self.val_ratio}: must be more than 0 and less than 1", "try 0.0005")
        if self.shard_tokens < 1:
            raise InputError(f"--shard-tokens {self.shard_tokens}: must be at least 1", "try 500M")
        if self.val_tokens is not None and self.val_tokens < 1:
            raise InputError(f"--val-tokens {self.val_tokens}: must be at least 1", "try 1M")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise InputError(f"--max-tokens {self.max_tokens}: must be at least 1", "try 1B")
        if self.separator is not None and not self.separator:
            raise InputError("--separator is empty", r"write it like '\\n\\n', or leave it out for one long text")
        if self.errors not in ("strict", "replace", "ignore"):
            raise InputError(f"--errors {self.errors}: no such way", "strict, replace or ignore")
        if self.engine not in ENGINES:
            raise unknown_engine(self.engine)
        for option, n in (("--shard-tokens", self.shard_tokens), ("--val-tokens", self.val_tokens or 0)):
            if n > layout.max_tokens:
                raise InputError(
                    f"{option} {n:,}: a file of --layout {layout.name} has at most {layout.max_tokens:,} tokens",
                    "try 100M",
                )
        if not layout.is_merged:
            object.__setattr__(self, "keep_shards", True)  # given or not: they are the result

    def read_options(self, max_document_bytes: int | None) -> ReadOptions:
        """The part that sources need, and what the memory budget has room for."""
        separator = None if self.separator is None else self.separator.encode()
        return ReadOptions(self.text_column, separator, self.errors, self.skip_bad, max_document_bytes)

    @property
    def val_share(self) -> float | None:
        """Which share is validation; None where `val_tokens` says how much."""
        return self.val_ratio if self.val_tokens is None else None

    def fixed(self) -> dict[str, Any]:
        """The part that an interrupted run cannot change: it would be another result."""
        free = ("errors", "engine", "max_tokens", "skip_bad", "fit")
        return {name: value for name, value in asdict(self).items() if name not in free}
