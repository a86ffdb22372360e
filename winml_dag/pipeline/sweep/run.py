"""Run a sweep: build all cells as one graph, measure them, pursue the goals, and write ``sweep.json``.

Each cell has its own plan cache entry, like a build, so that a quick check finds cells that are up to date, whichever
file and options requested them.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from winml_dag.engine.events import Observer, PassingOn, ReadProgress, Silent, StageResult
from winml_dag.errors import StageError, WinmlDagError
from winml_dag.pipeline.build import build, build_all, plan
from winml_dag.pipeline.buildresult import BuildResult
from winml_dag.pipeline.plan_cache import plan_each, plan_request
from winml_dag.pipeline.run import BuildOptions, Driver, Ended
from winml_dag.pipeline.search import WithoutRounds
from winml_dag.pipeline.sweep.cells import (
    Selection,
    as_found,
    cell_result,
    folder_of,
    keys_of,
    longest_chain,
    refuse_overruled,
    request_of,
    selected,
)
from winml_dag.pipeline.sweep.goals import GoalOutcome, Means, pursue_goals
from winml_dag.pipeline.sweep.ledger import Ledger, modules_of, new_head, write_summary
from winml_dag.pipeline.sweep.measuring import Finished, measure_cells
from winml_dag.pipeline.sweep.result import CellResult, CellStatus, SweepResult
from winml_dag.pipeline.sweep.stamp import keys_of as keys_of_note
from winml_dag.pipeline.uptodate import CurrentPlan, Environment, check, log_use
from winml_dag.recipe.sweep import sweep_of_files

if TYPE_CHECKING:
    from winml_dag.engine.eta import Eta
    from winml_dag.engine.events import Reason
    from winml_dag.engine.execute import Executor
    from winml_dag.engine.stage import Node
    from winml_dag.pipeline.request import Request
    from winml_dag.recipe.reading import ModuleItem
    from winml_dag.recipe.sweep import Cell, Sweep
    from winml_dag.store.store import Store

_OUTDATED = "it was built as the sweep was then, and this run was not for it"


class Watcher(Observer, Protocol):
    """An observer of stages, with the cell's name as a prefix of each node id, and of cells."""

    def phase(self, doing: str, cells: Sequence[str]) -> None:
        """A phase starts that processes each of *cells*."""

    def cell(self, name: str, status: CellStatus, why: str = "") -> None:
        """A cell has finished this phase with *status*."""

    def on_eta(self, eta: Eta) -> None:
        """Receives the estimator for the stages that run from now on."""


class SilentWatcher(Silent):
    """A watcher that ignores everything."""

    def phase(self, doing: str, cells: Sequence[str]) -> None: ...

    def cell(self, name: str, status: CellStatus, why: str = "") -> None: ...

    def on_eta(self, eta: Eta) -> None: ...


class _Timed(PassingOn):
    """Forwards to *observer*, and records when each stage started and how long it took, by its key.

    ``started_at`` is in seconds since this object was created.
    """

    def __init__(self, observer: Observer) -> None:
        super().__init__(observer)
        self._zero = time.monotonic()
        self._began: dict[str, float] = {}
        self.started_at: dict[str, float] = {}
        self.seconds: dict[str, float] = {}

    def started(self, node: Node, reason: Reason, estimate_seconds: float | None, progress: ReadProgress) -> None:
        self._began[node.id] = round(time.monotonic() - self._zero, 3)
        super().started(node, reason, estimate_seconds, progress)

    def finished(self, result: StageResult) -> None:
        began = self._began.pop(result.node.id, None)
        if began is not None and result.cache_key is not None:
            self.started_at[result.cache_key] = began
            self.seconds[result.cache_key] = result.elapsed_seconds or 0.0
        super().finished(result)


@dataclass(frozen=True)
class SweepRun:
    """How to run a sweep.

    Attributes:
        request: the options of this run, which apply to every cell.
        folder: the folder for all cells.
        cells: those of the sweep's cells that this run builds.
        left_out: selected cells that the sweep excludes.
        recipe: the file or files, as named.
        command: the command that builds everything; with a filter appended it builds one cell.
        modules: the modules of the cells, if the recipe is a list of modules.
        whole: whether to pursue goals: not in a run that only sees a part of the cells they choose from.
    """

    sweep: Sweep
    request: Request
    folder: Path
    cells: tuple[Cell, ...]
    left_out: tuple[Cell, ...]
    recipe: str
    command: str
    modules: tuple[ModuleItem, ...] = ()
    whole: bool = True

    @classmethod
    def of(cls, named: Sequence[Path], request: Request, selection: Selection, command: str) -> SweepRun:
        """Return the run of all *named* recipes, folders and patterns, with the options of *request*.

        Raises:
            RecipeError, InputError: for a sweep that cannot be read.
            UsageError: when there is no folder for it, and for an invalid selection.
        """
        sweep = sweep_of_files(named)
        refuse_overruled(sweep, request.overrides)
        folder = folder_of(sweep, request)
        meant = selected(sweep, selection, folder)
        return cls(
            sweep,
            replace(request, recipe=None, output_dir=folder),
            folder,
            cells=tuple(cell for cell in meant if not cell.left_out),
            left_out=tuple(cell for cell in meant if cell.left_out),
            recipe=", ".join(map(str, named)),
            command=command,
            modules=modules_of(sweep, folder),
            whole=selection.shard is None,
        )


