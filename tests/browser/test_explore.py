"""Explore as a person meets it: the real page, real (tiny) models, a real browser."""

from __future__ import annotations

import gzip
import re
import time

import pytest
from playwright.sync_api import expect

from specviz.analysis.rounds import WORDS
from specviz.trace import Trace
from specviz.views.explore.speed import DOUBTS
from tests.browser.explore_page import (
    HOSTILE,
    PIECES,
    STATE,
    begin,
    choose,
    choose_pace,
    open_file,
    run_to_end,
    saved,
    slide,
    stop,
    wait_for_state,
    wait_for_steps,
)
from tests.browser.windows import DESKTOP, PATIENCE_MS, PHONE
from tests.helpers import traces

CELLS = """() => [...document.querySelectorAll('.sv-cell')].map((node) => ({
  step: Number(node.dataset.step), ref: node.dataset.ref,
  status: [...node.classList].find((name) => name.startsWith('sv-is-')).slice(6)}))"""


def test_every_mark_is_what_the_trace_says_and_the_first_screen_fits(page, app):
    run_to_end(page)
    trace = saved(page)
    pieces, cells = page.evaluate(PIECES), page.evaluate(CELLS)
    assert page.inner_text(".sv-text .sv-prompt") == app.page.first.prompt
    for step in trace.steps:
        kept = [(str(token.node), "accepted") for token in step.emitted if token.kind == "accepted"]
        last = [("last", token.kind) for token in step.emitted if token.kind != "accepted"]
        ending = (
            step.emitted[-1].node if step.truncated else None
        )  # what was judged after the end is no part of the text
        cut = [
            (str(node), "rejected")
            for node, token in enumerate(step.draft)
            if token.status == "rejected" and (ending is None or token.parent != ending)
        ]
        marks = [(piece["ref"], piece["status"]) for piece in pieces if piece["step"] == step.index]
        assert sorted(marks) == sorted(kept + last + cut)
        lane = [(cell["ref"], cell["status"]) for cell in cells if cell["step"] == step.index]
        drafted = [(str(node), token.status) for node, token in enumerate(step.draft)]
        assert not lane or lane == drafted + last
    assert len({cell["step"] for cell in cells}) >= 5
    box = page.locator(".sv-screen").bounding_box()
    assert box["x"] + box["width"] <= DESKTOP["width"]
    assert box["y"] + box["height"] <= DESKTOP["height"]


def test_k_moved_during_a_run_counts_from_the_next_step(page):
    begin(page)
    slide(page, "k", 2)
    page.wait_for_selector(".sv-sentence b:text-is('2')")
    stop(page)
    steps = saved(page).steps
    changed = next(step for step in steps if step.changed)
    assert changed.changed == ("k",)
    assert [step.settings.k for step in steps] == [4] * changed.index + [2] * (len(steps) - changed.index)
    assert changed.index >= 1


@pytest.mark.slow
def test_another_draft_model_takes_over_during_a_run(page):
    begin(page)
    choose(page, "draft", "tiny-other")
    page.wait_for_selector(".sv-change-words:has-text('tiny-other')")
    stop(page)
    drafts = [step.settings.draft_model for step in saved(page).steps]
    assert (drafts[0], drafts[-1]) == ("tiny-draft", "tiny-other")


@pytest.mark.slow
def test_a_draft_model_that_does_not_fit_is_refused_and_the_run_goes_on(page):
    begin(page)
    choose(page, "draft", "stranger")
    page.wait_for_selector(".toast-body.warning")
    page.wait_for_function("document.querySelector('#draft input').value === 'tiny-draft'")
    choose_pace(page, "full")
    wait_for_state(page, "finished")
    assert saved(page).footer.reason in ("length", "eos")


@pytest.mark.slow
def test_a_run_that_cannot_begin_leaves_the_one_before_it_on_the_stage(page):
    run_to_end(page)
    before = page.evaluate("[specvizPage.hub().run, specvizPage.hub().steps.length]")
    choose(page, "draft", "stranger")
    page.click("#run")
    page.wait_for_selector(".toast-body.error:has-text('stranger cannot draft')")
    page.wait_for_function("(before) => specvizPage.hub().run === before", arg=before[0])
    assert page.evaluate("[specvizPage.hub().run, specvizPage.hub().steps.length]") == before
    choose(page, "draft", "tiny-other")
    run_to_end(page)
    assert page.evaluate("specvizPage.hub().run") != before[0]


