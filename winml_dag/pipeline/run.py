"""Bring one or several graphs up to date: reuse cached results, run the rest, publish each graph as soon as it is done.

All builds and measurements run here. Stages that several graphs share run once. Each graph keeps its own folder,
records by name, and result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from winml_dag import TOOL_ID
from winml_dag.engine.events import Observer, PassingOn, ReadProgress, Reason, Silent, StageResult, Status
from winml_dag.engine.graph import Graph, Merged, Part, merge
from winml_dag.engine.plan import dry_run, prefetch, remembered_name
from winml_dag.engine.stage import FileAccess
from winml_dag.errors import StoreError, WinmlDagError
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.blobs import BlobDamaged
from winml_dag.store.store import Store

if TYPE_CHECKING:
    from winml_dag.engine.eta import Eta
    from winml_dag.engine.execute import Executor
    from winml_dag.engine.inplace import InPlace
    from winml_dag.engine.stage import Node
    from winml_dag.pipeline.cluster.cluster import Cluster
    from winml_dag.pipeline.request import Request

T = TypeVar("T")

# If a blob is damaged again after its stage has rerun, the owner has to act; another try does not help.
_TRIES = 3
# What most built-in stages import, for one process that all workers are forks of. Not onnxruntime, which starts a
# thread. By name: a build of a recipe's own stages imports no declarations.
_IMPORTED_BY_MOST = (
    "winml_dag.stages.normalize.rewrite",
    "winml_dag.stages.analyze.analysis",
    "winml_dag.stages.validate",
    "winml_dag.stages.finalize",
)
# Tokenizers come with torch, and take 4 s of a processor to import: export, and each stage that reads texts.
_BY_PACKAGE = ("transformers", ("transformers.models.auto.tokenization_auto",))


@dataclass(frozen=True)
class BuildOptions:
    """How to run; none of this changes the result.

    Attributes:
        access: how the recipe's own stages access files.
        link: publish read-only hard links into the cache instead of copies.
        overwrite: published files may replace files that are not owned.
        memory_bytes: the limit for stages that run at the same time; None: the machine's memory minus a reserve.
        cluster: other machines to run stages on.
    """

    jobs: int = 1
    keep_going: bool = False
    rebuild: bool = False
    stage_timeout_seconds: float | None = None
    link: bool = False
    access: FileAccess = FileAccess.FREE
    overwrite: bool = False
    memory_bytes: int | None = None
    cluster: Cluster | None = None


class GraphJob(Generic[T]):
    """A graph to bring up to date, and what to do with its results.

    Attributes:
        known: its sources by content.
        scope: the name that its results are recorded under.
        reports_shared_as_run: whether a stage that ran once for several jobs is reported as run by each, not only by
            the first.
    """

    reports_shared_as_run = False

    def __init__(self, graph: Graph, known: Mapping[str, Artifact], scope: str) -> None:
        self.graph = graph
        self.known = known
        self.scope = scope

    @property
    def in_place(self) -> InPlace | None:
        """How its stages work in a folder of the user's. Such a graph runs by itself: one run has one folder."""
        return None

    def refuse(self) -> None:
        """Raise WinmlDagError if it is already clear that the result cannot be published."""

    def begin(self, planned_results: Sequence[StageResult]) -> None:
        """Prepare the run; *planned_results* are reused, up to the first stage to run. Raises as :meth:`refuse`."""

    def needed_files(self, _results: Sequence[StageResult]) -> Iterable[FileEntry]:
        """Return files worth fetching early, together with those of other jobs, if the whole graph is reused."""
        return ()

    def finish(self, results: tuple[StageResult, ...], began: float) -> T:
        """Publish the results and return the job's result. *began*: from ``time.monotonic``.

        Raises:
            BlobDamaged: when a file cannot be fetched; its stage has to run again.
            WinmlDagError: when it cannot be published.
        """
        raise NotImplementedError

    def settle(self, done: T, _results: tuple[StageResult, ...]) -> T:
        """Return *done* completed with final information, when this run needs nothing in the cache any more."""
        return done

    def again(self) -> GraphJob[T]:
        """Return the job to run after a blob was found damaged."""
        return self


