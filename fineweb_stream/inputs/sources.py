"""Inputs -> sources of blocks, one module a format."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..pipeline.settings import Settings
from ..support.errors import InputError
from ..support.model import Input, ReadOptions
from .blocks import Source
from .demo import Demo
from .jsonl import JsonLines
from .parquet import Parquet, check_parquet
from .separated import SeparatedText
from .text import PlainText


def make_sources(inputs: Sequence[Input], settings: Settings, max_document_bytes: int | None = None) -> list[Source]:
    """Return a source for each input, in order; a larger document is named, or skipped.

    Raises `InputError` when plain text is mixed with documents, or a parquet file has no text column.
    """
    options = settings.read_options(max_document_bytes)
    plain = [input for input in inputs if input.format == "text" and settings.separator is None]
    if plain and len(plain) < len(inputs):
        other = next(input for input in inputs if input not in plain)
        raise InputError(
            f"{plain[0].shown} is one long text, {other.shown} holds documents: they split differently",
            r"make documents of the text with --separator '\n\n' (or what stands between them), or run them apart",
        )
    if plain:
        return _plain_sources(inputs, settings, options)
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


def _plain_sources(inputs: Sequence[Input], settings: Settings, options: ReadOptions) -> list[Source]:
    """The validation split is the first `val_ratio` of all bytes, which may end in any of the files."""
    sources: list[Source] = []
    remaining = math.ceil(settings.val_ratio * sum(input.size for input in inputs))
    if settings.val_tokens is not None:
        remaining = 0  # counted in tokens, by the splitter
    has_text = False
    for number, input in enumerate(inputs):
        ratio = settings.val_ratio if input.is_stream and settings.val_tokens is None else None
        val_bytes = min(remaining, input.size)
        sources.append(PlainText(number, input, options, val_bytes, ratio, has_text))
        remaining -= min(remaining, input.size)
        has_text = has_text or input.is_stream or input.size > 0
    return sources
