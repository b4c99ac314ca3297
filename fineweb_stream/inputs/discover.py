"""Names that the user gives -> the files to read, in order, each with its format."""

from __future__ import annotations

import contextlib
import difflib
import errno
import functools
import glob
import hashlib
import os
import re
import reprlib
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, cast
from urllib.parse import unquote, urlsplit

from ..remote.hub import is_remote, list_remote
from ..remote.network import Network, RemoteFile, RemoteReader
from ..support.cancel import Cancel
from ..support.errors import InputError
from ..support.fingerprint import file_fingerprint
from ..support.log import log
from ..support.model import STDIN, STDIN_SHOWN, Input
from ..support.redact import is_web, shown
from ..support.shell import program, quoted
from ..support.units import counted
from .foreign import find_foreign
from .formats import (
    FORMAT_OF_SUFFIX,
    SUFFIX_OF_FORMAT,
    find_format,
    is_about,
    is_hidden,
    is_own,
    is_usable,
    look,
    suffixes,
)
from .kind import HEAD_BYTES
from .paths import (
    each_once,
    is_program,
    iter_files,
    iter_matches,
    name_some,
    natural_key,
    note_splits,
    without_metadata,
)
from .standard_input import stdin_head

MAX_NAME = 1 << 15  # more characters than the name of a file has on any system
N_LOOKED = 64  # remote files that are checked, text and jsonl by a request each, before the others are trusted by name

_SKIPPED = "note: %s: skipped (hidden, or not text, jsonl or parquet by name or content): %s"

DEFAULT_CORPUS = "fineweb-edu:sample-10BT"


def as_names(inputs: str | Path | Sequence[str | Path] | None) -> list[str]:
    """Return one or several inputs, as a caller gives them, as a list of names. Raises `InputError` for no names."""
    if isinstance(inputs, str | bytes | os.PathLike):
        inputs = [inputs]
    if hasattr(inputs, "read"):
        raise InputError(f"{reprlib.repr(inputs)}: an open file, not its name", "give the name; - is standard input")
    try:
        if isinstance(inputs, Mapping) or getattr(inputs, "ndim", 1) == 2:
            raise TypeError(f"the keys or columns of a {type(inputs).__name__}")
        names = [os.fsdecode(name) for name in (() if inputs is None else inputs)]
    except TypeError as error:
        what = f"{reprlib.repr(inputs)}: not names of files ({error})"  # a data set may be handed over
        raise InputError(what, "give a name, or a list of names") from None
    if text := next((name for name in names if len(name) > MAX_NAME), ""):
        raise InputError(f"{text[:60]}…: a text, not the name of a file", "save it to a file, and name that")
    if "" in names:
        raise InputError("an input without a name", "is a shell variable empty? . is the current folder")
    if bad := next((name for name in names if "\0" in name), ""):
        raise InputError(f"{bad}: a name with a null character", "check the name")
    return names


def find_inputs(names: Sequence[str], format: str | None = None, network: Network | None = None) -> list[Input]:
    """Return the files behind paths, folders, globs and URLs, in the order given; folders and globs in natural order.

    `format` overrides the detection of formats. `network` reads remote files.

    Raises `InputError` if one is missing, empty or unusable.
    """
    if format not in (None, *SUFFIX_OF_FORMAT):
        raise InputError(f"format={format!r}: no such format", f"the formats are {', '.join(SUFFIX_OF_FORMAT)}")
    network, names = network or Network(), _without_own(names)
    urls = dict.fromkeys(filter(is_remote, names))
    found = {name: _find(name, format, network) for name in names if name not in urls}
    found |= zip(urls, _find_remote(list(urls), format, network), strict=True)
    inputs = [input for name in names for input in found[name]]
    lines = [Path(input.path) for input in inputs if input.format == "jsonl" and ".txt" in input.path[-8:].lower()]
    if lines and not format:
        log.warning("note: read as JSON Lines by their content (--format text overrides it): %s", name_some(lines))
    others = [Path(input.path) for input in inputs if format and _by_name(input.path)[0] not in ("", format)]
    if 0 < len(others) < len(inputs):
        log.warning("note: --format %s is for all inputs, so read as that, too: %s", format, name_some(others))
    if not inputs:
        raise InputError("no input named", "name files, folders or globs, or - for standard input")
    if names.count(STDIN) > 1:
        raise InputError("standard input is named twice", "it can be read once")
    if twice := [Path(path) for path, n in Counter(os.path.normpath(i.path) for i in inputs).items() if n > 1]:
        log.warning("note: named more than once, and so read more than once: %s", name_some(twice))
    return inputs


