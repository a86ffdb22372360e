"""Read a compiled model back: a compiler that gave up on half of a model reports success."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from winml_dag.canonical import JsonObject
from winml_dag.ep.registry import ExecutionProvider
from winml_dag.errors import InputError, StageError, few
from winml_dag.onnxmodel.graph import QDQ, Graph, Model, Node, NodeName, all_nodes
from winml_dag.onnxmodel.graphfile import read_model
from winml_dag.onnxmodel.inspect import inspect_model

COMPATIBILITY = "ep_compatibility_info."
# As many as fit in a sentence; the metrics of compile have all of them.
_MOST_NAMED = 3


def read_compiled(path: Path, ep: ExecutionProvider, *, embedded: bool) -> JsonObject:
    """Return the metrics of the model that *ep* compiled to *path*.

    ``ep_context_partitions``: number of EPContext nodes; one is best, because data is copied between devices at each
    boundary. ``cpu_nodes``: the operators that the provider did not take, by type in ``nodes_on_cpu``.
    ``edge_quantization_nodes``: conversions of the model's inputs and outputs, left to the CPU on purpose.
    ``ep_sdk_version``: of the compiler, as it wrote it. ``ep_compatibility_info``: what onnxruntime asks a device's
    provider before it loads the model. ``binary_size_bytes``: of all binaries, embedded or next to the model. Raises
    StageError if the model is missing or incomplete, has no EPContext node, or its binaries are not where they should
    be (*embedded*: in the model).
    """
    if not path.is_file():
        raise StageError(f"{ep.name} wrote no compiled model.")
    try:
        summary = inspect_model(path)
        model = read_model(path)
    except InputError as error:
        raise StageError(f"{ep.name} wrote an incomplete model: {error.message}") from error
    if not summary.ep_context:
        raise StageError(f"{ep.name} compiled no part of the model: all of it would run on the CPU.")
    if any(bool(context.embed_mode) != embedded for context in summary.ep_context):
        raise StageError(
            f"{ep.name} put its binary {'beside' if embedded else 'into'} the model, contrary to the config."
        )
    sidecars = {context.sidecar for context in summary.ep_context if context.sidecar is not None}
    size = sum(context.embedded_bytes for context in summary.ep_context)
    size += sum((path.parent / name).stat().st_size for name in sidecars)
    if not size:
        raise StageError(f"{ep.name} wrote an empty binary.")
    left = cpu_nodes(model)
    return {
        "ep_context_partitions": len(summary.ep_context),
        "nodes_on_cpu": dict(sorted(Counter(node.operator for node in left).items())),
        "cpu_nodes": [{"name": node.name, "op_type": node.operator} for node in left],
        "edge_quantization_nodes": len(_conversions_at_the_edge(model.graph)),
        "ep_sdk_version": ", ".join(sorted({context.sdk_version for context in summary.ep_context})),
        "ep_compatibility_info": summary.metadata.get(COMPATIBILITY + ep.name, ""),
        "binary_size_bytes": size,
    }


def cpu_nodes(model: Model) -> tuple[NodeName, ...]:
    """Return the operators of the compiled *model* that are left to the CPU, in model order.

    Conversions of its inputs and outputs do not count.
    """
    edge = {id(node) for node in _conversions_at_the_edge(model.graph)}
    return tuple(NodeName.of(node) for node in all_nodes(model) if node.op_type != "EPContext" and id(node) not in edge)


def first_names(nodes: tuple[NodeName, ...]) -> str:
    """Return ``/a (Gather), /b (Cast), /c (Cast) and 4 more``; conversions last, since other operators cause them."""
    return few([str(node) for node in sorted(nodes, key=lambda node: node.operator in QDQ)], _MOST_NAMED)


def _conversions_at_the_edge(graph: Graph) -> list[Node]:
    inputs = {value.name for value in graph.inputs}
    outputs = {value.name for value in graph.outputs}
    return [
        node
        for node in graph.nodes
        if (node.op_type == "QuantizeLinear" and inputs.intersection(node.inputs[:1]))
        or (node.op_type == "DequantizeLinear" and outputs.intersection(node.outputs[:1]))
    ]
