"""Why is it slow: each factor by hand on scripted runs, and their product against the measured speedup."""

import math
from dataclasses import dataclass, replace

import pytest

from specviz.analysis.breakdown import why_slow
from specviz.errors import SpecvizError
from tests.helpers import traces
from tests.helpers.traces import Builder

NAMES = ["shorter drafts", "rejections", "draft cost", "verify growth", "overhead"]


@dataclass(frozen=True)
class Costs:
    target: str = "fable-target"
    draft: str | None = "fable-draft"
    context_length: int = 10
    draft_ms: float = 1.5
    verify_ms: tuple[float, ...] = tuple(8.0 + 0.25 * n for n in range(9))
    overhead_ms: float = 0.7
    plain_overhead_ms: float = 0.7
    doubt: str = ""


def changed(**settings):
    return lambda: Builder().chain(4, 2).chain(4, 2, changed=settings).finish()


def factors(recorded, costs=None, tokens_per_s=200.0, baseline=100.0):
    made = why_slow(recorded, costs or Costs(), tokens_per_s=tokens_per_s, baseline_tokens_per_s=baseline)
    assert [factor.name for factor in made.factors] == NAMES
    return {factor.name: factor.value for factor in made.factors}


RUNS = ["chain", "lookup", "truncated", "hostile"]


@pytest.mark.parametrize("name", RUNS)
def test_all_but_overhead_predict_the_time_that_the_models_take(name):
    """Step by step: the time of as many tokens one by one, over the time in both models."""
    recorded, costs = traces.ALL[name](), Costs()
    made = why_slow(recorded, costs, tokens_per_s=130.0, baseline_tokens_per_s=100.0)
    one_by_one = with_draft = 0.0
    for step in recorded.steps:
        one_by_one += len(step.emitted) * costs.verify_ms[0]
        drafting = len(step.draft) * costs.draft_ms if step.settings.draft_model else 0.0
        with_draft += drafting + costs.verify_ms[len(step.draft)]
    predicted = made.ideal * math.prod(factor.value for factor in made.factors[:-1])
    assert predicted == pytest.approx(one_by_one / with_draft, rel=1e-12)
    assert made.predicted == pytest.approx(one_by_one / with_draft, rel=1e-12)
    assert f"predict {one_by_one / with_draft:.2f}x" in made.factors[-1].words


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("speeds", [(200.0, 100.0), (70.0, 110.0)])
def test_overhead_closes_the_product(name, speeds):
    made = why_slow(traces.ALL[name](), Costs(), tokens_per_s=speeds[0], baseline_tokens_per_s=speeds[1])
    product = made.ideal * math.prod(factor.value for factor in made.factors)
    assert product == pytest.approx(speeds[0] / speeds[1], rel=1e-12)
    assert made.speedup == pytest.approx(speeds[0] / speeds[1], rel=1e-12)
    assert made.ideal == 5


def test_more_time_than_there_was_is_called_impossible():
    words = [
        why_slow(traces.chain(), Costs(), tokens_per_s=speed, baseline_tokens_per_s=50.0).factors[-1].words
        for speed in (100.0, 1000.0)
    ]
    assert ["is impossible" in each for each in words] == [False, True]


def test_what_was_not_measured_alike_is_said():
    def notes(**options):
        costs = replace(Costs(), context_length=options.pop("context_length", 10))
        return why_slow(traces.chain(), costs, tokens_per_s=90.0, baseline_tokens_per_s=100.0, **options).notes

    size = len(traces.chain().tokens)
    assert notes() == notes(most_timed=size) == ()
    (far,) = notes(context_length=128)
    assert "after 128 tokens of context" in far
    (short,) = notes(most_timed=size - 1)
    assert f"at most {size - 1} tokens; all other factors come from this whole text of {size}." in short


def test_each_factor_by_hand():
    """Two steps at K = 4: four drafted and two kept, then two drafted and none kept: 4 tokens from 6 drafted."""
    recorded = Builder().chain(4, 2).chain(2, 0).finish()
    got = factors(recorded)
    draft_ms, verify_ms = 1.5 * 3, (8 + 0.25 * 4 + 8 + 0.25 * 2) / 2
    assert got["shorter drafts"] == pytest.approx((3 + 1) / 5)
    assert got["rejections"] == pytest.approx(2 / 4)
    assert got["draft cost"] == pytest.approx(8 / (8 + draft_ms))
    assert got["verify growth"] == pytest.approx((8 + draft_ms) / (verify_ms + draft_ms))
    assert got["overhead"] == pytest.approx((draft_ms + verify_ms) / (2 * 5) / (8 / 10))


def test_the_ideal_loses_nothing():
    recorded = Builder().chain(4, 4).chain(4, 4).finish()
    free = replace(Costs(), draft_ms=0.0, verify_ms=(8.0,) * 6)
    got = factors(recorded, free, tokens_per_s=5 * 125.0, baseline=125.0)
    assert all(value == pytest.approx(1) for value in got.values())


def test_proposals_without_a_model_cost_nothing_to_draft():
    assert factors(traces.lookup())["draft cost"] == 1


@pytest.mark.parametrize(
    ("recorded", "costs", "says"),
    [
        (traces.plain, Costs(), "nothing was drafted"),
        (traces.tree, Costs(), "trees"),
        (lambda: Builder().step((-1, 0, -1), {0}, num_scratch=1).finish(), Costs(), "more tokens than the draft"),
        (lambda: Builder().chain(changed={"method": "early_exit"}).finish(), Costs(), "drafting by early exit"),
        (traces.resampling_changed, Costs(), "sampling changed during the run"),
        (traces.changed_k, Costs(), "K changed during the run"),
        (changed(method="prompt_lookup"), Costs(), "the method changed during the run"),
        (changed(rule="block_verification"), Costs(), "the rule changed during the run"),
        (changed(draft_model="other"), Costs(), "the draft model changed during the run"),
        (traces.chain, replace(Costs(), draft="other"), "other models"),
        (traces.chain, replace(Costs(), doubt="This machine was too busy."), "too busy"),
        (traces.chain, replace(Costs(), verify_ms=(8.0, 8.1, 8.2)), "at most 2 tokens"),
    ],
)
def test_what_cannot_be_taken_apart_is_refused_in_words(recorded, costs, says):
    with pytest.raises(SpecvizError, match=says):
        factors(recorded(), costs)


@pytest.mark.parametrize("speed", [0.0, -1.0, math.inf, math.nan])
def test_a_speed_must_be_one(speed):
    with pytest.raises(ValueError, match="baseline_tokens_per_s must be above 0"):
        factors(traces.chain(), baseline=speed)
