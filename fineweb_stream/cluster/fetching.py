"""What a run's blocks are fetched with on each worker: a `Fetcher` that Dask keeps there, and closes with the run."""

from __future__ import annotations

from typing import Any, cast

from distributed import WorkerPlugin, get_worker

from ..remote.network import Fetcher, Network


class FetcherPlugin(WorkerPlugin):  # type: ignore[misc,unused-ignore]
    """A worker's fetcher, made where the worker is."""

    def setup(self, worker: Any) -> None:
        """Begin."""
        self.fetcher = Fetcher()

    def teardown(self, worker: Any) -> None:
        """Close all connections."""
        self.fetcher.close()


def network_here(name: str, n_connections: int) -> Network:
    """In a task: return the network of the run whose plugin has that name, with its share of the connections."""
    plugin = cast(FetcherPlugin, get_worker().plugins[name])
    plugin.fetcher.n_connections = n_connections
    return Network(plugin.fetcher)
