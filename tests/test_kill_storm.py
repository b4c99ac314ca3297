"""SIGKILL at random moments, in every phase: the outputs are those of an undisturbed run (C5, C6, C8).

Most kills go to children that a driver (`python -m tests.test_kill_storm`) forks once it has imported the program: a
kill takes milliseconds instead of a start of Python. The program in the child is the real one, only slower in some
places, so that every phase lasts long enough to be hit.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import gzip
import importlib
import io
import itertools
import json
import mmap
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import pytest

from fineweb_stream.output.manifest import read_record

from .conftest import ROOT
from .helpers import write_jsonl, write_parquet

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="SIGKILL and fork are not on this system"),
]

KINDS = ("txt", "jsonl", "parquet", "separated")
PHASES = ("start", "encode", "commit", "shard end", "end of encoding", "merge", "finish")
N_KILLS, N_PROGRAM_KILLS = 52, 4  # of each kind
COMMIT_SECONDS, BLOCK_SECONDS = 0.012, 0.003
MAX_LOST_BLOCKS = round(COMMIT_SECONDS / BLOCK_SECONDS) + 1
COUNTS = (
    *("status", "n_records", "train_tokens", "val_tokens", "train_documents", "val_documents", "text_bytes"),
    *("input_bytes", "n_changes", "changes_bytes", "shard_sha256", "merged_shards", "outputs"),
)
SEPARATOR = "\n<|SEP|>\n"

VALS: tuple[tuple[str, ...], ...] = (
    *(("--val-ratio", ratio) for ratio in ("0.0005", "0.3", "0.9")),
    *(("--val-tokens", n) for n in ("300", "5000")),
    *(("--val-at", "end", "--val-ratio", ratio) for ratio in ("0.0005", "0.3")),
    ("--val", "{}"),
)
GRID = [
    (kind, suffix, val)
    for kind, suffix, val in itertools.product(KINDS, ("", ".gz", ".zst", "-"), VALS)
    if not (kind == "parquet" and suffix) and not ("--val-at" in val and (kind != "txt" or suffix))
]
"""Formats, plain, compressed or piped, and what is the validation split: a small share, a large one, files."""


def write_corpus(kind: str, folder: Path, n_documents: int) -> tuple[Path, list[str]]:
    """Write a corpus with some records that are skipped or changed; return it and the arguments that it needs."""
    rng = random.Random(kind)
    words = ["the quick", "brown", "fox's", "jumps,", "über", "漢字", "12", "lazy dogs;\n\n", "", "and", "   sleeps"]
    docs = [f"Document {i}: " + " ".join(rng.choices(words, k=rng.randint(1, 300))) for i in range(n_documents)]
    if kind in ("jsonl", "npy", "shuffled"):
        path = write_jsonl(folder / "c.jsonl", docs)
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(line[:-9] + b"\n" if i % 31 == 7 else line for i, line in enumerate(lines)))
        options = {"npy": ["--layout", "npy", "--keep-shards"], "shuffled": ["--shuffle", "--keep-shards"]}
        return path, ["--skip-bad", *options.get(kind, [])]
    if kind == "parquet":
        return write_parquet(folder / "c.parquet", docs, row_group_size=3), ["--keep-shards"]
    path = folder / "c.txt"
    text = (SEPARATOR if kind == "separated" else " ").join(docs).encode()
    path.write_bytes(text.replace(b"Document 77", b"Docu\xffment 77"))
    return path, ["--errors", "replace", *(["--separator", SEPARATOR] if kind == "separated" else [])]


def undisturbed(path: Path, arguments: list[str], folder: Path) -> dict[str, bytes]:
    """Return every file that a run without a kill leaves, shards kept."""
    command = [sys.executable, ROOT / "prepare.py", path, *arguments, "--keep-shards", "--out", folder]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return {file.name: file.read_bytes() for file in folder.iterdir()}


class Folder:
    """The output folder: what must hold after every kill, and at the end."""

    def __init__(self, path: Path, expected: dict[str, bytes], keep_shards: bool) -> None:
        self.path, self._expected, self.counts = path, expected, list(COUNTS)
        self._names = {name for name in expected if keep_shards or not name.startswith("train_shard_")}
        if not keep_shards:  # then there are none
            self.counts = [name for name in COUNTS if "shard" not in name]
        self.start_over()

    def start_over(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._position: tuple[Any, ...] = ()

    def check(self) -> None:
        """Files with final names are complete (C6), and the record never goes back."""
        for path in (*self.path.glob("*.bin"), *self.path.glob("*.npy")):
            assert path.read_bytes() == self._expected[path.name], f"{path.name} is not complete"
        if record := read_record(self.path):
            state = record.state
            names = ("input", "offset", "train_tokens", "val_tokens", "merged_shards")
            status = ("encoding", "shuffling", "merging", "done").index(state.status)
            position = (status, len(state.shard_sha256), *(getattr(state, name) for name in names))
            assert position >= self._position, f"work done twice: from {self._position} back to {position}"
            self._position = position
        else:
            assert not any(self._position), "the record is gone"  # of nothing none is kept

    def check_done(self) -> None:
        """The bytes, the records and the files are those of an undisturbed run (C5, C8), and nothing else is there."""
        found_names = {path.name for path in self.path.iterdir()}
        assert found_names == self._names, f"left: {found_names - self._names}, missing: {self._names - found_names}"
        for name in self._names - {"prepare.json"}:
            assert (self.path / name).read_bytes() == self._expected[name], name
        found, expected = (
            json.loads(data)["state"]
            for data in ((self.path / "prepare.json").read_bytes(), self._expected["prepare.json"])
        )
        expected["outputs"] = {name: output for name, output in expected["outputs"].items() if name in self._names}
        assert {name: found[name] for name in self.counts} == {name: expected[name] for name in self.counts}


class Watch:
    """What the driver knows of its child: the phase, and how many blocks are not recorded yet."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 16)

    def reset(self) -> None:
        self.phase, self.n_lost = "start", 0

    @property
    def phase(self) -> str:
        return PHASES[self._shared[0]]

    @phase.setter
    def phase(self, phase: str) -> None:
        self._shared[0] = PHASES.index(phase)

    @property
    def n_lost(self) -> int:
        return int(struct.unpack_from("q", self._shared, 8)[0])

    @n_lost.setter
    def n_lost(self, n: int) -> None:
        struct.pack_into("q", self._shared, 8, n)

    def wrap(self, owner: Any, name: str, phase: str | None, seconds: float, after: str | None = None) -> None:
        """Have a function set the phase, and take a little longer."""
        function = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            before, self.phase = self.phase, phase or self.phase
            time.sleep(seconds)
            result = function(*args, **kwargs)
            time.sleep(seconds)
            self.phase = after or before
            return result

        setattr(owner, name, wrapped)

    def count(self, owner: Any, name: str, is_durable: bool) -> None:
        function = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            self.n_lost = 0 if is_durable else self.n_lost + 1
            return result

        setattr(owner, name, wrapped)


