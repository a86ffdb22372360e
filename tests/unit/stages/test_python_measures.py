"""Speed and accuracy of a model, measured from Python."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from evaluation_samples import linear_model, table

from winml_dag import EvalResult, PerfResult, evaluate_onnx, measure_onnx
from winml_dag.errors import MeasuredError, RecipeError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return linear_model(tmp_path_factory.mktemp("model") / "m.onnx", table(3)[:4])


def test_speed_comes_as_figures_and_from_the_cache_the_second_time(model: Path, tmp_path: Path) -> None:
    how = {"iterations": 7, "warmup": 0, "loads": 1}
    first = measure_onnx(model, config=how, output_dir=tmp_path / "report", cache_dir=tmp_path / "cache")
    assert isinstance(first, PerfResult)
    assert not first.cached
    each = json.loads((tmp_path / "report" / "perf.json").read_text())["latencies_ns"]
    assert (first.latency_ms.inferences, first.latency_ms.p50) == (7, sorted(each)[3] / 1e6)
    assert first.baseline_load_seconds is None
    assert first.load_seconds > 0 < first.inferences_per_second
    again = measure_onnx(model, config=how, cache_dir=tmp_path / "cache")
    assert again.cached
    assert again.latency_ms == first.latency_ms
    with pytest.raises(RecipeError, match="perf"):
        measure_onnx(model, config={"iterations": 0}, cache_dir=tmp_path / "cache")


def test_accuracy_comes_as_metrics_and_outputs_as_figures(model: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    right = (x @ table(3)[:4]).argmax(1)
    np.savez(tmp_path / "data.npz", x=x, label=np.where(np.arange(20) % 4 == 0, (right + 1) % 3, right))
    cache = tmp_path / "cache"
    task = "text-classification"
    found = evaluate_onnx(model, tmp_path / "data.npz", task=task, reference=model, cache_dir=cache)
    assert isinstance(found, EvalResult)
    assert list(found.metrics) == ["accuracy", "macro_f1"]
    accuracy = found.metrics["accuracy"]
    assert accuracy.candidate == accuracy.reference
    assert (accuracy.candidate.value, accuracy.candidate.method) == (0.75, "wilson")
    assert accuracy.difference is not None
    assert (accuracy.difference.value, accuracy.difference.significant) == (0.0, False)
    assert (found.samples, found.of, found.outputs) == (20, 20, {})
    other = onnx.load(model)
    other.graph.node[0].op_type = "Gemm"  # the same, by another operator
    onnx.save(other, tmp_path / "gemm.onnx")
    dataset = {"samples": 3}
    compared = evaluate_onnx(
        tmp_path / "gemm.onnx", reference=model, config={"mode": "compare", "dataset": dataset}, cache_dir=cache
    )
    (output,) = compared.outputs.values()
    assert (output.cosine, compared.samples, compared.of, compared.metrics) == (1.0, 3, None, {})
    with pytest.raises(MeasuredError, match="evaluate failed: Data for token-classification is a table"):
        evaluate_onnx(model, tmp_path / "data.npz", task="token-classification", cache_dir=cache)
