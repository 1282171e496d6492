"""Laws of reading on the stage: the text's modes, copying, the filter, the cut prompt, presenting, loading, keys."""

import json
import re
from dataclasses import replace

import pytest

from specviz.trace import Footer, Header, Prompt, Token, Trace
from specviz.views.explore.feed import Feed, show_state
from specviz.views.explore.message import RunState
from tests.browser.stage_page import PHONE, part, push, settle, shown, stages, whole
from tests.helpers import traces
from tests.helpers.messages import as_json

pytestmark = pytest.mark.slow

OPACITY = "(node) => Number(getComputedStyle(node).opacity)"
CAN_COPY = {"permissions": ["clipboard-read", "clipboard-write"]}

stage = pytest.fixture(stages)


def prompted(text: str, words: list[str]) -> Trace:
    made = traces.chain()
    prompt = Prompt(text, tuple(Token(number, word) for number, word in enumerate(words)))
    return Trace([replace(event, prompt=prompt) if isinstance(event, Header) else event for event in made.events()])


# ---- the text -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("back", range(1, 9))
def test_the_final_text_ends_before_the_stop_text_wherever_it_begins_in_a_token(stage, back):
    """Where the player comes back to the end as well; the growing text still shows all that was written."""
    made = traces.chain()
    stop = {"text": made.text[-back:], "at": len(made.text) - back}
    events = [replace(each, reason="stop", stop=stop) if isinstance(each, Footer) else each for each in made.events()]
    page, message = stage(), whole(Trace(events))
    push(page, message)
    read = "(node) => node.innerText"
    everything = shown(page, ".sv-text-body", read)[0]
    page.click('[data-mode="final"]')
    final = shown(page, ".sv-text-body", read)[0]
    page.keyboard.press("Home")
    page.keyboard.press("End")
    settle(page)
    prompt = message["head"]["prompt"]
    assert final.rstrip("\n") == shown(page, ".sv-text-body", read)[0].rstrip("\n")
    assert re.sub("[⏎\n]", "", final).rstrip() == (prompt + made.text[:-back]).replace("\n", "").rstrip()
    assert len(everything) > len(final)


def test_the_final_text_shows_what_stayed_and_is_remembered(stage):
    page, message = stage(), whole(traces.tree())
    push(page, message)
    cut = page.locator(".sv-text .sv-piece.sv-is-rejected")
    assert cut.count() == sum(piece[1] == "rejected" for step in message["steps"] for piece in step["pieces"]) > 1
    assert all(cut.nth(place).is_visible() for place in range(cut.count()))
    page.click('[data-mode="final"]')
    assert not any(cut.nth(place).is_visible() for place in range(cut.count()))
    assert shown(page, "[data-mode]", "(node) => node.ariaPressed") == ["false", "true"]
    kept = [text for step in message["steps"] for text, status, _ in step["pieces"] if status != "rejected"]
    assert "".join(kept).replace("\n", "") in page.inner_text(".sv-text-body").replace("\n", "").replace("+", "")
    assert json.loads(page.evaluate("localStorage.getItem('specviz-stage')")) == {"text": "final"}


def stopped():
    """Ended by a stop text, which stands within its last tokens."""
    whole, made = traces.chain(), Trace()
    at = len(whole.text) - 3
    end = replace(whole.footer, reason="stop", stop={"text": whole.text[at:], "at": at})
    for event in whole.events():
        made.append(end if event is whole.footer else event)
    return made


@pytest.mark.parametrize("make", [traces.halves, traces.truncated, traces.tree, stopped])
def test_copying_gives_exactly_the_answer(stage, make):
    page, made = stage(), make()
    push(page, whole(made))
    page.evaluate("void (navigator.clipboard || Object.defineProperty(navigator, 'clipboard', {value: {}}))")
    page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    page.click('[data-do="copy"]')
    assert page.evaluate("copied") == made.answer
    assert page.inner_text(".sv-copied") == "copied"


