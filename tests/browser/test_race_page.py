"""A race and two runs side by side on the real page: one player, two stages, the place where the texts part."""

import pytest
from playwright.sync_api import expect

from specviz.trace.shipped import shipped_trace
from tests.browser.access import serious
from tests.browser.explore_page import open_file
from tests.browser.windows import DESKTOP, PHONE
from tests.helpers import traces

pytestmark = pytest.mark.slow

IDLE = "() => !document.querySelector('#compare .sv-report').hasAttribute('data-busy')"
NAMES = ("first-visit", "broken-residual")
SIDES = (0, 1)


def compare(page):
    page.click("#pages [data-page=compare]")
    page.wait_for_selector("[data-section=two-runs] [data-act=show]")
    page.wait_for_function(IDLE)


def press(page, section, does):
    page.click(f"[data-section={section}] [data-act={does}]")
    page.wait_for_function(IDLE)
    page.wait_for_selector(f"[data-section={section}] .sv-side-by-side-side .sv-cell")


def show(page, *names):
    compare(page)
    for side, name in zip(("left", "right"), names, strict=True):
        page.select_option(f"[data-section=two-runs] [name={side}]", f"shipped:{name}")
    press(page, "two-runs", "show")


def seek(page, frame):
    page.eval_on_selector(
        ".sv-side-by-side-scrub", "(scrub, at) => { scrub.value = at; scrub.dispatchEvent(new Event('input')); }", frame
    )
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def side(page, place):
    return page.locator(".sv-side-by-side-side").nth(place)


def tokens(page, place, kind=""):
    """The texts of the tokens on one side, those that were cut left out."""
    return side(page, place).locator(f".sv-text-body .sv-piece{kind}:not(.sv-is-rejected)").count()


def parts_at():
    """How many tokens both runs share."""
    one, other = ([token.id for token in shipped_trace(name).tokens] for name in NAMES)
    return next(place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)


def fits(page, size):
    return page.evaluate("document.documentElement.scrollWidth") <= size["width"]


MOVED = """async () => {
  const frame = () => new Promise((done) => requestAnimationFrame(done)), moved = [];
  const end = document.querySelector('.sv-side-by-side').getBoundingClientRect().bottom + scrollY;
  for (let at = end - 320; at <= end; at += 5) {
    scrollTo(0, at);
    for (let count = 0; count < 4; count += 1) {
      document.body.style.paddingBottom = `${count % 2}px`;  // something below moves
      await frame();
    }
    if (Math.abs(scrollY - at) > 1) moved.push([at, scrollY]);
  }
  return moved;
}"""
"""Places near the end of both runs, where the player leaves its hold, from which the page scrolled by itself."""


@pytest.mark.parametrize(("size", "theme"), [(DESKTOP, "light"), (PHONE, "dark")])
def test_two_recorded_runs_move_together_until_they_part(open_page, size, theme):
    page = open_page(viewport=size, color_scheme=theme, reduced_motion="no-preference")
    show(page, *NAMES)
    assert fits(page, size)
    part = parts_at()
    for frame in (0, 1, part + 1, 6, 30):
        seek(page, frame)
        assert [tokens(page, place, ":not(.sv-side-by-side-ahead)") for place in SIDES] == [frame] * 2
        assert [tokens(page, place, ".sv-side-by-side-part") for place in SIDES] == [
            int(frame > 0)
        ] * 2 or frame <= part
    assert page.locator(".sv-side-by-side-parted").inner_text().startswith(f"The texts differ from token {part + 1}: ")
    assert serious(page) == []
    targets = page.eval_on_selector_all(
        ".sv-side-by-side-player :is(button, select)", "(all) => all.map((one) => one.getBoundingClientRect().height)"
    )
    assert min(targets) >= (44 if size is PHONE else 24)


def test_the_replay_rests_at_the_parting_and_goes_on_when_asked(open_page):
    page = open_page(reduced_motion="no-preference")
    show(page, *NAMES)
    page.select_option(".sv-side-by-side-pace", label="fast")
    page.click(".sv-side-by-side-toggle")
    expect(page.locator(".sv-side-by-side-toggle")).to_have_attribute("aria-label", "replay both")
    rest = f"{parts_at() + 1} token{'s' if parts_at() else ''}"
    expect(page.locator(".sv-side-by-side-clock")).to_have_text(rest)
    page.click(".sv-side-by-side-toggle")
    expect(page.locator(".sv-side-by-side-clock")).not_to_have_text(rest)
    page.locator(".sv-side-by-side-side .sv-cell").first.focus()
    page.keyboard.press(" ")
    expect(page.locator(".sv-side-by-side-toggle")).to_have_attribute("aria-label", "replay both")
    assert (
        page.evaluate("document.querySelector('.sv-side-by-side-side .sv-stage').hasAttribute('data-playing')") is False
    )
    stopped = page.locator(".sv-side-by-side-clock").inner_text()
    page.wait_for_timeout(300)
    assert page.locator(".sv-side-by-side-clock").inner_text() == stopped


