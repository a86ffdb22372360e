"""The graph of one or many builds as drawn: boxes with all their details, and edges between them.

Rounds of optimize and analyze with the same result as an earlier round are not drawn: their readers read that one. In a
sweep of a hundred builds they would be half of all boxes, without information.

A graph of hundreds of boxes is folded: boxes of one step become one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from winml_dag.engine.events import StageResult, Status
from winml_dag.engine.graph import Merged, Part, merge
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
        members: for a folded box, the indices of the boxes it represents.
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
    members: tuple[int, ...] = ()
    last: str = ""
    last_reason: str = ""


@dataclass(frozen=True)
class GraphView:
    """The boxes, and lines between them, each from a box to one that reads its output, by their indices.

    ``cells``: the labels of the builds, which boxes refer to by index. ``notices``: what is not drawn, and why.
    """

    cells: tuple[str, ...]
    boxes: tuple[Box, ...]
    lines: tuple[tuple[int, int], ...]
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlannedBuild:
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
    ) -> PlannedBuild:
        results = plan_graph(graph.graph, graph.sources, store, scope=graph.summary.scope)
        return cls(label, graph, results, failed or {}, last or {})


def together(builds: Sequence[PlannedBuild]) -> Merged:
    """Merge the graphs of *builds*, whose labels must differ."""
    return merge([Part(build.label, build.graph.graph, build.graph.sources) for build in builds])


def statuses_of(builds: Sequence[PlannedBuild], merged: Merged) -> dict[str, Status]:
    """Return the expected status of each stage, by id in the merged graph."""
    return {node_id: result[0] for node_id, result in _results(builds, merged).items()}


def view_of(builds: Sequence[PlannedBuild], notices: Sequence[str] = ()) -> GraphView:
    """Return the drawing of *builds*, whose labels must differ."""
    merged = together(builds)
    like = _like(builds, merged)
    results, last, readers = _results(builds, merged), _last(builds, merged, like), merged.readers()
    nodes = [node for node in merged.graph.nodes if node.id not in like]
    names = [*merged.graph.sources, *(node.id for node in nodes)]
    places = {name: place for place, name in enumerate(names)}
    makers = merged.graph.makers
    lines = dict.fromkeys(
        (places[_settled(makers[name].id if name in makers else name, like)], places[node.id])
        for node in nodes
        for name in node.inputs.values()
    )
    # The builds that contain a stage, or a later round like it, and those that read a source.
    cells: dict[str, set[int]] = {name: set() for name in names}
    for node_id, read_by in readers.items():
        cells[_settled(node_id, like)].update(place for place, _ in read_by)
    for maker, reader in lines:
        if maker < len(merged.graph.sources):
            cells[names[maker]] |= cells[names[reader]]
    sources = [
        Box(SOURCE, _without_label(name, builds), SOURCE, tuple(sorted(cells[name]))) for name in merged.graph.sources
    ]
    boxes = [
        _box(node, readers[node.id][0][1], cells[node.id], results[node.id], last.get(node.id, ("", "")))
        for node in nodes
    ]
    return GraphView(tuple(build.label for build in builds), (*sources, *boxes), tuple(lines), tuple(notices))


def _without_label(name: str, builds: Sequence[PlannedBuild]) -> str:
    """Return the name of a source within its build, without the label that made it unique in the merged graph."""
    label = next((build.label for build in builds if name.startswith(f"{build.label}/")), None)
    return name if label is None else name.removeprefix(f"{label}/")


def _results(builds: Sequence[PlannedBuild], merged: Merged) -> dict[str, tuple[Status, StageResult, str]]:
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


def _last(builds: Sequence[PlannedBuild], merged: Merged, like: Mapping[str, str]) -> dict[str, tuple[str, str]]:
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


def _like(builds: Sequence[PlannedBuild], merged: Merged) -> dict[str, str]:
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


def _box(
    node: Node, step: str, cells: set[int], expected: tuple[Status, StageResult, str], last: tuple[str, str]
) -> Box:
    status, result, error = expected
    return Box(
        step=step,
        stage=node.stage.name,
        status=str(status),
        cells=tuple(sorted(cells)),
        reason=str(result.reason),
        key=result.cache_key or "",
        seconds=result.elapsed_seconds if result.record is None else result.record.elapsed_seconds,
        error=error,
        last=last[0],
        last_reason=last[1],
    )


# Above this number a page shows the folded graph first.
MOST_BOXES = 300


def folded_view(view: GraphView) -> GraphView:
    """Fold all boxes of one step into one."""
    groups: dict[str, list[int]] = {}
    for index, box in enumerate(view.boxes):
        groups.setdefault(box.step, []).append(index)
    places = {step: place for place, step in enumerate(groups)}
    steps = [places[box.step] for box in view.boxes]
    # Rounds of one step may read each other.
    lines = dict.fromkeys(
        (steps[maker], steps[reader]) for maker, reader in view.lines if steps[maker] != steps[reader]
    )
    boxes = tuple(_folded(view.boxes, members) for members in groups.values())
    return replace(view, boxes=boxes, lines=tuple(lines))


def _folded(boxes: Sequence[Box], members: Sequence[int]) -> Box:
    first = boxes[members[0]]
    if len(members) == 1:
        return replace(first, members=tuple(members))
    inside = [boxes[place] for place in members]
    statuses = Counter(box.status for box in inside)
    last = {box.last for box in inside}
    known = [box.seconds for box in inside if box.seconds is not None]
    return Box(
        step=first.step,
        stage=first.stage if first.step != SOURCE else "",
        status=next((str(status) for status in _FIRST_TOLD if statuses[status]), SOURCE),
        cells=tuple(sorted({cell for box in inside for cell in box.cells})),
        reason=", ".join(f"{number} {status}" for status, number in sorted(statuses.items())),
        seconds=sum(known) if known else None,
        members=tuple(members),
        last=next((str(status) for status in _FIRST_TOLD if status in last), ""),
    )
