"""A sweep as requested: its cells, the names of cells and folders, and the files that it comes from.

A sweep is one file with a matrix, or several files: each recipe is a cell, each sweep its cells (a folder of
winml-cli's configurations is one). Standalone recipes are not parsed here, so a build that finds everything up to date
reads none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from winml_dag.canonical import canonical_json
from winml_dag.errors import RecipeError, UsageError, WinmlDagError, did_you_mean, known_instead
from winml_dag.names import is_safe_part
from winml_dag.recipe.reading import is_sweep, labels_of, module_items, recipe_files

if TYPE_CHECKING:
    from winml_dag.recipe.goal import Goal, Search
    from winml_dag.recipe.load import LoadedRecipe


@dataclass(frozen=True)
class Cell:
    """One build of a sweep, or one that the sweep excludes.

    Attributes:
        name: unique in the sweep.
        values: by axis, the label of the value; empty for a standalone recipe.
        folder: its output folder below that of the sweep, with ``/``.
        recipe: assembled from the sweep; None for an excluded cell, and for a standalone recipe.
        left_out: why the sweep excludes it; empty for one that is built.
        file: the file that contains it; for a standalone recipe, ``item`` is its index in a list.
    """

    name: str
    values: Mapping[str, str]
    folder: str
    file: Path
    recipe: LoadedRecipe | None = None
    left_out: str = ""
    item: int | None = None


@dataclass(frozen=True)
class Sweep:
    """Several builds that are requested together.

    Attributes:
        path: the file that contains it; the first of several.
        axes: by name, the labels of its values, in file order; empty for several recipes.
        cells: in file order, including excluded ones.
        output_dir: the parent folder of the cells' folders, if the file sets one.
        measure: what is measured of each cell: ``perf``, ``eval``.
        files: all files that it was read from, and paths whose existence was checked: a change of one may change the
            sweep.
    """

    name: str
    path: Path
    axes: Mapping[str, tuple[str, ...]]
    cells: tuple[Cell, ...]
    output_dir: Path | None = None
    measure: tuple[str, ...] = ()
    goals: tuple[Goal, ...] = ()
    search: Search | None = None
    files: tuple[Path, ...] = field(default=())


T = TypeVar("T")

_FIELD = re.compile(r"\{([^{}]*)\}")
_MEANT_BY_FILTERS = re.compile(r"[,=!\[\]]")
# With a cache folder and the names of files in an output folder, Windows allows 260 letters in all.
_LONGEST = 160
# The files in the folder of the sweep itself.
RESERVED = ("sweep.json", "report.html", "report.json", "report.csv")


def standard_template(axes: Sequence[str]) -> str:
    return "/".join(f"{{{axis}}}" for axis in axes)


def template_problem(template: str, axes: Sequence[str]) -> str:
    """Return why *template* cannot name a folder for cells with *axes*; empty if it can."""
    for name in _FIELD.findall(template):
        if name not in axes:
            return f"there is no axis {name!r}{known_instead(name, axes)}"
    rest = _FIELD.sub("x", template)
    if "{" in rest or "}" in rest:
        return "a brace has no other; an axis is named as in {model}"
    if wrong := _MEANT_BY_FILTERS.search(rest):
        return f"{wrong[0]} means something in --filter, so it cannot be in a name"
    return folder_problem(rest)


def filled(template: str, values: Mapping[str, str]) -> str:
    """Return *template* with each axis name replaced with its label."""
    return _FIELD.sub(lambda match: values[match[1]], template)


def folder_problem(folder: str) -> str:
    """Return why a folder below that of the sweep cannot have this name; empty if it can."""
    parts = folder.split("/")
    for part in parts:
        if not is_safe_part(part):
            return f"{part!r} cannot be a folder on every system" if part else "a part of the path is empty"
    if parts[0].casefold() in RESERVED:
        return f"{parts[0]} is the name of a file of the sweep"
    return f"longer than {_LONGEST} letters" if len(folder) > _LONGEST else ""


def clashes(folders: Mapping[T, str]) -> Iterator[tuple[T, T]]:
    """Yield pairs of owners that have the same folder, or one inside the other's. *folders*: by owner.

    Case is ignored, as on some systems.
    """
    owners: dict[str, T] = {}
    for owner, folder in folders.items():
        if (known := folder.casefold()) in owners:
            yield owners[known], owner
        else:
            owners[known] = owner
    for known, owner in owners.items():
        inside = "/".join(known.split("/")[:-1])
        while inside:
            if inside in owners:
                yield owners[inside], owner
            inside = inside.rpartition("/")[0]


def sweep_of_files(named: Sequence[Path]) -> Sweep:
    """Return the sweep of the *named* files, folders and patterns: that of the only file, if it is one, else of all.

    Raises:
        InputError: a folder or pattern has no recipe, or a file cannot be read as text.
        RecipeError: a sweep is invalid, or has a goal that would not apply to all cells.
    """
    files = recipe_files(named)
    sweeps: dict[Path, Sweep] = {}
    if matrices := [file for file in files if is_sweep(file)]:
        # Imported here: it needs the schema of a recipe.
        from winml_dag.recipe.matrix import load_sweep

        sweeps = {file: load_sweep(file) for file in matrices}
    if len(files) == 1 and files[0] in sweeps:
        return sweeps[files[0]]
    aimed = [sweep.path for sweep in sweeps.values() if sweep.goals]
    if aimed:
        raise RecipeError(
            f"{aimed[0]} has a goal, and it is one of {len(files)} recipes, which are one sweep without it.",
            advice="Build it alone.",
        )
    labels = labels_of(files)
    cells = tuple(
        cell
        for file, label in zip(files, labels, strict=True)
        for cell in (_of_sweep(sweeps[file], label) if file in sweeps else _of_file(file, label, alone=len(files) == 1))
    )
    axes: dict[str, tuple[str, ...]] = {}
    for sweep in sweeps.values():
        for axis, values in sweep.axes.items():
            axes[axis] = tuple(dict.fromkeys((*axes.get(axis, ()), *values)))
    return Sweep(
        name=_name(named),
        path=files[0],
        axes=axes,
        cells=cells,
        measure=tuple(dict.fromkeys(each for sweep in sweeps.values() for each in sweep.measure)),
        files=tuple(
            dict.fromkeys(path for file in files for path in (file, *(sweeps[file].files if file in sweeps else ())))
        ),
    )


def _of_sweep(sweep: Sweep, label: str) -> Iterator[Cell]:
    yield from (replace(cell, name=f"{label}/{cell.name}", folder=f"{label}/{cell.folder}") for cell in sweep.cells)


def _of_file(file: Path, label: str, *, alone: bool) -> Iterator[Cell]:
    items = module_items(file)
    if items is None:
        yield Cell(label, {}, label, file)
        return
    for index, item in enumerate(items):
        name = item.label(index) if alone else f"{label}/{item.label(index)}"
        yield Cell(name, {}, name, file, item=index)


def _name(named: Sequence[Path]) -> str:
    """Return a name for users: the folder, or the only file."""
    only = named[0].resolve() if len(named) == 1 else named[0].resolve().parent
    return (only.stem if only.is_file() else only.name) or "sweep"


# By axis, labels and patterns of which one must match, as in ``when`` and ``exclude``; no axis matches all.
Choice: TypeAlias = Mapping[str, tuple[str, ...]]


def takes(values: Mapping[str, str], chosen: Choice) -> bool:
    return all(matches(values.get(axis, ""), patterns) for axis, patterns in chosen.items())


def matches(label: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(label, pattern) for pattern in patterns)


def filtered(sweep: Sweep, filters: Sequence[str]) -> tuple[Cell, ...]:
    """Return the cells of *sweep* that match all *filters*, in its order, including excluded ones.

    Raises UsageError if an axis, label or name does not exist, or nothing matches.
    """
    taken = sweep.cells
    for text in filters:
        holds = _filter(text, sweep)
        taken = tuple(cell for cell in taken if holds(cell))
    if filters and not taken:
        raise UsageError(
            f"--filter {' --filter '.join(filters)} leaves none of the {len(sweep.cells)} cells.",
            advice="All filters have to hold; labels of one axis are joined with commas: model=bert,resnet.",
        )
    return taken


def _filter(text: str, sweep: Sweep) -> Callable[[Cell], bool]:
    axis, equals, labels = text.partition("=")
    refuses = axis.endswith("!")
    axis = axis.removesuffix("!")
    if not equals or (axis not in sweep.axes and not sweep.axes):
        return _by_name(text, sweep)
    if axis not in sweep.axes:
        raise UsageError(f"--filter {text}: there is no axis {axis!r}{known_instead(axis, sweep.axes)}")
    patterns = _each(labels)
    for pattern in patterns:
        if not any(matches(label, (pattern,)) for label in sweep.axes[axis]):
            hint = known_instead(pattern, sweep.axes[axis])
            raise UsageError(f"--filter {text}: {pattern!r} is not a value of {axis}{hint}")
    return lambda cell: (axis in cell.values and matches(cell.values[axis], patterns)) is not refuses


def _by_name(text: str, sweep: Sweep) -> Callable[[Cell], bool]:
    names = [cell.name for cell in sweep.cells]
    # A label cannot contain a comma, but the name of a file can.
    patterns = (text,) if text in names else _each(text)
    for pattern in patterns:
        if pattern not in names and not any(matches(name, (pattern,)) for name in names):
            raise UsageError(
                f"--filter {text}: there is no cell {pattern!r}{did_you_mean(pattern, names)}",
                advice="`plan` lists all.",
            )
    return lambda cell: cell.name in patterns or matches(cell.name, patterns)


def _each(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


# The sections that determine an export.
_OF_EXPORT = ("model", "loader", "export")
_MOST = 10_000


@dataclass(frozen=True)
class Shard:
    """Shard *number* of *count*, counted from 1."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def parse_shard(text: str) -> Shard:
    """Parse a shard such as ``3/8``. Raises UsageError if it is invalid."""
    match = re.fullmatch(r"([0-9]{1,5})/([0-9]{1,5})", text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a shard.", advice="Write the third of eight as 3/8.")
    number, count = int(match[1]), int(match[2])
    if not 1 <= number <= count <= _MOST:
        what = f"there are {count}, counted from 1" if count <= _MOST else f"{_MOST:,} is the most"
        raise UsageError(f"There is no shard {text}: {what}.")
    return Shard(number, count)


def in_shard(cells: Sequence[Cell], shard: Shard) -> tuple[Cell, ...]:
    """Return those of *cells* that are in *shard*, in order. Excluded cells are reported by the first shard."""
    names = {cell.name for cell in shards(cells, shard.count)[shard.number - 1]}
    return tuple(cell for cell in cells if cell.name in names or (cell.left_out and shard.number == 1))


def shards(cells: Sequence[Cell], count: int) -> tuple[tuple[Cell, ...], ...]:
    """Split the *cells* to build into *count* shards: each in exactly one; some are empty if there are few cells."""
    groups: dict[str, list[Cell]] = {}
    for cell in sorted((cell for cell in cells if not cell.left_out), key=lambda cell: cell.name):
        groups.setdefault(_export_of(cell), []).append(cell)
    line = [cell for group in groups.values() for cell in group]
    ends = list(accumulate(len(group) for group in groups.values()))
    cuts = [0, *(_cut(index * len(line) / count, len(line) / count, ends) for index in range(1, count)), len(line)]
    return tuple(tuple(line[begin:end]) for begin, end in pairwise(cuts))


def _cut(even: float, share: float, ends: Sequence[int]) -> int:
    """Return the end of a shard: *even*, or the end of a group if that is close.

    So no shard has more than one and a half of its share.
    """
    nearest = min(ends, key=lambda end: abs(end - even), default=0)
    return nearest if abs(nearest - even) <= share / 4 else round(even)


def _export_of(cell: Cell) -> str:
    """Return what determines the export of *cell*, as text.

    For an unreadable recipe it is the cell's name: the recipe is refused in any shard.
    """
    written: object
    if cell.recipe is not None:
        written = cell.recipe.recipe.model_dump(mode="json", include={*_OF_EXPORT}, exclude_unset=True)
    else:
        from winml_dag.recipe.reading import read_recipe

        try:
            document, _ = read_recipe(cell.file)
        except WinmlDagError:
            return cell.name
        written = (document if cell.item is None else document.item(cell.item)).value
    if not isinstance(written, Mapping):
        return cell.name
    return canonical_json({name: written[name] for name in _OF_EXPORT if name in written})
