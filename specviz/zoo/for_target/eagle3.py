"""Heads of the EAGLE family that learn, and a fresh EAGLE-3 head in the public layout (arXiv:2503.01840, 3.1 and 3.2).

Training-time test: at depth s (0, 1, ...) the head reads its own features of depth s - 1, as it must when it drafts,
and learns the target's distribution of the token s + 2 places ahead. A fresh head starts from its last layer."""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from specviz.drafters.eagle.heads import Eagle3Head, EagleHead
from specviz.drafters.eagle.layers import Attention
from specviz.drafters.eagle.layouts import papers_layers
from specviz.errors import SpecvizError
from specviz.models.pool import LoadedModel
from specviz.zoo.for_target.learning import DepthScore, Judged
from specviz.zoo.for_target.small_draft import Export
from specviz.zoo.for_target.store import Batch, StoredText
from specviz.zoo.for_target.teacher import states_of
from specviz.zoo.training.export import SHARD, replacing, write_json

MEASURED_DEPTH = 4
_DEPTH_DECAY = 0.5  # about as a depth counts in the tokens of a call
_NO_TOKEN = -1


class TrainingRows:
    """Takes the place of `HeadRows` in training: reads B texts at once, depth after depth, with gradients."""

    def __init__(self, head: EagleHead) -> None:
        self._rotary = head.rotary
        first = [head.midlayer] if isinstance(head, Eagle3Head) else []
        self._blocks = [(layer, []) for layer in (*first, *head.layers)]
        """The layers, each with the keys and values of the depths before."""

    def read(self, x: Tensor, inputs: Tensor | None, positions: Tensor, see: None) -> Tensor:
        """Reads as `HeadRows` does, rows [B, L, H] at positions [1, L]; see `attend` for what a row sees."""
        rotary = self._rotary(x.float(), positions)
        for layer, earlier in self._blocks:
            read = layer.input_layernorm(x) if inputs is None else inputs
            x = x + attend(layer.self_attn, read, rotary, earlier)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
            inputs = None
        return x


class HeadLearner:
    """A head of the EAGLE family that learns; see learning.Learner."""

    def __init__(
        self,
        target: LoadedModel,
        head: EagleHead,
        depth: int,
        settings: dict[str, Any],
        export: Export,
    ) -> None:
        target.model.requires_grad_(False)  # a head may draft with the target's tables
        self.module = head
        self._target, self._depth = target, depth
        self.reads_states = head.hidden_layers == stored_layers(target)
        self._own_ids = torch.full((target.info.vocab_size,), _NO_TOKEN)
        choices = torch.arange(head.num_choices)
        self._own_ids[head.ids(choices)] = choices
        self._settings, self._export = settings, export

    def loss(self, batch: Batch, overlap_weight: float) -> Tensor:
        """Summed over the depths; a later one counts less."""
        total = torch.zeros(())
        for depth, judged in enumerate(self._judged(batch, self._depth, batch.weights > 0)):
            total = total + _DEPTH_DECAY**depth * judged.loss(overlap_weight) / judged.weights.sum()
        return total

    def score(self, batch: Batch) -> list[DepthScore]:
        return [judged.score() for judged in self._judged(batch, MEASURED_DEPTH, batch.is_answer)]

    def _judged(self, batch: Batch, num_depths: int, places: Tensor) -> Iterator[Judged]:
        """Yields what is said at the chosen places [B, L], depth by depth.

        Row i reads state i, or what the head made of it, and the token behind the last one that it has read.
        """
        states, rows = batch.states, TrainingRows(self.module)
        if states is None:
            states = states_of(self._target, batch.tokens[:, :-1], self.module.hidden_layers)
        length = states.shape[1] - num_depths
        hidden = self.module.fuse(states[:, :length])
        for depth in range(1, num_depths + 1):
            there = slice(depth, depth + length)
            positions = torch.arange(length)[None] + depth
            hidden = self.module(hidden, batch.tokens[:, there], positions, rows, None)
            chosen = places[:, there]
            yield Judged.of(
                batch.log_probs[:, there][chosen],
                self._own_ids[batch.ids[:, there][chosen]],
                self.module.choices(hidden[chosen]),
                batch.temperatures.expand(*chosen.shape, 1)[chosen],
                batch.weights[:, there][chosen],
            )

    def settings(self) -> dict[str, Any]:
        return self._settings

    def export(self, folder: Path) -> None:
        self._export(self.module, folder)


def stored_layers(target: LoadedModel) -> tuple[int, ...]:
    """The layers whose states `dialogues` stores; none for a target of few layers."""
    try:
        return papers_layers(target)
    except SpecvizError:
        return ()


def fresh_head(target: LoadedModel, ids: Tensor, depth: int, seed: int) -> HeadLearner:
    """An EAGLE-3 head with one layer. ids [D]: the target's that it can propose, rising."""
    torch.manual_seed(seed)
    shape = _shape(target, len(ids))
    head = Eagle3Head(shape, target, hidden_layers=papers_layers(target))
    head.rotary = LlamaRotaryEmbedding(shape)
    vocabulary = {"d2t": ids - torch.arange(len(ids)), "t2d": _is_among(ids, target)}
    head.take(vocabulary, target.info.vocab_size)
    _start_from(head, target, ids)
    settings = _settings(shape, target)

    def export(module: nn.Module, folder: Path) -> None:
        state = {name: value.half().contiguous() for name, value in module.state_dict().items()}
        with replacing(folder) as partial:
            partial.mkdir(parents=True)
            save_torch_state_dict(state | vocabulary, partial, max_shard_size=SHARD)
            write_json(partial / "config.json", settings)

    return HeadLearner(target, head, depth, settings, export)


