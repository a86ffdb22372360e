"""The layout of a graph: boxes do not overlap, go from left to right, and have a familiar order."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from winml_dag.report.graphpage import Layout, lay_out


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[str], list[tuple[int, int]], list[float], list[bool]]:
    """Draw steps, forward edges, ranks, and which boxes pull."""
    count = draw(st.integers(0, 12))
    steps = [draw(st.sampled_from(["a", "b", "c", "d"])) for _ in range(count)]
    pairs = [(maker, reader) for reader in range(count) for maker in range(reader)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    ranks = [float(draw(st.integers(0, 3))) for _ in range(count)]
    return steps, edges, ranks, [draw(st.booleans()) for _ in range(count)]


def laid_out(steps: list[str], edges: list[tuple[int, int]], ranks: list[float] | None = None) -> Layout:
    return lay_out(steps, edges, ranks or [0.0] * len(steps), [True] * len(steps))


@given(graphs())
def test_no_box_covers_another_and_every_line_goes_to_the_right(
    graph: tuple[list[str], list[tuple[int, int]], list[float], list[bool]],
) -> None:
    steps, edges, ranks, pulls = graph
    found = lay_out(steps, edges, ranks, pulls)
    by_column: dict[int, list[float]] = {}
    for column, row in zip(found.columns, found.rows, strict=True):
        by_column.setdefault(column, []).append(row)
    for rows in by_column.values():
        ordered = sorted(rows)
        assert all(below - above >= 0.98 for above, below in pairwise(ordered))
    assert all(found.columns[maker] < found.columns[reader] for maker, reader in edges)
    assert min((*found.rows, *found.lanes.values()), default=0) == 0
    for (_, column), lane in found.lanes.items():  # between the boxes, never behind one
        assert all(abs(lane - row) >= 0.68 for row in by_column[column])
    assert all(len(found.route(*edge)) == found.columns[edge[1]] - found.columns[edge[0]] - 1 for edge in edges)
    assert sorted(set(found.columns)) == list(range(found.width if steps else 0))


@given(graphs())
def test_boxes_of_a_column_stand_in_the_order_of_their_ranks(
    graph: tuple[list[str], list[tuple[int, int]], list[float], list[bool]],
) -> None:
    steps, edges, ranks, pulls = graph
    found = lay_out(steps, edges, ranks, pulls)
    places = sorted(range(len(steps)), key=lambda box: (found.columns[box], found.rows[box]))
    for above, below in pairwise(places):
        if found.columns[above] == found.columns[below]:
            assert ranks[above] <= ranks[below]


def test_the_same_step_of_unlike_builds_has_one_column() -> None:
    # The second build has a compile, the first one does not.
    steps = ["export", "validate", "export", "compile", "validate"]
    found = laid_out(steps, [(0, 1), (2, 3), (3, 4)])
    assert found.columns == (0, 2, 0, 1, 2)


def test_a_stage_that_all_read_stands_in_their_middle() -> None:
    found = laid_out(["export", "quantize", "quantize", "quantize"], [(0, 1), (0, 2), (0, 3)])
    assert found.rows == (1.0, 0.0, 1.0, 2.0)


def test_lines_that_need_not_cross_do_not() -> None:
    found = laid_out(["a", "a", "b", "b"], [(0, 3), (1, 2)])
    assert (found.rows[0] < found.rows[1]) == (found.rows[3] < found.rows[2])


def test_a_source_is_drawn_beside_what_reads_it_first() -> None:
    edges = [(1, 2), (2, 3), (0, 3)]
    found = lay_out(["source", "export", "optimize", "compile"], edges, [0.0] * 4, [False, True, True, True])
    assert found.columns == (1, 0, 1, 2)
