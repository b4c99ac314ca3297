"""The engines behind one interface: documents as UTF-8 -> token ids, with an end-of-text id after each document."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..support.cgroups import usable_cpus
from ..support.errors import EngineError, InputError
from .batch import with_separator
from .cuts import GPT2_CUTS, WHITESPACE_RUN, iter_pieces
from .ids import Ends, Ids
from .tokenizer import Tokenizer

Engine = Callable[[bytes | memoryview, Ends], Ids]
"""Callable (UTF-8 buffer, end offsets of its documents) -> their ids, with the end-of-text id after each document.

Without ends, the buffer is a piece of one document, and no end-of-text id is added.
"""

EncodeOne = Callable[[bytes | memoryview], list[Ids]]
"""Callable (UTF-8 of one document, or of a piece of it) -> its ids, in parts."""

CACHE_BYTES = 72 << 20  # the estimated size of each cache at which a gigatoken tokenizer is replaced by a new one

SHARED_CALL_BYTES = 2 << 20
"""The most text (bytes) that gigatoken 0.10 encodes in the calling thread with a cache of its own.

It hands parts of a longer text to threads of its own, which a forked process lacks: it would wait for ever. So such a
text, which has nowhere to be cut, is encoded with `parallel=False`, by a cache that is used by one thread at a time.
"""

PIECE_BYTES = 1 << 16  # how much of a long text `tokenizers` gets per call: it keeps 100 bytes or more for each id


def reference_engine(tokenizer: Tokenizer) -> Engine:
    """Return the engine that is right by definition for a tokenizer."""
    make = {"tiktoken": _tiktoken_engine, "tokenizers": _tokenizers_engine}.get(tokenizer.reference)
    return make(tokenizer) if make else tokenizer.load_reference()


def _tiktoken_engine(tokenizer: Tokenizer) -> Engine:
    """Return tiktoken, with a workaround for very long runs of whitespace under GPT-2's pattern."""
    encoding, is_gpt2 = tokenizer.load_reference(), tokenizer.cuts is GPT2_CUTS

    def encode_one(data: bytes | memoryview) -> list[Ids]:
        text = str(data, "utf-8")
        parts = _split_long_space_runs(text) if is_gpt2 else [text]
        return [encode_ordinary(encoding, part) for part in parts]

    return _by_documents(encode_one if tokenizer.scheme else _lossless(encode_one, tokenizer), tokenizer)


def _lossless(encode_one: EncodeOne, tokenizer: Tokenizer) -> EncodeOne:
    """Wrap an encoder to raise `InputError` for text that an unknown pattern does not match, which is in no id."""
    tokens = tokenizer.token_bytes()
    lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))

    def encode(data: bytes | memoryview) -> list[Ids]:
        found = encode_one(data)
        if sum(int(lengths[ids].sum()) for ids in found) >= len(data):
            return found
        encoded = b"".join(tokens[i] for ids in found for i in ids.tolist())
        n_same = count_same(np.frombuffer(encoded, np.uint8), np.frombuffer(data, np.uint8))
        near = bytes(data[n_same : n_same + 20]).decode("utf-8", "replace")
        what = f"does not match all of the text, from {near!r} on"
        if tokenizer.spec.pattern is None:
            raise InputError(f"the pattern of {tokenizer.name} {what}", "choose another --tokenizer")
        raise InputError(f"--pattern {what}", "end the pattern with |(?s:.)")

    return encode


