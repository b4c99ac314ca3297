"""Bad input: a clear error that says what, where and what to type next; and nothing half-made is left."""

from __future__ import annotations

import bz2
import errno
import gzip
import inspect
import io
import json
import lzma
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fineweb_stream import estimate, iter_ids, prepare
from fineweb_stream.inputs import parquet
from fineweb_stream.inputs.discover import find_inputs
from fineweb_stream.pipeline import run
from fineweb_stream.support.errors import InputError, MemoryLimitError

from .conftest import ROOT
from .helpers import both_splits, document_ids, outputs, prepare_in_blocks, split_at_eot, write_jsonl, write_parquet
from .test_contracts import FORMATS, write_documents

GOOD = [f"document number {i} with some words" for i in range(50)]


def assert_error(done, status: int, *parts: str) -> None:
    """The program failed with this status and said all of this, in a few lines and without a traceback."""
    assert done.returncode == status, done.stderr
    for part in parts:
        assert part in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 4


def assert_nothing_left(folder: Path) -> None:
    left = [p.name for p in folder.iterdir() if p.suffix in (".bin", ".part", ".lock") or p.name == "prepare.json"]
    assert not left


def jsonl(*lines: object) -> bytes:
    return b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)


BAD_FILES = {
    "empty.txt": (b"", ["empty.txt: the file is empty"]),
    "blank.txt": (b" \n\n \n", ["blank.txt: no text in the input"]),
    "blank.jsonl": (jsonl({"text": ""}, {"text": " \n"}), ["no text in the input: 2 documents, all blank"]),
    "none.jsonl": (b"\n\n", ["none.jsonl: no text in the input"]),
    "one.jsonl": (jsonl({"text": "a b c"}), ["only one document", "add documents"]),
    "column.jsonl": (jsonl({"content": "x", "id": 1}), ["line 1 (byte 0)", "content, id", "--text-column content"]),
    "pretty.jsonl": (b'{\n  "text": "x"\n}\n', ["a JSON object over several lines", "jq -c . <"]),
    "array.jsonl": (b'[{"text": "x"}, {"text": "y"}]\n', ["array.jsonl: a JSON array", "convert it to jsonl"]),
    "arraylines.jsonl": (
        b'[{"text": "x"},\n{"text": "y"}]\n',
        ["arraylines.jsonl: a JSON array", "convert it to jsonl"],
    ),
    "prettyarray.jsonl": (
        b'[\n{"text": "x"},\n{"text": "y"}\n]\n',
        ["prettyarray.jsonl: a JSON array", "convert it to jsonl"],
    ),
    "half.jsonl": (jsonl(*[{"text": t} for t in GOOD]) + b'{"text": "ab', ["line 51", "not JSON", "--skip-bad"]),
    "comma.jsonl": (b'{"text": "a",}\n{"text": "b",}\n', ["line 1", "not JSON", "repair the line; if it was cut off"]),
    "null.jsonl": (jsonl({"text": "a"}, {"text": None}), ["null.jsonl, line 2 (byte 14)", "is null", "--skip-bad"]),
    "missing.jsonl": (jsonl({"text": "a"}, {"id": 3}), ["line 2", "no field 'text'", "id"]),
    "number.jsonl": (jsonl({"text": "a"}, {"text": 3}), ["line 2", "is a number, not text"]),
    "list.jsonl": (jsonl({"text": "a"}, {"text": ["b"]}), ["line 2", "is a list, not text"]),
    "scalar.jsonl": (jsonl("text"), ["line 1", "not a JSON object"]),
    "utf32.txt": ("\ufeffsome text".encode("utf-32-le"), ["UTF-32", "iconv -f utf-32 -t utf-8"]),
    "utf16.txt": ("\ufeffsome text".encode("utf-16-le"), ["UTF-16", "iconv -f utf-16 -t utf-8"]),
    "latin.txt": (b"some words " * 20 + b"caf\xe9 noir", ["latin.txt, byte 223", "0xe9", "--errors replace", "iconv"]),
    "latin.jsonl": (b'{"text": "caf\xe9"}\n', ["latin.jsonl, line 1 (byte 13)", "invalid UTF-8"]),
    "gzip.txt": (gzip.compress(b"some text"), ["gzip.txt", "gzip"]),
    "binary.txt": (bytes(range(256)) * 9, ["binary.txt: binary data"]),
    "picture.txt": (b"\x89PNG\r\n\x1a\n\0\0", ["an image (PNG"]),
    "parquet.txt": (b"PAR1\x15\x04abcd", ["a parquet file"]),
    "answer.parquet": (b"Entry not found", ["answer.parquet: plain text", "if a server sent it instead of the file"]),
    "broken.parquet": (b"PAR1" + b"\0" * 100 + b"PAR1", ["broken.parquet: not a whole parquet file"]),
    "short.parquet": (b"PAR1", ["short.parquet: not a whole parquet file"]),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_file(run_program, tmp_path, name: str) -> None:
    """A bad file gives exit status 2, its name, the place and advice; no output is left."""
    data, parts = BAD_FILES[name]
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(data)
    done = run_program(name, "--out", "out", "--val-ratio", "0.1")
    assert_error(done, 2, *parts)
    if (tmp_path / "out").exists():
        assert not list((tmp_path / "out").glob("*.bin"))
        if "tokens are saved" not in done.stderr:  # what comes before the bad place in another block is
            assert_nothing_left(tmp_path / "out")


def test_missing_things(run_program, tmp_path) -> None:
    """No such file, no usable file in a folder, nothing that matches, nothing named at all."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "README.md").write_text("text")
    assert_error(run_program("gone.txt", "--out", "o"), 2, "gone.txt: no such file", "check the path")
    assert_error(run_program("folder", "--out", "o"), 2, "folder: no usable file", ".parquet")
    assert_error(run_program("*.jsonl", "--out", "o"), 2, "*.jsonl: no file matches")
    assert_error(run_program("fold*", "--out", "o"), 2, "fold*: no file matches")
    assert_error(run_program("/dev/null", "--out", "o"), 2, "/dev/null: not a regular file", "name text, jsonl")
    assert_error(run_program("-", "--out", "o", input=""), 2, "standard input is empty", "prepare.py -")
    assert_error(run_program("-", "--out", "o", input="PAR1\x15"), 2, "standard input: parquet", "save it to a file")
    if os.name == "posix":
        done = run_program("-", "--out", "o", preexec_fn=lambda: os.close(0))
        assert_error(done, 2, "standard input is closed", "prepare.py -")
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_skip_bad_counts_and_locates(run_program, tmp_path, kind: str) -> None:
    """--skip-bad: what is skipped is counted, printed and written down; the word None is never text."""
    docs = [*GOOD[:3], None, *GOOD[3:]]
    if kind == "parquet":
        pytest.importorskip("pyarrow")
        path = write_parquet(tmp_path / "c.parquet", docs)
        place, reason = "c.parquet, row 4", "the column 'text' is null, not text"
    else:
        path = write_jsonl(tmp_path / "c.jsonl", docs)
        byte = sum(len(json.dumps({"id": i, "text": d})) + 1 for i, d in enumerate(docs[:3]))
        place, reason = f"c.jsonl, line 4 (byte {byte})", "the field 'text' is null, not text"
    assert_error(run_program(path, "--out", "out"), 2, place, reason, "--skip-bad")
    done = run_program(path, "--out", "out", "--skip-bad")
    assert done.returncode == 0, done.stderr
    assert f"skipped: {tmp_path / place}: {reason}" in done.stdout
    assert len(split_at_eot(both_splits(tmp_path / "out"))) == len(GOOD)
    record = json.loads((tmp_path / "out" / "prepare.json").read_text())
    assert record["state"]["n_changes"] == {"skipped": 1}
    change = json.loads((tmp_path / "out" / "prepare.changes.jsonl").read_text())
    assert change["place"] == str(tmp_path / place)


SHUT = {
    "": "secret.json: Permission denied\n  check the path",
    "secret.txt": "secret.txt: Permission denied\n  check the file's permissions",
    "shut/c.txt": "shut/c.txt: Permission denied\n  check the path, and the permissions of its folders",
    "shut/*.txt": "shut/*.txt: Permission denied\n",
    "tree": "tree/b: Permission denied\n",
    "tree/b": "tree/b: Permission denied\n",
    "tree/**": "tree/b: Permission denied\n",
    "tree/**/*.txt": "tree/b: Permission denied\n",
    "tree/*/*.txt": "tree/b: Permission denied\n",
    "tr*/?/2.txt": "tree/b: Permission denied\n",
    "**/*.txt": ": Permission denied\n  check the path, and the permissions of its folders",
    "shut/train.bin": "shut/train.bin: this program's own, so not an input",
    "c.txt --tokenizer shut/t.json": "shut/t.json",
    "tree/[a]/**": "",
    "disk/a": "",
    "disk/**/*.txt": "",
    "dis*": "",
    "c.txt --out shut/out": "shut/out: Permission denied\n  make sure that the folder can be written to",
    "c.txt --layout npy --out shut/out": "shut/out: Permission denied\n  check the disk and the permissions",
    "c.txt --out dark": "dark: Permission denied\n  check the disk and the permissions",
    "c.txt --dry-run --out dark": "dark: Permission denied\n  check the disk and the permissions",
    "--verify --out shut": "prepare.json: Permission denied\n  check the folder's permissions",
}


RUN_ALL = """
import contextlib, io, json, os, shutil, sys
from fineweb_stream import cli

found = []
for arguments in sys.argv[1:]:
    words = arguments.split()
    sys.argv = ["prepare.py", *words, *([] if "--out" in words else ["--out", "o"])]
    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.StringIO()):
        status = cli.main()
    found.append((arguments, status, said.getvalue(), os.path.exists("o")))
    shutil.rmtree("o", ignore_errors=True)
