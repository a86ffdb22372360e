"""The graph page: its layout, every box, folded or not, and texts only as data."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_samples import bare_report

from winml_dag.report.graphpage import GRAPH_PAGE, graph_html, lay_out, summary
from winml_dag.report.graphview import Box, GraphView, folded_view
from winml_dag.report.page import REPORT_PAGE, html_of


def view(count: int) -> GraphView:
    """Return *count* cells that share their export."""
    quantize = [Box("quantize", "quantize", "ran", (cell,)) for cell in range(count)]
    export = Box("export", "export", "reused", tuple(range(count)))
    ends = [Box("finalize", "finalize", "ran", (cell,)) for cell in range(count)]
    lines = [(0, place) for place in range(1, count + 1)]
    lines += [(place, place + count) for place in range(1, count + 1)]
    return GraphView(tuple(f"bert/{cell}" for cell in range(count)), (export, *quantize, *ends), tuple(lines))


def test_folding_merges_boxes_of_same_step() -> None:
    whole = view(10)
    folded = folded_view(whole)
    assert [(box.step, len(box.members)) for box in folded.boxes] == [("export", 1), ("quantize", 10), ("finalize", 10)]
    assert sorted(member for box in folded.boxes for member in box.members) == list(range(len(whole.boxes)))
    assert folded.lines == ((0, 1), (1, 2))
    assert folded.boxes[2].reason == "10 ran"
    assert folded.boxes[2].cells == tuple(range(10))


def test_large_graph_starts_folded() -> None:
    assert [json.loads(_content(graph_html(view(count), "t", "m")))["folded_first"] for count in (10, 200)] == [
        False,
        True,
    ]


def _content(page: str) -> str:
    return page.partition('id="content">')[2].partition("</script>")[0]


def test_names_are_escaped_in_graph_page() -> None:
    evil = '</script><script>alert(1)</script>"&\u202e'
    page = graph_html(GraphView((evil,), (Box(evil, evil, "ran", (0,), reason=evil),), (), (evil,)), evil, evil)
    assert page.isascii()
    assert "<script>alert" not in page
    assert json.loads(_content(page))["cells"] == [evil]


def test_page_records_which_command_made_it(tmp_path: Path) -> None:
    pages = {GRAPH_PAGE: graph_html(view(2), "t", "m"), REPORT_PAGE: html_of(bare_report())}
    for kind, text in pages.items():
        (tmp_path / "page.html").write_text(text)
        assert [other for other in pages if other.made(tmp_path / "page.html")] == [kind]
    (tmp_path / "page.html").write_text(f"<!DOCTYPE html><head><title>mine</title></head>{GRAPH_PAGE.maker}")
    assert not GRAPH_PAGE.made(tmp_path / "page.html")


def test_summary_counts_shared_stages_once() -> None:
    told = "3 builds = 7 stages (9 one by one), 1 shared by several builds: 6 would run, 1 reused."
    assert summary(view(3)) == told


def test_report_and_graph_pages_link_each_other(tmp_path: Path) -> None:
    report, graph = tmp_path / "report.html", tmp_path / "graph.html"
    assert "<a href=" not in html_of(bare_report(), None, report)
    for path in (report, graph):
        path.touch()
    assert '<a href="graph.html">' in html_of(bare_report(), None, report)
    assert '<a href="report.html">' in graph_html(view(2), "t", "m", graph)


Drawn = tuple[list[str], list[tuple[int, int]], list[float], list[bool]]


@st.composite
def graphs(draw: st.DrawFn) -> Drawn:
    """Draw steps, forward edges, ranks, and which boxes pull."""
    count = draw(st.integers(0, 12))
    steps = [draw(st.sampled_from(["a", "b", "c", "d"])) for _ in range(count)]
    pairs = [(maker, reader) for reader in range(count) for maker in range(reader)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    ranks = [float(draw(st.integers(0, 3))) for _ in range(count)]
    return steps, edges, ranks, [draw(st.booleans()) for _ in range(count)]


@given(graphs())
def test_layout_has_no_overlaps_and_edges_point_right(graph: Drawn) -> None:
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
    places = sorted(range(len(steps)), key=lambda box: (found.columns[box], found.rows[box]))
    for above, below in pairwise(places):  # ordered by their ranks
        assert found.columns[above] != found.columns[below] or ranks[above] <= ranks[below]


@pytest.mark.parametrize(
    ("steps", "edges", "columns", "rows"),
    [
        # The second build has a compile, the first one does not.
        (["export", "validate", "export", "compile", "validate"], [(0, 1), (2, 3), (3, 4)], (0, 2, 0, 1, 2), None),
        (["export", *["quantize"] * 3], [(0, 1), (0, 2), (0, 3)], (0, 1, 1, 1), (1.0, 0.0, 1.0, 2.0)),
        (["a", "a", "b", "b"], [(0, 3), (1, 2)], (0, 0, 1, 1), (0.0, 1.0, 1.0, 0.0)),
    ],
    ids=["a column for each step", "what all read stands in their middle", "lines do not cross"],
)
def test_layout_keeps_lines_short(
    steps: list[str], edges: list[tuple[int, int]], columns: tuple[int, ...], rows: tuple[float, ...] | None
) -> None:
    found = lay_out(steps, edges, [0.0] * len(steps), [True] * len(steps))
    assert found.columns == columns
    assert rows in (None, found.rows)


def test_source_is_drawn_next_to_its_first_reader() -> None:
    edges = [(1, 2), (2, 3), (0, 3)]
    found = lay_out(["source", "export", "optimize", "compile"], edges, [0.0] * 4, [False, True, True, True])
    assert found.columns == (1, 0, 1, 2)
