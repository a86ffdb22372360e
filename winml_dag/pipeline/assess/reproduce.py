"""Check whether a finished build is reproducible: rerun its stages from their recorded inputs and compare the outputs.

Nothing that a build reads or writes changes: records, blobs and the output folder stay as they are. A stage needs only
its inputs and its record, so each stage can be checked alone.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from winml_dag import TOOL_ID
from winml_dag.engine.events import Observer, StageResult, Status
from winml_dag.engine.execute import Executor, LocalExecutor
from winml_dag.engine.plan import BuildState, plan_graph
from winml_dag.engine.reproduce import Recorded, Rerun, Witness, run_again
from winml_dag.engine.run import Damaged, Runner
from winml_dag.engine.stage import Node
from winml_dag.errors import UsageError
from winml_dag.pipeline.buildgraph import BuildGraph
from winml_dag.pipeline.buildresult import result_of, views_named
from winml_dag.store.artifact import Artifact
from winml_dag.store.blobs import BlobDamaged
from winml_dag.store.records import Record, cache_key
from winml_dag.store.store import Store


def changed_files(recorded: Artifact, found: Artifact) -> tuple[str, ...]:
    """Return the names of all files that differ between both, including those that only one has."""
    before, now = ({file.name: file.digest for file in artifact.files} for artifact in (recorded, found))
    return tuple(sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name)))


THE_RECORD = "the record"


class Verdict(StrEnum):
    """The verdict on a stage."""

    EQUAL = "equal"
    DIFFERS = "differs"
    FAILED = "failed"
    NOT_RUN = "cannot be reproduced"


@dataclass(frozen=True)
class Difference:
    """A file of output *slot* that differs in these *runs* from that of *other* (the record, or ``run 1``).

    ``text`` describes the first difference, with the value of *other* on the left: ``initializer 'w', element [0]: 0.5
    -> 0.25``.
    """

    slot: str
    file: str
    runs: tuple[int, ...]
    other: str
    text: str


@dataclass(frozen=True)
class StageReproduction:
    """The result for one stage.

    Attributes:
        runs: how many runs finished.
        files, size: those of the recorded outputs, which each run was compared with.
        elapsed_seconds: the total over all runs.
        reason: why it cannot be reproduced, else empty.
        failure: the first run that failed, if any did.
    """

    id: str
    verdict: Verdict
    runs: int = 0
    files: int = 0
    size: int = 0
    elapsed_seconds: float = 0.0
    differences: tuple[Difference, ...] = ()
    reason: str = ""
    failure: StageResult | None = None

    @property
    def runs_agree(self) -> bool:
        """Whether several runs all gave the same result: then only the record differs."""
        return self.runs > 1 and all(len(difference.runs) == self.runs for difference in self.differences)


@dataclass(frozen=True)
class Reproduction:
    """The results of all requested stages, in the order of the graph."""

    stages: tuple[StageReproduction, ...]
    elapsed_seconds: float

    @property
    def equal(self) -> bool:
        return all(stage.verdict is Verdict.EQUAL for stage in self.stages)


def reproduce(
    planned: BuildGraph,
    store: Store,
    names: Sequence[str] = (),
    *,
    runs: int = 1,
    jobs: int = 1,
    stage_timeout_seconds: float | None = None,
    observer: Observer | None = None,
    executor: Executor | None = None,
) -> Reproduction:
    """Run the stages *names* (ids, or names of stages; none means all) again and compare their outputs.

    *stage_timeout_seconds* None: the limit that each stage declares.

    Raises:
        UsageError: for a name that this build does not have, or has skipped.
        StoreError: when the cache cannot be used.
        KeyboardInterrupt: after child processes have been stopped.
    """
    started = time.monotonic()
    planned_results = plan_graph(planned.graph, planned.sources, store, scope=planned.summary.scope)
    nodes = _chosen(planned, planned_results, names)
    looked_up = _look_up(planned, planned_results, store)
    able = [found for node in nodes if isinstance(found := looked_up[node.id], Recorded)]
    with store.scratch.open() as scratch:
        # The reruns read cached inputs, so mark these as used to keep them from being removed.
        store.used(result.cache_key for result in planned_results if result.record is not None and result.cache_key)
        witness = Witness(store, (one.record for one in able), scratch / "kept")
        runner = Runner(
            planned.graph,
            witness,
            executor or LocalExecutor(),
            store.fingerprints,
            scratch=scratch,
            failures=store.failures,
            made_by=TOOL_ID,
            rebuild=True,
            timeout_seconds=stage_timeout_seconds,
        )
        reruns: dict[str, list[Rerun]] = {one.node.id: [] for one in able}
        for rerun in run_again(able, runner, runs=runs, jobs=jobs, observer=observer):
            reruns[rerun.recorded.node.id].append(rerun)
        comparison = _Comparison(store, witness, scratch / "recorded")
        stages = tuple(
            StageReproduction(node.id, Verdict.NOT_RUN, reason=found)
            if isinstance(found := looked_up[node.id], str)
            else comparison.stage(found, reruns[node.id])
            for node in nodes
        )
    return Reproduction(stages, time.monotonic() - started)


def _chosen(planned: BuildGraph, planned_results: tuple[StageResult, ...], names: Sequence[str]) -> list[Node]:
    """Return the nodes that *names* select, in the order of the graph."""
    line = result_of(planned, planned_results, 0.0)
    chosen = [view for name in names for view in views_named(line, name)]
    if left_out := next((view for view in chosen if view.result is None), None):
        raise UsageError(f"{left_out.id} is skipped in this build: {left_out.reason}.")
    ids = {view.id for view in chosen or line.stages}
    return [node for node in planned.graph.nodes if node.id in ids]


def _look_up(planned: BuildGraph, planned_results: tuple[StageResult, ...], store: Store) -> dict[str, Recorded | str]:
    """Return each node's record and inputs by its id, or a text with the reason why it has none or cannot run."""
    known = BuildState(planned.graph, planned.sources)
    found: dict[str, Recorded | str] = {}
    for result in planned_results:
        node = result.node
        key_inputs, inputs = known.key_inputs(node), known.inputs(node)
        record = None if key_inputs is None else store.record(cache_key(key_inputs))
        if record is None:
            found[node.id] = f"it has no record ({result.reason})"
            continue
        known.settle(node, record)
        # The stage's own outputs may be gone: their digests are in the record.
        made = [inputs[slot] for slot, name in node.inputs.items() if name in planned.graph.makers]
        gone = store.missing(file for artifact in made for file in artifact.files)
        found[node.id] = _lost(file.name for file in gone) if gone else Recorded(node, record, inputs)
    return found


