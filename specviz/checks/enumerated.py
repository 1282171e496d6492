"""Every outcome of the real engine with a rule, over languages of three tokens that are made from the run's own rows.

The two likeliest tokens after a text keep their odds, all others together are the third. The engine, the drafter and
the rule run unchanged while every draw is enumerated. Their law of whole texts is compared with the target's.
"""

import itertools
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from specviz.checks.scoring import can_read, distribution_of, plain_logits
from specviz.checks.statistics import CheckOutcome
from specviz.decoding.draft import EMPTY, ROOT, Draft, chain
from specviz.decoding.drafter import Drafter
from specviz.decoding.draws import Draws, enumerate_outcomes
from specviz.decoding.engine import Plan, speculate
from specviz.decoding.rule import Rule
from specviz.decoding.sampling import Sampling, fit
from specviz.drafters.draft_model import ModelDrafter
from specviz.drafters.method import TREE_RULES, Part, Parts
from specviz.drafters.prompt_lookup import PromptLookup
from specviz.drafters.tree import TreeDrafter
from specviz.models.pool import LoadedModel
from specviz.rules.broken import tamper_if_broken
from specviz.session.setup import Setup

EXACT = 1e-9  # far above the rounding of float64, far below every mistake
NUM_CELLS = 3
MOST_K = 3  # the outcomes grow with NUM_CELLS to the power of it
FEWEST_K = 2  # a rule that judges a draft as a whole shows it from here on
PLACES = 2
MOST_TREE_K = 2
SMALL_TREE = {"width": 2, "nodes": 4}  # the outcomes grow with every drafted token
SMALL = {**SMALL_TREE, "max_ngram": 3, "min_ngram": 1}  # the texts are short
FORKED = Draft((0, 1), (ROOT, ROOT), (None, None))
OPENING = (0, 1, 2, 0, 1)  # the text before: what prompt lookup finds its drafts in
PAUSE_S = 0.2
_TREE_WORDS = f"at most {SMALL_TREE['width']} children and {SMALL_TREE['nodes']} tokens"
Text = tuple[int, ...]
Distribution = dict[Text, float]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Enumeration:
    """done, total: small languages, each made and then enumerated. distance: the largest total variation between the
    engine's law of whole texts and the target's; None before the first language is finished. trees: token trees were
    judged, no chains; rule_alone: the method cannot draft there, so that the rule judged stand-ins instead;
    needs_grades: nor can the rule judge those."""

    done: int
    total: int
    lossless: bool
    k: int
    num_outcomes: int = 0
    distance: float | None = None
    trees: bool = False
    rule_alone: bool = False
    needs_grades: bool = False

    @property
    def outcome(self) -> CheckOutcome | None:
        """None while nothing can be said."""
        if self.needs_grades:
            return CheckOutcome(
                "unsure", "cannot tell: this rule judges only what its own method has graded"
            )
        if self.distance is None or (self.done < self.total and self.distance <= EXACT):
            return None
        what = (
            f"{self.num_outcomes:,} outcomes of the real program, drafts of up to {self.k} tokens, over {NUM_CELLS} "
            "tokens pooled from this pair's own probabilities"
        )
        if self.rule_alone:
            shape = (
                f"small token trees of the likeliest tokens ({_TREE_WORDS})"
                if self.trees
                else "plain chains"
            )
            what += f"; the rule alone, over {shape}, as the method needs a real model to draft"
        elif self.trees:
            what += f"; the method's own token trees, made small ({_TREE_WORDS})"
        if self.distance > EXACT:
            return CheckOutcome(
                "differs",
                f"differs: {what}; {100 * self.distance:.3g} % of probability is on wrong texts",
            )
        if not self.lossless:
            return CheckOutcome(
                "unsure", f"cannot tell: the rule's error has no effect here, {what}"
            )
        return CheckOutcome(
            "exact", f"exact (enumerated): {what}; distance to the target {self.distance:.0e}"
        )


