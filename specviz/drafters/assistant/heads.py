"""Gemma 4's assistant in transformers' own class, read from a checkpoint for its target.

Every layer of it attends to the keys and values of the target's last layer that has its kind of attention and stores
rows. SpecvizError for an assistant that does not fit the target.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from specviz.decoding.device import is_out_of_memory
from specviz.decoding.forward.transformers_forward import layers_of
from specviz.drafters.heads import check_ids, check_sizes, read_size
from specviz.errors import SpecvizError
from specviz.models.files.checkpoint import LoadReport, fill
from specviz.models.files.config_values import check_values
from specviz.models.files.draft_formats import GEMMA_ASSISTANTS
from specviz.models.files.meta_build import build_without_numbers
from specviz.models.pool import LoadedModel

IGNORED = r"(?!)"
"""Nothing: an assistant is saved without tensors that it has no use for."""
KINDS = ("full_attention", "sliding_attention")
_ORDER = "masked_embedding.token_ordering"
Made = TypeVar("Made")
Rows = tuple[Tensor, Tensor]


class Assistant(nn.Module):
    """An assistant and the target's layers whose keys and values it reads."""

    hidden_layers = (-1,)

    def __init__(self, model: PreTrainedModel, layers: Mapping[str, int]) -> None:
        """layers: kind of attention -> the number of the target's layer, from 0."""
        super().__init__()
        self.model = model
        self.layers = layers
        self.num_choices: int = model.vocab_size
        """How many tokens it can propose."""

    def masks(self, places: Tensor, num_rows: int) -> Mapping[str, Tensor]:
        """What tokens at these places [S] see of the target's rows: [1, 1, S, num_rows] by kind of attention.

        A token at place n sees the n rows before it, and in a window of w the last w + 1 of them, as
        `create_attention_masks` of transformers' assistant has it. Unseen rows get the smallest number.
        """
        behind = places[:, None] - 1 - torch.arange(num_rows, device=places.device)  # [S, rows]
        is_read = behind >= 0
        window = self.model.config.get_text_config().sliding_window
        seen = dict(zip(KINDS, (is_read, is_read & (behind <= window)), strict=True))
        like = self.model.pre_projection.weight
        unseen = torch.finfo(like.dtype).min
        return {
            kind: like.new_zeros(own.shape).masked_fill(~own, unseen)[None, None]
            for kind, own in seen.items()
        }

    def forward(
        self, inputs: Tensor, places: Tensor, rows: Mapping[str, Rows], masks: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The logits [S, V] of the next tokens, and the states [S, H] that the assistant goes on from.

        inputs [S, 2 H]: the target's embedding of a token, and the state that predicted it. places [S]: positions.
        rows: the target's keys and values [1, heads, n, width] by kind of attention.
        """
        model = self.model
        states = model.model(
            inputs_embeds=model.pre_projection(inputs)[None],
            attention_mask=masks,
            position_ids=places[None],
            shared_kv_states={
                kind: (k.to(inputs.device), v.to(inputs.device)) for kind, (k, v) in rows.items()
            },
            use_cache=False,
            logits_to_keep=None,  # a number would cut inputs of layers that an assistant lacks
        ).last_hidden_state[0]  # [S, the assistant's width]
        weight = model.lm_head.weight
        if (groups := model.masked_embedding) is None:
            logits = model.lm_head(states)
        else:  # tokens outside of the best groups get less than any other, by the rows that are read together
            logits = torch.cat([groups(state[None, None], weight)[0] for state in states])
        return logits, model.post_projection(states)


def read(
    config: Mapping[str, object], state: Mapping[str, Tensor], target: LoadedModel
) -> tuple[nn.Module, LoadReport]:
    """Makes the assistant of a checkpoint's settings and tensors. Raises SpecvizError if it does not fit the target."""
    own = _read_config(config)
    _check_target(own, state, target)
    bare = _attempt(
        lambda: build_without_numbers(lambda: AutoModelForCausalLM.from_config(deepcopy(own)))
    )
    layers = _find_layers(bare, target)
    report = fill(bare, state, bare.lm_head.weight, {name: name for name in bare.state_dict()})
    missing = tuple(name for name in report.missing if name not in bare.all_tied_weights_keys)
    if not missing:
        like = target.model.get_input_embeddings().weight
        used = {name: state[name] for name in report.used}
        bare = type(bare).from_pretrained(None, config=own, state_dict=used, dtype=like.dtype)
        bare = bare.to(like.device).eval().requires_grad_(False)
    return Assistant(bare, layers), replace(report, missing=missing)


def _read_config(config: Mapping[str, object]) -> PreTrainedConfig:
    kind = config.get("model_type")
    if kind not in GEMMA_ASSISTANTS:
        raise SpecvizError(
            f"its config.json must name the model_type {' or '.join(GEMMA_ASSISTANTS)} (got {kind!r:.60})"
        )
    if kind not in CONFIG_MAPPING:
        raise SpecvizError(
            f"this version of transformers knows no {kind} (5.24 does): install a later one"
        )
    if "quantization_config" in config:
        raise SpecvizError("its weights are quantised: choose the assistant in bfloat16 or float32")
    check_values(config, "it")
    return _attempt(lambda: CONFIG_MAPPING[kind].from_dict(dict(config)))


def _attempt(action: Callable[[], Made]) -> Made:
    """The result of an action of transformers. Raises SpecvizError for settings that it cannot use."""
    try:
        return action()
    except SpecvizError:
        raise
    except Exception as error:  # whatever a stranger's settings make transformers raise
        if is_out_of_memory(error):
            raise
        reason = " ".join(str(error).split())
        raise SpecvizError(f"its config.json cannot be used: {reason:.300}") from error


def _check_target(own: PreTrainedConfig, state: Mapping[str, Tensor], target: LoadedModel) -> None:
    """Raises SpecvizError for an assistant of another family or other sizes than the target's."""
    family = own.text_config.model_type
    config = target.model.config.get_text_config(decoder=True)
    if config.model_type != family:
        raise SpecvizError(
            f"it reads the keys and values of a target of the kind {family} (got {config.model_type})"
        )
    vocab_size = own.text_config.vocab_size
    check_sizes(target, hidden=own.backbone_hidden_size, vocabulary=vocab_size)
    read_size(own.text_config.to_dict(), "sliding_window")
    if not own.use_ordered_embeddings:
        return
    sizes = own.to_dict()
    num_groups = read_size(sizes, "num_centroids", most=vocab_size)
    read_size(sizes, "centroid_intermediate_top_k", most=num_groups)
    if vocab_size % num_groups:
        raise SpecvizError(
            f"num_centroids in its config.json must divide its {vocab_size} tokens (got {num_groups})"
        )
    if _ORDER in state:
        check_ids(_ORDER, state[_ORDER], vocab_size)


def _find_layers(assistant: PreTrainedModel, target: LoadedModel) -> Mapping[str, int]:
    """Kind of attention -> the target's last layer that stores keys and values of that kind.

    Raises SpecvizError where the target has none, or where they are of other sizes than the assistant's.
    """
    config = target.model.config.get_text_config(decoder=True)
    num_own = len(config.layer_types) - (config.num_kv_shared_layers or 0)
    layers = {kind: layer for layer, kind in enumerate(config.layer_types[:num_own])}
    for kind in (*KINDS, *assistant.config.get_text_config().layer_types):
        if kind not in layers:
            raise SpecvizError(
                f"it reads keys and values of {' and '.join(KINDS)} (the target stores none of {kind})"
            )
    blocks = layers_of(target.model)
    for block in layers_of(assistant):
        kind = block.self_attn.layer_type
        wanted = _heads_of(block.self_attn)
        stored = _heads_of(blocks[layers[kind]].self_attn)
        if wanted != stored:
            raise SpecvizError(
                f"its layers of {kind} read keys and values of {wanted}, and layer {layers[kind] + 1} of the target "
                f"stores {stored}"
            )
    return layers


def _heads_of(attention: nn.Module) -> str:
    """The number and the width of the heads that an attention's keys and values have, in words."""
    num_heads = attention.config.num_attention_heads // attention.num_key_value_groups
    return f"{num_heads} heads x {attention.head_dim}"
