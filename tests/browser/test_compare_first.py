"""Compare on a first visit, in a real browser: seen before it is filled in, and what waits while a section works."""

import pytest

from tests.browser.access import serious
from tests.browser.page_reports import IDLE, SECTIONS, turn_to
from tests.browser.windows import DESKTOP, PHONE

pytestmark = pytest.mark.slow

VIEWS = (
    (DESKTOP, "light"),
    (DESKTOP, "dark"),
    ({"width": 1024, "height": 768}, "light"),
    (PHONE, "light"),
    (PHONE, "dark"),
)
IDS = [f"{size['width']} {theme}" for size, theme in VIEWS]
TARGET = 44  # px on a phone
SEEN = """() => [...document.querySelectorAll('#compare .sv-section')].map((section) => {
  const isShown = (node) => node.checkVisibility() && node.getBoundingClientRect().height > 10;
  const first = (selector) => [...section.querySelectorAll(selector)].find(isShown);
  const example = first('.sv-exhibit'), form = first('.sv-controls');
  const pictures = '.sv-plot, table, .sv-bars-table, .sv-segments, .sv-verdict, .sv-texts, .sv-side-by-side';
  return {
    name: section.dataset.section,
    picture: Boolean((example || section) && [...(example || section).querySelectorAll(pictures)].find(isShown)),
    above: !example || !form || Boolean(example.compareDocumentPosition(form) & Node.DOCUMENT_POSITION_FOLLOWING),
    source: example ? example.querySelector('figcaption').textContent : '',
    isExample: Boolean(example),
    fields: form ? [...form.querySelectorAll('input, select, textarea')].filter(isShown).length : 0,
    takes: form ? [...form.querySelectorAll('.sv-takes')].filter(isShown).map((node) => node.textContent).join() : '',
    measures: Boolean(form && form.querySelector('[data-act]:not([data-free])')),
  };
})"""
WAITING = """() => [...document.querySelectorAll('#compare :disabled')]
  .filter((node) => node.checkVisibility()).map((node) => {
  const why = document.getElementById(node.getAttribute('aria-describedby'));
  return [node.textContent, why && why.checkVisibility() ? why.textContent : ''];
})"""
FADED = """() => [...document.querySelectorAll('#compare .sv-report *')]
  .filter((node) => node.checkVisibility() && getComputedStyle(node).opacity < 1)
  .filter((node) => !node.matches(':disabled, .sv-plot *'))
  .map((node) => node.className)"""


@pytest.mark.parametrize(("size", "theme"), VIEWS, ids=IDS)
def test_each_section_is_looked_at_before_it_is_filled_in(open_page, size, theme):
    page = open_page(viewport=size, color_scheme=theme, simple=True)
    turn_to(page, "compare")
    seen = page.evaluate(SEEN)
    assert [section["name"] for section in seen] == SECTIONS["compare"]
    assert [section["name"] for section in seen if not section["picture"] or not section["above"]] == []
    assert [
        section["name"] for section in seen if section["isExample"] and "xample, from" not in section["source"]
    ] == []
    assert {section["name"]: section["fields"] for section in seen if section["fields"] > 3} == {}
    assert [section["name"] for section in seen if section["measures"] and "this machine" not in section["takes"]] == []
    page.wait_for_function("() => document.documentElement.scrollWidth <= innerWidth")
    assert serious(page) == []


def test_options_open_with_the_keyboard_and_are_large_enough_for_a_finger(open_page):
    page = open_page(viewport=PHONE, simple=True)
    turn_to(page, "compare")
    summary = page.locator("#compare [data-section=race] .sv-options > summary")
    summary.focus()
    page.keyboard.press("Enter")
    assert page.is_visible("#compare [data-section=race] [name=k_left]")
    low = page.eval_on_selector_all(
        "#compare .sv-controls :is(summary, button, select, input)",
        f"(all) => all.filter((node) => node.checkVisibility() && node.getBoundingClientRect().height < {TARGET})"
        ".map((node) => node.outerHTML)",
    )
    assert low == []
    assert serious(page) == []
    page.fill("#compare [data-section=race] [name=tokens]", "7")
    summary.press("Enter")
    assert page.is_hidden("#compare [data-section=race] [name=tokens]")
    page.click("#compare [data-section=race] [data-act=race]")  # the field that is wrong comes into sight
    assert page.is_visible("#compare [data-section=race] [name=tokens]")


@pytest.mark.parametrize(("size", "theme"), [(DESKTOP, "light"), (PHONE, "dark")])
def test_while_a_section_works_only_what_must_waits_and_says_why(open_page, size, theme):
    page = open_page(viewport=size, color_scheme=theme, simple=True)
    turn_to(page, "compare")
    assert page.evaluate(WAITING) == []
    page.click("#compare [data-section=poor-cases] [data-act=measure]")
    page.wait_for_selector("#compare [data-section=poor-cases] .sv-job")
    page.wait_for_timeout(500)  # the sentence comes a moment later, so that quick work does not make it flicker
    waiting = page.evaluate(WAITING)
    why = "One task at a time: Where a draft does not help is running."
    assert {reason for _, reason in waiting} == {why}
    assert "Race" in [words for words, _ in waiting]
    assert page.evaluate(FADED) == []
    assert page.locator("#compare .sv-exhibit").count() > 5
    assert serious(page) == []
    page.click("#compare [data-section=two-runs] [data-act=show]")
    page.wait_for_selector("#compare [data-section=two-runs] .sv-side-by-side-side .sv-cell")
    assert page.is_visible("#compare [data-section=poor-cases] .sv-job button")
    page.click("#compare [data-section=poor-cases] .sv-job button")
    page.wait_for_function(IDLE, arg="compare")
    assert page.evaluate(WAITING) == []
