"""`estimate()`: what a run would make and take, before it; the run itself is the oracle."""

from __future__ import annotations

import gzip
import inspect
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fineweb_stream
from fineweb_stream import Estimate, InputError, estimate, iter_ids, prepare
from fineweb_stream.output import files
from fineweb_stream.pipeline import samples
from fineweb_stream.pipeline.job import find_inputs, make_sources
from fineweb_stream.pipeline.settings import Settings
from fineweb_stream.support.model import ReadOptions

from .helpers import prepare_in_blocks, write_jsonl, write_parquet

DOCS = [f"Document number {i} of some, " + "with a few words in it. " * (1 + i * 7 % 23) for i in range(4000)]
NOT_FOR_IT = {"index", "dry_run", "cluster", "executor", "quiet"}
"""Parameters that change neither the result nor its cost."""


def write(kind: str, folder: Path) -> tuple[Path, dict[str, str]]:
    if kind == "parquet":
        pytest.importorskip("pyarrow")
        return write_parquet(folder / "c.parquet", DOCS), {}
    if kind == "jsonl":
        return write_jsonl(folder / "c.jsonl", DOCS), {}
    (folder / "c.txt").write_text("\n\n".join(DOCS))
    return folder / "c.txt", {"separator": "\n\n"} if kind == "separated" else {}


def test_its_parameters_are_those_of_prepare() -> None:
    """Each parameter of `prepare()` that changes the files, and no other, with the same default."""
    wanted = inspect.signature(prepare).parameters
    assert list(inspect.signature(estimate).parameters.values()) == [
        parameter for name, parameter in wanted.items() if name not in NOT_FOR_IT
    ]


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "separated", "text"])
@pytest.mark.parametrize(
    "options",
    [{}, {"layout": "llmc"}, {"max_tokens": 20_000, "val_ratio": 0.1}, {"val_tokens": 9000, "layout": "llmc"}],
    ids=str,
)
def test_the_run_comes_out_as_estimated(kind: str, options: dict, tmp_path: Path, capsys, monkeypatch) -> None:
    """Tokens, documents and the disk that the files take, within 10%; the estimate writes and prints nothing."""
    path, more = write(kind, tmp_path)
    options = options | more | {"engine": "tiktoken", "workers": 2}
    found = estimate(path, tmp_path / "out", **options)
    assert capsys.readouterr() == ("", "")
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(samples, "sample", lambda *args: None)  # the run need not estimate again
    block_bytes = 2000 if "max_tokens" in options else 100_000  # --max-tokens ends the run with a block
    result = prepare_in_blocks(block_bytes, path, tmp_path / "out", **options)
    assert found.train_tokens == pytest.approx(result.train_tokens, rel=0.1)
    if kind == "text" or "val_tokens" in options:  # a share of the documents is drawn
        assert found.val_tokens == pytest.approx(result.val_tokens, rel=0.1, abs=100)
    n_documents = result.train_documents + result.val_documents
    assert found.documents == (pytest.approx(n_documents, rel=0.1) if n_documents else None)
    written = sum(each.stat().st_size for each in (tmp_path / "out").iterdir() if each.suffix == ".bin")
    assert found.disk_bytes == pytest.approx(written, rel=0.1)
    assert (found.input_bytes, found.engine, found.workers) == (path.stat().st_size, "tiktoken", 2)
    assert found.seconds and found.seconds > 0 and not found.network_bytes and not found.is_rough
    assert found.text_bytes and found.memory_bytes > 0 and found.spread is not None


@pytest.mark.parametrize("kind", ["jsonl", "separated", "text"])
def test_a_short_input_is_sampled_once(kind: str, tmp_path: Path) -> None:
    """No byte of a short input is in two samples, and the estimate is what comes out."""
    path, options = write(kind, tmp_path)
    blocks = make_sources(
        find_inputs([str(path)]), ReadOptions(**{name: value.encode() for name, value in options.items()})
    )[0].sample(64)
    ends = [0, *(block.stop for block in blocks)]
    assert ends == [*(block.start for block in blocks), path.stat().st_size]
    found = estimate(path, tmp_path / "out", **options)
    result = prepare(path, tmp_path / "out", quiet=True, **options)
    assert found.train_tokens + found.val_tokens == pytest.approx(result.train_tokens + result.val_tokens, rel=0.0001)


