"""The same command on a cluster: a real Dask scheduler and real workers, on loopback and on three small "hosts"."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from fineweb_stream import Result, prepare
from fineweb_stream.cluster.client import Cluster, connect, encode_blocks
from fineweb_stream.cluster.needs import Needs, find_missing, find_needs
from fineweb_stream.pipeline import job, run
from fineweb_stream.pipeline.schedule import Window, WorkerError
from fineweb_stream.support.errors import InputError, PrepareError
from fineweb_stream.support.model import ReadOptions

from .helpers import in_blocks, outputs, write_jsonl, write_parquet
from .hub_server import HubServer

ROOT = Path(__file__).parents[1]
LOOPBACK = "127.0.0.1"
OPTIONS = {"val_ratio": 0.05, "shard_tokens": 20_000, "keep_shards": True, "quiet": True}

# Else each process of Dask's looks at itself a hundred times a second.
IDLE = {"DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False", "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "1s"}

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def needs_dask() -> None:
    pytest.importorskip("distributed", reason='Dask is not installed: pip install "distributed"')


def prepare_on(address: str, inputs: object, out: Path, slow: float = 0, **options: object) -> Result:
    """Run `prepare` on a cluster; `slow` seconds are slept after each block the writer takes."""
    absorb = run.Run._absorb

    def slowly(self: object, *args: object) -> bool:
        time.sleep(slow)
        return absorb(self, *args)

    with contextlib.ExitStack() as stack:
        stack.enter_context(in_blocks(2000))
        stack.enter_context(mock.patch("fineweb_stream.cluster.client.GROUP_BYTES", 5000))
        stack.enter_context(mock.patch.object(run.Run, "_absorb", slowly))
        return prepare(inputs, out, cluster=address or None, **OPTIONS | options)


class Dask:
    """A scheduler and workers, each a process; `where` runs one on another host."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "scheduler.json"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.scheduler: subprocess.Popen[bytes] | None = None

    def start_scheduler(self, host: str = LOOPBACK, where: tuple[str, ...] = ()) -> str:
        # --port 0: any that is free
        options = ("--host", host, "--port", "0", "--no-dashboard", "--scheduler-file", str(self.file))
        self.scheduler = self._start("scheduler", *options, where=where)
        self.address = str(self._wait_for_address())
        return self.address

    def start_worker(
        self, host: str = LOOPBACK, where: tuple[str, ...] = (), path: Path = ROOT, n_threads: int = 1
    ) -> subprocess.Popen[bytes]:
        options = (
            "--nthreads",
            str(n_threads),
            "--no-nanny",
            "--no-dashboard",
            "--host",
            host,
            "--death-timeout",
            "20",
        )
        files = ("--scheduler-file", str(self.file), "--local-directory", str(self.folder))
        return self._start("worker", *options, *files, where=where, path=path)

    def _start(self, *arguments: str, where: tuple[str, ...] = (), path: Path = ROOT) -> subprocess.Popen[bytes]:
        log = (self.folder / f"{arguments[0]}-{len(self.processes)}.log").open("wb")
        env = os.environ | {"PYTHONPATH": str(path), "PYTHONSAFEPATH": "1"} | IDLE
        command = [*where, sys.executable, "-m", "dask", *arguments]
        with log:
            process = subprocess.Popen(command, env=env, cwd=self.folder, stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def _wait_for_address(self) -> str:
        for _ in range(300):
            with contextlib.suppress(OSError, ValueError):
                return json.loads(self.file.read_text())["address"]
            time.sleep(0.1)
        raise TimeoutError("no scheduler")

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Dask]:
    """Processes to start, all ended with the block."""
    found = Dask(folder)
    try:
        yield found
    finally:
        found.close()


def start_two(dask: Dask) -> str:
    """Start a scheduler with two workers of one thread each."""
    address = dask.start_scheduler()
    for _ in range(2):
        dask.start_worker()
    return address


