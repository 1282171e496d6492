"""The saved report in Chromium, opened from disk: no network, charts, tables that sort, texts, access."""

from dataclasses import replace

import pytest
from conftest import DESKTOP
from conftest import PHONE as PHONE_SIZE
from stage_page import settle, shown
from test_alignment_view import HOSTILE, NAMES, made_summary, made_text, rejection
from test_stage_access import serious

from specviz.views import blocks
from specviz.views.standalone import page as page_of
from specviz.views.standalone import report_page

PHONE = {"viewport": PHONE_SIZE, "has_touch": True, "is_mobile": True}
DESK = {"viewport": DESKTOP}
CELLS = "[...document.querySelectorAll('tbody tr')].map((line) => line.children[%d].textContent)"


@pytest.fixture
def opened(chromium, tmp_path):
    """Opens a page from disk; leaving the test checks that it had no error and asked for nothing else."""
    contexts, wrong = [], []

    def opened(html, **context):
        path = tmp_path / "report.html"
        path.write_text(html, encoding="utf-8")
        contexts.append(chromium.new_context(**{**DESK, **context}))
        page = contexts[-1].new_page()
        page.set_default_timeout(10_000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: wrong.append(request.url) if not _is_own(request.url, path) else None)
        page.goto(path.as_uri())
        page.wait_for_function("document.documentElement.dataset.done")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not wrong, wrong


def _is_own(url, path):
    return url.startswith(("data:", "blob:", path.as_uri()))


@pytest.fixture(scope="module")
def report():
    return report_page(made_summary(), [made_text(number) for number in range(40)])


@pytest.mark.parametrize(("size", "scheme"), [(DESK, "light"), (PHONE, "dark")], ids=["desktop light", "phone dark"])
def test_the_whole_report_fits_and_is_accessible(opened, report, size, scheme):
    page = opened(report, color_scheme=scheme, **size)
    page.evaluate("document.querySelectorAll('details').forEach((node) => { node.open = true; })")
    page.locator(".sv-plot").first.scroll_into_view_if_needed()
    page.wait_for_selector(".sv-plot .main-svg")
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= size["viewport"]["width"]
    assert serious(page) == []
    assert page.evaluate("document.body.classList.contains('dark')") == (scheme == "dark")


def test_plotly_waits_until_a_chart_comes_into_sight_and_follows_the_theme(opened, report):
    page = opened(report)
    assert page.evaluate("window.Plotly === undefined")
    page.locator(".sv-plot").first.scroll_into_view_if_needed()
    page.wait_for_selector(".sv-plot .main-svg")
    colour = "getComputedStyle(document.querySelector('.sv-plot .lines path')).stroke"
    light = page.evaluate(colour)
    page.click("#sv-theme")
    page.wait_for_function(f"{colour} !== {light!r}")
    assert page.get_attribute("#sv-theme", "aria-pressed") == "true"


def test_the_contents_lead_to_the_parts(opened, report):
    page = opened(report)
    titles = shown(page, "#sv-contents a")
    assert titles == shown(page, ".sv-section > h2")
    page.click("#sv-contents a >> nth=-1")
    page.wait_for_function("document.querySelector('#part-how').getBoundingClientRect().top < innerHeight")


def sorting_page():
    rows = [
        ["ten", blocks.cell("10 %", sort=0.1)],
        ["five", blocks.cell("5.0 %", sort=0.05)],
        ["none", blocks.cell("–")],
        ["ninety", blocks.cell("90 %", sort=0.9)],
    ]
    table = blocks.table(["name", "share"], rows, marked=1, sortable=True)
    return page_of("Tables", [blocks.section("one", "One", "", blocks=[table])])


def test_a_table_sorts_by_its_keys_with_the_keyboard(opened):
    page = opened(sorting_page())
    share = page.locator(".sv-sort >> nth=1")
    share.focus()
    page.keyboard.press("Enter")
    assert page.evaluate(CELLS % 0) == ["ninety", "ten", "five", "none"]
    assert page.get_attribute("thead th:nth-child(2)", "aria-sort") == "descending"
    page.keyboard.press("Enter")
    assert page.evaluate(CELLS % 0) == ["five", "ten", "ninety", "none"]
    assert page.get_attribute("thead th:nth-child(2)", "aria-sort") == "ascending"
    page.locator(".sv-sort >> nth=0").click()
    assert page.evaluate(CELLS % 0) == ["five", "ninety", "none", "ten"]
    assert page.locator("[aria-sort]").count() == 1
    assert shown(page, ".sv-marked th") == ["five"]


