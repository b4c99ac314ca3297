"""`prepare.py inspect`, `decode` and `index`: look at token files, and index where documents end."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from ..support.errors import DiskError, PrepareError
from ..support.log import flush_output, hold_output
from ..support.redact import escape

_EXAMPLES = {
    "inspect": """
  prepare.py inspect data/fineweb
  prepare.py inspect data/fineweb/val.bin --plot report.png""",
    "decode": """
  prepare.py decode data/fineweb/train.bin
  prepare.py decode data/fineweb/val.bin --start 1000 --count 50
  prepare.py decode data/fineweb/train.bin --start -100      the last 100 tokens""",
    "index": """
  prepare.py index data/fineweb""",
}
COMMANDS = tuple(_EXAMPLES)


def main(arguments: Sequence[str]) -> int:
    """Run `inspect ...`, `decode ...` or `index ...` and return the exit status."""
    status = 0
    hold_output("replace")  # the terminal's encoding may lack characters of the text
    try:
        options = make_parser(arguments[0]).parse_args(arguments[1:])
        options.run(options)
    except PrepareError as error:
        print(f"{arguments[0]}: {error}", file=sys.stderr)
        status = error.exit_status
    except ModuleNotFoundError as error:  # each loads what it needs
        if str(error.name).startswith("fineweb_stream"):  # not all of it was copied
            raise
        print(f"{error.name} is not installed\n  pip install {error.name}", file=sys.stderr)
        status = 1
    except BrokenPipeError:
        pass
    except OSError as error:
        where = escape(str(error.filename or "standard output"))
        print(f"{arguments[0]}: {where}: {error.strerror}", file=sys.stderr)
        status = DiskError.exit_status
    except KeyboardInterrupt:
        status = 130
    except SystemExit as left:  # from argparse: --help, or a wrong argument
        status = int(left.code or 0)
    return flush_output(arguments[0], status)


def make_parser(name: str) -> argparse.ArgumentParser:
    """Return the parser of one of the three commands."""
    run, description = {
        "inspect": (_inspect, "Summarize a token file: tokens, documents, their lengths, text."),
        "decode": (_decode, "Print tokens as text."),
        "index": (_index, "Write where documents end: FILE.index beside each token file."),
    }[name]
    parser = argparse.ArgumentParser(
        f"prepare.py {name}",
        description=description,
        epilog=f"examples:{_EXAMPLES[name]}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("path", metavar="FILE_OR_FOLDER", help="one token file, or a folder with train.bin or shards")
    if name == "inspect":
        add("--plot", metavar="PICTURE", help="also plot it (png, svg, pdf); needs matplotlib")
        add("--seed", type=int, default=0, metavar="N", help="chooses the random document (default: 0)")
    elif name == "decode":
        add("--start", type=int, default=0, metavar="N", help="first token; negative: from the end")
        add("--count", type=int, default=256, metavar="M", help="how many (default: %(default)s)")
    parser.set_defaults(run=run)
    return parser


def _inspect(options: argparse.Namespace) -> None:
    from .made_by import read_run
    from .plot import picture_format, plot_report
    from .summary import summarize

    if options.plot:
        picture_format(options.plot)  # report a wrong name before a long read
    summary = summarize(options.path, seed=options.seed)
    print("\n".join(summary.render()))
    if options.plot:
        plot_report(summary, read_run(Path(options.path)), options.plot)
        print(escape(f"drawn in {options.plot}"))


def _index(options: argparse.Namespace) -> None:
    from .documents import index_files
    from .open import find_paths

    paths = find_paths(options.path)
    if Path(options.path).is_dir():
        with contextlib.suppress(PrepareError):  # val has its name at the end of the run, shards have theirs before
            paths += [path for path in find_paths(options.path, "val") if path.exists()]
    for line in index_files(paths):
        print(escape(line))


def _decode(options: argparse.Namespace) -> None:
    from .summary import decode

    text = decode(options.path, options.start, options.count)
    print(escape(text, keep="\t\n") if sys.stdout.isatty() else text)  # a pipe gets the text unchanged
