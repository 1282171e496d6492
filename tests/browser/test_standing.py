"""While a recorded run stands, the bar says how it was made; a change dims the stage, and Run names it."""

import json

import pytest
from playwright.sync_api import expect

from specviz.trace.shipped import shipped_trace
from tests.browser.explore_page import begin, choose, run_to_end, slide, stop, wait_for_state

DIM = "document.documentElement.hasAttribute('data-sv-changed')"


def stands(page, name):
    """The run is on the stage and its settings are in the fields."""
    page.wait_for_function(f"specvizPage.hub().run === 'shipped:{name}'")
    page.wait_for_function(f"JSON.parse(sessionStorage.getItem('specviz-made') || '{{}}').run === 'shipped:{name}'")


@pytest.fixture
def page(open_page):
    page = open_page("?run=k-8")
    stands(page, "k-8")
    return page


def test_the_bar_says_how_the_recorded_run_was_made_and_run_names_the_first_change(page):
    run, made = page.locator("#run"), shipped_trace("k-8")
    expect(page.locator("#k input[type=number]")).to_have_value("8")
    assert page.input_value("#prompt textarea") == made.header.request["prompt"]
    assert page.input_value("#target input") == made.steps[-1].settings.target
    expect(run).to_have_text("Run")
    slide(page, "k", 3)
    expect(run).to_have_text("Run with K 3")
    page.wait_for_function(DIM)
    slide(page, "temperature", 0.5)
    expect(run).to_have_text("Run with these settings")
    slide(page, "temperature", 1)
    slide(page, "k", 8)
    expect(run).to_have_text("Run")
    assert not page.evaluate(DIM)


def test_another_recorded_run_brings_its_own_settings(page):
    page.click("#library-open")
    page.click("#library-panel [data-id='shipped:prompt-lookup'] button:text-is('Open')")
    stands(page, "prompt-lookup")
    assert page.input_value("#method input") == "Prompt lookup"
    assert float(page.input_value("#temperature input[type=number]")) == 0
    expect(page.locator("#run")).to_have_text("Run")
    choose(page, "method", "Draft model")
    expect(page.locator("#run")).to_have_text("Run with method Draft model")


def test_no_words_of_run_move_the_slider_that_changes_them(page):
    places = {}
    for k, temperature, words in ((8, 1, "Run"), (3, 1, "Run with K 3"), (3, 0.5, "Run with these settings")):
        slide(page, "k", k)
        slide(page, "temperature", temperature)
        expect(page.locator("#run")).to_have_text(words)
        for width in (1366, 1024):
            for is_simple in (False, True):
                page.set_viewport_size({"width": width, "height": 768})
                page.evaluate("(is) => document.documentElement.toggleAttribute('data-sv-simple', is)", is_simple)
                place = page.locator("#k input[type=range]").bounding_box()
                assert places.setdefault((width, is_simple), place) == place, words


def test_a_run_that_is_refused_leaves_what_was_typed_and_the_run_before_it_dimmed(open_page):
    page = open_page()
    run_to_end(page)
    before = page.evaluate("specvizPage.hub().run")
    slide(page, "k", 3)
    page.fill("#prompt textarea", "Twice upon a time")
    choose(page, "draft", "stranger")
    page.click("#run")
    page.wait_for_selector(".toast-body.error:has-text('stranger cannot draft')")
    wait_for_state(page, "finished")
    page.wait_for_function(f"specvizPage.hub().run === {json.dumps(before)}")
    page.wait_for_timeout(500)  # for what would put the settings of the run before into the fields
    assert page.input_value("#prompt textarea") == "Twice upon a time"
    assert page.input_value("#k input[type=number]") == "3"
    assert page.input_value("#draft input") == "stranger"
    expect(page.locator("#run")).to_have_text("Run with these settings")
    assert page.evaluate(DIM)


@pytest.mark.slow
def test_a_finished_run_that_nobody_changed_says_run_and_lacks_nothing(page):
    run_to_end(page)
    page.wait_for_timeout(500)
    expect(page.locator("#run")).to_have_text("Run")
    assert page.get_attribute("#run", "title") == ""


@pytest.mark.slow
def test_a_change_that_no_step_has_used_is_no_part_of_how_the_run_was_made(page):
    begin(page)
    page.click("#pause")
    wait_for_state(page, "paused")
    slide(page, "k", 3)
    stop(page)
    expect(page.locator("#run")).to_have_text("Run with K 3")
    page.wait_for_function(DIM)
    slide(page, "k", 8)
    page.wait_for_function(f"!{DIM}")
