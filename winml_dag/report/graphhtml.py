"""The graph of one or many builds as one file for a browser: to zoom, to search, and to ask of each stage why."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from statistics import fmean

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.report.graphfold import MOST_BOXES, folded_view
from winml_dag.report.graphview import SOURCE, Box, GraphView
from winml_dag.report.layers import lay_out
from winml_dag.report.onefile import PageKind, as_data, escaped, page_of
from winml_dag.store.quantities import counted

GRAPH_PAGE = PageKind(
    "winml_dag graph",
    Path(__file__).parent / "graphpage",
    ("graph.css",),
    ("drawing.js", "camera.js", "details.js", "search.js", "main.js"),
)
_SEPARATOR = re.compile(r"(?<=[-_/. ])")
_LONGEST = 400
_WORDS = {"ran": "would run", "reused": "reused", "failed": "failed"}


def graph_html(view: GraphView, title: str, made: str) -> str:
    """The whole page, in ASCII; *made* says when and by what."""
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
        notices="".join(f'<p class="notice" dir="auto">{escaped(text)}</p>' for text in view.notices),
        content=as_data(content),
    )


def summary(view: GraphView) -> str:
    """``40 builds = 203 stages, 152 of them apart: 12 would run, 191 reused.``"""
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
        view.edges(),
        ranks=[fmean(box.cells) if box.cells else 0.0 for box in view.boxes],
        pulls=[box.step != SOURCE for box in view.boxes],
    )
    boxes: list[JsonValue] = [
        {**_box(box, view.cells), "column": column, "row": row}
        for box, column, row in zip(view.boxes, layout.columns, layout.rows, strict=True)
    ]
    lines: list[JsonValue] = [[line.maker, line.reader, line.artifact, line.count] for line in view.lines]
    return {"boxes": boxes, "lines": lines, "width": layout.width, "height": layout.height}


def _box(box: Box, cells: Sequence[str]) -> JsonObject:
    """Fields that say nothing are left out."""
    told: JsonObject = {
        "step": box.stage or "sources" if box.step == SOURCE else box.step,
        "status": box.status,
        "label": _label(box, cells),
        "apart": box.apart[:_LONGEST],
        "cells": list(box.cells),
        "reason": box.reason,
        "error": box.error,
        "key": box.key,
        "seconds": None if box.seconds is None else round(box.seconds, 2),
        "members": list(box.members),
        "last": box.last,
        "last_reason": box.last_reason,
    }
    return {name: value for name, value in told.items() if value not in ("", None, [])}


def _label(box: Box, cells: Sequence[str]) -> str:
    """What the names of a box's builds have in common; how many it has where that is nothing."""
    names = [cells[place] for place in box.cells]
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
