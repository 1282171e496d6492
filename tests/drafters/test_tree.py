"""The draft model over a token tree: exact laws, q as it was really drawn, the shapes, and real models behind it."""

import itertools
from collections import Counter

import pytest
import torch

from specviz.decoding import sampling as sampling_module
from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.draft import ROOT
from specviz.decoding.drafter import Context
from specviz.decoding.draws import Seeded
from specviz.decoding.engine import speculate
from specviz.decoding.sampling import Sampling
from specviz.drafters import tree as module
from specviz.drafters.tree import METHOD, TreeDrafter
from specviz.errors import SpecvizError
from specviz.rules import RULES
from tests.helpers.tiny_models import CONTEXT_LIMIT, tiny
from tests.helpers.toys import LoggedDraws, TableLM, plan_of, target_distribution, text_distribution, total_variation

EXACT, WRONG = 1e-12, 1e-2
PROMPT = (0, 1, 2, 0, 1)
TEXT = [3, 1, 4, 1, 5, 9, 2, 6]
KINDS = ("top", "independent", "without_replacement")
SHAPES = ("dynamic", "even", "fan")
SAMPLINGS = [
    Sampling(),
    Sampling(0.7, top_k=2),
    Sampling(1.3, top_p=0.8),
    Sampling(1.3, min_p=0.6),
    Sampling(0.0),
    Sampling(0.0, draft_temperature=1.5),
]
LOSSLESS = [RULES[name] for name in METHOD.rules if RULES[name].lossless]
each_kind, each_shape = pytest.mark.parametrize("children", KINDS), pytest.mark.parametrize("shape", SHAPES)


def distance(drafter, k=2, num_tokens=2, sampling=None, rule=LOSSLESS[0], target=None):
    target, sampling = target or TableLM(1), sampling or Sampling()
    prompt = [token % target.vocab_size for token in PROMPT]
    mine = text_distribution(plan_of(target, drafter, k, sampling, rule), prompt, num_tokens)
    assert abs(sum(mine.values()) - 1) < EXACT
    return total_variation(mine, target_distribution(target, prompt, num_tokens, sampling))


@pytest.mark.parametrize("rule", LOSSLESS, ids=lambda rule: rule.name)
@each_kind
@each_shape
def test_every_tree_has_the_targets_distribution(rule, children, shape):
    target, drafter = TableLM(1, vocab_size=2), TreeDrafter(TableLM(2, vocab_size=2), children, shape, 2, 4)
    assert distance(drafter, rule=rule, num_tokens=3, target=target) < EXACT


@pytest.mark.parametrize("sampling", SAMPLINGS[1:], ids=str)
@each_kind
def test_filtered_probabilities_keep_the_distribution(children, sampling):
    assert distance(TreeDrafter(TableLM(2), children, "dynamic", 3, 5), sampling=sampling) < EXACT


@pytest.mark.parametrize("nodes", [1, 3, pytest.param(6, marks=pytest.mark.slow)])
def test_every_budget_keeps_the_distribution(nodes):
    assert distance(TreeDrafter(TableLM(2), "without_replacement", "dynamic", 2, nodes), k=3, num_tokens=3) < EXACT


def test_a_draft_with_fewer_ids_keeps_the_distribution():
    target, drafter = TableLM(1), TreeDrafter(TableLM(2, vocab_size=2), "suited", "dynamic", 3, 6)
    mine = text_distribution(plan_of(target, drafter, 2), (0, 1), 2)
    assert total_variation(mine, target_distribution(target, (0, 1), 2, Sampling())) < EXACT


@pytest.mark.parametrize("children", ["independent", "without_replacement"])
def test_drawn_tokens_chosen_by_their_probabilities_are_caught(children, monkeypatch):
    """The mistake that growing by order avoids: keep the likelier ones of what was drawn, and still claim q."""
    best = module._pick_best

    def by_value(nodes, among, most):
        return sorted(best(nodes, among, 100), key=lambda node: 0 if node == ROOT else -nodes[node].score)[:most]

    monkeypatch.setattr(module, "_pick_best", by_value)
    assert distance(TreeDrafter(TableLM(2), children, "dynamic", 2, 1), k=1) > WRONG


def drafted(drafter, sampling=None, k=3, seed=0, text=TEXT, vocab_size=12):
    return drafter.draft(Context(text, sampling or Sampling(), Seeded(seed), vocab_size), k)


def path_of(draft, node):
    path = []
    while node != ROOT:
        path.insert(0, node)
        node = draft.parents[node]
    return path


