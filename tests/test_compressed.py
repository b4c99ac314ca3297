"""Compressed files give the bytes of the plain ones, or are refused by name; streams go on where they were."""

from __future__ import annotations

import bz2
import functools
import gzip
import io
import itertools
import lzma
import shutil
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineweb_stream import prepare
from fineweb_stream.inputs.codecs import CompressedFile
from fineweb_stream.pipeline import ahead
from fineweb_stream.pipeline.ahead import Piece, read_ahead
from fineweb_stream.support.errors import InputError

from .helpers import outputs, write_jsonl, write_parquet

DOCS = [f"Document {i}, it's {'more ' * (i % 50)}text of 漢字.\n\nEnd" for i in range(9000)]


@functools.lru_cache(20)
def pack(data: bytes, suffix: str, n_members: int = 3) -> bytes:
    """Compress in several members (gzip, bzip2), streams (xz) or frames (zstd)."""
    if suffix == ".zst":
        # As the zstd program does.
        compress = pytest.importorskip("zstandard").ZstdCompressor(write_checksum=True).compress
    else:
        compress = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}[suffix]
    size = len(data) // n_members + 1
    return b"".join(compress(data[i : i + size]) for i in range(0, len(data), size))


SUFFIXES = [".gz", ".zst", ".xz", ".bz2"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documents in `c.jsonl`; what comes of it in `once`; of three times the same in `thrice`."""
    folder = tmp_path_factory.mktemp("plain")
    path = write_jsonl(folder / "c.jsonl", DOCS)
    prepare(path, folder / "once", quiet=True)
    prepare([path] * 3, folder / "thrice", quiet=True)
    return path


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_same_bytes_as_the_plain_file(plain: Path, tmp_path: Path, suffix: str) -> None:
    """The same documents in jsonl and separated text, compressed in several members: the bytes of the plain file."""
    (tmp_path / f"p.jsonl{suffix}").write_bytes(pack(plain.read_bytes(), suffix))
    (tmp_path / f"s.txt{suffix}").write_bytes(pack("<SEP>".join(DOCS).encode(), suffix))
    prepare(tmp_path / f"p.jsonl{suffix}", tmp_path / "jsonl", quiet=True)
    prepare(tmp_path / f"s.txt{suffix}", tmp_path / "text", separator="<SEP>", quiet=True)
    assert outputs(tmp_path / "jsonl") == outputs(plain.parent / "once") == outputs(tmp_path / "text")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_unpacked_little_at_a_time(suffix: str) -> None:
    """However well a file is compressed, little of it is unpacked ahead of what is asked for; all of it comes."""
    size = 100 << 20
    file, n_read = CompressedFile(io.BytesIO(pack(b"a" * size, suffix, 2)), f"c{suffix}", suffix), 0
    while data := file.read(1 << 20):
        n_read += len(data)
        assert file.n_held <= 16 << 20
    assert n_read == size


def test_parquet_gives_the_same_bytes(plain: Path, tmp_path: Path) -> None:
    """The same documents in parquet, whose pages are compressed, give the bytes of the plain file."""
    pytest.importorskip("pyarrow")
    prepare(write_parquet(tmp_path / "c.parquet", DOCS), tmp_path / "parquet", quiet=True)
    assert outputs(tmp_path / "parquet") == outputs(plain.parent / "once")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_several_files_one_after_the_other(plain: Path, tmp_path: Path, suffix: str) -> None:
    """Files that are decompressed at the same time come in order."""
    for i in range(5):
        part = write_jsonl(tmp_path / "part.tmp", DOCS[i * 1800 : (i + 1) * 1800])
        (tmp_path / f"{i}.jsonl{suffix}").write_bytes(pack(part.read_bytes(), suffix))
    prepare(sorted(tmp_path.glob(f"?.jsonl{suffix}")), tmp_path / "parts", workers=3, quiet=True)
    assert outputs(tmp_path / "parts") == outputs(plain.parent / "once")


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("damage", ["cut", "garbage", "flipped"])
def test_damaged_files_are_named(plain: Path, tmp_path: Path, suffix: str, damage: str) -> None:
    """A file that was cut off, has something after its end, or wrong bytes: named with the place, nothing final.

    Once the file is fetched again, as is advised, the run continues and loses nothing: `skip_bad` skips no such file.
    """
    whole = pack(plain.read_bytes(), suffix)
    data = bytearray(whole)
    if damage == "cut":
        del data[-9:]
    elif damage == "garbage":
        data += b"something else here"
    else:
        data[len(data) // 2 : len(data) // 2 + 40] = b"\xff" * 40
    path = tmp_path / f"p.jsonl{suffix}"
    path.write_bytes(data)
    with pytest.raises(InputError, match=rf"{path.name}: is (cut off|damaged).* near byte.*\n.*fetch the file again"):
        prepare([plain, path, plain], tmp_path / "out", quiet=True, skip_bad=True)
    assert not outputs(tmp_path / "out")
    path.write_bytes(whole)
    prepare([plain, path, plain], tmp_path / "out", quiet=True, skip_bad=True)
    assert outputs(tmp_path / "out") == outputs(plain.parent / "thrice")


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_padding_is_passed_over(suffix: str) -> None:
    """Zero bytes after a member, as tapes leave them, are skipped; before the first one they are damage."""
    pad = bytes(40_000)
    data = pack(b"some words", suffix, 1) + pad + pack(b" and more", suffix, 1) + pad
    assert CompressedFile(io.BytesIO(data), "c", suffix).read(100) == b"some words and more"
    with pytest.raises(InputError, match="damaged"):
        CompressedFile(io.BytesIO(pad + data), "c", suffix).read(100)


def test_a_zstd_window_too_large_is_told(tmp_path: Path) -> None:
    """What zstd --long=28 makes is read if there is memory for it; else the advice how to unpack it works."""
    zstandard = pytest.importorskip("zstandard")
    parameters = zstandard.ZstdCompressionParameters(window_log=28)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    (tmp_path / "c.txt.zst").write_bytes(packer.compress(b"some words\n" * 999) + packer.flush())
    with pytest.raises(
        InputError, match=r"needs more than \d+\.\d MB of memory to be unpacked.*\n.*unzstd --long=31"
    ) as caught:
        prepare(tmp_path / "c.txt.zst", tmp_path / "out", quiet=True, memory="300MB")
    prepare(tmp_path / "c.txt.zst", tmp_path / "out", quiet=True, memory="700MB")
    if not shutil.which("unzstd"):
        pytest.skip("no zstd program is here")
    subprocess.run(caught.value.hint.partition("unpack it: ")[2], shell=True, check=True)
    prepare(tmp_path / "c.txt", tmp_path / "plain", quiet=True, memory="300MB")
    assert outputs(tmp_path / "plain") == outputs(tmp_path / "out")


def test_a_zstd_dictionary_is_told(tmp_path: Path) -> None:
    """What was compressed with a dictionary is not called damaged, and the advice how to unpack it works."""
    zstandard = pytest.importorskip("zstandard")
    dictionary = zstandard.train_dictionary(2000, [f"words of the record {i}, and more".encode() for i in range(2000)])
    (tmp_path / "DICTIONARY").write_bytes(dictionary.as_bytes())
    packer = zstandard.ZstdCompressor(dict_data=dictionary)
    (tmp_path / "c.txt.zst").write_bytes(packer.compress(b"some words\n" * 999))
    with pytest.raises(InputError, match=r"was compressed with a dictionary.*\n.*unzstd -D DICTIONARY") as caught:
        prepare(tmp_path / "c.txt.zst", tmp_path / "out", quiet=True)
    if not shutil.which("unzstd"):
        pytest.skip("no zstd program is here")
    subprocess.run(caught.value.hint.partition("unpack it: ")[2], shell=True, check=True, cwd=tmp_path)
    assert (tmp_path / "c.txt").read_bytes() == b"some words\n" * 999


@given(data=st.binary(max_size=3000), sizes=st.lists(st.integers(1, 500), max_size=30), n_members=st.integers(1, 5))
def test_reads_of_any_size(data: bytes, sizes: list[int], n_members: int) -> None:
    """Whatever sizes are read, the contents come out whole."""
    import io

    for suffix in (".gz", ".xz", ".bz2"):
        file = CompressedFile(io.BytesIO(pack(data, suffix, n_members)), "c", suffix)
        parts = [file.read(size) for size in sizes]
        assert b"".join(parts) + file.read(10_000) == data


def test_plain_text_splits_like_the_plain_file(tmp_path) -> None:
    """A compressed text shorter than a stream's head has the very split of the plain one."""
    text = "some words to read, again and again. " * 50_000
    (tmp_path / "c.txt").write_text(text)
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(text.encode()))
    prepare(tmp_path / "c.txt", tmp_path / "plain", quiet=True)
    prepare(tmp_path / "c.txt.gz", tmp_path / "packed", quiet=True)
    assert outputs(tmp_path / "plain") == outputs(tmp_path / "packed")


