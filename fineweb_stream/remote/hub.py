"""Remote names, and the files that they stand for.

    hf://datasets/OWNER/NAME[@REVISION]/PATH    a file, folder or glob on the Hub, pinned to its current commit
    fineweb-edu:sample-10BT                     short for a folder on the Hub (see `_SHORT`)
    https://...                                 one file
    s3://... gs://... and any other scheme      a file, folder or glob, read by fsspec

The token and files' URLs come from huggingface_hub. Its listing sends the token to any server that a link to the next
page names, and reads responses of any length, so this module sends the two API requests itself. Not covered: writing,
and files on the Hub outside datasets.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urljoin, urlsplit

from ..support.errors import InputError, RemoteError
from ..support.redact import is_web, shown
from ..support.units import sizes_said
from .network import CHANGED, Network, RemoteFile

if TYPE_CHECKING:
    from .retry import Patience

MAX_PAGE_BYTES, MAX_PAGES = 16 << 20, 10_000  # the largest response of the Hub's API, and the most pages of a listing

_SHORT = re.compile(r"(fineweb|fineweb-edu|fineweb-2)(?::([\w-]*))?")
"""Datasets of HuggingFaceFW; after the colon sample-10BT or CC-MAIN-2024-10, for fineweb-2 a language."""

_HF = re.compile(r"hf://datasets/([\w.-]+/[\w.-]+)(?:@(refs/convert/[^/]+|refs/pr/\d+|[^/]+))?(?:/(.*))?")
_PACKAGES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "sftp": "paramiko",
}


def is_remote(name: str) -> bool:
    """Tell whether an argument names something other than a local file.

    >>> [is_remote(name) for name in ("hf://datasets/a/b", "fineweb-edu:sample-10BT", "fineweb.txt", "C:\\\\data")]
    [True, True, False, False]
    """
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", name):
        return True
    return _SHORT.fullmatch(name) is not None and not os.path.lexists(name)


def may_stand_for(name: str, url: str) -> bool:
    """Tell, without a request, whether `list_remote(name)` may return a file with this URL.

    >>> may_stand_for("fineweb:sample-10BT", "hf://datasets/HuggingFaceFW/fineweb@0a1b/sample/10BT/0.parquet")
    True
    >>> may_stand_for("hf://datasets/a/b/c", "hf://datasets/a/b@0a1b/d"), may_stand_for("a.txt", "file:///b.txt")
    (False, False)

    Raises `InputError` for a short name without such a part.
    """
    if not is_remote(name) or "/../" in url:
        return False
    if is_web(name):
        return url == name
    name = _expand_short(name)
    if name.startswith("hf://"):
        name, url = (re.sub(r"^(hf://[^/]+/[^/]+/[^/@]+)@[^/]+", r"\1", address) for address in (name, url))
    folder = _folder_of(name)
    return "://" in folder and (url == folder or url.startswith(f"{folder}/"))


def list_remote(name: str, network: Network, revision: str | None = None) -> list[RemoteFile]:
    """Return the files of a remote name (of a folder, all), in no particular order.

    `revision`, else `main`, is for names on the Hub without one.

    Raises `InputError` if there are none or access is denied, `RemoteError` if no server answers.
    """
    name, fetcher = _expand_short(name), network.fetcher
    if is_web(name):
        try:
            path = urlsplit(name).path
        except ValueError:
            raise InputError(f"{shown(name)}: not an address that can be read", "check it") from None
        if re.search(r"[*\[]", path) or name.endswith("/"):
            raise InputError(f"{shown(name)}: a web server does not list its files", "name each file's address")
        patience = fetcher.web.first_contact(name)
        return network.result(fetcher.submit(lambda: [_describe(name, patience)]), patience)
    if name.lower().startswith("hf://"):
        _parse_hub(name)
        patience = fetcher.web.first_contact(endpoint())
        return network.result(fetcher.submit(lambda: _list_hub(name, revision, patience)), patience)
    return network.result(fetcher.submit(lambda: _list_fsspec(name)))


def check_remote(file: RemoteFile, network: Network) -> None:
    """Raise `InputError` if a file has changed since it was listed; on the Hub it cannot, as its commit is pinned."""
    url, fetcher = file.url, network.fetcher
    if not url.startswith("hf://"):
        if is_web(url):  # with the patience of a read: a run may be in its last hour
            patience = fetcher.web.patience(url)
            now = network.result(fetcher.submit(lambda: _describe(url, patience)))
        else:
            now, *_ = list_remote(url, network)
        if (now.size, now.version) != (file.size, file.version):
            raise InputError(f"{shown(url)}: changed ({sizes_said(file.size, now.size)})", CHANGED)


def _get_json(url: str, patience: Patience) -> tuple[Any, str]:
    """Return the JSON at a URL of the Hub's API, and the URL of the next page, "" for none."""
    end = time.monotonic() + patience.web.timeouts.page

    def attempt() -> tuple[bytes, str]:
        body = bytearray()
        with patience.web.send(url, patience.left) as answer:
            for piece in patience.pieces(answer, MAX_PAGE_BYTES + 1):
                body += piece
                if len(body) > MAX_PAGE_BYTES or time.monotonic() > end:
                    raise InputError(f"{shown(url)}: the answer does not end", "check HF_ENDPOINT")
            return bytes(body), answer.headers.get("Link", "")

    body, links = patience.retry(attempt, url)
    following = re.search(r'<([^>]*)>;\s*rel="?next', links)
    return json.loads(body), urljoin(url, following[1]) if following else ""


