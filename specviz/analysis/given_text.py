"""A text that exists, with the acceptance probability of each token: the source of the what-if of every K.

A trace needs nothing but its `scores`: then no model is asked and no torch is loaded, so models are imported where they
are used. Every text says whether its numbers are exact; where there are none, SpecvizError says why.
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
    """A text with the acceptance probability of each of its tokens."""

    target: str
    draft: str | None  # None: proposals without a model
    chances: Chances
    verdicts: tuple[bool | None, ...] | None
    """Whether a run accepted each token, None where it judged none; None without a run of this draft."""
    exact: bool
    note: str

    def every_k(self, ks: Sequence[int] = KS, costs: Costs | None = None) -> WhatIf:
        """What every K would have cost; proposals without a model cost nothing to draft.

        Raises SpecvizError for costs of other models.
        """
        is_of_others = costs is not None and (
            costs.target != self.target or self.draft not in (None, costs.draft)
        )
        if is_of_others:
            raise SpecvizError(
                f"the costs were measured for {costs.target} with {costs.draft or 'no draft model'}, and this is "
                f"{self.target} with {self.draft or 'no draft model'}; measure them for these models"
            )
        if costs is not None and self.draft is None:
            costs = replace(costs, draft_ms=0.0)
        return whatif.every_k(self.chances, ks, costs, exact=self.exact, note=self.note)

    def cuts(self, ks: Sequence[int] = KS, seed: int = 0) -> dict[int, Cut]:
        """The steps of the text at every K, from one exact draw for all; the run's own verdicts count where known."""
        from specviz.decoding.draws import ACCEPT, Seeded

        draws = Seeded(seed)
        u = [draws.uniform(ACCEPT, place, 0) for place in range(len(self.chances))]
        accepted = whatif.draw_flags(self.chances, u, self.verdicts)
        return {k: whatif.split_into_steps(self.chances, accepted, k) for k in ks}


def judge_run(recorded: Trace, *, target=None, draft=None, deepest: int = DEEPEST) -> GivenText:
    """The text of a run under its own draft, by its scores alone; or under another draft model.

    Heads, modules and layers read the text again, if the target is named. Raises SpecvizError.
    """
    require_one_distribution(recorded)
    used = recorded.steps[-1].settings
    scores = _scores(recorded)
    if target is not None:
        target = target_of(recorded, target)
    if draft is not None and (scores is None or draft != scores.draft_model):
        reader = target_of(recorded, target or used.target)
        judged, _ = judge_by(recorded, reader, load_model(draft), deepest)
        return judged
    if scores is not None and scores.draft_model is not None:
        if any(value is None for value in (*scores.p, *scores.q)):
            raise SpecvizError(
                f"{scores.draft_model} could not read this text to its end, so its q is not known"
            )
        verdicts = _verdicts(recorded, scores.draft_model)
        return _judge(recorded, scores.draft_model, scores.p, scores.q, deepest, verdicts)
    method = facts_of(used.method).under(used.params)
    if method.replays_from_text:
        return rollouts(recorded, deepest)
    if target is not None and method.reads_ahead:
        return judge_heads(recorded, target, deepest)
    raise SpecvizError(_why_not(used, scores))


def reader_of(recorded: Trace) -> str | None:
    """The target that has to read the text again before `judge_run` can judge it; None where the records suffice."""
    if not recorded.steps:
        return None
    used = recorded.steps[-1].settings
    method = facts_of(used.method).under(used.params)
    needs_target = method.reads_ahead and not method.replays_from_text
    return used.target if needs_target else None


def require_one_distribution(recorded: Trace) -> None:
    """Raises SpecvizError for texts that are not one draw from one target's distribution."""
    if len(recorded.tokens) < 2:
        raise SpecvizError("the text has fewer than two tokens; generate a longer one")
    distributions = set()
    for step in recorded.steps:
        used = step.settings
        if used.is_foreign:
            raise SpecvizError(
                "the run was recorded by another engine, without probabilities, so nothing is known about another K"
            )
        if not used.lossless:
            raise SpecvizError(
                f"the run used a lossy rule ({used.rule}), so its text is not the target's own; nothing exact can be "
                "said about another K"
            )
        distributions.add(used.distribution)
    if len(distributions) > 1:
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
    """Whether the run's steps follow the rules of the what-if, so that its own calls are one draw of it."""
    ways = _ways(recorded)
    if len(ways) != 1:
        return False
    used = ways[0]
    if used.k_policy not in (None, "constant") or not _is_plain_rule(used):
        return False
    method = facts_of(used.method).under(used.params)
    if method.cost_is_known:
        return True
    return method.reads_ahead and method.drafts_as == "chain"


