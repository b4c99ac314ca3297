"""The same command again: it continues or says why it cannot, and never makes other bytes."""

from __future__ import annotations

import contextlib
import errno
import gzip
import itertools
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fineweb_stream import cli, estimate, iter_ids, prepare
from fineweb_stream.inputs.blocks import Source
from fineweb_stream.inputs.storage import InputFile, check_unchanged, open_input
from fineweb_stream.output import files, manifest, resume, shards
from fineweb_stream.output.manifest import read_record
from fineweb_stream.pipeline import fetch, job, run, samples
from fineweb_stream.pipeline.settings import Settings
from fineweb_stream.remote.network import Network
from fineweb_stream.support.errors import DiskError, InputError, Interrupted, PrepareError, RemoteError
from fineweb_stream.support.model import Input
from fineweb_stream.tokenizer import encoder

from .helpers import System, in_blocks, outputs, prepare_in_blocks, shard_path, write_jsonl, write_parquet
from .test_contracts import FORMATS, write_documents

pytestmark = pytest.mark.usefixtures("no_estimate", "no_hash_threads")

DOCS = [f"Document {i}: it's {'very ' * (i % 17)}short, 漢字 and all." for i in range(400)]
OPTIONS: dict[str, Any] = {"shard_tokens": 1500, "engine": "tiktoken"}
ARGUMENTS = ("--shard-tokens", "1500", "--engine", "tiktoken")


def at_block(patch: pytest.MonkeyPatch, number: int, act: Callable[[], object]) -> list[int]:
    """Let a run call `act` right before it writes this block, the first being 1; return a list of all it came to."""
    absorb, reached = run.Run._absorb, list[int]()

    def act_and_absorb(self: run.Run, *args: Any) -> bool:
        reached.append(len(reached) + 1)
        if reached[-1] == number:
            act()
        return absorb(self, *args)

    patch.setattr(run.Run, "_absorb", act_and_absorb)
    return reached


def prepare_some(path: Any, out: Path, n_blocks: int, block_bytes: int = 2000, **options: Any) -> bool:
    """Run until `n_blocks` blocks are written, then leave as on Ctrl+C; return whether it came to the end before."""

    def leave() -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        at_block(patch, n_blocks + 1, leave)
        if n_blocks >= 0:
            patch.setattr(samples, "sample", lambda *args: None)  # an estimate takes longer than so few blocks
        with contextlib.suppress(KeyboardInterrupt):
            prepare_in_blocks(block_bytes, path, out, **OPTIONS | options)
            return True
    return False


@pytest.fixture
def corpus_path(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "c.jsonl", DOCS)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({"workers": 1}, {"workers": 8}),
        ({"workers": 8}, {"workers": 1}),
        ({"engine": "tiktoken"}, {"engine": "gigatoken"}),
        ({"errors": "strict"}, {"errors": "replace"}),
        ({"skip_bad": False}, {"skip_bad": True}),
        ({"memory": "4GB"}, {"memory": "2GB"}),
    ],
    ids=str,
)
def test_what_may_differ(before: dict[str, Any], now: dict[str, Any], corpus_path: Path, tmp_path: Path) -> None:
    """Workers, engine, memory and how bad records are met may differ: the bytes are the same."""
    if "gigatoken" in now.values():
        pytest.importorskip("gigatoken")
    assert not prepare_some(corpus_path, tmp_path / "out", 5, **before)
    assert read_record(tmp_path / "out").state.n_documents > 50
    assert prepare_some(corpus_path, tmp_path / "out", -1, **now)
    prepare(corpus_path, tmp_path / "expected", quiet=True, **OPTIONS)
    assert outputs(tmp_path / "out") == outputs(tmp_path / "expected")


