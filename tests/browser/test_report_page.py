"""The report page as readers use it: look, sort, filter, follow links, go back, with and without a pointer."""

from __future__ import annotations

import itertools
import re

import report_samples as samples

from winml_dag.report.row import Row
from winml_dag.store.quantities import size_text

SMALL = samples.small_report()
W8A16 = "bert-base/w8a16/npu"
FAILED = "clip-text/w8a8/npu"
NAMES = "#table tbody tr:not([hidden]) th a"


def names(page) -> list[str]:
    return page.locator(NAMES).all_inner_texts()


def heading(page, column: str):
    return page.locator(f"#table thead th[data-column={column}]")


def choose(page, section: str, label: str, value: str) -> None:
    page.locator(f"#{section} label.chooser:has(span:text-is('{label}')) select").select_option(value)


def at_cell(name: str) -> str:
    return "#cell/" + name.replace("/", "%2F").replace(" ", "%20")


def by_size(row: Row) -> int:
    assert row.size is not None
    return row.size.model


def test_answer_and_totals_are_shown(opened) -> None:
    page = opened("small")
    assert page.title() == SMALL.name
    assert "Best for bert-base on npu: w8a16, 7.89 ms, 0.21 % worse in accuracy." in page.inner_text(".answer")
    totals = page.inner_text(".totals")
    assert re.search(r"33\s+of 41", totals)
    assert re.search(r"SAVED BY REUSE\s+40 min 12 s", totals.upper().replace("MIN", "min").replace(" S", " s"))


def test_click_or_key_sorts_and_missing_values_come_last(opened) -> None:
    page = opened("small")
    values = {
        "size": lambda row: row.size and row.size.model,
        "p50": lambda row: row.latency and row.latency.p50,
        "drop": lambda row: row.accuracy and row.accuracy.drop,
    }
    for column, value in values.items():
        told = {row.name: value(row) for row in SMALL.rows}
        known = sorted(one for one in told.values() if one is not None)
        missing = [name for name, one in told.items() if one is None]
        assert missing
        for order, expected in (("ascending", known), ("descending", known[::-1])):
            heading(page, column).locator("button").click()
            assert heading(page, column).get_attribute("aria-sort") == order
            shown = names(page)
            assert [told[name] for name in shown[: len(known)]] == expected
            assert shown[len(known) :] == missing

    # Without a pointer. One column says that it is sorted.
    heading(page, "cosine").locator("button").focus()
    page.keyboard.press("Enter")
    assert heading(page, "cosine").get_attribute("aria-sort") == "descending"
    heading(page, "name").locator("button").focus()
    page.keyboard.press("Space")
    assert page.locator("#table [aria-sort]").count() == 1
    assert names(page)[0] == "bert-base/fp16/cpu"


def test_search_and_choices_combine_and_clear(opened) -> None:
    page = opened("small")
    find = page.get_by_label("Find")
    find.fill("BERT npu")
    assert names(page) == [row.name for row in SMALL.rows if row.model == "bert-base" and row.device == "npu"]
    choose(page, "table", "Precision", "w8a8")
    assert names(page) == ["bert-base/w8a8/npu", "bert-base/w8a8/npu/keep-6"]
    assert page.locator("#table [role=status]").inner_text() == "2 of 41 builds"
    page.get_by_role("button", name="Clear").click()
    assert len(names(page)) == 41
    choose(page, "table", "Status", "failed")
    assert names(page) == [FAILED]
    find.fill("nothing has this in it")
    assert names(page) == []

    page.get_by_role("button", name="Clear").click()
    # In hidden columns too.
    find.fill("rank 6")
    assert names(page) == [FAILED]

    # A filter and an order outlive each other.
    find.fill("resnet")
    heading(page, "size").locator("button").click()
    assert names(page)[0].startswith("resnet-50/w4a16")
    assert {name.split("/")[0] for name in names(page)} == {"resnet-50"}


