"""A sweep carried out: all cells as one graph, then what is measured of them, then its goals; and ``sweep.json``.

Each cell is remembered like a build of its own, so that whatever of a sweep is there already is seen at a glance, in
whichever file and under whichever options it was asked for.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from winml_dag.engine.events import Observer, PassingOn, ReadProgress, Silent, StageResult
from winml_dag.errors import StageError, WinmlDagError
from winml_dag.pipeline.build import Outcome, build, build_all, plan
from winml_dag.pipeline.modules import modules_of, write_summary
from winml_dag.pipeline.plan_cache import plan_each, plan_request
from winml_dag.pipeline.run import BuildOptions, Driver
from winml_dag.pipeline.search import WithoutRounds
from winml_dag.pipeline.sweep.cells import Made, as_found, keys_of, longest_chain, recipe_of, request_of
from winml_dag.pipeline.sweep.goals import GoalOutcome, Means, pursue_goals
from winml_dag.pipeline.sweep.ledger import Ledger, new_head
from winml_dag.pipeline.sweep.measuring import Finished, measure_cells
from winml_dag.pipeline.sweep.result import CellResult, CellStatus, SweepResult
from winml_dag.pipeline.sweep.selection import Selection, folder_of, refuse_overruled, selected
from winml_dag.pipeline.uptodate import CurrentPlan, Environment, check, note_use
from winml_dag.pipeline.uptodate import keys_of as keys_of_note
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
    """Told of stages as any observer is, with the name of a cell before the id of each node; and of cells."""

    def phase(self, doing: str, cells: Sequence[str]) -> None:
        """What comes now is done for each of *cells*."""

    def cell(self, name: str, status: CellStatus, why: str = "") -> None:
        """What became of a cell in this phase."""

    def on_eta(self, eta: Eta) -> None:
        """What tells how long the stages will take that run from now on."""


class SilentWatcher(Silent):
    """One that says nothing."""

    def phase(self, doing: str, cells: Sequence[str]) -> None: ...

    def cell(self, name: str, status: CellStatus, why: str = "") -> None: ...

    def on_eta(self, eta: Eta) -> None: ...


class _Timed(PassingOn):
    """Tells *observer*, and remembers when each stage began and how long it took, by its key.

    ``started_at`` is in seconds since this was made.
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
    """How a sweep is to be run.

    Attributes:
        request: the options of this run, which hold for every cell.
        folder: where all cells go.
        cells: those that this run is for, of all that the sweep has.
        left_out: those of its choice that the sweep leaves out.
        recipe: the file or files, as they were named.
        commands: what builds each cell alone, by its name.
        modules: what the cells are, where the recipe is a list of modules.
        whole: whether its goals are pursued: not by a run that sees only a part of what they choose from.
    """

    sweep: Sweep
    request: Request
    folder: Path
    cells: tuple[Cell, ...]
    left_out: tuple[Cell, ...]
    recipe: str
    commands: Mapping[str, str] = field(default_factory=dict)
    modules: tuple[ModuleItem, ...] = ()
    whole: bool = True

    @classmethod
    def of(cls, named: Sequence[Path], request: Request, selection: Selection, command: str) -> SweepRun:
        """What *named* recipes, folders and patterns ask for together, with the options of *request*. *command*: what
        builds all of it, so that with a filter behind it does one cell.

        Raises:
            RecipeError, InputError: for a sweep that cannot be read.
            UsageError: when there is no folder for it, and for a selection that means nothing.
        """
        sweep = sweep_of_files(named)
        refuse_overruled(sweep, request.overrides)
        folder = folder_of(sweep, request)
        meant = selected(sweep, selection, folder)
        cells = tuple(cell for cell in meant if not cell.left_out)
        return cls(
            sweep,
            replace(request, recipe=None, output_dir=folder),
            folder,
            cells,
            left_out=tuple(cell for cell in meant if cell.left_out),
            recipe=", ".join(map(str, named)),
            commands={cell.name: f"{command} --filter {shlex.quote(cell.name)}" for cell in cells},
            modules=modules_of(sweep, folder),
            whole=selection.shard is None,
        )


@dataclass(frozen=True)
class SweepDone:
    """``cells``: what became of those that the run was for, and of trials. ``gone``: folders of cells that are no more.
    ``words``: of all requests that stand for what there is now. ``refusals``: exit codes of cells that were refused.
    ``notes``: what is to be known of cells that were built, and of the cache, each sentence once. ``has_data``: some
    cell is measured on data of its own, of which the note of no build tells.
    """

    result: SweepResult
    cells: tuple[CellResult, ...]
    gone: tuple[str, ...]
    words: tuple[str, ...]
    refusals: Mapping[str, int]
    notes: tuple[str, ...]
    has_data: bool = False


