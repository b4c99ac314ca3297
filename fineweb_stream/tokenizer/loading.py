"""fastokens' tokenizer: one for the process, built in a thread from early on, for nothing at the start takes longer.

It needs no NumPy and mostly no GIL: meanwhile everything else is imported and made ready.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ..support.errors import EngineError
from .gpt2 import tokenizer_json

_starting = threading.Lock()
_loading: Future[Any] | None = None


def start_fastokens() -> Future[Any]:
    """Begin to build the tokenizer, unless it is under way or there already; the result is a `fastokens.Tokenizer`.

    The future raises `EngineError` where fastokens cannot be imported.
    """
    global _loading
    with _starting:
        if _loading is None:
            pool = ThreadPoolExecutor(1, "encode-load")
            _loading = pool.submit(_load, tokenizer_json())  # the text takes the GIL: it is made before all else
            pool.shutdown(wait=False)
    return _loading


def _load(text: str) -> Any:
    # Our threads do the work: with a pool of its own for each of them, fastokens is slower and takes more memory.
    os.environ.setdefault("FASTOKENS_BPE_THREADS", "1")
    try:
        import fastokens
    except ImportError as error:  # a library that it needs, say
        raise EngineError(
            f"fastokens is installed but does not load: {error}",
            "install it anew (pip install --force-reinstall fastokens), or choose --engine tiktoken",
        ) from error
    tokenizer = fastokens.Tokenizer.from_json_str(text)
    tokenizer.encode_batch_flat(["a"])  # the first call makes ready what is left
    return tokenizer
