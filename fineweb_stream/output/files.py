"""Changes a run's files: each step is durable before the next one relies on it.

A file is written as `NAME.RUN.part`; when it is complete, it is fsynced and renamed, and the folder is fsynced.
(Windows has no fsync of a folder; there the rename is as durable as the system makes it.) `RUN` is a number in the
manifest: no other program's file has such a name. Symlinks are never followed, pipes and devices never opened. Windows
neither renames nor deletes a file that is open: here all are closed before.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from ..support.errors import DamagedError, DiskError, InputError, PrepareError
from ..support.log import log
from ..support.units import format_size

Check = Callable[[], None]  # called now and then in long work; may raise

COPY_BYTES = 8 << 20
FLUSH_BYTES = 32 << 20
"""After this much new data a background fsync starts, so that little is left to wait for at a commit."""

HASH_BYTES = 4 << 20
"""How much new data is held until a thread hashes it: waking one for every block would take the GIL too often."""

NO_RUN = "0" * 12  # for the temporary name of a file that belongs to no run: NAME.part may be half of a download

SAID_BYTES = 4 << 30  # a file with more than this takes seconds to read again, so that a message says so
HEAD_BYTES = 32  # how many of a file's first bytes are in the record, to recognize the file

# O_BINARY: else Windows translates newlines. O_NONBLOCK: opening a pipe that took a file's place must not block.
_FLAGS = getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)

NO_ROOM = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG}
"""Errors of a full disk, a full quota, and a file at its size limit."""

_HINTS = dict.fromkeys(NO_ROOM, "make room there") | {
    errno.EFBIG: "raise the limit (ulimit -f), or start over with --overwrite and shorter files: of train by --layout"
    " npy and a smaller --shard-tokens, of val by a smaller --val-ratio",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.EEXIST: "it is not a folder: choose another one",
    errno.ENOTDIR: "it is not a folder: choose another one",
}

IN_USE = {5, 32, 33}
"""Windows' errors for a file that another program has open: access denied, sharing violation, lock violation."""

IN_USE_SECONDS = 2.0  # how long to wait for that program: a virus scanner or an indexer soon closes a new file

_NO_SYNC = {errno.EINVAL, errno.EBADF, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOTTY}
_NO_SYNC |= {errno.EISDIR, errno.EACCES}

_warn_once = functools.cache(log.warning)


def as_folder(name: str | os.PathLike[str], option: str = "--out") -> Path:
    """Return the output folder that a caller names. Raises `InputError` for no name, a URL, or a null character."""
    if not isinstance(name, str | bytes | os.PathLike):
        raise InputError(f"out={name!r}: not the name of a folder", "out='.' is the current folder")
    text = os.fsdecode(name)
    if not text:
        raise InputError(f"{option} without a name", "is a shell variable empty? . is the current folder")
    if "://" in text or "\0" in text:
        raise InputError(f"{option} {text}: not a folder on this machine", "name one, and copy the outputs from there")
    return Path(os.path.expanduser(text))  # a shell leaves the ~ in --out=~/data


def part_path(path: Path, run: str) -> Path:
    """Return the temporary name of a file that the run writes.

    >>> part_path(Path("val.bin"), "5e0c").name
    'val.bin.5e0c.part'
    """
    return path.with_name(f"{path.name}.{run}.part")


@contextmanager
def disk_errors(path: Path, n_bytes: int = 0) -> Iterator[None]:
    """Turn the `OSError` of a write into a `DiskError` that says what to do."""
    try:
        yield
    except OSError as error:
        needed = f" (this write needs {n_bytes:,} bytes)" if n_bytes else ""
        hint = _HINTS.get(error.errno or 0, "make sure that the folder can be written to")
        if error.errno == errno.ENOENT and not path.parent.exists():
            hint = f"make the folder first: {path.parent}"
        if _is_in_use(error):
            hint = f"does another program use it (a training, an editor)? If so, stop that first; else {hint}"
        raise DiskError(f"{path}: {error.strerror}{needed}", hint) from error


def make_folder(folder: Path) -> list[Path]:
    """Make a folder and those above it, even while others do the same; return those made here, the deepest first."""
    made: list[Path] = []
    with disk_errors(folder):
        if link := next((each for each in (folder, *folder.parents) if each.is_symlink() and not each.exists()), None):
            raise DiskError(
                f"{link}: a broken link to {os.readlink(link)}",
                "make the folder that it leads to, or mount its disk; or choose another one with --out",
            )
        for new in reversed([each for each in (folder, *folder.parents) if not each.exists()]):
            with suppress(FileExistsError):
                new.mkdir()
                made.insert(0, new)
        folder.mkdir(parents=True, exist_ok=True)  # fails if it is not a folder
    return made


