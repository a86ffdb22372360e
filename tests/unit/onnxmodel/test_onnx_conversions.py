"""How QNN handles additions of zero in a QDQ model from another tool."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import numpy_helper

from winml_dag.onnxmodel.description import findings
from winml_dag.onnxmodel.graphfile import read_model

HALF = (0.5, 0)
WHOLE = (1.0, 128)


def model(
    folder: Path, after: tuple[float, int] = HALF, added: str = "3,3,3,3", *, turned: bool = False, dtype: str = "uint8"
) -> Path:
    """Return ``x + added`` in QDQ: x has scale and zero point :data:`WHOLE`, the sum those of *after*."""
    operands = "b_float, x_float" if turned else "x_float, b_float"
    text = f"""<ir_version: 10, opset_import: ["": 21]> g (float[1, 4] x) => (float[1, 4] y)
    <float x_scale = {{{WHOLE[0]}}}, {dtype} x_zero = {{{WHOLE[1]}}}, {dtype}[4] codes = {{{added}}},
     float b_scale = {{1.0}}, {dtype} b_zero = {{3}},
     float y_scale = {{{after[0]}}}, {dtype} y_zero = {{{after[1]}}}> {{
        x_codes = QuantizeLinear (x, x_scale, x_zero)
        x_float = DequantizeLinear (x_codes, x_scale, x_zero)
        b_float = DequantizeLinear (codes, b_scale, b_zero)
        sum = Add ({operands})
        y_codes = QuantizeLinear (sum, y_scale, y_zero)
        y = DequantizeLinear (y_codes, y_scale, y_zero)
    }}"""
    onnx.save(onnx.parser.parse_model(text), folder / "model.onnx")
    return folder / "model.onnx"


def with_numbers_as_bytes(path: Path) -> Path:
    """Store numbers as raw bytes; onnxruntime's tools, like the parser, store zero points as integers."""
    made = onnx.load(path)
    for tensor in made.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    onnx.save(made, path)
    return path


def told(path: Path) -> list[str]:
    return list(findings(path, read_model(path)))


@pytest.mark.parametrize("after", [HALF, (1.0, 0), (0.5, 128)], ids=["both", "zero point", "scale"])
@pytest.mark.parametrize("dtype", ["uint8", "int16"])
def test_an_addition_of_zero_whose_sum_has_numbers_of_its_own_is_named(tmp_path, after, dtype):
    path = model(tmp_path, after, dtype=dtype)
    (sentence,) = told(path)
    assert told(with_numbers_as_bytes(path)) == [sentence]
    assert "QNN computes something else" in sentence
    assert "behind sum." in sentence


@pytest.mark.parametrize(
    "given",
    [{"after": WHOLE}, {"added": "3,3,4,3"}, {"turned": True}],
    ids=["same numbers", "not zero", "zero first"],
)
def test_what_qnn_computes_rightly_is_passed_over(tmp_path, given):
    path = model(tmp_path, **given)
    assert told(path) == told(with_numbers_as_bytes(path)) == []
