"""Recognizing XML and HTML by what a file begins with: its root, its declaration, or its suffix."""

from __future__ import annotations

import re

from ..support.shell import python_command
from .kind import Foreign, first_match

# Without what may be before the declaration, which a parser refuses; no !, which is a shell's own. A line ends after an
# element that no text follows: those in the midst of a sentence divide none.
_XML_TEXT = (
    "import re, sys, xml.etree.ElementTree as E; s = re.sub(rb'(?s)^(\\s|<.--.*?-->)+', b'', sys.stdin.buffer.read());"
    " r = E.fromstring(s); [setattr(e, 'tail', '\\n') for e in r.iter() if not (e.tail or '').strip()];"
    " print(re.sub(r'\\s*\\n\\s*', '\\n', ''.join(r.itertext())).strip())"
)
_ROWS = (
    "import json, sys, xml.etree.ElementTree as E;"
    " [(print(json.dumps(r.attrib)), r.clear()) for _, r in E.iterparse(sys.stdin.buffer) if r.tag == 'row']"
)

_PROLOG = re.compile(rb"((<\?xml\b[^>]*>)\s*|<!--([^-]|-(?!->))*-->\s*)*")
"""What comes before the root of XML or HTML: a declaration (group 2), comments."""

_PAGE = Foreign(
    "a web page (HTML)",
    "pandoc --wrap=none -f html -t plain",
    is_text=True,
    promise="if a server sent it instead of the file, download the file again; else convert the page to text",
)
_XML = Foreign("XML", python_command(_XML_TEXT), is_text=True)
_NO_TEXT = re.compile(rb"(\s*<[^>]*>)*\s*(<[^>]*)?")
_ROOTS = (
    (rb"(?i)<(!doctype\s+html|html|head|body)\b", _PAGE),
    (rb"<mediawiki\b", Foreign("a dump of a wiki (XML)", "wikiextractor --json -o {new} {path}", "", is_text=True)),
    (
        rb"<posts>\s*<row\b",
        Foreign(
            "posts of Stack Exchange (XML)",
            python_command(_ROWS),
            ".jsonl",
            is_text=True,
            promise="convert it to jsonl, whose text is HTML (--text-column Body)",
        ),
    ),
    (
        rb'(?i)<doc>\s*<docno>|<doc id="',
        Foreign("documents between tags", "sed -E 's|</?[A-Za-z][^>]*>||g'", is_text=True),
    ),
    (rb"(?i)<!doctype\s+\w|(?-i:<((rss|feed)\s[^>]*=|[A-Za-z][\w.:-]*\s[^>]*\bxmlns\b))", _XML),
)
_ROOTS_BY_NAME = {".xml": _XML, ".html": _PAGE, ".htm": _PAGE, ".xhtml": _PAGE}


def find_markup(text: bytes, suffix: str) -> Foreign | None:
    """Return the kind of XML or HTML by its root, its declaration or its suffix."""
    prolog = _PROLOG.match(text)
    assert prolog  # it matches nothing, too
    root = text[prolog.end() :]
    found = first_match(_ROOTS, root) or (_XML if prolog[2] else None)
    if not found and text.startswith(b"<"):
        found = _ROOTS_BY_NAME.get(suffix)
    if found is _XML and _NO_TEXT.fullmatch(root):
        return Foreign("XML without text between its tags", is_text=True)
    return found
