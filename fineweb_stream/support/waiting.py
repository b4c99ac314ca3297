"""Waiting for a network, and hearing that the run ends meanwhile."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

TICK_SECONDS = 0.25

notices: queue.SimpleQueue[str] = queue.SimpleQueue()
"""One line for each wait, for the main thread to print."""

_announced: dict[str, float] = {}
_thread = threading.local()


@contextmanager
def until(stopped: Callable[[], bool]) -> Iterator[None]:
    """What reads a network or waits in this thread meanwhile ends with `KeyboardInterrupt` once `stopped` says yes."""
    before = getattr(_thread, "stopped", None)
    _thread.stopped = stopped
    try:
        yield
    finally:
        _thread.stopped = before


def check() -> None:
    """Raise `KeyboardInterrupt` when it is time to end."""
    stopped = getattr(_thread, "stopped", None)
    if stopped and stopped():
        raise KeyboardInterrupt


def pause(seconds: float, what: str) -> None:
    """Sleep, with one notice: threads that wait for the same meanwhile add none."""
    end = time.monotonic() + seconds
    if end - seconds >= _announced.get(what, 0):
        _announced[what] = end
        notices.put(f"waiting for {what}, again in {seconds:.0f} s")
    check()
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, TICK_SECONDS))
        check()
