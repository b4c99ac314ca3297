"""Recognizing JSON that is not JSON Lines, and other literals: arrays, lines of lists or strings, pretty objects."""

from __future__ import annotations

import codecs
import json
import re

from ..support.shell import python_command
from .kind import HEAD_BYTES, OPENED, Foreign, first_match

_STRING = rb'"(?:[^"\\]|\\.)*"'


def _records(kind: str, records: str, record: str = "r", promise: str = "") -> Foreign:
    code = f"import ast, json; [print(json.dumps({record})) for r in {records}]"
    return Foreign(kind, python_command(code), ".jsonl", is_text=True, promise=promise)


def _array(where: str = "", field: str = "") -> Foreign:
    records = f"json.load(open(0, 'rb')){field} if isinstance(r, (dict, list, str))"
    return _records(f"a JSON array{where}", records, "{'text': r} if isinstance(r, str) else r")


_ARRAY = (
    rb'\[\s*("(?:[^"\\]|\\.)*(?:"\s*[,\]]|\Z)'  # of strings
    rb'|((null|true|false|-?\d[\d.eE+-]*)\s*,\s*){1,9}["{\[]'
    rb'|(\{\s*["}]|\{\s*\Z|\[\s*["{\[\-\d\]]|\]\s*\Z|\Z))'
)
_READ, _LINES = f"{OPENED}.read()", f"{OPENED} if r.strip()"
_LISTS = _records(
    "lines of JSON arrays",
    _LINES,
    "dict(enumerate(json.loads(r)))",
    "convert it to jsonl, whose fields are 0, 1, ... (--text-column NAME)",
)
_OBJECTS = _records("lines of JSON arrays of objects", f"(r for s in {OPENED} if s.strip() for r in json.loads(s))")
_STRINGS = _records("lines of JSON strings", _LINES, "{'text': json.loads(r)}")
_STRING_LINES = re.compile(rb'("[^"\\\n]*(\\.[^"\\\n]*)*"[ \t\r]*\n)+"[^"\\\n]*(\\.[^"\\\n]*)*("\s*)?\Z')

_DICT = rb"\{'([^'\\\n]|\\.)*':\s*(['\"\[{(\d-]|b'|None|True|False)"
_LISTS_AND_DICTS = (
    (_ARRAY, _array()),
    (rb"\[[\s\d.eE+-]+,[\s\d.,eE+-]*(\]\s*)?\Z", Foreign("a JSON array of numbers", is_text=True)),
    (rb"\[\s*" + _DICT, _records("a Python list of dicts", f"ast.literal_eval({_READ})")),
    (
        rb"\[\s*'([^'\\\n]|\\.)*'\s*(?=,)(?=[^\n]*[\],]\s*(\n|\Z)|[^\n]{1000})",
        _records("a Python list of strings", f"ast.literal_eval({_READ})", "{'text': r}"),
    ),
    (
        _DICT + rb"[^\n]*(\}[ \t\r]*(\n\s*(\{'|\Z)|\Z)|\Z)",
        _records("lines of Python dicts", _LINES, "ast.literal_eval(r)"),
    ),
    (
        rb"window\.[\w.$]+\s*=\s*\[\s*\{\s*[\"}]",
        _records("a JSON array in JavaScript", f"json.loads({_READ}.partition('=')[2].strip('; \\r\\n'))"),
    ),
)
_OBJECT = re.compile(rb"\{\s*(" + _STRING + rb"\s*:|\}|\Z)", re.DOTALL)
_HOLDER = re.compile(
    rb"\{\s*(?:" + _STRING + rb"\s*:\s*(?:" + _STRING + rb"|[\w.+-]+)\s*,\s*)*"
    rb'"(data|rows|examples|records|items|documents|articles|entries|train)"\s*:\s*\[\s*\{'
)
_PRETTY = Foreign("a JSON object over several lines", "jq -c .", ".jsonl", is_text=True)
_COMMAS = Foreign("JSON objects with a comma after each", "sed 's/,[[:space:]]*$//'", ".jsonl", is_text=True)
_OBJECT_AND_COMMA = re.compile(rb"[^\n]*\},[ \t\r]*\n\s*(\{|\Z)")
_CELLS = "import json; [print(''.join(c['source'])) for c in json.load(open(0, 'rb'))['cells']]"
_NOTEBOOK = Foreign("a notebook (JSON)", python_command(_CELLS), is_text=True)


