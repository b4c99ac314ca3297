"""--max-tokens stops exactly there, and a larger number goes on from there."""

from __future__ import annotations

import pytest

from fineweb_stream import prepare
from fineweb_stream.output import files
from fineweb_stream.output.changes import CHANGES_NAME
from fineweb_stream.output.manifest import read_record
from fineweb_stream.output.verify import verify
from fineweb_stream.support.errors import DiskError, InputError

from .helpers import outputs, read_ids, write_jsonl
from .test_contracts import prepare_in_blocks
from .test_resume import OPTIONS, prepare_some

DOCS = [f"Document {i} says hello {'again ' * (i % 9)}." for i in range(900)]


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("kind", ["jsonl", "text"])
@pytest.mark.parametrize("steps", [[1], [777, 778], [999, 1000, 1001], [100, 2500, 2501, 5000], [10**9]])
def test_steps_end_where_one_run_does(tmp_path, kind: str, keep: bool, steps: list[int]) -> None:
    """After any number of larger and larger limits, the bytes are those of a run without one."""
    path, options = tmp_path / "c.txt", {"shard_tokens": 1000, "keep_shards": keep, "val_ratio": 0.02}
    path.write_text("\n".join(DOCS))
    if kind == "jsonl":
        path = write_jsonl(tmp_path / "c.jsonl", DOCS)
    prepare_in_blocks(500, path, tmp_path / "whole", **options)
    whole = read_ids(tmp_path / "whole" / "train.bin")
    for step in steps:
        result = prepare_in_blocks(500, path, tmp_path / "out", max_tokens=step, **options)
        n = min(step, len(whole))
        assert result.train_tokens == n
        assert read_ids(tmp_path / "out" / "train.bin") == whole[:n]
        assert len(list((tmp_path / "out").glob("train_shard_*"))) == (-(-n // 1000) if keep else 0)
        verify(tmp_path / "out")
        assert not list((tmp_path / "out").glob("*.part"))
    prepare_in_blocks(500, path, tmp_path / "out", **options)
    assert outputs(tmp_path / "out") == outputs(tmp_path / "whole")


def test_the_same_limit_is_done(tmp_path, capsys) -> None:
    """The same number finds the work done."""
    path = write_jsonl(tmp_path / "c.jsonl", DOCS)
    prepare(path, tmp_path, max_tokens=1000, quiet=True)
    made = outputs(tmp_path)
    prepare(path, tmp_path, max_tokens=1000)
    assert "already done" in capsys.readouterr().out
    assert outputs(tmp_path) == made


@pytest.mark.parametrize("is_finished", [False, True])
def test_a_smaller_limit_takes_nothing_away(tmp_path, is_finished: bool) -> None:
    """Where more is there than is asked for, the run refuses and leaves it; --overwrite starts over."""
    path, out = write_jsonl(tmp_path / "c.jsonl", DOCS), tmp_path / "out"
    if is_finished:
        prepare(path, out, max_tokens=5000, **OPTIONS)
    else:
        assert not prepare_some(path, out, 19, block_bytes=500, max_tokens=5000)
    n_tokens = read_record(out).state.train_tokens
    assert n_tokens > 1000
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    with pytest.raises(InputError, match=f"{n_tokens:,} tokens of train are there already, --max-tokens is 1,000"):
        prepare(path, out, max_tokens=1000, quiet=True, **OPTIONS)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    assert prepare(path, out, max_tokens=1000, dry_run=True, quiet=True, **OPTIONS).train_tokens == 1000
    prepare_in_blocks(500, path, out, max_tokens=n_tokens, **OPTIONS)
    whole = read_ids(out / "train.bin")
    assert len(whole) == n_tokens
    assert prepare(path, out, max_tokens=1000, overwrite=True, quiet=True, **OPTIONS).train_tokens == 1000
    assert read_ids(out / "train.bin") == whole[:1000]


def test_bytes_of_a_block_that_was_cut_are_counted(tmp_path) -> None:
    """A run that ends inside a block has read that share of it; one that goes on counts the rest, and nothing twice."""
    path = write_jsonl(tmp_path / "c.jsonl", DOCS)
    direct = prepare(path, tmp_path / "direct", quiet=True)
    whole = read_record(tmp_path / "direct").state
    for n in (1000, 1001, direct.train_tokens // 2):  # one block holds them all
        prepare(path, tmp_path / "out", max_tokens=n, quiet=True)
        state = read_record(tmp_path / "out").state
        for part, all_of_it in ((state.text_bytes, whole.text_bytes), (state.input_bytes, whole.input_bytes)):
            assert part == pytest.approx(all_of_it * n / direct.train_tokens, abs=1)
    prepare(path, tmp_path / "out", quiet=True)
    state = read_record(tmp_path / "out").state
    assert (state.text_bytes, state.input_bytes) == (whole.text_bytes, whole.input_bytes)


def test_exit_is_clean(run_program, tmp_path) -> None:
    """The program leaves with status 0, each time."""
    path = write_jsonl(tmp_path / "c.jsonl", DOCS * 30)
    for i in range(3):
        done = run_program(path, "--max-tokens", 5000 + i, "--out", "o")
        assert done.returncode == 0, done.stderr
        assert f"train.bin: {5000 + i:,} tokens" in done.stdout


def test_the_plan_is_for_what_will_be_read(tmp_path, monkeypatch, capsys) -> None:
    """A corpus far larger than the disk is no reason to refuse a part of it; the estimate is of that part."""
    path = write_jsonl(tmp_path / "c.jsonl", DOCS * 30)
    whole = prepare(path, tmp_path / "o", dry_run=True, val_ratio=0.02)
    part = prepare(path, tmp_path / "o", dry_run=True, val_ratio=0.02, max_tokens=whole.train_tokens // 10)
    assert part.train_tokens == whole.train_tokens // 10
    assert part.val_tokens == pytest.approx(whole.val_tokens / 10, rel=0.01)
    assert f"{part.train_tokens:,} of them for train (--max-tokens)" in capsys.readouterr().out
    monkeypatch.setattr(files, "free_bytes", lambda folder: 2 * 2 * part.train_tokens)
    with pytest.raises(DiskError):
        prepare(path, tmp_path / "o", quiet=True, val_ratio=0.02)
    prepare(path, tmp_path / "o", quiet=True, val_ratio=0.02, max_tokens=part.train_tokens)


def test_skipped_lines_are_said_once(tmp_path) -> None:
    """Going on with a larger number tells of no line again that was skipped before."""
    path = write_jsonl(tmp_path / "c.jsonl", DOCS)
    lines = path.read_text().splitlines()
    for i in (100, 500, 899):
        lines[i] = "{"
    path.write_text("\n".join(lines))
    for n in (1000, 2000, None):
        prepare(path, tmp_path / "out", max_tokens=n, skip_bad=True, quiet=True)
    prepare(path, tmp_path / "direct", skip_bad=True, quiet=True)
    assert (tmp_path / "out" / CHANGES_NAME).read_text() == (tmp_path / "direct" / CHANGES_NAME).read_text()
    records = [read_record(tmp_path / name) for name in ("out", "direct")]
    assert [record.state.n_changes for record in records] == [{"skipped": 3}] * 2
