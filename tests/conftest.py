"""Fixtures: the reference encoding, the program as a process, and a watch over what tests leave behind."""

from __future__ import annotations

import functools
import importlib.metadata
import multiprocessing
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import hypothesis
import psutil
import pytest
import tiktoken

from fineweb_stream import cli
from fineweb_stream.memory.guard import find_children
from fineweb_stream.output import files
from fineweb_stream.pipeline import samples
from fineweb_stream.pipeline.settings import Settings
from fineweb_stream.tokenizer.gpt2 import tiktoken_encoding

from .helpers import Inline

# Timing is no test's business here: the machine may be busy.
hypothesis.settings.register_profile("tests", deadline=None, max_examples=100)
hypothesis.settings.load_profile("tests")

collect_ignore = ["bench"]  # it measures, and has a command of its own

# A file system in memory, where there is one with room, does not wait at each of a hundred thousand fsyncs.
DISK, IN_MEMORY = tempfile.gettempdir(), "/dev/shm"
has_choice = "TMPDIR" not in os.environ and os.path.isdir(IN_MEMORY)
if has_choice and min(shutil.disk_usage(IN_MEMORY).free, psutil.virtual_memory().available) > 4 << 30:
    tempfile.tempdir = IN_MEMORY

# The processes that tests start need not compile the package each; what is installed stays the same: to look it up took
# a sixth of a run of `prepare()`.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
importlib.metadata.version = functools.cache(importlib.metadata.version)

make_context = ssl.create_default_context


@functools.cache
def context_for(certificates: str | None) -> ssl.SSLContext:
    return make_context()


def kept_context(*args: Any, **options: Any) -> ssl.SSLContext:
    """To read the system's certificates was half of all that a run with URLs cost: once for each SSL_CERT_FILE."""
    return make_context(*args, **options) if args or options else context_for(os.environ.get("SSL_CERT_FILE"))


ssl.create_default_context = kept_context

ROOT = Path(__file__).parents[1]
CORPORA = ROOT.parent / "shared" / "corpora"
ESTIMATE = samples.sample


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are processors: a third of the time of all tests is waiting."""
    return (psutil.cpu_count() or 1) + 1


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In each of the rows that xdist hands out modules with slow tests come first: none is left for the end."""
    modules = {item.path for item in items if item.get_closest_marker("slow")}
    slow, quick = ([item for item in items if (item.path in modules) == is_slow] for is_slow in (True, False))
    items.clear()
    for n_rows in range(int(getattr(config, "workerinput", {}).get("workercount", 1)), 0, -1):
        n_slow = len(slow) // n_rows
        n_quick = (len(slow) + len(quick)) // n_rows - n_slow
        items += slow[:n_slow] + quick[:n_quick]
        del slow[:n_slow], quick[:n_quick]


@pytest.fixture(scope="session")
def reference() -> tiktoken.Encoding:
    """Tiktoken's GPT-2, from the embedded vocabulary (proven to be the official one in test_vocab)."""
    return tiktoken_encoding()


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """A folder on a disk, whose pages the system can drop: a module whose files are large has it as `tmp_path`."""
    with tempfile.TemporaryDirectory(dir=DISK) as folder:
        yield Path(folder).resolve()


@pytest.fixture(autouse=True)
def no_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pytest's log handlers are no script's: `prepare()` prints here as it does where nothing is configured."""
    monkeypatch.setattr("fineweb_stream.api.has_listener", lambda: False)


@pytest.fixture
def no_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs do not estimate how many tokens there will be: it is a quarter of a small run, and changes no output."""
    monkeypatch.setattr(samples, "sample", lambda *args: None)


@pytest.fixture
def shards_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train is written in shards also if they do not stay, and then merged: in runs that an earlier version began."""
    monkeypatch.setattr(Settings, "has_shards", True)


@pytest.fixture
def no_hash_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are hashed by the thread that writes them: to start threads takes a fifth of a small run."""
    monkeypatch.setattr(files, "ThreadPoolExecutor", Inline)


