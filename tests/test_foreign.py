"""C10: no file is mistaken for something else, whatever its name; C9: the advice about it works."""

from __future__ import annotations

import base64
import bz2
import csv
import functools
import gzip
import io
import itertools
import json
import lzma
import pickle
import re
import sqlite3
import subprocess
import sys
import tarfile
import wave
import zipfile
from collections.abc import Callable
from email import policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import numpy as np
import pytest

from fineweb_stream import iter_ids, prepare
from fineweb_stream.inputs.discover import DEFAULT_CORPUS, default_names, find_inputs
from fineweb_stream.inputs.foreign import find_foreign
from fineweb_stream.inputs.formats import find_format
from fineweb_stream.inputs.kind import refuse
from fineweb_stream.inputs.paths import iter_files, without_metadata
from fineweb_stream.output import files
from fineweb_stream.pipeline import run
from fineweb_stream.support.errors import InputError

from .conftest import ROOT
from .helpers import document_ids, outputs, prepare_in_blocks, write_jsonl, write_parquet
from .hub_server import HubServer

DOCS = [f'Story {i}: a "quiet" river, a stone,\tand a lantern.\nIt was {"very " * i}dark.' for i in range(12)]
PLAIN = "".join(f"Story {i}: a quiet river, a stone, a lantern.\n" for i in range(60))


def tar(name: str = "c.txt") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        info = tarfile.TarInfo(name)
        info.size = len(PLAIN)
        archive.addfile(info, io.BytesIO(PLAIN.encode()))
    return buffer.getvalue()


