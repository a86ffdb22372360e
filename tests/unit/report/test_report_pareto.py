"""Pareto fronts compared with their definition, and the verdicts on missing measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from winml_dag.pipeline.sweep.result import Candidate, CellStatus, GoalResult
from winml_dag.report.pareto import dominated, judged
from winml_dag.report.row import Accuracy, Latency, Quality, Row, Size

# Few different values, so that many points are equal in some of them.
_VALUES = st.integers(0, 4).map(float)


@st.composite
def _points(draw: st.DrawFn) -> dict[str, tuple[float, ...]]:
    axes = draw(st.integers(1, 3))
    values = draw(st.lists(st.tuples(*[_VALUES] * axes), max_size=30))
    return {f"p{at}": each for at, each in enumerate(values)}


def _worse(one: Sequence[float], other: Sequence[float]) -> bool:
    """The definition: *other* is nowhere worse, and better somewhere."""
    pairs = list(zip(other, one, strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


@given(_points())
def test_dominated_point_names_nearest_dominator(
    points: Mapping[str, Sequence[float]],
) -> None:
    front = {name: one for name, one in points.items() if not any(_worse(one, other) for other in points.values())}
    found = dominated(points)
    assert set(found) == set(points) - set(front)
    sizes = [max(axis) - min(axis) or 1.0 for axis in zip(*points.values(), strict=True)]

    def distance(one: Sequence[float], other: Sequence[float]) -> float:
        return sum(((a - b) / size) ** 2 for a, b, size in zip(one, other, sizes, strict=True))

    for name, by in found.items():
        point = points[name]
        assert _worse(point, points[by])
        nearest = min(distance(point, one) for one in front.values() if _worse(point, one))
        assert abs(distance(point, points[by]) - nearest) < 1e-9


def _row(name: str, size: int, latency: float | None = None, cosine: float | None = None, **fields: object) -> Row:
    row = Row(name, {}, "bert", name, "qnn", "npu", CellStatus.BUILT, size=Size(size, 0, size))
    if latency is not None:
        row = replace(row, latency=Latency(latency, latency, latency, 100, 10, "live", ""))
    if cosine is not None:
        row = replace(row, quality=Quality(cosine, None, None, None, 3, "random"))
    return replace(row, **fields)  # type: ignore[arg-type]


def _verdicts(*rows: Row, goals: Sequence[GoalResult] = ()) -> dict[str, tuple[str, str]]:
    found = judged(rows, goals)
    return {row.name: (row.dominated_by, row.dominated_why) for row in found if row.dominated_by is not None}


def _goal(ruled_out: Mapping[str, str], *others: str) -> GoalResult:
    """Return a goal that rules out some of its candidates, each for a reason."""
    candidates = [Candidate(name, {}, why) for name, why in ruled_out.items()]
    candidates += [Candidate(name, {}) for name in others]
    return GoalResult({"model": "bert"}, "size", {"sqnr_db": ">=20"}, None, tuple(candidates))


def test_dominance_reason_names_better_and_equal_measures() -> None:
    rows = _row("good", 100, 1.0, 0.99), _row("slow", 200, 2.0, 0.99), _row("exact", 900, 9.0, 0.9999)
    assert _verdicts(*rows) == {"slow": ("good", "smaller and faster at equal cosine")}


def test_differences_below_display_precision_do_not_dominate() -> None:
    assert _verdicts(_row("a", 100_000, 1.0001, 0.99991), _row("b", 100_001, 1.0002, 0.99992)) == {}


def test_missing_measurement_prevents_dominance() -> None:
    known, unknown = _row("known", 100, 1.0, 0.99), _row("unknown", 200, None, 0.9)
    assert _verdicts(known, unknown) == {}
    without_latency = _verdicts(_row("a", 100, None, 0.99), unknown)
    assert without_latency == {"unknown": ("a", "smaller and closer to the float model; no latency is known")}


def test_size_alone_does_not_dominate() -> None:
    small, large = judged([_row("small", 100), _row("large", 200)])
    assert small.dominated_by is None
    assert large.dominated_by is None
    assert "only the size is known" in large.missing["dominated_by"]


def test_emulated_or_other_target_latencies_are_not_compared() -> None:
    fast = Latency(1.0, 1.0, 1.0, 100, 10, "live", "", emulated=True)
    slow = replace(fast, p50=9.0)
    assert _verdicts(_row("fast", 100, cosine=0.9, latency=None), _row("slow", 100, cosine=0.9)) == {}
    assert (
        _verdicts(replace(_row("a", 100, cosine=0.9), latency=fast), replace(_row("b", 100, cosine=0.9), latency=slow))
        == {}
    )
    assert _verdicts(_row("a", 100, 1.0, 0.9), _row("b", 200, 2.0, 0.9, ep="cpu", device="cpu")) == {}


def test_latencies_of_different_machines_are_not_compared() -> None:
    slow = _row("slow", 200, 2.0, 0.9)
    assert slow.latency is not None
    assert _verdicts(_row("fast", 100, 1.0, 0.9), slow) == {"slow": ("fast", "smaller and faster at equal cosine")}
    elsewhere = replace(slow, latency=replace(slow.latency, host={"processor": "another"}))
    assert _verdicts(_row("fast", 100, 1.0, 0.9), elsewhere) == {}


def test_models_with_different_shapes_are_not_compared() -> None:
    axis = "export.shape_config"
    rows = [_row(name, size, 1.0, 0.9, values={axis: name}) for name, size in (("short", 100), ("long", 200))]
    assert _verdicts(*rows) == {}
    alike = [replace(row, values={"quant.samples": row.name}) for row in rows]
    assert set(_verdicts(*alike)) == {"long"}


def test_accuracy_is_used_instead_of_cosine() -> None:
    better = Accuracy("f1", 0.9, True, 100, "live", "")
    worse = replace(better, value=0.8)
    rows = _row("a", 100, 1.0, 0.9, accuracy=better), _row("b", 100, 1.0, 0.99, accuracy=worse)
    assert _verdicts(*rows) == {"b": ("a", "better in f1 at equal size and latency")}


def test_row_outside_bounds_dominates_only_rows_also_outside() -> None:
    missing, worse = _row("missing", 100, 1.0, 0.99), _row("worse", 150, 1.5, 0.99)
    keeping = _row("keeping", 200, 2.0, 0.99)
    why = "sqnr_db is 19 dB, below 20"
    assert set(_verdicts(missing, worse, keeping)) == {"worse", "keeping"}
    both = _goal({"missing": why, "worse": why}, "keeping")
    assert set(_verdicts(missing, worse, keeping, goals=[both])) == {"worse"}
    # If each misses another bound, neither is better.
    other = replace(
        _goal({"keeping": "size is 200 bytes, above 150"}, "missing", "worse"), subject_to={"size": "<=150"}
    )
    assert set(_verdicts(missing, worse, keeping, goals=[both, other])) == {"worse"}


def test_row_within_bounds_dominates_equal_row_outside() -> None:
    rows = _row("missing", 100, 1.0, 0.99), _row("keeping", 100, 1.0, 0.99)
    goal = _goal({"missing": "sqnr_db is 19 dB, below 20"}, "keeping")
    assert _verdicts(*rows, goals=[goal]) == {
        "missing": ("keeping", "within the bounds at equal size, latency and cosine")
    }


def test_failed_build_dominates_nothing() -> None:
    gone = replace(_row("gone", 1), size=None, status=CellStatus.FAILED)
    assert judged([gone, _row("b", 200, 2.0, 0.9)]) == (gone, _row("b", 200, 2.0, 0.9))
