"""Waiting for a network, and hearing that the run ends meanwhile."""

from __future__ import annotations

import queue
import threading
import time

stopping = threading.Event()
"""Set when the run ends: what reads or waits then raises `KeyboardInterrupt`. The next run clears it."""

notices: queue.SimpleQueue[str] = queue.SimpleQueue()
"""One line for each wait, for the main thread to print."""

_announced: dict[str, float] = {}


def pause(seconds: float, what: str) -> None:
    """Sleep until `stopping`, with one notice: threads that wait for the same meanwhile add none."""
    now = time.monotonic()
    if now >= _announced.get(what, 0):
        _announced[what] = now + seconds
        notices.put(f"waiting for {what}, again in {seconds:.0f} s")
    if stopping.wait(seconds):
        raise KeyboardInterrupt
