"""The saved report in Chromium, opened from disk: no network, charts, tables that sort, texts, access."""

from dataclasses import replace

import pytest
from msgspec import structs

from specviz.alignment.report.live import many_prompts
from specviz.alignment.report.sections import report_page
from specviz.views import blocks
from specviz.views.words import percent
from tests.browser.access import serious
from tests.browser.report_page import push, reports
from tests.browser.stage_page import settle, shown
from tests.browser.windows import DESKTOP
from tests.browser.windows import PHONE as PHONE_SIZE
from tests.helpers.made_summaries import HOSTILE, NAMES, made_summary, made_text, pattern

pytestmark = pytest.mark.slow

PHONE = {"viewport": PHONE_SIZE, "has_touch": True, "is_mobile": True}
DESK = {"viewport": DESKTOP}
page_of_reports = pytest.fixture(reports)


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


def test_charts_are_drawn_behind_the_first_sight_and_follow_the_theme(opened, report):
    page = opened(report)
    page.wait_for_selector(".sv-plot .main-svg", state="attached")
    colour = "getComputedStyle(document.querySelector('.sv-plot .lines path')).stroke"
    light = page.evaluate(colour)
    page.click("#sv-theme")
    page.wait_for_function(f"{colour} !== {light!r}")
    assert page.get_attribute("#sv-theme", "aria-pressed") == "true"


def test_the_report_prints_whole(opened, report):
    """Nobody has scrolled: each chart outside of a fold is drawn, and no table is cut at the edge of the paper."""
    page = opened(report)
    in_sight = "[...document.querySelectorAll('.sv-plot')].filter((plot) => plot.offsetParent)"
    last = page.evaluate(f"{in_sight}.length") - 1
    page.wait_for_selector(f".sv-plot:visible >> nth={last} >> .main-svg >> nth=0", state="attached")
    assert page.evaluate(f"{in_sight}.every((plot) => plot.querySelector('.main-svg'))")
    page.set_viewport_size({"width": 718, "height": 1047})  # A4 with the usual margins
    page.emulate_media(media="print")
    wide = (
        "[...document.querySelectorAll('.sv-table-scroll')].filter((node) => node.scrollWidth > node.clientWidth + 1)"
    )
    num_cut = page.evaluate(f"{wide}.length")
    colours = page.evaluate("getComputedStyle(document.querySelector('.sv-track *')).printColorAdjust")
    page.emulate_media(media="screen")  # the next test may have the same page
    page.set_viewport_size(DESKTOP)
    assert (num_cut, colours) == (0, "exact")


def test_the_contents_lead_to_the_parts(opened, report):
    page = opened(report)
    titles = shown(page, "#sv-contents a")
    assert titles == shown(page, ".sv-section > h2")
    page.click("#sv-contents a >> nth=-1")
    page.wait_for_function("document.querySelector('#part-how').getBoundingClientRect().top < innerHeight")


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
    chosen(page, f"{100 * sum(text.drafts[NAMES[0]]['overlap']) / 64:.0f}\u00a0%")
    assert page.locator(".sv-texts-line .sv-agree").count() == 64
    page.click(".sv-texts-line .sv-agree >> nth=5")
    known = facts(page)
    assert known["token"] == text.tokens["text"][5]
    assert known["saved if accepted here"] == f"{text.drafts[NAMES[0]]['saved'][5]:.2f} target calls"
    page.select_option(".sv-texts-bar .sv-control:last-child select", label=NAMES[2])
    assert facts(page)["saved if accepted here"] == f"{text.drafts[NAMES[2]]['saved'][5]:.2f} target calls"
    assert facts(page)["position, from 1"] == "6"


AT = "[...document.querySelectorAll('.sv-texts-line .sv-agree')].findIndex((one) => one.matches('.sv-agree-at'))"


