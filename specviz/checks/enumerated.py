"""Every outcome of the real engine with a rule, over languages of three tokens that are made from the run's own rows.

The two most likely tokens after a text keep their probabilities; all others together are the third token. The engine,
the drafter and the rule run unchanged while every draw is enumerated. The distribution of whole texts is then compared
with the target's.
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
from specviz.decoding.work import Work
from specviz.drafters.draft_model import ModelDrafter
from specviz.drafters.method import TREE_RULES, Part, Parts
from specviz.drafters.prompt_lookup import PromptLookup
from specviz.drafters.tree import TreeDrafter
from specviz.models.pool import LoadedModel
from specviz.rules.broken import tamper_if_broken
from specviz.session.setup import Setup

EXACT = 1e-9  # far above the rounding of float64, far below every mistake
NUM_CELLS = 3
MOST_K = 3  # the number of outcomes grows with NUM_CELLS ** K
FEWEST_K = 2  # the shortest draft at which a rule that judges drafts as a whole differs from others
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
    """How far an enumeration has come, and what it found."""

    done: int  # half of it: small languages that were made; the other half: those that were enumerated
    total: int
    lossless: bool
    k: int
    num_outcomes: int = 0
    distance: float | None = None
    """The largest total variation between the engine's distribution of whole texts and the target's; None before the
    first language is finished."""
    trees: bool = False  # token trees were judged, no chains
    rule_alone: bool = False  # the method cannot draft here: the rule judged stand-ins instead
    needs_grades: bool = False  # the rule cannot judge the stand-ins either

    @property
    def outcome(self) -> CheckOutcome | None:
        """What the enumeration came to; None while nothing can be said."""
        if self.needs_grades:
            return CheckOutcome(
                "unsure", "cannot tell: this rule judges only what its own method has graded"
            )
        if self.distance is None or (self.done < self.total and self.distance <= EXACT):
            return None
        words = self._words()
        if self.distance > EXACT:
            share = f"{100 * self.distance:.3g} % of probability is on wrong texts"
            return CheckOutcome("differs", f"differs: {words}; {share}")
        if not self.lossless:
            return CheckOutcome(
                "unsure", f"cannot tell: the rule's error has no effect here, {words}"
            )
        distance = f"distance to the target {self.distance:.0e}"
        return CheckOutcome("exact", f"exact (enumerated): {words}; {distance}")

    def _words(self) -> str:
        """Words for what was enumerated."""
        words = (
            f"{self.num_outcomes:,} outcomes of the real program, drafts of up to {self.k} tokens, over {NUM_CELLS} "
            "tokens pooled from this pair's own probabilities"
        )
        if self.rule_alone:
            shape = "plain chains"
            if self.trees:
                shape = f"small token trees of the likeliest tokens ({_TREE_WORDS})"
            return (
                f"{words}; the rule alone, over {shape}, as the method needs a real model to draft"
            )
        if self.trees:
            return f"{words}; the method's own token trees, made small ({_TREE_WORDS})"
        return words


def enumerate_texts(
    pair: Setup, rule: Rule, prompts: Sequence[Sequence[int]], sampling: Sampling, k: int
) -> Iterator[Enumeration]:
    """Enumerates the rule over small languages after the first of these prompts; yields a result every so often."""
    trees = _are_trees(pair, rule)
    alone = not pair.method.needs_only_probabilities
    k = min(MOST_TREE_K if trees else MOST_K, max(FEWEST_K, k))
    prompts = prompts[:PLACES]
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
        so_far = replace(
            so_far,
            done=so_far.done + 1,
            distance=max(distance, so_far.distance or 0.0),
            num_outcomes=so_far.num_outcomes + num,
        )
    yield so_far


def _are_trees(pair: Setup, rule: Rule) -> bool:
    """Whether token trees are enumerated: the method drafts them, and the rule can judge them."""
    return pair.method.under(pair.params).rules == TREE_RULES and rule.supports(FORKED)


def _report_during(
    work: Generator[None, None, Result], so_far: Enumeration
) -> Generator[Enumeration, None, Result]:
    """Runs the work and returns its result; yields `so_far` at each of its pauses."""
    while True:
        try:
            next(work)
        except StopIteration as finished:
            return finished.value
        yield so_far


@dataclass(frozen=True, slots=True, eq=False)
class Language:
    """A small language: what may follow each text of 0 to k pooled tokens."""

    k: int
    spelled: dict[Text, Text]  # a text of pooled tokens -> the real tokens that it stands for
    p: dict[Text, Tensor]  # the target's distribution [NUM_CELLS] after a text
    q: dict[Text, Tensor] | None = None  # the draft model's; None without one


def language_after(
    pair: Setup, prompt: Sequence[int], sampling: Sampling, k: int
) -> Generator[None, None, Language]:
    """Makes the language after `prompt`; pauses after every text that the models have read."""
    width = pair.target.info.vocab_size
    models = [(pair.target, sampling)]
    if pair.comparable_draft is not None:
        models.append((pair.draft, sampling.of_draft))
    spelled: dict[Text, Text] = {(): tuple(prompt)}
    pooled: list[dict[Text, Tensor]] = [{} for _ in models]
    for text in _texts_up_to(k):
        rows = [_row(model, spelled[text], its_sampling, width) for model, its_sampling in models]
        tokens = torch.stack(rows).amax(0).topk(min(NUM_CELLS, width)).indices.tolist()
        for probabilities, row in zip(pooled, rows, strict=True):
            probabilities[text] = _pool(row, tokens)
        for cell, token in enumerate(tokens):  # a cell is continued as its most likely real token
            spelled[(*text, cell)] = (*spelled[text], token)
        yield
    return Language(k, spelled, *pooled)


def _texts_up_to(length: int) -> Iterator[Text]:
    """All texts of pooled tokens of this length and shorter ones, the shortest first."""
    for n in range(length + 1):
        yield from itertools.product(range(NUM_CELLS), repeat=n)


def _row(loaded: LoadedModel, text: Text, sampling: Sampling, width: int) -> Tensor:
    """The distribution [width] after a text, by a plain forward; uniform where the model cannot read it."""
    if not can_read(loaded, text):
        return torch.full((width,), 1 / width, dtype=torch.float64)
    return distribution_of(fit(plain_logits(loaded, text, 1)[0], width), sampling)


def _pool(row: Tensor, tokens: Sequence[int]) -> Tensor:
    """The probabilities of all these tokens but the last, and of everything else."""
    shares = row[list(tokens[:-1])]
    rest = (row.sum() - shares.sum()).clamp_min(0)
    return torch.cat([shares, rest[None]])


class TableLM:
    """A small language with the interface of a CachedLM."""

    def __init__(self, rows: dict[Text, Tensor]) -> None:
        self._logits = {text: row.log() for text, row in rows.items()}
        self.vocab_size = NUM_CELLS
        self.context_limit = 1 << 20
        self.device = torch.device("cpu")
        self.work = Work()
        self._text: list[int] = []

    def capture(self, layers: tuple[int, ...]) -> None:
        assert not layers, "tables have no hidden states"

    def hidden(self, tokens: Sequence[int]) -> None:
        """Returns None: nothing is captured."""

    def missing(self, tokens: Sequence[int]) -> Sequence[int]:
        return tokens

    def forward(self, tokens: Sequence[int], draft: Draft = EMPTY) -> Tensor:
        self._text = list(tokens)
        texts = [list(tokens)]
        for token, parent in zip(draft.tokens, draft.parents, strict=True):
            texts.append([*texts[parent + 1], token])
        return torch.stack([self._row(text) for text in texts])  # [1+N, NUM_CELLS]

    def extend(self, token: Tensor) -> Tensor:
        self._text.append(int(token))
        return self._row(self._text)

    def settle(self, ids: Sequence[int]) -> None:
        """Does nothing: there is no cache."""

    def _row(self, text: Sequence[int]) -> Tensor:
        return self._logits[tuple(text[len(OPENING) :])]


def distance_of_texts(
    pair: Setup, rule: Rule, language: Language
) -> Generator[None, None, tuple[float, int]]:
    """The total variation between the engine's and the target's whole texts, and the number of outcomes behind it."""
    plan = plan_of(pair, rule, language)
    written, num_outcomes = yield from distribution_of_texts(plan, language.k + 1)
    target: Distribution = {(): 1.0}  # products of the target's rows: no draft, no rule, no engine
    for _ in range(language.k + 1):
        longer: Distribution = {}
        for text, weight in target.items():
            for token, probability in enumerate(language.p[text].tolist()):
                longer[(*text, token)] = weight * probability
        target = longer
    texts = {*written, *target}
    apart = sum(abs(written.get(text, 0.0) - target.get(text, 0.0)) for text in texts)
    return apart / 2, num_outcomes


def plan_of(pair: Setup, rule: Rule, language: Language) -> Plan:
    """A plan with the pair's own method over the language's tables; with stand-ins where it cannot draft there."""
    return Plan(TableLM(language.p), _drafter(pair, rule, language), rule, Sampling(), language.k)


def _drafter(pair: Setup, rule: Rule, language: Language) -> Drafter:
    trees = _are_trees(pair, rule)
    method = pair.method
    draft_lm = None if language.q is None else TableLM(language.q)
    if method.needs_only_probabilities and (trees or method.drafts_as != "token tree"):
        part = None
        if draft_lm is not None:
            part = Part("draft", draft_lm, lambda: TableLM(language.q))
        params = method.validate(pair.params)
        fewer = {name: min(params[name], most) for name, most in SMALL.items() if name in params}
        return method.build(Parts(draft=part), params | fewer)
    if trees:
        # Point masses, as heads and lookahead propose them; the target proposes where there is no draft model.
        return TreeDrafter(draft_lm or TableLM(language.p), "top", "even", **SMALL_TREE)
    return PromptLookup(3, 1) if draft_lm is None else ModelDrafter(draft_lm)


def distribution_of_texts(
    plan: Plan, length: int
) -> Generator[None, None, tuple[Distribution, int]]:
    """The exact distribution of the next `length` tokens, step by step through the engine, and its number of outcomes.

    Pauses now and then.
    """
    by_length: list[Distribution] = [{} for _ in range(length + 1)]
    by_length[0][()] = 1.0
    num_outcomes = 0
    paused = time.monotonic()
    for known in range(length):
        for text, weight in by_length[known].items():
            for probability, tokens in _outcomes_after(plan, text, length - known):
                longer = (*text, *tokens)
                texts = by_length[len(longer)]
                texts[longer] = texts.get(longer, 0.0) + weight * probability
                num_outcomes += 1
                if time.monotonic() - paused > PAUSE_S:
                    yield
                    paused = time.monotonic()
    return by_length[length], num_outcomes


def _outcomes_after(plan: Plan, text: Text, remaining: int) -> Iterator[tuple[float, Text]]:
    """(probability, emitted tokens) of every outcome of one step of the engine after a text."""

    def experiment(draws: Draws) -> Text:
        used = tamper_if_broken(plan.rule, draws)  # a broken rule drafts as wrongly as it says
        steps = speculate((*OPENING, *text), lambda: plan, used, max_new_tokens=remaining)
        return next(steps).tokens

    return enumerate_outcomes(experiment)
