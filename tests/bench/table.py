"""What was measured -> one table, with the machine and the versions under it."""

from __future__ import annotations

import os
import platform
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from .cases import Case, Setup, all_cases
from .claims import CLAIMS, NOT_MEASURED, evaluate, ratio
from .measure import Measurement

PACKAGES = ("fineweb_stream", "tiktoken", "gigatoken", "pyarrow", "orjson", "numpy", "datasets")
MIN_BYTES = 200_000_000
_TITLES = {
    "encode": "encode only, from memory",
    "read": "read only",
    "start": "start-up, gigatoken, 2 workers",
    "prepare": "end to end: the whole process",
    "scale": "a tenth and ten times the input, gigatoken, 2 workers",
    "loop": "what people use today, from parquet",
    "floor": "the floor",
    "check": "the cross-check",
    "bare": "the bare pipeline",
    "gil": "sampled while it runs, start-up excluded",
}
_HEADER = ("", "seconds", "min-max", "CPU s", "MB/s", "peak MB", "ratio", "of / promised")
Row = tuple[str, ...]


@dataclass
class Results:
    """All that a run found out; `passes` has one measurement for each timed pass, `said` what a case printed last."""

    setup: Setup
    load_before: float
    passes: dict[str, list[Measurement]] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    said: dict[str, dict[str, Any]] = field(default_factory=dict)
    n_ids: dict[str, int] = field(default_factory=dict)


def render(cases: Sequence[Case], results: Results, markdown: bool) -> str:
    """Return the table, and what one must know to read it."""
    rows: list[Row] = []
    group = ""
    for case in cases:
        if case.group != group:
            group = case.group
            rows.append(_title(_TITLES[group], markdown))
        rows.append(_row(case, results))
    n_passes = max(map(len, results.passes.values()), default=0)
    figures = [(claim, evaluate(claim, results.passes, results.peaks, n_passes)) for claim in CLAIMS]
    if len(cases) < len(all_cases()):
        figures = [(claim, figure) for claim, figure in figures if figure != NOT_MEASURED]
    if figures:
        rows.append(_title("ratios of the passes", markdown))
    rows += [(claim.what, *[""] * 5, figure, claim.promise) for claim, figure in figures]
    return "\n".join([*_lay_out([_HEADER, *rows], markdown), "", *_notes(results, n_passes)])


def _title(text: str, markdown: bool) -> Row:
    return (f"**{text}**" if markdown else text.upper(), *[""] * (len(_HEADER) - 1))


def _row(case: Case, results: Results) -> Row:
    name = case.name
    if name in results.missing:
        return (case.what, *[""] * 6, f"needs {results.missing[name]}")
    if name in results.failures or name not in results.passes:
        return (case.what, *[""] * 6, "FAILED: see below")
    seconds = [one.seconds for one in results.passes[name]]
    cpu = f"{statistics.median(one.cpu_seconds for one in results.passes[name]):.2f}" if case.waits_for_workers else "?"
    median = statistics.median(seconds)
    peak = f"{results.peaks[name] / 1e6:.0f}" if results.peaks[name] and not case.times_itself else ""
    is_based = case.base in results.passes and case.base not in results.failures and case.base != name
    times = f"{ratio(results.passes, case.base, name):.2f}x" if case.base and is_based else ""
    spread = f"{min(seconds):.2f}-{max(seconds):.2f}"
    speed = _megabytes(case, results) / median
    base = case.base or "" if times else ""
    return (case.what, f"{median:.2f}", spread, cpu, f"{speed:.4g}", peak, times, base)


def _megabytes(case: Case, results: Results) -> float:
    """What a case goes through: the corpus's text, the whole file for `cat` and `wc`."""
    corpus = results.setup.corpus
    if case.group == "floor":
        return corpus.path(f"corpus.{case.name.rpartition('-')[2]}").stat().st_size / 1e6
    factor = {"scale-tenth": 0.1, "scale-ten": 10.0}.get(case.name, 1.0)
    return 0.02 if case.group == "start" else factor * corpus.text_bytes / 1e6


def _lay_out(rows: Sequence[Row], markdown: bool) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADER))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if 0 < i < 7 else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(f"| {' | '.join(cells)} |" if markdown else "  ".join(cells).rstrip())
    if markdown:
        dashes = ["-" * (width - 1) + (":" if 0 < i < 7 else "-") for i, width in enumerate(widths)]
        lines.insert(1, f"| {' | '.join(dashes)} |")
    return lines


def _notes(results: Results, n_passes: int) -> list[str]:
    corpus = results.setup.corpus
    n_ids = Counter(results.n_ids.values())
    lines = [
        f"Corpus: {corpus.text_bytes / 1e6:,.1f} MB of text in {corpus.n_documents:,} documents ({corpus.origin}).",
        f"Medians of {n_passes} passes over all cases, interleaved; ratios are medians of each pass's ratio; peak"
        " memory of the process tree (what no file backs, shared pages once), every 50 ms in a pass of its own.",
        f"Machine: {machine(corpus.folder)}; load before: {results.load_before:.2f}.",
        f"Versions: {versions(results)}.",
    ]
    if corpus.text_bytes < MIN_BYTES:
        lines.append(f"The ratios mean something from {MIN_BYTES // 10**6} MB on: in so short a run start-up decides.")
    if len(n_ids) == 1:
        lines.append(f"Every case that reads documents wrote {next(iter(n_ids)):,} ids.")
    elif n_ids:
        usual = n_ids.most_common(1)[0][0]
        other = ", ".join(f"{name} {n:,}" for name, n in results.n_ids.items() if n != usual)
        lines.append(f"NOT ALL CASES WROTE AS MANY IDS: {usual:,}, but {other}")
    lines += [f"FAILED: {name}: {reason}" for name, reason in results.failures.items()]
    return lines


def machine(folder: Path) -> str:
    """Describe the machine, and the file system that the outputs are written to."""
    try:
        n_cpus = len(os.sched_getaffinity(0))
    except AttributeError:
        n_cpus = os.cpu_count() or 1
    mounts = [m for m in psutil.disk_partitions(all=True) if folder.is_relative_to(m.mountpoint)]
    disk = max(mounts, key=lambda m: len(m.mountpoint)).fstype if mounts else "?"
    memory = psutil.virtual_memory().total / 1e9
    return f"{_cpu()}, {n_cpus} CPUs, {memory:.0f} GB, {platform.system()} {platform.release()}, {disk}"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(": ")[2] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def versions(results: Results) -> str:
    found = [f"Python {platform.python_version()}"]
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            if name == "fineweb_stream":
                import fineweb_stream

                found.append(f"{name} {fineweb_stream.__version__}")
    found += [f"{name} {number}" for name, number in results.said.get("loop-datatrove", {}).items()]
    if rows := results.said.get("loop-build-nanogpt", {}).get("rows"):
        found.append(f"build-nanogpt's rows from {rows}")
    return ", ".join(found)