def test_copying_works_on_a_page_that_came_without_encryption(stage):
    page, made = stage(), traces.chain()
    assert page.evaluate("!window.isSecureContext && navigator.clipboard === undefined")
    push(page, whole(made))
    page.evaluate(
        "addEventListener('copy', (event) => { window.copied = 'bubbled'; })"  # nobody else gets to see it
    )
    page.click('[data-do="copy"]')
    page.wait_for_function("document.querySelector('.sv-copied').textContent === 'copied'")
    assert page.evaluate("window.copied") is None
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<textarea id=there></textarea>')")
    page.focus("#there")
    page.keyboard.press("Control+V")
    assert page.input_value("#there") == made.text


def test_only_the_steps_shown_are_copied(stage):
    page, message = stage(), whole(traces.chain())
    push(page, message)
    page.evaluate("navigator.clipboard = {writeText: async (text) => { window.copied = text; }}; hub.seek(2)")
    page.click('[data-do="copy"]')
    assert page.evaluate("copied") == message["steps"][0]["written"] + message["steps"][1]["written"]


def test_the_legend_dims_all_tokens_of_other_kinds_and_counts_on(stage):
    page, message = stage(), whole(traces.chain())
    push(page, message)
    settle(page)
    counts = shown(page, ".sv-legend .sv-count")
    page.click('.sv-legend [data-status="resampled"]')
    for view in (".sv-piece", ".sv-cell"):
        assert set(shown(page, f"{view}.sv-is-resampled", OPACITY)) == {1}
        assert set(shown(page, f"{view}:not(.sv-is-resampled)", OPACITY)) == {0.25}
    assert shown(page, ".sv-legend-entry[aria-pressed=true] .sv-legend-name") == ["resampled"]
    page.click('.sv-legend [data-status="bonus"]')
    assert set(shown(page, ".sv-cell.sv-is-bonus", OPACITY)) == {1}
    assert shown(page, ".sv-legend .sv-count") == counts
    page.click('.sv-legend [data-status="bonus"]')
    page.click('.sv-legend [data-status="resampled"]')
    assert set(shown(page, ".sv-piece, .sv-cell", OPACITY)) == {1}


def test_a_filter_outlives_the_next_run_and_says_so(stage):
    page = stage()
    push(page, whole(traces.chain()))
    page.click('.sv-legend [data-status="rejected"]')
    push(page, whole(traces.tree(), run="other"))
    assert shown(page, ".sv-legend-entry[aria-pressed=true] .sv-legend-name") == ["rejected"]
    assert set(shown(page, ".sv-piece.sv-is-accepted", OPACITY)) == {0.25}


def test_a_long_prompt_is_cut_visibly_and_shown_on_demand(stage):
    page, text = stage(), "word " * 300
    message = whole(prompted(text, ["word "] * 300))
    push(page, part(message, 0, 1))
    assert page.inner_text(".sv-more-prompt") == f"… {message['head']['hidden']['words']}"
    assert page.is_visible(".sv-more-prompt")
    page.click(".sv-more-prompt")
    assert "".join(shown(page, ".sv-text .sv-prompt")) == text
    assert page.locator(".sv-more-prompt").count() == 0


# ---- presenting ---------------------------------------------------------------------------------------------------

PRESENT = "document.documentElement.toggleAttribute('data-sv-present')"
SIZE = "(node) => parseFloat(getComputedStyle(node).fontSize)"


