"""Whose file is it: nothing that is not the run's own is opened for writing, renamed over or deleted."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fineweb_stream import prepare
from fineweb_stream.output import files
from fineweb_stream.pipeline import run
from fineweb_stream.pipeline.settings import Settings
from fineweb_stream.support.errors import InputError, Interrupted, PrepareError

from .helpers import outputs, prepare_in_blocks, write_jsonl

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="links and pipes"),
    pytest.mark.usefixtures("no_estimate", "no_hash_threads"),
]

DOCS = [f"Document {i} says hello {'again ' * (i % 9)}." for i in range(300)]
OPTIONS: dict[str, Any] = {"shard_tokens": 500, "keep_shards": True, "engine": "tiktoken", "workers": 1}
OPTIONS["skip_bad"] = True
FOREIGN = b"precious " * 100

NAMES = [
    *("train.bin", "val.bin", "val.npy", "train_shard_0000.bin", "train_shard_0001.bin", "train_shard_0007.bin"),
    *("train_shard_0000.npy", "rest.bin", "train_shard_0000_mybackup.bin", "prepare.changes.jsonl", "prepare.json"),
    *("prepare.manifest.json", "prepare.lock", "prepare.log", "val.bin.part", "train.bin.part", "prepare.json.part"),
]


def corpus(folder: Path, name: str = "c.jsonl") -> Path:
    path = write_jsonl(folder / name, DOCS if name == "c.jsonl" else DOCS[::-1])
    path.write_bytes(path.read_bytes().replace(b'{"id": 9,', b'["id": 9,'))
    return path


def stop_at(call: str, n: int) -> Callable[[Path, Path], None]:
    """Leave a folder as SIGKILL does when a function is called for the n-th time."""

    def make(path: Path, out: Path) -> None:
        owner = files.Part if call == "copy_from" else run.Record if call == "write" else run.Run
        real, calls = getattr(owner, call), itertools.count(1)

        def dying(*args: Any, **kwargs: Any) -> Any:
            if next(calls) >= n:
                raise SystemExit
            return real(*args, **kwargs)

        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(PrepareError):
            patch.setattr(owner, call, dying)
            patch.setattr(run.Run, "_saved", lambda *args: "")
            patch.setattr(run.Run, "_commit", lambda self, *args, commit=run.Run._commit: commit(self, *args))
            patch.setattr(run, "COMMIT_SECONDS", 0.0)
            prepare_in_blocks(1000, path, out, **OPTIONS)

    return make


STATES: dict[str, Callable[[Path, Path], Any]] = {
    "fresh": lambda path, out: out.mkdir(),
    "interrupted at 0 tokens": stop_at("write", 1),
    "interrupted later": stop_at("write", 9),
    "merging": stop_at("copy_from", 2),
    "finished": lambda path, out: prepare(path, out, quiet=True, **OPTIONS),
    "finished at a limit": lambda path, out: prepare(path, out, quiet=True, max_tokens=1200, **OPTIONS),
    "finished demo": lambda path, out: prepare(demo=True, out=out, quiet=True, engine="tiktoken"),
}

COMMANDS: dict[str, dict[str, Any]] = {
    "same": {},
    "--overwrite": {"overwrite": True},
    "other input": {"inputs": "d.jsonl"},
    "other input, --overwrite": {"inputs": "d.jsonl", "overwrite": True},
    "larger --max-tokens": {"max_tokens": 2000},
}


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in each state, to be copied."""
    folder = tmp_path_factory.mktemp("states")
    for name, make in STATES.items():
        make(corpus(folder), folder / name)
    assert {path.name for path in (folder / "interrupted at 0 tokens").iterdir()} >= {"prepare.json"}
    assert list((folder / "merging").glob("train.bin.*.part"))
    return folder


def command(folder: Path, options: dict[str, Any]) -> str:
    """Run a command; return what it was refused with."""
    options = OPTIONS | {"inputs": "c.jsonl", "quiet": True} | options
    try:
        prepare(folder / options.pop("inputs"), folder / "out", **options)
    except (PrepareError, Interrupted) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", ["file", "link", "dangling link", "folder", "pipe"])
def test_nothing_foreign_is_touched(state: str, kind: str, states: Path, tmp_path: Path) -> None:
    """Each name x each command: no byte of what is foreign changes, at once; without it the command works."""
    corpus(tmp_path), corpus(tmp_path, "d.jsonl")
    commands = list(COMMANDS.values())[: 5 if kind == "file" else 2]
    for name, options in itertools.product(NAMES, commands):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        shutil.copytree(states / state, tmp_path / "out")
        there, path = tmp_path / "there", tmp_path / "out" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        there.write_bytes(FOREIGN)
        if kind == "file":
            path.write_bytes(FOREIGN)
        elif kind in ("link", "dangling link"):
            path.symlink_to(there if kind == "link" else tmp_path / "nowhere")
        else:
            path.mkdir() if kind == "folder" else os.mkfifo(path)
        before, start = os.lstat(path), time.monotonic()
        message = command(tmp_path, options)
        assert time.monotonic() - start < 20
        after = os.lstat(path)
        assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode), (name, options)
        assert kind != "file" or path.read_bytes() == FOREIGN, (name, options)
        assert there.read_bytes() == FOREIGN
        assert not (tmp_path / "nowhere").exists()
        assert not message or str(tmp_path / "out") in message


