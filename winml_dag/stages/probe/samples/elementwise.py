"""Operators that work element by element or along axes: arithmetic, comparisons, reductions, softmax, sorting."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from winml_dag.stages.probe.onenode import Array
from winml_dag.stages.probe.samples.draft import Draft, Draw, Maker, indices

# Unary operators on floats only, with the ranges in which they are defined.
_UNARY = {
    "Acos": (-0.9, 0.9), "Acosh": (1.1, 3.0), "Asin": (-0.9, 0.9), "Asinh": (-2.0, 2.0), "Atan": (-2.0, 2.0),
    "Atanh": (-0.9, 0.9), "Ceil": (-4.0, 4.0), "Cos": (-2.0, 2.0), "Cosh": (-2.0, 2.0), "Elu": (-2.0, 2.0),
    "Exp": (-2.0, 2.0), "Floor": (-4.0, 4.0), "HardSigmoid": (-4.0, 4.0), "HardSwish": (-4.0, 4.0),
    "IsInf": (-1.0, 1.0), "LeakyRelu": (-2.0, 2.0), "Log": (0.1, 3.0), "Mish": (-2.0, 2.0), "Reciprocal": (0.5, 3.0),
    "Round": (-4.0, 4.0), "Selu": (-2.0, 2.0), "Celu": (-2.0, 2.0), "Shrink": (-2.0, 2.0), "Sigmoid": (-4.0, 4.0),
    "Sin": (-2.0, 2.0), "Sinh": (-2.0, 2.0), "Softplus": (-2.0, 2.0), "Softsign": (-2.0, 2.0), "Sqrt": (0.1, 4.0),
    "Tan": (-1.0, 1.0), "Tanh": (-2.0, 2.0), "ThresholdedRelu": (-2.0, 2.0), "Gelu": (-2.0, 2.0),
    "Swish": (-2.0, 2.0),
}  # fmt: skip
# Unary operators that also take integers.
_UNARY_NUMBERS = ("Abs", "Erf", "IsNaN", "Neg", "Relu", "Sign")
_SINCE = {"Acosh": 9, "Asinh": 9, "Atanh": 9, "Celu": 12, "Cosh": 9, "Erf": 9, "Gelu": 20, "HardSwish": 14,
          "IsInf": 10, "IsNaN": 9, "Mish": 18, "Round": 11, "Shrink": 9, "Sign": 9, "Sinh": 9, "Swish": 24,
          "ThresholdedRelu": 10, "Mod": 10, "GreaterOrEqual": 12, "LessOrEqual": 12, "BitShift": 11,
          "BitwiseAnd": 18, "BitwiseOr": 18, "BitwiseXor": 18, "CastLike": 15}  # fmt: skip
_ATTRIBUTES = {"Elu": ("alpha",), "LeakyRelu": ("alpha",), "Celu": ("alpha",), "Selu": ("alpha", "gamma"),
               "ThresholdedRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "Swish": ("alpha",)}  # fmt: skip
_ARITHMETIC = ("Add", "Sub", "Mul", "Div")
_COMPARISONS = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual")
_OF_BITS = ("BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor")
_MICROSOFT = ("Gelu", "FastGelu", "QuickGelu", "BiasGelu")


def _unary(op_type: str, draw: Draw) -> Draft:
    least, most = _UNARY.get(op_type, (-2.0, 2.0))
    attributes: dict[str, Any] = {
        name: draw.number(0.05, 1.5) for name in _ATTRIBUTES.get(op_type, ()) if draw.chance(0.6)
    }
    if op_type == "Gelu" and draw.chance(0.6):
        attributes["approximate"] = draw.choice(("none", "tanh"))
    if op_type == "IsInf" and draw.chance(0.4):
        attributes["detect_positive"] = draw.integer(0, 1)
    return Draft(
        op_type,
        [draw.floats(draw.shape(0, 6), least, most)],
        attributes,
        types="number" if op_type in _UNARY_NUMBERS else "float",
        opsets=(_SINCE.get(op_type, 7), 99),
    )


def stretched(draw: Draw, *, most_rank: int = 5) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes that broadcast: equal, one a scalar, one with fewer axes, or with sizes of one."""
    whole = draw.shape(0, most_rank)
    kind = draw.weighted([("equal", 3.0), ("scalar", 2.0), ("suffix", 2.0), ("ones", 2.0), ("both", 1.0)])
    other = whole
    if kind == "scalar":
        other = () if draw.chance(0.6) else (1,)
    elif kind == "suffix":
        other = whole[draw.integer(0, len(whole)) :]
    elif kind == "ones":
        other = tuple(1 if draw.chance(0.5) else size for size in whole)
    elif kind == "both":
        other = tuple(1 if draw.chance(0.5) else size for size in whole)
        whole = tuple(1 if draw.chance(0.3) and size != 1 else mine for mine, size in zip(whole, other, strict=True))
    return (other, whole) if draw.chance(0.2) else (whole, other)


