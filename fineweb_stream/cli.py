"""The command line: turns arguments into a call of `prepare()`, and errors into messages and exit statuses."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import logging
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from .output.layouts import EOT_PLACES, NAMES, NANOGPT
from .pipeline.settings import DEFAULT_VAL_RATIO, FORMATS, VAL_PLACES, parse_separator
from .remote.network import DEFAULT_CONNECTIONS
from .support.cancel import Cancel, cancel_on_signals
from .support.errors import InputError, Interrupted, PrepareError, RemoteError
from .support.log import flush_output, hold_output, log, printed
from .support.redact import escape
from .support.shell import program, quoted
from .support.version import __version__
from .token_files import commands

PIPE_SECONDS = 3.0  # how long to wait for data from a pipe that was not named as an input; after that it is ignored

_NEEDED = ("tiktoken", "numpy", "psutil")

_DESCRIPTION = (
    "Text -> nanoGPT's train.bin and val.bin: GPT-2's ids, or others. The same command resumes a stopped run."
)
_EXAMPLES = r"""examples:
  prepare.py sample/10BT --val-ratio 0.001              a folder of parquet files
  prepare.py stories.txt --separator '<|endoftext|>'    documents in one text file
  prepare.py inspect|decode|index --help                look at the outputs"""


def main(arguments: Sequence[str] | None = None, folder: Path | None = None) -> int:
    """Run the command line and return its exit status; inputs and outputs are in `folder` unless named."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] in commands.COMMANDS:
        return commands.main(arguments)
    hold_output("backslashreplace")  # a path may have bytes that the locale cannot show
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # else numpy starts a useless thread per CPU
    is_all_said = True
    with printed() as printer:
        try:
            options = vars(make_parser().parse_args(_with_separator(arguments)))
            is_all_said = options["dry_run"]
            if options["quiet"]:
                printer.setLevel(logging.WARNING)
            with cancel_on_signals() as cancel:
                status = _run(options, folder or Path(), cancel)
        except (PrepareError, Interrupted) as error:
            with contextlib.suppress(OSError):
                print(f"prepare: {_as_typed(str(error))}", file=sys.stderr)
            status = error.exit_status
        except ModuleNotFoundError as error:  # only the folder was copied
            if error.name not in _NEEDED:
                raise
            print(f"prepare: {error.name} is not installed\n  pip install {' '.join(_NEEDED)}", file=sys.stderr)
            status = InputError.exit_status
        except KeyboardInterrupt:  # before our signal handlers were in place
            status = 130
        except SystemExit as left:  # from argparse: --help, or a wrong argument
            status = int(left.code or 0)
    return flush_output("prepare", status, is_all_said, printer.lost)


def run(folder: Path | None = None) -> NoReturn:
    """Run the command line as a whole process, and exit at once: everything is saved and flushed.

    A normal exit would take 0.1 s for cleanup, and wait for an engine's call whose result nobody needs.
    """
    os._exit(main(folder=folder))


def _as_typed(message: str) -> str:
    """In a message about a parameter of `prepare()`, name the option instead.

    >>> _as_typed("val_ratio='x': not a share"), _as_typed("fit='8': not a batch")
    ('--val-ratio x: not a share', '--for 8: not a batch')
    >>> _as_typed("memory: no such file")
    'memory: no such file'
    """
    names = "val_ratio|val_tokens|shard_tokens|max_tokens|text_column|separator|errors|workers|connections|memory|seed"
    names += "|format|fit|names|layout|eot|val_at|engine"
    message = re.sub(rf"^({names})='?([^' ]*)'?:", r"\1 \2:", message)
    option = {"fit": "for"}
    return re.sub(rf"^({names})(?=[ =])", lambda m: f"--{option.get(m[1], m[1]).replace('_', '-')}", message)