def spelled(draft, node):
    return [*TEXT, *(draft.tokens[step] for step in path_of(draft, node))]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, top_k=5, top_p=0.9)], ids=str)
@each_shape
def test_without_replacement_carries_what_elder_siblings_left(shape, sampling):
    lm = TableLM(4, vocab_size=12)
    draft = drafted(TreeDrafter(lm, "without_replacement", shape, 3, 14), sampling)
    assert len(draft) > 6
    for parent in range(ROOT, len(draft)):
        left = sampling.probs(lm.row(spelled(draft, parent))).clone()
        for child in draft.children(parent):
            assert torch.allclose(draft.probs[child], left / left.sum(), atol=1e-14)
            assert left[draft.tokens[child]] > 0
            left[draft.tokens[child]] = 0


@each_shape
def test_independent_children_carry_all_of_q(shape):
    lm = TableLM(4, vocab_size=12)
    draft = drafted(TreeDrafter(lm, "independent", shape, 3, 14))
    for node, parent in enumerate(draft.parents):
        assert torch.equal(draft.probs[node], lm.row(spelled(draft, parent)).softmax(-1))
        assert torch.equal(draft.logits[node], lm.row(spelled(draft, parent)))


def test_the_best_paths_of_all_are_kept_where_all_are_grown():
    """EAGLE-2's tree, by trying every text of up to three tokens."""
    lm = TableLM(6, vocab_size=4)
    for temperature in (0.0, 1.0):
        text = [1, 2, 3]
        context = Context(text, Sampling(temperature), Seeded(0), 4)
        draft = TreeDrafter(lm, "top", "dynamic", 4, 9).draft(context, 2)
        scores = {}
        for tokens in itertools.chain(itertools.product(range(4), repeat=1), itertools.product(range(4), repeat=2)):
            score = 1.0
            for i, token in enumerate(tokens):
                score *= float(lm.row([*text, *tokens[:i]]).softmax(-1)[token])
            scores[tokens] = score
        best = sorted(scores, key=lambda tokens: -scores[tokens])[:9]
        found = [tuple(draft.tokens[step] for step in path_of(draft, node)) for node in range(len(draft))]
        assert sorted(found) == sorted(best)
        assert draft.probs == (None,) * 9
        assert draft.evidence["scores"] == [round(scores[tokens], 4) for tokens in found]
        assert (draft.evidence["grown"], draft.evidence["kept"]) == (20, 9)


@each_kind
@pytest.mark.parametrize("nodes", [1, 2, 4, 7])
def test_a_tree_without_the_nodes_that_could_not_count_is_the_same(children, nodes, monkeypatch):
    def tree(seed):
        drafter = TreeDrafter(TableLM(seed, vocab_size=12), children, "dynamic", 3, nodes)
        draft = drafter.draft(Context(TEXT, Sampling(), Seeded(seed), 12), 4)
        return [spelled(draft, node) for node in range(len(draft))], draft.evidence["grown"]

    short = [tree(seed) for seed in range(20)]
    monkeypatch.setattr(TreeDrafter, "_leading", lambda self, *level: module._pick_best(*level))
    whole = [tree(seed) for seed in range(20)]
    assert [paths for paths, _ in short] == [paths for paths, _ in whole]
    assert all(few <= many for (_, few), (_, many) in zip(short, whole, strict=True))
    assert sum(few for _, few in short) < sum(many for _, many in whole)


@each_kind
@each_shape
@pytest.mark.parametrize(("width", "nodes", "k"), [(1, 64, 5), (2, 5, 3), (4, 16, 4), (10, 64, 3), (3, 2, 6)])
def test_depth_and_budget_are_kept(children, shape, width, nodes, k):
    draft = drafted(TreeDrafter(TableLM(4, vocab_size=12), children, shape, width, nodes), k=k)
    assert 0 < len(draft) <= nodes
    assert max(draft.depths) <= k
    assert max(Counter(draft.parents).values()) <= width
    by_probabilities = children == "top" and shape == "dynamic"
    assert max(draft.depths) == k or by_probabilities or nodes < 2 * k
    assert draft.evidence["kept"] == len(draft.evidence["scores"]) == len(draft)


@pytest.mark.parametrize("children", ["independent", "without_replacement"])
@each_shape
def test_where_a_drawn_tree_grows_says_nothing_of_what_was_drawn(children, shape):
    drafter = TreeDrafter(TableLM(4, vocab_size=12), children, shape, 3, 12)
    drafts = [drafted(drafter, seed=seed) for seed in range(20)]
    assert len({draft.parents for draft in drafts}) == 1
    assert len({draft.tokens for draft in drafts}) > 10


