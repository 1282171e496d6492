"""Tiny Gemma 4 targets and assistants for them, and transformers' own drafts of such a pair."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.generation import candidate_generator

from tests.helpers.tiny_classes import spread

if "gemma4_assistant" not in CONFIG_MAPPING:
    pytest.skip("this transformers knows no assistant", allow_module_level=True)

WINDOW = 6
MIXED = ["sliding_attention", "full_attention"] * 2
SIZES = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 4,
    "layer_types": MIXED,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "global_head_dim": 16,
    "sliding_window": WINDOW,
    "max_position_embeddings": 512,
    "hidden_size_per_layer_input": 4,
    "vocab_size_per_layer_input": 32,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def tiny_target(vocab_size=32, dtype=torch.float32, seed=5, family="gemma4_text", **config):
    """A random target; with num_kv_shared_layers its last layers store no keys and values of their own."""
    own = {"vocab_size": vocab_size, "vocab_size_per_layer_input": vocab_size}
    if "unified" in family:
        own = {"vocab_size": vocab_size}
        config = {name: each for name, each in SIZES.items() if "per_layer" not in name} | own | config
    return _made(AutoConfig.for_model(family, **SIZES | own | config), dtype, seed)


def settings_of(target, *, layers=2, ordered=False, **config):
    """config.json of an assistant that is narrower than its target, of another depth and with another window."""
    text = json.loads(target.config.to_json_string(use_diff=False))
    own = text["per_layer_config"]  # of every second layer, as in MIXED
    text["per_layer_config"] = {layer: sizes for layer, sizes in own.items() if int(layer) < layers}
    text |= {"hidden_size": 12, "intermediate_size": 24, "num_hidden_layers": layers, "layer_types": MIXED[-layers:]}
    text |= {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0, "num_kv_shared_layers": layers}
    text |= {"head_dim": 8, "num_attention_heads": 2}
    kind = target.config.model_type.replace("_text", "_assistant")
    groups = {"num_centroids": 4, "centroid_intermediate_top_k": 2} if ordered else {}
    whole = {"model_type": kind, "backbone_hidden_size": target.config.hidden_size, "text_config": text}
    return {**whole, "use_ordered_embeddings": ordered, **groups, **config}


def tiny_assistant(target, *, seed=6, **config):
    values = settings_of(target, **config)
    made = _made(CONFIG_MAPPING[values["model_type"]].from_dict(values), target.dtype, seed)
    if made.config.use_ordered_embeddings:
        order = torch.randperm(target.config.vocab_size, generator=torch.Generator().manual_seed(seed))
        made.masked_embedding.token_ordering.copy_(order)
    return made


def _made(config, dtype, seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        spread(model)
    return model.to(dtype).eval().requires_grad_(False)


def transformers_draft(target, assistant, tokens, k):
    """The ids and logits [k, V] that transformers' own generator of candidates drafts behind a text.

    The target has read all tokens but the last in one pass, as before the first draft of `generate`.
    """
    generator = candidate_generator.SinglePositionMultiTokenCandidateGenerator(
        assistant, target.get_input_embeddings(), GenerationConfig(max_length=len(tokens) + k + 1)
    )
    generator.num_assistant_tokens = k
    asked = generator.model_kwargs_overrides
    with torch.no_grad():
        read = target(torch.tensor([tokens[:-1]]), use_cache=True, **asked)
        ids, logits = generator.get_candidates(
            torch.tensor([tokens]),
            model_kwargs={},
            model_outputs=read,
            is_first_iteration=False,
            n_last_matches=0,
        )
    return ids[0, len(tokens) :].tolist(), logits[0]


@torch.no_grad()
def fed_logits(target, assistant, tokens, drafted):
    """transformers' logits [len(drafted), V] behind a text and all drafted tokens but the last, whoever chose these."""
    asked = candidate_generator.SinglePositionMultiTokenCandidateGenerator.model_kwargs_overrides
    read = target(torch.tensor([tokens[:-1]]), use_cache=True, **asked)
    state, embed, rows = read.hidden_states[-1][:, -1:], target.get_input_embeddings(), []
    for token in [tokens[-1], *drafted[:-1]]:
        out = assistant(
            inputs_embeds=torch.cat([embed(torch.tensor([[token]])), state], dim=-1),
            position_ids=torch.tensor([[len(tokens) - 1]]),
            shared_kv_states=read.shared_kv_states,
        )
        state = out.last_hidden_state
        rows.append(out.logits[0, 0])
    return torch.stack(rows)
