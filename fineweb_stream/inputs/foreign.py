"""Recognizing files that are not a corpus by their first bytes, whatever their name.

The kinds listed are those that people have in place of a corpus. Here are archives, binary files, other encodings and
subtitles; `markup`, `json_kinds` and `tables` recognize the rest.
"""

from __future__ import annotations

import codecs
import re

from ..support.shell import python_command
from .codecs import CODECS
from .decoding import NOT_WHOLE, ZEROS, begins_as_utf8
from .json_kinds import find_json, find_strings, is_json_lines, is_object
from .kind import Foreign, first_match
from .markup import find_markup
from .tables import find_table


def _to_parquet(kind: str, module: str, read: str) -> Foreign:
    code = (
        f"import sys, pyarrow as pa, pyarrow.{module} as m, pyarrow.parquet as pq; pq.write_table({read}, sys.argv[2])"
    )
    return Foreign(kind, python_command(code, " {path} {new}"), ".parquet")


def _from_mails(mails: str) -> str:
    """Return the command that makes JSON lines of mails."""
    return python_command(
        "import email, email.policy as p, json, mailbox, sys; r = lambda f: email.message_from_binary_file(f,"
        f" policy=p.default); bodies = (m.get_body(('plain', 'html')) for m in {mails});"
        " [print(json.dumps({{'text': b.get_content().replace('\\r', '')}})) for b in bodies if b]",
        " {path} > {new}",
    )


_MAPPED = "(pa.memory_map(sys.argv[1])).read_all()"
_WARC = python_command(
    "import json, sys, warcio; [print(json.dumps({'text': r.content_stream().read().decode('utf-8', 'replace')}))"
    " for r in warcio.ArchiveIterator(sys.stdin.buffer) if r.rec_type in ('conversion', 'response')]"
)
_SHEETS = python_command(
    "import sys, pandas; pandas.concat(pandas.read_excel(sys.argv[1], sheet_name=None))"
    ".to_json(sys.argv[2], orient='records', lines=True)",
    " {path} {new}",
)
_SLIDES = python_command(
    "import sys, pptx; A = '{{http://schemas.openxmlformats.org/drawingml/2006/main}}';"
    " [print(''.join(t.text or '' for t in p.iter(A + 't')))"
    " for s in pptx.Presentation(sys.argv[1]).slides for p in s.element.iter(A + 'p')]",
    " {path} > {new}",
)

_PANDOC = "pandoc --wrap=none -t plain {path} -o {new}"
_TAR = Foreign("a tar archive", "mkdir {new} && tar -xf {path} -C {new}", "")