@dataclass(frozen=True)
class SweepDone:
    """The result of a run.

    Attributes:
        cells: results of the run's cells, and of trials.
        gone: folders of cells that no longer exist.
        words: the requests of all current cells.
        refusals: exit codes of rejected cells.
        notes: notices about cells that were built, and about the cache, each sentence once.
        has_data: some cell is measured on its own data, which no build's plan cache entry covers.
    """

    result: SweepResult
    cells: tuple[CellResult, ...]
    gone: tuple[str, ...]
    words: tuple[str, ...]
    refusals: Mapping[str, int]
    notes: tuple[str, ...]
    has_data: bool = False


def run_sweep(
    sweep_run: SweepRun,
    store: Store,
    options: BuildOptions,
    watcher: Watcher,
    executor: Executor | None = None,
) -> SweepDone:
    """Bring the cells of *sweep_run* up to date, measure them, and pursue the goals of the sweep.

    A failed cell does not keep others from being built, unless *options* say otherwise.

    Raises:
        UsageError: when a ``sweep.json`` that is not owned is in the way.
        StoreError: when the cache or the folder cannot be used.
        KeyboardInterrupt: after child processes have been stopped; finished results are published and in
            ``sweep.json``.
    """
    return _Run(sweep_run, store, options, watcher, executor).run()


