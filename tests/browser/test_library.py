"""The library drawer in a real browser: runs join, outlive the server, open, go and come back, and are compared."""

import pytest

from specviz.trace.shipped import shipped_runs
from specviz.views.bundle import bundle
from tests.browser.access import serious
from tests.browser.explore_page import HOSTILE, PIECES, STATE, begin, open_file, run_to_end, stop, wait_until
from tests.browser.stage_page import PAGES
from tests.browser.windows import DESKTOP, PHONE
from tests.helpers import tiny_server as pages
from tests.helpers import traces

pytestmark = pytest.mark.slow

OWN = "#library-panel .sv-library-group:nth-of-type(1) .sv-library-entry"
RECORDED = "#library-panel .sv-library-group:nth-of-type(2) .sv-library-entry"
READY = "window.specvizPage?.hub() && document.querySelector('#k input') && document.querySelector('.sv-library-foot')"
RUN = "specvizPage.hub().run"
KEEPER = f"{bundle(PAGES).script}; const keeper = await specviz.keepRuns()"
FORGET = "() => ['localStorage', 'sessionStorage'].forEach((name) => window[name].clear())"
FULL = """Object.defineProperty(IDBObjectStore.prototype, 'put', {value() {
  throw new DOMException('no room', 'QuotaExceededError'); }});"""
SILENT = "IDBFactory.prototype.open = () => ({});"
DAMAGED = """(() => {
  const { open } = IDBFactory.prototype;
  IDBFactory.prototype.open = function () {
    const request = open.call(this, 'without-stores', 1);
    Object.defineProperty(request, 'onupgradeneeded', {set() {}});
    return request;
  };
})();"""
UNREADABLE = """Object.defineProperty(IDBObjectStore.prototype, 'getAll', {value() {
  throw new DOMException('damaged', 'UnknownError'); }});"""
PRIVATE = "IDBFactory.prototype.open = () => { throw new DOMException('not allowed', 'SecurityError'); };"
EARLY = """window.BroadcastChannel = class extends BroadcastChannel {
  constructor(name) { super(name); setTimeout(() => this.dispatchEvent(new MessageEvent('message'))); } };"""
NOTE_WORDS = """() => {
  window.said = [];
  const line = document.querySelector('.sv-library-said p');
  const watched = {childList: true, characterData: true, subtree: true};
  new MutationObserver(() => window.said.push(line.textContent)).observe(line, watched);
}"""
DROP = """(text) => {
  const data = new DataTransfer();
  data.items.add(new File([text], 'dropped.jsonl'));
  for (const kind of ['dragover', 'drop']) {
    document.querySelector('#stage').dispatchEvent(
      new DragEvent(kind, {dataTransfer: data, bubbles: true, cancelable: true}));
  }
}"""


def open_library(page):
    if not page.evaluate("document.documentElement.hasAttribute('data-sv-library')"):
        page.click("#library-open")
    page.wait_for_selector(RECORDED)
    page.wait_for_function(  # it has slid in
        "document.querySelector('#library').getBoundingClientRect().right <= document.documentElement.clientWidth + 1"
    )


def titles(page, entries=OWN):
    return page.locator(f"{entries} h3").all_text_contents()


def wait_for_entries(page, number):
    page.wait_for_function(
        "([entries, number]) => document.querySelectorAll(entries).length === number", arg=[OWN, number], polling=50
    )


def said(page):
    return page.text_content(".sv-library-said p")


def put(page, entry, packed):
    """As another program would write into the browser's store."""
    page.evaluate(f"async (all) => {{ {KEEPER}; await keeper.put(...all); }}", [entry, packed])


def choose_file(page, path, trace):
    """As `open_file` through the drawer's own button, which takes the same name again."""
    trace.save(path)
    open_library(page)
    with page.expect_file_chooser() as chooser:
        page.click("#open")
    chooser.value.set_files(path)
    page.wait_for_function("!document.documentElement.hasAttribute('data-sv-library')")


def reload(page):
    page.reload()
    page.wait_for_function(READY)


def made(seed, words="Once upon a"):
    """A finished trace; each seed is another run."""
    trace = traces.Builder(seed=seed).chain(4, 2).chain(4, 4).finish()
    trace.header.request["prompt"] = words
    return trace


def test_a_run_joins_when_it_is_over_and_a_reload_brings_it_no_second_time(page):
    wait_for_entries(page, 0)
    begin(page, steps=2, tokens=400)
    page.reload()
    page.wait_for_function(READY)
    page.wait_for_function(f"{STATE} === 'running'")
    wait_for_entries(page, 0)
    stop(page)
    wait_for_entries(page, 1)
    reload(page)
    page.wait_for_function(f"{STATE} === 'finished'")
    open_library(page)
    wait_for_entries(page, 1)
    assert titles(page) == ["Draft model · tiny-draft · K 4 · temperature 1"]
    assert page.get_attribute(OWN, "aria-current") == "true"


