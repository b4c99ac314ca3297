"""The memory guard finds every limit, and takes the right step each time."""

from __future__ import annotations

import importlib
import itertools
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from fineweb_stream import prepare
from fineweb_stream.memory import guard as guard_module
from fineweb_stream.memory.guard import MB, Limit, MemoryGuard, Reading, Step, find_limits, used_bytes
from fineweb_stream.output.state import State
from fineweb_stream.pipeline.budget import plan_memory
from fineweb_stream.pipeline.schedule import allotted_cpus
from fineweb_stream.pipeline.watch import MAX_SAMPLES, Watch
from fineweb_stream.support import cgroups
from fineweb_stream.support.cgroups import cpu_quota, memory_groups
from fineweb_stream.support.errors import InputError, MemoryLimitError

from .helpers import write_jsonl

GB = 1000 * MB


def make_guard(budget: int = GB) -> MemoryGuard:
    guard = MemoryGuard(budget, limits=[Limit("physical memory", 16 * GB, 8 * GB)])
    guard._swap = 0
    return guard


CALM, OWN, OTHERS, SWAP = (
    Reading(500 * MB, 4 * GB),
    Reading(950 * MB, 4 * GB),
    Reading(500 * MB, -MB),
    Reading(0, GB, GB),
)


@pytest.mark.parametrize(
    "name, readings, steps",
    [
        ("small job on a full host", [Reading(90 * MB, 10 * MB)] * 9, [Step.RUN] * 9),
        ("just under the budget", [Reading(900 * MB, GB)] * 9, [Step.RUN] * 9),
        ("own use: each step gets its time", [OWN] * 7, [1, 1, 2, 2, 3, 3, 4]),
        ("own use, calm after the drain", [OWN, CALM, CALM, CALM], [1, 1, 0, 0]),
        ("own use, calm with fewer: back step by step", [OWN, OWN, OWN, CALM, CALM, CALM, CALM], [1, 1, 2, 2, 1, 1, 0]),
        ("a rival takes memory and gives it back", [OTHERS] * 20 + [CALM] * 3, [1] * 20 + [0] * 3),
        ("a rival that stays", [OTHERS] * 62, [1] * 60 + [4, 4]),
        ("swap that grows", [SWAP] * 3 + [Reading(0, GB, 0)] * 2, [1, 1, 1, 0, 0]),
    ],
)
def test_steps(name: str, readings: list[Reading], steps: list[int]) -> None:
    """One reading a second: the step after each."""
    guard = make_guard()
    assert [guard.update(reading, now + 1.0) for now, reading in enumerate(readings)] == steps
    assert len(guard.steps) == sum(a != b for a, b in zip([0, *steps], steps, strict=False))
    assert guard.peak_bytes == max(reading.used for reading in readings)


def test_swap_that_was_there_is_no_pressure() -> None:
    """Swap in use at the start counts for nothing."""
    guard = make_guard()
    guard._swap = 3 * GB
    assert guard.update(Reading(0, GB, 3 * GB), 1.0) is Step.RUN


SLOW_ARROW = """
import time
time.sleep(0.3)
n_released = 0

class default_memory_pool:
    def release_unused(self):
        global n_released
        n_released += 1
"""


def test_memory_is_released_while_arrow_is_imported(tmp_path, monkeypatch) -> None:
    """A thread may be importing pyarrow: its allocator is asked when it is there."""
    (tmp_path / "pyarrow.py").write_text(SLOW_ARROW)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    del sys.modules["pyarrow"]
    monkeypatch.syspath_prepend(tmp_path)
    thread = threading.Thread(target=importlib.import_module, args=("pyarrow",))
    thread.start()
    while "pyarrow" not in sys.modules:
        time.sleep(0.01)
    guard_module.release_memory()
    thread.join()
    assert sys.modules["pyarrow"].n_released == 1


