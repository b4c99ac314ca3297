"""Loads the `Tokenizer` that `--tokenizer` names.

`gpt2` is in the package; `bytes` and `chars` need no file; a path is a `tokenizer.json`, a folder with one, or a rank
file (`.tiktoken`); any other name is one of tiktoken's encodings.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

from ..support.errors import InputError
from ..support.ranged import read_bounded
from .gpt2 import GPT2
from .tokenizer import Tokenizer, TokenizerSpec

NAMES = ("gpt2", "bytes", "chars")

MAX_FILE_BYTES = 256 << 20  # the largest file that is read; no vocabulary is larger


def load_tokenizer(name: str, pattern: str | None = None, eot: str | int | None = None) -> Tokenizer:
    """Return the tokenizer named by `--tokenizer`, `--pattern` and `--eot-id`.

    >>> load_tokenizer("gpt2"), load_tokenizer("bytes").n_ids
    (Tokenizer('gpt2'), 257)

    Raises `InputError` for a tokenizer that is unknown or damaged, for a pattern that it does not take, and for an
    end-of-text that it does not have.
    """
    path = os.path.abspath(name) if is_path(name) else name
    return load_spec(TokenizerSpec(path, pattern, None if eot is None else str(eot)))


def is_path(name: str) -> bool:
    """Tell whether a name is a path: it has a separator or a known suffix, or such a file or folder exists."""
    return name not in NAMES and (
        "/" in name or os.sep in name or name.endswith((".json", ".tiktoken", ".model")) or os.path.exists(name)
    )


def load_spec(spec: TokenizerSpec) -> Tokenizer:
    """Return the tokenizer of a spec; its file is read each time, but parsed again only if it has changed."""
    is_ranks = is_path(spec.name) and not spec.name.endswith(".json") and not os.path.isdir(spec.name)
    if spec.pattern is not None and not is_ranks:
        raise InputError(f"--pattern is for rank files (.tiktoken), {spec.name} has its own", "leave it out")
    if spec.name == "gpt2":
        if spec.eot not in (None, str(GPT2.eot_id), "<|endoftext|>"):
            raise InputError(f"--eot-id {spec.eot}: GPT-2's end-of-text is {GPT2.eot_id}", "leave it out")
        return GPT2
    if spec.name in NAMES:
        from .plain import make_plain

        return make_plain(spec)
    if is_ranks:
        from .ranks import of_ranks

        return of_ranks(spec, read_file(Path(spec.name)))
    if is_path(spec.name):
        from .tokenizer_json import of_json

        path = Path(spec.name)
        path = path / "tokenizer.json" if os.path.isdir(path) else path
        config = path.with_name("tokenizer_config.json")
        return of_json(spec, read_file(path), read_file(config) if os.path.exists(config) else b"{}")
    from .ranks import of_name

    return of_name(spec)


@functools.lru_cache(maxsize=4)
def reload(spec: TokenizerSpec, sha256: str) -> Tokenizer:
    """Return the tokenizer that `spec` loaded earlier, here or on another machine; its file is read once per process.

    Raises `InputError` if it has changed.
    """
    tokenizer = load_spec(spec)
    if tokenizer.vocabulary_sha256 != sha256:
        raise InputError(
            f"{spec.name}: not the tokenizer that made the ids (its SHA-256 is not {sha256[:12]}...)",
            "put that one back, under the same path",
        )
    return tokenizer


def of_record(about: dict[str, Any]) -> Tokenizer:
    """Return the tokenizer described in a manifest, after checking its hash.

    Raises `InputError` if it is missing or has changed.
    """
    spec = TokenizerSpec(*(about.get(name) for name in TokenizerSpec._fields))  # type: ignore[arg-type]
    if not isinstance(spec.name, str) or not all(isinstance(value, str | None) for value in spec):
        raise InputError("prepare.json names no tokenizer that can be loaded", "is it damaged?")
    if is_path(spec.name) and not os.path.exists(spec.name):
        message = f"{spec.name}: no such file, though its tokenizer made the ids"
        raise InputError(message, "put it, or a link to it, there")
    return reload(spec, str(about.get("sha256", "")))


def about(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return a tokenizer's entry for the manifest, from which `of_record` loads it again."""
    return {
        **tokenizer.spec._asdict(),
        "sha256": tokenizer.vocabulary_sha256,
        "n_ids": tokenizer.n_ids,
        "eot_id": tokenizer.eot_id,
    }


def read_file(path: Path) -> bytes:
    """Return the bytes of a vocabulary file; `InputError` if it cannot be read or is too large."""
    try:
        with path.open("rb") as file:
            data = read_bounded(file, MAX_FILE_BYTES)
    except OSError as error:
        hint = "name a tokenizer.json or its folder (of a model on the Hub, download that file first)"
        raise InputError(f"{path}: {error.strerror}", hint) from None
    if data is None:
        raise InputError(f"{path}: more than {MAX_FILE_BYTES:,} bytes, so not a tokenizer", "name its tokenizer.json")
    return data
