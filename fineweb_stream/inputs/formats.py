"""What a file is: by the endings of its name, else by its first bytes."""

from __future__ import annotations

import codecs
import re
from pathlib import Path

from ..support.errors import InputError
from .codecs import SUFFIXES

FORMAT_OF_SUFFIX = {".txt": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}

_UNPACKERS = {".gz": "gunzip", ".zst": "unzstd", ".xz": "unxz", ".bz2": "bunzip2"}

_FOREIGN = {
    rb"\x1f\x8b": ("gzip data", "gunzip -k"),
    rb"\x28\xb5\x2f\xfd": ("zstd data", "unzstd"),
    rb"\xfd7zXZ\x00": ("xz data", "unxz -k"),
    rb"BZh[1-9]1AY&SY": ("bzip2 data", "bunzip2 -k"),
    rb"PK\x03\x04": ("a zip archive", "unzip"),
    rb"%PDF-\d": ("a PDF", "pdftotext"),
    rb"\x7fELF": ("a program", ""),
    rb"\x89PNG": ("a picture", ""),
}
"""What no text begins with (a pattern): what that is, and the command that makes text of it."""

_BYTE_ORDER_MARKS = {  # UTF-32's first, for one of them begins as UTF-16's
    "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
    "utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
}

_PARQUET = re.compile(rb"PAR1\x15")
"""The magic bytes, and the first of a page's header or of the footer: in Thrift's compact protocol, field 1, an i32."""


def suffixes(path: Path) -> tuple[str, str]:
    """Return the suffix of compression, if any, and the one before it.

    >>> suffixes(Path("c.jsonl.gz")), suffixes(Path("c.TXT"))
    (('.gz', '.jsonl'), ('', '.txt'))
    """
    last = path.suffix.lower()
    return (last, Path(path.stem).suffix.lower()) if last in SUFFIXES else ("", last)


def is_usable(file: str) -> bool:
    """Tell by its name whether a file found in a folder is a corpus."""
    compression, suffix = suffixes(Path(file))
    known = FORMAT_OF_SUFFIX.get(suffix)
    return bool(known) and not (compression and known == "parquet") and not file.startswith(".")


def find_format(path: Path, head: bytes, asked: str | None = None) -> str:
    """Tell the format of a file that begins with `head`, unpacked: what was asked for, else by its name and `head`.

    Raises `InputError` for what is certainly no UTF-8 text; what was asked for is taken at its word.
    """
    compression, suffix = suffixes(path)
    known = asked or FORMAT_OF_SUFFIX.get(suffix)
    if known == "parquet" or (known is None and _PARQUET.match(head)):
        if compression:
            raise InputError(
                f"{path}: a parquet file inside a compressed one", f"unpack it: {_UNPACKERS[compression]} {path}"
            )
        return "parquet"
    if asked is None:
        _refuse_foreign(path, head)
    return known or ("jsonl" if re.match(rb'(\xef\xbb\xbf)?\s*\{\s*("|$)', head) else "text")


def _refuse_foreign(path: Path, head: bytes) -> None:
    for encoding, marks in _BYTE_ORDER_MARKS.items():
        if head.startswith(marks):
            raise InputError(
                f"{path}: {encoding.upper()} text (by its byte-order mark)",
                f"iconv -f {encoding} -t utf-8 {path} > NEW",
            )
    for magic, (kind, command) in _FOREIGN.items():
        if re.match(magic, head):
            raise InputError(f"{path}: {kind}, not text", f"{command} {path}" if command else "name text files")
    if _PARQUET.match(head):
        raise InputError(f"{path}: a parquet file", "give it the ending .parquet")
    if b"\0" in head and _is_no_utf8(head):
        raise InputError(
            f"{path}: binary data, not text",
            "name text, jsonl or parquet files; text it is all the same with --format text --errors replace",
        )


def _is_no_utf8(head: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # a last character may be cut off
    except UnicodeDecodeError:
        return True
    return False
