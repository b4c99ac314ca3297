"""Remote inputs: what names stand for, and reads that are right or refused, however the network behaves."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import random
import socket
import ssl
import threading
import time
import traceback
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import pytest
import urllib3

from fineweb_stream.inputs.discover import find_inputs
from fineweb_stream.remote import hub as hub_room
from fineweb_stream.remote import network, retry, web
from fineweb_stream.remote.hub import is_remote, login_command
from fineweb_stream.remote.network import Fetcher, Network, RemoteFile, RemoteReader, Timeouts
from fineweb_stream.support.cancel import NEVER, Cancel
from fineweb_stream.support.errors import Cancelled, InputError, PrepareError, RemoteError
from fineweb_stream.support.redact import kept, shown

from .hub_server import BAD_TOKEN, ENTRY_NOT_FOUND, GATED, NO_TOKEN, Fault, HubServer, Request, rate_limited

DATA = random.Random(6).randbytes(300_000)
NAME = "hf://datasets/owner/name"
TOKEN = "hf_secretsecret"


class Waits(list[tuple[float, str]]):
    """What `Pacing.pause` is asked for; it does not wait, and no server is closed after it."""

    def __call__(self, pacing: retry.Pacing, seconds: float, what: str) -> None:
        self.append((seconds, what))
        pacing._closed_until.clear()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    waits = Waits()
    monkeypatch.setattr(retry.Pacing, "pause", lambda *arguments: waits(*arguments))
    return waits


fetcher: Fetcher


@pytest.fixture(autouse=True)
def one_fetcher() -> Iterator[None]:
    """All that a test reads is read by one; what it leaves under way ends with it."""
    global fetcher
    with Fetcher() as fetcher:
        yield


def be_patient(**seconds: float) -> None:
    fetcher.web.timeouts = Timeouts(**seconds)


def list_remote(name: str, revision: str | None = None) -> list[RemoteFile]:
    return hub_room.list_remote(name, Network(fetcher), revision)


def check_remote(file: RemoteFile) -> None:
    hub_room.check_remote(file, Network(fetcher))


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No token and no settings of the machine's own."""
    for name in ("HF_TOKEN", "HF_TOKEN_PATH", "HF_ENDPOINT", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "no home"))
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dataset of files that are usable, and some that are not."""
    repo = tmp_path / "served" / "owner" / "name"
    (repo / "data" / "x y").mkdir(parents=True)
    (repo / "README.md").write_text("hello\n")
    (repo / "data" / "a.parquet").write_bytes(DATA)
    (repo / "data" / "b.jsonl").write_bytes(b"{}\n")
    (repo / "data" / "c.png").write_bytes(b"no text")
    (repo / "data" / "x y" / "d#1.txt.gz").write_bytes(b"d")
    return tmp_path / "served"


@pytest.fixture
def hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with HubServer(folder) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


@pytest.fixture(params=["hf", "http", "cdn"])
def file(request: pytest.FixtureRequest, hub: HubServer) -> RemoteFile:
    """`a.parquet`, by each of the ways to it."""
    hub.cdn = request.param == "cdn"
    (file,) = list_remote(
        f"{hub.url}/files/owner/name/data/a.parquet" if request.param == "http" else f"{NAME}/data/a*"
    )
    hub.log.clear()
    return file


def read(file: RemoteFile, start: int, stop: int, cancel: Cancel = NEVER) -> bytes:
    return Network(fetcher, cancel).read(file, start, stop)


def fail_bodies(hub: HubServer, faults: list[Fault]) -> None:
    """Let the requests fail that are answered with content, not those that are redirected."""
    hub.faults = lambda request: None if hub.cdn and "/resolve/" in request.path else faults.pop(0) if faults else None


def paths(files: list[RemoteFile]) -> list[str]:
    return sorted(file.url.partition("@")[2].partition("/")[2] for file in files)


# Names


def test_is_remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Schemes and short names are remote; paths of any system are not, and neither is a file called like a corpus."""
    monkeypatch.chdir(tmp_path)
    for name in ("hf://datasets/a/b", "https://h/f", "s3://b/k", "gs://b", "memory://x", "fineweb:CC-MAIN-2024-10"):
        assert is_remote(name)
    for name in ("C:\\x", "C:/x", "c://x", "a.txt", "-", "", "fineweb-edu.txt", "fineweb-edux", "./fineweb", "x:y"):
        assert not is_remote(name)
    assert is_remote("fineweb-edu")
    Path("fineweb-edu").mkdir()
    assert not is_remote("fineweb-edu")


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("fineweb-edu:sample-10BT", "fineweb-edu/sample/10BT"),
        ("fineweb-edu:sample-350BT", "fineweb-edu/sample/350BT"),
        ("fineweb:sample-100BT", "fineweb/sample/100BT"),
        ("fineweb-edu:CC-MAIN-2024-10", "fineweb-edu/data/CC-MAIN-2024-10"),
        ("fineweb-edu", "fineweb-edu/data"),
        ("fineweb-2:deu_Latn", "fineweb-2/data/deu_Latn/train"),
    ],
)
def test_short_names(hub: HubServer, name: str, path: str) -> None:
    """A short name is a folder of a dataset of HuggingFaceFW."""
    repo, _, subfolder = path.partition("/")
    (hub.folder / "HuggingFaceFW" / path).mkdir(parents=True)
    (hub.folder / "HuggingFaceFW" / path / "0.parquet").write_bytes(b"0")
    (hub.folder / "HuggingFaceFW" / repo / "other.parquet").write_bytes(b"1")
    sha = hub.commit(f"HuggingFaceFW/{repo}")
    assert [file.url for file in list_remote(name)] == [
        f"hf://datasets/HuggingFaceFW/{repo}@{sha}/{subfolder}/0.parquet"
    ]


@pytest.mark.parametrize("name", ["fineweb-2", "fineweb-2:german", "fineweb-edu:10BT", "fineweb:"])
def test_short_names_that_are_none(name: str) -> None:
    """What looks like a short name and is none is told what there is, without asking the network."""
    if name == "fineweb:":
        assert is_remote(name)
        return
    with pytest.raises(InputError, match=r"fineweb-2:deu_Latn|sample-10BT"):
        list_remote(name)