# The outcome of a job; None if it was not started because another had failed.
Ended: TypeAlias = "T | WinmlDagError | None"
# By label, which prefixes node ids; a single job may have an empty one.
Jobs: TypeAlias = "Mapping[str, GraphJob[T] | WinmlDagError]"


@dataclass(frozen=True)
class Driver:
    """Runs jobs. ``on_eta`` is called with an estimate of the remaining time whenever something runs."""

    store: Store
    options: BuildOptions = BuildOptions()
    observer: Observer | None = None
    executor: Executor | None = None
    on_eta: Callable[[Eta], None] | None = None

    @contextmanager
    def while_planning(self, requests: Iterable[Request]) -> Iterator[Driver]:
        """Begin to import what workers need, and yield the driver for *requests*, which are planned in the block.

        Planning a build after an edit takes as long as these imports: with both at once it takes 0.8 of the time.
        """
        if self.executor is not None or all(request.may_have_own_stages for request in requests):
            yield self
            return
        from winml_dag.engine.execute import LocalExecutor  # here, as below

        with closing(LocalExecutor(_IMPORTED_BY_MOST, _BY_PACKAGE)) as executor:
            executor.start_ahead()
            yield replace(self, executor=executor)

    def run(
        self, jobs: Jobs[T], done: Callable[[str, Ended[T]], None] = lambda _label, _ended: None
    ) -> dict[str, Ended[T]]:
        """Return the outcome of each of *jobs*, by its label; *done* is called with each label and outcome.

        An error among *jobs* is that of a job that could not be planned. One failure does not affect the other jobs if
        the options say so.

        Raises:
            KeyboardInterrupt: after child processes have been stopped; results published by then stay.
        """
        return _Run(self, jobs, done).run()

    def run_one(self, job: GraphJob[T]) -> T:
        """Return the result of *job*, or raise its error."""
        ended = self.run({"": job})[""]
        if isinstance(ended, WinmlDagError):
            raise ended
        assert ended is not None
        return ended


@dataclass
class _Running(Generic[T]):
    """A job in progress. ``waits``: nodes of the merged graph without a result."""

    label: str
    job: GraphJob[T]
    began: float
    planned_results: tuple[StageResult, ...]
    waits: set[str] = field(default_factory=set)
    results: dict[str, StageResult] = field(default_factory=dict)