def _without_own(names: Sequence[str]) -> list[str]:
    """Return the names without this program, and without what it wrote, which a shell's `*` may include."""
    own = [name for name in names if _is_written_here(Path(name)) or is_program(Path(name))]
    if own and len(own) == len(names):
        raise InputError(f"{own[0]}: this program's own, so not an input", "name text, jsonl or parquet files")
    if own:
        log.warning("note: not read, as it is this program's: %s", name_some([Path(name) for name in own]))
    return [name for name in names if name not in own]


def _is_written_here(path: Path) -> bool:
    """Tell whether this program writes such a file, or the folder `index`, which holds nothing else then."""
    if path.name == "index" and os.access(path, os.R_OK) and os.path.isdir(path):
        return bool(inside := os.listdir(path)) and all(map(is_own, inside))
    return is_own(path.name) and not os.path.isdir(path)


def _find(name: str, format: str | None, network: Network) -> list[Input]:
    """Return the files behind one name on this machine."""
    if name == STDIN:
        return [_stdin(format, network)]
    found = []
    for path, is_named in _expand(name):  # there may be very many
        network.cancel.check()
        found.append(_describe(path, is_named, format))
    if not (any(input.size for input in found) or os.path.isdir(name)):
        raise InputError(f"{found[0].path}: the file is empty", "fetch it again, or leave it out")
    return found


def leave_out(inputs: Sequence[Input], others: Sequence[Input]) -> list[Input]:
    """Return the inputs that are not among the others, under any path, and log what is left out.

    Raises `InputError` if none is left, or if standard input is among both.
    """
    taken = {_place(input) for input in others}
    left = [input for input in inputs if _place(input) not in taken]
    if STDIN in taken and any(input.is_stdin for input in inputs):
        raise InputError("standard input is named twice", "it can be read once")
    if not left:
        raise InputError(f"{inputs[0].shown}: named with --val, and nothing is left to train on", "name other inputs")
    if len(left) < len(inputs):
        both = [Path(input.path) for input in inputs if _place(input) in taken]
        log.warning("note: validation (--val), so not read for training: %s", name_some(both))
    return left


def _place(input: Input) -> str:
    if re.fullmatch("[0-9a-f]{40,64}", input.fingerprint) and input.is_remote:
        return input.fingerprint  # the hash of what it holds, by which the Hub knows it at each of its addresses
    if is_web(input.path):
        url = urlsplit(input.path)
        port = url.port or {"http": 80, "https": 443}[url.scheme]
        return f"{url.scheme}://{url.hostname}:{port}{unquote(url.path)}?{url.query}"
    if (input.is_remote and not input.path.startswith("file://")) or input.is_stdin:
        return input.path
    info = os.stat(path := input.path.removeprefix("file://"))  # a file may have several paths
    return f"{info.st_dev} {info.st_ino}" if info.st_ino else os.path.realpath(path)


def _no_usable_but(folder: str, others: Sequence[Path], how: str = "the file") -> InputError:
    return InputError(
        f"{folder}: no usable file in this folder" + (f", only {name_some(others)}" if others else ""),
        f"usable are {', '.join(FORMAT_OF_SUFFIX)}, text and jsonl also compressed; or name {how}",
    )


