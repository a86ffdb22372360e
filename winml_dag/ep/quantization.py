"""What quantized models look like that an execution provider runs: the one table of integer types and their defaults.

A precision names widths only. Which integers have those widths, what else has to hold, and what ``auto`` means, is of
the provider, and stands here with where it is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from winml_dag.ep.registry import ExecutionProvider, Target

_ONNXRUNTIME = "https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html"
_PROVIDERS = "https://onnxruntime.ai/docs/execution-providers"
_TENSORRT = "https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/work-quantized-types.html"

_NO_16_BITS = "has no 16-bit integers; use w8a8 or fp16"


@dataclass(frozen=True)
class Integers:
    """The form of quantized models for one execution provider.

    Attributes:
        ep: its alias.
        weights: integer type of weights by width in bits. 4: it takes such weights in QDQ, without MatMulNBits.
        activations: integer type of activations by width in bits.
        rules: whose rules decide where Q and DQ go: ``qnn`` or ``onnxruntime``.
        per_channel: whether weights have a scale for each channel, unless the recipe says.
        weight_symmetric, activation_symmetric: whether ranges are centred on zero, unless the recipe says. None: those
            of weights in signed types are.
        runs_blocks: whether MatMulNBits, the form of block-wise weights, runs where the rest of the model does.
        mixes_widths: whether nodes with 16-bit activations may stand among nodes with 8 bits without leaving the
            provider; false where nobody has seen it.
        operators: those that are quantized unless the recipe says, by the width of activations in bits; without such a
            width, all that a model has.
        cannot: pairs of widths (weights, activations) that it does not run, with the end of a sentence that says so.
        reason: why these and no others.
        source: the page that says so.
    """

    ep: str
    weights: Mapping[int, str]
    activations: Mapping[int, str]
    source: str
    reason: str
    rules: str = "onnxruntime"
    per_channel: bool = False
    weight_symmetric: bool | None = None
    activation_symmetric: bool = False
    runs_blocks: bool = True
    mixes_widths: bool = False
    operators: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    cannot: Mapping[tuple[int, int], str] = field(default_factory=dict)


# What the CPU quantizes with 8-bit activations. Each operator was put alone between Q and DQ, optimized by onnxruntime
# 1.31 at its highest level, and timed on x86-64 (microseconds as integers / in float, one thread).
_OF_8_BITS = tuple(
    sorted(
        {
            # These get integer kernels, faster between quantized neighbours: Conv 187/247, MatMul 98/140, behind a Conv
            # Sigmoid 318/416, GlobalAveragePool 137/193. Softmax (151/17) and AveragePool (411/223) have slower ones.
            *("Add", "Concat", "Conv", "Gemm", "GlobalAveragePool", "LeakyRelu", "MatMul", "Mul", "Sigmoid", "Where"),
            # These move values, and move bytes without Q and DQ: MaxPool between Convs 180/231.
            *("ArgMax", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "MaxPool", "Reshape"),
            *("Resize", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
            # These vanish into the range of the operator before; a text classifier has 26.4 dB so, and 14.0 without.
            *("Clip", "Relu"),
            # No kernel, but what outliers are tamed at: all-MiniLM-L6-v2 has 14.6 dB so, and 5.5 without.
            "LayerNormalization",
            # No kernel, but weights, which take a quarter of the room. The same is true of tables that Gather reads.
            "ConvTranspose",
        }
    )
)
# With 16 bits nothing has integer kernels: Q and DQ around float operators only cost time. So these are the operators
# with weights, for their size; what vanishes; and Sigmoid, whose range holds what saturates. A text detector in w8a16
# takes 8.0 ms so and 12.3 ms with all operators, at 21.6 and 21.7 dB.
_OF_16_BITS = ("Clip", "Conv", "ConvTranspose", "Gather", "Gemm", "MatMul", "Relu", "Sigmoid")

_UNSIGNED = {8: "uint8", 16: "int16"}
_SIGNED = {8: "int8", 16: "int16"}
_UNSIGNED_ACTIVATIONS = {8: "uint8", 16: "uint16"}

INTEGERS: Mapping[str, Integers] = {
    row.ep: row
    for row in (
        Integers(
            "cpu",
            _UNSIGNED,
            _UNSIGNED_ACTIVATIONS,
            # Worst cosine of all-MiniLM-L6-v2 in w8a16: 0.978 with a scale for each tensor, 0.998 for each channel.
            per_channel=True,
            mixes_widths=True,
            operators={8: _OF_8_BITS, 16: _OF_16_BITS},
            source=_ONNXRUNTIME,
            reason="uint8 with uint8 saturates on no processor; with int8 weights, products do on x86-64 without VNNI",
        ),
        Integers(
            "qnn",
            {4: "int4", **_UNSIGNED},
            _UNSIGNED_ACTIVATIONS,
            rules="qnn",
            per_channel=True,
            runs_blocks=False,
            mixes_widths=True,
            cannot={(16, 8): "takes 16-bit weights with 16-bit activations only; use w8a8 or w16a16"},
            source=f"{_PROVIDERS}/QNN-ExecutionProvider.html",
            reason="activations are unsigned; 16-bit and 4-bit weights are signed and symmetric; only integers run",
        ),
        Integers(
            "openvino",
            _SIGNED,
            _UNSIGNED_ACTIVATIONS,
            per_channel=True,
            # Cosine of all-MiniLM-L6-v2 in w8a8: 0.815 with 8 bits throughout, 0.988 with some at 16, still in one part
            mixes_widths=True,
            weight_symmetric=True,
            source="https://docs.openvino.ai/2024/openvino-workflow/model-optimization-guide/"
            "quantizing-models-post-training/basic-quantization-flow.html",
            reason="its own tools make symmetric int8 weights for each channel, and asymmetric activations",
        ),
        Integers(
            "vitisai",
            _SIGNED,
            _SIGNED,
            weight_symmetric=True,
            activation_symmetric=True,
            source="https://ryzenai.docs.amd.com/en/latest/",
            reason="signed and symmetric; without a quantized model it makes bfloat16 by itself",
        ),
        Integers("cuda", _UNSIGNED, _UNSIGNED_ACTIVATIONS, source=_ONNXRUNTIME, reason="as on the CPU"),
        Integers(
            "dml",
            _UNSIGNED,
            _UNSIGNED_ACTIVATIONS,
            source=f"{_PROVIDERS}/DirectML-ExecutionProvider.html",
            reason="takes signed and unsigned integers; these are as on the CPU",
        ),
        *(
            Integers(
                ep,
                _SIGNED,
                _SIGNED,
                per_channel=True,
                weight_symmetric=True,
                activation_symmetric=True,
                runs_blocks=False,
                cannot=dict.fromkeys(((8, 16), (16, 8), (16, 16)), _NO_16_BITS),
                source=_TENSORRT,
                reason="zero points have to be zero; weights have a scale for each channel",
            )
            for ep in ("nvtensorrtrtx", "tensorrt")
        ),
        Integers(
            "migraphx",
            _SIGNED,
            _UNSIGNED_ACTIVATIONS,
            weight_symmetric=True,
            source=f"{_PROVIDERS}/MIGraphX-ExecutionProvider.html",
            reason="int8 weights; nothing more is written about it",
        ),
    )
}

# Operators with integer weights and float activations run on the CPU only. ConvInteger has no kernel for int8 weights.
DYNAMIC_WEIGHTS = INTEGERS["cpu"].weights[8]


@dataclass(frozen=True)
class Auto:
    """What precision ``auto`` is for a provider (by alias; None: any) and device (None: any), and why."""

    ep: str | None
    device: str | None
    precision: str
    reason: str


# The first row that fits counts.
AUTO = (
    Auto("vitisai", None, "fp32", "it quantizes by itself"),
    Auto(None, "npu", "w8a16", "an NPU needs integers, and 16-bit activations keep the quality without a knob"),
    Auto(None, "gpu", "fp32", "the float model is the one that cannot be wrong"),
    Auto(None, "cpu", "fp32", "the float model is the one that cannot be wrong"),
)


def integers_of(ep: ExecutionProvider) -> Integers:
    """The row of *ep*."""
    return INTEGERS[ep.alias]


def auto_precision(target: Target) -> str:
    """The name of the precision that ``auto`` means for *target*."""
    return next(
        row.precision for row in AUTO if row.ep in (None, target.ep.alias) and row.device in (None, target.device)
    )