def test_the_likeliest_are_judged_first():
    lm = TableLM(4, vocab_size=12)
    draft = drafted(TreeDrafter(lm, "top", "even", 3, 20))
    for parent in range(ROOT, len(draft)):
        tokens = [draft.tokens[child] for child in draft.children(parent)]
        assert tokens == lm.row(spelled(draft, parent)).topk(3).indices.tolist()[: len(tokens)]


def test_children_suit_the_temperature():
    drafter = TreeDrafter(TableLM(4, vocab_size=12), "suited", "dynamic", 3, 12)
    greedy, sampled = drafted(drafter, Sampling(0.0)), drafted(drafter, Sampling(0.5))
    assert (greedy.evidence["children"], sampled.evidence["children"]) == ("top", "without_replacement")
    assert greedy.is_chain is sampled.is_chain is False


def test_a_support_of_one_token_is_a_chain():
    draft = drafted(TreeDrafter(TableLM(4, vocab_size=12), "without_replacement", "even", 3, 30), Sampling(top_k=1))
    assert draft.is_chain
    assert len(draft) == 3


@pytest.mark.parametrize("children", ["independent", "without_replacement"])
@each_shape
def test_no_two_draws_of_a_run_share_an_address(children, shape):
    draws, drafter = LoggedDraws(1), TreeDrafter(TableLM(4, vocab_size=12), children, shape, 3, 14)
    plan = plan_of(TableLM(5, vocab_size=12), drafter, 3)
    for _ in speculate(TEXT, lambda: plan, draws, max_new_tokens=20):
        pass
    assert len(draws.addresses) == len(set(draws.addresses)) > 100


@each_kind
def test_one_forward_and_one_transfer_per_level(children, monkeypatch):
    transfers, lm = [], TableLM(4, vocab_size=12)
    monkeypatch.setattr(sampling_module, "to_host", lambda values: transfers.append(values) or values)
    drafter = TreeDrafter(lm, children, "dynamic", 3, 12)
    drafted(drafter, k=4)
    assert len(transfers) == lm.work.calls == drafter.work.calls == 4


# ---- real models --------------------------------------------------------------------------------------------------


def small(**config):
    return tiny("llama", vocab_size=32, layers=1, seed=2, **config).double()


@each_kind
def test_rows_are_one_full_forward_of_the_path(children):
    model = small()
    drafter = TreeDrafter(CachedLM(model, CONTEXT_LIMIT), children, "dynamic", 3, 14)
    text = list(TEXT)
    for _ in range(3):  # the cache follows the text
        draft = drafted(drafter, text=text, vocab_size=32)
        for node, parent in enumerate(draft.parents):
            path = [draft.tokens[step] for step in path_of(draft, parent)]
            with torch.inference_mode():
                expected = model(torch.tensor([[*text, *path]])).logits[0, -1]
            assert torch.allclose(draft.logits[node], expected, atol=1e-10)
        text += [draft.tokens[step] for step in path_of(draft, len(draft) - 1)] + [7]


def test_a_text_beyond_the_drafts_table_or_context_gives_nothing():
    lm = CachedLM(small(), 10)
    drafter = TreeDrafter(lm, "suited", "dynamic", 3, 12)
    assert not len(drafted(drafter, text=[1, 40, 2], vocab_size=64))
    assert not len(drafted(drafter, text=list(range(11)), vocab_size=64))
    assert not len(drafted(drafter, k=0, vocab_size=64))
    assert max(drafted(drafter, text=list(range(9)), k=4, vocab_size=64).depths) == 2


@each_kind
def test_a_draft_that_is_not_a_number_is_refused(children):
    lm = TableLM(4, vocab_size=12)
    lm.table[:] = float("nan")
    with pytest.raises(SpecvizError, match="draft model returned not-a-number"):
        drafted(TreeDrafter(lm, children, "dynamic", 3, 12))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@each_kind
def test_a_tree_on_a_gpu_is_the_same(children):
    model = small()
    here = drafted(TreeDrafter(CachedLM(model, CONTEXT_LIMIT), children, "dynamic", 3, 12), vocab_size=32)
    there = drafted(TreeDrafter(CachedLM(model.cuda(), CONTEXT_LIMIT), children, "dynamic", 3, 12), vocab_size=32)
    assert (here.tokens, here.parents) == (there.tokens, there.parents)
    assert [q is None or q.device.type for q in there.probs] == [q is None or "cuda" for q in here.probs]
