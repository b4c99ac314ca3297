"""Inputs -> sources of blocks, one module per format."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ..remote.network import Network
from ..support.cancel import Cancel
from ..support.errors import InputError, NoTextError
from ..support.model import Input, ReadOptions
from .blocks import Source
from .demo import Demo
from .jsonl import JsonLines
from .parquet import Parquet
from .separated import SeparatedText
from .text import PlainText

AnySource = TypeVar("AnySource", bound=Source)

FOOTER_SECONDS = 5.0  # how long the footers of parquet files are checked before a run: enough for some 2,000 files
N_REMOTE_SAMPLES = 4  # how many samples are taken of remote inputs: few, because each is fetched


def make_sources(
    inputs: Sequence[Input],
    options: ReadOptions,
    val_ratio: float | None = None,
    n_val: int = 0,
    val_at_end: bool = False,
    network: Network | None = None,
) -> list[Source]:
    """Return a source for each input, in order; the first `n_val` are a corpus of their own, the validation split.

    `network` reads remote inputs. The validation split of plain text is its first `val_ratio`, or with `val_at_end` its
    last; with None it is decided elsewhere.

    Raises `InputError` if plain text is mixed with documents, and for inputs that `val_at_end` does not support.
    """
    plain = [input for input in inputs if input.format == "text" and options.separator is None]
    if plain and len(plain) < len(inputs):
        other = next(input for input in inputs if input not in plain)
        raise InputError(
            f"{plain[0].shown} is one long text, {other.shown} holds documents: they are split differently",
            r"leave one out: name the files to read; or split the text into documents with --separator '\n\n' (or what"
            " separates them)",
        )
    if val_at_end:
        _check_has_end(inputs, is_plain=bool(plain))
    network = network or Network()
    if plain:
        return _plain_sources(inputs, options, val_ratio, n_val, val_at_end, network)
    kinds: dict[str, Any] = {"demo": Demo, "jsonl": JsonLines, "parquet": Parquet, "text": SeparatedText}
    return [
        kinds[input.format](number, input, options, network=network, first=n_val if number >= n_val else 0)
        for number, input in enumerate(inputs)
    ]


def check_first(sources: Sequence[Source]) -> None:
    """Raise `InputError` if the first parquet file is unusable.

    Meanwhile, fetch the footers of the remote ones that will be sampled, because each takes several round trips.
    """
    found = [source for source in sources if isinstance(source, Parquet)]
    pool = ThreadPoolExecutor(2 * N_REMOTE_SAMPLES)
    try:
        for source in spread(found, N_REMOTE_SAMPLES)[1:]:
            if source.input.is_remote:
                pool.submit(getattr, source, "footer")  # its errors are reported when its turn comes
        for source in found[:1]:
            _ = source.footer
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def spread(sources: Sequence[AnySource], n: int) -> Sequence[AnySource]:
    """Return evenly spread sources, the first among them: at least `n`, but fewer than `2 * n`, or all if fewer."""
    return sources[:: max(len(sources) // n, 1)]


def check_documents(sources: Sequence[Source]) -> None:
    """Raise `InputError` for the first plain text, which has no documents to shuffle."""
    for source in sources:
        if not source.unit:
            raise InputError(
                f"{source.input.shown}: plain text has no documents that --shuffle could reorder",
                r"say what separates documents, as --separator '\n\n', or leave --shuffle out",
            )


def find_without_text(sources: Sequence[Source], cancel: Cancel) -> InputError | None:
    """Return the error of the first local parquet file without a text column that is found within FOOTER_SECONDS.

    Unreadable files are ignored here: they may be repaired before their turn comes.
    """
    end = time.monotonic() + FOOTER_SECONDS
    for source in sources:
        cancel.check()
        if time.monotonic() > end:
            break
        if not isinstance(source, Parquet) or source.input.is_remote or source.options.skip_bad:
            continue
        try:
            _ = source.footer
        except NoTextError as error:
            return error
        except InputError:
            pass
    return None


def _plain_sources(
    inputs: Sequence[Input],
    options: ReadOptions,
    val_ratio: float | None,
    n_val: int,
    val_at_end: bool,
    network: Network,
) -> list[Source]:
    """Return sources whose validation split is the first or last `val_ratio` of all their bytes, across files."""
    make = functools.partial(PlainText, options=options, network=network, val_at_end=val_at_end)
    sources: list[Source] = []
    total = sum(input.size for input in inputs)
    n_val_bytes = math.ceil((val_ratio or 0) * total)
    begin, end = (total - n_val_bytes, total) if val_at_end else (0, n_val_bytes)
    start, has_text, has_then = 0, False, False
    for number, input in enumerate(inputs):
        if number == n_val:  # no text comes before the first training file
            has_text = has_then = False
        ratio = val_ratio if input.is_stream else None
        val_bytes = max(min(end - start, input.size) - max(begin - start, 0), 0)
        source = make(number, input, val_bytes=val_bytes, val_ratio=ratio, joins=has_text, joins_then=has_then)
        sources.append(source)
        start += input.size
        has_text = has_text or input.is_stream or input.size > 0
        has_then = has_then or input.is_stream or (val_bytes > 0 if val_at_end else val_bytes < input.size)
    return sources


def _check_has_end(inputs: Sequence[Input], is_plain: bool) -> None:
    """Raise `InputError` for inputs whose end cannot be the validation split."""
    if not is_plain:
        raise InputError(
            f"{inputs[0].shown} holds documents, and --val-at end is for one long text",
            "leave it out: documents are chosen from everywhere",
        )
    for input in inputs:
        if input.is_stream:
            raise InputError(
                f"{input.shown}: --val-at end needs the length of its text, which is not known in advance",
                "save or unpack it to a file and name that, or leave --val-at out",
            )
