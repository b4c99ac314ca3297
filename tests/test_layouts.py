"""--layout: readers written from each format's description find the ids that nanoGPT's files have."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import itertools
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fineweb_stream import cli, open_tokens, prepare
from fineweb_stream.output import layouts, manifest
from fineweb_stream.output.layouts import LAYOUTS
from fineweb_stream.output.manifest import read_record
from fineweb_stream.output.state import State
from fineweb_stream.output.verify import verify
from fineweb_stream.pipeline import run
from fineweb_stream.pipeline.plan import disk_needed
from fineweb_stream.pipeline.samples import Sampled
from fineweb_stream.pipeline.settings import Settings
from fineweb_stream.support.errors import InputError, PrepareError
from fineweb_stream.token_files.open import find_paths
from fineweb_stream.token_files.summary import decode, summarize

from .helpers import prepare_in_blocks, read_ids, write_jsonl
from .test_contracts import FORMATS, write_documents
from .test_resume import DOCS, prepare_some

HEADED = ("llmc", "npy")
OPTIONS: dict[str, Any] = {"shard_tokens": 1500, "engine": "tiktoken", "val_ratio": 0.1}


def read_llmc(path: Path) -> list[int]:
    """Read a file as llm.c's data loader does: 256 int32, of which three are used, then as many uint16 as these say."""
    data = path.read_bytes()
    magic, version, n_tokens, *others = struct.unpack("<256i", data[:1024])
    assert (magic, version) == (20240520, 1)
    assert n_tokens > 0
    assert len(data) == 256 * 4 + n_tokens * 2, "file size is not as expected"
    assert not any(others)
    return np.frombuffer(data, "<u2", offset=1024).tolist()  # type: ignore[no-any-return]


def read_npy(path: Path) -> list[int]:
    """Read a file as build-nanogpt does, and mapped; its format is 1.0, which every NumPy reads."""
    ids = np.load(path)
    assert (ids.dtype, ids.ndim) == (np.uint16, 1)
    np.testing.assert_array_equal(np.load(path, mmap_mode="r"), ids)
    with path.open("rb") as file:
        assert np.lib.format.read_magic(file) == (1, 0)
        np.lib.format.read_array_header_1_0(file)
        assert file.tell() % 64 == 0, "the ids are not aligned"
    return ids.tolist()  # type: ignore[no-any-return]


def read_shards(folder: Path, layout: str) -> tuple[list[list[int]], list[int]]:
    """The ids of each training shard and those of val, by the reader of the layout and its way to find files."""
    if layout == "llmc":
        shards = [read_llmc(path) for path in sorted(folder.glob("train_shard_*.bin"))]
        return shards, read_llmc(folder / "val.bin")
    names = sorted(os.listdir(folder))
    train, val = ([read_npy(folder / name) for name in names if split in name] for split in ("train", "val"))
    return train, val[0]


def joined(shards: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(shards))


def files(folder: Path) -> dict[str, bytes]:
    """All that is in a folder but the record."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".json"}


def check(folder: Path, layout: str, expected: Path, shard_tokens: int = 1500) -> None:
    """Compare a finished folder with nanoGPT's files of the same input: same ids, exact shards, no other file."""
    shards, val = read_shards(folder, layout)
    assert joined(shards) == read_ids(expected / "train.bin")
    assert val == read_ids(expected / "val.bin")
    assert {len(ids) for ids in shards[:-1]} <= {shard_tokens}
    assert 0 < len(shards[-1]) <= shard_tokens
    suffix = {"llmc": ".bin", "npy": ".npy"}[layout]
    names = {f"train_shard_{number:04d}{suffix}" for number in range(len(shards))}
    assert {path.name for path in folder.iterdir()} == names | {f"val{suffix}", "prepare.json"}
    outputs = json.loads((folder / "prepare.json").read_bytes())["state"]["outputs"]
    assert {name: output["bytes"] for name, output in outputs.items()} == {
        name: len(data) for name, data in files(folder).items()
    }
    for number, ids in enumerate(shards):
        name = f"train_shard_{number:04d}{suffix}"
        sha256 = hashlib.sha256(np.array(ids, "<u2").tobytes()).hexdigest()
        assert (outputs[name]["tokens"], outputs[name]["sha256"]) == (len(ids), sha256)


