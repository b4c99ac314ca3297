"""The program as a person runs it: the demo, the defaults, odd surroundings."""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import itertools
import json
import os
import pickle
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fineweb_stream import InputError, cli, prepare
from fineweb_stream.inputs.demo import demo_input
from fineweb_stream.inputs.sources import make_sources
from fineweb_stream.inputs.standard_input import is_piped
from fineweb_stream.support.model import ReadOptions

from .conftest import ROOT
from .helpers import both_splits, document_ids, outputs, read_ids, split_at_eot, write_jsonl

DOCS = [f"Ünïcode document {i}: 漢字, it's {'more ' * i}text." for i in range(60)]


def test_demo(reference, run_process, tmp_path) -> None:
    """--demo: the topics of the language reference, exactly, with both splits fit to train on."""
    from pydoc_data.topics import topics

    done = run_process("--demo", "--out", "demo")
    assert done.returncode == 0, done.stderr
    expected = document_ids(reference, [topics[name] for name in sorted(topics)])
    assert sorted(split_at_eot(both_splits(tmp_path / "demo"))) == sorted(expected)
    assert len(read_ids(tmp_path / "demo" / "val.bin")) > 1024
    assert "python train.py --dataset=demo" in done.stdout
    assert "warning" not in done.stdout


def test_a_worker_has_the_demo_of_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of the demo carries its text, which differs between Python versions."""
    (block,) = make_sources([demo_input()], ReadOptions())[0].iter_blocks()
    expected = block.read()
    monkeypatch.setattr("pydoc_data.topics.topics", {"other": "text of another version"})
    batch = pickle.loads(pickle.dumps(block)).read()
    assert bytes(batch.data) == bytes(expected.data) and batch.ends.tolist() == expected.ends.tolist()


def test_verify_sees_every_kind_of_damage(run_program, tmp_path) -> None:
    """--verify passes on what was made, and names the file when a byte, the size or the record is off."""
    assert run_program("--demo", "--out", "o").returncode == 0
    good = run_program("--verify", "--out", "o")
    assert good.returncode == 0
    assert "SHA-256 as recorded" in good.stdout
    path = tmp_path / "o" / "train.bin"
    data = path.read_bytes()
    for damaged, part in (
        (data[:-2], "missing or not"),
        (data[:100] + bytes([data[100] ^ 1]) + data[101:], "SHA-256"),
        (b"\xff\xff" + data[2:], "holds id 65535"),
    ):
        path.write_bytes(damaged)
        done = run_program("--verify", "--out", "o")
        assert done.returncode == 2
        assert f"{path.name}: " in done.stderr
        assert part in done.stderr
    (tmp_path / "o" / "prepare.json").unlink()
    assert run_program("--verify", "--out", "o").returncode == 2


def test_record_says_what_was_made(run_program, tmp_path) -> None:
    """prepare.json: inputs, settings, versions, counts and the hashes that sha256sum prints."""
    import hashlib

    path = write_jsonl(tmp_path / "c.jsonl", DOCS)
    assert run_program(path, "--out", "o", "--shard-tokens", "500", "--keep-shards", "--seed", 7).returncode == 0
    record = json.loads((tmp_path / "o" / "prepare.json").read_text())
    assert record["inputs"][0]["path"] == str(path)
    assert record["inputs"][0]["size"] == path.stat().st_size
    assert record["settings"]["seed"] == 7
    assert record["end_of_text"]["id"] == 50256
    assert record["versions"]["tiktoken"]
    state = record["state"]
    assert state["train_documents"] + state["val_documents"] == len(DOCS)
    for name, output in state["outputs"].items():
        data = (tmp_path / "o" / name).read_bytes()
        assert (output["bytes"], output["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    shards = sorted((tmp_path / "o").glob("train_shard_*"))
    assert state["shard_sha256"] == [hashlib.sha256(p.read_bytes()).hexdigest() for p in shards]


def copy_program(folder: Path) -> Path:
    """Copy what a user copies into their data folder."""
    shutil.copytree(ROOT / "fineweb_stream", folder / "fineweb_stream", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "prepare.py", folder)
    return folder / "prepare.py"


@pytest.mark.parametrize("name", ["train_fineweb.txt", "part.jsonl"])
def test_no_arguments(tmp_path, name: str) -> None:
    """Without arguments, the program reads what is beside the script, says what, and writes there."""
    program = copy_program(tmp_path)
    write_jsonl(tmp_path / "part.jsonl", DOCS)
    if name.endswith(".txt"):
        (tmp_path / name).write_text("\n".join(DOCS * 9), encoding="utf-8")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, cwd=elsewhere, timeout=100)
    assert done.returncode == 0, done.stderr
    assert f"using {tmp_path / name}" in done.stdout
    assert {"train.bin", "val.bin", "prepare.json"} <= {p.name for p in tmp_path.iterdir()}
    assert not list(elsewhere.iterdir())


def test_a_package_of_another_name(tmp_path: Path) -> None:
    """Copied into a package of the user's, under any name, the package names itself in what is to be typed."""
    shutil.copytree(ROOT / "fineweb_stream", tmp_path / "data" / "tokens")
    for command in (
        ["-c", "from data.tokens import open_tokens; open_tokens('no')"],
        ["-m", "data.tokens", "inspect", "no"],
    ):
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=tmp_path, timeout=60)
        assert done.stderr.endswith(
            "no: no such file\n  check the path, or make it: python -m data.tokens INPUT --out no\n"
        )


