"""EAGLE: the tree is the one that slow formulas grow, its head follows the text, the text keeps the target's law."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from transformers import GenerationConfig

from specviz import run
from specviz.decoding.draft import EMPTY, ROOT, chain
from specviz.decoding.drafter import Context
from specviz.decoding.draws import Draws, Seeded, distribution
from specviz.decoding.engine import Plan, speculate
from specviz.decoding.sampling import Sampling
from specviz.drafters.eagle import METHOD
from specviz.drafters.eagle.drafter import EagleDrafter
from specviz.drafters.eagle.heads import read
from specviz.drafters.none import NoDraft
from specviz.errors import SpecvizError
from specviz.rules import RULES
from specviz.session.workbench import Workbench
from specviz.settings import assets_dir
from specviz.views.words import headline
from tests.helpers.eagle_heads import HIDDEN, SlowHead, eagle, eagle3, target_of, texts
from tests.helpers.toys import total_variation

PROMPTS = ("Once upon a time, there was a little girl named Lily.", "12 + 25 =", "def add(a, b):\n    return")


class NoDraws(Draws):
    """Nothing may be drawn: the tree is chosen without chance."""


def context_of(tokens, states, vocab_size):
    return Context(tokens, Sampling(), NoDraws(), vocab_size, states)


def slow_tree(slow, states, tokens, k, width, num_nodes):
    """The tree of arXiv:2406.16858 by its text: (path of ids, score) of the kept nodes, the best first."""
    true = list(slow.fuse(states))

    def after(path):  # the predicted features behind the text and behind each node of the path
        features, read = list(true), list(tokens[1:])
        features.append(slow.next_feature(torch.stack(features), read))
        for token in path:
            read.append(token)
            features.append(slow.next_feature(torch.stack(features), read))
        return features[-1]

    grown, expanded = [], [((), 1.0)]
    for _ in range(k):
        level = []
        for path, score in expanded:
            row = slow.logits(after(path)).softmax(-1).tolist()
            best = sorted(range(len(row)), key=lambda token: -row[token])[:width]
            level += [((*path, token), score * row[token]) for token in best]
        grown += level
        expanded = sorted(level, key=lambda node: -node[1])[:width]
    return sorted(grown, key=lambda node: -node[1])[:num_nodes]


def paths_of(draft):
    paths = {ROOT: ()}
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        paths[node] = (*paths[parent], token)
    return [paths[node] for node in range(len(draft))]


HEADS = {
    "EAGLE": (lambda target: eagle(target), HIDDEN),
    "EAGLE-3": (lambda target: eagle3(target, [0, 1, 2, 5, 7, 11]), 3 * HIDDEN),
}


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize(
    ("k", "width", "num_nodes"), [(1, 3, 3), (4, 3, 1), (4, 3, 2), (3, 2, 5), (4, 3, 14), (2, 9, 90)]
)
def test_the_tree_is_the_papers(name, k, width, num_nodes):
    target = target_of(layers=8)
    make, size = HEADS[name]
    config, state = make(target)
    drafter = EagleDrafter(read(config, state, target)[0], width, num_nodes)
    states = torch.randn(6, size, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    tokens = texts(7, 12)
    draft = drafter.draft(context_of(tokens, states, 12), k)
    width = min(width, 6) if name == "EAGLE-3" else width
    expected = slow_tree(SlowHead(config, state, target), states, tokens, k, width, num_nodes)
    assert paths_of(draft) == [path for path, _ in expected]
    assert draft.evidence["scores"] == pytest.approx([score for _, score in expected], abs=1e-4)
    most = width + sum(min(width, width**depth) * width for depth in range(1, k))
    grown, levels = draft.evidence["grown"], draft.evidence["levels"]
    assert (grown, levels) == (most, k) if num_nodes >= most else grown <= most
    assert draft.evidence["kept"] == len(draft)
    assert draft.probs == (None,) * len(draft)
    assert drafter.work.calls == levels


def test_no_level_is_read_that_could_not_count():
    """One node of the first level is the best of all, so nothing below it is."""
    target = target_of(layers=8)
    drafter = EagleDrafter(read(*eagle(target), target)[0], 3, 1)
    states = torch.randn(6, HIDDEN, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    draft = drafter.draft(context_of(texts(7, 12), states, 12), 4)
    assert (draft.evidence["levels"], draft.evidence["grown"], drafter.work.calls) == (1, 3, 1)


@pytest.mark.parametrize("name", HEADS)
def test_the_shown_rows_are_what_the_head_said_at_each_place(name):
    target = target_of(layers=8)
    make, size = HEADS[name]
    config, state = make(target)
    slow, tokens = SlowHead(config, state, target), texts(5, 12)
    states = torch.randn(4, size, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    drafter = EagleDrafter(read(config, state, target)[0], 2, 6)
    draft = drafter.draft(context_of(tokens, states, 12), 3)
    features = list(slow.fuse(states))
    features.append(slow.next_feature(torch.stack(features), tokens[1:]))
    deeper = next(node for node, parent in enumerate(draft.parents) if parent != ROOT)
    first = draft.tokens[draft.parents[deeper]]
    behind = slow.next_feature(torch.stack(features), [*tokens[1:], first])
    torch.testing.assert_close(draft.logits[0].double(), slow.logits(features[-1]), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(draft.logits[deeper].double(), slow.logits(behind), rtol=1e-4, atol=1e-5)


class CertainHead:
    """Stands for a head that is sure of token 3 everywhere, so that whole paths have equal scores."""

    hidden_layers = (-1,)
    num_choices = 8

    def rows(self):
        return SimpleNamespace(count=0)

    def fuse(self, states):
        return states

    def ahead(self, count):
        return None

    def __call__(self, features, ids, positions, rows, see):
        rows.count += len(ids)
        return features

    def choices(self, features):
        return torch.full((len(features), 8), -1e9).index_fill(1, torch.tensor([3]), 0.0)

    def ids(self, choices):
        return choices

    def spread(self, rows):
        return rows


@pytest.mark.parametrize("num_nodes", [1, 2, 5])
def test_of_equal_nodes_a_parent_stays_before_its_children(num_nodes):
    draft = EagleDrafter(CertainHead(), 4, num_nodes).draft(context_of([1, 2], torch.zeros(1, 2), 8), 5)
    assert paths_of(draft) == [(3,) * depth for depth in range(1, num_nodes + 1)]


def test_not_a_number_is_refused_in_words():
    target = target_of()
    drafter = EagleDrafter(read(*eagle(target), target)[0], 2, 4)
    with pytest.raises(SpecvizError, match="not-a-number"):
        drafter.draft(context_of([1, 2], torch.full((1, HIDDEN), math.nan, dtype=torch.float64), 12), 3)


def test_nothing_is_drafted_where_the_target_has_not_read_the_text():
    target = target_of()
    drafter = EagleDrafter(read(*eagle(target), target)[0], 2, 4)
    states = torch.zeros(3, HIDDEN, dtype=torch.float64)
    cases = [([1], states[:0], 4), ([1, 2, 3], None, 4), ([1, 2, 3], states[:1], 4), ([1, 2, 3], states[:2], 0)]
    assert all(drafter.draft(context_of(tokens, hidden, 12), k) is EMPTY for tokens, hidden, k in cases)


def test_another_list_is_another_text():
    target = target_of()
    head = read(*eagle(target), target)[0]
    used, states = EagleDrafter(head, 3, 9), torch.randn(6, HIDDEN, dtype=torch.float64)
    used.draft(context_of(texts(7, 12, seed=2), states + 1, 12), 3)
    text = context_of(texts(7, 12, seed=3), states, 12)
    assert used.draft(text, 3).evidence == EagleDrafter(head, 3, 9).draft(text, 3).evidence


def test_the_rows_follow_the_text_however_it_grows():
    target = target_of()
    head = read(*eagle(target), target)[0]
    used, tokens = EagleDrafter(head, 3, 9), texts(3, 12)
    states = torch.randn(40, HIDDEN, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for grow, k in ((0, 4), (1, 4), (0, 2), (5, 1), (4, 4), (20, 3), (1, 4)):  # 0: asked again after a stop
        tokens += texts(grow, 12, seed=grow)
        fed = used.work.fed
        draft = used.draft(context_of(tokens, states[: len(tokens) - 1], 12), k)
        fresh = EagleDrafter(head, 3, 9).draft(context_of(list(tokens), states[: len(tokens) - 1], 12), k)
        assert (draft.tokens, draft.parents, draft.evidence) == (fresh.tokens, fresh.parents, fresh.evidence)
        assert used.work.fed - fed <= max(grow, len(tokens) if fed == 0 else 1) + 3 * (k - 1)


def test_a_draft_that_failed_half_way_leaves_nothing_behind(monkeypatch):
    target = target_of()
    head = read(*eagle(target), target)[0]
    drafter, tokens = EagleDrafter(head, 3, 9), texts(5, 12)
    context = context_of(tokens, torch.randn(4, HIDDEN, dtype=torch.float64), 12)
    with monkeypatch.context() as broken:
        broken.setattr(drafter, "_expand", lambda *_: (_ for _ in ()).throw(RuntimeError))
        with pytest.raises(RuntimeError):
            drafter.draft(context, 3)
    assert drafter.draft(context, 3).evidence == EagleDrafter(head, 3, 9).draft(context, 3).evidence


# --- exact laws: every outcome of a whole run on a tiny real model


def run_distribution(target, make_drafter, rule, sampling, num_tokens=4):
    """The exact law of a text of `num_tokens`: later steps draft, the first one only reads the prompt."""

    def experiment(draws):
        plan = Plan(target.cached_lm(), make_drafter(), rule, sampling, 2)
        steps = list(speculate([1, 0], lambda: plan, draws, max_new_tokens=num_tokens))
        return tuple(token for step in steps for token in step.tokens)

    return distribution(experiment)


@pytest.mark.parametrize("rule", METHOD.rules)
def test_filtered_rows_keep_the_targets_distribution(rule):
    """Plain ones do by the methods' contract."""
    target, sampling = target_of(vocab_size=3, layers=1), Sampling(temperature=0.8, top_k=2)
    head = read(*eagle(target), target)[0]
    plain = run_distribution(target, NoDraft, RULES["speculative_sampling"], sampling)
    drafted = run_distribution(target, lambda: EagleDrafter(head, 2, 4), RULES[rule], sampling)
    distance = total_variation(plain, drafted)
    assert distance < 1e-12 if RULES[rule].lossless else distance > 1e-3


