"""`inspect` and `decode` say of a file what a plain look at its ids says."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from fineweb_stream import open_tokens, prepare
from fineweb_stream.output.index import index_path
from fineweb_stream.output.manifest import read_record
from fineweb_stream.support.errors import InputError
from fineweb_stream.token_files import commands, joined
from fineweb_stream.token_files.commands import main
from fineweb_stream.token_files.plot import plot_report, read_timeline
from fineweb_stream.token_files.summary import Summary, decode, summarize
from fineweb_stream.tokenizer.gpt2 import EOT_ID

from .conftest import ROOT
from .helpers import shard_path, write_jsonl
from .strategies import documents
from .test_resume import DOCS, prepare_some


def write_tokens(path: Path, ids: Sequence[int]) -> Path:
    np.array(ids, "<u2").tofile(path)
    return path


def write_lengths(path: Path, lengths: Sequence[int]) -> Path:
    """Documents of these lengths, of the word `the`."""
    return write_tokens(path, [i for length in lengths for i in [1169] * length + [EOT_ID]])


def cut_and_summarize(ids: Sequence[int], seed: int, n_shards: int, piece_tokens: int) -> Summary:
    """Summarize shards of the ids, read in pieces of this size."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(joined, "PIECE_TOKENS", piece_tokens)
        for number, part in enumerate(np.array_split(ids, min(n_shards, len(ids)))):
            write_tokens(shard_path(Path(folder), number), part)
        return replace(summarize(folder, seed=seed), name="")


def run_module(*arguments: object, cwd: Path = ROOT, code: str = "") -> subprocess.CompletedProcess[str]:
    """Run `python -m fineweb_stream`, or code, as a user does."""
    command = [sys.executable, *(["-c", code] if code else ["-m", "fineweb_stream"]), *map(str, arguments)]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=120, cwd=cwd, env=env)


@given(texts=documents, seed=st.integers(0, 99), n_shards=st.integers(1, 4), piece_tokens=st.integers(1, 50))
def test_summary_equals_a_plain_look(
    reference: tiktoken.Encoding, texts: list[str], seed: int, n_shards: int, piece_tokens: int
) -> None:
    """Numbers, most frequent ids and texts are what Python finds in the whole list, however it is cut."""
    parts = reference.encode_ordinary_batch(texts)
    ids = [i for part in parts for i in [*part, EOT_ID]]
    summary = cut_and_summarize(ids, seed, n_shards, piece_tokens)
    assert summary == cut_and_summarize(ids, seed, 1, 1 << 20)
    assert (summary.n_tokens, summary.n_documents, summary.n_tokens_after) == (len(ids), len(texts), 0)
    assert [(top.id, top.n) for top in summary.top] == sorted(Counter(ids).items(), key=lambda x: (-x[1], x[0]))[:10]
    assert summary.first.text[:299] == texts[0][:299] and summary.random
    assert summary.random.place == sum(len(part) + 1 for part in parts[: summary.random.number])
    assert summary.random.text[:299] == texts[summary.random.number][:299]


@given(lengths=st.lists(st.integers(0, 9) | st.integers(1000, 1050) | st.integers(0, 70_000), min_size=1, max_size=12))
@settings(max_examples=50)
def test_lengths_equal_numpy(lengths: list[int]) -> None:
    """Median, p90, longest and the long share are NumPy's, and so are all the lengths."""
    with tempfile.TemporaryDirectory() as folder:
        found = summarize(write_lengths(Path(folder) / "a.bin", lengths)).lengths
    assert found and found.counts.sum() == len(lengths)
    assert (found.longest, found.share_long) == (max(lengths), np.mean(np.array(lengths) > 1024))
    for value, percent in ((found.median, 50), (found.p90, 90)):
        expected = np.percentile(lengths, percent, method="inverted_cdf")
        assert value == expected
    assert np.repeat(found.values, found.counts).tolist() == sorted(lengths)


def test_every_document_is_as_likely(tmp_path: Path) -> None:
    """Each of three documents is chosen about as often, whatever their lengths; a seed always chooses the same."""
    path = write_lengths(tmp_path / "a.bin", [0, 500, 20])
    chosen = [summary.random.number for seed in range(300) if (summary := summarize(path, seed=seed)).random]
    assert all(70 < chosen.count(number) < 130 for number in range(3))
    assert summarize(path, seed=7) == summarize(path, seed=7)