_BINARY = (
    *((codec.magic, Foreign(f"{codec.name} data", codec.command, "")) for codec in CODECS.values()),
    (rb"\x04\x22\x4d\x18", Foreign("lz4 data", "lz4 -dc")),
    (rb"\x1f\x9d", Foreign("compress (.Z) data", "gzip -dc")),
    (rb"LZIP\x01", Foreign("lzip data", "lzip -dc")),
    (rb"\x5d\x00\x00.{2,3}\xff\xff", Foreign("lzma data", "xz --format=lzma -dc")),
    (rb"\xff\x06\x00\x00sNaPpY", Foreign("snappy data", "snzip -dc")),
    (rb"7z\xbc\xaf\x27\x1c", Foreign("a 7z archive", "7z x {path} -o{new}", "")),
    (rb"Rar!\x1a\x07", Foreign("a rar archive", "mkdir {new} && unrar x {path} {new}/", "")),
    (rb"!<arch>\n", Foreign("an ar archive (.a or .deb)", "mkdir {new} && ar x {path} --output {new}", "")),
    (
        rb"PK\x03\x04.{26}mimetypeapplication/(epub|vnd\.oasis\.opendocument\.text)",
        Foreign("a document (epub or odt)", _PANDOC),
    ),
    (rb"PK\x03\x04.*word/\w+\.xml", Foreign("a Word document", _PANDOC)),
    (rb"PK\x03\x04.*ppt/\w+\.xml", Foreign("a PowerPoint presentation", _SLIDES)),
    (
        rb"PK\x03\x04(.{26}mimetypeapplication/vnd\.oasis\.opendocument\.spreadsheet|.*xl/\w+\.xml)|\xd0\xcf\x11\xe0.{508}\x09\x08",
        Foreign("a spreadsheet", _SHEETS, ".jsonl"),
    ),
    (rb"PK\x03\x04.{26}[^\x00]*(?:data\.pkl|\.npy)", Foreign("arrays or weights (of PyTorch or NumPy)")),
    (rb"PK\x03\x04|PK\x05\x06", Foreign("a zip archive", "unzip {path} -d {new}", "")),
    (rb"\s*%PDF-\d", Foreign("a PDF", "pdftotext {path} {new}")),
    (rb"%!PS-", Foreign("PostScript", "ps2ascii {path} {new}")),
    (rb"\{\\rtf", Foreign("an RTF document", "pandoc --wrap=none -f rtf -t plain {path} -o {new}")),
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
    (rb"ARROW1\x00\x00", _to_parquet("an Arrow file", "ipc", f"m.open_file{_MAPPED}")),
    (rb"\xff{4}..\x00\x00\x10\x00\x00\x00", _to_parquet("an Arrow stream", "ipc", f"m.open_stream{_MAPPED}")),
    (rb"FEA1.*\x00", _to_parquet("a Feather file", "feather", "m.read_table(sys.argv[1])")),
    (rb"PARE.*\x00", Foreign("an encrypted parquet file", hint="write it again without encryption")),
    (rb"ORC.*\x00", _to_parquet("an ORC file", "orc", "m.read_table(sys.argv[1])")),
    (rb"Obj\x01", Foreign("an Avro file", "fastavro {path} > {new}", ".jsonl")),
    (rb"\x89HDF\r\n", Foreign("an HDF5 file")),
    (rb"\x93NUMPY", Foreign("a NumPy array")),
    (rb"\x80[\x02-\x05]|(\([ld]|c[\w.]+\n\w+\n)p\d+\n", Foreign("a Python pickle")),
    (rb".{3}\x00{5}\{\s*\"", Foreign("model weights (safetensors)")),
    (rb"GGUF.\x00", Foreign("model weights (GGUF)")),
)
"""Patterns that no text begins with, and the kind of file that each means."""


_AS_IS = "errors='surrogateescape'"  # bytes that are not UTF-8
_CUES = python_command(
    f"import re; open(1, 'w', encoding='utf-8', {_AS_IS}).write("
    r"re.sub(r'(?m)\AWEBVTT.*\n([A-Za-z-]+[:=].*\n)*|^((?<=\n\n).+\n|\d+ *\n)?([\d:.,]+ +-->.*|\d+:[\d:.]+,\d[\d:.]+)\n"
    f"|</?c(\\.[^>\\n]*)?>|<[\\d:.]+>', '', open(0, encoding='utf-8-sig', {_AS_IS}).read()))"
)
_DIALOGUE = r"sed -nE 's/\{\\[^}]*\}//g; s/\\[Nnh]/ /g; s/^Dialogue:([^,]*,){9}//p'"

_UNKNOWN = Foreign(
    "binary data",
    hint="name text, jsonl or parquet files; to read it as text anyway: --format text --errors replace",
)
_HOLES = Foreign(f"{len(ZEROS):,} or more zero bytes", hint=NOT_WHOLE)
_RECODE = "first convert it to UTF-8: iconv -f ENCODING -t utf-8 {path} > NEW (most Western text is in cp1252)"
_CONTROLS = re.compile(rb"[\x01-\x06\x0e-\x14\x16-\x19\x1c-\x1f\x7f]")
"""What text has none of, in any encoding (0x15 ends lines in EBCDIC, 0x1a ends files in DOS)."""

