"""One run in a folder at a time: the operating system knows who holds its lock, whatever the file says."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from fineweb_stream import prepare
from fineweb_stream.output import lock
from fineweb_stream.pipeline import run
from fineweb_stream.support.errors import InputError

from .conftest import ROOT
from .helpers import System, outputs
from .test_resume import ARGUMENTS, DOCS, OPTIONS, corpus_path

__all__ = ["corpus_path"]  # a fixture


def test_two_runs_in_one_folder(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("folder", ["out", "a/b/out"])
def test_two_runs_make_one_folder(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another run makes the folder at the same moment, each deletes only what it has made itself."""
    out, mkdir = tmp_path / folder, Path.mkdir

    def late(self: Path, *args: Any, **options: Any) -> None:
        monkeypatch.undo()
        mkdir(out, parents=True)  # by the other
        mkdir(self, *args, **options)

    monkeypatch.setattr(Path, "mkdir", late)
    with lock.locked(out):
        assert (out / lock.LOCK_NAME).exists()
    assert out.exists()


def test_a_folder_that_goes_again_at_that_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a run that made the folder deletes it before the lock is taken, it is made anew."""
    out, acquire = tmp_path / "a" / "out", lock._acquire
    out.mkdir(parents=True)

    def late(path: Path) -> int:
        monkeypatch.undo()
        out.rmdir()  # by the other
        return acquire(path)

    monkeypatch.setattr(lock, "_acquire", late)
    with lock.locked(out):
        assert (out / lock.LOCK_NAME).exists()
    assert not out.exists() and out.parent.exists()


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


LEFT = {
    "of a dead process": b'{"pid": 4194000, "host": "node17"}',
    "of this process": json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(),
    "with more in it": b'{"pid": 7, "host": "node17", "started": 5.0, "run": "0a"}',
    "empty": b"",
    "half written": b'{"pid": 1',
    "zeros": bytes(99),
}


@pytest.mark.parametrize("kind", LEFT)
def test_a_lock_that_nobody_holds(kind: str, corpus_path: Path, tmp_path: Path) -> None:
    """What a killed run has left, on any host, keeps nobody out; no trace of it stays."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / lock.LOCK_NAME).write_bytes(LEFT[kind])
    prepare(corpus_path, tmp_path / "out", quiet=True, **OPTIONS)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"train.bin", "val.bin", "prepare.json"}


@pytest.mark.parametrize("content", [b"somebody's notes", b"5", bytes(range(128, 256))])
def test_a_file_that_is_no_lock(content: bytes, corpus_path: Path, tmp_path: Path) -> None:
    """A file of somebody else's under this name is named, and stays as it is."""
    (tmp_path / "out").mkdir()
    path = tmp_path / "out" / lock.LOCK_NAME
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"{re.escape(str(path))}: not a lock of this program"):
        prepare(corpus_path, tmp_path / "out", quiet=True, overwrite=True, **OPTIONS)
    assert [p.read_bytes() for p in (tmp_path / "out").iterdir()] == [content]