def test_plain_text_has_no_documents(tmp_path: Path) -> None:
    """Without an end-of-text, the summary says that there are no documents, and no more of them."""
    summary = summarize(write_tokens(tmp_path / "a.bin", [15496, 995] * 400))
    assert (summary.n_documents, summary.lengths, summary.random, summary.n_tokens_after) == (0, None, None, 800)
    assert "\nno documents: plain text, without end-of-text (id 50256)\n" in "\n".join(summary.render())
    assert not any("per document" in line or "first document" in line for line in summary.render())


def test_tokens_after_the_last_document(tmp_path: Path) -> None:
    """Tokens after the last end-of-text are no document, and are counted."""
    summary = summarize(write_tokens(tmp_path / "a.bin", [1, EOT_ID, 2, 3]))
    assert (summary.n_documents, summary.n_tokens_after) == (1, 2)
    assert "1 document, and 2 tokens after the last end-of-text" in summary.render()


@pytest.mark.parametrize(("letter", "n"), [("a", 300), ("a", 301), ("𝄞", 300), ("𝄞", 301), ("the ", 9999)])
def test_excerpts_are_cut(tmp_path: Path, reference: tiktoken.Encoding, letter: str, n: int) -> None:
    """An excerpt is the whole document up to 300 characters, of 1 or of 4 bytes; else 299 of them and `…`."""
    first = summarize(write_tokens(tmp_path / "a.bin", reference.encode_ordinary(letter * n))).first
    assert first.text == (letter * n if n == 300 else (letter * n)[:299] + "…")


def test_text_cannot_steer_the_terminal(tmp_path: Path, reference: tiktoken.Encoding) -> None:
    """Escape sequences in a document are shown, not sent; line ends and emoji stay what they are."""
    ids = [*reference.encode_ordinary("a\x1b[31mred\x9b\r\nnext 👩‍👩‍👧 漢字"), EOT_ID]
    lines = summarize(write_tokens(tmp_path / "a.bin", ids)).render()
    assert lines[lines.index("first document:") + 1 :][:2] == ["  | a\\x1b[31mred\\x9b\\r", "  | next 👩‍👩‍👧 漢字"]


@given(texts=documents, start=st.integers(-200, 200), count=st.integers(1, 99))
def test_decode_equals_tiktoken(reference: tiktoken.Encoding, texts: list[str], start: int, count: int) -> None:
    """Any stretch of a file is decoded as tiktoken does, end-of-text and cut characters included."""
    ids = [i for text in texts for i in [*reference.encode_ordinary(text), EOT_ID]]
    with tempfile.TemporaryDirectory() as folder:
        path = write_tokens(Path(folder) / "a.bin", ids)
        if -len(ids) <= start < len(ids):
            assert decode(path, start, count) == reference.decode((ids + ids)[start % len(ids) : len(ids)][:count])
        else:
            with pytest.raises(InputError, match=f"there are {len(ids):,} tokens"):
                decode(path, start, count)


def test_a_foreign_id_is_located(tmp_path: Path) -> None:
    """An id that GPT-2 does not have is an error that names the file and the place in it, never a wrong text."""
    write_tokens(shard_path(tmp_path, 0), [1] * 1000)
    write_tokens(shard_path(tmp_path, 1), [2] * 1500 + [50257, 65535])
    for look in (lambda: summarize(tmp_path), lambda: decode(tmp_path, 900, 9999)):
        with pytest.raises(InputError) as caught:
            look()
        assert re.search(
            r"shard_0001.bin, token 1,500 \(byte 3,000\): id 50257.*end at 50256", said := str(caught.value)
        )
        assert ", or another tokenizer or dtype made it: put the prepare.json of their run beside" in said
        del caught  # its frames hold maps of the files
    assert decode(tmp_path, 2498, 2) == "##"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak of memory from /proc (Linux)")
