"""Memory in real control groups: no process is killed, and a run waits while another process takes the memory.

The inputs are a tenth of real ones. FINEWEB_STREAM_FULL_SIZE=1 makes them full-sized (3 GB of text, a row group of
1.5 GB, 30 million documents, 50 documents of 20 MB), which takes several minutes.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import random
import re
import string
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiktoken

from fineweb_stream import prepare
from fineweb_stream.memory.guard import MB
from fineweb_stream.tokenizer.gpt2 import EOT_ID

from .conftest import ROOT
from .helpers import both_splits, document_ids, outputs, split_at_eot, write_jsonl

pytestmark = pytest.mark.slow
SCALE = 1.0 if os.environ.get("FINEWEB_STREAM_FULL_SIZE") else 0.1
GROUPS = [Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")]
DRIVER = """
import sys
from fineweb_stream import cli
from fineweb_stream.memory import guard
from fineweb_stream.pipeline import run

absorb, n_blocks = run.Run._absorb, 0

def wait_at_third(*args):
    global n_blocks
    n_blocks += 1
    if n_blocks == 3:
        print("at the third block", flush=True)
        input()
    return absorb(*args)

run.Run._absorb = wait_at_third
guard.PATIENCE_SECONDS = float(sys.argv.pop(1))
sys.exit(cli.main(sys.argv[1:]))
"""

RIVAL = """
import threading, time
from fineweb_stream.support.cgroups import memory_groups

def grow():
    held = []
    while True:
        _, limit, used = memory_groups()[0]
        if limit - used > 25_000_000:  # the group's reserve is 5%: 36 MB
            held.append(b"x" * 1_000_000)
        else:
            print(flush=True)
            time.sleep(0.01)

threading.Thread(target=grow, daemon=True).start()
input()
"""


class Group:
    """A memory control group without swap, of whichever version the machine has."""

    def __init__(self, limit_mb: int) -> None:
        self.folder = next(root for root in GROUPS if (root / "cgroup.procs").exists()) / f"fineweb_{os.getpid()}"
        self.folder.mkdir()
        self._is_v1 = (self.folder / "memory.limit_in_bytes").exists()
        name = "memory.limit_in_bytes" if self._is_v1 else "memory.max"
        (self.folder / name).write_text(str(limit_mb << 20))
        if not self._is_v1:
            (self.folder / "memory.swap.max").write_text("0")

    def start(self, *command: object, **options: object) -> subprocess.Popen[str]:
        """Start a process inside."""
        procs = str(self.folder / "cgroup.procs")

        def enter() -> None:
            with open(procs, "w") as file:  # a Path would import here, after the fork
                file.write(str(os.getpid()))

        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}
        return subprocess.Popen([*map(str, command)], preexec_fn=enter, **(pipes | options))  # type: ignore[call-overload,no-any-return]

    @property
    def n_killed(self) -> int:
        """How many processes the kernel has killed for memory in it."""
        text = (self.folder / ("memory.oom_control" if self._is_v1 else "memory.events")).read_text()
        return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill "))

    def remove(self) -> None:
        """Remove it, once all in it has ended."""
        for _ in range(50):
            try:
                return self.folder.rmdir()
            except OSError:
                time.sleep(0.1)


@pytest.fixture
def make_group() -> Iterator[object]:
    made: list[Group] = []

    def make(limit_mb: int) -> Group:
        try:
            made.append(Group(limit_mb))
        except (OSError, StopIteration) as error:
            pytest.skip(f"a memory control group cannot be made here: {error}")
        return made[-1]

    yield make
    for group in made:
        group.remove()


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    """On a disk: files in memory would count as the group's."""
    return disk_path


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Long texts of many different words, which fill an engine's caches."""
    rng = random.Random(1)
    words = ["".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 10))) for _ in range(200_000)]
    return [" ".join(rng.choices(words, k=150_000)) for _ in range(8)]  # about a MB each


