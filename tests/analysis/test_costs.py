"""Measured costs: a clock that only the models advance gives the very times they were made to take."""

import copy
import json
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from random import Random

import pytest
import torch

from specviz.analysis import costs as costing
from specviz.analysis.costs import (
    BATCH_TOKENS,
    BATCHES,
    STEP_K,
    BatchCost,
    Costs,
    Measured,
    costs,
    measure_costs,
    measure_tree_sizes,
    weight_bytes,
)
from specviz.bench.report import cost_lines, cost_tables
from specviz.cli.main import main
from specviz.errors import CannotTell, SpecvizError
from specviz.rules import RULES
from specviz.rules.speculative_sampling import SpeculativeSampling
from tests.helpers.clocks import TICK_MS, Clock
from tests.helpers.tiny_models import tiny

CONTEXT, MOST = 24, 5
TARGET_MS, TOKEN_MS, DRAFT_MS, RULE_MS = 20.0, 2.0, 3.0, 50.0


class SlowRule(SpeculativeSampling):
    """Slower still in the first step after the context; quicker where nothing was drafted."""

    def __init__(self, clock):
        self.clock = clock

    def __call__(self, draft, probs, draws, position):
        self.clock.ms += RULE_MS * (1 if position > CONTEXT else 10) / (1 if len(draft) else 2)
        return super().__call__(draft, probs, draws, position)


@pytest.fixture(autouse=True)
def small_reads(monkeypatch):
    monkeypatch.setattr(costing, "READ_BYTES", 1 << 20)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    monkeypatch.setitem(RULES, "speculative_sampling", SlowRule(clock))
    return clock


@pytest.fixture
def pair(named_models):
    """Copies, because their forwards are watched."""
    loaded = [named_models.load(name) for name in ("big", "near")]
    return [replace(each, model=copy.deepcopy(each.model)) for each in loaded]


def watched(model, spend):
    """`spend(ids, past)` at each forward: the tokens it is given and how many its cache holds."""

    def before(module, args, options):
        ids = args[0]
        cache = options.get("cache", options.get("past_key_values"))
        spend(tuple(ids.shape), 0 if cache is None else cache.get_seq_length())

    model.register_forward_pre_hook(before, with_kwargs=True)


def make_slow(pair, clock):
    """The forwards of (shape, past) that the target made."""
    seen = []

    def target(shape, past):
        seen.append((shape, past))
        clock.ms += TARGET_MS + TOKEN_MS * shape[0] * shape[1]

    def draft(shape, past):
        clock.ms += DRAFT_MS

    watched(pair[0].model, target)
    watched(pair[1].model, draft)
    return seen


def measured(target, *drafts, **options):
    options = {"context_length": CONTEXT, "most_tokens": MOST, "rounds": 2} | options
    *_, last = measure_costs(target, drafts, **options)
    return last.costs[0]


def close(ms):
    return pytest.approx(ms, abs=20 * TICK_MS)


def test_every_time_is_what_the_models_took(pair, clock):
    make_slow(pair, clock)
    found = measured(*pair)
    assert found.verify_ms == close(tuple(TARGET_MS + TOKEN_MS * n for n in range(1, MOST + 1)))
    assert found.draft_ms == close(DRAFT_MS)
    assert (found.overhead_ms, found.plain_overhead_ms) == (close(RULE_MS), close(RULE_MS / 2))
    assert {(cost.batch, cost.tokens): cost.ms for cost in found.batch} == {
        (b, n): close(TARGET_MS + TOKEN_MS * b * n) for b in BATCHES for n in BATCH_TOKENS
    }


def test_without_a_draft_model_a_step_is_verifying_and_the_rest(pair, clock):
    make_slow(pair, clock)
    found = measured(pair[0])
    assert (found.draft, found.draft_ms) == (None, 0.0)
    assert found.overhead_ms == found.plain_overhead_ms == close(RULE_MS / 2)


