"""`open_tokens`: over any number of shards, what the merged array would be."""

from __future__ import annotations

import errno
import operator
import os
import pickle
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fineweb_stream import open_documents, prepare
from fineweb_stream.support.errors import InputError
from fineweb_stream.token_files.commands import main
from fineweb_stream.token_files.joined import Tokens
from fineweb_stream.token_files.open import find_paths, open_tokens
from fineweb_stream.tokenizer.ids import Ids

from .helpers import shard_path


def write_shards(folder: Path, lengths: Sequence[int]) -> Ids:
    """Make shards of these lengths; return all ids, each of which is different."""
    ids = np.arange(sum(lengths), dtype="<u2")
    for number, part in enumerate(np.split(ids, np.cumsum(lengths)[:-1])):
        part.tofile(shard_path(folder, number))
    return ids


@contextmanager
def opened(lengths: Sequence[int]) -> Iterator[tuple[Tokens, Ids]]:
    """Tokens over shards of these lengths, and the array that they must equal."""
    with tempfile.TemporaryDirectory() as folder:
        ids = write_shards(Path(folder), lengths)
        yield Tokens(find_paths(folder)), ids


def keys(n: int) -> st.SearchStrategy[Any]:
    """Everything that may index an array of `n`: slices of every kind, integers, arrays of integers."""
    places = st.integers(-n, n - 1)
    shapes = hnp.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=6)
    arrays = hnp.arrays(st.sampled_from([np.int64, np.int32]), shapes, elements=places)
    unsigned = hnp.arrays(np.uint8, shapes, elements=st.integers(0, min(n, 256) - 1))
    steps = st.integers(-n - 1, n + 1).filter(bool) | st.sampled_from([None, 10**30, -(10**30)])
    bounds = st.integers(-2 * n, 2 * n) | st.none()
    slices = st.slices(n) | st.builds(slice, bounds, bounds, steps)
    return slices | places | places.map(np.int64) | arrays | unsigned | st.lists(places)


@pytest.mark.parametrize("n_shards", [1, 3, 40])
@given(data=st.data())
def test_equals_the_merged_array(n_shards: int, data: st.DataObject) -> None:
    """Every slice, integer and array of integers gives what it gives for the merged array."""
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=n_shards, max_size=n_shards))
    with opened(lengths) as (tokens, ids):
        assert (len(tokens), tokens.shape, tokens.dtype) == (len(ids), ids.shape, np.uint16)
        for key in data.draw(st.lists(keys(len(ids)), min_size=1, max_size=20)):
            expected = ids[np.array(key, np.intp) if key == [] else key] if isinstance(key, list) else ids[key]
            np.testing.assert_array_equal(tokens[key], expected, strict=True)
        files = {path: np.fromfile(path, "<u2") for path in {tokens.locate(place)[0] for place in range(len(ids))}}
        assert len(files) == n_shards
        for place in range(len(ids)):
            path, place_in_file = tokens.locate(place)
            assert files[path][place_in_file] == ids[place]


@pytest.mark.parametrize("lengths", [[7], [1, 3, 2, 1]])
def test_past_the_ends(lengths: list[int]) -> None:
    """A position out of range is an IndexError, alone and in an array, at both ends; so iteration ends."""
    with opened(lengths) as (tokens, ids):
        for place in (7, -8, 10**30, -(10**30)):
            with pytest.raises(IndexError, match="7 tokens"):
                tokens[place]
        for place in (7, -8):
            with pytest.raises(IndexError, match="7 tokens"):
                tokens[np.array([0, place])]
        assert list(tokens) == ids.tolist()


@pytest.mark.parametrize("key", [1.0, "a", None, (1, 2), np.array([True] * 7), np.array([0.5])], ids=repr)
def test_other_keys_are_refused(key: Any) -> None:
    """A mask, a float or a tuple is a TypeError, not a wrong answer."""
    with opened([3, 4]) as (tokens, _), pytest.raises(TypeError):
        tokens[key]


