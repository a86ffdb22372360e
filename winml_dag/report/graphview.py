"""The graph of one or many builds as it is drawn: boxes with all that there is to say of each, and lines between them.

Rounds of optimize and analyze that come to what an earlier one did are not drawn: what reads them reads that one. In a
sweep of a hundred builds they would be half of all boxes, and say nothing.

A graph of hundreds of boxes is drawn as a few dozen: those of one step are one, or a few of unlike config."""

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
# Of several builds that have a stage in common, what is most to be known.
_FIRST_TOLD = (Status.FAILED, Status.RAN, Status.REUSED, Status.SKIPPED)


@dataclass(frozen=True)
class Box:
    """A stage of the common graph, a source, or in a folded graph several of one kind.

    Attributes:
        step: what it is called in its build, without the build: ``optimize.0``; ``source`` for a source.
        stage: the name of the stage; of a source, its own.
        status: ``source``, or that of a plan: ``ran`` is what would run.
        cells: the places of the builds that have it, in order.
        seconds: what it took when it was made, of one that would run, the estimate; None where nobody knows.
        config: what the stage reads of the recipe.
        members: of a folded one, the places of the boxes that it stands for.
        apart: what of its config tells it from other boxes of its step, where these are few.
        last: what became of it in the last run that is known of, and ``last_reason`` why; empty where none is.
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
    """What ``reader`` reads of ``maker``, both by place; ``count`` lines in one where boxes are folded."""

    maker: int
    reader: int
    artifact: str
    count: int = 1


@dataclass(frozen=True)
class GraphView:
    """``cells``: the labels of the builds, which boxes name by place. ``notices``: what is not drawn, and why."""

    cells: tuple[str, ...]
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    notices: tuple[str, ...] = field(default=())

    def edges(self) -> tuple[tuple[int, int], ...]:
        return tuple((line.maker, line.reader) for line in self.lines)


@dataclass(frozen=True)
class ForeseenBuild:
    """A build and what would become of each of its stages. ``failed``: by id, why a stage failed when it last ran;
    ``last``: by id, what became of it then, and the reason.
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
    """The one graph of *builds*, whose labels differ."""
    return merge([Part(build.label, build.graph.graph, build.graph.sources) for build in builds])


def statuses_of(builds: Sequence[ForeseenBuild], merged: Merged) -> dict[str, Status]:
    """By id in the common graph, what would become of a stage."""
    return {node_id: told[0] for node_id, told in _told(builds, merged).items()}


def view_of(builds: Sequence[ForeseenBuild], notices: Sequence[str] = ()) -> GraphView:
    """What is drawn of *builds*, whose labels differ."""
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
    """What a source is called in its build, where another one has taken the name among all."""
    label = next((build.label for build in builds if name.startswith(f"{build.label}/")), None)
    return name if label is None else name.removeprefix(f"{label}/")


def _told(builds: Sequence[ForeseenBuild], merged: Merged) -> dict[str, tuple[Status, StageResult, str]]:
    """By id in the common graph: status, what is foreseen, and why it failed when it last ran; of the builds that have
    a stage, the one with most to tell.
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
    """By id in the common graph, what became of a stage in the last run, and why: it ran if it did for any build."""
    found: dict[str, tuple[str, str]] = {}
    for build, ids in zip(builds, merged.ids, strict=True):
        for own, last in build.last.items():
            if own not in ids:
                continue  # of another recipe, or another version of it
            node_id = _settled(ids[own], like)
            if node_id not in found or _rank(last[0]) < _rank(found[node_id][0]):
                found[node_id] = last
    return found


def _rank(status: str) -> int:
    return _FIRST_TOLD.index(Status(status))


def _like(builds: Sequence[ForeseenBuild], merged: Merged) -> dict[str, str]:
    """By id of a stage that is not drawn, the one in whose place it would be; both in the common graph: rounds that say
    nothing new, and stages that turned out to do the same work, since they have one key.
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
    # Of rounds that are one node only some builds may know what came of it: those that tell it apart are believed.
    return {node_id: first for node_id, first in found.items() if first != node_id}


def _settled(name: str, like: Mapping[str, str]) -> str:
    seen = {name}
    while name in like and like[name] not in seen:
        name = like[name]
        seen.add(name)
    return name


def _cells(readers: Mapping[str, Sequence[tuple[int, str]]], like: Mapping[str, str]) -> dict[str, set[int]]:
    """By id, which builds have a stage, or a later round that is like it."""
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
        reason=_status_counts(statuses),
        seconds=sum(known) if known else None,
        config=first.config,
        members=tuple(members),
        last=next((str(status) for status in _WORST_FIRST if last[status]), ""),
    )


def _status_counts(statuses: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {status}" for status, number in sorted(statuses.items()))
