"""Lookahead: exact over whole runs, its window and pool against plain forwards of every column, real models."""

import pytest
import torch

from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.draft import ROOT
from specviz.decoding.drafter import Context, PhaseTimes
from specviz.decoding.draws import Seeded, distribution
from specviz.decoding.engine import speculate
from specviz.decoding.sampling import Sampling
from specviz.drafters.lookahead import METHOD, Lookahead
from specviz.drafters.method import Part, Parts
from specviz.rules import RULES
from tests.helpers.tiny_models import CONTEXT_LIMIT, tiny
from tests.helpers.toys import TableLM, plan_of, target_distribution, total_variation

EXACT, WRONG = 1e-12, 1e-2
TEXT = [3, 1, 4, 1, 5, 9, 2, 6]
each_rule = pytest.mark.parametrize("rule", [RULES[name] for name in METHOD.rules], ids=lambda rule: rule.name)


def whole_run(rule, sampling, num_tokens=5, window=2):
    """The law of a text written in one go, by a drafter that starts empty, and how many guesses were made in all."""
    target, guesses = TableLM(1, vocab_size=2), []

    def experiment(draws):
        plan = plan_of(target, Lookahead(window, 2, 2, target.context_limit), 2, sampling, rule)
        steps = list(speculate((0, 1, 1), lambda: plan, draws, max_new_tokens=num_tokens))
        guesses.append(sum(len(step.draft) - step.draft.num_scratch for step in steps))
        return tuple(token for step in steps for token in step.tokens)

    mine = distribution(experiment)
    return total_variation(mine, target_distribution(target, (0, 1, 1), num_tokens, sampling)), sum(guesses)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7, top_p=0.8), Sampling(0.0)], ids=str)
@each_rule
def test_a_whole_run_has_the_targets_distribution_under_a_lossless_rule(rule, sampling):
    distance, guesses = whole_run(rule, sampling)
    assert guesses > 0
    if rule.lossless:
        assert distance < EXACT
    elif sampling.is_plain:
        assert distance > WRONG


def run(lm, drafter, num_tokens=40, sampling=None, rule=RULES["speculative_sampling"], text=TEXT):
    plan = plan_of(lm, drafter, drafter._ahead, sampling or Sampling(0.0), rule)
    return speculate(text, lambda: plan, Seeded(0), max_new_tokens=num_tokens)


def ids(shown):
    return [token["id"] for token in shown]


def path_of(draft, node):
    path = []
    while node != ROOT:
        path.insert(0, draft.tokens[node])
        node = draft.parents[node]
    return path


@pytest.mark.parametrize("sampling", [Sampling(0.0), Sampling()], ids=str)
def test_window_and_pool_are_what_the_target_says_behind_every_column(sampling):
    """Without the cache: what the target finds likeliest behind the text, level 0 up to a column and that column."""
    window, ahead, most = 4, 3, 2
    model = tiny("llama", vocab_size=12, seed=3).double()
    text, levels, pool, steps = list(TEXT), None, {}, 0
    for step in run(CachedLM(model, CONTEXT_LIMIT), Lookahead(window, ahead, most, CONTEXT_LIMIT), 60, sampling):
        evidence, draft = step.draft.evidence, step.draft
        if draft.num_scratch:
            levels = levels or [ids(level) for level in evidence["window"]]
            assert [ids(level) for level in evidence["window"]] == levels
            left = len(TEXT) + 60 - len(text) - 1
            known = [gram[:left] for gram in pool.get(text[-1], [])[-most:][::-1]]
            assert [ids(guess) for guess in evidence["guesses"]] == known
            leaves = [path_of(draft, node) for node in range(len(draft) - draft.num_scratch)]
            assert all(gram in leaves for gram in known)
            newest = []
            for place in range(window):
                read = [*text, *levels[0][: place + 1], *(level[place] for level in levels[1:])]
                with torch.inference_mode():
                    newest.append(int(model(torch.tensor([read])).logits[0, -1].argmax()))
            for place in range(window):
                first, *rest = [*(level[place] for level in levels), newest[place]]
                pool[first] = [gram for gram in pool.get(first, []) if gram != rest] + [rest]
            levels, steps = [*levels[1:], newest], steps + 1
        text += step.tokens
    assert steps > 15
    assert any(len(grams) > most for grams in pool.values())


