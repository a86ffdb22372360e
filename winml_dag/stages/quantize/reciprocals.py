"""Divisions in place of reciprocals, for QNN: its quantized Reciprocal is wrong for values below 1.

It inserts a 1 that has the type and scale of the input, so the 1 is cut down to the largest value of the input: of a
one-node model, outputs are 0.1 and 0.5 times what they should be where that is 0.1 and 0.5 (QNN SDK 2.51). As the
operand of a Div, the 1 has a scale of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import GraphProto, helper, numpy_helper

from winml_dag.onnxmodel.naming import Naming
from winml_dag.stages.quantize import QuantizeFields
from winml_dag.stages.quantize.selection import select


def divide_in_place_of_reciprocals(graphs: Sequence[GraphProto], fields: QuantizeFields) -> None:
    """Make each Reciprocal of *graphs* (one graph, with and without weights) that *fields* leave to quantize a Div."""
    selection = select(graphs[0], fields)
    for graph in graphs:
        found = [
            node
            for node in graph.node
            if node.op_type == "Reciprocal" and selection.takes("Reciprocal") and node.name not in selection.nodes
        ]
        if not found:
            continue
        one = Naming.of(graph).new("one")
        graph.initializer.append(numpy_helper.from_array(np.array(1, np.float32), one))
        for node in found:
            division = helper.make_node("Div", [one, node.input[0]], list(node.output), node.name)
            division.metadata_props.extend(node.metadata_props)
            node.CopyFrom(division)
