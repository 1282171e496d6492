"""Self-checks of a running pair: its caches, its drafts and their q, against plain forwards that use none of our code.

Each makes a short real run of the engine, with scripted drafts for the cache. What agrees up to the rounding of the
number format is "consistent" and says how far apart it was; what there was no room for is "unsure".
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, islice

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
SAME_CHANCE = 1e-3  # by how much a chance to keep may miss 1 when both models are one
Fate = Callable[[StepResult], bool]


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """verdict: "consistent", "differs" or "unsure". done, total: how many checks are finished with this one."""

    name: str
    verdict: str
    words: str
    done: int = 0
    total: int = 0


FATES: tuple[
    tuple[str, int | None, Fate], ...
] = (  # with the place of a drafted token that the target never writes
    (
        "after all drafted tokens were accepted",
        None,
        lambda step: len(step.draft) > 0 and step.verdict.kind == "bonus",
    ),
    (
        "after a later one was rejected",
        1,
        lambda step: step.verdict.kind == "resampled" and bool(step.verdict.path),
    ),
    (
        "after the first token was rejected",
        0,
        lambda step: step.verdict.kind == "resampled" and not step.verdict.path,
    ),
)


def self_checks(
    pair: Setup, prompt_ids: Sequence[int], sampling: Sampling, k: int
) -> Iterator[SelfCheck]:
    """One finished check after the other. K is at least 2 where a cut in the middle is made; the target drafts for
    itself at temperature 1 without a filter, where rounding cannot tip a tie."""
    checks: dict[str, Callable[[], CheckOutcome]] = {
        f"Cache against a full read, {words}": partial(
            _check_cache, pair.target, prompt_ids, max(k, 2), *rest
        )
        for words, *rest in FATES
    }
    if not pair.target.proof.trees:
        checks["Token tree against a full read of each branch"] = partial(
            _check_tree, pair.target, prompt_ids
        )
    checks["The target as its own draft accepts everything"] = lambda: _check_own_draft(
        pair, prompt_ids, k
    )
    if (
        pair.draft is not None and pair.method.is_plain
    ):  # elsewhere q is not the draft model's row alone
        checks["The recorded q is the q that was drawn from"] = lambda: _check_claimed_q(
            pair, prompt_ids, sampling, k
        )
    for done, (name, check) in enumerate(checks.items(), start=1):
        yield SelfCheck(name, *check(), done, len(checks))


class _ScriptedDrafter(Drafter):
    """Drafts what the target writes at temperature 0, by full reads, but for one token that it never writes there."""

    def __init__(self, target: LoadedModel, wrong: int | None) -> None:
        self._target, self._wrong = target, wrong

    def draft(self, context: Context, k: int) -> Draft:
        tokens: list[int] = []
        for place in range(k):
            row = plain_logits(self._target, [*context.tokens, *tokens], 1)[0]
            tokens.append(int(row.argmin() if place == self._wrong else row.argmax()))
        return chain(tokens)


def _check_cache(
    target: LoadedModel, prompt_ids: Sequence[int], k: int, wrong: int | None, fate: Fate
) -> CheckOutcome:
    """The rows that a step read behind its cache, against one forward of the raw model over the whole text. Two steps
    do, unless rounding tips a tie between the target's favourites."""
    text, is_due = list(prompt_ids), False
    plan = Plan(
        target.cached_lm(),
        _ScriptedDrafter(target, wrong),
        RULES["speculative_sampling"],
        Sampling(0.0),
        k,
    )
    for step in _steps(plan, prompt_ids, MOST_STEPS):
        if is_due:
            return _compare(
                step.logits, plain_logits(target, [*text, *step.draft.tokens], len(step.draft) + 1)
            )
        is_due = fate(step)
        text += step.tokens
    return CheckOutcome("unsure", NO_ROOM)


def _check_tree(target: LoadedModel, prompt_ids: Sequence[int]) -> CheckOutcome:
    """The rows of a token tree behind the prompt, against one forward of the raw model over each of its branches."""
    if len(prompt_ids) + 2 > target.info.context_limit:
        return CheckOutcome("unsure", NO_ROOM)
    likeliest = plain_logits(target, prompt_ids, 1)[0]
    siblings = likeliest.topk(min(SIBLINGS, len(likeliest))).indices.tolist()
    parents = (*[ROOT] * len(siblings), len(siblings) - 1)
    tree = Draft((*siblings, siblings[0]), parents, (None,) * len(parents))
    branches = [[], *([token] for token in siblings), [siblings[-1], siblings[0]]]
    full = torch.cat([plain_logits(target, [*prompt_ids, *branch], 1) for branch in branches])
    return _compare(target.cached_lm().forward(list(prompt_ids), tree), full)


def _compare(ours: Tensor, full: Tensor) -> CheckOutcome:
    """Logits [N, V] of the reader that runs use, against those of the raw model."""
    apart, allowed = _distance(ours, full), _tolerance(full.dtype)
    words = f"the largest difference is {apart:.1e} of the largest logit; rounding in "
    words += f"{str(full.dtype).removeprefix('torch.')} may make {allowed:.0e}"
    return CheckOutcome("consistent" if apart <= allowed else "differs", words)


