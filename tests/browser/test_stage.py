"""Laws of the browser's half alone, in Chromium: what is shown equals the trace, whatever way the increments arrive."""

import json
import re

import pytest

from specviz.analysis.rounds import SpeedComparison
from specviz.bench.speed import Measuring, Speed
from specviz.trace import Trace
from specviz.views.explore.feed import Feed, show_state
from tests.browser.stage_page import PHONE, RUNNING, part, push, settle, shown, stages, whole
from tests.helpers import traces
from tests.helpers.messages import as_json

stage = pytest.fixture(stages)


def pieces(page) -> list[list[str]]:
    return shown(
        page,
        ".sv-text .sv-piece",
        "(node) => [node.className.split(' ')[1].slice(6), node.dataset.step, node.dataset.ref]",
    )


def expected_pieces(message: dict) -> list[list[str]]:
    return [[status, str(step["index"]), ref] for step in message["steps"] for _, status, ref in step["pieces"]]


# ---- what is shown is the trace -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make", [traces.chain, traces.tree, traces.lookup, traces.halves, traces.truncated, traces.plain]
)
def test_marks_equal_the_trace(stage, make):
    page, message = stage(), whole(make())
    push(page, message)
    settle(page)
    assert pieces(page) == expected_pieces(message)
    rows = "(row) => [...row.querySelectorAll('.sv-cell')].map((cell) => cell.className.split(' ')[1].slice(6))"
    last = [
        [cell["status"] for cell in [*step["cells"], *([step["last"]] if step["last"] else [])]]
        for step in message["steps"]
    ]
    assert shown(page, ".sv-row", rows) == last


def test_widths_are_the_chances_and_the_draws(stage):
    page, message = stage(), whole(traces.chain())
    push(page, message)
    settle(page)
    cells = [cell for step in message["steps"] for cell in step["cells"] if "fill" in cell]
    assert shown(page, ".sv-row .sv-fill", "(node) => parseFloat(node.style.width)") == [cell["fill"] for cell in cells]
    assert shown(page, ".sv-row .sv-tick", "(node) => parseFloat(node.style.left)") == [cell["tick"] for cell in cells]


def test_the_three_numbers_and_the_sentence_are_those_of_the_step_shown(stage):
    page, message = stage(), whole(traces.changed_k())
    push(page, message)
    for cursor in (1, 3, 5):
        page.evaluate("(cursor) => hub.seek(cursor)", cursor)
        settle(page)
        totals = message["steps"][cursor - 1]["totals"]
        assert page.inner_text('[data-number="calls"]') == totals["tokens_per_call"]
        assert page.inner_text('[data-number="accepted"]') == totals["accepted"]
    assert page.inner_text(".sv-sentence .sv-word") == "8"
    assert "K 2 → 8" in page.inner_text(".sv-lanes")


def test_a_run_that_waits_for_its_first_step_says_nothing_of_the_run_before(stage):
    page, other = stage(), whole(traces.plain(), run="other", recorded=False)
    push(page, whole(traces.chain()))
    assert page.inner_text(".sv-sentence")
    assert page.inner_text(".sv-context")
    push(page, {**part(other, 0, 0), "state": RUNNING})
    assert page.inner_text(".sv-sentence") + page.inner_text(".sv-context") == ""
    push(page, other)
    assert page.inner_text(".sv-sentence") == "".join(other["steps"][0]["sentence"])


def test_the_legend_counts_up_to_the_step_shown(stage):
    page, message = stage(), whole(traces.chain())
    push(page, message)
    page.evaluate("hub.seek(2)")
    counts = message["steps"][1]["totals"]["counts"]
    order = [status for status, _, _ in message["head"]["legend"]]
    assert shown(page, ".sv-legend .sv-count") == [str(counts[status]) for status in order]


