"""Before a run: estimate from samples what it will make and what that takes."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..inputs.blocks import Block, Source
from ..inputs.parquet import Parquet
from ..inputs.sources import N_REMOTE_SAMPLES, spread
from ..inputs.storage import unpacked_bytes
from ..inputs.text import PlainText
from ..output import files
from ..output.changes import locate
from ..output.layouts import NANOGPT, UINT32_CHANGE
from ..output.merge import check_file_size
from ..output.own import TRAIN_NAME
from ..output.state import DONE, MERGING, State
from ..support.cancel import NEVER, Cancel
from ..support.errors import DiskError, InputError, RecordError
from ..support.log import log
from ..support.units import format_duration, format_size
from ..tokenizer.gpt2 import GPT2
from ..tokenizer.tokenizer import Tokenizer
from .budget import MemoryPlan
from .fetch import Link
from .fits import larger_ratio
from .settings import Settings
from .worker import Encoded, encode_block

START_SECONDS = 0.6
"""The fixed cost of a run: starting Python, imports, loading the engine, sampling and listing files."""

N_SAMPLES = 64


@dataclass(frozen=True)
class Estimate:
    """What a run would make and take, as `estimate()` finds it. All sizes are in bytes.

    The finished files will hold about `train_tokens` and `val_tokens` tokens, in `documents` documents (None for plain
    text). `spread` is the relative error of the sum of tokens at 95% confidence: 0.03 means 3%. `is_rough` means that
    some inputs are compressed files, of which only the beginning was sampled.

    `input_bytes` is the size of the files, and `text_bytes` is what is read of them: decompressed text, whole lines of
    jsonl, the text column of parquet. At its peak the run needs `disk_bytes` more on disk; `disk_free_bytes` are free.
    It encodes with `engine` in `workers` threads, within `memory_bytes` of memory. The whole run takes about `seconds`,
    fetching `network_bytes` included. For a finished run the counts are exact, and nothing is left to write.

    Fields that default to None are None if nothing can be sampled, as in a pipe.
    """

    out: Path
    input_bytes: int
    disk_free_bytes: int
    memory_bytes: int
    engine: str
    workers: int
    network_bytes: int = 0
    is_rough: bool = False
    train_tokens: int | None = None
    val_tokens: int | None = None
    documents: int | None = None
    spread: float | None = None
    text_bytes: int | None = None
    disk_bytes: int | None = None
    seconds: float | None = None


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
    is_rough: bool = False  # only beginnings of compressed files were sampled, which may not be typical
    val_tokens: int | None = None
    n_documents: int = 0

    def splits(self, settings: Settings) -> tuple[int, int]:
        """Return the expected tokens of train and val; `--max-tokens` may end a run before all of val is reached."""
        first = self.n_tokens // max(self.n_documents, 1) if self.has_documents else 0  # always in val
        val = min(settings.val_tokens or int(self.n_tokens * settings.val_ratio) + first, self.n_tokens)
        val = val if self.val_tokens is None else self.val_tokens
        train = self.n_tokens - val
        if settings.max_tokens is None or train <= settings.max_tokens:
            return train, val
        if settings.val_tokens is None and self.val_tokens is None and self.has_documents:
            val = int(val * settings.max_tokens / train)
        return settings.max_tokens, val


def sample(
    sources: Sequence[Source],
    engine: str,
    is_strict: bool = False,
    cancel: Cancel = NEVER,
    tokenizer: Tokenizer = GPT2,
    n_val: int = 0,
) -> Sampled | None:
    """Encode samples spread over the inputs; return None if nothing can be sampled (a pipe).

    The first `n_val` sources are validation, and are estimated separately.

    With `is_strict`, raises `InputError` for input that cannot be used, as the run itself would.
    """
    parts = [part for part in (sources[:n_val], sources[n_val:]) if part]
    samples = [
        _Sample(part, N_REMOTE_SAMPLES if any(s.input.is_remote for s in sources) else N_SAMPLES, is_strict)
        for part in parts
    ]
    encode = functools.partial(encode_block, engine=engine, cancel=cancel, is_checked=False, tokenizer=tokenizer)
    for sample in samples:
        sample.encode(encode, is_strict)
    if not all(sample.n_tokens for sample in samples):
        return None
    ratios = [ratio for sample in samples for ratio in sample.ratios]
    unseen = sum(sample.unseen_bytes for sample in samples) / max(sum(source.input.size for source in sources), 1)
    rates = [rate for sample in samples for rate in sample.rates]
    spread = 0.0 if all(sample.is_whole() for sample in samples) else _half_interval(ratios) + 2 * unseen
    n_tokens = [sample.expected_tokens() for sample in samples]
    return Sampled(
        sum(n_tokens),
        sum(sample.n_text for sample in samples) / sum(sample.n_tokens for sample in samples),
        spread,
        sorted(rates)[len(rates) // 2],
        bool(sources[0].unit),
        any(source.input.is_stream for source in sources),
        n_tokens[0] if n_val else None,
        sum(sample.expected_documents() for sample in samples),
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


class _Sample:
    """Samples of some sources, and the estimates derived from them."""

    def __init__(self, sources: Sequence[Source], n_samples: int, is_strict: bool) -> None:
        self._sources = sources
        self._chosen = [s for s in spread(sources, n_samples) if not s.input.is_stream or s.input.compression]
        self._n_each = n_each = max(n_samples // max(len(self._chosen), 1), 1)
        take = functools.partial(_take_samples, n=n_each, is_strict=is_strict)  # the engine is still loading
        with ThreadPoolExecutor(n_samples) as pool:  # a remote file takes several requests
            is_remote = any(source.input.is_remote for source in self._chosen)
            self._samples = list(pool.map(take, self._chosen) if is_remote else map(take, self._chosen))
        self.ratios: list[float] = []
        self.rates: list[float] = []
        self.n_text = self.n_tokens = self.unseen_bytes = 0.0
        self._size = self._text_bytes = self._expected = self._documents = 0.0

    def encode(self, encode: Callable[[Block], Encoded | None], is_strict: bool) -> None:
        """Encode the samples. Raises `InputError` as `sample` does."""
        for source, blocks in zip(self._chosen, self._samples, strict=True):
            tokens = n_bytes = documents = 0
            if not blocks and _is_skipped(source):
                self._size += source.input.size  # known to add nothing
            self.unseen_bytes += _unseen_bytes(source, blocks, self._n_each)
            for block in blocks:
                if not self.rates:  # the very first call is slow, so it is not timed
                    _encode_sample(block, encode, is_strict)
                start = time.perf_counter()
                encoded = _encode_sample(block, encode, is_strict)
                if encoded is None:
                    continue
                self.rates.append(block.n_bytes / (time.perf_counter() - start))
                tokens += len(encoded.ids)
                documents += len(encoded.ends)
                n_bytes += block.n_bytes
                self.ratios.append(len(encoded.ids) / max(block.n_bytes, 1))
            if n_bytes:
                self.n_text, self.n_tokens = self.n_text + n_bytes, self.n_tokens + tokens
                is_packed = source.input.compression
                text_bytes = (unpacked_bytes(source, is_strict) or n_bytes) if is_packed else source.text_bytes()
                self._size += source.input.size
                self._text_bytes += text_bytes
                self._expected += text_bytes * tokens / n_bytes
                self._documents += (
                    source.footer.n_rows if isinstance(source, Parquet) else text_bytes * documents / n_bytes
                )

    def is_whole(self) -> bool:
        """Tell whether the samples are all of the text, so that nothing is extrapolated."""
        return len(self._chosen) == len(self._sources) and self.n_text >= self._text_bytes

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
        is_counted = block.start == 0 or block.source.unit == "row"
        source, n_before = block.source, block.start if block.source.unit == "row" else 0
        place = locate(source.input, source.unit, error.record + n_before, error.byte)
        if not is_counted:  # the number of lines before it is unknown
            place = f"{block.source.input.shown}, byte {error.byte or block.start:,}"
        raise InputError(f"{place}: {error.message}", error.hint) from None


def disk_needed(found: Sampled, settings: Settings, state: State) -> int:
    """Return how many more bytes a run writes at its peak: the output, and what is on disk twice for a while.

    A merge needs a second copy of one shard, or of all that are kept; a shuffle needs one of all tokens. A finished run
    that is extended keeps its files until the new ones are complete.
    """
    layout, n_tokens = settings.file_layout, sum(found.splits(settings))
    shard = settings.shard_tokens * layout.id_bytes
    once = n_tokens * layout.id_bytes + layout.header_bytes * (n_tokens // settings.shard_tokens + 2)
    twice = 0 if not layout.is_merged else once if settings.keep_shards else 0 if once <= shard else shard
    n_there = state.n_tokens - state.base_shards * settings.shard_tokens
    if settings.shuffle:
        is_one_file = layout.is_merged and not settings.keep_shards
        twice = 0 if state.status == MERGING and (is_one_file or not layout.is_merged) else once
        n_there += sum(state.shuffle.get(name, 0) for name in ("train_tokens", "val_tokens"))
    if state.status == DONE and found.splits(settings)[0] > state.train_tokens:
        n_there = 0
    return max(once + twice - n_there * layout.id_bytes, 0)


def _why_unknown(sources: Sequence[Source]) -> str:
    if any(source.input.is_stdin for source in sources):
        return "a pipe"
    if any(source.input.is_stream for source in sources):
        return "compressed files"
    return "no sample of the text could be used"


def _tokenizer_lines(settings: Settings) -> list[str]:
    """Return lines on the tokenizer and what its ids require of the trainer; none for GPT-2."""
    tokenizer = settings.tokenizer
    if tokenizer is GPT2:
        return []
    end = "no end-of-text" if tokenizer.eot_id is None else f"end-of-text {tokenizer.eot_id}"
    lines = [f"tokenizer: {tokenizer.name}: {tokenizer.n_ids:,} ids, {end}, {tokenizer.dtype.name}"]
    if tokenizer.id_bytes > GPT2.id_bytes and settings.layout == NANOGPT.name:
        lines.append(f"note: {UINT32_CHANGE}")
    return lines


def make_estimate(
    sampled: Sampled | None,
    sources: Sequence[Source],
    settings: Settings,
    state: State,
    out: Path,
    plan: MemoryPlan,
    memory_bytes: int,
) -> Estimate:
    """Return the estimate that follows from the samples and the memory plan."""
    known = _known(sources, out, plan, memory_bytes)
    if sampled is None:
        return known
    train, val = sampled.splits(settings)
    text_bytes = (train + val) * sampled.bytes_per_token
    n_documents = round(sampled.n_documents * (train + val) / max(sampled.n_tokens, 1))
    return replace(
        known,
        is_rough=sampled.is_rough,
        train_tokens=train,
        val_tokens=val,
        documents=n_documents if sampled.has_documents else None,
        spread=sampled.spread,
        text_bytes=int(text_bytes),
        disk_bytes=disk_needed(sampled, settings, state),
        seconds=START_SECONDS + text_bytes / (sampled.bytes_per_second * plan.n_workers) if plan.is_local else None,
    )


def finished(state: State, sources: Sequence[Source], out: Path, plan: MemoryPlan, memory_bytes: int) -> Estimate:
    """Return what a finished run has made, as an estimate with nothing left to do."""
    return replace(
        _known(sources, out, plan, memory_bytes),
        train_tokens=state.train_tokens,
        val_tokens=state.val_tokens,
        documents=state.n_documents or None,
        spread=0.0,
        text_bytes=state.text_bytes,
        disk_bytes=0,
        seconds=0.0,
    )


def _known(sources: Sequence[Source], out: Path, plan: MemoryPlan, memory_bytes: int) -> Estimate:
    input_bytes = sum(source.input.size for source in sources)
    return Estimate(out, input_bytes, files.free_bytes(out), memory_bytes, plan.engine, plan.n_workers)


def with_link(found: Estimate, link: Link) -> Estimate:
    """Add the bytes to fetch: the run takes as long as fetching or encoding, whichever is slower."""
    return replace(found, network_bytes=link.n_bytes, seconds=found.seconds and max(found.seconds, link.seconds))


def plan_lines(sampled: Sampled | None, found: Estimate, settings: Settings, sources: Sequence[Source]) -> list[str]:
    """Return lines on the expected output, the disk space it needs and, unless a cluster encodes it, the time."""
    lines = _tokenizer_lines(settings)
    if sampled is None:
        return [*lines, f"tokens: not known before the end ({_why_unknown(sources)})"]
    layout = settings.file_layout
    train, val = sampled.splits(settings)
    time = "" if found.seconds is None else f"; time: about {format_duration(found.seconds)}"
    taken = f", {train:,} of them for train (--max-tokens)" if train == settings.max_tokens else ""
    lines += [
        f"tokens: about {sampled.n_tokens:,} (±{sampled.spread:.1%}), {sampled.bytes_per_token:.2f} bytes each{taken};"
        f" {TRAIN_NAME if layout.is_merged else 'shards'} {format_size(train * layout.id_bytes)}, {layout.val_name}"
        f" {format_size(val * layout.id_bytes)}",
        f"disk: {format_size(found.disk_bytes or 0)} needed at the peak, {format_size(found.disk_free_bytes)} free"
        + time,
    ]
    if advice := larger_ratio(sampled.n_tokens, val, settings):
        lines.append(
            f"warning: {layout.val_name} will have about {val:,} tokens, too few to tell small differences:"
            f" --val-ratio {advice:.2g} gives about {advice * sampled.n_tokens:,.0f}"
        )
    return lines


def link_line(link: Link) -> str:
    """Return a line on the time to fetch remote inputs; the run takes that, or the time to encode if longer."""
    return (
        f"network: {format_size(link.n_bytes)} to fetch, at about {link.bytes_per_second / 1e6:,.0f} MB/s; time: about"
        f" {format_duration(link.seconds)}, meanwhile the rest is done"
    )


def check_plan(sampled: Sampled, settings: Settings) -> None:
    """Raise `InputError` if val will be too large for its file, or leaves nothing to train on."""
    layout, (_, val) = settings.file_layout, sampled.splits(settings)
    if val * (1 - sampled.spread) > layout.max_tokens:
        raise InputError(
            f"{layout.val_name} will have about {val:,.0f} tokens, a file of --layout {layout.name} at most"
            f" {layout.max_tokens:,}",
            "name less text with --val" if settings.val_files else "lower --val-ratio",
        )
    if sampled.is_rough:
        return
    if (settings.val_tokens or 0) > sampled.n_tokens * (1 + max(sampled.spread, 0.05)):
        raise InputError(
            f"--val-tokens {settings.val_tokens:,}: the input has about {sampled.n_tokens:,} in all, and nothing would"
            " be left to train on",
            f"try --val-tokens {max(sampled.n_tokens // 10, 1)}",
        )


def check_disk(found: Estimate, settings: Settings) -> None:
    """Raise `DiskError` if the output will not fit on the disk or in a file; warn if a rough estimate does not fit."""
    if found.train_tokens is None or found.spread is None or found.disk_bytes is None:
        return
    needed, free = format_size(found.disk_bytes), format_size(found.disk_free_bytes)
    if settings.file_layout.is_merged:
        n_bytes = settings.file_layout.n_bytes(found.train_tokens)
        check_file_size(found.out / TRAIN_NAME, int(n_bytes * (1 - found.spread)))
    if found.disk_bytes > found.disk_free_bytes and found.is_rough:
        log.warning("warning: about %s may be needed there, %s are free", needed, free)
    elif found.disk_bytes > found.disk_free_bytes:
        raise DiskError(
            f"{found.out}: about {needed} will be needed there at the peak, {free} are free",
            "make room, or choose another disk with --out",
        )
