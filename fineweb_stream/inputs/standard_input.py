"""Standard input: a pipe that can be read once, and may be silent for long."""

from __future__ import annotations

import contextlib
import io
import os
import select
import stat
import sys
from typing import cast

from ..support.cancel import NEVER, TICK_SECONDS, Cancel, aside
from ..support.errors import InputError
from ..support.shell import program

_HEAD_BYTES = 1 << 20
_PIECE_BYTES = 256 << 10
_HEAD = bytearray()  # the part that was read for format detection: global, as standard input is
_opened: object = None  # the standard input that has been opened beyond its head


class StandardInput:
    """Standard input as a file, after its `head` if that was read; the run's token can cancel waiting for data.

    On Windows, where `select` does not support pipes, a wait ends only when data arrives.
    """

    def __init__(self, cancel: Cancel, head: bytes = b"") -> None:
        self._cancel = cancel
        self._head = head

    def read(self, n_bytes: int) -> bytes:
        """Return `n_bytes`, fewer only at the end."""
        buffer = cast(io.BufferedReader, sys.stdin.buffer)
        data = bytearray(self._head[:n_bytes])
        self._head = self._head[n_bytes:]
        while len(data) < n_bytes:
            self._wait_for(buffer)
            piece = buffer.read1(min(n_bytes - len(data), _PIECE_BYTES))  # leaves nothing buffered, unseen by select
            if not piece:
                self._cancel.wait(TICK_SECONDS)  # Ctrl+C ends the whole pipeline: the input may end before our signal
                break
            data += piece
        return bytes(data)

    def _wait_for(self, buffer: io.BufferedReader) -> None:
        with contextlib.suppress(OSError, ValueError):
            while not select.select([buffer], [], [], TICK_SECONDS)[0]:
                self._cancel.check()


def stdin_head(cancel: Cancel = NEVER) -> bytes:
    """Return the first MiB of standard input, which is kept and read again as part of the input.

    Raises `InputError` if it is closed or empty.
    """
    if not _HEAD and sys.stdin:
        _HEAD.extend(StandardInput(cancel).read(_HEAD_BYTES))
    if not _HEAD:
        what = "empty" if sys.stdin else "closed"
        raise InputError(f"standard input is {what}", f"pipe text into it: COMMAND | {program()} -")
    return bytes(_HEAD)


def open_stdin(cancel: Cancel) -> StandardInput:
    """Return standard input from its start. Raises `InputError` if it was read before, beyond its head."""
    global _opened
    if _opened is sys.stdin and not is_whole_head():
        raise InputError("standard input was read before", "it can be read once: put the text in a file")
    _opened = sys.stdin
    return StandardInput(cancel, stdin_head(cancel))


def is_whole_head() -> bool:
    """Tell whether the head is all of standard input."""
    return len(stdin_head()) < _HEAD_BYTES


def is_piped(seconds: float) -> bool:
    """Tell whether standard input is a pipe or a file that has data within `seconds`."""
    try:
        buffer = cast(io.BufferedReader, sys.stdin.buffer)
        kind = os.fstat(buffer.fileno()).st_mode
        return (stat.S_ISFIFO(kind) or stat.S_ISREG(kind)) and _has_data(buffer, seconds)
    except (AttributeError, OSError, ValueError):  # closed, replaced, or silent
        return False


def _has_data(buffer: io.BufferedReader, seconds: float) -> bool:
    try:
        if not select.select([buffer], [], [], seconds)[0]:
            return False
    except OSError:  # Windows
        return bool(aside(lambda: buffer.peek(1), NEVER, seconds))
    return bool(buffer.peek(1))
