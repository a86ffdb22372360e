"""The one way through: plan, run, materialise, record. The command line and the Python API both call :func:`build`."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.engine.events import Observer, StageResult, Status
from winml_dag.engine.plan import foresee, plan_graph, prefetch
from winml_dag.engine.sandbox import FileAccess
from winml_dag.errors import StoreError, UsageError
from winml_dag.pipeline.accounts import settle_accounts
from winml_dag.pipeline.buildgraph import BuildGraph
from winml_dag.pipeline.buildresult import BuildResult, result_of
from winml_dag.pipeline.commit import is_changing
from winml_dag.pipeline.finish import materialise, note_finished, refuse_foreign, user_folder, whole
from winml_dag.pipeline.graphrun import reuse_all, run_graph
from winml_dag.pipeline.layout import STAGE_FILE
from winml_dag.pipeline.outputs import prepare_folder, refuse_file
from winml_dag.pipeline.search import completed
from winml_dag.pipeline.visible import visible_files
from winml_dag.store.local import LocalStore
from winml_dag.store.store import BlobDamaged

if TYPE_CHECKING:
    from winml_dag.engine.execute import Executor
    from winml_dag.pipeline.cluster.cluster import Cluster
    from winml_dag.pipeline.userstages.folder import UserFolder


# What a stage put out whose result a build refused: laid where its reader finds it, as the output folder stays what it
# was.


def with_refused(results: Iterable[StageResult], store: LocalStore) -> Iterator[StageResult]:
    """*results*, those that were refused with the file that says why."""
    for result in results:
        kept = _kept(result, store) if result.status is Status.FAILED and result.record is not None else None
        yield result if kept is None else replace(result, kept=kept)


def _kept(result: StageResult, store: LocalStore) -> Path | None:
    """Beside the logs of failures. None where there is no such file, or no room for it."""
    assert result.record is not None
    name = STAGE_FILE.get(result.node.stage.name)
    entry = next((file for file in result.record.files() if file.name == name), None)
    if entry is None:
        return None
    kept = store.failures / f"{result.node.stage.name}-{result.record.cache_key[:16]}{Path(entry.name).suffix}"
    with suppress(OSError):
        store.failures.mkdir(parents=True, exist_ok=True)
        store.bring((entry,))
        shutil.copyfile(store.blobs.path(entry.digest), kept)
        return kept
    return None


# A blob that is damaged again after its stage has run anew is a matter for its owner, not for another try.
_TRIES = 3


@dataclass(frozen=True)
class BuildOptions:
    """How to go about it, none of which changes a byte of the result.

    ``access``: how stages of the recipe's own get at files. ``link``: files that are put into the output folder are
    read-only hard links into the cache, not copies. ``overwrite``: what is put may take the place of somebody else's
    file. ``memory_bytes``: what the stages that run at the same time may take; None: what this
    machine has, less a reserve. ``cluster``: other machines that stages run on.
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


def plan(planned: BuildGraph, store: LocalStore, *, rebuild: bool = False, explain: bool = False) -> BuildResult:
    """What :func:`build` would do; nothing is run and nothing written. *explain* adds to reasons what a build leaves
    out of them, because it takes looking through records.
    """
    started = time.monotonic()
    results = plan_graph(
        planned.graph, planned.sources, store, scope=planned.summary.scope, rebuild=rebuild, explain=explain
    )
    return result_of(planned, results, time.monotonic() - started)