def remove_empty(folders: Iterable[Path]) -> None:
    """Delete folders up to the first that is not empty."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def free_bytes(folder: Path) -> int:
    """Return how many bytes the user may still write in a folder, or where it will be made."""
    with disk_errors(folder):
        above = (each for each in (folder, *folder.absolute().parents) if each.exists())
        return shutil.disk_usage(next(above, folder)).free  # Windows may have no such drive


def max_file_bytes() -> int:
    """Return how large a file may be (bytes): `ulimit -f`."""
    if sys.platform == "win32":
        return sys.maxsize
    import resource

    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def sync_file(fd: int) -> None:
    """Make an open file's data durable."""
    if sys.platform == "darwin":  # there, fsync leaves them in the drive's cache, from which they go in any order
        import fcntl

        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
            return
        except OSError as error:  # not every file system has it
            if error.errno not in _NO_SYNC:
                raise
    os.fsync(fd)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, as far as the file system can."""
    if os.name == "nt":
        return
    try:
        fd = os.open(folder, os.O_RDONLY)
        try:
            sync_file(fd)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
        _warn_once(
            f"{folder}: this file system cannot make names durable (fsync of a folder: {error.strerror}); a power loss"
            " may cost more work than usual"
        )


def kind_of(path: Path) -> str:
    """Return what a name stands for (a link, a folder, ...), "" for a regular file and for nothing."""
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return ""
    kinds = {stat.S_IFLNK: "a link", stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
    return "" if stat.S_ISREG(mode) else kinds.get(stat.S_IFMT(mode), "a device")


def refuse_irregular(path: Path) -> None:
    """Raise `InputError` if one of the run's names stands for something that is not a regular file."""
    if kind := kind_of(path):
        raise InputError(
            f"{path}: {kind}, where a file of the run belongs",
            "it is left alone: move it away, or choose another folder with --out",
        )


def open_regular(path: Path, flags: int) -> int:
    """Open a regular file, never through a symlink. Raises `InputError` for anything else, `OSError` like `os.open`."""
    refuse_irregular(path)
    fd = os.open(path, flags | _FLAGS, 0o666)
    if not stat.S_ISREG(os.fstat(fd).st_mode):  # it took the file's place meanwhile
        os.close(fd)
        raise InputError(f"{path}: not a regular file", "move it away, or choose another folder with --out")
    return fd


def is_same(path: Path, fd: int) -> bool:
    """Tell whether a name still stands for an open file."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(fd))
    except OSError:
        return False


def replace(source: Path, target: Path) -> None:
    """Rename durably. What `target` stands for is lost: the caller knows that it is the run's own."""
    with disk_errors(target):
        _when_unused(lambda: os.replace(source, target))
        sync_folder(target.parent)


def remove(path: Path) -> None:
    """Delete a file if it is there."""
    with disk_errors(path):
        _when_unused(lambda: path.unlink(missing_ok=True))


def _when_unused(change: Check) -> None:
    """Rename or delete a file, on Windows as soon as no other program uses it."""
    end = time.monotonic() + IN_USE_SECONDS
    while True:
        try:
            return change()
        except OSError as error:
            if not _is_in_use(error) or time.monotonic() > end:
                raise
        time.sleep(0.05)


def _is_in_use(error: OSError) -> bool:
    return getattr(error, "winerror", None) in IN_USE


def write_whole(path: Path, pieces: Iterable[bytes], run: str = NO_RUN, check: Check | None = None) -> None:
    """Write a small file atomically: its name holds the old or the new data, never a part.

    `check` is called right before the rename. If it raises, the new data stay durable under the temporary name.
    """
    part = part_path(path, run)
    with disk_errors(path):
        if check is None:
            refuse_irregular(path)
        part.unlink(missing_ok=True)
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o666)
    try:
        try:
            for data in pieces:
                with disk_errors(path, len(data)):
                    _write_all(fd, data)
            with disk_errors(path):
                sync_file(fd)
        finally:
            os.close(fd)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    if check:
        check()
    replace(part, path)


def append_text(path: Path, text: str, title: str) -> None:
    """Append to a log that begins with the line `title`, or create it.

    Raises `OSError`, and `InputError` for a file that begins otherwise: it is not this program's.
    """
    with os.fdopen(open_regular(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), "r+b") as file:
        start = file.read(len(title))
        if start and start != title.encode():
            raise InputError(f"{path}: not this program's", "move it away")
        data = (text if start else f"{title}\n{text}").encode("utf-8", "backslashreplace")
        file.seek(0, os.SEEK_END)
        file.write(data)


