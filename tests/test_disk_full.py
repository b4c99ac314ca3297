"""The disk is full, at any write: exit 4, what and where, nothing lost; with room again the same command finishes.

And so if it fails as it is read, as a network's may.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fineweb_stream
from fineweb_stream import cli
from fineweb_stream.output import files, manifest, spool
from fineweb_stream.output.manifest import read_record
from fineweb_stream.output.shards import ShardWriter
from fineweb_stream.pipeline import run
from fineweb_stream.support.errors import DiskError

from .conftest import ROOT
from .helpers import System, in_blocks, write_jsonl

pytestmark = pytest.mark.usefixtures("no_estimate")

DISK_BYTES = 4 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB; to mount one takes root."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=20)
    except FileNotFoundError:
        pytest.skip("there is no mount command here")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"a tmpfs cannot be mounted here: {error.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True, timeout=20)


def fill(folder: Path) -> None:
    """Leave no page free on the small disk (and never fill another one)."""
    assert shutil.disk_usage(folder).total == DISK_BYTES
    with (folder / "ballast").open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


class Filler(System):
    """Stands in for `os` in `files.py`: fills the file system before the n-th write to a file of some name."""

    def __init__(self, folder: Path, point: str) -> None:
        self._folder = folder
        name, _, n = point.rpartition(":")
        self._name, self._left = re.compile(name), int(n)
        self._open: dict[int, str] = {}
        self.record = b""

    def open(self, path: Path, *args: int) -> int:
        fd = os.open(path, *args)
        self._open[fd] = Path(path).name
        return fd

    def write(self, fd: int, data: bytes | memoryview) -> int:
        self._left -= bool(self._name.fullmatch(self._open[fd]))
        if self._left == 0:
            fill(self._folder)
        return os.write(fd, data)


# Of every kind of file early, late and between; names are those while they are written. 1 is the first write.
RUN = "[0-9a-f]{12}"
POINTS = [
    f"prepare.manifest.json.{RUN}.part:1",
    *(f"prepare.json.{RUN}.part:{n}" for n in (1, 2, 3, 4, 5, 8, 12, 15, 16)),
    *(f"train_shard_0000.bin.{RUN}.part:{n}" for n in (1, 2, 4)),
    *(f"train_shard_....\\.bin.{RUN}.part:{n}" for n in (5, 14, 20)),
    *(f"val.bin.{RUN}.part:{n}" for n in (1, 2, 5)),
    *(f"train.bin.{RUN}.part:{n}" for n in (1, 2, 3)),
    *(f"prepare.changes.jsonl.{RUN}.part:{n}" for n in (1, 7)),
]


def make_corpus(folder: Path) -> Path:
    docs = [f"Document {i}: " + f"some words of number {i} " * 20 for i in range(1500)]
    path = write_jsonl(folder / "c.jsonl", docs)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(b"[]\n" if i % 10 == 3 else line for i, line in enumerate(lines)))
    return path


@pytest.fixture(params=["one file", "shards merged", "shards kept"])
def prepare(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., int]]:
    """Run the command line here, with small blocks."""
    path = make_corpus(tmp_path)
    arguments = ["--shard-tokens", "30000", "--val-ratio", "0.2", "--skip-bad", "--engine", "tiktoken"]
    arguments += ["--keep-shards"] * (request.param == "shards kept")
    if request.param == "shards merged":
        request.getfixturevalue("shards_merged")
    monkeypatch.setattr(run, "COMMIT_SECONDS", 0.0)
    with in_blocks(30_000):
        yield lambda out, *more: cli.main([str(path), "--out", str(out), *arguments, *more])


@pytest.mark.slow
def test_disk_full(small_disk: Path, tmp_path: Path, prepare, monkeypatch, capsys, request) -> None:
    """The disk fills before a write of any kind: exit 4, a record as old or newer, the same bytes in the end."""
    assert prepare(tmp_path / "expected") == 0
    assert prepare(tmp_path / "shards", "--keep-shards") == 0
    expected, finals = ({p.name: p.read_bytes() for p in (tmp_path / f).iterdir()} for f in ("expected", "shards"))
    named = set()
    is_merged = "one file" not in request.node.callspec.params.values()
    points = POINTS if is_merged else [re.sub(r"^train_shard_[0.\\]+bin", "train.bin", point) for point in POINTS]
    for i, point in enumerate(points):
        out = small_disk / f"out{i}"
        capsys.readouterr()
        with monkeypatch.context() as patch:
            patch.setattr(files, "os", Filler(small_disk, point))
            assert prepare(out) == 4, point
        message = capsys.readouterr().err
        named.add(check_message(message, out))
        check_folder(out, message, finals)
        (small_disk / "ballast").unlink()
        assert prepare(out) == 0, point
        found = {p.name: p.read_bytes() for p in out.iterdir()}
        assert found.keys() == expected.keys()
        assert all(found[name] == expected[name] for name in expected if name != "prepare.json"), point
        for path in out.iterdir():
            path.unlink()
    assert named >= {
        "prepare.json",
        "prepare.manifest.json",
        "val.bin",
        "train.bin",
        "prepare.changes.jsonl",
        *(["train_shard_0000.bin"] if is_merged else []),
    }


def test_disk_full_with_much_written(small_disk: Path, tmp_path: Path, prepare, monkeypatch, capsys) -> None:
    """What would take long to read again is not cut back to the last block: the last commit stays, and continues."""
    assert prepare(tmp_path / "expected") == 0
    monkeypatch.setattr(run, "MAX_REREAD_BYTES", 0)
    before: list[int] = []
    cut_back = run.Run._cut_back

    def count(self: run.Run, *args: Any) -> None:
        before.append(self._n_saved)
        cut_back(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(run.Run, "_cut_back", count)
        patch.setattr(files, "os", Filler(small_disk, f"train.*bin.{RUN}.part:9"))
        assert prepare(small_disk / "out") == 4
    assert before[0] > 0 and read_record(small_disk / "out").state.n_tokens == before[0]
    assert f"{before[0]:,} tokens are saved: the same command continues" in capsys.readouterr().err
    (small_disk / "ballast").unlink()
    assert prepare(small_disk / "out") == 0
    for path in (tmp_path / "expected").glob("*.bin"):
        assert (small_disk / "out" / path.name).read_bytes() == path.read_bytes(), path.name


def test_short_writes(tmp_path: Path, prepare, monkeypatch) -> None:
    """The system may write less than it was given (signals, quotas, 2 GiB): every byte is written all the same."""

    class ShortWrites(System):
        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def write(self, fd: int, data: bytes | memoryview) -> int:
            return os.write(fd, memoryview(data).cast("B")[:1001])

    assert prepare(tmp_path / "expected") == 0
    with monkeypatch.context() as patch:
        patch.setattr(files, "os", ShortWrites())
        assert prepare(tmp_path / "out") == 0
    for path in (tmp_path / "expected").glob("*.bin"):
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes(), path.name


def check_message(message: str, out: Path) -> str:
    """One line names the file, the reason and the bytes needed, the next says what to do; return the file's name."""
    match = re.search(r"^prepare: (\S+): No space left on device \(this write needs [\d,]+ bytes\)\n", message, re.M)
    assert match, message
    assert Path(match[1]).parent == out
    assert "make room there" in message
    assert "Traceback" not in message
    return Path(match[1]).name