def corpora(folder: Path) -> Iterator[list[Path]]:
    """Corpora of which samples tell little: sorted by length, of two kinds, of few or of very long documents."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    chance = random.Random(3)
    words = ["a", "the", "of", "quiet", "river", "stone", "house", "philosophical", "considerations", "1234", "9876"]
    words += ["über", "größe"]

    def prose(n: int) -> str:
        return " ".join(chance.choices(words, k=n))

    def code(n: int) -> str:
        return "".join(f"  x_{chance.randrange(9999)}[{i % 99}] += {{{chance.random()}}};\n" for i in range(n))

    def parquet(name: str, documents: list[str], rows: int) -> Path:
        pq.write_table(pa.table({"text": documents}), folder / name, row_group_size=rows)
        return folder / name

    docs = [prose(int(chance.lognormvariate(4, 1.3)) + 1) for _ in range(3000)]
    by_length = sorted(docs, key=len)
    two = [prose(100) for _ in range(1500)], [code(15) for _ in range(1500)]
    few = [*(prose(20_000) for _ in range(9)), code(8_000)]
    yield [parquet("even.parquet", docs, 500)]
    yield [parquet("sorted.parquet", by_length, 500)]
    yield [parquet("one.parquet", by_length, 3000)]
    yield [parquet("groups.parquet", [d for i in range(0, 3000, 300) for d in sorted(docs[i : i + 300], key=len)], 300)]
    yield [parquet("kinds.parquet", two[0] + two[1], 3000)]
    yield [parquet("halves.parquet", [d for i in range(0, 1500, 150) for kind in two for d in kind[i : i + 150]], 300)]
    yield [parquet("few.parquet", few, 10)]
    yield [write_jsonl(folder / "few.jsonl", few)]
    yield [write_jsonl(folder / "sorted.jsonl", by_length[::-1])]
    yield [write_jsonl(folder / "prose.jsonl", two[0]), parquet("code.parquet", two[1][:300], 100)]
    yield [write_jsonl(folder / "long.jsonl", [code(25_000), *docs])]
    (folder / "c.txt").write_text("\n".join(two[0] + two[1]))
    yield [folder / "c.txt"]


def test_the_interval_has_what_comes_out(tmp_path: Path) -> None:
    """The number of tokens is within the estimate's own ± for all but one of the odd corpora."""
    misses = []
    for paths in corpora(tmp_path):
        found = estimate(paths, tmp_path / "out", engine="auto")
        n_tokens = sum(map(len, iter_ids(paths)))
        assert found.train_tokens and found.val_tokens and found.spread is not None
        error = (found.train_tokens + found.val_tokens) / n_tokens - 1
        misses += [(paths, error, found.spread)] if abs(error) > found.spread + 1 / n_tokens else []
    assert len(misses) <= 1, misses


def test_the_start_counts(tmp_path: Path) -> None:
    """A small file takes the time of the start, not none."""
    path = write_jsonl(tmp_path / "c.jsonl", DOCS[:100])
    assert 0.5 < estimate(path, tmp_path / "out", engine="tiktoken").seconds < 5


def test_several_files_of_which_some_are_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not sampled counts by its size."""
    monkeypatch.setattr("fineweb_stream.pipeline.samples.N_SAMPLES", 2)
    paths = [write_jsonl(tmp_path / f"{i}.jsonl", DOCS[i::5]) for i in range(5)]
    found = estimate(paths, tmp_path / "out", engine="tiktoken")
    assert found.documents == pytest.approx(len(DOCS), rel=0.1)


def test_compressed_files_are_estimated_roughly(tmp_path: Path) -> None:
    """Of compressed files only the beginnings are known, so the estimate is rough."""
    path = write_jsonl(tmp_path / "c.jsonl", DOCS)
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    found = estimate(tmp_path / "c.jsonl.gz", tmp_path / "out", engine="tiktoken")
    assert found.is_rough and found.documents == pytest.approx(len(DOCS), rel=0.2)


@pytest.mark.parametrize("share", [0.001, 0.9])
def test_parquet_that_repeats_is_estimated_roughly(share: float, tmp_path: Path, capsys) -> None:
    """A dictionary's mean value may be far from what the rows hold: the estimate is called rough."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    short, long = ([f"{k} " + "and a few words more " * n for k in range(40)] for n in (1, 400))
    chance = random.Random(3)
    documents = [*short, *(chance.choice(long if chance.random() < share else short) for _ in range(6000))]
    pq.write_table(pa.table({"text": documents}), tmp_path / "c.parquet", row_group_size=2000)
    assert estimate(tmp_path / "c.parquet", tmp_path / "out").is_rough
    prepare(tmp_path / "c.parquet", tmp_path / "out", dry_run=True)
    assert " (roughly), " in capsys.readouterr().out
    pq.write_table(pa.table({"text": documents[:40]}), tmp_path / "d.parquet")
    assert not estimate(tmp_path / "d.parquet", tmp_path / "out").is_rough


