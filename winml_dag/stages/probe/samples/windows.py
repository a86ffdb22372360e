"""Operators with windows: convolutions, pooling and resizing."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from winml_dag.stages.probe.samples.draw import Array, Draft, Draw, Maker


def _spatial(draw: Draw) -> int:
    """How many axes a window has."""
    return draw.weighted([(1, 1.0), (2, 4.0), (3, 0.6)])


def _batch(draw: Draw) -> int:
    return 1 if draw.chance(0.75) else 2


def _window(draw: Draw, axes: int, *, dilates: bool = True) -> tuple[list[int], dict[str, Any]]:
    """The sizes of a window, and the attributes that say how it moves."""
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
        inner = outer = 1  # one filter for each channel
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
}
