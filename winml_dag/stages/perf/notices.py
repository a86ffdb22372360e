"""Warnings about the reliability of a measurement, one sentence each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from winml_dag.stages.perf.latency import Latencies, clock_resolution_ns, percentile

if TYPE_CHECKING:
    from winml_dag.onnxmodel.feeds import InputSpec

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


def of_open_sizes(inputs: tuple[InputSpec, ...], sizes: Mapping[str, int]) -> Iterator[str]:
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
