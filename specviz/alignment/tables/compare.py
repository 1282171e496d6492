"""Compares draft with draft, a job with its thresholds, and a job with an older one: always paired by prompt.

A difference is the mean of the prompts' own differences, and its interval goes over prompts. With fewer than 30
prompts no difference is called significant.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from specviz.alignment.summary import (
    ENOUGH_PROMPTS,
    AlphaDifference,
    DraftComparison,
    DraftSummary,
    Summary,
    Win,
)
from specviz.alignment.tables.slices import DraftSlice, Parts, excludes_zero, interval_of_mean
from specviz.alignment.types import KS, Array, ModelIdentity
from specviz.errors import CannotTell, SpecvizError
from specviz.request import Request
from specviz.views.words import percent

MOST_WINS = 10
_TERMS = {  # what two jobs must share to be compared: field of a summary -> words
    "sampling": "sampling",
    "prompts": "prompt set (fingerprint)",
    "max_new_tokens": "max_new_tokens",
    "chat": "chat setting",
    "chat_options": "set of chat options",
}
BETTER, WORSE, SAME, UNSURE = "better", "worse", "no significant change", "cannot tell"


def compare_drafts(
    parts: Parts, drafts: Sequence[str], ids: Mapping[int, str], words: str = ""
) -> tuple[DraftComparison, ...]:
    """Compares every two drafts, over all tokens and in every slice.

    parts: sums over the same tokens for all drafts. ids: of the prompts, by number. words: which tokens these are, if
    not all.
    """
    pairs = combinations(drafts, 2)
    return tuple(_compare_two(parts, a, b, ids, words) for a, b in pairs)


def _compare_two(
    parts: Parts, a: str, b: str, ids: Mapping[int, str], words: str
) -> DraftComparison:
    gaps: dict[DraftSlice, Array] = {}  # alpha of a less alpha of b, by prompt
    wins_a: tuple[Win, ...] = ()
    wins_b: tuple[Win, ...] = ()
    for part in parts:
        other = part._replace(draft=b)
        if part.draft != a or other not in parts:
            continue
        ours, theirs = parts[part].among(parts[other])
        if not len(ours):
            continue
        gaps[part] = ours.alphas - theirs.alphas
        if part.kind == "all":
            wins_a, wins_b = _wins(ours.prompts, gaps[part], ids)
    # the whole is one question by itself, the slices are many
    num_asked = 0
    for part, gap in gaps.items():
        if part.kind != "all" and len(gap) >= ENOUGH_PROMPTS:
            num_asked += 1
    slices = []
    for part, gap in gaps.items():
        num_questions = 1 if part.kind == "all" else max(1, num_asked)
        slices.append(difference(part.kind, part.value, gap, num_questions))
    slices.sort(key=lambda row: row.kind != "all")
    return DraftComparison(a, b, words, tuple(slices), wins_a, wins_b)


def difference(kind: str, value: str, gaps: Array, num_asked: int) -> AlphaDifference:
    """The mean of the prompts' gaps in alpha [n]; its interval is one of `num_asked` that are read together."""
    size = len(gaps)
    mean = float(gaps.mean())
    around = interval_of_mean(gaps)
    significant = None
    if size >= ENOUGH_PROMPTS:
        significant = excludes_zero(around, mean, size, num_asked)
    return AlphaDifference(kind, value, size, mean, around, significant)


def _wins(
    prompts: Array, gaps: Array, ids: Mapping[int, str]
) -> tuple[tuple[Win, ...], tuple[Win, ...]]:
    """The texts on which the first draft is ahead most, and the texts on which the second is."""
    wins = []
    for place in np.argsort(-gaps, kind="stable"):
        prompt = int(prompts[place])
        wins.append(Win(prompt, ids[prompt], float(gaps[place])))
    first = tuple(win for win in wins[:MOST_WINS] if win.difference > 0)
    second = tuple(win for win in wins[::-1][:MOST_WINS] if win.difference < 0)
    return first, second


