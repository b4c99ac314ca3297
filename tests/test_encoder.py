"""Both engines give tiktoken's ids, whatever the text."""

from __future__ import annotations

import importlib.util
import itertools
import math
import os
import pickle
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineweb_stream.pipeline import worker
from fineweb_stream.pipeline.iterate import iter_ids
from fineweb_stream.pipeline.worker import get_encoder
from fineweb_stream.support.cancel import Cancel
from fineweb_stream.support.errors import Cancelled, EngineError, InputError
from fineweb_stream.tokenizer import encoder as encoder_module
from fineweb_stream.tokenizer import engines, newest
from fineweb_stream.tokenizer.batch import join_texts
from fineweb_stream.tokenizer.encoder import Encoder
from fineweb_stream.tokenizer.engines import Gigatoken, encode_ordinary
from fineweb_stream.tokenizer.gpt2 import EOT_ID, GPT2

from .helpers import document_ids
from .strategies import documents


@given(batch=documents)
def test_equals_tiktoken(reference, batch: list[str]) -> None:
    """Every text of a batch has tiktoken's ids, with both engines, and ends where `ends` says."""
    expected = document_ids(reference, batch)
    for engine in ("tiktoken", "gigatoken"):
        ids, ends = get_encoder(engine).encode(batch, eot=True)
        assert ids.dtype == np.uint16
        assert [part.tolist() for part in np.split(ids, ends[:-1])] == expected
        plain, plain_ends = get_encoder(engine).encode(batch)
        assert [part.tolist() for part in np.split(plain, plain_ends[:-1])] == [one[:-1] for one in expected]


@given(parts=st.lists(st.sampled_from([b"<|endoftext|>", b"<|", b"|>", b"<", b"endoftext|>", b"a"]), max_size=20))
def test_literal_ends_are_counted(parts: list[bytes]) -> None:
    """As `bytes.count` does, at even and odd places, few or many."""
    for data in (b"".join(parts), b"".join(parts) * 800):
        assert worker._count_eot(data) == worker._count_eot(memoryview(data)) == data.count(b"<|endoftext|>")


@given(text=st.text(st.characters(codec=None), max_size=40))
def test_lone_surrogates_are_replaced(reference, text: str) -> None:
    """Lone surrogates become U+FFFD, as in `encode_ordinary`."""
    for engine in ("tiktoken", "gigatoken"):
        assert get_encoder(engine).encode([text])[0].tolist() == reference.encode_ordinary(text)


@pytest.mark.parametrize(
    ("space", "n"),
    [*((" ", n) for n in (999_998, 999_999, 1_000_000)), *((space, 1_000_000) for space in "\t\n\u00a0\u3000")],
)
def test_very_long_whitespace(reference, space: str, n: int) -> None:
    """A million whitespace characters, before a letter or at the end: exact ids by each engine, neighbours too."""
    run, last = space * n, " " * n + "\n"
    batch = ["an ordinary document", f"before{run}a after", last, "the next one"]
    # Before text, the pattern matches a run without its last character: these parts are encoded apart by definition.
    parts = [["an ordinary document"], ["before" + run[:-1], space + "a after"], [last], ["the next one"]]
    expected = [[i for part in document for i in reference.encode_ordinary(part)] for document in parts]
    for engine in ["tiktoken", *["gigatoken"] * bool(importlib.util.find_spec("gigatoken"))]:
        ids, ends = get_encoder(engine).encode(batch)
        assert [part.tolist() for part in np.split(ids, ends[:-1])] == expected, engine


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
    """Fifty batches from several threads: always the same ids."""
    batches = [[f"document {i} of many, it's {'very ' * i}long\n\n"] * 3 for i in range(50)]
    with ThreadPoolExecutor(n_threads) as pool:
        found = list(pool.map(lambda batch: get_encoder(engine).encode(batch, eot=True)[0].tolist(), batches))
    assert found == [[i for one in document_ids(reference, batch) for i in one] for batch in batches]


@pytest.mark.parametrize("n_caches", ["1", "3"])
def test_more_threads_than_caches(reference, monkeypatch, n_caches: str) -> None:
    """Each tokenizer serves as many threads as it has caches; all are kept, and used again."""
    pytest.importorskip("gigatoken")
    monkeypatch.setenv("RAYON_NUM_THREADS", n_caches)
    encoder, all_in = Encoder("gigatoken"), threading.Barrier(7)
    engine = encoder._encode

    def use(i: int) -> None:
        one = engine._take()
        all_in.wait(60)
        engine._give_back(one, 0.0)
        assert encoder.encode([f"text {i}"])[0].tolist() == reference.encode_ordinary(f"text {i}")

    for _ in range(2):
        with ThreadPoolExecutor(7) as pool:
            list(pool.map(use, range(7)))
        assert len(engine._shared) == math.ceil(7 / int(n_caches))
        assert {each.n_busy for each in engine._shared} == {0}
        assert max(each.n_caches for each in engine._shared) == int(n_caches)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("text", ["short", "many words " * 300_000, "a" * 3_000_000], ids=["short", "long", "a run"])
