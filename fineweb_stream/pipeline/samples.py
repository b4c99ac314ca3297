"""Encode samples spread over the inputs: how many tokens and documents they will come to."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from ..inputs.blocks import Block, Source
from ..inputs.parquet import Parquet
from ..inputs.sources import N_REMOTE_SAMPLES, spread
from ..inputs.storage import unpacked_bytes
from ..inputs.text import PlainText
from ..support.cancel import NEVER, Cancel
from ..support.errors import InputError, RecordError
from ..tokenizer.gpt2 import GPT2
from ..tokenizer.tokenizer import Tokenizer
from .settings import Settings
from .worker import Encoded, encode_block, locate_error

N_SAMPLES = 64

MAX_REPEATED = 1.5
"""How many times what a parquet file's text column holds its text may be, before its estimate is called rough."""


@dataclass(frozen=True)
class Sampled:
    """What the inputs hold, extrapolated from encoded samples.

    `spread` is the relative error of `n_tokens` (0.03 for 3%); `bytes_per_second` is the speed of one thread in bytes
    of text. `val_tokens` of the `n_tokens` are in separate validation files; None if there are none.
    """

    n_tokens: int
    bytes_per_token: float
    spread: float
    bytes_per_second: float
    has_documents: bool
    is_rough: bool = False  # the size of the text is a guess
    val_tokens: int | None = None
    n_documents: int = 0
    has_eot_in_text: bool = False

    def splits(self, settings: Settings) -> tuple[int, int]:
        """Return the expected tokens of train and val; `--max-tokens` may end a run before all of val is reached."""
        first = self.n_tokens // max(self.n_documents, 1) if self.has_documents else 0  # always in val
        val = min(settings.val_tokens or int(self.n_tokens * settings.val_ratio) + first, self.n_tokens)
        val = val if self.val_tokens is None else self.val_tokens
        train = self.n_tokens - val
        if settings.max_tokens is None or train <= settings.max_tokens:
            return train, val
        if settings.val_tokens is None and self.val_tokens is None and self.has_documents:
            val = int((val - first) * settings.max_tokens / train) + first
        return settings.max_tokens, val


