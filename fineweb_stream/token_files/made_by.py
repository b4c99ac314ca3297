"""Which tokenizer made a token file: the manifest beside it says so; without one, GPT-2 is assumed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ..output.manifest import GPT2_SETTINGS
from ..output.own import MANIFEST_NAME, RECORD_NAME, is_output
from ..output.state import DONE, is_count
from ..support.errors import InputError
from ..tokenizer.gpt2 import GPT2
from ..tokenizer.load import of_record
from ..tokenizer.tokenizer import Tokenizer, id_dtype

WHOSE = f"put the {RECORD_NAME} of their run beside the file, and give it the name that it had there"
"""The advice if nothing says which tokenizer made a file."""


class MadeBy(NamedTuple):
    """What a reader needs to know of the tokenizer that made a file.

    `about` is its manifest entry, `eot` where end-of-text stands (as `--eot`); `is_assumed` means without a manifest.
    `sizes` are those of the files of its run, in bytes by name, once it is finished.
    """

    name: str
    n_ids: int
    eot_id: int | None
    about: dict[str, Any]
    eot: str = "after"
    is_assumed: bool = False
    sizes: Mapping[str, int] = MappingProxyType({})

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger[Any]]:
        """The dtype of an id in the file."""
        return id_dtype(self.n_ids)

    def tokenizer(self) -> Tokenizer:
        """Load it, to turn ids into text; `InputError` if it is missing or has changed."""
        return of_record(self.about) if self.about else GPT2


def read_run(path: Path) -> dict[str, Any] | None:
    """Return the manifest of the run that a file or folder belongs to, or None if there is none to read."""
    content: dict[str, Any] = {}
    for name in (MANIFEST_NAME, RECORD_NAME):  # the first exists during a run; the second overrides it
        with contextlib.suppress(OSError, ValueError, TypeError):
            data = ((path if path.is_dir() else path.parent) / name).read_bytes()
            content |= json.loads(data.decode("utf-8", "surrogateescape"))  # names of inputs may be other bytes
    return content or None


def made_by(path: Path) -> MadeBy:
    """Return what made a token file; GPT-2 is assumed for a file whose name no run uses.

    Raises `InputError` for an invalid manifest.
    """
    content = (read_run(path) if is_output(path.name) else None) or {}
    found, about = content.get("settings"), content.get("tokenizer", {})
    if not isinstance(found, dict):
        return MadeBy(GPT2.name, GPT2.n_ids, GPT2.eot_id, {}, is_assumed=True)
    settings: dict[str, Any] = GPT2_SETTINGS | {"eot": "after"} | found
    name, n_ids, eot_id = settings["tokenizer"], settings["n_ids"], settings["eot_id"]
    kinds = ((name, str), (settings["eot"], str), (about, dict), (eot_id, int | None))
    if not is_count(n_ids, 1, 1 << 32) or not all(isinstance(value, kind) for value, kind in kinds):
        raise InputError(f"{path.parent / RECORD_NAME}: does not say what tokenizer made {path.name}", "is it damaged?")
    return MadeBy(name, n_ids, eot_id, about if name != GPT2.name else {}, settings["eot"], sizes=_sizes(content))


def _sizes(content: dict[str, Any]) -> dict[str, int]:
    with contextlib.suppress(LookupError, TypeError, ValueError, AttributeError):
        if content["status"] == DONE:
            return {name: int(output["bytes"]) for name, output in content["state"]["outputs"].items()}
    return {}