def test_a_forked_process_encodes(text: str) -> None:
    """Its own threads are gone, but no call waits for them: a data loader's worker may encode."""
    pytest.importorskip("gigatoken")
    encoder = Encoder("gigatoken")
    expected = encoder.encode([text])[0].tobytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the process has threads, which is what is tested
        pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        os._exit(encoder.encode([text])[0].tobytes() != expected)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize("n", [6999, 7000, 7001, 20_000])
def test_calls_of_many_small_documents(reference, engine: str, n: int) -> None:
    """A call has a limited number of documents: each has an end, which takes more than its text."""
    texts = [f"{i}" for i in range(n)]
    calls = list(encoder_module._iter_calls(*join_texts(texts), GPT2.cuts))
    assert len(calls) == math.ceil(n / encoder_module.CALL_DOCUMENTS)
    ends = encoder_module.CALL_DOCUMENTS * len(Gigatoken(GPT2).separator) if engine == "gigatoken" else 0
    assert encoder_module.CALL_BYTES + ends <= engines.SHARED_CALL_BYTES
    ids, _ = get_encoder(engine).encode(texts, eot=True)
    assert ids.tolist() == [i for one in document_ids(reference, texts) for i in one]


@pytest.mark.parametrize("eot", [False, True])
def test_batches_of_any_shape_give_the_same_ids(reference, engine: str, eot: bool, monkeypatch) -> None:
    """Many short texts, a few that fill a call each, long ones in pieces, in any order."""
    monkeypatch.setattr(encoder_module, "CALL_BYTES", 60)
    lengths = [1, 2, 0, 9, 70, 71, 5, 59, 60, 61, 300, 300, 0, 0, 0, 0, 20, 700, 1, 0]
    texts = [("some words, it's " * 50)[:length] for length in lengths]
    ids, ends = get_encoder(engine).encode(texts, eot=eot)
    expected = [reference.encode_ordinary(text) + [EOT_ID] * eot for text in texts]
    assert ids.tolist() == [i for one in expected for i in one]
    assert ends.tolist() == list(itertools.accumulate(map(len, expected)))


def test_every_character_there_is() -> None:
    """Every character that the fast engine is given belongs to the same class for it as for tiktoken."""
    pytest.importorskip("gigatoken")
    codes = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000 and not newest._is_new(code)]
    fast, exact = get_encoder("gigatoken")._encode, get_encoder("tiktoken")._encode
    for start in range(0, len(codes), 4096):
        data, ends = join_texts([f"{chr(code)}'s1{chr(code)}a {chr(code)}" for code in codes[start : start + 4096]])
        assert np.array_equal(fast(data, ends), exact(data, ends)), hex(codes[start])


@pytest.mark.parametrize("text", ["\u088f's", "x\ua7cf'll", "\U000323b0's", "a \U0003fffd b"])
def test_the_newest_characters_are_exact(reference, engine: str, text: str) -> None:
    """Letters that only one engine knows have tiktoken's ids, alone and among others."""
    for batch in ([text], ["before", "é日本👍" + text + "👍", "after"]):
        assert get_encoder(engine).encode(batch)[0].tolist() == [
            i for one in batch for i in reference.encode_ordinary(one)
        ]


@given(text=st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from("\u088f\ua7cf\U000323b0\u0560д漢👍a "))))
def test_the_newest_characters_are_found(text: str) -> None:
    """`has_newest` finds them (from U+0500 on) anywhere in UTF-8, and nothing else."""
    expected = any(newest._is_new(ord(char)) for char in text if ord(char) >= 0x500)
    assert newest.has_newest(text.encode()) == expected


def test_nothing_gives_nothing(engine: str) -> None:
    """No texts, or empty ones, have no ids but the end-of-text."""
    assert [a.tolist() for a in get_encoder(engine).encode([])] == [[], []]
    assert [a.tolist() for a in get_encoder(engine).encode(["", ""], eot=True)] == [[EOT_ID] * 2, [1, 2]]


