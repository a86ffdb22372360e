"""How long the chains of a graph are: what should begin first, what nothing could have made shorter, and what is left.

All from seconds by the id of a node, wherever these come from: a record, another node like it, or a stop watch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from winml_dag.engine.graph import Graph


@dataclass(frozen=True)
class CriticalPath:
    """The longest chain of a graph, from its first node to its last; ``seconds`` is the sum of theirs."""

    ids: tuple[str, ...]
    seconds: float


def chains(graph: Graph, seconds: Mapping[str, float]) -> dict[str, float]:
    """By id, how long the longest chain is that begins with a node, its own time included. What *seconds* does not have
    takes no time.
    """
    behind: dict[str, float] = {}
    found: dict[str, float] = {}
    for node in reversed(graph.nodes):
        length = found[node.id] = seconds.get(node.id, 0.0) + behind.get(node.id, 0.0)
        for maker in graph.needs(node):
            if length > behind.get(maker.id, 0.0):
                behind[maker.id] = length
    return found


def critical_path(graph: Graph, seconds: Mapping[str, float]) -> CriticalPath:
    """The chain that took longest; nodes in it that took no time, such as those that were reused, are left out."""
    lengths = chains(graph, seconds)
    if not lengths:
        return CriticalPath((), 0.0)
    path: list[str] = []
    # The first of several that are as long: which one it is must not depend on anything but the graph.
    at: str | None = max((node.id for node in graph.nodes), key=lengths.__getitem__)
    while at is not None:
        path.append(at)
        at = max((reader.id for reader in graph.readers.get(at, ())), key=lengths.__getitem__, default=None)
    taken = tuple(node_id for node_id in path if seconds.get(node_id, 0.0) > 0)
    return CriticalPath(taken, sum(seconds[node_id] for node_id in taken))
