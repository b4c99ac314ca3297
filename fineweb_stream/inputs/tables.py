"""Recognizing tables of separated values (CSV, TSV), and how `csv` reads them."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

from ..support.shell import python_command
from .kind import HEAD_BYTES, OPENED, Foreign

_TABLE_NAMES = {".csv": ",;\t|", ".tsv": "\t,;|", ".tab": "\t,;|", ".psv": "|,;\t"}
"""The suffixes of tables, and which delimiters to try: a spreadsheet writes .csv with ; in half of the world."""

_COLUMN = re.compile(r"[^\W\d][\w.()/#-]*( [\w.()/#-]+){0,2}(?<!\.)")
_USUAL_COLUMNS = {"text", "content", "body", "article", "document", "sentence", "story", "title", "id", "label", "url"}


def find_table(head: bytes, suffix: str = "") -> Foreign | None:
    """Return the kind of a table of separated values; without a table's suffix, only if it clearly is one.

    >>> find_table(b"id,text\\n1,a b\\n2,c d\\n").kind
    'a table (CSV)'
    >>> find_table(b"Yes, sir,\\nno, sir,\\nso, sir,\\n") is None
    True
    """
    text = head.decode("utf-8-sig", "replace")
    first, is_cut = text.lstrip().partition("\n")[0], len(head) >= HEAD_BYTES
    is_named, delimiters = suffix in _TABLE_NAMES, _TABLE_NAMES.get(suffix, ",\t;|")
    for delimiter in filter(first.__contains__, delimiters):
        rows, options = _rows(text, delimiter, is_cut)
        if _is_table(rows, delimiter) or (is_named and _is_even(rows)):
            return _table(delimiter, rows, options)
    return _table(delimiters[0], *_rows(text, delimiters[0], is_cut)) if is_named else None


def _rows(text: str, delimiter: str, is_cut: bool) -> tuple[list[list[str]], str]:
    """Return a table's rows, and how `csv` reads them: most tables with tabs are written without quoting."""
    options: dict[str, Any] = {} if delimiter == "," else {"delimiter": delimiter}
    rows = _parse(text, is_cut, delimiter=delimiter, strict=delimiter == "\t")
    if delimiter == "\t" and not (re.search(r'(^|[\t\n])"', text) and _is_even(rows)):
        options |= {"quoting": csv.QUOTE_NONE}
        rows = _parse(text, is_cut, **options)
    return rows, "".join(f", {name}={value!r}" for name, value in options.items())


def _parse(text: str, is_cut: bool, **options: Any) -> list[list[str]]:
    rows = []
    try:
        for row in csv.reader(io.StringIO(text, newline=""), **options):
            rows += [row] if row else []
    except csv.Error as error:
        if not (is_cut and "unexpected end" in str(error)):
            return []
    return rows[:-1] if is_cut and len(rows) > 2 else rows


def _is_even(rows: list[list[str]]) -> bool:
    return len(rows) > 0 and len(rows[0]) > 1 and all(len(row) == len(rows[0]) for row in rows)


def _has_header(rows: list[list[str]]) -> bool:
    header = rows[0] if rows else []
    is_pandas = len(rows) > 1 and header[0] == "" and all(row[:1] and row[0].isdecimal() for row in rows[1:])
    names = header[is_pandas:]  # its index has no name
    return len(set(names)) == len(names) > 0 and all(len(c) <= 40 and _COLUMN.fullmatch(c) for c in names)


def _is_table(rows: list[list[str]], delimiter: str) -> bool:
    if len(rows) < 2 or not _is_even(rows):
        return False
    header = {column.lower() for column in rows[0]}
    if _has_header(rows) and (len(rows) > 2 or header & _USUAL_COLUMNS):
        return True
    if len(rows) < 5:
        return False
    are_filled = all(cell and cell[0] != " " for row in rows for cell in row)
    has_words = any(re.search(r"[^\W\d_]", cell) for row in rows for cell in row)  # numbers alone are a text of numbers
    return are_filled and has_words and (delimiter == "\t" or all(row[0].isdecimal() for row in rows))


def _table(delimiter: str, rows: list[list[str]], options: str) -> Foreign:
    kind = {",": "CSV", "\t": "TSV"}.get(delimiter, f"separated by {delimiter}")
    has_header = _has_header(rows)
    reader, row = ("DictReader", "r") if has_header else ("reader", "dict(enumerate(r))")
    code = (
        "import csv, json; csv.field_size_limit(2**31 - 1);"
        f" [print(json.dumps({row})) for r in csv.{reader}({OPENED}{options})]"
    )
    columns = ", ".join(filter(None, rows[0])) if has_header else "0, 1, ..."
    promise = f"convert it to jsonl, whose fields are {columns} (--text-column NAME)" if rows else "convert it to jsonl"
    return Foreign(f"a table ({kind})", python_command(code), ".jsonl", is_text=True, promise=promise)
