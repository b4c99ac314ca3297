"""How much memory may be used, how much is in use, and what to do when it runs short. The only user of psutil.

Three things count: the budget for this process and its children, the limits of its containers, and what the system has
left, whoever uses it, because a system without memory freezes. Page cache and mapped files do not count.

    guard = MemoryGuard("4GB")
    while training:
        if guard.check() is Step.STOP:
            save_and_leave(guard.reason)
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import os
import sys
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import psutil

from ..support.cgroups import memory_groups
from ..support.errors import InputError
from ..support.units import parse_share, parse_size, read_variable

MB = 10**6
CHECK_SECONDS = 0.5
SETTLE_SECONDS = 2.0  # how long a step, up or down, has to take effect before the next one
PATIENCE_SECONDS = 60.0  # how long a run pauses because others use up the system's memory, before it saves and exits

HIGH_SHARE = 0.92
"""Pressure begins above this share of the budget, because a step takes effect only when blocks in flight are done."""

SWAP_BYTES = 256 * MB  # swap that grew by more than this since the start, or since the last step back, is pressure

_PHYSICAL = "physical memory"

LARGE_BLOCK_BYTES, KEPT_BYTES = 8 << 20, 8 << 20
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


class Step(enum.IntEnum):
    """What to do about memory: start no new blocks (DRAIN), then run fewer at a time, then one, then stop."""

    RUN = 0
    DRAIN = 1
    FEWER = 2
    ONE = 3
    STOP = 4


class Limit(NamedTuple):
    """One limit on memory: what sets it, how much it allows in all, and how much of that is left (bytes)."""

    name: str
    total: int
    available: int


class Reading(NamedTuple):
    """Memory at one moment (bytes): used by the process tree, still available to it, and the system's used swap."""

    used: int
    available: int
    swap: int = 0


def find_limits() -> list[Limit]:
    """Return every limit on this process's memory, the one with the least left first."""
    memory, process = psutil.virtual_memory(), psutil.Process().memory_info()
    known = [(_PHYSICAL, memory.total, memory.total - memory.available)]
    known += ((f"control group {name}", total, used) for name, total, used in memory_groups())
    known += _resource_limits(process.vms, getattr(process, "data", process.rss))
    if n_bytes := read_variable("SLURM_MEM_PER_NODE", unit=1 << 20):
        known.append(("SLURM_MEM_PER_NODE", n_bytes, process.rss))
    elif n_bytes := read_variable("SLURM_MEM_PER_CPU", unit=1 << 20):
        n_cpus = read_variable("SLURM_CPUS_ON_NODE") or read_variable("SLURM_CPUS_PER_TASK") or 1
        known.append(("SLURM_MEM_PER_CPU", n_bytes * n_cpus, process.rss))
    limits = [Limit(name, total, max(total - used, 0)) for name, total, used in known]
    return sorted(limits, key=lambda limit: limit.available)


