"""What is said: everything goes through the logger `fineweb_stream`, at once, from any thread.

A script configures it as any library's logger. The command line, and `prepare()` in a script that has configured
nothing, print the lines as plain sentences.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from .redact import escape

log = logging.getLogger("fineweb_stream")
log.addHandler(logging.NullHandler())  # else Python prints warnings by itself


def _escape(record: logging.LogRecord) -> bool:
    """Make a message one line in which nothing foreign steers a terminal, whoever prints it."""
    record.msg, record.args = escape(record.getMessage()), ()
    return True


log.addFilter(_escape)


class _Printer(logging.Handler):
    """Prints each line on standard output as it comes."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):  # a terminal or a pipe that is gone is no reason to stop
            print(record.getMessage(), flush=True)


@contextlib.contextmanager
def printed() -> Iterator[None]:
    """Print meanwhile what is logged, unless that is done already."""
    if any(isinstance(handler, _Printer) for handler in log.handlers):
        yield
        return
    printer, level = _Printer(), log.level
    log.addHandler(printer)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(printer)
        log.setLevel(level)


def has_listener() -> bool:
    """Tell whether a script has handlers of its own for this logger, or for all."""
    handlers = log.handlers + (logging.getLogger().handlers if log.propagate else [])
    return any(not isinstance(handler, logging.NullHandler) for handler in handlers)
