"""Threads that run stages again, each of which waits for the process of one: nothing is decided between them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

from winml_dag.engine.run import Runner

T = TypeVar("T")


@contextmanager
def places(jobs: int, runner: Runner) -> Iterator[ThreadPoolExecutor]:
    """Threads for *jobs* runs of *runner*. Whatever ends the block by an exception ends all that runs before."""
    with ThreadPoolExecutor(jobs, thread_name_prefix="stage") as pool:
        try:
            yield pool
        except BaseException:
            runner.stop()
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def first_ended(running: Iterable[Future[T]]) -> set[Future[T]]:
    """Wait until one of *running* has ended; on Windows it may come back with none."""
    # Windows cannot interrupt a wait without end, so Ctrl-C would be heard only after the stage.
    timeout = 0.2 if os.name == "nt" else None
    return wait(running, timeout=timeout, return_when=FIRST_COMPLETED).done