def write(folder: Path, **files: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")
    return folder


def test_nested_groups_version_2(tmp_path) -> None:
    """All groups on the way up count, `max` is none, and the page cache can be had back."""
    stat = f"anon 1\ninactive_file {50 * MB}\nactive_file {30 * MB}"
    write(tmp_path / "a" / "b", memory__max="max", memory__current=5)
    write(tmp_path / "a", memory__max=800 * MB, memory__current=200 * MB, memory__stat=stat, cpu__max="150000 100000")
    proc = write(tmp_path / "proc", cgroup="0::/a/b") / "cgroup"
    assert memory_groups(tmp_path, proc) == [(str(tmp_path / "a"), 800 * MB, 120 * MB)]
    assert cpu_quota(tmp_path, proc) == 1.5


def test_nested_groups_version_1(tmp_path) -> None:
    """The same for version 1, whose largest number is no limit, and whose names a container may not see."""
    top, none = tmp_path / "memory", 9223372036854771712
    write(top / "docker" / "x", memory__limit_in_bytes=450 * MB, memory__usage_in_bytes=100 * MB)
    write(top, memory__limit_in_bytes=none, memory__usage_in_bytes=9 * GB)
    write(tmp_path / "cpu,cpuacct", cpu__cfs_quota_us=-1, cpu__cfs_period_us=100000)
    proc = write(tmp_path / "proc", cgroup="4:memory:/docker/x\n3:cpu,cpuacct:/docker/x") / "cgroup"
    assert memory_groups(tmp_path, proc) == [(str(top / "docker" / "x"), 450 * MB, 100 * MB)]
    assert cpu_quota(tmp_path, proc) is None
    write(top, memory__limit_in_bytes=300 * MB)
    proc.write_text("4:memory:/hidden/from/the/container\n")
    assert [limit for _, limit, _ in memory_groups(tmp_path, proc)] == [300 * MB]


def test_no_groups(tmp_path) -> None:
    """A system without control groups, or whose controller is not there, has no such limits."""
    assert memory_groups(tmp_path, tmp_path / "gone") == []
    assert cpu_quota(tmp_path, tmp_path / "gone") is None
    proc = write(tmp_path / "proc", cgroup="4:memory:/docker/x") / "cgroup"
    assert memory_groups(tmp_path, proc) == []


def test_a_process_that_has_just_ended() -> None:
    """It uses nothing: processes may end while the tree is measured."""
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        process = psutil.Process(child.pid)
    assert guard_module._private_bytes(process) == 0


def test_limits_of_slurm_and_ulimit(monkeypatch) -> None:
    """Slurm's variables and the process's own limits are found, and the tightest comes first."""
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "300")
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "2")
    limits = find_limits()
    assert limits[0].name == "SLURM_MEM_PER_CPU"
    assert limits[0].total == 600 << 20
    monkeypatch.setattr(cgroups, "cpu_quota", lambda: 0.5)
    assert allotted_cpus() == 1
    monkeypatch.undo()
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")
    assert allotted_cpus() == 1
    code = "from fineweb_stream.memory.guard import find_limits; print([(l.name, l.total) for l in find_limits()])"
    command = ["bash", "-c", f'ulimit -v 4000000; exec {sys.executable} -c "{code}"']
    if os.name == "nt":
        pytest.skip("no ulimit")
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1], timeout=60)
    assert "('ulimit -v', 4096000000)" in done.stdout


def test_own_use_is_counted_with_children() -> None:
    """Memory of a child process counts; files that are mapped do not."""
    before = used_bytes()
    code = "x = bytearray(100_000_000); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout
        child.stdout.readline()
        assert 95 * MB < used_bytes() - before < 150 * MB
        child.communicate(b"\n")


@pytest.mark.skipif(sys.platform != "linux", reason="there they are looked through each time")
def test_other_processes_are_not_looked_through() -> None:
    """A machine may have thousands; without children none of them matters."""
    code = "import psutil; psutil.Process.children = None; import fineweb_stream.memory.guard as g; g.used_bytes()"
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[1], check=True, timeout=60)


@pytest.mark.parametrize("value", ["0", "", "much", "-1", "2(x2)"])
def test_variables_that_say_nothing(monkeypatch, value: str) -> None:
    """Zero is Slurm's word for the whole node; what is no number is no limit either."""
    for name in ("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_CPUS_ON_NODE", "SLURM_CPUS_PER_TASK"):
        monkeypatch.setenv(name, value)
    assert not [limit for limit in find_limits() if "SLURM" in limit.name]
    assert allotted_cpus() >= 1
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "4GB")
    assert next(limit.total for limit in find_limits() if "SLURM" in limit.name) == 4 * GB


