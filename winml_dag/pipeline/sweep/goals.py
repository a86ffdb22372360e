"""The goals of a sweep: after its cells are built, publish the winner of each goal."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winml_dag.errors import UsageError, WinmlDagError
from winml_dag.file_reading import read_json
from winml_dag.pipeline.layout import BUILD_CONFIG
from winml_dag.pipeline.run import Driver
from winml_dag.pipeline.sweep.measuring import Facts, facts_of
from winml_dag.pipeline.sweep.result import Candidate, CellResult, CellStatus, GoalResult, SearchResult
from winml_dag.pipeline.sweep.search import PrecisionSearch, rank_cells, search_together
from winml_dag.recipe.goal import MEASURES, Bound, Goal, group_axes, groups, winner_folder

if TYPE_CHECKING:
    from winml_dag.pipeline.request import Request
    from winml_dag.recipe.sweep import Cell, Sweep


# Tie-breakers among cells with equal minimized values; after these, the order of cells decides.
_TIES = ("cosine", "size", "latency")


@dataclass(frozen=True)
class Evaluation:
    """A cell evaluated for a goal.

    Attributes:
        facts: None for a cell without a result.
        broken: the bounds that it does not meet.
        unknown: required measures without a value, with the reason.
    """

    result: CellResult
    facts: Facts | None
    broken: tuple[Bound, ...]
    unknown: Mapping[str, str]

    @property
    def meets(self) -> bool:
        return self.facts is not None and not self.broken and not self.unknown

    @property
    def misses_quality_only(self) -> bool:
        """Whether only a higher precision is missing: it breaks only bounds on quality, and has all values."""
        return bool(self.broken) and not self.unknown and all(MEASURES[one.measure].of_quality for one in self.broken)

    @property
    def keeps_quality(self) -> bool:
        """Whether it meets all bounds on quality, regardless of other bounds."""
        unknown = any(MEASURES[name].of_quality for name in self.unknown)
        return (
            self.facts is not None and not unknown and not any(MEASURES[one.measure].of_quality for one in self.broken)
        )

    def value(self, measure: str) -> float | None:
        return None if self.facts is None else self.facts.values.get(measure)

    def candidate(self, goal: Goal) -> Candidate:
        return Candidate(
            self.result.name, {name: self.value(name) for name in goal.measures}, "; ".join(self._against())
        )

    def _against(self) -> Iterator[str]:
        """Yield the reasons that rule it out, as sentences without a full stop."""
        if self.facts is None:
            yield absence(self.result)
            return
        for name, why in self.unknown.items():
            yield f"{name} is not known: {why.rstrip('.')}"
        for bound in self.broken:
            side = "below" if bound.at_least else "above"
            found = figure(bound.measure, self.facts.values[bound.measure])
            yield f"{bound.measure} is {found}, {side} {bound.text[2:].strip()}"


def evaluate(goal: Goal, result: CellResult, facts: Facts | None) -> Evaluation:
    """Evaluate *result* against the bounds of *goal*."""
    if facts is None:
        return Evaluation(result, None, (), {})
    unknown = {name: facts.missing.get(name, "") for name in goal.measures if name not in facts.values}
    broken = tuple(
        bound for bound in goal.bounds if bound.measure in facts.values and not bound.holds(facts.values[bound.measure])
    )
    return Evaluation(result, facts, broken, unknown)


def winner(goal: Goal, evaluations: Sequence[Evaluation]) -> Evaluation | None:
    """Return the best cell that meets the bounds of *goal*; ties go to quality, then size, then speed, then order."""
    order = {id(one): place for place, one in enumerate(evaluations)}
    meeting = [one for one in evaluations if one.meets]
    return min(meeting, key=lambda one: (*_rank(goal, one), order[id(one)]), default=None)


def nearest(goal: Goal, evaluations: Sequence[Evaluation]) -> Evaluation | None:
    """Return the cell nearest to the bounds of *goal* when none meets them.

    It is the one whose largest shortfall, relative to the bound, is smallest.
    """
    missing = [one for one in evaluations if one.broken and not one.unknown]
    order = {id(one): place for place, one in enumerate(missing)}
    return min(missing, key=lambda one: (_shortfall(one), *_rank(goal, one), order[id(one)]), default=None)


def absence(result: CellResult) -> str:
    """Return why *result* has no build."""
    if result.failure is not None:
        at = "" if result.failure.stage is None else f" at {result.failure.stage}"
        return f"failed{at}: {result.failure.error.rstrip('.')}"
    why = f": {result.why.rstrip('.')}" if result.why else ""
    return f"{result.status.value}{why}"


def is_pending(results: Sequence[CellResult]) -> bool:
    """Whether some of *results* are not available yet: then the best one is undetermined."""
    return any(result.status is CellStatus.NOT_REACHED for result in results)


def figure(measure: str, value: float) -> str:
    """Return *value* with its unit, precise enough to differ from a bound that it just misses."""
    unit = MEASURES[measure].unit
    return f"{value:.8g} {unit}".rstrip()


def _rank(goal: Goal, one: Evaluation) -> tuple[float, ...]:
    ties = (one.value(name) for name in _TIES)
    signed = (
        float("inf") if value is None else -value if MEASURES[name].more_is_better else value
        for name, value in zip(_TIES, ties, strict=True)
    )
    minimized = one.value(goal.minimize)
    return (float("inf") if minimized is None else minimized, *signed)


def _shortfall(one: Evaluation) -> float:
    assert one.facts is not None
    return max(
        abs(one.facts.values[bound.measure] - bound.value) / max(abs(bound.value), 1e-12) for bound in one.broken
    )


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

    Raises:
        KeyboardInterrupt: after child processes have been stopped.
    """
    return _Pursuit(sweep, results, means).run()


