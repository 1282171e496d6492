"""The rules that judge token trees: against plain walks written from the papers, exact over every kind of children."""

import math

import pytest
import torch

from specviz import trace
from specviz.decoding.draft import ROOT, Draft
from specviz.decoding.draws import Seeded, distribution
from specviz.decoding.engine import speculate
from specviz.decoding.sampling import Sampling
from specviz.drafters.method import TREE_RULES
from specviz.errors import SpecvizError
from specviz.rules import RULES
from specviz.rules.lossless import SampleAndMatch
from specviz.rules.speculative_sampling import SpeculativeSampling
from specviz.rules.typical import longest_path
from specviz.session.recorder import Recorder
from tests.helpers.recorded_steps import vocabulary
from tests.helpers.toys import (
    TableLM,
    TreeDrafter,
    independent,
    plan_of,
    target_distribution,
    text_distribution,
    top,
    total_variation,
)
from tests.helpers.toys import without_replacement as without

EXACT, WRONG = 1e-12, 1e-2
PROMPT = (0, 1, 2, 0, 1)
SPECULATIVE, MATCH, TYPICAL = (RULES[name] for name in ("speculative_sampling", "sample_and_match", "typical"))
KINDS = [independent, without, top]
SAMPLINGS = [Sampling(), Sampling(0.7, top_k=2), Sampling(1.3, top_p=0.8), Sampling(1.3, min_p=0.6), Sampling(0.0)]
each = pytest.mark.parametrize("rule", [RULES[name] for name in TREE_RULES], ids=lambda rule: rule.name)
lossless = pytest.mark.parametrize("rule", [SPECULATIVE, MATCH], ids=lambda rule: rule.name)


def distance(rule, grow, widths, num_tokens=2, sampling=None):
    target, sampling = TableLM(1), sampling or Sampling()
    drafter = TreeDrafter(TableLM(2), widths, grow)
    mine = text_distribution(plan_of(target, drafter, len(widths), sampling, rule), PROMPT, num_tokens)
    assert abs(sum(mine.values()) - 1) < EXACT
    return total_variation(mine, target_distribution(target, PROMPT, num_tokens, sampling))


@lossless
@pytest.mark.parametrize("grow", KINDS)
@pytest.mark.parametrize("widths", [(3,), (2, 2), (1, 2, 1)], ids=str)
def test_every_kind_of_children_keeps_the_targets_distribution(rule, grow, widths):
    if (grow, widths) == (independent, (2, 2)):
        widths = (2, 1)
    assert distance(rule, grow, widths, num_tokens=3 if widths == (1, 2, 1) else 2) < EXACT


@lossless
@pytest.mark.parametrize("grow", KINDS)
@pytest.mark.parametrize("sampling", SAMPLINGS[1:], ids=str)
def test_filtered_and_exhausted_supports_keep_the_distribution(rule, grow, sampling):
    assert distance(rule, grow, (3,), sampling=sampling) < EXACT


@pytest.mark.parametrize("grow", KINDS)
def test_typical_acceptance_over_trees_has_another_distribution(grow):
    assert distance(TYPICAL, grow, (2, 1)) > WRONG


def claimed(q, width, draws, position, node):
    """WRONG: the likeliest tokens, judged as if they had been drawn from q."""
    yield from ((token, q) for token in q.topk(width).indices.tolist())


def test_likeliest_tokens_that_claim_a_q_are_caught():
    assert distance(SPECULATIVE, claimed, (2,)) > WRONG
    assert distance(MATCH, claimed, (2,)) < EXACT  # how a token was drafted plays no part


@lossless
@pytest.mark.parametrize("grow", KINDS)
def test_siblings_judged_as_if_none_had_failed_are_caught(rule, grow, monkeypatch):
    monkeypatch.setattr(SpeculativeSampling, "residual", lambda self, p, q: p)
    assert distance(rule, grow, (2,)) > WRONG


def test_a_walk_that_counts_matched_tokens_as_drawn_is_caught(monkeypatch):
    monkeypatch.setattr(SampleAndMatch, "judged_as", staticmethod(lambda draft, node, probs: probs[0] * 0 + 0.5))
    assert distance(MATCH, top, (2,)) > WRONG


# ---- against plain walks ------------------------------------------------------------------------------------------


