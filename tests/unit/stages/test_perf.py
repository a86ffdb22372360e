"""Reports on latencies, and how they are measured; speed and accuracy of a model, measured from Python."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from evaluation_samples import linear_model, table
from hypothesis import given, settings
from hypothesis import strategies as st

from winml_dag import EvalResult, PerfResult, evaluate_onnx, measure_onnx
from winml_dag.engine.memory import resident
from winml_dag.ep.registry import CPU, QNN, Target, is_emulated
from winml_dag.errors import MeasuredError, RecipeError
from winml_dag.onnxmodel.inspect import TensorSpec
from winml_dag.stages.perf import PerfFields
from winml_dag.stages.perf.latency import (
    Latencies,
    clock_resolution_ns,
    latency_json,
    measure,
    of_latencies,
    of_open_sizes,
    percentile,
    throughput_json,
)
from winml_dag.stages.perf.load import waited_ns, waited_share
from winml_dag.stages.perf.measurement import batch_size_of, in_batches, of_size


@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=300), st.sampled_from([1, 50, 90, 99, 100]))
@settings(max_examples=30)
def test_percentile_is_a_measured_value(values: list[int], percent: int) -> None:
    found = percentile(sorted(values), percent)
    assert found in values
    assert found == np.percentile(values, percent, method="inverted_cdf")


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=50))
@settings(max_examples=30)
def test_latency_figures_cover_all_inferences_in_ms(values: list[int]) -> None:
    told = latency_json(Latencies(tuple(values), sum(values)))
    assert told["inferences"] == len(values)
    assert (told["min"], told["max"]) == (min(values) / 1e6, max(values) / 1e6)
    assert told["mean"] == pytest.approx(np.mean(values) / 1e6)
    assert told["std"] == pytest.approx(np.std(values) / 1e6, abs=1e-12)


def test_throughput_counts_batch_samples_and_total_time() -> None:
    told = throughput_json(Latencies((10_000_000, 10_000_000), together=40_000_000), batch_size=4)
    assert told == {"inferences_per_second": 50.0, "samples_per_second": 200.0}


def test_warm_up_runs_are_not_measured() -> None:
    asked: list[int] = []
    told: list[tuple[int, int | None, str]] = []
    found = measure(asked.append, PerfFields(warmup=3, iterations=5), lambda *words: told.append(words))
    assert len(found.each) == 5
    assert asked == [0, 1, 2, 0, 1, 2, 3, 4]
    assert sum(found.each) <= found.together
    assert (told[0], told[-1]) == ((0, 3, "warm-up inferences"), (5, 5, "inferences"))


def test_duration_limit_still_measures_one_inference() -> None:
    asked: list[int] = []
    found = measure(asked.append, PerfFields(warmup=0, iterations=None, duration=1e-9))
    assert len(found.each) == len(asked) == 1


@pytest.mark.parametrize(
    ("each", "share", "words"),
    [
        ((400,) * 200, None, "The clock ticks every 100 ns, and one inference takes 400 ns.*25 % only"),
        ((10_000_000,) * 99, None, "^p99 is the slowest of 99 inferences"),
        ((10_000_000,) * 200, 0.25, "25 % of the time"),
        ((10_000_000,) * 200, 0.01, ""),
        ((10_000_000,) * 200, None, ""),
    ],
    ids=["a short inference", "few inferences", "other programs", "hardly any other program", "nothing"],
)
def test_doubtful_latencies_are_warned_about(each: tuple[int, ...], share: float | None, words: str) -> None:
    told = list(of_latencies(Latencies(each, 2 * 10**9, share), tick_ns=100))
    assert len(told) == bool(words)
    assert all(re.search(words, notice) for notice in told)


def test_machine_clock_memory_and_threads_are_readable() -> None:
    assert 0 < clock_resolution_ns() < 10**9
    found = resident()
    assert found.peak is not None
    assert found.peak > 1 << 20
    assert found.now is None or 1 << 20 < found.now <= found.peak
    assert not is_emulated(Target(CPU, "cpu")), "only the NPU of QNN is"
    assert not is_emulated(Target(QNN, "gpu"))
    assert all(waited >= 0 for waited in waited_ns().values())
    assert sys.platform != "linux" or str(os.getpid()) in waited_ns()


def test_waited_share_is_that_of_longest_waiting_thread() -> None:
    before, after = {"1": 100, "2": 50}, {"1": 110, "2": 90, "3": 30}
    assert waited_share(before, after, passed_ns=80) == 0.5
    assert waited_share(before, after, passed_ns=20) == 1.0
    assert waited_share({}, {}, passed_ns=80) is None


def test_open_sizes_other_than_batch_are_reported() -> None:
    batch, both = TensorSpec("x", "float32", ("n", 8)), TensorSpec("ids", "int64", ("n", "length"))
    (notice,) = of_open_sizes((batch, both), {})
    assert "ids ['n', 'length']" in notice
    assert list(of_open_sizes((batch,), {})) == []
    assert list(of_open_sizes((batch, both), {"length": 8})) == []
    spec = TensorSpec("mask", "int64", ("n", 2, "length", "n"), (0, 2))
    assert of_size(spec, {"length": 8, "n": 3}) == TensorSpec("mask", "int64", ("n", 2, 8, 3), (0, 2))
    assert of_size(spec, {}) == spec


@given(st.integers(1, 12), st.integers(1, 8))
@settings(max_examples=50)
def test_samples_are_batched_in_order_and_repeated_to_fill(count: int, size: int) -> None:
    samples = [{"x": np.full((1, 2), number), "y": np.full((1, 1), -number)} for number in range(count)]
    batches = in_batches(samples, size)
    inputs = [TensorSpec(name, "int64", ("n", width)) for name, width in (("x", 2), ("y", 1))]
    assert {batch_size_of(inputs, batch, size) for batch in batches} == {size}
    used = [int(number) for batch in batches for number in batch["x"][:, 0]]
    assert used == [number % count for number in range(max(1, count // size) * size)]
    assert all((batch["y"][:, 0] == -batch["x"][:, 0]).all() for batch in batches)


@pytest.mark.parametrize(
    ("shapes", "given", "samples"),
    [
        pytest.param({"x": (80, 3000)}, None, 1, id="a spectrogram"),
        pytest.param({"x": (80, 3000)}, 80, 80, id="fixed, and given as the batch"),
        pytest.param({"x": (8, 2), "y": (5, 2)}, 8, 1, id="given, and another input has another size"),
        pytest.param({"x": ("n", 2), "y": ("m", 2)}, 4, 4, id="given, and open under two names"),
        pytest.param({"x": ("n", 2), "y": ("n", 3)}, None, 4, id="one open axis of all inputs"),
        pytest.param({"x": ("?", 2)}, None, 4, id="an open axis without a name"),
        pytest.param({"x": ("batch_size", 2), "y": (7,)}, None, 4, id="an axis that is called a batch"),
        pytest.param({"x": ("length", 2), "y": (7,)}, None, 1, id="an open axis of one input"),
        pytest.param({"x": ("n", 2), "y": ("m", 2)}, None, 1, id="two open axes"),
        pytest.param({"x": ("n", 2), "y": ()}, None, 1, id="an input without axes"),
        pytest.param({}, None, 1, id="no inputs"),
    ],
)
def test_first_axis_is_batch_only_if_declared(
    shapes: dict[str, tuple[int | str, ...]], given: int | None, samples: int
) -> None:
    inputs = [TensorSpec(name, "float32", shape) for name, shape in shapes.items()]
    feed = {name: np.zeros([4 if isinstance(size, str) else size for size in shape]) for name, shape in shapes.items()}
    assert batch_size_of(inputs, feed, given) == samples


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return linear_model(tmp_path_factory.mktemp("model") / "m.onnx", table(3)[:4])


def test_perf_result_is_cached(linear: Path, tmp_path: Path) -> None:
    how = {"iterations": 7, "warmup": 0, "loads": 1}
    first = measure_onnx(linear, config=how, output_dir=tmp_path / "report", cache_dir=tmp_path / "cache")
    assert isinstance(first, PerfResult)
    assert not first.cached
    each = json.loads((tmp_path / "report" / "perf.json").read_text())["latencies_ns"]
    assert (first.latency_ms.inferences, first.latency_ms.p50) == (7, sorted(each)[3] / 1e6)
    assert first.baseline_load_seconds is None
    assert first.load_seconds > 0 < first.inferences_per_second
    again = measure_onnx(linear, config=how, cache_dir=tmp_path / "cache")
    assert again.cached
    assert again.latency_ms == first.latency_ms
    with pytest.raises(RecipeError, match="perf"):
        measure_onnx(linear, config={"iterations": 0}, cache_dir=tmp_path / "cache")


def test_evaluation_returns_metrics_and_output_figures(linear: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    right = (x @ table(3)[:4]).argmax(1)
    np.savez(tmp_path / "data.npz", x=x, label=np.where(np.arange(20) % 4 == 0, (right + 1) % 3, right))
    cache = tmp_path / "cache"
    task = "text-classification"
    found = evaluate_onnx(linear, tmp_path / "data.npz", task=task, reference=linear, cache_dir=cache)
    assert isinstance(found, EvalResult)
    assert list(found.metrics) == ["accuracy", "macro_f1"]
    accuracy = found.metrics["accuracy"]
    assert accuracy.candidate == accuracy.reference
    assert (accuracy.candidate.value, accuracy.candidate.method) == (0.75, "wilson")
    assert accuracy.difference is not None
    assert (accuracy.difference.value, accuracy.difference.significant) == (0.0, False)
    assert (found.samples, found.of, found.outputs) == (20, 20, {})
    other = onnx.load(linear)
    other.graph.node[0].op_type = "Gemm"  # the same, by another operator
    onnx.save(other, tmp_path / "gemm.onnx")
    dataset = {"samples": 3}
    compared = evaluate_onnx(
        tmp_path / "gemm.onnx", reference=linear, config={"mode": "compare", "dataset": dataset}, cache_dir=cache
    )
    (output,) = compared.outputs.values()
    assert (output.cosine, compared.samples, compared.of, compared.metrics) == (1.0, 3, None, {})
    with pytest.raises(MeasuredError, match="evaluate failed: Data for token-classification is a table"):
        evaluate_onnx(linear, tmp_path / "data.npz", task="token-classification", cache_dir=cache)
