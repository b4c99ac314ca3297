"""Whole runs over inputs at URLs: the bytes of a local run, whatever the network does."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fineweb_stream import estimate, iter_ids, prepare
from fineweb_stream.remote.hub import login_command
from fineweb_stream.remote.network import Fetcher, Timeouts
from fineweb_stream.support.errors import InputError, Interrupted, PrepareError

from .conftest import ROOT
from .helpers import outputs, write_jsonl, write_parquet
from .hub_server import NO_TOKEN, Fault, HubServer, Request, rate_limited
from .test_compressed import SUFFIXES, pack

pytest.importorskip("pyarrow")
DOCS = [f"Document {i} says it's {'more ' * (i % 200)}text of 漢字." for i in range(6000)]
NAME = "hf://datasets/o/n/sample/10BT"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dataset")
    for i in range(3):
        write_parquet(folder / f"{i:03}.parquet", DOCS[i * 2000 : (i + 1) * 2000], row_group_size=250)
    return folder


@pytest.fixture(scope="module")
def expected(dataset, tmp_path_factory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("expected")
    prepare(dataset, folder, quiet=True)
    return outputs(folder)


@pytest.fixture
def hub_folder(dataset, tmp_path) -> Path:
    shutil.copytree(dataset, tmp_path / "hub" / "o" / "n" / "sample" / "10BT")
    return tmp_path / "hub"


@pytest.fixture
def server(hub_folder, monkeypatch):
    monkeypatch.setattr(Fetcher, "timeouts", Timeouts(first_wait=0.01, operation=2.0))
    with HubServer(hub_folder) as server:
        server.commit("o/n")
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def test_hub_gives_the_bytes_of_a_local_run(server, expected, tmp_path) -> None:
    """Parquet of several files and row groups on the Hub: the same bytes, nothing written but the outputs."""
    prepare(NAME, tmp_path / "out", quiet=True)
    assert outputs(tmp_path / "out") == expected
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"train.bin", "val.bin", "prepare.json"}


FAULTS = {
    "cut": Fault(cut=5000),
    "503": Fault(status=503),
    "429": rate_limited(0),
    "hang-up": Fault(cut=-1),
    "stall": Fault(stall=60),
    "stall in the middle": Fault(stall=60, cut=5000),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_bad_network(server, expected, tmp_path, monkeypatch, fault: Fault) -> None:
    """Every third read fails: the same bytes."""
    if fault.stall:
        monkeypatch.setattr(Fetcher, "timeouts", Timeouts(first_wait=0.01, operation=0.3))
    n_reads = 0

    def faults(request: Request) -> Fault | None:
        nonlocal n_reads
        n_reads += "/resolve/" in request.path
        return fault if n_reads % 3 == 0 and "/resolve/" in request.path else None

    server.faults = faults
    prepare(NAME, tmp_path / "out", quiet=True)
    assert outputs(tmp_path / "out") == expected


def test_a_hundred_cuts(server, expected, tmp_path) -> None:
    """The first hundred answers with content end early, at random places: the same bytes."""
    rng = random.Random(4)
    cuts = [Fault(cut=rng.randrange(1, 1500)) for _ in range(100)]
    server.faults = lambda request: cuts.pop() if cuts and "/resolve/" in request.path else None
    prepare(NAME, tmp_path / "out", quiet=True)
    assert not cuts
    assert outputs(tmp_path / "out") == expected


def test_formats_by_http(server, hub_folder, tmp_path) -> None:
    """The same documents as jsonl, separated text and parquet, also compressed in several members: the same bytes."""
    plain = write_jsonl(tmp_path / "c.jsonl", DOCS)
    prepare(plain, tmp_path / "expected2", quiet=True)
    (hub_folder / "c.jsonl").write_bytes(plain.read_bytes())
    (hub_folder / "c.txt").write_bytes("<SEP>".join(DOCS).encode())
    write_parquet(hub_folder / "c.parquet", DOCS)
    names = ["c.jsonl", "c.txt", "c.parquet"]
    for name in ("c.jsonl", "c.txt"):
        for suffix in SUFFIXES:
            (hub_folder / (name + suffix)).write_bytes(pack((hub_folder / name).read_bytes(), suffix))
            names.append(name + suffix)
    for name in names:
        options = {"separator": "<SEP>"} if ".txt" in name else {}
        prepare(f"{server.url}/files/{name}", tmp_path / f"out-{name}", quiet=True, **options)
        assert outputs(tmp_path / f"out-{name}") == outputs(tmp_path / "expected2"), name


@pytest.mark.parametrize("name", [NAME, "http://HOST/files/c.jsonl"])
def test_dry_run_measures_the_network(server, hub_folder, capsys, tmp_path, name: str) -> None:
    """A dry run says how much is to be fetched (of parquet only the text) and how fast; it fetches little."""
    write_jsonl(hub_folder / "c.jsonl", DOCS)
    prepare(name.replace("http://HOST", server.url), tmp_path / "out", dry_run=True, connections=2)
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("network: "))
    assert re.fullmatch(r"network: [\d.]+ [kM]B to fetch, at about [\d,]+ MB/s; time: about .*", line)
    found = estimate(name.replace("http://HOST", server.url), tmp_path / "out", connections=2)
    assert 0 < found.network_bytes <= found.input_bytes and found.documents == pytest.approx(len(DOCS), rel=0.2)
    assert not (tmp_path / "out").exists()


def test_a_tiny_first_file_is_no_measure_of_the_network(server, hub_folder, tmp_path) -> None:
    """The speed of the network is measured by a file that is large enough, wherever it is among the others."""
    write_jsonl(hub_folder / "a.jsonl", DOCS[:1])
    write_jsonl(hub_folder / "b.jsonl", DOCS)
    names = [f"{server.url}/files/{name}" for name in ("a.jsonl", "b.jsonl")]
    assert estimate(names, tmp_path / "out").seconds < 60


@pytest.mark.parametrize("n_connections", [1, 16])
def test_iter_ids_over_a_network(server, n_connections: int) -> None:
    """With one connection or many, the ids are those of a local run, in order."""
    here = [ids.tolist() for ids in iter_ids(server.folder / "o" / "n" / "sample" / "10BT")]
    assert [ids.tolist() for ids in iter_ids(NAME, connections=n_connections)] == here


def test_what_is_cut_again_is_read_again(server, tmp_path) -> None:
    """Parquet whose repeats are more text than announced is read again, even if everything was fetched."""
    path = write_parquet(server.folder / "r.parquet", ["word and other " * 60_000] * 15, row_group_size=15)
    here = [ids.tolist() for ids in iter_ids(path)]
    assert len(here) > 5
    assert [ids.tolist() for ids in iter_ids(f"{server.url}/files/r.parquet")] == here
    prepare(path, tmp_path / "here", quiet=True)
    prepare(f"{server.url}/files/r.parquet", tmp_path / "there", quiet=True)
    assert outputs(tmp_path / "there") == outputs(tmp_path / "here")


def is_of_blocks(request: Request) -> bool:
    """Tell whether a parquet file's text is requested for the run, and not for a sample, which is a row group."""
    return bool(request.start) and request.stop - request.start > 5000


