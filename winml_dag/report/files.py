"""The files of a report: an HTML page, JSON, which is read back, and CSV.

Foreign files are replaced only on request. Spreadsheets run text that looks like a formula, and names come from users,
so such texts start with an apostrophe in the CSV (RFC 4180).
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from winml_dag.canonical import JsonObject
from winml_dag.errors import InputError, UsageError
from winml_dag.file_reading import MOST_BYTES_OF_MANY, parse_json, read_bytes
from winml_dag.pipeline.jsonfile import put_text
from winml_dag.pipeline.layout import MANIFEST
from winml_dag.pipeline.sweep.result import DecodeError, decode, encode
from winml_dag.report.compare import Comparison
from winml_dag.report.page import REPORT_PAGE, html_of
from winml_dag.report.row import FORMAT, Report, Row

REPORT = "report.json"


def report_json(report: Report) -> JsonObject:
    """Return every field of *report* under its own name. ``format`` is raised when the meaning of a field changes."""
    value: JsonObject = encode(report)
    return value


def comparison_json(comparison: Comparison) -> JsonObject:
    """Return every field, and the number of regressions and improvements."""
    return {
        **encode(comparison),
        "regressions": len(comparison.regressions),
        "improvements": len(comparison.improvements),
    }


def json_text(value: JsonObject) -> str:
    """Format *value* with one line per row, so that files can be compared line by line."""
    lists = {name: each for name, each in value.items() if name in ("rows", "candidates") and isinstance(each, list)}
    lines = [f"{json.dumps(name)}: {_dumped(each)}" for name, each in value.items() if name not in lists]
    lines += [
        f"{json.dumps(name)}: [\n" + ",\n".join(map(_dumped, each)) + "\n]" if each else f"{json.dumps(name)}: []"
        for name, each in lists.items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read_report(path: Path) -> Report:
    """Read the report in the file *path*, as written by ``winml-dag report``.

    Raises:
        InputError: when it does not exist, is damaged, has a newer format, or comes from another program.
    """
    try:
        value: Any = parse_json(read_bytes(path, MOST_BYTES_OF_MANY), allow_nan=False)
        found = value.get("format") if isinstance(value, dict) else None
        if not isinstance(found, int) or found > FORMAT:
            raise DecodeError(f"its format is {found!r}, and this version knows up to {FORMAT}")
        return decode(Report, value)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from None
    except ValueError as error:  # includes DecodeError
        raise InputError(
            f"{path} is not a report: {error}.", advice="Give a report.json, or the folder that a sweep was built into."
        ) from None


def _dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


CSV = "report.csv"

_Value: TypeAlias = str | int | float | bool | None

# Characters that start a formula in a spreadsheet, including the fullwidth forms. It strips the last three before it
# checks.
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20", "\t", "\r", "\n")


def _of(part: str, name: str) -> Callable[[Row], _Value]:
    """Return a getter for the field *name* of a *part* that may be missing."""

    def found(row: Row) -> _Value:
        value: _Value = getattr(getattr(row, part), name, None)
        return value

    return found


# New columns go last: programs rely on the positions of the others.
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
    """Return the whole table, with line ends as in RFC 4180. A missing value is an empty field."""
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
    extra = {} if comparison is None else {"comparison": comparison_json(comparison)}
    return json_text({**report_json(report), **extra})


def _is_owned(path: Path, suffix: str) -> bool:
    try:
        if suffix == ".html":
            return REPORT_PAGE.made(path)
        with path.open(encoding="utf-8", errors="replace") as file:
            return _MARKS[suffix] in file.read(_BEGINNING)
    except OSError:
        return False