def make_slow(watch: Watch) -> None:
    """Small blocks, many commits, and enough time in each phase."""
    from fineweb_stream.output import files, shards
    from fineweb_stream.pipeline import job, run
    from fineweb_stream.pipeline.worker import get_encoder

    get_encoder("tiktoken")
    make_sources = job.make_sources
    job.make_sources = lambda *args: [dataclasses.replace(source, block_bytes=3000) for source in make_sources(*args)]
    run.COMMIT_SECONDS = COMMIT_SECONDS
    watch.count(run.Run, "_absorb", is_durable=False)
    watch.count(run.Record, "write", is_durable=True)
    watch.wrap(files, "_write_all", None, 0.0003)
    watch.wrap(files, "replace", None, 0.001)
    watch.wrap(files, "remove", None, 0.001)
    watch.wrap(files.Part, "copy_from", None, 0.002)
    watch.wrap(run.Run, "_absorb", None, BLOCK_SECONDS / 2)
    watch.wrap(run.Run, "_encode", "encode", 0)
    watch.wrap(run.Run, "_commit", "commit", 0.001)
    watch.wrap(shards.ShardWriter, "_complete_shard", "shard end", 0)
    watch.wrap(run.Run, "_finish_encoding", "end of encoding", 0)
    watch.wrap(run, "merge", "merge", 0, after="finish")


def fork_program(arguments: list[str], log: Path, stdin: Path | None = None) -> int:
    """Run the command line in a child; return its pid."""
    from fineweb_stream import cli

    pid = os.fork()
    if pid == 0:
        try:
            if stdin:
                sys.stdin = stdin.open()
            fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(fd, 1)
            os.dup2(fd, 2)
            status = cli.main(arguments)
            sys.stdout.flush()
            os._exit(status)
        except BaseException:
            traceback.print_exc()
            os._exit(99)
    return pid


