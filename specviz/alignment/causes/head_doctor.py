"""Under which convention does a draft head accept most? A new head that accepts little is most often off by one.

The target continues a few prompts and reads its texts once. The head is then asked about every place of them as it is
served, and under each neighbouring convention: other states, other rows, other positions, without each norm, other
texts. What agrees clearly more is named, with the file, flag or engine that says otherwise.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice

import numpy as np
import torch
from scipy.stats import wilcoxon

from specviz.alignment.causes.sample import agreement_ahead
from specviz.alignment.causes.trials import Changed
from specviz.alignment.generate import sample
from specviz.alignment.types import Array
from specviz.decoding.drafter import Drafter
from specviz.decoding.forward.transformers_forward import last_layer, num_layers
from specviz.decoding.sampling import Sampling
from specviz.drafters.eagle.drafter import EagleDrafter
from specviz.drafters.eagle.heads import EagleHead
from specviz.drafters.heads import LoadedHeads
from specviz.drafters.medusa import MedusaDrafter
from specviz.errors import SpecvizError
from specviz.models.chat import has_chat_form, render_chat
from specviz.models.pool import LoadedModel
from specviz.models.score import TextIds

NUM_TEXTS, NUM_TOKENS, NUM_DEPTHS = 48, 48, 3
FEWEST_PROMPTS = 8  # fewer cannot show a clear gain
LEAST_GAIN = 0.003  # of overlap; below, another convention changes nothing of use
CLEAR = 0.05  # the most that a gain's p-value may be
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
class ConventionResult:
    """One convention. agreement: sum min(p, q), p the target's and q the head's probabilities, by depth. gain: of its
    mean over depths and texts against the head as it is served; p_value: of no gain, by Wilcoxon's signed ranks, as
    gains differ widely between kinds of text: over texts, times the number of conventions tried (Bonferroni), or over
    prompts, whichever is larger, as texts of one prompt are alike."""

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
    trials: tuple[ConventionResult, ...]
    left_out: tuple[str, ...]

    @property
    def best(self) -> ConventionResult | None:
        return next((trial for trial in self.trials if trial.is_better), None)


class HeadDoctor:
    """Examines one head on NUM_TEXTS texts with which the target continues the prompts, in turn.

    Raises SpecvizError for too few prompts, or one that the target cannot read.
    """

    def __init__(self, heads: LoadedHeads, target: LoadedModel, prompts: Sequence[str]) -> None:
        if len(prompts) < FEWEST_PROMPTS:
            raise SpecvizError(
                f"a head is examined on at least {FEWEST_PROMPTS} prompts (got {len(prompts)})"
            )
        self._heads, self._target, self._prompts = (
            heads,
            target,
            tuple(islice(cycle(prompts), NUM_TEXTS)),
        )
        self._texts: dict[str, list[TextIds]] = {}

    @torch.inference_mode()
    def examine(self, served: Convention | None = None) -> HeadDiagnosis:
        """served: how the head is fed today, if not as its files say; every other convention is a neighbour of it."""
        served = served or Convention()
        asked, left_out = [*_neighbours(self._heads.module, self._target, served)], []
        drafters = {served: self._drafter(served)}
        for _, words, convention in asked:
            try:
                drafters[convention] = self._drafter(convention)
            except SpecvizError as refusal:
                left_out.append(f"{words}: {refusal}")
        found = self._agreements(drafters)
        base = found.pop(served)
        tried = [each for each in asked if each[-1] in found]
        _, prompt_of = np.unique(self._prompts, return_inverse=True)
        trials = [
            _trial(each, field, words, base, found[each], prompt_of, len(tried))
            for field, words, each in tried
        ]
        trials.sort(key=lambda trial: -trial.gain)
        return HeadDiagnosis(
            self._heads.name,
            self._target.name,
            len(base),
            tuple(base.mean(0).tolist()),
            tuple(trials),
            tuple(left_out),
        )

    def _drafter(self, convention: Convention) -> Drafter:
        """The head under this convention. SpecvizError where it, or the target, cannot be read so."""
        head, target = self._heads.module, self._target
        if convention.skipped not in ("", LAST_NORM):
            head = head.without(convention.skipped)
        if convention.flipped:
            head = head.with_flag_flipped(convention.flipped)
        if isinstance(head, EagleHead):
            drafter = EagleDrafter(head, width=1, nodes=1, shift=convention.position)
        else:
            drafter = MedusaDrafter(head, target.model.get_output_embeddings(), 1)
        last = num_layers(target.model)
        layers = drafter.hidden_layers
        if convention.layer or convention.skipped == LAST_NORM:
            layers = tuple(layer % (last + 1) + convention.layer for layer in layers)
            if not all(0 <= layer <= last for layer in layers):
                raise SpecvizError("the target has no such layer")
        if last in layers:
            last_layer(target.model)
        self._write(convention.text)
        return Changed(drafter, layers, convention.row)

    def _agreements(self, drafters: Mapping[Convention, Drafter]) -> dict[Convention, Array]:
        """Of each convention the mean of sum min(p, q) over the places where the target wrote [texts, depths]."""
        found: dict[Convention, Array] = {}
        for text in TEXTS:
            group = [convention for convention in drafters if convention.text == text]
            own = [drafters[convention] for convention in group]
            texts = self._write(text) if group else ()
            rows = [
                agreement_ahead(self._target, own, each, Sampling(), NUM_DEPTHS) for each in texts
            ]
            found |= zip(group, map(np.array, zip(*rows, strict=True)), strict=True)
        return found

    def _write(self, text: str) -> list[TextIds]:
        """The target's own texts behind the prompts in this form."""
        if text not in self._texts:
            most = self._target.info.context_limit - NUM_TOKENS - 1
            prompts = [_encode(self._target, prompt, text)[-most:] for prompt in self._prompts]
            drawn = sample(self._target, prompts, range(len(prompts)), Sampling(), NUM_TOKENS)
            self._texts[text] = [
                _begin_early(prompt, each.ids) for prompt, each in zip(prompts, drawn, strict=True)
            ]
        return self._texts[text]


