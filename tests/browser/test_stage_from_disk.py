"""One run in one file, in Chromium from disk: every view works, nothing is asked of anybody, attacks stay texts."""

from pathlib import Path

import pytest

import specviz
from specviz.trace import Trace, load_trace
from specviz.trace.shipped import shipped_trace
from specviz.views.explore.feed import INCOMPLETE, Feed
from specviz.views.explore.run_file import stage_page
from tests.browser.access import serious
from tests.browser.stage_page import settle, shown
from tests.browser.windows import DESKTOP, PHONE
from tests.helpers import traces
from tests.helpers.hostile_trace import EVIL, evil_trace

pytestmark = pytest.mark.slow

DESK_LIGHT = {"viewport": DESKTOP, "color_scheme": "light"}
PHONE_DARK = {"viewport": PHONE, "color_scheme": "dark", "has_touch": True, "is_mobile": True}
PLACE = "(words) => document.querySelector('.sv-place').textContent === words"
OPEN_ALL = "document.querySelectorAll('.sv-below > details').forEach((node) => { node.open = true; })"


@pytest.fixture(scope="module")
def eagle():
    return stage_page(shipped_trace("eagle"))


def place(page):
    return shown(page, ".sv-where")[0]


@pytest.mark.parametrize("size", [DESK_LIGHT, PHONE_DARK], ids=["desktop light", "phone dark"])
def test_every_view_works_fits_and_is_accessible(opened, eagle, size):
    page, trace = opened(eagle, **size), shipped_trace("eagle")
    num_steps = len(trace.steps)
    page.wait_for_function(PLACE, arg=f"step {num_steps} of {num_steps}")
    settle(page)
    statuses = [token.status for step in trace.steps for token in step.draft]
    counts = dict(zip(shown(page, ".sv-legend-name"), shown(page, ".sv-count"), strict=True))
    assert counts["accepted"] == f"{statuses.count('accepted')}"
    assert counts["rejected"] == f"{statuses.count('rejected')}"
    steps = Feed.from_trace(trace, "x").since(0).steps
    marks = "(node) => [node.className.split(' ')[1].slice(6), node.dataset.ref]"
    assert shown(page, ".sv-text .sv-piece", marks) == [[kind, ref] for step in steps for _, kind, ref in step.pieces]
    assert page.locator(":is(.sv-loading, .sv-measure):visible").count() == 0
    page.evaluate(OPEN_ALL)
    page.locator(".sv-plot").first.scroll_into_view_if_needed()
    page.wait_for_selector(".sv-plot .main-svg")
    assert page.locator(".sv-table-body tr").count() > 10
    assert page.evaluate("document.documentElement.scrollWidth") <= size["viewport"]["width"]
    small = "(node) => node.getBoundingClientRect().height"
    least = 44 if size is PHONE_DARK else 24
    assert min(shown(page, ".sv-file-head button", small)) >= least
    assert serious(page) == []


def test_a_token_is_pinned_and_its_draft_explained_by_hand(opened, eagle):
    page = opened(eagle)
    page.click(".sv-text .sv-is-resampled >> nth=1")
    chosen = page.locator(".sv-text .sv-on")
    assert chosen.count() == 1
    assert place(page) == f"step {int(chosen.get_attribute('data-step')) + 1}"
    assert page.locator(".sv-probabilities-row").count() > 3
    page.click("[data-part=of-draft]")
    assert page.locator(".sv-made").inner_text()
    page.click("[data-part=of-token]")
    page.click(".sv-cell >> nth=0")
    assert page.locator(".sv-cell.sv-on").count() == 1
    page.click("[data-mode=final]")
    assert page.locator(".sv-text .sv-is-rejected:visible").count() == 0


def test_the_player_and_the_keys(opened, eagle):
    page, num_steps = opened(eagle), len(shipped_trace("eagle").steps)
    page.click("[data-do=back]")
    page.wait_for_function(PLACE, arg=f"step {num_steps - 1} of {num_steps}")
    page.mouse.move(2, 2)  # what the pointer is over would be looked at
    page.focus(".sv-text-scroll")
    page.keyboard.press("Home")
    assert place(page) == "step 1"
    page.keyboard.press("ArrowDown")
    assert place(page) == "step 2"
    page.select_option(".sv-pace", "fast")
    page.click("[data-do=first]")
    page.click("[data-do=toggle]")
    page.wait_for_function("() => parseInt(document.querySelector('.sv-place').textContent.slice(5)) >= 3")
    page.keyboard.press("p")
    assert page.get_attribute("#sv-present", "aria-pressed") == "true"
    assert not page.locator(".sv-below").is_visible()
    page.keyboard.press("Escape")  # the pinned token first, then the room
    page.keyboard.press("Escape")
    assert page.get_attribute("#sv-present", "aria-pressed") == "false"


def test_both_themes_by_the_system_and_by_the_button(opened, eagle):
    page = opened(eagle, color_scheme="dark")
    fill = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(fill)
    page.click("#sv-theme")
    assert page.get_attribute("#sv-theme", "aria-pressed") == "false"
    assert page.evaluate(fill) != dark
    assert serious(page) == []