print(json.dumps(found))
"""


def test_what_is_shut_is_named(tmp_path: Path) -> None:
    """A file or folder without permissions is named, wherever it is met: nothing in it is left out silently.

    One that a pattern does not match, or that is hidden, is not named.
    """
    command = [sys.executable, "-c", RUN_ALL, *SHUT]
    if os.name == "nt":
        pytest.skip("Windows has other permissions")
    if os.geteuid() == 0:  # for root nothing is shut, unless it gives that up
        if not shutil.which("setpriv"):
            pytest.skip("root reads all")
        capabilities = "-dac_override,-dac_read_search"
        command = ["setpriv", f"--bounding-set={capabilities}", f"--inh-caps={capabilities}", *command]
    beside = "c.txt", "secret.txt", "secret.json"
    for path in (*beside, "shut/c.txt", "tree/a/1.txt", "tree/b/2.txt", "disk/a/c.txt", "disk/lost+found/c.txt"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("some words " * 99)
    (tmp_path / "disk/a/link.md").symlink_to(tmp_path / "shut/c.txt")  # which is passed over
    shut = [tmp_path / path for path in (*beside[1:], "shut", "tree/b", "disk/lost+found")]
    for path in shut:
        path.chmod(0)
    (tmp_path / "dark").mkdir(mode=0o300)  # what is in it can be used, but not listed
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env, timeout=60)
    for path in shut:
        path.chmod(0o700)
    assert done.returncode == 0, done.stderr
    for arguments, status, said, is_made in json.loads(done.stdout):
        one = subprocess.CompletedProcess(arguments, status, stderr=said)
        if SHUT[arguments]:
            assert_error(one, 4 if "--out" in arguments else 2, SHUT[arguments])
            assert not is_made, arguments
        else:
            assert status == 0, (arguments, said)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such names")
@pytest.mark.parametrize("out", ["c.txt/out", "/dev/null"])
def test_an_output_folder_that_is_none(run_program, tmp_path: Path, out: str) -> None:
    """A name below a file, or a device as --out: the advice is another folder, not permissions."""
    (tmp_path / "c.txt").write_text("some words " * 99)
    assert_error(run_program("c.txt", "--out", out), 4, "it is not a folder: choose another one")


@pytest.mark.skipif(os.name == "nt", reason="links may need rights there")
@pytest.mark.parametrize("out", ["gone", "gone/a", "gone/a/b", "loop/a"])
def test_an_output_folder_behind_a_broken_link(run_program, tmp_path: Path, out: str) -> None:
    """As when a disk is not mounted: the link is named, wherever it is in --out; with what it leads to, it works."""
    (tmp_path / "c.txt").write_text("some words " * 99)
    (tmp_path / "gone").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    link = out[:4]
    assert_error(run_program("c.txt", "--out", out), 4, f"{link}: a broken link to {os.readlink(tmp_path / link)}\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.txt", "gone", "loop"]
    if link == "gone":
        (tmp_path / "nowhere").mkdir()
        assert run_program("c.txt", "--out", out).returncode == 0


@pytest.mark.skipif(not shutil.which("bash"), reason="it needs ulimit")
def test_few_open_files(tmp_path: Path) -> None:
    """With too few open files, the limit is named, and what raises it."""
    (tmp_path / "c.txt").write_text("some words " * 99)
    statuses = []
    for n in range(6, 12):
        command = f"ulimit -n {n}; exec {sys.executable} {ROOT / 'prepare.py'} c.txt --out o --overwrite"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path, timeout=60)
        statuses.append(done.returncode)
        if done.returncode and "Too many open files" in done.stderr:
            assert_error(done, done.returncode, "Too many open files\n  raise the limit of open files (ulimit -n)")
    assert statuses[0] == 4 and statuses[-1] == 0, statuses


def test_no_more_threads(run_program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the system starts no thread, the limits are named."""
    (tmp_path / "c.txt").write_text("some words " * 99)

    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert_error(run_program("c.txt", "--out", "o"), 3, "raise the limit (ulimit -v or -u, a container's)")


