"""One token for "it is time to end": a signal handler sets it and no more; whatever waits or loops looks at it.

Not covered: calls that nothing ends from outside (an engine in one piece of many megabytes, a read from a dead disk).
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from .errors import Cancelled, Interrupted

T = TypeVar("T")

TICK_SECONDS = 0.1
"""How often whatever waits looks at its token."""

_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")


class Cancel:
    """A token that is set once and never cleared; with a `parent` it is set when the parent is, too.

    >>> run = Cancel()
    >>> workers = Cancel(run)
    >>> workers.set()
    >>> workers.is_set, run.is_set
    (True, False)

    Plain attributes, no locks: a signal handler may set it in the midst of anything.
    """

    def __init__(self, parent: Cancel | None = None) -> None:
        self._parent = parent
        self._is_set = False
        self._signal_number = 0

    def __repr__(self) -> str:
        return "<Cancel: set>" if self.is_set else "<Cancel: not set>"

    def set(self, signal_number: int = 0) -> None:
        """Ask everything that looks at this token to end; `signal_number` says which signal wants it."""
        self._signal_number = self._signal_number or signal_number
        self._is_set = True

    @property
    def is_set(self) -> bool:
        """Whether it is time to end."""
        return self._is_set or (self._parent is not None and self._parent.is_set)

    @property
    def signal_number(self) -> int:
        """Which signal asked to end, 0 for none."""
        return self._signal_number or (self._parent.signal_number if self._parent else 0)

    def check(self) -> None:
        """Raise `Cancelled` when it is time to end."""
        if self.is_set:
            raise Cancelled

    def wait(self, seconds: float) -> None:
        """Sleep for so long; raise `Cancelled` at most TICK_SECONDS after the token is set."""
        end = time.monotonic() + seconds
        self.check()
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, TICK_SECONDS))
            self.check()


NEVER = Cancel()
"""For callers that have nothing to cancel: nobody sets it."""


def aside(function: Callable[[], T], cancel: Cancel, seconds: float = math.inf) -> T:
    """Call in a thread that is left behind once the token is set, or after so many seconds (`TimeoutError`).

    >>> aside(lambda: 6 * 7, NEVER)
    42

    For calls that nothing ends from outside: a name that is looked up, a connection that is made.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True, name="aside").start()
    end = time.monotonic() + seconds
    while not wait([future], min(TICK_SECONDS, max(end - time.monotonic(), 0))).done:
        cancel.check()
        if time.monotonic() >= end:
            raise TimeoutError
    return future.result()


_active: Cancel | None = None  # whose signal handlers are in place: they are the process's, too


@contextmanager
def cancel_on_signals() -> Iterator[Cancel]:
    """Yield a token that the first signal sets, within another such block that block's own.

    A second signal leaves the process at once; what was recorded stays recorded. Outside the main thread, where Python
    takes no signals, nothing sets the token.

    Raises `Interrupted` for a `Cancelled` that a signal has caused.
    """
    global _active
    is_main = threading.current_thread() is threading.main_thread()
    if _active is not None and is_main:
        yield _active
        return
    cancel = Cancel()

    def handle(number: int, frame: FrameType | None) -> None:
        if cancel.is_set:
            os._exit(128 + number)
        cancel.set(number)

    before: dict[int, Any] = {}
    if is_main:
        for number in (getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP, and means it
                before[number] = signal.signal(number, handle)
        _active = cancel
    try:
        yield cancel
    except Cancelled:
        if not cancel.signal_number:
            raise
        raise Interrupted(cancel.signal_number) from None
    finally:
        if _active is cancel:
            _active = None
        for number, handler in before.items():
            signal.signal(number, handler)
