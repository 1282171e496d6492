"""The page's own colours: what was chosen holds over the system's theme, and forced colours hide nothing."""

from __future__ import annotations

import pytest

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


def chosen(page, choice: str, system: str) -> None:
    """Presses Theme until `choice` was chosen; "system" is what holds while it was never pressed."""
    if choice != "system":
        page.click("#theme")
        if choice == system:
            page.click("#theme")


def is_painted(page, theme: str) -> None:
    page.wait_for_function("(is_dark) => document.body.classList.contains('dark') === is_dark", arg=theme == "dark")
    for selector in ("body", ".sv-stage", "#setup", ".sv-sentence", ".sv-tile dt", ".sv-name"):
        shown = page.evaluate(SHOWN, selector)
        assert shown["fill"] == GROUND[theme], selector
        assert shown["contrast"] >= CONTRAST, selector
        assert shown["scheme"] == ("dark" if theme == "dark" else "normal"), selector


@pytest.mark.parametrize("choice", ["light", "dark", "system"])
@pytest.mark.parametrize("system", GROUND)
def test_the_whole_page_has_the_theme_that_was_chosen_also_after_a_reload(open_page, system, choice):
    page = open_page(color_scheme=system)
    theme = system if choice == "system" else choice
    chosen(page, choice, system)
    is_painted(page, theme)
    page.reload()
    page.wait_for_function(READY)
    is_painted(page, theme)


@pytest.mark.parametrize("choice", ["light", "dark", "system"])
def test_a_change_of_the_system_s_theme_changes_only_what_was_not_chosen(open_page, choice):
    page = open_page(color_scheme="light")
    chosen(page, choice, "light")
    page.emulate_media(color_scheme="dark")
    is_painted(page, "dark" if choice == "system" else choice)