# Listing


@pytest.mark.parametrize("page_size", [1, 2, 1000])
def test_list(folder: Path, monkeypatch: pytest.MonkeyPatch, page_size: int) -> None:
    """Folders give their files at any depth, globs and files what they name, whatever the size of a page."""
    in_data = ["data/a.parquet", "data/b.jsonl", "data/c.png", "data/x y/d#1.txt.gz"]
    with HubServer(folder, page_size=page_size) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        for name, want in {
            "": ["README.md", *in_data],
            "/": ["README.md", *in_data],
            "/data": in_data,
            "/data/": in_data,
            "@main/data/x y": in_data[3:],
            "/data/*": ["data/a.parquet", "data/b.jsonl", "data/c.png"],
            "/data/[!b].p*": ["data/a.parquet", "data/c.png"],
            "/**/?.p*t": ["data/a.parquet"],
            "/**": ["README.md", *in_data],
            "/data/**/d#*": in_data[3:],
            "/data/c.png": ["data/c.png"],
            "/README.md": ["README.md"],
        }.items():
            assert paths(list_remote(NAME + name)) == want, name
        (d,) = list_remote(f"{NAME}/data/x y/d#1.txt.gz")
        assert read(d, 0, 1) == b"d"


def test_list_as_the_real_client(hub: HubServer) -> None:
    """Sizes, hashes, commit and bytes are those of huggingface_hub."""
    huggingface_hub = pytest.importorskip("huggingface_hub")
    fs = huggingface_hub.HfFileSystem(endpoint=hub.url, token=False, skip_instance_cache=True)
    files = list_remote(f"{NAME}/**")
    found = fs.find("datasets/owner/name", detail=True)
    assert sorted(file.url.partition("@")[2].partition("/")[2] for file in files) == sorted(
        path.removeprefix("datasets/owner/name/") for path in found
    )
    for file in files:
        info = fs.info(file.url.removeprefix("hf://"))
        assert (file.size, file.version) == (info["size"], (info["lfs"] or {}).get("sha256") or info["blob_id"])
        assert read(file, 0, file.size) == fs.cat_file(file.url.removeprefix("hf://"))


def test_pinned(hub: HubServer, folder: Path) -> None:
    """Main moves, and what was listed is still read; a name may say the revision."""
    (old,) = list_remote(f"{NAME}/data/a.parquet")
    (folder / "owner/name/data/a.parquet").write_bytes(b"new")
    new_sha = hub.commit("owner/name")
    hub.commit("owner/name", "refs/pr/1")
    (new,) = list_remote(f"{NAME}/data/a.parquet")
    assert new.url == f"{NAME}@{new_sha}/data/a.parquet"
    assert read(old, 0, old.size) == DATA
    assert read(new, 0, 3) == b"new"
    old_sha = old.url.partition("@")[2].partition("/")[0]
    assert list_remote(f"{NAME}/data/a.parquet", revision=old_sha) == [old]
    assert list_remote(f"{NAME}@{old_sha}/data/a.parquet") == list_remote(old.url) == [old]
    for ref in ("refs/pr/1", "refs%2Fpr%2F1"):
        assert list_remote(f"{NAME}@{ref}/data/a.parquet")[0].size == 3
    check_remote(old)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"{NAME}/absent", "no such file"),
        (f"{NAME}/data/absent.txt", "no such file"),
        (f"{NAME}/data/*.zip", "no such file"),
        (f"{NAME}/data/[z-a]*", "not a pattern"),
        (f"{NAME}@gone/data", r"HTTP 404 \(Invalid rev id\)"),
        ("hf://datasets/owner/absent", "HTTP 401"),  # the Hub's answer to who is not logged in
        ("hf://datasets/owner", "not a dataset"),
        ("hf://owner/model/a.txt", "not a dataset"),
        ("http://HOST/files/absent.txt", "HTTP 404"),
        ("http://HOST/files/*.txt", "does not list"),
        ("http://HOST/files/", "does not list"),
        ("http:///a.txt", "no server"),
        ("http://HOST:port/a.txt", "not an address"),
        ("http://[::1", "not an address"),
    ],
)
def test_no_such_thing(hub: HubServer, name: str, message: str) -> None:
    """What is not there is refused at once, by name."""
    start = time.monotonic()
    with pytest.raises(InputError, match=message) as caught:
        list_remote(name.replace("http://HOST", hub.url))
    assert caught.value.exit_status == 2 and caught.value.hint
    assert time.monotonic() - start < 5