def zipped(**files: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in files.items():
            archive.writestr(name.replace("__", "/") + ".txt" * ("__" not in name), text)
    return buffer.getvalue()


def office(kind: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("mimetype", f"application/vnd.oasis.opendocument.{kind}")
    return buffer.getvalue()


def mailbox() -> bytes:
    mails = []
    for i, text in enumerate(DOCS):
        mail = EmailMessage(policy=policy.SMTPUTF8 if i % 2 else policy.default)
        mail["Subject"] = f"Story {i}"
        mail.set_content(text, cte="base64" if i % 2 else "quoted-printable")
        mails.append(b"From a@b.c Thu Jan  1 00:00:00 1970\n" + mail.as_bytes().replace(b"\r\n", b"\n") + b"\n")
    return b"".join(mails)


def mail(html: str = "") -> bytes:
    message = EmailMessage()
    message["From"], message["Subject"] = "a@b.c", "Stories " + "that are long " * 9
    message.set_content(PLAIN, cte="quoted-printable")
    if html:
        message.add_alternative(html, subtype="html", cte="base64")
    return message.as_bytes()


def table(delimiter: str, has_header: bool = True, index: str = "id") -> bytes:
    buffer = io.StringIO()
    writer = csv.writer(buffer, delimiter=delimiter)
    writer.writerows([[index, "text"]] * has_header + [[i, text] for i, text in enumerate(DOCS)])
    return buffer.getvalue().encode()


def quoted_table() -> bytes:
    """A text with tabs and newlines in its first column, which is quoted."""
    buffer = io.StringIO()
    csv.writer(buffer, delimiter="\t").writerows([("text", "id"), *((text, i) for i, text in enumerate(DOCS))])
    return buffer.getvalue().encode()


def arrow(kind: str) -> bytes:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import feather, orc

    rows, buffer = pa.table({"text": DOCS}), io.BytesIO()
    if kind == "orc":
        orc.write_table(rows, buffer)
        return buffer.getvalue()
    if kind == "feather":
        feather.write_feather(rows, buffer)
        return buffer.getvalue()
    with {"file": pa.ipc.new_file, "stream": pa.ipc.new_stream}[kind](buffer, rows.schema) as writer:
        writer.write_table(rows)
    return buffer.getvalue()


def database() -> bytes:
    connection = sqlite3.connect(":memory:")
    connection.execute("create table c (text)")
    connection.executemany("insert into c values (?)", [(d,) for d in DOCS])
    return connection.serialize() if hasattr(connection, "serialize") else b"SQLite format 3\0" + bytes(84)


def web_archive(is_arc: bool) -> bytes:
    columns = "1 0 ARC\nURL IP-address Archive-date Content-type Archive-length\n\n"
    parts = [f"filedesc://c.arc 0.0.0.0 20080101000000 text/plain {len(columns)}\n{columns}\n" if is_arc else ""]
    for i, text in enumerate(DOCS):
        body = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n{text}"
        arc = f"http://a.b/{i} 1.2.3.4 20080101000000 text/html {len(body)}\n{body}\n"
        warc = f"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Length: {len(text)}\r\n\r\n{text}\r\n\r\n"
        parts.append(arc if is_arc else warc)
    return "".join(parts).encode()


def sound() -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(1)
        file.setframerate(8000)
        file.writeframes(bytes(range(1, 200)) * 9)
    return buffer.getvalue()


def array() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.arange(1, 999))
    return buffer.getvalue()


RECORDS = [{"text": d} for d in DOCS]


def posts() -> str:
    rows = "".join(f"  <row Id={quoteattr(str(i))} Body={quoteattr(d)} />\n" for i, d in enumerate(DOCS))
    return f'<?xml version="1.0" encoding="utf-8"?>\n<posts>\n{rows}</posts>\n'


def ar() -> bytes:
    header = f"{'c.txt/':<16}{0:<12}{0:<6}{0:<6}{644:<8}{len(PLAIN):<10}`\n"
    return f"!<arch>\n{header}{PLAIN}".encode()


def cues(cue: str) -> str:
    return "".join(cue.format(i=i, text=line) for i, line in enumerate(PLAIN.splitlines()))


def lines_of(write: Callable[[Any], str], records: list[Any]) -> bytes:
    return "".join(f"{write(record)}\n" for record in records).encode()


XML = "".join(f"<p>{d.replace('quiet', '<i>quiet</i>')}</p>" for d in PLAIN.splitlines())
JAPANESE = "これは日本語の文章です。\n" * 40
TREC = "<DOC>\n<DOCNO> {i} </DOCNO>\n<TEXT>\n{text}\n</TEXT>\n</DOC>\n"
WIKI = '<doc id="{i}" url="u" title="t">\n{text}\n</doc>\n'
SRT = "{i}\n00:00:{i:02},000 --> 00:01:00,500\n{text}\n\n"
SBV = "0:00:{i:02}.000,0:01:00.500\n{text}\n\n"
VTT = "the {i}\n00:{i:02}.000 --> 01:00.500 align:start\n<c.yellow>{text}</c><00:00:01.500>\n\n"
ASS = "Dialogue: 0,0:00:{i:02}.00,0:01:00.00,Default,,0,0,0,,{{\\i1}}{text}\\N\n"
FOREIGN: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "tar": (".tar", tar, "a tar archive"),
    "tar of the oldest kind": (".tar", lambda: v7_tar(tar()), "a tar archive"),
    "tar.gz": (".tar.gz", lambda: gzip.compress(tar()), "a tar archive"),
    "tgz": (".tgz", lambda: gzip.compress(tar()), "a tar archive"),
    "tar.xz": (".tar.xz", lambda: lzma.compress(tar()), "a tar archive"),
    "tar.bz2": (".tbz2", lambda: bz2.compress(tar()), "a tar archive"),
    "gzip": (".bin", lambda: gzip.compress(PLAIN.encode()), "gz data"),
    "zip": (".zip", lambda: zipped(a=PLAIN), "a zip archive"),
    "docx": (".docx", lambda: zipped(**{"word__document.xml": "<xml>"}), "a Word document"),
    "xlsx": (".xlsx", lambda: zipped(**{"xl__workbook.xml": "<xml>"}), "a spreadsheet"),
    "xls": (".xls", lambda: b"\xd0\xcf\x11\xe0" + bytes(508) + b"\x09\x08\x10\0", "a spreadsheet"),
    "pptx": (".pptx", lambda: zipped(**{"ppt__presentation.xml": "<xml>"}), "a PowerPoint presentation"),
    "ods": (".ods", lambda: office("spreadsheet"), "a spreadsheet"),
    "odt": (".odt", lambda: office("text"), "a document"),
    "zip of folders": (".zip", lambda: zipped(**{"word__a.txt": PLAIN, "xl__a.txt": PLAIN}), "a zip archive"),
    "7z": (".7z", lambda: b"7z\xbc\xaf\x27\x1c\0\4" + bytes(99), "a 7z archive"),
    "rar": (".rar", lambda: b"Rar!\x1a\x07\x01\0" + bytes(99), "a rar archive"),
    "pdf": (".pdf", lambda: b"%PDF-1.7\n1 0 obj\n", "a PDF"),
    "html": (".html", lambda: b"<!DOCTYPE html>\n<html><head><title>Log in</title>", "a web page"),
    "html error": (".htm", lambda: b"\n<html>\n<body><h1>404</h1></body></html>", "a web page"),
    "xml": (".xml", lambda: f"<?xml version='1.0'?><all>{XML}</all>".encode(), "XML"),
    "posts": (".xml", lambda: posts().encode(), "posts of Stack Exchange"),
    "xml after a comment": (".xml", lambda: f"\n<!-- a-b -->\n<?xml version='1.0'?><a>{XML}</a>".encode(), ": XML"),
    "xml with a doctype": (".sgm", lambda: f"<!DOCTYPE a SYSTEM 'x.dtd'>\n<a>{XML}</a>".encode(), ": XML"),
    "tei": (".tei", lambda: f"<TEI xmlns='http://a.b/'>{XML}</TEI>".encode(), ": XML"),
    "rss": (".rss", lambda: f"<!-- made\nby -->\n<rss version='2.0'>{XML}</rss>".encode(), ": XML"),
    "atom": (".atom", lambda: f"<feed\n xml:lang='en'>{XML}</feed>".encode(), ": XML"),
    "xhtml": (".xhtml", lambda: f"<?xml version='1.0'?>\n<html lang='en'>{XML}</html>".encode(), "a web page"),
    "trec": (".sgml", lambda: cues(TREC).encode(), "tags"),
    "wikiextractor": (".wiki", lambda: cues(WIKI).encode(), "between tags"),
    "svg": (".svg", lambda: f"<svg xmlns='http://a.b/'>{XML}</svg>".encode(), ": XML"),
    "ttml": ("", lambda: f"<tt xml:lang='en'\nxmlns:tts='http://a.b/'>{XML}</tt>".encode(), ": XML"),
    "srt": (".srt", lambda: cues(SRT).replace("\n", "\r\n").encode("utf-8-sig"), "subtitles"),
    "srt without blank lines": (".sub", lambda: cues(SRT[:-1]).encode(), "subtitles"),
    "sbv": (".sbv", lambda: cues(SBV).encode(), "subtitles"),
    "vtt": (".vtt", lambda: f"WEBVTT - a film\nKind: captions\n\n{cues(VTT)}".encode(), "subtitles"),
    "ass": (".ass", lambda: f"[Script Info]\nTitle: a film\n\n[Events]\n{cues(ASS)}".encode(), "subtitles"),
    "iso-2022-jp": (".jis", lambda: JAPANESE.encode("iso-2022-jp"), "iconv -f iso-2022-jp"),
    "ar": (".deb", ar, "an ar archive"),
    "pdf after a blank line": (".pdf", lambda: b"\r\n%PDF-1.7\n1 0 obj\n", "a PDF"),
    "pickle of protocol 0": (".pkl", lambda: pickle.dumps(DOCS, 0), "a Python pickle"),
    "pickled object of protocol 0": (".pkl", lambda: pickle.dumps(Path(), 0), "a Python pickle"),
    "pickled dict of protocol 0": (".pkl", lambda: pickle.dumps(RECORDS[0], 0), "a Python pickle"),
    "lines of lists": (".json", lambda: lines_of(json.dumps, [["a", d] for d in DOCS]), "lines of JSON arrays"),
    "lines of a number and a text": (".json", lambda: lines_of(json.dumps, [[1, d] for d in DOCS]), "fields are 0, 1"),
    "lines of lists of objects": (".json", lambda: lines_of(json.dumps, [RECORDS[:9], RECORDS[9:]]), "of objects"),
    "numbers": (".json", lambda: json.dumps([*range(999)]).encode(), "a JSON array of numbers"),
    "json sequence": (".json", lambda: lines_of(lambda r: f"\x1e{json.dumps(r)}", RECORDS), "a JSON text sequence"),
    "warc": (".warc.wet", lambda: web_archive(is_arc=False), "a web archive"),
    "arc": (".arc", lambda: web_archive(is_arc=True), "a web archive"),
    "mbox": (".mbox", lambda: mailbox(), "a mailbox"),
    "mail": (".eml", lambda: mail(), "a mail or a saved page (MIME)"),
    "mail of two kinds": (".eml", lambda: mail("<p>hello"), "a mail or a saved page (MIME)"),
    "base64": (".b64", lambda: base64.encodebytes(PLAIN.encode()), "base64"),
    "base64 in a line": (".b64", lambda: base64.b64encode(PLAIN.encode()), "base64"),
    "pgp": (".asc", lambda: b"-----BEGIN PGP MESSAGE-----\n\nhQ\n-----END PGP MESSAGE-----\n", "encrypted data"),
    "lines of strings": (".json", lambda: lines_of(json.dumps, DOCS), "lines of JSON strings"),
    "lines of Python dicts": (".log", lambda: lines_of(repr, RECORDS), "lines of Python dicts"),
    "Python strings": (".txt", lambda: repr(DOCS).encode(), "a Python list of strings"),
    "lines of Python strings": (".txt", lambda: repr(DOCS).replace("', '", "',\n '").encode(), "a Python list of"),
    "Python list": (".py", lambda: repr(RECORDS).encode(), "a Python list of dicts"),
    "script": (".js", lambda: f"window.a.b0 = {json.dumps(RECORDS, indent=1)};\n".encode(), "in JavaScript"),
    "array after null": (".json", lambda: json.dumps([None, *RECORDS]).encode(), "a JSON array"),
    "array after numbers": (".json", lambda: json.dumps([1, -2.5e3, *RECORDS]).encode(), "a JSON array"),
    "array of strings after true": (".json", lambda: json.dumps([True, *DOCS], indent=1).encode(), "a JSON array"),
    "xml of attributes": (".xml", lambda: posts().replace("posts>", "all>").encode(), "XML without text"),
    "objects and commas": (".jsonl", lambda: "".join(json.dumps(r) + ",\n" for r in RECORDS).encode(), "a comma after"),
    "lfs": (".txt", lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n", "git lfs pull"),
    "lfs before it had its name": (".txt", lambda: b"version https://hawser.github.com/spec/v1\n", "git lfs pull"),
    "xet": (".txt", lambda: b"# xet version 0\nfilesize = 9\nhash = 'ab'\n", "git xet checkout"),
    "array": (".json", lambda: json.dumps(RECORDS).encode(), "a JSON array"),
    "pretty array": (".json", lambda: json.dumps(RECORDS, indent=2).encode(), "a JSON array"),
    "array of strings": (".json", lambda: json.dumps(DOCS).encode(), "a JSON array"),
    "held array": (".json", lambda: json.dumps({"version": 1, "data": RECORDS}).encode(), "a JSON array in the field"),
    "pretty held array": (".json", lambda: json.dumps({"data": RECORDS}, indent=1).encode(), "a JSON array in"),
    "held array in gzip": (".json.gz", lambda: gzip.compress(json.dumps({"rows": RECORDS}).encode()), "a JSON array"),
    "array in gzip": (".json.gz", lambda: gzip.compress(json.dumps(RECORDS).encode()), "a JSON array"),
    "pretty object": (".json", lambda: json.dumps(RECORDS[0], indent=2).encode(), "a JSON object over several"),
    "notebook": (".ipynb", lambda: notebook(1), "a notebook"),
    "notebook in a line": (".ipynb", lambda: notebook(None), "a notebook"),
    "csv": (".csv", lambda: table(","), "a table (CSV)"),
    "csv without a header": (".csv", lambda: table(",", has_header=False), "a table (CSV)"),
    "csv of pandas": (".csv", lambda: table(",", index=""), "fields are text"),
    "csv of pandas, called text": (".txt", lambda: table(",", index=""), "a table (CSV)"),
    **{
        f"csv with {delimiter!r}": (".csv", functools.partial(table, delimiter), "fields are id, text")
        for delimiter in ";\t|"
    },
    "csv in russian, called text": (".txt", lambda: table(",", index="номер"), "a table (CSV)"),
    "tsv with ;": (".tsv", lambda: table(";"), "fields are id, text"),
    "csv without a header, with ;": (".csv", lambda: table(";", has_header=False), "fields are 0, 1, ..."),
    "tsv with quotes": (".tsv", lambda: quoted_table(), "a table (TSV)"),
    "tsv": (".tsv", lambda: table("\t"), "a table (TSV)"),
    "csv in gzip": (".csv.gz", lambda: gzip.compress(table(",")), "a table (CSV)"),
    "utf-16le": (".txt", lambda: PLAIN.encode("utf-16-le"), "iconv -f utf-16le"),
    "utf-16be": (".txt", lambda: PLAIN.encode("utf-16-be"), "iconv -f utf-16be"),
    "utf-16": (".txt", lambda: PLAIN.encode("utf-16"), "iconv -f utf-16 "),
    "utf-32le": (".txt", lambda: PLAIN.encode("utf-32-le"), "iconv -f utf-32le"),
    "chinese utf-16le": (".txt", lambda: ("一个安静的故事。\n" * 40).encode("utf-16-le"), "iconv -f utf-16le"),
    "a hole": (".txt", lambda: PLAIN.encode() + bytes(5000) + PLAIN.encode(), "4,096 or more zero bytes"),
    "control characters": (".cbor", lambda: b"\xa1\x64text\x78\x1aStory \x02" * 9, "binary data"),
    "zeros": (".txt", lambda: PLAIN.encode() + b"\0" * 9, "binary data"),
    "token ids": (".bin", lambda: np.arange(1, 50_000, 7, dtype=np.uint16).tobytes(), "binary data"),
    "program": (".exe", lambda: b"\x7fELF\2\1\1" + bytes(20), "an executable"),
    "picture": (".png", lambda: b"\x89PNG\r\n\x1a\n\0\0", "an image"),
    "jpeg": (".jpg", lambda: b"\xff\xd8\xff\xe0\x00\x10JFIF", "an image"),
    "gif": (".gif", lambda: b"GIF89a\1\1\x80", "an image"),
    "sound": (".wav", sound, "sound or video"),
    "video": (".mp4", lambda: b"\0\0\0\x20ftypisom\0\0\2\0", "sound or video"),
    "sqlite": (".sqlite", database, "an SQLite database"),
    "hdf5": (".h5", lambda: b"\x89HDF\r\n\x1a\n\0", "an HDF5 file"),
    "pickle": (".pkl", lambda: pickle.dumps(DOCS), "a Python pickle"),
    "npy": (".npy", array, "a NumPy array"),
    "safetensors": (".safetensors", lambda: (60).to_bytes(8, "little") + b'{"w": {"dtype": "F32"}}', "model weights"),
    "arrow": (".arrow", lambda: arrow("file"), "an Arrow file"),
    "arrow stream": (".arrow", lambda: arrow("stream"), "an Arrow stream"),
    "feather": (".feather", lambda: arrow("feather"), "an Arrow file"),
    "orc": (".orc", lambda: arrow("orc"), "an ORC file"),
    "avro": (".avro", lambda: b"Obj\x01\x04\x14avro.codec\x08null", "an Avro file"),
}  # fmt: skip
"""Kinds of files: usual ending, how to make one, and what the message says."""

TO_TEXT = ("subtitles", "tags", "between tags", "XML", ": XML")
COLUMNS = dict.fromkeys(
    ["csv without a header", "csv without a header, with ;", "lines of lists", "lines of a number and a text"], "1"
) | {"posts": "Body"}
"""Kinds whose command makes the lines of PLAIN, by what is said of them; and columns that are not called text."""


def v7_tar(data: bytes) -> bytes:
    """Remove from a tar what only newer kinds have, and adapt its checksum."""
    head = bytearray(data[:512])
    head[257:512], head[148:156] = bytes(255), b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + data[512:]


def notebook(indent: int | None) -> bytes:
    cells = [{"cell_type": "markdown", "source": [PLAIN]}, {"cell_type": "code", "source": "x = 1"}]
    return json.dumps({"cells": cells, "nbformat": 4}, indent=indent).encode()


@pytest.mark.parametrize("ending", ["its own", ".txt", "", ".jsonl", ".parquet", ".txt.gz"])
@pytest.mark.parametrize("kind", FOREIGN)
def test_no_foreign_file_is_taken_for_a_corpus(tmp_path: Path, kind: str, ending: str) -> None:
    """Each kind under each name is refused, and the message says what it is."""
    own, make, part = FOREIGN[kind]
    data = make()
    if ending.endswith(".gz") and not own.endswith(("gz", "xz", "bz2")):
        data = gzip.compress(data)
    path = tmp_path / f"corpus{own if ending == 'its own' else ending}"
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        find_inputs([str(path)])
    if not (path.name.endswith(".txt.gz") and data[:2] != b"\x1f\x8b"):  # else it is packed in another way
        assert part in str(caught.value) or (kind == "gzip" and ending == ".txt.gz")


def test_no_foreign_file_at_an_address_is_taken_for_a_text(tmp_path: Path) -> None:
    """Files at URLs are refused as files here are, also packed: each kind is called .txt once and .jsonl once.

    What a command converts is to be saved to a file first, of which the command is then said.
    """
    with HubServer(tmp_path) as server:
        for i, (kind, (own, make, words)) in enumerate(FOREIGN.items()):
            if kind == "gzip":  # an address often has no ending: it is unpacked
                continue
            data, endings = make(), (".txt", ".jsonl") if i % 2 else (".jsonl", ".txt")
            packed = "" if own.endswith(("gz", "xz", "bz2")) else ".gz"
            for name in (f"{i}{endings[0]}", f"{i}{endings[1]}{packed}"):
                (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
                with pytest.raises(InputError) as here:
                    find_inputs([str(tmp_path / name)])
                with pytest.raises(InputError) as there:
                    prepare(f"{server.url}/files/{name}", tmp_path / "out", engine="tiktoken", quiet=True)
                assert words in str(here.value), f"{kind}: {name}"
                assert there.value.message.rpartition(name)[2] == here.value.message.rpartition(name)[2]
                has_command = str(tmp_path) in here.value.hint
                assert ("save it to a file, and name that" in there.value.hint) == has_command, f"{kind}: {name}"
        assert not (tmp_path / "out").exists()
        path = write_jsonl(tmp_path / "lines.txt", DOCS)
        prepare(path, tmp_path / "here", quiet=True)
        prepare(f"{server.url}/files/lines.txt", tmp_path / "there", quiet=True)
    assert outputs(tmp_path / "here") == outputs(tmp_path / "there")


def test_lines_that_hold_arrays_are_lines(tmp_path: Path) -> None:
    """Lines whose records have an array in such a field are read, also a single one with its text."""
    for n in (1, 2):
        lines = [json.dumps({"text": d, "messages": [{"a": 1}], "rows": [{"b": 2}]}) for d in DOCS[:n]]
        (tmp_path / "c.jsonl").write_text("\n".join(lines))
        assert len(np.concatenate(list(iter_ids(tmp_path / "c.jsonl"))))
    (tmp_path / "e.jsonl").write_text(json.dumps({"documents": [{"id": 1}], "text": "one two"}))
    assert len(np.concatenate(list(iter_ids(tmp_path / "e.jsonl")))) == 3
    (tmp_path / "f.jsonl").write_text(json.dumps({"data": [{"text": "one two"}] * 100_000}))  # longer than what is seen
    with pytest.raises(InputError, match="a JSON array in the field 'data' of one object"):
        find_inputs([str(tmp_path / "f.jsonl")])
    (tmp_path / "g.jsonl").write_text(json.dumps({"text": "one two", "rows": [{"b": 2}]}, indent=1))
    with pytest.raises(InputError, match="a JSON object over several lines"):
        find_inputs([str(tmp_path / "g.jsonl")])
    (tmp_path / "d.jsonl").write_text(json.dumps({"rows": [{"b": 2}], "text": "one"}) + '\n{"text": "two"}\n')
    assert len(np.concatenate(list(iter_ids(tmp_path / "d.jsonl")))) == 4


@pytest.mark.parametrize(
    ("kind", "ending"),
    [
        (kind, ending)
        for kind, (own, _, _) in FOREIGN.items()
        if (own != ".txt" or "utf" in kind) and kind != "rar"  # nothing free makes a real one
        for ending in ("its own", "", ".txt", ".jsonl")
        if ending in ("its own", "")
        or kind not in ("arrow", "arrow stream", "feather", "orc")  # to import pyarrow takes longer than all others
    ],
)
def test_what_is_said_to_do_makes_text_of_it(tmp_path: Path, monkeypatch, reference, kind: str, ending: str) -> None:
    """The command in the message makes a file that this program reads, with all documents."""
    own, make, _ = FOREIGN[kind]
    path = tmp_path / f"my corpus{own if ending == 'its own' else ending}"
    path.write_bytes(make())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        find_inputs([path.name])
    command = re.search(r"(?:: )((?:mv|mkdir|jq|gzip|xz|bzip2|iconv|unzip|sed|\S*python\S*) .*?)(?:; or read it|$)",
                        caught.value.hint)  # fmt: skip
    if not command:
        assert FOREIGN[kind][2] not in ("a tar archive", "a zip archive", "a JSON array", "a table (CSV)", *TO_TEXT)
        pytest.skip("there is no command for it, or one of another package")
    before = set(tmp_path.iterdir())
    done = subprocess.run(command[1], shell=True, capture_output=True, text=True, timeout=60)
    if done.returncode == 127 or "No module named" in done.stderr:
        pytest.skip("the tool is not here")
    assert done.returncode == 0, (command[1], done.stderr)
    [made] = set(tmp_path.iterdir()) - before
    if FOREIGN[kind][2] in TO_TEXT:
        text = made.read_text(encoding="utf-8")
        assert [line.strip() for line in text.splitlines() if line.startswith("Story")] == PLAIN.splitlines()
        assert not re.search(r"<|-->|\\|film|Kind|[Tt]he \d|\A\ufeff?\d", text)
    elif kind == "iso-2022-jp":
        assert made.read_text(encoding="utf-8") == JAPANESE
    elif kind in ("docx", "gzip", "ar", "tgz") or re.search("notebook|^zip|tar|utf", kind):
        assert find_inputs([str(made)])[0].format == ("jsonl" if made.name.endswith(".jsonl.gz") else "text")
        if made.name.endswith(".jsonl.gz"):
            return  # it had been called a .jsonl file before
        assert len(list(iter_ids(made)))
    else:
        n = 1 if kind == "pretty object" else len(DOCS)
        docs = [f"{text}\n" for text in DOCS] if kind == "mbox" else [PLAIN] if "mail" in kind else DOCS[:n]
        expected = list(itertools.chain(*document_ids(reference, docs)))
        assert np.concatenate(list(iter_ids(made, text_column=COLUMNS.get(kind, "text")))).tolist() == expected


@pytest.mark.parametrize("kind", ["docx", "odt", "html"])
def test_paragraphs_of_documents_stay_lines(kind: str) -> None:
    """What converts them puts no line ends of its own into paragraphs."""
    found = find_foreign(FOREIGN[kind][1]())
    assert found and "pandoc --wrap=none " in found.command


def test_what_is_a_table_in_another_encoding(tmp_path: Path, monkeypatch) -> None:
    """It is to be converted to UTF-8 first, after which the command for tables works."""
    monkeypatch.chdir(tmp_path)
    Path("my c.csv").write_bytes(table(",").replace(b"quiet", b"caf\xe9"))
    with pytest.raises(InputError, match=r"a table \(CSV\) in another encoding than UTF-8") as caught:
        find_inputs(["my c.csv"])
    command = caught.value.hint.partition(": ")[2].partition(" (")[0].replace("ENCODING", "cp1252")
    subprocess.run(command, shell=True, check=True)
    with pytest.raises(InputError, match=r"a table \(CSV\), not text") as caught:
        find_inputs(["NEW"])
    subprocess.run(caught.value.hint.partition("NAME): ")[2].partition("; or")[0], shell=True, check=True)
    assert 'a \\"caf\\u00e9\\" river' in Path("NEW.jsonl").read_text()


@pytest.mark.parametrize("kind", ["zip", "arrow", "docx", "sqlite"])
def test_what_is_packed_twice_is_unpacked_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A kind whose command needs a file is first unpacked, if it is packed, and is then refused as it is alone."""
    monkeypatch.chdir(tmp_path)
    own, make, words = FOREIGN[kind]
    packed, alone = Path(f"my c{own}.gz"), Path(f"alone{own}")
    packed.write_bytes(gzip.compress(make()))
    alone.write_bytes(make())
    with pytest.raises(InputError, match=re.escape(words)) as caught:
        find_inputs([str(packed)])
    subprocess.run(caught.value.hint.removeprefix("unpack it, and name that: "), shell=True, check=True)
    [made] = set(Path().iterdir()) - {packed, alone}
    said = []
    for path in (made, alone):
        with pytest.raises(InputError) as caught:
            find_inputs([str(path)])
        said.append(str(caught.value).replace(made.stem, alone.stem).replace("'", ""))
    assert said[0] == said[1]


@pytest.mark.parametrize("kind", ["a notebook", "XML"])
def test_text_is_converted_in_any_locale(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Python prints in another encoding, as on Windows into a file, a command makes UTF-8 all the same."""
    text = {
        "a notebook": json.dumps({"cells": [{"source": ["日本語"]}], "nbformat": 4}, indent=1),
        "XML": "<?xml?><a>日本語</a>",
    }
    (tmp_path / "c").write_text(text[kind].replace("?xml", "?xml version='1.0'"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for name, value in {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=kind) as caught:
        find_inputs(["c"])
    subprocess.run(caught.value.hint.partition(": ")[2].partition("; or")[0], shell=True, check=True)
    assert Path("c.txt").read_text(encoding="utf-8").strip() == "日本語"


def test_in_a_folder_the_old_one_is_in_the_way(tmp_path: Path) -> None:
    """In a folder, the converted file is read once the old one is moved away, as the advice says."""
    folder = tmp_path / "d"
    folder.mkdir()
    write_jsonl(folder / "b.jsonl", DOCS)
    (folder / "a.txt").write_bytes(PLAIN.encode("utf-16"))
    with pytest.raises(InputError, match=r"iconv .*; likewise .*; then move the old ones out") as caught:
        find_inputs([str(folder)])
    command = re.search(r"iconv [^;]*", caught.value.hint)
    assert command and subprocess.run(command[0], shell=True, timeout=60).returncode == 0
    (folder / "a.txt").rename(tmp_path / "a.txt")
    assert len(find_inputs([str(folder)])) == 2


def test_in_a_folder_of_its_own_kind(tmp_path: Path) -> None:
    """Its command makes a file that is read beside it; others like it are counted, and files about them don't matter.

    --format, which does not choose files, is not advised.
    """
    (tmp_path / "d").mkdir()
    for name in ("a.csv", "b.csv"):
        (tmp_path / "d" / name).write_bytes(table(","))
    for name in ("LICENSE", "README.md", "dataset_dict.json"):
        (tmp_path / "d" / name).write_text('{"splits": ["train"]}')
    with pytest.raises(InputError, match=r"a table \(CSV\)") as caught:
        find_inputs([str(tmp_path / "d")])
    command, _, rest = caught.value.hint.partition("NAME): ")[2].partition("; likewise ")
    assert rest == "1 other .csv file"
    assert subprocess.run(command, shell=True, timeout=60).returncode == 0
    [made] = find_inputs([str(tmp_path / "d")])
    assert made.path.endswith("a.jsonl")


def test_in_a_folder_of_source_code(tmp_path: Path) -> None:
    """Of what it could read if named, the most usual kind is advised, not the first: here a file of settings."""
    for name in ("setup.cfg", "src/a.py", "src/b.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    with pytest.raises(InputError, match=r"only setup\.cfg, a\.py, b\.py\n.*; or name others: (\S+)") as caught:
        find_inputs([str(tmp_path)])
    pattern = caught.value.hint.rpartition(": ")[2].strip("'")
    assert [Path(input.path).name for input in find_inputs([pattern])] == ["a.py", "b.py"]


def test_the_program_is_no_corpus(tmp_path: Path) -> None:
    """Its folder, which may lie beside a corpus, is not entered, and its script is not advised as an input."""
    assert not list(iter_files(ROOT / "fineweb_stream"))
    (tmp_path / "prepare.py").write_text("text")
    with pytest.raises(InputError, match=r"only prepare\.py\n.*; or name the file"):
        find_inputs([str(tmp_path)])


@pytest.mark.parametrize("kind", ["lfs", "html"])
@pytest.mark.parametrize("view", ["raw", "blob"])
def test_another_view_of_a_file_on_the_hub(kind: str, view: str) -> None:
    """The page that a browser shows, and the pointer in Git: the address of the file itself is advised."""
    found = find_foreign(FOREIGN[kind][1]())
    assert found
    error = refuse(f"https://huggingface.co/datasets/a/b/{view}/main/c.txt", found)
    assert error.hint.startswith("if it is a file on the Hub: https://huggingface.co/datasets/a/b/resolve/main/c.txt")


@pytest.mark.parametrize("options", [{}, {"separator": "\n\n"}])
def test_room_for_what_has_not_come_yet(tmp_path: Path, options: dict[str, str]) -> None:
    """Zero bytes after a text, as in a file that is being fetched: named with their place, or read as they are."""
    path, text = tmp_path / "c.txt", f"{PLAIN}\n".encode() * 600
    path.write_bytes(text + bytes(1 << 18))
    place = rf"c\.txt.*byte {len(text):,}\)?: 4,096 or more zero bytes, not text\n.*Wait until it is complete"
    with pytest.raises(InputError, match=place):
        prepare(path, tmp_path / "out", quiet=True, **options)
    prepare(path, tmp_path / "as it is", errors="replace", quiet=True, **options)
    for encoding in ("utf-16-le", "utf-16-be"):  # a shell that writes UTF-16 had it after the text
        path.write_bytes(text + PLAIN.encode(encoding))
        with pytest.raises(InputError, match=r"c\.txt.*byte [\d,]+\)?: text in UTF-16 among UTF-8\n.*iconv -f utf-16 "):
            prepare(path, tmp_path / "out", quiet=True, **options)
    path.write_bytes(text)
    prepare(path, tmp_path / "out", quiet=True, overwrite=True, **options)


PROSE = {
    "a footnote": "[1] See the notes.\n[2] And these.\n",
    "an illustration": "[Illustration: a river]\n\nOnce upon a time\n",
    "a link": "[[River]] is a stream of water.\n",
    "a list of names": '["Hello," he said] and left.\n',
    "a template": "{% block %} text {% endblock %}\n",
    "code": "{\n  int x = 1;\n}\n",
    "verse": "Water, water, every where,\nAnd all the boards did shrink,\nWater, water, every where,\nNor any drop,\n",
    "pairs": "Yes, sir\nNo, sir\nMaybe, sir\nNever, sir\nSo, sir\n",
    "a quotation": '"Yes," she said, "and no."\n"No," he said, "and yes."\n',
    "markdown": "# Title\n\n<div align=center>\n\nText | with | bars\n--- | --- | ---\n",
    "a program": "<?php echo 1; ?>\n",
    "versions": "version https is what follows\n",
    "makefile": "all:\n\tcc x.c\n\tld x.o\nclean:\n\trm x\n",
    "numbers": "1, 2 and 3\n1, 2 and 3\n",
    "BZh": "BZhang wrote this\n",
    "GIF": "GIFs are pictures\n",
    "one word": "word",
    "tabs at the start": "\tA paragraph.\n\tAnother, which is longer.\n" * 9,
    "dates": "1999\n2000, 2001\n",
    "a poem of quoted lines": '"Hold fast to dreams,\n"For if dreams die,\n"Life is a bird."\n\n',
    "a dialogue": '"Who is there?"\n"A friend."\n"Advance," said he.\n',
    "stanzas in quotes": '"One line and more."\n\n"Another line."\n\n',
    "a quoted word": '"Yes"\nand no\n',
    "a play": "[Enter GHOST]\n[Exit GHOST]\nHAMLET. To be, or not to be\n",
    "scenes": "[1]\n[2]\n",
    "references": "[1]: https://a.b [one]\n[2]: https://c.d [two]\n",
    "citations": "[1, 2] say so.\n[3, 4] do not.\n",
    "special tokens": "<s>Once upon a time</s>\n<s>Twice</s>\n",
    "a special token of GPT": "<|endoftext|>Once upon a time\n",
    "a chat": "<user> Hello\n<bot> Hello, too\n",
    "bos": "<bos><feed>Once<rss>upon</feed>\n",
    "documents": "<doc>\nOnce upon a time\n</doc>\n<DOC>\nTwice\n</DOC>\n",
    "a readme": '<p align="center">\n  <img src="a.png">\n</p>\n\n# Title\n',
    "a readme with a comment": "<!-- say <?xml - or --x -->\n<div>\n\n# Title\n",
    "a comment without an end": "<!-- <!-- <!-- - -- > <?xml\n",
    "log": "[2021-01-05 12:00:00,123] INFO: started\n[2021-01-05 12:00:01,456] INFO: ended\n",
    "digits": "0,4,3,0\n1,2,0,0\n2,3,1,4\n",
    "lists of digits": "[1, 2]\n[3, 4]\n",
    "code on a list": "[1, 2, 3].each { |x| puts x }\n",
    "on a list": '["a", "b"] is a list in Python,\n["c"] too.\n',
    "on a Python list": "['a', 'b'] is a list\n",
    "on an object": '{"a": 1} is an object\n',
    "a signed letter": "-----BEGIN PGP SIGNED MESSAGE-----\n",
    "a long word": f"{'Donaudampfschifffahrt' * 4}9\n" * 2 + "and more\n",
    "from": "From 1969 to 1970\nA: no\n",
    "log of numbers": "[12, 34] GET /\n[56, 78] GET /\n",
    "ruby": "[true, false].each do |x|\n  p x\nend\n",
    "javascript": "window.onload = function () {\n  a = [{b: 1}];\n};\nwindow.c = [1, 2];\n",
    "python": "{'a', 'b'}\n{'a' : x}\n['a', {'b': 1}]\n",
    "an elision": "{'tis the season: 'twas}\n[{'tis}]\n",
    "a variable": "{'title': title}\n{'a': b}\n",
    "lisp": "(lp0 x)\n(dp 1)\n(lp)\n",
    "times": "1\n2\n10:30 --> the bus\n00:00:01 the film starts\n",
    "WEBVTT": "WEBVTTs are subtitles\n",
    "on WEBVTT": "WEBVTT is a format of subtitles, and this is prose.\n",
    "script info": "[Script Info] is a section\n",
    "colours": "\x1b[31mred\x1b(B and $B \x1b$ @\n",
    "octal digits": "1234567 01234567 ",  # also where a tar has its checksum
}


@pytest.mark.parametrize("kind", PROSE)
def test_prose_is_no_table_nor_anything_else(tmp_path: Path, kind: str) -> None:
    """Text that looks a little like other formats is text."""
    for name in ("c.txt", "c"):
        (tmp_path / name).write_text(PROSE[kind] * 50)
        assert find_inputs([str(tmp_path / name)])[0].format == "text"


@pytest.mark.parametrize("name", ["c.xml", "c.html", "c.htm", "c.XHTML", "c.xml.gz", "c.html.gz"])
def test_markup_is_known_by_its_suffix(tmp_path: Path, name: str) -> None:
    """What begins with a tag is XML or HTML if its name says so, and text if not; a name alone says nothing."""
    for text in ("<p>Once upon</p>\n", "<!-- a -->\n<corpus><doc>Once</doc></corpus>\n", "<s>Once upon</s>\n"):
        pack = gzip.compress if name.endswith(".gz") else bytes
        (tmp_path / name).write_bytes(pack(text.encode()))
        with pytest.raises(InputError, match="XML" if ".xml" in name else "a web page"):
            find_inputs([str(tmp_path / name)])
        (tmp_path / "c.txt").write_text(text)
        assert find_inputs([str(tmp_path / "c.txt")])[0].format == "text"
        (tmp_path / name).write_bytes(pack(b"Once upon <p>a</p> time\n"))
        assert find_inputs([str(tmp_path / name)])[0].format == "text"


HOSTILE = """
from fineweb_stream.inputs.foreign import find_foreign
from fineweb_stream.inputs.kind import HEAD_BYTES
UNITS = [b"<!---->", b"<!-- -->", b"<a>", b"<", b"<?xml ?>", b'"a" \\n', b'"', b"[1 ,", b"[null,", b"[", b"{'a': 1} ",
         b"{'", b'{"a":"b",', b"1 ", b"\\n", b" ", b"} ", b"window.", b"\\x1b$B!!", b"\\\\", b"[1]\\n", b"a,b\\n", b"-",
         b"10:10:10"]
STARTS = [b"", b"<!--", b'"', b'["', b"[", b"{'a': 1", b"{'a': '", b'{"a": "', b"1", b"<rss ", b"window.a=[", b"1\\n0",
          b"[1,", b"['a',", b"From "]
for start in STARTS:
    for unit in UNITS:
        for end in (b"", b"x"):
            find_foreign((start + unit * HEAD_BYTES)[: HEAD_BYTES - len(end)] + end)
"""


def test_no_head_keeps_it_busy() -> None:
    """Whatever a file begins with, it is looked at in the end: no pattern tries all ways to divide what is repeated."""
    subprocess.run([sys.executable, "-c", HOSTILE], check=True, timeout=600)


def test_format_overrides_detection(tmp_path: Path) -> None:
    """With --format text, a file of text is read as it is."""
    (tmp_path / "c.csv").write_bytes(table(","))
    prepare(tmp_path / "c.csv", tmp_path / "out", format="text", val_ratio=0.1, quiet=True)
    (tmp_path / "c.txt").write_text(json.dumps({"text": "a"}) + "\n")
    assert find_inputs([str(tmp_path / "c.txt")])[0].format == "jsonl"  # by what it holds
    assert find_inputs([str(tmp_path / "c.txt")], "text")[0].format == "text"


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".bz2", ".zst"])
def test_what_is_unpacked_already_is_said(tmp_path: Path, monkeypatch, suffix: str) -> None:
    """A file that a browser has unpacked already is refused for its name, and so is the reverse; the advice works."""
    monkeypatch.chdir(tmp_path)
    line = json.dumps({"text": "a"}) + "\n"
    Path(f"c.jsonl{suffix}").write_text(line)
    with pytest.raises(InputError, match="not compressed, though its name ends in") as caught:
        find_inputs([f"c.jsonl{suffix}"])
    subprocess.run(caught.value.hint.partition(": ")[2], shell=True, check=True)
    assert find_inputs(["c.jsonl"])[0].format == "jsonl"
    Path("d.jsonl").write_bytes(gzip.compress(line.encode()))
    with pytest.raises(InputError, match="gz data") as caught:
        find_inputs(["d.jsonl"])
    subprocess.run(caught.value.hint.partition(": ")[2], shell=True, check=True)
    assert find_inputs(["d.jsonl.gz"])[0].compression == ".gz"
    Path("d.jsonl.gz").rename("e.jsonl.xz")
    with pytest.raises(InputError, match="gz data"):
        find_inputs(["e.jsonl.xz"])


CORPORA = {
    "FineWeb": "000_00000.parquet",
    "C4": "c4-train.00000-of-01024.json.gz",
    "Dolma": "cc_en_head-0000.json.gz",
    "The Pile": "00.jsonl.zst",
    "OpenWebText": "openwebtext.jsonl",
    "RedPajama": "arxiv_000.jsonl",
    "Spark": "part-00000-4f2a.json",
    "TinyStories": "TinyStoriesV2-GPT4-train.txt",
    "Oscar": "en_meta_part_1.jsonl.gz",
    "ndjson": "dump.ndjson.bz2",
    "upper case": "CORPUS.JSONL",
    "xz": "corpus.jsonl.xz",
}  # fmt: skip
"""File names of well-known corpora."""


@pytest.mark.parametrize("corpus", CORPORA)
def test_endings_of_well_known_corpora(tmp_path: Path, monkeypatch, caplog, corpus: str) -> None:
    """By name, in a folder, by a glob or beside the script: the same files are found, and nothing else."""
    name = CORPORA[corpus]
    folder = tmp_path / "data"
    write_as(folder / name)
    (folder / "README.md").write_text("about the data")
    (folder / "dataset_infos.json").write_text(json.dumps({"default": {"features": {}}}, indent=1))
    for hidden in (".ipynb_checkpoints", "_delta_log", ".Trash-1000/files", "_temporary/0", "lost+found"):
        write_as(folder / hidden / name)
    for own in ("prepare.json", "prepare.changes.jsonl", "train.bin", "val.bin"):
        (folder / own).write_text('{"text": "mine"}\n')
    monkeypatch.chdir(tmp_path)
    [named] = find_inputs([f"data/{name}"])
    for argument in ("data", f"data/{name[:2]}*", f"data/**/{name[:2]}*", *default_names(Path("data"))):
        assert find_inputs([argument]) == [named], argument
    assert "README.md" in caplog.text and "checkpoints" not in caplog.text
    ids = np.concatenate(list(iter_ids("data")))
    assert ids.tolist() == np.concatenate(list(iter_ids(f"data/{name}"))).tolist() and len(ids)


def test_a_format_is_for_all_inputs(tmp_path: Path, caplog) -> None:
    """--format is for all inputs: names of another format are listed. That content decided is said only without it."""
    for name in ("a.txt", "b.jsonl", "c.parquet"):
        write_as(tmp_path / name)
    found = find_inputs([str(tmp_path)], "text")
    assert {input.format for input in found} == {"text"} and "so read as that, too: b.jsonl, c.parquet" in caplog.text
    caplog.clear()
    find_inputs([str(tmp_path / "b.jsonl")], "text")
    find_inputs([str(tmp_path)])
    (tmp_path / "lines.txt").write_bytes((tmp_path / "b.jsonl").read_bytes())
    find_inputs([str(tmp_path / "lines.txt")], "jsonl")
    assert "--format" not in caplog.text
    find_inputs([str(tmp_path / "lines.txt")])
    assert "read as JSON Lines by their content (--format text overrides it): lines.txt" in caplog.text


@pytest.mark.parametrize("hidden", ["_part", "@at", "#recycle", "$money", "~copy"])
def test_what_is_hidden_but_has_no_dot_is_named(tmp_path: Path, monkeypatch, caplog, hidden: str) -> None:
    """Such files and folders are skipped in folders and patterns, with a note; a named one is read."""
    monkeypatch.chdir(tmp_path)
    good = Path("d", "good.jsonl")
    for name in (good.name, f"{hidden}.jsonl", f"{hidden}/b.jsonl", ".dot/c.jsonl", ".dot.jsonl"):
        write_as(Path("d", name))
    for argument in ("d", "d/**/*.jsonl"):
        caplog.clear()
        found = {Path(input.path) for input in find_inputs([argument])}
        assert found == ({good} if argument == "d" else {Path("d", f"{hidden}.jsonl"), good})
        assert hidden in caplog.text and "dot" not in caplog.text
        assert (f"{hidden}.jsonl" in caplog.text) == (argument == "d")
    assert [input.path for input in find_inputs([f"d/{hidden}"])] == [f"d/{hidden}/b.jsonl"]
    good.unlink()
    with pytest.raises(InputError, match=rf"only {re.escape(hidden)}.*\n.*or name others: 'd/"):
        find_inputs(["d"])


@pytest.mark.parametrize("corpus", CORPORA)
def test_endings_of_well_known_corpora_elsewhere(tmp_path: Path, monkeypatch, corpus: str) -> None:
    """On the Hub by name, in a folder and by a glob, and at a URL: the ids are those of the local file."""
    name = CORPORA[corpus]
    write_as(tmp_path / "o" / "n" / "data" / name)
    (tmp_path / "o" / "n" / "data" / "README.md").write_text("about the data")
    expected = np.concatenate(list(iter_ids(tmp_path / "o" / "n" / "data" / name))).tolist()
    with HubServer(tmp_path) as server:
        server.commit("o/n")
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        hub = "hf://datasets/o/n/data"
        address = f"{server.url}/datasets/o/n/resolve/main/data/{name}"
        for argument in (f"{hub}/{name}", hub, f"{hub}/{name[:2]}*", address):
            assert np.concatenate(list(iter_ids(argument))).tolist() == expected, argument


def write_as(path: Path) -> None:
    """Write the documents in the format that the name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pytest.importorskip("pyarrow")
        write_parquet(path, DOCS)
        return
    data = PLAIN if path.suffix == ".txt" else "".join(json.dumps(record) + "\n" for record in RECORDS)
    if path.suffix == ".zst":
        zstandard = pytest.importorskip("zstandard")
    packers = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}
    packers |= {".zst": zstandard.compress} if path.suffix == ".zst" else {}
    path.write_bytes(packers.get(path.suffix, bytes)(data.encode()))


def test_own_files_are_no_inputs(tmp_path: Path, monkeypatch, caplog) -> None:
    """Files that this program wrote are skipped among others, and refused alone."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.jsonl", "prepare.changes.jsonl"):
        Path(name).write_text('{"text": "a"}\n')
    assert [input.path for input in find_inputs(["a.jsonl", "prepare.changes.jsonl"])] == ["a.jsonl"]
    assert "prepare.changes.jsonl" in caplog.text
    with pytest.raises(InputError, match="this program's own"):
        find_inputs(["prepare.changes.jsonl"])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"keep_shards": True, "skip_bad": True},
        {"shuffle": True, "keep_shards": True},
        {"layout": "npy", "index": True},
        {"layout": "llmc", "names": "fineweb", "index": True},
        {"tokenizer": "chars", "index": True},
    ],
    ids=str,
)
def test_what_a_run_writes_is_no_input(options: dict[str, Any], tmp_path: Path, monkeypatch) -> None:
    """A shell's `data/*` with outputs in `data`: whatever a run has there, the same command continues."""
    lines = [json.dumps({"text": f"Document {i} {'again ' * (i % 9)}"}) for i in range(300)]
    (corpus := tmp_path / "c.jsonl").write_text("\n".join([*lines, *["no record"] * ("skip_bad" in options)]))
    monkeypatch.setattr(run, "COMMIT_SECONDS", 0.0)
    seen, sync, limit = set[Path](), files.sync_file, 6
    arguments: dict[str, Any] = {"shard_tokens": 500, **options}

    def sync_some(fd: int) -> None:
        nonlocal limit
        seen.update(tmp_path.iterdir())
        sync(fd)
        limit -= 1
        if limit == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(files, "sync_file", sync_some)
    with pytest.raises(KeyboardInterrupt):
        prepare_in_blocks(1000, corpus, tmp_path, **arguments)
    assert any(path.suffix == ".part" for path in tmp_path.iterdir())
    prepare_in_blocks(1000, sorted(tmp_path.iterdir()), tmp_path, **arguments)
    seen.update(tmp_path.iterdir())
    assert [input.path for input in find_inputs(sorted(map(str, seen)))] == [str(corpus)]
    assert {path for path in tmp_path.rglob("*") if path.suffix == ".index"} or "index" not in options