def test_columns_are_shown_and_hidden(opened) -> None:
    page = opened("small")
    page.get_by_text("Columns", exact=True).click()
    page.get_by_role("checkbox", name="SQNR (dB)").check()
    assert heading(page, "sqnr").count() == 1
    row = page.locator("#table tbody tr", has_text="bert-base/fp32/cpu")
    assert "\u221e" in row.inner_text()
    page.get_by_role("checkbox", name="Cosine", exact=True).uncheck()
    assert heading(page, "cosine").count() == 0
    page.get_by_role("button", name="All", exact=True).click()
    told = page.locator("#table thead th").all_inner_texts()
    assert len(told) > 45
    assert page.locator("#table tbody tr").first.locator("th, td").count() == len(told)
    assert all(text.strip() for text in page.locator("#table tbody").locator("th, td").all_inner_texts())


def test_every_heat_map_cell_has_text(opened) -> None:
    page = opened("small")
    for measure in ("p50", "size", "cosine", "drop", "cpu-nodes", "status"):
        choose(page, "heat", "Show", measure)
        texts = page.locator("#heat tbody td").all_inner_texts()
        assert len(texts) == 40
        assert all(text.strip() for text in texts)
    choose(page, "heat", "Show", "size")
    told = page.locator("#heat tbody tr", has_text="bert-base").locator("td").first.inner_text()
    assert told == size_text(by_size(next(row for row in SMALL.rows if row.name == "bert-base/fp32/cpu")))

    # The best of a row has the strongest colour, and the winner a star.
    cells = page.locator("#heat tbody tr", has_text="resnet-50").locator("td")
    steps = {cells.nth(place).inner_text(): cells.nth(place).get_attribute("class") for place in range(cells.count())}
    assert steps["97.3 MiB"] == "step-0"
    assert steps["16.5 MiB"] == "step-5"
    assert any("\u2605" in text for text in steps)

    # The arrows go from cell to cell, and the tooltip says why there is no figure.
    first = page.locator("#heat tbody a[tabindex='0']")
    assert first.count() == 1
    first.focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    tooltip = page.locator("#tooltip")
    assert "bert-base/fp32/npu" in tooltip.inner_text()
    assert "QNN is for integers here" in tooltip.inner_text()
    assert page.evaluate("document.activeElement.getAttribute('aria-describedby')") == "tooltip"
    page.keyboard.press("ArrowDown")
    assert "resnet-50/fp32/npu" in tooltip.inner_text()
    page.keyboard.press("Escape")
    assert tooltip.is_hidden()


def test_hover_tooltip_stays_inside_window(opened) -> None:
    page = opened("small", width=360)
    page.locator("#heat tbody a", has_text="failed").hover()
    tooltip = page.locator("#tooltip")
    assert "gave up" in tooltip.inner_text()
    box = tooltip.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 360


def test_build_page_opens_and_back_restores_position(opened) -> None:
    page = opened("small")
    page.get_by_label("Find").fill("npu")
    link = page.locator("#table tbody a", has_text=FAILED)
    link.scroll_into_view_if_needed()
    scrolled = page.evaluate("window.scrollY")
    assert scrolled > 0
    link.click()
    title = page.locator("#cell-title")
    title.wait_for()
    assert page.evaluate("document.activeElement.id") == "cell-title"
    assert title.inner_text() == FAILED
    assert page.locator("#overview").is_hidden()
    assert "QNN_GRAPH_ERROR 0x1786" in page.get_by_label("End of the log").inner_text()
    page.go_back()
    page.locator("#overview").wait_for()
    assert page.evaluate("window.scrollY") == scrolled
    assert page.evaluate("document.activeElement.textContent") == FAILED
    assert page.get_by_label("Find").input_value() == "npu"
    page.go_forward()
    title.wait_for()
    assert title.inner_text() == FAILED
    page.get_by_role("link", name="All builds").click()
    page.locator("#overview").wait_for()
    assert page.evaluate("window.scrollY") == scrolled


