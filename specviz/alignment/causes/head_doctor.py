"""Under which convention does a draft head accept most? A new head that accepts little is most often off by one.

The target continues a few prompts and reads its texts once. The head is then asked about every place of them as it is
served, and under each neighbouring convention: other states, other rows, other positions, without each norm, other
texts. What agrees clearly more is named, with the file, flag or engine that says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice

import numpy as np
import torch
from scipy.stats import wilcoxon
from torch import Tensor

from specviz.alignment.generate import sample
from specviz.decoding.sampling import Sampling
from specviz.drafters.eagle.heads import EagleHead
from specviz.drafters.eagle.layers import Rows
from specviz.drafters.heads import LoadedHeads
from specviz.drafters.medusa.heads import MedusaHeads
from specviz.errors import SpecvizError
from specviz.models.chat import has_chat_form, render_chat
from specviz.models.library import LoadedModel
from specviz.models.score import overlap_of

NUM_TEXTS, NUM_TOKENS, NUM_DEPTHS = 48, 48, 3
FEWEST_TEXTS = 4
LEAST_GAIN = 0.003  # of overlap; below, another convention changes nothing of use
CLEAR = 0.001  # the most that a gain's p-value may be: about ten conventions are tried on every head
PLAIN, CHAT, OTHER_START = "plain", "chat", "other start"
TEXTS: Mapping[str, str] = {
    PLAIN: "plain text, as the tokenizer begins it",
    CHAT: "the target's chat template",
    OTHER_START: "plain text with a start token, or without the tokenizer's own",
}
LAST_NORM = "the target's last norm"


@dataclass(frozen=True, slots=True)
class Convention:
    """How a head is fed; the defaults are what its files say.

    layer: its states come from so many layers later. row: the state beside a token is so many tokens older than the one
    before the token. position: added to the positions of drafted tokens. skipped: a norm that is left out. flipped: a
    flag of EAGLE-3.1 taken the other way round. text: PLAIN, CHAT, or with or without a start token, the OTHER_START.
    """

    layer: int = 0
    row: int = 0
    position: int = 0
    skipped: str = ""
    flipped: str = ""
    text: str = PLAIN


SAYS: Mapping[str, str] = {
    "layer": "config.json: eagle_aux_hidden_state_layer_ids, which vLLM counts by the layer before the state, SGLang "
    "by the layer behind it; a head of EAGLE-1 or Medusa reads the last state",
    "row": "the training data, or the engine: a row must pair the state of one token with the token behind it",
    "position": "the engine: the first drafted token follows the last one of the text without a gap",
    "skipped": "the training code, or the weights of this norm: they do not belong to what the head was trained with",
    "flipped": "config.json: this flag",
    "text": "the tokenizer's files (bos_token, add_bos_token, chat_template), or how requests are rendered: the head "
    "was trained on texts of the other form",
}
"""Which file, flag or program is to be looked at, by the field of a Convention."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One convention. agreement: sum min(p, q), p the target's and q the head's probabilities, by depth. gain: of its
    mean over depths and texts against the head as it is served; p_value: of no gain, by Wilcoxon's signed ranks over
    the texts, as gains differ widely between kinds of text."""

    convention: Convention
    field: str
    words: str
    agreement: tuple[float, ...]
    gain: float
    p_value: float

    @property
    def is_better(self) -> bool:
        return self.gain > LEAST_GAIN and self.p_value <= CLEAR


@dataclass(frozen=True, slots=True)
class HeadDiagnosis:
    """served: by depth, as its files say. trials: every other convention, the best first. left_out: what could not be
    asked of this head or target, and why."""

    head: str
    target: str
    num_texts: int
    served: tuple[float, ...]
    trials: tuple[Trial, ...]
    left_out: tuple[str, ...]

    @property
    def best(self) -> Trial | None:
        return next((trial for trial in self.trials if trial.is_better), None)


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """A text of n tokens as the target reads it. states: before each layer and, last, behind the final norm, each
    [n, H]; bare: before that norm. p [n, V]: the law behind each token. start: the first token that the target wrote.
    """

    ids: Tensor
    states: tuple[Tensor, ...]
    bare: Tensor | None
    p: Tensor
    start: int


class HeadDoctor:
    """Examines one head on NUM_TEXTS texts with which the target continues the prompts, in turn; each is read once.

    Raises SpecvizError for too few prompts, or one that the target cannot read.
    """

    def __init__(self, heads: LoadedHeads, target: LoadedModel, prompts: Sequence[str]) -> None:
        if len(prompts) < FEWEST_TEXTS:
            raise SpecvizError(f"a head is examined on at least {FEWEST_TEXTS} prompts (got {len(prompts)})")
        self._heads, self._target, self._prompts = heads, target, tuple(islice(cycle(prompts), NUM_TEXTS))
        self._readings: dict[str, list[Reading]] = {}

    @torch.inference_mode()
    def examine(self, served: Convention | None = None) -> HeadDiagnosis:
        """served: how the head is fed today, if not as its files say; every other convention is a neighbour of it."""
        served = served or Convention()
        base, trials, left_out = self._agreement(served), [], []
        for field, words, convention in _neighbours(self._heads.module, self._target, served):
            try:
                trials.append(_trial(convention, field, words, base, self._agreement(convention)))
            except SpecvizError as refusal:
                left_out.append(f"{words}: {refusal}")
        trials.sort(key=lambda trial: -trial.gain)
        return HeadDiagnosis(
            self._heads.name, self._target.name, len(base), tuple(base.mean(0).tolist()), tuple(trials), tuple(left_out)
        )

    def _agreement(self, convention: Convention) -> np.ndarray:
        """[texts, depths]"""
        if (text := convention.text) not in self._readings:
            self._readings[text] = _read_all(self._target, self._prompts, text)
        head = _changed(self._heads.module, convention)
        return np.array([_agreement(head, self._target, each, convention) for each in self._readings[text]])


def _trial(convention: Convention, field: str, words: str, base: np.ndarray, found: np.ndarray) -> Trial:
    gains = (found - base).mean(1)
    p_value = float(wilcoxon(gains, alternative="greater", zero_method="pratt").pvalue) if gains.any() else 1.0
    return Trial(convention, field, words, tuple(found.mean(0).tolist()), float(gains.mean()), p_value)


# ---- conventions ----------------------------------------------------------------------------------------------------


def _neighbours(
    head: torch.nn.Module, target: LoadedModel, served: Convention
) -> Iterator[tuple[str, str, Convention]]:
    """The field that differs, in words what differs, and the convention."""
    shifts = {
        "layer": ("states from one layer earlier", "states from one layer later"),
        "row": ("beside each token, its own state", "beside each token, the state before the last"),
        "position": ("drafted tokens one position earlier", "drafted tokens one position later"),
    }
    is_eagle = isinstance(head, EagleHead)
    for field, words in shifts.items():
        if field == "position" and not is_eagle:
            continue
        for step, each in zip((-1, 1), words, strict=True):
            yield field, each, replace(served, **{field: getattr(served, field) + step})
    norms = [name for name in head.norms() if not name.endswith(("q_norm", "k_norm"))] if is_eagle else []
    if -1 in getattr(head, "hidden_layers", (-1,)):
        norms.append(LAST_NORM)
    for name in norms:
        is_off = served.skipped == name
        yield "skipped", f"{'with' if is_off else 'without'} {name}", replace(served, skipped="" if is_off else name)
    for flag in head.flags() if is_eagle else ():
        yield "flipped", f"{flag} the other way round", replace(served, flipped="" if served.flipped == flag else flag)
    possible = {PLAIN: True, CHAT: has_chat_form(target.tokenizer), OTHER_START: _other_start(target, "a") is not None}
    for text, words in TEXTS.items():
        if possible[text] and text != served.text:
            yield "text", words, replace(served, text=text)


def _changed(head: torch.nn.Module, convention: Convention) -> torch.nn.Module:
    if convention.skipped and convention.skipped != LAST_NORM:
        head = head.without(convention.skipped)
    return head.with_flag_flipped(convention.flipped) if convention.flipped else head


# ---- the target's own texts -----------------------------------------------------------------------------------------


def _other_start(target: LoadedModel, prompt: str) -> list[int] | None:
    """The prompt with the start token that the tokenizer does not put there, or without its own; None: it has none."""
    whole, bare = target.text.encode(prompt), target.text.encode(prompt, special=False)
    if whole != bare:
        return bare
    start = getattr(target.tokenizer, "bos_token_id", None)
    return [start, *whole] if isinstance(start, int) else None


def _encode(target: LoadedModel, prompt: str, text: str) -> list[int]:
    if text == CHAT:
        return target.text.encode(render_chat(target.tokenizer, prompt), special=False)
    return target.text.encode(prompt) if text == PLAIN else _other_start(target, prompt)


def _read_all(target: LoadedModel, prompts: Sequence[str], text: str) -> list[Reading]:
    encoded = [_encode(target, prompt, text)[-target.info.context_limit + NUM_TOKENS + 1 :] for prompt in prompts]
    drawn = sample(target, encoded, range(len(encoded)), Sampling(), NUM_TOKENS)
    return [_reading(target, prompt, each.ids) for prompt, each in zip(encoded, drawn, strict=True)]


def _reading(target: LoadedModel, prompt: Sequence[int], written: Sequence[int]) -> Reading:
    ids = torch.tensor([*prompt, *written], device=target.model.device)
    norm, kept = getattr(target.model.get_decoder(), "norm", None), []
    hook = norm and norm.register_forward_pre_hook(lambda _, given: kept.append(given[0][0]))
    try:
        out = target.model(ids[None], output_hidden_states=True, use_cache=False)
    finally:
        if hook:
            hook.remove()
    states = tuple(state[0] for state in out.hidden_states)
    return Reading(ids, states, kept[0] if kept else None, Sampling().probs(out.logits[0]), len(prompt))


# ---- the head under a convention ------------------------------------------------------------------------------------


def _agreement(head: torch.nn.Module, target: LoadedModel, reading: Reading, convention: Convention) -> list[float]:
    """Mean of sum min(p, q) over the places where the target wrote, by depth."""
    states = _shift_rows(_states(head, reading, convention), convention.row)
    if isinstance(head, MedusaHeads):
        laws = _medusa_laws(head, target, states)
    else:
        laws = _eagle_laws(head, reading, states, convention.position)
    means = []
    for depth, logits in enumerate(laws, start=1):
        first = max(0, reading.start - 1 - depth)  # row i of a depth is judged at place i + depth
        q = Sampling().probs(logits[first:])
        means.append(float(overlap_of(reading.p[depth + first :], q).mean()))
    return means


def _states(head: torch.nn.Module, reading: Reading, convention: Convention) -> Tensor:
    """[n, C]"""
    last, found = len(reading.states) - 1, []
    for layer in getattr(head, "hidden_layers", (-1,)):
        place = (last if layer == -1 else layer) + convention.layer
        if not 0 <= place <= last:
            raise SpecvizError("the target has no such layer")
        needs_bare = place == last and (layer != -1 or convention.skipped == LAST_NORM)
        if needs_bare and reading.bare is None:
            raise SpecvizError("the state before the target's last norm cannot be read")
        found.append(reading.bare if needs_bare else reading.states[place])
    return torch.cat(found, dim=-1)


def _shift_rows(states: Tensor, by: int) -> Tensor:
    """Row i holds state i - by; at the ends the nearest one."""
    places = torch.arange(len(states), device=states.device) - by
    return states[places.clamp(0, len(states) - 1)]


def _medusa_laws(heads: MedusaHeads, target: LoadedModel, states: Tensor) -> Iterator[Tensor]:
    output = target.model.get_output_embeddings()
    for head in range(min(NUM_DEPTHS, len(heads))):
        yield heads.one(head, states[: len(states) - head - 1], output)


def _eagle_laws(head: EagleHead, reading: Reading, states: Tensor, shift: int) -> Iterator[Tensor]:
    """Logits [n - d, V] of depth d = 1, 2, ...: behind the true tokens, each depth reads the head's own features of the
    depth before, as in drafting. Row i sees the text up to its own place and its own earlier depths."""
    num_rows, rows = len(reading.ids) - 1, Rows()
    places = torch.arange(num_rows, device=states.device)
    hidden = head(head.fuse(states[:-1]), reading.ids[1:], places + 1, rows, None)
    yield head.logits(hidden)
    sees = [torch.ones(num_rows, num_rows, dtype=torch.bool, device=states.device).tril()]
    for depth in range(2, NUM_DEPTHS + 1):
        count = num_rows + 1 - depth
        features, ids = hidden[:count], reading.ids[depth:]
        if (ahead := head.ahead(count)) is not None:
            features, ids = ahead
        sees.append(torch.eye(num_rows, dtype=torch.bool, device=states.device)[:, :count])
        see = torch.cat([each[:count] for each in sees], dim=1)
        hidden = head(features, ids, places[:count] + depth + shift, rows, see)
        yield head.logits(hidden)
