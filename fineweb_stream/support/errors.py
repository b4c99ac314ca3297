"""The errors that a user can meet. Each says what is wrong, where, and what to type next.

`PrepareError` is the base class: the command line prints it without a traceback and exits with its `exit_status`.
"""

from __future__ import annotations

import signal

from .redact import escape


class PrepareError(Exception):
    """Something went wrong that the user can fix.

    `hint` says how; a run sets `saved` if the same command resumes it. `str()` puts the message and these on a line
    each, with control characters escaped.
    """

    exit_status = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)  # both in `args`, which unpickling passes to `__init__`
        self.message = message
        self.hint = hint
        self.saved = ""

    def __str__(self) -> str:
        return "\n  ".join(escape(part) for part in (self.message, self.hint, self.saved) if part)


class InputError(PrepareError):
    """The command or the input cannot be used as it is."""

    exit_status = 2


class ChangedError(InputError):
    """A file has changed since the run first looked at it."""


class NotWholeError(InputError):
    """A parquet file has no readable footer: it is truncated, or not a parquet file."""


class NoTextError(InputError):
    """A parquet file has no text column with any of the given names."""


class MemoryLimitError(PrepareError):
    """The work does not fit in the memory that it may use."""

    exit_status = 3


class DiskError(PrepareError):
    """The disk is full, or writing to it failed."""

    exit_status = 4


class DamagedError(PrepareError):
    """A file of a run holds less than the record says."""


class EngineError(PrepareError):
    """The fast engine and tiktoken disagree, so the fast engine's ids cannot be trusted."""


class RemoteError(PrepareError):
    """The network failed, or a server did not answer in time."""


class Interrupted(KeyboardInterrupt):
    """A signal stopped the run; `saved` says what was saved.

    It is a `KeyboardInterrupt`, so a script that handles Ctrl+C handles it too.
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number
        self.saved = ""

    def __str__(self) -> str:
        name = signal.Signals(self.signal_number).name
        what = "Ctrl+C" if name == "SIGINT" else name
        return "\n  ".join(escape(part) for part in (f"stopped by {what}", self.saved) if part)

    @property
    def exit_status(self) -> int:
        """128 + the signal's number, as shells report it."""
        return 128 + self.signal_number


class RecordError(Exception):
    """One record (line, row or document) cannot be used; raised while its block is read.

    `record` counts from the block's first record; the run, which knows how many came before, turns this into an
    `InputError` that names the line. `byte` is where the problem is in the file, if known.
    """

    def __init__(self, record: int, byte: int | None, message: str, hint: str) -> None:
        super().__init__(record, byte, message, hint)
        self.record = record
        self.byte = byte
        self.message = message
        self.hint = hint


class TooLargeError(RecordError):
    """A single document does not fit in the memory budget; raised before it is read or parsed."""


class GrownError(Exception):
    """A block holds much more text than planned: it was not read, and must be cut into smaller blocks."""


class Cancelled(Exception):
    """The run is ending and needs no more results; raised in waits and loops, never shown to the user."""