def test_resume_in_a_compressed_file(plain: Path, tmp_path: Path) -> None:
    """A stopped run over compressed files skips forward and ends with the same bytes."""
    lines = plain.read_bytes().splitlines(keepends=True)
    bad = b"".join([*lines[:8000], b"{broken\n", *lines[8000:]])
    (tmp_path / "p.jsonl.gz").write_bytes(gzip.compress(bad))
    with pytest.raises(InputError, match="line 8,001"):
        prepare(tmp_path / "p.jsonl.gz", tmp_path / "out", quiet=True)
    prepare(tmp_path / "p.jsonl.gz", tmp_path / "out", skip_bad=True, quiet=True)
    assert outputs(tmp_path / "out") == outputs(plain.parent / "once")


def test_format_overrides_the_name(run_program, tmp_path) -> None:
    """--format: a file of any name, and standard input, are what they are said to be."""
    path = write_jsonl(tmp_path / "c.txt", DOCS)
    assert run_program(path, "--format", "jsonl", "--out", "a").returncode == 0
    assert run_program("-", "--format", "jsonl", "--out", "b", input=path.read_text()).returncode == 0
    assert outputs(tmp_path / "a") == outputs(tmp_path / "b")


def pieces(items: Iterable[int], size: int | None = None) -> Iterator[Piece[int]]:
    return (Piece(item, item if size is None else size) for item in items)


