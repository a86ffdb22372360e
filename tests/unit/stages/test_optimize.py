from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from capability_samples import TOGETHER
from onnx import TensorProto, helper
from optimize_samples import assert_same_results, attention_block, feeds, graph, optimize, outputs

from winml_dag.engine.stage import Workspace
from winml_dag.errors import StageError
from winml_dag.stages.optimize import OptimizeConfig
from winml_dag.stages.optimize.apply import run
from winml_dag.stages.optimize.levels import to_portable_level


def test_portable_level_reduces_nodes_with_equal_results(tmp_path: Path) -> None:
    model = graph(
        """agraph (float[2, 4] x) => (float[2, 4] y) <float[4] a = {1, 2, 3, 4}, float[4] b = {5, 6, 7, 8}>
        { c = Add(a, b) d = Identity(x) e = Mul(d, c) y = Identity(e) }"""
    )
    result = optimize(tmp_path, model)
    assert result.metrics == {"nodes_before": 4, "nodes_after": 1, "applied": {}, "left": {}, "tagged_nodes": 0}
    assert_same_results(result)


@pytest.mark.parametrize(
    ("opset", "body", "operators"),
    [
        (14, "y = HardSwish (x)", {"HardSwish": 1}),
        (14, "h = HardSigmoid <alpha = 0.16666667, beta = 0.5> (x) y = Mul (h, x)", {"HardSwish": 1}),
        (13, "h = HardSigmoid <alpha = 0.16666667, beta = 0.5> (x) y = Mul (x, h)", {"HardSigmoid": 1, "Mul": 1}),
        (14, "h = HardSigmoid <alpha = 0.2, beta = 0.5> (x) y = Mul (x, h)", {"HardSigmoid": 1, "Mul": 1}),
        (
            14,
            "h = HardSigmoid <alpha = 0.16666667, beta = 0.5> (x) m = Mul (x, h) y = Add (m, h)",
            {"HardSigmoid": 1, "Mul": 1, "Add": 1},
        ),
    ],
)
def test_hard_swish_stays_one_operator(tmp_path: Path, opset: int, body: str, operators: dict[str, int]) -> None:
    result = optimize(tmp_path, graph(f"agraph (float[2, 4] x) => (float[2, 4] y) {{ {body} }}", opset))
    assert result.ops == operators
    assert_same_results(result)


def test_all_capabilities_together_give_equal_results(tmp_path: Path) -> None:
    result = optimize(tmp_path, attention_block(), *TOGETHER, standard_domain_only=True)
    applied = {flag for flag, changes in result.metrics["applied"].items() if changes}
    assert applied >= {"clamp_constant_values", "gelu_fusion"}
    assert {node.domain for node in result.model.graph.node} == {""}
    assert [(entry.domain, entry.version) for entry in result.model.opset_import] == [("", 21)]
    assert_same_results(result)


def test_inapplicable_capabilities_change_no_byte(tmp_path: Path) -> None:
    model = graph("agraph (float[2, 4] x) => (float[2, 4] y) <float[4] a = {1, 2, 3, 4}> { y = Mul(x, a) }")
    plain = optimize(tmp_path, model)
    together = optimize(tmp_path, model, *TOGETHER)
    assert together.content == plain.content
    assert not any(together.metrics["applied"].values())
    alone = optimize(tmp_path, attention_block(), "clamp_constant_values")
    both = optimize(
        tmp_path, attention_block(), "clamp_constant_values", "layer_norm_fusion", "remove_isnan_in_attention_mask"
    )
    assert both.content == alone.content


def test_result_loads_with_default_session_settings(tmp_path: Path) -> None:
    """onnxruntime's own file of this model cannot be loaded: two sessions generate the same name."""
    model = graph(
        """agraph (float[1, 6, 8] x) => (float[1, 6, 8] y) <float three = {3}>
        { a = MatMul(x, w) b = Add(a, v) c = Pow(b, three) d = MatMul(c, w) e = Add(d, v) y = Relu(e) }""",
        w=np.eye(8, dtype=np.float32),
        v=np.ones(8, np.float32),
    )
    result = optimize(tmp_path, model)
    names = {name for node in result.model.graph.node for name in (*node.input, *node.output)}
    assert len(names - {"x", "y", "w", "v"}) > 5
    assert not [name for name in names if name.startswith("gemm_")]
    assert_same_results(result)


def test_stale_exporter_shapes_are_replaced(tmp_path: Path) -> None:
    model = attention_block()
    model.graph.value_info.append(helper.make_tensor_value_info("q", TensorProto.FLOAT, [3, 5]))
    model.graph.value_info.append(helper.make_tensor_value_info("gone", TensorProto.FLOAT, [3, 5]))
    model.graph.value_info.append(helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["stale", 6, 6]))
    assert optimize(tmp_path, model).content == optimize(tmp_path, attention_block()).content


def test_unconfirmed_shape_is_dropped(tmp_path: Path) -> None:
    model = graph("agraph (float[8] x, int64[2] shape) => (float[n, m] y) { a = Reshape(x, shape) y = Relu(a) }")
    model.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, [3, 5]))
    [value] = optimize(tmp_path, model).model.graph.value_info
    assert value.name == "a"
    assert not any(dim.dim_value for dim in value.type.tensor_type.shape.dim)


