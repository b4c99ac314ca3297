"""Both engines give tiktoken's ids, whatever the text."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineweb_stream.pipeline.worker import get_encoder
from fineweb_stream.support.cancel import Cancel
from fineweb_stream.support.errors import Cancelled, EngineError, InputError
from fineweb_stream.tokenizer import encoder as encoder_module
from fineweb_stream.tokenizer.cuts import iter_chunks
from fineweb_stream.tokenizer.encoder import Encoder
from fineweb_stream.tokenizer.gpt2 import EOT_ID

from .helpers import document_ids
from .strategies import documents


@given(batch=documents)
def test_equals_tiktoken(reference, batch: list[str]) -> None:
    """Every text of a batch has tiktoken's ids, with both engines, and ends where `ends` says."""
    expected = document_ids(reference, batch)
    for engine in ("tiktoken", "fastokens"):
        ids, ends = get_encoder(engine).encode(batch, eot=True)
        assert ids.dtype == np.uint16
        assert [part.tolist() for part in np.split(ids, ends[:-1])] == expected
        plain, plain_ends = get_encoder(engine).encode(batch)
        assert [part.tolist() for part in np.split(plain, plain_ends[:-1])] == [one[:-1] for one in expected]


@given(text=st.text(st.characters(codec=None), max_size=40))
def test_lone_surrogates_are_replaced(reference, text: str) -> None:
    """Lone surrogates become U+FFFD, as in `encode_ordinary`."""
    for engine in ("tiktoken", "fastokens"):
        assert get_encoder(engine).encode([text])[0].tolist() == reference.encode_ordinary(text)


@pytest.mark.parametrize("space", [" ", "\t", "\n", "\u00a0", "\u3000"])
@pytest.mark.parametrize("n", [999_998, 999_999, 1_000_000])
def test_very_long_whitespace(reference, engine: str, space: str, n: int) -> None:
    """A million whitespace characters before a letter: exact ids, and the neighbours intact."""
    run = space * n
    batch = ["an ordinary document", f"before{run}a after", f"{run}\n", "the next one"]
    # The pattern matches a run before text up to its last character, so these parts are encoded apart by definition.
    parts = [["an ordinary document"], ["before" + run[:-1], space + "a after"], [run + "\n"], ["the next one"]]
    expected = [[i for part in document for i in reference.encode_ordinary(part)] for document in parts]
    ids, ends = get_encoder(engine).encode(batch)
    assert [part.tolist() for part in np.split(ids, ends[:-1])] == expected


def test_long_documents_in_a_batch(reference, engine: str) -> None:
    """Documents far longer than a chunk, among short ones, keep their ids and ends."""
    batch = ["short", "word and another one, " * 20_000, "", "漢字かな" * 50_000, "x", "don't " * 30_000]
    ids, ends = get_encoder(engine).encode(batch, eot=True)
    assert [part.tolist() for part in np.split(ids, ends[:-1])] == document_ids(reference, batch)


def test_eot_in_text_is_text(engine: str) -> None:
    """A literal <|endoftext|> never becomes id 50256."""
    ids, _ = get_encoder(engine).encode(["<|endoftext|>", "a <|endoftext|> b"])
    assert EOT_ID not in ids


@pytest.mark.parametrize("n_threads", [1, 2, 8])
def test_threads_share_an_encoder(reference, engine: str, n_threads: int) -> None:
    """Fifty times over a small corpus, from several threads: always the same ids."""
    batches = [[f"document {i} of many, it's {'very ' * i}long\n\n"] * 3 for i in range(50)]
    with ThreadPoolExecutor(n_threads) as pool:
        found = list(pool.map(lambda batch: get_encoder(engine).encode(batch, eot=True)[0].tolist(), batches))
    assert found == [[i for one in document_ids(reference, batch) for i in one] for batch in batches]


@pytest.mark.parametrize("eot", [False, True])
def test_batches_of_any_shape_give_the_same_ids(reference, engine: str, eot: bool, monkeypatch) -> None:
    """Many short texts, a few that fill a call each, long ones in chunks, in any order."""
    monkeypatch.setattr(encoder_module, "BATCH_CHARS", 100)
    monkeypatch.setattr(encoder_module, "BATCH_TEXTS", 3)
    monkeypatch.setattr(encoder_module, "CHUNK_CHARS", 60)
    monkeypatch.setattr(encoder_module, "iter_chunks", lambda text: iter_chunks(text, 60))
    lengths = [1, 2, 0, 9, 70, 71, 5, 59, 60, 61, 300, 300, 0, 0, 0, 0, 20, 700, 1, 0]
    texts = [("some words, it's " * 50)[:length] for length in lengths]
    ids, ends = get_encoder(engine).encode(texts, eot=eot)
    expected = [reference.encode_ordinary(text) + [EOT_ID] * eot for text in texts]
    assert ids.tolist() == [i for one in expected for i in one]
    assert ends.tolist() == list(itertools.accumulate(map(len, expected)))


def test_nothing_gives_nothing(engine: str) -> None:
    """No texts, or empty ones, have no ids but the end-of-text."""
    assert [a.tolist() for a in get_encoder(engine).encode([])] == [[], []]
    assert [a.tolist() for a in get_encoder(engine).encode(["", ""], eot=True)] == [[EOT_ID] * 2, [1, 2]]


def test_wrong_engine_is_caught_at_the_start(monkeypatch) -> None:
    """An engine that is wrong on one of the hard texts is refused, with the way out."""
    pytest.importorskip("fastokens")
    right = encoder_module.fastokens_engine()

    def wrong(batch):
        ids, lengths = right(batch)
        return ids + (ids == 220).astype(np.uint32), lengths

    monkeypatch.setattr(encoder_module, "fastokens_engine", lambda: wrong)
    with pytest.raises(EngineError, match="--engine tiktoken"):
        Encoder("fastokens")


def test_wrong_engine_is_caught_in_a_sample(monkeypatch) -> None:
    """An engine that is wrong on one text is caught where that text is checked, and names it."""
    pytest.importorskip("fastokens")
    encoder = Encoder("fastokens")
    right = encoder._encode

    def wrong(batch):
        ids, lengths = right(batch)
        return np.where(ids == 31373, 0, ids).astype(np.uint32), lengths

    monkeypatch.setattr(encoder, "_encode", wrong)
    encoder.encode(["some text", "hello there"], check_chars=0)
    with pytest.raises(EngineError, match="'hello there' differently"):
        encoder.encode(["some text", "hello there"], check_chars=100)


def test_stop_is_heard_between_batches(engine: str) -> None:
    """A stop ends a long encode after at most one call of the engine."""
    cancel, encoder = Cancel(), get_encoder(engine)
    n_calls, encode = [], encoder._encode

    def cancel_after_one(texts: list[str]) -> object:
        n_calls.append(len(texts))
        cancel.set()
        return encode(texts)

    with mock.patch.object(encoder, "_encode", cancel_after_one), pytest.raises(Cancelled):
        encoder.encode(["some words " * 200_000] * 3, cancel=cancel)
    assert len(n_calls) == 1


def test_unknown_engine() -> None:
    """The engines are named when another is asked for."""
    with pytest.raises(InputError, match="tiktoken, fastokens"):
        Encoder("gpt")


def test_one_text_is_no_sequence_of_texts() -> None:
    """A bare text would be taken for a list of its characters."""
    with pytest.raises(TypeError, match=r"encode\(\[text\]\)"):
        Encoder("tiktoken").encode("hello world")
