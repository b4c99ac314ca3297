"""Ctrl+C, kill and a closed terminal, in every phase: gone within seconds, nothing lost, nothing left running.

The program runs through a small driver that prints a line when it comes to the phase that is asked for and stays there
for a moment; everything else is prepare.py as it is.
"""

from __future__ import annotations

import gzip
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from fineweb_stream import prepare
from fineweb_stream.inputs.discover import find_inputs
from fineweb_stream.inputs.sources import make_sources
from fineweb_stream.output.manifest import read_record
from fineweb_stream.remote.network import Network
from fineweb_stream.support.cancel import NEVER, Cancel, aside, cancel_on_signals
from fineweb_stream.support.errors import Cancelled, Interrupted
from fineweb_stream.support.model import ReadOptions

from .conftest import ROOT
from .helpers import outputs, write_jsonl

pytestmark = pytest.mark.skipif(os.name == "nt", reason="other signals there")

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MAX_SECONDS = 10  # the aim is 5, the machine may be busy
DRIVER = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})

PHASE, SECONDS = sys.argv.pop(1), float(sys.argv.pop(1))

def stay():
    sys.stdout.write("PHASE\\n")  # whole, whatever the main thread prints
    sys.stdout.flush()
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:  # a sleep would end early in no case; several let the handler in
        time.sleep(0.01)

class Finder:
    left = 1

    def find_spec(self, name, path=None, target=None):
        if name == PHASE and self.left:
            self.left = 0
            stay()

def wrap(owner, name, n=1, after=False):
    function, calls = getattr(owner, name), []
    def wrapped(*args, **kwargs):
        calls.append(1)
        if len(calls) == n and not after:
            stay()
        result = function(*args, **kwargs)
        if len(calls) == n and after:
            stay()
        return result
    setattr(owner, name, wrapped)

sys.meta_path.insert(0, Finder())
from fineweb_stream import cli

def patch():
    from fineweb_stream.output import files, lock, shards
    from fineweb_stream.inputs import discover
    from fineweb_stream.pipeline import job, run, worker
    {{
        "look at the inputs": lambda: wrap(discover, "_describe"),
        "lock": lambda: wrap(lock, "_acquire", after=True),
        "look at the record": lambda: wrap(job, "open_record"),
        "build the engine": lambda: wrap(run, "get_encoder"),
        "encode": lambda: wrap(run.Progress, "update", 4),
        "write": lambda: wrap(shards.ShardWriter, "write_train", 4),
        "commit": lambda: wrap(run.Record, "write", 3),
        "shard end": lambda: wrap(shards.ShardWriter, "_complete_shard", 2),
        "end of encoding": lambda: wrap(run.Run, "_finish_encoding"),
        "merge": lambda: wrap(files.Part, "copy_from", 2),
        "finish": lambda: wrap(run, "merge", after=True),
        "long block": lambda: wrap(run.Watch, "max_blocks", 2),
    }}.get(PHASE, lambda: None)()

if "." not in PHASE and PHASE != "tiktoken":
    patch()