def test_memory_is_bounded(tmp_path: Path) -> None:
    """A file of 400 MB is read in pieces: the process stays under 200 MB."""
    piece = np.random.default_rng(0).integers(0, EOT_ID, 10_000_000, dtype="<u2")
    piece[::500] = EOT_ID
    with (tmp_path / "train.bin").open("wb") as file:
        for _ in range(20):
            piece.tofile(file)
    code = (
        "import sys; from fineweb_stream.token_files.commands import main; main(sys.argv[1:]);"
        " print(open('/proc/self/status').read())"
    )
    done = run_module("inspect", tmp_path, code=code)
    (tmp_path / "train.bin").unlink()  # pytest keeps the folders of the last runs
    assert "200,000,000 tokens\n400,000 documents" in done.stdout, done.stderr
    peak_kb = next(int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("VmHWM"))
    assert peak_kb < 200_000


def test_commands_print(tmp_path: Path) -> None:
    """`inspect` prints the summary, `decode` the text; neither imports what only a run or a picture needs."""
    path = write_tokens(tmp_path / "train.bin", [15496, 995, EOT_ID, 31373, EOT_ID])
    shown = run_module("inspect", tmp_path, "--seed", 5)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.splitlines() == summarize(tmp_path, seed=5).render()
    assert run_module("decode", path, "--start", -2, "--count", 1).stdout == "hello\n"
    code = "import sys; from fineweb_stream.token_files.commands import main; main(sys.argv[1:]); print(*sys.modules)"
    for command in ("inspect", "decode"):
        assert not {"matplotlib", "tiktoken", "pyarrow"} & set(run_module(command, path, code=code).stdout.split())


@pytest.mark.parametrize("command", ["inspect", "decode"])
def test_help_has_examples(command: str) -> None:
    """--help of each command lists commands to paste."""
    done = run_module(command, "--help")
    assert done.returncode == 0 and f"examples:\n  prepare.py {command} " in done.stdout


