"""The engine in a page, from disk: its text is that of specviz, and settings change while tokens flow."""

from __future__ import annotations

import shutil
from contextlib import closing
from itertools import combinations
from platform import machine
from urllib.parse import urlencode

import pytest
from playwright.sync_api import expect

import specviz
from specviz.cli.output import write_texts
from specviz.trace import file as trace_file
from specviz.views.document import COMPUTES
from specviz.views.live import live_files, live_page
from tests.browser.access import serious
from tests.browser.test_language import GERMAN, OPENED, lacking
from tests.browser.test_slides import UNREADABLE
from tests.browser.windows import BROWSERS, DESKTOP, PHONE, SWITCHES

pytestmark = pytest.mark.slow

SMALL = {"width": 1024, "height": 768}
PROJECTOR = {"width": 1920, "height": 1080}
ASKED = {"prompt": "The king said, “Bring me café soup! 🦊”", "k": 4, "temperature": 1, "seed": 3, "max_new_tokens": 48}
RUN, PAUSE, STEP = (f".sv-live-drive > button:nth-of-type({number})" for number in (1, 2, 3))
WITHOUT_SIMD = "--js-flags=--no-enable-sse4-1"
HEAP = "() => performance.memory.usedJSHeapSize"
LONGEST = """() => new Promise((done) => {
  let longest = 0, before = performance.now();
  const look = (now) => {
    longest = Math.max(longest, now - before);
    before = now;
    if (window.isOver) done(longest); else requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
})"""


@pytest.fixture(scope="module")
def html() -> str:
    return live_page()


def at(**asked) -> str:
    return f"#live&{urlencode({**ASKED, 'pace': 'full', **asked})}"


def written(folder):
    """The page as a folder of files: its first one."""
    write_texts(folder, live_files())
    return folder / "index.html"


def field(page, name):
    named = page.locator(".sv-live-name").get_by_text(name, exact=True)
    return page.locator(".sv-live-field").filter(has=named).locator("select, input")


def finish(page):
    expect(page.locator(".sv-state")).to_contain_text("done", timeout=60_000)


def saved(page):
    """The run on the page as the trace that it saves."""
    page.evaluate(OPENED)
    with page.expect_download() as download:
        page.click("text=Save trace")
    return trace_file.load_trace(download.value.path())


def same_run(**asked):
    names = {**ASKED, **asked}
    return specviz.run(names.pop("prompt"), target="fable-target", draft="fable-draft", **names)


@pytest.mark.parametrize("temperature", [0, 1])
def test_the_text_is_that_of_a_run_in_python(opened, html, temperature):
    page = opened(html, at(temperature=temperature))
    page.click(RUN)
    finish(page)
    trace = saved(page)
    expected = same_run(temperature=float(temperature))
    assert [token.id for token in trace.tokens] == [token.id for token in expected.tokens]
    assert trace.text == expected.text
    assert trace.header.environment["forward"] == "WebAssembly"
    numbers = page.locator(".sv-tiles dd").all_inner_texts()
    assert numbers[0] == f"{len(trace.tokens) / len(trace.steps):.1f}"
    assert int(numbers[2]) > 0


def test_where_webassembly_is_forbidden_the_same_text_is_written(opened, html):
    policy = COMPUTES.replace(" 'wasm-unsafe-eval'", "")
    page = opened(html.replace(COMPUTES, policy), at())
    page.click(RUN)
    finish(page)
    trace = saved(page)
    assert trace.header.environment["forward"] == "JavaScript"
    assert trace.text == same_run().text


@pytest.mark.skipif(machine() not in ("x86_64", "AMD64"), reason="only on x86 can Chromium do without SIMD")
def test_a_processor_without_simd_writes_the_same_text(chromium, html, tmp_path):
    file = tmp_path / "live.html"
    file.write_text(html, "utf-8")
    path = next(filter(None, map(shutil.which, BROWSERS)))
    browser = chromium.browser_type.launch(executable_path=path, args=[*SWITCHES, WITHOUT_SIMD])
    with closing(browser):
        page = browser.new_page()
        page.goto(f"{file.as_uri()}{at()}")
        page.click(RUN)
        finish(page)
        trace = saved(page)
    assert trace.header.environment["forward"] == "JavaScript"
    assert trace.text == same_run().text


