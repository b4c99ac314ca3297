"""Memory: what there is, what this run uses. The one user of psutil."""

from __future__ import annotations

import psutil


def process_start(pid: int) -> float | None:
    """Return when a process began (seconds since the epoch), None when there is none of this number."""
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return None


def used_bytes() -> int:
    """Return how much private memory this process holds."""
    return int(psutil.Process().memory_info().rss)
