"""Self-checks: a sound pair passes each of them, and each fails when just the thing that it is about is broken."""

import copy
from dataclasses import replace

import pytest
import torch

from specviz.checks.self_checks import STEP_ENDS, self_checks
from specviz.decoding.cached_lm import PRODUCTS, CachedLM
from specviz.decoding.draft import EMPTY, chain
from specviz.decoding.draws import Seeded
from specviz.decoding.engine import speculate
from specviz.decoding.forward.proof import Proof
from specviz.decoding.forward.transformers_forward import TransformersForward
from specviz.decoding.sampling import Sampling
from specviz.drafters.draft_model import ModelDrafter
from specviz.models.pool import LoadedModel
from specviz.rules import RULES
from tests.helpers.pairs import pair_of

PROMPT = (5, 9, 40, 7, 31, 5, 9, 40)
SAMPLINGS = (
    Sampling(),
    Sampling(0.8, top_k=20, top_p=0.9),
    Sampling(0.8, min_p=0.1),
    Sampling(0.0),
    Sampling(0.8, draft_temperature=1.6, draft_top_p=0.9),
)
NAMES = [*(f"Cache against a full read, {end.words}" for end in STEP_ENDS),
         "Token tree against a full read of each branch",
         "The target as its own draft accepts everything", "The recorded q is the q that was drawn from"]  # fmt: skip
FULL, MIDDLE, FIRST, TREE, OWN, CLAIMED = range(6)


@pytest.fixture(scope="module")
def pair(named_models):
    return pair_of(named_models.load("big"), named_models.load("near"))


def verdicts(pair, sampling=None, k=4):
    return [check.verdict for check in self_checks(pair, PROMPT, sampling or Sampling(), k)]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_a_sound_pair_passes_every_check(pair, sampling):
    checks = list(self_checks(pair, PROMPT, sampling, 4))
    assert [check.name for check in checks] == NAMES
    assert [(check.done, check.total) for check in checks] == [(i, 6) for i in range(1, 7)]
    assert [check.verdict for check in checks] == ["consistent"] * len(NAMES)


def test_a_pair_at_k_1_passes_every_check(pair):
    assert verdicts(pair, k=1) == ["consistent"] * len(NAMES)


def test_a_draft_with_a_shorter_table_passes_every_check(named_models):
    padded = named_models.load("padded")
    assert verdicts(pair_of(padded, named_models.load("far"))) == ["consistent"] * len(NAMES)


def test_a_method_without_a_draft_model_has_no_q_to_check(named_models):
    lookup = pair_of(named_models.load("big"), None, "prompt_lookup")
    assert [check.name for check in self_checks(lookup, PROMPT, Sampling(0.0), 4)] == NAMES[:CLAIMED]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("method", ["none", "prompt_lookup"])
def test_a_sound_target_alone_passes_every_check(named_models, method, sampling):
    """Nothing is left to luck: text that never repeats and drafts that are never kept hide no cache."""
    assert verdicts(pair_of(named_models.load("big"), None, method), sampling) == ["consistent"] * len(NAMES[:CLAIMED])


def test_a_model_that_drafts_for_itself_passes_every_check(named_models):
    assert verdicts(pair_of(named_models.load("big"), named_models.load("big"))) == ["consistent"] * len(NAMES)


def test_what_there_is_no_room_for_is_not_passed(named_models):
    brief = named_models.load("brief")
    prompt = range(5, 4 + brief.info.context_limit)
    assert {check.verdict for check in self_checks(pair_of(brief, None, "none"), prompt, Sampling(), 4)} == {"unsure"}


def test_every_drafted_step_has_the_fate_that_its_name_says(pair):
    plan = pair.plan(RULES["speculative_sampling"], Sampling(), 3)
    seen = set()
    for step in speculate(PROMPT, lambda: plan, Seeded(1), max_new_tokens=60):
        if len(step.draft):
            kept = len(step.verdict.path)
            expected = FULL if kept == len(step.draft) else MIDDLE if kept else FIRST
            assert [place for place, end in enumerate(STEP_ENDS) if end.is_reached(step)] == [expected]
            seen.add(expected)
    assert seen == {FULL, MIDDLE, FIRST}


# ---- a cache that is wrong --------------------------------------------------------------------------------------


class SpoilsARow(CachedLM):
    """Its newest row becomes a copy of the one before where `kept` of the drafted rows stay in the way named."""

    after = FULL

    def _keep(self, common, kept):
        how = FULL if len(kept) == len(self._tail) else MIDDLE if kept else FIRST
        is_due = bool(self._tail) and how == self.after
        super()._keep(common, kept)
        if is_due:
            last = common + len(kept) - 1
            values = self._forward._rows.rows[1]
            values[..., last, :] = values[..., last - 1, :]


class KeepsOneTooMany(CachedLM):
    """A cut draft leaves one of its rows in the cache of transformers, which goes by what it holds."""

    def __init__(self, model, context_limit):
        super().__init__(model, context_limit, forward=TransformersForward(model, PRODUCTS))

    def _keep(self, common, kept):
        is_cut = common + len(kept) < self._total_rows
        super()._keep(common, [*kept, len(kept)] if is_cut else kept)
        self._num_rows = common + len(kept)


