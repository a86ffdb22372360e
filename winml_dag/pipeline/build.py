"""Run builds, or only say what would run: run their stages, write the results to the output folders, and record them.

Several builds run as one graph. Each keeps its own records, so a later build of only one of them is up to date.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.engine.events import StageResult, Status
from winml_dag.engine.graph import Merged, Part, merge
from winml_dag.engine.plan import plan_graph, prefetch, remembered_name
from winml_dag.errors import WinmlDagError
from winml_dag.file_reading import LatestReads, reads_logged
from winml_dag.pipeline.buildgraph import BuildGraph
from winml_dag.pipeline.buildresult import BuildResult, StageView, record_stats, result_of
from winml_dag.pipeline.layout import FinishedBuild
from winml_dag.pipeline.plan_cache import Planned, keep_finished
from winml_dag.pipeline.plan_text import whole
from winml_dag.pipeline.publish import prepare_folder, publish, refuse_file, refuse_foreign
from winml_dag.pipeline.run import Driver, Ended, GraphJob
from winml_dag.pipeline.search import completed, round_of
from winml_dag.store.artifact import FileEntry
from winml_dag.store.commit import is_changing
from winml_dag.store.store import Store

if TYPE_CHECKING:
    from winml_dag.engine.inplace import InPlace
    from winml_dag.engine.resources import Capacity
    from winml_dag.engine.stage import Node
    from winml_dag.pipeline.userstages.folder import UserFolder


def plan(planned: BuildGraph, store: Store, *, rebuild: bool = False, explain: bool = False) -> BuildResult:
    """Return what :func:`build` would do, without running or writing anything.

    *explain* adds details to reasons that a build skips, because they need a search through records.
    """
    started = time.monotonic()
    results = plan_graph(
        planned.graph, planned.sources, store, scope=planned.summary.scope, rebuild=rebuild, explain=explain
    )
    return result_of(planned, results, time.monotonic() - started)


def build(planned: BuildGraph, driver: Driver) -> BuildResult:
    """Bring the output folder of a build up to date, running only stages that are not cached.

    A stage that fails is in the result, not raised. The output folder is then unchanged, but outputs of the recipe's
    own stages that finished are published.

    Raises:
        UsageError: when a file that is not owned is in the way, before anything runs.
        StoreError: when the cache or the output folder cannot be used.
        KeyboardInterrupt: after child processes have been stopped.
    """
    return driver.run_one(_BuildJob(planned, driver))


class _BuildJob(GraphJob[BuildResult]):
    """A build, or the part of one that an edit can affect."""

    def __init__(self, planned: BuildGraph, driver: Driver) -> None:
        super().__init__(planned.graph, {**planned.sources, **planned.given}, planned.summary.scope)
        self._planned = planned
        self._driver = driver
        self._store = driver.store
        self._own: UserFolder | None = None

    @property
    def in_place(self) -> InPlace | None:
        return None if self._own is None else self._own.in_place

    def refuse(self) -> None:
        folder = self._planned.summary.output_dir
        refuse_file(folder)
        # If another build is changing the folder, ownership is checked again at the end.
        if not is_changing(folder):
            refuse_foreign(self._planned, self._store, overwrite=self._driver.options.overwrite)
        if self._planned.folder is not None:
            # Imported here: only stages of a recipe's own put files into its folder.
            from winml_dag.pipeline.userstages.folder import user_folder

            self._own = user_folder(self._planned, self._store)

    def begin(self, planned_results: Sequence[StageResult]) -> None:
        if self._own is not None:
            self._own.refuse_foreign(planned_results)
        if len(planned_results) == len(self.graph.nodes):
            return
        from winml_dag.pipeline.uptodate import touch

        prepare_folder(self._planned.summary.output_dir)
        if self._planned.current_plan is not None:
            touch(str(self._store.folder), self._planned.current_plan.entry)

    def needed_files(self, results: Sequence[StageResult]) -> Iterable[FileEntry]:
        if self._planned.summary.output_dir.exists():
            return ()
        return FinishedBuild(self._planned, {result.node.id: result for result in results}, self._store).needed_files()

    def finish(self, results: tuple[StageResult, ...], began: float) -> BuildResult:
        """Publish the files and record that, unless a stage failed."""
        planned, store, own, options = self._planned, self._store, self._own, self._driver.options
        finished = result_of(planned, results, time.monotonic() - began, others=planned.others)
        if any(result.status in (Status.FAILED, Status.SKIPPED) for result in results):
            kept = tuple(_with_kept(result, store) for result in results)
            return result_of(planned, kept, finished.elapsed_seconds, others=planned.others)
        checked_ns, confirmed = time.time_ns(), LatestReads()
        done = FinishedBuild(
            replace(planned, summary=completed(planned.summary, results)),
            {result.node.id: result for result in results},
            store,
            time.monotonic() - began,
        )
        with reads_logged(confirmed):
            change = publish(done, own, link=options.link, overwrite=options.overwrite)
        keep_finished(done, own, checked_ns, confirmed)
        return replace(finished, build=done.summary, published=change, elapsed_seconds=time.monotonic() - began)

    def settle(self, done: BuildResult, results: tuple[StageResult, ...]) -> BuildResult:
        note = record_stats(self._planned, results, self._store)
        return replace(done, cache_note=note, traffic=self._store.traffic() if self._store.has_remotes else None)

    def again(self) -> _BuildJob:
        return _BuildJob(whole(self._planned, self._store), self._driver)


def _with_kept(result: StageResult, store: Store) -> StageResult:
    """Return *result*, for one that the build rejected with the path of a copy of the file that explains why.

    The copy is next to the failure logs, since the output folder does not change. There is none if the stage publishes
    no such file, or without disk space for it.
    """
    if result.status is not Status.FAILED or result.record is None:
        return result
    name = next(iter(result.node.stage.published.values()), None)
    entry = next((file for file in result.record.files() if file.name == name), None)
    if entry is not None:
        kept = store.failures / f"{result.node.stage.name}-{result.record.cache_key[:16]}{Path(entry.name).suffix}"
        with suppress(OSError):
            store.failures.mkdir(parents=True, exist_ok=True)
            store.fetch_ahead((entry,))
            shutil.copyfile(store.blobs.path(entry.digest), kept)
            return replace(result, kept=kept)
    return result


@dataclass(frozen=True)
class StageCounts:
    """How many stages several builds have: summed over separate builds, and by stage name in the merged graph."""

    builds: int
    apart: int
    by_stage: Mapping[str, int]

    @property
    def stages(self) -> int:
        return sum(self.by_stage.values())


def merged(graphs: Mapping[str, BuildGraph]) -> Merged:
    """Return the merged graph of *graphs*, by label, which prefixes the ids of their nodes."""
    return merge([Part(label, graph.graph, graph.sources) for label, graph in graphs.items()])


def count_stages(together: Merged) -> StageCounts:
    """Return the number of stages of *together*.

    Which stages turn out to have equal inputs is not known in advance. Only the first round of optimize and analyze
    counts, since most rounds repeat it.
    """
    firsts = {node.id: node.stage.name for node in first_rounds(together)}
    by_stage = Counter(firsts.values())
    apart = sum(node_id in firsts for ids in together.ids for node_id in ids.values())
    return StageCounts(len(together.ids), apart, dict(sorted(by_stage.items())))


def first_rounds(together: Merged) -> Iterator[Node]:
    """Yield the nodes of *together* without later rounds of optimize and analyze."""
    return (node for node in together.graph.nodes if (round_of(node) or ("", 0))[1] == 0)


def build_all(
    planned: Planned, driver: Driver, done: Callable[[str, Ended[BuildResult]], None] = lambda *_: None
) -> dict[str, Ended[BuildResult]]:
    """Bring the output folders of all *planned* up to date; *done* is called with each label and outcome.

    A stage that fails is in the result. One failure does not affect the others if the options of *driver* say so.

    Raises:
        KeyboardInterrupt: after child processes have been stopped; results published by then stay.
    """
    jobs = {
        label: _BuildJob(graph, driver) if isinstance(graph, BuildGraph) else graph for label, graph in planned.items()
    }
    return driver.run(jobs, done)


@dataclass(frozen=True)
class DryRun:
    """The result of a dry run.

    Attributes:
        results: those of builds that can be planned, by label; ``errors``: why others cannot.
        statuses: the number of stages of the merged graph by status.
        seconds: the estimated duration; ``never_timed``: the number of stages to run for which no similar record
            exists.
    """

    results: Mapping[str, BuildResult]
    errors: Mapping[str, WinmlDagError]
    counts: StageCounts
    statuses: Mapping[Status, int]
    seconds: float
    never_timed: int

    @property
    def to_run(self) -> int:
        return self.statuses.get(Status.RAN, 0)


def dry_run(planned: Planned, store: Store, capacity: Capacity, *, rebuild: bool) -> DryRun:
    """Dry-run *planned* with *capacity*. Nothing runs or is written."""
    graphs = {label: graph for label, graph in planned.items() if isinstance(graph, BuildGraph)}
    common = merged(graphs)
    if not rebuild:
        prefetch(common.graph, common.sources, store)
    results = {label: plan(graph, store, rebuild=rebuild) for label, graph in graphs.items()}
    views = _views(common, tuple(results.values()))
    firsts = [views[node.id] for node in first_rounds(common) if node.id in views]
    to_run = frozenset(node_id for node_id, view in views.items() if view.status is Status.RAN)
    return DryRun(
        results=results,
        errors={label: error for label, error in planned.items() if isinstance(error, WinmlDagError)},
        counts=count_stages(common),
        statuses=Counter(view.status for view in firsts),
        seconds=_seconds(common, tuple(graphs.values()), to_run, store, capacity) if to_run else 0.0,
        never_timed=_never_timed(firsts, store),
    )


def _views(common: Merged, results: Sequence[BuildResult]) -> dict[str, StageView]:
    """Return the status of each stage of the merged graph, from the first build that has it."""
    found: dict[str, StageView] = {}
    for result, ids in zip(results, common.ids, strict=True):
        for view in (*result.stages, *result.like_before):
            if view.result is not None:
                found.setdefault(ids[view.id], view)
    return found


def _seconds(
    common: Merged, graphs: Sequence[BuildGraph], to_run: frozenset[str], store: Store, capacity: Capacity
) -> float:
    """Return the estimated time to run the nodes *to_run*."""
    from winml_dag.engine.eta import CostModel, expected_work, seconds_left

    names = {
        node_id: remembered_name(graphs[place].summary.scope, graphs[place].graph.node(own))
        for node_id, ((place, own), *_) in common.readers().items()
    }
    work = expected_work(common.graph, names, store.latest(names.values()), CostModel(store, capacity))
    return seconds_left(common.graph, {node_id: work.seconds[node_id] for node_id in to_run}, capacity.slots)


def _never_timed(views: Sequence[StageView], store: Store) -> int:
    """Return how many of the *views* to run have no recorded duration, nor has any other run of their stage."""
    unknown = Counter(view.stage for view in views if view.status is Status.RAN and view.elapsed_seconds is None)
    return sum(number for stage, number in unknown.items() if not store.records_of(stage, 1))