def _is_plain_rule(used: Settings) -> bool:
    return used.rule is not None and rule_facts(used.rule).is_plain


def _ways(recorded: Trace) -> list[Settings]:
    """The settings of the first step of every way of drafting and judging that the run took."""
    ways: list[Settings] = []
    for step in recorded.steps:
        if not any(_is_same_way(step.settings, known) for known in ways):
            ways.append(step.settings)
    return ways


def _is_same_way(one: Settings, other: Settings) -> bool:
    is_same_draft = one.method == other.method and one.draft_model == other.draft_model
    return is_same_draft and one.rule == other.rule and one.params == other.params


def _way_words(used: Settings) -> str:
    if facts_of(used.method).is_plain:
        words = f"{used.draft_model}"
    else:
        words = used.method.replace("_", " ")
        if used.draft_model:
            words += f" of {used.draft_model}"
    if used.k_policy not in (None, "constant"):
        words += f", its K by the policy {used.k_policy},"
    if used.rule is not None and used.drafts:
        words += f" with {used.rule.replace('_', ' ')}"
    return words


def _scores(recorded: Trace) -> Scores | None:
    """The newest scores of the whole text, made at the run's sampling."""
    used = recorded.steps[-1].settings
    sampling = {name: getattr(used, name) for name in RunSettings.ALL_SAMPLING}
    for scores in reversed(recorded.scores):
        is_whole = len(scores.p) == len(recorded.tokens)
        made_at = RunSettings.FILTERS | scores.sampling
        if is_whole and all(made_at.get(name) == sampling[name] for name in sampling):
            return scores
    return None


def _why_not(used: Settings, scores: Scores | None) -> str:
    """Words for why nothing can be said without another draft."""
    facts = facts_of(used.method).under(used.params)
    if facts.reads_ahead:
        return f"{facts.why_no_what_if}; specviz.what_if(trace) loads the models and tells it"
    if facts.why_no_what_if:
        return f"{facts.why_no_what_if}; {_INSTEAD}"
    if scores is None:
        return "the run was not scored: it did not finish, or a browser made it; name a draft model"
    return f"what the method {used.method} would have proposed elsewhere in this text was not recorded; {_INSTEAD}"


_INSTEAD = "name a draft model to see what it would have done with this text"


def _judge(
    recorded: Trace, draft: str, p, q, deepest: int, verdicts: tuple[bool | None, ...] | None
) -> GivenText:
    acceptance = whatif.acceptance_chances(p, q)
    chances = whatif.chances_along_text(
        acceptance, deepest=deepest, most_tokens=_most_tokens(recorded)
    )
    target = recorded.steps[-1].settings.target
    return GivenText(target, draft, chances, verdicts, True, _exact_note(recorded, draft))


def _exact_note(recorded: Trace, draft: str | None) -> str:
    used = recorded.steps[-1].settings
    words = "by a lossless rule, with the same sampling throughout"
    note = f"Exact for this text: it was sampled from {used.target} {words}."
    if is_own_plan(recorded) and used.draft_model == draft:
        return note
    ways = ", then ".join(map(_way_words, _ways(recorded)))
    drafter = draft or used.method.replace("_", " ")
    return (
        f"{note} It is divided into steps as {drafter} would with speculative sampling and a fixed K. This run used "
        f"{ways}, so its own calls are not one of these draws."
    )


def _most_tokens(recorded: Trace) -> int:
    """The length that the run was allowed; a text that ended before it might have been drafted beyond its end."""
    size = len(recorded.tokens)
    allowed = recorded.header.request.get("max_new_tokens")
    is_cut_short = recorded.footer is not None and recorded.footer.reason != "length"
    if type(allowed) is not int or not is_cut_short:
        return size
    limit = recorded.models[-1].target.context_limit
    if limit is not None:
        allowed = min(allowed, limit - len(recorded.header.prompt.tokens))
    return max(size, allowed)