def test_defaults_beside_the_script(tmp_path, monkeypatch) -> None:
    """NanoGPT's own `input.txt` comes before other files, `train_fineweb.txt` before it; one format alone is read."""
    from fineweb_stream.inputs.discover import DEFAULT_CORPUS, default_names

    monkeypatch.chdir(tmp_path)
    expected = [DEFAULT_CORPUS]
    for name in (
        "requirements.txt",
        "notes.TXT",
        "a.jsonl.gz",
        "b.JSONL",
        "c.parquet",
        "input.txt",
        "train_fineweb.txt",
    ):
        Path(name).touch()
        last = [name] if name != "requirements.txt" else expected
        expected = ["a.jsonl.gz", "b.JSONL"] if name == "b.JSONL" else last
        assert default_names(Path()) == expected


BESIDE: dict[str, tuple[dict[str, str], list[str], str]] = {
    "splits": ({"train.txt": "a", "val.txt": "b"}, ["train.txt", "val.txt"], "files of several splits are read"),
    "a table": ({"corpus.csv": "id,text\n1,one\n2,two\n", "Makefile": "all:\n"}, [], "not read: corpus.csv beside"),
    "metadata": (
        {"a.json": '{"text": "a"}\n', "b.jsonl": "", "c.json": "{\n}"},
        ["a.json", "b.jsonl"],
        "not read: c.json",
    ),
    "a download": ({"a.txt": "", "b.jsonl.part": "", "README.txt.bak": ""}, ["a.txt"], "read: b.jsonl.part beside"),
    "a download alone": ({"a.txt.crdownload": "words"}, [], "not read: a.txt.crdownload beside"),
    "a broken link": ({"input.txt": "", "a.txt": "a"}, ["input.txt"], "not read: a.txt"),
}


