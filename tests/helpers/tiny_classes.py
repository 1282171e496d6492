"""A tiny random model of every class of transformers that continues a text, in float32, and what each is called.

Configurations are shrunk by the names of their fields; a class that needs numbers of its own has them in `OWN`. The
weights are spread, so that greedy texts vary and every layer counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

IDS = 320
PADDING = 1
WINDOW = 16
POSITIONS = 256
LAYERS = 4
MOST_PARAMETERS = 4_000_000
HIDDEN, HEADS, HEAD_SIZE = 64, 4, 16

SIZES = {
    r"max_position_embeddings|n_positions|n_ctx|max_seq_len|max_target_positions|context_length|seq_len": POSITIONS,
    r"model_max_length|max_source_positions|prompt_length": POSITIONS,
    r"type_vocab_size|task_type_vocab_size": 2,
    r".*vocab.*": IDS,
    r"(n|num)_(hidden_)?layers?|depth|(encoder|decoder)_(num_)?layers|num_(encoder|decoder)_layers|num_blocks": LAYERS,
    r"num_layers_per_stack|.*_num_hidden_layers|layers": LAYERS,
    r"(linear_)?num_(key_value|kv|key|value)_heads|kv_n_heads|.*_num_(key_value|key|value)_heads": 2,
    r".*(attention_heads|n_heads?|num_heads|resampler_heads)|attention_heads": HEADS,
    r"(.*_)?head_dim|attention_head_(dim|size)|d_kv|d_head|kv_channels|dim_head|.*_(headdim|d_head)": HEAD_SIZE,
    r"rotary_dim": 8,
    r".*_rank|hc_lowrank": 16,
    r"base_channels": 32,
    r"num_res_blocks|num_lstm_layers": 1,
    r"(sliding|attention|keep)_window(_size)?|attention_chunk_size|local_attention|window_size|index_topk": WINDOW,
    r"(lsh|local)_attn_chunk_length|block_size|index_block_size": 8,
    r"(n_routed|num|num_local|moe_num)_experts|zero_expert_num": 4,
    r"n_group|topk_group|num_expert_group|moe_num_shared_experts|n_shared_experts": 1,
    r"num_experts_per_tok(en)?|moe_top_?k|moe_k|top_k_experts": 2,
    r"first_k_dense_replace|num_dense_layers": 1,
    r"mamba_(n|num)_heads|n_mamba_heads": HEADS,
    r".*(d_state|state_size)|.*chunk_size": 16,
    r".*(intermediate|ffn|ff_|feed_forward|mlp)_?(size|dim|hidden_size|intermediate_size)(_mlp)?|d_ff|dff|n_inner": 2
    * HIDDEN,
    r"d_inner|mlp_dim|dim_ff|.*_multiple_size": 2 * HIDDEN,
    r"image_size|resolution|crop_size|.*_img_size|.*_image_size": 32,
    r"patch_size": 8,
    r"query_pre_attn_scalar": HEAD_SIZE,
    r".*(hidden_size.*|n_embd|d_model|_dim|_size|width|channels?|features?)|dim|hidden_dim": HIDDEN,
}
"""Pattern of a field's name -> the most that it may be; the first that matches counts."""
NEVER_GIVEN = ("transformers_version", "architectures", "id2label", "label2id", "problem_type")
LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "depth", "encoder_layers")