def test_settings_change_while_tokens_flow_and_the_page_never_freezes(opened, html):
    page = opened(html, at(max_new_tokens=200, pace="fast"))
    page.click(RUN)
    expect(page.locator(".sv-lanes .sv-cell").nth(6)).to_be_visible()
    frames = page.evaluate_handle(f"window.isOver = false; window.longest = ({LONGEST})(); null")
    page.locator(".sv-live-k input").fill("7")
    expect(page.locator(".sv-lanes")).to_contain_text("K 4 → 7")
    field(page, "Draft").select_option("fable-draft-tiny")
    expect(page.locator(".sv-lanes")).to_contain_text("draft fable-draft → fable-draft-tiny")
    field(page, "Temperature").fill("0.5")
    page.keyboard.press("Tab")
    field(page, "Pace").select_option("full")
    finish(page)
    page.evaluate("window.isOver = true")
    assert page.evaluate("window.longest") < 250, "milliseconds between two frames"
    frames.dispose()
    trace = saved(page)
    changed = [name for step in trace.steps for name in step.changed]
    assert changed == ["k", "draft_model", "temperature"]
    assert [event.draft_model.name for event in trace.models] == ["fable-draft", "fable-draft-tiny"]
    assert {step.settings.k for step in trace.steps} == {4, 7}


def test_a_run_is_made_step_by_step_and_goes_on(opened, html):
    page = opened(html, at())
    steps = page.locator(".sv-lanes .sv-row")
    page.click(STEP)
    expect(steps).to_have_count(1)
    page.click(STEP)
    expect(steps).to_have_count(2)
    page.wait_for_timeout(300)
    expect(steps).to_have_count(2)
    field(page, "Pace").select_option("slow")
    page.click(PAUSE)  # which says Continue
    expect(steps).to_have_count(3)
    page.click(PAUSE)
    page.wait_for_timeout(1500)
    num_paused = steps.count()
    page.wait_for_timeout(1500)
    assert steps.count() == num_paused
    field(page, "Pace").select_option("full")
    page.click(PAUSE)
    finish(page)
    assert saved(page).text == same_run().text


def test_a_new_run_takes_the_place_of_one_that_goes_on(opened, html):
    page = opened(html, at(max_new_tokens=200, pace="slow"))
    page.click(RUN)
    expect(page.locator(".sv-lanes .sv-row")).to_have_count(1)
    page.fill("textarea", "Sum: 2 + 3")
    field(page, "Pace").select_option("full")
    page.click(RUN)
    finish(page)
    assert saved(page).header.prompt.text == "Sum: 2 + 3"


@pytest.mark.parametrize("prompt", ["", "🦊" * 1000])
def test_a_prompt_that_cannot_be_read_is_refused_in_words(opened, html, prompt):
    page = opened(html, at(prompt=prompt))
    page.click(RUN)
    expect(page.locator(".sv-live-error")).to_contain_text("the prompt")
    page.fill("textarea", "One day,")
    page.click(RUN)
    finish(page)
    assert page.locator(".sv-live-error").is_hidden()


def test_a_link_brings_what_was_asked_and_nothing_that_is_not_allowed(opened, html):
    page = opened(html, at(k=7, draft_model="fable-draft-tiny", top_k=20, max_new_tokens=64))
    page.evaluate(OPENED)
    assert page.inner_text(".sv-live-k b") == "7"
    assert field(page, "Draft").input_value() == "fable-draft-tiny"
    assert field(page, "Top-k (0: all)").input_value() == "20"
    evil = at(
        k=1000, draft_model="toString", temperature="-1", top_p="0", seed="1e99", max_new_tokens="2.5", pace="valueOf"
    )
    other = opened(html, evil)
    other.evaluate(OPENED)
    assert other.inner_text(".sv-live-k b") == "4"
    values = other.locator(".sv-live-settings :is(input, select)").evaluate_all(
        "(all) => all.map(({ value }) => value)"
    )
    assert values == ["fable-draft", "1", "normal", "5", "128", "0", "1"]


