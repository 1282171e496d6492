"""Blocks at once: the head's numbers against transformers' own assistant, the text's law, formats and refusals."""

import json

import pytest
import torch
from transformers import cache_utils

from specviz.decoding.drafter import Context
from specviz.decoding.draws import Seeded, distribution
from specviz.decoding.engine import Plan, speculate
from specviz.decoding.sampling import Sampling
from specviz.drafters import METHODS
from specviz.drafters.block.drafter import BlockDrafter
from specviz.drafters.block.heads import read
from specviz.drafters.block.successors import NOTHING
from specviz.drafters.method import Parts
from specviz.drafters.none import NoDraft
from specviz.drafters.policy import HeadConfidence
from specviz.errors import SpecvizError
from specviz.models.pool import ModelPool
from specviz.rules import RULES
from tests.helpers.eagle_heads import target_of
from tests.helpers.head_formats import (
    BLOCK_LAYERS,
    DFLASH2,
    PlainBlock,
    dflash,
    dflash2,
    dspark,
    gated,
    open_spec,
    open_spec_nested,
    recurrent,
    speculators_dflash,
    speculators_dflash2,
    speculators_dspark,
    transformers_dflash,
)
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


def open_spec_from_one(target):
    return open_spec(target, first=1)


SAME = (speculators_dflash, transformers_dflash, open_spec, open_spec_from_one, open_spec_nested)


@pytest.mark.parametrize("make", SAME)
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
    assert not report.unused
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


@pytest.mark.parametrize("draws", [True, False], ids=["drawn", "most likely"])
@pytest.mark.parametrize(
    ("make", "biased", "filled"), [(dspark, True, "in turn"), (dspark, False, "together"), (dflash, True, "together")]
)
def test_the_evidence_tells_whether_a_bias_took_part(make, biased, filled, draws, small_target):
    head, _ = read(*make(small_target), small_target)
    draft = draft_behind([4, 6, 2], small_target, BlockDrafter(head, draws=draws, biased=biased))
    assert draft.evidence["filled"] == filled


@pytest.mark.parametrize("make", [dspark, dflash])
def test_the_evidence_counts_the_slots_and_the_masks_that_were_read(make, small_target):
    config, state = make(small_target)
    head, _ = read(config, state, small_target)
    draft = draft_behind([4, 6, 2], small_target, BlockDrafter(head))
    evidence = draft.evidence
    assert (evidence["block"], evidence["masks"]) == (len(draft), config["block_size"] - 1)


def draft_behind(text, target, drafter):
    lm = target.cached_lm()
    lm.capture(drafter.hidden_layers)
    lm.forward(text)
    return drafter.draft(Context(text, Sampling(0.9), Seeded(5), lm.vocab_size, lm.hidden(text)), 99)


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
    with pytest.raises(SpecvizError, match=r"markov_head_type in its config.json must be one of vanilla, gated, rnn"):
        read({**config, "markov_head_type": "other"}, state, small_target)


def states_of(target, text):
    """What a head reads of the target behind every token but the last, in float64."""
    with torch.inference_mode():
        hidden = target.model(torch.tensor([text[:-1]]), output_hidden_states=True).hidden_states
    return torch.cat([hidden[layer + 1][0] for layer in BLOCK_LAYERS], -1).double()


def drafted(head, target, text, temperature=0.9, **options):
    """One draft behind a text."""
    lm = target.cached_lm()
    lm.capture(head.hidden_layers)
    lm.forward(text)
    context = Context(text, Sampling(temperature), Seeded(5), lm.vocab_size, lm.hidden(text))
    return BlockDrafter(head, **options).draft(context, 9)


TEXT = [4, 6, 2, 8, 3, 9, 1, 7, 5]
SIGHT = 3  # the window of sliding layers
SLIDES = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": SIGHT}


def nearer(place, other, *, causal):
    return place - other < SIGHT and (other <= place if causal else other - place < SIGHT)


