"""Every tokenizer: exactly its reference's ids, wherever a text is cut, and files that say whose ids they are."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import os
import pickle
import string
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain, islice, product
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import tiktoken
from hypothesis import example, given, settings

from fineweb_stream import (
    EngineError,
    InputError,
    PrepareError,
    estimate,
    iter_ids,
    open_documents,
    open_tokens,
    prepare,
)
from fineweb_stream.output.verify import verify
from fineweb_stream.pipeline.vocabulary import usable_engine
from fineweb_stream.token_files.summary import decode, summarize
from fineweb_stream.tokenizer import load, ranks
from fineweb_stream.tokenizer.cuts import NO_CUTS, SPACE_CUTS, WORD_CUTS, WORD_PATTERNS, CutRule
from fineweb_stream.tokenizer.encoder import HARD_TEXTS, Encoder
from fineweb_stream.tokenizer.gpt2 import bytes_by_name, iter_ranks, load_merges, token_bytes, token_names
from fineweb_stream.tokenizer.load import load_tokenizer
from fineweb_stream.tokenizer.tokenizer import Tokenizer

from .helpers import read_ids, write_jsonl
from .test_shuffle import DOCS, LIMITS, OPTIONS, limited

TEXTS = [
    "wait!\nnext (hello)world foo(bar) it's HELLO'S 12345 67",
    "中文，没有空格。\nнет\t\tда  \n\n x",
    "",
    "a<|endoftext|>b",
]
PIECES = [
    "'s",
    "'LL",
    "’s",
    *"! \n\t(/a1é文。\u00a0\u200b\ufeff\x1c\u0345ǅ_한ـ",
    "!\n",
    "\r\n",
    "  ",
    "/\n",
    "Ab",
    "1234",
]
PIECES += ["e\u0301", "<|endoftext|>", "<think>", "👍🏽"]
hard_text = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=14).map("".join)


@functools.cache
def all_pairs() -> list[bytes]:
    """Every two bytes that the pieces have, as a token: so each border between two pre-tokens shows in the ids.

    (GPT-2's merges never cross a border of its own pattern, and would hide most of them.)
    """
    seen = sorted(set("".join(PIECES).encode()))
    return sorted((bytes(pair) for pair in product(seen, seen)), key=lambda pair: hashlib.sha256(pair).digest())


@functools.cache
def small_ranks(n: int) -> dict[bytes, int]:
    """A vocabulary of bytes, pairs of them, and some of GPT-2's merges."""
    singles = [bytes([i]) for i in range(256)]
    tokens = dict.fromkeys([*singles, *all_pairs(), *token_bytes()[: 256 + n]])
    return {token: i for i, token in enumerate(tokens)}


@functools.cache
def small_json(kind: str, n_merges: int = 3000, added: tuple[str, ...] = ()) -> str:
    """A `tokenizer.json` with GPT-2's first merges and the pre-tokenizer of a kind."""
    names, merges = token_names()
    by_byte = {byte: name for name, byte in bytes_by_name().items()}
    pairs = [" ".join(by_byte[byte] for byte in pair) for pair in all_pairs()]
    merges = list(dict.fromkeys([*pairs, *merges[:n_merges]]))
    tokens_in_order = [*names[:256], *(merge.replace(" ", "") for merge in merges)]
    vocab = {name: i for i, name in enumerate(dict.fromkeys(tokens_in_order))}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    texts = ["<|endoftext|>", *added]
    tokens = [{"id": len(vocab) + i, "content": t, **flags, "special": i == 0} for i, t in enumerate(texts)]
    byte_level: dict[str, Any] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    if kind == "byte level":
        steps = [byte_level | {"use_regex": True}]
    elif kind == "digits":
        steps = [{"type": "Digits", "individual_digits": True}, byte_level | {"use_regex": True}]
    else:
        pattern = {"Regex": r"\w+ \w+|\s+|\S" if kind == "odd" else WORD_PATTERNS[kind][-1]}
        split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
        steps = [split, byte_level | {"use_regex": False}]
    model = {"type": "BPE", "vocab": vocab, "merges": merges}
    pre_tokenizer = {"type": "Sequence", "pretokenizers": steps}
    return json.dumps({"version": "1.0", "added_tokens": tokens, "pre_tokenizer": pre_tokenizer, "model": model})


JSON_KINDS = ("byte level", "digits", "cl100k", "o200k", "qwen2", "gpt2")


@functools.cache
def of_pattern(scheme: str, form: int) -> Tokenizer:
    """A small tokenizer of tiktoken's with a known pattern, in one of the forms that it is written in."""
    from fineweb_stream.tokenizer.ranks import _make
    from fineweb_stream.tokenizer.tokenizer import TokenizerSpec

    ranks = small_ranks(0)
    return _make(TokenizerSpec(scheme), scheme, ranks, {"<|endoftext|>": len(ranks)}, WORD_PATTERNS[scheme][form])


def make_json(folder: Path, *arguments: Any) -> Path:
    pytest.importorskip("tokenizers")
    path = folder / "model" / "tokenizer.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(small_json(*arguments), encoding="utf-8")
    return path


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Let tiktoken know more encodings, as its plugins do: `plugin(name, ranks, special, pattern)`."""
    import tiktoken.registry as registry

    def add(name: str, ranks: dict[bytes, int], eot_id: int, pattern: str) -> None:
        known = {"pat_str": pattern, "mergeable_ranks": ranks, "special_tokens": {"<|endoftext|>": eot_id}}
        registry._find_constructors()
        assert registry.ENCODING_CONSTRUCTORS is not None
        monkeypatch.setitem(registry.ENCODING_CONSTRUCTORS, name, lambda: {"name": name, **known})

    yield add
    ranks.of_name.cache_clear()
    load.reload.cache_clear()


def oracle(tokenizer: Tokenizer) -> Callable[[str], list[int]]:
    """The ids that are right by definition, in the plainest way."""
    reference = tokenizer.load_reference()
    if tokenizer.reference == "tokenizers":
        return lambda text: reference.encode(text, add_special_tokens=False).ids  # type: ignore[no-any-return]
    return lambda text: reference.encode_ordinary(text)  # type: ignore[no-any-return]


def patterns() -> dict[str, Tokenizer]:
    """A small tokenizer of tiktoken's for each known pattern in each form."""
    return {f"{s}, form {n}": of_pattern(s, n) for s, forms in WORD_PATTERNS.items() for n in range(len(forms))}


# In the checks below, each text is given to all tokenizers: to draw one takes ten times as long as to encode it.


def check_cuts(tokenizers: dict[str, Tokenizer]) -> None:
    """At each place where a tokenizer's rule cuts, the ids of both sides are the ids of the whole."""
    checked = [(name, oracle(tokenizer), tokenizer.cuts.find) for name, tokenizer in tokenizers.items()]

    @settings(max_examples=300)
    @given(hard_text)
    @example("wait!\nnext (hello)world foo(bar)")
    @example("12345a '5s'5 's6\n a<think>b c  d  \n e")
    def check(text: str) -> None:
        for name, ids_of, find in checked:
            assert find is not None
            whole = ids_of(text)
            for cut in {find(text, start, len(text)) for start in range(1, len(text))} - {None}:
                assert ids_of(text[:cut]) + ids_of(text[cut:]) == whole, (name, text, cut)

    check()


def check_ids(tokenizers: dict[str, Tokenizer], engines: Sequence[str] = ("auto",)) -> None:
    """Documents become the reference's ids and end-of-text, by each of the engines."""
    checked = []
    for name, tokenizer in tokenizers.items():
        for engine in {usable_engine(engine, tokenizer) for engine in engines}:
            checked.append((name, engine, Encoder(engine, tokenizer), oracle(tokenizer)))

    @settings(max_examples=200)
    @given(st.lists(hard_text, max_size=3))
    @example(list(HARD_TEXTS))
    @example(TEXTS)
    def check(texts: list[str]) -> None:
        for name, engine, encoder, ids_of in checked:
            expected = [[*ids_of(text), tokenizers[name].eot_id] for text in texts]
            ids, ends = encoder.encode(texts, eot=True)
            assert ids.tolist() == list(chain.from_iterable(expected)), (name, engine)
            assert ends.tolist() == list(accumulate(map(len, expected))), (name, engine)

    check()


def test_cuts_of_each_pattern_change_no_id() -> None:
    """Cutting by the rule changes no id, by tiktoken, for each known pattern in each form."""
    assert all(tokenizer.cuts is WORD_CUTS for tokenizer in patterns().values())
    check_cuts(patterns())


def test_ranks_are_encoded_exactly() -> None:
    """Encoded by the engine that a run uses, each pattern gives tiktoken's ids."""
    check_ids(patterns())


@pytest.mark.parametrize(("added", "rule"), [((), WORD_CUTS), (("<think>", "  "), SPACE_CUTS)])
def test_cuts_of_a_tokenizer_json_change_no_id(added: tuple[str, ...], rule: CutRule, tmp_path: Path) -> None:
    """As above, for Hugging Face's pre-tokenizers, with and without tokens that stand for whole texts."""
    found = {kind: load_tokenizer(str(make_json(tmp_path / kind, kind, 3000, added))) for kind in JSON_KINDS}
    assert all(tokenizer.cuts is rule for tokenizer in found.values())
    check_cuts(found)


def test_a_tokenizer_json_is_encoded_exactly(tmp_path: Path) -> None:
    """Encoded by `tokenizers`, and by the engine that a run uses, each pre-tokenizer gives the reference's ids."""
    kinds = (*JSON_KINDS, "odd")
    check_ids({k: load_tokenizer(str(make_json(tmp_path / k, k))) for k in kinds}, ("auto", "tokenizers"))


@pytest.mark.parametrize("normalizer", [None, "NFC", "Lowercase"])
@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word", "normalized", "special"])
@pytest.mark.parametrize("text", ["<think>", "éx"])
def test_added_tokens_that_depend_on_what_is_beside_them(
    text: str, flag: str, normalizer: str | None, tmp_path: Path
) -> None:
    """Documents become the reference's ids, whatever the flags of an added token, some of which gigatoken ignores."""
    path = make_json(tmp_path, "cl100k", 3000, (text, "  "))
    content = json.loads(path.read_text()) | {"normalizer": normalizer and {"type": normalizer}}
    content["added_tokens"][1][flag] = True
    path.write_text(json.dumps(content))
    tokenizer = load_tokenizer(str(path))
    encoder, ids_of = usable(tokenizer), oracle(tokenizer)
    for around in ("a{}b", "\n{}  \t", "{0}{0}", "{}\u0338", " {} ", "{}S"):
        for document in (around.format(text), around.format("e\u0301x"), around.format(text.upper())):
            assert encoder.encode([document], eot=True)[0].tolist() == [*ids_of(document), tokenizer.eot_id]


def usable(tokenizer: Tokenizer) -> Encoder:
    """The encoder that a run uses: gigatoken, or the reference if the two differ on the hard texts."""
    return Encoder(usable_engine("auto", tokenizer), tokenizer)


@pytest.mark.parametrize("name", ["cl100k_base", "o200k_base"])
def test_tiktokens_own_vocabularies(name: str) -> None:
    """The same for the vocabularies themselves, and where they are cut, if TIKTOKEN_CACHE_DIR has their files."""
    url = f"https://openaipublic.blob.core.windows.net/encodings/{name}.tiktoken"
    path = Path(os.environ.get("TIKTOKEN_CACHE_DIR", ""), hashlib.sha1(url.encode()).hexdigest())
    if not path.exists():
        pytest.skip(f"{path.name} is not in TIKTOKEN_CACHE_DIR")
    tokenizer = load_tokenizer(name)
    assert tokenizer.cuts is WORD_CUTS and usable(tokenizer).engine == Encoder().engine
    check_ids({name: tokenizer})
    check_cuts({name: tokenizer})


def test_plain_text_and_documents_by_any_tokenizer(tmp_path: Path) -> None:
    """val.bin and then train.bin are the reference's ids of the whole file; documents end with end-of-text."""
    path, text = make_json(tmp_path, "cl100k"), "\n".join(TEXTS * 40)
    tokenizer = load_tokenizer(str(path.parent))
    (tmp_path / "t.txt").write_text(text, encoding="utf-8", newline="")
    prepare(tmp_path / "t.txt", tmp_path / "o", tokenizer=path.parent, val_ratio=0.3, shard_tokens=500, quiet=True)
    found = [np.fromfile(tmp_path / "o" / f"{name}.bin", np.uint16).tolist() for name in ("val", "train")]
    assert found[0] + found[1] == oracle(tokenizer)(text)
    write_jsonl(tmp_path / "c.jsonl", TEXTS)
    ids = np.concatenate(list(iter_ids(tmp_path / "c.jsonl", tokenizer=path)))
    assert ids.tolist() == [i for t in TEXTS for i in (*oracle(tokenizer)(t), tokenizer.eot_id)]
    assert verify(tmp_path / "o") and text.encode().endswith(decode(tmp_path / "o", -9, 9).encode())


def test_what_no_rule_is_proven_for_is_not_cut(tmp_path: Path) -> None:
    """With an unknown pattern, documents are exact, and one long text is refused with advice that works."""
    path = make_json(tmp_path, "odd")
    assert load_tokenizer(str(path)).cuts is NO_CUTS
    (tmp_path / "t.txt").write_text("one two\n\nthree\n\nfour five six\n\nseven")
    with pytest.raises(InputError, match="is not known") as caught:
        prepare(tmp_path / "t.txt", tmp_path / "o", tokenizer=path, quiet=True)
    assert r"--separator '\n\n'" in str(caught.value)
    result = prepare(tmp_path / "t.txt", tmp_path / "o", tokenizer=path, separator="\n\n", quiet=True)
    assert result.train_documents + result.val_documents == 4


@pytest.mark.parametrize("layout", ["nanogpt", "llmc", "npy"])
def test_many_ids_are_uint32_and_said(
    layout: str, tmp_path: Path, plugin: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Above 65,536 ids, files are uint32, in each layout's own way; readers learn it from the manifest alone."""
    plugin("wide", small_ranks(0), 70_000, WORD_PATTERNS["cl100k"][0])
    write_jsonl(tmp_path / "c.jsonl", TEXTS)
    out = tmp_path / "o"
    prepare(tmp_path / "c.jsonl", out, tokenizer="wide", layout=layout, val_tokens=1)
    expected = [i for text in TEXTS[1:] for i in (*tiktoken.get_encoding("wide").encode_ordinary(text), 70_000)]
    tokens = open_tokens(out)
    assert tokens.dtype == np.uint32 and tokens.tolist() == expected
    said = capsys.readouterr().out
    assert said.count("np.uint32 for dtype=np.uint16 (twice)") == (2 if layout == "nanogpt" else 0)  # before and after
    if layout == "nanogpt":
        assert "long enough: copy meta.pkl and both to nanoGPT's data/o/, then in get_batch of" in said
    assert verify(out) and summarize(out).n_documents == 3 and "文" in decode(out, 0, 40)
    file = next(out.glob("train*"))
    if layout == "llmc":
        header = np.fromfile(file, np.int32, 256)
        assert header[:3].tolist() == [20240801, 7, len(expected)] and not header[3:].any()
        assert np.fromfile(file, np.uint32, offset=1024).tolist() == expected
    elif layout == "npy":
        assert np.load(file).dtype == np.uint32
    from fineweb_stream.token_files.documents import write_index

    write_index(file)
    assert [d.tolist()[-1] for d in open_documents(out)] == [70_000] * 3
    (out / "prepare.json").unlink()
    with pytest.raises(InputError, match=r"4 bytes each|uint32|gpt2's ids end"):
        open_tokens(out), summarize(out)


@pytest.mark.parametrize("name", ["wide", "bytes"])
def test_shuffle(name: str, tmp_path: Path, plugin: Callable[..., None]) -> None:
    """Shuffled documents of any tokenizer are those without --shuffle, each once, in the files' width."""
    plugin("wide", small_ranks(1000), 70_000, WORD_PATTERNS["cl100k"][0])
    write_jsonl(tmp_path / "c.jsonl", DOCS)

    def make(out: Path, **options: Any) -> list[list[list[int]]]:
        options = OPTIONS | {"engine": "auto", "tokenizer": name, "index": True, "keep_shards": True} | options
        prepare(tmp_path / "c.jsonl", out, quiet=True, **options)
        assert open_tokens(out).dtype == np.dtype(load_tokenizer(name).dtype) and verify(out)
        return [[document.tolist() for document in open_documents(out, split)] for split in ("val", "train")]

    plain = make(tmp_path / "plain", shuffle=False)
    for limits in LIMITS:
        with limited(LIMITS[limits]):
            found = make(tmp_path / limits)
        assert sum(map(len, found)) == len(DOCS), limits
        for before, shuffled in zip(plain, found, strict=True):
            assert before != shuffled and sorted(before) == sorted(shuffled), limits


@pytest.mark.parametrize("name", ["bytes", "chars"])
def test_bytes_and_chars(name: str, tmp_path: Path) -> None:
    """The ids are a text's bytes, or the places of its characters among all that there are, as meta.pkl says."""
    text = "".join(TEXTS) * 30
    (tmp_path / "t.txt").write_text(text, encoding="utf-8", newline="")
    out = tmp_path / "o"
    prepare(tmp_path / "t.txt", out, tokenizer=name, val_ratio=0.2, quiet=True)
    found = np.concatenate([np.fromfile(out / f"{split}.bin", np.uint16) for split in ("val", "train")]).tolist()
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    meta = pickle.loads((out / "meta.pkl").read_bytes())
    if name == "bytes":
        assert found == list(text.encode()) and meta["vocab_size"] == 257
    else:  # as nanoGPT's own example makes it
        chars = sorted(set(text))
        stoi = {char: i for i, char in enumerate(chars)}
        assert found == [stoi[char] for char in text]
        assert meta["stoi"] == stoi and meta["itos"] == dict(enumerate(chars)) and meta["vocab_size"] == len(chars)
    assert verify(out)


def test_chars_with_val_at_the_end_are_nanogpts_own_files(tmp_path: Path) -> None:
    """Of ASCII text, train.bin, val.bin, `stoi` and `itos` are those of nanoGPT's Shakespeare script."""
    text = "Two households, both alike in dignity,\n" * 99 + "end?"
    (tmp_path / "input.txt").write_text(text)
    options = {"tokenizer": "chars", "val_ratio": 0.1, "val_at": "end", "quiet": True}
    prepare(tmp_path / "input.txt", tmp_path / "o", **options)
    stoi = {char: i for i, char in enumerate(sorted(set(text)))}
    n_train = int(len(text) * 0.9)
    for name, part in (("train", text[:n_train]), ("val", text[n_train:])):
        assert np.fromfile(tmp_path / "o" / f"{name}.bin", np.uint16).tolist() == [stoi[char] for char in part]
    meta = pickle.loads((tmp_path / "o" / "meta.pkl").read_bytes())
    assert meta["stoi"] == stoi and meta["itos"] == {i: char for char, i in stoi.items()}


def test_chars_of_documents_have_an_end_of_text(tmp_path: Path) -> None:
    """Documents need an id that ends them: the first above the characters."""
    write_jsonl(tmp_path / "c.jsonl", TEXTS)
    prepare(tmp_path / "c.jsonl", tmp_path / "o", tokenizer="chars", val_tokens=1, quiet=True)
    chars = sorted(set("".join(TEXTS)))
    expected = [i for text in TEXTS[1:] for i in (*map(chars.index, text), len(chars))]
    assert np.fromfile(tmp_path / "o" / "train.bin", np.uint16).tolist() == expected
    assert verify(tmp_path / "o") and summarize(tmp_path / "o").n_documents == 3


def test_another_tokenizer_does_not_go_on(tmp_path: Path) -> None:
    """A run is bound to its tokenizer: another one, or one whose file has changed, is refused by name."""
    path = make_json(tmp_path, "cl100k")
    write_jsonl(tmp_path / "c.jsonl", TEXTS * 20)
    go: Callable[..., Any] = functools.partial(prepare, tmp_path / "c.jsonl", tmp_path / "o", quiet=True)
    go(tokenizer=path, max_tokens=100)
    for other in ("gpt2", "bytes"):
        with pytest.raises(PrepareError, match=f"--tokenizer was model .* and is {other} "):
            go(tokenizer=other)
    path.write_text(small_json("qwen2"), encoding="utf-8")
    with pytest.raises(PrepareError, match=r"--tokenizer was model .* and is model "):
        go(tokenizer=path)
    with pytest.raises(InputError, match="not the tokenizer that made the ids"):
        decode(tmp_path / "o")
    path.write_text(small_json("cl100k"), encoding="utf-8")
    moved = path.rename(tmp_path / "moved.json")
    with pytest.raises(InputError, match="no such file, though its tokenizer made the ids\n  put it, or a link"):
        decode(tmp_path / "o")
    moved.rename(path)
    go(tokenizer=path)
    assert decode(tmp_path / "o")
    whole = np.fromfile(tmp_path / "o" / "train.bin", np.uint16)
    prepare(tmp_path / "c.jsonl", tmp_path / "again", tokenizer=path, quiet=True)
    assert whole.tolist() == np.fromfile(tmp_path / "again" / "train.bin", np.uint16).tolist()
    assert (tmp_path / "o" / "meta.pkl").read_bytes() == (tmp_path / "again" / "meta.pkl").read_bytes()


@pytest.mark.parametrize("where", ["add_meta", "give_names", "merge"])
def test_a_stop_near_the_end_loses_nothing(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that stops before or after writing meta.pkl is finished by the same command, with the same bytes."""
    from fineweb_stream.pipeline import run

    write_jsonl(tmp_path / "c.jsonl", TEXTS * 9)
    go = functools.partial(prepare, tmp_path / "c.jsonl", tokenizer="bytes", quiet=True)
    go(tmp_path / "whole")
    for is_before in (True, False):
        original, out = getattr(run, where), tmp_path / f"o{is_before}"

        def stop(*arguments: Any, original: Any = original, is_before: bool = is_before, **more: Any) -> None:
            if not is_before:
                original(*arguments, **more)
            raise PrepareError(where)

        with monkeypatch.context() as patch:
            patch.setattr(run, where, stop)
            with pytest.raises(PrepareError, match=where):
                go(out)
        go(out)
        names = sorted(path.name for path in out.iterdir() if path.suffix in (".bin", ".pkl", ".part"))
        assert names == ["meta.pkl", "train.bin", "val.bin"] and verify(out)
        assert all((out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes() for name in names)


def test_a_rank_file(tmp_path: Path) -> None:
    """`.tiktoken` with a pattern, by name or written out; an end-of-text only where no token has its id."""
    path = tmp_path / "small.tiktoken"
    path.write_bytes(b"".join(base64.b64encode(t) + b" %d\n" % i for t, i in small_ranks(500).items()))
    with pytest.raises(InputError, match="--pattern"):
        load_tokenizer(str(path))
    first = len(small_ranks(500))
    named, written = (load_tokenizer(str(path), p, first) for p in ("cl100k", WORD_PATTERNS["cl100k"][0]))
    assert named.vocabulary_sha256 == written.vocabulary_sha256 and named.n_ids == first + 1
    # gigatoken cannot load a rank file whose tokens are no merges of two: the reference takes its place.
    encoder = Encoder(usable_engine("auto", named), named)
    assert encoder.engine == "tiktoken"
    assert encoder.encode(TEXTS, eot=True)[0].tolist() == [i for text in TEXTS for i in (*oracle(named)(text), first)]
    for eot in (first - 1, first + 2000, "<|endoftext|>"):
        with pytest.raises(InputError, match="--eot-id"):
            load_tokenizer(str(path), "cl100k", eot)
    write_jsonl(tmp_path / "c.jsonl", TEXTS)
    with pytest.raises(InputError, match="--eot-id"):
        prepare(tmp_path / "c.jsonl", tmp_path / "o", tokenizer=path, pattern="cl100k", quiet=True)
    options: dict[str, Any] = {"tokenizer": path, "pattern": "cl100k", "eot_id": first}
    ids = np.concatenate(list(iter_ids(tmp_path / "c.jsonl", **options)))
    assert ids.tolist() == encoder.encode(TEXTS, eot=True)[0].tolist()
    assert ids.tolist() == Encoder("tiktoken", **options).encode(TEXTS, eot=True)[0].tolist()


def test_texts_without_an_end_of_text(tmp_path: Path) -> None:
    """Each text has the ids of its own, an empty one none, and `ends` says which; no end-of-text can be asked for."""
    encoder = Encoder(tokenizer=load_tokenizer(str(write_ranks(tmp_path)), "gpt2"))
    texts = ["some words", "", *TEXTS, ""]
    ids, ends = encoder.encode(texts)
    assert [part.tolist() for part in np.split(ids, ends)[:-1]] == [oracle(encoder.tokenizer)(text) for text in texts]
    assert (ids.dtype, ends.dtype, ends[-1]) == (np.uint16, np.int64, len(ids))
    assert [len(part) for part in encoder.encode([])] == [0, 0]
    with pytest.raises(InputError, match="has no end-of-text id\n  leave out eot=True"):
        encoder.encode(texts, eot=True)


def write_ranks(folder: Path) -> Path:
    """A rank file with GPT-2's first 2,000 tokens."""
    path = folder / "gpt2.tiktoken"
    path.write_bytes(b"".join(islice(iter_ranks(), 2000)))
    return path


def test_no_engine_is_tried_that_has_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget too small for the fast engine is not spent on checking it."""
    monkeypatch.setattr("fineweb_stream.pipeline.vocabulary.get_encoder", lambda *_: pytest.fail("loaded"))
    write_jsonl(tmp_path / "c.jsonl", TEXTS * 99)
    options: dict[str, Any] = {"tokenizer": write_ranks(tmp_path), "pattern": "gpt2", "eot_id": 2000}
    estimate(tmp_path / "c.jsonl", tmp_path / "o", memory="150MB", **options)


@pytest.mark.parametrize("pattern", ["cl100k_base", "gpt-2", "gpt2 ", "", "word"])
def test_a_pattern_that_is_no_name(pattern: str, tmp_path: Path) -> None:
    """A mistyped name of a pattern is not used as a regular expression: it would match next to nothing."""
    with pytest.raises(InputError, match="give --pattern: cl100k, "):
        load_tokenizer(str(write_ranks(tmp_path)), pattern, 2000)


@pytest.mark.parametrize("pattern", [r"\w+", ".", r"[^x]+", r"\s+|\S{1,3}(?=\S)"])
def test_a_pattern_that_passes_text_over(pattern: str, tmp_path: Path) -> None:
    """Text that a pattern does not match would be in no id: it is refused, and the advice works."""
    path, docs = write_ranks(tmp_path), [f"Some words x\nof {i}, and more." for i in range(300)]
    write_jsonl(tmp_path / "c.jsonl", docs)
    options: dict[str, Any] = {"tokenizer": path, "eot_id": 2000, "quiet": True}
    with pytest.raises(InputError, match="--pattern does not match all of the text, from '") as caught:
        prepare(tmp_path / "c.jsonl", tmp_path / "o", pattern=pattern, **options)
    assert not (tmp_path / "o").exists()
    ending = caught.value.hint.removeprefix("end the pattern with ")
    prepare(tmp_path / "c.jsonl", tmp_path / "o", pattern=pattern + ending, **options)
    tokens = [*token_bytes()[:2000], b"<|endoftext|>"]
    data = b"".join(tokens[i] for name in ("val.bin", "train.bin") for i in read_ids(tmp_path / "o" / name))
    assert sorted(data.split(b"<|endoftext|>")) == sorted([b"", *map(str.encode, docs)])


def test_an_encoding_that_passes_text_over(tmp_path: Path, plugin: Callable[..., None]) -> None:
    """If the pattern of an encoding from a plugin drops text, the advice is another tokenizer."""
    plugin("words", small_ranks(0), 70_000, r"\w+")
    write_jsonl(tmp_path / "c.jsonl", TEXTS)
    with pytest.raises(InputError, match=r"the pattern of words does not match all .*\n  choose another --tokenizer"):
        prepare(tmp_path / "c.jsonl", tmp_path / "o", tokenizer="words", quiet=True)


@pytest.mark.parametrize(
    "step",
    [
        {"type": "Whitespace"},
        {"type": "WhitespaceSplit"},
        {"type": "BertPreTokenizer"},
        {"type": "CharDelimiterSplit", "delimiter": "o"},
        {"type": "Split", "pattern": {"Regex": r"\w+"}, "behavior": "Removed", "invert": True},
    ],
)
def test_a_pre_tokenizer_that_passes_text_over(step: dict[str, Any], tmp_path: Path) -> None:
    """So for a tokenizer.json: text that its pre-tokenizer drops is named, unless a normalizer may change texts."""
    path = make_json(tmp_path, "digits")
    content = json.loads(path.read_text())
    content["pre_tokenizer"]["pretokenizers"][0] = step
    path.write_text(json.dumps(content))
    docs = write_jsonl(tmp_path / "c.jsonl", [f"some words of {i}" for i in range(99)])
    with pytest.raises(InputError, match="the pattern of model does not match all of the text, from '"):
        prepare(docs, tmp_path / "o", tokenizer=path, quiet=True)
    assert not (tmp_path / "o").exists()
    path.write_text(json.dumps(content | {"normalizer": {"type": "Lowercase"}}))
    assert prepare(docs, tmp_path / "o", tokenizer=path, quiet=True).train_documents == 98


def test_a_pattern_that_matches_nothing(tmp_path: Path) -> None:
    """A pattern that matches the empty string, on which tiktoken panics, is named."""
    tokenizer = load_tokenizer(str(write_ranks(tmp_path)), "a*", 2000)
    with pytest.raises(InputError, match=r"--pattern 'a\*': it matches the empty string"):
        Encoder("tiktoken", tokenizer)


def test_tiktokens_own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An encoding of tiktoken's is read from its cache; if it is not there, the message says what to put where."""
    import requests

    def no_network(url: str, **_: Any) -> Any:
        raise requests.exceptions.ConnectionError(request=requests.Request("GET", url).prepare())

    monkeypatch.setattr("requests.get", no_network)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    with pytest.raises(InputError) as caught:
        load_tokenizer("r50k_base")
    place = Path(str(caught.value).rpartition(" there as ")[2])
    assert place.parent == tmp_path and "r50k_base.tiktoken" in str(caught.value)
    place.write_bytes(b"".join(iter_ranks()))
    tokenizer = load_tokenizer("r50k_base")
    assert tokenizer.n_ids == 50257 and tokenizer.dtype == np.uint16 and len(load_merges()) == 50_000
    assert usable(tokenizer).encode(TEXTS, eot=True)[0].tolist() == Encoder().encode(TEXTS, eot=True)[0].tolist()
    with pytest.raises(InputError, match="no such tokenizer: 'cl100k'"):
        load_tokenizer("cl100k")


def test_what_is_no_tokenizer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is no byte-level BPE, damaged or missing is named in a sentence."""
    path = tmp_path / "tokenizer.json"
    for content, message in (
        ("{", "not a tokenizer.json"),
        ("[" * 100_000, "not a tokenizer.json"),
        ('{"model": {"type": "BPE", "vocab": {"a": 0}}}', "not a tokenizer.json .KeyError: 'merges'"),
        ('{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [[1, 2]]}}', "not a tokenizer.json .TypeError"),
        ('{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": null}}', "not a tokenizer.json .TypeError"),
        (
            '{"model": {"type": "Unigram", "vocab": [["<unk>", 0.0], ["a", -1.5]]}}',
            "another kind .Unigram; no pre-token",
        ),
        ('{"model": {"type": "WordPiece", "vocab": {"a": 0}}}', "another kind .WordPiece; no pre-token"),
        ('{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}', "another kind"),
        (small_json("cl100k").replace('"type": "BPE"', '"type": "BPE", "dropout": 0.1'), "leaves out merges at random"),
        (
            small_json("cl100k").replace('"type": "BPE"', '"type": "BPE", "continuing_subword_prefix": "#"'),
            "BPE with conti",
        ),
        (
            small_json("cl100k").replace('"type": "BPE"', '"type": "BPE", "end_of_word_suffix": "</w>"'),
            "BPE with end_of_",
        ),
        (small_json("cl100k").replace('"add_prefix_space": false', '"add_prefix_space": true'), "puts a space before"),
        (small_json("cl100k").replace('"A": ', '"AAAA": '), "no token for 1 of the bytes"),
        (small_json("cl100k").replace('"added_tokens": [{"id": ', '"added_tokens": [{"id": -'), "the id -"),
    ):
        path.write_text(content)
        with pytest.raises(InputError, match=message):
            load_tokenizer(str(tmp_path))
    with pytest.raises(InputError, match="No such file"):
        load_tokenizer("nowhere/tokenizer.json")
    if os.path.exists("/dev/zero"):
        with (
            monkeypatch.context() as patch,
            pytest.raises(InputError, match="more than 1,000 bytes, so not a tokenizer"),
        ):
            patch.setattr(load, "MAX_FILE_BYTES", 1000)
            load_tokenizer("/dev/zero", "gpt2")
    with pytest.raises(InputError, match="--eot-id 7"):
        load_tokenizer("gpt2", eot=7)
    with pytest.raises(InputError, match="--pattern is for rank files"):
        load_tokenizer("gpt2", "cl100k")


def test_a_tokenizer_travels_by_its_file(tmp_path: Path) -> None:
    """Unpickled, as by a cluster's workers, a tokenizer is loaded from its file; another file is refused."""
    path = make_json(tmp_path, "qwen2")
    tokenizer = load_tokenizer(str(path))
    data = pickle.dumps(tokenizer)
    assert len(data) < 1000 and pickle.loads(data).vocabulary_sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    load.reload.cache_clear()  # as in a new process
    path.write_text(small_json("cl100k"), encoding="utf-8")
    with pytest.raises(InputError, match="not the tokenizer that made the ids"):
        pickle.loads(data)
    for name in ("gpt2", "bytes"):
        assert pickle.loads(pickle.dumps(load_tokenizer(name))).name == name


def test_meta_is_of_builtins_and_nobodys_else(tmp_path: Path) -> None:
    """meta.pkl unpickles without this package; somebody else's stays, and is named before any work."""
    write_jsonl(tmp_path / "c.jsonl", TEXTS)
    out = tmp_path / "o"
    prepare(tmp_path / "c.jsonl", out, tokenizer="bytes", quiet=True)
    data = (out / "meta.pkl").read_bytes()
    assert b"fineweb_stream" not in data and b"numpy" not in data
    assert pickle.loads(data)["stoi"][string.ascii_letters[0]] == 97
    prepare(tmp_path / "c.jsonl", out, tokenizer="gpt2", overwrite=True, quiet=True)
    assert not (out / "meta.pkl").exists()
    other = tmp_path / "p"
    other.mkdir()
    (other / "meta.pkl").write_bytes(b"mine")
    with pytest.raises(InputError, match=r"meta\.pkl already exists"):
        prepare(tmp_path / "c.jsonl", other, tokenizer="bytes", overwrite=True, quiet=True)
    assert (other / "meta.pkl").read_bytes() == b"mine"


def test_an_end_of_text_that_merges_spell(tmp_path: Path) -> None:
    """If merges make the end-of-text id of a text, the vocabulary is named; another end-of-text helps, as advised."""
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|endoftext|>", "<pad>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(["<|endoftext|>"] * 50, trainer)
    made.save(str(tmp_path / "tokenizer.json"))
    path = write_jsonl(tmp_path / "c.jsonl", ["some words", "<|endoftext|>", "and more"])
    options = {"tokenizer": tmp_path / "tokenizer.json", "quiet": True}
    assert load_tokenizer(str(tmp_path / "tokenizer.json")).has_fast is False
    with pytest.raises(EngineError, match=r"spells its end-of-text id 0 in a text: 4 ends .* for 3 ") as caught:
        prepare(path, tmp_path / "out", **options)
    assert "choose another end-of-text with --eot-id" in caught.value.hint
    assert prepare(path, tmp_path / "out", eot_id="<pad>", **options).train_documents == 2


@pytest.mark.parametrize(("one", "special"), [("foo", "foofoo"), ("foofoo", "foo"), ("<qqa>", "qa><q"), ("|>x", "y<|")])
def test_added_tokens_that_share_characters(one: str, special: str, tmp_path: Path) -> None:
    """A special token is plain text, but the reference still finds it there: another token in it is not found then."""
    path = make_json(tmp_path, "cl100k", 3000, (one, special))
    content = json.loads(path.read_text())
    content["added_tokens"][2]["special"] = True
    path.write_text(json.dumps(content))
    tokenizer = load_tokenizer(str(path))
    encoder, ids_of = usable(tokenizer), oracle(tokenizer)
    for document in (
        f"a{special}b",
        special * 3,
        f"{one}{special}",
        f"{special}{one} {one[1:]}{special}",
        one[:-1] + special,
    ):
        assert encoder.encode([document], eot=True)[0].tolist() == [*ids_of(document), tokenizer.eot_id]


def test_added_tokens_that_are_looked_for_first(tmp_path: Path) -> None:
    """The reference looks for all that are not normalized before the others, wherever they begin."""
    path = make_json(tmp_path, "cl100k", 3000, ("bqa", "qaZ>"))
    content = json.loads(path.read_text())
    content["added_tokens"][1]["normalized"] = True
    path.write_text(json.dumps(content))
    tokenizer = load_tokenizer(str(path))
    encoder, ids_of = usable(tokenizer), oracle(tokenizer)
    for document in ("bqaZ>", "x bqaZ> bqa", "bqa qaZ>"):
        assert encoder.encode([document], eot=True)[0].tolist() == [*ids_of(document), tokenizer.eot_id]


def test_an_added_token_that_is_the_name_of_a_byte(tmp_path: Path) -> None:
    """One id then stands for two texts, by the reference, too: no text is lost, so none is refused."""
    path = make_json(tmp_path, "cl100k", 3000, ("é",))
    content = json.loads(path.read_text())
    content["added_tokens"][1]["id"] = content["model"]["vocab"]["é"]
    path.write_text(json.dumps(content))
    tokenizer = load_tokenizer(str(path))
    document = "é鎮"
    ids, ids_of = Encoder("tokenizers", tokenizer).encode([document], eot=True)[0], oracle(tokenizer)
    assert ids.tolist() == [*ids_of(document), tokenizer.eot_id] and ids.tolist().count(ids[0]) == 2


@pytest.mark.parametrize("kind", ["in the vocabulary", "after a gap"])
def test_added_tokens_with_other_ids(kind: str, tmp_path: Path) -> None:
    """The reference gives an added token the id of the vocabulary, or the next one, whatever the file says: refused."""
    path = make_json(tmp_path, "cl100k", 3000, ("foo",))
    content = json.loads(path.read_text())
    token = content["added_tokens"][1]
    if kind == "in the vocabulary":
        token["content"] = next(
            text for text, i in content["model"]["vocab"].items() if len(text) > 2 and text.isascii()
        )
    else:
        token["id"] += 1000
    path.write_text(json.dumps(content))
    with pytest.raises(
        InputError, match=r"tokenizer\.json: gives the added token '.*' the id \d+, which is \d+ by the"
    ):
        usable(load_tokenizer(str(path)))


def test_what_a_package_refuses_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that the package itself cannot load, or whose cached copy is damaged, is named with the reason."""
    path = make_json(tmp_path, "cl100k")
    content = json.loads(path.read_text())
    content["model"]["merges"].append("no such")
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match="tokenizers cannot load it: "):
        load_tokenizer(str(path)).load_reference()
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: int("damaged"))
    with pytest.raises(InputError, match=r"p50k_base: tiktoken cannot load it: .*\n  is its file damaged"):
        load_tokenizer("p50k_base")


@pytest.mark.parametrize(
    ("config", "eot"),
    [('{"eos_token": "<|x|>"}', "<|x|>"), ('{"eos_token": {"content": "<|x|>"}}', "<|x|>"), ("[", None)],
)
def test_the_end_of_text_that_a_configuration_names(config: str, eot: str | None, tmp_path: Path) -> None:
    """It is a model's own end-of-text; without one that can be read, one with a usual name is."""
    path = make_json(tmp_path, "cl100k", 3000, ("<|x|>",))
    (path.parent / "tokenizer_config.json").write_text(config)
    tokenizer = load_tokenizer(str(path))
    assert tokenizer.token_bytes()[tokenizer.eot_id or 0] == (eot or "<|endoftext|>").encode()


def test_rank_files_that_are_none(tmp_path: Path) -> None:
    """A blank line says nothing; a line of anything else, and a vocabulary without all bytes, are named."""
    path = write_ranks(tmp_path)
    data, expected = path.read_bytes(), load_tokenizer(str(path), "gpt2", 2000).vocabulary_sha256
    path.write_bytes(data.replace(b"\n", b"\n\n", 1))
    assert load_tokenizer(str(path), "gpt2", 2000).vocabulary_sha256 == expected
    for damaged, message in (
        (data + b"IQ== 1 2\n", "line 2001: not a token in base64"),
        (data + b"AAAA -1\n", "line 2001: not a token in base64"),
        (data + b"AAAA 16777216\n", "line 2001: not a token in base64"),
        (data.partition(b"\n")[2], "a byte that has none"),
        (data + b"AAAA 7\n", "two tokens of one rank"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=message):
            load_tokenizer(str(path), "gpt2", 2000)


def test_an_end_of_text_among_special_tokens(plugin: Callable[..., None]) -> None:
    """An encoding's special token may be named by its text or its id; another is refused, and they are listed."""
    plugin("special", small_ranks(0), 70_000, WORD_PATTERNS["cl100k"][0])
    assert {load_tokenizer("special", eot=eot).eot_id for eot in (None, "<|endoftext|>", "70000", 70_000)} == {70_000}
    with pytest.raises(InputError, match=r"--eot-id 7: no special token .*\n  it has 70000 \(<\|endoftext\|>\)"):
        load_tokenizer("special", eot=7)


def test_characters_that_came_after_the_first_pass(tmp_path: Path) -> None:
    """A character that the first pass has not seen is named: the text has changed."""
    tokenizer = load.load_spec(load_tokenizer("chars").spec._replace(characters="abc"))
    with pytest.raises(InputError, match="the character 'd' is not in the vocabulary"):
        Encoder(tokenizer=tokenizer).encode(["abcd"])


def test_a_manifest_that_names_no_tokenizer() -> None:
    """A forged manifest gives one sentence."""
    for about in ({}, {"name": 7}, {"name": "gpt2", "eot": 7}):
        with pytest.raises(InputError, match="names no tokenizer"):
            load.of_record(about)


def test_files_without_an_end_of_text_have_no_documents(tmp_path: Path) -> None:
    """There is nothing to index."""
    (tmp_path / "c.txt").write_text("some words " * 99)
    prepare(tmp_path / "c.txt", tmp_path / "out", tokenizer="chars", quiet=True)
    with pytest.raises(InputError, match="chars has no end-of-text id, so no documents"):
        open_documents(tmp_path / "out")
