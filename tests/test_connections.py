"""Connections that are used again, closed by whom and when they are, and reads that end with the run."""

from __future__ import annotations

import base64
import contextlib
import http.server
import re
import shutil
import socket
import socketserver
import ssl
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import urllib3

from fineweb_stream.remote import hub, retry
from fineweb_stream.remote.network import Fetcher, Network, RemoteFile, Timeouts
from fineweb_stream.support.cancel import NEVER, Cancel
from fineweb_stream.support.errors import Cancelled, InputError, PrepareError, RemoteError

from .hub_server import Fault, HubServer

DATA = bytes(range(256)) * 1000


fetcher: Fetcher


@pytest.fixture(autouse=True)
def one_connection(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No connection of another test, and no proxy; one thread that reads."""
    global fetcher
    monkeypatch.setenv("no_proxy", "*")
    with Fetcher(n_connections=1) as fetcher:
        yield


def list_remote(name: str) -> list[RemoteFile]:
    return hub.list_remote(name, Network(fetcher))


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was waited for."""
    found: list[str] = []
    monkeypatch.setattr(retry.Pacing, "pause", lambda pacing, seconds, what: found.append(what))
    return found


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HubServer]:
    (tmp_path / "a.txt").write_bytes(DATA)
    (tmp_path / "b.txt").write_bytes(DATA)
    with HubServer(tmp_path) as server:
        yield server


def read(server: HubServer, start: int, stop: int, cancel: Cancel = NEVER) -> bytes:
    return Network(fetcher, cancel).read(RemoteFile(f"{server.url}/files/a.txt", len(DATA), ""), start, stop)


def test_connections_are_used_again(server: HubServer, waits: list[str]) -> None:
    """There are as many as there are threads, also when requests are refused or redirected in between."""
    server.faults = lambda request: (
        Fault(302, {"Location": f"{server.url}/files/b.txt"}) if "a.txt" in request.path else None
    )
    fetcher.n_connections = 3
    with ThreadPoolExecutor(9) as pool:
        found = list(pool.map(lambda start: read(server, start, start + 500), range(90)))
    assert found == [DATA[start : start + 500] for start in range(90)]
    assert len(server.log) == 1 + 90, "where it is, is asked once"
    assert (server.n_connections <= 3, waits) == (True, [])


def test_an_open_one_is_used_before_a_new_one(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that allows one connection, and refuses more, answers all threads, each once another's ends."""
    monkeypatch.setattr(server, "verify_request", lambda *_: not server._connections)
    fetcher.n_connections, fetcher.web.timeouts = 2, Timeouts(progress=2.0)
    server.faults = [Fault(stall=0.2)]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda start: read(server, start, start + 500), (0, 500)))
    assert found == [DATA[:500], DATA[500:1000]]
    assert len(server.log) == 2 and server.n_connections == 1