_TEXTUAL = (
    (
        rb"version https://(git-lfs|hawser)\.github\.com/",
        Foreign("a Git LFS pointer instead of the file", hint="git lfs pull (it needs git-lfs)"),
    ),
    (rb"# xet version \d", Foreign("a Xet pointer instead of the file", hint="git xet checkout (it needs git-xet)")),
    (
        rb"(/|\.\./|\./)?(\.git/)?annex/objects/",
        Foreign("a git-annex pointer instead of the file", hint="git annex get {path}"),
    ),
    (
        rb"-----BEGIN (?!PGP SIGNED)[A-Z ]+-----\s|\$ANSIBLE_VAULT;",
        Foreign("encrypted data", hint="decrypt it (gpg -d, age -d, ...), and name what that writes", is_text=True),
    ),
    (
        rb"(?=[^\n]*[a-z])(?=[^\n]*[A-Z])(?=[^\n]*\d)(([A-Za-z0-9+/]{60,76}\r?\n){3}|[A-Za-z0-9+/]{1000})",
        Foreign("base64", "base64 -d", is_text=True),
    ),
    (rb"\x1e\s*[\[{]", Foreign("a JSON text sequence", "tr -d '\\036'", ".jsonl", is_text=True)),
    (
        rb"From [^\n]{1,99}\d\d:\d\d:\d\d[^\n]{0,40}\n>?[A-Z][\w-]*: ",
        Foreign("a mailbox (mbox)", _from_mails("mailbox.mbox(sys.argv[1], r)"), ".jsonl", is_text=True),
    ),
    (
        rb"(?i)([a-z][a-z-]*:[^\n]*\n([ \t][^\n]*\n)*)*mime-version: *1\.0\s",
        Foreign("a mail or a saved page (MIME)", _from_mails("[r(open(sys.argv[1], 'rb'))]"), ".jsonl", is_text=True),
    ),
    (rb"WARC/\d|filedesc://", Foreign("a web archive (WARC or ARC)", _WARC, ".jsonl", is_text=True)),
    (
        rb"(\d+[ \t\r]*\n)?\d\d?:\d\d:\d\d[,.]\d+( +--> |,\d+:\d\d:\d\d\.)|WEBVTT(?=\s).*-->",
        Foreign("subtitles", _CUES, is_text=True),
    ),
    (rb"\[Script Info\]\s*\n", Foreign("subtitles", _DIALOGUE, is_text=True)),
)


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
    if found := first_match(_BINARY, head) or _find_encoding(head):
        return found
    text = head.removeprefix(codecs.BOM_UTF8).lstrip()
    if found := first_match(_TEXTUAL, text):
        return found
    found = find_markup(text, suffix) or find_json(head, text)
    if not found and not is_object(text):
        found = find_table(head, suffix) or find_strings(text)
    if found and found.is_text and not begins_as_utf8(head) and b"encoding=" not in head:
        return Foreign(f"{found.kind} in another encoding than UTF-8", hint=_RECODE, is_text=True)
    return found


def _is_tar(head: bytes) -> bool:
    """Tell by the checksum of the first header, which every tar has (its own bytes count as eight spaces)."""
    if len(head) < 512 or not re.fullmatch(rb" *[0-7]+[\x00 ]*", head[148:156]):
        return False
    digits = head[148:156].strip(b"\x00 ")
    return int(digits, 8) == sum(head[:148]) + 8 * 32 + sum(head[156:512])


def _find_encoding(head: bytes) -> Foreign | None:
    """Recognize UTF-16 and UTF-32 by byte-order marks or zero bytes, ISO-2022-JP by its escapes; or binary data."""
    if re.search(rb"\x1b\$[@B]([!-~]{2})+\x1b\(", head):
        return _encoded("iso-2022-jp", "")
    if is_json_lines(head):  # the reader reports damaged lines
        return None
    if b"\0" not in head and not head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        is_binary = not begins_as_utf8(head) and 100 * len(_CONTROLS.findall(head)) > len(head)
        return _UNKNOWN if is_binary else None
    for name in ("utf-32le", "utf-32be", "utf-16le", "utf-16be"):
        try:
            text = codecs.getincrementaldecoder(name)().decode(head)
        except UnicodeDecodeError:
            continue
        if text.startswith("\ufeff"):
            return _encoded(name[:6], text)
        n_spaces = sum(map(text.count, " \n\u3000\u3002"))
        n_known = sum(c.isprintable() or c in "\n\r\t" for c in text)
        if n_spaces * 100 >= len(text) and n_known * 100 >= 97 * len(text) > 0:
            return _encoded(name, text)
    return _HOLES if ZEROS in head and begins_as_utf8(head.replace(b"\0", b"")) else _UNKNOWN


def _encoded(name: str, text: str) -> Foreign:
    is_json = text.lstrip("\ufeff \r\n\t").startswith("{")
    return Foreign(f"{name.upper()} text", f"iconv -f {name} -t utf-8", ".jsonl" if is_json else ".txt")
