"""Finds the convention under which a draft head accepts most: a new head that accepts little is most often off by one.

The target continues a few prompts. The head then drafts at every place of these texts as it is served, and under each
neighbouring convention: other states, rows, positions or texts, or without one norm. What agrees clearly more is named,
with the file, flag or engine to look at.
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

NUM_TEXTS = 48
NUM_TOKENS = 48
NUM_DEPTHS = 3
FEWEST_PROMPTS = 8  # fewer cannot show a clear gain
LEAST_GAIN = 0.003  # of agreement; below, another convention is of no use
CLEAR = 0.05  # the largest p-value of a clear gain
PLAIN = "plain"
CHAT = "chat"
OTHER_START = "other start"
TEXTS: Mapping[str, str] = {
    PLAIN: "plain text, as the tokenizer begins it",
    CHAT: "the target's chat template",
    OTHER_START: "plain text with a start token, or without the tokenizer's own",
}
LAST_NORM = "the target's last norm"


@dataclass(frozen=True, slots=True)
class Convention:
    """How an engine feeds a head. The defaults are what the head's own files say."""

    layer: int = 0
    """How many layers later than the files say the head's states come from."""
    row: int = 0
    """How many tokens earlier the state beside a token comes from. At 0, it is the state of the token before."""
    position: int = 0
    """What is added to the positions of drafted tokens."""
    skipped: str = ""
    """The norm that is left out; empty: none."""
    flipped: str = ""
    """The flag of EAGLE-3.1 that is read the other way round; empty: none."""
    text: str = PLAIN
    """The form of the texts, one of `TEXTS`."""


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
"""The file, flag or program to look at, by the field of a Convention."""


@dataclass(frozen=True, slots=True)
class ConventionResult:
    """The agreement of a head under one convention, against the head as it is served."""

    convention: Convention
    field: str
    """The field of the convention that differs from how the head is served."""
    words: str
    """What differs, in words."""
    agreement: tuple[float, ...]
    """The agreement by depth: sum min(p, q), p the target's probabilities and q the head's."""
    gain: float
    """How much more the head agrees than as it is served, a mean over depths and texts."""
    p_value: float
    """The probability of such gains by chance, by Wilcoxon's signed ranks.

    The larger of two: over texts, times the number of conventions tried (Bonferroni), and over prompts. Texts of one
    prompt are alike, and gains differ widely between kinds of text.
    """

    @property
    def is_better(self) -> bool:
        return self.gain > LEAST_GAIN and self.p_value <= CLEAR


@dataclass(frozen=True, slots=True)
class HeadDiagnosis:
    """The agreement of a head as it is served and under every neighbouring convention."""

    head: str
    target: str
    num_texts: int
    served: tuple[float, ...]
    """The agreement by depth as the head is served."""
    trials: tuple[ConventionResult, ...]
    """Every other convention, the best first."""
    left_out: tuple[str, ...]
    """The conventions that this head or target cannot take, and why, in words."""

    @property
    def best(self) -> ConventionResult | None:
        return next((trial for trial in self.trials if trial.is_better), None)


class HeadDoctor:
    """Examines one head on NUM_TEXTS texts that the target writes behind the prompts, in turn.

    Raises SpecvizError for too few prompts, or one that the target cannot read.
    """

    def __init__(self, heads: LoadedHeads, target: LoadedModel, prompts: Sequence[str]) -> None:
        if len(prompts) < FEWEST_PROMPTS:
            raise SpecvizError(
                f"a head is examined on at least {FEWEST_PROMPTS} prompts (got {len(prompts)})"
            )
        self._heads = heads
        self._target = target
        self._prompts = tuple(islice(cycle(prompts), NUM_TEXTS))
        self._texts: dict[str, list[TextIds]] = {}  # by form

    @torch.inference_mode()
    def examine(self, served: Convention | None = None) -> HeadDiagnosis:
        """Compares the head as it is served with every neighbouring convention.

        served: how the head is fed today; None: as its files say.
        """
        served = served or Convention()
        neighbours = list(_neighbours(self._heads.module, self._target, served))
        drafters = {served: self._drafter(served)}
        left_out = []
        for _, words, convention in neighbours:
            try:
                drafters[convention] = self._drafter(convention)
            except SpecvizError as refusal:
                left_out.append(f"{words}: {refusal}")
        agreements = self._agreements(drafters)
        base = agreements[served]
        num_tried = len(agreements) - 1
        _, prompt_of = np.unique(self._prompts, return_inverse=True)
        trials = []
        for field, words, convention in neighbours:
            if convention in agreements:
                after = agreements[convention]
                result = _trial(convention, field, words, base, after, prompt_of, num_tried)
                trials.append(result)
        trials.sort(key=lambda trial: -trial.gain)
        return HeadDiagnosis(
            head=self._heads.name,
            target=self._target.name,
            num_texts=len(base),
            served=tuple(base.mean(0).tolist()),
            trials=tuple(trials),
            left_out=tuple(left_out),
        )

    def _drafter(self, convention: Convention) -> Drafter:
        """The head under this convention. Raises SpecvizError where the head or the target cannot be read so."""
        head = self._heads.module
        target = self._target
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
        """The agreement of each convention over the places where the target wrote [texts, depths]."""
        agreements: dict[Convention, Array] = {}
        for form in TEXTS:
            group = [convention for convention in drafters if convention.text == form]
            if not group:
                continue
            group_drafters = [drafters[convention] for convention in group]
            rows = []  # [group, depths] per text
            for text in self._write(form):
                rows.append(
                    agreement_ahead(self._target, group_drafters, text, Sampling(), NUM_DEPTHS)
                )
            by_convention = np.stack(rows, axis=1)  # [group, texts, depths]
            agreements |= zip(group, by_convention, strict=True)
        return agreements

    def _write(self, form: str) -> list[TextIds]:
        """The target's own texts behind the prompts in this form, written once."""
        if form not in self._texts:
            most = self._target.info.context_limit - NUM_TOKENS - 1
            prompts = [_encode(self._target, prompt, form)[-most:] for prompt in self._prompts]
            drawn = sample(self._target, prompts, range(len(prompts)), Sampling(), NUM_TOKENS)
            texts = []
            for prompt, written in zip(prompts, drawn, strict=True):
                texts.append(_begin_early(prompt, written.ids))
            self._texts[form] = texts
        return self._texts[form]