class _Run:
    """One run of a sweep."""

    def __init__(
        self,
        sweep_run: SweepRun,
        store: Store,
        options: BuildOptions,
        watcher: Watcher,
        executor: Executor | None,
    ) -> None:
        self._sweep_run = sweep_run
        self._store = store
        self._watcher = watcher
        self._timed = _Timed(watcher)
        head = new_head(sweep_run.sweep, sweep_run.recipe, options.jobs)
        self._ledger = Ledger(sweep_run.sweep, sweep_run.folder, [cell.name for cell in sweep_run.cells], store, head)
        self._driver = Driver(store, options, WithoutRounds(self._timed), executor, watcher.on_eta)
        self._requests: dict[str, Request] = {}
        self._put_words: list[str] = []
        self._refusals: dict[str, int] = {}
        self._notes: dict[str, None] = {}
        self._has_data = False

    def run(self) -> SweepDone:
        gone = tuple(self._ledger.gone())
        try:
            self._build(self._sweep_run.cells, self._driver)
            self._measure(self._sweep_run.cells)
            outcome = self._pursue() if self._sweep_run.sweep.goals and self._sweep_run.whole else None
        except BaseException:
            # After any error: try to write the results so far.
            with suppress(WinmlDagError):
                self._ledger.write(interrupted=True)
            raise
        if outcome is not None:
            self._ledger.conclude(outcome.goals, outcome.trials)
        result = self._ledger.result(self._ledger.before) if self._ledger.is_as_before() else self._ledger.write()
        if self._sweep_run.modules:
            model = self._sweep_run.request.overrides.model
            write_summary(self._sweep_run.folder, self._sweep_run.modules, result.cells, model)
        # Trials were built by this run, too.
        cells = tuple(cell for cell in result.cells if cell.name in self._ledger.results)
        words = [request.words for request in self._requests.values()]
        kept = tuple(word for word in (*words, *self._put_words) if word is not None)
        return SweepDone(result, cells, gone, kept, self._refusals, tuple(self._notes), self._has_data)

    def _request(self, cell: Cell) -> Request:
        return request_of(cell, self._sweep_run.request, self._sweep_run.folder)

    def _build(self, cells: Sequence[Cell], driver: Driver) -> None:
        """Bring the folders of *cells* up to date."""
        by_name = {cell.name: cell for cell in cells}
        self._requests |= {cell.name: self._request(cell) for cell in cells}
        known = {} if driver.options.rebuild else dict(self._known(cells))

        def finish(result: CellResult) -> None:
            self._watcher.cell(result.name, result.status, result.why)
            self._ledger.take(result)

        for current_plan, last in known.values():
            log_use(str(self._store.folder), current_plan)
            finish(as_found(last))
        rest = [cell for cell in cells if cell.name not in known]
        if not rest:
            return

        def done(name: str, ended: Ended[BuildResult]) -> None:
            if isinstance(ended, WinmlDagError):
                self._refusals[name] = ended.exit_code
            command = f"{self._sweep_run.command} --filter {shlex.quote(name)}"
            finish(cell_result(by_name[name], ended, command, self._timed.started_at))

        requests = {cell.name: self._requests[cell.name] for cell in rest}
        with driver.while_planning(requests.values()) as ready:
            planned = plan_each(requests.items(), self._store)
            # One observer for each phase: repeated rounds are only relevant within one.
            ended = build_all(planned, replace(ready, observer=WithoutRounds(self._timed)), done)
        for result in ended.values():
            if isinstance(result, BuildResult) and result.changed:
                self._notes |= dict.fromkeys((*result.build.notices, *filter(None, [result.cache_note])))
        self._ledger.lasted(longest_chain(planned, ended, self._timed.seconds))

    def _known(self, cells: Iterable[Cell]) -> Iterator[tuple[str, tuple[CurrentPlan, CellResult]]]:
        """Yield each cell with nothing to do: its name, its current plan, and its last result."""
        environment = Environment.now()
        folder = str(self._store.folder)
        for cell in cells:
            last, words = self._ledger.last(cell), self._requests[cell.name].words
            if last is None or words is None or not last.is_there:
                continue
            current_plan = check(folder, words, environment)
            is_current = current_plan is not None and current_plan.is_up_to_date
            if current_plan is not None and is_current and keys_of(last) <= {*keys_of_note(folder, words)}:
                yield cell.name, (current_plan, replace(last, values=cell.values))

    @property
    def _reusing(self) -> Driver:
        return replace(self._driver, options=replace(self._driver.options, rebuild=False))

    @property
    def _measuring(self) -> Driver:
        """Measurements are independent of each other, and all run on this machine."""
        return replace(self._driver, options=replace(self._driver.options, keep_going=True, cluster=None))

    def _measure(self, cells: Sequence[Cell]) -> None:
        """Measure those of *cells* that have a build, as the sweep requests."""
        measure = self._sweep_run.sweep.measure
        there = [cell for cell in cells if self._ledger.results[cell.name].is_there]
        if not measure or not there:
            return
        self._watcher.phase("measuring", [cell.name for cell in there])
        # Imported here: most sweeps measure nothing.
        from winml_dag.recipe.load import load_recipe

        finished = [
            Finished(cell.name, self._sweep_run.folder / cell.folder, cell.recipe or load_recipe(cell.file, cell.item))
            for cell in there
        ]
        self._has_data |= any(cell.has_data for cell in finished)

        def done(name: str) -> None:
            self._watcher.cell(name, self._ledger.results[name].status)

        speeds, qualities = measure_cells(finished, measure, self._measuring, done)
        for cell in there:
            result = self._ledger.results[cell.name]
            self._ledger.take(replace(result, perf=speeds.get(cell.name), eval=qualities.get(cell.name)))

    def _pursue(self) -> GoalOutcome:
        """Return the winners among all cells that have a build, whichever run made it."""
        known = {cell.name: cell for cell in self._ledger.result(self._ledger.before).cells} | self._ledger.results
        known |= {cell.name: cell for cell in self._outdated(known)}
        means = Means(
            folder=self._sweep_run.folder,
            request=self._request,
            carry_out=self._carry_out,
            put=self._put,
            driver=self._measuring,
        )
        return pursue_goals(self._sweep_run.sweep, [known[cell.name] for cell in self._sweep_run.sweep.cells], means)

    def _outdated(self, known: Mapping[str, CellResult]) -> Iterator[CellResult]:
        """Yield other runs' cells whose build is outdated: its metrics are not those of what would be published now."""
        cells = self._sweep_run.sweep.cells
        others = [cell for cell in cells if cell.name not in self._ledger.results and known[cell.name].is_there]
        requests = [(cell.name, self._request(cell)) for cell in others]
        for name, graph in plan_each(requests, self._store).items():
            now = frozenset[str | None]()
            if not isinstance(graph, WinmlDagError):
                now = frozenset(view.cache_key for view in plan(graph, self._store).stages)
            if not keys_of(known[name]) <= now:
                yield replace(known[name], status=CellStatus.NOT_REACHED, why=_OUTDATED)

    def _carry_out(self, cells: Sequence[Cell]) -> Sequence[CellResult]:
        """Build and measure further *cells* like those of the sweep."""
        self._watcher.phase("searching", [cell.name for cell in cells])
        # With --rebuild, stages that they share with the sweep's cells were already rebuilt; do not repeat that every
        # round.
        self._build(cells, self._reusing)
        self._measure(cells)
        return [self._ledger.results[cell.name] for cell in cells]

    def _put(self, cell: Cell, folder: Path) -> None:
        """Bring *folder* up to date with the build of *cell*.

        Raises:
            StageError: when a stage failed; and any error of planning.
        """
        request = replace(self._request(cell), output_dir=folder)
        planned = plan_request(request, self._store, download=True)
        result = build(planned, self._reusing)
        if result.failed:
            raise StageError(f"{folder} could not be brought up to date with {cell.name}.")
        if request.words is not None:
            self._put_words.append(request.words)
