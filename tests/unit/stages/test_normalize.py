"""The stage normalize: the same model in the form that all other stages accept."""

from __future__ import annotations

from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from optimize_samples import graph, outputs

from winml_dag.engine.stage import Workspace
from winml_dag.errors import StageError
from winml_dag.onnxmodel.feeds import model_inputs
from winml_dag.onnxmodel.inspect import inspect_model
from winml_dag.stages.normalize import GivenInput, GivenInputs, NormalizeConfig
from winml_dag.stages.normalize.rewrite import NORMALIZED_FILE, run


def normalize(folder: Path, model: onnx.ModelProto | Path, config: NormalizeConfig) -> tuple[Path, Any]:
    """Return the normalized model, and the metrics."""
    for name in ("in", "out"):
        (folder / name).mkdir(parents=True)
    content = model.read_bytes() if isinstance(model, Path) else model.SerializeToString()
    (folder / "in" / "model.onnx").write_bytes(content)
    with chdir(folder):
        metrics = run(config, Workspace({"model": Path("in")}, {"model": Path("out")}))
    return folder / "out" / NORMALIZED_FILE, metrics


def shaped(**shapes: tuple[int | str, ...]) -> NormalizeConfig:
    return NormalizeConfig(GivenInputs({name: GivenInput(shape) for name, shape in shapes.items()}))


RAISED = NormalizeConfig(raise_opset=True)


def shapes_in(path: Path) -> dict[str, list[int | str]]:
    """Return the shapes of inputs, outputs and intermediate values."""
    inner = onnx.load(path, load_external_data=False).graph
    return {
        value.name: [dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in shape.dim]
        for value in (*inner.input, *inner.output, *inner.value_info)
        if (shape := value.type.tensor_type.shape) or True
    }


FLATTEN = """
g (float[N, 3, side, side] x) => (float[N, rest] y) <float[N, 3, side, side] r>
{
    r = Relu(x)
    s = Shape(r)
    zero = Constant<value: tensor = int64[1] {0}>()
    n = Gather<axis = 0>(s, zero)
    minus = Constant<value: tensor = int64[1] {-1}>()
    shape = Concat<axis = 0>(n, minus)
    y = Reshape(r, shape)
}
"""


def test_input_sizes_propagate_through_computed_shapes(tmp_path: Path) -> None:
    path, metrics = normalize(tmp_path, graph(FLATTEN), shaped(x=(2, 3, 4, 4)))
    assert metrics["dimensions_fixed"] == 3
    known = shapes_in(path)
    assert (known["x"], known["r"], known["y"]) == ([2, 3, 4, 4], [2, 3, 4, 4], [2, 48])
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 4)).astype(np.float32)
    np.testing.assert_array_equal(outputs(path, {"x": x}, optimized=False)[0], np.maximum(x, 0).reshape(2, 48))


def test_some_dimensions_may_stay_dynamic(tmp_path: Path) -> None:
    path, metrics = normalize(tmp_path, graph(FLATTEN), shaped(x=("N", 3, 4, 4)))
    assert metrics["dimensions_fixed"] == 2
    assert shapes_in(path)["x"] == ["N", 3, 4, 4]
    assert [output.shape[0] for output in inspect_model(path).outputs] == ["N"]


def test_stale_traced_sizes_are_discarded(tmp_path: Path) -> None:
    model = graph("g (float[N, 4] x) => (float[1, 4] y) <float[1, 4] h> { h = Relu(x) y = Abs(h) }")
    path, _ = normalize(tmp_path, model, shaped(x=(3, 4)))
    assert shapes_in(path) == {"x": [3, 4], "h": [3, 4], "y": [3, 4]}


@pytest.mark.parametrize("shape", [[None, 4], [-1, 4], None])
def test_unnamed_dimensions_and_missing_shapes_are_set(tmp_path: Path, shape: list[int | None] | None) -> None:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    inner = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "g", inputs, [helper.make_tensor_value_info("y", 1, None)]
    )
    path, _ = normalize(tmp_path, helper.make_model(inner), shaped(x=(2, 4)))
    assert shapes_in(path) == {"x": [2, 4], "y": [2, 4]}


