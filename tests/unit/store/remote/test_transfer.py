"""When a remote is retried, how long it may take, and when it is no longer used."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest
from remote_samples import ScriptedRemote, digest_of

from winml_dag.store.remote import transfer
from winml_dag.store.remote.protocol import ATTEMPT_SECONDS, RemoteError, TrafficCounter
from winml_dag.store.remote.transfer import (
    LEAST_BYTES_PER_SECOND,
    CircuitBreaker,
    Pace,
    RemoteUnavailable,
    ThreadPool,
    Transfer,
    ask_all,
)

KEY = "0" * 64
BLOB = digest_of(b"model")


class Guarded:
    """A remote with a circuit breaker, and its pauses between attempts."""

    def __init__(self) -> None:
        self.remote = ScriptedRemote()
        self.remote.records[KEY] = b"{}"
        self.count = TrafficCounter()
        self.said: list[str] = []
        self.breaker = CircuitBreaker("http://cache", "it is left alone", self.count, self.said.append)
        self.transfer = Transfer()

    def ask(self, question: Callable[[], object]) -> object:
        return self.breaker.ask(self.transfer, question)

    def record(self) -> object:
        return self.ask(lambda: self.remote.record(KEY))


@pytest.fixture
def guarded() -> Guarded:
    return Guarded()


@pytest.fixture
def pauses(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Records the length of each pause between attempts."""
    pauses: list[float] = []
    monkeypatch.setattr(transfer, "_PAUSES", (0.1, 0.2, 0.4, 0.8))
    monkeypatch.setattr(guarded.breaker._opened, "wait", pauses.append)
    return pauses


def test_transient_errors_are_retried_with_growing_pauses(guarded: Guarded, pauses: list[float]) -> None:
    guarded.remote.fail("record", "unreachable", "failing", "unreachable")
    assert guarded.record() == b"{}"
    first, second, third = pauses
    # Each is twice as long as the previous one, and half of it is random.
    assert 0.05 <= first <= 0.15
    assert 0.1 <= second <= 0.3
    assert 0.2 <= third <= 0.6
    assert guarded.count.traffic.requests == 4
    assert not guarded.said


def test_dead_remote_is_disabled_within_two_seconds(guarded: Guarded, pauses: list[float]) -> None:
    guarded.remote.fail("record", *["unreachable"] * 100)
    with pytest.raises(RemoteUnavailable):
        guarded.record()
    assert 3 <= guarded.count.traffic.requests <= 5
    assert sum(pauses) < ATTEMPT_SECONDS + 1.2
    assert guarded.said == ["The remote http://cache is unreachable: it is left alone."]
    requests = guarded.count.traffic.requests
    with pytest.raises(RemoteUnavailable):
        guarded.record()
    assert (guarded.count.traffic.requests, guarded.count.traffic.left_alone) == (requests, 1)


@pytest.mark.parametrize("others_are_answered", [True, False])
def test_slow_request_is_retried_only_if_others_are_answered(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch, others_are_answered: bool
) -> None:
    """An overloaded machine would mistake its own slowness for that of the remote."""
    now = time.monotonic()
    monkeypatch.setattr(transfer, "monotonic", lambda: now)

    def is_slow() -> bool:
        nonlocal now
        now += ATTEMPT_SECONDS
        if others_are_answered:
            guarded.breaker.run(Transfer(), lambda: guarded.remote.record(KEY))
        raise RemoteError.too_slow()

    guarded.remote.before["has"].append(is_slow)
    if others_are_answered:
        assert guarded.ask(lambda: guarded.remote.has(BLOB)) is False
        assert not guarded.said
    else:
        with pytest.raises(RemoteUnavailable):
            guarded.ask(lambda: guarded.remote.has(BLOB))
        assert guarded.said == ["The remote http://cache did not go on for 2 s: it is left alone."]


@pytest.mark.parametrize("seconds", [0.1, 0.5, 1.5])
def test_transfer_at_minimum_rate_is_not_limited_in_time(guarded: Guarded, seconds: float) -> None:
    pace = Pace(guarded.breaker)
    for _ in range(60):
        pace.moved(int(LEAST_BYTES_PER_SECOND * seconds) + 1, seconds)


def test_trickle_times_out_and_parallel_transfers_share_minimum_rate(guarded: Guarded) -> None:
    def lasts() -> int:
        pace = Pace(guarded.breaker)
        for number in range(1000):
            try:
                pace.moved(LEAST_BYTES_PER_SECOND // 20, 0.1)
            except RemoteError:
                return number
        return 1000

    # At half of the minimum rate, time is used up at half speed, so the two seconds last for four.
    assert lasts() * 0.1 == pytest.approx(2 * ATTEMPT_SECONDS, abs=0.2)
    assert guarded.breaker.run(Transfer(), lambda: guarded.breaker.run(Transfer(), lasts)) == 1000


def test_cancelled_transfer_ends_at_its_next_call(guarded: Guarded) -> None:
    guarded.record()
    guarded.transfer.is_cancelled = True
    with pytest.raises(RemoteUnavailable):
        guarded.record()
    assert not guarded.said


def test_hanging_request_is_abandoned_and_others_are_answered(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in name resolution or a network share, where no client library has a timeout."""
    monkeypatch.setattr(transfer, "ATTEMPT_SECONDS", 0.05)
    monkeypatch.setattr(transfer, "_GRACE_SECONDS", 0.3)  # the others are answered in it, on a full machine too
    ended, answered = threading.Event(), threading.Event()

    def work(number: int, transfer: Transfer) -> int:
        if number == 1:
            assert answered.wait(60)
            guarded.breaker.ask(transfer, lambda: ended.wait(60))
        if number == 2:
            answered.set()
        return number

    assert ask_all(work, range(3), 2) == [0, None, 2]
    assert guarded.breaker.is_open
    assert len(guarded.said) == 1
    ended.set()


def test_results_keep_order_and_concurrency_is_limited() -> None:
    running, most_running, lock = 0, 0, threading.Lock()
    three = threading.Barrier(3)

    def work(number: int, _: Transfer) -> int:
        nonlocal running, most_running
        with lock:
            running += 1
            most_running = max(most_running, running)
        # Nobody continues before three are here.
        three.wait(60)
        with lock:
            running -= 1
        return number * number

    assert ask_all(work, range(9), 3) == [number * number for number in range(9)]
    assert most_running == 3
    assert ask_all(work, [], 8) == []


def test_nothing_is_started_after_an_error() -> None:
    begun: list[int] = []
    both = threading.Barrier(2)

    def work(number: int, _: Transfer) -> None:
        begun.append(number)
        both.wait(60)
        raise ValueError(number)

    with pytest.raises(ValueError, match=r"\d"):
        ask_all(work, range(1000), 2)
    assert len(begun) == 2


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no such signal to one process")
def test_interrupt_and_exit_do_not_wait_for_hanging_threads() -> None:
    script = r"""
import os, signal, threading
from winml_dag.store.remote.transfer import ask_all
signal.signal(signal.SIGINT, signal.default_int_handler)
def work(number, transfer):
    os.write(1, b"hangs\n")  # print holds a lock, which an exit does not wait for
    threading.Event().wait()
try:
    ask_all(work, range(2), 1)
except KeyboardInterrupt:
    print("interrupted")
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "hangs\n"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert (out, process.returncode) == ("interrupted\n", 0)


def test_work_is_done_without_new_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert ask_all(lambda number, _: str(number), range(3), 3) == ["0", "1", "2"]
    pool = ThreadPool(2)
    assert [pool.submit(partial(str, number)).result() for number in range(3)] == ["0", "1", "2"]