def test_each_stage_keeps_its_own_inspector(open_page):
    page = open_page()
    show(page, *NAMES)
    before = side(page, 1).locator(".sv-title").inner_text()
    side(page, 0).locator(".sv-cell.sv-is-accepted").last.click()
    expect(side(page, 0).locator(".sv-pill")).to_have_text("accepted")
    assert side(page, 1).locator(".sv-title").inner_text() == before
    page.click(".sv-side-by-side-modes [data-mode=time]")
    expect(page.locator(".sv-side-by-side-end").nth(0)).to_contain_text("done after")
    seek(page, 0)
    assert [tokens(page, place) for place in SIDES] == [0, 0]
    expect(page.locator(".sv-side-by-side-end").nth(0)).to_have_text("")


def test_who_wants_no_motion_is_shown_the_end(open_page):
    page = open_page(reduced_motion="reduce")
    show(page, *NAMES)
    seek(page, 0)
    page.click(".sv-side-by-side-toggle")
    expect(page.locator(".sv-side-by-side-clock")).to_have_text("64 tokens")
    expect(page.locator(".sv-side-by-side-toggle")).to_have_attribute("aria-label", "replay both")


def test_a_race_is_run_and_replayed_at_both_widths(open_page):
    page = open_page(color_scheme="dark", reduced_motion="no-preference")
    compare(page)
    page.click("[data-section=race] .sv-options > summary")
    page.fill("[data-section=race] [name=tokens]", "16")
    page.fill("[data-section=race] [name=prompts]", "2")
    press(page, "race", "race")
    rows = page.locator("[data-section=race] .sv-blocks > .sv-tabled", has_text="The two runs above").evaluate(
        "(table) => [...table.querySelectorAll('tbody tr')].map((row) => row.innerText.split('\\t'))"
    )
    assert [row[0].strip() for row in rows[:2]] == ["A · No draft", "B · Draft model, tiny-draft, K 4"]
    for place in SIDES:
        said = side(page, place).locator(".sv-side-by-side-said").inner_text()
        assert said == f"{rows[place][3]} tokens · {rows[place][4]} target calls"
        assert f"done after {rows[place][1]}" in side(page, place).locator(".sv-side-by-side-end").inner_text()
    assert page.locator("[data-section=race] .sv-verdict-exact").count() == 1
    heads = page.locator("[data-section=race] .sv-blocks > .sv-tabled thead tr").first
    caption = page.locator("[data-section=race] .sv-blocks > .sv-words", has_text="Both runs on the prompt")
    for size in (PHONE, DESKTOP):
        page.set_viewport_size(size)
        page.wait_for_function("(width) => innerWidth === width", arg=size["width"])
        assert fits(page, size)
        assert serious(page) == []
        assert heads.evaluate("(row) => row.getBoundingClientRect().height") < 40  # in one line
        assert caption.evaluate("(words) => words.getBoundingClientRect().right") <= size["width"]
    page.select_option(".sv-side-by-side-pace", label="as recorded")
    page.click(".sv-side-by-side-toggle")
    expect(page.locator(".sv-side-by-side-end").nth(0)).not_to_have_text("")
    expect(page.locator(".sv-side-by-side-end").nth(1)).not_to_have_text("")
    expect(caption).to_contain_text("Once upon")
    assert page.evaluate(MOVED) == []
    page.locator("[data-section=race] [data-act=replay]").nth(1).click()
    expect(caption).not_to_contain_text("Once upon")
    page.wait_for_function(IDLE)
    page.wait_for_selector("[data-section=race] .sv-side-by-side-side .sv-cell")
    assert page.locator("[data-section=race] .sv-marked").count() == 1
    with page.expect_download() as saved:
        page.locator("[data-section=race] .sv-links a").first.click()
    assert saved.value.suggested_filename.endswith(".jsonl.gz")


def test_a_hostile_run_stays_text_on_both_stages(open_page, tmp_path):
    page = open_page()
    hostile = traces.Builder(traces.HOSTILE).chain(4, 4).chain(4, 2).chain(4, 0).trace
    open_file(page, tmp_path, hostile)
    compare(page)
    run = page.evaluate("specvizPage.hub().run")
    for name in ("left", "right"):
        page.select_option(f"[data-section=two-runs] [name={name}]", run)
    press(page, "two-runs", "show")
    assert page.locator(".sv-side-by-side :is(script, img, iframe)").count() == 0
    assert page.locator(".sv-side-by-side-parted").inner_text().startswith("The texts are identical")