@pytest.mark.parametrize("names", [("train-0.jsonl", "test-0.jsonl"), ("train/0.jsonl", "validation/0.jsonl")])
def test_several_splits_are_noted(tmp_path: Path, monkeypatch, caplog, names: tuple[str, str]) -> None:
    """In a folder with train and test, both are read, and a note says how to read one alone."""
    monkeypatch.chdir(tmp_path)
    for name in names:
        write_as(Path("d", name))
    assert len(find_inputs(["d"])) == 2
    only = caplog.text.partition("for one alone: ")[2].strip().strip("'")
    assert [Path(input.path) for input in find_inputs([only])] == [Path("d", names[0])]


@pytest.mark.parametrize(
    "name, meant",
    [
        ("HuggingFaceFW/fineweb-edu", "hf://datasets/HuggingFaceFW/fineweb-edu"),
        ("huggingface.co/datasets/a/b", "hf://datasets/a/b"),
        ("sample/10BT", "did you mean fineweb-edu:sample-10BT "),
        ("corpus.json", "did you mean corpus.jsonl?"),
        ("CORPUS.jsonl", "did you mean corpus.jsonl?"),
    ],
)
def test_what_was_meant(tmp_path: Path, monkeypatch, name: str, meant: str) -> None:
    """For a name that is nearly a file's, or a dataset's, the advice has the right one."""
    monkeypatch.chdir(tmp_path)
    write_as(Path("corpus.jsonl"))
    with pytest.raises(InputError, match="no such file") as caught:
        find_inputs([name])
    assert meant in caught.value.hint


