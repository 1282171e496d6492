"""The contract of every method with every rule that judges its drafts. A new method is picked up by itself."""

import itertools
import json
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch

from specviz import trace
from specviz.decoding.draft import ROOT, chain
from specviz.decoding.drafter import Context, Drafter
from specviz.decoding.draws import Seeded, distribution
from specviz.decoding.engine import Plan, StepResult, speculate
from specviz.decoding.sampling import Sampling
from specviz.drafters import METHODS
from specviz.drafters.none import NoDraft
from specviz.errors import SpecvizError
from specviz.models.tokens import Watch
from specviz.request import Request
from specviz.rules import RULES
from specviz.session.recorder import Recorder
from specviz.session.run import open_run
from specviz.session.workbench import Workbench
from tests.helpers.runs import statuses, timeless
from tests.helpers.setups import plan_with, setup_of
from tests.helpers.toys import LoggedDraws, total_variation

PROMPT = [0, 2, 1, 0, 3, 2, 1, 0]
PLAIN, GREEDY = Sampling(), Sampling(0.0)
SAME, WRONG = 1e-12, 1e-3
MOST_EVIDENCE = 6_000  # characters of JSON, texts of tokens included
ROUNDING = {"mtp": 1e-8, "assistant": 1e-8}  # the norms of their targets are made in float32
PAIRS = [(method, rule) for method in METHODS.values() for rule in method.rules]
LOSSLESS = [(method, rule) for method, rule in PAIRS if RULES[rule].lossless]
GREEDY_EXACT = [(method, rule) for method, rule in PAIRS if RULES[rule].lossless or rule == "typical"]
LOSSY = [(method, rule) for method, rule in PAIRS if not RULES[rule].lossless]
KINDS = {"draft_model", "prompt_lookup", "tree", "lookahead", "none"}
"""A chain and a tree, drawn and certain, and nothing: a rule sees no more of a method than the kind of its drafts."""
ALIKE = {("none", "lenience"), ("none", "ensemble")}
"""Lossy rules that change nothing, as there is nothing to judge."""
METHOD = pytest.mark.parametrize("name", METHODS)


def each_with_its_draft(pairs, temperatures, default):
    """Every method with every rule and with every temperature of its draft.

    Quick: each temperature with the method's own rule, and each rule at the `default` one with every kind of draft.
    """
    cases = []
    for method, rule in pairs:
        for temperature in temperatures:
            is_quick = rule == method.default_rule or (temperature == default and method.name in KINDS)
            cases.append(pytest.param(method.name, rule, temperature, marks=() if is_quick else pytest.mark.slow))
    return pytest.mark.parametrize(("name", "rule", "of_draft"), cases)


def ends_exactly(method):
    return RULES[method.default_rule].lossless


EXACT = [name for name, method in METHODS.items() if ends_exactly(method)]
EACH_EXACT = pytest.mark.parametrize("name", EXACT)


def run(plan, num_tokens, *, seed=0, prompt=PROMPT, **ends):
    plans = plan if callable(plan) else lambda: plan
    return list(speculate(prompt, plans, Seeded(seed), max_new_tokens=num_tokens, **ends))


def text_of(steps):
    return [token for step in steps for token in step.tokens]


def generated(setup, num_tokens, prompt=PROMPT):
    """What the target writes alone, by transformers' own loop."""
    return greedily(setup.target.model, prompt, num_tokens)


def greedily(model, prompt, num_tokens):
    ids = torch.tensor([list(prompt)])
    options = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, "attention_mask": torch.ones_like(ids)}
    return model.generate(ids, max_new_tokens=num_tokens, **options)[0, len(prompt) :].tolist()


def full_logits(model, tokens):
    with torch.inference_mode():
        return model(torch.tensor([list(tokens)]), use_cache=False).logits[0]


# Who there is


@METHOD
def test_a_method_says_what_a_person_needs_to_know(name):
    method = METHODS[name]
    assert method.name == name
    assert all(text and text[-1] in ".!" for text in (method.summary, method.caution))
    assert set(method.rules) <= set(RULES)
    assert all(param.help.endswith(".") for param in method.params)
    setup_of(name)


@METHOD
def test_rules_that_cannot_judge_a_method_are_refused_by_name(name):
    setup = setup_of(name)
    for rule in set(RULES) - set(setup.method.rules):
        with pytest.raises(SpecvizError, match=f"cannot judge the drafts of {setup.method.title}"):
            setup.rule(rule)
    for rule in setup.method.rules:
        assert setup.rule(rule) is RULES[rule]
    assert setup.rule(None) is RULES[setup.method.rules[0]]