@dataclass
class _Choice:
    """One goal in one group of cells; ``precision_search``: the search started in it, ``why``: why none was."""

    goal: Goal
    group: Mapping[str, str]
    members: tuple[Cell, ...]
    precision_search: PrecisionSearch | None = None
    why: str = ""


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
            self._search(choices)
        goals = tuple(self._result(choice) for choice in choices)
        return GoalOutcome(goals, tuple(result for _, result in self.trials.values()))

    @cached_property
    def _by_name(self) -> Mapping[str, CellResult]:
        return {result.name: result for result in self.results}

    def _choices(self) -> Iterator[_Choice]:
        cells = [cell for cell in self.sweep.cells if not cell.left_out]
        for goal in self.sweep.goals:
            for group in groups(group_axes(goal, self.sweep.axes, self.sweep.cells), cells):
                members = tuple(cell for cell in cells if all(cell.values[axis] == group[axis] for axis in group))
                yield _Choice(goal, group, members)

    def _evaluations(self, choice: _Choice) -> list[Evaluation]:
        """Return the evaluations of the cells to choose from, and of the trials that started from one of them."""
        names = {cell.name for cell in choice.members}
        own = [self._by_name[cell.name] for cell in choice.members if cell.name in self._by_name]
        trials = [result for _, result in self.trials.values() if result.trial_of in names]
        return [evaluate(choice.goal, result, self._facts_of(result)) for result in (*own, *trials)]

    def _facts_of(self, result: CellResult) -> Facts | None:
        if not result.is_there:
            return None
        if result.name not in self._facts:
            self._facts[result.name] = facts_of(result, self.means.folder)
        return self._facts[result.name]

    def _search(self, choices: Sequence[_Choice]) -> None:
        search = self.sweep.search
        assert search is not None
        for choice in choices:
            self._begin(choice)
        searches = [choice.precision_search for choice in choices if choice.precision_search is not None]
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

    def _begin(self, choice: _Choice) -> None:
        """Start a search from the cell that would win if a few of its nodes were better, if there is one."""
        evaluations = self._evaluations(choice)
        if is_pending([one.result for one in evaluations]):
            return
        best = winner(choice.goal, evaluations)
        cells = {cell.name: cell for cell in choice.members}
        starts = sorted(
            (one for one in evaluations if one.misses_quality_only or _failed_validation(one.result)),
            key=lambda one: _or_infinite(one.value(choice.goal.minimize)),
        )
        if not starts:
            choice.why = "no cell misses only a bound on quality, so there was nothing to search"
            return
        start = next((one for one in starts if best is None or _is_less(choice.goal, one, best)), None)
        if start is None:
            choice.why = (
                f"nothing was searched: {starts[0].result.name} misses a bound on quality, and is no better in"
                f" {choice.goal.minimize} than the winner"
            )
            return
        folder = cells[start.result.name].folder
        if taken := next((cell for cell in self.sweep.cells if cell.folder.startswith(f"{folder}+")), None):
            choice.why = (
                f"nothing was searched: trials of {start.result.name} would be called like the cell {taken.name}"
            )
            return
        choice.precision_search = PrecisionSearch(
            cells[start.result.name], lambda result: self._keeps_quality(choice.goal, result)
        )

    def _keeps_quality(self, goal: Goal, result: CellResult) -> bool:
        return evaluate(goal, result, self._facts_of(result)).keeps_quality

    def _result(self, choice: _Choice) -> GoalResult:
        evaluations = self._evaluations(choice)
        goal = choice.goal
        result = GoalResult(
            choice.group,
            goal.minimize,
            dict(goal.subject_to),
            None,
            tuple(one.candidate(goal) for one in evaluations),
            search=self._searched(choice),
        )
        results = [one.result for one in evaluations]
        if is_pending(results):
            waiting = sum(result.status is CellStatus.NOT_REACHED for result in results)
            have = "has" if waiting == 1 else "have"
            return replace(result, pending=True, why=f"{waiting} of {len(results)} cells {have} no result yet")
        folder = winner_folder(goal, choice.group)
        best = winner(goal, evaluations)
        if best is None:
            return replace(result, why=f"{_no_winner(goal, evaluations)}{_left_behind(self.means.folder / folder)}")
        why = _of_an_emulator(goal, best)
        result = replace(result, winner=best.result.name, why=why)
        try:
            self.means.put(self._cell(best.result.name), self.means.folder / folder)
            _write_note(self.means.folder / folder, self.sweep.name, result)
        except WinmlDagError as error:
            return replace(result, why=f"it could not be put into {folder}: {error}")
        return replace(result, folder=folder)

    def _searched(self, choice: _Choice) -> SearchResult | None:
        if self.sweep.search is None:
            return None
        if choice.precision_search is None:
            return SearchResult("", "", 0, {}, why=choice.why) if choice.why else None
        return choice.precision_search.result(self.sweep.search)

    def _cell(self, name: str) -> Cell:
        if name in self.trials:
            return self.trials[name][0]
        return next(cell for cell in self.sweep.cells if cell.name == name)