@pytest.mark.parametrize("names", [(), TOGETHER])
def test_every_value_has_a_shape(tmp_path: Path, names: tuple[str, ...]) -> None:
    made = optimize(tmp_path, attention_block(), *names).model.graph
    known = {value.name for value in (*made.value_info, *made.output)}
    assert known == {name for node in made.node for name in node.output}
    assert all(dim.dim_value for value in made.value_info for dim in value.type.tensor_type.shape.dim)


def test_nonstandard_operators_do_not_hide_later_shapes(tmp_path: Path) -> None:
    model = attention_block("g = Mul(h, s) a = Sin(g) y = Cos(a)", 17)
    result = optimize(tmp_path, model, "gelu_fusion")
    made = result.model.graph
    assert result.ops["com.microsoft/FastGelu"] == 1
    assert {value.name for value in (*made.value_info, *made.output)} == {name for n in made.node for name in n.output}


def test_subgraphs_are_rewritten(tmp_path: Path) -> None:
    model = graph(
        """agraph (bool c, float[4] x) => (float[4] y) {
        y = If (c) <
            then_branch = a () => (float[4] t) <float low = {-3.4e38}> { t = Max(x, low) },
            else_branch = b () => (float[4] e) { e = Neg(x) }
        > }"""
    )
    result = optimize(tmp_path, model, "clamp_constant_values")
    assert result.metrics["applied"] == {"clamp_constant_values": 1}
    [y] = outputs(result.model, {"c": np.array(True), "x": np.full(4, -1e5, np.float32)})
    assert (y == -50).all()


def test_external_weights_stay_in_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("winml_dag.onnxmodel.files.EXTERNAL_DATA_THRESHOLD", 1)
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    Path("out").mkdir()
    weight = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    model = graph("agraph (float[1, 64] x) => (float[1, 64] y) { y = MatMul(x, w) }", w=weight)
    inputs = feeds(model)
    expected = outputs(model, inputs)
    onnx.save(model, "in/model.onnx", save_as_external_data=True, location="model.onnx.data", size_threshold=1)
    run(OptimizeConfig({"clamp_constant_values": True}), Workspace({"model": Path("in")}, {"model": Path("out")}))
    assert sorted(path.name for path in Path("out").iterdir()) == ["optimized.onnx", "optimized.onnx.data"]
    session = onnxruntime.InferenceSession("out/optimized.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, inputs)[0], expected[0], rtol=1e-6)


@pytest.mark.parametrize(
    ("text", "imports", "message"),
    [
        (
            """agraph (float[2] x) => (float[2] y)
            { y = com.microsoft.EPContext<embed_mode = 1, ep_cache_context = "b", main_context = 1>(x) }""",
            ', "com.microsoft": 1',
            "compiled",
        ),
        (
            """agraph (float[2] x) => (float[2] y) <float s = {0.1}, uint8 z = {0}>
            { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }""",
            "",
            "quantized already",
        ),
        ("agraph (float[2] x) => (float[2] y) { y = my.own.Thing(x) }", ', "my.own": 1', "my.own"),
    ],
    ids=["EPContext", "QDQ", "an operator that onnxruntime does not know"],
)
def test_unoptimizable_model_is_refused(tmp_path: Path, text: str, imports: str, message: str) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 21{imports}]> {text}')
    with pytest.raises(StageError, match=message) as caught:
        optimize(tmp_path, model)
    assert caught.value.advice
    assert not list((tmp_path / "out").iterdir())


def test_data_file_that_is_cut_short_is_named(tmp_path: Path) -> None:
    model = graph("g (float[8] x) => (float[8] y) { y = Add (x, w) }", w=np.ones(8, np.float32))
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.data", size_threshold=0)
    os.truncate(tmp_path / "weights.data", 9)
    with pytest.raises(StageError, match=r"weights\.data is cut short"):
        to_portable_level(path, tmp_path / "optimized.onnx")


@pytest.mark.parametrize(
    ("text", "message", "advice"),
    [
        (
            "agraph (float[2] x) => (float[2] y) { y = Relu(x) y = Abs(x) }",
            r"^onnxruntime cannot load the model: Duplicate definition of name \(y\)\. Correct",
            "Correct the model",
        ),
        (
            "agraph (double[2] x) => (double[2] y) { y = Erf(x) }",
            r"cannot run the model: Could not find an implementation for Erf",
            "skip_optimize",
        ),
        ("agraph (bfloat16[2, 2] x) => (bfloat16[2, 2] y) { y = MatMul(x, x) }", "for MatMul", "in float32"),
    ],
    ids=["names", "no kernel", "bfloat16"],
)
def test_skip_optimize_is_suggested_only_where_it_helps(tmp_path: Path, text: str, message: str, advice: str) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 21]> {text}')
    with pytest.raises(StageError, match=message) as caught:
        optimize(tmp_path, model)
    assert advice in caught.value.advice
    assert ("skip_optimize" in caught.value.advice) == (advice == "skip_optimize")


def test_nonstandard_operators_from_optimization_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extended = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    monkeypatch.setattr("winml_dag.stages.optimize.levels._PORTABLE_LEVEL", extended)
    with pytest.raises(StageError, match=r"com\.microsoft"):
        optimize(tmp_path, attention_block())


def test_unknown_capability_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="gelu_fusionn"):
        optimize(tmp_path, attention_block(), "gelu_fusionn")


def test_rewriter_is_not_imported_without_need() -> None:
    heavy = ("onnxscript", "onnx_ir")
    code = f"import sys, winml_dag.stages.optimize.apply; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"
