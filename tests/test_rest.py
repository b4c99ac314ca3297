"""`rest.bin`, `rest.npy`: what is too short for the layout's reader is kept beside the shards, and nothing is lost."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fineweb_stream import open_documents, open_tokens, prepare
from fineweb_stream.output import files
from fineweb_stream.output.index import index_path
from fineweb_stream.output.layouts import LAYOUTS
from fineweb_stream.output.manifest import read_record
from fineweb_stream.output.verify import verify
from fineweb_stream.pipeline import run

from .consumers.readers import READERS
from .helpers import prepare_in_blocks, read_ids, write_jsonl
from .test_layouts import read_llmc, read_npy
from .test_resume import prepare_some

pytestmark = pytest.mark.usefixtures("no_estimate", "no_hash_threads")

DOCS = [f"Document number {i} of a corpus, with a few words in it and some more. " * 3 for i in range(400)]
BATCH = (2, 64, 2)  # a file needs 257 tokens
OPTIONS: dict[str, Any] = {"shard_tokens": 4000, "val_tokens": 2000, "engine": "tiktoken", "fit": "2x64x2"}
SHUFFLED = pytest.mark.parametrize("shuffle", [False, True], ids=["in order", "shuffled"])


@pytest.fixture
def corpus_path(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "c.jsonl", DOCS)


@pytest.fixture(params=[name for name in LAYOUTS if name != "nanogpt"])
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def made(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".bin", ".npy")}


def read(path: Path) -> list[int]:
    return read_npy(path) if path.suffix == ".npy" else read_llmc(path)


@SHUFFLED
def test_shards_and_rest_are_all(shuffle: bool, layout: str, corpus_path: Path, tmp_path: Path, capsys) -> None:
    """The reader takes the folder; exact shards and then the rest are train.bin; it is told and on record."""
    out, kind = tmp_path / "out", LAYOUTS[layout]
    options = OPTIONS | {"max_tokens": 12_003, "shuffle": shuffle}
    result = prepare(corpus_path, out, layout=layout, **options)
    rest = out / kind.rest_name
    said = capsys.readouterr().out
    assert (
        f"warning: {rest} has the last 3 tokens of train, too few for a shard of {kind.reader}, which leaves it out\n"
        in said
    )
    assert said.count("warning: ") == 1, "of the rest"
    READERS[layout](out, *BATCH)
    prepare(corpus_path, tmp_path / "expected", quiet=True, **options)
    shards = [read(out / kind.shard_name(number)) for number in range(3)]
    assert [len(ids) for ids in shards] == [4000] * 3
    train = read_ids(tmp_path / "expected" / "train.bin")
    assert [*itertools.chain(*shards), *read(rest)] == train == np.asarray(open_tokens(out)).tolist()
    assert (result.train_tokens, result.rest_tokens) == (12_003, 3)
    assert json.loads((out / "prepare.json").read_bytes())["state"]["outputs"][rest.name]["tokens"] == 3
    assert str(rest) in "\n".join(verify(out))
    assert len(made(out)) == 5
    capsys.readouterr()
    assert prepare(corpus_path, out, layout=layout, **options) == result
    assert "already done" in (said := capsys.readouterr().out) and rest.name in said and said.count("warning: ") == 1
    prepare(corpus_path, out, layout=layout, **options | {"fit": "1x2"})
    assert (
        f"note: {rest.name} would be long enough for --for 1x2: --overwrite makes it a shard" in capsys.readouterr().out
    )
    prepare(corpus_path, out, layout=layout, overwrite=True, **options | {"fit": "1x2"})
    assert read(out / kind.shard_name(3)) == train[12_000:] and not rest.exists()


@pytest.mark.parametrize(
    ("options", "has_rest"),
    [
        ({"max_tokens": 12_256}, True),
        ({"max_tokens": 12_257}, False),
        ({"max_tokens": 12_000}, False),
        ({"max_tokens": 12_003, "fit": None}, False),
        ({"max_tokens": 300, "shard_tokens": 200, "fit": None}, False),
        ({"max_tokens": 4097, "fit": None, "shard_tokens": 5000}, False),
        ({"max_tokens": 5003, "fit": None, "shard_tokens": 5000}, True),
        ({"max_tokens": 12_003, "layout": "nanogpt", "keep_shards": True}, False),
    ],
)
def test_when_there_is_one(options: dict[str, Any], has_rest: bool, corpus_path: Path, tmp_path: Path) -> None:
    """A last shard with a token less than the reader needs; not the only shard, and not where all are too short."""
    prepare(corpus_path, tmp_path / "out", quiet=True, **OPTIONS | {"layout": "llmc"} | options)
    assert (tmp_path / "out" / "rest.bin").exists() is has_rest
    verify(tmp_path / "out")


@SHUFFLED
def test_thirty_resumes(shuffle: bool, layout: str, corpus_path: Path, tmp_path: Path) -> None:
    """Stopped at each place in turn, the files are those of one run."""
    options = OPTIONS | {"layout": layout, "max_tokens": 12_003, "shuffle": shuffle}
    prepare_in_blocks(2000, corpus_path, tmp_path / "expected", **options)
    for i in range(30):
        if prepare_some(corpus_path, tmp_path / "out", 1, block_bytes=600 + 50 * (i % 7), **options):
            break
    prepare(corpus_path, tmp_path / "out", quiet=True, **options)
    assert made(tmp_path / "out") == made(tmp_path / "expected")
    assert read_record(tmp_path / "out").state.outputs == read_record(tmp_path / "expected").state.outputs


@pytest.mark.parametrize("fit", [OPTIONS["fit"], "1x1"], ids=["same --for", "another"])
@SHUFFLED
def test_killed_while_names_are_given(fit: str, shuffle: bool, layout: str, corpus_path: Path, tmp_path: Path) -> None:
    """Before each rename of the end: what was decided stays, whatever --for the next command has."""
    options = OPTIONS | {"layout": layout, "max_tokens": 12_003, "shuffle": shuffle}
    prepare(corpus_path, tmp_path / "expected", quiet=True, **options)
    real = files.replace
    for n in itertools.count():
        out, calls = tmp_path / f"out{n}", itertools.count()

        def dying(*args: Any, n: int = n, calls: Any = calls) -> None:
            if next(calls) >= n:
                raise SystemExit
            real(*args)

        def merge(*args: Any, real_merge: Any = run.merge, dying: Any = dying, **kwargs: Any) -> None:
            patch.setattr(files, "replace", dying)
            real_merge(*args, **kwargs)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(run, "merge", merge)
            try:
                prepare(corpus_path, out, quiet=True, **options)
                break
            except BaseException:
                assert read_record(out).state.has_rest
        prepare(corpus_path, out, quiet=True, **options | {"fit": fit})
        assert made(out) == made(tmp_path / "expected")
    assert n > 2


@pytest.mark.parametrize("steps", [[12_003, 12_100, 14_000], [12_003, 16_003, 16_004], [4100, 4200, 8100]])
def test_max_tokens_may_rise(steps: list[int], layout: str, corpus_path: Path, tmp_path: Path) -> None:
    """A rest becomes a longer one, or part of a shard: the files are those of a run that had the limit at once."""
    options = OPTIONS | {"layout": layout}
    for step in steps:
        prepare_in_blocks(500, corpus_path, tmp_path / "out", max_tokens=step, **options)
        prepare_in_blocks(500, corpus_path, tmp_path / f"at{step}", max_tokens=step, **options)
        assert made(tmp_path / "out") == made(tmp_path / f"at{step}")
        assert (LAYOUTS[layout].rest_name in made(tmp_path / "out")) is (0 < step % 4000 < 257)
        verify(tmp_path / "out")


def test_another_run_leaves_none(layout: str, corpus_path: Path, tmp_path: Path) -> None:
    """--overwrite takes it away with the rest of a run."""
    prepare(corpus_path, tmp_path / "out", quiet=True, layout=layout, max_tokens=12_003, **OPTIONS)
    prepare(corpus_path, tmp_path / "out", quiet=True, layout=layout, max_tokens=12_000, overwrite=True, **OPTIONS)
    assert LAYOUTS[layout].rest_name not in made(tmp_path / "out") and len(made(tmp_path / "out")) == 4


def test_documents_go_on_into_the_rest(layout: str, corpus_path: Path, tmp_path: Path) -> None:
    """--index knows the ends that stand in it."""
    prepare(corpus_path, tmp_path / "out", quiet=True, layout=layout, max_tokens=12_100, index=True, **OPTIONS)
    prepare(corpus_path, tmp_path / "expected", quiet=True, max_tokens=12_100, index=True, **OPTIONS)
    found, expected = open_documents(tmp_path / "out"), open_documents(tmp_path / "expected")
    assert len(found) == len(expected)
    assert [ids.tolist() for ids in found] == [ids.tolist() for ids in expected]


def test_an_index_outlives_its_rest(layout: str, corpus_path: Path, tmp_path: Path) -> None:
    """Where shards have taken the place of the rest, its index stays, and takes no part."""
    out, options = tmp_path / "out", OPTIONS | {"layout": layout, "index": True, "quiet": True}
    for max_tokens in (12_003, 16_000):
        prepare(corpus_path, out, max_tokens=max_tokens, **options)
        assert index_path(out / LAYOUTS[layout].rest_name).exists()
    prepare(corpus_path, tmp_path / "expected", max_tokens=16_000, **options)
    assert [ids.tolist() for ids in open_documents(out)] == [
        ids.tolist() for ids in open_documents(tmp_path / "expected")
    ]


def test_a_run_with_a_rest_goes_on_after_stops(layout: str, corpus_path: Path, tmp_path: Path) -> None:
    """Stopped while --max-tokens adds to it, it knows its shards, and keeps the rest until that is replaced."""
    options = OPTIONS | {"layout": layout}
    prepare_in_blocks(600, corpus_path, tmp_path / "out", max_tokens=8003, **options)
    rest = made(tmp_path / "out")[LAYOUTS[layout].rest_name]
    while not prepare_some(corpus_path, tmp_path / "out", 4, block_bytes=600, max_tokens=16_003, **options):
        assert made(tmp_path / "out")[LAYOUTS[layout].rest_name] == rest
    prepare_in_blocks(600, corpus_path, tmp_path / "expected", max_tokens=16_003, **options)
    assert made(tmp_path / "out") == made(tmp_path / "expected")


def test_stopped_right_after_the_old_rest_was_deleted(
    layout: str, corpus_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A longer run whose shards leave none, stopped between the deletion of the old rest and its record, goes on."""
    options, remove, rest = OPTIONS | {"layout": layout}, files.remove, tmp_path / "out" / LAYOUTS[layout].rest_name
    prepare(corpus_path, tmp_path / "out", max_tokens=12_003, quiet=True, **options)

    def dying(path: Path) -> None:
        remove(path)
        if path == rest:
            raise KeyboardInterrupt

    monkeypatch.setattr(files, "remove", dying)
    with pytest.raises(KeyboardInterrupt):
        prepare(corpus_path, tmp_path / "out", max_tokens=13_000, quiet=True, **options)
    assert not rest.exists()
    monkeypatch.undo()
    prepare(corpus_path, tmp_path / "out", max_tokens=13_000, quiet=True, **options)
    prepare(corpus_path, tmp_path / "expected", max_tokens=13_000, quiet=True, **options)
    assert made(tmp_path / "out") == made(tmp_path / "expected")
