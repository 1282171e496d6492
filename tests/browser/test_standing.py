"""While a recorded run stands, the bar says how it was made; a change dims the stage, and Run names it."""

import pytest
from explore_page import choose, slide
from playwright.sync_api import expect

from specviz.trace.recorded import recorded_trace

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
    run, made = page.locator("#run"), recorded_trace("k-8")
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
    page.click("#shelf [data-id='shipped:prompt-lookup'] button:text-is('Open')")
    stands(page, "prompt-lookup")
    assert page.input_value("#method input") == "Prompt lookup"
    assert float(page.input_value("#temperature input[type=number]")) == 0
    expect(page.locator("#run")).to_have_text("Run")
    choose(page, "method", "Draft model")
    expect(page.locator("#run")).to_have_text("Run with method Draft model")
