"""C9: what a message says to type works when it is typed.

Each case provokes an error by real input, does what its hint says, and sees a whole result. Every place in the package
that gives a hint has a case here, or says below what else holds it: a new hint without either fails.
"""

from __future__ import annotations

import ast
import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from fineweb_stream import InputError, cli, open_documents, open_tokens, prepare
from fineweb_stream.support import errors, redact, shell

from .conftest import ROOT
from .helpers import System, write_jsonl, write_parquet

PACKAGE = ROOT / "fineweb_stream"
KINDS = {
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.PrepareError | errors.RecordError)
}
DOCS = [f"Document {i}, with a few words in it and some more." for i in range(80)]
TEXT = "\n\n".join(DOCS)


class Case(NamedTuple):
    """What is typed and refused; what the hint says is done (`do`), and typed (`right`).

    `file` and `hint` say which place in the package refuses. `do` is the pattern of a command in the message, or a
    function; `right` may have the groups of the pattern `typed` in the message.
    """

    file: str
    hint: str
    wrong: str
    right: str
    do: str | Callable[[], object] = ""
    typed: str = ""
    before: str = ""


def write_inputs() -> None:
    """Write what the cases are of into the current folder."""
    Path("c.txt").write_text(TEXT)
    Path("latin.txt").write_bytes(TEXT.encode() + "\n\ncafé".encode("latin-1"))
    write_jsonl(Path("d.jsonl"), DOCS)
    write_jsonl(Path("e.jsonl"), DOCS[:20])
    write_jsonl(Path("one.jsonl"), DOCS[:1])
    write_objects()
    write_jsonl(Path("blank.jsonl"), ["", " "])
    Path("lines.jsonl").write_text("\n\n")
    lines = Path("d.jsonl").read_text()
    Path("bad.jsonl").write_text(lines + "{not json}\n" + lines)
    Path("joined.jsonl").write_text(lines.replace("\n", ""))
    Path("array.jsonl").write_text(lines + '["one"]\n')
    Path("string.jsonl").write_text(lines + '"one"\n')
    Path("null.jsonl").write_text(lines + '{"text": null}\n')
    Path("first.jsonl").write_text('{"text": null}\n' + lines)
    Path("words.jsonl").write_text("words of no record\n" * 40)
    Path("body.jsonl").write_text(lines.replace('"text"', '"body"'))
    Path("c.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    Path("packed.txt").write_bytes(gzip.compress(TEXT.encode()))
    Path("plain.txt.gz").write_text(TEXT)
    Path("lines.parquet").write_text(lines)
    write_parquet(Path("d.parquet"), DOCS)
    write_parquet(Path("null.parquet"), [*DOCS, None])
    write_parquet(Path("none.parquet"), [None] * len(DOCS))
    write_parquet(Path("table.txt"), DOCS)
    Path("d.parquet.gz").write_bytes(gzip.compress(Path("d.parquet").read_bytes()))
    tokenizers = pytest.importorskip("tokenizers")
    ByteLevel = tokenizers.pre_tokenizers.ByteLevel
    bare = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate(ByteLevel.alphabet())}, []))
    bare.pre_tokenizer = ByteLevel(add_prefix_space=False)
    bare.save("bare.json")
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"body": DOCS, "n": range(len(DOCS))}), "body.parquet")
    pq.write_table(pa.table({"text": [doc.encode() for doc in DOCS] + [b"caf\xe9"]}), "bytes.parquet")


def write_objects() -> None:
    """Write files of one object that holds the documents, in various ways, and lines of lists."""
    records = [{"text": doc} for doc in DOCS]
    objects = {
        "held": {"name": "all", "types": [{"n": 1}], "inner": {"results": records}},
        "named": {f"no. {i}": record for i, record in enumerate(records)},
        "columns": {"id": {str(i): i for i, _ in enumerate(DOCS)}, "text": dict(enumerate(DOCS))},
        "texts": {"text": DOCS},
    }
    for name, held in objects.items():
        Path(f"{name}.jsonl").write_text(json.dumps(held))
    chats = [json.dumps({"id": "a", "turns": [record, record]}) for record in records]
    Path("chats.jsonl").write_text("\n".join(chats))


