"""Commands that messages advise: words and paths quoted for the user's shell, and how this program is run again."""

from __future__ import annotations

import os
import re
import shlex
import sys

from .redact import escape


def quoted(text: str) -> str:
    """Return a path or a pattern quoted for a shell, and such that no command takes it for an option.

    >>> quoted("data/corpus"), quoted("data/my corpus")[1:-1], quoted("-c.txt")
    ('data/corpus', 'data/my corpus', './-c.txt')
    """
    return as_word(f"./{text}" if text.startswith("-") else text)


def as_word(text: str) -> str:
    """Return any text quoted as one word for a shell, on Windows for cmd.exe and PowerShell."""
    if os.name != "nt":
        if escape(text) == text:
            return shlex.quote(text)
        plain = (chr(byte) if 31 < byte < 127 and byte not in b"'\\" else f"\\{byte:03o}" for byte in os.fsencode(text))
        return f"$'{''.join(plain)}'"  # what a message cannot show, as bash, zsh and ksh read it
    from subprocess import list2cmdline

    is_plain = re.fullmatch(r"[\w\\/:.+=~-]+", text)
    return text if is_plain else f'"{list2cmdline([f" {text}"])[2:]}'  # without the space, R&D.txt is two commands


def move_command(old: str, new: str) -> str:
    """Return the command that renames a file."""
    return f"{'move' if os.name == 'nt' else 'mv'} {quoted(old)} {quoted(new)}"


def which_shell() -> str:
    """Return for which shell a command that redirects its input is: where there are two, it works in one of them."""
    return " (in cmd.exe: PowerShell has no <)" if os.name == "nt" else ""


def python_command(code: str, arguments: str = "") -> str:
    """Return a command for a shell that runs Python code, in which there is no double quote; it prints UTF-8."""
    return f'{quoted(sys.executable or "python3")} -X utf8 -c "{code}"{arguments}'


def program() -> str:
    """Return the command that runs this program again: the script as it was typed, else the package."""
    python = os.path.basename(sys.executable or "python").removesuffix(".exe")  # some systems have only python3
    script = sys.argv[0] if sys.argv else ""
    package = __name__.removesuffix(".support.shell")  # where it was copied to, in a package of the user's
    return f"{python} {quoted(script) if os.path.basename(script) == 'prepare.py' else f'-m {package}'}"
