"""What a page finds when it is opened again: its run, its fields, and at the first visit a recorded run."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.explore_page import (
    PIECES,
    STATE,
    begin,
    choose,
    choose_pace,
    run_to_end,
    saved,
    slide,
    stop,
    wait_for_state,
)
from tests.browser.page_memory import reload
from tests.helpers import tiny_server as pages
from tests.helpers import traces

RUN = "sessionStorage.getItem('specviz-run')"


def shown_steps(page):
    return {piece["step"] for piece in page.evaluate(PIECES)}


@pytest.mark.slow
def test_a_reload_during_a_run_goes_on_with_it_and_loses_no_step(page):
    begin(page, steps=3)
    run = page.evaluate(RUN)
    reload(page)
    wait_for_state(page, "running")
    assert page.evaluate(RUN) == run
    choose_pace(page, "full")
    wait_for_state(page, "finished")
    trace = saved(page)
    assert trace.footer.reason in ("length", "eos")
    assert shown_steps(page) == set(range(len(trace.steps)))


@pytest.mark.slow
def test_a_reload_finds_a_paused_run_and_can_step_on(page):
    page.click("#step")
    wait_for_state(page, "paused")
    reload(page)
    wait_for_state(page, "paused")
    page.click("#step")
    page.wait_for_function("document.querySelectorAll('.sv-step-bar').length === 2")
    stop(page)


@pytest.mark.slow
def test_a_reload_finds_what_was_found_on_a_page_of_sections(page):
    page.click("#pages [data-page=compare]")
    page.click("[data-section=two-runs] [data-act=show]")
    page.wait_for_selector("[data-section=two-runs] .sv-side-by-side")
    reload(page)
    page.wait_for_selector("[data-section=two-runs] .sv-side-by-side")


def test_a_page_of_sections_that_does_not_come_says_what_it_waits_for(page):
    waiting = page.locator("#compare .sv-waiting")
    page.route("**/gradio_api/queue/**", lambda route: None)  # it never answers
    page.click("#pages [data-page=compare]")
    expect(waiting).to_have_text("Waiting for the server…")
    expect(waiting).to_be_visible()


@pytest.mark.slow
def test_a_reload_finds_a_finished_run(page):
    run_to_end(page)
    before = page.evaluate(PIECES)
    reload(page)
    wait_for_state(page, "finished")
    assert page.evaluate(PIECES) == before


@pytest.mark.slow
def test_a_run_that_went_with_the_server_is_said_to_be_gone_to_its_own_tab_alone(page, app):
    begin(page, steps=2)
    run = page.evaluate(RUN)
    app.page.registry._views.clear()  # as after a restart
    reload(page)
    page.wait_for_selector(".toast-body.warning:has-text('The run shown here is gone')")
    assert page.evaluate(f"localStorage.getItem('specviz-run') === '{run}'")
    other = page.context.new_page()
    other.goto(page.url)
    other.wait_for_function("window.specvizPage?.hub() && document.querySelector('#k input')")
    other.wait_for_timeout(1000)
    assert other.query_selector(".toast-body") is None


@pytest.mark.slow
def test_the_way_back_finds_the_run_again(page, app):
    run_to_end(page)
    before = page.evaluate(PIECES)
    page.goto(f"{app.address}/healthz")
    page.go_back()
    page.wait_for_function(f"{STATE} === 'finished'")
    assert page.evaluate(PIECES) == before


@pytest.mark.slow
def test_fields_are_as_they_were_left(page):
    slide(page, "k", 7)
    choose(page, "draft", "fable-draft-tiny")  # a draft of the recorded run's target
    choose_pace(page, "slow")
    page.fill("#prompt textarea", "Ben said")
    page.press("#prompt textarea", "Tab")
    page.wait_for_function("localStorage.getItem('specviz-fields')?.includes('Ben said')")
    reload(page)
    page.wait_for_function("document.querySelector('#prompt textarea').value === 'Ben said'")
    page.wait_for_function("document.querySelector('#k input').value === '7'")
    assert page.input_value("#draft input") == "fable-draft-tiny"
    assert page.is_checked("#pace input[value=slow]")


@pytest.mark.slow
def test_a_spoilt_memory_is_ignored(page):
    for fields in ('{"k": 99}', "[1", '{"__proto__": {"k": 1}}', "null"):
        page.evaluate("(value) => localStorage.setItem('specviz-fields', value)", fields)
        page.evaluate("sessionStorage.setItem('specviz-run', '<b>')")
        reload(page)
        run_to_end(page)
        assert page.query_selector(".toast-body") is None, fields


@pytest.mark.slow
def test_two_tabs_do_not_disturb_each_other(page, open_page):
    begin(page, pace="slow", steps=2)
    run = page.evaluate(RUN)
    other = page.context.new_page()
    other.goto(page.url)
    other.wait_for_function("window.specvizPage?.hub() && document.querySelector('#k input')")
    run_to_end(other)
    assert page.evaluate(STATE) == "running"
    choose_pace(page, "full")
    wait_for_state(page, "finished")
    assert page.evaluate(RUN) == run != other.evaluate(RUN)
    assert saved(page).footer.reason in ("length", "eos")


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    """As the other tests' page, with a recorded run for first visits."""
    folder = tmp_path_factory.mktemp("models")
    with pages.served(folder, traces.chain(), max_new_tokens=48) as served:
        yield served


def test_a_first_visit_shows_a_recorded_run_and_a_second_does_too(open_page, app):
    page = open_page()
    page.wait_for_selector(".sv-opening:not([hidden])")
    assert app.page.registry.num_running() == 0
    run = page.evaluate(RUN)
    other = page.context.new_page()
    other.goto(app.address)
    other.wait_for_function(f"{RUN} !== null")
    assert other.evaluate(RUN) == run
    assert shown_steps(other) == set(range(len(traces.chain().steps))), "shown whole, not played"


@pytest.mark.slow
def test_run_pressed_during_the_first_replay_wins(open_page):
    page = open_page()
    page.wait_for_selector(".sv-opening:not([hidden])")
    run_to_end(page)
    assert shown_steps(page) == set(range(len(saved(page).steps)))
