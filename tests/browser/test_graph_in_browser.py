"""The graph page as readers use it: look, point, search, zoom, unfold, with and without a pointer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from winml_dag.report.graphpage import graph_html
from winml_dag.report.graphview import SOURCE, Box, GraphView

EVIL = "</script><img src=x onerror=alert(1)>"


def sweep_view(models: int, precisions: int) -> GraphView:
    """Return a sweep with one export per model, and a quantize, a validate and a finalize per precision."""
    cells = tuple(f"model{model}/w{precision}" for model in range(models) for precision in range(precisions))
    boxes = [Box(SOURCE, "tables", SOURCE, tuple(range(len(cells))))]
    lines = []
    for model in range(models):
        own = tuple(range(model * precisions, (model + 1) * precisions))
        export = len(boxes)
        boxes.append(Box("export", "export", "reused", own, "up to date", "ab" * 32, 71.0))
        for cell in own:
            for number, step in enumerate(("quantize", "validate", "finalize")):
                reason = f"quant.samples: {cell} -> {cell + 1}"
                last = "" if cell else "reused"
                boxes.append(Box(step, step, "ran", (cell,), reason, "", 2.5, last=last, last_reason="found"))
                lines.append((export if number == 0 else len(boxes) - 2, len(boxes) - 1))
            lines.append((0, len(boxes) - 2))
    return GraphView(cells, tuple(boxes), tuple(lines))


SMALL = sweep_view(3, 2)
HOSTILE = GraphView((EVIL,), (Box(EVIL, EVIL, "failed", (0,), EVIL, error=EVIL),), (), (EVIL,))


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graphs")
    for name, view in (("small", SMALL), ("large", sweep_view(60, 11)), ("hostile", HOSTILE)):
        text = graph_html(view, f"Graph of {EVIL if view is HOSTILE else name}", "Planned today.")
        (folder / f"{name}.html").write_text(text, encoding="ascii")
    return folder


def box(page, step: str, cells: str):
    return page.locator(f'.box[aria-label^="{step},"][aria-label$="{cells}"]')


def scale(page) -> float:
    found = re.search(r"scale\(([\d.]+)\)", page.locator("#drawing > g").get_attribute("transform"))
    assert found is not None
    return float(found[1])


def focused(page) -> str:
    return page.evaluate("document.activeElement.getAttribute('aria-label')")


def test_every_stage_is_drawn_once_with_details(opened) -> None:
    page = opened("small")
    assert page.locator(".box").count() == len(SMALL.boxes)
    assert page.locator(".box.reused").count() == 3
    assert page.locator(".box.ran").count() == 18
    shared = box(page, "export", "model1")
    assert shared.locator(".times").text_content() == "2 builds"
    assert shared.locator("rect.behind").count() == 1
    assert box(page, "quantize", "model1/w0").locator(".times").count() == 0
    assert "6 builds = 21 stages (24 one by one), 3 shared by several builds: 18 would run, 3 reused." in (
        page.inner_text("#summary")
    )

    # Pointing at a stage tells all of it.
    box(page, "export", "model1").hover()
    told = page.inner_text("#details")
    for text in ("export", "reused, shared by 2 builds", "up to date", "1 min 11 s", "ab" * 32, "model1/w0\nmodel1/w1"):
        assert text in told
    box(page, "quantize", "model2/w1").hover()
    told = page.inner_text("#details")
    assert "would run" in told
    assert "quant.samples: 5 -> 6" in told


def test_search_click_and_legend_highlight_boxes(opened) -> None:
    page = opened("small")
    page.fill("#search", "model1/w0")
    assert page.inner_text("#found") == "4 stages in 1 build"
    assert page.locator(".box.on").count() == 5  # including the source
    page.fill("#search", "quantize model1")
    assert page.inner_text("#found") == "2 stages in 2 builds"
    assert page.locator(".box.found").count() == 2
    assert page.locator(".box.on").count() == 7  # and the export before, two stages after each
    page.fill("#search", "nothing like it")
    assert page.inner_text("#found") == "nothing"
    page.locator("#search").press("Escape")
    assert page.locator(".picked").count() == 0
    assert page.input_value("#search") == ""

    # A click lights up the path, and one beside puts it out.
    box(page, "validate", "model0/w1").click()
    assert page.locator(".box.on").count() == 5
    box(page, "export", "model2").hover()
    assert "validate" in page.inner_text("#details h2")  # the picked box stays
    page.locator("#drawing").click(position={"x": 5, "y": 5})
    assert page.locator(".box.on").count() == 0

    # The legend lights up what it names.
    button = page.locator("#legend button", has_text="3 shared by several builds")
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    assert page.locator(".box.on").count() == 3
    button.click()
    assert page.locator(".box.on").count() == 0

    # Colours tell of the last run when asked.
    page.click("#last")
    assert page.locator(".box.reused").count() == 3  # of the first build
    assert page.locator(".box.unknown").count() == 18
    assert page.locator("#legend button").all_text_contents() == ["\u27133 reused", "\u25a33 shared by several builds"]
    box(page, "quantize", "model0/w0").hover()
    assert "In the last run\nreused: found" in page.inner_text("#details")
    page.click("#last")
    assert page.locator(".box.ran").count() == 18


def test_arrow_keys_follow_edges(opened) -> None:
    page = opened("small")
    box(page, "export", "model1").focus()
    page.keyboard.press("ArrowRight")
    assert focused(page).startswith("quantize, would run, model1/")
    page.keyboard.press("ArrowRight")
    assert focused(page).startswith("validate, would run, model1/")
    before = focused(page)
    page.keyboard.press("ArrowDown")
    assert focused(page).startswith("validate")
    assert focused(page) != before
    page.keyboard.press("Enter")
    assert page.locator(".box.on").count() == 5
    assert page.locator('.box[tabindex="0"]').count() == 1
    page.keyboard.press("Escape")
    assert page.locator(".box.on").count() == 0


def test_zoom_and_pan_by_wheel_buttons_keys_and_drag(opened) -> None:
    page = opened("small")
    began = scale(page)
    page.mouse.move(400, 500)
    page.mouse.wheel(0, -300)
    page.wait_for_function(
        "began => !document.querySelector('#drawing > g').getAttribute('transform')"
        ".includes(`scale(${began.toFixed(5)})`)",
        arg=began,
    )
    assert scale(page) > began
    nearer = scale(page)
    page.click("#out")
    assert scale(page) < nearer
    page.click("#in")
    assert scale(page) == pytest.approx(nearer, rel=1e-3)
    box(page, "export", "model1").focus()
    page.keyboard.press("-")
    assert scale(page) < nearer
    page.keyboard.press("0")
    whole = page.locator("#drawing > g").get_attribute("transform")
    page.mouse.move(300, 780)
    page.mouse.down()
    page.mouse.move(360, 700, steps=4)
    page.mouse.up()
    moved = page.locator("#drawing > g").get_attribute("transform")
    assert moved != whole
    assert page.locator(".picked").count() == 0  # a drag is no click
    page.click("#fit")
    assert page.locator("#drawing > g").get_attribute("transform") == whole


def test_large_graph_starts_folded_and_unfolds_group(opened) -> None:
    page = opened("large")
    assert page.get_attribute("#fold", "aria-pressed") == "true"
    assert page.locator(".box").count() < 20
    group = page.locator('.box[aria-label^="validate,"]')
    assert group.locator(".times").text_content() == "660 stages"
    group.click()
    page.get_by_role("button", name="Show its 660 stages").click()
    assert page.get_attribute("#fold", "aria-pressed") == "false"
    assert page.locator(".box.found").count() == 660
    page.fill("#search", "model59/w3")
    assert page.inner_text("#found") == "4 stages in 1 build"
    page.click("#fold")
    assert page.inner_text("#found") == "4 boxes in 1 build"


def test_hostile_names_are_shown_as_text(opened) -> None:
    page = opened("hostile")
    page.locator(".box").hover()
    assert page.inner_text("#details").count(EVIL) >= 3
    assert EVIL in page.inner_text("h1")
    assert page.locator("img").count() == 0
    assert page.locator(".box.failed").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colour_scheme_follows_system_and_button_toggles_it(opened, scheme: str) -> None:
    page = opened("small", width=400, scheme=scheme)
    colour = "getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(colour)
    assert (before == "rgb(255, 255, 255)") == (scheme == "light")
    page.click("#theme")
    assert (page.evaluate(colour) == "rgb(255, 255, 255)") != (scheme == "light")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