@pytest.mark.parametrize("viewport", [PHONE, SMALL, DESKTOP, PROJECTOR], ids=["phone", "small", "desktop", "projector"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_can_be_read_and_used_at_every_size(opened, html, viewport, theme):
    page = opened(html, at(), viewport=viewport, color_scheme=theme)
    assert serious(page) == []
    page.click(RUN)
    finish(page)
    if viewport is not PHONE:
        expect(page.locator(".sv-player")).to_be_in_viewport(ratio=1)
    page.evaluate(OPENED)
    page.wait_for_timeout(800)
    assert serious(page) == []
    assert page.evaluate(UNREADABLE) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    drive = page.locator(".sv-live-drive").bounding_box()
    assert 0 <= drive["y"] <= viewport["height"] - drive["height"], "what drives a run stays in sight"


def test_a_draft_that_comes_late_or_never_takes_no_other_setting_with_it(opened, tmp_path):
    index = written(tmp_path)
    missing = tmp_path / "data" / "sv-weights-fable-draft-tiny.js"
    away = missing.rename(tmp_path / "away.js")
    page = opened(index, at(max_new_tokens=200, pace="fast"), beside=True, missing=True)
    field(page, "Draft").select_option("fable-draft-tiny")
    page.click(RUN)
    error = page.locator(".sv-live-error")
    expect(error).to_contain_text("fable-draft-tiny.js did not load")
    field(page, "Draft").select_option("fable-draft")
    page.click(RUN)
    expect(page.locator(".sv-lanes .sv-cell").nth(3)).to_be_visible()
    field(page, "Draft").select_option("fable-draft-tiny")
    page.locator(".sv-live-k input").fill("7")
    expect(page.locator(".sv-lanes")).to_contain_text("K 4 → 7")
    expect(field(page, "Draft")).to_have_value("fable-draft")
    away.rename(missing)
    page.route(missing.as_uri(), lambda route: None)  # it is on its way until the end of the test
    field(page, "Draft").select_option("fable-draft-tiny")
    field(page, "Draft").select_option("fable-draft-code")
    expect(page.locator(".sv-lanes")).to_contain_text("draft fable-draft → fable-draft-code")
    field(page, "Pace").select_option("full")
    finish(page)
    assert [event.draft_model.name for event in saved(page).models] == ["fable-draft", "fable-draft-code"]


def test_a_draft_chosen_while_the_models_load_is_the_one_that_drafts(opened, html):
    page = opened(html, at())
    page.click(RUN)
    field(page, "Draft").select_option("fable-draft-tiny")
    field(page, "Draft").select_option("fable-draft-code")
    finish(page)
    trace = saved(page)
    assert {step.settings.k for step in trace.steps} == {4}
    assert trace.models[-1].draft_model.name in ("fable-draft", "fable-draft-code")


def test_single_steps_add_up_and_wait_for_no_pace(opened, html):
    page = opened(html, at(pace="slow"))
    steps = page.locator(".sv-lanes .sv-row")
    page.click(STEP)
    expect(steps).to_have_count(1)
    for _ in range(4):
        page.click(STEP)
    expect(steps).to_have_count(5, timeout=2000)
    page.wait_for_timeout(300)
    expect(steps).to_have_count(5)


def test_each_single_step_is_explained_and_one_that_is_made_is_looked_at(opened, html):
    page = opened(html, at(pace="full"))
    steps, explained = page.locator(".sv-lanes .sv-row"), page.locator(".sv-inspector")
    for number in range(1, 5):
        page.click(STEP)
        expect(steps).to_have_count(number)
        expect(explained).to_contain_text(f"step {number}")
    page.locator(".sv-player button").first.click()
    expect(explained).to_contain_text("step 1")
    page.click(STEP)
    expect(page.locator(".sv-player")).to_contain_text("step 5 of 5")
    expect(explained).to_contain_text("step 5")


def test_a_number_counts_when_it_is_whole_and_one_that_is_not_allowed_is_said(opened, html):
    page = opened(html, at(max_new_tokens=60))
    page.evaluate(OPENED)
    field(page, "New tokens").fill("600")
    page.click(RUN)
    error = page.locator(".sv-live-error")
    expect(error).to_have_text("New tokens must be a whole number from 1 to 512 (got 600)")
    expect(field(page, "New tokens")).to_have_value("600")
    assert page.locator(".sv-lanes .sv-row").count() == 0
    field(page, "New tokens").fill("200")
    field(page, "New tokens").press("Enter")
    field(page, "Pace").select_option("fast")
    expect(error).to_be_hidden()
    page.click(RUN)
    expect(page.locator(".sv-lanes .sv-row").nth(2)).to_be_visible()
    field(page, "Temperature").fill("")
    field(page, "Temperature").press_sequentially("0.7", delay=300)
    field(page, "Temperature").press("Enter")
    field(page, "Pace").select_option("full")
    finish(page)
    trace = saved(page)
    assert trace.header.request["max_new_tokens"] == 200
    assert {step.settings.temperature for step in trace.steps} == {1.0, 0.7}, "no number that was only half typed"


def test_a_long_prompt_is_not_cut_but_refused(opened, html):
    page = opened(html, at())
    page.fill("textarea", "a " * 2_001)
    page.click(RUN)
    expect(page.locator(".sv-live-error")).to_have_text("the prompt must have at most 4000 characters (got 4002)")


def folder_page(opened, folder, held):
    """The page in a folder of files; a file with one of these names comes when the routes that are returned go on."""
    page = opened(written(folder), at(), beside=True)
    routes = []
    page.route(f"**/sv-weights-{held}.js", lambda route: routes.append(route))
    page.reload()
    return page, routes


def test_a_run_whose_models_still_load_is_cancelled(opened, tmp_path):
    page, routes = folder_page(opened, tmp_path, held="fable-target")
    page.click(RUN)
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".sv-state")).to_have_text("stopped")
    for route in routes:
        route.continue_()
    expect(page.locator(".sv-live-why:not([data-waiting])")).to_be_visible()
    assert page.locator(".sv-lanes .sv-row").count() == 0
    page.click(RUN)
    finish(page)


