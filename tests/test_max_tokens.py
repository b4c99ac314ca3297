"""--max-tokens stops exactly there, and a larger number goes on from there."""

from __future__ import annotations

import errno
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fineweb_stream import estimate, prepare
from fineweb_stream.output import files
from fineweb_stream.output.manifest import read_record
from fineweb_stream.output.own import CHANGES_NAME
from fineweb_stream.output.verify import verify
from fineweb_stream.support.errors import DiskError, InputError, Interrupted, PrepareError

from .helpers import in_blocks, outputs, prepare_in_blocks, read_ids, write_jsonl
from .test_resume import OPTIONS, prepare_some

pytestmark = pytest.mark.usefixtures("no_estimate")

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


@pytest.mark.usefixtures("with_estimate")
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
    with pytest.raises(InputError, match=f"train already has {n_tokens:,} tokens, --max-tokens is 1,000"):
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
            assert part == pytest.approx(all_of_it * state.n_tokens / whole.n_tokens, abs=1)
    prepare(path, tmp_path / "out", quiet=True)
    state = read_record(tmp_path / "out").state
    assert (state.text_bytes, state.input_bytes) == (whole.text_bytes, whole.input_bytes)


def test_exit_is_clean(run_process, tmp_path) -> None:
    """The program leaves with status 0, each time."""
    path = write_jsonl(tmp_path / "c.jsonl", DOCS * 30)
    for i in range(3):
        done = run_process(path, "--max-tokens", 5000 + i, "--out", "o")
        assert done.returncode == 0, done.stderr
        assert f"train.bin: {5000 + i:,} tokens" in done.stdout


