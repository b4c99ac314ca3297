"""`--index`: the positions of end-of-text in every file, as datatrove's reader needs them; documents as views."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineweb_stream import cli, open_documents, open_tokens, prepare
from fineweb_stream.output.index import END_DTYPE, index_path
from fineweb_stream.output.layouts import LAYOUTS
from fineweb_stream.output.manifest import read_record
from fineweb_stream.output.verify import verify
from fineweb_stream.support.errors import InputError
from fineweb_stream.support.units import counted
from fineweb_stream.token_files import commands, documents
from fineweb_stream.token_files.documents import write_index
from fineweb_stream.token_files.open import find_paths
from fineweb_stream.token_files.tiktoken_cache import write_tiktoken_cache
from fineweb_stream.tokenizer.gpt2 import EOT_ID

from .helpers import shard_path, split_at_eot, write_jsonl
from .test_resume import DOCS, prepare_some


def places(path: Path) -> list[int]:
    """The positions of end-of-text ids in a file, counted from 1."""
    return [place + 1 for place, i in enumerate(open_tokens(path).tolist()) if i == EOT_ID]


def read_index(path: Path) -> list[int]:
    return np.fromfile(index_path(path), "<u8").tolist()  # type: ignore[no-any-return]


def datatrove_positions(path: Path, window: int, length: int) -> list[int]:
    """The place of each token in its document, as datatrove's reader counts it from `PATH.index` (an array of uint64).

    Its window starts like a document whatever came before; an end is where the next document has its place 0.
    """
    start = window * length
    ends = {int(end) - start for end in np.fromfile(f"{path}.index", np.uint64) if start < end < start + length}
    counted, place = [], 0
    for i in range(length):
        place = 0 if i in ends or i == 0 else place + 1
        counted.append(place)
    return counted


def test_datatrove_reads_it(tmp_path: Path) -> None:
    """Positions from the index are those from the ids: each end-of-text is the last token of its document."""
    path = write_jsonl(tmp_path / "c.jsonl", DOCS)
    prepare(path, tmp_path / "out", quiet=True, index=True)
    ids = open_tokens(tmp_path / "out").tolist()
    for window in range(len(ids) // 64):
        part, expected, place = ids[64 * window :][:64], [], 0
        for i in part:
            expected.append(place)
            place = 0 if i == EOT_ID else place + 1
        assert datatrove_positions(tmp_path / "out" / "train.bin", window, 64) == expected


@pytest.mark.parametrize("keep_shards", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["documents", "text"])
def test_each_file_has_its_ends(kind: str, layout: str, keep_shards: bool, tmp_path: Path) -> None:
    """In every layout and split, with or without shards, after an interruption too: the positions of 50256 alone."""
    path = write_jsonl(tmp_path / "c.jsonl", DOCS) if kind == "documents" else tmp_path / "c.txt"
    if kind == "text":
        path.write_text("\n".join(DOCS), encoding="utf-8")
    out = tmp_path / "out"
    options: dict[str, Any] = {"layout": layout, "keep_shards": keep_shards, "shard_tokens": 1500, "val_ratio": 0.1}
    assert not prepare_some(path, out, 3, **options)
    prepare(path, out, quiet=True, engine="tiktoken", index=True, **options)
    outputs = read_record(out).state.outputs
    assert len(outputs) > 2 or (layout == "nanogpt" and not keep_shards)
    for name in outputs:
        assert read_index(out / name) == places(out / name)
    names = {file.name for file in out.iterdir() if file.is_file()}
    if layout == "npy":
        assert not any(name.endswith(".index") for name in names), "build-nanogpt would load them"
    train = [document.tolist() for document in open_documents(out)]
    ids = np.asarray(open_tokens(out)).tolist()
    assert train == (split_at_eot(ids) if kind == "documents" else [])
    assert len(open_documents(out, "val")) == np.sum(open_tokens(out, "val") == EOT_ID)


@given(
    ids=st.lists(st.sampled_from([1, 2, EOT_ID]), min_size=4, max_size=60),
    cuts=st.sets(st.integers(1, 59)),
    data=st.data(),
)
def test_documents_over_shards(ids: list[int], cuts: set[int], data: st.DataObject) -> None:
    """Documents are those of the whole, however shards cut them; the ends in a window are those of its ids."""
    with tempfile.TemporaryDirectory() as folder:
        bounds = [0, *sorted(cut for cut in cuts if cut < len(ids)), len(ids)]
        for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
            np.array(ids[start:stop], "<u2").tofile(shard_path(Path(folder), number))
        for path in find_paths(folder):
            write_index(path)
        found = open_documents(folder)
        n_closed = len(ids) - ids[::-1].index(EOT_ID) if EOT_ID in ids else 0
        expected = split_at_eot(ids[:n_closed])
        assert [document.tolist() for document in found] == expected and len(found) == len(expected)
        for number in range(-len(expected), len(expected)):
            assert found[number].tolist() == expected[number]
        for number in (len(expected), -len(expected) - 1):
            with pytest.raises(IndexError):
                found[number]
        start = data.draw(st.integers(0, len(ids)))
        stop = data.draw(st.integers(start, len(ids)))
        assert found.ends(start, stop).tolist() == [p + 1 for p, i in enumerate(ids[start:stop]) if i == EOT_ID]


def test_a_document_is_a_view(tmp_path: Path) -> None:
    """Inside one file a document shares the file's memory and cannot be written to."""
    np.array([1, 2, EOT_ID, 3, EOT_ID], "<u2").tofile(tmp_path / "train.bin")
    write_index(tmp_path / "train.bin")
    found = open_documents(tmp_path)
    assert np.shares_memory(found[1], found.tokens[:])
    with pytest.raises(ValueError, match="read-only"):
        found[1][0] = 7


