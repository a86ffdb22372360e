"""What a run prints about its goals at the end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from winml_dag.cli.sweep import goal_lines
from winml_dag.pipeline.sweep.result import GoalResult, SearchResult

WON = GoalResult({"model": "bert", "target": "npu"}, "latency", {}, "bert/w8a8/npu", (), folder="best/bert/npu")
SEARCH = SearchResult("bert/w8a8/npu", "16 bits", 20, {0: False}, 10, tuple(f"node{n}" for n in range(10)), why="found")


@pytest.mark.parametrize(
    ("goal", "lines", "failed"),
    [
        (WON, ["winner of model bert, target npu (smallest latency): bert/w8a8/npu, in best/bert/npu"], False),
        (
            replace(WON, why="measured on an emulator"),
            [
                "winner of model bert, target npu (smallest latency): bert/w8a8/npu, in best/bert/npu;"
                " measured on an emulator"
            ],
            False,
        ),
        (
            replace(WON, group={}, minimize="size", winner=None, folder=None, why="no cell meets the bounds"),
            ["error: no winner (smallest): no cell meets the bounds."],
            True,
        ),
        (
            replace(WON, group={}, folder=None, why="it could not be put into best: The disk is full."),
            [
                "error: the winner (smallest latency) is bert/w8a8/npu, but it could not be put into best:"
                " The disk is full."
            ],
            True,
        ),
        (
            replace(WON, group={}, winner=None, folder=None, why="2 of 9 cells have no result yet", pending=True),
            ["note: no winner (smallest latency) yet: 2 of 9 cells have no result yet."],
            False,
        ),
        (
            replace(WON, search=SEARCH),
            [
                "winner of model bert, target npu (smallest latency): bert/w8a8/npu, in best/bert/npu",
                "  search: of bert/w8a8/npu, found",
                "    node0, node1, node2, node3, node4, node5, node6, node7 and 2 more",
            ],
            False,
        ),
    ],
    ids=["won", "won on an emulator", "no winner", "in the way", "too early", "searched"],
)
def test_goal_lines_show_winner_and_search(goal: GoalResult, lines: list[str], failed: bool) -> None:
    assert list(goal_lines(goal)) == lines
    assert goal.failed == failed