ROPE = {"rope_type": "default", "rope_theta": 10000.0}
MROPE = {"rope_parameters": {**ROPE, "mrope_section": [2, 3, 3]}}
HALF_MROPE = {"rope_parameters": {**ROPE, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}}
MIXED = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
DECODER = {"is_decoder": True}
GEMMA3N = {
    "num_kv_shared_layers": 2,
    "layer_types": MIXED,
    "intermediate_size": 128,
    "activation_sparsity_pattern": [0.5, 0.0, 0.5, 0.0],
}
ASSISTANT = {
    "first": {
        "text_config": {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0, "num_kv_shared_layers": 30}
    },
    "text_config": {"num_kv_shared_layers": 4},
}
NEMOTRON_H = {"mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2}
DOTS3 = {
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 4,
    "swa_q_lora_rank": 16,
    "swa_kv_lora_rank": 16,
    "swa_head_dim": 32,
    "swa_qk_nope_head_dim": 16,
    "swa_v_head_dim": 16,
}
QWEN4 = {
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 16,
    "indexer_compress_ratio": 4,
}
OWN: dict[str, dict[str, Any]] = {
    "apertus1p5": {
        "image_token_offset": 100,
        "audio_token_offset": 164,
        "vision_config": {"codebook_size": 64},
        "audio_config": {"codebook_size": 64, "num_filters": 4, "hidden_size": 64, "codebook_dim": 64},
    },
    "bamba": {"mamba_d_head": 32, "attn_layer_indices": [1, 3]},
    "blenderbot": {"encoder_layers": 4, "decoder_layers": 4},
    "chameleon": {"vocabulary_map": {"<image>": 300}},
    "cohere_compass_text": {"rope_parameters": {"full_attention": MROPE["rope_parameters"]}},
    "cohere_compass": {"text_config": {"rope_parameters": {"full_attention": MROPE["rope_parameters"]}}},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0, "kv_n_heads": 2}},
    "deepseek_ocr2": {"text_config": {"num_experts_per_tok": 2, "mlp_layer_types": ["dense", "sparse"] * 2}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "diffusion_gemma": {"text_config": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 64}},
    "dory": {"n_input_layers": 1, "n_output_layers": 1, "n_recurrent_layers": 2},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1},
    "ernie4_5_vl_moe": {
        "text_config": {
            "moe_intermediate_size": [64, 64],
            "rope_parameters": {**ROPE, "mrope_section": [3, 3, 2]},
        }
    },
    "gemma3n_text": GEMMA3N,
    "gemma3n": {"text_config": GEMMA3N},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granite4_vision": {"deepstack_layer_map": [[-1, 0]], "downsample_rate": "2/4"},
    "granitemoehybrid": {"mamba_d_head": 32, "layer_types": ["linear_attention", "full_attention"] * 2},
    "hrm_text": {"embedding_scale": 1.0, "H_cycles": 1, "L_cycles": 1},  # many passes make much of rounding
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "hunyuan_vl": {
        "text_config": {"head_dim": 16, "rope_parameters": {**ROPE, "mrope_section": [2, 2, 2, 2]}},
    },
    "janus": {"vq_config": {"base_channels": 32, "num_embeddings": 64}},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    "lfm2_vl": {"text_config": {"layer_types": ["conv", "full_attention", "conv", "full_attention"]}},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    "longcat_flash": {"qk_nope_head_dim": 16},
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 2},
    "molmo2": {"adapter_config": {"vision_feature_layer": [3, 2]}},
    "nemotron_h_omni": {"vision_config": {"video_temporal_patch_size": 2}, "text_config": NEMOTRON_H},
    "gemma4_assistant": ASSISTANT,
    "gemma4_unified_assistant": ASSISTANT,
    "dots3_note_text": DOTS3,
    "dots3_note": {"text_config": DOTS3},
    "zamba": {"layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"]},
    "muse_spark": {"audio_config": {"hidden_sizes": [16, 32, 64, 64], "out_hidden_size": 64}},
    "ministral": {"head_dim": 16},
    "nemotron": {"head_dim": 16, "num_key_value_heads": 2},
    "nemotron_h": NEMOTRON_H,
    "qwen4_exp_text": QWEN4,
    "qwen4_exp": {"text_config": QWEN4},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 151652, "audio_start_token_id": 151669},
    "reformer": {"is_decoder": True, "axial_pos_embds_dim": [32, 32], "axial_pos_shape": [16, 16]},
    "step3p7": {"text_config": {"sliding_window": 16}},
    "xlstm": {"num_heads": 4, "qk_dim_factor": 1.0},
    "xmod": {"default_language": "en_XX"},
    "glm46v": {"text_config": HALF_MROPE},
    "glm4v": {"text_config": HALF_MROPE},
    "glm4v_moe": {"text_config": HALF_MROPE},
    "glm_ocr": {"text_config": HALF_MROPE},
    "glmga": {"text_config": HALF_MROPE},
    "paddleocr_vl": {"text_config": MROPE},
    "qwen2_5_omni_thinker": {"text_config": MROPE, "vision_start_token_id": 151652, "audio_start_token_id": 151647},
    "qwen2_5_vl": {"text_config": MROPE},
    "qwen2_vl": {"text_config": MROPE},
    "bert:decoder": DECODER,
    "bert-generation:decoder": DECODER,
    "big_bird:decoder": DECODER,
    "camembert:decoder": DECODER,
    "data2vec-text:decoder": DECODER,
    "electra:decoder": DECODER,
    "ernie:decoder": DECODER,
    "megatron-bert:decoder": DECODER,
    "rembert:decoder": DECODER,
    "roberta:decoder": DECODER,
    "roberta-prelayernorm:decoder": DECODER,
    "roc_bert:decoder": DECODER,
    "roformer:decoder": DECODER,
    "xlm-roberta:decoder": DECODER,
    "xlm-roberta-xl:decoder": DECODER,
    "xmod:decoder": {**DECODER, "default_language": "en_XX"},
    "qwen2:windows": {"use_sliding_window": True, "sliding_window": 16, "layer_types": MIXED},
    "falcon:alibi": {"alibi": True},
    "falcon:old": {"new_decoder_architecture": False, "multi_query": False, "alibi": True},
    "gemma4_text:shared": {"num_kv_shared_layers": 2, "layer_types": MIXED},
}
"""Model type, or model type and setting -> values under which a class can be made so small."""