@pytest.fixture
def corpus_path(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "c.jsonl", DOCS)


@pytest.fixture(params=HEADED)
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("shard_tokens", [1, 1500, 10**6])
@pytest.mark.parametrize("kind", ["txt", *FORMATS])
def test_readers_find_the_ids(kind: str, shard_tokens: int, layout: str, tmp_path: Path) -> None:
    """For any input and any length of shards, the layout's reader finds the ids of val.bin and train.bin, in order."""
    docs = DOCS[:6] if shard_tokens == 1 else DOCS
    if kind == "txt":
        path, options = tmp_path / "c.txt", {}
        path.write_text("\n".join(docs), encoding="utf-8")
    else:
        path, options = write_documents(kind, tmp_path, docs)
    options = OPTIONS | options | {"shard_tokens": shard_tokens}
    prepare(path, tmp_path / "expected", quiet=True, **options)
    result = prepare_in_blocks(700, path, tmp_path / "out", layout=layout, **options)
    check(tmp_path / "out", layout, tmp_path / "expected", shard_tokens)
    assert result.train_tokens == len(read_ids(tmp_path / "expected" / "train.bin"))


@pytest.mark.parametrize("n", [0, 1, 9, 10, 65_536, 2**31 - 1, 2**31, 10**19])
def test_header_of_any_count(n: int) -> None:
    """A header has its fixed size and says the count, however many digits that has."""
    npy = LAYOUTS["npy"].make_header(n)
    file = io.BytesIO(npy)
    assert np.lib.format.read_magic(file) == (1, 0)
    assert np.lib.format.read_array_header_1_0(file) == ((n,), False, np.dtype("<u2"))
    assert file.tell() == len(npy) == LAYOUTS["npy"].header_bytes
    if n < 2**31:
        assert struct.unpack("<256i", LAYOUTS["llmc"].make_header(n)) == (20240520, 1, n, *[0] * 253)


def test_thirty_resumes(layout: str, corpus_path: Path, tmp_path: Path) -> None:
    """Stopped thirty times in a row: every file is that of one run, and every final name on the way was complete."""
    options = OPTIONS | {"layout": layout}
    prepare(corpus_path, tmp_path / "expected", quiet=True, **options)
    expected = files(tmp_path / "expected")
    for i in range(30):
        assert not prepare_some(corpus_path, tmp_path / "out", 1, block_bytes=300 + 50 * (i % 7), **options)
        final = {name: data for name, data in files(tmp_path / "out").items() if not name.endswith(".part")}
        assert final == {name: expected[name] for name in final}
    assert final, "no shard was completed before the end"
    assert prepare_some(corpus_path, tmp_path / "out", -1, **options)
    assert files(tmp_path / "out") == expected
    assert read_record(tmp_path / "out").state.outputs == read_record(tmp_path / "expected").state.outputs


@pytest.mark.parametrize("steps", [[999, 1000, 1001], [1, 2500, 2501, 5000], [10**9]])
@pytest.mark.parametrize("kind", ["jsonl", "txt"])
def test_max_tokens_may_rise(kind: str, steps: list[int], layout: str, tmp_path: Path) -> None:
    """Every limit ends where it says, with headers that say so; the last run leaves what one without a limit does."""
    path = tmp_path / "c.txt"
    path.write_text("\n".join(DOCS), encoding="utf-8")
    if kind == "jsonl":
        path = write_jsonl(tmp_path / "c.jsonl", DOCS)
    options = OPTIONS | {"shard_tokens": 1000, "layout": layout}
    prepare(path, tmp_path / "whole", quiet=True, **options)
    shards, _ = read_shards(tmp_path / "whole", layout)
    whole = joined(shards)
    for step in steps:
        prepare_in_blocks(500, path, tmp_path / "out", max_tokens=step, **options)
        shards, _ = read_shards(tmp_path / "out", layout)
        assert joined(shards) == whole[:step]
        assert [len(ids) for ids in shards[:-1]] == [1000] * (len(shards) - 1)
        verify(tmp_path / "out")
    prepare_in_blocks(500, path, tmp_path / "out", **options)
    assert files(tmp_path / "out") == files(tmp_path / "whole")


