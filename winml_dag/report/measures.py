"""The named measures of a row, used for sorting, bounds and table columns.

Names are the same as in goals, where goals have them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from winml_dag.report.row import Row
from winml_dag.store.quantities import size_text


@dataclass(frozen=True)
class Measure:
    """A number that a row may have.

    ``label`` and ``unit`` are for people; ``text`` formats a value with its unit.
    """

    name: str
    label: str
    unit: str
    higher_is_better: bool
    of: Callable[[Row], float | None]
    text: Callable[[float], str]


def digits(value: float) -> str:
    """Format three significant digits without an exponent. Tables show them, so Pareto fronts compare them."""
    return f"{value:.0f}" if abs(value) >= _ROUNDED_TO_1000 else f"{value:.3g}"


# With three digits it would become 1e+03.
_ROUNDED_TO_1000 = 999.5
# Smaller values in milliseconds would start with zeros.
_MICRO = 0.1


def _milliseconds(value: float) -> str:
    return f"{digits(value)} ms" if abs(value) >= _MICRO else f"{digits(1000 * value)} µs"


def _cosine(value: float) -> str:
    return f"{value:.4f}"


def _bytes(value: float) -> str:
    return size_text(round(value)) if value >= 0 else f"-{size_text(round(-value))}"


def _count(value: float) -> str:
    return f"{value:.0f}"


def _seconds(value: float) -> str:
    return f"{digits(value)} s"


def _of(part: str, name: str) -> Callable[[Row], float | None]:
    """Return a getter for the number *name* in a part of a row that may be missing."""

    def found(row: Row) -> float | None:
        value = getattr(getattr(row, part), name, None)
        return value if isinstance(value, int | float) else None

    return found


def _on_cpu(row: Row) -> float | None:
    return None if row.placement is None else sum(row.placement.cpu_nodes.values())


_ALL = (
    Measure("latency", "latency p50", "ms", False, _of("latency", "p50"), _milliseconds),
    Measure("latency_p90", "latency p90", "ms", False, _of("latency", "p90"), _milliseconds),
    Measure("latency_p99", "latency p99", "ms", False, _of("latency", "p99"), _milliseconds),
    Measure("load", "time to load", "s", False, _of("latency", "load_seconds"), _seconds),
    Measure("size", "size", "bytes", False, _of("size", "model"), _bytes),
    Measure("peak_memory", "memory", "bytes", False, _of("latency", "peak_memory_bytes"), _bytes),
    Measure("cosine", "cosine", "", True, _of("quality", "cosine"), _cosine),
    Measure("cosine_min", "lowest cosine", "", True, _of("quality", "cosine_min"), _cosine),
    Measure("sqnr_db", "SQNR", "dB", True, _of("quality", "sqnr_db"), lambda x: f"{x:.1f} dB"),
    Measure("max_abs_error", "largest error", "", False, _of("quality", "max_abs_error"), digits),
    Measure("accuracy", "accuracy", "", True, _of("accuracy", "value"), _cosine),
    Measure("accuracy_drop", "accuracy drop", "", False, _of("accuracy", "drop"), _cosine),
    Measure("partitions", "partitions", "", False, _of("placement", "partitions"), _count),
    Measure("cpu_nodes", "nodes on the CPU", "", False, _on_cpu, _count),
    Measure("nodes_skipped", "nodes not quantized", "", False, lambda row: row.nodes_skipped, _count),
    Measure("time", "time to make", "s", False, lambda row: row.made_in_seconds or None, _seconds),
    Measure("saved", "time saved", "s", True, lambda row: row.saved_seconds or None, _seconds),
)
MEASURES: Mapping[str, Measure] = {measure.name: measure for measure in _ALL}