@pytest.mark.slow
def test_a_short_wait_between_two_steps_is_not_told(stage):
    page, message = stage(), whole(traces.chain(), recorded=False)
    queued = as_json(show_state("queued", ahead=2)) | {"words": "waiting, 2 ahead"}
    running = RUNNING | {"words": "running"}
    push(page, {**part(message, 0, 1), "state": running})
    push(page, {**part(message, 1, 1), "state": queued})
    assert page.inner_text(".sv-state") == "running"
    push(page, {**part(message, 1, 2), "state": running})
    page.wait_for_timeout(1200)
    assert page.inner_text(".sv-state") == "running"
    push(page, {**part(message, 2, 2), "state": queued})
    page.wait_for_function("document.querySelector('.sv-state').textContent === 'waiting, 2 ahead'")
    push(page, {**part(message, 2, 3), "state": running})
    assert page.inner_text(".sv-state") == "running"


# ---- increments ---------------------------------------------------------------------------------------------------


def test_a_hole_is_pulled_from_where_it_begins(stage):
    page, message = stage(), whole(traces.chain())
    page.evaluate("(answer) => { answers[2] = answer; }", part(message, 2, 7))
    push(page, part(message, 0, 2))
    push(page, part(message, 5, 7))
    page.wait_for_function("hub.steps.length === 7")
    settle(page)
    assert page.evaluate("pulls") == [{"run": "run", "from": 2}]
    assert pieces(page) == expected_pieces(message)


def test_a_stage_that_mounts_late_pulls_the_whole_run(stage):
    message = whole(traces.chain())
    page = stage(value=json.dumps(part(message, 6, 7)))
    page.evaluate("(answer) => { answers[0] = answer; }", part(message, 0, 7))
    push(page, part(message, 7, 7))
    page.wait_for_function("hub.steps.length === 7")
    assert page.evaluate("pulls.at(-1)") == {"run": "run", "from": 0}


def test_rubbish_leaves_the_welcome(stage):
    page = stage()
    for value in ("", "null", "{", '{"run": 7}', '{"run": ""}', "[]"):
        push(page, value)
        assert page.is_visible(".sv-welcome"), value
        assert not page.is_visible(".sv-main"), value


def test_before_the_first_run_the_marks_are_explained_in_the_palettes_words(stage):
    page = stage()
    assert shown(page, ".sv-marks b") == ["accepted", "rejected", "resampled", "bonus"]
    assert "Press Run to begin" in page.inner_text(".sv-welcome")
    push(page, {**part(whole(traces.chain()), 0, 0), "state": {"name": "loading", "words": "loading fable-target"}})
    assert page.inner_text(".sv-busy-words") == "loading fable-target"


# ---- hostile text -------------------------------------------------------------------------------------------------


def test_hostile_tokens_stay_text(stage):
    page = stage()
    page.evaluate("void (window.alert = () => { window.attacked = true; })")
    push(page, whole(traces.hostile()))
    settle(page)
    for step in range(14):
        page.evaluate("(step) => hub.refs(step).forEach((ref) => hub.pin(step, ref))", step)
    assert page.evaluate("window.attacked") is None
    assert page.query_selector(".sv-stage :is(img, script, iframe, textarea)") is None
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.click(".sv-table summary")


def test_a_very_long_token_breaks_no_layout(stage):
    page = stage(**PHONE)
    push(page, whole(traces.Builder([b" " + b"x" * 3000, b" dog", b" fox"]).chain(2, 1).chain(2, 0).finish()))
    settle(page)
    page.evaluate("hub.refs(0).forEach((ref) => hub.pin(0, ref))")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


# ---- the selection ------------------------------------------------------------------------------------------------


def selected(page) -> dict:
    where = "(node) => [Number(node.dataset.step), node.dataset.ref]"
    return {
        "text": shown(page, ".sv-piece.sv-on", where),
        "lanes": shown(page, ".sv-cell.sv-on", where),
        "title": page.inner_text('[data-part="title"]').replace("\u00a0", " "),
    }


def title(message: dict, step: int, ref: str) -> str:
    return "".join(message["steps"][step]["looks"][ref]["title"]).replace("\u00a0", " ")


@pytest.mark.parametrize("selector", [".sv-piece", ".sv-cell"])
def test_a_click_in_any_view_selects_in_all(stage, selector):
    page, message = stage(), whole(traces.chain())
    push(page, message)
    settle(page)
    page.click(f'{selector}[data-step="5"][data-ref="1"]')
    assert selected(page) == {"text": [[5, "1"]], "lanes": [[5, "1"]], "title": title(message, 5, "1")}