def _verdicts(recorded: Trace, draft: str) -> tuple[bool | None, ...]:
    """Whether each emitted token was accepted; None where this draft was not judged."""
    verdicts: list[bool | None] = []
    for step in recorded.steps:
        used = step.settings
        is_judged = (
            facts_of(used.method).is_plain and used.draft_model == draft and _is_plain_rule(used)
        )
        for token in step.emitted:
            verdicts.append(_VERDICTS.get(token.kind) if is_judged else None)
    return tuple(verdicts)


def rollouts(recorded: Trace, deepest: int = DEEPEST) -> GivenText:
    """A run whose drafts need no model, drafted again from every place of its text.

    A proposal that equals the emitted token was always accepted, and any other never: had a point mass on the token
    been rejected, the token could not have been drawn.
    """
    from specviz.decoding.drafter import Context
    from specviz.decoding.draws import Seeded
    from specviz.decoding.sampling import Sampling
    from specviz.drafters.method import Parts

    used = recorded.steps[-1].settings
    method = find_method(used.method)
    drafter = method.build(Parts(), method.validate(used.params))
    before, text = _ids(recorded)
    context = Context(before, Sampling.of(used), Seeded(0), 0)
    accept = np.zeros((len(text), deepest))
    num_proposed = np.zeros(len(text), dtype=int)
    for start, token in enumerate(text):
        proposed = drafter.draft(context, deepest).tokens
        num_proposed[start] = len(proposed)
        for depth, (drafted, emitted) in enumerate(zip(proposed, text[start:], strict=False)):
            accept[start, depth] = drafted == emitted
        before.append(token)  # which the context reads
    room = whatif.draft_room(len(text), _most_tokens(recorded))
    chances = Chances(accept, np.minimum(num_proposed, room))
    return GivenText(used.target, None, chances, None, True, _exact_note(recorded, None))


def judge_heads(recorded: Trace, target: LoadedModel, deepest: int) -> GivenText:
    """A run whose drafts depend on where their step begins, drafted again from every place. Raises SpecvizError."""
    from specviz.analysis.along import chances_of
    from specviz.decoding.sampling import Sampling
    from specviz.session.setup import gather
    from specviz.session.workbench import workbench

    used = recorded.steps[-1].settings
    setup = gather(find_method(used.method), used.params, target, None, workbench().pool)
    before, text = _ids(recorded)
    most_tokens = _most_tokens(recorded)
    chances = chances_of(setup, before, text, Sampling.of(used), deepest, most_tokens)
    drafter = used.method if setup.heads is None else setup.heads.name
    return GivenText(used.target, drafter, chances, None, True, _exact_note(recorded, None))


def judge_by(
    recorded: Trace, target: LoadedModel, draft: LoadedModel, deepest: int
) -> tuple[GivenText, float]:
    """The text of a run under this draft model, and the mean of sum min(p, q) over its places. Raises SpecvizError."""
    from specviz.decoding.sampling import Sampling

    before, text = _ids(recorded)
    sampling = Sampling.of(recorded.steps[-1].settings)
    scored = score_readable(target, draft, before, text, sampling)
    judged = _judge(recorded, draft.name, scored.p, scored.q, deepest, None)
    return judged, float(np.mean(scored.overlap))


def _ids(recorded: Trace) -> tuple[list[int], list[int]]:
    """The ids of the prompt and of the emitted text."""
    prompt = [token.id for token in recorded.header.prompt.tokens]
    return prompt, [token.id for token in recorded.tokens]


def target_of(recorded: Trace, target) -> LoadedModel:
    """Loads the run's target model. Raises SpecvizError for another model, or another tokenizer."""
    model = load_model(target)
    info = recorded.models[-1].target
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
    """Scores a text by one pass of both models. Raises SpecvizError for a text or a pair that does not allow it."""
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
    """Loads a model that is named, given by its folder or as (model, tokenizer), or loaded already."""
    from specviz.models.pool import LoadedModel
    from specviz.session.workbench import workbench

    return wanted if isinstance(wanted, LoadedModel) else workbench().pool.load(wanted)