def random_tree(seed, size, vocab_size=4, num_scratch=0):
    """A tree with the target's rows; siblings may share a token; every third node was chosen without chance."""
    generator = torch.Generator().manual_seed(seed)
    probs = torch.randn(size + 1, vocab_size, generator=generator, dtype=torch.float64).mul(1.5).softmax(-1)
    rows = torch.randn(size, vocab_size, generator=generator, dtype=torch.float64).softmax(-1)
    tokens = torch.randint(vocab_size, (size,), generator=generator).tolist()
    parents = [
        int(torch.randint(ROOT, max(node, 1), (1,), generator=generator)) if node else ROOT for node in range(size)
    ]
    q = [None if (seed + node) % 3 == 0 or node >= size - num_scratch else rows[node] for node in range(size)]
    return Draft(tuple(tokens), tuple(parents), tuple(q), num_scratch=num_scratch), probs


def matched(draft, probs):
    """Every (emitted tokens) with its chance: the target writes; as long as a branch says the same it is followed."""
    out, todo = {}, [(ROOT, (), 1.0)]
    while todo:
        node, text, chance = todo.pop()
        first_with = {}
        for child in draft.children(node):
            first_with.setdefault(draft.tokens[child], child)
        for token, p in enumerate(probs[node + 1].tolist()):
            if token in first_with:
                todo.append((first_with[token], (*text, token), chance * p))
            else:
                out[(*text, token)] = out.get((*text, token), 0.0) + chance * p
    return out


@pytest.mark.parametrize("seed", range(12))
def test_sample_and_match_follows_what_the_target_writes(seed):
    draft, probs = random_tree(seed, 6, num_scratch=seed % 3)
    seen = distribution(lambda draws: MATCH(draft, probs, draws, 5).emitted(draft))
    assert total_variation(seen, matched(draft, probs)) < EXACT


def typical_walk(draft, probs):
    """Medusa's rule in plain Python: every path from the root, kept as far as all of it passes; the longest wins."""
    best = ()
    for end in range(len(draft) - draft.num_scratch):
        path, node = [], end
        while node != ROOT:
            path.insert(0, node)
            node = draft.parents[node]
        kept = []
        for node in path:
            row = probs[draft.parents[node] + 1].tolist()
            entropy = -sum(p * math.log(p) for p in row if p > 0)
            if row[draft.tokens[node]] <= min(0.09, 0.3 * math.exp(-entropy)):
                break
            kept.append(node)
        if len(kept) > len(best):
            best = tuple(kept)
    row = probs[best[-1] + 1 if best else 0].tolist()
    return best, row.index(max(row))


@pytest.mark.parametrize("seed", range(30))
def test_typical_acceptance_keeps_the_longest_path_that_passes(seed):
    draft, probs = random_tree(seed, 9, num_scratch=seed % 3)
    probs = probs.pow(1.3) / probs.pow(1.3).sum(-1, keepdim=True)
    verdict = TYPICAL(draft, probs, Seeded(seed), 5)
    assert (verdict.path, verdict.token) == typical_walk(draft, probs)


def test_of_two_paths_of_equal_length_the_first_is_kept():
    draft = Draft((1, 2, 3, 3), (ROOT, ROOT, 1, 0), (None,) * 4)
    assert longest_path(draft, [True] * 4) == (1, 2)
    assert longest_path(draft, [True, False, True, True]) == (0, 3)
    assert longest_path(draft, [False] * 4) == ()


def test_what_passes_on_a_shorter_path_counts_as_not_judged():
    draft = Draft((0, 1, 2, 0), (ROOT, ROOT, ROOT, 1), (None,) * 4)
    even = torch.full((5, 4), 0.25, dtype=torch.float64)
    even[0] = torch.tensor([0.45, 0.45, 0.01, 0.09])
    verdict = TYPICAL(draft, even, Seeded(0), 5)
    assert verdict.path == (1, 3)
    assert [(check.node, check.accepted) for check in verdict.checks] == [(1, True), (3, True)]
    swapped = Draft((2, 1, 0, 0), (ROOT, ROOT, ROOT, 1), (None,) * 4)
    checks = TYPICAL(swapped, even, Seeded(0), 5).checks
    assert [(check.node, check.accepted) for check in checks] == [(0, False), (1, True), (3, True)]


# ---- what a verdict says ------------------------------------------------------------------------------------------