@pytest.mark.parametrize("lengths", [[7], [1, 3, 2, 1]])
def test_as_an_array(lengths: list[int]) -> None:
    """NumPy gets all ids, in the dtype that it asks for; `np.array` may be written to."""
    with opened(lengths) as (tokens, ids):
        np.testing.assert_array_equal(np.asarray(tokens), ids, strict=True)
        np.testing.assert_array_equal(np.asarray(tokens, np.int64), ids.astype(np.int64), strict=True)
        copy = np.array(tokens)
        copy[:] = 0
        np.testing.assert_array_equal(tokens[:], ids)
        for dtype in (np.int64, None):
            with pytest.raises(ValueError, match=f"the ids of {len(lengths)} files cannot be an array without a copy"):
                tokens.__array__(dtype, copy=False)


def test_slices_are_views_and_read_only() -> None:
    """A slice inside one file copies nothing, also right up to the file's ends; no slice can be written to."""
    with opened([4, 5, 6]) as (tokens, _):
        for key in (slice(4, 9), slice(5, 7), slice(8, 3, -1), slice(4, 9, 2)):
            assert np.shares_memory(tokens[key], tokens[4:9])
        for key in (slice(4, 9), slice(3, 10), slice(None, None, -1), slice(2, 2)):
            with pytest.raises(ValueError, match="read-only"):
                tokens[key][...] = 0


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    """A file of 4 GB is opened, and sliced at both ends, without being read: memory does not grow."""
    with (tmp_path / "train.bin").open("wb") as file:
        file.truncate(4 << 30)
        file.seek(-2, 2)
        file.write(b"\x07\x00")
    before = psutil.Process().memory_info().rss
    tokens = open_tokens(tmp_path)
    assert (len(tokens), tokens[-1]) == (2 << 30, 7)
    assert tokens[:1024].sum() + tokens[-1024:].sum() == tokens[[5, 2**31 - 1]].sum() == tokens[:: 2**31 - 1].sum() == 7
    assert psutil.Process().memory_info().rss - before < 64 << 20


def test_pickled_as_paths() -> None:
    """Pickled for a data loader's workers, tokens are paths, not data."""
    with opened([4000, 5000]) as (tokens, ids):
        assert len(pickle.dumps(tokens)) < 2000
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(tokens))[:], ids)


def test_what_of_a_folder_is_opened(tmp_path: Path) -> None:
    """`train.bin` comes before shards, which come in order of their numbers; `val` is val.bin; a file is itself."""
    ids = write_shards(tmp_path, [1] * 12)
    (tmp_path / "train_shard_0012.bin.part").write_bytes(b"1")
    assert open_tokens(tmp_path)[:].tolist() == ids.tolist()
    np.array([1, 2], "<u2").tofile(tmp_path / "train.bin")
    np.array([3], "<u2").tofile(tmp_path / "val.bin")
    assert open_tokens(str(tmp_path))[:].tolist() == [1, 2]
    assert open_tokens(tmp_path, split="val")[:].tolist() == [3]
    assert open_tokens(tmp_path / "train.bin", split="val")[:].tolist() == [1, 2]
    assert find_paths(tmp_path, "val") == [tmp_path / "val.bin"]


def test_names_as_prepare_takes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `out` was, in any form, opens what `prepare` wrote there: with ~, and as the system's bytes."""
    monkeypatch.setenv("HOME" if os.name != "nt" else "USERPROFILE", str(tmp_path))
    for name in ("~/tokens", os.fsencode(tmp_path / "bytes")):
        result = prepare(demo=True, out=name, index=True, quiet=True)
        assert len(open_tokens(name)) == result.train_tokens
        assert len(open_documents(name)) == result.train_documents


