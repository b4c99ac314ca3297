"""While a run encodes: report the memory guard's steps, limit the blocks in flight, and sample speed and memory."""

from __future__ import annotations

from ..memory.guard import MB, MemoryGuard, Step, release_memory, used_bytes
from ..output.state import State
from ..support.errors import MemoryLimitError
from ..support.log import log
from .schedule import BLOCKS_PER_WORKER

GROWTH_BYTES = 48 * MB
"""After this much growth, memory that is free but held by the allocators is returned to the system.

Blocks of many sizes leave gaps that later ones do not fit into, so that use would creep up during the whole run.
"""

MAX_SAMPLES, SAMPLE_SECONDS = 240, 0.5


class Watch:
    """Follows a memory guard through a run, and keeps the samples in its `state`."""

    def __init__(self, guard: MemoryGuard, state: State) -> None:
        self._guard = guard
        self._state = state
        self._memory_before = state.memory
        self._n_steps_said = 0
        self._read_bytes = 0
        self._settled_bytes: int | None = None

    def max_blocks(self, n_workers: int) -> int:
        """Return how many blocks may be in flight at the guard's present step."""
        return {
            Step.RUN: BLOCKS_PER_WORKER * n_workers,
            Step.FEWER: max(n_workers // 2, 1),
            Step.ONE: 1,
        }.get(self._guard.step, 0)

    def check(self, seconds: float) -> None:
        """Log each new step of the guard once, `seconds` into the run; raise `MemoryLimitError` when it says stop."""
        guard = self._guard
        step = guard.check()
        for taken in guard.steps[self._n_steps_said :]:
            log.info(f"memory: {taken['step']}: {taken['reason']}")
        self._n_steps_said = len(guard.steps)
        self._give_back()
        self._add_sample(seconds)
        if step is Step.STOP:
            raise MemoryLimitError(
                f"memory: {guard.reason}", "free some, or set --memory, --workers or --engine tiktoken"
            )

    def _give_back(self) -> None:
        """Release free memory after growth; under pressure, at every new reading."""
        used = self._guard.used_bytes
        if self._settled_bytes is None:
            self._settled_bytes = used
        is_new = used != self._read_bytes
        self._read_bytes = used
        if is_new and (self._guard.step is not Step.RUN or used > self._settled_bytes + GROWTH_BYTES):
            release_memory()
            self._settled_bytes = used_bytes()

    def _add_sample(self, seconds: float) -> None:
        """Sample tokens and memory at a time of the run: at most MAX_SAMPLES, evenly spaced."""
        timeline = self._state.timeline
        spacing = (timeline[-1][0] / len(timeline)) if len(timeline) > MAX_SAMPLES // 2 else SAMPLE_SECONDS
        if not timeline or seconds - timeline[-1][0] >= spacing:
            timeline.append([round(seconds, 2), self._state.n_tokens, self._guard.used_bytes])
        if len(timeline) > MAX_SAMPLES:
            del timeline[1::2]

    def record(self) -> None:
        """Write limits, budget, peak and the guard's steps, with those of earlier invocations, into the state."""
        guard, before = self._guard, self._memory_before
        self._state.memory = {
            "budget_bytes": guard.budget_bytes,
            "limits": [limit._asdict() for limit in guard.limits],
            "peak_bytes": max(guard.peak_bytes, before.get("peak_bytes", 0)),
            "steps": before.get("steps", []) + guard.steps,
        }
