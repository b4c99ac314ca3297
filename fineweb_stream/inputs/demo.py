"""A corpus that comes with Python: the topics of the language reference, about 80 documents of English prose.

Enough to run the main job anywhere, offline, in seconds, and real enough to train on. (From the standard library's
`pydoc_data.topics`, whose text differs a little between Python versions.)
"""

from __future__ import annotations

import platform
from collections.abc import Iterator

from ..support.model import Changes, Input
from .blocks import Batch, Block, Source, batch_of


class Demo(Source):
    """The documents of `pydoc_data.topics`, sorted by name."""

    unit = "document"

    def iter_blocks(self, start: int = 0) -> Iterator[Block]:
        """Yield the documents from number `start` on as one block, which holds them: a worker's Python has others."""
        documents = _documents()[start:]
        n_bytes = sum(len(document.encode()) for document in documents)
        yield Block(self, start, start + len(documents), n_bytes, n_bytes, data=documents)

    def read(self, block: Block) -> Batch:
        """Return the documents of a block."""
        return batch_of(block.data, block.n_bytes, block.stop - block.start, Changes())

    def sample(self, n: int) -> list[Block]:
        """Return the whole corpus."""
        return list(self.iter_blocks())


def demo_input() -> Input:
    """Describe the corpus as an input."""
    size = sum(len(document.encode()) for document in _documents())
    return Input("pydoc_data.topics", "demo", size, f"Python {platform.python_version()}")


def _documents() -> list[str]:
    from pydoc_data.topics import topics

    return [topics[name] for name in sorted(topics)]