ANCHOR = len(TEXT) - 1
SIGHTS = {  # format and settings, and what its sliding layer sees of (place, other place, whether that is in the block)
    "z-lab": (dflash, SLIDES, lambda place, other, inside: nearer(place, other, causal=True)),
    "z-lab, is_causal false": (
        dflash,
        {**SLIDES, "is_causal": False},
        lambda place, other, inside: nearer(place, other, causal=False),
    ),
    "speculators": (
        speculators_dflash,
        {"sliding_window_non_causal": True},
        lambda place, other, inside: inside or ANCHOR - other <= SIGHT,
    ),
    "speculators, causal": (
        speculators_dflash,
        {"sliding_window_non_causal": False},
        lambda place, other, inside: other <= place if inside else ANCHOR - other <= SIGHT,
    ),
    "Open Spec Config": (
        open_spec,
        SLIDES,
        lambda place, other, inside: other <= place if inside else ANCHOR - other <= SIGHT,
    ),
}


@pytest.mark.parametrize("name", SIGHTS)
def test_a_sliding_layer_sees_what_its_format_says(name, small_target):
    """Against a plain forward: z-lab/dflash model.py, speculators models/dflash/attention.py."""
    make, changes, sees = SIGHTS[name]
    config, state = make(small_target)
    if "transformer_layer_config" in config:
        config["transformer_layer_config"] |= SLIDES
    head, _ = read({**config, **changes}, state, small_target)
    told = {**config, "block_size": 5, "mask_token_id": 3}
    plain = PlainBlock(told, state, small_target, lambda layer, *where: layer == 1 or sees(*where))
    rows = plain.output(plain.forward(states_of(small_target, TEXT), TEXT[-1]))[1:]
    draft = drafted(head, small_target, TEXT)
    torch.testing.assert_close(torch.stack(draft.logits).double(), rows, rtol=1e-4, atol=1e-4)


def sees_all(layer, place, other, inside):
    return True


SCALED = {"output_multiplier": 0.7, "final_logit_softcapping": 4.0, "input_embedding_scale": 1.5}
MAKERS2 = {
    "z-lab": dflash2,
    "z-lab, scaled": lambda target: dflash2(target, **SCALED),
    "speculators": speculators_dflash2,
}


@pytest.mark.parametrize("draws", [True, False], ids=["drawn", "most likely"])
@pytest.mark.parametrize("name", MAKERS2)
def test_dflash2_convolves_within_a_block_and_scores_pairs_of_candidates(name, draws, small_target):
    """Against the formulas of z-lab/dflash model.py, written place by place."""
    config, state = MAKERS2[name](small_target)
    head, report = read(config, state, small_target)
    assert not report.missing
    assert not report.unused
    plain = PlainBlock({**config, **DFLASH2}, state, small_target, sees_all)
    features = plain.forward(states_of(small_target, TEXT), TEXT[-1])[1:]
    own = plain.output(features)
    draft = drafted(head, small_target, TEXT, draws=draws)
    assert len(draft) == 4
    selector = {
        name: plain.state[f"candidate_selector.{name}"] for name in ("predecessor_codebook", "successor_codebook")
    }
    before, rows = TEXT[-1], []
    for depth, token in enumerate(draft.tokens):
        values, ids = own[depth].topk(3)
        projected = plain.state["candidate_selector.hidden_projection.weight"] @ features[depth]
        row = torch.full_like(own[depth], NOTHING)
        for value, each in zip(values, ids.tolist(), strict=True):
            pair = selector["predecessor_codebook"][before] * projected * selector["successor_codebook"][each]
            row[each] = value + pair.sum()
        rows.append(row)
        before = token
    torch.testing.assert_close(torch.stack(draft.logits).double(), torch.stack(rows), rtol=1e-4, atol=1e-4)
    if not draws:
        assert list(draft.tokens) == torch.stack(rows).argmax(-1).tolist()


def test_without_its_selector_dflash2_guesses_each_place_alone(small_target):
    config, state = dflash2(small_target)
    head, _ = read(config, state, small_target)
    plain = PlainBlock({**config, **DFLASH2}, state, small_target, sees_all)
    own = plain.output(plain.forward(states_of(small_target, TEXT), TEXT[-1]))[1:]
    draft = drafted(head, small_target, TEXT, biased=False)
    torch.testing.assert_close(torch.stack(draft.logits).double(), own, rtol=1e-4, atol=1e-4)


