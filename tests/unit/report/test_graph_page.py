"""The contents of a graph page: every box, folded or not, and texts only as data."""

from __future__ import annotations

import json
from pathlib import Path

from report_samples import bare_report

from winml_dag.report.graphpage import GRAPH_PAGE, graph_html, summary
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


def test_folded_boxes_are_one_per_step_with_all_boxes_once() -> None:
    whole = view(10)
    folded = folded_view(whole)
    assert [(box.step, len(box.members)) for box in folded.boxes] == [("export", 1), ("quantize", 10), ("finalize", 10)]
    assert sorted(member for box in folded.boxes for member in box.members) == list(range(len(whole.boxes)))
    assert folded.lines == ((0, 1), (1, 2))
    assert folded.boxes[2].reason == "10 ran"
    assert folded.boxes[2].cells == tuple(range(10))


def test_a_large_graph_is_folded_first() -> None:
    assert [json.loads(_content(graph_html(view(count), "t", "m")))["folded_first"] for count in (10, 200)] == [
        False,
        True,
    ]


def _content(page: str) -> str:
    return page.partition('id="content">')[2].partition("</script>")[0]


def test_names_cannot_leave_their_place_in_the_page() -> None:
    evil = '</script><script>alert(1)</script>"&\u202e'
    page = graph_html(GraphView((evil,), (Box(evil, evil, "ran", (0,), reason=evil),), (), (evil,)), evil, evil)
    assert page.isascii()
    assert "<script>alert" not in page
    assert json.loads(_content(page))["cells"] == [evil]


def test_of_a_page_it_can_be_told_which_command_has_made_it(tmp_path: Path) -> None:
    pages = {GRAPH_PAGE: graph_html(view(2), "t", "m"), REPORT_PAGE: html_of(bare_report())}
    for kind, text in pages.items():
        (tmp_path / "page.html").write_text(text)
        assert [other for other in pages if other.made(tmp_path / "page.html")] == [kind]
    (tmp_path / "page.html").write_text(f"<!DOCTYPE html><head><title>mine</title></head>{GRAPH_PAGE.maker}")
    assert not GRAPH_PAGE.made(tmp_path / "page.html")


def test_a_summary_counts_what_is_shared_once() -> None:
    told = "3 builds = 7 stages (9 one by one), 1 shared by several builds: 6 would run, 1 reused."
    assert summary(view(3)) == told


def test_pages_in_one_folder_link_each_other(tmp_path: Path) -> None:
    report, graph = tmp_path / "report.html", tmp_path / "graph.html"
    assert "<a href=" not in html_of(bare_report(), None, report)
    for path in (report, graph):
        path.touch()
    assert '<a href="graph.html">' in html_of(bare_report(), None, report)
    assert '<a href="report.html">' in graph_html(view(2), "t", "m", graph)
