"""Draft against draft, a job against its thresholds, and a job against an older one: always paired by prompt.

A difference is the mean of the prompts' own differences, its interval one over prompts. Fewer than 30 prompts are
never called significant. An old summary is read from JSON that anybody may have written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from specviz.alignment.summary import ENOUGH_PROMPTS, VERSION, Comparison, Difference, DraftSummary, Summary, Win
from specviz.alignment.tables.slices import Part, Parts, excludes_zero, interval, without_each
from specviz.alignment.types import KS, Array, Identity
from specviz.errors import CannotTell, SpecvizError
from specviz.request import Request
from specviz.views.explore.sentences import percent

MOST_WINS = 10
MOST_OLD_PROMPTS = 1_000_000
_TERMS = {  # that two jobs must share to be compared: name in a summary, and in words
    "sampling": "sampling",
    "prompts": "prompt set (fingerprint)",
    "max_new_tokens": "max_new_tokens",
    "chat": "chat setting",
}
BETTER, WORSE, SAME, UNSURE = "better", "worse", "no significant change", "cannot tell"


def compare_drafts(
    parts: Parts, drafts: Sequence[str], ids: Mapping[int, str], words: str = ""
) -> tuple[Comparison, ...]:
    """Every two drafts, over all tokens and in every slice. parts: sums over the same tokens for all drafts. ids: of
    the prompts, by number. words: which tokens these are, where not all."""
    return tuple(_compare_two(parts, a, b, ids, words) for a, b in combinations(drafts, 2))


def _compare_two(parts: Parts, a: str, b: str, ids: Mapping[int, str], words: str) -> Comparison:
    shared = [part for part in parts if part.draft == a and part._replace(draft=b) in parts]
    pairs = {part: parts[part].among(parts[part._replace(draft=b)]) for part in shared}
    gaps = {part: ours.alphas - theirs.alphas for part, (ours, theirs) in pairs.items() if len(ours)}
    # the whole is one question by itself, the slices are many
    num_asked = max(1, sum(part.kind != "all" and len(gap) >= ENOUGH_PROMPTS for part, gap in gaps.items()))
    found = [difference(*part[1:], gap, 1 if part.kind == "all" else num_asked) for part, gap in gaps.items()]
    whole = Part(a, "all", "all")
    ahead, behind = _wins(pairs[whole][0].prompts, gaps[whole], ids) if whole in gaps else ((), ())
    return Comparison(a, b, words, tuple(sorted(found, key=lambda each: each.kind != "all")), ahead, behind)


def difference(kind: str, value: str, gaps: Array, num_asked: int) -> Difference:
    """The mean of the prompts' gaps in alpha [n]; its interval is one of `num_asked` that are read together."""
    size, mean = len(gaps), float(gaps.mean())
    around = interval(without_each(gaps) / (size - 1))
    significant = excludes_zero(around, mean, size, num_asked) if size >= ENOUGH_PROMPTS else None
    return Difference(kind, value, size, mean, around, significant)


def _wins(prompts: Array, gaps: Array, ids: Mapping[int, str]) -> tuple[tuple[Win, ...], tuple[Win, ...]]:
    """The texts where the first is ahead most, and those where the second is."""
    order = np.argsort(-gaps, kind="stable")
    wins = [Win(int(prompts[place]), ids[int(prompts[place])], float(gaps[place])) for place in order]
    ahead = tuple(win for win in wins[:MOST_WINS] if win.difference > 0)
    return ahead, tuple(win for win in wins[::-1][:MOST_WINS] if win.difference < 0)


OVER_READABLE = ("alpha", "greedy_agreement", "mean_keep")  # means over tokens that can be read; the others count 0
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
        raise SpecvizError(f"there is no threshold {unknown[0][:80]!r}; thresholds are {', '.join(MEASURES)}")
    if "speedup" in least and not has_costs:
        raise SpecvizError("a threshold for the speedup needs costs, and none are given or measured steadily")


def check_thresholds(summary: Summary, least: Mapping[str, float]) -> tuple[str, ...]:
    """What falls below its threshold, one sentence each; every draft must pass. Raises SpecvizError."""
    check_threshold_names(least)
    failed = (_failure(draft, name, bound, summary.k) for draft in summary.drafts for name, bound in least.items())
    return tuple(filter(None, failed))


def unreadable_words(summary: Summary, least: Mapping[str, float]) -> tuple[str, ...]:
    """How the thresholds count what a draft cannot read, a sentence for each draft that they do so for."""
    if set(least).isdisjoint(OVER_READABLE):
        return ()
    return tuple(f"{draft.name}: {_unreadable_share(draft)}" for draft in summary.drafts if draft.readable < 1)


def _failure(draft: DraftSummary, name: str, bound: float, k: int) -> str:
    measured, counts_all = _measure(draft, name, k), name in OVER_READABLE
    if measured is None and not counts_all:
        raise CannotTell(f"{name} of {draft.name} is not known: its costs are missing or unsteady")
    if measured is None:
        return f"{draft.name}: {name} is not known: it can read none of the tokens (at least {bound:g} was asked for)"
    measured *= draft.readable if counts_all else 1.0
    counted = f" ({_unreadable_share(draft)})" if counts_all and draft.readable < 1 else ""
    return "" if measured >= bound else f"{draft.name}: {name} is {measured:.4g}, below {bound:g}{counted}"


def _unreadable_share(draft: DraftSummary) -> str:
    return f"it can read {percent(draft.readable)} of the tokens; the others count as 0"


