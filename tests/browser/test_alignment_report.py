"""The saved report in Chromium, opened from disk: no network, charts, tables that sort, texts, access."""

from dataclasses import replace

import pytest
from msgspec import structs

from specviz.alignment.report.live import many_prompts
from specviz.alignment.report.sections import report_page
from specviz.views import blocks
from specviz.views.document import page as page_of
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
OPTIONS = "document.querySelectorAll('.sv-texts-list option')"
CELLS = "[...document.querySelectorAll('tbody tr')].map((line) => line.children[%d].textContent)"


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
        ["ten", blocks.TableCell("10 %", sort=0.1)],
        ["five", blocks.TableCell("5.0 %", sort=0.05)],
        ["none", blocks.TableCell("–")],
        ["ninety", blocks.TableCell("90 %", sort=0.9)],
    ]
    table = blocks.TableBlock(["name", "share"], rows, marked=1, sortable=True)
    return page_of("Tables", [blocks.PageSection("one", "One", "", blocks=[table])])


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
    chosen(page, f"{100 * sum(text.drafts[NAMES[0]]['overlap']) / 64:.0f}\u00a0%")
    assert page.locator(".sv-texts-line .sv-agree").count() == 64
    page.click(".sv-texts-line .sv-agree >> nth=5")
    known = facts(page)
    assert known["token"] == text.tokens["text"][5]
    assert known["saved if accepted here"] == f"{text.drafts[NAMES[0]]['saved'][5]:.2f} target calls"
    page.select_option(".sv-texts-bar .sv-control:last-child select", label=NAMES[2])
    assert facts(page)["saved if accepted here"] == f"{text.drafts[NAMES[2]]['saved'][5]:.2f} target calls"
    assert facts(page)["position, from 1"] == "6"


FOUND = {
    "tales": [3],
    "AND hawaii": [5],
    "fable-draft 62 %": [1],
    "fable-draft 62\u00a0%": [1],
    "none of it": [],
}


def test_a_search_finds_tags_prompts_and_shares_and_clears_what_it_does_not_find(opened):
    texts = [made_text(number, 3, NAMES[:1], {"overlap": [0.62] * 3} if number == 1 else None) for number in range(6)]
    texts[3] = replace(texts[3], tags=["fables and tales"])
    texts[5] = replace(texts[5], prompt="Fox and\n Hawaii")
    page = opened(report_page(made_summary(num_prompts=6, drafts=made_summary().drafts[:1], comparisons=()), texts))
    chosen(page, "agreement")
    for wanted, found in FOUND.items():
        page.fill(".sv-texts-bar input", "")
        page.wait_for_function(f"() => {OPTIONS}.length === 6")
        page.fill(".sv-texts-bar input", wanted)
        page.wait_for_function(f"() => {OPTIONS}.length === {len(found)}")
        names = [name.partition(" ")[0] for name in shown(page, ".sv-texts-list option")]
        assert names == [f"story-{at}" for at in found], wanted
        page.wait_for_function(
            "(is_one) => !document.querySelector('.sv-texts-line').textContent !== is_one", arg=bool(found)
        )
        assert (shown(page, ".sv-texts-about, .sv-texts-panel") == ["", ""]) == (not found), wanted


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


def test_the_token_is_kept_per_text_when_another_draft_is_chosen(opened, report):
    page = opened(report)
    chosen(page, "agreement")
    page.click(".sv-texts-line .sv-agree >> nth=7")
    page.mouse.move(0, 0)  # off the tokens: one that comes to lie under it would be selected
    page.select_option(".sv-texts-bar .sv-control:last-child select", label=NAMES[1])
    assert page.evaluate(AT) == 7
    page.select_option(".sv-texts-list", index=2)
    page.wait_for_function(f"() => {AT} === 0")
    page.select_option(".sv-texts-list", index=0)
    page.wait_for_function(f"() => {AT} === 7")


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


