"""The server of `hub_server` is a Hub to the real clients, and fails as it is told to."""

from __future__ import annotations

import http.client
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from .hub_server import (
    BAD_TOKEN,
    ENTRY_NOT_FOUND,
    GATED,
    NO_TOKEN,
    REPO_NOT_FOUND,
    REVISION_NOT_FOUND,
    Fault,
    HubServer,
    rate_limited,
)

# HF_ENDPOINT only counts if it is set before the import: tests in this process pass endpoint= instead.
huggingface_hub = pytest.importorskip("huggingface_hub", "0.30", reason="what these ask of the client is newer")

DATA = bytes(range(256)) * 1000
FOLDER = "datasets/owner/name/sample"
PATH = f"{FOLDER}/a.parquet"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dataset of two LFS files and another, in folders."""
    repo = tmp_path / "owner" / "name"
    (repo / "sample" / "deep").mkdir(parents=True)
    (repo / "README.md").write_text("hello\n")
    (repo / "sample" / "a.parquet").write_bytes(DATA)
    (repo / "sample" / "deep" / "b c.parquet").write_bytes(b"b")
    return tmp_path


@pytest.fixture
def hub(folder: Path) -> Iterator[HubServer]:
    with HubServer(folder) as server:
        yield server


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long huggingface_hub would have slept before each retry."""
    slept: list[float] = []

    class Clock:
        sleep = staticmethod(slept.append)
        time = staticmethod(time.time)

    monkeypatch.setattr("huggingface_hub.utils._http.time", Clock)
    return slept


def filesystem(hub: HubServer, token: str | bool = False) -> Any:
    return huggingface_hub.HfFileSystem(endpoint=hub.url, token=token, skip_instance_cache=True)


def requests_of(hub: HubServer, action: Callable[[], object]) -> list[tuple[str, str]]:
    """Method and path of the requests that an action makes."""
    hub.log.clear()
    action()
    return [(request.method, request.path) for request in hub.log]


def http_get(url: str, start: int, stop: int, timeout: float = 5) -> bytes:
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-{stop - 1}"})
    with urllib.request.urlopen(request, timeout=timeout) as response:
        assert response.status == 206
        data: bytes = response.read()
        return data


def test_listing(hub: HubServer) -> None:
    """HfFileSystem lists, globs and describes a repo's files."""
    fs = filesystem(hub)
    assert fs.ls("datasets/owner/name", detail=False) == [FOLDER, "datasets/owner/name/README.md"]
    assert fs.glob(f"{FOLDER}/*.parquet") == [PATH]
    assert fs.glob("datasets/owner/name/**/*.parquet") == [PATH, f"{FOLDER}/deep/b c.parquet"]
    info = fs.info(PATH)
    assert (info["type"], info["size"], info["lfs"].size) == ("file", len(DATA), len(DATA))
    assert fs.info("datasets/owner/name/README.md")["lfs"] is None
    assert fs.info(FOLDER)["type"] == "directory"


