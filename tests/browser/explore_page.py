"""What a person does on Explore."""

from __future__ import annotations

import re
import time

from specviz.trace import Trace, read_trace
from tests.browser.windows import PATIENCE_MS

HOSTILE = (
    "<img src=x onerror=window.__pwned=1>${window.__pwned=2}{{window.__pwned=3}}<script>window.__pwned=4</script>`"
)


STATE = "document.documentElement.dataset.svState"


PIECES = """() => [...document.querySelectorAll('.sv-text .sv-piece')].map((node) => ({
  step: Number(node.dataset.step), ref: node.dataset.ref, text: node.textContent,
  status: [...node.classList].find((name) => name.startsWith('sv-is-')).slice(6)}))"""


def choose_pace(page, pace):
    page.click(f"#pace label:has(input[value={pace}])")


def choose_unseen_pace(page, pace):
    """Where the simple view or a narrow window hides its field."""
    page.evaluate(f"document.querySelector('#pace input[value={pace}]').click()")


def slide(page, field, value):
    page.eval_on_selector(
        f"#{field} input[type=range]",
        "(node, value) => { node.value = value; node.dispatchEvent(new Event('input', {bubbles: true})); }",
        value,
    )


def choose(page, field, name):
    page.click(f"#{field} input")
    page.click(f"[role=option][aria-label='{name}']")


def wait_for_state(page, *states):
    page.wait_for_function(f"{list(states)}.includes({STATE})")


def run_to_end(page, pace="full"):
    choose_pace(page, pace)
    before = page.evaluate("specvizPage.hub().run")
    page.click("#run")
    page.wait_for_function(f"(before) => specvizPage.hub().run !== before && {STATE} === 'finished'", arg=before)


def saved(page) -> Trace:
    page.click("#share-open")
    with page.expect_download() as download:
        page.click("#share a[data-file=trace]")
    page.click("#share-open")
    assert re.fullmatch(r"specviz-[\dTZ]+-draft_model\.jsonl\.gz", download.value.suggested_filename)
    with open(download.value.path(), "rb") as file:
        return read_trace(file.read())


def wait_for_steps(page, count):
    page.wait_for_function(
        f"new Set([...document.querySelectorAll('.sv-text .sv-piece')].map((n) => n.dataset.step)).size >= {count}"
    )


def wait_until(page, is_so):
    """For what the server knows and the page does not show."""
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while not is_so():
        assert time.monotonic() < deadline
        page.wait_for_timeout(20)


def begin(page, pace="normal", steps=2, tokens=128):
    """A run of so many steps so far. tokens: enough to go on until the test has come to what it is about."""
    slide(page, "max-tokens", tokens)
    choose_pace(page, pace)
    before = page.evaluate("specvizPage.hub().run")
    page.click("#run")
    page.wait_for_function("(before) => specvizPage.hub().run !== before", arg=before)
    wait_for_steps(page, steps)


def stop(page):
    """Ends a run, unless an end token has ended it meanwhile. One that goes on unstopped outlasts this wait."""
    if page.is_visible("#stop"):
        page.click("#stop")
    wait_for_state(page, "finished")


def open_file(page, tmp_path, trace):
    """Waits for the file's own run: the run of a first visit on the stage may be as long."""
    path = tmp_path / "opened.jsonl.gz"
    trace.save(path)
    before = page.evaluate("specvizPage.hub().run")
    page.set_input_files("input[type=file]", path)
    page.wait_for_function("(before) => specvizPage.hub().run !== before", arg=before)
    page.wait_for_function(f"document.querySelectorAll('.sv-text .sv-piece').length >= {len(trace.tokens)}")
