"""Documents as one UTF-8 buffer and the end offset of each. No Python object per document."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from .ids import Ends

_HIGH_BITS = np.uint64(0x8080808080808080)


def join_texts(texts: Sequence[str]) -> tuple[bytes, Ends]:
    """Return texts as one UTF-8 buffer, and the end offset of each; lone surrogates become U+FFFD.

    >>> data, ends = join_texts(["one", "", "zwölf"])
    >>> data, ends.tolist()
    (b'onezw\\xc3\\xb6lf', [3, 3, 9])
    """
    return join_bytes([encode_text(text) for text in texts])


def encode_text(text: str) -> bytes:
    """Encode as tiktoken's `encode_ordinary` does: surrogate pairs become one character, lone surrogates U+FFFD."""
    try:
        return text.encode()
    except AttributeError:
        raise TypeError(f"a text is a str, not {type(text).__name__}") from None
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def join_bytes(documents: Sequence[bytes]) -> tuple[bytes, Ends]:
    """Return documents as one buffer, and the end offset of each: int64, shape (len(documents),)."""
    lengths = np.fromiter(map(len, documents), np.int64, len(documents))
    return b"".join(documents), np.cumsum(lengths)


def beyond_ascii(data: bytes | memoryview) -> bytes:
    """Return the parts of some text that have more than ASCII; mostly by NumPy, outside the GIL.

    >>> beyond_ascii(b"seven words of ASCII, then na\\xc3\\xafve, then seven more words of it")
    b'en na\\xc3\\xafve, then  of it'

    They are words of 8 bytes, with the word after each run of them, which keeps runs apart; and the last few bytes.
    """
    words = np.frombuffer(data, np.uint64, len(data) // 8)
    is_kept = (words & _HIGH_BITS) != 0
    is_kept[1:] |= is_kept[:-1]
    return words[np.flatnonzero(is_kept)].tobytes() + bytes(data[8 * len(words) :])


def with_separator(data: bytes | memoryview, ends: Ends, separator: bytes) -> bytes:
    """Return the documents of a buffer with a separator after each, including the last.

    >>> with_separator(b"onetwo", np.array([3, 6]), b"|")
    b'one|two|'

    Arrow joins them without the GIL if the reader of the input has already loaded it.
    """
    if len(ends) > 1 and "pyarrow" in sys.modules:
        return _join_by_arrow(data, ends, separator)
    starts = [0, *ends[:-1].tolist()]
    return b"".join([part for i, end in enumerate(ends.tolist()) for part in (data[starts[i] : end], separator)])


def _join_by_arrow(data: bytes | memoryview, ends: Ends, separator: bytes) -> bytes:
    import pyarrow as pa
    import pyarrow.compute as pc

    buffers = [None, pa.py_buffer(np.concatenate([[0], ends])), pa.py_buffer(data)]
    documents = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(ends), buffers)
    # Each document, the separator, and nothing.
    joined = pc.binary_join_element_wise(documents, _arrow_scalar(b""), _arrow_scalar(separator))
    copied: bytes = pa.BufferReader(joined.buffers()[2]).read()  # unlike `bytes()`, without the GIL
    return copied


@functools.lru_cache(maxsize=8)
def _arrow_scalar(value: bytes) -> Any:
    import pyarrow as pa

    return pa.scalar(value, pa.large_binary())
