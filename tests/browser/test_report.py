"""Pages of sections in Chromium: every kind of block, controls that keep what was set, work that can be stopped."""

import pytest
from msgspec import structs

from specviz.views import blocks
from tests.browser.access import serious
from tests.browser.report_page import push, reports
from tests.browser.stage_page import PHONE, settle, shown

pytestmark = pytest.mark.slow

report = pytest.fixture(reports)
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"
RULES = [["right", "63 %", "exact"], ["wrong", "63 %", blocks.TableCell("differs", tone="rejected")]]
FIGURE = {
    "data": [
        {"type": "scatter", "mode": "lines+markers", "name": "measured", "meta": {"status": "p"}, "x": [1, 2, 3],
         "y": [2.0, 2.5, 2.4], "line": {"color": "#000000"}, "marker": {"color": "#000000"}},
    ],
    "layout": {
        "template": {}, "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
        "xaxis": {"title": {"text": "K"}}, "yaxis": {"title": {"text": "tokens"}},
        "meta": {"title": "Tokens per call", "table": [["K", 0, "x"], ["tokens", 0, "y"]]},
    },
}  # fmt: skip


def cuts():
    """A text of six tokens in steps of one and of two."""
    one = blocks.TextDivision([1, 1, 2, 2], ["resampled", "resampled", "bonus", "bonus"], ["", "4", " calls"])
    two = blocks.TextDivision([1, 2, 3], ["resampled", "resampled", "bonus"], ["", "3", " calls"])
    return blocks.SegmentsBlock(["One", " day", HOSTILE, " a", " fox", "."], {1: one, 2: two}, 1)


def everything():
    """A section with a control and a block of every kind."""
    return blocks.PageSection(
        "all",
        "Everything",
        ["Kept with ", "63 %", " of all throws."],
        [
            blocks.ChoiceControl("rule", "Rule", [("Speculative sampling", "right"), (HOSTILE, "wrong")], "right"),
            blocks.CountControl("n", "Redraws", 5000, 100, 20000),
            blocks.ButtonControl("redraw", "Redraw", primary=True),
        ],
        [
            blocks.WordsBlock(["The draft gave ", HOSTILE, " 40 %."]),
            blocks.VerdictBlock("consistent", "no difference found, n = 5,000; one of 2 points would have shown"),
            blocks.VerdictBlock("differs", ["differs: ", "fox", " came too often"]),
            blocks.TableBlock(["rule", "acceptance", "verdict"], RULES, marked=1),
            blocks.BarsBlock(
                [
                    blocks.bar("fox", [("both", 40.0), ("shortfall", 20.0)], ["12 %", "13 %"], 61.0),
                    blocks.bar(HOSTILE, [("both", 10)], ["1 %", "1 %"]),
                ],
                heads=["seen", "distribution"],
                key=[("both", "both agree"), ("shortfall", "shortfall"), ("tick", "the law")],
            ),
            blocks.ChartBlock(FIGURE),
            cuts(),
            blocks.DownloadBlock("Save as JSON", "numbers.json", '{"k": 4}'),
            blocks.DetailsBlock("More", [blocks.WordsBlock("inside"), blocks.ChartBlock(FIGURE)]),
        ],
    )  # fmt: skip


@pytest.mark.parametrize("options", [{"theme": "light"}, {"theme": "dark", **PHONE}], ids=["desktop", "phone"])
def test_every_block_is_shown_fits_is_accessible_and_keeps_texts_from_outside_texts(report, options):
    page = report(**options)
    push(page, [everything()])
    page.wait_for_selector(".sv-plot .main-svg")
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]
    assert serious(page) == []
    assert page.evaluate("document.querySelectorAll('img, #host script').length") == 0
    for selector in (".sv-words .sv-word", ".sv-bars-table tbody tr:last-child th", ".sv-segment-token:nth-child(1)"):
        assert HOSTILE in shown(page, selector), selector


def test_a_button_sends_what_is_set_and_where_one_looks_and_nothing_out_of_bounds(report):
    page = report()
    section = everything()
    push(page, [section])
    page.select_option("[name=rule]", "wrong")
    page.fill("[name=n]", "7")
    page.click("[data-act=redraw]")
    assert page.evaluate("triggers") == []
    page.fill("[name=n]", "700")
    page.click("[data-act=redraw]")
    sent = {"section": "all", "do": "redraw", "values": {"rule": "wrong", "n": "700"}}
    assert page.evaluate("triggers") == [["act", {**sent, "place": {"run": "run", "step": 2, "ref": "1"}, "tab": None}]]
    assert page.is_disabled("[data-act=redraw]")
    push(page, [section])
    assert page.is_enabled("[data-act=redraw]")


def test_a_press_on_stop_counts_also_when_the_work_moves_on_meanwhile(report):
    page, section = report(), everything()
    push(page, [structs.replace(section, blocks=[blocks.progress(1, 4, "1 of 4"), *section.blocks])], busy="all")
    page.hover(".sv-job button")
    page.mouse.down()
    push(page, [structs.replace(section, blocks=[blocks.progress(2, 4, "2 of 4"), *section.blocks])], busy="all")
    assert page.inner_text(".sv-job-words") == "2 of 4"
    assert page.get_by_role("progressbar", name="2 of 4").get_attribute("aria-valuenow") == "50"
    page.mouse.up()
    assert page.evaluate("triggers") == [["halt", {}]]


def test_a_chart_is_a_table_too_and_follows_the_theme(report):
    page = report()
    push(page, [everything()])
    page.wait_for_selector(".sv-plot .main-svg")
    page.click(".sv-chart-table summary >> nth=0")
    settle(page)
    assert shown(page, ".sv-chart-table[open] tr") == ["Ktokens", "12", "22.5", "32.4"]
    colour = "getComputedStyle(document.querySelector('.sv-plot .lines path')).stroke"
    light = page.evaluate(colour)
    page.evaluate("document.body.className = 'dark'")
    page.wait_for_function(f"{colour} !== {light!r}")


def test_a_download_holds_exactly_the_text(report):
    page = report()
    push(page, [everything()])
    with page.expect_download() as waiting:
        page.click("text=Save as JSON")
    assert waiting.value.suggested_filename == "numbers.json"
    with open(waiting.value.path(), encoding="utf-8") as stream:
        assert stream.read() == '{"k": 4}'
