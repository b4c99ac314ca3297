"""Finds where the ids of a file begin: after llm.c's header, NumPy's, or none. Refuses files that hold no ids."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..inputs.decoding import begins_as_utf8
from ..inputs.formats import is_own
from ..output.index import is_index
from ..output.layouts import LLMC, LLMC_HEADERS, NPY_MAGIC
from ..support.errors import InputError
from ..support.shell import program, quoted
from ..tokenizer.ids import Ids

HEAD_BYTES = 4096

Dtype = np.dtype[np.unsignedinteger[Any]]

_MIN_TEXT_BYTES, _MIN_IDS = 16, 32  # below these sizes, ids may look like something else by chance

_FOREIGN = {
    rb"PAR1": "a parquet file",
    rb"\x1f\x8b\x08[\x00-\x1f].{4}[\x00\x02\x04][\x00-\x0d\xff]": "gzip data",
    rb"\x28\xb5\x2f\xfd": "zstd data",
    rb"\xfd7zXZ\x00": "xz data",
    rb"BZh[1-9]1AY&SY": "bzip2 data",
    rb"PK\x03\x04": "a zip archive or a checkpoint of PyTorch",
    rb"ARROW1\x00\x00": "an Arrow file",
    rb"\x89HDF\r\n": "an HDF5 file",
    rb"SQLite format 3\x00": "a database",
    rb"\x7fELF": "an ELF executable",
    rb"\x89PNG|\xff\xd8\xff": "a PNG or JPEG image",
    rb"%PDF-\d": "a PDF",
    rb"MMIDIDX\x00": "an index of Megatron, not its ids",
    rb"\xff\xfe|\xfe\xff": "UTF-16 text",
}
"""Patterns at the beginning of other kinds of file. Each is longer than an id, or is not an id of GPT-2."""

_TEXT = re.compile(rb"[\t\n\r\f\x1b\x20-\x7e\x80-\xff]*")


def find_ids(path: Path, dtype: Dtype) -> tuple[int, int]:
    """Return the byte at which the ids of a file begin, and how many there are.

    Raises `InputError` for a file that is empty, truncated, or not a token file of this dtype; `OSError`.
    """
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: not a regular file", "name another file")
    with path.open("rb") as file:
        n_bytes = os.fstat(file.fileno()).st_size
        head = file.read(HEAD_BYTES)
        if not head:
            raise InputError(f"{path}: the file is empty", "make it again, or name another file")
        if head.startswith(NPY_MAGIC):
            start, n_ids = _find_npy_ids(file, path, dtype)
        elif (n_said := _count_llmc_ids(head, path, dtype)) is not None:
            start, n_ids = LLMC.header_bytes, n_said
        else:
            _refuse(path, head, n_bytes, dtype)
            start, n_ids = 0, -(-n_bytes // dtype.itemsize)
    if start + n_ids * dtype.itemsize != n_bytes:
        odd = f"an odd number: not a whole number of {dtype.itemsize}-byte ids"
        what = f"its header says {n_ids:,} ids" if start else odd
        raise InputError(
            f"{path}: {n_bytes:,} bytes, {what}",
            "was it copied completely? Copy or make it again; text is made into ids by prepare.py",
        )
    if n_ids == 0:
        raise InputError(f"{path}: the file is empty but for its header", "make it again, or name another file")
    return start, n_ids


def _count_llmc_ids(head: bytes, path: Path, dtype: Dtype) -> int | None:
    """Return the number of ids according to llm.c's header, or None without such a header.

    Its magic number is no id: it is larger than any id of four bytes, and GPT-2's end before its lower half.
    """
    magic, version, n_ids = struct.unpack("<3i", head[:12].ljust(12, b"\0"))
    for id_bytes, header in LLMC_HEADERS.items():
        if (magic, version) == header:
            if id_bytes != dtype.itemsize:
                raise InputError(
                    f"{path}: ids of {id_bytes} bytes each, not of {dtype.itemsize}",
                    "the prepare.json that was made with it says which tokenizer made it: put that beside it",
                )
            return int(n_ids)
    return None


def _find_npy_ids(file: IO[bytes], path: Path, dtype: Dtype) -> tuple[int, int]:
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    file.seek(0)
    try:
        shape, _, found = readers[np.lib.format.read_magic(file)](file)
    except (ValueError, KeyError) as error:
        raise InputError(f"{path}: its .npy header cannot be read: {error}", "copy or make it again") from None
    if found != dtype or len(shape) != 1:
        raise InputError(
            f"{path}: an array of {found}, shape {shape}", f"ids are one row of {dtype.name} ({dtype.str})"
        )
    return file.tell(), shape[0]


def _refuse(path: Path, head: bytes, n_bytes: int, dtype: Dtype) -> None:
    """Raise `InputError` for an index, text, other known kinds of file, and ids of more than two bytes."""
    if path.suffix == ".index" and is_index(path):
        raise InputError(f"{path}: an index of document ends, not a token file", f"name its file, {path.stem}")
    if n_bytes >= _MIN_TEXT_BYTES:
        for magic, kind in _FOREIGN.items():
            if re.match(magic, head, re.DOTALL):
                raise InputError(f"{path}: {kind}, not a token file", "name a file that prepare.py has made")
        if _TEXT.fullmatch(head) and begins_as_utf8(head):
            make = f"encode it: {program()} {quoted(str(path))} --out DIR"
            hint = "name the folder that it is in" if is_own(path.name) else make
            raise InputError(f"{path}: text, not a token file", hint)
    ids = np.frombuffer(head[: len(head) // 16 * 16], np.dtype("<u2"))
    if dtype.itemsize == ids.itemsize and (n_id_bytes := _wider(ids)) and len(ids) >= _MIN_IDS:
        raise InputError(
            f"{path}: ids of {n_id_bytes} bytes each, not of {dtype.itemsize}",
            f"np.fromfile({str(path)!r}, 'u{n_id_bytes}').astype('{dtype.str}').tofile('ids.bin') converts GPT-2's ids",
        )


def _wider(ids: Ids) -> int:
    """Return the true size (4 or 8 bytes) of ids whose halves or quarters were read as uint16; 0 for ids of two bytes.

    The upper half of a 4-byte id is 0 for GPT-2's ids, and at most 3 for those of the largest vocabularies.
    """
    if ids[::4].any() and not any(ids[first::4].any() for first in (1, 2, 3)):
        return 4 * int(ids.itemsize)
    low, high = (int(ids[first::2].max(initial=0)) for first in (0, 1))
    return 2 * int(ids.itemsize) if (low and high == 0) or (low > 255 and high <= 3) else 0
