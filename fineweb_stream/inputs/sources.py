"""Inputs -> sources of blocks, one module a format."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..support.errors import InputError
from ..support.model import Input, ReadOptions
from .blocks import Source
from .demo import Demo
from .jsonl import JsonLines
from .parquet import Parquet, check_parquet
from .separated import SeparatedText
from .text import PlainText


def make_sources(
    inputs: Sequence[Input], options: ReadOptions, val_ratio: float | None = None, n_val: int = 0
) -> list[Source]:
    """Return a source for each input, in order; the first `n_val` are a corpus of their own, the validation split.

    The first `val_ratio` of plain text is its validation split; with None that is decided elsewhere.

    Raises `InputError` when plain text is mixed with documents, or a parquet file has no text column.
    """
    plain = [input for input in inputs if input.format == "text" and options.separator is None]
    if plain and len(plain) < len(inputs):
        other = next(input for input in inputs if input not in plain)
        raise InputError(
            f"{plain[0].shown} is one long text, {other.shown} holds documents: they split differently",
            r"make documents of the text with --separator '\n\n' (or what stands between them), or run them apart",
        )
    if plain:
        return _plain_sources(inputs, options, val_ratio, n_val)
    sources: list[Source] = []
    for number, input in enumerate(inputs):
        if input.format == "demo":
            sources.append(Demo(number, input, options))
        elif input.format == "jsonl":
            sources.append(JsonLines(number, input, options))
        elif input.format == "parquet":
            parquet = Parquet(number, input, options)
            if not any(isinstance(source, Parquet) for source in sources):
                check_parquet(parquet)  # the others' turn comes: opening thousands would take its time
            sources.append(parquet)
        else:
            sources.append(SeparatedText(number, input, options))
    return sources


def _plain_sources(inputs: Sequence[Input], options: ReadOptions, val_ratio: float | None, n_val: int) -> list[Source]:
    """The validation split is the first `val_ratio` of all bytes, which may end in any of the files."""
    sources: list[Source] = []
    remaining = math.ceil((val_ratio or 0) * sum(input.size for input in inputs))
    has_text = False
    for number, input in enumerate(inputs):
        has_text = has_text and number != n_val  # nothing stands before the first of train
        ratio = val_ratio if input.is_stream else None
        val_bytes = min(remaining, input.size)
        sources.append(PlainText(number, input, options, val_bytes, ratio, has_text))
        remaining -= min(remaining, input.size)
        has_text = has_text or input.is_stream or input.size > 0
    return sources
