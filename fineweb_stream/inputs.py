"""What the user named -> the files to read, in order, each with its format."""

from __future__ import annotations

import codecs
import glob
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from .blocks import Input
from .compressed import SUFFIXES, CompressedFile
from .errors import InputError
from .standard_input import STDIN, stdin_head

DEFAULT_CORPUS = "fineweb-edu:sample-10BT"

_FORMAT_OF_SUFFIX = {".txt": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}

_FOREIGN = {
    b"\x1f\x8b": ("gzip data", "gunzip -k"),
    b"\x28\xb5\x2f\xfd": ("zstd data", "unzstd"),
    b"\xfd7zXZ\x00": ("xz data", "unxz -k"),
    b"BZh": ("bzip2 data", "bunzip2 -k"),
    b"PK\x03\x04": ("a zip archive", "unzip"),
    b"%PDF-": ("a PDF", "pdftotext"),
    b"\x7fELF": ("a program", ""),
    b"\x89PNG": ("a picture", ""),
}
"""First bytes that no text begins with: what that is, and the command that makes text of it."""


def as_names(inputs: str | Path | Sequence[str | Path]) -> list[str]:
    """Return what a caller named, one or several, as the names that `find_inputs` takes."""
    return [str(inputs)] if isinstance(inputs, str | Path) else [str(name) for name in inputs]


def find_inputs(names: Sequence[str], format: str | None = None) -> list[Input]:
    """Return the files behind paths, folders and globs, in the order given; folders and globs in natural order.

    With `format` all of them are taken for that.

    Raises `InputError` when one is missing, empty or of no use.
    """
    inputs: list[Input] = []
    for name in names:
        if name == STDIN:
            inputs.append(_stdin())
        elif _may_be_remote(name):
            inputs += _find_remote(name)
        else:
            inputs += [_describe(path, is_named) for path, is_named in _expand(name)]
    if format is not None:
        inputs = [replace(input, format=format) for input in inputs]
    if not inputs:
        raise InputError("no input named", "name files, folders or globs, or - for standard input")
    if names.count(STDIN) > 1:
        raise InputError("standard input is named twice", "it can be read once")
    return inputs


def default_names(folder: Path) -> list[str]:
    """Return what to read when nothing was named: a corpus beside the script, else FineWeb-Edu's sample on the Hub."""
    if (folder / "train_fineweb.txt").is_file():
        return [str(folder / "train_fineweb.txt")]
    for suffixes in ((".parquet",), (".jsonl", ".ndjson")):
        found = sorted((p for p in folder.iterdir() if p.suffix in suffixes and p.is_file()), key=_natural_key)
        if found:
            return [str(path) for path in found]
    return [DEFAULT_CORPUS]


def _may_be_remote(name: str) -> bool:
    """Tell local files from the rest without loading what speaks to networks."""
    if "://" not in name and not name.startswith("fineweb"):
        return False
    from .listing import is_remote

    return is_remote(name)


def _find_remote(name: str) -> list[Input]:
    """Describe the files behind a URL or a short name."""
    from .listing import list_remote
    from .remote import read_remote

    inputs = []
    for file in sorted(list_remote(name), key=lambda file: _natural_key(Path(file.url))):
        path = Path(urlsplit(file.url).path)
        compression, suffix = _suffixes(path)
        format = _FORMAT_OF_SUFFIX.get(suffix)
        if format is None:
            format = _find_format(path, suffix, read_remote(file.url, file.version, file.size, 0, min(4096, file.size)))
        inputs.append(Input(file.url, format, file.size, file.version, bool(compression), compression))
    return inputs


def _expand(name: str) -> Iterator[tuple[Path, bool]]:
    """Yield the files of one argument, and whether the user named the very file."""
    path = Path(name)
    if path.is_dir():
        found = [
            Path(folder) / file
            for folder, subfolders, files in os.walk(path)
            if not subfolders.sort()
            for file in files
            if _is_usable(file)
        ]
        if not found:
            raise InputError(
                f"{name}: no usable file in this folder",
                f"usable are {', '.join(_FORMAT_OF_SUFFIX)}, text and jsonl also compressed; or name the file",
            )
        yield from ((file, False) for file in sorted(found, key=_natural_key))
    elif path.exists() or not glob.has_magic(name):
        yield path, True
    else:
        matches = sorted((Path(m) for m in glob.glob(name, recursive=True) if os.path.isfile(m)), key=_natural_key)
        if not matches:
            raise InputError(f"{name}: no file matches", "check the pattern; in quotes, ** goes into folders")
        yield from ((match, True) for match in matches)


