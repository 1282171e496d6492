"""Medusa: which token each head means, the tree, the text's law, and what the bundled heads are worth."""

import itertools
import json
from functools import partial
from itertools import cycle

import pytest
import torch

from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.draft import ROOT
from specviz.decoding.drafter import Context
from specviz.decoding.draws import Draws, Seeded
from specviz.decoding.engine import Plan, speculate
from specviz.decoding.sampling import Sampling
from specviz.drafters.markov import MarkovBias
from specviz.drafters.medusa import BIASED_HITS, HITS, METHOD, MedusaDrafter, best_paths, by_depth, fixed_paths
from specviz.drafters.medusa.heads import MedusaHeads
from specviz.drafters.none import NoDraft
from specviz.errors import SpecvizError
from specviz.models.pool import ModelPool
from specviz.rules import RULES
from specviz.session.setup import gather
from specviz.settings import assets_dir
from tests.helpers.state_readers import AlwaysRead, own_distribution
from tests.helpers.tiny_models import tiny
from tests.helpers.toys import text_distribution, total_variation

RULE = RULES["speculative_sampling"]
PROMPT = [1, 2, 0, 1]


def heads_of(vocab_size=8, num_heads=3, *, own_output=True, dtype=torch.float32, seed=4, tables=0):
    """Random heads for a tiny model of hidden size 32; with a bias of rank 2, where it has tables."""
    torch.manual_seed(seed)
    heads = MedusaHeads(32, vocab_size, num_heads, 1, own_output)
    for parameter in heads.parameters():
        parameter.data.normal_(std=0.4)
    if tables:
        heads.markov = MarkovBias(vocab_size, 2, tables)
        for parameter in heads.markov.parameters():
            parameter.data.normal_()
    return heads.to(dtype).eval().requires_grad_(False)


def run_of(plan, max_new_tokens, prompt=PROMPT, seed=3):
    return list(speculate(prompt, plan, Seeded(seed), max_new_tokens=max_new_tokens))


def pair(vocab_size=8, dtype=torch.float32, **heads):
    model = tiny("llama", vocab_size=vocab_size).to(dtype)
    return model, heads_of(vocab_size, dtype=dtype, **heads)


def path_of(draft, node):
    """The nodes from the root to this one."""
    return [] if node == ROOT else [*path_of(draft, draft.parents[node]), node]


def own_logits(model, heads, state, depth, before):
    """The logits of a depth (0, 1, ...) behind the token before it, by the weights alone."""
    row, weights = heads.one(depth, state, model.lm_head), heads.state_dict()
    if heads.markov is None:
        return row
    table = weights.get(f"markov.{depth}.weight", weights["markov.0.weight"])
    return row + table @ weights["markov.embed.weight"][before]


@torch.no_grad()
def assert_drafts_are_the_heads_own(model, heads, steps, prompt=PROMPT):
    """Depth j+1 is head j, seen from one whole forward's state of the last token but one; ranks by its own softmax."""
    text, num_drafts = list(prompt), 0
    for step in steps:
        draft = step.draft
        state = model.model(torch.tensor([text])).last_hidden_state[0, -2]
        for node in range(len(draft)):
            head, rank = draft.depths[node] - 1, draft.evidence["ranks"][node]
            before = [*draft.tokens, text[-1]][draft.parents[node]]
            row = own_logits(model, heads, state, head, before)
            torch.testing.assert_close(draft.logits[node], row, rtol=1e-4, atol=1e-4)
            chances = row.softmax(-1)
            assert draft.tokens[node] == int(chances.argsort(descending=True)[rank])
            assert draft.evidence["scores"][node] == pytest.approx(float(chances[draft.tokens[node]]), abs=2e-4)
        num_drafts += len(draft) > 0
        text += step.tokens
    return num_drafts


