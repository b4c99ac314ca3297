"""`--layout llmc --names fineweb`: llm.c's layout under the names that its scripts and modded-nanogpt look for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fineweb_stream import cli, open_tokens, prepare
from fineweb_stream.inputs.discover import find_inputs
from fineweb_stream.output.layouts import LAYOUTS
from fineweb_stream.output.manifest import read_record
from fineweb_stream.output.own import is_output
from fineweb_stream.output.verify import verify
from fineweb_stream.support.errors import InputError
from fineweb_stream.token_files.summary import summarize

from .consumers.readers import READERS
from .helpers import prepare_in_blocks, write_jsonl
from .test_layouts import files
from .test_resume import DOCS, prepare_some

OPTIONS: dict[str, Any] = {"shard_tokens": 1500, "engine": "tiktoken", "val_ratio": 0.1, "layout": "llmc"}


@pytest.fixture
def corpus_path(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "c.jsonl", DOCS)


@pytest.fixture
def expected(corpus_path: Path, tmp_path: Path) -> dict[str, bytes]:
    """The files of a run with our names, under theirs: val is number 0, and shards follow."""
    prepare(corpus_path, tmp_path / "own", quiet=True, **OPTIONS)
    own = files(tmp_path / "own")
    shards = [own[name] for name in sorted(own) if name.startswith("train")]
    assert len(shards) > 3
    theirs = {f"fineweb_train_{number:06d}.bin": data for number, data in enumerate(shards, 1)}
    return theirs | {"fineweb_val_000000.bin": own["val.bin"]}


@pytest.mark.parametrize("n_blocks", [-1, 1, 8, 16])
def test_the_same_files(n_blocks: int, corpus_path: Path, tmp_path: Path, expected: dict[str, bytes]) -> None:
    """Interrupted or not, the bytes are the same; both readers' patterns find the files, and so do ours."""
    out = tmp_path / "out"
    assert prepare_some(corpus_path, out, n_blocks, names="fineweb", **OPTIONS) == (n_blocks < 0)
    prepare(corpus_path, out, quiet=True, names="fineweb", **OPTIONS)
    assert files(out) == expected
    READERS["llmc-fineweb"](out, 1, 8, 1)
    for split in ("train", "val"):
        assert np.asarray(open_tokens(out, split)).tolist() == np.asarray(open_tokens(tmp_path / "own", split)).tolist()
    assert summarize(out).n_tokens == summarize(tmp_path / "own").n_tokens
    assert [line.partition(":")[0] for line in verify(out)[:-1]] == sorted(str(out / name) for name in expected)


def test_more_tokens(corpus_path: Path, tmp_path: Path, expected: dict[str, bytes]) -> None:
    """A run that --max-tokens ended continues under the same names."""
    for max_tokens in (1, 1500, 1501, 4000):
        prepare_in_blocks(500, corpus_path, tmp_path / "out", names="fineweb", max_tokens=max_tokens, **OPTIONS)
        assert len(open_tokens(tmp_path / "out")) == max_tokens
        verify(tmp_path / "out")
    prepare_in_blocks(500, corpus_path, tmp_path / "out", names="fineweb", **OPTIONS)
    assert files(tmp_path / "out") == expected


def test_what_is_the_runs_own(corpus_path: Path, tmp_path: Path) -> None:
    """Files with those names but no record stay; other names are another run, and --overwrite leaves none of them."""
    out = tmp_path / "out"
    out.mkdir()
    for name in ("fineweb_val_000000.bin", "fineweb_train_000001.bin", "fineweb_train_1234567.bin"):
        (out / name).write_bytes(b"of llm.c's own script")
        for overwrite in (False, True):
            with pytest.raises(InputError, match=f"{name} already exists, and is not from this run"):
                prepare(corpus_path, out, quiet=True, names="fineweb", overwrite=overwrite, **OPTIONS)
        (out / name).unlink()
    for name in (
        "fineweb_train_000000.bin",
        "fineweb_train_0000001.bin",
        "fineweb_val_000001.bin",
        "fineweb_train_.bin",
    ):
        assert not is_output(name)
        assert all(layout.shard_number(name) is None for layout in LAYOUTS.values())
        (out / name).write_bytes(b"not ours")
    prepare(corpus_path, out, quiet=True, names="fineweb", **OPTIONS)
    with pytest.raises(InputError, match="--layout was 'llmc-fineweb' and is 'llmc'"):
        prepare(corpus_path, out, quiet=True, **OPTIONS)
    prepare(corpus_path, out, quiet=True, overwrite=True, **OPTIONS)
    assert {path.name for path in out.glob("fineweb_*") if path.read_bytes() != b"not ours"} == set()
    assert read_record(out).layout is LAYOUTS["llmc"]


def test_this_program_is_no_input(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What a shell's * finds beside the corpus: the script and the package; other files of such names are read."""
    root = Path(__file__).parents[1]
    other = tmp_path / "prepare.py"
    other.write_text("print('words')\n" * 9)
    names = [str(root / "prepare.py"), str(root / "fineweb_stream"), str(other), f"{root}/[Lp]*"]
    found = [Path(input.path) for input in find_inputs(names)]
    assert found == [other, root / "LICENSE", root / "pyproject.toml"]
    assert "not read, as it is this program's: prepare.py, fineweb_stream" in caplog.text
    with pytest.raises(InputError, match="this program's own"):
        find_inputs(names[:2])


def test_the_option(corpus_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Messages name the files; a layout without such names is refused, and one that has them is named."""
    out = tmp_path / "out"
    command = [str(corpus_path), "--out", str(out), "--shard-tokens", "5000", "--for", "1x8", "--names", "fineweb"]
    command += ["--val-ratio", "0.1"]
    assert cli.main([*command, "--layout", "llmc"]) == 0
    said = capsys.readouterr().out
    assert f"{out / 'fineweb_train_000001.bin'} to fineweb_train_000002.bin: " in said
    assert f"-i '{out}/fineweb_train_*.bin' -j {out}/fineweb_val_000000.bin" in said
    assert "modded-nanogpt, if you use it, needs" in said
    assert cli.main([*command[:-4], *command[-2:], "--layout", "llmc-fineweb"]) == 0
    assert "already done" in capsys.readouterr().out
    for layout in ("npy", "nanogpt"):
        assert cli.main([*command, "--layout", layout]) == 2
        assert "has no such names\n  try --layout llmc --names fineweb" in capsys.readouterr().err
    with pytest.raises(InputError, match="names='edu'"):
        prepare(corpus_path, out, layout="llmc", names="edu")