def test_several_blocks_in_one_pass_do_not_convolve_into_each_other(small_target):
    config, state = dflash2(small_target)
    head, _ = read(config, state, small_target)
    states = states_of(small_target, [*TEXT, 0])
    starts = torch.tensor([3, 6, 9])
    rows = list(BlockDrafter(head, biased=False).along(torch.tensor(TEXT), states)(starts, 9))
    for place, start in enumerate(starts.tolist()):
        alone = torch.stack(drafted(head, small_target, TEXT[:start], biased=False).logits)
        torch.testing.assert_close(torch.stack([row[place] for row, _ in rows]), alone, rtol=1e-4, atol=1e-4)


def gate(state, features, table, chosen):
    """DSpark's gated bias, token by token (DeepSpec, modeling/dspark/markov_head.py)."""
    weight, bias = (state[f"markov_head.gate_proj.{name}"].double() for name in ("weight", "bias"))
    for feature, before in zip(features, chosen, strict=True):
        share = (weight @ torch.cat([feature, table[before]]) + bias).sigmoid()
        yield share * table[before]


def recur(state, features, table, chosen):
    """DSpark's recurrent bias."""
    weight, bias = (state[f"markov_head.joint_proj.{name}"].double() for name in ("weight", "bias"))
    memory = torch.zeros_like(table[0])
    for feature, before in zip(features, chosen, strict=True):
        share, new, out = (weight @ torch.cat([memory, table[before], feature]) + bias).chunk(3)
        memory = share.sigmoid() * memory + (1 - share.sigmoid()) * new.tanh()
        yield out.tanh()


