"""Every rule against its own code run through every draw, against the papers' formulas in fractions, and in a run."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch

from specviz import trace
from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.draft import EMPTY, Draft, chain
from specviz.decoding.draws import ACCEPT, Draws, Recorded, Seeded, distribution
from specviz.decoding.engine import Plan, speculate
from specviz.decoding.sampling import Sampling
from specviz.drafters.draft_model import ModelDrafter
from specviz.drafters.method import CHAIN_RULES, TREE_RULES
from specviz.errors import SpecvizError
from specviz.rules import RULES
from specviz.rules import chain as chain_module
from specviz.rules.broken import BROKEN, ClampedQ, UntruncatedQ
from specviz.rules.speculative_sampling import residual
from specviz.session.recorder import Recorder
from tests.helpers.recorded_steps import models, vocabulary
from tests.helpers.tiny_models import CONTEXT_LIMIT

EXACT = 1e-12
TOKEN, BLOCK = RULES["speculative_sampling"], RULES["block_verification"]
LOSSLESS = [rule for rule in RULES.values() if rule.lossless]
ALL = [*(RULES | BROKEN).values(), UntruncatedQ(2), ClampedQ(0.2)]
OF_CHAINS = [rule for rule in ALL if rule.name in (*CHAIN_RULES, *BROKEN)]
each = pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.name)
each_and_broken = pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.name)
PLAIN = Sampling()
EXAMPLE = torch.tensor([[1, 2], [2, 1]], dtype=torch.float64) / 3  # p and q in every context


def random_rows(seed, *shape, sharpness=1.5):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).mul(sharpness).softmax(-1)


def random_pair(seed, vocab_size=4):
    """p and q, in every third case without a token each."""
    p, q = random_rows(seed, 2, vocab_size)
    if seed % 3 == 0:
        p, q = p.clone(), q.clone()
        p[seed % vocab_size] = q[(seed + 1) % vocab_size] = 0
    return p / p.sum(), q / q.sum()


def really_drawn(rule, q):
    return rule.draft_distribution(q) if rule.name in BROKEN else q


def first_tokens(rule, p, q):
    """The law of (kept, first emitted token) for x as it is really drawn, from the rule's own call."""
    total = {}
    for x, chance in enumerate(really_drawn(rule, q).tolist()):
        if not chance:
            continue
        draft, probs = chain([x], q[None]), torch.stack([p, p])

        def judged(draws, draft=draft, probs=probs):
            verdict = rule(draft, probs, draws, 5)
            return bool(verdict.path), verdict.emitted(draft)[0]

        for outcome, weight in distribution(judged).items():
            total[outcome] = total.get(outcome, 0.0) + chance * weight
    return total


@each_and_broken
@pytest.mark.parametrize("seed", range(6))
def test_one_step_is_what_the_rule_does(rule, seed):
    p, q = random_pair(seed)
    seen = first_tokens(rule, p, q)
    kept, whole = rule.one_step_accepted(p, q), rule.one_step_distribution(p, q)
    for x in range(len(p)):
        assert abs(kept[x] - seen.get((True, x), 0.0)) < EXACT
        assert abs(whole[x] - seen.get((True, x), 0.0) - seen.get((False, x), 0.0)) < EXACT


@each_and_broken
def test_many_places_at_once_are_the_same_as_one_by_one(rule):
    p, q = random_rows(1, 2, 3, 5, 7)
    for kind in (rule.one_step_accepted, rule.one_step_distribution):
        assert kind(p, q).shape == p.shape
        assert kind(p.float(), q.float()).dtype == torch.float64
        for place in itertools.product(range(3), range(5)):
            assert (kind(p, q)[place] - kind(p[place], q[place])).abs().max() < EXACT


def random_chain(seed, size, vocab_size=4):
    """A chain with the target's rows; every third token was chosen without chance."""
    probs, rows = random_rows(seed, size + 1, vocab_size), random_rows(seed + 100, size, vocab_size)
    tokens = torch.randint(vocab_size, (size,), generator=torch.Generator().manual_seed(seed)).tolist()
    return chain(tokens, [None if (seed + i) % 3 == 0 else row for i, row in enumerate(rows)]), probs


@each_and_broken
@pytest.mark.parametrize("size", range(5))
def test_length_distribution_is_what_the_rule_does(rule, size):
    for seed in range(3):
        draft, probs = random_chain(seed, size)
        seen = distribution(lambda draws, draft=draft, probs=probs: len(rule(draft, probs, draws, 5).path))
        lengths = rule.length_distribution(draft, probs)
        assert lengths.shape == (size + 1,)
        assert max(abs(float(chance) - seen.get(n, 0.0)) for n, chance in enumerate(lengths)) < EXACT


