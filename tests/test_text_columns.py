"""Texts whose column has another name in some files: what the errors advise works, and loses nothing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_stream import iter_ids, prepare
from fineweb_stream.inputs import sources
from fineweb_stream.inputs.jsonl import read_lines
from fineweb_stream.output.manifest import read_record
from fineweb_stream.pipeline import samples
from fineweb_stream.support.errors import InputError
from fineweb_stream.support.model import ReadOptions

from .helpers import in_blocks, outputs, texts_of

OPTIONS: dict[str, Any] = {"shard_tokens": 1500, "engine": "tiktoken", "val_ratio": 0.05, "quiet": True}
N_FILES, ODD = 9, 6


@pytest.fixture(params=["parquet", "jsonl"])
def folder(request, tmp_path: Path) -> Path:
    """Files whose texts are in `text`, but for one, where they are in `content`."""
    (tmp_path / "in").mkdir()
    for k in range(N_FILES):
        name = "content" if k == ODD else "text"
        write_table(tmp_path / "in" / f"{k}.{request.param}", {name: [f"Doc {k}.{i} river stone" for i in range(40)]})
    return tmp_path / "in"


def write_table(path: Path, columns: dict[str, list[Any]]) -> None:
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
    else:
        rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("is_found_late", [False, True])
@pytest.mark.parametrize("advice", ["content", "text,content", "content,text"])
def test_a_file_with_another_column(
    folder: Path, advice: str, is_found_late: bool, tmp_path: Path, monkeypatch, caplog
) -> None:
    """The hint, or the other name alone, gives what both names give; a done run takes the old name.

    The file is named before the run, and all before it is saved.
    """
    if is_found_late:
        monkeypatch.setattr(sources, "FOOTER_SECONDS", -1)
        monkeypatch.setattr(samples, "N_SAMPLES", 1)
    out = tmp_path / "out"
    with pytest.raises(InputError, match=r"content.*\n.*--text-column (text,)?content ") as caught:
        prepare(folder, out, **OPTIONS)
    assert caught.value.saved
    is_named = "the run will stop there; --text-column text,content takes the first" in caplog.text
    assert is_named == (any(folder.glob("*.parquet")) and not is_found_late)
    prepare(folder, out, text_column=advice, **OPTIONS)
    prepare(folder, tmp_path / "expected", text_column="text,content", **OPTIONS)
    assert outputs(out) == outputs(tmp_path / "expected")
    record = read_record(out)
    assert record and record.settings["text_column"] == ("text,content" if advice[0] == "t" else "content,text")
    assert record.settings["text_column_before"].startswith(f"text up to input {ODD}, record 40")
    for name in {"text", advice}:
        assert prepare(folder, out, text_column=name, **OPTIONS).val_tokens == record.state.val_tokens


def test_skip_bad_passes_over_a_file_without_the_column(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """All its rows count as skipped, said and listed once; the others are as without it. A wrong type, too."""
    for k, columns in enumerate([{"text": ["one two"] * 40}, {"body": ["x"] * 30}, {"text": [1.5] * 20}]):
        write_table(tmp_path / f"{k}.parquet", columns)
    with pytest.raises(InputError, match=r"1.parquet: no column 'text'.*\n.*skip such files with --skip-bad"):
        prepare(tmp_path, tmp_path / "out", **OPTIONS)
    prepare([tmp_path / f"{k}.parquet" for k in range(3)], tmp_path / "out", skip_bad=True, **OPTIONS)
    prepare(tmp_path / "0.parquet", tmp_path / "expected", **OPTIONS)
    assert outputs(tmp_path / "out") == outputs(tmp_path / "expected")
    record = read_record(tmp_path / "out")
    assert record and record.state.n_changes == {"skipped": 50}
    lines = [json.loads(line) for line in (tmp_path / "out" / "prepare.changes.jsonl").read_text().splitlines()]
    assert [(Path(line["place"]).name, line["records"]) for line in lines] == [
        ("1.parquet, row 1", 30), ("2.parquet, row 1", 20),
    ]  # fmt: skip
    assert "no column 'text'; the columns are: body" in lines[0]["detail"] and "double" in lines[1]["detail"]
    assert all(f"skipped: {line['place']}: {line['detail']}" in caplog.messages for line in lines)


@pytest.mark.parametrize(("line", "name"), [(25, "text,body"), (3900, "text,body"), (3900, "body")])
def test_a_line_with_another_field(line: int, name: str, tmp_path: Path, monkeypatch) -> None:
    """The hint may be followed in the middle of a file: what was read stays, and each line's own text is read."""
    monkeypatch.setattr(samples, "sample", lambda *args: None)  # which reads all of so short a file before the run
    rows = [{"text" if i != line else "body": f"Line {i} river stone lantern"} for i in range(4000)]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with in_blocks(10_000):
        with pytest.raises(InputError, match="--text-column text,body") as caught:
            prepare(tmp_path / "c.jsonl", tmp_path / "out", **OPTIONS)
        assert bool(caught.value.saved) == (line > 1000)
        prepare(tmp_path / "c.jsonl", tmp_path / "out", text_column=name, **OPTIONS)
        prepare(tmp_path / "c.jsonl", tmp_path / "expected", text_column="text,body", **OPTIONS)
    assert outputs(tmp_path / "out") == outputs(tmp_path / "expected")


