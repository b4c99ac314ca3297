"""Turn the memory budget into a plan: which engine, how many workers, how much text in flight."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Sequence
from typing import NamedTuple

from ..inputs.arrow_lines import has_arrow as is_arrow_there
from ..inputs.blocks import TEXT_COST
from ..inputs.storage import largest_window
from ..memory.guard import HIGH_SHARE, MB, MemoryGuard, release_memory, used_bytes
from ..remote.network import Network
from ..support.errors import MemoryLimitError
from ..support.model import Input
from ..support.units import counted
from ..tokenizer.gpt2 import GPT2
from ..tokenizer.tokenizer import Tokenizer, has_gigatoken
from .schedule import count_workers
from .settings import Settings

# Measured: peak private memory of whole runs on text made to defeat the engines' caches, with 1 to 8 workers.
BASE_BYTES = {"tiktoken": 73 * MB, "gigatoken": 100 * MB, "tokenizers": 100 * MB, "numpy": 75 * MB}
WORKER_BYTES = {"tiktoken": 26 * MB, "gigatoken": 110 * MB, "tokenizers": 140 * MB, "numpy": 48 * MB}
ARROW_BASE_BYTES, ARROW_WORKER_BYTES = 60 * MB, 25 * MB

ID_BYTES_HELD = 250  # memory for each id of a loaded tokenizer: its bytes, and its share of the lookup tables
WHOLE_TEXT_COST = 90  # like `TEXT_COST`, for a document that the engine encodes as a whole, with a record for each id

WINDOW_BYTES_PER_WORKER = 12 << 20

CONNECTION_BYTES, LEAST_CONNECTION_BYTES = 4 << 20, 1 << 20
"""How much each connection fetches ahead, and the least that it needs; with less room there are fewer connections."""

UNPACKED_BYTES = 24 * MB
"""Memory for decompression besides the window: a piece of a file may expand to 5 MB, which are copied."""

LEAST_SHUFFLE_BYTES, MOST_SHUFFLE_BYTES = 16 * MB, 1000 * MB
"""Bounds of the documents held in memory by a shuffle. An upper one, because a killed run repeats what was held."""

SHUFFLE_PIECE_BYTES = 60 * MB  # memory for the pieces that a shuffle reads and writes


class MemoryPlan(NamedTuple):
    """How to use the budget: engine, workers, text in flight and in one document (bytes); `line` explains the choice.

    Up to `fetch_bytes` are fetched ahead by `n_connections`. A compressed file may refer back by `max_window_bytes`. On
    a cluster `cluster_window_bytes` of text may be in flight: more, because only ids come back to this machine.
    """

    engine: str
    n_workers: int
    window_bytes: int
    max_document_bytes: int
    cluster_window_bytes: int
    is_local: bool
    line: str
    n_connections: int
    fetch_bytes: int
    max_window_bytes: int


def plan_memory(
    guard: MemoryGuard,
    engine: str,
    n_workers: int,
    formats: Collection[str],
    is_local: bool = True,
    n_connections: int = 0,
    tokenizer: Tokenizer = GPT2,
    file_window: int = 0,
) -> MemoryPlan:
    """Choose the engine and the number of workers that fit the guard's budget.

    Without `is_local` the workers are on other machines, and use memory of their own. `n_connections` are wanted for
    remote inputs, 0 if there are none. Compressed files refer back by `file_window` bytes, which decompression holds;
    it is counted once, because files that are read ahead have not got that far.

    Raises `MemoryLimitError` when not even one worker fits.
    """
    budget, limit = int(guard.budget_bytes * HIGH_SHARE), guard.limits[0]
    candidates, advice = _engines(engine, tokenizer)
    if file_window > budget // 2:  # it is refused when it is read
        file_window = 0
    for candidate in candidates:
        base, each = _costs(candidate, formats, tokenizer, file_window)
        fitting = min((budget - base) // each, n_workers)
        if fitting >= 1:
            break
    else:
        raise MemoryLimitError(
            f"a budget of {guard.budget_bytes / MB:,.0f} MB, of {limit.available / MB:,.0f} MB available"
            f" ({limit.name}), is too little: one worker with {candidate} needs"
            f" {(base + each) / HIGH_SHARE / MB:,.0f} MB",
            "give it more with --memory, or free some",
        )
    spare = budget - base - fitting * each
    fetch_bytes = max(min(n_connections * CONNECTION_BYTES, spare // 3), 0)
    n_fitting = min(n_connections, max(fetch_bytes // LEAST_CONNECTION_BYTES, 1))
    spare -= fetch_bytes
    window_bytes = fitting * min(max(spare // fitting // TEXT_COST, 3 << 20), WINDOW_BYTES_PER_WORKER)
    if is_local:
        line = f"{counted(fitting, 'worker')} with {candidate}, about {(base + fitting * each) / MB:,.0f} MB"
    else:
        line = f"{candidate} on the workers, which have their own memory"
    if candidate != candidates[0]:
        line += f" (no room for {candidates[0]}, which is several times as fast: give it more with --memory)"
    elif is_local and fitting < n_workers:
        line += _of(n_workers)
    line += advice
    if n_connections:
        line += f"; {counted(n_fitting, 'connection')}, up to {fetch_bytes / MB:,.0f} MB fetched ahead"
        line += _of(n_connections) if n_fitting < n_connections else ""
    text_cost = WHOLE_TEXT_COST if tokenizer.cuts.find is None else TEXT_COST
    return MemoryPlan(
        engine=candidate,
        n_workers=fitting,
        window_bytes=window_bytes,
        max_document_bytes=(spare + each) // text_cost,
        cluster_window_bytes=(budget - base) // 4,
        is_local=is_local,
        line=f"memory: budget {guard.budget_bytes / MB:,.0f} MB of {limit.available / MB:,.0f} MB available"
        f" ({limit.name}); {line}",
        n_connections=n_fitting,
        fetch_bytes=fetch_bytes,
        max_window_bytes=max(file_window, spare // 8),
    )


def _engines(engine: str, tokenizer: Tokenizer) -> tuple[list[str], str]:
    """Return the engines to consider, the fastest first, and advice on how to get a faster one."""
    if engine != "auto":
        return [engine], ""
    is_slower = tokenizer.has_fast and not has_gigatoken()
    advice = " (pip install gigatoken: it is several times as fast)" if is_slower else ""
    return list(dict.fromkeys((tokenizer.fastest_engine, tokenizer.reference))), advice


def _costs(engine: str, formats: Collection[str], tokenizer: Tokenizer, file_window: int) -> tuple[int, int]:
    """Return the memory of a run without its workers, and that of each worker (bytes)."""
    has_arrow = "parquet" in formats or ("jsonl" in formats and engine == "gigatoken" and is_arrow_there())
    vocabulary = max(tokenizer.n_ids - GPT2.n_ids, 0) * ID_BYTES_HELD
    unpacking = file_window + UNPACKED_BYTES if file_window else 0
    base = BASE_BYTES[engine] + vocabulary + unpacking + has_arrow * ARROW_BASE_BYTES
    return base, WORKER_BYTES[engine] + has_arrow * ARROW_WORKER_BYTES


def _of(n: int) -> str:
    return f" (of {n}: the budget has room for no more)"


def plan_for(
    inputs: Sequence[Input],
    settings: Settings,
    guard: MemoryGuard,
    network: Network,
    workers: int | None,
    connections: int,
    is_local: bool = True,
) -> MemoryPlan:
    """Return the memory plan for these inputs, and set the limits of the network's fetcher to it.

    Raises `MemoryLimitError` as `plan_memory` does.
    """
    tokenizer, formats = settings.tokenizer, {input.format for input in inputs}
    plan_with = functools.partial(
        plan_memory,
        guard,
        n_workers=count_workers(workers),
        formats=formats,
        is_local=is_local,
        n_connections=count_connections(inputs, connections),
        tokenizer=tokenizer,
        file_window=largest_window(inputs, network),
    )
    plan = plan_with(settings.engine)
    if tokenizer is not GPT2 and plan.engine != tokenizer.reference:  # GPT-2's fast engine is known to be exact
        from .vocabulary import usable_engine

        plan = plan_with(usable_engine(settings.engine, tokenizer))
    network.fetcher.n_connections, network.fetcher.ahead_bytes = plan.n_connections, plan.fetch_bytes
    return plan


def sure_engine(guard: MemoryGuard, settings: Settings) -> str | None:
    """Return the engine that the plan will choose whatever the inputs are; None if that depends on them."""
    plan = functools.partial(plan_memory, guard, settings.engine, 1, tokenizer=settings.tokenizer)
    window = int(guard.budget_bytes * HIGH_SHARE) // 2  # the largest that counts
    with contextlib.suppress(MemoryLimitError):
        least, most = plan(formats=()), plan(formats=("parquet",), file_window=window)
        return least.engine if least.engine == most.engine else None
    return None


def count_connections(inputs: Sequence[Input], asked: int) -> int:
    """Return how many connections to use for inputs at URLs: as many as `asked`, 0 if all inputs are local."""
    return asked if any(input.is_remote for input in inputs) else 0


def plan_shuffle(guard: MemoryGuard) -> int:
    """Free what memory can be freed, and return how many bytes of documents a shuffle may hold."""
    release_memory()
    spare = int(guard.budget_bytes * HIGH_SHARE) - used_bytes() - SHUFFLE_PIECE_BYTES
    return min(max(spare, LEAST_SHUFFLE_BYTES), MOST_SHUFFLE_BYTES)
