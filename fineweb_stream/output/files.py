"""The only module that changes files: each step is durable before the next one relies on it.

A file gets its final name when it is complete: written beside it as `NAME.part`, fsynced, renamed, the folder fsynced.
(Windows has no fsync of a folder; there the rename is as durable as the system makes it.)
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from ..support.errors import DiskError, PrepareError

COPY_BYTES = 8 << 20
FLUSH_BYTES = 32 << 20
"""After so much new data the disk is set to work on it, so that little is left to wait for when it must be durable."""

_O_BINARY = getattr(os, "O_BINARY", 0)  # Windows translates newlines without it


def part_path(path: Path) -> Path:
    """The name of a file while it is written."""
    return path.with_name(path.name + ".part")


@contextmanager
def disk_errors(path: Path, n_bytes: int = 0) -> Iterator[None]:
    """Turn what the system says of a write into a `DiskError` that says what to do."""
    try:
        yield
    except OSError as error:
        needed = f" (this write needs {n_bytes:,} bytes)" if n_bytes else ""
        if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", None)):
            hint = "make room there"
        elif error.errno == errno.ENOENT and not path.parent.exists():
            hint = f"make the folder first: {path.parent}"
        else:
            hint = "make sure that the folder can be written to"
        raise DiskError(f"{path}: {error.strerror}{needed}", hint) from error


def free_bytes(folder: Path) -> int:
    """Return how many bytes a user may still write in a folder, or where it will be made."""
    with disk_errors(folder):
        while not folder.exists():
            folder = folder.absolute().parent
        return shutil.disk_usage(folder).free


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    if os.name == "nt":
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace(source: Path, target: Path) -> None:
    """Rename, durably."""
    with disk_errors(target):
        os.replace(source, target)
        sync_folder(target.parent)


def remove(path: Path) -> None:
    """Delete a file if it is there."""
    with disk_errors(path):
        path.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes) -> None:
    """Write a small file so that its name holds the old or the new data, never a part."""
    write_pieces(path, [data])


def write_pieces(path: Path, pieces: Iterable[bytes]) -> None:
    """Do as `write_whole` with data that come in pieces."""
    part = part_path(path)
    with disk_errors(path):
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _O_BINARY, 0o666)
    try:
        try:
            for data in pieces:
                with disk_errors(path, len(data)):
                    _write_all(fd, data)
            with disk_errors(path):
                os.fsync(fd)
        finally:
            os.close(fd)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    replace(part, path)


def _write_all(fd: int, data: bytes | memoryview) -> None:
    view = memoryview(data).cast("B")  # a short write is told in bytes, whatever the items are
    while len(view):
        view = view[os.write(fd, view) :]


class Part:
    """A file that grows under a temporary name; it holds `n_bytes` when it is taken up again, and no more.

    With `is_hashed` its SHA-256 is kept up to date, which reads again what is there already. `header_bytes` before all
    that are left free for a header that is only known at the end; neither `n_bytes` nor the hash covers them.

    A failed write or fsync is final: Linux may drop the pages that a failed fsync covered, and the next fsync returns 0
    (Rebello et al. 2020, "Can Applications Recover from fsync Failures?"). So the file never becomes durable again:
    each later `sync` raises the first error, and a resumed run cuts the file back to its last good commit.

    Raises `PrepareError` when it holds less, `DiskError` when the disk does not take what is written.
    """

    def __init__(self, path: Path, n_bytes: int = 0, is_hashed: bool = True, header_bytes: int = 0) -> None:
        self.path = path
        self.n_bytes = n_bytes
        self._header_bytes = header_bytes
        self._part = part_path(path)
        self._digest = hashlib.sha256()
        self._is_synced = False
        self._failure: DiskError | None = None
        self._n_flushed = n_bytes
        self._beside = ThreadPoolExecutor(2, "encode-disk")
        self._hashing: Future[None] | None = None
        self._flushing: Future[None] | None = None
        if not self._part.exists() and path.exists():
            replace(path, self._part)  # the name was given, the record of it was lost: the name is taken back
        with disk_errors(path):
            self._fd = os.open(self._part, os.O_RDWR | os.O_CREAT | _O_BINARY, 0o666)
            has_bytes = os.fstat(self._fd).st_size
        try:
            if n_bytes and has_bytes < header_bytes + n_bytes:
                raise PrepareError(
                    f"{self._part}: holds {has_bytes:,} bytes, but the record of the run says"
                    f" {header_bytes + n_bytes:,}",
                    "the file was changed by something else: start over with --overwrite",
                )
            with disk_errors(path):
                os.ftruncate(self._fd, header_bytes + n_bytes)  # a header that is not there yet is zeros
                sync_folder(path.parent)
            for data in read_pieces(self._part, header_bytes, header_bytes + n_bytes if is_hashed else 0):
                self._digest.update(data)
            os.lseek(self._fd, 0, os.SEEK_END)
        except BaseException:
            self.close()
            raise

    @property
    def sha256(self) -> str:
        """The hash of all that was written."""
        self._end_hashing()
        return self._digest.hexdigest()

    def write(self, data: bytes | memoryview) -> None:
        """Append; durable after `sync`. The data is hashed in a thread: it must not change until the next call."""
        if not len(data):
            return
        with self._final_errors(memoryview(data).nbytes):
            _write_all(self._fd, data)
        self._end_hashing()
        self._hashing = self._beside.submit(self._digest.update, data)
        self.n_bytes += memoryview(data).nbytes
        self._is_synced = False
        if self.n_bytes - self._n_flushed >= FLUSH_BYTES and (self._flushing is None or self._flushing.done()):
            self._end_flushing()
            self._n_flushed = self.n_bytes
            self._flushing = self._beside.submit(os.fsync, self._fd)

    def write_header(self, data: bytes) -> None:
        """Fill the room that was left for the header; durable after `sync`."""
        assert len(data) == self._header_bytes
        if data:
            with self._final_errors(len(data)):
                os.lseek(self._fd, 0, os.SEEK_SET)
                _write_all(self._fd, data)
                os.lseek(self._fd, 0, os.SEEK_END)
            self._is_synced = False

    def sync(self) -> None:
        """Make durable what was written."""
        if self._failure:
            raise self._failure
        if not self._is_synced:
            self._end_flushing()
            with self._final_errors():
                os.fsync(self._fd)
            self._is_synced = True

    @contextmanager
    def _final_errors(self, n_bytes: int = 0) -> Iterator[None]:
        """Do as `disk_errors`, and keep the first error for each later `sync`."""
        try:
            with disk_errors(self.path, n_bytes):
                yield
        except DiskError as error:
            self._failure = self._failure or error
            raise

    def _end_hashing(self) -> None:
        """Wait for the hash, which must take the data in order."""
        if self._hashing:
            self._hashing.result()

    def _end_flushing(self) -> None:
        """Wait for the flush that is under way; an error of the disk is told once only, so it is raised here."""
        flushing, self._flushing = self._flushing, None
        if flushing:
            with self._final_errors():
                flushing.result()

    def copy_from(self, source: Path, check: Callable[[], None]) -> None:
        """Append another file without reading it into this process where the system can; `check` may raise between.

        The hash does not follow.
        """
        with self._final_errors(source.stat().st_size), source.open("rb", buffering=0) as file:
            while n := self._copy_some(file.fileno()):
                self.n_bytes += n
                check()
        self._is_synced = False

    def _copy_some(self, source_fd: int) -> int:
        if hasattr(os, "copy_file_range"):
            try:
                return os.copy_file_range(source_fd, self._fd, 8 * COPY_BYTES)
            except OSError as error:
                if error.errno not in (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM):
                    raise
        data = os.read(source_fd, COPY_BYTES)
        _write_all(self._fd, data)
        return len(data)

    def close(self) -> None:
        """Leave the file as it is, under its temporary name."""
        self._beside.shutdown()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def finish(self) -> None:
        """Give the file its final name; everything in it is durable first."""
        self.sync()
        self.close()
        replace(self._part, self.path)


def read_pieces(path: Path, start: int, stop: int) -> Iterator[bytes]:
    """Yield a file's bytes from `start` to `stop` in pieces of COPY_BYTES, or to its end if that comes first."""
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while start < stop and (data := file.read(min(COPY_BYTES, stop - start))):
            yield data
            start += len(data)
