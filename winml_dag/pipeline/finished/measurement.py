"""What perf and eval have the engine do: a graph of one stage that looks at a finished model, and maybe one that draws.

It is carried out like a build, so its result is a record in the cache: who measures the same again, on the same host
with the same tools, is told what is known, and that it is. There is no output folder; files are put where the user
says, or nowhere.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonObject
from winml_dag.engine.events import Observer, StageResult, Status
from winml_dag.engine.graph import Graph
from winml_dag.engine.plan import foresee, prefetch
from winml_dag.engine.stage import Node, Source, Stage
from winml_dag.ep.registry import Target
from winml_dag.errors import StoreError
from winml_dag.pipeline.accounts import settle_accounts
from winml_dag.pipeline.epplace import ep_place
from winml_dag.pipeline.graphrun import reuse_all, run_graph
from winml_dag.pipeline.outputfile import OutputFile
from winml_dag.pipeline.outputs import Materialised, prepare_folder, refuse_file
from winml_dag.stages.normalize import NORMALIZE
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.fingerprints import Fingerprints
from winml_dag.store.local import LocalStore
from winml_dag.store.store import BlobDamaged

if TYPE_CHECKING:
    from winml_dag.engine.execute import Executor

# As for builds: what is damaged again after it was made anew is no matter of another try.
_TRIES = 3


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
        return {} if record is None else record.ingredients.toolchain


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


def carry_out(
    planned: MeasurementGraph,
    store: LocalStore,
    *,
    rebuild: bool = False,
    timeout_seconds: float | None = None,
    folder: Path | None = None,
    overwrite: bool = False,
    observer: Observer | None = None,
    executor: Executor | None = None,
) -> Measurement:
    """Measure, unless it is known; with *rebuild* in any case. All files that come out of it are put into *folder*.

    A stage that fails is in the result, not raised; then the folder is as it was.

    Raises:
        UsageError: when a file of somebody else's is in the way in *folder*, and *overwrite* does not allow it.
        StoreError: when the cache or *folder* cannot be used.
        KeyboardInterrupt: after children have been ended.
    """
    started = time.monotonic()
    if folder is not None:  # before what may take long
        refuse_file(folder)
        prepare_folder(folder)
    for attempt in range(_TRIES):
        with ExitStack() as living:
            try:
                results = _run(planned, store, rebuild and attempt == 0, timeout_seconds, observer, executor, living)
                if any(result.record is None for result in results):
                    store.settle()
                    note = settle_accounts(None, results, store)
                    return Measurement(results, time.monotonic() - started, note=note)
                files = tuple(sorted(file for result in results for file in _files(result)))
                put = Materialised() if folder is None else _put(planned, files, folder, store, overwrite=overwrite)
            except BlobDamaged:
                continue  # it is in quarantine now, so its stage will be found wanting
        store.settle()
        note = settle_accounts(None, results, store)
        return Measurement(results, time.monotonic() - started, files, note, put)
    raise StoreError(
        "What was measured is damaged in the cache again and again.",
        advice="Check the disk, or choose another cache folder with --cache-dir.",
    )


def _run(
    planned: MeasurementGraph,
    store: LocalStore,
    rebuild: bool,
    timeout_seconds: float | None,
    observer: Observer | None,
    executor: Executor | None,
    living: ExitStack,
) -> tuple[StageResult, ...]:
    """*living* closes what tells others that this run is alive."""
    graph, scope = planned.graph, planned.scope
    if not rebuild:
        prefetch(graph, planned.sources, store)
    foreseen = foresee(graph, planned.sources, store, scope=scope, rebuild=rebuild)
    if len(foreseen) == len(graph.nodes):
        reuse_all(foreseen, store, scope, observer)
        return foreseen
    # Imported here: what is known is told without it.
    from winml_dag.engine.schedule import RunOptions

    scratch = living.enter_context(store.scratch.open())
    options = RunOptions(scope, jobs=1, rebuild=rebuild)  # one at a time: nothing of ours beside what is measured
    return run_graph(
        graph,
        planned.sources,
        foreseen,
        store,
        scratch,
        options,
        observer=observer,
        executor=executor,
        timeout_seconds=timeout_seconds,
    )


def _files(result: StageResult) -> tuple[FileEntry, ...]:
    assert result.record is not None
    return tuple(file for artifact in result.record.outputs.values() for file in artifact.files)


def _put(
    planned: MeasurementGraph, files: Sequence[FileEntry], folder: Path, store: LocalStore, *, overwrite: bool
) -> Materialised:
    read = (file.path for source in planned.graph.sources.values() for file in source.files)
    return OutputFile(folder, files[0].name, read, store, overwrite=overwrite).materialise(files)
