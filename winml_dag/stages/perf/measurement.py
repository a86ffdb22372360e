"""The work of the perf stage: loads in fresh processes first, then inferences in this one.

Only one process is measured at a time, and no other process of winml_dag runs.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from winml_dag.canonical import JsonObject
from winml_dag.engine.memory import resident
from winml_dag.engine.stage import Workspace
from winml_dag.ep.registry import CPU, Target, is_emulated
from winml_dag.ep.session import assigned_nodes
from winml_dag.errors import StageError
from winml_dag.explanation import explanation
from winml_dag.onnxmodel.feeds import model_inputs, random_feeds
from winml_dag.onnxmodel.inspect import TensorSpec, inspect_model
from winml_dag.stages.perf import REPORT_FILE, PerfConfig, PerfFields
from winml_dag.stages.perf.latency import (
    EMULATED,
    NS_PER_MS,
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


def make_feeds(inputs: Sequence[TensorSpec], fields: PerfFields, workspace: Workspace) -> list[Feed]:
    """Return the feeds of the stage's input ``data``, at most MOST_FEEDS; without it a random one.

    Raises StageError if the data does not fit the model's inputs.
    """
    batch = (fields.batch_size or 1) if takes_any_batch(inputs) else 1
    if workspace.has("data"):
        samples: Iterator[Feed] = iter(read_samples(workspace.inputs["data"], inputs, None))
        found = list(islice(samples, MOST_FEEDS * batch))
    else:
        assert fields.seed is not None
        found = list(random_feeds([of_size(spec, fields.sizes) for spec in inputs], fields.seed, batch))
    return in_batches(found, batch)


def of_size(spec: TensorSpec, sizes: Mapping[str, int]) -> TensorSpec:
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


def takes_any_batch(inputs: Sequence[TensorSpec]) -> bool:
    """Return whether an input leaves its first axis open."""
    return any(isinstance(spec.shape[0], str) for spec in inputs if spec.shape)


def batch_size_of(inputs: Sequence[TensorSpec], feed: Feed, given: int | None) -> int:
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

    Raises StageError if a model does not load or run on its target, or data does not fit its inputs.
    """
    target = config.target.resolve()
    path = workspace.input_file("model", ".onnx")
    models = [_model(path, target, config)]
    if workspace.has("baseline"):
        models.append(_model(workspace.input_file("baseline", ".onnx"), target, config))
    inputs = model_inputs(path)
    feeds = make_feeds(inputs, config.perf, workspace)
    batch_size = batch_size_of(inputs, feeds[0], config.perf.batch_size)
    # Both models alternately, so that neither has the quieter period for itself.
    loads: list[list[Load]] = [[] for _ in models]
    for done in range(config.perf.loads * len(models)):
        workspace.progress(done, config.perf.loads * len(models), "loads")
        loads[done % len(models)].append(load_in_fresh_process(models[done % len(models)]))
    session, own = load(models[0])
    with failures_explained("npz" if config.perf.seed is None else RANDOM, "perf.input_data"):
        first_ms = _first_inference(session, feeds[0])
    # The call of a Python program, with inputs in memory.
    latencies = measure(lambda at: session.run(None, feeds[at % len(feeds)]), config.perf, workspace.progress)
    memory = {"before_load": own.memory_before, "after_load": own.memory_after, "peak": resident().peak}
    import onnxruntime  # not before the model has been loaded, which is measured

    is_random = not workspace.has("data")
    of_model, *others = map(_load_json, loads)
    baseline = {"load": others[0], "times_longer": others[0]["seconds"] / of_model["seconds"]} if others else None
    report: JsonObject = {
        "execution_provider": target.ep.name,
        "device": target.device,
        "provider_options": dict(config.target.provider_options),
        "onnxruntime": onnxruntime.__version__,
        "host": dict(config.host),
        "load": of_model,
        "baseline": baseline,
        "first_inference_ms": first_ms,
        "latency_ms": latency_json(latencies),
        "throughput": throughput_json(latencies, batch_size),
        "memory_bytes": memory,
        # The CPU has nothing to report.
        "assigned_nodes": assigned_nodes(session) if target.ep != CPU else {},
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


def _model(path: Path, target: Target, config: PerfConfig) -> Model:
    compiled = inspect_model(path).is_compiled
    options = dict(config.target.provider_options)
    return Model(str(path), target.ep.name, target.device, options, config.perf.threads, compiled)


def _load_json(loads: Sequence[Load]) -> dict[str, Any]:
    return {
        "seconds": statistics.median(load.seconds for load in loads),
        "import_seconds": statistics.median(load.import_seconds for load in loads),
        "register_seconds": statistics.median(load.register_seconds for load in loads),
        "each_seconds": [load.seconds for load in loads],
        "each_waited_share": [load.waited_share for load in loads],
    }


def _first_inference(session: onnxruntime.InferenceSession, feed: Feed) -> float:
    """Return milliseconds of the first inference after loading, which also shows whether the model runs."""
    began = time.perf_counter_ns()
    try:
        session.run(None, feed)
    except Exception as error:
        raise StageError(f"The model does not run: {explanation(error)}.") from error
    return (time.perf_counter_ns() - began) / NS_PER_MS
