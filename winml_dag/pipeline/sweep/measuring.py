"""What perf and eval tell of the cells of a sweep: as the commands would measure them, one after the other.

A phase of its own after all builds, and no part of their graph: what is measured beside a build is the build. What was
measured is a record, so the commands find it, and what they have measured is found here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from winml_dag.engine.events import Observer, PassingOn, Silent, StageResult
from winml_dag.engine.merge import Merged, Part, merge
from winml_dag.engine.plan import remembered_name
from winml_dag.errors import WinmlDagError
from winml_dag.pipeline.accounts import settle_accounts
from winml_dag.pipeline.finished.measurement import Measurement, MeasurementGraph
from winml_dag.pipeline.graphrun import run_graph
from winml_dag.pipeline.sweep.result import Measured
from winml_dag.recipe.load import LoadedRecipe
from winml_dag.recipe.paths import resolve_path
from winml_dag.store.local import LocalStore

if TYPE_CHECKING:
    from winml_dag.engine.eta import Eta
    from winml_dag.engine.execute import Executor
    from winml_dag.pipeline.finished.evaluation import EvaluationPlan
    from winml_dag.pipeline.finished.host import Host
    from winml_dag.pipeline.finished.perf import PerfPlan

PERF = "perf"
EVAL = "eval"

_Plan: TypeAlias = "PerfPlan | EvaluationPlan"


@dataclass(frozen=True)
class Finished:
    """A cell that is there: its output folder, and the recipe whose sections say how it is measured."""

    name: str
    folder: Path
    recipe: LoadedRecipe

    @property
    def has_data(self) -> bool:
        """Whether its recipe names anything to measure it on, or against: what builds make does not depend on that."""
        recipe = self.recipe.recipe
        given = [recipe.perf.input_data]
        if recipe.eval is not None:
            given += [recipe.eval.dataset.path, recipe.eval.input_data, recipe.eval.reference_path]
        return any(each is not None for each in given)


@dataclass(frozen=True)
class CellMeasured:
    """What was measured of a cell; None for what nobody asked for."""

    perf: Measured | None = None
    eval: Measured | None = None


@dataclass(frozen=True)
class Running:
    """How graphs of a sweep are carried out besides its builds. ``timeout_seconds``: of one stage; ``memory_bytes`` and
    ``foretold``: as for builds.
    """

    store: LocalStore
    jobs: int = 1
    rebuild: bool = False
    timeout_seconds: float | None = None
    observer: Observer | None = None
    executor: Executor | None = None
    memory_bytes: int | None = None
    foretold: Callable[[Eta], None] | None = None


def _nobody(_: str) -> None:
    """Who is told of nothing."""


def measure_cells(
    cells: Sequence[Finished], measure: Collection[str], running: Running, done: Callable[[str], None] = _nobody
) -> Mapping[str, CellMeasured]:
    """What perf and eval, those of them that *measure* names, tell of *cells*, by the name of the cell.

    perf has the machine for itself, one model at a time; of eval there are as many at once as *running* has jobs. Cells
    with equal models are measured once. What cannot be measured is told with its error. *done* is told of each cell of
    which nothing more is to be measured.

    Raises:
        KeyboardInterrupt: after children have been ended.
    """
    from winml_dag.pipeline.finished.host import this_host

    speeds: Mapping[str, Measured] = {}
    if PERF in measure:
        host = this_host()
        planned = {cell.name: _planned_perf(cell, host, running.store) for cell in cells}
        speeds = _measured(planned, running, jobs=1, done=_nobody if EVAL in measure else done)
    qualities: Mapping[str, Measured] = {}
    if EVAL in measure:
        plans = {cell.name: _planned_eval(cell, running.store) for cell in cells}
        qualities = _measured(plans, running, jobs=running.jobs, done=done)
    return {cell.name: CellMeasured(speeds.get(cell.name), qualities.get(cell.name)) for cell in cells}


def run_together(
    graphs: Mapping[str, MeasurementGraph], running: Running, *, jobs: int, done: Callable[[str], None] = _nobody
) -> Mapping[str, tuple[StageResult, ...]]:
    """All *graphs* carried out as one, which runs what they share once; by the name of each, its results. *done* is
    told of each that has all of them.

    Raises:
        KeyboardInterrupt: after children have been ended.
    """
    from winml_dag.engine.schedule import RunOptions

    if not graphs:
        return {}
    store = running.store
    common = merge([Part(name, graph.graph, graph.sources) for name, graph in graphs.items()])
    own = list(graphs.values())
    remembered = {
        node_id: [remembered_name(own[at].scope, own[at].graph.node(node)) for at, node in readers]
        for node_id, readers in common.readers().items()
    }
    with store.scratch.open() as scratch:
        results = run_graph(
            common.graph,
            common.sources,
            (),
            store,
            scratch,
            RunOptions("", jobs, True, running.rebuild, remembered, common.order, running.memory_bytes),
            observer=_Ends(running.observer or Silent(), common, list(graphs), done),
            executor=running.executor,
            timeout_seconds=running.timeout_seconds,
            foretold=running.foretold,
        )
    store.settle()
    settle_accounts(None, results, store)
    by_id = {result.node.id: result for result in results}
    return {
        name: tuple(replace(by_id[ids[node.id]], node=node) for node in graph.graph.nodes)
        for (name, graph), ids in zip(graphs.items(), common.ids, strict=True)
    }


class _Ends(PassingOn):
    """Tells *observer* of the common graph, and *done* the name of each graph in it when all its nodes have results."""

    def __init__(self, observer: Observer, common: Merged, names: Sequence[str], done: Callable[[str], None]) -> None:
        super().__init__(observer)
        self._waits = {name: set(ids.values()) for name, ids in zip(names, common.ids, strict=True)}
        self._readers = {
            node_id: [names[at] for at in {at for at, _ in readers}] for node_id, readers in common.readers().items()
        }
        self._done = done

    def finished(self, result: StageResult) -> None:
        super().finished(result)
        for name in self._readers[result.node.id]:
            self._waits[name].discard(result.node.id)
            if not self._waits[name]:
                self._done(name)


def _measured(
    plans: Mapping[str, _Plan | WinmlDagError], running: Running, *, jobs: int, done: Callable[[str], None]
) -> Mapping[str, Measured]:
    planned = {name: plan for name, plan in plans.items() if not isinstance(plan, WinmlDagError)}
    for name in plans.keys() - planned.keys():
        done(name)
    began = time.monotonic()
    results = run_together({name: plan.measurement for name, plan in planned.items()}, running, jobs=jobs, done=done)
    elapsed = time.monotonic() - began
    return {
        name: Measured(error=str(plan))
        if isinstance(plan, WinmlDagError)
        else _told(plan, Measurement(results[name], results[name][0].elapsed_seconds or elapsed))
        for name, plan in plans.items()
    }


def _told(plan: _Plan, done: Measurement) -> Measured:
    from winml_dag.pipeline.finished.evaluated import evaluated_json
    from winml_dag.pipeline.finished.evaluation import EvaluationPlan
    from winml_dag.pipeline.finished.perf import perf_json

    if done.failed is not None:
        failed = done.failed
        return Measured(error=f"{failed.node.id} failed: {failed.error} {failed.advice}".rstrip())
    if isinstance(plan, EvaluationPlan):
        return Measured(done.told, done.made_at, evaluated_json(plan, done, None, {}))
    return Measured(done.told, done.made_at, perf_json(plan, done, None))


def _planned_perf(cell: Finished, host: Host, store: LocalStore) -> PerfPlan | WinmlDagError:
    from winml_dag.pipeline.finished.perf import PerfRequest, plan_perf
    from winml_dag.pipeline.finished.subject import find_subject

    perf = cell.recipe.recipe.perf
    try:
        data = None if perf.input_data is None else resolve_path(cell.recipe.path.parent, perf.input_data)
        return plan_perf(find_subject(cell.folder), PerfRequest(perf, data), host, store.fingerprints)
    except WinmlDagError as error:
        return error


def _planned_eval(cell: Finished, store: LocalStore) -> EvaluationPlan | WinmlDagError:
    from winml_dag.pipeline.finished.evaluation import EvaluationRequest, eval_section, plan_evaluation, refuse_unbuilt
    from winml_dag.pipeline.finished.subject import find_subject

    try:
        section = eval_section(cell.recipe.recipe.eval, {}, {})
        refuse_unbuilt(section)
        request = EvaluationRequest(section, cell.recipe.path.parent, {}, download=False)
        return plan_evaluation(find_subject(cell.folder), request, store)
    except WinmlDagError as error:
        return error
