"""Running stages of a finished build again: equal outputs, the first difference, and what is left alone."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
import reproduce_stages
from memory_executor import MemoryExecutor
from onnx import numpy_helper
from reproduce_stages import SAYS, Config

from winml_dag.canonical import JsonObject
from winml_dag.engine.events import Silent, StageResult
from winml_dag.engine.execute import Executor, LocalExecutor
from winml_dag.engine.graph import Graph
from winml_dag.engine.run import LocalRuns, Runner
from winml_dag.engine.schedule import RunOptions, Scheduler
from winml_dag.engine.stage import InputSlot, Node, Source, SourceFile, Stage, Workspace
from winml_dag.errors import UsageError
from winml_dag.pipeline.assess.reproduce import Reproduction, StageReproduction, Verdict, reproduce
from winml_dag.pipeline.buildgraph import BuildGraph, BuildSummary, Step
from winml_dag.store.artifact import Artifact
from winml_dag.store.blobs import STAMP_NS
from winml_dag.store.digest import Fingerprints
from winml_dag.store.store import Store


def source_artifact(source: Source, fingerprints: Fingerprints) -> Artifact:
    """Return the content of the files of *source*."""
    return Artifact.of(fingerprints.entry(file.path, file.name) for file in source.files)


def _work(node: Node, workspace: Workspace) -> JsonObject:
    done: JsonObject = getattr(reproduce_stages, node.stage.name)(Config(), workspace)
    return done


class Bench:
    """A store, a source file, and graphs of the stages in ``reproduce_stages``, which run in this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.executor: Executor = MemoryExecutor(_work)
        self.store = Store(folder / "cache")
        self.source = folder / "source.txt"
        self.source.write_text("a source")

    def planned(self, nodes: Mapping[str, str | None]) -> BuildGraph:
        """Plan a node per function name, which reads the output of the node it is mapped to (None: the source)."""
        stages = {
            name: Stage(
                name=name,
                version=1,
                work=f"reproduce_stages:{name}",
                config="reproduce_stages:Config",
                inputs={"in": InputSlot(frozenset({"text"}))},
                outputs={"out": "text"},
            )
            for name in nodes
        }
        graph = Graph.of(
            [
                Node(f"{name}.0", stages[name], {}, {"in": f"{maker}.0.out" if maker else "source"})
                for name, maker in nodes.items()
            ],
            [Source("source", "text", (SourceFile("source.txt", self.source),))],
        )
        summary = BuildSummary("m", "onnx", None, "fp32", "CPU", "cpu", "cpu", self.folder / "out", {}, ())
        return BuildGraph(
            summary=summary,
            graph=graph,
            steps=(
                *(Step(node.id, node.stage.name) for node in graph.nodes),
                Step("compile", "compile", "not asked for"),
            ),
            sources={name: source_artifact(source, self.store.fingerprints) for name, source in graph.sources.items()},
            final=graph.nodes[-1].id,
        )

    def build(self, nodes: Mapping[str, str | None]) -> BuildGraph:
        planned = self.planned(nodes)
        with self.store.scratch.open() as scratch:
            runner = Runner(
                planned.graph,
                self.store,
                self.executor,
                self.store.fingerprints,
                scratch=scratch,
                failures=self.folder / "failures",
                made_by="tests",
                rebuild=False,
            )
            options = RunOptions(planned.summary.scope, jobs=2)
            results = Scheduler(
                planned.graph, planned.sources, self.store, LocalRuns(runner, options.jobs), options
            ).run()
        assert [result.error for result in results] == [""] * len(results)
        return planned

    def reproduce(self, planned: BuildGraph, *names: str, runs: int = 1) -> Reproduction:
        return reproduce(planned, self.store, names, runs=runs, jobs=2, executor=self.executor)

    def only(self, planned: BuildGraph, *, runs: int = 1) -> StageReproduction:
        (stage,) = self.reproduce(planned, runs=runs).stages
        return stage

    def output(self, planned: BuildGraph, node_id: str) -> Artifact:
        node = planned.graph.node(node_id)
        record = self.store.latest([f"{planned.summary.scope}\n{node.id}"]).get(f"{planned.summary.scope}\n{node.id}")
        assert record is not None
        return record.outputs["out"]

    def blob(self, planned: BuildGraph, node_id: str) -> Path:
        (file,) = self.output(planned, node_id).files
        return self.store.blobs.path(file.digest)

    def state(self) -> dict[str, tuple[bytes, int | None]]:
        """Return every blob with its stamp and every record, and assert that no scratch folder is left.

        The time of a record's file is that of its last use, and comparing is a use.
        """
        files = [path for name in ("blobs", "records") for path in (self.store.folder / name).rglob("*")]
        assert list((self.store.folder / "scratch").iterdir()) == []
        return {
            str(path): (path.read_bytes(), path.stat().st_mtime_ns if path.parent.parent.name == "xxh3-128" else None)
            for path in files
            if path.is_file()
        }


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.delenv(SAYS, raising=False)
    return Bench(tmp_path)


