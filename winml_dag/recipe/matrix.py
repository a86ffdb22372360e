"""From the file of a sweep to its cells: multiply axes, exclude some cells, add others, merge the keys of each.

Of the sources of a cell, later ones have precedence: its bases, the keys of the sweep itself, the values in the order
of the axes, ``include``, ``overrides``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from winml_dag.errors import RecipeError, known_instead
from winml_dag.recipe.axes import Axis, AxisReader, Bases, Piece, PiecedPositions, Value, labels_in, merged
from winml_dag.recipe.document import Document, Findings, Location
from winml_dag.recipe.fields import ListOf, Section, Text, resolve_path
from winml_dag.recipe.goal import Goal, Search, check_goals
from winml_dag.recipe.load import LoadedRecipe
from winml_dag.recipe.problems import add_errors
from winml_dag.recipe.reading import read_recipe
from winml_dag.recipe.schema import Component, Recipe
from winml_dag.recipe.sweep import (
    Cell,
    Choice,
    Sweep,
    clashes,
    filled,
    folder_problem,
    matches,
    standard_template,
    takes,
    template_problem,
)
from winml_dag.recipe.text import RecipeFormat

# The keys of a sweep's file other than those of a recipe and the matrix: its name and purpose.


class SweepHead(Section):
    """The head of a sweep's file.

    ``folder``: a template of a cell's folder and name, in which an axis name in braces is replaced with the label of
    the value; None: all labels, joined by ``/``. ``measure``: of each cell, once all are built.
    """

    name: Text | None = None
    output_dir: Text | None = None
    folder: Text | None = None
    measure: ListOf[Literal["perf", "eval"]] = ()
    search: Search | None = None


class OneGoal(SweepHead):
    goal: Goal | None = None

    @property
    def goals(self) -> tuple[Goal, ...]:
        return () if self.goal is None else (self.goal,)


class ManyGoals(SweepHead):
    goal: ListOf[Goal]

    @property
    def goals(self) -> tuple[Goal, ...]:
        return self.goal


MOST_CELLS = 10_000
_MOST_CLASHES = 10
_BESIDE_AXES = ("include", "exclude")
_NOT_OF_CELLS = (*OneGoal.model_fields, "matrix", "overrides", "base")
# What several cells would each write to the folder of the recipe.
_WRITES_BESIDE = "would be put into this folder by {} cells, each its own; keep it to one cell, by `overrides`"


def load_sweep(path: Path) -> Sweep:
    """Load the sweep in the file *path*.

    Raises:
        InputError: a file is missing, or cannot be read as text.
        RecipeError: the contents are invalid; has each error once, in whichever file.
    """
    document, kind = read_recipe(path)
    if not isinstance(document.value, Mapping):
        raise RecipeError(f"{path} has no keys and values in it.", advice="A sweep has keys such as matrix and base.")
    return _Reading(path, document, kind, document.value).sweep()


@dataclass
class _Draft:
    """A cell while it is assembled: its value on each axis, and what else was added to it."""

    values: tuple[Value, ...]
    added: list[Piece] = field(default_factory=list)
    bases: list[Piece] = field(default_factory=list)
    left_out: str = ""


class _Reading:
    """One sweep being read. ``written``: the contents of its file."""

    def __init__(self, path: Path, file: Document, kind: RecipeFormat, written: Mapping[str, object]) -> None:
        self._path = path
        self._file = file
        self._kind = kind
        self._written = written
        self._findings = Findings(path, file.positions)
        self._bases = Bases(path, self._findings)
        self._reader = AxisReader(file, self._bases, self._findings)

    def sweep(self) -> Sweep:
        head = self._head()
        own_bases = self._bases.of(self._written["base"], ("base",)) if "base" in self._written else ()
        matrix = self._mapping(("matrix",), self._written.get("matrix")) or {}
        axes = self._reader.axes({name: listed for name, listed in matrix.items() if name not in _BESIDE_AXES})
        if not axes and not self._findings.lines():
            self._findings.add(("matrix",), "has no axis, such as precision: [w8a8, w8a16]", about_key=True)
        self._findings.refuse()
        self._refuse_too_many(axes, matrix)
        drafts = {
            tuple(each.label for each in values): _Draft(values)
            for values in product(*(axis.values.values() for axis in axes))
        }
        self._exclude(drafts, axes, matrix.get("exclude"))
        axes = self._include(drafts, axes, matrix.get("include"))
        self._override(drafts, axes, self._written.get("overrides"))
        names = [axis.name for axis in axes]
        template = standard_template(names) if head.folder is None else head.folder
        if wrong := template_problem(template, names):
            self._findings.add(("folder",), wrong)
        self._findings.refuse()
        folders = self._folders(drafts, names, template)
        cells = self._cells(drafts.values(), names, folders, own_bases)
        is_one = isinstance(head, OneGoal)

        def add(at: Location, what: str) -> None:
            self._findings.add((at[0], *at[2:]) if at[0] == "goal" and is_one else at, what)

        check_goals(head.goals, head.search, head.measure, names, cells, add)
        self._findings.refuse()
        return Sweep(
            name=head.name or self._path.stem,
            path=self._path,
            axes={axis.name: tuple(axis.values) for axis in axes},
            cells=tuple(cells),
            output_dir=None if head.output_dir is None else resolve_path(self._path.parent, head.output_dir),
            measure=head.measure,
            goals=head.goals,
            search=head.search,
            files=(self._path, *self._bases.files),
        )

    def _head(self) -> OneGoal | ManyGoals:
        kind = ManyGoals if isinstance(self._written.get("goal"), list) else OneGoal
        head_fields = {name: value for name, value in self._written.items() if name in kind.model_fields}
        try:
            head: OneGoal | ManyGoals = kind.model_validate(head_fields)
        except ValidationError as error:
            add_errors(self._findings, error, kind)
            raise self._findings.error() from None
        return head

    def _mapping(self, at: Location, value: object) -> Mapping[str, object] | None:
        if isinstance(value, Mapping):
            return value
        self._findings.add(at, "expected keys and values")
        return None

    def _entries(self, at: Location, listed: object) -> Iterator[tuple[Location, Mapping[str, object]]]:
        """Yield the entries of an optional list, each with its location."""
        if listed is not None and not isinstance(listed, list):
            self._findings.add(at, "expected a list")
            return
        for index, entry in enumerate(listed or ()):
            if (found := self._mapping((*at, index), entry)) is not None:
                yield (*at, index), found

    def _refuse_too_many(self, axes: tuple[Axis, ...], matrix: Mapping[str, object]) -> None:
        included = matrix.get("include")
        number = math.prod(len(axis.values) for axis in axes) + (len(included) if isinstance(included, list) else 0)
        if number > MOST_CELLS:
            sizes = " x ".join(f"{len(axis.values)} {axis.name}" for axis in axes)
            raise RecipeError(
                f"The matrix of {self._path} has {number:,} cells ({sizes}), and {MOST_CELLS:,} is the most.",
                advice="Make several sweeps of it.",
            )

    def _exclude(self, drafts: Mapping[tuple[str, ...], _Draft], axes: tuple[Axis, ...], listed: object) -> None:
        for at, entry in self._entries(("matrix", "exclude"), listed):
            why = entry.get("because")
            if "because" in entry and not (isinstance(why, str) and why.strip()):
                self._findings.add((*at, "because"), "expected text")
            chosen = self._choice(at, {axis: each for axis, each in entry.items() if axis != "because"}, axes)
            if chosen is None:
                continue
            line = self._file.positions().of_value(at).line
            reason = why if isinstance(why, str) else f"excluded by {self._path}:{line}"
            taken = self._taken(chosen, drafts, axes)
            for draft in taken:
                draft.left_out = draft.left_out or reason
            if not taken:
                self._findings.add(at, "there is no such cell")

    def _include(
        self, drafts: dict[tuple[str, ...], _Draft], axes: tuple[Axis, ...], listed: object
    ) -> tuple[Axis, ...]:
        """Return the axes with the labels that included cells add."""
        found = {axis.name: axis for axis in axes}
        for at, entry in self._entries(("matrix", "include"), listed):
            values = [self._included(found[axis.name], entry, at) for axis in axes]
            piece, bases = self._piece(entry, at, but=tuple(found))
            whole = tuple(value for value in values if value is not None)
            if len(whole) < len(axes):
                continue
            for axis, value in zip(axes, whole, strict=True):
                found[axis.name] = found[axis.name].with_value(value)
            labels = tuple(value.label for value in whole)
            draft = drafts.get(labels)
            if draft is None or draft.left_out:
                draft = drafts[labels] = _Draft(whole)
            elif not piece.value and not bases:
                self._findings.add(at, f"there is a cell {'/'.join(labels)} already, and no keys are added to it")
            draft.added.append(piece)
            draft.bases += bases
        return tuple(found.values())

    def _included(self, axis: Axis, entry: Mapping[str, object], at: Location) -> Value | None:
        """Return the value of an included cell on *axis*: an existing one, or a new one."""
        here = (*at, axis.name)
        if axis.name not in entry:
            self._findings.add(at, f"names no value of {axis.name}; for several cells there is `overrides`")
            return None
        written = entry[axis.name]
        if not isinstance(written, Mapping | list):
            (label,) = labels_in(written)
            if label in axis.values:
                return axis.values[label]
            if not axis.takes_plain:
                self._findings.add(here, f"{label!r} is not a value of {axis.name}{known_instead(label, axis.values)}")
                return None
        value = self._reader.value(axis.name, written, here)
        if value is not None and value.label in axis.values:
            self._findings.add(here, f"there is a value {value.label!r} already; name it alone, or give another name")
            return None
        return value

    def _override(self, drafts: Mapping[tuple[str, ...], _Draft], axes: tuple[Axis, ...], listed: object) -> None:
        for at, entry in self._entries(("overrides",), listed):
            when = entry.get("when")
            if not isinstance(when, Mapping) or not when:
                self._findings.add(at, "needs `when`, which says of which cells: {when: {model: bert}, ...}")
                continue
            piece, bases = self._piece(entry, at, but=("when",))
            if not piece.value and not bases:
                self._findings.add(at, "says nothing of the cells that it is for")
            chosen = self._choice((*at, "when"), when, axes)
            if chosen is None:
                continue
            taken = [draft for draft in self._taken(chosen, drafts, axes) if not draft.left_out]
            for draft in taken:
                draft.added.append(piece)
                draft.bases += bases
            if not taken:
                self._findings.add((*at, "when"), "there is no such cell")

    def _piece(
        self, entry: Mapping[str, object], at: Location, but: tuple[str, ...]
    ) -> tuple[Piece, tuple[Piece, ...]]:
        """Return what *entry* sets for cells, without the keys *but*, and its bases."""
        keys = {key: value for key, value in entry.items() if key not in (*but, "base")}
        self._reader.refuse_whole(keys, at)
        bases = self._bases.of(entry["base"], (*at, "base")) if "base" in entry else ()
        return Piece(keys, self._file, at), bases

    def _choice(self, at: Location, written: Mapping[str, object], axes: tuple[Axis, ...]) -> Choice | None:
        by_name = {axis.name: axis for axis in axes}
        patterns = {}
        are_right = bool(written)
        if not written:
            self._findings.add(at, "names no axis")
        for name, meant in written.items():
            here = (*at, name)
            if name not in by_name:
                are_right = False
                self._findings.add(here, f"there is no axis {name!r}{known_instead(name, by_name)}", about_key=True)
                continue
            patterns[name] = tuple(labels_in(meant))
            labels = by_name[name].values
            for pattern in patterns[name] or ("",):
                if not any(matches(label, (pattern,)) for label in labels):
                    are_right = False
                    self._findings.add(here, f"{pattern!r} is not a value of {name}{known_instead(pattern, labels)}")
        return patterns if are_right else None

    @staticmethod
    def _taken(
        chosen: Mapping[str, tuple[str, ...]], drafts: Mapping[tuple[str, ...], _Draft], axes: tuple[Axis, ...]
    ) -> list[_Draft]:
        names = [axis.name for axis in axes]
        each = ((dict(zip(names, labels, strict=True)), draft) for labels, draft in drafts.items())
        return [draft for values, draft in each if takes(values, chosen)]

    def _folders(
        self, drafts: Mapping[tuple[str, ...], _Draft], names: Sequence[str], template: str
    ) -> tuple[str, ...]:
        """Return the folder of each cell, which is its name."""
        found = {labels: filled(template, dict(zip(names, labels, strict=True))) for labels in drafts}
        at = ("folder",) if "folder" in self._written else ("matrix",)
        for folder in found.values():
            if wrong := folder_problem(folder):
                self._findings.add(at, f"{folder}: {wrong}")
        for first, second in islice(clashes(found), _MOST_CLASHES):
            one, other = (" x ".join(labels) for labels in (first, second))
            self._findings.add(at, f"gives {one} and {other} one folder: {found[first]}")
        self._findings.refuse()
        return tuple(found.values())

    def _cells(
        self, drafts: Iterable[_Draft], names: Sequence[str], folders: Sequence[str], own_bases: tuple[Piece, ...]
    ) -> tuple[Cell, ...]:
        keys = {key: value for key, value in self._written.items() if key not in _NOT_OF_CELLS}
        own = Piece(keys, self._file)
        cells = []
        for draft, folder in zip(drafts, folders, strict=True):
            recipe = None
            if not draft.left_out:
                pieces = (
                    *own_bases,
                    *(piece for value in draft.values for piece in value.bases),
                    *draft.bases,
                    own,
                    *(value.piece for value in draft.values),
                    *draft.added,
                )
                positions = partial(PiecedPositions, pieces)
                try:
                    recipe = LoadedRecipe(self._path, Recipe.model_validate(merged(pieces)), self._kind, positions)
                except ValidationError as error:
                    add_errors(self._findings, error, Recipe, positions())
                    if not self._findings.are_few:
                        break
            values = {axis: value.label for axis, value in zip(names, draft.values, strict=True)}
            cells.append(Cell(folder, values, folder, self._path, recipe, draft.left_out))
        self._findings.refuse()
        self._refuse_shared_files(cells)
        return tuple(cells)

    def _refuse_shared_files(self, cells: Sequence[Cell]) -> None:
        """Refuse cells that share files: the recipe's own stages, and saved ranges, are written next to the recipe."""
        writers: dict[Location, list[LoadedRecipe]] = {}
        for cell in cells:
            for at in () if cell.recipe is None else _written_beside(cell.recipe.recipe):
                assert cell.recipe is not None
                writers.setdefault(at, []).append(cell.recipe)
        for at, recipes in writers.items():
            if len(recipes) > 1:
                message = _WRITES_BESIDE.format(len(recipes))
                self._findings.add(at, message, about_key=True, positions=recipes[0].positions())
        self._findings.refuse()


def _written_beside(recipe: Recipe) -> Iterator[Location]:
    for name, stage in recipe.stages.items():
        if stage.outputs:
            yield ("stages", name)
    parts: list[tuple[Location, Recipe | Component]] = [((), recipe)]
    parts += [(("components", name), component) for name, component in recipe.components.items()]
    for at, part in parts:
        of_compile = None if part.compile is None else part.compile.quant_config
        for where, quant in ((("quant",), part.quant), (("compile", "quant_config"), of_compile)):
            if quant is not None and quant.calibration_save_path is not None:
                yield (*at, *where, "calibration_save_path")
