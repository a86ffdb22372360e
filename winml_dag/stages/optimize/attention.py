"""attention_fusion: an attention block with its heads taken apart becomes com.microsoft MultiHeadAttention.

onnxscript's rules for that know what exporters write today; of onnxruntime's AttentionFusion, which makes one Attention
with the weights of all three projections, no exported BERT or ViT has the pattern any more. They find scaled products
first, as functions: those that become nothing else are inlined by onnxruntime's next pass, to what they were.
"""

from __future__ import annotations

import onnx_ir as ir

from winml_dag.stages.optimize import OptimizeTarget
from winml_dag.stages.optimize.rewrite import Outcome


def apply(model: ir.Model, target: OptimizeTarget) -> Outcome:  # noqa: ARG001
    # Imported here: this alone takes as long as all other rewrites together.
    from onnxscript.rewriter.ort_fusions.mha import fuse_mha1, fuse_mha2
    from onnxscript.rewriter.ort_fusions.sdpa import fuse_sdpa
    from onnxscript.rewriter.ort_fusions.sdpa_via_mha import replace_sdpa_by_mha

    found = int(fuse_sdpa(model, apply_shape_inference=True))
    if not found:
        return Outcome(0)
    changes = int(fuse_mha1(model)) + int(fuse_mha2(model)) + int(replace_sdpa_by_mha(model))
    left = found - changes
    return Outcome(changes, f"{left} attention blocks stay: their shapes are not known well enough" if left else "")