def _run(options: dict[str, Any], here: Path, cancel: Cancel) -> int:
    from .output.files import as_folder

    out = options.pop("out")
    out = here if out is None else as_folder(out)
    if (cache := options.pop("tiktoken_cache")) is not None:
        from .token_files.tiktoken_cache import write_tiktoken_cache

        for line in write_tiktoken_cache(as_folder(cache, "--tiktoken-cache")):
            log.info(line)
        return 0
    if options["inputs"] and options["verify"]:
        first, hint = options["inputs"][0], "it checks the folder that --out names"
        if out is here and os.path.isdir(first):
            hint += f": {program()} --verify --out {quoted(first)}"
        raise InputError(f"--verify takes no input: {first}", hint)
    if options.pop("verify"):
        from .output.verify import verify

        for line in verify(out, cancel):
            log.info(line)
        return 0
    from .api import prepare
    from .memory.guard import return_large_blocks

    if options["separator"] is not None:
        options["separator"] = parse_separator(options["separator"])
    cancel.check()
    return_large_blocks()  # not in prepare(): a script's allocator is left alone
    names = options.pop("inputs")
    if not names and len(options["val"]) > 1:
        raise InputError("no input named: --val takes all that follow it", "name the inputs before --val")
    _check_command(names)
    is_default = not names and not options["demo"]
    if is_default:
        names = _default_names(here)
    try:
        prepare(names, out, **options)
    except RemoteError as error:
        if not is_default:
            raise
        raise RemoteError(
            f"nothing beside the script to read, and the Hub cannot be reached ({error.message})",
            "name files or folders (prepare.py corpus.jsonl), put train_fineweb.txt or input.txt there, or try --demo",
        ) from None
    return 0


def _check_command(names: Sequence[str]) -> None:
    """Raise `InputError` for what looks like a command, and names no input."""
    near = difflib.get_close_matches(names[0].lower(), [*commands.COMMANDS, "verify"], 1, 0.8) if names else []
    if near and not os.path.lexists(names[0]):
        command = "--verify --out" if near[0] == "verify" else near[0]
        what = " ".join(map(quoted, names[1:])) or "FILE_OR_FOLDER"
        raise InputError(f"{names[0]}: no such file", f"did you mean {program()} {command} {what}?")


def _default_names(here: Path) -> list[str]:
    """Return what to read if nothing was named: piped input, what is beside the script, or the default corpus."""
    from .inputs.discover import DEFAULT_CORPUS, default_names
    from .inputs.standard_input import is_piped
    from .support.model import STDIN

    names = default_names(here)
    is_beside = names != [DEFAULT_CORPUS]
    if is_piped(0.2 if is_beside else PIPE_SECONDS):
        if is_beside:
            raise InputError(
                f"no input named: it may be standard input, or {names[0]} beside the script",
                f"name it: {program()} - or {program()} {quoted(names[0])}",
            )
        log.info("no input named: reading standard input")
        return [STDIN]
    where = "" if is_beside else ", and no train_fineweb.txt, input.txt, parquet, jsonl or text beside the script"
    log.info(f"no input named{where}: using {names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}")
    return names


class _Parser(argparse.ArgumentParser):
    """Suggests the option that was meant, and escapes what was typed: a shell may have taken it from file names."""

    def error(self, message: str) -> NoReturn:
        """Print the message and exit with status 2."""
        if unknown := re.match(r"unrecognized arguments: (-[^ =]+)", message):
            options = [option for action in self._actions for option in action.option_strings]
            if os.path.lexists(unknown[1]):
                message += f"; for the file of that name: {quoted(unknown[1])}"
            elif near := difflib.get_close_matches(unknown[1], options, 1, 0.75):
                message += f"; did you mean {near[0]}?"
        elif message.startswith("unrecognized arguments: "):
            message += "; name all inputs together, before the options"
        super().error(escape(message))


def _with_separator(arguments: Sequence[str]) -> list[str]:
    """Join --separator with its value if argparse would take that for an option: it may be ---.

    >>> _with_separator(["c.txt", "--separator", "---", "--out", "o"])
    ['c.txt', '--separator=\\\\x2d--', '--out', 'o']
    """
    joined: list[str] = []
    for argument in arguments:
        if joined and joined[-1] == "--separator" and re.fullmatch(r"-+([^-a-z].*)?|-+[a-z].*[^-a-z].*", argument):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    # argparse would remove a --
    return [re.sub("^--separator=-", r"--separator=\\x2d", argument) for argument in joined]


