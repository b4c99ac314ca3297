"""`--eot`: the same ids, with end-of-text on the side where a trainer's own script puts it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken

from fineweb_stream import open_documents, prepare
from fineweb_stream.output.verify import verify
from fineweb_stream.support.errors import InputError
from fineweb_stream.token_files.documents import write_index
from fineweb_stream.tokenizer.gpt2 import EOT_ID

from .helpers import outputs, prepare_in_blocks, read_ids, write_jsonl
from .test_resume import DOCS, prepare_some

SIDES = {"after": ([], [EOT_ID]), "before": ([EOT_ID], []), "both": ([EOT_ID], [EOT_ID])}


def with_eot(reference: tiktoken.Encoding, documents: list[str], eot: str) -> list[int]:
    before, after = SIDES[eot]
    return [i for document in documents for i in [*before, *reference.encode_ordinary(document), *after]]


@pytest.mark.parametrize("eot", SIDES)
def test_documents_have_it_on_that_side(eot: str, reference: tiktoken.Encoding, tmp_path: Path) -> None:
    """For any block size, and blank documents too: each document's ids, with end-of-text on that side."""
    docs = [*DOCS[:60], "", "x", "", *DOCS[60:90]]
    path = write_jsonl(tmp_path / "c.jsonl", docs)
    options: dict[str, Any] = {"val_tokens": 1000, "shard_tokens": 1500, "engine": "tiktoken"}
    for block_bytes in (100, 1 << 20):
        out = tmp_path / f"out{block_bytes}"
        prepare_in_blocks(block_bytes, path, out, eot=eot, **options)
        val, train = read_ids(out / "val.bin"), read_ids(out / "train.bin")
        assert val + train == with_eot(reference, docs, eot)
        assert len(val) >= 1000
        verify(out)
        assert outputs(out) == outputs(tmp_path / "out100")


@pytest.mark.parametrize("eot", SIDES)
def test_interrupted_or_stopped_it_is_the_same(eot: str, tmp_path: Path) -> None:
    """A run that is stopped anywhere, or by --max-tokens, and continued gives the bytes of one run."""
    path = write_jsonl(tmp_path / "c.jsonl", DOCS)
    options: dict[str, Any] = {"val_ratio": 0.1, "shard_tokens": 1500, "eot": eot}
    prepare(path, tmp_path / "whole", quiet=True, engine="tiktoken", **options)
    assert not prepare_some(path, tmp_path / "a", 3, **options)
    assert prepare_some(path, tmp_path / "a", -1, **options)
    assert outputs(tmp_path / "a") == outputs(tmp_path / "whole")
    for n in (1, 777, 778, 779, 3000):
        prepare(path, tmp_path / "b", quiet=True, engine="tiktoken", max_tokens=n, **options)
        assert read_ids(tmp_path / "b" / "train.bin") == read_ids(tmp_path / "whole" / "train.bin")[:n]
        verify(tmp_path / "b")
    prepare(path, tmp_path / "b", quiet=True, engine="tiktoken", **options)
    assert outputs(tmp_path / "b") == outputs(tmp_path / "whole")


def llmc_script(reference: tiktoken.Encoding, documents: list[str], shard_tokens: int) -> list[bytes]:
    """llm.c's script, restated: end-of-text first, shards of a fixed length that cut documents."""
    ids = np.array(with_eot(reference, documents, "before"), "<u2")
    shards = [ids[place : place + shard_tokens] for place in range(0, len(ids), shard_tokens)]
    headers = [np.array([20240520, 1, len(shard), *[0] * 253], "<i4") for shard in shards]
    return [header.tobytes() + shard.tobytes() for header, shard in zip(headers, shards, strict=True)]


def test_as_llmc_does(reference: tiktoken.Encoding, tmp_path: Path) -> None:
    """If val ends with a document, llm.c's script and `--eot before --layout llmc` write the same bytes."""
    path = write_jsonl(tmp_path / "c.jsonl", DOCS)
    n = len(with_eot(reference, DOCS[:20], "before"))
    prepare(path, tmp_path / "out", quiet=True, layout="llmc", eot="before", val_tokens=n, shard_tokens=n)
    expected = llmc_script(reference, DOCS, n)
    made = [tmp_path / "out" / "val.bin", *sorted((tmp_path / "out").glob("train_shard_*.bin"))]
    assert [file.read_bytes() for file in made] == expected and len(expected) > 3


def test_what_cannot_be(tmp_path: Path) -> None:
    """An unknown place, another place than the run's, and an index with any place but `after` are refused."""
    path = write_jsonl(tmp_path / "c.jsonl", DOCS)
    with pytest.raises(InputError, match="eot='middle': no such place\n  after, before, both"):
        prepare(path, tmp_path / "out", eot="middle")
    with pytest.raises(InputError, match="--index and --eot before"):
        prepare(path, tmp_path / "out", eot="before", index=True)
    prepare(path, tmp_path / "before", quiet=True, eot="before", layout="llmc")
    for refused in (lambda: write_index(tmp_path / "before" / "val.bin"), lambda: open_documents(tmp_path / "before")):
        with pytest.raises(InputError, match="made with --eot before, and an index needs --eot after"):
            refused()
    prepare(path, tmp_path / "out", quiet=True)
    with pytest.raises(InputError, match="--eot was 'after' and is 'before'"):
        prepare(path, tmp_path / "out", eot="before", quiet=True)


def test_an_index_of_an_earlier_run_is_refused(tmp_path: Path) -> None:
    """--overwrite with another --eot deletes the indexes; one that is put back is refused."""
    path = write_jsonl(tmp_path / "c.jsonl", DOCS)
    prepare(path, tmp_path / "out", quiet=True, index=True)
    indexes = {index: index.read_bytes() for index in (tmp_path / "out").glob("*.index")}
    prepare(path, tmp_path / "out", eot="both", overwrite=True)
    assert len(indexes) == 2 and not any(index.exists() for index in indexes)
    for index, data in indexes.items():  # as from a backup
        index.write_bytes(data)
    for split in ("train", "val"):
        with pytest.raises(InputError, match="made with --eot both, and an index needs --eot after"):
            open_documents(tmp_path / "out", split)