@pytest.mark.parametrize("layout", ["nanogpt", "llmc", "npy"])
@pytest.mark.parametrize("is_done", [False, True])
def test_one_command_indexes_all_shards(layout: str, is_done: bool, tmp_path: Path) -> None:
    """Where several shards have no index, the command in the message makes all, of a run that was stopped, too."""
    path, out = write_jsonl(tmp_path / "c.jsonl", DOCS), tmp_path / "out"
    options: dict[str, Any] = {"layout": layout, "keep_shards": True, "shard_tokens": 300}
    assert prepare_some(path, out, 1000 if is_done else 3, **options) == is_done
    if layout == "nanogpt" and is_done:
        (out / "train.bin").unlink()
    with pytest.raises(InputError, match="make it: ") as caught:
        open_documents(out)
    hint = caught.value.hint
    del caught  # its frames hold maps of the files
    assert commands.main(hint.split("fineweb_stream ")[1].split()) == 0
    assert len(open_documents(out)) == np.sum(np.asarray(open_tokens(out)) == EOT_ID) and len(find_paths(out)) > 1


CHANGED = {
    "grown": [1, 2, EOT_ID, 3, 4, EOT_ID, 5, EOT_ID],
    "another": [1, 2, 3, EOT_ID, 4, EOT_ID],
    "shorter": [1, 2, EOT_ID],
    "more ends": [1, EOT_ID, EOT_ID, 3, 4, EOT_ID],
}


@pytest.mark.parametrize("ids", CHANGED.values(), ids=CHANGED)
def test_an_index_of_another_file_is_refused(
    ids: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that has changed is noticed, and the command in the message makes its index again."""
    path = tmp_path / "train.bin"
    np.array([1, 2, EOT_ID, 3, 4, EOT_ID], "<u2").tofile(path)
    write_index(path)
    os.utime(index_path(path), (2**31, 2**31))  # its time tells nothing
    np.array(ids, "<u2").tofile(path)
    with pytest.raises(InputError, match=r"train.bin.index: not the index of this train.bin\n  make it: ") as caught:
        open_documents(tmp_path)
    hint = caught.value.hint
    del caught  # its frames hold maps of the files
    assert commands.main(hint.split("fineweb_stream ")[1].split()) == 0
    assert capsys.readouterr().out == f"{index_path(path)}: {counted(ids.count(EOT_ID), 'document')}\n"
    assert sum(map(len, open_documents(tmp_path))) == len(ids)


def test_what_is_missing_cut_or_foreign(tmp_path: Path) -> None:
    """No index, a part of one, or a user's file with its name is an error each; the user's file stays."""
    path = tmp_path / "val.bin"
    np.array([1, EOT_ID] * 9, "<u2").tofile(path)
    with pytest.raises(InputError, match=r"val.bin.index: no such file\n  make it: python -m fineweb_stream index "):
        open_documents(path)
    write_index(path)
    for data in (index_path(path).read_bytes()[:-3], b"my notes about documents", b"12345678", bytes(16)):
        index_path(path).write_bytes(data)
        for use in (write_index, open_documents):
            with pytest.raises(InputError, match="not a whole index of documents\n  move it away, then make it: "):
                use(path)
        assert index_path(path).read_bytes() == data


def test_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--index works during a run, on a finished one, and after more tokens; without it, an old index is refused."""
    path, out = write_jsonl(tmp_path / "c.jsonl", DOCS), tmp_path / "out"
    command = [str(path), "--out", str(out), "--engine", "tiktoken"]
    assert cli.main([*command, "--max-tokens", "3000"]) == 0
    assert not index_path(out / "train.bin").exists()
    assert cli.main([*command, "--max-tokens", "3000", "--index"]) == 0
    assert "already done" in (said := capsys.readouterr().out) and re.search(r"train\.bin\.index: \d+ documents", said)
    assert read_index(out / "train.bin") == places(out / "train.bin")
    assert cli.main([*command, "--max-tokens", "5000"]) == 0
    with pytest.raises(InputError, match=r"train\.bin\.index: not the index of this train\.bin\n  make it: python"):
        open_documents(out)
    assert cli.main([*command, "--max-tokens", "5000", "--index"]) == 0
    assert read_index(out / "train.bin") == places(out / "train.bin")
    assert not list(out.glob("*.part"))


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "llmc-fineweb"])
@pytest.mark.parametrize("kind", ["own", "notes", "of another file"])
def test_an_index_goes_with_its_file(kind: str, layout: str, tmp_path: Path) -> None:
    """--overwrite deletes the indexes of the files that it deletes; any other file of such a name stays."""
    path, out = write_jsonl(tmp_path / "c.jsonl", DOCS), tmp_path / "out"
    options: dict[str, Any] = {"engine": "tiktoken", "quiet": True, "layout": layout, "val_ratio": 0.2}
    prepare(path, out, shard_tokens=3000, index=True, **options)
    assert len([*out.rglob("*.index")]) > 1 + (layout != "nanogpt")
    val = index_path(out / LAYOUTS[layout].val_name)
    others = {"notes": b"my notes", "of another file": np.array([3, 7], END_DTYPE).tobytes()}
    data = others.get(kind, val.read_bytes())
    val.write_bytes(data)
    prepare(path, out, shard_tokens=5000, overwrite=True, **options)
    assert [*out.rglob("*.index")] == ([] if kind == "own" else [val])
    assert kind == "own" or val.read_bytes() == data
    assert (out / "index").exists() == (kind != "own" and layout == "npy")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_verify_checks_an_index(layout: str, tmp_path: Path) -> None:
    """--verify sees whatever is changed in an index, and with what its message says the index is as it was."""
    path, out = write_jsonl(tmp_path / "c.jsonl", DOCS), tmp_path / "out"
    prepare(path, out, shard_tokens=3000, index=True, engine="tiktoken", quiet=True, layout=layout, val_ratio=0.2)
    verify(out)
    for index in out.rglob("*.index"):
        data = index.read_bytes()
        flipped = (data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :] for at in range(len(data)))
        for wrong in (
            *itertools.islice(flipped, 0, None, 61),
            data[:-8],
            data[:-1],
            data + data[-8:],
            b"my notes",
            b"",
        ):
            index.write_bytes(wrong)
            with pytest.raises(
                InputError, match=r": not the index of this .*\n  move it away, then make it: "
            ) as caught:
                verify(out)
        index.rename(tmp_path / "away")
        assert commands.main(caught.value.hint.split("fineweb_stream ")[1].split()) == 0
        assert index.read_bytes() == data
    verify(out)


