"""A cancellation token: a signal handler only sets it, and everything that waits or loops checks it.

Not covered: calls that cannot be interrupted (an engine encoding many megabytes, a read from a dead disk).
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

TICK_SECONDS = 0.1  # how often a wait checks its token

_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")


class Cancel:
    """A token that is set once and never cleared. It also counts as set when its `parent` is set.

    >>> run = Cancel()
    >>> workers = Cancel(run)
    >>> workers.set()
    >>> workers.is_set, run.is_set
    (True, False)

    It has plain attributes and no locks, because a signal handler may set it at any moment.
    """

    def __init__(self, parent: Cancel | None = None) -> None:
        self._parent = parent
        self._is_set = False
        self._signal_number = 0

    def set(self, signal_number: int = 0) -> None:
        """Set the token; `signal_number` is the signal that caused it (the first one is kept)."""
        self._signal_number = self._signal_number or signal_number
        self._is_set = True

    @property
    def is_set(self) -> bool:
        """Whether this token or its parent is set."""
        return self._is_set or (self._parent is not None and self._parent.is_set)

    @property
    def signal_number(self) -> int:
        """The number of the signal that set the token, or 0."""
        return self._signal_number or (self._parent.signal_number if self._parent else 0)

    def check(self) -> None:
        """Raise `Cancelled` if the token is set."""
        if self.is_set:
            raise Cancelled

    def wait(self, seconds: float) -> None:
        """Sleep for `seconds`; raise `Cancelled` at most TICK_SECONDS after the token is set."""
        end = time.monotonic() + seconds
        self.check()
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, TICK_SECONDS))
            self.check()


NEVER = Cancel()  # a token that is never set, for callers with nothing to cancel


def aside(function: Callable[[], T], cancel: Cancel, seconds: float = math.inf) -> T:
    """Return `function()`, called in a thread that is abandoned when the token is set or the time is up.

    >>> aside(lambda: 6 * 7, NEVER)
    42

    For calls that cannot be interrupted, such as a DNS lookup. Raises `Cancelled`, or `TimeoutError` after `seconds`.
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


_active: Cancel | None = None  # the token that the signal handlers set: global, as they are


@contextmanager
def cancel_on_signals() -> Iterator[Cancel]:
    """Yield a token that the first signal sets; a nested block yields the outer block's token.

    A second signal ends the process at once; what was recorded stays recorded. Outside the main thread, where Python
    cannot handle signals, nothing sets the token.

    Raises `Interrupted` instead of a `Cancelled` that a signal caused.
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
            if signal.getsignal(number) is not signal.SIG_IGN:  # keep ignoring it, as nohup asks
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
