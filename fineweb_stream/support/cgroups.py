"""The limits of this process's control groups (containers, Slurm, systemd): versions 1 and 2, up to the root.

(Formats: the kernel's Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst.)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
PROC_CGROUP = Path("/proc/self/cgroup")

_NO_LIMIT = 1 << 62  # version 1 reports 9223372036854771712 for no limit: the largest multiple of a page


def memory_groups(root: Path = CGROUP_ROOT, proc: Path = PROC_CGROUP) -> list[tuple[str, int, int]]:
    """Return name, limit and use without page cache (bytes) of each group that limits this process, its own first."""
    groups = []
    for folder, version in _folders("memory", root, proc):
        names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        limit, used = (_read_number(folder / name) for name in names)
        if limit is not None and limit < _NO_LIMIT:
            groups.append((str(folder), limit, max((used or 0) - _page_cache(folder, version), 0)))
    return groups


def cpu_quota(root: Path = CGROUP_ROOT, proc: Path = PROC_CGROUP) -> float | None:
    """Return how many CPUs' time the groups of this process allow it, None for no limit."""
    quotas = []
    for folder, version in _folders("cpu", root, proc):
        try:
            if version == 2:
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
            if quota not in ("max", "-1"):
                quotas.append(int(quota) / int(period))
        except (OSError, ValueError, ZeroDivisionError):
            continue
    return min(quotas, default=None)


def usable_cpus() -> float:
    """Return how many CPUs this process may use by its affinity and its groups, not how many there are."""
    if sys.platform == "linux":
        n_cpus = len(os.sched_getaffinity(0))
    else:
        n_cpus = os.cpu_count() or 1
    return min(n_cpus, cpu_quota() or n_cpus)


def _folders(controller: str, root: Path, proc: Path) -> Iterator[tuple[Path, int]]:
    """Yield the folder and the version of each group that governs this process, its own first."""
    try:
        lines = proc.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, name = line.split(":", 2)
        version = 2 if number == "0" and not controllers else 1
        if version == 1 and controller not in controllers.split(","):
            continue
        # In a container, its own group is often the root of the hierarchy, while /proc names the path on the host.
        bases = [root, root / "unified"] if version == 2 else [root / controllers, root / controller]
        base = next((base for base in bases if base.is_dir()), None)
        if base is not None:
            parts = [part for part in name.split("/") if part not in ("", "..")]
            yield from ((base.joinpath(*parts[:n]), version) for n in range(len(parts), -1, -1))


def _page_cache(folder: Path, version: int) -> int:
    """Return the size of the group's page cache (bytes), which the kernel reclaims when memory is short."""
    prefix = "total_" if version == 1 else ""
    wanted = (f"{prefix}inactive_file", f"{prefix}active_file")
    try:
        lines = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return sum(int(value) for name, value in lines if name in wanted)
    except (OSError, ValueError):
        return 0


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # "max" means no limit
        return None
