"""Run perf and eval on the cells of a sweep, as the commands would, one after the other.

This is a phase after all builds, not part of their graph: measuring next to a running build would measure the build,
too. Results are records, so the commands and the sweep share them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from winml_dag.errors import WinmlDagError
from winml_dag.pipeline.assess.measurement import Measurement, MeasurementJob
from winml_dag.pipeline.run import Driver
from winml_dag.pipeline.sweep.result import Measured
from winml_dag.recipe.load import LoadedRecipe
from winml_dag.recipe.paths import resolve_path
from winml_dag.store.store import Store

if TYPE_CHECKING:
    from winml_dag.pipeline.assess.eval import EvaluationPlan
    from winml_dag.pipeline.assess.host import Host
    from winml_dag.pipeline.assess.perf import PerfPlan

PERF = "perf"
EVAL = "eval"

_Plan: TypeAlias = "PerfPlan | EvaluationPlan"


@dataclass(frozen=True)
class Finished:
    """A cell with a build: its output folder, and the recipe that configures measurements."""

    name: str
    folder: Path
    recipe: LoadedRecipe

    @property
    def has_data(self) -> bool:
        """Whether its recipe names data or a reference for measuring, which builds do not depend on."""
        recipe = self.recipe.recipe
        given = [recipe.perf.input_data]
        if recipe.eval is not None:
            given += [recipe.eval.dataset.path, recipe.eval.input_data, recipe.eval.reference_path]
        return any(each is not None for each in given)


@dataclass(frozen=True)
class CellMeasured:
    """The measurements of a cell; None for those that were not requested."""

    perf: Measured | None = None
    eval: Measured | None = None


def measure_cells(
    cells: Sequence[Finished], measure: Collection[str], driver: Driver, done: Callable[[str], None]
) -> Mapping[str, CellMeasured]:
    """Run those of perf and eval that *measure* names on *cells*; returns results by cell name.

    perf has the machine to itself, one model at a time; eval runs as many at once as *driver* has jobs. Cells with
    equal models are measured once. A failed measurement is returned with its error. *done* is called for each cell that
    is complete.

    Raises:
        KeyboardInterrupt: after child processes have been stopped.
    """
    from winml_dag.pipeline.assess.host import this_host

    speeds: Mapping[str, Measured] = {}
    if PERF in measure:
        host = this_host()
        planned = {cell.name: _planned_perf(cell, host, driver.store) for cell in cells}
        one_at_a_time = replace(driver, options=replace(driver.options, jobs=1))
        speeds = _measured(planned, one_at_a_time, (lambda _: None) if EVAL in measure else done)
    qualities: Mapping[str, Measured] = {}
    if EVAL in measure:
        plans = {cell.name: _planned_eval(cell, driver.store) for cell in cells}
        qualities = _measured(plans, driver, done)
    return {cell.name: CellMeasured(speeds.get(cell.name), qualities.get(cell.name)) for cell in cells}


def _measured(
    plans: Mapping[str, _Plan | WinmlDagError], driver: Driver, done: Callable[[str], None]
) -> Mapping[str, Measured]:
    """Return the results of *plans*, by cell name; *done* is called for each that has ended."""
    told = {name: Measured(error=str(plan)) for name, plan in plans.items() if isinstance(plan, WinmlDagError)}
    for name in told:
        done(name)
    planned = {name: plan for name, plan in plans.items() if not isinstance(plan, WinmlDagError)}
    jobs = [MeasurementJob(plan.measurement, driver.store, name) for name, plan in planned.items()]
    ended = driver.run(jobs, lambda name, _: done(name))
    for (name, plan), became in zip(planned.items(), ended, strict=True):
        assert became is not None
        told[name] = Measured(error=str(became)) if isinstance(became, WinmlDagError) else _told(plan, became)
    return told


def _told(plan: _Plan, done: Measurement) -> Measured:
    from winml_dag.pipeline.assess.eval import EvaluationPlan, evaluated_json
    from winml_dag.pipeline.assess.perf import perf_json

    if done.failed is not None:
        failed = done.failed
        return Measured(error=f"{failed.node.id} failed: {failed.error} {failed.advice}".rstrip())
    if isinstance(plan, EvaluationPlan):
        return Measured(done.told, done.made_at, evaluated_json(plan, done, None, {}))
    return Measured(done.told, done.made_at, perf_json(plan, done, None))


def _planned_perf(cell: Finished, host: Host, store: Store) -> PerfPlan | WinmlDagError:
    from winml_dag.pipeline.assess.builtmodel import find_built_model
    from winml_dag.pipeline.assess.perf import PerfRequest, plan_perf

    perf = cell.recipe.recipe.perf
    try:
        data = None if perf.input_data is None else resolve_path(cell.recipe.path.parent, perf.input_data)
        return plan_perf(find_built_model(cell.folder), PerfRequest(perf, data), host, store.fingerprints)
    except WinmlDagError as error:
        return error


def _planned_eval(cell: Finished, store: Store) -> EvaluationPlan | WinmlDagError:
    from winml_dag.pipeline.assess.builtmodel import find_built_model
    from winml_dag.pipeline.assess.eval import EvaluationRequest, eval_section, plan_evaluation, refuse_unbuilt

    try:
        section = eval_section(cell.recipe.recipe.eval, {}, {})
        refuse_unbuilt(section)
        request = EvaluationRequest(section, cell.recipe.path.parent, {}, download=False)
        return plan_evaluation(find_built_model(cell.folder), request, store)
    except WinmlDagError as error:
        return error
