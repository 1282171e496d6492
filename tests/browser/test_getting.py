"""The card that fetches a model, in a real browser: size first, progress, stop, go on, run it, and it stays closed."""

from dataclasses import replace

import pytest

from specviz.models.files.hub import is_here
from specviz.ui.startup import free_port, make_page
from tests.browser.windows import DESKTOP
from tests.helpers import tiny_server as pages
from tests.helpers.package_index import NAME, make_index

pytestmark = pytest.mark.slow

WORDS = "document.querySelector('.sv-get-words')?.textContent"


@pytest.fixture
def page(chromium, tmp_path, monkeypatch):
    make_index(tmp_path, monkeypatch)
    pool = pages.tiny_library(tmp_path / "models")
    offer = pages.tiny_offer()
    made = make_page(replace(offer, targets=(*offer.targets, (NAME, NAME)), may_get=True), pool)
    address = made.launch(pages.HOST, free_port(pages.HOST, 0, 1))
    window = chromium.new_page(viewport=DESKTOP)
    window.goto(address)
    window.wait_for_function("window.specvizPage?.hub() && document.querySelector('#k input')")
    yield window
    window.close()
    made.demo.close(verbose=False)


def wait_for_words(page, start):
    page.wait_for_function(f"(start) => {WORDS}?.startsWith(start)", arg=start, polling=50, timeout=60_000)


def test_a_model_is_got_stopped_gone_on_with_and_run_from_the_card(page):
    wait_for_words(page, "SmolLM2 135M Instruct wrote the answer that a first visit sees.")
    page.click(".sv-get-main")
    wait_for_words(page, "downloading smollm2")
    assert page.get_attribute(".sv-get-card [role=progressbar]", "aria-valuenow")
    page.click(".sv-get-card >> text=Stop")
    wait_for_words(page, "Stopped: finished files stay.")
    assert not is_here(NAME)
    page.click(".sv-get-main")
    wait_for_words(page, "SmolLM2 135M Instruct is here.")
    page.click(".sv-get-main")
    page.wait_for_function(f"document.querySelector('#target input').value === '{NAME}'")
    assert page.locator(".sv-get-card").count() == 0


def test_the_card_leaves_the_stage_its_room_and_stays_closed(page):
    stage, card = (page.locator(name).bounding_box() for name in (".sv-screen", ".sv-get-card"))
    assert stage["y"] + stage["height"] <= card["y"]
    assert card["y"] + card["height"] <= DESKTOP["height"]
    page.click(".sv-get-card [aria-label=close]")
    page.reload()
    page.wait_for_function("window.specvizPage?.hub() && document.querySelector('#k input')")
    assert page.locator(".sv-get-card").count() == 0