def test_build_page_shows_stages_and_versions(opened) -> None:
    page = opened("compared", at_cell(W8A16))
    row = next(row for row in SMALL.rows if row.name == W8A16)
    stages = page.locator("#cell .stages tbody tr")
    assert stages.count() == len(row.stages)
    text = page.inner_text("#cell")
    for told in (row.stages[4].reason, row.digest, row.command, "QNN SDK", "2.51.0", "Softmax is kept in float"):
        assert told in text
    assert row.stages[4].cache_key in page.inner_text("#cell .stages")
    bars = [stages.nth(place).locator(".bar").bounding_box() for place in range(len(row.stages))]
    assert all(bar["width"] >= 3 for bar in bars)
    ran = bars[3:]
    assert all(one["x"] + one["width"] <= other["x"] + 1 for one, other in itertools.pairwise(ran))


def test_unmeasured_value_has_reason_and_command_is_copied(opened) -> None:
    page = opened("small", at_cell("clip-text/fp32/cpu"))
    assert "eval has no data for feature-extraction: set eval.dataset." in page.inner_text("#cell")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy").click()
    page.get_by_role("button", name="Copied").wait_for()
    command = next(row.command for row in SMALL.rows if row.name == "clip-text/fp32/cpu")
    assert page.evaluate("navigator.clipboard.readText()") == command


def test_unknown_build_address_shows_message(opened) -> None:
    page = opened("small", "#cell/no%E0such")
    assert page.locator("#cell-title").inner_text() == "There is no such build in this report"
    page.get_by_role("link", name="All builds").click()
    page.locator("#overview").wait_for()
    assert len(names(page)) == 41


def test_plot_marks_pareto_front(opened) -> None:
    page = opened("small")
    choose(page, "trade-offs", "Quality", "cosine")
    known = [row for row in SMALL.rows if row.model == "bert-base" and row.latency and row.quality]
    points = {row.name: (row.latency.p50, -row.quality.cosine) for row in known if row.latency and row.quality}
    best = {
        name
        for name, point in points.items()
        if not any(o != point and o[0] <= point[0] and o[1] <= point[1] for o in points.values())
    }
    plot = page.locator("figure[data-measure=p50]")
    shown = {part: plot.locator(f"a.{part}") for part in ("best", "beaten")}
    told = {part: {text.split(":")[0] for text in labels_of(links)} for part, links in shown.items()}
    assert told == {"best": best, "beaten": set(points) - best}


def labels_of(links) -> list[str]:
    return [links.nth(place).get_attribute("aria-label") for place in range(links.count())]


def test_emulated_latency_is_excluded_from_comparison(opened) -> None:
    page = opened("small")
    cell = page.locator("#heat tbody tr", has_text="clip-text").locator("td").nth(8)
    assert "5.58 ms" in cell.inner_text()
    assert cell.get_attribute("class") == "hatched off"
    cell.locator("a").hover()
    assert "that of an emulator" in page.locator("#tooltip").inner_text()
    choose(page, "trade-offs", "Quality", "cosine")
    choose(page, "trade-offs", "Model", "clip-text")
    plot = page.locator("figure[data-measure=p50]")
    assert "3 builds not shown: measured on an emulator." in plot.inner_text()
    assert not [label for label in labels_of(plot.locator("a.mark")) if "npu" in label]


def test_plot_points_are_reached_by_arrow_keys(opened) -> None:
    page = opened("small")
    plot = page.locator("figure[data-measure=size]")
    assert plot.locator("a[tabindex='0']").count() == 1
    plot.locator("a[tabindex='0']").focus()
    page.keyboard.press("ArrowRight")
    name = page.locator("#tooltip strong").inner_text()
    page.keyboard.press("Enter")
    assert page.locator("#cell-title").inner_text() == name


def test_winning_trial_represents_its_build(opened) -> None:
    page = opened("small")
    cell = page.locator("#heat tbody td", has_text="keep-6")
    assert "winner" in cell.inner_text()
    assert cell.inner_text().endswith("+1")
    cell.locator("a").click()
    assert "bert-base/w8a8/npu" in page.locator("#cell .facts").first.get_by_role("link").all_inner_texts()


