"""One attempt at a remote, in a thread of its own: who waits for it can stop waiting, whatever the attempt hangs on.

No client library can be interrupted at every moment, so the attempt is not interrupted: it is given up, and its thread
ends at the first sign of life. A thread costs about 0.1 ms, nothing against a request.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from winml_dag.store.remote.clock import Clock
from winml_dag.store.remote.protocol import ATTEMPT_SECONDS, RemoteError

T = TypeVar("T")

# A transfer has to be as fast as this, together with those beside it. Below it, making a result again is nearly always
# faster (100 MB would take 17 minutes), and what is called a slow line today (a train's, 400 kB/s) is above it.
LEAST_BYTES_PER_SECOND = 100_000
# Pieces that may wait for whoever takes them: the next comes while one is hashed and written.
_MOST_PIECES = 2


class GivenUp(BaseException):
    """Raised within an attempt that nobody waits for any more, to end it."""


class Attempt(Generic[T]):
    """Runs ``work`` of itself, which calls :meth:`moved` or :meth:`give` as bytes go or come.

    It may hang for ``ATTEMPT_SECONDS``. Each byte buys time, so much that a transfer at *rate* never runs out of it,
    and there is never more than ``ATTEMPT_SECONDS`` in stock: a trickle ends as silence does, somewhat later. Only time
    that somebody waits for the remote counts.
    """

    def __init__(self, work: Callable[[Attempt[T]], T], clock: Clock, rate: Callable[[], float]) -> None:
        self._work = work
        self._clock = clock
        self._rate = rate
        self._changed = threading.Condition(threading.RLock())
        self._pieces: deque[bytes] = deque()
        self._left = ATTEMPT_SECONDS
        self._waits_since: float | None = None
        self._result: T
        self._error: BaseException | None = None
        self._done = False
        self._given_up: RemoteError | None = None
        threading.Thread(target=self._run, name="remote", daemon=True).start()

    def moved(self, count: int) -> None:
        """*count* bytes have gone."""
        with self._changed:
            self._buy_time(count)
            if self._given_up is not None:
                raise GivenUp

    def allow(self, seconds: float) -> None:
        """From now on it may take *seconds* without a sign of life: all has gone, and is being put away there."""
        with self._changed:
            self._charge()
            self._left = max(self._left, seconds)
            self._changed.notify_all()

    def give(self, piece: bytes) -> None:
        """*piece* has come. Waits until there is room for it."""
        with self._changed:
            self._buy_time(len(piece))
            self._pieces.append(piece)
            self._changed.notify_all()
            while len(self._pieces) >= _MOST_PIECES and self._given_up is None:
                self._changed.wait()
            if self._given_up is not None:
                raise GivenUp

    def result(self, lives: Callable[[], bool] = lambda: False) -> T:
        """What ``work`` has returned. When its time has run out, *lives* is asked whether it may have more.

        Raises:
            RemoteError: when it takes too long or is given up. What ``work`` raised is raised as it is.
        """
        while not self._is_done_in_time():
            if not lives():
                raise self._run_out()
            self.allow(ATTEMPT_SECONDS)
        if self._error is not None:
            raise self._error
        return self._result

    def pieces(self) -> Iterator[bytes]:
        """What ``work`` gives, as it comes. Raises as :meth:`result` does; closed before its end, it gives up."""
        try:
            while (piece := self._next()) is not None:
                yield piece
        finally:
            self.give_up(RemoteError("slow", "nobody waits for it any more"))
        if self._error is not None:
            raise self._error

    def give_up(self, why: RemoteError) -> None:
        """Let nobody wait any longer: they get *why*."""
        with self._changed:
            if not self._done:
                self._given_up = self._given_up or why
                self._changed.notify_all()

    def _next(self) -> bytes | None:
        with self._changed:
            while not self._pieces and not self._done:
                if not self._wait():
                    raise self._run_out()
            if not self._pieces:
                return None
            piece = self._pieces.popleft()
            self._changed.notify_all()
            return piece

    def _is_done_in_time(self) -> bool:
        with self._changed:
            while not self._done and self._wait():
                pass
            return self._done

    def _wait(self) -> bool:
        """Wait for anything to change; False when there is no time left for that. Raises RemoteError when given up."""
        if self._given_up is not None:
            raise self._given_up
        if self._left <= 0:
            return False
        self._waits_since = self._clock.now()
        try:
            self._clock.wait(self._changed, self._left)
        finally:
            self._charge()
            self._waits_since = None
        return True

    def _run_out(self) -> RemoteError:
        error = RemoteError("slow", f"did not go on for {ATTEMPT_SECONDS:g} s")
        self.give_up(error)
        return error

    def _charge(self) -> None:
        if self._waits_since is not None:
            now = self._clock.now()
            self._left -= now - self._waits_since
            self._waits_since = now

    def _buy_time(self, count: int) -> None:
        self._charge()
        self._left = min(max(self._left, 0) + count / self._rate(), ATTEMPT_SECONDS)

    def _run(self) -> None:
        try:
            self._result = self._work(self)
        except GivenUp:
            # It may end before those who wait have seen that they need not: they get the reason all the same.
            self._error = self._given_up
        except BaseException as error:
            self._error = error
        with self._changed:
            self._done = True
            self._changed.notify_all()
