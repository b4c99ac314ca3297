"""The registry: every case's name, what it is, the command that runs it, and the case that it is compared with."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from .corpus import FORMATS, Corpus

ROOT = Path(__file__).resolve().parents[2]
N_WORKERS = (1, 2)


@dataclass(frozen=True)
class Setup:
    """Where things are on this machine."""

    corpus: Corpus
    datatrove_python: str | None
    tokenizer_json: Path


Command = Callable[[Setup, Path], list[str]]  # the second is the folder for what it writes


@dataclass(frozen=True)
class Case:
    """`times_itself`: it prints its seconds; else the whole process is timed. `needs` are modules."""

    name: str
    what: str
    command: Command
    base: str | None = None
    times_itself: bool = False
    needs: tuple[str, ...] = ()
    writes_ids: bool = False
    waits_for_workers: bool = True  # else their CPU time is not known

    @property
    def group(self) -> str:
        return self.name.partition("-")[0]

    def missing(self, setup: Setup) -> str:
        """Say what this machine lacks for it."""
        if self.name == "loop-datatrove" and not setup.datatrove_python:
            return "--datatrove-python"
        lacking = [name for name in self.needs if not (shutil.which(name) or find_spec(name))]
        return ", ".join(lacking)


def all_cases() -> dict[str, Case]:
    """Every case by its name, in the order of the table."""
    cases = [*_encode_cases(), *_read_cases(), *_start_cases(), *_prepare_cases(), *_tenfold_cases(), *_loop_cases()]
    cases += [*_floor_cases(), _check_case(), *_limit_cases()]
    return {case.name: case for case in cases}


def count_ids(out: Path) -> int:
    """Count the ids in the files that a case wrote."""
    n_bytes = sum(path.stat().st_size for pattern in ("*.bin", "ids/*.ds") for path in out.glob(pattern))
    return n_bytes // 2 + sum(len(np.load(path, mmap_mode="r")) for path in out.glob("*.npy"))


def _inside(name: str, what: str, base: str | None = None, *needs: str) -> Case:
    def command(setup: Setup, out: Path) -> list[str]:
        return [sys.executable, "-m", "tests.bench.inside", name, str(setup.corpus.folder)]

    return Case(name, what, command, base, times_itself=True, needs=needs)


def _encode_cases() -> list[Case]:
    base = "encode-tiktoken-ordinary"
    cases = [_inside(base, "tiktoken encode_ordinary, one document a call")]
    for n in N_WORKERS:
        cases.append(_inside(f"encode-tiktoken-batch-{n}", f"tiktoken encode_ordinary_batch, {_threads(n)}", base))
    for engine in ("tiktoken", "gigatoken"):
        for n in N_WORKERS:
            cases.append(_inside(f"encode-{engine}-{n}", f"our Encoder, {engine}, {_threads(n)}", base, engine))
    for n in N_WORKERS:
        what = f"our Encoder, gigatoken, one long text, {_threads(n)}"
        cases.append(_inside(f"encode-txt-gigatoken-{n}", what, base, "gigatoken"))
    return cases


def _threads(n: int) -> str:
    return f"{n} thread{'s' if n > 1 else ''}"


def _read_cases() -> list[Case]:
    what = {"parquet": "parquet's text column to str", "jsonl": "jsonl to str", "txt": "UTF-8 to str"}
    return [_inside(f"read-{kind}", f"{what[kind]}, 1 thread") for kind in FORMATS]


def _prepare(path: str, engine: str, n_workers: int) -> Command:
    def command(setup: Setup, out: Path) -> list[str]:
        options = ["--out", str(out), "--engine", engine, "--workers", str(n_workers)]
        return [sys.executable, str(ROOT / "prepare.py"), str(setup.corpus.path(path)), *options]

    return command


def _start_cases() -> list[Case]:
    what = "prepare.py on 20 kB of"
    return [
        Case(f"start-{kind}", f"{what} {kind}", _prepare(f"tiny.{kind}", "gigatoken", 2), needs=("gigatoken",))
        for kind in FORMATS
    ]


def _prepare_cases() -> list[Case]:
    return [
        Case(
            f"prepare-{kind}-{engine}-{n}",
            f"prepare.py, {kind}, {engine}, {n} worker{'s' if n > 1 else ''}",
            _prepare(f"corpus.{kind}", engine, n),
            base="loop-build-nanogpt",
            needs=(engine,),
            writes_ids=kind != "txt",  # a text's own ids, without end-of-text ids, are another number
        )
        for engine in ("gigatoken", "tiktoken")
        for kind in FORMATS
        for n in N_WORKERS
    ]


def _tenfold_cases() -> list[Case]:
    tenth, ten = _prepare("tenth.parquet", "gigatoken", 2), _prepare("ten", "gigatoken", 2)
    return [
        Case("scale-tenth", "prepare.py, parquet, every tenth document", tenth, needs=("gigatoken",)),
        Case("scale-ten", "prepare.py, parquet, the file ten times", ten, needs=("gigatoken",)),
    ]


def _loop(name: str, what: str, *needs: str) -> Case:
    def command(setup: Setup, out: Path) -> list[str]:
        return [sys.executable, "-m", "tests.bench.loops", name, str(setup.corpus.folder), str(out)]

    return Case(f"loop-{name}", what, command, "loop-build-nanogpt", needs=needs, writes_ids=True)


def _loop_cases() -> list[Case]:
    def datatrove(setup: Setup, out: Path) -> list[str]:
        script = Path(__file__).with_name("datatrove_loop.py")
        python = setup.datatrove_python or ""
        return [python, str(script), str(setup.corpus.path("halves")), str(setup.tokenizer_json), str(out)]

    what = "datatrove DocumentTokenizer, 2 workers"
    return [
        _loop("build-nanogpt", "build-nanogpt's loop, 2 processes"),
        _loop("openwebtext", "nanoGPT's datasets.map + memmap, 2 processes", "datasets"),
        _loop("plain", "plain streaming script, 1 process"),
        Case("loop-datatrove", what, datatrove, "loop-build-nanogpt", writes_ids=True, waits_for_workers=False),
    ]


def _floor_cases() -> list[Case]:
    scripts = {"wc": 'wc -c "$0"', "cat": 'cat "$0" > "$1"', "cat-sync": 'cat "$0" > "$1" && sync "$1"'}
    what = {"wc": "wc -c {}", "cat": "cat {} > file", "cat-sync": "cat {} > file, and sync it"}

    def command(kind: str, script: str) -> Command:
        return lambda setup, out: ["sh", "-c", script, str(setup.corpus.path(f"corpus.{kind}")), str(out / "copy")]

    return [
        Case(f"floor-{name}-{kind}", what[name].format(kind), command(kind, script), needs=("sh", "wc", "cat", "sync"))
        for kind in ("parquet", "txt")
        for name, script in scripts.items()
    ]


def _limit_cases() -> list[Case]:
    what = "row group, join, gigatoken, uint16: nothing else,"
    bare = [_inside(f"bare-parquet-{n}", f"{what} {_threads(n)}", "loop-build-nanogpt", "gigatoken") for n in N_WORKERS]
    what = "share of the time that the global lock is held, 2 workers,"
    return [*bare, *(_inside(f"gil-{kind}", f"{what} {kind}", None, "gigatoken", "py-spy") for kind in FORMATS)]


def _check_case() -> Case:
    return _inside("check-share", "prepare() in-process, parquet, gigatoken, 1 worker", None, "gigatoken")