@pytest.mark.parametrize("tree", ["fixed", "likeliest"])
@pytest.mark.parametrize(
    "options", [{}, {"own_output": False}, {"tables": 3}, {"tables": 1}], ids=["own", "shared", "bias", "one bias"]
)
def test_every_node_is_its_heads_word_through_rejections_k_changes_and_a_switch_away(options, tree):
    model, heads = pair(**options)
    lm, mine = CachedLM(model, 256), MedusaDrafter(heads, model.lm_head, 60, tree)
    plans = cycle(
        Plan(lm, drafter, RULE, Sampling(), k)
        for drafter, ks in ((mine, (3, 3, 1, 2)), (NoDraft(), (2, 2)), (mine, (2, 9)))
        for k in ks
    )
    steps = run_of(lambda: next(plans), 60)
    assert assert_drafts_are_the_heads_own(model, heads, steps) > 8
    assert {max(step.draft.depths, default=0) for step in steps} == {0, 1, 2, 3}
    assert {len(step.verdict.path) for step in steps} >= {0, 1, 2}
    assert all(step.draft.probs == (None,) * len(step.draft) for step in steps)


def test_nothing_is_drafted_where_the_target_has_not_read_the_text():
    model, heads = pair()
    lm, mine = CachedLM(model, 256), MedusaDrafter(heads, model.lm_head, 12)
    assert len(run_of(lambda: Plan(lm, mine, RULE, Sampling(), 3), 9)[0].draft) == 0
    for hidden in (None, torch.zeros(0, 32), torch.zeros(2, 32), torch.zeros(4, 32)):
        context = Context(PROMPT, Sampling(), Seeded(0), 8, hidden)
        assert len(mine.draft(context, 3)) == 0
    assert len(mine.draft(Context([1], Sampling(), Seeded(0), 8, torch.zeros(0, 32)), 3)) == 0


def test_the_same_step_asked_again_is_the_same_draft():
    model, heads = pair()
    mine = MedusaDrafter(heads, model.lm_head, 12)
    context = Context(PROMPT, Sampling(), Seeded(0), 8, torch.randn(3, 32))
    one, two = mine.draft(context, 3), mine.draft(context, 3)
    assert (one.tokens, one.parents, one.evidence) == (two.tokens, two.parents, two.evidence)
    assert mine.work.calls == 2


@pytest.mark.parametrize(("nodes", "k"), [(1, 3), (5, 2), (24, 3), (200, 3)])
def test_the_likeliest_tree_with_a_bias_has_the_largest_products_of_all(nodes, k):
    model, heads = pair(tables=3)
    state = torch.randn(3, 32, generator=torch.Generator().manual_seed(nodes))
    draft = MedusaDrafter(heads, model.lm_head, nodes, "likeliest").draft(
        Context(PROMPT, Sampling(), Seeded(0), 8, state), k
    )
    products = {(): 1.0}
    for depth in range(k):
        for path in [path for path in products if len(path) == depth]:
            chances = own_logits(model, heads, state[-1], depth, [*PROMPT, *path][-1]).softmax(-1)
            products |= {(*path, token): products[path] * float(chances[token]) for token in range(8)}
    del products[()]
    found = [products[tuple(draft.tokens[each] for each in path_of(draft, node))] for node in range(len(draft))]
    assert found == pytest.approx(sorted(products.values(), reverse=True)[:nodes], rel=1e-4)


def test_the_fixed_tree_has_the_same_shape_with_a_bias():
    """Its table of hits decides, whatever the tokens are; also where no node goes on to the last depth."""
    model, heads = pair(tables=3)
    for nodes in (1, 2, 9, 40):
        mine = MedusaDrafter(heads, model.lm_head, nodes)
        shapes = set()
        for seed in range(3):
            state = torch.randn(3, 32, generator=torch.Generator().manual_seed(seed))
            draft = mine.draft(Context(PROMPT, Sampling(), Seeded(0), 8, state), 3)
            shapes.add((draft.parents, tuple(draft.evidence["ranks"])))
        assert len(shapes) == 1
        assert len(draft) == nodes


class OfText(Draws):
    """Draws the very tokens of a text."""

    def __init__(self, text):
        self.text = text

    def sample(self, probs, role, position, node):
        return torch.tensor(self.text[position])


@torch.no_grad()
def test_a_drawn_token_has_its_own_q_given_the_one_before_and_a_known_text_is_read_the_same():
    """q is the softmax of head and bias by the weights alone; `along` tells the rows of a draft that draws the text."""
    model, heads = pair(tables=3)
    text = [1, 2, 0, 1, 7, 3, 3, 5, 0, 6]
    states = model.model(torch.tensor([text])).last_hidden_state[0]
    mine = MedusaDrafter(heads, model.lm_head, 9, draws=True)
    starts = range(2, len(text) - 2)
    along = list(mine.along(torch.tensor(text), states)(torch.tensor(starts), 3))
    assert len(along) == 3
    for place, start in enumerate(starts):
        context = Context(text[:start], Sampling(), OfText(text), 8, states[: start - 1])
        draft = mine.draft(context, 3)
        assert list(draft.tokens) == text[start : start + 3]
        for depth in range(3):
            own = own_logits(model, heads, states[start - 2], depth, text[start + depth - 1])
            torch.testing.assert_close(draft.probs[depth], own.softmax(-1))
            torch.testing.assert_close(along[depth][0][place], own)