@pytest.mark.parametrize("kind", BESIDE)
def test_what_is_passed_over_beside_the_script(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is said, also before tens of GB are fetched instead; what cannot be read is named, not passed over."""
    from fineweb_stream.inputs.discover import DEFAULT_CORPUS, default_names

    files, expected, said = BESIDE[kind]
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    if kind == "a broken link":
        (tmp_path / "input.txt").unlink()
        (tmp_path / "input.txt").symlink_to("gone.txt")
    assert default_names(tmp_path) == ([str(tmp_path / name) for name in expected] or [DEFAULT_CORPUS])
    assert said in caplog.text and "Makefile" not in caplog.text


def test_a_pipe_that_is_not_named(tmp_path) -> None:
    """A pipe is read; with a corpus beside the script, it is refused as unclear, unless it is empty."""
    program = copy_program(tmp_path)
    text = "\n".join(DOCS * 9)
    options = {"capture_output": True, "text": True, "timeout": 100, "encoding": "utf-8"}
    done = subprocess.run([sys.executable, program, "--out", "a"], input=text, cwd=tmp_path, **options)
    assert done.returncode == 0 and "reading standard input" in done.stdout, done.stderr
    (tmp_path / "input.txt").write_text(text, encoding="utf-8")
    done = subprocess.run([sys.executable, program, "--out", "b"], input=text, cwd=tmp_path, **options)
    assert done.returncode == 2 and done.stderr.endswith("input.txt\n")
    done = subprocess.run([sys.executable, program, "--out", "b"], input="", cwd=tmp_path, **options)
    assert done.returncode == 0 and "input.txt" in done.stdout, done.stderr


@pytest.mark.parametrize("data, expected", [(b"words", True), (b"", False), (None, False)], ids=str)
def test_a_pipe_on_windows(data: bytes | None, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """There, `select` refuses pipes: that one has data is noticed all the same, and a silent one is not waited for."""

    def refuse(*_: object) -> None:
        raise OSError(10038, "not a socket")

    monkeypatch.setattr("select.select", refuse)
    out, into = os.pipe()
    with os.fdopen(into, "wb") as writer, os.fdopen(out, "r") as reader:
        monkeypatch.setattr(sys, "stdin", reader)
        if data is not None:
            writer.write(data)
            writer.close()
        assert is_piped(0.3) is expected
        writer.close()  # a thread still waits for it
        while any(thread.name == "aside" for thread in threading.enumerate()):
            time.sleep(0.01)


@pytest.mark.parametrize("option", ["--demo", "--verify"])
def test_options_that_take_no_input(run_program, option: str) -> None:
    """An input with --demo or --verify is an error: it would not be read."""
    done = run_program(option, "c.txt")
    assert done.returncode == 2 and f"{option} takes no input: c.txt" in done.stderr


def test_verify_takes_its_folder_by_out(tmp_path: Path, monkeypatch, capsys) -> None:
    """A folder after --verify is what --out should name: the command is there to paste."""
    monkeypatch.chdir(tmp_path)
    prepare(write_jsonl(tmp_path / "c.jsonl", DOCS), "my data", quiet=True)
    assert cli.main(["--verify", "my data"]) == 2
    command = capsys.readouterr().err.partition("--out names: ")[2]
    assert command.endswith(" --verify --out 'my data'\n") and cli.main(shlex.split(command)[-3:]) == 0


@pytest.mark.parametrize("is_joined", [False, True])
@pytest.mark.parametrize("separator", ["---", "--", "-", "--out", "- "])
def test_separators_of_dashes(run_program, tmp_path, separator: str, is_joined: bool) -> None:
    """A separator may begin with dashes; an option after --separator, without =, means that the value is missing."""
    (tmp_path / "c.txt").write_text(separator.join(DOCS), encoding="utf-8")
    option = [f"--separator={separator}"] if is_joined else ["--separator", separator]
    done = run_program("c.txt", *option, "--val-ratio", "0.1")
    if separator == "--out" and not is_joined:
        assert done.returncode == 2 and "--separator: expected one argument" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert "of 1 document\n" not in done.stdout.split("train.bin")[1].partition("val.bin")[0]


def test_a_file_named_like_an_option(run_program, tmp_path) -> None:
    """The message has the name that works."""
    write_jsonl(tmp_path / "-c.jsonl", DOCS)
    done = run_program("-c.jsonl")
    assert done.returncode == 2
    name = done.stderr.rpartition("for the file of that name: ")[2].strip()
    assert run_program(name).returncode == 0


def test_odd_surroundings(tmp_path) -> None:
    """LC_ALL=C without UTF-8 mode, a path with spaces and letters, another folder, a read-only HOME: the same bytes."""
    folder = tmp_path / "größe mit leer 漢"
    folder.mkdir()
    program = copy_program(folder)
    write_jsonl(folder / "c ü.jsonl", DOCS, ensure_ascii=False)
    env = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT") if name in os.environ}
    env |= {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    env |= {"HOME": "/proc", "TMPDIR": "/proc", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, program, folder / "c ü.jsonl"]
    done = subprocess.run(command, capture_output=True, env=env, cwd="/", timeout=100)
    assert done.returncode == 0, done.stderr
    prepare(folder / "c ü.jsonl", tmp_path / "out", quiet=True)
    assert outputs(folder) == outputs(tmp_path / "out")


def test_folders_and_globs_in_natural_order(reference, tmp_path, monkeypatch) -> None:
    """part2 comes before part10, in folders, globs and folders of folders."""
    for i in (10, 2, 1):
        (tmp_path / "f" / f"d{i}").mkdir(parents=True)
        write_jsonl(tmp_path / "f" / f"d{i}" / "x.jsonl", [f"this is document {i}"])
    monkeypatch.chdir(tmp_path)
    expected = document_ids(reference, [f"this is document {i}" for i in (1, 2, 10)])
    for i, name in enumerate(["f", "f/*/*.jsonl", "f/**/x.jsonl", "f/d*", "[f]", "f*"]):
        prepare(name, str(i), quiet=True)
        assert split_at_eot(both_splits(tmp_path / str(i))) == expected


def test_a_pattern_reads_what_a_shell_would_name(tmp_path, monkeypatch, caplog) -> None:
    """Folders that a pattern matches are read, too; one with nothing to read is named."""
    for name in ("f/sub/deep", "f/pictures"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("f", "f/sub", "f/sub/deep"):
        write_jsonl(tmp_path / name / "c.jsonl", DOCS)
    (tmp_path / "f" / "pictures" / "p.png").write_bytes(b"\x89PNG\r\n")
    monkeypatch.chdir(tmp_path)
    n_documents = {}
    for pattern in ("f/*", "f/**/*.jsonl", "f/*.jsonl"):
        result = prepare(pattern, re.sub("[/*]", "_", pattern), quiet=True)
        n_documents[pattern] = (result.train_documents + result.val_documents) // len(DOCS)
        assert ("skipped: f/pictures" in caplog.text) == (pattern == "f/*")
        caplog.clear()
    assert n_documents == {"f/*": 3, "f/**/*.jsonl": 3, "f/*.jsonl": 1}


def test_unknown_ending_is_looked_at(reference, tmp_path) -> None:
    """A file with another ending is jsonl if it begins with an object, else text."""
    write_jsonl(tmp_path / "c.json", DOCS)
    (tmp_path / "c.data").write_text("just words " * 99)
    assert prepare(tmp_path / "c.json", tmp_path / "a", quiet=True).train_documents > 1
    prepare(tmp_path / "c.data", tmp_path / "b", quiet=True)
    assert both_splits(tmp_path / "b") == reference.encode_ordinary("just words " * 99)


def test_help_fits_a_screen(run_program) -> None:
    """--help has at most 50 lines, with examples at the end; each parameter of prepare() is an option of that name."""
    import inspect

    done = run_program("--help")
    assert len(done.stdout.splitlines()) <= 50
    assert "examples:" in done.stdout
    parameters = set(inspect.signature(prepare).parameters) - {"inputs", "executor", "fit"} | {"for"}
    for name in parameters:
        assert f"--{name.replace('_', '-')}" in done.stdout


def test_importing_is_cheap() -> None:
    """Importing the package loads neither tiktoken nor numpy; --help neither."""
    code = "import sys, fineweb_stream.cli; print(sorted({'numpy', 'tiktoken', 'psutil'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("has_shards", [False, True])
def test_progress_in_a_log_is_plain_lines(has_shards: bool, capsys) -> None:
    """Without a terminal, progress is printed as whole lines with percent, tokens, rates, memory and any shard."""
    from fineweb_stream.output.state import State
    from fineweb_stream.pipeline import progress
    from fineweb_stream.remote.network import Fetcher

    state = State(input_bytes=50, text_bytes=1000, train_tokens=2_000_000)
    watch = progress.Progress(state, 200, Fetcher(), has_shards=has_shards)
    watch._due = 0
    state.input_bytes = 100
    watch.update()
    watch.update()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert " 50.0%  2.0M tokens" in lines[0]
    assert "MB/s" in lines[0]
    assert "left" in lines[0]
    assert "MB memory" in lines[0]
    assert ("shard 0" in lines[0]) == has_shards


def test_progress_on_a_terminal_without_tqdm(monkeypatch) -> None:
    """One line is written again and again, and is gone at the end."""
    import io

    from fineweb_stream.output.state import State
    from fineweb_stream.pipeline import progress
    from fineweb_stream.remote.network import Fetcher

    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setitem(sys.modules, "tqdm", None)
    watch = progress.Progress(State(), 200, Fetcher())
    watch._due = 0
    watch.update()
    watch.close()
    line, cleared, end = terminal.getvalue().split("\r")[1:]
    assert "tokens/s" in line and "\n" not in line and cleared == " " * len(line) and not end


def test_progress_says_what_a_network_brings(capsys) -> None:
    """The rate of the network is that of at least a second; the line says what the run waits for."""
    from types import SimpleNamespace

    from fineweb_stream.output.state import State
    from fineweb_stream.pipeline import progress

    fetcher = SimpleNamespace(n_bytes=0)
    watch = progress.Progress(State(), 200, fetcher)  # type: ignore[arg-type]
    begin = watch._start
    for tick in range(1, 31):
        fetcher.n_bytes += 5_000_000
        watch.waited_seconds += 0.09 if tick <= 20 else 0.0
        watch._print(begin + tick / 10)
    lines = capsys.readouterr().err.splitlines()
    assert "network" not in lines[8]
    assert ", 50 MB/s over the network (waiting for the network), " in lines[15]
    assert ", 50 MB/s over the network (waiting for the processors), " in lines[29]


def test_progress_on_a_terminal_without_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without tqdm, each line covers the one before, and the end all: not every console of Windows has an escape."""
    from fineweb_stream.output.state import State
    from fineweb_stream.pipeline import progress
    from fineweb_stream.remote.network import Fetcher

    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setitem(sys.modules, "tqdm", None)
    watch = progress.Progress(State(), 200, Fetcher())
    lines = ["a longer line", "a line", ""]
    monkeypatch.setattr(watch, "_line", lambda now: lines.pop(0))
    for _ in range(2):
        watch._due = 0
        watch.update()
    watch.close()
    assert stream.getvalue() == f"\ra longer line\r{'a line':13}\r{' ' * 6}\r"


@pytest.fixture(scope="module")
def core_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with tiktoken, numpy, psutil and what these require, and nothing else."""
    folder = tmp_path_factory.mktemp("core")
    venv.EnvBuilder().create(folder)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.run([python, "-c", where], capture_output=True, text=True, check=True, timeout=60).stdout
    for name in with_requirements("tiktoken", "numpy", "psutil"):
        for file in importlib.metadata.files(name) or []:
            if ".." not in file.parts and os.path.exists(file.locate()):
                target = Path(packages.strip(), file)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file.locate(), target)
    return python


def with_requirements(*names: str) -> set[str]:
    """Return these packages and all that they require."""
    found: set[str] = set()
    for name in names:
        needs = [need for need in importlib.metadata.requires(name) or [] if "extra ==" not in need]
        found |= {name, *with_requirements(*(re.split(r"[^\w.-]", need)[0] for need in needs))}
    return found


@pytest.mark.slow
def test_core_packages_are_enough(core_python, tmp_path) -> None:
    """With only tiktoken, numpy and psutil: the demo, text and jsonl work; parquet names its extra."""
    (tmp_path / "work").mkdir()
    program = copy_program(tmp_path / "work")
    path = write_jsonl(tmp_path / "c.jsonl", DOCS)
    (tmp_path / "c.txt").write_text("\n".join(DOCS), encoding="utf-8")
    for name, arguments in (("demo", ["--demo"]), ("jsonl", [path]), ("text", [tmp_path / "c.txt"])):
        command = [core_python, program, *arguments, "--out", tmp_path / name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        assert "tiktoken" in done.stdout
    prepare(path, tmp_path / "expected", quiet=True)
    assert outputs(tmp_path / "jsonl") == outputs(tmp_path / "expected")
    (tmp_path / "c.parquet").write_bytes(b"PAR1")
    done = subprocess.run([core_python, program, tmp_path / "c.parquet"], capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    assert "pip install -U pyarrow" in done.stderr


TRAIN_SCRIPT = """
import numpy as np

rng = np.random.default_rng(1)
for split in ("train", "val"):
    data = np.memmap(f"data/fineweb/{split}.bin", dtype=np.uint16, mode="r")
    starts = rng.integers(len(data) - 1024, size=12)  # nanoGPT's block_size and batch_size
    x, y = (np.stack([data[i + shift : i + shift + 1024].astype(np.int64) for i in starts]) for shift in (0, 1))
    assert (x[:, 1:] == y[:, :-1]).all()
    print(split, *y.shape, "learns" if 1000 < len(np.unique(y)) and y.max() <= 50256 else "noise")
"""


@pytest.mark.slow
def test_copied_into_nanogpt(core_python, tmp_path) -> None:
    """Copied, read-only, with another package of that name installed and no network: train.py reads what it made.

    Beside the script are the outputs and the record, and nothing is written anywhere else.
    """
    tree, home, installed = (tmp_path / name for name in ("nanoGPT", "home", "installed"))
    for folder in (tree / "data" / "fineweb", home, installed / "fineweb_stream"):
        folder.mkdir(parents=True)
    (installed / "fineweb_stream" / "__init__.py").write_text("raise ImportError('not this one')")
    (tree / "train.py").write_text(TRAIN_SCRIPT)
    copy_program(tree / "data" / "fineweb")
    package = tree / "data" / "fineweb" / "fineweb_stream"
    before = files_below(tree)
    env = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT") if name in os.environ}
    env |= {"HOME": str(home), "TMPDIR": str(home), "TEMP": str(home), "PYTHONPATH": str(installed)}
    env |= {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
    if os.name == "nt":  # no folder is read-only there
        env["PYTHONDONTWRITEBYTECODE"] = "1"
    with read_only(package):
        for command in (["data/fineweb/prepare.py", "--demo"], ["train.py"]):
            command = [*as_anyone(), str(core_python), *command]
            done = subprocess.run(command, capture_output=True, text=True, cwd=tree, env=env, timeout=100)
            assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["train 12 1024 learns", "val 12 1024 learns"]
    with read_only(package):
        command = [*as_anyone(), str(core_python), "data/fineweb/prepare.py", "inspect"]
        done = subprocess.run(
            [*command, "data/fineweb"], capture_output=True, text=True, cwd=tree, env=env, timeout=100
        )  # as the README says
        lost = subprocess.run([*command, "data"], capture_output=True, text=True, cwd=tree, env=env, timeout=100)
    assert done.returncode == 0 and done.stdout.startswith("data/fineweb/train.bin: "), done.stderr
    assert "fill it: python data/fineweb/prepare.py INPUT --out data" in lost.stderr
    after = files_below(tree)
    made = {f"data/fineweb/{name}" for name in ("train.bin", "val.bin", "prepare.json")}
    assert {name: after[name] for name in after.keys() - made} == before
    assert made <= after.keys()
    assert not list(home.iterdir())


def files_below(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Make the folder and all in it read-only for a while."""
    paths = [folder, *folder.rglob("*")]
    modes = [path.stat().st_mode for path in paths]
    for path, mode in zip(paths, modes, strict=True):
        path.chmod(mode & ~0o222)
    try:
        yield
    finally:
        for path, mode in zip(paths, modes, strict=True):
            path.chmod(mode)


def as_anyone() -> list[str]:
    """Return what to put before a command so that permissions count for root, too."""
    if os.name == "nt" or os.geteuid() != 0:
        return []
    if not shutil.which("setpriv"):
        pytest.skip("root may write everywhere, and setpriv is not here")
    return ["setpriv", "--bounding-set", "-dac_override"]


def test_ids_are_not_aliased(tmp_path) -> None:
    """np.memmap of the outputs has the dtype and length that nanoGPT expects."""
    result = prepare(demo=True, out=tmp_path, quiet=True)
    data = np.memmap(tmp_path / "train.bin", dtype=np.uint16, mode="r")
    assert data.shape == (result.train_tokens,)
    assert int(data.max()) == 50256


@pytest.mark.parametrize("package", ["tiktoken", "numpy", "psutil"])
def test_a_missing_package_is_named(tmp_path, package: str) -> None:
    """If only the folder was copied, one sentence has the command that installs what is needed."""
    code = f"import sys; sys.modules[{package!r}] = None; from fineweb_stream.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "--demo", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 2, done.stderr
    assert done.stderr == f"prepare: {package} is not installed\n  pip install tiktoken numpy psutil\n"


@pytest.mark.parametrize(("tokenizer", "is_installed"), [("gpt2", True), ("bytes", False), ("chars", False)])
def test_a_package_of_unknown_version(tmp_path, monkeypatch, tokenizer: str, is_installed: bool) -> None:
    """A package that was copied, or that the tokenizer does without, stops no run: the record says "unknown"."""

    def find_nothing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", find_nothing)
    if not is_installed:
        monkeypatch.setitem(sys.modules, "tiktoken", None)
    prepare(write_jsonl(tmp_path / "c.jsonl", DOCS), out=tmp_path / "out", tokenizer=tokenizer, quiet=True)
    assert json.loads((tmp_path / "out" / "prepare.json").read_text())["versions"]["tiktoken"] == "unknown"


def test_public_names_are_seen() -> None:
    """Public names are completed, and listed by `help()`."""
    import fineweb_stream

    assert set(fineweb_stream.__all__) <= set(dir(fineweb_stream))


def test_a_gigatoken_that_does_not_load_is_named(run_program, tmp_path) -> None:
    """If gigatoken lacks a library of the system, the message has the reason and advice; nothing is left."""
    write_jsonl(tmp_path / "c.jsonl", ["one document", "another one"])
    (tmp_path / "broken" / "gigatoken").mkdir(parents=True)
    (tmp_path / "broken" / "gigatoken" / "__init__.py").write_text('raise ImportError("libodd.so is missing")')
    done = run_program("c.jsonl", env={"PYTHONPATH": str(tmp_path / "broken")})
    assert done.returncode == 1
    assert "gigatoken is installed but does not load: libodd.so is missing" in done.stderr
    assert "--engine tiktoken" in done.stderr and "Traceback" not in done.stderr
    assert not list((tmp_path / "out").glob("*.bin*"))


@pytest.mark.skipif(os.name == "nt", reason="no such descriptors")
@pytest.mark.parametrize("descriptor", [1, 2])
def test_nobody_listens(run_program, tmp_path, descriptor: int) -> None:
    """A standard stream that is closed, before or after something was written, changes no exit status."""
    (tmp_path / "c.txt").write_text("some words " * 999)
    done = run_program("c.txt", preexec_fn=lambda: os.close(descriptor))
    assert done.returncode == 0 and "Traceback" not in done.stderr
    code = (
        "import os, sys; from fineweb_stream import cli; ends = os.pipe(); os.dup2(ends[1], NUMBER)\n"
        "for end in ends: os.close(end)\n"
        "sys.NAME = stream = open(NUMBER, 'w', closefd=False)\n"
        "cli._run = lambda *_: stream.write('four') - 2\n"
        "sys.exit(cli.main())"
    ).replace("NUMBER", str(descriptor))
    command = [sys.executable, "-c", code.replace("NAME", ("stdout", "stderr")[descriptor - 1])]
    assert subprocess.run(command, capture_output=True, cwd=ROOT, timeout=60).returncode == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no such device")
@pytest.mark.parametrize(
    ("command", "unbuffered"),
    [
        *itertools.product(("--help", "inspect made", "made.jsonl --dry-run --engine tiktoken"), ("", "1")),
        *((command, "") for command in ("--version", "inspect --help", "decode made", "index -h")),
    ],
)
def test_an_output_that_is_lost(command: str, unbuffered: str, tmp_path: Path) -> None:
    """A command that only prints fails with a sentence if it cannot; a pipe that is closed has seen enough."""
    write_jsonl(tmp_path / "made.jsonl", ["some words " * 99] * 99)
    prepare(tmp_path / "made.jsonl", tmp_path / "made", engine="tiktoken", val_ratio=0.1, quiet=True)
    line = f"{sys.executable} -m fineweb_stream {command}"
    env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered}
    options: dict[str, Any] = {"cwd": tmp_path, "env": env, "shell": True, "text": True, "timeout": 120}
    full = subprocess.run(f"{line} > /dev/full", stderr=subprocess.PIPE, **options)
    name = command.split()[0] if command[0] in "id" else "prepare"
    assert (full.returncode, full.stderr) == (4, f"{name}: standard output: No space left on device\n")
    closed = subprocess.run(["bash", "-c", f"{line} | true; exit ${{PIPESTATUS[0]}}"], capture_output=True,
                            **options | {"shell": False})  # fmt: skip
    assert (closed.returncode, closed.stderr) == (0, "")
    for stream in ("1", "2") if not unbuffered else ():  # where there is no stream, nothing is buffered
        shut = subprocess.run(f"{line} {stream}>&- | cat", capture_output=True, **options)
        assert (shut.returncode, shut.stderr, bool(shut.stdout)) == (0, "", stream == "2")