def test_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """HF_HUB_OFFLINE is obeyed."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for action in (list_remote, lambda name: read(RemoteFile(f"{name}/a.txt", 1, ""), 0, 1)):
        with pytest.raises(InputError, match="HF_HUB_OFFLINE is set"):
            action(NAME)


@pytest.mark.parametrize("endpoint", ["huggingface.co", "file:///tmp", "http://[x", "https://"])
def test_an_endpoint_that_is_none(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    """A value of HF_ENDPOINT that is no address of a server is named."""
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(InputError, match=r"^HF_ENDPOINT=.*: not an address"):
        list_remote(NAME)


def test_no_network(monkeypatch: pytest.MonkeyPatch, waits: Waits) -> None:
    """Where nothing answers, listing gives up soon, though reading would be patient."""
    be_patient(contact=0.1)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        monkeypatch.setenv("HF_ENDPOINT", url)
        for name in (NAME, f"{url}/a.txt"):
            with pytest.raises(RemoteError, match="check the network"):
                list_remote(name)


def test_network_that_swallows(monkeypatch: pytest.MonkeyPatch, waits: Waits, hub: HubServer) -> None:
    """Where a connection neither fails nor is answered, listing gives up soon as well."""
    be_patient(contact=0.2)
    released = threading.Event()

    def connect(*_: object, **__: object) -> None:
        released.wait(20)
        raise OSError("too late")

    monkeypatch.setattr("urllib3.util.connection.create_connection", connect)
    start = time.monotonic()
    with pytest.raises(RemoteError, match="timeout"):
        list_remote(NAME)
    assert time.monotonic() - start < 5
    released.set()


def test_listing_is_patient(hub: HubServer, waits: Waits) -> None:
    """A Hub that answers, if only 503, is waited for while it lists too."""
    hub.faults = [Fault(503), None, rate_limited(30), Fault(cut=3)]
    assert len(list_remote(NAME)) == 5
    assert [what.partition(": ")[2] for _, what in waits] == [
        "HTTP 503",
        "HTTP 429",
        "the server closed the connection",
    ]


def test_http_without_head(hub: HubServer) -> None:
    """A server that refuses HEAD is asked for one byte instead."""
    url = f"{hub.url}/files/owner/name/data/a.parquet"
    hub.faults = lambda request: Fault(403) if request.method == "HEAD" else None
    (file,) = list_remote(url)
    assert (file.size, hub.log[-1].n_bytes) == (len(DATA), 1)
    hub.faults = []
    assert list_remote(url) == [file]
    check_remote(file)


# Reading


def test_cuts(hub: HubServer, file: RemoteFile, waits: Waits) -> None:
    """Bodies cut at 100 random places give the same bytes, and no byte is fetched twice."""
    rng = random.Random(1)
    hub.faults = lambda request: None if "/resolve/" in request.path and hub.cdn else Fault(cut=rng.randrange(5000))
    for _ in range(2):
        start, stop = sorted(rng.sample(range(len(DATA)), 2))
        stop = max(stop, min(start + 125_000, len(DATA)))
        hub.log.clear()
        assert read(file, start, stop) == DATA[start:stop]
        assert sum(request.n_bytes for request in hub.log) == stop - start
    assert len(waits) > 50


FAULTS = [
    Fault(503),
    Fault(500),
    Fault(408),
    Fault(cut=-1),
    Fault(cut=0),
    Fault(cut=70),
    Fault(short=9),
    Fault(short=0),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_passing_faults(hub: HubServer, file: RemoteFile, waits: Waits, fault: Fault) -> None:
    """What passes is waited for, longer each time while no byte comes; what is behind a shorter answer is asked for."""
    fail_bodies(hub, [fault] * 3 * (2 if fault.cut == -1 else 1))  # what hangs up is asked once more at once
    assert read(file, 1000, 2000) == DATA[1000:2000]
    assert len(waits) == (0 if fault.short else 3)
    if not (fault.cut or 0) > 0 and not fault.short:
        assert [round(seconds / 1.125) for seconds, _ in waits] == [1, 2, 4]


@pytest.mark.parametrize(("value", "least"), [("7", 7), ("0", 1), ("a date", 60), ("soon", 1)])
def test_retry_after(hub: HubServer, file: RemoteFile, waits: Waits, value: str, least: float) -> None:
    """The server says when to come back, in seconds or as a date."""
    if value == "a date":  # made now: the tests may have run for long
        value = formatdate(time.time() + 90)
    hub.faults = [Fault(429, {"Retry-After": value})]
    assert read(file, 0, 10) == DATA[:10]
    ((seconds, what),) = waits
    assert least <= seconds <= least * 1.25 + 40 * (least == 60)
    assert what.endswith(": HTTP 429")


@pytest.mark.parametrize("cut", [None, 500])
def test_stall(hub: HubServer, file: RemoteFile, waits: Waits, cut: int | None) -> None:
    """A server that says nothing any more is asked again for the rest."""
    be_patient(operation=0.2)
    fail_bodies(hub, [Fault(stall=60, cut=cut)])
    assert read(file, 100, 2000) == DATA[100:2000]
    assert {what.partition(": ")[2] for _, what in waits} == {"timeout"}


def test_pause(hub: HubServer, caplog: pytest.LogCaptureFixture) -> None:
    """A real wait is announced, once for all threads that wait for the same."""
    (file,) = list_remote(f"{NAME}/data/a.parquet")
    read(file, 0, 10)  # where it is is known then: three requests are under way at once
    failing, barrier = {0, 100, 200}, threading.Barrier(3)

    def faults(request: Request) -> Fault | None:
        if request.start not in failing:
            return None
        barrier.wait(20)
        failing.discard(request.start)
        return Fault(503)

    hub.next_fault = lambda request: faults(request) or Fault()  # type: ignore[method-assign]  # without its lock
    start = time.monotonic()
    futures = [fetcher.fetch(file, i, i + 1) for i in (0, 100, 200)]
    with caplog.at_level("INFO"):
        for future in futures:
            future.result()
    assert time.monotonic() - start >= 1
    assert caplog.messages == [f"waiting for {hub.url.removeprefix('http://')}: HTTP 503, again in 1 s"]


def test_stopping(hub: HubServer, file: RemoteFile) -> None:
    """A thread that waits leaves when the run ends, whatever is under way, and no further read begins."""
    hub.faults = [Fault(stall=60)]
    cancel = Cancel()
    timer = threading.Timer(0.1, cancel.set)
    timer.start()
    start = time.monotonic()
    for _ in range(2):
        with pytest.raises(Cancelled):
            read(file, 0, 10, cancel)
    assert time.monotonic() - start < 5
    timer.join()
    assert len(hub.log) == 1


def test_a_check_is_as_patient_as_a_read(hub: HubServer) -> None:
    """At the end of a file that took hours, a server may be silent for longer than at the start of a run."""
    (file,) = list_remote(f"{hub.url}/files/owner/name/data/a.parquet")
    be_patient(contact=0.1, operation=0.3, first_wait=0.1)
    hub.faults = [Fault(stall=60)]
    check_remote(file)


def test_patience_ends(hub: HubServer, file: RemoteFile) -> None:
    """Without a new byte reading gives up, says so and how to go on; no wait is longer than the patience."""
    be_patient(progress=0.1)
    for fault in (Fault(503), rate_limited(1000), Fault(cut=-1), Fault(cut=0)):
        hub.faults = lambda request, fault=fault: fault  # type: ignore[misc]
        start = time.monotonic()
        with pytest.raises(RemoteError, match="the same command continues") as caught:
            read(file, 0, 10)
        assert 0.1 <= time.monotonic() - start < 5
        assert isinstance(caught.value, PrepareError) and caught.value.exit_status == 1


def test_patience_is_for_each_byte(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow network that still brings bytes is never given up."""
    (file,) = list_remote(f"{NAME}/data/a.parquet")
    be_patient(progress=1.0)
    monkeypatch.setattr(retry.Pacing, "pause", lambda *_: time.sleep(0.15))
    hub.faults = lambda request: Fault(cut=1)
    assert read(file, 0, 10) == DATA[:10]


