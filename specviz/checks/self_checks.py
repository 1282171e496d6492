"""Self-checks of a running pair: its caches, its drafts and their q, against plain forwards that use none of our code.

Each check makes a short real run of the engine, with scripted drafts for the cache. What agrees up to rounding is
"consistent" and says how far apart it was. A check without room is "unsure".
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, islice
from typing import NamedTuple

import torch
from torch import Tensor

from specviz.checks.rows import total_variation
from specviz.checks.scoring import ROUNDING, plain_logits
from specviz.checks.statistics import CheckOutcome
from specviz.decoding.draft import ROOT, Draft, chain
from specviz.decoding.drafter import Context, Drafter
from specviz.decoding.draws import DRAFT, Draws, Seeded
from specviz.decoding.engine import Plan, StepResult, speculate
from specviz.decoding.sampling import Sampling
from specviz.drafters import METHODS
from specviz.models.pool import LoadedModel
from specviz.rules import RULES
from specviz.session.setup import Setup, gather

SEED = 20
MOST_STEPS = 8
SELF_STEPS = 8
Q_STEPS = 6
ALLOWED = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 8e-2}
SIBLINGS = 4
NO_ROOM = "the context leaves no room for this check after the prompt"
SAME_Q = 1e-6  # q computed again from the same logits, by the same filter
SAME_CHANCE = 1e-3  # how far an acceptance probability may be below 1 when both models are one


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """A finished check of the pair."""

    name: str
    verdict: str  # "consistent", "differs" or "unsure"
    words: str
    done: int = 0  # checks that are finished, this one among them
    total: int = 0


class _StepEnd(NamedTuple):
    """A way in which a step can end, and the scripted draft that leads there."""

    words: str
    wrong: int | None  # the place of the drafted token that the target never writes
    is_reached: Callable[[StepResult], bool]


def _accepted_everything(step: StepResult) -> bool:
    return len(step.draft) > 0 and step.verdict.kind == "bonus"


def _rejected_later(step: StepResult) -> bool:
    return step.verdict.kind == "resampled" and bool(step.verdict.path)


def _rejected_first(step: StepResult) -> bool:
    return step.verdict.kind == "resampled" and not step.verdict.path


STEP_ENDS = (
    _StepEnd("after all drafted tokens were accepted", None, _accepted_everything),
    _StepEnd("after a later one was rejected", 1, _rejected_later),
    _StepEnd("after the first token was rejected", 0, _rejected_first),
)


def self_checks(
    pair: Setup, prompt_ids: Sequence[int], sampling: Sampling, k: int
) -> Iterator[SelfCheck]:
    """Yields one finished check after the other.

    K is at least 2 where a rejection in the middle is made. The target drafts for itself at temperature 1 without a
    filter, where rounding cannot tip a tie.
    """
    target = pair.target
    checks: dict[str, Callable[[], CheckOutcome]] = {}
    for end in STEP_ENDS:
        name = f"Cache against a full read, {end.words}"
        checks[name] = partial(_check_cache, target, prompt_ids, max(k, 2), end)
    if not target.proof.trees:
        name = "Token tree against a full read of each branch"
        checks[name] = partial(_check_tree, target, prompt_ids)
    name = "The target as its own draft accepts everything"
    checks[name] = partial(_check_own_draft, pair, prompt_ids, k)
    if pair.draft is not None and pair.method.is_plain:  # else q is not the draft model's row alone
        name = "The recorded q is the q that was drawn from"
        checks[name] = partial(_check_claimed_q, pair, prompt_ids, sampling, k)
    for done, (name, check) in enumerate(checks.items(), start=1):
        outcome = check()
        yield SelfCheck(name, outcome.state, outcome.words, done, len(checks))


class _ScriptedDrafter(Drafter):
    """A drafter that drafts the target's greedy text, by full reads, but for one token that is wrong on purpose."""

    def __init__(self, target: LoadedModel, wrong: int | None) -> None:
        self._target = target
        self._wrong = wrong

    def draft(self, context: Context, k: int) -> Draft:
        tokens: list[int] = []
        for place in range(k):
            row = plain_logits(self._target, [*context.tokens, *tokens], 1)[0]
            tokens.append(int(row.argmin() if place == self._wrong else row.argmax()))
        return chain(tokens)