@dataclass(frozen=True, slots=True)
class Change:
    """A draft now against the draft of an older job; verdict: BETTER, WORSE, SAME or UNSURE (fewer than 30 prompts).
    is_same_model: None where the older job does not say what it was."""

    draft: str
    old_draft: str
    difference: Difference
    verdict: str
    is_same_model: bool | None = None


def compare_with_old(summary: Summary, old: Mapping[str, Any]) -> tuple[Change, ...]:
    """Each draft that the old job has too (`_old_names`), paired by the prompts' ids; places that it cannot read count
    0. old: untrusted JSON. Raises SpecvizError where the two jobs cannot be compared."""
    before = _old_alphas(old)
    _check_same_job({name: getattr(summary, name) for name in _TERMS} | {"sampling": dict(summary.sampling)}, old)
    _check_target(summary.target, summary.models.get(summary.target), old)
    names = _old_names({draft.name: summary.models.get(draft.name) for draft in summary.drafts}, before, old)
    return tuple(_change(name, old_name, summary, before, old) for name, old_name in names.items())


def check_old_job(old: Any, request: Request, prompts: str) -> None:
    """Before a job of this request and these prompts (their fingerprint): raises the SpecvizError of `compare_with_old`
    for what was asked."""
    _old_alphas(old)
    own = {"max_new_tokens": request.max_new_tokens, "chat": request.chat, "sampling": sampling_of(request)}
    _check_same_job(own | {"prompts": prompts}, old)


def check_old_models(old: Mapping[str, Any], target: Identity, drafts: Sequence[Identity]) -> None:
    """The same for the models of the job."""
    _check_target(target.name, target.content, old)
    _old_names({draft.name: draft.content for draft in drafts}, _old_alphas(old), old)


def _old_alphas(old: Any) -> dict[str, dict[str, float]]:
    """Alpha by draft and prompt id."""
    if not isinstance(old, Mapping) or not isinstance(old.get("by_prompt"), Mapping):
        raise SpecvizError("the older file is not a summary of an alignment job: it has no by_prompt")
    if old.get("version") != VERSION:
        raise SpecvizError(f"the older summary must have version {VERSION} (got {str(old.get('version'))[:20]})")
    if len(old["by_prompt"]) > MOST_OLD_PROMPTS:
        raise SpecvizError(f"the older summary has too many prompts: at most {MOST_OLD_PROMPTS:,}")
    found: dict[str, dict[str, float]] = {}
    for prompt, alphas in old["by_prompt"].items():
        if not isinstance(alphas, Mapping):
            raise SpecvizError(f"the older summary has no alphas for prompt {str(prompt)[:80]!r}")
        for draft, alpha in alphas.items():
            if type(alpha) not in (int, float) or not 0 <= alpha <= 1:
                words = f"an alpha that is no number from 0 to 1 (got {str(alpha)[:20]})"
                raise SpecvizError(f"the older summary has {words}")
            found.setdefault(draft, {})[prompt] = float(alpha)
    return found


def sampling_of(request: Request) -> dict[str, float]:
    """As a summary has it."""
    return {name: getattr(request, name) for name in Request.SAMPLING}


def _check_same_job(terms: Mapping[str, Any], old: Mapping[str, Any]) -> None:
    for name, now in terms.items():
        if old.get(name) != now:
            raise SpecvizError(
                f"the older job had another {_TERMS[name]}, so the numbers cannot be compared: it was "
                f"{str(old.get(name))[:200]}, and is now {now}"
            )


def _check_target(name: str, content: str | None, old: Mapping[str, Any]) -> None:
    """By what it holds where both jobs know that, else by its name."""
    before = old.get("target")
    is_same = _is_same_model(content, before, old)
    if is_same or (is_same is None and before == name):
        return
    held = " with other weights or settings" if before == name else ""
    raise SpecvizError(
        f"the older job had another target, so the numbers cannot be compared: it was {str(before)[:200]}{held}, and "
        f"is now {name}"
    )


def _is_same_model(content: str | None, old_name: object, old: Mapping[str, Any]) -> bool | None:
    """Whether the older job's model of that name held the same; None where either is not known."""
    models = old.get("models")
    held = models.get(old_name) if isinstance(models, Mapping) and isinstance(old_name, str) else None
    return None if None in (content, held) else content == held


def _old_names(drafts: Mapping[str, str | None], before: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, str]:
    """The older job's draft for each of these (hashes by name): the same model, else one of its name, or the only
    one."""
    shared = {}
    for name, content in drafts.items():
        same = [each for each in before if _is_same_model(content, each, old)]
        if name in before or same:
            shared[name] = name if name in same or not same else same[0]
    if not shared and len(before) == len(drafts) == 1:
        return {name: next(iter(before)) for name in drafts}
    if not shared:
        told = f"{', '.join(drafts)[:200]}; it has {', '.join(before)[:200] or 'none'}"
        raise SpecvizError(f"the older summary has none of the drafts {told}")
    return shared


def _change(
    name: str, old_name: str, summary: Summary, before: Mapping[str, Mapping[str, float]], old: Mapping[str, Any]
) -> Change:
    now = {prompt: alphas[name] for prompt, alphas in summary.by_prompt.items() if name in alphas}
    shared = [prompt for prompt in now if prompt in before[old_name]]
    if not shared:
        raise SpecvizError(f"the two jobs share no prompt that {name} read; prompts are paired by their ids")
    gaps = np.array([now[prompt] - before[old_name][prompt] for prompt in shared])
    found = difference("all", "all", gaps, 1)
    verdict = {None: UNSURE, False: SAME, True: BETTER if found.difference > 0 else WORSE}[found.significant]
    return Change(name, old_name, found, verdict, _is_same_model(summary.models.get(name), old_name, old))