def _is_among(ids: Tensor, target: LoadedModel) -> Tensor:
    is_among = torch.zeros(target.info.vocab_size, dtype=torch.bool)
    is_among[ids] = True
    return is_among


def _settings(shape: LlamaConfig, target: LoadedModel) -> dict[str, Any]:
    """The head's config.json, by the public checkpoints' names."""
    names = (
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
    )
    rope = shape.rope_parameters
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "base_model_name_or_path": target.name,
        **{name: getattr(shape, name) for name in names},
        "num_hidden_layers": 1,
        "vocab_size": target.info.vocab_size,
        "draft_vocab_size": shape.vocab_size,
        "rms_norm_eps": shape.rms_norm_eps,
        **(
            {"rope_theta": rope["rope_theta"]}
            if rope["rope_type"] == "default"
            else {"rope_parameters": rope}
        ),
        "hidden_act": "silu",
        "torch_dtype": "float16",
    }


def attend(
    attention: Attention,
    inputs: Tensor,
    rotary: tuple[Tensor, Tensor],
    earlier: list[tuple[Tensor, Tensor]],
) -> Tensor:
    """The attention of one depth over inputs [B, L, I], as [B, L, H].

    A place sees every place up to itself at the first depth, and itself at the depths since. `earlier` holds the keys
    and values of these depths; this depth adds its own.
    """
    size = rotary[0].shape[-1]
    queries, keys, values = (
        project(inputs).unflatten(-1, (-1, size)).transpose(1, 2)
        for project in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    if hasattr(attention, "q_norm"):
        queries, keys = attention.q_norm(queries), attention.k_norm(keys)
    queries, keys = apply_rotary_pos_emb(queries.float(), keys.float(), *rotary)
    earlier.append((keys, values))
    groups, length = queries.shape[1] // keys.shape[1], inputs.shape[1]
    queries = queries.unflatten(1, (-1, groups)) / math.sqrt(
        size
    )  # [B, shared heads, groups, L, D]
    first = torch.einsum("bhgld,bhmd->bhglm", queries, earlier[0][0]).float()
    first = first.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -torch.inf)
    own = [(queries * key[:, :, None]).sum(-1, keepdim=True).float() for key, _ in earlier[1:]]
    shares = torch.cat([first, *own], dim=-1).softmax(-1).to(values.dtype)
    mixed = torch.einsum("bhglm,bhmd->bhgld", shares[..., :length], earlier[0][1])
    for depth, (_, value) in enumerate(earlier[1:]):
        mixed = mixed + shares[..., length + depth, None] * value[:, :, None]
    return attention.o_proj(mixed.flatten(1, 2).transpose(1, 2).flatten(2))


def chosen_ids(file: Path, texts: Sequence[StoredText], vocab_size: int, count: int) -> Tensor:
    """The ids [count] of the most frequent tokens of the answers that may be trained on, rising: chosen once, then read
    from `file`."""
    if not file.exists():
        counts = torch.zeros(vocab_size)
        for text in texts:
            if not text.is_held_out:
                counts += torch.bincount(torch.tensor(text.answer), minlength=vocab_size)
        ids = counts.topk(min(count, vocab_size)).indices.sort().values
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, ids.tolist())
    return torch.tensor(json.loads(file.read_text(encoding="utf-8")))


def _shape(target: LoadedModel, num_ids: int) -> LlamaConfig:
    """One Llama layer as wide as the target's."""
    config = target.model.config.get_text_config(decoder=True)
    names = (
        "hidden_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "intermediate_size",
    )
    names += ("rms_norm_eps", "rope_parameters", "max_position_embeddings")
    sizes = {name: value for name in names if (value := getattr(config, name, None)) is not None}
    return LlamaConfig(**sizes, vocab_size=num_ids, num_hidden_layers=1)


@torch.no_grad()
def _start_from(head: Eagle3Head, target: LoadedModel, ids: Tensor) -> None:
    """The target's own last layer and output rows, where they fit: it learns in a tenth of the time."""
    model, hidden = target.model.get_decoder(), head.fc.out_features
    head.lm_head.weight.copy_(target.model.get_output_embeddings().weight[ids])
    head.fc.weight.zero_()[:, 2 * hidden :] = torch.eye(hidden)
    own, last = dict(head.named_parameters()), model.layers[-1]
    names = {f"midlayer.mlp.{name}": value for name, value in last.mlp.named_parameters()}
    names |= {"midlayer.post_attention_layernorm.weight": last.post_attention_layernorm.weight}
    for name, value in {**names, "norm.weight": model.norm.weight}.items():
        if name in own and own[name].shape == value.shape:
            own[name].copy_(value)
