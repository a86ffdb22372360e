"""The files that a report is written into. One that somebody else has made is never replaced unless that is asked."""

from __future__ import annotations

from pathlib import Path

from winml_dag.errors import UsageError
from winml_dag.pipeline.jsonfile import put_text
from winml_dag.pipeline.layout import MANIFEST
from winml_dag.report.compare import Comparison
from winml_dag.report.document import REPORT, comparison_json, json_text, report_json
from winml_dag.report.html import html_of
from winml_dag.report.html.page import REPORT_PAGE
from winml_dag.report.row import Report
from winml_dag.report.spreadsheet import COLUMNS, CSV, csv_of

HTML = "report.html"

# What files of ours that are no pages have near their beginning, by suffix.
_MARKS = {".json": '",\n"subjects": [', ".csv": ",".join(list(COLUMNS)[:6])}
_BEGINNING = 4096


def default_files(folder: Path) -> dict[str, Path]:
    """By format, where the files go; nowhere in the folder of a single build, whose files its manifest lists."""
    if (folder / MANIFEST).exists():
        return {}
    return {"html": folder / HTML, "json": folder / REPORT, "csv": folder / CSV}


def write_files(files: dict[str, Path], report: Report, comparison: Comparison | None, *, overwrite: bool) -> None:
    """Write *report* into each of *files*, a path by its format: ``html``, ``json``, ``csv``.

    Raises:
        UsageError: for a folder, and when a file of somebody else's is in the way; then nothing was written.
        StoreError: when a file cannot be written.
    """
    for kind, path in files.items():
        if path.is_dir():
            raise UsageError(f"{path} is a folder.", advice="Choose a file.")
        if path.is_file() and not (overwrite or _is_ours(path, f".{kind}")):
            raise UsageError(
                f"{path} is in the way, and no report of ours.", advice="Move it away, or give --overwrite."
            )
    for kind, path in files.items():
        put_text(path, _text(kind, report, comparison))


def _text(kind: str, report: Report, comparison: Comparison | None) -> str:
    if kind == "html":
        return html_of(report, comparison)
    if kind == "csv":
        return csv_of(report)
    told = {} if comparison is None else {"comparison": comparison_json(comparison)}
    return json_text({**report_json(report), **told})


def _is_ours(path: Path, suffix: str) -> bool:
    try:
        if suffix == ".html":
            return REPORT_PAGE.made(path)
        with path.open(encoding="utf-8", errors="replace") as file:
            return _MARKS[suffix] in file.read(_BEGINNING)
    except OSError:
        return False