def test_the_trace_is_saved_from_the_page(opened, eagle):
    page = opened(eagle)
    with page.expect_download() as download:
        page.click("#sv-save")
    assert download.value.suggested_filename.endswith("-eagle.jsonl")
    assert load_trace(download.value.path()) == shipped_trace("eagle")


@pytest.mark.parametrize("size", [DESK_LIGHT, PHONE_DARK], ids=["desktop", "phone"])
def test_the_selection_is_pinned_and_in_sight_and_opens_no_sheet(opened, size):
    trace = traces.long(450)
    page = opened(stage_page(trace, charts=False, selection=(2, "0")), **size)
    page.wait_for_function("() => document.querySelector('.sv-where').textContent === 'step 3'")
    assert shown(page, ".sv-place") == ["step 450 of 450"]
    on = "(node) => [node.dataset.step, node.dataset.ref]"
    assert shown(page, ".sv-text .sv-on", on) == [["2", "0"]]
    assert shown(page, ".sv-cell.sv-on", on) == [["2", "0"]]
    assert shown(page, ".sv-stage[data-sheet]") == []
    written = "[...document.querySelectorAll('.sv-text .sv-piece:not(.sv-is-rejected)')].length"
    assert page.evaluate(written) == len(trace.tokens)
    seen = """() => {
        const box = document.querySelector('.sv-text .sv-on').getBoundingClientRect();
        const view = document.querySelector('.sv-text-scroll').getBoundingClientRect();
        return box.top >= view.top && box.bottom <= view.bottom;
    }"""
    page.wait_for_function(seen)


def test_without_charts_there_is_no_fold_and_an_empty_run_is_no_error(opened):
    page = opened(stage_page(traces.empty(), charts=False))
    assert page.locator(".sv-charts").count() == 0
    assert not page.locator(".sv-invite").is_visible()
    assert page.locator(".sv-badge").inner_text() == "recorded run"


@pytest.mark.parametrize("make", [evil_trace, traces.hostile], ids=["every name", "token texts"])
def test_a_hostile_trace_stays_text(opened, make):
    trace = make()
    page = opened(stage_page(trace))
    page.evaluate(OPEN_ALL)
    for step in range(len(trace.steps)):
        page.click(f".sv-text .sv-piece[data-step='{step}'] >> nth=0")
        if page.locator("[data-part=of-draft]:visible").count():
            page.click("[data-part=of-draft]")
    assert page.locator("img").count() == 0
    assert page.locator(".sv-stage script").count() == 0
    if make is evil_trace:
        assert EVIL in shown(page, ".sv-text .sv-prompt")[0]
        assert EVIL[:40] in shown(page, "h1")[0]
        assert EVIL[:20] in shown(page, ".sv-context")[0]


def test_a_cut_off_recording_says_so_on_its_stage(opened):
    cut = Trace(list(traces.chain().events())[:4])
    page = opened(stage_page(cut, charts=False), **PHONE_DARK)
    page.wait_for_function(PLACE, arg="step 2 of 2")
    state = page.locator(".sv-state")
    assert state.is_visible()
    assert state.inner_text().count(INCOMPLETE) == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


@pytest.mark.parametrize(("width", "charts"), [(980, False), (1366, True)])
def test_a_notebook_shows_the_whole_stage_and_nothing_scrolls_in_its_frame(opened, width, charts):
    frame = specviz.show("eagle", charts=charts)._repr_html_()
    ready = "() => document.title === 'notebook'"
    view = {"width": width, "height": 900}
    page = opened(f"<!doctype html><title>notebook</title><body>{frame}", ready=ready, viewport=view)
    inner = page.frames[1]
    inner.wait_for_function("() => document.documentElement.dataset.done")
    settle(inner)
    size = inner.evaluate("(({ scrollHeight, scrollWidth }) => [scrollHeight, scrollWidth])(document.documentElement)")
    assert size == inner.evaluate("[innerHeight, innerWidth]")
    assert inner.locator(".sv-below > details").last.is_visible()


def test_two_runs_in_one_notebook_keep_to_themselves(opened):
    frames = "".join(specviz.show(make())._repr_html_() for make in (traces.chain, evil_trace))
    page = opened(f"<!doctype html><title>notebook</title><body>{frames}", ready="() => document.title === 'notebook'")
    first, second = page.frames[1:]
    for frame in (first, second):
        frame.wait_for_function("() => document.documentElement.dataset.done")
        assert frame.evaluate("try { localStorage.length; 'open' } catch (error) { 'shut' }") == "shut"
    first.click(".sv-text .sv-is-accepted >> nth=-1")
    first.click("[data-mode=final]")
    first.click("[data-part=many]")
    assert first.locator(".sv-on").count() > 0
    assert second.locator("[data-mode=rejected][aria-pressed=true]").count() == 1
    assert second.locator("h1").inner_text().startswith(f"specviz: {EVIL[:40]}")
    assert page.evaluate("document.querySelectorAll('script, img').length") == 0
    with page.expect_download() as download:
        first.click("#sv-save")
    assert load_trace(Path(download.value.path())) == traces.chain()
    wide = first.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1]