# The text


@each_with_its_draft(GREEDY_EXACT, [None, 1.5], default=1.5)
def test_greedy_text_is_the_targets_own(name, rule, of_draft):
    """p is one-hot, so a drawn token is kept where it is the target's own and replaced by that one elsewhere."""
    setup = setup_of(name)
    sampling = replace(GREEDY, draft_temperature=of_draft)
    steps = run(plan_with(setup, setup.target.cached_lm(), sampling, 4, rule), 40)
    assert text_of(steps) == generated_by(name)[:40]


@cache
def generated_by(name):
    return generated(setup_of(name), 64)


@METHOD
def test_a_stop_text_cuts_the_same_text_and_changes_nothing_before_it(name):
    """At places all over the drafts, for a text that begins in one token and ends in the next."""
    setup = setup_of(name)
    text = setup.target.text

    def written(**ends):
        return run(plan_with(setup, setup.target.cached_lm(), PLAIN, 4), 20, seed=1, **ends)

    whole = text_of(written())
    raw = b"".join(map(text.bytes_of, whole))
    for place in (2, 7, 8, 13):
        stop = raw[place : place + 2]  # each token is one letter
        *before, last = written(is_stop=Watch(text, stop).ends_with)
        assert text_of([*before, last]) == whole[: raw.find(stop) + 2]
        assert last.finish == "stop"
        assert last.truncated == len(last.verdict.emitted(last.draft)) - len(last.tokens)


@METHOD
def test_a_drafted_token_is_drawn_from_the_drafts_own_distribution(name):
    """Its q is the softmax at the draft's own temperature, of the logits that the draft shows."""
    setup, own = setup_of(name), Sampling(0.5, draft_temperature=2.0, draft_top_k=3)
    for step in run(plan_with(setup, setup.target.cached_lm(), own, 3), 24):
        assert torch.equal(step.probs, Sampling(0.5).probs(step.logits))
        for q, logits in zip(step.draft.probs, step.draft.logits, strict=True):
            if q is not None and METHODS[name].drafts_as == "chain":  # a sibling is drawn from what is left of q
                torch.testing.assert_close(q[: len(logits)], Sampling(2.0, top_k=3).probs(logits)[: len(q)])


def first_tokens_distribution(setup, rule, prompt, num_tokens, k=2, sampling=PLAIN):
    """The exact law of the next tokens, step by step; the target has read the text before each step, as in a run."""
    reader = setup.target.cached_lm()
    plan = plan_with(setup, reader, sampling, k, rule)

    @cache
    def distribution_after(text, remaining):
        if remaining == 0:
            return {(): 1.0}
        total = {}

        def step(draws):
            reader.capture(plan.drafter.hidden_layers)
            reader.forward(text)
            return next(speculate(text, lambda: plan, draws, max_new_tokens=remaining)).tokens

        for tokens, weight in distribution(step).items():
            for rest, chance in distribution_after((*text, *tokens), remaining - len(tokens)).items():
                total[tokens + rest] = total.get(tokens + rest, 0.0) + weight * chance
        return total

    return distribution_after(tuple(prompt), num_tokens)


def targets_distribution(setup, prompt, num_tokens):
    """Products of rows of plain forwards."""
    distributions = {(): 1.0}
    for _ in range(num_tokens):
        distributions = {
            (*text, token): chance * p
            for text, chance in distributions.items()
            for token, p in enumerate(full_logits(setup.target.model, [*prompt, *text])[-1].softmax(-1).tolist())
        }
    return distributions


LENGTHS = {"tree": 2}  # drawn siblings have too many outcomes for three tokens here; test_tree.py enumerates them
SMALL_PROMPT = [0, 1, 2, 0, 1, 0, 1]


@each_with_its_draft(LOSSLESS, [None, 0.0, 2.5], default=None)
def test_the_distribution_of_whole_texts_is_the_targets_exactly(name, rule, of_draft):
    setup = setup_of(name, vocab_size=3, dtype=torch.float64)
    length = LENGTHS.get(name, 3) if of_draft is None else 2
    mine = first_tokens_distribution(setup, rule, SMALL_PROMPT, length, sampling=Sampling(draft_temperature=of_draft))
    assert abs(sum(mine.values()) - 1) < SAME
    assert total_variation(mine, distribution_of_target(name, length)) < ROUNDING.get(name, SAME)


