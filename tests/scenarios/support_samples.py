"""A model with a decomposed GELU, and support tables for a target that lacks an operator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from winml_dag.ep.support import Case, Outcome
from winml_dag.ep.support.table import About, rows_of, table_bytes
from winml_dag.onnxmodel.dataflow import Dataflow
from winml_dag.onnxmodel.graphfile import read_model
from winml_dag.stages.analyze.judging import case_of

_ABOUT = About("CPUExecutionProvider", "cpu", "1", "", "1", "1", {}, emulated=False, opset=21)


def with_gelu(path: Path) -> None:
    """Save ``logits = gelu(x W1) W2``, with a decomposed GELU."""
    random = np.random.default_rng(0)
    weights = {"w1": random.normal(size=(8, 8)), "w2": random.normal(size=(8, 4))}
    constants = {**weights, "root": np.sqrt(2.0), "one": 1.0, "half": 0.5}
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"], name="first"),
        helper.make_node("Div", ["h", "root"], ["d"], name="scale"),
        helper.make_node("Erf", ["d"], ["e"], name="erf"),
        helper.make_node("Add", ["e", "one"], ["a"], name="shift"),
        helper.make_node("Mul", ["h", "a"], ["m"], name="gate"),
        helper.make_node("Mul", ["m", "half"], ["g"], name="halve"),
        helper.make_node("MatMul", ["g", "w2"], ["logits"], name="second"),
    ]
    graph = helper.make_graph(
        nodes,
        "gelu",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [4, 4])],
        [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in constants.items()],
    )
    # Below opset 20 the standard has no Gelu, and nothing fuses one by default.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    # With the shapes of all values, which the table is made from.
    onnx.save(onnx.shape_inference.infer_shapes(model), path)


def _cases(path: Path) -> Iterable[Case]:
    model = read_model(path, values=True)
    scope = Dataflow(model)
    return [case_of(node, scope) for node in model.graph.nodes]


def write_table(path: Path, models: Sequence[Path], fails: str) -> None:
    """Write the table of a CPU that runs everything in *models* except the operator *fails* to *path*."""
    cases = [case for model in models for case in _cases(model)]
    # Enough measurements for a failure to count.
    rows = [(case, Outcome(case.op_type != fails, case.op_type != fails)) for case in cases for _ in range(3)]
    path.write_bytes(table_bytes(_ABOUT, rows_of(rows)))