def test_read_ahead_raises_in_its_turn() -> None:
    """What an iterator raises comes after the items before it."""

    def fail() -> object:
        yield Piece(3, 0)
        raise ValueError("here")

    seen = []
    with pytest.raises(ValueError, match="here"):
        for item in read_ahead([lambda: pieces([1, 2]), fail, lambda: pieces([9])], n_ahead=3):
            seen.append(item)
    assert seen == [None, 1, 2, 3]


def test_threads_end_when_the_reader_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing wakes the threads that wait for room; none waits until it looks at its token again."""
    monkeypatch.setattr(ahead, "TICK_SECONDS", 1000)
    is_full = threading.Event()

    def make() -> Iterator[Piece[int]]:
        for number in itertools.count():
            if number == 4:  # one is taken, three wait, and there is no room for this one
                is_full.set()
            yield Piece(number, 1)

    reader = read_ahead([make], n_ahead=1, depth=3)
    assert [next(reader), next(reader)] == [None, 0] and is_full.wait(60)
    reader.close()  # the fixture `no_leaks` sees a thread that stays


def test_read_ahead_holds_no_more_than_it_may() -> None:
    """What waits for its turn is bounded in bytes over all readers; one item that is more still passes."""
    n_made = n_taken = most = 0
    lock = threading.Lock()

    def make(sizes: list[int]) -> Iterator[Piece[int]]:
        nonlocal n_made, most
        for size in sizes:
            with lock:
                n_made += size
                most = max(most, n_made - n_taken)
            yield Piece(size, size)

    sizes = [[10] * 40, [300] * 6, [10] * 40]
    items = []
    for item in filter(None, read_ahead([functools.partial(make, row) for row in sizes], 3, max_bytes=50)):
        if len(items) % 8 == 0:
            time.sleep(0.03)  # the readers fill all the room there is
        items.append(item)
        with lock:
            n_taken += item
    assert items == [item for row in sizes for item in row]
    assert most <= 50 + 3 * 300 + 2 * 10, "besides the room: one in its turn, what the readers have in hand, one here"
    assert most >= 50


def test_a_thread_that_cannot_begin_is_what_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the system has no more threads, that is the error that is raised, and no thread is left."""
    start, n_left = threading.Thread.start, 1

    def limited(thread: threading.Thread) -> None:
        nonlocal n_left
        if n_left == 0:
            raise RuntimeError("can't start new thread")
        n_left -= 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        list(read_ahead([lambda: pieces([1]), lambda: pieces([2])], n_ahead=2))


