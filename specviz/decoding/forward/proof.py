"""Proof: whether a model obeys the cache, the mask and the positions with which CachedLM reads it.

A configuration is not believed. Some texts are read as CachedLM reads them: in pieces behind a cache, and with a token
tree. The logits are compared with the model's own forward over the whole text, without a cache or mask.
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
from specviz.decoding.forward.states import keeps_state
from specviz.decoding.forward.transformers_forward import asked_of, knows

ROUNDING = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 6e-2}
"""The largest allowed error of logits, in shares of the largest: several times what another order of sums gives."""
_PLAIN_LEEWAY = (
    3  # times ROUNDING for transformers' forward: its faults are large, and it is the last resort
)

# How much noise is always allowed, in shares of the logits, where ...
_MASKED = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 8e-2}  # another kernel rounds
_MOVED = {
    torch.float32: 1e-4,
    torch.float16: 4e-3,
    torch.bfloat16: 1.6e-2,
}  # rows only change order
_MOST_NOISE = 4  # times the noise of the reading before; where all is right, it is about once

_NUM_OTHER_TEXTS = 2  # texts on which a fault must repeat
_RANGE = 100.0  # logits so far below the largest stand for a probability of 0
_SHORT = 12  # tokens
_STATES = 160  # tokens of a text for a model that keeps a state: some read theirs in chunks of 64
_SIBLINGS = 8  # so many rows lie between the text and the branch that is looked at
_PATH = 3  # tokens of that branch
_REPLAYS = 5  # times that a call of one shape is made
_MOST_OPERATIONS = {"cpu": 6e10, "cuda": 3e12}  # in about a second
_MOST_WINDOWS = 3  # the longest that can be reached, and the shortest of the others
_MOST_TOKENS = 4_096  # whatever a configuration says: attention grows with the square
_SHARE_FOR_LIMIT = 0.1  # of a second, for a text as long as the model reads
_OPERATIONS = 6  # per weight and token: a product and a sum, in two whole reads and one in pieces
_WINDOWS = ("window", "chunk_size")  # parts of the names that configurations use
_NOT_WORDS = ("token_id", "token_index")  # ends of names of tokens for pictures, pads, ends

Result = TypeVar("Result")


class Reader(Protocol):
    """A CachedLM, or what reads like one."""

    def forward(self, tokens: Sequence[int], draft: Draft = EMPTY) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Proof:
    """The findings on how a model can be read; reasons are words, empty where everything is right."""

    compact: str = ""
    """Why the compact forward does not read it."""
    quick: str = ""
    """Why compiled code does not read a few of its rows."""
    replays: str = ""
    """Why the compact forward reads it without CUDA graphs, on CUDA."""
    chains: str = ""
    """Why it cannot be read behind a cache."""
    trees: str = ""
    """Why it reads no token trees."""
    untried: str = ""
    """Why nothing was tried."""
    off: float = 0.0
    """By how much its logits behind a cache were off, as a share of the largest, where rounding gives less; else 0."""
    num_tokens: int = 0
    """The length of the longest text that was read."""
    unreached: tuple[int, ...] = ()
    """The windows of its configuration, in tokens, that take too long to reach."""
    ms: float = 0.0
    """The time that the proof took."""

    def words(self) -> str:
        """The findings in one sentence: what was proved, how far, and how long it took."""
        if self.untried:
            return f"how it reads could not be tried: {self.untried}"
        findings = "it reads chains and token trees right"
        if self.trees:
            findings = f"it reads chains only, as {self.trees}"
        windows = " and ".join(f"{length:,}" for length in self.unreached)
        beyond = f"; its window of {windows} takes too long to try" if windows else ""
        off = f"; a token read alone changes its logits by up to {self.off:.1%}" if self.off else ""
        slow = f"; without CUDA graphs: {self.replays}" if self.replays else ""
        tried = f"tried on {self.num_tokens:,} tokens in {self.ms:,.0f} ms{beyond}"
        return f"{findings} ({tried}){off}{slow}"


def prove_reading(
    model: PreTrainedModel,
    context_limit: int,
    compact: Callable[[], Reader],
    quick: Callable[[], Reader],
    plain: Callable[[], Reader],
    why_not_compact: str = "",
    why_not_quick: str = "",
) -> Proof:
    """Reads the model through the compact forward, or through transformers' own if that is absent or wrong.

    Where the compact one is right, its compiled kind is tried too. compact, quick, plain: make a reader with an empty
    cache. The reasons are words; with one, that forward is not tried.
    """
    began = time.perf_counter()
    lengths, unreached = _choose_lengths(model, context_limit)
    texts, failure = _read_texts(model, lengths)
    faults = _Faults(chains=failure)
    untried = ""
    if not texts and not failure:
        untried = "its context is too short"
    elif not all(text.has_numbers for text in texts):
        untried = "some of its logits are not numbers"
    why_not_compact = why_not_compact or untried
    if not failure and not untried:
        if not why_not_compact:
            why_not_compact = _why_not("compact", compact, texts)
        if why_not_compact:
            faults = _prove_plain(plain, texts, reads_trees=not keeps_state(model))
        elif not why_not_quick:
            why_not_quick = _why_not("compiled", quick, texts)
    return Proof(
        compact=why_not_compact,
        quick=why_not_quick,
        chains=faults.chains,
        trees=faults.trees,
        off=faults.off,
        untried=untried,
        num_tokens=lengths[-1] + _PATH if lengths else 0,
        unreached=unreached,
        ms=1000 * (time.perf_counter() - began),
    )


def _why_not(kind: str, make: Callable[[], Reader], texts: Sequence[_Text]) -> str:
    """Why a forward of this kind does not read the model, in words; empty where it reads it right."""
    faults = _find_faults(make, texts, 1)
    fault = faults.chains or faults.trees
    return f"the {kind} one {fault}" if fault else ""


def _prove_plain(
    plain: Callable[[], Reader], texts: Sequence[_Text], *, reads_trees: bool
) -> _Faults:
    """Why transformers' own forward cannot read chains, and why it cannot read token trees."""
    faults = _find_faults(plain, texts, _PLAIN_LEEWAY, reads_trees=reads_trees)
    chains = trees = ""
    if faults.chains:
        chains = f"its numbers behind a cache are not those of the whole text read at once (it {faults.chains})"
    if not reads_trees:
        trees = "it keeps a state, which branches cannot share"
    elif faults.trees:
        trees = f"its numbers in a token tree are not those of the same tokens in a row (it {faults.trees})"
    return _Faults(chains, trees, faults.off)


