"""`prepare()` and `estimate()`: what a script calls, and the command line, too."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .cluster.needs import find_needs
from .inputs.blocks import Source
from .inputs.discover import as_names
from .output.files import as_folder, unreadable
from .output.layouts import LAYOUTS, NANOGPT
from .output.lock import locked
from .output.own import META_NAME
from .pipeline.fits import check_neighbours
from .pipeline.job import Job, Request, planned
from .pipeline.schedule import Workers
from .pipeline.settings import DEFAULT_VAL_RATIO, Settings, layout_named
from .remote.network import DEFAULT_CONNECTIONS, Fetcher, Network
from .support.cancel import cancel_on_signals
from .support.errors import InputError
from .support.log import has_listener, log, printed
from .support.units import parse_count, parse_flag, read_as
from .tokenizer.load import load_tokenizer

if TYPE_CHECKING:
    from .pipeline.plan import Estimate

_FLAGS = ("index", "overwrite", "dry_run", "demo", "quiet")

DEMO_VAL_RATIO = 0.1  # of 80 documents: with the usual ratio, only the first, which always is, would be in val


@dataclass(frozen=True)
class Result:
    """What a run made: the folder of `train.bin` and `val.bin`, tokens and documents of each, and how long it took.

    The last `rest_tokens` of the `train_tokens` are in `rest.bin` or `rest.npy`: too few for a shard of that layout.
    """

    out: Path
    train_tokens: int
    val_tokens: int
    train_documents: int
    val_documents: int
    seconds: float
    rest_tokens: int = 0


def prepare(
    inputs: str | Path | Sequence[str | Path] = (),
    out: str | Path = ".",
    *,
    val: str | Path | Sequence[str | Path] = (),
    val_ratio: float | None = None,
    val_tokens: int | None = None,
    val_at: str = "start",
    shard_tokens: int | None = None,
    max_tokens: int | None = None,
    keep_shards: bool = False,
    layout: str = NANOGPT.name,
    names: str | None = None,
    fit: str | None = None,
    eot: str = "after",
    shuffle: bool = False,
    tokenizer: str | Path = "gpt2",
    pattern: str | None = None,
    eot_id: str | int | None = None,
    index: bool = False,
    format: str | None = None,
    text_column: str = "text",
    separator: str | None = None,
    errors: str = "strict",
    skip_bad: bool = False,
    engine: str = "auto",
    workers: int | None = None,
    connections: int = DEFAULT_CONNECTIONS,
    memory: str | int | None = None,
    seed: int = 0,
    overwrite: bool = False,
    dry_run: bool = False,
    demo: bool = False,
    cluster: str | None = None,
    executor: Executor | None = None,
    quiet: bool = False,
) -> Result:
    """Turn text into `train.bin` and `val.bin` in the folder `out`; the same call resumes an interrupted run.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = prepare(demo=True, out=folder, quiet=True)
    ...     (result.out / "train.bin").stat().st_size == 2 * result.train_tokens
    True

    The parameters are those of the command line; `fit` is its `--for`, and `val` names files as `inputs` does. With
    `dry_run`, nothing is written, and the tokens in the result are estimates; `estimate()` returns more. With
    `executor`, any `concurrent.futures` executor does the encoding; with `cluster`, the workers of the Dask scheduler
    at that address. Messages are logged (logger `fineweb_stream`), and printed unless the script has configured logging
    itself (its level INFO shows all of them) or asks for `quiet`.

    Raises `PrepareError` (`InputError`, `MemoryLimitError`, `DiskError`, `EngineError`, `RemoteError`), and
    `Interrupted` on a signal.
    """
    given = locals()
    with contextlib.nullcontext() if quiet or has_listener() else printed(), _planned(given) as job:
        if dry_run:
            found = job.estimate()
            job.check_disk(found)
            return Result(job.folder, found.train_tokens or 0, found.val_tokens or 0, 0, 0, 0.0)
        with locked(job.folder):
            connect = None if cluster is None else functools.partial(_connect, cluster, job)
            record = job.run(quiet, executor, connect)
            if index:
                from .token_files.documents import index_files

                outputs = [job.folder / name for name in record.state.outputs if name != META_NAME]
                for line in index_files(outputs, job.cancel):
                    log.info(line)
    state = record.state
    documents = state.train_documents, state.val_documents
    return Result(job.folder, state.train_tokens, state.val_tokens, *documents, state.seconds, record.rest_tokens)


def estimate(
    inputs: str | Path | Sequence[str | Path] = (),
    out: str | Path = ".",
    *,
    val: str | Path | Sequence[str | Path] = (),
    val_ratio: float | None = None,
    val_tokens: int | None = None,
    val_at: str = "start",
    shard_tokens: int | None = None,
    max_tokens: int | None = None,
    keep_shards: bool = False,
    layout: str = NANOGPT.name,
    names: str | None = None,
    fit: str | None = None,
    eot: str = "after",
    shuffle: bool = False,
    tokenizer: str | Path = "gpt2",
    pattern: str | None = None,
    eot_id: str | int | None = None,
    format: str | None = None,
    text_column: str = "text",
    separator: str | None = None,
    errors: str = "strict",
    skip_bad: bool = False,
    engine: str = "auto",
    workers: int | None = None,
    connections: int = DEFAULT_CONNECTIONS,
    memory: str | int | None = None,
    seed: int = 0,
    overwrite: bool = False,
    demo: bool = False,
) -> Estimate:
    """Estimate from samples what `prepare()` with these parameters would make and take; nothing is written.

    >>> found = estimate(demo=True, out="nowhere")
    >>> found.train_tokens > found.val_tokens > 0, found.disk_bytes >= 2 * found.train_tokens, Path("nowhere").exists()
    (True, True, False)

    This takes a second or so, and fetches some MB of files at URLs. Whatever else a dry run says goes to the logger
    `fineweb_stream`. Compare `disk_bytes` with `disk_free_bytes` yourself: too little space raises nothing here.

    Raises `InputError`, `MemoryLimitError` and `EngineError` for what `prepare()` would refuse before it begins.
    """
    with _planned(locals()) as job:
        return job.estimate()


@contextlib.contextmanager
def _planned(given: dict[str, Any]) -> Iterator[Job]:
    try:
        request = _request(given)
        with (
            cancel_on_signals() as cancel,
            Fetcher(request.connections) as fetcher,
            planned(request, Network(fetcher, cancel)) as job,
        ):
            yield job
    except OSError as error:  # a folder that cannot be read or looked at, before a run explains its errors
        if not error.filename:
            raise
        raise unreadable(error.filename, error) from error


def _request(given: dict[str, Any]) -> Request:
    """Return what the arguments ask for. Raises `InputError` for arguments that make no sense, or not together."""
    given |= {name: read_as(name, given[name], parse_flag) for name in _FLAGS if name in given}
    executor, cluster = given.get("executor"), given.get("cluster")
    if executor is not None and (isinstance(executor, type) or not hasattr(executor, "submit")):
        raise InputError(f"executor={executor!r}: not an executor", "give it one of concurrent.futures")
    if not isinstance(cluster, str | None):
        raise InputError(f"cluster={cluster!r}: not an address", "write it like cluster='tcp://scheduler:8786'")
    if executor is not None and cluster is not None:
        raise InputError("executor and cluster: each would do the encoding", "leave one out")
    names, val_names, folder = as_names(given["inputs"]), as_names(given["val"]), as_folder(given["out"])
    settings = _settings(given)
    others = {"--demo": given["demo"], "--val-at": given["val_at"] != "start"}
    others |= {f"--val-{name}": given[f"val_{name}"] is not None for name in ("ratio", "tokens")}
    if val_names and (other := next((name for name, is_given in others.items() if is_given), None)):
        raise InputError(f"--val and {other}: the files of --val are the whole validation split", "leave one out")
    if given["val_ratio"] is not None and given["val_tokens"] is not None:
        log.warning("note: --val-tokens sets the size of the validation split: --val-ratio is ignored")
    if given.get("index") and settings.eot != "after":
        raise InputError(f"--index and --eot {settings.eot}: an index needs --eot after", "leave out one")
    check_neighbours(folder, LAYOUTS[settings.layout])
    if os.path.isfile(folder):  # False for a name that is too long, which fails later
        raise InputError(f"{folder}: a file, not a folder", "--out names the folder that the outputs go into")
    if given["demo"] and names:
        raise InputError(f"--demo takes no input: {names[0]}", "it has its own text: leave one out")
    given = given | {"connections": read_as("connections", given["connections"], parse_count)}
    plain = {f.name: given[f.name] for f in fields(Request) if f.name in given and f.name != "names"}
    return Request(settings, folder, names, val_names, is_demo=given["demo"], is_local=cluster is None, **plain)


def _settings(given: dict[str, Any]) -> Settings:
    """Return the settings among the arguments, which have the same names."""
    same = {field.name: given[field.name] for field in fields(Settings) if field.name in given}
    ratio = DEMO_VAL_RATIO if given["demo"] else DEFAULT_VAL_RATIO
    is_ratio = given["val_ratio"] is not None and given["val_tokens"] is None  # else the run is the same with any
    read = {
        "layout": layout_named(given["layout"], given["names"]),
        "val_ratio": given["val_ratio"] if is_ratio else ratio,
        "tokenizer": load_tokenizer(str(given["tokenizer"]), given["pattern"], given["eot_id"]),
    }
    return Settings(**same | read)


def _connect(address: str, job: Job, sources: Sequence[Source]) -> AbstractContextManager[Workers]:
    from .cluster.client import connect  # loads distributed

    needs = find_needs(job.plan.engine, sources, job.settings.tokenizer.reference)
    return connect(address, needs, job.cancel, n_connections=job.n_connections)
