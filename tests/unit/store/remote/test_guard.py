"""A remote that is slow, dead, full or lying costs two seconds once, and whoever waits for it comes back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from remote_samples import HandClock, ScriptedRemote, digest_of, in_background

from winml_dag.store.remote.attempt import LEAST_BYTES_PER_SECOND
from winml_dag.store.remote.counting import Counting
from winml_dag.store.remote.guard import Guard, LeftAlone
from winml_dag.store.remote.protocol import ATTEMPT_SECONDS, RemoteError

KEY = "0" * 64
BLOB = digest_of(b"model")


class Guarded:
    """A guard with all that it is made of."""

    def __init__(self) -> None:
        self.remote = ScriptedRemote()
        self.clock = HandClock()
        self.count = Counting()
        self.said: list[str] = []
        self.ended = threading.Event()
        self.begun = threading.Semaphore(0)
        self.guard = Guard(self.remote, "http://cache", "it is left alone", self.count, self.said.append, self.clock)

    def record(self) -> bytes | None:
        return self.guard.ask(lambda remote: remote.record(KEY))


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    guarded = Guarded()
    yield guarded
    guarded.ended.set()


def test_all_who_wait_for_a_silent_remote_come_back_and_nobody_asks_it_again(guarded: Guarded) -> None:
    guarded.remote.hang("record", guarded.begun, guarded.ended)
    waiting = [in_background(guarded.record) for _ in range(3)]
    guarded.clock.until_waiting(3)
    guarded.clock.advance(ATTEMPT_SECONDS)
    for each in waiting:
        with pytest.raises(LeftAlone):
            each.result(30)
    asked = len(guarded.remote.calls)
    with pytest.raises(LeftAlone):
        guarded.record()
    assert len(guarded.remote.calls) == asked
    assert guarded.said == ["The remote http://cache did not go on for 2 s: it is left alone."]
    assert (guarded.count.traffic.left_alone, guarded.count.traffic.requests) == (1, 3)


def test_just_before_the_time_is_over_an_answer_counts(guarded: Guarded) -> None:
    guarded.remote.records[KEY] = b"{}"
    guarded.remote.hang("record", guarded.begun, guarded.ended)
    waiting = in_background(guarded.record)
    guarded.clock.until_waiting(1)
    guarded.clock.advance(ATTEMPT_SECONDS - 0.01)
    guarded.ended.set()
    assert waiting.result(30) == b"{}"
    assert not guarded.said


def test_what_may_pass_is_tried_again_after_longer_and_longer_pauses(guarded: Guarded) -> None:
    guarded.remote.records[KEY] = b"{}"
    guarded.remote.fail("record", "unreachable", "failing", "unreachable")
    assert guarded.record() == b"{}"
    first, second, third = guarded.clock.pauses
    # Each is twice as long as the one before, and of each half is chance.
    assert 0.05 <= first <= 0.15
    assert 0.1 <= second <= 0.3
    assert 0.2 <= third <= 0.6
    assert guarded.count.traffic.requests == 4
    assert not guarded.said


def test_a_dead_remote_is_left_alone_after_a_few_attempts_within_two_seconds(guarded: Guarded) -> None:
    guarded.remote.fail("record", *["unreachable"] * 100)
    with pytest.raises(LeftAlone):
        guarded.record()
    assert 3 <= guarded.count.traffic.requests <= 5
    assert sum(guarded.clock.pauses) < ATTEMPT_SECONDS + 1.2
    assert guarded.said == ["The remote http://cache is unreachable: it is left alone."]


@pytest.mark.parametrize("trouble", ["forbidden", "full"])
def test_what_will_not_pass_is_not_tried_again(guarded: Guarded, trouble: str) -> None:
    guarded.remote.fail("record", trouble)
    with pytest.raises(LeftAlone):
        guarded.record()
    assert guarded.guard.alone
    assert guarded.count.traffic.requests == 1


def test_what_a_library_did_not_expect_is_trouble_like_any_other(guarded: Guarded) -> None:
    guarded.remote.records[KEY] = b"{}"
    guarded.remote.fail("record", "bug")
    assert guarded.record() == b"{}"
    guarded.remote.fail("record", *["bug"] * 100)
    with pytest.raises(LeftAlone):
        guarded.record()
    assert "cannot be used (of a library)" in guarded.said[0]


def test_one_question_that_fails_while_others_are_answered_does_not_cost_the_remote(guarded: Guarded) -> None:
    guarded.remote.records[KEY] = b"{}"
    other = ScriptedRemote()
    other.fail("record", *["failing"] * 100)

    def ask_the_other_and_us() -> None:
        try:
            other.record(KEY)
        finally:
            guarded.record()

    for failed in range(1, 4):
        with pytest.raises(LeftAlone):
            guarded.guard.trying(ask_the_other_and_us)
        # Now and then is an accident, and the third time is none.
        assert guarded.guard.alone == (failed == 3)


def test_an_attempt_that_hangs_while_others_are_answered_is_made_once_more(guarded: Guarded) -> None:
    guarded.remote.records[KEY] = b"{}"
    guarded.remote.before["has"].append(lambda: guarded.ended.wait(60))
    waiting = in_background(lambda: guarded.guard.ask(lambda remote: remote.has(BLOB)))
    guarded.clock.until_waiting(1)
    guarded.clock.advance(ATTEMPT_SECONDS / 2)
    guarded.clock.until_waiting(1)
    assert guarded.record() == b"{}"
    guarded.clock.advance(ATTEMPT_SECONDS / 2)
    # The second attempt, which does not hang, has the answer.
    assert waiting.result(30) is False
    assert not guarded.said
    assert guarded.count.traffic.requests == 3


def test_a_remote_may_lie_twice(guarded: Guarded) -> None:
    guarded.remote.records[KEY] = b"{}"
    guarded.guard.lied("sent what is wrong")
    guarded.remote.fail("record", "lying")
    with pytest.raises(LeftAlone):
        guarded.record()
    assert guarded.record() == b"{}"
    with pytest.raises(LeftAlone):
        guarded.guard.lied("sent what is wrong")
    assert guarded.guard.alone
    assert [line.partition(": ")[2] for line in guarded.said] == ["that is refused."] * 3 + ["it is left alone."]
    assert guarded.count.traffic.refused == 3


class Tap:
    """A remote whose blob comes piece by piece, each when it is let."""

    def __init__(self, guarded: Guarded) -> None:
        self.guarded = guarded
        self.let = threading.Semaphore(0)
        self.taken = threading.Semaphore(0)
        self.pieces: list[bytes] = []
        guarded.remote.read = self._read  # type: ignore[method-assign]

    def _read(self, *_: object) -> Iterator[bytes]:
        for piece in self.pieces:
            assert self.let.acquire(timeout=60)
            yield piece
        self.guarded.begun.release()
        self.guarded.ended.wait(60)

    def flow(self, pieces: int, size: int, seconds: float) -> Future[object]:
        """A reader to whom *pieces* of *size* bytes come, one every so many *seconds*, or until it has given up."""
        self.pieces = [bytes(size)] * pieces
        reading = in_background(self._take)
        for _ in range(pieces):
            self.guarded.clock.until_waiting(1)
            self.guarded.clock.advance(seconds)
            if reading.done():
                break
            self.let.release()
            assert self.taken.acquire(timeout=60)
        self.guarded.clock.until_waiting(not reading.done())
        return reading

    def _take(self) -> int:
        count = 0
        for piece in self.guarded.guard.read(BLOB, 0):
            count += len(piece)
            self.taken.release()
        return count


@pytest.mark.parametrize("seconds", [0.1, 0.5, 1.5])
def test_a_transfer_at_the_least_rate_goes_on_for_as_long_as_it_takes(guarded: Guarded, seconds: float) -> None:
    size = int(LEAST_BYTES_PER_SECOND * seconds) + 1
    reading = Tap(guarded).flow(60, size, seconds)
    assert not reading.done()
    guarded.ended.set()
    assert reading.result(30) == 60 * size


def test_a_trickle_ends_as_silence_does(guarded: Guarded) -> None:
    reading = Tap(guarded).flow(60, LEAST_BYTES_PER_SECOND // 20, 0.1)
    with pytest.raises(RemoteError, match="did not go on"):
        reading.result(30)
    # Half of the least rate buys half of the time that passes, so the two seconds last for four.
    assert guarded.clock.now() == pytest.approx(2 * ATTEMPT_SECONDS, abs=0.2)


def test_time_that_we_take_for_ourselves_is_not_the_remotes(guarded: Guarded) -> None:
    tap = Tap(guarded)
    tap.pieces = [b"a", b"b", b"c"]
    pieces = guarded.guard.read(BLOB, 0)
    for expected in tap.pieces:
        tap.let.release()
        assert next(pieces) == expected
        # Hashing and writing to a slow disk.
        guarded.clock.advance(100)
    guarded.ended.set()
    assert list(pieces) == []


def test_a_reader_that_has_enough_ends_the_transfer(guarded: Guarded) -> None:
    closed = threading.Event()

    def read(*_: object) -> Iterator[bytes]:
        try:
            while True:
                yield bytes(1 << 20)
        finally:
            closed.set()

    guarded.remote.read = read  # type: ignore[method-assign]
    pieces = guarded.guard.read(BLOB, 0)
    next(pieces)
    pieces.close()
    assert closed.wait(30)


def test_what_a_library_holds_of_a_put_is_given_time_while_the_remote_answers(guarded: Guarded, tmp_path: Path) -> None:
    path = tmp_path / "blob"
    path.write_bytes(bytes(1 << 20))
    guarded.remote.hang("put", guarded.begun, guarded.ended)
    putting = in_background(lambda: guarded.guard.put(BLOB, path, [].append))
    for _ in range(3):
        guarded.clock.until_waiting(1)
        guarded.clock.advance(ATTEMPT_SECONDS)
    guarded.clock.until_waiting(1)
    guarded.ended.set()
    assert putting.result(30) is True
    assert ("has", BLOB) in guarded.remote.calls


def test_a_put_into_a_remote_that_answers_nothing_ends(guarded: Guarded, tmp_path: Path) -> None:
    path = tmp_path / "blob"
    path.write_bytes(bytes(1 << 20))
    guarded.remote.hang("put", guarded.begun, guarded.ended)
    guarded.remote.hang("has", guarded.begun, guarded.ended)
    putting = in_background(lambda: guarded.guard.put(BLOB, path, [].append))
    for _ in range(2):  # for the put, and for the question in between
        guarded.clock.until_waiting(1)
        guarded.clock.advance(ATTEMPT_SECONDS)
    with pytest.raises(RemoteError):
        putting.result(30)


def test_a_remote_has_time_to_put_away_what_it_has_got(guarded: Guarded, tmp_path: Path) -> None:
    path = tmp_path / "blob"
    with open(path, "wb") as file:
        file.truncate(64 << 20)

    def put(_: str, path: Path, told: Callable[[int], None]) -> bool:
        told(path.stat().st_size)
        guarded.begun.release()
        return guarded.ended.wait(60)

    guarded.remote.put = put  # type: ignore[method-assign]
    guarded.remote.fail("has", *["unreachable"] * 100)
    putting = in_background(lambda: guarded.guard.put(BLOB, path, [].append))
    assert guarded.begun.acquire(timeout=60)
    guarded.clock.until_waiting(1)
    guarded.clock.advance(ATTEMPT_SECONDS * 1.9)
    guarded.ended.set()
    assert putting.result(30) is True


def test_letting_go_ends_what_is_underway_without_blaming_the_remote(guarded: Guarded) -> None:
    guarded.remote.hang("record", guarded.begun, guarded.ended)
    waiting = in_background(guarded.record)
    guarded.clock.until_waiting(1)
    guarded.guard.let_go()
    with pytest.raises(LeftAlone):
        waiting.result(30)
    assert not guarded.said
    assert not guarded.guard.alone
