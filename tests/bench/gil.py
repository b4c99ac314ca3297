"""How long Python's global lock is held: what limits a machine with many cores, however fast it is."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from .cases import ROOT

RATE = 250  # samples a second
START_CPU_SECONDS = 0.7  # what is loaded at the start, once, is no matter here: so much CPU time goes by before
SAMPLE_SECONDS = 4


def sample_lock(path: Path, n_workers: int = 2, n_runs: int = 3) -> dict[str, float]:
    """Run prepare.py on a file, several times; sample by py-spy whether a thread holds the lock, `--gil`.

    Returns the share of the samples in which it was held; how many cores were busy meanwhile; at how many busy cores it
    would be held all the time, which does not depend on how fast the machine is today; the milliseconds for each MB of
    text, and the ceiling that follows (MB/s on any number of cores).
    """
    n_held = n_samples = cpu = wall = 0.0
    run_seconds = 0.0
    with tempfile.TemporaryDirectory(dir=path.parent) as out:
        for _ in range(n_runs):
            command = [sys.executable, str(ROOT / "prepare.py"), str(path), "--out", out, "--overwrite"]
            with subprocess.Popen(
                [*command, "--engine", "gigatoken", "--workers", str(n_workers)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            ) as process:
                _wait_for_start(process.pid)
                start = time.perf_counter()
                held, seconds, cpu_seconds = _sample(process.pid, Path(out) / "samples")
                process.wait()
            if process.returncode:
                raise RuntimeError(f"{' '.join(command)}: exit status {process.returncode}")
            run_seconds += time.perf_counter() - start
            n_held, n_samples, cpu, wall = n_held + held, n_samples + seconds * RATE, cpu + cpu_seconds, wall + seconds
    share, busy = n_held / n_samples, cpu / wall
    held_ms = share * run_seconds * 1000 / (n_runs * path.stat().st_size / 1e6 * _text_share(path))
    return {
        "seconds": run_seconds,
        "cpu_seconds": busy * run_seconds,
        "share": share,
        "busy_cores": busy,
        "full_at_cores": busy / share,
        "held_ms_per_mb": held_ms,
        "ceiling_mb_per_s": 1000 / held_ms,
    }


def _wait_for_start(pid: int) -> None:
    for _, cpu in _times(psutil.Process(pid)):
        if cpu >= START_CPU_SECONDS:
            return
        time.sleep(0.01)


def _sample(pid: int, path: Path) -> tuple[float, float, float]:
    """Return in how many samples the lock was held, for how long was sampled, and the process's CPU time meanwhile."""
    process = psutil.Process(pid)
    command = [
        "py-spy",
        "record",
        "--pid",
        str(pid),
        "--gil",
        "--nonblocking",
        "--format",
        "raw",
        "--output",
        str(path),
    ]
    start, cpu_start = time.perf_counter(), sum(process.cpu_times()[:2])
    spy = subprocess.Popen(
        [*command, "--rate", str(RATE), "--duration", str(SAMPLE_SECONDS)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for now, cpu in _times(process):
        end, cpu_end = now, cpu
        if spy.poll() is not None or now - start >= SAMPLE_SECONDS:
            break
        time.sleep(0.02)
    spy.wait()
    held = sum(int(line.rpartition(" ")[2]) for line in path.read_text().splitlines())
    return held, end - start, cpu_end - cpu_start


def _times(process: psutil.Process) -> Iterator[tuple[float, float]]:
    """Yield the time and the CPU time of a process while it runs."""
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        yield time.perf_counter(), sum(process.cpu_times()[:2])


def _text_share(path: Path) -> float:
    """Return how much text there is for each byte of the file: parquet is compressed."""
    if path.suffix != ".parquet":
        return 1.0
    import pyarrow.parquet as pq

    metadata = pq.ParquetFile(path).metadata
    column = metadata.schema.to_arrow_schema().names.index("text")
    groups = (metadata.row_group(i).column(column) for i in range(metadata.num_row_groups))
    return sum(group.total_uncompressed_size for group in groups) / path.stat().st_size