@each
@pytest.mark.parametrize("seed", range(8))
def test_checks_and_distributions_tell_the_walk(rule, seed):
    draft, probs = random_tree(seed, 8, num_scratch=seed % 3)
    verdict = rule(draft, probs, Seeded(seed), 5)
    judged = [check.node for check in verdict.checks]
    assert tuple(check.node for check in verdict.checks if check.accepted) == verdict.path
    assert all(draft.parents[node] in (ROOT, *verdict.path) for node in judged)
    assert all(node < len(draft) - draft.num_scratch for node in judged)
    ended = bool(draft.children(verdict.last_node))
    assert verdict.kind == ("resampled" if ended else "bonus" if verdict.path else "plain")
    distributions = verdict.distributions
    for check, row in zip(verdict.checks, distributions.judged, strict=True):
        token = draft.tokens[check.node]
        q = draft.probs[check.node]
        assert check.p == float(probs[draft.parents[check.node] + 1][token]) == distributions.node_p[check.node]
        assert (check.p_judged, check.q) == (float(row[token]), 1.0 if q is None else float(q[token]))
        assert (check.u < check.accept_prob) == check.accepted
    assert float(distributions.final.sum()) == pytest.approx(1.0)
    assert float(distributions.final[verdict.token]) > 0


@each
def test_distributions_have_the_number_format_of_the_targets_rows(rule):
    for seed in range(6):
        draft, probs = random_tree(seed, 6)
        distributions = rule(draft, probs.float(), Seeded(seed), 0).distributions
        assert {row.dtype for row in (*distributions.judged, distributions.final)} == {torch.float32}


@each
def test_scratch_nodes_alone_are_one_plain_token(rule):
    draft, probs = random_tree(1, 3, num_scratch=3)
    verdict = rule(draft, probs, Seeded(0), 0)
    assert (verdict.path, verdict.kind, verdict.checks) == ((), "plain", ())


@each
def test_a_chain_is_judged_alike_with_a_scratch_node_behind_it(rule):
    for seed in range(20):
        tree, probs = random_tree(seed, 5)
        chain_of = Draft(tree.tokens[:4], (-1, 0, 1, 2), tree.probs[:4])
        with_scratch = Draft(tree.tokens, (-1, 0, 1, 2, 3), (*tree.probs[:4], None), num_scratch=1)
        alone, beside = rule(chain_of, probs[:5], Seeded(seed), 7), rule(with_scratch, probs, Seeded(seed), 7)
        assert (alone.path, alone.token, alone.kind) == (beside.path, beside.token, beside.kind)
        for one, other in zip(alone.checks, beside.checks, strict=True):
            assert (one.node, one.accepted, one.u) == (other.node, other.accepted, other.u)
            assert one.accept_prob == pytest.approx(other.accept_prob)


@each
@pytest.mark.parametrize("grow", KINDS)
def test_a_run_over_trees_can_be_recorded(rule, grow):
    table = TableLM(1, vocab_size=vocabulary().num_ids, sharpness=2.5)
    plan = plan_of(table, TreeDrafter(TableLM(1, table.vocab_size, 2.0), (2, 2), grow), 2, Sampling(), rule)
    settings = trace.Settings(2, "constant", 1.0, 0, 1.0, "any", {}, rule.name, rule.lossless, "draft", "target")
    recorder = Recorder(vocabulary())
    for step in speculate((0, 1), lambda: plan, Seeded(3), max_new_tokens=16):
        record = recorder.record(step, settings, started=0.0)
        assert trace.Step.from_dict(record.to_dict()) == record
        taken = [node for node, token in enumerate(record.draft) if token.status == "accepted"]
        assert tuple(taken) == step.verdict.path
        rejected = {node for node, token in enumerate(record.draft) if token.status == "rejected"}
        assert rejected == {check.node for check in step.verdict.checks if not check.accepted}


@each
def test_a_target_that_is_not_a_number_is_refused(rule):
    draft, probs = random_tree(0, 5)
    with pytest.raises(SpecvizError, match="not-a-number"):
        rule(draft, probs * float("nan"), Seeded(0), 0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@each
def test_judging_a_tree_on_a_gpu_says_the_same(rule):
    for seed in range(10):
        draft, probs = random_tree(seed, 7, num_scratch=seed % 2)
        q = tuple(None if row is None else row.cuda() for row in draft.probs)
        on_gpu = Draft(draft.tokens, draft.parents, q, num_scratch=draft.num_scratch)
        one, other = rule(draft, probs, Seeded(seed), 3), rule(on_gpu, probs.cuda(), Seeded(seed), 3)
        assert (one.path, one.token, one.kind) == (other.path, other.token, other.kind)