@pytest.fixture
def dask(tmp_path: Path) -> Iterator[Dask]:
    """A cluster of the test's own."""
    (tmp_path / "dask").mkdir()
    with running(tmp_path / "dask") as found:
        yield found


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster for all tests that kill none of its processes."""
    pytest.importorskip("distributed")
    with running(tmp_path_factory.mktemp("dask")) as found:
        yield start_two(found)


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dask]:
    """A scheduler without workers, for tests that bring a worker of their own."""
    pytest.importorskip("distributed")
    with running(tmp_path_factory.mktemp("dask")) as found:
        found.start_scheduler()
        yield found


@pytest.fixture
def bare(scheduler: Dask) -> Iterator[Dask]:
    """That scheduler; the test's workers are ended, and it knows."""
    yield scheduler
    for process in scheduler.processes[1:]:
        process.kill()
        process.wait()
    del scheduler.processes[1:]
    from distributed import Client

    with Client(scheduler.address, set_as_default=False) as client:
        while client.scheduler_info(n_workers=-1)["workers"]:
            time.sleep(0.02)


DOCS = [f"Document {i} says hello.\n\nIt's short, {'and quite repetitive ' * (i % 17)} {i * i}." for i in range(2500)]


def write_corpus(kind: str, folder: Path) -> Path:
    if kind == "jsonl":
        return write_jsonl(folder / "c.jsonl", DOCS)
    if kind == "parquet":
        pytest.importorskip("pyarrow")
        return write_parquet(folder / "c.parquet", DOCS, row_group_size=40)
    (folder / "c.txt").write_text("\n".join(DOCS))
    return folder / "c.txt"


def local_bytes(corpus: Path, folder: Path, **options: object) -> dict[str, bytes]:
    prepare_on("", corpus, folder / "local", **options)
    return outputs(folder / "local")


def wait_for_record(out: Path) -> None:
    """Wait until some tokens are saved."""
    for _ in range(600):
        with contextlib.suppress(OSError, ValueError, KeyError):
            if json.loads((out / "prepare.json").read_text())["state"]["train_tokens"]:
                return
        time.sleep(0.05)
    raise TimeoutError("nothing was saved")


@contextlib.contextmanager
def once_saved(out: Path, action: object) -> Iterator[None]:
    """Call `action` in the middle of a run, from a thread."""

    def act() -> None:
        wait_for_record(out)
        action()
        acted.append(True)

    acted: list[bool] = []
    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    assert acted


@pytest.mark.parametrize("kind", ["txt", "jsonl", "parquet"])
def test_same_bytes_as_one_machine(address: str, tmp_path: Path, kind: str) -> None:
    """C5: a cluster gives the bytes of a local run."""
    corpus = write_corpus(kind, tmp_path)
    prepare_on(address, corpus, tmp_path / "out")
    assert outputs(tmp_path / "out") == local_bytes(corpus, tmp_path)


def test_another_tokenizer_on_the_cluster(address: str, tmp_path: Path) -> None:
    """Workers load the tokenizer by its file, and give the bytes of one machine."""
    from .test_tokenizers import make_json

    corpus, tokenizer = write_corpus("jsonl", tmp_path), make_json(tmp_path, "qwen2")
    prepare_on(address, corpus, tmp_path / "there", tokenizer=tokenizer)
    assert outputs(tmp_path / "there") == local_bytes(corpus, tmp_path / "here", tokenizer=tokenizer)


def test_shuffled_on_the_cluster(dask: Dask, address: str, tmp_path: Path) -> None:
    """C5 under --shuffle: the order is that of one machine, and the shards, too; it is not that of the input."""
    corpus = write_corpus("parquet", tmp_path)
    prepare_on(address, corpus, tmp_path / "there", shuffle=True, seed=7)
    assert outputs(tmp_path / "there") == (found := local_bytes(corpus, tmp_path, shuffle=True, seed=7))
    assert found != local_bytes(corpus, tmp_path / "plain")