def count_same(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> int:
    """Return the length of the common prefix of two arrays."""
    return int(np.cumprod(a[: len(b)] == b[: len(a)]).sum())


def encode_ordinary(encoding: Any, text: str) -> Ids:
    """Return a text's ids by tiktoken, uint32; `EngineError` if its regex engine panics."""
    try:
        ids: Ids = encoding.encode_to_numpy(text, disallowed_special=())
    except BaseException as error:
        if not _is_panic(error):
            raise
        raise EngineError(
            f"tiktoken cannot encode a text of {len(text):,} characters: {str(error)[:200]}",
            "it may have a very long run of one character: split it (--separator), or skip that document",
        ) from None
    return ids


def _is_panic(error: BaseException) -> bool:
    """Tell whether an error is a Rust panic, which is not an `Exception`."""
    return type(error).__name__ == "PanicException"


def _by_documents(encode_one: EncodeOne, tokenizer: Tokenizer) -> Engine:
    """Return an engine that encodes one document at a time, with an end-of-text id after each."""

    def encode(data: bytes | memoryview, ends: Ends) -> Ids:
        if not len(ends):
            return np.concatenate(encode_one(data))
        end = np.array([tokenizer.eot_id], np.uint32)
        starts = [0, *ends[:-1].tolist()]
        parts = [
            part
            for start, stop in zip(starts, ends.tolist(), strict=True)
            for part in (*encode_one(data[start:stop]), end)
        ]
        return np.concatenate(parts)

    return encode


def _tokenizers_engine(tokenizer: Tokenizer) -> Engine:
    """Return the engine of a `tokenizer.json`: special tokens in a text are plain text, and none is added."""
    encoder = tokenizer.load_reference()
    added = encoder.get_added_tokens_decoder().values()
    # A normalizer changes a text, and such a token takes the spaces beside it: both are meant to.
    is_changed = encoder.normalizer or any((one.lstrip or one.rstrip) and not one.special for one in added)

    def encode_one(data: bytes | memoryview) -> list[Ids]:
        pieces = [str(piece, "utf-8") for piece in iter_pieces(bytes(data), PIECE_BYTES, tokenizer.cuts)]
        found = (encoder.encode_batch_fast([piece], add_special_tokens=False)[0] for piece in pieces)
        return [np.array(one.ids, np.uint32) for one in found]

    return _by_documents(encode_one if is_changed else _lossless(encode_one, tokenizer), tokenizer)


def _split_long_space_runs(text: str) -> Iterable[str]:
    """Cut very long whitespace runs before their last character, where GPT-2's pattern cuts them, too.

    Before text, a run is one pre-token up to its last character; at the end of a text, it is one pre-token. So a part
    that ends just before the last character has the same pre-tokens. (A run of a million whitespace characters before
    text overflows the regex stack of tiktoken 0.14.)
    """
    if len(text) < 100_000:
        return (text,)
    cuts = [match.end() - 1 for match in WHITESPACE_RUN.finditer(text) if match.end() < len(text)]
    return (text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True))


