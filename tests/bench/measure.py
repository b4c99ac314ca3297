"""One command -> how long it took, how much CPU time, and how much memory its process tree held (Linux, macOS)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil

SAMPLE_SECONDS = 0.05


class Failed(Exception):
    """A command that did not end well: its last words."""


class Measurement(NamedTuple):
    """Wall and CPU seconds of the whole tree, its peak of memory (0: not watched), and what it printed last."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    said: dict[str, Any]


def measure(command: list[str], env: dict[str, str], log: Path, timeout: float, watch: bool) -> Measurement:
    """Run a command to its end; `watch` its memory, which costs it some time.

    Raises `Failed` unless it exits with 0 before `timeout` seconds.
    """
    with log.open("wb") as output:
        started = time.perf_counter()
        process = subprocess.Popen(command, env=env, stdout=output, stderr=output, start_new_session=True)
        with _killed_after(process.pid, timeout), _watched(process.pid if watch else None) as peak:
            _, status, usage = os.wait4(process.pid, 0)  # usage: its own and that of all descendants it waited for
        seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    last = log.read_text(errors="replace").strip().rsplit("\n", 3)
    if process.returncode:
        why = f"killed after {timeout:.0f} s" if seconds >= timeout else f"exit status {process.returncode}"
        raise Failed(f"{why}: {' | '.join(last[-3:])[-300:]}")
    said = {}
    with contextlib.suppress(ValueError):
        said = json.loads(last[-1])
    return Measurement(seconds, usage.ru_utime + usage.ru_stime, peak[0], said if isinstance(said, dict) else {})


@contextlib.contextmanager
def _killed_after(pid: int, timeout: float) -> Iterator[None]:
    """End the process and its children when it takes too long, or when this is left for another reason."""
    timer = threading.Timer(timeout, _kill, [pid])
    timer.start()
    try:
        yield
    except BaseException:
        _kill(pid)
        raise
    finally:
        timer.cancel()


def _kill(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)  # it leads a session of its own: the group is what it started, nothing else


@contextlib.contextmanager
def _watched(pid: int | None) -> Iterator[list[int]]:
    """Keep the peak of the tree's memory in a list of one, sampled every SAMPLE_SECONDS."""
    peak, stop = [0], threading.Event()

    def watch() -> None:
        while not stop.wait(SAMPLE_SECONDS):
            peak[0] = max(peak[0], tree_bytes(pid))

    thread = threading.Thread(target=watch)
    if pid:
        thread.start()
    try:
        yield peak
    finally:
        stop.set()
        if pid:
            thread.join()


def tree_bytes(pid: int | None) -> int:
    """Return the memory of a process and its descendants that no file backs; what they share is counted once."""
    with contextlib.suppress(psutil.Error):
        parent = psutil.Process(pid)
        return sum(map(_process_bytes, [parent, *parent.children(recursive=True)]))
    return 0


def _process_bytes(process: psutil.Process) -> int:
    """Pss_Anon + Pss_Shmem on Linux: each page divided by how many hold it. Elsewhere what is its own alone (USS)."""
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
        kib = {key: int(value.split()[0]) for key, _, value in (line.partition(":") for line in lines[1:])}
        return (kib["Pss_Anon"] + kib["Pss_Shmem"]) << 10
    except (OSError, KeyError):
        with contextlib.suppress(psutil.Error):
            return int(process.memory_full_info().uss)
    return 0
