"""The figures that the project promises, each out of the cases of one run."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .measure import Measurement

Passes = Mapping[str, Sequence[Measurement]]  # by case: one for each pass over all cases
Peaks = Mapping[str, int]

NOT_MEASURED = "not measured"
OURS = "prepare-parquet-gigatoken-2"


@dataclass(frozen=True)
class Claim:
    """`value` of the i-th pass; the median over the passes counts."""

    what: str
    promise: str
    value: Callable[[Passes, Peaks, int], float]
    unit: str = "x"


def ratio(passes: Passes, slow: str, fast: str) -> float:
    """How many times as fast `fast` is: the median over the passes, in each of which both ran."""
    pairs = zip(passes[slow], passes[fast], strict=True)
    return statistics.median(a.seconds / b.seconds for a, b in pairs)


def evaluate(claim: Claim, passes: Passes, peaks: Peaks, n_passes: int) -> str:
    """Return the figure, or why there is none."""
    try:
        value = statistics.median(claim.value(passes, peaks, i) for i in range(n_passes))
    except (KeyError, IndexError, ZeroDivisionError, statistics.StatisticsError):
        return NOT_MEASURED
    return f"{100 * value:.1f}%" if claim.unit == "%" else f"{value:.2f}{claim.unit}"


def _faster(slow: str, fast: str) -> Callable[[Passes, Peaks, int], float]:
    return lambda passes, peaks, i: passes[slow][i].seconds / passes[fast][i].seconds


def _near_limit(kind: str, encoding: str, n_workers: int) -> Callable[[Passes, Peaks, int], float]:
    def value(passes: Passes, peaks: Peaks, i: int) -> float:
        cpu = passes[f"read-{kind}"][i].cpu_seconds + passes[encoding][i].cpu_seconds
        return cpu / n_workers / _net(passes, f"prepare-{kind}-gigatoken-{n_workers}", kind, i)

    return value


def _over_bare(n: int) -> Callable[[Passes, Peaks, int], float]:
    ours, bare = f"prepare-parquet-gigatoken-{n}", f"bare-parquet-{n}"
    return lambda passes, peaks, i: passes[ours][i].cpu_seconds / passes[bare][i].cpu_seconds


def _net(passes: Passes, name: str, kind: str, i: int) -> float:
    """Wall time without start-up."""
    return passes[name][i].seconds - passes[f"start-{kind}"][i].seconds


def _times_the_time(small: str, large: str) -> Callable[[Passes, Peaks, int], float]:
    return lambda passes, peaks, i: _net(passes, large, "parquet", i) / _net(passes, small, "parquet", i)


def _memory(small: str, large: str) -> Callable[[Passes, Peaks, int], float]:
    return lambda passes, peaks, i: peaks[large] / peaks[small]


def _said(name: str, key: str) -> Callable[[Passes, Peaks, int], float]:
    return lambda passes, peaks, i: passes[name][i].said[key]


def _lock_claims(kind: str, asked: str) -> tuple[Claim, ...]:
    name = f"gil-{kind}"
    return (
        Claim(f"{kind}: busy cores at which the global lock is full", asked, _said(name, "full_at_cores"), ""),
        Claim(f"{kind}: ms that it is held for each MB", "", _said(name, "held_ms_per_mb"), ""),
        Claim(f"{kind}: MB/s that no number of cores passes", "", _said(name, "ceiling_mb_per_s"), ""),
    )


CLAIMS = (
    *_lock_claims("parquet", "14, aim 32"),
    *_lock_claims("jsonl", "8"),
    *_lock_claims("txt", "14"),
    Claim("CPU of the whole process over the bare pipeline's, parquet, 1 worker", "at most 1.2x", _over_bare(1)),
    Claim("the same, 2 workers and 2 threads", "at most 1.2x", _over_bare(2)),
    Claim("parquet, 2 workers, vs build-nanogpt's loop", "15x, aim 20x", _faster("loop-build-nanogpt", OURS)),
    Claim("the same vs datasets.map + memmap", "25x", _faster("loop-openwebtext", OURS)),
    Claim("the same vs datatrove", "40x", _faster("loop-datatrove", OURS)),
    Claim(
        "parquet: (CPU of reading + of encoding, 1 thread) / 2 over wall without start-up",
        "0.75, aim 0.9",
        _near_limit("parquet", "encode-gigatoken-1", 2),
        "",
    ),
    Claim(
        "the same, with the CPU time that encoding takes in 2 threads at once",
        "",
        _near_limit("parquet", "encode-gigatoken-2", 2),
        "",
    ),
    Claim("the same, 1 worker and 1 thread", "", _near_limit("parquet", "encode-gigatoken-1", 1), ""),
    Claim("txt: the same, 2 workers", "0.8, aim 0.9", _near_limit("txt", "encode-txt-gigatoken-1", 2), ""),
    Claim(
        "txt: the same, with the CPU time that encoding takes in 2 threads at once",
        "",
        _near_limit("txt", "encode-txt-gigatoken-2", 2),
        "",
    ),
    Claim("jsonl: its speed over parquet's, 2 workers", "0.7", _faster(OURS, "prepare-jsonl-gigatoken-2"), ""),
    Claim("2 workers vs 1, parquet, gigatoken", "1.6x", _faster("prepare-parquet-gigatoken-1", OURS)),
    Claim("the bare pipeline: 2 threads vs 1", "", _faster("bare-parquet-1", "bare-parquet-2")),
    Claim("2 workers vs 1, parquet, tiktoken", "", _faster("prepare-parquet-tiktoken-1", "prepare-parquet-tiktoken-2")),
    Claim("tiktoken, 2 workers, vs the plain script", "1.5x", _faster("loop-plain", "prepare-parquet-tiktoken-2")),
    Claim("share of the cross-check", "under 4%", lambda passes, peaks, i: passes["check-share"][i].said["share"], "%"),
    Claim("time of all vs a tenth, without start-up", "10x, 9 to 11", _times_the_time("scale-tenth", OURS)),
    Claim("time of ten times all vs all, without start-up", "10x, 9 to 11", _times_the_time(OURS, "scale-ten")),
    Claim("memory of all vs a tenth", "1x", _memory("scale-tenth", OURS)),
    Claim("memory of ten times all vs all", "1x", _memory(OURS, "scale-ten")),
)