def test_what_gives_the_same_bytes_is_equal_and_nothing_is_touched(bench: Bench) -> None:
    planned = bench.build({"same": None, "fails_when_told": "same"})
    before = bench.state()
    found = bench.reproduce(planned, runs=2)
    assert found.equal
    assert [(stage.id, stage.verdict, stage.runs, stage.files) for stage in found.stages] == [
        ("same.0", Verdict.EQUAL, 2, 1),
        ("fails_when_told.0", Verdict.EQUAL, 2, 1),
    ]
    assert bench.state() == before
    assert not planned.summary.output_dir.exists()


def test_a_random_tensor_is_named_with_its_first_element_and_both_values(bench: Bench) -> None:
    planned = bench.build({"random_tensor": None})
    (file,) = bench.output(planned, "random_tensor.0").files
    recorded = onnx.ModelProto.FromString(bench.store.blobs.path(file.digest).read_bytes())
    first = numpy_helper.to_array(recorded.graph.initializer[1])[0, 0]
    before = bench.state()
    stage = bench.only(planned)
    assert stage.verdict is Verdict.DIFFERS
    (difference,) = stage.differences
    assert (difference.slot, difference.file, difference.other, difference.runs) == (
        "out",
        "drawn.onnx",
        "the record",
        (1,),
    )
    match = re.fullmatch(r"initializer 'drawn' \(float32 \[4, 8\]\), element \[0, 0\]: (\S+) -> (\S+)", difference.text)
    assert match is not None, difference.text
    assert np.float32(match[1]) == first
    assert np.float32(match[2]) != first
    assert bench.state() == before, "what came out differently is not stored"


def test_runs_are_held_against_each_other(bench: Bench) -> None:
    stage = bench.only(bench.build({"random_bytes": None}), runs=3)
    assert [(difference.other, difference.runs) for difference in stage.differences] == [
        ("the record", (1,)),
        ("the record", (2,)),
        ("the record", (3,)),
        ("run 1", (2,)),
        ("run 1", (3,)),
    ]
    assert not stage.runs_agree
    offsets = [re.fullmatch(r"differs from byte (\d+) on", difference.text) for difference in stage.differences]
    assert all(match is not None and 100 <= int(match[1]) < 132 for match in offsets)