def kill(watch: Watch, phase: str, delay: float, program: tuple[Any, ...]) -> int:
    """Fork the program, kill it a moment after it has reached a phase, and return its status; it may end before."""
    watch.reset()
    pid, status, ended = fork_program(*program), 0, 0
    while not ended and watch.phase != phase:
        time.sleep(0.0003)
        ended, status = os.waitpid(pid, os.WNOHANG)
    if not ended:
        time.sleep(delay)
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    return status


def drive_grid(seed: int, folder: Path, n_cells: int, n_kills: int) -> list[str]:
    """Kill the program in cells drawn from GRID, and have it continue each to the end; return their names."""
    import zstandard

    watch, rng, programs = Watch(), random.Random(seed), {}
    for kind, suffix, val in rng.sample(GRID, n_cells):
        name = " ".join([kind, suffix, *val])
        (cell := folder / str(len(programs))).mkdir()
        path, options = write_corpus(kind, cell, 60)
        if suffix not in ("", "-"):
            data = path.read_bytes()
            path = path.with_name(path.name + suffix)
            path.write_bytes(gzip.compress(data) if suffix == ".gz" else zstandard.ZstdCompressor().compress(data))
        (cell / "v").mkdir()
        val_path, _ = write_corpus(kind, cell / "v", 20)
        arguments = ["-" if suffix == "-" else str(path), *options, *(v.format(val_path) for v in val)]
        arguments += ["--format", "jsonl" if kind == "jsonl" else "text"] * (suffix == "-")
        arguments += ["--shard-tokens", str(rng.choice((1000, 4000))), "--engine", "tiktoken", "--workers", "2"]
        program = (arguments, cell / "log", path if suffix == "-" else None)
        whole = fork_program([*arguments, "--keep-shards", "--out", str(cell / "expected")], *program[1:])
        assert os.waitpid(whole, 0)[1] == 0, (name, (cell / "log").read_text())
        programs[name] = program
    make_slow(watch)
    for name, (arguments, log, stdin) in programs.items():
        expected = {p.name: p.read_bytes() for p in log.with_name("expected").iterdir()}
        out = Folder(log.with_name("out"), expected, "--keep-shards" in arguments)
        program = ([*arguments, "--out", str(out.path)], log, stdin)
        for _ in range(n_kills):
            phase = rng.choice(("encode", *PHASES))
            status = kill(watch, phase, rng.uniform(0, rng.choice((0.005, 0.05, 0.2))), program)
            assert status in (0, signal.SIGKILL), (name, status, log.read_text())
            out.check()
        assert os.waitpid(fork_program(*program), 0)[1] == 0, (name, log.read_text())
        out.check_done()
    return list(programs)


def drive(kind: str, arguments: list[str], out: Path) -> dict[str, Any]:
    """Kill N_KILLS children, each in a phase and after a moment that a seeded generator draws."""
    from fineweb_stream import cli

    expected = out.with_name("expected")
    undisturbed = [*arguments[:-1], str(expected), "--keep-shards"]
    if kind == "parquet":  # it leaves threads
        assert os.waitpid(fork_program(undisturbed, out.with_name("log")), 0)[1] == 0
        for name in ("pyarrow.compute", "pyarrow.parquet"):  # imports leave none, and are half of a child's time
            importlib.import_module(name)
    else:  # here, so that the children find all imported
        with contextlib.redirect_stdout(io.StringIO()):
            assert cli.main(undisturbed) == 0
    watch, rng, hits, gaps = Watch(), random.Random(kind), collections.Counter[str](), []
    folder = Folder(out, {p.name: p.read_bytes() for p in expected.iterdir()}, "--keep-shards" in arguments)
    make_slow(watch)
    deadline = time.monotonic() + 10
    while len(os.listdir("/proc/self/task")) > 1 and time.monotonic() < deadline:
        time.sleep(0.01)  # the system may still be ending a thread that was joined
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads must not fork"
    n_runs = max_lost = 0
    last_kill = time.monotonic()
    while sum(hits.values()) < N_KILLS or ((min(hits[p] for p in PHASES) < 2 or hits["merge"] < 6) and n_runs < 99):
        rarest = min(PHASES, key=lambda phase: hits[phase])
        # Every fourth comes right after another, before the program has done anything; some come long after the phase.
        wish = "start" if sum(hits.values()) % 4 == 3 else rng.choice((rarest, rng.choice(PHASES)))
        delay = rng.uniform(0, 0.02 if wish == "start" else rng.choice((0, 0.005, 0.02, 0.3)))
        status = kill(watch, wish, delay, (arguments, out.with_name("log")))
        if os.WIFSIGNALED(status):
            hits[watch.phase] += 1
            now = time.monotonic()
            gaps.append(now - last_kill)
            last_kill, max_lost = now, max(max_lost, watch.n_lost)
            assert watch.n_lost <= MAX_LOST_BLOCKS, f"{watch.n_lost} blocks must be done again"
            folder.check()
        else:  # it was done before the phase came, or before the kill
            assert os.WEXITSTATUS(status) == 0, f"exit {os.WEXITSTATUS(status)}"
            folder.check_done()
            folder.start_over()
            n_runs += 1
    _, status = os.waitpid(fork_program(arguments, out.with_name("log")), 0)
    assert status == 0
    folder.check_done()
    n_close = sum(gap < 0.05 for gap in gaps)
    return {"hits": hits, "close": n_close, "runs": n_runs + 1, "lost": max_lost}


