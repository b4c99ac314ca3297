"""What the outputs of a run need to know of its settings."""

from __future__ import annotations

from typing import Any, Protocol

from ..tokenizer.tokenizer import Tokenizer
from .layouts import Layout


class OutputOptions(Protocol):
    """The settings of a run, as far as its outputs are concerned."""

    @property
    def shard_tokens(self) -> int:
        """How many tokens each shard but the last has."""

    @property
    def keep_shards(self) -> bool:
        """Whether the shards stay beside `train.bin`."""

    @property
    def shuffle(self) -> bool:
        """Whether documents stand in a random order."""

    @property
    def seed(self) -> int:
        """What decides on random choices."""

    @property
    def eot(self) -> str:
        """Where the end-of-text of a document stands."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Whose ids they are."""

    @property
    def file_layout(self) -> Layout:
        """The layout, for ids of the tokenizer's width."""

    @property
    def least_tokens(self) -> int:
        """How many tokens each file needs for the layout's reader."""

    @property
    def max_tokens(self) -> int | None:
        """After how many training tokens the run ends."""

    def fixed(self) -> dict[str, Any]:
        """The settings that a run cannot change when it goes on."""
