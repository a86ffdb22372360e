from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from optimize_samples import graph
from quantization_samples import (
    WIDTH,
    calibrate,
    image_model,
    pixels,
    quantize,
    text_model,
    token_ids,
    weights,
)

from winml_dag.errors import StageError
from winml_dag.stages.float_model import float_tensors
from winml_dag.stages.ranges import Provenance, Ranges

FLOAT32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


RELU = graph("g (float[n, width] x) => (float[n, width] y) { y = Relu (x) }")
PROVENANCE = Provenance("sha256:00", "npz", 3, "xxh3-128:00")


def ranges_of(result):
    return Ranges.read(result.path).bounds


def test_minmax_ranges_are_sample_extremes(tmp_path):
    data = pixels(20)
    bounds = ranges_of(calibrate(tmp_path, image_model(), data, samples=20))
    assert bounds["pixels"] == (data["pixels"].min(), data["pixels"].max())
    assert bounds["r1"][0] == 0.0
    assert bounds["c1"][0] < 0.0 < bounds["c1"][1]


def test_every_float_activation_has_a_range_in_a_file_without_time_or_path(tmp_path):
    result = calibrate(tmp_path, text_model(), token_ids(3))
    inferred = onnx.shape_inference.infer_shapes(text_model())
    assert float_tensors(inferred.graph) == set(ranges_of(result))
    assert "kept" in ranges_of(result)  # made by a Cast, which is not quantized itself
    assert result.metrics["tensors"] == len(ranges_of(result))
    assert result.metrics["calibration_time_seconds"] > 0
    assert set(json.loads(result.content)) == {"format", "method", "from", "ranges", "typical", "channels"}
    assert [path.name for path in result.folder.iterdir()] == ["calibration_ranges.json"]


@given(
    bounds=st.dictionaries(st.text(), st.tuples(FLOAT32, FLOAT32), max_size=5),
    method=st.sampled_from(["minmax", "entropy"]),
)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_ranges_roundtrip_regardless_of_order(tmp_path, bounds, method):
    path = tmp_path / "ranges.json"
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
        '{"format":1}',
        '{"format":2,"from":{"model":"","data":"npz","samples":1,"digest":""},"method":"minmax","ranges":{"x":[1]}}',
        '{"format":2,"from":{"model":""},"method":"minmax","ranges":{}}',
        '{"format":2,"method":"minmax","ranges":{}}',
    ],
)
def test_invalid_ranges_file_is_refused(tmp_path, content):
    (tmp_path / "ranges.json").write_text(content)
    with pytest.raises(StageError, match="no activation ranges"):
        Ranges.read(tmp_path / "ranges.json")


def test_random_data_is_reproducible_per_seed(tmp_path):
    first = calibrate(tmp_path, image_model(), seed=3, samples=4)
    again = calibrate(tmp_path, image_model(), seed=3, samples=4)
    other = calibrate(tmp_path, image_model(), seed=4, samples=4)
    normal = calibrate(tmp_path, image_model(), seed=3, samples=4, distribution="normal")
    assert (first.metrics["data"], first.metrics["samples"]) == ("random", 4)
    assert ranges_of(first) == ranges_of(again)
    assert len({json.dumps(ranges_of(result)["c1"]) for result in (first, other, normal)}) == 3


@pytest.mark.parametrize("method", ["entropy", "percentile"])
def test_entropy_and_percentile_ranges_lie_within_minmax(tmp_path, method):
    data = {"x": np.random.default_rng(0).standard_t(2, (12, 1, 192)).astype(np.float32)}
    widest = ranges_of(calibrate(tmp_path, RELU, data, samples=12))
    found = ranges_of(calibrate(tmp_path, RELU, data, samples=12, calibration_method=method))
    assert all(widest[name][0] <= low <= high <= widest[name][1] for name, (low, high) in found.items())
    assert any(found[name] != widest[name] for name in widest)


@pytest.mark.parametrize("method", ["minmax", "entropy", "percentile"])
def test_ranges_do_not_depend_on_sample_order(tmp_path, method):
    # A histogram that grew with the samples would have a million bins, 1000 to 0.001.
    x = np.random.default_rng(0).standard_normal((17, 1, 192)) * np.logspace(-3, 3, 17).reshape(17, 1, 1)
    one, other = (
        calibrate(tmp_path, RELU, {"x": x[::step].astype(np.float32)}, samples=17, calibration_method=method)
        for step in (1, -1)
    )
    assert ranges_of(one) == ranges_of(other)


