"""Products of matrices, normalizations, attention, and conversions between floats and integers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from winml_dag.stages.probe.samples.draw import Array, Draft, Draw, Maker

_MICROSOFT = "com.microsoft"


def _matmul(op_type: str, draw: Draw) -> Draft:
    rank = draw.rank(1, 5)
    rows, inner, columns = draw.size(), draw.size(), draw.size()
    batch = draw.shape(rank, rank)[: rank - 2] if rank > 2 else ()
    one: tuple[int, ...] = (*batch, rows, inner) if rank > 1 else (inner,)
    kind = draw.weighted([("matrix", 4.0), ("same", 3.0), ("vector", 0.6), ("ones", 0.6)])
    other: tuple[int, ...] = (inner, columns)
    if kind == "same":
        other = (*batch, inner, columns)
    elif kind == "vector":
        other = (inner,)
    elif kind == "ones":
        other = (*[1 for _ in batch], inner, columns)
    if op_type == "MatMul" and draw.chance(0.08) and len(one) > 1 and len(other) > 1:
        one, other = one[-2:], (*batch, inner, columns)
    inputs: list[Array | None] = [draw.floats(one), draw.floats(other)]
    constants = frozenset(draw.choice(((1,), (1,), (), (), (0,))))
    if op_type == "MatMulInteger":
        kinds = ("uint8", draw.choice(("uint8", "int8")))
        numbers: list[Array | None] = [draw.integers(np.shape(each), 0, 9, kind)
                                       for each, kind in zip((one, other), kinds, strict=True)]  # fmt: skip
        points = [np.asarray(draw.integer(0, 3), kind) for kind in kinds]
        return Draft(op_type, [*numbers, *points], opsets=(10, 99), constants=frozenset({1, 2, 3}))
    if op_type == "FusedMatMul":
        attributes: dict[str, Any] = {"alpha": draw.number(0.1, 2.0)} if draw.chance(0.7) else {}
        if draw.chance(0.4) and len(other) > 1:
            attributes["transB"] = 1
            inputs[1] = draw.floats((*other[:-2], columns, inner))
        return Draft(op_type, inputs, attributes, domain=_MICROSOFT, weights=constants)
    return Draft(op_type, inputs, types="number", weights=constants)


def _gemm(draw: Draw) -> Draft:
    rows, inner, columns = draw.size(), draw.size(), draw.size()
    attributes: dict[str, Any] = {name: 1 for name in ("transA",) if draw.chance(0.15)}
    if draw.chance(0.5):
        attributes["transB"] = draw.choice((0, 1, 1))
    for name in ("alpha", "beta"):
        if draw.chance(0.25):
            attributes[name] = draw.choice((1.0, 0.5, 2.0))
    one = (inner, rows) if attributes.get("transA") else (rows, inner)
    other = (columns, inner) if attributes.get("transB") else (inner, columns)
    inputs: list[Array | None] = [draw.floats(one), draw.floats(other)]
    if draw.chance(0.75):
        inputs.append(draw.floats(draw.choice(((columns,), (columns,), (1, columns), (rows, columns), (1,), ()))))
    constants = frozenset({1, 2}) if draw.chance(0.85) else frozenset()
    return Draft("Gemm", inputs, attributes, types="number", opsets=(11, 99), constants=constants)


def _batch_normalization(draw: Draw) -> Draft:
    shape = draw.shape(2, 5)
    channels = (shape[1],)
    inputs: list[Array | None] = [draw.floats(shape), draw.floats(channels), draw.floats(channels),
                                  draw.floats(channels), draw.floats(channels, 0.5, 2.0)]  # fmt: skip
    attributes: dict[str, Any] = {"epsilon": 1e-3} if draw.chance(0.4) else {}
    if draw.chance(0.05):
        return Draft("BatchNormalization", inputs, {**attributes, "training_mode": 1}, 3, opsets=(14, 99))
    constants = frozenset({1, 2, 3, 4}) if draw.chance(0.9) else frozenset()
    return Draft("BatchNormalization", inputs, attributes, opsets=(9, 99), constants=constants)


def _instance_normalization(draw: Draw) -> Draft:
    shape = draw.shape(3, 5)
    inputs: list[Array | None] = [draw.floats(shape), draw.floats(shape[1:2]), draw.floats(shape[1:2])]
    constants = frozenset({1, 2}) if draw.chance(0.85) else frozenset()
    return Draft("InstanceNormalization", inputs, {"epsilon": 1e-4} if draw.chance(0.3) else {}, constants=constants)


def _layer_normalization(op_type: str, draw: Draw) -> Draft:
    shape = draw.shape(1, 5)
    axis = -1 if draw.chance(0.6) else draw.axis(len(shape))
    attributes: dict[str, Any] = {} if axis == -1 and draw.chance(0.5) else {"axis": axis}
    if draw.chance(0.5):
        attributes["epsilon"] = draw.choice((1e-5, 1e-6, 1e-12))
    inner = shape[axis:]
    inputs: list[Array | None] = [draw.floats(shape), draw.floats(inner)]
    if op_type == "LayerNormalization" and draw.chance(0.8):
        inputs.append(draw.floats(inner))
    opsets = {"LayerNormalization": (17, 99), "RMSNormalization": (23, 99)}.get(op_type, (7, 22))
    constants = frozenset({1, 2}) if draw.chance(0.85) else frozenset()
    outputs = 3 if op_type == "LayerNormalization" and draw.chance(0.05) else 1
    return Draft(op_type, inputs, attributes, outputs, opsets=opsets, constants=constants)


def _skip_normalization(op_type: str, draw: Draw) -> Draft:
    shape = draw.shape(3, 3)
    inputs: list[Array | None] = [draw.floats(shape), draw.floats(shape), draw.floats(shape[-1:])]
    if op_type == "SkipLayerNormalization":
        inputs.append(draw.floats(shape[-1:]))
    if draw.chance(0.4):
        inputs.append(draw.floats(shape[-1:]))
    return Draft(op_type, inputs, {"epsilon": 1e-5}, domain=_MICROSOFT, constants=frozenset({2, 3, 4}), quantizes=False)


def _group_normalization(draw: Draw) -> Draft:
    groups = draw.choice((1, 2, 4))
    shape = (1 if draw.chance(0.7) else 2, groups * draw.choice((1, 2, 3)), *draw.shape(1, 3))
    later = draw.chance(0.7)
    size = (shape[1] if later else groups,)
    return Draft("GroupNormalization", [draw.floats(shape), draw.floats(size), draw.floats(size)],
                 {"num_groups": groups}, opsets=(21, 99) if later else (18, 20),
                 constants=frozenset({1, 2}))  # fmt: skip


def _conversion(op_type: str, draw: Draw) -> Draft:
    shape = draw.shape(1, 5)
    kind = draw.weighted([("uint8", 4.0), ("int8", 2.0), ("uint16", 2.0), ("int16", 1.0)])
    axis = None
    size: tuple[int, ...] = ()
    if draw.chance(0.25):
        axis = draw.axis(len(shape))
        size = (shape[axis],)
    scale = np.abs(draw.floats(size, 0.01, 0.1))
    point = draw.integers(size, 0, 9, kind)
    data = draw.floats(shape) if op_type == "QuantizeLinear" else draw.integers(shape, 0, 9, kind)
    least = 21 if "16" in kind else 13 if axis is not None else 10
    attributes = {} if axis is None else {"axis": axis}
    inputs: list[Array | None] = [data, scale, point]
    if kind == "uint8" and axis is None and draw.chance(0.2):
        inputs = inputs[:2]
    constants = frozenset({1, 2}) if op_type == "QuantizeLinear" or draw.chance(0.9) else frozenset({0, 1, 2})
    return Draft(op_type, inputs, attributes, types="float32", opsets=(least, 99), constants=constants, quantizes=False)


def _dynamic_quantize(draw: Draw) -> Draft:
    return Draft("DynamicQuantizeLinear", [draw.floats(draw.shape(1, 4))], outputs=3, types="float32", opsets=(11, 99),
                 quantizes=False)  # fmt: skip


def _recurrent(op_type: str, draw: Draw) -> Draft:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op_type]
    length, batch, inner, hidden = draw.choice((1, 3, 5)), draw.choice((1, 1, 2)), draw.size(), draw.size()
    direction = draw.weighted([("", 3.0), ("forward", 2.0), ("reverse", 1.0), ("bidirectional", 1.5)])
    count = 2 if direction == "bidirectional" else 1
    attributes: dict[str, Any] = {"hidden_size": hidden, **({"direction": direction} if direction else {})}
    inputs: list[Array | None] = [draw.floats((length, batch, inner)), draw.floats((count, gates * hidden, inner)),
                                  draw.floats((count, gates * hidden, hidden))]  # fmt: skip
    if draw.chance(0.7):
        inputs.append(draw.floats((count, 2 * gates * hidden)))
        if draw.chance(0.5):
            inputs += [None, draw.floats((count, batch, hidden))]
            if op_type == "LSTM":
                inputs.append(draw.floats((count, batch, hidden)))
    if op_type == "GRU" and draw.chance(0.5):
        attributes["linear_before_reset"] = 1
    return Draft(op_type, inputs, attributes, outputs=draw.choice((1, 2)), opsets=(7, 99),
                 constants=frozenset({1, 2, 3}), quantizes=False)  # fmt: skip


def _multi_head(draw: Draw) -> Draft:
    heads = draw.choice((1, 2, 4))
    batch, length, width = draw.choice((1, 1, 2)), draw.choice((3, 8)), heads * draw.choice((4, 8))
    inputs: list[Array | None] = [draw.floats((batch, length, width)) for _ in range(3)]
    if draw.chance(0.3):
        inputs.append(draw.floats((3 * width,)))
    return Draft("MultiHeadAttention", inputs, {"num_heads": heads}, domain=_MICROSOFT, constants=frozenset({3}),
                 quantizes=False)  # fmt: skip


def _attention(draw: Draw) -> Draft:
    """ONNX's own, which is made of simpler operators where a provider has none of it."""
    heads, length, other, width = draw.choice((1, 2, 4)), draw.choice((3, 8)), draw.choice((4, 8)), draw.choice((4, 8))
    inputs: list[Array | None] = [draw.floats((1, heads, length, width)), draw.floats((1, heads, other, width)),
                                  draw.floats((1, heads, other, width))]  # fmt: skip
    attributes: dict[str, Any] = {"is_causal": 1} if draw.chance(0.2) else {}
    if draw.chance(0.4):
        attributes["scale"] = draw.number(0.1, 1.0)
    if draw.chance(0.3):
        inputs.append(draw.floats((length, other)))
    return Draft("Attention", inputs, attributes, opsets=(23, 99), quantizes=False)


