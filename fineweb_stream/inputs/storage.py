"""Reading inputs: local and remote files, which any worker can open, and streams, which can be read once."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, cast

from ..remote.hub import check_remote
from ..remote.network import CHANGED, Network, RemoteFile, RemoteReader
from ..support.cancel import NEVER
from ..support.errors import ChangedError, InputError, PrepareError
from ..support.fingerprint import changed_at, hash_bytes
from ..support.model import Input
from ..support.units import sizes_said
from .blocks import Block, Source
from .codecs import MAX_WINDOW_BYTES, CompressedFile, window_bytes
from .standard_input import open_stdin

_SKIP_BYTES = 1 << 20
HEAD_BYTES = 1 << 20  # how much content of a compressed file is unpacked for estimates (bytes)
SAMPLE_BYTES, MAX_SAMPLE_BYTES = 1 << 15, 1 << 19  # how much a sample has, and the most: a longer document is none
_BEFORE_BYTES = 1024  # how far before an offset the search for an end begins at most, unless a separator is longer
_HEADER_BYTES = 64  # how much of a compressed file's start is read to find the size of its window (bytes)


class StreamFull(Exception):
    """A stream's next record is longer than may be buffered; `position` is how far it was searched for an end."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


class InputFile:
    """An input that is open for planning, local or remote; it can be read at any offset from `first` on.

    `cancel` ends each search.
    """

    cancel = NEVER
    first = 0

    def __init__(self, input: Input, file: BinaryIO | CompressedFile) -> None:
        self.input = input
        self._file = file

    def __enter__(self) -> InputFile:
        return self

    def __exit__(self, *error: object) -> None:
        if not self.input.is_stdin:
            self._file.close()

    def read_at(self, position: int, n_bytes: int) -> bytes:
        """Read `n_bytes` from offset `position`, fewer only at the end."""
        self.cancel.check()
        file = cast(BinaryIO, self._file)
        file.seek(position)
        return file.read(max(min(n_bytes, self.input.size - position), 0))

    def pass_over(self, find_end: Callable[[InputFile, int], int], position: int) -> int:
        """Return the end of a record that was searched up to `position`."""
        return find_end(self, position + 1)

    def end(self) -> int:
        """Return where the input ends, once it was read to its end. Raises `InputError` if the file has shrunk."""
        size = cast(BinaryIO, self._file).seek(0, os.SEEK_END)
        if size < self.input.size:
            raise _shorter(self.input, size)
        return self.input.size

    def block(self, source: Source, start: int, stop: int) -> Block:
        """Make the block of a byte range."""
        return Block(source, start, stop, stop - start, stop - start)


class StreamFile(InputFile):
    """An input that can be read once; bytes that no block has taken yet are buffered, up to `max_held`.

    It starts at offset `start`: everything from `begin`, where `file` is, up to it is read and dropped.
    """

    def __init__(
        self, input: Input, file: BinaryIO | CompressedFile, start: int, max_held: int | None, begin: int = 0
    ) -> None:
        super().__init__(input, file)
        self._max_held = max_held
        self._is_passing_over = False
        self._n_raw_done = 0
        self._held = bytearray()
        self.first = begin
        while self.first < start:
            if not self.read_at(self.first, _SKIP_BYTES):
                raise _shorter(input, self.first)
            self._drop(min(start - self.first, len(self._held)))

    def read_at(self, position: int, n_bytes: int) -> bytes:
        """Read `n_bytes` from offset `position`, fewer only at the end. Raises `StreamFull`."""
        self.cancel.check()
        if self._is_passing_over:
            self._drop(position - self.first)
        at = position - self.first
        assert at >= 0, f"byte {position:,} of a stream that is at {self.first:,}"
        if self._max_held is not None and at + n_bytes > self._max_held:
            raise StreamFull(position)
        if (missing := at + n_bytes - len(self._held)) > 0:
            self._held += self._file.read(missing)
        return bytes(memoryview(self._held)[at : at + n_bytes])  # a slice of the buffer itself would be another copy

    def pass_over(self, find_end: Callable[[InputFile, int], int], position: int) -> int:
        """Return the end of a record that was searched up to `position`, without buffering the record."""
        self._is_passing_over = True
        try:
            return super().pass_over(find_end, position)
        finally:
            self._is_passing_over = False

    def end(self) -> int:
        """Return how far the stream was read."""
        return self.first + len(self._held)

    def block(self, source: Source, start: int, stop: int) -> Block:
        """Make the block of a byte range, with its data unless it was skipped."""
        n_bytes = n_input_bytes = stop - start
        data = self.read_at(start, n_bytes) if start >= self.first else None
        self._drop(stop - self.first)
        if isinstance(self._file, CompressedFile):
            n_input_bytes, self._n_raw_done = self._file.n_raw - self._n_raw_done, self._file.n_raw
        return Block(source, start, stop, n_bytes, n_input_bytes, data=data)

    def _drop(self, n_bytes: int) -> None:
        del self._held[:n_bytes]
        self.first += n_bytes


