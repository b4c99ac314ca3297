"""JSON Lines: one JSON object per line, with its text in one field. Blocks are byte ranges that end after a newline."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from ..support.errors import RecordError, TooLargeError
from ..support.model import Change, Changes, ReadOptions, name_hint
from ..support.units import format_size
from ..tokenizer.batch import encode_text, join_bytes
from .arrow_lines import read_plain_lines
from .blocks import BLOCK_BYTES, TEXT_COST, Batch, Block
from .decoding import BOM, char_bytes, repair
from .separated import Records
from .storage import read_block

_LONG_LINE_BYTES = 1 << 16
_VALUE_BYTES = 80  # the most memory of a parsed value for each `[`, `{`, `,` or `:` that it is written with (bytes)

_LONE_SURROGATE = re.compile("[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]")
_QUOTE = re.compile(rb'\\.|"', re.DOTALL)
_alone = threading.Lock()  # held while a line that takes much memory is parsed: one at a time
_NOTHING = contextlib.nullcontext()

_PATH = re.compile(r"([A-Za-z_]\w*(\.[A-Za-z_]\w*)*)?", re.ASCII)  # a field as `jq` takes it without quotes

_AS_TEXT = "if it is plain text: --format text"

MAX_NAMED = 30  # how many fields of a line an error lists: a line may have thousands


class JsonLines(Records):
    """A `.jsonl` or `.ndjson` file. Blank lines count as lines but hold no document."""

    unit = "line"
    separator = b"\n"

    def read(self, block: Block) -> Batch:
        """Parse the lines of a byte range."""
        return read_lines(read_block(block), block.start, self.options)


def read_lines(data: bytes, byte: int, options: ReadOptions) -> Batch:
    """Parse JSON Lines from offset `byte` of a file.

    >>> batch = read_lines(b'{"text": "one"}\\n{"text": "two"}\\n', 0, ReadOptions())
    >>> batch.data, batch.ends.tolist()
    (b'onetwo', [3, 6])

    Raises `RecordError` for a line that is not an object or has no text, unless `options.skip_bad`.
    """
    n_bytes = len(data)
    if byte == 0:
        data = data.removeprefix(BOM)
        byte = n_bytes - len(data)
    if batch := read_plain_lines(data, options.text_columns, n_bytes):
        return batch
    return _read_each(data, byte, n_bytes, options)


def _read_each(data: bytes, byte: int, n_bytes: int, options: ReadOptions) -> Batch:
    """Parse line by line: this decides which lines are valid, and locates those that are not."""
    texts: list[bytes] = []
    changes = Changes()
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    del data  # the lines are a copy of it
    parse = _parser()
    for i, line in enumerate(lines):
        if line and not line.isspace():
            try:
                with _room_for(line, byte, i, options.max_document_bytes):
                    text, replaced = _read_line(parse, line, byte, i, options)
                    try:
                        texts.append(text.encode())
                    except UnicodeEncodeError:  # rare: to search each text would take longer than to encode it
                        texts.append(encode_text(text))
                        if _LONE_SURROGATE.search(text):
                            detail = "half of a character (a lone surrogate): U+FFFD in its place"
                            replaced.append(Change(i, byte, "replaced", detail))
                    del text
                changes.extend(replaced)
            except RecordError as error:
                if not options.skip_bad:
                    raise
                changes.append(Change(i, byte, "skipped", error.message))
        byte += len(line) + 1
    return Batch(*join_bytes(texts), n_bytes, len(lines), changes)


def _room_for(line: bytes, byte: int, record: int, max_bytes: int | None) -> AbstractContextManager[Any]:
    """Return what lets only one line at a time take much memory. Raises `TooLargeError` for one that takes too much."""
    if max_bytes is None or len(line) <= _LONG_LINE_BYTES:
        return _NOTHING
    n_bytes = _text_bytes_of(line, _count(line, 0, len(line)))
    if n_bytes > max_bytes:  # count exactly: some signs may be in its strings
        n_bytes = _text_bytes_of(line, count_values(line))
    if n_bytes > max_bytes:
        raise TooLargeError(
            record,
            byte,
            f"a line of {format_size(len(line))} that takes as much memory as {format_size(n_bytes)} of text,"
            f" but the memory budget has room for {format_size(max_bytes)}",
            "give it more with --memory",
        )
    return _alone if n_bytes > 2 * BLOCK_BYTES else _NOTHING


def _text_bytes_of(line: bytes, n_values: int) -> int:
    """Return how much plain text would take the memory that a line takes while it is parsed (bytes)."""
    wider = 2 * (char_bytes(line) - 1) * len(line)  # as the decoded line, and as its text
    return len(line) + (wider + n_values * _VALUE_BYTES) // TEXT_COST


def count_values(line: bytes) -> int:
    """Count the values that may become objects: one per `[`, `{`, comma and colon outside of strings.

    >>> count_values(b'{"text": "one, two [3] \\\\", {}", "ids": [1, 2, 3]}')
    7
    """
    n = start = 0
    is_text = False
    for match in _QUOTE.finditer(line):
        if line[match.start()] == ord('"'):
            n += 0 if is_text else _count(line, start, match.start())
            is_text, start = not is_text, match.end()
    return n if is_text else n + _count(line, start, len(line))


def _count(line: bytes, start: int, stop: int) -> int:
    return sum(line.count(sign, start, stop) for sign in b"[{,:")


def _read_line(
    parse: Callable[[bytes], Any], line: bytes, byte: int, record: int, options: ReadOptions
) -> tuple[str, Changes]:
    with contextlib.suppress(ValueError, RecursionError):
        if (text := find_text(parse(line), options.text_columns)) is not None:
            return text, Changes()
    # What the fast parser refuses may be valid: the exact one decides, and says why.
    repaired, changes = repair(line, options.errors, byte, record)
    value = _parse_exactly(repaired.decode(), byte, record)
    if (text := find_text(value, options.text_columns)) is not None:
        return text, changes
    raise _no_text(value, byte, record, options)


def find_text(record: Any, names: list[str]) -> str | None:
    """Return the first of the named fields that holds a string, None if none does or the record is not an object.

    >>> find_text({"text": None, "body": "one"}, ["text", "body"])
    'one'
    """
    for name in names:
        with contextlib.suppress(KeyError, TypeError):
            if isinstance(value := find_value(record, name), str):
                return value
    return None


def find_value(record: Any, name: str) -> Any:
    """Return a field of an object, for `meta.text` one of a nested object; a field of that very name takes precedence.

    >>> find_value({"meta": {"text": "one"}}, "meta.text"), find_value({"a.b": 1, "a": {"b": 2}}, "a.b")
    ('one', 1)

    Raises `KeyError` or `TypeError` if there is none.
    """
    try:
        return record[name]
    except KeyError:
        for dot in re.finditer(r"\.", name):
            with contextlib.suppress(KeyError, TypeError):
                return find_value(record.get(name[: dot.start()]), name[dot.end() :])
        raise


def _parse_exactly(line: str, byte: int, record: int) -> Any:
    """Parse with the standard library, which decides what is JSON. Raises `RecordError` with what is wrong."""
    try:
        return json.loads(line, parse_int=lambda digits: int(digits[:99]))  # int() refuses thousands of them
    except (ValueError, RecursionError) as error:
        detail = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        rest = line[getattr(error, "pos", 0) :].strip()  # what jq reads: another object, or one that goes on
        is_object = not rest or (detail == "Extra data" and rest.startswith("{"))
        how = "each line must be one object (jq -c . OLD > NEW writes them so)" if is_object else "repair the line"
        hint = f"{how}; if it was cut off, fetch the file again"
        if byte == 0 and not line.lstrip().startswith("{"):
            hint = _AS_TEXT
        raise RecordError(record, byte, f"not JSON ({detail}): {_excerpt(line)}", hint) from None


def _no_text(value: Any, byte: int, record: int, options: ReadOptions) -> RecordError:
    """Return the error for a parsed line that holds no text."""
    if not isinstance(value, dict):
        return RecordError(record, byte, f"not a JSON object: {_excerpt(json.dumps(value))}", _AS_TEXT)
    inner = {f"{name}.{key}": v for name, part in value.items() if isinstance(part, dict) for key, v in part.items()}
    every, names = value | inner, options.text_columns
    texts = [name for name, found in every.items() if isinstance(found, str)]
    hint = name_hint(options.text_column, texts[:MAX_NAMED], "fields of text", byte == record == 0)
    held, command = _how_to_take_out(every | {"": value})
    if held and all(len(text) < 100 for text in value.values() if isinstance(text, str)):
        hint = f"{hint}; or " * (bool(texts) and isinstance(held, list)) + f"make lines of what it holds: {command}"
    for name in names:
        with contextlib.suppress(KeyError, TypeError):
            found = find_value(value, name)
            kind = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", list: "a list"}.get(
                type(found), "an object"
            )
            return RecordError(record, byte, f"the field {name!r} is {kind}, not text", hint)
    wanted = " or ".join(map(repr, names[1:] or names))
    there = ", ".join([*every][:MAX_NAMED]) or "none"
    return RecordError(record, byte, f"no field {wanted}; the fields are: {there}", hint)


def _how_to_take_out(fields: dict[str, Any]) -> tuple[Any, str]:
    """Return the longest of the fields that hold records or texts, and a command that makes a line of each of those.

    >>> _how_to_take_out({"n": 2, "meta.rows": [{"text": "one"}, {"text": "two"}]})[1]
    "jq -c '.meta.rows[]' OLD > NEW"
    """
    found = {name: items for name in fields if (items := _records_in(fields[name])) and _PATH.fullmatch(name)}
    found = {name: items for name, items in found.items() if name or isinstance(items[0], dict)}
    if not found:
        return None, ""
    name = max(found, key=lambda name: len(found[name]))
    return fields[name], f"jq -c '.{name}[]{' | {text: .}' if isinstance(found[name][0], str) else ''}' OLD > NEW"


def _records_in(value: Any) -> list[Any]:
    """Return the records or texts in a list, or in an object under their numbers or, if they are alike, their names."""
    if isinstance(value, dict):
        alike = {tuple(item) if isinstance(item, dict) else () for item in value.values()}
        has_names = all(map(str.isdecimal, value)) or (len(alike) == 1 and () not in alike)
        value = list(value.values()) if has_names and len(value) > 1 else []
    kinds = {type(item) for item in value} if isinstance(value, list) else set()
    return value if len(kinds) == 1 and kinds < {dict, list, str} else []


def _excerpt(line: str) -> str:
    return repr(line if len(line) <= 60 else line[:60] + "…")


def _parser() -> Callable[[bytes], Any]:
    """Return the fastest JSON parser installed; lines that it rejects are parsed again by the standard library."""
    try:
        import orjson
    except ImportError:
        return lambda line: json.loads(line.decode("utf-8"))
    return orjson.loads  # type: ignore[no-any-return,unused-ignore]
