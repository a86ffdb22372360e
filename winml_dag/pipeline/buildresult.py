"""The result of a build, its line of stages and the files written to its folder, and that of a command for one stage.

Also here: recording a finished build in the cache's statistics, and then trimming the cache to its limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonObject
from winml_dag.engine.events import StageResult, Status
from winml_dag.errors import UsageError, WinmlDagError
from winml_dag.pipeline.buildgraph import BuildGraph, BuildSummary
from winml_dag.pipeline.search import folded
from winml_dag.store.cache_folder import limit_text, log_build
from winml_dag.store.commit import PublishedChange
from winml_dag.store.records import Record
from winml_dag.store.store import Store

if TYPE_CHECKING:
    from winml_dag.pipeline.stageresults import QuantizeResult
    from winml_dag.stages.quality import Quality
    from winml_dag.store.usage import Traffic


@dataclass(frozen=True)
class BuildResult:
    """The result of a build.

    Attributes:
        stages: one entry for each step of the line, including skipped ones.
        like_before: rounds of optimize and analyze that repeated an earlier result, or that may follow.
        cache_note: a sentence if the cache was trimmed to its limit.
        others: the number of stages that a quick check found up to date; they have no entry.
        traffic: the transfers from and to remotes, if there are any.
    """

    build: BuildSummary
    stages: tuple[StageView, ...]
    elapsed_seconds: float
    published: PublishedChange = field(default_factory=PublishedChange)
    cache_note: str = ""
    others: int = 0
    like_before: tuple[StageView, ...] = ()
    traffic: Traffic | None = None

    @property
    def final_artifact(self) -> Path | None:
        """The model to ship; None if the build failed, has no model, or has one model per component."""
        return None if self.failed else self.build.final_artifact

    @property
    def results(self) -> list[StageResult]:
        """The results of all reported stages that are not skipped by the recipe."""
        return [view.result for view in self.stages if view.result is not None]

    @property
    def quantization(self) -> QuantizeResult | None:
        """The result of quantization; None if nothing is quantized, and for several components, which have one each."""
        # Imported here: an up-to-date build does not report it.
        from winml_dag.pipeline.stageresults import quantize_result

        if len(self.build.components) > 1:
            return None
        return quantize_result(self.build, self.results, self.elapsed_seconds)

    @property
    def components(self) -> Mapping[str, BuildResult]:
        """The result of each component of a composite model, by its name; empty for any other model."""
        return {name: self._component(name) for name in self.build.components}

    def _component(self, name: str) -> BuildResult:
        stages = tuple(view for view in self.stages if view.id.startswith(f"{name}."))
        like_before = tuple(view for view in self.like_before if view.id.startswith(f"{name}."))
        others = tuple(f"{other}: " for other in self.build.components if other != name)
        notices = tuple(text for text in self.build.notices if not text.startswith(others))
        build = replace(self.build.part(name), notices=notices)
        return replace(self, build=build, stages=stages, like_before=like_before)

    @property
    def failed(self) -> bool:
        return any(view.status is Status.FAILED for view in self.stages)

    @property
    def stopped(self) -> bool:
        """Whether some of its stages did not run because another build had failed."""
        # A step that is skipped by the recipe has no result.
        return not self.failed and any(result.status is Status.SKIPPED for result in self.results)

    @property
    def changed(self) -> bool:
        """Whether anything ran or was published."""
        return self.published.changed or any(view.status is Status.RAN for view in self.stages)


@dataclass(frozen=True)
class StageView:
    """One step in the line of a build as reports show it; ``result`` is None for a skipped stage."""

    id: str
    stage: str
    status: Status
    reason: str
    result: StageResult | None = None

    @classmethod
    def of(cls, result: StageResult) -> StageView:
        return cls(result.node.id, result.node.stage.name, result.status, str(result.reason), result)

    @property
    def cache_key(self) -> str | None:
        return None if self.result is None else self.result.cache_key

    @property
    def metrics(self) -> JsonObject | None:
        return None if self.result is None or self.result.record is None else self.result.record.metrics

    @property
    def elapsed_seconds(self) -> float | None:
        return 0.0 if self.result is None else self.result.elapsed_seconds


def result_of(
    planned: BuildGraph, results: tuple[StageResult, ...], elapsed_seconds: float, *, others: int = 0
) -> BuildResult:
    """Return the result of a build from *results* of its nodes."""
    parted = folded(results)
    line = tuple(_views(planned, parted.reported))
    like_before = tuple(map(StageView.of, parted.like_before))
    return BuildResult(planned.summary, line, elapsed_seconds, others=others, like_before=like_before)


def _views(planned: BuildGraph, results: Sequence[StageResult]) -> Iterator[StageView]:
    """Yield the line of a build: each skipped step, and each step with a result in *results*."""
    by_id = {result.node.id: result for result in results}
    for step in planned.steps:
        if step.skipped is not None:
            yield StageView(step.id, step.stage, Status.SKIPPED, step.skipped)
        elif step.id in by_id:
            yield StageView.of(by_id[step.id])


def views_named(result: BuildResult, name: str) -> list[StageView]:
    """Return the steps that *name* selects: an id, the name of a stage, or that of a component.

    Raises:
        UsageError: if there is none.
    """
    found = [view for view in result.stages if name in (view.id, view.stage, view.id.partition(".")[0])]
    found = found or [view for view in result.like_before if name == view.id]
    if not found:
        known = ", ".join(view.id for view in result.stages)
        raise UsageError(f"This build has no stage {name!r}.", advice=f"It has: {known}.")
    return found


@dataclass(frozen=True)
class CommandResult:
    """The result of a command.

    Attributes:
        success: whether it succeeded.
        output_path: the file that it made; None when it failed, and for validate, which makes none.
        also_paths: further models that share a binary with it.
        total_time_seconds: the duration of this whole call.
        elapsed_seconds: the duration of the command's stage when it ran.
        cached: whether the result of its stage comes from the cache.
        metrics: the metrics of its stage.
        validation: what validate measured on the result; None when that was not requested.
        errors: why it failed, one sentence each.
        warnings: what to know before relying on the result, one sentence each.
    """

    success: bool
    output_path: Path | None
    total_time_seconds: float
    elapsed_seconds: float
    cached: bool
    metrics: JsonObject
    validation: JsonObject | None
    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    also_paths: tuple[Path, ...] = ()

    @property
    def quality(self) -> Quality | None:
        """How far the result is from its source model; None if nothing was compared."""
        # Imported here: builds print it from the records of their stages.
        from winml_dag.stages.quality import Quality

        return None if self.validation is None else Quality.from_json(self.validation.get("quality"))

    def to_json(self) -> JsonObject:
        value = asdict(self)
        value["output_path"] = None if self.output_path is None else str(self.output_path)
        value["also_paths"] = [str(path) for path in self.also_paths]
        return value


def command_result(result: BuildResult, command: str) -> CommandResult:
    """Return the result of *command*, whose stage has the same name, from *result*."""
    main = main_view(result, command)
    validation = next((view for view in result.stages if view.stage == "validate"), None)
    return CommandResult(
        success=not result.failed,
        output_path=result.final_artifact,
        total_time_seconds=result.elapsed_seconds,
        elapsed_seconds=0.0
        if main.result is None or main.result.record is None
        else main.result.record.elapsed_seconds,
        cached=main.status is Status.REUSED,
        metrics=main.metrics or {},
        validation=None if validation is None else validation.metrics,
        errors=tuple(f"{stage.node.id}: {stage.error}" for stage in result.results if stage.error),
        warnings=result.build.notices,
        also_paths=() if result.failed else tuple(result.build.output_dir / name for name in result.build.also),
    )


def main_view(result: BuildResult, command: str) -> StageView:
    """Return the main stage of *command*; if the model was optimized instead of compiled, that is optimize."""
    names = (command, "optimize", "finalize")
    return next(view for name in names for view in result.stages if view.stage == name and view.result is not None)


def record_stats(planned: BuildGraph | None, results: Iterable[StageResult], store: Store) -> str:
    """Record what was reused and what ran; if anything was stored, remove what exceeds the cache's limit.

    *planned*: the graph of a build, which may omit stages that were up to date. Returns a sentence if anything was
    removed, or could not be, which does not fail the build.
    """
    # By key: several stages may share one record, such as rounds of optimize and analyze that add nothing.
    found: dict[str, Record] = {}
    made: dict[str, Record] = {}
    for result in results:
        if result.record is not None:
            (made if result.status is Status.RAN else found)[result.record.cache_key] = result.record
    fetched = store.take_fetched()
    ran, reused = list(made.values()), [record for key, record in found.items() if key not in made]
    log_build(
        store.folder,
        reused=len(reused) + (0 if planned is None else planned.others),
        ran=len(ran),
        seconds_saved=_seconds(reused) + _seconds_of_others(planned, [*reused, *ran]),
        stored_bytes=fetched + sum(_size(record) for record in ran),
    )
    return _kept_to_limit(store) if ran or fetched else ""


def _seconds(records: Iterable[Record]) -> float:
    return sum(record.elapsed_seconds for record in records)


def _seconds_of_others(planned: BuildGraph | None, records: Iterable[Record]) -> float:
    """Return the seconds of stages that this part of a build omits: the recorded total minus those of *records*."""
    if planned is None or not planned.others or planned.current_plan is None:
        return 0.0
    return max(0.0, planned.current_plan.entry.header.seconds - _seconds(records))


def _size(record: Record) -> int:
    return sum(file.size for file in record.files()) + (0 if record.log is None else record.log.size)


def _kept_to_limit(store: Store) -> str:
    if not (limit := limit_text(store.folder)):
        return ""
    # Imported here: most caches have no limit.
    from winml_dag.store.quantities import counted, size_text
    from winml_dag.store.usage import keep_to_limit

    try:
        done = keep_to_limit(store)
    except WinmlDagError as error:
        return f"The cache could not be kept to its limit: {error}"
    if done is None:
        return ""
    return (
        f"The cache was above its limit of {limit}, so {counted(done.records, 'record')} and "
        f"{counted(done.blobs, 'blob')}, the least recently used, were removed, {size_text(done.freed_bytes)}; "
        f"{size_text(done.left_bytes)} are left."
    )
