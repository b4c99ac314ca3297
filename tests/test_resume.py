"""The same command again: it continues or says why it cannot, and never makes other bytes."""

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
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from fineweb_stream import api, cli, encoder, lock, prepare, run
from fineweb_stream.errors import InputError
from fineweb_stream.guard import process_start
from fineweb_stream.record import read_record
from fineweb_stream.storage import InputFile

from .conftest import ROOT
from .helpers import outputs, write_jsonl
from .test_contracts import FORMATS, prepare_in_blocks, write_documents

DOCS = [f"Document {i}: it's {'very ' * (i % 17)}short, 漢字 and all." for i in range(400)]
OPTIONS: dict[str, Any] = {"shard_tokens": 1500, "engine": "tiktoken"}
ARGUMENTS = ("--shard-tokens", "1500", "--engine", "tiktoken")


def prepare_some(path: Any, out: Path, n_blocks: int, block_bytes: int = 2000, **options: Any) -> bool:
    """Run until `n_blocks` blocks are written, then leave as on Ctrl+C; return whether it came to the end before."""
    absorb, left = run.Run._absorb, n_blocks

    def absorb_some(self: run.Run, *args: Any) -> bool:
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1
        return absorb(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run.Run, "_absorb", absorb_some)
        with contextlib.suppress(KeyboardInterrupt):
            prepare_in_blocks(block_bytes, path, out, **OPTIONS | options)
            return True
    return False


@pytest.fixture
def corpus_path(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "c.jsonl", DOCS)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({"workers": 1}, {"workers": 8}),
        ({"workers": 8}, {"workers": 1}),
        ({"engine": "tiktoken"}, {"engine": "fastokens"}),
        ({"errors": "strict"}, {"errors": "replace"}),
        ({"skip_bad": False}, {"skip_bad": True}),
        ({"memory": "4GB"}, {"memory": "2GB"}),
    ],
    ids=str,
)
def test_what_may_differ(before: dict[str, Any], now: dict[str, Any], corpus_path: Path, tmp_path: Path) -> None:
    """Workers, engine, memory and how bad records are met may differ: the bytes are the same."""
    if "fastokens" in now.values():
        pytest.importorskip("fastokens")
    assert not prepare_some(corpus_path, tmp_path / "out", 5, **before)
    assert read_record(tmp_path / "out").state.n_documents > 50
    assert prepare_some(corpus_path, tmp_path / "out", -1, **now)
    prepare(corpus_path, tmp_path / "expected", quiet=True, **OPTIONS)
    assert outputs(tmp_path / "out") == outputs(tmp_path / "expected")


def append(path: Path) -> None:
    with path.open("a") as file:
        file.write('{"text": "one more"}\n')