def test_the_name_of_a_file_at_a_url_is_mended_where_it_is_fetched() -> None:
    """What is at a URL cannot be renamed here."""
    with pytest.raises(InputError, match=r"a parquet file, though .*\n  fetch it as c\.parquet, and name that"):
        find_format("https://example.org/c.txt", b"PAR1\x15\x04")


def test_json_of_several_lines_is_a_corpus_and_so_is_damaged_json(tmp_path: Path) -> None:
    """In a folder, `.json` of one line without text is left out, nothing else that is JSON Lines."""
    texts = {"a.json": '{"n": 1}\n{"n": 2}\n', "b.json": '{"n": 1}\n', "c.json": '{"n": }'}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    found, left_out = without_metadata([tmp_path / name for name in (*texts, "d.txt")])
    assert [path.name for path in found] == ["a.json", "c.json", "d.txt"] and [path.name for path in left_out] == [
        "b.json"
    ]


def test_a_pattern_does_not_match_what_a_run_wrote(tmp_path: Path) -> None:
    """`*.jsonl` is no log of changes."""
    for name in ("c.jsonl", "prepare.changes.jsonl"):
        (tmp_path / name).write_text('{"text": "one"}\n')
    assert [input.path for input in find_inputs([str(tmp_path / "*.jsonl")])] == [str(tmp_path / "c.jsonl")]


def test_a_broken_link_beside_the_script(tmp_path: Path) -> None:
    """What cannot be opened is nothing that a command could convert."""
    (tmp_path / "a.zip").symlink_to(tmp_path / "gone")
    assert default_names(tmp_path) == [DEFAULT_CORPUS]


def test_a_table_with_odd_quotes() -> None:
    """Quotes in a table with tabs that quoting cannot explain are part of its cells."""
    found = find_foreign(b'a\tb\n"x"y\tz\n1\t2\n', ".tsv")
    assert found and "QUOTE_NONE" not in found.kind and "quoting=3" in found.command
