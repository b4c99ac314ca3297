"""Before the start: what there is to do and what it takes, estimated from samples."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..inputs.blocks import Block, Source
from ..output import files
from ..output.layouts import ID_BYTES, LAYOUTS
from ..output.manifest import DONE, State
from ..output.merge import check_file_size
from ..output.shards import TRAIN_NAME
from ..support.cancel import NEVER, Cancel
from ..support.errors import DiskError, InputError, RecordError
from ..support.units import format_duration, format_size
from .settings import Settings
from .worker import Encoded, encode_block

N_SAMPLES, N_REMOTE_SAMPLES = 64, 4


@dataclass(frozen=True)
class Estimate:
    """What the inputs hold, from encoded samples; `spread` is relative, 0.03 for 3%. Rates in bytes of text."""

    n_tokens: int
    bytes_per_token: float
    spread: float
    bytes_per_second: float
    has_documents: bool

    def splits(self, settings: Settings) -> tuple[int, int]:
        """Return how many tokens train and val will have: --max-tokens ends a run early, before all of val is met."""
        val = min(settings.val_tokens or int(self.n_tokens * settings.val_ratio), self.n_tokens)
        train = self.n_tokens - val
        if settings.max_tokens is None or train <= settings.max_tokens:
            return train, val
        if settings.val_tokens is None and self.has_documents:
            val = int(val * settings.max_tokens / train)
        return settings.max_tokens, val


def estimate(sources: Sequence[Source], engine: str, cancel: Cancel = NEVER) -> Estimate | None:
    """Encode samples spread over the inputs; None where there is nothing to sample (a stream)."""
    n_samples = N_REMOTE_SAMPLES if any(source.input.is_remote for source in sources) else N_SAMPLES
    step = max(len(sources) // n_samples, 1)
    chosen = [source for source in sources[::step] if not source.input.is_stream]
    ratios: list[float] = []
    rates: list[float] = []
    n_text = n_tokens = size = expected = 0.0
    samples = [source.sample(max(n_samples // len(chosen), 1)) for source in chosen]  # while the engine loads
    for source, blocks in zip(chosen, samples, strict=True):
        tokens = n_bytes = 0
        for block in blocks:
            if not rates:
                _encode_sample(block, engine, cancel)  # the first call of all is slow: it is not what is timed
            start = time.perf_counter()
            encoded = _encode_sample(block, engine, cancel)
            if encoded is None:
                continue
            rates.append(block.n_bytes / (time.perf_counter() - start))
            tokens += len(encoded.ids)
            n_bytes += block.n_bytes
            ratios.append(len(encoded.ids) / max(block.n_bytes, 1))
        if n_bytes:
            n_text, n_tokens = n_text + n_bytes, n_tokens + tokens
            size, expected = size + source.input.size, expected + source.text_bytes() * tokens / n_bytes
    if not n_tokens:
        return None
    scale = sum(source.input.size for source in sources) / size
    spread = 2 * statistics.stdev(ratios) / len(ratios) ** 0.5 / statistics.mean(ratios) if len(ratios) > 1 else 0.0
    bytes_per_token = n_text / n_tokens
    rate = statistics.median(rates)
    return Estimate(int(expected * scale), bytes_per_token, spread, rate, bool(sources[0].unit))


def _encode_sample(block: Block, engine: str, cancel: Cancel) -> Encoded | None:
    try:
        return encode_block(block, engine, cancel, is_checked=False)
    except RecordError:  # the run itself will name it, if it comes that far
        return None


def disk_needed(found: Estimate, settings: Settings, state: State) -> int:
    """Return how many bytes a run will still write at its peak: the output, and the shards it is copied from.

    A finished run that goes on keeps its files until the new ones are complete.
    """
    layout, n_tokens = LAYOUTS[settings.layout], sum(found.splits(settings))
    shard = settings.shard_tokens * ID_BYTES
    once = n_tokens * ID_BYTES + layout.header_bytes * (n_tokens // settings.shard_tokens + 2)
    twice = 0 if not layout.is_merged else once if settings.keep_shards else 0 if once <= shard else shard
    n_there = state.n_tokens - state.base_shards * settings.shard_tokens
    if state.status == DONE and found.splits(settings)[0] > state.train_tokens:
        n_there = 0
    return max(once + twice - n_there * ID_BYTES, 0)


def plan_lines(found: Estimate | None, settings: Settings, state: State, out: Path, n_workers: int | None) -> list[str]:
    """Say what will be made, the disk it takes and, where the number of workers is known, how long."""
    if found is None:
        return ["tokens: not known before the end (compressed files, a pipe, or very long documents)"]
    layout = LAYOUTS[settings.layout]
    train, val = found.splits(settings)
    needed, free = disk_needed(found, settings, state), files.free_bytes(out)
    time = ""
    if n_workers:
        seconds = (train + val) * found.bytes_per_token / (found.bytes_per_second * n_workers)
        time = f"; time: about {format_duration(seconds)}"
    taken = f", {train:,} of them for train (--max-tokens)" if train == settings.max_tokens else ""
    return [
        f"tokens: about {found.n_tokens:,} (±{found.spread:.1%}), {found.bytes_per_token:.2f} bytes each{taken};"
        f" {TRAIN_NAME if layout.is_merged else 'shards'} {format_size(train * 2)}, {layout.val_name}"
        f" {format_size(val * 2)}",
        f"disk: {format_size(needed)} needed at the peak, {format_size(free)} free{time}",
    ]


def check_plan(found: Estimate, settings: Settings, state: State, out: Path) -> None:
    """Raise `DiskError` when the disk is too small, `InputError` when val is too large for its file."""
    layout, (_, val) = LAYOUTS[settings.layout], found.splits(settings)
    needed, free = disk_needed(found, settings, state), files.free_bytes(out)
    if val * (1 - found.spread) > layout.max_tokens:
        raise InputError(
            f"{layout.val_name} will have about {val:,.0f} tokens, a file of --layout {layout.name} at most"
            f" {layout.max_tokens:,}",
            "lower --val-ratio",
        )
    if layout.is_merged:
        check_file_size(out / TRAIN_NAME, int(layout.n_bytes(found.splits(settings)[0]) * (1 - found.spread)))
    if needed > free:
        raise DiskError(
            f"{out}: about {format_size(needed)} will be needed there at the peak, {format_size(free)} are free",
            "make room, or choose another disk with --out",
        )
