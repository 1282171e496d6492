"""The page's own colours: what was chosen holds over the system's theme, and forced colours hide nothing."""

from __future__ import annotations

from io import BytesIO

import pytest
from PIL import Image

from tests.browser.explore_page import run_to_end

pytestmark = pytest.mark.slow

GROUND = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 28)"}
OTHER = {"light": "dark", "dark": "light"}
READY = "window.specvizPage?.hub() && document.querySelector('#k input')"
CONTRAST = 4.5  # WCAG AA
# what is painted behind `selector`, its own ground or the next one outwards, and the contrast of its text with that
SHOWN = """(selector) => {
    const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const light = (colour) => parts(colour).slice(0, 3)
        .map((part) => part / 255).map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
        .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0);
    let ground = document.querySelector(selector);
    const ink = light(getComputedStyle(ground).color);
    while (parts(getComputedStyle(ground).backgroundColor)[3] === 0) ground = ground.parentElement;
    const fill = getComputedStyle(ground).backgroundColor;
    const [bright, dim] = [ink, light(fill)].sort((a, b) => b - a);
    return { fill, contrast: (bright + 0.05) / (dim + 0.05), scheme: getComputedStyle(ground).colorScheme };
}"""


def is_painted(page, theme: str) -> None:
    page.wait_for_function("(is_dark) => document.body.classList.contains('dark') === is_dark", arg=theme == "dark")
    for selector in ("body", ".sv-stage", "#setup", ".sv-sentence", ".sv-tile dt", ".sv-name"):
        shown = page.evaluate(SHOWN, selector)
        assert shown["fill"] == GROUND[theme], selector
        assert shown["contrast"] >= CONTRAST, selector
        assert shown["scheme"] == ("dark" if theme == "dark" else "normal"), selector


@pytest.mark.parametrize("system", GROUND)
def test_the_whole_page_has_the_theme_that_was_chosen_also_after_a_reload(open_page, system):
    """First the system's, then with every press on Theme the other one."""
    page = open_page(color_scheme=system)
    for number, theme in enumerate((system, OTHER[system], system)):
        if number:
            page.click("#theme")
        is_painted(page, theme)
        page.reload()
        page.wait_for_function(READY)
        is_painted(page, theme)


def test_a_change_of_the_system_s_theme_changes_only_what_was_not_chosen(open_page):
    page = open_page(fresh=True, color_scheme="light")
    page.emulate_media(color_scheme="dark")
    is_painted(page, "dark")
    page.emulate_media(color_scheme="light")
    is_painted(page, "light")
    for chosen in ("dark", "light"):
        page.click("#theme")
        for system in ("dark", "light", "dark"):
            page.emulate_media(color_scheme=system)
            is_painted(page, chosen)


FORCED = {"forced_colors": "active", "reduced_motion": "reduce"}
SWATCH = """(colour) => {
    const swatch = document.getElementById('swatch') || document.body.appendChild(document.createElement('div'));
    swatch.id = 'swatch';
    swatch.style = `position: fixed; z-index: 99; inset: auto auto 0 0; width: 4px; height: 4px; background: ${colour}`;
}"""


def picture(page, selector: str) -> Image.Image:
    return Image.open(BytesIO(page.locator(selector).first.screenshot())).convert("RGB")


def painted(page, selector: str, system: str) -> float:
    """The share of the part's box that has the look of the system's colour, which the browser may blend."""
    image = picture(page, selector)
    page.evaluate(SWATCH, system)
    wanted = picture(page, "#swatch").getpixel((2, 2))
    return sum(colour == wanted for colour in image.getdata()) / (image.width * image.height)


def computed(page, selector: str, name: str) -> str:
    return page.eval_on_selector(selector, f"(part) => getComputedStyle(part).{name}")


@pytest.fixture(params=GROUND)
def forced(open_page, request):
    page = open_page(color_scheme=request.param, forced_colors="active", reduced_motion="reduce")
    run_to_end(page)
    return page


def test_in_forced_colours_a_slider_shows_its_track_its_thumb_and_how_far_it_is(forced):
    for name in ("k", "temperature"):
        for system in ("Canvas", "CanvasText", "Highlight"):
            assert painted(forced, f"#{name} input[type=range]", system) > 0.02, (name, system)


CHOICES = {
    "#pace label.selected": "#pace label:not(.selected)",
    ".sv-pages [aria-current]": ".sv-pages :not([aria-current])",
    ".sv-modes [aria-pressed=true]": ".sv-modes [aria-pressed=false]",
}


def test_in_forced_colours_the_choice_is_filled_and_the_others_are_not(forced):
    for chosen, other in CHOICES.items():
        assert painted(forced, chosen, "Highlight") > 0.5, chosen
        assert painted(forced, chosen, "HighlightText") > 0, chosen
        assert forced.evaluate(SHOWN, chosen)["contrast"] >= CONTRAST, chosen
        assert painted(forced, other, "Highlight") == 0, other


def test_in_forced_colours_a_pressed_mark_of_the_legend_is_framed(forced):
    assert painted(forced, ".sv-legend-entry", "Highlight") == 0
    forced.locator(".sv-legend-entry").first.click()
    assert painted(forced, ".sv-legend-entry", "Highlight") > 0.05


def test_in_forced_colours_bars_are_told_apart_by_shape(forced):
    """Solid, hatched and hollow, with the dart over them; a step's cut tokens are hollow beside its solid kept ones."""
    forced.locator(".sv-cell.sv-is-rejected").first.click()
    assert painted(forced, ".sv-key .sv-both", "CanvasText") > 0.7
    assert 0.2 < painted(forced, ".sv-key .sv-shortfall", "LinkText") < 0.8
    assert painted(forced, ".sv-key .sv-excess", "Canvas") > 0.4
    assert painted(forced, ".sv-probabilities .sv-random-draw", "CanvasText") > 0.4
    assert painted(forced, ".sv-foot-bar", "CanvasText") > 0
    assert computed(forced, ".sv-bar-accepted", "fill") == computed(forced, ".sv-sentence", "color")
    assert computed(forced, ".sv-bar-rejected", "fill") == computed(forced, "body", "backgroundColor")


def test_in_forced_colours_the_button_that_begins_a_work_can_be_read(forced):
    for button in ("#run", "#compare .sv-primary"):
        if button != "#run":
            forced.click("#pages [data-page=compare]")
        assert painted(forced, button, "Canvas") > 0.02, button
        assert painted(forced, button, "CanvasText") > 0.02, button
