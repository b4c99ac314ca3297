"""The logger `fineweb_stream`, which all messages go through, at once and from any thread.

A script configures it like any library's logger. The command line, and `prepare()` in a script that has configured no
logging, print the messages as plain lines.
"""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import sys
import threading
from collections.abc import Iterable, Iterator

from .errors import DiskError
from .redact import escape

log = logging.getLogger("fineweb_stream")
_changing = threading.Lock()
log.addHandler(logging.NullHandler())  # else Python itself prints warnings


def _escape(record: logging.LogRecord) -> bool:
    """Make a message a single line without control characters, whichever handler prints it."""
    record.msg, record.args = escape(record.getMessage()), ()
    return True


log.addFilter(_escape)


class Printer(logging.Handler):
    """Prints each message on standard output at once, for `n_users`; `lost` is the last error in doing so."""

    lost: OSError | None = None
    n_users = 0
    level_before = logging.NOTSET

    def emit(self, record: logging.LogRecord) -> None:
        """Print the message, with escapes for characters that the stream's encoding lacks."""
        message = record.getMessage()
        try:
            try:
                print(message, flush=True)
            except UnicodeEncodeError:
                print(message.encode("ascii", "backslashreplace").decode(), flush=True)
        except OSError as error:  # a closed terminal or pipe is no reason to stop the run
            self.lost = error
        except ValueError:  # a script has closed its standard output
            pass


def say(lines: Iterable[str]) -> None:
    """Log lines in order: those that begin with `warning: ` or `note: ` as warnings, the others as information."""
    for line in lines:
        log.log(logging.WARNING if line.startswith(("warning: ", "note: ")) else logging.INFO, line)


@contextlib.contextmanager
def printed() -> Iterator[Printer]:
    """Print the messages that are logged inside this block, each once; several threads may be in such a block."""
    with _changing:
        printer = next((handler for handler in log.handlers if isinstance(handler, Printer)), Printer())
        if not printer.n_users:
            log.addHandler(printer)
            printer.level_before = log.level
            log.setLevel(log.level or logging.INFO)
        printer.n_users += 1
    try:
        yield printer
    finally:
        with _changing:
            printer.n_users -= 1
            if not printer.n_users:
                log.removeHandler(printer)
                log.setLevel(printer.level_before)


def hold_output(errors: str) -> None:
    """Buffer standard output until it is flushed, which then reports write errors; `errors` handles encoding errors.

    A standard stream that was closed before the program began (None) is replaced by the null device.
    """
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 (both stay open until the program ends)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):  # tests may replace it
        sys.stdout.reconfigure(errors=errors, write_through=False)


def flush_output(program: str, status: int, is_all: bool = True, lost: OSError | None = None) -> int:
    """Flush standard output and return the exit status: `status`, or `DiskError`'s if output was lost.

    Lost output counts only if it `is_all` that the program produces, and not on a pipe that was closed (`| head`).
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        lost = error
    if lost:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else Python flushes again at exit
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
    """Tell whether a script has given this logger or the root logger a handler that does something."""
    handlers = log.handlers + (logging.getLogger().handlers if log.propagate else [])
    return any(not isinstance(handler, logging.NullHandler | Printer) for handler in handlers)