@pytest.mark.slow
def test_the_pace_can_be_changed_during_a_run(page):
    begin(page, pace="slow", steps=1)
    time.sleep(1.5)
    assert len({piece["step"] for piece in page.evaluate(PIECES)}) <= 4, "one step a second"
    choose_pace(page, "full")
    wait_for_state(page, "finished")
    assert saved(page).footer.reason in ("length", "eos")


@pytest.mark.slow
def test_pause_holds_the_run_and_resume_goes_on_with_it(page):
    begin(page)
    page.click("#pause")
    wait_for_state(page, "paused")
    held = page.evaluate(PIECES)
    time.sleep(0.8)
    assert page.evaluate(PIECES) == held
    choose_pace(page, "full")
    page.click("#resume")
    wait_for_state(page, "finished")
    assert page.evaluate(PIECES)[: len(held)] == held


@pytest.mark.slow
def test_step_makes_one_real_step_at_a_time(page):
    for count in (1, 2, 3):
        page.click("#step")
        wait_for_steps(page, count)
        wait_for_state(page, "paused")
        assert {piece["step"] for piece in page.evaluate(PIECES)} == set(range(count))


@pytest.mark.slow
def test_stop_ends_a_run_and_a_paused_one_and_keeps_what_there_is(page):
    begin(page)
    stop(page)
    assert saved(page).footer.reason == "stopped"
    assert page.is_enabled("#run")
    page.click("#step")
    wait_for_state(page, "paused")
    stop(page)
    assert saved(page).footer.reason == "stopped"


@pytest.mark.slow
def test_run_during_a_run_begins_anew_and_the_old_one_does_not_come_back(page, app):
    begin(page)
    old = app.page.registry.current(next(reversed(app.page.registry._current)))
    page.eval_on_selector(".sv-text .sv-piece", "node => { node.id = 'old'; }")
    page.click("#run")
    page.wait_for_selector("#old", state="detached")
    choose_pace(page, "full")
    wait_for_state(page, "finished")
    time.sleep(0.5)
    assert old.trace.footer.reason == "stopped"
    shown = {(piece["step"], piece["ref"]) for piece in page.evaluate(PIECES)}
    assert {step for step, _ in shown} == set(range(len(saved(page).steps)))


@pytest.mark.slow
def test_two_people_run_at_once_and_both_finish(open_page):
    pages = [open_page(), open_page()]
    for page in pages:
        choose_pace(page, "full")
        page.click("#run")
    for page in pages:
        wait_for_state(page, "finished")
    assert saved(pages[0]).steps[0].emitted == saved(pages[1]).steps[0].emitted, "one seed, one text"


@pytest.mark.slow
def test_a_closed_tab_ends_its_run(open_page, app):
    page = open_page()
    begin(page, pace="slow", steps=1)
    view = app.page.registry.current(next(reversed(app.page.registry._current)))
    view.grace_s = 0.5
    page.context.close()
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while view.is_live and time.monotonic() < deadline:
        time.sleep(0.05)
    assert view.trace.footer.reason == "stopped"


@pytest.mark.slow
def test_a_pinned_token_is_explained_with_the_traces_own_numbers(page):
    run_to_end(page)
    trace = saved(page)
    step = next(step for step in trace.steps if any(token.status == "rejected" for token in step.draft))
    node = next(node for node, token in enumerate(step.draft) if token.status == "rejected")
    page.click(f".sv-piece[data-step='{step.index}'][data-ref='{node}'] .sv-body")
    page.wait_for_selector(f".sv-where:has-text('step {step.index + 1}')")
    assert page.inner_text(".sv-pill") == "rejected"
    assert f"{step.draft[node].u:.2f}" in page.inner_text(".sv-title")


@pytest.mark.slow
def test_charts_fill_from_the_same_steps(page):
    run_to_end(page)
    page.click(".sv-charts summary")
    page.wait_for_selector(".sv-plot .plot-container")
    bars = page.evaluate("document.querySelector('.sv-plot').data[0].x.length")
    assert bars == len(saved(page).steps)


@pytest.mark.slow
def test_an_opened_trace_shows_the_same_marks_as_the_run_it_was_saved_from(open_page, tmp_path):
    first, second = open_page(), open_page()
    run_to_end(first)
    open_file(second, tmp_path, saved(first))
    assert second.evaluate(PIECES) == first.evaluate(PIECES)