@pytest.mark.parametrize("options", [{}, {"overwrite": True}, {"overwrite": True, "seed": 1}], ids=str)
@pytest.mark.parametrize(
    ("kind", "point"),
    [
        *itertools.product(["one file", "shuffled"], ["merge", "give_names"]),
        *itertools.product(["shards merged"], ["copy_from", "give_names"]),
    ],
)
def test_the_beginning_of_train_from_another_run(
    kind: str, point: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once train is one file, a shard is not the run's, whatever it holds: not deleted, nor put in that one's place."""
    path, out = corpus(tmp_path), tmp_path / "out"
    settings = OPTIONS | {"keep_shards": False, "shuffle": kind == "shuffled"}
    prepare(path, tmp_path / "expected", quiet=True, **settings)

    def die(*args: Any, **kwargs: Any) -> Any:
        raise SystemExit

    with monkeypatch.context() as patch, contextlib.suppress(PrepareError):
        patch.setattr(files.Part if point == "copy_from" else run, point, die)
        if kind == "shards merged":  # as an earlier version did
            patch.setattr(Settings, "has_shards", True)
        prepare_in_blocks(1000, path, out, **settings)
    expected = outputs(tmp_path / "expected")
    foreign = expected["train.bin"][:500]
    (out / "train_shard_0000.bin").write_bytes(foreign)
    with pytest.raises(InputError, match=r"train_shard_0000\.bin already exists, and is not from this run"):
        prepare(path, out, quiet=True, **settings | options)
    assert (out / "train_shard_0000.bin").read_bytes() == foreign
    (out / "train_shard_0000.bin").unlink()
    prepare(path, out, quiet=True, **settings)
    assert outputs(out) == expected


@pytest.mark.parametrize("state", STATES)
def test_without_foreign_files_each_command_works(state: str, states: Path, tmp_path: Path) -> None:
    """What is refused is refused for other inputs or settings alone; --overwrite is never refused."""
    corpus(tmp_path), corpus(tmp_path, "d.jsonl")
    for name, options in COMMANDS.items():
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        shutil.copytree(states / state, tmp_path / "out")
        message = command(tmp_path, options)
        if options.get("overwrite") or state in ("fresh", "interrupted at 0 tokens", "finished demo"):
            assert not message, name
        elif "inputs" in options:
            assert "d.jsonl is new" in message
        else:
            assert not message or "--max-tokens" in options or "train already has" in message
        if message:
            continue
        shutil.rmtree(tmp_path / "expected", ignore_errors=True)
        limit = {"max_tokens": options["max_tokens"]} if "max_tokens" in options else {}
        prepare(tmp_path / options.get("inputs", "c.jsonl"), tmp_path / "expected", quiet=True, **OPTIONS | limit)
        assert outputs(tmp_path / "out") == outputs(tmp_path / "expected"), name
        assert not list((tmp_path / "out").glob("*.part"))


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", [*NAMES[:9], "prepare.json"])
def test_an_input_in_an_outputs_place(name: str, state: str, states: Path, tmp_path: Path) -> None:
    """It is refused before anything is touched, also through a link, with --overwrite or not."""
    shutil.copytree(states / state, tmp_path / "out")
    (tmp_path / "out" / name).write_bytes(b"a text that is an input\n" * 9)
    if name == "train_shard_0000_mybackup.bin":
        return  # not a name of ours
    (tmp_path / "link.txt").symlink_to(tmp_path / "out" / name)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    for path, overwrite in itertools.product((tmp_path / "out" / name, tmp_path / "link.txt"), (False, True)):
        with pytest.raises(PrepareError) as caught:
            prepare(path, tmp_path / "out", quiet=True, format="text", overwrite=overwrite)
        said = str(caught.value)
        assert "with the name of an output in this folder" in said or "this program's own" in said
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_an_output_folder_that_is_a_link(tmp_path: Path) -> None:
    """That is the user's own arrangement."""
    (tmp_path / "far").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "far")
    for _ in range(2):
        assert not command(tmp_path, {"inputs": corpus(tmp_path).name})
    assert (tmp_path / "far" / "train.bin").exists()


def test_a_hard_link_to_a_part(states: Path, tmp_path: Path) -> None:
    """A temporary file that has another name, too, is not written to."""
    corpus(tmp_path)
    shutil.copytree(states / "interrupted later", tmp_path / "out")
    os.link(next((tmp_path / "out").glob("val.bin.*.part")), tmp_path / "mine")
    before = (tmp_path / "mine").read_bytes()
    assert "has a second name" in command(tmp_path, {})
    assert (tmp_path / "mine").read_bytes() == before
