"""A graph as text, mermaid or dot. Stages that would run and those that are reused look different."""

from __future__ import annotations

import json
from collections.abc import Mapping

from winml_dag.engine.events import Status
from winml_dag.engine.graph import Graph

_MERMAID_CLASSES = (
    "classDef ran stroke-width:3px",
    "classDef reused stroke-dasharray:4",
    "classDef source fill:none",
)


def mermaid(graph: Graph, statuses: Mapping[str, Status]) -> str:
    """A mermaid flowchart. See https://mermaid.js.org/syntax/flowchart.html."""
    names = _short_names(graph)
    lines = ["flowchart LR"]
    lines += [f"  {names[name]}([{_quoted(name)}]):::source" for name in graph.sources]
    lines += [f"  {names[node.id]}[{_quoted(node.id)}]:::{statuses[node.id]}" for node in graph.nodes]
    lines += [
        f"  {names[maker]} -->|{_quoted(_label(artifact, maker))}| {names[reader]}"
        for maker, reader, artifact in graph.edges()
    ]
    return "\n".join([*lines, *(f"  {line}" for line in _MERMAID_CLASSES)])


def dot(graph: Graph, statuses: Mapping[str, Status]) -> str:
    """A graphviz digraph. See https://graphviz.org/doc/info/lang.html."""
    lines = ["digraph build {", "  rankdir=LR;", "  node [shape=box];"]
    lines += [f"  {json.dumps(name)} [shape=ellipse];" for name in graph.sources]
    lines += [
        f"  {json.dumps(node.id)} [style={'bold' if statuses[node.id] is Status.RAN else 'dashed'}];"
        for node in graph.nodes
    ]
    lines += [
        f"  {json.dumps(maker)} -> {json.dumps(reader)} [label={json.dumps(_label(artifact, maker))}];"
        for maker, reader, artifact in graph.edges()
    ]
    return "\n".join([*lines, "}"])


def _short_names(graph: Graph) -> dict[str, str]:
    """Mermaid's ids must be plain words."""
    return {name: f"n{place}" for place, name in enumerate([*graph.sources, *(node.id for node in graph.nodes)])}


def _quoted(text: str) -> str:
    return '"' + text.replace('"', "#quot;") + '"'


def _label(artifact: str, maker: str) -> str:
    return artifact.removeprefix(f"{maker}.") if artifact != maker else "files"