def _no_usable(folder: Path, others: list[Path]) -> InputError:
    """Return the error for a folder with no usable file: with advice for a known kind, unless some can be named."""
    refusal = None
    n_of = Counter(path.suffix for path in others)
    usual = sorted(others, key=lambda path: -n_of[path.suffix])  # source code, not a file of settings beside it
    for path in [path for path in usual if not (os.path.isdir(path) or is_about(path.name))][:20]:
        try:
            _describe(path, True, None)
        except InputError as error:
            n_like, hint = sum(other.suffix == path.suffix for other in others) - 1, _without_format(error)
            if n_like and not hint.startswith("name "):
                hint += f"; likewise {counted(n_like, f'other {path.suffix} file')}"
            refusal = refusal or InputError(error.message, hint)
        else:
            alike = f"*{path.suffix}" if path.suffix else re.sub(r"\d.*", "", path.name) + "*"  # wiki_00, wiki_01
            pattern = os.path.join(glob.escape(str(folder)), "**", alike)
            return _no_usable_but(str(folder), others, f"others: {quoted(pattern)}")
    return refusal or _no_usable_but(str(folder), others)


def _without_format(error: InputError) -> str:
    """Return a foreign file's hint without --format, which is for a whole folder and chooses none of its files."""
    return error.hint.partition("; or read it")[0]


def default_names(folder: Path) -> list[str]:
    """Return what to read if no input is named: a corpus beside the script, else FineWeb-Edu's sample on the Hub.

    Of the files that a folder argument would take, it returns the first of these groups that is not empty:
    `train_fineweb.txt`, `input.txt`, parquet, JSON Lines, text.
    """
    with _shut_named(folder):
        every = sorted(folder.iterdir(), key=natural_key)
        paths = [path for path in every if os.path.isfile(path) or not os.path.exists(path)]
        files, no_lines = without_metadata([path for path in paths if is_usable(path.name)])
    groups = [[path for path in files if path.name == name] for name in ("train_fineweb.txt", "input.txt")]
    groups += [
        [path for path in files if FORMAT_OF_SUFFIX[suffixes(path)[1]] == format]
        for format in ("parquet", "jsonl", "text")
    ]
    chosen = next((group for group in groups if group), [])
    others = no_lines + [path for path in files if path not in chosen]
    others += [path for path in paths if is_usable(path.stem) and not is_usable(path.name)]  # c.txt.part, for example
    if not chosen:
        others += [path for path in paths if not (is_own(path.name) or path in others) and _can_be_converted(path)]
    if others:
        log.warning("note: not read: %s beside the script; name what you want", name_some(others))
    note_splits(folder, chosen)
    return [str(path) for path in chosen] or [DEFAULT_CORPUS]