@cache
def distribution_of_target(name, num_tokens):
    return targets_distribution(setup_of(name, vocab_size=3, dtype=torch.float64), SMALL_PROMPT, num_tokens)


@pytest.mark.parametrize(
    ("name", "rule"),
    [pytest.param(method.name, rule, marks=() if method.name in KINDS else pytest.mark.slow) for method, rule in LOSSY],
)
def test_a_lossy_rule_gives_another_distribution(name, rule):
    setup = setup_of(name, vocab_size=3, dtype=torch.float64)
    mine = first_tokens_distribution(setup, rule, SMALL_PROMPT, 2)
    assert abs(sum(mine.values()) - 1) < SAME
    distance = total_variation(mine, distribution_of_target(name, 2))
    assert distance < SAME if (name, rule) in ALIKE else distance > WRONG


@EACH_EXACT
@pytest.mark.parametrize("num_tokens", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_whole_runs_with_all_that_a_drafter_remembers_have_the_targets_distribution(name, num_tokens):
    setup, prompt = setup_of(name, vocab_size=2, dtype=torch.float64), [0, 1, 0]

    def whole_run(draws):
        plan = plan_with(setup, setup.target.cached_lm(), PLAIN, 2)
        return tuple(text_of(speculate(prompt, lambda: plan, draws, max_new_tokens=num_tokens)))

    expected = targets_distribution(setup, prompt, num_tokens)
    assert total_variation(distribution(whole_run), expected) < ROUNDING.get(name, SAME)


RANKS, BOUND = 3, 4.5  # a z beyond it happens by chance to a right sampler less than once in 100,000 cells


def far_from_the_target(setup, plan, seeds=2, num_tokens=100):
    """The largest |z| over how often the token of each of the first ranks was written, against the target's odds."""
    seen, expected, variance = torch.zeros(RANKS), torch.zeros(RANKS), torch.zeros(RANKS)
    for seed in range(seeds):
        text = text_of(run(plan, num_tokens, seed=seed))
        rows = full_logits(setup.target.model, [*PROMPT, *text])[len(PROMPT) - 1 : -1].double().softmax(-1)
        probabilities, ids = rows.topk(RANKS)
        seen += (ids == torch.tensor(text)[:, None]).sum(0)
        expected += probabilities.sum(0)
        variance += (probabilities * (1 - probabilities)).sum(0)
    return float(((seen - expected) / variance.sqrt()).abs().max())


STATISTICAL = {"draft_model", "tree"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in STATISTICAL else pytest.mark.slow) for name in EXACT]
)
def test_end_to_end_the_tokens_are_as_frequent_as_the_target_wants(name):
    """With seeded draws. Whether those of the other methods are independent is told by their addresses."""
    setup = setup_of(name, vocab_size=6)
    assert far_from_the_target(setup, plan_with(setup, setup.target.cached_lm(), PLAIN, 3)) < BOUND


@METHOD
def test_no_two_draws_of_a_run_share_an_address(name):
    setup, draws = setup_of(name), LoggedDraws(0)
    plan = plan_with(setup, setup.target.cached_lm(), PLAIN, 3)
    list(speculate(PROMPT, lambda: plan, draws, max_new_tokens=40))
    assert len(draws.addresses) == len(set(draws.addresses)) > 0


# Caches and states


class Watched(Drafter):
    """Drafts as `inner` does and keeps what it saw and said. stale: it is fed the states of the tokens one further on
    the left."""

    def __init__(self, inner, stale=False):
        self._inner, self._stale = inner, stale
        self.hidden_layers = inner.hidden_layers
        self.seen = []

    @property
    def work(self):
        return self._inner.work

    @property
    def target_work(self):
        return self._inner.target_work

    def draft(self, context, k):
        hidden = None if context.hidden is None else context.hidden.clone()
        if self._stale and hidden is not None:
            context = replace(context, hidden=torch.roll(hidden, 1, 0))
        draft = self._inner.draft(context, k)
        self.seen.append((list(context.tokens), hidden, k, draft))
        return draft

    def observe(self, draft, probs, verdict, timing):
        self._inner.observe(draft, probs, verdict, timing)


