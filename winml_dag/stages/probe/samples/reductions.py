"""Operators that work along axes: reductions, softmax, sorting and sums."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from winml_dag.stages.probe.samples.draw import Array, Draft, Draw, Maker, indices

_REDUCTIONS = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
               "ReduceProd", "ReduceSum", "ReduceSumSquare")  # fmt: skip


_EQUATIONS = ("bij,bjk->bik", "bhid,bhjd->bhij", "bhij,bhjd->bhid", "ij,jk->ik", "bij->bji", "i,j->ij", "bij,bij->bi",
              "ii->i", "bid,hd->bih", "...ij,...jk->...ik", "bhwij,jk->bhwik")  # fmt: skip


def _reduce(op_type: str, draw: Draw) -> Draft:
    shape = draw.shape(1, 5)
    rank = len(shape)
    axes = draw.some(range(rank)) if draw.chance(0.5) else [draw.axis(rank)]
    if draw.chance(0.4):
        axes = [axis - rank if axis >= 0 else axis for axis in axes]
    attributes: dict[str, Any] = {} if draw.chance(0.3) else {"keepdims": draw.integer(0, 1)}
    types = "number" if op_type in ("ReduceMax", "ReduceMin", "ReduceSum", "ReduceProd", "ReduceMean") else "float"
    data = draw.floats(shape, 0.1, 1.5)
    given = not draw.chance(0.15)
    changed = 13 if op_type == "ReduceSum" else 18
    if draw.chance(0.45):
        return Draft(
            op_type, [data], {**attributes, **({"axes": axes} if given else {})}, types=types, opsets=(7, changed - 1)
        )
    if draw.chance(0.15):
        attributes["noop_with_empty_axes"] = draw.integer(0, 1)
    inputs: list[Array | None] = [data, *([indices(*axes)] if given else [])]
    return Draft(op_type, inputs, attributes, types=types, opsets=(changed, 99), constants=frozenset({1}))


def _arg(op_type: str, draw: Draw) -> Draft:
    shape = draw.shape(1, 5)
    attributes: dict[str, Any] = {} if draw.chance(0.2) else {"axis": draw.axis(len(shape))}
    if draw.chance(0.7):
        attributes["keepdims"] = draw.integer(0, 1)
    opsets = (7, 99)
    if draw.chance(0.2):
        attributes["select_last_index"] = draw.integer(0, 1)
        opsets = (12, 99)
    return Draft(op_type, [draw.floats(shape)], attributes, types="number", opsets=opsets)


def _softmax(op_type: str, draw: Draw) -> Draft:
    shape = draw.shape(1, 5)
    attributes = {} if draw.chance(0.15) else {"axis": draw.axis(len(shape))}
    return Draft(op_type, [draw.floats(shape)], attributes, opsets=(11 if attributes.get("axis", 1) < 0 else 7, 99))


def _topk(draw: Draw) -> Draft:
    shape = draw.shape(1, 4)
    axis = draw.axis(len(shape))
    attributes: dict[str, Any] = {} if axis in (-1, len(shape) - 1) and draw.chance(0.5) else {"axis": axis}
    for name in ("largest", "sorted"):
        if draw.chance(0.3):
            attributes[name] = draw.integer(0, 1)
    size = shape[attributes.get("axis", -1)]
    return Draft(
        "TopK",
        [draw.floats(shape), indices(draw.integer(1, size))],
        attributes,
        outputs=2,
        types="number",
        opsets=(11, 99),
        constants=frozenset({1}),
    )


def _cumsum(draw: Draw) -> Draft:
    shape = draw.shape(1, 5)
    axis = np.asarray(draw.axis(len(shape)), draw.index_type())
    attributes = {name: draw.integer(0, 1) for name in ("exclusive", "reverse") if draw.chance(0.4)}
    return Draft(
        "CumSum",
        [draw.floats(shape), axis if draw.chance(0.7) else axis.reshape(1)],
        attributes,
        types="number",
        opsets=(11, 99),
        constants=frozenset({1}),
    )


def _normalization(op_type: str, draw: Draw) -> Draft:
    shape = draw.shape(1 if op_type == "LpNormalization" else 2, 4)
    attributes: dict[str, Any] = {}
    if op_type == "LpNormalization":
        attributes = {"axis": draw.axis(len(shape)), "p": draw.integer(1, 2)}
    elif draw.chance(0.5):
        attributes["axes"] = draw.some(range(len(shape)))
    return Draft(op_type, [draw.floats(shape)], attributes, opsets=(9, 99))


def _trilu(draw: Draw) -> Draft:
    inputs: list[Array | None] = [draw.floats(draw.shape(2, 4))]
    if draw.chance(0.6):
        inputs.append(np.asarray(draw.integer(-2, 2), np.int64))
    attributes = {"upper": draw.integer(0, 1)} if draw.chance(0.7) else {}
    return Draft("Trilu", inputs, attributes, types="any", opsets=(14, 99), constants=frozenset({1}))


def _nonzero(draw: Draw) -> Draft:
    return Draft("NonZero", [draw.floats(draw.shape(1, 4))], types="any", opsets=(9, 99), quantizes=False)


def _einsum(draw: Draw) -> Draft:
    size = {letter: draw.size() for letter in "bhijkd"}
    equation = draw.choice(_EQUATIONS)
    size |= {"w": 2}
    shapes = [[2] if "." in term else [] for term in equation.split("->")[0].split(",")]
    for shape, term in zip(shapes, equation.split("->")[0].split(","), strict=True):
        shape.extend(size[letter] for letter in term.replace(".", ""))
    return Draft(
        "Einsum", [draw.floats(shape) for shape in shapes], {"equation": equation}, opsets=(12, 99),
        weights=frozenset({1} if len(shapes) > 1 else ()),
    )  # fmt: skip


OPERATORS: Mapping[str, tuple[Maker, float]] = {
    **{op: (partial(_reduce, op), 1.5) for op in _REDUCTIONS},
    "ReduceMean": (partial(_reduce, "ReduceMean"), 3.0),
    "ReduceSum": (partial(_reduce, "ReduceSum"), 2.5),
    **{op: (partial(_arg, op), 1.5) for op in ("ArgMax", "ArgMin")},
    **{op: (partial(_softmax, op), weight) for op, weight in (("Softmax", 3.0), ("LogSoftmax", 1.5), ("Hardmax", 0.8))},
    **{op: (partial(_normalization, op), 1.0) for op in ("LpNormalization", "MeanVarianceNormalization")},
    "TopK": (_topk, 1.5),
    "CumSum": (_cumsum, 1.5),
    "Trilu": (_trilu, 1.2),
    "NonZero": (_nonzero, 0.8),
    "Einsum": (_einsum, 1.5),
}