CANNOT: dict[str, str] = {
    "evolla": "AutoModelForImageTextToText does not know its class",
    "fast_vlm": "its image half is in the package timm",
    "gemma3n": "its image half is in the package timm",
    "musicgen": "AutoModelForCausalLM cannot make it from its own configuration",
    "musicgen_melody": "AutoModelForCausalLM cannot make it from its own configuration",
    "shieldgemma2": "transformers does not load again what it saves of it, as it is saved as a Gemma 3",
    "perception_lm": "its image half is in the package timm",
}
"""Model type -> why no tiny model of it can be made."""


def names() -> list[str]:
    """All kinds, without importing any: those that continue a text, then the others that answer about images."""
    first = dict.fromkeys([*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES])
    settings = [name for name in OWN if ":" in name]
    return [name for name in [*first, *settings] if name not in CANNOT]


def answers_about_images(name: str) -> bool:
    return _model_type(name) not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def tiny_of(name: str, seed: int = 1) -> PreTrainedModel:
    """A random model in eval mode. Raises ValueError where it would be large after all."""
    auto = AutoModelForImageTextToText if answers_about_images(name) else AutoModelForCausalLM
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in auto.from_config(_config(name)).parameters())
    if size > MOST_PARAMETERS:
        raise ValueError(f"{name} would have {size:,} parameters")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = auto.from_config(_config(name), dtype=torch.float32).eval()
        spread(model)
    return model


def _model_type(name: str) -> str:
    return name.partition(":")[0]


def _config(name: str) -> PreTrainedConfig:
    config_class, own = CONFIG_MAPPING[_model_type(name)], dict(OWN.get(name, {}))
    default = config_class(**own.pop("first", {}))
    return config_class(**_merged(_small(default), own))


@torch.no_grad()
def spread(model: PreTrainedModel) -> None:
    """Draws all weights wide, and moves each bias, gain and gate a little from where it starts."""
    for name, weight in model.named_parameters():
        noise = torch.randn_like(weight)
        if weight.dim() < 2:
            weight += 0.1 * noise
            continue
        scale = 1 if any(part in name for part in ("embed", "wte", "wpe")) else 3 if "head" in name else 2.5
        weight.copy_(noise * scale / weight.shape[-1] ** 0.5)


