"""A graph of hundreds of boxes drawn as a few dozen: those of one step are one, or a few of unlike config."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from winml_dag.canonical import JsonValue, json_hash
from winml_dag.engine.events import Status
from winml_dag.report.graphview import SOURCE, Box, GraphView, Line

# Above that many a page shows the folded graph first.
MOST_BOXES = 300
# A step with more configs than that is one box: every export has a config of its own.
_MOST_CONFIGS = 8
_SAYS_NOTHING = ("false", "null", "", "[]", "{}")
_WORST_FIRST = (Status.FAILED, Status.RAN, Status.REUSED, Status.SKIPPED)


def folded_view(view: GraphView) -> GraphView:
    """*view* with boxes of one step and equal config as one; of a step with many configs, all as one."""
    kinds = _kinds(view.boxes)
    groups: dict[tuple[str, str], list[int]] = {}
    for place, kind in enumerate(kinds):
        groups.setdefault(kind, []).append(place)
    places = {kind: place for place, kind in enumerate(groups)}
    lines = Counter((places[kinds[line.maker]], places[kinds[line.reader]], line.artifact) for line in view.lines)
    boxes = [_folded(view.boxes, members) for members in groups.values()]
    return GraphView(
        view.cells,
        tuple(_told_apart(boxes)),
        tuple(Line(maker, reader, artifact, count) for (maker, reader, artifact), count in lines.items()),
        view.notices,
    )


def _kinds(boxes: Sequence[Box]) -> list[tuple[str, str]]:
    """By box, what tells it from boxes that are not folded with it."""
    hashes = [json_hash(box.config) for box in boxes]
    configs: dict[str, set[str]] = {}
    for box, config in zip(boxes, hashes, strict=True):
        configs.setdefault(box.step, set()).add(config)
    return [
        (box.step, config if len(configs[box.step]) <= _MOST_CONFIGS else "")
        for box, config in zip(boxes, hashes, strict=True)
    ]


def _told_apart(boxes: Sequence[Box]) -> Iterator[Box]:
    """*boxes*, those of one step with the fields of their configs that differ."""
    by_step: dict[str, list[dict[str, str]]] = {}
    for box in boxes:
        by_step.setdefault(box.step, []).append(_fields(box.config))
    for box in boxes:
        others = by_step[box.step]
        own = _fields(box.config)
        differ = [name for name in own if any(other.get(name) != own[name] for other in others)]
        yield replace(box, apart=", ".join(_said(name.rpartition(".")[2], own[name]) for name in _telling(differ, own)))


def _telling(names: Sequence[str], fields: Mapping[str, str]) -> list[str]:
    """Those of *names* that say something, what is switched on last: it has less to say than a word or a number."""
    return sorted(
        (name for name in names if fields[name] not in _SAYS_NOTHING), key=lambda name: fields[name] == "true"
    )


def _said(name: str, value: str) -> str:
    return name if value == "true" else f"{name} {value}"


def _fields(config: JsonValue, name: str = "") -> dict[str, str]:
    """Every field of a config by its dotted name, as text."""
    if not isinstance(config, Mapping):
        return {name: config if isinstance(config, str) else json.dumps(config, ensure_ascii=False)}
    inside = [_fields(value, f"{name}.{key}" if name else key) for key, value in config.items()]
    return {dotted: text for of_one in inside for dotted, text in of_one.items()}


def _folded(boxes: Sequence[Box], members: Sequence[int]) -> Box:
    first = boxes[members[0]]
    if len(members) == 1:
        return replace(first, members=tuple(members))
    inside = [boxes[place] for place in members]
    statuses = Counter(box.status for box in inside)
    last = Counter(box.last for box in inside)
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
        last=next((str(status) for status in _WORST_FIRST if last[status]), ""),
    )


def _told(statuses: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {status}" for status, number in sorted(statuses.items()))
