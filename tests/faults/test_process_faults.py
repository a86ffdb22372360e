"""Only the stage fails whose process does, and a killed or interrupted engine takes its workers with it.

The processes of stages are new ones here; those of the harness are forks.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from fault_engine import Step, engine, has_threads, is_gone, run_steps, told

from winml_dag.engine.events import Status
from winml_dag.engine.exchange import RESULT_FILE, Result
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
def test_ended_engine_stops_workers_and_next_one_resumes(
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


def test_engine_waiting_for_another_can_be_interrupted(cache: Path, pipe: Path) -> None:
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


@pytest.mark.parametrize(
    ("work", "error"),
    [
        ("crash", "Its process ended with signal SIGSEGV."),
        ("kill_itself", "Its process ended with signal SIGABRT."),
        ("leave", "Its process ended with exit code 3."),
        ("answer_nonsense", "It ended, but its result cannot be read."),
    ],
)
def test_native_crash_fails_one_stage_and_publishes_nothing(cache: Path, work: str, error: str) -> None:
    results = run_steps(cache, [Step("good", "write"), Step("bad", work), Step("behind", "write", inputs=("bad.out",))])
    assert results["good"].status is Status.RAN
    assert (results["bad"].status, results["bad"].error) == (Status.FAILED, error)
    assert results["behind"].status is Status.SKIPPED
    store = Store(cache)
    assert len(store.records.keys()) == 1
    assert verify(store).clean


@pytest.mark.parametrize("answer", ["{", "[]", '{"metrics": 5}', '{"metrics": {}, "more": 1}', "[" * 100_000])
def test_invalid_result_file_is_a_failure(tmp_path: Path, answer: str) -> None:
    (tmp_path / RESULT_FILE).write_text(answer)
    result = Result.read(tmp_path)
    assert result is not None
    assert result.error == "It ended, but its result cannot be read."


def test_native_output_goes_to_log_only(
    cache: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # it turns off C's buffer as well
    result = run_steps(cache, [Step("stage", "flood", number=20)])["stage"]
    assert result.status is Status.RAN
    assert result.record is not None
    assert result.record.log is not None
    log = Store(cache).blobs.path(result.record.log.digest).read_text()
    assert log.count("to stdout\n") == log.count("to stderr\n") == 200_000
    assert log.endswith("last words in C's buffer\n")
    assert capfd.readouterr() == ("", "")
