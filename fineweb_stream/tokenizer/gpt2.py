"""GPT-2's vocabulary, carried in the package: no download, no cache folder, no network.

`gpt2_merges.npy` beside this file holds the 50,000 merges in order of rank, as a (50000, 2) array of little-endian
uint16: row i has the two earlier ids that form id 256 + i. Ids 0-255 are the single bytes, printable ones first, as in
GPT-2's `encoder.py`. All tokens and tiktoken's ranks are computed from this table.

The table was derived from GPT-2's rank file in the MIT-licensed package openai-whisper. A test verifies that it is the
official vocabulary: written in OpenAI's formats, it has the SHA-256 hashes that tiktoken pins.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..support.errors import PrepareError
from .cuts import WORD_PATTERNS
from .tokenizer import Tokenizer, TokenizerSpec

if TYPE_CHECKING:
    import tiktoken

EOT_ID = 50256  # the id of `<|endoftext|>`, which ends a document

MERGES_PATH = Path(__file__).with_name("gpt2_merges.npy")
MERGES_SHA256 = "51fe6ca753404e85706d4071feb8907a19d255eaa40b4333832a1aba22e8a901"


def load_merges() -> list[tuple[int, int]]:
    """Return the merges in order of rank: the two ids that each joins.

    >>> len(load_merges()), load_merges()[0], token_names()[1][0]  # id 256 is " t"
    (50000, (220, 83), 'Ġ t')

    Raises `PrepareError` if the file is missing or is not the one released with this package.
    """
    data = b""
    with contextlib.suppress(OSError):
        data = MERGES_PATH.read_bytes()
    if hashlib.sha256(data).hexdigest() != MERGES_SHA256:
        raise PrepareError(
            f"{MERGES_PATH}: missing, or not the vocabulary that this package was released with (SHA-256 differs)",
            "copy the whole folder fineweb_stream/ again, the .npy file included, in binary mode",
        )
    return list(struct.iter_unpack("<HH", data[-200_000:]))  # without NumPy, which is imported later


@functools.cache
def token_bytes() -> list[bytes]:
    """Return the bytes of every token, indexed by id.

    >>> token_bytes()[31373], token_bytes()[EOT_ID]
    (b'hello', b'<|endoftext|>')
    """
    tokens = [bytes([byte]) for byte in bytes_by_name().values()]
    for left, right in load_merges():
        tokens.append(tokens[left] + tokens[right])
    return [*tokens, b"<|endoftext|>"]


def iter_ranks() -> Iterator[bytes]:
    """Yield the lines of tiktoken's rank file: each token in base64, and its id.

    >>> next(iter_ranks())
    b'IQ== 0\\n'
    """
    return (base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(token_bytes()[:EOT_ID]))


def tiktoken_encoding() -> tiktoken.Encoding:
    """Build the encoding that `tiktoken.get_encoding("gpt2")` downloads.

    >>> tiktoken_encoding().encode_ordinary("hello world")
    [31373, 995]
    """
    import tiktoken

    return tiktoken.Encoding(
        "gpt2",
        pat_str=WORD_PATTERNS["gpt2"][0],
        mergeable_ranks={token: rank for rank, token in enumerate(token_bytes()[:EOT_ID])},
        special_tokens={"<|endoftext|>": EOT_ID},
        explicit_n_vocab=EOT_ID + 1,
    )


def token_names() -> tuple[list[str], list[str]]:
    """Return every token as spelled in GPT-2's `encoder.json`, and the merges as in `vocab.bpe`."""
    names, merges = list(bytes_by_name()), []
    for left, right in load_merges():
        first, second = names[left], names[right]
        merges.append(f"{first} {second}")
        names.append(first + second)
    return names, merges


def bytes_by_name() -> dict[str, int]:
    """Return the byte that each visible character stands for in a byte-level vocabulary, in the order of GPT-2's ids.

    A printable byte is its own character; the others are U+0100 and up.

    >>> bytes_by_name()["A"], bytes_by_name()["Ġ"]
    (65, 32)
    """
    printable = [byte for byte in range(256) if chr(byte).isprintable() and byte != ord(" ")]
    others = sorted({*range(256)} - {*printable})
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


GPT2 = Tokenizer(
    name="gpt2",
    eot_id=EOT_ID,
    n_ids=EOT_ID + 1,
    vocabulary_sha256="306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
    spec=TokenizerSpec("gpt2"),
    load_reference=tiktoken_encoding,
    token_bytes=token_bytes,
    has_fast=True,
    scheme="gpt2",
    iter_ranks=iter_ranks,
)
"""GPT-2's tokenizer, as in tiktoken."""
