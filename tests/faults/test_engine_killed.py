"""A killed or interrupted engine takes its workers with it, and the next one continues where it stopped."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fault_engine import Step, engine, has_threads, is_gone, run_steps, told

from winml_dag.engine.events import Status
from winml_dag.store.store import Store
from winml_dag.store.upkeep import verify


def check_going_on(cache: Path, steps: list[Step]) -> None:
    """Assert that only finished results exist, and that the next run completes the rest."""
    store = Store(cache)
    assert verify(store).clean
    assert len(store.records.keys()) == 1
    store.close()
    results = run_steps(cache, steps)
    assert [result.status for result in results.values()] == [Status.REUSED, Status.RAN]
    assert list((cache / "scratch").iterdir()) == []


@pytest.mark.parametrize("work", ["hang_while_asked_to", "hang_in_native_code"])
def test_a_killed_engine_takes_its_workers_with_it(cache: Path, pipe: Path, work: str) -> None:
    steps = [Step("first", "write"), Step("second", work, str(pipe), inputs=("first.out",))]
    with engine(cache, steps) as killed:
        workers = [int(pid) for pid in pipe.read_text().split()]
        killed.kill()
    assert all(is_gone(pid) for pid in workers)
    pipe.unlink()
    check_going_on(cache, steps)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_engine_ends_its_workers_and_publishes_nothing_half_done(
    cache: Path, pipe: Path, number: signal.Signals
) -> None:
    steps = [Step("first", "write"), Step("second", "hang_while_asked_to", str(pipe), inputs=("first.out",))]
    with engine(cache, steps) as killed:
        workers = [int(pid) for pid in pipe.read_text().split()]
        killed.send_signal(number)
        killed.wait(60)
    assert killed.returncode == 130
    assert all(is_gone(pid) for pid in workers)
    assert list((cache / "scratch").iterdir()) == []
    pipe.unlink()
    check_going_on(cache, steps)


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


def test_a_source_that_is_edited_while_a_stage_runs_is_named_and_nothing_is_published(
    cache: Path, pipe: Path, tmp_path: Path
) -> None:
    weights = tmp_path / "weights.bin"
    weights.write_text("old")
    steps = [Step("weights", "source", str(weights)), Step("stage", "wait_at_gate", str(pipe), inputs=("weights",))]
    with ThreadPoolExecutor() as pool:
        running = pool.submit(run_steps, cache, steps)
        pipe.read_text()
        weights.write_text("new")
        pipe.write_text("go on")
        result = running.result()["stage"]
    assert result.status is Status.FAILED
    assert str(weights) in result.error
    store = Store(cache)
    assert store.records.keys() == []
    assert weights.read_text() == "new"
