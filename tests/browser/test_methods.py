"""Choosing a method and a rule on the real page: the lists, the help beside them, live changes, a phone, a reload."""

from __future__ import annotations

import pytest

from specviz.drafters import METHODS
from tests.browser.explore_page import begin, choose, saved, stop
from tests.browser.page_memory import reload
from tests.browser.windows import PHONE
from tests.helpers import tiny_server as pages
from tests.helpers.made_up_methods import MADE_UP

pytestmark = pytest.mark.slow

OPTIONS = "all => all.map((one) => one.getAttribute('aria-label'))"
HEADING = """(all) => all.map((one) => getComputedStyle(one, '::before').content)
  .findIndex((words) => words.includes('More methods'))"""
FIRST = ("draft_model", "prompt_lookup", "early_exit")


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    """As the other tests' page, with made-up methods beside the real ones."""
    with pytest.MonkeyPatch.context() as patch:
        for method in MADE_UP:
            patch.setitem(METHODS, method.name, method)
        with pages.served(tmp_path_factory.mktemp("models"), max_new_tokens=48) as served:
            yield served


def open_drawer(page):
    if not page.is_visible("#more"):
        page.click("#fold button")
    page.click("#more")
    page.wait_for_selector("#help p")


@pytest.mark.parametrize("size", [{}, {"viewport": PHONE, "has_touch": True}])
def test_the_list_of_methods_has_two_groups(open_page, size):
    page = open_page(**size)
    if not page.is_visible("#method"):
        page.click("#fold button")
    page.click("#method input")
    names = page.eval_on_selector_all("#method [role=option]", OPTIONS)
    assert names[:2] == ["Draft model", "Prompt lookup"]
    assert len(names) == len(METHODS) - 1  # no tiny target has MTP modules
    assert page.eval_on_selector_all("#method [role=option]", HEADING) == sum(name in METHODS for name in FIRST)
    assert page.evaluate("document.documentElement.scrollWidth") == page.viewport_size["width"]


def test_a_click_on_the_heading_chooses_nothing(page):
    open_drawer(page)
    page.click("#method input")
    place = page.eval_on_selector_all("#method [role=option]", HEADING)
    first = page.locator(f"#method [role=option][data-index='{place}']").bounding_box()
    page.mouse.click(first["x"] + 40, first["y"] - 12)
    page.wait_for_timeout(300)
    assert page.input_value("#method input") == "Draft model"


def test_escape_closes_the_open_list_which_opens_again_and_only_then_the_drawer(page):
    open_drawer(page)
    for _ in range(2):
        page.click("#method input")
        page.wait_for_selector("#method [role=option]")
        page.keyboard.press("Escape")
        page.wait_for_selector("#method [role=option]", state="detached")
        assert page.is_visible("#drawer")
    page.keyboard.press("Escape")
    page.wait_for_selector("#drawer", state="hidden")


def test_a_parameter_is_there_only_where_it_counts(page):
    open_drawer(page)
    assert page.query_selector("#param-draft_model-least_confidence") is None
    choose(page, "param-draft_model-k_policy", "until the draft is unsure")
    page.wait_for_selector("#param-draft_model-least_confidence")
    reload(page)
    page.wait_for_selector("#param-draft_model-least_confidence", state="attached")
    open_drawer(page)
    choose(page, "param-draft_model-k_policy", "always K")
    page.wait_for_selector("#param-draft_model-least_confidence", state="detached")


def test_the_rule_that_was_chosen_comes_back_with_a_method_that_can_use_it(page):
    open_drawer(page)
    choose(page, "rule", "Typical acceptance · lossy")
    page.wait_for_selector(".sv-help-badge:text-is('lossy')")
    choose(page, "method", "No draft")
    page.wait_for_selector("#rule", state="detached")
    page.wait_for_selector(".sv-help-rule", state="detached")
    choose(page, "method", "Draft model")
    page.wait_for_selector("#rule")
    page.wait_for_selector(".sv-help-badge:text-is('lossy')")
    assert page.input_value("#rule input") == "Typical acceptance · lossy"


