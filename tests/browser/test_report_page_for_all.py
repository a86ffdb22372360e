"""Accessibility and robustness of the report page: any eyesight, input device, window size and names."""

from __future__ import annotations

import pytest

# All pairs of text and background with a contrast below 4.5; of a hatched background the worse colour counts.
_TOO_WEAK = """() => {
    const brush = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    const known = new Map();
    const drawn = (colour) => {
        brush.clearRect(0, 0, 1, 1);
        brush.fillStyle = colour;
        brush.fillRect(0, 0, 1, 1);
        return [...brush.getImageData(0, 0, 1, 1).data];
    };
    const rgb = (colour) => known.get(colour) ?? known.set(colour, drawn(colour)).get(colour);
    const linear = (one) => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4;
    const light = (colour) => {
        const [r, g, b] = rgb(colour).map((one) => linear(one / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const contrast = (one, other) => {
        const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
        return (high + 0.05) / (low + 0.05);
    };
    const isOpaque = (colour) => rgb(colour)[3] === 255;
    const grounds = (element) => {
        const found = [];
        for (let one = element; one; one = one.parentElement) {
            const { backgroundImage, backgroundColor } = getComputedStyle(one);
            found.push(...(backgroundImage.match(/rgba?\\([^)]*\\)/g) || []).filter(isOpaque));
            if (isOpaque(backgroundColor)) return [...found, backgroundColor];
        }
        return found;
    };
    const weak = {};
    for (const element of document.querySelectorAll("body *")) {
        const saysSomething = [...element.childNodes].some((one) => one.nodeType === 3 && one.data.trim());
        const isSeen = element.checkVisibility() && !element.closest(".unseen, script, noscript, option");
        if (!saysSomething || !isSeen) continue;
        const style = getComputedStyle(element);
        const ink = element instanceof SVGElement ? style.fill : style.color;
        for (const ground of grounds(element)) {
            const told = contrast(ink, ground);
            if (told < 4.5) weak[`${ink} on ${ground}`] = `${told.toFixed(2)}: ${element.outerHTML.slice(0, 60)}`;
        }
    }
    return weak;
}"""
_WIDER_THAN_WINDOW = "document.documentElement.scrollWidth > document.documentElement.clientWidth"


def test_all_text_has_contrast_in_light_and_dark(opened) -> None:
    for at in ("", "#cell/clip-text%2Fw8a8%2Fnpu", "#cell/bert-base%2Fw8a8%2Fnpu"):
        page = opened("compared", at)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate(_TOO_WEAK) == {}


def test_colour_switch_overrides_system_and_persists(opened) -> None:
    page = opened("small", scheme="dark")
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    dark = page.evaluate(ground)
    page.emulate_media(color_scheme="light")
    light = page.evaluate(ground)
    assert dark != light
    page.get_by_role("button", name="Switch to dark colours").click()
    assert page.evaluate(ground) == dark
    page.reload()
    assert page.evaluate(ground) == dark
    page.get_by_role("button", name="Switch to light colours").click()
    assert page.evaluate(ground) == light
    page.evaluate("localStorage.clear()")


@pytest.mark.parametrize("name", ["compared", "hostile"])
def test_narrow_window_has_no_horizontal_scroll(opened, name: str) -> None:
    page = opened(name, width=360)
    assert page.evaluate(_WIDER_THAN_WINDOW) is False
    page.locator("#table tbody a").first.click()
    page.locator("#cell-title").wait_for()
    assert page.evaluate(_WIDER_THAN_WINDOW) is False


def test_first_tab_skips_to_table(opened) -> None:
    page = opened("small")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the table of builds"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('section').id") == "table"


def test_tables_and_regions_are_labelled_for_screen_readers(opened) -> None:
    page = opened("small")
    assert page.get_by_role("table", name="All builds. A heading is a button that sorts by its column.").count() == 1
    assert page.get_by_role("columnheader", name="Size").count() == 1
    assert page.get_by_role("rowheader", name="bert-base/w8a16/npu").count() >= 1
    assert page.get_by_role("main").count() == 1
    assert page.locator("section:not([aria-labelledby]) > h2").count() == 0
    for region in page.get_by_role("region").all():
        assert region.get_attribute("aria-label") or region.get_attribute("aria-labelledby")


def test_print_shows_all_rows_without_controls(opened) -> None:
    page = opened("small", scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
    assert [one.is_visible() for one in page.locator("select, input, button:not(th button), nav").all()].count(
        True
    ) == 0
    overflow = "[...document.querySelectorAll('.scroller')].map((one) => getComputedStyle(one).overflow)"
    assert set(page.evaluate(overflow)) == {"visible"}
    assert page.locator("#table tbody tr").last.bounding_box()["height"] > 0
    assert page.pdf(print_background=False).startswith(b"%PDF")


def test_hostile_names_and_logs_are_shown_as_text(opened) -> None:
    page = opened("hostile")
    page.locator("details.columns button", has_text="All").dispatch_event("click")
    for link in page.locator("#heat tbody a").all():
        link.hover()
    for place in range(3):
        page.locator("#table tbody th a").nth(place).click()
        page.locator("#cell-title").wait_for()
        page.go_back()
        page.locator("#overview").wait_for()
    assert page.evaluate("window.injected") is None
    assert page.locator("img, iframe").count() == 0
    assert page.locator("script").count() == 2
    assert "\u202e" not in page.inner_text("body")


def test_odd_names_have_working_addresses(opened) -> None:
    page = opened("hostile")
    page.locator("#table tbody a", has_text="100 %").click()
    assert page.locator("#cell-title").inner_text() == "100 % ?#?&"
    page.reload()
    assert page.locator("#cell-title").inner_text() == "100 % ?#?&"


def test_csp_blocks_scripts_images_and_requests(browser, pages) -> None:
    page = browser.new_page()
    page.goto((pages / "small.html").as_uri())
    page.evaluate("""() => {
        window.stopped = [];
        document.addEventListener("securitypolicyviolation", (event) => window.stopped.push(event.effectiveDirective));
        const script = document.createElement("script");
        script.textContent = "window.injected = 1";
        const image = document.createElement("img");
        image.src = "http://127.0.0.1:9/x.png";
        document.body.append(script, image);
        return fetch("http://127.0.0.1:9/").catch(() => {});
    }""")
    page.wait_for_function("window.stopped.length >= 3")
    assert sorted(page.evaluate("window.stopped")) == ["connect-src", "img-src", "script-src-elem"]
    assert page.evaluate("window.injected") is None
    page.close()
