"""Whatever a stage does to its process, only that stage fails, and nothing of it stays behind."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fault_engine import Step, is_gone, run_steps

from winml_dag.engine.events import StageResult, Status
from winml_dag.engine.exchange import RESULT_FILE, Result
from winml_dag.store.store import Store
from winml_dag.store.upkeep import verify


def run_one(cache: Path, work: str, **fields: object) -> StageResult:
    return run_steps(cache, [Step("stage", work, **fields)])["stage"]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("work", "error"),
    [
        ("crash", "Its process ended with signal SIGSEGV."),
        ("kill_itself", "Its process ended with signal SIGABRT."),
        ("leave", "Its process ended with exit code 3."),
        ("answer_nonsense", "It ended, but its result cannot be read."),
    ],
)
def test_a_native_crash_costs_one_stage_and_publishes_nothing(cache: Path, work: str, error: str) -> None:
    results = run_steps(cache, [Step("good", "write"), Step("bad", work), Step("behind", "write", inputs=("bad.out",))])
    assert results["good"].status is Status.RAN
    assert (results["bad"].status, results["bad"].error) == (Status.FAILED, error)
    assert results["behind"].status is Status.SKIPPED
    store = Store(cache)
    assert len(store.records.keys()) == 1
    assert verify(store).clean


@pytest.mark.parametrize("answer", ["{", "[]", '{"metrics": 5}', '{"metrics": {}, "more": 1}', "[" * 100_000])
def test_a_result_that_is_none_of_ours_is_a_failure(tmp_path: Path, answer: str) -> None:
    (tmp_path / RESULT_FILE).write_text(answer)
    result = Result.read(tmp_path)
    assert result is not None
    assert result.error == "It ended, but its result cannot be read."


@pytest.mark.parametrize("work", ["hang_while_asked_to", "hang_in_native_code"])
def test_a_stage_that_hangs_is_ended_with_all_its_children(cache: Path, pipe: Path, work: str) -> None:
    step = Step("stage", work, str(pipe), timeout_seconds=1.5)
    with ThreadPoolExecutor() as pool:
        running = pool.submit(run_steps, cache, [step])
        processes = [int(pid) for pid in pipe.read_text().split()]
        result = running.result()["stage"]
    assert result.error == "It took longer than its limit of 1.5 s and was ended."
    assert "--stage-timeout" in result.advice
    assert all(is_gone(pid) for pid in processes)


def test_what_native_code_prints_is_in_the_log_and_not_on_our_output(
    cache: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # it turns off C's buffer as well
    result = run_one(cache, "flood", number=20)
    assert result.status is Status.RAN
    assert result.record is not None
    assert result.record.log is not None
    log = Store(cache).blobs.path(result.record.log.digest).read_text()
    assert log.count("to stdout\n") == log.count("to stderr\n") == 200_000
    assert log.endswith("last words in C's buffer\n")
    assert capfd.readouterr() == ("", "")


def test_the_log_of_a_failure_stays_and_a_sentence_needs_no_lines_of_it(cache: Path) -> None:
    result = run_one(cache, "no_such_work")
    assert result.log is not None
    assert result.log.parent == cache / "failures"
    assert "has no attribute 'no_such_work'" in result.log.read_text().splitlines()[-1]
    assert result.tail == ()
