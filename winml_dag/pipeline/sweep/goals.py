"""The goals of a sweep: after its cells are built, publish the winner of each goal."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isinf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winml_dag.errors import UsageError, WinmlDagError
from winml_dag.file_reading import read_json
from winml_dag.pipeline.layout import BUILD_CONFIG
from winml_dag.pipeline.run import Driver
from winml_dag.pipeline.sweep.measuring import Facts, facts_of
from winml_dag.pipeline.sweep.result import Candidate, CellResult, CellStatus, GoalResult, SearchResult
from winml_dag.pipeline.sweep.search import PrecisionSearch, rank_cells, search_together
from winml_dag.recipe.goal import MEASURES, Bound, Goal, Search, group_axes, groups, winner_folder

if TYPE_CHECKING:
    from winml_dag.pipeline.request import Request
    from winml_dag.recipe.sweep import Cell, Sweep


@dataclass(frozen=True)
class Evaluation:
    """A cell evaluated for a goal; *facts* are None for a cell without a build."""

    goal: Goal
    result: CellResult
    facts: Facts | None

    @cached_property
    def broken(self) -> list[Bound]:
        """The bounds that it does not meet."""
        found = {} if self.facts is None else self.facts.values
        return [one for one in self.goal.bounds if one.measure in found and not one.holds(found[one.measure])]

    @cached_property
    def unknown(self) -> Mapping[str, str]:
        """Required measures without a value, with the reason."""
        if self.facts is None:
            return {}
        missing = (name for name in self.goal.measures if name not in self.facts.values)
        return {name: self.facts.missing.get(name, "") for name in missing}

    @property
    def meets(self) -> bool:
        return self.facts is not None and not self.broken and not self.unknown

    @property
    def lacks_precision(self) -> bool:
        """Whether only a higher precision is missing: it has all values and breaks only bounds on quality, or has no
        measurements because validate rejected it as too far from its float model.
        """
        if self.result.failure is not None:
            return (self.result.failure.stage or "").endswith("validate")
        return bool(self.broken) and not self.unknown and all(MEASURES[one.measure].of_quality for one in self.broken)

    @property
    def keeps_quality(self) -> bool:
        """Whether it meets all bounds on quality, regardless of other bounds."""
        against = (*self.unknown, *(one.measure for one in self.broken))
        return self.facts is not None and not any(MEASURES[name].of_quality for name in against)

    @property
    def minimized(self) -> float:
        return self._value(self.goal.minimize, float("inf"))

    @property
    def rank(self) -> tuple[float, ...]:
        """Its place among others, the best first. After what is minimized, ties go to quality, size, then speed."""
        infinite = float("inf")
        return (
            self.minimized,
            -self._value("cosine", -infinite),
            self._value("size", infinite),
            self._value("latency", infinite),
        )

    @property
    def shortfall(self) -> float:
        """The largest distance from a bound that it breaks, relative to the bound."""
        return max(abs(self._value(one.measure) - one.value) / max(abs(one.value), 1e-12) for one in self.broken)

    def candidate(self) -> Candidate:
        found = {} if self.facts is None else self.facts.values
        return Candidate(
            self.result.name, {name: found.get(name) for name in self.goal.measures}, "; ".join(self._against())
        )

    def _value(self, measure: str, default: float = 0.0) -> float:
        return default if self.facts is None else self.facts.values.get(measure, default)

    def _against(self) -> Iterator[str]:
        """Yield the reasons that rule it out, as sentences without a full stop."""
        if self.facts is None:
            yield _absence(self.result)
        for name, why in self.unknown.items():
            yield f"{name} is not known: {why.rstrip('.')}"
        for bound in self.broken:
            side = "below" if bound.at_least else "above"
            # Precise enough to differ from a bound that it just misses.
            found = f"{self._value(bound.measure):.8g} {MEASURES[bound.measure].unit}".rstrip()
            yield f"{bound.measure} is {found}, {side} {bound.text[2:].strip()}"


def winner(evaluations: Sequence[Evaluation]) -> Evaluation | None:
    """Return the best cell that meets all bounds; the first of several."""
    return min((one for one in evaluations if one.meets), key=lambda one: one.rank, default=None)


def nearest(evaluations: Sequence[Evaluation]) -> Evaluation | None:
    """Return the cell nearest to the bounds when none meets them: the one whose largest shortfall is smallest."""
    missing = (one for one in evaluations if one.broken and not one.unknown)
    return min(missing, key=lambda one: (one.shortfall, *one.rank), default=None)


def _absence(result: CellResult) -> str:
    """Return why *result* has no build."""
    if result.failure is not None:
        at = "" if result.failure.stage is None else f" at {result.failure.stage}"
        return f"failed{at}: {result.failure.error.rstrip('.')}"
    why = f": {result.why.rstrip('.')}" if result.why else ""
    return f"{result.status.value}{why}"


# In the folder of a winner: which cell it is, and the metrics it won by.
NOTE = "winner.json"
_NOTE_FORMAT = 1
_OF_THE_DEVICE = ("latency", "peak_memory")


@dataclass(frozen=True)
class Means:
    """What the caller provides to pursue goals.

    Attributes:
        folder: that of the sweep, which contains the folders of cells and winners.
        request: returns the request that builds a cell, with the options of this run.
        carry_out: builds and measures further cells like those of the sweep; returns their results in order.
        put: brings a folder up to date with a cell's build, which is cached; raises WinmlDagError.
        driver: runs everything other than builds.
    """

    folder: Path
    request: Callable[[Cell], Request]
    carry_out: Callable[[Sequence[Cell]], Sequence[CellResult]]
    put: Callable[[Cell, Path], None]
    driver: Driver


@dataclass(frozen=True)
class GoalOutcome:
    """The results of all goals, and the cells that a search added."""

    goals: tuple[GoalResult, ...]
    trials: tuple[CellResult, ...] = ()


def pursue_goals(sweep: Sweep, results: Sequence[CellResult], means: Means) -> GoalOutcome:
    """Return the winners among *results*, one for each of *sweep*'s goals, and publish them.

    If the sweep requests a search, further cells compete, too.
    """
    return _Pursuit(sweep, results, means).run()


@dataclass
class _Choice:
    """One goal in one group of cells, and the search started in it, or why none was."""

    goal: Goal
    group: Mapping[str, str]
    members: dict[str, Cell]
    search: PrecisionSearch | str = ""


@dataclass
class _Pursuit:
    sweep: Sweep
    results: Sequence[CellResult]
    means: Means
    trials: Mapping[str, tuple[Cell, CellResult]] = field(default_factory=dict)
    _facts: dict[str, Facts] = field(default_factory=dict)

    def run(self) -> GoalOutcome:
        choices = list(self._choices())
        if self.sweep.search is not None:
            self._search(choices, self.sweep.search)
        goals = tuple(self._result(choice) for choice in choices)
        return GoalOutcome(goals, tuple(result for _, result in self.trials.values()))

    def _choices(self) -> Iterator[_Choice]:
        cells = [cell for cell in self.sweep.cells if not cell.left_out]
        for goal in self.sweep.goals:
            for group in groups(group_axes(goal, self.sweep.axes, self.sweep.cells), cells):
                members = (cell for cell in cells if all(cell.values[axis] == group[axis] for axis in group))
                yield _Choice(goal, group, {cell.name: cell for cell in members})

    def _evaluations(self, choice: _Choice) -> list[Evaluation]:
        """Return the evaluations of the cells to choose from, and of the trials that started from one of them."""
        own = [result for result in self.results if result.name in choice.members]
        trials = [result for _, result in self.trials.values() if result.trial_of in choice.members]
        return [self._evaluation(choice.goal, result) for result in (*own, *trials)]

    def _evaluation(self, goal: Goal, result: CellResult) -> Evaluation:
        if result.is_there and result.name not in self._facts:
            self._facts[result.name] = facts_of(result, self.means.folder)
        return Evaluation(goal, result, self._facts.get(result.name))

    def _search(self, choices: Sequence[_Choice], search: Search) -> None:
        for choice in choices:
            choice.search = self._begin(choice)
        searches = [choice.search for choice in choices if isinstance(choice.search, PrecisionSearch)]
        ranked = rank_cells(
            {one.cell.name: one.cell for one in searches}, self.means.request, search, self.means.driver
        )
        for one in searches:
            one.ranked = ranked[one.cell.name]
        self.trials = search_together(searches, search, self._carry_out)

    def _carry_out(self, cells: Sequence[Cell]) -> list[CellResult]:
        """Run trials; no recipe has them, so each one's command uses the settings that its build wrote."""
        results = []
        for result in self.means.carry_out(cells):
            folder = shlex.quote(str(self.means.folder / result.folder))
            command = f"winml-dag build -c {folder}/{BUILD_CONFIG} -o {folder}" if result.is_there else ""
            results.append(replace(result, command=command))
        return results

    def _begin(self, choice: _Choice) -> PrecisionSearch | str:
        """Return a search from the cell that would win if a few of its nodes were better, or why there is none."""
        evaluations = self._evaluations(choice)
        if any(one.result.status is CellStatus.NOT_REACHED for one in evaluations):
            return ""
        best = winner(evaluations)
        starts = sorted((one for one in evaluations if one.lacks_precision), key=lambda one: one.minimized)
        if not starts:
            return "no cell misses only a bound on quality, so there was nothing to search"
        # One that failed in validate was not measured, and may become better than any.
        could_win = (one for one in starts if best is None or isinf(one.minimized) or one.minimized < best.minimized)
        start = next(could_win, None)
        if start is None:
            return (
                f"nothing was searched: {starts[0].result.name} misses a bound on quality, and is no better in"
                f" {choice.goal.minimize} than the winner"
            )
        name = start.result.name
        folder = choice.members[name].folder
        if taken := next((cell for cell in self.sweep.cells if cell.folder.startswith(f"{folder}+")), None):
            return f"nothing was searched: trials of {name} would be called like the cell {taken.name}"
        return PrecisionSearch(choice.members[name], lambda result: self._evaluation(choice.goal, result).keeps_quality)

    def _result(self, choice: _Choice) -> GoalResult:
        evaluations = self._evaluations(choice)
        goal = choice.goal
        result = GoalResult(
            choice.group,
            goal.minimize,
            dict(goal.subject_to),
            None,
            tuple(one.candidate() for one in evaluations),
            search=self._searched(choice),
        )
        if waiting := sum(one.result.status is CellStatus.NOT_REACHED for one in evaluations):
            have = "has" if waiting == 1 else "have"
            return replace(result, pending=True, why=f"{waiting} of {len(evaluations)} cells {have} no result yet")
        name = winner_folder(goal, choice.group)
        folder = self.means.folder / name
        best = winner(evaluations)
        if best is None:
            note = _read_note(folder)
            left = "" if note is None else f"; {folder} still has {note.get('cell')}, which won an earlier run"
            return replace(result, why=f"{_no_winner(evaluations)}{left}")
        result = replace(result, winner=best.result.name, why=_of_an_emulator(best))
        try:
            cells = choice.members | {name: cell for name, (cell, _) in self.trials.items()}
            self.means.put(cells[best.result.name], folder)
            _write_note(folder, self.sweep.name, result)
        except WinmlDagError as error:
            return replace(result, why=f"it could not be put into {name}: {error}")
        return replace(result, folder=name)

    def _searched(self, choice: _Choice) -> SearchResult | None:
        if self.sweep.search is None or not choice.search:
            return None
        if isinstance(choice.search, str):
            return SearchResult("", "", 0, {}, why=choice.search)
        return choice.search.result(self.sweep.search)


