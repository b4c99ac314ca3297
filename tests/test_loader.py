"""`batches`: an epoch is each window once, over any ranks, from any step on."""

from __future__ import annotations

import itertools
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineweb_stream import batches, open_tokens
from fineweb_stream.support.errors import InputError
from fineweb_stream.token_files.loader import shuffled

from .helpers import shard_path

SHAPES = st.fixed_dictionaries({"block_size": st.integers(1, 9), "batch_size": st.integers(1, 7)})


def windows(found: Any, block_size: int) -> list[int]:
    """Return the numbers of the windows, for tokens that equal their positions; check that each window is whole."""
    rows = []
    for x, y in found:
        assert x.dtype == y.dtype == np.int64 and x.shape == y.shape and not np.shares_memory(x, y)
        for row, targets in zip(x, y, strict=True):
            assert row.tolist() == list(range(row[0], row[0] + block_size))
            assert targets.tolist() == [i + 1 for i in row]
            rows.append(int(row[0]) // block_size)
    return rows


@given(n=st.integers(1, 5000), seed=st.integers(-5, 2**70), epoch=st.integers(0, 9))
def test_an_order_has_each_number_once(n: int, seed: int, epoch: int) -> None:
    """For any count, seed and epoch, the order is a permutation, and any part of it can be computed alone."""
    order = shuffled(np.arange(n, dtype=np.uint64), n, seed, epoch)
    assert sorted(order.tolist()) == list(range(n))
    assert shuffled(np.arange(n // 2, n, dtype=np.uint64), n, seed, epoch).tolist() == order[n // 2 :].tolist()


@given(n_tokens=st.integers(2, 400), shape=SHAPES, world_size=st.integers(1, 5), seed=st.integers(0, 99))
def test_an_epoch_is_each_window_once(n_tokens: int, shape: dict[str, int], world_size: int, seed: int) -> None:
    """All ranks together see each window once; they have equally many batches, whose sizes differ by one at most."""
    tokens = np.arange(n_tokens, dtype=np.uint16)
    n_windows = (n_tokens - 1) // shape["block_size"]
    if not n_windows:
        with pytest.raises(InputError, match="tokens, and a window needs"):
            batches(tokens, **shape)
        return
    parts = [batches(tokens, **shape, seed=seed, rank=rank, world_size=world_size) for rank in range(world_size)]
    seen = [windows(part, shape["block_size"]) for part in parts]
    assert sorted(itertools.chain(*seen)) == list(range(n_windows))
    for step in zip(*parts, strict=True):
        sizes = [len(x) for x, _ in step]
        assert max(sizes) <= shape["batch_size"] and max(sizes) - min(sizes) <= 1
    if n_windows >= shape["batch_size"] * world_size:
        whole = [
            batches(tokens, **shape, seed=seed, rank=rank, world_size=world_size, drop_last=True)
            for rank in range(world_size)
        ]
        assert {len(x) for part in whole for x, _ in part} == {shape["batch_size"]}
        n_left_out = n_windows - sum(len(windows(part, shape["block_size"])) for part in whole)
        assert n_left_out == n_windows % (shape["batch_size"] * world_size)


@given(n_tokens=st.integers(20, 300), shape=SHAPES, data=st.data(), epoch=st.integers(0, 3))
def test_it_goes_on_at_any_step(n_tokens: int, shape: dict[str, int], data: st.DataObject, epoch: int) -> None:
    """An epoch that starts at step `start` is the rest of the whole epoch, on every rank; `len` is its length."""
    tokens = np.arange(n_tokens, dtype=np.uint16)
    world_size = data.draw(st.integers(1, 3))
    options = shape | {"rank": data.draw(st.integers(0, world_size - 1)), "world_size": world_size, "epoch": epoch}
    whole = list(batches(tokens, **options))
    for start in range(len(whole) + 1):
        rest = batches(tokens, **options, start=start)
        assert len(rest) == len(whole) - start
        for (x, y), (x_whole, y_whole) in zip(rest, whole[start:], strict=True):
            assert np.array_equal(x, x_whole) and np.array_equal(y, y_whole)


def test_orders_differ_and_are_the_same_everywhere() -> None:
    """Each seed and epoch has its own order, always the same; the numbers are fixed, as runs depend on them."""
    tokens = np.arange(20_001, dtype=np.uint16)
    orders = [windows(batches(tokens, 10, 7, seed, epoch=epoch), 10) for seed in range(3) for epoch in range(3)]
    assert len({tuple(order) for order in orders}) == 9
    assert windows(batches(tokens, 10, 7, 2, epoch=1), 10) == orders[7]
    fixed = [891930266170, 102074293304, 329472466218, 842161576246, 625823921669, 438359702052]
    assert shuffled(np.arange(6, dtype=np.uint64), 10**12, 7, 2).tolist() == fixed


def test_every_order_is_about_as_likely() -> None:
    """Over 6,000 seeds, each of the 24 orders of four windows occurs, none three times as often as expected."""
    orders = [tuple(shuffled(np.arange(4, dtype=np.uint64), 4, seed, 0).tolist()) for seed in range(6000)]
    counts = [orders.count(order) for order in itertools.permutations(range(4))]
    assert min(counts) > 80 and max(counts) < 750
    far = [shuffled(np.arange(2, dtype=np.uint64), 1000, seed, 0) for seed in range(3000)]
    steps = np.array([int(b) - int(a) for a, b in far])
    assert len(np.unique(steps)) > 1000, "neighbours in the order are neighbours in the file"


def test_from_files(tmp_path: Path) -> None:
    """Windows of shards are those of the merged file, across borders too; a loader of shards can be pickled."""
    ids = np.random.default_rng(0).integers(0, 50257, 1000, np.uint16)
    for number, part in enumerate(np.split(ids, [5, 333, 334, 900])):
        part.tofile(shard_path(tmp_path, number))
    shards = batches(open_tokens(tmp_path), 16, 5)
    ids.tofile(tmp_path / "train.bin")
    for (x, y), (x_whole, y_whole), (x_sent, _) in zip(
        shards, batches(open_tokens(tmp_path), 16, 5), pickle.loads(pickle.dumps(shards)), strict=True
    ):
        assert np.array_equal(x, x_whole) and np.array_equal(y, y_whole) and np.array_equal(x, x_sent)
        x[:] = y[:] = 0  # they are the caller's own


def test_a_huge_file_costs_nothing(tmp_path: Path) -> None:
    """In a file of 4 GB, a batch in the middle of an epoch needs no order of all windows."""
    with (tmp_path / "train.bin").open("wb") as file:
        file.truncate(4 << 30)
    found = batches(open_tokens(tmp_path), 8, 2, start=100_000_000)
    assert len(found) == 2**31 // 16 - 100_000_000
    assert next(iter(found))[0].shape == (2, 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 0}, "block_size=0: not a whole number of 1 or more\n  write it like 1 or 42"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"world_size": 0}, "world_size=0"),
        ({"rank": 2, "world_size": 2}, "rank=2\n  rank is from 0 to world_size - 1, 1"),
        ({"epoch": -1}, "epoch=-1"),
        ({"start": 21}, "start=21\n  an epoch has 20 steps"),
        ({"block_size": 101}, "101 tokens, and a window needs block_size + 1, 102"),
        ({"drop_last": "no"}, "drop_last='no': neither True nor False"),
        ({"batch_size": 21, "drop_last": True}, "20 windows, too few for a full batch on each rank"),
    ],
)
def test_numbers_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    """An impossible value is an InputError that names the parameter, at the call, not at the first batch."""
    with pytest.raises(InputError) as caught:
        batches(np.arange(101, dtype=np.uint16), **({"block_size": 5, "batch_size": 1} | options))
    assert message in str(caught.value)


