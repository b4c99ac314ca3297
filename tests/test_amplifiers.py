"""Inputs that grow when they are read: a run stays within its budget, or names the input and says what to do.

Memory is measured from outside (the private memory of the process and its children) and taken from the run's record.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import lzma
import pickle
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import psutil
import pytest

from fineweb_stream import iter_ids, prepare
from fineweb_stream.inputs.discover import find_inputs
from fineweb_stream.inputs.parquet import Parquet, _read_groups
from fineweb_stream.inputs.parquet_pages import Pages
from fineweb_stream.memory.guard import MB
from fineweb_stream.support.errors import GrownError, InputError
from fineweb_stream.support.model import ReadOptions

from .conftest import ROOT
from .helpers import outputs, write_jsonl

BUDGETS_MB = [300, 500]  # the first has room for one engine, the second for the other
BUDGETS_MB_OF = {
    "late long rows": [300],
    **{name: [300, 2000] for name in ("objects", "floats")},  # either of the first two refuses these
    **{name: [*BUDGETS_MB, 2000] for name in ("streams", "xz", "zstd")},  # there is room for several at once
}
WORDS = ["the", "words", "of", "a", "text", "that", "is", "long", "and", "other"]  # a token each: quick to encode
LONG = " ".join(random.Random(1).choices(WORDS, k=1 << 18))[: 1 << 20]


def write_rows(path: Path, rows: Any, **options: Any) -> Path:
    """One row group, whatever it comes to."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    options = {"row_group_size": 10**9, "compression": "zstd"} | options
    pq.write_table(pa.table({"text": rows}), path, **options)
    return path


def write_prefixes(folder: Path) -> list[str]:
    """Every value repeats the one before: a row is two numbers."""
    options = {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}}
    return [str(write_rows(folder / "c.parquet", [LONG] * 540, **options))]


def write_few_values(folder: Path) -> list[str]:
    """A dictionary of a few long values that compress to nothing."""
    values = ["ab cd " * (30_000 + i) for i in range(4)]
    return [str(write_rows(folder / "c.parquet", [values[i % 4] for i in range(3000)]))]


def skewed(n_rows: int, value: str) -> list[str]:
    """Short texts, and one long one again and again."""
    return [value if i % 10 == 0 else f"short {i}" for i in range(n_rows)]


def write_skewed(folder: Path) -> list[str]:
    """A dictionary of many short values and a long one, which makes up most of the text."""
    return [str(write_rows(folder / "c.parquet", skewed(5400, LONG), dictionary_pagesize_limit=1 << 24))]


def write_unused(folder: Path) -> list[str]:
    """A dictionary most of which is not used, as a column of categories has it after a filter."""
    pa = pytest.importorskip("pyarrow")
    values = pa.array([LONG, *(f"word {i}" for i in range(1000))])
    return [str(write_rows(folder / "c.parquet", pa.DictionaryArray.from_arrays(np.zeros(700, np.int32), values)))]


def write_late_long_rows(folder: Path) -> list[str]:
    """Many empty rows, so that the mean is short, and then long ones with a page each."""
    rows = [""] * 390_000 + ["word and other " * 460_000] * 14
    options = {"use_dictionary": False, "write_batch_size": 1, "data_page_size": 1 << 20}
    return [str(write_rows(folder / "c.parquet", rows, **options))]


def write_lines(path: Path, *lines: str) -> list[str]:
    """Lines of JSON, with short ones around them."""
    short = ['{"text": "a few words"}'] * 50
    path.write_text("\n".join([*short, *lines, *short, ""]), encoding="utf-8")
    return [str(path)]


def write_list(folder: Path) -> list[str]:
    """A line with a few words and millions of empty lists."""
    return write_lines(folder / "c.jsonl", '{"text": "a few words", "x": [%s0]}' % ("[]," * 6_000_000))


def write_lists(folder: Path) -> list[str]:
    """Many such lines, each about as long as a block."""
    return write_lines(folder / "c.jsonl", *['{"text": "a few words", "x": [%s0]}' % ("[]," * 500_000)] * 8)


def write_objects(folder: Path) -> list[str]:
    """A line of objects, with its text twice, so that the exact parser has to read it."""
    return write_lines(folder / "c.jsonl", '{"text": "a", "x": [%s0], "text": "b"}' % ('{"a":0},' * 1_200_000))


def write_floats(folder: Path) -> list[str]:
    """An embedding as long as a book."""
    return write_lines(folder / "c.jsonl", '{"text": "a", "x": [%s0], "text": "b"}' % ("0.5," * 5_000_000))


EMOJI = LONG * 24 + "\U0001f600"


def write_emoji(folder: Path) -> list[str]:
    """A long text of one byte a character, but for one: as `str` each of them takes four."""
    return write_lines(folder / "c.jsonl", *[json.dumps({"text": EMOJI}, ensure_ascii=False)] * 3)