def _can_be_converted(path: Path) -> bool:
    """Tell whether a file is an archive or a table, for example, of which a command makes text."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        found = find_foreign(file.read(HEAD_BYTES), path.suffix.lower())
        return found is not None and bool(found.command)
    return False


def _find_remote(names: Sequence[str], asked: str | None, network: Network) -> list[list[Input]]:
    """Describe the files behind URLs and short names, many at once.

    If the first N_LOOKED behind a name fit their own names, trust the others'.
    """
    stop = Cancel(network.cancel)
    network, pool = Network(network.fetcher, stop), ThreadPoolExecutor(network.fetcher.n_connections)
    describe = functools.partial(_describe_remote, asked=asked, network=network)
    try:
        listed = pool.map(functools.partial(list_remote, network=network), names)
        wanted = [_leave_others(files, name, network, pool) for name, files in zip(names, listed, strict=True)]
        looked = [pool.map(describe, files[:N_LOOKED]) for files in wanted]
        found = list(map(list, looked))
        for inputs, files in zip(found, wanted, strict=True):
            is_as_called = all(input.format == _by_name(input.path)[0] for input in inputs)
            inputs.extend(pool.map(functools.partial(describe, is_trusted=is_as_called), files[N_LOOKED:]))
        return found
    finally:
        stop.set()  # an error does not wait for other requests
        pool.shutdown(cancel_futures=True)


def _leave_others(files: Sequence[RemoteFile], name: str, network: Network, pool: Executor) -> list[RemoteFile]:
    """Return the files at a URL that a folder or a pattern of this name is read as, and log the others."""
    files = sorted(files, key=lambda file: natural_key(Path(file.url)))
    is_folder = not glob.has_magic(name) and Path(files[0].url).name != Path(name).name
    wanted = [f for f in files if not _is_hidden(f.url, name) and (is_usable(Path(f.url).name) or not is_folder)]
    if is_folder:
        at = {Path(file.url): file for file in wanted}

        def read_heads(paths: list[Path]) -> Iterator[bytes]:
            return pool.map(lambda path: RemoteReader(network, at[path], HEAD_BYTES).read(HEAD_BYTES), paths)

        wanted = [at[path] for path in without_metadata(list(at), read_heads)[0]]
    elif wanted and not any(file.size for file in wanted):
        raise InputError(f"{shown(wanted[0].url)}: the file is empty", "leave it out")
    kept = {file.url for file in wanted}  # there may be tens of thousands
    skipped = (Path(file.url) for file in files if file.url not in kept)
    others = [path for path in skipped if not any(part.startswith(".") for part in path.parts)]
    if not wanted:
        raise _no_usable_but(shown(name), others)
    if others:
        log.warning(_SKIPPED, shown(name), name_some(others))
    return wanted


def _is_hidden(url: str, name: str) -> bool:
    """Tell whether a remote file is in a hidden folder, or begins with a dot, unless the user has named it."""
    *folders, file = re.split("[/:]", url)
    named = {part for given in re.split("[/:]", name) for part in (given, given.partition("@")[0]) if part}
    is_below = any(is_hidden(part) and not {part, part.partition("@")[0]} & named for part in folders)
    return is_below or (file.startswith(".") and file not in named)


def _describe_remote(file: RemoteFile, asked: str | None, network: Network, is_trusted: bool = False) -> Input:
    """Describe a remote file; the first bytes of text and jsonl are checked, of parquet the footer tells what it is."""
    format, compression = _by_name(file.url)
    format = asked or format
    if not format or not (asked or is_trusted or format == "parquet"):
        reader = cast(BinaryIO, RemoteReader(network, file, HEAD_BYTES))
        format, compression = look(shown(file.url.partition("?")[0]), reader)
    return Input(file.url, format, file.size, file.version, bool(compression), compression)


def _by_name(url: str) -> tuple[str, str]:
    """Return the format and the compression that a URL's suffixes name, "" for none."""
    compression, suffix = suffixes(Path(urlsplit(url).path))
    return FORMAT_OF_SUFFIX.get(suffix, ""), compression


def _expand(name: str) -> Iterator[tuple[Path, bool]]:
    """Yield each file of an argument, and whether the user named (or matched) the file itself."""
    path = Path(name)
    with _shut_named(name):
        if path.is_dir():
            yield from ((file, False) for file in _walk(path))
        elif path.exists() or not glob.has_magic(name):
            yield path, True
        else:
            matches = set(map(Path, iter_matches(name)))
            folders = set(filter(Path.is_dir, matches))
            named = matches - folders
            read = folders if "**" not in name else ()  # like folder arguments; ** asks for files
            found = each_once([*named, *(file for folder in sorted(read) for file in _walk_if_usable(folder))])
            if not found:
                raise InputError(f"{name}: no file matches", "check the pattern; in quotes, ** includes subfolders")
            yield from ((path, path in named) for path in found)


