"""A stage in a separate process: its inputs, its rights, and what is reported."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winml_dag.engine import execute
from winml_dag.engine.exchange import LOG_FILE, PROGRESS_FILE, Progress, log_tail, read_progress, shorten_log
from winml_dag.engine.execute import Job, LocalExecutor, Outcome
from winml_dag.engine.stage import InputSlot, Node, Stage

RunWork = Callable[..., tuple[Outcome, Path]]


CAN_FORK = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")
# For what happens in a worker, however it was started.
EITHER = pytest.mark.parametrize("executor", ["fork" if sys.platform == "linux" else "process"], indirect=True)


@pytest.fixture(params=["process", pytest.param("fork", marks=CAN_FORK)])
def executor(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[LocalExecutor]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setattr(execute, "_FORKED", "engine_stages:")
    executor = LocalExecutor(["tempfile"] if request.param == "fork" else [], ("plugin", ["imported_by_fork"]))
    yield executor
    executor.close()


@pytest.fixture
def run_work(tmp_path: Path, executor: LocalExecutor) -> RunWork:
    """Runs one function of ``engine_stages`` in a worker; returns the outcome and the folder of its job."""

    def run_work(
        work: str,
        inputs: Mapping[str, str] | None = None,
        *,
        bits: object = 8,
        timeout_seconds: float = 60.0,
        toolchain: Mapping[str, str] | None = None,
    ) -> tuple[Outcome, Path]:
        inputs = inputs or {}
        stage = Stage(
            name=work,
            version=1,
            work=f"engine_stages:{work}",
            config="engine_stages:Config",
            inputs={slot: InputSlot(frozenset({"text"})) for slot in inputs},
            outputs={"out": "text"},
        )
        config = {"text": {"bits": bits}}
        node = Node(work, stage, config, dict.fromkeys(inputs, "source"), toolchain=toolchain or {})  # type: ignore[arg-type]
        folder = tmp_path / f"job{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        job = Job(node, folder, timeout_seconds)
        for slot, text in inputs.items():
            job.input_folder(slot).mkdir(parents=True)
            (job.input_folder(slot) / "text.txt").write_text(text)
        return executor.run(job), folder

    return run_work


def output(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (folder / "outputs" / "out").iterdir()}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("limit", [60.0, 1e15], ids=["a limit", "longer than any clock counts"])
def test_stage_gets_config_and_inputs_and_writes_outputs(run_work: RunWork, limit: float) -> None:
    outcome, folder = run_work("write", {"model": "weights", "data": "pictures"}, bits=4, timeout_seconds=limit)
    assert outcome.error == ""
    assert output(folder) == {"text.txt": "4(pictures,weights)"}
    assert outcome.metrics["inputs"] == 2
    assert (folder / LOG_FILE).read_text() == "written\n"
    assert len(list(folder.rglob("no_output.bin"))) == 2
    assert outcome.progress is None
    assert not list(folder.rglob(f"{PROGRESS_FILE}*")), "a stage that tells nothing writes nothing"


def test_peak_memory_excludes_the_parent_process(run_work: RunWork) -> None:
    ballast = b"x" * 150_000_000
    outcome, _ = run_work("write")
    peak = outcome.metrics["peak_memory_bytes"]
    assert isinstance(peak, int)
    assert 1_000_000 < peak < len(ballast)


BUG = "This is most likely a fault in the stage"


@EITHER
@pytest.mark.parametrize(
    ("work", "error", "advice", "logged"),
    [
        ("refuse", "The model is too large.", "Take a smaller one.", "looking at it\n"),
        ("refuse_without_a_word", "refuse_without_a_word failed and did not say why.", "", ""),
        ("break_down", "break_down met an unexpected error: division by zero.", BUG, 'return {"ratio": 1 / 0}'),
        (
            "need_what_an_extra_has",
            "This stage needs the module 'pyarrow', which is not installed.",
            "pip install winml_dag[datasets]",
            "",
        ),
        (
            "tell_what_json_has_not",
            "tell_what_json_has_not met an unexpected error: Out of range float values",
            BUG,
            "Traceback",
        ),
        (
            "no_such_function",
            "no_such_function met an unexpected error: module 'engine_stages' has no attribute 'no_such_function'.",
            BUG,
            "Traceback",
        ),
    ],
)
def test_failure_is_one_sentence_and_bug_traceback_is_logged(
    run_work: RunWork, work: str, error: str, advice: str, logged: str
) -> None:
    outcome, folder = run_work(work)
    assert outcome.error.startswith(error)
    assert outcome.advice.startswith(advice)
    log = (folder / LOG_FILE).read_text()
    assert logged in log if logged else log == ""


@pytest.mark.parametrize("work", ["exit_early", "pose_as_the_worker"])
def test_early_exit_is_a_failure_for_any_exit_code(run_work: RunWork, work: str) -> None:
    outcome, _ = run_work(work)
    assert outcome.error == "Its process ended with exit code 0."


HEAVY = {"torch", "onnx", "onnxruntime", "numpy", "networkx", "pydantic", "click", "diskcache"}


def test_stage_process_has_clean_environment_without_secrets(
    run_work: RunWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "LC_ALL": "C", "OF_THE_USER": "kept"}.items():
        monkeypatch.setenv(name, value)
    for name in ("WINML_DAG_REMOTE", "WINML_DAG_REMOTE_KEYS", "WINML_DAG_REMOTE_TOKEN"):
        monkeypatch.setenv(name, "secret")
    outcome, folder = run_work("tell_environment", {"model": "weights"})
    told = outcome.metrics
    assert told["environment"] == {
        "PYTHONHASHSEED": "0",
        "TZ": "UTC",
        "LC_ALL": "C.UTF-8",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "OF_THE_USER": "kept",
    }
    assert told["of_remotes"] == []
    assert told["encoding"] == "utf-8"
    assert told["argument_folder_on_path"] is False
    assert told["inputs"] == {"model": "../inputs/model"}
    assert {Path(str(told[name])).parent.resolve() for name in ("folder", "temporary")} == {folder.resolve()}
    modules = told["modules"]
    assert isinstance(modules, list)
    assert not HEAVY & set(map(str, modules))
    assert (told["collects_garbage"], told["leaves_imported_alone"]) == (True, True)
    monkeypatch.setenv("PYTHONHASHSEED", "8")
    monkeypatch.setenv("OF_THE_USER", "changed")
    again = run_work("tell_environment")[0].metrics
    assert again["environment"] == {**told["environment"], "OF_THE_USER": "changed"}
    assert again["order"] == told["order"]


@EITHER
@pytest.mark.parametrize(
    ("work", "done"),
    [("tell_how_far", 8), ("tell_and_refuse", 3)],
)
def test_last_progress_is_known_after_the_stage_ends(run_work: RunWork, work: str, done: int) -> None:
    told = run_work(work)[0].progress
    assert told is not None
    assert (told.done, told.total, told.unit) == (done, 8, "bits")
    assert told.per_second is not None
    assert told.per_second > 0


def test_progress_is_readable_until_stop_and_nothing_runs_after(
    run_work: RunWork, executor: LocalExecutor, tmp_path: Path
) -> None:
    at_work = tmp_path / "at work"
    os.mkfifo(at_work)
    told = Progress(64, 512, "samples")
    with ThreadPoolExecutor() as pool:
        running = pool.submit(run_work, "tell_and_wait_to_be_ended", {"fifo": str(at_work)})
        at_work.read_text()
        (folder,) = tmp_path.glob("job*")
        assert read_progress(folder) == told
        executor.stop()
        outcome, _ = running.result()
    assert outcome.error == "Its process ended with signal SIGKILL."
    assert outcome.progress == told
    after, folder = run_work("write")
    assert after.error == "stopped"
    assert output(folder) == {}


@pytest.mark.parametrize("has_descriptors", [True, False])
def test_time_limit_works_without_pidfd(
    run_work: RunWork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_descriptors: bool
) -> None:
    def refuse(_: int) -> int:
        raise PermissionError

    if not has_descriptors:
        monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    assert run_work("write")[0].error == ""
    fifo = tmp_path / "nobody reads"
    os.mkfifo(fifo)
    outcome, _ = run_work("tell_and_wait_to_be_ended", {"fifo": str(fifo)}, timeout_seconds=0.2)
    assert outcome.error == "It took longer than its limit of 0.2 s and was ended."


@CAN_FORK
@pytest.mark.parametrize("executor", ["fork"], indirect=True)
def test_killed_fork_server_fails_its_workers_and_is_replaced(
    run_work: RunWork, executor: LocalExecutor, tmp_path: Path
) -> None:
    at_work = tmp_path / "at work"
    os.mkfifo(at_work)
    with ThreadPoolExecutor() as pool:
        running = pool.submit(run_work, "tell_and_wait_to_be_ended", {"fifo": str(at_work)})
        at_work.read_text()
        assert executor._server is not None
        assert executor._server._server is not None
        executor._server._server[1].kill()
        assert running.result()[0].error == "Its process ended with signal SIGKILL."
    assert run_work("write")[0].error == ""


@CAN_FORK
@pytest.mark.parametrize("executor", ["fork"], indirect=True)
def test_only_stages_needing_a_package_are_forked_with_it_imported(
    run_work: RunWork, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "imported_by_fork.py").write_text("import colorsys\nraise RuntimeError('broken, and half imported')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    for toolchain in ({"plugin": "1"}, {}, {"plugin": "1"}):
        told = run_work("tell_environment", toolchain=toolchain)[0].metrics
        assert ("colorsys" in told["modules"]) is bool(toolchain)  # type: ignore[operator]
        assert (told["collects_garbage"], told["leaves_imported_alone"]) == (True, True)


@CAN_FORK
@pytest.mark.parametrize("executor", ["fork"], indirect=True)
def test_other_stages_run_during_package_import_and_all_can_be_stopped(
    run_work: RunWork, executor: LocalExecutor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fifo = tmp_path / "importing"
    os.mkfifo(fifo)
    (tmp_path / "imported_by_fork.py").write_text(f"open({str(fifo)!r}, 'w').close()\nimport signal\nsignal.pause()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with ThreadPoolExecutor() as pool:
        running = pool.submit(run_work, "write", toolchain={"plugin": "1"})
        fifo.read_text()
        assert run_work("write")[0].error == ""
        executor.stop()
        assert isinstance(running.exception(), OSError)


@CAN_FORK
@pytest.mark.parametrize("executor", ["fork"], indirect=True)
def test_workers_are_forks_of_server_started_ahead(run_work: RunWork, executor: LocalExecutor) -> None:
    executor.start_ahead()
    assert executor._server is not None
    ahead = executor._server._server
    assert run_work("write")[0].error == ""
    assert executor._server._server is ahead


@CAN_FORK
def test_server_started_ahead_ends_at_once_if_no_stage_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fifo = tmp_path / "importing"
    os.mkfifo(fifo)
    (tmp_path / "imported_ahead.py").write_text(f"open({str(fifo)!r}, 'w').close()\nimport signal\nsignal.pause()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    executor = LocalExecutor(["imported_ahead"])
    executor.start_ahead()
    assert executor._server is not None
    assert executor._server._server is not None
    process = executor._server._server[1]
    fifo.read_text()
    executor.close()
    assert process.returncode == -signal.SIGKILL


def test_log_tail_is_its_last_nonempty_lines(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_bytes(b"early\n" * 50_000 + b"\xff late\n\n\nlast\n")
    assert log_tail(log, 2) == ("\N{REPLACEMENT CHARACTER} late", "last")
    assert log_tail(tmp_path / "none.txt") == ()


@given(st.binary(max_size=300), st.integers(100, 200))
def test_shortened_log_keeps_both_ends_and_counts_omitted_bytes(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, largest: int
) -> None:
    log = tmp_path_factory.mktemp("log") / "log.txt"
    log.write_bytes(data)
    shorten_log(log, largest)
    kept = log.read_bytes()
    half = largest // 2
    if len(data) <= largest:
        assert kept == data
    else:
        assert kept.startswith(data[:half])
        assert kept.endswith(data[-half:])
        assert b"\n[... %d bytes are omitted here ...]\n" % (len(data) - 2 * half) in kept
        assert len(kept) < largest + 60
