"""What an alignment job found, as plain frozen values: the summary that is saved as JSON, shown and compared.

Standard library only. Shares and probabilities are from 0 to 1, intervals are 95 % by Student's t over prompts. None:
nothing is known of it.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

VERSION = 1
IGNORED = (
    "fields that nothing reads were ignored"  # how a warning begins that says nothing of the models
)
ENOUGH_PROMPTS = 30  # below, a difference is not called significant
NOT_CALLED = f"not called significant: fewer than {ENOUGH_PROMPTS} prompts"
Interval = tuple[float, float]


def natural_key(name: str) -> list[str | int]:
    """Sorts names as people count: step-2 before step-10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of the tokens. kind: all, tag, class, depth (tokens of text before), context (tokens before, prompt
    included) or ahead (the depth in a draft, over all places where a step may begin; its greedy_agreement is the mean p
    of the draft's likeliest token). tokens_per_call: of steps that begin at these tokens, at the job's K; None where
    none begins. cliff: alpha falls here. share, loss_share: of the tokens that the draft can read, and of their lost
    overlap; excess: the interval of loss_share - share. stands_out: it loses more than its share, beyond chance."""

    draft: str
    kind: str
    value: str
    num_tokens: int
    num_prompts: int
    alpha: float
    alpha_interval: Interval | None  # None below two prompts
    greedy_agreement: float
    tokens_per_call: float | None
    best_k: int | None  # None where no costs are known, or no step begins
    speedup: float | None  # at best_k
    cliff: bool = False
    share: float | None = None
    loss_share: float | None = None
    excess: Interval | None = None
    stands_out: bool = False


@dataclass(frozen=True, slots=True)
class Bin:
    """Draft tokens whose confidence q(x) lies from low to high: their share of all, mean confidence, share kept."""

    low: float
    high: float
    share: float
    confidence: float
    kept: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """ece: the mean gap between confidence and kept, sum over bins of share * |confidence - kept|. It is no error: a
    draft equal to the target keeps every token, however unsure, and has a large gap. words: is a confidence stop
    useful, and why."""

    bins: tuple[Bin, ...]
    ece: float
    words: str


@dataclass(frozen=True, slots=True)
class Reason:
    """Why p and q part: how much of all lost overlap (1 - alpha) falls to it, and at how many places."""

    name: str
    share: float
    num_tokens: int
    words: str


@dataclass(frozen=True, slots=True)
class Pattern:
    """Rejections alike: behind a token of the class `before` the target writes `token` and the draft's likeliest is
    `draft_token`. saved: target calls if it were always accepted at each of the places, each by itself, summed;
    interval: 95 % over the texts. prompt, id, place: of one of them, prompt by the number of its row."""

    before: str
    token: str
    draft_token: str
    num_places: int
    num_prompts: int
    saved: float
    interval: Interval
    prompt: int
    id: str
    place: int


@dataclass(frozen=True, slots=True)
class Loss:
    """Expected tokens that the rejections of one class, or for one reason, lose: each ends its step, which could still
    have added them. kind: class or reason. share: of all lost tokens; the shares of a kind add up to 1."""

    kind: str
    value: str
    lost: float
    share: float


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong with a draft. kind: vocabulary, context, reach, domain, or one of `probes.KINDS`."""

    draft: str
    kind: str
    words: str
    numbers: Mapping[str, int | float]


@dataclass(frozen=True, slots=True)
class Examined:
    """looked_for: what was looked for in every draft, in plain words; some need more texts, or chats."""

    findings: tuple[Finding, ...]
    warnings: tuple[str, ...]
    looked_for: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DraftingMode:
    """A way of drafting. alpha: the mean probability that the first drafted token is accepted. tokens_per_call,
    speedups, best_k, by_position: as `DraftSummary` has them for drawn tokens."""

    alpha: float | None
    tokens_per_call: tuple[float, ...]
    speedups: tuple[float, ...] | None
    best_k: tuple[int, int] | None
    by_position: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class DraftSummary:
    """One draft against the target. tokens_per_call, speedups: for K = 1, 2, ... 16. best_k: the range within 2 % of
    the fastest. readable: the share of tokens that the draft's context reaches; alpha, greedy_agreement,
    mean_acceptance and
    ceiling are means over these, None where there are none. ceiling: 1 - the mean target probability outside the
    draft's vocabulary, which alpha cannot exceed. calls: expected target calls for all texts at the job's K. losses:
    largest first, classes then reasons. by_argmax: where the draft's likeliest tokens are drafted; all else is of
    drawn ones; older summaries have none. by_position: of the steps at the job's K that draft, the share that keeps 1,
    2, ... K tokens or more, as engines count it. patterns: those that recur beyond chance, most saved first."""

    name: str
    num_tokens: int
    num_prompts: int
    alpha: float | None
    alpha_interval: Interval | None
    greedy_agreement: float | None
    mean_acceptance: float | None
    calls: float
    tokens_per_call: tuple[float, ...]
    speedups: tuple[float, ...] | None
    best_k: tuple[int, int] | None
    readable: float
    ceiling: float | None
    calibration: Calibration
    reasons: tuple[Reason, ...]
    losses: tuple[Loss, ...]
    findings: tuple[Finding, ...]
    by_argmax: DraftingMode | None = None
    by_position: tuple[float, ...] = ()
    patterns: tuple[Pattern, ...] = ()


@dataclass(frozen=True, slots=True)
class AlphaDifference:
    """Alpha of a less alpha of b, mean of the prompts' paired differences. significant None: fewer than 30 prompts."""

    kind: str
    value: str
    num_prompts: int
    difference: float
    interval: Interval | None
    significant: bool | None


@dataclass(frozen=True, slots=True)
class Win:
    """A text on which one draft is better, by this difference of alpha."""

    prompt: int
    id: str
    difference: float


@dataclass(frozen=True, slots=True)
class DraftComparison:
    """Draft a against draft b over the places that all drafts can read; `slices` begins with the whole, kind "all".
    words: how many places that are, where some draft cannot read them all; else empty. wins: the texts where each is
    ahead most."""

    a: str
    b: str
    words: str
    slices: tuple[AlphaDifference, ...]
    wins_a: tuple[Win, ...]
    wins_b: tuple[Win, ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """A whole job. note: what the numbers rest on. exact: every text is the target's own at these settings.
    prompts: fingerprint of the prompt set. chat: whether they were read in the target's chat form; chat_options: the
    switches of its template. looked_for: the fault checks that ran, in plain words. num_cut: texts that end where the
    target's context ends. by_prompt: alpha per prompt id and draft, to compare with a later job; a place that the draft
    cannot read counts 0. models: by name a hash of what the target and each draft hold. costs_from: measured, given or
    left out. Older summaries have neither of these two, and no chat_options.
    """

    specviz: str
    created: str
    target: str
    sampling: Mapping[str, int | float]
    seed: int
    max_new_tokens: int
    prompts: str
    chat: bool
    k: int
    num_prompts: int
    num_tokens: int
    num_cut: int
    num_refused: int
    refused: tuple[tuple[int, str], ...]  # the first lines that could not be used, and why
    exact: bool
    note: str
    warnings: tuple[str, ...]
    looked_for: tuple[str, ...]
    costs: Mapping[str, Mapping[str, Any]]  # per draft, as `costs.Costs.to_dict` gives them
    drafts: tuple[DraftSummary, ...]
    slices: tuple[Slice, ...]
    comparisons: tuple[DraftComparison, ...]
    by_prompt: Mapping[str, Mapping[str, float]]
    models: Mapping[str, str] = field(default_factory=dict)
    costs_from: str = ""
    chat_options: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    version: int = VERSION

    def draft(self, name: str) -> DraftSummary:
        return next(draft for draft in self.drafts if draft.name == name)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)