def find_json(head: bytes, text: bytes) -> Foreign | None:
    """Return the kind of a file with this beginning, `text` without what may precede it; None for all but JSON."""
    if _has_words_after(text):
        return None
    found = _find_lists(text) or first_match(_LISTS_AND_DICTS, text)
    return found or (_find_object(head, text) if is_object(text) else None)


def is_object(text: bytes) -> bool:
    """Tell whether a file begins with a JSON object."""
    return bool(_OBJECT.match(text))


def find_strings(text: bytes) -> Foreign | None:
    """Return the kind of a file whose lines are JSON strings."""
    return _STRINGS if _STRING_LINES.match(text) else None


def _has_words_after(text: bytes) -> bool:
    """Tell whether a text begins with an array or object that a sentence or code goes on after, on the same line."""
    if not text.startswith((b"[", b"{")):
        return False
    decoded = text.decode("utf-8", "replace")
    try:
        _, end = json.JSONDecoder().raw_decode(decoded)
    except (ValueError, RecursionError):
        return False
    return bool(re.match(r"[ \t]*[^\s\[\]{},;\"]", decoded[end:]))


def _find_lists(text: bytes) -> Foreign | None:
    """Return the kind if each line is a JSON array: the first is a whole one, the second begins as one."""
    line, _, others = text.partition(b"\n")
    if not (line.startswith(b"[") and others.lstrip().startswith(b"[")):
        return None
    try:
        kinds = {type(cell) for cell in json.loads(line)}
    except (ValueError, RecursionError):
        return None
    return _OBJECTS if kinds == {dict} else _LISTS if {str, list} & kinds else None  # of numbers: a text of numbers


def _find_object(head: bytes, text: bytes) -> Foreign | None:
    """Return the kind of a file that begins with a JSON object; None for JSON Lines."""
    is_lines = is_json_lines(head)
    holder = _HOLDER.match(text)
    line, _, others = text.partition(b"\n")
    if re.search(rb'"(cell_type|nbformat)"\s*:', text) and not (is_lines and others.strip()):
        return _NOTEBOOK
    if holder and not (_has_text(line, holder[0]) or (is_lines and others.strip())):
        key = holder[1].decode()
        return _array(f" in the field {key!r} of one object", f"['{key}']")
    if is_lines:
        return None
    if _OBJECT_AND_COMMA.match(text):
        return _COMMAS
    return _PRETTY


def _has_text(line: bytes, before: bytes) -> bool:
    """Tell whether an object has a field `text`: on its line or, if the object goes on after it, before its array."""
    try:
        return "text" in json.loads(line)
    except (ValueError, RecursionError):
        return b'"text"' in before


def is_json_lines(head: bytes) -> bool:
    """Tell whether a file begins with a JSON object that does not go on in the next line.

    >>> is_json_lines(b'{"text": "one"}\\n'), is_json_lines(b'{\\n "text": "one"\\n}\\n'), is_json_lines(b"Once upon")
    (True, False, False)
    """
    text = head.removeprefix(codecs.BOM_UTF8).lstrip()
    if not is_object(text) or _has_words_after(text):
        return False
    line, has_end, _ = text.partition(b"\n")
    line = line.rstrip()
    if has_end:
        return not line.endswith((b"{", b"[", b",", b":"))  # a damaged line is reported by the reader
    return len(head) >= HEAD_BYTES or line.endswith(b"}")