def _small(config: PreTrainedConfig, *, whole: bool = False) -> dict[str, Any]:
    """The values that make this configuration, and those inside it, tiny. whole: with those that stay as they are, for
    one whose holder has other defaults than its class."""
    stored, alias = vars(config), config.attribute_map
    given = {each.name: stored.get(alias.get(each.name, each.name)) for each in fields(config)}
    depth = next((given[name] for name in LAYER_COUNTS if isinstance(given.get(name), int)), 0)
    chosen = _chosen_layers(given, depth)
    values = {name: _small_value(name, value, depth, chosen) for name, value in given.items()}
    for name in LAYER_COUNTS:
        if given.get(name) == depth and depth > len(chosen):
            values[name] = len(chosen)
    _keep_every_head(given, values)
    worked_out = {each.name for each in fields(config) if each.default is None and type(given[each.name]) is int}
    kept = {name for name in given if whole and given[name] is not None and name not in NEVER_GIVEN}
    changed = {name for name in given if values[name] != given[name]}
    return {name: values[name] for name in given if name in (kept | changed) - worked_out}


def _small_value(name: str, value: Any, depth: int, chosen: Sequence[int]) -> Any:
    if isinstance(value, PreTrainedConfig):
        return {"model_type": value.model_type, **_small(value, whole=True)}
    if name.endswith(("pad_token_id", "padding_idx")):
        return None if value is None else PADDING
    if name == "eos_token_id":  # texts of full length
        return None
    if name == "bos_token_id":
        return None if value is None else PADDING
    if name == "rope_parameters" and isinstance(value, dict):
        return _small_rope(value)
    if isinstance(value, (list, tuple)):
        return _small_list(value, depth, chosen)
    if type(value) is int:
        return min(value, _limit(name, value))
    return value


def _limit(name: str, value: int) -> int:
    if name.endswith(("_id", "_index", "_ids", "_offset")):
        return value
    return next((most for pattern, most in SIZES.items() if re.fullmatch(pattern, name)), value)


def _small_list(values: list[Any] | tuple[Any, ...], depth: int, chosen: Sequence[int]) -> list[Any] | tuple[Any, ...]:
    whole = all(type(value) is int for value in values)
    if not values:
        return values
    if whole and list(values) == list(range(depth)):
        return type(values)(range(len(chosen)))
    if depth > 1 and len(values) == depth:
        return type(values)(values[layer] for layer in chosen)
    if (
        whole and depth and list(values) == sorted(set(values)) and len(chosen) <= max(values) < depth
    ):  # layers' numbers
        return type(values)(range(min(len(values), len(chosen))))
    if whole and max(values, default=0) > HIDDEN:
        return type(values)(min(value, HIDDEN) for value in values)
    return values


def _small_rope(settings: Mapping[str, Any]) -> dict[str, Any]:
    small = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            value = _small_rope(value)
        elif name == "mrope_section":
            value = [4, 2, 2]
        elif name == "original_max_position_embeddings":
            value = POSITIONS
        small[name] = value
    return small


def _chosen_layers(given: Mapping[str, Any], depth: int) -> list[int]:
    """The layers to keep: the first of every kind, the last, and the first ones beside them."""
    lists = [v for v in given.values() if isinstance(v, (list, tuple)) and len(v) == depth]
    kinds = [tuple(map(str, each)) for each in zip(*lists, strict=True)] or [()] * depth
    if len(set(kinds)) > 2 * LAYERS:
        kinds = [()] * depth
    first = {kinds.index(kind) for kind in kinds}
    others = [layer for layer in range(depth) if layer not in first]
    room = max(0, min(LAYERS, depth) - len(first))
    return sorted(first | {*others[-1:][:room], *others[: max(0, room - 1)]})


def _keep_every_head(given: Mapping[str, Any], values: dict[str, Any]) -> None:
    """As many heads of keys as of queries where the class has it so."""
    heads = given.get("num_attention_heads")
    if heads is not None and given.get("num_key_value_heads") == heads:
        values["num_key_value_heads"] = values["num_attention_heads"]


def _merged(values: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(values)
    for name, value in own.items():
        inside = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = _merged(merged[name], value) if inside else value
    return merged