def _check_cache(
    target: LoadedModel, prompt_ids: Sequence[int], k: int, end: _StepEnd
) -> CheckOutcome:
    """Compares the rows that a step read behind its cache with one forward of the raw model over the whole text.

    Two steps suffice, unless rounding tips a tie between the target's most likely tokens.
    """
    rule = RULES["speculative_sampling"]
    drafter = _ScriptedDrafter(target, end.wrong)
    plan = Plan(target.cached_lm(), drafter, rule, Sampling(0.0), k)
    text = list(prompt_ids)
    is_due = False
    for step in _steps(plan, prompt_ids, MOST_STEPS):
        if is_due:
            full = plain_logits(target, [*text, *step.draft.tokens], len(step.draft) + 1)
            return _compare(step.logits, full)
        is_due = end.is_reached(step)
        text += step.tokens
    return CheckOutcome("unsure", NO_ROOM)


def _check_tree(target: LoadedModel, prompt_ids: Sequence[int]) -> CheckOutcome:
    """Compares the rows of a token tree behind the prompt with one forward of the raw model over each branch."""
    if len(prompt_ids) + 2 > target.info.context_limit:
        return CheckOutcome("unsure", NO_ROOM)
    likeliest = plain_logits(target, prompt_ids, 1)[0]
    siblings = likeliest.topk(min(SIBLINGS, len(likeliest))).indices.tolist()
    last = len(siblings) - 1
    tokens = (*siblings, siblings[0])  # the last one continues the last sibling
    parents = (ROOT,) * len(siblings) + (last,)
    tree = Draft(tokens, parents, (None,) * len(tokens))
    branches = [[], *([token] for token in siblings), [siblings[last], siblings[0]]]
    full = torch.cat([plain_logits(target, [*prompt_ids, *branch], 1) for branch in branches])
    return _compare(target.cached_lm().forward(list(prompt_ids), tree), full)


def _compare(ours: Tensor, full: Tensor) -> CheckOutcome:
    """Compares logits [N, V] of the reader that runs use with those of the raw model."""
    distance = _distance(ours, full)
    allowed = _tolerance(full.dtype)
    words = f"the largest difference is {distance:.1e} of the largest logit; rounding in "
    words += f"{str(full.dtype).removeprefix('torch.')} may make {allowed:.0e}"
    return CheckOutcome("consistent" if distance <= allowed else "differs", words)


def _steps(plan: Plan, prompt_ids: Sequence[int], num_steps: int) -> Iterator[StepResult]:
    """Runs at most `num_steps` steps of the real engine; room for one more step of text is left to draft in."""
    tokens = (num_steps + 1) * (plan.k + 1)
    with closing(speculate(prompt_ids, lambda: plan, Seeded(SEED), max_new_tokens=tokens)) as steps:
        yield from islice(steps, num_steps)


def _tolerance(dtype: torch.dtype) -> float:
    return ALLOWED.get(dtype, max(ALLOWED.values()))


def _distance(ours: Tensor, full: Tensor) -> float:
    """The largest difference, as a share of the largest logit; not-a-number counts as infinitely far."""
    wide = full.double()
    largest = wide.abs().max().clamp_min(1e-300)
    distance = float((ours.double() - wide).abs().max() / largest)
    return math.inf if math.isnan(distance) else distance


