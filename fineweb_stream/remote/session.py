"""Who reads from networks in this process: one `Fetcher` for all, for what a server allows is the process's.

Loads nothing that speaks to a network before something is to be read from one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..support.errors import InputError

if TYPE_CHECKING:
    from .ranges import Fetcher

DEFAULT_CONNECTIONS = 16
DEFAULT_AHEAD_BYTES = 32 << 20


class Session:
    """What one run may take of the network: how many connections, and how much may be fetched ahead (bytes)."""

    def __init__(self, n_connections: int) -> None:
        self.n_connections = n_connections
        self.ahead_bytes = DEFAULT_AHEAD_BYTES
        self.is_streaming = True  # False where workers elsewhere read for themselves


_lock = threading.RLock()
_sessions: list[Session] = []
_fetcher: list[Fetcher] = []


@contextmanager
def session(n_connections: int = DEFAULT_CONNECTIONS) -> Iterator[Session]:
    """Let a run read from networks; with the last session what is under way ends, and all connections are closed."""
    mine = Session(n_connections)
    with _lock:
        _sessions.append(mine)
    try:
        yield mine
    finally:
        with _lock:
            _sessions.remove(mine)
            closed = [] if _sessions else [_fetcher.pop() for _ in _fetcher[:]]
        for fetcher in closed:
            fetcher.close()


def current() -> Session:
    """Return the session that began last."""
    with _lock:
        return _sessions[-1] if _sessions else Session(DEFAULT_CONNECTIONS)


def fetcher() -> Fetcher:
    """Return this process's fetcher, made when it is needed first."""
    with _lock:
        if not _fetcher:
            try:
                from .ranges import Fetcher
            except ImportError:
                raise InputError("reading from a network needs urllib3", "pip install urllib3") from None
            _fetcher.append(Fetcher())
        _fetcher[0].n_connections = current().n_connections
        return _fetcher[0]


def n_bytes() -> int:
    """Return how much came from networks so far."""
    return sum(fetcher.n_bytes for fetcher in _fetcher)
