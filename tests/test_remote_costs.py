"""What a run over a network may cost: bytes fetched twice after a kill, disk space, memory, time to exit."""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from fineweb_stream import prepare
from fineweb_stream.inputs.discover import find_inputs
from fineweb_stream.inputs.parquet import MAX_GAP_BYTES
from fineweb_stream.inputs.sources import N_REMOTE_SAMPLES, make_sources
from fineweb_stream.pipeline import fetch, worker
from fineweb_stream.remote.network import Fetcher, Network
from fineweb_stream.support.errors import InputError
from fineweb_stream.support.model import ReadOptions

from .conftest import ROOT
from .helpers import outputs, write_jsonl, write_parquet
from .hub_server import Fault, HubServer, Request

pq = pytest.importorskip("pyarrow.parquet")

NAME = "hf://datasets/o/n/data"
N_FILES, N_GROUPS, GROUP_ROWS = 3, 8, 300
HANGS = Fault(stall=600)

# Runs prepare.py and notes what its Python code writes, and the most that the outputs' folder held at any of its calls
# that change files: each is reported before it is made, so what a removal or a rename ends is seen at its largest.
WATCHED = """
import json, os, runpy, sys
report, folder, sys.argv = sys.argv[1], sys.argv[2], sys.argv[3:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
peak, written = 0, set()

def watch(event, args):
    global peak
    if event in ("os.remove", "os.rmdir") and args[1] != -1:
        return  # below a folder that is open: what was written there was reported
    is_write = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if is_write or event in ("os.mkdir", "os.rename", "os.link", "os.symlink", "os.remove"):
        written.update(os.path.abspath(os.fsdecode(name)) for name in args[:2] if isinstance(name, (str, bytes)))
        if is_write and not isinstance(args[0], int):
            written.discard(os.path.abspath(args[1] or "."))  # of an open, the second is the mode
        if os.path.isdir(folder):
            peak = max(peak, sum(entry.stat().st_size for entry in os.scandir(folder)))

sys.addaudithook(watch)
os._exit = sys.exit  # else the process ends before the report is written
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    with open(report, "w") as file:
        json.dump([peak, sorted(written)], file)
"""


