"""`--tiktoken-cache`: writes GPT-2's two files as tiktoken caches them, so that `sample.py` needs no network."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from ..output import files
from ..support.shell import as_word
from ..tokenizer.gpt2 import EOT_ID, token_names

_ADDRESS = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/"


def write_tiktoken_cache(folder: Path) -> list[str]:
    """Write the files that `tiktoken.get_encoding("gpt2")` would download; return lines that say how to use them.

    tiktoken (`load.py`) caches a file under the SHA-1 of its URL, and uses it only if its SHA-256 is the pinned one, as
    it is for these.

    Raises `DiskError`.
    """
    with files.disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    names, merges = token_names()
    ids = {name: i for i, name in enumerate(names)} | {"<|endoftext|>": EOT_ID}
    merged = "".join(f"{merge}\n" for merge in merges)
    for name, text in (("vocab.bpe", f"#version: 0.2\n{merged}"), ("encoder.json", json.dumps(ids))):
        key = hashlib.sha1((_ADDRESS + name).encode(), usedforsecurity=False).hexdigest()
        files.write_whole(folder / key, [text.encode()])
    word = as_word(str(folder.resolve()))
    return [f"{folder}: GPT-2 for tiktoken", f"use it: TIKTOKEN_CACHE_DIR={word} python sample.py"]
