"""What the user has -> the files that the cases read: one set of documents, in every format."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .make_corpus import iter_varied

ROWS_PER_GROUP = 1_000  # as in FineWeb's files
TINY_BYTES = 20_000  # what a start-up is measured with
FORMATS = ("parquet", "jsonl", "txt")
_ABOUT = "corpus.json"  # written last: where it is, the corpus is complete


@dataclass(frozen=True)
class Corpus:
    """A folder with `corpus.parquet`, `.jsonl` and `.txt`, `tiny.*`, `tenth.parquet`, `halves/` and `ten/`."""

    folder: Path
    n_documents: int
    text_bytes: int
    origin: str

    def path(self, name: str) -> Path:
        return self.folder / name


def make_corpus(source: Path | None, mb: float, separator: str, column: str, work: Path) -> Corpus:
    """Write the corpus below `work`, or find it there from the time before.

    `mb` megabytes of `source` (None: of the text that Python carries): its first documents when it has more, all of
    them and varied repeats when it has less; 0 means all of it as it is.
    """
    stamp = [str(source.resolve()), source.stat().st_mtime_ns] if source else ["demo"]
    key = hashlib.sha256(json.dumps([3, *stamp, mb, separator, column]).encode()).hexdigest()[:12]
    folder = work / f"corpus-{key}"
    if not (folder / _ABOUT).exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if source and source.suffix not in (".parquet", ".jsonl", ".ndjson"):
            separator = _separator_of(source, separator)
        documents, n_own = _take(iter_documents(source, separator, column), int(mb * 1e6))
        about = write_corpus(documents, folder, separator.encode())
        about["origin"] = f"{source.name if source else 'pydoc_data.topics'}, " + (
            f"its {n_own:,} documents and varied repeats of them" if n_own else "documents as they are"
        )
        (folder / _ABOUT).write_text(json.dumps(about))
    return Corpus(folder, **json.loads((folder / _ABOUT).read_text()))


def _separator_of(source: Path, separator: str) -> str:
    """Return the separator, or a newline where it does not occur: then each line is a document."""
    with source.open(encoding="utf-8-sig", newline="") as file:
        return separator if separator in file.read(10_000_000) else "\n"


def _take(documents: Iterator[str], n_bytes: int) -> tuple[Iterator[str], int]:
    """Return about `n_bytes` of documents, and how many there were if they had to be repeated (else 0)."""
    if not n_bytes:
        return documents, 0
    held = []
    n_held = 0
    for text in documents:
        held.append(text)
        n_held += len(text.encode())
        if n_held >= n_bytes:
            return iter(held), 0
    return iter_varied(held, n_bytes), len(held)


def iter_documents(source: Path | None, separator: str, column: str) -> Iterator[str]:
    """Yield the documents of a parquet, jsonl or txt file; half characters, which no file can hold, become `?`."""
    if source is None:
        from pydoc_data.topics import topics

        found: Iterator[Any] = (topics[name] for name in sorted(topics))
    elif source.suffix == ".parquet":
        found = iter_parquet(source, column)
    elif source.suffix in (".jsonl", ".ndjson"):
        found = iter_jsonl(source, column)
    else:
        found = iter(source.read_text(encoding="utf-8-sig").split(separator))
    for text in found:
        if text:
            yield text if text.isascii() else text.encode("utf-8", "replace").decode()


def iter_parquet(path: Path, column: str = "text") -> Iterator[str]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path, pre_buffer=False) as file:
        for i in range(file.num_row_groups):
            yield from file.read_row_group(i, [column], use_threads=False).column(0).to_pylist()


def iter_jsonl(path: Path, column: str = "text") -> Iterator[str]:
    try:
        from orjson import loads
    except ImportError:
        from json import loads
    with path.open("rb") as file:
        for line in file:
            yield loads(line)[column]


def write_corpus(documents: Iterator[str], folder: Path, separator: bytes) -> dict[str, Any]:
    """Write every file in one pass; return the number of documents and their bytes."""
    n_documents = text_bytes = 0
    halves, ten = folder / "halves", folder / "ten"
    halves.mkdir()
    ten.mkdir()
    whole, tenth = ParquetWriter(folder / "corpus.parquet"), ParquetWriter(folder / "tenth.parquet")
    half = [ParquetWriter(halves / f"{i}.parquet") for i in range(2)]
    with (folder / "corpus.jsonl").open("wb") as jsonl, (folder / "corpus.txt").open("wb") as txt:
        for number in itertools.count():
            texts = list(itertools.islice(documents, ROWS_PER_GROUP))
            if not texts:
                break
            if number == 0:
                _write_tiny(texts, folder)
            rows = make_rows(texts, n_documents)
            for parquet in (whole, half[number % 2]):
                parquet.write(rows)
            tenth.write(rows.take(list(range(-n_documents % 10, len(texts), 10))))
            jsonl.writelines(_line(row) for row in rows.to_pylist())
            encoded = [text.encode() for text in texts]
            txt.write(separator * (number > 0) + separator.join(encoded))
            n_documents += len(texts)
            text_bytes += sum(map(len, encoded))
    for parquet in (whole, tenth, *half):
        parquet.close()
    for i in range(10):
        (ten / f"{i}.parquet").hardlink_to(folder / "corpus.parquet")
    return {"n_documents": n_documents, "text_bytes": text_bytes}


def _write_tiny(texts: list[str], folder: Path) -> None:
    head = "\n\n".join(texts)[:TINY_BYTES]
    tiny = [head[start : start + 1000] for start in range(0, len(head), 1000)]
    rows = make_rows(tiny, 0)
    parquet = ParquetWriter(folder / "tiny.parquet")
    parquet.write(rows)
    parquet.close()
    (folder / "tiny.jsonl").write_bytes(b"".join(_line(row) for row in rows.to_pylist()))
    (folder / "tiny.txt").write_bytes("\n\n".join(tiny).encode())


def _line(row: dict[str, Any]) -> bytes:
    try:
        from orjson import dumps
    except ImportError:
        return json.dumps(row, ensure_ascii=False).encode() + b"\n"
    return dumps(row) + b"\n"


def make_rows(texts: list[str], first: int) -> Any:
    """Return an Arrow table with FineWeb's columns; all but the text are made up."""
    import pyarrow as pa

    n = range(first, first + len(texts))
    hashes = [hashlib.md5(str(i).encode()).hexdigest() for i in n]
    columns = {
        "text": texts,
        "id": [f"<urn:uuid:{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}>" for h in hashes],
        "dump": ["CC-MAIN-2024-10"] * len(texts),
        "url": [f"https://www.{h[:9]}.com/{h[9:13]}/{h[13:27]}.html" for h in hashes],
        "date": [f"2024-02-{i % 28 + 1:02}T{i % 24:02}:{i % 60:02}:{i * 7 % 60:02}Z" for i in n],
        "file_path": [f"s3://commoncrawl/crawl-data/CC-MAIN-2024-10/{h[:5]}/warc.gz" for h in hashes],
        "language": ["en"] * len(texts),
        "language_score": [0.65 + int(h[:6], 16) / 2**24 * 0.35 for h in hashes],
        "token_count": [len(text) // 4 for text in texts],
    }
    return pa.table(columns)


class ParquetWriter:
    """Writes row groups of ROWS_PER_GROUP rows, compressed by zstd."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: Any = None
        self._held: list[Any] = []

    def write(self, rows: Any) -> None:
        self._held.append(rows)
        if sum(map(len, self._held)) >= ROWS_PER_GROUP:
            self._flush()

    def close(self) -> None:
        if self._held or not self._file:
            self._flush()
        self._file.close()

    def _flush(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.concat_tables(self._held) if self._held else make_rows([], 0)
        if self._file is None:
            self._file = pq.ParquetWriter(self._path, table.schema, compression="zstd")
        self._file.write_table(table, row_group_size=ROWS_PER_GROUP)
        self._held = []