def test_links_are_followed_once(tmp_path: Path) -> None:
    """A folder or file that links lead to is read once, even if links form a circle."""
    from fineweb_stream.inputs.discover import find_inputs

    for path in ("tree/a/1.txt", "other/2.txt"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text("some words")
    for link, target in (("tree/b", "../other"), ("tree/c", "../other"), ("tree/a/up", "..")):
        try:
            (tmp_path / link).symlink_to(target, target_is_directory=True)
        except OSError:
            pytest.skip("no links here")
    (tmp_path / "tree/a/again.txt").symlink_to("1.txt")
    for name in ("tree", "tree/**/*.txt"):
        found = [Path(input.path).relative_to(tmp_path) for input in find_inputs([str(tmp_path / name)])]
        assert found == [Path("tree/a/1.txt"), Path("tree/b/2.txt")]
    (tmp_path / "tree/gone.txt").symlink_to("nowhere.txt")
    for target in ("nowhere.txt", "gone.txt"):
        (tmp_path / "tree/gone.txt").unlink()
        (tmp_path / "tree/gone.txt").symlink_to(target)
        with pytest.raises(InputError, match=rf"gone\.txt: a broken link to {target}\n.*remove it"):
            find_inputs([str(tmp_path / "tree/*.txt")])


def test_what_links_lead_to_is_not_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In a cache as the Hub's, what a link leads to is read by the link's name: only the rest is said to be skipped."""
    from fineweb_stream.inputs.discover import find_inputs

    for name in ("blobs/0a1b", "blobs/2c3d.incomplete", "snapshots/main/c.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write_jsonl(tmp_path / name, GOOD)
    link = tmp_path / "snapshots/main/c.jsonl"
    link.unlink()
    try:
        link.symlink_to("../../blobs/0a1b")
    except OSError:
        pytest.skip("no links here")
    assert [input.path for input in find_inputs([str(tmp_path)])] == [str(link)]
    assert "2c3d.incomplete" in caplog.text and "0a1b" not in caplog.text


def test_a_drive_without_file_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all files have the number 0, as on network drives of Windows, none is taken for another."""
    from fineweb_stream.inputs.discover import find_inputs, leave_out

    for name in ("d/1.txt", "d/a/2.txt", "d/a/b/3.txt", "d/c/4.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("some words")
    monkeypatch.setattr(
        os, "stat", lambda *a, stat=os.stat, **o: os.stat_result([*(i := stat(*a, **o))[:1], 0, *i[2:]])
    )
    found = find_inputs([str(tmp_path / "d")])
    assert [Path(input.path).name for input in found] == ["1.txt", "2.txt", "3.txt", "4.txt"]
    assert leave_out(found, found[:1]) == found[1:]


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
def test_what_is_no_file_in_a_folder(kind: str, tmp_path: Path, monkeypatch, caplog) -> None:
    """A pipe, socket or device in a folder is skipped, named and never opened; as an input it is refused."""
    from fineweb_stream.inputs.discover import find_inputs

    if os.name == "nt":
        pytest.skip("Windows has no such files")
    folder = tmp_path / "d"
    folder.mkdir()
    write_jsonl(folder / "c.jsonl", GOOD)
    monkeypatch.chdir(folder)  # a socket's path is short
    for path in (folder / "a.txt", folder / "b.json", folder / "d.parquet"):
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "socket":
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(path.name)
        else:
            path.symlink_to("/dev/null")
    assert [Path(input.path).name for input in find_inputs([str(folder)])] == ["c.jsonl"]
    assert "skipped" in caplog.text and "a.txt, b.json, d.parquet" in caplog.text
    (folder / "c.jsonl").unlink()
    for name in (folder, folder / "a.txt"):
        with pytest.raises(InputError, match=r"a\.txt: not a regular file\n"):
            find_inputs([str(name)])


PIPES = {
    "/dev/stdin": "gzip -dc c.jsonl.gz | {}",
    "/proc/self/fd/0": "gzip -dc c.jsonl.gz | {}",
    "<(gzip -dc c.jsonl.gz)": "{}",
    "'my pipe'": "{}",
}
"""What is named, and how: in bash."""


@pytest.mark.skipif(not shutil.which("bash") or not os.path.exists("/proc/self/fd"), reason="the words of a shell")
@pytest.mark.parametrize("name", PIPES)
def test_what_is_said_of_a_pipe_reads_it(name: str, tmp_path: Path) -> None:
    """A pipe in place of a file is refused; typed as the message says, it is read like the file."""
    path = write_jsonl(tmp_path / "c.jsonl", GOOD)
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    os.mkfifo(tmp_path / "my pipe")
    prepare(path, tmp_path / "expected", val_ratio=0.1, quiet=True)

    def typed(command: str) -> subprocess.CompletedProcess[str]:
        program = f"{sys.executable} {ROOT / 'prepare.py'} --val-ratio 0.1 --out o"
        command = re.sub(r"python \S*prepare\.py", program, command)
        return subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=60)

    done = typed(PIPES[name].format(f"python prepare.py {name}"))
    assert_error(done, 2, "not a regular file\n  a pipe is read as standard input, and - is its name (keep your")
    said = done.stderr.rpartition("options): ")[2].strip()
    done = typed("gzip -dc c.jsonl.gz > 'my pipe' & " * ("my" in name) + said.replace("COMMAND", "gzip -dc c.jsonl.gz"))
    assert done.returncode == 0, done.stderr
    assert outputs(tmp_path / "o") == outputs(tmp_path / "expected")


def test_names_that_are_too_long(run_program, tmp_path) -> None:
    """An input or folder whose name is too long for a file gives a sentence."""
    write_jsonl(tmp_path / "c.jsonl", GOOD)
    assert_error(run_program("x" * 5000), 2, "File name too long")
    assert_error(run_program("c.jsonl", "--out", "x" * 300), 4, "File name too long")
    assert_error(run_program("c.jsonl", "--out", "x" * 300, "--dry-run"), 4, "File name too long")


def test_what_looks_foreign_can_be_text(reference, run_program, tmp_path) -> None:
    """Text may begin as other formats do; and with --format text, anything is read as text."""
    for i, words in enumerate((b"BZhang wrote ", b"PAR1S is a town ", b"PAR1\nthe first part ")):
        (tmp_path / f"{i}.txt").write_bytes(words * 99)
        assert run_program(f"{i}.txt", "--out", f"out{i}").returncode == 0
    data = b"a\0b \xff text\n" * 99
    (tmp_path / "n.txt").write_bytes(data)
    options = ["--errors", "replace", "--out", "out", "--val-ratio", "0.1"]
    assert_error(run_program("n.txt", *options), 2, "n.txt: binary data, not text", "--format text --errors replace")
    assert run_program("n.txt", *options, "--format", "text").returncode == 0
    assert both_splits(tmp_path / "out") == reference.encode_ordinary(data.decode("utf-8", "replace"))


def test_damaged_parquet_is_named(run_program, tmp_path) -> None:
    """Rows that cannot be decoded are named, in a sample or not; so are two columns of one name."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    path = tmp_path / "c.parquet"
    rows = pa.table({"text": [f"document number {i} of many" for i in range(20_000)]})
    pq.write_table(rows, path, row_group_size=100, use_dictionary=False)
    data, chunk = bytearray(path.read_bytes()), pq.ParquetFile(path).metadata.row_group(55).column(0)
    data[chunk.data_page_offset + 100 : chunk.data_page_offset + 300] = bytes(range(200))
    path.write_bytes(data)
    for more in ([], ["--skip-bad"]):
        done = run_program("c.parquet", *more)
        assert_error(done, 2, "c.parquet, rows ", ": damaged (", "fetch the file again")
    assert "Traceback" not in run_program("c.parquet", "--dry-run").stderr
    pq.write_table(rows, path, use_dictionary=False, compression="none", write_page_checksum=True)
    data = bytearray(path.read_bytes())
    data[20_000] ^= 1  # a letter, by which nothing but the checksum is wrong
    path.write_bytes(data)
    assert_error(run_program("c.parquet"), 2, "c.parquet, rows 1 to ", "CRC", "fetch the file again")
    schema = pa.schema([("text", pa.string()), ("text", pa.string())])
    pq.write_table(pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], schema=schema), tmp_path / "d.parquet")
    assert_error(run_program("d.parquet"), 2, "d.parquet: 2 columns are named 'text'")


def test_wrong_parquet_column(run_program, tmp_path) -> None:
    """If the column is missing, those that exist are named; a column that is no text is refused by its type."""
    pytest.importorskip("pyarrow")
    path = write_parquet(tmp_path / "c.parquet", GOOD)
    assert_error(run_program(path, "--text-column", "body"), 2, "no column 'body'", "id, text, score")
    assert_error(
        run_program(path, "--text-column", "score"), 2, "'score' is double, not text", "columns of text: id, text"
    )
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"kind": pa.array(["a b c"]).dictionary_encode(), "n": [1]}), tmp_path / "d.parquet")
    assert_error(run_program("d.parquet", "--text-column", "n"), 2, "'n' is int64", "columns of text: kind")


def test_columns_of_bytes_and_in_structs(tmp_path, reference) -> None:
    """Text may be a column of bytes, or a field of a struct or object; a column of exactly that name comes first."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    data = [text.encode() for text in GOOD]
    bodies = [{"url": "u", "inner": {"text": text}} for text in GOOD]
    tables = {
        "text": {"text": data},
        "large": {"large": pa.array(data, pa.large_binary())},
        "words": {"words": pa.array(data).dictionary_encode()},
        "body.inner.text": {"body": bodies, "text": ["no"] * len(GOOD)},
        "b.text": {"b": [{"text": "no"}] * len(GOOD), "b.text": GOOD},
    }
    expected = sorted(document_ids(reference, GOOD))
    for i, (name, columns) in enumerate(tables.items()):
        path = tmp_path / f"{i}.parquet"
        pq.write_table(pa.table(columns), path, row_group_size=20)
        prepare(path, tmp_path / str(i), text_column=name, val_ratio=0.1, quiet=True)
        assert sorted(split_at_eot(both_splits(tmp_path / str(i)))) == expected, name
        lines = "".join(json.dumps(row, default=bytes.decode) + "\n" for row in pa.table(columns).to_pylist())
        path = tmp_path / f"{i}.jsonl"
        path.write_text(lines)
        prepare(path, tmp_path / f"{i}l", text_column=name, val_ratio=0.1, quiet=True)
        assert sorted(split_at_eot(both_splits(tmp_path / f"{i}l"))) == expected, name
    pq.write_table(pa.table({"text": [*data, b"caf\xe9"], "body": [*bodies, None]}), tmp_path / "bad.parquet")
    with pytest.raises(InputError, match=r"bad\.parquet, row 51: invalid UTF-8 \(0xe9\)"):
        prepare(tmp_path / "bad.parquet", tmp_path / "o", quiet=True)
    with pytest.raises(InputError, match=r"row 51: the column 'body\.inner\.text' is null"):
        prepare(tmp_path / "bad.parquet", tmp_path / "o", text_column="body.inner.text", quiet=True)
    there = r"columns are: text, body, body\.(url, body\.inner\.text|inner\.text, body\.url)"
    with pytest.raises(InputError, match=there):
        prepare(tmp_path / "bad.parquet", tmp_path / "o", text_column="body.txt", quiet=True)


@pytest.mark.parametrize("errors", ["strict", "replace", "ignore"])
def test_half_of_a_character_is_counted(reference, tmp_path, errors: str) -> None:
    """A lone surrogate in JSON becomes U+FFFD, as by tiktoken, and is on record; a pair is a character."""
    lines = [*(json.dumps({"text": text}) for text in GOOD), r'{"text": "a\ud800b"}', r'{"text": "a\ud83d\ude00b"}']
    (tmp_path / "c.jsonl").write_text("\n".join(lines))
    prepare(tmp_path / "c.jsonl", tmp_path / "out", errors=errors, quiet=True)
    expected = document_ids(reference, [*GOOD, "a\ufffdb", "a😀b"])
    assert sorted(split_at_eot(both_splits(tmp_path / "out"))) == sorted(expected)
    [change] = map(json.loads, (tmp_path / "out" / "prepare.changes.jsonl").read_text().splitlines())
    assert change["kind"] == "replaced" and f"line {len(GOOD) + 1}" in change["place"]


@pytest.mark.parametrize("kind", FORMATS)
def test_records_with_invalid_utf8_are_skipped(reference, tmp_path, kind: str) -> None:
    """--skip-bad counts and locates what it skips, in each format with records; all others are kept."""
    marks = ["café number 3" if i in (3, 40) else text for i, text in enumerate(GOOD)]
    if kind == "parquet":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        data = [text.encode().replace(b"\xc3\xa9", b"\xe9") for text in marks]
        path, options = tmp_path / "c.parquet", {}
        pq.write_table(pa.table({"text": pa.array(data, pa.binary())}), path)
    else:
        path, options = write_documents(kind, tmp_path, marks)
        path.write_bytes(path.read_bytes().replace(b"\xc3\xa9", b"\xe9").replace(rb"\u00e9", b"\xe9"))
    prepare_in_blocks(200, path, tmp_path / "out", skip_bad=True, val_ratio=0.1, **options)
    expected = document_ids(reference, [text for text in marks if "café" not in text])
    assert sorted(split_at_eot(both_splits(tmp_path / "out"))) == sorted(expected)
    changes = [json.loads(line) for line in (tmp_path / "out" / "prepare.changes.jsonl").read_text().splitlines()]
    unit = {"jsonl": "line", "parquet": "row", "separated": "document"}[kind]
    assert [change["kind"] for change in changes] == ["skipped"] * 2
    assert [re.search(rf"{unit} (\d+)", change["place"])[1] for change in changes] == ["4", "41"]


@pytest.mark.parametrize("mode, kind, text", [("replace", "replaced", "caf\ufffd"), ("ignore", "left out", "caf")])
def test_errors_option(reference, run_program, tmp_path, mode: str, kind: str, text: str) -> None:
    """--errors replace and ignore: as bytes.decode has them, counted and located."""
    (tmp_path / "c.txt").write_bytes(b"some words " * 20 + b"caf\xe9" + b" and more" * 9)
    done = run_program("c.txt", "--errors", mode, "--out", "out")
    assert done.returncode == 0, done.stderr
    assert f"{kind}: c.txt, byte 223: 1 byte of invalid UTF-8: e9" in done.stdout
    assert both_splits(tmp_path / "out") == reference.encode_ordinary("some words " * 20 + text + " and more" * 9)


def test_literal_eot_gets_a_hint(run_program, tmp_path) -> None:
    """<|endoftext|> in plain text stays text; the count and --separator are mentioned."""
    (tmp_path / "c.txt").write_text("a story <|endoftext|> " * 30)
    done = run_program("c.txt", "--val-ratio", "0.1")
    assert done.returncode == 0
    assert "30 literal <|endoftext|>" in done.stdout and done.stdout.count("--separator '<|endoftext|>'") == 2
    advice = done.stdout.rpartition("if they separate documents: ")[2].partition(" (with --overwrite)")[0]
    again = run_program("c.txt", "--val-ratio", "0.1", *shlex.split(advice), "--overwrite")
    assert again.returncode == 0 and " of 2" in again.stdout, "documents"


def test_small_val_gets_a_warning(run_program, tmp_path) -> None:
    """A validation split too short for nanoGPT is named, with the option that helps."""
    (tmp_path / "c.txt").write_text("some words " * 9000)
    done = run_program("c.txt", "--out", "out")
    assert "warning: val.bin has" in done.stdout
    advice = re.search(r"(--val-\w+ \S+) would do \(with --overwrite\)", done.stdout)
    assert advice and set(re.findall(r"--val-\w+ \S+", done.stdout)) == {advice[1]}, "the plan says the same"
    again = run_program("c.txt", "--out", "out", *advice[1].split(), "--overwrite")
    assert again.returncode == 0 and "warning" not in again.stdout


@pytest.mark.parametrize("name", ["inpsect", "Index", "decoed", "verify"])
def test_a_command_in_place_of_an_input(run_program, tmp_path, name: str) -> None:
    """Who types a command of the package, or `verify`, as an input is told the command, which works when typed."""
    (tmp_path / "c.txt").write_text("some words " * 9000)
    assert run_program("c.txt", "--out", "made").returncode == 0
    said = run_program(name, "made/val.bin" if name == "decoed" else "made")
    assert_error(said, 2, f"{name}: no such file")
    command = shlex.split(re.search(r"did you mean (.+)\?$", said.stderr.strip())[1])
    assert command[:2] == ["python", "prepare.py"]
    assert subprocess.run([sys.executable, ROOT / "prepare.py", *command[2:]], cwd=tmp_path).returncode == 0


def test_the_plan_says_what_the_run_would(run_program, tmp_path) -> None:
    """A missing column, invalid UTF-8, too many --val-tokens: --dry-run fails as the run does, with the place."""
    write_jsonl(tmp_path / "c.jsonl", GOOD * 40)
    (tmp_path / "latin.txt").write_bytes(b"some words " * 20 + b"caf\xe9 noir" * 3)
    (tmp_path / "c.txt").write_text("some words " * 9000)
    for arguments, part in (
        (["c.jsonl", "--text-column", "body"], "c.jsonl, line 1 (byte 0): no field 'body'"),
        (["latin.txt"], "latin.txt, byte 223: invalid UTF-8"),
        (["c.txt", "--val-tokens", "1M"], "--val-tokens 1,000,000: the input has about 18,001 in all"),
    ):
        for more in (["--dry-run"], []):
            assert_error(run_program(*arguments, *more, "--out", f"for {arguments[0]}"), 2, part)
    done = run_program("c.jsonl", "--dry-run")
    assert "warning: val.bin will have about" in done.stdout
    assert done.stdout.count("val.bin will have about") == 1
    ratio = done.stdout.split("--val-ratio ")[1].split()[0]
    assert "too few to tell" not in run_program("c.jsonl", "--dry-run", "--val-ratio", ratio).stdout
    assert "too few to tell" in run_program("c.jsonl", "--dry-run", "--max-tokens", "100k").stdout
    assert "too few to tell" not in run_program("c.txt", "--dry-run", "--max-tokens", "10k").stdout


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz", ".bz2"])
@pytest.mark.parametrize("kind", ["txt", "jsonl"])
def test_compressed_files_are_estimated(tmp_path, kind: str, suffix: str) -> None:
    """By their beginning (1 MiB): about as many tokens as there are."""
    data = b"".join(jsonl({"text": f"Document {i % 997}: " + "some words and more " * (i % 50)}) for i in range(3500))
    if kind == "txt":
        data = data.replace(b'"', b"").replace(b"{", b"")
    pack = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}[suffix]
    path = tmp_path / f"c.{kind}{suffix}"
    path.write_bytes(pack(data))
    planned = prepare(path, tmp_path / "out", dry_run=True, quiet=True)
    made = prepare(path, tmp_path / "out", quiet=True)
    assert 0.8 < planned.train_tokens / made.train_tokens < 1.25


