"""Documents that are read as one buffer equal those that are read one by one."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fineweb_stream.inputs import arrow_lines, jsonl
from fineweb_stream.inputs.decoding import is_utf8
from fineweb_stream.inputs.jsonl import read_lines
from fineweb_stream.support.errors import RecordError
from fineweb_stream.support.model import ReadOptions
from fineweb_stream.tokenizer import batch as batch_module
from fineweb_stream.tokenizer.batch import join_texts, with_separator

from .helpers import texts_of
from .strategies import texts

values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=5,
)
objects = st.fixed_dictionaries({"text": texts}, optional={"n": values, "x\n": values, "TEXT": values})
HARD_LINES = [
    '{"text":"a","text":"b"}',
    '{"text":"a","text":null}',
    '{"x":1,"x":2,"text":"a"}',
    r'{"text":"\ud83d\ude00 \u00e9 \u0000 \/\b\f"}',
    r'{"text":"\ud83d"}',
    r'{"text":"\ude00\ud83d"}',
    r'{"te\u0078t":"a"}',
    r'{"x":"\ud800","text":"a"}',
    '{"x":NaN,"y":-Infinity,"text":"a"}',
    '{"x":1e999,"text":"a"}',
    '{"x":18446744073709551616,"text":"a"}',
    '{"x":[-' + "9" * 5000 + '],"text":"a"}',  # of more digits than Python's int() takes
    '{"x":{"text":"q"},"text":"b"}',
    ' {"text":"a"} ',
    '{"text":"a"}\r',
    '{"text":""}',
    "",
    " ",
]
WRONG_LINES = [
    '{"text":"a"}{"text":"b"}',
    '{"text":"a"} }',
    '{"text":',
    '"c"}',
    '{"x":01,"text":"a"}',
    '{"x":1.,"text":"a"}',
    '{"text":"a",}',
    '{"text":"a"/*c*/}',
    '{"text":"a\tb"}',
    r'{"text":"\x"}',
    r'{"x":"\q","text":"a"}',
    "{'text':'a'}",
    '{x:1,"text":"a"}',
    '{"x":tru,"text":"a"}',
    '{"text":5}',
    '{"text":null}',
    '{"text":["a"]}',
    "{}",
    "[]",
    "3",
    "3" * 5000,
    '{"text":' + "3" * 5000 + "}",
    '{"text":"a"}\x00',
    '{"text":"a"}\x0b',
    '{"x":"\udcff","text":"a"}',
]


def by_the_standard_library(lines: list[bytes]) -> list[str] | None:
    """The text that `json.loads` finds in each line, None for a line that cannot be used."""
    found = []
    for line in lines:
        if line.strip():
            try:
                found.append(json.loads(line.decode(), parse_int=float)["text"])
            except (ValueError, KeyError, TypeError):
                return None
    if not all(isinstance(text, str) for text in found):
        return None
    return [text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for text in found]


def read(data: bytes) -> list[str] | None:
    try:
        return texts_of(read_lines(data, 1, ReadOptions()))
    except RecordError:
        return None


@pytest.fixture(params=["arrow", "line by line", "standard library"])
def parser(request, monkeypatch) -> None:
    """Yield each of the parsers."""
    if request.param == "arrow":
        pytest.importorskip("pyarrow")
        monkeypatch.setattr(arrow_lines, "MIN_BYTES", 0)
        monkeypatch.setattr(arrow_lines, "_is_worth_it", lambda: True)
    else:
        monkeypatch.setattr(arrow_lines, "_is_worth_it", lambda: False)
    if request.param == "standard library":
        monkeypatch.setattr(jsonl, "_parser", lambda: lambda line: json.loads(line.decode()))


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
@pytest.mark.parametrize("end", [True, False])
def test_hard_lines_are_what_json_says(parser, newline: bytes, end: bool) -> None:
    """Every parser reads each line, alone and among others, as `json.loads` does, or refuses it as that does."""
    for hard in [*HARD_LINES, *WRONG_LINES]:
        line = hard.encode("utf-8", "surrogateescape")
        for lines in ([line], [b'{"text": "before"}', line, b'{"n": 1, "text": "after"}'], [line, line]):
            assert read(newline.join(lines) + newline * end) == by_the_standard_library(lines), lines


@given(
    rows=st.lists(objects, max_size=6), is_ascii=st.booleans(), spoil=st.integers(0, 400), with_=st.binary(max_size=2)
)
def test_any_lines_are_what_json_says(rows: list, is_ascii: bool, spoil: int, with_: bytes) -> None:
    """Lines as any writer makes them, and the same with a few wrong bytes, are read as by `json.loads`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_lines, "MIN_BYTES", 0)
        patch.setattr(arrow_lines, "_is_worth_it", arrow_lines.has_arrow)
        data = b"".join(json.dumps(row, ensure_ascii=is_ascii).encode() + b"\n" for row in rows)
        for some in (data, data[:spoil] + with_ + data[spoil + 1 :]):
            assert read(some) == by_the_standard_library(some.split(b"\n"))