def find_replay_fault(model: PreTrainedModel, plain: Reader, replayed: Reader) -> str:
    """Why the replays of a reader are not used, in words; empty where they give the numbers of `plain`.

    Each kind of call is made at several lengths of a text, because the first ones are no replays yet.
    """
    words = list(islice(cycle(_words(model)), _SHORT + _REPLAYS + _PATH))
    drafted = tuple(words[-_PATH:])
    tree = Draft(drafted, (ROOT, ROOT, 0), (None,) * _PATH)
    rounding = ROUNDING.get(model.dtype, ROUNDING[torch.float32])
    for length in range(_SHORT, _SHORT + _REPLAYS):
        for draft in (EMPTY, chain(drafted), tree):
            right = plain.forward(words[:length], draft)
            logits = replayed.forward(words[:length], draft)
            off = float((logits - right).abs().max())
            largest = float(right.abs().max())
            if not off <= rounding * largest:
                return f"one was off by {off:.2g} of {largest:.2g} behind {length} tokens"
    return ""


def _choose_lengths(
    model: PreTrainedModel, context_limit: int
) -> tuple[list[int], tuple[int, ...]]:
    """How many tokens the texts have, and the windows that are too long to be reached in a second.

    One text has a few tokens. Others reach just beyond each window, or as far as a second allows; and the limit where
    that is quick.
    """
    weights = max(1, model.num_parameters(exclude_embeddings=True))
    operations = _MOST_OPERATIONS.get(model.device.type, _MOST_OPERATIONS["cpu"])
    affordable = min(_MOST_TOKENS, int(operations / (_OPERATIONS * weights)))
    limit = context_limit - _PATH
    windows = sorted(window for window in _windows(model.config) if window + _PATH <= limit)
    reached = [window for window in windows if window + _PATH <= affordable][-_MOST_WINDOWS:]
    beyond = [window for window in windows if window + _PATH > affordable]
    unreached = tuple(beyond[:_MOST_WINDOWS])
    lengths = {window + _PATH for window in reached}
    if keeps_state(model) and min(affordable, limit) >= _STATES:
        lengths.add(_STATES)
    lengths.add(min(_SHORT, limit))
    if unreached and affordable > _SHORT:
        lengths.add(affordable)
    if limit <= affordable * _SHARE_FOR_LIMIT:
        lengths.add(limit)
    return sorted(length for length in lengths if length > 1), unreached


