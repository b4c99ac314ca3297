"""A column of Arrow's -> a batch: its own buffer of text, unless it has nulls or bytes that are no UTF-8."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..support.errors import RecordError
from ..support.model import Change, ReadOptions
from .blocks import Batch, batch_of

if TYPE_CHECKING:
    import pyarrow as pa


def read_column(column: pa.ChunkedArray, options: ReadOptions) -> Batch:
    """Turn a column into a batch: without a copy where it is one array, and outside the GIL.

    Raises `RecordError` for a null and for bytes that are no UTF-8, unless `options` says otherwise.
    """
    import pyarrow as pa

    n_bytes = column.nbytes
    column = column.cast(pa.large_string())
    array = (
        column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], column.type)])
    )
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return _read_each(array, n_bytes, options)
    return _read_each(array, n_bytes, options) if array.null_count else batch_of_array(array, n_bytes)


def batch_of_array(array: pa.LargeStringArray, n_bytes: int) -> Batch:
    """Make a batch of an array without nulls, on its own memory."""
    _, offsets, data = array.buffers()
    if not len(array) or data is None:  # then there may be no buffers at all
        return batch_of([""] * len(array), n_bytes, len(array), [])
    places = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    start, stop = int(places[0]), int(places[-1])
    return Batch(memoryview(data)[start:stop], places[1:] - start, n_bytes, len(array), [])


def _read_each(array: pa.LargeStringArray, n_bytes: int, options: ReadOptions) -> Batch:
    """Read row by row as `options` says."""
    import pyarrow as pa

    texts: list[str] = []
    changes: list[Change] = []
    for i, data in enumerate(array.cast(pa.large_binary()).to_pylist()):
        if data is None:
            message = f"the column {options.text_column!r} is null, not text"
            if not options.skip_bad:
                raise RecordError(i, None, message, "skip such rows with --skip-bad")
            changes.append(Change(i, None, "skipped", message))
            continue
        try:
            texts.append(data.decode())
        except UnicodeDecodeError as error:
            if options.errors == "strict":
                bad = f"not UTF-8 (0x{data[error.start]:02x})"
                raise RecordError(i, None, bad, "--errors replace or --errors ignore") from None
            texts.append(data.decode("utf-8", options.errors))
            changes.append(Change(i, None, "replaced" if options.errors == "replace" else "left out", "not UTF-8"))
    return batch_of(texts, n_bytes, len(array), changes)
