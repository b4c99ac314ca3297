"""The contracts that a reader of train.bin relies on, against two-line oracles."""

from __future__ import annotations

import io
import itertools
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fineweb_stream import iter_ids, prepare
from fineweb_stream.support.errors import InputError
from fineweb_stream.tokenizer.gpt2 import EOT_ID

from .helpers import (
    both_splits,
    document_ids,
    outputs,
    prepare_in_blocks,
    read_ids,
    split_at_eot,
    texts_of,
    write_jsonl,
    write_parquet,
)
from .strategies import documents, texts

FORMATS = ("jsonl", "parquet", "separated")
SEPARATOR = "\n<|SEP|>\n"


def write_documents(kind: str, folder: Path, docs: list[str]) -> tuple[Path, dict[str, str]]:
    """Write the same documents in one of the formats; return the file and the options to read it."""
    if kind == "jsonl":
        return write_jsonl(folder / "c.jsonl", docs), {}
    if kind == "parquet":
        pytest.importorskip("pyarrow")
        return write_parquet(folder / "c.parquet", docs, row_group_size=3), {}
    (folder / "c.txt").write_bytes(SEPARATOR.join(docs).encode())
    return folder / "c.txt", {"separator": SEPARATOR, "format": "text"}


@settings(max_examples=100)
@given(
    text=texts.filter(lambda t: len(t) > 40 and t.strip()),
    block_bytes=st.integers(1, 100),
    shard_tokens=st.integers(1, 50),
    workers=st.integers(1, 8),
    val_ratio=st.sampled_from([0.0005, 0.1, 0.5]),
    engine=st.sampled_from(["tiktoken", "gigatoken"]),
)
@example(text="\ufeff" + "Hello" * 9, block_bytes=1, shard_tokens=1, workers=1, val_ratio=0.0005, engine="tiktoken")
def test_plain_text_is_exact(reference, text, block_bytes, shard_tokens, workers, val_ratio, engine) -> None:
    """C1: val.bin and then train.bin are tiktoken's ids of the file, for every block, shard and worker count."""
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder, "c.txt"), Path(folder, "out")
        path.write_bytes(text.encode())
        expected = reference.encode_ordinary(path.open(encoding="utf-8").read().removeprefix("\ufeff"))
        options = {"shard_tokens": shard_tokens, "workers": workers, "val_ratio": val_ratio, "engine": engine}
        options["format"] = "text"  # whatever it looks like
        try:
            result = prepare_in_blocks(block_bytes, path, out, **options)
        except InputError as error:  # one place to cut at the most: val took it all
            assert "nothing is left to train on" in str(error)
            assert not outputs(out)
            return
        assert both_splits(out) == expected
        assert (result.val_tokens, result.train_tokens) == (
            len(read_ids(out / "val.bin")),
            len(read_ids(out / "train.bin")),
        )


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_plain_text_corpus_is_exact(reference, corpus, engine: str, workers: int, tmp_path) -> None:
    """C1 on a real megabyte of FineWeb."""
    path = corpus("fineweb_1mb.txt")
    prepare(path, tmp_path, engine=engine, workers=workers, shard_tokens=50_000, quiet=True)
    assert both_splits(tmp_path) == reference.encode_ordinary(path.open(encoding="utf-8").read())


@pytest.mark.slow
def test_parquet_corpus_is_exact(reference, corpus, tmp_path) -> None:
    """C1 and C2 on 7 MB of English in two row groups: as documents, and as one text of seven blocks."""
    pq = pytest.importorskip("pyarrow.parquet")
    table = pq.ParquetFile(corpus("english_48mb.parquet")).read_row_groups([0, 7])
    pq.write_table(table, tmp_path / "c.parquet", row_group_size=1000, compression="zstd")
    docs = table["text"].to_pylist()
    expected = document_ids(reference, docs)
    prepare(tmp_path / "c.parquet", tmp_path / "documents", quiet=True)
    val, train = (split_at_eot(read_ids(tmp_path / "documents" / name)) for name in ("val.bin", "train.bin"))
    assert len(val) + len(train) == len(docs)
    remaining = iter(train)
    assert [next(remaining) if ids not in val else ids for ids in expected] == expected
    (tmp_path / "c.txt").write_text("\n".join(docs), newline="", encoding="utf-8")
    prepare(tmp_path / "c.txt", tmp_path / "text", quiet=True)
    text = (tmp_path / "c.txt").open(encoding="utf-8").read()
    assert both_splits(tmp_path / "text") == reference.encode_ordinary(text)