def test_hover_looks_and_leaving_returns_to_the_pin(stage):
    page, message = stage(), whole(traces.chain())
    push(page, message)
    settle(page)
    page.click('.sv-cell[data-step="5"][data-ref="1"]')
    page.hover('.sv-cell[data-step="4"][data-ref="0"]')
    assert selected(page)["title"] == title(message, 4, "0")
    page.hover(".sv-sentence")
    assert selected(page)["title"] == title(message, 5, "1")


def test_escape_lets_go_and_the_newest_step_is_followed(stage):
    page, message = stage(), whole(traces.chain())
    push(page, part(message, 0, 4))
    settle(page)
    page.click('.sv-cell[data-step="2"][data-ref="0"]')
    page.keyboard.press("Escape")
    push(page, part(message, 4, 5))
    assert selected(page)["title"] == title(message, 4, message["steps"][4]["focus"])


def test_the_whole_stage_works_by_keyboard(stage):
    page = stage()
    push(page, whole(traces.chain()))
    settle(page)
    page.focus(".sv-lanes-body")
    place = "[hub.selected().step, hub.selected().ref]"
    page.keyboard.press("Home")
    assert page.evaluate(place) == [0, "last"]
    page.keyboard.press("ArrowRight")
    assert page.evaluate(place) == [1, "0"]
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(place) == [0, "3"]
    page.keyboard.press("ArrowDown")
    assert page.evaluate(place) == [1, "2"]
    page.keyboard.press("End")
    assert page.evaluate("hub.selected().step") == 6
    page.keyboard.press(" ")
    assert page.evaluate("hub.playing")


def test_keys_do_nothing_in_a_field_or_when_turned_off(stage):
    page = stage()
    push(page, whole(traces.chain()))
    settle(page)
    before = page.evaluate("hub.selected()")
    page.focus(".sv-pace")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Home")
    assert page.evaluate("hub.selected()") == before
    page.click(".sv-keys summary")
    page.uncheck(".sv-keys-on")
    page.focus(".sv-lanes-body")
    page.keyboard.press("End")
    assert page.evaluate("hub.selected()") == before


# ---- the inspector ------------------------------------------------------------------------------------------------


def test_the_inspectors_bars_are_the_computed_widths(stage):
    page, message = stage(), whole(traces.chain())
    push(page, message)
    settle(page)
    step = next(step for step in message["steps"] if step["has_rejected"])
    rows, mark = (step["looks"][step["focus"]][name] for name in ("rows", "draw"))
    for name in ("both", "excess", "shortfall"):
        wide = shown(page, f".sv-inspector .sv-track .sv-{name}", "(node) => parseFloat(node.style.width)")
        assert wide == [width for width in rows[name] if width > 0]
    assert shown(page, ".sv-inspector .sv-random-draw", "(node) => parseFloat(node.style.left)") == [mark["x"]]
    numbers = shown(page, ".sv-inspector .sv-probabilities-number")
    assert numbers == [words for pair in zip(rows["p"], rows["q"], strict=True) for words in pair]


def test_throwing_again_counts_what_would_be_kept_and_changes_nothing(stage):
    page, message = stage(), whole(traces.chain())
    push(page, message)
    settle(page)
    page.click('[data-part="many"]')
    kept = page.locator(".sv-throw-in").count()
    assert page.inner_text('[data-part="thrown"]') == f"accepted {kept} of 100"
    assert page.locator(".sv-throw").count() == 100
    page.click('[data-part="again"]')
    assert page.inner_text('[data-part="thrown"]') in ("would be accepted", "would be rejected")
    for _ in range(6):
        page.click('[data-part="again"]')
    assert page.inner_text('[data-part="thrown"]') == f"accepted {page.locator('.sv-throw-in').count()} of 7"
    assert page.locator(".sv-throw").count() == 7
    assert page.evaluate("triggers.map(([name]) => name)") == ["ready"]
    assert page.evaluate("pulls.length") == 0
    page.evaluate("hub.pin(2, '0')")
    page.evaluate("hub.pin(1, hub.steps[1].focus)")
    assert page.inner_text('[data-part="thrown"]') == ""