@pytest.mark.parametrize("page_size", [1, 2, 3, 1000])
def test_pages(folder: Path, page_size: int) -> None:
    """Any page size gives the same listing, in as many requests as there are pages."""
    with HubServer(folder, page_size=page_size) as hub:
        api = huggingface_hub.HfApi(endpoint=hub.url, token=False)
        tree = list(api.list_repo_tree("owner/name", repo_type="dataset", recursive=True))
    assert [entry.path for entry in tree] == [
        "sample",
        "sample/deep",
        "README.md",
        "sample/a.parquet",
        "sample/deep/b c.parquet",
    ]
    assert len(hub.log) == -(-5 // page_size)


def test_repo_info_and_paths_info(hub: HubServer) -> None:
    """HfApi gets the sha of a branch, every file's size and hashes in one request, and the entries of given paths."""
    api = huggingface_hub.HfApi(endpoint=hub.url, token=False)
    sha = hub.commit("owner/name")
    assert api.dataset_info("owner/name", revision="main", expand=["sha"]).sha == sha
    info = api.dataset_info("owner/name", revision=sha, files_metadata=True)
    assert {file.rfilename: file.size for file in info.siblings}["sample/a.parquet"] == len(DATA)
    (entry,) = api.get_paths_info("owner/name", ["sample/a.parquet", "absent"], repo_type="dataset", revision=sha)
    assert entry.lfs.sha256 == next(f.lfs.sha256 for f in info.siblings if f.rfilename == "sample/a.parquet")
    metadata = api.get_hf_file_metadata(url=f"{hub.url}/datasets/owner/name/resolve/main/sample/a.parquet")
    assert (metadata.commit_hash, metadata.etag, metadata.size) == (sha, entry.lfs.sha256, len(DATA))


def test_reading(hub: HubServer) -> None:
    """HfFileSystem reads any range of a file, and the log has the ranges it asked for."""
    fs = filesystem(hub)
    with fs.open(PATH, "rb", block_size=1000, cache_type="none") as file:
        file.seek(500)
        assert file.read(300) == DATA[500:800]
    assert fs.cat_file(PATH, 1000, 1010, cache_type="none") == DATA[1000:1010]
    assert fs.cat_file(f"{FOLDER}/deep/b c.parquet") == b"b"
    ranges = [(r.start, r.stop, r.status, r.n_bytes) for r in hub.log if "/resolve/" in r.path]
    assert ranges[:2] == [(500, 800, 206, 300), (1000, 1010, 206, 10)]


def test_commits(hub: HubServer, folder: Path) -> None:
    """A new commit moves `main`, and the old sha still lists and reads what it held."""
    old = hub.commit("owner/name")
    (folder / "owner/name/sample/a.parquet").write_bytes(b"new")
    (folder / "owner/name/README.md").unlink()
    new = hub.commit("owner/name")
    fs = filesystem(hub)
    assert old != new
    assert fs.cat_file(PATH) == fs.cat_file(f"datasets/owner/name@{new}/sample/a.parquet") == b"new"
    assert fs.cat_file(f"datasets/owner/name@{old}/sample/a.parquet") == DATA
    assert fs.exists(f"datasets/owner/name@{old}/README.md") and not fs.exists("datasets/owner/name/README.md")
    hub.commit("owner/name", branch="refs/convert/parquet")
    assert fs.cat_file("datasets/owner/name@refs%2Fconvert%2Fparquet/sample/a.parquet") == b"new"


def test_cdn_and_token(folder: Path) -> None:
    """With a token the Hub refuses requests without it, and LFS files are redirected to where it is not sent."""
    with HubServer(folder, token="hf_secret", cdn=True) as hub:
        assert filesystem(hub, "hf_secret").cat_file(PATH, 10, 20, cache_type="none") == DATA[10:20]
        assert [(r.path.split("/")[1], r.status, r.token) for r in hub.log] == [
            ("api", 200, "hf_secret"),
            ("api", 200, "hf_secret"),
            ("datasets", 302, "hf_secret"),
            ("cdn", 206, None),
        ]
        url = f"{hub.url}/datasets/owner/name/resolve/main/sample/a.parquet"
        request = urllib.request.Request(url, headers={"Authorization": "Bearer hf_secret"})
        with pytest.raises(urllib.error.HTTPError, match="400"):  # urllib passes the token on, and is caught
            urllib.request.urlopen(request, timeout=5)
        for token, name in [(False, "RepositoryNotFoundError"), ("hf_bad", "HfHubHTTPError")]:
            with pytest.raises(huggingface_hub.errors.HfHubHTTPError, match="401") as caught:
                huggingface_hub.HfApi(endpoint=hub.url, token=token).dataset_info("owner/name")
            assert type(caught.value).__name__ == name


def test_endpoint_from_environment(hub: HubServer, tmp_path: Path) -> None:
    """A process with HF_ENDPOINT and HF_TOKEN uses this server; its odd question for agents is not in the log."""
    code = f"import huggingface_hub as h; print(h.HfFileSystem().cat_file({PATH!r}, 0, 3, cache_type='none'))"
    env = {"HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_secret", "HOME": str(tmp_path / "home"), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{DATA[:3]!r}\n", done.stderr
    assert [r.token for r in hub.log] == ["hf_secret"] * 3


@pytest.mark.parametrize(
    ("fault", "name", "status"),
    [
        (NO_TOKEN, "RepositoryNotFoundError", 401),
        (BAD_TOKEN, "HfHubHTTPError", 401),
        (GATED, "GatedRepoError", 403),
        (REPO_NOT_FOUND, "RepositoryNotFoundError", 404),
        (REVISION_NOT_FOUND, "RevisionNotFoundError", 404),
        (ENTRY_NOT_FOUND, "RemoteEntryNotFoundError", 404),
    ],
)
def test_refusals(hub: HubServer, waits: list[float], fault: Fault, name: str, status: int) -> None:
    """What the Hub refuses arrives as the client's own exception, at once."""
    fs = filesystem(hub)
    fs.info(PATH)
    hub.faults = [fault]
    with pytest.raises(huggingface_hub.errors.HfHubHTTPError) as caught:
        fs.cat_file(PATH, 0, 10)
    assert (type(caught.value).__name__, caught.value.response.status_code) == (name, status)
    assert waits == []


@pytest.mark.parametrize(
    ("fault", "wait"),
    [(rate_limited(7), 8), (Fault(503), 1), (Fault(500), 1), (Fault(cut=-1), 1), (Fault(cut=0), 1), (Fault(cut=50), 1)],
)
def test_passing_faults(hub: HubServer, waits: list[float], fault: Fault, wait: float) -> None:
    """What passes is tried again by the client, after as long as the server asks for."""
    fs = filesystem(hub)
    fs.info(PATH)
    hub.faults = [fault]
    assert fs.cat_file(PATH, 0, 100, cache_type="none") == DATA[:100]
    assert waits == [wait]
    assert [request.status for request in hub.log][-1] == 206


def test_cut(hub: HubServer) -> None:
    """A cut body has as many bytes as were asked for, and fewer than were promised."""
    hub.faults = [Fault(cut=30)]
    with pytest.raises(http.client.IncompleteRead) as caught:
        http_get(f"{hub.url}/files/owner/name/sample/a.parquet", 0, 100)
    assert (caught.value.partial, caught.value.expected) == (DATA[:30], 70)
    assert hub.log[-1].n_bytes == 30


@pytest.mark.parametrize("cut", [None, 30])
def test_stall(folder: Path, cut: int | None) -> None:
    """A stall before the answer or in its middle outlasts the client's patience, and does not hold up the server."""
    start = time.monotonic()
    with HubServer(folder) as hub:
        url = f"{hub.url}/files/owner/name/sample/a.parquet"
        hub.faults = [Fault(stall=60, cut=cut)]
        with pytest.raises(TimeoutError):
            http_get(url, 0, 100, timeout=0.2)
        assert http_get(url, 0, 100) == DATA[:100]
    assert time.monotonic() - start < 5


def test_lies(hub: HubServer) -> None:
    """A server may ignore ranges, send less than there is, or say that a file is another than before."""
    url = f"{hub.url}/files/owner/name/sample/a.parquet"
    hub.faults = [Fault(no_range=True), Fault(short=5), Fault(headers={"ETag": '"other"'}), None]
    request = urllib.request.Request(url, headers={"Range": "bytes=10-19"})
    answers = []
    for _ in range(4):
        with urllib.request.urlopen(request, timeout=5) as response:
            answers.append((response.status, response.read(), response.headers["ETag"]))
    etag = answers[3][2]
    assert answers == [
        (200, DATA, etag),
        (206, DATA[10:15], etag),
        (206, DATA[10:20], '"other"'),
        (206, DATA[10:20], etag),
    ]


def test_faults_by_function(hub: HubServer) -> None:
    """A function of the request decides which of them fail."""
    hub.faults = lambda request: Fault(404) if request.start == 10 else None
    url = f"{hub.url}/files/owner/name/sample/a.parquet"
    assert http_get(url, 0, 10) == DATA[:10]
    with pytest.raises(urllib.error.HTTPError, match="404"):
        http_get(url, 10, 20)


def test_plain_files(hub: HubServer, folder: Path) -> None:
    """A file is served in ranges of every form, as it is now, and its ETag tells that it changed."""
    requests = pytest.importorskip("requests")
    url = f"{hub.url}/files/owner/name/sample/a.parquet"
    with requests.Session() as session:
        head = session.head(url)
        assert (head.headers["Content-Length"], head.headers["Accept-Ranges"]) == (str(len(DATA)), "bytes")
        ranges = {"5-9": DATA[5:10], "-7": DATA[-7:], f"{len(DATA) - 3}-": DATA[-3:], "0-9999999": DATA}
        for value, want in ranges.items():
            answer = session.get(url, headers={"Range": f"bytes={value}"})
            assert (answer.status_code, answer.content) == (206, want)
        assert answer.headers["Content-Range"] == f"bytes 0-{len(DATA) - 1}/{len(DATA)}"
        assert session.get(url, headers={"Range": f"bytes={len(DATA)}-"}).status_code == 416
        assert session.get(url).content == DATA
        assert session.get(url + "x").status_code == 404
        (folder / "owner/name/sample/a.parquet").write_bytes(b"changed")
        changed = session.get(url)
        assert (changed.content, changed.headers["ETag"] != head.headers["ETag"]) == (b"changed", True)


def test_fsspec_http(hub: HubServer) -> None:
    """The http filesystem of fsspec reads ranges from many threads, and sees faults as they are."""
    fsspec = pytest.importorskip("fsspec")
    aiohttp = pytest.importorskip("aiohttp")
    fs = fsspec.filesystem("http", skip_instance_cache=True)
    url = f"{hub.url}/files/owner/name/sample/a.parquet"
    assert fs.info(url)["size"] == len(DATA)
    with ThreadPoolExecutor(8) as pool:
        parts = pool.map(lambda start: fs.cat_file(url, start, start + 1000), range(0, len(DATA), 1000))
    assert b"".join(parts) == DATA
    hub.faults = [Fault(503), Fault(cut=5)]
    with pytest.raises(aiohttp.ClientResponseError, match="503"):
        fs.cat_file(url, 0, 10)
    with pytest.raises(aiohttp.ClientPayloadError):
        fs.cat_file(url, 0, 10)


def test_slow_answers(hub: HubServer) -> None:
    """Latency comes before each answer, of the Hub or of the CDN, and a connection brings no more than its rate."""
    hub.latency, hub.cdn_latency, hub.rate = 0.1, 0.2, 1_000_000
    start = time.monotonic()
    assert http_get(f"{hub.url}/files/owner/name/sample/a.parquet", 0, 100_000) == DATA[:100_000]
    assert time.monotonic() - start >= 0.2 + 0.07, "all but the last piece, a fiftieth of a second"
    start = time.monotonic()
    http_get(f"{hub.url}/datasets/owner/name/resolve/main/sample/a.parquet", 0, 1)
    assert time.monotonic() - start >= 0.1


def test_limit_of_requests(hub: HubServer) -> None:
    """The Hub counts down how many requests are left, and refuses what is too many; plain files are not counted."""
    hub.limit, hub.limit_seconds = 2, 60
    url = f"{hub.url}/datasets/owner/name/resolve/main/sample/a.parquet"
    left = [urllib.request.urlopen(url, timeout=5).headers["RateLimit"] for _ in range(2)]
    assert left == ['"api";r=1;t=60', '"api";r=0;t=60']
    with pytest.raises(urllib.error.HTTPError, match="429") as caught:
        urllib.request.urlopen(url, timeout=5)
    assert int(caught.value.headers["Retry-After"]) <= 60
    assert http_get(f"{hub.url}/files/owner/name/README.md", 0, 5) == b"hello"


def test_the_benchmark_that_the_readme_names_says_what_it_needs() -> None:
    """Typed as the README has it, it says which arguments there are."""
    command = [sys.executable, "-m", "tests.bench.hub"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1], timeout=60)
    assert done.returncode == 1 and "KIND CORPUS_FOLDER OUT" in done.stderr and "Traceback" not in done.stderr