def test_all_but_the_first_forwards_find_the_context_read(pair, clock):
    """A text's last token is fed again with each draft; a batch begins behind the whole context."""
    seen = make_slow(pair, clock)
    measured(*pair, rounds=1)
    after_warm_up = seen[len(seen) // 2 :]
    assert {past for (batch, _), past in after_warm_up if batch > 1} == {CONTEXT}
    assert {past for (batch, _), past in after_warm_up if batch == 1} <= {*range(CONTEXT - 1, CONTEXT + 6)}
    assert max(size for (_, size), _ in after_warm_up) == max(MOST, *BATCH_TOKENS)


def test_the_median_of_the_quicker_turns_is_taken_and_warming_up_left_out(pair, clock):
    """The n-th of these forwards takes n * n times as long."""
    calls = []

    def spend(shape, past):
        if shape == (8, 9):  # once per turn
            calls.append(shape)
        clock.ms += TARGET_MS * (len(calls) ** 2 if shape == (8, 9) else 1)

    watched(pair[0].model, spend)
    found = measured(*pair, rounds=4)
    assert found.batch[-1].ms == close(TARGET_MS * (16 + 36) / 2)  # of turns 2, 4, 6 and 8
    assert found.spread == pytest.approx(0, abs=1e-3)


def test_several_drafts_are_timed_in_the_same_rounds_as_their_target(pair, clock, named_models):
    make_slow(pair, clock)
    slow = named_models.load("far")
    slow = replace(slow, model=copy.deepcopy(slow.model))
    watched(slow.model, lambda shape, past: setattr(clock, "ms", clock.ms + 3 * DRAFT_MS))
    *_, last = measure_costs(pair[0], [pair[1], slow], context_length=CONTEXT, most_tokens=MOST, rounds=1)
    one, other = last.costs
    assert [(each.draft, each.draft_ms) for each in last.costs] == [("near", close(DRAFT_MS)), ("far", close(9))]
    assert replace(one, draft="far", draft_ms=other.draft_ms, overhead_ms=other.overhead_ms) == other


def test_a_machine_that_slows_down_and_speeds_up_gives_costs_that_say_so(pair, clock):
    """As one did that gave 315, 2,749 and 1,521 ms for one, two and three tokens."""
    noise = Random(0)
    make_slow(pair, clock)
    assert measured(*pair, rounds=2).doubt == ""
    watched(pair[0].model, lambda shape, past: setattr(clock, "ms", clock.ms + 20 * noise.paretovariate(0.6)))
    found = measured(*pair, rounds=5)
    assert found.spread > 0.15
    assert found.doubt.startswith("This machine was too busy: the middle half of the repeated timings spans ")
    assert all(low <= ms <= high for ms, (low, high) in zip(found.verify_ms, found.verify_between_ms, strict=True))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""),
        ({"spread": 0.15}, ""),
        ({"spread": 0.16}, "the middle half of the repeated timings spans 16% of the median"),
        ({"verify_ms": (5.0, 4.0)}, ""),
        ({"verify_between_ms": ((4.0, 5.0), (4.0, 5.0))}, ""),
        (
            {"verify_between_ms": ((35.8, 63.4), (20.7, 51.4))},  # of a machine with six times the work it can do
            "the slowest round of a target pass took 2.1 times as long as the fastest",
        ),
        ({"verify_ms": (315.0, 2749.0, 1521.0)}, "one target pass took 1.8 times as long as a pass over more tokens"),
        ({"verify_ms": (4.0, 6.0, 7.0, 4.5)}, "one target pass took 1.6 times as long as a pass over more tokens"),
    ],
)
def test_a_curve_that_falls_far_or_a_wide_spread_is_doubted(change, words):
    told = f"This machine was too busy: {words}. Measure the costs again when it is idle."
    assert replace(EXAMPLE, **change).doubt == (told if words else "")


def test_progress_is_cumulative_and_ends_with_the_costs(pair, monkeypatch):
    monkeypatch.setattr(costing, "PAUSE_S", 0.0)
    told = list(measure_costs(pair[0], pair[1:], context_length=CONTEXT, most_tokens=2, rounds=1))
    assert [each.done for each in told] == [*range(told[0].total + 1)]
    assert {each.total for each in told} == {told[0].total}
    assert [bool(each.costs) for each in told] == [False] * (len(told) - 1) + [True]