@pytest.mark.parametrize("is_done", [False, True], ids=["interrupted", "done"])
@pytest.mark.parametrize(("before", "now"), [("nanogpt", "llmc"), ("llmc", "npy"), ("npy", "nanogpt")])
def test_another_layout(before: str, now: str, is_done: bool, corpus_path: Path, tmp_path: Path) -> None:
    """Refused with nothing touched, also without the record; --overwrite leaves no file of the layout before."""
    out = tmp_path / "out"
    assert prepare_some(corpus_path, out, -1 if is_done else 12, layout=before, keep_shards=True, **OPTIONS) == is_done
    there = files(out)
    assert len(there) > 1
    with pytest.raises(InputError, match=f"--layout was '{before}' and is '{now}'") as refused:
        prepare(corpus_path, out, layout=now, quiet=True, **OPTIONS)
    assert "--keep-shards" not in str(refused.value)
    record = (out / "prepare.json").rename(tmp_path / "record")
    for overwrite in (False, True):  # without the record nobody knows whose they are
        with pytest.raises(InputError, match=r"(already|still) exist"):
            prepare(corpus_path, out, layout=now, quiet=True, overwrite=overwrite, **OPTIONS)
    assert files(out) == there
    record.rename(out / "prepare.json")
    prepare(corpus_path, out, layout=now, quiet=True, overwrite=True, **OPTIONS)
    prepare(corpus_path, tmp_path / "expected", layout=now, quiet=True, **OPTIONS)
    assert files(out) == files(tmp_path / "expected")


def test_keep_shards_says_nothing_new(layout: str, corpus_path: Path, tmp_path: Path) -> None:
    """Shards are the result: --keep-shards is no error, changes nothing, and may come or go on resume."""
    options = OPTIONS | {"layout": layout}
    assert not prepare_some(corpus_path, tmp_path / "out", 9, keep_shards=True, **options)
    assert prepare_some(corpus_path, tmp_path / "out", -1, **options)
    prepare(corpus_path, tmp_path / "out", quiet=True, keep_shards=True, **options)
    prepare(corpus_path, tmp_path / "expected", quiet=True, **OPTIONS)
    check(tmp_path / "out", layout, tmp_path / "expected")


def write_manifest(out: Path, **changes: Any) -> None:
    """Change a manifest, and tie the state to it anew."""
    content, state = (json.loads((out / name).read_bytes()) for name in ("prepare.manifest.json", "prepare.json"))
    content = {name: value for name, value in content.items() if name != "checksum"} | changes
    (out / "prepare.manifest.json").write_text(json.dumps(content | {"checksum": manifest._checksum(content)}))
    tie = hashlib.sha256((out / "prepare.manifest.json").read_bytes()).hexdigest()
    text = (out / "prepare.json").read_text().replace(state["manifest"][0], tie)
    (out / "prepare.json").write_text(text)


def test_a_record_without_a_layout_is_nanogpts(corpus_path: Path, tmp_path: Path) -> None:
    """A run that began before there were layouts goes on; a layout that nobody knows is no record to go on from."""
    out = tmp_path / "out"
    assert not prepare_some(corpus_path, out, 9)
    settings = json.loads((out / "prepare.manifest.json").read_bytes())["settings"]
    write_manifest(out, settings=settings | {"layout": "webdataset"})
    with pytest.raises(PrepareError, match=r"not a record of a run .*webdataset"):
        read_record(out)
    write_manifest(
        out, settings={name: value for name, value in settings.items() if name not in ("layout", "val_files", "val_at")}
    )
    assert prepare_some(corpus_path, out, -1)
    prepare(corpus_path, tmp_path / "expected", quiet=True, shard_tokens=1500)
    assert files(out) == files(tmp_path / "expected")


def flip(at: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)

    return damage


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "the count": (flip(8), "header is not that of"),  # of .npy: the length of its header
    "the header's end": (flip(100), "header is not that of"),
    "an id": (flip(-4), "its SHA-256 is not the recorded one"),
    "shorter": (lambda path: os.truncate(path, path.stat().st_size - 2), "missing or not"),
    "gone": (Path.unlink, "missing or not"),
}