def _iter_tree(api: str, folder: str, is_recursive: bool, patience: Patience) -> Iterator[tuple[str, int, str]]:
    """Yield the path, size and hash of each file in a folder on the Hub."""
    following = f"{api}/{quote(folder)}".rstrip("/") + f"?recursive={str(is_recursive).lower()}"
    for _ in range(MAX_PAGES):
        page, following = _get_json(following, patience)
        if not isinstance(page, list):
            raise TypeError
        for entry in page:
            if entry["type"] == "file":
                name, size, oid = entry["path"], entry["size"], (entry.get("lfs") or entry)["oid"]
                if not (isinstance(name, str) and isinstance(size, int) and isinstance(oid, str) and size >= 0):
                    raise TypeError
                yield name, size, oid
        if not following:
            return
    raise InputError(f"{shown(api)}: the listing does not end", "check HF_ENDPOINT")


def _describe(url: str, patience: Patience) -> RemoteFile:
    """Request the first byte to learn size and version: some servers, and signed URLs, refuse HEAD requests."""
    from .retry import Refused

    if not urlsplit(url).hostname:
        raise InputError(f"{shown(url)}: no server in this address", "https://HOST/PATH")

    def attempt() -> RemoteFile:
        try:
            with patience.web.send(url, patience.left, {"Range": "bytes=0-0"}) as answer:
                field = "Content-Range" if answer.status == 206 else "Content-Length"
                size = answer.headers.get(field, "").rpartition("/")[2]
                version = etag_of(answer.headers) or answer.headers.get("Last-Modified", "")
                if answer.status == 206 and not b"".join(patience.pieces(answer, 1)):
                    raise ConnectionError  # cut off, perhaps in its headers
        except Refused as error:
            if error.args[0].status != 416:
                raise
            return RemoteFile(url, 0, "")  # it has no first byte
        if not re.fullmatch(r"\d{1,18}", size):
            raise InputError(
                f"{shown(url)}: the server does not say how long it is", "fetch it and name the local copy"
            )
        return RemoteFile(url, int(size), version)

    return patience.retry(attempt)


def _expand_short(name: str) -> str:
    """Return the URL of the Hub folder that a short name stands for; any other name as it is."""
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
        return f"{root}/sample/{part.removeprefix('sample-')}"
    if part and not part.startswith("CC-MAIN-"):
        hint = f"{corpus}:sample-10BT, {corpus}:CC-MAIN-2024-10, or {corpus} for all"
        raise InputError(f"{name}: no such part", hint)
    return f"{root}/data/{part}".rstrip("/")


def _parse_hub(url: str) -> tuple[str, str | None, str]:
    """Return the repository, revision (None for none) and path in an `hf://` URL."""
    match = _HF.fullmatch(url)
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        raise InputError(f"{url}: HF_HUB_OFFLINE is set", "unset it, or name local files")
    if not match:
        raise InputError(f"{url}: not a dataset on the Hub", "hf://datasets/OWNER/NAME/PATH")
    return match[1], match[2] and unquote(match[2]), (match[3] or "").strip("/")


