"""The graph of one or many builds as a single HTML page, with zoom, search and the reason of each stage.

Boxes are in columns from left to right, so that edges are short and rarely cross. The layout is computed here and not
in the page: a graph of thousands of boxes is laid out once, and a page that only draws opens at once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise, takewhile
from pathlib import Path
from statistics import fmean
from typing import TypeAlias, TypeVar

import networkx

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.report.graphview import MOST_BOXES, SOURCE, Box, GraphView, folded_view
from winml_dag.report.onefile import PAGES, PageKind, as_data, escaped, link_beside, page_of
from winml_dag.store.quantities import counted

GRAPH_PAGE = PageKind(
    "winml_dag graph",
    PAGES / "graph",
    ("graph.css",),
    ("drawing.js", "camera.js", "details.js", "search.js", "main.js"),
)
_SEPARATOR = re.compile(r"(?<=[-_/. ])")
_WORDS = {"ran": "would run", "reused": "reused", "failed": "failed"}


def graph_html(view: GraphView, title: str, made: str, path: Path | None = None) -> str:
    """Return the whole page, in ASCII. *made*: creation time and program. *path*: where it goes, for links."""
    folded = folded_view(view)
    content: JsonObject = {
        "cells": list(view.cells),
        "views": {"full": _drawn(view), "folded": _drawn(folded)},
        "folded_first": len(view.boxes) > MOST_BOXES,
        "has_last": any(box.last for box in view.boxes),
        "folds": len(view.cells) > 1 and len(folded.boxes) < len(view.boxes),
    }
    return page_of(
        GRAPH_PAGE,
        about=("color-scheme", "light dark"),
        title=escaped(title),
        summary=escaped(summary(view)),
        made=escaped(made),
        links=link_beside(path, "report.html", "Report"),
        notices="".join(f'<p class="notice" dir="auto">{escaped(text)}</p>' for text in view.notices),
        content=as_data(content),
    )


def summary(view: GraphView) -> str:
    """Format ``40 builds = 203 stages, 152 of them apart: 12 would run, 191 reused.``"""
    stages = [box for box in view.boxes if box.step != SOURCE]
    statuses = Counter(box.status for box in stages)
    shared = sum(len(box.cells) > 1 for box in stages)
    counts = ", ".join(f"{statuses[status]} {word}" for status, word in _WORDS.items() if statuses[status])
    several = f" ({sum(len(box.cells) for box in stages)} one by one), {shared} shared by several builds"
    return (
        f"{counted(len(view.cells), 'build')} = {counted(len(stages), 'stage')}{several if shared else ''}: {counts}."
    )


def _drawn(view: GraphView) -> JsonObject:
    layout = lay_out(
        [box.step for box in view.boxes],
        view.lines,
        ranks=[fmean(box.cells) if box.cells else 0.0 for box in view.boxes],
        pulls=[box.step != SOURCE for box in view.boxes],
    )
    boxes: list[JsonValue] = [
        {**_box(box, view.cells), "column": column, "row": row}
        for box, column, row in zip(view.boxes, layout.columns, layout.rows, strict=True)
    ]
    lines: list[JsonValue] = [[*line, layout.route(*line)] for line in view.lines]
    return {"boxes": boxes, "lines": lines, "width": layout.width, "height": layout.height}


def _box(box: Box, cells: Sequence[str]) -> JsonObject:
    """Return the JSON of a box, without empty fields."""
    fields: JsonObject = {
        "step": box.stage or "sources" if box.step == SOURCE else box.step,
        "status": box.status,
        "label": _label(box, cells),
        "cells": list(box.cells),
        "reason": box.reason,
        "error": box.error,
        "key": box.key,
        "seconds": None if box.seconds is None else round(box.seconds, 2),
        "members": list(box.members),
        "last": box.last,
        "last_reason": box.last_reason,
    }
    return {name: value for name, value in fields.items() if value not in ("", None, [])}


def _label(box: Box, cells: Sequence[str]) -> str:
    """Return the common part of the names of a box's builds; without one, the number of builds."""
    names = [cells[index] for index in box.cells]
    if len(box.members) > 1:
        return f"{len(box.members)} stages of {counted(len(names), 'build')}"
    if len(names) == 1:
        return names[0] if len(cells) > 1 else ""
    parts = [name.split("/") for name in names]
    if len({len(of_name) for of_name in parts}) == 1:
        common = [of_part[0] for of_part in zip(*parts, strict=True) if len(set(of_part)) == 1]
        if common:
            return "/".join(common)
    words = [_SEPARATOR.split(name) for name in (min(names), max(names))]
    begin = "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], zip(*words, strict=False)))
    return f"{begin}\u2026" if begin else counted(len(names), "build")


Name = TypeVar("Name", bound=Hashable)
# A box by its index, or the lane of the lines from a box in a column.
_Place: TypeAlias = int | tuple[int, int]

# Higher values removed no further crossings in sweeps of 40 and of 136 builds.
_TURNS = 7
# The height of a line where it passes a column, in rows.
_LANE = 0.4


