"""Fetches a run's blocks on each worker: with a `Fetcher` that Dask keeps there, and closes when the run ends."""

from __future__ import annotations

from typing import Any, cast

from distributed import WorkerPlugin, get_worker

from ..remote.network import Fetcher, Network


class FetcherPlugin(WorkerPlugin):  # type: ignore[misc,unused-ignore]
    """A worker's fetcher, created on the worker."""

    def setup(self, worker: Any) -> None:
        """Create the fetcher."""
        self.fetcher = Fetcher()

    def teardown(self, worker: Any) -> None:
        """Close all connections."""
        self.fetcher.close()


def network_here(name: str, n_connections: int) -> Network:
    """In a task: return the network of the run whose plugin is called `name`, with its share of the connections."""
    plugin = cast(FetcherPlugin, get_worker().plugins[name])
    plugin.fetcher.n_connections = n_connections
    return Network(plugin.fetcher)
