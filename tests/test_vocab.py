"""The embedded vocabulary is the official one."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
import tiktoken
import tiktoken.load
import tiktoken_ext.openai_public

from fineweb_stream import cli
from fineweb_stream.support.errors import PrepareError
from fineweb_stream.support.shell import as_word
from fineweb_stream.tokenizer import gpt2

# What tiktoken pins for the files that OpenAI publishes (tiktoken_ext/openai_public.py).
R50K_SHA256 = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"
VOCAB_BPE_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
ENCODER_JSON_SHA256 = "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"


def sha256(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def test_rank_file_is_the_official_one() -> None:
    """Written as tiktoken's rank file, the vocabulary hashes to what tiktoken pins for r50k_base."""
    assert sha256(b"".join(gpt2.iter_ranks())) == R50K_SHA256 == gpt2.GPT2.vocabulary_sha256


def test_merges_file_is_the_official_one() -> None:
    """Written as GPT-2's gpt2.bpe, the merges hash to what tiktoken pins for gpt2."""
    _, merges = gpt2.token_names()
    assert sha256(("#version: 0.2\n" + "".join(merge + "\n" for merge in merges)).encode()) == VOCAB_BPE_SHA256


def test_json_vocabulary_is_the_official_one() -> None:
    """Written as GPT-2's encoder.json, the vocabulary hashes to what tiktoken pins for gpt2."""
    names, _ = gpt2.token_names()
    ids = {name: i for i, name in enumerate(names)} | {"<|endoftext|>": gpt2.EOT_ID}
    assert sha256(json.dumps(ids).encode()) == ENCODER_JSON_SHA256


def test_tiktoken_takes_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With `--tiktoken-cache DIR` tiktoken makes GPT-2 of what it finds there, and asks no network."""
    folder = tmp_path / "a" / "my cache"
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(folder))
    monkeypatch.setattr(tiktoken.load, "read_file", lambda address: pytest.fail(f"downloads {address}"))
    for _ in range(2):  # the same command twice
        assert cli.main(["--tiktoken-cache", str(folder)]) == 0
    assert f"TIKTOKEN_CACHE_DIR={as_word(str(folder))} python sample.py" in capsys.readouterr().out
    made = tiktoken.Encoding(**tiktoken_ext.openai_public.gpt2())
    assert made.decode(made.encode("naïve 漢字<|endoftext|>", allowed_special="all")) == "naïve 漢字<|endoftext|>"
    assert len(os.listdir(folder)) == 2
    assert cli.main(["--tiktoken-cache", ""]) == 2, "no run of what is beside the script"
    assert cli.main(["--tiktoken-cache", __file__]) == 4
    said = capsys.readouterr().err
    assert "--tiktoken-cache without a name" in said and "--out" not in said


def test_damaged_file_is_refused(tmp_path, monkeypatch) -> None:
    """A vocabulary that was changed, or is missing, is never used."""
    damaged = bytearray(gpt2.MERGES_PATH.read_bytes())
    damaged[-1] ^= 1
    monkeypatch.setattr(gpt2, "MERGES_PATH", tmp_path / "merges.npy")
    with pytest.raises(PrepareError, match=r"merges\.npy: missing"):
        gpt2.load_merges()
    (tmp_path / "merges.npy").write_bytes(damaged)
    with pytest.raises(PrepareError, match="SHA-256 differs"):
        gpt2.load_merges()
