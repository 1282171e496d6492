"""Sharing as two people meet it: a link that is copied, opened, run and compared, and the files of the drawer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from playwright.sync_api import expect

from specviz.request import Request
from specviz.trace import Trace, read_trace
from specviz.trace.link import Link, decode, encode
from tests.browser.explore_page import (
    HOSTILE,
    PIECES,
    STATE,
    begin,
    choose_pace,
    open_file,
    run_to_end,
    slide,
    wait_for_state,
    wait_until,
)
from tests.browser.windows import PHONE
from tests.helpers import tiny_server as pages
from tests.helpers import traces

pytestmark = pytest.mark.slow

LINE = ".sv-shared"
FIELD = "#share .sv-share-link"
PINNED = "specvizPage.hub().pinned"
CLOSED = "!document.documentElement.hasAttribute('data-sv-share')"
NO_CLIPBOARD = "Object.defineProperty(navigator, 'clipboard', {value: undefined}); document.execCommand = () => false;"
AWAY = """() => {
  const ask = window.fetch;
  window.away = true;
  window.fetch = (url, ...rest) => (
   window.away && String(url).includes('component_server') ? Promise.reject(new TypeError('away')) : ask(url, ...rest));
}"""
LARGEST = "document.documentElement.scrollWidth"


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    """With a recorded run for first visits, which somebody with a link must not see."""
    with pages.served(tmp_path_factory.mktemp("models"), traces.chain(), max_new_tokens=32) as served:
        yield served


@pytest.fixture
def arrive(open_page, app):
    """Opens a link as somebody who was sent it, in a new browser or in the tab given: arrive(letters, page)."""

    def arrive(text, page=None, **context):
        if page is None:
            page = open_page(f"#run={text}", **context)
        else:
            page.goto("about:blank")
            page.goto(f"{app.address}/#run={text}")
        page.wait_for_selector(LINE)
        return page

    return arrive


def filled(page, prompt):
    page.wait_for_function("(text) => document.querySelector('#prompt textarea').value === text", arg=prompt)


def share(page):
    page.click("#share-open")
    page.wait_for_selector("#share a[data-file=trace]")


def shared(page):
    """The link that the drawer shows, without what stands before it."""
    share(page)
    page.wait_for_function(f"document.querySelector('{FIELD}').value.includes('#run=')")
    return page.input_value(FIELD).split("#run=")[1]


def current(app):
    return app.page.registry.current(next(reversed(app.page.registry._current)))


def follow(page, request):
    """Puts a link into the address of an open page."""
    page.evaluate("(text) => { location.hash = `run=${text}`; }", encode(Link(request)))


def state_is(page, state):
    page.wait_for_selector(f"{LINE}[data-state={state}]")
    return page.inner_text(f"{LINE} p")


def test_a_link_leads_another_person_to_the_same_run(open_page, arrive, app):
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    run_to_end(page)
    page.click(".sv-cell.sv-is-rejected >> nth=1")
    text = shared(page)
    page.click("#share .sv-share-copy")
    page.wait_for_selector(".sv-share-done:has-text('Copied')")
    assert page.evaluate("navigator.clipboard.readText()") == f"{app.address}/#run={text}"
    assert decode(text).digest, "the text is known to the link"

    friend = arrive(text, viewport=PHONE, color_scheme="dark", has_touch=True)
    assert "A shared run: press Run to see it" in state_is(friend, "ready")
    assert friend.evaluate(STATE) is None
    assert friend.query_selector(".sv-text .sv-piece") is None, "neither a run nor the recorded one"
    assert app.page.registry.num_running() == 0
    friend.click("#fold")
    choose_pace(friend, "full")
    friend.click("#run")
    assert "The same text as the shared run" in state_is(friend, "same")
    friend.wait_for_function(f"{PINNED}?.step === {page.evaluate(PINNED)['step']}")
    assert friend.evaluate(PINNED) == page.evaluate(PINNED)
    assert friend.evaluate(PIECES) == page.evaluate(PIECES)
    assert friend.evaluate(LARGEST) == PHONE["width"]

    friend.reload()
    assert "The same text as the shared run" in state_is(friend, "same")
    box = friend.locator(".sv-shared-close").bounding_box()
    assert box["height"] >= 44
    assert box["width"] >= 44
    friend.click(".sv-inspector [data-part=close]")
    share(friend)
    assert friend.evaluate(LARGEST) == PHONE["width"]
    for link in friend.query_selector_all("#share a, #share .sv-share-copy, #share .sv-share-link"):
        assert link.bounding_box()["height"] >= 44


def test_a_link_wins_over_what_is_remembered_and_its_values_are_exact(open_page, arrive, app):
    page = open_page()
    slide(page, "k", 7)
    page.fill("#prompt textarea", "Ben said")
    page.press("#prompt textarea", "Tab")
    page.wait_for_function("localStorage.getItem('specviz-fields')?.includes('Ben said')")
    wide = {"k": 32, "temperature": 2.73, "top_k": 1_000, "top_p": 0.913, "seed": 2**53 - 1, "max_new_tokens": 20}
    own = {"prompt": "The fox, wide", "rule": "speculative_sampling"}
    asked = Request.from_dict({**app.page.first.to_dict(), **own, **wide})
    arrive(encode(Link(asked)), page)
    assert page.input_value("#prompt textarea") == "The fox, wide"
    assert page.input_value("#k input[type=number]") == "32"
    run_to_end(page)
    made = current(app).run.request
    assert {name: made.to_dict()[name] for name in wide} == wide
    assert "The shared run was made here" in state_is(page, "unknown")


def test_a_run_with_other_settings_is_not_taken_for_the_shared_one(page, arrive, app):
    run_to_end(page)
    text = shared(page)
    page.click("#share-open")
    arrive(text, page)
    state_is(page, "same")
    slide(page, "k", 2)
    page.click("#run")
    assert "differs from the shared one" in state_is(page, "other")
    wait_for_state(page, "finished")
    page.click(".sv-shared-again")
    page.wait_for_function("document.querySelector('#k input').value === '4'")
    assert "press Run" in state_is(page, "ready")
    run_to_end(page)
    state_is(page, "same")
    page.click(".sv-shared-close")
    assert page.query_selector(LINE) is None
    assert "#run" not in page.url
    page.reload()
    page.wait_for_function(f"{STATE} === 'finished'")
    assert page.query_selector(LINE) is None


def test_another_text_drops_the_selection(page, arrive, app):
    request = replace(app.page.first, rule="speculative_sampling")
    arrive(encode(Link(request, (2, "0"), 20, "0123456789ab")), page)
    run_to_end(page)
    assert "another text" in state_is(page, "differs")
    assert "selection was dropped" in state_is(page, "differs")
    assert page.evaluate(PINNED) != {"step": 2, "ref": "0"}


def test_hostile_links_stay_text_or_are_refused_in_words(arrive, app):
    page = arrive(f"{HOSTILE}{'A' * 100_000}")
    assert "cannot be used here" in state_is(page, "refused")
    follow(page, replace(app.page.first, target="owner/not-offered"))
    page.wait_for_selector(f"{LINE}:has-text('owner/not-offered')")
    assert page.input_value("#prompt textarea") == app.page.first.prompt
    follow(page, replace(app.page.first, prompt=HOSTILE))
    filled(page, HOSTILE)
    run_to_end(page)
    state_is(page, "unknown")
    assert HOSTILE[:40] in page.inner_text(".sv-text .sv-prompt")
    assert page.evaluate("window.__pwned") is None
    assert page.query_selector("#stage img, #stage script, #share img") is None


def test_a_run_that_is_going_on_is_left_alone_by_a_link(page, app):
    begin(page)
    run = current(app).id
    prompt = current(app).run.request.prompt
    page.evaluate(
        "(text) => { location.hash = `run=${text}`; }", encode(Link(replace(app.page.first, prompt="Another")))
    )
    assert "press Run" in state_is(page, "ready")
    filled(page, "Another")
    assert page.evaluate(STATE) in ("running", "finished")
    assert current(app).id == run
    assert prompt == page.inner_text(".sv-text .sv-prompt") != "Another"


def test_where_the_clipboard_is_refused_the_link_can_be_copied_by_hand(page):
    page.evaluate(NO_CLIPBOARD)
    run_to_end(page)
    shared(page)
    page.click("#share .sv-share-copy")
    page.wait_for_selector(".sv-share-done:has-text('the link is marked')")
    marked = "(field) => field.value.slice(field.selectionStart, field.selectionEnd) === field.value"
    assert page.eval_on_selector(FIELD, marked)
    assert page.evaluate("document.activeElement.className") == "sv-share-link"


def test_the_drawer_follows_the_run_and_what_is_selected_in_it(page, app):
    page.click("#step")
    wait_for_state(page, "paused")
    first = decode(shared(page))
    assert first.num_tokens == len(current(app).trace.tokens)
    before = page.input_value(FIELD)
    page.evaluate("specvizPage.hub().pin(0, 'last')")
    expect(page.locator(FIELD)).not_to_have_value(before)
    assert decode(page.input_value(FIELD).split("#run=")[1]).selection == (0, "last")
    page.keyboard.press("Escape")
    page.wait_for_function(CLOSED)
    slide(page, "k", 2)
    wait_until(page, lambda: current(app).run.controls.settings.num_speculative_tokens == 2)
    choose_pace(page, "full")
    page.click("#resume")
    wait_for_state(page, "finished")
    share(page)
    page.wait_for_selector(".sv-share-words:has-text('settings changed')")
    names = page.eval_on_selector_all("#share a[data-file]", "all => all.map((one) => one.dataset.file)")
    assert names == ["page", "page-small", "trace", "tokens", "steps"]
    with page.expect_download() as download:
        page.click("#share a[data-file=trace]")
    with open(download.value.path(), "rb") as file:
        assert list(read_trace(file.read()).events()) == list(current(app).trace.events())


def test_a_server_that_is_away_and_a_run_that_is_gone_are_told_apart(page, app):
    page.click("#step")
    wait_for_state(page, "paused")
    page.evaluate(AWAY)
    page.click("#share-open")
    page.wait_for_selector(".sv-share-words:has-text('The server does not answer')")
    assert page.query_selector("#share a[data-file]") is None
    page.evaluate("window.away = false")
    page.keyboard.press("Escape")
    app.page.registry._views.clear()
    page.click("#share-open")
    page.wait_for_selector(".sv-share-words:has-text('gone from the server')")
    app.page.registry._current.clear()


def test_an_opened_run_that_cannot_be_made_here_is_shared_as_files(page, tmp_path):
    trace = traces.chain()
    header = type(trace.header).from_dict(
        trace.header.to_dict() | {"request": {"target": HOSTILE, "prompt": "The fox", "method": "draft_model"}}
    )
    open_file(page, tmp_path, Trace([header, *list(trace.events())[1:]]))
    share(page)
    page.wait_for_selector(".sv-share-words:has-text('No link leads to this run')")
    assert not page.is_visible(FIELD)
    assert page.evaluate("window.__pwned") is None
