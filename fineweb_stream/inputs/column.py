"""An Arrow column -> a batch, which shares its buffer of text unless it has nulls or invalid UTF-8."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..support.errors import NoTextError, RecordError
from ..support.model import Change, Changes, ReadOptions, name_hint
from ..support.shell import python_command
from ..tokenizer.batch import join_bytes
from .blocks import Batch, Source, batch_of
from .decoding import repair

if TYPE_CHECKING:
    import pyarrow as pa


_TO_LINES = python_command(
    "import json, pyarrow.parquet as pq, sys; [print(json.dumps(row, default=str))"
    " for rows in pq.ParquetFile(sys.argv[1]).iter_batches(1000) for row in rows.to_pylist()]",
    " OLD > NEW",
)


def find_field(schema: pa.Schema | pa.StructType, name: str) -> list[pa.Field] | None:
    """Return the field of a column, after the fields of the structs that it is in (for names like `body.text`).

    A column of that very name takes precedence. Returns None if there is none.
    """
    import pyarrow as pa

    for field in schema:
        if field.name == name:
            return [field]
    for field in schema:
        is_around = name.startswith(f"{field.name}.") and pa.types.is_struct(field.type)
        if is_around and (found := find_field(field.type, name[len(field.name) + 1 :])):
            return [field, *found]
    return None


def choose_column(schema: pa.Schema, leaves: list[str], source: Source) -> str:
    """Return the first named column that a file has as text; `leaves` are its columns. Raises `NoTextError`."""
    names = source.options.text_columns
    found = [(name, fields) for name in names if (fields := find_field(schema, name))]
    for name, fields in found:
        if is_text(fields[-1].type) and schema.names.count(name) < 2:
            return name
    every = {leaf: fields for leaf in [*schema.names, *leaves] if (fields := find_field(schema, leaf))}
    columns = [leaf for leaf, fields in every.items() if is_text(fields[-1].type) and schema.names.count(leaf) < 2]
    if not found:
        wanted = " or ".join(map(repr, names[1:] or names))
        what = f"no column {wanted}; the columns are: {', '.join(every)}"
    elif (n := schema.names.count(found[0][0])) > 1:
        what = f"{n} columns are named {found[0][0]!r}"
    else:
        what = f"the column {found[0][0]!r} is {found[0][1][-1].type}, not text"
    hint = name_hint(source.options.text_column, columns, "columns of text", source.number == 0)
    if not columns and any(str(field.type).startswith(("list<", "large_list<")) for field in schema):
        hint = f"its texts may be in lists: convert it to jsonl, and name that: {_TO_LINES}"
    raise NoTextError(f"{source.input.shown}: {what}", hint)


def is_text(kind: pa.DataType) -> bool:
    """Tell whether a type holds text: strings, or bytes, as some writers store them; also dictionaries of these."""
    import pyarrow as pa

    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    return str(value) in ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")


def take_column(rows: pa.Table | pa.RecordBatch, name: str) -> Any:
    """Return the text column of some rows, out of its structs; a null struct becomes a null text."""
    import pyarrow.compute as pc

    fields = find_field(rows.schema, name)
    assert fields
    column = rows.column(rows.schema.get_field_index(fields[0].name))
    for field in fields[1:]:
        column = pc.struct_field(column, field.name)
    return column


def repeated_bytes(column: pa.ChunkedArray) -> int:
    """Return how much text the indices of a dictionary column stand for (bytes)."""
    import pyarrow.compute as pc

    lengths = (pc.take(pc.binary_length(chunk.dictionary), chunk.indices) for chunk in column.chunks)
    return sum(pc.sum(each).as_py() or 0 for each in lengths)


def read_column(column: pa.ChunkedArray, name: str, options: ReadOptions) -> Batch:
    """Turn a column into a batch, outside the GIL, and without a copy if it is a single array.

    Raises `RecordError` for nulls and invalid UTF-8, unless `options` allows them.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    column = column.cast(pa.large_binary())  # a cast of bytes to strings would validate them
    array = joined(column.chunks or [pa.array([], column.type)]).view(pa.large_string())
    n_bytes = pc.sum(pc.binary_length(array)).as_py() or 0  # of text alone: the same however blocks are cut
    try:
        array.validate(full=True)
        is_plain = not array.null_count
    except pa.ArrowInvalid:
        is_plain = False
    return batch_of_array(array, n_bytes) if is_plain else _read_each(array, n_bytes, name, options)


def joined(arrays: list[pa.Array]) -> pa.Array:
    """Return arrays as one, without a copy if there is only one."""
    import pyarrow as pa

    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def batch_of_array(array: pa.LargeStringArray, n_bytes: int) -> Batch:
    """Make a batch of an array without nulls, which shares its memory."""
    _, offsets, data = array.buffers()
    if not len(array) or data is None:  # such an array may have no buffers
        return batch_of([""] * len(array), n_bytes, len(array), Changes())
    places = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    start, stop = int(places[0]), int(places[-1])
    return Batch(memoryview(data)[start:stop], places[1:] - start, n_bytes, len(array), Changes())


def _read_each(array: pa.LargeStringArray, n_bytes: int, name: str, options: ReadOptions) -> Batch:
    """Read row by row, and treat nulls and invalid UTF-8 as `options` says."""
    import pyarrow as pa

    texts: list[bytes] = []
    changes = Changes()
    for i, data in enumerate(array.cast(pa.large_binary()).to_pylist()):
        try:
            if data is None:
                message = f"the column {name!r} is null, not text"
                raise RecordError(i, None, message, "--text-column NAME if another has the text")
            text, found = repair(data, options.errors, 0, i)
        except RecordError as error:
            if not options.skip_bad:
                how = "--errors replace or --errors ignore"
                raise RecordError(i, None, error.message, error.hint if data is None else how) from None
            changes.append(Change(i, None, "skipped", error.message))
            continue
        texts.append(text)
        if found:
            changes.append(Change(i, None, "replaced" if options.errors == "replace" else "left out", "invalid UTF-8"))
    return Batch(*join_bytes(texts), n_bytes, len(array), changes)