def check_folder(out: Path, message: str, finals: dict[str, bytes]) -> None:
    """Final names are complete, the lock is gone, and the record says what the message says."""
    for path in out.glob("*.bin"):
        assert path.read_bytes() == finals[path.name], path.name
    assert not list(out.glob("prepare.lock*"))
    record = read_record(out)
    n_saved = record.state.train_tokens + record.state.val_tokens if record else 0
    said = re.search(r"([\d,]+) tokens are saved: the same command continues", message)
    assert n_saved == (int(said[1].replace(",", "")) if said else 0)


def test_disk_full_from_the_start(small_disk: Path, tmp_path: Path, run_program: Any) -> None:
    """Not one byte free: the program says so with exit 4, leaves nothing there, and runs once there is room."""
    path = make_corpus(tmp_path)
    command = [sys.executable, ROOT / "prepare.py", path, "--skip-bad", "--out", small_disk / "out"]
    fill(small_disk)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 4, done.stderr
    assert str(small_disk / "out") in done.stderr
    assert "make room" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((small_disk / "out").glob("*"))
    (small_disk / "ballast").unlink()
    assert run_program(*command[2:]).returncode == 0


def test_disk_full_while_the_program_works(small_disk: Path, tmp_path: Path, run_program: Any) -> None:
    """The disk fills while the program waits for more of a pipe: exit 4, then the bytes of a run that had room."""
    text = b"".join(b"Line %d of a text that goes on and on.\n" % i for i in range(90_000))
    command = [sys.executable, ROOT / "prepare.py", "-", "--shard-tokens", "100000", "--out"]
    (tmp_path / "c.txt").write_bytes(text)
    assert run_program("c.txt", "--shard-tokens", "100000", "--out", "expected").returncode == 0
    pipe: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*command, small_disk / "out"], **pipe) as program:
        assert program.stdin
        program.stdin.write(text[:-100])
        program.stdin.flush()
        deadline = time.monotonic() + 30
        while not list((small_disk / "out").glob("train_shard_0000.bin.*")) and time.monotonic() < deadline:
            time.sleep(0.01)
        fill(small_disk)
        _, errors = program.communicate(text[-100:], timeout=60)
    assert program.returncode == 4, errors.decode()
    check_message(errors.decode(), small_disk / "out")
    (small_disk / "ballast").unlink()
    subprocess.run([*command, small_disk / "out"], input=text, check=True, capture_output=True, timeout=60)
    for name in ("train.bin", "val.bin"):
        assert (small_disk / "out" / name).read_bytes() == (tmp_path / "expected" / name).read_bytes()


