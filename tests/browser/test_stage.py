"""What only a browser shows of the stage alone: what is in sight, how large, in which colours.

What it draws of a message and what a press sends is tested in tests/web.
"""

import re

import pytest

from specviz.trace import Trace
from tests.browser.access import serious
from tests.browser.stage_page import PHONE, part, push, settle, shown, stages, whole
from tests.helpers import evidence_traces, traces
from tests.web.messages import stopped

stage = pytest.fixture(stages)

FITS = "document.documentElement.scrollWidth <= innerWidth"
LONG_TOKEN = traces.Builder([b" " + b"x" * 3000, b" dog", b" fox"]).chain(2, 1).chain(2, 0)
LOADING = {"name": "loading", "message": "", "ahead": 0, "words": "loading", "progress": {"width": 40, "words": "40 %"}}


def selected(page) -> dict:
    where = "(node) => [Number(node.dataset.step), node.dataset.ref]"
    return {
        "text": shown(page, ".sv-piece.sv-on", where),
        "lanes": shown(page, ".sv-cell.sv-on", where),
        "title": page.inner_text('[data-part="title"]').replace("\u00a0", " "),
    }


def title(message: dict, step: int, ref: str) -> str:
    return "".join(message["steps"][step]["looks"][ref]["title"]).replace("\u00a0", " ")


def test_pointer_keys_and_gradio_s_stream_reach_the_stage(stage):
    page, message = stage(), whole(traces.chain())
    assert page.is_visible(".sv-welcome")
    page.evaluate("(answer) => { answers[2] = answer; }", part(message, 2, 7))
    push(page, part(message, 0, 2))
    push(page, part(message, 5, 7))
    page.wait_for_function("hub.steps.length === 7")
    assert page.evaluate("pulls") == [{"run": "run", "from": 2}]
    assert not page.is_visible(".sv-welcome")
    settle(page)
    page.click('.sv-cell[data-step="5"][data-ref="1"]')
    assert selected(page) == {"text": [[5, "1"]], "lanes": [[5, "1"]], "title": title(message, 5, "1")}
    page.hover('.sv-cell[data-step="4"][data-ref="0"]')
    assert selected(page)["title"] == title(message, 4, "0")
    page.hover(".sv-sentence")
    assert selected(page)["title"] == title(message, 5, "1")
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.dataset.step") == "4", "the focus goes with the keys"
    page.click(".sv-bars", position={"x": 3 * 14 + 5, "y": 30})
    assert page.evaluate("[hub.cursor, hub.selected().step]") == [4, 3]


def test_hostile_tokens_stay_text(stage):
    page = stage()
    page.evaluate("void (window.alert = () => { window.attacked = true; })")
    push(page, whole(traces.hostile()))
    settle(page)
    for step in range(14):
        page.evaluate("(step) => hub.refs(step).forEach((ref) => hub.pin(step, ref))", step)
    assert page.evaluate("window.attacked") is None
    assert page.query_selector(".sv-stage :is(img, script, iframe, textarea)") is None
    assert page.evaluate(FITS)
    page.click(".sv-table summary")


def test_the_final_text_hides_what_was_cut_and_a_pressed_kind_dims_the_others(stage):
    page, message = stage(), whole(traces.tree())
    push(page, message)
    cut = page.locator(".sv-text .sv-piece.sv-is-rejected")
    assert cut.count() == sum(piece[1] == "rejected" for step in message["steps"] for piece in step["pieces"]) > 1
    assert all(cut.nth(place).is_visible() for place in range(cut.count()))
    page.click('[data-mode="final"]')
    assert not any(cut.nth(place).is_visible() for place in range(cut.count()))
    assert page.eval_on_selector(".sv-example .sv-is-rejected", "(node) => getComputedStyle(node).display") != "none"
    opacity = "(node) => Number(getComputedStyle(node).opacity)"
    page.click('.sv-legend [data-status="resampled"]')
    for view in (".sv-piece", ".sv-cell"):
        assert set(shown(page, f"{view}.sv-is-resampled", opacity)) == {1}
        assert set(shown(page, f"{view}:not(.sv-is-resampled, .sv-is-rejected)", opacity)) == {0.25}
    push(page, whole(stopped(2), run="stopped"))
    assert page.locator(".sv-piece.sv-past").count() > 0
    for mode, is_final in (("final", True), ("rejected", False)):
        page.click(f'[data-mode="{mode}"]')
        assert page.is_visible(".sv-answer") == is_final
        assert page.locator(".sv-piece.sv-past").first.is_visible() != is_final


def test_copying_works_on_a_page_that_came_without_encryption(stage):
    page, made = stage(), traces.chain()
    assert page.evaluate("!window.isSecureContext && navigator.clipboard === undefined")
    push(page, whole(made))
    # nobody else gets to see it
    page.evaluate("addEventListener('copy', (event) => { window.copied = 'bubbled'; })")
    page.click('[data-do="copy"]')
    page.wait_for_function("document.querySelector('.sv-copied').textContent === 'copied'")
    assert page.evaluate("window.copied") is None
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<textarea id=there></textarea>')")
    page.focus("#there")
    page.keyboard.press("Control+V")
    assert page.input_value("#there") == made.text