def test_the_plan_is_the_clients(address: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The plan does not say what this machine's threads would need: others do the work."""
    caplog.set_level(logging.INFO, "fineweb_stream")
    prepare(write_corpus("jsonl", tmp_path), tmp_path / "out", cluster=address)
    said = "\n".join(caplog.messages)
    assert re.search(
        r"^memory: budget .*; (gigatoken|tiktoken) on the workers, which have their own memory$", said, re.M
    )
    assert re.search(r"^disk: .* free$", said, re.M)


def test_relative_paths(address: str, tmp_path: Path, monkeypatch) -> None:
    """Workers run in another folder: a relative path is the client's."""
    corpus = write_corpus("txt", tmp_path)
    monkeypatch.chdir(tmp_path)
    prepare_on(address, "c.txt", tmp_path / "out")
    assert outputs(tmp_path / "out") == local_bytes(corpus, tmp_path)


def test_a_killed_worker_and_a_new_one(dask: Dask, tmp_path: Path) -> None:
    """The blocks of a lost worker are done elsewhere, once; a new worker takes part."""
    address = start_two(dask)
    corpus = write_corpus("jsonl", tmp_path)

    def kill_and_add() -> None:
        dask.processes[1].send_signal(signal.SIGKILL)
        dask.start_worker()

    with once_saved(tmp_path / "out", kill_and_add):
        prepare_on(address, corpus, tmp_path / "out", slow=0.03)
    assert outputs(tmp_path / "out") == local_bytes(corpus, tmp_path)


def test_all_workers_killed_and_a_new_one(dask: Dask, tmp_path: Path) -> None:
    """Without a worker the run says so and waits; the next one finishes it."""
    address = start_two(dask)
    corpus = write_corpus("jsonl", tmp_path)

    def kill_and_add() -> None:
        for process in dask.processes[1:]:
            process.send_signal(signal.SIGKILL)
        time.sleep(4)
        dask.start_worker()

    with once_saved(tmp_path / "out", kill_and_add):
        prepare_on(address, corpus, tmp_path / "out", slow=0.02)
    assert outputs(tmp_path / "out") == local_bytes(corpus, tmp_path)


def test_a_killed_scheduler(dask: Dask, tmp_path: Path) -> None:
    """One sentence and exit status 1; a local run continues: same bytes."""
    address = start_two(dask)
    corpus = write_corpus("jsonl", tmp_path)
    out = tmp_path / "out"
    started = time.monotonic()
    with once_saved(out, lambda: dask.scheduler.kill()), pytest.raises(PrepareError) as caught:
        prepare_on(address, corpus, out, slow=0.05)
    assert time.monotonic() - started < 60
    assert str(caught.value).startswith(f"lost the scheduler {address}")
    assert "tokens are saved: the same command continues" in str(caught.value)
    assert caught.value.exit_status == 1
    assert not (out / "train.bin").exists()
    prepare_on("", corpus, out)
    assert outputs(out) == local_bytes(corpus, tmp_path)


@pytest.mark.parametrize("error", [asyncio.TimeoutError, OSError])
def test_a_scheduler_too_busy_to_count(error: type[Exception]) -> None:
    """The last number of threads counts; whether the scheduler is lost, its status says."""
    client = mock.Mock(nthreads=mock.Mock(side_effect=[{"a": 2, "b": 3}, error]))
    cluster = Cluster("tcp://host", client, Needs("", (), "", 0), 0)
    for _ in range(2):
        assert cluster.count_threads() == 5
        cluster._counted = -math.inf
    assert client.nthreads.call_count == 2


def test_a_late_block_delays_no_task() -> None:
    """Where none has come for a while, what has come is a task, or the wait is passed on; a lost scheduler ends it."""
    client = mock.Mock(nthreads=mock.Mock(return_value={"a": 1}), status="closed")
    cluster = Cluster("tcp://host", client, Needs("", (), "", 0), 0)
    one, two = mock.Mock(n_bytes=3), mock.Mock(n_bytes=4)
    groups = list(cluster._iter_groups([None, one, None, one, two], Window(lambda: 9, 1 << 30)))
    assert [group and (group.blocks, group.n_bytes) for group in groups] == [None, ([one], 3), ([one, two], 7)]
    with pytest.raises(PrepareError, match="lost the scheduler tcp://host"):
        cluster._check_status()


def test_start_local_and_finish_on_the_cluster(address: str, tmp_path: Path) -> None:
    """A run may be continued elsewhere: same bytes."""
    corpus = write_corpus("parquet", tmp_path)
    absorb, n_left = run.Run._absorb, [20]

    def fail_later(self: object, *args: object) -> bool:
        n_left[0] -= 1
        if not n_left[0]:
            raise PrepareError("enough for now")
        return absorb(self, *args)

    with mock.patch.object(run.Run, "_absorb", fail_later), pytest.raises(PrepareError, match="enough"):
        prepare_on("", corpus, tmp_path / "out")
    assert not (tmp_path / "out" / "train.bin").exists()
    prepare_on(address, corpus, tmp_path / "out")
    assert outputs(tmp_path / "out") == local_bytes(corpus, tmp_path)


def test_a_bad_record_is_named_as_on_one_machine(address: str, tmp_path: Path) -> None:
    """The line's number is right although blocks are sent in groups; what came before it is saved."""
    corpus = write_corpus("jsonl", tmp_path)
    lines = corpus.read_text().splitlines(keepends=True)
    lines[1234] = "{not json\n"
    corpus.write_text("".join(lines))
    found = []
    for where in ("", address):
        with pytest.raises(InputError) as caught:
            prepare_on(where, corpus, tmp_path / f"out{bool(where)}")
        found.append(str(caught.value))
    assert "line 1,235" in found[0]
    assert found[0] == found[1]


def test_a_block_that_fails_three_times(address: str, tmp_path: Path) -> None:
    """Dask tries three times in all; the blocks before it arrive, and the error names the block."""
    corpus, tries = write_corpus("txt", tmp_path), tmp_path / "tries"

    def fail_at_third(block: object) -> int:
        if block.start == blocks[2].start:
            with tries.open("a") as file:
                file.write("x")
            raise ValueError("bad luck")
        return block.start

    source = dataclasses.replace(job.make_sources(job.find_inputs([str(corpus)]), ReadOptions())[0], block_bytes=10_000)
    blocks = list(source.iter_blocks())
    found = []
    with connect(address, find_needs("tiktoken", [source])) as cluster, pytest.raises(WorkerError) as caught:
        for block, start in cluster.map_blocks(fail_at_third, blocks, Window(lambda: 9, 1 << 30), lambda: None):
            assert start == block.start
            found.append(block)
    assert found == blocks[:2]
    assert caught.value.block == blocks[2]
    assert str(caught.value.__cause__) == "bad luck"
    assert tries.read_text() == "xxx"


def test_a_block_that_kills_its_workers(dask: Dask, tmp_path: Path, monkeypatch) -> None:
    """Dask gives up on it (here at once), and the message names the place."""
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES", "0")
    corpus = write_corpus("txt", tmp_path)
    sources = job.make_sources(job.find_inputs([str(corpus)]), ReadOptions())
    address = dask.start_scheduler()
    dask.start_worker()
    blocks = list(sources[0].iter_blocks())

    def die(block: object) -> None:
        os._exit(1)

    with connect(address, find_needs("tiktoken", sources)) as cluster, pytest.raises(WorkerError) as caught:
        list(cluster.map_blocks(die, blocks, Window(lambda: 9, 1 << 30), lambda: None))
    assert str(caught.value.__cause__).startswith(f"{corpus}, from 0: each worker that took this was lost")


@pytest.fixture(scope="module")
def eight_threads(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster of two workers with four threads each."""
    distributed = pytest.importorskip("distributed")
    with running(tmp_path_factory.mktemp("dask")) as found:
        address = found.start_scheduler()
        for _ in range(2):
            found.start_worker(n_threads=4)
        with distributed.Client(address, set_as_default=False) as client:
            client.wait_for_workers(2)
        yield address


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_workers_share_the_connections(eight_threads: str, tmp_path: Path, form: str) -> None:
    """Workers read what is at a URL, and share the connections that were asked for."""
    pytest.importorskip("urllib3")
    corpus = write_corpus(form, tmp_path)
    prepare_on("", corpus, tmp_path / "here")
    (tmp_path / "served").mkdir()
    shutil.move(corpus, tmp_path / "served" / corpus.name)
    with HubServer(tmp_path / "served") as server:
        server.cdn_latency = 0.02  # so that several threads wait at the same time
        prepare_on(eight_threads, f"{server.url}/files/{corpus.name}", tmp_path / "there", connections=2)
        assert server.n_connections <= 2 + 2 * 1, "here, and one for each worker"
        assert len(server.log) > 20
    assert outputs(tmp_path / "there") == outputs(tmp_path / "here")


# Workers that lack something: one message each, before anything is written.


def complaint(address: str, corpus: Path, engine: str = "tiktoken") -> str:
    sources = job.make_sources(job.find_inputs([str(corpus)]), ReadOptions())
    with pytest.raises(InputError) as caught, connect(address, find_needs(engine, sources)):
        pass
    return str(caught.value)


def test_workers_that_cannot_see_the_input(bare: Dask, tmp_path: Path) -> None:
    """In a mount namespace of their own the folder is empty."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("this needs root: unshare -m")
    (tmp_path / "data").mkdir()
    corpus = write_corpus("txt", tmp_path / "data")
    hide = f'mount -t tmpfs none {tmp_path / "data"} && exec "$@"'
    bare.start_worker(where=("unshare", "-m", "sh", "-c", hide, "sh"))
    said = complaint(bare.address, corpus)
    assert said.startswith("worker tcp://127.0.0.1:")
    assert f"cannot see {corpus}: No such file or directory\n" in said
    assert f"type there: ls -l {corpus}" in said


def test_workers_without_an_extra(bare: Dask, tmp_path: Path) -> None:
    """The package and the command that brings it are named."""
    pytest.importorskip("gigatoken")
    blocker = tmp_path / "blocker"
    blocker.mkdir()
    (blocker / "sitecustomize.py").write_text(
        "import importlib.util\nreal = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name == 'gigatoken' else real(name, *a)\n"
    )
    (blocker / "fineweb_stream").symlink_to(ROOT / "fineweb_stream")
    bare.start_worker(path=blocker)
    said = complaint(bare.address, write_corpus("txt", tmp_path), "gigatoken")
    assert "gigatoken is not installed\n" in said
    assert "type there: pip install gigatoken" in said


@pytest.mark.parametrize("version", ["9.9.9", None])
def test_workers_with_another_version_or_none(bare: Dask, tmp_path: Path, version: str | None) -> None:
    """Both versions and the command are named: another version could give other ids."""
    from fineweb_stream import __version__

    other = tmp_path / "other"
    other.mkdir()
    if version:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "fineweb_stream", other / "fineweb_stream", ignore=ignore)
        module = other / "fineweb_stream" / "support" / "version.py"
        module.write_text(module.read_text().replace(f'"{__version__}"', f'"{version}"'))
    else:
        (other / "fineweb_stream.py").write_text("raise ModuleNotFoundError(\"No module named 'fineweb_stream'\")\n")
    bare.start_worker(path=other)
    said = complaint(bare.address, write_corpus("txt", tmp_path))
    assert (f"has fineweb_stream {version}, here" if version else "No module named 'fineweb_stream'") in said
    assert f"install fineweb_stream {__version__} there" in said


def test_a_late_worker_is_looked_at_too() -> None:
    """A task looks before it encodes, whenever its worker joined."""
    from fineweb_stream.cluster.client import Group, GroupError

    worker = mock.Mock(address="tcp://late:1")
    with mock.patch("distributed.get_worker", return_value=worker), pytest.raises(GroupError) as caught:
        encode_blocks(Group([], 0), None, Needs("0.0.0", (), "", 0), "/")
    assert str(caught.value.error).startswith("worker tcp://late:1: has fineweb_stream")


def test_what_is_missing(tmp_path: Path) -> None:
    """A file of another size is another file."""
    from fineweb_stream import __version__

    (tmp_path / "c.txt").write_text("four")
    assert find_missing(Needs(__version__, ("numpy",), str(tmp_path / "c.txt"), 4)) is None
    assert "has 4 bytes there, 5 here" in find_missing(Needs(__version__, (), str(tmp_path / "c.txt"), 5))[0]
    assert find_missing(Needs(__version__, (), "", 0)) is None
    assert "no_such is not installed" in find_missing(Needs(__version__, ("no_such",), "", 0))[0]
    assert "cannot see" in find_missing(Needs(__version__, (), str(tmp_path / "gone"), 5))[0]


def test_no_scheduler_and_no_worker(bare: Dask, caplog: pytest.LogCaptureFixture) -> None:
    """Each is reported with the address within the time given; a missing Dask, with the command that installs it."""
    needs = Needs("", (), "", 0)
    for address in ("tcp://127.0.0.1:9", "nonesuch.invalid:8786"):
        with (
            pytest.raises(InputError, match=f"no scheduler answers at {address}"),
            connect(address, needs, connect_seconds=1),
        ):
            pass
    address = bare.address
    caplog.set_level(logging.INFO, "fineweb_stream")
    with pytest.raises(InputError, match="no worker came within 1 s"), connect(address, needs, wait_seconds=1):
        pass
    assert caplog.messages == [f"{address}: no worker yet; waiting up to 1 s for one (dask worker {address})"]
    with mock.patch.dict(sys.modules, {"distributed": None}), pytest.raises(InputError, match="pip install"):
        connect(address, needs).__enter__()


@pytest.mark.parametrize("address", ["", "host", "tcp://", "http://127.0.0.1:8786", "tcp://127.0.0.1:x"])
def test_no_address(address: str, tmp_path: Path, run_program) -> None:
    """Two lines at once, and no output of Dask's own."""
    (tmp_path / "c.txt").write_text("some words. " * 100)
    options = {} if address else {"timeout": 60}  # one as a process, which may say something when it ends
    done = run_program("c.txt", "--cluster", address, **options)
    assert done.returncode == 2
    first, hint = done.stderr.splitlines()
    assert first.startswith(f"prepare: {address!r} is no scheduler's address: ")
    assert hint == "  as in --cluster tcp://host:8786"


# Three hosts: network namespaces on one bridge, whose links are slow and lose packets.


@pytest.fixture
def hosts() -> Iterator[list[tuple[str, tuple[str, ...]]]]:
    """(address, command prefix) of three hosts; the first address is this machine's."""
    if not (shutil.which("ip") and shutil.which("tc")):
        pytest.skip("ip and tc are not installed: apt-get install iproute2")
    tag = f"fw{os.getpid() % 10000}"
    undo = [f"ip link del {tag}"]
    try:
        _sh(f"ip link add {tag} type bridge && ip addr add 10.231.77.1/24 dev {tag} && ip link set {tag} up")
        found: list[tuple[str, tuple[str, ...]]] = [("10.231.77.1", ())]
        for i in (2, 3, 4):
            name = f"{tag}n{i}"
            undo.insert(0, f"ip netns del {name}")
            _sh(f"ip netns add {name} && ip link add {name} type veth peer name eth0 netns {name}")
            _sh(f"ip link set {name} master {tag} up && ip -n {name} addr add 10.231.77.{i}/24 dev eth0")
            _sh(f"ip -n {name} link set eth0 up && ip -n {name} link set lo up")
            for side in (f"tc qdisc add dev {name}", f"ip netns exec {name} tc qdisc add dev eth0"):
                _make_slow(side)
            found.append((f"10.231.77.{i}", ("ip", "netns", "exec", name)))
        yield found
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces with netem here: {error.stderr.strip()}")
    finally:
        for command in undo:
            subprocess.run(command, shell=True, capture_output=True)


def _make_slow(side: str) -> None:
    """20 ms, 1% loss, 50 Mbit/s; where the kernel has no netem, 1 Mbit/s and a queue so short that it drops."""
    with contextlib.suppress(subprocess.CalledProcessError):
        _sh(f"{side} root netem delay 20ms 5ms loss 1% rate 50mbit")
        return
    _sh(f"{side} root tbf rate 1mbit burst 3kb limit 6kb")


def _sh(command: str) -> str:
    return subprocess.run(command, shell=True, check=True, capture_output=True, text=True).stdout


def test_three_hosts_with_a_lossy_slow_link(dask: Dask, hosts, tmp_path: Path) -> None:
    """Links that delay or throttle, and drop packets: the run finishes with the same bytes."""
    corpus = write_corpus("parquet", tmp_path)
    address = dask.start_scheduler(hosts[0][0])
    for host, where in hosts[1:]:
        dask.start_worker(host, where)
    prepare_on(address, corpus, tmp_path / "out")
    said = "".join(_sh(f"{' '.join(where)} tc -s qdisc show dev eth0") for _, where in hosts[1:])
    assert sum(map(int, re.findall(r"dropped (\d+)", said))) > 0, "no packet was lost"
    assert outputs(tmp_path / "out") == local_bytes(corpus, tmp_path)


def test_the_scaling_page_can_be_measured_again(tmp_path: Path) -> None:
    """Each command of docs/scaling.md runs, here with one worker on a little text."""
    pytest.importorskip("distributed")
    page = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    commands = re.findall(r"^\| `((?:writer|arrays|encode)\b[^`]*)`", page, re.MULTILINE)
    assert len(commands) == 4
    little = {r"--mb \d+": "--mb 4", r"--workers [\d ]+": "--workers 1 ", r"--corpus \S+": "--corpus c.jsonl"}
    write_jsonl(tmp_path / "c.jsonl", ["some words and more"] * 4000)
    for command in commands:
        for pattern, argument in little.items():
            command = re.sub(pattern, argument, command)
        typed = [sys.executable, ROOT / "tests" / "bench" / "cluster.py", *command.split(), "--engine", "tiktoken"]
        done = subprocess.run(typed, capture_output=True, text=True, cwd=tmp_path, timeout=100)
        assert done.returncode == 0 and "M tokens/s" in done.stdout, done.stderr
