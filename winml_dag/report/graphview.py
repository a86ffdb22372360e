"""The graph of one or many builds as drawn: boxes with all their details, and edges between them.

Rounds of optimize and analyze with the same result as an earlier round are not drawn: their readers read that one. In a
sweep of a hundred builds they would be half of all boxes, without information.

A graph of hundreds of boxes is folded to a few dozen: boxes of one step become one, or a few with different configs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from winml_dag.canonical import JsonObject, JsonValue, json_hash
from winml_dag.engine.events import StageResult, Status
from winml_dag.engine.merge import Merged, Part, merge
from winml_dag.engine.plan import plan_graph
from winml_dag.engine.stage import Node
from winml_dag.pipeline.buildgraph import BuildGraph
from winml_dag.pipeline.search import folded
from winml_dag.store.store import Store

SOURCE = "source"
# The status to show for a stage shared by several builds, most important first.
_FIRST_TOLD = (Status.FAILED, Status.RAN, Status.REUSED, Status.SKIPPED)


@dataclass(frozen=True)
class Box:
    """A stage of the merged graph, a source, or in a folded graph several of one kind.

    Attributes:
        step: its name within its build, without the build: ``optimize.0``; ``source`` for a source.
        stage: the name of the stage; for a source, its own name.
        status: ``source``, or that of a plan: ``ran`` means it would run.
        cells: indices of the builds that contain it, in order.
        seconds: the time it took, or the estimate if it would run; None if unknown.
        config: the recipe fields that the stage reads.
        members: for a folded box, the indices of the boxes it represents.
        apart: the parts of its config that distinguish it from other boxes of its step, if these are few.
        last: its outcome in the last recorded run, and ``last_reason`` the reason; empty without one.
    """

    step: str
    stage: str
    status: str
    cells: tuple[int, ...]
    reason: str = ""
    key: str = ""
    seconds: float | None = None
    error: str = ""
    config: JsonObject = field(default_factory=dict)
    members: tuple[int, ...] = ()
    apart: str = ""
    last: str = ""
    last_reason: str = ""


@dataclass(frozen=True)
class Line:
    """The artifact of ``maker`` that ``reader`` reads, both as indices; ``count``: number of edges folded into one."""

    maker: int
    reader: int
    artifact: str
    count: int = 1


@dataclass(frozen=True)
class GraphView:
    """``cells``: the labels of the builds, which boxes refer to by index. ``notices``: what is not drawn, and why."""

    cells: tuple[str, ...]
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    notices: tuple[str, ...] = field(default=())

    def edges(self) -> tuple[tuple[int, int], ...]:
        return tuple((line.maker, line.reader) for line in self.lines)


@dataclass(frozen=True)
class ForeseenBuild:
    """A build and the expected outcome of each of its stages.

    ``failed``: by id, why a stage failed in its last run. ``last``: by id, its outcome then, and the reason.
    """

    label: str
    graph: BuildGraph
    results: tuple[StageResult, ...]
    failed: Mapping[str, str] = field(default_factory=dict)
    last: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        label: str,
        graph: BuildGraph,
        store: Store,
        failed: Mapping[str, str] | None = None,
        last: Mapping[str, tuple[str, str]] | None = None,
    ) -> ForeseenBuild:
        results = plan_graph(graph.graph, graph.sources, store, scope=graph.summary.scope)
        return cls(label, graph, results, failed or {}, last or {})


def together(builds: Sequence[ForeseenBuild]) -> Merged:
    """Merge the graphs of *builds*, whose labels must differ."""
    return merge([Part(build.label, build.graph.graph, build.graph.sources) for build in builds])


def statuses_of(builds: Sequence[ForeseenBuild], merged: Merged) -> dict[str, Status]:
    """Return the expected status of each stage, by id in the merged graph."""
    return {node_id: told[0] for node_id, told in _told(builds, merged).items()}


def view_of(builds: Sequence[ForeseenBuild], notices: Sequence[str] = ()) -> GraphView:
    """Return the drawing of *builds*, whose labels must differ."""
    merged = together(builds)
    like = _like(builds, merged)
    told = _told(builds, merged)
    readers = merged.readers()
    cells = _cells(readers, like)
    nodes = [node for node in merged.graph.nodes if node.id not in like]
    places = {name: place for place, name in enumerate([*merged.graph.sources, *(node.id for node in nodes)])}
    lines = tuple(_lines(merged, nodes, like, places))
    read_in: dict[int, set[int]] = {}
    for line in lines:
        read_in.setdefault(line.maker, set()).update(cells[nodes[line.reader - len(merged.graph.sources)].id])
    sources = [
        Box(SOURCE, _without_label(name, builds), SOURCE, tuple(sorted(read_in.get(place, ()))))
        for place, name in enumerate(merged.graph.sources)
    ]
    last = _last(builds, merged, like)
    boxes = []
    for node in nodes:
        status, reason = last.get(node.id, ("", ""))
        box = _box(node, readers[node.id][0][1], cells[node.id], *told[node.id])
        boxes.append(replace(box, last=status, last_reason=reason))
    return GraphView(tuple(build.label for build in builds), (*sources, *boxes), lines, tuple(notices))


def _without_label(name: str, builds: Sequence[ForeseenBuild]) -> str:
    """Return the name of a source within its build, without the label that made it unique in the merged graph."""
    label = next((build.label for build in builds if name.startswith(f"{build.label}/")), None)
    return name if label is None else name.removeprefix(f"{label}/")


def _told(builds: Sequence[ForeseenBuild], merged: Merged) -> dict[str, tuple[Status, StageResult, str]]:
    """Return, by id in the merged graph, status, expected result, and the reason of the last failure.

    For a shared stage, they come from the build with the most important status.
    """
    found: dict[str, tuple[Status, StageResult, str]] = {}
    for build, ids in zip(builds, merged.ids, strict=True):
        for result in build.results:
            error = build.failed.get(result.node.id, "") if result.status is Status.RAN else result.error
            status = Status.FAILED if error else result.status
            before = found.get(ids[result.node.id])
            if before is None or _FIRST_TOLD.index(status) < _FIRST_TOLD.index(before[0]):
                found[ids[result.node.id]] = (status, result, error)
    return found


def _last(builds: Sequence[ForeseenBuild], merged: Merged, like: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return, by id in the merged graph, the last outcome of a stage, and the reason. It ran if it did in any build."""
    found: dict[str, tuple[str, str]] = {}
    for build, ids in zip(builds, merged.ids, strict=True):
        for own, last in build.last.items():
            if own not in ids:
                continue  # from another recipe, or another version of it
            node_id = _settled(ids[own], like)
            if node_id not in found or _rank(last[0]) < _rank(found[node_id][0]):
                found[node_id] = last
    return found


