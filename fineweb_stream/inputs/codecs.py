"""Compressed files as streams of their content: gzip, zstd, xz, bzip2, with any number of members or frames.

The standard readers ignore garbage after the last member, and one of them ignores truncation: here both are errors that
name the offset.
"""

from __future__ import annotations

import bz2
import contextlib
import lzma
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO, NamedTuple

from ..support.errors import InputError
from ..support.shell import quoted
from ..support.units import format_size

_READ_BYTES, _UNPACKED_BYTES = 16 << 10, 4 << 20


class Codec(NamedTuple):
    """A compression format: `magic` is a pattern that its files begin with, `command` unpacks them in a shell.

    `make` returns a decompressor for one member, like those of the standard library, for windows of up to so many
    bytes. It gets `piece_bytes` of the file at a time: a byte becomes up to 1 kB in gzip, up to 30 kB in zstd and xz, a
    MB in bzip2. One that tells whether it `needs_input` returns at most _UNPACKED_BYTES at a time.
    """

    name: str
    magic: bytes
    command: str
    make: Callable[[int], Any]
    piece_bytes: int = 512


MAX_WINDOW_BYTES = 1 << 31  # the largest window of a file, which its decompressor holds in memory; zstd has none larger
_BESIDE_BYTES = 1 << 20  # how much memory a decompressor takes besides its window


def _zstd(max_bytes: int) -> Any:
    try:
        import zstandard
    except ImportError:
        raise InputError("reading .zst files needs zstandard", "pip install -U zstandard") from None
    return zstandard.ZstdDecompressor(max_window_size=max(max_bytes, 1 << 10)).decompressobj()


CODECS = {
    # 31: data with gzip's header and trailer
    ".gz": Codec("gzip", rb"\x1f\x8b", "gzip -dc", lambda _: zlib.decompressobj(31), _READ_BYTES),
    # a frame, or a skippable frame
    ".zst": Codec("zstd", rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18", "zstd -dc", _zstd),
    # Not FORMAT_AUTO: in the older lzma format, zero bytes (padding) are a complete file.
    ".xz": Codec("xz", rb"\xfd7zXZ\x00", "xz -dc", lambda n: lzma.LZMADecompressor(lzma.FORMAT_XZ, n + _BESIDE_BYTES)),
    ".bz2": Codec(
        "bzip2", rb"BZh[1-9](?:1AY&SY|\x17\x72\x45\x38\x50\x90)", "bzip2 -dc", lambda _: bz2.BZ2Decompressor()
    ),
}
"""The codecs by the suffix of their files."""


def _how_to_unpack(path: str, suffix: str) -> str:
    command = {".zst": "unzstd --long=31", ".xz": "unxz --keep"}[suffix]
    return f"download it, then unpack it: {command} FILE" if "://" in path else f"unpack it: {command} {quoted(path)}"


def window_bytes(head: bytes, suffix: str) -> int:
    """Return the window of a file's first member (bytes), which its decompressor holds in memory; 0 if it is small.

    >>> window_bytes(lzma.compress(b"words", preset=6)[:64], ".xz") >> 20
    8

    (Formats: RFC 8878, 3.1.1.1; the .xz file format, 3.1 and 5.3.1: one byte of its last filter, LZMA2, encodes it.)
    """
    if suffix == ".xz" and len(head) > 24:
        at = head.find(b"\x21\x01", 14)
        bits = head[at + 2] if 0 <= at < 12 + 4 * (head[12] + 1) else 0
        return min((2 | bits & 1) << (bits // 2 + 11), 0xFFFFFFFF)
    if suffix == ".zst":
        with contextlib.suppress(Exception):  # not installed, or not a frame: reading the file says so
            import zstandard

            return int(zstandard.get_frame_parameters(head).window_size)
    return 0


_PADDING = b"\0"  # after a member: in xz by its specification, in gzip on tapes. No member of any format begins with it


class CompressedFile:
    """A compressed file, read in order; `n_raw` is how much of the file itself was decompressed (bytes).

    >>> import gzip, io
    >>> members = gzip.compress(b"one ") + gzip.compress(b"two")
    >>> CompressedFile(io.BytesIO(members), "c.txt.gz", ".gz").read(100)
    b'one two'

    Its window may be up to `max_bytes`. Raises `InputError` for a file that needs more, is truncated or damaged, or has
    other data after its end.
    """

    def __init__(self, file: BinaryIO, path: str, suffix: str, max_bytes: int = MAX_WINDOW_BYTES) -> None:
        self.n_raw = 0
        self._file = file
        self._path = path
        self._codec, self._suffix = CODECS[suffix], suffix
        self._max_bytes = min(max_bytes, MAX_WINDOW_BYTES)
        self._member = self._codec.make(self._max_bytes)
        self._raw = b""
        self._held = bytearray()
        self._is_begun = False  # whether the current member has received any bytes
        self._padding = b""  # padding that may come before it

    def read(self, n_bytes: int) -> bytes:
        """Return `n_bytes` of the content, fewer only at the end."""
        while len(self._held) < n_bytes and self._fill():
            pass
        data = bytes(self._held[:n_bytes])
        del self._held[:n_bytes]
        return data

    @property
    def n_held(self) -> int:
        """How much content was decompressed but not yet read (bytes)."""
        return len(self._held)

    def head(self, n_bytes: int) -> bytes:
        """Read the first bytes of the content, fewer if the file is truncated or damaged."""
        with contextlib.suppress(InputError):
            return self.read(n_bytes)
        return bytes(self._held)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _fill(self) -> bool:
        """Decompress another piece; return False at the end of the file."""
        if self._is_begun and not getattr(self._member, "needs_input", True):
            self._unpack(b"")
            return True
        self._raw = self._raw or self._file.read(_READ_BYTES)
        raw, self._raw = self._raw[: self._codec.piece_bytes], self._raw[self._codec.piece_bytes :]
        self.n_raw += len(raw)
        if not raw:
            if self._is_begun:
                raise self._error("is cut off", "fetch the file again")
            return False
        if self._is_begun or (raw := raw.lstrip(self._padding)):
            self._unpack(raw)
        return True

    def _unpack(self, raw: bytes) -> None:
        """Decompress bytes that are not padding; those after the end of the member are left for the next one."""
        try:
            limit = (_UNPACKED_BYTES,) if hasattr(self._member, "needs_input") else ()
            self._held += self._member.decompress(raw, *limit)
        except Exception as error:  # each library raises its own
            if "too much memory" in str(error) or "limit exceeded" in str(error):
                raise self._error(
                    f"needs more than {format_size(self._max_bytes)} of memory to be unpacked, which is not available,",
                    f"give it more with --memory, or {_how_to_unpack(self._path, self._suffix)}",
                ) from None
            if "Dictionary mismatch" in str(error):
                how = f"unpack it: unzstd -D DICTIONARY {quoted(self._path)}"
                raise self._error("was compressed with a dictionary, which is needed", how) from None
            raise self._error(f"is damaged, or followed by something else ({error})", "fetch the file again") from None
        self._is_begun = not self._member.eof
        if not self._is_begun:
            unused = self._member.unused_data
            self.n_raw -= len(unused)
            self._raw = unused + self._raw
            self._member = self._codec.make(self._max_bytes)
            self._padding = _PADDING

    def _error(self, what: str, hint: str) -> InputError:
        return InputError(f"{self._path}: {what} near byte {self.n_raw:,} of the compressed file", hint)
