"""The gallery of wrong rules: each is wrong where it says so, and none can be picked by accident."""

import itertools
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from specviz.decoding.draft import EMPTY
from specviz.decoding.drafter import Context
from specviz.decoding.draws import ACCEPT, DRAFT, FINAL, Seeded, distribution
from specviz.decoding.sampling import Sampling
from specviz.drafters.draft_model import ModelDrafter
from specviz.rules import RULES
from specviz.rules.broken import BROKEN, DroppedDraft, UntruncatedQ
from tests.helpers import warm_processes
from tests.helpers.toys import TableLM, plan_of, text_distribution

RIGHT = RULES["speculative_sampling"]
each = pytest.mark.parametrize("rule", BROKEN.values(), ids=lambda rule: rule.name)


@each
def test_a_broken_rule_has_facts_of_its_own(rule):
    own = rule.facts
    assert (own.name, own.title, own.summary, own.lossless) == (rule.name, rule.title, rule.summary, False)


def test_threads_that_ask_at_once_get_the_same_rules():
    """In a process of its own, as here they have been asked for."""
    ask = """
import sys, threading
from specviz import rules
sys.setswitchinterval(1e-6)
start, found = threading.Barrier(8), []
threads = [threading.Thread(target=lambda: (start.wait(), found.append(rules.RULES))) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert (len(found), len({id(each) for each in found})) == (8, 1)
"""
    done = warm_processes.run(ask, cwd=Path.cwd())
    assert done.returncode == 0, done.stderr


def random_rows(*shape, sharpness):
    generator = torch.Generator().manual_seed(7)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).mul(sharpness).softmax(-1)


def acceptance(rule, p, q):
    return rule.one_step_accepted(p, q).sum(-1)


@pytest.mark.parametrize("rule", [rule for rule in BROKEN.values() if rule.judges_alone], ids=lambda rule: rule.name)
def test_one_step_is_visibly_another_distribution(rule):
    p, q = random_rows(2, 8, 500, sharpness=3.0)  # as peaked as a language model's rows
    distances = (rule.one_step_distribution(p, q) - p).abs().sum(-1) / 2
    assert distances.max() > 1e-2
    assert ((RIGHT.one_step_distribution(p, q) - p).abs().sum(-1) < 1e-12).all()


@pytest.mark.parametrize("name", ["resample_p", "softmax_residual"])
def test_acceptance_alone_cannot_tell(name):
    p, q = random_rows(2, 20, 50, sharpness=2.0)
    assert torch.equal(acceptance(BROKEN[name], p, q), acceptance(RIGHT, p, q))


@pytest.mark.parametrize("name", ["argmax_draft", "untruncated_q"])
def test_the_closed_form_of_a_wrong_draft(name):
    """In numpy: x comes from another law than the q that it is judged by."""
    rule = BROKEN[name]
    p, q = random_rows(2, 12, sharpness=1.5).numpy()
    likeliest = (-q).argsort()[: 1 if name == "argmax_draft" else 5]
    drawn = 0 * q
    drawn[likeliest] = 1.0 if name == "argmax_draft" else q[likeliest] / q[likeliest].sum()
    shortfall = (p - q).clip(0) / (p - q).clip(0).sum()
    kept = drawn * np.minimum(1, p / q)
    expected = kept + (1 - kept.sum()) * shortfall
    rows = rule.one_step_distribution(torch.tensor(p), torch.tensor(q)).numpy()
    assert rows == pytest.approx(expected, abs=1e-12)


def test_the_greedy_target_keeps_its_most_likely_alone():
    p, q = random_rows(2, 9, sharpness=1.0)
    kept = BROKEN["argmax_target"].one_step_accepted(p, q)
    assert kept.nonzero().flatten().tolist() == [int(p.argmax())]


# ---- the scheduler that peeks ---------------------------------------------------------------------------------------

P, A, B = (0.7, 0.3), 0, 1


def two_token_models(q, behind_a, behind_b):
    """A target that writes A and B as P says at every place; a draft with q behind B A and rows behind A A and A B."""
    target, draft = TableLM(1, vocab_size=2), TableLM(2, vocab_size=2)
    target.table[:] = torch.tensor(P, dtype=torch.float64).log()
    for (before, last), row in {(B, A): q, (A, A): behind_a, (A, B): behind_b}.items():
        draft.table[before, last] = torch.tensor(row, dtype=torch.float64).log()
    return target, draft


def first_token(target, drafter, rule=RIGHT):
    """The exact distribution of the first token behind B A, through the engine with drafts of two tokens."""
    texts = text_distribution(plan_of(target, drafter, 2, rule=rule), (B, A), 3)
    return [sum(chance for text, chance in texts.items() if text[0] == token) for token in (A, B)]


