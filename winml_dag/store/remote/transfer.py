"""Time limits, retries and circuit breakers: a dead or slow remote costs seconds, and never a result.

Client libraries limit how long one byte may take. What they do not limit (a trickle, a name server, a share that hangs)
is limited here: each call has a deadline, and its caller abandons the thread once that has passed. A
``CircuitBreaker`` opens for the rest of a run when a remote does not answer, denies access, or sent wrong content too
often.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, Future, InvalidStateError, wait
from contextlib import suppress
from functools import partial
from math import inf
from time import monotonic
from typing import TypeVar

from winml_dag.explanation import explanation
from winml_dag.store.remote.protocol import ATTEMPT_SECONDS, RemoteError, TrafficCounter

T = TypeVar("T")
R = TypeVar("R")

# The minimum rate of all parallel transfers together. Below it, rebuilding is nearly always faster (100 MB take 17
# minutes), and today's slow lines (a train's, 400 kB/s) are above it.
LEAST_BYTES_PER_SECOND = 100_000
# How long a client library may take to report that its own time limit has passed.
_GRACE_SECONDS = 1.0
# The longest sleep of a thread that waits for others: on Windows an interrupt does not wake it.
POLL_SECONDS = 0.2
# Each pause is twice as long as the one before: with the attempts they fill ATTEMPT_SECONDS.
_PAUSES = (0.1, 0.2, 0.4, 0.8)
# This much restarts the time for retries: what the minimum rate moves in an attempt.
_PROGRESS_BYTES = int(LEAST_BYTES_PER_SECOND * ATTEMPT_SECONDS)
# One wrong blob may be an accident on the server's disk.
_MOST_LIES = 3


class RemoteUnavailable(Exception):
    """There is no answer: the remote was given up, or nobody waits for this request."""


class ThreadPool:
    """At most *size* daemon threads, which end when there is no work. At exit the interpreter waits for the threads of
    the standard library's pool, and one of these may hang in a system call.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._tasks: deque[Callable[[], None]] = deque()
        self._threads = 0
        self._lock = threading.Lock()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """The future of *work*. Somebody who gives up waiting may resolve it earlier; work that has not started then
        is skipped.
        """
        future: Future[T] = Future()
        with self._lock:
            self._tasks.append(partial(_resolve, future, work))
            if self._threads == self._size:
                return future
            self._threads += 1
        try:
            threading.Thread(target=self._work, name="remote", daemon=True).start()
        except RuntimeError:
            # The system has no more threads.
            self._work()
        return future

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._tasks:
                    self._threads -= 1
                    return
                task = self._tasks.popleft()
            task()


def _resolve(future: Future[T], work: Callable[[], T]) -> None:
    with suppress(InvalidStateError):
        if future.done():
            return
        try:
            result = work()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)


class Transfer:
    """The calls of one thread to a remote, one after another.

    Attributes:
        breaker: that of the remote, once a call was begun.
        is_cancelled: nobody waits for this thread any more.
    """

    def __init__(self) -> None:
        self.breaker: CircuitBreaker | None = None
        self.is_cancelled = False
        self._hung_after = inf

    def wait_for(self, call: Callable[[], T], seconds: float = 0.0) -> T:
        """The result of *call*, which waits for the remote at most *seconds*, and ``ATTEMPT_SECONDS`` at the least.

        Raises:
            RemoteError: also for an unexpected error of a client library: no build fails because of one.
            KeyError: as *call* does.
            RemoteUnavailable: when nobody waits for this thread any more.
        """
        self.check()
        self._hung_after = monotonic() + max(seconds, ATTEMPT_SECONDS) + _GRACE_SECONDS
        try:
            result = call()
        except (RemoteError, RemoteUnavailable, KeyError):
            raise
        except Exception as error:
            raise RemoteError("failing", f"cannot be used ({explanation(error)})") from error
        finally:
            self._hung_after = inf
        self.check()
        return result

    def check(self) -> None:
        """Raise RemoteUnavailable when nobody waits for this thread any more."""
        if self.is_cancelled or (self.breaker is not None and self.breaker.is_open):
            raise RemoteUnavailable

    def abandon_if_hung(self) -> bool:
        """Give the remote up if this thread hangs in it; return whether it does."""
        if monotonic() <= self._hung_after:
            return False
        self.is_cancelled = True
        if self.breaker is not None:
            self.breaker.open(RemoteError.too_slow())
        return True


class Pace:
    """The minimum rate of a stream, less in proportion to the number of parallel ones.

    ``ATTEMPT_SECONDS`` without a byte are allowed. Each byte gives time back, but never more than that: a trickle ends
    as silence does.
    """

    def __init__(self, breaker: CircuitBreaker) -> None:
        self._breaker = breaker
        self._left = ATTEMPT_SECONDS

    def moved(self, count: int, seconds: float) -> None:
        """*count* bytes took *seconds* to arrive. Raises RemoteError when that is too slow."""
        rate = LEAST_BYTES_PER_SECOND / max(1, self._breaker.underway)
        self._left = min(ATTEMPT_SECONDS, self._left - seconds + count / rate)
        if self._left < 0:
            raise RemoteError.too_slow()


