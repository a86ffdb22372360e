"""The work of the calibrate stage: run the model on data and write the ranges to one file."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, helper, numpy_helper

from winml_dag.canonical import JsonObject
from winml_dag.engine.exchange import OnProgress, no_progress
from winml_dag.engine.stage import Workspace
from winml_dag.ep.session import open_session
from winml_dag.errors import StageError
from winml_dag.explanation import explanation
from winml_dag.onnxmodel.feeds import model_inputs
from winml_dag.onnxmodel.graph import MASK_MAGNITUDE, standard_opset
from winml_dag.stages.artifact_types import RANGES_FILE
from winml_dag.stages.calibrate import CalibrateConfig
from winml_dag.stages.float_model import float_tensors, refuse_unless_float, write_typed
from winml_dag.stages.ranges import Provenance, Ranges, is_coarse, model_digest, normalizations
from winml_dag.stages.samples import Columns
from winml_dag.stages.samples.read import samples_of
from winml_dag.stages.samples.samples import Fed, Samples, failures_explained, random_samples

# Extremes are found with reductions in the model, so that no activation is kept; histograms with onnxruntime's
# collector. Its minmax calibrator finds the same extremes, but nothing for single channels, and loads all weights.

_Array = NDArray[np.float32]

_OBSERVED_FILE = Path("observed.onnx")
_AXES_ARE_INPUTS_FROM = 18

# These combine the results of two samples.
_MERGE: Mapping[str, Callable[[_Array, _Array], _Array]] = {"ReduceMin": np.minimum, "ReduceMax": np.maximum}


@dataclass(frozen=True)
class _Reduction:
    """A reduction of one tensor to one number, or with a *rank* to one for each channel of its last axis."""

    op_type: str
    tensor: str
    rank: int | None = None

    @property
    def output(self) -> str:
        return f"{self.op_type} {'of' if self.rank is None else 'by channel of'} {self.tensor}"

    def nodes(self, axes: str | None) -> Iterator[NodeProto]:
        """Yield its nodes; *axes* is the input that has them if the opset requires that."""
        source = self.tensor
        if self.op_type == "ReduceMean":
            magnitudes, source = f"{self.output}: magnitudes", f"{self.output}: roots"
            yield helper.make_node("Abs", [self.tensor], [magnitudes])
            yield helper.make_node("Sqrt", [magnitudes], [source])
        # Without keepdims onnxruntime fails on tensors without elements.
        node = helper.make_node(self.op_type, [source], [self.output], keepdims=1)
        if axes:
            node.input.append(axes)
        elif self.rank is not None:
            node.attribute.append(helper.make_attribute("axes", list(range(self.rank - 1))))
        yield node


def measure(model: Path, samples: Samples, on_progress: Callable[[int], None]) -> Ranges:
    """Run the *model*, whose tensors must have types, on *samples*.

    *on_progress* is called with the number of finished samples.
    The result does not depend on the order of the samples.

    Raises:
        StageError: there is nothing to measure, the model fails on a sample, or a tensor never had a value.
    """
    graph = onnx.load(model, load_external_data=False)
    values = (*graph.graph.input, *graph.graph.output, *graph.graph.value_info)
    shapes = {v.name: v.type.tensor_type.shape.dim for v in values if v.type.tensor_type.HasField("shape")}
    ranks = {name: len(dims) for name, dims in shapes.items()}
    floats = float_tensors(graph.graph)
    # One of their dimensions is 0.
    empty = {
        name
        for name in floats & shapes.keys()
        if any(d.HasField("dim_value") and not d.dim_value for d in shapes[name])
    }
    tensors = sorted(floats - empty)
    found = list(normalizations(graph.graph))
    around = sorted({name for each in found for name in (each.source, each.output)} & set(tensors))
    made = sorted({each.output for each in found if ranks.get(each.output, 0) > 1})
    extremes = ("ReduceMin", "ReduceMax")
    reductions = [_Reduction(op_type, name) for name in tensors for op_type in extremes]
    reductions += [_Reduction("ReduceMean", name) for name in around]
    reductions += [_Reduction(op_type, name, ranks[name]) for name in made for op_type in extremes]
    _add_reductions(graph, reductions)
    results = _run(graph, reductions, samples, on_progress) if reductions else {}

    def pair(name: str, rank: int | None = None) -> tuple[_Array, _Array]:
        low, high = (results.get(_Reduction(op_type, name, rank)) for op_type in extremes)
        # A reduction of no elements has no result, or the identity of minimum and maximum.
        if low is None or high is None or (np.isposinf(low).all() and np.isneginf(high).all()):
            raise StageError(
                f"The tensor {name!r} had no elements in any sample, so it has no range.",
                advice="Calibrate with samples for which it has some.",
            )
        return low, high

    bounds = {name: (float(low[0]), float(high[0])) for name in tensors for low, high in [pair(name)]}
    bounds |= dict.fromkeys(sorted(empty), (0.0, 0.0))
    typical = {name: float(np.square(results[_Reduction("ReduceMean", name)][0])) for name in around}
    channels = {name: pair(name, ranks[name]) for name in made if is_coarse(bounds[name], typical[name])}
    ends = {name: (tuple(map(float, low)), tuple(map(float, high))) for name, (low, high) in channels.items()}
    return Ranges("minmax", bounds, typical=typical, channels=ends)


def _add_reductions(model: ModelProto, reductions: list[_Reduction]) -> None:
    graph = model.graph
    opset = standard_opset(model)
    for rank in sorted({each.rank for each in reductions if each.rank is not None}):
        graph.initializer.append(numpy_helper.from_array(np.arange(rank - 1), _axes(rank)))
    for each in reductions:
        by_input = each.rank is not None and opset >= _AXES_ARE_INPUTS_FROM
        graph.node.extend(each.nodes(_axes(each.rank) if each.rank is not None and by_input else None))


def _axes(rank: int) -> str:
    return f"all but the last of {rank} axes"


def _run(
    model: ModelProto, reductions: list[_Reduction], samples: Samples, on_progress: Callable[[int], None]
) -> dict[_Reduction, _Array]:
    """Return the result of each of *reductions* over all *samples*, omitting those without elements."""
    results: dict[_Reduction, _Array] = {}
    means: dict[_Reduction, list[float]] = {}
    for arrays in _outputs(model, [each.output for each in reductions], samples, on_progress):
        for each, array in zip(reductions, arrays, strict=True):
            if not array.size:
                continue
            if each.op_type == "ReduceMean":
                means.setdefault(each, []).append(float(array.item()))
            else:
                flat = array.reshape(-1)
                results[each] = _MERGE[each.op_type](results[each], flat) if each in results else flat
    # fsum is exact, so the result does not depend on the order.
    return results | {each: np.array([math.fsum(seen) / len(seen)], np.float32) for each, seen in means.items()}


def _outputs(
    model: ModelProto, names: Sequence[str], samples: Samples, on_progress: Callable[[int], None]
) -> Iterator[list[_Array]]:
    """Yield the values *names* of *model*, whose weights are in files here, for each sample. Inputs are among them."""
    computed = {name for node in model.graph.node for name in node.output}
    made = [name for name in names if name in computed]
    del model.graph.output[:]
    model.graph.output.extend(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in made)
    onnx.save(model, _OBSERVED_FILE)
    settings = onnxruntime.SessionOptions()
    # A plan of the memory of one run keeps all activations: MiniLM takes 1029 MiB with it for 512 tokens, and 670
    # without, in a tenth less time.
    settings.enable_mem_pattern = False
    session = open_session(_OBSERVED_FILE, "the model", settings)
    for number, feed in enumerate(samples):
        on_progress(number)
        with failures_explained(samples.kind, "quant.calibration_data"):
            try:
                values = dict(zip(made, session.run(made, dict(feed)), strict=True))
            except Exception as error:  # onnxruntime's errors have no base class of their own
                raise StageError(f"The model failed on calibration sample {number}: {explanation(error)}.") from error
        yield [values[name] if name in values else feed[name].astype(np.float32, copy=False) for name in names]
    on_progress(samples.count)


# onnxruntime's default of 128 bins leaves entropy nothing to search: its ranges are those of minmax. The search takes
# time with the square of the bins, 100 s for MiniLM with 2048, 20 s with 512, and the ranges of 2048 were worse.
_ENTROPY_BINS = 512
_ENTROPY_QUANTIZED_BINS = 128
_PERCENTILE_BINS = 2048
_PERCENTILE = 99.999


def observe(model: Path, samples: Samples, method: str, progress: OnProgress = no_progress) -> Ranges:
    """Measure the float activations of *model*, whose tensors must have types, with bounds by *method*.

    entropy and percentile run over the samples twice, because histograms need the largest magnitude first. Growing them
    on the way, as onnxruntime does otherwise, makes the result depend on the order of the samples, and its cost on how
    small the first one was.

    Raises:
        StageError: the model cannot be run on the samples, one of its inputs or outputs is not finite, or a range is,
            except for minmax, too wide for a useful histogram.
    """
    passes, unit = (1, "samples") if method == "minmax" else (2, "samples in two passes")
    total = passes * samples.count
    measured = measure(model, samples, lambda done: progress(done, total, unit))
    graph = onnx.load(model, load_external_data=False)
    measured = _without_infinite(measured, {value.name for value in (*graph.graph.input, *graph.graph.output)})
    if method == "minmax":
        return measured
    _require_moderate(measured.bounds, method)
    from onnxruntime.quantization.calibrate import HistogramCollector

    collector = HistogramCollector(
        method=method,
        symmetric=method == "percentile",
        num_bins=_ENTROPY_BINS if method == "entropy" else _PERCENTILE_BINS,
        num_quantized_bins=_ENTROPY_QUANTIZED_BINS,
        percentile=_PERCENTILE,
        scenario="same",
    )
    bounds = dict(measured.bounds)
    names = [name for name in bounds if name not in measured.infinite]
    for arrays in _outputs(graph, names, samples, lambda done: progress(samples.count + done, total, unit)):
        found = {name: array for name, array in zip(names, arrays, strict=True) if array.size}
        for name in found.keys() - collector.histogram_dict.keys():
            collector.histogram_dict[name] = _empty_histogram(method, *measured.bounds[name])
        collector.collect(found)
    for name, (low, high, *_) in collector.compute_collection_result().items():
        bounds[name] = (float(np.float32(np.asarray(low).item())), float(np.float32(np.asarray(high).item())))
    return replace(measured, method=method, bounds=bounds)


def _empty_histogram(method: str, low: float, high: float) -> tuple[Any, ...]:
    """Return an empty histogram in onnxruntime's form, as wide as all values from *low* to *high*."""
    widest = np.float32(max(abs(low), abs(high)))
    bins = _ENTROPY_BINS if method == "entropy" else _PERCENTILE_BINS
    # percentile counts magnitudes.
    edges = np.linspace(-widest if method == "entropy" else 0, widest, bins + 1).astype(np.float32)
    entry = (np.zeros(bins, np.int64), edges, np.float32(low), np.float32(high))
    return (*entry, widest) if method == "entropy" else entry