@pytest.mark.parametrize(
    ("files", "name", "split", "message"),
    [
        (
            {},
            "none.bin",
            "train",
            "none.bin: no such file\n  check the path, or make it: python -m fineweb_stream INPUT --out",
        ),
        ({"a.bin": b""}, "a.bin", "train", "a.bin: the file is empty\n  make it again"),
        ({"a.bin": b"123"}, "a.bin", "train", "a.bin: 3 bytes, an odd number"),
        ({"train_shard_0000.bin": b"12", "train_shard_0001.bin": b"1"}, "", "train", "train_shard_0001.bin: 1 bytes"),
        ({"val.bin": b"12"}, "", "train", "neither train.bin nor train_shard_0000.bin"),
        ({"val.bin": b"12", "train.bin.part": b"12"}, "", "train", "train.bin: not finished: "),
        ({"train_shard_0000.npy.part": b"12"}, "", "train", "train_shard_0000.npy: not finished: "),
        ({"train.bin": b"12", "val.bin.part": b"12"}, "", "val", "val.bin: not finished: "),
        ({"train.bin": b"12", "val.npy.part": b"12"}, "", "val", "val.npy: not finished: "),
        ({"train.bin": b"12"}, "", "val", "val.bin: no such file"),
        (
            {f"train_shard_{n:04}.bin": b"12" for n in (0, 1, 3)},
            "",
            "train",
            "train_shard_0002.bin: this shard is miss",
        ),
        (
            {f"train_shard_{n:04}.bin": b"12" for n in (1, 2)},
            "",
            "train",
            "train_shard_0000.bin: this shard is missing",
        ),
        ({"train.bin": b"12"}, "", "test", "no such split: 'test'\n  train or val"),
    ],
)
def test_errors_say_what_where_and_what_next(
    tmp_path: Path, files: dict[str, bytes], name: str, split: str, message: str
) -> None:
    """A missing, empty or truncated file, or a missing shard, is an InputError that names it and says what to do."""
    for file, data in files.items():
        (tmp_path / file).write_bytes(data)
    with pytest.raises(InputError) as caught:
        open_tokens(tmp_path / name, split)
    assert message in str(caught.value)
    assert caught.value.hint and caught.value.exit_status == 2


