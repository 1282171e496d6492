"""Dialogues that a chat model writes by itself, both sides: what drafts for it learn from.

A draft is kept where it says what the target would say, so the target's own answers are the best text to learn from
(EAGLE-3, arXiv:2503.01840, section 4, makes its data so). The user's turn is drawn from the bare chat template, then
the answer to it. All dialogues of a batch begin with the same ids and grow by a token a step: nothing is padded, and
what the target says at a place is kept as it writes. A shard follows from its seed and number alone: ended anywhere and
run again, the same ones follow."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    DynamicCache,
    PreTrainedTokenizerBase,
)
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from specviz.decoding.forward.attention import attend
from specviz.decoding.forward.transformers_forward import asked_of
from specviz.decoding.sampling import Sampling
from specviz.errors import SpecvizError
from specviz.models.pool import LoadedModel
from specviz.zoo.for_target.store import (
    NewText,
    StoredDistribution,
    enough_of,
    stored_tokens,
    write_shard,
)
from specviz.zoo.for_target.teacher import distribution_at

Ids = tuple[int, ...]
_PACKED = "packed"  # an attention implementation, see `_packed`
_MARK = "\u2063"  # an invisible separator: stands for the user's words while the template is taken apart
_SHORTEST_TURN = 4  # tokens; a shorter turn is no question
_USER = Sampling(top_k=64)
_ANSWERS = tuple(
    Sampling(temperature) for temperature in (0.0, 0.7, 1.0, 1.0)
)  # dialogues take turns
_MOST_ENDED = 1 / 8  # of the rows of a batch; those that go on are then copied without them


@dataclass(frozen=True, slots=True)
class Size:
    """How many dialogues are written, and how long they grow."""

    shard: int = 256  # dialogues that are begun for one shard
    batch: int = 128  # dialogues that are written at once
    longest_turn: int = 48  # tokens
    longest_answer: int = 160  # tokens


USUAL = Size()


@dataclass(frozen=True, slots=True)
class Template:
    """A chat template taken apart: ids before the user's words, and from their end to the answer's first token."""

    before: Ids
    after: Ids

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> "Template":
        """SpecvizError for a tokenizer without a chat template."""
        if not tokenizer.chat_template:
            raise SpecvizError(
                "the target's tokenizer has no chat template: it cannot write both sides of a dialogue"
            )
        turns = [{"role": "user", "content": _MARK}]
        before, after = tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=True
        ).split(_MARK)
        ids = (tokenizer(text, add_special_tokens=False).input_ids for text in (before, after))
        return cls(*map(tuple, ids))


@dataclass(slots=True, eq=False)
class _Dialogue:
    """A dialogue that is being written."""

    template: Template
    sampling_of_answer: Sampling
    ends_of_answer: frozenset[int]
    size: Size
    prompt: Ids = ()  # empty until the user's turn is over
    answer: list[int] = field(default_factory=list)
    is_over: bool = False
    distributions: list[StoredDistribution] = field(default_factory=list)  # place by place
    _turn: list[int] = field(default_factory=list)
    _given: list[int] = field(default_factory=list)  # of the template, to be read before the answer

    @property
    def sampling(self) -> Sampling:
        return self.sampling_of_answer if self.prompt else _USER

    def take(self, drawn: int) -> int:
        """The token that follows: the drawn one, or the template's."""
        if self._given:
            return self._given.pop(0)
        if self.prompt:
            self.answer.append(drawn)
            self.is_over = (
                drawn in self.ends_of_answer or len(self.answer) == self.size.longest_answer
            )
        elif (drawn,) == self.template.after[:1] and len(self._turn) >= _SHORTEST_TURN:
            self.prompt = self.template.before + tuple(self._turn) + self.template.after
            self._given = list(self.template.after[1:])
        else:
            self._turn.append(drawn)
            self.is_over = (drawn,) == self.template.after[:1] or len(
                self._turn
            ) == self.size.longest_turn
        return drawn


def write_dialogues(
    target: LoadedModel,
    folder: Path,
    num_tokens: int,
    layers: Sequence[int],
    seed: int = 0,
    size: Size = USUAL,
) -> None:
    """Shards until the answers hold so many tokens; the last dialogue is whole.

    layers: whose states are kept, none where no head is to learn.
    """
    template, number, total = Template.of(target.tokenizer), 0, 0
    if target.model.device.type == "cpu" and target.model.config._attn_implementation == "sdpa":
        target.model.set_attn_implementation(_PACKED)
    while total < num_tokens:
        shard = folder / f"{number:05}"
        left = num_tokens - total
        if (held := stored_tokens(shard, left)) is None:
            torch.manual_seed(
                int(np.random.SeedSequence((seed, number)).generate_state(1)[0])
            )  # torch takes 32 bits
            texts, is_cut = enough_of(_dialogues(target, template, layers, size), left)
            first = len(template.before) - 1
            write_shard(shard, texts, first, target.info.vocab_size, is_cut=is_cut)
            held = sum(len(text.answer) for text in texts)
        number, total = number + 1, total + held
        print(f"{number} shards, {total:,} of {num_tokens:,} answer tokens", flush=True)


