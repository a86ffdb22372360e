from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from late import Late
from onnxruntime.quantization import CalibrationDataReader, QDQQuantizer, get_qdq_config, quantize_static
from optimize_samples import graph, outputs
from quantization_samples import (
    WIDTH,
    Result,
    calibrate,
    cosine,
    image_model,
    pixels,
    put,
    quantize,
    text_model,
    token_ids,
    weights,
)

from winml_dag.errors import StageError
from winml_dag.onnxmodel.files import load_model, save_model
from winml_dag.onnxmodel.metadata import carry_metadata
from winml_dag.stages.quantize import static
from winml_dag.stages.quantize.mixed import INTEGER_TYPES, WEIGHT_TYPES

qnn = Late("onnxruntime.quantization.execution_providers.qnn")  # imports PyTorch

PRECISIONS = [("uint8", "uint8"), ("uint8", "uint16"), ("int16", "uint8"), ("int16", "uint16"), ("int8", "int8")]
W8A8 = {"weight_type": "uint8", "activation_type": "uint8"}


@pytest.fixture(scope="module")
def ranges(tmp_path_factory) -> Result:
    """Of the text model."""
    return calibrate(tmp_path_factory.mktemp("ranges"), text_model(), token_ids(8))


class Reader(CalibrationDataReader):
    def __init__(self, data):
        (count,) = {len(array) for array in data.values()}
        self.feeds = iter([{name: array[index : index + 1] for name, array in data.items()} for index in range(count)])

    def get_next(self):
        return next(self.feeds, None)


def directly(folder: Path, model: onnx.ModelProto, data, rules: str, weight_type: str, activation_type: str) -> bytes:
    """Return onnxruntime's result when it calibrates and quantizes *model* in one call."""
    source = put(folder / "direct", model) / "model.onnx"
    choose = qnn.get_qnn_qdq_config if rules == "qnn" else get_qdq_config
    config = choose(
        source, None, weight_type=INTEGER_TYPES[weight_type], activation_type=INTEGER_TYPES[activation_type]
    )
    quantize_static(
        source,
        folder / "direct.onnx",
        Reader(data),
        quant_format=config.quant_format,
        activation_type=config.activation_type,
        weight_type=config.weight_type,
        op_types_to_quantize=sorted(config.op_types_to_quantize),
        per_channel=config.per_channel,
        extra_options=config.extra_options,
    )
    made = load_model(folder / "direct.onnx")
    carry_metadata(model, made)
    save_model(made, folder / "saved.onnx")
    return (folder / "saved.onnx").read_bytes()


@pytest.mark.parametrize("rules", ["qnn", "onnxruntime"])
@pytest.mark.parametrize(("make", "data"), [(image_model, pixels(9)), (text_model, token_ids(9))])
def test_shared_calibration_gives_same_bytes_as_separate_one(tmp_path, make, data, rules):
    ranges = calibrate(tmp_path, make(), data, samples=9)
    # For QNN, scales of LayerNormalization are always unsigned, since it leaves signed ones to the CPU.
    third = [] if rules == "qnn" else [("int8", "int8")]
    for weight_type, activation_type in [("uint8", "uint8"), ("int16", "uint16"), *third]:
        types = {"weight_type": weight_type, "activation_type": activation_type}
        shared = quantize(tmp_path, make(), "static", ranges, rules, per_channel=False, **types)
        assert shared.content == directly(tmp_path, make(), data, rules, weight_type, activation_type), types


@pytest.mark.parametrize("rules", ["qnn", "onnxruntime"])
@pytest.mark.parametrize(("weight_type", "activation_type"), PRECISIONS)
def test_requested_types_are_used_with_close_outputs(tmp_path, ranges, rules, weight_type, activation_type):
    types = {"weight_type": weight_type, "activation_type": activation_type}
    result = quantize(tmp_path, text_model(), "static", ranges, rules, **types)
    assert set(result.metrics["activations_by_type"]) == {activation_type}
    assert result.metrics["weights_by_type"][weight_type] >= 3  # the matrices of query, key and project
    (expected,) = outputs(text_model(), token_ids(1))
    (found,) = result.outputs(token_ids(1))
    assert cosine(expected, found) > (0.999 if activation_type == "uint16" else 0.97)


def test_metrics_report_nodes_sizes_and_time(tmp_path, ranges):
    result = quantize(tmp_path, text_model(), "static", ranges, "qnn", **W8A8)
    counts = result.op_types()
    assert result.metrics["quantize_linear"] == counts.count("QuantizeLinear") > 0
    assert result.metrics["dequantize_linear"] == counts.count("DequantizeLinear") > 0
    assert result.metrics["nodes_quantized"] == len(text_model().graph.node) - 1  # all but Cast, which computes nothing
    assert result.metrics["nodes_skipped"] == 0
    assert result.metrics["qdq_insertion_time_seconds"] > 0
    assert result.metrics["size_after_bytes"] == result.path.stat().st_size
    assert [path.name for path in result.folder.iterdir()] == ["quantized.onnx"]


