"""Which files are a run's own: by their names, and by what its record says of them.

A file is the run's own if the record names it and its size and first bytes are as recorded. (A truncated one is own,
too: it holds nothing that the run did not write.) Temporary files have the run's number in their names. Nothing else is
ever opened for writing, replaced or deleted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..support.errors import InputError
from . import files
from .layouts import LAYOUTS, Layout

SPOOL_NAME = r"prepare\.(?:spool|(?:spool|bucket)_(?:\d{4}|[1-9]\d{4,8}))\.bin"
"""Pattern of the files that hold documents until they are shuffled; they only ever have temporary names."""

RECORD_START = b'{\n "format": '  # how a manifest begins

_NAMES = TRAIN_NAME, CHANGES_NAME, META_NAME = "train.bin", "prepare.changes.jsonl", "meta.pkl"
"""What a run writes besides the files of its layout."""

RECORD_NAME, MANIFEST_NAME, LOCK_NAME, LOG_NAME = "prepare.json", "prepare.manifest.json", "prepare.lock", "prepare.log"
RECORD_NAMES = (RECORD_NAME, MANIFEST_NAME, LOCK_NAME, LOG_NAME)

Owned = Mapping[str, Sequence[Mapping[str, Any]]]
"""Name -> what may have it: `bytes`, `head` (hexadecimal; "" if unknown) and `tokens`."""


def is_output(name: str) -> bool:
    """Tell whether a name is one that a run gives to its outputs.

    >>> [is_output(name) for name in ("train_shard_0007.bin", "train_shard_0007_copy.bin", "val.txt")]
    [True, False, False]
    """
    return name in _NAMES or any(layout.has_name(name) for layout in LAYOUTS.values())


def is_temporary(name: str) -> bool:
    """Tell whether a name is one that a run writes under: of an output, a spool or a bucket.

    >>> [is_temporary(name) for name in ("val.bin", "prepare.spool.bin", "prepare.bucket_0007.bin", "prepare.bin")]
    [True, True, True, False]
    """
    return is_output(name) or re.fullmatch(SPOOL_NAME, name) is not None


def looks_own(path: Path, known: Iterable[Mapping[str, Any]], layout: Layout) -> bool:
    """Tell whether a file is one of the `known` ones, or the beginning of one."""
    if files.kind_of(path):
        return False
    for entry in known:
        n_tokens = entry.get("tokens", 0)
        if n_tokens > layout.max_tokens:
            continue
        start = layout.make_header(n_tokens) if path.suffix == layout.suffix else b""
        start += bytes.fromhex(entry.get("head", ""))
        size = path.stat().st_size
        if size <= entry["bytes"] and b"".join(files.read_pieces(path, 0, len(start))) == start[:size]:
            return True
    return False


def check_folder(folder: Path, owned: Owned, layout: Layout) -> None:
    """Raise `InputError` for the first file that has a run's name but is not the run's own, or not a regular file."""
    for name in sorted(os.listdir(folder)) if folder.is_dir() else ():
        if is_output(name) or name in RECORD_NAMES:
            files.refuse_irregular(folder / name)
        if is_output(name):
            check_own(folder / name, owned, layout)


def check_own(path: Path, owned: Owned, layout: Layout) -> None:
    """Raise `InputError` if a name is taken by something other than what the record says."""
    if os.path.lexists(path) and not looks_own(path, owned.get(path.name, ()), layout):
        what = (
            "is not the file that the record describes"
            if path.name in owned
            else "already exists, and is not from this run"
        )
        raise InputError(
            f"{path} {what}",
            "it is left alone, even with --overwrite: move it away, or choose another folder with --out",
        )


def check_inputs(folder: Path, paths: Iterable[str]) -> None:
    """Raise `InputError` for an input with the name of a file that a run writes in this folder."""
    here = os.path.realpath(folder)
    for path in paths:
        place, name = os.path.split(os.path.realpath(path))
        if place == here and (is_output(name) or name in RECORD_NAMES):
            raise InputError(
                f"{path}: an input with the name of an output in this folder",
                "give the input another name, or choose another folder with --out",
            )


def orphans(folder: Path) -> Iterator[Path]:
    """Yield manifests that a kill or a power loss left incomplete, while a run wrote its first."""
    for path in sorted(folder.glob(f"{MANIFEST_NAME}.{'[0-9a-f]' * 12}.part")):
        if not files.kind_of(path):
            start = b"".join(files.read_pieces(path, 0, len(RECORD_START)))
            if RECORD_START.startswith(start.rstrip(b"\0")):
                yield path


def own_parts(folder: Path, run: str) -> Iterator[Path]:
    """Yield the temporary files of a run, which have its number in their names."""
    with files.disk_errors(folder):
        names = sorted(os.listdir(folder))
    for name in names:
        written = name.removesuffix(f".{run}.part")
        if written != name and (is_temporary(written) or written in RECORD_NAMES):
            yield folder / name


def has_work(folder: Path, run: str, layout: Layout) -> bool:
    """Tell whether a run's temporary files, other than those of its record, hold any output."""
    sizes = {path.name.removesuffix(f".{run}.part"): path.lstat().st_size for path in own_parts(folder, run)}
    return any(is_temporary(name) and n_bytes > layout.header_bytes for name, n_bytes in sizes.items())