class Scripted(Drafter):
    """Mostly wrong, so that rows of others are cut."""

    def draft(self, context, k):
        return chain([0, 1, 2, 0][:k])


@dataclass(frozen=True)
class MixedRun:
    """What was seen of a run in which a method takes turns with no draft and a scripted one, K changing too."""

    watched: Watched
    texts: list[list[int]]  # before each step, and the whole one
    steps: list[StepResult]


@cache
def mixed_run(name, stale=False):
    setup, texts, steps = setup_of(name, dtype=torch.float64), [list(PROMPT)], []
    reader, sure = setup.target.cached_lm(), RULES["speculative_sampling"]
    watched, own = Watched(setup.drafter(reader), stale), setup.rule(None)
    others = [(NoDraft(), sure, 1), (NoDraft(), sure, 1), (Scripted(), sure, 4)]
    turns = itertools.cycle([(watched, own, 3)] * 4 + others + [(watched, own, 2)])

    def plan():
        drafter, rule, k = next(turns)
        return Plan(reader, drafter, rule, PLAIN, setup.k(k) if drafter is watched else k)

    for step in run(plan, 48):
        steps.append(step)
        texts.append([*texts[-1], *step.tokens])
    return MixedRun(watched, texts, steps)


def path_to(draft, node):
    """The nodes down to this one."""
    path = []
    while node != ROOT:
        path.insert(0, node)
        node = draft.parents[node]
    return path


@METHOD
def test_logits_behind_the_cache_are_those_of_a_full_forward(name):
    """Behind the text, and along the paths to the draft's middle and last node."""
    model, mixed = setup_of(name, dtype=torch.float64).target.model, mixed_run(name)
    for text, step in zip(mixed.texts, mixed.steps, strict=False):
        for node in {len(step.draft) // 2, len(step.draft) - 1} & set(range(ROOT, len(step.draft))):
            path = path_to(step.draft, node)
            full = full_logits(model, [*text, *(step.draft.tokens[each] for each in path)])[len(text) - 1 :]
            mine = step.logits[[0, *(each + 1 for each in path)]]
            torch.testing.assert_close(mine, full, rtol=1e-5, atol=1e-5)


def full_states(model, tokens, layers):
    with torch.inference_mode():
        states = model(torch.tensor([list(tokens)]), use_cache=False, output_hidden_states=True).hidden_states
    return torch.cat([states[layer][0] for layer in layers], dim=-1)


@METHOD
def test_states_that_a_drafter_sees_are_those_of_a_full_forward(name):
    watched, text = mixed_run(name).watched, mixed_run(name).texts[-1]
    if not watched.hidden_layers:
        assert all(hidden is None for _, hidden, _, _ in watched.seen)
        return
    full = full_states(setup_of(name, dtype=torch.float64).target.model, text, watched.hidden_layers)
    for tokens, hidden, _, _ in watched.seen:
        assert tokens == text[: len(tokens)]
        assert len(hidden) < len(tokens)
        torch.testing.assert_close(hidden, full[: len(hidden)], rtol=1e-5, atol=1e-5)
    assert max(len(hidden) for _, hidden, _, _ in watched.seen) > len(PROMPT)


REMEMBERING = {"lookahead", "reasoning"}
"""What these draft depends on earlier steps as well, by design."""


def drafted_anew(setup, tokens, k):
    """What a new drafter says of this text, where the states come from one plain forward."""
    reader = setup.target.cached_lm()
    drafter = setup.drafter(reader)
    hidden = None
    if drafter.hidden_layers:
        hidden = full_states(setup.target.model, tokens, drafter.hidden_layers)[: len(tokens) - 1]
    reader.forward(tokens)
    with torch.inference_mode():
        return drafter.draft(Context(list(tokens), PLAIN, Seeded(0), reader.vocab_size, hidden), k)


def say_the_same(one, other):
    if (one.tokens, one.parents) != (other.tokens, other.parents):
        return False
    rows = [(p, q) for p, q in zip(one.probs, other.probs, strict=True) if p is not None or q is not None]
    return all(p is not None and q is not None and torch.allclose(p, q, atol=1e-9) for p, q in rows)


def compared_with_new_drafters(name, stale=False):
    """Per draft that was not empty, after rejections and switches: whether a new drafter says the same."""
    setup = setup_of(name, dtype=torch.float64)
    return [
        say_the_same(draft, drafted_anew(setup, tokens, k))
        for tokens, _, k, draft in mixed_run(name, stale).watched.seen
        if len(draft) and k > 0
    ]


@pytest.mark.parametrize("name", [name for name in METHODS if name not in REMEMBERING | {"none"}])
def test_after_rejections_and_switches_a_drafter_says_what_a_new_one_says(name):
    same = compared_with_new_drafters(name)
    assert len(same) > 4
    assert all(same)


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].roles == ("heads",)])
def test_heads_that_are_fed_stale_states_are_caught(name):
    assert not all(compared_with_new_drafters(name, stale=True))


