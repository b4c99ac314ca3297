"""How far a run is: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Generator
from typing import Any, TypeVar

from ..memory import guard
from ..output.state import State
from ..remote.network import Fetcher
from ..support.units import format_duration

T = TypeVar("T")

FIRST_SECONDS, EVERY_SECONDS, BAR_SECONDS = 2.0, 10.0, 0.2
NETWORK_SECONDS = 1.0


class Progress:
    """Prints a run's progress on standard error: in place on a terminal, else a line every 10 s."""

    def __init__(
        self, state: State, total_bytes: int, fetcher: Fetcher, quiet: bool = False, has_shards: bool = False
    ) -> None:
        self.waited_seconds = 0.0
        self._fetcher = fetcher
        self._has_shards = has_shards
        self._said = ""
        self._width = 0
        self._supplied = (time.monotonic(), 0.0, fetcher.n_bytes)
        self._state = state
        self._total = total_bytes
        self._stream = sys.stderr
        self._quiet = quiet or self._stream is None or getattr(self._stream, "closed", False)
        self._is_terminal = not self._quiet and getattr(self._stream, "isatty", bool)()
        self._start = time.monotonic()
        self._due = self._start + (BAR_SECONDS if self._is_terminal else FIRST_SECONDS)
        self._n_text_before = state.text_bytes
        self._n_input_before = state.input_bytes
        self._n_before = state.n_tokens
        self._bar = self._make_bar() if self._is_terminal else None

    def timed(self, blocks: Generator[T, None, None]) -> Generator[T, None, None]:
        """Pass blocks on, and add the time spent waiting for them to `waited_seconds`."""
        with contextlib.closing(blocks):
            begun = time.monotonic()
            for block in blocks:
                self.waited_seconds += time.monotonic() - begun
                yield block
                del block  # else it would be kept alive while the workers use it
                begun = time.monotonic()
            self.waited_seconds += time.monotonic() - begun

    def update(self) -> None:
        """Print if it is time to. A terminal that is gone, or a closed stream, is no reason to stop."""
        now = time.monotonic()
        if now >= self._due and not self._quiet:
            with contextlib.suppress(OSError, ValueError):
                self._print(now)

    def _print(self, now: float) -> None:
        self._due = now + (BAR_SECONDS if self._is_terminal else EVERY_SECONDS)
        if self._bar is not None:
            self._bar.n = min(self._state.input_bytes, self._total or self._state.input_bytes)
            self._bar.set_postfix_str(self._rates(now), refresh=True)
        elif self._is_terminal:
            line = self._line(now)
            self._stream.write(f"\r{line.ljust(self._width)}")  # not every console of Windows has an escape for it
            self._stream.flush()
            self._width = len(line)
        else:
            print(self._line(now), file=self._stream, flush=True)

    def close(self) -> None:
        """Close the bar, or clear the terminal's line."""
        with contextlib.suppress(OSError, ValueError):
            if self._bar is not None:
                self._print(time.monotonic())
                self._bar.close()
            elif self._is_terminal:
                self._stream.write(f"\r{' ' * self._width}\r")

    def _line(self, now: float) -> str:
        n_done, elapsed = self._state.input_bytes, now - self._start
        rate = (n_done - self._n_input_before) / max(elapsed, 1e-9)
        if not self._total:
            return f"{n_done / 1e6:,.0f} MB read, {self._rates(now)}"
        left = format_duration((self._total - n_done) / rate) if rate > 0 else "?"
        return f"{n_done / self._total:6.1%}  {self._rates(now)}, {left} left"

    def _rates(self, now: float) -> str:
        state, elapsed = self._state, max(now - self._start, 1e-9)
        n_tokens = state.n_tokens
        text = (
            f"{n_tokens / 1e6:,.1f}M tokens, {(state.text_bytes - self._n_text_before) / elapsed / 1e6:,.0f} MB/s, "
            f"{(n_tokens - self._n_before) / elapsed / 1e6:,.1f}M tokens/s"
        )
        if self._has_shards:
            text += f", shard {len(state.shard_sha256)}"
        return f"{text}{self._network(now)}, {guard.used_bytes() / 1e6:,.0f} MB memory"

    def _network(self, now: float) -> str:
        """Return the network's rate and whether the run waits for it; "" if nothing was fetched."""
        then, waited_before, bytes_before = self._supplied
        waited, n_bytes = self.waited_seconds, self._fetcher.n_bytes
        if not n_bytes:
            return ""
        if now - then >= NETWORK_SECONDS:
            share, rate = (waited - waited_before) / (now - then), (n_bytes - bytes_before) / (now - then)
            what = "network" if share > 0.5 else "processors"
            self._said = f", {rate / 1e6:,.0f} MB/s over the network (waiting for the {what})"
            self._supplied = (now, waited, n_bytes)
        return self._said

    def _make_bar(self) -> Any:
        try:
            from tqdm import tqdm
        except ImportError:
            return None
        return tqdm(
            total=self._total or None,
            initial=self._state.input_bytes,
            unit="B",
            unit_scale=True,
            file=self._stream,
            bar_format="{percentage:3.0f}%|{bar:20}| {elapsed}<{remaining}{postfix}" if self._total else None,
        )
