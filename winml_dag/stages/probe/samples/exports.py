"""Uses of operators, as often as exported models have them: what users ask a table for, so what it is held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from winml_dag.ep.support.case import Quantized
from winml_dag.stages.probe.samples.draw import SIZES, Draw
from winml_dag.stages.probe.samples.every import OPERATORS, Sample
from winml_dag.stages.probe.samples.settle import InvalidError, quantized, settle

# How many of a thousand nodes: the mean of 39 exports of 19 architectures (BERT, RoBERTa, DistilBERT, ELECTRA, T5,
# BART, ViT, Swin, ConvNeXt, ResNet, SegFormer, MobileViT, CLIP, SigLIP, BLIP, OWL-ViT, wav2vec 2.0, Whisper, and
# an encoder and decoder of ViT and GPT-2), without Constant and Identity.
_OF_A_THOUSAND = {
    "Add": 175, "MatMul": 140, "Reshape": 100, "Transpose": 96, "Mul": 63, "LayerNormalization": 49, "Cast": 40,
    "Conv": 37, "Unsqueeze": 37, "Gather": 34, "Concat": 26, "Shape": 23, "Relu": 18, "Where": 17, "Softmax": 17,
    "Div": 14, "Gelu": 13, "Equal": 13, "ConstantOfShape": 12, "Slice": 11, "Expand": 9, "Erf": 6, "And": 5,
    "Sigmoid": 4, "Pow": 4, "Flatten": 3, "Gemm": 3, "GreaterOrEqual": 3, "Sub": 3, "MaxPool": 3, "ReduceMean": 2,
    "Sqrt": 2, "Mod": 2, "Not": 2, "GatherElements": 1, "Split": 1, "Tanh": 1, "Tile": 1, "Pad": 1, "ReduceL2": 1,
    "InstanceNormalization": 1, "Abs": 1, "Less": 1, "Log": 1, "Min": 1, "Range": 1, "CumSum": 1, "Ceil": 1,
    "GatherND": 1, "Squeeze": 1,
}  # fmt: skip
_INTEGERS = (
    (Quantized("uint8", "uint8"), 1.0),
    (Quantized("uint8", "uint8", True), 1.0),
    (Quantized("uint16", "uint8"), 1.0),
    (Quantized("uint16", "uint8", True), 1.0),
    (Quantized("uint16", "int8", True), 0.5),
)
_QUANTIZED_SHARE = 0.5
_OPSETS = range(14, 23)


def exports_sample(seed: int, sizes: Sequence[int] = SIZES) -> Sample | None:
    """What is drawn with *seed*, half of it quantized where it may be; None where that is no model."""
    draw = Draw(seed, sizes)
    maker, _ = OPERATORS[draw.weighted(list(_OF_A_THOUSAND.items()))]
    draft = maker(draw)
    # Numbers that are no floats are those of shapes and indices.
    kind = "float32" if draft.types != "any" or draw.chance(0.8) else "int64"
    try:
        node = settle(replace(draft, types=kind, quantizes=False), draw)
        if node.opset not in _OPSETS:
            return None
        if kind == "float32" and draft.quantizes and draw.chance(_QUANTIZED_SHARE):
            node = quantized(replace(node, open_axes=frozenset()), draw.weighted(_INTEGERS))
        return Sample(node)
    except InvalidError:
        return None