def facts(page):
    return dict(zip(shown(page, ".sv-texts-panel dt"), shown(page, ".sv-texts-panel dd"), strict=True))


def chosen(page, wanted):
    told = "(words) => document.querySelector('.sv-texts-about').textContent.includes(words)"
    page.wait_for_function(told, arg=wanted)


def test_a_text_is_found_and_tells_what_both_models_said(opened, report):
    page = opened(report)
    page.locator(".sv-texts").scroll_into_view_if_needed()
    chosen(page, "fable-draft: agreement")
    page.fill(".sv-texts-bar input", "story-37")
    text = made_text(37)
    page.wait_for_function("document.querySelectorAll('.sv-texts-list option').length === 1")
    chosen(page, f"{100 * sum(text.drafts[0].overlap) / 64:.0f}\u00a0%")
    assert page.locator(".sv-texts-line .sv-agree").count() == 64
    page.click(".sv-texts-line .sv-agree >> nth=5")
    known = facts(page)
    assert known["token"] == text.labels[5]
    assert known["price of a rejection"] == f"{text.drafts[0].price[5]:.2f} target calls"
    page.select_option(".sv-texts-bar .sv-control:last-child select", label=NAMES[2])
    page.click(".sv-texts-line .sv-agree >> nth=5")
    assert facts(page)["price of a rejection"] == f"{text.drafts[2].price[5]:.2f} target calls"


def test_the_arrow_keys_go_along_a_text(opened, report):
    page = opened(report)
    chosen(page, "agreement")
    page.focus(".sv-texts-line")
    at = "[...document.querySelectorAll('.sv-texts-line .sv-agree')].findIndex((one) => one.matches('.sv-agree-at'))"
    walked = {"ArrowRight": 1, "PageUp": 1, "End": 63, "ArrowLeft": 62, "Home": 0}
    for key, place in walked.items():
        page.keyboard.press(key)
        assert page.evaluate(at) == place, key
    assert facts(page)["token"] == made_text(0).labels[0]


def test_agreement_is_told_by_more_than_colour(opened, report):
    page = opened(report)
    style = "(node) => [getComputedStyle(node).textDecorationLine, getComputedStyle(node).textDecorationStyle].join()"
    marks = shown(page, ".sv-agree-key .sv-agree", style)
    outline = shown(page, ".sv-agree-key .sv-agree", "(node) => getComputedStyle(node).outlineStyle")
    assert len(set(zip(marks, outline, strict=True))) == 6


def test_thousands_of_texts_can_be_searched(opened):
    html = report_page(made_summary(num_prompts=3000), (made_text(number, 3, NAMES[:1]) for number in range(3000)))
    page = opened(html)
    chosen(page, "agreement")
    assert page.locator(".sv-texts-list option").count() == 200
    page.fill(".sv-texts-bar input", "story-2999 ")
    page.wait_for_function("document.querySelectorAll('.sv-texts-list option').length === 1")
    chosen(page, f"{100 * sum(made_text(2999, 3, NAMES[:1]).drafts[0].overlap) / 3:.0f}\u00a0%")


def test_texts_from_outside_stay_texts(opened):
    found = rejection(HOSTILE, 3, id=HOSTILE, token=HOSTILE, before=HOSTILE)
    drafts = (replace(made_summary().drafts[0], costliest=(found,)),)
    text = made_text(1, 3, NAMES[:1], id=HOSTILE, prompt=HOSTILE, labels=[HOSTILE] * 3, favourite=[HOSTILE] * 3)
    page = opened(report_page(made_summary(target=HOSTILE, drafts=drafts, comparisons=()), [text]))
    chosen(page, "agreement")
    assert page.evaluate("document.querySelectorAll('img, main script').length") == 0
    assert "<img src=x" in "".join(shown(page, ".sv-texts-line"))