def enumerate_texts(
    pair: Setup, rule: Rule, prompts: Sequence[Sequence[int]], sampling: Sampling, k: int
) -> Iterator[Enumeration]:
    """The rule over small languages after the first of these prompts; a result every so often."""
    trees, alone = _are_trees(pair, rule), not pair.method.needs_only_probabilities
    k, prompts = min(MOST_TREE_K if trees else MOST_K, max(FEWEST_K, k)), prompts[:PLACES]
    so_far = Enumeration(0, 2 * len(prompts), rule.lossless, k, trees=trees, rule_alone=alone)
    if not rule.supports(chain([0])):
        yield replace(so_far, done=so_far.total, needs_grades=True)
        return
    for prompt in prompts:
        yield so_far
        language = yield from _report_during(language_after(pair, prompt, sampling, k), so_far)
        so_far = replace(so_far, done=so_far.done + 1)
        yield so_far
        distance, num = yield from _report_during(distance_of_texts(pair, rule, language), so_far)
        distance = max(distance, so_far.distance or 0.0)
        so_far = replace(
            so_far, done=so_far.done + 1, distance=distance, num_outcomes=so_far.num_outcomes + num
        )
    yield so_far


def _are_trees(pair: Setup, rule: Rule) -> bool:
    """Whether token trees are enumerated: those of the method, where the rule can judge any."""
    return pair.method.under(pair.params).rules == TREE_RULES and rule.supports(FORKED)


def _report_during(
    work: Generator[None, None, Result], so_far: Enumeration
) -> Generator[Enumeration, None, Result]:
    """Returns the result of the work; yields `so_far` at each of its pauses."""
    while True:
        try:
            next(work)
        except StopIteration as finished:
            return finished.value
        yield so_far


@dataclass(frozen=True, slots=True, eq=False)
class Language:
    """What may follow each text of 0 to k pooled tokens, and the real tokens they stand for. q: None if no draft."""

    k: int
    spelled: dict[Text, Text]
    p: dict[Text, Tensor]
    q: dict[Text, Tensor] | None = None


def language_after(
    pair: Setup, prompt: Sequence[int], sampling: Sampling, k: int
) -> Generator[None, None, Language]:
    """The language after `prompt`; pauses after every text that the models have read."""
    spelled, width, models = {(): tuple(prompt)}, pair.target.info.vocab_size, [pair.target]
    if pair.comparable_draft is not None:
        models.append(pair.draft)
    pooled: list[dict[Text, Tensor]] = [{} for _ in models]
    for text in itertools.chain.from_iterable(
        itertools.product(range(NUM_CELLS), repeat=n) for n in range(k + 1)
    ):
        distributions = zip(models, (sampling, sampling.of_draft), strict=False)
        rows = [
            _row(model, spelled[text], distribution, width) for model, distribution in distributions
        ]
        tokens = torch.stack(rows).amax(0).topk(min(NUM_CELLS, width)).indices.tolist()
        for probabilities, row in zip(pooled, rows, strict=True):
            probabilities[text] = _pool(row, tokens)
        for cell, token in enumerate(
            tokens
        ):  # a pooled token is followed as the likeliest of its real tokens
            spelled[(*text, cell)] = (*spelled[text], token)
        yield
    return Language(k, spelled, *pooled)


def _row(loaded: LoadedModel, text: Text, sampling: Sampling, width: int) -> Tensor:
    """The law [width] after a text, by a plain forward; uniform where the model cannot read it."""
    if not can_read(loaded, text):
        return torch.full((width,), 1 / width).double()
    return distribution_of(fit(plain_logits(loaded, text, 1)[0], width), sampling)


def _pool(row: Tensor, tokens: Sequence[int]) -> Tensor:
    """The odds of all tokens but the last of these, and of everything else."""
    shares = row[list(tokens[:-1])]
    return torch.cat([shares, (row.sum() - shares.sum()).clamp_min(0)[None]])


