"""A column of Arrow's -> texts: nulls and bytes that are no UTF-8 are named."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..support.errors import RecordError
from ..support.model import Change, ReadOptions
from .blocks import Texts

if TYPE_CHECKING:
    import pyarrow as pa


def read_column(column: pa.ChunkedArray, options: ReadOptions) -> Texts:
    """Turn a column into a list of str.

    Raises `RecordError` for a null and for bytes that are no UTF-8, unless `options` says otherwise.
    """
    n_records = len(column)
    changes: list[Change] = []
    try:
        texts = column.to_pylist()
    except UnicodeDecodeError:
        texts = _decode_each(column, options, changes)
    if column.null_count:
        for i, text in enumerate(texts):
            if text is None:
                message = f"the column {options.text_column!r} is null, not text"
                if not options.skip_bad:
                    raise RecordError(i, None, message, "skip such rows with --skip-bad")
                changes.append(Change(i, None, "skipped", message))
        texts = [text for text in texts if text is not None]
    return Texts(texts, column.nbytes, n_records, changes)


def _decode_each(column: pa.ChunkedArray, options: ReadOptions, changes: list[Change]) -> list[str | None]:
    """Decode row by row as `options.errors` says."""
    import pyarrow as pa

    texts: list[str | None] = []
    for i, data in enumerate(column.cast(pa.large_binary()).to_pylist()):
        if data is None:
            texts.append(None)
        elif options.errors == "strict":
            try:
                texts.append(data.decode())
            except UnicodeDecodeError as error:
                raise RecordError(
                    i, None, f"not UTF-8 (0x{data[error.start]:02x})", "--errors replace or --errors ignore"
                ) from None
        else:
            texts.append(data.decode("utf-8", options.errors))
            if texts[-1] != data.decode("utf-8", "surrogateescape"):
                changes.append(Change(i, None, "replaced" if options.errors == "replace" else "left out", "not UTF-8"))
    return texts