def test_onnxruntime_operators_get_shapes(tmp_path: Path) -> None:
    model = graph(
        "g (float[N, 4] x) => (float[rows, columns] y) { h = com.microsoft.Gelu(x) y = Relu(h) }",
        imports=', "com.microsoft": 1',
    )
    path, _ = normalize(tmp_path, model, shaped(x=(2, 4)))
    assert shapes_in(path)["y"] == [2, 4]


def test_impossible_size_is_refused_with_shapes(tmp_path: Path) -> None:
    model = graph("g (float[N, 4] x, float[M, 4] z) => (float[N, 4] y) { y = Add(x, z) }")
    with pytest.raises(StageError, match=r"does not load with the input shapes x \[2, 4\], z \[3, 4\]"):
        normalize(tmp_path, model, shaped(x=(2, 4), z=(3, 4)))


def test_input_ranges_and_shapes_are_stored_in_metadata(tmp_path: Path) -> None:
    model = graph("g (float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }")
    path, _ = normalize(tmp_path, model, NormalizeConfig(GivenInputs({"x": GivenInput((2, 4), (0.0, 5.0))})))
    (spec,) = model_inputs(path)
    assert (spec.shape, spec.value_range) == ((2, 4), (0.0, 5.0))


def test_initializers_are_removed_from_inputs_and_ir_version_raised(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.full((4, 4), 0.5, np.float32), "w")
    listed = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4]) for name in ("x", "w")]
    inner = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        listed,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 4])],
        [weight],
    )
    model = helper.make_model(inner, opset_imports=[helper.make_opsetid("", 8)], ir_version=3)
    path, metrics = normalize(tmp_path, model, NormalizeConfig())
    assert metrics["initializers_dropped_from_inputs"] == 1
    assert (metrics["opset_before"], metrics["opset_after"]) == (8, 8)
    made = onnx.load(path)
    assert [value.name for value in made.graph.input] == ["x"]
    assert made.ir_version >= 4
    x = np.ones((4, 4), np.float32)
    np.testing.assert_array_equal(outputs(path, {"x": x}, optimized=False)[0], np.full((4, 4), 2.0))


def test_old_zoo_model_is_converted_with_equal_results(tmp_path: Path) -> None:
    source = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / "light_squeezenet.onnx"
    path, metrics = normalize(tmp_path, source, RAISED)
    assert metrics["initializers_dropped_from_inputs"] > 50
    assert (metrics["opset_before"], metrics["opset_after"], metrics["outputs_compared"]) == (9, 21, True)
    (spec,) = inspect_model(path).inputs
    feed = {spec.name: np.random.default_rng(0).random(spec.shape, dtype=np.float32)}
    np.testing.assert_allclose(
        outputs(path, feed, optimized=False)[0], outputs(source, feed, optimized=False)[0], rtol=1e-5
    )


def old(text: str, opset: int, **constants: NDArray[Any]) -> onnx.ModelProto:
    """Return a model in an old *opset*, only parsed: the checker knows only current operators."""
    model = onnx.parser.parse_model(f'<ir_version: 4, opset_import: ["": {opset}]> {text}')
    model.graph.initializer.extend(numpy_helper.from_array(values, name) for name, values in constants.items())
    return model


OLD = {
    "Upsample": (9, 'g (float[1, 1, 3, 3] x) => (float[1, 1, 6, 6] y) { y = Upsample<mode = "linear">(x, s) }', True),
    "Resize": (10, 'g (float[1, 1, 3, 3] x) => (float[1, 1, 6, 6] y) { y = Resize<mode = "linear">(x, s) }', True),
    "Upsample in the midst": (
        9,
        'g (float[1, 1, 3, 3] x) => (float[1, 1, 6, 6] y) { a = Upsample<mode = "linear">(x, s) y = Relu(a) }',
        True,
    ),
    "Dropout": (7, "g (float[4, 4] x) => (float[4, 4] y) { y = Dropout<ratio = 0.5>(x) }", True),
    "Squeeze": (11, "g (float[1, 4] x) => (float[4] y) { y = Squeeze<axes = [0]>(x) }", True),
    "Clip": (10, "g (float[4, 4] x) => (float[4, 4] y) { y = Clip<min = 0.2, max = 0.6>(x) }", True),
    "Softmax": (11, "g (float[N, 3, 4] x) => (float[N, 3, 4] y) { y = Softmax<axis = 1>(x) }", True),
    "Hardmax": (11, "g (float[2, 3, 4] x) => (float[2, 3, 4] y) { y = Hardmax<axis = 1>(x) }", False),
    "If": (
        11,
        "g (float[1, 4] x) => (float[4] y) { c = Constant<value: tensor = bool {1}>() y = If<"
        "then_branch = t () => (float[4] a) { a = Squeeze<axes = [0]>(x) },"
        "else_branch = e () => (float[4] b) { n = Neg(x) b = Squeeze<axes = [0]>(n) }>(c) }",
        True,
    ),
}