def write_escaped_emoji(folder: Path) -> list[str]:
    """The same in ASCII, as `json.dumps` writes it."""
    return write_lines(folder / "c.jsonl", *[json.dumps({"text": EMOJI})] * 3)


def write_separated(folder: Path, document: bytes) -> list[str]:
    """Three such documents in a text file."""
    (folder / "c.txt").write_bytes(b"<|>".join([document] * 3))
    return [str(folder / "c.txt"), "--separator", "<|>", "--errors", "replace"]


def write_bad_bytes(folder: Path) -> list[str]:
    """An emoji and a byte that is no UTF-8."""
    return write_separated(folder, EMOJI.encode() + b"\xff")


def write_spaces(folder: Path) -> list[str]:
    """Whitespace first, so that text is searched for."""
    return write_separated(folder, b" " * 10_000 + EMOJI.encode())


def write_bad_rows(folder: Path) -> list[str]:
    """The same in a column of bytes."""
    options = {"use_dictionary": False, "write_batch_size": 1}
    path = write_rows(folder / "c.parquet", [LONG.encode() * 12 + b"\xf0\x9f\x98\x80 \xff"] * 3, **options)
    return [str(path), "--errors", "replace"]


def write_packed(folder: Path, pack: Callable[[Path], Any], suffix: str) -> list[str]:
    """Two files whose references go as far back as the format allows."""
    paths = [folder / f"{i}.txt{suffix}" for i in range(2)]
    with pack(paths[0]) as file:
        for _ in range(200):
            file.write(b"word and other\n" * 66_000)
    shutil.copy(*paths)
    return list(map(str, paths))