@settings(max_examples=60)
@given(
    docs=documents.filter(lambda d: any(t.strip() for t in d)),
    kind=st.sampled_from(FORMATS),
    block_bytes=st.integers(1, 100),
    shard_tokens=st.integers(1, 50),
    val_ratio=st.sampled_from([0.0005, 0.3]),
    seed=st.integers(-1, 3),
)
def test_documents_are_exact(reference, docs, kind, block_bytes, shard_tokens, val_ratio, seed) -> None:
    """C2: every document becomes its ids and 50256, in order within each split, none lost and none twice."""
    if kind == "separated":
        # There is no empty document; line ends are those of a text file, and a byte-order mark at its start is no text.
        docs = [docs[0].lstrip("\ufeff"), *docs[1:]]
        docs = [d.replace("\r\n", "\n").replace("\r", "\n") for d in docs]
        docs = [d for d in docs if d and SEPARATOR not in d and not d.startswith("\ufeff")]
    with tempfile.TemporaryDirectory() as folder:
        path, options = write_documents(kind, Path(folder), docs)
        out = Path(folder, "out")
        options |= {"shard_tokens": shard_tokens, "val_ratio": val_ratio, "seed": seed}
        try:
            result = prepare_in_blocks(block_bytes, path, out, **options)
        except InputError as error:
            assert (
                "nothing is left" in str(error)
                or "no text" in str(error)
                or "is empty" in str(error)
                or "only one document" in str(error)
            )
            return
        val, train = (split_at_eot(read_ids(out / name)) for name in ("val.bin", "train.bin"))
        assert (result.val_documents, result.train_documents) == (len(val), len(train))
        expected = [(ids, n) for n, ids in enumerate(document_ids(reference, docs))]
        assert sorted(val + train) == sorted(ids for ids, _ in expected)
        assert val[0] == expected[0][0], "the first document is always in val"
        assert is_subsequence(val, [ids for ids, _ in expected])
        assert is_subsequence(train, [ids for ids, _ in expected])


def is_subsequence(part: list[list[int]], whole: list[list[int]]) -> bool:
    remaining = iter(whole)
    return all(any(one == other for other in remaining) for one in part)


@pytest.mark.parametrize("place", [0, 3, 6], ids=["first", "middle", "last"])
def test_formats_shards_and_long_documents(reference, tmp_path, place: int) -> None:
    """C2-C4, C6: jsonl, parquet and separated text give the same bytes, a document of 3.5 shards anywhere."""
    docs = [f"Document {i} says hello.\n\nIt's short." for i in range(6)]
    docs.insert(place, "word " * 350)
    found = []
    for kind in FORMATS:
        (tmp_path / kind).mkdir()
        path, options = write_documents(kind, tmp_path / kind, docs)
        out = tmp_path / kind / "out"
        prepare(path, out, shard_tokens=100, keep_shards=True, quiet=True, **options)
        shards = sorted(out.glob("train_shard_*"))
        assert b"".join(shard.read_bytes() for shard in shards) == (out / "train.bin").read_bytes()
        assert {shard.stat().st_size for shard in shards[:-1]} <= {200}
        assert 0 < shards[-1].stat().st_size <= 200
        assert not list(out.glob("*.part"))
        found.append(outputs(out))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("extra", [-1, 0, 1])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("keep", [False, True])
