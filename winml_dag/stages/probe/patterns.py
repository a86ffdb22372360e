"""Measuring patterns, groups of nodes that a provider takes as one although it does not take each of them:
``python -m winml_dag.stages.probe.patterns --ep qnn``.

QNN takes a GELU that is spelled out with Erf, which it has no operator for. In integers it does not.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from winml_dag.ep.options import complete_options
from winml_dag.ep.registry import Target, find_ep
from winml_dag.ep.session import register
from winml_dag.ep.support.case import Case, Operand, Quantized
from winml_dag.ep.support.tables import PATTERN, patterns_name
from winml_dag.ep.support.verdict import Outcome
from winml_dag.stages.probe.attempt import attempt
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


def _gelu(shape: tuple[int, ...], opset: int, inner: str, outer: str) -> onnx.ModelProto:
    dims = ", ".join(map(str, shape))
    return onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> gelu (float[{dims}] x) => (float[{dims}] y) '
        f"<{_CONSTANTS}> {{ {inner} f = Erf(e) s = Add(f, one) {outer} }}"
    )


def _case(shape: tuple[int, ...], opset: int, integers: str) -> Case:
    value = Operand("float32", shape)
    quantized = Quantized(integers, "") if integers else None
    return Case("GeluPattern", PATTERN, opset, (value,), (value,), (("form", "Erf"),), quantized)


def rows(target: Target) -> Iterator[tuple[Case, Outcome]]:
    """What *target* does with each form of a pattern: of several forms of one case, the worst."""
    options = complete_options(target, {})
    for shape, opset in product(_SHAPES, _OPSETS):
        feeds = {"x": np.random.default_rng(0).normal(size=shape).astype(np.float32)}
        models = [_gelu(shape, opset, inner, outer) for inner, outer in product(_INNER, _OUTER)]
        for integers in ("", *_INTEGERS):
            made = models if not integers else [_quantized(models[0], feeds, integers)]
            outcomes = [attempt(model.SerializeToString(), feeds, target, options) for model in made]
            yield _case(shape, opset, integers), min(outcomes, key=lambda each: (each.ran, each.compiled, each.agrees))


def _quantized(model: onnx.ModelProto, feeds: dict[str, Any], integers: str) -> onnx.ModelProto:
    """*model* with conversions around every node."""
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
