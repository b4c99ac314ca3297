"""What the user named -> the files to read, in order, each with its format."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, cast
from urllib.parse import urlsplit

from ..support.errors import InputError
from ..support.model import STDIN, Input
from ..support.redact import shown
from .foreign import HEAD_BYTES
from .formats import FORMAT_OF_SUFFIX, find_format, is_usable, look, suffixes
from .refusal import STDIN_NAME
from .standard_input import stdin_head

DEFAULT_CORPUS = "fineweb-edu:sample-10BT"


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
            inputs.append(_stdin(format))
        elif _may_be_remote(name):
            inputs += _find_remote(name, format)
        else:
            inputs += [_describe(path, is_named, format) for path, is_named in _expand(name)]
    if not inputs:
        raise InputError("no input named", "name files, folders or globs, or - for standard input")
    if names.count(STDIN) > 1:
        raise InputError("standard input is named twice", "it can be read once")
    return inputs


def default_names(folder: Path) -> list[str]:
    """Return what to read when nothing was named: a corpus beside the script, else FineWeb-Edu's sample on the Hub."""
    if (folder / "train_fineweb.txt").is_file():
        return [str(folder / "train_fineweb.txt")]
    for endings in ((".parquet",), (".jsonl", ".ndjson")):
        found = sorted((p for p in folder.iterdir() if p.suffix in endings and p.is_file()), key=_natural_key)
        if found:
            return [str(path) for path in found]
    return [DEFAULT_CORPUS]


def _may_be_remote(name: str) -> bool:
    """Tell local files from the rest without loading what speaks to networks."""
    if "://" not in name and not name.startswith("fineweb"):
        return False
    from ..remote.hub import is_remote

    return is_remote(name)


def _find_remote(name: str, asked: str | None) -> list[Input]:
    """Describe the files behind a URL or a short name."""
    from ..remote.hub import list_remote
    from ..remote.ranges import RemoteReader

    inputs = []
    for file in sorted(list_remote(name), key=lambda file: _natural_key(Path(file.url))):
        compression, suffix = suffixes(Path(urlsplit(file.url).path))
        format = asked or FORMAT_OF_SUFFIX.get(suffix)
        if format is None:
            reader = cast(BinaryIO, RemoteReader(file.url, file.version, file.size, HEAD_BYTES))
            format, compression = look(shown(file.url.partition("?")[0]), reader)
        inputs.append(Input(file.url, format, file.size, file.version, bool(compression), compression))
    return inputs


def _expand(name: str) -> Iterator[tuple[Path, bool]]:
    """Yield the files of one argument, and whether the user named the very file."""
    path = Path(name)
    try:
        if path.is_dir():
            yield from ((file, False) for file in _walk(path))
        elif path.exists() or not glob.has_magic(name):
            yield path, True
        else:
            matches = _each_once(Path(m) for m in glob.glob(name, recursive=True) if not os.path.isdir(m))
            if not matches:
                raise InputError(f"{name}: no file matches", "check the pattern; in quotes, ** goes into folders")
            yield from ((match, True) for match in matches)
    except OSError as error:
        raise InputError(
            f"{error.filename or name}: {error.strerror}", "check the path, and the permissions of its folders"
        ) from None


def _walk(folder: Path) -> list[Path]:
    """Return the usable files below a folder, also where links lead to; each folder once. `OSError` for one shut."""

    def stop(error: OSError) -> None:
        raise error

    found: list[Path] = []
    seen: set[tuple[int, int]] = set()
    for place, subfolders, files in os.walk(folder, onerror=stop, followlinks=True):
        info = os.stat(place)
        if (info.st_dev, info.st_ino) in seen:
            subfolders.clear()
            continue
        seen.add((info.st_dev, info.st_ino))
        subfolders.sort()
        found += (Path(place, file) for file in files if is_usable(file))
    if not found:
        raise InputError(
            f"{folder}: no usable file in this folder",
            f"usable are {', '.join(FORMAT_OF_SUFFIX)}, text and jsonl also compressed; or name the file",
        )
    return _each_once(found)


def _each_once(paths: Iterable[Path]) -> list[Path]:
    """Sort, and leave out what links make of files that are there by a shorter name."""
    found: dict[str, Path] = {}
    for path in sorted(paths, key=lambda path: (len(path.parts), _natural_key(path))):
        found.setdefault(os.path.realpath(path), path)
    return sorted(found.values(), key=_natural_key)


def _natural_key(path: Path) -> list[tuple[int, int | str]]:
    """Sort `part2` before `part10`."""
    return [
        (0, int(part)) if part.isascii() and part.isdigit() else (1, part)
        for part in re.split(r"([0-9]+)", str(path))
        if part
    ]


def _stdin(asked: str | None) -> Input:
    """Describe standard input; the hash of what it begins with tells whether it is the same again."""
    head = stdin_head()
    format = find_format(STDIN_NAME, head[:HEAD_BYTES], asked)
    if format == "parquet":
        raise InputError("standard input: parquet is not read in order", "save it to a file, and name that")
    return Input(STDIN, format, 0, hashlib.sha256(head).hexdigest(), is_stream=True)


def _describe(path: Path, is_named: bool, asked: str | None) -> Input:
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            raise InputError(f"{path}: not a regular file", "a pipe is read as standard input: prepare.py - < PIPE")
        if info.st_size == 0 and is_named:
            raise InputError(f"{path}: the file is empty", "was it fetched completely?")
        with path.open("rb") as file:
            format, compression = look(str(path), file, asked)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file", "check the path (and quote it if it has spaces)") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", "check the file's permissions") from None
    name = str(path) if str(path) != STDIN else os.path.join(".", STDIN)  # a file that is called as standard input is
    return Input(name, format, info.st_size, str(info.st_mtime_ns), bool(compression), compression)
