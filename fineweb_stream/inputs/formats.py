"""The format of a file, by the suffixes of its name and by its first bytes, which must agree."""

from __future__ import annotations

import re
from pathlib import Path
from typing import BinaryIO

from ..support.errors import InputError
from ..support.shell import move_command
from .codecs import CODECS, CompressedFile
from .foreign import find_foreign
from .json_kinds import is_json_lines
from .kind import HEAD_BYTES, Foreign, refuse, unused

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
    r"((prepare(\.manifest)?\.json|prepare\.changes\.jsonl|prepare\.(spool|bucket)(_\d+)?\.bin|meta\.pkl"
    r"|(train|val|rest|train_shard_\d+|fineweb_(train|val)_\d+)\.(bin|npy)(\.index)?)(\.([0-9a-f]{12}\.)?part)?"
    r"|prepare\.(log|lock))"
)
_NO_CORPUS = re.compile(
    r"(readme|licen[cs]e|requirements|constraints)([-_.].*)?\.(txt|md|rst)|readme|licen[cs]e|prepare\.py"
    r"|(copying|notice|changelog|citation|robots|cmakelists|top_level|vocab|merges)\.txt"
    r"|(vocab|special_tokens_map|tokenizer(_config)?|(generation_|adapter_)?config|dataset_?(infos?|dict)|state"
    r"|metadata|croissant|package(-lock)?|tsconfig)([-_.].*)?\.json",
    re.IGNORECASE,
)
_HIDDEN = re.compile(r"[._#@$~].*|lost\+found|System Volume Information|RECYCLER?")


def is_own(file: str) -> bool:
    """Tell by its name whether this program writes such a file, also as it works: it is never an input.

    >>> is_own("prepare.changes.jsonl"), is_own("train.bin.0a1b2c3d4e5f.part"), is_own("prepare.data.jsonl")
    (True, True, False)
    """
    return bool(_OWN.fullmatch(file))


def is_hidden(name: str) -> bool:
    """Tell by its name whether a file or folder in a folder is hidden: trash, a log, a backup copy.

    >>> is_hidden(".ipynb_checkpoints"), is_hidden("_delta_log"), is_hidden("data")
    (True, True, False)
    """
    return bool(_HIDDEN.fullmatch(name))


def is_about(file: str) -> bool:
    """Tell by its name whether a file in a folder is about its corpus or program, and is none itself.

    >>> is_about("README.md"), is_about("dataset_dict.json"), is_about("notes.md")
    (True, True, False)
    """
    return bool(_NO_CORPUS.fullmatch(file))


def is_usable(file: str) -> bool:
    """Tell by its name whether a file in a folder belongs to a corpus.

    >>> [is_usable(file) for file in ("c.JSONL.gz", "c.parquet.gz", "README.txt", "_SUCCESS.txt", "train.bin")]
    [True, False, False, False, False]
    """
    compression, suffix = suffixes(Path(file))
    known = FORMAT_OF_SUFFIX.get(suffix)
    if is_own(file) or is_hidden(file) or is_about(file.removesuffix(compression)):
        return False
    return bool(known) and not (compression and known == "parquet")


def find_format(name: str, head: bytes, asked: str | None = None, compression: str = "") -> str:
    """Return the format of a file whose content begins with `head`: `asked` or, if that is None, by name and `head`.

    >>> find_format("c.json.gz", b'{"text": "one"}'), find_format("notes", b"Once upon a time")
    ('jsonl', 'text')

    Raises `InputError` for a file that is not a corpus, with the command that makes one of it.
    """
    _, suffix = suffixes(Path(name))
    known = asked or FORMAT_OF_SUFFIX.get(suffix)
    is_parquet = bool(_PARQUET.match(head))
    if compression and (known == "parquet" or (is_parquet and not asked)):
        unpack = CODECS[compression].command
        raise refuse(name, Foreign("a compressed parquet file", unpack, ".parquet", promise="unpack it"))
    if asked == "parquet" and head and not head.startswith(b"PAR1"):
        raise InputError(f"{name}: not a parquet file", "leave out --format parquet")
    if known and (asked or not head or (known == "parquet" and head.startswith(b"PAR1"))):
        return known
    if not is_parquet and (found := find_foreign(head, suffix)):
        raise refuse(name, found, compression)
    content = "parquet" if is_parquet else "jsonl" if is_json_lines(head) else "text"
    if known and (known == "parquet") != is_parquet:
        what = {"jsonl": "JSON Lines", "text": "plain text", "parquet": "a parquet file"}[content]
        answer = "if a server sent it instead of the file, fetch the file again; else "
        raise InputError(
            f"{name}: {what}, though its name ends in {suffix}",
            answer * (known == "parquet")
            + f"{_rename(name, Path(name).stem + SUFFIX_OF_FORMAT[content])}; or use --format {content}",
        )
    return content if content != "text" else known or content


def look(name: str, file: BinaryIO, asked: str | None = None) -> tuple[str, str]:
    """Return the format of an open file, and the suffix of its compression, "" for none; `asked` overrides detection.

    Raises `InputError` for a file that is not a corpus, or not compressed as its name says.
    """
    raw = head = file.read(HEAD_BYTES)
    path = Path(name)
    named, _ = suffixes(path)
    packed = next((suffix for suffix, codec in CODECS.items() if re.match(codec.magic, raw)), "")
    if packed:
        file.seek(0)
        head = CompressedFile(file, name, packed).head(HEAD_BYTES)
    if raw and packed != named and (named or "://" not in name):  # URLs often have no suffix
        found = None if asked or _PARQUET.match(head) else find_foreign(head)
        if found:
            raise refuse(name, found, packed)
        unpacked = f"not compressed, though its name ends in {named} (a browser or a server may have unpacked it)"
        what = f"{packed[1:]} data, not text" if packed else unpacked
        raise InputError(f"{name}: {what}", _rename(name, (path.stem if named else path.name) + packed))
    return find_format(name, head, asked, packed), packed


def _rename(name: str, new: str) -> str:
    """Return how to give a file its right ending."""
    if "://" in name:
        return f"fetch it as {new}, and name that"
    return f"give it the right ending: {move_command(name, str(unused(Path(name).with_name(new))))}"
