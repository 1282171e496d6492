"""Multi-token prediction: q against a slow direct computation without a cache, the text's law, loading, refusals.

Tiny random models in the layout of transformers; modules, norms and the decoder layer are called one by one here.
"""

from functools import cache
from itertools import cycle

import pytest
import torch
from safetensors.torch import load_file, save_file

from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.drafter import Context
from specviz.decoding.draws import Seeded
from specviz.decoding.engine import Plan, speculate
from specviz.decoding.sampling import Sampling
from specviz.drafters.method import Part
from specviz.drafters.mtp import METHOD, MtpDrafter
from specviz.drafters.mtp import modules as mtp_modules
from specviz.drafters.mtp.modules import Modules
from specviz.drafters.none import NoDraft
from specviz.drafters.policy import Confidence, Heuristic
from specviz.errors import SpecvizError
from specviz.models.pool import ModelPool
from specviz.rules import RULES
from specviz.session.setup import gather
from tests.helpers.mtp_targets import MtpModel, tiny_modules, tiny_target
from tests.helpers.tiny_models import tiny_tokenizer

if not hasattr(MtpModel, "forward_layer"):
    pytest.skip("this transformers runs no single modules", allow_module_level=True)
RULE = RULES["speculative_sampling"]
PROMPT = [1, 2, 0, 1]


@cache
def pair(vocab_size=16, dtype=torch.float32):
    target = tiny_target(vocab_size=vocab_size, dtype=dtype)
    return target, tiny_modules(target)


def drafter_of(target, modules, policy=None):
    return MtpDrafter(Modules(modules, target.config.vocab_size, 128), policy)


@torch.no_grad()
def direct(target, modules, tokens, drafted):
    """Logits [len(drafted), V] behind the text and all drafted tokens but the last, from the paper's definition.

    Module l at i: layer(W [norm(embedding of token i+l+1); norm(state of module l-1 at i)]), every row anew.
    """
    base, rows = target.model, []
    states = base(torch.tensor([tokens[:-1]])).last_hidden_state
    length = states.shape[1]
    blocked = torch.full((length, length), torch.finfo(states.dtype).min, dtype=states.dtype).triu(1)[None, None]
    for index in range(len(drafted)):
        layer = modules.layers[index]
        read = torch.tensor([[*tokens, *drafted][index + 1 : index + 1 + length]])
        joined = torch.cat([layer.enorm(base.embed_tokens(read)), layer.hnorm(states)], dim=-1)
        positions = torch.arange(index + 1, index + 1 + length)[None]
        kind = {"layer_type": modules.config.layer_types[index]} if hasattr(modules.config, "layer_types") else {}
        states = layer.mtp_block(
            layer.eh_proj(joined),
            attention_mask=blocked,
            position_ids=positions,
            position_embeddings=base.rotary_emb(joined, positions, **kind),
        )
        states = layer.post_norm(states)
        rows.append(target.lm_head(states[0, -1]))
    return torch.stack(rows)


def steps_of(plan, max_new_tokens, seed=3, prompt=PROMPT):
    return list(speculate(prompt, plan, Seeded(seed), max_new_tokens=max_new_tokens))


def assert_rows_are_direct(target, modules, steps, prompt=PROMPT):
    text, num_drafts = list(prompt), 0
    for step in steps:
        if len(step.draft):
            expected = direct(target, modules, text, step.draft.tokens)
            torch.testing.assert_close(torch.stack(step.draft.logits), expected, atol=2e-4, rtol=2e-4)
            num_drafts += 1
        text += step.tokens
    return num_drafts


def test_q_is_the_modules_own_distribution_through_rejections_k_changes_and_a_switch_away():
    target, modules = pair()
    lm, mine, other = CachedLM(target, 128), drafter_of(target, modules), NoDraft()
    plans = cycle(
        Plan(lm, drafter, RULE, Sampling(), k)
        for drafter, ks in ((mine, (3, 3, 1, 1, 3)), (other, (2, 2)), (mine, (2, 2, 9)))
        for k in ks
    )
    steps = steps_of(lambda: next(plans), 60)
    kept = [len(step.verdict.path) for step in steps]
    assert assert_rows_are_direct(target, modules, steps) > 15
    assert {0, 1} <= set(kept)  # rejections, and tokens that were kept
    assert {len(step.draft) for step in steps} == {0, 1, 2, 3}


