"""Recognizing files that are not a corpus by their first bytes, whatever their name.

The kinds listed are those that people have in place of a corpus: archives, tables, arrays, other encodings, web pages
that a server sent instead of a file.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
import sys
from typing import Any

from ..support.redact import as_word, quoted
from .codecs import CODECS
from .refusal import Foreign

_BYTE_ORDER_MARKS = {  # UTF-32 first: one of its marks begins with one of UTF-16's
    "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
    "utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
}

HEAD_BYTES = 32 << 10
"""How much of an input's content is looked at (bytes)."""


def _python(code: str, arguments: str = "") -> str:
    return f'{quoted(sys.executable or "python3")} -c "{code}"{arguments}'


def _to_parquet(module: str, table: str) -> str:
    code = (
        f"import sys, pyarrow as pa, pyarrow.parquet as pq, pyarrow.{module} as m; pq.write_table({table}, sys.argv[2])"
    )
    return _python(code, " {path} {new}")


_OPENED = "open(0, newline='', encoding='utf-8-sig')"
_WARC = _python(
    "import json, sys, warcio; [print(json.dumps({'text': r.content_stream().read().decode('utf-8', 'replace')}))"
    " for r in warcio.ArchiveIterator(sys.stdin.buffer) if r.rec_type in ('conversion', 'response')]"
)
_EXCEL = "import sys, pandas; pandas.read_excel(sys.argv[1]).to_json(sys.argv[2], orient='records', lines=True)"
_PANDOC = "pandoc -t plain {path} -o {new}"
_FOLDER = "unpack it, and name the folder"


def _archive(kind: str, command: str) -> Foreign:
    return Foreign(kind, command, "", promise=_FOLDER)


_TAR = _archive("a tar archive", "mkdir {new} && tar -xf {path} -C {new}")

_BINARY = (
    *(
        (codec.magic, Foreign(f"{codec.name} data", codec.command, "", promise="unpack it"))
        for codec in CODECS.values()
    ),
    (rb"\x04\x22\x4d\x18", Foreign("lz4 data", "lz4 -dc")),
    (rb"\x1f\x9d", Foreign("compress (.Z) data", "gzip -dc")),
    (rb"LZIP\x01", Foreign("lzip data", "lzip -dc")),
    (rb"\x5d\x00\x00.{2,3}\xff\xff", Foreign("lzma data", "xz --format=lzma -dc")),
    (rb"\xff\x06\x00\x00sNaPpY", Foreign("snappy data", "snzip -dc")),
    (rb"7z\xbc\xaf\x27\x1c", _archive("a 7z archive", "7z x {path} -o{new}")),
    (rb"Rar!\x1a\x07", _archive("a rar archive", "mkdir {new} && unrar x {path} {new}/")),
    (rb"!<arch>\n", _archive("an ar archive (.a or .deb)", "mkdir {new} && ar x {path} --output {new}")),
    (rb"PK\x03\x04.{26}mimetypeapplication/", Foreign("a document (epub or odt)", _PANDOC)),
    (rb"PK\x03\x04.*word/", Foreign("a Word document", _PANDOC)),
    (rb"PK\x03\x04.*xl/", Foreign("an Excel table", _python(_EXCEL, " {path} {new}"), ".jsonl")),
    (rb"PK\x03\x04.{26}[^\x00]*(?:data\.pkl|\.npy)", Foreign("arrays or weights (of PyTorch or NumPy)")),
    (rb"PK\x03\x04|PK\x05\x06", _archive("a zip archive", "unzip {path} -d {new}")),
    (rb"\s*%PDF-\d", Foreign("a PDF", "pdftotext {path} {new}")),
    (rb"%!PS-", Foreign("PostScript", "ps2ascii {path} {new}")),
    (rb"\{\\rtf", Foreign("an RTF document", "pandoc -f rtf -t plain {path} -o {new}")),
    (rb"\xd0\xcf\x11\xe0", Foreign("an old Office document", "soffice --headless --convert-to txt:Text {path}")),
    (rb"AT&TFORM.{4}DJV", Foreign("a DjVu document", "djvutxt {path} {new}")),
    (
        rb"\x7fELF|MZ[^\n]{0,60}\x00|\xca\xfe\xba\xbe|[\xce\xcf]\xfa\xed\xfe",
        Foreign("an executable (ELF, Windows or macOS)"),
    ),
    (
        rb"\x89PNG|\xff\xd8\xff|GIF8[79]a|RIFF.{4}WEBP|II\*\x00|MM\x00\*|BM.{4}\x00\x00\x00\x00",
        Foreign("an image (PNG, JPEG, GIF, WebP, TIFF or BMP)"),
    ),
    (rb"RIFF.{4}(WAVE|AVI )|OggS\x00|fLaC\x00|ID3[\x02-\x04]\x00|\xff[\xf2\xf3\xfa\xfb]", Foreign("sound or video")),
    (rb".{4}ftyp.{4}\x00|\x1a\x45\xdf\xa3", Foreign("sound or video")),
    (
        rb"SQLite format 3\x00",
        Foreign(
            "an SQLite database",
            hint="sqlite3 {path} .tables shows its tables; then"
            " sqlite3 {path} \"select json_object('text', COLUMN) from TABLE\" > NEW.jsonl",
        ),
    ),
    (
        rb"ARROW1\x00\x00",
        Foreign("an Arrow file", _to_parquet("ipc", "m.open_file(pa.memory_map(sys.argv[1])).read_all()"), ".parquet"),
    ),
    (
        rb"\xff\xff\xff\xff..\x00\x00\x10\x00\x00\x00",
        Foreign(
            "an Arrow stream", _to_parquet("ipc", "m.open_stream(pa.memory_map(sys.argv[1])).read_all()"), ".parquet"
        ),
    ),
    (rb"FEA1.*\x00", Foreign("a Feather file", _to_parquet("feather", "m.read_table(sys.argv[1])"), ".parquet")),
    (rb"PARE.*\x00", Foreign("an encrypted parquet file", hint="write it again without encryption")),
    (rb"ORC.*\x00", Foreign("an ORC file", _to_parquet("orc", "m.read_table(sys.argv[1])"), ".parquet")),
    (rb"Obj\x01", Foreign("an Avro file", "fastavro {path} > {new}", ".jsonl")),
    (rb"\x89HDF\r\n", Foreign("an HDF5 file")),
    (rb"\x93NUMPY", Foreign("a NumPy array")),
    (rb"\x80[\x02-\x05]|\([ld]p\d+\n", Foreign("a Python pickle")),
    (rb".{3}\x00{5}\{\s*\"", Foreign("model weights (safetensors)")),
    (rb"GGUF.\x00", Foreign("model weights (GGUF)")),
)
"""Patterns that no text begins with, and the kind of file that each means."""