class Gigatoken:
    """The fast engine: gigatoken tokenizers, each shared by as many threads as it has caches of words, one for each.

    A further thread would wait for a cache by spinning, so it gets a tokenizer of its own. gigatoken 0.10 does not
    limit its caches: when those of a tokenizer may have reached CACHE_BYTES each, it is replaced by a new one. (To load
    one takes 0.05 s, all with the GIL held; to fill a cache with the words of English, 0.4 s.)

    The end of a document is an added token whose text is random for each process, so that no input contains it.

    Raises `EngineError` if gigatoken cannot be imported, or cannot load the tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        try:
            from gigatoken import gigatoken_rs
        except ImportError as error:  # a shared library is missing, for example
            raise EngineError(
                f"gigatoken is installed but does not load: {error}",
                "reinstall it (pip install --force-reinstall gigatoken), or choose --engine tiktoken",
            ) from error
        self._library: Any = gigatoken_rs
        self._tokenizer = tokenizer
        self.separator = f"<|{secrets.token_hex(16)}|>".encode()
        self._ranks = b"".join(tokenizer.iter_ranks()) if tokenizer.iter_ranks else b""
        self._n_caches = _count_caches()
        self._lock = threading.Lock()
        self._shared = [_Shared(self._load())]

    def __call__(self, data: bytes | memoryview, ends: Ends) -> Ids:
        """Encode as described at `Engine`; ids are uint32."""
        joined = with_separator(data, ends, self.separator) if len(ends) else bytes(data)
        source = self._library.BytesSource([joined])  # a plain list would import awkward: 0.15 s
        options, is_shared = self._library.PadTruncate(0), len(joined) <= SHARED_CALL_BYTES
        one, n_new = self._take(), 0.0
        try:
            clock = one.clock
            start = clock()
            ids: Ids = one.tokenizer.encode_batch_padded(source, options, parallel=is_shared)[0][0]
            n_new = one.growth(len(joined), len(ids), clock() - start)
        finally:
            self._give_back(one, n_new)
        return ids

    def _take(self) -> _Shared:
        """Return a tokenizer that has a cache free."""
        with self._lock:
            one = next((each for each in self._shared if each.n_busy < self._n_caches), None)
            if one is None:
                one = _Shared(self._load())
                self._shared.append(one)
            one.n_busy += 1
            one.n_caches = max(one.n_caches, one.n_busy)
            return one

    def _give_back(self, one: _Shared, n_new: float) -> None:
        """End the use of a tokenizer, whose caches may have grown by `n_new` bytes; drop it if they may be full."""
        with self._lock:
            one.n_busy -= 1
            one.n_bytes += n_new
            if one.n_bytes >= CACHE_BYTES * one.n_caches and one in self._shared:
                self._shared.remove(one)

    def _load(self) -> Any:
        """Build a tokenizer: 0.04 s from ranks, which have to be in a file; 0.1 s from a `tokenizer.json`."""
        tokenizer, end = self._tokenizer, self.separator.decode()
        try:
            if tokenizer.hf_json:
                return self._library.load_hf_json(tokenizer.hf_json(end))
            with _as_file(self._ranks) as path:
                return self._library.BPETokenizer.from_tiktoken(path, tokenizer.scheme, {end: tokenizer.eot_id})
        except MemoryError:
            raise
        except BaseException as error:
            if not isinstance(error, Exception) and not _is_panic(error):
                raise
            raise EngineError(
                f"gigatoken does not load {tokenizer.name}: {str(error).partition(chr(10))[0]}",
                f"choose --engine {tokenizer.reference}",
            ) from None


@contextlib.contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """Yield the path of a file with this content: in memory where the system can (Linux), else a temporary one."""
    if sys.platform == "linux" and os.path.exists("/proc/self/fd"):
        with open(os.memfd_create("ranks"), "wb") as memory:
            memory.write(data)
            memory.flush()
            yield f"/proc/self/fd/{memory.fileno()}"
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "ranks.tiktoken")
        path.write_bytes(data)
        yield str(path)


def _count_caches() -> int:
    """Return how many caches a gigatoken tokenizer has: one for each thread that Rayon, its library, would start."""
    asked = os.environ.get("RAYON_NUM_THREADS", "")
    return max(int(asked) if asked.isdigit() and int(asked) else int(usable_cpus()), 1)


class _Shared:
    """A tokenizer, how many threads use it, the most that did, and an upper estimate of its caches' size (bytes)."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.n_busy = self.n_caches = 0
        self.n_bytes = 0.0
        self.clock = time.perf_counter

    def growth(self, n_bytes: int, n_ids: int, seconds: float) -> float:
        """Return by how much a call may have grown a cache, from its text (bytes), ids and thread time.

        Measured: varied English adds a quarter of its own bytes, as new text keeps bringing new words. Chinese and
        random letters add up to 10 times theirs, and twice that while tables grow. Such text is recognized by more ids
        per byte and more time per byte: both come from words that are not cached yet.

        Only text with many ids needs the thread's own time: reading it is a system call with the GIL held, after which
        the kernel may run another thread first.
        """
        by_ids = 60 * max(n_ids - n_bytes / 3, 0)
        by_time = 600e6 * max(seconds - n_bytes * 4e-9, 0)
        self.clock = time.thread_time if by_ids else time.perf_counter
        return n_bytes / 4 + min(by_ids, by_time)
