"""Exported members -> numbers on held-out text, by domain: bits per byte, and how well each draft suits the target.

Teacher-forced, at temperature 1. Overlap (alpha) = sum over the vocabulary of min(p, q): the chance that a draft token
is kept. Agreement = the share of positions where both find the same token likeliest: acceptance at temperature 0."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import log
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from specviz.drafters.markov import MarkovBias
from specviz.zoo.data.corpus import END_OF_TEXT, TokenFile, valid_windows
from specviz.zoo.training.block import BlockTrainingHead, blocks_at
from specviz.zoo.training.export import Origin, load_head, load_model
from specviz.zoo.training.heads import EagleTrainingHead, MedusaHeads, rotary_of

NUM_WINDOWS = 32  # per source of held-out text
BATCH = 4
ANCHORS = 32  # tokens from one block to the next


@dataclass(frozen=True, slots=True)
class Predicted:
    """What a predictor says about a batch: logits [B, L - shift, V] for the tokens from number `shift` on, or those at
    every `stride`-th token of them."""

    logits: torch.Tensor
    shift: int = 0
    stride: int = 1


@dataclass(frozen=True, slots=True)
class SeenBatch:
    """A batch as the target saw it: tokens [B, L], its hidden states (one [B, L, H] per layer, the first is the
    embedding, the last is normed) and logits [B, L, V]."""

    tokens: torch.Tensor
    hidden: tuple[torch.Tensor, ...]
    logits: torch.Tensor


Predictor = Callable[[SeenBatch], Predicted]


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """One predictor's numbers by domain; overlap and agreement are against the target and empty for the target."""

    label: str
    bits_per_byte: Mapping[str, float]
    overlap: Mapping[str, float] = field(default_factory=dict)
    agreement: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class RunningSums:
    """Running sums over positions, for one predictor and domain."""

    nats: float = 0.0
    num_bytes: int = 0
    overlap: float = 0.0
    agreement: float = 0.0
    num_positions: int = 0


def measure(
    target: PreTrainedModel, predictors: Mapping[str, Predictor], texts: "Texts"
) -> list[EvaluationRow]:
    """One row per predictor (and "target" first), over every domain of `texts`."""
    everyone = {"target": own_logits, **predictors}
    sums: dict[tuple[str, str], RunningSums] = defaultdict(RunningSums)
    for domain, batch in texts.batches():
        seen = look(target, batch[:, :-1])
        p = seen.logits.log_softmax(-1)
        for label, predictor in everyone.items():
            add(sums[label, domain], p, predictor(seen), batch[:, 1:], texts.num_bytes)
    return [
        row(label, {domain: sums[label, domain] for domain in texts.files}) for label in everyone
    ]


@torch.inference_mode()
def look(target: PreTrainedModel, tokens: torch.Tensor) -> SeenBatch:
    output = target(input_ids=tokens, output_hidden_states=True, use_cache=False)
    return SeenBatch(tokens, output.hidden_states, output.logits.float())


@torch.inference_mode()
def add(
    sums: RunningSums,
    p: torch.Tensor,
    said: Predicted,
    following: torch.Tensor,
    num_bytes: torch.Tensor,
) -> None:
    count = said.logits.shape[1]
    p, following = (rows[:, said.shift :: said.stride][:, :count] for rows in (p, following))
    q = said.logits.float().log_softmax(-1)
    sums.nats -= q.gather(-1, following[..., None]).sum().item()
    sums.num_bytes += int(num_bytes[following].sum())
    sums.overlap += torch.minimum(p, q).exp().sum().item()
    sums.agreement += (p.argmax(-1) == q.argmax(-1)).sum().item()
    sums.num_positions += following.numel()


def row(label: str, domains: Mapping[str, RunningSums]) -> EvaluationRow:
    bits = {name: sums.nats / log(2) / sums.num_bytes for name, sums in domains.items()}
    if label == "target":
        return EvaluationRow(label, bits)
    overlap = {name: sums.overlap / sums.num_positions for name, sums in domains.items()}
    return EvaluationRow(
        label,
        bits,
        overlap,
        {name: sums.agreement / sums.num_positions for name, sums in domains.items()},
    )


def own_logits(seen: SeenBatch) -> Predicted:
    return Predicted(seen.logits)


def exit_at(target: PreTrainedModel, layer: int, seen: SeenBatch) -> Predicted:
    """What the target's own head says after `layer` layers."""
    return Predicted(target.lm_head(target.model.norm(seen.hidden[layer])))


def draft_of(model: PreTrainedModel, seen: SeenBatch) -> Predicted:
    return Predicted(model(input_ids=seen.tokens, use_cache=False).logits)


