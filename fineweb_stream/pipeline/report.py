"""What a run says before and after, and what it adds to its record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..inputs.blocks import Source
from ..inputs.standard_input import is_whole_head, stdin_head
from ..output.layouts import EOT_PLACES
from ..output.manifest import Record
from ..output.own import CHANGES_NAME, META_NAME, TRAIN_NAME
from ..output.state import DONE, ENCODING, MERGING, SHUFFLING, State
from ..support.errors import InputError
from ..support.model import Input
from ..support.shell import quoted
from ..support.units import counted, format_size
from ..support.version import __version__, version_of
from ..tokenizer import load
from ..tokenizer.cuts import NO_CUTS
from .fits import fit_warnings
from .settings import Settings

N_LISTED = 3  # how many inputs are named from each end of the list


def about(engine: str, settings: Settings) -> dict[str, Any]:
    """Return what made the files, for the record: program, engine, versions, tokenizer."""
    import platform  # 20 ms, so not imported before the engine loads

    tokenizer = settings.tokenizer
    return {
        "program": f"fineweb_stream {__version__}",
        "engine": engine,
        "versions": {name: version_of(name) for name in ("tiktoken", "numpy", "psutil")}
        | {"python": platform.python_version()},
        "end_of_text": {
            "id": tokenizer.eot_id,
            "stands": f"{EOT_PLACES[settings.eot]} every document; between plain-text files",
        },
        "dtype": tokenizer.dtype.name,
        "tokenizer": load.about(tokenizer),
    }


_KINDS = {"demo": "text"}


def found(record: Record) -> list[str]:
    """Return lines on the inputs, and on what an earlier run has left."""
    n_val, state = record.settings["val_files"], record.state
    lines = _named("validation", record.inputs[:n_val]) if n_val else []
    lines += _named("input", record.inputs[n_val:])
    total = sum(input.size for input in record.inputs)
    if state.status == DONE:  # from where it will be extended
        state = replace(state, **state.snapshot)
    n_tokens = state.n_tokens
    phase = f", {state.status}" if state.status in (SHUFFLING, MERGING) else ""
    if phase or n_tokens:
        share = f"{state.input_bytes / total:.0%}" if total else f"{state.input_bytes:,} bytes"
        lines.append(f"resuming at {share}{phase}: {counted(n_tokens, 'token')} are done")
        lines += compared(record)
    return lines


def compared(record: Record) -> list[str]:
    """Return a note on how much of standard input was compared with what the earlier run read."""
    n_begun = record.state.input + 1 if record.state.status == ENCODING else len(record.inputs)
    if not any(input.is_stdin for input in record.inputs[:n_begun]) or is_whole_head():
        return []
    return [
        f"note: standard input begins as before (its first {len(stdin_head()):,} bytes were compared); what the run has"
        " already read is skipped: another text needs another --out"
    ]


def _named(label: str, inputs: Sequence[Input]) -> list[str]:
    """Return lines on the inputs: names, total size, formats."""
    names = inputs[0].shown if len(inputs) == 1 else f"{inputs[0].shown} and {len(inputs) - 1:,} more"
    total = sum(input.size for input in inputs)
    size = f"{format_size(total)} of " if total else ""
    lines = [f"{label}: {names}: {size}{', '.join(sorted({_KINDS.get(i.format, i.format) for i in inputs}))}"]
    return lines + (_listed([input.shown for input in inputs]) if len(inputs) > 1 else [])


def _listed(names: Sequence[str]) -> list[str]:
    """Return the first and the last few names, a line each.

    >>> _listed("abcdefgh")
    ['  a', '  b', '  c', '  ... 2 more', '  f', '  g', '  h']
    """
    if len(names) > 2 * N_LISTED + 1:
        names = [*names[:N_LISTED], f"... {len(names) - 2 * N_LISTED:,} more", *names[-N_LISTED:]]
    return [f"  {name}" for name in names]


def check_worth(state: State, sources: Sequence[Source], n_val: int = 0) -> None:
    """Raise `InputError` for a result that nobody could train on: no text, or nothing in one of the splits.

    The first `n_val` sources are validation.
    """
    if not state.has_text:
        what = f"{counted(state.n_documents, 'document')}, all blank" if state.n_documents else "nothing to encode"
        message = f"{sources[0].input.shown}: no text in the input: {what}"
        if not state.is_exhausted:
            raise InputError(message, "raise --max-tokens: there is more")
        raise InputError(message, "name other files")
    if n_val and not (state.train_tokens and state.val_tokens):
        first, kind = (sources[0], " of --val") if not state.val_tokens else (sources[n_val], "")
        raise InputError(f"{first.input.shown}: no text in the inputs{kind}", "name other files")
    if not state.train_tokens:
        what = "only one document" if state.val_documents == 1 else "everything"
        if is_never_separated(state, sources):
            options = sources[0].options
            separator = (options.separator or b"").decode()
            way_on = "choose another --tokenizer" if options.cuts == NO_CUTS.name else "leave --separator out"
            raise InputError(
                f"{sources[0].input.shown}: the separator {separator!r} separates nothing: there is only one document",
                f"give the one that is between documents, or {way_on} for one long text",
            )
        too_little = f"{sources[0].input.shown}: too little text: {what} went to val, nothing is left to train on"
        if state.val_documents == 1:
            raise InputError(too_little, "add documents")
        raise InputError(too_little, "add text, or lower --val-ratio or --val-tokens")
    if not state.val_tokens:  # --val-at end, but no place to cut there
        raise InputError(
            f"{sources[-1].input.shown}: too little text: nothing went to val", "add text, or raise --val-ratio"
        )


def is_never_separated(state: State, sources: Sequence[Source]) -> bool:
    """Tell whether the separator occurs in no text file, so that each file is a single document."""
    texts = [source for source in sources if source.options.separator and source.input.format == "text"]
    return len(texts) == len(sources) and 0 < state.n_documents <= len(texts)


def outputs(folder: Path, record: Record) -> list[str]:
    """Return lines on where the files are and what is in them."""
    state, layout = record.state, record.layout
    last = len(state.shard_sha256) - 1 - state.has_rest
    shards = layout.shard_name(0) + (f" to {layout.shard_name(last)}" if last else "")
    shards += f", {layout.rest_name}" if state.has_rest else ""
    lines = []
    for name, tokens, documents in (
        (TRAIN_NAME if layout.is_merged else shards, state.train_tokens, state.train_documents),
        (layout.val_name, state.val_tokens, state.val_documents),
    ):
        of = f" of {counted(documents, 'document')}" if state.n_documents else ""
        lines.append(f"{folder / name}: {counted(tokens, 'token')}{of}")
    if layout.is_merged and record.settings["keep_shards"]:
        lines.append(f"{folder / shards}: a second copy of the tokens of {TRAIN_NAME}")
    if state.has_rest:
        rest, n_rest = folder / layout.rest_name, counted(record.rest_tokens, "token")
        few = f"too few for a shard of {layout.reader}, which leaves it out"
        lines.append(f"warning: {rest} has the last {n_rest} of train, {few}")
    if state.n_changes:
        n_changes = ", ".join(f"{n:,} {kind}" for kind, n in state.n_changes.items())
        lines.append(f"{folder / CHANGES_NAME}: {n_changes}")
    return lines


def result(folder: Path, record: Record, settings: Settings) -> list[str]:
    """Return lines on what a run has made, what to look at, and what to do next."""
    state = record.state
    assert state.status == DONE
    engine, rate = record.about.get("engine", "tiktoken"), state.text_bytes / 1e6 / max(state.seconds, 1e-9)
    lines = [f"{format_size(state.text_bytes)} of text in {state.seconds:,.1f} s ({rate:,.1f} MB/s) with {engine}"]
    if state.n_eot_in_text:
        lines.append(
            f"note: the text has {state.n_eot_in_text:,} literal <|endoftext|>, kept as text;"
            " if they separate documents: --separator '<|endoftext|>' (with --overwrite)"
        )
    if record.settings["separator"] and state.n_documents <= sum(i.format == "text" for i in record.inputs):
        separator = record.settings["separator"]
        lines.append(f"warning: the separator {separator!r} separates nothing: each file is one document")
    lines += (problems := [*fit_warnings(record, settings)])
    lines += outputs(folder, record)
    once = ", once the files are long enough" * any(line.startswith("warning: ") for line in problems)
    return [*lines, f"train on it{once}: {_usage(folder.resolve(), record)}"]


def _usage(folder: Path, record: Record) -> str:
    """Return what to type to train on the files in a folder."""
    layout = record.layout
    train, val = folder / f"{layout.stems[0]}*{layout.suffix}", folder / layout.val_name
    paths = {"folder": str(folder), "train": quoted(str(train)), "val": quoted(str(val)), "name": quoted(folder.name)}
    usage = layout.usage.format(**paths)
    if not layout.is_merged or folder.parent.name == "data":
        return usage
    all_files = f"{META_NAME} and both" if META_NAME in record.state.outputs else "both"
    return f"copy {all_files} to nanoGPT's {quoted(f'data/{folder.name}/')}, then {usage}"
