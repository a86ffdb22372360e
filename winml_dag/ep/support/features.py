"""The features of a case that may decide: measurements are split by one feature at a time.

The names are shown to users (``the type of input 0 is float16``), and the order matters: of two features that separate
measurements equally well, the first is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from winml_dag.ep.support.case import AttributeValue, Case, Operand

# A text is compared for equality, a number also ordered. ABSENT: the case has no such feature; UNKNOWN: the file does
# not have it.
Feature = str | float
ABSENT = ""
UNKNOWN = "?"
SAME = "that of input 0"

# Operators with any number of inputs are distinguished by their first ones.
_MOST_INPUTS = 8
_OF_TYPES = ("quantized", "activations", "weights", "per channel", "type of input 0", "float", "bits", "dynamic")
_AXES = ("axis", "axes", "batch_axis", "time_axis")
_CONVOLUTIONS = ("Conv", "ConvTranspose")
_SOFTMAX = ("Softmax", "LogSoftmax", "Hardmax")
_LAST_AXIS_FROM = 13  # the opset in which their default axis became the last one
# ONNX's numbers for types, whose order has no meaning.
_TYPES: Mapping[AttributeValue, str] = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "string", 9: "bool",
    10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 16: "bfloat16",
}  # fmt: skip


def features(case: Case, defaults: Mapping[str, AttributeValue]) -> dict[str, Feature]:
    """Return all features of *case*; attributes that it omits have the values in *defaults*."""
    found = _quantized(case)
    given = case.inputs[:_MOST_INPUTS]
    for number in range(len(given)):
        found[f"type of input {number}"] = _type(given, number)
    found |= _kind(given)
    found["opset"] = case.opset
    found["dynamic"] = _any(_is_dynamic(operand) for operand in given if operand is not None)
    found["empty"] = _any(_is_empty(operand) for operand in given if operand is not None)
    for number, operand in enumerate(given):
        if operand is not None:
            found[f"constant input {number}"] = int(operand.constant)
    for number, operand in enumerate(given):
        if operand is not None:
            found[f"rank of input {number}"] = UNKNOWN if operand.dims is None else len(operand.dims)
    found["inputs"] = sum(operand is not None for operand in case.inputs)
    found["outputs"] = sum(operand is not None for operand in case.outputs)
    attributes = {**defaults, **dict(case.attributes)}
    rank = _rank(given)
    if case.op_type == "Transpose" and rank is not None:
        attributes.setdefault("perm", tuple(reversed(range(rank))))
    elif case.op_type in _SOFTMAX:
        attributes.setdefault("axis", 1 if case.opset < _LAST_AXIS_FROM else -1)
    elif case.op_type == "Cast" and "to" in attributes:
        attributes["to"] = _TYPES.get(attributes["to"], str(attributes["to"]))
    for name, value in sorted(attributes.items()):
        found |= _attribute(name, value, rank)
    for number, operand in enumerate(given):
        if operand is not None and operand.constant:
            found |= _values(f"values of input {number}", operand, rank)
    for number, operand in enumerate(given[:3]):
        if operand is not None and operand.dims is not None:
            found |= _sizes(f"input {number}", operand.dims)
    if len(given) > 1:
        found |= _relation(given[0], given[1])
    found |= _length_of_axis(attributes, given)
    if case.op_type in _CONVOLUTIONS:
        found |= _groups(attributes, given)
    elif case.op_type == "Resize":
        found |= _scale(given)
    elif case.op_type == "Gemm":
        found |= _bias(attributes, given)
    return {**found, **_rank_of_result(case, found)}


def is_binding(name: str) -> bool:
    """Return whether measurements of other values of the feature *name* are no evidence."""
    return name in ("activations", "weights", "dynamic") or name.startswith("type of") or name.endswith(" text")


def is_first(name: str) -> bool:
    """Return whether providers select their kernels by the feature *name* before they check anything else."""
    return name in _OF_TYPES or name.startswith("type of")


def is_size(name: str) -> bool:
    """Return whether *name* is a size of an input or a value of a constant: there are many, most of them random."""
    return "size" in name or "elements" in name or "values of" in name


def of_types(found: Mapping[str, Feature]) -> dict[str, Feature]:
    """Return the features of a case that every operator has: its types, and whether sizes are open."""
    return {name: found[name] for name in _OF_TYPES if name in found}


def _quantized(case: Case) -> dict[str, Feature]:
    types = case.quantized
    if types is None:
        return {"quantized": 0, "activations": ABSENT, "weights": ABSENT}
    return {
        "quantized": 1,
        "activations": types.activations,
        "weights": types.weights,
        "per channel": int(types.per_channel),
    }


def _kind(given: Sequence[Operand | None]) -> dict[str, Feature]:
    """Return what the type of the first input has in common with others."""
    first = given[0] if given else None
    if first is None or not first.dtype:
        return {}
    bits = first.dtype.lstrip("abcdefghijklmnopqrstuvwxyz_")
    return {"float": int("float" in first.dtype), "bits": int(bits) if bits.isdecimal() else 8}


def _type(given: Sequence[Operand | None], number: int) -> Feature:
    """Return the type feature; most operators require one type for all inputs, so one feature is enough for all."""
    operand, first = given[number], given[0]
    if operand is None:
        return ABSENT
    if number and first is not None and operand.dtype == first.dtype:
        return SAME if operand.dtype else UNKNOWN
    return operand.dtype or UNKNOWN


def _any(answers: Iterator[bool | None]) -> Feature:
    known = list(answers)
    return 1 if True in known else UNKNOWN if None in known else 0


def _is_dynamic(operand: Operand) -> bool | None:
    return None if operand.dims is None else None in operand.dims


def _is_empty(operand: Operand) -> bool | None:
    return None if operand.dims is None else 0 in operand.dims


def _rank(given: Sequence[Operand | None]) -> int | None:
    first = given[0] if given else None
    return None if first is None or first.dims is None else len(first.dims)


def _attribute(name: str, value: AttributeValue, rank: int | None) -> dict[str, Feature]:
    if isinstance(value, str):
        return {f"{name} text": value} if name != "equation" else _equation(value)
    if isinstance(value, tuple):
        if any(isinstance(each, str) for each in value):
            return {f"{name} text": " ".join(map(str, value))}
        return _numbers(name, [each for each in value if not isinstance(each, str)], rank)
    return {name: value, **(_axis(name, value, rank) if name in _AXES else {})}


def _numbers(name: str, values: Sequence[float], rank: int | None) -> dict[str, Feature]:
    found: dict[str, Feature] = {f"count of {name}": len(values)}
    if values:
        found |= {f"least of {name}": min(values), f"most of {name}": max(values)}
        found |= {f"{name}[{number}]": value for number, value in enumerate(values[:6])}
        if name in _AXES:
            found |= _axis(name, values[0], rank)
    return found


def _axis(name: str, value: float, rank: int | None) -> dict[str, Feature]:
    """Count an axis from both ends, because providers treat the first and the last specially."""
    if rank is None:
        return {f"{name} from the front": UNKNOWN, f"{name} from the end": UNKNOWN}
    front = value + rank if value < 0 else value
    return {f"{name} from the front": front, f"{name} from the end": rank - front}


def _equation(text: str) -> dict[str, Feature]:
    """Return the features of an Einsum equation: letters are arbitrary, so only their pattern counts."""
    names: dict[str, str] = {}
    plain = "".join(
        names.setdefault(sign, chr(ord("a") + len(names))) if sign.isalpha() else sign for sign in text if sign != " "
    )
    return {"equation": plain, "terms": plain.count(",") + 1, "repeats": int(_repeats(plain))}


def _repeats(equation: str) -> bool:
    terms = equation.replace("->", ",").replace("...", "").split(",")
    return any(len(set(term)) != len(term) for term in terms)


def _values(name: str, operand: Operand, rank: int | None) -> dict[str, Feature]:
    if operand.values is None:
        return {f"count of {name}": UNKNOWN if operand.dims is None or None in operand.dims else _count(operand.dims)}
    found = _numbers(name, operand.values, rank)
    if len(operand.values) == 1 and rank is not None:
        found |= _axis(name, operand.values[0], rank)
    return found


def _count(dims: Sequence[int | None]) -> int:
    return prod(dim for dim in dims if dim is not None)


def _sizes(name: str, dims: Sequence[int | None]) -> dict[str, Feature]:
    if not dims:
        return {}
    found: dict[str, Feature] = {f"{name} size {number}": _size(dim) for number, dim in enumerate(dims[:6])}
    found[f"{name} last size"] = _size(dims[-1])
    found[f"{name} elements"] = UNKNOWN if None in dims else _count(dims)
    return found


def _rank_of_result(case: Case, found: Mapping[str, Feature]) -> dict[str, Feature]:
    """Return the result's rank if it differs from that of the first input: providers have a maximum rank."""
    if case.op_type == "Unsqueeze":
        axes = found.get("count of axes", found.get("input 1 elements", UNKNOWN))
        return _sum(found.get("rank of input 0", UNKNOWN), axes, 0)
    if case.op_type == "Gather":
        return _sum(found.get("rank of input 0", UNKNOWN), found.get("rank of input 1", UNKNOWN), -1)
    return {}


