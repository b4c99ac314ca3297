"""The errors a user can meet. Each says what, where, and what to type next.

`PrepareError` is the base: the command line prints it without a traceback and leaves with its `exit_status`.
"""

from __future__ import annotations

import signal

from .redact import escape


class PrepareError(Exception):
    """Something went wrong that a person can mend.

    `hint` is the way out; `saved` is what a run adds when the same command continues it. As text each is a line, in
    which nothing foreign can steer a terminal.
    """

    exit_status = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)  # both in `args`: exceptions cross process borders by pickle
        self.message = message
        self.hint = hint
        self.saved = ""

    def __str__(self) -> str:
        return "\n  ".join(escape(part) for part in (self.message, self.hint, self.saved) if part)


class InputError(PrepareError):
    """The command or the input cannot be used as it is."""

    exit_status = 2


class ChangedError(InputError):
    """A file is not what it was when the run looked at it first."""


class NotWholeError(InputError):
    """A parquet file has no footer that can be read: it was cut off, or is something else."""


class NoTextError(InputError):
    """A parquet file has no column of text of the names that were given."""


class MemoryLimitError(PrepareError):
    """The work does not fit in the memory it may use."""

    exit_status = 3


class DiskError(PrepareError):
    """The disk is full, or does not take what is written."""

    exit_status = 4


class EngineError(PrepareError):
    """The fast engine and tiktoken do not agree: no id of it can be trusted."""


class RemoteError(PrepareError):
    """The network or a server did not come back in time."""


class Interrupted(KeyboardInterrupt):
    """A signal asked the run to stop; `saved` says what is saved.

    A `KeyboardInterrupt`, so that a script which handles Ctrl+C handles this too.
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
        """128 + the signal's number, as a shell reports it."""
        return 128 + self.signal_number


class RecordError(Exception):
    """One record (line, row or document) cannot be used; raised where the block is read.

    `record` counts from the block's first record: only the run knows how many came before, and turns this into an
    `InputError` that names the line.
    """

    def __init__(self, record: int, byte: int | None, message: str, hint: str) -> None:
        super().__init__(record, byte, message, hint)
        self.record = record
        self.byte = byte
        self.message = message
        self.hint = hint


class TooLargeError(RecordError):
    """A single document does not fit in the memory budget; it is named before it is read."""


class GrownError(Exception):
    """A block came to much more than was announced, and is to be cut again; it was not read."""


class Cancelled(Exception):
    """The run ends and nobody wants the result any more: raised in what waits or loops, never shown."""
