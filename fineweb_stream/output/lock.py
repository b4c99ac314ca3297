"""One run per folder: an operating-system lock on `prepare.lock`, which is released when its process ends.

The content of the file is for messages alone: a lock is never judged by a process number or a host name.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..support.errors import DiskError, InputError
from ..support.log import log
from . import files
from .own import LOCK_NAME

_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}
_MAX_BYTES = 4096


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make the folder and hold its lock; at the end, delete a folder that was made here and is still empty.

    If the file system has no locks, a warning says so and the run goes on. A read-only folder needs none.

    Raises `InputError` when another run works there, or `prepare.lock` is somebody else's file; `DiskError`.
    """
    path, made, fd = folder / LOCK_NAME, list[Path](), -1
    try:
        while fd < 0:  # another run may have deleted the folder, or the lock's name
            made = files.make_folder(folder) + made
            try:
                fd = _acquire(path)
            except DiskError:
                if _is_read_only(folder):
                    break  # a finished run is recognized all the same; another cannot write its first file
                if folder.exists():
                    raise
        yield
    finally:
        if fd >= 0:
            _release(path, fd)
        files.remove_empty(made)


def _is_read_only(folder: Path) -> bool:
    return os.access(folder, os.R_OK | os.X_OK) and not os.access(folder, os.W_OK)


def _acquire(path: Path) -> int:
    """Return the locked file; -1 if another run deleted its name between opening and locking."""
    fd = _open(path)
    try:
        content = os.read(fd, _MAX_BYTES)
        if content.strip(b"\0") and not content.startswith(b'{"pid": '):
            raise InputError(
                f"{path}: not a lock of this program",
                "move it away, or choose another folder with --out",
            )
        if not _lock(fd, path):
            raise InputError(
                f"{path}: another run works in this folder ({_describe(content)})",
                "wait for it or stop it; or give this one another folder with --out",
            )
        if os.name == "nt" or files.is_same(path, fd):  # there, the name of an open file stays
            with suppress(OSError):  # the content is only for messages
                os.ftruncate(fd, 0)
                os.lseek(fd, 0, os.SEEK_SET)
                os.write(fd, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
            return fd
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return -1


def _release(path: Path, fd: int) -> None:
    if os.name == "nt":  # Windows cannot delete an open file
        os.close(fd)
    with suppress(OSError):
        if os.name == "nt" or files.is_same(path, fd):
            path.unlink()
    if os.name != "nt":
        os.close(fd)


def _open(path: Path) -> int:
    """Open the lock file, or create it."""
    with files.disk_errors(path):
        try:
            return files.open_regular(path, os.O_RDWR | os.O_CREAT)
        except PermissionError as error:
            if not os.path.lexists(path):  # it is the folder that cannot be used
                raise
            raise InputError(
                f"{path}: {error.strerror}", "another user works in this folder: choose one with --out"
            ) from None


def _lock(fd: int, path: Path) -> bool:
    """Take the lock; return False if another process has it."""
    try:
        _lock_by_system(fd)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            return False
        log.warning(
            f"{path.parent}: this file system has no locks ({error.strerror}): make sure that no other run works"
            " in this folder"
        )
    return True


if sys.platform == "win32":
    import msvcrt

    _LOCKED_BYTE = 1 << 30  # others cannot read locked bytes, and must read who holds the lock

    def _lock_by_system(fd: int) -> None:
        os.lseek(fd, _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock_by_system(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _describe(content: bytes) -> str:
    try:
        owner = json.loads(content)
        return f"process {int(owner['pid'])} on {ascii(str(owner['host']))[1:-1]}"
    except (ValueError, KeyError, TypeError):
        return "its lock does not say which"