class Peeking(ModelDrafter):
    """Drafts two tokens and takes both back if the draft is unsure behind the first: the mistake without the rule."""

    def draft(self, context, k):
        drafted = super().draft(context, k)
        unsure = len(drafted) == 2 and float(drafted.probs[1].max()) < 0.6
        return EMPTY if unsure else drafted


SURE, UNSURE = (0.9, 0.1), (0.5, 0.5)


def test_a_scheduler_that_peeks_writes_85_for_70():
    """DSpark, appendix A (arXiv:2607.05147): a target of .70 and .30, a text of .85 and .15."""
    target, draft = two_token_models((0.5, 0.5), SURE, UNSURE)
    assert first_token(target, ModelDrafter(draft), BROKEN["peeking_scheduler"]) == pytest.approx(
        [0.85, 0.15], abs=1e-12
    )
    assert first_token(target, Peeking(draft)) == pytest.approx([0.85, 0.15], abs=1e-12)
    assert first_token(target, ModelDrafter(draft)) == pytest.approx(P, abs=1e-12)


@pytest.mark.parametrize("rows", [(SURE, SURE), (UNSURE, UNSURE)], ids=["always sure", "never sure"])
def test_a_confidence_that_does_not_depend_on_the_token_does_no_harm(rows):
    target, draft = two_token_models((0.5, 0.5), *rows)
    assert first_token(target, ModelDrafter(draft), BROKEN["peeking_scheduler"]) == pytest.approx(P, abs=1e-12)


def test_only_two_drafts_of_two_tokens_give_85():
    """By fractions: x is drawn from q, and one of both tokens is always thrown away. q is 1/2, or 11/14, for A."""
    p, found = (Fraction(7, 10), Fraction(3, 10)), set()
    for a, thrown_away in itertools.product(range(1, 140), (A, B)):
        q = (Fraction(a, 140), 1 - Fraction(a, 140))
        stays = 1 - thrown_away
        accepted = min(q[stays], p[stays])
        written = [q[thrown_away] * share for share in p]
        written[stays] += accepted
        written[thrown_away] += q[stays] - accepted  # a rejected token is replaced by the other one
        if written == [Fraction(17, 20), Fraction(3, 20)]:
            found.add((q[A], thrown_away))
    assert found == {(Fraction(1, 2), B), (Fraction(11, 14), B)}


@pytest.mark.parametrize("q", [(0.5, 0.5), (11 / 14, 3 / 14)])
def test_both_give_it_in_the_engine(q):
    target, draft = two_token_models(q, SURE, UNSURE)
    assert first_token(target, ModelDrafter(draft), BROKEN["peeking_scheduler"]) == pytest.approx(
        [0.85, 0.15], abs=1e-12
    )


@each
def test_a_tampered_drafter_draws_as_the_rule_says_and_claims_q(rule):
    lm = TableLM(3, vocab_size=7)
    q = Sampling().probs(lm.row([1, 2]))

    def drafted(draws):
        context = Context([1, 2], Sampling(), rule.tamper(draws), 7)
        draft = ModelDrafter(lm).draft(context, 1)
        assert torch.equal(draft.probs[0], q)
        return draft.tokens[0]

    seen = distribution(drafted)
    assert [seen.get(token, 0.0) for token in range(7)] == pytest.approx(rule.draft_distribution(q).tolist(), abs=1e-12)


@each
def test_tampering_leaves_the_other_draws_alone(rule):
    rows = random_rows(3, 9, sharpness=2.0)
    plain, tampered = Seeded(5), rule.tamper(Seeded(5))
    assert torch.equal(plain.sample(rows, FINAL, 4, -1), tampered.sample(rows, FINAL, 4, -1))
    for one, other in zip(plain.below(rows[:, 0], ACCEPT, 4, 0), tampered.below(rows[:, 0], ACCEPT, 4, 0), strict=True):
        assert torch.equal(one, other)
    assert plain.uniform(DRAFT, 4, 2) == tampered.uniform(DRAFT, 4, 2)


@each
def test_drawn_takes_many_rows(rule):
    rows = random_rows(3, 4, 9, sharpness=2.0)
    drawn = rule.draft_distribution(rows)
    assert torch.allclose(drawn.sum(-1), torch.ones(3, 4, dtype=torch.float64))
    assert torch.equal(drawn[1, 2], rule.draft_distribution(rows[1, 2]))


@each
def test_a_broken_rule_says_what_is_wrong(rule):
    assert not rule.lossless
    assert rule.summary.endswith(".")
    assert BROKEN[rule.name] is rule


def test_the_words_follow_the_numbers():
    assert "2 most likely" in UntruncatedQ(2).summary
    assert "0.25" in DroppedDraft(0.25).summary


def test_no_broken_rule_can_be_picked_by_accident():
    assert not set(BROKEN) & set(RULES)
    code = "import specviz.rules, sys; sys.exit('specviz.rules.broken' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
