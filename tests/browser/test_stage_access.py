"""Laws of access: axe-core finds nothing serious on the stage, whatever is open, in both themes and on a phone.

A filter and the spotlight of presenting dim on purpose and are not among the states.
"""

import pytest

from tests.browser.access import serious
from tests.browser.stage_page import PHONE, push, settle, shown, stages, whole
from tests.helpers import traces

LOADING = {"name": "loading", "message": "", "ahead": 0, "words": "loading", "progress": {"width": 40, "words": "40 %"}}
EVERYTHING_OPEN = """() => {
    document.querySelectorAll('[data-mode=final], [data-part=many]').forEach((node) => node.click());
    document.querySelectorAll('.sv-stage details:not(.sv-charts)').forEach((node) => { node.open = true; });
}"""

stage = pytest.fixture(stages)


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_serious_is_wrong_on_a_wide_page_with_charts_and_on_a_phone_with_its_sheet(stage, theme):
    page = stage(theme=theme, height=1500, reduced_motion="reduce")
    push(page, {"run": "first", "from": 0, "total": 0, "steps": [], "state": LOADING})
    assert serious(page) == []
    push(page, whole(traces.tree()))
    page.evaluate("hub.pin(0, '1')")
    settle(page)
    assert serious(page) == []
    page.evaluate(EVERYTHING_OPEN)
    page.evaluate("document.querySelector('.sv-charts').open = true")
    page.wait_for_function("document.querySelectorAll('.sv-plot').length === 5")
    page.evaluate("document.querySelector('.sv-charts').scrollIntoView()")
    page.wait_for_function("[...document.querySelectorAll('.sv-plot')].every((plot) => plot.data)")
    page.evaluate("document.querySelectorAll('.sv-chart-table').forEach((node) => { node.open = true; })")
    settle(page)
    assert serious(page) == []
    phone = stage(theme=theme, reduced_motion="reduce", **PHONE)
    push(phone, whole(traces.chain()))
    phone.tap('.sv-piece[data-step="4"][data-ref="1"]')
    phone.wait_for_selector(".sv-inspector", state="visible")
    settle(phone)
    assert serious(phone) == []


def test_everything_that_can_be_pressed_is_reached_by_tab(stage):
    page = stage()
    push(page, whole(traces.chain()))
    settle(page)
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.className + ' ' + (document.activeElement.dataset.do || '')"))
    words = " ".join(reached)
    for name in ("copy", "first", "toggle", "sv-mode", "sv-legend-entry", "sv-cell", "sv-text-scroll", "sv-pace"):
        assert name in words
    assert len(shown(page, ".sv-legend-entry")) == 6