def write_xz(folder: Path) -> list[str]:
    """A dictionary of 192 MiB."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 192 << 20}]
    return write_packed(folder, lambda path: lzma.open(path, "wb", filters=filters), ".xz")


def write_zstd(folder: Path) -> list[str]:
    """What `zstd --long=27` makes."""
    zstandard = pytest.importorskip("zstandard")
    parameters = zstandard.ZstdCompressionParameters(window_log=27, compression_level=1)
    return write_packed(
        folder, lambda path: zstandard.open(path, "wb", zstandard.ZstdCompressor(compression_params=parameters)), ".zst"
    )


def write_streams(folder: Path) -> list[str]:
    """Many compressed texts, each of which is read for the end of its validation split."""
    data = gzip.compress(b"word and other\n" * 3_000_000, 1)
    paths = [folder / f"{i}.txt.gz" for i in range(10)]
    for path in paths:
        path.write_bytes(data)
    return [*map(str, paths), "--workers", "10"]


AMPLIFIERS: dict[str, Callable[[Path], list[str]]] = {
    "prefixes": write_prefixes,
    "few values": write_few_values,
    "skewed": write_skewed,
    "unused": write_unused,
    "late long rows": write_late_long_rows,
    "list": write_list,
    "lists": write_lists,
    "objects": write_objects,
    "floats": write_floats,
    "emoji": write_emoji,
    "escaped emoji": write_escaped_emoji,
    "bad bytes": write_bad_bytes,
    "spaces": write_spaces,
    "bad rows": write_bad_rows,
    "streams": write_streams,
    "xz": write_xz,
    "zstd": write_zstd,
}


class Ran(NamedTuple):
    """What a process came to: its status, what it said, and the most private memory it had (bytes)."""

    status: int
    said: str
    peak_bytes: int


def run_watched(folder: Path, *arguments: str) -> Ran:
    """Run prepare.py and measure its memory a hundred times a second; look for child processes ten times a second."""
    with (folder / "said").open("w+", encoding="utf-8") as said:
        out = [] if "--out" in arguments else ["--out", "out"]
        command = [sys.executable, str(ROOT / "prepare.py"), *arguments, *out]
        program = subprocess.Popen(command, stdout=said, stderr=said, cwd=folder)
        peak, root = 0, psutil.Process(program.pid)
        tree = [root]
        try:
            for i in itertools.count():
                if program.poll() is not None:
                    break
                with contextlib.suppress(psutil.Error):
                    if i % 10 == 0:
                        tree = [root, *root.children(recursive=True)]
                    infos = [one.memory_info() for one in tree]
                    peak = max(peak, sum(info.rss - getattr(info, "shared", 0) for info in infos))
                time.sleep(0.01)
        finally:
            program.kill()
            program.wait()
        said.seek(0)
        return Ran(program.returncode, said.read(), peak)


@pytest.mark.slow
@pytest.mark.parametrize("name", AMPLIFIERS)
def test_within_the_budget_or_named(tmp_path: Path, name: str) -> None:
    """A run keeps its budget at every moment, or ends at once with the file, the place and what to type."""
    paths = AMPLIFIERS[name](tmp_path)
    for budget_mb in BUDGETS_MB_OF.get(name, BUDGETS_MB):
        out = tmp_path / f"{budget_mb}"
        ran = run_watched(tmp_path, *paths, "--memory", f"{budget_mb}MB", "--max-tokens", "600000", "--out", str(out))
        assert ran.peak_bytes < budget_mb * MB, ran
        assert "Traceback" not in ran.said
        if ran.status:
            assert ran.status in (2, 3)
            error = ran.said[ran.said.index("prepare: ") :]
            assert Path(paths[0]).name in error, error
            assert "--" in error.splitlines()[1] or "unpack" in error, error
        else:
            memory = json.loads((out / "prepare.json").read_text())["state"]["memory"]
            assert memory["peak_bytes"] < budget_mb * MB
            assert not [step for step in memory["steps"] if step["step"] != "run"], memory
        print(f"{budget_mb} MB: status {ran.status}, peak {ran.peak_bytes / MB:.0f} MB")


@pytest.mark.parametrize("amplifier", ["list", "emoji"])
def test_what_is_named_is_skipped_or_has_room(tmp_path: Path, amplifier: str) -> None:
    """A line that grows too large is skipped and counted with --skip-bad, and read with more memory."""
    paths, n_heavy = AMPLIFIERS[amplifier](tmp_path), {"list": 1, "emoji": 3}[amplifier]
    ran = run_watched(tmp_path, *paths, "--memory", "300MB")
    assert ran.status == 3 and "give it more with --memory, or skip such lines with --skip-bad" in ran.said, ran.said
    assert "c.jsonl, line 51 (byte 1,200): a line of " in ran.said
    for options, n_documents, n_skipped in (
        (["--memory", "300MB", "--skip-bad", "--out", "skipped"], 100, n_heavy),
        (["--memory", "3GB"], 100 + n_heavy, 0),
    ):
        ran = run_watched(tmp_path, *paths, *options)
        assert ran.status == 0, ran.said
        folder = tmp_path / ("skipped" if n_skipped else "out")
        state = json.loads((folder / "prepare.json").read_text())["state"]
        assert state["train_documents"] + state["val_documents"] == n_documents
        assert state["n_changes"].get("skipped", 0) == n_skipped


ENCODINGS = {
    "dictionary": {"dictionary_pagesize_limit": 1 << 24},
    "prefixes": {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}},
    "pages of version 2": {"data_page_version": "2.0", "dictionary_pagesize_limit": 1 << 24},
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_what_is_cut_again_gives_the_same(tmp_path: Path, encoding: str) -> None:
    """A block with more text than announced gives the bytes of plain lines, in one run or in several."""
    rows = sorted(skewed(400, LONG[:200_000]))
    path = write_rows(tmp_path / "c.parquet", rows, row_group_size=150, **ENCODINGS[encoding])
    [input] = find_inputs([str(path)])
    source = Parquet(0, input, ReadOptions())
    blocks = list(source.iter_blocks())
    with pytest.raises(GrownError):
        for block in blocks:
            block.read()
    plain = write_jsonl(tmp_path / "c.jsonl", rows)
    options: dict[str, Any] = {"val_tokens": 3000, "quiet": True, "workers": 2}
    prepare(plain, tmp_path / "plain", **options)
    prepare(path, tmp_path / "out", **options)
    assert outputs(tmp_path / "out") == outputs(tmp_path / "plain")
    for n_tokens in (150_000, 400_000, None):
        prepare(path, tmp_path / "parts", max_tokens=n_tokens, **options)
    assert outputs(tmp_path / "parts") == outputs(tmp_path / "plain")
    ids = np.concatenate(list(iter_ids(path)))
    assert np.array_equal(ids, np.concatenate(list(iter_ids(plain))))


def test_characters_of_what_is_cut_again(tmp_path: Path) -> None:
    """The first pass over a block with more text than announced sees all of it, and a bad row of it is located."""
    rows = sorted(skewed(400, LONG[:200_000]))
    path = write_rows(tmp_path / "c.parquet", [*rows, "\u00e9"], **ENCODINGS["dictionary"])
    prepare(path, tmp_path / "out", tokenizer="chars", quiet=True)
    assert "\u00e9" in pickle.loads((tmp_path / "out" / "meta.pkl").read_bytes())["stoi"]
    write_rows(tmp_path / "c.parquet", [*rows, None], **ENCODINGS["dictionary"])
    with pytest.raises(InputError, match=r"c\.parquet, row 401: the column 'text' is null"):
        prepare(path, tmp_path / "new", quiet=True)


def test_pages_of_more_than_was_planned() -> None:
    """They are not read at once, whatever the footer says of their size."""
    with pytest.raises(GrownError):
        _read_groups(mock.Mock(), mock.Mock(), [Pages(100, 100, {0})], 50)
