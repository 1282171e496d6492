"""A page with the stage alone: the browser's half in Chromium, fed by hand, with no Gradio and no server.

`open_stage` mounts it; `push` gives it an increment as Gradio would. A page knows its errors and its foreign requests.
`stage = pytest.fixture(stages)` makes the fixture of a test file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from specviz.trace import Trace
from specviz.views.bundle import bundle
from specviz.views.document import palette_head
from specviz.views.document import stage_html as stage_markup
from specviz.views.explore.feed import Feed, show_state
from tests.browser.windows import borrowed
from tests.helpers.messages import as_json

HOST = "http://stage.test"  # never resolved: every request is answered here
CSP = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'"
)
RUNNING = as_json(show_state("running"))
FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))"
PAGES = Path(__file__).with_name("pages.js")
PHONE = {"width": 390, "height": 844, "has_touch": True, "is_mobile": True}
PAGE = {"light": "#ffffff", "dark": "#14171c"}
MOUNT = """(late) => {
  window.pulls = []; window.triggers = []; window.answers = {};
  const watchers = [], props = {value: late || ''};
  window.push = (value) => { props.value = value; watchers.forEach((watcher) => watcher()); };
  const since = async (request) => { window.pulls.push(request); return window.answers[request.from] || null; };
  window.hub = specviz.mountStage(document.getElementById('host'), {
    props, server: {since}, watch: (name, watcher) => watchers.push(watcher),
    trigger: (name, data) => window.triggers.push([name, data]),
  });
}"""


def stage_html(theme: str = "light", height: str = "672px") -> str:
    """A page with the stage alone, in the product's own code and sheets."""
    return page_html(f'<div id="host">{stage_markup()}</div>', theme, f"#host {{ height: {height}; }}")


def page_html(body: str, theme: str = "light", style: str = "") -> str:
    """A page of this body, with what tests mount by hand."""
    made = bundle(PAGES)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>test</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{CSP}">'
        f"<style>body {{ margin: 0; background: {PAGE[theme]}; }} {style}</style>"
        f"{palette_head()}<style>{made.sheet}</style><script>{made.script}</script></head>"
        f'<body class="{theme}">{body}</body></html>'
    )


@contextmanager
def open_stage(
    launched: Any, *, width: int = 1366, height: int = 768, theme: str = "light", value: str = "", **context: Any
) -> Iterator[Any]:
    """A mounted stage; leaving it checks that nothing went wrong on the page and nothing was asked of another host."""
    html = stage_html(theme, f"{height - 96}px")
    with watched_page(launched, html, viewport={"width": width, "height": height}, **context) as page:
        page.evaluate(MOUNT, value)
        yield page


@contextmanager
def watched_page(launched: Any, html: str, **context: Any) -> Iterator[Any]:
    """A page of this text at HOST; leaving it fails if it had an error or asked another host. context: `borrowed`'s."""
    problems: list[str] = []
    watched = {
        "pageerror": lambda error: problems.append(str(error)),
        "console": lambda message: problems.append(message.text) if message.type == "error" else None,
        "request": lambda request: _note_foreign(request.url, problems),
    }
    with borrowed(launched, watched, **context) as page:
        page.route(f"{HOST}/", lambda route: route.fulfill(body=html, content_type="text/html"))
        page.route(f"{HOST}/specviz/plotly.min.js", lambda route: route.fulfill(path=_plotly_file()))
        page.goto(f"{HOST}/")
        yield page
    assert not problems, problems


def _plotly_file() -> Path:
    location = find_spec("plotly").submodule_search_locations[0]
    return Path(location) / "package_data" / "plotly.min.js"


def _note_foreign(url: str, problems: list[str]) -> None:
    if not url.startswith(("data:", "blob:", f"{HOST}/")):
        problems.append(f"request to {url}")


def push(page: Any, message: str | dict[str, Any]) -> None:
    page.evaluate("(value) => push(value)", message if isinstance(message, str) else json.dumps(message))


def stages(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Opens a stage: stage(width=..., theme=...). Leaving the test checks for page errors and foreign requests."""
    yield from openings(chromium, open_stage)


def openings(chromium: Any, open_page: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """A function that opens such pages, all of which are left when the test ends."""
    opened = []

    def open_one(**options: Any) -> Any:
        context = open_page(chromium, **options)
        opened.append(context)
        return context.__enter__()

    yield open_one
    for context in opened:
        context.__exit__(None, None, None)


def whole(made: Trace, run: str = "run", recorded: bool = True, **options: Any) -> dict:
    feed = Feed(run, recorded=recorded)
    for event in made.events():
        feed.add(event)
    return json.loads(feed.message(0, None, **options))


def part(message: dict, first: int, until: int) -> dict:
    """The increment that a stream would have sent for these steps."""
    kept = {name: value for name, value in message.items() if name not in ("head", "end", "done")}
    head = {"head": message["head"]} if first == 0 else {}
    return {**kept, **head, "from": first, "steps": message["steps"][first:until], "total": until, "state": RUNNING}


def settle(page: Any) -> None:
    page.evaluate(FRAMES)


def shown(page: Any, selector: str, what: str = "(node) => node.textContent") -> list:
    return page.evaluate(f"(selector) => [...document.querySelectorAll(selector)].map({what})", selector)