def test_a_draft_that_still_loads_says_so(opened, tmp_path):
    page, routes = folder_page(opened, tmp_path, held="fable-draft-code")
    field(page, "Pace").select_option("slow")
    page.click(RUN)
    expect(page.locator(".sv-lanes .sv-row")).to_have_count(1)
    field(page, "Draft").select_option("fable-draft-code")
    expect(page.locator(".sv-live-coming")).to_be_visible()
    (route,) = routes
    route.continue_()
    expect(page.locator(".sv-lanes")).to_contain_text("draft fable-draft → fable-draft-code")
    expect(page.locator(".sv-live-coming")).to_have_count(0)


def test_a_run_that_ends_leaves_the_keyboard_where_it_goes_on(opened, html):
    page = opened(html, at(pace="slow"))
    page.click(STEP)
    expect(page.locator(".sv-lanes .sv-row")).to_have_count(1)
    field(page, "Pace").select_option("full")
    page.focus(PAUSE)
    page.keyboard.press("Enter")
    finish(page)
    expect(page.locator(".sv-lanes-body")).to_be_focused()
    expect(page.locator(".sv-live")).to_contain_text("done: length reached")
    page.locator(".sv-lanes .sv-cell").last.click()
    page.keyboard.press("Home")
    page.keyboard.press("Space")
    expect(page.locator(".sv-lanes-body")).to_be_focused()


def lie_on_each_other(one, other):
    is_beside = one["x"] + one["width"] <= other["x"] or other["x"] + other["width"] <= one["x"]
    return not is_beside and one["y"] < other["y"] + other["height"] and other["y"] < one["y"] + one["height"]


@pytest.mark.parametrize("size", [(320, 640), (360, 740), (844, 390), (1280, 720)], ids=str)
def test_it_fits_where_there_is_little_room(opened, html, size):
    width, height = size
    page = opened(html, at(k=12), viewport={"width": width, "height": height})
    page.click(RUN)
    finish(page)
    page.evaluate(OPENED)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    fields = [each.bounding_box() for each in page.locator(".sv-live-field").all()]
    assert not [pair for pair in combinations(fields, 2) if lie_on_each_other(*pair)]
    lanes, player = (page.locator(f".sv-{name}").bounding_box() for name in ("lanes", "player"))
    assert lanes["y"] + lanes["height"] <= player["y"]
    last, body = page.locator(".sv-lanes .sv-last").last.bounding_box(), page.locator(".sv-lanes-body").bounding_box()
    assert last["x"] + last["width"] <= body["x"] + body["width"], "what the target wrote is in sight"


def test_what_is_typed_stays_and_what_is_asked_begins_anew(opened, html):
    page = opened(html, at(k=0))
    field(page, "Temperature").fill("0.7")
    expect(page.locator(".sv-live-why:not([data-waiting])")).to_be_visible()
    expect(field(page, "Temperature")).to_have_value("0.7")
    page.evaluate("location.hash = 'live&seed=6'")
    expect(page.locator(".sv-live-k b")).to_have_text("4")
    expect(field(page, "Temperature")).to_have_value("1")
    page.evaluate("location.hash = 'live&__proto__=1&constructor=2&toString=3&k=5'")
    expect(page.locator(".sv-live-k b")).to_have_text("5")


def test_an_error_is_in_sight_on_a_phone(opened, html):
    page = opened(html, at(prompt=""), viewport=PHONE)
    page.mouse.wheel(0, 600)
    page.click(RUN)
    expect(page.locator(".sv-live-error")).to_be_in_viewport()
    page.fill("textarea", "One")
    expect(page.locator(".sv-live-error")).to_be_hidden()


def test_it_speaks_german_to_a_german_browser(opened, html):
    page = opened(html, at(), **GERMAN)
    expect(page.locator(".sv-live-why")).to_be_visible()
    assert lacking(page) == []
    page.click(RUN)
    page.locator(".sv-next-step").first.wait_for()
    page.evaluate(OPENED)
    assert lacking(page) == []


def test_twenty_runs_leave_the_memory_as_it_was(opened, html):
    page = opened(html, at(max_new_tokens=64))
    sizes = []
    session = page.context.new_cdp_session(page)
    for number in range(22):
        page.click(RUN)
        expect(page.locator(".sv-state")).to_contain_text("done", timeout=60_000)
        expect(page.locator(RUN)).to_have_text("Run")
        if number > 1:
            session.send("HeapProfiler.collectGarbage")
            sizes.append(page.evaluate(HEAP))
    assert sizes[-1] < 1.1 * sizes[0], sizes


def test_a_folder_of_files_is_the_same_page(opened, tmp_path):
    index = written(tmp_path)
    page = opened(index, at(), beside=True)
    page.click(RUN)
    finish(page)
    assert saved(page).text == same_run().text
