"""Turn what stopped a run into the error to show: with the file and the place in it, never a traceback."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, CancelledError
from pathlib import Path

from ..inputs.blocks import Source
from ..inputs.storage import check_unchanged
from ..output import files
from ..output.changes import locate
from ..output.own import LOG_NAME
from ..output.state import State
from ..support.cancel import Cancel
from ..support.errors import (
    Cancelled,
    DiskError,
    InputError,
    Interrupted,
    MemoryLimitError,
    PrepareError,
    RecordError,
    TooLargeError,
)
from ..support.model import Input
from .schedule import WorkerError
from .worker import range_of


def explain(
    error: BaseException, state: State, sources: Sequence[Source], folder: Path, cancel: Cancel
) -> BaseException:
    """Return the error to show for the one that ended a run; `prepare.log` gets the traceback of an unexpected one."""
    if cancel.signal_number and isinstance(error.__cause__ or error, Cancelled):
        return Interrupted(cancel.signal_number)
    if isinstance(error, DiskError) and not folder.is_dir():
        return DiskError(
            f"{folder}: the folder is gone: it was moved or deleted while the run worked",
            "put it back, and the same command continues",
        )
    if isinstance(error.__cause__ or error, BrokenExecutor | CancelledError):
        return PrepareError(
            f"{sources[state.input].input.shown}, after {state.offset:,}: the executor was shut down, or a worker of it"
            " was killed, or died; the system kills one when memory gets short",
            "make another executor, with fewer workers where memory is short, and call again; a script that starts"
            " processes does so below if __name__ == '__main__':",
        )
    if not isinstance(error, WorkerError):
        if isinstance(error, PrepareError | KeyboardInterrupt | ModuleNotFoundError):  # the last is named by the caller
            return error
        if isinstance(error, OSError) and error.filename:  # of the folder: inputs have errors of their own
            return files.unreadable(error.filename, error)
        return _no_memory(error) or _unexpected(error, sources[state.input].input, f"after {state.offset:,}", folder)
    cause, source = error.__cause__, error.block.source
    assert cause is not None
    try:
        check_unchanged(sources[source.number])
    except InputError as changed:  # this explains the other error
        return changed
    if isinstance(cause, RecordError):
        n_before = state.n_records if source.number == state.input else 0
        kind = MemoryLimitError if isinstance(cause, TooLargeError) else InputError
        place = locate(source.input, source.unit, cause.record + n_before, cause.byte)
        return kind(f"{place}: {cause.message}", cause.hint)
    if isinstance(cause, PrepareError):
        return cause
    if no_memory := _no_memory(cause, f"{source.input.shown}, from {error.block.start:,}: "):
        return no_memory
    return _unexpected(cause, source.input, range_of(error.block), folder)


def _no_memory(error: BaseException, place: str = "") -> MemoryLimitError | None:
    """Return the error to show if memory ran out: in Python, in Arrow, or for a new thread's stack. Otherwise None."""
    reason = str(error).partition("\n")[0] or "no reason given"
    is_thread = isinstance(error, RuntimeError) and "start new thread" in reason
    if not (is_thread or isinstance(error, MemoryError)):
        return None
    return MemoryLimitError(
        f"{place}out of memory ({reason})",
        "raise the limit (ulimit -v or -u, a container's), or use fewer workers: --workers 1",
    )


def _unexpected(error: BaseException, input: Input, place: str, folder: Path) -> PrepareError:
    path = folder / LOG_NAME
    names = ("", "") if input.is_stdin else (input.path, input.shown)  # "-" may be in any text
    first_line = str(error).partition("\n")[0].replace(*names)
    message = f"{input.shown}, {place}: {type(error).__name__}: {first_line}"
    try:
        text = "".join(traceback.format_exception(error)).replace(*names)
        files.append_text(path, text, "prepare.py: tracebacks of unexpected errors")
    except (OSError, InputError):
        return PrepareError(message, "the traceback could not be written")
    return PrepareError(message, f"the traceback is in {path}")
