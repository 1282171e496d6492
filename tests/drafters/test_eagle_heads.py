"""EAGLE heads: every layout says what the papers' formulas say, written out slowly here; what does not fit is refused.

`eagle`, `eagle3` and `bundled_layout` make small random heads in exactly the layouts of the checkpoints.
"""

import json
from dataclasses import replace

import pytest
import torch

from specviz.drafters.eagle import layouts
from specviz.drafters.eagle.heads import read
from specviz.errors import SpecvizError
from specviz.zoo.training.heads import build_head, head_settings, rotary_of
from tests.helpers.eagle_heads import HIDDEN, SlowHead, _random, eagle, eagle3, target_of, texts
from tests.helpers.small_zoo import EAGLE


def bundled_layout(model, seed=0):
    """(config, state, the zoo's own head), random."""
    torch.manual_seed(seed)
    head = build_head(EAGLE, model).to(model.dtype).eval()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter.data, std=0.3)
    return head_settings(head), head.state_dict(), head


LAYOUTS = {
    "EAGLE": lambda target: eagle(target),
    "EAGLE, no bias": lambda target: eagle(target, bias=False),
    "EAGLE, biased attention": lambda target: eagle(target, qkv_bias=True),
    "EAGLE, another table": lambda target: eagle(target, table=_random(8)(target.info.vocab_size, HIDDEN)),
    "EAGLE-3": lambda target: eagle3(target, [1, 2, 5, 7, 11]),
    "EAGLE-3, all tokens": lambda target: eagle3(target, list(range(12))),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_says_what_the_formulas_say(name):
    target = target_of(layers=8)
    config, state = LAYOUTS[name](target)
    head, slow = read(config, state, target)[0], SlowHead(config, state, target)
    tokens = texts(6, 12)
    states = _random(9)(6, HIDDEN * (3 if slow.is_third else 1)).double()
    features = head.fuse(states)
    got = head(features, torch.tensor(tokens), torch.arange(1, 7), head.rows(), None)
    expected = [slow.next_feature(slow.fuse(states)[:n], tokens[:n]) for n in range(1, 7)]
    torch.testing.assert_close(got, torch.stack(expected), rtol=1e-5, atol=1e-5)  # the norms count in float32
    said = torch.stack([slow.logits(row) for row in expected])
    torch.testing.assert_close(head.logits(got), said, rtol=1e-5, atol=1e-5)


def test_the_bundled_layout_says_what_the_head_that_was_trained_says():
    target = target_of(dtype=torch.float32)
    config, state, trained = bundled_layout(target.model)
    head = read(config, state, target)[0]
    features, tokens = _random(2)(9, HIDDEN), torch.tensor(texts(9, 12))
    wide = torch.cat([features, features[:1]])[None]  # rotary_of counts from the tokens read: 1, 2, ...
    angles = tuple(part[:, :9] for part in rotary_of(target.model, wide))
    expected = trained(features[None], target.model.model.embed_tokens(tokens)[None], angles)[0]
    got = head(features, tokens, torch.arange(1, 10), head.rows(), None)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["EAGLE", "EAGLE-3"])
def test_reading_bit_by_bit_is_reading_at_once(name):
    target = target_of(layers=8)
    head = read(*LAYOUTS[name](target), target)[0]
    features, tokens, rows = _random(2)(90, HIDDEN).double(), torch.tensor(texts(90, 12)), head.rows()
    whole = head(features, tokens, torch.arange(90), head.rows(), None)
    pieces, start = [], 0
    for size in (1, 3, 60, 1, 25):  # more rows than there is room for at first
        part = slice(start, start + size)
        pieces.append(head(features[part], tokens[part], torch.arange(90)[part], rows, None))
        start += size
    torch.testing.assert_close(torch.cat(pieces), whole, rtol=0, atol=1e-12)


