"""python -m tests.browser.screenshots FOLDER: the page in every state, both themes, phone to projector, as PNG files.

Serves the bundled models on this machine and drives Chromium. `--opening`: only the opening's five pictures, by
which a reader who knows nothing of it is to answer the questions in TOLD. `--readme`: only the README's picture, the
opening as it moves, into assets/screenshots/opening.webp.
"""

from __future__ import annotations

import argparse
import io
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from specviz.models.pool import ModelPool
from specviz.ui.choices import make_offer
from specviz.ui.startup import first_visit, free_port, make_page
from tests.browser.windows import ALL_CONTROLS, BROWSERS, DESKTOP, PHONE, SWITCHES

ROOT = Path(__file__).parents[2]
HOST = "127.0.0.1"
PROJECTOR = {"width": 1920, "height": 1080}
TABLET = {"width": 768, "height": 1024}
SIZES = {"desktop": DESKTOP, "phone": PHONE, "tablet": TABLET, "projector": PROJECTOR}
STATE = "document.documentElement.dataset.svState"
IDLE = "(name) => !document.querySelector(`#${name} .sv-report`).hasAttribute('data-busy')"
HELD = "sessionStorage.setItem('specviz-run', ''); localStorage.setItem('specviz-run', '-')"


def wait_for(page: Page, *states: str) -> None:
    page.wait_for_function(f"{list(states)}.includes({STATE})")


def choose_pace(page: Page, pace: str) -> None:
    if page.is_visible("#fold"):
        page.click("#fold")
    page.click(f"#pace label:has(input[value={pace}])")


def run(page: Page, pace: str = "full") -> None:
    choose_pace(page, pace)
    page.click("#run")
    wait_for(page, "running", "finished")


def finished(page: Page) -> None:
    run(page)
    wait_for(page, "finished")


def running(page: Page) -> None:
    run(page, "normal")
    page.wait_for_function("document.querySelectorAll('.sv-step-bar').length >= 5")


def paused(page: Page) -> None:
    for count in (1, 2):
        if page.is_visible("#fold"):
            page.click("#fold")
        page.click("#step")
        page.wait_for_function(f"{STATE} === 'paused' && document.querySelectorAll('.sv-step-bar').length === {count}")


def first(page: Page) -> None:
    page.wait_for_function("document.querySelectorAll('.sv-text .sv-piece').length >= 8")


def inspected(page: Page) -> None:
    finished(page)
    page.click(".sv-cell.sv-is-rejected")
    page.wait_for_timeout(400)


def charts(page: Page) -> None:
    finished(page)
    page.click(".sv-charts summary")
    page.wait_for_selector(".sv-plot .plot-container")
    page.locator(".sv-charts").scroll_into_view_if_needed()
    page.wait_for_timeout(800)


def numbers(page: Page) -> None:
    finished(page)
    page.click(".sv-table summary")


def more(page: Page) -> None:
    if page.is_visible("#fold"):
        page.click("#fold")
    page.click("#more")
    page.wait_for_timeout(300)


def setup(page: Page) -> None:
    if page.is_visible("#fold"):
        page.click("#fold")
    page.click("#prompt textarea")


def refused(page: Page) -> None:
    finished(page)
    if page.is_visible("#fold"):
        page.click("#fold")
    page.fill("#prompt textarea", "")
    page.click("#run")
    page.wait_for_selector(".toast-body")
    page.wait_for_timeout(300)


def presented(page: Page) -> None:
    finished(page)
    page.evaluate("specvizPage.present()")
    page.wait_for_timeout(400)


WORK = {
    "compare": (("costs", "measure"), ("other-drafts", "ask"), ("why-slow", "speed")),
    "check": (("one_step", "redraw"), ("end_to_end", "write"), ("side_by_side", "judge"), ("self_checks", "self")),
}


def turned_to(page: Page, name: str) -> None:
    """A page of sections with nothing pressed."""
    finished(page)
    page.click(f"#pages [data-page={name}]")
    page.wait_for_selector(f"#{name} .sv-section")
    page.wait_for_function(IDLE, arg=name)
    page.wait_for_timeout(800)


def worked_at(page: Page, name: str) -> None:
    """The same with every button pressed, a broken rule among them."""
    turned_to(page, name)
    if name == "check":
        page.select_option("[data-section=one_step] [name=rule]", "broken:resample_p")
    for section, does in WORK[name]:
        page.click(f"#{name} [data-section={section}] [data-act={does}]")
        page.wait_for_function(IDLE, arg=name, timeout=120_000)
    for chart in page.query_selector_all(f"#{name} .sv-plot"):
        chart.scroll_into_view_if_needed()
        page.wait_for_timeout(300)
    page.evaluate("window.scrollTo(0, 0)")


def simple(page: Page) -> None:
    """The simple view of a finished run."""
    page.click("#run")
    wait_for(page, "finished")