def make_parser() -> argparse.ArgumentParser:
    """Return the parser. Its options for a run have the names of `prepare()`'s parameters, except --for (`fit`)."""
    parser = _Parser(
        "prepare.py",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=26, width=100),
        usage="prepare.py [INPUT ...] [options]",
    )
    add = parser.add_argument
    help = "files, folders, globs, URLs, fineweb-edu:sample-10BT; - is standard input"
    add("inputs", nargs="*", metavar="INPUT", help=help)
    add("--out", metavar="DIR", help="where the outputs go (default: beside the script)")
    add("--val", nargs="+", action="extend", default=[], metavar="FILE", help="files that are the validation split")
    add("--val-ratio", metavar="R", help=f"share for validation (default: {DEFAULT_VAL_RATIO}; --demo: 0.1)")
    add("--val-tokens", metavar="N", help="the first N tokens (whole documents) are the validation split")
    add("--val-at", choices=VAL_PLACES, default="start", metavar="P", help="where val is in plain text: start or end")
    add("--shard-tokens", metavar="N", help="tokens per shard, if kept (default: 500M; llmc and npy: 100M)")
    add("--max-tokens", metavar="N", help="stop after N training tokens; a larger N continues there")
    add("--keep-shards", action="store_true", help="keep the shards beside train.bin")
    help = "nanogpt (default), llmc (and modded-nanogpt), or npy (build-nanogpt)"
    add("--layout", default=NANOGPT.name, metavar="NAME", help=help)
    add("--names", choices=NAMES, metavar="S", help="fineweb: name llmc's files as llm.c's script does")
    add("--for", dest="fit", metavar="BxT[xP]", help="check file sizes against the trainer's batch, as 64x1024x8")
    add("--eot", choices=tuple(EOT_PLACES), default="after", metavar="E", help="end-of-text: after, before or both")
    add("--shuffle", action="store_true", help="write documents in a random order that --seed decides")
    add("--tokenizer", default="gpt2", metavar="T", help="gpt2 (default), cl100k_base, a tokenizer.json, bytes, chars")
    add("--pattern", metavar="P", help="for a .tiktoken file: gpt2, cl100k, o200k, qwen2, or a regular expression")
    add("--eot-id", metavar="ID", help="the tokenizer's end-of-text: an id, or its text")
    add("--index", action="store_true", help="write where documents end, beside each file (NAME.index)")
    help = "format of the inputs, whatever their names: text, jsonl or parquet"
    add("--format", choices=FORMATS, metavar="F", help=help)
    help = "field of jsonl, column of parquet (default: text); for text,content the first that exists"
    add("--text-column", default="text", metavar="C", help=help)
    add("--separator", metavar="S", help=r"what separates documents in a text file, as '\n\n'")
    help = "invalid UTF-8: strict (default), replace or ignore"
    add("--errors", default="strict", choices=("strict", "replace", "ignore"), metavar="E", help=help)
    add("--skip-bad", action="store_true", help="skip and count records, and parquet files, that cannot be used")
    add("--engine", default="auto", metavar="E", help="encoder: tiktoken, gigatoken, or auto, the fastest (default)")
    add("--workers", metavar="N", help="encoding threads (default: one per CPU)")
    help = f"connections for inputs at URLs (default: {DEFAULT_CONNECTIONS})"
    add("--connections", metavar="N", default=DEFAULT_CONNECTIONS, help=help)
    add("--memory", metavar="M", help="memory budget, as 4GB or 50%% (default: half of what is available)")
    scheduler = os.environ.get("DASK_SCHEDULER_ADDRESS") or None
    add("--cluster", metavar="ADDRESS", default=scheduler, help="a Dask scheduler")
    add("--seed", type=int, default=0, metavar="N", help="for the validation split and --shuffle (default: 0)")
    help = "start over: delete an earlier run's files, but resume the very same run"
    add("--overwrite", action="store_true", help=help)
    add("--dry-run", action="store_true", help="estimate the outputs, disk, memory and time, and stop")
    add("--quiet", action="store_true", help="print only notes, warnings and errors")
    add("--demo", action="store_true", help="use text that comes with Python as the corpus")
    add("--verify", action="store_true", help="read the outputs again and check them")
    add("--tiktoken-cache", metavar="DIR", help="write GPT-2's files there for tiktoken (sample.py offline), and stop")
    add("--version", action="version", version=f"fineweb_stream {__version__}")
    return parser
