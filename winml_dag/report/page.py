"""The report page: sentences that say what to ship, and the report as JSON, which scripts render.

Sweeps of 500 builds have thousands of stages, so the JSON is compact: fields that are None or empty are omitted, texts
of stages are stored once, in ``texts``, and stages are rows of numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.errors import few
from winml_dag.pipeline.sweep.result import Candidate, GoalResult, StageRun, encode
from winml_dag.report.compare import Comparison
from winml_dag.report.measures import MEASURES
from winml_dag.report.onefile import PAGES, PageKind, as_data, escaped, link_beside, page_of
from winml_dag.report.row import Report, Row
from winml_dag.store.quantities import size_text

_STYLES = ("base.css", "parts.css", "views.css", "print.css")
_SCRIPTS = (
    "dom.js",
    "rows.js",
    "columns.js",
    "tooltip.js",
    "heat.js",
    "table.js",
    "plot.js",
    "timeline.js",
    "cell.js",
    "goals.js",
    "comparison.js",
    "overview.js",
    "main.js",
)
REPORT_PAGE = PageKind("winml-dag report", PAGES / "report", _STYLES, _SCRIPTS)


def html_of(report: Report, comparison: Comparison | None = None, path: Path | None = None) -> str:
    """Return the whole page, in ASCII, which is valid in any encoding. *path*: where it goes, to link other pages."""
    sentences = answers(report, comparison)
    return page_of(
        REPORT_PAGE,
        about=("description", escaped(" ".join(sentences))),
        title=escaped(report.name),
        links=link_beside(path, "graph.html", "Graph of the stages"),
        answer="".join(f'<p dir="auto">{escaped(sentence)}</p>' for sentence in sentences),
        content=as_data(content_of(report, comparison)),
    )


_MOST = 4
# With two digits it would become 1e+02.
_WHOLE_PERCENT = 99.5


def answers(report: Report, comparison: Comparison | None = None) -> tuple[str, ...]:
    """Return a few sentences, the most important first; at least one."""
    rows = {row.name: row for row in report.rows}
    best = [_best_by(goal, rows) for goal in report.goals] or list(_best_without_goal(report.rows))
    first = [*best[:_MOST], *([f"{len(best) - _MOST} more are below."] if len(best) > _MOST else [])]
    exist = f"{sum(row.is_there for row in report.rows)} of {len(report.rows)} builds exist."
    return (*_change(comparison), *first) or (exist if report.rows else "There are no builds.",)


def _change(comparison: Comparison | None) -> Iterator[str]:
    if comparison is None:
        return
    worse = comparison.regressions
    if worse:
        names = few([row.name for row in worse], 3)
        yield f"{len(worse)} of {len(comparison.rows)} builds are worse than in {comparison.then}: {names}."
    else:
        yield f"No build is worse than in {comparison.then} by more than is allowed."


def _best_by(goal: GoalResult, rows: Mapping[str, Row]) -> str:
    group = _group(goal.group.values())
    if goal.winner is None and goal.pending:
        return f"Not settled yet{group}: {_sentence(goal.why or 'some builds have no result')}"
    if goal.winner is None:
        return f"Nothing to ship{group}: {_sentence(goal.why or 'no build meets the bounds')}"
    row = rows.get(goal.winner)
    if row is None:
        return f"Best{group}: {goal.winner}."
    labels = [label for axis, label in row.values.items() if axis not in goal.group]
    chosen = next((one for one in goal.candidates if one.cell == goal.winner), None)
    parts = [" / ".join(labels) + _trial(row) or row.name, *_figures(row, goal.minimize, chosen)]
    return f"Best{group}: {', '.join(parts)}."


def _trial(row: Row) -> str:
    """Return the part of a trial's name after that of its build."""
    if row.trial_of is None or not row.name.startswith(row.trial_of):
        return ""
    return row.name.removeprefix(row.trial_of).replace("/", " ", 1)


def _figures(row: Row, minimized: str, chosen: Candidate | None) -> Iterator[str]:
    if minimized == "size" and row.size:
        yield size_text(row.size.model)
    elif row.latency:
        yield _ms(row.latency.p50) + (" on an emulator" if row.latency.emulated else "")
    elif chosen is not None and (value := chosen.values.get(minimized)) is not None and minimized in MEASURES:
        yield f"{MEASURES[minimized].label} {MEASURES[minimized].text(value)}"
    yield from _worse(row)


