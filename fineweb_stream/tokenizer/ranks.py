"""tiktoken's encodings, by name or from a rank file (on each line a token in base64 and its id)."""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..support.errors import EngineError, InputError
from .cuts import NO_CUTS, WORD_CUTS, WORD_PATTERNS, scheme_of
from .engines import encode_ordinary
from .tokenizer import MAX_IDS, Tokenizer, TokenizerSpec, find_eot

N_SPECIAL = 1024  # how far above the last rank an end-of-text id may be: Llama 3 has 256 special tokens there

_PATTERNS = f"give --pattern: {', '.join(WORD_PATTERNS)}, or the regular expression itself"


@functools.lru_cache(maxsize=4)
def of_name(spec: TokenizerSpec) -> Tokenizer:
    """Return one of tiktoken's encodings, from tiktoken's cache or downloaded by it.

    Raises `InputError` for an unknown name, and if the file is neither cached nor reachable.
    """
    import tiktoken

    if spec.name not in (names := tiktoken.list_encoding_names()):
        raise InputError(
            f"no such tokenizer: {spec.name!r}",
            f"bytes, chars, {', '.join(sorted(names))}, or the path of a tokenizer.json or a .tiktoken file",
        )
    try:
        encoding = tiktoken.get_encoding(spec.name)
    except Exception as error:  # from requests, the system, or tiktoken (a damaged file)
        raise _not_there(spec.name, error) from error
    return _make(spec, spec.name, encoding._mergeable_ranks, encoding._special_tokens, encoding._pat_str)


@functools.lru_cache(maxsize=4)
def of_ranks(spec: TokenizerSpec, data: bytes) -> Tokenizer:
    """Return the tokenizer of a rank file and a pattern, which may be the name of a known one.

    Raises `InputError` for an invalid file, and for a missing or unknown pattern.
    """
    ranks = _parse(spec.name, data)
    if spec.pattern is None:
        raise InputError(f"{spec.name}: a rank file does not say how a text is cut into pieces", _PATTERNS)
    if spec.pattern not in WORD_PATTERNS and re.fullmatch(r"[\w -]*", spec.pattern):  # a mistyped name
        raise InputError(f"no such pattern: {spec.pattern!r}", _PATTERNS)
    return _make(spec, Path(spec.name).name, ranks, {}, WORD_PATTERNS.get(spec.pattern, (spec.pattern,))[0])


def _parse(path: str, data: bytes) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line:
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
            if not 0 <= int(rank) < MAX_IDS:
                raise ValueError(f"the rank {int(rank)}")
        except ValueError:
            message = f"{path}, line {number}: not a token in base64 and its rank"
            raise InputError(message, "name a .tiktoken file") from None
    if len(set(ranks.values())) != len(ranks) or not all(bytes([i]) in ranks for i in range(256)):
        raise InputError(f"{path}: not a vocabulary: two tokens of one rank, or a byte that has none", "name another")
    return ranks


def _make(spec: TokenizerSpec, name: str, ranks: dict[bytes, int], special: dict[str, int], pattern: str) -> Tokenizer:
    eot_id = _find_eot(name, spec.eot, ranks, special)
    n_ids = max(*ranks.values(), *special.values(), -1 if eot_id is None else eot_id) + 1

    def iter_ranks() -> Iterator[bytes]:
        ordered = sorted(ranks.items(), key=lambda item: item[1])
        return (base64.b64encode(token) + b" %d\n" % rank for token, rank in ordered)

    def load_reference() -> Any:
        import tiktoken

        try:
            encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
            encode_ordinary(encoding, "a text")
        except (ValueError, EngineError) as error:
            reason = str(error) if isinstance(error, ValueError) else "it matches the empty string"
            raise InputError(f"--pattern {pattern!r}: {reason}", "write it as the vocabulary's own code does") from None
        return encoding

    @functools.cache
    def token_bytes() -> list[bytes]:
        tokens = [b""] * n_ids
        for token, rank in ranks.items():
            tokens[rank] = token
        for text, rank in special.items():
            tokens[rank] = text.encode()
        if eot_id is not None and not tokens[eot_id]:
            tokens[eot_id] = b"<|endoftext|>"
        return tokens

    scheme = scheme_of(pattern)
    return Tokenizer(
        name=name,
        eot_id=eot_id,
        n_ids=n_ids,
        vocabulary_sha256=hashlib.sha256(b"".join(iter_ranks()) + pattern.encode()).hexdigest(),
        spec=spec,
        load_reference=load_reference,
        token_bytes=token_bytes,
        has_fast=bool(scheme) and eot_id is not None,
        scheme=scheme,
        iter_ranks=iter_ranks,
        cuts=WORD_CUTS if scheme else NO_CUTS,
    )


def _find_eot(name: str, eot: str | None, ranks: dict[bytes, int], special: dict[str, int]) -> int | None:
    """Return the end-of-text id: the requested one, if it is valid, else the encoding's own."""
    if eot is None:
        return special.get("<|endoftext|>")
    if special:
        return find_eot(eot, special, f"special token of {name}")
    top = max(ranks.values())
    if not eot.isdecimal() or int(eot) in ranks.values() or int(eot) > top + N_SPECIAL:
        raise InputError(f"--eot-id {eot}: not an unused id of {name}", f"{top + 1} is the first above its ranks")
    return int(eot)


def _not_there(name: str, error: Exception) -> InputError:
    """Return an error that says where tiktoken's cache wants the missing file: under the SHA-1 of its URL."""
    request = getattr(error, "request", None) or getattr(getattr(error, "response", None), "request", None)
    url = getattr(request, "url", None)
    if not url:
        return InputError(f"{name}: tiktoken cannot load it: {error}", "is its file damaged? Delete it from the cache")
    cache = os.environ.get("TIKTOKEN_CACHE_DIR") or os.environ.get("DATA_GYM_CACHE_DIR")
    folder = cache or os.path.join(tempfile.gettempdir(), "data-gym-cache")
    key = hashlib.sha1(url.encode(), usedforsecurity=False).hexdigest()
    return InputError(
        f"{name}: its file is not in tiktoken's cache, and {url} cannot be reached",
        f"download that file elsewhere, and put it there as {os.path.join(folder, key)}",
    )