def test_hostile_texts_stay_texts(page, tmp_path):
    trace = traces.hostile()
    header = type(trace.header).from_dict(
        trace.header.to_dict() | {"prompt": {"text": HOSTILE, "tokens": []}, "created": HOSTILE}
    )
    open_file(page, tmp_path, Trace([header, *list(trace.events())[1:]]))
    for cell in page.query_selector_all(".sv-cell")[:12]:
        cell.click()
    page.click(".sv-table summary")
    page.click(".sv-charts summary")
    page.wait_for_selector(".sv-plot .plot-container")
    assert HOSTILE[:40] in page.inner_text(".sv-text .sv-prompt")
    assert page.evaluate("window.__pwned") is None
    assert page.query_selector(".sv-stage img, .sv-stage script") is None


NO_TRACES = {
    "text": b"no trace",
    "hostile": f'{{"event":"{HOSTILE}"}}'.encode(),
    "cut off, packed": gzip.compress(b"{"),
}


def test_files_that_are_no_traces_are_refused_in_words(page, tmp_path):
    for name, content in NO_TRACES.items():
        path = tmp_path / f"{name}.jsonl"
        path.write_bytes(content)
        page.set_input_files("input[type=file]", path)
        page.wait_for_selector(".toast-body.error")
        assert page.query_selector(".toast-body img") is None
        page.click(".toast-body.error .toast-close")
        page.wait_for_selector(".toast-body.error", state="detached")
    assert page.evaluate("window.__pwned") is None


@pytest.mark.slow
def test_an_empty_prompt_is_refused_in_words_and_the_page_goes_on(page):
    page.fill("#prompt textarea", "")
    page.click("#run")
    page.wait_for_selector(".toast-body.error:has-text('the prompt is empty')")
    page.fill("#prompt textarea", "The fox")
    run_to_end(page)


def test_a_ready_prompt_is_put_into_the_field(page):
    titles = page.eval_on_selector_all("#picker optgroup:nth-of-type(2) option", "all => all.map((one) => one.value)")
    page.select_option("#picker select", titles[0])
    page.wait_for_function("document.querySelector('#prompt textarea').value.startsWith('def ')")


@pytest.mark.slow
def test_a_method_shows_its_own_fields_and_hides_what_it_does_not_use(page):
    page.click("#more")
    choose(page, "method", "Prompt lookup")
    page.wait_for_selector("#param-prompt_lookup-max_ngram", state="visible")
    page.wait_for_selector("#draft", state="detached")
    page.click("#more")
    run_to_end(page)
    assert page.evaluate(STATE) == "finished"


@pytest.mark.slow
def test_measure_tells_both_speeds_or_between_what_the_ratio_lies(page):
    """Which of the two is not for a test to say: it depends on what else the machine does."""
    slide(page, "temperature", 0.85)
    run_to_end(page)
    words = page.locator("[data-number=speed-words]")
    expect(words).to_contain_text("not measured yet")
    page.click("[data-do=measure]")
    expect(page.locator(".sv-measuring")).to_contain_text(re.compile(r"round \d of"), timeout=PATIENCE_MS)
    expect(page.locator(".sv-measuring")).to_be_hidden(timeout=2 * PATIENCE_MS)
    ratio, told = page.inner_text("[data-number=speed]"), words.inner_text()
    if "×" in ratio:
        assert re.search(r"[\d.]+\s→\s[\d.]+ tokens/s", told)
    else:
        assert told.startswith((*WORDS.values(), *DOUBTS.values())) or "no ratio: the measured runs wrote" in told


def test_a_phone_never_scrolls_sideways_and_run_stays_in_reach(open_page):
    page = open_page(viewport=PHONE, color_scheme="dark", has_touch=True)
    page.click("#fold")
    choose_pace(page, "full")
    page.click("#run")
    wait_for_state(page, "finished")
    page.evaluate("scrollTo(0, 1e6)")
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    for name in ("back", "run", "forward"):
        box = page.locator(f"#{name}").bounding_box()
        assert box["height"] >= 44
        assert box["y"] + box["height"] <= PHONE["height"]


@pytest.mark.slow
def test_the_theme_follows_the_person_and_is_remembered(open_page):
    page = open_page(color_scheme="dark")
    assert page.evaluate("document.body.classList.contains('dark')")
    page.click("#theme")
    page.reload()
    page.wait_for_function("window.specvizPage?.hub() && !document.body.classList.contains('dark')")