def test_presenting_enlarges_and_the_current_step_alone_is_bright(stage):
    page, message = stage(height=820), whole(traces.chain())
    push(page, message)
    settle(page)
    large = (".sv-text-scroll", ".sv-title", ".sv-sentence", ".sv-cell", ".sv-tile dd")
    before = [shown(page, selector, SIZE)[0] for selector in large]
    page.evaluate(PRESENT)
    settle(page)
    for selector, size in zip(large, before, strict=True):
        assert shown(page, selector, SIZE)[0] >= 1.2 * size
    where = "(node) => [Number(getComputedStyle(node).opacity) === 1, node.dataset.step]"
    assert {step for bright, step in shown(page, ".sv-piece", where) if bright} == {"1"}  # what is explained
    page.evaluate("hub.back(); hub.forward()")
    assert {step for bright, step in shown(page, ".sv-piece", where) if bright} == {"6"}
    page.click('.sv-cell[data-step="4"][data-ref="0"]')
    assert {step for bright, step in shown(page, ".sv-piece", where) if bright} == {"4"}
    rows = "(row) => [Number(getComputedStyle(row).opacity) === 1, row.querySelector('.sv-step-number').textContent]"
    assert [number for bright, number in shown(page, ".sv-row", rows) if bright] == ["5"]
    page.evaluate("hub.forward()")
    page.evaluate("hub.seek(2)")
    assert {step for bright, step in shown(page, ".sv-piece", where) if bright} == {"1"}


@pytest.mark.parametrize(("width", "height"), [(1366, 768), (1920, 1080)])
@pytest.mark.parametrize("make", [traces.chain, traces.tree])
def test_presenting_needs_no_scrolling_and_cuts_nothing_off(stage, width, height, make):
    page = stage(width=width, height=height + 52)  # the setup row is hidden then
    push(page, whole(make()))
    page.evaluate(PRESENT)
    settle(page)
    assert page.evaluate("document.documentElement.scrollHeight <= innerHeight")
    for selector in (".sv-top", ".sv-player", ".sv-lanes"):
        assert page.eval_on_selector(selector, "(node) => node.scrollHeight <= node.clientHeight + 1"), selector
    if make is traces.chain:
        assert page.eval_on_selector(".sv-inspector", "(node) => node.scrollHeight <= node.clientHeight")
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


def test_the_key_p_asks_the_page_to_present_and_does_nothing_without_one(stage):
    page = stage()
    push(page, whole(traces.chain()))
    page.focus(".sv-lanes-body")
    page.keyboard.press("p")
    page.evaluate("document.addEventListener('sv-present', () => { window.presented = true; })")
    page.keyboard.press("p")
    assert page.evaluate("presented")


# ---- loading ------------------------------------------------------------------------------------------------------


def loading(fraction: float | None) -> RunState:
    return show_state("loading", "downloading fable-target", fraction=fraction)


@pytest.mark.parametrize("options", [{}, PHONE], ids=["desktop", "phone"])
def test_loading_shows_how_far_it_is_and_can_be_cancelled(stage, options):
    page = stage(**options)
    push(page, Feed("run").message(0, loading(0.43)))
    bar = page.get_by_role("progressbar")
    assert bar.is_visible()
    assert bar.get_attribute("aria-valuenow") == "43"
    assert page.evaluate("document.querySelector('.sv-progress-bar').style.width") == "43%"
    assert page.inner_text(".sv-busy-words") == "downloading fable-target"
    page.click('[data-do="cancel"]')
    assert page.evaluate("triggers.at(-1)") == ["cancel", {}]
    assert page.is_disabled('[data-do="cancel"]')
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_share_that_nobody_knows_is_not_claimed(stage):
    page = stage()
    push(page, Feed("run").message(0, loading(None)))
    assert page.get_by_role("progressbar").get_attribute("aria-valuenow") is None
    assert page.inner_text(".sv-progress-words") == ""


def test_a_model_that_is_loaded_during_a_run_is_told_above_the_text(stage):
    page, message = stage(), whole(traces.chain(), recorded=False)
    push(page, part(message, 0, 3))
    push(page, {**part(message, 3, 3), "state": as_json(loading(0.5))})
    assert page.is_visible(".sv-line .sv-loading")
    assert page.inner_text(".sv-state") == "downloading fable-target"
    page.click('[data-do="cancel"]')
    push(page, part(message, 3, 4))
    assert not page.is_visible(".sv-loading")
    push(page, {**part(message, 4, 4), "state": as_json(loading(0.5))})
    assert page.is_enabled('[data-do="cancel"]')


