"""bias_softmax_fusion: Add and Softmax into com.microsoft BiasSoftmax, as far as that can be had: nowhere on a CPU.

onnxruntime fuses these for its GPU providers only, and has no CPU kernel for the result (``Could not find an
implementation for BiasSoftmax``), so no later stage could load, calibrate or check the model.
"""

from __future__ import annotations

import onnx_ir as ir

from winml_dag.errors import StageError
from winml_dag.stages.optimize import OptimizeTarget
from winml_dag.stages.optimize.rewrite import Outcome


def apply(model: ir.Model, target: OptimizeTarget) -> Outcome:  # noqa: ARG001
    """Nothing, where there is nothing to fuse.

    Raises:
        StageError: when there is.
    """
    sites = sum(_adds_before(node) for graph in model.graphs() for node in graph)
    if sites:
        raise StageError(
            f"bias_softmax_fusion would turn {sites} places of this model into com.microsoft BiasSoftmax, which "
            "onnxruntime has for GPU providers only: the model could not be checked, nor used on any other device.",
            advice="Remove bias_softmax_fusion from optim; GPU providers fuse these places when they load the model.",
        )
    return Outcome(0)


def _adds_before(node: ir.Node) -> bool:
    if node.op_type != "Softmax" or node.domain or node.inputs[0] is None:
        return False
    producer = node.inputs[0].producer()
    return producer is not None and producer.op_type == "Add"
