"""Draft against draft, a job against its thresholds, and a job against an older one: always paired by prompt.

A difference is the mean of the prompts' own differences, its interval a bootstrap over prompts. Fewer than 30 prompts
are never called significant. An old summary is read from JSON that anybody may have written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from specviz.errors import SpecvizError

from .rows import KS, Array
from .slices import Part, Parts, excludes_zero, interval, weighted_sums
from .summary import ENOUGH_PROMPTS, VERSION, Comparison, Difference, DraftSummary, Interval, Summary, Win

MOST_WINS = 10
MOST_OLD_PROMPTS = 1_000_000
BETTER, WORSE, SAME, UNSURE = "better", "worse", "no significant change", "cannot tell"


# ---- draft against draft --------------------------------------------------------------------------------------------


def compare(parts: Parts, drafts: Sequence[str], ids: Mapping[int, str]) -> tuple[Comparison, ...]:
    """Every two drafts, over all tokens and in every slice where both can be read. ids: of the prompts, by number."""
    return tuple(_compare(parts, a, b, ids) for a, b in combinations(drafts, 2))


def _compare(parts: Parts, a: str, b: str, ids: Mapping[int, str]) -> Comparison:
    shared = [part for part in parts if part.draft == a and part._replace(draft=b) in parts]
    pairs = {part: parts[part].among(parts[part._replace(draft=b)]) for part in shared}
    gaps = {part: ours.alphas - theirs.alphas for part, (ours, theirs) in pairs.items() if len(ours)}
    whole = Part(a, "all", "all")
    ahead, behind = _wins(pairs[whole][0].prompts, gaps[whole], ids) if whole in gaps else ((), ())
    return Comparison(a, b, _differences(gaps), ahead, behind)


def _differences(gaps: Mapping[Part, Array]) -> tuple[Difference, ...]:
    """The whole first. It is asked by itself, the slices all together."""
    num_asked = sum(part.kind != "all" and len(gap) >= ENOUGH_PROMPTS for part, gap in gaps.items())
    sums = weighted_sums([gap[:, None] for gap in gaps.values()])
    found = [
        difference(part.kind, part.value, gap, drawn[:, 0], 1 if part.kind == "all" else max(1, num_asked))
        for (part, gap), drawn in zip(gaps.items(), sums, strict=True)
    ]
    return tuple(sorted(found, key=lambda each: each.kind != "all"))


def difference(kind: str, value: str, gaps: Array, drawn: Array, num_asked: int) -> Difference:
    size, mean = len(gaps), float(gaps.mean())
    around = interval(drawn / size, size)
    return Difference(kind, value, size, mean, around, _is_significant(around, mean, size, num_asked))


def _is_significant(around: Interval | None, mean: float, num_prompts: int, num_asked: int) -> bool | None:
    if around is None or num_prompts < ENOUGH_PROMPTS:
        return None
    return excludes_zero(around, mean, num_prompts, num_asked)


def _wins(prompts: Array, gaps: Array, ids: Mapping[int, str]) -> tuple[tuple[Win, ...], tuple[Win, ...]]:
    """The texts where the first is ahead most, and those where the second is."""
    order = np.argsort(-gaps, kind="stable")
    wins = [Win(int(prompts[place]), ids[int(prompts[place])], float(gaps[place])) for place in order]
    ahead = tuple(win for win in wins[:MOST_WINS] if win.difference > 0)
    return ahead, tuple(win for win in wins[::-1][:MOST_WINS] if win.difference < 0)


# ---- thresholds -----------------------------------------------------------------------------------------------------


def check_thresholds(summary: Summary, least: Mapping[str, float]) -> tuple[str, ...]:
    """What falls below its threshold, one sentence each; every draft must pass. Raises SpecvizError."""
    unknown = [name for name in least if name not in MEASURES]
    if unknown:
        raise SpecvizError(f"there is no threshold {unknown[0][:80]!r}; thresholds are {', '.join(MEASURES)}")
    failed = [_failure(draft, name, bound, summary.k) for draft in summary.drafts for name, bound in least.items()]
    return tuple(words for words in failed if words)


def _failure(draft: DraftSummary, name: str, bound: float, k: int) -> str:
    measured = MEASURES[name](draft, k)
    if measured is None:
        raise SpecvizError(f"{name} of {draft.name} is not known: no costs were measured or given for it")
    return "" if measured >= bound else f"{draft.name}: {name} is {measured:.4g}, below {bound:g}"


MEASURES: Mapping[str, Callable[[DraftSummary, int], float | None]] = {
    "alpha": lambda draft, k: draft.alpha,
    "greedy_agreement": lambda draft, k: draft.greedy_agreement,
    "mean_keep": lambda draft, k: draft.mean_keep,
    "tokens_per_call": lambda draft, k: draft.tokens_per_call[k - KS[0]],
    "speedup": lambda draft, k: None if draft.speedups is None else max(draft.speedups),
}
"""Tokens per call at the job's K; the speedup at the best K."""

# ---- against an older job -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """A draft now against the draft of an older job; verdict: BETTER, WORSE, SAME or UNSURE (fewer than 30 prompts)."""

    draft: str
    old_draft: str
    difference: Difference
    verdict: str


def against(summary: Summary, old: Mapping[str, Any]) -> tuple[Change, ...]:
    """Each draft against the old job's draft of that name, or its only one; paired by the prompts' ids.

    old: a summary as read from JSON, untrusted. Raises SpecvizError: no summary of this version, another target or
    sampling, or no draft to compare with.
    """
    before = _old_alphas(old)
    _check_same_job(summary, old)
    return tuple(
        _change(draft.name, _old_name(draft.name, summary, before), summary, before) for draft in summary.drafts
    )


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
            found.setdefault(draft, {})[prompt] = _checked_alpha(alpha)
    return found


def _checked_alpha(alpha: Any) -> float:
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not 0 <= alpha <= 1:
        raise SpecvizError(f"the older summary has an alpha that is no number from 0 to 1 (got {str(alpha)[:20]})")
    return float(alpha)


def _check_same_job(summary: Summary, old: Mapping[str, Any]) -> None:
    for name, now in (("target", summary.target), ("sampling", dict(summary.sampling))):
        if old.get(name) != now:
            raise SpecvizError(
                f"the older job had another {name}, so its numbers cannot be compared: it was "
                f"{str(old.get(name))[:200]}, and is now {now}"
            )


def _old_name(name: str, summary: Summary, before: Mapping[str, Any]) -> str:
    if name in before:
        return name
    if len(before) == len(summary.drafts) == 1:
        return next(iter(before))
    raise SpecvizError(f"the older summary has no draft {name!r}; it has {', '.join(before)[:200] or 'none'}")


def _change(name: str, old_name: str, summary: Summary, before: Mapping[str, Mapping[str, float]]) -> Change:
    now = {prompt: alphas[name] for prompt, alphas in summary.by_prompt.items() if name in alphas}
    shared = [prompt for prompt in now if prompt in before[old_name]]
    if not shared:
        raise SpecvizError(f"the two jobs share no prompt on which {name} was read; prompts are paired by their ids")
    gaps = np.array([now[prompt] - before[old_name][prompt] for prompt in shared])
    found = difference("all", "all", gaps, weighted_sums([gaps[:, None]])[0][:, 0], 1)
    return Change(name, old_name, found, _verdict(found))


def _verdict(found: Difference) -> str:
    if found.significant is None:
        return UNSURE
    return SAME if not found.significant else BETTER if found.difference > 0 else WORSE