@pytest.fixture(scope="module")
def easy_texts(reference: tiktoken.Encoding) -> list[str]:
    """The same of a few words that are a token each: they are encoded five times as fast."""
    rng = random.Random(1)
    words = [f"{reference.decode([i])}"[1:] for i in range(5000, 50_000)]
    words = rng.choices([word for word in words if len(word) > 7 and word.isascii() and word.isalpha()], k=300)
    return [" ".join(rng.choices(words, k=105_000)) for _ in range(8)]


def write_text(folder: Path, texts: list[str]) -> Path:
    path = folder / "c.txt"  # no newline in all of it
    with path.open("w") as file:
        while file.tell() < 3000 * MB * SCALE:
            file.write(random.choice(texts) + " ")
    return path


def write_row_group(folder: Path, texts: list[str]) -> Path:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    docs: list[str] = []
    n_bytes = 0
    while n_bytes < 1500 * MB * SCALE:
        start = random.randrange(900_000)
        docs.append(random.choice(texts)[start : start + random.randint(1000, 6000)])
        n_bytes += len(docs[-1])
    pq.write_table(pa.table({"text": docs}), folder / "c.parquet", row_group_size=10**9, compression="zstd")
    return folder / "c.parquet"


def write_tiny(folder: Path, texts: list[str]) -> Path:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    # Else fewer than 8 MiB of text, so that their number alone must not have them read whole.
    docs = pa.array([str(i % 977) for i in range(30_000_000 if SCALE == 1 else 900_000)])
    pq.write_table(pa.table({"text": docs}), folder / "t.parquet", row_group_size=10**9, compression="zstd")
    return folder / "t.parquet"


def write_long_documents(folder: Path, texts: list[str]) -> Path:
    with (folder / "c.jsonl").open("w") as file:
        for _ in range(int(50 * SCALE)):
            file.write(json.dumps({"text": " ".join(random.choices(texts, k=20))[:20_000_000]}) + "\n")
    return folder / "c.jsonl"