@pytest.mark.parametrize(
    ("fault", "hint"),
    [
        (NO_TOKEN, f"{login_command()}, or set HF_TOKEN"),
        (BAD_TOKEN, f"{login_command()}, or set HF_TOKEN"),
        (GATED, "accept its terms at https://huggingface.co/datasets/owner/name"),
        (ENTRY_NOT_FOUND, "check the name"),
        (Fault(410), "does not serve it"),
        (Fault(202), "does not serve it"),
        (Fault(416), "changed while it was read"),
    ],
)
def test_refusals(hub: HubServer, waits: Waits, fault: Fault, hint: str) -> None:
    """What waiting does not mend fails at once, while listing and while reading, with the way out."""
    (file,) = list_remote(f"{NAME}/data/a.parquet")
    start = time.monotonic()
    for action in (lambda: read(file, 0, 10), lambda: list_remote(NAME)):
        hub.faults = [fault]
        with pytest.raises(InputError, match=f"HTTP {fault.status}") as caught:
            action()
        assert hint in caught.value.hint and caught.value.exit_status == 2
    assert not waits and time.monotonic() - start < 5


def test_how_to_log_in(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command is one that the installed huggingface_hub has; without it no token is sent, so it comes first."""
    scripts = importlib.metadata.distribution("huggingface_hub").entry_points.select(group="console_scripts")
    assert login_command().split()[0] in scripts.names
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if "huggingface" in name else find(name))
    hub.faults = [NO_TOKEN]
    with pytest.raises(InputError) as caught:
        list_remote(f"{hub.url}/datasets/owner/name/resolve/main/data/a.parquet")
    assert "log in: pip install huggingface_hub, then hf auth login, or set HF_TOKEN" in caught.value.hint


def test_refusals_of_web_servers(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere than on the Hub nobody is told to log in to it."""
    monkeypatch.setenv("HF_ENDPOINT", "https://example.org")
    hub.faults = [Fault(401)] * 2
    with pytest.raises(InputError) as caught:
        list_remote(f"{hub.url}/files/owner/name/data/a.parquet?signature=secret")
    assert "HTTP 401" in str(caught.value) and "hf auth" not in str(caught.value) and "secret" not in str(caught.value)
    hub.faults = [Fault(403)] * 2
    with pytest.raises(InputError, match="signature has expired") as caught:
        list_remote(f"{hub.url}/files/owner/name/data/a.parquet?signature=secret")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["http://HOST/files/owner/name/few/empty.txt", f"{NAME}/few/empty.txt", f"{NAME}/few/e*"]
)
def test_empty(hub: HubServer, name: str) -> None:
    """An empty file that is named, or alone matches, is refused, as one of this machine is; among others it is not."""
    (hub.folder / "owner/name/few").mkdir()
    for file, text in (("a.txt", "a text"), ("empty.txt", "")):
        (hub.folder / "owner/name/few" / file).write_text(text)
    for fault in (None, Fault(no_range=True)):
        hub.faults = lambda request, fault=fault: fault  # type: ignore[misc]
        with pytest.raises(InputError, match=r"empty\.txt: the file is empty\n  leave it out"):
            find_inputs([name.replace("http://HOST", hub.url)], None, Network(fetcher))
    for others in (f"{NAME}/few", f"{NAME}/few/*", str(hub.folder / "owner/name/few/*")):
        assert [input.size for input in find_inputs([others], None, Network(fetcher))] == [6, 0]


@pytest.mark.parametrize(
    ("url", "same", "other"),
    [
        (
            "https://h/a?X-Amz-Signature=Q&id=7",
            "https://h/a?X-Amz-Signature=QQ&id=7",
            "https://h/a?X-Amz-Signature=Q&id=8",
        ),
        ("https://h/a?sv=Q&se=Q&sig=Q", "https://h/a?sv=1&se=2&sig=3#Q", "https://h/b?sv=Q&se=Q&sig=Q"),
        ("https://h/a?Q", "https://h/a?Q", "https://h/a?QQ"),
        ("https://me:Q@h/a", "https://h/a", "https://h/b"),
        (
            "HTTP://Q:Q@Q@h/a?download=Q&access_token=Q",
            "HTTP://h/a?download=Q&access_token=",
            "HTTP://h/a?access_token=Q",
        ),
        ("ftp://me:Q@h/a?.txt", "ftp://me:P@h/a?.txt", "ftp://you:Q@h/a?.txt"),
        ("abfs://box@account/a", "abfs://box@account/a", "abfs://other@account/a"),
        (
            "hf://datasets/o/n@refs/pr/1/0?.parquet",
            "hf://datasets/o/n@refs/pr/1/0?.parquet",
            "hf://datasets/o/n@main/0?.parquet",
        ),
        ("https://me:p/Q@h/a", "https://h/a", "https://h/b"),
        ("s3://b/a?token=Q", "s3://b/a?token=P", "s3://b/a2?token=Q"),
        ("ftp://me:p/Q@h/a", "ftp://me:R/Q@h/a", "ftp://me:p@h/b"),
        ("a?b=1 @ c.txt", "a?b=1 @ c.txt", "a?b=2 @ c.txt"),
    ],
)
def test_secrets_of_addresses(url: str, same: str, other: str) -> None:
    """What is shown and what is recorded has no secret; a new signature is the same address, another value is none."""
    assert "Q" not in shown(url) + kept(url)
    assert kept(url) == kept(same) != kept(other)