def sample_blocks(source: Source, n: int, find_end: Callable[[InputFile, int], int]) -> list[Block]:
    """Return up to `n` small blocks spread over a file, without overlaps.

    In a compressed file, they are spread over its first HEAD_BYTES, up to any damage. `find_end` returns the first good
    end at an offset or later.
    """
    input, blocks = source.input, list[Block]()
    is_packed = bool(input.compression)
    if input.is_stream and (input.is_remote or not is_packed):
        return []
    if input.is_remote:
        return _sample_remote(source, n, find_end)
    stop, last = 0, HEAD_BYTES if is_packed else input.size
    damage = contextlib.suppress(InputError, StreamFull) if is_packed else contextlib.nullcontext()
    with damage, open_input(input, source.network, max_held=2 * HEAD_BYTES, is_stream=False) as file:
        for i in range(n):
            target = 0 if is_packed else input.size * i // n
            start = find_end(file, target) if target > stop else stop
            stop = find_end(file, start + SAMPLE_BYTES) if start < last else start
            if start < stop and (is_packed or stop <= start + MAX_SAMPLE_BYTES):
                blocks.append(file.block(source, start, stop))
    return blocks


def _sample_remote(source: Source, n: int, find_end: Callable[[InputFile, int], int]) -> list[Block]:
    """Take all samples of a file at a URL at the same time, each by one request; the blocks carry their data."""

    def take(number: int) -> Block:
        remote = open_file(source.input, source.network, buffer_bytes=4 * SAMPLE_BYTES)
        with InputFile(source.input, remote) as file:
            target = source.input.size * number // n
            file.read_at(max(target - _BEFORE_BYTES, 0), 1)  # from there on, all of it is in the buffer
            start = find_end(file, target) if target else 0
            stop = find_end(file, start + SAMPLE_BYTES)
            data = file.read_at(start, stop - start) if stop <= start + MAX_SAMPLE_BYTES else None
            return replace(file.block(source, start, stop), data=data)

    blocks: list[Block] = []
    with ThreadPoolExecutor(n) as pool:
        for block in pool.map(take, range(n)):
            if block.data and block.start >= (blocks[-1].stop if blocks else 0):
                blocks.append(block)
    return blocks


def unpacked_bytes(source: Source, is_strict: bool) -> int:
    """Estimate the length of a compressed file's content by its first HEAD_BYTES (bytes).

    If these are damaged, return 0, or raise `InputError` if `is_strict`.
    """
    damage = contextlib.nullcontext() if is_strict else contextlib.suppress(InputError)
    with damage, contextlib.closing(_unpack(source.input, source.network)) as file:
        n_bytes = len(file.read(HEAD_BYTES))
        is_whole = n_bytes < HEAD_BYTES
        return n_bytes if is_whole else int(source.input.size * ((n_bytes + file.n_held) / max(file.n_raw, 1)))
    return 0


def count_unpacked(input: Input, n_bytes: int) -> int:
    """Return the length of a compressed local file's content, at most `n_bytes`."""
    n_found = 0
    with contextlib.closing(_unpack(input, Network())) as file:
        while n_found < n_bytes and (data := file.read(min(_SKIP_BYTES, n_bytes - n_found))):
            n_found += len(data)
    return n_found


def _unpack(input: Input, network: Network, max_window: int = MAX_WINDOW_BYTES) -> CompressedFile:
    return CompressedFile(open_file(input, network, is_stream=True), input.shown, input.compression, max_window)