def lossless_chain_rules():
    return [name for name, rule in RULES.items() if rule.lossless and rule.supports(chain([0]))]


@pytest.mark.slow
@pytest.mark.parametrize("rule", lossless_chain_rules())
@pytest.mark.parametrize(
    ("name", "sampling"),
    [
        ("EAGLE", Sampling()),
        ("EAGLE", Sampling(0.0, draft_temperature=1.5)),
        *(("EAGLE-3", each) for each in (Sampling(0.8, top_k=2), Sampling(1.3, min_p=0.5, draft_temperature=0.5))),
    ],
    ids=str,
)
def test_a_drawn_chain_keeps_the_targets_distribution_under_every_exact_rule(name, sampling, rule):
    layers, make = (8, lambda target: eagle3(target, [0, 2])) if name == "EAGLE-3" else (1, eagle)
    target = target_of(vocab_size=3, layers=layers)
    head = read(*make(target), target)[0]
    plain = run_distribution(target, NoDraft, RULES["speculative_sampling"], sampling)
    drawn = run_distribution(target, lambda: EagleDrafter(head, 2, 4, draws=True), RULES[rule], sampling)
    assert total_variation(plain, drawn) < 1e-12


@pytest.mark.slow
def test_a_drawn_chain_that_kept_no_record_of_its_probabilities_would_change_the_distribution():
    """What the exactness above rests on: the same chain with another q is judged wrongly."""
    target = target_of(vocab_size=3, layers=1)
    head = read(*eagle(target), target)[0]

    class Wrong(EagleDrafter):
        def draft(self, context, k):
            draft = super().draft(context, k)
            return replace(draft, probs=tuple(torch.full_like(q, 1 / 3) for q in draft.probs))

    plain = run_distribution(target, NoDraft, RULES["speculative_sampling"], Sampling())
    drawn = run_distribution(target, lambda: Wrong(head, 2, 4, draws=True), RULES["speculative_sampling"], Sampling())
    assert total_variation(plain, drawn) > 1e-3


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(0.7, top_k=3), Sampling(1.5, top_p=0.6), Sampling(1.5, min_p=0.4)], ids=str
)
def test_q_of_a_drawn_chain_is_the_heads_distribution_over_the_targets_ids_as_sampling_filters_it(sampling):
    target, ids = target_of(layers=8), [0, 1, 2, 5, 7, 11]
    config, state = eagle3(target, ids)
    slow, tokens = SlowHead(config, state, target), texts(5, 12)
    states = torch.randn(4, 3 * HIDDEN, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    drafter = EagleDrafter(read(config, state, target)[0], 4, 16, draws=True)
    draft = drafter.draft(Context(tokens, sampling, Seeded(1), 12, states), 3)
    assert draft.is_chain
    assert len(draft) == drafter.work.calls == 3
    assert set(draft.tokens) <= set(ids)
    features, read_ids = list(slow.fuse(states)), list(tokens[1:])
    for token, q in zip(draft.tokens, draft.probs, strict=True):
        features.append(slow.next_feature(torch.stack(features), read_ids))
        torch.testing.assert_close(q.double(), sampling.probs(slow.logits(features[-1])), rtol=1e-4, atol=1e-5)
        read_ids.append(token)


# --- the bundled head


@pytest.fixture(scope="module")
def fable():
    target = Workbench().pool.load("fable-target")
    folder = assets_dir() / "models" / "fable-eagle"
    config = json.loads((folder / "config.json").read_text("utf-8"))
    return target, read(config, load_file(folder / "model.safetensors"), target)[0]


def steps_of(target, drafter, prompt, temperature=0.0, num_tokens=64, k=4, seed=0):
    plan = Plan(target.cached_lm(), drafter, RULES["speculative_sampling"], Sampling(temperature), k)
    tokens = target.text.encode(prompt)
    return list(speculate(tokens, lambda: plan, Seeded(seed), max_new_tokens=num_tokens))


@pytest.fixture(scope="module")
def greedy(fable):
    """Per prompt the steps of a greedy run."""
    return {prompt: steps_of(fable[0], EagleDrafter(fable[1], 4, 16), prompt) for prompt in PROMPTS}


@pytest.mark.slow
def test_greedy_text_is_transformers_own(fable, greedy):
    target = fable[0]
    for prompt, steps in greedy.items():
        ids = target.text.encode(prompt)
        endless = GenerationConfig(max_new_tokens=64, do_sample=False, eos_token_id=-1, pad_token_id=0)
        expected = target.model.generate(torch.tensor([ids]), generation_config=endless)
        assert [token for step in steps for token in step.tokens] == expected[0, len(ids) :].tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_after_every_verdict_it_drafts_as_one_that_reads_the_text_anew(fable, temperature):
    target, head = fable
    used, fresh = EagleDrafter(head, 4, 16), []

    class Both(EagleDrafter):
        def draft(self, context, k):
            again = EagleDrafter(head, 4, 16)
            other = Context(list(context.tokens), context.sampling, context.draws, context.vocab_size, context.hidden)
            fresh.append((used.draft(context, k), again.draft(other, k)))
            return fresh[-1][0]

    steps = steps_of(target, Both(head, 4, 16), PROMPTS[0], temperature, num_tokens=40)
    kept = {len(step.verdict.path) for step in steps}
    assert {0, 4} <= kept
    for mine, other in fresh:
        scores, others = mine.evidence.get("scores", []), other.evidence.get("scores", [])
        assert (mine.tokens, mine.parents) == (other.tokens, other.parents)
        assert scores == pytest.approx(others, abs=2e-4)


def test_a_switch_away_and_back_keeps_the_text(fable, greedy):
    target, head = fable
    drafters, drafted = [EagleDrafter(head, 4, 16), NoDraft()], []
    lm, sampling = target.cached_lm(), Sampling(0.0)

    def plan():
        drafter = drafters[len(drafted) // 4 % 2]  # four steps each
        return Plan(lm, drafter, RULES["speculative_sampling"], sampling, 4)

    text = []
    for step in speculate(target.text.encode(PROMPTS[0]), plan, Seeded(0), max_new_tokens=64):
        text += step.tokens
        drafted.append(len(step.draft))
    assert text == [token for step in greedy[PROMPTS[0]] for token in step.tokens]
    assert drafted[:12] == [0, 16, 16, 16, 0, 0, 0, 0, 0, 16, 16, 16]  # after a switch the target reads first


def test_the_bundled_head_saves_more_than_half_of_the_target_calls(greedy):
    drafts = [step for steps in greedy.values() for step in steps[1:]]
    assert sum(len(step.tokens) for step in drafts) / len(drafts) > 2.2


@pytest.mark.slow
def test_above_temperature_0_a_drawn_chain_saves_more_target_calls_than_a_likely_one(fable):
    target, head = fable

    def rate(draws):
        made = [
            steps_of(target, EagleDrafter(head, 1, 4, draws=draws), prompt, 1.0, seed=seed)
            for prompt in PROMPTS
            for seed in range(3)
        ]
        return sum(len(step.tokens) for steps in made for step in steps) / sum(map(len, made))

    assert rate(True) > 1.1 * rate(False)


def test_it_can_be_built_from_its_parameters(fable):
    from specviz.drafters.method import Parts

    params = METHOD.validate({})
    drafter = METHOD.build(Parts(heads=fable[1]), params)
    assert (drafter.hidden_layers, params["width"], params["nodes"]) == ((-1,), 4, 8)


@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if rule.supports(chain([0]))])
def test_a_drawn_chain_is_judged_by_every_rule_for_chains_and_told_as_a_chain(rule):
    options = {"method": "eagle", "rule": rule, "children": "drawn", "max_new_tokens": 4}
    trace = run(PROMPTS[0], num_speculative_tokens=2, **options)
    assert trace.steps[-1].settings.rule == rule
    assert not trace.steps[0].is_tree
    told = "".join(headline(trace.steps[-1].settings))
    assert "up to 2 tokens ahead. The large target model checks them all" in told


def test_a_tree_is_told_as_a_tree_and_not_judged_by_a_rule_for_chains():
    trace = run(PROMPTS[0], method="eagle", num_speculative_tokens=2, max_new_tokens=4)
    assert "up to 2 tokens deep. The large target model checks all branches" in "".join(
        headline(trace.steps[-1].settings)
    )
    with pytest.raises(SpecvizError, match="Block verification cannot judge the drafts of EAGLE"):
        run(PROMPTS[0], method="eagle", rule="block_verification", max_new_tokens=4)
