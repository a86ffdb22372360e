"""Operators of layers: convolutions, pooling, resizing, matrix products, normalizations, attention, Q and DQ."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from winml_dag.stages.probe.onenode import Array
from winml_dag.stages.probe.samples.draft import Draft, Draw, Maker


def _spatial(draw: Draw) -> int:
    """The number of axes of a window."""
    return draw.weighted([(1, 1.0), (2, 4.0), (3, 0.6)])


def _batch(draw: Draw) -> int:
    return 1 if draw.chance(0.75) else 2


def _window(draw: Draw, axes: int, *, dilates: bool = True) -> tuple[list[int], dict[str, Any]]:
    """The sizes of a window, and the attributes that define how it moves."""
    kernel = [draw.weighted([(1, 2.0), (2, 1.0), (3, 3.0), (5, 0.6)])] * axes
    if draw.chance(0.15):
        kernel = [draw.choice((1, 3)) for _ in range(axes)]
    attributes: dict[str, Any] = {}
    if draw.chance(0.6):
        attributes["strides"] = [draw.choice((1, 2, 2))] * axes
    if draw.chance(0.12):
        attributes["auto_pad"] = draw.choice(("SAME_UPPER", "SAME_LOWER", "VALID"))
    elif draw.chance(0.6):
        sides = [size // 2 for size in kernel]
        attributes["pads"] = [*sides, *sides] if draw.chance(0.8) else [*([0] * axes), *sides]
    if dilates and draw.chance(0.2) and "auto_pad" not in attributes:
        attributes["dilations"] = [draw.choice((1, 2))] * axes
    return kernel, attributes


def _space(draw: Draw, axes: int) -> list[int]:
    return [draw.size() % 8 + 9 for _ in range(axes)] if axes < 3 else [6] * axes


def _conv(op_type: str, draw: Draw) -> Draft:
    axes = _spatial(draw)
    kernel, attributes = _window(draw, axes)
    group = draw.weighted([(1, 4.0), (2, 1.0), (4, 0.6)])
    inner, outer = draw.choice((1, 2, 3, 4)), draw.choice((1, 2, 4))
    if draw.chance(0.25):
        inner = outer = 1  # one filter per channel
        group = draw.choice((4, 8))
    if group > 1 or draw.chance(0.3):
        attributes["group"] = group
    if draw.chance(0.6):
        attributes["kernel_shape"] = kernel
    data = draw.floats((_batch(draw), group * inner, *_space(draw, axes)))
    if op_type == "Conv":
        weight = draw.floats((group * outer, inner, *kernel))
    else:
        weight = draw.floats((group * inner, outer, *kernel))
        if draw.chance(0.2) and attributes.get("strides", [1])[0] == 2 and "auto_pad" not in attributes:
            attributes["output_padding"] = [1] * axes
    inputs: list[Array | None] = [data, weight]
    if draw.chance(0.6):
        inputs.append(draw.floats((group * outer,)))
    constants = frozenset({1, 2}) if draw.chance(0.9) else frozenset()
    return Draft(op_type, inputs, attributes, opsets=(11, 99), constants=constants)


def _pool(op_type: str, draw: Draw) -> Draft:
    axes = _spatial(draw)
    dilates = op_type == "MaxPool"
    kernel, attributes = _window(draw, axes, dilates=dilates)
    attributes["kernel_shape"] = kernel
    least = 11
    if draw.chance(0.25) and "auto_pad" not in attributes:
        attributes["ceil_mode"] = draw.integer(0, 1)
        least = 18 if op_type == "LpPool" else 11
    if op_type == "AveragePool" and draw.chance(0.4):
        attributes["count_include_pad"] = draw.integer(0, 1)
    if op_type == "LpPool" and draw.chance(0.5):
        attributes["p"] = draw.choice((1, 2, 3))
    outputs = 2 if op_type == "MaxPool" and draw.chance(0.1) else 1
    data = draw.floats((_batch(draw), draw.choice((1, 2, 3, 8)), *_space(draw, axes)))
    return Draft(op_type, [data], attributes, outputs, opsets=(least, 99))


def _global_pool(op_type: str, draw: Draw) -> Draft:
    data = draw.floats((_batch(draw), draw.choice((1, 3, 8)), *_space(draw, _spatial(draw))))
    attributes = {"p": draw.choice((1, 2))} if op_type == "GlobalLpPool" and draw.chance(0.5) else {}
    return Draft(op_type, [data], attributes)


def _resize(draw: Draw) -> Draft:
    rank = draw.weighted([(4, 6.0), (3, 1.0), (2, 0.5), (5, 0.5)])
    batch_and_channels = [_batch(draw), draw.choice((1, 3, 8))][: max(rank - 2, 0)]
    shape = [*batch_and_channels, *[draw.choice((4, 6, 8)) for _ in range(rank - len(batch_and_channels))]]
    mode = draw.weighted([("nearest", 3.0), ("linear", 3.0), ("cubic", 1.0)])
    attributes: dict[str, Any] = {"mode": mode} if mode != "nearest" or draw.chance(0.7) else {}
    if draw.chance(0.8):
        attributes["coordinate_transformation_mode"] = draw.choice(
            ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
        )
    if mode == "nearest" and draw.chance(0.7):
        attributes["nearest_mode"] = draw.choice(("floor", "round_prefer_floor", "round_prefer_ceil", "ceil"))
    if mode == "cubic" and draw.chance(0.6):
        attributes["cubic_coeff_a"] = draw.choice((-0.5, -0.75))
    least = 11
    if draw.chance(0.1) and mode != "nearest":
        attributes["antialias"], least = 1, 18
    if draw.chance(0.06):
        attributes["exclude_outside"] = 1
    sizes_change = [at >= len(batch_and_channels) for at in range(rank)]
    roi = np.zeros((0,), np.float32) if draw.chance(0.4) else None
    if draw.chance(0.55):
        factor = draw.choice((2.0, 2.0, 0.5, 1.5, 3.0))
        scales = np.asarray([factor if change else 1.0 for change in sizes_change], np.float32)
        inputs: list[Array | None] = [draw.floats(shape), roi, scales]
        constants = frozenset({1, 2})
    else:
        wanted = draw.choice((3, 8, 12, 16))
        sizes = np.asarray([wanted if change else size for size, change in zip(shape, sizes_change, strict=True)])
        inputs = [draw.floats(shape), roi, None, sizes.astype(np.int64)]
        constants = frozenset({1, 3})
    least = max(least, 13 if any(each is None for each in inputs) else 11)
    return Draft("Resize", inputs, attributes, opsets=(least, 99), constants=constants, keeps=frozenset({1, 2}))


def _upsample(draw: Draw) -> Draft:
    scales = np.asarray([1.0, 1.0, 2.0, draw.choice((2.0, 3.0))], np.float32)
    return Draft("Upsample", [draw.floats((1, 3, 4, 4)), scales], {"mode": draw.choice(("nearest", "linear"))},
                 opsets=(9, 9), constants=frozenset({1}), keeps=frozenset({1}))  # fmt: skip


def _grid_sample(draw: Draw) -> Draft:
    batch, height, width = _batch(draw), draw.choice((3, 4, 8)), draw.choice((3, 5))
    attributes: dict[str, Any] = {}
    if draw.chance(0.6):
        attributes["padding_mode"] = draw.choice(("zeros", "border", "reflection"))
    if draw.chance(0.5):
        attributes["align_corners"] = draw.integer(0, 1)
    later = draw.chance(0.4)
    if draw.chance(0.7):
        modes = ("linear", "nearest", "cubic") if later else ("bilinear", "nearest", "bicubic")
        attributes["mode"] = draw.choice(modes)
    data = draw.floats((batch, draw.choice((1, 3)), 6, 5))
    return Draft("GridSample", [data, draw.floats((batch, height, width, 2), -1.0, 1.0)], attributes,
                 opsets=(20, 99) if later else (16, 19))  # fmt: skip


def _roi_align(draw: Draw) -> Draft:
    least = 10
    attributes: dict[str, Any] = {}
    if draw.chance(0.6):
        attributes["mode"] = draw.choice(("avg", "max"))
    if draw.chance(0.4):
        attributes["coordinate_transformation_mode"], least = draw.choice(("half_pixel", "output_half_pixel")), 16
    for name, values in (("output_height", (1, 2, 5)), ("output_width", (1, 2, 5)), ("sampling_ratio", (0, 1, 2))):
        if draw.chance(0.7):
            attributes[name] = draw.choice(values)
    if draw.chance(0.5):
        attributes["spatial_scale"] = draw.choice((0.25, 0.5, 1.0))
    batch, boxes = _batch(draw), draw.choice((1, 2, 3))
    corners = np.concatenate([draw.floats((boxes, 2), 0.0, 4.0), draw.floats((boxes, 2), 5.0, 9.0)], axis=1)
    inputs: list[Array | None] = [
        draw.floats((batch, draw.choice((1, 3)), 10, 10)),
        corners,
        draw.integers((boxes,), 0, batch - 1),
    ]
    return Draft("RoiAlign", inputs, attributes, opsets=(least, 99), weights=frozenset({1, 2}))


def _lrn(draw: Draw) -> Draft:
    return Draft("LRN", [draw.floats((_batch(draw), draw.choice((3, 8)), 5, 5))], {"size": draw.choice((3, 5))})


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
    """The standard's Attention, which is expanded into simpler operators if a provider does not have it."""
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
    "Conv": (partial(_conv, "Conv"), 7.0),
    "ConvTranspose": (partial(_conv, "ConvTranspose"), 3.5),
    "MaxPool": (partial(_pool, "MaxPool"), 3.0),
    "AveragePool": (partial(_pool, "AveragePool"), 3.0),
    "LpPool": (partial(_pool, "LpPool"), 1.0),
    **{op: (partial(_global_pool, op), 1.0) for op in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")},
    "Resize": (_resize, 5.0),
    "Upsample": (_upsample, 0.5),
    "GridSample": (_grid_sample, 1.5),
    "LRN": (_lrn, 0.6),
    "RoiAlign": (_roi_align, 0.6),
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
