"""One run in a folder at a time: who holds its lock, and what a lock is worth once its owner is gone."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from fineweb_stream import prepare
from fineweb_stream.memory.guard import process_start
from fineweb_stream.output import lock
from fineweb_stream.pipeline import run
from fineweb_stream.support.errors import InputError

from .conftest import ROOT
from .helpers import outputs
from .test_resume import DOCS, OPTIONS, corpus_path

__all__ = ["corpus_path"]  # a fixture


def test_two_runs_in_one_folder(corpus_path: Path, tmp_path: Path) -> None:
    """Of runs started together exactly one works; the others say who holds the lock, exit 2, and disturb nothing."""
    command = [sys.executable, ROOT / "prepare.py", "-", "--out", tmp_path / "out", "--shard-tokens", "1500"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    text = " ".join(DOCS * 99)
    with contextlib.ExitStack() as stack:
        programs = [stack.enter_context(subprocess.Popen(command, text=True, **pipes)) for _ in range(4)]
        for program in programs:
            stack.callback(program.kill)
        threads = [threading.Thread(target=feed, args=(program, text[:-9])) for program in programs]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 60
        while sum(program.poll() is None for program in programs) > 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        winners = [program for program in programs if program.poll() is None]
        assert len(winners) == 1
        for thread in threads:
            thread.join()
        _, errors = winners[0].communicate(text[-9:], timeout=60)
        assert winners[0].returncode == 0, errors
        for program in set(programs) - set(winners):
            _, errors = program.communicate()
            assert program.returncode == 2
            assert f"process {winners[0].pid} on {socket.gethostname()}" in errors
    subprocess.run([*command[:-3], tmp_path / "expected", *command[-2:]], input=text, text=True, check=True, **DEVNULL)
    assert outputs(tmp_path / "out") == outputs(tmp_path / "expected")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"train.bin", "val.bin", "prepare.json"}


def test_two_runs_in_one_process(corpus_path: Path, tmp_path: Path, monkeypatch) -> None:
    """A second call in another thread is refused, and the lock of the first stays."""
    absorb, refused = run.Run._absorb, []

    def call_again(self: run.Run, *args: Any) -> bool:
        def second() -> None:
            with pytest.raises(InputError, match=f"another run works in this folder .process {os.getpid()} on"):
                prepare(corpus_path, tmp_path / "out", quiet=True, **OPTIONS)
            refused.append(json.loads((tmp_path / "out" / lock.LOCK_NAME).read_bytes())["pid"])

        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
        return absorb(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(run.Run, "_absorb", call_again)
        prepare(corpus_path, tmp_path / "out", quiet=True, **OPTIONS)
    assert refused == [os.getpid()]
    assert not (tmp_path / "out" / lock.LOCK_NAME).exists()


DEVNULL: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "timeout": 60}


def feed(program: subprocess.Popen[str], text: str) -> None:
    assert program.stdin
    with contextlib.suppress(BrokenPipeError):
        program.stdin.write(text)
        program.stdin.flush()


@pytest.fixture
def other() -> Iterator[int]:
    """The pid of another living program."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process.pid
        process.kill()


def owner(pid: int, started: float | None, host: str | None = None) -> bytes:
    return json.dumps({"pid": pid, "host": host or socket.gethostname(), "started": started}).encode()


def dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