SIMPLE = ("first", "simple")
STATES: dict[str, Callable[[Page], None]] = {
    "welcome": lambda page: None,
    "first": first,
    "simple": simple,
    "running": running,
    "paused": paused,
    "run": finished,
    "inspected": inspected,
    "charts": charts,
    "numbers": numbers,
    "more": more,
    "setup": setup,
    "refused": refused,
    "presented": presented,
    "compare": lambda page: turned_to(page, "compare"),
    "compare-worked": lambda page: worked_at(page, "compare"),
    "check": lambda page: turned_to(page, "check"),
    "check-worked": lambda page: worked_at(page, "check"),
}
TOLD = {
    "draft": "What is the draft?",
    "check": "What is checked at once?",
    "verdict": "Why was this token rejected?",
    "last": "Where did the new word come from?",
    "point": "Why is it the same text?",
}
README_SIZE = {"width": 1200, "height": 760}  # of the window; the picture is the opening alone
BEAT_MS, FRAME_MS = 2400, 120  # how long a beat rests, and between two frames while it moves
MOVING = """(at) => {
    const moving = document.querySelector(".sv-opening").getAnimations({subtree: true});
    for (const each of moving) {
        each.pause();
        each.currentTime = at;
    }
    const ends = moving.map((each) => each.effect.getComputedTiming().endTime);
    return ends.length ? Math.max(...ends) : 0;
}"""
"""Stops the opening's motion at this moment, in milliseconds, and says when all of it is over."""
WHOLE = ("compare-worked", "check-worked")  # longer than a screen


@contextmanager
def pages() -> Iterator[tuple[Browser, str]]:
    page = make_page(make_offer(any_model=False), ModelPool(), welcome=first_visit())
    page.warm_up()
    address = page.launch(HOST, free_port(HOST, 0, 1))
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    try:
        with sync_playwright() as driver:
            yield driver.chromium.launch(executable_path=path, args=SWITCHES), address
    finally:
        page.demo.close(verbose=False)


def shoot(browser: Browser, address: str, state: str, size: dict[str, int], scheme: str, file: Path) -> None:
    context = browser.new_context(viewport=size, color_scheme=scheme, has_touch=size is PHONE, reduced_motion="reduce")
    if state not in SIMPLE:
        context.add_init_script(ALL_CONTROLS)
    if state != "first":
        context.add_init_script(HELD)
    page = context.new_page()
    page.goto(address)
    page.wait_for_function("window.specvizPage?.hub() && document.querySelector('#k input')")
    STATES[state](page)
    page.wait_for_timeout(250)
    page.screenshot(path=file, full_page=state in WHOLE)
    context.close()
    print(file.name, flush=True)


def beats(
    browser: Browser, address: str, size: dict[str, int], *, part: str = "body", moves: bool = False
) -> Iterator[tuple[str, list[bytes]]]:
    """Each beat of the opening at a first visit, as (name, PNGs); the one with a guess before and after the draw.

    moves: whether to take its motion frame by frame, FRAME_MS apart, and not only the picture at its end.
    """
    motion = "no-preference" if moves else "reduce"
    context = browser.new_context(viewport=size, color_scheme="light", reduced_motion=motion)
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector(".sv-beat-mark")

    def frames() -> list[bytes]:
        taken, at, end = [], 0, page.evaluate(MOVING, 0)
        while moves and at < end:
            taken.append(page.locator(part).screenshot())
            at += FRAME_MS
            page.evaluate(MOVING, at)
        return [*taken, page.locator(part).screenshot()]

    for place in range(page.locator(".sv-beat-mark").count()):
        page.locator(".sv-beat-mark").nth(place).click()
        name = page.get_attribute(".sv-opening", "data-beat")
        yield name, frames()
        if page.locator(".sv-beat-guess button").count():
            page.click(".sv-beat-next")
            yield name, frames()
    context.close()


def animate(told: list[list[bytes]], file: Path) -> None:
    """An endless animation of all beats that rests at the end of each."""
    frames, times = [], []
    for beat in told:
        frames += [Image.open(io.BytesIO(each)).convert("RGB") for each in beat]
        times += [*[FRAME_MS] * (len(beat) - 1), BEAT_MS]
    frames[0].save(file, save_all=True, append_images=frames[1:], duration=times, loop=0, quality=60, method=6)
    print(f"{file.name}: {len(frames)} frames, {file.stat().st_size / 1000:.0f} kB")


def main() -> None:
    parser = argparse.ArgumentParser(description="Pictures of the page in every state.")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("screenshots"))
    parser.add_argument("--states", nargs="*", choices=STATES, default=list(STATES))
    parser.add_argument("--opening", action="store_true", help="only the opening's five pictures")
    parser.add_argument("--readme", action="store_true", help="only the README's picture, in its place")
    options = parser.parse_args()
    with pages() as (browser, address):
        if options.readme:
            told = [frames for _, frames in beats(browser, address, README_SIZE, part=".sv-opening", moves=True)]
            return animate(told, ROOT / "assets" / "screenshots" / "opening.webp")
        options.folder.mkdir(parents=True, exist_ok=True)
        if options.opening:
            told = dict(beats(browser, address, DESKTOP))
            for number, name in enumerate(TOLD, 1):
                (options.folder / f"opening-{number}-{name}.png").write_bytes(told[name][-1])
                print(f"{number}. {TOLD[name]}")
            return None
        for state in options.states:
            for name, size in SIZES.items():
                for scheme in ("light", "dark"):
                    shoot(browser, address, state, size, scheme, options.folder / f"{state}-{name}-{scheme}.png")
    return None


if __name__ == "__main__":
    main()
