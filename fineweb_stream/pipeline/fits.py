"""`--for`: check that the files are long enough for the trainer's reader, as estimated before a run and as written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ..output.layouts import LLMC, Layout
from ..output.manifest import Record
from ..output.own import TRAIN_NAME, is_output
from ..support.errors import InputError
from ..support.shell import quoted
from ..support.units import counted
from .settings import Settings

USEFUL_VAL_TOKENS = 100_000  # with fewer, the loss varies more between splits than between versions of a model

MAX_USEFUL_RATIO = 0.1

MODDED_VAL_TOKENS = 10_485_760  # modded-nanogpt validates on exactly this many tokens


def larger_ratio(n_tokens: int, val: int, settings: Settings, has_documents: bool) -> float | None:
    """Return a `--val-ratio` that gives a val of useful size; None if val is large enough, or no ratio would help.

    `n_tokens` are those of both splits. Of plain text val is a share of the whole, wherever --max-tokens ends the run.
    """
    is_known = settings.max_tokens is None or has_documents
    if settings.val_share is None or not is_known or val >= USEFUL_VAL_TOKENS:
        return None
    ratio = min(USEFUL_VAL_TOKENS * 1.02 / max(n_tokens, 1), MAX_USEFUL_RATIO)
    is_enough = round(ratio * n_tokens) >= max(settings.least_tokens, val + 1)
    return ratio if ratio > 1.2 * settings.val_ratio and is_enough else None


def check_fit(
    train: int,
    val: int,
    spread: float,
    settings: Settings,
    has_documents: bool,
    is_begun: bool = False,
    is_rough: bool = False,
) -> list[str]:
    """Return notes on files that will be too short for their reader, by estimated tokens and their relative error.

    A val too small to be useful is left out if the plan warns of it already. A run that `is_begun` has its settings.

    Raises `InputError` instead if `--for` was given, but not for numbers of tokens that are guesses (`is_rough`).
    """
    layout, least = settings.file_layout, settings.least_tokens
    problems = []
    is_named = larger_ratio(train + val, val, settings, has_documents) is not None
    if val * (1 + spread) < least and (settings.fit or not is_named):
        problems.append(
            (
                f"{layout.val_name} will have about {counted(val, 'token')}",
                _val_advice(least, train + val, settings),
                is_rough,
            )
        )
    if not layout.is_merged and settings.shard_tokens < least:
        problems.append((f"each shard will have {settings.shard_tokens:,} tokens", f"--shard-tokens {least}", False))
    elif train * (1 + spread) < least:
        problems.append((f"train will have about {counted(train, 'token')}", _train_advice(least, settings), is_rough))
    notes = []
    for what, advice, is_guess in problems:
        advice += _how(advice) * is_begun
        if settings.fit and not is_guess:
            raise InputError(f"{what}; {_need(settings)}", f"{advice}, or another --for")
        notes.append(f"note: {what}; {_need(settings)}: {advice} would do")
    if layout.reader == LLMC.reader and layout.id_bytes == LLMC.id_bytes:
        notes += _modded_notes(train, int(val * (1 + spread)), settings, has_documents)
    return notes


def fit_warnings(record: Record, settings: Settings) -> Iterator[str]:
    """Yield a line for each file that is too short for its reader, or was and no longer is with another `--for`."""
    state, layout, least = record.state, record.layout, settings.least_tokens
    if state.val_tokens < least:
        ratio = larger_ratio(state.n_tokens, state.val_tokens, settings, state.n_documents > 0)
        advice = f"--val-ratio {ratio:.2g}" if ratio else _val_advice(least, state.n_tokens, settings)
        yield _warning(layout.val_name, state.val_tokens, settings, advice)
    n_shards = 1 if layout.is_merged else len(state.shard_sha256) - state.has_rest
    last = state.train_tokens - record.rest_tokens - (n_shards - 1) * settings.shard_tokens
    if n_shards == 1 and last < least:
        name = TRAIN_NAME if layout.is_merged else "the only shard"
        yield _warning(name, last, settings, _train_advice(least, settings))
    elif last < least:
        n_tokens = -(-state.train_tokens // (n_shards - 1))
        advice = f"--shard-tokens {n_tokens}" if least <= n_tokens <= layout.max_tokens else f"--shard-tokens {least}"
        yield _warning(f"the last shard, {layout.shard_name(n_shards - 1)},", last, settings, advice)
    if record.rest_tokens >= least:
        yield f"note: {layout.rest_name} would be long enough for --for {settings.batch}: --overwrite makes it a shard"


def check_neighbours(folder: Path, layout: Layout) -> None:
    """Raise `InputError` for a file that the layout's reader would mistake for one of its own.

    build-nanogpt's reader takes every file of the folder with `train` or `val` in its name.
    """
    if layout.suffix != ".npy" or not folder.is_dir():
        return
    for name in sorted(os.listdir(folder)):
        own = ".".join(name.split(".")[:2])  # without the suffixes of temporary files and indexes
        if ("train" in name or "val" in name) and not is_output(own):
            raise InputError(
                f"{folder / name}: {layout.reader}'s reader takes every file with train or val in its name for a shard",
                f"give the shards a folder of their own: --out {quoted(str(folder / 'shards'))}",
            )


def _modded_notes(train: int, val: int, settings: Settings, has_documents: bool) -> list[str]:
    """Return a note on what modded-nanogpt, which reads llm.c's layout, would lack."""
    needs = []
    if not has_documents:
        needs.append("end-of-text ids, at which its windows begin (--separator splits a text into documents)")
    is_short = val < MODDED_VAL_TOKENS and train + val < 2 * MODDED_VAL_TOKENS
    if val < MODDED_VAL_TOKENS:
        needs.append(f"{MODDED_VAL_TOKENS:,} tokens of val ({_val_advice(MODDED_VAL_TOKENS, train + val, settings)})")
        train = train if is_short else train + val - MODDED_VAL_TOKENS
    if train <= settings.shard_tokens:
        is_enough = not is_short and train // 2 >= settings.least_tokens
        needs.append(f"two shards or more ({f'--shard-tokens {train // 2}' if is_enough else 'more text'})")
    return [f"note: modded-nanogpt, if you use it, needs {', '.join(needs)}"] if needs else []


def _need(settings: Settings) -> str:
    return f"{settings.file_layout.reader} needs {settings.least_tokens:,} or more (--for {settings.batch})"


def _train_advice(least: int, settings: Settings) -> str:
    return f"--max-tokens {least}" if (settings.max_tokens or least) < least else "more text"


def _val_advice(least: int, n_tokens: int, settings: Settings) -> str:
    if settings.val_files:
        return "more text in --val"
    if 2 * least > n_tokens:
        return "more text"
    n_useful = max(min(USEFUL_VAL_TOKENS, int(MAX_USEFUL_RATIO * n_tokens)), least)
    if settings.val_at == "end":  # which needs a ratio
        return f"--val-ratio {min(1.1 * n_useful / n_tokens, 0.6):.2g}"
    return f"--val-tokens {n_useful // 1000 * 1000 if n_useful >= least + 1000 else least}"


def _warning(name: str, n_tokens: int, settings: Settings, advice: str) -> str:
    return f"warning: {name} has {counted(n_tokens, 'token')}; {_need(settings)}: {advice} would do{_how(advice)}"


def _how(advice: str) -> str:
    """Return what an option that is advised takes once a run has begun."""
    return " (with --overwrite)" if "--" in advice and not advice.startswith("--max-tokens") else ""
