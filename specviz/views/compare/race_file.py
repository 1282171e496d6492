"""A whole race as one JSON text: both setups, the machine, how steady it was, and every prompt's numbers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from specviz.trace.file import Trace
from specviz.trace.metrics import count, metrics
from specviz.views.compare.race_words import Titles, bare_title, speed_verdict

if TYPE_CHECKING:
    from specviz.bench.race import Heat, Race

FORMAT = 1
OF_A_PROMPT = ("prompt", "prompt_ids")


def race_file(result: Race, titles: Titles) -> str:
    state, words = speed_verdict(result, titles)
    first, found = result.heats[0].left.header, result.comparison
    told = {
        "specviz_race": FORMAT,
        "specviz": first.specviz,
        "created": first.created,
        "machine": first.environment,
        "sides": [_setup(*each) for each in zip(titles, (result.heats[0].left, result.heats[0].right), strict=True)],
        "verdict": {"state": state, "words": words if isinstance(words, str) else "".join(words)},
        "under_load": result.is_shared,
        "unsteadiness": None if found is None else found.spread,
        "runs": {"done": result.done, "planned": result.total},
        "median_ratio_b_over_a": None if found is None else found.ratio,
        "median_between": None if found is None else found.between,
        "prompts": [_heat(heat) for heat in result.heats],
    }
    return json.dumps(told, ensure_ascii=False, allow_nan=False, indent=1)


def _setup(title: str, trace: Trace) -> dict[str, Any]:
    asked = {name: value for name, value in trace.header.request.items() if name not in OF_A_PROMPT}
    return {"title": bare_title(title), "request": asked}


def _heat(heat: Heat) -> dict[str, Any]:
    runs = zip((heat.left, heat.right), heat.slower_ms, strict=True)
    return {
        "title": heat.title,
        "prompt": {name: heat.left.header.request.get(name) for name in OF_A_PROMPT},
        "a_and_b": [_side(quick, slow) for quick, slow in runs],
        "ratio_b_over_a": heat.ratio,
        "texts_part_after_tokens": heat.parted,
    }


def _side(quick: Trace, slower_ms: float) -> dict[str, Any]:
    values, times = metrics(quick), [count(quick).working_ms, slower_ms]
    names = (
        "tokens_per_s",
        "emitted",
        "target_calls",
        "draft_calls",
        "tokens_per_target_call",
        "acceptance_rate_judged",
    )
    return {"times_ms": times, **{name: values[name] for name in names}}