@dataclass(frozen=True)
class Layout:
    """``columns`` and ``rows`` of boxes, by their index. Rows may be fractional, at least 1 apart.

    ``lanes``: the row where lines from a box pass a column between the boxes of that, by box and column.
    """

    columns: tuple[int, ...]
    rows: tuple[float, ...]
    lanes: Mapping[tuple[int, int], float] = field(default_factory=dict)

    @property
    def width(self) -> int:
        return max(self.columns, default=0) + 1

    @property
    def height(self) -> float:
        return max((*self.rows, *self.lanes.values()), default=0.0) + 1.0

    def route(self, maker: int, reader: int) -> list[JsonValue]:
        """Return the rows at which a line passes the columns between its ends."""
        return [self.lanes[maker, column] for column in range(self.columns[maker] + 1, self.columns[reader])]


def lay_out(
    steps: Sequence[str], edges: Sequence[tuple[int, int]], ranks: Sequence[float], pulls: Sequence[bool]
) -> Layout:
    """Return a position for each box. *steps* has the step name of each box, *edges* connect boxes and have no cycle.

    Boxes of one step share a column wherever the steps can be ordered. Within a column they are ordered by *ranks*, and
    only ties by edges. A box that does not pull is placed near its neighbours, directly before its first reader, and
    moves no other box: a source that everything reads would pull everything together.
    """
    columns = _columns(steps, edges, pulls)
    # A line over several columns passes each of them in a lane, which takes part in the layout like a box.
    graph = networkx.DiGraph()
    graph.add_nodes_from(range(len(steps)))
    for maker, reader in edges:
        lanes = [(maker, column) for column in range(columns[maker] + 1, columns[reader])]
        networkx.add_path(graph, [maker, *lanes, reader])
    box_of = {place: place if isinstance(place, int) else place[0] for place in graph}
    in_columns: list[list[_Place]] = [[] for _ in range(max(columns, default=-1) + 1)]
    for place in graph:
        in_columns[columns[place] if isinstance(place, int) else place[1]].append(place)

    rows: dict[_Place, float] = {place: float(at) for places in in_columns for at, place in enumerate(places)}
    # Columns are visited from left to right and back, so that each follows the one before: first for the order, by the
    # mean row of the neighbours, then for the distances.
    for turn in range(2 * _TURNS):
        near = (graph.pred, graph.succ)[turn % 2]
        for places in in_columns if turn % 2 == 0 else reversed(in_columns):
            pulling = {place: [rows[other] for other in near[place] if pulls[box_of[other]]] for place in places}
            wanted = {place: fmean(at) if at else rows[place] for place, at in pulling.items()}
            if turn < _TURNS - 1:
                places.sort(key=lambda place, wanted=wanted: (ranks[box_of[place]], wanted[place]))  # type: ignore[misc]
                settled = [float(at) for at in range(len(places))]
            else:
                heights = [1.0 if isinstance(place, int) else _LANE for place in places]
                settled = _apart([wanted[place] for place in places], heights)
            rows.update(zip(places, settled, strict=True))
    top = min(rows.values(), default=0.0)
    at = {place: round(row - top, 2) for place, row in rows.items()}
    boxes = tuple(at.pop(box) for box in range(len(steps)))
    return Layout(tuple(columns), boxes, {place: row for place, row in at.items() if isinstance(place, tuple)})


def _columns(steps: Sequence[str], edges: Sequence[tuple[int, int]], pulls: Sequence[bool]) -> list[int]:
    try:
        of_step = _levels(steps, ((steps[maker], steps[reader]) for maker, reader in edges))
        columns = [of_step[step] for step in steps]
    except networkx.NetworkXUnfeasible:  # a cycle
        of_box = _levels(range(len(steps)), edges)
        columns = [of_box[box] for box in range(len(steps))]
    return _beside_readers(columns, edges, pulls)


def _levels(names: Iterable[Name], edges: Iterable[tuple[Name, Name]]) -> dict[Name, int]:
    """Return the length of the longest path to each of *names*."""
    graph = networkx.DiGraph()
    graph.add_nodes_from(names)
    graph.add_edges_from(edges)
    return {name: level for level, same in enumerate(networkx.topological_generations(graph)) for name in same}


def _beside_readers(columns: list[int], edges: Sequence[tuple[int, int]], pulls: Sequence[bool]) -> list[int]:
    """Return *columns* with sources next to their readers, so that no edges from them cross the whole page."""
    readers: dict[int, int] = {}
    for maker, reader in edges:
        readers[maker] = min(readers.get(maker, columns[reader]), columns[reader])
    fixed = {reader for _, reader in edges} | {box for box, pull in enumerate(pulls) if pull}
    moved = [readers[box] - 1 if box in readers and box not in fixed else at for box, at in enumerate(columns)]
    used = {column: index for index, column in enumerate(sorted(set(moved)))}
    return [used[column] for column in moved]


def _apart(wanted: Sequence[float], heights: Sequence[float]) -> list[float]:
    """Return the rows nearest to those *wanted* (least squares) that keep the order and have room for *heights*.

    Without the heights this is isotonic regression, solved by merging neighbours that are out of order.
    """
    offsets = [0.0, *accumulate((one + other) / 2 for one, other in pairwise(heights))]
    blocks: list[tuple[float, int]] = []
    for row, offset in zip(wanted, offsets, strict=False):
        total, count = row - offset, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / count:
            earlier, others = blocks.pop()
            total, count = total + earlier, count + others
        blocks.append((total, count))
    levels = [total / count for total, count in blocks for _ in range(count)]
    return [level + offset for level, offset in zip(levels, offsets, strict=False)]
