"""Faults that a cosine misses: a wrong scale, single-number outputs, noise, missing numbers, random outputs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper
from quantization_samples import model_of, weights

from winml_dag.engine.stage import Workspace
from winml_dag.errors import InputError, MeasuredError, StageError
from winml_dag.stages.calibrate import CalibrateConfig, CalibrateFields, KeptBack
from winml_dag.stages.calibrate.observe import run as run_calibrate
from winml_dag.stages.quality import AS_IT_IS, MINIMUM_COSINE, USUAL_COSINE, Bounds, Quality, rounding, scale_tolerance
from winml_dag.stages.target import RunTarget
from winml_dag.stages.validate import ValidateConfig, ValidateFields
from winml_dag.stages.validate import run as run_validate

FLOAT = TensorProto.FLOAT
node = helper.make_node


def validate(
    folder: Path,
    candidate: ModelProto,
    reference: ModelProto,
    precision: str = "w8a8",
    *,
    slots: dict[str, Path] | None = None,
    **fields: Any,
) -> Any:
    """Run validate in *folder* with the thresholds of *precision* and return its report."""
    inputs = {"model": folder / "model", "reference": folder / "reference", **(slots or {})}
    for path in (inputs["model"], inputs["reference"], folder / "report"):
        path.mkdir(parents=True)
    onnx.save(candidate, inputs["model"] / "model.onnx")
    onnx.save(reference, inputs["reference"] / "model.onnx")
    bounds = dataclasses.asdict(Bounds().completed(precision))
    given = {**bounds, "rounding": rounding(precision, in_half=False), **fields}
    config = ValidateConfig(ValidateFields(**given), RunTarget("CPUExecutionProvider", "cpu"))
    return run_validate(config, Workspace(inputs, {"report": folder / "report"}))


def linear(factor: float = 1.0, noise: float = 0.0, columns: int = 16) -> ModelProto:
    """Return ``y = x w * factor``, with *noise* added to the weights."""
    matrix = (weights(8, columns) + noise * weights(8, columns, seed=1)) * np.float32(factor)
    return model_of([node("MatMul", ["x", "w"], ["y"])], {"x": (FLOAT, [1, 8])}, {"y": [1, columns]}, {"w": matrix})


def refused(folder: Path, candidate: ModelProto, reference: ModelProto, **more: Any) -> str:
    with pytest.raises(StageError) as failed:
        validate(folder, candidate, reference, **more)
    return failed.value.message


# The scale.


@pytest.mark.parametrize("precision", [*MINIMUM_COSINE, AS_IT_IS])
def test_values_of_a_wrong_scale_fail_in_every_precision(tmp_path: Path, precision: str) -> None:
    small = refused(tmp_path / "4", linear(0.25), linear(), precision=precision)
    assert "values are 4 times too small, where validate.min_cosine of" in small
    large = refused(tmp_path / "2", linear(2.0), linear(), precision=precision)
    assert "values are 2 times too large" in large


def test_the_figure_is_in_what_a_failure_tells(tmp_path: Path) -> None:
    with pytest.raises(MeasuredError) as failed:
        validate(tmp_path, linear(0.25), linear())
    assert failed.value.metrics["outputs"]["y"]["scale"] == 0.25
    assert failed.value.metrics["broken"] == {"y": ["scale"]}


def test_a_provider_that_computes_worse_than_the_cpu_is_refused_and_a_poor_model_is_not(
    tmp_path: Path,
) -> None:
    slots = {"uncompiled": tmp_path / "uncompiled"}
    slots["uncompiled"].mkdir()
    poor = linear(noise=0.5)
    onnx.save(linear(), slots["uncompiled"] / "model.onnx")
    refusal = refused(tmp_path / "wrong", poor, linear(), slots=slots)
    assert refusal.startswith("The provider computes output 'y' wrongly: on 3 random samples its signal to noise is ")
    onnx.save(poor, slots["uncompiled"] / "model.onnx")
    assert validate(tmp_path / "poor", poor, linear(), slots=slots)["quality"]["sqnr_db"] < 12


def test_values_that_are_a_little_off_are_poor_and_noise_is_no_scale(tmp_path: Path) -> None:
    report = validate(tmp_path / "off", linear(0.7), linear(), "w8a16")
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


def test_the_output_whose_scale_is_wrong_speaks_for_the_model(tmp_path: Path) -> None:
    def both(factor: float) -> ModelProto:
        nodes = [node("MatMul", ["x", "w"], ["noisy"]), node("MatMul", ["x", "v"], ["scaled"])]
        w = weights(8, 16) + (factor != 1) * np.float32(0.05) * weights(8, 16, seed=1)
        constants = {"w": w, "v": weights(8, 16, seed=2) * np.float32(factor)}
        return model_of(nodes, {"x": (FLOAT, [1, 8])}, {"noisy": [1, 16], "scaled": [1, 16]}, constants)

    quality = validate(tmp_path, both(0.8), both(1.0))["quality"]
    assert (quality["output"], quality["scale"]) == ("scaled", 0.8)


def test_a_bound_of_the_users_sees_the_scale_too_unless_it_asks_for_nothing(tmp_path: Path) -> None:
    assert "2 times too large" in refused(tmp_path / "a", linear(2.0), linear(), min_cosine=0.99, min_sqnr_db=None)
    assert validate(tmp_path / "b", linear(2.0), linear(), min_cosine=-1.0, min_sqnr_db=None)["outputs"]


def test_what_is_usual_is_closer_than_what_is_broken() -> None:
    for precision, usual in USUAL_COSINE.items():
        assert scale_tolerance(usual) <= scale_tolerance(MINIMUM_COSINE[precision]) < 1


# Single numbers.


def test_a_single_number_is_judged_by_its_error_not_by_its_sign(tmp_path: Path) -> None:
    one = linear(columns=1)
    assert validate(tmp_path / "sound", linear(1.01, columns=1), one)["outputs"]["y"]["cosine_min"] is None
    # With one sample, its cosine is 1.
    message = refused(tmp_path / "off", linear(1.3, columns=1), one, precision="fp32", samples=1)
    assert "error 0.3 times as large as the values, which are single numbers" in message
    assert "error 2 times as large" in refused(tmp_path / "sign", linear(-1.0, columns=1), one, samples=1)


def balance(offset: float = 0.0) -> ModelProto:
    """Return a single number near zero: two sums of about 4 that cancel, plus *offset*."""
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("MatMul", ["x", "v"], ["b"]),
        node("Sub", ["a", "b"], ["c"]),
        node("Add", ["c", "offset"], ["y"]),
    ]
    w = np.ones((8, 1), np.float32)
    constants = {"w": w, "v": w - np.float32(1e-3), "offset": np.array([[offset]], np.float32)}
    return model_of(nodes, {"x": (FLOAT, [1, 8])}, {"y": [1, 1]}, constants)


def test_a_single_number_next_to_nothing_is_judged_by_what_it_is_a_sum_of(tmp_path: Path) -> None:
    report = validate(tmp_path / "sound", balance(0.03), balance())
    assert 0.03 < report["outputs"]["y"]["floor"] < 0.5
    assert "errors up to" in report["warnings"][0]
    assert "single numbers" in refused(tmp_path / "broken", balance(2.0), balance())
    # In float32 sums of 4 are more precise than that.
    assert "single numbers" in refused(tmp_path / "fp32", balance(0.03), balance(), precision="fp32")


# Outputs that consist of rounding errors.


def cancelled(added: float = 0.0) -> ModelProto:
    """Return logits of 1e-7 of their summands, and others with them; *added* to the former."""
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("MatMul", ["x", "v"], ["b"]),
        node("Sub", ["a", "b"], ["c"]),
        node("Add", ["c", "added"], ["y"]),
    ]
    random = np.random.default_rng(3).choice([-1, 1], (1, 16))
    w = weights(8, 16)
    constants = {"w": w, "v": w * np.float32(1 + 1e-7), "added": (added * random).astype(np.float32)}
    return model_of(nodes, {"x": (FLOAT, [1, 8])}, {"y": [1, 16]}, constants)


def saturated(shift: float = -12.0) -> ModelProto:
    nodes = [node("MatMul", ["x", "w"], ["a"]), node("Add", ["a", "shift"], ["b"]), node("Sigmoid", ["b"], ["y"])]
    constants = {"w": weights(8, 16), "shift": np.array(shift, np.float32)}
    return model_of(nodes, {"x": (FLOAT, [1, 8])}, {"y": [1, 16]}, constants)


@pytest.mark.parametrize(
    ("reference", "sound", "broken"),
    [
        (cancelled(), cancelled(0.01), cancelled(1.0)),
        (saturated(), saturated(-14.0), saturated(0.0)),
        (saturated(), saturated(-30.0), saturated(-1.0)),
    ],
)
def test_noise_is_not_compared_by_its_angle(
    tmp_path: Path, reference: ModelProto, sound: ModelProto, broken: ModelProto
) -> None:
    report = validate(tmp_path / "sound", sound, reference)
    assert report["outputs"]["y"]["cosine"] == 1.0
    assert 0 < report["outputs"]["y"]["max_abs_error"] <= report["outputs"]["y"]["floor"]
    assert any("'y' of the float model is what cancelling or saturated values leave" in it for it in report["warnings"])
    assert "Output 'y' is too far" in refused(tmp_path / "broken", broken, reference)


def test_small_values_that_say_something_are_no_noise(tmp_path: Path) -> None:
    """The probabilities of 1,000 classes, which 8 bits round to 0; and small voltages in a model that computes with
    them.
    """

    def probabilities(factor: float) -> ModelProto:
        nodes = [node("MatMul", ["x", "w"], ["a"]), node("Softmax", ["a"], ["p"]), node("Mul", ["p", "f"], ["y"])]
        constants = {"w": weights(8, 1000), "f": np.array(factor, np.float32)}
        return model_of(nodes, {"x": (FLOAT, [1, 8])}, {"y": [1, 1000]}, constants)

    assert "too far" in refused(tmp_path / "p", probabilities(0.0), probabilities(1.0))
    assert "too far" in refused(tmp_path / "v", linear(0.0), linear(1e-9))


# References that allow no comparison.


def logarithm(number: float) -> ModelProto:
    nodes = [node("Sub", ["x", "number"], ["d"]), node("Log", ["d"], ["y"])]
    return model_of(nodes, {"x": (FLOAT, [1, 8])}, {"y": [1, 8]}, {"number": np.array(number, np.float32)})


def test_a_float_model_without_numbers_proves_nothing(tmp_path: Path) -> None:
    message = refused(tmp_path / "nan", logarithm(2.0), logarithm(2.0))
    assert "Output 'y' of the float model has 24 NaN and 0 infinite values on 3 random samples" in message
    # The remaining values have a cosine of 1.
    assert "Output 'y' of the float model has" in refused(tmp_path / "some", logarithm(0.5), logarithm(0.5))


def drawing(*outputs: str) -> ModelProto:
    nodes = [
        node("MatMul", ["x", "w"], ["exact"]),
        node("RandomNormalLike", ["exact"], ["noise"], seed=1.0),
        node("Add", ["exact", "noise"], ["drawn"]),
    ]
    return model_of(nodes, {"x": (FLOAT, [1, 8])}, {name: [1, 16] for name in outputs}, {"w": weights(8, 16)})


def test_outputs_that_differ_from_run_to_run_are_told_of_and_not_compared(tmp_path: Path) -> None:
    report = validate(tmp_path / "one", drawing("exact", "drawn"), drawing("exact", "drawn"), "fp32")
    assert report["outputs"].keys() == {"exact"}
    (warning,) = report["warnings"]
    assert "draws random numbers (RandomNormalLike): 'drawn' has other values in each run" in warning
    report = validate(tmp_path / "all", drawing("drawn"), drawing("drawn"), "fp32")
    assert report["reference"] is False
    assert "quality" not in report
    assert "'drawn'" in report["warnings"][0]


# Inputs of every type.

KINDS = [
    *(FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BOOL),
    *(TensorProto.UINT8, TensorProto.INT8, TensorProto.UINT16, TensorProto.INT32, TensorProto.INT64),
]


def of_inputs(inputs: dict[str, tuple[int, list[Any]]]) -> ModelProto:
    """Return a model with ``y``: the sum of all inputs, and a constant."""
    nodes = [node("Cast", [name], [f"{name} float"], to=FLOAT) for name in inputs]
    nodes += [node("ReduceSum", [f"{name} float"], [f"{name} sum"], keepdims=0) for name in inputs]
    nodes.append(node("Sum", ["numbers", *(f"{name} sum" for name in inputs)], ["y"]))
    return model_of(nodes, inputs, {"y": [3]}, {"numbers": np.array([1, 2, 3], np.float32)})


@pytest.mark.parametrize("shape", [[], [2, 3], [0, 3]])
@pytest.mark.parametrize("dtype", KINDS)
def test_a_model_is_run_on_inputs_of_any_kind_and_shape(tmp_path: Path, dtype: int, shape: list[int]) -> None:
    model = of_inputs({"x": (dtype, shape)})
    assert validate(tmp_path / "random", model, model, "fp32")["quality"]["cosine"] == 1.0
    (tmp_path / "data").mkdir()
    array = np.ones([4, *shape], helper.tensor_dtype_to_np_dtype(dtype))
    np.savez(tmp_path / "data" / "data.npz", x=np.asfortranarray(array))
    report = validate(tmp_path / "given", model, model, "fp32", slots={"data": tmp_path / "data"})
    assert (report["data"], report["samples"]) == ("npz", 2)


def test_a_model_without_inputs_is_run(tmp_path: Path) -> None:
    assert validate(tmp_path, of_inputs({}), of_inputs({}), "fp32")["quality"]["cosine"] == 1.0


def test_texts_and_sequences_are_refused_in_a_sentence(tmp_path: Path) -> None:
    texts = model_of(
        [node("Shape", ["x"], ["s"]), node("Cast", ["s"], ["y"], to=FLOAT)], {"x": (8, [2])}, {"y": [1]}, {}
    )
    with pytest.raises(InputError, match="Input 'x' is of type string, and models are run here on tensors of numbers"):
        validate(tmp_path / "texts", texts, texts, "fp32")
    nodes: list[NodeProto] = [node("SequenceAt", ["x", "at"], ["y"])]
    sequences = model_of(nodes, {"x": (FLOAT, [1])}, {"y": [1]}, {"at": np.array(0)})
    sequences.graph.input[0].CopyFrom(helper.make_tensor_sequence_value_info("x", FLOAT, None))
    with pytest.raises(InputError, match="Input 'x' is no tensor"):
        validate(tmp_path / "sequences", sequences, sequences, "fp32")


def reshaping() -> ModelProto:
    """Valid inputs depend on all numbers of the shape."""
    nodes = [node("Reshape", ["x", "shape"], ["r"]), node("ReduceSum", ["r"], ["y"], keepdims=1)]
    inputs: dict[str, tuple[int, list[Any]]] = {"x": (FLOAT, [6]), "shape": (TensorProto.INT64, [2])}
    return model_of(nodes, inputs, {"y": [1, 1]}, {})


def test_a_model_that_fails_on_random_inputs_says_that_they_may_be_why(tmp_path: Path) -> None:
    with pytest.raises(StageError) as failed:
        validate(tmp_path / "random", reshaping(), reshaping(), "fp32")
    assert "Its inputs were random, which is the likely reason: give real ones" in failed.value.advice
    with pytest.raises(StageError) as failed:
        calibrate(tmp_path, reshaping(), None)
    assert "give real ones (quant.calibration_data)" in failed.value.advice
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "data.npz", x=np.ones((2, 6), np.float32), shape=np.array([[2, 3]] * 2))
    assert validate(tmp_path / "given", reshaping(), reshaping(), "fp32", slots={"data": tmp_path / "data"})["samples"]


# Samples used by calibration.


def calibrate(folder: Path, model: ModelProto, data: Path | None, *, samples: int = 10, keep_back: int = 3) -> Path:
    """Return the folder with the ranges of *model*."""
    at, out = folder / "calibrated", folder / "ranges"
    at.mkdir()
    out.mkdir()
    onnx.save(model, at / "model.onnx")
    given = CalibrateFields(samples, "minmax", 0 if data is None else None, "uniform" if data is None else None)
    inputs = {"model": at} if data is None else {"model": at, "data": data}
    with contextlib.chdir(at):
        run_calibrate(CalibrateConfig(given, KeptBack(keep_back)), Workspace(inputs, {"ranges": out}))
    return out


def rows(folder: Path, *numbers: float) -> Path:
    folder.mkdir(parents=True)
    np.savez(folder / "rows.npz", x=np.array([np.full((1, 8), number) for number in numbers], np.float32))
    return folder


def held_out(folder: Path, ranges: Path | None, **slots: Path) -> bool | None:
    given = slots if ranges is None else {**slots, "ranges": ranges}
    report = validate(folder, linear(), linear(), slots=given, calibrated=True, samples=3)
    assert report["quality"]["held_out"] is report["held_out"]
    found = report["held_out"]
    assert found is None or isinstance(found, bool)
    return found


def test_held_out_is_what_calibration_has_provably_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = rows(tmp_path / "data", *range(8))
    ranges = calibrate(tmp_path, linear(), data)
    assert held_out(tmp_path / "a", ranges, data=data) is True
    assert held_out(tmp_path / "b", ranges, input_data=rows(tmp_path / "other", 20, 21)) is True
    # Partly the same contents under another name.
    assert held_out(tmp_path / "c", ranges, input_data=rows(tmp_path / "same", 20, 2)) is False
    # Ranges from another source, without records.
    assert held_out(tmp_path / "d", None, data=data) is None
    older = json.loads((ranges / "calibration_ranges.json").read_text(encoding="utf-8"))
    del older["from"]["seen"]
    (ranges / "calibration_ranges.json").write_text(json.dumps(older), encoding="utf-8")
    assert held_out(tmp_path / "e", ranges, data=data) is None


def test_samples_that_are_there_twice_or_alone_are_not_held_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    twice = rows(tmp_path / "twice", 0, 1, 2, 3, 4, 5, 6, 1)
    (tmp_path / "first").mkdir()
    assert held_out(tmp_path / "a", calibrate(tmp_path / "first", linear(), twice), data=twice) is False
    alone = rows(tmp_path / "alone", 1)
    (tmp_path / "second").mkdir()
    assert held_out(tmp_path / "b", calibrate(tmp_path / "second", linear(), alone), data=alone) is False
