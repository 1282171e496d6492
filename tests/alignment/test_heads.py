"""Drafts that are no models, along a text: what the drafter itself would draft there, and what real runs count."""

from itertools import cycle, islice

import numpy as np
import pytest
import torch

from specviz.alignment.ahead import Proposer, load_draft, measure_ahead
from specviz.alignment.job import align
from specviz.decoding.drafter import Context
from specviz.decoding.draws import Draws, Seeded
from specviz.decoding.engine import Plan, speculate
from specviz.decoding.sampling import Sampling
from specviz.drafters import METHODS
from specviz.errors import SpecvizError
from specviz.models.pool import ModelPool
from specviz.models.score import TextIds
from specviz.prompts import prompts_file
from specviz.rules import RULES
from specviz.session.setup import gather
from specviz.session.workbench import workbench
from tests.helpers.eagle_heads import HIDDEN, eagle3, target_of
from tests.helpers.head_formats import (
    IDS,
    folder_of,
    gemma_assistant,
    gemma_target,
    open_spec_of_another_method,
    speculators_eagle3,
    speculators_mtp,
    speculators_peagle,
)
from tests.helpers.tiny_models import tiny, tiny_tokenizer

PROMPTS = [each["text"] for kind in prompts_file()["kinds"] for each in kind["prompts"]]
K = 4


class Told(Draws):
    """Draws the text's own next token, whatever its probability."""

    def __init__(self, text):
        self._text = text

    def sample(self, probs, role, position, node):
        count = 1 if probs.dim() == 1 else len(probs)
        ids = torch.tensor([self._text[min(position + i, len(self._text) - 1)] for i in range(count)])
        return ids[0] if probs.dim() == 1 else ids


def told_q(proposer, tokens, num_prompt, depths, sampling):
    """q of the text's own tokens [N, depths] from real drafts at every place; nan where nothing is drafted."""
    found = np.full((len(tokens) - num_prompt, depths), np.nan)
    setup = proposer.setup
    target = setup.target.cached_lm()
    drafter = setup.drafter(target)
    target.capture(drafter.hidden_layers)
    for start in range(num_prompt, len(tokens)):
        before = tokens[:start]
        target.forward(before[:-1])
        hidden = target.hidden([*before]) if drafter.hidden_layers else None
        context = Context(before, sampling, Told(tokens), setup.target.info.vocab_size, hidden)
        draft = drafter.draft(context, depths)
        for depth, (token, q) in enumerate(zip(draft.tokens, draft.probs, strict=True)):
            if start + depth < len(tokens):
                own = tokens[start + depth]
                found[start - num_prompt, depth] = float(token == own) if q is None else float(q[own])
            if q is None and start + depth < len(tokens) and token != tokens[start + depth]:
                break
    return found


def proposer_of(name, method, target, pool, **params):
    return Proposer(name, gather(METHODS[method], params, target, None, pool))


WAYS = {
    "eagle": {"children": "drawn"},
    "medusa": {"children": "drawn"},
    "early_exit": {"layers": 5},
    "prompt_lookup": {},
}


