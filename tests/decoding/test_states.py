"""A model that keeps a state: whatever was rejected, its logits are those of one forward over the whole text."""

import random
from functools import cache

import pytest
import torch

import specviz
from specviz.analysis.breakdown import why_slow
from specviz.analysis.costs import measure_costs
from specviz.decoding.cached_lm import MOST_TOGETHER, CachedLM
from specviz.decoding.draft import ROOT, Draft, chain
from specviz.decoding.draws import Seeded
from specviz.decoding.engine import Plan, speculate
from specviz.decoding.sampling import Sampling
from specviz.drafters.draft_model import ModelDrafter
from specviz.errors import SpecvizError
from specviz.models.pool import ModelPool
from specviz.rules import RULES
from specviz.trace import frames
from tests.helpers.class_sweep import a_little_off
from tests.helpers.tiny_classes import IDS, tiny_of
from tests.helpers.tiny_models import tiny_folder, tiny_tokenizer
from tests.helpers.toys import TableLM

NAMES = ("qwen3_next", "qwen3_5_text", "lfm2", "granitemoehybrid", "falcon_h1", "kimi_linear", "inkling_text")
"""Delta rules, convolutions, state spaces, both in one layer, and sliding attention beside a state."""
PROMPT = [*range(20, 34)]
LIMIT = 256
CLOSE = {"rtol": 1e-3, "atol": 2e-3}

model_of = cache(tiny_of)


def reader(name="lfm2"):
    return CachedLM(model_of(name), LIMIT)


def whole(model, tokens):
    with torch.inference_mode():
        return model(torch.tensor([tokens]), use_cache=False).logits[0]


@pytest.mark.parametrize("name", NAMES)
def test_after_any_rejection_logits_are_those_of_the_whole_text(name):
    """Drafts of 0 to 6 tokens, of which any number is accepted, and now and then a text that differs earlier."""
    lm, dice, text = reader(name), random.Random(0), list(PROMPT)
    for step in range(30):
        draft = [dice.randrange(3, IDS) for _ in range(dice.randint(0, 6))]
        logits = lm.forward(text, chain(draft))
        torch.testing.assert_close(logits, whole(lm.model, [*text, *draft])[len(text) - 1 :], **CLOSE)
        text = [*text, *draft[: dice.randint(0, len(draft))], dice.randrange(3, IDS)]
        if step % 10 == 9:
            text = [*text[:-5], 7, 8, 9]
    assert lm.read_again > 0


@pytest.mark.parametrize("name", NAMES)
def test_a_draft_goes_back_to_any_of_its_tokens_and_reads_none_twice(name):
    lm, text = reader(name), list(PROMPT)
    for num_accepted in (0, 1, 3, 2):
        ids, logits = [40, 41, 42, 43], lm.forward(text)[-1]
        torch.testing.assert_close(logits, whole(lm.model, text)[-1], **CLOSE)
        for token in ids[:-1]:
            logits = lm.extend(torch.tensor(token))
        torch.testing.assert_close(logits, whole(lm.model, [*text, *ids[:-1]])[-1], **CLOSE)
        lm.settle(ids)
        text = [*text, *ids[:num_accepted], 50 + num_accepted]
    assert lm.read_again == 0


def test_tokens_that_are_read_twice_are_counted():
    lm = reader()
    lm.forward(PROMPT)
    text = [*PROMPT, 40]
    lm.forward(text, chain([41, 42, 43]))
    before = lm.work
    lm.forward([*text, 41, 42, 50])  # the state is put back before 40
    work = lm.work - before
    assert (work.calls, work.fed, work.read_again) == (1, 4, 3)


def test_texts_are_read_before_a_draft_once_they_are_long():
    """Else every rejection would have the whole text read again."""
    lm, text = reader(), [*PROMPT, *PROMPT]
    assert len(text) > MOST_TOGETHER
    lm.forward(text, chain([41, 42, 43]))
    before = lm.read_again
    lm.forward([*text, 50])
    assert lm.read_again - before == 1


def test_states_are_not_hoarded():
    lm, text = reader(), list(PROMPT)
    for _ in range(20):
        lm.forward(text)
        text = [*text, 5]
    for _ in range(20):
        lm.forward(text, chain([5, 6]))
        text = [*text, 5]
    assert len(lm._forward._copies._copies) <= 2


