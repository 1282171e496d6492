"""Every K, and every other draft model, on a text that exists, without generating again."""

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
    min_p: float = 0.0,
) -> pandas.DataFrame:
    """What every K would have cost on one text, as a data frame with a row per K.

    Columns: k, expected_target_calls, tokens_per_call, speedup (nan without costs), calls_low, calls_high: the number
    of target calls is at most these with 5 % and 95 % probability. attrs["exact"] is False where the text may not be
    the target's own, and attrs["note"] says why.
    source: a trace (its own sampling counts), or (prompt, completion) as texts or token ids. target, draft: a name, a
    folder or a loaded pair; a trace needs `draft` only for another draft than its own. Raises SpecvizError.
    """
    check_ks(ks)
    if isinstance(source, Trace):
        target = reader_of(source) if target is None else target
        judged = judge_run(source, target=target, draft=draft, deepest=max(ks))
    else:
        sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        Request(prompt="-", target="-", max_new_tokens=1, **sampling).validate()
        prompt, completion = source
        judged = _judge_text(prompt, completion, target, draft, sampling, max(ks))
    return judged.every_k(ks, costs).frame()


def _judge_text(
    prompt: str | Sequence[int],
    completion: str | Sequence[int],
    target,
    draft,
    sampling: Mapping[str, float],
    deepest: int,
) -> GivenText:
    """Judges a text from anywhere as if it had been sampled from the target at these settings, in one pass."""
    from specviz.decoding.sampling import Sampling
    from specviz.models import catalog

    default_target, default_draft = catalog.default_pair()
    if draft is None and target not in (None, default_target):
        raise SpecvizError("name a draft model for this target (got none)")
    target = load_model(target or default_target)
    draft = load_model(draft or default_draft)
    before = target.text.encode(prompt) if isinstance(prompt, str) else list(prompt)
    is_text = isinstance(completion, str)
    text = target.text.encode(completion, special=False) if is_text else list(completion)
    if not before or len(text) < 2:
        raise SpecvizError(
            f"a prompt and at least two tokens after it are needed (got {len(before)} and {len(text)})"
        )
    require_length(len(text))
    scored = score_readable(target, draft, before, text, Sampling(**sampling))
    acceptance = whatif.acceptance_chances(scored.p, scored.q)
    chances = whatif.chances_along_text(acceptance, deepest=deepest)
    note = f"An estimate: exact only if this text was sampled from {target.name} at these settings."
    if num_impossible := scored.p.count(0.0):
        note += f" It was not: {num_impossible:,} of the tokens have probability 0 there."
    if is_text:
        note += " Its tokens come from splitting the text again."
    return GivenText(target.name, draft.name, chances, None, False, note)


@dataclass(frozen=True, slots=True)
class DraftOnText:
    """What one draft model would have done with the text."""

    name: str
    alpha: float | None = None  # mean of sum min(p, q) over all places
    what_if: WhatIf | None = None
    refusal: str = ""  # why it cannot be said; then all else is missing


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
    """Judges the text by one teacher-forced pass per draft model, with a result after each. costs: by the draft's name.

    Raises SpecvizError.
    """
    check_ks(ks)
    require_one_distribution(recorded)
    target = target_of(recorded, target)
    costs = costs or {}
    rows = []
    yield OtherDrafts(0, len(drafts), ())
    for draft in drafts:
        name = draft if isinstance(draft, str) else getattr(draft, "name", "draft")
        try:
            judged, alpha = judge_by(recorded, target, load_model(draft), max(ks))
        except SpecvizError as error:
            rows.append(DraftOnText(name, refusal=str(error)))
        else:
            every_k = judged.every_k(ks, costs.get(judged.draft))
            rows.append(DraftOnText(judged.draft, alpha, every_k))
        yield OtherDrafts(len(rows), len(drafts), tuple(rows))