def test_what_a_full_disk_has_is_saved(small_disk: Path, tmp_path: Path, run_program: Any) -> None:
    """All whole blocks on the disk are saved, even before the first commit; with room, the run continues."""
    text = b"".join(b"Line %d of a text that goes on and on.\n" % i for i in range(300_000))
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(text, 1))  # how much it will be is not known before
    command = [sys.executable, ROOT / "prepare.py", tmp_path / "c.txt.gz", "--out"]
    done = subprocess.run([*command, small_disk / "out"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 4, done.stderr
    check_folder(small_disk / "out", done.stderr, {})
    record = read_record(small_disk / "out")
    assert record and record.state.n_tokens * 2 > DISK_BYTES // 2
    shutil.copytree(small_disk / "out", tmp_path / "out")
    more = run_program("c.txt.gz", "--out", "out")
    assert f"{record.state.n_tokens:,} tokens are done" in more.stdout
    assert run_program("c.txt.gz", "--out", "expected").returncode == 0
    for name in ("train.bin", "val.bin"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "expected" / name).read_bytes()


@pytest.mark.skipif(os.name == "nt", reason="no such error")
@pytest.mark.parametrize("call", ["stat", "lstat", "listdir", "read"])
def test_a_disk_that_fails_when_it_is_looked_at(call: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    """Whichever look at the folder fails: exit 4 and the name, no traceback; then the same command finishes."""
    path = write_jsonl(tmp_path / "c.jsonl", [f"Document {i}: some words." for i in range(300)])
    arguments = [str(path), "--engine", "tiktoken", "--workers", "1", "--val-ratio", "0.2", "--keep-shards", "--out"]
    monkeypatch.setattr(run, "COMMIT_SECONDS", 0.0)
    assert cli.main([*arguments, str(tmp_path / "expected")]) == 0
    expected = {p.name: p.read_bytes() for p in (tmp_path / "expected").glob("*.bin")}
    n_failed, owner = 0, manifest if call == "read" else os
    name = "read_bounded" if call == "read" else call
    real = getattr(owner, name)
    for n in range(1, 300):
        out, left = tmp_path / f"out{n}", n

        def look(path: Any, *args: Any, out: Path = out, **options: Any) -> Any:
            nonlocal left
            left -= call == "read" or (not isinstance(path, int) and os.fspath(path).startswith(str(out)))
            if left == 0:
                left = -1
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), *[path] * (call != "read"))
            return real(path, *args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, look)
            status = cli.main([*arguments, str(out)])
        said = capsys.readouterr().err
        assert status == 0 or (status == 4 and f"prepare: {out}" in said), (n, said)
        n_failed += status == 4
        assert cli.main([*arguments, str(out)]) == 0
        assert {p.name: p.read_bytes() for p in out.iterdir() if p.name != "prepare.json"} == expected
        if left > 0:
            break
    assert n_failed > {"stat": 8, "lstat": 8, "listdir": 1, "read": 3}[call]


def test_a_disk_that_fails_when_the_spool_is_read(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    """Exit 4 with the name of the spool, not of an input; then the same command finishes."""

    class Failing(io.BytesIO):
        def read(self, *_: Any) -> bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    path = write_jsonl(tmp_path / "c.jsonl", [f"Document {i}: some words." for i in range(300)])
    arguments = [str(path), "--engine", "tiktoken", "--shuffle", "--out", str(tmp_path / "out")]
    with monkeypatch.context() as patch:
        patch.setattr(spool, "_open", lambda *_: Failing())
        assert cli.main(arguments) == 4
    said = capsys.readouterr().err
    assert re.search(rf"prepare: .*prepare\.spool\.bin\.{RUN}\.part: .*\n  check the disk.*\n  2,100 tokens are", said)
    assert cli.main(arguments) == 0


def test_an_error_of_the_flush_in_the_background_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system tells an error of writing back to one fsync only; here each later one tells it again."""
    monkeypatch.setattr(files, "FLUSH_BYTES", 1000)
    real, n_calls = os.fsync, 0

    def fsync(fd: int) -> None:
        nonlocal n_calls
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            n_calls += 1
            if n_calls == 1:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    with contextlib.closing(files.Part(tmp_path / "ids.bin")) as part:
        monkeypatch.setattr(os, "fsync", fsync)
        part.write(bytes(1000))
        with pytest.raises(DiskError, match="Input/output error"):
            part.sync()
        assert n_calls == 1
        part.write(bytes(1000))
        with pytest.raises(DiskError, match="Input/output error"):
            part.sync()
    assert not (tmp_path / "ids.bin").exists()


def test_a_disk_that_is_full_as_an_input_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is saved then is all of the input before it: the same command works without the one that was not begun."""
    paths = [write_jsonl(tmp_path / f"{name}.jsonl", [f"{name} {i}" for i in range(500)]) for name in "ab"]
    real = ShardWriter.write_train

    def write_train(self: ShardWriter, ids: Any) -> bool:
        with files.disk_errors(tmp_path):
            if self._state.input == 1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(self, ids)

    with monkeypatch.context() as patch, pytest.raises(DiskError, match="No space"):
        patch.setattr(ShardWriter, "write_train", write_train)
        fineweb_stream.prepare(paths, tmp_path / "out", quiet=True)
    state = read_record(tmp_path / "out").state
    assert (state.input, state.offset, state.n_documents) == (0, paths[0].stat().st_size, 500)
    result = fineweb_stream.prepare(paths[:1], tmp_path / "out", quiet=True)
    assert result.train_documents + result.val_documents == 500


@pytest.mark.parametrize("winerror", [5, 32, 33])
@pytest.mark.parametrize("change", ["replace", "remove"])
def test_a_file_that_another_program_has_open(change: str, winerror: int, tmp_path: Path, monkeypatch: Any) -> None:
    """On Windows it can be neither renamed nor deleted: a moment later it is, else the message says why."""
    (tmp_path / "a.part").write_text("new")
    (tmp_path / "a").write_text("old")
    n_left, real_replace, real_unlink = 3, os.replace, Path.unlink

    def refuse(*_: object) -> None:
        nonlocal n_left
        n_left -= 1
        if n_left >= 0:
            error = PermissionError(errno.EACCES, "Access is denied")
            error.winerror = winerror  # type: ignore[attr-defined,unused-ignore]
            raise error

    monkeypatch.setattr(os, "replace", lambda *paths: refuse() or real_replace(*paths))
    monkeypatch.setattr(Path, "unlink", lambda path, **options: refuse() or real_unlink(path, **options))
    call = {"replace": lambda: files.replace(tmp_path / "a.part", tmp_path / "a"),
            "remove": lambda: files.remove(tmp_path / "a")}[change]  # fmt: skip
    monkeypatch.setattr(files, "IN_USE_SECONDS", 0.0)
    with pytest.raises(DiskError, match=r"a: Access is denied\n  does another program use it .*stop that first"):
        call()
    monkeypatch.setattr(files, "IN_USE_SECONDS", 60.0)
    call()
    assert n_left == -1
    assert [path.read_text() for path in tmp_path.glob("a")] == ["new"] * (change == "replace")


def test_room_on_a_drive_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where not even the root exists, as of an unplugged drive of Windows, that is an error."""
    assert files.free_bytes(tmp_path / "a" / "b") > 0
    monkeypatch.setattr(Path, "exists", lambda path: False)
    with pytest.raises(DiskError, match="No such file"):
        files.free_bytes(tmp_path / "a" / "b")