def test_what_has_no_effect_is_said(run_program, tmp_path) -> None:
    """Options without a use, records that a finished run has skipped, and another text on standard input are named."""
    (tmp_path / "c.jsonl").write_bytes(jsonl(*[{"text": t} for t in GOOD]) + b"{\n")
    done = run_program("c.jsonl", "--separator", "x", "--shard-tokens", "9k", "--skip-bad", "--out", "out")
    assert "note: --separator is for text files, and no input is one" in done.stdout
    assert "note: --shard-tokens is for shards, and train is one file; --keep-shards writes both" in done.stdout
    listed = f"{Path('out', 'prepare.changes.jsonl')}: 1 skipped\n"
    assert listed in done.stdout
    again = run_program("c.jsonl", "--separator", "x", "--errors", "replace", "--out", "out")
    assert again.returncode == 0 and "already done" in again.stdout and listed in again.stdout
    for text, status in (("some words " * 99, 0), ("other words " * 99, 2)):
        piped = run_program("-", "--out", "piped", input=text)
        assert piped.returncode == status, piped.stderr
    assert "standard input has another first MiB" in piped.stderr


@pytest.mark.parametrize("options", [["--keep-shards"], ["--layout", "npy"], ["--shuffle"]])
def test_a_size_of_shards_has_an_effect(options: list[str], run_program, tmp_path) -> None:
    """If there are shards, nothing is said of their size."""
    (tmp_path / "c.jsonl").write_bytes(jsonl(*[{"text": t} for t in GOOD]))
    done = run_program("c.jsonl", "--shard-tokens", "9k", *options)
    assert "note: --shard-tokens" not in done.stdout and done.returncode == 0