def test_goals_show_winner_and_rejected_candidates(opened) -> None:
    page = opened("small")
    page.get_by_text("All candidates").click()
    text = page.inner_text("#goals")
    assert "ruled out: cosine 0.9697 is below 0.99" in text
    assert "none: no build meets cosine >=0.99" in text
    assert re.search(r"slower than the winner: [\d.]+ ms against [\d.]+ ms", text)
    assert "best/resnet-50-npu\nmeasured on an emulator, which says nothing about a real device" in text
    # For a search that did not start, only the reason is shown.
    assert "no cell misses only a bound on quality" in text
    assert text.count("Started from") == 1
    assert "0 \u2717, 4 \u2717, 5 \u2717, 6 \u2713, 8 \u2713 of 74 in 16 bits" in text
    page.get_by_text("6 nodes kept in 16 bits").click()
    assert "/encoder/layer.5/MatMul" in page.inner_text("#goals")
    assert page.locator("#goals tr.winner").first.inner_text().startswith(W8A16)


def test_regressions_come_first_with_symbols(opened) -> None:
    page = opened("compared")
    assert page.locator("#overview > section").first.get_attribute("id") == "comparison"
    worse, better = page.locator("#comparison .changes").nth(0), page.locator("#comparison .changes").nth(1)
    assert "\u25bc" in worse.locator("h3").inner_text()
    assert "regression" in worse.inner_text()
    assert "now failing: compile failed" in worse.inner_text()
    assert "improvement" in better.inner_text()
    unsure = page.locator("#comparison .changes", has_text="Unsure")
    assert "unsure: a thread waited for a processor" in unsure.inner_text()
    assert "of 32 builds are worse than in out/summer" in page.inner_text(".answer")


def test_two_builds_are_compared_side_by_side(opened) -> None:
    page = opened("small")
    choose(page, "beside", "Build", "bert-base/fp32/cpu")
    choose(page, "beside", "Compare with", W8A16)
    lines = page.locator("#beside tbody tr").all_inner_texts()
    assert "Precision\tfp32\tw8a16" in lines
    assert any(line.startswith("Size\t") for line in lines)
    assert not any(line.startswith("Model\t") for line in lines)
    choose(page, "beside", "Compare with", "bert-base/fp32/cpu")
    assert page.locator("#beside tbody tr").count() == 0


def test_narrow_window_shows_builds_as_cards(opened) -> None:
    page = opened("compared", width=400)
    cut = "[...document.querySelectorAll('.scroller')].filter((one) => one.scrollWidth > one.clientWidth + 1).length"
    assert page.evaluate(cut) == 0
    size = page.locator("#table tbody tr").first.locator("td[data-label=Size]")
    assert page.evaluate("(one) => getComputedStyle(one, '::before').content", size.element_handle()) == '"Size"'


def test_bare_report_is_shown(opened) -> None:
    page = opened("bare")
    assert names(page) == ["out"]
    page.locator("#heat tbody a").click()
    page.locator("#cell-title").wait_for()
    assert "It has no files." in page.inner_text("#cell")
    assert "No command was kept." in page.inner_text("#cell")


def test_sorting_500_builds_creates_no_elements(opened) -> None:
    """Creating elements is expensive; both only move or hide the existing ones that need it."""
    page = opened("large")
    assert len(names(page)) == 500
    page.evaluate("""() => {
        window.lines = new Set(document.querySelectorAll("#table tbody tr"));
        window.changed = 0;
        new MutationObserver((some) => { window.changed += some.length; })
            .observe(document.querySelector("#table tbody"), { attributes: true, subtree: true });
    }""")
    heading(page, "p50").locator("button").click()
    told = page.evaluate(
        "[...document.querySelectorAll('#table tbody tr')].filter((one) => window.lines.has(one)).length"
    )
    assert told == 500
    assert page.evaluate("window.changed") == 0
    page.get_by_label("Find").fill("family-07")
    assert len(names(page)) == 25
    assert page.evaluate("window.changed") == 475
