"""Comparison of two reports: what counts as worse, what is not compared, and that nothing is lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winml_dag.errors import UsageError
from winml_dag.pipeline.sweep.result import CellStatus, Failure
from winml_dag.report.compare import Change, Comparison, Fate, Verdict, bounds_of, compare
from winml_dag.report.row import Accuracy, Latency, Quality, Report, Row, Size


def _latency(p50: float, **fields: object) -> Latency:
    return replace(Latency(p50, p50 * 1.01, p50 * 1.02, 100, 10, "live", "", host={"processor": "x"}), **fields)  # type: ignore[arg-type]


def _row(name: str = "bert/w8a8/npu", **fields: object) -> Row:
    row = Row(
        name, {}, "bert", "w8a8", "qnn", "npu", CellStatus.BUILT, size=Size(1000, 0, 1000), latency=_latency(10.0)
    )
    row = replace(row, quality=Quality(0.99, None, None, None, 3, "random"))
    return replace(row, **fields)  # type: ignore[arg-type]


def _compared(now: Sequence[Row], then: Sequence[Row], *bounds: str) -> Comparison:
    reports = [Report("small", (where,), "", tuple(rows)) for where, rows in (("new", now), ("old", then))]
    return compare(reports[0], reports[1], bounds_of(bounds))


def _change(measure: str, comparison: Comparison) -> Change:
    return next(change for change in comparison.rows[0].changes if change.measure == measure)


def _gone(name: str, status: CellStatus, why: str = "") -> Row:
    failure = Failure("quantize", "It did not fit.") if status is CellStatus.FAILED else None
    return _row(name, status=status, why=why, failure=failure, size=None, latency=None, quality=None)


@pytest.mark.parametrize(
    ("measure", "fields", "verdict"),
    [
        ("latency", {"latency": _latency(10.9)}, Verdict.WITHIN),
        ("latency", {"latency": _latency(11.5)}, Verdict.REGRESSION),
        ("latency", {"latency": _latency(8.5)}, Verdict.IMPROVEMENT),
        ("size", {"size": Size(1010, 0, 0)}, Verdict.WITHIN),
        ("size", {"size": Size(1011, 0, 0)}, Verdict.REGRESSION),
        ("size", {"size": Size(900, 0, 0)}, Verdict.IMPROVEMENT),
        ("cosine", {"quality": Quality(0.989, None, None, None, 3, "random")}, Verdict.WITHIN),
        ("cosine", {"quality": Quality(0.9889, None, None, None, 3, "random")}, Verdict.REGRESSION),
        ("cosine", {"quality": Quality(0.9911, None, None, None, 3, "random")}, Verdict.IMPROVEMENT),
    ],
    ids=[f"{measure} {word}" for measure in ("latency", "size", "cosine") for word in ("within", "worse", "better")],
)
def test_change_counts_only_beyond_its_bound(measure: str, fields: dict[str, object], verdict: Verdict) -> None:
    comparison = _compared([_row(**fields)], [_row()])
    assert _change(measure, comparison).verdict is verdict
    assert bool(comparison.regressions) is (verdict is Verdict.REGRESSION)
    assert bool(comparison.improvements) is (verdict is Verdict.IMPROVEMENT)


def test_user_bound_replaces_default() -> None:
    slower = [_row(latency=_latency(10.9))]
    assert _compared(slower, [_row()], "latency=+5%").regressions
    assert _compared([_row(latency=_latency(99.0))], [_row()], "latency=+100").regressions == ()
    assert "latency" not in {change.measure for change in _compared(slower, [_row()], "latency=off").rows[0].changes}


@given(st.floats(0.01, 1e6), st.floats(0.01, 1e6), st.floats(0, 3))
def test_comparison_is_antisymmetric(before: float, after: float, allowed: float) -> None:
    one, other = _row(latency=_latency(before)), _row(latency=_latency(after))
    bound = f"latency={allowed:.6f}"
    there, back = (_change("latency", _compared([a], [b], bound)) for a, b in ((one, other), (other, one)))
    opposite = {Verdict.REGRESSION: Verdict.IMPROVEMENT, Verdict.IMPROVEMENT: Verdict.REGRESSION}
    assert back.verdict is opposite.get(there.verdict, there.verdict)
    assert there.worse == pytest.approx(-(back.worse or 0.0))


def test_scattered_latency_of_few_inferences_is_no_regression() -> None:
    few = {"inferences": 30, "p90": 20.0}
    noisy = _change("latency", _compared([_row(latency=_latency(12.0, **few))], [_row(latency=_latency(10.0, **few))]))
    assert (noisy.verdict, noisy.why[:26]) == (Verdict.WITHIN, "medians of so few inferenc")
    many = {"inferences": 5000, "p90": 20.0}
    sure = _change("latency", _compared([_row(latency=_latency(12.0, **many))], [_row(latency=_latency(10.0, **many))]))
    assert sure.verdict is Verdict.REGRESSION


def test_missing_measurement_is_a_regression() -> None:
    """A bound on latency would always be met if perf no longer ran."""
    broken = _row(latency=None, missing={"latency": "perf failed: no device"}, unmeasured=("latency",))
    comparison = _compared([broken], [_row()])
    assert [(row.fate, row.why) for row in comparison.regressions] == [
        (Fate.NOW_FAILING, "no latency: perf failed: no device")
    ]
    # If it is no longer requested, or was never measured, there is no regression.
    assert _compared([replace(broken, unmeasured=())], [_row()]).regressions == ()
    assert _compared([broken], [_row(latency=None)]).regressions == ()


def test_latency_of_too_few_inferences_is_not_judged() -> None:
    """Three that happen to be equal have no spread: an equally fast model was called 67 % slower."""
    few = {"inferences": 3, "p90": 16.7}
    before = _row(latency=_latency(10.0, inferences=100))
    slower = _change("latency", _compared([_row(latency=_latency(16.7, **few))], [before]))
    assert slower.verdict is Verdict.WITHIN
    assert slower.why == "3 inferences: too few to compare latencies by, it takes 20"


def test_latency_change_explained_by_busy_machine_is_ignored() -> None:
    busy = _change("latency", _compared([_row(latency=_latency(15.0, waited_share=0.5))], [_row()]))
    assert (busy.verdict, busy.why) == (
        Verdict.WITHIN,
        "a thread waited for a processor for 50% of the time, so it may be no slower",
    )
    # Without all the waiting it would still take 12.5 ms instead of 10.
    worse = _change("latency", _compared([_row(latency=_latency(25.0, waited_share=0.5))], [_row()]))
    assert worse.verdict is Verdict.REGRESSION
    # Waiting explains nothing about the faster one.
    better = _change("latency", _compared([_row(latency=_latency(5.0, waited_share=0.5))], [_row()]))
    assert better.verdict is Verdict.IMPROVEMENT


@pytest.mark.parametrize(
    ("measure", "fields", "why"),
    [
        ("latency", {"latency": _latency(99.0, emulated=True)}, "of an emulated device"),
        ("latency", {"latency": _latency(99.0, host={"processor": "y"})}, "measured on different hosts (processor)"),
        ("latency", {"latency": None}, "not known now"),
        ("cosine", {"quality": Quality(0.1, None, None, None, 8, "text")}, "on 3 random samples before, on 8 text now"),
    ],
    ids=["emulated", "other host", "missing", "other samples"],
)
def test_incomparable_measurements_are_not_regressions(measure: str, fields: dict[str, object], why: str) -> None:
    comparison = _compared([_row(**fields)], [_row()])
    change = _change(measure, comparison)
    assert (change.verdict, change.why) == (Verdict.NOT_COMPARED, why)
    assert comparison.regressions == ()


def test_accuracy_of_other_samples_or_metric_is_not_compared() -> None:
    then = Accuracy("accuracy", 0.9, True, 100, "live", "")
    for now, verdict in (
        (replace(then, value=0.89), Verdict.REGRESSION),
        (replace(then, value=0.2, samples=50), Verdict.NOT_COMPARED),
        (replace(then, value=0.2, metric="f1"), Verdict.NOT_COMPARED),
    ):
        assert _change("accuracy", _compared([_row(accuracy=now)], [_row(accuracy=then)])).verdict is verdict


def test_builds_are_matched_by_name_then_by_identity() -> None:
    moved = _compared([_row("new/name")], [_row("old/name")])
    assert [(row.name, row.then, row.fate) for row in moved.rows] == [("new/name", "old/name", Fate.SAME)]
    ambiguous = _compared([_row("a")], [_row("b"), _row("c")])
    assert [(row.name, row.fate) for row in ambiguous.rows] == [("a", Fate.NEW), ("b", Fate.GONE), ("c", Fate.GONE)]


@pytest.mark.parametrize(
    ("now", "then", "fate"),
    [
        (CellStatus.FAILED, CellStatus.BUILT, Fate.NOW_FAILING),
        (CellStatus.REFUSED, CellStatus.UP_TO_DATE, Fate.NOW_FAILING),
        (CellStatus.SKIPPED, CellStatus.BUILT, Fate.GONE),
        (CellStatus.NOT_REACHED, CellStatus.BUILT, Fate.GONE),
        (CellStatus.FAILED, CellStatus.FAILED, Fate.MISSING),
        (CellStatus.BUILT, CellStatus.FAILED, Fate.NOW_THERE),
    ],
)
def test_fate_of_missing_build_depends_on_status(now: CellStatus, then: CellStatus, fate: Fate) -> None:
    there = {CellStatus.BUILT, CellStatus.UP_TO_DATE}
    rows = [_row(status=each) if each in there else _gone("bert/w8a8/npu", each) for each in (now, then)]
    comparison = _compared(rows[:1], rows[1:])
    assert comparison.rows[0].fate is fate
    assert bool(comparison.regressions) is (fate is Fate.NOW_FAILING)


def test_regressions_are_sorted_first_worst_first() -> None:
    sizes = {"as before": 1000, "worse": 1100, "better": 500, "worst": 3000}
    now = [_row(name, precision=name, size=Size(size, 0, 0)) for name, size in sizes.items()]
    then = [_row(name, precision=name) for name in (*sizes, "broken")]
    broken = [_gone("broken", CellStatus.FAILED)]
    order = [row.name for row in _compared([*now, *broken], then).rows]
    assert order == ["broken", "worst", "worse", "better", "as before"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("latencey=+5%", r"did you mean 'latency'\?$"),
        ("latency", "not a bound"),
        ("latency=5x", "not a bound"),
        ("latency=-5%", "would be an improvement"),
        ("cosine=+0.001", "would be an improvement"),
        ("cosine=", "not a bound"),
    ],
)
def test_invalid_bound_is_refused(text: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        bounds_of([text])