@pytest.fixture
def spoiled(monkeypatch):
    """An encoder whose fast engine's ids go through a function; `None` gives the right ones."""
    pytest.importorskip("gigatoken")
    right = Gigatoken.__call__
    spoil = []

    def call(self, data, ends):
        ids = right(self, data, ends)
        return spoil[0](ids) if spoil else ids

    monkeypatch.setattr(Gigatoken, "__call__", call)
    return spoil


def test_wrong_engine_is_caught_at_the_start(spoiled) -> None:
    """An engine that is wrong on one of the hard texts is refused, with the way out."""
    spoiled.append(lambda ids: ids + (ids == 220).astype(np.uint32))
    with pytest.raises(EngineError, match="--engine tiktoken"):
        Encoder("gigatoken")


@pytest.mark.parametrize("n_words", [1, 400_000])
def test_wrong_engine_is_caught_in_a_sample(spoiled, n_words: int) -> None:
    """An engine that is wrong on one text is caught if that text is checked; the text is named."""
    encoder = Encoder("gigatoken")
    spoiled.append(lambda ids: np.where(ids == 31373, 0, ids))
    data, ends = join_texts(["some text", "hello there" + " word" * n_words])
    encoder.encode_utf8(data, ends)
    with pytest.raises(EngineError, match=r"'hello there.*' differently"):
        encoder.encode_utf8(data, ends, check_bytes=100)


def test_a_lost_end_is_caught(spoiled) -> None:
    """An engine that drops the end of one document is caught in the call where it does."""
    encoder = Encoder("gigatoken")
    spoiled.append(lambda ids: np.delete(ids, np.flatnonzero(ids == EOT_ID)[:1]))
    with pytest.raises(EngineError, match=r"returned 2 ends of documents for 3 \(documents 1 to 3 of a block\)"):
        encoder.encode(["a", "b", "c"])


def test_the_end_in_a_text_is_caught() -> None:
    """The random end of documents in a text is an error, never two documents; each encoder has its own."""
    pytest.importorskip("gigatoken")
    encoder = Encoder("gigatoken")
    with pytest.raises(EngineError, match="returned 3 ends of documents for 2"):
        encoder.encode(["a", f"b{encoder._encode.separator.decode()}c"])
    assert Encoder("gigatoken")._encode.separator != encoder._encode.separator


def test_where_an_engine_is_wrong_is_said(spoiled, tmp_path) -> None:
    """The file and the bytes of the block are named."""
    get_encoder("gigatoken")
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    spoiled.append(lambda ids: ids[ids != EOT_ID])
    with pytest.raises(EngineError, match=r"a\.jsonl, bytes 0 to 32: gigatoken .* returned 0 ends"):
        list(iter_ids(tmp_path / "a.jsonl", engine="gigatoken"))


@pytest.mark.parametrize("limit", [0, 100_000])
def test_a_forgotten_tokenizer_changes_nothing(reference, monkeypatch, limit: int) -> None:
    """A tokenizer that may remember too much is replaced by another, with the same ids."""
    pytest.importorskip("gigatoken")
    monkeypatch.setattr(engines, "CACHE_BYTES", limit)
    encoder = Encoder("gigatoken")
    before = list(encoder._encode._shared)
    texts = [f"words {i} and {i * 977}, " * 2999 for i in range(7)]
    for text in texts:
        assert encoder.encode([text])[0].tolist() == reference.encode_ordinary(text)
    assert encoder._encode._shared == [] if not limit else encoder._encode._shared != before


def test_without_a_folder_for_temporary_files(monkeypatch) -> None:
    """Linux needs none; elsewhere the engine says so, at the start and for a further thread, and names another."""
    pytest.importorskip("gigatoken")

    def refuse(*options):
        raise FileNotFoundError(2, "No usable temporary directory found")

    encoder, exists = Encoder("gigatoken"), os.path.exists
    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    encoder._encode._shared.clear()
    if sys.platform == "linux":
        assert encoder.encode(["hello"])[0].tolist() == [31373]
        monkeypatch.setattr("os.path.exists", lambda path: path != "/proc/self/fd" and exists(path))
        encoder._encode._shared.clear()
    for use in (lambda: Encoder("gigatoken"), lambda: encoder.encode(["a"])):
        with pytest.raises(EngineError, match=r"No usable temporary directory found\n  choose --engine tiktoken"):
            use()
    assert Encoder("tiktoken").encode(["hello"])[0].tolist() == [31373]


