"""One run per folder: `prepare.lock` says who works there."""

from __future__ import annotations

import errno
import json
import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..memory.guard import process_start
from ..support.errors import InputError
from ..support.log import log
from . import files

LOCK_NAME = "prepare.lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; a lock whose process is gone is taken over, with a note.

    Raises `InputError` when another run works there.
    """
    path = folder / LOCK_NAME
    pid = os.getpid()
    me = {"pid": pid, "host": socket.gethostname(), "started": process_start(pid), "run": uuid.uuid4().hex}
    owner = json.dumps(me)
    try:
        while not _create(path, owner):
            holder = _read(path)
            if holder is None:
                continue
            if not _is_stale(holder, path):
                raise InputError(
                    f"{path}: another run works in this folder ({_describe(holder)})",
                    "wait for it or stop it; or give this one another folder with --out",
                )
            log.info(f"taking over from a run that is gone ({_describe(holder)})")
            _take_away(path, holder)
        _remove_leftovers(path)
        yield
    finally:
        if _read(path) == owner:
            files.remove(path)


def _create(path: Path, owner: str) -> bool:
    """Make the lock with its content in one step, unless there is one."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    with files.disk_errors(path):
        try:
            temporary.write_text(owner)
            os.link(temporary, path)  # unlike a rename, it fails where the name is taken
        except FileExistsError:
            return False
        except OSError as error:
            if temporary.exists() and error.errno != errno.ENOSPC:  # no hard links on this file system
                return _create_plainly(path, owner)
            raise
        finally:
            with suppress(OSError):
                temporary.unlink()
    return True


def _create_plainly(path: Path, owner: str) -> bool:
    try:
        with path.open("x") as file:
            file.write(owner)
    except FileExistsError:
        return False
    return True


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return None
    except PermissionError as error:
        if os.name == "nt":  # it refuses to read what is being deleted
            return None
        raise InputError(
            f"{path}: {error.strerror}", "another user works in this folder: choose one with --out"
        ) from None


def _is_stale(holder: str, path: Path) -> bool:
    """Tell whether the lock's process is gone: dead, or its number now another program's."""
    try:
        owner = json.loads(holder)
        if owner["host"] != socket.gethostname():
            return False
        return bool(process_start(owner["pid"]) != owner["started"])
    except (ValueError, KeyError, TypeError):  # half written: its writer is gone, or needs another moment
        with suppress(OSError):
            return time.time() - path.stat().st_mtime > 2
        return False


def _take_away(path: Path, holder: str) -> None:
    """Remove a stale lock, but not the one that another process has put there meanwhile."""
    aside = path.with_name(f"{path.name}.{os.getpid()}.stale")
    with suppress(FileNotFoundError):
        os.replace(path, aside)
        if _read(aside) != holder:
            with suppress(FileExistsError):
                os.link(aside, path)
        files.remove(aside)


def _remove_leftovers(path: Path) -> None:
    """Delete what a process that was killed has left beside the lock; its number is in the name."""
    for left in path.parent.glob(f"{path.name}.*"):
        number = left.name[len(path.name) + 1 :].partition(".")[0]
        if number.isdigit() and process_start(int(number)) is None:
            files.remove(left)


def _describe(holder: str) -> str:
    try:
        owner = json.loads(holder)
        return f"process {owner['pid']} on {owner['host']}"
    except (ValueError, KeyError, TypeError):
        return "an unreadable lock"
