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
from winml_dag.smallfiles import MOST_BYTES_OF_MANY, parse_json, read_bytes

REPORT = "report.json"


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
        value: Any = parse_json(read_bytes(path, MOST_BYTES_OF_MANY), allow_nan=False)
        found = value.get("format") if isinstance(value, dict) else None
        if not isinstance(found, int) or found > FORMAT:
            raise Misshapen(f"its format is {found!r}, and this version knows up to {FORMAT}")
        return read(Report, value)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from None
    except ValueError as error:  # Misshapen is one
        raise InputError(
            f"{path} is no report: {error}.", advice="Give a report.json, or the folder that a sweep was built into."
        ) from None


def _dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
