"""The file itself: template, style, script and content in one, with a policy that lets nothing else in.

Names, reasons and logs are what anybody may have written. They are in one block of JSON that no browser runs, and the
script sets them as text. The policy allows the one style and the one script by their digests and no connection at all.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from pathlib import Path
from string import Template

from winml_dag.canonical import JsonObject
from winml_dag.report.compare import Comparison
from winml_dag.report.html.answer import answers
from winml_dag.report.html.content import content_of
from winml_dag.report.row import Report

_FOLDER = Path(__file__).parent / "page"
_STYLES = ("base.css", "parts.css", "views.css", "print.css")
# What is used stands before what uses it.
_SCRIPTS = (
    "dom.js",
    "format.js",
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
    style = "\n".join(_text(name) for name in _STYLES)
    script = '"use strict";\n(() => {\n' + "\n".join(_text(name) for name in _SCRIPTS) + "})();\n"
    sentences = answers(report, comparison)
    return Template(_text("page.html")).substitute(
        policy=_policy(style, script),
        title=_escaped(report.name),
        description=_escaped(" ".join(sentences)),
        answer="".join(f'<p dir="auto">{_escaped(sentence)}</p>' for sentence in sentences),
        style=style,
        script=script,
        content=_as_data(content_of(report, comparison)),
    )


def _text(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="ascii")


def _policy(style: str, script: str) -> str:
    return (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("ascii")).digest()).decode("ascii")


def _escaped(text: str) -> str:
    well_formed = text.encode("utf-8", "replace").decode("utf-8")
    return html.escape(well_formed).encode("ascii", "xmlcharrefreplace").decode("ascii")


def _as_data(content: JsonObject) -> str:
    """JSON that cannot end the element that it stands in: ``</script`` and ``<!--`` begin with what is escaped."""
    return json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