sys.exit(cli.main(sys.argv[1:]))
"""
# Where nothing is worth saving yet, and where the same command must continue.
EARLY = ("fineweb_stream.api", "tiktoken", "look at the inputs", "lock", "look at the record", "build the engine")
LATE = ("encode", "write", "commit", "shard end", "end of encoding", "merge", "finish")


class Program:
    """The program under the driver, in a session of its own."""

    def __init__(self, folder: Path, phase: str, *arguments: object, seconds: float = 0.5, **options: object) -> None:
        command = [sys.executable, "-c", DRIVER, phase, str(seconds), *map(str, arguments), "--out", folder / "out"]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, start_new_session=True, **(streams | options))  # type: ignore[call-overload]
        self.out = folder / "out"

    def wait_for_phase(self) -> None:
        """Return when it has come to the phase."""
        while not (line := self.process.stdout.readline()).endswith("PHASE\n"):  # another thread's may begin the line
            assert line, f"never came to the phase {self.process.args[3]}: {self.process.stderr.read()}"

    def stop(self, *numbers: int, pause: float = 0.0) -> tuple[int, str, float]:
        """Send signals; return the exit status as a shell sees it, what was said, and how long it took."""
        for number in numbers[:-1]:
            self.process.send_signal(number)
            time.sleep(pause)
        start = time.monotonic()
        self.process.send_signal(numbers[-1])
        _, errors = self.process.communicate(timeout=60)
        status, seconds = self.process.returncode, time.monotonic() - start
        assert not [p for p in psutil.pids() if session(p) == self.process.pid], "a process was left"
        return 128 - status if status < 0 else status, errors, seconds


def session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return 0


@contextmanager
def running(*arguments: object, **options: object) -> Iterator[Program]:
    program = Program(*arguments, **options)  # type: ignore[arg-type]
    try:
        yield program
    finally:
        program.process.kill()
        program.process.wait()
        for stream in (program.process.stdin, program.process.stdout, program.process.stderr):
            if stream:
                stream.close()


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = random.Random(1)
    words = ["some", "words", "that a", "tokenizer", "knows and", "others,", "1234", "äöü,", "that's", "all.", "", "\n"]
    path = tmp_path_factory.mktemp("text") / "c.txt"
    path.write_text(" ".join(rng.choices(words, k=1_200_000)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def expected(text: Path) -> dict[str, bytes]:
    prepare(text, text.parent / "expected", quiet=True, **SHARDS)
    return outputs(text.parent / "expected")


SHARDS = {"shard_tokens": 250_000, "keep_shards": True}
ARGUMENTS = ("--shard-tokens", "250000", "--keep-shards")


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: signal.Signals(number).name)
def test_every_phase(
    number: int, text: Path, expected: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 130, 143 or 129 soon, the way on is named, no lock and no process stays, the same bytes in the end."""
    took = {}
    phases = EARLY + LATE if number == signal.SIGINT else [EARLY[-1], *LATE[::3]]  # one handler serves them all
    for i, phase in enumerate(phases):
        (tmp_path / str(i)).mkdir()
        with running(tmp_path / str(i), phase, text, *ARGUMENTS) as program:
            program.wait_for_phase()
            status, errors, took[phase] = program.stop(number)
        assert status == 128 + number, f"{phase}: {errors}"
        assert "Traceback" not in errors, f"{phase}: {errors}"
        assert took[phase] < MAX_SECONDS, phase
        left = {path.name for path in program.out.glob("*")}
        assert not [name for name in left if name.startswith("prepare.lock")], phase
        if phase in LATE:
            assert "the same command continues" in errors, phase
            state = vars(read_record(program.out).state)
            said = re.search(r"([\d,]+) tokens are saved", errors)
            assert said, phase
            assert int(said[1].replace(",", "")) == state["train_tokens"] + state["val_tokens"] > 0, phase
        prepare(text, program.out, quiet=True, **SHARDS)
        assert outputs(program.out) == expected, phase
        assert {path.name for path in program.out.iterdir()} == {*expected, "prepare.json"}, phase
    with capsys.disabled():
        print(f"\n{signal.Signals(number).name}: seconds to exit, the stay of 0.5 s included:")
        print("  " + ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in took.items()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "content"), [("tiktoken", "words"), ("tiktoken", "one class"), ("gigatoken", "one class")]
)
def test_inside_a_long_encode(engine: str, content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A document of 30 MB, also one without a place to cut, does not hold up the exit."""
    if engine == "gigatoken":
        pytest.importorskip("gigatoken")
    long = "some words and more of them. " * 1_040_000 if content == "words" else "=" * 30_000_000
    path = write_jsonl(tmp_path / "c.jsonl", ["a first document", "another document " * 90_000, long, "the last one"])
    with running(tmp_path, "long block", path, "--engine", engine, "--val-ratio", "0.5") as program:
        program.wait_for_phase()
        time.sleep(1.0)
        assert program.process.poll() is None, "too fast to be stopped"
        status, errors, seconds = program.stop(signal.SIGINT)
    with capsys.disabled():
        print(f"\n30 MB of {content}, {engine}: exit after {seconds:.2f} s")
    assert status == 130, errors
    assert "Traceback" not in errors
    assert seconds < MAX_SECONDS
    assert not list(program.out.glob("prepare.lock*"))


@pytest.mark.parametrize("n_bytes", [0, 100_000, 6_000_000], ids=["at the start", "in the first MiB", "while reading"])
def test_waiting_for_a_pipe(n_bytes: int, text: Path, tmp_path: Path) -> None:
    """A pipe that gives nothing more does not hold up the exit, and what was read is saved."""
    data = text.read_bytes()
    with running(tmp_path, "", "-", *ARGUMENTS, stdin=subprocess.PIPE, text=False) as program:
        program.process.stdin.write(data[:n_bytes])
        program.process.stdin.flush()
        time.sleep(2)
        status, errors, seconds = program.stop(signal.SIGTERM)
    assert status == 143, errors
    assert b"Traceback" not in errors, errors.decode()
    assert seconds < MAX_SECONDS
    assert not list(program.out.glob("prepare.lock*"))
    print(f"a pipe after {n_bytes:,} bytes: exit after {seconds:.2f} s")


def test_what_a_silent_pipe_gave_is_saved(tmp_path: Path) -> None:
    """Blocks are written and recorded while the next one is waited for: a kill then would not take them."""
    data = write_jsonl(tmp_path / "c.jsonl", ["many words " * 100] * 6000).read_bytes()
    with running(tmp_path, "", "-", "--format", "jsonl", stdin=subprocess.PIPE, text=False) as program:
        program.process.stdin.write(data)
        program.process.stdin.flush()
        end, n_bytes = time.monotonic() + 30, 0
        while n_bytes < 3 << 20 and time.monotonic() < end:
            time.sleep(0.2)
            if (program.out / "prepare.json").exists():
                n_bytes = read_record(program.out).state.text_bytes
        program.stop(signal.SIGKILL)
    assert n_bytes >= 3 << 20


def test_a_second_signal(text: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    """While the first is dealt with, a second leaves at once; what was recorded stays."""
    with running(tmp_path, "commit", text, *ARGUMENTS, seconds=60) as program:
        program.wait_for_phase()
        status, errors, seconds = program.stop(signal.SIGINT, signal.SIGINT, pause=0.3)
    assert status == 130, errors
    assert seconds < 2
    print(f"a second SIGINT: exit after {seconds:.2f} s")
    assert read_record(program.out).state.train_tokens > 0
    prepare(text, program.out, quiet=True, **SHARDS)
    assert outputs(program.out) == expected


def test_nohup(text: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    """A SIGHUP that is ignored from the start, as nohup does, stays ignored."""
    old = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with running(tmp_path, "encode", text, *ARGUMENTS) as program:
            program.wait_for_phase()
            status, errors, _ = program.stop(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, old)
    assert status == 0, errors
    assert outputs(program.out) == expected


def test_a_closed_terminal(text: Path, tmp_path: Path) -> None:
    """The terminal goes away, and with it all that could be printed to: saved, exit 129."""
    import fcntl
    import termios

    ours, theirs = os.openpty()
    control = {"stdin": theirs, "stderr": theirs, "preexec_fn": lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)}
    with running(tmp_path, "encode", text, *ARGUMENTS, **control) as program:
        os.close(theirs)
        program.wait_for_phase()
        os.close(ours)
        status = program.process.wait(MAX_SECONDS)
    assert status == 128 + signal.SIGHUP
    assert not list(program.out.glob("prepare.lock*"))
    assert read_record(program.out).state.train_tokens > 0


def test_in_a_script(text: Path, tmp_path: Path) -> None:
    """`prepare()` in a script raises a KeyboardInterrupt, and gives the signals back as they were."""
    code = f"""
import signal, sys, threading
from fineweb_stream import prepare
from fineweb_stream.pipeline import run
before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
tick = run.Run._absorb
run.Run._absorb = lambda *args: (signal.raise_signal(signal.SIGTERM), tick(*args))[1]
try:
    prepare({str(text)!r}, {str(tmp_path / "out")!r}, quiet=True)
except KeyboardInterrupt as error:
    print("caught", error)
assert before == [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
assert [t.name for t in threading.enumerate() if t.name.startswith(("encode", "hash"))] == []
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "caught stopped by SIGTERM" in done.stdout
    assert "the same command continues" in done.stdout


def test_a_signal_is_only_noted() -> None:
    """A signal in the midst of an import, or anywhere else, sets the token and raises nothing there."""
    source = "import signal; signal.raise_signal(signal.SIGTERM); done = True"
    within_import = compile(source, "<frozen importlib._bootstrap>", "exec")
    names: dict[str, object] = {}
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted) as caught, cancel_on_signals() as cancel:
        exec(within_import, names)
        assert names["done"] and cancel.is_set
        cancel.check()
    assert caught.value.exit_status == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == before


def test_one_token_for_nested_blocks() -> None:
    """The command line's token is that of its `prepare()`; a child is set by its parent, not the reverse."""
    with pytest.raises(Interrupted), cancel_on_signals() as outer:
        with cancel_on_signals() as inner:
            assert inner is outer
        child = Cancel(outer)
        child.set()
        outer.check()
        signal.raise_signal(signal.SIGINT)
        assert child.signal_number == signal.SIGINT
        outer.wait(60)
    with cancel_on_signals() as fresh:
        assert not fresh.is_set


def test_what_is_left_behind() -> None:
    """A call that nothing ends is left once the token is set, and what a call raises is raised here."""
    cancel, release = Cancel(), threading.Event()
    threading.Timer(0.2, cancel.set).start()
    with pytest.raises(Cancelled):
        aside(release.wait, cancel)
    release.set()
    with pytest.raises(ZeroDivisionError):
        aside(lambda: 1 // 0, NEVER)
    with pytest.raises(TimeoutError):
        aside(lambda: time.sleep(0.3), NEVER, 0.05)


def test_leaving_while_files_are_looked_at(tmp_path: Path) -> None:
    """Tens of thousands of files take seconds to look at: the token is looked at before each."""
    for i in range(3):
        write_jsonl(tmp_path / f"{i}.jsonl", ["some words"])
    network = Network(cancel=Cancel())
    assert len(find_inputs([str(tmp_path)], None, network)) == 3
    network.cancel.set()
    with pytest.raises(Cancelled):
        find_inputs([str(tmp_path)], None, network)


@pytest.mark.parametrize("name", ["c.txt", "c.jsonl", "c.txt.gz"])
@pytest.mark.parametrize("separator", [None, b"\n\n"])
def test_a_search_for_the_end_of_a_block_hears_a_stop(tmp_path: Path, name: str, separator: bytes | None) -> None:
    """Each read of a search looks at the token: millions of newlines in a row take many."""
    path, network = tmp_path / name, Network(cancel=Cancel())
    data = b'{"text": "words"}\n' if "json" in name else b"words\n" + b"\n" * 300_000
    path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    [source] = make_sources(find_inputs([str(path)]), ReadOptions(separator=separator), 0.1, network=network)
    assert list(source.iter_blocks())
    network.cancel.set()
    with pytest.raises(Cancelled):
        list(source.iter_blocks())
