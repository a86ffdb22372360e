"""Faults that a cosine misses: a wrong scale, single-number outputs, noise, missing numbers, random outputs."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import validation_samples
from onnx import ModelProto, helper
from optimize_samples import graph
from quantization_samples import calibrate, put, stored, weights

from winml_dag.errors import InputError, MeasuredError, StageError
from winml_dag.stages.quality import AS_IT_IS, MINIMUM_COSINE, Quality

validate = functools.partial(validation_samples.validate, precision="w8a8")


def linear(factor: float = 1.0, noise: float = 0.0, columns: int = 16) -> ModelProto:
    """Return ``y = x w * factor``, with *noise* added to the weights."""
    matrix = (weights(8, columns) + noise * weights(8, columns, seed=1)) * np.float32(factor)
    return graph(f"g (float[1, 8] x) => (float[1, {columns}] y) {{ y = MatMul (x, w) }}", w=matrix)


def refused(folder: Path, candidate: ModelProto, reference: ModelProto, **more: Any) -> str:
    with pytest.raises(StageError) as failed:
        validate(folder, candidate, reference, **more)
    return failed.value.message


# The scale.


@pytest.mark.parametrize("precision", [*MINIMUM_COSINE, AS_IT_IS])
def test_wrong_scale_fails_in_every_precision(tmp_path: Path, precision: str) -> None:
    with pytest.raises(MeasuredError, match="4 times too small, where validate") as small:
        validate(tmp_path / "4", linear(0.25), linear(), precision=precision)
    assert small.value.metrics["outputs"]["y"]["scale"] == 0.25
    assert "scale" in small.value.metrics["broken"]["y"]
    large = refused(tmp_path / "2", linear(2.0), linear(), precision=precision)
    assert "values are 2 times too large" in large


def test_provider_worse_than_cpu_is_refused_but_poor_model_is_not(tmp_path: Path) -> None:
    poor = linear(noise=0.5)
    slots = {"uncompiled": put(tmp_path / "sound", linear())}
    refusal = refused(tmp_path / "wrong", poor, linear(), slots=slots)
    assert refusal.startswith("The provider computes output 'y' wrongly: on 3 random samples its signal to noise is ")
    slots = {"uncompiled": put(tmp_path / "poor", poor)}
    assert validate(tmp_path / "kept", poor, linear(), slots=slots)["quality"]["sqnr_db"] < 12


def test_small_scale_error_is_poor_and_noise_is_not_scale(tmp_path: Path) -> None:
    report = validate(tmp_path / "off", linear(0.7), linear(), precision="w8a16")
    assert report["outputs"]["y"]["scale"] == report["quality"]["scale"] == 0.7
    assert report["warnings"] == ["Output 'y': values are 1.43 times too small, which its cosine does not show."]
    quality = Quality.from_json(report["quality"])
    assert quality is not None
    assert "values are 1.43 times too small" in str(quality.shortfall("w8a16"))
    assert "values are 1.43 times too small" in quality.sentence()
    noisy = Quality.from_json(validate(tmp_path / "noisy", linear(noise=0.5), linear())["quality"])
    assert noisy is not None
    assert noisy.cosine < 0.95
    assert noisy.scale == 1.0
    assert "times" not in noisy.sentence()


def test_output_with_wrong_scale_decides_quality(tmp_path: Path) -> None:
    def both(factor: float) -> ModelProto:
        return graph(
            "g (float[1, 8] x) => (float[1, 16] noisy, float[1, 16] scaled) "
            "{ noisy = MatMul (x, w) scaled = MatMul (x, v) }",
            w=weights(8, 16) + (factor != 1) * np.float32(0.05) * weights(8, 16, seed=1),
            v=weights(8, 16, seed=2) * np.float32(factor),
        )

    quality = validate(tmp_path, both(0.8), both(1.0))["quality"]
    assert (quality["output"], quality["scale"]) == ("scaled", 0.8)


def test_user_bound_checks_scale_unless_disabled(tmp_path: Path) -> None:
    assert "2 times too large" in refused(tmp_path / "a", linear(2.0), linear(), min_cosine=0.99, min_sqnr_db=None)
    assert validate(tmp_path / "b", linear(2.0), linear(), min_cosine=-1.0, min_sqnr_db=None)["outputs"]


# Single numbers.


def test_single_number_is_judged_by_error_not_sign(tmp_path: Path) -> None:
    one = linear(columns=1)
    assert validate(tmp_path / "sound", linear(1.01, columns=1), one)["outputs"]["y"]["cosine_min"] is None
    # With one sample, its cosine is 1.
    message = refused(tmp_path / "off", linear(1.3, columns=1), one, precision="fp32", samples=1)
    assert "error 0.3 times as large as the values, which are single numbers" in message
    assert "error 2 times as large" in refused(tmp_path / "sign", linear(-1.0, columns=1), one, samples=1)


def cancelling(w: np.ndarray, v: np.ndarray, added: np.ndarray) -> ModelProto:
    """Return ``y = x w - x v + added``."""
    nodes = "a = MatMul (x, w) b = MatMul (x, v) c = Sub (a, b) y = Add (c, added)"
    text = f"g (float[1, 8] x) => (float[1, {w.shape[1]}] y) {{ {nodes} }}"
    return graph(text, w=w, v=v, added=added.astype(np.float32))


def balance(offset: float = 0.0) -> ModelProto:
    """Return a single number near zero: two sums of about 4 that cancel, plus *offset*."""
    w = np.ones((8, 1), np.float32)
    return cancelling(w, w - np.float32(1e-3), np.array([[offset]]))


def test_single_number_near_zero_is_judged_by_its_summands(tmp_path: Path) -> None:
    report = validate(tmp_path / "sound", balance(0.03), balance())
    assert 0.03 < report["outputs"]["y"]["floor"] < 0.5
    assert "errors up to" in report["warnings"][0]
    assert "single numbers" in refused(tmp_path / "broken", balance(2.0), balance())
    # In float32 sums of 4 are more precise than that.
    assert "single numbers" in refused(tmp_path / "fp32", balance(0.03), balance(), precision="fp32")


# Outputs that consist of rounding errors.


def cancelled(added: float = 0.0) -> ModelProto:
    """Return logits of 1e-7 of their summands, and others with them; *added* to the former."""
    w, signs = weights(8, 16), np.random.default_rng(3).choice([-1, 1], (1, 16))
    return cancelling(w, w * np.float32(1 + 1e-7), added * signs)


def saturated(shift: float = -12.0) -> ModelProto:
    text = "g (float[1, 8] x) => (float[1, 16] y) <float s = {%s}> { a = MatMul (x, w) b = Add (a, s) y = Sigmoid (b) }"
    return graph(text % shift, w=weights(8, 16))


@pytest.mark.parametrize(
    ("reference", "sound", "broken"),
    [
        (cancelled(), cancelled(0.01), cancelled(1.0)),
        (saturated(), saturated(-14.0), saturated(0.0)),
        (saturated(), saturated(-30.0), saturated(-1.0)),
    ],
)
def test_noise_output_is_not_compared_by_cosine(
    tmp_path: Path, reference: ModelProto, sound: ModelProto, broken: ModelProto
) -> None:
    report = validate(tmp_path / "sound", sound, reference)
    assert report["outputs"]["y"]["cosine"] == 1.0
    assert 0 < report["outputs"]["y"]["max_abs_error"] <= report["outputs"]["y"]["floor"]
    assert any("'y' of the float model is what cancelling or saturated values leave" in it for it in report["warnings"])
    assert "Output 'y' is too far" in refused(tmp_path / "broken", broken, reference)


def test_small_significant_values_are_not_noise(tmp_path: Path) -> None:
    """The probabilities of 1,000 classes, which 8 bits round to 0; and small voltages in a model that computes with
    them.
    """

    def probabilities(factor: float) -> ModelProto:
        nodes = "a = MatMul (x, w) p = Softmax (a) y = Mul (p, f)"
        return graph(
            f"g (float[1, 8] x) => (float[1, 1000] y) <float f = {{{factor}}}> {{ {nodes} }}", w=weights(8, 1000)
        )

    assert "too far" in refused(tmp_path / "p", probabilities(0.0), probabilities(1.0))
    assert "too far" in refused(tmp_path / "v", linear(0.0), linear(1e-9))


def drawing(outputs: str) -> ModelProto:
    return graph(
        f"""g (float[1, 8] x) => ({outputs}) {{
        exact = MatMul (x, w) noise = RandomNormalLike <seed = 1.0> (exact) drawn = Add (exact, noise) }}""",
        w=weights(8, 16),
    )


def test_random_outputs_are_warned_about_and_not_compared(tmp_path: Path) -> None:
    both = drawing("float[1, 16] exact, float[1, 16] drawn")
    report = validate(tmp_path / "one", both, both, precision="fp32")
    assert report["outputs"].keys() == {"exact"}
    (warning,) = report["warnings"]
    assert "draws random numbers (RandomNormalLike): 'drawn' has other values in each run" in warning
    one = drawing("float[1, 16] drawn")
    report = validate(tmp_path / "all", one, one, precision="fp32")
    assert report["reference"] is False
    assert "quality" not in report
    assert "'drawn'" in report["warnings"][0]


# Inputs of every type.


def summing(kind: str) -> ModelProto:
    """Return a model with ``y``: the sum of its input, which is a tensor of *kind*, and a constant."""
    sums = "f = Cast <to = 1> (x) s = ReduceSum <keepdims = 0> (f) y = Sum (k, s)"
    return graph(f"g ({kind} x) => (float[3] y) <float[3] k = {{1, 2, 3}}> {{ {sums} }}")


@pytest.mark.parametrize("shape", [[], [2, 3], [0, 3]])
@pytest.mark.parametrize("dtype", ["float", "float16", "double", "bool", "uint8", "int8", "uint16", "int32", "int64"])
def test_inputs_of_any_type_and_shape_are_run(tmp_path: Path, dtype: str, shape: list[int]) -> None:
    model = summing(f"{dtype}{shape or ''}")
    assert validate(tmp_path / "random", model, model, precision="fp32")["quality"]["cosine"] == 1.0
    kind = helper.tensor_dtype_to_np_dtype(model.graph.input[0].type.tensor_type.elem_type)
    slots = {"data": stored(tmp_path / "data", x=np.asfortranarray(np.ones([4, *shape], kind)))}
    report = validate(tmp_path / "given", model, model, precision="fp32", slots=slots)
    assert (report["data"], report["samples"]) == ("npz", 2)


def test_model_without_inputs_is_run(tmp_path: Path) -> None:
    model = graph("g () => (float[3] y) <float[3] k = {1, 2, 3}> { y = Sum (k) }")
    assert validate(tmp_path, model, model, precision="fp32")["quality"]["cosine"] == 1.0


def test_string_and_sequence_inputs_are_refused(tmp_path: Path) -> None:
    texts = graph("g (string[2] x) => (float[1] y) { s = Shape (x) y = Cast <to = 1> (s) }")
    with pytest.raises(InputError, match="Input 'x' is of type string, and models are run here on tensors of numbers"):
        validate(tmp_path / "texts", texts, texts, precision="fp32")
    sequences = graph("g (seq(float[1]) x) => (float[1] y) <int64 at = {0}> { y = SequenceAt (x, at) }")
    with pytest.raises(InputError, match="Input 'x' is no tensor"):
        validate(tmp_path / "sequences", sequences, sequences, precision="fp32")


def test_failure_on_random_inputs_suggests_real_ones(tmp_path: Path) -> None:
    """Valid inputs depend on all numbers of the shape."""
    model = graph("g (float[6] x, int64[2] shape) => (float[1, 1] y) { r = Reshape (x, shape) y = ReduceSum (r) }")
    with pytest.raises(StageError) as failed:
        validate(tmp_path / "random", model, model, precision="fp32")
    assert "Its inputs were random, which is the likely reason: give real ones" in failed.value.advice
    with pytest.raises(StageError) as failed:
        calibrate(tmp_path, model)
    assert "give real ones (quant.calibration_data)" in failed.value.advice
    # Inputs on which the reference runs are not why another model fails.
    reference = graph(
        "g (float[6] x, int64[2] shape) => (float[1, 1] y) <int64[2] one = {1, 1}>"
        "{ c = Cast <to = 1> (shape) s = ReduceSum (x) t = ReduceSum (c) u = Add (s, t) y = Reshape (u, one) }"
    )
    with pytest.raises(StageError, match="The model loads but does not run") as failed:
        validate(tmp_path / "other", model, reference, precision="fp32")
    assert failed.value.advice == ""
    slots = {"data": stored(tmp_path / "data", x=np.ones((2, 6), np.float32), shape=np.array([[2, 3]] * 2))}
    assert validate(tmp_path / "given", model, model, precision="fp32", slots=slots)["samples"]


# Samples used by calibration.


def rows(folder: Path, *numbers: float) -> Path:
    return stored(folder, x=np.array([np.full((1, 8), number) for number in numbers], np.float32))


def held_out(folder: Path, **slots: Path) -> Any:
    report = validate(folder, linear(), linear(), slots=slots, calibrated=True)
    assert report["quality"]["held_out"] is report["held_out"]
    return report["held_out"]


def test_held_out_excludes_samples_seen_in_calibration(tmp_path: Path) -> None:
    data = rows(tmp_path / "data", *range(8))
    found = calibrate(tmp_path, linear(), data, keep_back=3)
    ranges = found.folder
    assert held_out(tmp_path / "a", ranges=ranges, data=data) is True
    assert held_out(tmp_path / "b", ranges=ranges, input_data=rows(tmp_path / "other", 20, 21)) is True
    # Partly the same contents under another name.
    assert held_out(tmp_path / "c", ranges=ranges, input_data=rows(tmp_path / "same", 20, 2)) is False
    for name, numbers in {"twice": (0, 1, 2, 3, 4, 5, 6, 1), "alone": (1,)}.items():
        samples = rows(tmp_path / name / "data", *numbers)
        known = calibrate(tmp_path / name, linear(), samples, keep_back=3).folder
        assert held_out(tmp_path / name / "run", ranges=known, data=samples) is False, name
    # Ranges from another source, without records.
    assert held_out(tmp_path / "d", data=data) is None
    older = json.loads(found.content)
    del older["from"]["seen"]
    found.path.write_text(json.dumps(older), encoding="utf-8")
    assert held_out(tmp_path / "e", ranges=ranges, data=data) is None