def write_long_rows(folder: Path, texts: list[str], n_short: int = 0, **options: object) -> Path:
    """One row group of long documents, each with pages of its own, after so many short ones."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    options = {"use_dictionary": False, "write_batch_size": 1} | options
    with pq.ParquetWriter(
        folder / "c.parquet", pa.schema({"text": pa.string()}), compression="zstd", **options
    ) as file:
        docs = ["short"] * n_short + [
            " ".join(random.choices(texts, k=20))[:20_000_000] for _ in range(int(50 * SCALE))
        ]
        file.write_table(pa.table({"text": docs}), row_group_size=10**9)
    return folder / "c.parquet"


def write_documents(folder: Path, texts: list[str], times: int) -> Path:
    docs = [text[i * 2000 : (i + 1) * 2000] for text in texts for i in range(400)]
    return write_jsonl(folder / "c.jsonl", docs * times)


WRITERS = (write_text, write_row_group, write_tiny, write_long_documents)


@pytest.mark.parametrize(
    ("limit_mb", "write"),
    [*itertools.product([800, 450], WRITERS), (800, write_long_rows)],  # for which 450 MiB are named as too little
)
def test_inside_a_small_group(make_group, texts, easy_texts, tmp_path, capsys, limit_mb: int, write) -> None:
    """A long text, a huge row group, tiny and huge documents: every run finishes and none is killed."""
    if write is write_text and limit_mb == 800:
        texts = texts + 4 * easy_texts  # which fill the caches as well
    elif write in (write_row_group, write_long_rows) or limit_mb == 450:  # the slower engine has no cache
        texts = easy_texts
    path = write(tmp_path, texts)
    group = make_group(limit_mb)
    done = group.start(sys.executable, ROOT / "prepare.py", path, "--out", tmp_path / "out")
    out, errors = done.communicate(timeout=1200)
    assert done.returncode == 0, errors
    assert group.n_killed == 0
    assert "control group" in out
    assert ("tiktoken" in out or "1 worker" in out) if limit_mb == 450 else "gigatoken" in out
    memory = json.loads((tmp_path / "out" / "prepare.json").read_text())["state"]["memory"]
    assert memory["peak_bytes"] < memory["budget_bytes"]
    with capsys.disabled():
        print(f"\n{write.__name__} in {limit_mb} MiB: peak {memory['peak_bytes'] / MB:.0f} MB")


def read_until(program: subprocess.Popen[str], part: str) -> str:
    """Return the output up to the line that contains `part`."""
    assert program.stdout
    said = ""
    for line in program.stdout:
        said += line
        if part in line:
            return said
    raise AssertionError(f"it never said {part!r}: {said}")


@pytest.mark.parametrize("stays", [False, True])
def test_a_rival_for_memory(make_group, easy_texts, tmp_path, stays: bool) -> None:
    """A rival takes memory: the run pauses, and goes on if it ends, or else saves and exits. The same bytes."""
    path = write_documents(tmp_path, easy_texts, 5)
    prepare(path, tmp_path / "expected", quiet=True)
    group = make_group(700)
    command = [sys.executable, "-c", DRIVER, "2" if stays else "60", path, "--out", tmp_path / "out"]
    command += ["--engine", "tiktoken", "--memory", "200MB"]
    program = group.start(*command, stdin=subprocess.PIPE, stderr=subprocess.STDOUT)
    said = read_until(program, "at the third block")
    rival = group.start(sys.executable, "-c", RIVAL, stdin=subprocess.PIPE)
    assert program.stdin and rival.stdout and rival.stdout.readline()
    program.stdin.write("\n")
    program.stdin.flush()
    said += read_until(program, "memory: drain: the system is")
    if not stays:
        rival.communicate("\n")
    said += program.communicate(timeout=120)[0]
    if stays:
        assert program.returncode == 3, said
        assert "the same command continues" in said
        rival.communicate("\n")
        prepare(path, tmp_path / "out", quiet=True)
    else:
        assert program.returncode == 0, said
        assert "memory: run: pressure is gone" in said
    assert group.n_killed == 0
    assert outputs(tmp_path / "out") == outputs(tmp_path / "expected")


def test_a_budget_is_kept(run_process, easy_texts, tmp_path) -> None:
    """--memory 300MB with 8 workers: the plan says why it takes the slower engine, and the peak stays below."""
    pytest.importorskip("gigatoken")
    path = write_documents(tmp_path, easy_texts, 10)
    done = run_process(path, "--memory", "300MB", "--workers", "8")
    assert done.returncode == 0, done.stderr
    assert "workers with tiktoken" in done.stdout
    assert "(no room for gigatoken, which is several times as fast: give it more with --memory)" in done.stdout
    memory = json.loads((tmp_path / "out" / "prepare.json").read_text())["state"]["memory"]
    assert memory["peak_bytes"] < 300 * MB
    assert not memory["steps"]


def test_a_document_too_large_is_named(run_process, texts, tmp_path) -> None:
    """A line too large for the budget: exit 3 with its place and size; --skip-bad skips and counts it."""
    docs = ["the first document", " ".join(texts * 8), "the last document"]
    path = write_jsonl(tmp_path / "c.jsonl", docs)
    done = run_process(path, "--memory", "200MB")
    assert done.returncode == 3, done.stderr
    assert "c.jsonl, line 2 (byte 40): a document of" in done.stderr
    assert "--skip-bad" in done.stderr
    done = run_process(path, "--memory", "200MB", "--skip-bad")
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "out" / "prepare.json").read_text())
    assert record["state"]["n_changes"] == {"skipped": 1}
    assert record["state"]["train_documents"] + record["state"]["val_documents"] == 2


@pytest.mark.parametrize("kind", ["jsonl", "separated"])
@pytest.mark.parametrize("comes", ["packed", "piped"])
def test_a_document_of_a_stream_too_large_is_named(run_process, reference, tmp_path, kind: str, comes: str) -> None:
    """A document larger than the budget is never held: it is named with its size, or skipped and counted."""
    docs = [f"document {i}" for i in range(3000)]
    docs[2000] = " ".join(["immense"] * 30_000_000)
    if kind == "jsonl":
        data, options = b"".join(json.dumps({"text": doc}).encode() + b"\n" for doc in docs), ["--format", "jsonl"]
    else:
        data, options = "<|>".join(docs).encode(), ["--separator", "<|>"]
    options += ["--memory", "200MB", "--val-ratio", "0.01"]
    piped = None
    if comes == "packed":
        (tmp_path / "c.gz").write_bytes(gzip.compress(data, 1))
        options = [str(tmp_path / "c.gz"), *options, *["--format", "text"] * (kind == "separated")]
    else:
        options, piped = ["-", *options], data.decode()
    done = run_process(*options, input=piped)
    assert done.returncode == 3, done.stderr
    assert re.search(r"(line|document) 2,001 \(byte [\d,]+\): a document of 240\.0 MB", done.stderr), done.stderr
    done = run_process(*options, "--skip-bad", input=piped)
    assert done.returncode == 0, done.stderr
    state = json.loads((tmp_path / "out" / "prepare.json").read_text())["state"]
    assert state["n_changes"] == {"skipped": 1}
    assert state["train_documents"] + state["val_documents"] == 2999
    assert state["memory"]["peak_bytes"] < 200 * MB
    made = sorted(split_at_eot(both_splits(tmp_path / "out")))
    assert made == sorted(document_ids(reference, docs[:2000] + docs[2001:]))


@pytest.mark.parametrize("n_short", [0, 5 * 1024])
def test_a_page_too_large_is_named(run_process, texts, tmp_path, n_short: int) -> None:
    """Long documents in one page, which is decoded whole: exit 3 with rows and size, before anything is written."""
    path = write_long_rows(tmp_path, texts, n_short, write_batch_size=1024)
    done = run_process(path, "--memory", "300MB")
    assert done.returncode == 3, done.stdout
    assert f"c.parquet, rows 1 to {n_short + int(50 * SCALE):,}: a page of " in done.stderr
    assert "write_batch_size=1" in done.stderr
    assert not list((tmp_path / "out").glob("*.bin*"))


def test_repeats_in_a_dictionary_are_bounded(run_process, reference, tmp_path) -> None:
    """A parquet file of a few kB whose rows are all one long text: memory is bounded, and the estimate counts each."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    text = "word and other " * 60_000
    pq.write_table(pa.table({"text": [text] * 200}), tmp_path / "c.parquet", row_group_size=10**9)
    done = run_process("c.parquet", "--memory", "200MB", "--val-ratio", "0.02", "--max-tokens", "9000000")
    assert done.returncode == 0, done.stderr
    state = json.loads((tmp_path / "out" / "prepare.json").read_text())["state"]
    assert state["memory"]["peak_bytes"] < 200 * MB
    estimate = int(done.stdout.split("tokens: about ")[1].split()[0].replace(",", ""))
    assert abs(estimate / (200 * len([*reference.encode_ordinary(text), EOT_ID])) - 1) < 0.03


