"""What a person does after a run: the four buttons under it, in a page, in a file and in a frame."""

from __future__ import annotations

import base64
import struct
from pathlib import Path

import pytest
from playwright.sync_api import expect

from specviz.trace.shipped import shipped_trace
from specviz.views.explore.run_file import stage_page
from specviz.views.palette import palette
from tests.browser.access import serious
from tests.browser.counter import WATCH_SHIFTS, shifts
from tests.browser.explore_page import (
    STATE,
    choose_unseen_pace,
    slide,
    wait_for_state,
    wait_for_steps,
)
from tests.browser.stage_page import RUNNING, part, push, settle, stages, whole
from tests.browser.windows import PHONE
from tests.helpers import traces

pytestmark = pytest.mark.slow

stage = pytest.fixture(stages)

SMALL = {"width": 1024, "height": 768}
NEXT = ".sv-next-step"
DOES = "(nodes) => nodes.filter((node) => node.checkVisibility()).map((node) => node.dataset.does)"
END = "specvizPage.hub().end.next"
OTHER = f"(before) => specvizPage.hub().run !== before && {STATE} === 'finished'"
COLOURS = """async (png) => {
  const image = new Image();
  image.src = `data:image/png;base64,${png}`;
  await image.decode();
  const canvas = Object.assign(document.createElement('canvas'), {width: image.width, height: image.height});
  const context = canvas.getContext('2d');
  context.drawImage(image, 0, 0);
  const { data } = context.getImageData(0, 0, image.width, image.height), counts = {};
  for (let at = 0; at < data.length; at += 4) {
    const name = '#' + [0, 1, 2].map((part) => data[at + part].toString(16).padStart(2, '0')).join('');
    counts[name] = (counts[name] || 0) + 1;
  }
  return counts;
}"""


def offered(page):
    return page.eval_on_selector_all(NEXT, DOES)


def run_simply(page):
    choose_unseen_pace(page, "full")
    page.click("#run")
    wait_for_state(page, "finished")
    page.wait_for_selector(f"{NEXT}[data-does=picture]")


def saved_picture(page) -> dict[str, int]:
    """Presses Save picture, checks the file's size in pixels, and counts its colours."""
    with page.expect_download() as download:
        page.click(f"{NEXT}[data-does=picture]")
    assert download.value.suggested_filename == "specviz.png"
    content = Path(download.value.path()).read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", content[16:24]) == (1200, 630)
    return page.evaluate(COLOURS, base64.b64encode(content).decode())


def colours_of(*statuses):
    return [palette()["statuses"][status]["light"] for status in statuses]


def test_the_four_buttons_do_what_they_say(open_page):
    page = open_page(simple=True)
    slide(page, "max-tokens", 16)
    run_simply(page)
    assert offered(page) == ["pin", "run", "run", "picture"]
    pin, k, ask, _ = page.evaluate(END)

    page.locator(NEXT).nth(0).click()
    assert page.evaluate("specvizPage.hub().pinned") == pin["at"]
    expect(page.locator(".sv-pill")).to_have_text("rejected")
    expect(page.locator(".sv-text .sv-piece.sv-on")).to_be_in_viewport()

    counts = saved_picture(page)
    assert counts["#ffffff"] > 300_000
    assert all(counts.get(colour, 0) > 100 for colour in colours_of("rejected", "resampled", "plain")), counts

    before = page.evaluate("specvizPage.hub().run")
    page.locator(NEXT).nth(1).click()
    page.wait_for_function(OTHER, arg=before)
    assert page.evaluate("specvizPage.hub().steps.slice(0, 1).map((step) => step.k)") == [k["asks"]["k"]] == [8]

    before = page.evaluate("specvizPage.hub().run")
    prompt = ask["asks"]["prompt"]
    page.locator(NEXT).nth(2).click()
    page.wait_for_function(OTHER, arg=before)
    assert page.input_value("#prompt textarea") == prompt
    assert page.evaluate(f"{END}.filter(({{ does }}) => does === 'run').at(-1).asks.prompt") != prompt


