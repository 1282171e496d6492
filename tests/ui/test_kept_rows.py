"""Which visitors of a page have the rows of their prompts kept."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx
from gradio_client import Client

from tests.helpers import load_test
from tests.helpers import tiny_server as pages

served, client = pages.fixtures()


async def press_run(address: str, ks: Sequence[int], opens_page: bool) -> list[str]:
    """The runs that one browser makes with each K, or a program without a cookie."""
    async with httpx.AsyncClient(base_url=address, timeout=load_test.PATIENCE_S) as browser:
        if opens_page:
            (await browser.get("/")).raise_for_status()
        event, parts = load_test.run_event((await browser.get("/config")).json())
        asked = [load_test.values_of(parts, max_tokens=8, k=k) for k in ks]
        return [(await load_test.watch(browser, "one", event, values)).run for values in asked]


def first_steps(served: pages.Served, *, opens_page: bool = True) -> list[tuple[int, bool]]:
    """Of each run with K 4, 2 and 3: the tokens of the prompt that it read, and whether it says that it was short."""
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(asyncio.run, press_run(served.address, (4, 2, 3), opens_page)).result()
    traces = [served.page.registry.get(name).trace for name in made]
    assert [trace.steps[0].settings.k for trace in traces] == [4, 2, 3]
    firsts = [(trace.steps[0], trace.footer.extra) for trace in traces]
    return [(step.fed["target"] - len(step.draft), bool(extra.get("read_before"))) for step, extra in firsts]


def test_each_browser_gets_its_own_and_a_program_none(served):
    whole = len(served.trace().header.prompt.tokens)
    for _ in range(2):
        assert first_steps(served) == [(whole, False), (1, True), (1, True)]
    assert first_steps(served, opens_page=False) == [(whole, False)] * 3
    for _ in range(2):
        made = Client(served.address, verbose=False).predict(
            served.page.first.prompt, max_new_tokens=8, api_name="/run"
        )
        assert served.page.registry.get(made["run"]).trace.steps[0].fed["target"] > whole