def test_on_a_phone_fingers_hit_and_the_folded_line_begins_with_the_prompt_and_says_lossy(open_page):
    page = open_page(viewport=PHONE, has_touch=True)
    line = "document.querySelector('.sv-setup-line').innerText"
    prompt = page.input_value("#prompt textarea").split()
    assert len(prompt) > 4
    begin = f"“{' '.join(prompt[:4])}…”"
    page.wait_for_function(f"{line}.startsWith('{begin} · Draft model · tiny-draft · K ')")
    open_drawer(page)
    hit = "#help a, #drawer input[type=range], #setup input[type=range], #drawer input[type=checkbox]"
    heights = page.eval_on_selector_all(hit, "(all) => all.map((one) => one.getBoundingClientRect().height)")
    assert min(heights) >= 24
    choose(page, "rule", "Typical acceptance · lossy")
    page.wait_for_function(f"{line}.startsWith('{begin} · Draft model · lossy · tiny-draft · K ')")
    page.keyboard.press("Escape")
    page.wait_for_selector("#drawer", state="hidden")
    if not page.is_visible("#method"):
        page.click("#fold button")
    choose(page, "method", "Deep")
    page.wait_for_function(f"{line}.startsWith('{begin} · Deep · lossy · temperature ')")
    if not page.is_visible("#prompt"):
        page.click("#fold button")
    page.fill("#prompt textarea", " Two \n words ")
    page.wait_for_function(f"{line}.startsWith('“Two words” · Deep · ')")
    names = page.eval_on_selector_all("#actions button", "(all) => all.map((one) => one.innerText.trim())")
    assert len(set(names)) == len(names)


def test_the_value_of_a_list_ends_before_its_arrow(page):
    open_drawer(page)
    choose(page, "method", "Token tree")
    page.wait_for_selector("#param-tree-children")
    value, arrow = (page.locator(f"#param-tree-children {part}").bounding_box() for part in ("input", ".icon-wrap"))
    assert value["x"] + value["width"] <= arrow["x"]


def test_the_help_says_what_the_method_and_the_rule_do(page):
    open_drawer(page)
    help_ = page.inner_text("#help")
    assert METHODS["draft_model"].summary in help_
    assert METHODS["draft_model"].caution in help_
    assert page.get_attribute("#help a", "href") == "https://arxiv.org/abs/2211.17192"
    assert page.get_attribute("#help a", "rel") == "noopener noreferrer"
    assert page.inner_text(".sv-help-badge") == "exact"
    choose(page, "rule", "Lenience · lossy")
    page.wait_for_selector(".sv-help-badge:text-is('lossy')")
    assert "not distributed as if" in page.inner_text("#help")


def test_controls_that_do_nothing_are_not_there(page):
    open_drawer(page)
    choose(page, "method", "Deep")
    page.wait_for_selector("#param-deep-longest")
    page.wait_for_selector("#k", state="detached")
    assert page.query_selector("#draft") is None
    choose(page, "method", "Everything")
    for name in ("width", "least", "way", "stages", "heads"):
        page.wait_for_selector(f"#param-everything-{name}")
    page.wait_for_selector("#rule", state="detached")
    assert page.inner_text(".sv-help-badge") == "lossy"


def test_the_rule_changes_while_tokens_flow(page):
    begin(page)
    open_drawer(page)
    choose(page, "rule", "Typical acceptance · lossy")
    page.wait_for_selector(".sv-chip-lossy")
    stop(page)
    steps = saved(page).steps
    rules = [step.settings.rule for step in steps]
    assert (rules[0], rules[-1]) == ("speculative_sampling", "typical")
    assert next(step.changed for step in steps if step.changed) == ("rule",)


def test_a_method_takes_its_rule_with_it_while_tokens_flow(page):
    open_drawer(page)
    choose(page, "rule", "Block verification · exact")
    begin(page)
    choose(page, "method", "Deep")
    page.wait_for_selector("#param-deep-longest")
    page.wait_for_function("document.querySelector('#rule input').value.startsWith('Speculative')")
    page.wait_for_selector(".sv-change-words")
    stop(page)
    assert page.query_selector(".toast-body") is None


def test_method_rule_and_parameters_are_as_they_were_left(page):
    open_drawer(page)
    choose(page, "method", "Prompt lookup")
    choose(page, "rule", "Ensemble · lossy")
    field = "#param-prompt_lookup-max_ngram input[type=number]"
    page.fill(field, "7")
    page.press(field, "Tab")
    page.wait_for_function("JSON.parse(localStorage.getItem('specviz-fields'))['prompt_lookup.max_ngram'] === 7")
    reload(page)
    page.wait_for_function("document.querySelector('#method input').value === 'Prompt lookup'")
    page.wait_for_function("document.querySelector('#rule input').value === 'Ensemble · lossy'")
    page.wait_for_selector(".sv-help-badge:text-is('lossy')", state="attached")
    page.wait_for_selector(field, state="attached")
    assert page.input_value(field) == "7"
