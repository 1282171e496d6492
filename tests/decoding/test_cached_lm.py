"""CachedLM: whatever the cache holds, its logits are those of one forward over the whole text."""

import warnings
from functools import cache

import pytest
import torch
from torch.nn import functional
from transformers import DynamicCache

from specviz.decoding import cached_lm
from specviz.decoding.cached_lm import CachedLM, common_prefix
from specviz.decoding.draft import ROOT, Draft, chain
from specviz.decoding.forward import transformers_forward as forward
from specviz.decoding.forward.transformers_forward import asked_of
from specviz.errors import SpecvizError
from tests.helpers.tiny_models import CONTEXT_LIMIT, FAMILIES, Bigram, bigram, tiny

PROMPT = [5, 9, 12, 7, 3, 22, 41, 8, 30, 2, 17, 11]  # longer than the sliding windows
TREE = Draft((4, 6, 8, 10, 12, 14), (-1, -1, 0, 0, 1, 2), (None,) * 6)


LAYERS = (0, 1, 2, -1)
model_of = cache(tiny)


def reader(family="llama", **config):
    """A new one; the models are made, and proved, once."""
    return CachedLM(model_of(family, **config), CONTEXT_LIMIT)


def full_logits(model, tokens):
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0]


def path_to(draft, node):
    path = []
    while node != ROOT:
        path.insert(0, node)
        node = draft.parents[node]
    return path