@pytest.mark.parametrize("name", OLD)
def test_old_operators_compute_the_same_in_later_opset(tmp_path: Path, name: str) -> None:
    """Where the converter changes the results, the model stays as it was, and the metrics say so."""
    opset, text, converts = OLD[name]
    model = old(text, opset, **({"s": np.array([1, 1, 2, 2], np.float32)} if ", s)" in text else {}))
    source = tmp_path / "source.onnx"
    onnx.save(model, source)
    path, metrics = normalize(tmp_path / "stage", model, RAISED)
    assert metrics["opset_after"] == (21 if converts else opset)
    assert (metrics["opset_kept_because"] is None) == converts
    shape = [dim if isinstance(dim, int) else 2 for dim in inspect_model(path).inputs[0].shape]
    for seed in range(3):
        x = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
        np.testing.assert_allclose(
            outputs(path, {"x": x}, optimized=False)[0], outputs(source, {"x": x}, optimized=False)[0], rtol=1e-6
        )


def test_model_too_old_for_onnxruntime_is_not_converted(
    tmp_path: Path,
) -> None:
    """The converter of onnx 1.21 stretches another axis than the one named here."""
    text = "g (float[1, 3, 2, 2] x) => (float[1, 3, 2, 2] y) { y = Mul<broadcast = 1, axis = 1>(x, f) }"
    _, metrics = normalize(tmp_path, old(text, 6, f=np.array([2, 3, 4], np.float32)), RAISED)
    assert (metrics["opset_before"], metrics["opset_after"]) == (6, 6)
    assert "Mul(6)" in metrics["opset_kept_because"]


def test_opset_conversion_keeps_names_metadata_and_domains(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 6, opset_import: ["": 11, "com.microsoft": 1]>'
        " g (float[1, 4] x) => (float[4] y) { h = com.microsoft.Gelu(x) s = Squeeze<axes = [0]>(h) y = Relu(s) }"
    )
    model.metadata_props.add(key="winml.note", value="kept")
    model.graph.node[2].name = "last"
    model.graph.node[2].metadata_props.add(key="winml.hierarchy.tag", value="/head")
    path, metrics = normalize(tmp_path, model, RAISED)
    assert metrics["opset_after"] == 21
    made = onnx.load(path)
    assert {entry.domain: entry.version for entry in made.opset_import} == {"": 21, "com.microsoft": 1}
    assert {entry.key: entry.value for entry in made.metadata_props}["winml.note"] == "kept"
    last = made.graph.node[-1]
    assert (last.name, last.metadata_props[0].value, list(last.input), list(last.output)) == (
        "last",
        "/head",
        ["s"],
        ["y"],
    )


def test_large_weights_survive_opset_conversion(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    model = old("g (float[1, 64] x) => (float[64] y) { h = MatMul(x, w) y = Squeeze<axes = [0]>(h) }", 11, w=weight)
    path, metrics = normalize(tmp_path, model, RAISED)
    assert metrics["opset_after"] == 21
    (kept,) = onnx.load(path).graph.initializer
    np.testing.assert_array_equal(numpy_helper.to_array(kept), weight)


def test_model_failing_on_random_inputs_is_converted_if_it_loads(tmp_path: Path) -> None:
    table = np.ones((3, 4), np.float32)
    model = old("g (int64[5] i) => (float[1, 5, 4] y) { h = Gather(t, i) y = Unsqueeze<axes = [0]>(h) }", 11, t=table)
    _, metrics = normalize(tmp_path, model, RAISED)
    assert (metrics["opset_after"], metrics["outputs_compared"]) == (21, False)


def test_recent_model_keeps_its_opset(tmp_path: Path) -> None:
    path, metrics = normalize(tmp_path, graph("g (float[4] x) => (float[4] y) { y = Relu(x) }", 13), RAISED)
    assert metrics["opset_after"] == 13
    assert inspect_model(path).opsets[""] == 13
