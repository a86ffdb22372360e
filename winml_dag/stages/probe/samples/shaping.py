"""Operators that move elements and change shapes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod
from typing import Any

import numpy as np

from winml_dag.stages.probe.onenode import Array
from winml_dag.stages.probe.samples.draft import Draft, Draw, Maker, indices


def _factors(draw: Draw, count: int, rank: int) -> list[int]:
    """*rank* sizes whose product is *count*."""
    sizes = [1] * rank
    for number in (2, 3, 5, 7):
        while count % number == 0:
            count //= number
            sizes[draw.integer(0, rank - 1)] *= number
    sizes[0] *= count
    return sizes


def _reshape(draw: Draw) -> Draft:
    shape = draw.shape(1, 5)
    target = _factors(draw, prod(shape), draw.rank(1, 6))
    if draw.chance(0.4):
        target[draw.integer(0, len(target) - 1)] = -1
    if draw.chance(0.2) and len(target) <= len(shape):
        target = [0, *target[1:]] if target[0] == shape[0] else target
    attributes = {"allowzero": 0} if draw.chance(0.1) else {}
    return Draft(
        "Reshape", [draw.floats(shape), indices(*target)], attributes, types="any",
        opsets=(14 if attributes else 7, 99), constants=frozenset({1}),
    )  # fmt: skip


def _transpose(draw: Draw) -> Draft:
    shape = draw.shape(1, 6)
    attributes = {} if draw.chance(0.15) else {"perm": draw.shuffled(range(len(shape)))}
    return Draft("Transpose", [draw.floats(shape)], attributes, types="any")


def _flatten(draw: Draw) -> Draft:
    shape = draw.shape(1, 5)
    attributes = {} if draw.chance(0.3) else {"axis": draw.integer(0, len(shape))}
    if attributes and draw.chance(0.2) and attributes["axis"] < len(shape):
        return Draft("Flatten", [draw.floats(shape)], {"axis": attributes["axis"] - len(shape)}, types="any",
                     opsets=(11, 99))  # fmt: skip
    return Draft("Flatten", [draw.floats(shape)], attributes, types="any", opsets=(9, 99))


def _squeeze(op_type: str, draw: Draw) -> Draft:
    rank = draw.rank(1, 4)
    axes = sorted(draw.some(range(rank), 1)[:2])
    shape = [draw.size() for _ in range(rank)]
    if op_type == "Squeeze":
        for axis in axes:
            shape[axis] = 1
        counted = [axis - rank for axis in axes] if draw.chance(0.3) else axes
    else:
        counted = [axis - rank - len(axes) for axis in axes] if draw.chance(0.3) else axes
    least = 11 if counted[0] < 0 else 7
    if draw.chance(0.3):
        return Draft(op_type, [draw.floats(shape)], {"axes": counted}, types="any", opsets=(least, 12))
    inputs: list[Array | None] = [draw.floats(shape), indices(*counted)]
    if op_type == "Squeeze" and draw.chance(0.1):
        inputs = inputs[:1]
    return Draft(op_type, inputs, types="any", opsets=(13, 99), constants=frozenset({1}))


def _expand(draw: Draw) -> Draft:
    shape = draw.shape(0, 4)
    wanted = [size if size > 1 or draw.chance(0.4) else draw.size() for size in shape]
    if draw.chance(0.3):
        wanted = [draw.size(), *wanted]
    if draw.chance(0.2):
        wanted = [1 if draw.chance(0.5) else size for size in wanted]
    if not wanted:
        wanted = [draw.size()]
    return Draft(
        "Expand", [draw.floats(shape), indices(*wanted)], types="any", opsets=(8, 99), constants=frozenset({1})
    )


def _tile(draw: Draw) -> Draft:
    shape = draw.shape(1, 4)
    repeats = [draw.choice((1, 1, 2, 3)) for _ in shape]
    return Draft("Tile", [draw.floats(shape), indices(*repeats)], types="any", constants=frozenset({1}))


def _concat(draw: Draw) -> Draft:
    shape = list(draw.shape(1, 5))
    axis = draw.axis(len(shape))
    inputs: list[Array | None] = []
    for _ in range(draw.weighted([(1, 0.3), (2, 4.0), (3, 1.5), (4, 1.0), (6, 0.5)])):
        shape[axis] = draw.size()
        inputs.append(draw.floats(shape))
    return Draft(
        "Concat", inputs, {"axis": axis}, types="any", opsets=(11 if axis < 0 else 7, 99), weights=frozenset({0, 1})
    )


def _split(draw: Draw) -> Draft:
    shape = list(draw.shape(1, 4))
    axis = draw.axis(len(shape))
    count = draw.choice((2, 2, 3, 4))
    each = draw.choice((1, 2, 4))
    shape[axis] = count * each
    attributes: dict[str, Any] = {} if axis == 0 and draw.chance(0.5) else {"axis": axis}
    least = 11 if axis < 0 else 7
    data = draw.floats(shape)
    kind = draw.weighted([("attribute", 1.0), ("input", 3.0), ("number", 2.0), ("none", 1.0)])
    if kind == "attribute":
        return Draft("Split", [data], {**attributes, "split": [each] * count}, count, types="any", opsets=(least, 12))
    if kind == "number":
        return Draft("Split", [data], {**attributes, "num_outputs": count}, count, types="any", opsets=(18, 99))
    if kind == "none":
        return Draft("Split", [data], attributes, count, types="any", opsets=(least, 17))
    sizes = [each] * count
    if each > 1 and draw.chance(0.5):
        sizes[0], sizes[1] = each - 1, each + 1
    return Draft(
        "Split", [data, indices(*sizes)], attributes, count, types="any", opsets=(13, 99), constants=frozenset({1})
    )


def _slice(draw: Draw) -> Draft:
    shape = draw.shape(1, 5)
    axes = draw.some(range(len(shape)))[:2]
    starts, ends, steps = [], [], []
    for axis in axes:
        size = shape[axis]
        step = draw.weighted([(1, 5.0), (2, 1.5), (-1, 1.0)])
        start = draw.integer(0, max(size // 2 - 1, 0))
        end = draw.choice((size, size, 2**31 - 1, 2**63 - 1, max(start + 1, size - 1)))
        if step < 0:
            start, end = draw.choice((size - 1, -1)), draw.choice((-(2**31), -size - 1))
        elif draw.chance(0.2):
            start, end = start - size, end if end > size else size
        starts.append(start)
        ends.append(end)
        steps.append(step)
    counted = [axis - len(shape) for axis in axes] if draw.chance(0.3) else list(axes)
    if draw.chance(0.1) and min(steps) > 0 and max(steps) == 1:
        return Draft("Slice", [draw.floats(shape)], {"axes": list(axes), "starts": starts, "ends": ends}, types="any",
                     opsets=(7, 9))  # fmt: skip
    inputs: list[Array | None] = [draw.floats(shape), indices(*starts), indices(*ends)]
    if axes == list(range(len(axes))) and draw.chance(0.2) and set(steps) == {1}:
        pass
    else:
        inputs.append(indices(*counted))
        if set(steps) != {1} or draw.chance(0.6):
            inputs.append(indices(*steps))
    return Draft("Slice", inputs, types="any", opsets=(11, 99), constants=frozenset({1, 2, 3, 4}))


def _gather(draw: Draw) -> Draft:
    shape = draw.shape(1, 4)
    axis = draw.axis(len(shape))
    size = shape[axis]
    least = -size if draw.chance(0.25) else 0
    chosen = draw.integers(draw.choice(((), (1,), (2,), (1, 4), (2, 3), (1, 2, 2))), least, size - 1, draw.index_type())
    attributes = {} if axis == 0 and draw.chance(0.6) else {"axis": axis}
    weights = frozenset(draw.choice(((0,), (1,), (1,), ())))
    return Draft("Gather", [draw.floats(shape), chosen], attributes, types="any", opsets=(11, 99), weights=weights)


def _gather_elements(op_type: str, draw: Draw) -> Draft:
    shape = draw.shape(1, 4)
    axis = draw.axis(len(shape))
    attributes: dict[str, Any] = {} if axis == 0 and draw.chance(0.6) else {"axis": axis}
    chosen = draw.integers(shape, 0, shape[axis] - 1, draw.index_type())
    data = draw.floats(shape)
    if op_type == "GatherElements":
        return Draft(op_type, [data, chosen], attributes, types="any", opsets=(11, 99), weights=frozenset({1}))
    # No index twice: which element would win is undefined.
    chosen = np.broadcast_to(np.arange(shape[axis]).reshape([-1 if at == axis % len(shape) else 1
                                                            for at in range(len(shape))]), shape)  # fmt: skip
    opsets = (11, 99)
    types = "any"
    if draw.chance(0.4):
        attributes["reduction"] = draw.choice(("none", "add", "mul", "max", "min"))
        opsets = (16 if attributes["reduction"] in ("none", "add", "mul") else 18, 99)
        types = "number"
    return Draft(op_type, [data, chosen.astype(draw.index_type()), draw.floats(shape)], attributes, types=types,
                 opsets=opsets, weights=frozenset({1}))  # fmt: skip


def _gather_nd(draw: Draw) -> Draft:
    shape = draw.shape(1, 4)
    batch = draw.integer(1, len(shape) - 1) if len(shape) > 1 and draw.chance(0.2) else 0
    depth = draw.integer(1, len(shape) - batch)
    least = min(shape[batch : batch + depth])
    chosen = draw.integers((*shape[:batch], draw.choice((1, 2, 3)), depth), 0, least - 1)
    return Draft("GatherND", [draw.floats(shape), chosen], {"batch_dims": batch} if batch else {}, types="any",
                 opsets=(12, 99), weights=frozenset({1}))  # fmt: skip


def _scatter_nd(draw: Draw) -> Draft:
    shape = draw.shape(1, 4)
    depth = draw.integer(1, len(shape))
    rows = draw.integer(1, shape[0])
    chosen = np.zeros((rows, depth), np.int64)
    chosen[:, 0] = np.arange(rows)
    opsets = (11, 99)
    attributes: dict[str, Any] = {}
    types = "any"
    if draw.chance(0.4):
        attributes["reduction"] = draw.choice(("none", "add", "mul", "max", "min"))
        opsets = (16 if attributes["reduction"] in ("none", "add", "mul") else 18, 99)
        types = "number"
    return Draft("ScatterND", [draw.floats(shape), chosen, draw.floats((rows, *shape[depth:]))], attributes,
                 types=types, opsets=opsets, weights=frozenset({1}))  # fmt: skip


def _pad(draw: Draw) -> Draft:
    shape = draw.shape(1, 5)
    mode = draw.weighted([("constant", 4.0), ("reflect", 1.0), ("edge", 1.0), ("", 2.0), ("wrap", 0.4)])
    most = [max(size - 1, 0) for size in shape] if mode in ("reflect", "wrap") else [2] * len(shape)
    pads = [draw.integer(0, min(2, limit)) if draw.chance(0.5) else 0 for limit in [*most, *most]]
    if mode in ("constant", "") and draw.chance(0.08):
        pads[0] = -1 if shape[0] > 1 else 0
    attributes: dict[str, Any] = {"mode": mode} if mode else {}
    data = draw.floats(shape)
    least = 19 if mode == "wrap" else 11
    if draw.chance(0.12) and mode != "wrap":
        return Draft("Pad", [data], {**attributes, "pads": pads}, opsets=(7, 10))
    inputs: list[Array | None] = [data, indices(*pads)]
    if mode in ("constant", "") and draw.chance(0.6):
        inputs.append(np.asarray(draw.choice((0.0, 1.0)), np.float32))
    elif draw.chance(0.15):
        axes = draw.some(range(len(shape)))
        chosen = indices(*[pads[axis] for axis in axes], *[pads[axis + len(shape)] for axis in axes])
        inputs = [data, chosen, None, indices(*axes)]
        least = max(least, 18)
    return Draft("Pad", inputs, attributes, types="number", opsets=(least, 99), constants=frozenset({1, 2, 3}))


def _blocks(op_type: str, draw: Draw) -> Draft:
    block = draw.choice((2, 2, 3))
    batch, channels, height, width = 1 if draw.chance(0.6) else 2, draw.choice((1, 2, 3)), draw.size(), draw.size()
    if op_type == "SpaceToDepth":
        return Draft(op_type, [draw.floats((batch, channels, height * block, width * block))], {"blocksize": block})
    attributes: dict[str, Any] = {"blocksize": block}
    least = 7
    if draw.chance(0.6):
        attributes["mode"], least = draw.choice(("DCR", "CRD")), 11
    return Draft(op_type, [draw.floats((batch, channels * block**2, height, width))], attributes, opsets=(least, 99))


def _shape(op_type: str, draw: Draw) -> Draft:
    attributes: dict[str, Any] = {}
    shape = draw.shape(0, 5)
    if op_type == "Shape" and draw.chance(0.3):
        attributes = {"start": draw.integer(-1, 1), **({"end": draw.integer(1, 3)} if draw.chance(0.5) else {})}
    return Draft(op_type, [draw.floats(shape)], attributes, types="any", opsets=(15 if attributes else 7, 99),
                 quantizes=False)  # fmt: skip


def _range(draw: Draw) -> Draft:
    kind = draw.choice(("int64", "int64", "int32", "float32"))
    numbers = (0, draw.integer(3, 9), draw.choice((1, 2)))
    return Draft("Range", [np.asarray(number, kind) for number in numbers], types="float32", opsets=(11, 99),
                 constants=frozenset({0, 2}), weights=frozenset({1}), quantizes=False)  # fmt: skip


def _constant_of_shape(draw: Draw) -> Draft:
    return Draft("ConstantOfShape", [indices(*draw.shape(1, 4))], opsets=(9, 99), weights=frozenset({0}),
                 quantizes=False)  # fmt: skip


def _one_hot(draw: Draw) -> Draft:
    depth = draw.size() + 1
    kind = draw.index_type()
    chosen = draw.integers(draw.shape(1, 3), 0, depth - 1, kind)
    values = np.asarray([0, 1], draw.choice(("float32", "float32", "int64", "int32")))
    attributes = {"axis": draw.axis(chosen.ndim + 1)} if draw.chance(0.6) else {}
    return Draft("OneHot", [chosen, np.asarray(depth, kind), values], attributes, types="float32", opsets=(9, 99),
                 constants=frozenset({1, 2}), quantizes=False)  # fmt: skip


def _plain(op_type: str, draw: Draw) -> Draft:
    inputs: list[Array | None] = [draw.floats(draw.shape(0, 6))]
    if op_type == "Dropout" and draw.chance(0.5):
        inputs.append(np.asarray(0.3, np.float32))
    least = 12 if op_type == "Dropout" else 7
    return Draft(op_type, inputs, types="any" if op_type == "Identity" else "float", opsets=(least, 99),
                 keeps=frozenset({1}), constants=frozenset({1}))  # fmt: skip


def _compress(draw: Draw) -> Draft:
    shape = draw.shape(1, 3)
    axis = draw.axis(len(shape))
    return Draft("Compress", [draw.floats(shape), np.ones(shape[axis], np.bool_)], {"axis": axis}, types="any",
                 opsets=(11, 99), weights=frozenset({1}))  # fmt: skip


OPERATORS: Mapping[str, tuple[Maker, float]] = {
    "Reshape": (_reshape, 3.5),
    "Transpose": (_transpose, 3.0),
    "Flatten": (_flatten, 1.5),
    "Squeeze": (partial(_squeeze, "Squeeze"), 2.0),
    "Unsqueeze": (partial(_squeeze, "Unsqueeze"), 2.5),
    "Expand": (_expand, 2.5),
    "Tile": (_tile, 1.5),
    "Concat": (_concat, 3.0),
    "Split": (_split, 2.5),
    "Slice": (_slice, 3.5),
    "Gather": (_gather, 4.0),
    "GatherElements": (partial(_gather_elements, "GatherElements"), 1.8),
    "ScatterElements": (partial(_gather_elements, "ScatterElements"), 1.8),
    "GatherND": (_gather_nd, 1.8),
    "ScatterND": (_scatter_nd, 2.0),
    "Pad": (_pad, 3.5),
    "DepthToSpace": (partial(_blocks, "DepthToSpace"), 1.2),
    "SpaceToDepth": (partial(_blocks, "SpaceToDepth"), 1.0),
    "Shape": (partial(_shape, "Shape"), 1.5),
    "Size": (partial(_shape, "Size"), 0.6),
    "Range": (_range, 1.0),
    "ConstantOfShape": (_constant_of_shape, 1.0),
    "OneHot": (_one_hot, 1.0),
    "Identity": (partial(_plain, "Identity"), 1.0),
    "Dropout": (partial(_plain, "Dropout"), 0.8),
    "Compress": (_compress, 0.6),
}