def time_trees(pool, target, draft):
    for _ in measure_tree_sizes(pool, target, draft, rounds=2):
        pass
    return pool.step_ms


@pytest.fixture
def empty_times(named_models, monkeypatch):
    """A library that no test leaves times in."""
    monkeypatch.setattr(named_models, "step_ms", {})
    return named_models


def test_a_tree_takes_a_pass_over_it_and_what_drafting_and_judging_take(pair, clock, empty_times):
    make_slow(pair, clock)
    found = time_trees(empty_times, *pair)
    (tree,) = found.values()
    assert list(found) == [("tree", "big")]  # no head is known for this target
    beside = STEP_K * DRAFT_MS + RULE_MS
    assert tree == {size: close(TARGET_MS + TOKEN_MS * (1 + size) + beside) for size in tree}


def test_trees_that_cannot_be_drafted_are_not_timed(pair, clock, empty_times):
    assert time_trees(empty_times, pair[0], None) == {}


def test_a_busy_machine_gives_no_times_of_trees(pair, clock, empty_times):
    noise = Random(0)
    watched(pair[0].model, lambda shape, past: setattr(clock, "ms", clock.ms + 20 * noise.paretovariate(0.6)))
    assert time_trees(empty_times, *pair) == {}


def test_closing_stops_the_work(pair):
    forwards = []
    watched(pair[0].model, lambda shape, past: forwards.append(shape))
    pair[0].cached_lm()  # a model with hooks is proved anew
    forwards.clear()
    work = measure_costs(pair[0], pair[1:], context_length=CONTEXT)
    next(work)
    work.close()
    assert forwards == []


def test_the_models_are_left_as_they_were(pair):
    before = {name: value.clone() for name, value in pair[0].model.state_dict().items()}
    measured(*pair)
    assert all(torch.equal(value, before[name]) for name, value in pair[0].model.state_dict().items())


def test_costs_survive_json(pair):
    found = measured(*pair)
    assert Costs.from_dict(json.loads(json.dumps(found.to_dict(), allow_nan=False))) == found
    assert (found.target, found.draft, found.context_length) == ("big", "near", CONTEXT)
    assert (found.threads, found.dtype) == (1, "float32")


@pytest.mark.parametrize(
    "change",
    [
        {"verify_ms": []},
        {"verify_ms": [0.0]},
        {"bandwidth_gb_s": 0.0},
        {"draft_ms": float("nan")},
        {"batch": [{"batch": 1, "tokens": 5, "ms": 1.0}]},
        {"batch": [{"batch": 1, "tokens": 1, "ms": 1.0}, {"batch": 2, "tokens": 5, "ms": 1.0}]},
        {"threads": "two"},
        {"verify_between_ms": [[4.0, 5.0]]},
        {"verify_between_ms": [[0.0, 5.0], [4.0, 5.0]]},
    ],
    ids=str,
)
def test_costs_that_cannot_be_are_refused(change):
    with pytest.raises(SpecvizError):
        Costs.from_dict(EXAMPLE.to_dict() | change)


EXAMPLE = Costs(
    target="big",
    draft="near",
    context_length=128,
    device="test",
    threads=2,
    dtype="float32",
    draft_ms=1.0,
    verify_ms=(4.0, 5.0),
    overhead_ms=0.5,
    plain_overhead_ms=0.25,
    batch=(BatchCost(1, 1, 4.0), BatchCost(1, 5, 5.0), BatchCost(8, 1, 8.0), BatchCost(8, 5, 20.0)),
    weight_bytes=20_000_000,
    bandwidth_gb_s=10.0,
    bandwidth_bytes=512_000_000,
    spread=0.02,
)


def test_the_floor_is_bytes_over_bandwidth():
    assert EXAMPLE.floor_ms == pytest.approx(2.0)  # 20 MB at 10 MB per millisecond
    assert EXAMPLE.floor_share == pytest.approx(0.5)
    assert (EXAMPLE.verify_growth(1, 5), EXAMPLE.verify_growth(8, 5)) == (1.25, 2.5)