def test_a_run_that_another_one_drives_away_and_a_paused_one_that_is_stopped_join_too(page):
    begin(page, steps=2)
    page.click("#pause")
    page.wait_for_function(f"{STATE} === 'paused'")
    wait_for_entries(page, 0)
    stop(page)
    wait_for_entries(page, 1)
    begin(page, steps=2)
    run_to_end(page)
    wait_for_entries(page, 3)


def test_a_run_outlives_the_server_and_opens_as_it_was(open_page, app, tmp_path):
    page = open_page()
    run_to_end(page)
    wait_for_entries(page, 1)
    before = page.evaluate(PIECES)
    app.page.registry._views.clear()  # as after a restart
    page.evaluate(FORGET)
    reload(page)
    assert page.evaluate(RUN) is None
    open_library(page)
    wait_for_entries(page, 1)
    page.click(f"{OWN} button:text-is('Open')")
    page.wait_for_function(
        "(count) => document.querySelectorAll('.sv-text .sv-piece').length === count", arg=len(before)
    )
    assert page.evaluate(PIECES) == before
    assert page.evaluate("specvizPage.hub().head.recorded") is True
    wait_for_entries(page, 1)
    assert not page.evaluate("document.documentElement.hasAttribute('data-sv-library')")


def test_recorded_runs_open_again_and_again_and_join_nothing(page):
    open_library(page)
    assert titles(page, RECORDED) == [run.title for run in shipped_runs().values()]
    for name in ("greedy", "tree", "greedy"):
        open_library(page)
        page.click(f"{RECORDED}[data-id='shipped:{name}'] button:text-is('Open')")
        title = "Token tree" if name == "tree" else "temperature 0"
        page.wait_for_function(f"document.querySelector('.sv-context').textContent.includes('{title}')")
        page.wait_for_selector(f"{RECORDED}[aria-current][data-id='shipped:{name}']", state="attached")
    page.wait_for_timeout(300)
    wait_for_entries(page, 0)


def test_opened_and_dropped_files_join_marked_and_the_same_file_only_once(page, tmp_path):
    choose_file(page, tmp_path / "a.jsonl.gz", made(1))
    wait_for_entries(page, 1)
    page.evaluate(DROP, traces.as_bytes(traces.lines_of(made(2))).decode())
    wait_for_entries(page, 2)
    choose_file(page, tmp_path / "a.jsonl.gz", made(1))
    page.wait_for_function("document.querySelectorAll('#library-panel [aria-current]').length === 1")
    page.wait_for_timeout(500)
    wait_for_entries(page, 2)
    facts = page.locator(f"{OWN} .sv-library-facts").all_text_contents()
    assert sorted(text == "on the stage now" or " · opened · " in text for text in facts) == [True] * 3


def test_a_deleted_run_comes_back_by_undo_alone(page):
    run_to_end(page)
    wait_for_entries(page, 1)
    open_library(page)
    page.click(f"{OWN} button:text-is('Delete')")
    wait_for_entries(page, 0)
    assert said(page).startswith("Deleted: Draft model")
    page.keyboard.press("Enter")  # the focus is on Undo
    wait_for_entries(page, 1)
    page.click(f"{OWN} button:text-is('Delete')")
    wait_for_entries(page, 0)
    reload(page)
    page.wait_for_function(f"{STATE} === 'finished'")
    page.wait_for_timeout(2000)
    wait_for_entries(page, 0)


def test_two_tabs_share_what_is_kept(page):
    run_to_end(page)
    wait_for_entries(page, 1)
    other = page.context.new_page()
    other.goto(page.url)
    other.wait_for_function(READY)
    wait_for_entries(other, 1)
    run_to_end(other)
    wait_for_entries(page, 2)
    open_library(page)
    page.locator(f"{OWN} button:text-is('Delete')").first.click()
    wait_for_entries(other, 1)


def test_a_tab_that_hears_of_another_before_it_has_read_anything_waits(page):
    other = page.context.new_page()
    other.add_init_script(EARLY)
    wrong = []
    other.on("pageerror", lambda error: wrong.append(str(error)))
    other.goto(page.url)
    other.wait_for_function("document.querySelector('.sv-library-foot')")
    run_to_end(page)
    wait_for_entries(page, 1)
    wait_for_entries(other, 1)
    assert wrong == []