@pytest.mark.skipif(os.name == "nt", reason="there it takes rights to make a link")
@pytest.mark.parametrize("kind", ["dangling link", "link", "pipe", "folder"])
def test_no_file_at_all(kind: str, corpus_path: Path, tmp_path: Path) -> None:
    """A link, a pipe or a folder under this name is named at once: never followed, never waited for."""
    path = tmp_path / "out" / lock.LOCK_NAME
    path.parent.mkdir()
    (tmp_path / "there").write_text("precious")
    if "link" in kind:
        path.symlink_to(tmp_path / ("nowhere" if kind == "dangling link" else "there"))
    else:
        os.mkfifo(path) if kind == "pipe" else path.mkdir()
    with pytest.raises(InputError, match=f"{re.escape(str(path))}: a .*, where a file of the run belongs"):
        prepare(corpus_path, tmp_path / "out", quiet=True, **OPTIONS)
    assert (tmp_path / "there").read_text() == "precious"
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.skipif(os.name == "nt", reason="another call there")
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS])
def test_a_file_system_without_locks(number: int, corpus_path: Path, tmp_path: Path, monkeypatch, caplog) -> None:
    """One sentence says so, and the run goes on."""

    def flock(*args: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", flock)
    (tmp_path / "out").mkdir()
    with lock.locked(tmp_path / "out"):
        pass
    assert len(caplog.records) == 1
    assert "this file system has no locks" in caplog.text
    assert "make sure that no other run works in this folder" in caplog.text
    prepare(corpus_path, tmp_path / "out", quiet=True, **OPTIONS)


def test_a_drive_whose_files_have_no_lasting_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Windows, some network drives number a file anew at each look: its name is enough, as nobody can take it."""

    class Windows(System):
        name = "nt"

    monkeypatch.setattr(lock, "os", Windows())
    monkeypatch.setattr(lock.files, "is_same", lambda *_: False)
    with lock.locked(tmp_path / "out"):
        assert (tmp_path / "out" / lock.LOCK_NAME).exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not shutil.which("unshare") or os.geteuid() != 0, reason="it takes root")
def test_a_folder_that_cannot_be_written_to(corpus_path: Path, tmp_path: Path) -> None:
    """On a read-only file system a finished run is recognized, as anywhere; another one says why it cannot work."""
    out = tmp_path / "out"
    prepare(corpus_path, out, quiet=True, **OPTIONS)
    before = outputs(out)
    command = ["unshare", "--mount", "sh", "-c", f'mount --bind {out} {out} && mount -o remount,ro,bind {out} && "$@"']
    command += ["sh", sys.executable, str(ROOT / "prepare.py"), str(corpus_path), "--out", str(out), *ARGUMENTS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if "mount:" in done.stderr:
        pytest.skip("nothing can be mounted here")
    assert (done.returncode, done.stderr) == (0, "") and "already done" in done.stdout
    done = subprocess.run([*command, "--overwrite", "--seed", "3"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 4 and "Read-only file system" in done.stderr
    assert outputs(out) == before


def can_unshare() -> bool:
    command = ["unshare", "--pid", "--uts", "--fork", "true"]
    return shutil.which("unshare") is not None and subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.skipif(not can_unshare(), reason="it takes namespaces")
def test_containers_that_share_a_folder(corpus_path: Path, tmp_path: Path) -> None:
    """Two process namespaces with one host name: the second is refused; a kill of the first lets another host go on."""
    hold = f"""
import time
from fineweb_stream.pipeline import run
from fineweb_stream import prepare
absorb, n = run.Run._absorb, 0
def slow(self, *args):
    global n
    n += 1
    if n == 3:
        (self._folder / "ready").touch()
        time.sleep(60)
    return absorb(self, *args)
run.Run._absorb, run.COMMIT_SECONDS = slow, 0.0
from tests.helpers import prepare_in_blocks
from pathlib import Path
prepare_in_blocks(2000, {str(corpus_path)!r}, Path({str(tmp_path / "out")!r}), shard_tokens=1500, engine="tiktoken")
"""
    other = f"import sys; from fineweb_stream import cli; sys.exit(cli.main([{str(corpus_path)!r}, '--out', "
    other += f"{str(tmp_path / 'out')!r}, *{list(ARGUMENTS)!r}]))"
    contained = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c"]
    pipes: dict[str, Any] = {"capture_output": True, "text": True, "cwd": ROOT, "timeout": 60}
    with subprocess.Popen([*contained, hold], cwd=ROOT) as first:
        deadline = time.monotonic() + 60
        while not (tmp_path / "out" / "ready").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        (tmp_path / "out" / "ready").unlink()
        refused = subprocess.run([*contained, other], **pipes)
        assert refused.returncode == 2
        assert "another run works in this folder" in refused.stderr
        first.kill()  # and with it, by --kill-child, the program
    host = ["unshare", "--uts", "sh", "-c", 'hostname elsewhere; exec "$@"', "sh", sys.executable, "-c", other]
    deadline = time.monotonic() + 20
    while (done := subprocess.run(host, **pipes)).returncode == 2 and time.monotonic() < deadline:
        time.sleep(0.1)  # until the killed process is gone
    assert done.returncode == 0, done.stderr
    assert "tokens are done" in done.stdout
    prepare(corpus_path, tmp_path / "expected", quiet=True, **OPTIONS)
    assert outputs(tmp_path / "out") == outputs(tmp_path / "expected")


def test_lock_after_sigkill(corpus_path: Path, tmp_path: Path) -> None:
    """A killed run's lock is free even while nobody has collected the dead process (a zombie)."""
    code = f"""
import os, signal
from fineweb_stream import prepare
from fineweb_stream.pipeline import run
run.Run._absorb = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
prepare({str(corpus_path)!r}, {str(tmp_path / "out")!r}, quiet=True, shard_tokens=1500, engine="tiktoken")
"""
    killed = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    if hasattr(os, "waitid"):  # until its last thread is gone, too
        os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)
    assert psutil.Process(killed.pid).status() == psutil.STATUS_ZOMBIE
    assert (tmp_path / "out" / lock.LOCK_NAME).exists()
    try:
        prepare(corpus_path, tmp_path / "out", **OPTIONS)
    finally:
        killed.wait()
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "out" / lock.LOCK_NAME).exists()


@pytest.mark.skipif(os.name == "nt", reason="an open file cannot be deleted")
def test_a_lock_whose_name_was_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is locked just after its run deleted its name is no lock that others see: it is taken anew."""
    real = lock._lock_by_system

    def delete(fd: int) -> None:
        monkeypatch.setattr(lock, "_lock_by_system", real)
        (tmp_path / lock.LOCK_NAME).unlink()
        real(fd)

    monkeypatch.setattr(lock, "_lock_by_system", delete)
    with lock.locked(tmp_path):
        (tmp_path / lock.LOCK_NAME).write_text('{"pid": ')  # cut off by a full disk
        with pytest.raises(InputError, match="its lock does not say which"), lock.locked(tmp_path):
            pass


@pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="it takes two users")
@pytest.mark.parametrize(
    "mode, hint", [(0o777, "another user works in this folder"), (0o700, "make sure that the folder")]
)
def test_lock_of_another_user(tmp_path: Path, mode: int, hint: str) -> None:
    """A lock that this user may not read is named, or the folder that is closed to this user."""
    out = tmp_path / "out"
    tmp_path.chmod(0o755)
    out.mkdir()
    (out / "prepare.lock").write_text("someone")
    (out / "prepare.lock").chmod(0o600)
    out.chmod(mode)
    code = (
        "import os; from fineweb_stream.output import lock\n"
        "os.setuid(65534)\n"
        "try:\n    with lock.locked(lock.Path('out')): pass\n"  # the folders above may be out of that user's reach
        "except Exception as error: print(error)"
    )
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=env, timeout=60
    )
    assert f"prepare.lock: Permission denied\n  {hint}" in done.stdout, done.stderr
