"""A killed or interrupted engine takes its workers with it, and the next one continues where it stopped."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from fault_engine import Step, engine, has_threads, is_gone, run_steps, told

from winml_dag.engine.events import Status
from winml_dag.store.store import Store
from winml_dag.store.upkeep import verify


@pytest.mark.parametrize(
    ("work", "number"),
    [
        ("hang_while_asked_to", signal.SIGKILL),
        ("hang_in_native_code", signal.SIGKILL),
        ("hang_while_asked_to", signal.SIGINT),
        ("hang_while_asked_to", signal.SIGTERM),
    ],
)
def test_an_engine_takes_its_workers_with_it_and_the_next_one_goes_on(
    cache: Path, pipe: Path, work: str, number: signal.Signals
) -> None:
    steps = [Step("first", "write"), Step("second", work, str(pipe), inputs=("first.out",))]
    with engine(cache, steps) as ending:
        workers = [int(pid) for pid in pipe.read_text().split()]
        ending.send_signal(number)
        ending.wait(60)
    assert all(is_gone(pid) for pid in workers)
    if number is not signal.SIGKILL:
        assert ending.returncode == 130
        assert list((cache / "scratch").iterdir()) == []
    store = Store(cache)
    assert verify(store).clean
    assert len(store.records.keys()) == 1
    store.close()
    pipe.unlink()
    results = run_steps(cache, steps)
    assert [result.status for result in results.values()] == [Status.REUSED, Status.RAN]
    assert list((cache / "scratch").iterdir()) == []


def test_an_engine_that_waits_for_another_can_be_interrupted(cache: Path, pipe: Path) -> None:
    steps = [Step("stage", "wait_at_gate", str(pipe))]
    with engine(cache, steps) as working:
        pipe.read_text()
        with engine(cache, steps) as waiting:
            assert has_threads(waiting.pid)
            waiting.send_signal(signal.SIGINT)
            waiting.wait(60)
        assert waiting.returncode == 130
        pipe.write_text("go on")
        assert told(working) == {"stage": ["ran", ""]}