def test_the_drawer_waits_for_a_file_that_is_read_and_stays_for_one_that_is_refused(page, tmp_path):
    (tmp_path / "wrong.jsonl").write_bytes(b"no trace")
    made(1).save(tmp_path / "right.jsonl")
    open_library(page)
    page.evaluate(NOTE_WORDS)
    page.set_input_files("#library input[type=file]", tmp_path / "wrong.jsonl")
    page.wait_for_selector(".toast-body.error")
    page.wait_for_function("!document.documentElement.hasAttribute('data-sv-reading')")
    assert page.evaluate("window.said") == ["Reading the file…", ""]
    assert page.evaluate("document.documentElement.hasAttribute('data-sv-library')")
    page.set_input_files("#library input[type=file]", tmp_path / "right.jsonl")
    page.wait_for_function("!document.documentElement.hasAttribute('data-sv-library')")
    assert page.evaluate(RUN), "it is on the stage when the drawer closes"
    assert page.evaluate("window.said") == ["Reading the file…", "", "Reading the file…", ""]


def test_dates_are_told_in_the_time_of_whoever_looks(open_page, tmp_path):
    page, told = open_page(timezone_id="Asia/Kolkata"), "1 Jan 2025, 05:30:00"  # the file says 00:00:00 UTC
    choose_file(page, tmp_path / "a.jsonl.gz", made(1))
    wait_for_entries(page, 1)
    assert page.locator(f"{OWN} .sv-library-facts").first.text_content().endswith(f" · opened · {told}")
    reload(page)
    wait_for_entries(page, 1)
    assert told in page.locator(f"{OWN} .sv-library-facts").first.text_content()


def test_two_ticked_runs_are_compared_and_the_server_is_told_what_it_has_forgotten(open_page, app):
    page = open_page()
    acts = []
    run_to_end(page)
    wait_for_entries(page, 1)
    app.page.registry._views.clear()
    open_library(page)
    assert page.is_disabled(".sv-library-compare")
    page.check(f"{OWN} input")
    page.check(f"{RECORDED}[data-id='shipped:k-8'] input")
    assert page.is_disabled(f"{RECORDED}[data-id='shipped:k-1'] input")
    page.route("**/queue/join*", lambda route: _noted(route, acts))
    page.click(".sv-library-compare")
    page.wait_for_function("location.hash === '#compare'")
    page.wait_for_function("!document.querySelector('#library').checkVisibility({visibilityProperty: true})")
    wait_until(page, lambda: acts)
    (values,) = acts
    assert values["right"] == "shipped:k-8"
    assert app.page.registry.get(values["left"]).trace.steps


def _noted(route, acts):
    data = (route.request.post_data_json or {}).get("event_data") or {}
    if data.get("section") == "two-runs":
        acts.append(data["values"])
    route.continue_()


def test_the_oldest_is_let_go_in_words(page):
    for at in range(30):
        put(page, {"key": f"k{at}", "title": f"run {at}", "size": 1, "at": at}, "AA")
    run_to_end(page)
    wait_for_entries(page, 30)
    assert "run 1" in titles(page)
    assert "run 0" not in titles(page)
    assert said(page) == "This browser stores at most 30 runs and 24 MB: the oldest was deleted."


def test_what_cannot_be_opened_any_more_says_so_and_stays(page):
    put(page, {"key": "x", "title": "spoilt", "size": 1, "at": 1}, "AAAA")
    reload(page)
    open_library(page)
    page.click(f"{OWN} button:text-is('Open')")
    page.wait_for_selector(".toast-body.error")
    assert "this run cannot be opened" in page.text_content(".toast-body.error")
    assert titles(page) == ["spoilt"]


@pytest.mark.parametrize(
    ("script", "place", "words"),
    [
        (FULL, ".sv-library-said", "no more room"),
        (PRIVATE, ".sv-library-group", "until the page is closed"),
        (SILENT, ".sv-library-group", "until the page is closed"),
        (DAMAGED, ".sv-library-group", "until the page is closed"),
        (UNREADABLE, ".sv-library-group", "until the page is closed"),
    ],
    ids=["no room", "private mode", "it never opens", "without its stores", "not to be read"],
)
def test_a_browser_that_keeps_nothing_says_so_and_the_runs_stay_while_the_page_does(open_page, script, place, words):
    page = open_page(fresh=True)
    page.add_init_script(script)
    reload(page)
    run_to_end(page)
    wait_for_entries(page, 1)
    assert words in page.locator(place).first.text_content()
    assert page.evaluate("document.documentElement.hasAttribute('data-sv-news')") == (script is FULL)
    run_to_end(page)
    wait_for_entries(page, 2)
    open_library(page)
    page.locator(f"{OWN} button:text-is('Open')").nth(1).click()
    page.wait_for_function("specvizPage.hub().head?.recorded")
    open_library(page)
    page.locator(f"{OWN} button:text-is('Delete')").first.click()
    wait_for_entries(page, 1)


