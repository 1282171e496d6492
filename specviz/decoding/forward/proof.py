"""Proof: whether a model obeys the cache, the mask and the positions with which CachedLM reads it.

A configuration is not believed. Some texts are read as CachedLM reads them, in pieces behind a cache and with a token
tree, and the logits are held against the model's own forward over the whole text, without a cache or mask.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from typing import Protocol, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from specviz.decoding.device import is_out_of_memory
from specviz.decoding.draft import EMPTY, ROOT, Draft, chain
from specviz.decoding.forward.transformers_forward import asked_of, knows

ROUNDING = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 6e-2}
"""How far logits may be off, in shares of the largest: some times what two orders of the same sums differ by."""
_OWN = 3  # times as far for a model's own forward: what it gets wrong is wrong by far, and nothing else reads it
_MASKED = {
    torch.float32: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 8e-2,
}  # what another kernel may round differently
_MOVED = {
    torch.float32: 1e-4,
    torch.float16: 4e-3,
    torch.bfloat16: 1.6e-2,
}  # and the same one, rows in another order
_OTHERS = 2  # texts on which a fault must repeat
_RANGE = 100.0  # logits so far below the largest stand for a probability of 0
_MOST_NOISE = 4  # times the rounding of the reading before; where all is right, it is about once
_SHORT = 12  # tokens
_SIBLINGS = 8  # so many rows lie between the text and the branch that is looked at
_PATH = 3  # tokens of that branch
_REPLAYS = 5  # times that a call of one shape is made
_MOST_OPERATIONS = {"cpu": 6e10, "cuda": 3e12}  # about a second's
_MOST_WINDOWS = 3  # the longest that can be reached, and the shortest of the others
_MOST_TOKENS = 4_096  # whatever a configuration says: attention grows with the square
_SHARE_FOR_LIMIT = 0.1  # of a second, for a text as long as the model reads
_OPERATIONS = (
    6  # for each weight and token: a product and a sum, in two whole reads and one in pieces
)
_WINDOWS = ("window", "chunk_size")  # parts of the names that configurations use
_NOT_WORDS = (
    "token_id",
    "token_index",
)  # tokens that stand for a picture, a pad, a start or an end

Result = TypeVar("Result")


class Reader(Protocol):
    def forward(self, tokens: Sequence[int], draft: Draft = EMPTY) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Proof:
    """What a model was found to do.

    compact: why the compact forward does not read it. replays: why it does so without CUDA graphs, on CUDA. chains: why
    it cannot be read behind a cache. trees: why it reads no token trees. All in words, empty where everything is right.
    untried: why none of it was tried. num_tokens: the longest text that was read. unreached: windows of its
    configuration, in tokens, that take too long to reach. ms: what it cost.
    """

    compact: str = ""
    replays: str = ""
    chains: str = ""
    trees: str = ""
    untried: str = ""
    num_tokens: int = 0
    unreached: tuple[int, ...] = ()
    ms: float = 0.0

    def words(self) -> str:
        """What was proved, how far, and what it cost."""
        if self.untried:
            return f"how it reads could not be tried: {self.untried}"
        what = (
            f"it reads chains only, as {self.trees}"
            if self.trees
            else "it reads chains and token trees right"
        )
        windows = " and ".join(f"{length:,}" for length in self.unreached)
        beyond = f"; its window of {windows} takes too long to try" if windows else ""
        slow = f"; without CUDA graphs: {self.replays}" if self.replays else ""
        return f"{what} (tried on {self.num_tokens:,} tokens in {self.ms:,.0f} ms{beyond}){slow}"


def prove_reading(
    model: PreTrainedModel,
    context_limit: int,
    compact: Callable[[], Reader],
    plain: Callable[[], Reader],
    why_not_compact: str = "",
) -> Proof:
    """Reads the model through the compact forward, and through transformers' own where that is not to be had or wrong.

    compact, plain: make a reader with an empty cache. why_not_compact: in words; the compact one is then not tried.
    """
    began = time.perf_counter()
    lengths, unreached = _lengths(model, context_limit)
    texts, chains = _read_texts(model, lengths)
    trees = untried = ""
    if not texts and not chains:
        untried = "its context is too short"
    elif not all(text.has_numbers for text in texts):
        untried = "some of its logits are not numbers"
    why_not_compact = why_not_compact or untried
    can_be_tried = not chains and not untried
    if can_be_tried and not why_not_compact:
        faults = _find_faults(compact, texts, 1)
        why_not_compact = f"the compact one {faults[0] or faults[1]}" if any(faults) else ""
    if can_be_tried and why_not_compact:
        chains, trees = _find_faults(plain, texts, _OWN)
        chains = (
            chains
            and f"its numbers behind a cache are not those of the whole text read at once (it {chains})"
        )
        trees = (
            trees
            and f"its numbers in a token tree are not those of the same tokens in a row (it {trees})"
        )
    num_tokens = lengths[-1] + _PATH if lengths else 0
    took = 1000 * (time.perf_counter() - began)
    return Proof(why_not_compact, "", chains, trees, untried, num_tokens, unreached, took)


def find_replay_fault(model: PreTrainedModel, plain: Reader, replayed: Reader) -> str:
    """Why the replays of a reader are not used, in words; empty where they give the numbers of one without.

    Each kind of call is made at several lengths of a text: the first are no replays yet.
    """
    words = list(islice(cycle(_words(model)), _SHORT + _REPLAYS + _PATH))
    drafts = [
        EMPTY,
        chain(words[-_PATH:]),
        Draft(tuple(words[-_PATH:]), (ROOT, ROOT, 0), (None,) * _PATH),
    ]
    for length in range(_SHORT, _SHORT + _REPLAYS):
        for draft in drafts:
            right = plain.forward(words[:length], draft)
            given = replayed.forward(words[:length], draft)
            off, largest = float((given - right).abs().max()), float(right.abs().max())
            if not off <= ROUNDING.get(model.dtype, ROUNDING[torch.float32]) * largest:
                return f"one was off by {off:.2g} of {largest:.2g} behind {length} tokens"
    return ""


def _lengths(model: PreTrainedModel, context_limit: int) -> tuple[list[int], tuple[int, ...]]:
    """How many tokens the texts have, and the windows that are too long to be reached in a second.

    A few tokens; just beyond each window, or as far as a second reaches; up to the limit where that is quick.
    """
    weights = max(1, model.num_parameters(exclude_embeddings=True))
    operations = _MOST_OPERATIONS.get(model.device.type, _MOST_OPERATIONS["cpu"])
    affordable = min(_MOST_TOKENS, int(operations / (_OPERATIONS * weights)))
    limit = context_limit - _PATH
    windows = sorted(window for window in _windows(model.config) if window + _PATH <= limit)
    reached = [window for window in windows if window + _PATH <= affordable][-_MOST_WINDOWS:]
    beyond = [window for window in windows if window + _PATH > affordable]
    unreached = tuple(beyond[:_MOST_WINDOWS])
    lengths = {min(_SHORT, limit), *(window + _PATH for window in reached)}
    if unreached and affordable > _SHORT:
        lengths.add(affordable)
    if limit <= affordable * _SHARE_FOR_LIMIT:
        lengths.add(limit)
    return sorted(length for length in lengths if length > 1), unreached


def _windows(config: PreTrainedConfig) -> set[int]:
    """The lengths of windows and chunks of attention in a configuration, by whatever name."""
    found = set()
    for name, value in config.get_text_config(decoder=True).to_dict().items():
        if any(part in name for part in _WINDOWS) and not name.endswith("_layers"):
            found |= {
                number
                for number in (value if isinstance(value, list) else [value])
                if type(number) is int
            }
    return {number for number in found if number > 0}


class _Text:
    """A text, the branches that follow it, and the logits of each by transformers' forward over all of it at once."""

    def __init__(self, model: PreTrainedModel, length: int, start: int = 0) -> None:
        self._model, self._start = model, start
        tokens = list(islice(cycle(_words(model)), start, start + length + _SIBLINGS + _PATH))
        self.tokens, self._siblings, self._path = (
            tokens[:length],
            tokens[length:-_PATH],
            tokens[-_PATH:],
        )
        self.length, self.dtype = length + _PATH, model.dtype
        self._beside = _read_whole(model, [*self.tokens, self._siblings[0]], 3)
        self._along = _read_whole(model, [*self.tokens, *self._path], 4)
        self.has_numbers = not torch.cat([self._beside, self._along]).isnan().any()

    def others(self) -> Iterator[_Text]:
        """As long ones of other tokens: rounding may send a token to another expert, but not on every text."""
        for start in range(self._start + 1, self._start + 1 + _OTHERS):
            yield _Text(self._model, len(self.tokens), start * (_SIBLINGS + _PATH))

    def read_chains(self, reader: Reader) -> tuple[Tensor, Tensor]:
        """Logits [5, V] that the reader gives and those that are right: all at once, three rows, one row alone."""
        start, last = self.tokens[:-1], self.tokens[-1]
        given = [
            reader.forward(start),
            reader.forward(start, chain([last, self._siblings[0]])),
            reader.forward([*self.tokens, self._path[0]]),
        ]
        return torch.cat(given), torch.stack([self._beside[0], *self._beside, self._along[1]])

    def read_trees(self, reader: Reader) -> tuple[Tensor, Tensor]:
        """The same of a tree whose first branch goes on: its rows lie in the cache as those of a chain would."""
        tree = Draft(
            (*self._path[:2], *self._siblings),
            (ROOT, 0, *[ROOT] * _SIBLINGS),
            (None,) * (_SIBLINGS + 2),
        )
        given = reader.forward(self.tokens, tree)
        return given[:4], torch.stack([*self._along[:3], self._beside[2]])

    def read_moved(self, reader: Reader) -> tuple[Tensor, Tensor]:
        """The same of a tree whose last branch goes on, with its siblings' rows before it, and of one row behind it."""
        parents = (*[ROOT] * (_SIBLINGS + 1), _SIBLINGS)
        tree = Draft((*self._siblings, *self._path[:2]), parents, (None,) * len(parents))
        given = reader.forward(self.tokens, tree)
        given = [given[:2], given[-2:], reader.forward([*self.tokens, *self._path])]
        return torch.cat(given), torch.stack([*self._beside[1:], *self._along[1:]])