def test_a_forward_reads_all_weights_but_only_rows_of_a_table_of_its_own():
    vocabulary, hidden = 64, 32
    layers = 2 * (2 * hidden * hidden + 2 * hidden * hidden // 2 + 3 * hidden * 2 * hidden + 2 * hidden) + hidden
    table = vocabulary * hidden
    assert weight_bytes(tiny("llama")) == 4 * (layers + table)
    assert weight_bytes(tiny("llama", tie_word_embeddings=True)) == 4 * (layers + table)


@pytest.mark.parametrize("context", [0, 250])
def test_a_context_without_room_is_refused(pair, context):
    with pytest.raises(SpecvizError, match=f"from 1 to 223.*got {context}"):
        next(measure_costs(pair[0], pair[1:], context_length=context))


def test_a_draft_with_a_short_context_counts_too(named_models):
    with pytest.raises(SpecvizError, match="from 1 to 7 tokens"):
        next(measure_costs(named_models.load("big"), [named_models.load("brief")], context_length=CONTEXT))


def test_models_of_different_vocabularies_are_refused(named_models):
    with pytest.raises(SpecvizError, match="vocabularies differ"):
        next(measure_costs(named_models.load("big"), [named_models.load("stranger")], context_length=CONTEXT))


@pytest.mark.parametrize("wrong", [{"rounds": 0}, {"most_tokens": 0}])
def test_nothing_to_measure_is_a_callers_mistake(pair, wrong):
    with pytest.raises(ValueError, match="must be >= 1"):
        next(measure_costs(pair[0], pair[1:], **wrong))


def test_costs_takes_models_from_memory(bench, pair, monkeypatch):
    monkeypatch.setattr(costing, "workbench", lambda: bench)
    monkeypatch.setattr(costing, "measure_costs", partial(measure_costs, rounds=1))
    found = costs(*((each.model, each.tokenizer) for each in pair), context_length=CONTEXT)
    assert len(found.verify_ms) == 33
    assert min(found.verify_ms) > 0
    assert found.draft_ms > 0


def test_the_tables_hold_the_numbers():
    text = "\n".join(cost_tables(replace(EXAMPLE, verify_between_ms=((3.9, 4.1), (4.8, 5.2)))))
    assert "| 2 | 5.00 | not known | 1.25 |" in "\n".join(cost_tables(EXAMPLE))  # of an older file
    for row in ("| 2 | 5.00 | 4.80-5.20 | 1.25 |", "| one drafted token | 1.00 ms |", "| 8 | 8.00 | 20.00 |"):
        assert row in text
    assert "| floor: 20.0 MB of weights at that bandwidth | 2.00 ms |" in text


def test_the_lines_say_first_what_is_measured(named_models, monkeypatch):
    monkeypatch.setattr("specviz.bench.report.ModelPool", lambda: named_models)
    monkeypatch.setattr("specviz.bench.report.measure_costs", partial(measure_costs, rounds=1, most_tokens=5))
    told = []
    with suppress(CannotTell):  # this machine may be busy
        for line in cost_lines(target="big", draft="near", context_length=CONTEXT):
            told.append(line)
    assert told[0].startswith(f"big + near, {CONTEXT} tokens of context")
    assert sum(line.startswith("| ") for line in told) > 10


@pytest.mark.parametrize(("spread", "code"), [(0.02, 0), (0.4, 3)])
def test_the_command_writes_what_it_measured_and_ends_with_3_where_that_carries_no_answer(
    named_models, monkeypatch, tmp_path, capsys, spread, code
):
    found = replace(EXAMPLE, spread=spread)
    monkeypatch.setattr("specviz.bench.report.ModelPool", lambda: named_models)
    monkeypatch.setattr("specviz.bench.report.measure_costs", lambda *_, **__: [Measured(1, 1, "", (found,))])
    place = tmp_path / "costs.json"
    assert main(["bench", "costs", "--target", "big", "--draft", "near", "--json", str(place)]) == code
    said = capsys.readouterr()
    assert Costs.from_dict(json.loads(place.read_text())) == found
    assert "| 2 | 5.00 | not known | 1.25 |" in said.out
    assert said.err == (f"specviz: {found.doubt}\n" if code else "")
