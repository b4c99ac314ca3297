"""The layouts of token files: nanoGPT's bare ids, llm.c's and modded-nanogpt's, and NumPy's for build-nanogpt.

All hold the same ids in the same order: little-endian uint16 (uint32 if a tokenizer has more than 65,536) from byte
`header_bytes` on. They differ in the header before the ids, and in whether shards are merged into one `train.bin`.

Sources: `dataloader.h` and `data_common.py` of llm.c (its GPT-2 files); NumPy's description of format version 1.0.
build-nanogpt reads every file in a folder with `train` or `val` in its name: give its files a folder of their own.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

EOT_PLACES = {"after": "after", "before": "before", "both": "before and after"}
"""Where a document's end-of-text may be, and the words for it. llm.c and build-nanogpt themselves put it before."""

LLMC_HEADERS = {2: (20240520, 1), 4: (20240801, 7)}
"""Magic number and version of llm.c's files, by bytes per id: GPT-2's and Llama 3's."""

UINT32_CHANGE = "in get_batch of nanoGPT's train.py write dtype=np.uint32 for dtype=np.uint16 (twice)"
"""What nanoGPT's reader needs for uint32 ids: unchanged, it reads each of them as two uint16 ids."""

NPY_MAGIC = b"\x93NUMPY"

_LLMC_HEADER = struct.Struct("<3i1012x")  # magic, version, number of tokens; the rest of 256 int32 is 0
_NPY_HEADER_BYTES = 128  # room for a count of 60 digits; a multiple of 64, so that a mapped array is aligned


class Fit(NamedTuple):
    """What a reader takes in one step: sequences per process, tokens per sequence, processes."""

    batch: int
    block: int
    ranks: int = 1

    def __str__(self) -> str:
        return "x".join(map(str, self if self.ranks > 1 else self[:2]))


@dataclass(frozen=True)
class Layout:
    """How the files of a run look.

    >>> LAYOUTS["llmc"].shard_name(7), LAYOUTS["llmc"].n_bytes(100), LAYOUTS["npy"].val_name
    ('train_shard_0007.bin', 1224, 'val.npy')

    `header` turns a number of tokens, and the bytes per id, into the `header_bytes` bytes before them; `max_tokens` is
    the most that a file may have. `usage` says what to do with the files: `{train}` and `{val}` are patterns of their
    paths, `{name}` is nanoGPT's name for the dataset. Shards that are not merged are the result. `reader` reads the
    files, in steps of `default_batch` unless told otherwise; `shard_tokens` is the length of the shards that its own
    scripts make. `stems` begin the names of shards and of val; shards are numbered from `first_number` with at least
    `n_digits` digits. With `is_spool` the files wait to be shuffled, and never get a final name.
    """

    name: str
    suffix: str
    header_bytes: int
    header: Callable[[int, int], bytes]
    max_tokens: int
    is_merged: bool
    usage: str
    reader: str
    default_batch: Fit
    shard_tokens: int
    stems: tuple[str, str] = ("train_shard_", "val")
    n_digits: int = 4
    first_number: int = 0
    is_spool: bool = False
    id_bytes: int = 2

    @property
    def dtype(self) -> str:
        """The NumPy name of an id's type in a file."""
        return f"<u{self.id_bytes}"

    @property
    def val_name(self) -> str:
        """The name of the validation split's file."""
        return f"{self.stems[1]}{self.suffix}"

    def shard_name(self, number: int) -> str:
        """Return the final name of a shard."""
        return f"{self.stems[0]}{number + self.first_number:0{self.n_digits}d}{self.suffix}"

    def shard_number(self, name: str) -> int | None:
        """Return the number of the shard that has a name; None if the name is not a shard's.

        >>> [LAYOUTS["llmc"].shard_number(name) for name in ("train_shard_0007.bin", "train_shard_0007.npy", "val.bin")]
        [7, None, None]
        """
        digits = name.removeprefix(self.stems[0]).removesuffix(self.suffix)
        number = int(digits) - self.first_number if digits.isascii() and digits.isdecimal() else -1
        return number if number >= 0 and self.shard_name(number) == name else None

    def has_name(self, name: str) -> bool:
        """Tell whether a name belongs to one of the layout's files.

        >>> [LAYOUTS["npy"].has_name(name) for name in ("val.npy", "rest.npy", "train_shard_0007.npy", "val.bin")]
        [True, True, True, False]
        """
        return name in (self.val_name, self.rest_name) or self.shard_number(name) is not None

    @property
    def rest_name(self) -> str:
        """The name of the last tokens of train if they are too few for the reader, which ignores files of this name."""
        return f"rest{self.suffix}"

    def least_tokens(self, fit: Fit) -> int:
        """Return how many tokens each file needs: one window and its targets, or one step of all processes."""
        return (fit.block if self.is_merged else fit.batch * fit.block * fit.ranks) + 1

    def make_header(self, n_tokens: int) -> bytes:
        """Return the header for this many tokens."""
        return self.header(n_tokens, self.id_bytes)

    def n_bytes(self, n_tokens: int) -> int:
        """Return the size of a file of this many tokens (bytes)."""
        return self.header_bytes + n_tokens * self.id_bytes


