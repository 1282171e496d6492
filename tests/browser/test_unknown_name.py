"""A browser that calls the server by a name that it does not know: people read what to do, and the link there works."""

import pytest

from tests.browser.access import serious
from tests.browser.windows import PHONE

pytestmark = pytest.mark.slow


def test_a_name_that_the_server_does_not_know_is_a_page_that_leads_on(chromium, app):
    name = "class.localhost"  # browsers look below localhost on their own machine
    page = chromium.new_page(viewport=PHONE)
    try:
        answer = page.goto(f"http://{name}:{app.address.rpartition(':')[2]}/")
        assert answer.status == 421
        assert page.inner_text("h1") == f"This server does not know the name {name}"
        assert page.inner_text("pre").strip() == f"specviz --allow-host {name}"
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing is cut off"
        assert serious(page) == []
        with page.expect_navigation():
            page.click("main a")
        page.wait_for_selector(".sv-stage")
        assert page.url == f"{app.address}/"
    finally:
        page.close()