STALE: dict[str, Callable[[int], bytes]] = {
    "dead pid": lambda other: owner(dead_pid(), time.time() - 99),
    "reused pid": lambda other: owner(other, time.time() - 9999),
    "empty": lambda other: b"",
    "garbage": lambda other: b"{{{",
    "half": lambda other: owner(other, process_start(other))[:20],
    "zeros": lambda other: bytes(99),
    "noise": lambda other: bytes(range(128, 256)),
    "a number": lambda other: b"5",
    "odd values": lambda other: owner("x", "y"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("kind", STALE)
def test_stale_lock(kind: str, other: int, corpus_path: Path, tmp_path: Path, capsys) -> None:
    """A lock whose process is gone, or that says nothing, is taken over with a note; no trace of it stays."""
    (tmp_path / "out").mkdir()
    path = tmp_path / "out" / lock.LOCK_NAME
    path.write_bytes(STALE[kind](other))
    os.utime(path, (time.time() - 60, time.time() - 60))
    prepare(corpus_path, tmp_path / "out", **OPTIONS)
    assert "taking over from a run that is gone" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"train.bin", "val.bin", "prepare.json"}


LIVE: dict[str, Callable[[int], tuple[bytes, str]]] = {
    "living": lambda other: (owner(other, process_start(other)), f"process {other} on {socket.gethostname()}"),
    "another host": lambda other: (owner(dead_pid(), 5.0, "node17"), "on node17"),
}


@pytest.mark.parametrize("kind", LIVE)
def test_live_lock(kind: str, other: int, corpus_path: Path, tmp_path: Path) -> None:
    """A lock of a living process, or of another host, is refused, with the file and who holds it; it stays."""
    (tmp_path / "out").mkdir()
    path = tmp_path / "out" / lock.LOCK_NAME
    content, message = LIVE[kind](other)
    path.write_bytes(content)
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        prepare(corpus_path, tmp_path / "out", quiet=True, **OPTIONS)
    assert str(path) in str(caught.value)
    assert [p.read_bytes() for p in (tmp_path / "out").iterdir()] == [content]


@pytest.mark.skipif(sys.platform != "linux", reason="there psutil adds a start to the moving time of the boot")
def test_live_lock_while_the_clock_is_set(other: int, corpus_path: Path, tmp_path: Path, monkeypatch) -> None:
    """The system's clock is corrected by a second after a run has begun: its lock still counts."""
    from psutil import _pslinux

    (tmp_path / "out").mkdir()
    (tmp_path / "out" / lock.LOCK_NAME).write_bytes(owner(other, process_start(other)))
    boot_time = _pslinux.boot_time()
    monkeypatch.setattr(_pslinux, "boot_time", lambda: boot_time + 1.0)
    with pytest.raises(InputError, match=f"process {other} on"):
        prepare(corpus_path, tmp_path / "out", quiet=True, **OPTIONS)


def test_lock_after_sigkill(corpus_path: Path, tmp_path: Path, capsys) -> None:
    """A killed run's lock is taken over even while nobody has collected the dead process (a zombie)."""
    code = f"""
import os, signal
from fineweb_stream import prepare
from fineweb_stream.pipeline import run
run.Run._absorb = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
prepare({str(corpus_path)!r}, {str(tmp_path / "out")!r}, quiet=True, shard_tokens=1500, engine="tiktoken")
"""
    killed = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    deadline = time.monotonic() + 30
    while psutil.Process(killed.pid).status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.02)
    assert (tmp_path / "out" / lock.LOCK_NAME).exists()
    try:
        prepare(corpus_path, tmp_path / "out", **OPTIONS)
    finally:
        killed.wait()
    assert killed.returncode == -signal.SIGKILL
    assert f"taking over from a run that is gone (process {killed.pid}" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["prepare.lock.{}", "prepare.lock.{}.stale"])
def test_what_a_kill_leaves_of_a_lock(name: str, corpus_path: Path, tmp_path: Path) -> None:
    """Killed while it takes the lock: the temporary file does not stay for good."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name.format(dead_pid())).write_bytes(owner(dead_pid(), 5.0))
    prepare(corpus_path, tmp_path / "out", quiet=True, **OPTIONS)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"train.bin", "val.bin", "prepare.json"}


@pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="it takes two users")
def test_lock_of_another_user(corpus_path: Path, tmp_path: Path) -> None:
    """A lock that this user may not read is named, and the program leaves."""
    out = tmp_path / "out"
    out.mkdir(mode=0o777)
    out.chmod(0o777)
    for folder in tmp_path.parents[:2]:
        folder.chmod(0o755)
    tmp_path.chmod(0o755)
    (out / "prepare.lock").write_text("someone")
    (out / "prepare.lock").chmod(0o600)
    code = (
        "import os, sys; from fineweb_stream.output import lock\n"
        "os.setuid(65534)\n"
        "try:\n    with lock.locked(lock.Path(sys.argv[1])): pass\n"
        "except Exception as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code, out], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert "prepare.lock: Permission denied\n  another user works in this folder" in done.stdout, done.stderr
