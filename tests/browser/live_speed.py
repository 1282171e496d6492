"""How fast the live page is: python -m tests.browser.live_speed FOLDER, which `export --live FOLDER` has written.

Serves the folder on this machine, and prints the time from opening the page to its first token, then tokens/s by K.
"""

import shutil
import statistics
import sys
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

from playwright.sync_api import Page, sync_playwright

from tests.browser.windows import BROWSERS, DESKTOP, SWITCHES

ROUNDS = 7
RUN = ".sv-live-drive > .sv-primary"
SPEED = "Number(document.querySelector('[data-number=speed]').textContent)"
CALLS = "Number(document.querySelector('[data-number=calls]').textContent)"


class Quiet(SimpleHTTPRequestHandler):
    """A server that prints no requests."""

    def log_message(self, *words: object) -> None:
        pass


def first_token(page: Page, address: str) -> float:
    """Seconds from opening the page to its first token, with Run pressed as soon as it can be."""
    started = time.perf_counter()
    page.goto(address)
    page.click(RUN)
    page.wait_for_selector(".sv-text .sv-is-accepted, .sv-text .sv-is-resampled")
    return time.perf_counter() - started


def speeds(page: Page, address: str, k: int) -> list[tuple[float, float]]:
    """Tokens/s and tokens per pass of runs with this K, each with a seed of its own; the first one warms up."""
    found = []
    for seed in range(ROUNDS + 1):
        page.goto(f"{address}#live&pace=full&k={k}&seed={seed}&max_new_tokens=128")
        page.wait_for_function("document.documentElement.dataset.done && document.querySelector('.sv-live-k')")
        page.click(RUN)
        page.wait_for_selector(f"{RUN}:text-is('Run again')")
        page.wait_for_selector(f"{RUN}:text-is('Run')")
        found.append((page.evaluate(SPEED), page.evaluate(CALLS)))
    return found[1:]


def main(folder: str) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/"
    with sync_playwright() as driver:
        path = next(filter(None, map(shutil.which, BROWSERS)))
        browser = driver.chromium.launch(executable_path=path, args=SWITCHES)
        opened = []
        for _ in range(ROUNDS):
            with browser.new_context(viewport=DESKTOP) as context:
                opened.append(first_token(context.new_page(), address))
        print(f"first token after {statistics.median(opened):.2f} s ({min(opened):.2f} to {max(opened):.2f})")
        page = browser.new_page(viewport=DESKTOP)
        for k in (0, 1, 2, 4, 8):
            rates, calls = zip(*speeds(page, address, k), strict=True)
            print(f"K {k}: {statistics.median(rates):.0f} tokens/s, {statistics.median(calls):.1f} tokens per pass")
        print(page.inner_text(".sv-live-why"))
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])