def test_runs_that_agree_blame_the_record(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = bench.build({"what_it_is_told": None})
    monkeypatch.setenv(SAYS, "otherwise")
    stage = bench.only(planned, runs=2)
    assert stage.runs_agree
    assert [(d.runs, d.other, d.text) for d in stage.differences] == [
        ((1, 2), "the record", "differs from byte 7 on (11 -> 16 bytes)")
    ]


def test_every_run_has_a_process_of_its_own(bench: Bench) -> None:
    bench.executor = LocalExecutor()
    stage = bench.only(bench.build({"process_number": None}), runs=2)
    numbers = {re.fullmatch(r"process\.id: (\d+) -> (\d+)", difference.text)[2] for difference in stage.differences}  # type: ignore[index]
    assert len(numbers) == 2
    assert str(os.getpid()) not in numbers


def test_a_stage_that_differs_does_not_reach_those_behind_it(bench: Bench) -> None:
    """Each runs from its recorded inputs, so only the faulty one differs."""
    found = bench.reproduce(bench.build({"random_bytes": None, "same": "random_bytes"}))
    assert [stage.verdict for stage in found.stages] == [Verdict.DIFFERS, Verdict.EQUAL]
    assert not found.equal


def test_only_chosen_stages_run(bench: Bench) -> None:
    planned = bench.build({"same": None, "fails_when_told": "same"})
    assert [stage.id for stage in bench.reproduce(planned, "fails_when_told").stages] == ["fails_when_told.0"]
    assert [stage.id for stage in bench.reproduce(planned, "same.0", "same").stages] == ["same.0"]
    with pytest.raises(UsageError, match=r"no stage 'quantise'.*same\.0"):
        bench.reproduce(planned, "quantise")
    with pytest.raises(UsageError, match="compile is skipped in this build: not asked for"):
        bench.reproduce(planned, "compile")


def test_a_stage_whose_input_has_gone_is_named(bench: Bench) -> None:
    planned = bench.build({"same": None, "fails_when_told": "same"})
    blob = bench.blob(planned, "same.0")
    blob.chmod(0o644)
    blob.unlink()
    maker, reader = bench.reproduce(planned).stages
    assert maker.verdict is Verdict.EQUAL, "a digest is all that it takes to compare"
    assert (reader.verdict, reader.reason) == (Verdict.NOT_RUN, "missing or damaged in the cache: same.txt")


def test_a_stage_whose_input_has_rotted_is_named(bench: Bench) -> None:
    """Only reading the file reveals it."""
    planned = bench.build({"same": None, "fails_when_told": "same"})
    blob = bench.blob(planned, "same.0")
    blob.chmod(0o644)
    blob.write_bytes(b"\0" * blob.stat().st_size)
    os.utime(blob, ns=(STAMP_NS, STAMP_NS))
    _, reader = bench.reproduce(planned, runs=2).stages
    assert (reader.verdict, reader.reason) == (Verdict.NOT_RUN, "missing or damaged in the cache: same.txt")


def test_without_the_recorded_bytes_a_difference_is_told_but_not_where(bench: Bench) -> None:
    planned = bench.build({"random_bytes": None})
    blob = bench.blob(planned, "random_bytes.0")
    blob.chmod(0o644)
    blob.unlink()
    (difference,) = bench.only(planned).differences
    assert "the recorded file has gone from the cache" in difference.text


def test_what_was_not_built_as_it_is_now_says_what_changed(bench: Bench) -> None:
    bench.build({"same": None, "fails_when_told": "same"})
    bench.source.write_text("another source")
    first, second = bench.reproduce(bench.planned({"same": None, "fails_when_told": "same"})).stages
    assert first.verdict is second.verdict is Verdict.NOT_RUN
    assert "source.txt changed" in first.reason
    assert "same.0" in second.reason


def test_a_stage_that_fails_is_reported_with_its_log(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.executor = LocalExecutor()
    planned = bench.build({"fails_when_told": None})
    before = bench.state()
    monkeypatch.setenv(SAYS, "no")
    stage = bench.only(planned)
    assert stage.verdict is Verdict.FAILED
    assert stage.failure is not None
    assert (stage.failure.error, stage.failure.advice) == ("The device has gone.", "Plug it in.")
    assert stage.failure.log is not None
    assert stage.failure.log.read_text() == "now it cannot\n"
    assert bench.state() == before


def test_a_source_that_changes_meanwhile_is_a_failure_not_a_difference(bench: Bench) -> None:
    planned = bench.build({"same": None})
    bench.source.write_text("changed after planning")
    stage = bench.only(planned)
    assert stage.verdict is Verdict.FAILED
    assert stage.failure is not None
    assert "source.txt changed while it was being used" in stage.failure.error


def test_an_interrupt_leaves_nothing_behind(bench: Bench) -> None:
    planned = bench.build({"same": None, "fails_when_told": "same"})
    before = bench.state()

    class Interrupting(Silent):
        def finished(self, result: StageResult) -> None:  # noqa: ARG002
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce(planned, bench.store, observer=Interrupting(), executor=bench.executor)
    assert bench.state() == before
