"""Find files on this machine: below folders and by patterns, each once, in natural order."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from ..support.log import log
from ..support.shell import quoted
from .formats import is_hidden, is_own
from .json_kinds import is_json_lines
from .kind import HEAD_BYTES

_PACKAGE = os.path.realpath(Path(__file__).parents[1])


def is_program(path: Path) -> bool:
    """Tell whether a path is this program: the package, or the script beside it."""
    return os.path.realpath(path) in (_PACKAGE, os.path.join(os.path.dirname(_PACKAGE), "prepare.py"))


def iter_files(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, and hidden folders as they are; follow symlinks, but enter each folder once.

    This program's own folder, which may lie beside a corpus, is not entered.

    Raises `OSError` for a folder that cannot be read.
    """

    def stop(error: OSError) -> None:
        raise error

    seen = {_PACKAGE}
    for place, subfolders, files in os.walk(folder, onerror=stop, followlinks=True):
        real = os.path.realpath(place)  # not its number: all have number 0 on some network drives of Windows
        if real in seen:
            subfolders.clear()
            continue
        seen.add(real)
        hidden = set(filter(is_hidden, subfolders))
        subfolders[:] = sorted(set(subfolders) - hidden)
        yield from (Path(place, name) for name in (*files, *hidden))


def iter_matches(pattern: str) -> Iterator[str]:
    """Yield the matches of a pattern, without this program's files, and without hidden folders unless it names them.

    Raises `OSError` for a folder that cannot be read: `glob` ignores it.
    """
    named = Path(pattern).parts

    def find_hidden(folders: Sequence[str]) -> str:
        return next((part for part in folders if is_hidden(part) and part not in named), "")

    for parent in filter(glob.has_magic, map(str, (Path(pattern), *Path(pattern).parents))):
        for folder in glob.iglob(os.path.join(parent, ""), recursive=True):
            if not find_hidden(Path(folder).parts):
                os.scandir(os.path.join(folder, os.curdir)).close()
    passed = set()
    for match in glob.iglob(pattern, recursive=True):
        path = Path(match)
        if hidden := find_hidden(path.parts[:-1]):
            passed.add(Path(hidden))
        elif not (is_own(path.name) or is_program(path)):
            yield match
    if passed:
        log.warning("note: %s: hidden folders are skipped; name one to read it: %s", pattern, name_some(sorted(passed)))


def each_once(paths: Iterable[Path]) -> list[Path]:
    """Sort paths in natural order, and of those that symlinks make the same file, keep the shortest."""
    found: dict[str, Path] = {}
    for path in sorted(paths, key=lambda path: (len(path.parts), natural_key(path))):
        found.setdefault(os.path.realpath(path), path)
    return sorted(found.values(), key=natural_key)


def without_metadata(
    paths: list[Path], read_heads: Callable[[list[Path]], Iterable[bytes]] | None = None
) -> tuple[list[Path], list[Path]]:
    """Split a folder's files into its corpus and its metadata: `.json` files that hold no documents, among others.

    `read_heads` reads the beginnings of files that are not on this machine.
    """
    plain = [path for path in paths if path.suffix.lower() == ".json" and (read_heads or path.exists())]
    if len(plain) == len(paths):
        return paths, []
    heads = read_heads(plain) if read_heads else map(_read_head, plain)
    no_lines = [path for path, head in zip(plain, heads, strict=True) if not _has_documents(head)]
    return [path for path in paths if path not in no_lines], no_lines


def _has_documents(head: bytes) -> bool:
    """Tell whether a file is JSON Lines, and not one line of names and numbers."""
    if not is_json_lines(head):
        return False
    with contextlib.suppress(ValueError, RecursionError):
        record = json.loads(head)
        return "text" in record or any(isinstance(value, str) and len(value) > 100 for value in record.values())
    return True  # several lines, or a damaged one, which the reader reports


def _read_head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEAD_BYTES)


_SPLIT = re.compile(r"(?:^|/)(train|training|test|validation|valid|val|dev|eval)(?=[-_./]|$)", re.IGNORECASE)


def note_splits(folder: Path, paths: Sequence[Path]) -> None:
    """Log a note if files of several splits of a dataset are read together."""
    first: dict[str, Path] = {}
    for path in paths:
        if match := _SPLIT.search(path.relative_to(folder).as_posix()):
            first.setdefault(match[1].lower(), path.relative_to(folder))
    named = first.get("train", first.get("training"))
    if len(first) < 2 or not named:
        return
    number, match = next((i, match) for i, part in enumerate(named.parts) if (match := _SPLIT.match(part)))
    only = folder.joinpath(*named.parts[: number + 1])
    if number == len(named.parts) - 1:
        only = only.with_name(f"{match[0]}*{''.join(named.suffixes[-2:])}")
    log.warning(
        "note: %s: files of several splits are read (%s); for one alone: %s",
        folder,
        ", ".join(first),
        quoted(str(only)),
    )


def natural_key(path: Path) -> list[tuple[int, int | str]]:
    """Return a sort key that puts `part2` before `part10`."""
    return [
        (0, int(part)) if part.isascii() and part.isdigit() else (1, part)
        for part in re.split(r"([0-9]+)", str(path))
        if part
    ]


def name_some(paths: Sequence[Path]) -> str:
    """Return the names of the first three files, and how many more there are.

    >>> name_some([Path(name) for name in "abcdef"])
    'a, b, c and 3 more'
    """
    names = ", ".join(path.name for path in paths[:3])
    return names + (f" and {len(paths) - 3:,} more" if len(paths) > 3 else "")
