"""`docs/api.md` from the docstrings: `python -m tests.api_page` writes it anew."""

from __future__ import annotations

import inspect
import re

import fineweb_stream

from .conftest import ROOT

API_PAGE = ROOT / "docs" / "api.md"

HEADER = """The public names of `fineweb_stream`, with their docstrings (`python -m tests.api_page` rewrites this page).

`Ids` are NumPy arrays of uint16 (uint32 above 65,536 ids), `Ends` of int64. A `cancel` token ends a call early; without
one it runs to its end. The examples use `from fineweb_stream import *`, `import numpy as np` and `from pathlib import
Path`."""


def render_api() -> str:
    """Return the page: each public name with its signature and docstring, and the public methods of classes."""
    parts = ["# API", HEADER]
    for name in sorted(fineweb_stream.__all__, key=str.lower):
        thing = getattr(fineweb_stream, name)
        if name.startswith("__"):
            continue
        parts += [f"## {name}", _entry(name, thing)]
        if inspect.isclass(thing) and not issubclass(thing, BaseException):
            for method, value in vars(thing).items():
                function = value.fget if isinstance(value, property) else value
                if not method.startswith("_") and inspect.isfunction(function):
                    parts += [f"### {name}.{method}", _entry(method, function, isinstance(value, property))]
    return "\n\n".join(parts) + "\n"


def _entry(name: str, thing: object, is_property: bool = False) -> str:
    document = _fence_examples(inspect.getdoc(thing) or "")
    if is_property or (inspect.isclass(thing) and issubclass(thing, BaseException)):
        return document
    return f"```python\n{name}{_signature(thing)}\n```\n\n{document}"


def _signature(thing: object) -> str:
    """Write a signature as a caller reads it: without `self`, a long one with a parameter on each line."""
    signature = inspect.signature(thing)  # type: ignore[arg-type]
    parameters: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parameters:
            parameters.append("*")
        if parameter.name != "self":
            written = re.sub(r": '([^']*)'", r": \1", str(parameter))  # annotations are strings
            parameters.append(re.sub(r"<factory>|<[^<>]+ object at [^<>]+>", "...", written))
    returned = "" if inspect.isclass(thing) else f" -> {signature.return_annotation}".replace("'", "")
    short = f"({', '.join(parameters)}){returned}"
    return short if len(short) <= 100 else "(\n    " + ",\n    ".join(parameters) + f",\n){returned}"


def _fence_examples(document: str) -> str:
    paragraphs = document.split("\n\n")
    return "\n\n".join(f"```python\n{p}\n```" if p.startswith(">>>") else p for p in paragraphs)


if __name__ == "__main__":
    API_PAGE.write_text(render_api(), encoding="utf-8")
