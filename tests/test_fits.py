"""`--for`: what a trainer's reader would refuse is said before the run and after it; the advice works."""

from __future__ import annotations

import gzip
import random
import re
from pathlib import Path

import pytest

from fineweb_stream import cli
from fineweb_stream.output.layouts import LAYOUTS, Fit
from fineweb_stream.pipeline.fits import check_fit
from fineweb_stream.pipeline.settings import Settings, parse_fit
from fineweb_stream.support.errors import InputError

from .consumers.readers import READERS, Refused
from .helpers import write_jsonl

DOCS = [f"Document number {i} of a corpus, with a few words in it and some more. " * 3 for i in range(600)]


def run(path: Path, out: Path, *options: str) -> int:
    return cli.main([str(path), "--out", str(out), "--engine", "tiktoken", *options])


@pytest.mark.parametrize(
    ("text", "fit"),
    [("64x1024", (64, 1024, 1)), ("64X1024x8", (64, 1024, 8)), ("64×1,024×8", (64, 1024, 8)), (" 1 * 2 ", (1, 2, 1))],
)
def test_batches_are_read_as_people_write_them(text: str, fit: tuple[int, int, int]) -> None:
    """`x`, `×`, `*`, spaces and thousands are understood; what is printed can be typed again."""
    assert parse_fit(text) == fit
    assert parse_fit(str(Fit(*fit))) == fit


@pytest.mark.parametrize("text", ["", "64", "0x1024", "64x1024x0", "64x1024x8x2", "axb", "-1x5"])
def test_what_is_no_batch(text: str) -> None:
    """Anything else is refused with an example."""
    with pytest.raises(InputError, match=r"not a batch\n  write it like 64x1024x8"):
        parse_fit(text)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("excess", [-1, 0])
