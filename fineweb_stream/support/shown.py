"""What may be sent to a terminal: names, fields, records, servers' answers and decoded text are foreign until escaped.

A control character can move the cursor, recolour, rename the window or answer for the user; a newline in a name can
forge a line of ours; U+202E and its kin reverse what is read.
"""

from __future__ import annotations

import re

_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0, DEL, C1
    "\u061c\u200b\u200e\u200f\u202a-\u202e\u2066-\u206f\ufeff\ufff9-\ufffb"  # direction, and what is not seen
    "\u2028\u2029\ud800-\udfff]"  # separators of lines and paragraphs, surrogates (bytes of names that are no UTF-8)
)


def escape(text: str, keep: str = "") -> str:
    """Write as Python's escapes what must not reach a terminal; `keep` names characters that may.

    >>> print(escape("a\\x1b[31m\\u202etxt.exe\\nprepare: done"))
    a\\x1b[31m\\u202etxt.exe\\nprepare: done
    >>> escape("漢字 👩‍👩‍👧 naïve\\tC:\\\\new", keep="\\t")
    '漢字 👩\\u200d👩\\u200d👧 naïve\\tC:\\\\new'

    What is escaped already stays as it is, so that it does no harm twice.
    """
    return _UNSAFE.sub(lambda match: match[0] if match[0] in keep else repr(match[0])[1:-1], text)