OVER_READABLE = ("alpha", "greedy_agreement", "mean_acceptance")
"""Means over readable tokens. A threshold counts 0 for the tokens that the draft cannot read."""
MEASURES = (*OVER_READABLE, "tokens_per_call", "speedup")
"""Numbers that may have a threshold: tokens per call at the job's K, the speedup at the best K."""


def _measure(draft: DraftSummary, name: str, k: int) -> float | None:
    """The number that a threshold is for; None if it is not known."""
    if name == "tokens_per_call":
        return draft.tokens_per_call[k - KS[0]]
    if name == "speedup":
        return max(draft.speedups) if draft.speedups else None
    return getattr(draft, name)


def check_threshold_names(least: Mapping[str, float], *, has_costs: bool = True) -> None:
    """Checks thresholds before a job.

    Raises SpecvizError for an unknown name, or for the speedup where no costs will be known.
    """
    unknown = [name for name in least if name not in MEASURES]
    if unknown:
        raise SpecvizError(
            f"there is no threshold {unknown[0][:80]!r}; thresholds are {', '.join(MEASURES)}"
        )
    if "speedup" in least and not has_costs:
        raise SpecvizError(
            "a threshold for the speedup needs costs, and none are given or measured steadily"
        )


def check_thresholds(summary: Summary, least: Mapping[str, float]) -> tuple[str, ...]:
    """A sentence for each number below its threshold; every draft must pass. Raises SpecvizError."""
    check_threshold_names(least)
    failures = []
    for draft in summary.drafts:
        for name, bound in least.items():
            failure = _failure(draft, name, bound, summary.k)
            if failure:
                failures.append(failure)
    return tuple(failures)


def unreadable_words(summary: Summary, least: Mapping[str, float]) -> tuple[str, ...]:
    """A sentence for each draft with unreadable tokens, if a threshold counts them as 0."""
    if set(least).isdisjoint(OVER_READABLE):
        return ()
    return tuple(
        f"{draft.name}: {_unreadable_share(draft)}"
        for draft in summary.drafts
        if draft.readable < 1
    )


def _failure(draft: DraftSummary, name: str, bound: float, k: int) -> str:
    """Says how a draft misses a threshold; empty if it passes."""
    measured = _measure(draft, name, k)
    counts_unreadable = name in OVER_READABLE
    if measured is None and not counts_unreadable:
        raise CannotTell(f"{name} of {draft.name} is not known: its costs are missing or unsteady")
    if measured is None:
        return f"{draft.name}: {name} is not known: it can read none of the tokens (at least {bound:g} was asked for)"
    note = ""
    if counts_unreadable:
        measured *= draft.readable
        if draft.readable < 1:
            note = f" ({_unreadable_share(draft)})"
    if measured >= bound:
        return ""
    return f"{draft.name}: {name} is {measured:.4g}, below {bound:g}{note}"


def _unreadable_share(draft: DraftSummary) -> str:
    return f"it can read {percent(draft.readable)} of the tokens; the others count as 0"


@dataclass(frozen=True, slots=True)
class Change:
    """How a draft changed since an older job."""

    draft: str
    old_draft: str
    difference: AlphaDifference
    verdict: str  # BETTER, WORSE, SAME or UNSURE (fewer than 30 prompts)
    is_same_model: bool | None = None  # None if the older job does not say what its model was


def compare_with_old(summary: Summary, old: Summary) -> tuple[Change, ...]:
    """Compares each draft that the old job has too (`_old_names`), paired by the prompts' ids.

    Unreadable places count 0. Raises SpecvizError if the two jobs cannot be compared.
    """
    _check_same_job({name: getattr(summary, name) for name in _TERMS}, old)
    _check_target(summary.target, summary.models.get(summary.target), old)
    contents = {draft.name: summary.models.get(draft.name) for draft in summary.drafts}
    names = _old_names(contents, old)
    return tuple(_change(name, old_name, summary, old) for name, old_name in names.items())


