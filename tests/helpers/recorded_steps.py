"""Recorded steps of real models, and their laws recomputed: full forwards without a cache, numpy in float64."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import torch
from transformers import PreTrainedModel

from specviz import trace
from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.draft import ROOT, Draft
from specviz.decoding.drafter import Drafter
from specviz.decoding.draws import Seeded
from specviz.decoding.engine import Plan, StepResult, speculate
from specviz.decoding.sampling import Sampling
from specviz.drafters.draft_model import ModelDrafter
from specviz.drafters.none import NoDraft
from specviz.drafters.prompt_lookup import PromptLookup
from specviz.models.tokens import TokenText
from specviz.session.recorder import Recorder
from tests.helpers.tiny_models import CONTEXT_LIMIT, tiny, tiny_tokenizer
from tests.helpers.toys import RULE, TableLM, TreeDrafter, independent, without_replacement

SAMPLINGS = (
    Sampling(0.0),
    Sampling(),
    Sampling(0.7, top_k=20, top_p=0.9, min_p=0.05),
    Sampling(1.3, top_k=20, draft_temperature=0.6, draft_top_k=0),
)
DRAFTERS = ("model", "lookup", "independent", "without", "scratch", "none")
SETTINGS = trace.Settings(4, "constant", 1.0, 0, 1.0, "any", {}, RULE.name, True, "draft", "target")
SEED, NUM_TOKENS = 3, 18


@cache
def vocabulary() -> TokenText:
    return TokenText(tiny_tokenizer())


@cache
def models() -> tuple[PreTrainedModel, PreTrainedModel]:
    """Target and draft in float64, so that the cache and a full forward agree to the last recorded digit."""
    size = vocabulary().num_ids
    target = tiny("llama", vocab_size=size, seed=1).double()
    draft = tiny("llama", vocab_size=size, seed=1).double()
    noise = torch.randn(draft.lm_head.weight.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    with torch.no_grad():
        draft.lm_head.weight += 0.1 * noise
    return target, draft


@cache
def table() -> TableLM:
    return TableLM(5, vocab_size=vocabulary().num_ids, sharpness=2.5)


class WithScratch(ModelDrafter):
    """Two more tokens ride along that cannot be accepted."""

    def draft(self, context, k):
        draft = super().draft(context, k)
        if not len(draft):
            return draft
        probs, logits = (*draft.probs, None, None), (*draft.logits, None, None)
        return Draft((*draft.tokens, 1, 2), (*draft.parents, ROOT, len(draft)), probs, logits, num_scratch=2)


def drafter(name: str) -> Drafter:
    draft = CachedLM(models()[1], CONTEXT_LIMIT)
    return {
        "model": lambda: ModelDrafter(draft),
        "lookup": lambda: PromptLookup(3, 1),
        "independent": lambda: TreeDrafter(table(), (3, 2), independent),
        "without": lambda: TreeDrafter(table(), (3, 2), without_replacement),
        "scratch": lambda: WithScratch(draft),
        "none": NoDraft,
    }[name]()


@dataclass
class Case:
    """One generation with its records, and the laws behind them without specviz's help."""

    name: str
    sampling: Sampling
    steps: list[StepResult]
    records: list[trace.Step]
    prompt: list[int]

    def pairs(self):
        return zip(self.steps, self.records, strict=True)

    def text_before(self, step, node):
        """The tokens that the rows of `node` follow."""
        emitted = [token for earlier in self.steps[: step.index] for token in earlier.tokens]
        path = []
        while node != ROOT:
            path.append(step.draft.tokens[node])
            node = step.draft.parents[node]
        return (*self.prompt, *emitted, *reversed(path))

    def p(self, step, node):
        return distribution(full_row("target", self.text_before(step, node)), self.sampling)

    def q(self, step, child):
        """The law of a drafted token, by the drafter's own model; one-hot for a point mass."""
        parent = step.draft.parents[child]
        if step.draft.probs[child] is None:
            return np.eye(vocabulary().num_ids)[step.draft.tokens[child]]
        kind = "table" if self.name in ("independent", "without") else "draft"
        row = distribution(full_row(kind, self.text_before(step, parent)), self.sampling.of_draft)
        if self.name == "without":
            row = row.copy()
            row[[step.draft.tokens[sibling] for sibling in step.draft.children(parent) if sibling < child]] = 0
        return row / row.sum()

    def judged(self, step, check):
        """The target's law after the siblings that were rejected before."""
        parent = step.draft.parents[check.node]
        row = self.p(step, parent)
        for sibling in step.draft.children(parent):
            if sibling == check.node:
                return row
            row = shortfall(row, self.q(step, sibling))
        raise AssertionError("a judged node is a child of its parent")

    @cached_property
    def draws(self):
        """(step, position, p, q, residual) of every draw; q and residual None for the last one of a step."""
        found = []
        for step, record in self.pairs():
            *checked, final = record.positions
            for check, position in zip(step.verdict.checks, checked, strict=True):
                p, q = self.judged(step, check), self.q(step, check.node)
                found.append((step, position, p, q, shortfall(p, q)))
            rejected = step.verdict.kind == "resampled"
            found.append((step, final, found[-1][4] if rejected else self.p(step, final.node), None, None))
        return found


@cache
def full_row(kind: str, tokens: tuple[int, ...]) -> np.ndarray:
    """Logits [V] after these tokens, without any cache."""
    if kind == "table":
        return table().row(tokens).numpy()
    model = models()[kind == "draft"]
    with torch.inference_mode():
        return model(torch.tensor([tokens]), use_cache=False).logits[0, -1].numpy()


def distribution(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """Temperature, then top-k, then top-p, then min-p, in numpy."""
    if sampling.temperature == 0:
        return np.eye(len(logits))[logits.argmax()]
    row = logits / sampling.temperature
    if sampling.top_k:
        row = np.where(row < np.sort(row)[-sampling.top_k], -np.inf, row)
    p = softmax(row)
    if sampling.top_p < 1:
        order = np.argsort(-p)
        before = np.cumsum(p[order]) - p[order]
        p[order[before >= sampling.top_p]] = 0
    p[p < sampling.min_p * p.max()] = 0
    return p / p.sum()


def softmax(row: np.ndarray) -> np.ndarray:
    weights = np.exp(row - row.max())
    return weights / weights.sum()


def shortfall(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The residual law; p itself where nothing is left."""
    rest = np.maximum(0, p - q)
    return rest / rest.sum() if rest.sum() > 1e-12 else p


def entropy(p: np.ndarray) -> float:
    return -np.sum(p[p > 0] * np.log(p[p > 0]))


def record_all(steps: Iterable[StepResult]) -> list[trace.Step]:
    recorder = Recorder(vocabulary())
    return [recorder.record(step, SETTINGS, started=0.0, at_ms=1.0) for step in steps]


def generate(name: str, sampling: Sampling, prompt: list[int]) -> Iterator[StepResult]:
    target = CachedLM(models()[0], CONTEXT_LIMIT)
    plan = Plan(target, drafter(name), RULE, sampling, 4)
    return speculate(prompt, lambda: plan, Seeded(SEED), max_new_tokens=NUM_TOKENS)


@cache
def made(name: str, sampling: Sampling) -> Case:
    prompt = vocabulary().encode("The fox said hello to the small dog. The fox said")
    steps = list(generate(name, sampling, prompt))
    return Case(name, sampling, steps, record_all(steps), prompt)
