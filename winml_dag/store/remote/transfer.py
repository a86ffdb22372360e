"""How long a remote may take, when it is asked again, and when it is not asked any more.

Threads ask remotes directly, and the client libraries limit how long one byte may take. What they do not limit (a
trickle, a name server, a share that hangs) is limited here: a ``Transfer`` has a deadline that bytes move on, and who
waits for its thread abandons it when that has passed. A ``CircuitBreaker`` opens for the rest of a run when a remote
does not answer, refuses us, or lied too often. A build without a remote is slower; one that waits for it stands still.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from functools import partial
from math import inf
from time import monotonic
from typing import ParamSpec, TypeVar

from winml_dag.explanation import explanation
from winml_dag.store.remote.protocol import ATTEMPT_SECONDS, RemoteError, Traffic, TrafficCounter

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")

# Transfers side by side have to be as fast as this together. Below it, making a result again is nearly always faster
# (100 MB take 17 minutes), and what is called a slow line today (a train's, 400 kB/s) is above it.
LEAST_BYTES_PER_SECOND = 100_000
# How long a client library may take to report that its own time limit has passed.
_GRACE_SECONDS = 1.0
# How long a thread that waits for others sleeps at most: on Windows an interrupt does not wake it.
POLL_SECONDS = 0.2
# With the pauses between them, each twice as long as the one before, these fill ATTEMPT_SECONDS.
_ATTEMPTS = 5
# A slow attempt has taken ATTEMPT_SECONDS by itself.
_SLOW_COUNTS = 3
_FIRST_PAUSE_SECONDS = 0.1
# So many bytes count as an answer: what the least rate brings in ATTEMPT_SECONDS.
_ANSWER_BYTES = int(LEAST_BYTES_PER_SECOND * ATTEMPT_SECONDS)
# One wrong blob may be an accident on the server's disk; one question that fails while others are answered, too.
_MOST_LIES, _MOST_FAILURES = 3, 3


class RemoteUnavailable(Exception):
    """There is no answer: the remote is not used any more, or this one question fails."""


class ThreadPool:
    """At most *size* daemon threads; they end when there is no work. At its end the interpreter waits for the threads
    of the standard library's pool, and one of ours may hang in a system call.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._tasks: deque[Callable[[], None]] = deque()
        self._threads = 0
        self._lock = threading.Lock()

    def submit(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            self._tasks.append(partial(_run, future, partial(work, *args, **kwargs)))
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


def _run(future: Future[T], work: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


class Transfer:
    """What one thread asks of remotes, one thing after another, and how long the current attempt may go on.

    An attempt may take ``ATTEMPT_SECONDS`` without a sign of life. Each byte buys time, so much that a transfer at the
    least rate never runs out of it, and there is never more than that in stock: a trickle ends as silence does. Only
    time within :meth:`wait_for` counts, not what our own disk takes.

    Args:
        stock: seconds that bytes can buy, if more than ``ATTEMPT_SECONDS``.
    """

    def __init__(self, stock: float = 0) -> None:
        self._stock = max(stock, ATTEMPT_SECONDS)
        self._left = self._stock
        self._deadline = self._hung_after = inf
        self._breaker: CircuitBreaker | None = None
        self.is_cancelled = False

    def begin(self, breaker: CircuitBreaker) -> None:
        """Begin an attempt. Raises RemoteUnavailable when none may be made."""
        self._breaker = breaker
        self._left = self._stock
        self._check()

    def wait_for(self, call: Callable[[], T]) -> T:
        """What *call* returns, which waits for the remote.

        Raises:
            RemoteError: also for what a client library does not expect: no build fails for that.
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
        """*count* bytes have come or gone; called within :meth:`wait_for`, which passes on what this raises.

        Raises:
            RemoteError: when that took too long.
            RemoteUnavailable: when nobody waits for it any more.
        """
        self._check()
        assert self._breaker is not None
        now = monotonic()
        self._expect_by(min(self._deadline + count / self._breaker.least_rate, now + self._stock))
        if now > self._deadline:
            raise RemoteError.too_slow()
        self._breaker.moved(count)

    def allow(self, seconds: float) -> None:
        """The remote may take *seconds* from now: it has all bytes, and stores them. Called within :meth:`wait_for`."""
        self._expect_by(max(self._deadline, monotonic() + seconds))

    def abandon_if_hung(self) -> bool:
        """Give the remote up if this thread hangs in it, and tell whether it does."""
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
    """Whether a remote is used for one purpose, reading or writing. Once open, it stays so for the rest of a run.

    Args:
        purpose: what is given up when it opens, for the user.
        tell: gets a sentence when it opens.
        then: called when it opens.
    """

    def __init__(
        self,
        name: str,
        purpose: str,
        count: TrafficCounter,
        tell: Callable[[str], None],
        then: Callable[[], None] = lambda: None,
    ) -> None:
        self._name = name
        self._purpose = purpose
        self._count = count
        self._tell = tell
        self._then = then
        self._lock = threading.Lock()
        self._opened = threading.Event()
        self._answered = monotonic()
        self._underway = 0
        self._bytes = 0
        self._lies = self._failures = 0

    @property
    def is_open(self) -> bool:
        return self._opened.is_set()

    @property
    def least_rate(self) -> float:
        """Of each transfer, in bytes a second."""
        return LEAST_BYTES_PER_SECOND / max(1, self._underway)

    def moved(self, count: int) -> None:
        with self._lock:
            self._bytes += count
            if self._bytes >= _ANSWER_BYTES:
                self._bytes, self._answered = 0, monotonic()

    def run(self, transfer: Transfer, attempt: Callable[[], T], progress: Callable[[], int] = lambda: 0) -> T:
        """What *attempt* returns, made again as long as that makes sense. More *progress* is a reason to go on.

        Raises:
            RemoteUnavailable: when it makes no sense, or none any more.
        """
        began, failed, before = monotonic(), 0, progress()
        while True:
            transfer.begin(self)
            try:
                result = self._counted(attempt)
            except KeyError:
                self._answered = monotonic()
                raise
            except RemoteError as error:
                if self.is_open or transfer.is_cancelled:
                    raise RemoteUnavailable from error
                if progress() - before >= _ANSWER_BYTES:
                    failed, before = 0, progress()
                failed += _SLOW_COUNTS if error.trouble == "slow" else 1
                self._consider(error, failed, began)
            else:
                self._answered = monotonic()
                return result
            # As long again by chance: those that were turned away together do not come back together.
            self._opened.wait(_FIRST_PAUSE_SECONDS * 2 ** (failed - 1) * random.uniform(0.5, 1.5))

    def lied(self, what: str) -> None:
        """The remote did *what* no honest one does, which is said aloud. Opens when that was enough."""
        self._count.add(Traffic(refused=1))
        self._tell(f"The remote {self._name} {what.rstrip('.')}: that is refused.")
        with self._lock:
            self._lies += 1
            enough = self._lies >= _MOST_LIES
        if enough:
            self.open(RemoteError("lying", f"has sent {_MOST_LIES} times what is wrong"))

    def open(self, error: RemoteError) -> None:
        """Use the remote no more, because of *error*."""
        with self._lock:
            if self.is_open:
                return
            self._opened.set()
        self._count.add(Traffic(left_alone=1))
        self._tell(f"The remote {self._name} {error.message.rstrip('.')}: {self._purpose}.")
        self._then()

    def open_silently(self) -> None:
        """Use the remote no more; the user knows already."""
        self._opened.set()

    def _counted(self, attempt: Callable[[], T]) -> T:
        self._count.add(Traffic(requests=1))
        with self._lock:
            self._underway += 1
        try:
            return attempt()
        finally:
            with self._lock:
                self._underway -= 1

    def _consider(self, error: RemoteError, failed: int, began: float) -> None:
        """Return when another attempt makes sense. Raises RemoteUnavailable when none does."""
        if error.trouble == "lying":
            self.lied(error.message)
            raise RemoteUnavailable from error
        silent = monotonic() - max(began, self._answered)
        if error.may_pass and silent < ATTEMPT_SECONDS:
            if failed < _ATTEMPTS:
                return
            with self._lock:
                self._failures += 1
            # Where others get answers meanwhile, it may be this one thing that the remote cannot do.
            if self._failures < _MOST_FAILURES and self._answered > began:
                raise RemoteUnavailable from error
        self.open(error)
        raise RemoteUnavailable from error


def ask_all(
    work: Callable[[T, Transfer], R], items: Iterable[T], size: int, until: CircuitBreaker | None = None
) -> list[R | None]:
    """*work* of each of *items*, in their order, by *size* threads; None for what a thread hung in, and for all that is
    left when *until* opens.

    Raises:
        BaseException: what *work* raised first; then no further item is begun. An interrupt waits for no thread.
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
    running = {pool.submit(drain, each): each for each in [Transfer() for _ in range(min(size, len(todo)))]}
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
