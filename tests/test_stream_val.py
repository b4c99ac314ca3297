"""In a stream (compressed or piped plain text) neither stops nor block sizes move the end of val."""

from __future__ import annotations

import gzip
import io
import itertools
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fineweb_stream import InputError, PrepareError, iter_ids, prepare
from fineweb_stream.inputs import standard_input
from fineweb_stream.output.manifest import read_record
from fineweb_stream.pipeline import run
from fineweb_stream.tokenizer.gpt2 import EOT_ID

from .helpers import outputs, prepare_in_blocks, read_ids, split_at_eot
from .test_resume import prepare_some

pytestmark = pytest.mark.usefixtures("no_estimate")

TEXT = "".join(f"Line {i} has some words, naïve ones, 漢字 and all{'.' * (i % 5)}\n" for i in range(120)).encode()
OPTIONS: dict[str, Any] = {"shard_tokens": 1500, "engine": "tiktoken", "workers": 1}
VALS: tuple[dict[str, Any], ...] = ({"val_ratio": 0.001}, {"val_ratio": 0.3}, {"val_ratio": 0.97}, {"val_tokens": 700})


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A function that puts the text into standard input again."""

    def pipe() -> None:
        standard_input._HEAD.clear()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(TEXT)))

    monkeypatch.setattr(standard_input, "TICK_SECONDS", 0.001)  # each read at the end waits so long
    yield pipe
    standard_input._HEAD.clear()


@pytest.mark.parametrize("val", VALS, ids=str)
@pytest.mark.parametrize("kind", ["gz", "pipe"])
def test_a_stop_anywhere(kind: str, val: dict[str, Any], tmp_path: Path, piped: Any) -> None:
    """A run that stops anywhere and continues with blocks of another size gives the bytes of the plain file."""
    (tmp_path / "c.txt").write_bytes(TEXT)
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(TEXT))
    source = tmp_path / "c.txt.gz" if kind == "gz" else "-"
    prepare_in_blocks(700, tmp_path / "c.txt", tmp_path / "expected", **OPTIONS | val)
    for n_blocks in (1, 2, 5, 9):
        out = tmp_path / f"out{n_blocks}"
        piped()
        assert not prepare_some(source, out, n_blocks, 550, **OPTIONS | val)
        assert read_record(out).state.n_tokens
        piped()
        prepare_in_blocks(400 + 50 * n_blocks, source, out, **OPTIONS | val)
        assert outputs(out) == outputs(tmp_path / "expected"), n_blocks


def test_an_unexpected_error_keeps_its_text(tmp_path: Path, piped: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of standard input, "-", is not replaced in an error's text or traceback, where it is part of words."""
    piped()
    monkeypatch.setattr(run, "encode_block", raise_key_error)
    with pytest.raises(PrepareError, match=r"standard input, bytes .*: KeyError: 'gpt-2'"):
        prepare("-", tmp_path / "out", quiet=True, **OPTIONS)
    assert "KeyError: 'gpt-2'" in (tmp_path / "out" / "prepare.log").read_text()


def raise_key_error(*args: object, **options: object) -> None:
    raise KeyError("gpt-2")


def test_it_comes_once(tmp_path: Path, piped: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read to its end, it is not read again: a second call would find no more than what was kept for detection."""
    piped()
    assert len(list(iter_ids("-"))) == len(list(iter_ids("-"))) == 1  # all of it was kept
    monkeypatch.setattr(standard_input, "_HEAD_BYTES", 1000)
    piped()
    prepare("-", tmp_path / "out", quiet=True, val_tokens=50, **OPTIONS)
    prepare("-", tmp_path / "out", quiet=True, val_tokens=50, **OPTIONS)  # is done
    for again in (lambda: list(iter_ids("-")), lambda: prepare("-", tmp_path / "again", quiet=True, **OPTIONS)):
        with pytest.raises(InputError, match="standard input was read before"):
            again()


def _texts(path: Path) -> list[list[int]]:
    return [ids[:-1] for ids in split_at_eot([*read_ids(path), EOT_ID])]


@pytest.mark.parametrize("names", [("a.txt.gz", "b.txt.gz"), ("a.txt", "b.txt.xz"), ("a.txt.gz", "b.txt")], ids=str)
def test_several_texts(reference, names: tuple[str, str], tmp_path: Path) -> None:
    """A stream has both splits: an end-of-text id comes between the texts in each, wherever the run is stopped."""
    texts = [TEXT.decode(), TEXT.decode().replace("Line", "Row")]
    packers = {".gz": gzip.compress, ".xz": lzma.compress}
    for name, text in zip(names, texts, strict=True):
        (tmp_path / name).write_bytes(packers.get(Path(name).suffix, bytes)(text.encode()))
    inputs = [tmp_path / name for name in names]
    prepare_in_blocks(700, inputs, tmp_path / "expected", **OPTIONS, val_ratio=0.3)
    val, train = (
        [reference.decode(ids) for ids in _texts(tmp_path / "expected" / name)] for name in ("val.bin", "train.bin")
    )
    assert len(train) == 2 and [a + b for a, b in itertools.zip_longest(val, train, fillvalue="")] == texts
    n_blocks = 0
    while not prepare_some(inputs, tmp_path / f"out{n_blocks}", n_blocks + 1, 550, **OPTIONS, val_ratio=0.3):
        prepare_in_blocks(450, inputs, tmp_path / f"out{n_blocks}", **OPTIONS, val_ratio=0.3)
        assert outputs(tmp_path / f"out{n_blocks}") == outputs(tmp_path / "expected"), n_blocks
        n_blocks += 1
    assert n_blocks > 20


def test_every_val_end(tmp_path: Path) -> None:
    """Wherever val ends, also a byte or two behind a block's end: a compressed text splits as the plain one does."""
    text = TEXT[:1500]
    (tmp_path / "c.txt").write_bytes(text)
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(text))
    for val_bytes in range(184, 208):
        for name in ("c.txt", "c.txt.gz"):
            ratio = (val_bytes - 0.5) / len(text)
            out = tmp_path / f"{name}{val_bytes}"
            prepare_in_blocks(100, tmp_path / name, out, **OPTIONS, val_ratio=ratio)
        assert outputs(tmp_path / f"c.txt.gz{val_bytes}") == outputs(tmp_path / f"c.txt{val_bytes}"), val_bytes


def test_a_finished_pipe_is_not_read_again(
    tmp_path: Path, piped: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its beginning is compared and, where there is more, the run says so: what comes after it may be new."""
    for head_bytes, is_said in ((1 << 20, False), (1000, True)):
        monkeypatch.setattr(standard_input, "_HEAD_BYTES", head_bytes)
        caplog.clear()
        for n_runs in range(2):
            piped()
            assert prepare_some("-", tmp_path / str(head_bytes), -1, **OPTIONS)
            said = "standard input begins as before (its first 1,000 bytes were compared)"
            assert (said in caplog.text) == (is_said and n_runs == 1)
            assert "only the first MiB" not in caplog.text
