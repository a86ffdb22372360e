"""A report, and a comparison of two, as lines for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.cells import cell_len
from rich.text import Text

from winml_dag.errors import few
from winml_dag.pipeline.sweep.result import CellStatus
from winml_dag.report.compare import Change, Compared, Comparison, Fate, Verdict
from winml_dag.report.measures import MEASURES, printable
from winml_dag.report.row import Latency, Report, Row
from winml_dag.store.quantities import counted, duration_text

_GAP = "  "
_NONE = "none"
# Statuses without a result that need attention.
_WITHOUT_RESULT = (CellStatus.FAILED, CellStatus.REFUSED)
_BEST = {"latency": "fastest", "size": "smallest"}
# Up to this many builds that a run did not reach have lines of their own.
_MOST_ALIKE = 3
# Maximum reasons in a footnote on missing values; the rest is counted.
_MOST_REASONS = 6
# The width of the reason why a build is Pareto-dominated.
_REASON = 60
# Maximum ids listed of the critical path.
_MOST_STAGES = 8


# The styles of lines on a terminal with colours. Without them, words and marks say the same.
_PLAIN, _HEADING, _WINNER, _DOMINATED, _BAD = "", "bold", "green", "dim", "red"


@dataclass(frozen=True)
class _Column:
    """A column of the table.

    ``width``: what it counts for when columns are chosen, whatever the values are: the choice does not depend on what
    was measured. Without one it is always shown. Columns of a lower ``rank`` are chosen first. ``part``: the part of a
    row that gives the reason for a missing value.
    """

    heading: str
    of: Callable[[Row], str]
    rank: int = 0
    width: int | None = None
    part: str = ""
    right: bool = True


def table_lines(report: Report, width: int) -> Iterator[Text]:
    """Yield all of *report* in lines of *width*; only longer words, such as paths, exceed it.

    Characters that a terminal would interpret become question marks.
    """
    for line in _lines(report, width):
        yield Text(printable(line.plain), line.style)


def _lines(report: Report, width: int) -> Iterator[Text]:
    began = f"built {_minute(report.began_at)}, " if report.began_at else ""
    yield Text(_cut(f"{report.name}, {began}reported {_minute(report.made_at)}", width), _HEADING)
    table = _Table(report.rows, width)
    for model in dict.fromkeys(row.model for row in report.rows):
        rows = [row for row in report.rows if row.model == model]
        yield Text("")
        yield Text(_cut(_model_heading(rows), width), _HEADING)
        yield Text(table.line([column.heading for column in table.columns]))
        waiting = Counter(row.why for row in rows if row.status is CellStatus.NOT_REACHED)
        for row in rows:
            if row.status is not CellStatus.NOT_REACHED or waiting[row.why] <= _MOST_ALIKE:
                yield table.row(row)
        for why, count in waiting.items():
            if count > _MOST_ALIKE:
                yield Text(_cut(f"- {counted(count, 'build')} not reached: {why}", width), _DOMINATED)
    yield Text("")
    for text, style in (*_missing(report.rows, table.columns), *_headline(report)):
        yield from (Text(part, style) for part in wrapped(text, width))


class _Table:
    """The columns that fit into *width*, aligned over all *rows*."""

    def __init__(self, rows: Sequence[Row], width: int) -> None:
        self._width = width
        self.columns = _columns_that_fit(rows, width)
        cells = [(column.heading, *map(column.of, rows)) for column in self.columns]
        self._widths = [max(map(_width, each)) for each in cells]
        # Values may be wider than expected.
        fits = sum(self._widths) + len(_GAP) * len(self.columns) <= width
        self._gap = _GAP if fits else " "

    def line(self, cells: Sequence[str], mark: str = "  ") -> str:
        """Return *cells* of the first columns, aligned, after *mark*."""
        filled = (
            f"{' ' * (width - _width(cell))}{cell}" if column.right else f"{cell}{' ' * (width - _width(cell))}"
            for cell, column, width in zip(cells, self.columns, self._widths, strict=False)
        )
        return f"{mark}{self._gap.join(filled)}".rstrip()

    def row(self, row: Row) -> Text:
        if row.size is not None or row.is_there:
            mark = "* " if row.winner_of else "~ " if row.dominated_by else "  "
            style = _WINNER if row.winner_of else _DOMINATED if row.dominated_by else _PLAIN
            return Text(self.line([column.of(row) for column in self.columns], mark), style)
        is_bad = row.status in _WITHOUT_RESULT
        start = self.line([column.of(row) for column in self.columns if column.width is None], "! " if is_bad else "- ")
        text = _cut(f"{start}{_GAP}{row.without_result}", self._width)
        return Text(text, _BAD if is_bad else _DOMINATED)


def wrapped(text: str, width: int) -> Iterator[str]:
    """Wrap *text* to *width*, with continuation lines indented. A longer word gets its own line."""
    line = ""
    for word in text.split():
        if line.strip() and _width(line) + 1 + _width(word) > width:
            yield line
            line = f"  {word}"
        else:
            line = f"{line} {word}" if line else word
    yield line


def _minute(text: str) -> str:
    """Format a time as ``2026-11-22 10:46 UTC``, as the pages do."""
    try:
        return f"{datetime.fromisoformat(text).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return text


def _model_heading(rows: Sequence[Row]) -> str:
    tasks = ", ".join(dict.fromkeys(row.task for row in rows if row.task))
    parts = next((row.components for row in rows if row.components), ())
    of = f", of {' and '.join(parts)}" if parts else ""
    return f"{rows[0].model}{f' ({tasks})' if tasks else ''}{of}"


def _columns_that_fit(rows: Sequence[Row], width: int) -> list[_Column]:
    """Return the columns that have values and fit, chosen by rank and in display order."""
    # Where several builds share model, precision and target, only their names distinguish them.
    alike = Counter((row.model, row.precision, row.ep, row.device) for row in rows)
    named = _COLUMNS if any(count > 1 for count in alike.values()) else _COLUMNS[1:]
    wanted = [one for one in named if any(one.of(row) not in ("", "-", _NONE) for row in rows)]
    always = [column for column in wanted if column.width is None]
    left = width - 2 - sum(max(map(_width, (one.heading, *map(one.of, rows)))) + len(_GAP) for one in always)
    chosen = {column.heading for column in always}
    for column in sorted(wanted, key=lambda one: one.rank):
        if column.width is not None and column.width + len(_GAP) <= left:
            chosen.add(column.heading)
            left -= column.width + len(_GAP)
    return [column for column in wanted if column.heading in chosen]


def _measured(heading: str, rank: int, width: int, measure: str, part: str) -> _Column:
    known = MEASURES[measure]

    def text(row: Row) -> str:
        value = known.of(row)
        emulated = part == "latency" and row.latency is not None and row.latency.emulated
        return "-" if value is None else f"{known.text(value)}{'?' if emulated else ''}"

    return _Column(heading, text, rank, width, part)


def _sidecar(row: Row) -> str:
    if row.size is None:
        return "-"
    if row.size.embeds_binary:
        return "embedded"
    return MEASURES["size"].text(row.size.sidecar) if row.size.sidecar else _NONE


def _drop(row: Row) -> str:
    if row.accuracy is None or row.accuracy.drop is None:
        return "-"
    verdict = {True: " ok", False: " BAD", None: ""}[row.accuracy.passed]
    return f"{row.accuracy.drop:.4f}{verdict}"


def _quantized(row: Row) -> str:
    if row.nodes_quantized is None:
        return "-"
    return f"{row.nodes_quantized}/{row.nodes_quantized + (row.nodes_skipped or 0)}"


def _duration(seconds: float) -> str:
    return duration_text(seconds) if seconds else "-"


def _latency(text: Callable[[Latency], str]) -> Callable[[Row], str]:
    return lambda row: "-" if row.latency is None else text(row.latency)


def _dominated(row: Row) -> str:
    return "" if row.dominated_by is None else _cut(f"{row.dominated_by}: {row.dominated_why}", _REASON)


_COLUMNS = (
    # The model is in the heading.
    _Column("build", lambda row: row.name.removeprefix(f"{row.model}/"), right=False),
    _Column("precision", lambda row: row.precision or "-", right=False),
    _Column("target", lambda row: row.target, right=False),
    _measured("size", 0, 8, "size", "size"),
    _Column("beside", _sidecar, 14, 8, "size"),
    _measured("p50", 1, 8, "latency", "latency"),
    _measured("p90", 9, 8, "latency_p90", "latency"),
    _measured("p99", 10, 8, "latency_p99", "latency"),
    _Column("n+warm-up", _latency(lambda latency: f"{latency.inferences}+{latency.warmup}"), 16, 9, "latency"),
    _measured("load", 13, 8, "load", "latency"),
    _measured("memory", 12, 10, "peak_memory", "latency"),
    _measured("cosine", 2, 6, "cosine", "quality"),
    _measured("SQNR", 15, 7, "sqnr_db", "quality"),
    _measured("accuracy", 3, 8, "accuracy", "accuracy"),
    _Column("drop", _drop, 4, 10, "accuracy"),
    _measured("partitions", 6, 10, "partitions", "placement"),
    _measured("on CPU", 5, 6, "cpu_nodes", "placement"),
    _Column("quantized", _quantized, 11, 9, "nodes_quantized"),
    _Column("build time", lambda row: _duration(row.made_in_seconds), 7, 10),
    _Column("saved", lambda row: _duration(row.saved_seconds), 8, 6),
    _Column(
        "measured", _latency(lambda latency: f"{latency.measured} {latency.made_at[:10]}"), 17, 17, "latency", False
    ),
    _Column("Pareto-dominated by", _dominated, 18, _REASON, right=False),
)


def _headline(report: Report) -> Iterator[tuple[str, str]]:
    """Yield the overall result, the winners, and notes."""
    for goal in report.goals:
        group = f" for {', '.join(goal.group.values())}" if goal.group else ""
        bounds = ", ".join(f"{name} {bound}" for name, bound in goal.subject_to.items())
        what = f"{_BEST.get(goal.minimize, goal.minimize)}{group}{f' ({bounds})' if bounds else ''}"
        if goal.winner is None and goal.pending:
            yield f"- {what}: not settled yet{f'; {goal.why}' if goal.why else ''}", _DOMINATED
        elif goal.winner is None:
            yield f"! {what}: none{f'; {goal.why}' if goal.why else ''}", _BAD
        else:
            where = f", in {goal.folder}" if goal.folder else ""
            yield f"* {what}: {goal.winner}{where}{f'; {goal.why}' if goal.why else ''}", _WINNER
    yield from _failures(report.rows)
    for notice in report.notices:
        yield f"note: {notice}", _PLAIN
    if any(row.latency is not None and row.latency.emulated for row in report.rows):
        yield "? of an emulated device", _PLAIN
    if dominated := sum(row.dominated_by is not None for row in report.rows):
        what = "is at least as good in every known figure, and better in one"
        yield (
            f"~ {counted(dominated, 'build')} Pareto-dominated: another of the same model and target {what}.",
            _DOMINATED,
        )
    yield _counts(report), _PLAIN
    yield from ((text, _PLAIN) for text in _times(report))


def _failures(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    for row in rows:
        if row.failure is None:
            continue
        log = f" The whole log: {row.failure.log}" if row.failure.log else ""
        yield f"! {row.name} {row.failure.sentence} {row.failure.advice}".rstrip() + log, _BAD


def _counts(report: Report) -> str:
    found = Counter(str(row.status) for row in report.rows)
    counts = ", ".join(f"{found[status]} {status}" for status in map(str, CellStatus) if found[status])
    return f"{counted(len(report.rows), 'build')}: {counts}."


def _times(report: Report) -> Iterator[str]:
    graph = report.graph
    ran = graph.seconds_ran or sum(row.seconds for row in report.rows)
    saved = graph.seconds_saved or sum(row.saved_seconds for row in report.rows)
    stages = f" {graph.stages} stages instead of {graph.stages_apart}." if graph.stages_apart > graph.stages else ""
    yield f"Spent {duration_text(ran)} of work; reuse saved {duration_text(saved)}.{stages}"
    if graph.critical_path:
        yield f"Critical path {duration_text(graph.critical_path_seconds)}: {_path(graph.critical_path)}"


def _path(ids: Sequence[str]) -> str:
    """Format *ids*, with the cell only once if all nodes are of one cell."""
    cells = {each.rpartition("/")[0] for each in ids}
    of = f"{next(iter(cells))}: " if len(cells) == 1 and "" not in cells else ""
    shown = [each.removeprefix(of.replace(": ", "/")) for each in ids[:_MOST_STAGES]]
    more = [f"{len(ids) - _MOST_STAGES} more"] if len(ids) > _MOST_STAGES else []
    return f"{of}{' > '.join([*shown, *more])}"


def _missing(rows: Sequence[Row], columns: Sequence[_Column]) -> Iterator[tuple[str, str]]:
    """Yield why existing builds lack a value, each reason once."""
    there = [row for row in rows if row.size is not None]
    parts = dict.fromkeys(("latency", "accuracy", *(column.part for column in columns if column.part)))
    for part in parts:
        reasons = Counter(row.missing[part] for row in there if part in row.missing)
        for reason, count in reasons.most_common(_MOST_REASONS):
            of = "" if count == len(there) else f" of {counted(count, 'build')}"
            yield f"- {part.replace('_', ' ')}{of}: {reason}", _PLAIN
        if len(reasons) > _MOST_REASONS:
            yield f"- {part}: {len(reasons) - _MOST_REASONS} other reasons, in report.json", _PLAIN


def _cut(text: str, width: int) -> str:
    """Return the beginning of *text*, on one line."""
    line = Text(printable(text))
    line.truncate(width, overflow="ellipsis")
    return line.plain


def _width(text: str) -> int:
    return cell_len(printable(text))


# Maximum names listed of builds that only one of the reports has.
_MOST_NAMED = 10


def comparison_lines(comparison: Comparison, width: int) -> Iterator[Text]:
    """Yield every build that has changed, and what was compared."""
    for line in _lines_of_comparison(comparison):
        for part in wrapped(line.plain, width):
            yield Text(printable(part), line.style)


def _lines_of_comparison(comparison: Comparison) -> Iterator[Text]:
    was, now = (f" ({_minute(when)})" if when else "" for when in (comparison.then_made_at, comparison.now_made_at))
    yield Text(f"Against {comparison.then}{was}: {comparison.now}{now}")
    for row in comparison.rows:
        yield from _row_lines(row)
    for fate in (Fate.NEW, Fate.GONE):
        if names := [row.name for row in comparison.rows if row.fate is fate]:
            yield Text(f"{fate}: {few(names, _MOST_NAMED)}")
    for notice in comparison.notices:
        yield Text(f"note: {notice}")
    yield from map(Text, _not_compared(comparison))
    yield Text(f"bounds: {', '.join(f'{bound.measure} {bound.text}' for bound in comparison.bounds) or 'none'}")
    style = _BAD if comparison.regressions else _PLAIN
    yield Text(_summary(comparison), style)


def _row_lines(row: Compared) -> Iterator[Text]:
    name = row.name if row.then in (None, row.name) else f"{row.name} (was {row.then})"
    if row.fate is not Fate.SAME:
        if row.fate in (Fate.NOW_FAILING, Fate.NOW_THERE):
            style = _BAD if row.is_regression else _WINNER
            yield Text(f"{row.fate}: {name}{f': {row.why}' if row.why else ''}", style)
        return
    for change in row.changes:
        if change.verdict is Verdict.REGRESSION:
            yield Text(f"worse: {name}: {_change(change)}", _BAD)
        elif change.verdict is Verdict.IMPROVEMENT:
            yield Text(f"better: {name}: {_change(change)}", _WINNER)
        elif change.why and change.worse and change.verdict is Verdict.WITHIN:
            yield Text(f"unsure: {name}: {_change(change)}; {change.why}")


def _change(change: Change) -> str:
    """Format ``size 73.7 KiB -> 80.1 KiB (+8.7 %, bound +1%)``."""
    text = MEASURES[change.measure].text
    assert change.then is not None
    assert change.now is not None
    difference = change.now - change.then
    by = f"{difference / abs(change.then):+.1%}" if change.then else f"{difference:+.4g}"
    shown = text(change.then), text(change.now)
    if shown[0] == shown[1]:  # the difference is too small for the displayed digits
        shown = f"{change.then:.6g}", f"{change.now:.6g}"
    by = by if abs(difference) >= 0.001 * abs(change.then) else f"{difference:+.4g}"
    return f"{change.label} {shown[0]} -> {shown[1]} ({by}, bound {change.bound})"


def _not_compared(comparison: Comparison) -> Iterator[str]:
    """Yield existing values that cannot be compared, each reason once."""
    found = Counter(
        (change.label, change.why)
        for row in comparison.rows
        for change in row.changes
        if change.verdict is Verdict.NOT_COMPARED
    )
    for (label, why), count in found.items():
        yield f"not compared: {label} of {counted(count, 'build')}: {why}"


def _summary(comparison: Comparison) -> str:
    fates = Counter(row.fate for row in comparison.rows)
    alike = [row for row in comparison.rows if row.fate is Fate.SAME and not (row.is_regression or row.is_improvement)]
    parts = [
        f"{counted(len(comparison.regressions), 'build')} worse",
        f"{len(comparison.improvements)} better",
        f"{len(alike)} as before",
        *(f"{fates[fate]} {fate}" for fate in (Fate.NEW, Fate.GONE, Fate.NOW_FAILING, Fate.MISSING) if fates[fate]),
    ]
    return f"{', '.join(parts)}."
