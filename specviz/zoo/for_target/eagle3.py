"""An EAGLE-3 head for a loaded target, in the public layout (arXiv:2503.01840, sections 3.1 and 3.2).

Training-time test: at depth s (0, 1, ...) the head reads its own features of depth s - 1, as it must when it drafts,
and learns the target's distribution of the token s + 2 places ahead. It starts from the target's own last layer."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from specviz.drafters.eagle.heads import Eagle3Head
from specviz.drafters.eagle.layers import Attention
from specviz.models.files.checkpoint import read_tensors
from specviz.models.files.hub import weight_files
from specviz.models.pool import LoadedModel
from specviz.zoo.for_target.learning import DepthScore, distribution_losses
from specviz.zoo.for_target.store import Batch, StoredText
from specviz.zoo.training.export import replacing, write_json

MEASURED_DEPTH = 4
_DEPTH_DECAY = 0.5  # about as a depth counts in the tokens of a call
_NO_TOKEN = -1


@dataclass(frozen=True, slots=True, eq=False)
class DepthDistributions:
    """The distributions of target and head at one depth, over the n places that are judged."""

    ids: Tensor  # [n, TOP], the target's likeliest tokens by the head's own ids
    p: Tensor  # [n, TOP], 0 for tokens that the head cannot propose
    log_q: Tensor  # [n, D]
    weights: Tensor  # [n]

    @property
    def log_q_of_ids(self) -> Tensor:
        return self.log_q.gather(-1, self.ids.clamp_min(0))


class Eagle3:
    """A head that learns; see learning.Learner. ids [D]: the target's that it can propose, rising."""

    reads_states = True

    def __init__(self, target: LoadedModel, ids: Tensor, depth: int, seed: int) -> None:
        torch.manual_seed(seed)
        self._target, self._ids, self._depth = target, ids, depth
        self._embeddings = target.model.get_input_embeddings().weight.detach().cpu()
        self._own_ids = torch.full((target.info.vocab_size,), _NO_TOKEN)
        self._own_ids[ids] = torch.arange(len(ids))
        self.shape = _shape(target, len(ids))
        self.module = Eagle3Head(self.shape, target)
        self.module.rotary = LlamaRotaryEmbedding(self.shape)
        self.module.take(self._vocabulary(), target.info.vocab_size)
        _start_from(self.module, target, ids)

    def loss(self, batch: Batch, overlap_weight: float) -> Tensor:
        """Summed over the depths; a later one counts less."""
        total = torch.zeros(())
        for depth, distributions in enumerate(self._distributions(batch, self._depth, 0)):
            losses = distribution_losses(
                distributions.p, distributions.log_q_of_ids, overlap_weight
            )
            total = (
                total
                + _DEPTH_DECAY**depth
                * (losses * distributions.weights).sum()
                / distributions.weights.sum()
            )
        return total

    def score(self, batch: Batch) -> list[DepthScore]:
        return [
            _score(distributions)
            for distributions in self._distributions(batch, MEASURED_DEPTH, 0.5)
        ]

    def _distributions(
        self, batch: Batch, num_depths: int, least: float
    ) -> Iterator[DepthDistributions]:
        """Yields the distributions depth by depth, at places that weigh more than `least`.

        Row i reads state i, or what the head made of it, and the token behind the last one that it has read.
        """
        assert batch.states is not None
        length, earlier = batch.states.shape[1] - num_depths, []
        hidden = self.module.fuse(batch.states[:, :length])
        for depth in range(1, num_depths + 1):
            there = slice(depth, depth + length)
            embedded = self._embeddings[batch.tokens[:, there]].float()
            hidden = self._next(embedded, hidden, depth, earlier)
            weights = batch.weights[:, there]
            judged = weights > least
            log_q = self.module.lm_head(self.module.norm(hidden[judged])).float().log_softmax(-1)
            ids = self._own_ids[batch.ids[:, there][judged]]
            p = batch.log_probs[:, there][judged].exp() * (ids != _NO_TOKEN)
            yield DepthDistributions(ids, p, log_q, weights[judged])

    def _next(
        self, embedded: Tensor, features: Tensor, depth: int, earlier: list[tuple[Tensor, Tensor]]
    ) -> Tensor:
        layer = self.module.midlayer
        inputs = torch.cat([layer.input_layernorm(embedded), layer.hidden_norm(features)], dim=-1)
        rotary = self.module.rotary(inputs.float(), torch.arange(inputs.shape[1])[None] + depth)
        hidden = features + attend(layer.self_attn, inputs, rotary, earlier)
        return hidden + layer.mlp(layer.post_attention_layernorm(hidden))

    def settings(self) -> dict[str, Any]:
        """The head's config.json, by the public checkpoints' names."""
        names = (
            "hidden_size",
            "intermediate_size",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
        )
        rope = self.shape.rope_parameters
        return {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "base_model_name_or_path": self._target.name,
            **{name: getattr(self.shape, name) for name in names},
            "num_hidden_layers": 1,
            "vocab_size": self._target.info.vocab_size,
            "draft_vocab_size": len(self._ids),
            "rms_norm_eps": self.shape.rms_norm_eps,
            **(
                {"rope_theta": rope["rope_theta"]}
                if rope["rope_type"] == "default"
                else {"rope_parameters": rope}
            ),
            "hidden_act": "silu",
            "torch_dtype": "float16",
        }

    def _vocabulary(self) -> dict[str, Tensor]:
        """The tokens of the target that the head proposes, as tensors of an EAGLE-3 checkpoint."""
        return {"d2t": self._ids - torch.arange(len(self._ids)), "t2d": self._own_ids != _NO_TOKEN}

    def export(self, folder: Path) -> None:
        """A folder that loads as any EAGLE-3 checkpoint does."""
        state = {
            name: value.half().contiguous() for name, value in self.module.state_dict().items()
        }
        with replacing(folder) as partial:
            partial.mkdir(parents=True)
            save_torch_state_dict(state | self._vocabulary(), partial, max_shard_size="9MB")
            write_json(partial / "config.json", self.settings())


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


def chosen_ids(
    file: Path,
    texts: Sequence[StoredText],
    vocab_size: int,
    count: int,
    given: Tensor | None = None,
) -> Tensor:
    """The ids [count] of the most frequent tokens of the answers that may be trained on, rising, or those given: chosen
    once, then read from `file`."""
    if not file.exists():
        if given is None:
            counts = torch.zeros(vocab_size)
            for text in texts:
                if not text.is_held_out:
                    counts += torch.bincount(torch.tensor(text.answer), minlength=vocab_size)
            given = counts.topk(min(count, vocab_size)).indices.sort().values
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, given.tolist())
    return torch.tensor(json.loads(file.read_text(encoding="utf-8")))


def ids_of(finished: Path) -> Tensor:
    """The ids [count] that a finished head can propose, rising."""
    return read_tensors(weight_files(finished, finished.name))["t2d"].nonzero()[:, 0]


def _score(distributions: DepthDistributions) -> DepthScore:
    overlap = torch.minimum(distributions.p, distributions.log_q_of_ids.exp()).sum()
    same = distributions.log_q.argmax(-1) == distributions.ids[:, 0]
    return DepthScore(float(overlap), float(same.sum()), len(distributions.p))


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