def test_what_scrolls_by_itself_has_a_name_and_bars_say_what_their_rows_are(opened, report):
    page = opened(report)
    named = "(node) => [node.getAttribute('role'), node.getAttribute('aria-label'), node.tabIndex].join()"
    assert shown(page, "[data-section=overview] .sv-table-scroll", named)[0] == "region,Bold: agrees most.,0"
    assert shown(page, "[data-section=reasons] .sv-bars-table", named) == ["region,Why p and q differ,0"]
    inner = shown(page, "[data-section=slices] details > .sv-tabled > .sv-table-scroll", named)
    assert inner[0] == "region,All numbers by depth,0"
    assert shown(page, "[data-section=reasons] .sv-bars-table thead th:first-child") == ["draft model"]
    assert page.locator(".sv-bars-table .sv-bars-key").count() == 0


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
    page.fill("[name=tokens]", "64")
    result = blocks.TableBlock(["a"], [["b"]])
    primary = many_prompts([("Code", "code")])
    controls = [*primary.controls[:3], blocks.ButtonControl("analyse", "Analyse")]
    push(page, [structs.replace(primary, controls=controls, blocks=[result])])
    assert page.locator(".sv-primary").count() == 0
    page.click("[data-act=analyse]")
    values = {"prompts": "own", "own": "one\ntwo", "tokens": "64"}
    assert page.evaluate("triggers.at(-1)[1].values") == values


def test_a_field_whose_own_value_or_choices_have_changed_shows_what_fits(page_of_reports):
    page = page_of_reports()

    def section(value, options, most):
        controls = [
            blocks.ChoiceControl("kind", "Kind", [(each, each) for each in options], "a"),
            blocks.CountControl("length", "Length", value, 1, most),
            blocks.ButtonControl("go", "Go"),
        ]
        return blocks.PageSection("one", "One", "", controls, [blocks.WordsBlock("x")])

    push(page, [section(5, "abc", 10)])
    page.select_option("[name=kind]", "c")
    page.fill("[name=length]", "7")
    push(page, [section(5, "acd", 20)])
    assert [page.input_value(f"[name={name}]") for name in ("kind", "length")] == ["c", "7"]
    push(page, [section(6, "ad", 20)])
    assert [page.input_value(f"[name={name}]") for name in ("kind", "length")] == ["a", "6"]


def test_more_than_the_box_may_hold_is_sent_to_be_refused(page_of_reports):
    page = page_of_reports()
    push(page, [many_prompts([])])
    assert page.get_attribute("[name=own]", "maxlength") == "50001"


def test_what_stands_below_the_progress_is_not_made_again(page_of_reports):
    page = page_of_reports()
    found = [blocks.TableBlock(["a"], [["b"]]), blocks.DetailsBlock("More", [blocks.WordsBlock("inside")])]
    section = blocks.PageSection("one", "One", "", [blocks.ButtonControl("go", "Go")], found)
    push(page, [section])
    page.click("summary")
    page.evaluate("window.before = [...document.querySelectorAll('.sv-blocks > *')]")
    push(page, [structs.replace(section, blocks=[blocks.progress(1, 2, "half"), *found])], busy="one")
    same = "before.every((node) => node.isConnected) && document.querySelector('details').open"
    assert page.evaluate(same)
    push(page, [section])
    assert page.evaluate(same)
    push(page, [structs.replace(section, blocks=[blocks.DetailsBlock("More", [blocks.WordsBlock("other")])])])
    assert page.evaluate("document.querySelector('details').open")
    assert page.inner_text("details .sv-words") == "other"


def test_the_arrow_keys_go_along_a_text(opened, report):
    page = opened(report)
    chosen(page, "agreement")
    page.focus(".sv-texts-line")
    walked = {"ArrowRight": 1, "PageUp": 1, "End": 63, "ArrowLeft": 62, "Home": 0}
    for key, place in walked.items():
        page.keyboard.press(key)
        assert page.evaluate(AT) == place, key
    assert facts(page)["token"] == made_text(0).tokens["text"][0]


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
    assert "Showing 200 of 3,000; search to find others." in shown(page, ".sv-texts > .sv-small")
    page.fill(".sv-texts-bar input", "story-2999 ")
    page.wait_for_function("document.querySelectorAll('.sv-texts-list option').length === 1")
    chosen(page, f"{100 * sum(made_text(2999, 3, NAMES[:1]).tokens['overlap']) / 3:.0f}\u00a0%")


def test_texts_from_outside_stay_texts(opened):
    found = pattern(3, id=HOSTILE, token=HOSTILE, before=HOSTILE)
    drafts = (replace(made_summary().drafts[0], patterns=(found,)),)
    columns = dict.fromkeys(("text", "most_likely_text"), [HOSTILE] * 3)
    text = made_text(1, 3, NAMES[:1], columns, id=HOSTILE, prompt=HOSTILE)
    page = opened(report_page(made_summary(target=HOSTILE, drafts=drafts, comparisons=()), [text]))
    chosen(page, "agreement")
    assert page.evaluate("document.querySelectorAll('img, main script').length") == 0
    assert "<img src=x" in "".join(shown(page, ".sv-texts-line"))