@pytest.mark.usefixtures("shards_merged")
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("keep_shards", [True, False])
def test_a_shard_that_was_swapped(
    keep_shards: bool, number: int, corpus_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of the same size that took a shard's name before the merge stops it; the shard put back, it goes on."""
    options = OPTIONS | {"keep_shards": keep_shards, "quiet": True}
    shard, away, merge = shard_path(tmp_path / "out", number), tmp_path / "away", run.merge

    def merge_swapped(*args: Any, **kwargs: Any) -> None:
        shard.rename(away)
        shard.write_bytes(b"x" * away.stat().st_size)
        merge(*args, **kwargs)

    monkeypatch.setattr(run, "merge", merge_swapped)
    with pytest.raises(InputError, match=f"{shard.name} is not the file that the record describes\n  it is left alone"):
        prepare(corpus_path, tmp_path / "out", **options)
    assert set(shard.read_bytes()) == {ord("x")} and not (tmp_path / "out" / "train.bin").exists()
    monkeypatch.undo()
    away.replace(shard)
    prepare(corpus_path, tmp_path / "out", **options)
    prepare(corpus_path, tmp_path / "expected", **options)
    assert outputs(tmp_path / "out") == outputs(tmp_path / "expected")


def test_overwrite_of_a_finished_run(corpus_path: Path, tmp_path: Path, run_program: Any) -> None:
    """`--overwrite` makes a finished run anew, from the command line and from a script, with the same bytes."""
    for _ in range(2):
        assert run_program("c.jsonl", "--overwrite", *ARGUMENTS).returncode == 0
    expected = outputs(tmp_path / "out")
    os.truncate(tmp_path / "out" / "train.bin", 100)
    prepare(corpus_path, tmp_path / "out", quiet=True, overwrite=True, **OPTIONS)
    assert outputs(tmp_path / "out") == expected


OVERWRITTEN_BY: dict[str, tuple[bytes, dict[str, Any], str]] = {
    "a column that is not there": (b"", {"text_column": "body"}, r"c\.jsonl, line 1"),
    "invalid UTF-8": (b'{"text": "\xff"}\n', {}, r"c\.jsonl, line 1"),
    "not JSON": (b'{"text": "some"\n', {}, r"c\.jsonl, line 1"),
    "more val than there is": (b"", {"val_tokens": "1M"}, "nothing would be left"),
    "too little for the trainer": (b"", {"fit": "64x1024x8"}, "nanoGPT needs 1,025 or more"),
}


@pytest.mark.usefixtures("with_estimate")
@pytest.mark.parametrize("kind", OVERWRITTEN_BY)
def test_overwrite_by_what_cannot_be_made(kind: str, corpus_path: Path, tmp_path: Path) -> None:
    """A finished result is deleted only when the new one can be begun: a mistyped name costs nothing."""
    prepare(corpus_path, tmp_path / "out", quiet=True, **OPTIONS)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    data, options, message = OVERWRITTEN_BY[kind]
    corpus_path.write_bytes(data or corpus_path.read_bytes())
    with pytest.raises(InputError, match=message):
        prepare(corpus_path, tmp_path / "out", quiet=True, overwrite=True, **OPTIONS | options)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


@pytest.mark.usefixtures("with_estimate")
@pytest.mark.parametrize("has_room", [False, True])
@pytest.mark.parametrize("is_finished", [False, True])
def test_overwrite_on_a_small_disk(
    has_room: bool, is_finished: bool, corpus_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is deleted makes room for the new result; if even that is too little, nothing is deleted."""
    out, expected, options = tmp_path / "out", tmp_path / "expected", OPTIONS | {"seed": 5}
    if is_finished:
        prepare(corpus_path, out, quiet=True, **OPTIONS)
    else:
        assert not prepare_some(corpus_path, out, 5, **OPTIONS)
    prepare(corpus_path, expected, quiet=True, **options)
    needed = estimate(corpus_path, tmp_path / "new", **options).disk_bytes
    assert needed
    room = needed + (2000 if has_room else -500)
    monkeypatch.setattr(files, "free_bytes", lambda folder: room - sum(path.stat().st_size for path in out.iterdir()))
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert sum(map(len, before.values())) > 5000
    found = estimate(corpus_path, out, overwrite=True, **options)
    assert (found.disk_bytes or 0) <= found.disk_free_bytes or not has_room
    if has_room:
        prepare(corpus_path, out, overwrite=True, quiet=True, **options)
        assert outputs(out) == outputs(expected)
    else:
        with pytest.raises(DiskError, match=r"will be needed there at the peak, .* are free"):
            prepare(corpus_path, out, overwrite=True, quiet=True, **options)
        assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def append(path: Path) -> None:
    with path.open("a") as file:
        file.write('{"text": "one more"}\n')


def put_bytes(path: Path, data: bytes) -> None:
    with path.open("r+b") as file:
        file.write(data)


CHANGES: dict[str, tuple[Callable[[Path], Any], dict[str, Any], str]] = {
    "size": (
        lambda path: put_bytes(path, b'{"text": "More"}\n' + path.read_bytes()),
        {},
        r"b.jsonl changed: [\d,]+ bytes",
    ),
    "content": (lambda path: put_bytes(path, b'{"id": 9, '), {}, "b.jsonl changed: .* of 20"),
    "seed": (lambda path: None, {"seed": 3}, "--seed was 0 and is 3"),
    "ratio": (lambda path: None, {"val_ratio": 0.1}, "--val-ratio was 0.0005 and is 0.1"),
    "val tokens": (lambda path: None, {"val_tokens": 9}, "--val-tokens was not given and is 9"),
    "layout": (lambda path: None, {"layout": "npy"}, "--layout was 'nanogpt' and is 'npy'"),
    "separator": (lambda path: None, {"separator": "\n"}, "--separator was not given and is"),
    "column": (lambda path: None, {"text_column": "id2"}, "--text-column was 'text' and is 'id2'"),
    "order": (lambda path: None, {"inputs": "ba"}, "named in another order"),
    "one more": (lambda path: None, {"inputs": "cab"}, "c.jsonl is new"),
    "one less": (lambda path: None, {"inputs": "a"}, "b.jsonl is no longer an input"),
}


@pytest.mark.parametrize(
    ("what", "is_done"),
    [(what, is_done) for what in CHANGES for is_done in (False, True) if is_done or what != "column"],
)
def test_what_may_not_differ(what: str, is_done: bool, tmp_path: Path) -> None:
    """Refused with what changed and the way out, with not a byte touched; --overwrite starts over, and is right."""
    change, options, message = CHANGES[what]
    a, b = write_jsonl(tmp_path / "a.jsonl", DOCS[:20]), write_jsonl(tmp_path / "b.jsonl", DOCS[20:400])
    write_jsonl(tmp_path / "c.jsonl", DOCS[:9])
    assert prepare_some([a, b], tmp_path / "out", -1 if is_done else 9) == is_done
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    change(b)
    options = OPTIONS | options
    inputs = [tmp_path / f"{name}.jsonl" for name in options.pop("inputs", "ab")]
    with pytest.raises(InputError, match=message) as caught:
        prepare(inputs, tmp_path / "out", quiet=True, **options)
    assert "--overwrite" in str(caught.value)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    if "text_column" not in options:
        prepare(inputs, tmp_path / "out", quiet=True, overwrite=True, **options)
        prepare(inputs, tmp_path / "expected", quiet=True, **options)
        assert outputs(tmp_path / "out") == outputs(tmp_path / "expected")


@pytest.mark.parametrize("keep_shards", [True, False])
def test_another_size_of_shards(keep_shards: bool, corpus_path: Path, tmp_path: Path) -> None:
    """It is refused if shards are written; else it changes nothing."""
    out, options = tmp_path / "out", OPTIONS | {"keep_shards": keep_shards, "quiet": True}
    assert not prepare_some(corpus_path, out, 8, keep_shards=keep_shards)
    if keep_shards:
        with pytest.raises(InputError, match="--shard-tokens was 1500 and is 1501"):
            prepare(corpus_path, out, **options | {"shard_tokens": 1501})
    else:
        prepare(corpus_path, out, **options | {"shard_tokens": 1501})
    prepare(corpus_path, out, **options)
    prepare(corpus_path, tmp_path / "expected", **options)
    assert outputs(out) == outputs(tmp_path / "expected")


@pytest.mark.parametrize(
    ("begun", "typed", "undone"),
    [
        (
            {"keep_shards": True},
            {},
            "--keep-shards was given and is not given; --shard-tokens was 1500 and is not used",
        ),
        (
            {"keep_shards": True},
            {"shard_tokens": 1500},
            "--keep-shards was .*; --shard-tokens was 1500 and is not used",
        ),
        ({"layout": "llmc"}, {}, "--layout was 'llmc' and is 'nanogpt'; --shard-tokens was 1500 and is not used"),
        ({"keep_shards": True, "shard_tokens": None}, {}, "--keep-shards was given and is not given"),
        ({"layout": "npy", "shard_tokens": None}, {}, "--layout was 'npy' and is 'nanogpt'"),
        ({}, {"keep_shards": True}, "--keep-shards was not given and is given"),
        ({"shuffle": True}, {"shuffle": True, "keep_shards": True}, "--keep-shards was not given and is given"),
        (
            {"shuffle": True, "keep_shards": True},
            {"shuffle": True},
            "--keep-shards .*; --shard-tokens was 1500 and is .*",
        ),
        ({"shuffle": True}, {"shuffle": True}, ""),
    ],
)
def test_all_that_is_to_be_undone_is_named(
    begun: dict[str, Any], typed: dict[str, Any], undone: str, corpus_path: Path, tmp_path: Path
) -> None:
    """A size of shards is named if the command needs it to continue, and only then: undoing what is named suffices."""
    out, begun = tmp_path / "out", {"shard_tokens": 1500} | begun
    assert not prepare_some(corpus_path, out, 8, **begun)
    if undone:
        with pytest.raises(InputError, match="settings is already there") as caught:
            prepare(corpus_path, out, engine="tiktoken", quiet=True, **typed)
        found = caught.value.message.partition("already there: ")[2]
        assert re.fullmatch(undone, "; ".join(sorted(found.split("; "))))
        for name in re.findall(r"--(\S+) was", found):
            typed = {**typed, name.replace("-", "_"): begun.get(name.replace("-", "_"))}
        typed = {name: value for name, value in typed.items() if value is not None}
    prepare(corpus_path, out, engine="tiktoken", quiet=True, **typed)
    prepare(corpus_path, tmp_path / "expected", engine="tiktoken", quiet=True, **begun)
    assert outputs(out) == outputs(tmp_path / "expected")


def test_what_differs_is_said_in_a_few_words(tmp_path: Path) -> None:
    """A folder of many files that is not named any more: the first of them, and how many there are."""
    paths = [write_jsonl(tmp_path / f"{i:02}.jsonl", DOCS[i : i + 9]) for i in range(20)]
    prepare(paths, tmp_path / "out", quiet=True)
    with pytest.raises(InputError, match=r"04.jsonl is no longer an input: it was read already; and 14 more\n"):
        prepare(paths[-1], tmp_path / "out", quiet=True)


def test_what_is_ignored_is_not_compared(tmp_path: Path) -> None:
    """With --val-tokens, --val-ratio is ignored: without it, or with another one, it is the same run."""
    path = write_jsonl(tmp_path / "c.jsonl", DOCS[:200])
    first = prepare(path, tmp_path / "out", val_tokens=50, val_ratio=0.3, quiet=True)
    for options in ({}, {"val_ratio": 0.2}):
        assert prepare(path, tmp_path / "out", val_tokens=50, quiet=True, **options) == first


@pytest.mark.usefixtures("with_estimate")
def test_dry_run_says_what_is_in_the_way(tmp_path: Path, capsys) -> None:
    """As a run would, and goes on to the estimate; it touches nothing."""
    path = write_jsonl(tmp_path / "c.jsonl", DOCS[:200])
    out = tmp_path / "out"
    prepare(path, out, quiet=True)
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    for options, message in (
        ({"seed": 3}, "--seed was 0 and is 3\n  it is left alone: choose another folder"),
        ({"max_tokens": 9}, "tokens, --max-tokens is 9\n"),
    ):
        prepare(path, out, dry_run=True, **options)
        assert message in (said := capsys.readouterr().out) and said.startswith("note: ") and "tokens: about" in said
        prepare(path, out, dry_run=True, overwrite=True, **options)
        assert not capsys.readouterr().out.startswith("note:")
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    (out / "prepare.json").unlink()
    prepare(path, out, dry_run=True)
    assert "note: " in (said := capsys.readouterr().out) and "already exists, and is not from this run" in said


@pytest.mark.parametrize("kind", ["txt", *FORMATS])
def test_thirty_resumes(kind: str, tmp_path: Path) -> None:
    """Stopped thirty times in a row, at other block sizes too: the bytes of one run, and every record counted once."""
    options: dict[str, Any] = {"val_ratio": 0.1}
    if kind == "txt":
        path = tmp_path / "c.txt"
        path.write_text("\n".join(DOCS))
    else:
        path, more = write_documents(kind, tmp_path, DOCS)
        options |= more
    prepare(path, tmp_path / "expected", quiet=True, **OPTIONS | options)
    n_before = 0
    for i in range(30):
        assert not prepare_some(path, tmp_path / "out", 1 + i % 2, block_bytes=300 + 50 * (i % 7), **options)
        state = read_record(tmp_path / "out").state
        assert state.train_tokens + state.val_tokens > n_before
        n_before = state.train_tokens + state.val_tokens
    assert prepare_some(path, tmp_path / "out", -1, **options)
    assert outputs(tmp_path / "out") == outputs(tmp_path / "expected")
    found, expected = (read_record(tmp_path / folder).state for folder in ("out", "expected"))
    names = ("train_documents", "val_documents", "n_records", "text_bytes", "input_bytes", "outputs", "shard_sha256")
    assert [getattr(found, name) for name in names] == [getattr(expected, name) for name in names]


def test_resume_says_where(corpus_path: Path, tmp_path: Path, capsys) -> None:
    """The same command says what it found: how far, how many tokens."""
    assert not prepare_some(corpus_path, tmp_path / "out", 8)
    state = read_record(tmp_path / "out").state
    prepare(corpus_path, tmp_path / "out", **OPTIONS)
    said = re.search(r"resuming at (\d+)%: ([\d,]+) tokens are done", capsys.readouterr().out)
    assert said
    assert int(said[1]) == round(100 * state.input_bytes / corpus_path.stat().st_size)
    assert int(said[2].replace(",", "")) == state.train_tokens + state.val_tokens


@pytest.mark.parametrize("n_blocks", [2, 14, -1])
@pytest.mark.parametrize("shuffle", [False, True])
def test_train_is_written_once(
    shuffle: bool, n_blocks: int, corpus_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --keep-shards, train grows under the name of `train.bin` and is copied nowhere, resumed or not."""
    out, options = tmp_path / "out", OPTIONS | {"shuffle": shuffle, "quiet": True}
    prepare(corpus_path, tmp_path / "expected", keep_shards=True, **options)
    expected = outputs(tmp_path / "expected")
    monkeypatch.setattr(files.Part, "copy_from", lambda *args, **kwargs: pytest.fail("a copy"))
    prepare_some(corpus_path, out, n_blocks, shuffle=shuffle)
    assert not list(out.glob("train_shard_*"))
    assert shuffle or n_blocks < 0 or len(list(out.glob("train.bin.*.part"))) == 1
    prepare(corpus_path, out, **options)
    assert outputs(out) == {name: expected[name] for name in ("train.bin", "val.bin")}
    assert {path.name for path in out.iterdir()} == {"train.bin", "val.bin", "prepare.json"}


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("place", ["encoding", "merging", "shuffled", "done", "at a limit"])
def test_a_run_that_an_earlier_version_began(
    place: str, shuffle: bool, corpus_path: Path, tmp_path: Path, monkeypatch, request: pytest.FixtureRequest
) -> None:
    """What was written in shards, which did not stay, or in one, is continued and extended: the same bytes."""
    out, options = tmp_path / "out", OPTIONS | {"shuffle": shuffle, "quiet": True}
    if shuffle and place == "at a limit":
        pytest.skip("what is shuffled is not extended")
    calls = itertools.count()
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(manifest, "FORMAT", 2)
        patch.setattr(Settings, "has_shards", True)
        patch.setattr(shards, "written_name", lambda number, shard_tokens, layout: layout.shard_name(number))

        def stop_here(real: Callable[..., Any], n: int) -> Callable[..., Any]:
            def stopping(*args: Any, **kwargs: Any) -> Any:
                if next(calls) == n:
                    raise KeyboardInterrupt
                return real(*args, **kwargs)

            return stopping

        if place == "encoding":
            patch.setattr(run.Run, "_absorb", stop_here(run.Run._absorb, 14))
        elif place == "merging":
            owner, name = (run, "merge") if shuffle else (files.Part, "copy_from")
            patch.setattr(owner, name, stop_here(getattr(owner, name), 0 if shuffle else 2))
        elif place == "shuffled":
            patch.setattr(run.Record, "write", stop_here(run.Record.write, 5))
        n_tokens = 6000 if place == "at a limit" else None
        prepare_in_blocks(2000, corpus_path, out, max_tokens=n_tokens, **OPTIONS, shuffle=shuffle)
    if place == "encoding":
        assert len(read_record(out).state.shard_sha256) > 1
    prepare(corpus_path, out, **options)
    prepare(corpus_path, tmp_path / "expected", **options)
    assert outputs(out) == outputs(tmp_path / "expected")


@pytest.mark.usefixtures("with_estimate")
@pytest.mark.parametrize("kind", ["one file", "kept", "npy"])
def test_a_disk_too_small_to_extend_a_finished_run(kind: str, corpus_path: Path, tmp_path: Path, monkeypatch) -> None:
    """It is known before anything is copied, and the finished files stay; what is asked for is what is then used."""
    kinds: dict[str, dict[str, Any]] = {"one file": {}, "kept": {"keep_shards": True}, "npy": {"layout": "npy"}}
    out, options = tmp_path / "out", OPTIONS | kinds[kind]
    prepare_in_blocks(2000, corpus_path, out, max_tokens=6000, **options)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    needed = estimate(corpus_path, out, **options).disk_bytes or 0
    with monkeypatch.context() as patch:
        patch.setattr(files, "free_bytes", lambda *args: needed - 1)
        with pytest.raises(DiskError, match="will be needed there at the peak"):
            prepare(corpus_path, out, quiet=True, **options)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    prepare(corpus_path, out, quiet=True, **options)
    finished = 0 if kind == "npy" else 6000 * 2  # the finished file stays until the new one is complete
    used = finished + sum(path.stat().st_size for path in out.glob("*.[bn][ip][ny]"))
    used -= sum(len(data) for name, data in before.items() if name.endswith((".bin", ".npy")))
    assert 0.9 * used < needed < 1.2 * used + 2 * 1500


def test_a_stop_while_what_is_written_is_read(corpus_path: Path, tmp_path: Path, monkeypatch, caplog) -> None:
    """To read a large `train.bin` again takes long: that is said, and Ctrl+C ends it at once, with nothing lost."""
    prepare_some(corpus_path, tmp_path / "out", 14)
    monkeypatch.setattr(files, "SAID_BYTES", 1000)
    monkeypatch.setattr(files, "COPY_BYTES", 100)
    read, pieces = files.read_pieces, []

    def read_and_interrupt(*args: Any) -> Any:
        for piece in read(*args):
            pieces.append(piece)
            if len(pieces) == 9:
                os.kill(os.getpid(), signal.SIGINT)
            yield piece

    with monkeypatch.context() as patch, pytest.raises(Interrupted, match="tokens are saved: the same command"):
        patch.setattr(files, "read_pieces", read_and_interrupt)
        prepare(corpus_path, tmp_path / "out", **OPTIONS)
    assert len(pieces) < 15
    assert re.search(r"reading the [\d.]+ kB of train.bin that are written", caplog.text)
    prepare(corpus_path, tmp_path / "out", quiet=True, **OPTIONS)
    prepare(corpus_path, tmp_path / "expected", quiet=True, **OPTIONS)
    assert outputs(tmp_path / "out") == outputs(tmp_path / "expected")


@pytest.mark.parametrize("name", ["train.bin", "val.bin"])
@pytest.mark.parametrize("n_blocks", [14, -1])
def test_what_is_written_cannot_be_read(
    n_blocks: int, name: str, corpus_path: Path, tmp_path: Path, monkeypatch, capsys
):
    """An error of the disk names the run's own file, not an input; once it is gone, the run goes on or is done."""
    out = tmp_path / "out"
    prepare_some(corpus_path, out, n_blocks)
    path = next(path for path in out.iterdir() if path.name.startswith(name))

    class BadDisk(System):
        def open(self, opened: Path, flags: int, *mode: int) -> int:
            if opened == path and flags & (os.O_RDWR | os.O_WRONLY) == 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return os.open(opened, flags, *mode)

    with monkeypatch.context() as patch, pytest.raises(DiskError) as caught:
        patch.setattr(files, "os", BadDisk())
        prepare(corpus_path, out, quiet=True, **OPTIONS)
    assert str(caught.value).startswith(f"{path}: Input/output error\n  check the disk")
    prepare(corpus_path, out, quiet=True, **OPTIONS)
    prepare(corpus_path, tmp_path / "expected", quiet=True, **OPTIONS)
    assert outputs(out) == outputs(tmp_path / "expected")


def interrupt(*args: Any) -> None:
    os.kill(os.getpid(), signal.SIGINT)
    args[3].check()


def fail(error: Exception) -> Callable[..., None]:
    def raise_it(*args: Any) -> None:
        raise error

    return raise_it


@pytest.mark.parametrize("is_begun", [True, False])
@pytest.mark.parametrize(
    ("sample", "options", "said"),
    [
        (interrupt, {}, "stopped by Ctrl\\+C\n  {saved}the same"),
        (fail(RemoteError("no answer")), {}, "no answer\n  {saved}the same"),
        (fail(InputError("not text")), {}, "not text\n  {saved}once that is fixed, the same"),
        (fail(ZeroDivisionError()), {}, "ZeroDivisionError.*\n  the traceback is in .*\n  {saved}the same"),
        (samples.sample, {"fit": "12x1024"}, "val.bin .*\n  --val-tokens 1025 .with --overwrite., or another --for$"),
        (samples.sample, {}, "about .* will be needed there.*\n  make room, or .*\n  {saved}the same"),
    ],
)
def test_what_stops_a_run_before_it_works(
    sample: Any, options: dict[str, Any], said: str, is_begun: bool, corpus_path: Path, tmp_path: Path, monkeypatch
) -> None:
    """What stops the plan of an interrupted run says what is saved, and that is: the same command continues."""
    out = tmp_path / "out"
    if is_begun:
        prepare_some(corpus_path, out, 8)
    n_saved = read_record(out).state.n_tokens if is_begun else 0
    before = outputs(out) if is_begun else None
    with monkeypatch.context() as patch, pytest.raises((PrepareError, Interrupted)) as caught:
        patch.setattr(samples, "sample", sample)
        if "will be needed" in said:
            patch.setattr(files, "free_bytes", lambda folder: 0)
        prepare(corpus_path, out, quiet=True, **OPTIONS | options)
    if not is_begun:
        assert "saved" not in str(caught.value)
        return
    assert re.search(said.format(saved=f"{n_saved:,} tokens are saved: "), str(caught.value)), str(caught.value)
    assert outputs(out) == before
    prepare(corpus_path, out, quiet=True, **OPTIONS)
    prepare(corpus_path, tmp_path / "expected", quiet=True, **OPTIONS)
    assert outputs(out) == outputs(tmp_path / "expected")


@pytest.mark.skipif(os.name == "nt", reason="no open file can be moved there")
@pytest.mark.parametrize("is_put_back", [True, False])
@pytest.mark.parametrize("there", ["nothing", "a file"])
@pytest.mark.parametrize("options", [{}, {"keep_shards": True}, {"layout": "npy"}, {"shuffle": True}], ids=str)
def test_the_folder_goes_away(
    options: dict[str, Any], there: str, is_put_back: bool, corpus_path: Path, tmp_path: Path, monkeypatch
) -> None:
    """While the run works: it stops, says what is in the folder, and continues if that is put back."""
    out, moved = tmp_path / "out", tmp_path / "moved"

    def move() -> None:
        out.rename(moved)
        if there == "a file":
            out.write_text("precious")

    with monkeypatch.context() as patch, pytest.raises(DiskError) as caught:
        at_block(patch, 8, move)
        patch.setattr(run, "COMMIT_SECONDS", 0.0)
        prepare_in_blocks(2000, corpus_path, out, **OPTIONS | options)
    n_saved = read_record(moved).state.n_tokens
    assert n_saved > 0
    message, hint, saved = str(caught.value).split("\n  ")
    assert message == f"{out}: the folder is gone: it was moved or deleted while the run worked"
    assert hint == "put it back, and the same command continues"
    assert saved.startswith(f"{n_saved:,} tokens were saved in it: without it, the same command starts over")
    if there == "a file":
        assert out.read_text() == "precious"
        out.unlink()
    if is_put_back:
        moved.rename(out)
        begun = []
        monkeypatch.setattr(run.Run, "begin", lambda self: begun.append(self._state.n_tokens))
    prepare(corpus_path, out, quiet=True, **OPTIONS | options)
    prepare(corpus_path, tmp_path / "expected", quiet=True, **OPTIONS | options)
    assert not is_put_back or begun[0] == n_saved
    found, expected = ({p.name: p.read_bytes() for p in path.iterdir()} for path in (out, tmp_path / "expected"))
    assert found.keys() == expected.keys()
    assert all(data == expected[name] for name, data in found.items() if name != "prepare.json")


@pytest.mark.skipif(os.name == "nt", reason="no open file can be moved there")
@pytest.mark.parametrize("is_put_back", [True, False])
@pytest.mark.parametrize("pattern", ["train*.part", "val*.part", "*"])
@pytest.mark.parametrize("options", [{}, {"keep_shards": True}, {"layout": "npy"}], ids=str)
def test_what_a_run_writes_goes_away(
    options: dict[str, Any], pattern: str, is_put_back: bool, corpus_path: Path, tmp_path: Path, monkeypatch
) -> None:
    """It stops at the next commit, rather than at its end, and continues if that is put back, or starts over."""
    out, moved = tmp_path / "out", tmp_path / "moved"

    def move() -> None:
        moved.mkdir()
        for path in out.glob(pattern):
            path.rename(moved / path.name)

    with monkeypatch.context() as patch, pytest.raises(DiskError, match="deleted or moved while the run worked"):
        reached = at_block(patch, 8, move)
        patch.setattr(run, "COMMIT_SECONDS", 0.0)
        prepare_in_blocks(2000, corpus_path, out, **OPTIONS | options)
    assert len(reached) < 12
    if is_put_back:
        out.mkdir(exist_ok=True)  # empty, it was deleted
        for path in moved.iterdir():
            path.replace(out / path.name)
    prepare(corpus_path, out, quiet=True, overwrite=not is_put_back, **OPTIONS | options)
    prepare(corpus_path, tmp_path / "expected", quiet=True, **OPTIONS | options)
    assert outputs(out) == outputs(tmp_path / "expected")


def test_the_folder_goes_away_as_overwrite_begins(corpus_path: Path, tmp_path: Path, monkeypatch) -> None:
    """Also then it is an error that names the folder, and nothing is lost."""
    out, own_outputs = tmp_path / "out", resume._own_outputs
    prepare(corpus_path, out, quiet=True, **OPTIONS)

    def move(record: Any) -> list[Path]:
        out.rename(tmp_path / "moved")
        return own_outputs(record)

    monkeypatch.setattr(resume, "_own_outputs", move)
    before = outputs(out)
    with monkeypatch.context() as patch, pytest.raises(DiskError, match=re.escape(str(out))):
        patch.setattr(job, "clearable_bytes", lambda folder: 0)
        prepare(corpus_path, out, quiet=True, seed=1, overwrite=True, **OPTIONS)
    assert outputs(tmp_path / "moved") == before


@pytest.mark.parametrize("options", [{}, {"keep_shards": True}, {"layout": "npy"}], ids=str)
def test_another_file_takes_a_name_during_a_run(
    options: dict[str, Any], corpus_path: Path, tmp_path: Path, monkeypatch
) -> None:
    """At the end all is encoded: the message says so, so that nobody begins again in another folder."""
    out, finish = tmp_path / "out", run.Run._finish_encoding
    name = "val.npy" if "layout" in options else "val.bin"

    def finish_and_take(self: run.Run, *args: Any) -> None:
        finish(self, *args)
        (out / name).write_text("precious")

    with monkeypatch.context() as patch, pytest.raises(InputError, match=f"{name} already exists") as caught:
        patch.setattr(run.Run, "_finish_encoding", finish_and_take)
        prepare(corpus_path, out, quiet=True, **OPTIONS | options)
    n_saved = read_record(out).state.n_tokens
    assert caught.value.saved == f"{n_saved:,} tokens are saved: once that is fixed, the same command continues"
    assert (out / name).read_text() == "precious"
    (out / name).rename(tmp_path / name)
    monkeypatch.setattr(run.Run, "_encode", fail(AssertionError("again")))
    prepare(corpus_path, out, quiet=True, **OPTIONS | options)
    monkeypatch.undo()
    prepare(corpus_path, tmp_path / "expected", quiet=True, **OPTIONS | options)
    assert outputs(out) == outputs(tmp_path / "expected")


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "zeros": lambda data: bytes(len(data)),
    "noise": lambda data: bytes(range(256)) * 9,
    "a list": lambda data: b"[]",
    "another's": lambda data: b'{"format": 0}',
    "older": lambda data: data.replace(b'"format": 3', b'"format": 1'),
    "deep": lambda data: b"[" * 100_000,
    "nothing in it": lambda data: json.dumps(dict.fromkeys(json.loads(data))).encode(),
    "lists": lambda data: json.dumps({name: [] for name in json.loads(data)} | {"format": 3}).encode(),
    "a text for a number": lambda data: re.sub(rb'"(train_tokens|size)": \d+', rb'"\1": "many"', data),
    "less than nothing": lambda data: re.sub(rb'"(train_tokens|size)": ', rb'"\1": -', data),
    "one bit": lambda data: re.sub(rb'": (\d{3,})', lambda match: b'": %d' % (int(match[1]) ^ 1), data),
    "unknown status": lambda data: re.sub(b'"(encoding|begun)"', b'"thinking"', data),
    "newer": lambda data: data.replace(b'"format": 3', b'"format": 99'),
    **{f"cut at {n}%": lambda data, n=n: data[: len(data) * n // 100] for n in range(5, 100, 10)},
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["prepare.json", "prepare.manifest.json"])
def test_damaged_record(name: str, damage: str, corpus_path: Path, tmp_path: Path, capsys) -> None:
    """One sentence names the record and the ways out; nothing is touched, with --overwrite neither: whose is it?"""
    out = tmp_path / "out"
    assert not prepare_some(corpus_path, out, 8)
    record = out / name
    record.write_bytes(DAMAGES[damage](record.read_bytes()))
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    for more in ([], ["--overwrite"], ["--seed", "3"]):
        assert cli.main([str(corpus_path), "--out", str(out), *ARGUMENTS, *more]) in (1, 2)
        message = capsys.readouterr().err
        assert str(record) in message
        assert "move it and the outputs away, or choose another folder" in message
        if damage in ("older", "newer"):
            assert re.search(r"another version .*\n  continue with that version", message)
        assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    for path in out.iterdir():
        path.rename(tmp_path / path.name)
    assert cli.main([str(corpus_path), "--out", str(out), *ARGUMENTS]) == 0
    prepare(corpus_path, tmp_path / "expected", quiet=True, **OPTIONS)
    assert outputs(out) == outputs(tmp_path / "expected")


@pytest.mark.parametrize("name", ["train_shard_0000.bin", "train_shard_0001.bin", "val.bin.*.part", "*.bin.*.part"])
@pytest.mark.parametrize("damage", ["shorter", "gone", "other bytes"])
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.usefixtures("shards_merged")
def test_damaged_data(name: str, damage: str, overwrite: bool, corpus_path: Path, tmp_path: Path, capsys) -> None:
    """A file that holds less than the record says is named before the work goes on, and --overwrite begins anew.

    One that holds something else is named, too, at the latest by the merge: moved away, it is one that is gone.
    """
    assert not prepare_some(corpus_path, tmp_path / "out", 14)
    path = next((tmp_path / "out").glob(name))
    if damage == "gone":
        path.unlink()
    elif damage == "shorter":
        os.truncate(path, path.stat().st_size - 2)
    else:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    command = [str(corpus_path), "--out", str(tmp_path / "out"), *ARGUMENTS]
    n_tokens = read_record(tmp_path / "out").state.n_tokens
    if not overwrite or damage == "other bytes":
        assert cli.main(command) in (1, 2)
        message = capsys.readouterr().err
        named = Path(re.match(r"prepare: (.*?): ", message)[1])
        assert named == path or damage == "other bytes"
        assert "--overwrite" in message
        assert "the same command continues" not in message
        assert not (tmp_path / "out" / "train.bin").exists()
        assert read_record(tmp_path / "out").state.n_tokens == n_tokens or damage == "other bytes"
        if "move it away" in message:
            named.rename(tmp_path / "away")
    assert cli.main([*command, "--overwrite"]) == 0
    assert "made again" in capsys.readouterr().out
    prepare(corpus_path, tmp_path / "expected", quiet=True, **OPTIONS)
    assert outputs(tmp_path / "out") == outputs(tmp_path / "expected")


@pytest.mark.parametrize("keep", [False, True])
def test_keep_shards_may_change(keep: bool, corpus_path: Path, tmp_path: Path, monkeypatch) -> None:
    """--keep-shards given or left out on resume, at any moment of the merge: train.bin is right, or it is refused."""
    prepare(corpus_path, tmp_path / "expected", quiet=True, **OPTIONS)
    for n in range(1, 12):
        write, left = run.Record.write, n

        def write_some(self: run.Record, write: Any = write) -> None:
            nonlocal left
            left -= self.state.status != "encoding"
            if left < 0:
                raise KeyboardInterrupt
            write(self)

        out = tmp_path / str(n)
        with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            patch.setattr(run.Record, "write", write_some)
            prepare(corpus_path, out, quiet=True, keep_shards=not keep, **OPTIONS)
        try:
            prepare(corpus_path, out, quiet=True, keep_shards=keep, **OPTIONS)
        except InputError as error:
            assert "--keep-shards" in str(error)  # what is merged has no shard any more
            prepare(corpus_path, out, quiet=True, keep_shards=not keep, **OPTIONS)
        for name in ("train.bin", "val.bin"):
            assert (out / name).read_bytes() == (tmp_path / "expected" / name).read_bytes()
        shards = [path.read_bytes() for path in sorted(out.glob("train_shard_*"))]
        assert not shards or b"".join(shards) == (out / "train.bin").read_bytes()


def shrink(path: Path) -> None:
    os.truncate(path, 3000)


def put_another(path: Path) -> None:
    write_jsonl(path.with_name("new"), [f"Another {i}: " + "very " * (i % 17) for i in range(500)]).replace(path)


def write_more(path: Path) -> None:
    """Go on in the midst of the last word, where the format knows such."""
    data = path.read_bytes()
    path.write_bytes(data + (data[: data.index(b"\n", 999) + 1] if path.suffix == ".jsonl" else b"ish words"))


def write_anew(path: Path) -> None:
    path.write_bytes(path.read_bytes())


GOES_ON = {write_more: ("txt", "jsonl", "separated"), write_anew: ("txt", *FORMATS)}


@pytest.mark.parametrize("change", [append, shrink, put_another, Path.unlink, write_more, write_anew])
@pytest.mark.parametrize("kind", ["txt", *FORMATS])
def test_input_changes_while_it_is_read(change: Callable[[Path], None], kind: str, tmp_path: Path, caplog) -> None:
    """Noticed, named, exit 2, no final file; the same command continues where what was read is in it still."""
    if kind == "txt":
        path, options = tmp_path / "c.txt", {}
        path.write_text("\n".join(DOCS))
    else:
        path, options = write_documents(kind, tmp_path, DOCS)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(InputError) as caught:
        at_block(patch, 2, lambda: change(path))
        prepare_in_blocks(1500, path, tmp_path / "out", workers=1, **OPTIONS | options)
    assert str(path) in caught.value.message
    assert re.search(r"changed|ends at byte|No such file", caught.value.message)
    assert not (tmp_path / "out" / "train.bin").exists()
    if kind in GOES_ON.get(change, ()):
        assert "the same command continues" in caught.value.hint
        assert re.search(r"[\d,]{3,} tokens are saved", caught.value.saved)
        prepare(path, tmp_path / "out", quiet=True, **OPTIONS | options)
        is_other_share = kind == "txt" and change is write_more
        assert ("val stays a share of the earlier text" in caplog.text) == is_other_share
        prepare(path, tmp_path / "at once", quiet=True, **OPTIONS | options)
        assert outputs(tmp_path / "out") == outputs(tmp_path / "at once")


class Panic(BaseException):
    """As `pyo3_runtime.PanicException`: no Exception."""


def panicking(function: Callable[..., Any], n: int, error: type[BaseException]) -> Callable[..., Any]:
    calls: list[int] = []

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == n:
            raise error("the tokenizer\nfell over")
        return function(*args, **kwargs)

    return wrapped


@pytest.mark.parametrize("error", [Panic, RuntimeError, SystemExit, KeyError])
@pytest.mark.parametrize("place", ["in a worker", "while planning", "while writing"])
def test_any_other_exception(place: str, error: type[BaseException], corpus_path, tmp_path, capsys) -> None:
    """Exit 1 soon, one line with the file and the place, the traceback in prepare.log, the same bytes afterwards."""
    arguments = [str(corpus_path), "--out", str(tmp_path / "out"), *ARGUMENTS]
    start = time.monotonic()
    owner, name, n = {
        "in a worker": (encoder.Encoder, "encode_utf8", 20),  # more than are in flight: some are saved
        "while planning": (InputFile, "block", 9),
        "while writing": (run.Run, "_absorb", 5),
    }[place]
    with pytest.MonkeyPatch.context() as patch, in_blocks(2000):
        patch.setattr(samples, "sample", lambda *args: None)  # it calls the encoder too
        patch.setattr(owner, name, panicking(getattr(owner, name), n, error))
        assert cli.main(arguments) == 1
    assert time.monotonic() - start < 10
    message = capsys.readouterr().err
    first = message.splitlines()[0]
    assert first.startswith(f"prepare: {corpus_path}")
    assert re.search(r"\d,\d\d\d", first), "no place"
    assert error.__name__ in first
    assert "the tokenizer" in first
    assert "the same command continues" in message
    assert "Traceback" not in message
    assert "in wrapped" in (tmp_path / "out" / "prepare.log").read_text()
    assert read_record(tmp_path / "out").state.train_tokens > 0
    assert cli.main(arguments) == 0
    prepare(corpus_path, tmp_path / "expected", quiet=True, **OPTIONS)
    assert outputs(tmp_path / "out") == outputs(tmp_path / "expected")


def read_four(folder: Path, kind: str) -> list[Path]:
    """Four files of 200 documents each."""
    folder.mkdir(exist_ok=True)
    for i in range(4):
        path = write_jsonl(folder / f"{i}.jsonl", [f"Document {i}.{k} {'very ' * (k % 17)}short." for k in range(200)])
        if kind == "gz":
            (folder / f"{i}.jsonl.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
            path.unlink()
        if kind == "text":
            path.rename(folder / f"{i}.txt")
    return sorted(folder.iterdir())


@pytest.mark.parametrize("kind", ["jsonl", "gz", "text"])
@pytest.mark.parametrize("at", [6, 40, 70])
def test_what_is_ahead_may_change(kind: str, at: int, tmp_path: Path) -> None:
    """Stopped before, in and behind the third file: a file that was not read may change, come or go."""
    options = {"val_tokens": 50} if kind == "text" else {}
    block_bytes = 500 if kind != "text" else 400
    paths = read_four(tmp_path / "in", kind)
    for change in ("mended", "left out", "one more", "swapped"):
        shutil.rmtree(tmp_path / "in")
        good = read_four(tmp_path / "in", kind)[-1].read_bytes()
        if change == "mended":
            paths[-1].write_bytes(good[: len(good) // 2])
        assert not prepare_some(paths, tmp_path / change, at, block_bytes, **options)
        now = list(paths)
        if change == "mended":
            paths[-1].write_bytes(good)
        elif change == "left out":
            now.pop()
        elif change == "one more":
            now.append(shutil.copy(paths[0], tmp_path / f"more{''.join(paths[0].suffixes)}"))
        else:
            now = [paths[0], paths[1], paths[3], paths[2]] if at == 6 else now
        prepare(now, tmp_path / change, quiet=True, **OPTIONS | options)
        prepare(now, tmp_path / f"{change} at once", quiet=True, **OPTIONS | options)
        assert outputs(tmp_path / change) == outputs(tmp_path / f"{change} at once"), change


@pytest.mark.parametrize("kind", ["jsonl", "gz"])
def test_a_file_that_grows_behind_the_place(kind: str, tmp_path: Path, caplog) -> None:
    """Of the file in the midst, what was read must be the same, and no more; otherwise it is named."""
    path = read_four(tmp_path / "in", kind)[0]
    text = gzip.decompress(path.read_bytes()) if kind == "gz" else path.read_bytes()
    pack = (lambda data: gzip.compress(data, mtime=0)) if kind == "gz" else bytes
    last = text[: text.rindex(b"\n", 0, -1) + 1]
    changes = [pack(text) * 2] if kind == "gz" else [text * 2, last, last + b'{"text": "another end"}\n']
    for n, data in enumerate(changes):
        path.write_bytes(pack(text))
        assert not prepare_some(path, tmp_path / str(n), 9, 500)
        path.write_bytes(data)
        prepare(path, tmp_path / str(n), quiet=True, **OPTIONS)
        prepare(path, tmp_path / f"{n} at once", quiet=True, **OPTIONS)
        assert outputs(tmp_path / str(n)) == outputs(tmp_path / f"{n} at once")
        assert (
            "has changed (but not its beginning, nor the last text that was read" in caplog.text
            and "rewritten" not in caplog.text
        )
    path.write_bytes(pack(text))
    assert not prepare_some(path, tmp_path / "before", 9, 500)
    path.write_bytes(pack(text.replace(b"Document 0.9 ", b"Document 0.8 ", 1) + text))
    with pytest.raises(InputError, match=r"changed: .*: it was read already"):
        prepare(path, tmp_path / "before", quiet=True, **OPTIONS)


@pytest.mark.parametrize("options", [{}, {"keep_shards": True}, {"shuffle": True}], ids=str)
@pytest.mark.parametrize("name", ["c.jsonl", "c.jsonl.gz", "c.txt", "c.txt.gz", "c.parquet"])
def test_a_bad_record_in_the_midst(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    """An option continues the run, and so does a mended file; where that needs --overwrite, the message says so."""
    if name == "c.parquet":
        pytest.importorskip("pyarrow")
    options = OPTIONS | options | ({"separator": "\n\n"} if ".txt" in name else {})
    path, way_out = tmp_path / name, {"errors": "replace"} if ".txt" in name else {"skip_bad": True}

    def write(is_mended: bool) -> None:
        if name == "c.parquet":
            write_parquet(path, [doc if is_mended or i != 300 else None for i, doc in enumerate(DOCS)])
            return
        data = "\n\n".join(DOCS).encode() if ".txt" in name else write_jsonl(tmp_path / "all", DOCS).read_bytes()
        if not is_mended:
            data = data.replace(b"Document 300", b"Document \xff" if ".txt" in name else b'"} Document')
        path.write_bytes(gzip.compress(data, mtime=0) if name.endswith("gz") else data)

    for step in ("option", "mended file"):
        out = tmp_path / step
        write(is_mended=False)
        with pytest.raises(InputError) as caught:
            prepare_in_blocks(2000, path, out, **options)
        saved = caught.value.saved
        assert re.match(r"[\d,]{4,} tokens are saved: ", saved)
        now = options | (way_out if step == "option" else {})
        if step == "mended file":
            write(is_mended=True)
            if "once that is fixed, the same command continues" not in saved:
                assert saved.endswith("; with a mended file, --overwrite starts over")
                with pytest.raises(InputError, match="it was read already"):
                    prepare(path, out, quiet=True, **now)
                prepare(path, out, quiet=True, overwrite=True, **now)
        prepare(path, out, quiet=True, **now)
        prepare(path, tmp_path / "at once", quiet=True, overwrite=True, **now)
        assert outputs(out) == outputs(tmp_path / "at once")
    assert ("with such an option" in saved) == (name not in ("c.jsonl", "c.txt"))


@pytest.mark.parametrize("kind", ["txt", "jsonl", "gz"])
@pytest.mark.parametrize("shard_tokens", [50, 10**8])
def test_a_file_that_grows_in_the_midst(shard_tokens: int, kind: str, tmp_path: Path, monkeypatch) -> None:
    """A file gets longer while it is read, in the midst of a word: it is named, and the same command continues."""
    pack = (lambda data: gzip.compress(data, mtime=0)) if kind == "gz" else bytes
    path = tmp_path / ("c.txt" if kind == "txt" else f"c.jsonl{'.gz' * (kind == 'gz')}")
    text = "\n".join(DOCS).encode() if kind == "txt" else write_jsonl(tmp_path / "all", DOCS).read_bytes()
    options = OPTIONS | {"shard_tokens": shard_tokens, "val_tokens": 50}
    path.write_bytes(pack(text[:-5]))

    def grow(source: Source) -> None:
        path.write_bytes(pack(text[:-5]) + pack(text[-5:] + text))
        check_unchanged(source)

    monkeypatch.setattr(fetch, "check_unchanged", grow)
    with pytest.raises(InputError, match="changed while it was read") as caught:
        prepare_in_blocks(2000, path, tmp_path / "out", **options)
    assert "tokens are saved" in str(caught.value)
    monkeypatch.undo()
    prepare_in_blocks(2000, path, tmp_path / "out", **options)
    prepare(path, tmp_path / "at once", quiet=True, **options)
    assert outputs(tmp_path / "out") == outputs(tmp_path / "at once")


@pytest.mark.parametrize("is_done", [False, True], ids=["interrupted", "done"])
def test_the_same_files_by_other_names(is_done: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copied without their times, elsewhere, by a relative or an absolute path: they are the same files."""
    read_four(tmp_path / "in", "jsonl")
    monkeypatch.chdir(tmp_path)
    prepare_some("in", tmp_path / "out", 10**6 if is_done else 60, 500)
    shutil.copytree("in", "elsewhere", copy_function=shutil.copy)
    monkeypatch.chdir("elsewhere")
    for name in (tmp_path / "in", Path("../in"), Path("."), tmp_path / "elsewhere"):
        shutil.copytree(tmp_path / "out", tmp_path / "again", dirs_exist_ok=True)
        prepare(name, tmp_path / "again", quiet=True, **OPTIONS)
        prepare(name, tmp_path / "expected", quiet=True, **OPTIONS)
        assert outputs(tmp_path / "again") == outputs(tmp_path / "expected")
        shutil.rmtree(tmp_path / "again")


@pytest.mark.parametrize("kind", ["txt", "jsonl", "gz"])
def test_a_file_that_grows_behind_max_tokens(kind: str, tmp_path: Path) -> None:
    """A run that --max-tokens ended goes on with what came since, as an interrupted one."""
    pack = (lambda data: gzip.compress(data, mtime=0)) if kind == "gz" else bytes
    path = tmp_path / ("c.txt" if kind == "txt" else f"c.jsonl{'.gz' * (kind == 'gz')}")
    text = "\n".join(DOCS).encode() if kind == "txt" else write_jsonl(tmp_path / "all", DOCS).read_bytes()
    options = OPTIONS | ({"val_tokens": 50} if kind == "txt" else {})  # a share would be that of what there was
    for n_tokens in (100, 1500, 1501, 4000):
        path.write_bytes(pack(text))
        out = tmp_path / str(n_tokens)
        prepare_in_blocks(2000, path, out, max_tokens=n_tokens, **options)
        path.write_bytes(pack(text) + pack(b"\n" * (kind == "txt") + text))
        prepare_in_blocks(2000, path, out, **options)
        prepare(path, tmp_path / f"{n_tokens} at once", quiet=True, **options)
        assert outputs(out) == outputs(tmp_path / f"{n_tokens} at once")
        path.write_bytes(pack(text))
        prepare_in_blocks(2000, path, tmp_path / f"{n_tokens} again", max_tokens=n_tokens, **options)
        path.write_bytes(pack(text.replace(b"Document 2:", b"Document 9:", 1) + text))
        with pytest.raises(InputError, match="it was read already"):
            prepare_in_blocks(2000, path, tmp_path / f"{n_tokens} again", **options)


def test_a_date_before_1970(tmp_path: Path) -> None:
    """Archives and other systems have such: the file is read, and known again."""
    path = write_jsonl(tmp_path / "c.jsonl", DOCS)
    os.utime(path, ns=(-(10**9), -(10**9)))
    assert not prepare_some(path, tmp_path / "out", 9, 500)
    os.utime(path, ns=(-(10**12), -(10**12)))
    prepare(path, tmp_path / "out", quiet=True, **OPTIONS)
    prepare(path, tmp_path / "expected", quiet=True, **OPTIONS)
    assert outputs(tmp_path / "out") == outputs(tmp_path / "expected")


def test_a_file_that_changes_under_iter_ids(tmp_path: Path) -> None:
    """It is named; nothing is said of a command that would go on."""
    path = write_jsonl(tmp_path / "c.jsonl", DOCS * 600)
    ids = iter_ids(path, workers=1)
    changed = r"c\.jsonl: (changed while|ends at byte) .*\n  once it is complete, start over$"
    with pytest.raises(InputError, match=changed):
        next(ids)
        write_more(path)
        list(ids)


def test_another_order_is_said_to_be_that(tmp_path: Path) -> None:
    """A file that was named, and not read yet, was there."""
    paths = read_four(tmp_path / "in", "jsonl")
    assert not prepare_some(paths, tmp_path / "out", 9, 500)
    with pytest.raises(InputError) as caught:
        prepare([paths[1], paths[0], *paths[2:]], tmp_path / "out", quiet=True, **OPTIONS)
    assert "is new" not in caught.value.message and "another order" in caught.value.message


@pytest.mark.parametrize("is_done", [False, True], ids=["interrupted", "done"])
def test_a_file_that_was_written_anew_is_named(is_done: bool, tmp_path: Path, caplog) -> None:
    """Not all of it is compared: who has changed it in the midst learns what to type; who has only read it, nothing."""
    path = write_jsonl(tmp_path / "c.jsonl", DOCS)
    prepare_some(path, tmp_path / "out", 10**6 if is_done else 60, 500)
    shutil.copytree(tmp_path / "out", tmp_path / "again")
    prepare(path, tmp_path / "again", quiet=True, **OPTIONS)
    assert "rewritten" not in caplog.text
    data = path.read_bytes()
    at = data.index(b"short, ", len(data) // 3)
    path.write_bytes(data[:at] + b"SHORT, " + data[at + 7 :])
    shutil.copytree(tmp_path / "out", tmp_path / "at once")
    prepare(path, tmp_path / "out", quiet=True, **OPTIONS)
    assert f"note: {path} was rewritten since it was read" in caplog.text and "--overwrite" in caplog.text
    prepare(path, tmp_path / "expected", quiet=True, **OPTIONS)
    for name in ("out", "at once"):
        prepare(path, tmp_path / name, quiet=True, overwrite=True, **OPTIONS)
        assert outputs(tmp_path / name) == outputs(tmp_path / "expected")


def test_a_column_of_files_that_were_not_begun(tmp_path: Path) -> None:
    """A hint of another --text-column is followed where the file that it is for begins; a finished run is refused."""
    a = write_jsonl(tmp_path / "a.jsonl", DOCS[:200])
    b = write_jsonl(tmp_path / "b.jsonl", DOCS[200:])
    b.write_text(b.read_text().replace('"text"', '"body"'))
    with pytest.raises(InputError, match=r"b\.jsonl, line 1"):
        prepare([a, b], tmp_path / "out", quiet=True, **OPTIONS)
    prepare([a, b], tmp_path / "out", quiet=True, text_column="body", **OPTIONS)
    b.write_text(b.read_text().replace('"body"', '"text"'))
    prepare([a, b], tmp_path / "expected", quiet=True, **OPTIONS)
    assert outputs(tmp_path / "out") == outputs(tmp_path / "expected")
    with pytest.raises(InputError, match="--text-column was 'text' and is 'body'"):
        prepare([a, b], tmp_path / "expected", quiet=True, text_column="body", **OPTIONS)


def test_inputs_deleted_after_the_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The same command on a finished run whose folder has fewer files by now says so and leaves it; others do not."""
    folder, out = tmp_path / "texts", tmp_path / "out"
    folder.mkdir()
    for name in "abc":
        write_jsonl(folder / f"{name}.jsonl", [f"text {name} {i}" for i in range(50)])
    prepare(folder, out, quiet=True)
    made = (out / "train.bin").read_bytes()
    (folder / "b.jsonl").unlink()
    for spelled in (str(folder), f"{folder}/", os.path.join(folder, ".")):
        caplog.clear()
        with caplog.at_level("INFO", "fineweb_stream"):
            prepare(spelled, out)
        assert "b.jsonl no longer exists" in caplog.text and "already done" in caplog.text
        assert (out / "train.bin").read_bytes() == made
    with pytest.raises(InputError, match=r"b\.jsonl is no longer an input"):
        prepare([folder / "a.jsonl", folder / "c.jsonl"], out, quiet=True)
    write_jsonl(folder / "d.jsonl", ["more"])
    with pytest.raises(InputError, match=r"b\.jsonl is no longer an input"):
        prepare(folder, out, quiet=True)
    (folder / "d.jsonl").unlink()
    prepare(folder, out, overwrite=True, quiet=True)
    assert (out / "train.bin").read_bytes() != made


def test_val_is_a_share_of_compressed_texts_too(tmp_path: Path) -> None:
    """Of several texts, one of them compressed: a size that would move val behind what was read is refused."""
    (tmp_path / "a.txt").write_text("\n".join(DOCS) * 4)
    packed = tmp_path / "b.txt.gz"
    packed.write_bytes(gzip.compress(b"some words"))
    inputs = [tmp_path / "a.txt", packed]
    assert not prepare_some(inputs, tmp_path / "out", 20, 500, val_ratio=0.1)
    packed.write_bytes(gzip.compress(os.urandom(200_000).hex().encode()))
    with pytest.raises(InputError, match="the share of the text that is val would change"):
        prepare(inputs, tmp_path / "out", quiet=True, **OPTIONS, val_ratio=0.1)


MERGED: dict[str, dict[str, Any]] = {
    "several": {},
    "one": {"shard_tokens": 1_000_000},
    "kept": {"keep_shards": True},
    "npy": {"layout": "npy"},
    "llmc": {"layout": "llmc"},
    "shuffled": {"shuffle": True},
    "shuffled npy": {"shuffle": True, "layout": "npy"},
}


@pytest.mark.parametrize("kind", MERGED)
@pytest.mark.parametrize("place", [0, -1], ids=["first", "last"])
def test_a_shard_that_was_altered_before_the_merge(
    kind: str, place: int, corpus_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bit that flips between a stop and the merge is noticed, also where a shard only gets its final name."""
    options, out, merge = OPTIONS | MERGED[kind] | {"quiet": True}, tmp_path / "out", run.merge

    def stop(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "merge", stop)
    with pytest.raises(KeyboardInterrupt):
        prepare(corpus_path, out, **options)
    monkeypatch.setattr(run, "merge", merge)
    path = sorted(out.glob("*train*"))[place]
    data = bytearray(path.read_bytes())
    data[-40] ^= 1  # not in a header
    path.write_bytes(data)
    with pytest.raises(PrepareError, match=r"does not hold what the run has written\n.*move it away") as caught:
        prepare(corpus_path, out, **options)
    Path(caught.value.message.partition(": ")[0]).rename(tmp_path / "away")
    prepare(corpus_path, out, overwrite=True, **options)
    prepare(corpus_path, tmp_path / "expected", **options)
    assert outputs(out) == outputs(tmp_path / "expected")


@pytest.mark.usefixtures("shards_merged")
def test_a_merge_that_an_earlier_version_began(corpus_path: Path, tmp_path: Path, monkeypatch) -> None:
    """It renamed the first shard before it recorded that: stopped between the two, its run is continued, and hashed."""
    options, out, merge = OPTIONS | {"quiet": True}, tmp_path / "out", run.merge
    prepare(corpus_path, tmp_path / "expected", **options)

    def stop(*args: Any) -> None:
        raise KeyboardInterrupt

    for is_altered in (False, True):
        monkeypatch.setattr(run, "merge", stop)
        with pytest.raises(KeyboardInterrupt):
            prepare(corpus_path, out, overwrite=is_altered, **options)
        monkeypatch.setattr(run, "merge", merge)
        record = read_record(out)
        [shard] = out.glob("train_shard_0000.bin*")
        part = files.part_path(out / "train.bin", record.run)
        shard.rename(part)
        if not is_altered:
            prepare(corpus_path, out, **options)
            assert outputs(out) == outputs(tmp_path / "expected")
    part.write_bytes(part.read_bytes()[::-1])
    with pytest.raises(PrepareError, match="does not hold what the run has written"):
        prepare(corpus_path, out, **options)


@pytest.mark.parametrize("name", ["train.bin", "val.bin"])
@pytest.mark.parametrize("keep_shards", [False, True])
def test_an_output_that_was_altered_before_its_name(
    keep_shards: bool, name: str, corpus_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bit that flips when all is merged and only the names are left to give is noticed."""
    options, give_names = OPTIONS | {"keep_shards": keep_shards, "val_ratio": 0.3, "quiet": True}, run.give_names

    def stop(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "give_names", stop)
    with pytest.raises(KeyboardInterrupt):
        prepare(corpus_path, tmp_path / "out", **options)
    monkeypatch.setattr(run, "give_names", give_names)
    (part,) = (tmp_path / "out").glob(f"{name}.*.part")
    data = bytearray(part.read_bytes())
    data[-40] ^= 1
    part.write_bytes(data)
    with pytest.raises(PrepareError, match=rf"{name}.*: does not hold what the run has written"):
        prepare(corpus_path, tmp_path / "out", **options)
    data[-40] ^= 1
    part.write_bytes(data)
    prepare(corpus_path, tmp_path / "out", **options)
    prepare(corpus_path, tmp_path / "expected", **options)
    assert outputs(tmp_path / "out") == outputs(tmp_path / "expected")


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_val_that_was_altered_before_the_merge(shuffle: bool, corpus_path: Path, tmp_path: Path, monkeypatch) -> None:
    """It waits under its temporary name, and is hashed before it gets its own."""
    options = OPTIONS | {"val_ratio": 0.3, "shuffle": shuffle, "quiet": True}
    merge = run.merge

    def merge_altered(record: Any, *args: Any, **kwargs: Any) -> None:
        (part,) = record.folder.glob("val.bin.*.part")
        data = bytearray(part.read_bytes())
        data[100] ^= 1
        part.write_bytes(data)
        merge(record, *args, **kwargs)

    monkeypatch.setattr(run, "merge", merge_altered)
    with pytest.raises(PrepareError, match=r"val\.bin.*: does not hold what the run has written"):
        prepare(corpus_path, tmp_path / "out", **options)
    assert not (tmp_path / "out" / "val.bin").exists()


def test_another_format_is_another_text(corpus_path: Path, tmp_path: Path) -> None:
    """What was read as JSON Lines is not continued as text, though the bytes are the same."""
    assert not prepare_some(corpus_path, tmp_path / "out", 5)
    with pytest.raises(InputError, match="it was read already"):
        prepare(corpus_path, tmp_path / "out", format="text", quiet=True, **OPTIONS)


def test_a_file_that_changes_right_after_a_commit(
    corpus_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is cut back then: all that was read is on record."""
    commit = run.Run._commit

    def touch(*arguments: Any) -> None:
        commit(*arguments)
        os.utime(corpus_path, (1, 1))

    monkeypatch.setattr(run.Run, "_commit", touch)
    with pytest.raises(InputError, match="changed while it was read") as caught:
        prepare_in_blocks(2000, corpus_path, tmp_path / "out", **OPTIONS | {"shard_tokens": 50, "keep_shards": True})
    assert "tokens are saved" in caught.value.saved
    monkeypatch.undo()
    prepare(corpus_path, tmp_path / "out", quiet=True, **OPTIONS | {"shard_tokens": 50, "keep_shards": True})
    prepare(corpus_path, tmp_path / "expected", quiet=True, **OPTIONS | {"shard_tokens": 50, "keep_shards": True})
    assert outputs(tmp_path / "out") == outputs(tmp_path / "expected")


def test_a_log_of_somebody_else(corpus_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets no traceback; the error itself is said all the same."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "prepare.log").write_text("mine")
    monkeypatch.setattr(run.Run, "_absorb", panicking(run.Run._absorb, 1, KeyError))
    with pytest.raises(PrepareError, match=r"KeyError.*\n.*the traceback could not be written"):
        prepare(corpus_path, tmp_path / "out", quiet=True, **OPTIONS)
    assert (tmp_path / "out" / "prepare.log").read_text() == "mine"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_a_pipe_that_takes_a_files_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What becomes a pipe between a look and the opening is not read: nothing might ever come."""
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(files, "refuse_irregular", lambda path: None)
    with pytest.raises(InputError, match="not a regular file"):
        files.open_regular(tmp_path / "pipe", os.O_RDONLY)


def test_a_file_that_ends_before_the_place_to_continue_at(tmp_path: Path) -> None:
    """It has changed, and is named."""
    data = gzip.compress(b"some words " * 100)
    (tmp_path / "c.txt.gz").write_bytes(data)
    input = Input(str(tmp_path / "c.txt.gz"), "text", len(data), "", True, ".gz")
    with open_input(input, Network(), 1000) as file:
        assert file.first == 1000
    with pytest.raises(InputError, match=r"ends at byte 1,100, but was longer"):
        open_input(input, Network(), 2000)