def _write_all(fd: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while len(view):
        view = view[os.write(fd, view) :]


class Part:
    """A file that grows under a temporary name; a resumed one is truncated to `n_bytes`.

    Its SHA-256 is kept up to date, so a resumed file is read again; with `sha256` that must be its hash. `header_bytes`
    at its beginning are left free for a header that is known only at the end; neither `n_bytes` nor the hash covers
    them. Less than `hash_bytes` of what is written are held until they are hashed. `check` is called now and then while
    the file is read, and may raise.

    A failed fsync is final: Linux may drop the pages that it covered, and the next one returns 0 (Rebello et al. 2020,
    "Can Applications Recover from fsync Failures?"). So each later `sync` raises the first error, and a resumed run
    truncates the file to its last good commit. What a failed write left beyond `n_bytes` is truncated, too.

    Raises `PrepareError` if the file holds less or something else, `DiskError` if it cannot be written.
    """

    def __init__(
        self,
        path: Path,
        n_bytes: int = 0,
        *,
        run: str = NO_RUN,
        header_bytes: int = 0,
        sha256: str = "",
        hash_bytes: int = HASH_BYTES,
        check: Check = lambda: None,
    ) -> None:
        self.path = path
        self.n_bytes = n_bytes
        self._header_bytes = header_bytes
        self._part = part_path(path, run)
        self._digest = hashlib.sha256()
        self._head = b""
        self._is_synced = False
        self._failure: DiskError | None = None
        self._n_flushed = n_bytes
        self._beside = ThreadPoolExecutor(2, "encode-disk")
        self._hash_bytes = hash_bytes
        self._unhashed: list[memoryview] = []
        self._n_hashed = n_bytes  # or being hashed
        self._hashing: Future[None] | None = None
        self._flushing: Future[None] | None = None
        self._fd = self._open()
        try:
            if n_bytes >= SAID_BYTES:
                log.info(f"reading the {format_size(n_bytes)} of {path.name} that are written")
            if n_bytes:  # nothing is changed before it is known to be what the record says
                for data in read_checked(self._part, header_bytes, n_bytes, sha256, check, self._digest):
                    self._head += data[: HEAD_BYTES - len(self._head)]
            with disk_errors(path):
                os.ftruncate(self._fd, header_bytes + n_bytes)  # a header not yet written is zeros
                sync_folder(path.parent)
                os.lseek(self._fd, 0, os.SEEK_END)
        except BaseException:
            self.close()
            raise

    def _open(self) -> int:
        refuse_irregular(self._part)
        with disk_errors(self.path):
            if self.n_bytes == 0:  # left by a run that was stopped before its next commit
                self._part.unlink(missing_ok=True)
                return os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, 0o666)
            try:
                fd = open_regular(self._part, os.O_RDWR)
            except FileNotFoundError:
                raise changed(self._part, 0, self._header_bytes + self.n_bytes) from None
        if os.fstat(fd).st_nlink > 1:
            os.close(fd)
            raise InputError(f"{self._part}: has a second name (a hard link)", "move it away, or choose another --out")
        return fd

    @property
    def sha256(self) -> str:
        """The hash of everything written after the header."""
        self._hash(self._take_unhashed())
        return self._digest.hexdigest()

    @property
    def head(self) -> str:
        """The first HEAD_BYTES written after the header (hexadecimal)."""
        return self._head.hex()

    def write(self, data: bytes | memoryview) -> None:
        """Append; durable after `sync`. The data, which a thread hashes later, must not change."""
        if not len(data):
            return
        data = memoryview(data).cast("B")  # os.write counts bytes, whatever the items are
        with disk_errors(self.path, len(data)):
            _write_all(self._fd, data)
        self._head += bytes(data[: HEAD_BYTES - len(self._head)])
        self._unhashed.append(data)
        self.n_bytes += len(data)
        self._is_synced = False
        if self.n_bytes - self._n_hashed >= self._hash_bytes:
            self._hashing = self._beside.submit(self._hash, self._take_unhashed())
        if self.n_bytes - self._n_flushed >= FLUSH_BYTES and (self._flushing is None or self._flushing.done()):
            self._n_flushed = self.n_bytes
            self._flushing = self._beside.submit(self._fsync)

    def write_header(self, data: bytes) -> None:
        """Write the header into the space left for it; durable after `sync`."""
        assert len(data) == self._header_bytes
        if data:
            with disk_errors(self.path, len(data)):
                os.lseek(self._fd, 0, os.SEEK_SET)
                _write_all(self._fd, data)
                os.lseek(self._fd, 0, os.SEEK_END)
            self._is_synced = False

    def sync(self) -> None:
        """Make everything written durable. Raises `DiskError` also if something has deleted or moved the file."""
        if not os.path.lexists(self._part):
            raise DiskError(
                f"{self._part}: deleted or moved while the run worked",
                "put it back, and the same command continues; without it, start over with --overwrite",
            )
        if not self._is_synced:
            if self._flushing:
                self._flushing.result()
            self._fsync()
            self._is_synced = True
        if self._failure:
            raise self._failure

    def _fsync(self) -> None:
        """Do it, in any thread, and keep its error: the system reports it only once."""
        if not self._failure:
            try:
                with disk_errors(self.path):
                    sync_file(self._fd)
            except DiskError as error:
                self._failure = error

    def _take_unhashed(self) -> list[memoryview]:
        """Return what is to be hashed next, when all before it is: the hash must take the data in order."""
        if self._hashing:
            self._hashing.result()
        pieces, self._unhashed, self._n_hashed = self._unhashed, [], self.n_bytes
        return pieces

    def _hash(self, pieces: list[memoryview]) -> None:
        for piece in pieces:
            self._digest.update(piece)

    def copy_from(
        self, source: Path, start: int, n_bytes: int, sha256: str, check: Check, n_kept: int | None = None
    ) -> None:
        """Append `n_bytes` of another file from byte `start`, or only the first `n_kept` of them.

        `sha256` is the hash of the `n_bytes`, "" if it is unknown; `check` is called between pieces and may raise.

        Raises `DamagedError` if the other file has less, `PrepareError` if it has something else.
        """
        left = n_bytes if n_kept is None else n_kept
        if left >= SAID_BYTES:
            log.info(f"copying {format_size(left)} of {source.name}")
        with disk_errors(self.path, left):
            for data in read_checked(source, start, n_bytes, sha256, check):
                self.write(data[: max(left, 0)])
                left -= len(data)

    def close(self) -> None:
        """Close the file, which keeps its temporary name."""
        self._beside.shutdown()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def changed(path: Path, has_bytes: int, expected: int) -> DamagedError:
    """Return the error for a file that holds less than the record says."""
    return DamagedError(
        f"{path}: holds {has_bytes:,} bytes, but the record of the run says {expected:,}",
        "the file was changed by something else: start over with --overwrite",
    )


