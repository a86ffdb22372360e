"""``--shard 3/8``: a part of a sweep for one of several machines, each of which comes to the same parts by itself.

So nothing counts but what the recipes say: not the cache, not what is installed, not in which order a system lists
files. Cells with one export stay together unless a part would get much more than its share by that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from winml_dag.canonical import canonical_json
from winml_dag.errors import UsageError, WinmlDagError
from winml_dag.recipe.sweep import Cell

# What an export is made from.
_OF_EXPORT = ("model", "loader", "export")
_MOST = 10_000


@dataclass(frozen=True)
class Shard:
    """Part *number* of *count*, counted from 1."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def parse_shard(text: str) -> Shard:
    """The shard that *text* names as in ``3/8``. Raises UsageError when there is no such one."""
    match = re.fullmatch(r"([0-9]{1,5})/([0-9]{1,5})", text.strip())
    if match is None:
        raise UsageError(f"{text!r} is no shard.", advice="Write the third of eight as 3/8.")
    number, count = int(match[1]), int(match[2])
    if not 1 <= number <= count <= _MOST:
        what = f"there are {count}, counted from 1" if count <= _MOST else f"{_MOST:,} is the most"
        raise UsageError(f"There is no shard {text}: {what}.")
    return Shard(number, count)


def in_shard(cells: Sequence[Cell], shard: Shard) -> tuple[Cell, ...]:
    """Those of *cells* that are in *shard*, in their order. What the sweep leaves out, the first shard tells of."""
    names = {cell.name for cell in shards(cells, shard.count)[shard.number - 1]}
    return tuple(cell for cell in cells if cell.name in names or (cell.left_out and shard.number == 1))


def shards(cells: Sequence[Cell], count: int) -> tuple[tuple[Cell, ...], ...]:
    """All that is to be built of *cells*, in *count* parts: each in exactly one; some are empty when cells are few."""
    groups: dict[str, list[Cell]] = {}
    for cell in sorted((cell for cell in cells if not cell.left_out), key=lambda cell: cell.name):
        groups.setdefault(_export_of(cell), []).append(cell)
    line = [cell for group in groups.values() for cell in group]
    ends = list(accumulate(len(group) for group in groups.values()))
    cuts = [0, *(_cut(place * len(line) / count, len(line) / count, ends) for place in range(1, count)), len(line)]
    return tuple(tuple(line[begin:end]) for begin, end in pairwise(cuts))


def _cut(even: float, share: float, ends: Sequence[int]) -> int:
    """Where one part ends: where it is *even*, or where a group does, if that is not far. So no part has more than one
    and a half of its share.
    """
    nearest = min(ends, key=lambda end: abs(end - even), default=0)
    return nearest if abs(nearest - even) <= share / 4 else round(even)


def _export_of(cell: Cell) -> str:
    """What the export of *cell* is made from, as text. Of a recipe that cannot be read, its name: it is refused
    wherever it goes.
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
