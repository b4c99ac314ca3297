"""What is on record: small, tied together, understood from the version before, and never obeyed."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import shutil
import sys
import time
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fineweb_stream import prepare
from fineweb_stream.inputs.jsonl import read_lines
from fineweb_stream.output import manifest
from fineweb_stream.output.layouts import LAYOUTS
from fineweb_stream.output.manifest import Record, read_record
from fineweb_stream.output.own import RECORD_START, looks_own, orphans
from fineweb_stream.output.resume import recorded_inputs
from fineweb_stream.output.state import State
from fineweb_stream.output.verify import verify
from fineweb_stream.pipeline import run
from fineweb_stream.pipeline.settings import Settings
from fineweb_stream.remote.hub import may_stand_for
from fineweb_stream.support.errors import InputError, PrepareError
from fineweb_stream.support.model import Input, ReadOptions

from .helpers import outputs, prepare_in_blocks, write_jsonl
from .test_resume import DOCS, OPTIONS, prepare_some


def tied(folder: Path, content: dict[str, Any], state: dict[str, Any] | None) -> None:
    """Write a record whose checksums are right."""
    content = {name: value for name, value in content.items() if name != "checksum"}
    with contextlib.suppress(ValueError, TypeError):
        content["checksum"] = manifest._checksum(content)
    data = json.dumps(content).encode("utf-8", "surrogatepass")
    (folder / ("prepare.json" if state is None else "prepare.manifest.json")).write_bytes(data)
    if state is not None:
        text = json.dumps(state["state"])
        whole = (
            f'{{"format": {json.dumps(state["format"])}, "manifest": ["{manifest.hashlib.sha256(data).hexdigest()}"], '
        )
        whole += f'"checksum": {zlib.crc32(text.encode())}, "state": {text}}}\n'
        (folder / "prepare.json").write_text(whole)


VALUES: list[Any] = [
    None,
    -1,
    1 << 70,
    1.5,
    "",
    "../x",
    "/etc/passwd",
    "train.bin",
    [],
    {},
    [[]],
    {"a": {}},
    True,
    "\u202e\n",
]


def mutate(rng: random.Random, node: Any) -> Any:
    """Change one thing somewhere in a record."""
    if isinstance(node, dict) and node and rng.random() < 0.9:
        key = rng.choice(list(node))
        action = rng.random()
        if action < 0.1:
            return {name: value for name, value in node.items() if name != key}
        if action < 0.2:
            return node | {rng.choice(["x", "../../train.bin", "val.bin", "status", "train_shard_0000.bin"]): node[key]}
        return node | {key: mutate(rng, node[key])}
    if isinstance(node, list) and node and rng.random() < 0.9:
        i = rng.randrange(len(node))
        return [*node[:i], mutate(rng, node[i]), *node[i + 1 :]]
    return rng.choice([*VALUES, node * 2 if isinstance(node, int | str | list) else node, [node]])


_opened: list[str] | None = None


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _opened is not None and event in ("open", "os.rename", "os.remove", "os.truncate", "os.mkdir", "shutil.rmtree"):
        _opened.extend(os.fsdecode(path) for path in arguments[:2] if isinstance(path, str | bytes | os.PathLike))


sys.addaudithook(_audit)


@pytest.mark.parametrize("kind", ["interrupted", "done"])
def test_mutated_records(kind: str, tmp_path: Path) -> None:
    """A thousand forged records: each gives one sentence or a right run, and touches nothing outside the folder."""
    global _opened
    path, out, kept = write_jsonl(tmp_path / "c.jsonl", DOCS[:60]), tmp_path / "out", tmp_path / "kept"
    if kind == "done":
        prepare(path, kept, quiet=True, max_tokens=900, **OPTIONS)
    else:
        assert not prepare_some(path, kept, 3)
    prepare(path, tmp_path / "expected", quiet=True, **OPTIONS)
    expected, rng, n_sentences = outputs(tmp_path / "expected"), random.Random(kind), 0
    content, state = json.loads((kept / "prepare.json").read_bytes()), None
    if kind == "interrupted":
        content, state = json.loads((kept / "prepare.manifest.json").read_bytes()), content
    for number in range(350):
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(kept, out)
        for _ in range(rng.randint(1, 3)):
            if state is None or rng.random() < 0.3:
                tied(out, content | {name: mutate(rng, content[name]) for name in rng.sample(list(content), 1)}, state)
            else:
                tied(out, content, {"format": rng.choice([2, 2, 2, "2"]), "state": mutate(rng, state["state"])})
        start, _opened = time.monotonic(), []
        try:
            with contextlib.suppress(PrepareError):
                verify(out)
            if number % 5 == 0:
                prepare(path, out, quiet=True, **OPTIONS)
                if outputs(out) != expected:
                    assert read_record(out).state.status == "done"
            else:
                read_record(out)
        except PrepareError as error:
            n_sentences += 1
            assert error.message.isprintable() and len(error.message) < 2000
        finally:
            seen, _opened = _opened, None
        touched = [name for name in seen if "passwd" in name or Path(name) == tmp_path / "x" or "../" in name]
        assert not touched
        assert time.monotonic() - start < 20
    assert n_sentences > 100


@pytest.mark.parametrize(
    "data", [b"[" * 2_000_000, b'{"format": 2, "a": ' * 100_000, b'{"format": ' + b"9" * 10**6 + b"}"]
)
def test_records_out_of_bounds(data: bytes, tmp_path: Path) -> None:
    """A record that is too deep or too long gives one sentence."""
    (tmp_path / "prepare.json").write_bytes(data)
    with pytest.raises(PrepareError, match=r"not a record of a run|another version") as caught:
        read_record(tmp_path)
    assert len(str(caught.value)) < 1000


def test_a_record_that_is_too_large(tmp_path: Path) -> None:
    """A record of more than 256 MiB is refused without being read."""
    with (tmp_path / "prepare.json").open("wb") as file:
        file.truncate(10 << 30)
    with pytest.raises(PrepareError, match="more than 268,435,456 bytes, so not a record"):
        read_record(tmp_path)


@pytest.mark.parametrize(
    ("name", "forged"),
    [
        ("has_rest", {"has_rest": True, "shard_sha256": [], "shard_heads": [], "merged_shards": 0}),
        ("input", {"input": 1}),
        ("seconds", {"seconds": -1.0}),
    ],
)
def test_what_no_run_has_written(name: str, forged: dict[str, Any], tmp_path: Path) -> None:
    """A forged record that has the last of no shards, an input that is not there, a negative time: one sentence."""
    prepare(write_jsonl(tmp_path / "c.jsonl", DOCS[:9]), tmp_path / "out", quiet=True, **OPTIONS)
    content = json.loads((tmp_path / "out" / "prepare.json").read_bytes())
    content["state"] |= forged
    tied(tmp_path / "out", content, None)
    with pytest.raises(PrepareError, match=rf"not a record of a run .ValueError: {name}"):
        read_record(tmp_path / "out")


def test_inputs_of_a_record_are_not_read(tmp_path: Path) -> None:
    """Of the inputs on record, only those that the names of the command may stand for are used."""
    good = "hf://datasets/HuggingFaceFW/fineweb-edu@87f09149ef4734204d70ed1d046ddc9ca3f2b8f9/sample/10BT/000.parquet"
    run = manifest.new_run()
    for name, url, is_taken in (
        ("fineweb-edu:sample-10BT", good, True),
        ("fineweb-edu:sample-10BT", "file:///etc/passwd", False),
        ("fineweb-edu:sample-10BT", "http://169.254.169.254/latest", False),
        ("fineweb-edu:sample-10BT", good.replace("/sample/", "/secret/"), False),
        ("fineweb-edu:sample-10BT", good.replace("000", "../../../../x"), False),
        ("c.jsonl", "file:///etc/passwd", False),
        ("https://example.org/a.txt", "https://example.org/a.txt", True),
        ("https://example.org/a.txt", "https://example.com/a.txt", False),
        ("s3://bucket/folder/*.parquet", "s3://bucket/folder/1.parquet", True),
        ("s3://bucket/folder", "s3://bucket/folder2/1.parquet", False),
    ):
        record = Record(
            tmp_path / "prepare.json", Settings().fixed(), [Input(url, "text", 9, "v")], State(run=run), [name]
        )
        record.begin()
        assert (recorded_inputs(tmp_path, [name], may_stand_for, [name], False) is not None) == is_taken, (name, url)
        (tmp_path / "prepare.json").unlink()


def test_a_commit_does_not_grow_with_the_inputs(tmp_path: Path) -> None:
    """The state of a run of 10,000 inputs is as small as that of a run of one; the manifest is not written again."""
    sizes = []
    for n in (1, 10_000):
        inputs = [Input(f"folder/{i:06}.parquet", "parquet", 9, "v") for i in range(n)]
        (out := tmp_path / str(n)).mkdir()
        record = Record(out / "prepare.json", Settings().fixed(), inputs, State(run=manifest.new_run()))
        record.begin()
        before = (out / "prepare.manifest.json").stat().st_mtime_ns
        for _ in range(3):
            record.write()
        assert (out / "prepare.manifest.json").stat().st_mtime_ns == before
        sizes.append((out / "prepare.json").stat().st_size)
        assert read_record(out).state == record.state
    assert abs(sizes[0] - sizes[1]) < 10


def test_changes_of_text_that_is_bad_all_over(tmp_path: Path) -> None:
    """Many changes of one block take a few bytes each, and each is listed, in order, and counted."""
    lines = b"x\n" * (1 << 13)
    tracemalloc.start()
    changes = read_lines(lines, 0, ReadOptions(skip_bad=True)).changes
    n_bytes, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(changes) == 1 << 13
    assert n_bytes < 16 * len(changes)
    assert peak < 150 * len(changes)  # the lines themselves, as objects
    assert [(c.record, c.byte) for c in changes] == [(i, 2 * i) for i in range(1 << 13)]
    (tmp_path / "c.jsonl").write_bytes(b'{"text": "good one"}\n' * 50 + lines)
    prepare(tmp_path / "c.jsonl", tmp_path / "out", quiet=True, skip_bad=True, val_ratio=0.1)
    listed = [json.loads(line) for line in (tmp_path / "out" / "prepare.changes.jsonl").read_bytes().splitlines()]
    assert [change["byte"] for change in listed] == [50 * 21 + 2 * i for i in range(1 << 13)]
    assert read_record(tmp_path / "out").state.n_changes == {"skipped": 1 << 13}


@pytest.mark.parametrize("is_manifest", [False, True])
def test_a_manifest_that_is_not_the_runs_own_stays(
    is_manifest: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that takes the manifest's place while a run works is left alone at the end."""
    path, out, other = write_jsonl(tmp_path / "c.jsonl", DOCS), tmp_path / "out", tmp_path / "other"
    assert not prepare_some(path, other, 8)
    data = (other / "prepare.manifest.json").read_bytes() if is_manifest else b"mine"
    add_meta = run.add_meta

    def swap(*arguments: Any) -> None:
        (out / "prepare.manifest.json").write_bytes(data)
        add_meta(*arguments)

    monkeypatch.setattr(run, "add_meta", swap)
    prepare(path, out, quiet=True, **OPTIONS)
    assert (out / "prepare.manifest.json").read_bytes() == data