def test_a_rejection_opens_its_text_at_its_token_for_its_draft(opened, report):
    page = opened(report)
    chosen(page, "agreement")
    page.fill(".sv-texts-bar input", "story-37")
    page.evaluate("document.querySelectorAll('details').forEach((node) => { node.open = true; })")
    page.locator("[data-section=training] .sv-open", has_text="story-17").nth(1).click()
    text = made_text(17)
    page.wait_for_function(f"() => {AT} === 17")
    assert page.evaluate("document.querySelector('.sv-texts-list').selectedOptions[0].textContent").startswith(
        "story-17"
    )
    assert facts(page)["q: the draft's probability"] == percent(text.drafts[NAMES[1]]["q"][17])
    assert facts(page)["position, from 1"] == "18"
    assert page.evaluate("document.activeElement.className") == "sv-texts-line"


def test_on_a_phone_a_tap_shows_what_it_tells(opened):
    page = opened(report_page(made_summary(), [made_text(number, 400) for number in range(3)]), **PHONE)
    chosen(page, "agreement")
    page.evaluate("document.querySelector('.sv-texts-line').scrollIntoView({block: 'end'})")
    page.tap(".sv-texts-line .sv-agree >> nth=3")
    assert facts(page)["position, from 1"] == "4"
    box = page.locator(".sv-texts-panel").bounding_box()
    assert box["y"] >= 0
    assert box["y"] + box["height"] <= PHONE_SIZE["height"] + 1
    for words, place in (("next token", 4), ("next token", 5), ("previous token", 4)):
        button = page.get_by_role("button", name=words)
        assert min(button.bounding_box()[side] for side in ("width", "height")) >= 44
        button.tap()
        assert page.evaluate(AT) == place


def test_no_table_of_a_report_is_wider_than_its_card_on_a_desk(opened, report):
    page = opened(report)
    page.evaluate("document.querySelectorAll('details').forEach((node) => { node.open = true; })")
    wide = "(node) => (node.scrollWidth > node.clientWidth ? node.getAttribute('aria-label') : '')"
    assert "".join(shown(page, ".sv-table-scroll", wide)) == ""


# ---- the same on the Compare page -----------------------------------------------------------------------------------


def test_own_prompts_and_what_is_set_stay_when_there_is_a_result(page_of_reports):
    page = page_of_reports()
    push(page, [many_prompts([("Code", "code")])])
    page.select_option("[name=prompts]", "own")
    page.fill("[name=own]", "one\ntwo")
    page.click(".sv-options > summary")
    page.fill("[name=tokens]", "64")
    result = blocks.TableBlock(["a"], [["b"]])
    primary = many_prompts([("Code", "code")])
    controls = [*primary.controls[:3], blocks.ButtonControl("analyse", "Analyse")]
    push(page, [structs.replace(primary, controls=controls, blocks=[result])])
    assert page.locator(".sv-primary").count() == 0
    page.click("[data-act=analyse]")
    values = {"drafts": "models", "prompts": "own", "own": "one\ntwo", "tokens": "64"}
    assert page.evaluate("triggers.at(-1)[1].values") == values


def test_more_than_the_box_may_hold_is_sent_to_be_refused(page_of_reports):
    page = page_of_reports()
    push(page, [many_prompts([])])
    assert page.get_attribute("[name=own]", "maxlength") == "50001"


def test_agreement_is_told_by_more_than_colour(opened, report):
    page = opened(report)
    style = "(node) => [getComputedStyle(node).textDecorationLine, getComputedStyle(node).textDecorationStyle].join()"
    marks = shown(page, ".sv-agree-key .sv-agree", style)
    outline = shown(page, ".sv-agree-key .sv-agree", "(node) => getComputedStyle(node).outlineStyle")
    assert len(set(zip(marks, outline, strict=True))) == 6


def test_texts_from_outside_stay_texts(opened):
    found = pattern(3, id=HOSTILE, token=HOSTILE, before=HOSTILE)
    drafts = (replace(made_summary().drafts[0], patterns=(found,)),)
    columns = dict.fromkeys(("text", "most_likely_text"), [HOSTILE] * 3)
    text = made_text(1, 3, NAMES[:1], columns, id=HOSTILE, prompt=HOSTILE)
    page = opened(report_page(made_summary(target=HOSTILE, drafts=drafts, comparisons=()), [text]))
    chosen(page, "agreement")
    assert page.evaluate("document.querySelectorAll('img, main script').length") == 0
    assert "<img src=x" in "".join(shown(page, ".sv-texts-line"))