def test_the_least_is_what_the_reader_takes(layout: str, excess: int, tmp_path: Path) -> None:
    """A file of exactly as many tokens as we say is read by the restated reader; one token less is refused."""
    batch, block, ranks = 3, 7, 2
    least = (block if layout == "nanogpt" else batch * block * ranks) + 1
    settings = Settings(layout=layout, fit=f"{batch}x{block}x{ranks}")
    kind, n = LAYOUTS[layout], least + excess
    train = tmp_path / ("train.bin" if layout == "nanogpt" else kind.shard_name(0))
    for path in (train, tmp_path / kind.val_name):
        path.write_bytes(kind.make_header(n) + bytes(2 * n))
    if excess == 0:
        check_fit(n, n, 0.0, settings, True)
        READERS[layout](tmp_path, batch, block, ranks)
    else:
        with pytest.raises(InputError, match=f"needs {least} or more"):
            check_fit(n, n, 0.0, settings, True)
        with pytest.raises(Refused):
            READERS[layout](tmp_path, batch, block, ranks)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_val_too_short_is_said_and_mended(layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The plan has a line, or with `--for` a refusal, and the end a warning; their advice makes files that fit."""
    path, out = write_jsonl(tmp_path / "c.jsonl", DOCS), tmp_path / "out"
    options = ["--layout", layout, "--for", "4x256x2"]
    assert run(path, out, "--dry-run", *options) == 2
    refused = capsys.readouterr().err
    assert re.search(
        r"val\w*\.\w+ will have about [\d,]+ tokens; [\w.-]+ needs [\d,]+ or more \(--for 4x256x2\)", refused
    )
    assert run(path, out, "--layout", layout) == 0
    said = capsys.readouterr().out
    val = LAYOUTS[layout].val_name
    assert re.search(rf"(note|warning): {val} will have about", said) and f"warning: {val} has " in said
    assert "\ntrain on it, once the files are long enough: " in said
    with pytest.raises(Refused):
        READERS[layout](out, 4, 256, 2)
    advice = re.search(r"--val-tokens \d+", refused)
    assert advice and run(path, out, *options, *advice[0].split(), "--overwrite") == 0
    said = capsys.readouterr().out
    assert f"warning: {val}" not in said and "\ntrain on it: " in said
    READERS[layout](out, 4, 256, 2)


@pytest.mark.parametrize("layout", ["llmc", "npy"])
def test_a_last_shard_too_short_is_said_and_mended(
    layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A last shard too short for another trainer gives a warning; with its --shard-tokens all shards fit."""
    path, out = write_jsonl(tmp_path / "c.jsonl", DOCS), tmp_path / "out"
    options = ["--layout", layout, "--for", "2x256x2", "--val-tokens", "2000", "--max-tokens", "12003"]
    assert run(path, out, *options, "--shard-tokens", "4000", "--for", "1x1") == 0
    assert run(path, out, *options, "--shard-tokens", "4000") == 0
    said = capsys.readouterr().out
    assert "warning: the last shard, train_shard_0003" in said and " has 3 tokens; " in said
    with pytest.raises(Refused):
        READERS[layout](out, 2, 256, 2)
    advice = re.search(r"--shard-tokens \d+", said)
    assert advice and run(path, out, *options, *advice[0].split(), "--overwrite") == 0
    assert "warning: the last" not in capsys.readouterr().out
    READERS[layout](out, 2, 256, 2)


def test_max_tokens_that_are_too_few(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If --max-tokens is too small, a larger one is advised, not more text, and the run continues."""
    path, out = tmp_path / "c.txt", tmp_path / "out"
    path.write_text("\n".join(DOCS))
    assert run(path, out, "--max-tokens", "100", "--val-ratio", "0.3") == 0
    said = capsys.readouterr().out
    assert "train will have about 100 tokens; nanoGPT needs 1,025 or more (--for 12x1024): --max-tokens 1025" in said
    assert "train.bin has 100 tokens; nanoGPT needs 1,025 or more (--for 12x1024): --max-tokens 1025 would do\n" in said
    assert run(path, out, "--max-tokens", "1025", "--val-ratio", "0.3") == 0
    said = capsys.readouterr().out
    assert "train.bin has" not in said and "train will have" not in said


def test_shards_shorter_than_a_step_are_refused() -> None:
    """Such shards are refused with --for, and noted without it."""
    for fit, options in (("8x1024", {}), (None, {})):
        settings = Settings(layout="llmc", shard_tokens=4096, fit=fit, **options)
        if fit:
            with pytest.raises(InputError, match=r"each shard will have 4,096 tokens; .*\n  --shard-tokens 8193"):
                check_fit(10**6, 10**6, 0.0, settings, True)
        else:
            assert "--shard-tokens 4097 would do" in check_fit(10**6, 10**6, 0.0, settings, True)[0]


def test_modded_nanogpt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The plan says what modded-nanogpt needs of llm.c's layout: end-of-text ids, its val, two shards."""
    path, out = tmp_path / "c.txt", tmp_path / "out"
    path.write_text("\n".join(DOCS))
    assert run(path, out, "--layout", "llmc", "--val-ratio", "0.3") == 0
    said = capsys.readouterr().out
    assert "modded-nanogpt, if you use it, needs end-of-text ids" in said
    assert "10,485,760 tokens of val (more text), two shards or more (more text)" in said
    with pytest.raises(Refused, match="val"):
        READERS["modded-nanogpt"](out, 1, 1024, 1)
    [note] = check_fit(3 * 10**7, 10**6, 0.0, Settings(layout="llmc"), True)
    assert "val (--val-tokens 10485760), two shards or more (--shard-tokens 10257120)" in note
    [note] = check_fit(6 * 10**6, 10**6, 0.0, Settings(layout="llmc", shard_tokens=2 * 10**6), True)
    assert note.endswith("10,485,760 tokens of val (more text)")  # and it has its shards
    enough = check_fit(3 * 10**8, 10_485_760, 0.0, Settings(layout="llmc"), True)
    assert enough == []


@pytest.mark.parametrize("name", ["train_fineweb.txt", "train-00000.parquet", "my_val", "eval.json", "trainer.py"])
def test_neighbours_that_build_nanogpt_would_load(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--layout npy beside a name with train or val in it is refused, and the --out that it names works."""
    path = write_jsonl(tmp_path / "c.jsonl", DOCS)
    (tmp_path / name).write_text("x")
    options = ["--layout", "npy", "--val-ratio", "0.3"]
    assert run(path, tmp_path, *options) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path / name}: build-nanogpt's reader takes every file" in said
    out = re.search(r"--out (\S+)", said)
    assert out and run(path, Path(out[1]), *options) == 0
    READERS["npy"](Path(out[1]), 1, 64, 1)


def test_shards_are_as_long_as_their_readers_own() -> None:
    """Shards have 100M tokens for llm.c and build-nanogpt, 500M for nanoGPT, unless --shard-tokens is given."""
    lengths = {layout: Settings(layout=layout).shard_tokens for layout in LAYOUTS}
    assert lengths == {"nanogpt": 500_000_000, "llmc": 100_000_000, "npy": 100_000_000, "llmc-fineweb": 100_000_000}
    assert Settings(layout="llmc", shard_tokens=7).shard_tokens == 7


def test_a_larger_ratio_gives_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If the first document, which is always in val, is more than the share to advise, none is advised."""
    (tmp_path / "few.txt").write_text("hello there my friend\n")
    run(tmp_path / "few.txt", tmp_path / "out", "--dry-run", "--val-ratio", "1e-7")
    assert "--val-ratio" not in caplog.text
    for n_documents, is_advised in ((3, False), (600, True)):
        path = write_jsonl(tmp_path / "c.jsonl", ["some words " * 200] * n_documents)
        caplog.clear()
        run(path, tmp_path / "out", "--dry-run")
        assert ("--val-ratio" in caplog.text) == is_advised


def test_a_guess_refuses_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """How much is in a compressed file is not known: it may hold far more than its beginning lets expect."""
    docs = ["".join(random.Random(i).choices("abcdefghijklmnop ", k=4000)) for i in range(300)]
    path, out = tmp_path / "c.jsonl.gz", tmp_path / "out"
    plain = write_jsonl(tmp_path / "c.jsonl", [*docs, *["the same words " * 300] * 3000])
    path.write_bytes(gzip.compress(plain.read_bytes()))
    options = ("--layout", "npy", "--val-ratio", "0.3", "--for", "64x8192", "--dry-run")
    assert run(path, out, *options) == 0
    assert "will have about" in (said := capsys.readouterr().out) and "needs 524,289 or more" in said
    assert run(path, out, *options, "--shard-tokens", "9") == 2
    assert "each shard will have 9 tokens" in capsys.readouterr().err
    assert run(plain, out, *options, "--for", "64x81920") == 2