OPERATORS: Mapping[str, tuple[Maker, float]] = {
    "MatMul": (partial(_matmul, "MatMul"), 7.0),
    "MatMulInteger": (partial(_matmul, "MatMulInteger"), 1.0),
    f"{_MICROSOFT}/FusedMatMul": (partial(_matmul, "FusedMatMul"), 1.0),
    "Gemm": (_gemm, 5.0),
    "BatchNormalization": (_batch_normalization, 2.5),
    "InstanceNormalization": (_instance_normalization, 1.8),
    "LayerNormalization": (partial(_layer_normalization, "LayerNormalization"), 4.0),
    "RMSNormalization": (partial(_layer_normalization, "RMSNormalization"), 1.0),
    "SimplifiedLayerNormalization": (partial(_layer_normalization, "SimplifiedLayerNormalization"), 0.8),
    **{f"{_MICROSOFT}/{op}": (partial(_skip_normalization, op), 0.6)
       for op in ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")},
    "GroupNormalization": (_group_normalization, 1.2),
    "QuantizeLinear": (partial(_conversion, "QuantizeLinear"), 1.5),
    "DequantizeLinear": (partial(_conversion, "DequantizeLinear"), 1.5),
    "DynamicQuantizeLinear": (_dynamic_quantize, 0.5),
    **{op: (partial(_recurrent, op), 1.2) for op in ("LSTM", "GRU", "RNN")},
    f"{_MICROSOFT}/MultiHeadAttention": (_multi_head, 0.8),
    "Attention": (_attention, 1.0),
}  # fmt: skip