def _is_usable(file: str) -> bool:
    """Tell by its name whether a file found in a folder is a corpus."""
    compression, suffix = _suffixes(Path(file))
    known = _FORMAT_OF_SUFFIX.get(suffix)
    return bool(known) and not (compression and known == "parquet") and not file.startswith(".")


def _suffixes(path: Path) -> tuple[str, str]:
    """Return the suffix of compression, if any, and the one before it: `c.jsonl.gz` has `.gz` and `.jsonl`."""
    last = path.suffix.lower()
    return (last, Path(path.stem).suffix.lower()) if last in SUFFIXES else ("", last)


def _natural_key(path: Path) -> list[tuple[int, int | str]]:
    """Sort `part2` before `part10`."""
    return [
        (0, int(part)) if part.isascii() and part.isdigit() else (1, part)
        for part in re.split(r"([0-9]+)", str(path))
        if part
    ]


def _stdin() -> Input:
    """Describe standard input; the hash of what it begins with tells whether it is the same again."""
    head = stdin_head()
    if not head:
        raise InputError("standard input is empty", "pipe text into it: cat corpus.txt | prepare.py -")
    return Input(
        STDIN, _find_format(Path("standard input"), "", head), 0, hashlib.sha256(head).hexdigest(), is_stream=True
    )


def _describe(path: Path, is_named: bool) -> Input:
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            raise InputError(f"{path}: not a regular file", "a pipe is read as standard input: prepare.py - < PIPE")
        with path.open("rb") as file:
            head = file.read(4096)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file", "check the path (and quote it if it has spaces)") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", "check the file's permissions") from None
    if info.st_size == 0 and is_named:
        raise InputError(f"{path}: the file is empty", "was it fetched completely?")
    compression, suffix = _suffixes(path)
    if compression:
        with path.open("rb") as file:
            head = CompressedFile(file, str(path), compression).read(4096)
    format = _find_format(path, suffix, head)
    if compression and format == "parquet":
        raise InputError(
            f"{path}: a parquet file inside a compressed one", f"unpack it: {_unpacker(compression)} {path}"
        )
    name = str(path) if str(path) != STDIN else os.path.join(".", STDIN)  # a file that is called as standard input is
    return Input(name, format, info.st_size, str(info.st_mtime_ns), bool(compression), compression)


def _unpacker(compression: str) -> str:
    return {".gz": "gunzip", ".zst": "unzstd", ".xz": "unxz", ".bz2": "bunzip2"}[compression]


def _find_format(path: Path, suffix: str, head: bytes) -> str:
    """Tell the format by the name, else by the first bytes."""
    known = _FORMAT_OF_SUFFIX.get(suffix)
    if known == "parquet" or (known is None and head.startswith(b"PAR1")):
        return "parquet"
    _refuse_foreign(path, head)
    return known or ("jsonl" if re.match(rb'\s*\{\s*("|$)', head) else "text")


def _refuse_foreign(path: Path, head: bytes) -> None:
    """Raise `InputError` for what is certainly no UTF-8 text."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{path}: UTF-16 text (by its byte-order mark)", f"iconv -f utf-16 -t utf-8 {path} > NEW")
    for magic, (kind, command) in _FOREIGN.items():
        if head.startswith(magic):
            raise InputError(f"{path}: {kind}, not text", f"{command} {path}" if command else "name text files")
    if head.startswith(b"PAR1"):
        raise InputError(f"{path}: a parquet file", "give it the ending .parquet")
    if b"\0" in head and _is_no_utf8(head):
        raise InputError(f"{path}: binary data, not text", "name text, jsonl or parquet files")


def _is_no_utf8(head: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # a last character may be cut off
    except UnicodeDecodeError:
        return True
    return False
