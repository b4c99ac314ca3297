"""While a run encodes: say what the memory guard does, hold back blocks as it asks, and note speed and memory."""

from __future__ import annotations

from collections.abc import Callable

from . import report
from .errors import MemoryLimitError
from .executors import BLOCKS_PER_WORKER
from .guard import MemoryGuard, Step, release_memory
from .record import State


class Watch:
    """Follows a guard through a run whose `state` keeps the samples."""

    def __init__(self, guard: MemoryGuard, state: State, say: Callable[[str], None]) -> None:
        self._guard = guard
        self._state = state
        self._say = say
        self._memory_before = state.memory
        self._n_steps_said = 0
        self._trimmed_at = 0

    def max_blocks(self, n_workers: int) -> int:
        """Return how many blocks may be in flight, by what the guard calls for."""
        return {
            Step.RUN: BLOCKS_PER_WORKER * n_workers,
            Step.FEWER: max(n_workers // 2, 1),
            Step.ONE: 1,
        }.get(self._guard.step, 0)

    def check(self, seconds: float) -> None:
        """Say each new step of the guard once, `seconds` into the run; `MemoryLimitError` leaves when it says so."""
        guard = self._guard
        step = guard.check()
        for taken in guard.steps[self._n_steps_said :]:
            self._say(f"memory: {taken['step']}: {taken['reason']}")
        self._n_steps_said = len(guard.steps)
        if step is not Step.RUN and guard.used_bytes != self._trimmed_at:
            release_memory()
            self._trimmed_at = guard.used_bytes
        report.add_sample(self._state, seconds, guard.used_bytes)
        if step is Step.STOP:
            raise MemoryLimitError(
                f"memory: {guard.reason}", "free some, or set --memory, --workers or --engine tiktoken"
            )

    def record(self) -> None:
        """Let the state hold what the guard found so far, after what it had found in earlier runs."""
        self._state.memory = report.memory(self._guard, self._memory_before)