def check_old_job(old: Summary, request: Request, prompts: str) -> None:
    """Checks before a job that its request and prompts can be compared with an older job.

    prompts: their fingerprint. Raises the SpecvizError of `compare_with_old`.
    """
    terms = {
        "max_new_tokens": request.max_new_tokens,
        "chat": request.chat,
        "sampling": sampling_of(request),
        "chat_options": dict(request.chat_options),
        "prompts": prompts,
    }
    _check_same_job(terms, old)


def check_old_models(old: Summary, target: ModelIdentity, drafts: Sequence[ModelIdentity]) -> None:
    """Checks before a job that its models can be compared with an older job.

    Raises the SpecvizError of `compare_with_old`.
    """
    _check_target(target.name, target.content, old)
    _old_names({draft.name: draft.content for draft in drafts}, old)


def sampling_of(request: Request) -> dict[str, float]:
    """The request's sampling in the form of a summary."""
    return {name: getattr(request, name) for name in Request.SAMPLING}


def _check_same_job(terms: Mapping[str, Any], old: Summary) -> None:
    for name, now in terms.items():
        before = getattr(old, name)
        if before != now:
            raise SpecvizError(
                f"the older job had another {_TERMS[name]}, so the numbers cannot be compared: it was "
                f"{str(before)[:200]}, and is now {now}"
            )


def _check_target(name: str, content: str | None, old: Summary) -> None:
    """Compares the targets by content if both jobs know it, else by name. Raises SpecvizError if they differ."""
    is_same = _is_same_model(content, old.target, old)
    if is_same or (is_same is None and old.target == name):
        return
    held = " with other weights or settings" if old.target == name else ""
    raise SpecvizError(
        f"the older job had another target, so the numbers cannot be compared: it was {old.target[:200]}{held}, and "
        f"is now {name}"
    )


def _is_same_model(content: str | None, old_name: str, old: Summary) -> bool | None:
    """Whether the older job's model of that name had the same content; None if either is not known."""
    old_content = old.models.get(old_name)
    if content is None or old_content is None:
        return None
    return content == old_content


def _old_names(drafts: Mapping[str, str | None], old: Summary) -> dict[str, str]:
    """The older job's draft for each draft: the same model, else one of its name, or the only one.

    drafts: content hashes by name.
    """
    old_drafts = [draft.name for draft in old.drafts]
    old_names = {}
    for name, content in drafts.items():
        same_models = [each for each in old_drafts if _is_same_model(content, each, old)]
        if same_models and name not in same_models:
            old_names[name] = same_models[0]
        elif name in old_drafts:
            old_names[name] = name
    if old_names:
        return old_names
    if len(old_drafts) == len(drafts) == 1:
        return dict(zip(drafts, old_drafts, strict=True))
    names = f"{', '.join(drafts)[:200]}; it has {', '.join(old_drafts)[:200] or 'none'}"
    raise SpecvizError(f"the older summary has none of the drafts {names}")


def _change(name: str, old_name: str, summary: Summary, old: Summary) -> Change:
    now = _alphas(summary, name)
    before = _alphas(old, old_name)
    gaps = [now[prompt] - before[prompt] for prompt in now if prompt in before]
    if not gaps:
        raise SpecvizError(
            f"the two jobs share no prompt that {name} read; prompts are paired by their ids"
        )
    change = difference("all", "all", np.array(gaps), 1)
    if change.significant is None:
        verdict = UNSURE
    elif not change.significant:
        verdict = SAME
    else:
        verdict = BETTER if change.difference > 0 else WORSE
    is_same_model = _is_same_model(summary.models.get(name), old_name, old)
    return Change(name, old_name, change, verdict, is_same_model)


def _alphas(summary: Summary, draft: str) -> dict[str, float]:
    """A draft's alpha by prompt id.

    Raises SpecvizError for an impossible alpha: anybody may have written the older file.
    """
    alphas = {
        prompt: by_draft[draft]
        for prompt, by_draft in summary.by_prompt.items()
        if draft in by_draft
    }
    if not all(0 <= alpha <= 1 for alpha in alphas.values()):
        raise SpecvizError("the older summary has an alpha that is no number from 0 to 1")
    return alphas
