"""The graph optimizations that a recipe may switch on, by the names that winml-cli gives them in Python."""

from __future__ import annotations

CAPABILITIES = (
    "bias_softmax_fusion",
    "clamp_constant_values",
    "constant_folding",
    "gelu_fusion",
    "layer_norm_fusion",
    "matmul_add_fusion",
    "remove_isnan_in_attention_mask",
    "reshape_mergedreshape",
)
