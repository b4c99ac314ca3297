"""A Hugging Face Hub in a folder, for tests: the HTTP that `huggingface_hub` needs to list and read datasets.

    with HubServer(folder) as hub:
        HfFileSystem(endpoint=hub.url, token=False).glob("datasets/owner/name/*.parquet")

FOLDER/owner/name/... is the dataset `owner/name`. Its first commit is what the folder holds at the first request;
`hub.commit("owner/name")` makes a further one and moves `main`; older ones stay. What is spoken:

    GET  /api/datasets/O/N[/revision/REV][?blobs&expand]   repo info; REV is a branch or a full commit sha
    GET  /api/datasets/O/N/tree/REV[/PATH][?recursive]     a page of entries, folders first; `Link` names the next
    POST /api/datasets/O/N/paths-info/REV                  the same entries for a list of paths
    GET, HEAD /datasets/O/N/resolve/REV/PATH               a file; with `cdn` a redirect to another host name
    GET, HEAD /files/PATH                                  FOLDER/PATH as it is now, as any web server has it

Files take one range and have ETags; those with a suffix of LFS_SUFFIXES are LFS files (ETag: their sha256). Not spoken:
https, models, spaces, writing, refs, commit lists, short shas, conditional requests, several ranges, compression, and
xet (the tree names a `xetHash` as the Hub's does, but nobody serves it; `resolve` does not offer it).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit

LFS_SUFFIXES = (".parquet", ".gz", ".zst", ".bin")


@dataclass
class Request:
    """A line of the log. `start` and `stop` (exclusive) are of the range asked for, `n_bytes` of body were sent.

    A range of the last n bytes has `start` -n; `stop` is None where the range has no end.
    """

    method: str
    path: str
    query: dict[str, str]
    headers: Message
    start: int | None = None
    stop: int | None = None
    status: int = 0
    n_bytes: int = 0

    @property
    def token(self) -> str | None:
        authorization = self.headers.get("Authorization")
        return authorization.removeprefix("Bearer ") if authorization else None


class Fault(NamedTuple):
    """What goes wrong with one request.

    `status` replaces the answer's; `headers` are added. `cut` hangs up after so many bytes of the body, -1 before any
    answer. `stall` waits so many seconds, after `cut` bytes or before the answer. `short` sends only so many bytes and
    says so, as if the range ended there. `no_range` sends the whole file.
    """

    status: int = 0
    headers: Mapping[str, str] = {}
    cut: int | None = None
    stall: float = 0
    short: int | None = None
    no_range: bool = False


def _error(status: int, code: str, message: str) -> Fault:
    return Fault(status, {"X-Error-Code": code, "X-Error-Message": message})


GATED = _error(403, "GatedRepo", "Access to dataset is restricted and you are not in the authorized list.")
REPO_NOT_FOUND = _error(404, "RepoNotFound", "Repository not found")
REVISION_NOT_FOUND = _error(404, "RevisionNotFound", "Invalid rev id")
ENTRY_NOT_FOUND = _error(404, "EntryNotFound", "Entry not found")
# What is private or absent is 401 without a token. The code makes clients act on http:// as they do on https://.
NO_TOKEN = _error(401, "RepoNotFound", "Invalid username or password.")
BAD_TOKEN = Fault(401, {"X-Error-Message": "Invalid credentials in Authorization header"})


def rate_limited(seconds: int) -> Fault:
    """429, come back in so many seconds; the Hub says it in both headers."""
    return Fault(429, {"Retry-After": str(seconds), "RateLimit": f'"api";r=0;t={seconds}'})


class Commit(NamedTuple):
    """A state of a repo: the tree's entries by path, folders first as the Hub lists them."""

    sha: str
    entries: dict[str, dict[str, Any]]


Answer = tuple[int, Mapping[str, str], bytes | Path]  # status, headers and body, a file's being its path


class _Refused(Exception):
    """The Hub's own answer to a bad request: a `Fault`."""


