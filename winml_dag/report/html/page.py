"""The file itself: template, style, script and content in one, with a policy that lets nothing else in."""

from __future__ import annotations

from pathlib import Path

from winml_dag.report.compare import Comparison
from winml_dag.report.html.answer import answers
from winml_dag.report.html.content import content_of
from winml_dag.report.onefile import PageKind, as_data, escaped, page_of
from winml_dag.report.row import Report

_STYLES = ("base.css", "parts.css", "views.css", "print.css")
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
REPORT_PAGE = PageKind("winml-dag report", Path(__file__).parent / "page", _STYLES, _SCRIPTS)


def html_of(report: Report, comparison: Comparison | None = None) -> str:
    """The whole page, in ASCII: it is right in whatever encoding it is written."""
    sentences = answers(report, comparison)
    return page_of(
        REPORT_PAGE,
        about=("description", escaped(" ".join(sentences))),
        title=escaped(report.name),
        answer="".join(f'<p dir="auto">{escaped(sentence)}</p>' for sentence in sentences),
        content=as_data(content_of(report, comparison)),
    )
