"""What is said: everything goes through the logger `fineweb_stream`, at once, from any thread.

A script configures it as any library's logger. The command line, and `prepare()` in a script that has configured
nothing, print the lines as plain sentences.
"""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import sys
from collections.abc import Iterator

from .errors import DiskError
from .redact import escape

log = logging.getLogger("fineweb_stream")
log.addHandler(logging.NullHandler())  # else Python prints warnings by itself


def _escape(record: logging.LogRecord) -> bool:
    """Make a message one line in which nothing foreign steers a terminal, whoever prints it."""
    record.msg, record.args = escape(record.getMessage()), ()
    return True


log.addFilter(_escape)


class Printer(logging.Handler):
    """Prints each line on standard output as it comes; `lost` is why one could not be."""

    lost: OSError | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Print it."""
        try:
            print(record.getMessage(), flush=True)
        except OSError as error:  # a terminal or a pipe that is gone is no reason to stop
            self.lost = error


@contextlib.contextmanager
def printed() -> Iterator[Printer]:
    """Print meanwhile what is logged, unless that is done already."""
    if printers := [handler for handler in log.handlers if isinstance(handler, Printer)]:
        yield printers[0]
        return
    printer, level = Printer(), log.level
    log.addHandler(printer)
    log.setLevel(logging.INFO)
    try:
        yield printer
    finally:
        log.removeHandler(printer)
        log.setLevel(level)


def hold_output(errors: str) -> None:
    """Let standard output keep what it is told until it is flushed, which says whether that can be written.

    A stream that was closed before the program began is None; then what is said goes nowhere.
    """
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 (both stay open to the program's end)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):  # a test may have put something else there
        sys.stdout.reconfigure(errors=errors, write_through=False)


def flush_output(program: str, status: int, is_all: bool = True, lost: OSError | None = None) -> int:
    """Write out what was printed, and return the exit status: another where that `is_all` there is, and it is lost.

    Nothing is lost on a pipe that is closed: `| head` has seen enough.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        lost = error
    if lost:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python would try again at its end
    with contextlib.suppress(OSError):
        is_closed = isinstance(lost, BrokenPipeError) or (os.name == "nt" and lost and lost.errno == errno.EINVAL)
        if lost and is_all and not (status or is_closed):
            status = DiskError.exit_status
            print(f"{program}: standard output: {lost.strerror}", file=sys.stderr)
        sys.stderr.flush()
        return status
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    return status


def has_listener() -> bool:
    """Tell whether a script has handlers of its own for this logger, or for all."""
    handlers = log.handlers + (logging.getLogger().handlers if log.propagate else [])
    return any(not isinstance(handler, logging.NullHandler) for handler in handlers)