@pytest.mark.parametrize("number", [0, 1, -1])
@pytest.mark.parametrize("damage", DAMAGES)
def test_verify_checks_every_file(damage: str, number: int, layout: str, corpus_path: Path, tmp_path: Path) -> None:
    """--verify passes on what was made, with a line for each file; any damage is found, and the file is named."""
    prepare(corpus_path, tmp_path / "out", quiet=True, layout=layout, **OPTIONS)
    paths = sorted(path for path in (tmp_path / "out").iterdir() if path.name != "prepare.json")
    lines = verify(tmp_path / "out")
    assert [line.partition(":")[0] for line in lines[:-1]] == [str(path) for path in paths]
    do, message = DAMAGES[damage]
    do(paths[number])
    with pytest.raises(InputError, match=message) as caught:
        verify(tmp_path / "out")
    assert str(caught.value).startswith(f"{paths[number]}: ")


@pytest.mark.parametrize("damage", ["an id", "shorter", "gone"])
def test_shards_that_were_kept_are_outputs(damage: str, corpus_path: Path, tmp_path: Path, capsys) -> None:
    """Kept shards are printed and verified as all others, and a run that lacks one is not done."""
    out = tmp_path / "out"
    prepare(corpus_path, out, keep_shards=True, **OPTIONS)
    shards = sorted(out.glob("train_shard_*"))
    assert f"{shards[0]} to {shards[-1].name}: a second copy of the tokens of train.bin" in capsys.readouterr().out
    lines = verify(out)
    assert [line.partition(":")[0] for line in lines[:-1]] == [
        str(out / "train.bin"),
        *map(str, shards),
        str(out / "val.bin"),
    ]
    DAMAGES[damage][0](shards[-1])
    with pytest.raises(InputError, match=DAMAGES[damage][1]) as caught:
        verify(out)
    assert str(caught.value).startswith(f"{shards[-1]}: ")
    if damage != "an id":  # only a hash tells that
        with pytest.raises(InputError, match="missing or not"):
            prepare(corpus_path, out, keep_shards=True, quiet=True, **OPTIONS)


def test_val_that_is_gone_is_named(corpus_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If val is deleted before it gets its final name, no run says that it is done."""
    for layout in LAYOUTS.values():
        out = tmp_path / layout.name

        def stop(*args: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(run, "give_names", stop)
            prepare(corpus_path, out, quiet=True, layout=layout.name, **OPTIONS)
        next(out.glob(f"{layout.val_name}.*.part")).unlink()
        with pytest.raises(PrepareError, match=rf"{layout.val_name}: holds 0 bytes, but"):
            prepare(corpus_path, out, quiet=True, layout=layout.name, **OPTIONS)
        assert read_record(out).state.status == "merging"


def test_open_tokens_and_inspect(layout: str, corpus_path: Path, tmp_path: Path) -> None:
    """A folder, its splits and each file are read as nanoGPT's are; so are the shards of an unfinished run."""
    options = OPTIONS | {"layout": layout}
    assert not prepare_some(corpus_path, tmp_path / "out", 20, **options)
    prepare(corpus_path, tmp_path / "expected", quiet=True, **OPTIONS)
    train = read_ids(tmp_path / "expected" / "train.bin")
    n_complete = len(read_record(tmp_path / "out").state.shard_sha256)
    assert n_complete > 1
    assert np.asarray(open_tokens(tmp_path / "out")).tolist() == train[: 1500 * n_complete]
    assert prepare_some(corpus_path, tmp_path / "out", -1, **options)
    assert np.asarray(open_tokens(tmp_path / "out")).tolist() == train
    assert np.asarray(open_tokens(tmp_path / "out", "val")).tolist() == read_ids(tmp_path / "expected" / "val.bin")
    for number, path in enumerate(find_paths(tmp_path / "out")):
        assert open_tokens(path)[:].tolist() == train[1500 * number : 1500 * (number + 1)]
        assert decode(path, 7, 20) == decode(tmp_path / "expected", 1500 * number + 7, 20)
    found, expected = (summarize(tmp_path / folder, seed=3) for folder in ("out", "expected"))
    nameless = [dataclasses.replace(s, name="", made_by=s.made_by._replace(sizes={})) for s in (found, expected)]
    assert nameless[0] == nameless[1]


def test_a_foreign_id_is_located_behind_the_header(layout: str, tmp_path: Path) -> None:
    """The offset in the message counts the header."""
    kind, ids = LAYOUTS[layout], np.array([5, 6, 50257], "<u2")
    path = tmp_path / f"a{kind.suffix}"
    path.write_bytes(kind.make_header(3) + ids.tobytes())
    with pytest.raises(InputError, match=rf"token 2 \(byte {kind.header_bytes + 4:,}\): id 50257"):
        summarize(path)


def llmc_file(*words: int, n_ids: int = 3) -> bytes:
    return struct.pack("<256i", *words, *[0] * (256 - len(words))) + bytes(2 * n_ids)


def npy_file(array: Any, version: tuple[int, int] = (1, 0)) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array), version)
    return file.getvalue()