def _worse(row: Row) -> Iterator[str]:
    """Yield the quality loss, in the most meaningful terms that the numbers allow."""
    accuracy = row.accuracy
    if accuracy is not None and accuracy.drop is not None and accuracy.reference:
        share = 100 * accuracy.drop / abs(accuracy.reference)
        percent = f"{abs(share):.2g}" if abs(share) < _WHOLE_PERCENT else f"{abs(share):.0f}"
        difference = f"{percent} % {'worse' if share > 0 else 'better'}" if abs(share) >= 0.005 else "no worse"
        yield f"{difference} in {accuracy.metric}"
    elif row.quality is not None and row.quality.cosine is not None:
        yield f"cosine {row.quality.cosine:.4f}"


def _best_without_goal(rows: Sequence[Row]) -> Iterator[str]:
    """Yield, per model, the fastest and the smallest of the builds that exist and pass their thresholds."""
    models = dict.fromkeys(row.model for row in rows)
    for model in models:
        there = [row for row in rows if row.model == model and row.is_there]
        good = [row for row in there if False not in (row.value("quality.passed"), row.value("accuracy.passed"))]
        timed = {row.name: row.latency.p50 for row in good if row.latency is not None and not row.latency.emulated}
        sized = {row.name: row.size.model for row in good if row.size is not None}
        fastest = min((row for row in good if row.name in timed), key=lambda row: timed[row.name], default=None)
        smallest = min((row for row in good if row.name in sized), key=lambda row: sized[row.name], default=None)
        if len(good) < 2 or smallest is None:
            continue
        if fastest is None:
            yield f"{model}: smallest is {_choice(smallest, size_text(sized[smallest.name]))}."
        elif fastest is smallest:
            figures = f"{_ms(timed[fastest.name])}, {size_text(sized[fastest.name])}"
            yield f"{model}: fastest and smallest is {_choice(fastest, figures)}."
        else:
            first = _choice(fastest, _ms(timed[fastest.name]))
            yield f"{model}: fastest is {first}; smallest is {_choice(smallest, size_text(sized[smallest.name]))}."


def _choice(row: Row, figure: str) -> str:
    return f"{row.precision} on {row.ep} ({', '.join([figure, *_worse(row)])})"


def _group(labels: Iterable[str]) -> str:
    first, *others = [*labels] or [""]
    return (f" for {first}" if first else "") + (f" on {', '.join(others)}" if others else "")


def _ms(value: float) -> str:
    return MEASURES["latency"].text(value)


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


_STAGE_COLUMNS = tuple(field.name for field in fields(StageRun))
_DIGITS = 7


class _Pool:
    """Stores repeated values once and refers to them by index."""

    def __init__(self) -> None:
        self.values: list[JsonValue] = []
        self._places: dict[object, int] = {}

    def place(self, key: object, value: JsonValue) -> int:
        if key not in self._places:
            self._places[key] = len(self.values)
            self.values.append(value)
        return self._places[key]


def content_of(report: Report, comparison: Comparison | None) -> JsonObject:
    """Return everything that the page shows. Numbers outside JSON become ``"Infinity"``, ``"-Infinity"`` or null."""
    texts, versions = _Pool(), _Pool()
    rows: list[JsonValue] = []
    for row in report.rows:
        pairs = tuple(sorted(row.versions.items()))
        rows.append(
            {
                **_compact(encode(replace(row, stages=(), versions={}))),
                "stages": [_stage(stage, texts) for stage in row.stages],
                "versions": versions.place(pairs, _compact(dict(pairs))),
            }
        )
    return {
        **_compact(encode(replace(report, rows=()))),
        "rows": rows,
        "stage_columns": list(_STAGE_COLUMNS),
        "texts": texts.values,
        "versions": versions.values,
        "comparison": None if comparison is None else _compared(comparison),
    }


def _stage(stage: StageRun, texts: _Pool) -> JsonValue:
    """Return the values of ``stage_columns``; a text is replaced by its index in ``texts``."""
    values = (_compact(getattr(stage, name)) for name in _STAGE_COLUMNS)
    return [texts.place(value, value) if isinstance(value, str) else value for value in values]


def _compared(comparison: Comparison) -> JsonObject:
    rows = [
        {**encode(row), "is_regression": row.is_regression, "is_improvement": row.is_improvement}
        for row in comparison.rows
    ]
    return {**_compact(encode(replace(comparison, rows=()))), "rows": _compact(rows)}


def _compact(value: Any) -> Any:
    """Return JSON without empty members, with numbers that it can hold, and with texts of valid Unicode.

    File names may contain undecodable bytes, which URLs cannot hold.
    """
    if isinstance(value, Mapping):
        members = ((_compact(name), _compact(inner)) for name, inner in value.items())
        return {name: inner for name, inner in members if inner is not None and inner not in ("", [], {})}
    if isinstance(value, list):
        return [_compact(inner) for inner in value]
    if isinstance(value, str):
        return str(value).encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else f"{'-' * (value < 0)}Infinity"
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