@pytest.mark.parametrize("memory", ["much", "0%", "150%", "-1GB", "%", "4", 4, 0, "", "1,5GB", "50 percent", True])
def test_bad_budgets(memory: str) -> None:
    """A budget that makes no sense is refused."""
    with pytest.raises(InputError, match="not a size of memory"):
        MemoryGuard(memory)


@pytest.mark.parametrize(
    "budget_mb, engine, asked, expected",
    [
        (4000, "auto", 8, ("gigatoken", 8)), (1000, "auto", 64, ("gigatoken", 7)), (640, "auto", 2, ("gigatoken", 2)),
        (310, "auto", 8, ("gigatoken", 1)), (205, "auto", 8, ("tiktoken", 4)), (150, "auto", 64, ("tiktoken", 2)),
        (384, "tiktoken", 2, ("tiktoken", 2)),
    ],
)  # fmt: skip
def test_plan_fits_the_budget(budget_mb: int, engine: str, asked: int, expected: tuple[str, int]) -> None:
    """Engine and workers follow the budget, and the line says why there are fewer than asked for."""
    pytest.importorskip("gigatoken")
    plan = plan_memory(make_guard(budget_mb * MB), engine, asked, formats={"text"})
    assert (plan.engine, plan.n_workers) == expected
    is_slower = expected[0] != "gigatoken" and engine == "auto"
    assert ("no room for gigatoken" in plan.line) == is_slower
    assert (f"(of {asked}: the budget has room for no more)" in plan.line) == (expected[1] < asked and not is_slower)


def test_plan_refuses_what_cannot_work() -> None:
    """A budget too small for one worker: what it needs, and the limit."""
    with pytest.raises(MemoryLimitError, match=r"one worker with tiktoken needs\s+108 MB"):
        plan_memory(make_guard(50 * MB), "auto", 2, formats={"text"})


def test_guard_takes_no_time() -> None:
    """A look happens at most twice a second, however often it is asked."""
    guard = MemoryGuard()
    n_reads = 0

    def read() -> Reading:
        nonlocal n_reads
        n_reads += 1
        return CALM

    guard.read = read  # type: ignore[method-assign]
    for _ in range(1000):
        guard.check()
    assert n_reads <= 2
    assert guard_module.CHECK_SECONDS == 0.5


def test_record_keeps_the_steps_of_earlier_runs() -> None:
    """A resumed run's record has the steps and the peak of the runs before it, once each."""
    first, second = make_guard(), make_guard()
    first.update(OWN, 1.0)
    state = State()
    Watch(first, state).record()
    watch = Watch(second, state)
    second.update(OTHERS, 1.0)
    watch.record()
    again = state.memory
    watch.record()
    assert again == state.memory
    assert [step["used_bytes"] for step in again["steps"]] == [OWN.used, OTHERS.used]
    assert again["peak_bytes"] == OWN.used


def test_a_long_run_has_as_few_samples() -> None:
    """The samples of a run of any length are bounded, and spread over all of it."""
    watch = Watch(make_guard(), state := State())
    for seconds in range(5000):
        watch._add_sample(float(seconds))
    times = [time for time, *_ in state.timeline]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert 100 < len(times) <= MAX_SAMPLES and times[0] == 0 and times[-1] > 4900 and max(gaps) <= 64


@pytest.mark.skipif(os.name == "nt" or sys.platform == "darwin", reason="no such limit")
def test_a_record_takes_no_more_memory_than_it_has_bytes(tmp_path: Path) -> None:
    """Under ulimit -v: to read what is written every few seconds once took 256 MiB."""
    path = write_jsonl(tmp_path / "c.jsonl", ["some words " * 9] * 300)
    prepare(path, tmp_path / "out", quiet=True)
    code = (
        "import resource; from pathlib import Path; from fineweb_stream.output.manifest import read_record\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2); print(read_record(Path('out')).state.status)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout == "done\n", done.stderr
