"""The simple view and all controls, counted alike; what changes a run is in reach wherever one looks."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from playwright.sync_api import expect

from specviz.trace.link import Link, encode
from tests.browser.access import serious
from tests.browser.counter import WATCH_SHIFTS, seen, shifts
from tests.browser.explore_page import (
    STATE,
    begin,
    choose,
    choose_unseen_pace,
    run_to_end,
    slide,
    wait_for_state,
    wait_for_steps,
)
from tests.browser.windows import DESKTOP
from tests.helpers import tiny_server as pages

PROJECTOR = {"width": 1920, "height": 1080}
SETUP = ["prompt", "draft", "k", "temperature", "run"]
NARROW = {"width": 320, "height": 640}
ROOT_WIDTH = "document.documentElement.scrollWidth"
IS_SIMPLE = "document.documentElement.hasAttribute('data-sv-simple')"
BUTTON = "#all-controls"
COMES_LAST = """addEventListener('DOMContentLoaded', () => new MutationObserver((changes, watch) => {
  const button = document.querySelector('#all-controls');
  if (!button) return;
  watch.disconnect();
  const { parentNode: bar, nextSibling: next } = button;
  button.remove();
  setTimeout(() => { bar.insertBefore(button, next); window.hasCome = true; }, 1500);
}).observe(document.body, { childList: true, subtree: true }));"""
"""Holds a button of the bar back until the rest of the page is there."""


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    with pages.served(tmp_path_factory.mktemp("models"), any_model=True, max_new_tokens=48) as served:
        yield served


def expect_simple(page, is_simple):
    page.wait_for_function(f"{IS_SIMPLE} === {str(is_simple).lower()}")
    expect(page.locator(BUTTON)).to_have_attribute("aria-expanded", str(not is_simple).lower())
    expect(page.locator("#method")).to_be_visible(visible=not is_simple)


@pytest.mark.slow
@pytest.mark.parametrize(("is_simple", "controls", "words", "sizes"), [(True, 25, 250, 5), (False, 48, 400, 5)])
def test_little_is_in_sight_and_nothing_jumps_before_during_and_after_a_run(
    open_page, is_simple, controls, words, sizes
):
    page = open_page(simple=is_simple, scripts=(WATCH_SHIFTS,))
    moments = [seen(page)]
    page.click("#run")
    wait_for_steps(page, 2)
    moments.append(seen(page))
    choose_unseen_pace(page, "full")
    wait_for_state(page, "finished")
    page.wait_for_timeout(300)
    moments.append(seen(page))
    for moment in moments:
        assert len(moment.controls) <= controls, moment.controls
        assert len(moment.words) <= words, moment.words
        assert len(moment.types) <= sizes, moment.types
    jumped = shifts(page)
    assert sum(by for by, _ in jumped) <= 0.02, jumped
    if is_simple:
        in_setup = page.eval_on_selector_all("#setup .block, #setup button", "(nodes) => nodes.map(({ id }) => id)")
        assert [name for name in moments[0].controls if name in in_setup] == SETUP


def test_all_controls_are_one_press_away_and_what_was_chosen_is_remembered(open_page):
    page = open_page(simple=True)
    expect_simple(page, True)
    page.focus(BUTTON)
    page.keyboard.press("Enter")
    expect_simple(page, False)
    page.reload()
    expect_simple(page, False)
    page.click("#more")
    page.click(BUTTON)
    expect_simple(page, True)
    page.wait_for_selector("#drawer", state="hidden")
    page.reload()
    expect_simple(page, True)


def test_a_button_that_comes_last_says_how_things_stand(open_page):
    page = open_page(simple=True, scripts=(COMES_LAST,))
    page.wait_for_function("window.hasCome")
    expect_simple(page, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "is_simple"),
    [({}, True), ({"temperature": 0.5, "seed": 9}, True), ({"top_k": 3}, False), ({"method": "prompt_lookup"}, False)],
)
def test_what_a_link_asks_for_comes_into_sight(open_page, app, changes, is_simple):
    page = open_page(f"#run={encode(Link(replace(app.page.first, prompt='Ben said', **changes)))}", simple=True)
    page.wait_for_function("document.querySelector('#prompt textarea').value === 'Ben said'")
    expect_simple(page, is_simple)


@pytest.mark.slow
def test_a_lesson_has_all_controls_and_gives_them_back(open_page):
    page = open_page(simple=True)
    page.evaluate("location.hash = 'lesson=why-slow'")
    page.wait_for_selector(".sv-lesson:not([hidden])")
    expect_simple(page, False)
    page.click(".sv-lesson-close")
    expect_simple(page, True)


@pytest.mark.slow
def test_an_own_prompt_takes_two_presses(open_page):
    page = open_page(simple=True)
    page.click("#prompt textarea")
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("Ben said")
    page.click("#run")
    wait_for_steps(page, 2)
    assert page.inner_text(".sv-text .sv-prompt") == "Ben said"


def in_window(page, name):
    box, window = page.locator(f"#{name}").bounding_box(), page.viewport_size
    return box["y"] >= 0 and box["y"] + box["height"] <= window["height"] and box["x"] + box["width"] <= window["width"]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["simple", "scrolled", "presented"])
def test_k_temperature_draft_and_target_of_a_run_are_changed_without_looking_for_them(open_page, where):
    page = open_page(simple=where == "simple")
    begin_simply(page)
    if where == "scrolled":
        page.click(".sv-charts summary")
        page.wait_for_selector(".sv-plot .plot-container")
        page.mouse.wheel(0, 5000)
        page.wait_for_function("scrollY > 300")
    if where == "presented":
        page.evaluate("specvizPage.present()")
    for name in ("k", "temperature", "draft", "target"):
        assert in_window(page, name), name
    page.click("#k input[type=range]")
    choose(page, "draft", "tiny-other")
    page.fill("#target input", "tiny-draft")
    page.keyboard.press("Enter")
    page.wait_for_function(
        """(wanted) => wanted.every((words) => specvizPage.hub().steps.some(
          ({ changes }) => changes.some((change) => change.startsWith(words))))""",
        arg=["K 4 → ", "draft tiny-draft → tiny-other", "target tiny-target → tiny-draft"],
    )
    assert page.locator(".sv-bar-changed").count() >= 1
    if where == "scrolled":
        named = "() => [...document.querySelectorAll('.sv-plot')].some(({ layout }) => layout?.shapes.some(IS))"
        page.wait_for_function(named.replace("IS", "({ label }) => label.text.includes('target tiny')"))
    page.evaluate("document.querySelector('#stop').click()")
    wait_for_state(page, "finished")


def begin_simply(page):
    slide(page, "max-tokens", 400)
    choose_unseen_pace(page, "slow")
    page.click("#run")
    wait_for_steps(page, 2)


@pytest.mark.slow
def test_the_method_is_chosen_beside_the_draft_model(page):
    method, draft = (page.locator(f"#{name}").bounding_box() for name in ("method", "draft"))
    assert method["y"] == draft["y"]
    assert 0 <= draft["x"] - method["x"] - method["width"] <= 16
    choose(page, "method", "Prompt lookup")
    page.wait_for_selector("#draft", state="hidden")


@pytest.mark.slow
def test_presented_on_a_projector_nothing_is_small_and_a_wide_lane_is_whole(open_page):
    page = open_page(viewport=PROJECTOR, scripts=(WATCH_SHIFTS,))
    slide(page, "k", 16)
    run_to_end(page)
    page.click("#present")
    page.wait_for_timeout(300)
    assert min(seen(page).types) >= 24
    for name in ("k", "temperature", "draft", "target", "run"):
        assert page.is_visible(f"#{name}"), name
    edges = "(nodes) => Math.max(...nodes.map((node) => node.getBoundingClientRect().right))"
    lanes = page.locator(".sv-lanes-body").bounding_box()
    assert page.eval_on_selector_all(".sv-lanes .sv-cell", edges) <= lanes["x"] + lanes["width"]
    assert page.eval_on_selector(".sv-lanes-body", "(node) => node.scrollWidth <= node.clientWidth")


@pytest.mark.slow
def test_presented_the_step_that_stands_out_is_the_one_that_is_explained(page):
    begin(page, "normal", steps=3)
    page.click("#present")
    step = "document.querySelector('{}')?.textContent"
    spot, explained = step.format(".sv-row.sv-now .sv-step-number"), step.format(".sv-where")
    same = f"{explained} === `step ${{{spot}}}`"
    for press in ("", "[data-do=back]", "[data-do=back]", "[data-do=forward]", ".sv-cell >> nth=0", "[data-do=last]"):
        if press:
            page.click(press)
        page.wait_for_function(same)
    page.evaluate("document.querySelector('#stop').click()")
    wait_for_state(page, "finished")


SIMPLY = "(is) => document.documentElement.toggleAttribute('data-sv-simple', is)"


@pytest.mark.slow
def test_at_320_pixels_nothing_scrolls_sideways(open_page):
    page = open_page(viewport=NARROW, has_touch=True, simple=True)
    assert page.evaluate(ROOT_WIDTH) == NARROW["width"]
    choose_unseen_pace(page, "full")
    page.click("#run")
    wait_for_state(page, "finished")
    page.click("#fold")
    for is_simple in (True, False):
        page.evaluate(SIMPLY, is_simple)
        for _ in range(2):
            assert page.evaluate(ROOT_WIDTH) == NARROW["width"], is_simple
            page.click("#fold")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_views_have_contrast_and_names(open_page, scheme):
    page = open_page(simple=True, color_scheme=scheme, reduced_motion="reduce")
    choose_unseen_pace(page, "full")
    page.click("#run")
    wait_for_state(page, "finished")
    for is_simple in (True, False):
        page.evaluate(SIMPLY, is_simple)
        assert serious(page) == [], is_simple


@pytest.mark.slow
@pytest.mark.parametrize("is_simple", [True, False])
def test_in_forced_colours_as_much_is_in_sight_and_every_button_has_an_edge(open_page, is_simple):
    plain, forced = (open_page(simple=is_simple, forced_colors=colours) for colours in ("none", "active"))
    for page in (plain, forced):
        page.wait_for_selector("#method input", state="attached")  # a busy machine mounts these late
        page.wait_for_selector("#pace input", state="attached")
    assert seen(forced).controls == seen(plain).controls
    edges = (
        "(nodes) => nodes.filter((node) => node.checkVisibility()).map((node) => getComputedStyle(node).borderTopStyle)"
    )
    assert set(forced.eval_on_selector_all("#bar > button, #actions > button", edges)) == {"solid"}
    assert forced.evaluate(STATE) is None


@pytest.mark.slow
def test_at_1366_pixels_no_words_of_the_axis_touch_and_the_inspectors_end_can_be_read(page):
    assert page.viewport_size == DESKTOP
    run_to_end(page)
    page.click(".sv-cell.sv-is-rejected")
    page.eval_on_selector(".sv-inspector", "(node) => node.scrollTo(0, node.scrollHeight)")
    numbers, host = (page.locator(name).bounding_box() for name in (".sv-look-numbers summary", ".sv-inspector"))
    assert numbers["y"] + numbers["height"] <= host["y"] + host["height"]
    ticks = page.eval_on_selector_all(
        ".sv-axis-words", "(nodes) => nodes.map((node) => node.getBoundingClientRect()).filter(({ width }) => width)"
    )
    assert all(one["right"] < other["left"] for one, other in pairwise(ticks))
