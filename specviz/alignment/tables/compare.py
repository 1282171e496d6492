"""Draft against draft, a job against its thresholds, and a job against an older one: always paired by prompt.

A difference is the mean of the prompts' own differences, its interval one over prompts. Fewer than 30 prompts are
never called significant.
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
_TERMS = {  # that two jobs must share to be compared: name in a summary, and in words
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
    """Every two drafts, over all tokens and in every slice. parts: sums over the same tokens for all drafts. ids: of
    the prompts, by number. words: which tokens these are, where not all."""
    return tuple(_compare_two(parts, a, b, ids, words) for a, b in combinations(drafts, 2))


def _compare_two(
    parts: Parts, a: str, b: str, ids: Mapping[int, str], words: str
) -> DraftComparison:
    shared = [part for part in parts if part.draft == a and part._replace(draft=b) in parts]
    pairs = {part: parts[part].among(parts[part._replace(draft=b)]) for part in shared}
    gaps = {
        part: ours.alphas - theirs.alphas for part, (ours, theirs) in pairs.items() if len(ours)
    }
    # the whole is one question by itself, the slices are many
    num_asked = max(
        1, sum(part.kind != "all" and len(gap) >= ENOUGH_PROMPTS for part, gap in gaps.items())
    )
    found = [
        difference(*part[1:], gap, 1 if part.kind == "all" else num_asked)
        for part, gap in gaps.items()
    ]
    whole = DraftSlice(a, "all", "all")
    ahead, behind = _wins(pairs[whole][0].prompts, gaps[whole], ids) if whole in gaps else ((), ())
    return DraftComparison(
        a, b, words, tuple(sorted(found, key=lambda each: each.kind != "all")), ahead, behind
    )


def difference(kind: str, value: str, gaps: Array, num_asked: int) -> AlphaDifference:
    """The mean of the prompts' gaps in alpha [n]; its interval is one of `num_asked` that are read together."""
    size, mean = len(gaps), float(gaps.mean())
    around = interval_of_mean(gaps)
    significant = excludes_zero(around, mean, size, num_asked) if size >= ENOUGH_PROMPTS else None
    return AlphaDifference(kind, value, size, mean, around, significant)


def _wins(
    prompts: Array, gaps: Array, ids: Mapping[int, str]
) -> tuple[tuple[Win, ...], tuple[Win, ...]]:
    """The texts where the first is ahead most, and those where the second is."""
    order = np.argsort(-gaps, kind="stable")
    wins = [
        Win(int(prompts[place]), ids[int(prompts[place])], float(gaps[place])) for place in order
    ]
    ahead = tuple(win for win in wins[:MOST_WINS] if win.difference > 0)
    return ahead, tuple(win for win in wins[::-1][:MOST_WINS] if win.difference < 0)


OVER_READABLE = (
    "alpha",
    "greedy_agreement",
    "mean_acceptance",
)  # means over tokens that can be read; the others count 0
MEASURES = (*OVER_READABLE, "tokens_per_call", "speedup")
"""What a threshold may be set for: tokens per call at the job's K, the speedup at the best K."""


def _measure(draft: DraftSummary, name: str, k: int) -> float | None:
    """None where it is not known."""
    values = getattr(draft, "speedups" if name == "speedup" else name)
    if name == "tokens_per_call":
        return values[k - KS[0]]
    return values and max(values) if name == "speedup" else values


def check_threshold_names(least: Mapping[str, float], *, has_costs: bool = True) -> None:
    """Before a job: SpecvizError for an unknown threshold, or one of the speedup where no costs will be known."""
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
    """What falls below its threshold, one sentence each; every draft must pass. Raises SpecvizError."""
    check_threshold_names(least)
    failed = (
        _failure(draft, name, bound, summary.k)
        for draft in summary.drafts
        for name, bound in least.items()
    )
    return tuple(filter(None, failed))


def unreadable_words(summary: Summary, least: Mapping[str, float]) -> tuple[str, ...]:
    """How the thresholds count what a draft cannot read, a sentence for each draft that they do so for."""
    if set(least).isdisjoint(OVER_READABLE):
        return ()
    return tuple(
        f"{draft.name}: {_unreadable_share(draft)}"
        for draft in summary.drafts
        if draft.readable < 1
    )


def _failure(draft: DraftSummary, name: str, bound: float, k: int) -> str:
    measured, counts_all = _measure(draft, name, k), name in OVER_READABLE
    if measured is None and not counts_all:
        raise CannotTell(f"{name} of {draft.name} is not known: its costs are missing or unsteady")
    if measured is None:
        return f"{draft.name}: {name} is not known: it can read none of the tokens (at least {bound:g} was asked for)"
    measured *= draft.readable if counts_all else 1.0
    counted = f" ({_unreadable_share(draft)})" if counts_all and draft.readable < 1 else ""
    return (
        ""
        if measured >= bound
        else f"{draft.name}: {name} is {measured:.4g}, below {bound:g}{counted}"
    )


