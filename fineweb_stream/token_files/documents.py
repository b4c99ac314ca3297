"""Documents of token files: views, by an index of document ends beside each file.

`output/index.py` describes the format of an index. Document i is `tokens[ends[i - 1]:ends[i]]`, including its
end-of-text. (datatrove's `.ds.index` has the same format; its reader accepts ours.) A document that continues in the
next shard has its end there.
"""

from __future__ import annotations

import contextlib
import operator
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from ..output import files
from ..output.index import END_DTYPE, fits, index_path, is_index, map_ends
from ..support.cancel import NEVER, Cancel
from ..support.errors import InputError
from ..support.shell import program, quoted
from ..support.units import counted
from ..tokenizer.ids import Ids
from .joined import Tokens, check_ids
from .open import find_paths


class Documents:
    """The documents of one or more token files, in order; returned by `open_documents`.

    `documents[i]` is a read-only array of ids, with the end-of-text; inside one file it is a view, not a copy. Tokens
    after the last end-of-text, where --max-tokens cut a document, belong to no document.

    Raises `IndexError` out of range, `InputError` if an index is missing or does not fit its file.
    """

    def __init__(self, paths: list[Path]) -> None:
        self.tokens = Tokens(paths)
        self._eot_id = _eot_id(self.tokens)
        named = paths[0].parent if len(paths) > 1 else paths[0]  # one command makes the indexes of all shards
        self._ends = [_map_index(path, named) for path in paths]
        self._counts: list[int] = np.cumsum([len(ends) for ends in self._ends]).tolist()
        bounds = *self.tokens.firsts, len(self.tokens)
        for path, ends, first, stop in zip(paths, self._ends, bounds[:-1], bounds[1:], strict=True):
            if not fits(ends, self.tokens[first:stop], self._eot_id):
                raise InputError(f"{index_path(path)}: not the index of this {path.name}", _make(named))

    def __len__(self) -> int:
        return self._counts[-1]

    def __repr__(self) -> str:
        return f"<Documents: {len(self):,} in {self.tokens.name}>"

    def __getitem__(self, number: SupportsIndex) -> Ids:
        place = operator.index(number)
        if not -len(self) <= place < len(self):
            raise IndexError(f"document {place:,} is not one of {len(self):,}")
        place %= len(self)
        return self.tokens[(self._end(place - 1) if place else 0) : self._end(place)]

    def __iter__(self) -> Iterator[Ids]:
        return (self[number] for number in range(len(self)))

    def ends(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return where documents end within the tokens from `start` to `stop`, counted from `start` (int64).

        In a training window, attention across these positions is to be masked.
        """
        found = []
        for ends, begin in zip(self._ends, self.tokens.firsts, strict=True):
            bounds = np.array([max(start - begin, 0), max(stop - begin, 0)], END_DTYPE)
            first, last = np.searchsorted(ends, bounds, "right")
            found.append(ends[first:last].astype(np.int64) + (begin - start))
        return np.concatenate(found)

    def _end(self, number: int) -> int:
        file = bisect_right(self._counts, number)
        end = int(self._ends[file][number - self._counts[file]])  # a negative index: from the file's last document
        return end + self.tokens.firsts[file]


def open_documents(path: str | Path, split: str = "train") -> Documents:
    """Open the documents of a token file, or of a split in a folder, that has been indexed (`--index`).

    >>> import tempfile
    >>> from fineweb_stream import prepare
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = prepare(demo=True, out=folder, index=True, quiet=True)
    ...     documents = open_documents(folder)
    ...     len(documents) == result.train_documents, int(documents[1][-1])
    (True, 50256)

    Raises `InputError` as `open_tokens` does, and if an index is missing or does not fit its file.
    """
    return Documents(find_paths(path, split))


def write_index(path: Path, cancel: Cancel = NEVER) -> int:
    """Write the index of a token file, in bounded memory, unless it has one that fits; return its number of ends.

    Raises `InputError` as `open_tokens` does, and if another file has the index's name; `DiskError`; `Cancelled`.
    """
    index, tokens = index_path(path), Tokens([path])
    if index.exists():
        _map_index(path, path)  # raises unless it is an index
        if index.stat().st_mtime_ns >= path.stat().st_mtime_ns:
            with contextlib.suppress(InputError):  # the index of an earlier file: replace it
                return len(Documents([path]))
    with files.disk_errors(index):
        index.parent.mkdir(exist_ok=True)
    files.write_whole(index, (ends.astype(END_DTYPE).tobytes() for ends in _iter_ends(tokens, cancel)))
    return index.stat().st_size // END_DTYPE.itemsize


def index_files(paths: Iterable[Path], cancel: Cancel = NEVER) -> Iterator[str]:
    """Write the index of each token file; yield a line about it."""
    for path in paths:
        yield f"{index_path(path)}: {counted(write_index(path, cancel), 'document')}"


def _iter_ends(tokens: Tokens, cancel: Cancel) -> Iterator[npt.NDArray[np.int64]]:
    place, eot_id = 0, _eot_id(tokens)
    for ids in tokens.iter_pieces():
        cancel.check()
        yield np.flatnonzero(check_ids(ids, tokens, place) == eot_id) + (place + 1)
        place += len(ids)


def _eot_id(tokens: Tokens) -> int:
    made = tokens.made_by
    if made.eot_id is None:
        raise InputError(f"{tokens.paths[0]}: {made.name} has no end-of-text id, so no documents", "see inspect")
    if made.eot != "after":
        raise InputError(
            f"{tokens.paths[0]}: made with --eot {made.eot}, and an index needs --eot after",
            "start over with --overwrite and without --eot",
        )
    return made.eot_id


def _map_index(path: Path, named: Path) -> npt.NDArray[Any]:
    """Map the index of a file; an error advises to index the file or folder that is `named`."""
    index = index_path(path)
    try:
        if index.exists() and not is_index(index):
            raise InputError(f"{index}: not a whole index of documents", f"move it away, then {_make(named)}")
        return map_ends(index)
    except FileNotFoundError:
        raise InputError(f"{index}: no such file", _make(named)) from None
    except OSError as error:
        raise InputError(f"{index}: {error.strerror}", "check the file's permissions") from None


def _make(path: Path) -> str:
    return f"make it: {program()} index {quoted(str(path))}"
