"""The page behind a proxy that serves it under a path, in a real browser: everything it needs lies beside it."""

from __future__ import annotations

import httpx
import pytest
from gradio_client import Client

from specviz.trace import read_trace
from specviz.ui.startup import free_port, make_page
from tests.browser.explore_page import run_to_end, saved
from tests.browser.windows import ALL_CONTROLS, DESKTOP, borrowed
from tests.helpers import tiny_server as pages
from tests.helpers.path_proxy import proxied

PATH = "/user/ann%40example/proxy/7860"
WAYS = [
    pytest.param((PATH, False), id="left in, and told", marks=pytest.mark.slow),
    pytest.param((PATH, True), id="cut off, and told"),
    pytest.param(("", True), id="cut off, and not told", marks=pytest.mark.slow),
]
"""What a proxy does with the path, and what the server is told of it."""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return pages.tiny_library(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module", params=WAYS)
def address(request, library):
    told, cuts = request.param
    page = make_page(pages.tiny_offer(max_new_tokens=24), library)
    server = page.launch(pages.HOST, free_port(pages.HOST, 0, 1), root_path=told)
    with proxied(server.rstrip("/"), PATH, cuts=cuts) as behind:
        yield behind
    page.demo.close(verbose=False)


@pytest.fixture
def page(chromium, address):
    """The page as a person opens it; leaving it checks that nothing failed and nothing beside it was asked for."""
    wrong = []
    watched = {
        "pageerror": lambda error: wrong.append(str(error)),
        "console": lambda message: wrong.append(message.text) if message.type == "error" else None,
        "request": lambda request: (
            None if request.url.startswith((address, "data:", "blob:")) else wrong.append(request.url)
        ),
    }
    with borrowed(chromium, watched, scripts=(ALL_CONTROLS,), viewport=DESKTOP) as page:
        page.goto(address)
        page.wait_for_function("window.specvizPage?.hub() && document.querySelector('#k input')")
        yield page
    assert not wrong, wrong


def test_run_files_charts_help_link_and_cookie_lie_under_the_path(page, address):
    (cookie,) = page.context.cookies()
    assert f"{cookie['path']}/" == httpx.URL(address).raw_path.decode(), "of this page alone"
    page.click("#guide-open")
    with page.context.expect_page() as opened:
        page.click("#guide a >> text=All documents")
    opened.value.click("main a[href='settings.md']")
    opened.value.wait_for_url(f"{address}specviz/docs/settings.md")
    opened.value.close()
    run_to_end(page)
    words = page.locator(".sv-text .sv-piece:not(.sv-is-rejected)").all_text_contents()
    assert len(saved(page).tokens) == len(words) > 10, "the file is of the run that is shown"
    page.click("#share-open")
    page.wait_for_function("document.querySelector('.sv-share-link')?.value")
    assert page.input_value(".sv-share-link").startswith(f"{address}#run=")
    page.click(".sv-charts summary")
    page.wait_for_selector(".sv-charts .js-plotly-plot")


def test_the_api_answers_and_its_files_lie_below_its_address(address):
    caller = Client(address, verbose=False)
    answer = caller.predict("Once upon a time", max_new_tokens=8, api_name="/run")
    whole = read_trace(httpx.get(f"{address.rstrip('/')}{answer['trace']}").content)
    assert whole.text == answer["text"]
    assert httpx.get(f"{address.rstrip('/')}{answer['page']}").status_code == 200