def test_node_name_with_brackets_matches_literally(tmp_path):
    model = text_model()
    model.graph.node[13].name = "/layer[0]/project"
    ranges = calibrate(tmp_path, model, token_ids(4))
    result = quantize(tmp_path, model, "static", ranges, "qnn", nodes_to_exclude=("/layer[0]/project",), **W8A8)
    assert result.metrics["nodes_skipped_by_type"] == {"MatMul": 1}


@pytest.mark.parametrize(
    ("fields", "message", "advice"),
    [
        ({"nodes_to_exclude": ("layer.*",)}, "layer", ""),
        ({"op_types_to_quantize": ("Conv",)}, "No node", "op_types_to_quantize"),
        ({"nodes_to_exclude": ("*",)}, "No node", "nodes_to_exclude"),
        ({"weight_type": "int3"}, "weight_type 'int3'", "int4"),
        ({"activation_type": "int4"}, "activation_type 'int4'", "uint8"),
        ({"activation_type": None}, "activation_type None", "uint8"),
        ({"weight_type": "uint8", "activation_type": "int8"}, "no kernels", "weight_type int8"),
        ({"rules": None}, "Unknown quantization rules None", "qnn"),
    ],
)
def test_unsupported_static_settings_are_refused(tmp_path, ranges, fields, message, advice):
    with pytest.raises(StageError, match=re.escape(message)) as caught:
        quantize(tmp_path, text_model(), "static", ranges, **{"rules": "qnn", **W8A8, **fields})
    assert advice in caught.value.advice


def test_nonnumeric_operators_stay_in_float(tmp_path):
    scaler = "ai.onnx.ml.Scaler<offset = [0.0], scale = [2.0]>(x)"
    scaled, multiplied = (
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 1]> g (float[1, 4] x) => (float[1, 4] y) '
            f"{{ {nodes} }}"
        )
        for nodes in (f"y = {scaler}", f"h = {scaler} y = Mul(h, h)")
    )
    data = {"x": np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)}
    ranges = [calibrate(tmp_path, model, data) for model in (scaled, multiplied)]
    result = quantize(tmp_path, multiplied, "static", ranges[1], "onnxruntime", **W8A8)
    assert result.metrics["nodes_skipped_by_type"] == {"Scaler": 1}
    with pytest.raises(StageError, match="No node of the model could be quantized"):
        quantize(tmp_path, scaled, "static", ranges[0], "onnxruntime", **W8A8)


def test_missing_range_is_refused(tmp_path):
    ranges = calibrate(tmp_path, text_model(), token_ids(2))
    content = json.loads(ranges.content)
    del content["ranges"]["masked"]
    ranges.path.write_text(json.dumps(content))
    with pytest.raises(StageError, match="'masked'"):
        quantize(tmp_path, text_model(), "static", ranges, "qnn", **W8A8)
    with pytest.raises(StageError, match="needs activation ranges"):
        quantize(tmp_path, text_model(), "static", None, "qnn", **W8A8)


def test_sixteen_bits_use_standard_domain_from_opset_21(tmp_path):
    types = {"weight_type": "uint8", "activation_type": "uint16"}
    for opset, domain in ((21, ""), (17, "com.microsoft")):
        data = pixels(4)
        ranges = calibrate(tmp_path, image_model(opset), data)
        result = quantize(tmp_path, image_model(opset), "static", ranges, "qnn", **types)
        model = result.model
        assert {node.domain for node in model.graph.node if "Linear" in node.op_type} == {domain}
        assert next(entry.version for entry in model.opset_import if not entry.domain) == opset
        feed = {"pixels": data["pixels"][:1]}
        assert cosine(outputs(image_model(opset), feed)[0], result.outputs(feed)[0]) > 0.999


def test_qnn_weights_default_to_per_channel(tmp_path, ranges):
    def scales(**fields):
        found = quantize(tmp_path, text_model(), "static", ranges, **W8A8, **fields).constants
        return found["wq_scale"].shape, set(found["wq_zero_point"].ravel().tolist())

    assert scales(rules="qnn") == ((WIDTH,), {128})
    assert scales(rules="qnn", weight_symmetric=False) == ((WIDTH,), {128})  # the only form that QNN supports
    assert scales(rules="qnn", per_channel=False, weight_symmetric=True) == ((), {128})
    assert scales(rules="onnxruntime")[0] == ()
    assert scales(rules="onnxruntime", per_channel=True)[0] == (WIDTH,)