@pytest.mark.slow
def test_a_small_drafted_bar_is_shown_enlarged_with_the_same_verdict(stage):
    page, message = stage(), whole(traces.chain())
    push(page, message)
    for step in message["steps"]:
        for ref, look in step["looks"].items():
            page.evaluate("([step, ref]) => hub.pin(step, ref)", [step["index"], ref])
            assert page.is_visible('[data-part="enlarged"]') == ("zoom" in look)
            if "zoom" in look:
                width = "(node) => parseFloat(node.style.width)"
                assert shown(page, ".sv-enlarged .sv-both", width) == [look["zoom"]["fill"]]
                assert (look["zoom"]["x"] < look["zoom"]["fill"]) == look["draw"]["accepted"]


def test_the_log_scale_shows_places_and_no_bars(stage):
    page = stage()
    push(page, whole(traces.chain()))
    settle(page)
    page.click('[data-part="log"]')
    assert page.locator(".sv-track .sv-bar").count() == 0
    assert page.locator(".sv-track .sv-dot-p").count() > 3


# ---- the player ---------------------------------------------------------------------------------------------------


def test_the_player_shows_any_moment_without_a_request(stage):
    page, message = stage(), whole(traces.chain())
    push(page, message)
    for name, cursor in (("first", 1), ("forward", 2), ("forward", 3), ("back", 2), ("last", 7)):
        page.click(f'[data-do="{name}"]')
        settle(page)
        assert page.evaluate("hub.cursor") == cursor
        assert pieces(page) == expected_pieces({"steps": message["steps"][:cursor]})
        assert page.inner_text(".sv-place") == f"step {cursor} of 7"
    assert page.evaluate("[pulls.length, triggers.length]") == [0, 1]


@pytest.mark.slow
def test_one_bar_per_step_and_a_click_goes_there(stage):
    page, message = stage(), whole(traces.chain())
    push(page, message)
    settle(page)
    assert page.locator(".sv-step-bar").count() == 7
    for status in ("accepted", "rejected", "ignored"):
        with_it = sum(step["bar"][status] > 0 for step in message["steps"])
        assert page.locator(f".sv-bar-{status}").count() == with_it
    page.click(".sv-bars", position={"x": 3 * 14 + 5, "y": 30})
    assert page.evaluate("[hub.cursor, hub.selected().step]") == [4, 3]


@pytest.mark.slow
def test_hovering_a_bar_looks_at_its_step_and_the_strip_marks_the_selection(stage):
    page, message = stage(), whole(traces.chain())
    push(page, message)
    settle(page)
    place = "document.querySelector('.sv-bars-chosen').getAttribute('transform')"
    assert page.evaluate(place) == f"translate({14 * 1} 0)"
    page.hover(".sv-bars", position={"x": 5 * 14 + 5, "y": 30})
    assert selected(page)["title"] == title(message, 5, message["steps"][5]["focus"])
    assert page.evaluate(place) == f"translate({14 * 5} 0)"
    page.hover(".sv-sentence")
    assert page.evaluate(place) == f"translate({14 * 1} 0)"


@pytest.mark.slow
def test_a_long_strip_moves_on_without_drawing_its_bars_anew(stage):
    page, message = stage(), whole(traces.long(260))
    steps = [*message["steps"], *({**message["steps"][0], "index": index} for index in range(200, 260))]
    whole_run = {**message, "steps": steps, "total": 260}
    push(page, part(whole_run, 0, 250))
    settle(page)
    page.evaluate("document.querySelector('.sv-step-bar[data-step=\"249\"]').id = 'kept'")
    push(page, part(whole_run, 250, 260))
    settle(page)
    numbers = shown(page, ".sv-step-bar", "(node) => Number(node.dataset.step)")
    assert max(numbers) == 259
    assert sorted(numbers) == list(range(min(numbers), 260))
    assert page.locator("#kept").count() == 1
    strip, bar = page.locator(".sv-bars").bounding_box(), page.locator("#kept").bounding_box()
    assert strip["x"] <= bar["x"] <= strip["x"] + strip["width"]


