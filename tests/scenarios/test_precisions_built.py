"""Every precision means what it says: a small BERT and a small convolutional network, for the CPU and for QNN."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from oneprocess import OneProcess
from onnx import TensorProto, helper, numpy_helper
from onnx_samples import perceptron, samples
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from scenario import Project

from winml_dag.onnxmodel.graphfile import read_model
from winml_dag.onnxmodel.inspect import inspect_model
from winml_dag.onnxmodel.precision import precision_of

# The contents of a model by precision: integer types of weights and activations, or a float type.
ON_CPU = {
    "fp32": ("float32", None),
    "fp16": ("float16", None),
    "dynamic": ("uint8", None),
    "w8a8": ("uint8", "uint8"),
    "w8a16": ("uint8", "uint16"),
    "w16a8": ("int16", "uint8"),
    "w16a16": ("int16", "uint16"),
    "w4a32": ("uint4", None),
    "w4a16": ("uint4", None),
}
ON_QNN = {
    "w8a8": ("uint8", "uint8"),
    "w8a16": ("uint8", "uint16"),
    "w16a16": ("int16", "uint16"),
    "w4a16": ("int4", "uint16"),
    "w4a8": ("int4", "uint8"),
}


def convolutions(path: Path) -> Path:
    """Save Conv, Relu, Conv, a residual Add, pooling and a Gemm."""
    random = np.random.default_rng(0)

    def weights(name: str, *shape: int) -> TensorProto:
        return numpy_helper.from_array((random.standard_normal(shape) * 0.3).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["pixels", "w1", "b1"], ["c1"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], "conv2", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c2", "r1"], ["s"], "residual"),
        helper.make_node("GlobalAveragePool", ["s"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["logits"], "classify", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "convolutions",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 5])],
        [
            *(weights("w1", 8, 3, 3, 3), weights("b1", 8), weights("w2", 8, 8, 3, 3), weights("b2", 8)),
            *(weights("w3", 5, 8), weights("b3", 5)),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


@pytest.fixture(scope="module")
def shared(built_project: Project, tmp_path_factory: pytest.TempPathFactory, commands: OneProcess | None) -> Project:
    """Both models, and a cache that the tests of this file fill together."""
    project = Project(tmp_path_factory.mktemp("precisions"), commands)
    shutil.copy(built_project.out / "optimized.onnx", project.folder / "bert.onnx")
    convolutions(project.folder / "convolutions.onnx")
    perceptron(project.folder / "perceptron.onnx")
    samples(project.folder / "data.npz")
    return project


def build(project: Project, model: str, precision: str, device: str, **quant: Any) -> Path:
    """Build and return the model in *precision* for *device*."""
    out = f"{model}-{precision}-{device}"
    recipe = {"model": f"{model}.onnx", "ep": device, "precision": precision, "quant": {"samples": 4, **quant}}
    (project.folder / f"{out}.json").write_text(json.dumps(recipe), encoding="utf-8")
    result = project.build(recipe=f"{out}.json", out=out)
    assert result.code == 0, result.messages
    return project.folder / out


def runs(model: Path) -> bool:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    random = np.random.default_rng(0)
    feed = {
        value.name: np.ones(value.shape, value.type[len("tensor(") : -1])
        if "int" in value.type
        else random.standard_normal(value.shape).astype(np.float32)
        for value in session.get_inputs()
    }
    return all(np.isfinite(output).all() for output in session.run(None, feed))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "precision"), [*(("bert", name) for name in ON_CPU), ("convolutions", "w8a8"), ("convolutions", "w4a16")]
)
def test_a_precision_on_the_cpu_runs_and_has_the_types_of_its_name(shared: Project, model: str, precision: str) -> None:
    made = build(shared, model, precision, "cpu", rtn_block_size=16) / "model.onnx"
    summary, found = inspect_model(made), precision_of(read_model(made))
    weights, activations = ON_CPU[precision]
    assert runs(made)
    if activations is not None:
        assert weights in found.weights
        assert activations in found.activations
    elif precision.startswith("w4"):
        assert [*found.weights] == [weights]
        assert ("float16" in summary.tensor_bytes) == (precision == "w4a16")
        assert ("float32" in summary.tensor_bytes) == (precision == "w4a32")
    else:
        assert weights in summary.tensor_bytes


@pytest.mark.slow
@pytest.mark.parametrize(("model", "precision"), [*(("bert", name) for name in ON_QNN), ("convolutions", "w4a16")])
def test_a_precision_on_qnn_is_one_partition_and_has_the_types_of_its_name(
    shared: Project, model: str, precision: str
) -> None:
    pytest.importorskip("onnxruntime_qnn")
    made = build(shared, model, precision, "qnn")
    found = precision_of(read_model(made / "quantized.onnx"))
    weights, activations = ON_QNN[precision]
    assert weights in found.weights
    assert activations in found.activations
    ops = [node.op_type for node in onnx.load(made / "model.onnx", load_external_data=False).graph.node]
    assert ops.count("EPContext") == 1
    assert {*ops} <= {"EPContext", "QuantizeLinear", "DequantizeLinear"}  # the two at its inputs and outputs


@pytest.mark.slow
@pytest.mark.parametrize("named", [False, True])
def test_the_cpu_quantizes_what_pays_off_there_unless_the_recipe_names_operators(shared: Project, named: bool) -> None:
    model = """<ir_version: 10, opset_import: ["" : 21]> softmax (float[4, 64] x) => (float[4, 64] y)
        { a = Relu(x) b = Softmax<axis = -1>(a) c = Erf(b) y = Mul(c, a) }"""
    onnx.save(onnx.parser.parse_model(model), shared.folder / "softmax.onnx")
    chosen = {"op_types_to_quantize": ["Softmax", "Relu"]} if named else {}
    made = build(shared, "softmax", "w8a8", "cpu", **chosen)

    graph = onnx.load(made / "quantized.onnx").graph
    (erf,) = [node for node in graph.node if node.op_type == "Erf"]
    makers = {name: node.op_type for node in graph.node for name in node.output}
    assert makers[erf.input[0]] == ("DequantizeLinear" if named else "Softmax")
    (mul,) = [node for node in graph.node if node.op_type == "Mul"]
    assert {makers[name] for name in mul.input} == ({"Erf", "DequantizeLinear"} if named else {"DequantizeLinear"})


@pytest.mark.parametrize("precision", ["w8a8", "w8a16"])
def test_a_model_without_an_operator_that_pays_off_is_quantized_as_a_whole(
    tmp_path: Path, commands: OneProcess | None, precision: str
) -> None:
    project = Project(tmp_path, commands)
    model = """<ir_version: 8, opset_import: ["" : 17]> softmax (float[4, 8] x) => (float[4, 8] y)
        { a = Erf(x) y = Softmax<axis = -1>(a) }"""
    onnx.save(onnx.parser.parse_model(model), tmp_path / "softmax.onnx")
    made = build(project, "softmax", precision, "cpu")
    ops = [node.op_type for node in onnx.load(made / "model.onnx").graph.node]
    assert ops.count("QuantizeLinear") == ops.count("DequantizeLinear") == 3


def test_the_installed_provider_is_asked_and_not_its_table_in_which_this_form_failed_once(
    tmp_path: Path, commands: OneProcess | None
) -> None:
    pytest.importorskip("onnxruntime_qnn")
    project = Project(tmp_path, commands)
    model = """<ir_version: 8, opset_import: ["" : 17]> resize (float[1, 8, 16, 16] x) => (float[1, 8, 32, 32] y)
        <float[4] scales = {1, 1, 2, 2}> {
            a = Relu(x)
            y = Resize<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">(a,, scales)
        }"""
    onnx.save(onnx.parser.parse_model(model), tmp_path / "resize.onnx")
    made = build(project, "resize", "fp16", "qnn")
    ops = [node.op_type for node in onnx.load(made / "model.onnx", load_external_data=False).graph.node]
    assert ops.count("EPContext") == 1
    assert "Resize" not in ops
    (result,) = json.loads((made / "analyze_result.json").read_text(encoding="utf-8"))["results"]
    assert result["classification"]["supported"] == ["OP/ai.onnx/Relu", "OP/ai.onnx/Resize"]
    metrics = next(stage for stage in project.manifest(made)["stages"] if stage["name"] == "validate")["metrics"]
    assert metrics["outputs"]["y"]["cosine"] > 0.9999


def test_dynamic_keeps_a_scale_for_each_channel_out_of_weights_that_have_one(shared: Project) -> None:
    model = """<ir_version: 8, opset_import: ["" : 17]> normalized (float[1, 3, 8, 8] x) => (float[1, 8, 6, 6] y)
        <float[8] shift = {0, 0, 0, 0, 0, 0, 0, 0}, float[8] variance = {1, 1, 1, 1, 1, 1, 1, 1}> {
            c = Conv(x, w)
            n = BatchNormalization(c, scale, shift, shift, variance)
            r = Relu(n)
            y = Mul(r, back)
        }"""
    parsed = onnx.parser.parse_model(model)
    scale = np.logspace(-3, 0, 8, dtype=np.float32)
    weights = np.random.default_rng(0).standard_normal((8, 3, 3, 3)).astype(np.float32)
    values = {"w": weights, "scale": scale, "back": (1 / scale).reshape(8, 1, 1)}
    parsed.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in values.items())
    onnx.save(parsed, shared.folder / "normalized.onnx")
    made = build(shared, "normalized", "dynamic", "cpu")
    metrics = next(stage for stage in shared.manifest(made)["stages"] if stage["name"] == "validate")["metrics"]
    assert metrics["outputs"]["y"]["sqnr_db"] > 30
    (shared.folder / "folded.json").write_text(
        json.dumps({"model": "normalized.onnx", "precision": "dynamic", "optim": {"conv_bn_fusion": True}}),
        encoding="utf-8",
    )
    folded = shared.build(recipe="folded.json", out="folded")
    assert folded.code == 1
    assert "validate failed: Output 'y' is too far from the reference" in folded.messages


@pytest.mark.slow
def test_w4a16_is_w4a32_with_float16_for_the_rest(shared: Project) -> None:
    blocks = build(shared, "perceptron", "w4a32", "cpu", rtn_block_size=16)
    planned = shared.plan("-p", "w4a16", recipe="perceptron-w4a32-cpu.json", out="both")
    assert [stage["status"] for stage in planned.stages if stage["stage"] == "quantize"] == ["reused", "ran"]
    both = build(shared, "perceptron", "w4a16", "cpu", rtn_block_size=16)
    counts = [
        [node.op_type for node in onnx.load(folder / "model.onnx").graph.node].count("MatMulNBits")
        for folder in (blocks, both)
    ]
    assert counts == [2, 2]


@pytest.fixture
def given(tmp_path: Path, commands: OneProcess | None) -> Project:
    """Models quantized by other tools: with QDQ, with QLinear operators, with MatMulInteger."""
    project = Project(tmp_path, commands)
    float_model = perceptron(tmp_path / "float.onnx")

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.feeds = iter([{"x": np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)}])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.feeds, None)

    for name, form in (("qdq", QuantFormat.QDQ), ("qoperator", QuantFormat.QOperator)):
        quantize_static(float_model, tmp_path / f"{name}.onnx", Reader(), quant_format=form)
    quantize_dynamic(float_model, tmp_path / "dynamic.onnx", weight_type=QuantType.QUInt8)
    return project


@pytest.mark.parametrize("form", ["qdq", "qoperator", "dynamic"])
def test_a_model_that_is_quantized_already_is_left_as_it_is(given: Project, form: str) -> None:
    plain = given.run("build", "--onnx", f"{form}.onnx", "-o", "out", "--format", "json")
    assert plain.returncode == 0, plain.stderr
    stages = {stage["stage"]: stage for stage in json.loads(plain.stdout)["builds"][0]["stages"]}
    for name in ("optimize", "quantize"):
        assert f"{form}.onnx is quantized already" in stages[name]["reason"]
    before, after = (inspect_model(given.folder / name) for name in (f"{form}.onnx", "out/model.onnx"))
    assert after.op_counts == before.op_counts
    for arguments in (["--optimize"], ["--precision", "w8a8"], ["--precision", "fp16"], ["--quant"]):
        refused = given.run("build", "--onnx", f"{form}.onnx", "-o", "other", *arguments)
        assert refused.returncode == 2
        assert "already quantized" in refused.stderr
        assert not (given.folder / "other").exists()


def test_fields_that_the_mode_does_not_read_are_told(given: Project) -> None:
    section = {"per_channel": True, "weight_type": "uint8", "reduce_range": False, "rtn_bits": 8}
    recipe = {"model": "float.onnx", "quant": {"mode": "fp16", **section}}
    (given.folder / "recipe.yaml").write_text(json.dumps(recipe), encoding="utf-8")
    assert given.build().code == 0
    told = given.manifest()["notices"]
    # Not about winml-cli's defaults, which its files always have.
    assert [notice.split()[0] for notice in told] == ["quant.per_channel", "quant.rtn_bits"]