def _dialogues(
    target: LoadedModel, template: Template, layers: Sequence[int], size: Size
) -> Iterator[NewText]:
    """The dialogues whose user's turn came to an end."""
    ends = frozenset(template.after[:1]) | target.text.eos_ids
    begun = [
        _Dialogue(template, _ANSWERS[index % len(_ANSWERS)], ends, size)
        for index in range(size.shard)
    ]
    for start in range(0, size.shard, size.batch):
        some = begun[start : start + size.batch]
        before = _write(target, some, layers)
        for dialogue in some:
            if dialogue.answer:
                yield NewText(
                    dialogue.prompt,
                    tuple(dialogue.answer),
                    StoredDistribution.joined([*before, *dialogue.distributions]),
                )


@torch.inference_mode()
def _write(
    target: LoadedModel, dialogues: Sequence[_Dialogue], layers: Sequence[int]
) -> list[StoredDistribution]:
    """Writes them all to their ends; returns what the target says at the places that they begin with, but the last."""
    cache, device, rows = (
        DynamicCache(config=target.model.config),
        target.model.device,
        list(dialogues),
    )
    asked = {**asked_of(target.model, cache), "output_hidden_states": bool(layers)}
    template, size, before = rows[0].template, rows[0].size, []
    if start := template.before[:-1]:
        done = target.model(torch.tensor([start], device=device), **asked)
        before.append(distribution_at(done, layers, 0))
        cache.reorder_cache(torch.zeros(len(rows), dtype=torch.long, device=device))
        longest = len(template.before + template.after) + size.longest_turn + size.longest_answer
        cache.layers = [
            _Roomy(layer, longest) if type(layer) is DynamicLayer else layer
            for layer in cache.layers
        ]
    ids = [template.before[-1]] * len(rows)
    while rows:
        done = target.model(torch.tensor(ids, device=device)[:, None], **asked)
        distribution = distribution_at(done, layers, slice(None), -1)
        drawn = _draw(done.logits[:, -1], [row.sampling for row in rows])
        for index, row in enumerate(rows):
            if not row.is_over:
                row.distributions.append(distribution.at(index))
                ids[index] = row.take(drawn[index])
        going = [index for index, row in enumerate(rows) if not row.is_over]
        if len(going) < (1 - _MOST_ENDED) * len(rows):
            cache.reorder_cache(torch.tensor(going, dtype=torch.long, device=device))
            rows, ids = [rows[index] for index in going], [ids[index] for index in going]
    return before


class _Roomy(DynamicLayer):
    """Keys and values with room for `longest` tokens of each text: one more does not copy those before it."""

    def __init__(self, layer: DynamicLayer, longest: int) -> None:
        super().__init__()
        self.lazy_initialization(layer.keys, layer.values)
        kept = layer.keys, layer.values
        self._room = [each.new_empty(*each.shape[:2], longest, each.shape[-1]) for each in kept]
        self.update(*kept)

    def update(
        self, keys: Tensor, values: Tensor, *_args: object, **_kwargs: object
    ) -> tuple[Tensor, Tensor]:
        end = self.get_seq_length() + keys.shape[-2]
        for room, new in zip(self._room, (keys, values), strict=True):
            room[:, :, end - new.shape[-2] : end] = new
        return self._show(end)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._room = [room[beam_idx] for room in self._room]
        self._show(self.get_seq_length())

    def _show(self, end: int) -> tuple[Tensor, Tensor]:
        self.keys, self.values = (room[:, :, :end] for room in self._room)
        return self.keys, self.values


def _packed(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **how: Any,
) -> tuple[Tensor, None]:
    """Attends by `attend` for one token of many texts, which is five times as fast on a CPU, and else by sdpa."""
    if query.shape[2] > 1 or attention_mask is not None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **how)
    return attend(query, key, value, None, how["scaling"]).transpose(1, 2), None


AttentionInterface.register(_PACKED, _packed)
AttentionMaskInterface.register(_PACKED, sdpa_mask)


def _draw(logits: Tensor, samplings: Sequence[Sampling]) -> list[int]:
    """A token per row of [B, V]."""
    drawn, u = (
        torch.empty(len(logits), dtype=torch.long),
        torch.rand(len(logits), 1, device=logits.device),
    )
    for sampling in set(samplings):
        rows = [index for index, own in enumerate(samplings) if own == sampling]
        sums = sampling.probs(logits[rows]).cumsum(-1)
        places = torch.searchsorted(sums, u[rows] * sums[:, -1:], right=True)
        drawn[rows] = places.clamp_max(sums.shape[-1] - 1)[:, 0].cpu()
    return drawn.tolist()
