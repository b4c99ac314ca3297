"""The pages in docs/ are true: the API page is made from the docstrings, and every link leads somewhere."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

import pytest

import fineweb_stream
import fineweb_stream.cli

from .api_page import API_PAGE, render_api
from .conftest import ROOT
from .helpers import write_jsonl

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_api_page_is_complete() -> None:
    """Each public name is on the page with its docstring; the command on the page makes it."""
    if sys.version_info[:2] != (3, 11):
        pytest.skip("signatures are written a little differently in other versions")
    assert API_PAGE.read_text(encoding="utf-8") == render_api()


@pytest.mark.parametrize("name", fineweb_stream.__all__)
def test_every_public_name_has_a_docstring(name: str) -> None:
    """Each public name has a docstring."""
    thing = getattr(fineweb_stream, name)
    assert isinstance(thing, str) or inspect.getdoc(thing)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Each relative link of a page leads to a file of the checkout."""
    links = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


def test_files_that_are_named_exist() -> None:
    """Each module and test that the page on the architecture names exists."""
    page = ROOT / "docs" / "architecture.md"
    names = re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)`", page.read_text(encoding="utf-8"))
    missing = [n for n in names if not any((ROOT / place / n).exists() for place in ("", "fineweb_stream", "tests"))]
    assert names and not missing


def test_commands_for_trainers_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command on the page of trainers works on a small corpus; so does the block of Python."""
    page = (ROOT / "docs" / "trainers.md").read_text(encoding="utf-8")
    commands = re.findall(r"`python prepare\.py ([^`]+)`", page)
    assert len(commands) >= 6
    monkeypatch.chdir(tmp_path)
    for name in ("corpus", "held_out"):
        write_jsonl(tmp_path / f"{name}.jsonl", [f"Document {i}, of the page." for i in range(2000)])
    for command in commands:
        arguments = re.sub(r"--for \S+", "--for 2x64", command.replace("100M", "1000")).split()
        arguments += ["--overwrite", "--engine", "tiktoken"] if arguments[0] != "index" else []
        assert fineweb_stream.cli.main(arguments) == 0, command
    block = next(block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "torch" not in block)
    fineweb_stream.prepare("corpus.jsonl", out="data/mine", index=True, quiet=True)
    exec(block, {})
