"""Measure how long one inference takes, summarize the results, and warn where they are unreliable."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonObject
from winml_dag.engine.exchange import OnProgress, no_progress
from winml_dag.stages.perf import PerfFields
from winml_dag.stages.perf.load import waited_ns, waited_share

if TYPE_CHECKING:
    from winml_dag.onnxmodel.inspect import TensorSpec

PERCENTILES = (50, 90, 99)
PERCENTILE_DEFINITION = "nearest rank: the smallest measured value that at least p % of all do not exceed"

_NS = 1_000_000_000
NS_PER_MS = 1_000_000
# Reporting progress costs about as much as running the smallest models, so it is done only at this interval.
_NS_BETWEEN_REPORTS = _NS // 2
_CLOCK_READINGS = 1000


@dataclass(frozen=True)
class Latencies:
    """Nanoseconds of each inference in order, and of all together including the time between them.

    ``waited_share``: the fraction of the total that a thread waited for a processor; None if the system does not report
    it.
    """

    each: tuple[int, ...]
    together: int
    waited_share: float | None = None


def measure(infer: Callable[[int], object], fields: PerfFields, progress: OnProgress = no_progress) -> Latencies:
    """Call *infer* with 0, 1, 2 ... to warm up, then measure it as often or as long as *fields* require."""
    for index in range(fields.warmup):
        progress(index, fields.warmup, "warm-up inferences")
        infer(index)
    clock = time.perf_counter_ns
    limit = math.inf if fields.duration is None else fields.duration * _NS
    most = math.inf if fields.iterations is None else fields.iterations
    each: list[int] = []
    # Python's garbage collector would interrupt some inferences for reasons unrelated to the model.
    was_enabled = gc.isenabled()
    gc.disable()
    waited = waited_ns()
    try:
        started = reported = clock()
        now = started
        while len(each) < most and now - started < limit:
            if now - reported >= _NS_BETWEEN_REPORTS:
                progress(len(each), fields.iterations, "inferences")
                reported = now
            began = clock()
            infer(len(each))
            now = clock()
            each.append(now - began)
    finally:
        if was_enabled:
            gc.enable()
    share = waited_share(waited, waited_ns(), now - started)
    progress(len(each), len(each), "inferences")
    return Latencies(tuple(each), now - started, share)


def percentile(ordered: Sequence[int], percent: int) -> int:
    """Return one of the measured values, which are in ascending order: see PERCENTILE_DEFINITION."""
    return ordered[math.ceil(percent * len(ordered) / 100) - 1]


def latency_json(latencies: Latencies) -> JsonObject:
    """Summarize *latencies*, in milliseconds. ``std`` is of these inferences, not an estimate for others."""
    ordered = sorted(latencies.each)
    mean = sum(ordered) / len(ordered)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in ordered) / len(ordered))
    named = {f"p{percent}": percentile(ordered, percent) for percent in PERCENTILES}
    values = {"mean": mean, **named, "min": ordered[0], "max": ordered[-1], "std": deviation}
    return {
        "inferences": len(ordered),
        **{name: value / NS_PER_MS for name, value in values.items()},
        "percentiles": PERCENTILE_DEFINITION,
    }


def throughput_json(latencies: Latencies, batch_size: int) -> JsonObject:
    """Return the throughput of sequential inferences; the time between them counts too."""
    per_second = len(latencies.each) * _NS / max(latencies.together, 1)
    return {"inferences_per_second": per_second, "samples_per_second": per_second * batch_size}


def clock_resolution_ns() -> int:
    """Return the smallest step observed of the clock."""
    clock = time.perf_counter_ns
    readings = [clock() for _ in range(_CLOCK_READINGS)]
    steps = [later - earlier for earlier, later in pairwise(readings) if later > earlier]
    return min(steps, default=_NS)


# Below, Python's overhead is a considerable part of the measured time.
_SHORT_NS = 50_000
# With so many clock ticks in one inference, its duration is accurate to 1 %.
_TICKS = 100
# Smaller shares occur on every system.
_DISTURBED = 0.1
# With fewer, p99 is the slowest of all.
_ENOUGH_FOR_P99 = 100

EMULATED = (
    "QNN's NPU is emulated on this processor: the latencies are the emulator's, and say nothing about the device."
)


def of_latencies(latencies: Latencies, tick_ns: int | None = None) -> Iterator[str]:
    """Yield warnings; *tick_ns*: the clock's smallest step, measured if not given."""
    tick = clock_resolution_ns() if tick_ns is None else tick_ns
    median = percentile(sorted(latencies.each), 50)
    if median < _TICKS * tick:
        yield (
            f"The clock ticks every {tick} ns, and one inference takes {median} ns, so its duration is known to"
            f" {100 * tick / max(median, 1):.0f} % only. Measure larger inputs or a larger --batch-size."
        )
    elif median < _SHORT_NS:
        yield (
            f"One inference takes {median / 1000:.1f} µs, of which calling it from Python is some: an application in"
            " another language may be faster."
        )
    if len(latencies.each) < _ENOUGH_FOR_P99:
        yield (
            f"p99 is the slowest of {len(latencies.each)} inferences: 100 or more show what is usual"
            " (--iterations, --duration)."
        )
    if latencies.waited_share is not None and latencies.waited_share > _DISTURBED:
        yield (
            f"For {100 * latencies.waited_share:.0f} % of the time a thread of the model waited for a processor: other"
            " programs ran, or it has more threads than there are processors. On a quiet machine it is faster."
        )


def of_open_sizes(inputs: tuple[TensorSpec, ...], sizes: Mapping[str, int]) -> Iterator[str]:
    """Yield a warning about random inputs whose open axes had the default size of 1.

    The first axis is the batch; *sizes* are those given for open axes.
    """
    open_ones = [
        f"{spec.name} {list(spec.shape)}"
        for spec in inputs
        if any(isinstance(size, str) and size not in sizes for size in spec.shape[1:])
    ]
    if open_ones:
        yield (
            f"Sizes that the model leaves open were 1: {', '.join(open_ones)}. Give them with --size NAME=NUMBER, or"
            " inputs of real size with --input-data."
        )
