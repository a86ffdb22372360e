"""Farther levels tried while a nearer one keeps us waiting: those that are dead are found so side by side, and cost two
seconds together, where each of them would cost as much.

What has answered at once is not watched again, so this is a thread for the first question to a level, and a request
only where something is slow.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from winml_dag.store.remote.clock import Clock
from winml_dag.store.remote.crew import begun
from winml_dag.store.remote.guard import LeftAlone
from winml_dag.store.remote.guardedlevel import GuardedLevel

# Longer than any remote needs for an answer that is well, and short beside what a dead one costs.
_PATIENCE_SECONDS = 0.25
# The blob without a byte: whether it is there does not matter.
_NOTHING = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


class Knocks:
    """Used by several threads at once."""

    def __init__(self, levels: Sequence[GuardedLevel], clock: Clock) -> None:
        self._levels = levels
        self._clock = clock
        # Farther levels that have been tried, or need not be: somebody asks them now, or has.
        self._known: set[int] = set()
        self._lock = threading.Lock()

    @contextmanager
    def beside(self, number: int) -> Iterator[None]:
        """While the block asks the level of *number*: try those behind it when that takes long."""
        first = self._is_news(number)
        if not first or number + 1 >= len(self._levels):
            yield
            return
        changed, ended = threading.Condition(), threading.Event()

        def watch() -> None:
            with changed:
                if not ended.is_set():
                    self._clock.wait(changed, _PATIENCE_SECONDS)
            if not ended.is_set():
                for farther in range(number + 1, len(self._levels)):
                    if self._is_news(farther):
                        begun(partial(_knock, self._levels[farther]))

        begun(watch)
        try:
            yield
        finally:
            with changed:
                ended.set()
                changed.notify_all()

    def _is_news(self, number: int) -> bool:
        with self._lock:
            news = number not in self._known
            self._known.add(number)
            return news


def _knock(level: GuardedLevel) -> None:
    with suppress(LeftAlone):
        level.reading.ask(lambda remote: remote.has(_NOTHING))