_JQ_CELLS = 'jq -r \'.cells[].source | if type == "array" then join("") else . end\''

_XML_TEXT = (  # without what may be before its declaration, which a parser refuses; no !, which is a shell's own
    "import re, sys, xml.etree.ElementTree as E; s = re.sub(rb'(?s)^(\\s|<.--.*?-->)+', b'', sys.stdin.buffer.read());"
    " print('\\n'.join(t.strip() for t in E.fromstring(s).itertext() if t.strip()))"
)
_ROWS = (
    "import json, sys, xml.etree.ElementTree as E;"
    " [(print(json.dumps(r.attrib)), r.clear()) for _, r in E.iterparse(sys.stdin.buffer) if r.tag == 'row']"
)

_AS_IS = "errors='surrogateescape'"  # bytes that are not UTF-8
_CUES = _python(
    f"import re; open(1, 'w', encoding='utf-8', {_AS_IS}).write("
    r"re.sub(r'(?m)\AWEBVTT.*\n([A-Za-z-]+[:=].*\n)*|^((?<=\n\n).+\n|\d+ *\n)?[\d:.,]+ +-->.*\n"
    f"|</?c(\\.[^>\\n]*)?>|<[\\d:.]+>', '', open(0, encoding='utf-8-sig', {_AS_IS}).read()))"
)
_DIALOGUE = r"sed -nE 's/\{\\[^}]*\}//g; s/\\[Nnh]/ /g; s/^Dialogue:([^,]*,){9}//p'"

_TEXTUAL = (
    (
        rb"version https://git-lfs\.github\.com/",
        Foreign("a Git LFS pointer instead of the file", hint="git lfs pull (it needs git-lfs)"),
    ),
    (
        rb"(/|\.\./|\./)?(\.git/)?annex/objects/",
        Foreign("a git-annex pointer instead of the file", hint="git annex get {path}"),
    ),
    (rb"WARC/\d", Foreign("a web archive (WARC)", _WARC, ".jsonl", is_text=True)),
    (rb"(\d+[ \t\r]*\n)?\d\d?:\d\d:\d\d[,.]\d+ +--> |WEBVTT(?=\s)", Foreign("subtitles", _CUES, is_text=True)),
    (rb"\[Script Info\]\s*\n", Foreign("subtitles", _DIALOGUE, is_text=True)),
)