def test_what_is_needed_first_is_fetched_first() -> None:
    """Until the first iterator has begun, however long that takes, nothing of the others takes a connection."""
    begun: list[int] = []

    def make(number: int) -> Iterator[Piece[int]]:
        time.sleep(0 if number else 0.3)
        for _ in range(3):
            yield Piece(number, 1, functools.partial(begin, number))

    def begin(number: int) -> Future[int]:
        begun.append(number)
        future: Future[int] = Future()
        future.set_result(number)
        return future

    items = [item for item in read_ahead([functools.partial(make, i) for i in range(3)], 3) if item is not None]
    assert items == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert begun[0] == 0


def test_parquet_inside_gzip_is_refused(tmp_path: Path) -> None:
    """Parquet is read at any place: the message says to unpack it first."""
    (tmp_path / "c.parquet.gz").write_bytes(gzip.compress(b"PAR1"))
    with pytest.raises(InputError, match="unpack it: gzip -dc"):
        prepare(tmp_path / "c.parquet.gz", tmp_path, quiet=True)


@pytest.mark.parametrize("name", ["c.parquet.gz", "c.txt.gz", "c.jsonl.gz", "c.gz"])
def test_parquet_inside_gzip_is_unpacked_as_told(name: str, tmp_path: Path) -> None:
    """Whatever the file is called, the command in the message makes the parquet file."""
    packed = tmp_path / "packed"
    packed.mkdir()
    write_parquet(tmp_path / "c.parquet", DOCS)
    (packed / name).write_bytes(gzip.compress((tmp_path / "c.parquet").read_bytes()))
    with pytest.raises(InputError) as refused:
        prepare(packed / name, tmp_path, quiet=True)
    subprocess.run(refused.value.hint.partition("unpack it: ")[2], shell=True, check=True)
    assert [path.read_bytes() for path in packed.glob("*.parquet")] == [(tmp_path / "c.parquet").read_bytes()]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_becomes_a_thousand_times_larger_is_bounded(suffix: str) -> None:
    """However well it is packed, little more than what is asked for is unpacked at a time."""
    line = b"the cat sat on the mat\n"
    # bzip2 takes 3 s without the spaces.
    packed = bz2.compress(line.ljust(230) * 100_000, 1) if suffix == ".bz2" else pack(line * 1_000_000, suffix, 1)
    file = CompressedFile(io.BytesIO(packed), "c" + suffix, suffix)
    most = n_bytes = 0
    while data := file.read(1 << 16):
        n_bytes += len(data)
        most = max(most, len(file._held))
    assert n_bytes == 23_000_000
    assert most < 18 << 20
