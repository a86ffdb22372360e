"""Where the boxes of a drawn graph go: in columns from left to right, so that lines are short and seldom cross.

Done here and not in the page: a graph of thousands of boxes is laid out once, and a page that only draws opens at once.
"""

from __future__ import annotations

import graphlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)

# More of them changed no more crossings in sweeps of 40 and of 136 builds.
_ORDERINGS = 6
_ALIGNMENTS = 8


@dataclass(frozen=True)
class Layout:
    """``columns`` and ``rows`` of boxes, by their place in the list; rows may be parts of one, at least 1 apart."""

    columns: tuple[int, ...]
    rows: tuple[float, ...]

    @property
    def width(self) -> int:
        return max(self.columns, default=0) + 1

    @property
    def height(self) -> float:
        return max(self.rows, default=0.0) + 1.0


def lay_out(
    steps: Sequence[str], edges: Sequence[tuple[int, int]], ranks: Sequence[float], pulls: Sequence[bool]
) -> Layout:
    """A place for each box, of which *steps* has the name of its step; *edges* go from box to box, without a cycle.

    Boxes of one step share a column wherever the steps have an order at all. In a column they are in the order of
    *ranks*; only among equals lines decide. A box that does not pull is put near its neighbours, right before the first
    that reads it, and moves none: what everything reads would draw everything together.
    """
    columns = _columns(steps, edges, pulls)
    before, after = _neighbours(len(steps), edges, pulls)
    in_columns: list[list[int]] = [[] for _ in range(max(columns, default=-1) + 1)]
    for box, column in enumerate(columns):
        in_columns[column].append(box)
    rows = {box: float(place) for boxes in in_columns for place, box in enumerate(boxes)}
    for turn in range(_ORDERINGS):
        for boxes in _swept(in_columns, turn):
            wanted = _wanted_rows(boxes, (before, after)[turn % 2], rows)
            boxes.sort(key=lambda box, wanted=wanted: (ranks[box], wanted[box]))  # type: ignore[misc]
            rows |= {box: float(place) for place, box in enumerate(boxes)}
    for turn in range(_ALIGNMENTS):
        for boxes in _swept(in_columns, turn):
            wanted = _wanted_rows(boxes, (before, after)[turn % 2], rows)
            rows |= dict(zip(boxes, _apart([wanted[box] for box in boxes]), strict=True))
    top = min(rows.values(), default=0.0)
    return Layout(tuple(columns), tuple(round(rows[box] - top, 2) for box in range(len(steps))))


def _columns(steps: Sequence[str], edges: Sequence[tuple[int, int]], pulls: Sequence[bool]) -> list[int]:
    try:
        of_step = _longest_paths(dict.fromkeys(steps), {(steps[maker], steps[reader]) for maker, reader in edges})
        columns = [of_step[step] for step in steps]
    except graphlib.CycleError:
        of_box = _longest_paths(range(len(steps)), set(edges))
        columns = [of_box[box] for box in range(len(steps))]
    return _beside_readers(columns, edges, pulls)


def _longest_paths(names: Iterable[Name], edges: set[tuple[Name, Name]]) -> dict[Name, int]:
    """How many come before each of *names* at most. Raises CycleError."""
    needs: dict[Name, list[Name]] = {name: [] for name in names}
    for maker, reader in edges:
        needs[reader].append(maker)
    found: dict[Name, int] = {}
    for name in graphlib.TopologicalSorter(needs).static_order():
        found[name] = max((found[need] + 1 for need in needs[name]), default=0)
    return found


def _beside_readers(columns: list[int], edges: Sequence[tuple[int, int]], pulls: Sequence[bool]) -> list[int]:
    """*columns* with sources next to what reads them: no line goes across the page from each of them."""
    readers: dict[int, int] = {}
    for maker, reader in edges:
        readers[maker] = min(readers.get(maker, columns[reader]), columns[reader])
    fixed = {reader for _, reader in edges} | {box for box, pull in enumerate(pulls) if pull}
    moved = [readers[box] - 1 if box in readers and box not in fixed else at for box, at in enumerate(columns)]
    used = {column: place for place, column in enumerate(sorted(set(moved)))}
    return [used[column] for column in moved]


def _neighbours(
    count: int, edges: Iterable[tuple[int, int]], pulls: Sequence[bool]
) -> tuple[list[list[int]], list[list[int]]]:
    """By box, those before and those after it that have a say in its row."""
    before: list[list[int]] = [[] for _ in range(count)]
    after: list[list[int]] = [[] for _ in range(count)]
    for maker, reader in edges:
        if pulls[maker]:
            before[reader].append(maker)
        if pulls[reader]:
            after[maker].append(reader)
    return before, after


def _swept(in_columns: list[list[int]], turn: int) -> Iterable[list[int]]:
    return in_columns if turn % 2 == 0 else reversed(in_columns)


def _wanted_rows(
    boxes: Sequence[int], neighbours: Sequence[Sequence[int]], rows: Mapping[int, float]
) -> dict[int, float]:
    """The middle of the neighbours of each; its own row for a box without any."""
    return {
        box: sum(rows[other] for other in neighbours[box]) / len(neighbours[box]) if neighbours[box] else rows[box]
        for box in boxes
    }


def _apart(wanted: Sequence[float]) -> list[float]:
    """The rows nearest to those *wanted* (least squares) that keep the order and are at least 1 apart.

    Without the distance this is isotonic regression, which the merging of neighbours that are out of order solves.
    """
    blocks: list[tuple[float, int]] = []
    for place, row in enumerate(wanted):
        total, count = row - place, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / count:
            earlier, others = blocks.pop()
            total, count = total + earlier, count + others
        blocks.append((total, count))
    levels = [total / count for total, count in blocks for _ in range(count)]
    return [level + place for place, level in enumerate(levels)]
