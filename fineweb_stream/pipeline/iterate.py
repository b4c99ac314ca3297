"""`iter_ids()`: the ids of a corpus as they are encoded, for training while tokenizing."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..inputs.discover import as_names, find_inputs
from ..inputs.sources import make_sources
from ..memory.guard import MemoryGuard
from ..output.changes import MAX_SHOWN, locate
from ..remote.network import DEFAULT_CONNECTIONS, Fetcher, Network
from ..support.cancel import Cancel
from ..support.errors import ChangedError
from ..support.log import log
from ..support.units import parse_count, read_as
from ..tokenizer.ids import Ids
from ..tokenizer.load import load_tokenizer
from ..tokenizer.tokenizer import Tokenizer
from .budget import plan_for
from .settings import Settings
from .vocabulary import fitted
from .worker import encode_block, work_through


def iter_ids(
    inputs: str | Path | Sequence[str | Path],
    *,
    text_column: str = "text",
    separator: str | None = None,
    errors: str = "strict",
    skip_bad: bool = False,
    engine: str = "auto",
    tokenizer: str | Path | Tokenizer = "gpt2",
    pattern: str | None = None,
    eot_id: str | int | None = None,
    workers: int | None = None,
    connections: int = DEFAULT_CONNECTIONS,
    memory: str | int | None = None,
    format: str | None = None,
) -> Iterator[Ids]:
    """Yield the ids of all inputs in order: arrays (n,) of about 1.5 MiB of text, uint16 (uint32 above 65,536 ids).

    One pass over everything, with no split; nothing is written or printed, but skipped and changed records, and the
    number of many of them, are logged (logger `fineweb_stream`). The parameters are those of `prepare()`.
    Memory is bounded as there; a document that `memory` has no room for raises an error that names it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "c.jsonl"
    ...     _ = path.write_text('{"text": "hello world"}\\n{"text": "hello"}\\n')
    ...     [ids.tolist() for ids in iter_ids(path)]
    [[31373, 995, 50256, 31373, 50256]]

    Raises `InputError` for what cannot be read, `MemoryLimitError` if no worker fits, `EngineError` for an inexact
    engine.
    """
    settings = Settings(
        text_column=text_column,
        separator=separator,
        errors=errors,
        skip_bad=skip_bad,
        engine=engine,
        tokenizer=tokenizer if isinstance(tokenizer, Tokenizer) else load_tokenizer(str(tokenizer), pattern, eot_id),
    )
    connections = read_as("connections", connections, parse_count)
    with Fetcher(connections) as fetcher:
        network = Network(fetcher)
        found = find_inputs(as_names(inputs), format, network)
        plan = plan_for(found, settings, MemoryGuard(memory), network, workers, connections)
        options = settings.read_options(plan)
        sources = make_sources(found, options, network=network)
        settings = fitted(settings, sources, plan)
        cancel, number, n_records, n_changes, n_logged = Cancel(), 0, 0, 0, 0
        encode = functools.partial(encode_block, engine=plan.engine, cancel=cancel, tokenizer=settings.tokenizer)
        try:
            for block, encoded in work_through(sources, encode, plan, cancel):
                if block.source.number != number:
                    number, n_records = block.source.number, 0
                for change in encoded.changes:
                    n_logged, n_changes = n_logged + 1, n_changes + change.n
                    if n_logged <= MAX_SHOWN:
                        place = locate(block.source.input, block.source.unit, change.record + n_records, change.byte)
                        log.warning(f"{change.kind}: {place}: {change.detail}")
                n_records += encoded.n_records
                yield encoded.ids
        except ChangedError as error:  # there is no run to resume
            raise ChangedError(error.message, "once it is complete, start over") from None
        finally:
            if n_logged > MAX_SHOWN:
                log.warning(f"{n_changes:,} records are skipped or changed")
