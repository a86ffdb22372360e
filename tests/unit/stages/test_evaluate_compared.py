"""Comparison of a model's outputs with those of another: single, in batches, with any open sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from evaluation_samples import evaluate, linear_model, table, text_model, value


def test_without_data_random_inputs_are_compared_also_in_batches(tmp_path: Path) -> None:
    model = linear_model(tmp_path / "m.onnx", table(8)[:6], batch="batch")
    alone, together = (evaluate(tmp_path, model, None, samples=7, batch_size=size, reference=model) for size in (1, 3))
    assert alone == together
    assert alone["outputs"]["logits"]["cosine"] == 1.0
    assert (alone["data"], alone["of"]) == ("random", None)


def test_what_is_no_number_in_the_reference_is_left_out_and_told(tmp_path: Path) -> None:
    rows = table(3)[:4]
    rows[0, 0] = np.nan
    model = linear_model(tmp_path / "m.onnx", rows)
    report = evaluate(tmp_path, model, None, samples=5, reference=model)
    (output,) = report["outputs"].values()
    assert (output["cosine"], output["nan_count"], output["reference_nan_count"]) == (1.0, 0, 5)


def test_either_model_may_take_several_samples_at_once(tmp_path: Path) -> None:
    weights = table(3)[:4]
    rows = np.random.default_rng(5).normal(size=(7, 4)).astype(np.float32)
    labels = (rows @ weights).argmax(1)
    np.savez(tmp_path / "data.npz", x=rows, label=labels)
    models = {size: linear_model(tmp_path / f"{size}.onnx", weights, batch=size) for size in (1, 4, "batch")}
    for one, other in ((1, 4), (4, "batch"), ("batch", 1)):
        data, task = tmp_path / "data.npz", "text-classification"
        report = evaluate(tmp_path, models[one], data, task, reference=models[other])
        assert value(report, "accuracy") == value(report, "accuracy", "reference") == 1.0


def test_sizes_that_one_of_two_models_leaves_open_are_those_of_the_other(tmp_path: Path) -> None:
    fixed = text_model(tmp_path / "fixed.onnx", table(3), ["logits"])
    free = text_model(tmp_path / "free.onnx", table(3), ["logits"], length="length")
    for candidate, reference in ((fixed, free), (free, fixed)):
        report = evaluate(tmp_path, candidate, None, samples=2, reference=reference)
        assert report["outputs"]["logits"]["cosine"] == 1.0


def test_a_reference_is_given_what_the_data_has_and_not_what_half_precision_leaves_of_it(tmp_path: Path) -> None:
    """In float16 both columns are equal, so a reference with float16 inputs finds no class."""
    weights = np.array([[1, -1], [-1, 1]], np.float32)
    rows = [{"x": [1.0001, 1.0], "label": 0}, {"x": [1.0, 1.0001], "label": 1}]
    report = evaluate(
        tmp_path,
        linear_model(tmp_path / "half.onnx", weights.astype(np.float16)),
        rows,
        "text-classification",
        reference=linear_model(tmp_path / "float.onnx", weights),
    )
    assert value(report, "accuracy", "reference") == 1.0
    assert value(report, "accuracy") == 0.5
