"""Footers as other writers make them: whatever optional field is left out, the texts and their size are the same."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fineweb_stream import iter_ids, prepare
from fineweb_stream.inputs.blocks import ReadOptions
from fineweb_stream.inputs.discover import find_inputs
from fineweb_stream.inputs.parquet import Parquet, _Fetched
from fineweb_stream.support.errors import InputError, PrepareError

from .helpers import texts_of, write_parquet

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
TEXTS = [f"{i} " + "a long text that comes again and again " * 200 for i in range(5)]


class Compact:
    """A reader of Thrift's compact protocol: structs become lists of [field, type, value], lists [type, values]."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def varint(self) -> int:
        number = shift = 0
        while True:
            byte = self.byte()
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    def value(self, kind: int) -> Any:
        if kind in (TRUE, FALSE):
            return None
        if kind == BYTE:
            return self.byte()
        if kind in (I16, I32, I64):
            return self.varint()
        if kind in (BINARY, DOUBLE):
            n = 8 if kind == DOUBLE else self.varint()
            self.at += n
            return self.data[self.at - n : self.at]
        if kind in (LIST, SET):
            head = self.byte()
            n = head >> 4 if head >> 4 < 15 else self.varint()
            element = head & 15
            return [element, [self.byte() if element in (TRUE, FALSE) else self.value(element) for _ in range(n)]]
        assert kind == STRUCT
        fields, number = [], 0
        while head := self.byte():
            number = number + (head >> 4) if head >> 4 else self.varint() >> 1
            fields.append([number, head & 15, self.value(head & 15)])
        return fields


def varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def compact(kind: int, value: Any) -> bytes:
    """Write what `Compact` has read."""
    if kind in (TRUE, FALSE):
        return b""
    if kind == BYTE:
        return bytes([value])
    if kind in (I16, I32, I64):
        return varint(value)
    if kind in (BINARY, DOUBLE):
        return (varint(len(value)) if kind == BINARY else b"") + value
    if kind in (LIST, SET):
        element, values = value
        head = (
            bytes([len(values) << 4 | element]) if len(values) < 15 else bytes([0xF0 | element]) + varint(len(values))
        )
        return head + b"".join(bytes([v]) if element in (TRUE, FALSE) else compact(element, v) for v in values)
    out, last = b"", 0
    for number, inner, content in value:
        out += bytes([number - last << 4 | inner]) if 0 < number - last < 16 else bytes([inner]) + varint(number << 1)
        out, last = out + compact(inner, content), number
    return out + b"\0"


def fields_of(kind: int, value: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[list[Any], int, tuple[int, ...]]]:
    """Yield each field of a tree: the struct that has it, its place in that, and the numbers that lead to it."""
    if kind == STRUCT:
        for i, (number, inner, content) in enumerate(value):
            yield value, i, (*path, number)
            yield from fields_of(inner, content, (*path, number))
    elif kind == LIST and value[0] == STRUCT:
        for one in value[1]:
            yield from fields_of(STRUCT, one, path)


WRITERS: dict[str, dict[str, Any]] = {
    "dictionary": {"compression": "zstd"},
    "plain": {"use_dictionary": False, "compression": "snappy"},
    "version 1": {"version": "1.0", "compression": "none"},
    "pages of version 2": {"data_page_version": "2.0", "compression": "zstd"},
    "no statistics": {"write_statistics": False, "compression": "gzip"},
    "page index": {"write_page_index": True, "write_page_checksum": True},
}


@pytest.mark.parametrize("writer", WRITERS)
def test_footers_without_an_optional_field(tmp_path: Path, writer: str) -> None:
    """Each field left out, one kind at a time: the same ids and about the same size, or a sentence."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    path = tmp_path / "c.parquet"
    texts = [TEXTS[i % 5] for i in range(120)]
    pq.write_table(pa.table({"text": texts, "n": range(120)}), path, row_group_size=30, **WRITERS[writer])
    data = path.read_bytes()
    size = int.from_bytes(data[-8:-4], "little")
    body, footer = data[: -8 - size], data[-8 - size : -8]
    tree = Compact(footer).value(STRUCT)
    assert compact(STRUCT, tree) == footer
    expected = np.concatenate(list(iter_ids(path)))
    n_same = 0
    places = {place for _, _, place in fields_of(STRUCT, tree)}
    for left_out in sorted(place for place in places if place[0] != 2):  # the schema is of one piece
        tree = Compact(footer).value(STRUCT)
        for struct, i, place in reversed(list(fields_of(STRUCT, tree))):
            if place == left_out:
                del struct[i]
        changed = compact(STRUCT, tree)
        path.write_bytes(body + changed + len(changed).to_bytes(4, "little") + b"PAR1")
        try:
            [input] = find_inputs([str(path)])
            n_bytes = Parquet(0, input, ReadOptions()).text_bytes()
            found = np.concatenate(list(iter_ids(path)))
        except InputError:  # it is one that has to be there
            continue
        n_same += 1
        assert np.array_equal(found, expected), left_out
        assert 0.8 < n_bytes / sum(map(len, texts)) < 1.25, left_out
    assert n_same > 3


@pytest.mark.parametrize("writer", WRITERS)
def test_footers_with_a_damaged_field(tmp_path: Path, writer: str) -> None:
    """Each number negative and each name no UTF-8, one kind at a time: the file is read, or an error names it."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path, n_named = tmp_path / "c.parquet", 0
    table = pa.table({"text": TEXTS * 4, "n": range(20)})
    pq.write_table(table, path, row_group_size=5, store_schema=False, **WRITERS[writer])
    data = path.read_bytes()
    size = int.from_bytes(data[-8:-4], "little")
    body, footer = data[: -8 - size], data[-8 - size : -8]
    places = {place for _, _, place in fields_of(STRUCT, Compact(footer).value(STRUCT))}
    for damaged in sorted(places - {(2, 3)}):  # at a column's repetition pyarrow ends the process: it throws in C++
        tree = Compact(footer).value(STRUCT)
        for struct, i, place in fields_of(STRUCT, tree):
            kind, value = struct[i][1:]
            if place == damaged and kind in (I16, I32, I64, BINARY):
                struct[i][2] = b"\xff" * len(value) if kind == BINARY else 9  # the zigzag varint of -5
        changed = compact(STRUCT, tree)
        path.write_bytes(body + changed + len(changed).to_bytes(4, "little") + b"PAR1")
        try:
            list(iter_ids(path, engine="tiktoken"))
        except PrepareError as error:
            n_named += 1
            assert "c.parquet" in error.message, damaged
    assert n_named > 5