def check_hash(path: Path, start: int, n_bytes: int, sha256: str, check: Check) -> None:
    """Raise `PrepareError` unless the `n_bytes` of a file from byte `start` have this hash."""
    for _ in read_checked(path, start, n_bytes, sha256, check):
        pass


def read_checked(
    path: Path, start: int, n_bytes: int, sha256: str, check: Check, digest: hashlib._Hash | None = None
) -> Iterator[bytes]:
    """Yield `n_bytes` of a file from byte `start` in pieces; `digest` is updated with them.

    Raises `DamagedError` if there are fewer, and at the end `PrepareError` unless `sha256` is "" or their hash.
    """
    stop, digest = start + n_bytes, digest or hashlib.sha256()
    for data in read_pieces(path, start, stop) if path.exists() else ():
        check()
        digest.update(data)
        start += len(data)
        yield data
    if start < stop:
        raise changed(path, path.stat().st_size if path.exists() else 0, stop)
    if sha256 and digest.hexdigest() != sha256:
        raise PrepareError(
            f"{path}: does not hold what the run has written",
            "the file was changed by something else: move it away, then start over with --overwrite",
        )


def read_pieces(path: Path, start: int, stop: int) -> Iterator[bytes]:
    """Yield a file's bytes from `start` to `stop`, or to its end, in pieces of COPY_BYTES.

    Raises `DiskError` if it cannot be read.
    """
    try:
        with os.fdopen(open_regular(path, os.O_RDONLY), "rb", buffering=0) as file:
            file.seek(start)
            while start < stop and (data := file.read(min(COPY_BYTES, stop - start))):
                yield data
                start += len(data)
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(
    path: str | os.PathLike[str],
    error: OSError,
    hint: str = "check the disk and the permissions of the file, then run the same command again",
) -> DiskError:
    """Return the error for a file or folder that cannot be read, or not even be looked at."""
    hint = _HINTS[errno.EMFILE] if error.errno == errno.EMFILE else hint
    return DiskError(f"{os.fsdecode(path)}: {error.strerror}", hint)