def test_half_a_download_stays(tmp_path: Path) -> None:
    """A user's file of the name that browsers give to half of a download is not what anything is written under."""
    out = tmp_path / "out"
    prepare(write_jsonl(tmp_path / "c.jsonl", DOCS), out, quiet=True, engine="tiktoken")
    write_tiktoken_cache(tmp_path / "cache")
    calls: dict[Path, list[str]] = {
        index_path(out / "train.bin"): ["index", str(out)],
        next((tmp_path / "cache").iterdir()): ["--tiktoken-cache", str(tmp_path / "cache")],
    }
    with contextlib.suppress(ImportError):
        import matplotlib as _  # noqa: F401

        calls[tmp_path / "report.png"] = ["inspect", str(out), "--plot", str(tmp_path / "report.png")]
    for path, command in calls.items():
        path.unlink(missing_ok=True)
        part = path.with_name(f"{path.name}.part")
        part.write_text("mine")
        assert cli.main(command) == 0
        assert path.exists() and part.read_text() == "mine", path
        assert len([*path.parent.glob("*.part")]) == 1


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of 1 GB is indexed in pieces: memory grows by a few MB."""
    path = tmp_path / "train.bin"
    with path.open("wb") as file:
        file.truncate(1 << 30)
        file.seek(2 * 123_456_789)
        file.write(np.array([EOT_ID], "<u2").tobytes())
    before, peak = psutil.Process().memory_info().rss, 0
    pieces = documents._iter_ends

    def watched(*arguments: Any) -> Any:
        nonlocal peak
        for ends in pieces(*arguments):
            peak = max(peak, psutil.Process().memory_info().rss)
            yield ends

    monkeypatch.setattr(documents, "_iter_ends", watched)
    assert write_index(path) == 1
    assert read_index(path) == [123_456_790]
    assert peak - before < 32 << 20


def test_what_is_no_file_of_ids_gets_no_index(tmp_path: Path) -> None:
    """An id that the tokenizer does not have is named, as by inspect and decode, and nothing is written."""
    (tmp_path / "odd.bin").write_bytes(b"\x01\x00\xff\xff")
    with pytest.raises(InputError, match=r"odd\.bin, token 1 \(byte 2\): id 65535"):
        write_index(tmp_path / "odd.bin")
    assert not (tmp_path / "odd.bin.index").exists()
