"""Tiny targets with MTP modules."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

MtpModel = pytest.importorskip("transformers.modeling_layers").MtpModel


def tiny_target(family="glm4_moe", vocab_size=16, modules=3, dtype=torch.float32, **config):
    """A random mixture-of-experts model whose configuration names `modules` modules."""
    values = {
        "vocab_size": vocab_size,
        "hidden_size": 16,
        "intermediate_size": 32,
        "moe_intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "n_routed_experts": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 128,
        "initializer_range": 0.3,
        "num_mtp_layers": modules,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **values | config)).to(dtype).eval()
    model.set_experts_implementation("eager")  # the grouped one has no float64
    return model.requires_grad_(False)


def tiny_modules(target, modules=3):
    torch.manual_seed(6)
    made = MtpModel(target, modules).to(target.dtype).eval()
    for name, tensor in made.layers.state_dict().items():  # norms of ones would hide a swap of two of them
        tensor.uniform_(0.5, 1.5) if name.endswith("norm.weight") else tensor.normal_(std=0.3)
    return made.requires_grad_(False)