def test_line_ends_and_separators(run_program, tmp_path, reference) -> None:
    """A separator of newlines is found in a file with Windows line ends; one that is not found is named."""
    stories = [f"Story {i}\r\nA quiet river, a stone, a lantern." for i in range(50)]
    for k in range(3):
        (tmp_path / f"f{k}.txt").write_text("\r\n\r\n".join(stories), newline="")
    done = run_program("f0.txt", "--separator", r"\n\n", "--out", "o", "--val-ratio", "0.1")
    assert done.returncode == 0, done.stderr
    expected = document_ids(reference, [story.replace("\r\n", "\n") for story in stories])
    assert sorted(split_at_eot(both_splits(tmp_path / "o"))) == sorted(expected)
    assert_error(run_program("f0.txt", "--separator", "###", "--out", "p"), 2, "separator '###' separates nothing")
    done = run_program("f0.txt", "f1.txt", "f2.txt", "--separator", "###", "--val-ratio", "0.5", "--out", "q")
    assert "warning: the separator '###' separates nothing" in done.stdout + done.stderr


def test_existing_outputs_are_left_alone(run_program, tmp_path) -> None:
    """A train.bin of unknown origin is never touched; another run's only with --overwrite; the same run is done."""
    (tmp_path / "c.jsonl").write_bytes(jsonl(*[{"text": t} for t in GOOD]))
    (tmp_path / "train.bin").write_bytes(b"precious")
    for more in ([], ["--overwrite"]):
        assert_error(run_program("c.jsonl", "--out", ".", *more), 2, "train.bin already exists", "move it away")
    assert (tmp_path / "train.bin").read_bytes() == b"precious"
    (tmp_path / "train.bin").rename(tmp_path / "elsewhere.bin")
    assert run_program("c.jsonl", "--out", ".").returncode == 0
    (tmp_path / "elsewhere.bin").unlink()
    made = outputs(tmp_path)
    done = run_program("c.jsonl", "--out", ".")
    assert done.returncode == 0
    assert "already done" in done.stdout
    assert_error(run_program("c.jsonl", "--out", ".", "--seed", "1"), 2, "--seed was 0 and is 1", "--overwrite")
    assert outputs(tmp_path) == made
    assert run_program("c.jsonl", "--out", ".", "--seed", "1", "--overwrite", "--val-ratio", "0.5").returncode == 0
    assert outputs(tmp_path) != made