def assert_rows_are_exact(model, logits, tokens, draft):
    """Against a full forward for each path down to a leaf."""
    leaves = set(range(len(draft))) - set(draft.parents)
    for leaf in leaves or {ROOT}:
        path = path_to(draft, leaf)
        full = full_logits(model, [*tokens, *(draft.tokens[node] for node in path)])[len(tokens) - 1 :]
        torch.testing.assert_close(logits[[0, *(node + 1 for node in path)]], full, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module", params=FAMILIES)
def lm(request):
    return reader(request.param)


ENDS_OF_A_STEP = pytest.mark.parametrize(
    ("draft", "kept"),
    [
        pytest.param(chain([4, 6, 8]), [4, 6, 8, 13], id="full accept"),
        pytest.param(chain([4, 6, 8]), [4, 13], id="mid reject"),
        pytest.param(chain([4, 6, 8]), [13], id="first reject"),
        pytest.param(TREE, [4, 10, 13], id="tree, a later branch"),
        pytest.param(TREE, [6, 12, 13], id="tree, second child"),
        pytest.param(TREE, [13], id="tree, first reject"),
    ],
)


@ENDS_OF_A_STEP
def test_logits_after_a_step_equal_a_full_forward(lm, draft, kept):
    assert_rows_are_exact(lm.model, lm.forward(PROMPT, draft), PROMPT, draft)
    text = PROMPT + kept
    assert_rows_are_exact(lm.model, lm.forward(text, TREE), text, TREE)
    assert_rows_are_exact(lm.model, lm.forward([*text, 9], chain([3])), [*text, 9], chain([3]))


@pytest.fixture
def in_fives(monkeypatch):
    """Others may have the engine after every five tokens."""
    monkeypatch.setattr(forward, "FEWEST", 5)
    monkeypatch.setattr(forward, "MOST", 5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("draft", [Draft(), chain([4, 6, 8]), TREE], ids=["no draft", "chain", "tree"])
def test_a_long_text_is_read_in_pieces_to_the_same_logits_in_one_call(in_fives, family, draft):
    lm, text = reader(family), PROMPT + PROMPT[::-1]
    calls, fed = lm.calls, lm.fed
    assert_rows_are_exact(lm.model, lm.forward(text, draft), text, draft)
    assert (lm.calls - calls, lm.fed - fed) == (1, len(text) + len(draft))


def test_between_two_pieces_of_a_long_text_others_have_the_engine(in_fives, monkeypatch):
    lm, pauses = reader(), []
    monkeypatch.setattr(cached_lm, "give_way", lambda: pauses.append(lm.fed))
    fed = lm.fed
    lm.forward([*PROMPT, *PROMPT])
    assert [pause - fed for pause in pauses] == [5, 10, 15, 20]


def test_a_changed_text_is_read_again_from_where_it_differs(lm):
    lm.forward(PROMPT, TREE)
    other = [*PROMPT[:4], 33, *PROMPT[5:]]
    before = lm.fed
    assert_rows_are_exact(lm.model, lm.forward(other), other, Draft())
    assert lm.fed - before == len(PROMPT) - 4


def test_extended_rows_are_used_after_settling(lm):
    ids = [4, 6, 8]
    rows = [lm.forward(PROMPT)[0]] + [lm.extend(torch.tensor(token)) for token in ids[:-1]]
    lm.settle(ids)
    for size, row in enumerate(rows):
        torch.testing.assert_close(row, full_logits(lm.model, PROMPT + ids[:size])[-1], rtol=1e-4, atol=1e-4)
    before = lm.fed
    text = [*PROMPT, 4, 6, 8, 13]
    assert_rows_are_exact(lm.model, lm.forward(text), text, Draft())
    assert lm.fed - before == 2  # the last drafted token was never read, and the new one


def test_rows_that_were_never_settled_are_dropped(lm):
    lm.forward(PROMPT)
    lm.extend(torch.tensor(4))
    assert_rows_are_exact(lm.model, lm.forward([*PROMPT, 9]), [*PROMPT, 9], Draft())


def test_a_growing_list_is_followed_without_reading_it_again():
    lm, text = reader(), list(PROMPT)
    lm.forward(text, chain([4, 6]))
    text += [4, 9]
    before = lm.fed
    lm.forward(text)
    assert lm.fed - before == 1


@pytest.mark.parametrize("family", ["llama", "phi3"])
def test_a_failed_forward_leaves_a_usable_cache(family, monkeypatch):
    lm = reader(family)
    lm.forward(PROMPT)
    attend, layers_left = functional.scaled_dot_product_attention, iter([1])  # it fails in the second layer
    with monkeypatch.context() as patch:
        patch.setattr(
            functional,
            "scaled_dot_product_attention",
            lambda *inputs, **how: attend(*inputs, **how) if next(layers_left, 0) else 1 / 0,
        )
        with pytest.raises(ZeroDivisionError):
            lm.forward([*PROMPT, 4])
    assert_rows_are_exact(lm.model, lm.forward([*PROMPT, 4]), [*PROMPT, 4], Draft())


def test_an_empty_text_is_refused():
    with pytest.raises(ValueError, match="at least one token"):
        reader().forward([])


# Exit after some layers


def test_layers_that_do_not_rise_from_0_are_refused():
    lm = reader(layers=3)
    for layers in ((), (1, 2), (0, 2, 1), (0, 0), (0, 3)):
        with pytest.raises(ValueError, match="layers must rise from 0"):
            lm.exit(layers)


def test_a_model_whose_layers_cannot_be_told_apart_is_refused_in_words():
    model = tiny("gpt2", layers=2)
    model.get_decoder().extra = torch.nn.ModuleList([torch.nn.Identity(), torch.nn.Identity()])
    with pytest.raises(SpecvizError, match="cannot be run one by one"):
        CachedLM(model, CONTEXT_LIMIT).exit((0,))


def test_a_model_spread_over_devices_is_refused_in_words():
    model = tiny("llama", layers=2)
    model.hf_device_map = {"model.embed_tokens": 0, "model.layers.0": 0, "model.layers.1": 1}
    with pytest.raises(SpecvizError, match=r"spread over several devices \(0, 1\)"):
        CachedLM(model, CONTEXT_LIMIT).exit((0,))
    model.hf_device_map = {"": "cpu"}
    CachedLM(model, CONTEXT_LIMIT).exit((0,))


@pytest.mark.parametrize("limit", [0, 1, 2, 7, 40])
def test_the_common_beginning_of_two_texts_is_found_wherever_it_ends(limit):
    for place in range(limit + 1):
        known = [5] * 45
        other = tuple(known[:place]) + (6,) * (45 - place)
        assert common_prefix(known, other, limit) == min(place, limit)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_exit_leaves_the_whole_models_rows_exact(family):
    lm = reader(family, layers=4)
    lm.forward(PROMPT, TREE)
    text = [*PROMPT, 6, 12, 13]
    early = lm.exit((0, 1))
    for token in (4, 6):
        early.forward(text)
        early.extend(torch.tensor(token))
        early.settle([token])
    before = lm.fed
    assert_rows_are_exact(lm.model, lm.forward(text, TREE), text, TREE)
    assert lm.fed - before == 1 + len(TREE)


# Keys and values


@ENDS_OF_A_STEP
@pytest.mark.parametrize("family", FAMILIES)
def test_a_layers_keys_and_values_after_a_step_equal_those_of_a_full_forward(family, draft, kept):
    lm, cache = reader(family), DynamicCache()
    lm.forward(PROMPT, draft)
    text = PROMPT + kept
    with torch.inference_mode():
        lm.model(torch.tensor([text[:-1]]), **asked_of(lm.model, cache))
    for layer, stored in enumerate(cache.layers):
        keys, values = lm.rows(text, layer)
        torch.testing.assert_close(keys, stored.keys, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(values, stored.values, rtol=1e-3, atol=1e-4)


# Hidden states


FINAL_NORMS = ("norm", "ln_f", "final_layer_norm")


def full_hidden(model, tokens, layers):
    """transformers' own hidden_states; for the state behind the last layer what goes into the final norm."""
    decoder, entering = model.get_decoder(), []
    norms = {name: own for name, own in decoder.named_modules() if name.split(".")[-1] in FINAL_NORMS}
    norm = norms[min(norms, key=len)]  # OPT's layers have norms of that name too
    hook = norm.register_forward_pre_hook(lambda _, inputs: entering.append(inputs[0]))
    with torch.inference_mode():
        states = model(torch.tensor([tokens]), output_hidden_states=True, use_cache=False).hidden_states
    hook.remove()
    held = [*states[:-1], *entering]
    return torch.cat([(states[-1] if layer == -1 else held[layer])[0] for layer in layers], dim=-1)


def assert_hidden_is_exact(lm, text, layers, count):
    hidden = lm.hidden(text)
    assert hidden.shape[0] == count
    torch.testing.assert_close(hidden, full_hidden(lm.model, text, layers)[:count], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "layers", [LAYERS, *(pytest.param((each,), marks=pytest.mark.slow) for each in LAYERS)], ids=str
)
@ENDS_OF_A_STEP
@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_after_a_step_equal_a_full_forward(family, draft, kept, layers):
    lm = reader(family)
    lm.capture(layers)
    lm.forward(PROMPT, draft)
    text = PROMPT + kept
    assert_hidden_is_exact(lm, text, layers, len(text) - 1)
    lm.forward(text, TREE)
    assert_hidden_is_exact(lm, [*text, 9], layers, len(text))
    assert_hidden_is_exact(lm, [*PROMPT[:5], 33, 1], layers, 5)


def test_layers_named_later_are_read_again_and_none_costs_nothing():
    lm = reader()
    lm.forward(PROMPT)
    assert lm.hidden(PROMPT) is None
    lm.capture((-1,))
    assert lm.hidden(PROMPT).shape == (0, 32)
    lm.forward(PROMPT)
    text = [*PROMPT, 4]
    assert_hidden_is_exact(lm, text, (-1,), len(PROMPT))
    before = lm.fed
    lm.capture(())
    lm.forward(text)
    assert lm.fed - before == 1  # the rows stay
    assert lm.hidden(text) is None
    lm.capture((-1, 1))
    lm.forward(text)
    assert_hidden_is_exact(lm, [*text, 2], (-1, 1), len(text))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_state_behind_the_last_layer_is_the_one_before_the_final_norm(family):
    lm = reader(family)
    lm.capture((lm.num_layers, -1))
    lm.forward(PROMPT)
    before, after = lm.hidden([*PROMPT, 0]).chunk(2, -1)
    assert not torch.allclose(before, after, rtol=0.01)
    torch.testing.assert_close(before, full_hidden(lm.model, PROMPT, (lm.num_layers,)), rtol=1e-3, atol=1e-4)


def test_reading_the_state_behind_the_last_layer_leaves_no_hook_on_the_model():
    model = tiny("gpt2")
    lm = CachedLM(model, CONTEXT_LIMIT)
    hooks = [len(module._forward_hooks) for module in model.modules()]
    lm.capture((2,))
    lm.forward(PROMPT)
    assert [len(module._forward_hooks) for module in model.modules()] == hooks


def test_a_model_is_given_its_cache_by_the_name_that_it_knows():
    class Older(Bigram):
        def forward(self, input_ids, past_key_values=None, use_cache=None):
            past_key_values.update(*torch.zeros(2, 1, 1, input_ids.shape[1], 1), 0)
            return super().forward(input_ids)

    older, cache = bigram(64), DynamicCache()
    older.__class__ = Older
    older(torch.tensor([PROMPT]), **asked_of(older, cache, num_logits=1))
    assert cache.get_seq_length() == len(PROMPT)
    assert asked_of(older) == {"use_cache": False}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, cache = tiny("llama"), DynamicCache()
        out = model(torch.tensor([PROMPT]), **asked_of(model, cache, num_logits=2))
    assert (cache.get_seq_length(), out.logits.shape[1]) == (len(PROMPT), 2)
