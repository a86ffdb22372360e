"""A report, and a comparison of two, as JSON; and a report read back, with every field checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from winml_dag.canonical import JsonObject
from winml_dag.errors import InputError
from winml_dag.pipeline.sweep.plainform import Misshapen, plain, read
from winml_dag.report.compare import Comparison
from winml_dag.report.row import FORMAT, Report

REPORT = "report.json"

# A row has some 10 KB, so this is far more than 10,000 of them.
_MAX_BYTES = 512 * 1024 * 1024


def report_json(report: Report) -> JsonObject:
    """Every field of *report* under its own name; ``format`` is raised when the meaning of one changes."""
    value: JsonObject = plain(report)
    return value


def comparison_json(comparison: Comparison) -> JsonObject:
    """Every field, and how many builds have become worse and better."""
    return {
        **plain(comparison),
        "regressions": len(comparison.regressions),
        "improvements": len(comparison.improvements),
    }


def json_text(value: JsonObject) -> str:
    """One line for each row: a file that can be compared line by line."""
    lists = {name: each for name, each in value.items() if name in ("rows", "candidates") and isinstance(each, list)}
    lines = [f"{json.dumps(name)}: {_dumped(each)}" for name, each in value.items() if name not in lists]
    lines += [
        f"{json.dumps(name)}: [\n" + ",\n".join(map(_dumped, each)) + "\n]" if each else f"{json.dumps(name)}: []"
        for name, each in lists.items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read_report(path: Path) -> Report:
    """The report in the file *path*, which ``winml-dag report`` wrote.

    Raises:
        InputError: when there is none, or it is damaged, of a later format, or another program's.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise Misshapen(f"it is larger than {_MAX_BYTES // 1024**2} MiB")
        value: Any = json.loads(path.read_bytes(), parse_constant=_refuse_constant)
        found = value.get("format") if isinstance(value, dict) else None
        if not isinstance(found, int) or found > FORMAT:
            raise Misshapen(f"its format is {found!r}, and this version knows up to {FORMAT}")
        return read(Report, value)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from None
    except (ValueError, RecursionError) as error:  # Misshapen is one
        raise InputError(
            f"{path} is no report: {error}.", advice="Give a report.json, or the folder that a sweep was built into."
        ) from None


def _refuse_constant(name: str) -> float:
    raise Misshapen(f"{name} is no number of JSON")


def _dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
