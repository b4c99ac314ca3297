"""The settings of a run, and which of them must stay the same for the run to be resumed."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from ..output.layouts import EOT_PLACES, LAYOUTS, NAMES, NANOGPT, TYPED_LAYOUTS, Fit, Layout, get_layout
from ..output.manifest import settings_of
from ..support.errors import InputError
from ..support.model import ReadOptions, split_names
from ..support.units import parse_flag, parse_share, parse_size, parse_whole, read_as
from ..tokenizer.gpt2 import GPT2
from ..tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from .budget import MemoryPlan

FORMATS = ("text", "jsonl", "parquet")

VAL_PLACES = ("start", "end")  # where the validation split of plain text can be

DEFAULT_VAL_RATIO = 0.0005

MAX_SEPARATOR = 1000  # how many characters a separator may have: to search for it takes their square

_PARSERS: dict[str, Callable[[Any], float | bool]] = {
    "val_ratio": parse_share, "val_tokens": parse_size, "shard_tokens": parse_size, "max_tokens": parse_size,
    "seed": parse_whole, "keep_shards": parse_flag, "shuffle": parse_flag, "skip_bad": parse_flag,
}  # fmt: skip


def layout_named(layout: str, names: str | None) -> str:
    """Return the name of the layout that `--layout` and `--names` choose together.

    >>> layout_named("llmc", "fineweb"), layout_named("npy", None)
    ('llmc-fineweb', 'npy')

    Raises `InputError` for names that the layout does not have.
    """
    named = layout if names is None else f"{layout}-{names}"
    if names is not None and named not in LAYOUTS:
        raise InputError(
            f"names={names!r}: the layout {layout!r} has no such names", f"try --layout llmc --names {NAMES[0]}"
        )
    return named


def parse_separator(text: str) -> str:
    """Decode the escapes in a separator that was typed in a shell: `\\\\n` is a newline.

    >>> parse_separator(r"\\n\\n")
    '\\n\\n'

    Raises `InputError` for an invalid escape.
    """
    try:
        return codecs.escape_decode(text.encode())[0].decode()
    except ValueError as error:
        raise InputError(f"--separator {text!r}: {error}", r"write it like '\n\n' or '<|endoftext|>'") from None


def is_unicode(text: str) -> bool:
    """Tell whether a text can be UTF-8: no lone surrogate, which also stands for bytes of a command that are not."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def parse_fit(text: Any) -> Fit:
    """Parse the value of `--for`.

    >>> parse_fit("64x1024x8"), str(parse_fit("12 × 1024"))
    (Fit(batch=64, block=1024, ranks=8), '12x1024')

    Raises `InputError` for anything else.
    """
    text = re.sub(r"[\s,_]", "", text) if isinstance(text, str) else ""
    match = re.fullmatch(r"(\d+)[x×*](\d+)(?:[x×*](\d+))?", text, re.IGNORECASE)
    numbers = [int(number) for number in match.groups("1")] if match else [0]
    if 0 in numbers:
        raise InputError("not a batch", "write it like 64x1024x8: sequences, tokens of each, and processes if several")
    return Fit(*numbers)


