"""QNN computes averages that exclude padding wrongly in half precision; compiled by this package they are correct."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from ep_stage_runs import compile_config, requires_qnn, run_stage
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper

from winml_dag.ep.availability import resolve_target
from winml_dag.ep.provider import complete_options
from winml_dag.ep.session import create_session
from winml_dag.stages.compile import COMPILE
from winml_dag.stages.compiler import count_padding


def pooling(sizes: Sequence[int], opset: int = 19, **attributes: object) -> ModelProto:
    shape = [1, 4, *sizes]
    graph = helper.make_graph(
        [helper.make_node("AveragePool", ["x"], ["y"], **attributes)],
        "pooling",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def run(model: ModelProto, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": x})
    return found


@st.composite
def windows(draw: st.DrawFn) -> tuple[list[int], dict[str, object]]:
    rank = draw(st.sampled_from([1, 2]))
    each = st.integers
    kernel = [draw(each(1, 4)) for _ in range(rank)]
    pads = [draw(each(0, kernel[axis % rank] - 1)) for axis in range(2 * rank)]
    sizes = [draw(each(9, 14)) for _ in range(rank)]
    more = {"strides": [draw(each(1, 3)) for _ in range(rank)], "dilations": [draw(each(1, 2)) for _ in range(rank)]}
    return sizes, {"kernel_shape": kernel, "pads": pads, **more}


@given(windows())
def test_the_result_stays_what_it_is(drawn: tuple[list[int], dict[str, object]]) -> None:
    sizes, attributes = drawn
    model = pooling(sizes, **attributes)
    x = np.random.default_rng(0).standard_normal((1, 4, *sizes)).astype(np.float32)
    expected = run(model, x)
    assert count_padding(model) == any(attributes["pads"])  # type: ignore[call-overload]
    np.testing.assert_allclose(run(model, x), expected, rtol=1e-5, atol=1e-6)
    assert not count_padding(model)


@pytest.mark.parametrize("attributes", [{"count_include_pad": 1}, {"ceil_mode": 1}])
def test_what_is_right_or_not_known_stays(attributes: dict[str, object]) -> None:
    assert not count_padding(pooling([9, 9], kernel_shape=[3, 3], pads=[1, 1, 1, 1], **attributes))


@requires_qnn
def test_the_npu_has_the_averages_of_the_cpu(tmp_path: Path) -> None:
    model = pooling([56, 56], opset=17, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    onnx.save(model, tmp_path / "model.onnx")
    compiled = run_stage(
        COMPILE, tmp_path / "run", compile_config(), {"model": {"model.onnx": tmp_path / "model.onnx"}}
    )
    target = resolve_target("qnn", "npu")
    made = next(compiled.outputs.rglob("compiled.onnx"))
    session = create_session(made, target, complete_options(target, {}), compiled=True)
    x = (np.random.default_rng(0).standard_normal((1, 4, 56, 56)) + 1).astype(np.float32)
    (found,) = session.run(None, {"x": x})
    np.testing.assert_allclose(found, run(model, x), atol=0.01)