@pytest.mark.parametrize("name", NAMES)
def test_hidden_states_of_accepted_tokens_stay_though_the_state_goes_back(name):
    lm = reader(name)
    lm.capture((1, -1))
    lm.forward(PROMPT)
    text = [*PROMPT, 40]
    lm.forward(text, chain([41, 42, 43]))
    text = [*text, 41, 42, 50]
    with torch.inference_mode():
        states = lm.model(torch.tensor([text[:-1]]), output_hidden_states=True, use_cache=False).hidden_states
    right = torch.cat([states[1][0], states[-1][0]], -1)
    for _ in range(2):
        assert len(lm.hidden(text)) == len(text) - 1
        torch.testing.assert_close(lm.hidden(text), right, **CLOSE)
        lm.forward(text)
        lm.hidden(text)
    other = [*text[:-3], 9, 9]
    assert len(lm.hidden(other)) == len(other) - 2


@pytest.mark.parametrize("name", NAMES)
def test_an_exit_leaves_the_whole_models_state_as_it_is(name):
    lm, text = reader(name), [*PROMPT, 40]
    lm.forward(PROMPT)
    early = lm.exit((0, 1))
    for token in (4, 6):
        early.forward(text)
        early.extend(torch.tensor(token))
        early.settle([token])
    torch.testing.assert_close(lm.forward(text)[-1], whole(lm.model, text)[-1], **CLOSE)


def test_a_token_tree_is_refused_in_words():
    lm = reader()
    with pytest.raises(SpecvizError, match="reads chains only: it keeps a state, which branches cannot share"):
        lm.forward(PROMPT, Draft((4, 5), (ROOT, ROOT), (None, None)))


class Rereader(TableLM):
    """A reader without a cache: each call is one forward over the whole text."""

    def __init__(self, model):
        super().__init__(0, vocab_size=IDS, context_limit=LIMIT)
        self._model = model

    def row(self, tokens):
        return whole(self._model, tokens)[-1]


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_writes_the_text_that_it_writes_without_any_cache(name):
    """Drawn tokens, target and draft with a state; the draft is the target with other weights."""
    target = model_of(name)
    draft = a_little_off(target, 0.1)
    texts = []
    for make in (lambda model: CachedLM(model, LIMIT), Rereader):
        plan = Plan(make(target), ModelDrafter(make(draft)), RULES["speculative_sampling"], Sampling(1.3), 3)
        steps = list(speculate(PROMPT, lambda plan=plan: plan, Seeded(3), max_new_tokens=32))
        texts.append([token for step in steps for token in step.tokens])
        assert 0 < sum(len(step.verdict.path) for step in steps) < sum(len(step.draft) for step in steps)
    assert texts[0] == texts[1]


@pytest.fixture(scope="module")
def run_and_costs(tmp_path_factory):
    """A run whose target keeps a state, and the costs of its models."""
    place, tokenizer = tmp_path_factory.mktemp("states"), tiny_tokenizer(IDS)
    tokenizer.eos_token = None
    models = {"target": model_of("lfm2"), "draft": a_little_off(model_of("lfm2"), 0.1)}
    names = [str(tiny_folder(place / name, model, tokenizer)) for name, model in models.items()]
    pool = ModelPool(allow_any=True)
    target, draft = (pool.load(name) for name in names)
    made = specviz.run("The fox said", target=names[0], draft=names[1], k=3, max_new_tokens=40)
    *_, last = measure_costs(target, [draft], context_length=16, rounds=1)
    return made, last.costs[0]


def test_a_trace_tells_what_was_read_twice_and_why_slow_counts_it(run_and_costs):
    made, costs = run_and_costs
    again = [step.read_again["target"] if step.read_again else 0 for step in made.steps]
    for step, number in zip(made.steps, again, strict=True):
        if step.index:
            assert step.fed["target"] == number + 1 + len(step.draft)
    assert sum(again) == frames.steps(made)["target_read_again"].sum() > 0
    object.__setattr__(costs, "verify_ms", tuple(float(n) for n in range(1, 34)))
    object.__setattr__(costs, "verify_between_ms", None)
    told = why_slow(made, costs, tokens_per_s=10.0, baseline_tokens_per_s=20.0)
    (factor,) = (factor for factor in told.factors if factor.name == "read again")
    assert f"read {sum(again) / len(again):.2f} tokens per step twice" in factor.words
    draft_ms = costs.draft_ms * sum(len(step.draft) for step in made.steps) / len(made.steps)
    plain_ms = sum(1 + len(step.draft) for step in made.steps) / len(made.steps)
    assert factor.value == pytest.approx((plain_ms + draft_ms) / (plain_ms + sum(again) / len(again) + draft_ms))
