"""Standard input: a pipe that passes once, and may be silent for long."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import select
import stat
import sys
from typing import cast

from ..support.cancel import TICK_SECONDS
from ..support.errors import InputError
from ..support.waiting import check, current

_HEAD_BYTES = 1 << 20
_PIECE_BYTES = 256 << 10


class StandardInput:
    """Standard input as a file to read from: what waits for it ends with the run.

    Where `select` knows no pipes, on Windows, it ends only with the next data.
    """

    def read(self, n_bytes: int) -> bytes:
        """Return `n_bytes`, less only at the end."""
        buffer = cast(io.BufferedReader, sys.stdin.buffer)
        data = bytearray()
        while len(data) < n_bytes:
            _wait_for(buffer)
            piece = buffer.read1(min(n_bytes - len(data), _PIECE_BYTES))  # keeps nothing back that select cannot see
            if not piece:
                current().wait(TICK_SECONDS)  # Ctrl+C ends the whole pipeline: this end may come before our own signal
                break
            data += piece
        return bytes(data)


@functools.cache
def stdin_head() -> bytes:
    """Return the first MiB of standard input, which is looked at before it is read as an input.

    Raises `InputError` where it is closed or empty.
    """
    head = StandardInput().read(_HEAD_BYTES) if sys.stdin else b""
    if not head:
        what = "empty" if sys.stdin else "closed"
        raise InputError(f"standard input is {what}", "pipe text into it: cat corpus.txt | prepare.py -")
    return head


def is_whole_head() -> bool:
    """Tell whether the head is all of standard input."""
    return len(stdin_head()) < _HEAD_BYTES


def is_piped(seconds: float) -> bool:
    """Tell whether something is piped into standard input, or redirected, and comes within a time."""
    try:
        buffer = cast(io.BufferedReader, sys.stdin.buffer)
        kind = os.fstat(buffer.fileno()).st_mode
        if not (stat.S_ISFIFO(kind) or stat.S_ISREG(kind)) or not select.select([buffer], [], [], seconds)[0]:
            return False
        return bool(buffer.peek(1))
    except (AttributeError, OSError, ValueError):  # closed, replaced, or on Windows, where select knows no pipes
        return False


def _wait_for(buffer: io.BufferedReader) -> None:
    with contextlib.suppress(OSError, ValueError):
        while not select.select([buffer], [], [], TICK_SECONDS)[0]:
            check()
