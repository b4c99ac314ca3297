"""Cases that read from a server with the Hub's shape, timed from outside: is a run as fast as from the disk?

    python -m tests.bench.hub KIND CORPUS_FOLDER OUT [FACTOR]

KIND is `parquet` (three files on the Hub), or `txt`, `jsonl` or `jsonl.gz` at a plain address; `local-KIND` is the same
from the disk; so is `busy-KIND`, while another process fetches the same bytes (what that costs a machine that is also
the server). Latencies are 80 ms for an answer of the Hub's and 120 ms for one of the CDN's, at 40 MB/s a connection;
with FACTOR 2 they are twice as long, and a connection brings a quarter. Prints one line of JSON: seconds, requests.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..hub_server import HubServer

ROOT = Path(__file__).resolve().parents[2]
HUB_SECONDS, CDN_SECONDS, RATE = 0.08, 0.12, 40e6
BUSY_RATES = {"parquet": 65e6, "txt": 150e6, "jsonl": 150e6, "jsonl.gz": 30e6}  # about what two workers take


def make_hub(folder: Path) -> Path:
    """Link the corpus to where the server finds it: thrice what is read as parquet, for one file would be soon read."""
    hub = folder / "hub"
    data = hub / "bench" / "corpus" / "data"
    if not data.exists():
        data.mkdir(parents=True)
        for i in range(3):
            (data / f"{i}.parquet").hardlink_to(folder / "corpus.parquet")
        for kind in ("txt", "jsonl"):
            (hub / f"corpus.{kind}").hardlink_to(folder / f"corpus.{kind}")
        with gzip.open(hub / "corpus.jsonl.gz", "wb", compresslevel=6) as file:
            file.write((folder / "corpus.jsonl").read_bytes())
    return hub


def main(kind: str, corpus: str, out: str, factor: float = 1) -> dict[str, float]:
    hub = make_hub(Path(corpus))
    where, _, kind = kind.rpartition("-")
    with HubServer(hub, cdn=True) as server:
        server.commit("bench/corpus")
        server.latency, server.cdn_latency = factor * HUB_SECONDS, factor * CDN_SECONDS
        server.rate = RATE / factor**2
        path = hub / "bench" / "corpus" / "data" if kind == "parquet" else hub / f"corpus.{kind}"
        url = "hf://datasets/bench/corpus/data" if kind == "parquet" else f"{server.url}/files/corpus.{kind}"
        command = [sys.executable, str(ROOT / "prepare.py"), str(path) if where else url, "--out", out]
        env = os.environ | {"HF_HUB_OFFLINE": "0", "no_proxy": "*"}
        if kind == "parquet":  # else the address would be the Hub's, for which its library is loaded
            env["HF_ENDPOINT"] = server.url
        address = f"{server.url}/datasets/bench/corpus/resolve/main/data/0.parquet" if kind == "parquet" else url
        with _fetching(address, BUSY_RATES[kind]) if where == "busy" else contextlib.nullcontext():
            begun, cpu = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([*command, *os.environ.get("BENCH_OPTIONS", "--workers 2").split()], env=env, check=True)
        seconds, spent = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
        n_hub = sum(not request.path.startswith(("/cdn/", "/files/")) for request in server.log)
        return {
            "seconds": seconds,
            "cpu_seconds": spent.ru_utime + spent.ru_stime - cpu.ru_utime - cpu.ru_stime,
            "n_hub_requests": n_hub,
            "n_other_requests": len(server.log) - n_hub,
            "n_connections": server.n_connections,
        }


@contextlib.contextmanager
def _fetching(url: str, rate: float) -> Iterator[None]:
    """Fetch a URL in another process, by 16 connections."""
    command = [sys.executable, "-m", "tests.bench.hub", "fetch", url, str(rate)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()  # it has begun
        yield
        process.terminate()


def fetch(url: str, rate: float, n_connections: int = 16, n_bytes: int = 4 << 20) -> None:
    """Fetch ranges of a URL, over and over; each connection waits so long that all bring `rate` bytes a second."""
    import urllib3

    http = urllib3.PoolManager(maxsize=n_connections)
    size = int(http.request("GET", url, headers={"Range": "bytes=0-0"}).headers["Content-Range"].partition("/")[2])

    def work(number: int) -> None:
        for i in itertools.count(number, n_connections):
            begun, start = time.monotonic(), i * n_bytes % (size - n_bytes)
            http.request("GET", url, headers={"Range": f"bytes={start}-{start + n_bytes - 1}"})
            time.sleep(max(begun + n_bytes * n_connections / rate - time.monotonic(), 0))

    print(flush=True)
    with ThreadPoolExecutor(n_connections) as pool:
        list(pool.map(work, range(n_connections)))


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    if sys.argv[1] == "fetch":
        fetch(sys.argv[2], float(sys.argv[3]))
    else:
        print(json.dumps(main(sys.argv[1], sys.argv[2], sys.argv[3], *map(float, sys.argv[4:]))))