@pytest.mark.parametrize("rule", LOSSLESS, ids=lambda rule: rule.name)
def test_one_step_distribution_of_a_lossless_rule_is_the_targets(rule):
    for seed in range(20):
        p, q = random_pair(seed, vocab_size=50)
        for draft in (q, p):
            assert (rule.one_step_distribution(p, draft) - p).abs().max() < EXACT


# ---- what each rule promises --------------------------------------------------------------------------------------


def expected_kept(rule, probs, rows):
    """Mean number of kept tokens over all chains drawn from `rows` [K, V], the same in every context."""
    total = 0.0
    for tokens in itertools.product(range(rows.shape[1]), repeat=len(rows)):
        lengths = rule.length_distribution(chain(tokens, rows), probs)
        chance = float(torch.stack([row[token] for row, token in zip(rows, tokens, strict=True)]).prod())
        total += chance * sum(n * float(weight) for n, weight in enumerate(lengths))
    return total


@pytest.mark.parametrize(("rule", "ninths"), [(TOKEN, 10), (BLOCK, 11)], ids=["token", "block"])
def test_the_papers_example(rule, ninths):
    p, q = EXAMPLE
    assert abs(expected_kept(rule, p.expand(3, 2), q.expand(2, 2)) - ninths / 9) < EXACT


@pytest.mark.parametrize("seed", range(8))
def test_block_verification_keeps_no_fewer_on_average(seed):
    probs, rows = random_rows(seed, 4, 3), random_rows(seed + 50, 3, 3)
    by_token, by_block = (expected_kept(rule, probs, rows) for rule in (TOKEN, BLOCK))
    assert by_block > by_token - EXACT
    assert by_block - by_token > 1e-3 or seed not in (0, 1)  # and it does keep more


def block_chances(probs, rows, tokens):
    """h_i of Sun et al. in fractions."""
    weight, chances = Fraction(1), []
    for i, token in enumerate(tokens):
        weight = min(Fraction(1), weight * probs[i][token] / rows[i][token])
        if i + 1 == len(tokens):
            return [*chances, weight]
        shortfall = sum(max(Fraction(0), weight * p - q) for p, q in zip(probs[i + 1], rows[i + 1], strict=True))
        chances.append(shortfall / (shortfall + 1 - weight) if shortfall + 1 - weight else Fraction(1))
    return chances


def fractions(generator, *shape):
    counts = generator.integers(1, 9, shape)
    return [[Fraction(int(n), int(row.sum())) for n in row] for row in counts]


@pytest.mark.parametrize("seed", range(5))
def test_block_verification_has_the_papers_chances(seed):
    generator = np.random.default_rng(seed)
    probs, rows = fractions(generator, 5, 3), fractions(generator, 4, 3)
    tokens = generator.integers(0, 3, 4).tolist()
    draft, tensor = chain(tokens, torch.tensor(rows, dtype=torch.float64)), torch.tensor(probs, dtype=torch.float64)
    verdict = BLOCK(draft, tensor, Always(0.0), 0)
    expected = block_chances(probs, rows, tokens)
    assert [check.accept_prob for check in verdict.checks] == pytest.approx([float(h) for h in expected], abs=EXACT)


class Always(Draws):
    """The same u for every draw, or one per node."""

    def __init__(self, *u):
        self.u = u

    def uniform(self, role, position, node):
        return self.u[node] if role == ACCEPT and len(self.u) > 1 else self.u[0]


def test_block_verification_keeps_up_to_the_last_token_that_stands():
    draft, probs = random_chain(1, 4)
    chances = [check.accept_prob for check in BLOCK(draft, probs, Always(0.0), 0).checks]
    low, high = [chance / 2 for chance in chances], [(1 + chance) / 2 for chance in chances]
    verdict = BLOCK(draft, probs, Always(high[0], low[1], high[2], high[3]), 0)
    assert max(chances) < 1
    assert verdict.path == (0, 1)
    assert [(check.node, check.accepted, check.u) for check in verdict.checks] == [
        (0, True, high[0]), (1, True, low[1]), (2, False, high[2]),
    ]  # fmt: skip


def test_block_verification_shows_chances_of_one_where_both_models_agree():
    rows = random_rows(3, 4, 5)
    verdict = BLOCK(chain([0, 3, 1], rows[:3]), rows, Always(0.99), 0)
    assert [check.accept_prob for check in verdict.checks] == [1.0] * 3


