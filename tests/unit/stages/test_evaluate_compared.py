"""Comparison of a model's outputs with those of another: single, in batches, with any open sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from evaluation_samples import evaluate, linear_model, table, text_model, value

from winml_dag.errors import StageError


def test_outputs_beside_a_reference_are_compared_one_by_one(tmp_path: Path) -> None:
    weights = table(8)[:6]
    noisy = weights + np.float32(0.05) * table(8, seed=5)[:6]
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(4).normal(size=(25, 6)).astype(np.float32))
    models = [linear_model(tmp_path / f"{name}.onnx", values) for name, values in (("m", noisy), ("r", weights))]
    report = evaluate(tmp_path, models[0], tmp_path / "data.npz", samples=20, reference=models[1])
    inputs = np.load(tmp_path / "data.npz")["x"][:20]
    expected, found = (inputs @ values for values in (weights, noisy))
    output = report["outputs"]["logits"]
    assert output["cosine"] == pytest.approx(
        (expected * found).sum() / np.linalg.norm(expected) / np.linalg.norm(found), abs=1e-5
    )
    assert output["top1"] == {"agreed": int((expected.argmax(1) == found.argmax(1)).sum()), "of": 20}
    assert output["max_abs_error"] == pytest.approx(np.abs(expected - found).max(), rel=0.05)
    assert (report["samples"], report["of"], report["data"]) == (20, 25, "npz")


def test_without_data_random_inputs_are_compared_also_in_batches(tmp_path: Path) -> None:
    weights = table(8)[:6]
    model = linear_model(tmp_path / "m.onnx", weights, batch="batch")
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


@pytest.mark.parametrize("order", [("fixed", "free"), ("free", "fixed")])
def test_sizes_that_one_of_two_models_leaves_open_are_those_of_the_other(
    tmp_path: Path, order: tuple[str, str]
) -> None:
    models = {
        "fixed": text_model(tmp_path / "fixed.onnx", table(3), ["logits"]),
        "free": text_model(tmp_path / "free.onnx", table(3), ["logits"], length="length"),
    }
    candidate, reference = (models[name] for name in order)
    report = evaluate(tmp_path, candidate, None, samples=2, reference=reference)
    assert report["outputs"]["logits"]["cosine"] == 1.0


def test_a_model_with_other_outputs_than_its_reference_is_refused(tmp_path: Path) -> None:
    model = linear_model(tmp_path / "m.onnx", table(3)[:2])
    other = text_model(tmp_path / "o.onnx", table(3), ["scores"])
    with pytest.raises(StageError, match="outputs"):
        evaluate(tmp_path, model, None, reference=other)


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