def test_a_compressed_file_that_is_cut(tmp_path: Path, capsys) -> None:
    """A dry run refuses a truncated file as the run does, which first prints what precedes the cut."""
    path = write_jsonl(tmp_path / "c.jsonl", DOCS)
    packed = gzip.compress(path.read_bytes())
    (tmp_path / "c.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    for dry_run in (True, False):
        with pytest.raises(InputError, match="is cut off near byte"):
            prepare(tmp_path / "c.jsonl.gz", tmp_path / "out", dry_run=dry_run, engine="tiktoken")
        said = capsys.readouterr().out
        assert "about 0" not in said and "add text" not in said and ("tokens: about" in said) != dry_run


@pytest.mark.parametrize("is_alone", [True, False])
def test_of_a_pipe_nothing_is_known(is_alone: bool, tmp_path: Path) -> None:
    """What cannot be sampled is None, not 0, nor what files beside it have: nothing is refused for being too little."""
    (tmp_path / "c.txt").write_text("Some text of a file.\n" * 50)
    names = ["-"] if is_alone else [str(tmp_path / "c.txt"), "-"]
    reader, writer = os.pipe()
    os.write(writer, b"Some text that comes by itself.\n")
    os.close(writer)
    options = f"{names}, {str(tmp_path / 'out')!r}, format='text', fit='64x1024', val_ratio=0.3"
    code = f"import fineweb_stream; print(fineweb_stream.estimate({options}))"
    done = subprocess.run([sys.executable, "-c", code], stdin=reader, capture_output=True, text=True, timeout=60)
    os.close(reader)
    assert "train_tokens=None, val_tokens=None, documents=None" in done.stdout, done.stderr
    assert "seconds=None" in done.stdout and "disk_bytes=None" in done.stdout


@pytest.mark.parametrize("max_tokens", [None, 5000])
def test_of_a_finished_run_it_is_what_was_made(max_tokens: int | None, tmp_path: Path, capsys) -> None:
    """A dry run in a finished folder says that it is done; only what is still to do is estimated."""
    path, out = write_jsonl(tmp_path / "c.jsonl", DOCS), tmp_path / "out"
    options = {"engine": "tiktoken", "max_tokens": max_tokens}
    result = prepare(path, out, quiet=True, **options)
    before = {each.name: each.read_bytes() for each in out.iterdir()}
    dry = prepare(path, out, dry_run=True, **options)
    said = capsys.readouterr().out
    assert (dry.train_tokens, dry.val_tokens) == (result.train_tokens, result.val_tokens)
    assert said.startswith("already done: the same command has nothing to do; --overwrite starts over\n")
    assert f"{out / 'train.bin'}: {result.train_tokens:,} tokens" in said and "resuming" not in said
    assert estimate(path, out, **options).disk_bytes == 0
    prepare(path, out, dry_run=True, overwrite=True, **options)
    assert "tokens: about" in (said := capsys.readouterr().out) and "already done" not in said
    if max_tokens:
        prepare(path, out, dry_run=True, engine="tiktoken")
        assert "tokens: about" in (said := capsys.readouterr().out) and "already done" not in said
        assert "resuming" not in said, "the limit was in the first block, which is done again"
    assert {each.name: each.read_bytes() for each in out.iterdir()} == before


def test_a_disk_too_small_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The estimate has the numbers; the dry run and the run refuse."""
    monkeypatch.setattr(files, "free_bytes", lambda folder: 1000)
    path = write_jsonl(tmp_path / "c.jsonl", DOCS)
    found = estimate(path, tmp_path / "out", engine="tiktoken")
    assert found.disk_bytes and found.disk_bytes > found.disk_free_bytes == 1000
    for dry_run in (True, False):
        with pytest.raises(fineweb_stream.DiskError, match=r"will be needed there at the peak, 1\.0 kB are free"):
            prepare(path, tmp_path / "out", engine="tiktoken", dry_run=dry_run, quiet=True)


def test_disk_for_what_an_earlier_version_wrote_in_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a run is extended with any `shard_tokens`, which no longer matter: nor do they for the disk it needs."""
    path, out = write_jsonl(tmp_path / "c.jsonl", DOCS), tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(Settings, "has_shards", True)
        prepare_in_blocks(2000, path, out, engine="tiktoken", shard_tokens=1000, max_tokens=6000)
    prepare(path, out, quiet=True, engine="tiktoken", shard_tokens=10**15)
    prepare(path, tmp_path / "expected", quiet=True, engine="tiktoken")
    assert (out / "train.bin").read_bytes() == (tmp_path / "expected" / "train.bin").read_bytes()


def test_row_groups_of_one_short_row(tmp_path: Path) -> None:
    """Their footer announces much more than they hold, as each has statistics: they are sampled all the same."""
    pytest.importorskip("pyarrow")
    docs = [f"Document {i} is " + "rather " * 40 for i in range(48)]
    path = write_parquet(tmp_path / "c.parquet", docs, row_group_size=1)
    found = estimate(path, tmp_path / "out")
    assert found.train_tokens and found.documents == 48


def test_what_prepare_refuses_is_refused(tmp_path: Path) -> None:
    """A setting or a record that stops the run stops the estimate."""
    path = write_jsonl(tmp_path / "c.jsonl", [*DOCS, "x"])
    with pytest.raises(InputError, match="--val-tokens 99,000,000"):
        estimate(path, tmp_path / "out", val_tokens=99_000_000)
    with path.open("a") as file:
        file.write("no object\n" * 3000)
    with pytest.raises(InputError, match=r"not JSON .*no object"):
        estimate(path, tmp_path / "out")
    assert isinstance(estimate(path, tmp_path / "out", skip_bad=True), Estimate)


def test_many_tiny_texts(tmp_path: Path) -> None:
    """The end-of-text ids between texts count, too."""
    (tmp_path / "in").mkdir()
    for i in range(300):
        (tmp_path / "in" / f"{i}.txt").write_text(f"tiny {i}" if i % 3 else "")
    found = estimate(tmp_path / "in", tmp_path / "out", val_ratio=0.1)
    made = prepare(tmp_path / "in", tmp_path / "out", val_ratio=0.1, quiet=True)
    assert found.train_tokens and found.val_tokens
    assert abs(found.train_tokens + found.val_tokens - made.train_tokens - made.val_tokens) < 30


def test_a_mistyped_size_of_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ten thousands of files are not what was meant: said before the run, with their number."""
    path = write_jsonl(tmp_path / "c.jsonl", ["some words and more"] * 4000)
    estimate(path, tmp_path / "out", shard_tokens=1000, keep_shards=True)
    prepare(path, tmp_path / "out", shard_tokens=1000, keep_shards=True, dry_run=True)
    assert "makes about" not in capsys.readouterr().out
    prepare(path, tmp_path / "out", shard_tokens=1, dry_run=True)
    assert "warning: --shard" not in capsys.readouterr().out
    prepare(path, tmp_path / "out", shard_tokens=1, keep_shards=True, dry_run=True)
    assert re.search(r"warning: --shard-tokens 1 makes about \d\d,\d{3} files\n", capsys.readouterr().out)


def test_the_advised_val_is_long_enough(tmp_path: Path) -> None:
    """Where --val-tokens is more than there is, what is advised instead fits --for, too."""
    path = write_jsonl(tmp_path / "c.jsonl", ["some words and more"] * 4000)
    with pytest.raises(InputError, match="nothing would be left to train on") as caught:
        estimate(path, tmp_path / "out", val_tokens=10**9, fit="8x512x1")
    n_tokens = int(caught.value.hint.removeprefix("try --val-tokens "))
    assert estimate(path, tmp_path / "out", val_tokens=n_tokens, fit="8x512x1").val_tokens == n_tokens
