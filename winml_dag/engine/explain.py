"""What more can be said of decisions that are only looked at: the nearest record, and what a waiting stage waits for
in the end. A build does without, since it would pay for each of its stages and soon knows better.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from winml_dag.engine import reason
from winml_dag.engine.change import Change, changes_between
from winml_dag.engine.events import StageResult, Status
from winml_dag.engine.graph import Graph
from winml_dag.engine.keys import ingredients_of
from winml_dag.engine.known import Known
from winml_dag.engine.nearest import NearRecords
from winml_dag.engine.plan import may_be_as_before, remembered_name
from winml_dag.engine.reason import Reason
from winml_dag.engine.stage import Node
from winml_dag.store.artifact import Artifact
from winml_dag.store.record import Record
from winml_dag.store.store import Store


def explained(
    graph: Graph, sources: Mapping[str, Artifact], planned: Iterable[StageResult], store: Store, *, scope: str
) -> tuple[StageResult, ...]:
    """*planned*, which ``plan_graph`` returned for the same arguments, with all that can be said as reasons."""
    known = Known.at_start(graph, sources)
    near = NearRecords(store)
    roots: dict[str, tuple[str, ...]] = {}
    results = []
    lasts = store.latest([remembered_name(scope, node) for node in graph.nodes])
    for result in planned:
        node, why = result.node, result.reason
        last = lasts.get(remembered_name(scope, node))
        if result.status is Status.REUSED and result.record is not None:
            known.settle(node, result.record)
        elif why.kind == "waits":
            roots[node.id] = _roots(why.names, roots)
            changes = () if last is None else _changes_so_far(node, known, last)
            why = reason.waits(why.names, changes, roots[node.id])
        elif why.kind in ("first build", "changed"):
            why = _compared(node, why, known, near, last)
        if may_be_as_before(result):
            known.assume(node, last)
        results.append(replace(result, reason=why))
    return tuple(results)


def _roots(waits_for: Iterable[str], roots: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Those of *waits_for*, and in place of each that waits itself, what that one waits for."""
    found = [root for name in waits_for for root in roots.get(name, (name,))]
    return tuple(dict.fromkeys(found))


def _changes_so_far(node: Node, known: Known, last: Record) -> tuple[Change, ...]:
    """What differs from *last* whatever the inputs that are not known yet will be."""
    inputs = known.inputs_and_sources(node)
    digests = {slot: artifact.digest for slot, artifact in inputs.artifacts.items()}
    as_before = {slot: digest for slot, digest in last.ingredients.inputs.items() if slot in node.inputs}
    return changes_between(last, ingredients_of(node, {**as_before, **digests}), inputs)


def _compared(node: Node, why: Reason, known: Known, near: NearRecords, last: Record | None) -> Reason:
    ingredients = known.ingredients(node)
    assert ingredients is not None, "it has been decided, so its inputs are known"
    nearest = near.nearest(ingredients, known.inputs_and_sources(node), last)
    if nearest is None:
        return why
    return reason.never_like_this(nearest) if last is None else replace(why, nearest=nearest)