@pytest.mark.parametrize("has_proc", [True, False])
def test_nothing_is_left_in_the_folder_for_temporary_files(monkeypatch, tmp_path, has_proc: bool) -> None:
    """A temporary file with the vocabulary is deleted once it is read."""
    pytest.importorskip("gigatoken")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    exists = os.path.exists
    monkeypatch.setattr("os.path.exists", lambda path: (has_proc or path != "/proc/self/fd") and exists(path))
    assert Encoder("gigatoken").encode(["hello"])[0].tolist() == [31373]
    assert not list(tmp_path.iterdir())


def test_an_encoder_pickles(engine: str) -> None:
    """Unpickled, it has the same version and gives the same ids."""
    encoder = pickle.loads(pickle.dumps(get_encoder(engine)))
    assert encoder.version == get_encoder(engine).version
    assert encoder.encode(["hello world"])[0].tolist() == [31373, 995]


def test_stop_is_heard_between_calls(engine: str) -> None:
    """A set `Cancel` token ends a long encode after at most one call of the engine."""
    cancel = Cancel()
    cancel.set()
    data, ends = join_texts(["some words " * 200_000] * 3)
    with pytest.raises(Cancelled):
        get_encoder(engine).encode_utf8(data, ends, cancel=cancel)


def test_unknown_engine() -> None:
    """An unknown engine is refused; the message names those there are."""
    with pytest.raises(InputError, match="tiktoken, gigatoken"):
        Encoder("gpt")


def test_chars_have_no_vocabulary_without_files() -> None:
    """The ids of `chars` are those of the characters in files, which an encoder of texts does not have."""
    with pytest.raises(InputError, match="numbers the characters of files"):
        Encoder(tokenizer="chars")


def test_one_text_is_no_sequence_of_texts() -> None:
    """A single str is refused: it would be taken for a list of its characters."""
    with pytest.raises(TypeError, match=r"encode\(\[text\]\)"):
        Encoder("tiktoken").encode("hello world")


@pytest.mark.parametrize("text", [b"bytes", 7, None])
def test_what_is_no_text_is_named(text: object) -> None:
    """Anything but a str is refused by its type, wherever it is in the sequence."""
    with pytest.raises(TypeError, match=f"a text is a str, not {type(text).__name__}"):
        Encoder("tiktoken").encode(["hello", text])  # type: ignore[list-item]


class Frame:
    """A table as pandas has it: what it iterates over are the names of its columns."""

    ndim = 2

    def __getitem__(self, name: str) -> list[str]:
        return ["hello world"]

    def __iter__(self) -> Iterator[str]:
        return iter(["text"])


@pytest.mark.parametrize("rows", [{"text": ["hello world"]}, Frame()], ids=["a dict", "a table"])
def test_the_names_of_columns_are_no_texts(rows: Any) -> None:
    """A batch of a dataset and a table are refused, and not encoded as the names of their columns."""
    with pytest.raises(TypeError, match=r"not a (dict|Frame): encode\(texts\['text'\]\)"):
        Encoder("tiktoken").encode(rows)
    assert Encoder("tiktoken").encode(rows["text"])[0].tolist() == [31373, 995]


@pytest.mark.parametrize("ends", [[11, 6], [-1, 12], [12, 6, 12], [6], [6, 13], [13]])
def test_wrong_ends_are_refused(engine: str, ends: list[int]) -> None:
    """Ends that do not rise to the end of the data are refused: text outside of it would be read."""
    import pyarrow  # noqa: F401  (where it is loaded, it joins the documents)

    with pytest.raises(ValueError, match="ends must rise from 0 to 12"):
        get_encoder(engine).encode_utf8(b"hello, world", np.array(ends))


def test_ends_of_an_index(reference) -> None:
    """Ends may be uint64, as in `NAME.index`."""
    ids, ends = get_encoder("gigatoken").encode_utf8(b"hello, world", np.array([5, 5, 12], np.uint64))
    expected = [*reference.encode_ordinary("hello"), EOT_ID, EOT_ID, *reference.encode_ordinary(", world"), EOT_ID]
    assert (ids.tolist(), ends.tolist()) == (expected, [2, 3, len(expected)])


@pytest.mark.parametrize("error", [MemoryError(), KeyboardInterrupt()])
def test_what_is_no_error_of_the_engine_stays_what_it_is(monkeypatch, error: BaseException) -> None:
    """Out of memory and Ctrl+C are not taken for an engine that cannot load or encode."""
    gigatoken = Gigatoken(GPT2)
    monkeypatch.setattr(gigatoken, "_library", mock.Mock(**{"BPETokenizer.from_tiktoken.side_effect": error}))
    with pytest.raises(type(error)):
        gigatoken._load()
    with pytest.raises(type(error)):
        encode_ordinary(mock.Mock(**{"encode_to_numpy.side_effect": error}), "a text")
