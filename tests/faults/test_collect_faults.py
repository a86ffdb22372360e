"""Garbage collection while engines run, from two processes at once, and killed at every step."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import pytest
from fault_engine import Step, engine, run_steps, told

from winml_dag.engine.events import Status
from winml_dag.store.gc import Limits, collect
from winml_dag.store.store import Store
from winml_dag.store.upkeep import verify

LONG_AGO = 10**9


def gc(cache: Path, size: str = "0") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "winml_dag", "cache", "gc", "--cache-dir", str(cache), "--max-size", size]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def age(cache: Path) -> None:
    """Make everything in the cache look unused for a long time."""
    for path in (cache / "records").rglob("*.json"):
        os.utime(path, (LONG_AGO, LONG_AGO))


def wait_for_next_tick(probe: Path) -> None:
    """Return when the file system's clock has moved on."""
    probe.touch()
    first = probe.stat().st_mtime_ns
    while probe.stat().st_mtime_ns == first:
        probe.touch()


def parts(ledger: Path, numbers: range) -> list[Step]:
    return [Step(f"part{number}", "count", str(ledger), number) for number in numbers]


def test_a_collection_down_to_nothing_takes_nothing_that_a_running_engine_stands_on(
    cache: Path, pipe: Path, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger.txt"
    held, others = parts(ledger, range(3)), parts(ledger, range(3, 6))
    run_steps(cache, [*held, *others])
    age(cache)
    gate = Step("gate", "wait_at_gate", str(pipe))
    whole = Step("whole", "count", str(ledger), 9, (*(f"{part.id}.out" for part in held), "gate.out"))
    with engine(cache, [*held, gate, whole]) as running:
        pipe.read_text()
        done = gc(cache)
        assert done.returncode == 0, done.stderr
        assert "Removed 3 records" in done.stdout
        assert "Kept 3 records" in done.stdout
        pipe.write_text("go on")
        results = told(running)
    assert {name: result[0] for name, result in results.items()} == {
        **{part.id: "reused" for part in held},
        "gate": "ran",
        "whole": "ran",
    }
    assert sorted(ledger.read_text().split()) == ["0", "1", "2", "3", "4", "5", "9"]
    assert verify(Store(cache)).clean


def test_collections_from_two_sides_and_engines_beside_them_do_no_harm(cache: Path, tmp_path: Path) -> None:
    steps = parts(tmp_path / "ledger.txt", range(6))
    whole = [*steps, Step("whole", "write", number=9, inputs=tuple(f"{step.id}.out" for step in steps))]
    run_steps(cache, steps)
    with ThreadPoolExecutor() as pool:
        for _ in range(2):
            age(cache)
            collections = [pool.submit(gc, cache, size) for size in ("0", "3KB")]
            with engine(cache, whole) as one, engine(cache, whole) as other:
                results = list(pool.map(told, (one, other)))
            assert [future.result().stderr for future in collections] == ["", ""]
            assert {status for result in results for status, _ in result.values()} <= {"ran", "reused"}
            assert verify(Store(cache)).clean
    store = Store(cache)
    (text,) = run_steps(cache, whole)["whole"].record.files()  # type: ignore[union-attr]
    assert store.blobs.path(text.digest).read_text() == "9(0(),1(),2(),3(),4(),5())"


def test_killed_at_any_step_a_collection_leaves_a_clean_store_and_the_next_one_finishes(
    cache: Path, tmp_path: Path
) -> None:
    """Every audit event of Python is a step: opening, renaming, removing, times, the index."""
    run_steps(cache, parts(tmp_path / "ledger.txt", range(2)))
    age(cache)
    (cache / "standing").mkdir()
    (cache / "standing" / "plan.keys").write_text("\n".join(Store(cache).records.keys()))
    os.utime(cache / "standing" / "plan.keys", (LONG_AGO, LONG_AGO))
    step, killed = 0, True
    while killed:
        copy = tmp_path / "copy"
        shutil.copytree(cache, copy)
        child = os.fork()
        if child == 0:
            _collect_killed_at(step, copy)
        status = os.waitpid(child, 0)[1]
        killed = os.WIFSIGNALED(status)
        assert killed or os.WEXITSTATUS(status) == 0
        store = Store(copy)
        report = verify(store)
        assert report.clean, (step, report)
        wait_for_next_tick(tmp_path / "tick")  # What verify read counts as in use within its tick.
        done = collect(store, Limits(max_bytes=0))
        assert done is not None
        assert done.left_bytes == 0, step
        assert verify(store).clean
        store.close()
        shutil.rmtree(copy)
        step += 1
    assert step > 40


def _collect_killed_at(last: int, cache: Path) -> NoReturn:
    steps = itertools.count()

    def count(event: str, _: object) -> None:
        if event.startswith(("os.", "open", "sqlite3.")) and next(steps) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    # Whatever happens, the child must not continue with its parent's tests.
    try:
        store = Store(cache)
        sys.addaudithook(count)
        collect(store, Limits(max_bytes=0))
        os._exit(0)
    finally:
        os._exit(1)


@pytest.mark.parametrize("size", ["0", "1TiB"])
def test_an_engine_that_follows_a_collection_runs_what_is_gone_and_nothing_else(
    cache: Path, tmp_path: Path, size: str
) -> None:
    steps = parts(tmp_path / "ledger.txt", range(2))
    run_steps(cache, steps)
    assert gc(cache, size).returncode == 0
    expected = Status.RAN if size == "0" else Status.REUSED
    assert {result.status for result in run_steps(cache, steps).values()} == {expected}