def test_evidence_counts_the_pool_and_shows_what_was_found():
    steps = list(run(CachedLM(tiny("llama", vocab_size=12, seed=3), CONTEXT_LIMIT), Lookahead(9, 2, 3, CONTEXT_LIMIT)))
    evidence = steps[-2].draft.evidence
    assert {"window", "guesses", "pool", "found"} == set(evidence)
    assert len(evidence["found"]) == 8
    assert all(len(ngram) == 3 for ngram in evidence["found"])
    assert evidence["pool"]["keys"] <= evidence["pool"]["ngrams"] <= 3 * evidence["pool"]["keys"]


def test_greedy_text_is_the_targets_own_where_its_attention_has_a_window():
    """Over a Llama it is by the methods' contract."""
    model = tiny("mistral", vocab_size=16, seed=5)
    lm = CachedLM(model, CONTEXT_LIMIT)
    drafter = METHOD.build(Parts(target=Part("target", lm, lambda: lm)), METHOD.validate({}))
    steps = list(run(lm, drafter, 64))
    with torch.inference_mode():
        expected = model.generate(torch.tensor([TEXT]), max_new_tokens=64, do_sample=False, eos_token_id=None)
    assert [token for step in steps for token in step.tokens] == expected[0, len(TEXT) :].tolist()


def test_guesses_that_come_true_save_target_calls():
    lm = TableLM(7, vocab_size=10, sharpness=3.0, context_limit=200)
    steps = list(run(lm, Lookahead(5, 3, 5, 200), 100))
    assert sum(len(step.tokens) for step in steps) == 100
    assert len(steps) < 60


def test_the_window_never_goes_beyond_the_targets_positions():
    lm = CachedLM(tiny("gpt2", vocab_size=16, max_position_embeddings=32, n_positions=32, seed=5), 32)
    steps = list(run(lm, Lookahead(5, 3, 5, 32), 100))
    assert steps[-1].finish == "context"
    assert steps[1].draft.num_scratch == 15
    assert steps[-1].draft.num_scratch == 0


def asked(drafter, text, k=3):
    return drafter.draft(Context(text, Sampling(), Seeded(0), 16), k)


def filled(text):
    """A drafter that has seen a few steps of this very list."""
    drafter, lm = Lookahead(5, 3, 5, 200), TableLM(7, vocab_size=6, sharpness=3.0)
    for _ in range(30):
        draft = asked(drafter, text)
        probs = Sampling(0.0).probs(lm.forward(text, draft))
        verdict = RULES["speculative_sampling"](draft, probs, Seeded(0), len(text))
        drafter.observe(draft, probs, verdict, PhaseTimes(1, 1, 1))
        text.extend(verdict.emitted(draft))
    return drafter


def test_another_text_starts_anew():
    text = [0, 1, 2, 3]
    drafter = filled(text)
    assert asked(drafter, text).evidence["pool"]["keys"] > 0
    assert len(asked(drafter, list(text))) == 0
    assert len(asked(Lookahead(5, 3, 5, 200), text)) == 0


def test_asking_again_gives_the_same_draft_and_a_step_of_another_method_changes_nothing():
    text = [0, 1, 2, 3]
    drafter = filled(text)
    one = asked(drafter, text)
    drafter.observe(asked(Lookahead(5, 3, 5, 200), text), torch.zeros(1, 6), None, PhaseTimes(1, 1, 1))
    other = asked(drafter, text)
    assert (one.tokens, one.parents, one.evidence) == (other.tokens, other.parents, other.evidence)


def test_guesses_are_cut_to_k_and_share_their_beginnings():
    text = [0, 1, 2, 3]
    drafter = filled(text)
    drafter._ngrams = {text[-1]: [(1, 2, 3), (1, 2, 4), (5, 2, 4)]}
    for k in (0, 1, 2, 3):
        draft = asked(drafter, text, k)
        real = len(draft) - draft.num_scratch
        assert real == (0, 2, 4, 7)[k]
        assert draft.probs == (None,) * len(draft)
        assert max(draft.depths[:real], default=0) == k
        assert all(len({draft.tokens[i] for i in draft.children(n)}) == len(draft.children(n)) for n in range(-1, real))
    assert [path_of(draft, node) for node in draft.children(ROOT)] == [[5], [1]]  # the newest first


@pytest.mark.parametrize("num_tokens", [1, 3, 40])
def test_any_length_of_text_fills_the_first_window(num_tokens):
    drafter, text = Lookahead(5, 3, 2, 100), list(range(num_tokens))
    asked(drafter, text)
    evidence = asked(drafter, text).evidence
    assert [len(level) for level in evidence["window"]] == [5] * 3
    assert {token for level in evidence["window"] for token in ids(level)} <= set(text)
