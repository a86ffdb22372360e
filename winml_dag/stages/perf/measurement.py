"""The work of the perf stage: loads in fresh processes first, then inferences in this one.

Only one process is measured at a time, and no other process of winml_dag runs.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from winml_dag.canonical import JsonObject
from winml_dag.engine.memory import resident
from winml_dag.engine.progress import OnProgress
from winml_dag.engine.stage import Workspace
from winml_dag.ep.registry import CPU, Target, is_emulated
from winml_dag.errors import StageError
from winml_dag.explanation import explanation
from winml_dag.onnxmodel.feeds import InputSpec, model_inputs, random_feeds
from winml_dag.onnxmodel.inspect import inspect_model
from winml_dag.stages.perf import REPORT_FILE, PerfConfig, PerfFields
from winml_dag.stages.perf.latency import (
    EMULATED,
    NS_PER_MS,
    Latencies,
    latency_json,
    measure,
    of_latencies,
    of_open_sizes,
    throughput_json,
)
from winml_dag.stages.perf.load import Load, Model, load, load_in_fresh_process
from winml_dag.stages.quality import RANDOM
from winml_dag.stages.samples.read import read_samples
from winml_dag.stages.samples.samples import Feed, failures_explained

if TYPE_CHECKING:
    import onnxruntime


# Inputs are created before the measurement starts, each with as many samples as a batch has. More would fill memory.
MOST_FEEDS = 32


def make_feeds(inputs: Sequence[InputSpec], fields: PerfFields, workspace: Workspace) -> list[Feed]:
    """Return the feeds of the stage's input ``data``, at most MOST_FEEDS; without it a random one.

    Raises:
        StageError: the data does not fit the model's inputs.
    """
    batch = (fields.batch_size or 1) if takes_any_batch(inputs) else 1
    if workspace.has("data"):
        samples: Iterator[Feed] = iter(read_samples(workspace.inputs["data"], inputs, None))
        found = list(islice(samples, MOST_FEEDS * batch))
    else:
        assert fields.seed is not None
        found = list(random_feeds([of_size(spec, fields.sizes) for spec in inputs], fields.seed, batch))
    return in_batches(found, batch)


def of_size(spec: InputSpec, sizes: Mapping[str, int]) -> InputSpec:
    """Return *spec* with *sizes* for the axes of these names; the first axis is the batch's."""
    later = (sizes.get(size, size) if isinstance(size, str) else size for size in spec.shape[1:])
    return replace(spec, shape=(*spec.shape[:1], *later))