class _Run(Generic[T]):
    """One run of several jobs."""

    def __init__(self, driver: Driver, jobs: Jobs[T], done: Callable[[str, Ended[T]], None]) -> None:
        self._driver = driver
        self._store = driver.store
        self._options = driver.options
        self._observer = driver.observer or Silent()
        self._jobs = {label: job for label, job in jobs.items() if not isinstance(job, WinmlDagError)}
        self._done = done
        self._ended: dict[str, Ended[T]] = dict.fromkeys(jobs)
        self._has_failed = False
        # Jobs to settle, and those that met a damaged blob.
        self._finished: dict[str, tuple[T, tuple[StageResult, ...]]] = {}
        self._damaged: list[str] = []
        for label, error in jobs.items():
            if isinstance(error, WinmlDagError):
                self._end(label, error)

    def run(self) -> dict[str, Ended[T]]:
        rebuild = self._options.rebuild
        in_place = [label for label, job in self._jobs.items() if any(node.folder for node in job.graph.nodes)]
        self._run_together([label for label in self._jobs if label not in in_place], rebuild=rebuild)
        for label in in_place:
            self._run_alone(label, rebuild=rebuild)
        for _ in range(1, _TRIES):
            damaged, self._damaged = self._damaged, []
            for label in damaged:
                # The blob is in quarantine now, so its stage runs again, possibly only in the whole graph.
                self._jobs[label] = self._jobs[label].again()
                self._run_alone(label, rebuild=False)
        for label in self._damaged:
            advice = "Check the disk, or choose another cache folder with --cache-dir."
            self._end(label, StoreError("What was made is damaged in the cache again and again.", advice=advice))
        # Also after an error: stages that ran have results, and only this run offers them for upload.
        self._store.settle()
        # After the run: during it, trimming the cache could not remove anything that the run made.
        for label, (value, of_job) in self._finished.items():
            self._ended[label] = self._jobs[label].settle(value, of_job)
        return self._ended

    def _run_alone(self, label: str, *, rebuild: bool) -> None:
        if self._has_failed and not self._options.keep_going:
            self._end(label, None)
        else:
            self._run_together([label], rebuild=rebuild)

    def _run_together(self, labels: Sequence[str], *, rebuild: bool) -> None:
        """Bring the jobs called *labels* up to date, as one graph if several have something to run."""
        if self._store.has_remotes and not rebuild and labels:
            whole = _merged({label: self._jobs[label] for label in labels})
            prefetch(whole.graph, whole.sources, self._store)
        reused, running = list[_Running[T]](), list[_Running[T]]()
        for label in labels:
            job, began = self._jobs[label], time.monotonic()
            try:
                job.refuse()
                planned_results = dry_run(job.graph, job.known, self._store, scope=job.scope, rebuild=rebuild)
                job.begin(planned_results)
            except WinmlDagError as error:
                self._end(label, error)
                continue
            is_reused = len(planned_results) == len(job.graph.nodes)
            (reused if is_reused else running).append(_Running(label, job, began, planned_results))
        if self._store.has_remotes and len(labels) > 1:
            needed = [one.job.needed_files(one.planned_results) for one in reused]
            self._store.fetch_ahead([file for files in needed for file in files])
        for one in reused:
            _reuse_all(one, self._store, self._observer)
            self._finish(one)
        if running:
            try:
                self._execute(running, rebuild=rebuild)
            except BlobDamaged:  # of an artifact that a stage outside of a part has output
                self._damaged += (one.label for one in running)
            except WinmlDagError as error:
                if len(running) > 1:
                    raise
                self._finished.pop(running[0].label, None)
                self._end(running[0].label, error)

    def _finish(self, one: _Running[T]) -> None:
        results = tuple(one.results[node.id] for node in one.job.graph.nodes)
        try:
            value = one.job.finish(results, one.began)
        except BlobDamaged:
            self._damaged.append(one.label)
        except WinmlDagError as error:
            self._end(one.label, error)
        else:
            self._finished[one.label] = (value, results)
            self._end(one.label, value, results)

    def _execute(self, running: Sequence[_Running[T]], *, rebuild: bool) -> None:
        """Run the merged graph of *running*, and finish each of them as soon as its last stage has a result.

        With a cluster, stages that can run on other machines do.

        Raises:
            BlobDamaged: for an artifact that a stage outside of this graph output.
            KeyboardInterrupt: after everything running has been stopped.
        """
        # Imported here: code for processes and threads takes 30 ms to import, and most builds have nothing to run.
        from winml_dag.engine.execute import LocalExecutor
        from winml_dag.engine.run import LocalRuns, Runner
        from winml_dag.engine.schedule import RunOptions, Scheduler

        options, store, timeout = self._options, self._store, self._options.stage_timeout_seconds
        common, (first, *others) = _merged({one.label: one.job for one in running}), running
        for one, ids in zip(running, common.ids, strict=True):
            one.waits = set(ids.values())
        remembered = {
            node_id: [remembered_name(running[at].job.scope, running[at].job.graph.node(own)) for at, own in readers]
            for node_id, readers in common.readers().items()
        }
        # What this run keeps in the cache is kept until the files are published.
        with store.scratch.open() as scratch:
            runner = Runner(
                common.graph,
                store,
                self._driver.executor or LocalExecutor(_IMPORTED_BY_MOST, _BY_PACKAGE),
                store.fingerprints,
                scratch=scratch,
                failures=store.failures,
                made_by=TOOL_ID,
                rebuild=rebuild,
                timeout_seconds=timeout,
                in_place=first.job.in_place,
                access=options.access,
            )
            if options.cluster is None:
                runs, admission = LocalRuns(runner, options.jobs), None
            else:
                cluster, graph = options.cluster, common.graph
                runs = cluster.runs(runner, graph, store, scratch, timeout_seconds=timeout, rebuild=rebuild)
                admission = cluster.admission
            run = RunOptions(
                "", options.jobs, options.keep_going, rebuild, remembered, common.order, options.memory_bytes
            )
            Scheduler(
                common.graph,
                common.sources,
                store,
                runs,
                run,
                _Shared(self._observer, common, running, self._finish),
                planned_results=() if others else first.planned_results,
                on_eta=self._driver.on_eta,
                admission=admission,
            ).run()

    def _end(self, label: str, ended: Ended[T], results: Iterable[StageResult] = ()) -> None:
        is_whole = not any(result.status in (Status.FAILED, Status.SKIPPED) for result in results)
        self._has_failed |= isinstance(ended, WinmlDagError) or not is_whole
        self._ended[label] = ended
        self._done(label, ended)