DONE = "d.jsonl"
SKIP = "skip .*(--skip-bad)"
CUT, CP = "cp d.parquet half.parquet; truncate -s 900 half.parquet", lambda: shutil.copy("d.parquet", "half.parquet")
CUT_GZ, CP_GZ = "cp c.txt.gz half.txt.gz; truncate -s 150 half.txt.gz", lambda: shutil.copy("c.txt.gz", "half.txt.gz")
CUT_RECORD = "truncate -s 40 out/prepare.json"
FOLDER = "mkdir -p out/train.bin"
CASES = [
    Case("api.py", "'leave one out'", "d.jsonl --val e.jsonl --val-ratio 0.1", "d.jsonl --val e.jsonl"),
    Case("api.py", "leave out one", "d.jsonl --index --eot before", "d.jsonl --index"),
    Case(
        "output/files.py",
        "make the folder that it leads to",
        "d.jsonl --out gone/a",
        "d.jsonl --out gone/a",
        do=lambda: Path("nowhere").mkdir(),
        before="ln -s nowhere gone",
    ),
    Case("api.py", "--out names the folder", "d.jsonl --out c.txt", "d.jsonl --out c"),
    Case("inputs/sources.py", "say what separates documents", "c.txt --shuffle", r"c.txt --shuffle --separator '\n\n'"),
    Case("api.py", "it has its own text: leave one out", "d.jsonl --demo", "--demo"),
    Case("cli.py", "name the inputs before --val", "--val e.jsonl d.jsonl", "d.jsonl --val e.jsonl"),
    Case("inputs/column.py", "if another has the text", "null.parquet", "null.parquet {0}", typed=SKIP),
    Case("inputs/column.py", "if another has the text", "none.parquet", "none.parquet --text-column id"),
    Case("inputs/column.py", "if data is None else how", "bytes.parquet", "bytes.parquet --errors replace"),
    Case("inputs/decoding.py", "_NOT_UTF8", "latin.txt", "latin.txt --errors ignore"),
    Case(
        "inputs/decoding.py",
        "_NOT_UTF8",
        "latin.txt",
        "NEW",
        do=lambda: subprocess.run("iconv -f cp1252 -t utf-8 latin.txt > NEW", shell=True, check=True),
    ),
    Case("inputs/discover.py", "check the pattern", "'x*.jsonl'", "'d*.jsonl'"),
    Case("inputs/discover.py", "_meant(path)", "d.json", "{0}", typed=r"did you mean (\S+?)\?"),
    Case("inputs/discover.py", "_meant(path)", "d.jsonl results", "d.jsonl {0}", typed=r"there: (--out \S+)"),
    Case("inputs/discover.py", "_meant(path)", "d.jsonl --val .2", "d.jsonl {0}", typed=r"mean (--val-ratio .*)\?"),
    Case("inputs/kind.py", "hint", "d.parquet.gz", "new_d.parquet", do=r"unpack it: (.*)"),
    Case("inputs/formats.py", "or use --format", "table.txt", "table.parquet", do=r"(mv [^;]*)"),
    Case("inputs/formats.py", "or use --format", "table.txt", "table.txt {0}", typed="(--format .*)"),
    Case("inputs/formats.py", "or use --format", "lines.parquet", "new_lines.jsonl", do=r"(mv [^;]*)"),
    Case("inputs/formats.py", "or use --format", "lines.parquet", "lines.parquet {0}", typed="(--format .*)"),
    Case("inputs/formats.py", "_rename(name, (path.stem", "packed.txt", "packed.txt.gz", do=r"(mv .*)"),
    Case("inputs/formats.py", "_rename(name, (path.stem", "packed.txt --format text", "packed.txt.gz", do="(mv .*)"),
    Case("inputs/formats.py", "leave out --format parquet", "d.jsonl --format parquet", "d.jsonl"),
    Case("remote/hub.py", "leave out {url[:7]}", "file://d.jsonl", "d.jsonl"),
    Case(
        "tokenizer/tokenizer_json.py",
        "add one: {_ADD_EOT}",
        "d.jsonl --tokenizer bare.json --eot-id 0",
        "d.jsonl --tokenizer bare.json",
        do=r"add one: (.*)",
    ),
    Case("inputs/formats.py", "_rename(name, (path.stem", "plain.txt.gz", "plain.txt", do=r"(mv .*)"),
    Case("inputs/jsonl.py", "hint", "bad.jsonl", "bad.jsonl {0}", typed=SKIP),
    Case("inputs/jsonl.py", "hint", "joined.jsonl", "NEW", do=r"\((jq .*) writes them so"),
    Case("inputs/jsonl.py", "hint", "first.jsonl", "first.jsonl {0}", typed=SKIP),
    Case("inputs/jsonl.py", "hint", "e.jsonl words.jsonl", "e.jsonl words.jsonl {0}", typed=SKIP),
    Case("inputs/jsonl.py", "hint", "words.jsonl", "words.jsonl {0}", typed="if it is plain text: (--format text)"),
    Case("inputs/jsonl.py", "_AS_TEXT", "array.jsonl", "array.jsonl {0}", typed=SKIP),
    Case("inputs/jsonl.py", "_AS_TEXT", "string.jsonl", "string.jsonl {0}", typed=SKIP),
    Case("inputs/jsonl.py", "_AS_TEXT", "string.jsonl", "string.jsonl {0}", typed="(--format text)"),
    Case("inputs/jsonl.py", "hint", "null.jsonl", "null.jsonl {0}", typed=SKIP),
    Case("inputs/jsonl.py", "hint", "body.jsonl", "body.jsonl {0}", typed=r"(--text-column \S+)"),
    *(
        Case("inputs/jsonl.py", "hint", f"{name}.jsonl", "NEW", do="holds: (jq .*)")
        for name in ("held", "named", "columns", "texts", "chats")
    ),
    Case("inputs/column.py", "hint", "body.parquet", "body.parquet {0}", typed=r"(--text-column \S+)"),
    Case("inputs/column.py", "hint", "d.parquet body.parquet", "d.parquet body.parquet {0}", typed=SKIP),
    Case("inputs/sources.py", "split the text into documents", "c.txt d.jsonl", r"c.txt d.jsonl --separator '\n\n'"),
    Case("inputs/sources.py", "leave it out", "d.jsonl --val-at end", "d.jsonl"),
    Case("inputs/sources.py", "save or unpack it", "c.txt.gz --val-at end", "c.txt.gz"),
    Case(
        "inputs/sources.py",
        "save or unpack it",
        "c.txt.gz --val-at end",
        "c2.txt --val-at end",
        do=lambda: Path("c2.txt").write_bytes(gzip.decompress(Path("c.txt.gz").read_bytes())),
    ),
    Case("inputs/discover.py", "name other inputs", "d.jsonl --val d.jsonl", "d.jsonl --val e.jsonl"),
    Case(
        "inputs/discover.py",
        "fetch it again, or leave it out",
        "nothing.jsonl",
        "d.jsonl",
        before="touch nothing.jsonl",
    ),
    *(
        Case("inputs/discover.py", "or name {how}", "odd", "{0}", typed=r"or name others: (\S+)", before=before)
        for before in (
            "mkdir odd; cp c.txt odd/c.text; touch odd/empty.text",
            "mkdir -p odd/AA; cp d.jsonl odd/AA/wiki_00; cp e.jsonl odd/README.md; cp d.jsonl odd/state.json",
        )
    ),
    Case("inputs/parquet.py", "fetch the file again", "half.parquet", "half.parquet", do=CP, before=CUT),
    Case(
        "inputs/parquet.py",
        "fetch the file again",
        "d.parquet half.parquet",
        "d.parquet half.parquet {0}",
        typed=SKIP,
        before=CUT,
    ),
    Case("inputs/codecs.py", "hint", "half.txt.gz", "half.txt.gz", do=CP_GZ, before=CUT_GZ),
    Case("output/files.py", "it is left alone: move", "d.jsonl", "mv out/train.bin away; d.jsonl", before=FOLDER),
    Case("output/files.py", "it is left alone: move", "d.jsonl", "d.jsonl --out another", before=FOLDER),
    Case("output/manifest.py", "_AWAY", "d.jsonl", "mv out away; d.jsonl", before=f"{DONE}; {CUT_RECORD}"),
    Case("output/manifest.py", "_AWAY", "d.jsonl", "d.jsonl --out new", before=f"{DONE}; {CUT_RECORD}"),
    Case("pipeline/budget.py", "give it more with --memory", "d.jsonl --memory 60MB", "d.jsonl --memory 400MB"),
    Case(
        "pipeline/fits.py",
        "give the shards a folder",
        "d.jsonl --layout npy",
        "d.jsonl --layout npy {0}",
        typed=r"(--out \S+)",
        before="mkdir out; cp c.txt out/trainer.py",
    ),
    Case(
        "pipeline/report.py",
        "or raise --val-ratio",
        "c.txt --val-at end --val-ratio 0.0001",
        "c.txt --val-at end --val-ratio 0.1",
    ),
    Case("memory/guard.py", "hint", "d.jsonl --memory 4", "d.jsonl --memory {0}", typed=r"mean (\S+)\?"),
    Case("memory/guard.py", "hint", "d.jsonl --memory 1,5GB", "d.jsonl --memory {0}", typed=r"point: (\S+)"),
    Case("memory/guard.py", "hint", "d.jsonl --memory much", "d.jsonl --memory {0}", typed=r"like (\S+) or"),
    Case(
        "output/own.py",
        "it is left alone, even with --overwrite",
        "d.jsonl",
        "d.jsonl",
        do=lambda: Path("out/train.bin").rename("elsewhere"),
        before="mkdir out && echo mine > out/train.bin",
    ),
    Case(
        "output/own.py",
        "it is left alone, even with --overwrite",
        "d.jsonl",
        "d.jsonl --out other",
        before="mkdir out && echo mine > out/train.bin",
    ),
    Case(
        "inputs/discover.py", "name text, jsonl or parquet", "out/train.bin --out o2", "d.parquet --out o2", before=DONE
    ),
    Case(
        "output/resume.py", "it is left alone: choose", "d.jsonl --seed 1", "d.jsonl --seed 1 --overwrite", before=DONE
    ),
    Case("output/resume.py", "it is left alone: choose", "d.jsonl --seed 1", "d.jsonl --seed 1 --out new", before=DONE),
    Case("output/resume.py", "it is left alone: choose", "d.jsonl --seed 1", "d.jsonl", before=DONE),
    Case("output/resume.py", "none are removed", "d.jsonl --max-tokens 5", "d.jsonl", before=DONE),
    Case(
        "output/resume.py",
        "none are removed",
        "d.jsonl --max-tokens 5",
        "d.jsonl --max-tokens 5 --overwrite",
        before=DONE,
    ),
    Case(
        "output/resume.py",
        "start over with --overwrite, or",
        "d.jsonl --shuffle",
        "d.jsonl --shuffle --overwrite",
        before="d.jsonl --shuffle --max-tokens 300",
    ),
    Case("output/resume.py", "make it again", "d.jsonl", "d.jsonl --overwrite", before="d.jsonl; rm out/train.bin"),
    Case("output/verify.py", "name its folder with --out", "--verify --out no", "--verify --out out", before=DONE),
    Case(
        "output/resume.py",
        "make it again",
        "--verify",
        "d.jsonl --overwrite; --verify",
        before="d.jsonl; rm out/val.bin",
    ),
    *(
        Case(file, hint, wrong, "mv out/train.bin elsewhere; d.jsonl --overwrite; --verify", before=f"d.jsonl; {spoil}")
        for file, hint, wrong, spoil in (
            ("output/resume.py", "make it again", "--verify", "truncate -s 10 out/train.bin"),
            ("output/resume.py", "make it again", "--verify", "printf abc >> out/train.bin"),
            ("output/verify.py", "_CHANGED", "--verify", "printf ab | dd of=out/train.bin conv=notrunc"),
            ("output/resume.py", "make it again", "d.jsonl", "truncate -s 10 out/train.bin"),
        )
    ),
    Case("pipeline/settings.py", "write it like 64x1024x8", "d.jsonl --for 64", "d.jsonl --for 1x32x1"),
    Case(
        "pipeline/fits.py",
        "or another --for",
        "d.jsonl --layout llmc --val-ratio 0.01 --for 1x64x1",
        "d.jsonl --layout llmc --val-ratio 0.01 --for 1x64x1 {0}",
        typed=r"(--val-tokens \d+)",
    ),
    Case("pipeline/plan.py", "try --val-tokens", "d.jsonl --val-tokens 90000", "d.jsonl {0}", typed=r"try (--val.*)"),
    Case("pipeline/report.py", "name other files", "blank.jsonl", "d.jsonl"),
    Case(
        "pipeline/report.py",
        "raise --max-tokens",
        "blank.jsonl d.jsonl --max-tokens 1",
        "blank.jsonl d.jsonl --max-tokens 100",
    ),
    Case("pipeline/report.py", "name other files", "d.jsonl --val lines.jsonl", "d.jsonl --val e.jsonl"),
    Case(
        "pipeline/report.py",
        "give the one that is between documents",
        "c.txt --separator '<|>'",
        r"c.txt --separator '\n\n'",
    ),
    Case("pipeline/report.py", "give the one that is between documents", "c.txt --separator '<|>'", "c.txt"),
    Case("pipeline/report.py", "add documents", "one.jsonl", "one.jsonl d.jsonl"),
    Case(
        "pipeline/settings.py",
        "try --layout llmc",
        "d.jsonl --layout npy --names fineweb",
        "d.jsonl {0}",
        typed="try (.*)",
    ),
    Case(
        "pipeline/settings.py",
        "<|endoftext|>",
        r"c.txt --separator '\x'",
        "c.txt --separator {0}",
        typed=r"write it like (\S+) or",
    ),
    Case(
        "pipeline/settings.py",
        "or leave it out for one long text",
        "c.txt --separator ''",
        "c.txt --separator {0}",
        typed=r"write it like ([^\s,]+), or",
    ),
    Case("pipeline/settings.py", "or leave it out for one long text", "c.txt --separator ''", "c.txt"),
    Case("support/units.py", "error.hint", "d.jsonl --val-ratio 5", "d.jsonl d.parquet --val-ratio 0.0005"),
    Case("support/units.py", "hint", "d.jsonl --max-tokens 1,5K", "d.jsonl --max-tokens {0}", typed=r"point: (\S+)"),
    Case("support/units.py", "hint", "d.jsonl --max-tokens x", "d.jsonl --max-tokens {0}", typed=r"like (\w+),"),
    Case("support/units.py", "hint", "d.jsonl --val-ratio 0,2", "d.jsonl --val-ratio {0}", typed=r"point: (\S+)"),
    Case("support/units.py", "try 0.0005", "d.jsonl --val-ratio 5", "d.jsonl --val-ratio {0}", typed=r"try (\S+)"),
    Case("pipeline/settings.py", "leave out --{option}", "c.txt --val-at end --val-tokens 50", "c.txt --val-at end"),
    Case(
        "pipeline/settings.py",
        "'try 100M'",
        "d.jsonl --layout llmc --shard-tokens 9G",
        "d.jsonl --layout llmc --shard-tokens {0}",
        typed=r"try (\S+)",
    ),
    Case(
        "tokenizer/tokenizer.py",
        "the engines are",
        "d.jsonl --engine fast",
        "d.jsonl --engine {0}",
        typed=r"auto, (\w+)",
    ),
    Case("tokenizer/plain.py", "leave it out", "d.jsonl --tokenizer bytes --eot-id 7", "d.jsonl --tokenizer bytes"),
    Case("tokenizer/load.py", "leave it out", "d.jsonl --eot-id 7", "d.jsonl"),
    Case("tokenizer/load.py", "leave it out", "d.jsonl --pattern x", "d.jsonl"),
    Case(
        "tokenizer/ranks.py",
        "bytes, chars",
        "d.jsonl --tokenizer gpt9",
        "d.jsonl --tokenizer {0}",
        typed=r"(bytes), chars",
    ),
]