def _trial(
    convention: Convention,
    field: str,
    words: str,
    base: Array,
    found: Array,
    prompt_of: Array,
    num_tried: int,
) -> ConventionResult:
    """base, found: agreement [texts, depths] as served and under this convention; prompt_of: of each text, a number."""
    gains = (found - base).mean(1)
    by_prompt = np.bincount(prompt_of, gains) / np.bincount(prompt_of)
    p_value = min(1.0, max(num_tried * _of_no_gain(gains), _of_no_gain(by_prompt)))
    return ConventionResult(
        convention, field, words, tuple(found.mean(0).tolist()), float(gains.mean()), p_value
    )


def _of_no_gain(gains: Array) -> float:
    return (
        float(wilcoxon(gains, alternative="greater", zero_method="pratt").pvalue)
        if gains.any()
        else 1.0
    )


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
    norms = (
        [name for name in head.norms() if not name.endswith(("q_norm", "k_norm"))]
        if is_eagle
        else []
    )
    if -1 in head.hidden_layers:
        norms.append(LAST_NORM)
    for name in norms:
        is_off = served.skipped == name
        yield (
            "skipped",
            f"{'with' if is_off else 'without'} {name}",
            replace(served, skipped="" if is_off else name),
        )
    for flag in head.flags() if is_eagle else ():
        yield (
            "flipped",
            f"{flag} the other way round",
            replace(served, flipped="" if served.flipped == flag else flag),
        )
    possible = {
        PLAIN: True,
        CHAT: has_chat_form(target.tokenizer),
        OTHER_START: _other_start(target, "a") is not None,
    }
    for text, words in TEXTS.items():
        if possible[text] and text != served.text:
            yield "text", words, replace(served, text=text)


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


def _begin_early(prompt: Sequence[int], written: Sequence[int]) -> TextIds:
    """A text that holds the last tokens of its prompt, so that every depth is drafted for the first written one."""
    begin = max(1, len(prompt) - NUM_DEPTHS + 1)
    return TextIds(prompt[:begin], [*prompt[begin:], *written])
