"""Compare a command with the record: what was read must be unchanged; what was not yet read may change.

Inputs that were read to the end are *behind*, one that was read in part is *begun*, the others are *ahead*.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..support.fingerprint import END_BYTES, changed_at, content_of, date_of, file_fingerprint, head_of
from ..support.model import STDIN, STDIN_SHOWN, Input
from ..support.units import counted
from .columns import may_have_names, names_now, names_of
from .manifest import GPT2_SETTINGS, Record, portable
from .state import DONE, ENCODING

PlaceHash = Callable[[Input, int, int], str]
"""Callable `(input, offset, n_bytes)` -> SHA-256 of the bytes just before the offset; "" if it cannot be computed."""


def compare(
    record: Record, settings: dict[str, Any], inputs: list[Input], place_hash: PlaceHash
) -> tuple[list[str], list[str]]:
    """Return the reasons a command cannot resume the run, and notes on the changes that are allowed."""
    now = portable(inputs)
    refused = _settings_changed(record, settings, len(inputs))
    behind, is_begun = record.read_so_far()
    n_fixed = behind + is_begun
    fixed, notes = record.inputs[:n_fixed], []
    is_other = is_begun and len(now) >= n_fixed and not _is_same(fixed[-1], now[behind])
    if is_other and _is_same_so_far(record, fixed[-1], inputs[behind], place_hash):
        fixed[-1] = now[behind]
        notes.append(
            f"the input {inputs[behind].shown} has changed (but not its beginning, nor the last text that was read; if"
            " anything else that was read has changed: --overwrite)"
        )
    found = _differences(fixed, now[:n_fixed], record.inputs, now, ": it was read already")
    refused += found
    before, names = names_of(record), names_now(record, settings["text_column"])
    is_ahead = has_more(record, inputs) or not record.state.is_exhausted
    if not refused and names != before and is_ahead:
        notes.append(f"--text-column was {before!r} and is {names!r} (the first that exists)")
    if not found:
        notes += _differences(record.inputs[n_fixed:], now[n_fixed:], record.inputs, now[n_fixed:])
    notes = [f"{note}: the run continues, because this part was not read yet" for note in notes]
    if not refused and notes and _is_share_of_other_text(record, now):
        if _val_would_move(record, now):
            refused.append("the share of the text that is val would change with the inputs' sizes")
        elif record.settings["val_at"] == "start":
            notes.append("note: val stays a share of the earlier text; for a share of all of it: --overwrite")
    same = "its size, beginning and end are the same: if the rest is not, --overwrite"
    rewritten = [new for new, old in zip(now, record.inputs[:n_fixed], strict=False) if _is_rewritten(old, new)]
    return refused, notes + [f"note: {input.shown} was rewritten since it was read; {same}" for input in rewritten]


def has_more(record: Record, inputs: list[Input]) -> bool:
    """Tell whether a command names more inputs, and the run has read all of its own."""
    return record.state.is_exhausted and len(inputs) > len(record.inputs)


def _settings_changed(record: Record, settings: dict[str, Any], n_inputs: int) -> list[str]:
    before = record.settings
    changed = [name for name, value in settings.items() if before.get(name) != value]
    if "text_column" in changed and may_have_names(record, names_now(record, settings["text_column"]), n_inputs):
        changed.remove("text_column")
    if "layout" in changed and "keep_shards" in changed:
        changed.remove("keep_shards")  # it follows from the layout
    is_default = before["shard_tokens"] == record.layout.shard_tokens and settings["shard_tokens"] is None
    if "shard_tokens" in changed and (is_default or not record.keeps_shards):
        changed.remove("shard_tokens")  # nobody who undoes the other changes has to give it
    if "tokenizer_sha256" in changed:  # other differences follow from it
        n_same = [name for name in changed if name not in GPT2_SETTINGS]
        was, now = (f"{of['tokenizer']} (SHA-256 {of['tokenizer_sha256'][:12]}...)" for of in (before, settings))
        return [f"--tokenizer was {was} and is {now}", *_said(n_same, before, settings)]
    return _said(changed, before, settings)


def _said(changed: list[str], before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    return [_said_of(name, before.get(name), now[name]) for name in changed]


def _said_of(name: str, before: Any, now: Any) -> str:
    if name == "val_files":
        return f"--val named {counted(before, 'file')} and names {now:,} now"
    if name == "shard_tokens" and now is None:
        return f"--shard-tokens was {before} and is not used"
    return f"--{name.replace('_', '-')} was {_value(before)} and is {_value(now)}"


def _value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "given" if value else "not given"
    return repr(value)


def _is_same(before: Input, now: Input) -> bool:
    """Tell whether a file is the one on record, whatever its time and, if it is local, its path."""
    a, b = content_of(before.fingerprint), content_of(now.fingerprint)
    is_local = bool(changed_at(now.fingerprint))
    kinds = [(i.format, i.size, i.is_stream, i.compression) for i in (before, now)]
    return a == b and kinds[0] == kinds[1] and (before.path == now.path or is_local)


def _is_rewritten(before: Input, now: Input) -> bool:
    """Tell whether a file has a new date since it was read, but is otherwise the same."""
    return bool(changed_at(before.fingerprint)) and before.fingerprint != now.fingerprint and _is_same(before, now)


def _is_same_so_far(record: Record, before: Input, now: Input, place_hash: PlaceHash) -> bool:
    """Tell whether a changed file still holds what was read of it, by its head and the bytes before the offset."""
    state = record.state
    is_to_go_on = state.status == ENCODING or (state.status == DONE and not state.is_exhausted)
    is_known = bool(state.place) or not state.offset  # nothing is before offset 0
    has_heads = head_of(before.fingerprint) and head_of(now.fingerprint)
    if not (is_to_go_on and is_known and has_heads and before.format == now.format):
        return False
    head = head_of(file_fingerprint(now.path, min(END_BYTES, before.size)))
    n_bytes, sha256 = state.place if state.offset else (0, "")
    is_same_place = not n_bytes or place_hash(now, state.offset, n_bytes) == sha256
    return head == head_of(before.fingerprint) and is_same_place


def _differences(
    before: list[Input], now: list[Input], known: list[Input], named: list[Input], why: str = ""
) -> list[str]:
    """Return what differs between two lists of inputs; `known` are all on record, `named` all that a command may mean.

    `why` is appended to what is said of inputs on record.
    """
    if len(before) == len(now) and all(map(_is_same, before, now)):
        return []
    was, here = ({input.path: input for input in inputs} for inputs in (before, now))
    anywhere, before_anywhere = ({input.path for input in inputs} for inputs in (named, known))
    found = [f"the input {_name(path)} is new" for path in here if path not in before_anywhere]
    found += [f"{_name(path)} is no longer an input{why}" for path in was if path not in anywhere]
    for path in here:
        if path in was and not _is_same(was[path], here[path]):
            if here[path].is_stdin:
                found.append(f"standard input has another first MiB{why}")
            else:
                found.append(f"the input {path} changed: {_describe(was[path])}, now {_describe(here[path])}{why}")
    return found or [f"the inputs were named in another order, or not as often{why}"]


def _name(path: str) -> str:
    """Return the path of an input on record for messages."""
    return STDIN_SHOWN if path == STDIN else path


def _is_share_of_other_text(record: Record, now: list[Input]) -> bool:
    """Tell whether val is a share of plain text whose size has changed."""
    settings = record.settings
    is_plain = settings.get("separator") is None and all(input.format == "text" for input in record.inputs)
    is_share = settings.get("val_tokens") is None and not settings["val_files"]
    if not (is_plain and is_share) or all(input.is_stream for input in now):  # each stream has a share of its own
        return False
    return sum(input.size for input in record.inputs) != sum(input.size for input in now)


def _val_would_move(record: Record, now: list[Input]) -> bool:
    """Tell whether new sizes would move val, a share of plain text, in conflict with what was read.

    A val at the start is in conflict until it was read to its end, a val at the end as soon as it was begun.
    """
    settings, state = record.settings, record.state
    begun = record.inputs[state.input : state.input + 1]
    is_stream = any(input.is_stream for input in begun)  # then its offset counts unpacked bytes
    reached = sum(input.size for input in record.inputs[: state.input]) + (0 if is_stream else state.offset)
    totals = [sum(input.size for input in inputs) for inputs in (record.inputs, now)]
    n_val = [math.ceil(settings["val_ratio"] * total) for total in totals]
    if settings["val_at"] == "end":
        return bool(reached > min(total - n for total, n in zip(totals, n_val, strict=True)))
    return bool(reached < max(n_val))


def _describe(input: Input) -> str:
    date = date_of(input.fingerprint)
    return f"{input.size:,} bytes of {input.format}" + (f" of {date}" if date else "")