def build(
    planned: BuildGraph,
    store: LocalStore,
    options: BuildOptions = BuildOptions(),
    *,
    observer: Observer | None = None,
    executor: Executor | None = None,
) -> BuildResult:
    """Bring the output folder of a build up to date, running only what is not already known.

    A stage that fails is in the result, not raised; then the output folder is as it was, and what stages of the
    recipe's own had finished is in its place.

    Raises:
        UsageError: when a file of somebody else's is in the way, before anything has run.
        StoreError: when the cache or the output folder cannot be used.
        KeyboardInterrupt: after children have been ended.
    """
    started = time.monotonic()
    refuse_at_once(planned, store, options)
    for attempt in range(_TRIES):
        again = replace(options, rebuild=options.rebuild and attempt == 0)
        own = user_folder(planned, store)
        try:
            # What a run holds in the cache, it holds until the files are where their user finds them.
            with ExitStack() as living:
                results = _run(planned, own, store, again, observer, executor, living)
                finished = put_in_place(planned, own, results, store, options, started)
        except BlobDamaged:
            # It is in quarantine now, so its stage will be found wanting, if only in the whole of the graph.
            planned = whole(planned, store)
            continue
        except (StoreError, UsageError):
            # What ran has its result all the same, and is never offered again: the next build finds it here.
            store.settle()
            raise
        store.settle()
        note = settle_accounts(planned, results, store)
        return replace(finished, cache_note=note, traffic=store.traffic() if store.asks_behind else None)
    raise StoreError(
        "What was made is damaged in the cache again and again.",
        advice="Check the disk, or choose another cache folder with --cache-dir.",
    )


def refuse_at_once(planned: BuildGraph, store: LocalStore, options: BuildOptions) -> None:
    """Raise UsageError or StoreError for an output folder that cannot become what a build makes of it."""
    wanted = planned.summary
    refuse_file(wanted.output_dir)
    # Where another build is at the folder, who owns what is asked again at the end.
    if not is_changing(wanted.output_dir):
        refuse_foreign(planned, store, overwrite=options.overwrite)


def put_in_place(
    planned: BuildGraph,
    own: UserFolder | None,
    results: tuple[StageResult, ...],
    store: LocalStore,
    options: BuildOptions,
    started: float,
) -> BuildResult:
    """What became of a build of which every stage has its result: unless one failed, its files are put where their user
    finds them, and that is noted. *started*: when it began, of ``time.monotonic``.

    Raises:
        BlobDamaged: when a file cannot be fetched; its stage has to run again.
        UsageError, StoreError: when a file is in the way, or the folder cannot be written.
    """
    finished = result_of(planned, results, time.monotonic() - started, others=planned.others)
    if any(result.status in (Status.FAILED, Status.SKIPPED) for result in results):
        return result_of(planned, tuple(with_refused(results, store)), finished.elapsed_seconds, others=planned.others)
    by_id = {result.node.id: result for result in results}
    checked_ns = time.time_ns()
    elapsed = time.monotonic() - started
    told = replace(planned, summary=completed(planned.summary, results))
    done = materialise(told, own, by_id, store, elapsed, link=options.link, overwrite=options.overwrite)
    note_finished(planned, own, by_id, visible_files(planned, by_id, store).files, store, checked_ns)
    return replace(finished, build=told.summary, materialised=done, elapsed_seconds=time.monotonic() - started)


def _run(
    planned: BuildGraph,
    own: UserFolder | None,
    store: LocalStore,
    options: BuildOptions,
    observer: Observer | None,
    executor: Executor | None,
    living: ExitStack,
) -> tuple[StageResult, ...]:
    """*living* closes what tells others that this run is alive."""
    scope = planned.summary.scope
    known = {**planned.sources, **planned.given}
    if not options.rebuild:
        prefetch(planned.graph, known, store)
    foreseen = foresee(planned.graph, known, store, scope=scope, rebuild=options.rebuild)
    if own is not None:
        own.refuse_foreign(foreseen)
    if len(foreseen) == len(planned.graph.nodes):
        reuse_all(foreseen, store, scope, observer)
        return foreseen
    # Imported here: most builds have nothing to run.
    from winml_dag.engine.schedule import RunOptions
    from winml_dag.pipeline.standing.check import touch

    prepare_folder(planned.summary.output_dir)
    scratch = living.enter_context(store.scratch.open())
    if planned.standing is not None:
        touch(str(store.folder), planned.standing.note)
    return run_graph(
        planned.graph,
        known,
        foreseen,
        store,
        scratch,
        RunOptions(scope, options.jobs, options.keep_going, options.rebuild, memory_bytes=options.memory_bytes),
        observer=observer,
        executor=executor,
        timeout_seconds=options.stage_timeout_seconds,
        in_place=None if own is None else own.in_place,
        access=options.access,
        cluster=options.cluster,
    )