def test_shared_weight_stays_per_tensor_for_qnn(tmp_path):
    text = f"g (int64[1, 4] ids) => (float[1, 4, {WIDTH}] y) {{ x = Gather (table, ids) y = MatMul (x, table) }}"
    model = graph(text, table=weights(WIDTH, WIDTH))
    ranges = calibrate(tmp_path, model)
    result = quantize(tmp_path, model, "static", ranges, "qnn", **W8A8)
    assert result.constants["table_scale"].shape == ()


def test_nodes_after_nonstandard_operator_are_quantized(tmp_path):
    model = graph(
        f"""g (float[1, {WIDTH}] x) => (float[1, {WIDTH}] y)
        {{ g = com.microsoft.QuickGelu (x) m = MatMul (g, w) y = Softmax (m) }}""",
        imports=', "com.microsoft": 1',
        w=weights(WIDTH, WIDTH),
    )
    ranges = calibrate(tmp_path, model)
    metrics = quantize(tmp_path, model, "static", ranges, "onnxruntime", **W8A8).metrics
    assert (metrics["nodes_quantized"], metrics["nodes_skipped"]) == (3, 0)


def test_large_weights_go_to_one_external_file(tmp_path, monkeypatch, ranges):
    import winml_dag.onnxmodel.files as files

    monkeypatch.setattr(files, "EXTERNAL_DATA_THRESHOLD", 1024)
    monkeypatch.setattr(files, "EXTERNAL_TENSOR_MINIMUM", 256)
    result = quantize(tmp_path, text_model(), "static", ranges, "qnn", **W8A8)
    names = sorted(path.name for path in result.folder.iterdir())
    assert names == ["quantized.onnx", "quantized.onnx.data"]
    assert result.metrics["size_after_bytes"] == sum(path.stat().st_size for path in result.folder.iterdir())
    assert np.isfinite(result.outputs(token_ids(1))[0]).all()


def test_constants_without_matrix_use_activation_type(tmp_path: Path) -> None:
    """A separately built activation function, whose constants onnxruntime stores like activations."""
    text = "g (float[1, 4] x) => (float[1, 4] y) <float factor = {0.5}> { s = Mul (x, factor) y = Tanh (s) }"
    model = graph(text)
    types = {"weight_type": "uint8", "activation_type": "uint16"}
    result = quantize(tmp_path, model, "static", calibrate(tmp_path, model), "qnn", **types)
    assert set(result.metrics["weights_by_type"]) == {"uint16"}


def test_softmax_may_exceed_its_calibrated_range(tmp_path: Path) -> None:
    model = graph(
        """g (float[1, 2] x) => (float[2, 1] y) <float[2, 2] w = {3, 0, 0, 3}, int64[2] shape = {2, 1}>
        { logits = MatMul (x, w) s = Softmax <axis = -1> (logits) y = Reshape (s, shape) }"""
    )
    measured = calibrate(tmp_path, model, {"x": np.array([[[0.5, 0.25]], [[-0.25, -0.5]]], np.float32)})
    operators = ("MatMul", "Reshape")
    result = quantize(tmp_path, model, "static", measured, "onnxruntime", op_types_to_quantize=operators, **W8A8)
    feed = {"x": np.array([[0.5, -0.5]], np.float32)}
    [expected], [found] = (outputs(each, feed) for each in (model, result.path))
    np.testing.assert_allclose(found, expected, atol=0.05)


def test_vectorized_channel_quantizer_gives_same_bytes(tmp_path, monkeypatch):
    model = text_model()
    for tensor in model.graph.initializer:
        if tensor.name == "wq":  # a channel of zeros, and one without negative values
            values = onnx.numpy_helper.to_array(tensor).copy()
            values[:, 0], values[:, 1] = 0, np.abs(values[:, 1])
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, "wq"))
    ranges = calibrate(tmp_path, model, token_ids(8))
    fields = {"activation_type": "uint16", "per_channel": True}
    signed = [("onnxruntime", each, symmetric) for each in ("uint8", "int8") for symmetric in (True, False)]
    others = [("onnxruntime", each, None) for each in WEIGHT_TYPES if not each.endswith("8")]

    def contents():
        return [
            quantize(tmp_path, model, "static", ranges, rules, weight_type=each, weight_symmetric=symmetric, **fields)
            for rules, each, symmetric in (*signed, *others, ("qnn", "int8", None))
        ]

    at_once = contents()
    monkeypatch.setattr(static, "ChannelQuantizer", QDQQuantizer)
    assert [one.content for one in contents()] == [one.content for one in at_once]