def test_token_and_block_verification_agree_on_a_single_token():
    for seed in range(40):
        p, q = random_pair(seed)
        draft = chain(Seeded(seed).sample(q[None], "draft", 3, 0).tolist(), q[None])
        assert TOKEN(draft, torch.stack([p, q]), Seeded(seed), 3) == BLOCK(draft, torch.stack([p, q]), Seeded(seed), 3)


def test_sample_and_match_does_not_look_at_q():
    rule = RULES["sample_and_match"]
    for seed in range(10):
        draft, probs = random_chain(seed, 3)
        certain = chain(draft.tokens)
        one, other = (rule(given, probs, Seeded(seed), 3) for given in (draft, certain))
        assert (one.path, one.token, one.kind) == (other.path, other.token, other.kind)
        assert [check.q for check in other.checks] == [1.0] * len(other.checks)


def test_with_a_greedy_draft_sample_and_match_can_beat_the_ratio():
    """ground truth: .90 against .61 at p = (.9, .1), q = (.51, .49)."""
    p, q = torch.tensor([[0.9, 0.1], [0.51, 0.49]], dtype=torch.float64)
    likeliest = chain([0])
    assert float(RULES["sample_and_match"].length_distribution(likeliest, torch.stack([p, p]))[1]) == pytest.approx(0.9)
    assert float(TOKEN.one_step_accepted(p, q).sum()) == pytest.approx(0.61)


@pytest.mark.parametrize(
    ("row", "x", "kept"),
    [
        ([0.95, 0.05], 1, False),  # H = .199, .3 exp(-H) = .246: the bound is eps = .09
        ([0.9, 0.1], 1, True),
        ([0.04] * 25, 3, True),  # H = ln 25: the bound is .3 / 25 = .012
        ([0.3, 0.3, 0.25, 0.05, 0.1], 3, False),  # H = 1.449: the bound is .3 exp(-H) = .070
    ],
)
def test_typical_keeps_what_is_likely_enough(row, x, kept):
    p = torch.tensor(row, dtype=torch.float64)
    verdict = RULES["typical"](chain([x]), torch.stack([p, p]), Always(0.5), 0)
    assert bool(verdict.path) == kept
    assert verdict.token == int(p.argmax())


def test_lenience_keeps_twice_as_often_and_ensemble_follows_the_average():
    p, q = random_rows(3, 2, 6)
    assert torch.allclose(RULES["lenience"].one_step_accepted(p, q), torch.minimum(q, 2 * p))
    assert torch.allclose(RULES["ensemble"].one_step_distribution(p, q), (p + q) / 2)


# ---- in a run -----------------------------------------------------------------------------------------------------


def run(rule, draws, sampling=PLAIN, num_tokens=16):
    target, draft = (CachedLM(model, CONTEXT_LIMIT) for model in models())
    plan = Plan(target, ModelDrafter(draft), rule, sampling, 4)
    return list(speculate([5, 9, 12, 7, 3], lambda: plan, draws, max_new_tokens=num_tokens))


@each
def test_a_draft_equal_to_the_target_is_kept_by_what_looks_at_both(rule):
    draft, probs = random_chain(2, 3)
    rows = probs[:3]
    lengths = rule.length_distribution(chain(draft.tokens, rows), probs)
    assert (float(lengths[-1]) > 1 - EXACT) == (rule.name not in ("sample_and_match", "typical"))


@pytest.mark.parametrize("rule", OF_CHAINS, ids=lambda rule: rule.name)
def test_a_run_of_any_rule_can_be_recorded(rule):
    """Over filtered rows, in which most tokens have no probability."""
    settings = trace.Settings(4, "constant", 1.0, 0, 1.0, "any", {}, rule.name, rule.lossless, "draft", "target")
    recorder = Recorder(vocabulary())
    for step in run(rule, Seeded(2), Sampling(0.7, top_k=20, top_p=0.9)):
        record = recorder.record(step, settings, started=0.0)
        assert trace.Step.from_dict(record.to_dict()) == record
        accepted = ["accepted"] * len(step.verdict.path)
        ended = [*accepted, "rejected"] if step.verdict.kind == "resampled" else accepted
        assert [token.status for token in record.draft] == [*ended, *["ignored"] * (len(step.draft) - len(ended))]
        for node, token in enumerate(record.draft):
            assert token.p == pytest.approx(float(step.probs[node][token.id]), rel=1e-8, abs=1e-12)
            assert token.q == pytest.approx(float(step.draft.probs[node][token.id]), rel=1e-8)
        distribution_sum = step.verdict.distributions.final.sum()
        assert distribution_sum.dtype == step.probs.dtype
        assert float(distribution_sum) == pytest.approx(1.0)
        assert len(record.emitted) == len(step.tokens)


