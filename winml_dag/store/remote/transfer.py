"""Time limits, retries and circuit breakers: a dead or slow remote costs seconds, and never a result.

Threads call remotes directly, and the client libraries limit how long one byte may take. What they do not limit (a
trickle, a name server, a share that hangs) is limited here: a ``Transfer`` has a deadline that each byte extends, and
whoever waits for its thread abandons it once that has passed. A ``CircuitBreaker`` opens for the rest of a run when a
remote does not answer, denies access, or sent wrong content too often.
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
from winml_dag.store.remote.protocol import ATTEMPT_SECONDS, RemoteError, Traffic, TrafficCounter

T = TypeVar("T")
R = TypeVar("R")

# The minimum rate of all parallel transfers together. Below it, rebuilding is nearly always faster (100 MB take 17
# minutes), and today's slow lines (a train's, 400 kB/s) are above it.
LEAST_BYTES_PER_SECOND = 100_000
# How long a client library may take to report that its own time limit has passed.
_GRACE_SECONDS = 1.0
# The longest sleep of a thread that waits for others: on Windows an interrupt does not wake it.
POLL_SECONDS = 0.2
# With the pauses between them, each twice as long as the one before, these fill ATTEMPT_SECONDS.
_ATTEMPTS = 5
# A slow attempt has taken ATTEMPT_SECONDS by itself.
_SLOW_COUNTS = 3
_FIRST_PAUSE_SECONDS = 0.1
# This many bytes count as an answer: ATTEMPT_SECONDS at the minimum rate.
_ANSWER_BYTES = int(LEAST_BYTES_PER_SECOND * ATTEMPT_SECONDS)
# One wrong blob may be an accident on the server's disk, and so may one request that fails while others succeed.
_MOST_LIES, _MOST_FAILURES = 3, 3


class RemoteUnavailable(Exception):
    """There is no answer: the remote was given up, or this one request fails."""


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
    """The requests of one thread, one after another, and the deadline of the current attempt.

    An attempt may take ``ATTEMPT_SECONDS`` without a sign of life. Each byte extends that in proportion to the minimum
    rate, but never beyond *stock*: a trickle ends as silence does. Only time within :meth:`wait_for` counts, not that
    of the local disk.

    Args:
        stock: the most seconds that bytes can add up to, if more than ``ATTEMPT_SECONDS``.
    """

    def __init__(self, stock: float = 0) -> None:
        self._stock = max(stock, ATTEMPT_SECONDS)
        self._left = self._stock
        self._deadline = self._hung_after = inf
        self._breaker: CircuitBreaker | None = None
        self.is_cancelled = False

    @property
    def has_begun(self) -> bool:
        """Whether an attempt was started."""
        return self._breaker is not None

    def begin(self, breaker: CircuitBreaker) -> None:
        """Start an attempt. Raises RemoteUnavailable when none may be made."""
        self._breaker = breaker
        self._left = self._stock
        self._check()

    def wait_for(self, call: Callable[[], T]) -> T:
        """The result of *call*, which waits for the remote.

        Raises:
            RemoteError: also for an unexpected error of a client library: no build fails because of one.
            KeyError: as *call* does.
            RemoteUnavailable: when nobody waits for this thread any more.
        """
        self._expect_by(monotonic() + self._left)
        try:
            result = call()
        except (RemoteError, RemoteUnavailable, KeyError):
            raise
        except Exception as error:
            raise RemoteError("failing", f"cannot be used ({explanation(error)})") from error
        finally:
            self._left, self._hung_after = self._deadline - monotonic(), inf
        self._check()
        return result

    def moved(self, count: int) -> None:
        """Report *count* transferred bytes, within :meth:`wait_for`, which passes on what this raises.

        Raises:
            RemoteError: when they took too long.
            RemoteUnavailable: when nobody waits for this thread any more.
        """
        self._check()
        assert self._breaker is not None
        now = monotonic()
        self._expect_by(min(self._deadline + count / self._breaker.least_rate, now + self._stock))
        if now > self._deadline:
            raise RemoteError.too_slow()
        self._breaker.moved(count)

    def allow(self, seconds: float) -> None:
        """Give the remote *seconds* from now to store what it has received. Called within :meth:`wait_for`."""
        self._expect_by(max(self._deadline, monotonic() + seconds))

    def abandon_if_hung(self) -> bool:
        """Give the remote up if this thread hangs in it; return whether it does."""
        if monotonic() <= self._hung_after:
            return False
        self.is_cancelled = True
        if self._breaker is not None:
            self._breaker.open(RemoteError.too_slow())
        return True

    def _expect_by(self, deadline: float) -> None:
        self._deadline = deadline
        # The client library may wait ATTEMPT_SECONDS for the next byte, however little time is left.
        self._hung_after = max(deadline, monotonic() + ATTEMPT_SECONDS) + _GRACE_SECONDS

    def _check(self) -> None:
        if self.is_cancelled or (self._breaker is not None and self._breaker.is_open):
            raise RemoteUnavailable


class CircuitBreaker:
    """Whether a remote is used for one purpose, reading or writing. Once open, it stays open for the rest of a run.

    Args:
        consequence: what the user is told when it opens.
        also: opens silently with this one.
    """

    def __init__(
        self,
        name: str,
        consequence: str,
        count: TrafficCounter,
        warn: Callable[[str], None],
        also: CircuitBreaker | None = None,
    ) -> None:
        self._name = name
        self._consequence = consequence
        self._count = count
        self._warn = warn
        self._also = also
        self._lock = threading.Lock()
        self._opened = threading.Event()
        self._answered = monotonic()
        self._underway = self._bytes = self._lies = self._failures = 0

    @property
    def is_open(self) -> bool:
        return self._opened.is_set()

    @property
    def least_rate(self) -> float:
        """The minimum rate of each transfer, in bytes per second."""
        return LEAST_BYTES_PER_SECOND / max(1, self._underway)

    def moved(self, count: int) -> None:
        with self._lock:
            self._bytes += count
            if self._bytes >= _ANSWER_BYTES:
                self._bytes, self._answered = 0, monotonic()

    def ask(self, transfer: Transfer, request: Callable[[], T]) -> T:
        """The answer to *request*. Raises as :meth:`run` does."""
        return self.run(transfer, partial(transfer.wait_for, request))

    def run(self, transfer: Transfer, attempt: Callable[[], T], progress: Callable[[], int] = lambda: 0) -> T:
        """The result of *attempt*, retried as long as that makes sense. More *progress* is a reason to go on.

        Raises:
            KeyError: as *attempt* does.
            RemoteUnavailable: when no retry makes sense.
        """
        began, failed, before = monotonic(), 0, progress()
        while True:
            transfer.begin(self)
            self._count.add(Traffic(requests=1))
            with self._lock:
                self._underway += 1
            try:
                result = attempt()
                self._answered = monotonic()
                return result
            except KeyError:
                self._answered = monotonic()
                raise
            except RemoteError as error:
                if self.is_open or transfer.is_cancelled:
                    raise RemoteUnavailable from error
                if progress() - before >= _ANSWER_BYTES:
                    failed, before = 0, progress()
                failed += _SLOW_COUNTS if error.trouble == "slow" else 1
                if not self._may_retry(error, failed, began):
                    raise RemoteUnavailable from error
            finally:
                with self._lock:
                    self._underway -= 1
            # Half of the pause is random: requests that failed together do not come back together.
            self._opened.wait(_FIRST_PAUSE_SECONDS * 2 ** (failed - 1) * random.uniform(0.5, 1.5))

    def lied(self, what: str) -> None:
        """Refuse *what* the remote did, which no honest one does, with a message. Opens after several times."""
        self._count.add(Traffic(refused=1))
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
        self._count.add(Traffic(left_alone=1))
        self._warn(f"The remote {self._name} {error.message.rstrip('.')}: {self._consequence}.")
        if self._also is not None:
            self._also._opened.set()

    def _may_retry(self, error: RemoteError, failed: int, began: float) -> bool:
        """Whether another attempt makes sense after *failed* ones; if none does, give the remote up, or the request."""
        if error.trouble == "lying":
            self.lied(error.message)
            return False
        if error.may_pass and monotonic() - max(began, self._answered) < ATTEMPT_SECONDS:
            if failed < _ATTEMPTS:
                return True
            with self._lock:
                self._failures += 1
            # Where others get answers meanwhile, it may be this one request that the remote cannot serve.
            if self._failures < _MOST_FAILURES and self._answered > began:
                return False
        self.open(error)
        return False


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