def _merged(jobs: Mapping[str, GraphJob[T]]) -> Merged:
    """Return the graph of all *jobs*; that of one without a label, which may be a part of a graph, as it is."""
    if (job := jobs.get("")) is not None:
        return Merged(job.graph, job.known, ({node.id: node.id for node in job.graph.nodes},), {})
    return merge([Part(label, job.graph, job.known) for label, job in jobs.items()])


def _reuse_all(one: _Running[T], store: Store, observer: Observer) -> None:
    """Record that the whole graph of a job is reused, without a scratch folder, threads or processes."""
    planned_results, scope = one.planned_results, one.job.scope
    store.used(result.cache_key for result in planned_results if result.cache_key)
    found = (result for result in planned_results if result.reason.kind != "up to date")
    store.remember({remembered_name(scope, result.node): result.cache_key for result in found if result.cache_key})
    for result in planned_results:
        one.results[result.node.id] = result
        node = replace(result.node, id=f"{one.label}/{result.node.id}") if one.label else result.node
        observer.finished(replace(result, node=node))


class _Shared(PassingOn, Generic[T]):
    """Reports the merged graph to *observer*, and calls *finished* with each job when its last stage has a result."""

    def __init__(
        self,
        observer: Observer,
        common: Merged,
        running: Sequence[_Running[T]],
        finished: Callable[[_Running[T]], None],
    ) -> None:
        super().__init__(observer)
        self._readers = common.readers()
        self._running = running
        self._job_finished = finished
        # A job among others begins with its first stage.
        self._begun: set[int] = set() if len(running) > 1 else {0}

    def started(self, node: Node, reason: Reason, estimate_seconds: float | None, progress: ReadProgress) -> None:
        for at, _ in self._readers[node.id]:
            if at not in self._begun:
                self._begun.add(at)
                self._running[at].began = time.monotonic()
        super().started(node, reason, estimate_seconds, progress)

    def finished(self, result: StageResult) -> None:
        super().finished(result)
        node_id = result.node.id
        # A published job is not updated when a stage is decided again for another job that reads it.
        waiting = [(self._running[at], own) for at, own in self._readers[node_id] if self._running[at].waits]
        for number, (running, own) in enumerate(waiting):
            made_here = number == 0 or running.job.reports_shared_as_run
            running.results[own] = result.seen_from(running.job.graph.node(own), made_here=made_here)
        for running, _ in waiting:
            if node_id in running.waits:
                running.waits.remove(node_id)
                if not running.waits:
                    self._job_finished(running)
