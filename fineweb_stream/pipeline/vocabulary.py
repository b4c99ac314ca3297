"""Before a run: fit the tokenizer to the inputs, choose its engine, and find the characters for `chars`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..inputs.blocks import Block, Source
from ..support.cancel import NEVER, Cancel
from ..support.errors import EngineError, GrownError, InputError
from ..support.log import log
from ..support.units import format_size
from ..tokenizer.gpt2 import GPT2
from ..tokenizer.load import load_spec
from ..tokenizer.plain import find_characters
from ..tokenizer.tokenizer import Tokenizer
from .budget import MemoryPlan
from .settings import Settings
from .worker import get_encoder, read, work_through


def usable_engine(engine: str, tokenizer: Tokenizer) -> str:
    """Return the engine to plan with: only the reference, with a note, if the fast engine does not equal it.

    GPT-2's fast engine is known to be equal, and is checked while it loads.
    """
    if engine != "auto" or tokenizer is GPT2 or not tokenizer.has_fast:
        return engine
    try:
        get_encoder(tokenizer.fastest_engine, tokenizer)
    except EngineError as error:
        log.info(f"note: {error.message}: only {tokenizer.reference} encodes, which is slower and always right")
        return tokenizer.reference
    return engine


def fitted(settings: Settings, sources: Sequence[Source], plan: MemoryPlan, cancel: Cancel = NEVER) -> Settings:
    """Return the settings with the tokenizer fitted to these inputs: a first pass finds the vocabulary of `chars`.

    Raises `InputError` if the inputs need an end-of-text id that the tokenizer lacks, or are plain text that has no
    known place to cut; and as the run does, for what cannot be read.
    """
    tokenizer = settings.tokenizer
    has_documents, n_texts = any(source.unit for source in sources), sum(not source.unit for source in sources)
    if tokenizer.spec.name == "chars" and tokenizer.spec.characters is None:
        eot = tokenizer.spec.eot is not None or has_documents or n_texts > 1
        characters = _characters(sources, plan, cancel)
        number = (tokenizer.spec.eot or str(len(characters))) if eot else None
        spec = tokenizer.spec._replace(characters=characters, eot=number)
        return dataclasses.replace(settings, tokenizer=load_spec(spec))
    if tokenizer.eot_id is None and (has_documents or n_texts > 1):
        what = "ends a document" if has_documents else "separates several texts"
        raise InputError(f"{tokenizer.name} has no end-of-text id, which {what}", "name one with --eot-id")
    if tokenizer.cuts.find is None and n_texts:
        raise InputError(
            f"{sources[0].input.shown}: one long text, and for {tokenizer.name} it is not known where a text may be cut"
            " without changing an id",
            r"split it into documents with --separator '\n\n' (or what separates them), or choose another --tokenizer",
        )
    return settings


def _characters(sources: Sequence[Source], plan: MemoryPlan, cancel: Cancel) -> str:
    """Read all inputs once, and return the characters in them, in order."""
    if any(source.input.is_stdin for source in sources):
        raise InputError("chars reads its input twice, but standard input comes once", "put the text in a file")
    size = sum(source.input.size for source in sources)
    log.info(f"chars: finding the characters of {format_size(size)} first")
    found = np.zeros(0x110000, bool)
    for _, codes in work_through(sources, _read_characters, plan, Cancel(cancel)):
        found[codes] = True
    return "".join(map(chr, np.flatnonzero(found).tolist()))


def _read_characters(block: Block) -> npt.NDArray[np.uint32] | None:
    try:
        return find_characters(read(block).data)
    except GrownError:
        return None