def test_plain_text_and_documents_do_not_mix(run_program, tmp_path) -> None:
    """One long text beside records is refused, with --separator as the way out."""
    (tmp_path / "a.txt").write_text("text " * 99)
    write_jsonl(tmp_path / "b.jsonl", GOOD)
    assert_error(run_program("a.txt", "b.jsonl", "--out", "o"), 2, "a.txt is one long text", "--separator")
    assert run_program("a.txt", "b.jsonl", "--separator", r"\n\n", "--out", "o").returncode == 0


@pytest.mark.parametrize(
    "arguments, part",
    [
        (["--val-ratio", "1.5"], "--val-ratio 1.5"), (["--shard-tokens", "many"], "not a size: 'many'"),
        (["--separator", ""], "--separator is empty"), (["--engine", "gpt"], "no such engine: 'gpt'"),
        (["--engine", "fastokens"], "the engines are auto, tiktoken, gigatoken"),
        (["--nonsense"], "--nonsense"), (["--val-raito", "1"], "did you mean --val-ratio?"),
        (["--out", "c.txt"], "c.txt: a file, not a folder"), (["--shards-token=1M"], "did you mean --shard-tokens?"),
        (["--workers", "0"], "--workers 0: not a whole number of 1 or more"),
        (["--connections", "x"], "--connections x: not a whole number"), (["--for", "8"], "--for 8: not a batch"),
        (["--layout", "x"], "the layouts are nanogpt, llmc, npy\n"), (["--val-tokens", "-5"], "--val-tokens"),
        (["--max-tokens", "1e400"], "not a size"),
        (["--memory", "4"], "--memory 4: not a size of memory"), (["--memory", "1,5GB"], "with a point: 1.5GB"),
        (["--val-ratio", "0,1"], "with a point: 0.1"),
        (["--out", "o", "d.txt"], "arguments: d.txt; name all inputs together, before the options"),
    ],
)  # fmt: skip
def test_bad_arguments(run_program, tmp_path, arguments: list[str], part: str) -> None:
    """Arguments that make no sense: exit status 2 and the argument named."""
    (tmp_path / "c.txt").write_text("text " * 99)
    done = run_program("c.txt", *arguments)
    assert done.returncode == 2
    assert part in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "given, part",
    [
        ({"inputs": 5}, "5: not names of files"), ({"inputs": ["c.txt", None]}, "not names of files"),
        ({"val": 5}, "5: not names of files"), ({"inputs": io.StringIO("c.txt")}, "an open file, not its name"),
        ({"out": None}, "out=None: not the name of a folder"), ({"layout": [2]}, "layout=[2]: not a string"),
        ({"layout": None}, "layout=None: not a string"), ({"eot": ["after"]}, "eot=['after']: not a string"),
        ({"executor": 2}, "not an executor"), ({"executor": ThreadPoolExecutor}, "not an executor"),
        ({"val_at": np.zeros(2)}, "not a string"), ({"inputs": np.zeros(2)}, "not names of files"),
        ({"inputs": {"c.txt": "c.txt"}}, "not names of files (the keys or columns of a dict)"),
        ({"inputs": np.array([["c.txt"]])}, "not names of files"), ({"val": {"c.txt": ["a"]}}, "not names of files"),
        ({"inputs": "Once upon a time. " * 9999}, "a text, not the name"), ({"inputs": [{"text": "a"}] * 999}, "dict)"),
    ],
)  # fmt: skip
def test_what_is_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], part: str) -> None:
    """What a script hands over in place of a name is refused by its value."""
    monkeypatch.chdir(tmp_path)
    Path("c.txt").write_text("text " * 99)
    with pytest.raises(InputError) as caught:
        prepare(**({"inputs": "c.txt", "out": "out", "quiet": True} | given))
    assert part in caught.value.message and len(caught.value.message) < 300 and not Path("out").exists()


def test_names_in_an_array(tmp_path: Path) -> None:
    """An array of names, as a table's column is, names the files that a list does."""
    paths = [write_jsonl(tmp_path / f"{name}.jsonl", [name] * 9) for name in "ab"]
    result = prepare(np.array([str(path) for path in paths]), tmp_path / "out", quiet=True, engine="tiktoken")
    assert result.train_documents + result.val_documents == 18


