"""JSON Lines -> a batch, parsed by Arrow outside the GIL, if the result is sure to be that of `json.loads`.

Arrow's reader (RapidJSON) is strict, but it sees a stream of objects rather than lines, and only the requested fields.
So all data must be UTF-8, each line must begin with `{` and end with `}`, there must be as many objects as lines, and
each must have one of the fields, as text. All other data is left to the exact parser: blank lines, arrays, `NaN`,
duplicate fields, lone surrogates, invalid lines.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from typing import TYPE_CHECKING

import numpy as np

from .blocks import Batch
from .column import batch_of_array, joined

if TYPE_CHECKING:
    import pyarrow as pa

MIN_BYTES = 1 << 18  # less data than this is parsed faster than Arrow is loaded
_MAX_BYTES = 1 << 30  # Arrow stores the size of a block in 32 bits
_NEWLINE, _RETURN, _OPEN, _CLOSE = b"\n\r{}"


def read_plain_lines(data: bytes, columns: list[str], n_bytes: int) -> Batch | None:
    """Return the texts of JSON Lines as a batch, or None if the exact parser must read them.

    >>> import gigatoken  # Arrow is used only with it
    >>> batch = read_plain_lines(b'{"text": "one"}\\n{"n": 1, "text": "zw\\\\u00f6lf"}\\n' * 9000, ["text"], 0)
    >>> bytes(batch.data[:9]).decode(), batch.ends[:2].tolist(), len(batch.ends)
    ('onezwölf', [3, 9], 18000)
    >>> read_plain_lines(b'{"text": 1}\\n' * 30000, ["text"], 0) is None
    True
    """
    if not (data.startswith(b"{") and MIN_BYTES <= len(data) < _MAX_BYTES and _is_worth_it()):
        return None
    if len(columns) > 1 and any("." in name for name in columns):  # fields of nested objects are not seen here
        return None
    n_lines = _count_objects(data)
    array = _parse(data, columns) if n_lines else None
    if array is None or len(array) != n_lines or array.null_count:
        return None
    return batch_of_array(array, n_bytes)


def _is_worth_it() -> bool:
    """Tell whether the fast engine is in use and Arrow installed: with tiktoken it would save no time."""
    return "gigatoken" in sys.modules and has_arrow()


@functools.cache
def has_arrow() -> bool:
    """Tell whether pyarrow is installed."""
    return importlib.util.find_spec("pyarrow") is not None


def _count_objects(data: bytes) -> int:
    """Return the number of lines, or 0 unless each begins with `{` and ends with `}`."""
    array = np.frombuffer(data, np.uint8)
    newlines = np.flatnonzero(array == _NEWLINE)
    if not data.endswith(b"\n"):
        newlines = np.append(newlines, len(data))
    starts = np.append(0, newlines[:-1] + 1)
    last = array[newlines - 1]
    if (last == _RETURN).any():
        last = np.where(last == _RETURN, array[newlines - 2], last)
    return len(newlines) if (array[starts] == _OPEN).all() and (last == _CLOSE).all() else 0


def _parse(data: bytes, columns: list[str]) -> pa.LargeStringArray | None:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.json as pj  # by a name: another thread may be importing it

    schema = pa.schema([(name, pa.large_string()) for name in columns])
    try:
        ends = pa.py_buffer(np.array([0, len(data)], np.int64))
        pa.LargeStringArray.from_buffers(1, ends, pa.py_buffer(data)).validate(full=True)  # one text: is it UTF-8?
        table = pj.read_json(
            pa.py_buffer(data),
            pj.ReadOptions(use_threads=False, block_size=len(data) + 1),
            pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
        column = table.column(0) if len(columns) == 1 else pc.coalesce(*map(table.column, columns))
        array = joined(column.chunks)
        array.validate(full=True)
    except pa.ArrowException:
        return None
    return array