@pytest.fixture(scope="module")
def thrown():
    """Every acceptance u of a run, by its position and node."""
    steps = run(TOKEN, Seeded(4), num_tokens=40)
    return {(step.context_length + each.node, each.node): each.u for step in steps for each in step.verdict.checks}


@each_and_broken
def test_recorded_draws_give_every_rule_the_same_u(rule, thrown):
    draft, probs = random_chain(5, 4)
    replayed = 0
    for position in {position - node for position, node in thrown}:
        for check in rule(draft, probs, Recorded(thrown, Seeded(99)), position).checks:
            if (position + check.node, check.node) in thrown:
                assert check.u == thrown[position + check.node, check.node]
                replayed += 1
    assert replayed > 5


@each_and_broken
def test_judging_a_chain_takes_one_transfer(rule, monkeypatch):
    transfers = []
    monkeypatch.setattr(chain_module, "to_host", lambda values: transfers.append(values) or values)
    rule(*random_chain(1, 4), Seeded(0), 0)
    assert len(transfers) == 1


@each_and_broken
def test_distributions_have_the_number_format_of_the_targets_rows(rule):
    draft, probs = random_chain(1, 3)
    for seed in range(10):
        distributions = rule(draft, probs.float(), Seeded(seed), 0).distributions
        assert {row.dtype for row in (*distributions.judged, distributions.final)} == {torch.float32}
        assert float(distributions.final.sum()) == pytest.approx(1.0)


@each_and_broken
def test_an_empty_draft_is_one_plain_token(rule):
    verdict = rule(EMPTY, random_rows(0, 1, 5), Seeded(0), 0)
    assert (verdict.path, verdict.kind, verdict.checks) == ((), "plain", ())


@each
def test_a_target_that_is_not_a_number_is_refused(rule):
    (draft, probs), nothing = random_chain(1, 3), float("nan")
    for given, rows in [(draft, probs * nothing), (EMPTY, probs[:1] * nothing)]:
        with pytest.raises(SpecvizError, match="not-a-number"):
            rule(given, rows, Seeded(0), 0)
    bonus_row = torch.cat([probs[:-1], probs[-1:] * nothing])
    with pytest.raises(SpecvizError, match="not-a-number"):
        [rule(chain([int(p.argmax()) for p in probs[:3]]), bonus_row, Seeded(seed), 0) for seed in range(99)]


@each
def test_trees_and_scratch_nodes_are_for_the_rules_of_trees_alone(rule):
    tree, scratch = Draft((1, 2), (-1, -1), (None, None)), Draft((1, 2), (-1, 0), (None, None), num_scratch=1)
    assert rule.supports(chain([1, 2])) == (rule.name in CHAIN_RULES)
    assert [rule.supports(draft) for draft in (tree, scratch)] == [rule.name in TREE_RULES] * 2
    with pytest.raises(ValueError, match="chain"):
        rule.length_distribution(tree, random_rows(0, 3, 4))


@each
def test_a_rule_says_in_words_what_it_is(rule):
    assert RULES[rule.name] is rule
    assert len(rule.title) > 5
    assert rule.summary.endswith(".")


def test_residual_is_a_distribution_and_falls_back_to_p():
    p, q = random_rows(0, 2, 6)
    assert float(residual(p, q).sum()) == pytest.approx(1.0)
    assert torch.equal(residual(p, p), p)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@each_and_broken
def test_judging_on_a_gpu_never_synchronises_and_says_the_same(rule):
    draft, probs = random_chain(1, 4)
    on_gpu = chain(draft.tokens, [None if row is None else row.cuda() for row in draft.probs])
    probs_on_gpu = probs.cuda()
    rule(on_gpu, probs_on_gpu, Seeded(0), 3)
    torch.cuda.set_sync_debug_mode("error")
    try:
        verdicts = [rule(on_gpu, probs_on_gpu, Seeded(seed), 3) for seed in range(20)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for seed, verdict in enumerate(verdicts):
        expected = rule(draft, probs, Seeded(seed), 3)
        assert (verdict.path, verdict.token, verdict.kind) == (expected.path, expected.token, expected.kind)