def test_ignored_range(hub: HubServer, file: RemoteFile, waits: Waits) -> None:
    """A server that sends all or another part for a part is refused; for all it may send all."""
    hub.faults = lambda request: Fault(no_range=True)
    assert read(file, 0, file.size) == DATA
    with pytest.raises(InputError, match="does not serve parts"):
        read(file, 10, 20)
    hub.faults = lambda request: Fault(206, {"Content-Range": f"bytes 5-14/{file.size}"})
    with pytest.raises(InputError, match="another part"):
        read(file, 10, 20)
    assert not waits


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd", "identity", ""])
def test_what_is_compressed_on_the_way(hub: HubServer, waits: Waits, coding: str) -> None:
    """A server that compresses an answer, unasked, is refused; one whose files are stored compressed is not."""
    (file,) = list_remote(f"{hub.url}/files/owner/name/data/a.parquet")
    hub.faults = lambda request: Fault(headers={"Content-Encoding": coding})
    assert read(file, 0, len(DATA)) == DATA and read(file, 5, 500) == DATA[5:500]
    for start, stop in [(0, len(DATA)), (5, 500)]:
        hub.faults = [Fault(headers={"Content-Encoding": coding}, short=200)]
        if coding in ("identity", ""):
            assert read(file, start, stop) == DATA[start:stop]
        else:
            with pytest.raises(InputError, match=f"compresses what it sends .{coding}") as caught:
                read(file, start, stop)
            assert "local copy" in caught.value.hint
    assert not waits


def test_changed(hub: HubServer, file: RemoteFile, folder: Path, waits: Waits) -> None:
    """Another ETag or size is refused, also in the middle of a read."""
    hub.faults = lambda request: Fault(headers={"ETag": '"other"', "X-Linked-Etag": '"other"'})
    with pytest.raises(InputError, match="changed") as caught:
        read(file, 0, 10)
    assert caught.value.exit_status == 2
    hub.faults = [*([None] if hub.cdn else []), Fault(cut=5), Fault(headers={"X-Linked-Etag": '"other"'})]
    with pytest.raises(InputError, match="changed"):
        read(file, 0, 10)
    if file.url.startswith("http"):
        (folder / "owner/name/data/a.parquet").write_bytes(DATA[:-1])
        for action in (read, lambda file, *_: check_remote(file)):
            with pytest.raises(InputError, match="changed"):
                action(file, 0, 10)


def test_last_modified(hub: HubServer, waits: Waits) -> None:
    """Where a server has no ETags, its dates tell that a file changed; where it has neither, the size does."""
    for date, other in [("Sat, 28 Nov 2026 00:00:00 GMT", "Sat, 28 Nov 2026 00:00:01 GMT"), ("", "")]:
        hub.faults = lambda request, date=date: Fault(headers={"ETag": "", "Last-Modified": date})  # type: ignore[misc]
        (file,) = list_remote(f"{hub.url}/files/owner/name/data/a.parquet")
        assert file.version == date
        assert read(file, 0, 10) == DATA[:10]
        hub.faults = lambda request, date=other: Fault(headers={"ETag": "", "Last-Modified": date})  # type: ignore[misc]
        if date != other:
            with pytest.raises(InputError, match="changed"):
                read(file, 0, 10)
        with pytest.raises(InputError, match="changed"):
            read(RemoteFile(file.url, file.size + 1, file.version), 0, 10)


def test_certificate(waits: Waits) -> None:
    """A certificate that is not trusted is not waited for."""

    def attempt() -> None:
        raise urllib3.exceptions.SSLError from ssl.SSLCertVerificationError(1, "self-signed")

    url = "https://example.org/a.txt"
    with pytest.raises(InputError, match="certificate is not trusted") as caught:
        retry.Patience(url, fetcher.web).retry(attempt)
    assert "SSL_CERT_FILE" in caught.value.hint and not waits


def test_other_etags_of_a_cdn(hub: HubServer, waits: Waits) -> None:
    """Where the Hub redirects to, files have ETags of that server's own: they say nothing."""
    hub.cdn = True
    (file,) = list_remote(f"{NAME}/data/a.parquet")
    for of_the_hub in (None, Fault(headers={"X-Linked-Etag": ""})):  # the second a mirror's
        hub.faults = lambda request, fault=of_the_hub: (  # type: ignore[misc]
            Fault(headers={"ETag": '"1-of-s3"'}) if "cdn" in request.path else fault
        )
        fetcher.web._places.clear()
        assert read(file, 0, 10) == DATA[:10]


def test_expired_address(hub: HubServer, waits: Waits) -> None:
    """A CDN refuses an address whose time is over: the Hub gives a new one. What passes is waited for there, too."""
    hub.cdn = True
    (file,) = list_remote(f"{NAME}/data/a.parquet")
    hub.faults = [None, Fault(403)]
    assert read(file, 0, 10) == DATA[:10]
    assert len(waits) == 1
    hub.faults = [Fault(503)]  # of an address that is known
    assert read(file, 0, 10) == DATA[:10]
    assert len(waits) == 2


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410])
def test_expired_address_that_is_known(hub: HubServer, waits: Waits, status: int) -> None:
    """Whatever a storage says of an address whose time is over, a new one is asked for at once."""
    hub.cdn = True
    (file,) = list_remote(f"{NAME}/data/a.parquet")
    assert read(file, 0, 10) == DATA[:10]
    hub.faults = [Fault(status)]
    assert read(file, 10, 20) == DATA[10:20]
    assert not waits and not hub.faults


def test_the_hub_is_asked_once(hub: HubServer, waits: Waits) -> None:
    """Where a file is, is asked once for all who read it, and once more when the address is refused."""
    hub.cdn = True
    (file,) = list_remote(f"{NAME}/data/a.parquet")

    def read_all() -> tuple[int, int]:
        hub.log.clear()
        futures = [fetcher.fetch(file, start, start + 1000) for start in range(0, len(DATA), 1000)]
        assert b"".join(future.result() for future in futures) == DATA
        n_hub = sum("/resolve/" in request.path for request in hub.log)
        return n_hub, len(hub.log) - n_hub

    assert read_all() == (1, 300)
    assert read_all() == (0, 300)
    refused = True

    def faults(request: Request) -> Fault | None:
        nonlocal refused
        refused = refused and "/resolve/" not in request.path
        return Fault(403) if refused else None

    hub.faults = faults
    n_hub, n_cdn = read_all()
    assert n_hub == 1 and n_cdn <= 300 + 2 * fetcher.n_connections and not waits


