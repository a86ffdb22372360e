"""One attempt at a remote, and what those get who wait for it when it is given up."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from winml_dag.store.remote.attempt import Attempt
from winml_dag.store.remote.clock import SystemClock
from winml_dag.store.remote.protocol import RemoteError


@pytest.mark.parametrize(
    "waits",
    [
        pytest.param(lambda attempt: attempt.result(), id="for a result"),
        pytest.param(lambda attempt: list(attempt.pieces()), id="for pieces"),
    ],
)
def test_who_comes_back_after_it_was_given_up_and_has_ended_is_told_why(
    waits: Callable[[Attempt[None]], object],
) -> None:
    begun, given_up, threads = threading.Event(), threading.Event(), list[threading.Thread]()

    def work(attempt: Attempt[None]) -> None:
        threads.append(threading.current_thread())
        begun.set()
        given_up.wait()
        attempt.moved(1)

    attempt = Attempt(work, SystemClock(), lambda: 1e6)
    attempt.give_up(RemoteError("forbidden", "will not have us"))
    given_up.set()
    begun.wait()
    threads[0].join()
    with pytest.raises(RemoteError, match="will not have us"):
        waits(attempt)
