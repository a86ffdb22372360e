"""The pages that the documentation shows fit the window. ``make docs-screenshots`` writes their pictures."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import report_samples as samples

from winml_dag.cli import run
from winml_dag.report.page import html_of

IMAGES = os.environ.get("WINML_DAG_TEST_IMAGES")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("documented")
    (folder / "report.html").write_text(html_of(samples.small_report()), encoding="utf-8")
    graph = ("graph", "-c", "catalog:sweeps/small", "--filter", "model=bert", "--html", str(folder / "graph.html"))
    assert run([*graph, "--cache-dir", str(folder / "cache")]) == 0
    return folder


@pytest.mark.parametrize("name", ["report", "graph"])
def test_documented_page_fits_window(opened, name: str) -> None:
    for width, height in ((400, 800), (1200, 850)):
        page = opened(name, width=width)
        page.set_viewport_size({"width": width, "height": height})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(
            "[...document.querySelectorAll('.totals > div')].every((e) => e.scrollWidth <= e.clientWidth)"
        )
    if IMAGES:
        page.screenshot(path=Path(IMAGES) / f"{name}.png")
