"""Presenting before a room, by picture: the stage alone and screens of lessons, at the sizes of projectors."""

from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from specviz.ui.server import typed_address
from tests.browser.access import serious

pytestmark = pytest.mark.slow

UNREADABLE = Path(__file__).with_name("unreadable.js").read_text("utf-8")
SIZES = [(1024, 768), (1280, 720), (1366, 768), (1920, 1080)]
NEXT = "#lesson .sv-lesson-foot .sv-primary"
PARTS = {
    "text": ".sv-text",
    "lanes": ".sv-lanes",
    "inspector": ".sv-inspector",
    "numbers": ".sv-tiles",
    "player": ".sv-player",
    "tools": ".sv-tools",
}
SCREENS = {
    "why-slow 2": {"text", "lanes", "numbers", "player"},
    "why-slow 3": {"text", "lanes"},
    "draft-and-verify 1": {"text", "lanes", "numbers"},
    "draft-and-verify 2": {"text", "lanes", "inspector"},
    "acceptance-rule 2": {"text", "lanes", "inspector", "tools"},
    "acceptance-rule 4": {"text", "lanes", "inspector"},
    "residual 2": {"text", "lanes", "inspector"},
    "choosing-k 2": {"text", "lanes", "numbers"},
    "drafts 2": {"text", "lanes", "inspector", "numbers"},
    "trees-and-heads 3": {"text", "lanes", "inspector", "numbers"},
}
"""Screens of lessons, by the lesson's name and their number, and the parts of the stage that their slide has."""
HIDDEN = "(node) => node.scrollHeight - node.clientHeight"
HEADER = """() => Math.max(...['#bar', '#setup'].map((name) => document.querySelector(name).getBoundingClientRect())
    .filter((box) => box.height).map((box) => box.bottom)) / innerHeight"""


def sizes_and_themes(page):
    """Shows the page at every size in both themes, one after the other."""
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        for theme in ("light", "dark"):
            page.evaluate("(isDark) => document.body.classList.toggle('dark', isDark)", theme == "dark")
            page.wait_for_timeout(200)
            yield width, theme


def lesson_of(open_page, name):
    page = open_page(reduced_motion="reduce")
    page.evaluate("(name) => { location.hash = `lesson=${name}`; }", name)
    page.wait_for_selector("#lesson .sv-lesson:not([hidden])")
    return page


def test_the_stage_alone_can_be_read_from_afar(open_page):
    page = open_page("?run=first-visit", reduced_motion="reduce")
    page.wait_for_function("specvizPage.hub().run === 'shipped:first-visit'")
    page.click("#present")
    for width, theme in sizes_and_themes(page):
        assert page.evaluate(UNREADABLE) == [], (width, theme)
        assert page.evaluate(HEADER) <= 0.15, width
        assert page.is_visible("#stage .sv-sentence") == (width >= 1200)
        if width == SIZES[0][0]:
            assert serious(page) == [], theme


@pytest.mark.parametrize("place", SCREENS)
def test_a_screen_of_a_lesson_is_a_slide(open_page, place):
    name, number = place.split()
    page = lesson_of(open_page, name)
    for _ in range(int(number) - 1):
        page.click(NEXT)
    page.click("#present")
    page.wait_for_timeout(600)  # a pinned token rests
    for width, theme in sizes_and_themes(page):
        assert page.evaluate(UNREADABLE) == [], (width, theme)
        assert page.eval_on_selector("#lesson", HIDDEN) == 0, width
        assert page.evaluate("document.documentElement.scrollHeight <= innerHeight")
        assert page.evaluate(HEADER) <= 0.15, width
        assert {part for part, box in PARTS.items() if page.is_visible(f"#stage {box}")} == SCREENS[place]
        assert (
            page.eval_on_selector_all(
                "#lesson h3, #lesson .sv-lesson-question", "(all) => parseFloat(getComputedStyle(all[0]).fontSize)"
            )
            >= 32
        )
        if width == SIZES[0][0]:
            assert serious(page) == [], theme


def test_the_setup_row_comes_where_a_slide_invites_to_a_run(open_page):
    page = lesson_of(open_page, "why-slow")
    page.click("#present")
    for _ in range(3):
        assert not page.is_visible("#run")
        page.click(NEXT)
    page.click("#lesson button:text-is('Fill in this setup')")
    page.wait_for_selector("#run")
    for width, theme in sizes_and_themes(page):
        assert page.evaluate(UNREADABLE) == [], (width, theme)
        assert page.evaluate(HEADER) <= 0.15, width


def test_the_code_of_the_page_fills_the_screen_and_can_be_read(open_page, app, monkeypatch):
    decoder = pytest.importorskip("zxingcpp", reason="zxing-cpp is not installed")
    page = open_page(color_scheme="dark", viewport={"width": 1024, "height": 768})
    page.click("#present")
    page.wait_for_timeout(500)
    assert page.locator("#page-code button").count() == 0  # this server is for this machine alone
    monkeypatch.setattr(app.page.demo, "server_name", "0.0.0.0")
    page.reload()
    page.wait_for_selector("#present")
    page.click("#present")
    page.click("#page-code .sv-page-code-open")
    seen = decoder.read_barcodes(Image.open(BytesIO(page.screenshot())))
    address = f"{typed_address('0.0.0.0', app.page.demo.server_port)}/"
    assert [code.text for code in seen] == [address]
    assert page.inner_text(".sv-page-code p") == address
    assert serious(page) == []
    page.click(".sv-page-code-choice button:text-is('Each phone for itself')")
    seen = decoder.read_barcodes(Image.open(BytesIO(page.screenshot())))
    assert [code.text for code in seen] == [f"{address}live/"]
    page.keyboard.press("Escape")
    assert not page.is_visible(".sv-page-code")
    assert page.evaluate("document.documentElement.hasAttribute('data-sv-present')")
    page.keyboard.press("Escape")
    assert not page.is_visible(".sv-page-code-open")


PLANTED = """() => {
  document.body.innerHTML = `<p style="margin: 0; line-height: 20px">first</p><p style="margin: -10px 0 0">second</p>
    <p style="width: 30px; overflow: hidden; white-space: nowrap">longer than its box</p>
    <p style="width: 30px; overflow: hidden; white-space: nowrap; text-overflow: ellipsis">longer and says so</p>
    <div style="height: 20px; overflow: auto"><p>one</p><p>two</p></div>
    <p style="position: relative"><b>behind</b>
      <i style="position: absolute; inset: 0; background: #fff">before</i></p>`;
}"""


def test_what_lies_over_a_text_or_cuts_it_off_would_be_found(page):
    page.evaluate(PLANTED)
    lies, cut, *others = sorted(page.evaluate(UNREADABLE), key=len)
    assert "“first” lies over “second”" in (lies, cut)
    assert any("longer than its box" in each for each in (lies, cut))
    assert others == []