def test_what_pyarrow_cannot_read_is_not_called_damaged(tmp_path: Path) -> None:
    """Categories in an encoding that pyarrow writes and does not read: written anew by another they are read."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table({"text": pa.array(["some words", "others"] * 300).dictionary_encode()})
    pq.write_table(table, tmp_path / "c.parquet", use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY"})
    with pytest.raises(InputError, match=r"cannot read them .*\n.*another encoding"):
        prepare(tmp_path / "c.parquet", tmp_path / "out", quiet=True)
    pq.write_table(table, tmp_path / "c.parquet")
    prepare(tmp_path / "c.parquet", tmp_path / "out", quiet=True)


def test_a_version_that_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One release of pyarrow ends the whole process at files of later ones: it is named before it is asked."""
    pa = pytest.importorskip("pyarrow")
    write_parquet(tmp_path / "c.parquet", ["some words"] * 9)
    monkeypatch.setattr(pa, "__version__", "19.0.0")
    with pytest.raises(InputError, match=r"c\.parquet: pyarrow 19\.0\.0 .*\n.*pip install -U pyarrow"):
        prepare(tmp_path / "c.parquet", tmp_path / "out", quiet=True)


@pytest.mark.parametrize("plaintext_footer", [True, False])
def test_encrypted_columns_are_refused(tmp_path: Path, plaintext_footer: bool) -> None:
    """Without its key Arrow ends the whole process at such a column; the file is named, and skipped where asked."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    encryption = pytest.importorskip("pyarrow.parquet.encryption")

    class Keys(encryption.KmsClient):  # type: ignore[misc, name-defined]
        def __init__(self, config: Any) -> None:
            super().__init__()

        def wrap_key(self, key: bytes, name: str) -> bytes:
            return base64.b64encode(key)

    def write(path: Path, texts: list[str], **options: Any) -> None:
        table = pa.table({"text": texts, "n": range(len(texts))})
        with pq.ParquetWriter(path, table.schema, **options) as writer:
            writer.write_table(table)

    columns = encryption.EncryptionConfiguration(
        footer_key="k", column_keys={"k": ["text"]}, plaintext_footer=plaintext_footer
    )
    factory = encryption.CryptoFactory(Keys)
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), columns)
    write(tmp_path / "a.parquet", TEXTS)
    write(tmp_path / "b.parquet", TEXTS, encryption_properties=properties)
    for names in ([tmp_path / "b.parquet"], [tmp_path / "a.parquet", tmp_path / "b.parquet"]):
        with pytest.raises(InputError, match=r"b\.parquet: .*encrypted.*\n.*without encryption"):
            prepare(names, tmp_path / "out", quiet=True)
    if plaintext_footer:
        assert sum(map(len, iter_ids(names, skip_bad=True))) == sum(map(len, iter_ids(names[0])))


def test_only_what_was_fetched_is_read() -> None:
    """A read beyond the ranges that were fetched of a file is an error, not other bytes."""
    file = _Fetched(100, [(10, 20), (40, 50)], [b"a" * 10, b"b" * 10])
    file.seek(42)
    assert file.read(5) == b"b" * 5
    for start in (0, 15, 30, 45):
        file.seek(start)
        with pytest.raises(OSError, match="belong to no column"):
            file.read(10)


@pytest.mark.parametrize("start", [0, 5, 16, 40, 99])
def test_the_rest_of_a_row_group(tmp_path: Path, start: int) -> None:
    """From any row on, the blocks have the rows that are left."""
    texts = [f"row {i}" for i in range(100)]
    [input] = find_inputs([str(write_parquet(tmp_path / "c.parquet", texts))])
    for block_bytes in (1, 300, 1 << 20):
        blocks = list(Parquet(0, input, ReadOptions(), block_bytes).iter_blocks(start))
        assert [text for block in blocks for text in texts_of(block.read())] == texts[start:]
        places = [place for block in blocks for place in (block.start, block.stop)]
        assert (places[0], places[-1]) == (start, 100) and places[1:-1:2] == places[2::2]
        assert all(block.start < block.stop for block in blocks)