class HubServer(ThreadingHTTPServer):
    """Serves FOLDER while entered. `log` lists the requests in order of arrival.

    `faults` is a list, taken from the front, one for each request (None: nothing wrong), or a function of the request.
    With `token` every request to the Hub must carry it; with `cdn` LFS files are redirected to where none may.

    `latency` and `cdn_latency` are how long an answer takes to begin (seconds), `rate` is what a connection brings
    (bytes a second). `limit` is how many requests the Hub allows in `limit_seconds`; it says what is left of them.
    """

    latency = cdn_latency = limit_seconds = 0.0
    rate: float | None = None
    limit: int | None = None

    daemon_threads = False  # so that leaving waits for the connections' threads

    def __init__(self, folder: Path, *, token: str | None = None, cdn: bool = False, page_size: int = 1000) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder, self.token, self.cdn, self.page_size = folder, token, cdn, page_size
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.log: list[Request] = []
        self.n_connections = 0  # that were ever made
        self.faults: list[Fault | None] | Callable[[Request], Fault | None] = []
        self.closing = threading.Event()
        self.blobs = Path(tempfile.mkdtemp(prefix="hub-"))  # the commits' files by ETag: LFS files' sha256, others' oid
        self._refs: dict[str, dict[str, Commit]] = {}  # of a repo: commits by branch and by sha
        self._connections: set[Any] = set()
        self._asked: list[float] = []  # when the requests came that count for the limit
        self._lock = threading.RLock()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), name="hub")

    def __enter__(self) -> HubServer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.closing.set()
        self.shutdown()
        self._thread.join()
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)  # clients keep them open: wake the threads that wait
        self.server_close()
        shutil.rmtree(self.blobs)

    def commit(self, repo: str, branch: str = "main") -> str:
        """Take what the repo's folder holds now as a new commit that `branch` points to; return its sha."""
        folder = self.folder / repo
        paths = sorted(folder.rglob("*"), key=lambda path: (path.is_file(), path))
        entries = {name: self._entry(name, path) for path in paths if (name := path.relative_to(folder).as_posix())}
        with self._lock:
            refs = self._refs.setdefault(repo, {})
            sha = hashlib.sha1(json.dumps([repo, len(refs), entries]).encode()).hexdigest()
            refs[sha] = refs[branch] = Commit(sha, entries)
        return sha

    def find_commit(self, repo: str, revision: str) -> Commit:
        """Look a branch or a sha up."""
        with self._lock:
            if repo not in self._refs and (self.folder / repo).is_dir():
                self.commit(repo)
            if repo not in self._refs:
                raise _Refused(REPO_NOT_FOUND if self.token else NO_TOKEN)
            if revision not in self._refs[repo]:
                raise _Refused(REVISION_NOT_FOUND)
            return self._refs[repo][revision]

    def next_fault(self, request: Request) -> Fault:
        """Take the fault that is meant for a request."""
        with self._lock:
            if callable(self.faults):
                return self.faults(request) or Fault()
            return (self.faults.pop(0) if self.faults else None) or Fault()

    def count(self) -> tuple[int, float]:
        """Count one request to the Hub; return how many are left (-1: this one is too many), and for how long."""
        assert self.limit is not None
        with self._lock:
            now = time.monotonic()
            if not self._asked or now - self._asked[0] > self.limit_seconds:  # a fixed window, as the Hub's is
                self._asked = []
            self._asked.append(now)
            return max(self.limit - len(self._asked), -1), self._asked[0] + self.limit_seconds - now

    def _entry(self, name: str, path: Path) -> dict[str, Any]:
        """Describe a file or folder as the tree does, and keep a copy of a file."""
        if path.is_dir():
            return {"type": "directory", "oid": hashlib.sha1(name.encode()).hexdigest(), "size": 0, "path": name}
        data = path.read_bytes()
        etag = oid = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        entry: dict[str, Any] = {"type": "file", "oid": oid, "size": len(data), "path": name}
        if path.suffix in LFS_SUFFIXES:
            etag = hashlib.sha256(data).hexdigest()
            entry["lfs"] = {"oid": etag, "sha256": etag, "size": len(data), "pointerSize": 134}
            entry["xetHash"] = hashlib.sha256(etag.encode()).hexdigest()
        (self.blobs / etag).write_bytes(data)
        return entry

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self.n_connections += 1
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # clients hang up when they like
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two writes: with Nagle's algorithm each answer takes 40 ms
    server: HubServer

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        form = parse_qs(self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode())
        start, stop = _parse_range(self.headers.get("Range", ""))
        request = Request(self.command, unquote(url.path), query, self.headers, start, stop)
        if url.path == "/api/agent-harnesses":  # asked once a process, for the user agent: not the tests' business
            self._send(request, Fault(), _json({"standardEnvVars": [], "harnesses": {}}))
            return
        self.server.log.append(request)
        is_cdn = url.path.startswith(("/cdn/", "/files/"))
        self.server.closing.wait(self.server.cdn_latency if is_cdn else self.server.latency)
        fault = self.server.next_fault(request)
        if self.server.limit is not None and not is_cdn:
            n_left, seconds = self.server.count()
            limit = {"RateLimit": f'"api";r={max(n_left, 0)};t={seconds + 0.5:.0f}'}
            fault = Fault(429, limit | {"Retry-After": f"{seconds + 0.5:.0f}"}) if n_left < 0 else Fault(headers=limit)
        if fault.cut is None:
            self.server.closing.wait(fault.stall)
        try:
            if fault.status:
                raise _Refused(fault)
            answer = self._route([unquote(part) for part in url.path.split("/")[1:]], request, form)
        except _Refused as error:
            status, headers, *_ = error.args[0]
            answer = (status, headers, json.dumps({"error": headers.get("X-Error-Message", "")}).encode())
        self._send(request, fault, answer)

    do_HEAD = do_POST = do_GET

    def _route(self, parts: list[str], request: Request, form: dict[str, list[str]]) -> Answer:
        match parts:
            case ["files", *path] if (file := self.server.folder.joinpath(*path)).is_file():
                info = file.stat()
                return 200, {"ETag": f'"{info.st_mtime_ns:x}-{info.st_size:x}"'}, file
            case ["cdn", sha256]:
                if request.token:  # a signed URL refuses a second authorization
                    raise _Refused(Fault(400))
                return 200, {"ETag": f'"{sha256}"'}, self.server.blobs / sha256
            case ["api", "datasets", *_] | ["datasets", *_] if self.server.token not in (None, request.token):
                raise _Refused(BAD_TOKEN if request.token else NO_TOKEN)
            case ["api", "datasets", owner, name]:
                return _info(f"{owner}/{name}", self.server.find_commit(f"{owner}/{name}", "main"), request.query)
            case ["api", "datasets", owner, name, "revision", revision]:
                return _info(f"{owner}/{name}", self.server.find_commit(f"{owner}/{name}", revision), request.query)
            case ["api", "datasets", owner, name, "tree", revision, *path]:
                return self._tree(self.server.find_commit(f"{owner}/{name}", revision), "/".join(path), request)
            case ["api", "datasets", owner, name, "paths-info", revision]:
                entries = self.server.find_commit(f"{owner}/{name}", revision).entries
                return _json([entries[path] for path in form["paths"] if path in entries])
            case ["datasets", owner, name, "resolve", revision, *path]:
                return self._resolve(self.server.find_commit(f"{owner}/{name}", revision), "/".join(path))
        raise _Refused(Fault(404))

    def _tree(self, commit: Commit, folder: str, request: Request) -> Answer:
        if folder and commit.entries.get(folder, {}).get("type") != "directory":
            raise _Refused(ENTRY_NOT_FOUND)
        prefix = folder and folder + "/"
        is_recursive = request.query.get("recursive", "").lower() == "true"  # older clients write True
        paths = [path for path in commit.entries if path.startswith(prefix)]
        paths = [path for path in paths if is_recursive or "/" not in path[len(prefix) :]]
        start = int(request.query.get("cursor", 0))
        stop = start + self.server.page_size
        headers = {}
        if stop < len(paths):
            url = f"{self.server.url}{quote(request.path)}?recursive={str(is_recursive).lower()}&cursor={stop}"
            headers = {"Link": f'<{url}>; rel="next"'}
        return _json([commit.entries[path] for path in paths[start:stop]], headers)

    def _resolve(self, commit: Commit, path: str) -> Answer:
        entry = commit.entries.get(path, {})
        if entry.get("type") != "file":
            raise _Refused(ENTRY_NOT_FOUND)
        etag = entry.get("lfs", entry)["oid"]
        headers = {"X-Repo-Commit": commit.sha, "ETag": f'"{etag}"'}
        if "lfs" in entry:
            headers |= {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(entry["size"])}
            if self.server.cdn:
                location = f"http://localhost:{self.server.server_port}/cdn/{etag}"
                return (302, headers | {"Location": location}, b"")
        return (200, headers, self.server.blobs / etag)

    def _send(self, request: Request, fault: Fault, answer: Answer) -> None:
        """Answer, with the part of a file that was asked for, and with what goes wrong on the way."""
        status, headers, body = answer
        headers = {"Content-Type": "application/json", **headers, **fault.headers}
        size = len(body) if isinstance(body, bytes) else body.stat().st_size
        start, stop = 0, size
        if isinstance(body, Path):
            headers |= {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
            if request.start is not None and not fault.no_range:
                start = request.start if request.start >= 0 else max(size + request.start, 0)
                stop = max(min(request.stop or size, size), start)
                status = 206 if start < stop else 416
                headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}" if start < stop else f"bytes */{size}"
        if fault.short is not None:
            stop = min(stop, start + fault.short)
        request.status = status
        self.close_connection = fault.cut is not None
        if fault.cut == -1:
            return
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(stop - start))
        stop = stop if fault.cut is None else min(stop, start + fault.cut)
        request.n_bytes = stop - start if request.method != "HEAD" else 0
        self.end_headers()
        if request.method == "HEAD":
            return
        if isinstance(body, bytes):
            self.wfile.write(body[start:stop])
        elif start < stop:
            with body.open("rb") as file:
                self._send_file(file, start, stop)
        if fault.cut is not None:
            self.server.closing.wait(fault.stall)

    def _send_file(self, file: BinaryIO, start: int, stop: int) -> None:
        begun, first, rate = time.monotonic(), start, self.server.rate
        while start < stop:
            n_bytes = stop - start if rate is None else min(stop - start, int(rate / 50))
            self.connection.sendfile(file, start, n_bytes)
            start += n_bytes
            if rate is not None:
                self.server.closing.wait(max(begun + (start - first) / rate - time.monotonic(), 0))

    def log_message(self, format: str, *args: object) -> None:
        """The log is `server.log`."""


def _parse_range(header: str) -> tuple[int | None, int | None]:
    bounds = re.fullmatch(r"bytes=(\d*)-(\d*)", header)
    if not bounds:
        return None, None
    first, last = bounds.groups()
    return (int(first), int(last) + 1 if last else None) if first else (-int(last), None)


def _info(repo: str, commit: Commit, query: dict[str, str]) -> Answer:
    files: list[dict[str, Any]] = [{"rfilename": path} for path, e in commit.entries.items() if e["type"] == "file"]
    for file in files if "blobs" in query else ():
        entry = commit.entries[file["rfilename"]]
        file |= {"size": entry["size"], "blobId": entry["oid"], "lfs": entry.get("lfs")}
    info = {"id": repo, "sha": commit.sha, "private": False, "gated": False, "siblings": files}
    info |= {"downloads": 0, "likes": 0, "tags": []}  # clients before 1.0 cannot do without
    return _json({"id": repo, query["expand"]: info[query["expand"]]} if "expand" in query else info)


def _json(value: Any, headers: Mapping[str, str] | None = None) -> Answer:
    return (200, headers or {}, json.dumps(value).encode())
