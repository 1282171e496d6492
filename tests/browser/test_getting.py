"""The button that fetches a model, in a real browser: size and source first, progress, stop, go on, choose it."""

from dataclasses import replace

import pytest

from specviz.models.files.hub import is_here
from specviz.ui.startup import free_port, make_page
from tests.browser.windows import DESKTOP
from tests.helpers import tiny_server as pages
from tests.helpers.package_index import NAME, make_index

pytestmark = pytest.mark.slow

WORDS = "document.querySelector('#get-words textarea')?.value"


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
    window.click("#all-controls")
    window.click("#more")
    yield window
    window.close()
    made.demo.close(verbose=False)


def wait_for_words(page, start):
    page.wait_for_function(f"(start) => {WORDS}?.startsWith(start)", arg=start, polling=50, timeout=60_000)


def test_a_model_is_got_stopped_and_gone_on_with_on_the_page(page):
    wait_for_words(page, "SmolLM2 135M Instruct: 98 MB from huggingface.co")
    page.click("#get")
    wait_for_words(page, "downloading smollm2: ")
    page.click("#get-stop")
    wait_for_words(page, "Stopped: finished files stay.")
    assert not is_here(NAME)
    page.click("#get")
    wait_for_words(page, "smollm2 is ready: choose it as the target")
    page.wait_for_selector("#get", state="hidden")
    page.click("#target input")
    assert page.get_by_role("option", name=NAME, exact=True).is_visible()