CHANGES: dict[str, tuple[Callable[[Path], Any], dict[str, Any], str]] = {
    "size": (append, {}, r"b.jsonl changed: [\d,]+ bytes"),
    "mtime": (lambda path: os.utime(path, ns=(0, path.stat().st_mtime_ns + 1)), {}, "b.jsonl changed"),
    "seed": (lambda path: None, {"seed": 3}, "--seed was 0 and is 3"),
    "ratio": (lambda path: None, {"val_ratio": 0.1}, "--val-ratio was 0.0005 and is 0.1"),
    "val tokens": (lambda path: None, {"val_tokens": 9}, "--val-tokens was None and is 9"),
    "shard size": (lambda path: None, {"shard_tokens": 1501}, "--shard-tokens was 1500 and is 1501"),
    "separator": (lambda path: None, {"separator": "\n"}, "--separator was None and is"),
    "column": (lambda path: None, {"text_column": "id2"}, "--text-column was 'text' and is 'id2'"),
    "order": (lambda path: None, {"inputs": "ba"}, "named in another order"),
    "one more": (lambda path: None, {"inputs": "abc"}, "c.jsonl was not there"),
    "one less": (lambda path: None, {"inputs": "a"}, "b.jsonl was there and is not named now"),
}


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("is_done", [False, True], ids=["interrupted", "done"])
def test_what_may_not_differ(what: str, is_done: bool, tmp_path: Path, capsys) -> None:
    """Refused with what changed and the way out, with not a byte touched; --overwrite starts over, and is right."""
    change, options, message = CHANGES[what]
    a, b = (write_jsonl(tmp_path / f"{name}.jsonl", DOCS[:200]) for name in "ab")
    write_jsonl(tmp_path / "c.jsonl", DOCS[:9])
    assert prepare_some([a, b], tmp_path / "out", -1 if is_done else 9) == is_done
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    change(b)
    options = OPTIONS | options
    inputs = [tmp_path / f"{name}.jsonl" for name in options.pop("inputs", "ab")]
    with pytest.raises(InputError, match=message) as caught:
        prepare(inputs, tmp_path / "out", quiet=True, **options)
    assert "--overwrite" in str(caught.value)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    if what != "column":
        prepare(inputs, tmp_path / "out", quiet=True, overwrite=True, **options)
        prepare(inputs, tmp_path / "expected", quiet=True, **options)
        assert outputs(tmp_path / "out") == outputs(tmp_path / "expected")


@pytest.mark.parametrize("kind", ["txt", *FORMATS])
def test_thirty_resumes(kind: str, tmp_path: Path) -> None:
    """Stopped thirty times in a row, at other block sizes too: the bytes of one run, and every record counted once."""
    options: dict[str, Any] = {"val_ratio": 0.1}
    if kind == "txt":
        path = tmp_path / "c.txt"
        path.write_text("\n".join(DOCS))
    else:
        path, more = write_documents(kind, tmp_path, DOCS)
        options |= more
    prepare(path, tmp_path / "expected", quiet=True, **OPTIONS | options)
    n_before = 0
    for i in range(30):
        assert not prepare_some(path, tmp_path / "out", 1 + i % 2, block_bytes=300 + 50 * (i % 7), **options)
        state = read_record(tmp_path / "out").state
        assert state.train_tokens + state.val_tokens > n_before
        n_before = state.train_tokens + state.val_tokens
    assert prepare_some(path, tmp_path / "out", -1, **options)
    assert outputs(tmp_path / "out") == outputs(tmp_path / "expected")
    found, expected = (read_record(tmp_path / folder).state for folder in ("out", "expected"))
    names = ("train_documents", "val_documents", "n_records", "text_bytes", "input_bytes", "outputs", "shard_sha256")
    assert [getattr(found, name) for name in names] == [getattr(expected, name) for name in names]


