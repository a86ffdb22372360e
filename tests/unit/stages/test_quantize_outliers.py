"""8-bit activations of models with a few huge values: how the others are protected, and how to turn that off."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from optimize_samples import graph, outputs
from quantization_samples import (
    WIDTH,
    Result,
    calibrate,
    image_model,
    outlier_model,
    pixels,
    quantize,
    rows,
    text_model,
    token_ids,
    types_around,
    weights,
)

from winml_dag.stages.calibrate.observe import measure
from winml_dag.stages.quantize import NodeTypes
from winml_dag.stages.quantize.equalize import equalize
from winml_dag.stages.ranges import Ranges, is_coarse
from winml_dag.stages.samples.samples import Samples

W8A8 = {"weight_type": "uint8", "activation_type": "uint8", "per_channel": True}
RULES = pytest.mark.parametrize("rules", ["qnn", "onnxruntime"])


@pytest.fixture(scope="module")
def ranges(tmp_path_factory) -> Result:
    return calibrate(tmp_path_factory.mktemp("ranges"), outlier_model(), rows(16), samples=16)


def plain_and_tamed(folder, model, ranges, rules, **types) -> list[Result]:
    """Return *model* quantized without and with equalization."""
    return [quantize(folder, model, "static", ranges, rules, equalize=equalize, **types) for equalize in (False, True)]


def error_of(model, result) -> float:
    """Return the mean squared error on rows that were not used for calibration, relative to the mean square."""
    feed = rows(1, seed=99)
    expected = outputs(model, feed)[0]
    return float(np.square(result.outputs(feed)[0] - expected).mean() / np.square(expected).mean())


@pytest.mark.parametrize(
    ("opset", "after", "rules"),
    [(17, True, "qnn"), (17, False, "onnxruntime"), (21, True, "onnxruntime"), (21, False, "qnn")],
)
def test_outliers_are_equalized_or_kept_at_16_bits(tmp_path, opset, after, rules):
    model = outlier_model(opset, after=after)
    ranges = calibrate(tmp_path, model, rows(16), samples=16)
    plain, tamed = plain_and_tamed(tmp_path, model, ranges, rules, **W8A8)
    assert set(plain.metrics["activations_by_type"]) == {"uint8"}
    assert (plain.metrics["equalized_tensors"], plain.metrics["activations_kept_at_16_bits"]) == (0, 0)
    assert error_of(model, tamed) < error_of(model, plain) / 3
    assert tamed.metrics["nodes_skipped"] == 0
    assert tamed.metrics["equalized_tensors"] == 1
    assert tamed.metrics["activations_kept_at_16_bits"] >= 3
    assert set(tamed.metrics["activations_by_type"]) == {"uint8", "uint16"}
    assert tamed.metrics["activations_by_type"]["uint8"] >= 5


def test_every_node_uses_one_activation_width(tmp_path, ranges):
    tamed = quantize(tmp_path, outlier_model(), "static", ranges, "qnn", **W8A8)
    around = types_around(tamed.model.graph)
    assert {len(types) for types in around.values()} == {1}
    wide = {name for name, types in around.items() if types == {onnx.TensorProto.UINT16}}
    assert {"residual", "second_norm", "unflatten", "bias", "norm"} <= wide
    assert not {"up", "relu", "project"} & wide


def test_activations_stay_at_8_bits_if_provider_cannot_mix_widths(tmp_path, ranges):
    result = quantize(tmp_path, outlier_model(), "static", ranges, "onnxruntime", mixes_widths=False, **W8A8)
    assert set(result.metrics["activations_by_type"]) == {"uint8"}
    assert (result.metrics["equalized_tensors"], result.metrics["activations_kept_at_16_bits"]) == (1, 0)


@pytest.mark.parametrize(
    ("make", "data", "rules"), [(image_model, pixels(8), "qnn"), (text_model, token_ids(8), "onnxruntime")]
)
def test_model_without_outliers_is_unchanged_by_equalization(tmp_path, make, data, rules):
    ranges = calibrate(tmp_path, make(), data)
    plain, tamed = plain_and_tamed(tmp_path, make(), ranges, rules, **W8A8)
    assert tamed.content == plain.content


@pytest.mark.parametrize(
    ("weight_type", "activation_type", "symmetric"),
    [("int8", "int8", True), ("int16", "uint8", False)],
)
def test_sixteen_bit_activations_keep_the_sign_of_8_bit_type(tmp_path, ranges, weight_type, activation_type, symmetric):
    types = {"weight_type": weight_type, "activation_type": activation_type, "activation_symmetric": symmetric}
    plain, tamed = plain_and_tamed(tmp_path, outlier_model(), ranges, "onnxruntime", **types)
    assert set(tamed.metrics["activations_by_type"]) == {activation_type, activation_type.replace("8", "16")}
    assert error_of(outlier_model(), tamed) < error_of(outlier_model(), plain) / 3


def test_uint16_activations_need_no_equalization(tmp_path, ranges):
    types = {"weight_type": "uint8", "activation_type": "uint16"}
    plain, tamed = plain_and_tamed(tmp_path, outlier_model(), ranges, "qnn", **types)
    assert tamed.content == plain.content


def test_node_overrides_are_kept_and_apply_to_added_normalization(tmp_path, ranges):
    overrides = (NodeTypes("residual", activation_type="uint8"), NodeTypes("second*", weight_type="int8"))
    result = quantize(tmp_path, outlier_model(), "static", ranges, "qnn", node_overrides=overrides, **W8A8)
    around = types_around(result.model.graph)
    assert around["residual"] == {onnx.TensorProto.UINT8}
    assert around["second_norm"] == {onnx.TensorProto.UINT16}
    assert result.metrics["weights_by_type"]["int8"] == 1
    overrides = (NodeTypes("*", None, "uint16"),)
    result = quantize(tmp_path, outlier_model(), "static", ranges, "qnn", node_overrides=overrides, **W8A8)
    assert result.metrics["equalized_tensors"] == 1
    assert set(result.metrics["activations_by_type"]) == {"uint16"}


def test_excluded_normalization_is_not_equalized(tmp_path, ranges):
    result = quantize(tmp_path, outlier_model(), "static", ranges, "qnn", nodes_to_exclude=("norm",), **W8A8)
    assert result.metrics["equalized_tensors"] == 0
    assert result.metrics["nodes_skipped_by_type"] == {"LayerNormalization": 1}
    assert error_of(outlier_model(), result) < 0.01


def test_unnamed_nodes_are_equalized_equally(tmp_path):
    named, nameless = outlier_model(), outlier_model()
    for node in nameless.graph.node:
        node.ClearField("name")
    results = [
        quantize(tmp_path, model, "static", calibrate(tmp_path, model, rows(8)), "qnn", **W8A8)
        for model in (named, nameless)
    ]
    feed = rows(1, seed=5)
    assert np.array_equal(*(result.outputs(feed)[0] for result in results))


def test_large_bias_is_not_clipped_at_16_bit_activations(tmp_path):
    """With a scale of 2e-10 for the bias of "down", 400 would be 2e12 steps: int32 ends at 2e9."""
    model = outlier_model()
    nodes = [node for node in model.graph.node if node.name not in ("down", "bias", "unflatten")]
    position = next(index for index, node in enumerate(nodes) if node.name == "relu") + 1
    tiny = onnx.numpy_helper.from_array(weights(4 * WIDTH, WIDTH) / np.float32(1e4), "down")
    next(tensor for tensor in model.graph.initializer if tensor.name == "down").CopyFrom(tiny)
    nodes[position:position] = [
        onnx.helper.make_node("Gemm", ["r", "down", "down_bias"], ["e"], "down"),
        onnx.helper.make_node("Reshape", ["e", "shape"], ["f"], "unflatten"),
    ]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    ranges = calibrate(tmp_path, model, rows(8))
    tamed = quantize(tmp_path, model, "static", ranges, "qnn", **W8A8)
    assert types_around(tamed.model.graph)["down"] == {onnx.TensorProto.UINT16}
    assert error_of(model, tamed) < 1e-3


@RULES
@pytest.mark.parametrize("everywhere", [True, False], ids=["all nodes", "one node"])
def test_large_bias_is_not_clipped_at_requested_16_bits(tmp_path, rules, everywhere):
    """A bias of 300 next to weights of 1e-4: it overflows int32 with unsigned weights, but not with signed ones."""
    bias = np.where(np.arange(WIDTH) == 3, 300, weights(WIDTH)).astype(np.float32)
    text = f"g (float[1, {WIDTH}] x) => (float[1, {WIDTH}] y) {{ [gemm] y = Gemm (x, w, b) }}"
    model = graph(text, w=weights(WIDTH, WIDTH) / 10**4, b=bias)
    feeds = {"x": np.random.default_rng(0).standard_normal((8, 1, WIDTH)).astype(np.float32)}
    ranges = calibrate(tmp_path, model, feeds)
    types = {"activation_type": "uint16"} if everywhere else {"node_overrides": (NodeTypes("gem*", None, "uint16"),)}
    result = quantize(tmp_path, model, "static", ranges, rules, **{**W8A8, "equalize": False, **types})
    assert result.metrics["weights_by_type"] == {"int8": 1}
    feed = {"x": feeds["x"][0]}
    expected, found = outputs(model, feed)[0], result.outputs(feed)[0]
    assert np.abs(found - expected).max() < 0.02


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    after=st.booleans(),
    transposed=st.booleans(),
    opset=st.sampled_from([17, 21]),
    largest=st.floats(1, 1e4),
    seed=st.integers(0, 2**32 - 1),
)
def test_equalization_leaves_float_results_bit_identical(after, transposed, opset, largest, seed):
    """For any measurement: divisions in one place are undone by multiplications in the other, by powers of two."""
    model = outlier_model(opset, after=after, transposed=transposed)
    high = np.random.default_rng(seed).uniform(0.01, 1, WIDTH)
    high[seed % WIDTH] = largest
    measured = (tuple(map(float, -high)), tuple(map(float, high)))
    bounds = {"n": (-float(high.max()), float(high.max()))}
    ranges = Ranges("minmax", bounds, None, {"n": 0.1}, {"n": measured})  # type: ignore[arg-type]
    model = onnx.shape_inference.infer_shapes(model)
    equalized = onnx.ModelProto()
    equalized.CopyFrom(model)
    found, count = equalize(equalized.graph, ranges, bool)
    assert count == is_coarse(bounds["n"], 0.1)
    feed = rows(1, seed=seed % 1000)
    before, now = (outputs(one, feed, optimized=False)[0] for one in (model, equalized))
    assert np.array_equal(before, now)
    if count:
        (low, top) = found.bounds["n_equalized"]
        assert found.bounds["flat"] == (low, top)
        assert top - low <= bounds["n"][1] - bounds["n"][0]
        assert sum(node.op_type == "LayerNormalization" for node in equalized.graph.node) == 2 + after


def test_measurement_does_not_depend_on_sample_order(tmp_path):
    data = rows(7)
    forward, backward = (
        json.loads(calibrate(tmp_path, outlier_model(), {"x": data["x"][::step]}).content) for step in (1, -1)
    )
    assert forward.pop("from") != backward.pop("from")  # the digest of the samples, which depends on their order
    assert forward == backward
    assert set(forward["typical"]) == {"x", "n", "sum", "m"}
    assert set(forward["channels"]) == {"n"}
    low, high = forward["channels"]["n"]
    assert (min(low), max(high)) == tuple(forward["ranges"]["n"])


def test_external_weights_are_measured_equally(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = onnx.shape_inference.infer_shapes(outlier_model())
    onnx.save(model, "inline.onnx")
    onnx.save(model, "external.onnx", save_as_external_data=True, location="external.onnx.data")
    assert Path("external.onnx.data").stat().st_size > 30_000
    data = rows(3)["x"]
    samples = Samples.one_by_one("npz", 3, lambda index: {"x": data[index : index + 1]})
    told: list[int] = []
    inline, external = (measure(Path(f"{name}.onnx"), samples, told.append) for name in ("inline", "external"))
    assert inline == external
    assert told == [0, 1, 2, 3] * 2


def test_histogram_ranges_are_equalized_too(tmp_path):
    ranges = calibrate(tmp_path, outlier_model(), rows(12), samples=12, calibration_method="percentile")
    plain, tamed = plain_and_tamed(tmp_path, outlier_model(), ranges, "qnn", **W8A8)
    assert tamed.metrics["activations_kept_at_16_bits"] >= 3
    assert error_of(outlier_model(), tamed) < error_of(outlier_model(), plain)


@RULES
def test_four_bit_weights_are_not_equalized(tmp_path, ranges, rules):
    wide, narrow = (
        quantize(tmp_path, outlier_model(), "static", ranges, rules, **{**W8A8, "weight_type": weight_type})
        for weight_type in ("uint8", "int4")
    )
    assert wide.metrics["equalized_tensors"] > 0
    assert narrow.metrics["equalized_tensors"] == 0
    assert narrow.metrics["activations_kept_at_16_bits"] > 0