def test_those_who_want_less_motion_get_none_and_what_is_behind_the_end_is_faded(stage):
    page = stage(reduced_motion="reduce")
    push(page, whole(traces.chain()))
    page.evaluate("hub.seek(2)")
    page.click('[data-do="forward"]')
    settle(page)
    assert page.evaluate("document.getAnimations().length") == 0
    push(page, whole(traces.Builder().chain(4, 4, truncated=3).finish("eos"), run="cut"))
    settle(page)
    fill = "(node) => Number(getComputedStyle(node.querySelector('.sv-fill')).opacity) < 1"
    assert shown(page, ".sv-lanes-sheet .sv-cell", fill) == [False, False, True, True]


@pytest.mark.slow
def test_a_thousand_steps_can_be_scrolled_through(stage):
    page, message = stage(), whole(traces.long(200))
    steps = [{**message["steps"][index % 200], "index": index} for index in range(1000)]
    push(page, {**message, "steps": steps, "total": 1000})
    page.evaluate("hub.back(); hub.forward()")  # to its end
    settle(page)
    assert page.locator(".sv-row").count() < 30
    strip, bar = (page.locator(name).bounding_box() for name in (".sv-bars", ".sv-step-bar[data-step='999']"))
    assert strip["x"] <= bar["x"] <= strip["x"] + strip["width"]
    page.evaluate("document.querySelector('.sv-lanes-body').scrollTop = 0")
    settle(page)
    settle(page)
    assert page.is_visible('.sv-cell[data-step="0"]')


# ---- a phone, fingers and colours -----------------------------------------------------------------------------------


def test_a_phone_never_scrolls_sideways_and_a_tap_opens_the_inspector_as_a_sheet(stage):
    page, message = stage(**PHONE), whole(traces.chain())
    assert page.evaluate(FITS)
    push(page, {"run": "first", "from": 0, "total": 0, "steps": [], "state": LOADING})
    assert page.is_visible(".sv-loading")
    assert page.evaluate(FITS)
    for made in (traces.changed_k(), traces.hostile(), LONG_TOKEN.trace):
        push(page, whole(made, run=made.header.request["prompt"] + str(len(made.steps))))
        settle(page)
        page.evaluate("hub.refs(0).forEach((ref) => hub.pin(0, ref))")
        assert page.evaluate(FITS)
    push(page, message)
    page.wait_for_selector(".sv-inspector", state="hidden")
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


READ = (".sv-piece .sv-body", ".sv-cell-text", ".sv-chance", ".sv-probabilities-number", ".sv-note", ".sv-key li")


def test_texts_stand_out_from_their_ground_in_both_themes(stage):
    page = stage()
    push(page, whole(traces.chain()))
    for theme in ("light", "dark"):
        page.evaluate("(theme) => { document.body.className = theme; }", theme)
        settle(page)
        (card,) = set(shown(page, ".sv-card", "(node) => getComputedStyle(node).backgroundColor"))
        for selector in READ:
            for colour in set(shown(page, selector, "(node) => getComputedStyle(node).color")):
                assert contrast(colour, card) >= 4.5, (theme, selector, colour, card)


