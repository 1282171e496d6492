"""A text that exists, with the chance of each of its tokens to be kept: what the what-if of every K is made from.

A trace needs nothing but its `scores`: then no model is asked and no torch is loaded, which is why models are imported
where they are used. Says of every text whether its numbers are exact, and refuses in words where there are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from specviz.analysis import whatif
from specviz.analysis.whatif import DEEPEST, Chances, Cut, WhatIf
from specviz.drafters import facts_of, find_method
from specviz.errors import SpecvizError
from specviz.request import RunSettings
from specviz.rules.facts import facts_of as rule_facts
from specviz.trace import Scores, Settings, Trace

if TYPE_CHECKING:
    from specviz.analysis.costs import Costs
    from specviz.decoding.sampling import Sampling
    from specviz.models.pool import LoadedModel
    from specviz.models.score import TokenScores

KS = range(1, DEEPEST + 1)
MOST_TOKENS = 50_000
_VERDICTS = {"accepted": True, "resampled": False}


@dataclass(frozen=True, slots=True, eq=False)
class GivenText:
    """A text with the chance of each of its tokens to be kept; verdicts: what a run found, None where it judged not."""

    target: str
    draft: str | None  # None: proposals without a model
    chances: Chances
    verdicts: tuple[bool | None, ...] | None
    exact: bool
    note: str

    def every_k(self, ks: Sequence[int] = KS, costs: Costs | None = None) -> WhatIf:
        """Proposals without a model cost nothing to draft. SpecvizError for costs that are of other models."""
        if costs is not None and (
            costs.target != self.target or self.draft not in (None, costs.draft)
        ):
            raise SpecvizError(
                f"the costs were measured for {costs.target} with {costs.draft or 'no draft model'}, and this is "
                f"{self.target} with {self.draft or 'no draft model'}; measure them for these models"
            )
        if costs is not None and self.draft is None:
            costs = replace(costs, draft_ms=0.0)
        return whatif.every_k(self.chances, ks, costs, exact=self.exact, note=self.note)

    def cuts(self, ks: Sequence[int] = KS, seed: int = 0) -> dict[int, Cut]:
        """The text cut into steps at every K: one exact draw, the same flags for all; a run's own where it has any."""
        from specviz.decoding.draws import ACCEPT, Seeded

        draws = Seeded(seed)
        u = [draws.uniform(ACCEPT, place, 0) for place in range(len(self.chances))]
        kept = whatif.draw_flags(self.chances, u, self.verdicts)
        return {k: whatif.split_into_steps(self.chances, kept, k) for k in ks}


def judge_run(recorded: Trace, *, target=None, draft=None, deepest: int = DEEPEST) -> GivenText:
    """The text of a run under its own draft, by its scores alone; or under another draft model. Heads, modules and
    layers read the text again, if the target is named. Raises SpecvizError."""
    require_one_distribution(recorded)
    own, scores = recorded.steps[-1].settings, _scores(recorded)
    if target is not None:
        target = target_of(recorded, target)
    if draft is not None and (scores is None or draft != scores.draft_model):
        return judge_by(
            recorded, target_of(recorded, target or own.target), load_model(draft), deepest
        )[0]
    if scores is not None and scores.draft_model is not None:
        if any(value is None for value in (*scores.p, *scores.q)):
            raise SpecvizError(
                f"{scores.draft_model} could not read this text to its end, so its q is not known"
            )
        verdicts = _verdicts(recorded, scores.draft_model)
        return _judge(recorded, scores.draft_model, scores.p, scores.q, deepest, verdicts)
    if facts_of(own.method).replays_from_text:
        return rollouts(recorded, deepest)
    if target is not None and facts_of(own.method).reads_ahead:
        return judge_heads(recorded, target, deepest)
    raise SpecvizError(_why_not(own.method, scores))


def reader_of(recorded: Trace) -> str | None:
    """The target that has to read the text again before `judge_run` can tell of it; None where the records tell."""
    own = recorded.steps[-1].settings if recorded.steps else None
    method = own and facts_of(own.method)
    return own.target if method and method.reads_ahead and not method.replays_from_text else None


def require_one_distribution(recorded: Trace) -> None:
    """Raises SpecvizError for texts that are not one draw of one target's law."""
    if len(recorded.tokens) < 2:
        raise SpecvizError("the text has fewer than two tokens; generate a longer one")
    settings = [step.settings for step in recorded.steps]
    lossy = next((each for each in settings if not each.lossless), None)
    if lossy is not None:
        raise SpecvizError(
            f"the run used a lossy rule ({lossy.rule}), so its text is not the target's own; nothing exact can be "
            "said about another K"
        )
    if len({(each.target, each.temperature, each.top_k, each.top_p) for each in settings}) > 1:
        raise SpecvizError(
            "the target or the sampling changed during the run, so its text has no single distribution"
        )
    require_length(len(recorded.tokens))


