"""Which rounds of optimize and analyze are reported: those that differ from the previous one."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from winml_dag.engine import events
from winml_dag.engine.events import Silent, StageResult, Status
from winml_dag.engine.stage import Node, Stage
from winml_dag.pipeline.search import WithoutRounds, folded


def result(
    node_id: str, key: str | None, status: Status = Status.REUSED, why: events.Reason = events.UP_TO_DATE
) -> StageResult:
    name = node_id.removeprefix("encoder.").partition(".")[0]
    return StageResult(Node(node_id, Stage(name, 1, "", "", {}, {}), {}, {}), status, why, key)


def line(*keys: tuple[str | None, str | None], prefix: str = "") -> list[StageResult]:
    """Return rounds with these keys of optimize and analyze."""
    return [
        result(f"{prefix}{name}.{number}", key)
        for number, pair in enumerate(keys)
        for name, key in zip(("optimize", "analyze"), pair, strict=True)
    ]


def reported(results: list[StageResult]) -> list[str]:
    return [one.node.id for one in folded(results).reported]


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=5), st.integers(1, 4))
def test_a_round_is_told_of_when_no_round_before_has_its_result(found: list[str], further: int) -> None:
    keys = [*found, *[found[-1]] * further]
    parted = folded([result("export", "e"), *line(*((f"o{key}", f"a{key}") for key in keys)), result("finalize", "f")])
    first = [number for number, key in enumerate(keys) if key not in keys[:number]]
    expected = [f"{name}.{number}" for number in first for name in ("optimize", "analyze")]
    assert [one.node.id for one in parted.reported] == ["export", *expected, "finalize"]
    assert {one.node.id for one in parted.like_before} == parted.like.keys()
    for node_id, other in parted.like.items():
        assert keys[int(node_id[-1])] == keys[int(other[-1])]


def test_rounds_that_nothing_is_known_of_are_not_told_of_unless_they_are_sure_to_come() -> None:
    assert reported(line(("o", None), (None, None))) == ["optimize.0", "analyze.0"]
    assert reported(line(("o", "a"), ("other", None), (None, None))) == [
        "optimize.0",
        "analyze.0",
        "optimize.1",
        "analyze.1",
    ]


def test_each_component_has_rounds_of_its_own() -> None:
    mixed = [*line(("o", "a"), ("o", "a")), *line(("o", "a"), ("p", "b"), prefix="encoder.")]
    assert reported(mixed) == [
        *("optimize.0", "analyze.0"),
        *("encoder.optimize.0", "encoder.analyze.0", "encoder.optimize.1", "encoder.analyze.1"),
    ]


def test_a_failure_is_told_of_whatever_it_is_like() -> None:
    refused = replace(result("analyze.1", "a"), status=Status.FAILED)
    assert reported([*line(("o", "a")), result("optimize.1", "o"), refused]) == ["optimize.0", "analyze.0", "analyze.1"]


def test_reasons_name_stages_that_are_told_of() -> None:
    waiting = result("quantize", None, Status.RAN, events.waits(["optimize.1", "calibrate"]))
    stopped = result("compile", None, Status.SKIPPED, events.blocked(["optimize.1", "optimize.0"]))
    *_, first, second = folded([*line(("o", None), (None, None)), waiting, stopped]).reported
    assert str(first.reason) == "depends on the output of optimize.0, calibrate"
    assert str(second.reason) == "needs optimize.0, which did not finish"


class _Noted(Silent):
    def __init__(self) -> None:
        self.ids: list[str] = []

    def finished(self, result: StageResult) -> None:
        self.ids.append(result.node.id)


def test_an_observer_hears_of_the_same_stages() -> None:
    results = [*line(("o", "a"), ("p", "b"), ("p", "b")), result("finalize", "f")]
    observer = WithoutRounds(heard := _Noted())
    for one in results:
        observer.finished(one)
    assert heard.ids == reported(results)
