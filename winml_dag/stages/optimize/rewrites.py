"""The work behind each capability that the rewriter does, by name; importing this imports onnx.

What onnxruntime does is named in the catalog itself (:mod:`winml_dag.stages.optimize.capabilities`).
"""

from __future__ import annotations

from collections.abc import Mapping

from winml_dag.stages.optimize import (
    attention,
    channel_layer_norm,
    clamp_constants,
    concat_slice,
    conv_affine,
    conv_linear,
    dft,
    exp_scale,
    expanded_attention,
    gelu,
    high_rank_transpose,
    isnan_guard,
    layer_norm,
    matmul_add,
    reshape_chain,
    rms_norm,
    single_operators,
    split_slice,
)
from winml_dag.stages.optimize.rewrite import Rewrite

REWRITES: Mapping[str, Rewrite] = {
    "clamp_constant_values": clamp_constants.apply,
    "remove_isnan_in_attention_mask": isnan_guard.apply,
    "omit_empty_resize_inputs": single_operators.omit_empty_resize_inputs,
    "resize_tf_half_pixel_for_nn_to_asymmetric": single_operators.asymmetric_resize,
    "approximate_cubic_resize_with_linear": single_operators.linear_resize,
    "prelu_to_relu": single_operators.prelu_to_relu,
    "gathernd_to_reshape": single_operators.gather_nd_to_reshape,
    "dft_to_matmul": dft.apply,
    "static_split_to_slice": split_slice.apply,
    "concat_slice_elimination": concat_slice.apply,
    "exp_positive_scale_folding": exp_scale.apply,
    "attention_expandedattention": expanded_attention.apply,
    "conv_channel_affine_folding": conv_affine.fold_affine,
    "conv_add_batch_normalization_folding": conv_affine.fold_residual,
    "layer_norm_fusion": layer_norm.apply,
    "layernormalization_singlelayernorm": channel_layer_norm.apply,
    "fuse_rmsnorm": rms_norm.apply,
    "gelu_fusion": gelu.apply,
    "fast_gelu_fusion": gelu.fuse_approximated,
    "gelu_singlegelu": gelu.fuse_exact,
    "matmuladd_conv2d4d": conv_linear.of_rank(4),
    "matmuladd_conv2d3d": conv_linear.of_rank(3),
    "matmuladd_conv2d2d": conv_linear.of_rank(2),
    "matmul_add_fusion": matmul_add.apply,
    "attention_fusion": attention.apply,
    "highdimRTR_lowdimRTR": high_rank_transpose.apply,
    "reshape_mergedreshape": reshape_chain.apply,
    "gelu_approximation": gelu.approximate,
}
