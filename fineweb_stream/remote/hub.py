"""Inputs that are no local files: what a name stands for.

    hf://datasets/OWNER/NAME[@REVISION]/PATH    a file, folder or glob on the Hub, pinned to the commit it is at now
    fineweb-edu:sample-10BT                     short for a folder there (see `CORPORA`)
    https://...                                 one file
    s3://... gs://... and any other scheme      a file, folder or glob, by fsspec

The Hub and the web are read with the standard library alone: huggingface_hub is not needed, and nothing lands in a
cache. Only the other schemes need a package. Not covered: writing, and what is on the Hub but in no dataset.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPResponse
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, unquote, urljoin, urlsplit

from ..support.errors import InputError, RemoteError
from ..support.redact import shown
from ..support.waiting import pause
from . import retry
from .retry import Patience, Waiter, endpoint, send, with_patience

CORPORA = {"fineweb": "fineweb", "fineweb-edu": "fineweb-edu", "fineweb-2": "fineweb-2"}
"""Short names of datasets of HuggingFaceFW; after a colon: sample-10BT, CC-MAIN-2024-10; fineweb-2: a language."""

SUFFIXES = re.compile(r"\.(parquet|(jsonl|ndjson|json|txt)(\.(gz|zst|xz|bz2))?)$", re.IGNORECASE)
"""What is taken from a folder."""

_SHORT = re.compile(rf"({'|'.join(CORPORA)})(?::([\w-]*))?")
_HF = re.compile(r"hf://datasets/([\w.-]+/[\w.-]+)(?:@(refs/convert/[^/]+|refs/pr/\d+|[^/]+))?(?:/(.*))?")
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}


@dataclass(frozen=True)
class RemoteFile:
    """One file: where it is read, its size in bytes, and what tells its version (a hash, an ETag or a time; or "")."""

    url: str
    size: int
    version: str


def is_remote(name: str) -> bool:
    """Tell whether an argument names something that is no local file.

    >>> [is_remote(name) for name in ("hf://datasets/a/b", "fineweb-edu:sample-10BT", "fineweb.txt", "C:\\\\data")]
    [True, True, False, False]
    """
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", name):
        return True
    return _SHORT.fullmatch(name) is not None and not os.path.lexists(name)


def may_stand_for(name: str, url: str) -> bool:
    """Tell whether a file's URL is one that `list_remote(name)` may return, without asking anybody.

    >>> may_stand_for("fineweb:sample-10BT", "hf://datasets/HuggingFaceFW/fineweb@0a1b/sample/10BT/0.parquet")
    True
    >>> may_stand_for("hf://datasets/a/b/c", "hf://datasets/a/b@0a1b/d"), may_stand_for("a.txt", "file:///b.txt")
    (False, False)
    """
    if not is_remote(name) or "/../" in url:
        return False
    if name.lower().startswith(("http://", "https://")):
        return url == name
    try:
        name = _expand_short(name)
    except InputError:
        return False
    if name.startswith("hf://"):
        name, url = (re.sub(r"^(hf://[^/]+/[^/]+/[^/@]+)@[^/]+", r"\1", address) for address in (name, url))
    folder = re.sub(r"[^/]*[*?\[].*$", "", name).rstrip("/")
    return "://" in folder and (url == folder or url.startswith(f"{folder}/"))


def list_remote(name: str, revision: str | None = None, wait: Waiter = pause) -> list[RemoteFile]:
    """Return the files behind a name that `is_remote`, in no order; `revision` is for the Hub, `main` by default.

    Raises `InputError` when there is none or it may not be read, `RemoteError` when no server answers.
    """
    name = _expand_short(name)
    scheme = name.partition("://")[0].lower()
    if scheme == "hf":
        return _list_hub(name, revision, wait)
    if scheme in ("http", "https"):
        if re.search(r"[*\[]", urlsplit(name).path) or name.endswith("/"):
            raise InputError(f"{shown(name)}: a web server does not list its files", "name each file's address")
        return [_describe_http(name, wait)]
    return _list_fsspec(name)


def get_json(url: str, wait: Waiter, limit: float | None = None) -> tuple[Any, str | None]:
    """Return what an address of the API answers, and the address of the next page."""
    patience = Patience(url, wait, limit)

    def attempt() -> tuple[bytes, Message]:
        with send(url, patience) as response:
            return response.read(), response.headers

    body, headers = with_patience(url, patience, attempt)
    following = re.search(r'<([^>]*)>;\s*rel="?next', headers.get("Link", ""))
    try:
        return json.loads(body), following and urljoin(url, following[1])
    except ValueError:
        raise InputError(f"{shown(url)}: this is not the Hub's answer", "check HF_ENDPOINT") from None


def _expand_short(name: str) -> str:
    """Return the Hub's folder that a short name stands for."""
    short = _SHORT.fullmatch(name)
    if not short:
        return name
    corpus, part = short[1], short[2] or ""
    root = f"hf://datasets/HuggingFaceFW/{corpus}"
    if corpus == "fineweb-2":
        if re.fullmatch(r"[a-z]{3}_[A-Z][a-z]{3}", part):
            return f"{root}/data/{part}/train"
        raise InputError(f"{name}: which language?", "as in fineweb-2:deu_Latn: ISO 639-3 and the script")
    if part.startswith("sample-"):
        return f"{root}/sample/{part[len('sample-') :]}"
    if part and not part.startswith("CC-MAIN-"):
        raise InputError(
            f"{name}: no such part", f"{corpus}:sample-10BT, {corpus}:CC-MAIN-2024-10, or {corpus} for all"
        )
    return f"{root}/data/{part}".rstrip("/")


