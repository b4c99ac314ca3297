"""Plots the documents and the run that made a token file: 1,800 pixels wide, and readable at 900."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..output import files
from ..support.errors import InputError
from .summary import LONG_TOKENS, Lengths, Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Timeline = npt.NDArray[np.float64]

MIN_SAMPLES = 4  # a shorter timeline is not worth drawing

DPI = 200
WIDTH, LENGTHS_HEIGHT, RUN_HEIGHT, TITLE_HEIGHT, HEADLINE_HEIGHT, FOOT_HEIGHT = 9.0, 2.5, 1.3, 0.85, 0.35, 0.35
"""Inches: the width, the heights of the two rows of panels, the space above each row, and above and below all."""

BORDER = LONG_TOKENS + 1  # the shortest length that is drawn as long (tokens)

LEFT, RIGHT = 0.055, 0.975
N_BINS = 64
INK, MUTED, HAIRLINE = "#1f2933", "#6b7785", "#d5dbe1"
DARK_BLUE, BLUE, PALE_BLUE, TEAL, PALE_TEAL = "#2563a8", "#a9c6e6", "#dbe7f4", "#0d7d6c", "#d8eeea"
_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # part of matplotlib: the same plot everywhere
    "font.size": 9.5,
    "text.color": INK,
    "text.parse_math": False,  # a $ in a path is a $
    "axes.edgecolor": HAIRLINE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "ytick.major.size": 0,
}


def plot_report(summary: Summary, record: Mapping[str, Any] | None, out_path: str | os.PathLike[str]) -> None:
    """Draw the lengths of the documents and, if `prepare.json` has a timeline, speed and memory over the run.

    `record` is the content of `prepare.json`. The suffix of `out_path` decides the format: png, svg, pdf, or another
    one that matplotlib writes.

    Raises `InputError` without matplotlib, for an unknown format, and if there is nothing to draw; `DiskError`.
    """
    path, kind, timeline = Path(out_path), picture_format(out_path), read_timeline(record)
    lengths = summary.lengths if summary.lengths and summary.lengths.longest else None
    if lengths is None and timeline is None:
        raise InputError(f"{summary.name}: nothing to draw: no documents, and no timeline of a run", "leave out --plot")
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure()
        axes = _lay_out(figure, summary, lengths is not None, timeline is not None)
        if lengths is not None:
            _draw_lengths(axes["lengths"], lengths)
        if timeline is not None:
            _draw_run(axes["speed"], axes["memory"], timeline)
        image = io.BytesIO()
        figure.savefig(image, format=kind, dpi=DPI, facecolor="white")
    files.write_whole(path, [image.getvalue()])


def picture_format(path: str | os.PathLike[str]) -> str:
    """Return the image format that a path's suffix names.

    >>> picture_format("report.PNG")
    'png'

    Raises `InputError` for an unknown format, and without matplotlib.
    """
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        raise InputError("a plot needs matplotlib", "pip install -U matplotlib") from None
    kind, kinds = Path(path).suffix.lower().lstrip("."), FigureCanvasBase.get_supported_filetypes()
    if kind not in kinds:
        raise InputError(f"{path}: its ending is not that of an image format", f"these do: {', '.join(sorted(kinds))}")
    return kind


def read_timeline(record: Mapping[str, Any] | None) -> Timeline | None:
    """Return a record's samples `[seconds, tokens, bytes of memory]`, float64 (n, 3), or None if they are too few.

    >>> read_timeline({"state": {"timeline": [[0, 0, 9], [1, 50, 9], [1, 50, 9], [2, 90, 8], [3, 99, 8]]}})[:, 1]
    array([ 0., 50., 90., 99.])
    """
    try:
        samples = np.array((record or {})["state"]["timeline"], np.float64).reshape(-1, 3)
    except (KeyError, TypeError, ValueError):
        return None
    samples = samples[np.isfinite(samples).all(axis=1)]
    latest = np.maximum.accumulate(samples[:, 0])
    samples = samples[np.diff(latest, prepend=-1.0) > 0]  # a resumed run may repeat some seconds
    return samples if len(samples) >= MIN_SAMPLES else None


def _lay_out(figure: Figure, summary: Summary, has_lengths: bool, has_run: bool) -> dict[str, Axes]:
    """Create the panels that have data, under a headline."""
    rows: list[Any] = [["lengths", "lengths"]] * has_lengths + [["speed", "memory"]] * has_run
    heights = [LENGTHS_HEIGHT] * has_lengths + [RUN_HEIGHT] * has_run
    inches = round(HEADLINE_HEIGHT + sum(heights) + TITLE_HEIGHT * len(rows) + FOOT_HEIGHT, 2)  # whole pixels
    figure.set_size_inches(WIDTH, inches)
    figure.subplots_adjust(
        left=LEFT,
        right=RIGHT,
        bottom=FOOT_HEIGHT / inches,
        top=1 - (HEADLINE_HEIGHT + TITLE_HEIGHT) / inches,
        hspace=TITLE_HEIGHT * len(rows) / sum(heights),
        wspace=0.14,
    )
    n = summary.n_documents
    of = f"in {n:,} document{'s' * (n > 1)}" if n else "of plain text"
    y = 1 - 0.33 / inches
    figure.text(LEFT, y, f"{_amount(summary.n_tokens)} tokens {of}", fontsize=15, weight="bold", va="center")
    figure.text(RIGHT, y, "/".join(Path(summary.name).parts[-2:]), color=MUTED, ha="right", va="center")
    axes: dict[str, Axes] = figure.subplot_mosaic(rows, height_ratios=heights)
    return axes


def _draw_lengths(axes: Axes, lengths: Lengths) -> None:
    from matplotlib.ticker import LogLocator

    values, counts = lengths.values[lengths.values > 0], lengths.counts[lengths.values > 0]
    edges = _edges(int(values[0]), lengths.longest)
    is_wide = edges[-1] > 300 * edges[0]  # 1, 10, 100, ... are enough ticks
    heights = np.histogram(values, edges, weights=counts)[0] / np.diff(np.log(edges))
    subtitle = f"in tokens, from {values[0]:,} to {lengths.longest:,}; equal areas are equal numbers of documents"
    n_empty = lengths.counts.sum() - counts.sum()
    _title(axes, "Length of documents", subtitle + (f"; {n_empty:,} empty ones are left out" if n_empty else ""))
    for is_long, colour in ((False, BLUE), (True, DARK_BLUE)):
        axes.stairs(np.where((edges[:-1] >= BORDER) == is_long, heights, 0), edges, fill=True, color=colour)
    axes.set_xscale("log")
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, heights.max() * 1.35)  # room for the labels
    axes.set_yticks([])
    axes.minorticks_off()
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if is_wide else (1.0, 2.0, 5.0), numticks=99))
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    _mark(axes, lengths)


def _edges(shortest: int, longest: int) -> npt.NDArray[np.float64]:
    """Return integer bin edges, spaced as evenly as possible on a logarithmic axis, with one at BORDER."""
    stop = max(longest + 1, 2 * shortest)
    ratio = (stop / shortest) ** (1 / N_BINS)
    first = math.floor(math.log(shortest / BORDER, ratio))
    last = math.ceil(math.log(stop / BORDER, ratio))
    return np.unique(np.ceil(BORDER * ratio ** np.arange(first, last + 1)))


def _mark(axes: Axes, lengths: Lengths) -> None:
    """Draw labelled lines at the median, 1,024 and 90 %: the further left, the higher the label."""
    marks = [
        (lengths.median, f"median {lengths.median:,}"),
        (BORDER, f"{lengths.share_long:.0%} are longer than {LONG_TOKENS:,}, GPT-2's context"),
        (lengths.p90, f"90% are {lengths.p90:,} or shorter"),
    ]
    left, right = axes.get_xlim()
    for (x, text), y in zip(sorted(marks), (0.98, 0.9, 0.82), strict=True):
        if left <= x <= right:
            axes.axvline(x, 0, y, color=INK, linewidth=0.8)
            is_right = math.log(x / left) > 0.65 * math.log(right / left)
            axes.annotate(
                text,
                (x, y),
                (-4 if is_right else 4, 0),
                xycoords=axes.get_xaxis_transform(),
                textcoords="offset points",
                ha="right" if is_right else "left",
                va="top",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
            )


def _draw_run(speed: Axes, memory: Axes, timeline: Timeline) -> None:
    seconds, tokens, n_bytes = timeline.T
    rates = np.maximum(np.diff(tokens), 0) / np.diff(seconds)  # a resumed run goes back to its last commit
    mean = (tokens[-1] - tokens[0]) / (seconds[-1] - seconds[0])
    time, n_seconds = ("h", 3600) if seconds[-1] >= 7200 else ("min", 60) if seconds[-1] >= 120 else ("s", 1)
    times = seconds / n_seconds
    _title(speed, "Speed", f"in tokens per second; {_amount(mean)} on average")
    speed.stairs(rates, times, fill=True, color=PALE_BLUE)
    speed.stairs(rates, times, color=DARK_BLUE, baseline=None)
    speed.yaxis.set_major_formatter(lambda y, _: f"{y / 1e6:g}M" if y >= 1e5 else f"{y:,.0f}")
    unit, size = ("GB", 1e9) if n_bytes.max() >= 1e10 else ("MB", 1e6)
    _title(memory, "Memory", f"in {unit}; {n_bytes.max() / size:,.0f} at most")
    memory.fill_between(times, n_bytes / size, color=PALE_TEAL, linewidth=0)
    memory.plot(times, n_bytes / size, color=TEAL, linewidth=1)
    memory.yaxis.set_major_formatter(lambda y, _: f"{y:,g}")
    for axes in (speed, memory):
        axes.set_xlim(times[0], times[-1])
        axes.set_ylim(bottom=0)
        axes.locator_params(axis="y", nbins=4)
        axes.locator_params(axis="x", nbins=5, integer=True)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g} {time}" if x else "0")


def _title(axes: Axes, title: str, subtitle: str) -> None:
    axes.annotate(title, (0, 1), (0, 22), xycoords="axes fraction", textcoords="offset points", weight="bold")
    axes.annotate(subtitle, (0, 1), (0, 9), xycoords="axes fraction", textcoords="offset points", color=MUTED)


def _amount(n: float) -> str:
    """Format a number as people say it.

    >>> _amount(15_155_415), _amount(812), _amount(10_300_000_000)
    ('15.2 million', '812', '10.3 billion')
    """
    for name, size in (("trillion", 1e12), ("billion", 1e9), ("million", 1e6)):
        if n >= size:
            return f"{n / size:,.1f} {name}"
    return f"{n:,.0f}"