def _windows(config: PreTrainedConfig) -> set[int]:
    """The lengths of windows and chunks of attention in a configuration, by whatever name."""
    windows = set()
    for name, value in config.get_text_config(decoder=True).to_dict().items():
        if any(part in name for part in _WINDOWS) and not name.endswith("_layers"):
            windows |= _whole_numbers(value)
    return {window for window in windows if window > 0}


def _whole_numbers(value: object) -> set[int]:
    """The whole numbers in a value of a configuration, which may be a list; True is none."""
    values = value if isinstance(value, list) else [value]
    return {number for number in values if type(number) is int}


class _Text:
    """A text and two branches behind it, with their right logits.

    Those come from transformers' forward over all tokens at once.
    """

    def __init__(self, model: PreTrainedModel, length: int, start: int = 0) -> None:
        self._model = model
        self._start = start
        tokens = list(islice(cycle(_words(model)), start, start + length + _SIBLINGS + _PATH))
        self.tokens = tokens[:length]
        self._siblings = tokens[length:-_PATH]
        self._path = tokens[-_PATH:]
        self.length = length + _PATH
        self.dtype = model.dtype
        self._sibling_logits = _read_whole(model, [*self.tokens, self._siblings[0]], 3)  # [3, V]
        self._path_logits = _read_whole(model, [*self.tokens, *self._path], 1 + _PATH)  # [4, V]
        self.has_numbers = not torch.cat([self._sibling_logits, self._path_logits]).isnan().any()

    def others(self) -> Iterator[_Text]:
        """Texts of the same length with other tokens: rounding may change a token's expert, but not on every text."""
        for start in range(self._start + 1, self._start + 1 + _NUM_OTHER_TEXTS):
            yield _Text(self._model, len(self.tokens), start * (_SIBLINGS + _PATH))

    def read_chains(self, reader: Reader) -> tuple[Tensor, Tensor]:
        """The reader's logits [6, V] and the right ones: a text in halves, a draft, another end, then token by token.

        A model with a state reads each time behind one, and puts one back for the other end.
        """
        start = self.tokens[:-1]
        reader.forward(start[: len(self.tokens) // 2])
        rows = [reader.forward(start)]  # [1, V]
        rows.append(reader.forward(self.tokens, chain(self._siblings[:2]))[:2])
        for size in range(1, _PATH + 1):
            rows.append(reader.forward([*self.tokens, *self._path[:size]]))
        return torch.cat(rows), torch.cat([self._sibling_logits, self._path_logits[1:]])

    def read_trees(self, reader: Reader) -> tuple[Tensor, Tensor]:
        """The reader's logits [4, V] and the right ones, in a tree that starts like a chain.

        Its first branch goes on, so that branch's rows lie in the cache as those of a chain would.
        """
        tokens = (*self._path[:2], *self._siblings)
        parents = (ROOT, 0, *[ROOT] * _SIBLINGS)
        tree = Draft(tokens, parents, (None,) * len(tokens))
        logits = reader.forward(self.tokens, tree)
        return logits[:4], torch.stack([*self._path_logits[:3], self._sibling_logits[2]])

    def read_moved(self, reader: Reader) -> tuple[Tensor, Tensor]:
        """The reader's logits [5, V] and the right ones, in a tree with a last branch that goes on.

        The siblings' rows lie before that branch. The last row is one that follows the branch in the text.
        """
        tokens = (*self._siblings, *self._path[:2])
        parents = (*[ROOT] * (_SIBLINGS + 1), _SIBLINGS)
        tree = Draft(tokens, parents, (None,) * len(tokens))
        in_tree = reader.forward(self.tokens, tree)
        behind = reader.forward([*self.tokens, *self._path])  # [1, V]
        right = [*self._sibling_logits[1:], *self._path_logits[1:]]
        return torch.cat([in_tree[:2], in_tree[-2:], behind]), torch.stack(right)


def _words(model: PreTrainedModel) -> list[int]:
    """The ids of a vocabulary in a mixed order, without those that its configuration has a special use for."""
    special = set()
    for config in (model.config, model.config.get_text_config(decoder=True)):
        for name, value in config.to_dict().items():
            if name.endswith(_NOT_WORDS):
                special |= _whole_numbers(value)
    size = model.get_input_embeddings().weight.shape[0]
    step = 7919 if size % 7919 else 7907  # two primes: one of them meets every id
    mixed = [place * step % size for place in range(3, size + 3)]
    return [token for token in mixed if token not in special] or mixed


@torch.inference_mode()
def _read_whole(model: PreTrainedModel, tokens: Sequence[int], num_rows: int) -> Tensor:
    """The logits [num_rows, V] of the last rows, in float32. Positions are passed, as `generate` does, if possible."""
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
    """The texts of these lengths, and why the model's own forward fails on one of them, in words."""
    texts = []
    for length in lengths:
        text, failure = _attempt(partial(_Text, model, length))
        if text is None:
            num_tokens = length + _PATH
            return texts, f"its own forward over {num_tokens:,} tokens at once fails ({failure})"
        texts.append(text)
    return texts, ""


@dataclass(frozen=True, slots=True)
class _Faults:
    """The faults of a reader, in words; empty where there is none."""

    chains: str = ""
    trees: str = ""
    off: float = 0.0
    """See `Proof.off`."""


def _find_faults(
    make: Callable[[], Reader],
    texts: Sequence[_Text],
    leeway: float,
    *,
    reads_trees: bool = True,
) -> _Faults:
    """The first fault of a reader's chains and the first of its trees.

    leeway: how many times the usual rounding is allowed. A fault must repeat on other texts. Noise may grow only a few
    times from one reading to the next. So a fault shows even where the rounding of 16 bits would hide it: once the
    rows of the cache are not in a chain's order.
    """
    trees = ""
    off = 0.0
    for text in texts:
        find = partial(_find_faults_on, make=make, leeway=leeway, reads_trees=reads_trees)
        faults = find(text)
        off = max(off, faults.off)
        if not (faults.chains or faults.trees):
            continue
        others = map(find, text.others())
        if not all(other.chains or other.trees for other in others):
            continue
        trees = trees or faults.trees
        if faults.chains:
            return _Faults(faults.chains, trees, off)
    return _Faults("", trees, off)


def _find_faults_on(
    text: _Text, make: Callable[[], Reader], leeway: float, *, reads_trees: bool
) -> _Faults:
    """The faults of a reader on one text."""
    reader, failure = _attempt(make)
    if reader is None:
        return _Faults(f"fails before it reads: {failure}")
    chains = _compare(text, text.read_chains, reader)
    rounding = ROUNDING.get(text.dtype, ROUNDING[torch.float32])
    off = chains.off if rounding < chains.off < math.inf else 0.0
    if chain_fault := chains.fault(leeway * rounding):
        return _Faults(chain_fault, "", off)
    noise = chains.noise
    trees = ((text.read_trees, _MASKED), (text.read_moved, _MOVED)) if reads_trees else ()
    for read, least in trees:
        most_noise = max(_MOST_NOISE * noise, least.get(text.dtype, 0.0))
        difference = _compare(text, read, reader)
        if tree_fault := difference.fault(leeway * rounding, most_noise):
            return _Faults("", tree_fault, off)
        noise = difference.noise
    return _Faults(off=off)


@dataclass(frozen=True, slots=True)
class _Difference:
    """How far logits that were read lie from the right ones."""

    off: float
    """The largest difference, as a share of the largest right logit."""
    noise: float
    """The root mean square of the worst row's difference, in shares of the same over all right logits."""
    words: str

    def fault(self, most_off: float, most_noise: float = math.inf) -> str:
        """The words for the difference if it is larger than allowed; else empty."""
        return "" if self.off <= most_off and self.noise <= most_noise else self.words


def _compare(
    text: _Text, read: Callable[[Reader], tuple[Tensor, Tensor]], reader: Reader
) -> _Difference:
    """Reads a text in some way and compares the logits. A failure is an endless difference."""
    logits, failure = _attempt(lambda: read(reader))
    if logits is None:
        words = f"fails on {text.length:,} tokens: {failure}"
        return _Difference(math.inf, math.inf, words)
    read_logits, right = logits
    lowest = right.max() - _RANGE
    read_logits = read_logits.float().clamp_min(lowest)
    right = right.float().clamp_min(lowest)
    counted = right[right > lowest]  # not the rows of a padded vocabulary
    difference = read_logits - right
    off = float(difference.abs().max())
    largest = float(counted.abs().max())
    worst = difference.square().mean(-1).max().sqrt()
    usual = counted.square().mean().sqrt().clamp_min(1e-30)
    words = f"is off by {off:.2g} of {largest:.2g} on {text.length:,} tokens"
    return _Difference(off / max(largest, 1e-30), float(worst / usual), words)


def _attempt(action: Callable[[], Result]) -> tuple[Result | None, str]:
    """The result of an action, or None and how it failed, in words: a strange model may raise anything."""
    try:
        return action(), ""
    except Exception as error:
        if is_out_of_memory(error):
            raise
        reason = str(error).partition("\n")[0]
        return None, f"{type(error).__name__}: {reason:.80}"
