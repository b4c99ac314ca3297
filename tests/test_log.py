"""Messages go through `logging`: a script that configures it gets them there, others see sentences."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fineweb_stream import InputError, iter_ids, prepare

from .conftest import ROOT
from .helpers import write_jsonl, write_parquet

BASIC = "logging.basicConfig(level='{}', format='LOG %(message)s')"
SCRIPTS = {
    "nothing is configured": ("", "prepare(path, out)", True, False),
    "quiet": ("", "prepare(path, out, quiet=True)", False, False),
    "iter_ids": ("", "list(iter_ids(path))", False, False),
    "to a handler": (BASIC.format("INFO"), "prepare(path, out)", False, True),
    "quiet, to a handler": (BASIC.format("INFO"), "prepare(path, out, quiet=True)", False, True),
    "errors only": (BASIC.format("ERROR"), "prepare(path, out)", False, False),
    "errors of this logger only": (
        "logging.getLogger('fineweb_stream').setLevel('ERROR')",
        "prepare(path, out)",
        False,
        False,
    ),
}
"""What is configured, what is called, whether its sentences are printed, and whether they are logged."""

STREAMS = {
    "no streams": "sys.stdout = sys.stderr = None",
    "closed streams": "sys.stdout = sys.stderr = io.StringIO(); sys.stdout.close()",
    "a stream that only writes": "sys.stdout = sys.stderr = type('Stream', (), {'write': len, 'flush': lambda: None})",
}
"""What a service, a notebook or pythonw may have in place of the streams."""


@pytest.mark.parametrize("name", STREAMS)
def test_a_script_without_streams(name: str, tmp_path: Path) -> None:
    """Where nothing can be printed, nothing is, and the run goes on."""
    path = write_jsonl(tmp_path / "c.jsonl", ["some words"] * 50)
    code = f"""
import io, os, sys
from fineweb_stream import prepare
from fineweb_stream.pipeline import progress
progress.FIRST_SECONDS = progress.BAR_SECONDS = progress.EVERY_SECONDS = 0
{STREAMS[name]}
for quiet in (True, False):
    prepare({str(path)!r}, {str(tmp_path)!r} + f"/{{quiet}}", quiet=quiet, engine="tiktoken")
os._exit(7)
"""
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60).returncode == 7
    assert all((tmp_path / quiet / "train.bin").exists() for quiet in ("True", "False"))


@pytest.mark.parametrize("name", SCRIPTS)
def test_who_hears_what(name: str, tmp_path: Path) -> None:
    """Sentences are printed only if logging is not configured and nobody asked for quiet."""
    configure, call, is_printed, is_logged = SCRIPTS[name]
    path = write_jsonl(tmp_path / "c.jsonl", ["some words"] * 50)
    code = f"""
import logging
from functools import partial
from fineweb_stream import iter_ids, prepare
prepare, iter_ids = partial(prepare, engine="tiktoken"), partial(iter_ids, engine="tiktoken")
path, out = {str(path)!r}, {str(tmp_path / "out")!r}
{configure}
before = logging.getLogger("fineweb_stream").level, len(logging.getLogger("fineweb_stream").handlers)
{call}
assert before == (logging.getLogger("fineweb_stream").level, len(logging.getLogger("fineweb_stream").handlers))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 0, done.stderr
    assert ("train on it" in done.stdout) == is_printed
    assert ("LOG train on it" in done.stderr) == is_logged
    assert is_printed or not done.stdout
    assert is_logged or not done.stderr


def test_iter_ids_logs_what_it_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each skipped record with the line and byte that a run writes to its list; of many, ten and their number."""
    paths = [write_jsonl(tmp_path / f"{k}.jsonl", ["some words"] * 80_000) for k in range(2)]
    for path in paths:
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(line if i % 17_000 != 16_999 else b"{bad\n" for i, line in enumerate(lines)))
    prepare(paths, tmp_path / "out", skip_bad=True, quiet=True)
    listed = [json.loads(line) for line in (tmp_path / "out" / "prepare.changes.jsonl").read_text().splitlines()]
    caplog.clear()
    assert sum(map(len, iter_ids(paths, skip_bad=True))) == 3 * (160_000 - 8)
    assert [record.getMessage() for record in caplog.records] == [
        f"skipped: {change['place']}: {change['detail']}" for change in listed
    ]
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{bad\n" * 11)
    caplog.clear()
    assert not sum(map(len, iter_ids(bad, skip_bad=True)))
    assert (len(caplog.records), caplog.messages[-1]) == (11, "11 records are skipped or changed")
    bad.write_bytes(paths[0].read_bytes().replace(b"{bad\n", b"") + b"{bad\n")
    with pytest.raises(InputError, match=rf"bad\.jsonl, byte {bad.stat().st_size - 5:,}: not JSON"):
        list(iter_ids(bad))


def test_iter_ids_logs_each_skipped_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A skipped file is a line, however many rows it had; beyond ten lines, their number is that of the rows."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    good = write_parquet(tmp_path / "0.parquet", ["some words"] * 9)
    bad = [tmp_path / f"{k}.parquet" for k in range(1, 12)]
    for path in bad:
        pq.write_table(pa.table({"body": ["other words"] * 20}), path)
    assert sum(map(len, iter_ids([good, *bad[:3]], skip_bad=True))) == 3 * 9
    assert [f"{k}.parquet" in message for k, message in enumerate(caplog.messages, 1)] == [True] * 3
    caplog.clear()
    assert sum(map(len, iter_ids([good, *bad], skip_bad=True))) == 3 * 9
    assert (len(caplog.records), caplog.messages[-1]) == (11, "220 records are skipped or changed")


def test_two_runs_in_threads_are_both_printed() -> None:
    """Whichever ends first, all that either has to say is printed, each line once."""
    script = """
import threading
from fineweb_stream.support.log import has_listener, log, printed
begun, ended = threading.Barrier(2), threading.Event()
def run(name, is_last):
    with printed():
        begun.wait()
        if is_last:
            ended.wait()
        log.info(f"{name} is done")
    ended.set()
threads = [threading.Thread(target=run, args=(name, name == "second")) for name in ("first", "second")]
for thread in threads: thread.start()
for thread in threads: thread.join()
log.warning("after both")
assert not has_listener() and log.level == 0
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("first is done\nsecond is done\n", "")


def test_an_encoding_that_lacks_characters(tmp_path: Path) -> None:
    """A script's output in an old encoding, as on Windows in a file: a message has escapes, and is not lost."""
    path = write_jsonl(tmp_path / "Пушкин.txt", ["some words"] * 50)
    code = f"from fineweb_stream import prepare; prepare({str(path)!r}, {str(tmp_path / 'out')!r}, engine='tiktoken')"
    env = os.environ | {"PYTHONIOENCODING": "cp1252"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, timeout=60, env=env, capture_output=True, encoding="cp1252"
    )
    assert "read as JSON Lines by their content" in done.stdout
    assert r"\u041f\u0443" in done.stdout