def require_length(num_tokens: int) -> None:
    if num_tokens > MOST_TOKENS:
        raise SpecvizError(
            f"the text is too long to plan: at most {MOST_TOKENS:,} tokens (got {num_tokens:,})"
        )


def is_own_plan(recorded: Trace) -> bool:
    """Whether all steps were cut as the what-if cuts the text, so that the run's own calls are one draw of its law."""
    ways = _ways(recorded)
    fixed = len(ways) == 1 and ways[0].k_policy in (None, "constant")
    if not fixed or not _is_plain_rule(ways[0]):
        return False
    method = facts_of(ways[0].method)
    return method.cost_is_known or (
        method.reads_ahead and method.under(ways[0].params).drafts_as == "chain"
    )


def _is_plain_rule(own: Settings) -> bool:
    return own.rule is not None and rule_facts(own.rule).is_plain


def _ways(recorded: Trace) -> list[Settings]:
    """The settings of the first step of every way of drafting and judging that the run took."""
    ways: list[Settings] = []
    for own in (step.settings for step in recorded.steps):
        if _way(own) not in map(_way, ways):
            ways.append(own)
    return ways


def _way(own: Settings) -> tuple[object, ...]:
    return own.method, own.draft_model, own.rule, own.params


def _way_words(own: Settings) -> str:
    is_plain = facts_of(own.method).is_plain
    how = own.draft_model if is_plain else own.method.replace("_", " ")
    how += f" of {own.draft_model}" if own.draft_model and not is_plain else ""
    how += (
        f", its K by the policy {own.k_policy}," if own.k_policy not in (None, "constant") else ""
    )
    judges = own.rule is not None and own.drafts
    return f"{how} with {own.rule.replace('_', ' ')}" if judges else f"{how}"


def _scores(recorded: Trace) -> Scores | None:
    """The newest scores of the whole text, made at the run's sampling."""
    own, size = recorded.steps[-1].settings, len(recorded.tokens)
    sampling = {name: getattr(own, name) for name in RunSettings.ALL_SAMPLING}
    for each in reversed(recorded.scores):
        if len(each.p) == size and all(
            each.sampling.get(name) == value for name, value in sampling.items()
        ):
            return each
    return None


def _why_not(method: str, scores: Scores | None) -> str:
    if facts_of(method).reads_ahead:
        return f"{facts_of(method).why_no_what_if}; specviz.what_if(trace) loads the models and tells it"
    if reason := facts_of(method).why_no_what_if:
        return f"{reason}; {_INSTEAD}"
    if scores is None:
        return (
            "the run was not scored because it did not finish; let it finish, or name a draft model"
        )
    return f"what the method {method} would have proposed elsewhere in this text was not recorded; {_INSTEAD}"


_INSTEAD = "name a draft model to see what it would have done with this text"


def _judge(
    recorded: Trace, draft: str, p, q, deepest: int, verdicts: tuple[bool | None, ...] | None
) -> GivenText:
    chances = whatif.chances_along_text(
        whatif.acceptance_chances(p, q), deepest=deepest, most_tokens=_most_tokens(recorded)
    )
    return GivenText(
        recorded.steps[-1].settings.target,
        draft,
        chances,
        verdicts,
        True,
        _exact_note(recorded, draft),
    )


def _exact_note(recorded: Trace, draft: str | None) -> str:
    own = recorded.steps[-1].settings
    words = "by a lossless rule, with the same sampling throughout"
    note = f"Exact for this text: it was sampled from {own.target} {words}."
    if is_own_plan(recorded) and own.draft_model == draft:
        return note
    ways = ", then ".join(_way_words(way) for way in _ways(recorded))
    drafter = draft or own.method.replace("_", " ")
    return (
        f"{note} It is divided into steps as {drafter} would with speculative sampling and a fixed K. This run used "
        f"{ways}, so its own calls are not one of these draws."
    )


def _most_tokens(recorded: Trace) -> int:
    """The length that the run was allowed; a text that ended before it might have been drafted beyond its end."""
    size, asked = len(recorded.tokens), recorded.header.request.get("max_new_tokens")
    if type(asked) is not int or recorded.footer is None or recorded.footer.reason == "length":
        return size
    limit = recorded.models[-1].target.context_limit
    space = asked if limit is None else min(asked, limit - len(recorded.header.prompt.tokens))
    return max(size, space)


def _verdicts(recorded: Trace, draft: str) -> tuple[bool | None, ...]:
    """Per emitted token: kept, cut, or None where this draft was not judged."""
    verdicts: list[bool | None] = []
    for step in recorded.steps:
        own = step.settings
        is_judged = (
            facts_of(own.method).is_plain and own.draft_model == draft and _is_plain_rule(own)
        )
        verdicts += (_VERDICTS.get(token.kind) if is_judged else None for token in step.emitted)
    return tuple(verdicts)