def contrast(first: str, second: str) -> float:
    """WCAG 2.1's ratio of two colours "rgb(r, g, b)"."""
    low, high = sorted(map(luminance, (first, second)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    shares = [int(number) / 255 for number in re.findall(r"\d+", colour)[:3]]
    linear = [x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in shares]
    return sum(weight * x for weight, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


# ---- what stands in the first line ----------------------------------------------------------------------------------


def lossy(rule: str = "typical") -> Trace:
    made = traces.Builder().chain(4, 4, changed={"rule": rule, "lossless": False}).chain(4, 2)
    return made.chain(4, 2, changed={"rule": "speculative_sampling", "lossless": True}).finish()


def test_whether_the_text_is_exact_is_seen_at_every_width(stage):
    for options in ({}, PHONE):
        page = stage(**options)
        push(page, whole(lossy()))
        for is_presenting in (False, True):
            page.evaluate("(is) => document.documentElement.toggleAttribute('data-sv-present', is)", is_presenting)
            settle(page)
            seen = shown(page, ".sv-context .sv-chip", "(node) => node.checkVisibility() && node.textContent")
            assert seen[0].startswith("lossy in part (steps 1–2)")
            assert all(seen) == (not options and not is_presenting)


CLIPPED = """(node) => {
    const box = node.getBoundingClientRect(), line = document.querySelector('.sv-line').getBoundingClientRect();
    return box.bottom > line.bottom + 1 || box.right > line.right + 1 || node.scrollWidth > node.clientWidth;
}"""


def test_no_chip_is_cut_off(stage):
    page = stage()
    for method in ("cross_vocabulary", "tree", "staged", "reasoning"):
        made = traces.Builder().chain(changed={"method": method, "top_p": 0.95, "top_k": 50, "temperature": 0.7})
        push(page, whole(made.finish(), run=method, recorded=False))
        settle(page)
        assert shown(page, ".sv-context .sv-chip", CLIPPED) == [False] * 5, method


def test_the_key_speaks_of_draws_only_where_one_is_thrown(stage):
    page = stage()
    drawless = traces.Builder().chain(4, 2, changed={"rule": "typical", "lossless": False}).finish()
    for run, made, key in (("drawless", drawless, True), ("drawn", lossy("lenience"), False)):
        push(page, whole(made, run=run))
        settle(page)
        keys = [page.is_visible(f".sv-lanes-key .sv-key-{kind}") for kind in ("drawless", "whole", "imagined")]
        assert keys == [key, False, False]
        assert bool(shown(page, ".sv-lanes-sheet .sv-tick")) != key
        assert not (key and page.is_visible(".sv-enlarged"))


# ---- how a draft was made -------------------------------------------------------------------------------------------

OFF = """() => [...document.querySelectorAll('.sv-made *')].filter((node) => {
    const box = node.getBoundingClientRect(), host = document.querySelector('.sv-inspector').getBoundingClientRect();
    return !node.closest('.sv-tree-scroll') && !node.matches('.sv-hidden') && box.width && box.right > host.right + 1;
}).map((node) => node.className)"""
SEEN = """(note) => { const a = note.getBoundingClientRect(), b = note.closest('.sv-node').getBoundingClientRect();
    return a.width > 0 && a.right <= b.right && a.top >= b.top - 1 && a.bottom <= b.bottom + 1; }"""
EDGES = "(node) => { const b = node.getBoundingClientRect(); return [b.left, b.right]; }"


DELAYS = """() => {
  const delays = (selector) => [...document.querySelectorAll(`.sv-row[data-phases] .sv-cell:not(.sv-last)${selector}`)]
    .map((node) => Math.round(node.getAnimations()[0]?.effect.getTiming().delay ?? -1));
  return [delays(''), delays(' .sv-cell-text'), delays(' .sv-token-word')];
}"""


def delays_of(page, name) -> list[list[int]]:
    """When the cells of the newest step appear, when their tokens do, and when each is judged, in milliseconds."""
    push(page, whole(evidence_traces.ALL[name](), run=name))
    page.evaluate("() => { hub.seek(2); hub.seek(0); hub.forward(); }")
    settle(page)
    return page.evaluate(DELAYS)


def test_slots_of_one_pass_appear_at_once_and_are_filled_together_or_by_turns(stage):
    page = stage()
    cells, tokens, judged = delays_of(page, "early_exit")
    assert (cells, tokens) == (sorted({*cells}), [-1] * 4)
    slots, together, judged_later = delays_of(page, "block")
    assert (slots, len({*together}), judged_later) == ([0] * 4, 1, judged)
    assert 0 < together[0] < judged[0]
    slots, in_turn, judged_later = delays_of(page, "block_in_turn")
    assert (slots, in_turn, judged_later) == ([0] * 4, sorted({*in_turn}), judged)
    assert 0 < in_turn[0] < in_turn[-1] < judged[0]


def show_how_made(page, name: str) -> None:
    """The first step of this evidence that tells how its draft was made."""
    message = whole(evidence_traces.ALL[name](), run=name)
    push(page, message)
    step = next(index for index, step in enumerate(message["steps"]) if "made" in step)
    page.evaluate("(step) => hub.pin(step, hub.steps[step].focus)", step)
    page.evaluate("document.querySelector('[data-part=of-draft]').click()")
    settle(page)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"theme": "light"}, {"theme": "dark", **PHONE}], ids=["desktop", "phone"])
def test_how_every_draft_was_made_fits_and_is_accessible(stage, options):
    page = stage(reduced_motion="reduce", **options)
    for name in evidence_traces.ALL:
        show_how_made(page, name)
        assert (name, page.evaluate(OFF)) == (name, [])
        assert page.evaluate(FITS), name
        if name in ("tree", "lookup", "staged", "early_exit", "reasoning"):
            assert (name, serious(page)) == (name, [])
    is_phone = "width" in options
    show_how_made(page, "refused")
    mark = "(node) => [getComputedStyle(node.firstChild).textDecorationLine, node.scrollWidth > node.clientWidth]"
    assert shown(page, ".sv-refused", mark) == [["line-through", False]]
    show_how_made(page, "wide_tree")
    boxes = shown(page, ".sv-node", "(node) => { const b = node.getBoundingClientRect(); return [b.x, b.y]; }")
    assert len({tuple(map(round, box)) for box in boxes}) == len(boxes) == 60, "no two lie on each other"
    assert shown(page, ".sv-node .sv-chip-note", SEEN) == [True] * 60, "each shows its percent"
    assert page.is_visible(".sv-row .sv-more-words") != is_phone
    (more,), (last,) = shown(page, ".sv-row .sv-more", EDGES), shown(page, ".sv-row:first-child .sv-last", EDGES)
    assert more[1] <= last[0]
