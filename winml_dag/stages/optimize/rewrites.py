"""The work behind each flag of :mod:`winml_dag.stages.optimize.capabilities`, by name; importing this imports onnx."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from winml_dag.stages.optimize import (
    OptimizeTarget,
    bias_softmax,
    clamp_constants,
    gelu,
    isnan_guard,
    layer_norm,
    matmul_add,
    reshape_chain,
)
from winml_dag.stages.optimize.rewrite import Outcome, Rewrite


def _nothing_more(model: ir.Model, target: OptimizeTarget) -> Outcome:  # noqa: ARG001
    """What the portable level does anyway."""
    return Outcome(0)


REWRITES: Mapping[str, Rewrite] = {
    "constant_folding": _nothing_more,
    "clamp_constant_values": clamp_constants.apply,
    "remove_isnan_in_attention_mask": isnan_guard.apply,
    "layer_norm_fusion": layer_norm.apply,
    "gelu_fusion": gelu.apply,
    "matmul_add_fusion": matmul_add.apply,
    "reshape_mergedreshape": reshape_chain.apply,
    "bias_softmax_fusion": bias_softmax.apply,
}
