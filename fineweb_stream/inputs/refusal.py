"""The error for a file that is not a corpus: what it is, and a command to paste that makes text of it."""

from __future__ import annotations

import re
from pathlib import Path

from ..support.errors import InputError
from ..support.redact import quoted
from .codecs import CODECS
from .kind import Foreign

STDIN_NAME = "standard input"

PROMISES = {"": "unpack it", ".txt": "convert it to text"}
"""What commands do that make files of some suffixes."""


def refuse(name: str, found: Foreign, compression: str = "") -> InputError:
    """Return the error for a file called `name` whose content, after any decompression, is of a foreign kind."""
    is_piped = name == STDIN_NAME and "{path}" in found.hint
    hint = "save it to a file, and name that" if is_piped else found.hint.format(path=quoted(name))
    if found.command:
        promise = found.promise or PROMISES.get(found.suffix, f"convert it to {found.suffix[1:]}")
        hint = f"{promise}: {_render(name, found, compression)}"
    if found.is_text:
        hint += "; or read it as it is: --format text"
    if (whole := re.sub("/(raw|blob)/", "/resolve/", name)) != name and "://" in name:
        hint = f"if it is a file on the Hub: {quoted(whole)}"
    packed = " (compressed)" if compression else ""
    return InputError(f"{name}: {found.kind}{packed}, not text", hint)


def _render(name: str, found: Foreign, compression: str) -> str:
    """Return the command for this file as the user can type it."""
    needs_file = "{path}" in found.command
    steps = [CODECS[compression].command] if compression and not needs_file else []
    if name == STDIN_NAME:
        if needs_file:
            return "save it to a file, and name that"
        kind = {".jsonl": " --format jsonl"}.get(found.suffix, "")
        return f"COMMAND | {' | '.join([*steps, found.command])} | python prepare.py -{kind}"
    new = quoted(new_name(name, found.suffix))
    if "://" in name:
        fetched = "FETCHED_FILE"
        if needs_file:
            return found.command.format(path=fetched, new=new) + " (fetch it first)"
        fetch = [f"curl -L {quoted(name)}"] if name.startswith("http") else [f"cat {fetched}"]
        return " | ".join([*fetch, *steps, found.command]) + f" > {new}"
    path = quoted(name)
    if needs_file:
        return found.command.format(path=path, new=new)
    if steps:
        return f"{steps[0]} {path} | {found.command} > {new}"
    return f"{found.command} < {path} > {new}"


def new_name(name: str, suffix: str) -> str:
    """Return an unused name with the same stem in the same folder, or for a URL in the current folder.

    >>> new_name("no/such/data.json.gz", ".jsonl"), new_name("no/such/c.txt", ".txt")
    ('no/such/data.jsonl', 'no/such/c_new.txt')
    """
    path = Path(name.partition("?")[0].rpartition("/")[2] if "://" in name else name)
    stem = path.name
    while 1 < len(ending := Path(stem).suffix) < 9:
        stem = stem.removesuffix(ending)
    new = path.with_name(stem + suffix)
    while str(new) == name or new.exists():
        stem += "_new"
        new = path.with_name(stem + suffix)
    return str(new)