def largest_window(inputs: Iterable[Input], network: Network) -> int:
    """Return the largest window of compressed files, by their headers (bytes); only the first remote one is checked."""
    packed = [input for input in inputs if input.compression and not input.is_stdin]
    remote = [input for input in packed if input.is_remote]
    largest = 0
    for input in (*(input for input in packed if not input.is_remote), *remote[:1]):
        with contextlib.suppress(PrepareError, OSError), open_file(input, network) as file:
            largest = max(largest, window_bytes(file.read(_HEADER_BYTES), input.compression))
    return largest


def open_input(
    input: Input,
    network: Network,
    start: int = 0,
    max_held: int | None = None,
    is_stream: bool = True,
    max_window: int = MAX_WINDOW_BYTES,
) -> InputFile:
    """Open an input for planning, from offset `start` on. Raises `InputError` if it cannot be opened.

    A remote file is read in order, in large ranges, unless `is_stream` is False.
    """
    if input.is_stdin:
        file: InputFile = StreamFile(input, cast(BinaryIO, open_stdin(network.cancel)), start, max_held)
    elif input.compression:
        file = StreamFile(input, _unpack(input, network, max_window), start, max_held)
    elif input.is_remote and is_stream and network.fetcher.is_streaming:
        remote = open_file(input, network, is_stream=True)
        remote.seek(start)
        file = StreamFile(input, remote, start, max_held, begin=start)
    else:
        file = InputFile(input, open_file(input, network))
    file.cancel = network.cancel
    return file


def open_file(
    input: Input, network: Network, is_stream: bool = False, stop: int | None = None, buffer_bytes: int = 0
) -> BinaryIO:
    """Open an input's file. Raises `InputError` if it cannot be opened.

    A remote file is prefetched up to `stop` if `is_stream`, else read at least `buffer_bytes` at a time.
    """
    if input.is_remote:
        ahead_bytes = network.fetcher.ahead_bytes if is_stream else 0
        return cast(BinaryIO, RemoteReader(network, remote_file(input), buffer_bytes, ahead_bytes, stop))
    try:
        return open(input.path, "rb")
    except OSError as error:
        is_limit = error.errno == errno.EMFILE
        hint = "raise the limit of open files (ulimit -n)" if is_limit else "check the path and its permissions"
        raise InputError(f"{input.path}: {error.strerror}", hint) from None


def remote_file(input: Input) -> RemoteFile:
    """Return a remote input as the file that a network reads."""
    return RemoteFile(input.path, input.size, input.fingerprint)


def read_block(block: Block) -> bytes:
    """Return the bytes of a block; called in the worker. Raises `InputError` if the file has shrunk."""
    if block.data is not None:
        return bytes(block.data)
    source, n_bytes = block.source, block.stop - block.start
    with open_file(source.input, source.network) as file:
        file.seek(block.start)
        data = file.read(n_bytes)
    if len(data) != n_bytes:
        raise _shorter(source.input, block.start + len(data))
    return data


def check_unchanged(source: Source) -> None:
    """Raise `ChangedError`, or for a remote file `InputError`, if it has changed since the run first looked at it."""
    input = source.input
    if input.is_stdin or input.format == "demo":
        return
    if input.is_remote:
        return check_remote(remote_file(input), source.network)
    try:
        info = Path(input.path).stat()
        now = (info.st_size, str(info.st_mtime_ns))
    except OSError as error:
        raise ChangedError(f"{input.path}: {error.strerror}", "it was there at the start: put it back") from None
    if now != (input.size, changed_at(input.fingerprint)):
        raise ChangedError(
            f"{input.path}: changed while it was read ({sizes_said(input.size, now[0])})",
            "once it is complete, the same command continues, if what was read is unchanged",
        )


def place_hash(input: Input, offset: int, n_bytes: int) -> str:
    """Return the SHA-256 of the `n_bytes` of content before an offset of a local input; "" if it does not have them."""
    try:
        with open_input(input, Network(), offset - n_bytes) as file:
            data = file.read_at(offset - n_bytes, n_bytes)
    except (PrepareError, OSError):
        return ""
    return hash_bytes(data) if len(data) == n_bytes else ""


def _shorter(input: Input, n_bytes: int) -> ChangedError:
    return ChangedError(f"{input.shown}: ends at byte {n_bytes:,}, but was longer at the start", CHANGED)
