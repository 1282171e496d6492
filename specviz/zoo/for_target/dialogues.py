"""Dialogues that a chat model writes by itself, both sides: what drafts for it learn from.

A draft is kept where it says what the target would say, so the target's own answers are the best text to learn from
(EAGLE-3, arXiv:2503.01840, section 4, makes its data so). The user's turn is drawn from the bare chat template, then
the answer to it. A shard follows from its seed and number alone: ended anywhere and run again, the same ones follow."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedTokenizerBase

from specviz.decoding.sampling import Sampling
from specviz.errors import SpecvizError
from specviz.models.library import LoadedModel
from specviz.zoo.for_target.store import read_texts, write_shard
from specviz.zoo.for_target.teacher import laws_of

Ids = tuple[int, ...]
_MARK = "\u2063"  # an invisible separator: stands for the user's words while the template is taken apart
_SHORTEST_TURN = 4  # tokens; a shorter turn is no question
_USER = Sampling(top_k=64)
_ANSWERS = tuple(Sampling(temperature) for temperature in (0.0, 0.7, 1.0, 1.0))  # dialogues take turns


@dataclass(frozen=True, slots=True)
class Size:
    """shard: how many dialogues are begun for one; batch: how many are written at once; the rest in tokens."""

    shard: int = 256
    batch: int = 128
    longest_turn: int = 48
    longest_answer: int = 160


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
            raise SpecvizError("the target's tokenizer has no chat template: it cannot write both sides of a dialogue")
        turns = [{"role": "user", "content": _MARK}]
        before, after = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True).split(_MARK)
        ids = (tokenizer(text, add_special_tokens=False).input_ids for text in (before, after))
        return cls(*map(tuple, ids))


def write_dialogues(
    target: LoadedModel, folder: Path, num_tokens: int, layers: Sequence[int], seed: int = 0, size: Size = USUAL
) -> None:
    """Shards until the answers hold so many tokens. layers: whose states are kept, none where no head is to learn."""
    if target.model.device.type == "cpu":
        target.model.set_attn_implementation("eager")  # one token of many texts: a third cheaper a step
    template, number, total = Template.of(target.tokenizer), 0, 0
    while total < num_tokens:
        shard = folder / f"{number:05}"
        if not shard.exists():
            torch.manual_seed(int(np.random.SeedSequence((seed, number)).generate_state(1)[0]))  # torch takes 32 bits
            dialogues = _dialogues(target, template, size)
            laws = laws_of(target, [prompt + answer for prompt, answer in dialogues], layers)
            texts = [(*dialogue, law) for dialogue, law in zip(dialogues, laws, strict=True)]
            write_shard(shard, texts, len(template.before) - 1, target.info.vocab_size)
        number, total = number + 1, total + sum(len(text.answer) for text in read_texts([shard]))
        print(f"{number} shards, {total:,} of {num_tokens:,} answer tokens", flush=True)


def _dialogues(target: LoadedModel, template: Template, size: Size) -> list[tuple[Ids, Ids]]:
    """(prompt, answer) of those that were begun and whose user's turn came to an end."""
    ends = frozenset(template.after[:1])
    turns = _continue(target, [template.before] * size.shard, [_USER] * size.shard, ends, size.longest_turn, size.batch)
    asked = [turn[:-1] for turn in turns if turn[-1] in ends and len(turn) > _SHORTEST_TURN]
    prompts = [template.before + turn + template.after for turn in asked]
    samplings = [_ANSWERS[index % len(_ANSWERS)] for index in range(len(prompts))]
    answers = _continue(target, prompts, samplings, ends | target.text.eos_ids, size.longest_answer, size.batch)
    return list(zip(prompts, answers, strict=True))


def _continue(
    target: LoadedModel,
    texts: Sequence[Ids],
    samplings: Sequence[Sampling],
    ends: frozenset[int],
    most: int,
    batch: int,
) -> list[Ids]:
    """What the target writes behind each text, up to and with one of `ends`."""
    written: list[Ids] = []
    for start in range(0, len(texts), batch):
        part = slice(start, start + batch)
        written += _continue_batch(target, texts[part], samplings[part], ends, most)
    return written


@torch.inference_mode()
def _continue_batch(
    target: LoadedModel, texts: Sequence[Ids], samplings: Sequence[Sampling], ends: frozenset[int], most: int
) -> list[Ids]:
    """Texts that have ended are taken out of the batch."""
    device = target.model.device
    cache, mask = _read_all_but_the_last(target, texts)
    ids = torch.tensor([text[-1:] for text in texts], device=device)
    written: list[list[int]] = [[] for _ in texts]
    alive = list(range(len(texts)))
    for _ in range(most):
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
        inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": _places(mask, 1)}
        logits = target.model(**inputs, past_key_values=cache, use_cache=True).logits[:, -1]
        drawn = _draw(logits, [samplings[index] for index in alive])
        for index, token in zip(alive, drawn, strict=True):
            written[index].append(token)
        going = [row for row, token in enumerate(drawn) if token not in ends]
        if not going:
            break
        if len(going) < len(alive):
            cache.batch_select_indices(torch.tensor(going, device=device))
            mask, alive = mask[going], [alive[row] for row in going]
        ids = torch.tensor([[drawn[row]] for row in going], device=device)
    return [tuple(tokens) for tokens in written]


def _read_all_but_the_last(target: LoadedModel, texts: Sequence[Ids]) -> tuple[DynamicCache, Tensor]:
    """The cache [B] of texts, each without its last token, and its mask [B, L]. What all begin with is read once;
    padding stands between that and the rest."""
    device, cache = target.model.device, DynamicCache(config=target.model.config)
    read = target.model.get_decoder()
    columns = zip(*(text[:-1] for text in texts), strict=False)  # as far as the shortest goes
    first = len(list(takewhile(lambda column: len(set(column)) == 1, columns)))
    if first:
        read(torch.tensor([texts[0][:first]], device=device), past_key_values=cache, use_cache=True)
        cache.batch_repeat_interleave(len(texts))
    rest = [text[first:-1] for text in texts]
    width = max(map(len, rest))
    mask = torch.tensor([[1] * first + [0] * (width - len(text)) + [1] * len(text) for text in rest], device=device)
    if width:
        ids = torch.tensor([[0] * (width - len(text)) + list(text) for text in rest], device=device)
        places = {"attention_mask": mask, "position_ids": _places(mask, width)}
        read(ids, **places, past_key_values=cache, use_cache=True)
    return cache, mask.reshape(len(texts), first + width)


def _places(mask: Tensor, count: int) -> Tensor:
    """Of the last `count` tokens [B, count], as if there were no padding."""
    return (mask.cumsum(-1) - 1).clamp_min(0)[:, -count:]


def _draw(logits: Tensor, samplings: Sequence[Sampling]) -> list[int]:
    """A token per row of [B, V]."""
    sums = torch.stack([sampling.probs(row) for sampling, row in zip(samplings, logits, strict=True)]).cumsum(-1)
    u = torch.rand(len(sums), 1, device=sums.device) * sums[:, -1:]
    return torch.searchsorted(sums, u, right=True).clamp_max(sums.shape[-1] - 1)[:, 0].tolist()