def _trial(
    convention: Convention,
    field: str,
    words: str,
    base: Array,
    after: Array,
    prompt_of: Array,
    num_tried: int,
) -> ConventionResult:
    """The result of one convention.

    base, after: the agreement as served and under the convention [texts, depths]. prompt_of: a number per text, the
    same for texts of one prompt [texts].
    """
    gains = (after - base).mean(1)  # [texts]
    gains_by_prompt = np.bincount(prompt_of, gains) / np.bincount(prompt_of)
    p_value = max(num_tried * _p_value(gains), _p_value(gains_by_prompt))
    return ConventionResult(
        convention=convention,
        field=field,
        words=words,
        agreement=tuple(after.mean(0).tolist()),
        gain=float(gains.mean()),
        p_value=min(1.0, p_value),
    )


def _p_value(gains: Array) -> float:
    """The probability of such gains by chance, where none is expected."""
    if not gains.any():
        return 1.0
    return float(wilcoxon(gains, alternative="greater", zero_method="pratt").pvalue)


# ---- conventions ----------------------------------------------------------------------------------------------------


def _neighbours(
    head: torch.nn.Module, target: LoadedModel, served: Convention
) -> Iterator[tuple[str, str, Convention]]:
    """Every convention that differs in one field: the field, what differs in words, the convention."""
    is_eagle = isinstance(head, EagleHead)
    shifts = {
        "layer": ("states from one layer earlier", "states from one layer later"),
        "row": ("beside each token, its own state", "beside each token, the state before the last"),
    }
    if is_eagle:
        shifts["position"] = (
            "drafted tokens one position earlier",
            "drafted tokens one position later",
        )
    for field, (words_before, words_after) in shifts.items():
        value = getattr(served, field)
        yield field, words_before, replace(served, **{field: value - 1})
        yield field, words_after, replace(served, **{field: value + 1})
    for name in _norms(head):
        if served.skipped == name:
            yield "skipped", f"with {name}", replace(served, skipped="")
        else:
            yield "skipped", f"without {name}", replace(served, skipped=name)
    for flag in head.flags() if is_eagle else ():
        flipped = "" if served.flipped == flag else flag
        yield "flipped", f"{flag} the other way round", replace(served, flipped=flipped)
    possible = [PLAIN]
    if has_chat_form(target.tokenizer):
        possible.append(CHAT)
    if _other_start(target, "a") is not None:
        possible.append(OTHER_START)
    for form in possible:
        if form != served.text:
            yield "text", TEXTS[form], replace(served, text=form)


def _norms(head: torch.nn.Module) -> list[str]:
    """The norms that can be left out. Those of queries and keys belong to attention and stay."""
    names = []
    if isinstance(head, EagleHead):
        names += [name for name in head.norms() if not name.endswith(("q_norm", "k_norm"))]
    if -1 in head.hidden_layers:
        names.append(LAST_NORM)
    return names


# ---- the target's own texts -----------------------------------------------------------------------------------------


def _other_start(target: LoadedModel, prompt: str) -> list[int] | None:
    """The prompt's ids without the tokenizer's own start token, or with one where it puts none.

    None where the tokenizer has no start token.
    """
    whole = target.text.encode(prompt)
    bare = target.text.encode(prompt, special=False)
    if whole != bare:
        return bare
    start = getattr(target.tokenizer, "bos_token_id", None)
    return [start, *whole] if isinstance(start, int) else None


def _encode(target: LoadedModel, prompt: str, form: str) -> list[int]:
    if form == CHAT:
        return target.text.encode(render_chat(target.tokenizer, prompt), special=False)
    return target.text.encode(prompt) if form == PLAIN else _other_start(target, prompt)


def _begin_early(prompt: Sequence[int], written: Sequence[int]) -> TextIds:
    """A text that holds the last tokens of its prompt, so that every depth drafts the first written token."""
    begin = max(1, len(prompt) - NUM_DEPTHS + 1)
    return TextIds(prompt[:begin], [*prompt[begin:], *written])
