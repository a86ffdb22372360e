"""Builds carried out: their stages run, and what came of each is put into its output folder, and noted.

Several are carried out as one graph. Each keeps what it has alone, so that one that is asked for alone later finds all
up to date.
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
from winml_dag.engine.graph import Graph
from winml_dag.engine.plan import plan_graph
from winml_dag.errors import WinmlDagError
from winml_dag.pipeline.buildgraph import BuildGraph
from winml_dag.pipeline.buildresult import BuildResult, record_stats, result_of
from winml_dag.pipeline.commit import is_changing
from winml_dag.pipeline.layout import STAGE_FILE, needed_files, published_files
from winml_dag.pipeline.plan_cache import Planned, keep_finished
from winml_dag.pipeline.plan_text import whole
from winml_dag.pipeline.publish import materialise, prepare_folder, refuse_file, refuse_foreign
from winml_dag.pipeline.run import Driver, Ended, GraphJob
from winml_dag.pipeline.search import completed, round_of
from winml_dag.store.artifact import FileEntry
from winml_dag.store.store import Store

if TYPE_CHECKING:
    from winml_dag.engine.inplace import InPlace
    from winml_dag.engine.merge import Merged
    from winml_dag.engine.stage import Node
    from winml_dag.pipeline.userstages.folder import UserFolder


def plan(planned: BuildGraph, store: Store, *, rebuild: bool = False, explain: bool = False) -> BuildResult:
    """What :func:`build` would do; nothing is run and nothing written. *explain* adds to reasons what a build leaves
    out of them, because it takes looking through records.
    """
    started = time.monotonic()
    results = plan_graph(
        planned.graph, planned.sources, store, scope=planned.summary.scope, rebuild=rebuild, explain=explain
    )
    return result_of(planned, results, time.monotonic() - started)


def build(planned: BuildGraph, driver: Driver) -> BuildResult:
    """Bring the output folder of a build up to date, running only what is not already known.

    A stage that fails is in the result, not raised; then the output folder is as it was, and what stages of the
    recipe's own had finished is in its place.

    Raises:
        UsageError: when a file of somebody else's is in the way, before anything has run.
        StoreError: when the cache or the output folder cannot be used.
        KeyboardInterrupt: after children have been ended.
    """
    return driver.run_one(_BuildJob("", planned, driver))


class _BuildJob(GraphJob[BuildResult]):
    """A build, or the part of one that an edit can have reached."""

    def __init__(self, label: str, planned: BuildGraph, driver: Driver) -> None:
        super().__init__(label, planned.graph, {**planned.sources, **planned.given}, planned.summary.scope)
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
        # Where another build is at the folder, who owns what is asked again at the end.
        if not is_changing(folder):
            refuse_foreign(self._planned, self._store, overwrite=self._driver.options.overwrite)
        if self._planned.folder is not None:
            # Imported here: only stages of a recipe's own put files into its folder.
            from winml_dag.pipeline.userstages.folder import user_folder

            self._own = user_folder(self._planned, self._store)

    def begin(self, foreseen: Sequence[StageResult]) -> None:
        if self._own is not None:
            self._own.refuse_foreign(foreseen)
        if len(foreseen) == len(self.graph.nodes):
            return
        from winml_dag.pipeline.uptodate import touch

        prepare_folder(self._planned.summary.output_dir)
        if self._planned.current_plan is not None:
            touch(str(self._store.folder), self._planned.current_plan.entry)

    def needed_files(self, results: Sequence[StageResult]) -> Iterable[FileEntry]:
        if self._planned.summary.output_dir.exists():
            return ()
        return needed_files(self._planned, {result.node.id: result for result in results})

    def finish(self, results: tuple[StageResult, ...], began: float) -> BuildResult:
        """Put the files where their user finds them and note that, unless a stage failed."""
        planned, store, own, options = self._planned, self._store, self._own, self._driver.options
        finished = result_of(planned, results, time.monotonic() - began, others=planned.others)
        if any(result.status in (Status.FAILED, Status.SKIPPED) for result in results):
            kept = tuple(_with_refused(results, store))
            return result_of(planned, kept, finished.elapsed_seconds, others=planned.others)
        by_id = {result.node.id: result for result in results}
        checked_ns = time.time_ns()
        told = replace(planned, summary=completed(planned.summary, results))
        elapsed = time.monotonic() - began
        done = materialise(told, own, by_id, store, elapsed, link=options.link, overwrite=options.overwrite)
        keep_finished(planned, own, by_id, published_files(planned, by_id, store).files, store, checked_ns)
        return replace(finished, build=told.summary, materialised=done, elapsed_seconds=time.monotonic() - began)

    def settle(self, done: BuildResult, results: tuple[StageResult, ...]) -> BuildResult:
        note = record_stats(self._planned, results, self._store)
        return replace(done, cache_note=note, traffic=self._store.traffic() if self._store.has_remotes else None)

    def again(self) -> _BuildJob:
        return _BuildJob(self.label, whole(self._planned, self._store), self._driver)


# What a stage put out whose result a build refused: laid where its reader finds it, as the output folder stays what it
# was.


def _with_refused(results: Iterable[StageResult], store: Store) -> Iterator[StageResult]:
    """*results*, those that were refused with the file that says why."""
    for result in results:
        kept = _kept(result, store) if result.status is Status.FAILED and result.record is not None else None
        yield result if kept is None else replace(result, kept=kept)


def _kept(result: StageResult, store: Store) -> Path | None:
    """Beside the logs of failures. None where there is no such file, or no room for it."""
    assert result.record is not None
    name = STAGE_FILE.get(result.node.stage.name)
    entry = next((file for file in result.record.files() if file.name == name), None)
    if entry is None:
        return None
    kept = store.failures / f"{result.node.stage.name}-{result.record.cache_key[:16]}{Path(entry.name).suffix}"
    with suppress(OSError):
        store.failures.mkdir(parents=True, exist_ok=True)
        store.fetch_ahead((entry,))
        shutil.copyfile(store.blobs.path(entry.digest), kept)
        return kept
    return None


@dataclass(frozen=True)
class Outcome:
    """What became of a build among others. ``error``: why it was not carried out, or not put in place; a stage that
    failed is in ``result``. Neither is there of one that was not begun because another had failed.
    """

    label: str
    result: BuildResult | None = None
    error: WinmlDagError | None = None

    @property
    def failed(self) -> bool:
        return self.result is None or self.result.failed or self.stopped

    @property
    def stopped(self) -> bool:
        """Whether stages of it were kept from running because another build had failed."""
        if self.result is None:
            return self.error is None
        if self.result.failed:
            return False
        # One that nobody wanted has no result.
        return any(view.status is Status.SKIPPED and view.result is not None for view in self.result.stages)

    @property
    def changed(self) -> bool:
        """Whether anything ran or was put in place."""
        result = self.result
        return result is not None and (
            result.materialised.changed or any(view.status is Status.RAN for view in result.stages)
        )


@dataclass(frozen=True)
class Census:
    """How many stages several builds have: one by one, and as one graph, there also by the name of the stage."""

    builds: int
    apart: int
    by_stage: Mapping[str, int]

    @property
    def stages(self) -> int:
        return sum(self.by_stage.values())


def merged(planned: Sequence[Planned]) -> Merged:
    """The graph of all builds that have one; the ids in it are those of each build behind its label."""
    from winml_dag.engine.merge import Part, merge

    graphs = [(each.label, each.graph) for each in planned if isinstance(each.graph, BuildGraph)]
    return merge([Part(label, graph.graph, graph.sources) for label, graph in graphs])


def census(planned: Sequence[Planned]) -> Census:
    """How much work *planned* are together."""
    return census_of(merged(planned))


def census_of(together: Merged) -> Census:
    """How much work *together* is. Which stages turn out to have the same inputs is not known before; of the rounds of
    optimize and analyze only the first is counted, since most are like it.
    """
    firsts = {node.id: node.stage.name for node in first_rounds(together)}
    by_stage = Counter(firsts.values())
    apart = sum(node_id in firsts for ids in together.ids for node_id in ids.values())
    return Census(len(together.ids), apart, dict(sorted(by_stage.items())))


def first_rounds(together: Merged) -> Iterator[Node]:
    """The nodes of *together* without further rounds of optimize and analyze."""
    return (node for node in together.graph.nodes if (round_of(node) or ("", 0))[1] == 0)


def build_all(
    planned: Sequence[Planned], driver: Driver, done: Callable[[Outcome], None] = lambda _: None
) -> tuple[Outcome, ...]:
    """Bring the output folders of all *planned*, whose labels differ, up to date; *done* is told of each at its end.

    A build that fails keeps no other from going on, as long as the options of *driver* say so.

    Raises:
        KeyboardInterrupt: after children have been ended; what was put in place by then stays.
    """
    jobs = [
        _BuildJob(each.label, each.graph, driver)
        if isinstance(each.graph, BuildGraph)
        else _RefusedJob(each.label, each.graph)
        for each in planned
    ]
    ended = driver.run(jobs, lambda label, became: done(_outcome(label, became)))
    return tuple(_outcome(each.label, became) for each, became in zip(planned, ended, strict=True))


class _RefusedJob(GraphJob[BuildResult]):
    """A build that could not be planned: it fails like one that could not be placed."""

    def __init__(self, label: str, error: WinmlDagError) -> None:
        super().__init__(label, Graph.of([], []), {}, "")
        self._error = error

    def refuse(self) -> None:
        raise self._error


def _outcome(label: str, became: Ended[BuildResult]) -> Outcome:
    if isinstance(became, WinmlDagError):
        return Outcome(label, error=became)
    return Outcome(label, became)
