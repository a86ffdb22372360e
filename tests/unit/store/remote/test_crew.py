"""Several at once, so many and no more, and an error or an interrupt ends it for all."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from winml_dag.store.remote.crew import Crew, side_by_side


def test_results_come_in_order_and_no_more_run_at_once_than_may() -> None:
    running, most_running, lock = 0, 0, threading.Lock()
    three = threading.Barrier(3)

    def work(number: int) -> int:
        nonlocal running, most_running
        with lock:
            running += 1
            most_running = max(most_running, running)
        # Nobody goes on before three are here.
        three.wait(60)
        with lock:
            running -= 1
        return number * number

    assert side_by_side(work, range(9), 3) == [number * number for number in range(9)]
    assert most_running == 3


def test_nothing_for_nobody() -> None:
    assert side_by_side(str, [], 8) == []


def test_after_an_error_nothing_is_begun() -> None:
    begun = []

    def work(number: int) -> None:
        begun.append(number)
        raise ValueError(number)

    with pytest.raises(ValueError, match=r"\d"):
        side_by_side(work, range(1000), 2)
    assert len(begun) <= 2


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no such signal to one process")
def test_an_interrupt_does_not_wait_for_the_others() -> None:
    script = """
import signal, threading
from winml_dag.store.remote.crew import side_by_side
signal.signal(signal.SIGINT, signal.default_int_handler)
both = threading.Barrier(2)
def work(number):
    both.wait()
    if threading.current_thread() is threading.main_thread():
        return
    print("hangs", flush=True)
    threading.Event().wait()
try:
    side_by_side(work, range(2), 2)
except KeyboardInterrupt:
    print("interrupted")
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "hangs\n"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert (out, process.returncode) == ("interrupted\n", 0)


@pytest.mark.parametrize("count", [1, 2, 50])
def test_a_crew_does_all_that_it_is_given_also_by_its_own(count: int) -> None:
    crew, done = Crew(2), threading.Semaphore(0)

    def task() -> None:
        crew.do(done.release)

    for _ in range(count):
        crew.do(task)
    for _ in range(count):
        assert done.acquire(timeout=60)


def test_what_is_dropped_is_not_done() -> None:
    crew, begun, let = Crew(1), threading.Event(), threading.Event()
    done: list[str] = []

    def first() -> None:
        begun.set()
        let.wait(60)
        done.append("first")

    crew.do(first)
    assert begun.wait(60)
    for _ in range(3):
        crew.do(lambda: done.append("dropped"))
    assert crew.drop() == 3
    let.set()
    last = threading.Event()
    crew.do(last.set)
    assert last.wait(60)
    assert done == ["first"]


def test_where_there_are_no_more_threads_the_work_is_done_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert side_by_side(str, range(3), 3) == ["0", "1", "2"]
    done: list[str] = []
    Crew(2).do(lambda: done.append("done"))
    assert done == ["done"]