@pytest.fixture(scope="module")
def hub_folder(tmp_path_factory) -> Path:
    """A dataset of several files of several row groups; each is a block, and too far from the next for one request."""
    folder = tmp_path_factory.mktemp("hub")
    rng = random.Random(7)
    words = [rng.randbytes(rng.randint(1, 5)).hex() for _ in range(5000)]
    (folder / "o" / "n" / "data").mkdir(parents=True)
    for i in range(N_FILES):
        docs = [" ".join(rng.choices(words, k=350)) for _ in range(N_GROUPS * GROUP_ROWS)]
        ids = [rng.randbytes(MAX_GAP_BYTES // GROUP_ROWS + 50) for _ in docs]
        write_parquet(folder / "o" / "n" / "data" / f"{i}.parquet", docs, GROUP_ROWS, ids=ids)
    return folder


@pytest.fixture(scope="module")
def expected(hub_folder, tmp_path_factory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("expected")
    prepare(hub_folder / "o" / "n" / "data", folder, quiet=True)
    return outputs(folder)


@pytest.fixture
def server(hub_folder):
    with HubServer(hub_folder) as server:
        server.commit("o/n")
        yield server


@pytest.fixture
def clean_env(tmp_path, server) -> dict[str, str]:
    """An environment whose folders for caches and temporary files are empty ones."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "XDG_"))}
    names = ("HOME", "HF_HOME", "TMPDIR", "TEMP", "TMP", "XDG_CACHE_HOME", "LOCALAPPDATA", "USERPROFILE", "cwd")
    for name in names:
        (tmp_path / "watched" / name).mkdir(parents=True)
        env[name] = str(tmp_path / "watched" / name)
    return env | {"HF_ENDPOINT": server.url, "PYTHONDONTWRITEBYTECODE": "1"}


def text_chunks(folder: Path) -> dict[tuple[str, int], int]:
    """Where each row group's text begins, in which file, and how many bytes that is."""
    found = {}
    for path in sorted((folder / "o" / "n" / "data").iterdir()):
        metadata = pq.read_metadata(path)
        for i in range(metadata.num_row_groups):
            chunk = metadata.row_group(i).column(1)
            found[path.name, chunk.dictionary_page_offset or chunk.data_page_offset] = chunk.total_compressed_size
    return found


def is_text(request: Request, chunks: dict[tuple[str, int], int]) -> bool:
    """Tell whether a request is for a row group's text."""
    return place_of(request) in chunks


def place_of(request: Request) -> tuple[str, int]:
    """Return a request's file and the first byte."""
    return request.path.rpartition("/")[2], request.start or 0


def chunks_sent(log: list[Request], chunks: dict[tuple[str, int], int]) -> Counter[tuple[str, int]]:
    """How often each row group's text was sent."""
    sent = [request for request in log if is_text(request, chunks) and request.n_bytes]
    return Counter(map(place_of, sent))


def test_a_kill_costs_one_row_group(hub_folder, server, expected, clean_env, tmp_path) -> None:
    """SIGKILL when nine tenths were fetched and eight saved: only what was not saved is read again."""
    chunks = text_chunks(hub_folder)
    n_samples = N_REMOTE_SAMPLES // N_FILES * N_FILES  # of the estimate that is made before each run
    n_left = n_samples + int(0.9 * len(chunks))
    is_held = threading.Event()

    def hold(request: Request) -> Fault | None:
        nonlocal n_left
        n_left -= is_text(request, chunks)
        if n_left >= 0:
            return None
        is_held.set()
        return HANGS

    server.faults = hold
    n_tokens = sum(len(data) for data in expected.values()) // 2
    shard = str(n_tokens // len(chunks))  # as large as a row group: what is done is saved soon
    command = [sys.executable, ROOT / "prepare.py", NAME, "--out", tmp_path / "out", "--workers", "1"]
    command += ["--shard-tokens", shard, "--connections", "1"]  # so that what is fetched first is needed first
    with subprocess.Popen(command, env=clean_env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as run:
        assert is_held.wait(60)
        deadline = time.monotonic() + 30
        while len(list((tmp_path / "out").glob("train_shard_*"))) < 0.8 * len(chunks) and time.monotonic() < deadline:
            time.sleep(0.05)  # what has come is encoded and saved
        assert run.poll() is None
        run.kill()
    before, server.faults = chunks_sent(server.log, chunks), []
    server.log.clear()
    done = subprocess.run(command, env=clean_env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "resuming at" in done.stdout
    after = chunks_sent(server.log, chunks)
    again = [place for place in after if place in before]
    assert set(before) | set(after) == set(chunks)
    assert len(again) <= n_samples + 0.1 * len(chunks) + 1, again
    assert after.total() <= 0.2 * len(chunks) + n_samples + 1
    assert outputs(tmp_path / "out") == expected


def test_disk_holds_outputs_and_one_shard(server, expected, clean_env, tmp_path) -> None:
    """No cache and no copy: the disk never holds more than the outputs and a shard, and only in --out."""
    out, shard_tokens = tmp_path / "out", 300_000
    command = [sys.executable, "-c", WATCHED, tmp_path / "report", out, ROOT / "prepare.py", NAME]
    command += ["--out", out, "--shard-tokens", str(shard_tokens)]
    options = {"env": clean_env, "capture_output": True, "text": True, "timeout": 100}
    done = subprocess.run(command, cwd=tmp_path / "watched" / "cwd", **options)
    assert done.returncode == 0, done.stderr
    peak, written = json.loads((tmp_path / "report").read_text())
    assert outputs(out) == expected
    n_output_bytes = sum(map(len, expected.values()))
    assert n_output_bytes > 10 * 2 * shard_tokens
    assert n_output_bytes <= peak <= n_output_bytes + 2 * shard_tokens + 100_000, "100 kB are for the record"
    watched = tmp_path / "watched"  # the engine's rank file is in TMPDIR for a moment; below, nothing is left there
    folders = {Path(name).parent for name in written if watched / "TMPDIR" not in Path(name).parents}
    assert folders <= {out, tmp_path, watched}, written
    assert [path for path in (tmp_path / "watched").rglob("*") if path.parent != tmp_path / "watched"] == []


def test_connections_are_used_again(server, expected, tmp_path, monkeypatch) -> None:
    """No more connections than asked for: they are used again."""
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    prepare(NAME, tmp_path / "out", workers=2, connections=3, quiet=True)
    assert outputs(tmp_path / "out") == expected
    assert len(server.log) > N_FILES * N_GROUPS
    assert server.n_connections <= 3


def test_the_engine_loads_while_the_hub_answers(server, expected, tmp_path, monkeypatch) -> None:
    """The first answer may wait for the engine: it does not begin to load only when the inputs are known."""
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setattr(worker, "_encoders", {})
    is_loaded: list[bool] = []

    def wait(request: Request) -> None:
        deadline = time.monotonic() + 30
        while not (is_loaded or worker._encoders) and time.monotonic() < deadline:
            time.sleep(0.01)
        is_loaded.append(bool(worker._encoders))

    server.faults = wait
    prepare(NAME, tmp_path / "out", quiet=True)
    assert is_loaded[0]
    assert outputs(tmp_path / "out") == expected


def test_no_engine_is_loaded_early_in_vain(tmp_path, monkeypatch) -> None:
    """A name that is refused before any request is refused at once."""
    monkeypatch.setattr(worker, "_encoders", {})
    with pytest.raises(InputError, match="which language"):
        prepare("fineweb-2:german", tmp_path / "out", quiet=True)
    assert not worker._encoders


def test_names_are_looked_at_together(tmp_path) -> None:
    """Many URLs cost the time of a few, in as many connections as there may be; the inputs are in the order named."""
    (tmp_path / "local.jsonl").write_text('{"text": "a"}\n')
    names = [f"{i}.jsonl" for i in (7, 2, 9, 4, 1, 3, 8, 5)]
    for name in names:
        (tmp_path / name).write_text('{"text": "a"}\n')
    together = threading.Barrier(4)

    def wait(request: Request) -> Fault:
        together.wait(20)
        return Fault()

    with HubServer(tmp_path) as server, Fetcher(4) as fetcher:
        server.next_fault = wait  # type: ignore[method-assign]  # without its lock
        urls = [f"{server.url}/files/{name}" for name in names]
        urls.insert(3, str(tmp_path / "local.jsonl"))
        found = find_inputs([*urls, urls[0]], None, Network(fetcher))
        assert [input.path for input in found] == [*urls, urls[0]]
        assert len(server.log) == 2 * len(names) and server.n_connections == 4


@pytest.mark.parametrize("kind", ["txt", "jsonl"])
def test_a_sample_of_text_is_one_request(kind: str, tmp_path) -> None:
    """Samples of a file at a URL cost a round trip, for all of them together; they are those of the file on disk."""
    lines = [json.dumps({"text": f"Document {i} of words."}) for i in range(50_000)]
    (tmp_path / f"c.{kind}").write_text("\n".join(lines))
    (local,) = make_sources(find_inputs([str(tmp_path / f"c.{kind}")], kind.replace("txt", "text")), ReadOptions())
    with HubServer(tmp_path) as server, Fetcher() as fetcher:
        found = find_inputs([f"{server.url}/files/c.{kind}"], kind.replace("txt", "text"), Network(fetcher))
        (remote,) = make_sources(found, ReadOptions(), network=Network(fetcher))
        server.log.clear()
        batches = [block.read() for block in remote.sample(4)]
        assert len(server.log) == len(batches) == 4
    assert [bytes(batch.data) for batch in batches] == [bytes(block.read().data) for block in local.sample(4)]


def test_row_groups_are_fetched_while_samples_are_taken(hub_folder, server, clean_env, tmp_path) -> None:
    """By those connections that samples leave free: the first row group is requested with the samples, not after."""
    chunks, asked = text_chunks(hub_folder), list[tuple[float, tuple[str, int]]]()

    def faults(request: Request) -> Fault | None:
        if not is_text(request, chunks):
            return None
        asked.append((time.monotonic(), place_of(request)))
        return Fault(stall=2)

    server.faults = faults
    command = [sys.executable, ROOT / "prepare.py", NAME, "--out", tmp_path / "out", "--max-tokens", "1000"]
    options = ["--connections", str(N_REMOTE_SAMPLES + 1)]
    subprocess.run([*command, *options], env=clean_env, check=True, timeout=100)
    times, places = zip(*asked[: N_FILES + 1], strict=True)
    assert times[-1] - times[0] < 1.5
    assert sorted(name for name, _ in places) == ["0.parquet", "0.parquet", "1.parquet", "2.parquet"]
    assert next(iter(chunks)) in places


def test_an_error_does_not_wait_for_other_names(tmp_path) -> None:
    """A URL that does not exist is refused at once, also while the server is silent about another."""
    with HubServer(tmp_path) as server, Fetcher() as fetcher:
        server.next_fault = lambda request: HANGS if "silent" in request.path else Fault()  # type: ignore[method-assign]
        start = time.monotonic()
        with pytest.raises(InputError, match="404"):
            find_inputs([f"{server.url}/files/{name}" for name in ("absent", "silent")], None, Network(fetcher))
        assert time.monotonic() - start < 5


def test_neighbours_share_a_request(clean_env, tmp_path) -> None:
    """Adjacent row groups are fetched by one request for each 4 MB, but the first alone; all is as from a disk."""
    folder, rng = tmp_path / "hub" / "o" / "n" / "data", random.Random(9)
    folder.mkdir(parents=True)
    docs = [rng.randbytes(1000).hex() for _ in range(10_000)]
    path = write_parquet(folder / "0.parquet", docs, 1000, compression="none", use_dictionary=False)
    prepare(path, tmp_path / "expected", quiet=True)
    with HubServer(tmp_path / "hub") as server:
        command = [sys.executable, ROOT / "prepare.py", NAME, "--out", tmp_path / "out", "--workers", "2"]
        env = clean_env | {"HF_ENDPOINT": server.url}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    chunk_bytes = pq.read_metadata(path).row_group(0).column(1).total_compressed_size
    large = [request.n_bytes for request in server.log if request.n_bytes > chunk_bytes]
    assert len(large) == 4 and max(large) <= 4 << 20, "two row groups of 2 MB each, but of the first two, one"
    assert outputs(tmp_path / "out") == outputs(tmp_path / "expected")


@pytest.mark.parametrize("n_runs", [1, 2])
def test_text_is_fetched_while_samples_are_taken(clean_env, tmp_path, n_runs: int) -> None:
    """No range is asked for twice; with --overwrite, too, samples are taken once, and the end costs no request."""
    text = "".join(f"{i} and then some words, " for i in range(700_000))
    (tmp_path / "c.txt").write_text(text)
    command = [sys.executable, ROOT / "prepare.py", "--overwrite", "--workers", "2", "--out", tmp_path / "out"]
    with HubServer(tmp_path) as server:
        server.latency = 0.1
        for _ in range(n_runs):
            server.log.clear()
            subprocess.run([*command, f"{server.url}/files/c.txt"], env=clean_env, check=True, timeout=100)
        asked = [(request.start or 0, request.stop or 0) for request in server.log]
    samples = [i for i, (start, stop) in enumerate(asked) if 100_000 < stop - start < 200_000]
    ranges = [i for i, (start, stop) in enumerate(asked) if stop - start > 200_000]
    assert len(samples) == N_REMOTE_SAMPLES and len({asked[i] for i in ranges}) == len(ranges) > 3
    assert len(asked) == 2 + len(samples) + len(ranges), "its size and version, its kind, samples, and the text"
    assert n_runs > 1 or ranges[0] < samples[-1]
    prepare(tmp_path / "c.txt", tmp_path / "local", quiet=True)
    assert outputs(tmp_path / "out") == outputs(tmp_path / "local")


def test_leaving_early_ends_what_is_shared(clean_env, tmp_path) -> None:
    """--max-tokens within the first block: the abandoned requests cause no message, and few were made."""
    folder = tmp_path / "hub" / "o" / "n" / "data"
    folder.mkdir(parents=True)
    docs = [f"{i} " * 5000 for i in range(2000)]
    path = write_parquet(folder / "0.parquet", docs, 50, compression="none", use_dictionary=False)
    with HubServer(tmp_path / "hub") as server:
        server.rate = 4e6
        command = [sys.executable, ROOT / "prepare.py", NAME, "--out", tmp_path / "out", "--connections", "2"]
        env = clean_env | {"HF_ENDPOINT": server.url}
        done = subprocess.run([*command, "--max-tokens", "9000"], env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0
    assert "Error" not in done.stderr and "Traceback" not in done.stderr
    assert sum(request.n_bytes for request in server.log) < path.stat().st_size / 2


def test_neighbours_count_what_is_between_them(tmp_path, monkeypatch) -> None:
    """Bytes of another column that are fetched along are counted; another process gets only a block's own bytes."""
    folder, rng = tmp_path / "hub" / "o" / "n" / "data", random.Random(10)
    folder.mkdir(parents=True)
    docs = [f"a text of {i} " * 4000 for i in range(80)]
    write_parquet(folder / "0.parquet", docs, 20, ids=[rng.randbytes(5000) for _ in docs], use_dictionary=False)
    with HubServer(tmp_path / "hub") as server, Fetcher() as fetcher:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        network = Network(fetcher)
        source = make_sources(find_inputs([NAME], None, network), ReadOptions(), network=network)[0]
        pieces = list(fetch._iter_fetched(source, source.iter_blocks(0)))
        blocks = [piece.complete(piece.begin().result(60)) for piece in pieces if piece.begin]
        fetched = [request.n_bytes for request in server.log if request.n_bytes > 100_000]
    assert len(blocks) == 4 and len(fetched) == 1, "the first two are fetched alone, without what is between them"
    assert sum(piece.n_bytes for piece in pieces[2:]) == fetched[0]
    for block in blocks[2:]:
        n_own = sum(stop - start for start, stop in block.data.ranges)
        assert n_own < fetched[0] / 3
        assert n_own <= len(pickle.dumps(block)) < n_own + 20_000


def test_leaving_does_not_wait_for_a_server(server, hub_folder, clean_env, tmp_path) -> None:
    """--max-tokens are reached while other reads hang: exit status 0, and a larger number continues."""
    is_held = threading.Event()
    late = {place for i in (1, 2) for place in [*text_chunks(hub_folder)][i * N_GROUPS + 5 : (i + 1) * N_GROUPS]}

    def hold(request: Request) -> Fault | None:
        if place_of(request) not in late:
            return None
        is_held.set()
        return HANGS

    server.faults = hold
    command = [sys.executable, ROOT / "prepare.py", NAME, "--out", tmp_path / "out", "--workers", "2", "--max-tokens"]
    options = {"env": clean_env, "capture_output": True, "text": True, "timeout": 100}
    start = time.monotonic()
    done = subprocess.run([*command, "400000"], **options)
    assert done.returncode == 0, done.stderr
    assert "train.bin: 400,000 tokens" in done.stdout
    assert is_held.is_set() and time.monotonic() - start < 15, "a connection that hangs is given 20 seconds"
    server.faults = []
    done = subprocess.run([*command, "500000"], **options)
    assert done.returncode == 0, done.stderr  # it may begin anew at the start of the block in which it ended
    assert "train.bin: 500,000 tokens" in done.stdout


MAX_TOKENS = 4_000_000


@pytest.fixture(scope="module")
def large_docs() -> list[str]:
    rng = random.Random(8)
    words = [rng.randbytes(rng.randint(1, 4)).hex() for _ in range(50_000)]
    return [" ".join(rng.choices(words, k=660)) for _ in range(5000)] * 5


@pytest.fixture(scope="module", params=[2, 20], ids=lambda mb: f"row groups of {mb} MB")
def large(request, tmp_path_factory, large_docs) -> tuple[Path, dict[str, bytes]]:
    """A dataset of 100 MB of text on the Hub, in row groups of so many, and what a local run makes of its start.

    Those of 20 MB are decoded batch by batch, as those of 200 MB are.
    """
    folder = tmp_path_factory.mktemp("large")
    (folder / "o" / "n" / "data").mkdir(parents=True)
    assert 95e6 < sum(map(len, large_docs)) < 105e6
    n_rows, options = request.param * len(large_docs) // 100, {"compression": "none", "use_dictionary": False}
    write_parquet(folder / "o" / "n" / "data" / "0.parquet", large_docs, n_rows, **options)
    prepare(folder / "o" / "n" / "data", folder / "out", max_tokens=MAX_TOKENS, quiet=True)
    return folder, outputs(folder / "out")


@pytest.mark.slow
@pytest.mark.parametrize("n_connections", [16, 64])
@pytest.mark.parametrize("slower", ["client", "server"])
def test_memory_stays_in_the_plan(large, clean_env, tmp_path, n_connections: int, slower: str) -> None:
    """Whichever side is slower, a run stays within its plan, however many connections were asked for."""
    folder, expected = large
    with HubServer(folder) as server:
        server.rate = 4e6 if slower == "server" else None
        command = [sys.executable, ROOT / "prepare.py", NAME, "--out", tmp_path / "out", "--memory", "300MB"]
        command += ["--workers", "1", "--engine", "tiktoken", "--connections", str(n_connections)]
        command += ["--max-tokens", str(MAX_TOKENS)]
        env = clean_env | {"HF_ENDPOINT": server.url}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    memory = json.loads((tmp_path / "out" / "prepare.json").read_text())["state"]["memory"]
    plan = re.findall(r"about (\d+) MB; (\d+) connections, up to (\d+) MB fetched ahead", done.stdout)
    worker_mb, n_planned, ahead_mb = map(int, plan[0])
    assert 16 <= n_planned <= n_connections
    assert memory["peak_bytes"] < 1.05e6 * (worker_mb + ahead_mb) < memory["budget_bytes"]
    assert outputs(tmp_path / "out") == expected


def test_small_row_groups_keep_the_limit_of_requests(clean_env, tmp_path) -> None:
    """A file of 1,000 row groups, where the Hub allows 1,000 requests in five minutes: it refuses none of them."""
    folder = tmp_path / "hub" / "o" / "n" / "data"
    folder.mkdir(parents=True)
    docs = [f"Document {i} is {'rather ' * (i % 50)}short." for i in range(20_000)]
    path = write_parquet(folder / "0.parquet", docs, row_group_size=20)
    assert pq.read_metadata(path).num_row_groups == 1000
    prepare(path, tmp_path / "expected", quiet=True)
    with HubServer(tmp_path / "hub") as server:
        server.limit, server.limit_seconds = 1000, 300.0
        command = [sys.executable, ROOT / "prepare.py", NAME, "--out", tmp_path / "out"]
        env = clean_env | {"HF_ENDPOINT": server.url}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        assert not [request for request in server.log if request.status == 429]
        assert len(server.log) < 100
    assert outputs(tmp_path / "out") == outputs(tmp_path / "expected")


def test_what_describes_a_dataset_is_not_read(tmp_path, monkeypatch, caplog) -> None:
    """A remote folder has the files that a local one has; others are mentioned, unless a pattern names them."""
    folder = tmp_path / "o" / "n"
    (folder / "data").mkdir(parents=True)
    write_jsonl(folder / "data" / "a.jsonl", ["one", "two"])
    write_jsonl(folder / "data" / "b#1?.jsonl", ["one", "two"])
    for name in ("dataset_infos.json", "README.txt", "data/metadata.json", "data/stats.json"):
        (folder / name).write_text('{\n "splits": {}\n}\n')
    (folder / "data" / "counts.json").write_text('{"rows": 4, "name": "n"}\n')
    for name in (".git/a.jsonl", "_delta_log/b.jsonl", "@at/b.jsonl", ".hidden.jsonl"):
        (folder / "data" / name).parent.mkdir(exist_ok=True)
        write_jsonl(folder / "data" / name, ["none"])
    (tmp_path / "o" / "m").mkdir()
    for name in ("_a.jsonl", "b.md", ".c.jsonl"):
        write_jsonl(tmp_path / "o" / "m" / name, ["none"])
    names = ["a.jsonl", "b#1?.jsonl"]
    with HubServer(tmp_path) as server, Fetcher() as fetcher:
        server.commit("o/n")
        server.commit("o/m")
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        for name in ("hf://datasets/o/n", "hf://datasets/o/n/data"):
            assert [Path(input.path).name for input in find_inputs([name], None, Network(fetcher))] == names
            assert f"note: {name}: skipped" in caplog.text and "b.jsonl" in caplog.text
            assert "a.jsonl" not in caplog.text  # what is in a folder with a dot is not said
        found = find_inputs(["hf://datasets/o/n/**/*.jsonl"], None, Network(fetcher))
        assert [Path(input.path).name for input in found] == names
        [named] = find_inputs(["hf://datasets/o/n/data/_delta_log/b.jsonl"], None, Network(fetcher))
        assert named.path.endswith("_delta_log/b.jsonl")
        for name in ("hf://datasets/o/n/data/*.json", "hf://datasets/o/n/dataset_infos.json"):
            with pytest.raises(InputError, match="a JSON object over several lines"):
                find_inputs([name], None, Network(fetcher))
        with pytest.raises(InputError, match=r"/o/m: no usable file in this folder, only _a\.jsonl, b\.md\n"):
            find_inputs(["hf://datasets/o/m"], None, Network(fetcher))


@pytest.mark.parametrize("is_jsonl", [False, True])
def test_very_many_texts_are_not_all_looked_at(tmp_path, monkeypatch, is_jsonl: bool) -> None:
    """Only the first texts are looked into if they are text, but each if one is not, as with local files."""
    folder = tmp_path / "o" / "n" / "data"
    folder.mkdir(parents=True)
    for i in range(80):
        (folder / f"{i}.txt").write_text('{"text": "one"}\n{"text": "two"}\n' if is_jsonl else "some words, and more\n")
    with HubServer(tmp_path) as server:
        server.commit("o/n")
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        with Fetcher() as fetcher:
            found = find_inputs(["hf://datasets/o/n/data"], network=Network(fetcher))
        n_files = len({request.path for request in server.log if "/resolve/" in request.path})
    assert [input.format for input in found] == ["jsonl" if is_jsonl else "text"] * 80
    assert n_files == (80 if is_jsonl else 64)
