"""What the memory is good for: which engine, how many workers, how much text in flight."""

from __future__ import annotations

import importlib.util
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
from ..tokenizer.tokenizer import Tokenizer
from .schedule import count_workers
from .settings import Settings

# Measured: peak private memory of whole runs on text made to defeat the engines' caches, 1 to 8 workers.
BASE_BYTES = {"tiktoken": 75 * MB, "gigatoken": 100 * MB, "tokenizers": 100 * MB, "numpy": 75 * MB}
WORKER_BYTES = {"tiktoken": 20 * MB, "gigatoken": 110 * MB, "tokenizers": 140 * MB, "numpy": 48 * MB}
ARROW_BASE_BYTES, ARROW_WORKER_BYTES = 60 * MB, 25 * MB

ID_BYTES_HELD = 250
"""What each id of a tokenizer costs while it is loaded: its bytes, and the tables that find it."""

WHOLE_TEXT_COST = 90
"""The same where a document goes to the engine as a whole, with a record for each id."""

WINDOW_BYTES_PER_WORKER = 12 << 20

CONNECTION_BYTES, LEAST_CONNECTION_BYTES = 4 << 20, 1 << 20
"""What is fetched ahead by each connection, where there is room for it; with less there are fewer connections."""


UNPACKED_BYTES = 24 * MB
"""What else unpacking takes beside a window: a piece of a file may become 5 MB at once, which are copied."""

LEAST_SHUFFLE_BYTES, MOST_SHUFFLE_BYTES = 16 * MB, 1000 * MB
"""What is held of the documents that are shuffled: no more, for what is held is lost when a run is killed."""

SHUFFLE_PIECE_BYTES = 60 * MB
"""What the pieces take that are read and written meanwhile."""


class MemoryPlan(NamedTuple):
    """What the budget is good for: engine, workers, text in flight and in one document (bytes), and why so.

    `fetch_bytes` may be fetched ahead, and wait for its turn, by `n_connections`. A compressed file may refer
    `max_window_bytes` back.

    Of text that is encoded on a cluster only the ids come here: more of it may be in flight.
    """

    engine: str
    n_workers: int
    window_bytes: int
    max_document_bytes: int
    cluster_window_bytes: int
    is_local: bool
    line: str
    n_connections: int = 0
    fetch_bytes: int = 0
    max_window_bytes: int = 0


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
    """Choose engine and workers for the guard's budget; what is not local encodes elsewhere, in memory of its own.

    `n_connections` are wanted to fetch what lies behind a network, 0 where all is here. Compressed files refer
    `file_window` bytes back, which is held while they are unpacked: by the one whose turn it is, for those that are
    read ahead are not yet far in.

    Raises `MemoryLimitError` when not even one worker fits.
    """
    budget, limit = int(guard.budget_bytes * HIGH_SHARE), guard.limits[0]
    candidates, advice = _engines(engine, tokenizer)
    window_bytes = file_window if file_window <= budget // 2 else 0  # one that has no room will be named
    for candidate in candidates:
        base, each = _costs(candidate, formats, tokenizer, window_bytes)
        fitting = min((budget - base) // each, n_workers)
        if fitting >= 1:
            break
    else:
        raise MemoryLimitError(
            f"a budget of {guard.budget_bytes / MB:,.0f} MB is too little: one worker with {candidate} needs"
            f" {(base + each) / HIGH_SHARE / MB:,.0f} MB (the tightest limit: {limit.name})",
            "give it more with --memory, or free some",
        )
    spare = budget - base - fitting * each
    fetch_bytes = max(min(n_connections * CONNECTION_BYTES, spare // 3), 0)
    n_fitting = min(n_connections, max(fetch_bytes // LEAST_CONNECTION_BYTES, 1))
    spare -= fetch_bytes
    window = fitting * min(max(spare // fitting // TEXT_COST, 3 << 20), WINDOW_BYTES_PER_WORKER)
    if is_local:
        line = f"{counted(fitting, 'worker')} with {candidate}, about {(base + fitting * each) / MB:,.0f} MB"
    else:
        line = f"{candidate} on the workers, whose memory is their own"
    if candidate != candidates[0]:
        line += f" (no room for {candidates[0]}, which is several times as fast: give it more with --memory)"
    elif is_local and fitting < n_workers:
        line += _of(n_workers)
    line += advice
    if n_connections:
        line += f"; {counted(n_fitting, 'connection')}, up to {fetch_bytes / MB:,.0f} MB fetched ahead"
        line += _of(n_connections) if n_fitting < n_connections else ""
    text_cost = WHOLE_TEXT_COST if tokenizer.cuts.find is None else TEXT_COST
    max_document_bytes, cluster_window_bytes = (spare + each) // text_cost, (budget - base) // 4
    return MemoryPlan(
        candidate,
        fitting,
        window,
        max_document_bytes,
        cluster_window_bytes,
        is_local,
        f"memory: budget {guard.budget_bytes / MB:,.0f} MB of {limit.available / MB:,.0f} MB available ({limit.name});"
        f" {line}",
        n_fitting,
        fetch_bytes,
        max(window_bytes, spare // 8),
    )


def _engines(engine: str, tokenizer: Tokenizer) -> tuple[list[str], str]:
    """Return the engines that there may be room for, the fastest first, and how to get a faster one."""
    if engine != "auto":
        return [engine], ""
    if not tokenizer.has_fast:
        return [tokenizer.reference], ""
    if importlib.util.find_spec("gigatoken") is None:
        return [tokenizer.reference], " (pip install gigatoken: it is several times as fast)"
    return ["gigatoken", tokenizer.reference], ""


def _costs(engine: str, formats: Collection[str], tokenizer: Tokenizer, window_bytes: int) -> tuple[int, int]:
    """Return how many bytes a run takes beside its workers, and each of those."""
    has_arrow = "parquet" in formats or ("jsonl" in formats and engine == "gigatoken" and is_arrow_there())
    vocabulary = max(tokenizer.n_ids - GPT2.n_ids, 0) * ID_BYTES_HELD
    unpacking = window_bytes + UNPACKED_BYTES if window_bytes else 0
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
    """Return the plan to read these inputs by, with so many workers and connections, and hold the network to it.

    Raises `MemoryLimitError` as `plan_memory` does.
    """
    engine, tokenizer = settings.engine, settings.tokenizer
    if tokenizer is not GPT2:  # that need not be looked at first
        from .vocabulary import usable_engine

        engine = usable_engine(engine, tokenizer)
    n_connections = count_connections(inputs, connections)
    formats, n_workers = {input.format for input in inputs}, count_workers(workers)
    window = largest_window(inputs, network)
    plan = plan_memory(guard, engine, n_workers, formats, is_local, n_connections, tokenizer, window)
    network.fetcher.n_connections, network.fetcher.ahead_bytes = plan.n_connections, plan.fetch_bytes
    return plan


def count_connections(inputs: Sequence[Input], asked: int) -> int:
    """Return how many connections are wanted to fetch what lies at URLs; 0 where all is here."""
    return asked if any(input.is_remote for input in inputs) else 0


def plan_shuffle(guard: MemoryGuard) -> int:
    """Return how many bytes of documents may be held while they are shuffled, when all else that can go is gone."""
    release_memory()
    spare = int(guard.budget_bytes * HIGH_SHARE) - used_bytes() - SHUFFLE_PIECE_BYTES
    return min(max(spare, LEAST_SHUFFLE_BYTES), MOST_SHUFFLE_BYTES)
