"""What lies on other machines asked for wave by wave, before nodes are decided one by one: a graph costs about as many
round trips as it is deep, and not one for each node.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping

from winml_dag.engine.graph import Graph
from winml_dag.engine.keys import cache_key
from winml_dag.engine.known import Known
from winml_dag.engine.stage import Node
from winml_dag.store.artifact import Artifact
from winml_dag.store.store import Store


def look_ahead(graph: Graph, sources: Mapping[str, Artifact], store: Store) -> None:
    """Have *store* look for every record that *graph* can come to without a run. What is found settles its node for
    this look, which makes the keys of the next wave known. Costs nothing where nothing lies elsewhere.
    """
    if not store.asks_behind:
        return
    known = Known.at_start(graph, sources)
    wave: Iterable[Node] = graph.nodes
    seen: set[str] = set()
    while keys := dict(_keys(wave, known, seen)):
        seen.update(keys)
        found = store.look_up(list(dict.fromkeys(keys.values())))
        settled = [graph.node(node_id) for node_id, key in keys.items() if key in found]
        for node in settled:
            known.settle(node, found[keys[node.id]])
        wave = [reader for node in settled for reader in graph.readers.get(node.id, ())]


def look_up(nodes: Iterable[Node], known: Known, store: Store) -> None:
    """Have *store* look for the records of those *nodes* whose keys are *known*, all at once."""
    if store.asks_behind and (keys := dict(_keys(nodes, known, ()))):
        store.look_up(list(dict.fromkeys(keys.values())))


def _keys(nodes: Iterable[Node], known: Known, seen: Container[str]) -> Iterator[tuple[str, str]]:
    """Id and key of those that have one and are not among *seen*."""
    for node in nodes:
        if node.id not in seen and (ingredients := known.ingredients(node)) is not None:
            yield node.id, cache_key(ingredients)