@pytest.mark.parametrize("method", ["entropy", "percentile"])
def test_samples_of_different_lengths_share_one_histogram(tmp_path, method):
    folder = tmp_path / "data"
    folder.mkdir()
    for length in (3, 5):
        np.savez(folder / f"{length}.npz", x=np.linspace(-length, length, 2 * length, dtype=np.float32).reshape(-1, 2))
    low, high = ranges_of(calibrate(tmp_path, RELU, folder, calibration_method=method))["x"]
    assert -5 <= low < -3
    assert 3 < high <= 5


@pytest.mark.parametrize(
    ("method", "total", "unit"),
    [("minmax", 10, "samples"), ("percentile", 20, "samples in two passes"), ("entropy", 20, "samples in two passes")],
)
def test_progress_counts_samples_per_pass(tmp_path, method, total, unit):
    told: list[tuple[int, int | None, str]] = []
    data = {"x": np.ones((12, 1, 4), np.float32)}
    calibrate(tmp_path, RELU, data, calibration_method=method, progress=lambda *words: told.append(words))
    assert list(dict.fromkeys(told)) == [(done, total, unit) for done in range(total + 1)]


@pytest.mark.parametrize("mask", [-np.inf, float(np.finfo(np.float32).min)])
@pytest.mark.parametrize("method", ["minmax", "percentile"])
def test_infinite_mask_is_calibrated_as_moderate_mask(tmp_path, mask, method):
    infinite = calibrate(tmp_path, text_model(mask=mask), token_ids(8), calibration_method=method)
    moderate = calibrate(tmp_path, text_model(mask=-50), token_ids(8), calibration_method=method)
    assert ranges_of(infinite) == ranges_of(moderate)
    assert (infinite.metrics["clamped_constants"], infinite.metrics["extreme_tensors"]) == (1, 0)
    assert moderate.metrics["clamped_constants"] == 0


@pytest.mark.parametrize("method", ["minmax", "percentile"])
def test_nodes_with_infinite_activations_stay_in_float(tmp_path, method):
    # As T5 finds buckets of distances: it takes the logarithm of 0, and replaces it.
    model = graph(
        f"""g (float[1, {WIDTH}] x) => (float[1, {WIDTH}] y)
        {{ r = Relu (x) l = Log (r) d = Div (l, r) i = IsInf (d) k = Where (i, x, d) y = MatMul (k, w) }}""",
        w=weights(WIDTH, WIDTH),
    )
    ranges = calibrate(
        tmp_path, model, {"x": pixels(4)["pixels"].reshape(4, -1)[:, None, :WIDTH]}, calibration_method=method
    )
    assert Ranges.read(ranges.path).infinite == ("d", "l")
    result = quantize(tmp_path, model, "static", ranges, "onnxruntime", weight_type="uint8", activation_type="uint8")
    skipped = result.metrics["nodes_skipped_reasons"]
    assert skipped["Div"] == {"infinite on the calibration data": 1}
    assert "MatMul" not in skipped


def test_infinite_data_is_refused_and_extreme_data_by_histograms(tmp_path):
    data = pixels(4)
    data["pixels"][2, 0, 0] = np.inf
    with pytest.raises(StageError, match="not finite"):
        calibrate(tmp_path, image_model(), data)
    data["pixels"][2, 0, 0] = -1e31
    assert calibrate(tmp_path, image_model(), data).metrics["extreme_tensors"] >= 1
    with pytest.raises(StageError, match=r"reach 1e\+30"):
        calibrate(tmp_path, image_model(), data, calibration_method="percentile")
    with pytest.raises(StageError, match="cauchy"):
        calibrate(tmp_path, image_model(), distribution="cauchy")


def test_quantized_compiled_and_fp16_models_are_refused(tmp_path):
    qdq = graph(
        "g (float[2] x) => (float[2] y) <float s = {0.1}, uint8 z = {0}> "
        "{ q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z) }"
    )
    compiled = graph(
        """g (float[2] x) => (float[2] y)
        { y = com.microsoft.EPContext <embed_mode = 1, ep_cache_context = "bin"> (x) }""",
        imports=', "com.microsoft": 1',
    )
    half = quantize(tmp_path, image_model(), "fp16").model
    for model, message in (
        (qdq, "quantized already and cannot be calibrated"),
        (compiled, "EPContext"),
        (half, "float16"),
    ):
        with pytest.raises(StageError, match=message):
            calibrate(tmp_path, model)