@dataclass(frozen=True)
class Settings:
    """The settings of a run: what it writes, how it treats bad input, how it encodes, and the trainer's batch (`fit`).

    The first `val_files` inputs are the validation split; with 0, the split is taken from all inputs.

    Raises `InputError` for values that make no sense.
    """

    val_ratio: float = DEFAULT_VAL_RATIO
    val_tokens: int | None = None
    shard_tokens: int = None  # type: ignore[assignment]  # default: the layout's
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
    eot: str = "after"
    shuffle: bool = False
    tokenizer: Tokenizer = GPT2
    val_files: int = 0
    val_at: str = "start"

    def __post_init__(self) -> None:
        self._check_strings()
        if self.shard_tokens is None:
            object.__setattr__(self, "shard_tokens", LAYOUTS.get(self.layout, NANOGPT).shard_tokens)
        for name, parse in _PARSERS.items():
            if getattr(self, name) is not None or name not in ("val_tokens", "max_tokens"):
                object.__setattr__(self, name, read_as(name, getattr(self, name), parse))
        self.tokenizer.check_engine(self.engine)
        self._check_choices()
        if self.fit is not None:
            read_as("fit", self.fit, parse_fit)
        self._check_sizes()
        if not self.file_layout.is_merged:
            object.__setattr__(self, "keep_shards", True)  # whatever was given: the shards are the result

    def _check_strings(self) -> None:
        for name in ("text_column", "separator", "errors", "engine", "layout", "eot", "val_at"):
            value = getattr(self, name)
            if not isinstance(value, str) and not (name == "separator" and value is None):
                raise InputError(f"{name}={value!r}: not a string", f"write it like {name}='...'")
            if not is_unicode(value or ""):
                raise InputError(
                    f"{name}={value!r}: half of a character, or bytes that are not UTF-8", "write all of it"
                )
        if not all(split_names(self.text_column)):
            raise InputError(f"text_column={self.text_column!r}: an empty name", "write it like text or text,content")
        if self.separator is not None and not self.separator:
            raise InputError("separator is empty", r"write it like '\n\n', or leave it out for one long text")
        if len(self.separator or "") > MAX_SEPARATOR:
            raise InputError(f"separator has {len(self.separator or ''):,} characters", f"at most {MAX_SEPARATOR:,}")
        if self.errors not in ("strict", "replace", "ignore"):
            raise InputError(f"errors={self.errors!r}: must be strict, replace or ignore", "strict stops at the first")

    def _check_choices(self) -> None:
        if self.layout not in LAYOUTS:
            raise InputError(f"no such layout: {self.layout!r}", f"the layouts are {', '.join(TYPED_LAYOUTS)}")
        if self.eot not in EOT_PLACES:
            raise InputError(f"eot={self.eot!r}: no such place", ", ".join(EOT_PLACES))
        if self.val_at not in VAL_PLACES:
            raise InputError(f"val_at={self.val_at!r}: no such place", " or ".join(VAL_PLACES))

    def _check_sizes(self) -> None:
        for name in ("val_tokens", "max_tokens"):
            if self.val_at == "end" and getattr(self, name) is not None:
                option = name.replace("_", "-")
                raise InputError(
                    f"--val-at end and --{option}: the end is a share of the whole text", f"leave out --{option}"
                )
        layout = self.file_layout
        for option, n in (("shard_tokens", self.shard_tokens), ("val_tokens", self.val_tokens or 0)):
            if n > layout.max_tokens:
                raise InputError(
                    f"{option}={n:,}: a file of --layout {layout.name} has at most {layout.max_tokens:,} tokens",
                    "try 100M",
                )

    def read_options(self, plan: MemoryPlan) -> ReadOptions:
        """Return the options that sources need, with the memory plan's limits."""
        return ReadOptions(
            text_column=self.text_column,
            separator=None if self.separator is None else self.separator.encode(),
            errors=self.errors,
            skip_bad=self.skip_bad,
            max_document_bytes=plan.max_document_bytes,
            cuts=self.tokenizer.cuts.name,
            max_window_bytes=plan.max_window_bytes,
        )

    @property
    def file_layout(self) -> Layout:
        """The layout, with the id width of the tokenizer."""
        return get_layout(self.layout, self.tokenizer.dtype.itemsize)

    @property
    def batch(self) -> Fit:
        """The trainer's batch: `fit`, or the default of the layout's reader."""
        return parse_fit(self.fit) if self.fit else self.file_layout.default_batch

    @property
    def least_tokens(self) -> int:
        """The fewest tokens per file that the layout's reader can use."""
        return self.file_layout.least_tokens(self.batch)

    @property
    def val_share(self) -> float | None:
        """The share of the text that is validation; None if `val_tokens` or files of their own decide how much is."""
        return self.val_ratio if self.val_tokens is None and not self.val_files else None

    @property
    def eot_per_document(self) -> int:
        """How many end-of-text ids a document has."""
        return 2 if self.eot == "both" else 1

    @property
    def has_shards(self) -> bool:
        """Whether train is written in shards: they stay, or are shuffled. Else it is written as one file at once."""
        return self.keep_shards or self.shuffle

    def fixed(self) -> dict[str, Any]:
        """Return the settings that are compared when a run is resumed: a changed one would change the result."""
        free = ("errors", "engine", "max_tokens", "skip_bad", "fit", "tokenizer")
        fixed = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in free}
        fixed["shard_tokens"] = self.shard_tokens if self.has_shards else None
        return fixed | settings_of(self.tokenizer)
