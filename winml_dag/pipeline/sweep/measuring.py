"""Run perf and eval on the cells of a sweep, as the commands would, one after the other.

This is a phase after all builds, not part of their graph: measuring next to a running build would measure the build,
too. Results are records, so the commands and the sweep share them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from winml_dag.errors import WinmlDagError
from winml_dag.pipeline.assess.measurement import Measurement, MeasurementJob
from winml_dag.pipeline.documents import EvalReport, Figures, PerfReport
from winml_dag.pipeline.manifest import read_manifest
from winml_dag.pipeline.run import Driver
from winml_dag.pipeline.sweep.result import CellResult, Measured
from winml_dag.recipe.load import LoadedRecipe
from winml_dag.stages.evaluate import METRICS
from winml_dag.stages.perf.latency import EMULATED
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


def measure_cells(
    cells: Sequence[Finished], measure: Collection[str], driver: Driver, done: Callable[[str], None]
) -> tuple[Mapping[str, Measured], Mapping[str, Measured]]:
    """Run those of perf and eval that *measure* names on *cells*; returns the results of each by cell name.

    perf has the machine to itself, one model at a time; eval runs as many at once as *driver* has jobs. Cells with
    equal models are measured once. A failed measurement is returned with its error. *done* is called for each cell that
    is complete.
    """
    from winml_dag.pipeline.assess.host import this_host

    speeds: Mapping[str, Measured] = {}
    qualities: Mapping[str, Measured] = {}
    if PERF in measure:
        alone = replace(driver, options=replace(driver.options, jobs=1))
        speeds = _measured(cells, partial(_plan_perf, host=this_host()), alone, _ignore if EVAL in measure else done)
    if EVAL in measure:
        qualities = _measured(cells, _plan_eval, driver, done)
    return speeds, qualities


def _ignore(_name: str) -> None:
    """For a cell that is not complete yet."""


def _measured(
    cells: Sequence[Finished], plan: Callable[[Finished, Store], _Plan], driver: Driver, done: Callable[[str], None]
) -> Mapping[str, Measured]:
    """Return the results of what *plan* returns, by cell name; *done* is called for each that has ended."""
    measured: dict[str, Measured] = {}
    planned: dict[str, _Plan] = {}
    for cell in cells:
        try:
            planned[cell.name] = plan(cell, driver.store)
        except WinmlDagError as error:
            measured[cell.name] = Measured(error=str(error))
            done(cell.name)
    jobs = [MeasurementJob(each.measurement, driver.store, name) for name, each in planned.items()]
    ended = driver.run(jobs, lambda name, _: done(name))
    for (name, each), became in zip(planned.items(), ended, strict=True):
        assert became is not None
        measured[name] = (
            Measured(error=str(became)) if isinstance(became, WinmlDagError) else _measurement_of(each, became)
        )
    return measured


def _measurement_of(plan: _Plan, done: Measurement) -> Measured:
    from winml_dag.pipeline.assess.eval import EvaluationPlan
    from winml_dag.pipeline.assess.evalresult import evaluated_json
    from winml_dag.pipeline.assess.perf import perf_json

    if (failed := done.failed) is not None:
        return Measured(error=f"{failed.node.id} failed: {failed.error} {failed.advice}".rstrip())
    if isinstance(plan, EvaluationPlan):
        return Measured(done.freshness, done.made_at, evaluated_json(plan, done, None, {}))
    return Measured(done.freshness, done.made_at, perf_json(plan, done, None))


def _plan_perf(cell: Finished, store: Store, host: Host) -> PerfPlan:
    from winml_dag.pipeline.assess.builtmodel import find_built_model
    from winml_dag.pipeline.assess.perf import PerfRequest, plan_perf

    request = PerfRequest(cell.recipe.recipe.perf, cell.recipe.path.parent)
    return plan_perf(find_built_model(cell.folder), request, store, host)


def _plan_eval(cell: Finished, store: Store) -> EvaluationPlan:
    from winml_dag.pipeline.assess.builtmodel import find_built_model
    from winml_dag.pipeline.assess.eval import EvaluationRequest, eval_section, plan_evaluation

    section = eval_section(cell.recipe.recipe.eval, {}, {})
    request = EvaluationRequest(section, cell.recipe.path.parent, {}, download=False)
    return plan_evaluation(find_built_model(cell.folder), request, store)


# Replaces an infinite signal-to-noise ratio, which JSON cannot represent: no bound is higher.
EXACT_DB = 1000.0


@dataclass(frozen=True)
class Facts:
    """``values``: by measure, in its unit; ``missing``: why other measures have no value.

    ``emulated``: latencies and memory are those of an emulator, not of the device.
    """

    values: Mapping[str, float]
    missing: Mapping[str, str]
    emulated: bool = False


def facts_of(cell: CellResult, folder: Path) -> Facts:
    """Return the metrics of *cell*, which has a build, in a sweep with outputs in *folder*."""
    manifest = read_manifest(folder / cell.folder)
    done = [] if manifest is None else [stage for stage in manifest.build.stages if stage.is_done]
    perf = PerfReport.model_validate({} if cell.perf is None else cell.perf.report)
    values: dict[str, float] = {}
    missing: dict[str, str] = {}

    def add(why: str, **found: float | None) -> None:
        values.update((name, value) for name, value in found.items() if value is not None)
        missing.update((name, why) for name, value in found.items() if value is None)

    # Of the shipped files, counting equal content once.
    sizes = {file.digest: file.size for stage in done if stage.name == "finalize" for file in stage.files}
    add("the build ships no model", size=sum(sizes.values()) if sizes else None)
    figures = [found for stage in done if stage.name == "validate" and (found := stage.metrics.quality) is not None]
    add(
        "the build was not validated against its float model",
        cosine=_worst(min, (one.cosine for one in figures)),
        cosine_min=_worst(min, (one.cosine_min for one in figures)),
        sqnr_db=_worst(min, map(_ratio, figures)),
        max_abs_error=_worst(max, (one.max_abs_error for one in figures)),
    )
    add(_why(cell.perf, "perf"), latency=perf.latency_ms.p50, peak_memory=perf.memory_bytes.peak)
    accuracy, drop = _accuracy(cell.eval)
    add(_why(cell.eval, "eval"), accuracy=accuracy, accuracy_drop=drop)
    return Facts(values, missing, emulated=EMULATED in perf.notices)


def _why(measured: Measured | None, command: str) -> str:
    if measured is None:
        return f"{command} was not asked for"
    if measured.error:
        return measured.error
    if command == "eval":
        return "eval has no such figure (accuracy is the first metric of a task, its drop is against a float model)"
    return "perf has no such figure"


def _ratio(figures: Figures) -> float:
    """Return the ratio; without noise or without a signal it is undefined, and the cosine shows which applies."""
    if figures.sqnr_db is not None:
        return figures.sqnr_db
    return EXACT_DB if figures.cosine == 1 else -EXACT_DB


def _worst(pick: Callable[[Iterable[float]], float], values: Iterable[float | None]) -> float | None:
    """Return the worst value over all components."""
    found = [value for value in values if value is not None]
    return pick(found) if found else None


def _accuracy(evaluated: Measured | None) -> tuple[float | None, float | None]:
    """Return the main metric of the task, and its drop from the float model; for all of them larger is better."""
    if evaluated is None:
        return None, None
    report = EvalReport.model_validate(evaluated.report)
    metric = next((report.metrics[name] for name in METRICS.get(report.task, ()) if name in report.metrics), None)
    value = None if metric is None else metric.candidate.value
    reference = None if metric is None else metric.reference.value
    return value, None if value is None or reference is None else reference - value
