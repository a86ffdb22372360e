"""A report as CSV (RFC 4180): one line for each build, and columns whose names do not change.

Names come from users, and a spreadsheet runs what looks like a formula: such texts begin with an apostrophe.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from typing import TypeAlias

from winml_dag.report.row import Report, Row

CSV = "report.csv"

_Value: TypeAlias = str | int | float | bool | None

# What a spreadsheet takes for a formula, also in its wide form; the last three it drops before it looks.
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20", "\t", "\r", "\n")


def _of(part: str, name: str) -> Callable[[Row], _Value]:
    """The field *name* of a *part* that may be missing."""

    def found(row: Row) -> _Value:
        value: _Value = getattr(getattr(row, part), name, None)
        return value

    return found


# New columns come last: programs count on the places of the others.
COLUMNS: Mapping[str, Callable[[Row], _Value]] = {
    "name": lambda row: row.name,
    "model": lambda row: row.model,
    "task": lambda row: row.task,
    "precision": lambda row: row.precision,
    "ep": lambda row: row.ep,
    "device": lambda row: row.device,
    "status": lambda row: str(row.status),
    "why": lambda row: row.why,
    "stage_reached": lambda row: row.reached,
    "failed_stage": _of("failure", "stage"),
    "size_bytes": _of("size", "model"),
    "sidecar_bytes": _of("size", "sidecar"),
    "folder_bytes": _of("size", "folder"),
    "embeds_binary": _of("size", "embeds_binary"),
    "latency_p50_ms": _of("latency", "p50"),
    "latency_p90_ms": _of("latency", "p90"),
    "latency_p99_ms": _of("latency", "p99"),
    "inferences": _of("latency", "inferences"),
    "warmup": _of("latency", "warmup"),
    "load_seconds": _of("latency", "load_seconds"),
    "latency_measured": _of("latency", "measured"),
    "latency_made_at": _of("latency", "made_at"),
    "emulated": _of("latency", "emulated"),
    "peak_memory_bytes": _of("latency", "peak_memory_bytes"),
    "cosine": _of("quality", "cosine"),
    "cosine_min": _of("quality", "cosine_min"),
    "sqnr_db": _of("quality", "sqnr_db"),
    "max_abs_error": _of("quality", "max_abs_error"),
    "quality_samples": _of("quality", "samples"),
    "quality_data": _of("quality", "data"),
    "quality_bound": _of("quality", "bound"),
    "quality_passed": _of("quality", "passed"),
    "metric": _of("accuracy", "metric"),
    "accuracy": _of("accuracy", "value"),
    "reference": _of("accuracy", "reference"),
    "accuracy_drop": _of("accuracy", "drop"),
    "accuracy_significant": _of("accuracy", "significant"),
    "accuracy_samples": _of("accuracy", "samples"),
    "accuracy_bound": _of("accuracy", "bound"),
    "accuracy_passed": _of("accuracy", "passed"),
    "accuracy_measured": _of("accuracy", "measured"),
    "accuracy_made_at": _of("accuracy", "made_at"),
    "nodes_quantized": lambda row: row.nodes_quantized,
    "nodes_skipped": lambda row: row.nodes_skipped,
    "skipped_reasons": lambda row: "; ".join(f"{count} {why}" for why, count in row.skipped_reasons.items()),
    "partitions": _of("placement", "partitions"),
    "cpu_nodes": lambda row: None if row.placement is None else sum(row.placement.cpu_nodes.values()),
    "cpu_operators": lambda row: "" if row.placement is None else _counts(row.placement.cpu_nodes),
    "seconds": lambda row: row.seconds,
    "made_in_seconds": lambda row: row.made_in_seconds,
    "saved_seconds": lambda row: row.saved_seconds,
    "build_peak_memory_bytes": lambda row: row.peak_memory_bytes,
    "dominated_by": lambda row: row.dominated_by,
    "dominated_why": lambda row: row.dominated_why,
    "winner_of": lambda row: "; ".join(row.winner_of),
    "trial_of": lambda row: row.trial_of,
    "missing": lambda row: "; ".join(f"{part}: {why}" for part, why in row.missing.items()),
    "versions": lambda row: "; ".join(f"{name} {version}" for name, version in row.versions.items()),
    "digest": lambda row: row.digest,
    "folder": lambda row: row.folder,
    "command": lambda row: row.command,
}


def csv_of(report: Report) -> str:
    """The whole table, lines ended as RFC 4180 has it. A value that is missing is an empty field."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    writer.writerows([_field(value(row)) for value in COLUMNS.values()] for row in report.rows)
    return text.getvalue()


def _field(value: _Value) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    return f"'{value}" if value.startswith(_FORMULA) else value


def _counts(counts: Mapping[str, int]) -> str:
    return "; ".join(f"{count} {name}" for name, count in counts.items())
