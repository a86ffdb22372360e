"""Measurements for perf and eval: a graph with one stage that examines a finished model, and optionally one that draws.

It runs like a build, so the result is a record in the cache: the same measurement on the same host with the same tools
returns the cached result, and reports that it is cached. There is no output folder; files go where the user asks, if
anywhere.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.engine.events import Observer, StageResult, Status
from winml_dag.engine.graph import Graph
from winml_dag.engine.stage import Node, Source, Stage
from winml_dag.ep.registry import Target
from winml_dag.pipeline.buildresult import record_stats
from winml_dag.pipeline.line import ep_place
from winml_dag.pipeline.publish import OutputFile, prepare_folder, refuse_file
from winml_dag.pipeline.run import BuildOptions, Driver, GraphJob
from winml_dag.stages.normalize import NORMALIZE
from winml_dag.store.artifact import Artifact
from winml_dag.store.digest import Fingerprints
from winml_dag.store.store import Store

if TYPE_CHECKING:
    from winml_dag.pipeline.assess.builtmodel import BuiltModel, StoredModel
    from winml_dag.pipeline.model import OnnxFile

S = TypeVar("S")


@dataclass(frozen=True)
class MeasurementGraph:
    """A measurement ready to run. ``scope``: the name it is recorded under, which identifies what was measured."""

    graph: Graph
    sources: Mapping[str, Artifact]
    scope: str


@dataclass(frozen=True)
class Measurement:
    """The result of a measurement: one result for each stage, in the order in which they ran.

    ``note`` is a sentence if the cache was trimmed to its limit.
    """

    results: tuple[StageResult, ...]
    elapsed_seconds: float
    note: str = ""

    @property
    def failed(self) -> StageResult | None:
        return next((result for result in self.results if result.status is Status.FAILED), None)

    @property
    def _measured(self) -> StageResult:
        """The result of the measuring stage: the first one, except for a stage that prepares the model."""
        return next(result for result in self.results if result.node.stage != NORMALIZE)

    @property
    def is_live(self) -> bool:
        """Whether it was measured now; otherwise the result comes from the cache."""
        return self._measured.status is Status.RAN

    @property
    def freshness(self) -> str:
        """``live`` or ``cached``, as in every report."""
        return "live" if self.is_live else "cached"

    @property
    def made_at(self) -> str:
        """When it was measured; like what follows, empty after a failure."""
        record = self._measured.record
        return "" if record is None else record.made_at

    @property
    def metrics(self) -> JsonObject:
        record = self._measured.record
        return {} if record is None else record.metrics

    @property
    def report(self) -> JsonObject:
        """:attr:`metrics` without what the engine adds for every stage."""
        return {name: value for name, value in self.metrics.items() if name != "peak_memory_bytes"}

    @property
    def toolchain(self) -> JsonObject:
        """The versions and libraries that it was measured with."""
        record = self._measured.record
        return {} if record is None else record.key_inputs.toolchain


@dataclass(frozen=True)
class AssessmentRequest(Generic[S]):
    """What to find out about a finished model.

    Attributes:
        section: the recipe section, with the overrides of this run; its paths are relative to *base*.
        ep, device: the target to run on; None for the one it was built for.
        options: provider options that override those it was built with.
        reference: the model to compare with; None for the one that its build has.
        has_reference: whether it is compared with any.
        task: the model's task; None for the one that its build records.
        model_id: the model whose tokenizer or image processor prepares the inputs; None for that of the build.
        download: allow fetching a tokenizer or data set from the hub.
    """

    section: S
    base: Path
    ep: str | None = None
    device: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    reference: Path | None = None
    has_reference: bool = True
    task: str | None = None
    model_id: str | None = None
    download: bool = True


@dataclass(frozen=True)
class AssessmentPlan:
    """A measurement ready to run, the model that it examines, and where that runs.

    ``reference``: the model to compare with; None without a comparison. ``precision``: that of the model, or the one
    whose bounds apply; None if unknown.
    """

    measurement: MeasurementGraph
    built: BuiltModel
    target: Target
    reference: OnnxFile | StoredModel | None
    precision: str | None

    def report(self, done: Measurement, folder: Path | None = None) -> JsonObject:
        """Return what the command prints as JSON: what was measured, the results, and the files in *folder*."""
        raise NotImplementedError

    def head(self, done: Measurement, **named: JsonValue) -> JsonObject:
        """Return the first fields of every report; *named* follow the model."""
        return {
            "success": True,
            "model": str(self.built.model.path),
            **named,
            "measured": done.freshness,
            "made_at": done.made_at,
            "elapsed_seconds": round(done.elapsed_seconds, 3),
        }


def measuring_node(
    stage: Stage,
    config: JsonObject,
    inputs: Mapping[str, Source | None],
    target: Target,
    fingerprints: Fingerprints,
    packages: Iterable[str] = (),
) -> Node:
    """Return the node that measures on *target*, in the environment where that is installed.

    Its key has the provider's installed files, and the versions of *packages* and of the packages of *stage*. Slots
    without a source are skipped.

    Raises:
        UsageError: when the configuration names an invalid environment for *target*.
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
    """Return the graph of *nodes*, the measuring one first, with digests of all *sources*, without duplicates.

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
    """A measurement whose output files are written to *folder*.

    A stage that fails is in the result, not raised; *folder* is then unchanged.
    """

    reports_shared_as_run = True

    def __init__(
        self,
        planned: MeasurementGraph,
        store: Store,
        *,
        folder: Path | None = None,
        overwrite: bool = False,
    ) -> None:
        super().__init__(planned.graph, planned.sources, planned.scope)
        self._store = store
        self._folder = folder
        self._overwrite = overwrite

    def refuse(self) -> None:
        if self._folder is not None:  # before work that may take long
            refuse_file(self._folder)
            prepare_folder(self._folder)

    def finish(self, results: tuple[StageResult, ...], began: float) -> Measurement:
        records = [result.record for result in results if result.record is not None]
        if self._folder is not None and len(records) == len(results):
            files = sorted(file for record in records for file in record.files())
            read = self.graph.read_files
            OutputFile(self._folder, files[0].name, read, self._store, overwrite=self._overwrite).publish(files)
        return Measurement(results, time.monotonic() - began)

    def settle(self, done: Measurement, results: tuple[StageResult, ...]) -> Measurement:
        return replace(done, note=record_stats(None, results, self._store))


def carry_out(
    planned: MeasurementGraph,
    store: Store,
    options: BuildOptions,
    *,
    folder: Path | None = None,
    observer: Observer | None = None,
) -> Measurement:
    """Run the measurement unless it is cached, and write its files to *folder*.

    Stages run one at a time, so nothing else of this program runs during the measurement.

    Raises:
        UsageError: when a file that is not owned is in the way in *folder*, and *options* do not allow replacing it.
        StoreError: when the cache or *folder* cannot be used.
        KeyboardInterrupt: after child processes have been stopped.
    """
    job = MeasurementJob(planned, store, folder=folder, overwrite=options.overwrite)
    return Driver(store, options, observer).run_one(job)
