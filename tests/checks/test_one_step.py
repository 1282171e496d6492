"""One place of the shipped run: the identity, every rule's law, and redraws by the real rules at fixed seeds.

Each redraw test calls a correct rule wrong at most once in a million seeds.
"""

from functools import cache

import pytest
import torch

from specviz.checks import one_step
from specviz.checks.one_step import TELLING, DraftedPlace, identity, places, redraws, rule_here, worst_place
from specviz.checks.statistics import COARSE, Cells, cells_differ, smallest_cell_shift
from specviz.models.pool import ModelPool
from specviz.rules import RULES
from specviz.rules.broken import BROKEN
from specviz.settings import assets_dir
from specviz.trace import load_trace
from tests.helpers.runs import begin, finish, make_steps

EVERY = {**RULES, **BROKEN}
LOSSLESS = [name for name, rule in EVERY.items() if rule.lossless]
WRONG = [name for name, rule in EVERY.items() if rule.judges_alone and not rule.lossless]
EXACT = 1e-12


@cache
def shipped():
    pool = ModelPool()
    recorded = load_trace(assets_dir() / "traces" / "first-visit.jsonl.gz")
    return recorded, tuple(places(recorded, pool.load("fable-target"), pool.load("fable-draft")))


def random_place(seed=0, size=30, sharpness=2.0):
    generator = torch.Generator().manual_seed(seed)
    p, q = torch.randn(2, size, generator=generator, dtype=torch.float64).mul(sharpness).softmax(-1)
    return DraftedPlace(0, 0, int(q.argmax()), True, p, q)


def last(results):
    *_, result = results
    return result


# ---- the shipped run ------------------------------------------------------------------------------------------------


def test_the_rows_are_those_of_the_recorded_run():
    recorded, found = shipped()
    drafted = [token for step in recorded.steps for token in step.draft]
    assert len(found) == len(drafted)
    for place, token in zip(found, drafted, strict=True):
        assert (place.token, place.is_judged) == (token.id, token.is_judged)
        assert float(place.p[token.id]) == pytest.approx(token.p, rel=1e-3)
        assert float(place.q[token.id]) == pytest.approx(token.q, rel=1e-3)


ONE, *OTHERS = LOSSLESS


