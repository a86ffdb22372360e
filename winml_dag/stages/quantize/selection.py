"""Which nodes a config selects, leaves in float or gives other types. A name that matches nothing is an error.

onnxruntime's tools ignore such a name, and would silently quantize what was to be excluded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache

from onnx import GraphProto, NodeProto
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema
from onnxruntime.quantization.operators.activation import QDQRemovableActivation
from onnxruntime.quantization.operators.direct_q8 import QDQDirect8BitOp
from onnxruntime.quantization.operators.qdq_base_operator import QDQOperatorBase
from onnxruntime.quantization.registry import QDQRegistry

from winml_dag.errors import StageError, did_you_mean
from winml_dag.onnxmodel.protos import graphs_of
from winml_dag.stages.float_model import compute_nodes
from winml_dag.stages.quantize import NodeTypes, QuantizeFields

# For operators whose outputs are integers only if their inputs are.
_HANDING_ON = (QDQDirect8BitOp, QDQRemovableActivation)
_NARROWING = ("op_types_to_quantize", "op_types_to_exclude", "nodes_to_exclude", "fp16_op_block_list")
NOT_CHOSEN = "not among quant.op_types_to_quantize"


def select(graph: GraphProto, fields: QuantizeFields) -> dict[str, str]:
    """Return why *fields* leave nodes of *graph* and of its subgraphs in float, by :func:`identity`.

    Raises:
        StageError: a name or pattern matches nothing.
    """
    everywhere = [node for each in graphs_of(graph) for node in each.node]
    nodes = _matching_nodes(everywhere, fields.nodes_to_exclude or (), "nodes_to_exclude")
    chosen = matching_op_types(graph, fields.op_types_to_quantize or (), "op_types_to_quantize")
    excluded = matching_op_types(graph, fields.op_types_to_exclude or (), "op_types_to_exclude")
    reasons = {}
    for node in everywhere:
        if node.name in nodes:
            reasons[identity(node)] = "excluded by quant.nodes_to_exclude"
        elif node.op_type in excluded:
            reasons[identity(node)] = "excluded by quant.op_types_to_exclude"
        elif fields.op_types_to_quantize and node.op_type not in chosen:
            reasons[identity(node)] = NOT_CHOSEN
    return reasons


def by_default(graph: GraphProto, fields: QuantizeFields, op_types: tuple[str, ...] | None) -> QuantizeFields:
    """Return *fields*, with the operators *op_types* if they name none.

    If *graph*, whose tensors must have types, has only those of them that pass integers on, the whole graph is
    quantized: a request for integers is met.
    """
    if fields.op_types_to_quantize or op_types is None:
        return fields
    if hands_on([node.op_type for node in compute_nodes(graph) if node.op_type in op_types]):
        return fields
    return replace(fields, op_types_to_quantize=op_types)


def hands_on(op_types: Iterable[str]) -> bool:
    """Return whether all operators of *op_types* pass on their input, moved or pooled."""
    return all(issubclass(QDQRegistry.get(name, QDQOperatorBase), _HANDING_ON) for name in op_types)


def nothing_left(sentence: str, fields: QuantizeFields) -> StageError:
    """Return the error *sentence*, with advice to change the fields that exclude nodes, if there are any."""
    named = [f"quant.{name}" for name in _NARROWING if getattr(fields, name)]
    if named:
        return StageError(sentence, advice=f"Change {', '.join(named)}, which leaves nodes out, or build it in fp32.")
    return StageError(sentence, advice="Nothing in it can be in this precision: build it in fp32 (--precision fp32).")


def identity(node: NodeProto) -> str:
    """Return what identifies a node before and after quantization: its name, or its first output if it has none."""
    return node.name or next(name for name in node.output if name).removesuffix("_QuantizeLinear_Input")


def override_types(graph: GraphProto, overrides: Sequence[NodeTypes]) -> dict[str, NodeTypes]:
    """Return the types that *overrides* give to nodes, by node name. A name takes precedence over a pattern.

    Raises:
        StageError: an override matches no node, or two patterns give a node different types.
    """
    found: dict[str, NodeTypes] = {}
    names = {node.name for node in graph.node}
    for override in (override for override in overrides if override.nodes not in names):
        for name in _matching_nodes(graph.node, (override.nodes,), "node_overrides"):
            other = found.setdefault(name, override)
            if (other.weight_type, other.activation_type) != (override.weight_type, override.activation_type):
                raise StageError(
                    f"quant.node_overrides: {other.nodes!r} and {override.nodes!r} differ about node {name!r}.",
                    advice="Name that node itself, or make the patterns narrower.",
                )
    return found | {override.nodes: override for override in overrides if override.nodes in names}


def matching_op_types(graph: GraphProto, patterns: Iterable[str], field: str) -> frozenset[str]:
    """Return the operators of the graph that match *patterns* (names, or patterns with ``*`` and ``?``).

    A pattern may match only an operator that onnxruntime knows and that is not in this graph: a list may serve many
    models.

    Raises:
        StageError: a pattern matches an operator neither in the graph nor in onnxruntime.
    """
    present = {node.op_type for each in graphs_of(graph) for node in each.node}
    matched: set[str] = set()
    for pattern in patterns:
        found = {op_type for op_type in present if fnmatchcase(op_type, pattern)}
        matched |= found
        if found or pattern in _operators() or any(fnmatchcase(op_type, pattern) for op_type in _operators()):
            continue
        near = _nearest(pattern, sorted(present | _operators()))
        raise StageError(f"quant.{field}: there is no operator {pattern!r}{near}")
    return frozenset(matched)


@cache
def _operators() -> frozenset[str]:
    """Return the operators that onnxruntime knows. It takes 10 ms to list them."""
    return frozenset(schema.name for schema in get_all_operator_schema())


def _matching_nodes(nodes: Iterable[NodeProto], patterns: Iterable[str], field: str) -> frozenset[str]:
    names = [node.name for node in nodes if node.name]
    matched: set[str] = set()
    for pattern in patterns:
        # The name itself first: exporters put brackets into names, which a pattern reads as a character set.
        found = {pattern} & set(names) or {name for name in names if fnmatchcase(name, pattern)}
        if not found:
            raise StageError(f"quant.{field}: no node of the model matches {pattern!r}{_nearest(pattern, names)}")
        matched |= found
    return frozenset(matched)


def _nearest(name: str, names: Iterable[str]) -> str:
    # A pattern usually means one component of a name: names are paths of modules.
    parts = {part for known in names for part in known.split("/")} if any(sign in name for sign in "*?[") else ()
    return did_you_mean(name.strip("*?/"), sorted(parts)) or did_you_mean(name, names) or "."