def _lost(names: Iterable[str]) -> str:
    return f"missing or damaged in the cache: {', '.join(names)}"


class _Comparison:
    """Compares the outputs of runs with the record, and with each other."""

    def __init__(self, store: Store, witness: Witness, folder: Path) -> None:
        self._store = store
        self._witness = witness
        self._folder = folder
        self._numbers = itertools.count()

    def stage(self, recorded: Recorded, reruns: Sequence[Rerun]) -> StageReproduction:
        node, files = recorded.node, recorded.record.files()
        results = [(rerun.number, rerun.outcome) for rerun in reruns if isinstance(rerun.outcome, StageResult)]
        if damaged := [rerun.outcome for rerun in reruns if isinstance(rerun.outcome, Damaged)]:
            return StageReproduction(node.id, Verdict.NOT_RUN, reason=_lost([damaged[0].file.name]))
        done = [(number, result.record) for number, result in results if result.record is not None]
        failure = next((result for _, result in results if result.status is Status.FAILED), None)
        differences = tuple(self._differences(recorded.record, done))
        verdict = Verdict.FAILED if failure else Verdict.DIFFERS if differences else Verdict.EQUAL
        return StageReproduction(
            node.id,
            verdict,
            runs=len(done),
            files=len(files),
            size=sum(file.size for file in files),
            elapsed_seconds=round(sum(result.elapsed_seconds or 0.0 for _, result in results), 3),
            differences=differences,
            failure=failure,
        )

    def _differences(self, record: Record, done: Sequence[tuple[int, Record]]) -> Iterator[Difference]:
        """Yield how each distinct output differs from the record, and from that of the first run that does."""
        for slot, before in sorted(record.outputs.items()):
            runs: dict[Artifact, list[int]] = {}
            for number, result in done:
                if result.outputs[slot] != before:
                    runs.setdefault(result.outputs[slot], []).append(number)
            if not runs:
                continue
            kept = {artifact: self._witness.kept(record.cache_key, slot, artifact) for artifact in runs}
            first, *further = runs
            others = [(THE_RECORD, before, self._fetched(before), [first, *further])]
            others.append((f"run {runs[first][0]}", first, kept[first], further))
            for other, artifact, folder, differing in others:
                for each in differing:
                    for name in changed_files(artifact, each):
                        text = "nobody can say where, because the recorded file has gone from the cache"
                        if folder is not None:
                            from winml_dag.onnxmodel.difference import first_difference

                            text = first_difference(folder, kept[each], name)
                        yield Difference(slot, name, tuple(runs[each]), other, text)

    def _fetched(self, artifact: Artifact) -> Path | None:
        """Return a folder with *artifact*; None when the cache no longer has all of it."""
        folder = self._folder / str(next(self._numbers))
        try:
            self._store.fetch(artifact, folder)
        except BlobDamaged:
            return None
        return folder
