"""The ids carry language: a model as small as a table of pairs learns from train.bin what val.bin is like."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from fineweb_stream import prepare
from fineweb_stream.tokenizer.gpt2 import EOT_ID

N_IDS = EOT_ID + 1
Ids = npt.NDArray[np.int64]


def unigram_loss(train: Ids, val: Ids) -> float:
    """Nats per token of val, from how often train has each id."""
    return float(-np.log(id_chances(train)[val[1:]]).mean())


def bigram_loss(train: Ids, val: Ids, weight: float = 5) -> float:
    """Nats per token of val, from the pairs in train; a context counts the single ids' chances as `weight` pairs."""
    pairs, counts = np.unique(train[:-1] * N_IDS + train[1:], return_counts=True)
    wanted = val[:-1] * N_IDS + val[1:]
    places = np.searchsorted(pairs, wanted).clip(max=len(pairs) - 1)
    n_seen = np.where(pairs[places] == wanted, counts[places], 0)
    n_contexts = np.bincount(train[:-1], minlength=N_IDS)[val[:-1]]
    chances = (n_seen + weight * id_chances(train)[val[1:]]) / (n_contexts + weight)
    return float(-np.log(chances).mean())


def id_chances(train: Ids) -> npt.NDArray[np.float64]:
    """The chance of each id; one that never came gets a hundredth of a count, and all sum to 1."""
    counts = np.bincount(train, minlength=N_IDS) + 0.01
    return counts / counts.sum()


@pytest.fixture(scope="module")
def splits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ids, Ids]:
    out: Path = tmp_path_factory.mktemp("demo")
    prepare(demo=True, out=out, quiet=True)
    train, val = (np.fromfile(out / f"{name}.bin", np.uint16).astype(np.int64) for name in ("train", "val"))
    return train, val


def test_a_bigram_model_learns(splits: tuple[Ids, Ids]) -> None:
    """Trained on train.bin, it needs less than half of ln(50257) = 10.8 nats a token of val.bin; the order helps."""
    loss = bigram_loss(*splits)
    assert loss < math.log(N_IDS) / 2
    assert loss < unigram_loss(*splits) - 1


def test_nothing_is_learnt_from_shuffled_ids(splits: tuple[Ids, Ids]) -> None:
    """The control: the same ids in random order are no language, so the test above can fail."""
    train, val = splits
    rng = np.random.default_rng(0)
    for shuffled in ((rng.permutation(train), val), (train, rng.permutation(val))):
        assert bigram_loss(*shuffled) > unigram_loss(*shuffled)
        assert bigram_loss(*shuffled) > math.log(N_IDS) / 2
    other_ids = rng.permutation(N_IDS)  # val.bin as another vocabulary would number it
    assert bigram_loss(train, other_ids[val]) > math.log(N_IDS)
