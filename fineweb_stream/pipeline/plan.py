"""Before a run: estimate from samples what it will make and what that takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..inputs.blocks import Source
from ..output import files
from ..output.layouts import NANOGPT, UINT32_CHANGE
from ..output.own import TRAIN_NAME
from ..output.state import DONE, MERGING, State
from ..support.errors import DiskError, InputError
from ..support.log import log
from ..support.units import format_duration, format_size
from ..tokenizer.gpt2 import GPT2
from .budget import MemoryPlan
from .fetch import Link
from .fits import larger_ratio
from .samples import Sampled
from .settings import Settings

START_SECONDS = 0.6  # the fixed cost of a run: starting Python, imports, loading the engine, sampling and listing files
MANY_SHARDS = 10_000  # more of them are probably a typing error: each takes some milliseconds


@dataclass(frozen=True)
class Estimate:
    """What a run would make and take, as `estimate()` finds it. All sizes are in bytes.

    The finished files will hold about `train_tokens` and `val_tokens` tokens, in `documents` documents (None for plain
    text). `spread` is the relative error of the sum of tokens at 95% confidence: 0.03 means 3%. `is_rough` means that
    the size of some text is a guess: of a compressed file's, or of parquet whose values repeat. It may be more or less.

    `input_bytes` is the size of the files, and `text_bytes` is what is read of them: decompressed text, whole lines of
    jsonl, the text column of parquet. At its peak the run needs `disk_bytes` more on disk; `disk_free_bytes` are free.
    It encodes with `engine` in `workers` threads, within `memory_bytes` of memory. The whole run takes about `seconds`,
    fetching `network_bytes` included. For a finished run the counts are exact, and nothing is left to write.

    Fields that default to None are None if nothing can be sampled, or if a pipe is among the inputs.
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


def disk_needed(found: Sampled, settings: Settings, state: State, base_tokens: int = 0) -> int:
    """Return how many more bytes a run writes at its peak: the output, and what is on disk twice for a while.

    Shards that are kept beside `train.bin` are a second copy; a shuffle needs one of all tokens. A finished run that is
    extended keeps its files until the new ones are complete; `base_tokens` of them are still to be copied.
    """
    layout, n_tokens = settings.file_layout, sum(found.splits(settings))
    once = n_tokens * layout.id_bytes + layout.header_bytes * (n_tokens // settings.shard_tokens + 2)
    is_copied = layout.is_merged and settings.keep_shards
    is_to_shuffle = settings.shuffle and state.status != MERGING
    twice = once if is_copied or is_to_shuffle else 0
    n_there = state.n_tokens - base_tokens
    n_there += state.shuffle.get("train_tokens", 0) + state.shuffle.get("val_tokens", 0)
    if state.status == DONE and found.splits(settings)[0] > state.train_tokens:
        n_there = state.n_lasting(settings.shard_tokens) * settings.shard_tokens if settings.keep_shards else 0
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
    if tokenizer.dtype != GPT2.dtype and settings.layout == NANOGPT.name:
        lines.append(f"note: {UINT32_CHANGE}")
    return lines


def make_estimate(
    sampled: Sampled | None,
    sources: Sequence[Source],
    settings: Settings,
    state: State,
    base_tokens: int,
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
        disk_bytes=disk_needed(sampled, settings, state, base_tokens),
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
    spread = "roughly" if sampled.is_rough else f"±{sampled.spread:.1%}"
    lines += [
        f"tokens: about {sampled.n_tokens:,} ({spread}), {sampled.bytes_per_token:.2f} bytes each{taken};"
        f" {TRAIN_NAME if layout.is_merged else 'shards'} {format_size(train * layout.id_bytes)}, {layout.val_name}"
        f" {format_size(val * layout.id_bytes)}",
        f"disk: {format_size(found.disk_bytes or 0)} needed at the peak, {format_size(found.disk_free_bytes)} free"
        + time,
    ]
    if sampled.has_eot_in_text:
        lines.append("note: the text has <|endoftext|>; if that separates documents: --separator '<|endoftext|>'")
    if settings.has_shards and (n_shards := train // settings.shard_tokens) > MANY_SHARDS:
        lines.append(f"warning: --shard-tokens {settings.shard_tokens:,} makes about {n_shards:,} files")
    if advice := larger_ratio(train + val, val, settings, sampled.has_documents):
        ratio = f"{advice:.2g}"
        _, n_given = sampled.splits(replace(settings, val_ratio=float(ratio)))
        lines.append(
            f"warning: {layout.val_name} will have about {val:,} tokens, too few to tell small differences:"
            f" --val-ratio {ratio} gives about {n_given:,} (with --overwrite)"
        )
    return lines


def link_line(link: Link) -> str:
    """Return a line on the time to fetch remote inputs; the run takes that, or the time to encode if longer."""
    return (
        f"network: {format_size(link.n_bytes)} to fetch, at about {link.bytes_per_second / 1e6:,.0f} MB/s; time: about"
        f" {format_duration(link.seconds)}, in parallel with the rest"
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
            f"try --val-tokens {max(sampled.n_tokens // 10, min(settings.least_tokens, sampled.n_tokens // 2), 1)}",
        )


def check_disk(found: Estimate, settings: Settings) -> None:
    """Raise `DiskError` if the output will not fit on the disk or in a file; warn if a rough estimate does not fit."""
    if found.train_tokens is None or found.spread is None or found.disk_bytes is None:
        return
    needed, free = format_size(found.disk_bytes), format_size(found.disk_free_bytes)
    if settings.file_layout.is_merged:
        n_bytes = int(settings.file_layout.n_bytes(found.train_tokens) * (1 - found.spread))
        limit = files.max_file_bytes()
        if n_bytes > limit:
            raise DiskError(
                f"{found.out / TRAIN_NAME}: will have {format_size(n_bytes)}, but a file may have {format_size(limit)}"
                " (ulimit -f)",
                f"raise that limit, or use --layout npy --shard-tokens {max(limit // 4, 1)} (with --overwrite)",
            )
    if found.disk_bytes > found.disk_free_bytes and found.is_rough:
        log.warning("warning: about %s may be needed there, %s are free", needed, free)
    elif found.disk_bytes > found.disk_free_bytes:
        raise DiskError(
            f"{found.out}: about {needed} will be needed there at the peak, {free} are free",
            "make room, or choose another disk with --out",
        )
