"""Ordinary visitors for a long time: what the server's memory, threads and open files come to, with fitted slopes."""

from __future__ import annotations

import asyncio
import base64
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx

from tests.chaos.attack import PATIENCE_S, TRACE, Report, Target, running
from tests.helpers import load_test

SAMPLE_S = 5.0
WARM_UP = 1 / 3
"""Of the whole time: before it caches fill, and no slope is fitted."""
MOST_MB_PER_MINUTE = 4.0
MOST_PER_MINUTE = 0.5
"""Threads, and open files."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The server's process at one moment, in minutes since the first visitor."""

    at: float
    memory_mb: float
    threads: int
    files: int


@dataclass(slots=True)
class Soak:
    """What a soak came to."""

    samples: list[Sample] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    crashes: int = 0

    def slope(self, name: str) -> float:
        """Per minute, over all samples after the warm-up."""
        late = [each for each in self.samples if each.at >= WARM_UP * self.samples[-1].at]
        return statistics.linear_regression([each.at for each in late], [getattr(each, name) for each in late]).slope

    @property
    def holds(self) -> bool:
        is_flat = self.slope("memory_mb") <= MOST_MB_PER_MINUTE
        is_flat &= max(self.slope("threads"), self.slope("files")) <= MOST_PER_MINUTE
        return is_flat and not self.failed and not self.crashes

    def words(self) -> str:
        names = {"memory_mb": "MB", "threads": "threads", "files": "open files"}
        grown = (f"{self._course(name)} {unit}, {self.slope(name):+.2f} a minute" for name, unit in names.items())
        acts = ", ".join(f"{name} {count:,}" for name, count in sorted(self.done.items()))
        failed = f"failed {len(self.failed)} {self.failed[:3]}"
        return "; ".join((f"{self.samples[-1].at:.1f} minutes: {acts}", failed, f"crashes {self.crashes}", *grown))

    def _course(self, name: str) -> str:
        marks = (0, len(self.samples) // 3, 2 * len(self.samples) // 3, -1)
        return " -> ".join(f"{getattr(self.samples[mark], name):.0f}" for mark in marks)


@dataclass(slots=True)
class Tab:
    """One open page."""

    client: httpx.AsyncClient
    config: Mapping[str, Any]
    session: str
    chance: Random
    run: str | None = None

    async def press_run(self) -> None:
        event, parts = load_test.run_event(self.config)
        values = load_test.values_of(parts, max_tokens=self.chance.randint(16, 64), seed=self.chance.randrange(999))
        self.run = (await load_test.watch(self.client, self.session, event, values)).run or self.run

    async def leave_in_the_middle(self) -> None:
        """Presses Run and is gone after the first words."""
        event, parts = load_test.run_event(self.config)
        values = load_test.values_of(parts, max_tokens=400, seed=self.chance.randrange(999))
        with suppress(TimeoutError):
            await asyncio.wait_for(load_test.watch(self.client, self.session, event, values), 1.0)

    async def bring(self) -> None:
        parts = self.config["components"]
        panel = next(each["id"] for each in parts if "bring" in (each["props"].get("server_fns") or ()))
        data = {"packed": base64.b64encode(TRACE.read_bytes()).decode()}
        asked = {"data": data, "component_id": panel, "fn_name": "bring", "session_hash": self.session}
        answer = await self.client.post("/gradio_api/component_server", json=asked)
        self.run = answer.raise_for_status().json()["run"]

    async def look(self) -> None:
        """Opens a page of sections."""
        looks = [each for each in self.config["dependencies"] if each["targets"] and each["targets"][0][1] == "look"]
        place = {"place": {"run": self.run}, "tab": f"{self.chance.getrandbits(128):032x}"}
        joined = {"data": [], "fn_index": self.chance.choice(looks)["id"], "session_hash": self.session}
        await load_test.join(self.client, {**joined, "event_data": place})
        async for _ in load_test.outputs(self.client, self.session):
            pass

    async def save(self) -> None:
        path = self.chance.choice(("trace/{}", "page/{}.html", "tokens/{}.csv", "steps/{}.csv"))
        if self.run is not None:
            answer = await self.client.get(f"/specviz/{path.format(self.run)}")
            if answer.status_code != 404:  # the server has let the run go
                answer.raise_for_status()


ACTS: Mapping[str, Callable[[Tab], Awaitable[None]]] = {
    "runs": Tab.press_run,
    "runs left": Tab.leave_in_the_middle,
    "runs brought": Tab.bring,
    "pages of sections": Tab.look,
    "files saved": Tab.save,
}
SHARES = (5, 1, 2, 2, 2)


async def _visit(address: str, config: Mapping[str, Any], chance: Random, soak: Soak) -> None:
    """One page from its opening to its end."""
    async with httpx.AsyncClient(base_url=address, timeout=PATIENCE_S) as client:
        (await client.get("/")).raise_for_status()
        tab = Tab(client, config, f"s{chance.getrandbits(40):x}", chance)
        beating = asyncio.create_task(_beat(client, tab.session))
        try:
            for _ in range(chance.randint(1, 5)):
                name = chance.choices(list(ACTS), SHARES)[0]
                await ACTS[name](tab)
                soak.done[name] += 1
                await asyncio.sleep(chance.random())
        finally:
            beating.cancel()
    soak.done["visits"] += 1


async def _beat(client: httpx.AsyncClient, session: str) -> None:
    """By this the server knows that the page is open."""
    async with client.stream("GET", f"/gradio_api/heartbeat/{session}") as answer:
        async for _ in answer.aiter_lines():
            pass


async def _visitors(target: Target, minutes: float, num_visitors: int, seed: int, soak: Soak, say: Any) -> None:
    config = httpx.get(f"{target.address}/config", timeout=PATIENCE_S).json()
    began = time.monotonic()

    async def come_again(number: int) -> None:
        chance = Random(f"{seed} {number}")
        while time.monotonic() - began < 60 * minutes and target.lives:
            try:
                await _visit(target.address, config, chance, soak)
            except (httpx.HTTPError, AssertionError) as error:
                soak.failed.append(f"{type(error).__name__}: {error!s:.100}")

    coming = asyncio.gather(*map(come_again, range(num_visitors)))
    while not coming.done() and target.lives:
        now = (time.monotonic() - began) / 60
        soak.samples.append(Sample(now, target.megabytes("VmRSS"), target.num_threads(), target.num_files()))
        if len(soak.samples) % 12 == 1:
            last = soak.samples[-1]
            say(f"{now:.1f} min: {last.memory_mb:.0f} MB, {last.threads} threads, {last.files} files")
        await asyncio.wait([coming], timeout=SAMPLE_S)
    await coming


def soak(minutes: float, num_visitors: int, seed: int, say: Callable[[str], None] = lambda words: None) -> Soak:
    """So many people at once, each opening page after page."""
    found = Soak()
    with running(Report()) as target:
        asyncio.run(_visitors(target, minutes, num_visitors, seed, found, say))
        found.crashes = int(not target.lives)
    return found
