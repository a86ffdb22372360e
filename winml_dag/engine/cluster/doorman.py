"""Who may begin on a worker that several builds have orders for: first come, first served, within its memory.

Each build places its runs by what it knows, which is its own. Here all of them meet.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from winml_dag.engine.admission import Admission, Capacity, Need
from winml_dag.errors import Interrupted

# How often who waits asks whether anybody still wants it.
_SECONDS = 0.5


class Doorman:
    """Used by a thread for each run."""

    def __init__(self, capacity: Capacity) -> None:
        self._admission = Admission(capacity)
        self._line: deque[object] = deque()
        self._moved = threading.Condition()

    @contextmanager
    def enter(self, need: Need, gives_up: Callable[[], bool]) -> Iterator[None]:
        """Wait until there is room for *need*, which is taken for the block. Raises Interrupted when *gives_up*."""
        counted = self._admission.capacity.taken(need)
        me = object()
        with self._moved:
            self._line.append(me)
            try:
                while self._line[0] is not me or not self._admission.fits(counted):
                    if gives_up():
                        raise Interrupted("Stopped.")
                    self._moved.wait(_SECONDS)
            finally:
                self._line.remove(me)
                self._moved.notify_all()
            ticket = self._admission.take(counted)
        try:
            yield
        finally:
            with self._moved:
                self._admission.give_back(ticket)
                self._moved.notify_all()
