"""Early exit: which layers draft, behind which rows, and that its q is what those layers say."""

import copy

import pytest
import torch
from torch import nn
from transformers import DynamicCache

from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.draws import Seeded
from specviz.decoding.engine import speculate
from specviz.decoding.forward.transformers_forward import asked_of
from specviz.decoding.sampling import Sampling
from specviz.drafters.early_exit import METHOD
from specviz.drafters.method import Part, Parts
from specviz.errors import SpecvizError
from tests.helpers.tiny_models import CONTEXT_LIMIT, FAMILIES, tiny
from tests.helpers.toys import plan_of

PROMPT = [5, 9, 12, 7, 3, 22, 41, 8, 30, 2, 17, 11]


def drafter_of(lm, **params):
    return METHOD.build(Parts(Part("target", lm, lambda: lm)), METHOD.validate(params))


def steps_of(lm, drafter, k=4, sampling=None, num_tokens=40, seed=0):
    plans = drafter if callable(drafter) else lambda: drafter
    return list(speculate(PROMPT, lambda: plan_of(lm, plans(), k, sampling), Seeded(seed), max_new_tokens=num_tokens))


def without_layers(model, layers):
    """A copy whose other layers hand on what they get: the model's own code, another way to skip."""

    class Passes(nn.Module):
        def __init__(self, layer):
            super().__init__()
            for name in ("attention_type", "is_sliding"):
                if hasattr(layer, name):
                    setattr(self, name, getattr(layer, name))

        def forward(self, hidden, *args, **kwargs):
            return hidden

    model = copy.deepcopy(model)
    paths = ("model.layers", "transformer.h", "gpt_neox.layers", "model.decoder.layers")
    blocks = next(model.get_submodule(path) for path in paths if path in dict(model.named_modules()))
    for number in set(range(len(blocks))) - set(layers):
        blocks[number] = Passes(blocks[number])
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_q_of_the_first_layers_is_that_of_a_model_that_has_no_others(family):
    lm = CachedLM(tiny(family, layers=4), CONTEXT_LIMIT)
    cut = without_layers(lm.model, (0, 1))
    text, drafted = list(PROMPT), 0
    for step in steps_of(lm, drafter_of(lm, layers=2), sampling=Sampling(0.9), num_tokens=24):
        if len(step.draft):
            with torch.inference_mode():
                rows = cut(torch.tensor([[*text, *step.draft.tokens[:-1]]]), use_cache=False).logits[0]
            q = (rows[-len(step.draft) :] / 0.9).softmax(-1)
            torch.testing.assert_close(torch.stack(step.draft.probs), q, rtol=1e-3, atol=1e-4)
            drafted += len(step.draft)
        text += step.tokens
    assert drafted > 20


@pytest.mark.parametrize("which", ["outer", "spread"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_skipping_layers_read_behind_the_rows_of_the_whole_model(family, which):
    lm = CachedLM(tiny(family, layers=6), CONTEXT_LIMIT)
    layers = {"outer": (0, 1, 5), "spread": (0, 2, 4)}[which]
    skipping, text, drafted = without_layers(lm.model, layers), list(PROMPT), 0
    for step in steps_of(lm, drafter_of(lm, layers=3, which=which), num_tokens=16):
        assert not len(step.draft) or step.draft.evidence == {"layers": list(layers), "of": 6}
        if len(step.draft):
            with torch.inference_mode():
                past = DynamicCache()
                lm.model(torch.tensor([text[:-1]]), **asked_of(lm.model, past))
                ids = torch.tensor([[text[-1], *step.draft.tokens[:-1]]])
                rows = skipping(
                    ids,
                    **asked_of(skipping, past),
                    position_ids=torch.arange(len(text) - 1, len(text) - 1 + len(ids[0]))[None],
                ).logits[0]
            torch.testing.assert_close(torch.stack(step.draft.probs), rows.softmax(-1), rtol=1e-3, atol=1e-4)
            drafted += len(step.draft)
        text += step.tokens
    assert drafted > 10


def test_every_layer_drafts_what_the_target_writes():
    lm = CachedLM(tiny("llama", layers=3).double(), CONTEXT_LIMIT)
    steps = steps_of(lm, drafter_of(lm, layers=3), num_tokens=31)
    assert [len(step.tokens) for step in steps] == [1] + [5] * 6


def test_it_is_silent_until_the_target_has_read_the_text():
    lm = CachedLM(tiny("llama"), CONTEXT_LIMIT)
    steps = steps_of(lm, drafter_of(lm, layers=1))
    assert [bool(len(step.draft)) for step in steps[:3]] == [False, True, True]
    assert steps[0].draft_work.calls == 0


def test_it_reads_one_token_a_call_and_shares_the_targets_rows():
    lm = CachedLM(tiny("llama"), CONTEXT_LIMIT)
    for step in steps_of(lm, drafter_of(lm, layers=1), sampling=Sampling(0.0))[1:]:
        assert (step.draft_work.calls, step.draft_work.fed) == (len(step.draft), len(step.draft))
        assert (step.target_work.calls, step.target_work.fed) == (1, 1 + len(step.draft))


def test_the_targets_own_model_is_left_as_it_is():
    model = tiny("llama", layers=4)
    before = {name: id(value) for name, value in vars(model.model).items()}
    drafter_of(CachedLM(model, CONTEXT_LIMIT), layers=2)
    assert {name: id(value) for name, value in vars(model.model).items()} == before
    assert (len(model.model.layers), model.config.num_hidden_layers) == (4, 4)


@pytest.mark.parametrize(
    ("params", "of", "layers"),
    [
        ({}, 12, (0, 1, 2, 3)),
        ({}, 2, (0,)),
        ({"layers": 2}, 3, (0, 1)),
        ({"layers": 5, "which": "outer"}, 8, (0, 1, 2, 6, 7)),
        ({"layers": 1, "which": "outer"}, 8, (0,)),
        ({"layers": 3, "which": "spread"}, 8, (0, 2, 5)),
        ({"layers": 8, "which": "spread"}, 8, tuple(range(8))),
        ({"layers": 8, "which": "outer"}, 8, tuple(range(8))),
    ],
)
def test_which_layers_draft(params, of, layers):
    lm = CachedLM(tiny("llama", layers=of), CONTEXT_LIMIT)
    evidence = steps_of(lm, drafter_of(lm, **params), num_tokens=8)[1].draft.evidence
    assert evidence == {"layers": list(layers), "of": of}


def test_more_layers_than_there_are_are_refused():
    with pytest.raises(SpecvizError, match="layers must be at most 2, as many as target has"):
        drafter_of(CachedLM(tiny("llama"), CONTEXT_LIMIT), layers=3)