IDS = np.array([1, 2, 3], "<u2")


@pytest.mark.parametrize(
    ("data", "n"),
    [
        (llmc_file(20240520, 1, 3), 3),
        (llmc_file(20240520, 1, 3, 4, 5), 3),  # numbers after the count are for whoever wrote them
        (llmc_file(20240520, 2, 3), 515),  # another version, no header, another magic: what there is are ids
        (llmc_file(20240801, 1, 3), 515),
        (npy_file(IDS), 3),
        (npy_file(IDS, (2, 0)), 3),
    ],
)
def test_headers_are_known_by_what_they_hold(data: bytes, n: int, tmp_path: Path) -> None:
    """A header counts as one with the right magic, version and count, whatever the file is called."""
    for name in ("a.bin", "b.npy", "c"):
        (tmp_path / name).write_bytes(data)
        tokens = open_tokens(tmp_path / name)
        assert len(tokens) == n
        assert np.asarray(tokens).tobytes() == data[-2 * n :]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (llmc_file(20240520, 1, 4), r"1,030 bytes, its header says 4 ids"),
        (llmc_file(20240520, 1, 4, 99), r"1,030 bytes, its header says 4 ids"),
        (struct.pack("<3i", 20240520, 1, 3), "12 bytes, its header says 3 ids"),
        (struct.pack("<2i", 20240520, 1), "8 bytes, its header says 0 ids"),
        (llmc_file(20240520, 1, 0, n_ids=0), "the file is empty"),
        (npy_file(IDS)[:-2], r"132 bytes, its header says 3 ids"),
        (npy_file(IDS) + b"\0\0", r"136 bytes, its header says 3 ids"),
        (npy_file(IDS[:0]), "the file is empty"),
        (npy_file(IDS.astype("<i4")), "an array of int32"),
        (npy_file(IDS.astype(">u2")), "an array of >u2"),
        (npy_file([IDS]), r"shape \(1, 3\)"),
        (npy_file(IDS)[:40], "its .npy header cannot be read"),
        (b"\x93NUMPY\x09\x00" + npy_file(IDS)[8:], "its .npy header cannot be read"),
    ],
)
def test_headers_that_cannot_be_right(data: bytes, message: str, tmp_path: Path) -> None:
    """A wrong count, or an array of anything but ids, is an error that names the file."""
    path = tmp_path / "a.bin"
    path.write_bytes(data)
    with pytest.raises(InputError, match=message) as caught:
        open_tokens(path)
    assert str(path) in str(caught.value)