def _no_header(n_tokens: int, id_bytes: int) -> bytes:
    return b""


def _llmc_header(n_tokens: int, id_bytes: int) -> bytes:
    return _LLMC_HEADER.pack(*LLMC_HEADERS[id_bytes], n_tokens)


def _npy_header(n_tokens: int, id_bytes: int) -> bytes:
    start = NPY_MAGIC + struct.pack("<BBH", 1, 0, _NPY_HEADER_BYTES - 10)
    about = f"{{'descr': '<u{id_bytes}', 'fortran_order': False, 'shape': ({n_tokens},), }}"
    return start + about.ljust(_NPY_HEADER_BYTES - 11).encode() + b"\n"


NANOGPT = Layout(
    name="nanogpt",
    suffix=".bin",
    header_bytes=0,
    header=_no_header,
    max_tokens=sys.maxsize,
    is_merged=True,
    usage="python train.py --dataset={name}",
    reader="nanoGPT",
    default_batch=Fit(12, 1024),
    shard_tokens=500_000_000,
)
LLMC = Layout(
    name="llmc",
    suffix=".bin",
    header_bytes=_LLMC_HEADER.size,
    header=_llmc_header,
    max_tokens=(2**31 - 1 - _LLMC_HEADER.size) // 2,  # llm.c keeps file offsets in a C int
    is_merged=False,
    usage="./train_gpt2cu -i {train} -j {val}",
    reader="llm.c",
    default_batch=Fit(4, 1024),
    shard_tokens=100_000_000,
)
FINEWEB = replace(
    LLMC,
    name="llmc-fineweb",
    stems=("fineweb_train_", "fineweb_val_000000"),
    n_digits=6,
    first_number=1,  # val is number 0
)
"""The names that llm.c's `fineweb.py` gives to its files, and that modded-nanogpt looks for."""

NPY = Layout(
    name="npy",
    suffix=".npy",
    header_bytes=_NPY_HEADER_BYTES,
    header=_npy_header,
    max_tokens=sys.maxsize,
    is_merged=False,
    usage="data_root = {folder!r}",
    reader="build-nanogpt",
    default_batch=Fit(64, 1024),
    shard_tokens=100_000_000,
)

LAYOUTS = {layout.name: layout for layout in (NANOGPT, LLMC, NPY, FINEWEB)}

TYPED_LAYOUTS = (NANOGPT.name, LLMC.name, NPY.name)  # the values of `--layout`; the other layouts take `--names`, too
NAMES = ("fineweb",)  # the values of `--names`: `--layout llmc --names fineweb` is the layout `llmc-fineweb`


def get_layout(name: str, id_bytes: int = 2) -> Layout:
    """Return a layout for ids of `id_bytes` bytes.

    >>> get_layout("llmc", 4).make_header(5)[:8] == struct.pack("<2i", 20240801, 7), get_layout("npy", 4).n_bytes(5)
    (True, 148)
    """
    layout = LAYOUTS[name]
    if id_bytes == layout.id_bytes:
        return layout
    max_tokens, usage = layout.max_tokens, layout.usage
    if layout.reader == LLMC.reader:
        max_tokens = max_tokens * layout.id_bytes // id_bytes
        usage = "python train_llama3.py --input_bin {train} --input_val_bin {val}"
    elif layout is NANOGPT:
        usage = f"{UINT32_CHANGE}, then {usage}"
    return replace(layout, max_tokens=max_tokens, usage=usage, id_bytes=id_bytes)


def spool_of(layout: Layout) -> Layout:
    """Return the layout of documents that wait to be shuffled: bare ids, in files that no reader mistakes for its own.

    >>> spool_of(LAYOUTS["npy"]).shard_name(7), spool_of(LAYOUTS["npy"]).val_name
    ('prepare.spool_0007.bin', 'prepare.spool.bin')
    """
    return replace(
        layout,
        suffix=".bin",
        header_bytes=0,
        header=_no_header,
        stems=("prepare.spool_", "prepare.spool"),
        n_digits=4,
        first_number=0,
        is_spool=True,
    )