def test_eagle_3_reads_what_goes_into_three_layers_of_the_target():
    target = target_of(layers=9)
    head = read(*eagle3(target, [1, 2, 3]), target)[0]
    entering = {}
    layers = target.model.model.layers
    for number in (2, 9 // 2, 9 - 3):
        layers[number].register_forward_pre_hook(lambda _, inputs, number=number: entering.update({number: inputs[0]}))
    lm = target.cached_lm()
    lm.capture(head.hidden_layers)
    lm.forward([1, 2, 3, 4])
    expected = torch.cat([entering[number][0] for number in (2, 4, 6)], dim=-1)
    assert torch.equal(lm.hidden([1, 2, 3, 4, 5]), expected)


def test_the_report_names_what_was_used_and_what_was_not():
    target = target_of(layers=8)
    config, state = eagle3(target, [1, 2, 3])
    report = read(config, {**state, "layers.1.extra": torch.zeros(1)}, target)[1]
    assert (set(report.used), report.unused, report.missing) == (set(state), ("layers.1.extra",), ())


def test_the_report_names_what_is_missing():
    target = target_of()
    config, state = eagle(target)
    state.pop("fc.bias")
    assert read(config, state, target)[1].missing == ("fc.bias",)


def test_a_copy_of_the_targets_table_is_not_kept_twice():
    target = target_of()
    own = target.model.get_input_embeddings().weight
    same, other = (read(*eagle(target, table=table), target)[0] for table in (own.clone(), own + 1))
    assert same.embed_tokens is None
    assert other.embed_tokens is not None


def test_an_eagle_head_with_an_output_matrix_of_its_own_speaks_through_it():
    target = target_of()
    own, (config, state) = target.model.get_output_embeddings().weight, eagle(target)
    same, report = read(config, {**state, "lm_head.weight": own.clone()}, target)
    assert same.lm_head is None
    assert report.unused == ()
    matrix, features = _random(11)(12, HIDDEN), _random(2)(5, HIDDEN).double()
    other, report = read(config, {**state, "lm_head.weight": matrix}, target)
    torch.testing.assert_close(other.logits(features), features @ matrix.T.double())
    assert "lm_head.weight" in report.used


def without_output(target, **changes):
    config, state = eagle3(target, list(range(12)))
    gone = ("lm_head.weight", "d2t", "t2d")
    return {**config, **changes}, {name: each for name, each in state.items() if name not in gone}


def test_a_head_over_the_whole_vocabulary_without_an_output_matrix_speaks_through_the_targets():
    target = target_of(layers=8)
    config, state = without_output(target)
    head, report = read(config, state, target)
    features = _random(2)(5, HIDDEN).double()
    whole = {**state, "lm_head.weight": target.model.get_output_embeddings().weight, "d2t": torch.zeros(12).long()}
    slow = SlowHead(config, whole, target)
    told = torch.stack([slow.logits(row) for row in features])
    torch.testing.assert_close(head.logits(features), told, rtol=1e-5, atol=1e-5)
    assert report.missing == ()


def test_a_head_that_ties_its_tables_speaks_through_its_own_embeddings():
    target, table = target_of(layers=8), _random(8)(12, HIDDEN)
    config, state = without_output(target, tie_word_embeddings=True)
    head = read(config, {**state, "embed_tokens.weight": table}, target)[0]
    features = _random(2)(5, HIDDEN).double()
    slow = SlowHead(config, {**state, "lm_head.weight": table, "d2t": torch.zeros(12).long()}, target)
    torch.testing.assert_close(head.logits(features), torch.stack([slow.logits(row) for row in features]))


def test_a_head_over_some_tokens_without_an_output_matrix_is_incomplete():
    target = target_of(layers=8)
    config, state = eagle3(target, [1, 2, 5])
    state.pop("lm_head.weight")
    assert read(config, state, target)[1].missing == ("lm_head.weight",)


# ---- tables that are padded otherwise than the target's


class Tokenizer:
    """Of a target whose last two ids are padding."""

    def __len__(self):
        return 10


def resized(state, num_ids):
    """The same head with tables of so many ids; rows beyond the target's are noise."""
    tables = {name: each for name, each in state.items() if name in ("embed_tokens.weight", "lm_head.weight")}
    longer = {name: torch.cat([each, torch.full((8, HIDDEN), 9.0)])[:num_ids] for name, each in tables.items()}
    return {**state, **longer}


@pytest.mark.parametrize("num_ids", [10, 11, 16, 20])
@pytest.mark.parametrize("name", ["EAGLE", "EAGLE-3"])
def test_tables_that_are_padded_otherwise_say_the_same(name, num_ids):
    target = replace(target_of(layers=8), tokenizer=Tokenizer())
    if name == "EAGLE":
        config, state = eagle(target, table=_random(8)(12, HIDDEN))
        state["lm_head.weight"] = _random(11)(12, HIDDEN)
    else:
        config, state = without_output(target)
        state |= {"embed_tokens.weight": _random(8)(12, HIDDEN), "lm_head.weight": _random(11)(12, HIDDEN)}
    sizes = {key: num_ids for key in ("vocab_size", "draft_vocab_size") if key in config}
    plain, other = read(config, state, target)[0], read({**config, **sizes}, resized(state, num_ids), target)[0]
    states = _random(9)(6, HIDDEN * len(plain.hidden_layers)).double()
    tokens, places = torch.tensor([0, 9, 3, 1, 8, 2]), torch.arange(1, 7)
    one, two = (head.logits(head(head.fuse(states), tokens, places, head.rows(), None)) for head in (plain, other))
    assert two.shape == (6, 12)
    torch.testing.assert_close(two[:, :num_ids], one[:, :num_ids])
    assert torch.isneginf(two[:, num_ids:]).all()


def test_a_map_over_a_padded_vocabulary_leads_to_the_targets_ids():
    target = target_of(layers=8)
    config, state = eagle3(target, [1, 2, 5])
    padded = {**state, "t2d": torch.cat([state["t2d"], torch.zeros(4, dtype=torch.bool)])}
    head = read({**config, "vocab_size": 16}, padded, target)[0]
    assert head.ids(torch.arange(3)).tolist() == [1, 2, 5]


def test_the_angles_stay_exact_in_half_precision():
    target = target_of(dtype=torch.bfloat16)
    head = read(*eagle(target), target)[0]
    assert {parameter.dtype for parameter in head.parameters()} == {torch.bfloat16}
    assert head.rotary.inv_freq.dtype == torch.float32


def test_the_head_holds_nothing_that_holds_the_target():
    target = target_of()
    head = read(*eagle(target), target)[0]
    assert all(module is not target.model for module in head.modules())
    assert set(head.state_dict()) == set(eagle(target)[1])


def with_config(**values):
    return lambda config, state: config.update(values)


def with_tensor(name, tensor):
    return lambda config, state: state.update({name: tensor})


REFUSED = {
    "another hidden size": (with_config(hidden_size=32), f"hidden size must be {HIDDEN}"),
    "another vocabulary": (
        with_config(vocab_size=12 + 1024),
        "vocabulary must have 12 tokens, as the target's, padding aside: 12 to 1035 .got 1036.",
    ),
    "a vocabulary that lacks tokens": (with_config(vocab_size=11), "vocabulary must have 12 tokens"),
    "too many layers": (
        lambda config, state: (config.update(num_hidden_layers=65), state.update({"layers.1.a": torch.zeros(1)})),
        "at most 64 layers .num_hidden_layers is 65.",
    ),
    "another activation": (
        with_config(hidden_act="gelu_pytorch_tanh"),
        "its activation must be silu .hidden_act in its config.json is 'gelu_pytorch_tanh'.",
    ),
    "Gemma's activation": (
        with_config(hidden_activation="gelu_pytorch_tanh"),
        "its activation must be silu .hidden_activation in its config.json",
    ),
    "experts": (
        with_tensor("midlayer.mlp.experts.0.up_proj.weight", torch.zeros(2, 2)),
        "its layers are a mixture of experts .a tensor is called 'midlayer.mlp.experts.0.up_proj.weight'.",
    ),
    "no number": (with_config(num_attention_heads="four"), "num_attention_heads .*four"),
    "nothing": (with_config(intermediate_size=None), "intermediate_size"),
    "far too large": (with_config(intermediate_size=10**12), "intermediate_size"),
    "true": (with_config(num_key_value_heads=True), "num_key_value_heads"),
    "odd groups": (with_config(num_key_value_heads=3), "multiple"),
    "odd size of a head": (with_config(head_dim=5), "even"),
    "a size that fills the memory": (with_config(head_dim=2**30), "head_dim"),
    "a size beyond all heads": (
        with_config(head_dim=2048),
        "head_dim in its config.json must be a whole number from 1 to 1024 .got 2048.",
    ),
    "no numbers": (with_config(rms_norm_eps=float("nan")), "rms_norm_eps in its config.json must be a number above 0"),
    "below 0": (with_config(rms_norm_eps=-5.0), "rms_norm_eps in its config.json must be a number above 0"),
    "no angle": (with_config(rope_theta=0), "rope_theta in its config.json must be a number above 0"),
    "an endless angle": (with_config(rope_theta=float("inf")), "rope_theta"),
    "a scaling without end": (
        with_config(rope_scaling={"rope_type": "linear", "factor": 1e308}),
        "no usable angles",
    ),
    "a Medusa head": (lambda config, state: state.pop("fc.weight"), "hold no EAGLE head .no tensor is called fc.weigh"),
    "a strange angle": (with_config(rope_theta="fast"), "config.json"),
    "an unknown scaling": (with_config(rope_scaling={"type": "sideways"}), "config.json"),
    "another shape": (
        with_tensor("fc.weight", torch.zeros(3, 3)),
        f"fc.weight must be of the shape {HIDDEN} x {3 * HIDDEN}",
    ),
    "a layer beyond the last": (
        with_config(eagle_aux_hidden_state_layer_ids=[1, 2, 9]),
        "eagle_aux_hidden_state_layer_ids in its config.json must name different layers of the target, which has 8 "
        ".got .1, 2, 9.",
    ),
    "one beyond, inside": (with_config(eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 9]}), "which has 8"),
    "one beyond, behind": (with_config(target_layer_ids=[0, 2, 8]), "target_layer_ids in its config.json must name"),
    "below the first": (with_config(feature_layers=[-1, 2, 3]), "feature_layers in its config.json must name"),
    "more states than are named": (
        with_tensor("fc.weight", torch.zeros(HIDDEN, 5 * HIDDEN)),
        "fc.weight reads 5 of the target's states, and its config.json does not say which ones .EAGLE-3 reads 3.",
    ),
    "other states than are named": (
        with_config(target_layer_ids=[1, 2, 3, 4]),
        "fc.weight reads 3 of the target's states, and its config.json names 4 .target_layer_ids.",
    ),
    "a layer twice": (with_config(eagle_aux_hidden_state_layer_ids=[1, 1, 2]), "different layers"),
    "layers that are no numbers": (with_config(eagle_aux_hidden_state_layer_ids=[True, "2"]), "different layers"),
    "no layers": (with_config(eagle_aux_hidden_state_layer_ids=[]), "different layers"),
    "sliding attention": (with_config(layer_types=["sliding_attention"]), "full attention .*sliding_attention"),
    "d2t of zeros": (with_tensor("d2t", torch.zeros(3).long()), "d2t is all zeros: it must say which 3 of .* 12"),
    "a mask without a token": (
        with_tensor("mask_hidden", torch.zeros(1, 3 * HIDDEN)),
        "behind a mask token, which its config.json must name .as mask_token_id, pard_token, ptd_token_id.",
    ),
    "d2t too far": (with_tensor("d2t", torch.tensor([0, 0, 99])), "d2t must lead"),
    "d2t twice the same": (with_tensor("d2t", torch.tensor([1, 0, 0])), "d2t must lead"),
    "d2t of decimals": (with_tensor("d2t", torch.zeros(3)), "d2t must hold whole"),
    "t2d marks others": (with_tensor("t2d", torch.arange(12) > 3), "disagree"),
    "no d2t": (lambda config, state: state.pop("d2t"), "lacks d2t"),
    "a small table": (with_tensor("embed_tokens.weight", torch.zeros(4, HIDDEN)), "embed_tokens.weight must hold"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_in_words(name):
    target = target_of(layers=8)
    config, state = eagle3(target, [1, 2, 3])
    change, words = REFUSED[name]
    change(config, state)
    with pytest.raises(SpecvizError, match=words):
        read(json.loads(json.dumps(config)), state, target)


def test_a_midlayer_alone_is_one_layer_whatever_number_the_settings_take_from_the_target():
    target = target_of(layers=8)
    config, state = eagle3(target, [1, 2, 3])
    assert read({**config, "num_hidden_layers": 40}, state, target)[1].missing == ()


@pytest.mark.parametrize("named", [[2, 4, 6], [1, 3, 5]], ids=["before", "behind"])
def test_the_papers_layers_may_be_named_by_the_layer_before_or_behind(named):
    target = target_of(layers=9)
    config, state = eagle3(target, [1, 2, 3])
    head = read({**config, "eagle_config": {"eagle_aux_hidden_state_layer_ids": named}}, state, target)[0]
    assert head.hidden_layers == (2, 4, 6)


def test_eagle_3_needs_three_different_layers():
    target = target_of(layers=6)
    with pytest.raises(SpecvizError, match="7 or more layers"):
        read(*eagle3(target, [1, 2, 3]), target)


def test_a_hostile_size_is_refused_before_anything_is_made_of_it(monkeypatch):
    def never(*_, **__):
        raise AssertionError("transformers was asked first")

    monkeypatch.setattr(layouts, "LlamaConfig", never)
    monkeypatch.setattr(layouts, "LlamaRotaryEmbedding", never)
    target = target_of(layers=8)
    config, state = eagle3(target, [1, 2, 3])
    with pytest.raises(SpecvizError, match="head_dim"):
        read({**config, "head_dim": 2**19}, state, target)
