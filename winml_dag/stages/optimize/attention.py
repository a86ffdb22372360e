"""attention_fusion: an attention block with its heads taken apart becomes com.microsoft MultiHeadAttention.

onnxscript's rules for that know what exporters write today; of onnxruntime's AttentionFusion, which makes one Attention
with the weights of all three projections, no exported BERT or ViT has the pattern any more. They find scaled products
first, as functions: those that become nothing else are inlined by onnxruntime's next pass, to what they were.
"""

from __future__ import annotations

import onnx_ir as ir

from winml_dag.stages.optimize import OptimizeTarget
from winml_dag.stages.optimize.rewrite import (
    Outcome,
    constant,
    known_shape,
    nodes_of,
    replace_node,
    standard_opset,
)

_SHAPES_HAVE_A_START_SINCE = 15
_BEYOND = 2**31 - 1  # any rank


def apply(model: ir.Model, target: OptimizeTarget) -> Outcome:  # noqa: ARG001
    # Imported here: this alone takes as long as all other rewrites together.
    from onnxscript.rewriter.ort_fusions.mha import fuse_mha1, fuse_mha2
    from onnxscript.rewriter.ort_fusions.sdpa import fuse_sdpa
    from onnxscript.rewriter.ort_fusions.sdpa_via_mha import replace_sdpa_by_mha

    if any(
        node.inputs[0] is not None and node.inputs[0].dtype == ir.DataType.DOUBLE for node in nodes_of(model, "Softmax")
    ):
        return Outcome(0, "attention blocks in double precision stay: MultiHeadAttention has none")
    if not all(_with_three_dimensions(node) for node in nodes_of(model, "Reshape")):
        return Outcome(0, "attention blocks stay: the shapes behind them are not known")
    found = int(fuse_sdpa(model, apply_shape_inference=True))
    if not found:
        return Outcome(0)
    changes = int(fuse_mha1(model)) + int(fuse_mha2(model)) + int(replace_sdpa_by_mha(model))
    if standard_opset(model) < _SHAPES_HAVE_A_START_SINCE:
        for node in nodes_of(model, "Shape"):
            _take_from_the_whole(node)
    left = found - changes
    return Outcome(changes, f"{left} attention blocks stay: their shapes are not known well enough" if left else "")


def _with_three_dimensions(node: ir.Node) -> bool:
    """Join heads to three dimensions first, and then to what the Reshape *node* makes of them; False where that cannot
    be. The rules take any Reshape behind the heads for one to three dimensions, and onnxruntime has merged it with the
    one to two for a Gemm, as in GPT-2. What stays is merged again.
    """
    heads = node.inputs[0].producer() if node.inputs[0] is not None else None
    turned = (
        heads is not None
        and heads.op_type == "Transpose"
        and list(heads.attributes.get_ints("perm", ())) == [0, 2, 1, 3]
    )
    joined = node.outputs[0].shape
    if not turned or (joined is not None and len(joined) in (3, 4)):
        return True
    before, after = known_shape(node.inputs[0]), known_shape(node.outputs[0])
    if before is None or after is None:
        return False
    tape = ir.tape.Tape()
    three = constant(tape, (*before[:2], before[2] * before[3]), ir.DataType.INT64)
    together = tape.op("Reshape", [node.inputs[0], three])
    replace_node(node, tape, [tape.op("Reshape", [together, constant(tape, after, ir.DataType.INT64)])])
    return True


def _take_from_the_whole(node: ir.Node) -> None:
    """The rules ask a Shape for some sizes, whatever the opset: in an older one that takes a Slice."""
    if not {"start", "end"}.intersection(node.attributes):
        return
    bounds = node.attributes.get_int("start", 0), node.attributes.get_int("end", _BEYOND)
    tape = ir.tape.Tape()
    start, end = (constant(tape, [each], ir.DataType.INT64) for each in bounds)
    replace_node(node, tape, [tape.op("Slice", [tape.op("Shape", [node.inputs[0]]), start, end])])
