"""bias_softmax_fusion: Add and Softmax into com.microsoft BiasSoftmax, as far as that can be had: nowhere on a CPU.

onnxruntime fuses these for its GPU providers only, and has no CPU kernel for the result (``Could not find an
implementation for BiasSoftmax``), so no later stage could load, calibrate or check the model. Recipes made for
winml-cli set the flag, where it did nothing for want of a provider; here it does nothing and says so.
"""

from __future__ import annotations

import onnx_ir as ir

from winml_dag.stages.optimize import OptimizeTarget
from winml_dag.stages.optimize.rewrite import Outcome


def apply(model: ir.Model, target: OptimizeTarget) -> Outcome:  # noqa: ARG001
    """Changes nothing; tells how many places are left to a GPU provider."""
    sites = sum(_adds_before(node) for graph in model.graphs() for node in graph)
    left = f"{sites} places are left to GPU providers, which fuse them when they load the model" if sites else ""
    return Outcome(0, left)


def _adds_before(node: ir.Node) -> bool:
    if node.op_type != "Softmax" or node.domain or node.inputs[0] is None:
        return False
    producer = node.inputs[0].producer()
    return producer is not None and producer.op_type == "Add"