ELSEWHERE: dict[str, list[tuple[str, str]]] = {
    "What only a script can pass: the hint lists what there is.": [
        ("api.py", "'give it one of concurrent.futures'"),
        ("inputs/discover.py", "'give the name; - is standard input'"),
        ("inputs/discover.py", "'give a name, or a list of names'"),
        ("output/files.py", "out='.' is the current folder"),
        ("token_files/loader.py", "open it first: open_tokens("),
        ("api.py", "write it like cluster="),
        ("support/units.py", "'write True or False'"),
        ("inputs/discover.py", "'check the name'"),
        ("output/files.py", "'name one, and copy the outputs from there'"),
        ("pipeline/settings.py", "'write all of it'"),
        ("pipeline/settings.py", "f'at most {MAX_SEPARATOR:,}'"),
        ("inputs/discover.py", "f\"the formats are {', '.join(SUFFIX_OF_FORMAT)}\""),
        ("inputs/discover.py", "'name files, folders or globs, or - for standard input'"),
        ("support/units.py", "f'write it like {least or 0} or 42'"),
        ("pipeline/settings.py", "'write it like text or text,content'"),
        ("pipeline/settings.py", "'strict stops at the first'"),
        ("pipeline/settings.py", "f\"the layouts are {', '.join(TYPED_LAYOUTS)}\""),
        ("pipeline/settings.py", "', '.join(EOT_PLACES)"),
        ("pipeline/settings.py", "' or '.join(VAL_PLACES)"),
        ("pipeline/settings.py", "f\"write it like {name}='...'\""),
        ("pipeline/settings.py", "'try 100M'"),
    ],
    "A package, or a file of this one, has to be missing: test_packaging, test_program, test_encoder.": [
        ("cluster/client.py", "'pip install -U distributed'"),
        ("inputs/codecs.py", "'pip install -U zstandard'"),
        ("inputs/parquet.py", "'pip install -U pyarrow'"),
        ("remote/hub.py", "'pip install -U huggingface_hub urllib3'"),
        ("token_files/plot.py", "'pip install -U matplotlib'"),
        ("tokenizer/encoder.py", "f'pip install gigatoken, or choose --engine {tokenizer.reference}'"),
        ("tokenizer/engines.py", "reinstall it (pip install --force-reinstall gigatoken), o"),
        ("tokenizer/gpt2.py", "copy the whole folder fineweb_stream/ again, the .npy file i"),
        ("tokenizer/tokenizer_json.py", "'pip install -U tokenizers'"),
    ],
    "Tested where the rest of it is: test_records, test_program, test_parquet_footers, test_bad_input.": [
        ("cli.py", "did you mean {program()} {command} {what}?"),
        ("cli.py", "hint"),
        ("inputs/discover.py", "'remove it, or repair it'"),
        ("inputs/discover.py", "how"),
        ("output/manifest.py", "_CONTINUES"),
        ("output/resume.py", "put it back, or move these files away"),
        ("inputs/discover.py", "is a shell variable empty?"),
        ("output/files.py", "is a shell variable empty?"),
        ("inputs/parquet.py", "rewrite the file with another encoding"),
        ("inputs/parquet.py", "write it again without encryption"),
    ],
    "Of standard input, which a process of its own has: test_program, test_stream_val, test_bad_input.": [
        ("cli.py", "name it: {program()} - or {program()}"),
        ("pipeline/report.py", "add text, or lower"),
        ("inputs/discover.py", "'it can be read once'"),
        ("inputs/discover.py", "'save it to a file, and name that'"),
        ("inputs/discover.py", "_how_to_read(path, info.st_mode)"),
        ("inputs/standard_input.py", "pipe text into it: COMMAND | {program()} -"),
        ("inputs/standard_input.py", "'it can be read once: put the text in a file'"),
        ("pipeline/vocabulary.py", "'put the text in a file'"),
    ],
    "A scheduler and workers have to be lost, or to lack something: test_cluster.": [
        ("cluster/client.py", "their logs say why; if memory ran out: dask worker --memory"),
        ("cluster/client.py", "'start it again, or go on without --cluster'"),
        ("cluster/client.py", "hint"),
        ("cluster/client.py", "'as in --cluster tcp://host:8786'"),
        ("cluster/client.py", "'start one (dask scheduler) and give the address it prints'"),
        ("cluster/client.py", "f'start some: {start}'"),
        ("cluster/needs.py", "missing[1]"),
    ],
    "Another process, user, version or disk is in the way: test_lock, test_disk_full, test_whose, test_resume.": [
        ("output/manifest.py", "continue with that version, or"),
        ("pipeline/failures.py", "put it back, and the same command continues"),
        ("output/own.py", "give the input another name"),
        ("inputs/discover.py", "'check the path, and the permissions of its folders'"),
        ("inputs/parquet.py", "check the disk, and run the command again"),
        ("inputs/discover.py", '"check the file\'s permissions"'),
        ("inputs/storage.py", "hint"),
        ("output/files.py", "the file was changed by something else: start over with --ov"),
        ("output/files.py", "put it back, and the same command continues; without it, sta"),
        ("output/files.py", "'move it away, or choose another folder with --out'"),
        ("output/files.py", "hint"),
        ("output/files.py", "'move it away'"),
        ("output/files.py", "'move it away, or choose another --out'"),
        ("output/files.py", "the file was changed by something else: move it away, then s"),
        ("output/lock.py", "'another user works in this folder: choose one with --out'"),
        ("output/lock.py", "'move it away, or choose another folder with --out'"),
        ("output/lock.py", "wait for it or stop it; or give this one another folder with"),
        ("pipeline/plan.py", "raise that limit, or use --layout npy --shard-tokens"),
        ("pipeline/plan.py", "'make room, or choose another disk with --out'"),
    ],
    "Memory has to be short: test_memory, test_guard, test_amplifiers, test_bad_input.": [
        ("inputs/jsonl.py", "'give it more with --memory'"),
        ("inputs/parquet.py", "give it more with --memory, or rewrite the file with smal"),
        ("pipeline/failures.py", "raise the limit (ulimit -v or -u, a container"),
        ("pipeline/failures.py", "f'the traceback is in {path}'"),
        ("pipeline/failures.py", "make another executor"),
        ("pipeline/failures.py", "'the traceback could not be written'"),
        ("pipeline/watch.py", "'free some, or set --memory, --workers or --engine tiktoken'"),
        ("pipeline/worker.py", "'give it more with --memory'"),
    ],
    "Commands for what is no text: test_foreign runs each of them.": [
        ("inputs/kind.py", "hint"),
        ("inputs/decoding.py", "{how}; --errors replace reads it"),
        ("inputs/discover.py", "hint"),
    ],
    "Files change in the midst, or billions of tokens come: test_resume, test_bad_input, test_val_files.": [
        ("pipeline/plan.py", "name less text with --val"),
        ("inputs/storage.py", "once it is complete, the same command continues"),
        ("pipeline/iterate.py", "'once it is complete, start over'"),
        ("inputs/storage.py", "'it was there at the start: put it back'"),
        ("output/shards.py", "start over with --overwrite and a lower --val-ratio or --val"),
        ("output/verify.py", "'the command that began it continues it'"),
    ],
    "The hint of another place, with the file and the record.": [
        ("pipeline/worker.py", "error.hint"),
    ],
    "A server has to answer so: test_remote, test_remote_runs, test_hub_server, test_connections.": [
        ("cli.py", "put train_fineweb.txt or input.txt there"),
        ("remote/hub.py", "'check HF_ENDPOINT'"),
        ("remote/hub.py", "'as in HF_ENDPOINT=https://huggingface.co'"),
        ("remote/hub.py", "'check it'"),
        ("remote/hub.py", "'check the name'"),
        ("remote/hub.py", '"name each file\'s address"'),
        ("remote/hub.py", "'as in fineweb-2:deu_Latn: ISO 639-3 and the script'"),
        ("remote/hub.py", "'unset it, or name local files'"),
        ("remote/hub.py", "'hf://datasets/OWNER/NAME/PATH'"),
        ("remote/hub.py", "'https://HOST/PATH'"),
        ("remote/hub.py", "CHANGED"),
        ("remote/hub.py", "'*, ?, ** for any folders, [a-z]'"),
        ("remote/hub.py", "'hf://, https://, s3://, gs:// or what fsspec knows'"),
        ("remote/hub.py", '"log in with the storage\'s own tool"'),
        ("remote/hub.py", "'unpack it, and name what was in it'"),
        ("remote/hub.py", "'check the network and the login'"),
        ("remote/retry.py", "_proxy=http://USER:PASSWORD@PROXY:PORT (in the password %40"),
        ("remote/retry.py", "check the network; the same command continues once it is bac"),
        ("remote/retry.py", "around"),
        ("remote/retry.py", "behind a proxy that has its own: SSL_CERT_FILE=/path/to/its/"),
        ("remote/retry.py", "'check it'"),
        ("inputs/storage.py", "CHANGED"),
        ("remote/hub.py", "hint"),
        ("remote/hub.py", "f'set HF_TOKEN again, or: {login_command()}'"),
        ("remote/hub.py", "'fetch it and name the local copy'"),
        ("inputs/discover.py", "'leave it out'"),
        ("remote/network.py", "'pip install -U urllib3'"),
        ("remote/retry.py", "hint"),
        ("remote/web.py", "'as in https_proxy=http://HOST:PORT, and likewise http_proxy'"),
        ("remote/web.py", "'check the address'"),
        ("remote/web.py", "CHANGED"),
        ("remote/web.py", "'check the name'"),
        ("remote/web.py", "'fetch it and name the local copy'"),
    ],
    "Of readers of what is made, not of a run: test_inspect, test_tokens, test_documents, test_loader, test_layouts.": [
        ("output/verify.py", "move it away, then make it: "),
        ("token_files/documents.py", "'see inspect'"),
        ("token_files/documents.py", "move it away, then {_make(named)}"),
        ("token_files/documents.py", "_make(named)"),
        ("token_files/documents.py", '"check the file\'s permissions"'),
        ("token_files/headers.py", "the prepare.json that was made with it says which tokenizer"),
        ("token_files/headers.py", "was it copied completely? Copy or make it again; text is mad"),
        ("token_files/headers.py", "'make it again, or name another file'"),
        ("token_files/headers.py", "'name another file'"),
        ("token_files/headers.py", "f'ids are one row of {dtype.name} ({dtype.str})'"),
        ("token_files/headers.py", ") converts GPT-2"),
        ("token_files/headers.py", "'copy or make it again'"),
        ("token_files/headers.py", "hint"),
        ("token_files/headers.py", "name its file, "),
        ("token_files/headers.py", "'name a file that prepare.py has made'"),
        ("token_files/joined.py", "hint"),
        ("token_files/joined.py", "'copy or make it again'"),
        ("token_files/loader.py", "f'rank is from 0 to world_size - 1, {self.world_size - 1}'"),
        ("token_files/loader.py", "'choose a smaller block_size, or other tokens'"),
        ("token_files/loader.py", "self.batch_size * self.world_size:,"),
        ("token_files/loader.py", "f'an epoch has {self.n_steps:,} steps'"),
        ("token_files/made_by.py", "'is it damaged?'"),
        ("token_files/open.py", "name the folder that prepare.py filled, or fill it: {program()} INPUT"),
        ("token_files/open.py", "'wait for it, or run its command again: it continues'"),
        ("token_files/open.py", "'train or val'"),
        ("token_files/open.py", "copy it there too; or, if a run was stopped while it merged,"),
        ("token_files/plot.py", "'leave out --plot'"),
        ("token_files/plot.py", "f\"these do: {', '.join(sorted(kinds))}\""),
        ("token_files/summary.py", ", --count at least 1"),
        ("token_files/joined.py", ": it has an unknown header, or another tokenizer or dtype ma"),
        ("token_files/documents.py", "'start over with --overwrite and without --eot'"),
    ],
    "A tokenizer's files, or an engine, have to be damaged or other than they say: test_tokenizers, test_encoder.": [
        ("pipeline/vocabulary.py", "name one with --eot-id"),
        ("pipeline/vocabulary.py", "split it into documents with --separator"),
        ("tokenizer/encoder.py", "take that text out, or choose another end-of-text"),
        ("tokenizer/tokenizer_json.py", "correct the id in it"),
        ("tokenizer/tokenizer_json.py", "'save it with tokenizers'"),
        ("tokenizer/encoder.py", ", which is slower and always right, and please report this t"),
        ("tokenizer/encoder.py", ", which is slower and always right, and please report this"),
        ("tokenizer/encoder.py", "'leave out eot=True'"),
        ("tokenizer/engines.py", "it may have a very long run of one character: split it (--sep"),
        ("tokenizer/engines.py", "f'choose --engine {tokenizer.reference}'"),
        ("tokenizer/load.py", "'put that one back, under the same path'"),
        ("tokenizer/load.py", "'put it, or a link to it, there'"),
        ("tokenizer/load.py", "'is it damaged?'"),
        ("tokenizer/load.py", "'name its tokenizer.json'"),
        ("tokenizer/load.py", "hint"),
        ("tokenizer/plain.py", "'start over with --overwrite'"),
        ("tokenizer/plain.py", "'use prepare or iter_ids'"),
        ("tokenizer/ranks.py", "download that file elsewhere, and put it there as"),
        ("tokenizer/ranks.py", "_PATTERNS"),
        ("tokenizer/engines.py", "'end the pattern with |(?s:.)'"),
        ("tokenizer/engines.py", "'choose another --tokenizer'"),
        ("tokenizer/tokenizer_json.py", "'set dropout to null in it'"),
        ("tokenizer/tokenizer_json.py", "'train it with initial_alphabet="),
        ("tokenizer/ranks.py", "'name another'"),
        ("tokenizer/ranks.py", "f'{top + 1} is the first above its ranks'"),
        ("tokenizer/ranks.py", "'is its file damaged? Delete it from the cache'"),
        ("tokenizer/ranks.py", "'name a .tiktoken file'"),
        ("tokenizer/ranks.py", '"write it as the vocabulary\'s own code does"'),
        ("tokenizer/tokenizer_json.py", "only byte-level BPE is exact for any text: GPT-2"),
        ("tokenizer/tokenizer_json.py", "'set add_prefix_space to false in it'"),
        ("tokenizer/tokenizer.py", "f'it has {known}'"),
        ("tokenizer/tokenizer_json.py", '"name Hugging Face\'s file of that name"'),
    ],
}
"""What other tests hold, or why nothing can be typed: places in the package, and a piece of their hints."""


