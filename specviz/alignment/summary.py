"""The summary of an alignment job, as plain frozen values: saved as JSON, shown and compared.

Standard library only. Shares and probabilities are from 0 to 1; intervals are 95 % by Student's t over prompts. None
means not known.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

VERSION = 1
IGNORED = "fields that nothing reads were ignored"
"""The start of a warning that is not about the models."""
NEW_TOKENS = 128  # the most of a text, unless a job asks otherwise
LOGPROBS = 20  # likeliest tokens that a server names at each place; vLLM gives no more unless it is started so
TIMEOUT_S = 120  # for an answer of a server
ENOUGH_PROMPTS = 30  # below, a difference is not called significant
NOT_CALLED = f"not called significant: fewer than {ENOUGH_PROMPTS} prompts"
Interval = tuple[float, float]


def natural_key(name: str) -> list[str | int]:
    """A sort key that orders names as people count: step-2 before step-10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of the tokens under one draft."""

    draft: str
    kind: str
    """all, tag, class, depth, context or ahead.

    depth: tokens of text before. context: tokens before, prompt included. ahead: the depth in a draft, over all places
    where a step may begin."""
    value: str  # which of that kind
    num_tokens: int  # that the draft can read
    num_prompts: int
    alpha: float
    alpha_interval: Interval | None  # None below two prompts
    greedy_agreement: float  # for ahead: the mean p of the draft's most likely token
    tokens_per_call: float | None
    """Tokens per target call of the steps that begin at these tokens, at the job's K; None if none begins."""
    best_k: int | None  # None where no costs are known, or no step begins
    speedup: float | None  # at best_k
    cliff: bool = False  # whether alpha falls here
    share: float | None = None  # of the tokens that the draft can read
    loss_share: float | None = None  # of their lost overlap
    excess: Interval | None = None  # of loss_share - share
    stands_out: bool = False  # whether it loses more than its share, beyond chance


@dataclass(frozen=True, slots=True)
class Bin:
    """The draft tokens with a confidence q(x) from low to high."""

    low: float
    high: float
    share: float  # of all draft tokens
    confidence: float  # mean
    accepted: float  # share of them


@dataclass(frozen=True, slots=True)
class Calibration:
    """How well a draft's confidence predicts acceptance."""

    bins: tuple[Bin, ...]
    ece: float
    """The mean gap between confidence and acceptance: sum over bins of share * |confidence - accepted|.

    A large gap is no error: if the draft equals the target, every token is accepted, however unsure the draft is."""
    words: str  # whether a confidence stop is useful, and why


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason why p and q differ."""

    name: str
    share: float  # of all lost overlap (1 - alpha)
    num_tokens: int  # places with this reason
    words: str


@dataclass(frozen=True, slots=True)
class Pattern:
    """Rejections that are alike."""

    before: str  # class of the token before
    token: str  # written by the target
    draft_token: str  # the draft's most likely token
    num_places: int
    num_prompts: int
    saved: float
    """The target calls that always accepting here would save, summed over the places, each taken alone."""
    interval: Interval  # of saved, over the texts
    prompt: int  # number of an example's row
    id: str  # of the example's prompt
    place: int  # of the example


@dataclass(frozen=True, slots=True)
class Loss:
    """Expected tokens that are lost by the rejections of one class, or for one reason.

    Each rejection ends its step, which could still have added tokens.
    """

    kind: str  # class or reason
    value: str  # which class or reason
    lost: float
    share: float  # of all lost tokens; the shares of a kind add up to 1


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault of a draft."""

    draft: str
    kind: str  # vocabulary, context, reach, domain, or one of `probes.KINDS`
    words: str
    numbers: Mapping[str, int | float]
    """`explained`: the agreement that the fault costs, where that was measured."""


@dataclass(frozen=True, slots=True)
class Floors:
    """The agreement of what knows nothing of the text, over the same texts."""

    frequencies: float  # every token by its frequency alone
    pairs: float  # by its frequency behind the token before
    num_texts: int


