"""What is printed: no control characters of others reach a terminal, and no name forges a line."""

from __future__ import annotations

import json
import os
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from fineweb_stream import PrepareError, cli
from fineweb_stream.support.errors import InputError, Interrupted
from fineweb_stream.support.log import log
from fineweb_stream.support.model import Input
from fineweb_stream.support.redact import escape, shown
from fineweb_stream.token_files import commands

NASTY = {
    "colour": "\x1b[31m",
    "title": "\x1b]0;owned\x07",
    "C1": "\x9b31m",
    "newline": "\nprepare: done",
    "return": "\rprepare: done",
    "backspace": "\b\b\b",
    "delete": "\x7f",
    "NEL": "\x85prepare: done",
    "line separator": "\u2028prepare: done",
    "override": "\u202etxt.exe",
    "isolate": "\u2066",
    "mark": "\u200f",
    "hidden": "\u200b\ufeff",
}
"""What a name, a field or an answer may contain to deceive the reader of a message."""

HARMLESS = "naïve 漢字 עברית 👩‍👩‍👧 e\u0301 ~ \\ 'x'"


def is_safe(text: str) -> bool:
    """No control character, surrogate, separator or mark of direction, except our own newlines."""
    return all(
        c == "\n" or (unicodedata.category(c) not in ("Cc", "Cs", "Zl", "Zp") and c not in "\u200b\u200e\u200f\ufeff")
        for c in text
    ) and not any("\u202a" <= c <= "\u202e" or "\u2066" <= c <= "\u2069" for c in text)


@given(text=st.text(st.characters()) | st.text("".join(NASTY.values())))
def test_escaped_text_is_safe_and_readable(text: str) -> None:
    """Any text becomes one safe line, which escaping again does not change; Python's escapes say what it was."""
    once = escape(text)
    assert is_safe(once) and "\n" not in once and escape(once) == once
    if "\\" not in text:
        assert once.encode("ascii", "backslashreplace").decode("unicode_escape") == text
    assert escape(text, keep="\n").count("\n") == text.count("\n")


def test_harmless_text_stays() -> None:
    """Scripts of all kinds, joined emoji and combining marks are shown as they are."""
    assert escape(HARMLESS) == HARMLESS


@pytest.mark.parametrize("nasty", NASTY.values(), ids=NASTY)
def test_every_error_and_name_is_safe(nasty: str) -> None:
    """Message, hint and what is saved are one line each, whatever they contain; a name that is shown is safe."""
    error = InputError(f"{nasty}: no such file", f"check {nasty}")
    error.saved = nasty
    assert is_safe(str(error)) and str(error).count("\n") == 2
    stopped = Interrupted(2)
    stopped.saved = nasty
    assert is_safe(str(stopped)) and str(stopped).count("\n") == 1
    for name in (nasty, f"https://host/{nasty}"):
        assert is_safe(Input(name, "text", 1, "").shown) and "\n" not in shown(name)


@pytest.mark.parametrize("nasty", NASTY.values(), ids=NASTY)
def test_each_message_of_the_log_is_a_safe_line(nasty: str, caplog: pytest.LogCaptureFixture) -> None:
    """A log message is one line for every handler, also if it has arguments."""
    with caplog.at_level("INFO", logger="fineweb_stream"):
        log.info(f"waiting for {nasty}")
        log.warning("waiting for %s", nasty)
    assert caplog.messages == [f"waiting for {escape(nasty)}"] * 2 and "\n" not in caplog.messages[0]


def name_with(nasty: str, suffix: str) -> str:
    return f"a{nasty.replace('/', '')}{suffix}"


def _missing(folder: Path, nasty: str) -> list[str]:
    return [str(folder / name_with(nasty, ".txt"))]


def _bad_line(folder: Path, nasty: str) -> list[str]:
    path = folder / name_with(nasty, ".jsonl")
    path.write_text(f'{{"text": "a"}}\n{{"text": "{nasty.encode("unicode_escape").decode()}\n', encoding="utf-8")
    return [str(path)]


def _skipped(folder: Path, nasty: str) -> list[str]:
    path = folder / name_with(nasty, ".jsonl")
    lines = ["x" + nasty.splitlines()[0], *(json.dumps({"text": f"words and more words {i}"}) for i in range(99))]
    path.write_text("\n".join(lines), encoding="utf-8")
    return [str(path), "--skip-bad", "--val-ratio", "0.5"]


def _column(folder: Path, nasty: str) -> list[str]:
    path = folder / "a.jsonl"
    path.write_text(json.dumps({nasty: "text"}) + "\n", encoding="utf-8")
    return [str(path), "--text-column", f"c{nasty}"]


def _record(folder: Path, nasty: str) -> list[str]:
    (folder / "out").mkdir()
    (folder / "out" / "prepare.json").write_text(json.dumps({"format": nasty}), encoding="utf-8")
    (folder / "a.txt").write_text("words\n")
    return [str(folder / "a.txt")]


def _lock(folder: Path, nasty: str) -> list[str]:
    (folder / "out").mkdir()
    (folder / "out" / "prepare.lock").write_text(json.dumps({"pid": 1, "host": nasty, "started": 0}))
    (folder / "a.txt").write_text("words\n")
    return [str(folder / "a.txt")]


def _option(folder: Path, nasty: str) -> list[str]:
    return [f"--{nasty}"]


@pytest.mark.parametrize("place", [_missing, _bad_line, _skipped, _column, _record, _lock, _option])
@pytest.mark.parametrize("nasty", NASTY.values(), ids=NASTY)
def test_the_command_line_shows_nothing_raw(
    nasty: str, place: Callable[[Path, str], list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In names of files, fields, columns, records, locks and options: nothing raw is printed, no line is forged."""
    if os.name == "nt" and place in (_missing, _bad_line, _skipped):
        pytest.skip("Windows has no such names")
    try:
        status = cli.main([*place(tmp_path, nasty), "--out", str(tmp_path / "out"), "--engine", "tiktoken"])
    except SystemExit as error:
        status = int(error.code or 0)
    said = capsys.readouterr()
    assert status == (0 if place is _skipped else 1 if place is _record else 2) or place is _lock, said.err
    assert is_safe(said.out) and is_safe(said.err)
    assert not any(line.startswith("prepare: done") for line in (said.out + said.err).splitlines())


@pytest.mark.parametrize("is_terminal", [True, False])
def test_decode_escapes_on_a_terminal_only(
    is_terminal: bool,
    reference: tiktoken.Encoding,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A pipe gets the exact text, a terminal one that cannot control it; tabs and line ends are text."""
    text = "a\tb\nc" + "".join(NASTY.values())
    np.array(reference.encode_ordinary(text), "<u2").tofile(tmp_path / "a.bin")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal, raising=False)
    assert commands.main(["decode", str(tmp_path / "a.bin")]) == 0
    assert capsys.readouterr().out == (escape(text, keep="\t\n") if is_terminal else text) + "\n"


def test_scripts_keep_the_raw_message() -> None:
    """The attributes of an error are exact for a script; only its text is escaped."""
    assert PrepareError("a\x1b", "b\n").args == ("a\x1b", "b\n")