@METHOD
def test_no_draft_is_deeper_than_k_and_every_q_fits_the_target(name):
    for step in mixed_run(name).steps:
        judged = len(step.draft) - step.draft.num_scratch
        assert max(step.draft.depths[:judged], default=0) <= step.plan.k
        assert all(row is None or row.shape == step.probs[0].shape for row in step.draft.probs)


# Where a text ends


@EACH_EXACT
def test_an_end_token_ends_the_text(name):
    setup, plain = setup_of(name), generated_by(name)
    eos = plain[12]
    steps = run(plan_with(setup, setup.target.cached_lm(), GREEDY, 4), 40, eos_ids=frozenset({eos}))
    assert (text_of(steps), steps[-1].finish) == (plain[: plain.index(eos) + 1], "eos")


@METHOD
@pytest.mark.parametrize(("num_tokens", "limit", "finish"), [(9, 64, "length"), (64, 20, "context")])
def test_limits_hold_exactly(name, num_tokens, limit, finish):
    setup = setup_of(name, limit=limit)
    steps = run(plan_with(setup, setup.target.cached_lm(), PLAIN, 8), num_tokens)
    assert len(PROMPT) + len(text_of(steps)) == min(len(PROMPT) + num_tokens, limit)
    assert {step.finish for step in steps[:-1]} <= {None}
    assert steps[-1].finish == finish


@EACH_EXACT
def test_a_run_that_is_closed_at_any_step_leaves_models_that_go_on(name):
    setup = setup_of(name, dtype=torch.float64)
    plan, whole = plan_with(setup, setup.target.cached_lm(), GREEDY, 3), generated(setup, 12)
    for number in (0, 1, 2, 3, 9):
        steps = speculate(PROMPT, lambda: plan, Seeded(0), max_new_tokens=12)
        made = [token for _, step in zip(range(number), steps, strict=False) for token in step.tokens]
        steps.close()
        assert made == whole[: len(made)]
    assert text_of(run(plan, 12)) == whole


# Records


def recorded(name, seed):
    """The trace's step events of one run."""
    setup = setup_of(name)
    plan, recorder = plan_with(setup, setup.target.cached_lm(), PLAIN, 3), Recorder(setup.target.text)
    settings = trace.Settings(
        k=plan.k,
        k_policy="constant",
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        method=setup.method.name,
        params=setup.params,
        rule=plan.rule.name,
        lossless=plan.rule.lossless,
        draft_model=None,
        target="target",
    )
    return [recorder.record(step, settings, started=0.0) for step in run(plan, 16, seed=seed)]


@cache
def recorded_once(name):
    return recorded(name, seed=1)


@METHOD
def test_a_record_round_trips_bit_for_bit(name):
    for step in recorded_once(name):
        line = trace.dump_event(step)
        assert len(json.dumps(dict(step.evidence))) <= MOST_EVIDENCE
        assert trace.dump_event(trace.parse_event(json.loads(line))) == line


@METHOD
def test_the_same_seed_gives_the_same_record_and_another_seed_another(name):
    one = without_times(recorded_once(name))
    assert one == without_times(recorded(name, seed=1))
    assert one != without_times(recorded(name, seed=2))


def without_times(steps):
    return [{key: value for key, value in trace.event_dict(step).items() if key != "timing"} for step in steps]


# Live switches

OF_THEIR_TARGETS = {"mtp", "assistant"}
"""Methods that draft for models of their own kinds."""
ON_ONE_TARGET = [name for name in EXACT if name not in OF_THEIR_TARGETS]


def visits(names):
    """A walk that goes from every name to every other one."""
    return [name for i, first in enumerate(names) for second in names[i + 1 :] for name in (first, second)] + names[:1]


