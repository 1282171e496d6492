"""The documents under Help, in a real browser."""

import pytest

from tests.browser.access import serious
from tests.browser.windows import DESKTOP, PHONE
from tests.helpers.documents import DOCS

pytestmark = pytest.mark.slow

PAPER = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 28)"}


def help_of(page):
    """The tab that Help opens."""
    page.click("#guide-open")
    with page.context.expect_page() as opened:
        page.click("#guide a >> text=All documents")
    opened.value.wait_for_load_state()
    return opened.value


@pytest.mark.parametrize(("size", "theme"), [(DESKTOP, "light"), (PHONE, "dark")])
def test_every_document_fits_and_is_accessible(open_page, size, theme):
    page = open_page(viewport=size, color_scheme=theme)
    assert page.locator("#pages >> text=Help").bounding_box()["height"] >= 24
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    documents = help_of(page)
    asked = []
    documents.on("request", lambda request: asked.append(request.url))
    for name in DOCS:
        documents.click("nav a")
        documents.click(f"a[href='{name}']" if name != "README.md" else "nav a")
        documents.wait_for_url(f"**/docs/{name}")
        assert documents.evaluate("document.documentElement.scrollWidth") <= size["width"], name
        assert documents.evaluate("getComputedStyle(document.body).backgroundColor") == PAPER[theme]
        assert serious(documents) == [], name
    assert {address.split("/specviz/docs/")[0] for address in asked} == {page.url.split("/#")[0].rstrip("/")}


def test_a_document_has_the_theme_that_was_chosen_in_the_app(open_page):
    page = open_page(color_scheme="light")
    page.click("#theme")
    page.wait_for_function("document.body.classList.contains('dark')")
    assert help_of(page).evaluate("getComputedStyle(document.body).backgroundColor") == PAPER["dark"]
