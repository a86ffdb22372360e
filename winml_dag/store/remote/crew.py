"""Work done by several threads at once: so many and no more, and none that keeps the process from ending.

Not the executors of the standard library: when the interpreter ends, they wait for their threads, and one of ours may
hang on a socket.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

# An interrupt that comes just before we begin to wait is seen when we look up.
_LOOK_SECONDS = 0.2

T = TypeVar("T")
R = TypeVar("R")


def side_by_side(work: Callable[[T], R], items: Iterable[T], most: int) -> list[R]:
    """``work`` of each of *items*, in their order, by *most* threads, this one among them.

    Raises:
        BaseException: what ``work`` raised first; what has not been begun by then is not begun. An interrupt of this
            thread does not wait for the others.
    """
    party = _Party(work, list(items))
    others = [each for _ in range(min(most, len(party.items)) - 1) if (each := begun(party.take_part)) is not None]
    party.take_part()
    try:
        if not isinstance(party.error, KeyboardInterrupt):
            for thread in others:
                while thread.is_alive():
                    thread.join(_LOOK_SECONDS)
    except BaseException as error:
        party.error = error
    if party.error is not None:
        raise party.error
    return [party.results[number] for number in range(len(party.items))]


class _Party(Generic[T, R]):
    def __init__(self, work: Callable[[T], R], items: list[T]) -> None:
        self.items = items
        self.results: dict[int, R] = {}
        self.error: BaseException | None = None
        self._work = work
        self._numbers = self._those_left()
        self._lock = threading.Lock()

    def take_part(self) -> None:
        try:
            while (number := self._next()) is not None:
                self.results[number] = self._work(self.items[number])
        except BaseException as error:
            self.error = self.error or error

    def _next(self) -> int | None:
        with self._lock:
            return next(self._numbers, None)

    def _those_left(self) -> Iterator[int]:
        for number in range(len(self.items)):
            if self.error is not None:
                return
            yield number


class Crew:
    """Threads for work that nobody waits for; there are none while there is no work."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._tasks: deque[Callable[[], None]] = deque()
        self._threads = 0
        self._lock = threading.Lock()

    def do(self, task: Callable[[], None]) -> None:
        """Have *task*, which raises nothing, done after those that came earlier."""
        with self._lock:
            self._tasks.append(task)
            if self._threads == self._most:
                return
            self._threads += 1
        if begun(self._work) is None:
            self._work()

    def drop(self) -> int:
        """Forget what has not been begun; returns how much that was."""
        with self._lock:
            count = len(self._tasks)
            self._tasks.clear()
            return count

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._tasks:
                    self._threads -= 1
                    return
                task = self._tasks.popleft()
            task()


def begun(work: Callable[[], None]) -> threading.Thread | None:
    """A thread that does *work*; None where the system gives us no more of them."""
    thread = threading.Thread(target=work, name="remote", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread
