"""Blocks at once: the head's numbers against transformers' own assistant, the text's law, formats and refusals."""

import json

import pytest
import torch
from transformers import cache_utils

from specviz.decoding.drafter import Context
from specviz.decoding.draws import Seeded
from specviz.decoding.engine import Plan, speculate
from specviz.decoding.sampling import Sampling
from specviz.drafters.block.drafter import BlockDrafter
from specviz.drafters.block.heads import read
from specviz.drafters.none import NoDraft
from specviz.errors import SpecvizError
from specviz.models.pool import ModelPool
from specviz.rules import RULES
from tests.helpers.eagle_heads import target_of
from tests.helpers.head_formats import dflash, dspark, speculators_dflash, speculators_dspark, transformers_dflash
from tests.helpers.tiny_models import tiny, tiny_tokenizer

muse = pytest.importorskip("transformers.models.muse_glimmer_assistant.modeling_muse_glimmer_assistant")
WORDS = 320
MASK = 317
SIZE = 5
LAYERS = (0, 2)  # of the target, counted from 0
WINDOW = 6
PROMPT = [*range(20, 40)]
RULE = RULES["speculative_sampling"]
SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 256,
}


@pytest.fixture(scope="module")
def target():
    model = tiny("llama", vocab_size=WORDS, layers=4)
    model.config.eos_token_id = None
    return ModelPool().load((model, tiny_tokenizer(WORDS)))


def assistant(*kinds):
    """A random assistant of transformers' own with these layers."""
    config = muse.MuseGlimmerAssistantConfig(
        **SHAPE,
        num_hidden_layers=len(kinds),
        layer_types=list(kinds),
        sliding_window=WINDOW,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        block_size=SIZE,
        mask_token_id=MASK,
        target_layer_ids=list(LAYERS),
    )
    torch.manual_seed(5)
    model = muse.MuseGlimmerAssistantModel(config).eval().requires_grad_(False)
    for weight in model.parameters():
        if weight.ndim > 1:
            weight.normal_(std=0.25)
    return model


FULL, SLIDING = "full_attention", "sliding_attention"
KINDS = {"full": (FULL, FULL), "sliding": (SLIDING, SLIDING), "mixed": (SLIDING, FULL)}


def head_of(model, target):
    head, report = read(json.loads(model.config.to_json_string(use_diff=False)), model.state_dict(), target)
    assert not report.missing
    assert not report.unused
    return head


@torch.inference_mode()
def own_logits(model, target, text, *, from_anchor=False):
    """What transformers' own assistant guesses behind a text, from one forward of the target over all of it."""
    states = target.model(torch.tensor([text[:-1]]), output_hidden_states=True, use_cache=False).hidden_states
    context = torch.cat([states[layer + 1] for layer in LAYERS], -1)
    noise = target.model.get_input_embeddings()(torch.tensor([[text[-1], *[MASK] * (SIZE - 1)]]))
    places = torch.arange(len(text) - 1 + SIZE)[None]
    cache = cache_utils.DFlashCache(config=model.config)
    cache.set_previous_accepted_tokens(len(text) - 1)
    out = model(noise_embeds=noise, context_hidden_states=context, position_ids=places, cache=cache)
    return target.model.lm_head(out.last_hidden_state[0, int(not from_anchor) :])


def drafts_of(target, drafter, sampling, *, k=SIZE - 1, seed=3, num_tokens=24):
    plan = Plan(target.cached_lm(), drafter, RULE, sampling, k)
    return list(speculate(PROMPT, lambda: plan, Seeded(seed), max_new_tokens=num_tokens))


@pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS)
def test_every_guess_is_that_of_transformers_own_assistant(target, kinds):
    """At every step of a run, whatever was rejected before."""
    model = assistant(*kinds)
    steps = drafts_of(target, BlockDrafter(head_of(model, target)), Sampling())
    text = list(PROMPT)
    for step in steps:
        if len(step.draft):
            right = own_logits(model, target, text)[: len(step.draft)]
            torch.testing.assert_close(torch.stack(step.draft.logits), right, rtol=1e-4, atol=1e-4)
        text += step.tokens
    assert len(steps) > 8


@pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS)
def test_along_a_text_it_guesses_what_it_would_draft_at_each_place(target, kinds):
    model = assistant(*kinds)
    text = [*PROMPT, *PROMPT[::-1]]
    lm = target.cached_lm()
    drafter = BlockDrafter(head_of(model, target))
    lm.capture(drafter.hidden_layers)
    lm.forward(text)
    ahead = drafter.along(torch.tensor(text), lm.hidden([*text, 0]))
    starts = torch.tensor([2, 3, 11, 39])
    rows = list(ahead(starts, SIZE + 3))
    assert len(rows) == SIZE - 1
    for place, start in enumerate(starts.tolist()):
        right = own_logits(model, target, text[:start])
        torch.testing.assert_close(torch.stack([row[place] for row, _ in rows]), right, rtol=1e-4, atol=1e-4)


def test_at_the_anchors_own_place_it_reads_the_first_token_where_the_settings_say_so(target):
    """speculators' sample_from_anchor: one pass drafts as many tokens as it reads places."""
    model = assistant(FULL, FULL)
    config = json.loads(model.config.to_json_string(use_diff=False)) | {"sample_from_anchor": True}
    head, _ = read(config, model.state_dict(), target)
    (step, *_) = drafts_of(target, BlockDrafter(head), Sampling(), k=9)
    assert len(step.draft) == 0  # the target has read nothing yet
    (step, *_) = drafts_of(target, BlockDrafter(head), Sampling(), k=9)[1:]
    assert len(step.draft) == SIZE
    right = own_logits(model, target, [*PROMPT, *first_token(target)], from_anchor=True)
    torch.testing.assert_close(torch.stack(step.draft.logits), right, rtol=1e-4, atol=1e-4)


