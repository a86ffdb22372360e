"""The files of a report: an HTML page, JSON, which is read back, and CSV.

Foreign files are replaced only on request. Spreadsheets run text that looks like a formula, and names come from users,
so such texts start with an apostrophe in the CSV (RFC 4180).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.errors import InputError, UsageError
from winml_dag.file_reading import MOST_BYTES_OF_MANY, read_bytes
from winml_dag.pipeline.jsonfile import put_text
from winml_dag.pipeline.layout import MANIFEST
from winml_dag.pipeline.sweep.result import DecodeError, decode_text, encode, lined_text
from winml_dag.report.compare import Comparison
from winml_dag.report.page import REPORT_PAGE, html_of
from winml_dag.report.row import FORMAT, Report

REPORT = "report.json"


def report_json(report: Report, comparison: Comparison | None) -> JsonObject:
    """Return every field under its own name, and the number of regressions and improvements.

    ``format`` is raised when the meaning of a field changes.
    """
    value: dict[str, JsonValue] = encode(report)
    if comparison is not None:
        counts = {"regressions": len(comparison.regressions), "improvements": len(comparison.improvements)}
        value["comparison"] = {**encode(comparison), **counts}
    return value


def read_report(path: Path) -> Report:
    """Read the report in the file *path*, as written by ``winml-dag report``.

    Raises:
        InputError: when it does not exist, is damaged, has another format, or comes from another program.
    """
    try:
        return decode_text(Report, read_bytes(path, MOST_BYTES_OF_MANY), FORMAT)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from None
    except DecodeError as error:
        raise InputError(
            f"{path} is not a report: {error}.", advice="Give a report.json, or the folder that a sweep was built into."
        ) from None


CSV = "report.csv"

# Characters that start a formula in a spreadsheet, including the fullwidth forms. It strips the last three before it
# checks.
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20", "\t", "\r", "\n")


# The field of each column. New columns go last: programs rely on the positions of the others.
COLUMNS: Mapping[str, str] = {
    "name": "name",
    "model": "model",
    "task": "task",
    "precision": "precision",
    "ep": "ep",
    "device": "device",
    "status": "status",
    "why": "why",
    "stage_reached": "reached",
    "failed_stage": "failure.stage",
    "size_bytes": "size.model",
    "sidecar_bytes": "size.sidecar",
    "folder_bytes": "size.folder",
    "embeds_binary": "size.embeds_binary",
    "latency_p50_ms": "latency.p50",
    "latency_p90_ms": "latency.p90",
    "latency_p99_ms": "latency.p99",
    "inferences": "latency.inferences",
    "warmup": "latency.warmup",
    "load_seconds": "latency.load_seconds",
    "latency_measured": "latency.measured",
    "latency_made_at": "latency.made_at",
    "emulated": "latency.emulated",
    "peak_memory_bytes": "latency.peak_memory_bytes",
    "cosine": "quality.cosine",
    "cosine_min": "quality.cosine_min",
    "sqnr_db": "quality.sqnr_db",
    "max_abs_error": "quality.max_abs_error",
    "quality_samples": "quality.samples",
    "quality_data": "quality.data",
    "quality_bound": "quality.bound",
    "quality_passed": "quality.passed",
    "metric": "accuracy.metric",
    "accuracy": "accuracy.value",
    "reference": "accuracy.reference",
    "accuracy_drop": "accuracy.drop",
    "accuracy_significant": "accuracy.significant",
    "accuracy_samples": "accuracy.samples",
    "accuracy_bound": "accuracy.bound",
    "accuracy_passed": "accuracy.passed",
    "accuracy_measured": "accuracy.measured",
    "accuracy_made_at": "accuracy.made_at",
    "nodes_quantized": "nodes_quantized",
    "nodes_skipped": "nodes_skipped",
    "skipped_reasons": "skipped_reasons",
    "partitions": "placement.partitions",
    "cpu_nodes": "placement.on_cpu",
    "cpu_operators": "placement.cpu_nodes",
    "seconds": "seconds",
    "made_in_seconds": "made_in_seconds",
    "saved_seconds": "saved_seconds",
    "build_peak_memory_bytes": "peak_memory_bytes",
    "dominated_by": "dominated_by",
    "dominated_why": "dominated_why",
    "winner_of": "winner_of",
    "trial_of": "trial_of",
    "missing": "missing",
    "versions": "versions",
    "digest": "digest",
    "folder": "folder",
    "command": "command",
}


# How names and values are written; the others are counts.
_PAIRS = {"missing": "{0}: {1}", "versions": "{0} {1}"}


def csv_of(report: Report) -> str:
    """Return the whole table, with line ends as in RFC 4180. A missing value is an empty field."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    writer.writerows([_field(path, row.value(path)) for path in COLUMNS.values()] for row in report.rows)
    return text.getvalue()


def _field(path: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        form = _PAIRS.get(path, "{1} {0}")
        value = [form.format(*pair) for pair in value.items()]
    text = "; ".join(value) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


HTML = "report.html"

# Text near the start of owned files other than pages, by suffix.
_MARKS = {".json": '",\n"subjects": [', ".csv": ",".join(list(COLUMNS)[:6])}
_BEGINNING = 4096


def default_files(folder: Path) -> dict[str, Path]:
    """Return the default path per format; none in the folder of a single build, whose files its manifest lists."""
    if (folder / MANIFEST).exists():
        return {}
    return {"html": folder / HTML, "json": folder / REPORT, "csv": folder / CSV}


def write_files(files: dict[str, Path], report: Report, comparison: Comparison | None, *, overwrite: bool) -> None:
    """Write *report* to each of *files*, a path per format: ``html``, ``json``, ``csv``.

    Raises:
        UsageError: for a folder, and when a foreign file is in the way; then nothing was written.
        StoreError: when a file cannot be written.
    """
    for kind, path in files.items():
        if path.is_dir():
            raise UsageError(f"{path} is a folder.", advice="Choose a file.")
        if path.is_file() and not (overwrite or _is_owned(path, f".{kind}")):
            raise UsageError(
                f"{path} exists and is not a winml-dag report.", advice="Move it away, or give --overwrite."
            )
    for kind, path in files.items():
        put_text(path, _text(kind, path, report, comparison))


def _text(kind: str, path: Path, report: Report, comparison: Comparison | None) -> str:
    if kind == "html":
        return html_of(report, comparison, path)
    if kind == "csv":
        return csv_of(report)
    return lined_text(report_json(report, comparison), "rows")


def _is_owned(path: Path, suffix: str) -> bool:
    try:
        if suffix == ".html":
            return REPORT_PAGE.made(path)
        with path.open(encoding="utf-8", errors="replace") as file:
            return _MARKS[suffix] in file.read(_BEGINNING)
    except OSError:
        return False
