"""Measuring an execution provider for a table: what one measurement says, and which forms of a test are measured."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from winml_dag.ep.registry import CPU, Target
from winml_dag.ep.support import Operand, Outcome
from winml_dag.stages.opsupport import agree, forms, measure

ON_CPU = Target(CPU, "cpu")
X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


def model(types: str, body: str) -> onnx.ModelProto:
    text = (
        f'<ir_version: 8, opset_import: ["": 17]> g ({types}[2, 3] x, {types}[3] b) => ({types}[2, 3] y) {{ {body} }}'
    )
    return onnx.parser.parse_model(text)


@pytest.mark.parametrize(
    ("types", "body", "outcome"),
    [
        ("float", "y = Add(x, b)", Outcome(compiled=True, ran=True)),
        ("double", "y = Erf(x)", Outcome(compiled=False, ran=False)),
        ("float", "a = Add(x, b) y = Relu(a)", None),
    ],
    ids=["runs", "no kernel", "two operators"],
)
def test_one_operator_is_measured_by_running_it(types: str, body: str, outcome: Outcome | None) -> None:
    inputs = [X.astype(np.float64 if types == "double" else np.float32), np.ones(3, X.dtype)]
    found = measure(model(types, body).SerializeToString(), inputs, ON_CPU)
    assert (found and found[1]) == outcome


def test_a_test_is_measured_with_constants_and_with_an_open_size_too() -> None:
    found = list(forms(model("float", "y = Add(x, b)"), [X, np.ones(3, np.float32)]))
    assert [len(inputs) for _, inputs in found] == [2, 1, 2]
    cases = [measure(made.SerializeToString(), inputs, ON_CPU) for made, inputs in found]
    assert [case and case[0].inputs for case in cases] == [
        (Operand("float32", (2, 3)), Operand("float32", (3,))),
        (Operand("float32", (2, 3)), Operand("float32", (3,), constant=True)),
        (Operand("float32", (None, 3)), Operand("float32", (3,))),
    ]
    assert numpy_helper.to_array(found[1][0].graph.initializer[0]).tolist() == [1, 1, 1]


def test_results_agree_within_what_half_precision_allows() -> None:
    wanted = np.linspace(-1, 1, 100, dtype=np.float32)
    assert agree([wanted * 1.01], [wanted])
    assert not agree([wanted + 0.5], [wanted])
    assert not agree([wanted[:50]], [wanted])
    assert agree([np.full(3, 7.0)], [np.full(3, np.inf)])  # no number to compare with
