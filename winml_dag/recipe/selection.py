"""Select cells of a sweep: by label or name (``--filter``), or one machine's shard of them (``--shard``).

``--filter model=bert,res*`` selects those labels and patterns of an axis, ``precision!=fp32`` all others, and anything
else is the name of a cell, or a pattern of names. Multiple filters are combined with AND.

``--shard 3/8`` is the same shard on every machine: it depends only on the recipes, not on the cache, on what is
installed, or on the order of directory listings. Cells with one export stay together unless a shard would get much more
than its share.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import accumulate, pairwise

from winml_dag.canonical import canonical_json
from winml_dag.errors import UsageError, WinmlDagError
from winml_dag.recipe.document import did_you_mean, known_instead
from winml_dag.recipe.sweep import Cell, Sweep


@dataclass(frozen=True)
class Choice:
    """By axis, labels and patterns of which one must match, as in ``when`` and ``exclude``; no axis matches all."""

    patterns: Mapping[str, tuple[str, ...]]

    def takes(self, values: Mapping[str, str]) -> bool:
        return all(matches(values.get(axis, ""), patterns) for axis, patterns in self.patterns.items())


def matches(label: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(label, pattern) for pattern in patterns)


def filtered(sweep: Sweep, filters: Sequence[str]) -> tuple[Cell, ...]:
    """Return the cells of *sweep* that match all *filters*, in its order, including excluded ones.

    Raises:
        UsageError: an axis, label or name does not exist, or nothing matches.
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
            raise UsageError(f"--filter {text}: {pattern!r} is no value of {axis}{hint}")
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
        raise UsageError(f"{text!r} is no shard.", advice="Write the third of eight as 3/8.")
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
    cuts = [0, *(_cut(place * len(line) / count, len(line) / count, ends) for place in range(1, count)), len(line)]
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
