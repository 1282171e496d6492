"""Laws of the panel "how this draft was made" in Chromium: reached by hand, by keys and by ear, in both themes and on
a phone."""

import pytest

from tests.browser.stage_page import PHONE, push, settle, shown, stages, whole
from tests.helpers import evidence_traces, traces

pytestmark = pytest.mark.slow

stage = pytest.fixture(stages)
NODE = "(node) => [node.dataset.ref, node.className.split(' ')[1].slice(6), node.getAttribute('aria-level')]"
SEEN = """(note) => { const a = note.getBoundingClientRect(), b = note.closest('.sv-node').getBoundingClientRect();
    return a.width > 0 && a.right <= b.right && a.top >= b.top - 1 && a.bottom <= b.bottom + 1; }"""
GRAVE = ("serious", "critical")
CLIPPED = """() => [...document.querySelectorAll('.sv-made *')].filter((node) => {
    const box = node.getBoundingClientRect(), host = document.querySelector('.sv-inspector').getBoundingClientRect();
    return !node.closest('.sv-tree-scroll') && !node.matches('.sv-hidden') && box.width && box.right > host.right + 1;
}).map((node) => node.className)"""


def step_of(message: dict) -> int:
    return next(index for index, step in enumerate(message["steps"]) if "made" in step)


def opened(stage, make, **options):
    """A stage that shows how the first such draft was made."""
    page = stage(**options)
    return page, shows(page, make)


def shows(page, make):
    """Another run on the same stage; the props of its first such draft."""
    message = whole(make(), run=make.__name__)
    push(page, message)
    page.evaluate("(step) => hub.pin(step, hub.steps[step].focus)", step_of(message))
    page.evaluate("document.querySelector('[data-part=of-draft]').click()")
    settle(page)
    return message["steps"][step_of(message)]["made"]


def all_shown(stage, **options):
    """Every evidence, one after the other: name, page, props."""
    page = stage(**options)
    for name, make in evidence_traces.ALL.items():
        yield name, page, shows(page, make)


def part(made: dict, kind: str) -> dict:
    return next(part for part in made["parts"] if part["kind"] == kind)


def test_every_part_is_shown_with_its_title_and_tokens(stage):
    for name, page, made in all_shown(stage):
        lines = [line for part in made["parts"] if part["kind"] == "lines" for line in part["lines"]]
        facts = [words for part in made["parts"] if part["kind"] == "facts" for item in part["items"] for words in item]
        assert shown(page, ".sv-part-title") == [part["title"] for part in made["parts"]], name
        assert shown(page, ".sv-chip .sv-body") == [text for _, row, _ in lines for text, *_ in row], name
        assert shown(page, ".sv-facts > *") == facts, name


@pytest.mark.parametrize("make", [evidence_traces.wide_tree, evidence_traces.medusa])
def test_the_tree_is_a_tree_with_every_node_and_fate(stage, make):
    page, made = opened(stage, make)
    nodes = part(made, "tree")["nodes"]
    assert shown(page, "[role=tree] [role=treeitem]", NODE) == [[ref, s, str(d)] for ref, _, s, d, *_ in nodes]
    taken = sum(status == "accepted" for _, _, status, *_ in nodes)
    assert len(shown(page, ".sv-edge.sv-taken")) == taken
    assert len(shown(page, ".sv-edge")) == len(nodes)


@pytest.mark.parametrize("size", [{}, {"width": 390, "height": 844}])
def test_every_node_shows_its_percent_where_the_tree_speaks_of_it(stage, size):
    page, made = opened(stage, evidence_traces.wide_tree, **size)
    notes = shown(page, ".sv-node .sv-chip-note", SEEN)
    assert len(notes) == len(part(made, "tree")["nodes"])
    assert all(notes)


def test_nodes_of_one_row_and_column_do_not_overlap(stage):
    page, _ = opened(stage, evidence_traces.wide_tree)
    boxes = shown(page, ".sv-node", "(node) => { const b = node.getBoundingClientRect(); return [b.x, b.y]; }")
    assert len({tuple(map(round, box)) for box in boxes}) == len(boxes) == 60