def test_a_path_is_not_its_tokens(tmp_path: Path) -> None:
    """Who hands over a path is told what opens it, and that works."""
    np.arange(101, dtype=np.uint16).tofile(tmp_path / "train.bin")
    for path in (str(tmp_path), tmp_path, os.fsencode(tmp_path)):
        with pytest.raises(InputError) as caught:
            batches(path, 5, 1)
        call = caught.value.hint.removeprefix("open it first: ")
        assert len(batches(eval(call, {"open_tokens": open_tokens}), 5, 1)) == 20


@pytest.mark.parametrize("n_files", [1, 2])
def test_a_loader_can_be_in_a_set(n_files: int, tmp_path: Path) -> None:
    """It is compared and hashed as itself: its tokens may be many gigabytes, and an array is neither."""
    for number in range(n_files):
        np.arange(101, dtype=np.uint16).tofile(shard_path(tmp_path, number))
    one, other = (batches(open_tokens(tmp_path), 5, 1) for _ in range(2))
    assert {one: 1, other: 2} == {one: 1, other: 2} and one != other


@pytest.mark.parametrize("value", [0, -1, 1.5, float("nan"), "1,5", "", True, None, 10**30, np.int64(3)])
@pytest.mark.parametrize("name", ["block_size", "batch_size", "seed", "rank", "world_size", "epoch", "start"])
def test_odd_numbers(name: str, value: Any) -> None:
    """Each number with each odd value: batches, or an InputError that names it."""
    options = {"block_size": 5, "batch_size": 1, "world_size": 4, name: value}
    try:
        assert next(iter(batches(np.arange(101, dtype=np.uint16), **options)))[0].ndim == 2
        assert not isinstance(value, str | float | bool | None)
    except InputError as error:
        assert name in str(error) and error.hint