def _rank(status: str) -> int:
    return _FIRST_TOLD.index(Status(status))


def _like(builds: Sequence[ForeseenBuild], merged: Merged) -> dict[str, str]:
    """Return, by id of each stage that is not drawn, the stage drawn in its place; both in the merged graph.

    These are redundant rounds, and stages that have the same key and so do the same work.
    """
    found: dict[str, str] = {}
    first_of: dict[str, str] = {}
    for build, ids in zip(builds, merged.ids, strict=True):
        for own, first in folded(build.results).like.items():
            found[ids[own]] = ids[first]
        for result in build.results:
            node_id = ids[result.node.id]
            if result.cache_key and node_id not in found:
                found[node_id] = first_of.setdefault(result.cache_key, node_id)
    # Rounds may share a node while only some builds have results for it. Those that distinguish it take precedence.
    return {node_id: first for node_id, first in found.items() if first != node_id}


def _settled(name: str, like: Mapping[str, str]) -> str:
    seen = {name}
    while name in like and like[name] not in seen:
        name = like[name]
        seen.add(name)
    return name


def _cells(readers: Mapping[str, Sequence[tuple[int, str]]], like: Mapping[str, str]) -> dict[str, set[int]]:
    """Return, by id, the builds that contain a stage, or a later round like it."""
    found: dict[str, set[int]] = {}
    for node_id, read_by in readers.items():
        found.setdefault(_settled(node_id, like), set()).update(place for place, _ in read_by)
    return found


