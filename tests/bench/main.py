"""The command: make the corpus, run every case in turn, again and again, and print the table."""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .cases import ROOT, Case, Setup, all_cases, count_ids
from .corpus import make_corpus
from .measure import Failed, Measurement, measure
from .table import Results, render


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    cases = [case for case in all_cases().values() if _is_chosen(case, options.only)]
    if options.list:
        print("\n".join(f"{case.name:28}{case.what}" for case in cases))
        return 0
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    corpus = make_corpus(options.corpus, options.mb, options.separator, options.text_column, work)
    _say(f"corpus: {corpus.folder} ({corpus.n_documents:,} documents, {corpus.text_bytes:,} bytes of text)")
    if options.corpus_only:
        return 0
    setup = Setup(corpus, options.datatrove_python, _write_tokenizer(work))
    results = Results(setup, os.getloadavg()[0])
    _run_all(cases, results, options.repeats, options.timeout, work)
    print(render(cases, results, options.markdown))
    return 1 if results.failures else 0


def _run_all(cases: Sequence[Case], results: Results, n_repeats: int, timeout: float, work: Path) -> None:
    """Pass over all cases `n_repeats` times, so that drift hits all alike; before that once to watch their memory.

    Nothing of that first pass is timed: it also warms the disk's cache and compiles modules.
    """
    for case in cases:
        if missing := case.missing(results.setup):
            results.missing[case.name] = missing
    for number in range(n_repeats + 1):
        for case in cases:
            if case.name in results.missing or case.name in results.failures:
                continue
            try:
                measurement = _run(case, results, timeout, work, is_first=number == 0)
            except Failed as error:
                results.failures[case.name] = str(error)
                _say(f"{case.name}: {error}")
                continue
            if number == 0:
                results.peaks[case.name] = measurement.peak_bytes
            else:
                results.passes.setdefault(case.name, []).append(measurement)
            _say(f"pass {number} of {n_repeats}: {case.name:28}{measurement.seconds:8.2f} s")
        (work / "results.json").write_text(json.dumps([results.passes, results.peaks, results.failures]))


def _run(case: Case, results: Results, timeout: float, work: Path, is_first: bool) -> Measurement:
    out = Path(tempfile.mkdtemp(prefix="out-", dir=work))
    try:
        command = case.command(results.setup, out)
        os.sync()  # what the case before left for the system to write is not this one's
        measurement = measure(command, _environment(work), work / f"{case.name}.log", timeout, watch=is_first)
        results.said |= {case.name: measurement.said}
        if case.writes_ids and is_first:
            results.n_ids[case.name] = count_ids(out)
    finally:
        shutil.rmtree(out, ignore_errors=True)
    if case.times_itself:
        said = measurement.said
        return measurement._replace(seconds=said["seconds"], cpu_seconds=said["cpu_seconds"])
    return measurement


def _environment(work: Path) -> dict[str, str]:
    """No network, and no caches but ours."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(work / "huggingface")}
    return os.environ | offline | {"PYTHONPATH": str(ROOT)}


def _write_tokenizer(work: Path) -> Path:
    """Write GPT-2's `tokenizer.json` for datatrove, with the end-of-text token, which is plain text to us."""
    from fineweb_stream.tokenizer.gpt2 import EOT_ID, token_names

    names, merges = token_names()
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    content = {
        "version": "1.0",
        "added_tokens": [{"id": EOT_ID, "content": "<|endoftext|>", **flags, "special": True}],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {name: i for i, name in enumerate(names)}, "merges": merges},
    }
    path = work / "tokenizer.json"
    path.write_text(json.dumps(content))
    return path


def _is_chosen(case: Case, only: Sequence[str] | None) -> bool:
    return not only or any(fnmatch.fnmatch(case.name, name) or case.group == name for name in only)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("tests/bench/run.py", description="Measure all in one run and print one table.")
    add = parser.add_argument
    add("--corpus", type=Path, metavar="PATH", help="parquet, jsonl or txt (default: text that comes with Python)")
    add("--mb", type=float, default=500, help="megabytes of text; 0: the corpus as it is (default: 500)")
    add("--repeats", type=int, default=5, help="passes over all cases (default: 5)")
    add("--only", nargs="+", metavar="NAME", help="cases, groups (read, loop, ...) or patterns (prepare-*-2)")
    add("--markdown", action="store_true", help="print the table as Markdown")
    add("--datatrove-python", metavar="PYTHON", help="a Python that has datatrove[io,processing]")
    add("--separator", default="\n\n", help="of a txt corpus's documents (default: an empty line, else a newline)")
    add("--text-column", default="text", help="field or column of the text (default: text)")
    add("--work", type=Path, default=Path(tempfile.gettempdir()) / "fineweb_stream_bench", help="folder for all files")
    add("--timeout", type=float, default=3600, help="seconds that a case may take (default: 3600)")
    add("--corpus-only", action="store_true", help="make the corpus, say where it is, and end")
    add("--list", action="store_true", help="list the cases and end")
    return parser
