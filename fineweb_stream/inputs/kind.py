"""A kind of file that is not a corpus, and its error: what it is, and a command to paste that makes text of it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ..support.errors import InputError
from ..support.model import STDIN_SHOWN
from ..support.shell import quoted, which_shell
from .codecs import CODECS

HEAD_BYTES = 32 << 10  # how much of an input's content is looked at (bytes)
OPENED = "open(0, newline='', encoding='utf-8-sig')"  # standard input in a Python command
PROMISES = {"": "unpack it", ".txt": "convert it to text"}  # what commands do that make files of some suffixes


class Foreign(NamedTuple):
    """A kind of file, the command that makes text of it, and the suffix of the new file.

    The command reads standard input and writes standard output, or contains `{path}` and `{new}`. Without one, `hint`
    says what to do. `is_text`: it could be read as it is. `promise` is what the command does, by default by the suffix.
    """

    kind: str
    command: str = ""
    suffix: str = ".txt"
    hint: str = "name text, jsonl or parquet files"
    is_text: bool = False
    promise: str = ""


def first_match(kinds: Iterable[tuple[bytes, Foreign]], data: bytes) -> Foreign | None:
    """Return the kind of the first pattern that matches the beginning of `data`."""
    return next((kind for pattern, kind in kinds if re.match(pattern, data, re.DOTALL)), None)


def refuse(name: str, found: Foreign, compression: str = "") -> InputError:
    """Return the error for a file called `name` whose content, after any decompression, is of a foreign kind."""
    steps = found.command or found.hint
    if compression and "{path}" in steps and "tar -xf" not in steps:  # tar itself unpacks it
        unpack, suffix = CODECS[compression].command, Path(Path(name).stem).suffix
        return refuse(name, Foreign(f"{found.kind} (compressed)", unpack, suffix, promise="unpack it, and name that"))
    hint = found.hint.format(path=quoted(name))
    if found.command:
        promise = found.promise or PROMISES.get(found.suffix, f"convert it to {found.suffix[1:]}")
        hint = f"{promise}{which_shell()}: {_render(name, found, compression)}"
    is_url = "://" in name
    if (is_url or name == STDIN_SHOWN) and (found.command or "{path}" in found.hint):
        hint = "save it to a file, and name that file: the message then says how to read it"
    if found.is_text:
        hint += "; or read it as it is: --format text"
    if is_url and (whole := re.sub("/(raw|blob)/", "/resolve/", name)) != name:
        hint = f"if it is a file on the Hub: {quoted(whole)}"
    packed = " (compressed)" if compression else ""
    return InputError(f"{name}: {found.kind}{packed}, not text", hint)


def _render(name: str, found: Foreign, compression: str) -> str:
    """Return the command for a file as the user can type it."""
    path, new = quoted(name), quoted(new_name(name, found.suffix))
    if "{path}" in found.command:
        return found.command.format(path=path, new=new)
    if compression:
        return f"{CODECS[compression].command} {path} | {found.command} > {new}"
    return f"{found.command} < {path} > {new}"


def new_name(name: str, suffix: str) -> str:
    """Return an unused name in the same folder, with another suffix in place of all that a file has.

    >>> new_name("no/such/data.json.gz", ".jsonl"), new_name("no/such/c.txt", ".txt")
    ('no/such/data.jsonl', 'no/such/c.txt')
    """
    stem = Path(name).name
    while 1 < len(ending := Path(stem).suffix) < 9:
        stem = stem.removesuffix(ending)
    return str(unused(Path(name).with_name(stem + suffix)))


def unused(path: Path) -> Path:
    """Return a name in the same folder under which there is nothing yet."""
    while os.path.lexists(path):
        path = path.with_name(f"new_{path.name}")
    return path
