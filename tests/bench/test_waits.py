"""Laws of the waits and the memory: the draft's reading is on the clock, and what is held is real memory."""

import pytest
import torch

from specviz.bench import waits
from specviz.bench.speed import ALONE, ASKED
from specviz.decoding.cached_lm import CachedLM
from specviz.models.quantisation import bytes_by_device
from specviz.request import Request
from specviz.session.whole_run import activate
from tests.helpers.runs import REQUEST


@pytest.fixture
def quick(monkeypatch):
    """Two lengths that fit into tiny models, in one round; returns what the tables were made of."""
    seen, make = [], waits.tables
    monkeypatch.setattr(waits, "tables", lambda *given: seen.extend(given) or make(*given))
    for name, value in (("FEWEST", 1), ("PROMPTS", (4, 24)), ("CONTEXTS", (10, 30)), ("NUM_TOKENS", 6)):
        monkeypatch.setattr(waits, name, value)
    return seen


def test_each_prompt_is_measured_with_and_without_the_draft(quick, bench):
    *progress, last = waits.measure_waits(REQUEST, bench)
    assert [(found.done, found.total) for found in [*progress, last]] == [(n, 12) for n in range(13)]
    measured, held = quick
    assert [wait.num_prompt for wait in measured] == [4, 24]
    for wait in measured:
        assert all(0 < wait.first.median(who) < wait.answer.median(who) for who in (ALONE, ASKED))
    assert [each.context for each in held] == [10, 30]
    for heads, rows in last.tables:
        assert [len(row) for row in rows] == [len(heads)] * 2


def test_the_drafts_reading_of_the_prompt_is_on_the_clock_of_the_first_token(quick, bench, monkeypatch):
    """A draft that reads slowly makes the first token wait, and the target alone not."""
    slow, draft = [], bench.pool.load("near").model
    read = CachedLM.forward

    def forward(self, tokens, *more):
        if self.model is draft and len(self.missing(tokens)) > 3:
            slow.append(len(tokens))
            torch.randn(400, 400).matrix_power(200)
        return read(self, tokens, *more)

    monkeypatch.setattr(CachedLM, "forward", forward)
    for _ in waits.measure_waits(REQUEST, bench):
        pass
    assert set(slow) >= {4, 24}
    for wait in quick[0]:
        assert wait.first.median(ASKED) > 2 * wait.first.median(ALONE)
        assert wait.first.compare(ASKED, ALONE).ratio < 0.5


def test_what_is_held_is_the_weights_and_a_cache_that_grows(quick, bench):
    for _ in waits.measure_waits(REQUEST, bench):
        pass
    target, draft = (sum(bytes_by_device(bench.pool.load(name).model).values()) for name in ("big", "near"))
    short, long = quick[1]
    assert short.target >= target
    assert short.draft >= draft
    assert long.target >= short.target
    assert long.draft >= short.draft


def test_what_target_and_draft_share_counts_once(quick, bench):
    """A model that drafts for itself brings a cache, and no weights."""
    own = activate(Request(prompt="x", target="big", draft="big"), bench.pool)
    weights = sum(bytes_by_device(bench.pool.load("big").model).values())
    held = waits._held(own, [1, 2, 3], 10)
    assert held.draft == held.target - weights > 0
