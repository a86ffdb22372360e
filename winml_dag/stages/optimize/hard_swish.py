"""HardSwish in place of HardSigmoid(x) * x, which is how onnxruntime spells it out: its CPU provider has no HardSwish.

QNN fuses these two again when the HardSigmoid has a name, and computes something else: of a model of these two nodes,
outputs are up to 4.5 times too large (SDK 2.51, float32 and float16). With HardSwish itself it is right.
"""

from __future__ import annotations

import math
from collections import Counter

from onnx import GraphProto, NodeProto, helper

from winml_dag.onnxmodel.protos import read_inside

HARD_SWISH_SINCE = 14
_ALPHA, _BETA = 1 / 6, 0.5
_RELATIVE_ERROR = 1e-5


def fuse_hard_swish(graph: GraphProto) -> None:
    """Fuse every pair of *graph*, in place; graphs inside it are left alone."""
    gates = {node.output[0]: node for node in graph.node if _is_gate(node)}
    readers = Counter(name for node in graph.node for name in node.input)
    outside = {value.name for value in graph.output} | read_inside(graph.node)
    fused = set()
    for node in graph.node:
        if node.op_type != "Mul" or node.domain:
            continue
        for name, other in (tuple(node.input), tuple(reversed(node.input))):
            gate = gates.get(name)
            if gate is None or gate.input[0] != other or readers[name] != 1 or name in outside:
                continue
            swish = helper.make_node("HardSwish", [other], list(node.output), node.name)
            swish.metadata_props.extend(node.metadata_props)
            node.CopyFrom(swish)
            fused.add(name)
            break
    # The last first, so that the others keep their places.
    for place in reversed([place for place, node in enumerate(graph.node) if fused.intersection(node.output)]):
        del graph.node[place]


def _is_gate(node: NodeProto) -> bool:
    if node.op_type != "HardSigmoid" or node.domain:
        return False
    numbers = {attribute.name: attribute.f for attribute in node.attribute}
    return math.isclose(numbers.get("alpha", 0.2), _ALPHA, rel_tol=_RELATIVE_ERROR) and math.isclose(
        numbers.get("beta", 0.5), _BETA, rel_tol=_RELATIVE_ERROR
    )