def test_resume_says_where(corpus_path: Path, tmp_path: Path, capsys) -> None:
    """The same command says what it found: how far, how many shards and tokens."""
    assert not prepare_some(corpus_path, tmp_path / "out", 8)
    state = read_record(tmp_path / "out").state
    prepare(corpus_path, tmp_path / "out", **OPTIONS)
    said = re.search(r"resuming at (\d+)%: (\d+) shards, ([\d,]+) tokens", capsys.readouterr().out)
    assert said
    assert int(said[1]) == round(100 * state.input_bytes / corpus_path.stat().st_size)
    assert int(said[2]) == len(state.shard_sha256)
    assert int(said[3].replace(",", "")) == state.train_tokens + state.val_tokens


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "zeros": lambda data: bytes(len(data)),
    "noise": lambda data: bytes(range(256)) * 9,
    "a list": lambda data: b"[]",
    "another's": lambda data: b'{"format": 1}',
    "deep": lambda data: b"[" * 100_000,
    "no settings": lambda data: json.dumps(json.loads(data) | {"settings": None}).encode(),
    "no inputs": lambda data: json.dumps(json.loads(data) | {"inputs": {}}).encode(),
    "a text for a number": lambda data: re.sub(rb'"train_tokens": \d+', b'"train_tokens": "many"', data),
    "less than nothing": lambda data: re.sub(rb'"train_tokens": ', b'"train_tokens": -', data),
    "one bit": lambda data: re.sub(rb'"offset": (\d+)', lambda match: b'"offset": %d' % (int(match[1]) ^ 1), data),
    "unknown status": lambda data: data.replace(b'"encoding"', b'"thinking"'),
    "newer": lambda data: data.replace(b'"format": 1', b'"format": 99'),
    **{f"cut at {n}%": lambda data, n=n: data[: len(data) * n // 100] for n in range(5, 100, 10)},
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_record(damage: str, corpus_path: Path, tmp_path: Path, capsys) -> None:
    """One sentence names the record and the ways out, nothing is touched; --overwrite starts over."""
    out = tmp_path / "out"
    assert not prepare_some(corpus_path, out, 8)
    record = out / "prepare.json"
    record.write_bytes(DAMAGES[damage](record.read_bytes()))
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert cli.main([str(corpus_path), "--out", str(out), *ARGUMENTS]) in (1, 2)
    message = capsys.readouterr().err
    assert str(record) in message
    assert "--overwrite" in message
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert cli.main([str(corpus_path), "--out", str(out), *ARGUMENTS, "--overwrite"]) == 0
    prepare(corpus_path, tmp_path / "expected", quiet=True, **OPTIONS)
    assert outputs(out) == outputs(tmp_path / "expected")


@pytest.mark.parametrize("name", ["train_shard_0000.bin", "train_shard_0001.bin", "val.bin.part", "*.bin.part"])
@pytest.mark.parametrize("damage", ["shorter", "gone"])
def test_damaged_data(name: str, damage: str, corpus_path: Path, tmp_path: Path, capsys) -> None:
    """A file that holds less than the record says is named before the work goes on: no wrong train.bin, no promise."""
    assert not prepare_some(corpus_path, tmp_path / "out", 14)
    path = next((tmp_path / "out").glob(name))
    if damage == "gone":
        path.unlink()
    else:
        os.truncate(path, path.stat().st_size - 2)
    assert cli.main([str(corpus_path), "--out", str(tmp_path / "out"), *ARGUMENTS]) in (1, 2)
    message = capsys.readouterr().err
    assert str(path) in message
    assert "--overwrite" in message
    assert "the same command continues" not in message
    assert not (tmp_path / "out" / "train.bin").exists()


@pytest.mark.parametrize("keep", [False, True])
def test_keep_shards_may_change(keep: bool, corpus_path: Path, tmp_path: Path, monkeypatch) -> None:
    """--keep-shards given or left out on resume, at any moment of the merge: train.bin is right, or it is refused."""
    prepare(corpus_path, tmp_path / "expected", quiet=True, **OPTIONS)
    for n in range(1, 12):
        write, left = run.Record.write, n

        def write_some(self: run.Record, write: Any = write) -> None:
            nonlocal left
            left -= self.state.status != "encoding"
            if left < 0:
                raise KeyboardInterrupt
            write(self)

        out = tmp_path / str(n)
        with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            patch.setattr(run.Record, "write", write_some)
            prepare(corpus_path, out, quiet=True, keep_shards=not keep, **OPTIONS)
        try:
            prepare(corpus_path, out, quiet=True, keep_shards=keep, **OPTIONS)
        except InputError as error:
            assert "--keep-shards" in str(error)  # what is merged has no shard any more
            prepare(corpus_path, out, quiet=True, keep_shards=not keep, **OPTIONS)
        for name in ("train.bin", "val.bin"):
            assert (out / name).read_bytes() == (tmp_path / "expected" / name).read_bytes()
        shards = [path.read_bytes() for path in sorted(out.glob("train_shard_*"))]
        assert not shards or b"".join(shards) == (out / "train.bin").read_bytes()


def shrink(path: Path) -> None:
    os.truncate(path, 3000)


def put_another(path: Path) -> None:
    write_jsonl(path.with_name("new"), [f"Another {i}: " + "very " * (i % 17) for i in range(500)]).replace(path)


@pytest.mark.parametrize("change", [append, shrink, put_another, Path.unlink])
@pytest.mark.parametrize("kind", ["txt", *FORMATS])
def test_input_changes_while_it_is_read(change: Callable[[Path], None], kind: str, tmp_path: Path, capsys) -> None:
    """Noticed, named, exit 2, no final file; the message does not promise that the same command continues."""
    if kind == "txt":
        path, options = tmp_path / "c.txt", {}
        path.write_text("\n".join(DOCS))
    else:
        path, options = write_documents(kind, tmp_path, DOCS)
    absorb, calls = run.Run._absorb, []

    def absorb_and_change(self: run.Run, *args: Any) -> bool:
        calls.append(1)
        if len(calls) == 2:
            change(path)
        return absorb(self, *args)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(InputError) as caught:
        patch.setattr(run.Run, "_absorb", absorb_and_change)
        prepare_in_blocks(1500, path, tmp_path / "out", workers=1, **OPTIONS | options)
    assert str(path) in caught.value.message
    assert re.search(r"changed|ends at byte|No such file", caught.value.message)
    assert change is Path.unlink or "the same command continues" not in str(caught.value)
    assert not (tmp_path / "out" / "train.bin").exists()


class Panic(BaseException):
    """As `pyo3_runtime.PanicException`: no Exception."""


def panicking(function: Callable[..., Any], n: int, error: type[BaseException]) -> Callable[..., Any]:
    calls: list[int] = []

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == n:
            raise error("the tokenizer\nfell over")
        return function(*args, **kwargs)

    return wrapped


@pytest.mark.parametrize("error", [Panic, RuntimeError, SystemExit, KeyError])
@pytest.mark.parametrize("place", ["in a worker", "while planning", "while writing"])
def test_any_other_exception(place: str, error: type[BaseException], corpus_path, tmp_path, capsys) -> None:
    """Exit 1 soon, one line with the file and the place, the traceback in prepare.log, the same bytes afterwards."""
    arguments = [str(corpus_path), "--out", str(tmp_path / "out"), *ARGUMENTS]
    real, start = api.make_sources, time.monotonic()
    owner, name, n = {
        "in a worker": (encoder.Encoder, "encode", 9),
        "while planning": (InputFile, "block", 9),
        "while writing": (run.Run, "_absorb", 5),
    }[place]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "estimate", lambda *args: None, raising=False)  # it calls the encoder too
        patch.setattr(api, "make_sources", lambda *args: [replace(one, block_bytes=2000) for one in real(*args)])
        patch.setattr(owner, name, panicking(getattr(owner, name), n, error))
        assert cli.main(arguments) == 1
    assert time.monotonic() - start < 10
    message = capsys.readouterr().err
    first = message.splitlines()[0]
    assert first.startswith(f"prepare: {corpus_path}")
    assert re.search(r"\d,\d\d\d", first), "no place"
    assert error.__name__ in first
    assert "the tokenizer" in first
    assert "the same command continues" in message
    assert "Traceback" not in message
    assert "in wrapped" in (tmp_path / "out" / "prepare.log").read_text()
    assert read_record(tmp_path / "out").state.train_tokens > 0
    assert cli.main(arguments) == 0
    prepare(corpus_path, tmp_path / "expected", quiet=True, **OPTIONS)
    assert outputs(tmp_path / "out") == outputs(tmp_path / "expected")


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
from fineweb_stream import prepare, run
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
        "import os, sys; from fineweb_stream import lock\n"
        "os.setuid(65534)\n"
        "try:\n    with lock.locked(lock.Path(sys.argv[1]), print): pass\n"
        "except Exception as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code, out], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert "prepare.lock: Permission denied\n  another user works in this folder" in done.stdout, done.stderr