def test_from_any_method_to_any_other_the_greedy_text_goes_on():
    setups = {name: setup_of(name, dtype=torch.float64, limit=4096) for name in ON_ONE_TARGET}
    reader = setups["none"].target.cached_lm()
    plans = {name: plan_with(setup, reader, GREEDY, 2) for name, setup in setups.items()}
    walk = visits(ON_ONE_TARGET)
    assert set(itertools.pairwise(walk)) == set(itertools.permutations(ON_ONE_TARGET, 2))
    turns = iter([plans[name] for name in walk for _ in range(2)])  # in the first, some only read
    last = plans["none"]
    steps = run(lambda: next(turns, last), 450)
    assert next(turns, None) is None
    assert text_of(steps) == generated(setups["none"], 450)


@pytest.fixture(scope="module")
def bundled():
    return Workbench()


def bundled_run(bench, method, **values):
    draft = "fable-draft-othervocab" if METHODS[method].foreign else "fable-draft"
    asked = {
        "prompt": "12 + 30 = 42\n15 + 4 =",
        "target": "fable-target",
        "num_speculative_tokens": 3,
        "max_new_tokens": 10,
        **values,
    }
    return open_run(
        Request(method=method, draft=draft if "draft" in METHODS[method].roles else None, **asked), bench=bench
    )


BUNDLED = pytest.mark.parametrize("name", [name for name in METHODS if name not in OF_THEIR_TARGETS])


@BUNDLED
def test_a_run_that_is_closed_at_any_event_leaves_a_trace_that_loads(name, bundled, tmp_path):
    whole = bundled_run(bundled, name)
    list(whole.events())
    assert whole.trace.footer.reason in ("length", "eos")
    for number in (1, 3, 4):
        again = bundled_run(bundled, name)
        events = again.events()
        for _ in range(number + 1):
            next(events)
        events.close()
        again.trace.save(tmp_path / "run.jsonl")
        loaded = trace.load_trace(tmp_path / "run.jsonl")
        assert timeless(loaded) == timeless(again.trace)
        assert loaded.footer.reason == "stopped"
        assert timeless(loaded)[2:-1] == timeless(whole.trace)[2 : len(loaded.steps) + 2]


def test_a_session_changes_through_all_methods_and_its_text_is_the_targets(bundled):
    going = bundled_run(bundled, "draft_model", temperature=0.0, max_new_tokens=200)
    going.controls.offer("draft", "fable-draft-othervocab")
    for name in [*ON_ONE_TARGET, *ON_ONE_TARGET[::-1]]:
        draft = "fable-draft-othervocab" if METHODS[name].foreign else "fable-draft"
        going.controls.change(method=name, rule=None, draft=draft)
        refused = [status.message for status in statuses(going.events(max_steps=2)) if status.message]
        assert not [words for words in refused if "cannot" in words or "must" in words], refused
    seen = [step.settings.method for step in going.trace.steps]
    visited = seen[: 2 * len(ON_ONE_TARGET) : 2]
    assert visited == ON_ONE_TARGET[: len(visited)]
    text = [token.id for token in going.trace.tokens]
    prompt = [token.id for token in going.trace.header.prompt.tokens]
    assert text == greedily(bundled.pool.load("fable-target").model, prompt, len(text))
    going.stop()


# Negative controls


class WrongQ(Drafter):
    """Takes the draft's favourite and claims that it was drawn from all of q."""

    def __init__(self, inner):
        self._inner = inner

    def draft(self, context, k):
        sure = self._inner.draft(replace(context, sampling=GREEDY), k)
        rows = [context.sampling.probs(row) for row in sure.logits]
        return chain(sure.tokens, rows, sure.logits)


def test_a_wrong_q_is_caught_by_the_exact_distribution_and_end_to_end():
    setup = setup_of("draft_model", vocab_size=3, dtype=torch.float64)
    reader = setup.target.cached_lm()
    plan = replace(plan_with(setup, reader, PLAIN, 2), drafter=WrongQ(setup.drafter(reader)))
    one_step = distribution(
        lambda draws: next(speculate(SMALL_PROMPT, lambda: plan, draws, max_new_tokens=2)).tokens[:1]
    )
    assert total_variation(one_step, targets_distribution(setup, SMALL_PROMPT, 1)) > WRONG
    setup = setup_of("draft_model", vocab_size=6)
    reader = setup.target.cached_lm()
    plan = replace(plan_with(setup, reader, PLAIN, 3), drafter=WrongQ(setup.drafter(reader)))
    assert far_from_the_target(setup, plan) > BOUND
