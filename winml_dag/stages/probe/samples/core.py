"""The operators that nearly every exported model is made of, in the forms that exporters and quantize write: drawn
apart, so that of these a table knows much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from winml_dag.ep.support.case import Quantized
from winml_dag.stages.probe.samples.draw import SIZES, Draw
from winml_dag.stages.probe.samples.every import OPERATORS, Sample
from winml_dag.stages.probe.samples.settle import InvalidError, quantized, settle

_CORE = (
    *("MatMul", "Gemm", "Conv", "Add", "Mul", "LayerNormalization", "Softmax", "Gather") * 3,
    *("Reshape", "Transpose", "Concat", "Slice", "Split", "Sub", "Div", "Resize", "ConvTranspose") * 2,
    "AveragePool", "MaxPool", "GlobalAveragePool", "ReduceMean", "ReduceSum", "Clip", "Relu", "Sigmoid", "Tanh", "Gelu",
    "Sqrt", "Pow", "Expand", "Where", "Unsqueeze", "Squeeze", "Flatten", "Pad", "BatchNormalization", "HardSwish",
    "InstanceNormalization", "LeakyRelu", "PRelu", "Equal", "DepthToSpace", "Exp", "Neg", "HardSigmoid", "GridSample",
    "ScatterND", "GatherND", "GatherElements", "TopK", "CumSum", "ReduceMax", "Max", "Min", "Tile", "Einsum", "ArgMax",
)  # fmt: skip
_INTEGERS = (
    (Quantized("uint8", "uint8"), 3.0),
    (Quantized("uint8", "uint8", True), 2.0),
    (Quantized("uint16", "uint8"), 3.0),
    (Quantized("uint16", "uint8", True), 3.0),
    (Quantized("uint16", "int8", True), 1.0),
    (Quantized("uint16", "int16"), 1.5),
)
_QUANTIZED_SHARE = 0.75
_OPSETS = range(13, 22)


def core_sample(seed: int, sizes: Sequence[int] = SIZES) -> Sample | None:
    """What is drawn with *seed* from these operators, in float32 or integers; None where that is no model."""
    draw = Draw(seed, sizes)
    maker, _ = OPERATORS[draw.choice(_CORE)]
    draft = replace(maker(draw), types="float32", quantizes=False)
    try:
        node = settle(draft, draw)
        if node.opset not in _OPSETS:
            return None
        if draw.chance(_QUANTIZED_SHARE):
            node = quantized(replace(node, open_axes=frozenset()), draw.weighted(_INTEGERS))
        return Sample(node)
    except InvalidError:
        return None