def _sum(one: Feature, other: Feature, more: int) -> dict[str, Feature]:
    if isinstance(one, str) or isinstance(other, str):
        return {"rank of the result": UNKNOWN}
    return {"rank of the result": one + other + more}


def _length_of_axis(attributes: Mapping[str, AttributeValue], given: Sequence[Operand | None]) -> dict[str, Feature]:
    """Return the size of the axis that the operator works on."""
    axis, first = attributes.get("axis"), given[0] if given else None
    if not isinstance(axis, int) or first is None:
        return {}
    if first.dims is None:
        return {"length of axis": UNKNOWN}
    rank = len(first.dims)
    return {"length of axis": _size(first.dims[axis])} if -rank <= axis < rank else {}


def _groups(attributes: Mapping[str, AttributeValue], given: Sequence[Operand | None]) -> dict[str, Feature]:
    """Return whether each channel is its own group."""
    group, first = attributes.get("group"), given[0] if given else None
    if not isinstance(group, int) or first is None:
        return {}
    channels = first.dims[1] if first.dims is not None and len(first.dims) > 1 else None
    return {"channels are groups": UNKNOWN if channels is None else int(1 < channels == group)}


def _bias(attributes: Mapping[str, AttributeValue], given: Sequence[Operand | None]) -> dict[str, Feature]:
    """Return whether the bias has a number for each column, or fewer that are broadcast."""
    weights, bias = (given[at] if len(given) > at else None for at in (1, 2))
    if bias is None:
        return {}
    if weights is None or not weights.dims or bias.dims is None:
        return {"bias is spread": UNKNOWN}
    columns, count = weights.dims[0 if attributes.get("transB") else -1], bias.dims[-1] if bias.dims else 1
    return {"bias is spread": UNKNOWN if columns is None or count is None else int(count < columns)}


