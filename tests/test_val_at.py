"""`--val-at end`: validation is the last share of a plain text, cut where a split at the start would be cut."""

from __future__ import annotations

import gzip
import math
import tempfile
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from fineweb_stream import cli, prepare
from fineweb_stream.support.errors import InputError

from .helpers import outputs, prepare_in_blocks, read_ids, write_jsonl
from .strategies import texts
from .test_resume import OPTIONS, prepare_some

TEXT = "".join(f"Line {i} has some words, naïve ones, 漢字 and all{'.' * (i % 5)}\n" for i in range(120))
END: dict[str, Any] = OPTIONS | {"val_at": "end", "val_ratio": 0.3}


@settings(max_examples=60)
@given(
    text=texts.filter(lambda t: len(t) > 40 and t.strip()),
    block_bytes=st.integers(1, 100),
    ratio=st.sampled_from([0.0005, 0.1, 0.5, 0.9]),
)
def test_it_is_the_mirror_image(reference: tiktoken.Encoding, text: str, block_bytes: int, ratio: float) -> None:
    """Train and then val are tiktoken's ids of the file; the cut is that of a val at the start of as many bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path, n_bytes = Path(folder, "c.txt"), len(text.encode())
        path.write_bytes(text.encode())
        n_train = n_bytes - math.ceil(ratio * n_bytes)
        options: dict[str, Any] = {"format": "text", "engine": "tiktoken"}
        try:
            prepare_in_blocks(block_bytes, path, Path(folder, "end"), val_at="end", val_ratio=ratio, **options)
            start = (n_train - 0.5) / n_bytes
            prepare_in_blocks(block_bytes + 7, path, Path(folder, "start"), val_ratio=start, **options)
        except InputError as error:
            assert "too little text" in str(error) or "val_ratio=" in str(error)
            return
        train, val = (read_ids(Path(folder, "end", f"{name}.bin")) for name in ("train", "val"))
        expected = path.open(encoding="utf-8").read().removeprefix("\ufeff")
        assert train + val == reference.encode_ordinary(expected)
        assert val == read_ids(Path(folder, "start", "train.bin"))


def write_texts(folder: Path) -> list[Path]:
    paths = [folder / f"{name}.txt" for name in "abc"]
    for number, path in enumerate(paths):
        path.write_text(TEXT[: 3000 + 500 * number], encoding="utf-8", newline="")
    return paths


@pytest.mark.parametrize("ratio", [0.001, 0.3, 0.5, 0.9])
def test_several_files_and_a_stop_anywhere(ratio: float, reference: tiktoken.Encoding, tmp_path: Path) -> None:
    """The share is that of all files together, and may begin in any of them; interrupted runs give the same bytes."""
    paths, options = write_texts(tmp_path), END | {"val_ratio": ratio}
    prepare(paths, tmp_path / "expected", quiet=True, **options)
    ids = [reference.encode_ordinary(path.read_text(encoding="utf-8")) for path in paths]
    found = [read_ids(tmp_path / "expected" / f"{name}.bin") for name in ("train", "val")]
    assert found[0] + found[1] == [*ids[0], 50256, *ids[1], 50256, *ids[2]]
    assert abs(len(found[1]) / sum(map(len, found)) - ratio) < 0.02
    for n_blocks in (1, 3, 5, 7):
        out = tmp_path / f"out{n_blocks}"
        assert not prepare_some(paths, out, n_blocks, 1500, **options)
        prepare_in_blocks(900, paths, out, **options)
        assert outputs(out) == outputs(tmp_path / "expected")


def test_shakespeare(reference: tiktoken.Encoding, tmp_path: Path) -> None:
    """Val is nanoGPT's `data[int(n * 0.9):]` from the next place on where a cut changes no token."""
    path = tmp_path / "input.txt"
    path.write_text(data := TEXT.encode("ascii", "ignore").decode() * 9)
    assert cli.main([str(path), "--out", str(tmp_path), "--val-at", "end", "--val-ratio", "0.1"]) == 0
    val = reference.decode(read_ids(tmp_path / "val.bin"))
    theirs = data[int(len(data) * 0.9) :]
    assert theirs.endswith(val) and len(theirs) - len(val) < 20


@pytest.mark.parametrize(("n_blocks", "is_same"), [(2, True), (8, False), (-1, False)])
def test_one_more_input(n_blocks: int, is_same: bool, tmp_path: Path) -> None:
    """Before val has begun, inputs that were not read yet may change; later, that would change the share: refused."""
    paths = write_texts(tmp_path)
    prepare_some(paths[:2], tmp_path / "out", n_blocks, 900, **END)
    there = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    if is_same:
        prepare(paths, tmp_path / "out", quiet=True, **END)
        prepare(paths, tmp_path / "expected", quiet=True, **END)
        assert outputs(tmp_path / "out") == outputs(tmp_path / "expected")
    else:
        with pytest.raises(InputError, match="the share of the text that is val would change"):
            prepare(paths, tmp_path / "out", quiet=True, **END)
        assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == there


def test_what_has_no_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Documents, streams, and options that count from the start are refused by name, and nothing is written."""
    text, documents = tmp_path / "c.txt", write_jsonl(tmp_path / "c.jsonl", ["one", "two"])
    text.write_text(TEXT, encoding="utf-8")
    (tmp_path / "d.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    for arguments, message in (
        ([documents], f"{documents} holds documents, and --val-at end is for one long text"),
        ([text, "--separator", "x"], f"{text} holds documents"),
        (["--demo"], "holds documents"),
        ([text, tmp_path / "d.txt.gz"], f"{tmp_path / 'd.txt.gz'}: --val-at end needs the length of its text"),
        ([text, "--val-tokens", "9"], "--val-at end and --val-tokens"),
        ([text, "--max-tokens", "9"], "--val-at end and --max-tokens"),
        ([text, "--val", text], "--val and --val-at"),
    ):
        assert cli.main([*map(str, arguments), "--out", str(tmp_path / "out"), "--val-at", "end"]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="val_at='middle': no such place"):
        prepare(text, tmp_path / "out", val_at="middle")


def test_another_place_is_another_run(tmp_path: Path) -> None:
    """A run that began with val at the start is not continued with val at the end."""
    (tmp_path / "c.txt").write_text(TEXT, encoding="utf-8")
    assert not prepare_some(tmp_path / "c.txt", tmp_path / "out", 2, 500)
    with pytest.raises(InputError, match="--val-at was 'start' and is 'end'"):
        prepare(tmp_path / "c.txt", tmp_path / "out", quiet=True, val_at="end", **OPTIONS)
