"""Which cells a goal chooses among, and where its winner goes; and what of that is impossible, before anything runs."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence

from winml_dag.recipe.cellnames import clashes, filled, folder_problem, template_problem
from winml_dag.recipe.document import Location
from winml_dag.recipe.goal import MEASURES, Goal, Search
from winml_dag.recipe.schema import Recipe
from winml_dag.recipe.spelling import known_instead
from winml_dag.recipe.sweep import Cell

# Of axes with these names nobody means that one value wins over the others.
_TOLD_BY_NAME = frozenset({"model", "target", "ep", "device"})
_FOLDER = "best"


def group_axes(goal: Goal, axes: Collection[str], cells: Sequence[Cell]) -> tuple[str, ...]:
    """The axes that *goal* names a winner for each value of: what it says, else those that change the model or the
    target of a cell.
    """
    if goal.per is not None:
        return tuple(axis for axis in axes if axis in goal.per)
    subjects = {cell.name: _subject(cell.recipe.recipe) for cell in cells if cell.recipe is not None}
    return tuple(axis for axis in axes if axis in _TOLD_BY_NAME or _changes(axis, subjects, cells))


def winner_folder(goal: Goal, group: Mapping[str, str]) -> str:
    """Where the winner among the cells with the values *group* goes, below the folder of the sweep."""
    template = goal.folder or "/".join((_FOLDER, *(f"{{{axis}}}" for axis in group)))
    return filled(template, group)


def goal_problems(
    goals: Sequence[Goal],
    search: Search | None,
    measure: Collection[str],
    axes: Collection[str],
    cells: Sequence[Cell],
) -> Iterator[tuple[Location, str]]:
    """What is wrong with the goals of a sweep, in view of what it measures and of its cells: where that is written, as
    if ``goal`` always had a list, and a sentence.
    """
    for place, goal in enumerate(goals):
        for at, what in _problems(goal, measure, axes):
            yield ("goal", place, *at), what
    if search is not None:
        yield from _search_problems(goals)
    yield from _clashes(goals, axes, cells)


def _problems(goal: Goal, measure: Collection[str], axes: Collection[str]) -> Iterator[tuple[Location, str]]:
    for name in goal.measures:
        needs = MEASURES[name].needs
        if needs and needs not in measure:
            at = ("minimize",) if name == goal.minimize else ("subject_to", name)
            yield at, f"{name} is not measured; write `measure: [{', '.join(sorted({*measure, needs}))}]`"
    unknown = [axis for axis in goal.per or () if axis not in axes]
    for axis in unknown:
        yield ("per",), f"{axis!r} is no axis of the matrix{known_instead(axis, axes)}"
    if goal.folder is not None and (what := template_problem(goal.folder, tuple(axes))):
        yield ("folder",), what


def _search_problems(goals: Sequence[Goal]) -> Iterator[tuple[Location, str]]:
    if not goals:
        yield ("search",), "there is no goal to search for; add `goal`"
    elif not any(MEASURES[name].of_quality for goal in goals for name in goal.subject_to):
        yield ("search",), 'no goal has a bound on quality that a low precision could miss, such as cosine: ">=0.99"'


def _clashes(goals: Sequence[Goal], axes: Collection[str], cells: Sequence[Cell]) -> Iterator[tuple[Location, str]]:
    """Winners that would go into one folder, or into that of a cell."""
    folders: dict[str, str] = {f"the cell {cell.name}": cell.folder for cell in cells if not cell.left_out}
    places: dict[str, int] = {}
    for place, goal in enumerate(goals):
        if goal.folder is not None and template_problem(goal.folder, tuple(axes)):
            continue  # told already
        chosen = group_axes(goal, axes, cells)
        if goal.folder is not None and template_problem(goal.folder, chosen):
            each = f"each value of {', '.join(chosen)}" if chosen else "all cells"
            yield ("goal", place, "folder"), f"there is one winner for {each}, so nothing else can name its folder"
            continue
        for group in groups(chosen, cells):
            of = ", ".join(f"{axis} {label}" for axis, label in group.items()) or "all cells"
            owner = f"goal {place + 1}'s winner of {of}"
            folders[owner], places[owner] = winner_folder(goal, group), place
            if what := folder_problem(folders[owner]):
                yield ("goal", place, "folder"), f"{folders[owner]!r}: {what}"
    told = set()
    for one, other in clashes(folders):
        named = other if other in places else one
        # A template that is wrong clashes with many.
        if named in places and places[named] not in told:
            told.add(places[named])
            both = f"{one} and {other} would have the folder {folders[named]}, or one inside of the other's"
            yield ("goal", places[named], "folder"), both


def groups(chosen: Sequence[str], cells: Sequence[Cell]) -> tuple[Mapping[str, str], ...]:
    """The values on the axes *chosen* that cells share, each once, in the order of the cells."""
    found = [{axis: cell.values[axis] for axis in chosen} for cell in cells if not cell.left_out]
    return tuple({tuple(group.items()): group for group in found}.values())


def _subject(recipe: Recipe) -> str:
    """What tells the model and the target of one cell from those of another."""
    compiled = recipe.compile
    named = None if compiled is None else (compiled.execution_provider, compiled.device, str(compiled.ep_device))
    loader = recipe.loader.model_dump(mode="json")
    return json.dumps([recipe.model, loader, recipe.ep, recipe.device, named], sort_keys=True)


def _changes(axis: str, subjects: Mapping[str, str], cells: Sequence[Cell]) -> bool:
    """Whether two cells that differ on *axis* alone have another model or target."""
    alike: dict[tuple[tuple[str, str], ...], str] = {}
    for cell in cells:
        if (subject := subjects.get(cell.name)) is not None:
            others = tuple((name, label) for name, label in cell.values.items() if name != axis)
            if alike.setdefault(others, subject) != subject:
                return True
    return False
