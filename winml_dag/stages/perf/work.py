"""The work of the perf stage: loads in fresh processes first, then inferences in this one.

All figures are of one process at a time; nothing of ours runs beside it.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.engine.progress import Tell
from winml_dag.engine.stage import Workspace
from winml_dag.ep.options import file_options
from winml_dag.ep.registry import CPU, Target, resolve_target
from winml_dag.errors import StageError
from winml_dag.onnxmodel.feeds import InputSpec, model_inputs
from winml_dag.stages.perf import REPORT_FILE, PerfConfig, PerfFields
from winml_dag.stages.perf.latency import NS_PER_MS, latency_json, measure, throughput_json
from winml_dag.stages.perf.load import Load, Model, load, load_in_fresh_process
from winml_dag.stages.perf.memory import resident
from winml_dag.stages.perf.notices import EMULATED, is_emulated, of_latencies, of_load_average, of_open_sizes

if TYPE_CHECKING:
    import onnxruntime

    from winml_dag.stages.samples.samples import Feed

# Inputs that are made before anything is measured; more samples than these would fill memory.
_MOST_FEEDS = 32


def run(config: PerfConfig, workspace: Workspace) -> JsonObject:
    """Measure ``model``, and how long ``baseline`` takes to load; write ``perf.json``, which also has every inference.

    Raises:
        StageError: when a model does not load or run on its target, or data does not fit its inputs.
    """
    target = resolve_target(config.target.execution_provider, config.target.device)
    busy = _load_average()
    model = _model(workspace, "model", target, config)
    loads = _Loads(config.perf.loads, workspace.progress)
    baseline = _model(workspace, "baseline", target, config) if workspace.has("baseline") else None
    cold, cold_baseline = loads.of(model, baseline)
    session, own = load(model)
    inputs = model_inputs(model.path)
    feeds = _feeds(inputs, config.perf, workspace)
    first_ms = _first_inference(session, feeds[0])
    latencies = measure(_inference(session, feeds), config.perf, workspace.progress)
    peak = resident().peak

    batch, is_random = _batch_size(feeds[0]), not workspace.has("data")
    notices = [
        *([EMULATED] if is_emulated(target) else []),
        *of_latencies(latencies),
        *of_load_average(busy),
        *(of_open_sizes(inputs) if is_random else ()),
    ]
    report: dict[str, JsonValue] = {
        "execution_provider": target.ep.name,
        "device": target.device,
        "provider_options": dict(config.target.provider_options),
        "host": dict(config.host),
        "load": _load_json(cold),
        "baseline": None if not cold_baseline else _baseline_json(cold, cold_baseline),
        "first_inference_ms": first_ms,
        "latency_ms": latency_json(latencies),
        "throughput": throughput_json(latencies, batch),
        "memory_bytes": {
            "before_load": own.memory_before.now,
            "after_load": own.memory_after.now,
            "peak": peak,
        },
        "inputs": [
            {"name": name, "dtype": array.dtype.name, "shape": list(array.shape)} for name, array in feeds[0].items()
        ],
        "data": "random" if is_random else "npz",
        "feeds": len(feeds),
        "warmup": config.perf.warmup,
        "iterations": config.perf.iterations,
        "duration": config.perf.duration,
        "threads": config.perf.threads,
        "batch_size": batch,
        "seed": config.perf.seed,
        "assigned_nodes": _assigned(session, target),
        "load_average_before": busy,
        "notices": notices,
    }
    whole = {**report, "latencies_ns": list(latencies.each)}
    text = json.dumps(whole, sort_keys=True, allow_nan=False)
    (workspace.outputs["report"] / REPORT_FILE).write_text(text + "\n", encoding="utf-8", newline="\n")
    return report


def _model(workspace: Workspace, slot: str, target: Target, config: PerfConfig) -> Model:
    files = file_options(target.ep)
    options = {name: value for name, value in config.target.provider_options.items() if name not in files}
    return Model(workspace.input_file(slot, ".onnx"), target, options, config.perf.threads)


class _Loads:
    """Loads of two models in turn: were all of one before all of the other, one would have the quieter time."""

    def __init__(self, times: int, progress: Tell) -> None:
        self._times = times
        self._progress = progress

    def of(self, model: Model, baseline: Model | None) -> tuple[Sequence[Load], Sequence[Load]]:
        models = [model] if baseline is None else [model, baseline]
        loads: list[list[Load]] = [[] for _ in models]
        for done in range(self._times):
            for at, one in enumerate(models):
                self._progress(done * len(models) + at, self._times * len(models), "loads")
                loads[at].append(load_in_fresh_process(one))
        return loads[0], loads[1] if baseline is not None else ()


def _load_json(loads: Sequence[Load]) -> JsonObject:
    return {
        "seconds": statistics.median(load.seconds for load in loads),
        "import_seconds": statistics.median(load.import_seconds for load in loads),
        "register_seconds": statistics.median(load.register_seconds for load in loads),
        "each_seconds": [load.seconds for load in loads],
    }


def _baseline_json(loads: Sequence[Load], baseline: Sequence[Load]) -> JsonObject:
    told = _load_json(baseline)
    ratio = statistics.median(load.seconds for load in baseline) / statistics.median(load.seconds for load in loads)
    return {"load": told, "times_longer": ratio}


def _first_inference(session: onnxruntime.InferenceSession, feed: Feed) -> float:
    """Milliseconds of the first inference after loading, which tells whether the model runs at all."""
    from winml_dag.ep.session import reason

    began = time.perf_counter_ns()
    try:
        session.run(None, feed)
    except Exception as error:
        raise StageError(f"The model does not run: {reason(error)}") from error
    return (time.perf_counter_ns() - began) / NS_PER_MS


def _inference(session: onnxruntime.InferenceSession, feeds: Sequence[Feed]) -> Callable[[int], object]:
    """What is measured: what a Python program calls, with inputs that are there already."""
    run, count = session.run, len(feeds)
    return lambda index: run(None, feeds[index % count])


def _feeds(inputs: tuple[InputSpec, ...], fields: PerfFields, workspace: Workspace) -> list[Feed]:
    """Inputs, made before anything is measured, of as many samples each as a batch has."""
    import numpy as np

    from winml_dag.onnxmodel.feeds import random_feeds
    from winml_dag.stages.samples.read import read_samples

    batch = fields.batch_size or 1
    if workspace.has("data"):
        samples: Iterator[Feed] = iter(read_samples(workspace.inputs["data"], inputs, None))
        most = _MOST_FEEDS * batch
    else:
        assert fields.seed is not None
        samples, most = iter(random_feeds(inputs, fields.seed, batch)), batch
    found = list(islice(samples, most))
    if batch == 1:
        return found
    # Data of fewer samples than a batch has is used more than once.
    count = max(1, len(found) // batch)
    batches = [[found[(start + at) % len(found)] for at in range(batch)] for start in range(0, count * batch, batch)]
    return [{name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]} for feeds in batches]


def _batch_size(feed: Feed) -> int:
    """How many samples one inference is of: the first axis that all inputs have in common."""
    sizes = {array.shape[0] if array.ndim > 1 else 1 for array in feed.values()}
    return sizes.pop() if len(sizes) == 1 else 1


def _assigned(session: onnxruntime.InferenceSession, target: Target) -> JsonObject:
    from winml_dag.ep.session import assigned_nodes

    # For the CPU there is nothing to tell.
    return {name: dict(counts) for name, counts in assigned_nodes(session).items()} if target.ep != CPU else {}


def _load_average() -> float | None:
    """How many processes ran in the last minute, on average; None where the system does not tell."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None