@pytest.mark.usefixtures("with_estimate")
def test_the_plan_is_for_what_will_be_read(tmp_path, monkeypatch, capsys) -> None:
    """A corpus far larger than the disk is no reason to refuse a part of it; the estimate is of that part."""
    path = write_jsonl(tmp_path / "c.jsonl", DOCS * 30)
    whole = prepare(path, tmp_path / "o", dry_run=True, val_ratio=0.02)
    part = prepare(path, tmp_path / "o", dry_run=True, val_ratio=0.02, max_tokens=whole.train_tokens // 10)
    assert part.train_tokens == whole.train_tokens // 10
    assert part.val_tokens == pytest.approx(whole.val_tokens / 10, abs=12)  # the first document is
    assert f"{part.train_tokens:,} of them for train (--max-tokens)" in capsys.readouterr().out
    monkeypatch.setattr(files, "free_bytes", lambda folder: 2 * 2 * part.train_tokens)
    with pytest.raises(DiskError):
        prepare(path, tmp_path / "o", quiet=True, val_ratio=0.02)
    prepare(path, tmp_path / "o", quiet=True, val_ratio=0.02, max_tokens=part.train_tokens)


def test_skipped_lines_are_said_once(tmp_path, caplog) -> None:
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
    with caplog.at_level("WARNING"):
        prepare(path, tmp_path / "direct", quiet=True)
    assert "for another --errors or --skip-bad: --overwrite" in caplog.text
    records = [read_record(tmp_path / name) for name in ("out", "direct")]
    assert [record.state.n_changes for record in records] == [{"skipped": 3}] * 2


@pytest.mark.skipif(os.name == "nt", reason="a file that is mapped cannot be replaced there")
@pytest.mark.parametrize("options", [{}, {"keep_shards": True}, {"layout": "npy"}], ids=str)
def test_a_reader_keeps_what_it_has(options: dict[str, Any], tmp_path: Path) -> None:
    """Extended ten times under a reader that maps all files: what is mapped stays, each name is whole at any time."""
    path, out = write_jsonl(tmp_path / "c.jsonl", DOCS), tmp_path / "out"
    options = OPTIONS | {"shard_tokens": 700} | options
    prepare(path, tmp_path / "whole", quiet=True, **options)
    finals = {p.name: p.read_bytes() for p in (tmp_path / "whole").glob("*.[bn]??")}
    prepare(path, out, max_tokens=900, quiet=True, **options)
    names = [p.name for p in out.glob("*.[bn]??") if p.name != "prepare.json"]
    mapped = {name: np.memmap(out / name, np.uint8, "r") for name in names}
    before = {name: data.tobytes() for name, data in mapped.items()}
    wrong: list[str] = []
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(0.001):
            for name in names:
                data = (out / name).read_bytes()  # raises where the name is gone
                start = 128 if name.endswith(".npy") else 0
                if not data or finals[name][start : len(data)] != data[start:]:
                    wrong.append(name)

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for n in range(1200, 4200, 300):
            prepare_in_blocks(600, path, out, max_tokens=n, **options)
            assert {name: data.tobytes() for name, data in mapped.items()} == before
    finally:
        is_over.set()
        reader.join()
    assert not wrong
    prepare(path, out, quiet=True, **options)
    assert {p.name: p.read_bytes() for p in out.glob("*.[bn]??")} == finals


def test_an_extension_that_fails_takes_nothing_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished run whose continuation meets an error, at once or later, still has its files; then it goes on."""
    path, out = write_jsonl(tmp_path / "c.jsonl", DOCS), tmp_path / "out"
    prepare_in_blocks(500, path, tmp_path / "whole", **OPTIONS)
    prepare_in_blocks(500, path, out, max_tokens=2000, **OPTIONS)
    before = outputs(out)

    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    for owner, name in (
        ("pipeline.run.Run", "_absorb"),
        ("pipeline.run.Run", "_merge"),
        ("output.files", "write_whole"),
    ):
        with monkeypatch.context() as patch, pytest.raises((PrepareError, OSError)):
            patch.setattr(f"fineweb_stream.{owner}.{name}", fail)
            prepare_in_blocks(500, path, out, **OPTIONS)
        assert {name: data for name, data in outputs(out).items() if name in before} == before
    prepare_in_blocks(500, path, out, **OPTIONS)
    assert outputs(out) == outputs(tmp_path / "whole")


def test_one_more_input_at_the_end(tmp_path: Path) -> None:
    """A finished run goes on with a file that is named behind the others, and has what one run of all has."""
    paths = [write_jsonl(tmp_path / f"{i}.jsonl", DOCS[300 * i : 300 * i + 300]) for i in range(3)]
    prepare(paths, tmp_path / "whole", quiet=True, **OPTIONS)
    for n in (1, 2, 3):
        prepare(paths[:n], tmp_path / "out", quiet=True, **OPTIONS)
    assert outputs(tmp_path / "out") == outputs(tmp_path / "whole")


@pytest.mark.parametrize("limit", [50, 3000, 5000])
@pytest.mark.parametrize("kind", ["jsonl", "text"])
def test_a_dry_run_resumes_where_the_run_does(tmp_path: Path, capsys, kind: str, limit: int) -> None:
    """Of a finished run that is extended, a dry run and the run say the same place: the start of its last block."""
    path = write_jsonl(tmp_path / "c.jsonl", DOCS) if kind == "jsonl" else tmp_path / "c.txt"
    if kind == "text":
        path.write_text("\n".join(DOCS))
    prepare_in_blocks(2000, path, tmp_path / "out", max_tokens=limit, **OPTIONS)
    said = []
    for dry_run in (True, False):
        capsys.readouterr()
        with in_blocks(2000):
            prepare(path, tmp_path / "out", dry_run=dry_run, **OPTIONS)
        said.append([line for line in capsys.readouterr().out.splitlines() if line.startswith("resuming")])
    assert said[0] == said[1]
    assert len(said[0]) == (kind == "text" or limit > 50)  # val of a text is complete; else all is done again


def test_a_stop_while_a_finished_run_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To be extended, a finished `train.bin` is copied first: Ctrl+C then says that its tokens stay, as they do."""
    path, out = write_jsonl(tmp_path / "c.jsonl", DOCS), tmp_path / "out"
    prepare_in_blocks(500, path, out, max_tokens=1000, engine="tiktoken")
    before, n_tokens = outputs(out), read_record(out).state.n_tokens

    def interrupt(part: files.Part, *args: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        args[4]()  # the check

    with monkeypatch.context() as patch, pytest.raises(Interrupted) as caught:
        patch.setattr(files.Part, "copy_from", interrupt)
        prepare(path, out, quiet=True, engine="tiktoken")
    assert str(caught.value) == f"stopped by Ctrl+C\n  {n_tokens:,} tokens are saved: the same command continues"
    assert outputs(out) == before
    prepare(path, out, quiet=True, engine="tiktoken")
    prepare(path, tmp_path / "expected", quiet=True, engine="tiktoken")
    assert outputs(out) == outputs(tmp_path / "expected")


@pytest.mark.skipif(os.name == "nt", reason="no limits there")
def test_a_limit_of_a_files_size(run_program: Any, tmp_path: Path) -> None:
    """What will not fit into one file is known before anything is written, with the layout that fits."""
    path = write_jsonl(tmp_path / "c.jsonl", DOCS * 150)
    done = run_program(path, preexec_fn=lambda: limit_files(1_000_000))
    assert done.returncode == 4
    assert "train.bin: will have" in done.stderr and "(ulimit -f)" in done.stderr
    assert "--layout npy --shard-tokens 250000 (with --overwrite)" in done.stderr
    assert not list((tmp_path / "out").glob("*.part"))
    more = ["--layout", "npy", "--shard-tokens", "250000"]
    assert run_program(path, *more, preexec_fn=lambda: limit_files(1_000_000)).returncode == 0


@pytest.mark.skipif(os.name == "nt", reason="no limits there")
@pytest.mark.parametrize("kind", ["a pipe", "extended"])
def test_a_limit_of_a_files_size_in_a_run_that_was_begun(kind: str, run_program: Any, tmp_path: Path) -> None:
    """What is advised then also works when it is typed: the layout is another, so the run has to be started over."""
    path = write_jsonl(tmp_path / "c.jsonl", DOCS * 150)
    options = {"preexec_fn": lambda: limit_files(1_000_000)}
    if kind == "a pipe":
        arguments, options = ["-", "--format", "jsonl"], options | {"input": path.read_text()}
    else:
        arguments = [path]
        assert run_program(path, "--max-tokens", 1000).returncode == 0
    done = run_program(*arguments, **options)
    assert done.returncode == 4 and "(ulimit -f)" in done.stderr and "--overwrite" in done.stderr
    more = ["--layout", "npy", "--shard-tokens", "250000", "--overwrite"]
    assert run_program(*arguments, *more[:-1], **options).returncode == 2
    assert run_program(*arguments, *more, **options).returncode == 0


def limit_files(n_bytes: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, n_bytes))


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EBADF])
def test_a_folder_that_cannot_be_synced(number: int, tmp_path: Path, monkeypatch, caplog) -> None:
    """As durable as it can be, said once; another error of the disk stays one."""
    path, real = write_jsonl(tmp_path / "c.jsonl", DOCS), os.fsync

    def fsync(fd: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            raise OSError(number, os.strerror(number))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    prepare(path, tmp_path / "out", quiet=True, **OPTIONS)
    assert caplog.text.count("cannot make names durable") == 1
    number = errno.EIO
    with pytest.raises(DiskError, match="Input/output error"):
        prepare(path, tmp_path / "out2", quiet=True, **OPTIONS)


def test_blank_documents_come_first(tmp_path: Path) -> None:
    """What ends there has no text, but there is more: a larger number is the way on, not another file."""
    path = write_jsonl(tmp_path / "c.jsonl", ["\n" * 100] * 3 + ["some words"] * 90)
    with pytest.raises(InputError, match=r"no text in the input: .* all blank\n  raise --max-tokens"):
        prepare_in_blocks(100, path, tmp_path / "out", max_tokens=10)
    assert prepare(path, tmp_path / "out", max_tokens=200, quiet=True).train_tokens == 200


@pytest.mark.usefixtures("with_estimate")
@pytest.mark.parametrize(
    "options", [{"val_ratio": 0.3}, {"val_tokens": 500}, {"val_ratio": 0.3, "eot": "both"}], ids=str
)
def test_val_ends_where_train_does(options: dict[str, Any], tmp_path: Path) -> None:
    """In whatever blocks it is read: val has the documents before the one in which train is full, as planned."""
    path = write_jsonl(tmp_path / "c.jsonl", DOCS)
    made = {}
    for n in (1000, 1001, 4000):
        found = estimate(path, tmp_path / "none", max_tokens=n, **options)
        for block_bytes in (100, 3000, 1 << 20):
            out = tmp_path / f"{n} {block_bytes}"
            result = prepare_in_blocks(block_bytes, path, out, max_tokens=n, **options)
            made[n, block_bytes] = outputs(out)
            assert made[n, block_bytes] == made[n, 100]
            assert result.val_tokens == pytest.approx(found.val_tokens, rel=0.2)
    assert made[4000, 100]["val.bin"].startswith(made[1000, 100]["val.bin"])


@pytest.mark.parametrize("name", ["train.bin", "val.bin", "first of train.bin", "train_shard_0001.bin"])
def test_an_output_that_was_altered_is_not_extended(name: str, tmp_path: Path) -> None:
    """It is named, before it is copied or when it is merged; moved away, --overwrite makes all of it again."""
    path = write_jsonl(tmp_path / "c.jsonl", DOCS)
    options = {"shard_tokens": 800, "val_ratio": 0.1, "keep_shards": "shard" in name}
    prepare_in_blocks(500, path, tmp_path / "out", max_tokens=2000, **options)
    file = tmp_path / "out" / name.removeprefix("first of ")
    data = bytearray(file.read_bytes())
    data[200 if "first" in name else -200] ^= 1
    file.write_bytes(data)
    with pytest.raises(PrepareError, match=rf"{file.name}: does not hold what the run has written") as caught:
        prepare(path, tmp_path / "out", quiet=True, **options)
    assert "move it away, then start over with --overwrite" in caught.value.hint
    file.unlink()
    prepare(path, tmp_path / "out", overwrite=True, quiet=True, **options)
    prepare(path, tmp_path / "expected", quiet=True, **options)
    assert outputs(tmp_path / "out") == outputs(tmp_path / "expected")


@pytest.mark.parametrize("eot", ["after", "both"])
def test_the_text_of_a_part_counts_as_its_share(eot: str, tmp_path: Path) -> None:
    """Also where each document has two end-of-text ids: no part has more text than all."""
    path = write_jsonl(tmp_path / "c.jsonl", ["a"] * 900)
    whole = prepare(path, tmp_path / "whole", quiet=True, eot=eot)
    prepare(path, tmp_path / "part", quiet=True, eot=eot, max_tokens=whole.train_tokens - 1)
    part, all_of_it = (read_record(tmp_path / name).state for name in ("part", "whole"))
    assert part.text_bytes == pytest.approx(all_of_it.text_bytes, rel=0.01)