def _unreadable_share(draft: DraftSummary) -> str:
    return f"it can read {percent(draft.readable)} of the tokens; the others count as 0"


@dataclass(frozen=True, slots=True)
class Change:
    """A draft now against the draft of an older job; verdict: BETTER, WORSE, SAME or UNSURE (fewer than 30 prompts).
    is_same_model: None where the older job does not say what it was."""

    draft: str
    old_draft: str
    difference: AlphaDifference
    verdict: str
    is_same_model: bool | None = None


def compare_with_old(summary: Summary, old: Summary) -> tuple[Change, ...]:
    """Each draft that the old job has too (`_old_names`), paired by the prompts' ids; places that it cannot read count
    0. Raises SpecvizError where the two jobs cannot be compared."""
    _check_same_job({name: getattr(summary, name) for name in _TERMS}, old)
    _check_target(summary.target, summary.models.get(summary.target), old)
    names = _old_names(
        {draft.name: summary.models.get(draft.name) for draft in summary.drafts}, old
    )
    return tuple(_change(name, old_name, summary, old) for name, old_name in names.items())


def check_old_job(old: Summary, request: Request, prompts: str) -> None:
    """Before a job of this request and these prompts (their fingerprint): raises the SpecvizError of `compare_with_old`
    for what was asked."""
    own = {
        "max_new_tokens": request.max_new_tokens,
        "chat": request.chat,
        "sampling": sampling_of(request),
    }
    own["chat_options"] = dict(request.chat_options)
    _check_same_job(own | {"prompts": prompts}, old)


def check_old_models(old: Summary, target: ModelIdentity, drafts: Sequence[ModelIdentity]) -> None:
    """The same for the models of the job."""
    _check_target(target.name, target.content, old)
    _old_names({draft.name: draft.content for draft in drafts}, old)


def sampling_of(request: Request) -> dict[str, float]:
    """As a summary has it."""
    return {name: getattr(request, name) for name in Request.SAMPLING}


def _check_same_job(terms: Mapping[str, Any], old: Summary) -> None:
    for name, now in terms.items():
        if (before := getattr(old, name)) != now:
            raise SpecvizError(
                f"the older job had another {_TERMS[name]}, so the numbers cannot be compared: it was "
                f"{str(before)[:200]}, and is now {now}"
            )


def _check_target(name: str, content: str | None, old: Summary) -> None:
    """By what it holds where both jobs know that, else by its name."""
    is_same = _is_same_model(content, old.target, old)
    if is_same or (is_same is None and old.target == name):
        return
    held = " with other weights or settings" if old.target == name else ""
    raise SpecvizError(
        f"the older job had another target, so the numbers cannot be compared: it was {old.target[:200]}{held}, and "
        f"is now {name}"
    )


def _is_same_model(content: str | None, old_name: str, old: Summary) -> bool | None:
    """Whether the older job's model of that name held the same; None where either is not known."""
    held = old.models.get(old_name)
    return None if None in (content, held) else content == held


def _old_names(drafts: Mapping[str, str | None], old: Summary) -> dict[str, str]:
    """The older job's draft for each of these (hashes by name): the same model, else one of its name, or the only
    one."""
    before, shared = [draft.name for draft in old.drafts], {}
    for name, content in drafts.items():
        same = [each for each in before if _is_same_model(content, each, old)]
        if name in before or same:
            shared[name] = name if name in same or not same else same[0]
    if not shared and len(before) == len(drafts) == 1:
        return dict(zip(drafts, before, strict=True))
    if not shared:
        told = f"{', '.join(drafts)[:200]}; it has {', '.join(before)[:200] or 'none'}"
        raise SpecvizError(f"the older summary has none of the drafts {told}")
    return shared


def _change(name: str, old_name: str, summary: Summary, old: Summary) -> Change:
    now, before = _alphas(summary, name), _alphas(old, old_name)
    shared = [prompt for prompt in now if prompt in before]
    if not shared:
        raise SpecvizError(
            f"the two jobs share no prompt that {name} read; prompts are paired by their ids"
        )
    found = difference(
        "all", "all", np.array([now[prompt] - before[prompt] for prompt in shared]), 1
    )
    verdict = {None: UNSURE, False: SAME, True: BETTER if found.difference > 0 else WORSE}[
        found.significant
    ]
    return Change(
        name, old_name, found, verdict, _is_same_model(summary.models.get(name), old_name, old)
    )


def _alphas(summary: Summary, draft: str) -> dict[str, float]:
    """By prompt id. SpecvizError for numbers that no job gives: anybody may have written the older file."""
    found = {
        prompt: alphas[draft] for prompt, alphas in summary.by_prompt.items() if draft in alphas
    }
    if not all(0 <= alpha <= 1 for alpha in found.values()):
        raise SpecvizError("the older summary has an alpha that is no number from 0 to 1")
    return found