class TableLM:
    """A small language with the face of a CachedLM."""

    def __init__(self, rows: dict[Text, Tensor]) -> None:
        self._logits = {text: row.log() for text, row in rows.items()}
        self.vocab_size, self.context_limit = NUM_CELLS, 1 << 20
        self.device = torch.device("cpu")
        self.calls = self.fed = 0
        self._spelled: list[int] = []

    def capture(self, layers: tuple[int, ...]) -> None:
        assert not layers, "tables have no hidden states"

    def hidden(self, tokens: Sequence[int]) -> None:
        """None: nothing is captured."""

    def missing(self, tokens: Sequence[int]) -> Sequence[int]:
        return tokens

    def forward(self, tokens: Sequence[int], draft: Draft = EMPTY) -> Tensor:
        self._spelled = list(tokens)
        texts = [list(tokens)]
        for token, parent in zip(draft.tokens, draft.parents, strict=True):
            texts.append([*texts[parent + 1], token])
        return torch.stack([self._logits[tuple(text[len(OPENING) :])] for text in texts])

    def extend(self, token: Tensor) -> Tensor:
        self._spelled.append(int(token))
        return self._logits[tuple(self._spelled[len(OPENING) :])]

    def settle(self, ids: Sequence[int]) -> None:
        """Nothing is cached."""


def distance_of_texts(
    pair: Setup, rule: Rule, language: Language
) -> Generator[None, None, tuple[float, int]]:
    """Total variation between the engine's law of whole texts and the target's, and how many outcomes it rests on."""
    distribution, num = yield from distribution_of_texts(
        plan_of(pair, rule, language), language.k + 1
    )
    target: Distribution = {(): 1.0}  # products of the target's rows: no draft, no rule, no engine
    for _ in range(language.k + 1):
        target = {
            (*text, token): weight * chance
            for text, weight in target.items()
            for token, chance in enumerate(language.p[text].tolist())
        }
    return sum(
        abs(distribution.get(text, 0.0) - target.get(text, 0.0))
        for text in {*distribution, *target}
    ) / 2, num


def plan_of(pair: Setup, rule: Rule, language: Language) -> Plan:
    """The pair's own method of drafting over the language's tables; stand-ins where it cannot draft there."""
    return Plan(TableLM(language.p), _drafter(pair, rule, language), rule, Sampling(), language.k)


def _drafter(pair: Setup, rule: Rule, language: Language) -> Drafter:
    trees, method = _are_trees(pair, rule), pair.method
    small = None if language.q is None else TableLM(language.q)
    if method.needs_only_probabilities and (trees or method.drafts_as != "token tree"):
        parts = Parts(
            draft=None if small is None else Part("draft", small, lambda: TableLM(language.q))
        )
        params = method.validate(pair.params)
        fewer = {name: min(params[name], most) for name, most in SMALL.items() if name in params}
        return method.build(parts, params | fewer)
    if trees:  # point masses, as heads and lookahead propose them; of the target's probabilities without a draft model
        return TreeDrafter(small or TableLM(language.p), "top", "even", **SMALL_TREE)
    return PromptLookup(3, 1) if small is None else ModelDrafter(small)


def distribution_of_texts(
    plan: Plan, length: int
) -> Generator[None, None, tuple[Distribution, int]]:
    """The exact law of the next `length` tokens, step by step through the engine; pauses now and then."""
    distributions: list[Distribution] = [{(): 1.0}, *({} for _ in range(length))]
    num, told = 0, time.monotonic()
    for known in range(length):
        for text, weight in distributions[known].items():

            def experiment(
                draws: Draws, text: Text = text, remaining: int = length - known
            ) -> Text:
                used = tamper_if_broken(
                    plan.rule, draws
                )  # a broken rule drafts as wrongly as it says
                return next(
                    speculate((*OPENING, *text), lambda: plan, used, max_new_tokens=remaining)
                ).tokens

            for chance, tokens in enumerate_outcomes(experiment):
                longer = (*text, *tokens)
                distributions[len(longer)][longer] = (
                    distributions[len(longer)].get(longer, 0.0) + weight * chance
                )
                num += 1
                if time.monotonic() - told > PAUSE_S:
                    yield
                    told = time.monotonic()
    return distributions[length], num
