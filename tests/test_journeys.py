"""Each state of a folder x each command: an exit status, sentences, never a traceback; the files are right."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fineweb_stream import cli, prepare
from fineweb_stream.support.errors import PrepareError
from fineweb_stream.token_files.commands import main as tools

from .helpers import outputs
from .test_whose import OPTIONS, STATES, corpus, write_jsonl

LOST: dict[str, Callable[[Path], Any]] = {
    "output lost": lambda out: (out / "train.bin").unlink(),
    "output cut": lambda out: os.truncate(out / "val.bin", 10),
    "damaged record": lambda out: (out / "prepare.json").write_text("{"),
    "foreign output": lambda out: (out / "train.bin").write_bytes(b"precious" * 99),
    "record lost": lambda out: (out / "prepare.json").unlink(),
    "another version": lambda out: (out / "prepare.json").write_text('{"format": 99}'),
}

FOLDERS = [*STATES, *LOST]

TYPED: dict[str, tuple[str, ...]] = {
    "the same": (),
    "--overwrite": ("--overwrite",),
    "--dry-run": ("--dry-run",),
    "both": ("--overwrite", "--dry-run"),
    "--verify": ("--verify",),
    "smaller --max-tokens": ("--max-tokens", "100"),
    "larger --max-tokens": ("--max-tokens", "2000"),
    "one more input": ("e.jsonl",),
    "one input fewer": ("-c.jsonl", "e.jsonl"),
    "other settings": ("--seed", "5"),
    "--demo": ("--demo", "-c.jsonl"),
    "another folder": ("here",),
    "inspect": ("inspect",),
}

ANY = set(TYPED)
REFUSED = {
    **dict.fromkeys(("damaged record", "foreign output", "record lost", "another version"), ANY),
    **{state: {"other settings", "one input fewer", "--demo"} for state in ("interrupted later", "merging")},
    "output lost": {"the same", "larger --max-tokens", "one more input", "another folder"},
    "finished": {"other settings", "one input fewer", "smaller --max-tokens", "larger --max-tokens", "--demo"},
}
REFUSED["output cut"] = REFUSED["output lost"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in each state, to be copied."""
    folder = tmp_path_factory.mktemp("folders")
    for name, make in STATES.items():
        make(corpus(folder), folder / name)
    for name, lose in LOST.items():
        shutil.copytree(folder / "finished", folder / name)
        lose(folder / name)
    return folder


@pytest.mark.parametrize("typed", TYPED)
@pytest.mark.parametrize("state", FOLDERS)
def test_journey(state: str, typed: str, folders: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    """Each cell, from the command line and from `prepare()`: the same result, and a refusal loses nothing."""
    inputs = [corpus(tmp_path)]
    write_jsonl(tmp_path / "e.jsonl", [f"One more, {i} {'times ' * (i % 9)}" for i in range(50)])
    words = [word for word in TYPED[typed] if not re.match("-?[ce].jsonl|here|inspect", word)]
    inputs = [] if "-c.jsonl" in TYPED[typed] else inputs
    inputs += [tmp_path / "e.jsonl"] if "e.jsonl" in TYPED[typed] else []
    if typed == "another folder":
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        inputs = [Path("..", inputs[0].name)]
    statuses = []
    for how in ("command line", "script"):
        out = tmp_path / how
        shutil.copytree(folders / state, out)
        before = {path.name: path.read_bytes() for path in out.iterdir()}
        if typed == "inspect":
            status = tools(["inspect", str(out)])
        elif how == "command line" or "--verify" in words:
            common = ["--shard-tokens", "500", "--keep-shards", "--engine", "tiktoken", "--workers", "1", "--skip-bad"]
            inputs_named = [] if "--verify" in words else map(str, inputs)
            status = cli.main([*inputs_named, "--out", str(out), *([] if "--verify" in words else common), *words])
        else:
            options = {"overwrite": "--overwrite" in words, "dry_run": "--dry-run" in words, "demo": "--demo" in words}
            options |= {"seed": 5} if "--seed" in words else {}
            options |= {"max_tokens": int(words[1])} if "--max-tokens" in words else {}
            try:
                prepare(inputs, out, quiet=True, **OPTIONS | options)
                status = 0
            except PrepareError as error:
                status = error.exit_status
        said = capsys.readouterr()
        assert "Traceback" not in said.err + said.out
        assert status == 0 or how == "script" or re.match(r"(prepare|inspect): .*\n  ", said.err)
        after = {path.name: path.read_bytes() for path in out.iterdir()}
        if status or typed in ("--dry-run", "both", "--verify", "inspect"):
            assert after == before
        elif "--max-tokens" not in words and typed != "--demo":
            seed = 5 if "--seed" in words else 0
            expected = folders / " ".join(["expected", *(path.name for path in inputs), str(seed)])
            if not expected.exists():
                prepare(inputs, expected, quiet=True, **OPTIONS | {"seed": seed})
            assert outputs(out) == outputs(expected)
        statuses.append(status)
    assert len(set(statuses)) == 1
    if typed not in ("--verify", "inspect", "--dry-run", "both"):
        refused = REFUSED.get(state, set())
        is_empty = state in ("fresh", "interrupted at 0 tokens", "finished demo")
        if typed in refused or (typed == "smaller --max-tokens" and not is_empty):
            assert statuses[0] in (1, 2)
        elif is_empty or typed == "--overwrite":
            assert statuses[0] == 0
