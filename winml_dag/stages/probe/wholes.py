"""Measures patterns: groups of nodes that a provider takes together, though not each by itself.

Run with ``python -m winml_dag.stages.probe.wholes --ep qnn``. QNN takes a GELU expanded with Erf, an operator that it
does not have, but not in integers. It takes a Reshape, Transpose and Reshape through six dimensions if one of them is
1, and none of the three alone.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx

from winml_dag.ep.provider import complete_options
from winml_dag.ep.registry import Target, find_ep
from winml_dag.ep.session import register
from winml_dag.ep.support import patterns_name
from winml_dag.ep.support.case import Case, Operand, Outcome, Quantized
from winml_dag.ep.support.table import PATTERN
from winml_dag.stages.probe.attempt import attempt
from winml_dag.stages.probe.cases import turned_attributes
from winml_dag.stages.probe.generate import about_target, table_of

_SHAPES = ((32,), (8, 16), (1, 16, 32), (1, 2, 8, 16), (1, 2, 3, 4, 8))
_OPSETS = (13, 17, 21)
_CONSTANTS = "float half = {0.5}, float one = {1}, float root = {1.4142135}, float inverse = {0.70710678}"
_INNER = ("e = Div(x, root)", "e = Mul(x, inverse)")
_OUTER = (
    "m = Mul(x, s) y = Mul(m, half)",
    "m = Mul(x, half) y = Mul(m, s)",
    "m = Mul(s, half) y = Mul(x, m)",
)
_INTEGERS = ("uint8", "uint16")
_TURNED = 60


def _gelu(shape: tuple[int, ...], opset: int, inner: str, outer: str) -> onnx.ModelProto:
    dims = ", ".join(map(str, shape))
    return onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> gelu (float[{dims}] x) => (float[{dims}] y) '
        f"<{_CONSTANTS}> {{ {inner} f = Erf(e) s = Add(f, one) {outer} }}"
    )


@dataclass(frozen=True)
class _Use:
    """A pattern with values: its possible forms, and its inputs."""

    case: Case
    forms: tuple[onnx.ModelProto, ...]
    feeds: dict[str, Any]


def _gelus() -> Iterator[_Use]:
    for shape, opset in product(_SHAPES, _OPSETS):
        value = Operand("float32", shape)
        case = Case("GeluPattern", PATTERN, opset, (value,), (value,), (("form", "Erf"),))
        forms = tuple(_gelu(shape, opset, inner, outer) for inner, outer in product(_INNER, _OUTER))
        yield _Use(case, forms, {"x": np.random.default_rng(0).normal(size=shape).astype(np.float32)})


def _turned(random: Random) -> _Use:
    """A random Reshape, Transpose and Reshape through five to seven dimensions."""
    rank = random.choice((5, 6, 6, 6, 7))
    split = [random.choice((1, 2, 2, 3, 4)) for _ in range(rank)]
    order = random.sample(range(rank), rank)
    if random.random() < 0.5:  # an axis of size 1 that keeps its position
        place = random.randrange(rank)
        split[place], other = 1, order.index(place)
        order[place], order[other] = order[other], order[place]
    first, last = _joined(split, random), _joined([split[axis] for axis in order], random)
    opset = random.choice(_OPSETS)
    names = ", ".join(
        f"int64[{len(dims)}] {name} = {{{_text(dims)}}}" for name, dims in (("up", split), ("down", last))
    )
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> turned (float[{_text(first)}] x) => (float[{_text(last)}] y) '
        f"<{names}> {{ r = Reshape(x, up) t = Transpose <perm = {order}> (r) y = Reshape(t, down) }}"
    )
    case = Case(
        "ReshapeTransposeReshapeOverlyHighDim",
        PATTERN,
        opset,
        (Operand("float32", tuple(first)),),
        (Operand("float32", tuple(last)),),
        turned_attributes(tuple(split), tuple(order)),
    )
    return _Use(case, (model,), {"x": np.random.default_rng(0).normal(size=first).astype(np.float32)})


def _joined(dims: list[int], random: Random) -> list[int]:
    """Merge some neighbors in *dims*, so that at most four are left."""
    left = list(dims)
    while len(left) > random.randint(2, 4):
        place = random.randrange(len(left) - 1)
        left[place : place + 2] = [left[place] * left[place + 1]]
    return left


def _text(dims: Sequence[int]) -> str:
    return ", ".join(map(str, dims))


def rows(target: Target) -> Iterator[tuple[Case, Outcome]]:
    """Yield each form of a pattern with *target*'s outcome; the worst if one case has several forms."""
    options = complete_options(target, {})
    random = Random(0)
    for use in (*_gelus(), *(_turned(random) for _ in range(_TURNED))):
        for integers in ("", *_INTEGERS):
            made = use.forms if not integers else (_quantized(use.forms[0], use.feeds, integers),)
            outcomes = [attempt(model.SerializeToString(), use.feeds, target, options) for model in made]
            quantized = Quantized(integers, "") if integers else None
            worst = min(outcomes, key=lambda each: (each.ran, each.compiled, each.agrees))
            yield replace(use.case, quantized=quantized), worst


def _quantized(model: onnx.ModelProto, feeds: dict[str, Any], integers: str) -> onnx.ModelProto:
    """Return *model* with conversions around every node."""
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize
    from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config

    class Once(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left = [feeds]

        def get_next(self) -> dict[str, Any] | None:
            return self._left.pop() if self._left else None

    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "before.onnx", Path(folder) / "after.onnx"
        onnx.save(model, before)
        kind = {"uint8": QuantType.QUInt8, "uint16": QuantType.QUInt16}[integers]
        quantize(before, after, get_qnn_qdq_config(before, Once(), activation_type=kind))
        return onnx.load(after)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure which patterns an execution provider takes as a whole.")
    parser.add_argument("--ep", required=True, help="such as qnn")
    parser.add_argument("--device", help="by default the provider's first")
    parser.add_argument("--output", type=Path, help="the table; by default such as qnn_npu_patterns.support")
    given = parser.parse_args()
    ep = find_ep(given.ep)
    target = Target(ep, given.device or ep.devices[0])
    register(ep)
    found = list(rows(target))
    output = given.output or Path(patterns_name(target))
    output.write_bytes(table_of(about_target(target, len(found), max(_OPSETS)), found))
    print(f"{output}: {len(found)} cases.")


if __name__ == "__main__":
    main()
