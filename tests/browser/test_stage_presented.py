"""Presenting the stage before a room, in a browser: enlarged, whole, and a rule for the step that is explained."""

import pytest

from tests.browser.stage_page import push, settle, shown, stages, whole
from tests.helpers import traces

pytestmark = pytest.mark.slow

stage = pytest.fixture(stages)

PRESENT = "document.documentElement.toggleAttribute('data-sv-present')"
RULE = "getComputedStyle(node).boxShadow !== 'none'"
SIZE = "(node) => parseFloat(getComputedStyle(node).fontSize)"


def test_presenting_enlarges_and_the_current_step_alone_has_a_rule(stage):
    page, message = stage(height=820), whole(traces.chain())
    push(page, message)
    settle(page)
    large = (".sv-text-scroll", ".sv-title", ".sv-sentence", ".sv-cell", ".sv-tile dd")
    before = [shown(page, selector, SIZE)[0] for selector in large]
    page.evaluate(PRESENT)
    settle(page)
    for selector, size in zip(large, before, strict=True):
        assert shown(page, selector, SIZE)[0] >= 1.2 * size
    where = f"(node) => [{RULE}, node.dataset.step]"
    assert {step for has_rule, step in shown(page, ".sv-piece", where) if has_rule} == {"1"}  # what is explained
    assert set(shown(page, ".sv-piece, .sv-row, .sv-prompt", "(node) => getComputedStyle(node).opacity")) == {"1"}
    page.evaluate("hub.back(); hub.forward()")
    assert {step for has_rule, step in shown(page, ".sv-piece", where) if has_rule} == {"6"}
    page.click('.sv-cell[data-step="4"][data-ref="0"]')
    assert {step for has_rule, step in shown(page, ".sv-piece", where) if has_rule} == {"4"}
    rows = f"(node) => [{RULE}, node.querySelector('.sv-step-number').textContent]"
    assert [number for has_rule, number in shown(page, ".sv-row", rows) if has_rule] == ["5"]
    page.evaluate("hub.forward()")
    page.evaluate("hub.seek(2)")
    assert {step for has_rule, step in shown(page, ".sv-piece", where) if has_rule} == {"1"}


@pytest.mark.parametrize(("width", "height"), [(1366, 768), (1920, 1080)])
def test_presenting_needs_no_scrolling_and_cuts_nothing_off(stage, width, height):
    page = stage(width=width, height=height + 52)  # the setup row is hidden then
    page.evaluate(PRESENT)
    for make in (traces.chain, traces.tree):
        push(page, whole(make(), run=make.__name__))
        settle(page)
        assert page.evaluate("document.documentElement.scrollHeight <= innerHeight")
        parts = (".sv-top", ".sv-player", ".sv-lanes", *([".sv-inspector"] if make is traces.chain else []))
        for selector in parts:
            assert page.eval_on_selector(selector, "(node) => node.scrollHeight <= node.clientHeight + 1"), selector
        assert not page.is_visible(".sv-below")


def test_the_text_stays_at_its_end_when_it_is_enlarged(stage):
    page = stage()
    push(page, whole(traces.long(40)))
    page.evaluate("hub.back(); hub.forward()")  # to its end
    settle(page)
    page.evaluate(PRESENT)
    settle(page)
    text = "document.querySelector('.sv-text-scroll')"
    page.wait_for_function(f"(({text}).scrollHeight - {text}.scrollTop - {text}.clientHeight) < 2")
