"""The capabilities (named optimizations) that the optimize stage knows: what each does, told without importing onnx.

The work behind a capability is in :mod:`winml_dag.stages.optimize.rewrites`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Capability:
    """One named optimization.

    Attributes:
        description: what it does, for people.
        form_depends_on_domain: what it makes depends on ``OptimizeTarget.standard_domain_only``.
        always_on: setting it changes nothing.
    """

    description: str
    form_depends_on_domain: bool = False
    always_on: bool = False


# In the order in which they are applied: the value clean-ups first, and the merging of reshapes after everything that
# inserts some.
CATALOG: Mapping[str, Capability] = MappingProxyType(
    {
        "constant_folding": Capability(
            "Compute what depends on constants only. Always on; setting it changes nothing.", always_on=True
        ),
        "clamp_constant_values": Capability(
            "Replace the constants that stand for infinity, such as -3.4e38 in attention masks, by -50 or 50."
        ),
        "remove_isnan_in_attention_mask": Capability("Remove the guards that replace NaN by 0 after a Softmax."),
        "layer_norm_fusion": Capability("Fuse a layer normalization that is spelled out into LayerNormalization."),
        "gelu_fusion": Capability(
            "Fuse a GELU that is spelled out, exact or with tanh, into Gelu; below opset 20 into the com.microsoft "
            "operators, where the target allows those.",
            form_depends_on_domain=True,
        ),
        "matmul_add_fusion": Capability(
            "Turn MatMul and Add of a constant bias into Gemm, with a Reshape on both sides above two dimensions."
        ),
        "reshape_mergedreshape": Capability(
            "Merge a chain of Reshape, Flatten, Squeeze and Unsqueeze into one Reshape."
        ),
        "bias_softmax_fusion": Capability(
            "Fuse Add and Softmax into com.microsoft BiasSoftmax. Left to GPU providers, which do it when they load a "
            "model: no other could run the result."
        ),
    }
)
