"""The hybrid: both sources in one text, its exact distribution, and who proposed."""

from itertools import islice

import pytest

from specviz.decoding.draft import Draft, chain
from specviz.decoding.drafter import Context, Drafter
from specviz.decoding.draws import Seeded
from specviz.decoding.engine import speculate
from specviz.decoding.sampling import Sampling
from specviz.drafters.draft_model import ModelDrafter
from specviz.drafters.hybrid import METHOD, HybridDrafter
from specviz.drafters.method import Part, Parts
from specviz.drafters.policy import Heuristic
from specviz.drafters.suffix import SuffixDrafter
from specviz.rules import RULES
from tests.helpers.toys import TableLM, plan_of, target_distribution, text_distribution, total_variation

PROMPT = (0, 1, 2, 0, 1)
EXACT, WRONG = 1e-12, 1e-3
LOSSLESS = [rule for name, rule in RULES.items() if rule.lossless and name in METHOD.rules]


class Watched(Drafter):
    """Drafts as `inner` does and keeps who proposed."""

    def __init__(self, inner):
        self._inner = inner
        self.proposers = set()

    def draft(self, context, k):
        draft = self._inner.draft(context, k)
        self.proposers.add(draft.evidence.get("by"))
        return draft

    def observe(self, draft, probs, verdict, timing):
        self._inner.observe(draft, probs, verdict, timing)


def hybrid(lm=None, **params):
    part = Part("model", lm or TableLM(2), None)
    return METHOD.build(Parts(draft=part), METHOD.validate(params))


def draft_of(drafter, tokens, k=4, seed=1):
    return drafter.draft(Context(tokens, Sampling(), Seeded(seed), 3), k)


@pytest.mark.parametrize("rule", LOSSLESS, ids=lambda rule: rule.name)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7, draft_temperature=1.5), Sampling(0.0)])
def test_the_text_has_the_targets_distribution_where_both_propose(rule, sampling):
    watched = Watched(hybrid(min_match=2, factor=2.0))
    mine = text_distribution(plan_of(TableLM(1), watched, 2, sampling, rule), PROMPT, 3)
    assert total_variation(mine, target_distribution(TableLM(1), PROMPT, 3, sampling)) < EXACT
    if sampling.temperature:
        assert {"suffix", "model"} <= watched.proposers


class Peeking(Drafter):
    """Wrong on purpose: it looks at what the model drew before it chooses between model and text."""

    def __init__(self):
        self._model = ModelDrafter(TableLM(2))

    def draft(self, context, k):
        drawn = self._model.draft(context, 1)
        return chain([0]) if drawn.tokens == (1,) else drawn


def test_a_source_that_is_chosen_after_a_draw_is_caught():
    mine = text_distribution(plan_of(TableLM(1), Peeking(), 2), PROMPT, 2)
    assert total_variation(mine, target_distribution(TableLM(1), PROMPT, 2, Sampling())) > WRONG


def test_the_text_alone_decides_who_proposes():
    by_text, by_model = [0, 1, 2, 1, 0, 1, 2], [0, 1, 2, 1, 0, 0, 2]
    for seed in range(8):
        for tokens, name in ((by_text, "suffix"), (by_model, "model")):
            draft = draft_of(hybrid(), tokens, seed=seed)
            assert draft.evidence["by"] == name
            assert all((q is None) == (name == "suffix") for q in draft.probs)


def test_each_source_drafts_what_it_drafts_alone():
    tokens = [0, 1, 2, 1, 0, 1, 2]
    assert draft_of(hybrid(), tokens).tokens == draft_of(SuffixDrafter(3, 2.0, 0.1), tokens).tokens == (1, 0, 1, 2)
    tokens[-2] = 0
    assert draft_of(hybrid(), tokens).tokens == draft_of(ModelDrafter(TableLM(2)), tokens).tokens


def test_a_draft_of_the_text_costs_no_call_of_the_draft_model_and_teaches_its_policy_nothing():
    """The heuristic policy drafts two more tokens after a draft that was accepted whole, else one less."""
    drafter = HybridDrafter(SuffixDrafter(2, 8.0, 0.0), Part("model", TableLM(2), None), Heuristic())
    plan = plan_of(TableLM(1), drafter, 4)
    calls, k = {"suffix": 0, "model": 0}, 4
    for step in islice(speculate([0, 1, 2, 0, 1, 0, 2, 2], lambda: plan, Seeded(0), max_new_tokens=54), 20):
        name = step.draft.evidence["by"]
        calls[name] += step.draft_work.calls
        if name == "model":
            assert step.draft.evidence["k"] == k
            k = min(4, k + 2) if len(step.verdict.path) == len(step.draft) else max(1, k - 1)
    assert calls["suffix"] == 0 < calls["model"]


def test_where_the_draft_model_cannot_read_the_text_goes_on_alone():
    drafter = hybrid(TableLM(2, context_limit=4))
    assert draft_of(drafter, [0, 1, 2, 1, 0, 1, 2]).evidence["by"] == "suffix"
    nothing = draft_of(drafter, [0, 1, 2, 1, 0, 0, 2])
    assert (nothing.tokens, dict(nothing.evidence)) == (Draft().tokens, {"full": 4})