@pytest.fixture
def sites(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[tuple[str, int]]]:
    """The places in the package at which errors were made."""
    found: set[tuple[str, int]] = set()
    for kind in (errors.PrepareError, errors.RecordError):
        original = kind.__init__

        def watched(self: Any, *args: Any, _original: Any = original, **options: Any) -> None:
            frame = sys._getframe(1)
            found.add((frame.f_code.co_filename, frame.f_lineno))
            _original(self, *args, **options)

        monkeypatch.setattr(kind, "__init__", watched)
    yield found


class Site(NamedTuple):
    """A call that makes an error with a hint: where it is, and the hint's source."""

    file: str
    first: int
    last: int
    hint: str

    def is_of(self, file: str, hint: str) -> bool:
        """Tell whether it is what a case or a reason speaks of, whatever quotes this Python writes f-strings with."""
        hint = hint.replace('"', "'")
        return self.file == file and (hint == self.hint or (len(hint) > 8 and hint in self.hint))


def find_sites() -> list[Site]:
    """Every place in the package that gives a hint."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in KINDS and len(node.args) > 1:
                hint = ast.unparse(node.args[-1]).replace('"', "'")
                found.append(Site(path.relative_to(PACKAGE).as_posix(), node.lineno, node.end_lineno or 0, hint))
    return found


SITES = find_sites()


def type_in(line: str) -> int:
    """Run what stands between semicolons as a user does: other commands by the shell, the rest by the program."""
    status = 0
    for part in line.split("; "):
        words = shlex.split(part)
        if words[0] in ("mkdir", "rm", "printf", "cp", "ln", "mv", "truncate", "touch"):
            subprocess.run(part, shell=True, check=True, stderr=subprocess.DEVNULL)
            continue
        out = [] if "--out" in words else ["--out", "out"]
        has_ratio = {"--val", "--val-ratio", "--val-tokens", "--verify"} & {*words}
        ratio = [] if has_ratio else ["--val-ratio", "0.2"]
        engine = (
            [] if "--engine" in words or "--tokenizer" in words or "--verify" in words else ["--engine", "tiktoken"]
        )
        try:
            status = status or cli.main([*words, *out, *ratio, *engine])
        except SystemExit as left:  # argparse's own
            status = int(left.code or 0)
    return status


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.file}: {case.wrong} -> {case.right}")
def test_what_a_hint_says_works(
    case: Case, sites: set[tuple[str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Refused at the place that the case speaks of; then the hint is done and typed: a whole result, nothing lost."""
    monkeypatch.chdir(tmp_path)
    write_inputs()
    if case.before:
        assert type_in(case.before) == 0
    sites.clear()
    capsys.readouterr()
    assert type_in(case.wrong) in (1, 2, 3, 4)
    said = capsys.readouterr().err
    made = [site for site in SITES if site.is_of(case.file, case.hint)]
    assert any(
        path == str(PACKAGE / site.file) and site.first <= line <= site.last for site in made for path, line in sites
    ), said
    if isinstance(case.do, str) and case.do:
        found = re.search(case.do, said)
        assert found, said
        subprocess.run(found[1].replace("OLD", case.wrong), shell=True, check=True)
    elif callable(case.do):
        case.do()
    words = re.search(case.typed, said)
    assert words, said
    assert type_in(case.right.format(*words.groups())) == 0, capsys.readouterr().err


