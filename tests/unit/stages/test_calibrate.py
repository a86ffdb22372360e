from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from quantization_samples import WIDTH, calibrate, image_model, model_of, pixels, text_model, token_ids, weights

from winml_dag.errors import StageError
from winml_dag.stages.float_model import float_tensors
from winml_dag.stages.ranges import Provenance, Ranges

FLOAT32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


PROVENANCE = Provenance("sha256:00", "npz", 3, "xxh3-128:00")


def ranges_of(result):
    return Ranges.read(result.path).bounds


def test_the_declarations_import_nothing_heavy():
    code = """
import sys
import winml_dag.stages.calibrate, winml_dag.stages.quantize
print([name for name in ("numpy", "onnx", "onnxruntime", "torch", "transformers") if name in sys.modules])
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_minmax_ranges_are_the_extremes_of_what_the_samples_produce(tmp_path):
    data = pixels(20)
    bounds = ranges_of(calibrate(tmp_path, image_model(), data, samples=20))
    assert bounds["pixels"] == (data["pixels"].min(), data["pixels"].max())
    assert bounds["r1"][0] == 0.0
    assert bounds["c1"][0] < 0.0 < bounds["c1"][1]


def test_every_float_activation_has_a_range(tmp_path):
    result = calibrate(tmp_path, text_model(), token_ids(3))
    inferred = onnx.shape_inference.infer_shapes(text_model())
    assert float_tensors(inferred.graph) == set(ranges_of(result))
    assert "kept" in ranges_of(result)  # made by a Cast, which is not quantized itself
    assert result.metrics["tensors"] == len(ranges_of(result))


def test_tensors_behind_an_operator_from_outside_the_standard_have_ranges_too(tmp_path):
    model = model_of(
        [
            helper.make_node("QuickGelu", ["x"], ["g"], "gelu", domain="com.microsoft"),
            helper.make_node("MatMul", ["g", "w"], ["m"], "matmul"),
            helper.make_node("Relu", ["m"], ["y"], "relu"),
        ],
        {"x": (TensorProto.FLOAT, [1, WIDTH])},
        {"y": [1, WIDTH]},
        {"w": weights(WIDTH, WIDTH)},
    )
    assert set(ranges_of(calibrate(tmp_path, model))) == {"x", "g", "m", "y"}


def test_no_time_and_no_name_of_this_machine_is_in_the_file(tmp_path):
    result = calibrate(tmp_path, image_model(), pixels(2))
    assert result.metrics["calibration_time_seconds"] > 0
    assert set(json.loads(result.content)) == {"format", "method", "from", "ranges", "typical", "channels"}
    assert [path.name for path in result.folder.iterdir()] == ["calibration_ranges.json"]


@given(bounds=st.dictionaries(st.text(), st.tuples(FLOAT32, FLOAT32)), method=st.sampled_from(["minmax", "entropy"]))
def test_ranges_survive_writing_and_do_not_depend_on_their_order(tmp_path_factory, bounds, method):
    path = tmp_path_factory.mktemp("ranges") / "ranges.json"
    Ranges(method, bounds, PROVENANCE).write(path)
    content = path.read_bytes()
    assert Ranges.read(path) == Ranges(method, bounds, PROVENANCE)
    Ranges(method, dict(reversed(bounds.items())), PROVENANCE).write(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"format":2}',
        '{"format":1,"from":{"model":"","data":"npz","samples":1,"digest":""},"method":"minmax","ranges":{"x":[1]}}',
        '{"format":1,"from":{"model":""},"method":"minmax","ranges":{}}',
        '{"format":1,"method":"minmax","ranges":{}}',
    ],
)
def test_a_file_that_has_no_ranges_is_refused(tmp_path, content):
    (tmp_path / "ranges.json").write_text(content)
    with pytest.raises(StageError, match="no activation ranges"):
        Ranges.read(tmp_path / "ranges.json")


def test_random_data_is_the_same_for_the_same_seed_and_says_that_it_is_random(tmp_path):
    first = calibrate(tmp_path, image_model(), seed=3, samples=4)
    again = calibrate(tmp_path, image_model(), seed=3, samples=4)
    other = calibrate(tmp_path, image_model(), seed=4, samples=4)
    normal = calibrate(tmp_path, image_model(), seed=3, samples=4, distribution="normal")
    assert (first.metrics["data"], first.metrics["samples"]) == ("random", 4)
    assert ranges_of(first) == ranges_of(again)
    assert len({json.dumps(ranges_of(result)["c1"]) for result in (first, other, normal)}) == 3


@pytest.mark.parametrize("method", ["entropy", "percentile"])
def test_entropy_and_percentile_look_for_ranges_inside_those_of_minmax(tmp_path, method):
    data = {"pixels": np.random.default_rng(0).standard_t(2, (12, 3, 8, 8)).astype(np.float32)}
    widest = ranges_of(calibrate(tmp_path, image_model(), data, samples=12))
    found = ranges_of(calibrate(tmp_path, image_model(), data, samples=12, calibration_method=method))
    assert all(widest[name][0] <= low <= high <= widest[name][1] for name, (low, high) in found.items())
    assert any(found[name] != widest[name] for name in widest)


@pytest.mark.parametrize("method", ["minmax", "entropy", "percentile"])
def test_the_order_of_the_samples_does_not_matter(tmp_path, method):
    # A histogram that grew with the samples would have a million bins, 1000 to 0.001.
    data = {"pixels": pixels(17)["pixels"] * np.logspace(-3, 3, 17, dtype=np.float32).reshape(17, 1, 1, 1)}
    backwards = {name: array[::-1] for name, array in data.items()}
    one = calibrate(tmp_path, image_model(), data, samples=17, calibration_method=method)
    other = calibrate(tmp_path, image_model(), backwards, samples=17, calibration_method=method)
    assert ranges_of(one) == ranges_of(other)


@pytest.mark.parametrize("method", ["entropy", "percentile"])
def test_samples_of_different_lengths_have_one_histogram(tmp_path, method):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[n, 2] x) => (float[n, 2] y) { y = Relu(x) }'
    )
    folder = tmp_path / "data"
    folder.mkdir()
    for length in (3, 5):
        np.savez(folder / f"{length}.npz", x=np.linspace(-length, length, 2 * length, dtype=np.float32).reshape(-1, 2))
    low, high = ranges_of(calibrate(tmp_path, model, folder, calibration_method=method))["x"]
    assert -5 <= low < -3
    assert 3 < high <= 5


@pytest.mark.parametrize("mask", [-np.inf, float(np.finfo(np.float32).min)])
@pytest.mark.parametrize("method", ["minmax", "percentile"])
def test_a_mask_that_stands_for_infinity_is_measured_as_a_moderate_one(tmp_path, mask, method):
    infinite = calibrate(tmp_path, text_model(mask=mask), token_ids(8), calibration_method=method)
    moderate = calibrate(tmp_path, text_model(mask=-50), token_ids(8), calibration_method=method)
    assert ranges_of(infinite) == ranges_of(moderate)
    assert (infinite.metrics["clamped_constants"], infinite.metrics["extreme_tensors"]) == (1, 0)
    assert moderate.metrics["clamped_constants"] == 0


def test_infinity_that_comes_with_the_data_is_refused(tmp_path):
    data = pixels(4)
    data["pixels"][2, 0, 0] = np.inf
    with pytest.raises(StageError, match="not finite"):
        calibrate(tmp_path, image_model(), data)


def test_extremes_that_come_with_the_data_are_counted_by_minmax_and_refused_by_histograms(tmp_path):
    data = pixels(4)
    data["pixels"][2, 0, 0] = -1e31
    assert calibrate(tmp_path, image_model(), data).metrics["extreme_tensors"] >= 1
    with pytest.raises(StageError, match=r"reach 1e\+30"):
        calibrate(tmp_path, image_model(), data, calibration_method="percentile")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"calibration_method": "median"}, "median"),
        ({"samples": 0}, "at least one sample"),
        ({"distribution": "cauchy"}, "cauchy"),
    ],
)
def test_settings_that_there_are_not_are_refused(tmp_path, fields, message):
    with pytest.raises(StageError, match=message):
        calibrate(tmp_path, image_model(), **fields)


def test_quantized_compiled_and_half_precision_models_are_refused(tmp_path):
    y = {"y": [1, 2]}
    x = {"x": (TensorProto.FLOAT, [1, 2])}
    scale = {"s": np.array(0.1, np.float32), "z": np.array(0, np.uint8)}
    q = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"])
    dq = helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"])
    context = helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft", embed_mode=1, ep_cache_context="bin")
    half = {"h": np.ones(2, np.float16)}
    cast = helper.make_node("Cast", ["h"], ["f"], to=TensorProto.FLOAT)
    add = helper.make_node("Add", ["x", "f"], ["y"])
    for nodes, constants, message in (
        ([q, dq], scale, "quantized already and cannot be calibrated"),
        ([context], {}, "EPContext"),
        ([cast, add], half, "float16"),
    ):
        with pytest.raises(StageError, match=message):
            calibrate(tmp_path, model_of(nodes, x, y, constants))
