"""Thirty people at reading pace on one machine. The bounds leave room for a busy one; `load.py` gives the numbers."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import load
import pytest

pytestmark = pytest.mark.timed
SESSIONS = 30


@pytest.fixture(scope="module")
def seen():
    """In a thread of its own, because the browser tests leave an event loop running in this one."""
    with load.tiny() as address, ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, load.crowd(address, SESSIONS, max_tokens=24)).result()


def test_everybody_has_a_first_token_within_three_seconds(seen):
    assert max(one.at[0] for one in seen) <= 3


def test_nobody_starves(seen):
    assert max(one.longest_gap for one in seen) <= 3


def test_no_step_is_lost(seen):
    assert all(one.done and one.steps == list(range(one.done)) for one in seen)
