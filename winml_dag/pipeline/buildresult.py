"""What became of a build: its line of stages, and what was put into its folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from winml_dag.engine.events import StageResult, Status
from winml_dag.errors import UsageError
from winml_dag.pipeline.buildgraph import BuildGraph, BuildSummary
from winml_dag.pipeline.outputs import Materialised


@dataclass(frozen=True)
class BuildResult:
    """What became of a build. ``stages`` has one entry for every place in the line, those left out included;
    ``cache_note`` is a sentence when the cache was kept to its limit, ``others`` the number of stages that were seen to
    be up to date at a glance: they have no entry.
    """

    build: BuildSummary
    stages: tuple[StageView, ...]
    elapsed_seconds: float
    materialised: Materialised = field(default_factory=Materialised)
    cache_note: str = ""
    others: int = 0

    @property
    def final_artifact(self) -> Path | None:
        """The model to ship; None when the build did not get that far, or is of stages without a model."""
        return None if self.failed or self.build.origin == "stages" else self.build.model

    @property
    def failed(self) -> bool:
        return any(view.status is Status.FAILED for view in self.stages)


@dataclass(frozen=True)
class StageView:
    """One place in the line of a build as reports show it; ``result`` is None for a stage that is left out."""

    id: str
    stage: str
    status: Status
    reason: str
    result: StageResult | None = None

    @property
    def cache_key(self) -> str | None:
        return None if self.result is None else self.result.cache_key

    @property
    def elapsed_seconds(self) -> float | None:
        return 0.0 if self.result is None else self.result.elapsed_seconds


def views(planned: BuildGraph, results: tuple[StageResult, ...]) -> Iterator[StageView]:
    """The line of a build with what became of each place."""
    by_id = {result.node.id: result for result in results}
    for step in planned.steps:
        if step.skipped is not None:
            yield StageView(step.id, step.stage, Status.SKIPPED, step.skipped)
        else:
            result = by_id[step.id]
            yield StageView(step.id, step.stage, result.status, str(result.reason), result)


def views_named(line: Sequence[StageView], name: str) -> list[StageView]:
    """The places in the *line* that *name* means: an id, or the name of a stage. Raises UsageError if there is none."""
    found = [view for view in line if name in (view.id, view.stage)]
    if not found:
        known = ", ".join(view.id for view in line)
        raise UsageError(f"This build has no stage {name!r}.", advice=f"It has: {known}.")
    return found