def _without_infinite(measured: Ranges, ends: Collection[str]) -> Ranges:
    """Set apart the tensors with infinite values or NaN, so that the nodes around them stay in float.

    T5 takes the logarithm of distances between tokens, and replaces that of 0 afterwards.

    Raises:
        StageError: one of *ends*, the inputs and outputs of the model, is such a tensor.
    """
    infinite = sorted(name for name, pair in measured.bounds.items() if not np.isfinite(pair).all())
    if broken := [name for name in infinite if name in ends]:
        low, high = measured.bounds[broken[0]]
        raise StageError(
            f"The range of {broken[0]!r} is not finite, from {low} to {high}: integers cannot represent that.",
            advice="Give calibration data that leads to finite values. (Constants that stand for infinity do no harm.)",
        )
    return replace(
        measured,
        bounds={**measured.bounds, **dict.fromkeys(infinite, (0.0, 0.0))},
        typical={name: 0.0 if name in infinite else value for name, value in measured.typical.items()},
        channels={name: ends for name, ends in measured.channels.items() if name not in infinite},
        infinite=tuple(infinite),
    )


def _require_moderate(bounds: Mapping[str, tuple[float, float]], method: str) -> None:
    extreme = sorted(name for name, pair in bounds.items() if np.abs(pair).max() > MASK_MAGNITUDE)
    if extreme:
        raise StageError(
            f"{len(extreme)} tensors reach {MASK_MAGNITUDE:g} and beyond, such as {extreme[0]!r}; {method} "
            "gives no useful ranges for them.",
            advice="It is computed, or comes with the data: check them, or use calibration_method minmax.",
        )