def _no_winner(evaluations: Sequence[Evaluation]) -> str:
    near = nearest(evaluations)
    if near is None:
        first = next((f"; {one.result.name}: {one.candidate().why}" for one in evaluations), "")
        return f"of no cell all is known that the goal needs{first}"
    return f"no cell meets the bounds; {near.result.name} comes nearest: {near.candidate().why}"


def _of_an_emulator(best: Evaluation) -> str:
    goes_by = [name for name in best.goal.measures if name in _OF_THE_DEVICE]
    if best.facts is None or not best.facts.emulated or not goes_by:
        return ""
    return f"measured on an emulator, which says nothing about a real device: {', '.join(goes_by)}"


def _write_note(folder: Path, sweep: str, result: GoalResult) -> None:
    """Write to *folder* which cell it is, unless that is already there."""
    from winml_dag.store.files import in_words, write_whole

    path = folder / NOTE
    won = next(one for one in result.candidates if one.cell == result.winner)
    value = {
        "format": _NOTE_FORMAT,
        "sweep": sweep,
        "cell": result.winner,
        "group": dict(result.group),
        "minimize": result.minimize,
        "subject_to": dict(result.subject_to),
        "values": dict(won.values),
    }
    before = _read_note(folder)
    if before == value:
        return
    if before is None and path.exists():
        raise UsageError(f"{path} is in the way: no goal has written it.", advice="Move it away.")
    with in_words(f"Cannot write {path}"):
        write_whole(path, (json.dumps(value, ensure_ascii=False, indent=2) + "\n").encode())


def _read_note(folder: Path) -> dict[str, Any] | None:
    """Return the winner file in *folder*; None if there is none, or it is not from this program."""
    try:
        value = read_json(folder / NOTE)
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) and value.get("format") == _NOTE_FORMAT and "cell" in value else None
