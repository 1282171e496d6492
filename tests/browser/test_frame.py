"""The page within another host's page, whose frame grows and shrinks with its content, as the hub's does."""

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import expect

from specviz.trace.shipped import shipped_trace
from tests.browser.windows import DESKTOP

pytestmark = pytest.mark.slow

HOST_PAGE = """<!doctype html><title>a course</title><body style="margin:0">
<iframe src="{address}" style="width:1200px; height:600px; border:0" id="frame"></iframe><script>
const frame = document.getElementById('frame');
const options = '[iFrameSizer]f:8:false:false:32:true:true::bodyOffset::::0:false:child:scroll:false';
setInterval(() => frame.contentWindow.postMessage(options, '*'), 300);
window.addEventListener('message', (event) => {{
  const [name, height] = String(event.data).split(':');
  if (name === '[iFrameSizer]f' && Number(height) > 0) frame.style.height = height + 'px';  // others tell of the mouse
}});
</script></body>"""
MOST = 1000  # pixels of Explore in a frame: the stage, with what stands above and below it
HEIGHT = "() => document.getElementById('frame').clientHeight"
NO_STORE = """for (const name of ['indexedDB', 'localStorage', 'sessionStorage']) {
  Object.defineProperty(window, name, { get() { throw new DOMException('blocked', 'SecurityError'); } });
}"""
IS_BETWEEN = "([low, high]) => ((is) => is >= low && is <= high)(document.getElementById('frame').clientHeight)"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *words):
        pass


@pytest.fixture
def framed(chromium, app, tmp_path):
    """framed(place): a page of another port that frames ours, and ours inside it."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    contexts = []

    def framed(place="", script=""):
        (tmp_path / "course.html").write_text(HOST_PAGE.format(address=f"{app.address}/{place}"), "utf-8")
        contexts.append(chromium.new_context(viewport=DESKTOP))
        if script:
            contexts[-1].add_init_script(script)
        page = contexts[-1].new_page()
        page.goto(f"http://127.0.0.1:{server.server_port}/course.html")
        frame = page.frame_locator("#frame")
        expect(frame.locator(".sv-stage")).to_be_visible()
        return page, frame

    yield framed
    for context in contexts:
        context.close()
    server.shutdown()


def height(page, low, high):
    """Waits until the frame is between these, and has rested there."""
    page.wait_for_function(IS_BETWEEN, arg=[low, high])
    page.wait_for_timeout(1000)
    assert low <= page.evaluate(HEIGHT) <= high


def test_the_stage_is_capped_and_the_frame_shrinks_with_a_shorter_page(framed):
    page, frame = framed("?run=eagle")
    expect(frame.locator(".sv-player")).to_be_visible()
    height(page, 500, MOST)
    frame.locator("[data-page=compare]").click()
    height(page, 1200, 20_000)
    frame.locator("[data-page=explore]").click()
    height(page, 500, MOST)
    assert frame.locator(".sv-player").bounding_box()["y"] < 850
    with page.context.expect_page() as opened:
        frame.locator(".sv-own-window").click()
    expect(opened.value.locator(".sv-stage")).to_be_visible()


def test_a_course_page_gets_the_stage_alone_with_its_run(framed):
    _, frame = framed("?embed=explore&run=eagle&step=3")
    expect(frame.locator(".sv-place")).to_contain_text(f"of {len(shipped_trace('eagle').steps)}")
    expect(frame.locator(".sv-where")).to_contain_text("step 3")
    expect(frame.locator("#setup")).to_be_hidden()
    expect(frame.locator("#bar")).to_be_hidden()
    expect(frame.locator(".sv-own-window")).to_be_visible()
    assert frame.locator(".sv-stage").bounding_box()["y"] < 10


def test_a_frame_that_keeps_nothing_says_so(framed):
    _, frame = framed(script=NO_STORE)
    frame.locator("#all-controls").click()
    frame.locator("#library-open").click()
    expect(frame.locator("#library-panel")).to_contain_text("In this frame the browser keeps nothing")


def test_a_run_that_is_not_recorded_is_refused_by_name(open_page):
    page = open_page("?run=nowhere")
    expect(page.locator("body")).to_contain_text("a recorded run must be one of")