def test_a_file_that_is_named_twice(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is read twice, which is said; and a run that named it once does not take that for another order."""
    for name in ("a", "b"):
        write_jsonl(tmp_path / f"{name}.jsonl", [f"{name} {text}" for text in GOOD])
    prepare(tmp_path, tmp_path / "out", quiet=True)
    assert "more than once" not in caplog.text
    for inputs, twice in (([tmp_path, tmp_path], "a.jsonl, "), ([tmp_path / "b.jsonl", tmp_path], "b.jsonl")):
        caplog.clear()
        result = prepare(inputs, tmp_path / "twice", quiet=True, overwrite=True)
        assert f"more than once: {twice}" in caplog.text
        assert result.train_documents + result.val_documents == len(GOOD) * (3 + (inputs[0] == tmp_path))
    with pytest.raises(InputError, match="not as often"):
        prepare(tmp_path, tmp_path / "twice", quiet=True)


def test_zero_bytes_in_jsonl_are_a_bad_line(tmp_path: Path) -> None:
    """What a torn write leaves in a jsonl file is named with its line, or skipped."""
    path = write_jsonl(tmp_path / "c.jsonl", GOOD)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\n\0\0\0\0\n", 1))
    with pytest.raises(InputError, match=r"c\.jsonl, line 2 .*: not JSON"):
        prepare(path, tmp_path / "out", quiet=True)
    result = prepare(path, tmp_path / "out", skip_bad=True, quiet=True)
    assert result.train_documents + result.val_documents == len(GOOD)


ODD = [0, -1, 1.5, float("nan"), "1,5", "", True, None, 10**30, "x", (), np.float32("inf")]
"""What a script may hand over where a number is wanted."""

TAKEN: dict[str, list[Any]] = {
    "max_tokens": [None, 10**30],
    "val_tokens": [None],
    "shard_tokens": [None],
    "val_ratio": [None],
    "fit": [None],
    "workers": [None, 10**30],
    "connections": [10**30],
    "memory": [None, 10**30],
    "seed": [0, -1, 10**30],
    "eot_id": [None],
}
"""Parameters that are numbers, and which of the odd values they take."""


@pytest.mark.parametrize("call", [prepare, estimate, iter_ids])
@pytest.mark.parametrize("name", TAKEN)
def test_odd_numbers_from_a_script(name: str, call: Callable[..., Any], tmp_path: Path) -> None:
    """Each number with each odd value has its effect, or is an InputError that names it."""
    if name not in inspect.signature(call).parameters:
        pytest.skip("it has no such parameter")
    path = write_jsonl(tmp_path / "c.jsonl", GOOD)
    out = {} if call is iter_ids else {"out": tmp_path / "out", "val_ratio": 0.1}
    for value in ODD:
        options = {"engine": "tiktoken"} | out | {name: value}
        if value in TAKEN[name] and value is not True:
            list(call(path, **options)) if call is iter_ids else call(path, **options)
            shutil.rmtree(tmp_path / "out", ignore_errors=True)
            continue
        with pytest.raises(InputError) as caught:
            list(call(path, **options)) if call is iter_ids else call(path, **options)
        assert re.match(rf"(--)?{name.replace('_', '[_-]')}\b", caught.value.message) and caught.value.hint
        assert not (tmp_path / "out").exists()


def test_every_number_is_tried() -> None:
    """No parameter of prepare() that may be a number is left out of the tables."""
    numbers = {name for name, each in inspect.signature(prepare).parameters.items()
               if re.search("int|float", str(each.annotation))}  # fmt: skip
    assert numbers | {"fit"} == set(TAKEN)


@pytest.mark.parametrize("call", [prepare, estimate, iter_ids])
def test_flags_from_a_script(call: Callable[..., Any], tmp_path: Path) -> None:
    """Each flag takes True and False, also NumPy's; the string "no" would count as true: an InputError names it."""
    path = write_jsonl(tmp_path / "c.jsonl", GOOD)
    parameters = inspect.signature(call).parameters
    flags = [name for name, parameter in parameters.items() if parameter.annotation == "bool"]
    assert "skip_bad" in flags
    for name in flags:
        options = {"engine": "tiktoken"} | ({} if call is iter_ids else {"out": tmp_path / "out"})
        for value in (np.True_, np.False_):
            found = call(() if name == "demo" and value else path, **options, **{name: value})
            assert call is not iter_ids or list(found)
            shutil.rmtree(tmp_path / "out", ignore_errors=True)
        for value in ("no", 1, None, []):
            with pytest.raises(InputError, match=f"^{name}="):
                list(call(path, **options, **{name: value}))
        assert not (tmp_path / "out").exists()


NAMES = {
    "null in an input": ({"inputs": "c\0.jsonl"}, r"c.*: a name with a null character"),
    "null in --val": ({"val": ["c\0.jsonl"]}, r"c.*: a name with a null character"),
    "null in the folder": ({"out": "o\0"}, r"--out o.*: not a folder on this machine"),
    "a URL as the folder": ({"out": "s3://bucket/folder"}, r"--out s3://bucket/folder: not a folder on this machine"),
    "no folder": ({"out": ""}, "--out without a name"),
    "half a character as a column": ({"text_column": "\ud800"}, r"text_column=.*: half of a character"),
    "half a character as a separator": ({"separator": "\ud800"}, r"separator=.*: half of a character"),
    "a long separator": ({"separator": "x" * 1001}, "separator has 1,001 characters\n  at most 1,000"),
}


@pytest.mark.parametrize("name", NAMES)
def test_names_that_are_none(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that cannot be a file, folder, column or separator is refused before anything is made."""
    write_jsonl(tmp_path / "c.jsonl", GOOD)
    monkeypatch.chdir(tmp_path)
    given, message = NAMES[name]
    with pytest.raises(InputError, match=message) as caught:
        prepare(**{"inputs": "c.jsonl", "out": "out"} | given)
    assert caught.value.hint and os.listdir() == ["c.jsonl"]


@pytest.mark.parametrize("option", [{"executor": "x"}, {"cluster": 3}])
def test_where_to_encode_from_a_script(option: dict[str, Any], tmp_path: Path) -> None:
    """A value that is no executor or address is named before anything is made."""
    path = write_jsonl(tmp_path / "c.jsonl", GOOD)
    with pytest.raises(InputError, match=f"^{next(iter(option))}="):
        prepare(path, tmp_path / "out", **option)
    assert not (tmp_path / "out").exists()


NUMBERS = {
    "max_tokens": (["1M", 1e6, 1_000_000, "1,000,000", "1e6"], ["x", "", 0, -1, True, "1,5M", float("nan"), "1 5", []]),
    "val_tokens": (["100", 100.0], ["none", -5, 0]),
    "shard_tokens": (["5k", 5000.0], [0, "0", "1,5k", 1.5, "1.5"]),
    "fit": (["1x8", "1X8x1"], ["", (1, 1024), 8, True, "8x"]),
    "connections": ([1, "1", 16.0], [0, -1, 1.5, "", None]),
    "val_ratio": ([0.1, "0.1", "10%", "10 %"], ["0,1", "10", 10, 0, "0%", "x", True, []]),
    "workers": ([1, "1", 1.0], [0, "two", 1.5, True, ""]),
    "seed": ([7, "7", 7.0], ["x", 1.5, None]),
    "memory": ([4e9, "4GB", "50%"], [4, "4", "1,5GB", 0, "", "0%"]),
    "format": (["jsonl", None], ["csv", 3]),
    "text_column": (["text"], [None, 3]),
    "separator": ([None], ["", 3, b"x"]),
    "errors": (["strict"], ["no", None]),
    "engine": (["tiktoken"], ["gpt"]),
    "layout": (["nanogpt"], ["x", None]),
}
"""Values of parameters: some that are right, and some that are not."""


@pytest.mark.parametrize("name", NUMBERS)
def test_values_from_a_script(tmp_path, name: str) -> None:
    """A script may give what the command line takes; a wrong value is an InputError that names the parameter."""
    path = write_jsonl(tmp_path / "c.jsonl", GOOD)
    good, bad = NUMBERS[name]
    made = []
    for i, value in enumerate(good):
        prepare(path, tmp_path / str(i), quiet=True, **{"val_ratio": 0.1, "engine": "tiktoken"} | {name: value})
        made.append(outputs(tmp_path / str(i)))
    assert all(one == made[0] for one in made)
    for value in bad:
        with pytest.raises(InputError) as caught:
            prepare(path, tmp_path / "bad", quiet=True, **{name: value})
        assert name in str(caught.value) and not (tmp_path / "bad").exists()


@pytest.mark.parametrize("workers", [0, -1])
def test_no_workers(tmp_path, workers: int) -> None:
    """From a script, a number of workers below 1 is an error, as on the command line."""
    path = write_jsonl(tmp_path / "c.jsonl", ["one document", "another one"])
    with pytest.raises(InputError, match=f"workers={workers}"):
        prepare(path, tmp_path / "out", workers=workers, quiet=True)
    with pytest.raises(InputError, match=f"workers={workers}"):
        list(iter_ids(path, workers=workers))


@pytest.mark.parametrize("is_there", [False, True])
def test_no_empty_folder_is_left(is_there: bool, tmp_path: Path) -> None:
    """Folders that a failed run made are removed; those that existed, or have files, stay."""
    path = write_jsonl(tmp_path / "c.jsonl", [*GOOD, None])
    out = tmp_path / "a" / "b"
    if is_there:
        out.parent.mkdir()
    with pytest.raises(InputError, match="is null"):
        prepare(path, out, quiet=True, engine="tiktoken")
    assert out.parent.exists() == is_there and not out.exists()
    prepare(path, out, quiet=True, engine="tiktoken", skip_bad=True, val_ratio=0.1)
    assert (out / "train.bin").exists()


def test_standard_input_is_named_in_words(run_program, tmp_path) -> None:
    """No message and no list of changes calls it "-": of a bad record, of another input, of what is no text."""
    text = jsonl(*[{"text": t} for t in GOOD], {"text": 5}).decode()
    bad = f"standard input, line {len(GOOD) + 1} "
    done = run_program("-", "--out", "o", input=text)
    assert_error(done, 2, f"prepare: {bad}")
    done = run_program("-", "--skip-bad", "--val-ratio", "0.1", "--out", "o", input=text)
    assert done.returncode == 0 and f"skipped: {bad}" in done.stdout, done.stderr
    assert "input: standard input: jsonl" in done.stdout
    assert f'"place": "{bad}' in (tmp_path / "o" / "prepare.changes.jsonl").read_text()
    (tmp_path / "c.jsonl").write_text(text)
    done = run_program("c.jsonl", "--skip-bad", "--val-ratio", "0.1", "--out", "o")
    assert_error(done, 2, "standard input is no longer an input")
    done = run_program("-", "--out", "p", input="<html><body><p>some words</p></body></html>")
    assert_error(done, 2, "standard input: a web page", "save it to a file, and name that file: the message then says")


def test_a_file_called_as_standard_input(run_program, tmp_path) -> None:
    """A file named - is read as ./-, whatever comes on standard input."""
    write_jsonl(tmp_path / "-", ["one document", "another one"])
    done = run_program("./-", "--val-ratio", "0.1", input="something else")
    assert done.returncode == 0, done.stderr
    assert "of 1 document\n" in done.stdout


def test_no_more_memory_from_the_system(tmp_path, monkeypatch) -> None:
    """A lack of memory by a limit of the system gives exit status 3, the place, and advice."""
    path = write_jsonl(tmp_path / "c.jsonl", ["one document", "another one"])
    monkeypatch.setattr(run, "encode_block", raise_memory_error)
    with pytest.raises(MemoryLimitError, match=r"c\.jsonl, from 0: out of memory \(realloc failed\)"):
        prepare(path, tmp_path / "out", quiet=True)


def raise_memory_error(*args: object, **options: object) -> None:
    raise MemoryError("realloc failed")


ALL_BAD = {
    "a.jsonl": jsonl(*[{"body": text} for text in GOOD]),
    "b.jsonl": jsonl(1, *GOOD),
    "c.jsonl": b"not one line is JSON\n" * 50,
    "d.jsonl": jsonl(*[{"text": None}] * 50),
}


@pytest.mark.parametrize("name", ["none.parquet", "other.parquet", "cut.parquet", *ALL_BAD])
def test_skipping_all_is_not_advised(name: str, tmp_path: Path) -> None:
    """--skip-bad is not advised if it would skip all records, but it is if another file is good."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    good, bad = write_jsonl(tmp_path / "good.jsonl", GOOD), tmp_path / name
    pq.write_table(pa.table({"text": pa.array([None] * 50, pa.string())}), tmp_path / "none.parquet")
    pq.write_table(pa.table({"body": GOOD}), tmp_path / "other.parquet")
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "other.parquet").read_bytes()[:200])
    for each, data in ALL_BAD.items():
        (tmp_path / each).write_bytes(data)
    for call in (estimate, prepare):
        with pytest.raises(InputError) as caught:
            call(bad, tmp_path / "out", val_ratio=0.1)
        assert caught.value.hint and "--skip-bad" not in caught.value.hint
        with pytest.raises(InputError) as caught:
            call(bad, tmp_path / "beside val", val=good)
        assert caught.value.hint and "--skip-bad" not in caught.value.hint
        with pytest.raises(InputError, match=r"skip .* with --skip-bad"):
            call([good, bad], tmp_path / "out", val_ratio=0.1)
    prepare([good, bad], tmp_path / "out", skip_bad=True, val_ratio=0.1, quiet=True)
    assert len(split_at_eot(both_splits(tmp_path / "out"))) == len(GOOD)