def _scale(given: Sequence[Operand | None]) -> dict[str, Feature]:
    """Return the factor by which the last axis grows, whether given by scales or by sizes."""
    scales, sizes = (given[at] if len(given) > at else None for at in (2, 3))
    first = given[0] if given else None
    data = first.dims if first is not None else None
    scale: float | None = None
    if scales is not None and scales.values:
        scale = scales.values[-1]
    elif sizes is not None and sizes.values and data and data[-1]:
        scale = sizes.values[-1] / data[-1]
    if scale is None:
        return {"scale": UNKNOWN}
    return {"scale": round(scale, 4), "scale is whole": int(scale == round(scale))}


def _size(dim: int | None) -> Feature:
    return UNKNOWN if dim is None else dim


def _relation(first: Operand | None, second: Operand | None) -> dict[str, Feature]:
    """Return how the shapes of the first two inputs relate: which one is broadcast, and the difference of ranks."""
    if first is None or second is None:
        return {}
    if first.dims is None or second.dims is None:
        return {"stretched": UNKNOWN, "rank difference": UNKNOWN}
    one, other = first.dims, second.dims
    pairs = list(zip(reversed(one), reversed(other), strict=False))
    left = any(a == 1 and b not in (1, None) for a, b in pairs) or len(one) < len(other)
    right = any(b == 1 and a not in (1, None) for a, b in pairs) or len(other) < len(one)
    return {"stretched": left + 2 * right, "rank difference": len(one) - len(other)}