@contextlib.contextmanager
def _shut_named(name: str | Path) -> Iterator[None]:
    """Turn the error of a folder that cannot be read, or of a file in it, into an `InputError` that names it."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{Path(error.filename or name)}: {error.strerror}", "check the path, and the permissions of its folders"
        ) from None


def _walk_if_usable(folder: Path) -> list[Path]:
    """Return the usable files below a folder that a pattern matches; log a note if there are none."""
    try:
        return _walk(folder)
    except InputError as error:
        log.warning("note: skipped: %s", error.message)
        return []


def _walk(folder: Path) -> list[Path]:
    """Return the usable files below a folder, and log what else there is but for names with a dot."""
    found: list[Path] = []
    others: list[Path] = []
    for path in iter_files(folder):
        if is_usable(path.name) and (path.is_file() or not path.exists()):  # no pipe, socket or device
            found.append(path)
        elif not (is_own(path.name) or path.name.startswith(".")):
            others.append(path)
    found, no_lines = without_metadata(each_once(found))
    linked = {os.path.realpath(path) for path in found if path.is_symlink()}  # as in the Hub's cache
    others = [path for path in others if not linked or os.path.realpath(path) not in linked]
    others = sorted(others + no_lines, key=natural_key)
    if not found:
        raise _no_usable(folder, others)
    if others:
        by_size = sorted(others, key=lambda path: os.path.getsize(path) if os.path.isfile(path) else 0, reverse=True)
        log.warning(_SKIPPED, folder, name_some(by_size))
    note_splits(folder, found)
    return found


def _stdin(asked: str | None, network: Network) -> Input:
    """Describe standard input; its fingerprint is a hash of its first MiB, which a resumed run compares."""
    head = stdin_head(network.cancel)
    format = find_format(STDIN_SHOWN, head[:HEAD_BYTES], asked)
    if format == "parquet":
        raise InputError("standard input: parquet cannot be read from a pipe", "save it to a file, and name that")
    return Input(STDIN, format, 0, hashlib.sha256(head).hexdigest(), is_stream=True)


def _meant(path: Path) -> str:
    """Return a hint for a path that does not exist."""
    if os.path.exists(home := os.path.expanduser(path)) and path.parts[0].startswith("~"):
        return f"did you mean {quoted(str(home))}?"
    with contextlib.suppress(OSError):
        names = {name.casefold(): name for name in os.listdir(path.parent)}
        if near := difflib.get_close_matches(path.name.casefold(), names, 1, 0.8):
            return f"did you mean {quoted(str(path.with_name(names[near[0]])))}?"
    if sample := re.fullmatch(r"sample/(\d+BT)", path.as_posix()):
        return f"did you mean fineweb-edu:sample-{sample[1]} (FineWeb-Edu on the Hub)?"
    if re.fullmatch(r"[\w.-]+/[\w.-]+", path.as_posix()) and not path.parent.exists():
        return f"did you mean hf://datasets/{path.as_posix()} (a dataset on the Hub)?"
    if match := re.match(r"(?:www\.)?(huggingface\.co|hf\.co)/(datasets/.+)", path.as_posix()):
        return f"did you mean hf://{match[2]} (a dataset on the Hub)?"
    if re.fullmatch(r"0?\.\d+|\d+(\.\d+)?%", path.name):
        return f"did you mean --val-ratio {path.name}?"
    how = "check the path (and quote it if it has spaces)"
    return how if path.suffix else f"{how}; if the outputs are to go there: --out {quoted(str(path))}"


def _how_to_read(path: Path, mode: int) -> str:
    """Say what to type where a pipe is named, a shell's <(COMMAND) among them."""
    how = "a pipe is read as standard input, and - is its name (keep your other options)"
    if re.match(r"/dev/(stdin$|fd/)|/proc/[^/]+/fd/", str(path)):
        return f"{how}: COMMAND | {program()} -"
    if stat.S_ISFIFO(mode):
        return f"{how}: {program()} - < {quoted(str(path))}"
    return "name text, jsonl or parquet files"


def _describe(path: Path, is_named: bool, asked: str | None) -> Input:
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            raise InputError(f"{path}: not a regular file", _how_to_read(path, info.st_mode))
        with path.open("rb") as file:
            try:
                format, compression = look(str(path), file, asked)
            except InputError as error:
                if is_named or " > " not in error.hint:
                    raise
                how = f"{_without_format(error)}; likewise any others like it; then move the old ones out of the folder"
                raise InputError(error.message, how) from None
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP) and path.is_symlink():
            raise InputError(f"{path}: a broken link to {os.readlink(path)}", "remove it, or repair it") from None
        if isinstance(error, FileNotFoundError):
            raise InputError(f"{path}: no such file", _meant(path)) from None
        raise InputError(f"{path}: {error.strerror}", "check the file's permissions") from None
    name = str(path) if str(path) != STDIN else os.path.join(".", STDIN)  # a file named -
    return Input(name, format, info.st_size, file_fingerprint(path), bool(compression), compression)