def test_files_that_are_cut_off_are_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """--skip-bad skips each parquet file without a footer: counted, located, printed; all others are kept."""
    pytest.importorskip("pyarrow")
    paths = [write_parquet(tmp_path / f"{k}.parquet", GOOD) for k in range(6)]
    prepare(paths[::2], tmp_path / "expected", val_ratio=0.1, quiet=True)
    for path in paths[1::2]:
        path.write_bytes(path.read_bytes()[:-1000])
    prepare(paths[:1], tmp_path / "out", val_ratio=0.1, quiet=True, overwrite=True)
    with pytest.raises(InputError, match=r"1\.parquet: not a whole parquet file.*\n.*skip such files with --skip-bad"):
        prepare(paths, tmp_path / "out", val_ratio=0.1, quiet=True, overwrite=True)
    with caplog.at_level("INFO", "fineweb_stream"):
        prepare(paths, tmp_path / "out", val_ratio=0.1, quiet=True, skip_bad=True)
    assert "resuming at" in caplog.text
    assert outputs(tmp_path / "out") == outputs(tmp_path / "expected")
    assert json.loads((tmp_path / "out" / "prepare.json").read_text())["state"]["n_changes"] == {"skipped": 3}
    listed = [json.loads(line) for line in (tmp_path / "out" / "prepare.changes.jsonl").read_text().splitlines()]
    assert [Path(change["place"]).name for change in listed] == [f"{k}.parquet, row 1" for k in (1, 3, 5)]
    assert all("not a whole parquet file" in change["detail"] for change in listed)
    assert all(f"skipped: {change['place']}: {change['detail']}" in caplog.text for change in listed)
    n_tokens = len(both_splits(tmp_path / "out"))
    assert sum(map(len, iter_ids(paths, skip_bad=True))) == n_tokens
    found = estimate(paths, tmp_path / "new", skip_bad=True)
    assert found.train_tokens and found.val_tokens
    assert abs((found.train_tokens + found.val_tokens) / n_tokens - 1) < 0.15  # small files have much beside their text


def test_a_disk_that_fails_is_no_bad_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that cannot be read at the moment is never skipped: it may be whole."""
    pytest.importorskip("pyarrow")
    paths = [write_parquet(tmp_path / f"{k}.parquet", GOOD) for k in range(2)]
    real = parquet.open_file

    class Failing(io.BytesIO):
        def read(self, *_: object) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(
        parquet,
        "open_file",
        lambda input, *args, **options: (
            Failing(b"x" * 99) if "1.parquet" in input.path else real(input, *args, **options)
        ),
    )
    with pytest.raises(InputError, match=r"1\.parquet: .*Input/output error"):
        prepare(paths, tmp_path / "out", val_ratio=0.1, quiet=True, skip_bad=True)
    monkeypatch.undo()
    prepare(paths, tmp_path / "out", val_ratio=0.1, quiet=True, skip_bad=True)
    assert len(split_at_eot(both_splits(tmp_path / "out"))) == 2 * len(GOOD)


def test_names_that_mean_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard input comes once; ~ is a shell's; the demo has a text of its own."""
    monkeypatch.setattr("fineweb_stream.inputs.discover.stdin_head", lambda *_: b"some words")
    with pytest.raises(InputError, match="standard input is named twice"):
        find_inputs(["-", "-"])
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path))
    (tmp_path / "c.txt").write_text("some words")
    with pytest.raises(InputError, match=r"no such file\n  did you mean .*c\.txt"):
        find_inputs([os.path.join("~", "c.txt")])
    with pytest.raises(InputError, match="--demo takes no input: "):
        prepare(tmp_path / "c.txt", tmp_path / "out", demo=True)