@pytest.mark.parametrize("kind", ["file", "record", "link"])
def test_what_comes_in_the_records_place_while_a_run_works(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any commit: it is left alone, and the run stops and says so; once it is gone, the run goes on."""
    path, out, other = write_jsonl(tmp_path / "c.jsonl", DOCS[:160]), tmp_path / "out", tmp_path / "other"
    options = OPTIONS | {"shard_tokens": 1500}
    prepare(path, tmp_path / "expected", quiet=True, **options)
    assert not prepare_some(path, other, 5, **options)
    data = b"mine" if kind == "file" else (other / "prepare.json").read_bytes()
    (tmp_path / "theirs").write_bytes(data)
    record, write, n_continued, n = out / "prepare.json", run.Run._write_record, 0, 0
    monkeypatch.setattr(run, "COMMIT_SECONDS", 0.0)
    while True:
        n += 1
        calls, seen = itertools.count(1), [0]

        def swap(self: run.Run, n: int = n, calls: Iterator[int] = calls, seen: list[int] = seen) -> None:
            if next(calls) == n:
                record.unlink()
                record.symlink_to(tmp_path / "theirs") if kind == "link" else record.write_bytes(data)
                seen[0] = self._state.n_tokens
            write(self)

        with monkeypatch.context() as patch:
            patch.setattr(run.Run, "_write_record", swap)
            try:
                prepare_in_blocks(2000, path, out, **options)
                break
            except InputError as error:
                assert "move it away" in error.hint, error
        assert record.read_bytes() == data
        before = {file.name: file.read_bytes() for file in out.iterdir()}
        with pytest.raises(PrepareError, match="move it"):
            prepare(path, out, quiet=True, **options)
        assert {file.name: file.read_bytes() for file in out.iterdir()} == before
        record.unlink()
        if left := read_record(out):
            assert left.state.n_tokens == seen[0]
            n_continued += 1
        prepare_in_blocks(3000, path, out, **options)
        assert outputs(out) == outputs(tmp_path / "expected")
        assert not [*out.glob("*.part"), *out.glob("*.manifest.json")]
        shutil.rmtree(out)
    assert n_continued >= n - 2 >= 8


def test_a_record_that_is_gone_while_its_files_are_there(tmp_path: Path) -> None:
    """With the manifest alone beside a run's files, nothing starts over silently; with the record back, it goes on."""
    path, out = write_jsonl(tmp_path / "c.jsonl", DOCS), tmp_path / "out"
    for shard_tokens in (10**6, 1500):
        options = OPTIONS | {"shard_tokens": shard_tokens}
        prepare(path, tmp_path / "expected", quiet=True, overwrite=True, **options)
        assert not prepare_some(path, out, 12, **options)
        record = (out / "prepare.json").rename(tmp_path / "kept")
        before = {file.name: file.read_bytes() for file in out.iterdir()}
        with pytest.raises(
            PrepareError, match=r"prepare\.json: missing, although the files that its run has written"
        ) as raised:
            prepare(path, out, quiet=True, **options)
        assert "move these files away" in str(raised.value)
        assert {file.name: file.read_bytes() for file in out.iterdir()} == before
        shutil.copytree(out, tmp_path / "anew")
        (tmp_path / "anew").rename(tmp_path / f"away{shard_tokens}")
        prepare(path, tmp_path / "anew", quiet=True, **options)
        record.rename(out / "prepare.json")
        prepare(path, out, quiet=True, **options)
        for folder in (out, tmp_path / "anew"):
            assert outputs(folder) == outputs(tmp_path / "expected")
            shutil.rmtree(folder)


def test_an_input_that_was_not_begun(tmp_path: Path) -> None:
    """At offset 0 nothing of the next input was read: it may change."""
    inputs = [Input(name, "jsonl", 9, "v") for name in "ab"]
    for offset, expected in ((0, (1, False)), (5, (1, True)), (9, (2, False))):
        state = State(input=1, offset=offset, input_read=offset)
        assert Record(tmp_path / "prepare.json", {}, inputs, state).read_so_far() == expected


def test_a_file_of_more_tokens_than_its_layout_counts(tmp_path: Path) -> None:
    """A forged record's number that no header can have is no reason to take a file for the run's own."""
    (tmp_path / "val.bin").write_bytes(b"mine")
    assert not looks_own(tmp_path / "val.bin", [{"bytes": 9, "tokens": 1 << 40, "head": ""}], LAYOUTS["llmc"])


@pytest.mark.parametrize("shard_tokens", [2**60, 2**62])
def test_shards_longer_than_any_text(shard_tokens: int, tmp_path: Path) -> None:
    """What the settings accept, the record does, too: the same command has nothing to do."""
    path, options = write_jsonl(tmp_path / "c.jsonl", DOCS), {"keep_shards": True, "engine": "tiktoken", "quiet": True}
    made = [prepare(path, tmp_path / "out", shard_tokens=shard_tokens, **options) for _ in range(2)]
    assert made[0] == made[1] and (tmp_path / "out" / "train_shard_0000.bin").exists()


def test_what_a_stop_left_of_a_first_manifest(tmp_path: Path) -> None:
    """Only the beginning of a manifest under a run's temporary name is one: nothing else with such a name is."""
    place = str(tmp_path / "prepare.manifest.json.0123456789a{}.part")
    for n, data in enumerate((b"", RECORD_START[:9], RECORD_START[:9] + bytes(9), b"mine")):
        Path(place.format(n)).write_bytes(data)
    Path(place.format(4)).mkdir()
    assert [path.name[-6] for path in orphans(tmp_path)] == ["0", "1", "2"]