@dataclass(frozen=True, slots=True)
class Change:
    """What changes in the acceptance of a draft's steps on the texts that were examined."""

    by_position: tuple[
        float, ...
    ]  # the change of the share that accepts 1, 2, ... K tokens or more
    deviation: float  # of the change of tokens per step: the standard error over the texts


@dataclass(frozen=True, slots=True)
class EngineFault:
    """What an engine might do to a sound draft, and what changes then."""

    words: str  # go on after "with"
    drawn: Change
    by_argmax: Change


@dataclass(frozen=True, slots=True)
class Counters:
    """What an engine counted."""

    source: str  # which engine's, and where from
    num_steps: float  # that drafted
    tokens_per_step: float  # with the target's own token
    deviation: (
        float | None
    )  # the standard error of tokens_per_step; None where the counters do not tell
    by_position: tuple[float, ...]
    """The share of these steps that accept 1, 2, ... tokens or more; empty where the counters do not tell."""
    k: int | None  # the most tokens that a step drafted
    is_forged: bool  # whether the engine was set to draw acceptance instead of finding it
    content: str  # a hash of the file


@dataclass(frozen=True, slots=True)
class Allowed:
    """What the files allow on the texts of the job, for one way of drafting, as engines count it."""

    by_argmax: bool  # whether the most likely tokens are drafted
    tokens_per_step: float  # of the steps that draft
    interval: Interval
    by_position: tuple[float, ...]
    intervals: tuple[Interval, ...]  # by position
    fits: bool  # whether the counters lie within chance of it


@dataclass(frozen=True, slots=True)
class FittingFault:
    """What an engine might do to the draft, and what it would then count."""

    words: str
    by_argmax: bool
    tokens_per_step: float
    by_position: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class AsServed:
    """What an engine counted beside what the files of a draft allow."""

    draft: str
    counters: Counters
    allowed: tuple[Allowed, ...]
    num_tried: int  # of engine faults
    faults: tuple[FittingFault, ...]  # that would give such counters, the likest first


@dataclass(frozen=True, slots=True)
class Examined:
    """The result of the fault checks."""

    findings: tuple[Finding, ...]
    warnings: tuple[str, ...]
    looked_for: tuple[str, ...]
    """The faults that were looked for in every draft, in plain words; some need more texts, or chats."""
    floors: Floors | None = None  # None for too few texts
    agreements: Mapping[str, float] = field(default_factory=dict)
    """The agreement of each draft over the texts that were examined, for the first token of a draft."""
    engine_faults: tuple[EngineFault, ...] = ()  # tried where an engine's counters are given


@dataclass(frozen=True, slots=True)
class DraftingMode:
    """The numbers of one way of drafting; `DraftSummary` has the same ones for drawn tokens."""

    alpha: float | None  # mean probability that the first drafted token is accepted
    tokens_per_call: tuple[float, ...]
    speedups: tuple[float, ...] | None
    best_k: tuple[int, int] | None
    by_position: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class DraftBounds:
    """Between what bounds a draft's numbers are known, where servers told only the likeliest tokens of each place."""

    alpha: Interval
    mean_acceptance: Interval
    argmax_alpha: Interval  # of `by_argmax`
    tokens_per_call: tuple[Interval, ...]  # for K = 1, 2, ... 16