def test_resume_reads_the_recorded_commit(server, hub_folder, expected, tmp_path) -> None:
    """A dataset changes while a run is stopped: the run continues with the commit it began with."""
    is_sent = threading.Event()

    def faults(request: Request) -> Fault | None:
        if not request.path.endswith("002.parquet") or not is_of_blocks(request):
            return None  # what comes before it is encoded meanwhile
        written = (tmp_path / "out").glob("train.bin*.part")
        if not any(part.stat().st_size for part in written):
            return Fault(status=503)
        if not is_sent.is_set():
            is_sent.set()
            os.kill(os.getpid(), signal.SIGTERM)
        return Fault(stall=60)

    server.faults = faults
    start = time.monotonic()
    with pytest.raises(Interrupted, match="the same command continues"):
        prepare(NAME, tmp_path / "out", quiet=True, workers=1)
    assert time.monotonic() - start < 20, "reads hang, and nobody waits for them"
    server.faults = []
    write_parquet(hub_folder / "o" / "n" / "sample" / "10BT" / "000.parquet", ["another text"] * 9)
    server.commit("o/n")
    prepare(NAME, tmp_path / "out", quiet=True)
    assert outputs(tmp_path / "out") == expected


@pytest.mark.parametrize("name", [NAME, "http://HOST/files/c.jsonl"])
def test_a_finished_run_asks_no_server(server, hub_folder, run_program, tmp_path, name: str) -> None:
    """It says so, as files there may be others by now, and what reads those; of local files it says nothing."""
    write_jsonl(hub_folder / "c.jsonl", DOCS)
    name = name.replace("http://HOST", server.url)
    run_program(name, "--out", "out")
    before = outputs(tmp_path / "out")
    write_jsonl(hub_folder / "c.jsonl", ["another text"] * 9999)
    write_parquet(hub_folder / "o" / "n" / "sample" / "10BT" / "000.parquet", ["another text"] * 9)
    server.commit("o/n")
    server.log.clear()
    for options in ((), ("--dry-run",)):
        done = run_program(name, "--out", "out", *options)
        assert "already done" in done.stdout and "no server was asked" in done.stdout, done.stderr
        assert "if they have: --overwrite" in done.stdout and outputs(tmp_path / "out") == before
    assert not server.log
    done = run_program(name, "--out", "out", "--overwrite")
    assert done.returncode == 0 and outputs(tmp_path / "out") != before, done.stderr
    write_jsonl(tmp_path / "c.jsonl", DOCS)
    for said in ("train on it", "already done"):
        done = run_program("c.jsonl", "--out", "local")
        assert said in done.stdout and "no server" not in done.stdout