def _or_infinite(value: float | None) -> float:
    """Return *value*; missing values sort last."""
    return float("inf") if value is None else value


def _failed_validation(result: CellResult) -> bool:
    """Whether validate rejected a cell because it is too far from its float model: then it has no measurements."""
    return result.failure is not None and (result.failure.stage or "").endswith("validate")


def _is_less(goal: Goal, one: Evaluation, best: Evaluation) -> bool:
    """Whether *one*, whose value may be missing, could become better than *best*."""
    mine, its = one.value(goal.minimize), best.value(goal.minimize)
    return mine is None or its is None or mine < its


def _no_winner(goal: Goal, evaluations: Sequence[Evaluation]) -> str:
    near = nearest(goal, evaluations)
    if near is None:
        first = next((f"; {one.result.name}: {one.candidate(goal).why}" for one in evaluations), "")
        return f"of no cell all is known that the goal needs{first}"
    against = near.candidate(goal).why
    return f"no cell meets the bounds; {near.result.name} comes nearest: {against}"


def _of_an_emulator(goal: Goal, best: Evaluation) -> str:
    goes_by = [name for name in goal.measures if name in _OF_THE_DEVICE]
    if best.facts is None or not best.facts.emulated or not goes_by:
        return ""
    return f"measured on an emulator, which says nothing about a real device: {', '.join(goes_by)}"


def _left_behind(folder: Path) -> str:
    """Return the end of a sentence about a folder that has the winner of an earlier run."""
    note = _read_note(folder)
    return "" if note is None else f"; {folder} still has {note.get('cell')}, which won an earlier run"


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