class CircuitBreaker:
    """Whether a remote is used for one purpose, reading or writing. Once open, it stays open for the rest of a run.

    Args:
        consequence: the message to the user when it opens.
        also: opens silently with this one.

    Attributes:
        underway: the number of current attempts.
    """

    def __init__(
        self,
        name: str,
        consequence: str,
        count: TrafficCounter,
        warn: Callable[[str], None],
        also: CircuitBreaker | None = None,
    ) -> None:
        self.underway = 0
        self._name = name
        self._consequence = consequence
        self._count = count
        self._warn = warn
        self._also = also
        self._lock = threading.Lock()
        self._opened = threading.Event()
        self._answered = monotonic()
        self._lies = 0

    @property
    def is_open(self) -> bool:
        return self._opened.is_set()

    def ask(self, transfer: Transfer, request: Callable[[], T]) -> T:
        """The answer to *request*. Raises as :meth:`run` does."""
        return self.run(transfer, partial(transfer.wait_for, request))

    def run(self, transfer: Transfer, attempt: Callable[[], T], progress: Callable[[], int] = lambda: 0) -> T:
        """The result of *attempt*, retried for ``ATTEMPT_SECONDS``, which *progress* in bytes restarts.

        Raises:
            KeyError: as *attempt* does.
            RemoteUnavailable: when no retry makes sense.
        """
        transfer.breaker = self
        before, failed, began = progress(), 0, monotonic()
        while True:
            transfer.check()
            self._count.add(requests=1)
            with self._lock:
                self.underway += 1
            try:
                result = attempt()
                self._answered = monotonic()
                return result
            except KeyError:
                self._answered = monotonic()
                raise
            except RemoteError as error:
                transfer.check()
                if (now := progress()) - before >= _PROGRESS_BYTES:
                    before, failed, began = now, 0, monotonic()
                # What was slow is retried only if others are answered: this machine may be overloaded.
                is_late = monotonic() - max(began, self._answered) >= ATTEMPT_SECONDS
                if error.trouble == "lying":
                    self.lied(error.message)
                elif is_late or failed == len(_PAUSES) or not error.may_pass:
                    self.open(error)
                else:
                    # Half of the pause is random: requests that failed together do not come back together.
                    self._opened.wait(_PAUSES[failed] * random.uniform(0.5, 1.5))
                    failed += 1
                    continue
                raise RemoteUnavailable from error
            finally:
                with self._lock:
                    self.underway -= 1

    def lied(self, what: str) -> None:
        """Refuse *what* the remote did, which no honest one does, with a message. Opens after several times."""
        self._count.add(refused=1)
        self._warn(f"The remote {self._name} {what.rstrip('.')}: that is refused.")
        with self._lock:
            self._lies += 1
            enough = self._lies >= _MOST_LIES
        if enough:
            self.open(RemoteError("lying", f"has sent {_MOST_LIES} times what is wrong"))

    def open(self, error: RemoteError) -> None:
        """Give the remote up because of *error*."""
        with self._lock:
            if self.is_open:
                return
            self._opened.set()
        self._count.add(left_alone=1)
        self._warn(f"The remote {self._name} {error.message.rstrip('.')}: {self._consequence}.")
        if self._also is not None:
            self._also._opened.set()


def ask_all(
    work: Callable[[T, Transfer], R], items: Iterable[T], size: int, until: CircuitBreaker | None = None
) -> list[R | None]:
    """*work* of each of *items*, in their order, by *size* threads; None for an item that a thread hung in, and for the
    rest when *until* opens.

    Raises:
        BaseException: the first exception of *work*; no further item is started then. An interrupt waits for no thread.
    """
    todo = deque(enumerate(items))
    results: list[R | None] = [None] * len(todo)

    def drain(transfer: Transfer) -> None:
        while not transfer.is_cancelled:
            try:
                number, item = todo.popleft()
            except IndexError:
                return
            results[number] = work(item, transfer)

    pool = ThreadPool(size)
    running = {pool.submit(partial(drain, each)): each for each in [Transfer() for _ in range(min(size, len(todo)))]}
    try:
        while running and not (until is not None and until.is_open):
            for future in wait(running, POLL_SECONDS, FIRST_EXCEPTION).done:
                del running[future]
                future.result()
            running = {future: each for future, each in running.items() if not each.abandon_if_hung()}
    finally:
        todo.clear()
        for transfer in running.values():
            transfer.is_cancelled = True
    return results