@pytest.mark.parametrize("options", [{"draws": True}, {"tree": "fixed"}, {"tree": "likeliest"}], ids=str)
@pytest.mark.parametrize(("tables", "filled"), [(0, "together"), (3, "in turn")])
def test_the_evidence_tells_whether_a_bias_took_part(options, tables, filled):
    model, heads = pair(tables=tables)
    context = Context(PROMPT, Sampling(0.9), Seeded(5), 8, torch.randn(3, 32))
    assert MedusaDrafter(heads, model.lm_head, 24, **options).draft(context, 3).evidence["filled"] == filled


@pytest.mark.parametrize("options", [{"draws": True}, {"tree": "fixed"}, {"tree": "likeliest"}], ids=str)
def test_without_its_bias_heads_draft_as_if_it_had_never_been_fitted(options):
    model, heads = pair()
    _, fitted = pair(tables=3)
    context = Context(PROMPT, Sampling(0.9), Seeded(5), 8, torch.randn(3, 32))
    bare = MedusaDrafter(heads, model.lm_head, 24, **options).draft(context, 3)
    off = MedusaDrafter(fitted, model.lm_head, 24, biased=False, **options).draft(context, 3)
    on = MedusaDrafter(fitted, model.lm_head, 24, **options).draft(context, 3)
    assert (bare.tokens, bare.parents, bare.evidence) == (off.tokens, off.parents, off.evidence)
    assert torch.equal(torch.stack(bare.logits), torch.stack(off.logits))
    assert (bare.probs[0] is None) or torch.equal(torch.stack(bare.probs), torch.stack(off.probs))
    assert not torch.equal(bare.logits[0], on.logits[0])


class WrongQ(MedusaDrafter):
    """WRONG: claims that each token was drawn from its head's law, though it is simply the likeliest."""

    def draft(self, context, k):
        draft = super().draft(context, k)
        object.__setattr__(draft, "probs", tuple(row.softmax(-1) for row in draft.logits))
        return draft


class UnseenBias(MedusaDrafter):
    """WRONG: draws with the bias, and claims that the heads alone drew."""

    def draft(self, context, k):
        draft, heads = super().draft(context, k), self._heads
        if draft.tokens:
            rows = heads.logits(context.states[-1], self._output, len(draft))
            object.__setattr__(draft, "probs", tuple(rows.softmax(-1)))
        return draft


@pytest.mark.parametrize(
    ("kind", "tables", "rule", "least", "most"),
    [
        (partial(MedusaDrafter, draws=True), 0, "speculative_sampling", 0, 1e-7),
        (partial(MedusaDrafter, draws=True), 0, "block_verification", 0, 1e-7),
        (partial(MedusaDrafter, draws=True), 3, "speculative_sampling", 0, 1e-7),
        (partial(MedusaDrafter, draws=True), 3, "block_verification", 0, 1e-7),
        (WrongQ, 0, "speculative_sampling", 1e-3, 1),
        (partial(UnseenBias, draws=True), 3, "speculative_sampling", 1e-3, 1),
    ],
    ids=["drawn", "drawn blocks", "bias", "bias, blocks", "wrong q", "unseen bias"],
)
def test_the_texts_distribution_with_drawn_children(kind, tables, rule, least, most):
    """Likely ones keep it by the methods' contract.

    Up to what norms in float32, inside a model in float64, make of two orders of reading.
    """
    model, heads = pair(vocab_size=3, dtype=torch.float64, tables=tables)
    plan = Plan(AlwaysRead(model, 256), kind(heads, model.lm_head, 4), RULES[rule], Sampling(), 2)
    assert least <= total_variation(text_distribution(plan, [1, 2], 3), own_distribution(model, [1, 2], 3)) < most


