"""`iter_ids()`: the ids of a corpus as they are made, for people who train while they tokenize."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..inputs.blocks import Source
from ..inputs.discover import as_names, find_inputs
from ..inputs.sources import make_sources
from ..inputs.storage import largest_window
from ..memory.guard import MemoryGuard
from ..remote.network import DEFAULT_CONNECTIONS, Fetcher, Network
from ..support.cancel import Cancel
from ..support.errors import InputError, RecordError
from ..support.units import parse_count, read_as
from ..tokenizer.ids import Ids
from ..tokenizer.load import load_tokenizer
from ..tokenizer.tokenizer import Tokenizer
from .budget import MemoryPlan, plan_memory
from .fetch import iter_blocks
from .schedule import BLOCKS_PER_WORKER, Window, WorkerError, count_workers, local_executor, map_ordered
from .settings import Settings
from .vocabulary import fitted, usable_engine
from .worker import encode_block, in_parts


def iter_ids(
    inputs: str | Path | Sequence[str | Path],
    *,
    text_column: str = "text",
    separator: str | None = None,
    errors: str = "strict",
    skip_bad: bool = False,
    engine: str = "auto",
    tokenizer: str | Path | Tokenizer = "gpt2",
    workers: int | None = None,
    connections: int = DEFAULT_CONNECTIONS,
    memory: str | int | None = None,
    format: str | None = None,
) -> Iterator[Ids]:
    """Yield the ids of all inputs in order, a MiB of text or so each: uint16 (uint32 above 65,536 ids), shape (n,).

    All of it, one pass, no split, nothing written or printed; the parameters are those of `prepare()`. Bounded in
    memory like it, and a document that `memory` has no room for is named.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "c.jsonl"
    ...     _ = path.write_text('{"text": "hello world"}\\n{"text": "hello"}\\n')
    ...     [ids.tolist() for ids in iter_ids(path)]
    [[31373, 995, 50256, 31373, 50256]]

    Raises `InputError` for what cannot be read, `EngineError` where the fast engine is not exact.
    """
    settings = Settings(
        text_column=text_column,
        separator=separator,
        errors=errors,
        skip_bad=skip_bad,
        engine=engine,
        tokenizer=tokenizer if isinstance(tokenizer, Tokenizer) else load_tokenizer(str(tokenizer)),
    )
    connections = read_as("connections", connections, parse_count)
    with Fetcher(connections) as fetcher:
        network = Network(fetcher)
        found = find_inputs(as_names(inputs), format, network)
        formats = {input.format for input in found}
        n_connections = connections if any(input.is_remote for input in found) else 0
        plan = plan_memory(
            MemoryGuard(memory),
            usable_engine(engine, settings.tokenizer),
            count_workers(workers),
            formats,
            n_connections=n_connections,
            tokenizer=settings.tokenizer,
            file_window=largest_window(found, network),
        )
        fetcher.n_connections, fetcher.ahead_bytes = plan.n_connections, plan.fetch_bytes
        options = settings.read_options(plan.max_document_bytes, plan.max_window_bytes)
        sources = make_sources(found, options, network=network)
        settings = fitted(settings, sources, plan)
        yield from _iter_encoded(sources, plan, settings.tokenizer)


def _iter_encoded(sources: Sequence[Source], plan: MemoryPlan, tokenizer: Tokenizer) -> Iterator[Ids]:
    cancel = Cancel()
    encode = functools.partial(encode_block, engine=plan.engine, cancel=cancel, tokenizer=tokenizer)
    window = Window(lambda: BLOCKS_PER_WORKER * plan.n_workers, plan.window_bytes)
    blocks = iter_blocks(sources, 0, plan.n_workers, window.max_bytes, cancel)
    with local_executor(plan.n_workers) as pool:
        try:
            for _, encoded in in_parts(map_ordered(pool, encode, blocks, window, lambda: None), encode):
                yield encoded.ids
        except WorkerError as error:
            if not isinstance(error.__cause__, RecordError):
                raise error.__cause__ or error from None
            place = f"{error.block.source.input.shown}, from {error.block.start:,}"
            raise InputError(f"{place}: {error.__cause__.message}", error.__cause__.hint) from None
        finally:
            cancel.set()