def _steps(plan: Plan, prompt_ids: Sequence[int], num_steps: int) -> Iterator[StepResult]:
    """At most `num_steps` steps of the real engine; one step's worth of text is left to draft in."""
    tokens = (num_steps + 1) * (plan.k + 1)
    with closing(speculate(prompt_ids, lambda: plan, Seeded(SEED), max_new_tokens=tokens)) as steps:
        yield from islice(steps, num_steps)


def _tolerance(dtype: torch.dtype) -> float:
    return ALLOWED.get(dtype, max(ALLOWED.values()))


def _distance(ours: Tensor, full: Tensor) -> float:
    """The largest difference, as a share of the largest logit; not-a-number counts as infinitely far."""
    ours, full = ours.double(), full.double()
    distance = float((ours - full).abs().max() / full.abs().max().clamp_min(1e-300))
    return math.inf if math.isnan(distance) else distance


def _check_own_draft(pair: Setup, prompt_ids: Sequence[int], k: int) -> CheckOutcome:
    """A model that drafts for itself has q = p everywhere: nothing may be cut."""
    own = gather(METHODS["draft_model"], {}, pair.target, pair.target)
    plan = own.plan(RULES["speculative_sampling"], Sampling(), k)
    steps = [*_steps(plan, prompt_ids, SELF_STEPS)]
    checks = [check for step in steps for check in step.verdict.checks]
    if not checks:
        return CheckOutcome("unsure", "the context leaves no room to draft")
    least, kept = (
        min(check.accept_prob for check in checks),
        sum(check.accepted for check in checks),
    )
    words = f"{kept} of {len(checks)} drafted tokens accepted; the smallest acceptance probability was {least:.6f}"
    dtype, largest = pair.target.model.dtype, max(float(step.logits.abs().max()) for step in steps)
    rounding = max(
        ROUNDING[dtype], torch.finfo(dtype).eps * largest
    )  # of a logit, in both of p and q
    if least < min(1 - SAME_CHANCE, math.exp(-2 * rounding)):
        return CheckOutcome("differs", f"{words}; with p = q it must be 1")
    return CheckOutcome("consistent", words)


def _check_claimed_q(
    pair: Setup, prompt_ids: Sequence[int], sampling: Sampling, k: int
) -> CheckOutcome:
    """Every drafted token with its q, from the raw draft model's logits to the very id that u picks."""
    plan = pair.plan(RULES["speculative_sampling"], sampling, k)
    text, num_tokens, farthest = list(prompt_ids), 0, 0.0
    for step in _steps(plan, prompt_ids, Q_STEPS):
        draft = step.draft  # a chain whose every token has its q and the logits behind it
        if (
            len(draft) > 0
            and draft.is_chain
            and all(row is not None for row in (*draft.probs, *draft.logits))
        ):
            farthest = max(farthest, _logits_apart(pair.draft, text, step))
            if problem := _wrong_q(draft, sampling.of_draft) or _wrong_draw(
                draft, Seeded(SEED), len(text)
            ):
                return CheckOutcome("differs", f"step {step.index + 1}: {problem}")
            num_tokens += len(draft)
        text += step.tokens
    if not num_tokens:
        return CheckOutcome("unsure", "no chain was drafted with both q and its logits")
    allowed = _tolerance(pair.draft.model.dtype)
    words = (
        f"{num_tokens} drafted tokens are what u picks from their q; the draft model's logits are within "
        f"{farthest:.1e} of a full read (rounding may make {allowed:.0e})"
    )
    return CheckOutcome("consistent" if farthest <= allowed else "differs", words)


def _logits_apart(draft: LoadedModel, text: Sequence[int], step: StepResult) -> float:
    """The logits behind a step's q, against one forward of the raw draft model; over the ids that both models have."""
    rows = plain_logits(draft, [*text, *step.draft.tokens[:-1]], len(step.draft))
    width = min(rows.shape[-1], step.logits.shape[-1])
    return _distance(torch.stack(step.draft.logits)[:, :width], rows[:, :width])


def _wrong_q(draft: Draft, sampling: Sampling) -> str:
    """Which q is not what its logits give; empty if none is."""
    for node, (q, logits) in enumerate(zip(draft.probs, draft.logits, strict=True), start=1):
        distance = float(total_variation(q, sampling.probs(logits)))
        if not distance <= SAME_Q:
            return f"the q of drafted token {node} is {distance:.1e} away from what its logits give"
    return ""


def _wrong_draw(draft: Draft, draws: Draws, position: int) -> str:
    """Which id is not where its q, added up in Python's own floats, first exceeds u; empty if none is."""
    for node, (token, q) in enumerate(zip(draft.tokens, draft.probs, strict=True)):
        added = list(accumulate(q.double().tolist()))
        u = draws.uniform(DRAFT, position + node, node)
        low, high = (bisect_right(added, (u + shift) * added[-1]) for shift in (-SAME_Q, SAME_Q))
        if not low <= token <= high:
            return f"drafted token {node + 1} is not the one that u = {u:.6f} picks from its q"
    return ""