def sample(
    sources: Sequence[Source],
    engine: str,
    is_strict: bool = False,
    cancel: Cancel = NEVER,
    tokenizer: Tokenizer = GPT2,
    n_val: int = 0,
) -> Sampled | None:
    """Encode samples spread over the inputs; return None if their length is unknown (a pipe).

    The first `n_val` sources are validation, and are estimated separately.

    With `is_strict`, raises `InputError` for input that cannot be used, as the run itself would.
    """
    n_samples = N_REMOTE_SAMPLES if any(source.input.is_remote for source in sources) else N_SAMPLES
    groups = [_Group(part, n_samples, is_strict) for part in (sources[:n_val], sources[n_val:]) if part]
    encode = functools.partial(encode_block, engine=engine, cancel=cancel, is_checked=False, tokenizer=tokenizer)
    for group in groups:
        group.encode(encode)
    if not all(group.n_tokens for group in groups) or any(source.input.is_stdin for source in sources):
        return None
    ratios = [ratio for group in groups for ratio in group.ratios]
    unseen = sum(group.unseen_bytes for group in groups) / max(sum(source.input.size for source in sources), 1)
    rates = [rate for group in groups for rate in group.rates]
    is_whole = all(group.is_whole() for group in groups)
    n_tokens = [group.expected_tokens() for group in groups]
    return Sampled(
        n_tokens=sum(n_tokens),
        bytes_per_token=sum(group.n_text for group in groups) / sum(group.n_tokens for group in groups),
        spread=0.0 if is_whole else _half_interval(ratios) + 2 * unseen,
        bytes_per_second=sorted(rates)[len(rates) // 2],
        has_documents=bool(sources[0].unit),
        is_rough=not is_whole and any(group.is_rough() for group in groups),
        val_tokens=n_tokens[0] if n_val else None,
        n_documents=sum(group.expected_documents() for group in groups),
        has_eot_in_text=any(group.has_eot_in_text for group in groups),
    )


def _half_interval(values: Sequence[float]) -> float:
    """Return half of a mean's 95% confidence interval, relative to the mean (Student's t, to 2% from 4 values on)."""
    n = len(values) - 1
    if not n:
        return 0.0
    quantile = 1.96 + 2.5 / n + 8 / n**3
    return float(quantile * np.std(values, ddof=1) / np.mean(values) / len(values) ** 0.5)


def _unseen_bytes(source: Source, blocks: list[Block], n: int) -> float:
    """Return how many bytes are in those of `n` equal parts of a file that no sample touches, in long documents."""
    size = source.input.size
    if isinstance(source, Parquet) or source.input.compression:
        return 0.0
    seen = {part for block in blocks for part in range(block.start * n // size, -(-block.stop * n // size))}
    return size * (1 - len(seen) / n)


class _Group:
    """Sources, samples of them, and the estimates derived from these."""

    def __init__(self, sources: Sequence[Source], n_samples: int, is_strict: bool) -> None:
        self._sources = sources
        self._is_strict = is_strict
        self._chosen = [s for s in spread(sources, n_samples) if not s.input.is_stream or s.input.compression]
        self._n_each = n_each = max(n_samples // max(len(self._chosen), 1), 1)
        take = functools.partial(_take_samples, n=n_each, is_strict=is_strict)  # the engine is still loading
        with ThreadPoolExecutor(n_samples) as pool:  # a remote file takes several requests
            is_remote = any(source.input.is_remote for source in self._chosen)
            self._samples = list(pool.map(take, self._chosen) if is_remote else map(take, self._chosen))
        self.ratios: list[float] = []
        self.rates: list[float] = []
        self.n_text = self.n_tokens = self.unseen_bytes = 0.0
        self.has_eot_in_text = False
        self._size = self._text_bytes = self._expected = self._documents = 0.0

    def encode(self, encode: Callable[[Block], Encoded | None]) -> None:
        """Encode the samples. Raises `InputError` as `sample` does."""
        for source, blocks in zip(self._chosen, self._samples, strict=True):
            tokens = n_bytes = documents = 0
            if not blocks and _is_skipped(source):
                self._size += source.input.size  # known to add nothing
            self.unseen_bytes += _unseen_bytes(source, blocks, self._n_each)
            for block in blocks:
                if not self.rates:  # the very first call is slow, so it is not timed
                    _encode_sample(block, encode, self._is_strict)
                start = time.perf_counter()
                encoded = _encode_sample(block, encode, self._is_strict)
                if encoded is None:
                    continue
                self.rates.append(block.n_bytes / (time.perf_counter() - start))
                tokens += len(encoded.ids)
                documents += len(encoded.ends)
                self.has_eot_in_text |= encoded.n_eot_in_text > 0
                n_bytes += block.n_bytes
                self.ratios.append(len(encoded.ids) / max(block.n_bytes, 1))
            if n_bytes:
                self.n_text, self.n_tokens = self.n_text + n_bytes, self.n_tokens + tokens
                is_packed = source.input.compression
                text_bytes = (unpacked_bytes(source, self._is_strict) or n_bytes) if is_packed else source.text_bytes()
                self._size += source.input.size
                self._text_bytes += text_bytes
                self._expected += text_bytes * tokens / n_bytes
                self._documents += (
                    source.footer.n_rows if isinstance(source, Parquet) else text_bytes * documents / n_bytes
                )

    def is_whole(self) -> bool:
        """Tell whether the samples are all of the text, so that nothing is extrapolated."""
        return len(self._chosen) == len(self._sources) and self.n_text >= self._text_bytes

    def is_rough(self) -> bool:
        """Tell whether the size of a text is a guess: of a compressed file, or by a dictionary's mean value."""
        return any(source.input.is_stream or _is_repeating(source) for source in self._chosen)

    def expected_tokens(self) -> int:
        """Return how many tokens the sources have, with the end-of-text ids between plain texts."""
        n_joins = sum(one.n_joins for one in self._sources if isinstance(one, PlainText) and one.input.size > 0)
        return int(self._expected * self._share()) + n_joins

    def expected_documents(self) -> int:
        """Return how many documents the sources have."""
        return round(self._documents * self._share())

    def _share(self) -> float:
        """Return the size of all sources relative to that of the sampled ones."""
        return sum(source.input.size for source in self._sources) / self._size


def _take_samples(source: Source, n: int, is_strict: bool) -> list[Block]:
    try:
        return source.sample(n)
    except InputError:
        if is_strict:
            raise
        return []  # the run reports it when it gets there, and saves everything before it


def _is_repeating(source: Source) -> bool:
    """Tell whether much of a parquet file's text is values of its dictionaries, once more."""
    with contextlib.suppress(InputError):
        return isinstance(source, Parquet) and source.text_bytes() > MAX_REPEATED * source.footer.n_bytes
    return False


def _is_skipped(source: Source) -> bool:
    with contextlib.suppress(InputError):
        return isinstance(source, Parquet) and source.footer.skipped is not None
    return False


def _encode_sample(block: Block, encode: Callable[[Block], Encoded | None], is_strict: bool) -> Encoded | None:
    try:
        return encode(block)
    except RecordError as error:
        if not is_strict:  # the run reports it if it gets there
            return None
        raise locate_error(block, error) from None
