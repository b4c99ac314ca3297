"""`--shuffle`: an order drawn from all orders, by the seed alone; the same bytes whatever the memory and the kills."""

from __future__ import annotations

import collections
import contextlib
import errno
import inspect
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fineweb_stream import cli, open_documents, prepare
from fineweb_stream.output import files, shuffle, spool
from fineweb_stream.output.layouts import LAYOUTS
from fineweb_stream.output.manifest import read_record
from fineweb_stream.output.own import LOCK_NAME
from fineweb_stream.output.splits import hash_numbers
from fineweb_stream.output.spool import Bucket
from fineweb_stream.output.state import SHUFFLING
from fineweb_stream.output.verify import verify
from fineweb_stream.pipeline import run, samples
from fineweb_stream.support.errors import DiskError, InputError, PrepareError
from fineweb_stream.tokenizer.gpt2 import EOT_ID

from .helpers import System, document_ids, outputs, prepare_in_blocks, read_ids, split_at_eot, write_jsonl
from .test_failed_fsync import LosingFsync
from .test_resume import prepare_some

DOCS = [f"Document {i}: " + f"some words of number {i} " * (i % 23) for i in range(400)]
DOCS[50:52] = ["", "a long one " * 3000]
OPTIONS: dict[str, Any] = {"shuffle": True, "engine": "tiktoken", "workers": 1, "val_ratio": 0.2, "shard_tokens": 3000}

Limits = tuple[int, int, int]
LIMITS: dict[str, Limits] = {  # bytes that are held, tokens of a piece, tokens after which what was parted is saved
    "all at once": (10**9, 1 << 20, 1 << 27),
    "small pieces": (10**9, 100, 1 << 27),
    "seven buckets": (30_000, 500, 4000),
    "buckets too large": (2000, 333, 1000),
}


@contextlib.contextmanager
def limited(limits: Limits, most_buckets: int = 7) -> Iterator[None]:
    """Shuffle as on a machine with little memory, or with a large corpus."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "plan_shuffle", lambda guard: limits[0])
        patch.setattr(run, "forget_encoders", lambda: None)  # to build one anew takes longer than the run
        for module in (spool, shuffle):
            patch.setattr(module, "PIECE_TOKENS", limits[1])
        patch.setattr(shuffle, "COMMIT_TOKENS", limits[2])
        patch.setattr(shuffle, "MOST_BUCKETS", most_buckets)
        yield


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_jsonl(tmp_path_factory.mktemp("corpus") / "c.jsonl", DOCS)


@pytest.fixture(scope="module")
def made(corpus: Path) -> Callable[..., Path]:
    """The folder of an ordinary run with these options besides OPTIONS, which is run once."""

    def make(**options: Any) -> Path:
        out = corpus.parent / " ".join(["made", *(f"{name}-{value}" for name, value in sorted(options.items()))])
        if not out.exists():
            prepare(corpus, out, quiet=True, **OPTIONS | options)
        return out

    return make


@pytest.fixture(scope="module")
def expected(made: Callable[..., Path]) -> dict[str, bytes]:
    """The files of an ordinary run, and the shards that it can keep."""
    kept = outputs(made(keep_shards=True))
    assert kept.items() > outputs(made(keep_shards=False)).items()
    return kept


def oracle(documents: list[list[int]], split: int, seed: int) -> list[list[int]]:
    """The documents of a split in the order of their keys."""
    keys = hash_numbers(0, len(documents), int(hash_numbers(split, 1, seed)[0]))
    return [documents[i] for i in np.argsort(keys)]


def test_every_order_is_as_likely() -> None:
    """Over 12,000 seeds, each of the 120 orders of five documents comes up as often as by chance (chi-square)."""
    for split in (0, 1):
        orders = (tuple(np.argsort(hash_numbers(0, 5, int(hash_numbers(split, 1, s)[0])))) for s in range(12_000))
        counts = collections.Counter(orders)
        assert set(counts) == set(itertools.permutations(range(5)))
        chi_square = sum((n - 100) ** 2 / 100 for n in counts.values())
        assert 74.4 < chi_square < 177.6  # 119 degrees of freedom: 99.9% of all draws fall within


def test_first_and_last_are_strangers() -> None:
    """A document's new place does not depend on its old one, and neighbours do not stay together."""
    keys = hash_numbers(0, 100_000, int(hash_numbers(1, 1, 7)[0]))
    order = np.argsort(keys)
    assert len(np.unique(keys)) == len(keys)
    assert abs(np.corrcoef(np.arange(len(order)), order)[0, 1]) < 0.01
    assert (np.abs(np.diff(order)) == 1).sum() < 20


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("eot", ["after", "before", "both"])
def test_documents_are_ordered_by_key(reference: Any, made: Callable[..., Path], eot: str, seed: int) -> None:
    """Each split has the documents that it has without --shuffle, once each, in the order of the oracle."""
    plain, after = (made(seed=seed, eot=each, shuffle=False) for each in (eot, "after"))
    out = made(seed=seed, eot=eot)
    for split, name in enumerate(("val.bin", "train.bin")):
        before = oracle(split_at_eot(read_ids(after / name)), split, seed)
        ids = [i for d in before for i in [EOT_ID] * (eot != "after") + d[:-1] + [EOT_ID] * (eot != "before")]
        assert read_ids(out / name) == ids
        assert ids != read_ids(plain / name)
    found = [d for name in ("val", "train") for d in split_at_eot(read_ids(after / f"{name}.bin"))]
    assert sorted(found) == sorted(document_ids(reference, DOCS))
    verify(out)