@pytest.mark.parametrize("name", [ONE, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_a_lossless_rule_passes_on_the_shipped_run(name):
    place = worst_place(shipped()[1], EVERY[name])
    result = last(redraws(place, EVERY[name], 2500, seed=1))
    assert result.outcome.state == "consistent"
    assert smallest_cell_shift(result.cells.distribution, 2500) < COARSE


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_is_flagged_on_the_shipped_run_where_it_errs_most(name):
    place = worst_place(shipped()[1], EVERY[name])
    assert TELLING[0] <= place.agreement <= TELLING[1]
    n = rule_here(place, EVERY[name]).draws_needed
    assert n < 20_000
    assert last(redraws(place, EVERY[name], n, seed=2)).outcome.state == "differs"


def test_too_few_redraws_of_a_wrong_rule_cannot_tell():
    place = worst_place(shipped()[1], BROKEN["clamped_q"])
    assert last(redraws(place, BROKEN["clamped_q"], 300, seed=1)).outcome.state == "unsure"


def test_too_few_redraws_of_a_right_rule_cannot_tell():
    place = worst_place(shipped()[1], RULES["speculative_sampling"])
    assert last(redraws(place, RULES["speculative_sampling"], 100, seed=1)).outcome.state == "unsure"


def test_a_wrong_rule_that_does_no_harm_at_a_place_does_not_pass_there():
    peaked = random_place(2)
    agreed = DraftedPlace(0, 0, 1, True, peaked.p, peaked.p)  # where p = q nothing is ever cut
    result = last(redraws(agreed, BROKEN["resample_p"], 1500, seed=1))
    assert result.here.distance < EXACT
    assert result.outcome.state == "unsure"


def changed_live(bench, **change):
    """A run of three steps, then something else for the rest."""
    run = begin(bench, num_speculative_tokens=2, max_new_tokens=24)
    make_steps(run, 3)
    for name, value in change.items():
        run.controls.set(name, value)
    return finish(run)


def recorded_probabilities(steps):
    return [(step.index, token.id, token.q) for step in steps for token in step.draft if token.q is not None]


def same_places(found, steps):
    expected = recorded_probabilities(steps)
    assert [(place.step, place.token) for place in found] == [(step, token) for step, token, _ in expected]
    for place, (_, token, q) in zip(found, expected, strict=True):
        assert float(place.q[token]) == pytest.approx(q, rel=1e-3)


def test_a_draft_that_changed_live_leaves_the_places_of_the_one_that_is_asked(bench, named_models):
    recorded = changed_live(bench, draft="far")
    for draft, steps in (("near", recorded.steps[:3]), ("far", recorded.steps[3:])):
        same_places(list(places(recorded, named_models.load("big"), named_models.load(draft))), steps)
        assert steps


def test_steps_without_probabilities_hide_none_behind_them(bench, named_models):
    run = begin(bench, num_speculative_tokens=2, max_new_tokens=40, method="prompt_lookup", temperature=0.3)
    make_steps(run, 6)
    run.controls.set("method", "draft_model")
    recorded = finish(run)
    assert any(step.settings.method == "prompt_lookup" and step.draft for step in recorded.steps)
    found = list(places(recorded, named_models.load("big"), named_models.load("near")))
    assert found
    same_places(found, recorded.steps)


def test_places_are_bounded_by_the_numbers_that_they_keep(monkeypatch):
    pool = ModelPool()
    models = pool.load("fable-target"), pool.load("fable-draft")
    recorded, _ = shipped()  # which all tests share, so before fewer may be kept
    monkeypatch.setattr(one_step, "MOST_STORED", 2 * models[0].info.vocab_size * 7)
    assert len(list(places(recorded, *models))) == 7


# ---- laws -----------------------------------------------------------------------------------------------------------


KINDS = {"speculative_sampling", "typical", "resample_p", "argmax_draft"}
"""Right, lossy, wrong in its own code, and wrong in its drafts. tests/rules enumerates the formula of every rule."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in KINDS else pytest.mark.slow) for name in EVERY]
)
def test_what_a_rule_writes_is_its_own_formula(name):
    """Its redraws against its one-step law, not against p; once in a million seeds this fails by chance."""
    result = last(redraws(random_place(3), EVERY[name], 1500, seed=4))
    assert sum(result.cells.counts) == 1500
    assert not cells_differ(Cells(result.formula, result.cells.counts))


def test_the_distance_is_that_of_the_written_distribution():
    place = random_place(5)
    p, q = place.p.numpy(), place.q.numpy()
    kept = [min(mine, other) for mine, other in zip(p, q, strict=True)]
    distribution = [share + (1 - sum(kept)) * mine for share, mine in zip(kept, p, strict=True)]  # resample from p
    here = rule_here(place, BROKEN["resample_p"])
    assert here.distance == pytest.approx(sum(abs(a - b) for a, b in zip(distribution, p, strict=True)) / 2, abs=EXACT)
    assert here.accepted == pytest.approx(sum(kept), abs=EXACT)
    assert rule_here(place, RULES["speculative_sampling"]).distance < EXACT


@pytest.mark.parametrize("name", WRONG)
def test_the_worst_place_is_the_farthest_of_the_telling_ones(name):
    rule, judged = EVERY[name], [place for place in shipped()[1] if place.is_judged]
    telling = [place for place in judged if TELLING[0] <= place.agreement <= TELLING[1]]
    distances = [rule_here_distance(place, rule) for place in telling]
    chosen = worst_place(shipped()[1], rule)
    assert rule_here_distance(chosen, rule) == pytest.approx(max(distances), abs=EXACT)


def rule_here_distance(place, rule):
    return float((rule.one_step_distribution(place.p, place.q) - place.p).abs().sum() / 2)


def test_a_right_rule_starts_where_the_models_agree_half():
    chosen = worst_place(shipped()[1], RULES["block_verification"])
    nearest = min((place for place in shipped()[1] if place.is_judged), key=lambda place: abs(place.agreement - 0.5))
    assert chosen is nearest


def test_no_judged_place_is_refused():
    with pytest.raises(ValueError, match="judged place"):
        worst_place([], RULES["typical"])


# ---- counting -------------------------------------------------------------------------------------------------------


def test_there_is_no_verdict_before_the_last_draw():
    results = list(redraws(random_place(), BROKEN["argmax_draft"], 1000, seed=0))
    assert [result.outcome for result in results[:-1]] == [None] * (len(results) - 1)
    assert results[-1].outcome is not None
    assert all(sum(result.cells.counts) == result.done for result in results)
    assert (results[0].done, results[-1].done, results[-1].total) == (0, 1000, 1000)


def test_the_same_seed_counts_the_same():
    place, rule = random_place(), RULES["speculative_sampling"]
    one, same, other = (last(redraws(place, rule, 400, seed=seed)).cells.counts for seed in (1, 1, 2))
    assert one == same != other


def test_no_redraw_is_refused():
    with pytest.raises(ValueError, match="n must be >= 1"):
        next(redraws(random_place(), RULES["speculative_sampling"], 0))


# ---- the identity ---------------------------------------------------------------------------------------------------


def test_overlap_and_shortfall_stack_to_p_and_nothing_is_left_out():
    for place in (random_place(1), shipped()[1][1]):
        result = identity(place)
        assert result.rows[0].token == place.token
        assert result.rows[-1].token is None
        assert result.num_tokens == len(place.p)
        assert result.largest_error < EXACT
        for share in (*result.rows, result.sums):
            assert share.written == pytest.approx(share.p, abs=EXACT)
            assert share.overlap + share.excess == pytest.approx(share.q, abs=EXACT)
        for name in ("p", "q", "overlap", "shortfall", "excess"):
            total = sum(getattr(share, name) for share in result.rows)
            assert total == pytest.approx(getattr(result.sums, name), abs=EXACT)
        assert result.sums.p == pytest.approx(1, abs=EXACT)
        assert result.sums.shortfall == pytest.approx(result.sums.excess, abs=EXACT)


def test_a_small_vocabulary_is_shown_whole():
    result = identity(random_place(size=5))
    assert {share.token for share in result.rows} == {*range(5), None}
    assert result.rows[-1].p == pytest.approx(0, abs=EXACT)
