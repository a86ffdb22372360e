"""The pages that the documentation shows fit the window. ``make docs-screenshots`` writes their pictures."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import report_samples as samples
from browser_pages import Open, Pages

from winml_dag.cli import run
from winml_dag.report.page import html_of

IMAGES = os.environ.get("WINML_DAG_TEST_IMAGES")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Pages:
    folder = tmp_path_factory.mktemp("documented")
    (folder / "report.html").write_text(html_of(samples.small_report()), encoding="utf-8")
    graph = ("graph", "-c", "catalog:sweeps/small", "--filter", "model=bert", "--html", str(folder / "graph.html"))
    assert run([*graph, "--cache-dir", str(folder / "cache")]) == 0
    return Pages(folder)


@pytest.mark.parametrize("name", ["report", "graph"])
@pytest.mark.parametrize(("width", "height"), [(1200, 850), (400, 800)])
def test_a_documented_page_fits_the_window(opened: Open, name: str, width: int, height: int) -> None:
    page = opened(name, width=width)
    page.set_viewport_size({"width": width, "height": height})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("[...document.querySelectorAll('.totals > div')].every((e) => e.scrollWidth <= e.clientWidth)")
    if IMAGES and width > height:
        page.screenshot(path=Path(IMAGES) / f"{name}.png")