def _words(model: PreTrainedModel) -> list[int]:
    """Ids of a vocabulary in a mixed order, without those that its configuration has a use of its own for."""
    special = set()
    for config in (model.config, model.config.get_text_config(decoder=True)):
        for name, value in config.to_dict().items():
            if name.endswith(_NOT_WORDS):
                special |= {
                    number
                    for number in (value if isinstance(value, list) else [value])
                    if type(number) is int
                }
    size = model.get_input_embeddings().weight.shape[0]
    step = 7919 if size % 7919 else 7907  # two primes: one of them meets every id
    mixed = [place * step % size for place in range(3, size + 3)]
    return [token for token in mixed if token not in special] or mixed


@torch.inference_mode()
def _read_whole(model: PreTrainedModel, tokens: Sequence[int], num_rows: int) -> Tensor:
    """Logits [num_rows, V] in float32 of the last rows; places are named, as `generate` does, where they can be."""
    ids = torch.tensor([tokens], device=model.get_input_embeddings().weight.device)
    options = asked_of(model, num_logits=num_rows)
    out = None
    if knows(type(model), "position_ids"):
        places = torch.arange(len(tokens), device=ids.device)[None]
        out, _ = _attempt(partial(model, ids, position_ids=places, **options))
    if out is None:
        out = model(ids, **options)
    return out.logits[0, -num_rows:].to(ids.device).float()