@pytest.mark.parametrize("size", [PHONE, SMALL], ids=["phone", "projector"])
@pytest.mark.parametrize("is_simple", [True, False], ids=["simple", "all controls"])
def test_they_come_into_a_place_that_was_theirs_and_go_while_the_run_plays(open_page, size, is_simple):
    page = open_page(simple=is_simple, viewport=size, has_touch=size is PHONE)
    page.evaluate("document.querySelector('#run').click()")
    wait_for_steps(page, 2)
    height = page.locator(".sv-text-head").bounding_box()["height"]
    choose_unseen_pace(page, "full")
    wait_for_state(page, "finished")
    page.wait_for_selector(NEXT)
    assert page.locator(".sv-text-head").bounding_box()["height"] == height
    assert page.evaluate("document.documentElement.scrollWidth") == size["width"]
    assert serious(page) == []
    page.click("[data-do=toggle]")
    page.wait_for_function(f"!document.querySelector('{NEXT}')")
    page.click("[data-do=toggle]")
    page.wait_for_selector(NEXT)


@pytest.mark.parametrize("width", [1024, 1366])
def test_the_end_of_a_run_moves_nothing(stage, width):
    page, message = stage(width=width, scripts=(WATCH_SHIFTS,)), whole(traces.chain(), recorded=False)
    push(page, part(message, 0, len(message["steps"])))
    settle(page)
    page.wait_for_timeout(300)
    jumped = sum(by for by, _ in shifts(page))
    push(page, {**message, "state": {**RUNNING, "name": "finished", "words": ""}})
    page.wait_for_selector(NEXT)
    page.wait_for_timeout(300)
    assert sum(by for by, _ in shifts(page)) - jumped <= 0.01, shifts(page)


def test_on_a_phone_the_question_opens_the_sheet(open_page):
    page = open_page(simple=True, viewport=PHONE, has_touch=True)
    run_simply(page)
    page.click(f"{NEXT}[data-does=pin]")
    expect(page.locator(".sv-inspector")).to_be_visible()
    expect(page.locator(".sv-inspector .sv-pill")).to_have_text("rejected")


@pytest.mark.parametrize("place", ["?run=broken-residual", "?embed=explore&run=first-visit"])
def test_what_cannot_be_made_here_is_not_offered(open_page, place):
    page = open_page(place, simple=True)
    page.wait_for_selector(NEXT)
    page.wait_for_function(f"({DOES})([...document.querySelectorAll('{NEXT}')]).length === 2")
    assert offered(page) == ["pin", "picture"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_file_a_token_is_explained_and_a_light_picture_is_made_without_a_server(opened, scheme):
    page = opened(stage_page(shipped_trace("real-program"), charts=False), color_scheme=scheme)
    page.wait_for_selector(NEXT)
    assert offered(page) == ["pin", "picture"]
    counts = saved_picture(page)
    assert counts["#ffffff"] > 500_000
    marks = colours_of("accepted", "rejected", "resampled", "bonus", "plain")
    assert all(counts.get(colour, 0) > 100 for colour in marks), counts
    page.click(f"{NEXT}[data-does=pin]")
    expect(page.locator(".sv-pill")).to_have_text("rejected")
    assert serious(page) == []


def test_files_and_links_are_in_reach_without_all_controls(open_page):
    for size in (PHONE, SMALL):
        page = open_page(simple=True, viewport=size, has_touch=size is PHONE)
        for name in ("share", "library"):
            page.wait_for_selector(f"#{name}-open")
        run_simply(page)
        for name in ("library", "share"):
            page.click(f"#{name}-open")
            expect(page.locator(f"#{name}")).to_be_visible()
        page.keyboard.press("Escape")
        right = "(nodes) => Math.max(...nodes.map((node) => node.getBoundingClientRect().right))"
        assert page.eval_on_selector_all("#bar button", right) <= size["width"]


def test_a_long_text_ends_in_the_picture_and_other_windows_do_not_change_it(open_page):
    sizes = []
    for size in (PHONE, SMALL):
        page = open_page("?run=k-8", viewport=size, simple=True, has_touch=size is PHONE)
        page.wait_for_selector(f"{NEXT}[data-does=picture]")
        sizes.append(saved_picture(page))
    assert sizes[0] == sizes[1]