@pytest.mark.usefixtures("keep_open_files")
@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize(
    "options", [{}, {"keep_shards": True}, {"val_ratio": 0.6, "eot": "both"}, {"layout": "npy", "eot": "before"}]
)
def test_same_bytes(
    limits: Limits, options: dict[str, Any], corpus: Path, made: Callable[..., Path], tmp_path: Path
) -> None:
    """Whatever is held at once, and however many buckets there are: same files, nothing left over."""
    with limited(limits):
        prepare_in_blocks(2777, corpus, tmp_path / "out", **OPTIONS | options | {"workers": 3})
    files_of = [{p.name: p.read_bytes() for p in folder.iterdir()} for folder in (made(**options), tmp_path / "out")]
    for found in files_of:
        del found["prepare.json"]
    assert files_of[0] == files_of[1]


def test_other_processes(
    new_process: Callable[[], ProcessPoolExecutor], corpus: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    """An executor of processes makes the same bytes, and so does the fast engine."""
    pytest.importorskip("gigatoken")
    with new_process() as executor:
        prepare(corpus, tmp_path / "out", quiet=True, executor=executor, **OPTIONS | {"engine": "gigatoken"})
    assert outputs(tmp_path / "out").items() < expected.items()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str, corpus: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    """Shards of every layout hold exactly --shard-tokens of the shuffled order; indexes and --verify know it."""
    prepare(corpus, tmp_path / "out", quiet=True, index=True, **OPTIONS | {"layout": layout})
    made = LAYOUTS[layout]
    names = (
        ["train.bin"]
        if made.is_merged
        else [p.name for p in sorted((tmp_path / "out").glob(f"{made.stems[0]}*{made.suffix}"))]
    )
    shards = [(tmp_path / "out" / name).read_bytes()[made.header_bytes :] for name in names]
    assert b"".join(shards) == expected["train.bin"]
    assert made.is_merged or {len(shard) for shard in shards[:-1]} == {6000}
    ids = (tmp_path / "out" / made.val_name).read_bytes()[made.header_bytes :]
    assert ids == expected["val.bin"]
    assert len(open_documents(tmp_path / "out")) + len(open_documents(tmp_path / "out", "val")) == len(DOCS)
    verify(tmp_path / "out")


@pytest.mark.parametrize("eot", ["after", "before", "both"])
@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
def test_max_tokens(limits: Limits, eot: str, corpus: Path, made: Callable[..., Path], tmp_path: Path) -> None:
    """The first N tokens of the input order are shuffled; a document that was cut before its end stands last."""
    options = {"eot": eot, "seed": 4}
    for n in (5000, 5001, 12_345):
        out = tmp_path / str(n)
        with limited(limits):
            prepare(corpus, out, quiet=True, max_tokens=n, **OPTIONS | options)
        plain, found = (read_ids(f / "train.bin") for f in (made(shuffle=False, max_tokens=n, **options), out))
        assert len(found) == n and found != plain and sorted(found) == sorted(plain)
        if eot == "after":
            n_whole = n - plain[::-1].index(EOT_ID)
            whole = oracle(split_at_eot(plain[:n_whole]), 1, 4)
            assert found == [i for document in whole for i in document] + plain[n_whole:]
        verify(out)


def test_more_is_refused(corpus: Path, tmp_path: Path) -> None:
    """A larger --max-tokens and one more input: the order of all would change, so it is refused; --overwrite works."""
    out, options = tmp_path / "out", OPTIONS | {"quiet": True}
    prepare(corpus, out, max_tokens=5000, **options)
    made = outputs(out)
    prepare(corpus, out, max_tokens=5000, **options)
    for more in ({"max_tokens": 6000}, {}):
        with pytest.raises(InputError, match=r"5,000 tokens of train are already shuffled.*\n.*--overwrite"):
            prepare(corpus, out, **options | more)
    assert outputs(out) == made
    prepare(corpus, out, overwrite=True, **options)
    with pytest.raises(InputError, match="the order of all would change"):
        prepare([corpus, write_jsonl(tmp_path / "d.jsonl", DOCS[:9])], out, **options)
    with pytest.raises(InputError, match="--shuffle was given and is not given"):
        prepare(corpus, out, **options | {"shuffle": False})
    with pytest.raises(InputError, match="--seed was 0 and is 1"):
        prepare(corpus, out, **options | {"seed": 1})


def test_plain_text_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Plain text has no documents to shuffle; what the message advises works."""
    (tmp_path / "c.txt").write_text("\n\n".join(DOCS[:100]))
    arguments = [str(tmp_path / "c.txt"), "--shuffle", "--val-ratio", "0.1", "--out", str(tmp_path / "out")]
    assert cli.main(arguments) == 2
    assert "plain text has no documents" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert cli.main([*arguments, "--separator", r"\n\n"]) == 0
    assert "shuffling" in capsys.readouterr().out


class Dying(System):
    """Stands in for `os` in `files.py`: the process dies at the n-th change of the disk, and changes no more."""

    def __init__(self, n: int) -> None:
        self.n_left = n

    def count(self) -> None:
        self.n_left -= 1
        if self.n_left <= 0:
            raise KeyboardInterrupt

    def write(self, fd: int, data: memoryview) -> int:
        if self.n_left == 1:
            os.write(fd, data[: len(data) // 2])  # it is killed in the middle
        self.count()
        return os.write(fd, data)

    def fsync(self, fd: int) -> None:
        self.count()
        os.fsync(fd)

    def replace(self, source: Path, target: Path) -> None:
        self.count()
        os.replace(source, target)

    def ftruncate(self, fd: int, n_bytes: int) -> None:
        self.count()
        os.ftruncate(fd, n_bytes)


class Full(Dying):
    """From the n-th write on, the disk is full."""

    def count(self) -> None:
        """Count writes alone."""

    def write(self, fd: int, data: memoryview) -> int:
        self.n_left -= 1
        if self.n_left <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(fd, data)


SMALL = [*DOCS[:200:5], "a long one " * 700]
SMALL_LIMITS: dict[str, tuple[Limits, int]] = {
    "all at once": (LIMITS["all at once"], 3),
    "three buckets": ((4000, 400, 1000), 3),
    "ranges, no buckets": ((4000, 1000, 1000), 1),
}


@pytest.fixture(scope="module", params=[False, True], ids=["merged", "kept"])
def waiting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which all is encoded and nothing is shuffled yet, and the finished files."""

    def dying(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    folder = tmp_path_factory.mktemp("waiting")
    options = OPTIONS | {"keep_shards": request.param, "quiet": True, "shard_tokens": 2000}
    path = write_jsonl(folder / "c.jsonl", SMALL)
    prepare(path, folder / "expected", **options)
    prepare(path, folder / "kept", **options | {"keep_shards": True})
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(run, "shuffle", dying)
        prepare(path, folder / "waiting", **options)
    record = read_record(folder / "waiting")
    assert record and record.state.status == SHUFFLING
    return folder


@pytest.mark.parametrize("keep_shards", [True, False])
@pytest.mark.parametrize("is_damaged", [True, False])
def test_stopped_while_it_is_encoded(keep_shards: bool, is_damaged: bool, tmp_path: Path) -> None:
    """With several files of the spool complete: it is resumed, and started over with --overwrite if one is gone."""
    path = write_jsonl(tmp_path / "c.jsonl", DOCS)
    options = OPTIONS | {"shard_tokens": 1000, "keep_shards": keep_shards}
    assert not prepare_some(path, tmp_path / "out", 14, **options)
    spool = sorted((tmp_path / "out").glob("prepare.spool_*.part"))
    assert len(spool) > 3
    if is_damaged:
        spool[1].unlink()
        with pytest.raises(PrepareError, match=r"spool_0001.*holds 0 bytes"):
            prepare(path, tmp_path / "out", quiet=True, **options)
    prepare(path, tmp_path / "out", overwrite=is_damaged, quiet=True, **options)
    prepare(path, tmp_path / "expected", quiet=True, **options)
    assert outputs(tmp_path / "out") == outputs(tmp_path / "expected")


def test_a_spool_that_was_altered_while_it_is_encoded(tmp_path: Path) -> None:
    """A bit that flips in a complete file of the spool is noticed before the shuffle."""
    path, options = write_jsonl(tmp_path / "c.jsonl", DOCS), OPTIONS | {"shard_tokens": 1000}
    assert not prepare_some(path, tmp_path / "out", 14, **options)
    part = sorted((tmp_path / "out").glob("prepare.spool_*.part"))[1]
    data = bytearray(part.read_bytes())
    data[100] ^= 1
    part.write_bytes(data)
    with pytest.raises(PrepareError, match=r"spool_0001.*: does not hold what the run has written"):
        prepare(path, tmp_path / "out", quiet=True, **options)


def test_a_spool_that_is_gone(waiting: Path, tmp_path: Path) -> None:
    """Missing at the start of the shuffle: it is named, and --overwrite starts over."""
    out = tmp_path / "out"
    shutil.copytree(waiting / "waiting", out)
    next(out.glob("prepare.spool_0001.bin.*.part")).unlink()
    settings = read_record(out).settings  # type: ignore[union-attr]
    options = OPTIONS | {"shard_tokens": 2000, "keep_shards": settings["keep_shards"], "quiet": True}
    with pytest.raises(PrepareError, match=r"spool_0001.*: holds 0 bytes, but .*\n  .*start over with --overwrite"):
        prepare(waiting / "c.jsonl", out, **options)
    prepare(waiting / "c.jsonl", out, overwrite=True, **options)
    assert outputs(out) == outputs(waiting / "expected")


@pytest.mark.parametrize("name", ["prepare.spool.bin", "prepare.spool_0001.bin", "prepare.bucket_0001.bin"])
def test_an_altered_spool(name: str, waiting: Path, tmp_path: Path) -> None:
    """A bit that flipped between stop and shuffle is noticed each time; moved away as advised, it starts over."""
    out = tmp_path / "out"
    shutil.copytree(waiting / "waiting", out)
    settings = read_record(out).settings  # type: ignore[union-attr]
    options = OPTIONS | {"shard_tokens": 2000, "keep_shards": settings["keep_shards"], "quiet": True}
    if "bucket" in name:  # stopped when train is in buckets, and the first one is written

        def dying(path: Path, *rest: Any) -> Bucket:
            if "0001" in path.name:
                raise KeyboardInterrupt
            return Bucket(path, *rest)

        with pytest.MonkeyPatch.context() as patch, limited(*SMALL_LIMITS["three buckets"]):
            patch.setattr(shuffle, "Bucket", dying)
            with pytest.raises(KeyboardInterrupt):
                prepare(waiting / "c.jsonl", out, **options)
    (path,) = out.glob(f"{name}.*.part")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    for overwrite in (False, False, True):
        with pytest.raises(PrepareError, match=rf"{name}.*: does not hold what .*\n  .*move it away, then start over"):
            prepare(waiting / "c.jsonl", out, overwrite=overwrite, **options)
    path.rename(tmp_path / "away")
    prepare(waiting / "c.jsonl", out, overwrite=True, **options)
    assert outputs(out) == outputs(waiting / "expected")


@pytest.mark.slow
@pytest.mark.parametrize("failure", [Dying, Full, LosingFsync])
@pytest.mark.parametrize("limits", SMALL_LIMITS)
def test_killed_at_every_change(
    failure: Any, limits: str, waiting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed, out of disk or with an fsync lost at any moment of shuffling: the same command makes the same bytes."""
    monkeypatch.setattr(samples, "sample", lambda *args: None)  # half of the time, and writes nothing; so do most slots
    monkeypatch.setattr(shuffle, "_N_SLOTS", 64)
    expected, finals = outputs(waiting / "expected"), outputs(waiting / "kept")
    settings = read_record(waiting / "waiting").settings  # type: ignore[union-attr]
    names = inspect.signature(prepare).parameters.keys() & settings.keys() - {"eot_id"}  # the tokenizer's
    options = {name: settings[name] for name in names} | {"engine": "tiktoken", "workers": 1, "quiet": True}
    n_failed, positions = 0, set()
    # The longest have the longest steps. A commit is three changes: in steps of 5 or 7 each of these has its turn.
    step = {"three buckets": 7, "ranges, no buckets": 5}.get(limits, 3) if failure is Dying else 3
    for n in itertools.count(1 + settings["keep_shards"], step):
        out, failing = tmp_path / str(n), failure(n)
        shutil.copytree(waiting / "waiting", out)
        with pytest.MonkeyPatch.context() as patch, limited(*SMALL_LIMITS[limits]):
            patch.setattr(files, "os", failing)
            patch.setattr(Path, "unlink", dying_too(failing))
            try:
                prepare(waiting / "c.jsonl", out, **options)
            except (KeyboardInterrupt, DiskError) as error:
                assert failure is Dying or "tokens are saved: the same command continues" in str(error)
        is_over = failing.n_left > 0
        for name, data in outputs(out).items():  # what is one shard in the end has the name of one for a moment
            assert data == finals[name] or (name, data) == ("train_shard_0000.bin", finals["train.bin"])
        record = read_record(out)
        assert record
        positions.add((record.state.status, str(record.state.shuffle)))
        with limited(*SMALL_LIMITS[limits if n % 2 else "all at once"]):
            prepare(waiting / "c.jsonl", out, **options)
        assert outputs(out) == expected
        assert {path.name for path in out.iterdir()} == {*expected, "prepare.json"}
        shutil.rmtree(out)
        if is_over:
            break
        n_failed += 1
    print(f"{failure.__name__}, {limits}: {n_failed} failures, {len(positions)} positions")
    assert n_failed >= 3 and len(positions) > 2


def dying_too(failing: Any) -> Any:
    """Deleting a file counts as a change, too."""
    unlink = Path.unlink

    def dying(path: Path, missing_ok: bool = False) -> None:
        if isinstance(failing, Dying) and path.name != LOCK_NAME:  # which goes with its process
            failing.count()
        unlink(path, missing_ok)

    return dying


def test_a_bucket_that_is_cut_off(tmp_path: Path) -> None:
    """Fewer numbers than were written are an error, not a shorter document."""
    fragments = spool.Fragments(np.array([7], np.uint64), np.array([3]), np.array([1, 2, 3], np.uint16))
    data = spool.pack(fragments)
    (tmp_path / "bucket").write_bytes(data)
    bucket = Bucket(tmp_path / "bucket", len(data), np.dtype("<u2"), lambda: None)
    assert [part.ids.tolist() for part in bucket.iter_fragments()] == [[1, 2, 3]]
    (tmp_path / "bucket").write_bytes(data[:-2])
    with pytest.raises(PrepareError, match="holds"):
        list(bucket.iter_fragments())


def test_more_buckets_than_documents(tmp_path: Path) -> None:
    """A bucket may be empty: a few long documents are as they are in memory."""
    path = write_jsonl(tmp_path / "c.jsonl", [f"{name} " * 3000 for name in "abc"])
    prepare(path, tmp_path / "expected", quiet=True, **OPTIONS)
    with limited((2000, 333, 1000), most_buckets=64):
        prepare(path, tmp_path / "out", quiet=True, **OPTIONS)
    assert outputs(tmp_path / "out") == outputs(tmp_path / "expected")


def test_buckets_hold_no_data(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written to a bucket is hashed at once: up to MOST_BUCKETS of them are open, outside the memory plan."""
    held, write = [], files.Part.write

    def watched(part: files.Part, data: bytes) -> None:
        write(part, data)
        if "bucket" in part.path.name:
            held.append(len(part._unhashed))

    monkeypatch.setattr(files.Part, "write", watched)
    with limited(LIMITS["seven buckets"]):
        prepare(corpus, tmp_path / "out", quiet=True, **OPTIONS)
    assert len(held) > 7 and not any(held)
