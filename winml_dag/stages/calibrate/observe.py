"""Runs the model on samples and finds the range of every activation: extremes with reductions of our own, histograms
with onnxruntime's calibrators.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnxruntime.quantization.calibrate import CalibrationMethod, HistogramCollector, TensorsData, create_calibrator

from winml_dag.engine.progress import Tell, tell_nobody
from winml_dag.errors import StageError
from winml_dag.explanation import explanation
from winml_dag.stages.calibrate.measure import Measured, measure
from winml_dag.stages.float_model import float_tensors
from winml_dag.stages.infinity import EXTREME
from winml_dag.stages.samples.samples import Feed, Samples

# A calibrator keeps every activation of what it is given until all of it is done: 48 samples of ResNet-50 at once take
# 5.6 GB, 8 at a time 1.2 GB and half the time. Neither ranges nor histograms depend on it.
_CHUNK = 8

# onnxruntime's default of 128 bins leaves entropy nothing to search: its ranges are those of minmax. The search takes
# time with the square of the bins, 100 s for MiniLM with 2048, 20 s with 512, and the ranges of 2048 were worse.
_ENTROPY_BINS = 512
_ENTROPY_QUANTIZED_BINS = 128
_PERCENTILE_BINS = 2048
_PERCENTILE = 99.999

_AUGMENTED_FILE = "augmented.onnx"

METHODS: Mapping[str, CalibrationMethod] = {
    "minmax": CalibrationMethod.MinMax,
    "entropy": CalibrationMethod.Entropy,
    "percentile": CalibrationMethod.Percentile,
}
_OPTIONS: Mapping[str, Mapping[str, float]] = {
    "entropy": {"num_bins": _ENTROPY_BINS, "num_quantized_bins": _ENTROPY_QUANTIZED_BINS},
    "percentile": {"num_bins": _PERCENTILE_BINS, "percentile": _PERCENTILE},
}


def observe(model: Path, samples: Samples, method: str, progress: Tell = tell_nobody) -> Measured:
    """What the float activations of *model*, whose tensors must have types, were; their bounds by *method*.

    entropy and percentile go through the samples twice: histograms need to know the largest magnitude first. Growing
    them on the way, as onnxruntime does otherwise, makes the result depend on the order of the samples and its cost on
    how small the first one was.

    Raises:
        StageError: when the model cannot be run on the samples, or a range is not finite or, except for minmax, so
            wide that a histogram tells nothing.
    """
    passes, unit = (1, "samples") if method == "minmax" else (2, "samples in two passes")
    total = passes * samples.count
    measured = measure(model, samples, lambda done: progress(done, total, unit))
    _require_finite(measured.bounds)
    if method == "minmax":
        return measured
    _require_moderate(measured.bounds, method)
    found = _bounds(
        _collect(model, samples, method, lambda done: progress(samples.count + done, total, unit), measured.bounds)
    )
    _require_all(model, found)
    return replace(measured, bounds=found)


class _Reader:
    """Samples as onnxruntime asks for them."""

    def __init__(self, feeds: Iterator[Feed]) -> None:
        self._feeds = feeds

    def get_next(self) -> Feed | None:
        return next(self._feeds, None)


def _collect(
    model: Path,
    samples: Samples,
    method: str,
    tell: Callable[[int], None],
    extremes: Mapping[str, tuple[float, float]],
) -> TensorsData:
    calibrator = create_calibrator(
        model,
        None,  # every float tensor: any choice of operators to quantize finds its ranges
        augmented_model_path=_AUGMENTED_FILE,
        calibrate_method=METHODS[method],
        use_external_data_format=model.with_name(f"{model.name}.data").exists(),
        extra_options=dict(_OPTIONS[method]),
    )
    calibrator.collector = _empty_histograms(method, extremes)
    feeds = _counted(samples, tell)
    for start in range(0, samples.count, _CHUNK):
        try:
            calibrator.collect_data(_Reader(itertools.islice(feeds, _CHUNK)))
        except StageError:
            raise
        except Exception as error:  # onnxruntime's errors have no base class of their own
            end = min(start + _CHUNK, samples.count)
            raise StageError(
                f"The model failed on calibration samples {start} to {end - 1}: {explanation(error)}."
            ) from error
    tell(samples.count)
    return calibrator.compute_data()


def _counted(samples: Samples, tell: Callable[[int], None]) -> Iterator[Feed]:
    """*samples*; when one is asked for, those before it are done, and that is told."""
    for done, feed in enumerate(samples):
        tell(done)
        yield feed


def _empty_histograms(method: str, extremes: Mapping[str, tuple[float, float]]) -> HistogramCollector:
    """onnxruntime's collector with an empty histogram for each tensor, as wide as all of its values."""
    collector = HistogramCollector(
        method=method,
        symmetric=method == "percentile",
        num_bins=_ENTROPY_BINS if method == "entropy" else _PERCENTILE_BINS,
        num_quantized_bins=_ENTROPY_QUANTIZED_BINS,
        percentile=_PERCENTILE,
        scenario="same",
    )
    for name, (low, high) in extremes.items():
        widest = np.float32(max(abs(low), abs(high)))
        if method == "entropy":
            edges = np.linspace(-widest, widest, _ENTROPY_BINS + 1).astype(np.float32)
        else:  # of magnitudes
            edges = np.linspace(0, widest, _PERCENTILE_BINS + 1).astype(np.float32)
        counts = np.zeros(len(edges) - 1, np.int64)
        entry: tuple[Any, ...] = (counts, edges, np.float32(low), np.float32(high))
        collector.histogram_dict[name] = (*entry, widest) if method == "entropy" else entry
    return collector


def _bounds(data: TensorsData) -> dict[str, tuple[float, float]]:
    return {name: (_number(entry.lowest), _number(entry.highest)) for name, entry in data.items()}


def _number(value: Any) -> float:
    return float(np.float32(np.asarray(value).reshape(())))


def _require_all(model: Path, bounds: Mapping[str, tuple[float, float]]) -> None:
    missing = sorted(float_tensors(onnx.load(model, load_external_data=False).graph) - bounds.keys())
    if missing:
        raise StageError(f"onnxruntime measured no range of {len(missing)} tensors, such as {missing[0]!r}.")


def _require_finite(bounds: Mapping[str, tuple[float, float]]) -> None:
    broken = sorted(name for name, pair in bounds.items() if not np.isfinite(pair).all())
    if broken:
        low, high = bounds[broken[0]]
        raise StageError(
            f"The range of {len(broken)} tensors is not finite, such as {broken[0]!r} from {low} to {high}: no integers"
            " can stand for that.",
            advice="Give calibration data that leads to finite values. (Constants that stand for infinity do no harm.)",
        )


def _require_moderate(bounds: Mapping[str, tuple[float, float]], method: str) -> None:
    extreme = sorted(name for name, pair in bounds.items() if np.abs(pair).max() > EXTREME)
    if extreme:
        raise StageError(
            f"{len(extreme)} tensors reach {EXTREME:g} and beyond, such as {extreme[0]!r}, of which {method} can tell"
            " nothing.",
            advice="It is computed, or comes with the data: check them, or use calibration_method minmax.",
        )
