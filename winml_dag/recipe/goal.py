"""The goal of a sweep: which of its cells is best, under which bounds, and how a better one is searched for.

Also which cells a goal chooses among, where its winner is written, and checks for impossible goals before anything
runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from winml_dag.errors import known_instead
from winml_dag.recipe.document import Location
from winml_dag.recipe.fields import Count, ListOf, Section, Text, known, problem
from winml_dag.recipe.sweep import clashes, filled, folder_problem, template_problem

if TYPE_CHECKING:
    from winml_dag.recipe.schema import Recipe
    from winml_dag.recipe.sweep import Cell


@dataclass(frozen=True)
class Measure:
    """A numeric property of a cell.

    Attributes:
        example: a bound on it, without its sign.
        unit: of the number; ``units`` has the factors of others that may be written.
        more_is_better: the direction of a bound on it.
        lowest, highest: its range; None for no limit.
        needs: the required entry in ``measure:``; empty for what every build reports.
        of_quality: whether a higher precision improves it.
    """

    example: str
    unit: str = ""
    more_is_better: bool = True
    lowest: float | None = None
    highest: float | None = None
    needs: str = ""
    of_quality: bool = True
    units: Mapping[str, float] = field(default_factory=dict)


_BYTES = MappingProxyType(
    {"B": 1, "KB": 1e3, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
)

MEASURES: Mapping[str, Measure] = MappingProxyType(
    {
        "cosine": Measure("0.99", lowest=-1, highest=1),
        "cosine_min": Measure("0.95", lowest=-1, highest=1),
        "sqnr_db": Measure("20", "dB", units={"dB": 1}, highest=1000),
        "max_abs_error": Measure("0.1", more_is_better=False, lowest=0),
        "accuracy": Measure("0.8", needs="eval"),
        "accuracy_drop": Measure("0.01", more_is_better=False, needs="eval"),
        "size": Measure("20MB", "bytes", more_is_better=False, lowest=0, of_quality=False, units=_BYTES),
        "latency": Measure(
            "5ms",
            "ms",
            more_is_better=False,
            lowest=0,
            needs="perf",
            of_quality=False,
            units={"us": 1e-3, "µs": 1e-3, "ms": 1, "s": 1e3},
        ),
        "peak_memory": Measure(
            "500MB", "bytes", more_is_better=False, lowest=0, needs="perf", of_quality=False, units=_BYTES
        ),
    }
)

_BOUND = re.compile(r"(?P<sign>[<>]=?|==?)?\s*(?P<number>-?[0-9.]+(?:e-?[0-9]+)?)\s*(?P<unit>[A-Za-zµ]*)")


@dataclass(frozen=True)
class Bound:
    """``at_least`` or at most ``value``, in the unit of the ``measure``. ``text``: as it was written."""

    measure: str
    at_least: bool
    value: float
    text: str

    def holds(self, found: float) -> bool:
        return found >= self.value if self.at_least else found <= self.value


def parse_bound(name: str, text: str) -> Bound:
    """Parse a bound *text*, such as ``>=0.99`` or ``<= 20 MB``, on the existing measure *name*.

    Raises PydanticCustomError if it is malformed, or nothing or everything meets it.
    """
    measure = MEASURES[name]
    sign = ">=" if measure.more_is_better else "<="
    example = f'"{sign}{measure.example}"'
    found = _BOUND.fullmatch(text.strip())
    if found is None or found["sign"] not in (">=", "<="):
        raise problem(f"expected a bound such as {example}, got {text!r}")
    if found["sign"] != sign:
        better = "more" if measure.more_is_better else "less"
        raise problem(f"{better} is better of this measure, so a bound is written with {sign}, such as {example}")
    unit = found["unit"]
    if unit and unit not in measure.units:
        known = f"write {', '.join(measure.units)}, or none" if measure.units else "it has none"
        raise problem(f"{unit!r} is not a unit of this measure; {known}")
    try:
        value = float(found["number"]) * measure.units.get(unit, 1)
    except ValueError:
        raise problem(f"expected a bound such as {example}, got {text!r}") from None
    end, other = (measure.highest, measure.lowest) if measure.more_is_better else (measure.lowest, measure.highest)
    if end is not None and (value > end if measure.more_is_better else value < end):
        raise problem(f"no model keeps {text!r}: it is {end:g} at best")
    if other is not None and (value <= other if measure.more_is_better else value >= other):
        raise problem(f"every model keeps {text!r}: it is {other:g} at worst")
    return Bound(name, measure.more_is_better, value, text)


def _check_bound_text(value: object) -> object:
    if not isinstance(value, str):
        raise problem('expected a bound in quotes, such as ">=0.99" or "<=20MB"')
    return value


class Goal(Section):
    """Selects the winner among cells that differ only in what is chosen.

    ``subject_to``: bounds such as ``">=0.99"`` by the name of a measure. ``per``: the axes with a winner for each
    value; None: those that change the model or the target. ``folder``: a template of the folder for the winner; None:
    ``best/``, and a folder for each value of these axes.
    """

    minimize: Literal["latency", "size"]
    subject_to: Mapping[
        Annotated[str, known("measure", MEASURES)], Annotated[str, BeforeValidator(_check_bound_text)]
    ] = Field(default_factory=dict)
    per: ListOf[Text] | None = None
    folder: Text | None = None

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        for name, text in self.subject_to.items():
            try:
                parse_bound(name, text)
            except PydanticCustomError as error:
                raise problem(str(error), at=("subject_to", name)) from None
        return self

    @property
    def bounds(self) -> tuple[Bound, ...]:
        return tuple(parse_bound(name, text) for name, text in self.subject_to.items())

    @property
    def measures(self) -> tuple[str, ...]:
        """The measures that it uses: what is minimized, then what is bounded."""
        return tuple(dict.fromkeys((self.minimize, *self.subject_to)))


class Search(Section):
    """Per-layer mixed precision if a cell of low precision misses the bounds on quality.

    Its worst nodes are kept in a higher precision. ``bisect`` searches for the fewest such nodes, ``all`` tries every
    number of them. ``keep``: the precision of these nodes; ``auto``: 16 bits if the provider mixes widths, else float.
    ``most_trials``: for each searched cell, None for no limit. ``nodes_at_most``: the maximum that is kept; None for
    all but one.
    """

    method: Literal["bisect", "all"] = "bisect"
    keep: Literal["auto", "16-bit", "float"] = "auto"
    most_trials: Count | None = None
    nodes_at_most: Count | None = None


# Axes with these names never mean that one value wins over the others.
_TOLD_BY_NAME = frozenset({"model", "target", "ep", "device"})
_FOLDER = "best"


def group_axes(goal: Goal, axes: Collection[str], cells: Sequence[Cell]) -> tuple[str, ...]:
    """Return the axes with a winner for each value: those in *goal*, else those that change model or target."""
    if goal.per is not None:
        return tuple(axis for axis in axes if axis in goal.per)
    subjects = {cell.name: _subject(cell.recipe.recipe) for cell in cells if cell.recipe is not None}
    return tuple(axis for axis in axes if axis in _TOLD_BY_NAME or _changes(axis, subjects, cells))


def winner_folder(goal: Goal, group: Mapping[str, str]) -> str:
    """Return the folder of the winner among the cells with the values *group*, below the folder of the sweep."""
    template = goal.folder or "/".join((_FOLDER, *(f"{{{axis}}}" for axis in group)))
    return filled(template, group)


def check_goals(
    goals: Sequence[Goal],
    search: Search | None,
    measure: Collection[str],
    axes: Collection[str],
    cells: Sequence[Cell],
    add: Callable[[Location, str], None],
) -> None:
    """Call *add* with each problem of the goals of a sweep, given what it measures and its cells.

    A problem has a location, as if ``goal`` were always a list, and a message.
    """
    for place, goal in enumerate(goals):
        for name in goal.measures:
            needs = MEASURES[name].needs
            if needs and needs not in measure:
                at = ("minimize",) if name == goal.minimize else ("subject_to", name)
                missing = f"write `measure: [{', '.join(sorted({*measure, needs}))}]`"
                add(("goal", place, *at), f"{name} is not measured; {missing}")
        for axis in goal.per or ():
            if axis not in axes:
                add(("goal", place, "per"), f"{axis!r} is not an axis of the matrix{known_instead(axis, axes)}")
        if goal.folder is not None and (what := template_problem(goal.folder, tuple(axes))):
            add(("goal", place, "folder"), what)
    if search is not None and not goals:
        add(("search",), "there is no goal to search for; add `goal`")
    elif search is not None and not any(MEASURES[name].of_quality for goal in goals for name in goal.subject_to):
        what = "no goal has a bound on quality that a low precision could miss"
        add(("search",), f'{what}, such as cosine: ">=0.99"')
    _check_folders(goals, axes, cells, add)


def _check_folders(
    goals: Sequence[Goal], axes: Collection[str], cells: Sequence[Cell], add: Callable[[Location, str], None]
) -> None:
    """Add winners that would share a folder, with each other or with a cell."""
    folders: dict[str, str] = {f"the cell {cell.name}": cell.folder for cell in cells if not cell.left_out}
    places: dict[str, int] = {}
    for place, goal in enumerate(goals):
        if goal.folder is not None and template_problem(goal.folder, tuple(axes)):
            continue  # already reported
        chosen = group_axes(goal, axes, cells)
        if goal.folder is not None and template_problem(goal.folder, chosen):
            each = f"each value of {', '.join(chosen)}" if chosen else "all cells"
            message = f"there is one winner for {each}, so nothing else can name its folder"
            add(("goal", place, "folder"), message)
            continue
        for group in groups(chosen, cells):
            of = ", ".join(f"{axis} {label}" for axis, label in group.items()) or "all cells"
            owner = f"goal {place + 1}'s winner of {of}"
            folders[owner], places[owner] = winner_folder(goal, group), place
            if what := folder_problem(folders[owner]):
                add(("goal", place, "folder"), f"{folders[owner]!r}: {what}")
    reported = set()
    for one, other in clashes(folders):
        named = other if other in places else one
        # An invalid template clashes with many.
        if named in places and places[named] not in reported:
            reported.add(places[named])
            both = f"{one} and {other} would have the folder {folders[named]}, or one inside of the other's"
            add(("goal", places[named], "folder"), both)


def groups(chosen: Sequence[str], cells: Sequence[Cell]) -> tuple[Mapping[str, str], ...]:
    """Return the distinct values on the axes *chosen*, in the order of the cells."""
    found = [{axis: cell.values[axis] for axis in chosen} for cell in cells if not cell.left_out]
    return tuple({tuple(group.items()): group for group in found}.values())


def _subject(recipe: Recipe) -> str:
    """Return what distinguishes the model and the target of a cell from those of another."""
    compiled = recipe.compile
    named = None if compiled is None else (compiled.execution_provider, compiled.device, str(compiled.ep_device))
    loader = recipe.loader.model_dump(mode="json")
    return json.dumps([recipe.model, loader, recipe.ep, recipe.device, named], sort_keys=True)


def _changes(axis: str, subjects: Mapping[str, str], cells: Sequence[Cell]) -> bool:
    """Return whether two cells that differ only on *axis* have another model or target."""
    alike: dict[tuple[tuple[str, str], ...], str] = {}
    for cell in cells:
        if (subject := subjects.get(cell.name)) is not None:
            others = tuple((name, label) for name, label in cell.values.items() if name != axis)
            if alike.setdefault(others, subject) != subject:
                return True
    return False
