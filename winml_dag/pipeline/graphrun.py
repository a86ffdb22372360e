"""A graph carried out: all of it reused, or what is not known run in processes. Builds and measurements come here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.engine.events import Observer, StageResult
from winml_dag.engine.graph import Graph
from winml_dag.engine.plan import remembered_name
from winml_dag.engine.sandbox import FileAccess
from winml_dag.pipeline.madeby import MADE_BY
from winml_dag.store.artifact import Artifact
from winml_dag.store.local import LocalStore

if TYPE_CHECKING:
    from winml_dag.engine.eta import Eta
    from winml_dag.engine.execute import Executor
    from winml_dag.engine.inplace import InPlace
    from winml_dag.engine.schedule import RunOptions
    from winml_dag.pipeline.cluster.cluster import Cluster


def reuse_all(foreseen: Sequence[StageResult], store: LocalStore, scope: str, observer: Observer | None) -> None:
    """Note that all of a graph is reused. No scratch folder, no threads, no process."""
    store.used(result.cache_key for result in foreseen if result.cache_key)
    with store.together(()):
        for result in foreseen:
            if result.cache_key and result.reason.kind != "up to date":
                store.remember(remembered_name(scope, result.node), result.cache_key)
    for result in foreseen:
        if observer is not None:
            observer.finished(result)


def run_graph(
    graph: Graph,
    known: Mapping[str, Artifact],
    foreseen: Sequence[StageResult],
    store: LocalStore,
    scratch: Path,
    options: RunOptions,
    *,
    observer: Observer | None = None,
    executor: Executor | None = None,
    timeout_seconds: float | None = None,
    in_place: InPlace | None = None,
    access: FileAccess = FileAccess.FREE,
    foretold: Callable[[Eta], None] | None = None,
    cluster: Cluster | None = None,
) -> tuple[StageResult, ...]:
    """Run what is not *foreseen* to be reused, in the folder *scratch* of this run's own; one result for each node.
    *foretold* is given what tells how long it will take. With a *cluster*, what can leave this machine runs there.

    Raises:
        BlobDamaged: for one that a stage outside of this graph put out.
        KeyboardInterrupt: after everything that ran has been ended.
    """
    # Imported here: what runs processes and threads takes 30 ms to import, and most builds have nothing to run.
    from winml_dag.engine.execute import LocalExecutor
    from winml_dag.engine.run import Runner
    from winml_dag.engine.runs import LocalRuns
    from winml_dag.engine.schedule import Scheduler

    runner = Runner(
        graph,
        store,
        executor or LocalExecutor(),
        store.fingerprints,
        scratch=scratch,
        failures=store.failures,
        made_by=MADE_BY,
        rebuild=options.rebuild,
        timeout_seconds=timeout_seconds,
        in_place=in_place,
        access=access,
    )
    if cluster is None:
        runs, admission = LocalRuns(runner, options.jobs), None
    else:
        runs = cluster.runs(runner, graph, store, scratch, timeout_seconds=timeout_seconds, rebuild=options.rebuild)
        admission = cluster.admission
    return Scheduler(
        graph, known, store, runs, options, observer, foreseen=foreseen, on_eta=foretold, admission=admission
    ).run()