def in_batches(samples: Sequence[Feed], size: int) -> list[Feed]:
    """Combine *samples* to batches of *size*.

    If there are fewer than one batch has, they are repeated; remaining samples are not used.
    """
    if size == 1:
        return list(samples)
    count = max(1, len(samples) // size)
    rows = [[samples[(first + at) % len(samples)] for at in range(size)] for first in range(0, count * size, size)]
    # A scalar applies to all samples at once.
    return [
        {name: np.concatenate([one[name] for one in row]) if first.ndim else first for name, first in row[0].items()}
        for row in rows
    ]


def takes_any_batch(inputs: Sequence[InputSpec]) -> bool:
    """Return whether an input leaves its first axis open."""
    return any(isinstance(spec.shape[0], str) for spec in inputs if spec.shape)


def batch_size_of(inputs: Sequence[InputSpec], feed: Feed, given: int | None) -> int:
    """Return how many samples one inference has: the size in *feed* of the first axis if that is a batch, else 1.

    It is a batch if it has the size that was *given*, if all *inputs* leave it open under one name, or if an open one
    is called batch. A fixed first axis alone is ambiguous: it may be the 80 bands of a spectrogram.
    """
    if given is not None and inputs and all(array.shape[:1] == (given,) for array in feed.values()):
        return given
    first = {spec.name: spec.shape[0] for spec in inputs if spec.shape}
    is_common = len(first) == len(inputs) and len(set(first.values())) == 1
    found = {
        feed[name].shape[0]
        for name, size in first.items()
        if isinstance(size, str) and (is_common or "batch" in size.lower())
    }
    return found.pop() if len(found) == 1 else 1


def run(config: PerfConfig, workspace: Workspace) -> JsonObject:
    """Measure ``model``, and the load time of ``baseline``; write ``perf.json``, which also lists every inference.

    Raises:
        StageError: a model does not load or run on its target, or data does not fit its inputs.
    """
    target = config.target.resolve()
    model = _model(workspace, "model", target, config)
    baseline = _model(workspace, "baseline", target, config) if workspace.has("baseline") else None
    inputs = model_inputs(model.path)
    feeds = make_feeds(inputs, config.perf, workspace)
    batch_size = batch_size_of(inputs, feeds[0], config.perf.batch_size)
    figures, latencies = _measure(model, baseline, feeds, batch_size, config.perf, workspace.progress)
    import onnxruntime  # not before the model has been loaded, which is measured

    is_random = not workspace.has("data")
    report: JsonObject = {
        "execution_provider": target.ep.name,
        "device": target.device,
        "provider_options": dict(config.target.provider_options),
        "onnxruntime": onnxruntime.__version__,
        "host": dict(config.host),
        **figures,
        "inputs": [
            {"name": name, "dtype": array.dtype.name, "shape": list(array.shape)} for name, array in feeds[0].items()
        ],
        "data": "random" if is_random else "npz",
        "feeds": len(feeds),
        "warmup": config.perf.warmup,
        "iterations": config.perf.iterations,
        "duration": config.perf.duration,
        "threads": config.perf.threads,
        "batch_size": batch_size,
        "sizes": dict(config.perf.sizes),
        "seed": config.perf.seed,
        "waited_share": latencies.waited_share,
        "notices": [
            # Nothing else is relevant about an emulator's latencies.
            *([EMULATED] if is_emulated(target) else of_latencies(latencies)),
            *(of_open_sizes(inputs, config.perf.sizes) if is_random else ()),
        ],
    }
    text = json.dumps({**report, "latencies_ns": latencies.each}, sort_keys=True, allow_nan=False)
    (workspace.outputs["report"] / REPORT_FILE).write_text(text + "\n", encoding="utf-8", newline="\n")
    return report


def _measure(
    model: Model,
    baseline: Model | None,
    feeds: Sequence[Feed],
    batch_size: int,
    fields: PerfFields,
    progress: OnProgress,
) -> tuple[JsonObject, Latencies]:
    """Measure loads in fresh processes, then the rest in this one; return the figures and every inference."""
    loads, baseline_loads = _load_in_turn(model, baseline, fields.loads, progress)
    session, own = load(model)
    with failures_explained("npz" if fields.seed is None else RANDOM, "perf.input_data"):
        first_ms = _first_inference(session, feeds[0])
    latencies = measure(_inference(session, feeds), fields, progress)
    peak = resident().peak
    figures: JsonObject = {
        "load": _load_json(loads),
        "baseline": _baseline_json(loads, baseline_loads) if baseline_loads else None,
        "first_inference_ms": first_ms,
        "latency_ms": latency_json(latencies),
        "throughput": throughput_json(latencies, batch_size),
        "memory_bytes": {"before_load": own.memory_before.now, "after_load": own.memory_after.now, "peak": peak},
        "assigned_nodes": _assigned(session, model.target),
    }
    return figures, latencies


def _model(workspace: Workspace, slot: str, target: Target, config: PerfConfig) -> Model:
    path = workspace.input_file(slot, ".onnx")
    options = config.target.provider_options
    return Model(path, target, options, config.perf.threads, inspect_model(path).is_compiled)


def _load_in_turn(
    model: Model, baseline: Model | None, times: int, progress: OnProgress
) -> tuple[Sequence[Load], Sequence[Load]]:
    """Load both models alternately, so that neither has the quieter period for itself."""
    models = [model] if baseline is None else [model, baseline]
    loads: list[list[Load]] = [[] for _ in models]
    for done in range(times):
        for at, one in enumerate(models):
            progress(done * len(models) + at, times * len(models), "loads")
            loads[at].append(load_in_fresh_process(one))
    return loads[0], [] if baseline is None else loads[1]


def _load_json(loads: Sequence[Load]) -> JsonObject:
    return {
        "seconds": statistics.median(load.seconds for load in loads),
        "import_seconds": statistics.median(load.import_seconds for load in loads),
        "register_seconds": statistics.median(load.register_seconds for load in loads),
        "each_seconds": [load.seconds for load in loads],
        "each_waited_share": [load.waited_share for load in loads],
    }


def _baseline_json(loads: Sequence[Load], baseline: Sequence[Load]) -> JsonObject:
    told = _load_json(baseline)
    ratio = statistics.median(load.seconds for load in baseline) / statistics.median(load.seconds for load in loads)
    return {"load": told, "times_longer": ratio}


def _first_inference(session: onnxruntime.InferenceSession, feed: Feed) -> float:
    """Return milliseconds of the first inference after loading, which also shows whether the model runs."""
    began = time.perf_counter_ns()
    try:
        session.run(None, feed)
    except Exception as error:
        raise StageError(f"The model does not run: {explanation(error)}.") from error
    return (time.perf_counter_ns() - began) / NS_PER_MS


def _inference(session: onnxruntime.InferenceSession, feeds: Sequence[Feed]) -> Callable[[int], object]:
    """Return the measured function: the call of a Python program, with inputs in memory."""
    run, count = session.run, len(feeds)
    return lambda index: run(None, feeds[index % count])


def _assigned(session: onnxruntime.InferenceSession, target: Target) -> JsonObject:
    from winml_dag.ep.session import assigned_nodes

    # The CPU has nothing to report.
    return {name: dict(counts) for name, counts in assigned_nodes(session).items()} if target.ep != CPU else {}