@pytest.mark.parametrize("layout", ["nanogpt", "llmc", "npy"])
@pytest.mark.parametrize("n_lost", [2, 4096, 100_000])
def test_a_copy_that_was_cut_off(layout: str, n_lost: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bare ids do not say how many they are, but the record beside them does."""
    prepare(demo=True, out=tmp_path, layout=layout, quiet=True)
    path = find_paths(tmp_path)[0]
    os.truncate(path, path.stat().st_size - n_lost)
    for command in ("inspect", "decode", "index"):
        for name in (tmp_path, path):
            assert main([command, str(name)]) == 2
            assert re.search(r"\.(bin|npy): [\d,]+ bytes, .*\n  .*opy .*make it again", capsys.readouterr().err)
    (tmp_path / "prepare.json").write_text('{"status": "done", "state": {"outputs": [1]}}')
    assert main(["inspect", str(path)]) == (0 if layout == "nanogpt" else 2), "nothing else is known"


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_shard_that_is_missing(number: int, tmp_path: Path) -> None:
    """The record says how many there are: without the last one, the others would pass for all."""
    prepare(demo=True, out=tmp_path, layout="npy", shard_tokens=12_000, quiet=True)
    assert len(find_paths(tmp_path)) > 3
    paths = [*find_paths(tmp_path)[:2], find_paths(tmp_path)[-1]]
    paths[number].unlink()
    with pytest.raises(InputError, match=f"{paths[number].name}: this shard is missing"):
        open_tokens(tmp_path)


def test_more_shards_than_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each map holds a file open: at the limit, the error says how to raise it."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    write_shards(tmp_path, [1, 1])
    monkeypatch.setattr(np, "memmap", refuse)
    with pytest.raises(InputError, match=r"train_shard_0000.bin: Too many open files\n.*ulimit -n"):
        open_tokens(tmp_path)


def test_one_file_is_a_plain_array(tmp_path: Path) -> None:
    """One file is a read-only `np.memmap`, no subclass: NumPy's functions, comparisons and casts do what they say."""
    ids = write_shards(tmp_path, [999])
    tokens = open_tokens(tmp_path)
    assert type(tokens) is np.memmap and not tokens.flags.writeable and tokens.dtype == np.uint16
    assert np.sum(tokens == 7) == 1 and np.bincount(tokens[3:6]).sum() == 3
    np.testing.assert_array_equal(tokens.astype(np.int64), ids.astype(np.int64), strict=True)
    np.testing.assert_array_equal(np.array_split(tokens, 3)[1], ids[333:666])


@pytest.mark.parametrize(
    "use",
    [
        lambda tokens: np.sum(tokens == 50256),
        lambda tokens: tokens != tokens,
        lambda tokens: np.arange(9) == tokens,
        lambda tokens: 7 in tokens,
        lambda tokens: np.sum(tokens),
        lambda tokens: np.count_nonzero(tokens),
        lambda tokens: np.concatenate([tokens, tokens]),
        lambda tokens: tokens.astype(np.int64),
        lambda tokens: tokens.reshape(3, 3),
        lambda tokens: tokens.tolist(),
        lambda tokens: tokens.sum(),
    ],
)
def test_shards_refuse_what_would_need_them_all(use: Any) -> None:
    """What arrays can do and shards cannot is a TypeError that says what to do: never 0, False or a wrong answer."""
    with opened([4, 5]) as (tokens, _):
        with pytest.raises(TypeError, match=r"tokens in 2 files.*tokens\[a:b\].*np.asarray"):
            use(tokens)
        assert not hasattr(tokens, "astype") and not hasattr(tokens, "nothing")
        assert (tokens.ndim, tokens.size, tokens.nbytes) == (1, 9, 18)
        assert len({tokens, tokens}) == 1


@pytest.mark.parametrize(
    "use",
    [
        lambda tokens: np.add(tokens, 1),
        lambda tokens: np.equal(tokens, 1),
        lambda tokens: tokens + 1,
        lambda tokens: np.arange(9) - tokens,
        lambda tokens: np.arange(9) < tokens,
        lambda tokens: tokens > 1,
        lambda tokens: -tokens,
        lambda tokens: operator.iadd(tokens, 1),
        lambda tokens: operator.setitem(tokens, 0, 1),
    ],
)
def test_shards_have_no_arithmetic(use: Any) -> None:
    """All other operators are a TypeError, too."""
    with opened([4, 5]) as (tokens, _), pytest.raises(TypeError, match="Tokens"):
        use(tokens)


TEXT = "What is 1\t+ 1?\r\nNothing but text, 漢字 included."


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (TEXT.encode(), "text"),
        (TEXT.encode()[:17], "text"),
        (("é" * 4000).encode(), "text"),
        (("x" + "é" * 4000).encode(), "text"),
        (b'{"text": "a record"}\n' * 999, "text"),
        (b"\xef\xbb\xbf" + TEXT.encode(), "text"),
        (TEXT.encode("utf-16"), "UTF-16 text"),
        (b"PAR1\x15\x04" + bytes(999), "a parquet file"),
        (b"\x1f\x8b\x08\x00" + bytes(999), "gzip data"),
        (b"PK\x03\x04" + bytes(999), "a zip archive"),
        (np.arange(1, 99, dtype="<u4").tobytes(), "ids of 4 bytes"),
        (np.arange(1, 99, dtype="<i8").tobytes(), "ids of 8 bytes"),
    ],
)
@pytest.mark.parametrize("name", ["train.bin", "a.txt", "b"])
def test_what_is_no_token_file_is_refused(
    data: bytes, what: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Text, other known files and wider ids are refused by their content, whatever their name, by `inspect` too."""
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=f"{name}: {what}.*, not ") as caught:
        open_tokens(tmp_path / name)
    assert caught.value.hint
    assert [main([command, str(tmp_path / name)]) for command in ("inspect", "decode")] == [2, 2]
    assert capsys.readouterr().out == ""


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such files")
def test_a_pipe_is_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pipe under an output's name is refused: opening it would wait for a writer."""
    os.mkfifo(tmp_path / "train.bin")
    with pytest.raises(InputError, match=r"train\.bin: not a regular file"):
        open_tokens(tmp_path)
    assert main(["inspect", str(tmp_path)]) == 2
    assert "train.bin: not a regular file" in capsys.readouterr().err


@given(ids=st.lists(st.integers(0, 50256), min_size=1, max_size=3000), first=st.sampled_from([0, 220, 8224, 26984]))
def test_what_is_a_token_file_is_opened(ids: list[int], first: int) -> None:
    """Ids of every kind open, also short files and those whose first ids have the bytes of text."""
    with tempfile.TemporaryDirectory() as folder:
        np.array([first] * 6 + [198, 50256, *ids], "<u2").tofile(Path(folder) / "a.bin")
        assert open_tokens(Path(folder) / "a.bin")[8:].tolist() == ids


@pytest.mark.parametrize("values", [[0] * 500, [0, 7] * 500, [7] * 500, [220] * 500, list(range(65)) * 9])
def test_few_ids_are_a_token_file(values: list[int], tmp_path: Path) -> None:
    """Files of few ids, and of characters, open too."""
    np.array(values, "<u2").tofile(tmp_path / "a.bin")
    assert open_tokens(tmp_path / "a.bin").tolist() == values