def reserve_bytes(limit: Limit) -> int:
    """Return how much of a limit must stay free: 5%, at most 512 MB.

    Of the system's own memory it is at least 512 MB, and at most 2 GB or a quarter.

    >>> [reserve_bytes(Limit("physical memory", gb * 10**9, 0)) // MB for gb in (1, 4, 16, 64)]
    [250, 512, 800, 2000]
    """
    share, least = limit.total // 20, 512 * MB
    return min(max(share, least), 2000 * MB, limit.total // 4) if limit.name == _PHYSICAL else min(share, least)


def parse_budget(text: str | float | None, available: int) -> int:
    """Return a budget in bytes: `4GB`, or `50%` of what is available (the default).

    >>> parse_budget("50%", 8_000_000_000), parse_budget("300MB", 8_000_000_000)
    (4000000000, 300000000)

    Raises `InputError` for anything else.
    """
    text, hint = "50%" if text is None else str(text).strip(), "write it like 50% or 4GB"
    try:
        if text.endswith("%"):
            n_bytes = int(available * (1 if text == "100%" else parse_share(text)))
        else:
            n_bytes = parse_size(text)
    except InputError as error:
        n_bytes, hint = 0, error.hint if "point" in error.hint else hint
    if n_bytes < MB:
        if text.isdecimal() and 0 < int(text) < 1000:
            hint = f"did you mean {text}GB?"
        raise InputError(f"memory={text!r}: not a size of memory", hint)
    return n_bytes


@dataclass
class MemoryGuard:
    """Watches a memory budget (`4GB`, or by default `50%` of what is available) and the system's memory.

    >>> guard = MemoryGuard("100%")
    >>> guard.check().name
    'RUN'

    Raises `InputError` for a budget that cannot be read.
    """

    memory: str | float | None = None
    limits: list[Limit] = field(default_factory=find_limits)
    used_bytes: int = 0
    peak_bytes: int = 0
    steps: list[dict[str, Any]] = field(default_factory=list)
    reason: str = ""

    def __post_init__(self) -> None:
        available = self.limits[0].available
        self.budget_bytes = min(parse_budget(self.memory, available), available)
        self.step = Step.RUN
        self._swap = psutil.swap_memory().used
        self._checked = self._changed = -CHECK_SECONDS
        self._calm: float | None = None

    def check(self) -> Step:
        """Measure, at most every half second, and return the step to take; `reason` says why.

        Steps are integers with names: RUN (0), DRAIN (begin no new work), FEWER, ONE (piece of work at a time), STOP.
        """
        now = time.monotonic()
        if now - self._checked >= CHECK_SECONDS:
            self._checked = now
            self.update(self.read(), now)
        return self.step

    def read(self) -> Reading:
        """Measure the process tree's private memory, and the least that any limit leaves above its reserve."""
        left = min(limit.available - reserve_bytes(limit) for limit in find_limits())
        return Reading(used_bytes(), left, psutil.swap_memory().used)

    def update(self, reading: Reading, now: float) -> Step:
        """Take at most one step up or down, by a reading of the time `now` (seconds), and return the present step."""
        self.used_bytes = reading.used
        self.peak_bytes = max(self.peak_bytes, reading.used)
        own, around = self._pressure(reading)
        self._calm = now if self._calm is None else self._calm
        if not (own or around):
            self._calm = now
            if self.step and now - self._changed >= SETTLE_SECONDS:
                self._swap = reading.swap
                self._take(Step(self.step - 1), "pressure is gone", reading, now)
        elif self.step is Step.RUN:
            self._take(Step.DRAIN, own or around, reading, now)
        elif now - self._changed >= SETTLE_SECONDS and own and self.step < Step.STOP:
            self._take(Step(self.step + 1), own, reading, now)
        elif around and now - self._calm >= PATIENCE_SECONDS and self.step < Step.STOP:
            self._take(Step.STOP, around, reading, now)
        return self.step

    def _pressure(self, reading: Reading) -> tuple[str, str]:
        """Return why memory is short: by this process tree's own use, and by others'; "" for no pressure."""
        own = around = ""
        if reading.used > self.budget_bytes * HIGH_SHARE:
            own = f"{reading.used / MB:,.0f} MB used of a budget of {self.budget_bytes / MB:,.0f} MB"
        if reading.available <= 0:
            around = f"the system is {-reading.available / MB:,.0f} MB below its reserve of free memory"
        elif reading.swap > self._swap + SWAP_BYTES:
            around = f"swap grew by {(reading.swap - self._swap) / MB:,.0f} MB"
        return own, around

    def _take(self, step: Step, reason: str, reading: Reading, now: float) -> None:
        self.step, self.reason, self._changed = step, reason, now
        self.steps.append({"step": step.name.lower(), "reason": reason, "used_bytes": reading.used})


def used_bytes() -> int:
    """Return the private memory of this process and its children (bytes): on Linux RSS without files, elsewhere USS."""
    return sum(map(_private_bytes, [psutil.Process(), *find_children()]))


def find_children() -> list[psutil.Process]:
    """Return the processes that this one has started, and those that they have.

    That takes a look at every process of the machine, 20 us each with the GIL held: it is done only if there are any.
    """
    if sys.platform == "linux":
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return []
    found: list[psutil.Process] = psutil.Process().children(recursive=True)
    return found


def release_memory() -> None:
    """Give back to the system the freed memory that the allocators of glibc and Arrow keep for later."""
    if "pyarrow" in sys.modules:
        with contextlib.suppress(ImportError):
            import pyarrow  # another thread may be importing it: this waits

            pyarrow.default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError, TypeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


def return_large_blocks() -> None:
    """Make freed allocations of LARGE_BLOCK_BYTES go back to the system at once: glibc would raise this threshold.

    Of smaller ones, each thread keeps up to KEPT_BYTES for its next block: new pages for every block took 2 us a page,
    a tenth of all CPU time.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


def _private_bytes(process: psutil.Process) -> int:
    try:
        info = process.memory_info()
        if hasattr(info, "shared"):  # Linux: private memory is RSS without files' pages; USS is slow to read
            return int(info.rss - info.shared)
        return int(process.memory_full_info().uss)
    except psutil.AccessDenied:
        return int(info.rss)
    except psutil.Error:
        return 0


def _resource_limits(address_space: int, data: int) -> list[tuple[str, int, int]]:
    """Return name, limit and use (bytes) of each memory limit that the shell has set."""
    if sys.platform == "win32":
        return []
    import resource

    kinds = (("ulimit -v", resource.RLIMIT_AS, address_space), ("ulimit -d", resource.RLIMIT_DATA, data))
    totals = ((name, resource.getrlimit(kind)[0], used) for name, kind, used in kinds)
    return [limit for limit in totals if limit[1] != resource.RLIM_INFINITY]
