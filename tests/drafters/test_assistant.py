"""Gemma 4's assistant: what it drafts against transformers' own assisted generation, loading, refusals."""

from itertools import cycle

import pytest
import torch

from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.draft import chain
from specviz.decoding.drafter import Drafter
from specviz.decoding.draws import Seeded
from specviz.decoding.engine import Plan, speculate
from specviz.decoding.sampling import Sampling
from specviz.drafters import METHODS
from specviz.drafters.assistant import AssistantDrafter
from specviz.drafters.assistant.heads import Assistant, _find_layers, read
from specviz.drafters.assistant.reader import AssistantReader
from specviz.drafters.heads import load_heads
from specviz.drafters.none import NoDraft
from specviz.drafters.policy import Confidence, Heuristic
from specviz.errors import SpecvizError
from specviz.models.pool import ModelPool
from specviz.request import Request
from specviz.rules import RULES
from specviz.session.run import open_run
from specviz.session.setup import gather
from specviz.session.workbench import Workbench
from tests.helpers.gemma_assistants import (
    WINDOW,
    fed_logits,
    settings_of,
    tiny_assistant,
    tiny_target,
    transformers_draft,
)
from tests.helpers.head_formats import folder_of
from tests.helpers.runs import finish
from tests.helpers.tiny_models import tiny, tiny_tokenizer

RULE = RULES["speculative_sampling"]
PROMPT = [1, 2, 0, 1]
GREEDY = Sampling(temperature=0)
TARGETS = {
    "every layer stores": {},
    "the last layers share": {"num_kv_shared_layers": 2},
    "keys that are values": {"attention_k_eq_v": True, "num_global_key_value_heads": 1},
    "unified": {"family": "gemma4_unified_text"},
}
each_target = pytest.mark.parametrize("target", TARGETS.values(), ids=list(TARGETS))
each_output = pytest.mark.parametrize("ordered", [False, True], ids=["all tokens", "the best groups of tokens"])


def loaded(model):
    return ModelPool(10**9, allow_any=True).load((model, tiny_tokenizer(320)))


def pair(ordered=False, **target):
    model = tiny_target(**target)
    return model, tiny_assistant(model, ordered=ordered)


def drafter_of(lm, target, assistant, policy=None):
    layers = {"sliding_attention": 0, "full_attention": 1}
    if not target.config.num_kv_shared_layers:
        layers = {kind: layer + 2 for kind, layer in layers.items()}
    return AssistantDrafter(AssistantReader(Assistant(assistant, layers), lm), policy)


def steps_of(plan, max_new_tokens, seed=3, prompt=PROMPT):
    plans = plan if callable(plan) else lambda: plan
    return list(speculate(prompt, plans, Seeded(seed), max_new_tokens=max_new_tokens))


class Guesses(Drafter):
    """A tree, mostly wrong: rows are cut and taken from the middle."""

    def draft(self, context, k):
        return chain([context.tokens[-1], 0, 1, 2][:k])


def texts_and_drafts(steps):
    text = list(PROMPT)
    for step in steps:
        if len(step.draft) and step.draft.logits[0] is not None:
            yield list(text), step.draft
        text += step.tokens


def assert_close(mine, theirs):
    torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


@each_output
@each_target
def test_greedy_drafts_are_those_of_transformers_own_generator_through_rejections_and_beyond_the_window(
    target, ordered
):
    model, assistant = pair(ordered, **target)
    lm = CachedLM(model, 128)
    mine = drafter_of(lm, model, assistant)
    turns = [(mine, 3), (mine, 1), (mine, 4), (NoDraft(), 2), (Guesses(), 4), (mine, 2)]
    plans = cycle(Plan(lm, drafter, RULE, GREEDY, k) for drafter, k in turns)
    seen = list(texts_and_drafts(steps_of(lambda: next(plans), 60)))
    assert sum(len(text) > WINDOW + 2 for text, _ in seen) > 10
    for text, draft in seen:
        ids, logits = transformers_draft(model, assistant, text, len(draft))
        assert list(draft.tokens) == ids
        assert_close(torch.stack(draft.logits), logits)


@each_output
def test_a_drawn_tokens_q_is_the_assistants_own_at_the_tokens_drawn_before_it(ordered):
    model, assistant = pair(ordered)
    lm, sampling = CachedLM(model, 128), Sampling(draft_temperature=0.7)
    plan = Plan(lm, drafter_of(lm, model, assistant), RULE, sampling, 3)
    steps = steps_of(plan, 60)
    for text, draft in texts_and_drafts(steps):
        logits = fed_logits(model, assistant, text, draft.tokens)
        assert_close(torch.stack(draft.probs), (logits / 0.7).softmax(-1))
    assert {0, 1} <= {len(step.verdict.path) for step in steps}


def test_at_a_draft_temperature_of_0_the_most_likely_tokens_are_judged_as_certain():
    model, assistant = pair()
    lm = CachedLM(model, 128)
    plan = Plan(lm, drafter_of(lm, model, assistant), RULE, Sampling(draft_temperature=0.0), 3)
    for text, draft in texts_and_drafts(steps_of(plan, 40)):
        ids, _ = transformers_draft(model, assistant, text, len(draft))
        assert list(draft.tokens) == ids
        assert [float(q[token]) for q, token in zip(draft.probs, draft.tokens, strict=True)] == [1.0] * len(ids)