_MODEL_FILE = Path("float.onnx")


def run(config: CalibrateConfig, workspace: Workspace) -> JsonObject:
    """Write ``calibration_ranges.json``: the range of every float activation and its provenance.

    It serves any later quantization. Metrics: ``data`` (npz, npy, text, images, dataset or random); ``samples`` used;
    ``tensors``; ``extreme_tensors``, how many reach magnitudes that only a mask has, which ruins the precision of what
    they are combined with; ``clamped_constants``, how many meant infinity and were replaced with a number that integers
    can hold; ``calibration_time_seconds``, the time to run the model; ``data_time_seconds``, the time to read the
    samples.

    Raises:
        StageError: the model is not in float32, the data does not fit it, or ranges are not finite.
    """
    source = workspace.input_file("model", ".onnx")
    refuse_unless_float(source, "calibrated")
    clamped = write_typed(source, _MODEL_FILE, finite=True)
    fed = Fed(_samples(config, workspace, source))
    samples = fed.samples
    started = time.perf_counter()
    measured = observe(_MODEL_FILE, samples, config.quant.calibration_method, workspace.progress)
    seconds = time.perf_counter() - started - fed.seconds
    random = samples.kind == "random"
    provenance = Provenance(
        model=model_digest(workspace.inputs["model"]),
        data=samples.kind,
        samples=samples.count,
        digest=fed.digest,
        seed=config.quant.seed if random else None,
        distribution=config.quant.distribution if random else None,
        seen=() if random else tuple(fed.each),
    )
    replace(measured, provenance=provenance).write(workspace.outputs["ranges"] / RANGES_FILE)
    return {
        "data": samples.kind,
        "samples": samples.count,
        "tensors": len(measured.bounds),
        "extreme_tensors": sum(max(abs(low), abs(high)) > MASK_MAGNITUDE for low, high in measured.bounds.values()),
        "clamped_constants": clamped,
        "calibration_time_seconds": seconds,
        "data_time_seconds": fed.seconds,
    }


def _samples(config: CalibrateConfig, workspace: Workspace, model: Path) -> Samples:
    fields = config.quant
    inputs = model_inputs(model)
    if workspace.has("data"):
        data = samples_of(workspace, inputs, Columns(fields.columns_mapping or {}))
        return data.to_calibrate(fields.samples, config.validate.samples or 0, fields.seed)
    assert fields.seed is not None
    assert fields.distribution is not None
    return random_samples(inputs, fields.samples, fields.seed, fields.distribution)