def test_a_silent_answer_holds_up_no_other(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the answer that will say where a file is does not come, others ask; once that is known, none waits."""
    (file,) = list_remote(f"{NAME}/data/a.parquet")
    hub.faults = lambda request: Fault(stall=60) if request.start else None
    hub.log.clear()
    late = fetcher.fetch(file, 1000, 2000)
    while not hub.log:
        time.sleep(0.01)
    assert fetcher.fetch(file, 0, 1000).result(15) == DATA[:1000]
    monkeypatch.setattr(web, "ASK_SECONDS", 1000.0)
    assert fetcher.fetch(file, 0, 999).result(15) == DATA[:999]
    assert not late.done()


def test_the_limit_of_requests(hub: HubServer) -> None:
    """What the Hub says is left of its limit is kept by all connections together: hardly any request is refused."""
    (file,) = list_remote(f"{NAME}/data/a.parquet")
    hub.limit, hub.limit_seconds = 40, 1.0
    futures = [fetcher.fetch(file, start, start + 3000) for start in range(0, len(DATA), 3000)]
    assert b"".join(future.result() for future in futures) == DATA
    statuses = [request.status for request in hub.log if "/resolve/" in request.path]
    assert set(statuses) <= {206, 429}
    assert statuses.count(429) <= len(futures) // 10, "one may come as the server's window ends"


# The token


@pytest.mark.parametrize("place", ["HF_TOKEN", "HF_TOKEN_PATH", "HF_HOME"])
def test_token(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """The token comes from the usual places, goes to the endpoint, and neither to the CDN nor to other servers."""
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    monkeypatch.setenv("HF_HOME", "/nowhere")
    value = {"HF_TOKEN": TOKEN, "HF_TOKEN_PATH": str(tmp_path / "token"), "HF_HOME": str(tmp_path)}[place]
    monkeypatch.setenv(place, value)
    if place != "HF_TOKEN":  # huggingface_hub looks at these two when it is imported
        monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    with HubServer(folder, token=TOKEN, cdn=True) as hub, HubServer(folder) as other:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        (file,) = list_remote(f"{NAME}/data/a.parquet")
        assert read(file, 5, 10) == DATA[5:10]
        assert [request.token for request in hub.log] == [TOKEN] * (len(hub.log) - 1) + [None]
        assert (hub.log[-1].path.split("/")[1], hub.log[-1].status) == ("cdn", 206)
        list_remote(f"{other.url}/files/owner/name/data/a.parquet")
        other.faults = [Fault(302, {"Location": f"{hub.url}/datasets/owner/name/resolve/main/README.md"})]
        assert list_remote(f"{other.url}/x")[0].size == 6
        assert {request.token for request in other.log} == {None}
        assert hub.log[-1].token == TOKEN


def test_token_stays_at_the_hub_while_listing(hub: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The token does not go to where the Hub says that a listing goes on, if that is another server."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with HubServer(folder) as other:
        other.commit("owner/name")
        tree = f"{other.url}/api/datasets/owner/name/tree/main"
        hub.faults = lambda request: (
            Fault(headers={"Link": f'<{tree}>; rel="next"'}) if "/tree/" in request.path else None
        )
        assert list_remote(f"{NAME}/data")
        assert [request.token for request in other.log] == [None]
        assert {request.token for request in hub.log} == {TOKEN}


def test_token_is_never_shown(hub: HubServer, monkeypatch: pytest.MonkeyPatch, waits: Waits) -> None:
    """No error has the token, not even when the server repeats it or it is malformed."""
    (file,) = list_remote(f"{NAME}/data/a.parquet")
    be_patient(progress=0.1)
    for token in (TOKEN, f"{TOKEN}\nhf_more", f"{TOKEN}é"):
        monkeypatch.setenv("HF_TOKEN", token)
        for status in (401, 403, 404, 418, 503):
            hub.faults = lambda request, status=status: Fault(status, {"X-Error-Message": f"no: {TOKEN}"})  # type: ignore[misc]
            with pytest.raises(PrepareError) as caught:
                read(file, 0, 10)
            assert TOKEN not in "".join(traceback.format_exception(caught.value))
    assert not any(TOKEN in what for _, what in waits)


# Servers that are not what they should be


ENDLESS = b'[{"type": "file", "path": "a.parquet", "size": 1, "oid": "0"}, ' * 400_000
TREES = {
    "no JSON": (b"<html>", {}),
    "JSON of another kind": (b'{"a": 1}', {}),
    "entries of other types": (b'[{"type": "file", "path": 7, "size": "x", "oid": null}]', {}),
    "entries that are none": (b"[1, null]", {}),
    "deep": (b"[" * 1_000_000, {}),
    "not UTF-8": (b'["\xff"]', {}),
    "too large": (ENDLESS, {}),
    "a page that is its own next": (b"[]", {"Link": '<?again>; rel="next"'}),
    "file://": (b"[]", {"Link": '<file:///etc/passwd>; rel="next"'}),
    "ftp://": (b"[]", {"Link": '<ftp://127.0.0.1/a>; rel="next"'}),
}


@pytest.mark.parametrize("name", TREES)
def test_hostile_listings(hub: HubServer, monkeypatch: pytest.MonkeyPatch, waits: Waits, name: str) -> None:
    """Whatever the Hub's address answers, listing ends soon with one sentence, and follows only http and https."""
    monkeypatch.setattr(hub_room, "MAX_PAGES", 50)
    body, headers = TREES[name]
    monkeypatch.setattr("tests.hub_server._Handler._tree", lambda *_: (200, headers, body))
    start = time.monotonic()
    with pytest.raises(InputError) as caught:
        list_remote(f"{NAME}/data")
    assert "check" in caught.value.hint and "\n" not in caught.value.message
    assert time.monotonic() - start < 10 and len(hub.log) <= 60


def test_what_is_not_there_or_says_too_little(hub: HubServer, monkeypatch: pytest.MonkeyPatch, waits: Waits) -> None:
    """A folder that the Hub does not have, a file of unknown length, a scheme that nobody knows: one sentence each."""
    with pytest.raises(InputError, match="no such file, or nothing in this folder"):
        list_remote(f"{NAME}/no/such.parquet")
    hub.faults = [Fault(206, {"Content-Range": "bytes 0-0/*"})]
    with pytest.raises(InputError, match="does not say how long it is"):
        list_remote(f"{hub.url}/files/owner/name/data/b.jsonl")
    with pytest.raises(InputError, match="what fsspec knows"):
        list_remote("nobody://x/y")
    memory = pytest.importorskip("fsspec.implementations.memory")
    monkeypatch.setattr(memory.MemoryFileSystem, "isdir", lambda *_: _raise([ConnectionResetError(104, "reset")]))
    with pytest.raises(RemoteError, match=r"memory://x: reset\n  check the network and the login"):
        list_remote("memory://x")


def test_a_commit_that_is_none(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the Hub's address calls a commit goes into no address unless it is a hash."""
    monkeypatch.setattr("tests.hub_server._info", lambda *_: (200, {}, b'{"sha": "../../other"}'))
    with pytest.raises(InputError, match="not the Hub's answer"):
        list_remote(f"{NAME}/data")
    assert len(hub.log) == 1


def test_a_trickle_ends(hub: HubServer, monkeypatch: pytest.MonkeyPatch, waits: Waits) -> None:
    """Bytes that come one by one do not make an answer of the Hub's last for ever."""
    be_patient(page=0.5)
    hub.rate = 100
    monkeypatch.setattr(
        "tests.hub_server._Handler._tree", lambda *_: (200, {}, hub.folder / "owner/name/data/a.parquet")
    )
    start = time.monotonic()
    with pytest.raises(InputError, match="does not end"):
        list_remote(f"{NAME}/data")
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://127.0.0.1/a", "data:,a"])
def test_redirects_to_elsewhere(hub: HubServer, waits: Waits, location: str) -> None:
    """Only http and https are followed, while listing and while reading; and no redirect for ever."""
    (file,) = list_remote(f"{NAME}/data/a.parquet")
    hub.faults = lambda request: Fault(302, {"Location": location})
    for action in (lambda: read(file, 0, 10), lambda: list_remote(f"{hub.url}/files/a.txt"), lambda: list_remote(NAME)):
        with pytest.raises(InputError, match="only http and https"):
            action()
    hub.faults = lambda request: Fault(302, {"Location": request.path})
    with pytest.raises(InputError, match="redirected 8 times"):
        read(file, 0, 10)
    assert not waits


@pytest.mark.parametrize("name", ["donn%C3%A9es.txt", "données.txt".encode().decode("latin-1")])
def test_redirects_to_any_name(hub: HubServer, folder: Path, name: str) -> None:
    """A name in a redirect may be quoted, or UTF-8 as it is."""
    (folder / "données.txt").write_bytes(DATA[:100])
    hub.faults = lambda request: Fault(302, {"Location": f"/files/{name}"}) if "a.txt" in request.path else None
    (file,) = list_remote(f"{hub.url}/files/a.txt")
    assert read(file, 0, 100) == DATA[:100]


# Other schemes


def test_fsspec(waits: Waits) -> None:
    """Any other scheme is read by fsspec: files, folders and globs; what changed or is gone is refused."""
    fsspec = pytest.importorskip("fsspec")
    fs = fsspec.filesystem("memory")
    try:
        for name in ("a.txt", "b.jsonl.zst", "c.png", "deep/d.parquet"):
            fs.pipe_file(f"/remote/{name}", DATA[:1000])
        names = {
            "memory://remote": ["a.txt", "b.jsonl.zst", "c.png", "deep/d.parquet"],
            "memory://remote/": ["a.txt", "b.jsonl.zst", "c.png", "deep/d.parquet"],
            "memory://remote/*": ["a.txt", "b.jsonl.zst", "c.png"],
            "memory://remote/c.png": ["c.png"],
        }
        for name, want in names.items():
            assert sorted(f.url for f in list_remote(name)) == [f"memory://remote/{path}" for path in want]
        (file,) = list_remote("memory://remote/a.txt")
        assert list_remote(file.url) == [file] and file.version
        assert read(file, 10, 90) == DATA[10:90]
        assert read(RemoteFile("s3://b/empty", 0, ""), 0, 0) == b"", "without a request, which some refuse"
        check_remote(file)
        fs.pipe_file("/remote/a.txt", DATA[:50])
        for action in (read, lambda file, *_: check_remote(file)):
            with pytest.raises(InputError, match="changed"):
                action(file, 10, 90)
        fs.rm("/remote", recursive=True)
        with pytest.raises(InputError, match="no such file"):
            read(file, 0, 1)
        with pytest.raises(InputError, match="no such file"):
            list_remote("memory://remote/*")
    finally:
        fs.store.clear()


@pytest.mark.skipif(os.name == "nt", reason="no such names")
@pytest.mark.parametrize("name", ["a[1].txt", "a?.txt", "a*.txt"])
def test_names_with_wildcards(hub: HubServer, folder: Path, tmp_path: Path, name: str) -> None:
    """A file whose name has wildcards is read by its name, alone or in its folder, and found to be as it was."""
    pytest.importorskip("fsspec")
    places = {f"file://{tmp_path}/wild": tmp_path / "wild", f"{NAME}/data/wild": folder / "owner/name/data/wild"}
    for root, place in places.items():
        place.mkdir()
        for each in (name, "a1.txt"):
            (place / each).write_bytes(DATA[:100])
        for file in list_remote(root):
            check_remote(file)
        (file,) = list_remote(f"{root}/{name}")
        assert file.url.endswith(f"/wild/{name}") and read(file, 0, 100) == DATA[:100]
    (tmp_path / "wild" / "a1.txt").unlink()
    with pytest.raises(InputError, match=r"changed|no such file"):
        check_remote(RemoteFile(f"file://{tmp_path}/wild/a1.txt", 100, ""))


@pytest.mark.parametrize("info", [{}, {"size": None}])
def test_fsspec_without_sizes(monkeypatch: pytest.MonkeyPatch, info: dict[str, None]) -> None:
    """A file whose length its storage does not say is named as that, and not called empty."""
    memory = pytest.importorskip("fsspec.implementations.memory")
    monkeypatch.setattr(memory.MemoryFileSystem, "info", lambda _, name: {"name": name, "type": "file", **info})
    with pytest.raises(InputError, match=r"memory://x/a\.txt: the storage does not say how long it is"):
        list_remote("memory://x/a.txt")


def test_fsspec_patience(monkeypatch: pytest.MonkeyPatch, waits: Waits) -> None:
    """Network errors of other schemes are waited out; others are told."""
    memory = pytest.importorskip("fsspec.implementations.memory")
    errors: list[Exception] = [ConnectionResetError(), TimeoutError(), RuntimeError("of some package's own")]
    monkeypatch.setattr(
        memory.MemoryFileSystem, "cat_file", lambda *_, **__: DATA[:5] if not errors else _raise(errors)
    )
    file = RemoteFile("memory://x", 10, "")
    assert read(file, 0, 5) == DATA[:5]
    assert len(waits) == 3 and "own" in waits[0][1]
    errors[:] = [PermissionError()]
    with pytest.raises(InputError, match="access denied"):
        read(file, 0, 5)


def _raise(errors: list[Exception]) -> bytes:
    raise errors.pop()


@pytest.mark.parametrize(
    ("name", "hint"), [("s3://b/k", "pip install -U fsspec s3fs"), ("gs://b", "pip install -U fsspec gcsfs")]
)
def test_missing_package(monkeypatch: pytest.MonkeyPatch, name: str, hint: str) -> None:
    """A package that is missing is named with the command that installs it."""
    monkeypatch.setitem(__import__("sys").modules, "fsspec.core", None)
    with pytest.raises(InputError) as caught:
        list_remote(name)
    assert caught.value.hint == hint
    with pytest.raises(InputError, match=r"pip install -U fsspec$"):
        list_remote("memory://x")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("zip://a.txt::file:///b.zip", "a file inside another\n  unpack it"),
        ("github://owner/a.txt", "missing .* 'org' and 'repo'"),
        ("nosuch://a.txt", "Protocol not known"),
        ("pyscript://a.txt", "needs a package\n  This only runs in|Protocol not known"),  # older: no such one
    ],
)
def test_schemes_that_are_not_read(name: str, said: str) -> None:
    """What fsspec cannot open, or only in a way that is not supported, is refused at once with its reason."""
    pytest.importorskip("fsspec")
    with pytest.raises(InputError, match=said):
        list_remote(name)