def test_only_the_newest_step_moves_and_only_at_a_readable_pace(stage):
    page = stage()
    push(page, whole(traces.chain()))
    settle(page)
    assert shown(page, ".sv-row[data-phases]", "(row) => row.dataset.phases") == ["none"]
    page.evaluate("hub.seek(2)")
    page.click('[data-do="forward"]')
    settle(page)
    assert shown(page, '.sv-row[data-phases="full"] .sv-step-number') == ["3"]


def test_those_who_want_less_motion_get_none(stage):
    page = stage(reduced_motion="reduce")
    push(page, whole(traces.chain()))
    page.evaluate("hub.seek(2)")
    page.click('[data-do="forward"]')
    settle(page)
    assert page.evaluate("document.getAnimations().length") == 0


# ---- long runs ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_thousand_steps_keep_few_rows_and_bars(stage):
    page, message = stage(), whole(traces.long(200))
    steps = [{**message["steps"][index % 200], "index": index} for index in range(1000)]
    push(page, {**message, "steps": steps, "total": 1000})
    page.evaluate("hub.back(); hub.forward()")  # to its end
    settle(page)
    assert page.evaluate("hub.cursor") == 1000
    assert page.locator(".sv-row").count() < 30
    assert page.locator(".sv-step-bar").count() < 300
    assert "1,000" in page.inner_text(".sv-row:last-child")
    page.evaluate("document.querySelector('.sv-lanes-body').scrollTop = 0")
    settle(page)
    settle(page)
    assert page.is_visible('.sv-cell[data-step="0"]')


# ---- telling ------------------------------------------------------------------------------------------------------


def test_one_message_per_step_at_most_every_two_seconds(stage):
    page, message = stage(fresh=True), whole(traces.chain())
    page.clock.install()
    push(page, part(message, 0, 1))
    assert page.inner_text(".sv-live") == message["steps"][0]["say"]
    push(page, part(message, 1, 2))
    push(page, part(message, 2, 3))
    assert page.inner_text(".sv-live") == message["steps"][0]["say"]
    page.clock.run_for(2_100)
    assert page.inner_text(".sv-live") == message["steps"][2]["say"]


def test_measure_asks_once_tells_its_round_can_be_stopped_and_shows_what_came_back(stage):
    page = stage()
    feed = Feed("run")
    for event in traces.Builder().chain().finish(baseline=None).events():
        feed.add(event)
    push(page, feed.message(0, show_state("finished")))
    page.click('[data-do="measure"]')
    assert page.is_disabled('[data-do="measure"]')
    assert page.evaluate("triggers.at(-1)") == ["measure", {"run": "run"}]
    feed.measuring = Measuring(7, 26, round=2)
    push(page, feed.message(1, None))
    assert "round 2 of 6" in page.inner_text(".sv-measuring")
    assert not page.is_visible('[data-do="measure"]')
    page.click('[data-do="unmeasure"]')
    assert page.evaluate("triggers.at(-1)") == ["unmeasure", {}]
    feed.measuring, feed.measured = None, Speed(31.0, 43.4, 4.0, 64, SpeedComparison((1.4,) * 6, most=4.0))
    push(page, feed.message(1, None))
    assert page.inner_text('[data-number="speed"]') == "1.4×"
    assert not page.is_visible(".sv-measuring")
    assert page.is_enabled('[data-do="measure"]'), "it may be measured again"


# ---- the phone ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [traces.chain, traces.changed_k, traces.hostile])
def test_a_phone_never_scrolls_sideways(stage, make):
    page = stage(**PHONE)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    push(page, whole(make()))
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_on_a_phone_a_tap_opens_the_inspector_as_a_sheet(stage):
    page, message = stage(**PHONE), whole(traces.chain())
    push(page, message)
    settle(page)
    assert not page.is_visible(".sv-inspector")
    page.tap('.sv-piece[data-step="4"][data-ref="1"]')
    page.wait_for_selector(".sv-inspector", state="visible")
    assert selected(page)["title"] == title(message, 4, "1")
    page.tap('[data-part="close"]')
    page.wait_for_selector(".sv-inspector", state="hidden")