def medusa_head(
    target: PreTrainedModel,
    heads: MedusaHeads,
    index: int,
    bias: MarkovBias | None,
    seen: SeenBatch,
) -> Predicted:
    """Head `index` at t speaks about token t+2+index; a bias has seen the token before that."""
    shift = index + 1
    logits = heads.one(index, seen.hidden[-1][:, :-shift], target.lm_head)
    if bias is not None:
        logits = logits + bias(index, seen.tokens[:, shift:])
    return Predicted(logits, shift)


def eagle_head(target: PreTrainedModel, head: torch.nn.Module, seen: SeenBatch) -> Predicted:
    """The head's first draft: from the true feature at t and token t+1, about token t+2."""
    features, embedded = seen.hidden[-1][:, :-1], target.model.embed_tokens(seen.tokens[:, 1:])
    return Predicted(target.lm_head(head(features, embedded, rotary_of(target, features))), shift=1)


@dataclass(slots=True)
class BlockGuesses:
    """What a block's head says at every ANCHORS-th token of a batch. A batch is guessed once for all depths."""

    target: PreTrainedModel
    head: BlockTrainingHead
    newest: tuple[SeenBatch, torch.Tensor] | None = None

    def depth(self, depth: int, bias: MarkovBias | None, seen: SeenBatch) -> Predicted:
        """Says what the block guesses for its token `depth` (1, 2, ...); a bias has seen the token before that."""
        if self.newest is None or self.newest[0] is not seen:
            self.newest = seen, self.guess(seen)
        logits = self.newest[1][:, :, depth]
        if bias is not None:
            before = seen.tokens[:, depth::ANCHORS][:, : logits.shape[1]]
            logits = logits + bias(depth - 1, before)
        return Predicted(logits, depth, ANCHORS)

    def guess(self, seen: SeenBatch) -> torch.Tensor:
        """The logits [B, A, block size, V] at the anchors 1, 1 + ANCHORS, ..."""
        tokens, head = seen.tokens, self.head
        last = tokens.shape[1] - head.block_size
        anchors = torch.arange(1, last + 1, ANCHORS, device=tokens.device).expand(len(tokens), -1)
        states = torch.cat([seen.hidden[layer + 1] for layer in head.target_layers], -1)
        x, places = blocks_at(head, self.target, tokens, anchors)
        return self.target.lm_head(head(states, x, places, self.target))


def predictors_of(folder: Path, target: PreTrainedModel) -> dict[str, Predictor]:
    """The predictors that a member's folder stands for; the target's own are its early exits."""
    recipe = Origin.read(folder).recipe
    if recipe.heads:
        head = load_head(folder, target)
        if isinstance(head, EagleTrainingHead):
            return {f"{recipe.name}, depth 1": partial(eagle_head, target, head)}
        biases = {"": None} if head.markov is None else {"": None, " with bias": head.markov}
        if isinstance(head, BlockTrainingHead):
            at = BlockGuesses(target, head).depth
            return {
                f"{recipe.name}, depth {depth}{words}": partial(at, depth, bias)
                for words, bias in biases.items()
                for depth in range(1, head.block_size)
            }
        return {
            f"{recipe.name}, head {i + 1}{words}": partial(medusa_head, target, head, i, bias)
            for words, bias in biases.items()
            for i in range(len(head))
        }
    if recipe.early_exit:
        return {
            f"{recipe.name}, exit {layer}": partial(exit_at, target, layer)
            for layer in recipe.early_exit.layers
        }
    return {recipe.name: partial(draft_of, load_model(folder))}


@dataclass(frozen=True, slots=True)
class Texts:
    """Held-out token files by domain, read in windows of `length`; `num_bytes` [V]: what each token stands for."""

    files: Mapping[str, list[TokenFile]]
    length: int
    num_bytes: torch.Tensor

    def batches(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(domain, windows [<= BATCH, length])"""
        for domain, files in self.files.items():
            for file in files:
                for windows in torch.from_numpy(
                    valid_windows(file, self.length, NUM_WINDOWS)
                ).split(BATCH):
                    yield domain, windows


def texts_for(folder: Path, files: Mapping[str, list[TokenFile]]) -> Texts:
    """Held-out text as the model in `folder` reads it."""
    recipe = Origin.read(folder).recipe
    assert recipe.shape is not None
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return Texts(files, recipe.shape.context, bytes_per_token(tokenizer))


def bytes_per_token(tokenizer: Tokenizer) -> torch.Tensor:
    """[V] how many bytes of text each token stands for (a byte-level piece has one character per byte)."""
    pieces = (tokenizer.id_to_token(index) for index in range(tokenizer.get_vocab_size()))
    return torch.tensor([0 if piece == END_OF_TEXT else len(piece) for piece in pieces])