@pytest.fixture
def keep_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run neither renames nor deletes a file that it has open itself: Windows refuses to."""

    def guard(change: Callable[..., None]) -> Callable[..., None]:
        def guarded(*paths: Path) -> None:
            in_use = {file.path for file in psutil.Process().open_files()}
            assert not in_use & {os.path.realpath(path) for path in paths}
            change(*paths)

        return guarded

    for name in ("remove", "replace"):
        monkeypatch.setattr(files, name, guard(getattr(files, name)))


@pytest.fixture
def with_estimate(no_estimate: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs estimate nevertheless: for some of the tests of a module that has `no_estimate`."""
    monkeypatch.setattr(samples, "sample", ESTIMATE)


@pytest.fixture(params=["tiktoken", "gigatoken"])
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine that is installed."""
    if request.param == "gigatoken":
        pytest.importorskip("gigatoken")
    return str(request.param)


@pytest.fixture
def run_process(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run prepare.py as a user does, into the folder `out`: `run_process("corpus.txt", "--workers", 2, env=...)`."""

    def run(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
        env = os.environ | options.pop("env", {})  # type: ignore[operator]
        command = [sys.executable, str(ROOT / "prepare.py"), *with_out(arguments)]
        defaults = {"capture_output": True, "text": True, "timeout": 120, "cwd": tmp_path, "encoding": "utf-8"}
        return subprocess.run(command, env=env, **(defaults | options))  # type: ignore[call-overload,no-any-return]

    return run


@pytest.fixture
def run_program(
    tmp_path: Path,
    run_process: Callable[..., subprocess.CompletedProcess[str]],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The same in this process, at a tenth of the cost; an option that only a process can have makes it one."""

    def run(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
        if options:
            return run_process(*arguments, **options)
        capfd.readouterr()
        command = ["prepare.py", *with_out(arguments)]
        with monkeypatch.context() as patch:
            patch.chdir(tmp_path)
            patch.setattr(sys, "argv", command)
            status = cli.main(folder=ROOT)
        return subprocess.CompletedProcess(command, status, *capfd.readouterr())

    return run


def with_out(arguments: Sequence[object]) -> list[str]:
    """The outputs do not go beside the script."""
    return [*map(str, arguments), *([] if "--out" in arguments else ["--out", "out"])]


@pytest.fixture
def corpus() -> Callable[[str], Path]:
    """Path of one of the shared corpora; skips where they are absent."""

    def find(name: str) -> Path:
        if not (CORPORA / name).exists():
            pytest.skip(f"the corpus {name} is not on this machine")
        return CORPORA / name

    return find


@pytest.fixture(scope="session")
def new_process() -> Callable[[], ProcessPoolExecutor]:
    """Make an executor of one process, no copy of this one with its threads; what Python starts beside it stays."""
    make = functools.partial(ProcessPoolExecutor, 1, multiprocessing.get_context("spawn"))
    with make() as executor:
        executor.submit(os.getpid).result()
    return make


@pytest.fixture(autouse=True)
def no_leaks(tmp_path: Path) -> Iterator[None]:
    """Every test leaves no open file, thread or process behind."""
    process = psutil.Process()
    files, threads = {f.path for f in process.open_files()}, set(threading.enumerate())
    shared = find_children()  # a module's own, such as a cluster
    yield
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        leaked_files = {f.path for f in process.open_files() if str(tmp_path) in f.path} - files
        # Imports of the optional packages start threads of their own that live as long as the process.
        leaked_threads = [t for t in set(threading.enumerate()) - threads if t.name.startswith(("encode", "hash"))]
        children = [c for c in find_children() if c not in shared and c.status() != psutil.STATUS_ZOMBIE]
        if not (leaked_files or leaked_threads or children):
            return
        time.sleep(0.05)
    pytest.fail(f"left behind: {leaked_files} {leaked_threads} {children}")