@pytest.mark.parametrize(
    "command", [["inspect", "none.bin"], ["decode", "none.bin"], ["inspect", "a.bin", "--plot", "a.x"]]
)
def test_errors_are_sentences(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bad input gives exit status 2 and advice, before anything is read or printed."""
    monkeypatch.chdir(write_lengths(tmp_path / "a.bin", [5]).parent)
    assert main(command) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith(f"{command[0]}: ") and "\n  " in said.err


def test_one_file_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    """Several files, as of a shell's pattern: the usage is the command's own, with the one that it takes."""
    assert main(["inspect", "a.bin", "b.bin"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("usage: prepare.py inspect ") and "FILE_OR_FOLDER\n" in said and "b.bin" in said


def test_whose_ids_are_assumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a prepare.json, `inspect` says that it assumes GPT-2; its advice leads to the right tokenizer."""
    text, out, alone = tmp_path / "c.txt", tmp_path / "out", tmp_path / "alone" / "train.bin"
    text.write_text("Some text of a few words. " * 90)
    prepare(text, out, tokenizer="bytes", val_ratio=0.1, quiet=True)
    assert main(["inspect", str(out)]) == 0 and "assumed: " not in capsys.readouterr().out
    for name, advice in (
        (out / "prepare.json", "name the folder that it is in"),
        (text, f"encode it: python -m fineweb_stream {text} --out "),
    ):
        assert main(["inspect", str(name)]) == 2
        assert f"{name}: text, not a token file\n  {advice}" in capsys.readouterr().err
    alone.parent.mkdir()
    shutil.copy(out / "train.bin", alone)
    assert main(["inspect", str(alone)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert " of " not in said[0] and said[-1].startswith("assumed: ids of GPT-2, as no prepare.json names")
    assert said[-1].endswith(
        "put the prepare.json of their run beside the file, and give it the name that it had there"
    )
    shutil.copy(out / "prepare.json", alone.parent)
    assert main(["inspect", str(alone)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].endswith(" of bytes, uint16") and not any("assumed: " in line for line in said)


@pytest.mark.parametrize(
    "record",
    [
        *({"settings": {name: []}} for name in ("tokenizer", "n_ids", "eot_id", "eot")),
        *({"settings": {"n_ids": n}} for n in (0, -1, 1 << 32)),
        {"settings": {}, "tokenizer": "bytes"},
    ],
    ids=str,
)
def test_an_odd_record_is_named(record: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A prepare.json with settings that no run writes gives neither a traceback nor wrong text."""
    write_tokens(tmp_path / "train.bin", [1, 2, EOT_ID])
    (tmp_path / "prepare.json").write_text(json.dumps(record))
    assert main(["inspect", str(tmp_path)]) == 2
    assert "prepare.json: does not say what tokenizer made train.bin\n  is it damaged?" in capsys.readouterr().err


@pytest.mark.parametrize("n", [1, 5, 500])
@pytest.mark.parametrize("suffix", [".bin", ".npy"])
def test_an_index_is_no_token_file(n: int, suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Given an index, however short, `inspect` names the file that it belongs to."""
    path = tmp_path / f"train{suffix}"
    np.save(path, np.array([1, EOT_ID] * n, "<u2")) if suffix == ".npy" else write_tokens(path, [1, EOT_ID] * n)
    assert main(["index", str(path)]) == 0
    assert main(["inspect", str(index_path(path))]) == 2
    expected = f"document ends, not a token file\n  name its file, {path.name}\n"
    assert capsys.readouterr().err.endswith(expected)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_folder_of_an_interrupted_run(shuffle: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before there is output, `inspect` says how much is saved, and of what; the run's command completes it."""
    path, out = write_jsonl(tmp_path / "c.jsonl", DOCS), tmp_path / "out"
    options: dict[str, Any] = {"shuffle": shuffle, "shard_tokens": 10**9}
    assert not prepare_some(path, out, 5, **options)
    n_tokens = read_record(out).state.n_tokens
    assert main(["inspect", str(out)]) == 2
    with pytest.raises(InputError) as caught:
        open_tokens(out, "val")
    for said in (capsys.readouterr().err, str(caught.value)):
        state = "the run in this folder is still working, or was stopped"
        assert f"{out}: not finished: {state}: {n_tokens:,} tokens of {path}" in said
        assert "run its command again: it continues" in said
    assert prepare_some(path, out, -1, **options)
    assert main(["inspect", str(out)]) == 0


@pytest.mark.parametrize("count", ["1", "1000000"])
def test_a_closed_pipe_is_no_error(tmp_path: Path, count: str) -> None:
    """`decode ... | head -1` ends silently, whether there is much or little more to print."""
    write_tokens(tmp_path / "a.bin", [198] * 1_000_000)
    command = [sys.executable, "-m", "fineweb_stream", "decode", str(tmp_path / "a.bin"), "--count", count]
    env = os.environ | {"PYTHONUNBUFFERED": ""}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, env=env) as process:
        assert process.stdout and process.stderr
        process.stdout.close()
        assert (process.wait(60), process.stderr.read()) == (0, b"")


def test_the_main_command_line_is_there(tmp_path: Path) -> None:
    """Any other first word begins `prepare.py`'s command line: an input named `inspect` is typed `./inspect`."""
    (tmp_path / "inspect").write_text("Hello world, hello world.\n" * 4000)
    done = run_module("./inspect", "--val-ratio", 0.5, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert summarize(tmp_path).n_documents == 0


RUN = {"state": {"timeline": [[0, 0, 10**8], [60, 10**6, 10**9], [120, 10**6, 10**9], [180, 5 * 10**6, 2 * 10**9]]}}


def picture_size(path: Path) -> tuple[int, int]:
    """Width and height of a whole PNG."""
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n") and data.endswith(b"IEND\xaeB`\x82")
    return struct.unpack(">II", data[16:24])


@pytest.mark.filterwarnings("error::UserWarning", "error::RuntimeWarning")
@pytest.mark.parametrize("record", [None, RUN])
@pytest.mark.parametrize("lengths", [[5], [0, 0, 7], [1024], [1, 1, 1], [900, 1025, 90_000], [70_000]], ids=str)
def test_picture_of_any_lengths(tmp_path: Path, lengths: list[int], record: dict[str, object] | None) -> None:
    """Whatever the lengths, the picture is a PNG 1,800 pixels wide, higher with a run, and nothing warns."""
    pytest.importorskip("matplotlib", reason="needs matplotlib (the extra `plot`)")
    plot_report(summarize(write_lengths(tmp_path / "a.bin", lengths)), record, tmp_path / "a.png")
    assert picture_size(tmp_path / "a.png") == (1800, 1240 if record else 810)


def test_plot_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`inspect --plot` draws the run of the prepare.json beside the data; plain text without one has no picture."""
    pytest.importorskip("matplotlib", reason="needs matplotlib (the extra `plot`)")
    path = write_tokens(tmp_path / "train.bin", [262] * 99)
    assert main(["inspect", str(path), "--plot", str(tmp_path / "a.png")])
    assert "nothing to draw" in capsys.readouterr().err
    (tmp_path / "prepare.json").write_text(json.dumps(RUN))
    assert main(["inspect", str(path), "--plot", str(tmp_path / "a.png")]) == 0
    assert main(["inspect", str(path), "--plot", str(tmp_path / "b/a.png")])
    assert f"make the folder first: {tmp_path / 'b'}\n" in capsys.readouterr().err
    assert picture_size(tmp_path / "a.png") == (1800, 570)


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [(OSError(5, "broken", "a.bin"), 4, "decode: a.bin: broken"), (KeyboardInterrupt(), 130, "")],
)
def test_how_a_command_ends(
    error: BaseException, status: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error of the system is said with its file, Ctrl+C not at all; both have their exit status."""
    monkeypatch.setattr(commands, "_decode", mock.Mock(side_effect=error))
    assert main(["decode", "a.bin"]) == status
    assert capsys.readouterr().err.strip() == said


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without matplotlib, the error has the command that installs it."""
    monkeypatch.setitem(sys.modules, "matplotlib.backend_bases", None)
    summary = summarize(write_lengths(tmp_path / "a.bin", [5]))
    with pytest.raises(InputError, match="pip install -U matplotlib"):
        plot_report(summary, None, tmp_path / "a.png")


@pytest.mark.parametrize("timeline", [None, [], [[1, 2, 3]] * 9, [[1, 2]] * 6, "abc", [[0, 0, 0], "x"], {"a": 1}, 5])
def test_a_short_or_odd_timeline_is_left_out(timeline: object) -> None:
    """Too few samples, or anything but samples of three numbers, count as no timeline."""
    assert read_timeline({"state": {"timeline": timeline}}) is None
    assert read_timeline({"state": timeline}) is read_timeline({}) is read_timeline(None) is None


def test_any_seed(tmp_path: Path) -> None:
    """A seed may be negative, as --seed of a run."""
    write_jsonl(tmp_path / "c.jsonl", ["some words"] * 99)
    prepare(tmp_path / "c.jsonl", tmp_path / "out", quiet=True)
    assert summarize(tmp_path / "out", seed=-1).random


@pytest.mark.parametrize("piece_tokens", [1, 2, 7, 10**6])
@pytest.mark.parametrize("eot", ["after", "before", "both"])
def test_documents_are_counted_wherever_their_end_stands(
    eot: str, piece_tokens: int, reference: tiktoken.Encoding, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """End-of-text before documents, after them, on both sides: the same documents and lengths; plain texts, too."""
    docs = [f"Document {i} has{' many' * (i % 5)} words." for i in range(40)]
    prepare(write_jsonl(tmp_path / "c.jsonl", docs), tmp_path / "out", eot=eot, val_tokens=1, quiet=True)
    monkeypatch.setattr(joined, "PIECE_TOKENS", piece_tokens)
    found = summarize(tmp_path / "out" / "train.bin")
    lengths = [len(reference.encode_ordinary(text)) for text in docs[1:]]
    assert (found.n_documents, found.n_tokens_after, found.first.text) == (39, 0, docs[1])
    assert found.lengths and np.repeat(found.lengths.values, found.lengths.counts).tolist() == sorted(lengths)
    (tmp_path / "a.txt").write_text("one text " * 99)
    (tmp_path / "b.txt").write_text("another text " * 99)
    prepare([tmp_path / "a.txt", tmp_path / "b.txt"], tmp_path / "texts", eot=eot, quiet=True)
    assert summarize(tmp_path / "texts" / "train.bin").n_documents == 1
