"""Compressed files as streams of their bytes: gzip, zstd, xz, bzip2; of several members or frames, whole or refused.

The standard readers pass over garbage after the last member, and one of them over a cut: here both are errors that name
the place.
"""

from __future__ import annotations

import bz2
import contextlib
import lzma
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO, NamedTuple

from ..support.errors import InputError
from ..support.redact import quoted
from ..support.units import format_size

_READ_BYTES = 16 << 10


class Codec(NamedTuple):
    """A kind of compression: `magic` is what its files begin with (a pattern), `command` unpacks them in a shell.

    `make` returns a decompressor like the standard library's, for one member that refers no more than so many bytes
    back; `piece_bytes` of the file are given to it at a time: a byte becomes at most 1 kB in gzip, and may become 30 kB
    in the others.
    """

    name: str
    magic: bytes
    command: str
    make: Callable[[int], Any]
    piece_bytes: int = 512


MAX_WINDOW_BYTES = 1 << 31
"""How far back a file may refer, which its decompressor holds: as far as zstd's may."""

_BESIDE_BYTES = 1 << 20
"""What a decompressor takes beside its window."""


def _zstd(max_bytes: int) -> Any:
    try:
        import zstandard
    except ImportError:
        raise InputError("reading .zst files needs zstandard", "pip install zstandard") from None
    return zstandard.ZstdDecompressor(max_window_size=max(max_bytes, 1 << 10)).decompressobj()


CODECS = {
    # 31: a gzip header and trailer around the data
    ".gz": Codec("gzip", rb"\x1f\x8b", "gzip -dc", lambda _: zlib.decompressobj(31), _READ_BYTES),
    # a frame, or one that is to be passed over
    ".zst": Codec("zstd", rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18", "zstd -dc", _zstd),
    # zero bytes are a whole file of the format before it
    ".xz": Codec("xz", rb"\xfd7zXZ\x00", "xz -dc", lambda n: lzma.LZMADecompressor(lzma.FORMAT_XZ, n + _BESIDE_BYTES)),
    ".bz2": Codec(
        "bzip2", rb"BZh[1-9](?:1AY&SY|\x17\x72\x45\x38\x50\x90)", "bzip2 -dc", lambda _: bz2.BZ2Decompressor()
    ),
}
"""By the suffixes of their files."""


def _how_to_unpack(path: str, suffix: str) -> str:
    command = {".zst": "unzstd --long=31", ".xz": "unxz --keep"}[suffix]
    return f"fetch it and unpack that: {command} FILE" if "://" in path else f"unpack it: {command} {quoted(path)}"


def window_bytes(head: bytes, suffix: str) -> int:
    """Return how far back the first member of a file refers, which its decompressor holds (bytes); 0 for little.

    >>> window_bytes(lzma.compress(b"words", preset=6)[:64], ".xz") >> 20
    8

    (Formats: RFC 8878, 3.1.1.1; the .xz file format, 3.1 and 5.3.1: its last filter is LZMA2, whose one byte says it.)
    """
    if suffix == ".xz" and len(head) > 24:
        at = head.find(b"\x21\x01", 14)
        bits = head[at + 2] if 0 <= at < 12 + 4 * (head[12] + 1) else 0
        return min((2 | bits & 1) << (bits // 2 + 11), 0xFFFFFFFF)
    if suffix == ".zst":
        with contextlib.suppress(Exception):  # not installed, or no frame: reading it on says so
            import zstandard

            return int(zstandard.get_frame_parameters(head).window_size)
    return 0


_PADDING = b"\0"
"""What may follow a member: in xz by its specification, in gzip on tapes; no member of any kind begins with it."""


class CompressedFile:
    """A compressed file, read in order; `n_raw` is how much of the file itself was read (bytes).

    >>> import gzip, io
    >>> members = gzip.compress(b"one ") + gzip.compress(b"two")
    >>> CompressedFile(io.BytesIO(members), "c.txt.gz", ".gz").read(100)
    b'one two'

    It may refer `max_bytes` back. Raises `InputError` for a file that needs more, was cut off, is damaged, or has
    something else behind its end.
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
        self._is_begun = False  # whether the present member has seen any of its bytes
        self._padding = b""  # what may stand before it

    def read(self, n_bytes: int) -> bytes:
        """Return `n_bytes` of the contents, less only at the end."""
        while len(self._held) < n_bytes and self._fill():
            pass
        data = bytes(self._held[:n_bytes])
        del self._held[:n_bytes]
        return data

    @property
    def n_held(self) -> int:
        """How much is unpacked that was not read yet (bytes)."""
        return len(self._held)

    def head(self, n_bytes: int) -> bytes:
        """Return what the contents begin with, less where the file is cut or damaged: reading it on says where."""
        with contextlib.suppress(InputError):
            while len(self._held) < n_bytes and self._fill():
                pass
        return bytes(self._held[:n_bytes])

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _fill(self) -> bool:
        """Decompress some more; False at the end."""
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
        """Decompress what is not padding; what comes after the member is for the next one."""
        try:
            self._held += self._member.decompress(raw)
        except Exception as error:  # each library has its own
            if "too much memory" in str(error) or "limit exceeded" in str(error):
                raise self._error(
                    f"needs more than {format_size(self._max_bytes)} to be unpacked, for which there is no room,",
                    f"give it more with --memory, or {_how_to_unpack(self._path, self._suffix)}",
                ) from None
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