def test_every_hint_is_here() -> None:
    """A place that gives a hint has a case above, or a reason why not; no case or reason speaks of none."""
    spoken_of = [(case.file, case.hint) for case in CASES] + [pair for pairs in ELSEWHERE.values() for pair in pairs]
    unheld = [site for site in SITES if not any(site.is_of(*pair) for pair in spoken_of)]
    assert not unheld, "\n".join(map(str, unheld))
    stale = [pair for pair in spoken_of if not any(site.is_of(*pair) for site in SITES)]
    assert not stale


def test_commands_for_packages_mend_them_too() -> None:
    """A package that is there, but was made for an older NumPy, cannot be imported either: only this replaces it."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")]
    handlers = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)]
    said = [text for node in handlers if "pip install" in (text := ast.unparse(node)) and "except ImportError" in text]
    assert said and not [text for text in said if "not installed" in text]
    assert not [text for text in said if not re.search("pip install (-U|--force-reinstall) ", text)]


def test_the_program_is_named_as_it_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some systems have only `python3`."""
    monkeypatch.setattr(sys, "argv", ["data/x/prepare.py"])
    for python, word in (("/usr/bin/python3", "python3"), ("/v/bin/python", "python"), ("", "python")):
        monkeypatch.setattr(sys, "executable", python)
        assert shell.program() == f"{word} data/x/prepare.py"
    monkeypatch.setattr(sys, "argv", ["train.py"])
    assert shell.program() == "python -m fineweb_stream"