def test_what_a_hostile_file_brings_stays_text_also_from_the_store(page, tmp_path):
    first, *rest = traces.hostile().events()
    first.request["prompt"] = HOSTILE
    open_file(page, tmp_path, type(traces.hostile())([first, *rest]))
    wait_for_entries(page, 1)
    put(page, {"key": "evil", "title": HOSTILE, "words": {"a": 1}, "facts": HOSTILE, "size": "x", "run": [HOSTILE]}, 1)
    reload(page)
    open_library(page)
    wait_for_entries(page, 2)
    assert HOSTILE in titles(page)
    assert page.evaluate("document.querySelectorAll('#library-panel :is(img, script, iframe)').length") == 0
    assert page.evaluate("window.__pwned") is None
    page.locator(OWN, has_text="<img").last.locator("button").first.click()
    page.wait_for_function("document.querySelector('.sv-library-said').textContent.includes('cannot be read any more')")


def test_a_run_that_another_window_has_deleted_is_called_so(page):
    put(page, {"key": "x", "title": "gone", "size": 1, "at": 1}, "AAAA")
    reload(page)
    open_library(page)
    page.evaluate(f"async () => {{ {KEEPER}; await keeper.remove('x'); }}")  # without a word to this page
    page.click(f"{OWN} button:text-is('Open')")
    page.wait_for_function(
        "document.querySelector('.sv-library-said').textContent.includes('deleted in another window')"
    )
    wait_for_entries(page, 0)


IN_SIGHT = """() => ['.sv-lanes-body', '.sv-text-scroll'].every((part) => {
  const host = document.querySelector(part), on = host.querySelector('.sv-on');
  if (!on) return false;
  const box = on.getBoundingClientRect(), frame = host.getBoundingClientRect();
  return box.top >= frame.top && box.bottom <= frame.bottom;
})"""


def test_text_and_lanes_of_a_run_that_is_opened_show_the_place_that_is_explained(page):
    open_library(page)
    page.click(f"{RECORDED}[data-id='shipped:k-1'] button:text-is('Open')")
    page.wait_for_function("specvizPage.hub().head?.recorded")
    page.wait_for_timeout(300)  # the text has come to rest
    assert page.evaluate("specvizPage.hub().pinned.step < 10 && specvizPage.hub().cursor > 30")
    assert page.evaluate(IN_SIGHT)
    assert page.get_attribute(".sv-stage", "data-sheet") is None
    page.evaluate("specvizPage.hub().release()")
    page.evaluate("specvizPage.hub().back(); specvizPage.hub().forward()")
    page.wait_for_timeout(300)
    assert page.evaluate("specvizPage.hub().selected().step === specvizPage.hub().steps.length - 1")
    assert page.evaluate(IN_SIGHT), "whoever moves on follows the end"


@pytest.mark.parametrize(("size", "theme"), [(DESKTOP, "light"), (PHONE, "dark")])
def test_the_drawer_fits_and_is_accessible(open_page, tmp_path, size, theme):
    page = open_page(viewport=size, color_scheme=theme, reduced_motion="reduce")
    choose_file(page, tmp_path / "a.jsonl.gz", made(1, "One day a small fox with a " + "very" * 40))
    choose_file(page, tmp_path / "b.jsonl.gz", made(2))
    wait_for_entries(page, 2)
    open_library(page)
    page.locator(f"{OWN} button:text-is('Delete')").last.click()
    wait_for_entries(page, 1)
    page.locator(f"{OWN} input").check()
    page.locator(f"{RECORDED} input").first.check()
    assert serious(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    assert page.evaluate(
        "document.querySelector('#library').scrollWidth <= document.querySelector('#library').clientWidth"
    )
    least = 44 if size is PHONE else 24
    small = page.eval_on_selector_all(
        "#library :is(button, .sv-library-tick)",
        "(all, least) => all.filter((one) => one.getBoundingClientRect().height < least).length",
        least,
    )
    assert small == 0
    page.keyboard.press("Escape")
    assert not page.evaluate("document.documentElement.hasAttribute('data-sv-library')")


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    with pages.served(tmp_path_factory.mktemp("models"), max_new_tokens=32) as served:
        yield served
