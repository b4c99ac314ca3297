"""Ctrl+C and friends: stop soon and save, but never in the middle of a step that belongs together."""

from __future__ import annotations

import _thread
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from .errors import Interrupted

_AGAIN_SECONDS = 0.01
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")


class Signals:
    """While entered, the first signal raises `Interrupted` in the main thread: at once, or at the end of `deferred()`.

    A second one while the first is dealt with leaves the process at once; what was recorded stays recorded. Outside the
    main thread, where Python takes no signals, it does nothing.

    In the functions of Python's import an exception could come between the taking of its lock and the `try` that gives
    it back, or in a callback that swallows it: all later imports would wait for ever. There it comes a little later.
    """

    def __init__(self) -> None:
        self.received = 0
        self._depth = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in (getattr(signal, name) for name in _NAMES if hasattr(signal, name)):
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP, and means it
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Let a signal wait until this block is left."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
        self._raise_if_received()

    def check(self) -> None:
        """Raise `Interrupted` if a signal waits: at places inside `deferred()` where leaving is safe."""
        if self.received:
            raise Interrupted(self.received)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if _must_wait(frame):
            _thread.start_new_thread(_send_later, (number,))  # a Timer's start would wait here for it to begin
            return
        if self.received:
            os._exit(128 + number)
        self.received = number
        self._raise_if_received()

    def _raise_if_received(self) -> None:
        if not self._depth:
            self.check()


def _must_wait(frame: FrameType | None) -> bool:
    """Tell whether a frame is of Python's import, or of the handler, which may have been called there."""
    if frame and frame.f_code.co_filename.startswith("<frozen importlib"):
        return True
    while frame:
        if frame.f_code is Signals._handle.__code__:
            return True
        frame = frame.f_back
    return False


def _send_later(number: int) -> None:
    """Send a signal to the main thread, from any other."""
    time.sleep(_AGAIN_SECONDS)
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, number)
    else:  # Windows
        signal.raise_signal(number)
