"""Waiting for a network, and hearing that the run ends meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from .cancel import NEVER, Cancel
from .log import log

_announced: dict[str, float] = {}
_thread = threading.local()


@contextmanager
def until(cancel: Cancel) -> Iterator[None]:
    """What reads a network or waits in this thread meanwhile ends with `Cancelled` once the token is set."""
    before = current()
    _thread.cancel = cancel
    try:
        yield
    finally:
        _thread.cancel = before


def current() -> Cancel:
    """Return this thread's token."""
    cancel: Cancel = getattr(_thread, "cancel", NEVER)
    return cancel


def check() -> None:
    """Raise `Cancelled` when it is time to end."""
    current().check()


def pause(seconds: float, what: str) -> None:
    """Sleep, and say so once: threads that wait for the same meanwhile are silent."""
    end = time.monotonic() + seconds
    if end - seconds >= _announced.get(what, 0):
        _announced[what] = end
        log.info(f"waiting for {what}, again in {seconds:.0f} s")
    current().wait(seconds)