def _binary(op_type: str, draw: Draw) -> Draft:
    one, other = stretched(draw)
    attributes: dict[str, Any] = {}
    least = 0.5 if op_type in ("Div", "Pow", "Mod") else -2.0
    types, quantizes = "number", op_type in ("Add", "Sub", "Mul", "Div", "Pow", "PRelu")
    inputs: list[Array | None] = [draw.floats(one, 0.1 if op_type == "Pow" else -2.0), draw.floats(other, least)]
    if op_type == "PRelu":
        whole, slope = (one, other) if len(one) >= len(other) else (other, one)
        last = whole[len(whole) - len(slope) :]
        slope = tuple(1 if mine == 1 else size for size, mine in zip(slope, last, strict=True))
        inputs = [draw.floats(whole), draw.floats(slope, 0.1, 1.0)]
    if op_type == "Mod" and draw.chance(0.5):
        attributes["fmod"] = 1
    if op_type == "BitShift":
        kind = draw.choice(("uint8", "uint16", "uint32", "uint64"))
        inputs = [draw.integers(one, 0, 9, kind), draw.integers(other, 0, 3, kind)]
        attributes["direction"] = draw.choice(("LEFT", "RIGHT"))
    elif op_type.startswith("Bitwise"):
        kind = draw.choice(("int32", "int64", "uint8", "int8"))
        inputs = [draw.integers(one, 0, 9, kind), draw.integers(other, 0, 9, kind)]
    elif op_type in ("And", "Or", "Xor"):
        inputs = [draw.truths(one), draw.truths(other)]
    elif op_type == "Equal":
        types = "any"
    return Draft(
        op_type,
        inputs,
        attributes,
        types=types,
        opsets=(_SINCE.get(op_type, 7), 99),
        weights=frozenset({1} if draw.chance(0.85) else {0}),
        quantizes=quantizes or op_type in (*_COMPARISONS, "Equal"),
    )


def _many(op_type: str, draw: Draw) -> Draft:
    one, other = stretched(draw, most_rank=4)
    shapes = [one, other, *([one] if draw.chance(0.4) else [])][: 1 if draw.chance(0.1) else 3]
    return Draft(
        op_type,
        [draw.floats(shape) for shape in shapes],
        types="float" if op_type in ("Mean", "Sum") else "number",
        opsets=(8, 99),
        weights=frozenset({1}),
    )


def _where(draw: Draw) -> Draft:
    one, other = stretched(draw, most_rank=4)
    condition = draw.choice((one, other, ()))
    return Draft(
        "Where",
        [draw.truths(condition), draw.floats(one), draw.floats(other)],
        types="any",
        opsets=(9, 99),
        weights=frozenset(draw.some((0, 1, 2), 0)),
    )


def _clip(draw: Draw) -> Draft:
    shape = draw.shape(0, 5)
    if draw.chance(0.1):
        bounds = {"min": draw.number(-1.0, 0.0), "max": draw.number(0.1, 6.0)}
        return Draft("Clip", [draw.floats(shape)], bounds, opsets=(6, 10))
    low, high = np.asarray(draw.choice((-1.0, 0.0)), np.float32), np.asarray(draw.choice((1.0, 6.0)), np.float32)
    given: list[Array | None] = [low if draw.chance(0.8) else None, high if draw.chance(0.8) else None]
    return Draft("Clip", [draw.floats(shape), *given], types="number", opsets=(11, 99), constants=frozenset({1, 2}))


# ONNX's numbers of the types.
_CAST_TYPES = (1, 1, 1, 10, 6, 7, 7, 9, 2, 3, 11)


def _cast(draw: Draw) -> Draft:
    return Draft(
        "Cast", [draw.floats(draw.shape(0, 5))], {"to": draw.choice(_CAST_TYPES)}, types="any", quantizes=False
    )


def _cast_like(draw: Draw) -> Draft:
    like = np.ones((1,), draw.choice(("float32", "float16", "int32", "int64", "bool")))
    return Draft(
        "CastLike",
        [draw.floats(draw.shape(0, 5)), like],
        types="any",
        opsets=(15, 99),
        keeps=frozenset({1}),
        weights=frozenset({1}),
        quantizes=False,
    )


def _not(op_type: str, draw: Draw) -> Draft:
    shape = draw.shape(0, 5)
    if op_type == "Not":
        return Draft(op_type, [draw.truths(shape)], opsets=(7, 99))
    return Draft(op_type, [draw.integers(shape, 0, 9, draw.choice(("int32", "int64", "uint8")))], opsets=(18, 99))


def _microsoft(op_type: str, draw: Draw) -> Draft:
    shape = draw.shape(1, 4)
    inputs: list[Array | None] = [draw.floats(shape)]
    if op_type == "BiasGelu" or (op_type == "FastGelu" and draw.chance(0.5)):
        inputs.append(draw.floats(shape[-1:]))
    attributes = {"alpha": draw.number(1.0, 2.0)} if op_type == "QuickGelu" and draw.chance(0.5) else {}
    return Draft(op_type, inputs, attributes, domain="com.microsoft", weights=frozenset({1}))


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
    **{op: (partial(_unary, op), 1.0) for op in _UNARY},
    **{op: (partial(_unary, op), 1.2) for op in _UNARY_NUMBERS},
    **{op: (partial(_binary, op), 4.0) for op in _ARITHMETIC},
    **{op: (partial(_binary, op), 1.5) for op in (*_COMPARISONS, "Equal", "Pow", "Mod", "PRelu")},
    **{op: (partial(_binary, op), 0.8) for op in ("And", "Or", "Xor", *_OF_BITS)},
    **{op: (partial(_many, op), 1.0) for op in ("Max", "Min", "Mean", "Sum")},
    **{op: (partial(_not, op), 0.6) for op in ("Not", "BitwiseNot")},
    **{f"com.microsoft/{op}": (partial(_microsoft, op), 0.6) for op in _MICROSOFT},
    "Where": (_where, 2.5),
    "Clip": (_clip, 2.0),
    "Cast": (_cast, 3.0),
    "CastLike": (_cast_like, 0.8),
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
}  # fmt: skip