@pytest.mark.parametrize(
    ("name", "fault", "hint"),
    [
        ("hf://datasets/o/n/absent", None, "no such file"),
        ("hf://datasets/o/none", None, f"check the name; log in: {login_command()}, or set HF_TOKEN"),
        (NAME, NO_TOKEN, "set HF_TOKEN"),
        ("http://HOST/files/absent.txt", None, "check the name"),
    ],
)
def test_refusals_are_soon(server, run_program, tmp_path, name: str, fault: Fault | None, hint: str) -> None:
    """A name that does not exist or needs a login: exit status 2 within 5 seconds, with advice, and nothing written."""
    server.faults = lambda request: fault
    start = time.monotonic()
    done = run_program(name.replace("http://HOST", server.url), env={"HF_TOKEN": ""})
    assert time.monotonic() - start < 5
    assert done.returncode == 2
    assert hint in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_no_input_and_no_network(tmp_path) -> None:
    """No input beside the script and no network: one message within seconds, which names the ways to go on."""
    shutil.copytree(ROOT / "fineweb_stream", tmp_path / "fineweb_stream")
    shutil.copy(ROOT / "prepare.py", tmp_path)
    env = os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9"}
    command = [sys.executable, tmp_path / "prepare.py"]
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60)
    assert time.monotonic() - start < 10
    assert done.returncode == 1, done.stderr
    assert "using fineweb-edu:sample-10BT" in done.stdout
    for way in ("name files or folders", "train_fineweb.txt", "--demo"):
        assert way in done.stderr
    assert not (tmp_path / "train.bin").exists()


def test_giving_up_saves_the_work(server, monkeypatch, tmp_path, expected) -> None:
    """A network that stays away: the run saves and names the host, and the same command continues later."""
    monkeypatch.setattr(Fetcher, "timeouts", Timeouts(first_wait=0.01, progress=0.5))

    def faults(request: Request) -> Fault | None:
        return Fault(status=503) if request.path.endswith("002.parquet") and is_of_blocks(request) else None

    server.faults = faults
    with pytest.raises(PrepareError, match="503") as caught:
        prepare(NAME, tmp_path / "out", quiet=True, workers=1)
    assert caught.value.exit_status == 1
    assert "the same command continues" in str(caught.value)
    server.faults = []
    prepare(NAME, tmp_path / "out", quiet=True)
    assert outputs(tmp_path / "out") == expected


@pytest.mark.slow
def test_leaving_at_max_tokens_is_clean(server, hub_folder, tmp_path) -> None:
    """Twenty runs on a large source, each to a higher limit: exact, exit 0 soon, and no request goes on.

    In every other run, a process, the server stops answering behind what is needed: reads are under way at the end.
    """
    path = write_jsonl(hub_folder / "o" / "n" / "large.jsonl", DOCS * 12)
    local = prepare(path, tmp_path / "local", quiet=True)
    step_bytes = 100_000 * path.stat().st_size // local.train_tokens
    server.commit("o/n")
    name, out = "hf://datasets/o/n/large.jsonl", tmp_path / "out"
    command = [sys.executable, ROOT / "prepare.py", name, "--out", out, "--engine", "tiktoken"]  # it is ready sooner
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    seconds, n_silent = [], 0
    for i in range(1, 21):

        def faults(request: Request, needed: int = i * step_bytes + (6 << 20)) -> Fault | None:
            nonlocal n_silent
            start = request.start or 0
            is_silent = start > needed and request.stop - start > 200_000  # not a sample
            n_silent += is_silent
            return Fault(stall=60) if is_silent else None

        server.faults = faults if i % 2 else []
        if i % 2:
            with subprocess.Popen([*command, "--max-tokens", str(i * 100_000)], **pipes) as program:
                killer = threading.Timer(60, program.kill)
                killer.start()
                *_, line = program.stdout
                start = time.monotonic()
                assert program.wait(30) == 0, program.stderr.read()
                killer.cancel()
                seconds.append(time.monotonic() - start)
            assert line.startswith("train on it")
        else:
            prepare(name, out, max_tokens=i * 100_000, quiet=True)
        assert (out / "train.bin").stat().st_size == 2 * i * 100_000
    assert n_silent >= 10 and max(seconds) < 5, (n_silent, seconds)
    assert (out / "train.bin").read_bytes() == (tmp_path / "local" / "train.bin").read_bytes()[:4_000_000]