def test_a_name_that_no_file_has(tmp_path: Path) -> None:
    """It is refused before anything is deleted or written."""
    write_table(tmp_path / "c.parquet", {"text": ["one two three"] * 40})
    prepare(tmp_path / "c.parquet", tmp_path / "out", **OPTIONS)
    before = outputs(tmp_path / "out")
    for options in ({"overwrite": True}, {}):
        with pytest.raises(InputError):
            prepare(tmp_path / "c.parquet", tmp_path / "out", text_column="txt", **options, **OPTIONS)
        assert outputs(tmp_path / "out") == before
    with pytest.raises(InputError, match=r"no column 'txt'.*\n.*--text-column text "):
        prepare(tmp_path / "c.parquet", tmp_path / "new", text_column="txt", **OPTIONS)
    assert not (tmp_path / "new").exists()


ROWS = [{"a": "A", "b": "B"}, {"b": "B"}, {"a": None, "b": "B"}, {"a": "A", "b": None}, {"b": "B", "x": {"a": "C"}}]


@pytest.mark.parametrize("names", ["a,b", "b,a", "x.a,a,b", "a,x.a,b", "zz,a,b"])
def test_the_first_that_a_line_has(names: str, monkeypatch) -> None:
    """By every parser each line gives the first of the named fields that is a text."""
    monkeypatch.setitem(sys.modules, "gigatoken", sys.modules.get("gigatoken"))  # Arrow is used only with it
    expected = []
    for row in ROWS:
        fields: dict[str, Any] = row | {f"x.{k}": v for k, v in row.get("x", {}).items()}  # type: ignore[attr-defined]
        expected.append(next(fields[name] for name in names.split(",") if isinstance(fields.get(name), str)))
    data = "".join(json.dumps(row) + "\n" for row in ROWS).encode() * 4000
    assert texts_of(read_lines(data, 0, ReadOptions(names))) == expected * 4000
    monkeypatch.setattr("fineweb_stream.inputs.jsonl.read_plain_lines", lambda *args: None)
    assert texts_of(read_lines(data, 0, ReadOptions(names))) == expected * 4000


def test_the_first_that_a_file_has(tmp_path: Path) -> None:
    """A column of a name with a comma comes first, then the parts; in parquet one column is a file's texts."""
    write_table(tmp_path / "1.parquet", {"b": ["B"], "a": ["A"]})
    write_table(tmp_path / "2.parquet", {"b": ["B"], "a": [1]})
    write_table(tmp_path / "3.parquet", {"a": ["A"], "a,b": ["C"]})
    inputs = [tmp_path / f"{k}.parquet" for k in (1, 2, 3)]
    found = [ids.tolist()[0] for ids in iter_ids(inputs, text_column="a,b", engine="tiktoken")]
    assert [chr(id - 32 + ord("A")) for id in found] == ["A", "B", "C"]
    with pytest.raises(InputError, match="empty name"):
        prepare(inputs, tmp_path / "out", text_column="a,,b")


@pytest.mark.parametrize("is_chat", [True, False])
def test_texts_in_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_chat: bool) -> None:
    """Of a parquet file with nothing but lists, two commands that are advised make lines with all texts."""
    monkeypatch.chdir(tmp_path)
    texts = [f"Doc {i}, river stone" for i in range(40)]
    lists = [[{"role": "user", "text": a}, {"role": "system", "text": b}] if is_chat else [a, b]
             for a, b in zip(texts[::2], texts[1::2], strict=True)]  # fmt: skip
    pq.write_table(pa.table({"n": range(20), "turns": lists}), "chats.parquet")
    name = "chats.parquet"
    for new in ("rows.jsonl", "texts.jsonl"):
        with pytest.raises(InputError) as caught:
            list(iter_ids(name))
        command = re.search(r": (jq .*|\S*python\S* -X utf8 -c .*) OLD > NEW", caught.value.hint)
        assert command, caught.value.hint
        subprocess.run(f"{command[1]} {name} > {new}", shell=True, check=True)
        name = new
    assert [json.loads(line)["text"] for line in Path(name).read_text().splitlines()] == texts