_PROLOG = re.compile(rb"((<\?xml\b[^>]*>)\s*|<!--([^-]|-(?!->))*-->\s*)*")
"""What comes before the root of XML or HTML: a declaration (group 2), comments."""

_PAGE = Foreign(
    "a web page (HTML)",
    "pandoc -f html -t plain",
    is_text=True,
    promise="if a server sent it instead of the file, download the file again; else convert the page to text",
)
_XML = Foreign("XML", _python(_XML_TEXT), is_text=True)
_NO_TEXT = re.compile(rb"(\s*<[^>]*>)*\s*(<[^>]*)?")
_ROOTS = (
    (rb"(?i)<(!doctype\s+html|html|head|body)\b", _PAGE),
    (
        rb"<mediawiki\b",
        _archive("a dump of a wiki (XML)", "wikiextractor --json -o {new} {path}")._replace(is_text=True),
    ),
    (
        rb"<posts>\s*<row\b",
        Foreign(
            "posts of Stack Exchange (XML)",
            _python(_ROWS),
            ".jsonl",
            is_text=True,
            promise="convert it to jsonl, whose text is HTML (--text-column Body)",
        ),
    ),
    (
        rb'(?i)<doc>\s*<docno>|<doc id="',
        Foreign("documents between tags", "sed -E 's|</?[A-Za-z][^>]*>||g'", is_text=True),
    ),
    (rb"(?i)<!doctype\s+\w|(?-i:<(TEI|teiCorpus|rss|feed)\s[^>]*=)", _XML),
)
_ROOTS_BY_NAME = {".xml": _XML, ".html": _PAGE, ".htm": _PAGE, ".xhtml": _PAGE}

_STRING = rb'"(?:[^"\\]|\\.)*"'


def _json(kind: str, path: str, record: str = "", key: str = "") -> Foreign:
    code = f"import json; [print(json.dumps({record or 'r'})) for r in json.load(open(0, 'rb')){key}]"
    return Foreign(
        kind,
        f"jq -c {as_word(path)}",
        ".jsonl",
        is_text=True,
        promise="write one object per line",
        without_jq=_python(code) if path != "." else "",
    )


_MIXED = "{'text': r} if isinstance(r, str) else r", " if isinstance(r, (dict, list, str))"
_ARRAYS = (
    (rb'\[\s*"(?:[^"\\]|\\.)*(?:"\s*[,\]]|\Z)', _json("a JSON array of strings", ".[] | {text: .}", "{'text': r}")),
    (
        rb'\[\s*((null|true|false|-?\d[\d.eE+-]*)\s*,\s*){1,9}["{\[]',
        _json("a JSON array", ".[] | iterables, (strings | {text: .})", *_MIXED),
    ),
    (
        rb'\[\s*(\{\s*["}]|\{\s*\Z|\[\s*["{\[\-\d\]]|(-?\d[\d.eE+-]*\s*,\s*){2}|\]\s*\Z|\Z)',
        _json("a JSON array", ".[]"),
    ),
)


def _records(kind: str, record: str, records: str, promise: str = "write one object per line") -> Foreign:
    code = f"import ast, json; [print(json.dumps({record})) for r in {records}]"
    return Foreign(kind, _python(code), ".jsonl", is_text=True, promise=promise)


_READ, _LINES = f"{_OPENED}.read()", f"{_OPENED} if r.strip()"
_LISTS = _records(
    "lines of JSON arrays",
    "dict(enumerate(json.loads(r)))",
    _LINES,
    "convert it to jsonl, whose fields are 0, 1, ... (--text-column NAME)",
)
_STRINGS = _records("lines of JSON strings", "{'text': json.loads(r)}", _LINES)
_STRING_LINES = re.compile(rb'("[^"\\\n]*(\\.[^"\\\n]*)*"[ \t\r]*\n)+"[^"\\\n]*(\\.[^"\\\n]*)*("\s*)?\Z')