# The file object


@pytest.mark.parametrize(
    ("buffer_bytes", "ahead_bytes"), [(0, 0), (1, 0), (1000, 0), (1 << 20, 0), (0, 4000), (7, 900)]
)
def test_reader(hub: HubServer, monkeypatch: pytest.MonkeyPatch, buffer_bytes: int, ahead_bytes: int) -> None:
    """Whatever the buffer, and however much is read ahead, reads and seeks are those of a file."""
    monkeypatch.setattr(network, "MIN_RANGE_BYTES", 500)
    (remote_file,) = list_remote(f"{NAME}/data/a.parquet")
    local = (hub.folder / "owner/name/data/a.parquet").open("rb")
    rng = random.Random(buffer_bytes)
    with local, RemoteReader(Network(fetcher), remote_file, buffer_bytes, ahead_bytes) as reader:
        for _ in range(60):
            whence = rng.randrange(3)
            position = rng.randrange(-500, 500) + (0, 0, len(DATA) // 2)[whence] * rng.choice([0, -1])
            if (whence and local.tell() + position > 0) or position >= 0:
                assert reader.seek(position, whence) == local.seek(position, whence)
            n = rng.choice([0, 1, 7, 300, 3000])
            assert reader.read(n) == local.read(n)
            assert reader.tell() == local.tell()
        reader.seek(-10, 2)
        assert (reader.read(), reader.read(5), reader.closed) == (DATA[-10:], b"", False)
        reader.seek(5)
        assert reader.read(10) == DATA[5:15]
    assert reader.closed
    with pytest.raises(ValueError, match="closed"):
        reader.read(1)


def test_reader_requests(hub: HubServer, file: RemoteFile) -> None:
    """Small reads share a request; without a buffer each is exact."""
    hub.cdn = False
    for buffer_bytes, n_requests, n_bytes in [(100_000, 1, 100_000), (0, 10, 10_000)]:
        hub.log.clear()
        with RemoteReader(Network(fetcher), file, buffer_bytes) as reader:
            assert b"".join(reader.read(1000) for _ in range(10)) == DATA[:10_000]
        assert (len(hub.log), sum(request.n_bytes for request in hub.log)) == (n_requests, n_bytes)


def test_parquet(hub: HubServer, file: RemoteFile, folder: Path) -> None:
    """Pyarrow reads the same table through it, and only footer and text column travel, each chunk in one request."""
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    rng = random.Random(0)
    texts = [rng.randbytes(50).hex() for _ in range(8000)]
    table = pa.table({"id": [rng.randbytes(100).hex() for _ in texts], "text": texts, "n": range(8000)})
    path = folder / "owner/name/data/a.parquet"
    pq.write_table(table, path, row_group_size=2000)
    hub.commit("owner/name")
    (file,) = list_remote(file.url if file.url.startswith("http") else f"{NAME}/data/a.parquet")
    hub.log.clear()
    with RemoteReader(Network(fetcher), file, buffer_bytes=0) as reader:
        parquet = pq.ParquetFile(reader, pre_buffer=False, buffer_size=0)
        footer_bytes = sum(request.n_bytes for request in hub.log)
        assert footer_bytes <= 70_000
        hub.log.clear()
        got = [parquet.read_row_group(i, ["text"], use_threads=False) for i in range(4)]
    assert pa.concat_tables(got) == table.select(["text"])
    chunks = [parquet.metadata.row_group(i).column(1) for i in range(4)]
    reads = [request for request in hub.log if request.status == 206]
    assert [request.n_bytes for request in reads] == [chunk.total_compressed_size for chunk in chunks]
    assert sum(request.n_bytes for request in reads) < path.stat().st_size / 2
    with RemoteReader(Network(fetcher), file) as reader:
        assert pq.read_table(reader, use_threads=False) == table