def test_after_full_accepts_the_rows_that_were_made_with_drafted_tokens_are_kept_and_right():
    target = tiny_target()
    target.lm_head.weight.zero_()  # every token is as likely as any other, and the first one is taken
    modules = tiny_modules(target)
    lm, mine = CachedLM(target, 128), drafter_of(target, modules)
    steps = steps_of(lambda: Plan(lm, mine, RULE, Sampling(temperature=0), 3), 24)
    assert [len(step.verdict.path) for step in steps] == [0, 3, 3, 3, 3, 3, 2]
    assert_rows_are_direct(target, modules, steps)
    assert mine.work.fed <= sum(len(PROMPT) + 1 + 4 * 6 for _ in range(3))  # each module reads every token once


@torch.no_grad()
def test_along_a_text_every_module_gives_what_it_drafts_where_the_text_itself_is_drafted():
    target, modules = pair()
    tokens = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5, 3])
    states = target(tokens[None], output_hidden_states=True).hidden_states[-1][0]
    starts = torch.arange(2, 8)
    found = [rows for rows, _ in drafter_of(target, modules).along(tokens, states)(starts, 5)]
    assert len(found) == 3
    for place, start in enumerate(starts.tolist()):
        text = tokens.tolist()
        expected = direct(target, modules, text[:start], text[start : start + 3])
        told = torch.stack([rows[place] for rows in found[: len(expected)]])
        assert torch.allclose(told, expected, atol=1e-4)


@pytest.mark.parametrize("policy", [Heuristic(), Confidence(0.3)], ids=lambda policy: policy.name)
def test_a_policy_shortens_the_draft_and_nothing_is_read_twice(policy):
    target, modules = pair()
    lm, mine = CachedLM(target, 128), drafter_of(target, modules, policy)
    steps = steps_of(lambda: Plan(lm, mine, RULE, Sampling(), 3), 80)
    assert assert_rows_are_direct(target, modules, steps) > 10
    assert {len(step.draft) for step in steps} > {0, 1}
    assert steps[1].draft.evidence.keys() == {"k", "policy", "modules"}
    assert mine.work.fed <= 3 * (84 + 3 * len(steps))  # each module reads every token once, and what was redone


def test_the_first_draft_is_the_one_of_transformers_own_forward():
    from transformers.cache_utils import MtpCache

    target, modules = pair()
    lm, mine = CachedLM(target, 128), drafter_of(target, modules)
    steps = steps_of(lambda: Plan(lm, mine, RULE, Sampling(temperature=0), 3), 12)
    text = [*PROMPT, *steps[0].tokens]
    with torch.no_grad():
        states = target.model(torch.tensor([text[:-1]])).last_hidden_state
        drafted, *_ = modules(torch.tensor([text[1:]]), states, None, torch.arange(1, len(text))[None], MtpCache())
    assert steps[1].draft.tokens == tuple(drafted[0].tolist())


def test_another_list_of_tokens_is_another_text():
    target, modules = pair()
    lm, mine = CachedLM(target, 128), drafter_of(target, modules)
    for prompt in (PROMPT, [3, 1, 4, 1, 5, 9], PROMPT):
        steps = steps_of(lambda: Plan(lm, mine, RULE, Sampling(), 3), 12, prompt=prompt)
        assert assert_rows_are_direct(target, modules, steps, prompt)


def test_the_same_step_asked_again_is_the_same_draft():
    target, modules = pair()
    mine, states = drafter_of(target, modules), target.model(torch.tensor([PROMPT[:-1]])).last_hidden_state[0]
    context = Context(PROMPT, Sampling(), Seeded(0), 16, states)
    one, two = mine.draft(context, 3), mine.draft(context, 3)
    assert one.tokens == two.tokens
    torch.testing.assert_close(one.logits, two.logits)


def test_an_interrupted_draft_leaves_nothing_wrong_behind():
    """Its rows were made with tokens that nobody knows; the text goes on as the draft before it had said."""
    target, modules = pair()
    mine, text = drafter_of(target, modules), list(PROMPT)

    def draft(seed):
        states = target.model(torch.tensor([text[:-1]])).last_hidden_state[0]
        return mine.draft(Context(text, Sampling(), Seeded(seed), 16, states), 3)

    said = draft(seed=0).tokens
    text.append(7)
    settle, mine._lm.settle = mine._lm.settle, None
    with pytest.raises(TypeError):
        draft(seed=1)
    mine._lm.settle = settle
    text.extend(said)
    after = draft(seed=2)
    torch.testing.assert_close(
        torch.stack(after.logits), direct(target, modules, text, after.tokens), atol=2e-4, rtol=2e-4
    )