@pytest.mark.parametrize("temperature", [0.6, pytest.param(1.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", WAYS)
def test_along_a_text_stands_what_the_drafter_itself_gives_when_it_draws_that_text(method, temperature):
    pool = workbench().pool
    target, sampling = pool.load("fable-target"), Sampling(temperature)
    ids = target.text.encode("Tom has a red ball. Tom has a red hat. Mia has a red ball, and Tom has a cat.")
    proposer = proposer_of(method, method, target, pool, **WAYS[method])
    check_along(proposer, target, ids, 8, 6, sampling)


def check_along(proposer, target, ids, num_prompt, depths, sampling):
    (numbers,) = measure_ahead(
        target, [proposer.drafter()], TextIds(ids[:num_prompt], ids[num_prompt:]), sampling, depths
    )
    expected, ahead = told_q(proposer, ids, num_prompt, depths, sampling), numbers["ahead"]
    size, own = len(ids) - num_prompt, ahead.acceptance.shape[1]
    inside = np.add.outer(np.arange(size), np.arange(own)) < size
    reads = (ahead.readable > 0) & inside
    assert np.array_equal(reads, ~np.isnan(expected[:, :own]))
    assert np.isnan(expected[:, own:]).all()
    p = torch.cat([sampling.probs(target.model(torch.tensor([ids])).logits[0, num_prompt - 1 : -1])])
    p = p[range(size), ids[num_prompt:]].numpy()
    for start, depth in np.argwhere(reads):
        kept = min(1.0, expected[start, depth] / p[start + depth])
        assert ahead.acceptance[start, depth] == pytest.approx(kept, abs=2e-4)
    assert np.allclose(numbers["q"][reads[:, 0]], expected[reads[:, 0], 0], atol=1e-5)


@pytest.mark.parametrize("make", [speculators_eagle3, speculators_peagle, speculators_mtp])
def test_a_folder_of_speculators_is_read_along_a_text_by_the_method_that_drives_it(make, tmp_path):
    pool = ModelPool(allow_any=True)
    target = pool.load((tiny("llama", vocab_size=320, layers=8, hidden=HIDDEN), tiny_tokenizer(320)))
    target.model.requires_grad_(False)
    folder = folder_of(tmp_path / "head", *make(target))
    assert load_draft(str(folder), pool, target).setup.method.name == "eagle"
    proposer = load_draft(f"eagle:{folder},children=drawn", pool, target)
    assert proposer.name == "eagle:head,children=drawn"
    check_along(proposer, target, [*islice(cycle(IDS), 24)], 8, 4, Sampling())


def test_an_assistant_of_gemma_4_is_read_along_a_text_by_its_folder_alone(tmp_path):
    small = target_of(vocab_size=320)
    target = gemma_target(small)
    folder = folder_of(tmp_path / "head", *gemma_assistant(small))
    assert load_draft(folder, ModelPool(allow_any=True), target).setup.method.name == "assistant"
    proposer = load_draft(f"assistant:{folder}", ModelPool(allow_any=True), target)
    check_along(proposer, target, [*islice(cycle(IDS), 24)], 8, 4, Sampling())


def test_a_head_whose_settings_name_a_plain_llama_is_read_along_a_text_by_its_tensors(tmp_path):
    """The EAGLE authors' own layout."""
    pool = ModelPool(allow_any=True)
    target = pool.load((tiny("llama", vocab_size=320, layers=8, hidden=HIDDEN), tiny_tokenizer(320)))
    config, state = eagle3(target, IDS)
    folder = folder_of(tmp_path / "head", {**config, "architectures": ["LlamaForCausalLM"]}, state)
    made = load_draft(folder, pool, target)
    assert (made.name, made.setup.method.name) == ("head", "eagle")


def test_a_head_that_no_method_runs_is_called_what_it_is(tmp_path):
    pool = ModelPool(allow_any=True)
    target = pool.load((tiny("llama", vocab_size=320, layers=8, hidden=HIDDEN), tiny_tokenizer(320)))
    folder = folder_of(tmp_path / "head", *open_spec_of_another_method(target))
    with pytest.raises(SpecvizError, match="head is a head in the Open Spec Config"):
        load_draft(folder, pool, target)


# ---- real runs ------------------------------------------------------------------------------------------------------

NUM_STEPS, NUM_TOKENS = 2_000, 64


def plan_of(setup, target):
    lm = target.cached_lm()
    plan = Plan(lm, setup.drafter(lm), RULES["speculative_sampling"], Sampling(), K)
    return lambda: plan


def counts_of(method, heads):
    """Per prompt [steps that draft, those that accepted 1 .. K or more], from real runs until there are enough."""
    pool = workbench().pool
    target = pool.load("fable-target")
    setup = gather(METHODS[method], {"heads": heads, "children": "drawn"}, target, None, pool)
    counts, seed = np.zeros((len(PROMPTS), K + 1)), 7_000
    while counts[:, 0].sum() < NUM_STEPS:
        seed += 1
        for place, prompt in enumerate(PROMPTS):
            ids = target.text.encode(prompt)
            run = speculate(
                ids, plan_of(setup, target), Seeded(seed), max_new_tokens=NUM_TOKENS, eos_ids=target.text.eos_ids
            )
            for step in run:
                counts[place, 0] += len(step.draft) > 0
                counts[place, 1 : 1 + len(step.verdict.path)] += 1
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_acceptance_by_depth_is_that_counted_in_two_thousand_real_steps(kind):
    counts = counts_of(kind, f"fable-{kind}")
    told = align(PROMPTS * 3, draft=f"fable-{kind}", k=K, max_new_tokens=NUM_TOKENS, costs={}, seed=3).summary
    (draft,) = told.drafts
    for depth in range(1, K + 1):
        rates = counts[:, depth].sum() - counts[:, depth], counts[:, 0].sum() - counts[:, 0]
        without = rates[0] / rates[1]  # each prompt left out in turn
        error = ((len(without) - 1) * without.var()) ** 0.5
        measured = counts[:, depth].sum() / counts[:, 0].sum()
        assert abs(measured - draft.by_position[depth - 1]) < 2.1 * error, (depth, measured, draft.by_position)


def test_a_method_that_cannot_be_read_along_a_text_is_refused_by_name():
    pool = workbench().pool
    with pytest.raises(SpecvizError, match="early_exit:which=outer"):
        load_draft("early_exit:which=outer", pool, pool.load("fable-target"))
