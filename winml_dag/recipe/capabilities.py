"""The capabilities (named optimizations) that a recipe may switch on or off, by winml-cli's names in Python.

Each is one row of :data:`BUILT_IN` with its implementation: onnxruntime's transformers, or a rewrite, a function of a
module of :mod:`winml_dag.stages.optimize`. An installed package adds a rewrite by an entry point in the group
``winml_dag.rewrites`` that names a :class:`Capability`. Nothing here imports onnx, because recipes, plans and
``--list-capabilities`` read the catalog. :mod:`winml_dag.stages.optimize` also evaluates a choice of capabilities.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from types import MappingProxyType
from typing import Final, Literal

from winml_dag.errors import UsageError
from winml_dag.installed import entry_points

By = Literal["onnxruntime", "onnxscript", "nothing"]

ORT: Final = "onnxruntime"
# onnxscript's rewriter; if it has no suitable rule, the rule is built-in.
REWRITER: Final = "onnxscript"
NOTHING: Final = "nothing"


@dataclass(frozen=True)
class Capability:
    """One named optimization.

    Attributes:
        description: what it does, for users.
        rewrite: the function that implements it, ``module:function``; ``.module`` is one of
            :mod:`winml_dag.stages.optimize`.
        default: whether it is on unless a recipe switches it off.
        makes: operators outside the ONNX standard that it may insert. If the target supports only the standard, it uses
            a form of the standard (``has_standard_form``) or does not change the model.
        has_standard_form: whether it has a form in the standard; opset and target determine which one it uses.
        needs: capabilities that are switched on with it.
        excludes: capabilities that would undo it.
        same_as: the capability that this is another name of.
        portable: onnxruntime's transformers of the portable level that implement it or a part of it; ``false`` disables
            them.
        extended: onnxruntime's transformer beyond that level.
        into: operators that it adds or removes, one for each site; the first whose number changes is counted.
        waits: transformers of the portable level that would remove what it looks for, and so run after it.
        left: why it does nothing; it is then only a name.
        package: the distribution that brings it, if it is not this one.
    """

    description: str
    rewrite: str = ""
    default: bool = False
    makes: tuple[str, ...] = ()
    has_standard_form: bool = False
    needs: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    same_as: str = ""
    portable: tuple[str, ...] = ()
    extended: str = ""
    into: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()
    left: str = ""
    package: str = ""

    @property
    def by(self) -> By:
        """What implements it."""
        if self.left:
            return NOTHING
        return REWRITER if self.rewrite or self.same_as else ORT

    @property
    def domain(self) -> str:
        """The domain of the operators that it creates, for users."""
        if not self.makes:
            return "standard"
        return "standard or com.microsoft" if self.has_standard_form else "com.microsoft"


_GEMM = ("MatMulAddFusion",)
_FLOAT_ONLY = "only float models are optimized, which have none"


def _portable(description: str, *transformers: str) -> Capability:
    return Capability(description, default=True, portable=transformers)


def _extended(
    description: str,
    transformer: str,
    made: str,
    *,
    into: tuple[str, ...] = (),
    needs: tuple[str, ...] = (),
    waits: tuple[str, ...] = (),
) -> Capability:
    makes = () if made in ("Split", "Slice") else (made,)
    return Capability(description, extended=transformer, into=into or (made,), makes=makes, needs=needs, waits=waits)


def _left(description: str, why: str) -> Capability:
    return Capability(description, left=why)


def _alias(name: str) -> Capability:
    return Capability(f"Another name of {name}.", same_as=name)


# In the order in which they are applied: rewrites of values first; then those to the standard's own operators, each
# before any that might use one of its nodes; onnxruntime's own operators last, because no rewrite looks for them.
BUILT_IN: Mapping[str, Capability] = MappingProxyType(
    {
        "ort_graph_optimization": Capability(
            "onnxruntime's portable level as a whole: removes what has no effect and fuses within the ONNX standard. "
            "Off, only the capabilities that are switched on by name are done, and constant_folding.",
            default=True,
        ),
        "constant_folding": _portable("Compute everything that depends on constants only.", "ConstantFolding"),
        "cgc_constant_folding": _alias("constant_folding"),
        "slice_elimination": _portable("Remove a Slice that keeps everything.", "EliminateSlice"),
        "expand_elimination": _portable("Remove an Expand to the same shape.", "ExpandElimination"),
        "unsqueeze_elimination": _portable(
            "Fold an Unsqueeze into the constant before it. From opset 13 on, constant_folding does it.",
            "UnsqueezeElimination",
        ),
        "not_where_fusion": _portable("Remove a Not before a Where by swapping its branches.", "NotWhereFusion"),
        "pad_fusion": _portable("Fold a Pad of zeros into the Conv or pooling after it.", "Pad_Fusion"),
        "conv_add_fusion": _portable("Fold an Add of a constant into the Conv before it, as bias.", "ConvAddFusion"),
        "conv_mul_fusion": _portable("Fold a Mul by a constant into the Conv before it.", "ConvMulFusion"),
        "conv_bn_fusion": _portable("Fold a BatchNormalization into the Conv before it.", "ConvBNFusion"),
        "matmul_bn_fusion": _portable(
            "Fold a BatchNormalization into the MatMul before it.", "MatMul_BatchNormalization_Fusion"
        ),
        "gemm_sum_fusion": _portable("Fold a Sum into the Gemm before it.", "GemmSumFusion"),
        "gemm_transpose_fusion": _portable("Fold a Transpose into the Gemm next to it.", "GemmTransposeFusion"),
        "transpose_optimizer": _portable(
            "Move Transpose nodes through the graph until they cancel out.", "TransposeOptimizer"
        ),
        "deduplicate_opset_imports": _portable("List every opset once. Always done."),
        "clamp_constant_values": Capability(
            "Replace the constants that stand for infinity, such as -3.4e38 in attention masks, by -50 or 50.",
            ".attention:clamp_constants",
        ),
        "remove_isnan_in_attention_mask": Capability(
            "Remove the guards that replace NaN by 0 after a Softmax.", ".attention:remove_nan_guards"
        ),
        "omit_empty_resize_inputs": Capability(
            "Omit the empty roi and scales of a Resize.", ".operators:omit_empty_resize_inputs"
        ),
        "resize_tf_half_pixel_for_nn_to_asymmetric": Capability(
            "Use asymmetric coordinates in a Resize to nearest by whole numbers, where both are the same.",
            ".operators:asymmetric_resize",
        ),
        "approximate_cubic_resize_with_linear": Capability(
            "Make a cubic Resize linear. The values change: images become softer.", ".operators:linear_resize"
        ),
        "prelu_to_relu": Capability(
            "Replace a PRelu with a constant slope by Relu(x) - slope * Relu(-x).", ".operators:prelu_to_relu"
        ),
        "gathernd_to_reshape": Capability(
            "Replace a GatherND that takes everything in order by a Reshape.", ".operators:gather_nd_to_reshape"
        ),
        "dft_to_matmul": Capability(
            "Compute a DFT of fixed length by products with constant matrices.", ".linear:dft_to_matmul"
        ),
        "static_split_to_slice": Capability(
            "Replace a Split with known sizes by one Slice per output.",
            ".operators:split_to_slices",
            excludes=("gather_slice_to_split_fusion",),
        ),
        "concat_slice_elimination": Capability(
            "Remove a Slice that takes one input out of a Concat again.", ".operators:remove_slices_of_concat"
        ),
        "exp_positive_scale_folding": Capability(
            "Fold a positive constant factor after Exp into the constant that is added before it.",
            ".operators:fold_scale_into_exp",
        ),
        "attention_expandedattention": Capability(
            "Replace the standard's Attention (opset 23) by MatMul and Softmax, with the scale on both factors.",
            ".attention:expand_attention",
        ),
        "conv_channel_affine_folding": Capability(
            "Fold a Mul or Add per channel, or of one number, into the Conv before it.", ".linear:fold_affine_into_conv"
        ),
        "conv_add_batch_normalization_folding": Capability(
            "Fold a BatchNormalization after a Conv and an Add into the Conv, and scale the other operand.",
            ".linear:fold_batch_norm_of_sum_into_conv",
            waits=("ConvAddFusion",),
        ),
        "add_conv_batch_normalization_folding": _alias("conv_add_batch_normalization_folding"),
        "layer_norm_fusion": Capability(
            "Fuse a decomposed layer normalization into LayerNormalization.",
            ".normalization:fuse_layer_norm",
            portable=("LayerNormFusionL1",),
        ),
        "layernormalization_singlelayernorm": Capability(
            "Fuse a layer normalization over one axis that is not the last into LayerNormalization and two Transpose.",
            ".normalization:fuse_layer_norm_of_any_axis",
            needs=("layer_norm_fusion",),
        ),
        "layernormpow_singlelayernorm": _alias("layernormalization_singlelayernorm"),
        "layernormmul_singlelayernorm": _alias("layernormalization_singlelayernorm"),
        "fuse_rmsnorm": Capability(
            "Fuse a decomposed root mean square normalization: below opset 23 into LpNormalization, which has "
            "no epsilon, else into RMSNormalization.",
            ".normalization:fuse_rms_norm",
            excludes=("simplified_layer_norm_fusion",),
        ),
        "gelu_fusion": Capability(
            "Fuse a decomposed GELU, exact or with tanh, into Gelu; below opset 20 into the com.microsoft "
            "operators, where the target allows those.",
            ".normalization:fuse_gelu",
            makes=("com.microsoft/Gelu", "com.microsoft/FastGelu"),
            has_standard_form=True,
            portable=("GeluFusionL1",),
        ),
        "fast_gelu_fusion": Capability(
            "As gelu_fusion, of the form with tanh only.",
            ".normalization:fuse_tanh_gelu",
            makes=("com.microsoft/FastGelu",),
            has_standard_form=True,
        ),
        "gelu_singlegelu": Capability(
            "As gelu_fusion, of the exact form only, and into the standard's Gelu only.",
            ".normalization:fuse_erf_gelu_in_standard",
        ),
        "gelu1_singlegelu": _alias("gelu_singlegelu"),
        "gelu2_singlegelu": _alias("gelu_singlegelu"),
        "gelu3_singlegelu": _alias("gelu_singlegelu"),
        "gelu4_singlegelu": _alias("gelu_singlegelu"),
        "matmuladd_conv2d4d": Capability(
            "Turn MatMul and Add of four dimensions into a Conv of 1x1.", ".linear:linear_4d_to_conv", waits=_GEMM
        ),
        "matmuladd_conv2d3d": Capability(
            "Turn MatMul and Add of three dimensions into a Conv of 1x1.", ".linear:linear_3d_to_conv", waits=_GEMM
        ),
        "matmuladd_conv2d2d": Capability(
            "Turn MatMul and Add of two dimensions into a Conv of 1x1.", ".linear:linear_2d_to_conv", waits=_GEMM
        ),
        "matmul_add_fusion": Capability(
            "Turn MatMul and Add of a constant bias into Gemm, with a Reshape on both sides above two dimensions.",
            ".linear:linear_to_gemm",
            portable=_GEMM,
        ),
        "matmuladd_reshapegemm": _alias("matmul_add_fusion"),
        "highdimRTR_lowdimRTR": Capability(
            "Merge axes that stay together, where a Reshape to five dimensions or more, a Transpose and a Reshape "
            "follow each other.",
            ".operators:lower_rank_of_transpose",
        ),
        "reshape_mergedreshape": Capability(
            "Merge a chain of Reshape, Flatten, Squeeze and Unsqueeze into one Reshape.", ".operators:merge_reshapes"
        ),
        "attention_fusion": Capability(
            "Fuse an attention block with separate heads into com.microsoft MultiHeadAttention.",
            ".attention:fuse_attention",
            makes=("com.microsoft/MultiHeadAttention",),
            waits=_GEMM,
        ),
        "gather_slice_to_split_fusion": _extended(
            "Replace several Gather or Slice that share an axis by one Split.", "GatherSliceToSplitFusion", "Split"
        ),
        "gather_to_slice_fusion": _extended("Replace a Gather of a Range by a Slice.", "GatherToSliceFusion", "Slice"),
        "skip_layer_norm_fusion": _extended(
            "Fuse a residual Add and the layer normalization after it into com.microsoft SkipLayerNormalization.",
            "SkipLayerNormFusion",
            "com.microsoft/SkipLayerNormalization",
            needs=("layer_norm_fusion",),
        ),
        "bias_skip_layer_norm_fusion": _extended(
            "As skip_layer_norm_fusion, with the bias of the MatMul before it.",
            "BiasSkipLayerNormFusion",
            "com.microsoft/SkipLayerNormalization",
            into=("Add",),  # the normalization already exists
            needs=("skip_layer_norm_fusion",),
            waits=_GEMM,
        ),
        "simplified_layer_norm_fusion": _extended(
            "Fuse a decomposed root mean square normalization into SimplifiedLayerNormalization.",
            "SimplifiedLayerNormFusion",
            "SimplifiedLayerNormalization",
        ),
        "bias_gelu_fusion": _extended(
            "Fuse the Add of a bias and a GELU into com.microsoft BiasGelu.",
            "BiasGeluFusion",
            "com.microsoft/BiasGelu",
            needs=("gelu_fusion",),
            waits=_GEMM,
        ),
        "quick_gelu_fusion": _extended(
            "Fuse x * Sigmoid(1.702 x) into com.microsoft QuickGelu.", "QuickGeluFusion", "com.microsoft/QuickGelu"
        ),
        "gelu_approximation": Capability(
            "Compute GELU with tanh, which differs by up to 5e-4: the standard's Gelu says so, com.microsoft's become "
            "FastGelu.",
            ".normalization:approximate_gelu",
            makes=("com.microsoft/FastGelu",),
            has_standard_form=True,
            needs=("gelu_fusion",),
        ),
        "gemm_activation_fusion": _extended(
            "Fuse a Gemm and the activation after it into com.microsoft FusedGemm.",
            "GemmActivationFusion",
            "com.microsoft/FusedGemm",
        ),
        "conv_activation_fusion": _extended(
            "Fuse a Conv and the activation after it into com.microsoft FusedConv.",
            "ConvActivationFusion",
            "com.microsoft/FusedConv",
        ),
        "matmul_transpose_fusion": _extended(
            "Fold a Transpose into the MatMul after it: com.microsoft FusedMatMul.",
            "MatmulTransposeFusion",
            "com.microsoft/FusedMatMul",
            into=("com.microsoft/FusedMatMul", "Transpose"),
        ),
        "matmul_scale_fusion": _extended(
            "Fold a constant factor into the MatMul next to it: com.microsoft FusedMatMul.",
            "MatMulScaleFusion",
            "com.microsoft/FusedMatMul",
            into=("com.microsoft/FusedMatMul", "Mul", "Div"),
        ),
        "bias_softmax_fusion": _left(
            "Fuse Add and Softmax into com.microsoft BiasSoftmax.",
            "onnxruntime fuses these for GPU providers only, when it loads a model; no other could run the result",
        ),
        "embed_layer_norm_fusion": _left(
            "Fuse the sum of embeddings and its layer normalization.",
            "onnxruntime's fusion has found no place in any BERT that PyTorch exports now",
        ),
        "matmul_activation_fusion": _left(
            "Fuse a MatMul and the activation after it.",
            "onnxruntime fuses these for DirectML only, when it loads a model",
        ),
        "conv_add_activation_fusion": _left(
            "Fuse a Conv, an Add and the activation after it.",
            "onnxruntime fuses these when it loads a model, in a layout of its own; use conv_activation_fusion",
        ),
        "nhwc_transformer": _left(
            "Put channels last.", "onnxruntime does it when it loads a model, and only where the processor gains by it"
        ),
        "nchwc_transformer": _left(
            "Put channels into blocks.", "onnxruntime does it when it loads a model, for the processor that it runs on"
        ),
        "bias_dropout_fusion": _left("Fuse Add and Dropout.", "models for inference have no Dropout"),
        "dynamic_quantize_matmul_fusion": _left("Fuse dynamic quantization and MatMulInteger.", _FLOAT_ONLY),
        "double_qdq_pairs_remover": _left(
            "Remove a pair of QuantizeLinear and DequantizeLinear after another.", _FLOAT_ONLY
        ),
        "normalize_int32_dq": _left("Omit the zero point of an int32 DequantizeLinear.", _FLOAT_ONLY),
        "trim_split_grouped_conv": _left("Trim and split a grouped Conv that is quantized.", _FLOAT_ONLY),
        "untie_constant_batched_matmul": _left(
            "Make the constant of a batched MatMul look like a value.",
            "a way around one driver of OpenVINO for GPUs, which constant folding would undo",
        ),
        "gridsample_to_gather": _left(
            "Replace a GridSample by GatherND.", "GridSample stays: onnxruntime runs it as it is"
        ),
    }
)


class _Catalog(Mapping[str, Capability]):
    """The built-in capabilities, then the rewrites of installed packages, which are looked up when one is asked for.

    Each method raises UsageError if a package cannot be imported, or declares something else or a name that is taken.
    """

    def __getitem__(self, name: str) -> Capability:
        return BUILT_IN.get(name) or _from_packages(tuple(sys.path))[name]

    def __iter__(self) -> Iterator[str]:
        return chain(BUILT_IN, _from_packages(tuple(sys.path)))

    def __len__(self) -> int:
        return len(BUILT_IN) + len(_from_packages(tuple(sys.path)))


CATALOG: Final = _Catalog()


@cache
def _from_packages(path: tuple[str, ...]) -> Mapping[str, Capability]:
    found: dict[str, Capability] = {}
    for name, entry in sorted(entry_points("winml_dag.rewrites", path).items()):
        rewrite = entry.load()
        # Installing a package changes no build by itself.
        if not isinstance(rewrite, Capability) or not rewrite.rewrite or rewrite.default:
            raise UsageError(f"{entry.target} of {entry.distribution} is not a rewrite that is off by default.")
        if name in BUILT_IN:
            raise UsageError(f"{entry.target} of {entry.distribution} has the name {name!r}, which is taken.")
        found[name] = replace(rewrite, package=entry.distribution)
    return found