def tiny_checkpoint(folder):
    """A model with one module, its weights as the public Mellum checkpoints call them; returns the modules too."""
    tokenizer = tiny_tokenizer()
    target = tiny_target("mellum", len(tokenizer), 1, mtp_layer_types=["full_attention"])
    modules = tiny_modules(target, 1)
    target.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    names = {
        "eh_proj.": "fc.",
        "enorm.": "pre_fc_norm_embedding.",
        "hnorm.": "pre_fc_norm_hidden.",
        "post_norm.": "norm.",
    }
    state = load_file(folder / "model.safetensors")
    for name, tensor in modules.layers[0].state_dict().items():
        for ours, theirs in names.items():
            name = name.replace(ours, theirs) if name.startswith(ours) else name
        name = name.replace("mtp_block.", "layers.0.")
        if "experts." in name:
            state |= split_experts(f"mtp.{name}", tensor)
        else:
            state[f"mtp.{name}"] = tensor.clone()
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    return modules


def split_experts(name, tensor):
    """One tensor per expert, as checkpoints have them."""
    before, _, after = name.rpartition(".")
    halves = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}[after]
    return {
        f"{before}.{expert}.{half}.weight": part.clone()
        for expert, rows in enumerate(tensor)
        for half, part in zip(halves, rows.chunk(len(halves)), strict=True)
    }


def test_modules_come_from_the_models_own_checkpoint(tmp_path):
    modules = tiny_checkpoint(tmp_path)
    loaded = ModelPool(allow_any=True).load(str(tmp_path))
    setup = gather(METHOD, {}, loaded, None)
    lm = loaded.cached_lm()
    mine = setup.drafter(lm)
    steps = steps_of(lambda: Plan(lm, mine, RULE, Sampling(), 3), 24)
    assert assert_rows_are_direct(loaded.model, modules, steps)
    assert mtp_modules.modules_of(Part("x", lm, loaded.cached_lm)) is mine._lm._model


def test_a_checkpoint_without_them_is_refused_in_words(tmp_path):
    tokenizer = tiny_tokenizer()
    target = tiny_target("mellum", len(tokenizer), 1)
    target.save_pretrained(tmp_path / "bare")
    tokenizer.save_pretrained(tmp_path / "bare")
    loaded = ModelPool(allow_any=True).load(str(tmp_path / "bare"))
    with pytest.raises(SpecvizError, match="modules of bare for multi-token prediction could not be loaded") as caught:
        gather(METHOD, {}, loaded, None).drafter(loaded.cached_lm())
    assert str(tmp_path) not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"), [("more", "it holds 1 tensor "), ("less", "the checkpoint lacks 1 tensor ")]
)
def test_modules_of_another_layout_are_refused_with_their_tensors_names(tmp_path, change, words):
    tiny_checkpoint(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    norm = state["mtp.norm.weight"] if change == "more" else state.pop("mtp.norm.weight")
    state |= {"mtp.layers.0.extra_norm.weight": norm.clone()} if change == "more" else {}
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded = ModelPool(allow_any=True).load(str(tmp_path))
    with pytest.raises(SpecvizError, match=words):
        gather(METHOD, {}, loaded, None).drafter(loaded.cached_lm())


def test_a_model_without_modules_is_refused():
    plain = tiny_target(modules=0)
    with pytest.raises(SpecvizError, match="plain has no modules for multi-token prediction"):
        mtp_modules.modules_of(Part("plain", CachedLM(plain, 128), lambda: CachedLM(plain, 128)))


def test_a_transformers_that_cannot_run_single_modules_is_refused(monkeypatch):
    monkeypatch.delattr(MtpModel, "forward_layer")
    target = tiny_target()
    with pytest.raises(SpecvizError, match="install a later one"):
        mtp_modules.modules_of(Part("x", CachedLM(target, 128), lambda: CachedLM(target, 128)))