@pytest.mark.skipif(os.name == "nt", reason="the words of another shell")
def test_paths_in_commands_are_one_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a command has a path in it, one with a space can be typed as it stands."""
    monkeypatch.chdir(tmp_path)
    folder = Path("my data")
    (folder / "empty").mkdir(parents=True)
    np.array([1, 2, 50256], np.uint16).tofile(folder / "train.bin")
    (folder / "words.bin").write_text("some words " * 99)
    (folder / "train.jsonl").write_text("")
    (folder / "c.parquet.gz").write_bytes(gzip.compress(b"PAR1"))
    for call, path in (
        (lambda: open_documents(folder), folder / "train.bin"),
        (lambda: open_tokens(folder / "words.bin"), folder / "words.bin"),
        (lambda: open_tokens(folder / "empty"), folder / "empty"),
        (lambda: open_tokens(folder / "none.bin"), folder),
        (lambda: prepare(folder / "train.jsonl", folder, layout="npy"), folder / "shards"),
        (lambda: prepare(folder / "c.parquet.gz", folder / "out"), folder / "c.parquet.gz"),
    ):
        with pytest.raises(InputError) as caught:
            call()
        assert str(path) in shlex.split(caught.value.hint), caught.value.hint


@pytest.mark.skipif(os.name == "nt" or not shutil.which("bash"), reason="the words of another shell")
@pytest.mark.parametrize("name", [b"a\nb.txt", b"caf\xe9 it's.txt", b"\x1b[31m\\.txt", "\u202e.txt".encode()])
def test_names_that_a_message_cannot_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: bytes) -> None:
    """A command has them in escapes that a shell reads, not in those of Python: it works as it is printed."""
    monkeypatch.chdir(tmp_path)
    try:
        Path(os.fsdecode(name)).write_bytes(gzip.compress(TEXT.encode()))
    except OSError:
        pytest.skip("there are no such names here")
    with pytest.raises(InputError) as caught:
        prepare(os.fsdecode(name), "out")
    printed = redact.escape(caught.value.hint.partition(": ")[2])
    subprocess.run(["bash", "-c", printed], check=True)
    assert os.listdir(b".") == [name + b".gz"]


def test_commands_on_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There, a name is one word for cmd.exe and PowerShell, and a command says which of them it is for."""

    class Windows(System):
        name = "nt"

    monkeypatch.setattr(shell, "os", Windows())
    for text, word in (
        (r"C:\data\Пушкин.txt", r"C:\data\Пушкин.txt"),
        (r"C:\my data\c.txt", r'"C:\my data\c.txt"'),
        ("R&D (1).txt", '"R&D (1).txt"'),
        ("a,b", '"a,b"'),
        ("a;b\\", '"a;b\\\\"'),
    ):
        assert shell.quoted(text) == word
    monkeypatch.chdir(tmp_path)
    Path("R&D.txt").write_text('[{"text": "one"}]')
    Path("c.txt").write_bytes(gzip.compress(b"words"))
    with pytest.raises(InputError, match=r'to jsonl \(in cmd.exe: PowerShell has no <\): .* < "R&D.txt" > "R&D.jsonl"'):
        prepare("R&D.txt", "out")
    with pytest.raises(InputError, match=r"give it the right ending: move c.txt c.txt.gz"):
        prepare("c.txt", "out")
