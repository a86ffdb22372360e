"""What a compiler left behind, read back: a compiler that gave up on half of a model calls that a success."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from winml_dag.canonical import JsonObject
from winml_dag.ep.registry import ExecutionProvider
from winml_dag.errors import InputError, StageError
from winml_dag.onnxmodel.graph import Attribute, Graph, Node, read_model
from winml_dag.onnxmodel.inspect import inspect_model

_COMPATIBILITY = "ep_compatibility_info."


@dataclass(frozen=True)
class CompiledModel:
    """A compiled model and the parts that were left to the CPU.

    Attributes:
        partitions: the EPContext nodes; one is best, since data is copied between the devices from part to part.
        nodes_on_cpu: the operators that the provider did not take, by name.
        edge_quantization_nodes: conversions of the model's inputs and outputs, left to the CPU on purpose.
        sdk_version: of the compiler, as it wrote it; empty when it does not.
        compatibility_info: what onnxruntime asks a device's provider before it loads the model; empty when not there.
        binary_size: bytes of all binaries, embedded or beside the model.
    """

    partitions: int
    nodes_on_cpu: dict[str, int]
    edge_quantization_nodes: int
    sdk_version: str
    compatibility_info: str
    binary_size: int

    def metrics(self) -> JsonObject:
        return {
            "ep_context_partitions": self.partitions,
            "nodes_on_cpu": self.nodes_on_cpu,
            "edge_quantization_nodes": self.edge_quantization_nodes,
            "ep_sdk_version": self.sdk_version,
            "ep_compatibility_info": self.compatibility_info,
            "binary_size_bytes": self.binary_size,
        }


def read_compiled(path: Path, ep: ExecutionProvider, *, embedded: bool) -> CompiledModel:
    """Read the model that *ep* compiled to *path*.

    Raises:
        StageError: when it is missing or incomplete, has no EPContext node, or its binaries are not where they should
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
        raise StageError(f"{ep.name} put its binary {'beside' if embedded else 'into'} the model, unlike asked.")

    contexts = [node for node in model.graph.nodes if node.op_type == "EPContext"]
    edge = _edge_quantization_nodes(model.graph)
    left = Counter(summary.op_counts) - Counter(_key(node) for node in (*contexts, *edge))
    return CompiledModel(
        partitions=len(contexts),
        nodes_on_cpu=dict(sorted(left.items())),
        edge_quantization_nodes=len(edge),
        sdk_version=", ".join(sorted({_text(node, "ep_sdk_version") for node in contexts})),
        compatibility_info=summary.metadata.get(_COMPATIBILITY + ep.name, ""),
        binary_size=_binary_size(path, contexts, ep, embedded=embedded),
    )


def _edge_quantization_nodes(graph: Graph) -> list[Node]:
    inputs = {value.name for value in graph.inputs}
    outputs = {value.name for value in graph.outputs}
    return [
        node
        for node in graph.nodes
        if (node.op_type == "QuantizeLinear" and node.inputs[0] in inputs)
        or (node.op_type == "DequantizeLinear" and node.outputs[0] in outputs)
    ]


def _binary_size(path: Path, contexts: list[Node], ep: ExecutionProvider, *, embedded: bool) -> int:
    binaries = [binary for node in contexts if (binary := _attribute(node, "ep_cache_context")) is not None]
    if embedded:
        size = sum(binary.content_bytes for binary in binaries)
    else:
        names = {binary.content.decode() for binary in binaries if binary.content}
        size = sum((path.parent / name).stat().st_size for name in names)
    if not size:
        raise StageError(f"{ep.name} wrote an empty binary.")
    return size


def _key(node: Node) -> str:
    return f"{node.domain}/{node.op_type}" if node.domain else node.op_type


def _attribute(node: Node, name: str) -> Attribute | None:
    return next((attribute for attribute in node.attributes if attribute.name == name), None)


def _text(node: Node, name: str) -> str:
    attribute = _attribute(node, name)
    return attribute.content.decode() if attribute is not None and attribute.content else ""