@dataclass(frozen=True, slots=True)
class DraftSummary:
    """A draft against the target.

    alpha, greedy_agreement, mean_acceptance and ceiling are means over readable tokens, None where there are none.
    The numbers are for drawn tokens; `by_argmax` has those for the draft's most likely tokens.
    """

    name: str
    num_tokens: int
    num_prompts: int
    alpha: float | None
    alpha_interval: Interval | None
    greedy_agreement: float | None
    mean_acceptance: float | None
    calls: float  # expected target calls for all texts at the job's K
    tokens_per_call: tuple[float, ...]  # for K = 1, 2, ... 16, or as far as that is known
    speedups: tuple[float, ...] | None  # for the same K
    best_k: tuple[int, int] | None  # the range within 2 % of the fastest
    readable: float  # share of tokens that the draft's context reaches
    ceiling: float | None
    """1 - the mean target probability outside the draft's vocabulary; alpha cannot exceed it."""
    calibration: Calibration
    reasons: tuple[Reason, ...]
    losses: tuple[Loss, ...]  # classes then reasons, each largest first
    findings: tuple[Finding, ...]
    by_argmax: DraftingMode | None = None  # None in older summaries
    by_position: tuple[float, ...] = ()
    """The share of drafting steps at the job's K that accept 1, 2, ... K tokens or more, as engines count it."""
    patterns: tuple[Pattern, ...] = ()  # that recur beyond chance, most saved first
    verdict: str | None = (
        None  # sound, weak or broken; None for too few texts, or in older summaries
    )
    next_step: str = ""  # what to do next, in words
    bounds: DraftBounds | None = None  # None where the weights were here


@dataclass(frozen=True, slots=True)
class AlphaDifference:
    """Alpha of draft a less alpha of draft b in one slice."""

    kind: str
    value: str
    num_prompts: int
    difference: float  # mean over the prompts
    interval: Interval | None
    significant: bool | None  # None below 30 prompts


@dataclass(frozen=True, slots=True)
class Win:
    """A text on which one of two drafts is better."""

    prompt: int
    id: str
    difference: float  # alpha of the first draft less alpha of the second


@dataclass(frozen=True, slots=True)
class DraftComparison:
    """Draft a against draft b, over the places that all drafts can read."""

    a: str
    b: str
    words: str  # how many places all drafts can read; empty if all places
    slices: tuple[AlphaDifference, ...]  # begins with the whole, kind "all"
    wins_a: tuple[Win, ...]  # the texts where a is ahead most
    wins_b: tuple[Win, ...]  # the texts where b is ahead most


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of a whole job. Older summaries have no models, costs_from, chat_options and min_p."""

    specviz: str  # version
    created: str
    target: str
    sampling: Mapping[str, int | float]
    seed: int
    max_new_tokens: int
    prompts: str  # fingerprint of the prompt set
    chat: bool  # whether all prompts were read in the target's chat form
    k: int
    num_prompts: int
    num_tokens: int
    num_cut: int  # texts that end where the target's context ends
    num_refused: int
    refused: tuple[tuple[int, str], ...]  # the first lines that could not be used, and why
    exact: bool  # whether every text is the target's own at these settings
    note: str  # which texts the numbers rest on
    warnings: tuple[str, ...]
    looked_for: tuple[str, ...]  # fault checks that ran, in plain words
    costs: Mapping[str, Mapping[str, Any]]  # per draft, as `costs.Costs.to_dict` gives them
    drafts: tuple[DraftSummary, ...]
    slices: tuple[Slice, ...]
    comparisons: tuple[DraftComparison, ...]
    by_prompt: Mapping[str, Mapping[str, float]]
    """Alpha per prompt id and draft, to compare with a later job; unreadable places count 0."""
    models: Mapping[str, str] = field(default_factory=dict)  # name -> hash of the content
    costs_from: str = ""  # measured, given, left out, served or states
    chat_options: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    """Switches of the chat template."""
    floors: Floors | None = None  # None for too few texts, or in older summaries
    prompt_file: str = ""  # its name; empty in older summaries
    number_formats: Mapping[str, str] = field(
        default_factory=dict
    )  # of the models' weights, by name
    as_served: AsServed | None = None  # None where no counters were given
    state_layers: tuple[int, ...] = ()  # of the stored states that stood for the target's layers
    version: int = VERSION

    @property
    def is_remote(self) -> bool:
        """Whether the models are behind servers, without weights here."""
        return any(draft.bounds is not None for draft in self.drafts)

    def draft(self, name: str) -> DraftSummary:
        return next(draft for draft in self.drafts if draft.name == name)

    def to_dict(self) -> dict[str, Any]:
        """The summary as plain JSON values."""
        return asdict(self)