class Read(LoadedModel):
    """A loaded model whose readers are of another class."""

    __slots__ = ("reader",)

    def cached_lm(self):
        return self.reader(self.model, self.info.context_limit)


def read_by(loaded, reader):
    read = Read(loaded.name, loaded.model, loaded.tokenizer, loaded.info, loaded.text)
    object.__setattr__(read, "reader", reader)
    return read


@pytest.mark.parametrize("fate", [FULL, MIDDLE, FIRST])
def test_a_spoilt_row_is_found_by_the_check_of_its_fate(pair, fate):
    spoiling = type("Spoiling", (SpoilsARow,), {"after": fate})
    found = verdicts(replace(pair, target=read_by(pair.target, spoiling)))
    assert found[fate] == "differs"


def test_a_row_too_many_after_a_cut_is_found(pair):
    found = verdicts(replace(pair, target=read_by(pair.target, KeepsOneTooMany)))
    assert found[MIDDLE] == found[FIRST] == "differs"


class SeesSiblings(CachedLM):
    """Reads a token tree as if it were a chain."""

    def forward(self, tokens, draft=EMPTY):
        return super().forward(tokens, chain(draft.tokens))


def test_a_tree_whose_branches_see_each_other_is_found(pair):
    found = verdicts(replace(pair, target=read_by(pair.target, SeesSiblings)))
    assert found[TREE] == "differs"
    assert found[:TREE] == ["consistent"] * TREE


def test_a_target_that_reads_chains_only_is_not_asked_for_a_tree(pair):
    chains_only = replace(pair.target, proof=Proof(trees="it does not"))
    assert NAMES[TREE] not in [
        check.name for check in self_checks(replace(pair, target=chains_only), PROMPT, Sampling(), 4)
    ]


def test_a_target_that_is_not_its_own_draft_is_found(pair):
    """The cache checks and the tree take one reader each; the next, which then drafts, has other weights."""
    large, small = pair.target.model, pair.draft.model
    models = iter([large, large, large, large, small, large])
    two_faced = read_by(pair.target, lambda model, limit: CachedLM(next(models), limit))
    found = verdicts(pair_of(two_faced, None, "none"))
    assert found == [*["consistent"] * 4, "differs"]


# ---- a q that is not the one drawn from -------------------------------------------------------------------------


class Flattens(ModelDrafter):
    """Draws from q, claims a flatter one."""

    def draft(self, context, k):
        draft = super().draft(context, k)
        flat = [(q + 1e-4) / (q + 1e-4).sum() for q in draft.probs]
        return chain(draft.tokens, flat, draft.logits)


class Truncates(ModelDrafter):
    """Draws from the five likeliest, claims the whole q."""

    def draft(self, context, k):
        draft = super().draft(replace(context, sampling=Sampling(top_k=5)), k)
        return chain(draft.tokens, [context.sampling.probs(row) for row in draft.logits], draft.logits)


class OtherLogits(ModelDrafter):
    """Claims, and draws from, a q that its model never gave."""

    def draft(self, context, k):
        draft = super().draft(replace(context, sampling=Sampling(0.9)), k)
        return chain(draft.tokens, draft.probs, [row / 0.9 for row in draft.logits])


class OtherTemperature(ModelDrafter):
    """Draws from the q that it claims, which is not what its logits give at the run's temperature."""

    def draft(self, context, k):
        return super().draft(replace(context, sampling=Sampling(0.9)), k)


class Argmax(ModelDrafter):
    """Drafts the likeliest tokens, claims q."""

    def draft(self, context, k):
        draft = super().draft(context, k)
        return chain([int(q.argmax()) for q in draft.probs], draft.probs, draft.logits)


class ClaimsNothing(ModelDrafter):
    """Every token judged as a certain one."""

    def draft(self, context, k):
        return chain(super().draft(context, k).tokens)


def drafted_by(pair, drafter):
    return replace(pair, method=replace(pair.method, build=lambda parts, params: drafter(parts.draft.lm)))


@pytest.mark.parametrize("drafter", [Flattens, Truncates, OtherLogits, OtherTemperature, Argmax])
def test_a_q_that_was_not_drawn_from_is_found(pair, drafter):
    assert verdicts(drafted_by(pair, drafter))[CLAIMED] == "differs"


def test_no_q_is_not_passed(pair):
    assert verdicts(drafted_by(pair, ClaimsNothing))[CLAIMED] == "unsure"


def test_a_q_from_a_stale_cache_is_found(pair):
    stale = pair_of(pair.target, read_by(pair.draft, KeepsOneTooMany))
    assert verdicts(drafted_by(stale, ModelDrafter))[CLAIMED] == "differs"


def test_half_precision_passes_with_the_rounding_it_is_allowed(pair):
    halves = [replace(each, model=copy.deepcopy(each.model).to(torch.bfloat16)) for each in (pair.target, pair.draft)]
    assert set(verdicts(pair_of(*halves))) <= {"consistent", "unsure"}