@pytest.mark.parametrize(("change", "rule"), [(gated, gate), (recurrent, recur)])
def test_a_bias_that_reads_the_features_adds_what_its_formula_says(change, rule, small_target):
    config, state = change(*dspark(small_target))
    head, report = read(config, state, small_target)
    assert not report.missing
    assert not report.unused
    plain = PlainBlock(config, state, small_target, sees_all)
    features = plain.forward(states_of(small_target, TEXT), TEXT[-1])
    draft = drafted(head, small_target, TEXT)
    table, output = (plain.state[f"markov_head.markov_w{n}.weight"] for n in (1, 2))
    added = torch.stack(list(rule(state, features, table, [TEXT[-1], *draft.tokens[:-1]]))) @ output.T
    rows = plain.output(features) + added
    torch.testing.assert_close(torch.stack(draft.logits).double(), rows, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("change", [gated, recurrent])
def test_along_a_text_such_a_bias_says_what_it_says_in_a_draft(change, small_target):
    head, _ = read(*change(*dspark(small_target)), small_target)
    draft = drafted(head, small_target, TEXT)
    text = torch.tensor([*TEXT, *draft.tokens])
    states = states_of(small_target, [*text.tolist(), 0])
    rows = list(BlockDrafter(head).along(text, states)(torch.tensor([3, len(TEXT)]), 5))
    torch.testing.assert_close(
        torch.stack([row[1] for row, _ in rows]), torch.stack(draft.logits), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("reads_row", [True, False], ids=["with the token before", "without"])
def test_a_draft_ends_before_the_first_token_that_the_confidence_head_doubts(reads_row, small_target):
    """sigmoid(w [feature; row of the token before] + b), for each token before it is chosen."""
    config, state = dspark(small_target)
    if not reads_row:
        state["confidence_head.proj.weight"] = state["confidence_head.proj.weight"][:, :16].contiguous()
    head, _ = read(config, state, small_target)
    plain = PlainBlock(config, state, small_target, sees_all)
    features = plain.forward(states_of(small_target, TEXT), TEXT[-1])
    whole = drafted(head, small_target, TEXT)
    table = plain.state["markov_head.markov_w1.weight"]
    weight, bias = (plain.state[f"confidence_head.proj.{name}"] for name in ("weight", "bias"))
    expected = []
    for feature, before in zip(features, [TEXT[-1], *whole.tokens[:-1]], strict=True):
        inputs = torch.cat([feature, table[before]]) if reads_row else feature
        expected.append(float((weight @ inputs + bias).sigmoid()))
    for least in sorted(expected):
        least += 1e-4
        length = next((place for place, each in enumerate(expected) if each < least), len(expected))
        draft = drafted(head, small_target, TEXT, policy=HeadConfidence(least))
        assert draft.tokens == whole.tokens[:length]  # what is drafted does not change
        assert draft.evidence["acceptance"] == pytest.approx(expected[:length], abs=1e-4)
        doubt = expected[length] if length < len(expected) else None
        assert draft.evidence["doubt"] == pytest.approx(doubt, abs=1e-4)


def law_alone(target, sampling, length):
    """The probability of each text of this length behind TEXT, from the target's own forward."""
    texts = {(): 1.0}
    for _ in range(length):
        longer = {}
        for text, probability in texts.items():
            with torch.inference_mode():
                row = target.model(torch.tensor([[*TEXT, *text]])).logits[0, -1]
            for token, each in enumerate(sampling.probs(row).tolist()):
                if each:
                    longer[(*text, token)] = probability * each
        texts = longer
    return texts


LAWS = {  # head, and the least acceptance that is expected of a drafted token
    "bias": (dspark, None),
    "gated bias": (lambda target: gated(*dspark(target)), None),
    "recurrent bias": (lambda target: recurrent(*dspark(target)), None),
    "selector": (dflash2, None),
    "confidence head": (dspark, 0.2),
}


@pytest.mark.parametrize("name", LAWS)
def test_the_text_keeps_the_targets_distribution_exactly(name, small_target):
    """By enumeration of every draw."""
    make, least = LAWS[name]
    head, _ = read(*make(small_target), small_target)
    sampling = Sampling(1.0, top_k=2)
    lengths = set()

    def experiment(draws):
        policy = None if least is None else HeadConfidence(least)
        plan = Plan(small_target.cached_lm(), BlockDrafter(head, policy), RULE, sampling, 2)
        text = []
        for step in speculate(TEXT, lambda: plan, draws, max_new_tokens=4):
            text += step.tokens
            lengths.add(len(step.draft))
        return tuple(text)

    found = distribution(experiment)
    law = law_alone(small_target, sampling, 4)
    assert found.keys() == law.keys()
    assert all(found[text] == pytest.approx(law[text], abs=1e-9) for text in law)
    assert max(lengths) == 2
    assert least is None or len(lengths) > 1


def test_a_head_without_a_confidence_head_refuses_that_draft_length(small_target):
    head, _ = read(*dflash(small_target), small_target)
    params = METHODS["block"].validate({"heads": "any", "k_policy": "confidence"})
    with pytest.raises(SpecvizError, match="needs a head with a confidence head"):
        METHODS["block"].build(Parts(heads=head), params)


def test_no_id_counts_as_closed_because_it_is_no_candidate_at_one_place(small_target):
    """The lab takes minus infinity for a token that a draft can write nowhere."""
    head, _ = read(*dflash2(small_target), small_target)
    rows = torch.stack(drafted(head, small_target, TEXT).logits)
    assert rows.isfinite().all()
    assert ((rows.softmax(-1) > 0).sum(-1) == DFLASH2["selector_top_k"]).all()


def test_a_vocabulary_in_another_order_gets_its_bias_at_its_own_ids(small_target):
    """A draft vocabulary of all ids, permuted by d2t, is the same head as one in the target's order."""
    config, state = speculators_dspark(small_target)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    output = small_target.model.get_output_embeddings().weight
    permuted = {**state, "lm_head.weight": output[order], "d2t": order - torch.arange(12)}
    name = "markov_head.markov_w2.weight"
    permuted[name] = state[name][order]
    rows = []
    for each in (state, permuted):
        head, _ = read(config, each, small_target)
        rows.append(torch.stack(drafted(head, small_target, TEXT).logits))
    torch.testing.assert_close(*rows)
    del permuted["lm_head.weight"]  # then it is the target's, row by row
    head, _ = read(config, permuted, small_target)
    torch.testing.assert_close(torch.stack(drafted(head, small_target, TEXT).logits), rows[0])


def test_a_confidence_head_that_gives_no_number_is_refused(small_target):
    config, state = dspark(small_target)
    state["confidence_head.proj.bias"] = torch.tensor([float("nan")])
    head, _ = read(config, state, small_target)
    with pytest.raises(SpecvizError, match="confidence head gives what is not a number"):
        drafted(head, small_target, TEXT, policy=HeadConfidence(0.1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", [dspark, lambda target: gated(*dspark(target)), dflash2])
def test_heads_in_a_few_bits_guess_nearly_the_same(make, dtype):
    rows = []
    for each in (torch.float32, dtype):
        target = target_of(layers=8, dtype=each)
        head, _ = read(*make(target), target)
        draft = drafted(head, target, TEXT, draws=False)
        rows.append(torch.stack(draft.logits)[0].float().softmax(-1))
    assert (rows[0] - rows[1]).abs().max() < 0.1


ODD = {
    "a bias of no kind": (
        dspark,
        {"markov_head_type": ["gated"]},
        "markov_head_type in its config.json must be one of",
    ),
    "layers of no kind": (dflash, {"layer_types": [["a"], {}]}, "its layers must have full attention or sliding"),
    "a selector read from the anchor": (dflash2, {"sample_from_anchor": True}, "sample_from_anchor must be false"),
    "a multiplier of nothing": (lambda t: dflash2(t, output_multiplier=0), {}, "must be a number above 0"),
}


@pytest.mark.parametrize("name", ODD)
def test_what_a_format_does_not_allow_is_refused_in_words(name, small_target):
    make, changes, words = ODD[name]
    config, state = make(small_target)
    with pytest.raises(SpecvizError, match=words):
        read({**config, **changes}, state, small_target)


def test_a_tensor_under_the_names_of_two_formats_is_refused(small_target):
    config, state = dspark(small_target)
    state["markov.embed.weight"] = state["markov_head.markov_w1.weight"].clone()
    with pytest.raises(SpecvizError, match="hold a tensor twice, under the names of two formats"):
        read(config, state, small_target)


def test_a_window_for_all_layers_is_read(small_target):
    """vLLM, qwen3_dflash.py: use_swa with swa_window_size, and both ways within a block."""
    config, state = dflash(small_target)
    config["dflash_config"] |= {"use_swa": True, "swa_window_size": SIGHT}
    head, _ = read(config, state, small_target)
    plain = PlainBlock(
        config, state, small_target, lambda layer, place, other, inside: nearer(place, other, causal=False)
    )
    rows = plain.output(plain.forward(states_of(small_target, TEXT), TEXT[-1]))[1:]
    torch.testing.assert_close(torch.stack(drafted(head, small_target, TEXT).logits), rows, rtol=1e-4, atol=1e-4)


UNFIT = {
    "groups that do not divide the width": ({"conv_group_size": 5}, "conv_group_size in its config.json must divide"),
    "more candidates than tokens": ({"selector_top_k": 13}, "selector_top_k in its config.json must be a whole number"),
    "no rank": ({"selector_rank": 0}, "selector_rank in its config.json must be a whole number from 1"),
    "a bound that is no number": (
        {"final_logit_softcapping": "30"},
        "final_logit_softcapping in its config.json must be a number from 0 to 1,000,000 .got '30'.",
    ),
    "a bound beyond all numbers": ({"output_multiplier": float("inf")}, "output_multiplier in its config.json must be"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_settings_of_dflash2_that_do_not_fit_are_refused_in_words(name, small_target):
    changes, words = UNFIT[name]
    config, state = dflash2(small_target, **changes)
    with pytest.raises(SpecvizError, match=words):
        read(config, state, small_target)


OPEN_BAD = {
    "another version": (
        {"open_spec_config_version": "1.0.0"},
        {},
        "open_spec_config_version in its config.json must be",
    ),
    "no number of tokens": ({}, {"speculative_tokens": None}, "speculative_tokens in its config.json must be"),
    "another count of layers": ({}, {"target_layer_start_idx": 2}, "target_layer_start_idx in its config.json must be"),
    "layers below the first": (
        {},
        {"target_layer_start_idx": 1, "target_layer_ids": [-1, 3]},
        "target_layer_ids in its config.json must name different layers of the target",
    ),
}


@pytest.mark.parametrize("name", OPEN_BAD)
def test_an_open_spec_config_that_says_too_little_is_refused_in_words(name, small_target):
    changes, of_spec, words = OPEN_BAD[name]
    config, state = open_spec(small_target)
    config = {**config, **changes, "speculative_config": {**config["speculative_config"], **of_spec}}
    with pytest.raises(SpecvizError, match=words):
        read(config, state, small_target)