def endpoint() -> str:
    """Return the Hub's base URL, which HF_ENDPOINT may set. Raises `InputError` for a value that is no such URL."""
    url = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    if not re.match(r"https?://(\[[\da-f:.]+\]|[^/\[\]]+)", url, re.IGNORECASE):
        raise InputError(f"HF_ENDPOINT={shown(url)}: not an address", "as in HF_ENDPOINT=https://huggingface.co")
    return url


def is_hub(url: str) -> bool:
    """Tell whether a URL has the Hub's own scheme, host and port: the token is sent nowhere else."""
    return urlsplit(url)[:2] == urlsplit(endpoint())[:2]


def etag_of(headers: Mapping[str, str]) -> str:
    """Return a file's ETag, the Hub's rather than its CDN's; "" if there is none."""
    return (headers.get("X-Linked-Etag") or headers.get("ETag") or "").removeprefix("W/").strip('"')


def token_header(url: str) -> dict[str, str]:
    """Return the Hub's login header, with the token that huggingface_hub finds; {} for none or for another server."""
    if not is_hub(url):
        return {}
    try:
        from huggingface_hub import get_token
    except ImportError:  # public files can be read without a token
        return {}
    token = get_token()
    if token and not re.fullmatch("[!-~]+", token):  # the HTTP client would show it in its error
        raise InputError(
            "the Hub's token has characters that no token has", f"set HF_TOKEN again, or: {login_command()}"
        )
    return {"Authorization": f"Bearer {token}"} if token else {}


def login_command() -> str:
    """Return what logs in to the Hub: its package, which also reads HF_TOKEN, has the command `hf` since 0.34."""
    if importlib.util.find_spec("huggingface_hub") is None:
        return "pip install huggingface_hub, then hf auth login"
    return "hf auth login" if importlib.util.find_spec("huggingface_hub.cli") else "huggingface-cli login"


def address_of(url: str) -> str:
    """Return the URL to request a file from: of an `hf://` URL the download URL, otherwise the same."""
    if not url.startswith("hf://"):
        return url
    repo, sha, path = _parse_hub(url)
    return _hub().hf_hub_url(repo, path, repo_type="dataset", revision=sha, endpoint=endpoint())  # type: ignore[no-any-return]


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise InputError(
            "reading from the Hub needs huggingface_hub", "pip install -U huggingface_hub urllib3"
        ) from None
    return huggingface_hub


def _list_hub(url: str, revision: str | None, patience: Patience) -> list[RemoteFile]:
    repo, named_revision, path = _parse_hub(url)
    _hub()
    api, branch = f"{endpoint()}/api/datasets/{repo}", quote(named_revision or revision or "main", safe="")
    try:
        sha = _get_json(f"{api}/revision/{branch}?expand[]=sha", patience)[0]["sha"]
        if not re.fullmatch("[0-9a-f]{40,64}", sha):
            raise ValueError
        files = _find_files(f"{api}/tree/{sha}", path, patience)
    except re.error as error:
        raise InputError(f"{url}: not a pattern ({error})", "*, ?, ** for any folders, [a-z]") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise InputError(f"{shown(api)}: this is not the Hub's answer", "check HF_ENDPOINT") from None
    if not files:
        raise _nothing_there(url)
    return [RemoteFile(f"hf://datasets/{repo}@{sha}/{name}", size, oid) for name, size, oid in files]


def _find_files(tree: str, path: str, patience: Patience) -> list[tuple[str, int, str]]:
    """Return the files that a path in a dataset stands for: a glob, a folder and all folders in it, or a file."""
    folder = _folder_of(path)
    if pattern := path[len(folder) :].strip("/"):
        is_wanted = re.compile(_glob_regex(path)).fullmatch
        is_deep = "/" in pattern or "**" in pattern
        files = [file for file in _iter_tree(tree, folder, is_deep, patience) if file[0] == path or is_wanted(file[0])]
        return [file for file in files if file[0] == path] or files
    try:
        return list(_iter_tree(tree, path, True, patience))
    except InputError as error:
        if not path or "HTTP 404" not in error.message:
            raise
    with contextlib.suppress(InputError):  # not a folder: a file in the parent folder, or nothing
        return [file for file in _iter_tree(tree, path.rpartition("/")[0], False, patience) if file[0] == path]
    return []