def _parse_hub(url: str) -> tuple[str, str | None, str]:
    match = _HF.fullmatch(url)
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        raise InputError(f"{url}: HF_HUB_OFFLINE is set", "unset it, or name local files")
    if not match:
        raise InputError(f"{url}: not a dataset on the Hub", "hf://datasets/OWNER/NAME/PATH")
    return match[1], match[2] and unquote(match[2]), (match[3] or "").strip("/")


def hub_address(url: str) -> str:
    """Return where the Hub serves a file."""
    repo, sha, path = _parse_hub(url)
    return f"{endpoint()}/datasets/{repo}/resolve/{quote(sha or 'main', safe='')}/{quote(path)}"


def _list_hub(url: str, revision: str | None, wait: Waiter) -> list[RemoteFile]:
    repo, named_revision, path = _parse_hub(url)
    api = f"{endpoint()}/api/datasets/{repo}"
    branch = quote(named_revision or revision or "main", safe="")
    sha = get_json(f"{api}/revision/{branch}?expand[]=sha", wait, retry.CONTACT_SECONDS)[0]["sha"]
    folder, pattern = _split_glob(path)
    try:
        is_wanted = re.compile(_glob_regex(path)).fullmatch if pattern else SUFFIXES.search
        entries = list(_tree(f"{api}/tree/{sha}", folder, not pattern or "/" in pattern or "**" in pattern, wait))
    except re.error as error:
        raise InputError(f"{url}: not a pattern ({error})", "*, ?, ** for any folders, [a-z]") from None
    except InputError as error:
        if pattern or not path or "HTTP 404" not in error.message:
            raise
        try:  # no folder: a file in the folder above, or nothing
            entries = list(_tree(f"{api}/tree/{sha}", path.rpartition("/")[0], False, wait))
        except InputError:
            entries = []
        is_wanted = re.compile(re.escape(path)).fullmatch
    files = [entry for entry in entries if entry["type"] == "file" and is_wanted(entry["path"])]
    if not files:
        raise nothing_there(url)
    return [RemoteFile(f"hf://datasets/{repo}@{sha}/{e['path']}", e["size"], (e.get("lfs") or e)["oid"]) for e in files]


def _tree(api: str, folder: str, is_recursive: bool, wait: Waiter) -> Iterator[dict[str, Any]]:
    following: str | None = f"{api}/{quote(folder)}".rstrip("/") + f"?recursive={str(is_recursive).lower()}"
    while following:
        page, following = get_json(following, wait)
        yield from page


def _split_glob(path: str) -> tuple[str, str]:
    """Return the folder before the first part with a wildcard, and the rest; no rest without wildcards.

    >>> _split_glob("data/*/a.parquet"), _split_glob("data/b")
    (('data', '*/a.parquet'), ('data/b', ''))
    """
    magic = re.search(r"(?:^|/)([^/]*[*?\[].*)$", path)
    return (path[: magic.start()], magic[1]) if magic else (path, "")


