"""A remote as far as it can be relied on: it is asked again when that may help, and left alone when it does not.

Left alone, for the rest of a run, is what gave no answer for ``ATTEMPT_SECONDS``, will not have us, or has lied too
often. Whoever waits for it at that moment comes back as well. A build without a remote is slower, and a build that
waits for one is none.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TypeVar

from winml_dag.explanation import explanation
from winml_dag.store.remote.attempt import LEAST_BYTES_PER_SECOND, Attempt
from winml_dag.store.remote.clock import Clock
from winml_dag.store.remote.counting import Counting
from winml_dag.store.remote.protocol import ATTEMPT_SECONDS, Remote, RemoteError
from winml_dag.store.remote.traffic import Traffic

T = TypeVar("T")

# With the pauses between them, each twice as long as the one before, these fill ATTEMPT_SECONDS.
_ATTEMPTS = 5
# Each of them took ATTEMPT_SECONDS already.
_SLOW_COUNTS = 3
_FIRST_PAUSE_SECONDS = 0.1
# So many bytes count as an answer: what the least rate brings in that time.
_ANSWER_BYTES = int(LEAST_BYTES_PER_SECOND * ATTEMPT_SECONDS)
# What a library may have taken from us without having sent it: four parts of 8 MiB for a bucket.
_UNSEEN_BYTES = 32 << 20
# What a server takes to hash and to move what it has got, before it answers.
_SETTLING_BYTES_PER_SECOND = 32 << 20
# One wrong blob may be an accident on the server's disk; one question that fails while others are answered, too.
_MOST_LIES, _MOST_FAILURES = 3, 3


class LeftAlone(Exception):
    """There is no answer, and none is to be had: the remote is left alone, or this one question cannot be answered."""


class Guard:
    """A remote for one purpose, reading or writing; used by several threads at once.

    Args:
        purpose: what is said to be given up, such as "it is left alone".
        tell: gets a sentence when that happens, once.
        then: what else is to be done then.
    """

    def __init__(
        self,
        remote: Remote,
        name: str,
        purpose: str,
        count: Counting,
        tell: Callable[[str], None],
        clock: Clock,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        self._remote = remote
        self._name = name
        self._purpose = purpose
        self._count = count
        self._tell = tell
        self._then = then
        self._clock = clock
        self._changed = threading.Condition()
        self._underway: set[Attempt[object]] = set()
        self._alone = False
        self._answered = clock.now()
        self._uncounted_bytes = 0
        self._times_let_go = 0
        self._lies = self._failures = 0

    @property
    def alone(self) -> bool:
        return self._alone

    def ask(self, question: Callable[[Remote], T]) -> T:
        """What *question* gets from the remote, tried as often as makes sense. Raises LeftAlone when there is no
        answer.
        """
        return self.trying(lambda: self._result(lambda _: question(self._remote)))

    def put(self, digest: str, path: Path, told: Callable[[int], None]) -> bool:
        """One attempt to put a blob, for use within :meth:`trying`; whether it was put. Raises RemoteError.

        A library may tell of bytes that it has only taken, and then nothing while they go. As long as the remote
        answers a question meanwhile, it is given the time that they take at the least rate.
        """
        size = left = path.stat().st_size
        more_seconds = min(size, _UNSEEN_BYTES) / LEAST_BYTES_PER_SECOND

        def work(attempt: Attempt[bool]) -> bool:
            def gone(count: int) -> None:
                nonlocal left
                left -= count
                told(count)
                self._moved(count)
                attempt.moved(count)
                if left <= 0:
                    attempt.allow(ATTEMPT_SECONDS + size / _SETTLING_BYTES_PER_SECOND)

            return self._remote.put(digest, path, gone)

        def lives() -> bool:
            nonlocal more_seconds
            more_seconds -= ATTEMPT_SECONDS
            return more_seconds > 0 and self._answers(digest)

        return self._result(work, lives)

    def read(self, digest: str, offset: int) -> Generator[bytes]:
        """One attempt at the bytes of a blob from *offset* on, for use within :meth:`trying`. Raises RemoteError, and
        KeyError when there is no such blob.
        """

        def work(attempt: Attempt[None]) -> None:
            pieces = self._remote.read(digest, offset)
            try:
                for piece in pieces:
                    self._moved(len(piece))
                    attempt.give(piece)
            finally:
                if hasattr(pieces, "close"):
                    pieces.close()

        attempt = self._begin(work)
        try:
            yield from attempt.pieces()
        finally:
            self._end(attempt)

    def trying(self, once: Callable[[], T], progress: Callable[[], int] = lambda: 0) -> T:
        """What *once* returns, called again as long as that makes sense; more *progress* is a reason to go on.

        Raises:
            LeftAlone: when it does not make sense, or no more.
        """
        began, let_go, failed, before = self._clock.now(), self._times_let_go, 0, progress()
        while not self._alone and let_go == self._times_let_go:
            try:
                result = once()
            except RemoteError as error:
                if self._alone or let_go != self._times_let_go:
                    break
                if progress() - before >= _ANSWER_BYTES:
                    failed, before = 0, progress()
                failed += _SLOW_COUNTS if error.trouble == "slow" else 1
                self._consider(error, failed, began)
                self._pause(failed)
            except KeyError:
                self._answered = self._clock.now()
                raise
            else:
                self._answered = self._clock.now()
                return result
        raise LeftAlone

    def lied(self, what: str) -> None:
        """The remote did *what* no honest one does, which is said aloud, and now and then may be an accident.

        Raises:
            LeftAlone: when it is enough.
        """
        self._count.add(Traffic(refused=1))
        self._tell(f"The remote {self._name} {what.rstrip('.')}: that is refused.")
        with self._changed:
            self._lies += 1
            enough = self._lies >= _MOST_LIES
        if enough:
            self._leave_alone(RemoteError("lying", f"has sent {_MOST_LIES} times what is wrong"))

    def stop(self) -> None:
        """Leave the remote alone without a word: all has been said."""
        with self._changed:
            self._alone = True
        self.let_go()

    def let_go(self) -> None:
        """Give up what is underway; the remote may be asked again."""
        with self._changed:
            self._times_let_go += 1
            underway = list(self._underway)
            self._changed.notify_all()
        for attempt in underway:
            attempt.give_up(RemoteError("slow", "it was given up"))

    def _consider(self, error: RemoteError, failed: int, began: float) -> None:
        """Return when another attempt makes sense. Raises LeftAlone when none does."""
        if error.trouble == "lying":
            self.lied(error.message)
            raise LeftAlone
        silent = self._clock.now() - max(began, self._answered)
        if not error.may_pass or silent >= ATTEMPT_SECONDS:
            self._leave_alone(error)
        if failed < _ATTEMPTS:
            return
        with self._changed:
            self._failures += 1
            enough = self._failures >= _MOST_FAILURES
        # Where others get answers meanwhile, it may be this one thing that the remote cannot do.
        if enough or self._answered <= began:
            self._leave_alone(error)
        raise LeftAlone

    def _leave_alone(self, error: RemoteError) -> None:
        with self._changed:
            if self._alone:
                raise LeftAlone
            self._alone = True
        self._count.add(Traffic(left_alone=1))
        self._tell(f"The remote {self._name} {error.message.rstrip('.')}: {self._purpose}.")
        self._then()
        self.let_go()
        raise LeftAlone

    def _pause(self, failed: int) -> None:
        # As long again by chance: those that were turned away together do not come back together.
        seconds = _FIRST_PAUSE_SECONDS * 2 ** (failed - 1) * random.uniform(0.5, 1.5)
        with self._changed:
            if not self._alone:
                self._clock.pause(self._changed, seconds)

    def _answers(self, digest: str) -> bool:
        try:
            self._result(lambda _: self._remote.has(digest))
        except RemoteError:
            return False
        self._answered = self._clock.now()
        return True

    def _result(self, work: Callable[[Attempt[T]], T], lives: Callable[[], bool] = lambda: False) -> T:
        attempt = self._begin(work)
        try:
            return attempt.result(lives)
        finally:
            self._end(attempt)

    def _begin(self, work: Callable[[Attempt[T]], T]) -> Attempt[T]:
        self._count.add(Traffic(requests=1))
        let_go = self._times_let_go
        try:
            attempt = Attempt(_in_our_words(work), self._clock, self._least_rate)
        except RuntimeError as error:
            raise RemoteError("failing", f"cannot be asked: {error}") from error
        with self._changed:
            self._underway.add(attempt)  # type: ignore[arg-type]  # only to be given up
            too_late = let_go != self._times_let_go
        if too_late:
            attempt.give_up(RemoteError("slow", "it was given up"))
        return attempt

    def _end(self, attempt: Attempt[T]) -> None:
        with self._changed:
            self._underway.discard(attempt)

    def _least_rate(self) -> float:
        return LEAST_BYTES_PER_SECOND / max(1, len(self._underway))

    def _moved(self, count: int) -> None:
        with self._changed:
            self._uncounted_bytes += count
            if self._uncounted_bytes >= _ANSWER_BYTES:
                self._uncounted_bytes = 0
                self._answered = self._clock.now()


def _in_our_words(work: Callable[[Attempt[T]], T]) -> Callable[[Attempt[T]], T]:
    """*work* that raises RemoteError and KeyError alone: no build fails for what a client library did not expect."""

    def told(attempt: Attempt[T]) -> T:
        try:
            return work(attempt)
        except (RemoteError, KeyError):
            raise
        except Exception as error:
            raise RemoteError("failing", f"cannot be used ({explanation(error)})") from error

    return told