def _check_own_draft(pair: Setup, prompt_ids: Sequence[int], k: int) -> CheckOutcome:
    """Checks that nothing is rejected where a model drafts for itself: q = p everywhere."""
    setup = gather(METHODS["draft_model"], {}, pair.target, pair.target)
    plan = setup.plan(RULES["speculative_sampling"], Sampling(), k)
    steps = list(_steps(plan, prompt_ids, SELF_STEPS))
    checks = [check for step in steps for check in step.verdict.checks]
    if not checks:
        return CheckOutcome("unsure", "the context leaves no room to draft")
    least = min(check.accept_prob for check in checks)
    num_accepted = sum(check.accepted for check in checks)
    words = f"{num_accepted} of {len(checks)} drafted tokens accepted; "
    words += f"the smallest acceptance probability was {least:.6f}"
    dtype = pair.target.model.dtype
    largest = max(float(step.logits.abs().max()) for step in steps)
    rounding = max(ROUNDING[dtype], torch.finfo(dtype).eps * largest)  # of a logit, in p and in q
    if least < min(1 - SAME_CHANCE, math.exp(-2 * rounding)):
        return CheckOutcome("differs", f"{words}; with p = q it must be 1")
    return CheckOutcome("consistent", words)


def _check_claimed_q(
    pair: Setup, prompt_ids: Sequence[int], sampling: Sampling, k: int
) -> CheckOutcome:
    """Checks every drafted token with its q, from the raw draft model's logits to the id that u picks."""
    plan = pair.plan(RULES["speculative_sampling"], sampling, k)
    text = list(prompt_ids)
    num_tokens = 0
    farthest = 0.0
    for step in _steps(plan, prompt_ids, Q_STEPS):
        if _has_every_q(step.draft):
            farthest = max(farthest, _logits_apart(pair.draft, text, step))
            problem = _wrong_q(step.draft, sampling.of_draft)
            problem = problem or _wrong_draw(step.draft, Seeded(SEED), len(text))
            if problem:
                return CheckOutcome("differs", f"step {step.index + 1}: {problem}")
            num_tokens += len(step.draft)
        text += step.tokens
    if not num_tokens:
        return CheckOutcome("unsure", "no chain was drafted with both q and its logits")
    allowed = _tolerance(pair.draft.model.dtype)
    words = (
        f"{num_tokens} drafted tokens are what u picks from their q; the draft model's logits are within "
        f"{farthest:.1e} of a full read (rounding may make {allowed:.0e})"
    )
    return CheckOutcome("consistent" if farthest <= allowed else "differs", words)


def _has_every_q(draft: Draft) -> bool:
    """Whether it is a chain in which every token has its q and the logits behind it."""
    rows = (*draft.probs, *draft.logits)
    return len(draft) > 0 and draft.is_chain and all(row is not None for row in rows)


def _logits_apart(draft: LoadedModel, text: Sequence[int], step: StepResult) -> float:
    """How far the logits behind a step's q lie from one forward of the raw draft model, over the shared ids."""
    rows = plain_logits(draft, [*text, *step.draft.tokens[:-1]], len(step.draft))
    width = min(rows.shape[-1], step.logits.shape[-1])
    return _distance(torch.stack(step.draft.logits)[:, :width], rows[:, :width])


def _wrong_q(draft: Draft, sampling: Sampling) -> str:
    """Words for the first q that is not what its logits give; empty if there is none."""
    for node, (q, logits) in enumerate(zip(draft.probs, draft.logits, strict=True), start=1):
        distance = float(total_variation(q, sampling.probs(logits)))
        if not distance <= SAME_Q:
            return f"the q of drafted token {node} is {distance:.1e} away from what its logits give"
    return ""


def _wrong_draw(draft: Draft, draws: Draws, position: int) -> str:
    """Words for the first id that u does not pick from its q; empty if there is none.

    The id must lie where the probabilities, added up in Python's own floats, first exceed u.
    """
    for node, (token, q) in enumerate(zip(draft.tokens, draft.probs, strict=True)):
        cumulative = list(accumulate(q.double().tolist()))
        u = draws.uniform(DRAFT, position + node, node)
        low = bisect_right(cumulative, (u - SAME_Q) * cumulative[-1])
        high = bisect_right(cumulative, (u + SAME_Q) * cumulative[-1])
        if not low <= token <= high:
            return f"drafted token {node + 1} is not the one that u = {u:.6f} picks from its q"
    return ""