def run_sweep(
    asked: SweepRun,
    store: Store,
    options: BuildOptions,
    watcher: Watcher,
    executor: Executor | None = None,
) -> SweepDone:
    """Bring the cells of *asked* up to date, measure them, and pursue the goals of the sweep.

    A cell that fails keeps no other from being built, unless *options* say otherwise.

    Raises:
        UsageError: when somebody else's ``sweep.json`` is in the way.
        StoreError: when the cache or the folder cannot be used.
        KeyboardInterrupt: after children have been ended; what there is by then is in place and in ``sweep.json``.
    """
    return _Run(asked, store, options, watcher, executor).run()


class _Run:
    """One run of a sweep."""

    def __init__(
        self,
        asked: SweepRun,
        store: Store,
        options: BuildOptions,
        watcher: Watcher,
        executor: Executor | None,
    ) -> None:
        self._asked = asked
        self._store = store
        self._watcher = watcher
        self._timed = _Timed(watcher)
        head = new_head(asked.sweep, asked.recipe, options.jobs)
        self._ledger = Ledger(asked.sweep, asked.folder, [cell.name for cell in asked.cells], store, head)
        self._driver = Driver(store, options, WithoutRounds(self._timed), executor, watcher.on_eta)
        # By name, what each cell was built by, and what became of it.
        self._requests: dict[str, Request] = {}
        self._results: dict[str, CellResult] = {}
        self._put_words: list[str] = []
        self._refusals: dict[str, int] = {}
        self._notes: dict[str, None] = {}
        self._has_data = False

    def run(self) -> SweepDone:
        gone = tuple(self._ledger.gone())
        try:
            self._build(self._asked.cells, self._ledger.take, self._driver)
            self._measure(self._asked.cells, self._ledger.take)
            outcome = self._pursue() if self._asked.sweep.goals and self._asked.whole else None
        except BaseException:
            # Whatever ended it: what there is by now is told, if it can be.
            with suppress(WinmlDagError):
                self._ledger.write(interrupted=True)
            raise
        if outcome is not None:
            self._ledger.conclude(outcome.goals, outcome.trials)
        result = self._ledger.result(self._ledger.before) if self._ledger.is_as_before() else self._ledger.write()
        if self._asked.modules:
            model = self._asked.request.overrides.model
            write_summary(self._asked.folder, self._asked.modules, result.cells, model)
        names = {cell.name for cell in self._asked.cells} | {
            trial.name for trial in (outcome or GoalOutcome(())).trials
        }
        cells = tuple(cell for cell in result.cells if cell.name in names)
        words = [request.words for request in self._requests.values()]
        kept = tuple(word for word in (*words, *self._put_words) if word is not None)
        return SweepDone(result, cells, gone, kept, self._refusals, tuple(self._notes), self._has_data)

    def _build(self, cells: Sequence[Cell], take: Callable[[CellResult], None], driver: Driver) -> None:
        """Bring the folders of *cells* up to date; *take* is told of each as soon as it has ended."""
        by_name = {cell.name: cell for cell in cells}
        self._requests |= {cell.name: request_of(cell, self._asked.request, self._asked.folder) for cell in cells}
        known = {} if driver.options.rebuild else dict(self._known(cells))

        def finish(result: CellResult) -> None:
            self._results[result.name] = result
            self._watcher.cell(result.name, result.status, result.why)
            take(result)

        for current_plan, last in known.values():
            note_use(str(self._store.folder), current_plan)
            finish(as_found(last))
        rest = [cell for cell in cells if cell.name not in known]
        if not rest:
            return
        planned = plan_each([(cell.name, self._requests[cell.name]) for cell in rest], self._store)
        made = Made(self._asked.commands, self._timed.started_at)

        def done(outcome: Outcome) -> None:
            if outcome.error is not None:
                self._refusals[outcome.label] = outcome.error.exit_code
            finish(made.result(by_name[outcome.label], outcome))

        # One observer for each phase: what it has told of rounds holds for no other.
        outcomes = build_all(planned, replace(driver, observer=WithoutRounds(self._timed)), done)
        for outcome in outcomes:
            if outcome.result is not None and outcome.changed:
                cache = [outcome.result.cache_note] if outcome.result.cache_note else []
                self._notes |= dict.fromkeys((*outcome.result.build.notices, *cache))
        self._ledger.lasted(longest_chain(planned, outcomes, self._timed.seconds))

    def _known(self, cells: Iterable[Cell]) -> Iterator[tuple[str, tuple[CurrentPlan, CellResult]]]:
        """Name of each cell in which there is nothing to do, what stands of it, and what was told of it last."""
        around = Environment.now()
        folder = str(self._store.folder)
        for cell in cells:
            last, words = self._ledger.last(cell), self._requests[cell.name].words
            if last is None or words is None or not last.is_there:
                continue
            current_plan = check(folder, words, around)
            if (
                current_plan is not None
                and current_plan.is_up_to_date
                and keys_of(last) <= {*keys_of_note(folder, words)}
            ):
                yield cell.name, (current_plan, replace(last, values=cell.values))

    @property
    def _reusing(self) -> Driver:
        return replace(self._driver, options=replace(self._driver.options, rebuild=False))

    @property
    def _measuring(self) -> Driver:
        """Of what is measured nothing depends on another, and all of it is measured on this machine."""
        return replace(self._driver, options=replace(self._driver.options, keep_going=True, cluster=None))

    def _measure(self, cells: Sequence[Cell], take: Callable[[CellResult], None]) -> None:
        """Measure those of *cells* that are there, as the sweep says."""
        measure = self._asked.sweep.measure
        there = [cell for cell in cells if self._results[cell.name].is_there]
        if not measure or not there:
            return
        self._watcher.phase("measuring", [cell.name for cell in there])
        finished = [Finished(cell.name, self._asked.folder / cell.folder, recipe_of(cell)) for cell in there]
        self._has_data |= any(cell.has_data for cell in finished)

        def done(name: str) -> None:
            self._watcher.cell(name, self._results[name].status)

        for name, measured in measure_cells(finished, measure, self._measuring, done).items():
            result = replace(self._results[name], perf=measured.perf, eval=measured.eval)
            self._results[name] = result
            take(result)

    def _pursue(self) -> GoalOutcome:
        """The winners among all cells that are there, whichever run has built them."""
        known = {cell.name: cell for cell in self._ledger.result(self._ledger.before).cells} | self._results
        known |= {cell.name: cell for cell in self._outdated(known)}
        means = Means(
            folder=self._asked.folder,
            request=lambda cell: request_of(cell, self._asked.request, self._asked.folder),
            carry_out=self._carry_out,
            put=self._put,
            driver=self._measuring,
        )
        return pursue_goals(self._asked.sweep, [known[cell.name] for cell in self._asked.sweep.cells], means)

    def _outdated(self, known: Mapping[str, CellResult]) -> Iterator[CellResult]:
        """Of cells that another run has built, those that would be built otherwise now: what is known of them says
        nothing of what would be put in place.
        """
        cells = self._asked.sweep.cells
        others = [cell for cell in cells if cell.name not in self._results and known[cell.name].is_there]
        requests = [(cell.name, request_of(cell, self._asked.request, self._asked.folder)) for cell in others]
        for planned in plan_each(requests, self._store):
            now = frozenset[str | None]()
            if not isinstance(planned.graph, WinmlDagError):
                now = frozenset(view.cache_key for view in plan(planned.graph, self._store).stages)
            if not keys_of(known[planned.label]) <= now:
                yield replace(known[planned.label], status=CellStatus.NOT_REACHED, why=_OUTDATED)

    def _carry_out(self, cells: Sequence[Cell]) -> Sequence[CellResult]:
        """Build and measure further *cells* as those of the sweep."""
        self._watcher.phase("searching", [cell.name for cell in cells])
        # What they share with the sweep's cells was made anew with those, and would be again in every round.
        self._build(cells, lambda _: None, self._reusing)
        self._measure(cells, lambda _: None)
        return [self._results[cell.name] for cell in cells]

    def _put(self, cell: Cell, folder: Path) -> None:
        """Bring *folder* up to date with what *cell* builds.

        Raises:
            StageError: when a stage failed; and whatever planning raises.
        """
        request = replace(request_of(cell, self._asked.request, self._asked.folder), output_dir=folder)
        planned = plan_request(request, self._store, download=True)
        result = build(planned, self._reusing)
        if result.failed:
            raise StageError(f"{folder} could not be brought up to date with {cell.name}.")
        if request.words is not None:
            self._put_words.append(request.words)