def _glob_regex(pattern: str) -> str:
    """Return the regular expression of a glob: only ** goes into folders.

    >>> re.sub(_glob_regex("data/**/0?_*.parquet"), "", "data/x/y/01_2.parquet")
    ''
    """
    of = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    tokens = re.findall(r"\*\*/|\*\*|\*|\?|\[[^\]]+\]|.", pattern)
    return "".join(
        of.get(t) or (t.replace("[!", "[^").replace("\\", "\\\\") if len(t) > 1 else re.escape(t)) for t in tokens
    )


def _describe_http(url: str, wait: Waiter) -> RemoteFile:
    """Ask for size and version without the content; some servers (and signed addresses) answer only GET."""
    if not urlsplit(url).hostname:
        raise InputError(f"{shown(url)}: no address of a server", "https://HOST/PATH")
    patience = Patience(url, wait, limit=retry.CONTACT_SECONDS)

    def attempt() -> RemoteFile:
        try:
            with send(url, patience, method="HEAD") as response:
                size: str = response.headers.get("Content-Length", "")
        except HTTPError as error:
            if error.code not in (400, 401, 403, 405, 501):
                raise
            size = ""
        if not size:
            with send(url, patience, Range="bytes=0-0") as response:
                field = "Content-Range" if response.status == 206 else "Content-Length"
                size = response.headers.get(field, "").rpartition("/")[2]
        if not size.isdecimal():
            raise InputError(
                f"{shown(url)}: the server does not say how long it is", "fetch it and name the local copy"
            )
        return RemoteFile(url, int(size), find_etag(response) or response.headers.get("Last-Modified", ""))

    return with_patience(url, patience, attempt)


def find_etag(response: HTTPResponse) -> str:
    """Return a file's ETag, the Hub's own rather than a CDN's; "" where there is none."""
    value = response.headers.get("X-Linked-Etag") or response.headers.get("ETag") or ""
    return value.removeprefix("W/").strip('"')


def find_filesystem(url: str) -> tuple[Any, str]:
    """Return the file system of fsspec for a URL, and the path in it."""
    scheme = url.partition("://")[0].lower()
    try:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped,unused-ignore]

        fs, path = url_to_fs(url)
    except ImportError:
        package = f"fsspec {_PACKAGES.get(scheme, '')}".strip()
        raise InputError(f"{shown(url)}: {scheme}:// needs a package", f"pip install {package}") from None
    except ValueError as error:
        raise InputError(f"{shown(url)}: {error}", "hf://, https://, s3://, gs:// or what fsspec knows") from None
    return fs, path


@contextmanager
def fsspec_errors(url: str) -> Iterator[None]:
    """Turn what no waiting mends into an `InputError`, and what the packages raise of their own into an `OSError`."""
    try:
        yield
    except FileNotFoundError:
        raise nothing_there(url) from None
    except PermissionError:
        raise InputError(f"{shown(url)}: access denied", "log in with the storage's own tool") from None
    except OSError:
        raise
    except Exception as error:
        raise ConnectionError(0, f"{type(error).__name__}: {error}") from None


def _list_fsspec(url: str) -> list[RemoteFile]:
    fs, path = find_filesystem(url)
    url = url.rstrip("/")
    root = url.removesuffix(path)  # with the host that some schemes have before the path
    try:
        with fsspec_errors(url):
            fs.invalidate_cache()
            if re.search(r"[*?\[]", path):
                found = fs.glob(path, detail=True)
            elif fs.isdir(path):
                found = {name: info for name, info in fs.find(path, detail=True).items() if SUFFIXES.search(name)}
            else:
                found = {path: fs.info(path)}
    except OSError as error:
        raise RemoteError(f"{shown(url)}: {error.strerror or error}", "check the network and the login") from None
    files = {name: info for name, info in found.items() if info["type"] == "file"}
    if not files:
        raise nothing_there(url)
    return [RemoteFile(root + name, info["size"], _fsspec_version(info)) for name, info in files.items()]


def _fsspec_version(info: Mapping[str, Any]) -> str:
    keys = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "updated", "created")
    return next((str(info[key]).strip('"') for key in keys if info.get(key)), "")


def nothing_there(url: str) -> InputError:
    """Return the error of a name that stands for no file."""
    return InputError(f"{shown(url)}: no such file, or no usable one in this folder", "check the name")
