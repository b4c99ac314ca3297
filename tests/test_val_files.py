"""`--val FILES`: these files, and nothing else, are the validation split, whatever happens to the run."""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiktoken

from fineweb_stream import cli, prepare
from fineweb_stream.inputs import standard_input
from fineweb_stream.inputs.discover import find_inputs, leave_out
from fineweb_stream.output.manifest import Record, read_record
from fineweb_stream.output.resume import recorded_inputs
from fineweb_stream.output.state import State
from fineweb_stream.output.verify import verify
from fineweb_stream.pipeline.settings import Settings
from fineweb_stream.remote.network import Fetcher, Network
from fineweb_stream.support.errors import InputError
from fineweb_stream.support.model import Input
from fineweb_stream.tokenizer.gpt2 import EOT_ID

from .helpers import document_ids, outputs, prepare_in_blocks, read_ids, split_at_eot, write_jsonl
from .hub_server import HubServer
from .test_contracts import FORMATS, write_documents
from .test_resume import DOCS, OPTIONS, prepare_some

KINDS = (*FORMATS, "text", "gz")


def write_part(kind: str, folder: Path, docs: list[str]) -> tuple[Path, dict[str, str]]:
    """Write documents, or one text of them, in a folder of their own; return the file and the options to read it."""
    folder.mkdir()
    if kind == "text":
        (folder / "c.txt").write_text("\n".join(docs), encoding="utf-8", newline="")
        return folder / "c.txt", {}
    if kind == "gz":
        path = write_jsonl(folder / "plain", docs)
        (folder / "c.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
        return folder / "c.jsonl.gz", {}
    return write_documents(kind, folder, docs)


def write_all(kind: str, folder: Path) -> tuple[list[Path], Path, dict[str, str]]:
    """Write two inputs and one for validation."""
    (a, options), (b, _), (val, _) = (
        write_part(kind, folder / name, docs)
        for name, docs in (("a", DOCS[:150]), ("b", DOCS[150:250]), ("v", DOCS[250:]))
    )
    return [a, b], val, options


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Give a text on standard input."""

    def put(data: bytes) -> None:
        standard_input._HEAD.clear()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))

    yield put
    standard_input._HEAD.clear()


@pytest.mark.parametrize("block_bytes", [50, 100_000])
@pytest.mark.parametrize("kind", KINDS)
def test_each_goes_where_it_was_named(
    kind: str, block_bytes: int, reference: tiktoken.Encoding, tmp_path: Path
) -> None:
    """val.bin is what --val names, train.bin all else: documents with their end-of-text, texts with one between."""
    inputs, val, options = write_all(kind, tmp_path)
    result = prepare_in_blocks(block_bytes, inputs, tmp_path / "out", val=val, **OPTIONS | options)
    found = {name: read_ids(tmp_path / "out" / f"{name}.bin") for name in ("val", "train")}
    if kind == "text":
        a, b, v = (reference.encode_ordinary(path.read_text(encoding="utf-8")) for path in (*inputs, val))
        assert found == {"val": v, "train": [*a, EOT_ID, *b]}
    else:
        assert split_at_eot(found["val"]) == document_ids(reference, DOCS[250:])
        assert split_at_eot(found["train"]) == document_ids(reference, DOCS[:250])
        assert (result.val_documents, result.train_documents) == (150, 250)
    verify(tmp_path / "out")


@pytest.mark.parametrize(
    ("kind", "layout"), [*((kind, "nanogpt") for kind in KINDS), ("jsonl", "llmc"), ("text", "npy")]
)
def test_a_stop_anywhere(kind: str, layout: str, tmp_path: Path) -> None:
    """A run that is stopped within val or after it, and continued, gives the same bytes."""
    inputs, val, options = write_all(kind, tmp_path)
    options = OPTIONS | options | {"val": [val], "layout": layout}
    prepare(inputs, tmp_path / "expected", quiet=True, **options)
    for n_blocks in (1, 4, 7, 12):
        out = tmp_path / f"out{n_blocks}"
        assert not prepare_some(inputs, out, n_blocks, **options)
        prepare_in_blocks(900, inputs, out, **options)
        names = {path.name for path in out.iterdir()}
        assert names == {path.name for path in (tmp_path / "expected").iterdir()}
        for name in names - {"prepare.json"}:
            assert (out / name).read_bytes() == (tmp_path / "expected" / name).read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_more_tokens_and_one_more_input(kind: str, tmp_path: Path) -> None:
    """--max-tokens counts only train and may grow; one more input goes to train; the bytes are the same in the end."""
    (a, b), val, options = write_all(kind, tmp_path)
    options = OPTIONS | options | {"val": val}
    prepare([a, b], tmp_path / "expected", quiet=True, **options)
    expected = outputs(tmp_path / "expected")
    prepare(a, tmp_path / "a", quiet=True, **options)
    for max_tokens in (1, 1000, 2500):
        prepare_in_blocks(700, a, tmp_path / "out", max_tokens=max_tokens, **options)
        found = outputs(tmp_path / "out")
        assert found == {"val.bin": expected["val.bin"], "train.bin": expected["train.bin"][: 2 * max_tokens]}
    prepare_in_blocks(700, a, tmp_path / "out", **options)
    assert outputs(tmp_path / "out") == outputs(tmp_path / "a")
    prepare([a, b], tmp_path / "out", quiet=True, **options)
    assert outputs(tmp_path / "out") == expected


@pytest.mark.parametrize("is_text", [False, True], ids=["documents", "text"])
@pytest.mark.parametrize("is_val", [False, True], ids=["pipe for train", "pipe for val"])
def test_a_pipe(is_val: bool, is_text: bool, tmp_path: Path, pipe: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Train or val, but not both, may be standard input; the plan does not guess what a pipe holds."""
    (a, _), v, options = write_all("text" if is_text else "jsonl", tmp_path)
    options = OPTIONS | options
    prepare(a, tmp_path / "expected", val=v, quiet=True, **options)
    pipe((v if is_val else a).read_bytes())
    prepare(a if is_val else "-", tmp_path / "out", val="-" if is_val else v, **options)
    assert outputs(tmp_path / "out") == outputs(tmp_path / "expected")
    assert "tokens: not known before the end (a pipe)" in capsys.readouterr().out
    pipe(a.read_bytes())
    with pytest.raises(InputError, match="standard input is named twice"):
        prepare("-", tmp_path / "both", val="-", quiet=True, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_the_plan_knows_both(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--dry-run estimates each split by its own files, writes nothing and advises no ratio."""
    inputs, val, options = write_all(kind, tmp_path)
    options = OPTIONS | options | {"val": val}
    found = prepare(inputs, tmp_path / "out", dry_run=True, **options)
    said = capsys.readouterr().out
    assert f"validation: {val}: " in said and f"input: {inputs[0]} and 1 more: " in said and "--val-ratio" not in said
    assert not (tmp_path / "out").exists()
    result = prepare(inputs, tmp_path / "out", quiet=True, **options)
    assert found.val_tokens / found.train_tokens == pytest.approx(result.val_tokens / result.train_tokens, rel=0.1)
    assert found.val_tokens == pytest.approx(result.val_tokens, rel=1 if kind == "parquet" else 0.1)  # tiny row groups
    found = prepare(inputs, tmp_path / "other", dry_run=True, quiet=True, max_tokens=99, **options)
    assert (found.train_tokens, found.val_tokens > 1000) == (99, True)


def test_what_is_skipped_is_counted_in_both(reference: tiktoken.Encoding, tmp_path: Path) -> None:
    """--skip-bad names file and line for val as for the others."""
    for name in "av":
        path = write_jsonl(tmp_path / f"{name}.jsonl", DOCS[:30])
        path.write_text(path.read_text() + "no json\n" + json.dumps({"text": name}) + "\n")
    prepare(tmp_path / "a.jsonl", tmp_path / "out", val=tmp_path / "v.jsonl", skip_bad=True, quiet=True, **OPTIONS)
    lines = [json.loads(line) for line in (tmp_path / "out" / "prepare.changes.jsonl").open()]
    assert [line["place"].partition(" (")[0] for line in lines] == [
        f"{tmp_path / name}.jsonl, line 31" for name in "va"
    ]
    assert split_at_eot(read_ids(tmp_path / "out" / "val.bin")) == document_ids(reference, [*DOCS[:30], "v"])


def test_a_file_that_is_in_both_is_val_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A validation file that is also in the folder of inputs, under any path, is left out of train, with a note."""
    (tmp_path / "in").mkdir()
    for name, docs in (("a", DOCS[:100]), ("v", DOCS[100:150]), ("z", DOCS[150:])):
        write_jsonl(tmp_path / "in" / f"{name}.jsonl", docs)
    os.link(tmp_path / "in" / "v.jsonl", tmp_path / "second name.jsonl")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "second name.jsonl")
    prepare(tmp_path / "in", tmp_path / "out", val=tmp_path / "link.jsonl", **OPTIONS)
    assert "note: validation (--val), so not read for training: v.jsonl" in capsys.readouterr().out
    others = [tmp_path / "in" / "a.jsonl", tmp_path / "in" / "z.jsonl"]
    prepare(others, tmp_path / "expected", val=tmp_path / "in" / "v.jsonl", quiet=True, **OPTIONS)
    assert outputs(tmp_path / "out") == outputs(tmp_path / "expected")
    with pytest.raises(InputError, match="named with --val, and nothing is left to train on"):
        prepare(others, tmp_path / "none", val=tmp_path / "in", quiet=True, **OPTIONS)


@pytest.mark.parametrize(
    ("val", "is_same"),
    [
        ("http://HOST.org:80/b.txt", True),
        ("HTTP://user:word@host.org/%62.txt#part", True),
        ("https://host.org/b.txt", False),
        ("http://host.org:8080/b.txt", False),
        ("http://host.org/B.txt", False),
        ("http://host.org/b.txt?v=2", False),
    ],
)
def test_another_spelling_of_an_address(val: str, is_same: bool) -> None:
    """Two spellings of a server are the same; two paths are not, even if the files have the same version."""
    inputs = [Input(f"http://host.org/{name}.txt", "text", 9, "65f-9") for name in "ab"]
    assert len(leave_out(inputs, [Input(val, "text", 9, "65f-9")])) == 2 - is_same


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_dataset_on_the_hub_and_the_address_of_a_file_of_it(ending: str, tmp_path: Path, monkeypatch) -> None:
    """A dataset and the URL of one of its files: the Hub reports the same content, so that file is left out."""
    folder = tmp_path / "o" / "n" / "data"
    folder.mkdir(parents=True)
    for i in range(3):
        write_documents(ending, folder, DOCS[i::3])[0].rename(folder / f"{i}.{ending}")
    with HubServer(tmp_path) as server, Fetcher() as fetcher:
        server.commit("o/n")
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        inputs = find_inputs(["hf://datasets/o/n/data"], None, Network(fetcher))
        val = find_inputs([f"{server.url}/datasets/o/n/resolve/main/data/1.{ending}"], None, Network(fetcher))
    found = leave_out(inputs, val)
    assert [Path(input.path).name for input in found] == [f"0.{ending}", f"2.{ending}"]


@pytest.mark.parametrize("is_done", [False, True], ids=["interrupted", "done"])
@pytest.mark.parametrize(("before", "now"), [("v", ""), ("", "v"), ("v", "va"), ("v", "a"), ("va", "av")])
def test_another_val_is_refused(before: str, now: str, is_done: bool, tmp_path: Path) -> None:
    """More, fewer, other or no files for validation make another run, which is refused with nothing touched."""
    for name, docs in (("a", DOCS[:100]), ("v", DOCS[100:200]), ("z", DOCS[200:])):
        write_jsonl(tmp_path / f"{name}.jsonl", docs)

    def named(val: str) -> tuple[list[Path], list[Path]]:
        return [tmp_path / f"{n}.jsonl" for n in "avz" if n not in val], [tmp_path / f"{n}.jsonl" for n in val]

    inputs, val = named(before)
    assert prepare_some(inputs, tmp_path / "out", -1 if is_done else 6, val=val) == is_done
    there = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    inputs, val = named(now)
    message = "another order|is new" if len(before) == len(now) else f"--val named {len(before)} file"
    with pytest.raises(InputError, match=message):
        prepare(inputs, tmp_path / "out", val=val, quiet=True, **OPTIONS)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == there
    prepare(inputs, tmp_path / "out", val=val, quiet=True, overwrite=True, **OPTIONS)
    prepare(inputs, tmp_path / "expected", val=val, quiet=True, **OPTIONS)
    assert outputs(tmp_path / "out") == outputs(tmp_path / "expected")


@pytest.mark.parametrize("kind", ["jsonl", "text"])
@pytest.mark.parametrize("which", ["train", "val"])
def test_no_text_in_one_of_them(which: str, kind: str, tmp_path: Path) -> None:
    """A split without tokens is an error that names its file, and leaves nothing."""
    (a, _), v, options = write_all(kind, tmp_path)
    empty = tmp_path / f"empty{a.suffix}"
    empty.write_text("\n" if kind == "jsonl" else "\ufeff", encoding="utf-8")
    inputs = (empty, v) if which == "train" else (a, empty)
    with pytest.raises(InputError, match=f"{empty.name}: no text in the inputs{' of --val' * (which == 'val')}"):
        prepare(inputs[0], tmp_path / "out", val=inputs[1], quiet=True, **OPTIONS | options)
    assert not (tmp_path / "out").exists()


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """--val takes several files; options that contradict it, or leave nothing to train on, are refused."""
    for name, docs in (("a", DOCS[:200]), ("v", DOCS[200:300]), ("w", DOCS[300:])):
        write_jsonl(tmp_path / f"{name}.jsonl", docs)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["a.jsonl", "--out", "out", "--val", "v.jsonl", "w.jsonl"]) == 0
    record = read_record(Path("out"))
    assert record and record.settings["val_files"] == 2
    assert [input.path for input in record.inputs] == ["v.jsonl", "w.jsonl", "a.jsonl"]
    assert cli.main(["a.jsonl", "--out", "out", "--val", "v.jsonl", "--val", "w.jsonl"]) == 0
    capsys.readouterr()
    for more, message in (
        (["--val-ratio", "0.1"], "--val and --val-ratio: "),
        (["--val-tokens", "9"], "--val and --val-tokens: "),
        (["--demo"], "--demo"),
    ):
        assert cli.main(["a.jsonl", "--out", "other", "--val", "v.jsonl", *more]) == 2
        assert message in capsys.readouterr().err
    assert cli.main(["--out", "other", "--val", "v.jsonl", "a.jsonl"]) == 2
    assert "no input named: --val takes all that follow it\n  name the inputs before --val" in capsys.readouterr().err
    assert cli.main(["--val", "v.jsonl", "--out", "beside", "--engine", "tiktoken"], folder=tmp_path) == 0
    assert "no input named: using a.jsonl" in capsys.readouterr().out.replace(f"{tmp_path}/", "")


def test_advice_where_val_is_too_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--for refuses a val that is too short, and no advice names an option that --val excludes."""
    inputs, val, _ = write_all("jsonl", tmp_path)
    command = [*map(str, inputs), "--out", str(tmp_path / "out"), "--layout", "llmc", "--val", str(val)]
    assert cli.main([*command, "--for", "64x1024"]) == 2
    assert "needs 65,537 or more (--for 64x1024)\n  more text in --val, or another --for" in capsys.readouterr().err
    assert cli.main([*command, "--for", "2x64"]) == 0
    said = capsys.readouterr().out
    assert "10,485,760 tokens of val (more text in --val)" in said and "--val-" not in said


def test_names_of_the_hub_are_taken_from_their_part(tmp_path: Path) -> None:
    """Of the inputs on record, those of val are used for the names of --val, and the others for the others."""
    urls = [f"https://example.org/{name}.txt" for name in "va"]
    inputs = [Input(url, "text", 9, "v") for url in urls]
    Record(tmp_path / "prepare.json", Settings(val_files=1).fixed(), inputs, State(run="0" * 12), names=urls).begin()

    def find(part: list[str], is_val: bool) -> list[Input] | None:
        return recorded_inputs(tmp_path, urls, lambda name, url: name == url, part, is_val)

    assert (find(urls[:1], True), find(urls[1:], False)) == (inputs[:1], inputs[1:])
    assert find(urls[1:], True) is None and find(urls[:1], False) is None