def slow_best(scores, num_nodes):
    """All paths, sorted by their products."""
    everything = []
    for depth in range(1, len(scores) + 1):
        for path in itertools.product(*(range(len(row)) for row in scores[:depth])):
            product = 1.0
            for row, rank in zip(scores, path, strict=False):
                product *= row[rank]
            everything.append((product, path))
    return sorted((product for product, _ in everything), reverse=True)[:num_nodes]


@pytest.mark.parametrize("num_nodes", [1, 2, 7, 20, 39, 100])
def test_the_best_paths_are_those_with_the_largest_products(num_nodes):
    scores = torch.rand(3, 3, generator=torch.Generator().manual_seed(num_nodes)).sort(-1, descending=True)[0].tolist()
    found = best_paths(by_depth(scores), num_nodes)
    products = [float(torch.tensor([scores[i][rank] for i, rank in enumerate(path)]).prod()) for path in found]
    assert products == pytest.approx(slow_best(scores, num_nodes), rel=1e-5)
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("scores", [[[1.0, 0.0], [0.0, 0.0]], [[0.25] * 4] * 3, [[1.0]] * 4], ids=str)
def test_parents_and_likelier_siblings_stand_first_even_in_ties(scores):
    found = best_paths(by_depth(scores), 30)
    for number, path in enumerate(found):
        before = set(found[:number])
        assert len(path) == 1 or path[:-1] in before
        assert path[-1] == 0 or (*path[:-1], path[-1] - 1) in before


def test_the_fixed_tree_is_no_deeper_and_no_wider_than_asked():
    assert best_paths(by_depth([]), 5) == best_paths(by_depth([[]]), 5) == ()
    assert max(map(len, fixed_paths(2, 10, 64))) == 2
    assert max(rank for path in fixed_paths(4, 3, 64) for rank in path) == 2
    assert len(fixed_paths(6, 10, 40)) == 40  # more heads than were measured
    assert all(row == tuple(sorted(row, reverse=True)) for row in (*HITS, *BIASED_HITS))


def test_a_vocabulary_smaller_than_the_ranks_has_no_token_twice_below_a_node():
    model, heads = pair(vocab_size=4)
    lm, mine = CachedLM(model, 256), MedusaDrafter(heads, model.lm_head, 256)
    draft = run_of(lambda: Plan(lm, mine, RULE, Sampling(), 3), 5)[1].draft
    assert len(draft) == 4 + 16 + 64
    for node in (ROOT, *range(len(draft))):
        below = [draft.tokens[child] for child in draft.children(node)]
        assert len(set(below)) == len(below)


def test_heads_that_say_not_a_number_are_refused():
    model, heads = pair()
    heads[0][0].linear.bias.fill_(torch.nan)
    lm, mine = CachedLM(model, 256), MedusaDrafter(heads, model.lm_head, 12)
    with pytest.raises(SpecvizError, match="not-a-number"):
        run_of(lambda: Plan(lm, mine, RULE, Sampling(), 3), 9)


def test_the_bundled_heads_make_more_than_one_token_and_six_tenths_per_call():
    """Greedy, K 4, the default tree, the first prompt of each kind; a law of the heads and of how they are used."""
    pool = ModelPool()
    target = pool.load("fable-target")
    kinds = json.loads((assets_dir() / "prompts" / "prompts.json").read_text("utf-8"))["kinds"]
    setup = gather(METHOD, {}, target, None, pool)
    emitted = num_steps = 0
    for kind in kinds:
        lm = target.cached_lm()
        plan = Plan(lm, setup.drafter(lm), setup.rule(None), Sampling(temperature=0), 4)
        steps = run_of(lambda plan=plan: plan, 32, target.text.encode(kind["prompts"][0]["text"]))
        emitted, num_steps = emitted + sum(len(step.tokens) for step in steps), num_steps + len(steps)
    assert emitted / num_steps > 1.6


def test_the_method_names_its_heads_and_its_rules():
    target = ModelPool().load("fable-target")
    setup = gather(METHOD, {"tree": "likeliest"}, target, None, None)
    assert setup.params == {"heads": "fable-medusa", "bias": "on", "children": "top", "nodes": 24, "tree": "likeliest"}
    assert setup.rule(None).name == "speculative_sampling"
    with pytest.raises(SpecvizError, match="cannot judge the drafts of Medusa"):
        setup.rule("block_verification")