def test_shard_ends(reference, tmp_path, k: int, extra: int, keep: bool) -> None:
    """C4: train tokens of exactly k shards, one less and one more."""
    n = 10 * k + extra
    (tmp_path / "c.txt").write_text(" a" * (n + 2))
    prepare(tmp_path / "c.txt", tmp_path, val_tokens=2, shard_tokens=10, keep_shards=keep, quiet=True)
    assert len(read_ids(tmp_path / "train.bin")) == n
    assert both_splits(tmp_path) == reference.encode_ordinary(" a" * (n + 2))
    sizes = [p.stat().st_size // 2 for p in sorted(tmp_path.glob("train_shard_*"))]
    assert sizes == ([10] * (n // 10) + [n % 10] * (n % 10 > 0) if keep else [])


@pytest.mark.parametrize("space", [" ", "\u3000"])
def test_a_million_spaces_between_documents(reference, engine: str, tmp_path, space: str) -> None:
    """Whitespace that tiktoken alone cannot encode: exact ids, and those of its neighbours."""
    docs = ["an ordinary document", "before" + space * 1_000_000 + "a after", "the next one"]
    path = write_jsonl(tmp_path / "c.jsonl", docs)
    prepare(path, tmp_path, engine=engine, quiet=True)
    middle = reference.encode_ordinary("before" + space * 999_999) + reference.encode_ordinary(space + "a after")
    assert split_at_eot(both_splits(tmp_path)) == [
        [*reference.encode_ordinary(docs[0]), EOT_ID], [*middle, EOT_ID], [*reference.encode_ordinary(docs[2]), EOT_ID]
    ]  # fmt: skip


def test_stock_get_batch(corpus, tmp_path) -> None:
    """C3: nanoGPT's get_batch draws 2,000 batches from both files: ids up to 50256, size = 2 x tokens."""
    result = prepare(corpus("fineweb_1mb.txt"), tmp_path, val_ratio=0.05, quiet=True)
    rng = np.random.default_rng(0)
    for name, n_tokens in (("train", result.train_tokens), ("val", result.val_tokens)):
        assert (tmp_path / f"{name}.bin").stat().st_size == 2 * n_tokens
        for _ in range(1000):
            data = np.memmap(tmp_path / f"{name}.bin", dtype=np.uint16, mode="r")
            starts = rng.integers(len(data) - 1024, size=12)
            x = np.stack([data[i : i + 1024].astype(np.int64) for i in starts])
            y = np.stack([data[i + 1 : i + 1 + 1024].astype(np.int64) for i in starts])
            assert x.max() <= EOT_ID
            assert (x[:, 1:] == y[:, :-1]).all()
    assert {p.name for p in tmp_path.iterdir()} == {"train.bin", "val.bin", "prepare.json"}


def test_several_texts_are_joined_by_one_eot(reference, tmp_path) -> None:
    """Plain-text files, in the order given, with one end-of-text id between two; empty ones hold nothing."""
    for name, text in (("b.txt", "second text here"), ("a.txt", "first text, the longer one"), ("folder/x.txt", "")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    prepare([tmp_path / "a.txt", tmp_path / "folder", tmp_path / "b.txt"], tmp_path, val_ratio=0.2, quiet=True)
    first, second = (reference.encode_ordinary((tmp_path / name).read_text()) for name in ("a.txt", "b.txt"))
    assert both_splits(tmp_path) == [*first, EOT_ID, *second]


def test_line_ends_and_byte_order_mark(reference, tmp_path) -> None:
    """A byte-order mark and line ends are read as by `open()`."""
    (tmp_path / "c.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\rthree\n\r\nfour \xef\xbb\xbf five")
    prepare(tmp_path / "c.txt", tmp_path, val_ratio=0.2, quiet=True)
    assert both_splits(tmp_path) == reference.encode_ordinary("one\ntwo\nthree\n\nfour \ufeff five")


@given(
    pieces=st.lists(
        st.sampled_from(["\n", "\n\n", "a", " b", "\u2028", "\x0b", "\x85", "\r"]), min_size=1, max_size=60
    ),
    separator=st.sampled_from(["\n", "\n\n", "a", "a\na"]),
    block_bytes=st.integers(1, 9),
)
def test_only_the_separator_parts(pieces, separator, block_bytes) -> None:
    """Documents are what `bytes.split` makes, wherever blocks end, overlapping separators included."""
    from fineweb_stream.inputs.separated import SeparatedText
    from fineweb_stream.support.model import Input, ReadOptions

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "c.txt")
        path.write_bytes("".join(pieces).encode())
        input = Input(str(path), "text", path.stat().st_size, "")
        source = SeparatedText(0, input, ReadOptions(separator=separator.encode()), block_bytes)
        found = [text for block in source.iter_blocks() for text in texts_of(block.read())]
        data = path.read_bytes().replace(b"\r\n", b"\n")  # line ends are as in plain text
        parts = data.split(separator.encode().replace(b"\r\n", b"\n").replace(b"\r", b"\n"))
        assert found == [one.decode().replace("\r", "\n") for one in parts if one]


@pytest.mark.parametrize("separator", [b"\n", b"\n\n", b"\n\n\n", b"a\n", b"\na\n"])
def test_blocks_of_any_line_ends_end_after_separators(separator: bytes, monkeypatch) -> None:
    """A search from any offset ends where one from the start ends, too; all short texts, all offsets."""
    from fineweb_stream.inputs import separated
    from fineweb_stream.inputs.blocks import Input
    from fineweb_stream.inputs.storage import InputFile

    monkeypatch.setattr(separated, "_SCAN_BYTES", 3)
    for letters in itertools.product(b"a\r\n", repeat=8):
        data = bytes(letters)
        ends = {match.end() for match in separated._pattern(separator).finditer(data)} | {len(data)}
        file = InputFile(Input("c.txt", "text", len(data), ""), io.BytesIO(data))
        for target in range(len(data)):
            found = separated._find_separator_end(file, separator, target)
            assert found >= target and found in ends, (data, target)


@pytest.mark.parametrize("separator", [b"a", b"ab", b"aa", b"aba", b"aaa"])
def test_blocks_end_after_separators_that_overlap_none_before(separator: bytes, monkeypatch) -> None:
    """Of overlapping separators, those count that a search from the start finds; all short texts, all offsets."""
    from fineweb_stream.inputs import separated
    from fineweb_stream.inputs.storage import InputFile
    from fineweb_stream.support.model import Input

    monkeypatch.setattr(separated, "_SCAN_BYTES", 3)
    n = len(separator)
    for letters in itertools.product(b"ab\r", repeat=9):
        data = bytes(letters)
        starts = [i for i in range(len(data)) if data.startswith(separator, i)]
        ends = [i + n for before, i in itertools.pairwise([-n, *starts]) if i - before >= n]
        file = InputFile(Input("c.txt", "text", len(data), ""), io.BytesIO(data))
        for target in range(len(data)):
            expected = next((end for end in ends if end >= target), len(data))
            assert separated._find_separator_end(file, separator, target) == expected, (data, target)


def test_standard_input_is_a_file(monkeypatch, reference, tmp_path) -> None:
    """`-` gives the ids of the file that was piped in."""
    from fineweb_stream.inputs import standard_input

    text = "some words to read, again and again. " * 9000
    standard_input._HEAD.clear()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    prepare("-", tmp_path / "piped", quiet=True)
    standard_input._HEAD.clear()
    (tmp_path / "c.txt").write_text(text)
    prepare(tmp_path / "c.txt", tmp_path / "file", quiet=True)
    assert outputs(tmp_path / "piped") == outputs(tmp_path / "file")
    assert both_splits(tmp_path / "piped") == reference.encode_ordinary(text)


@pytest.mark.parametrize("n", [20, 200])
def test_what_was_compared_of_a_pipe(n: int, monkeypatch, tmp_path, caplog) -> None:
    """A pipe that begins as the one before counts as the same; a note says how much was compared, if not all."""
    from fineweb_stream.inputs import standard_input

    caplog.set_level("INFO", "fineweb_stream")
    text, said = "some words to read, again and again. " * 300 * n, "its first 1,048,576 bytes were compared"
    for other in ("", "another end"):
        standard_input._HEAD.clear()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO((text + other).encode())))
        if n == 20 and other:  # all of it was compared
            with pytest.raises(InputError, match="standard input has another first MiB"):
                prepare("-", tmp_path / "out", val_ratio=0.1)
        else:
            prepare("-", tmp_path / "out", val_ratio=0.1)
            assert (said in caplog.text) == bool(other)
    standard_input._HEAD.clear()


@pytest.mark.parametrize("n", [1, 100, 5000])
def test_val_tokens(reference, tmp_path, n: int) -> None:
    """--val-tokens: plain text gives exactly the first N tokens; documents the first ones that reach N."""
    docs = [f"Document {i} says hello {'again ' * (i % 9)}." for i in range(900)]
    (tmp_path / "c.txt").write_text("\n".join(docs))
    prepare(tmp_path / "c.txt", tmp_path / "text", val_tokens=n, quiet=True)
    expected = reference.encode_ordinary("\n".join(docs))
    assert read_ids(tmp_path / "text" / "val.bin") == expected[:n]
    assert read_ids(tmp_path / "text" / "train.bin") == expected[n:]
    prepare_in_blocks(1000, write_jsonl(tmp_path / "c.jsonl", docs), tmp_path / "docs", val_tokens=n)
    val = split_at_eot(read_ids(tmp_path / "docs" / "val.bin"))
    assert val == document_ids(reference, docs)[: len(val)]
    assert sum(map(len, val[:-1])) < n <= sum(map(len, val))


def test_text_columns_of_every_kind(tmp_path) -> None:
    """string, large_string, dictionary and string_view columns give the same bytes."""
    pa = pytest.importorskip("pyarrow")
    docs = ["first document", "second, longer document"] * 50
    kinds = [pa.string(), pa.large_string()]
    if hasattr(pa, "string_view"):  # since pyarrow 16
        kinds.append(pa.string_view())
    found = []
    for i, kind in enumerate(kinds):
        prepare(write_parquet(tmp_path / f"{i}.parquet", docs, type=kind), tmp_path / str(i), quiet=True)
        found.append(outputs(tmp_path / str(i)))
    table = pa.table({"text": pa.array(docs).dictionary_encode()})
    pa.parquet.write_table(table, tmp_path / "d.parquet")
    prepare(tmp_path / "d.parquet", tmp_path / "d", quiet=True)
    assert all(one == found[0] for one in [*found, outputs(tmp_path / "d")])


def test_large_row_group_is_read_in_order(tmp_path) -> None:
    """One row group of 11 MB, which is decoded in parts, gives the bytes of many small ones."""
    pytest.importorskip("pyarrow")
    docs = [f"{i} " + "some words of a long document " * 300 for i in range(1200)]
    prepare(write_parquet(tmp_path / "one.parquet", docs, row_group_size=9999), tmp_path / "one", quiet=True)
    prepare(write_parquet(tmp_path / "many.parquet", docs, row_group_size=50), tmp_path / "many", quiet=True)
    assert outputs(tmp_path / "one") == outputs(tmp_path / "many")


def test_a_run_of_one_class_is_cut_and_reported(reference, tmp_path, capsys) -> None:
    """More than a MiB without a place to cut: cut between characters, counted and located."""
    text = "some words first " * 100 + "漢" * 1_400_000 + " and after"
    (tmp_path / "c.txt").write_text(text, encoding="utf-8")
    prepare(tmp_path / "c.txt", tmp_path)
    assert reference.decode(both_splits(tmp_path)) == text
    record = (tmp_path / "prepare.json").read_text()
    assert '"hard cut": 2' in record
    assert "c.txt, byte" in capsys.readouterr().out


@pytest.mark.parametrize("n", [0, 1])
def test_hard_cut_keeps_line_ends_whole(reference, tmp_path, n: int) -> None:
    r"""In a run of `\r\n` that has no good place to cut no line end is cut in two, which would be two of them."""
    (tmp_path / "c.txt").write_bytes(b"a" * n + b"\r\n" * 1_200_000 + b"end words here " * 50)
    prepare(tmp_path / "c.txt", tmp_path, val_ratio=0.9, quiet=True)
    text = reference.decode(both_splits(tmp_path))
    assert text == (tmp_path / "c.txt").read_text()


@pytest.mark.parametrize("kind", FORMATS)
def test_iter_ids_is_the_whole_corpus(reference, tmp_path, kind: str) -> None:
    """iter_ids yields uint16 arrays whose ids, one after the other, are those of every document."""
    docs = [f"Document {i} says hello.\n\nIt's short." for i in range(500)]
    path, options = write_documents(kind, tmp_path, docs)
    arrays = list(iter_ids(path, **options))
    assert {ids.dtype for ids in arrays} == {np.dtype(np.uint16)}
    assert np.concatenate(arrays).tolist() == [i for ids in document_ids(reference, docs) for i in ids]


def test_iter_ids_can_be_left(tmp_path) -> None:
    """Leaving early leaves no thread; an error in the input is raised where it is met."""
    docs = [f"Document {i} says hello. {'word ' * 200}" for i in range(20_000)]
    ids = iter_ids(write_jsonl(tmp_path / "c.jsonl", docs))
    assert len(next(ids)) > 1000
    ids.close()
    with pytest.raises(InputError, match=r"bad.jsonl.*not JSON"):
        (tmp_path / "bad.jsonl").write_text("{]\n")
        list(iter_ids(tmp_path / "bad.jsonl"))


@pytest.mark.parametrize("kind", FORMATS)
def test_a_byte_order_mark_is_no_text(kind: str, tmp_path: Path) -> None:
    """At the beginning of a file it is left out."""
    path, options = write_documents(kind, tmp_path, ["one", "two"])
    expected = np.concatenate(list(iter_ids(path, **options))).tolist()
    if kind != "parquet":
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert np.concatenate(list(iter_ids(path, **options))).tolist() == expected
