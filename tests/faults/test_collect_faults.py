"""Garbage collection from two processes at once beside engines, and killed at every step."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from fault_engine import Step, engine, run_steps, told
from kills import killed_at_change

from winml_dag.store.gc import Limits, collect
from winml_dag.store.store import Store
from winml_dag.store.upkeep import verify

LONG_AGO = 10**9


def gc(cache: Path, size: str) -> subprocess.CompletedProcess[str]:
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


def parts(count: int) -> list[Step]:
    return [Step(f"part{number}", "write", number=number) for number in range(count)]


def test_concurrent_gc_and_engines_do_no_harm(cache: Path) -> None:
    steps = parts(6)
    whole = [*steps, Step("whole", "write", number=9, inputs=tuple(f"{step.id}.out" for step in steps))]
    run_steps(cache, steps)
    age(cache)
    with ThreadPoolExecutor() as pool:
        collections = [pool.submit(gc, cache, size) for size in ("0", "3KB")]
        with engine(cache, whole) as one, engine(cache, whole) as other:
            results = list(pool.map(told, (one, other)))
        assert [future.result().stderr for future in collections] == ["", ""]
    assert {status for result in results for status, _ in result.values()} <= {"ran", "reused"}
    store = Store(cache)
    assert verify(store).clean
    (text,) = run_steps(cache, whole)["whole"].record.files()  # type: ignore[union-attr]
    assert store.blobs.path(text.digest).read_text() == "9(0(),1(),2(),3(),4(),5())"


def test_gc_killed_at_any_step_leaves_clean_store(cache: Path, tmp_path: Path) -> None:
    run_steps(cache, parts(2))
    age(cache)
    (cache / "standing").mkdir()
    (cache / "standing" / "plan.keys").write_text("\n".join(Store(cache).records.keys()))
    os.utime(cache / "standing" / "plan.keys", (LONG_AGO, LONG_AGO))
    step, killed = 0, True
    while killed:
        step += 1
        copy = tmp_path / "copy"
        shutil.copytree(cache, copy)
        store = Store(copy)
        killed = killed_at_change(step, partial(collect, store, Limits(max_bytes=0)))
        store.close()
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
    assert step > 15