def _folder_of(path: str) -> str:
    """Return everything before the first path component with a wildcard.

    >>> _folder_of("data/*/a.parquet"), _folder_of("data/b")
    ('data', 'data/b')
    """
    return re.sub(r"[^/]*[*?\[].*$", "", path).rstrip("/")


def _glob_regex(pattern: str) -> str:
    """Return a glob as a regular expression; only ** matches any number of folders.

    >>> re.sub(_glob_regex("data/**/0?_*.parquet"), "", "data/x/y/01_2.parquet")
    ''
    """
    of = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    tokens = re.findall(r"\*\*/|\*\*|\*|\?|\[[^\]]+\]|.", pattern)
    return "".join(
        of.get(t) or (t.replace("[!", "[^").replace("\\", "\\\\") if len(t) > 1 else re.escape(t)) for t in tokens
    )


@contextlib.contextmanager
def _filesystem(url: str) -> Iterator[tuple[Any, str]]:
    """Yield fsspec's file system for a URL, and the path in it.

    Errors that no retry can fix become `InputError`; the storage packages' own exceptions become `ConnectionError`.
    """
    scheme = url.partition("://")[0].lower()
    try:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped,unused-ignore]

        found = url_to_fs(url)
    except ImportError as error:
        is_known = scheme in _PACKAGES or (error.name or "").startswith("fsspec")
        hint = f"pip install -U fsspec {_PACKAGES.get(scheme, '')}".rstrip() if is_known else str(error)
        raise InputError(f"{shown(url)}: {scheme}:// needs a package", hint) from None
    except OSError:
        raise
    except Exception as error:
        raise InputError(f"{shown(url)}: {error}", "hf://, https://, s3://, gs:// or what fsspec knows") from None
    try:
        yield found
    except FileNotFoundError:
        raise _nothing_there(url) from None
    except PermissionError:
        raise InputError(f"{shown(url)}: access denied", "log in with the storage's own tool") from None
    except (OSError, InputError):
        raise
    except Exception as error:
        raise ConnectionError(0, f"{type(error).__name__}: {error}") from None


def read_fsspec(file: RemoteFile, start: int, stop: int) -> bytes:
    """Return a byte range of a file, read by fsspec."""
    with _filesystem(file.url) as (fs, path):
        data = bytes(fs.cat_file(path, start=start, end=stop))
        if len(data) != stop - start:
            raise InputError(f"{shown(file.url)}: ends at byte {start + len(data):,}", CHANGED)
        return data


def _list_fsspec(url: str) -> list[RemoteFile]:
    if re.match("file://[^/]", url, re.IGNORECASE):
        raise InputError(f"{url}: not an absolute path", f"leave out {url[:7]}")
    if "::" in url:
        raise InputError(f"{shown(url)}: a file inside another", "unpack it, and name what was in it")
    try:
        with _filesystem(url) as (fs, path):
            fs.invalidate_cache()
            if re.search(r"[*?\[]", path) and not fs.exists(path):
                found = fs.glob(path, detail=True)
            elif fs.isdir(path):
                found = fs.find(path, detail=True)
            else:
                found = {path: fs.info(path)}
    except OSError as error:
        raise RemoteError(f"{shown(url)}: {error.strerror or error}", "check the network and the login") from None
    root = url.rstrip("/").removesuffix(path)  # the scheme, and the host if it is not in the path
    files = {name: info for name, info in found.items() if info["type"] == "file"}
    if not files:
        raise _nothing_there(url)
    if unknown := next((name for name, info in files.items() if not isinstance(info.get("size"), int)), ""):
        what = f"{shown(root + unknown)}: the storage does not say how long it is"
        raise InputError(what, "fetch it and name the local copy")
    return [RemoteFile(root + name, info["size"], _fsspec_version(info)) for name, info in files.items()]


def _fsspec_version(info: Mapping[str, Any]) -> str:
    keys = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "updated", "created")
    return next((str(info[key]).strip('"') for key in keys if info.get(key)), "")


def _nothing_there(url: str) -> InputError:
    return InputError(f"{shown(url)}: no such file, or nothing in this folder", "check the name")
