"""What more can be said of decisions that are only looked at: the nearest record, and what a waiting stage waits for
in the end. A build does without, since it would pay for each of its stages and soon knows better.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from winml_dag.engine import reason
from winml_dag.engine.change import NOT_KNOWN, changes_between, summed_up
from winml_dag.engine.events import StageResult, Status
from winml_dag.engine.graph import Graph
from winml_dag.engine.keys import ingredients_of
from winml_dag.engine.known import Known
from winml_dag.engine.nearest import NearRecords
from winml_dag.engine.plan import remembered_name
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
    for result in planned:
        node, why = result.node, result.reason
        if result.status is Status.REUSED and result.record is not None:
            known.settle(node, result.record)
        elif why.kind == "waits":
            roots[node.id] = _roots(why.names, roots)
            why = _waiting(node, why, roots[node.id], store.latest(remembered_name(scope, node)))
        elif why.kind in ("first build", "changed"):
            why = _compared(node, why, known, near, store.latest(remembered_name(scope, node)))
        results.append(replace(result, reason=why))
    return tuple(results)


def _roots(waits_for: Iterable[str], roots: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Those of *waits_for*, and in place of each that waits itself, what that one waits for."""
    found = [root for name in waits_for for root in roots.get(name, (name,))]
    return tuple(dict.fromkeys(found))


def _waiting(node: Node, why: Reason, roots: tuple[str, ...], last: Record | None) -> Reason:
    # What differs whatever the inputs will be.
    changes = () if last is None else changes_between(last, ingredients_of(node, last.ingredients.inputs), NOT_KNOWN)
    text = f"{why.text}; {summed_up(changes)}" if changes else why.text
    return replace(why, text=text, changes=changes, roots=roots)


def _compared(node: Node, why: Reason, known: Known, near: NearRecords, last: Record | None) -> Reason:
    ingredients = known.ingredients(node)
    assert ingredients is not None, "it has been decided, so its inputs are known"
    nearest = near.nearest(ingredients, known.inputs_and_sources(node), last)
    if nearest is None:
        return why
    return reason.never_like_this(nearest) if last is None else replace(why, nearest=nearest)
