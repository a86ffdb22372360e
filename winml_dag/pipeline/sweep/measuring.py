"""Run perf and eval on the cells of a sweep, as the commands would, one after the other.

This is a phase after all builds, not part of their graph: measuring next to a running build would measure the build,
too. Results are records, so the commands and the sweep share them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from winml_dag.errors import WinmlDagError
from winml_dag.pipeline.assess.measurement import AssessmentPlan, AssessmentRequest, MeasurementJob
from winml_dag.pipeline.documents import BuildManifest, EvalReport, Figures, MetricReport, PerfReport
from winml_dag.pipeline.manifest import read_manifest
from winml_dag.pipeline.run import Driver
from winml_dag.pipeline.sweep.result import CellResult, Measured
from winml_dag.recipe.load import LoadedRecipe
from winml_dag.stages.perf.latency import EMULATED

PERF = "perf"
EVAL = "eval"


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
    # Imported here: most sweeps measure nothing.
    from winml_dag.pipeline.assess.builtmodel import find_built_model
    from winml_dag.pipeline.assess.eval import eval_section, plan_evaluation
    from winml_dag.pipeline.assess.perf import plan_perf
    from winml_dag.pipeline.host import this_host

    host, store = this_host(), driver.store

    def perf(cell: Finished) -> AssessmentPlan:
        request = AssessmentRequest(cell.recipe.recipe.perf, cell.recipe.path.parent)
        return plan_perf(find_built_model(cell.folder), request, store, host)

    def evaluation(cell: Finished) -> AssessmentPlan:
        section = eval_section(cell.recipe.recipe.eval, {}, {})
        request = AssessmentRequest(section, cell.recipe.path.parent, download=False)
        return plan_evaluation(find_built_model(cell.folder), request, store)

    speeds: Mapping[str, Measured] = {}
    qualities: Mapping[str, Measured] = {}
    if PERF in measure:
        alone = replace(driver, options=replace(driver.options, jobs=1))
        speeds = _measured(cells, perf, alone, (lambda _: None) if EVAL in measure else done)
    if EVAL in measure:
        qualities = _measured(cells, evaluation, driver, done)
    return speeds, qualities


def _measured(
    cells: Sequence[Finished], plan: Callable[[Finished], AssessmentPlan], driver: Driver, done: Callable[[str], None]
) -> Mapping[str, Measured]:
    """Return the results of what *plan* returns, by cell name; *done* is called for each that has ended."""
    measured: dict[str, Measured] = {}
    planned: dict[str, AssessmentPlan] = {}
    for cell in cells:
        try:
            planned[cell.name] = plan(cell)
        except WinmlDagError as error:
            measured[cell.name] = Measured(error=str(error))
            done(cell.name)
    jobs = {name: MeasurementJob(each.measurement, driver.store) for name, each in planned.items()}
    for name, became in driver.run(jobs, lambda name, _: done(name)).items():
        assert became is not None
        if isinstance(became, WinmlDagError):
            measured[name] = Measured(error=str(became))
        elif became.failed is not None:
            measured[name] = Measured(error=str(became.failed.as_error()))
        else:
            measured[name] = Measured(became.freshness, became.made_at, planned[name].report(became))
    return measured


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
    build = BuildManifest() if manifest is None else manifest.build
    perf = PerfReport.model_validate({} if cell.perf is None else cell.perf.report)
    evaluated = EvalReport.model_validate({} if cell.eval is None else cell.eval.report)
    metric = evaluated.metrics.get(evaluated.main_metric or "", MetricReport())
    figures = [found for stage in build.done("validate") if (found := stage.metrics.quality) is not None]
    quality = Figures.worst(_with_ratio(one) for one in figures)
    values: dict[str, float] = {}
    missing: dict[str, str] = {}

    def add(why: str, **found: float | None) -> None:
        values.update((name, value) for name, value in found.items() if value is not None)
        missing.update((name, why) for name, value in found.items() if value is None)

    add("the build ships no model", size=sum(file.size for file in build.shipped.values()) or None)
    add(
        "the build was not validated against its float model",
        cosine=quality.cosine,
        cosine_min=quality.cosine_min,
        sqnr_db=quality.sqnr_db,
        max_abs_error=quality.max_abs_error,
    )
    add(_why(cell.perf, "perf"), latency=perf.latency_ms.p50, peak_memory=perf.memory_bytes.peak)
    add(_why(cell.eval, "eval"), accuracy=metric.candidate.value, accuracy_drop=metric.drop)
    return Facts(values, missing, emulated=EMULATED in perf.notices)


def _with_ratio(figures: Figures) -> Figures:
    """Return *figures* with a ratio: without noise or without a signal there is none, and the cosine shows which."""
    if figures.sqnr_db is not None:
        return figures
    return figures.model_copy(update={"sqnr_db": EXACT_DB if figures.cosine == 1 else -EXACT_DB})


def _why(measured: Measured | None, command: str) -> str:
    if measured is None:
        return f"{command} was not asked for"
    if measured.error:
        return measured.error
    if command == "eval":
        return "eval has no such figure (accuracy is the first metric of a task, its drop is against a float model)"
    return "perf has no such figure"
