"""Text -> nanoGPT's `train.bin` and `val.bin`: exactly tiktoken's ids, fast, in bounded memory, never losing work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "Encoder",
    "Interrupted",
    "MemoryGuard",
    "PrepareError",
    "Result",
    "iter_ids",
    "open_tokens",
    "prepare",
]

if TYPE_CHECKING:
    from .api import Result, prepare
    from .memory.guard import MemoryGuard
    from .pipeline.iterate import iter_ids
    from .support.errors import Interrupted, PrepareError
    from .token_files.open import open_tokens
    from .tokenizer.encoder import Encoder

_HOMES = {
    "Encoder": "tokenizer.encoder",
    "Interrupted": "support.errors",
    "MemoryGuard": "memory.guard",
    "PrepareError": "support.errors",
    "Result": "api",
    "iter_ids": "pipeline.iterate",
    "open_tokens": "token_files.open",
    "prepare": "api",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: importing the package itself costs next to nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
