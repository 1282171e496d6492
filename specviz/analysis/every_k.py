"""what_if and other_drafts: every K, and every other draft, on a text that exists, without generating again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specviz.analysis import whatif
from specviz.analysis.given_text import (
    KS,
    GivenText,
    judge_by,
    judge_run,
    load_model,
    reader_of,
    require_length,
    require_one_distribution,
    score_readable,
    target_of,
)
from specviz.analysis.whatif import WhatIf, check_ks
from specviz.errors import SpecvizError
from specviz.request import Request
from specviz.trace import Trace

if TYPE_CHECKING:
    import pandas

    from specviz.analysis.costs import Costs

Source = Trace | tuple[str | Sequence[int], str | Sequence[int]]


def what_if(
    source: Source,
    ks: Sequence[int] = KS,
    *,
    target=None,
    draft=None,
    costs: Costs | None = None,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
) -> pandas.DataFrame:
    """One row per K: k, expected_target_calls, tokens_per_call, speedup (nan without costs), calls_low, calls_high.

    source: a trace (its own sampling counts), or (prompt, completion) as texts or token ids. target, draft: a name, a
    folder or a loaded pair; a trace needs `draft` only for another draft than its own. calls_low, calls_high: 5 % and
    95 % of the law of the number of calls. attrs["exact"] is False where the text may not be the target's own, and
    attrs["note"] says why. Raises SpecvizError.
    """
    check_ks(ks)
    if isinstance(source, Trace):
        target = reader_of(source) if target is None else target
        judged = judge_run(source, target=target, draft=draft, deepest=max(ks))
    else:
        distribution = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        Request(prompt="-", target="-", max_new_tokens=1, **distribution).validate()
        judged = _judge_text(*source, target, draft, distribution, max(ks))
    return judged.every_k(ks, costs).frame()


def _judge_text(
    prompt: str | Sequence[int],
    completion: str | Sequence[int],
    target,
    draft,
    distribution: Mapping[str, float],
    deepest: int,
) -> GivenText:
    """A text from anywhere, as if it had been sampled from the target by this `law`; one pass of both models."""
    from specviz.decoding.sampling import Sampling
    from specviz.models import catalog

    default_target, default_draft = catalog.default_pair()
    if draft is None and target not in (None, default_target):
        raise SpecvizError("name a draft model for this target (got none)")
    target, draft = load_model(target or default_target), load_model(draft or default_draft)
    before = target.text.encode(prompt) if isinstance(prompt, str) else list(prompt)
    text = (
        target.text.encode(completion, special=False)
        if isinstance(completion, str)
        else list(completion)
    )
    if not before or len(text) < 2:
        raise SpecvizError(
            f"a prompt and at least two tokens after it are needed (got {len(before)} and {len(text)})"
        )
    require_length(len(text))
    scored = score_readable(target, draft, before, text, Sampling(**distribution))
    chances = whatif.chances_along_text(
        whatif.acceptance_chances(scored.p, scored.q), deepest=deepest
    )
    note = f"An estimate: exact only if this text was sampled from {target.name} at these settings."
    if num_impossible := scored.p.count(0.0):
        note += f" It was not: {num_impossible:,} of the tokens have probability 0 there."
    if isinstance(completion, str):
        note += " Its tokens come from splitting the text again."
    return GivenText(target.name, draft.name, chances, None, False, note)


@dataclass(frozen=True, slots=True)
class DraftOnText:
    """What one draft model would have done with the text; `refusal` says why it cannot, and then there is no more."""

    name: str
    alpha: float | None = None  # mean of sum min(p, q) over all places
    what_if: WhatIf | None = None
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class OtherDrafts:
    """The drafts asked so far."""

    done: int
    total: int
    rows: tuple[DraftOnText, ...]


def other_drafts(
    recorded: Trace,
    target,
    drafts: Sequence,
    ks: Sequence[int] = KS,
    costs: Mapping[str, Costs] | None = None,
) -> Iterator[OtherDrafts]:
    """One teacher-forced pass per draft model, a result after each. costs: by the draft's name. Raises SpecvizError."""
    check_ks(ks)
    require_one_distribution(recorded)
    target, rows = target_of(recorded, target), []
    yield OtherDrafts(0, len(drafts), ())
    for wanted in drafts:
        name = wanted if isinstance(wanted, str) else getattr(wanted, "name", "draft")
        try:
            judged, alpha = judge_by(recorded, target, load_model(wanted), max(ks))
        except SpecvizError as error:
            rows.append(DraftOnText(name, refusal=str(error)))
        else:
            rows.append(
                DraftOnText(
                    judged.draft, alpha, judged.every_k(ks, (costs or {}).get(judged.draft))
                )
            )
        yield OtherDrafts(len(rows), len(drafts), tuple(rows))