def first_token(target):
    plan = Plan(target.cached_lm(), NoDraft(), RULE, Sampling(), 1)
    return next(speculate(PROMPT, lambda: plan, Seeded(3), max_new_tokens=1)).tokens


def test_most_likely_tokens_are_point_masses_and_write_the_targets_own_text(target):
    head = head_of(assistant(FULL, FULL), target)
    steps = drafts_of(target, BlockDrafter(head, draws=False), Sampling(0.0))
    assert all(row is None for step in steps for row in step.draft.probs)
    plan = Plan(target.cached_lm(), NoDraft(), RULE, Sampling(0.0), 1)
    alone = list(speculate(PROMPT, lambda: plan, Seeded(3), max_new_tokens=24))
    assert [token for step in steps for token in step.tokens] == [token for step in alone for token in step.tokens]


@pytest.fixture(scope="module")
def small_target():
    return target_of(layers=8)


@pytest.mark.parametrize("make", [dflash, speculators_dflash, transformers_dflash])
def test_every_format_of_a_head_makes_the_same_guesses(make, small_target):
    rows = []
    for each in (dflash, make):
        head, report = read(*each(small_target), small_target)
        assert not report.missing
        assert head.hidden_layers == (2, 4)
        stored = head.rows()
        states = torch.sin(torch.arange(6 * 2 * 16, dtype=torch.float64)).view(6, 32)
        stored.store(head.fuse(states))
        rows.append(head.guess(stored, torch.tensor([4]), torch.tensor([6])))
    assert torch.equal(*rows)


BAD = {
    "no mask": (
        {"dflash_config": {"target_layer_ids": [1, 3]}},
        "behind a mask token, which its config.json must name",
    ),
    "a mask beyond the vocabulary": (
        {"dflash_config": {"target_layer_ids": [1, 3], "mask_token_id": 99}},
        "mask_token_id in its config.json must be",
    ),
    "no block": ({"block_size": 1}, "block_size in its config.json must be a whole number from 2 to 64"),
    "layers that are not there": (
        {"dflash_config": {"target_layer_ids": [1, 8], "mask_token_id": 3}},
        "target_layer_ids in its config.json must name different layers of the target, which has 8",
    ),
    "a layer twice": (
        {"dflash_config": {"target_layer_ids": [1, 1], "mask_token_id": 3}},
        "must name different layers",
    ),
    "kinds of too few layers": (
        {"layer_types": ["full_attention"]},
        "layer_types in its config.json must name 2 layers",
    ),
    "a window without a size": (
        {"layer_types": ["sliding_attention"] * 2},
        "sliding_window in its config.json must be",
    ),
    "chunks": ({"layer_types": ["chunked_attention"] * 2}, "must have full attention or sliding attention"),
    "another width": ({"hidden_size": 32}, "its hidden size must be 16, the target's"),
}


@pytest.mark.parametrize("name", BAD)
def test_settings_that_do_not_fit_are_refused_in_words(name, small_target):
    changes, words = BAD[name]
    config, state = dflash(small_target)
    with pytest.raises(SpecvizError, match=words):
        read({**config, **changes}, state, small_target)


@pytest.mark.parametrize("make", [dspark, speculators_dspark])
@pytest.mark.parametrize("draws", [True, False], ids=["drawn", "most likely"])
def test_a_markov_bias_adds_what_the_token_before_says(make, draws, small_target):
    """DSpark: B[A[token before]], for the first token by the text's last. Left out, the rows are the head's own."""
    config, state = make(small_target)
    head, report = read(config, state, small_target)
    assert report.unused == ("confidence_head.proj.weight",)
    table, output = (state[f"markov_head.markov_w{n}.weight"].double() for n in (1, 2))
    text, sampling = [4, 6, 2, 8, 3], Sampling(0.9)
    lm = small_target.cached_lm()
    lm.capture(head.hidden_layers)
    lm.forward(text)
    context = Context(text, sampling, Seeded(5), lm.vocab_size, lm.hidden(text))
    biased, bare = (BlockDrafter(head, draws=draws, biased=each).draft(context, 9) for each in (True, False))
    assert len(biased) == config["block_size"]
    before = torch.tensor([text[-1], *biased.tokens[:-1]])
    rows = torch.stack(bare.logits) + table[before] @ output.T
    torch.testing.assert_close(torch.stack(biased.logits), rows)
    if draws:
        torch.testing.assert_close(torch.stack(biased.probs), sampling.probs(rows))
    else:
        assert list(biased.tokens) == rows.argmax(-1).tolist()


def test_along_a_text_a_markov_bias_knows_the_texts_own_tokens(small_target):
    config, state = dspark(small_target)
    head, _ = read(config, state, small_target)
    table, output = (state[f"markov_head.markov_w{n}.weight"].double() for n in (1, 2))
    text = torch.tensor([4, 6, 2, 8, 3, 9, 1, 7])
    lm = small_target.cached_lm()
    lm.capture(head.hidden_layers)
    lm.forward(text.tolist())
    states = lm.hidden([*text.tolist(), 0])
    starts = torch.tensor([2, 4])
    with_bias, bare = (BlockDrafter(head, biased=each).along(text, states)(starts, 3) for each in (True, False))
    for depth, ((row, _), (own, _)) in enumerate(zip(with_bias, bare, strict=True)):
        torch.testing.assert_close(row, own + table[text[starts + depth - 1]] @ output.T)


def test_another_kind_of_markov_head_is_refused_in_words(small_target):
    config, state = dspark(small_target)
    with pytest.raises(SpecvizError, match=r"its markov_head_type must be vanilla .got 'gated'."):
        read({**config, "markov_head_type": "gated"}, state, small_target)