def _lines(merged: Merged, nodes: Sequence[Node], like: Mapping[str, str], places: Mapping[str, int]) -> Iterator[Line]:
    graph = merged.graph
    for node in nodes:
        drawn: set[tuple[str, str]] = set()
        for name in node.inputs.values():
            maker = graph.makers[name].id if name in graph.makers else name
            artifact = name.removeprefix(f"{maker}.") if name != maker else "files"
            maker = _settled(maker, like)
            if (maker, artifact) not in drawn:
                drawn.add((maker, artifact))
                yield Line(places[maker], places[node.id], artifact)


def _box(node: Node, step: str, cells: set[int], status: Status, result: StageResult, error: str) -> Box:
    record = result.record
    return Box(
        step=step,
        stage=node.stage.name,
        status=str(status),
        cells=tuple(sorted(cells)),
        reason=str(result.reason),
        key=result.cache_key or "",
        seconds=result.elapsed_seconds if record is None else record.elapsed_seconds,
        error=error,
        config=node.config,
    )


# Above this number a page shows the folded graph first.
MOST_BOXES = 300
# A step with more configs is folded to one box, since every export has a config of its own.
_MOST_CONFIGS = 8
_SAYS_NOTHING = ("false", "null", "", "[]", "{}")
_WORST_FIRST = (Status.FAILED, Status.RAN, Status.REUSED, Status.SKIPPED)


def folded_view(view: GraphView) -> GraphView:
    """Fold boxes of one step and equal config; of a step with many configs, all."""
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
    """Return the key by which each box is folded."""
    hashes = [json_hash(box.config) for box in boxes]
    configs: dict[str, set[str]] = {}
    for box, config in zip(boxes, hashes, strict=True):
        configs.setdefault(box.step, set()).add(config)
    return [
        (box.step, config if len(configs[box.step]) <= _MOST_CONFIGS else "")
        for box, config in zip(boxes, hashes, strict=True)
    ]


def _told_apart(boxes: Sequence[Box]) -> Iterator[Box]:
    """Yield *boxes* with the config fields that differ within their step."""
    by_step: dict[str, list[dict[str, str]]] = {}
    for box in boxes:
        by_step.setdefault(box.step, []).append(_fields(box.config))
    for box in boxes:
        others = by_step[box.step]
        own = _fields(box.config)
        differ = [name for name in own if any(other.get(name) != own[name] for other in others)]
        yield replace(box, apart=", ".join(_said(name.rpartition(".")[2], own[name]) for name in _telling(differ, own)))


def _telling(names: Sequence[str], fields: Mapping[str, str]) -> list[str]:
    """Return the informative ones of *names*. Boolean flags come last, as they say less than texts and numbers."""
    return sorted(
        (name for name in names if fields[name] not in _SAYS_NOTHING), key=lambda name: fields[name] == "true"
    )


def _said(name: str, value: str) -> str:
    return name if value == "true" else f"{name} {value}"


def _fields(config: JsonValue, name: str = "") -> dict[str, str]:
    """Flatten a config to texts by dotted name."""
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
        reason=_status_counts(statuses),
        seconds=sum(known) if known else None,
        config=first.config,
        members=tuple(members),
        last=next((str(status) for status in _WORST_FIRST if last[status]), ""),
    )


def _status_counts(statuses: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {status}" for status, number in sorted(statuses.items()))