def test_the_keys_walk_the_tree_and_enter_pins_the_node(stage):
    page, made = opened(stage, evidence_traces.tree)
    nodes = part(made, "tree")["nodes"]
    page.focus(".sv-node")
    focused = lambda: page.evaluate("document.activeElement.dataset.ref")  # noqa: E731
    start = focused()
    page.keyboard.press("ArrowRight")
    assert next(node for node in nodes if node[0] == focused())[3] == 2
    page.keyboard.press("ArrowLeft")
    assert focused() == start
    page.keyboard.press("End")
    assert focused() == nodes[-1][0]
    page.keyboard.press("ArrowUp")
    assert focused() == nodes[-2][0]
    page.keyboard.press("Enter")
    settle(page)
    assert page.evaluate("hub.pinned") == {"step": 0, "ref": nodes[-2][0]}
    assert page.evaluate("document.querySelector('.sv-node.sv-on').dataset.ref") == nodes[-2][0]
    assert focused() == nodes[-2][0]
    assert shown(page, ".sv-node", "(node) => node.tabIndex").count(0) == 1


def test_a_press_on_a_node_tells_its_story_and_stays_with_the_draft(stage):
    page, made = opened(stage, evidence_traces.medusa)
    ref = part(made, "tree")["nodes"][-1][0]
    page.click(f'.sv-node[data-ref="{ref}"]')
    settle(page)
    assert page.evaluate("hub.pinned.ref") == ref
    assert page.is_visible(".sv-tree")
    assert "not judged" in page.inner_text(".sv-title")
    page.click("[data-part=of-token]")
    assert not page.is_visible(".sv-tree")


def test_a_step_without_a_story_offers_none_and_keeps_the_choice_for_the_next(stage):
    page, _ = opened(stage, evidence_traces.tree)
    page.evaluate("hub.pin(1, '0')")
    settle(page)
    assert not page.is_visible(".sv-views")
    assert page.is_visible(".sv-probabilities")
    page.evaluate("hub.pin(0, '0')")
    settle(page)
    assert page.is_visible(".sv-tree")


def test_a_chain_without_evidence_has_no_second_view(stage):
    page = stage()
    push(page, whole(traces.chain()))
    settle(page)
    assert not page.is_visible(".sv-views")


def test_a_phone_shows_it_all_within_its_width(stage):
    for name, page, _ in all_shown(stage, **PHONE):
        assert (name, page.evaluate(CLIPPED)) == (name, [])
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_lane_of_a_tree_counts_what_is_off_the_path(stage):
    page, _ = opened(stage, evidence_traces.wide_tree)
    assert shown(page, ".sv-row .sv-more") == ["+56 off this path"]
    assert page.is_visible(".sv-more-words")
    assert page.inner_text('[data-number="accepted-words"]') == "accepted of judged, siblings included"


def test_a_phone_has_room_for_the_number_alone(stage):
    page, _ = opened(stage, evidence_traces.wide_tree, **PHONE)
    assert not page.is_visible(".sv-row .sv-more-words")
    boxes = "(node) => { const b = node.getBoundingClientRect(); return [b.left, b.right]; }"
    (more,), (last,) = shown(page, ".sv-row .sv-more", boxes), shown(page, ".sv-row:first-child .sv-last", boxes)
    assert more[1] <= last[0]


@pytest.mark.parametrize("options", [{}, PHONE], ids=["desktop", "phone"])
def test_a_refused_reasoning_step_has_its_mark_in_the_lane(stage, options):
    page, _ = opened(stage, evidence_traces.refused, **options)
    (mark,) = shown(
        page, ".sv-refused", "(node) => [node.ariaLabel, getComputedStyle(node.firstChild).textDecorationLine]"
    )
    assert mark == ["a reasoning step of 13 tokens, rejected", "line-through"]
    assert shown(page, ".sv-refused", "(node) => node.scrollWidth > node.clientWidth") == [False]
    assert len(shown(page, ".sv-bar-refused")) == 1
    assert page.inner_text('[data-number="accepted"]') == "1 of 2"
    assert page.inner_text('[data-number="accepted-words"]') == "reasoning steps accepted"


def test_what_was_made_comes_under_headings_of_the_second_order(stage):
    page, _ = opened(stage, evidence_traces.staged)
    assert set(shown(page, ".sv-made :is(h1, h2, h3, h4)", "(node) => node.tagName")) == {"H2"}


Axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed").Axe


@pytest.mark.parametrize("options", [{"theme": "light"}, {"theme": "dark", **PHONE}], ids=["desktop", "phone"])
def test_nothing_serious_is_wrong_for_access(stage, options):
    page = stage(reduced_motion="reduce", **options)
    for name in ("tree", "lookup", "staged", "early_exit", "reasoning"):
        shows(page, evidence_traces.ALL[name])
        found = Axe().run(page, ".sv-inspector").response["violations"]
        bad = [(rule["id"], node["html"][:160]) for rule in found for node in rule["nodes"] if rule["impact"] in GRAVE]
        assert (name, bad) == (name, [])
