"""What a worker on another machine needs: this version, the packages in use, and access to the inputs."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Sequence
from typing import NamedTuple

from ..inputs.blocks import Source
from ..support.errors import InputError
from ..support.version import __version__


class Needs(NamedTuple):
    """What a worker needs: this version, some packages, and access to the first input (`path` "" if none is a file)."""

    version: str
    modules: tuple[str, ...]
    path: str
    size: int


def find_needs(engine: str, sources: Sequence[Source], reference: str = "tiktoken") -> Needs:
    """Return what each worker needs for this engine, the reference that checks it, and these inputs."""
    packages = {
        "pyarrow": any(s.input.format == "parquet" for s in sources),
        "gigatoken": engine == "gigatoken",
        "tokenizers": reference == "tokenizers",
    }
    modules = tuple(name for name, is_needed in packages.items() if is_needed)
    first = next((s.input for s in sources if is_file(s)), None)
    return Needs(__version__, modules, os.path.abspath(first.path) if first else "", first.size if first else 0)


def install_hint(version: str) -> str:
    """Return what to do on a worker to install this version of the package."""
    return f"install fineweb_stream {version} there (pip install . in its folder), and restart the worker"


def find_missing(needs: Needs) -> tuple[str, str] | None:
    """In a worker: return what it lacks and what to type there; None if it has everything."""
    if __version__ != needs.version:
        return (
            f"has fineweb_stream {__version__}, here it is {needs.version}: ids could differ",
            install_hint(needs.version),
        )
    for name in needs.modules:
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed", f"type there: pip install {name}, and restart the worker"
    if not needs.path:
        return None
    hint = f"type there: ls -l {needs.path} (workers read the inputs themselves: put them in a folder all share)"
    try:
        size = os.stat(needs.path).st_size
    except OSError as error:
        return f"cannot see {needs.path}: {error.strerror}", hint
    return None if size == needs.size else (f"{needs.path} has {size:,} bytes there, {needs.size:,} here", hint)


@functools.cache
def check_here(needs: Needs) -> None:
    """In a task: raise `InputError` if this worker, which may have joined later, lacks something."""
    from distributed import get_worker

    if missing := find_missing(needs):
        raise InputError(f"worker {get_worker().address}: {missing[0]}", missing[1])


def is_file(source: Source) -> bool:
    """Tell whether workers open the input's file: streams and the demo travel in their blocks."""
    return not source.input.is_stream and source.input.format != "demo" and not source.input.is_remote