_DICT = rb"\{'([^'\\\n]|\\.)*':\s*(['\"\[{(\d-]|b'|None|True|False)"
_LITERALS = (
    (rb"\[\s*" + _DICT, _records("a Python list of dicts", "r", f"ast.literal_eval({_READ})")),
    (
        _DICT + rb"[^\n]*(\}[ \t\r]*(\n\s*(\{'|\Z)|\Z)|\Z)",
        _records("lines of Python dicts", "ast.literal_eval(r)", _LINES),
    ),
    (
        rb"window\.[\w.$]+\s*=\s*\[\s*\{\s*[\"}]",
        _records("a JSON array in JavaScript", "r", f"json.loads({_READ}.partition('=')[2].strip('; \\r\\n'))"),
    ),
)
_OBJECT = re.compile(rb"\{\s*(" + _STRING + rb"\s*:|\}|\Z)", re.DOTALL)
_HOLDER = re.compile(
    rb"\{\s*(?:" + _STRING + rb"\s*:\s*(?:" + _STRING + rb"|[\w.+-]+)\s*,\s*)*"
    rb'"(data|rows|examples|records|items|documents|articles|entries|train)"\s*:\s*\[\s*\{'
)
_PRETTY = _json("a JSON object over several lines", ".")
_COMMAS = Foreign(
    "JSON objects with a comma after each",
    "sed 's/,[[:space:]]*$//'",
    ".jsonl",
    is_text=True,
    promise="write one object per line",
)
_NOTEBOOK = Foreign("a notebook (JSON)", _JQ_CELLS, is_text=True)


def find_foreign(head: bytes, suffix: str = "") -> Foreign | None:
    """Return the kind of a file whose content begins with `head`; None for text, JSON Lines and parquet.

    Its `suffix` matters only for tables, XML and HTML.

    >>> find_foreign(b'[{"text": "one"},').kind
    'a JSON array'
    >>> find_foreign(b"[1] See the notes.") is None
    True
    """
    if _is_tar(head):
        return _TAR
    for pattern, kind in _BINARY:
        if re.match(pattern, head, re.DOTALL):
            return kind
    if encoded := _find_encoding(head):
        return encoded
    text = head.removeprefix(codecs.BOM_UTF8).lstrip()
    if found := _find_markup(text, suffix):
        return found
    if _is_lists(text):
        return _LISTS
    for pattern, kind in (*_TEXTUAL, *_ARRAYS, *_LITERALS):
        if re.match(pattern, text, re.DOTALL):
            return kind
    if _OBJECT.match(text):
        return _find_json(head, text)
    return find_table(head, suffix) or (_STRINGS if _STRING_LINES.match(text) else None)


def _find_markup(text: bytes, suffix: str) -> Foreign | None:
    """Return the kind of XML or HTML by its root, its declaration or its suffix."""
    prolog = _PROLOG.match(text)
    assert prolog  # it matches nothing, too
    root = text[prolog.end() :]
    found = next((kind for pattern, kind in _ROOTS if re.match(pattern, root)), _XML if prolog[2] else None)
    if not found and text.startswith(b"<"):
        found = _ROOTS_BY_NAME.get(suffix)
    if found is _XML and _NO_TEXT.fullmatch(root):
        return Foreign("XML without text between its tags", is_text=True)
    return found


def _is_lists(text: bytes) -> bool:
    """Tell whether each line is a JSON array: the first is a whole one, the second begins as one."""
    line, _, others = text.partition(b"\n")
    if not (line.startswith(b"[") and others.lstrip().startswith(b"[")):
        return False
    try:
        cells = json.loads(line)
    except (ValueError, RecursionError):
        return False
    kinds = {type(cell) for cell in cells}
    return bool({str, list} & kinds) or (len(cells) > 1 and dict not in kinds)  # [1] is a footnote; of objects: .[]


def _find_json(head: bytes, text: bytes) -> Foreign | None:
    """Return the kind of a file that begins with a JSON object; None for JSON Lines."""
    is_lines = is_json_lines(head)
    holder = _HOLDER.match(text)
    line, _, others = text.partition(b"\n")
    if holder and not (_has_text(line, holder[0]) or (is_lines and others.strip())):
        key = holder[1].decode()
        return _json(f"a JSON array in the field {key!r} of one object", f".{key}[]", key=f"['{key}']")
    if is_lines:
        return None
    if is_json_lines(re.sub(rb",\s*\Z", b"\n", line)):
        return _COMMAS
    return _NOTEBOOK if re.search(rb'"(cells|nbformat)"\s*:', text) else _PRETTY


def _has_text(line: bytes, before: bytes) -> bool:
    """Tell whether an object has a field `text`: on its line or, if the object goes on after it, before its array."""
    try:
        return "text" in json.loads(line)
    except (ValueError, RecursionError):
        return b'"text"' in before