def test_a_bad_record_is_named(server, hub_folder, run_program, tmp_path) -> None:
    """A line that is not JSON in a file at a URL: exit status 2 with its number; what came before is saved."""
    lines = write_jsonl(tmp_path / "c.jsonl", DOCS).read_bytes().splitlines(keepends=True)
    (hub_folder / "c.jsonl").write_bytes(b"".join([*lines[:5000], b"{broken\n", *lines[5000:]]))
    done = run_program(f"{server.url}/files/c.jsonl")
    assert done.returncode == 2, done.stderr
    assert "line 5,001" in done.stderr and "are saved: with such an option, the same command continues" in done.stderr


@pytest.mark.parametrize("name", ["c.jsonl", "c.parquet", "c.jsonl.gz"])
def test_secrets_of_an_address_stay_secret(server, hub_folder, capsys, tmp_path, name: str) -> None:
    """No record, log, list of changes or message has a URL's signature; a new signature continues the run."""
    docs = [*DOCS, "the last"]
    lines = write_jsonl(tmp_path / "c.jsonl", docs).read_bytes()
    if name.endswith("parquet"):
        write_parquet(hub_folder / name, [*docs[:5000], None, *docs[5001:]])
    else:
        broken = lines.replace(b'{"id": 5000, ', b"{")
        data = broken.replace(b'"text": "Document 5000 ', b'"txt": "Document 5000 ')
        (hub_folder / name).write_bytes(pack(data, ".gz") if name.endswith("gz") else data)

    def faults(request: Request) -> Fault | None:
        return None if request.query.get("token") in ("S3CRET", "S3CRET-too") else Fault(status=403)

    server.faults = faults
    url = f"{server.url}/files/{name}?X-Amz-Signature=S3CRET-1&part=S3CRET-2&token=S3CRET"
    renewed = url.replace("token=S3CRET", "token=S3CRET-too").replace("S3CRET-1", "S3CRET-4")
    said = []

    def run(url: str, **options: object) -> str:
        try:
            prepare(url, tmp_path / "out", **options)
        except InputError as error:
            said.append(str(error))
        said.append(capsys.readouterr().out)
        return "".join(said[-2:])

    assert "signature has expired" in run(url.replace("token=S3CRET", "token=S3CRET-old"))
    assert "5,001" in run(url) and "are saved" in said[-2]
    assert "--seed was 0" in run(url, seed=1)
    assert "are saved" in run(url)
    assert "is no longer an input" in run(url.replace("S3CRET-2", "S3CRET-3"), skip_bad=True)
    assert "resuming at" in run(renewed, skip_bad=True) and "train on it" in said[-1]
    assert "already done" in run(url, skip_bad=True)
    left = [path.read_bytes() for path in (tmp_path / "out").iterdir()]
    assert (tmp_path / "out" / "prepare.changes.jsonl").exists()
    assert not any(b"S3CRET" in data for data in left)
    assert not any("S3CRET" in text for text in said)


def test_secrets_are_not_in_the_log_of_an_error(server, hub_folder, monkeypatch, tmp_path) -> None:
    """An unexpected error is logged without secrets."""
    write_jsonl(hub_folder / "c.jsonl", DOCS)

    def fail(url: str, *_: object) -> bytes:
        raise RuntimeError(f"odd: {url}")

    monkeypatch.setattr("fineweb_stream.inputs.jsonl.read_block", lambda block: fail(block.source.input.path))
    monkeypatch.setattr("fineweb_stream.pipeline.samples.sample", lambda *_: None)
    with pytest.raises(PrepareError, match="RuntimeError: odd") as caught:
        prepare(f"{server.url}/files/c.jsonl?sig=S3CRET", tmp_path / "out", quiet=True)
    log = (tmp_path / "out" / "prepare.log").read_text()
    assert "odd: http" in log and "S3CRET" not in log + str(caught.value)
