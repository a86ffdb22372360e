"""What perf and eval have the engine do: a graph of one stage that looks at a finished model, and maybe one that draws.

It is carried out like a build, so its result is a record in the cache: who measures the same again, on the same host
with the same tools, is told what is known, and that it is. There is no output folder; files are put where the user
says, or nowhere.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonObject
from winml_dag.engine.events import Observer, StageResult, Status
from winml_dag.engine.graph import Graph
from winml_dag.engine.stage import Node, Source, Stage
from winml_dag.ep.registry import Target
from winml_dag.pipeline.buildresult import record_stats
from winml_dag.pipeline.commit import Materialised
from winml_dag.pipeline.epplace import ep_place
from winml_dag.pipeline.publish import OutputFile, prepare_folder, refuse_file
from winml_dag.pipeline.run import BuildOptions, Driver, GraphJob
from winml_dag.stages.normalize import NORMALIZE
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.digest import Fingerprints
from winml_dag.store.store import Store

if TYPE_CHECKING:
    from winml_dag.engine.execute import Executor


@dataclass(frozen=True)
class MeasurementGraph:
    """A measurement, ready to be carried out. ``scope``: what it is remembered under, which tells what was measured."""

    graph: Graph
    sources: Mapping[str, Artifact]
    scope: str


@dataclass(frozen=True)
class Measurement:
    """What became of a measurement: one result for each stage, in the order in which they ran.

    ``files`` are all that they put out; none after a failure. ``note`` is a sentence when the cache was kept to its
    limit.
    """

    results: tuple[StageResult, ...]
    elapsed_seconds: float
    files: tuple[FileEntry, ...] = ()
    note: str = ""
    put: Materialised = field(default_factory=Materialised)

    @property
    def failed(self) -> StageResult | None:
        return next((result for result in self.results if result.status is Status.FAILED), None)

    @property
    def _measured(self) -> StageResult:
        """Of the stage that measures: the first but for one that prepares the model for it."""
        return next(result for result in self.results if result.node.stage != NORMALIZE)

    @property
    def is_live(self) -> bool:
        """Whether it was measured now; else what is told was in the cache."""
        return self._measured.status is Status.RAN

    @property
    def told(self) -> str:
        """``live`` or ``cached``, as every report says."""
        return "live" if self.is_live else "cached"

    @property
    def made_at(self) -> str:
        record = self._measured.record
        return "" if record is None else record.made_at

    @property
    def metrics(self) -> JsonObject:
        """What was measured, as the stage tells it; empty after a failure."""
        record = self._measured.record
        return {} if record is None else record.metrics

    @property
    def report(self) -> JsonObject:
        """As :attr:`metrics`, without what the engine adds for every stage."""
        return {name: value for name, value in self.metrics.items() if name != "peak_memory_bytes"}

    @property
    def toolchain(self) -> JsonObject:
        """The versions and libraries that it was measured with."""
        record = self._measured.record
        return {} if record is None else record.key_inputs.toolchain


def measuring_node(
    stage: Stage,
    config: JsonObject,
    inputs: Mapping[str, Source | None],
    target: Target,
    fingerprints: Fingerprints,
    packages: Iterable[str] = (),
) -> Node:
    """The node that measures on *target*, where that is installed: with what its provider is installed with in its key,
    besides the versions of *packages* and those of *stage*. Slots without a source are left out.

    Raises:
        UsageError: when the configuration names what is no environment for *target*.
    """
    place = ep_place(target, fingerprints)
    return Node(
        id=stage.name,
        stage=stage,
        config=config,
        inputs={slot: source.name for slot, source in inputs.items() if source is not None},
        toolchain=place.toolchain((*stage.packages, *packages)),
        tools=place.libraries,
        interpreter=place.interpreter,
        pools=place.pools,
    )


def plan_measurement(
    nodes: Sequence[Node], sources: Iterable[Source | None], fingerprints: Fingerprints, scope: str
) -> MeasurementGraph:
    """The graph of *nodes*, the one that measures first, with all *sources* digested; one that is named twice is one.

    Raises:
        UsageError: when a stage cannot take a model.
        InputError: when a source cannot be read.
    """
    given = {source.name: source for source in sources if source is not None}
    digested = {
        name: source.stored or Artifact.of(fingerprints.entries([(file.path, file.name) for file in source.files]))
        for name, source in given.items()
    }
    return MeasurementGraph(Graph.of(nodes, list(given.values())), digested, scope)


class MeasurementJob(GraphJob[Measurement]):
    """A measurement; all files that come out of it are put into *folder*. A stage that fails is in the result, not
    raised; then the folder is as it was.
    """

    reports_shared_as_run = True

    def __init__(
        self,
        planned: MeasurementGraph,
        store: Store,
        label: str = "",
        *,
        folder: Path | None = None,
        overwrite: bool = False,
    ) -> None:
        super().__init__(label, planned.graph, planned.sources, planned.scope)
        self._store = store
        self._folder = folder
        self._overwrite = overwrite

    def refuse(self) -> None:
        if self._folder is not None:  # before what may take long
            refuse_file(self._folder)
            prepare_folder(self._folder)

    def finish(self, results: tuple[StageResult, ...], began: float) -> Measurement:
        if any(result.record is None for result in results):
            return Measurement(results, time.monotonic() - began)
        files = tuple(sorted(file for result in results for file in _files(result)))
        put = Materialised() if self._folder is None else self._put(files, self._folder)
        return Measurement(results, time.monotonic() - began, files, put=put)

    def _put(self, files: Sequence[FileEntry], folder: Path) -> Materialised:
        read = (file.path for source in self.graph.sources.values() for file in source.files)
        return OutputFile(folder, files[0].name, read, self._store, overwrite=self._overwrite).materialise(files)

    def settle(self, done: Measurement, results: tuple[StageResult, ...]) -> Measurement:
        return replace(done, note=record_stats(None, results, self._store))


def carry_out(
    planned: MeasurementGraph,
    store: Store,
    *,
    rebuild: bool = False,
    timeout_seconds: float | None = None,
    folder: Path | None = None,
    overwrite: bool = False,
    observer: Observer | None = None,
    executor: Executor | None = None,
) -> Measurement:
    """Measure, unless it is known; with *rebuild* in any case. Stages run one at a time: nothing of ours beside what is
    measured.

    Raises:
        UsageError: when a file of somebody else's is in the way in *folder*, and *overwrite* does not allow it.
        StoreError: when the cache or *folder* cannot be used.
        KeyboardInterrupt: after children have been ended.
    """
    options = BuildOptions(rebuild=rebuild, stage_timeout_seconds=timeout_seconds)
    job = MeasurementJob(planned, store, folder=folder, overwrite=overwrite)
    return Driver(store, options, observer, executor).run_one(job)


def _files(result: StageResult) -> tuple[FileEntry, ...]:
    assert result.record is not None
    return tuple(file for artifact in result.record.outputs.values() for file in artifact.files)
