"""The format of a file, by the suffixes of its name and by its first bytes, which must agree."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import BinaryIO

from ..support.errors import InputError
from ..support.redact import quoted
from .codecs import CODECS, CompressedFile
from .foreign import find_foreign
from .json_kinds import is_json_lines
from .kind import HEAD_BYTES
from .refusal import refuse

FORMAT_OF_SUFFIX = {".txt": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet"}

SUFFIX_OF_FORMAT = {"text": ".txt", "jsonl": ".jsonl", "parquet": ".parquet"}

_PARQUET = re.compile(rb"PAR1\x15")
"""The magic bytes, and the first byte of a page header or footer: in Thrift's compact protocol, field 1, an i32."""


def suffixes(path: Path) -> tuple[str, str]:
    """Return the suffix of the compression, "" for none, and the suffix before it.

    >>> suffixes(Path("c.jsonl.gz")), suffixes(Path("c.TXT"))
    (('.gz', '.jsonl'), ('', '.txt'))
    """
    last = path.suffix.lower()
    return (last, Path(path.stem).suffix.lower()) if last in CODECS else ("", last)


_OWN = re.compile(
    r"(prepare(\.manifest)?\.json|prepare\.changes\.jsonl|(train|val|rest|train_shard_\d+|fineweb_(train|val)_\d+)\.(bin|npy))"
    r"(\.part)?"
    r"|prepare\.(log|lock)"
)
_NO_CORPUS = re.compile(
    r"(readme|licen[cs]e|requirements|constraints)([-_.].*)?\.txt"
    r"|(copying|notice|changelog|citation|robots|cmakelists|top_level|vocab|merges)\.txt"
    r"|(vocab|special_tokens_map|tokenizer(_config)?|(generation_|adapter_)?config|dataset_?(infos?|dict)|state"
    r"|metadata|croissant|package(-lock)?|tsconfig)([-_.].*)?\.json",
    re.IGNORECASE,
)
_HIDDEN = re.compile(r"[._#@$~].*|lost\+found|System Volume Information|RECYCLER?")


def is_own(file: str) -> bool:
    """Tell by its name whether a file is an output of this program, which is never an input.

    >>> is_own("prepare.changes.jsonl"), is_own("train.bin"), is_own("prepare.data.jsonl")
    (True, True, False)
    """
    return bool(_OWN.fullmatch(file))


def is_hidden(name: str) -> bool:
    """Tell by its name whether a file or folder in a folder is hidden: trash, a log, a backup copy.

    >>> is_hidden(".ipynb_checkpoints"), is_hidden("_delta_log"), is_hidden("data")
    (True, True, False)
    """
    return bool(_HIDDEN.fullmatch(name))


def is_usable(file: str) -> bool:
    """Tell by its name whether a file in a folder belongs to a corpus.

    >>> [is_usable(file) for file in ("c.JSONL.gz", "c.parquet.gz", "README.txt", "_SUCCESS.txt", "train.bin")]
    [True, False, False, False, False]
    """
    compression, suffix = suffixes(Path(file))
    known = FORMAT_OF_SUFFIX.get(suffix)
    if is_own(file) or is_hidden(file) or _NO_CORPUS.fullmatch(file.removesuffix(compression)):
        return False
    return bool(known) and not (compression and known == "parquet")


def find_format(name: str, head: bytes, asked: str | None = None) -> str:
    """Return the format of a file whose content begins with `head`: `asked` or, if that is None, by name and `head`.

    >>> find_format("c.json.gz", b'{"text": "one"}'), find_format("notes", b"Once upon a time")
    ('jsonl', 'text')

    Raises `InputError` for a file that is not a corpus, with the command that makes one of it.
    """
    compression, suffix = suffixes(Path(name))
    known = asked or FORMAT_OF_SUFFIX.get(suffix)
    is_parquet = bool(_PARQUET.match(head))
    if compression and (known == "parquet" or (is_parquet and not asked)):
        raise _packed_parquet(name, compression)
    if asked == "parquet" and head and not head.startswith(b"PAR1"):
        raise InputError(f"{name}: not a parquet file", "leave out --format parquet")
    if known and (asked or not head or (known == "parquet" and head.startswith(b"PAR1"))):
        return known
    if is_parquet and known:
        raise InputError(
            f"{name}: a parquet file", f"give it the ending .parquet: {_move(name, Path(name).stem + '.parquet')}"
        )
    if is_parquet:
        return "parquet"
    if found := find_foreign(head, suffix):
        raise refuse(name, found, compression)
    content = "jsonl" if is_json_lines(head) else "text"
    if known == "parquet":
        raise _no_parquet(name, suffix, content)
    return "jsonl" if content == "jsonl" else known or content


def _packed_parquet(name: str, compression: str) -> InputError:
    new = Path(name).name.removesuffix(compression).removesuffix(".parquet") + ".parquet"
    unpack = f"{CODECS[compression].command} {quoted(name)} > {quoted(str(_unused(Path(name).with_name(new))))}"
    return InputError(f"{name}: a parquet file inside a compressed one", f"unpack it: {unpack}")


def _no_parquet(name: str, suffix: str, content: str) -> InputError:
    what = {"jsonl": "JSON Lines", "text": "plain text"}[content]
    new = Path(name).name.removesuffix(suffix) + SUFFIX_OF_FORMAT[content]
    return InputError(
        f"{name}: {what}, though its name ends in {suffix}",
        f"give it the right ending: {_move(name, new)}; or use --format {content}",
    )


def look(name: str, file: BinaryIO, asked: str | None = None) -> tuple[str, str]:
    """Return the format of an open file, and the suffix of its compression, "" for none; `asked` overrides detection.

    Raises `InputError` for a file that is not a corpus, or not compressed as its name says.
    """
    raw = file.read(HEAD_BYTES)
    named, _ = suffixes(Path(name))
    packed = next((suffix for suffix, codec in CODECS.items() if re.match(codec.magic, raw)), "")
    is_url = "://" in name  # URLs often have no suffix
    if asked and not named and not packed and not is_url:
        return find_format(name, raw, asked), ""
    if raw and named and not packed:
        raise _refuse_unpacked(name, raw, asked)
    head = raw
    if packed:
        file.seek(0)
        head = CompressedFile(file, name, packed).head(HEAD_BYTES)
    if packed != named and raw and not (is_url and not named):
        found = find_foreign(head)
        if found and not asked:
            raise refuse(name, found, packed)
        new = Path(name).name.removesuffix(named) + packed
        raise InputError(f"{name}: {packed[1:]} data, not text", f"give it the ending {packed}: {_move(name, new)}")
    return find_format(name, head, asked), packed


def _refuse_unpacked(name: str, head: bytes, asked: str | None) -> InputError:
    found = None if asked or _PARQUET.match(head) else find_foreign(head)
    if found:
        return refuse(name, found)
    path = Path(name)
    return InputError(
        f"{name}: not compressed, though its name ends in {path.suffix} (a browser or a server may have unpacked it)",
        f"remove that ending: {_move(name, path.stem)}",
    )


def _move(name: str, new: str) -> str:
    if "://" in name:
        return f"fetch it as {new}, and name that"
    return f"mv {quoted(name)} {quoted(str(_unused(Path(name).with_name(new))))}"


def _unused(path: Path) -> Path:
    """Return a name in the same folder under which there is nothing yet."""
    while os.path.lexists(path):
        path = path.with_name(f"new_{path.name}")
    return path