@pytest.mark.parametrize("kind", KINDS)
def test_kill_storm(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """However often and in whatever phase it is killed: the same bytes, no temporary file, few blocks done twice."""
    path, options = write_corpus(kind, tmp_path, 150)
    arguments = [str(path), *options, "--shard-tokens", "5500", "--engine", "tiktoken", "--workers", "2"]
    command = [sys.executable, "-m", "tests.test_kill_storm", kind, *arguments]
    # No library starts a thread when it is imported.
    env = os.environ | {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
    done = subprocess.run(
        [*command, "--out", tmp_path / "out"], capture_output=True, text=True, cwd=ROOT, env=env, timeout=300
    )
    log = tmp_path / "log"
    assert done.returncode == 0, done.stderr + (log.read_text()[-3000:] if log.exists() else "")
    report = json.loads(done.stdout)
    assert set(report["hits"]) == set(PHASES), "a phase was never hit"
    assert report["hits"]["merge"] >= 6
    assert report["close"] >= 3, "no kills in quick succession"
    with capsys.disabled():
        print(f"\n{kind}: {sum(report['hits'].values())} kills in {report['runs']} runs, {report['hits']};")
        print(f"  {report['close']} less than 50 ms after another; at most {report['lost']} blocks done twice")


def test_some_of_the_grid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Compressed or piped, with any kind of val: killed and continued, it gives the bytes of an undisturbed run."""
    pytest.importorskip("zstandard")
    seed = random.randrange(1 << 16)
    command = [sys.executable, "-m", "tests.test_kill_storm", "grid", str(seed), tmp_path, "5", "3"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, f"seed {seed}: {done.stderr}"
    with capsys.disabled():
        print(f"\nseed {seed}: 3 kills in each of {json.loads(done.stdout)}")


@pytest.mark.parametrize("kind", [*KINDS, "npy", "shuffled"])
def test_kill_the_program(kind: str, tmp_path: Path, run_program: Any) -> None:
    """The same for prepare.py as it is, killed at moments spread over its whole run."""
    path, options = write_corpus(kind, tmp_path, 3000)
    arguments = [str(path), *options, "--shard-tokens", "60000"]
    start = time.monotonic()
    expected = undisturbed(path, arguments[1:], tmp_path / "expected")
    seconds, rng = time.monotonic() - start, random.Random(kind)
    folder = Folder(tmp_path / "out", expected, "--keep-shards" in arguments)
    command = [sys.executable, ROOT / "prepare.py", *arguments, "--out", folder.path]
    for i in range(N_PROGRAM_KILLS):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as program:
            time.sleep(seconds * (0.3 + 0.7 * (i + rng.random()) / N_PROGRAM_KILLS))
            program.kill()
        folder.check()
    assert run_program(*arguments, "--out", folder.path).returncode == 0
    folder.check_done()


if __name__ == "__main__":
    if sys.argv[1] == "grid":
        print(json.dumps(drive_grid(int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))))
    else:
        print(json.dumps(drive(sys.argv[1], sys.argv[2:], Path(sys.argv[-1]))))
