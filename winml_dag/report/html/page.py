"""The file itself: template, style, script and content in one, with a policy that lets nothing else in."""

from __future__ import annotations

from pathlib import Path

from winml_dag.report.compare import Comparison
from winml_dag.report.html.answer import answers
from winml_dag.report.html.content import content_of
from winml_dag.report.onefile import as_data, escaped, page_of
from winml_dag.report.row import Report

_FOLDER = Path(__file__).parent / "page"
_STYLES = ("base.css", "parts.css", "views.css", "print.css")
# What is used stands before what uses it.
_SCRIPTS = (
    "dom.js",
    "rows.js",
    "columns.js",
    "tooltip.js",
    "heat.js",
    "table.js",
    "front.js",
    "plot.js",
    "timeline.js",
    "cell.js",
    "goals.js",
    "comparison.js",
    "overview.js",
    "main.js",
)


def html_of(report: Report, comparison: Comparison | None = None) -> str:
    """The whole page, in ASCII: it is right in whatever encoding it is written."""
    sentences = answers(report, comparison)
    return page_of(
        _FOLDER,
        _STYLES,
        _SCRIPTS,
        title=escaped(report.name),
        description=escaped(" ".join(sentences)),
        answer="".join(f'<p dir="auto">{escaped(sentence)}</p>' for sentence in sentences),
        content=as_data(content_of(report, comparison)),
    )