@pytest.mark.parametrize("arguments", [("",), ("c.txt", "--val", "")])
def test_an_empty_name(arguments: tuple[str, ...], tmp_path: Path, run_program) -> None:
    """An empty argument, as from an unset variable, is not the current folder; `.` is."""
    (tmp_path / "c.txt").write_text("some words " * 900)
    done = run_program(*arguments)
    assert done.returncode == 2 and "an input without a name" in done.stderr
    assert run_program(".").returncode == 0
    done = run_program(".", "--out", "")
    assert done.returncode == 2 and "--out without a name" in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="no such permissions")
def test_verify_names_what_it_may_not_read(tmp_path: Path) -> None:
    """--verify says which file it may not read."""
    prepare(write_jsonl(tmp_path / "c.jsonl", DOCS), tmp_path / "out", quiet=True)
    (tmp_path / "out" / "train.bin").chmod(0)
    command = [sys.executable, str(ROOT / "prepare.py"), "--verify", "--out", str(tmp_path / "out")]
    prefix = [word.replace("-dac_override", "-dac_override,-dac_read_search") for word in as_anyone()]
    done = subprocess.run([*prefix, *command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 4 and "train.bin: Permission denied\n  check the disk and the permissions" in done.stderr


def test_more_val_than_a_pipe_has(run_program) -> None:
    """A pipe with less text than --val-tokens is refused at its end; with a smaller number it works."""
    done = run_program("-", "--val-tokens", "1M", input="some words " * 900)
    assert done.returncode == 2 and "add text, or lower --val-ratio or --val-tokens" in done.stderr
    assert run_program("-", "--val-tokens", "100", input="some words " * 900).returncode == 0


def test_quiet(run_program, tmp_path: Path) -> None:
    """--quiet says nothing but warnings and errors."""
    write_jsonl(tmp_path / "c.jsonl", ["some words " * 99] * 999)
    done = run_program("c.jsonl", "--quiet", "--val-tokens", "20k")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = run_program("c.jsonl", "--quiet", "--val-tokens", "20")
    assert (done.returncode, done.stderr) == (2, "") or "--overwrite" in done.stderr
    done = run_program("c.jsonl", "--quiet", "--val-tokens", "20", "--overwrite")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line[:22] for line in done.stdout.splitlines()] == ["note: val.bin will hav", "warning: val.bin has 2"]
    done = run_program("c.jsonl", "--quiet", "--val-tokens", "20k", "--overwrite", "--separator", "x")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("note: --separator is for text files")
    assert run_program("none.jsonl", "--quiet").stderr.startswith("prepare: none.jsonl: ")


def test_names_in_any_form(tmp_path: Path) -> None:
    """A name is a str, a path or the system's bytes; None names nothing."""
    path = write_jsonl(tmp_path / "c.jsonl", DOCS)
    for i, names in enumerate((str(path), path, os.fsencode(path), [path], (str(path),))):
        prepare(names, tmp_path / str(i), val=None, quiet=True)  # type: ignore[arg-type]
    assert len({(tmp_path / str(i) / "train.bin").read_bytes() for i in range(5)}) == 1
    with pytest.raises(InputError, match="no input named"):
        prepare(None, tmp_path / "none", quiet=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("program", ["-m fineweb_stream", "prepare.py", "-I prepare.py"])
def test_looking_without_numpy(program: str) -> None:
    """If only the folder was copied, `inspect` names what to install; also where Python ignores the script's folder."""
    command = [sys.executable, "-S", *program.split(), "inspect", "."]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env, timeout=60)
    assert (done.returncode, done.stderr) == (1, "numpy is not installed\n  pip install numpy\n")


def test_a_part_was_not_copied(tmp_path: Path, core_python: Path) -> None:
    """A `.gitignore` may have left out a folder of the package: what to copy is said, and nothing to be installed."""
    program = copy_program(tmp_path)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    package, away = tmp_path / "fineweb_stream", tmp_path / "away"
    for part in (package, *(path.parent for path in package.glob("*/__init__.py"))):
        part.rename(away)
        for arguments in (["--demo", "--out", "out"], ["inspect", "."]):
            command = [core_python, program, *arguments]
            done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env, timeout=60)
            if arguments[0] == "--demo" or "is missing" in done.stderr:
                assert done.returncode == 1
                assert re.fullmatch(r"prepare.py: fineweb_stream[.\w]* is missing: copy the whole .*\n", done.stderr)
            else:
                assert done.stderr.startswith("inspect: .: neither train.bin"), done.stderr
        away.rename(part)