def rollouts(recorded: Trace, deepest: int = DEEPEST) -> GivenText:
    """A run whose drafts need no model, drafted again from every place of its text. A proposal equal to the emitted
    token x was always kept and any other never: had a point mass on x not been kept, x could not have been drawn."""
    from specviz.decoding.drafter import Context
    from specviz.decoding.draws import Seeded
    from specviz.decoding.sampling import Sampling
    from specviz.drafters.method import Parts

    own, text = recorded.steps[-1].settings, [token.id for token in recorded.tokens]
    method = find_method(own.method)
    drafter, tokens = (
        method.build(Parts(), method.validate(own.params)),
        [t.id for t in recorded.header.prompt.tokens],
    )
    context = Context(tokens, Sampling.of(own), Seeded(0), 0)
    keep, proposed = np.zeros((len(text), deepest)), np.zeros(len(text), dtype=int)
    for start, token in enumerate(text):
        drafted = drafter.draft(context, deepest).tokens
        proposed[start] = len(drafted)
        rest = text[start : start + len(drafted)]
        keep[start, : len(rest)] = [one == other for one, other in zip(drafted, rest, strict=False)]
        tokens.append(token)
    chances = Chances(
        keep, np.minimum(proposed, whatif.draft_room(len(text), _most_tokens(recorded)))
    )
    return GivenText(own.target, None, chances, None, True, _exact_note(recorded, None))


def judge_heads(recorded: Trace, target: LoadedModel, deepest: int) -> GivenText:
    """A run whose drafts hang on where their step begins, drafted again from every place. Raises SpecvizError."""
    from specviz.analysis.along import chances_of
    from specviz.decoding.sampling import Sampling
    from specviz.session.setup import gather
    from specviz.session.workbench import workbench

    own, before = recorded.steps[-1].settings, [token.id for token in recorded.header.prompt.tokens]
    setup = gather(find_method(own.method), own.params, target, None, workbench().pool)
    text, most = [token.id for token in recorded.tokens], _most_tokens(recorded)
    chances = chances_of(setup, before, text, Sampling.of(own), deepest, most)
    drafter = own.method if setup.heads is None else setup.heads.name
    return GivenText(own.target, drafter, chances, None, True, _exact_note(recorded, None))


def judge_by(
    recorded: Trace, target: LoadedModel, draft: LoadedModel, deepest: int
) -> tuple[GivenText, float]:
    """The text of a run under this draft model, and the mean of sum min(p, q) over its places. Raises SpecvizError."""
    from specviz.decoding.sampling import Sampling

    own, before = recorded.steps[-1].settings, [token.id for token in recorded.header.prompt.tokens]
    sampling = Sampling.of(own)
    scored = score_readable(
        target, draft, before, [token.id for token in recorded.tokens], sampling
    )
    judged = _judge(recorded, draft.name, scored.p, scored.q, deepest, None)
    return judged, float(np.mean(scored.overlap))


def target_of(recorded: Trace, target) -> LoadedModel:
    """The run's target model. Raises SpecvizError for another one, or one that spells texts otherwise."""
    model, info = load_model(target), recorded.models[-1].target
    if model.name != info.name:
        raise SpecvizError(
            f"the text of this run was written by {info.name}; it says nothing about {model.name}"
        )
    if info.tokenizer_sha not in (None, model.info.tokenizer_sha):
        raise SpecvizError(
            f"{model.name} splits text into other tokens than {info.name}, which made this run"
        )
    return model


def score_readable(
    target: LoadedModel,
    draft: LoadedModel,
    before: Sequence[int],
    text: Sequence[int],
    sampling: Sampling,
) -> TokenScores:
    """One pass of both models. SpecvizError for a text or a pair that does not allow it."""
    from specviz.models.pool import check_pair
    from specviz.models.score import score

    check_pair(target, draft)
    tokens = [*before, *text]
    for model in (target, draft):
        if len(tokens) > model.info.context_limit:
            raise SpecvizError(
                f"the text has {len(tokens):,} tokens and {model.name} reads at most {model.info.context_limit:,}"
            )
        if not all(0 <= token < model.info.vocab_size for token in tokens):
            raise SpecvizError(f"the text has tokens that {model.name} does not know")
    return score(target, draft, tokens, len(text), sampling)


def load_model(wanted) -> LoadedModel:
    """A model by name, by folder, as (model, tokenizer), or loaded already."""
    from specviz.models.pool import LoadedModel
    from specviz.session.workbench import workbench

    return wanted if isinstance(wanted, LoadedModel) else workbench().pool.load(wanted)
