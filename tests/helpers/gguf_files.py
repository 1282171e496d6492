"""Tiny GGUF files, written by the gguf package as llama.cpp's converter would."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerFast

Q8_0 = gguf.GGMLQuantizationType.Q8_0
F32 = gguf.GGMLQuantizationType.F32
CONTROL, NORMAL = 3, 1


def write_gguf(
    place: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    *,
    arch: str | None = None,
    form: gguf.GGMLQuantizationType = Q8_0,
    split_count: int | None = None,
    **more: np.ndarray,
) -> Path:
    """The model with its matrices in the format `form`. arch: the architecture that the file names; split_count: of how
    many parts it says that it is one; more: tensors that it adds."""
    config, family = model.config, model.config.model_type
    writer = gguf.GGUFWriter(str(place), arch or family)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_rope_dimension_count(head_dim)
    if family == "gemma2":
        writer.add_key_length(head_dim)
        writer.add_sliding_window(config.sliding_window)
    _add_tokenizer(writer, tokenizer)
    for name, values in tensors_of(model).items():
        _add(writer, name, values, form)
    if split_count is not None:
        writer.add_uint16("split.count", split_count)
    for name, values in more.items():
        writer.add_tensor(name.replace("__", "."), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return place


def tensors_of(model: PreTrainedModel) -> dict[str, np.ndarray]:
    """The weights under GGUF's names and in its layout."""
    config, family = model.config, model.config.model_type
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == family)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    made = {}
    for name, parameter in model.named_parameters():
        stem, _, suffix = name.rpartition(".")
        values = parameter.detach().float().numpy()
        if family == "llama" and stem.endswith(("q_proj", "k_proj")):
            heads = config.num_attention_heads if stem.endswith("q_proj") else config.num_key_value_heads
            values = values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        if family == "gemma2" and stem.endswith("norm"):
            values = values + 1
        made[f"{names.get_name(stem)}.{suffix}"] = np.ascontiguousarray(values)
    return made


def _add(writer: gguf.GGUFWriter, name: str, values: np.ndarray, form: gguf.GGMLQuantizationType) -> None:
    if values.ndim == 1:
        writer.add_tensor(name, values)
    else:
        writer.add_tensor(name, gguf.quantize(values, form), raw_dtype=form)


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: PreTrainedTokenizerFast) -> None:
    tokens = [tokenizer.convert_ids_to_tokens(token) for token in range(len(tokenizer))]
    merges = tokenizer.backend_tokenizer.to_str()
    pairs = json.loads(merges)["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([CONTROL if token in tokenizer.all_special_tokens else NORMAL for token in tokens])
    writer.add_token_merges([" ".join(pair) if isinstance(pair, list) else pair for pair in pairs])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_add_bos_token(False)
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)
