"""A failed fsync is final: what it covered may be lost, so none of it is recorded as saved, ever."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from fineweb_stream import cli
from fineweb_stream.output import files
from fineweb_stream.pipeline import run

from .helpers import System, outputs, prepare_in_blocks, write_jsonl

pytestmark = pytest.mark.usefixtures("no_estimate")

DOCS = [f"Document {i}: " + f"some words of number {i} " * 20 for i in range(300)]
OPTIONS: dict[str, Any] = {"shard_tokens": 20_000, "engine": "tiktoken", "workers": 1, "val_ratio": 0.2}


class LosingFsync(System):
    """Stands in for `os` in `files.py`: the n-th fsync fails, and zeros replace what it covered, as Linux may do."""

    def __init__(self, n: int) -> None:
        self.n_left = n
        self._durable: dict[int, int] = {}

    def open(self, path: Path, *args: int) -> int:
        fd = os.open(path, *args)
        self._durable[fd] = os.fstat(fd).st_size
        return fd

    def ftruncate(self, fd: int, n_bytes: int) -> None:
        os.ftruncate(fd, n_bytes)
        self._durable[fd] = n_bytes

    def fsync(self, fd: int) -> None:
        size, durable = os.fstat(fd).st_size, self._durable[fd]
        self.n_left -= 1
        if self.n_left == 0:
            if size > durable:
                os.pwrite(fd, bytes(size - durable), durable)
            raise OSError(errno.EIO, "Input/output error")
        os.fsync(fd)
        self._durable[fd] = size


@pytest.fixture
def expected(tmp_path: Path) -> dict[str, bytes]:
    prepare_in_blocks(20_000, write_jsonl(tmp_path / "c.jsonl", DOCS), tmp_path / "expected", **OPTIONS)
    return outputs(tmp_path / "expected")


@pytest.mark.skipif(not hasattr(os, "pwrite"), reason="this system has no pwrite")
def test_every_fsync_may_fail(
    tmp_path: Path, expected: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever fsync fails and loses what it covered, the run ends with status 4 and the same command completes it."""
    monkeypatch.setattr(run, "COMMIT_SECONDS", 0.0)
    monkeypatch.setattr(files, "FLUSH_BYTES", 60_000)  # flushes in the background fail, too
    n_failed = 0
    for n in range(1, 200):
        out, failing = tmp_path / f"out{n}", LosingFsync(n)
        with monkeypatch.context() as patch:
            patch.setattr(files, "os", failing)
            try:
                prepare_in_blocks(20_000, tmp_path / "c.jsonl", out, **OPTIONS)
            except files.DiskError as error:
                assert "Input/output error" in str(error)
                n_failed += 1
        if failing.n_left > 0:
            break
        prepare_in_blocks(20_000, tmp_path / "c.jsonl", out, **OPTIONS)
        assert outputs(out) == expected, f"after the failure of fsync {n}"
        assert cli.main(["--verify", "--out", str(out)]) == 0
    assert n_failed > 30
    assert outputs(out) == expected


@pytest.mark.skipif(os.name == "nt", reason="no such call")
@pytest.mark.parametrize("number", [0, errno.ENOTTY, errno.ENOTSUP, errno.EIO])
def test_fsync_on_macos(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There, the drive's cache is flushed, too; a file system that cannot has fsync, and an error stays one."""
    calls: list[str] = []

    def control(fd: int, command: object) -> None:
        calls.append(str(command))
        if number:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.F_FULLFSYNC", "F_FULLFSYNC", raising=False)
    monkeypatch.setattr("fcntl.fcntl", control)
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append("fsync"))
    with contextlib.closing(files.Part(tmp_path / "ids.bin")) as part:
        part.write(b"12")
        calls.clear()
        monkeypatch.setattr(sys, "platform", "darwin")
        with pytest.raises(files.DiskError) if number == errno.EIO else contextlib.nullcontext():
            part.sync()
    assert calls == ["F_FULLFSYNC", *["fsync"] * (number not in (0, errno.EIO))]
