"""Turn text into nanoGPT's `train.bin` and `val.bin`: tiktoken's exact ids, fast, in bounded memory, resumable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .support.version import __version__

__all__ = [
    "DiskError",
    "Encoder",
    "EngineError",
    "Estimate",
    "InputError",
    "Interrupted",
    "MemoryGuard",
    "MemoryLimitError",
    "PrepareError",
    "RemoteError",
    "Result",
    "__version__",
    "batches",
    "estimate",
    "iter_ids",
    "open_documents",
    "open_tokens",
    "prepare",
]

if TYPE_CHECKING:
    from .api import Result, estimate, prepare
    from .memory.guard import MemoryGuard
    from .pipeline.iterate import iter_ids
    from .pipeline.plan import Estimate
    from .support.errors import (
        DiskError,
        EngineError,
        InputError,
        Interrupted,
        MemoryLimitError,
        PrepareError,
        RemoteError,
    )
    from .token_files.documents import open_documents
    from .token_files.loader import batches
    from .token_files.open import open_tokens
    from .tokenizer.encoder import Encoder

_HOMES = {
    "Encoder": "tokenizer.encoder",
    "Estimate": "pipeline.plan",
    "MemoryGuard": "memory.guard",
    "Result": "api",
    "batches": "token_files.loader",
    "estimate": "api",
    "iter_ids": "pipeline.iterate",
    "open_documents": "token_files.documents",
    "open_tokens": "token_files.open",
    "prepare": "api",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that importing the package costs next to nothing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f".{_HOMES.get(name, 'support.errors')}", __name__), name)