# ---- a first visit ------------------------------------------------------------------------------------------------


def test_a_first_visit_is_slow_for_three_steps_then_at_reading_pace_with_the_first_cut_explained(stage):
    page, message = stage(fresh=True), whole(traces.chain(), begin="play")
    page.clock.install(time=0)
    page.clock.pause_at(1_000)
    push(page, message)
    cursors = []
    for wait in (2_250, 2_250, 2_250, 260, 260):
        cursors.append(page.evaluate("hub.cursor"))
        page.clock.run_for(wait)
    assert [*cursors, page.evaluate("hub.cursor")] == [1, 2, 3, 4, 5, 6]
    first = next(step for step in message["steps"] if step["has_rejected"])
    assert page.evaluate("hub.pinned") == {"step": first["index"], "ref": first["focus"]}
    assert page.inner_text(".sv-badge") == "recorded run"


def test_a_live_run_that_begins_meanwhile_takes_the_stage(stage):
    page, live = stage(fresh=True), whole(traces.changed_k(), run="live", recorded=False)
    page.clock.install(time=0)
    page.clock.pause_at(1_000)
    push(page, whole(traces.chain(), begin="play"))
    push(page, {"run": "live", "from": 0, "total": 0, "steps": [], "state": {"name": "queued", "words": "waiting"}})
    page.clock.run_for(9_000)
    assert page.evaluate("[hub.run, hub.steps.length, hub.playing]") == ["live", 0, False]
    push(page, part(live, 0, 2))
    page.clock.run_for(9_000)
    assert page.evaluate("[hub.cursor, hub.following, hub.playing]") == [2, True, False]
    assert page.locator(".sv-badge").count() == 0


# ---- keys ---------------------------------------------------------------------------------------------------------


def test_turning_the_keys_off_is_remembered(stage):
    page = stage()
    push(page, whole(traces.chain()))
    page.click(".sv-keys summary")
    page.uncheck(".sv-keys-on")
    assert json.loads(page.evaluate("localStorage.getItem('specviz-stage')")) == {"keys": False}
    page.reload()
    page.evaluate(
        "void (window.hub = specviz.mountStage(document.getElementById('host'), {source: specviz.embeddedSource('')}))"
    )
    assert not page.evaluate("document.querySelector('.sv-keys-on').checked")


def test_escape_is_the_pages_own_once_nothing_is_pinned(stage):
    page = stage()
    push(page, whole(traces.chain()))
    page.evaluate("document.addEventListener('keydown', ({key}) => { window.heard = key; })")
    page.focus(".sv-lanes-body")
    page.keyboard.press("Escape")
    assert page.evaluate("[window.heard, hub.pinned]") == [None, None]
    page.keyboard.press("Escape")
    assert page.evaluate("window.heard") == "Escape"


# ---- siblings -----------------------------------------------------------------------------------------------------


def test_siblings_are_listed_with_both_probabilities_and_lead_to_each_other(stage):
    page, message = stage(), whole(traces.tree())
    push(page, message)
    page.evaluate("hub.pin(0, '1')")
    rows = message["steps"][0]["looks"]["1"]["siblings"]
    cells = "(row) => [...row.cells].slice(1, 4).map((cell) => cell.textContent)"
    assert shown(page, ".sv-siblings tbody tr", cells) == [probabilities for _, _, _, *probabilities in rows]
    assert page.inner_text('[data-part="heading"]') == "judged"
    page.click(".sv-siblings tr:first-child button")
    assert page.evaluate("hub.pinned") == {"step": 0, "ref": "0"}
    push(page, whole(traces.chain(), run="other"))
    page.evaluate("hub.pin(0, '0')")
    assert not page.is_visible(".sv-siblings")