def test_dry_run_estimates_and_writes_nothing(corpus, run_process, tmp_path) -> None:
    """--dry-run: an estimate within 3% of the tokens of the shared corpora, and no file."""
    for name, n_tokens in (("fineweb_1mb.txt", 217_888), ("english_48mb.parquet", 15_174_885)):
        done = run_process(corpus(name), "--dry-run")
        assert done.returncode == 0, done.stderr
        estimate = int(done.stdout.split("tokens: about ")[1].split()[0].replace(",", ""))
        assert abs(estimate / n_tokens - 1) < 0.03
        assert not list(tmp_path.iterdir())


def test_use_does_not_creep_up(run_process, tmp_path) -> None:
    """Texts with one, two and four bytes a character leave holes in memory, which are given back to the system."""
    library = Path(os.__file__).parent
    texts = [path.read_text("utf-8", "replace") for name in ("*.py", "*/*.py") for path in sorted(library.glob(name))]
    with (tmp_path / "c.txt").open("w", encoding="utf-8") as file:
        while file.tell() < 96 * MB:
            file.writelines(texts)
    done = run_process(tmp_path / "c.txt", "--engine", "tiktoken", "--workers", 2)
    assert done.returncode == 0, done.stderr
    planned = int(re.search(r"about (\d+) MB$", done.stdout, re.MULTILINE).group(1))
    peak = json.loads((tmp_path / "out" / "prepare.json").read_text())["state"]["memory"]["peak_bytes"] / MB
    print(f"planned {planned} MB, peak {peak:.0f} MB")
    assert peak < 1.2 * planned