def test_counts_that_no_header_holds(corpus_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than 2 GiB in a file of llm.c: refused at the start, by the estimate, or during the run."""
    most = (2**31 - 1 - 1024) // 2
    assert LAYOUTS["llmc"].n_bytes(most) < 2**31 <= LAYOUTS["llmc"].n_bytes(most + 1)
    for option in ("shard_tokens", "val_tokens"):
        with pytest.raises(InputError, match=rf"{option}={most + 1:,}: .* {most:,} tokens"):
            prepare(corpus_path, tmp_path / "out", layout="llmc", dry_run=True, **{option: most + 1})
    for layout, n_tokens in (("llmc", most), ("npy", 2**31)):
        prepare(corpus_path, tmp_path / "out", layout=layout, dry_run=True, quiet=True, shard_tokens=n_tokens)
        with pytest.raises(InputError, match="nothing would be left to train on"):
            prepare(corpus_path, tmp_path / "out", layout=layout, dry_run=True, quiet=True, val_tokens=n_tokens)
    monkeypatch.setitem(layouts.LAYOUTS, "llmc", dataclasses.replace(layouts.LLMC, max_tokens=500))
    options = {"layout": "llmc", "quiet": True, "shard_tokens": 400}
    with pytest.raises(InputError, match=r"val\.bin will have about .* at most 500"):
        prepare(corpus_path, tmp_path / "out", val_ratio=0.9, dry_run=True, **options)
    monkeypatch.setattr("fineweb_stream.pipeline.samples.sample", lambda *_: None)  # as of a pipe
    with pytest.raises(InputError, match=r"val\.bin: more than 500 tokens, and --layout llmc cannot count them"):
        prepare(corpus_path, tmp_path / "out", val_ratio=0.9, **options)
    assert not list((tmp_path / "out").glob("val.bin"))


@pytest.mark.parametrize("n_tokens", [1, 1000, 1001, 123_456])
def test_disk_that_is_needed(n_tokens: int, layout: str) -> None:
    """The plan asks for what the files will take, headers included, and not for a copy of the shards."""
    sampled = Sampled(n_tokens, 4.0, 0.0, 1.0, True)
    needed = disk_needed(sampled, Settings(shard_tokens=1000, layout=layout), State())
    n_files = -(-n_tokens // 1000) + 1
    taken = 2 * n_tokens + n_files * LAYOUTS[layout].header_bytes
    assert taken <= needed <= taken + LAYOUTS[layout].header_bytes


def test_a_name_that_is_no_layout(tmp_path: Path) -> None:
    """An unknown layout from a script is an error that names the layouts."""
    with pytest.raises(InputError, match="no such layout: 'webdataset'\n  the layouts are nanogpt, llmc, npy"):
        prepare(tmp_path, layout="webdataset")


@pytest.mark.parametrize(
    ("layout", "shards", "val", "usage"),
    [
        (
            "llmc",
            "train_shard_0000.bin to train_shard_0001.bin",
            "val.bin",
            "-i '{out}/train_shard_*.bin' -j '{out}/val.bin'",
        ),
        ("npy", "train_shard_0000.npy to train_shard_0001.npy", "val.npy", "data_root = '{out}'"),
        ("nanogpt", "train.bin", "val.bin", "to nanoGPT's 'data/my out/', then python train.py --dataset='my out'"),
    ],
)
def test_what_is_said(layout: str, shards: str, val: str, usage: str, tmp_path: Path, capsys) -> None:
    """The plan, the report and --verify name the files that are made, and say how to use them."""
    out = tmp_path / "my out"
    path = write_jsonl(tmp_path / "c.jsonl", DOCS)
    arguments = ["--out", str(out), "--layout", layout]
    assert cli.main([str(path), *arguments, "--shard-tokens", "5000", "--max-tokens", "9100"]) == 0
    said = capsys.readouterr().out
    assert f"{out / shards}: " in said
    assert f"{out / val}: " in said
    assert usage.format(out=out) in said
    assert f" {val} " in said
    assert f"warning: {val} has" in said
    assert ("train.bin" in said) == (layout == "nanogpt")
    assert cli.main([*arguments, "--verify"]) == 0


def test_a_record_of_more_tokens_than_a_file_counts(corpus_path: Path, tmp_path: Path) -> None:
    """A record whose count cannot be that of its file is refused in one sentence."""
    prepare(corpus_path, tmp_path, layout="llmc", quiet=True, **OPTIONS)
    content = json.loads((tmp_path / "prepare.json").read_bytes())
    content["state"]["outputs"]["val.bin"]["tokens"] = 1 << 40
    del content["checksum"]
    (tmp_path / "prepare.json").write_text(json.dumps(content | {"checksum": manifest._checksum(content)}))
    with pytest.raises(InputError, match=r"val\.bin: its header is not that of 1,099,511,627,776 tokens"):
        verify(tmp_path)
