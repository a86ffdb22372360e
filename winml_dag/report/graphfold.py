"""A graph of hundreds of boxes drawn as a few dozen: those of one step are one, or a few of unlike config."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from winml_dag.engine.events import Status
from winml_dag.report.graphview import SOURCE, Box, GraphView, Line

# Above that many a page shows the folded graph first.
MOST_BOXES = 300
# A step with more configs than that is one box: every export has a config of its own.
_MOST_CONFIGS = 8
_WORST_FIRST = (Status.FAILED, Status.RAN, Status.REUSED, Status.SKIPPED)


def folded_view(view: GraphView) -> GraphView:
    """*view* with boxes of one step and equal config as one; of a step with many configs, all as one."""
    kinds = _kinds(view.boxes)
    groups: dict[tuple[str, str], list[int]] = {}
    for place, kind in enumerate(kinds):
        groups.setdefault(kind, []).append(place)
    places = {kind: place for place, kind in enumerate(groups)}
    lines = Counter((places[kinds[line.maker]], places[kinds[line.reader]], line.artifact) for line in view.lines)
    return GraphView(
        view.cells,
        tuple(_folded(view.boxes, members) for members in groups.values()),
        tuple(Line(maker, reader, artifact, count) for (maker, reader, artifact), count in lines.items()),
        view.notices,
    )


def _kinds(boxes: Sequence[Box]) -> list[tuple[str, str]]:
    configs: dict[str, set[str]] = {}
    for box in boxes:
        configs.setdefault(box.step, set()).add(box.config)
    return [(box.step, box.config if len(configs[box.step]) <= _MOST_CONFIGS else "") for box in boxes]


def _folded(boxes: Sequence[Box], members: Sequence[int]) -> Box:
    first = boxes[members[0]]
    if len(members) == 1:
        return Box(**{**vars(first), "members": tuple(members)})
    inside = [boxes[place] for place in members]
    statuses = Counter(box.status for box in inside)
    known = [box.seconds for box in inside if box.seconds is not None]
    return Box(
        step=first.step,
        stage=first.stage if first.step != SOURCE else "",
        status=next((str(status) for status in _WORST_FIRST if statuses[status]), SOURCE),
        cells=tuple(sorted({cell for box in inside for cell in box.cells})),
        reason=_told(statuses),
        seconds=sum(known) if known else None,
        config=first.config,
        members=tuple(members),
    )


def _told(statuses: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {status}" for status, number in sorted(statuses.items()))