@pytest.mark.parametrize("status", [302, 404, 503])
def test_an_answer_without_a_body_is_over(server: HubServer, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection is used again at once, also while what was answered is still held."""
    headers = {"Location": "/files/b.txt"} if status == 302 else {}
    server.faults = lambda request: Fault(status, headers, short=0) if "a.txt" in request.path else None
    held, send_once = [], fetcher.web._send_once
    monkeypatch.setattr(fetcher.web, "_send_once", lambda *args: held.append(send_once(*args)) or held[-1])
    for _ in range(3):
        with contextlib.suppress(retry.Refused), fetcher.web.send(f"{server.url}/files/a.txt", 60) as response:
            assert response.read() == DATA
    assert (len(server.log), server.n_connections) == (len(held), 1)


def test_a_closed_one_is_replaced_at_once(server: HubServer, waits: list[str]) -> None:
    """A server that closed the connection meanwhile has not failed; one that closes the next one as well has."""
    read(server, 0, 10)
    server.faults = [Fault(cut=-1)]
    assert read(server, 10, 20) == DATA[10:20]
    assert (server.n_connections, waits) == (2, [])
    server.faults = [Fault(cut=-1), Fault(cut=-1)]
    assert read(server, 20, 30) == DATA[20:30]
    assert server.n_connections == 4 and len(waits) == 1


def test_an_answer_that_was_not_read_ends_it(server: HubServer) -> None:
    """What is left of one answer is never taken for the next."""
    read(server, 0, 10)
    with fetcher.web.send(f"{server.url}/files/a.txt", 60) as response:
        assert response.read1(5) == DATA[:5]
    assert read(server, 20, 30) == DATA[20:30]
    server.faults = [Fault(404)]
    with pytest.raises(InputError):
        read(server, 0, 10)
    assert read(server, 30, 40) == DATA[30:40]
    assert server.n_connections <= 3


@pytest.mark.parametrize("cut", [None, 5])
def test_a_read_that_hangs_ends_with_the_run(server: HubServer, cut: int | None) -> None:
    """Whoever waits for a silent server leaves soon when told to; other reads go on, and nothing is left at the end."""
    fetcher.n_connections = 2
    cancel = Cancel()
    read(server, 0, 10)
    server.faults = [Fault(stall=60, cut=cut)]
    timer = threading.Timer(0.3, cancel.set)
    timer.start()
    start = time.monotonic()
    with pytest.raises(Cancelled):
        read(server, 0, 10, cancel)
    assert time.monotonic() - start < 5
    timer.join()
    assert read(server, 0, 10) == DATA[:10]
    fetcher.close()
    while any(thread.name.startswith("fetch") for thread in threading.enumerate()):
        assert time.monotonic() - start < 5
        time.sleep(0.05)


def test_reserved_connections() -> None:
    """They are free for what is waited for, however many of those are busy with it; the others fetch ahead."""
    fetcher.n_connections = 5
    fetcher.reserve(4)
    go, begun = threading.Event(), [threading.Event() for _ in range(3)]
    first = [fetcher.submit(lambda: go.wait(20)) for _ in range(3)]
    ahead = [fetcher.submit(lambda event=event: event.set() or go.wait(20), priority=1) for event in begun]  # type: ignore[misc]
    try:
        assert begun[0].wait(5)
        assert fetcher.submit(lambda: 7).result(10) == 7
        assert not begun[1].is_set()
        fetcher.reserve(0)
        assert begun[1].wait(5)
    finally:
        go.set()
    assert all(future.result(10) for future in [*first, *ahead])


def test_headers_that_are_cut_off(waits: list[str]) -> None:
    """Wherever an answer is cut off, the request is sent again, both for the length and for a part."""
    answer = b'HTTP/1.1 206 OK\r\nContent-Length: 1\r\nETag: "1"\r\nContent-Range: bytes 0-0/10\r\n\r\nx'
    cuts: list[int] = []

    def serve() -> None:
        while cuts:
            connection, _ = server.accept()
            with connection:
                connection.recv(9999)
                connection.sendall(answer[: cuts.pop()])

    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/a.txt"
        for cut in range(1, len(answer)):
            cuts[:] = [len(answer), cut, len(answer), cut]
            thread = threading.Thread(target=serve)
            thread.start()
            (file,) = list_remote(url)
            assert file.size == 10 and Network(fetcher).read(file, 0, 1) == b"x"
            thread.join(20)
            cuts.clear()


SILENT = {
    "in a handshake": ("https", b""),
    "before a tunnel": ("https", b""),
    "after a tunnel": ("https", b"HTTP/1.1 200 OK\r\n\r\n"),
    "in a last answer": ("http", b"HTTP/1.1 206 OK\r\nContent-Range: bytes 0-9/10\r\nConnection: close\r\n\r\n0123"),
    "and was reached late": ("http", b""),
}


@pytest.mark.parametrize("when", SILENT)
def test_a_connection_that_hangs_ends_with_the_run(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a server or a proxy is silent, no thread is left at the end, also of a connection made meanwhile."""
    scheme, said = SILENT[when]
    asked, may_connect = threading.Event(), threading.Event()
    connected: list[socket.socket] = []

    def serve() -> None:
        connection, _ = server.accept()
        connected.append(connection)
        connection.recv(9999)
        connection.sendall(said)
        if "after" in when:
            connection.recv(9999)
        asked.set()

    def connect(connection: urllib3.connection.HTTPConnection) -> socket.socket:
        if "late" in when:
            asked.set()
            assert may_connect.wait(20)
        return real(connection)

    real = urllib3.connection.HTTPConnection._new_conn
    monkeypatch.setattr(urllib3.connection.HTTPConnection, "_new_conn", connect)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        if "tunnel" in when:
            monkeypatch.delenv("no_proxy")
            monkeypatch.setenv("https_proxy", f"http://{address}")
        thread = threading.Thread(target=serve)
        thread.start()
        future = fetcher.fetch(RemoteFile(f"{scheme}://{address}/a.txt", 10, ""), 0, 10)
        assert asked.wait(20)
        start = time.monotonic()
        fetcher.close()
        may_connect.set()
        assert isinstance(future.exception(20), Cancelled)
        assert time.monotonic() - start < 10, "that of a socket is 20 s"
        thread.join()
        connected[0].close()


def test_no_idle_socket_is_left(server: HubServer) -> None:
    """All are closed at the end, even if an error that is kept still refers to them."""
    url = f"{server.url}/files/a.txt"
    with fetcher.web.send(url, 60, {"Range": "bytes=0-0"}) as one, fetcher.web.send(url, 60) as other:
        assert (one.read(), other.read()) == (DATA[:1], DATA)
    server.faults = [Fault(stall=60)]
    n_asked = len(server.log)
    future = fetcher.fetch(RemoteFile(url, len(DATA), ""), 0, 10)
    while len(server.log) == n_asked:
        time.sleep(0.01)
    fetcher.close()
    assert isinstance(future.exception(20), Cancelled)
    assert {sock.fileno() for sock in list(fetcher.web._opened)} <= {-1}


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate of localhost that nobody trusts, and a context that serves it in `encrypt`."""
    if not shutil.which("openssl"):
        pytest.skip("nothing here makes certificates")
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    make += ["-addext", "subjectAltName=DNS:localhost", "-keyout", tmp_path / "key.pem", "-out", tmp_path / "ca.pem"]
    subprocess.run(make, check=True, capture_output=True)
    return tmp_path / "ca.pem"


def encrypt(server: socketserver.TCPServer, certificate: Path) -> None:
    """Let a server speak https."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that does not trust it hangs up


def test_encrypted(server: HubServer, certificate: Path, monkeypatch: pytest.MonkeyPatch, waits: list[str]) -> None:
    """It is the same by https: one connection, reads that end with the run, and a certificate that must be trusted."""
    encrypt(server, certificate)
    server.url = server.url.replace("http://127.0.0.1", "https://localhost")
    with pytest.raises(InputError, match="certificate is not trusted"):
        list_remote(f"{server.url}/files/a.txt")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    fetcher.web._managers.clear()
    server.n_connections = 0
    (file,) = list_remote(f"{server.url}/files/a.txt")
    assert file.size == len(DATA)
    for start in range(0, 200_000, 20_000):
        assert read(server, start, start + 20_000) == DATA[start : start + 20_000]
    assert server.n_connections <= 2 and not waits
    server.faults = [Fault(cut=-1)]
    assert read(server, 10, 20) == DATA[10:20]
    assert not waits
    test_a_read_that_hangs_ends_with_the_run(server, 5)


def test_login_of_an_address(server: HubServer) -> None:
    """user:password@ is sent as HTTP's basic login to that server, and is no part of the host's name."""
    url = f"{server.url}/files/a.txt".replace("://", "://me:p%40ss@")
    (file,) = list_remote(url)
    assert Network(fetcher).read(file, 10, 20) == DATA[10:20]
    assert {request.headers["Authorization"] for request in server.log} == {"Basic bWU6cEBzcw=="}


@pytest.mark.parametrize(
    ("target", "is_sent"),
    [("/files/b.txt", True), ("URL/files/b.txt", True), ("URL2/files/b.txt", False), ("URL3/files/b.txt", False)],
)
def test_login_of_an_address_after_a_redirect(server: HubServer, target: str, is_sent: bool) -> None:
    """It is sent to the same server again, however the redirect is written; to no other host or port."""
    with HubServer(server.folder) as other:
        target = target.replace("URL2", server.url.replace("127.0.0.1", "localhost")).replace("URL3", other.url)
        location = {"Location": target.replace("URL", server.url)}
        server.faults = lambda request: Fault(302, location) if "a.txt" in request.path else None
        url = f"{server.url}/files/a.txt".replace("://", "://me:p%40ss@")
        (file,) = list_remote(url)
        assert Network(fetcher).read(file, 10, 20) == DATA[10:20]
        assert Network(fetcher).read(file, 20, 30) == DATA[20:30]
        logins = [request.headers["Authorization"] for request in [*server.log, *other.log] if "b.txt" in request.path]
    assert logins == ["Basic bWU6cEBzcw==" if is_sent else None] * 3


class _Proxy(http.server.BaseHTTPRequestHandler):
    """Wants a login, or connects to nothing, with this status; passes plain http on."""

    status = 407

    def do_CONNECT(self) -> None:
        self.send_error(self.status)

    def do_GET(self) -> None:
        if self.headers.get("Proxy-Authorization") != f"Basic {base64.b64encode(b'me:p@ss').decode()}":
            return self.send_error(407)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(self.path) as answer:
            self.send_response(200)
            for name in ("Content-Length", "ETag", "Accept-Ranges"):
                if name in answer.headers:
                    self.send_header(name, answer.headers[name])
            self.end_headers()
            self.wfile.write(answer.read())

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a proxy; none is set."""
    for name in ("no_proxy", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Proxy) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_refuses_the_login(scheme: str, proxy: str, waits: list[str], monkeypatch) -> None:
    """It is said at once, with the variable to set, and without the password."""
    monkeypatch.setenv(f"{scheme}_proxy", f"http://me:secret@{proxy}")
    with pytest.raises(InputError, match=r"the proxy refuses the login \(HTTP 407\)") as caught:
        list_remote(f"{scheme}://data.example/c.jsonl")
    assert f"set {scheme}_proxy=http://USER:PASSWORD@" in caught.value.hint
    assert "secret" not in str(caught.value)
    assert not waits


@pytest.mark.parametrize(("status", "kind", "n_waits"), [(403, InputError, 0), (503, RemoteError, 1)])
def test_a_proxy_that_does_not_connect(
    status: int, kind: type[PrepareError], n_waits: int, proxy: str, waits: list[str], monkeypatch
) -> None:
    """What it refuses is said at once; what it cannot do now is waited for."""
    fetcher.web.timeouts = Timeouts(contact=5.0)
    monkeypatch.setattr(_Proxy, "status", status)
    monkeypatch.setenv("https_proxy", f"http://{proxy}")
    with pytest.raises(kind, match=rf"proxy (does not connect to it \(|says )HTTP {status}"):
        list_remote("https://data.example/c.jsonl")
    assert (len(waits) > 0) == n_waits


def test_what_is_said_of_a_proxy_works(proxy: str, server: HubServer, monkeypatch) -> None:
    """By the variable with the login, written as it is said, the file is read; so it is by no_proxy."""
    monkeypatch.setenv("http_proxy", f"http://me:no@{proxy}")
    with pytest.raises(InputError) as caught:
        read(server, 0, 99)
    variable, value = re.findall(r"(\w+_proxy)=(\S+)", caught.value.hint)[0]
    monkeypatch.setenv(variable, value.replace("USER:PASSWORD@PROXY:PORT", f"me:p%40ss@{proxy}"))
    assert read(server, 0, len(DATA)) == DATA
    monkeypatch.setenv("http_proxy", f"http://me:no@{proxy}")
    variable, value = re.findall(r"(no_proxy)=(\S+)", caught.value.hint)[0]
    monkeypatch.setenv(variable, value)
    assert read(server, 0, 99) == DATA[:99]


def test_a_proxy_that_is_none(proxy: str, server: HubServer, waits: list[str], monkeypatch) -> None:
    """An address that cannot be a proxy's is named, without its password; so is a proxy that does not answer."""
    fetcher.web.timeouts = Timeouts(contact=0.5)
    for value in ("socks5://me:secret@127.0.0.1:1080", "127.0.0.1:99999"):
        monkeypatch.setenv("http_proxy", value)
        with pytest.raises(InputError, match=r"^the proxy \S+: not an address of an HTTP proxy") as caught:
            list_remote(f"{server.url}/files/a.txt")
        assert "secret" not in str(caught.value)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("http_proxy", f"127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(RemoteError):
            list_remote(f"{server.url}/files/a.txt")
        assert ": the proxy: " in waits[0]
    monkeypatch.setenv("http_proxy", f"http://me:p%40ss@{proxy}")
    assert read(server, 0, len(DATA)) == DATA


@pytest.mark.parametrize("is_trusted", [True, False])
def test_an_encrypted_proxy(
    is_trusted: bool, proxy: str, server: HubServer, certificate: Path, waits: list[str], monkeypatch
) -> None:
    """Its certificate must be trusted as a server's: what is said of one that is not is no silence."""
    fetcher.web.timeouts = Timeouts(progress=5.0)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Proxy) as encrypted:
        encrypt(encrypted, certificate)
        thread = threading.Thread(target=encrypted.serve_forever)
        thread.start()
        try:
            monkeypatch.setenv("http_proxy", f"https://me:p%40ss@localhost:{encrypted.server_port}")
            if is_trusted:
                monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
                assert read(server, 0, len(DATA)) == DATA
            else:
                with pytest.raises(InputError, match="the proxy's certificate is not trusted") as caught:
                    read(server, 0, 99)
                assert "SSL_CERT_FILE" in caught.value.hint
            assert not waits
        finally:
            fetcher.close()  # what is kept open would be waited for
            encrypted.shutdown()
            thread.join()