def is_json_lines(head: bytes) -> bool:
    """Tell whether a file begins with a JSON object that ends on the same line.

    >>> is_json_lines(b'{"text": "one"}\\n'), is_json_lines(b'{\\n "text": "one"\\n}\\n'), is_json_lines(b"Once upon")
    (True, False, False)
    """
    text = head.removeprefix(codecs.BOM_UTF8).lstrip()
    if not _OBJECT.match(text):
        return False
    line, has_end, _ = text.partition(b"\n")
    if not has_end:
        return len(head) >= HEAD_BYTES or line.rstrip().endswith(b"}")
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        pass
    if line.rstrip().endswith((b"{", b"[", b",", b":")):
        return False
    try:
        _, end = json.JSONDecoder(strict=False).raw_decode(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return True  # a damaged line, which the reader reports
    return end <= len(line.decode("utf-8", "replace"))


def _is_tar(head: bytes) -> bool:
    """Tell by the checksum of the first header, which every tar has (its own bytes count as eight spaces)."""
    if len(head) < 512 or not re.fullmatch(rb" *[0-7]+[\x00 ]*", head[148:156]):
        return False
    digits = head[148:156].strip(b"\x00 ")
    return int(digits, 8) == sum(head[:148]) + 8 * 32 + sum(head[156:512])


def _find_encoding(head: bytes) -> Foreign | None:
    """Recognize UTF-16 and UTF-32 by byte-order marks or zero bytes, ISO-2022-JP by its escapes; or binary data."""
    for name, marks in _BYTE_ORDER_MARKS.items():
        if head.startswith(marks):
            return _encoded(name, head.decode(name, "replace"))
    if re.search(rb"\x1b\$[@B]([!-~]{2})+\x1b\(", head):
        return _encoded("iso-2022-jp", "")
    if b"\0" not in head:
        return None
    for name in ("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be"):
        try:
            text = codecs.getincrementaldecoder(name)().decode(head)
        except UnicodeDecodeError:
            continue
        n_spaces = sum(map(text.count, " \n\u3000\u3002"))
        n_known = sum(c.isprintable() or c in "\n\r\t" for c in text)
        if n_spaces * 100 >= len(text) and n_known * 100 >= 97 * len(text) > 0:
            return _encoded(name.replace("-le", "le").replace("-be", "be"), text)
    return Foreign(
        "binary data",
        hint="name text, jsonl or parquet files; to read it as text anyway: --format text --errors replace",
    )


def _encoded(name: str, text: str) -> Foreign:
    is_json = text.lstrip("\ufeff \r\n\t").startswith("{")
    return Foreign(f"{name.upper()} text", f"iconv -f {name} -t utf-8", ".jsonl" if is_json else ".txt")


_TABLE_NAMES = {".csv": ",;\t|", ".tsv": "\t,;|", ".tab": "\t,;|", ".psv": "|,;\t"}
"""The suffixes of tables, and which delimiters to try: a spreadsheet writes .csv with ; in half of the world."""

_COLUMN = re.compile(r"[A-Za-z_][\w.()/#-]*( [\w.()/#-]+){0,2}")
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
    delimiters = _TABLE_NAMES.get(suffix, ",\t;|")
    for delimiter in filter(first.__contains__, delimiters):
        rows, options = _rows(text, delimiter, is_cut)
        if _is_table(rows, delimiter) or (suffix in _TABLE_NAMES and _is_even(rows)):
            return _table(rows, delimiter, options)
    if suffix not in _TABLE_NAMES:
        return None
    rows, options = _rows(text, delimiters[0], is_cut)
    return _table(rows, delimiters[0], options)


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
    return are_filled and (delimiter == "\t" or all(row[0].isdecimal() for row in rows))


def _table(rows: list[list[str]], delimiter: str, options: str) -> Foreign:
    kind = {",": "CSV", "\t": "TSV"}.get(delimiter, f"separated by {delimiter}")
    has_header = _has_header(rows)
    reader, row = ("DictReader", "r") if has_header else ("reader", "dict(enumerate(r))")
    code = (
        "import csv, json; csv.field_size_limit(2**31 - 1);"
        f" [print(json.dumps({row})) for r in csv.{reader}({_OPENED}{options})]"
    )
    columns = ", ".join(filter(None, rows[0])) if has_header else "0, 1, ..."
    promise = f"convert it to jsonl, whose fields are {columns} (--text-column NAME)" if rows else "convert it to jsonl"
    return Foreign(f"a table ({kind})", _python(code), ".jsonl", is_text=True, promise=promise)
