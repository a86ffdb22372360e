"""Waiting for processes and threads at once, so that one thread can start and follow all commands of a run.

Linux tells the end of a process through a descriptor. Elsewhere only threads are waited for, each of which waits for
one process.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from collections import deque
from concurrent.futures import Future
from typing import Generic, TypeVar

from winml_dag.engine.process import milliseconds_until

CAN_POLL = sys.platform == "linux" and hasattr(os, "pidfd_open")

T = TypeVar("T")

# Windows cannot interrupt a wait without end, so Ctrl-C would be heard only after the stage.
_PATIENCE_SECONDS = 0.2 if os.name == "nt" else None


class Waiting(Generic[T]):
    """What one thread waits for. Descriptors are those of processes that run."""

    def __init__(self) -> None:
        self._ended: deque[Future[T]] = deque()
        self._any_ended = threading.Condition()
        self._poll = select.poll() if CAN_POLL else None
        self._bell, self._rope = os.pipe() if CAN_POLL else (-1, -1)
        if self._poll is not None:
            self._poll.register(self._bell, select.POLLIN)

    def add_process(self, descriptor: int) -> None:
        assert self._poll is not None
        self._poll.register(descriptor, select.POLLIN)

    def remove_process(self, descriptor: int) -> None:
        assert self._poll is not None
        self._poll.unregister(descriptor)

    def add_future(self, future: Future[T]) -> None:
        future.add_done_callback(self._note)

    def wait(self, deadline: float) -> tuple[list[int], list[Future[T]]]:
        """Wait for an end, or for *deadline* (of ``time.monotonic``): the descriptors and futures that have ended."""
        if self._poll is None:
            return [], self._wait_for_futures(deadline)
        ready = [descriptor for descriptor, _ in self._poll.poll(milliseconds_until(deadline))]
        if self._bell not in ready:
            return ready, []
        os.read(self._bell, 4096)
        ready.remove(self._bell)
        return ready, self._drain()

    def close(self) -> None:
        """Let go of what the system gave; futures may still end afterwards."""
        with self._any_ended:
            for descriptor in (self._bell, self._rope):
                if descriptor >= 0:
                    os.close(descriptor)
            self._bell = self._rope = -1

    def _wait_for_futures(self, deadline: float) -> list[Future[T]]:
        seconds = milliseconds_until(deadline) / 1000
        with self._any_ended:
            if not self._ended:
                self._any_ended.wait(seconds if _PATIENCE_SECONDS is None else min(seconds, _PATIENCE_SECONDS))
        return self._drain()

    def _drain(self) -> list[Future[T]]:
        ended = []
        while self._ended:
            ended.append(self._ended.popleft())
        return ended

    def _note(self, future: Future[T]) -> None:
        with self._any_ended:
            self._ended.append(future)
            self._any_ended.notify()
            if self._rope >= 0:
                os.write(self._rope, b".")