@each_target
def test_greedy_text_is_that_of_transformers_assisted_generation(target):
    model, assistant = pair(**target)
    lm = CachedLM(model, 128)
    steps = steps_of(Plan(lm, drafter_of(lm, model, assistant), RULE, GREEDY, 4), 40)
    asked = {"max_new_tokens": 40, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    ids = torch.tensor([PROMPT])
    mask = torch.ones_like(ids)
    assistant.generation_config.num_assistant_tokens = 4
    theirs = model.generate(ids, attention_mask=mask, assistant_model=assistant, **asked)
    assert [token for step in steps for token in step.tokens] == theirs[0, len(PROMPT) :].tolist()
    assert torch.equal(theirs, model.generate(ids, attention_mask=mask, **asked))


@pytest.mark.parametrize("policy", [Heuristic(), Confidence(0.1)], ids=lambda policy: policy.name)
def test_a_policy_shortens_the_draft(policy):
    model, assistant = pair()
    lm = CachedLM(model, 128)
    plan = Plan(lm, drafter_of(lm, model, assistant, policy), RULE, Sampling(), 4)
    steps = steps_of(plan, 60)
    assert len({len(step.draft) for step in steps}) > 2
    for text, draft in texts_and_drafts(steps):
        assert_close(torch.stack(draft.logits), fed_logits(model, assistant, text, draft.tokens))


def test_a_token_costs_one_call_and_the_target_none():
    model, assistant = pair()
    lm = CachedLM(model, 128)
    drafter = drafter_of(lm, model, assistant)
    steps = steps_of(Plan(lm, drafter, RULE, Sampling(), 3), 20)
    num_drafted = sum(len(step.draft) for step in steps)
    assert (drafter.work.calls, drafter.work.fed) == (num_drafted, num_drafted)
    assert lm.calls == len(steps)


@torch.no_grad()
@each_output
@each_target
def test_along_a_text_it_gives_what_it_drafts_where_the_text_itself_is_drafted(target, ordered):
    model, assistant = pair(ordered, **target)
    text = torch.randint(0, 32, (24,), generator=torch.Generator().manual_seed(2))
    states = model(text[None], output_hidden_states=True).hidden_states[-1][0]
    starts = torch.arange(2, 21)
    drafter = drafter_of(CachedLM(model, 128), model, assistant)
    told = torch.stack([rows for rows, _ in drafter.along(text, states)(starts, 4)], dim=1)  # [S, 4, V]
    for start, mine in zip(starts.tolist(), told, strict=True):
        theirs = fed_logits(model, assistant, text[:start].tolist(), text[start : start + 4].tolist())
        assert_close(mine, theirs)


# ---- loading --------------------------------------------------------------------------------------------------------


def saved(path, assistant, **config):
    state = {name: each for name, each in assistant.state_dict().items() if name != "lm_head.weight"}
    return folder_of(path, settings_of(tiny_target(vocab_size=320), **config), state)


@each_output
def test_a_folder_that_transformers_saved_drafts_as_the_assistant_that_was_saved(tmp_path, ordered):
    model, assistant = pair(ordered, vocab_size=320, num_kv_shared_layers=2)
    assistant.save_pretrained(tmp_path / "assistant")
    pool = ModelPool(10**9, allow_any=True)
    target = pool.load((model, tiny_tokenizer(320)))
    setup = gather(METHODS["assistant"], {"heads": str(tmp_path / "assistant")}, target, None, pool)
    assert setup.heads.report.unused == setup.heads.report.missing == ()
    assert setup.heads.module.layers == {"sliding_attention": 0, "full_attention": 1}
    lm = target.cached_lm()
    steps = steps_of(Plan(lm, setup.drafter(lm), RULE, GREEDY, 3), 20)
    for text, draft in texts_and_drafts(steps):
        ids, logits = transformers_draft(model, assistant, text, len(draft))
        assert list(draft.tokens) == ids
        assert_close(torch.stack(draft.logits), logits)


def test_a_run_by_name_records_what_it_was_made_with_and_writes_the_targets_own_text(tmp_path):
    model, assistant = pair(vocab_size=320)
    model.name_or_path = "target"
    bench = Workbench(ModelPool(10**9, allow_any=True))
    bench.pool.load((model, tiny_tokenizer(320)))
    params = {"heads": saved(tmp_path / "h", assistant)}
    asked = {"prompt": "the fox and the dog", "target": "target", "max_new_tokens": 12, "temperature": 0.0}
    made = finish(open_run(Request(method="assistant", draft=None, params=params, **asked), bench=bench))
    assert made.steps[0].settings.params["heads"] == "h"
    ids = torch.tensor([[token.id for token in made.header.prompt.tokens]])
    theirs = model.generate(ids, max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert [token.id for token in made.tokens] == theirs[0, ids.shape[1] :].tolist()


def test_an_assistant_takes_the_number_format_of_its_target(tmp_path):
    model, assistant = pair(vocab_size=320)
    folder = saved(tmp_path / "h", assistant)
    target = loaded(model.bfloat16())
    module = load_heads(None, folder, "assistant", target).module
    assert {each.dtype for each in module.parameters()} == {torch.bfloat16}
    assert module.model.lm_head.weight is module.model.model.embed_tokens.weight


WITHOUT = {"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}
REFUSED = {
    "a head of another kind": ({"model_type": "medusa"}, {}, "must name the model_type gemma4_assistant or gemma4_un"),
    "another hidden size": ({"backbone_hidden_size": 24}, {}, "hidden size must be 16, the target's .got 24"),
    "another vocabulary": ({}, {"vocab_size": 352}, "vocabulary must have 352 tokens, as the target's .got 320"),
    "a target of another family": ({}, {"family": "gemma4_unified_text"}, "of the kind gemma4_text .got gemma4_uni"),
    "other heads": ({}, {"num_key_value_heads": 1}, "sliding_attention read keys and values of 2 heads x 8, and layer"),
    "other widths": ({}, {"global_head_dim": 32}, "of full_attention .* 2 heads x 16, and layer 4 .* 2 heads x 32"),
    "no such layers": ({}, WITHOUT, "the target stores none of sliding_attention"),
    "quantised": ({"quantization_config": {"quant_method": "fp8"}}, {}, "its weights are quantised"),
    "layers without end": ({"text_config": {"num_hidden_layers": 10**9}}, {}, "at most 1,024 layers"),
    "settings that contradict": ({"text_config": {"num_attention_heads": "two"}}, {}, "num_attention_heads must be"),
    "no window": ({"text_config": {"sliding_window": 0}}, {}, "sliding_window .* from 1 to .* .got 0"),
    "unequal groups": ({"use_ordered_embeddings": True, "num_centroids": 60}, {}, "divide its 320 tokens .got 60"),
    "no groups": ({"use_ordered_embeddings": True, "num_centroids": 0}, {}, "num_centroids .* from 1 to 320 .got 0"),
    "more groups than there are": (
        {"use_ordered_embeddings": True, "num_centroids": 4, "centroid_intermediate_top_k": 5},
        {},
        "centroid_intermediate_top_k .* from 1 to 4 .got 5",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_assistant_that_does_not_fit_is_refused_in_words(name):
    config, sizes, words = REFUSED[name]
    fitting = tiny_target(vocab_size=320)
    state = dict(tiny_assistant(fitting).state_dict())
    values = settings_of(fitting)
    values |= config | {"text_config": values["text_config"] | config.get("text_config", {})}
    with pytest.raises(SpecvizError, match=words):
        read(values, state, loaded(tiny_target(**{"vocab_size": 320, **sizes})))


def test_a_target_of_another_family_is_refused_with_both_kinds():
    state = dict(tiny_assistant(tiny_target()).state_dict())
    with pytest.raises(SpecvizError, match=r"a target of the kind gemma4_text \(got llama\)"):
        read(settings_of(tiny_target()), state, loaded(tiny("llama", vocab_size=320)))


def test_an_order_that_names_a_token_twice_is_refused():
    model, assistant = pair(ordered=True, vocab_size=320)
    state = {name: each.clone() for name, each in assistant.state_dict().items()}
    state["masked_embedding.token_ordering"][3] = state["masked_embedding.token_ordering"][4]
    with pytest.raises(SpecvizError, match="token_ordering must lead to 320 different ids"):
        read(settings_of(model, ordered=True), state, loaded(model))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda state: state.pop("pre_projection.weight"), "it lacks 1 tensor .'pre_projection.weight'."),
        (lambda state: state.pop("model.embed_tokens.weight"), "it lacks 1 tensor .'model.embed_tokens.weight'."),
        (lambda state: state.update(more=torch.ones(2)), "holds 1 tensor .'more'. that specviz has no use for"),
        (
            lambda state: state.update({"post_projection.weight": torch.ones(2, 2)}),
            "post_projection.weight must be of the shape 16 x 12 .got 2 x 2",
        ),
    ],
    ids=["missing", "no table", "unknown", "misshapen"],
)
def test_tensors_that_are_not_the_assistants_are_refused_by_name(tmp_path, change, words):
    model, assistant = pair(vocab_size=320)
    state = {name: each for name, each in assistant.state_dict().items() if name != "lm_head.weight"}
    change(state)
    folder = folder_of(tmp_path / "h", settings_of(model), state)
    with pytest.raises(SpecvizError, match=words):
        load_heads(None, folder, "assistant", loaded(model))


def test_the_layers_that_it_reads_are_the_last_of_their_kind_that_store():
    model, assistant = pair(
        vocab_size=320, num_hidden_layers=6, layer_types=["sliding_attention", "full_attention"] * 3
    )
    assert _find_layers(assistant, loaded(model)) == {"sliding_attention": 4, "full_attention": 5}
    model = tiny_target(vocab_size=320, num_kv_shared_layers=2)
    assert _find_layers(assistant, loaded(model)) == {"sliding_attention": 0, "full_attention": 1}