def test_targets_are_large_enough_for_fingers_and_pointers(stage):
    sizes = "(node) => { const box = node.getBoundingClientRect(); return [box.width, box.height]; }"
    for options, least in ((PHONE, 44), ({}, 24)):
        page = stage(**options)
        push(page, whole(traces.chain(), recorded=False))
        settle(page)
        for width, height in shown(page, ".sv-player :is(button, select), .sv-fold > summary", sizes):
            assert width >= 24
            assert height >= min(least, 44) - 0.5 or height >= 32


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_stand_out_from_their_ground(stage, theme):
    page = stage(theme=theme)
    push(page, whole(traces.chain()))
    settle(page)
    (card,) = set(shown(page, ".sv-card", "(node) => getComputedStyle(node).backgroundColor"))
    for selector in (
        ".sv-piece .sv-body",
        ".sv-cell-text",
        ".sv-chance",
        ".sv-probabilities-number",
        ".sv-note",
        ".sv-key li",
    ):
        for colour in set(shown(page, selector, "(node) => getComputedStyle(node).color")):
            assert contrast(colour, card) >= 4.5, (selector, colour, card)


def contrast(first: str, second: str) -> float:
    """WCAG 2.1's ratio of two colours "rgb(r, g, b)"."""
    low, high = sorted(map(luminance, (first, second)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    shares = [int(number) / 255 for number in re.findall(r"\d+", colour)[:3]]
    linear = [x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in shares]
    return sum(weight * x for weight, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


# ---- exact or lossy -----------------------------------------------------------------------------------------------


def lossy(rule: str = "typical") -> Trace:
    made = traces.Builder().chain(4, 4, changed={"rule": rule, "lossless": False}).chain(4, 2)
    return made.chain(4, 2, changed={"rule": "speculative_sampling", "lossless": True}).finish()


@pytest.mark.parametrize("options", [{}, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("presenting", [False, True])
def test_whether_the_text_is_exact_is_seen_at_every_width(stage, options, presenting):
    page = stage(**options)
    push(page, whole(lossy()))
    if presenting:
        page.evaluate("document.documentElement.dataset.svPresent = ''")
    settle(page)
    seen = shown(page, ".sv-context .sv-chip", "(node) => node.checkVisibility() && node.textContent")
    assert seen[0] == "lossy in part (steps 1–2) · Speculative sampling"
    assert all(seen) == (not options and not presenting)


@pytest.mark.parametrize("method", ["cross_vocabulary", "tree", "staged", "reasoning"])
def test_no_chip_is_cut_off(stage, method):
    page = stage()
    made = traces.Builder().chain(changed={"method": method, "top_p": 0.95, "top_k": 50, "temperature": 0.7})
    push(page, whole(made.finish(), recorded=False))
    settle(page)
    clipped = """(node) => {
        const box = node.getBoundingClientRect(), line = document.querySelector('.sv-line').getBoundingClientRect();
        return box.bottom > line.bottom + 1 || box.right > line.right + 1 || node.scrollWidth > node.clientWidth;
    }"""
    assert shown(page, ".sv-context .sv-chip", clipped) == [False] * 5


def test_the_key_speaks_of_draws_only_where_one_is_thrown(stage):
    page = stage()
    only = traces.Builder().chain(4, 2, changed={"rule": "typical", "lossless": False}).finish()
    push(page, whole(only))
    settle(page)
    assert "no random draw" in page.inner_text(".sv-lanes-key")
    assert not shown(page, ".sv-lanes-sheet .sv-tick")
    assert not page.is_visible(".sv-enlarged")
    push(page, whole(lossy("lenience"), run="other"))
    settle(page)
    assert "no random draw" not in page.inner_text(".sv-lanes-key")
    assert "line: the random draw" in page.inner_text(".sv-lanes-key")


def test_what_was_kept_behind_the_end_is_faded(stage):
    page = stage(reduced_motion="reduce")
    push(page, whole(traces.Builder().chain(4, 4, truncated=3).finish("eos")))
    settle(page)
    fill = "(node) => Number(getComputedStyle(node.querySelector('.sv-fill')).opacity) < 1"
    faded = shown(page, ".sv-lanes-sheet .sv-cell", fill)
    assert faded == [False, False, True, True]


def test_the_first_example_keeps_its_cut_word_whatever_text_is_chosen(stage):
    page = stage()
    page.evaluate("document.querySelector('[data-mode=final]').click()")
    assert page.is_visible(".sv-example .sv-is-rejected")