def _read_texts(model: PreTrainedModel, lengths: Sequence[int]) -> tuple[list[_Text], str]:
    """Texts of these lengths; and why the model's own forward fails on one of them, in words."""
    texts = []
    for length in lengths:
        text, failure = _attempt(partial(_Text, model, length))
        if text is None:
            return (
                texts,
                f"its own forward over {length + _PATH:,} tokens at once fails ({failure})",
            )
        texts.append(text)
    return texts, ""


def _find_faults(
    make: Callable[[], Reader], texts: Sequence[_Text], leeway: float
) -> tuple[str, str]:
    """What is wrong with a reader's chains and with its trees, in words: the first of each; empty where nothing is.

    leeway: how many times the usual rounding is allowed. Besides, a reading may be as far off as rounding made the one
    before. So a fault that is small beside the rounding of 16 bits shows, too, once rows are not where a chain's are.
    A fault must repeat on other texts.
    """
    trees = ""
    for text in texts:
        found = _look_at(text, make, leeway)
        for other in text.others() if any(found) else ():
            again = _look_at(other, make, leeway)
            found = tuple(words if any(again) else "" for words in found)
        trees = trees or found[1]
        if found[0]:
            return found[0], trees
    return "", trees


def _look_at(text: _Text, make: Callable[[], Reader], leeway: float) -> tuple[str, str]:
    """What is wrong with chains and with trees on one text."""
    reader, failure = _attempt(make)
    if reader is None:
        return f"fails before it reads: {failure}", ""
    chains, noise = _find_fault(text, text.read_chains, reader, leeway, math.inf)
    trees = ""
    for read, least in ((text.read_trees, _MASKED), (text.read_moved, _MOVED)):
        if not chains and not trees:
            most_noise = max(_MOST_NOISE * noise, least.get(text.dtype, 0.0))
            trees, noise = _find_fault(text, read, reader, leeway, most_noise)
    return chains, trees


def _find_fault(
    text: _Text,
    read: Callable[[Reader], tuple[Tensor, Tensor]],
    reader: Reader,
    leeway: float,
    most_noise: float,
) -> tuple[str, float]:
    """What is wrong with the logits that were read, in words, and how far off the worst row is: the root of its mean
    squared difference, in shares of that of all logits. A failure is a fault, whatever a strange model raises."""
    logits, failure = _attempt(lambda: read(reader))
    if logits is None:
        return f"fails on {text.length:,} tokens: {failure}", math.inf
    lowest = logits[1].max() - _RANGE
    given, right = (rows.float().clamp_min(lowest) for rows in logits)
    counted = right[right > lowest]  # not the rows of a padded vocabulary
    difference = given - right
    off, largest = float(difference.abs().max()), float(counted.abs().max())
    noise = float(
        difference.square().mean(-1).max().sqrt() / counted.square().mean().sqrt().clamp_min(1e-30)
    )
    if (
        off <= leeway * ROUNDING.get(text.dtype, ROUNDING[torch.float32]) * largest
        and noise <= most_noise
    ):
        return "", noise
    return f"is off by {off:.2g} of {largest:.2g} on {text.length:,} tokens", noise


def _attempt(action: Callable[[], Result]) -> tuple[Result | None, str]:
    """What an action gives; or None and how it failed, in words: a strange model may raise anything."""
    try:
        return action(), ""
    except Exception as error:
        if is_out_of_memory(error):
            raise
        reason = str(error).partition("\n")[0]
        return None, f"{type(error).__name__}: {reason:.80}"
