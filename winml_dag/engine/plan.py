"""What a run would do, without doing it: the same decisions as a run, as far as they can be made now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from winml_dag.engine import reason
from winml_dag.engine.decide import Reuse, decide, refusal
from winml_dag.engine.events import StageResult, Status
from winml_dag.engine.graph import Graph
from winml_dag.engine.known import Known
from winml_dag.engine.stage import Node
from winml_dag.engine.waves import look_ahead
from winml_dag.store.artifact import Artifact
from winml_dag.store.record import Record
from winml_dag.store.store import Store

# As many as the store reads in one statement.
_AT_ONCE = 500


def remembered_name(scope: str, node: Node) -> str:
    """What a node's result is remembered under: the same stage of the same build, whatever its key was then."""
    return f"{scope}\n{node.id}"


def plan_graph(
    graph: Graph, sources: Mapping[str, Artifact], store: Store, *, scope: str, rebuild: bool = False
) -> tuple[StageResult, ...]:
    """One result for each node, in the graph's order; nothing is run or written.

    A node behind one that would run has no key yet: it is listed as ``ran``, with a reason that says what it waits
    for, and may turn out to be reused when what runs before it gives the same bytes as before. Only of outputs that are
    usually the same it is assumed that they will be.
    """
    if not rebuild:
        look_ahead(graph, sources, store)
    known = Known.at_start(graph, sources)
    assumed: dict[str, tuple[str, ...]] = {}
    results: list[StageResult] = []
    lasts = _lasts(graph.nodes, store, scope)
    for node in graph.nodes:
        last = lasts.get(remembered_name(scope, node))
        result = _planned(node, known, store, last, rebuild)
        makers = [name for maker in graph.needs(node) for name in assumed.get(maker.id, ())]
        assumes = tuple(dict.fromkeys(makers)) if result.cache_key else ()
        results.append(replace(result, assumes=assumes))
        goes_on = may_be_as_before(result) and known.assume(node, last)
        assumed[node.id] = (*assumes, node.id) if goes_on else assumes
    return tuple(results)


def may_be_as_before(result: StageResult) -> bool:
    """Whether a plan goes on by an assumption about the stage that *result* is of."""
    return bool(result.status is Status.RAN and result.cache_key and result.node.stage.usually)


def foresee(
    graph: Graph, sources: Mapping[str, Artifact], store: Store, *, scope: str, rebuild: bool = False
) -> tuple[StageResult, ...]:
    """What :func:`plan_graph` says, up to the first node that would run: as many results as nodes if none would."""
    known = Known.at_start(graph, sources)
    results: list[StageResult] = []
    # Some at a time: whatever lies behind the first that runs is not asked for.
    for start in range(0, len(graph.nodes), _AT_ONCE):
        some = graph.nodes[start : start + _AT_ONCE]
        lasts = _lasts(some, store, scope)
        for node in some:
            result = _planned(node, known, store, lasts.get(remembered_name(scope, node)), rebuild)
            if result.status is not Status.REUSED:
                return tuple(results)
            results.append(result)
    return tuple(results)


def _lasts(nodes: Iterable[Node], store: Store, scope: str) -> Mapping[str, Record]:
    return store.latest([remembered_name(scope, node) for node in nodes])


def _planned(node: Node, known: Known, store: Store, last: Record | None, rebuild: bool) -> StageResult:
    ingredients = known.ingredients(node)
    if ingredients is None:
        estimate = None if last is None else last.elapsed_seconds
        why = reason.REBUILD if rebuild else reason.waits(known.unknown_needs(node))
        return StageResult(node, Status.RAN, why, elapsed_seconds=estimate)
    decision = decide(last, ingredients, store, inputs=known.inputs_and_sources(node), rebuild=rebuild)
    if isinstance(decision, Reuse):
        known.settle(node, decision.record)
        if (refused := refusal(node, decision.record)) is not None:
            return StageResult.refused(node, decision.reason, decision.record, refused)
        return StageResult(node, Status.REUSED, decision.reason, decision.record.cache_key, decision.record)
    return StageResult(node, Status.RAN, decision.reason, decision.key, elapsed_seconds=decision.estimate_seconds)