def test_arrow_reads_the_lines_that_most_files_have(monkeypatch) -> None:
    """Plain lines take the fast path, even with other fields, escapes or without a last newline."""
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(arrow_lines, "_is_worth_it", lambda: True)
    lines = b"\n".join(
        b'{"x": [1, {"y": null}], "text": "a \\u00e9 \\ud83d\\ude00 ' + b"z" * i + b'"}' for i in range(999)
    )
    batch = arrow_lines.read_plain_lines(lines, ["text"], 7)
    assert batch is not None
    assert (batch.n_records, batch.n_bytes, texts_of(batch)[2]) == (999, 7, "a é 😀 zz")


def test_where_lines_are_bad_is_the_same_for_all(parser) -> None:
    """The first bad line is named by record and byte, and so is what is skipped or replaced."""
    data = b'{"text":"one"}\n\n{"text":2}\n{"text":"caf\xe9"}\nno\n{"text":"six"}\n'
    with pytest.raises(RecordError) as caught:
        read_lines(data, 100, ReadOptions())
    assert (caught.value.record, caught.value.byte) == (2, 116)
    batch = read_lines(data, 100, ReadOptions(errors="replace", skip_bad=True))
    assert texts_of(batch) == ["one", "caf\ufffd", "six"]
    assert [(change.record, change.byte, change.kind) for change in batch.changes] == [
        (2, 116, "skipped"),
        (3, 139, "replaced"),
        (4, 143, "skipped"),
    ]


_PIECES = ["a", "7 bytes", "eight of", "é", "漢", "👍", "\udcc3", "\udca9", "\udced", "\udca0"]


@given(data=st.one_of(st.binary(max_size=12), st.lists(st.sampled_from(_PIECES), max_size=9)))
@example(["7 bytes", "\udcc3", "eight of", "\udca9"])
def test_utf8_is_told_from_the_rest(data: bytes | list[str]) -> None:
    """The check of UTF-8 agrees with `bytes.decode`."""
    data = data if isinstance(data, bytes) else "".join(data).encode("utf-8", "surrogateescape")
    try:
        data.decode()
    except UnicodeDecodeError:
        assert not is_utf8(data)
    else:
        assert is_utf8(data)


@given(documents=st.lists(texts, max_size=9), skipped=st.integers(0, 9))
def test_documents_are_joined_alike(documents: list[str], skipped: int) -> None:
    """With Arrow and without it, from a part of a buffer too: each document, with a separator after it."""
    data, ends = join_texts(documents)
    start = int(ends[skipped - 1]) if 0 < skipped <= len(ends) else 0
    part, part_ends = memoryview(data)[start:], ends[ends > start] - start
    expected = b"".join(
        d + b"|" for d in np.split(np.frombuffer(part, np.uint8), part_ends[:-1]) for d in [d.tobytes()]
    )
    if len(part_ends):
        assert with_separator(part, part_ends, b"|") == expected
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(batch_module, "sys", type("no", (), {"modules": {}}))
            assert with_separator(part, part_ends, b"|") == expected


@pytest.mark.parametrize("kind", ["string", "large_string", "dictionary", "string_view"])
def test_any_column_of_text_is_the_same_batch(kind: str) -> None:
    """Chunked arrays, slices, offsets of 32 and 64 bits, dictionaries, views and empty arrays give the same texts."""
    pa = pytest.importorskip("pyarrow")
    from fineweb_stream.inputs.column import read_column

    if kind == "string_view" and not hasattr(pa, kind):
        pytest.skip("this pyarrow has no views")
    to = pa.dictionary(pa.int32(), pa.string()) if kind == "dictionary" else getattr(pa, kind)()
    rows = ["one", "", "zwölf", "漢字", "one", "last"]
    whole = pa.array(rows).cast(to)
    for start in range(len(rows) + 1):
        for stop in range(start, len(rows) + 1):
            pieces = [whole.slice(start, stop - start), whole.slice(0, start)]
            for chunks in ([], pieces[:1], pieces):
                batch = read_column(pa.chunked_array(chunks, to), "text", ReadOptions())
                assert texts_of(batch) == [text for chunk in chunks for text in chunk.to_pylist()]
                assert batch.n_records == len(texts_of(batch))
