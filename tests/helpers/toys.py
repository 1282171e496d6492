"""Toys for exact tests: language models that are tables, tree drafters, one of them wrong on purpose, exact laws."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specviz.decoding.draft import EMPTY, ROOT, Draft, DraftBuilder
from specviz.decoding.drafter import Context, Drafter
from specviz.decoding.draws import DRAFT, Draws, Seeded, distribution
from specviz.decoding.engine import Plan, speculate
from specviz.decoding.sampling import Sampling
from specviz.decoding.work import Work
from specviz.drafters.none import NoDraft
from specviz.rules import RULES
from specviz.rules.broken import tamper_if_broken

RULE = RULES["speculative_sampling"]


STATES = 24  # a table knows the tokens before a place by their remainders: 300 tokens would fill 216 MB otherwise


class TableLM:
    """An order-2 Markov chain in float64 with the face of a CachedLM."""

    def __init__(self, seed: int, vocab_size: int = 3, sharpness: float = 1.5, context_limit: int = 64) -> None:
        generator = torch.Generator().manual_seed(seed)
        states = min(vocab_size, STATES)
        self.table = torch.randn(states, states, vocab_size, generator=generator, dtype=torch.float64) * sharpness
        self.vocab_size, self.context_limit = vocab_size, context_limit
        self.device = torch.device("cpu")
        self.work = Work()
        self._spelled: list[int] = []

    def row(self, tokens: Sequence[int]) -> Tensor:
        before = tokens[-2] if len(tokens) > 1 else 0
        return self.table[before % len(self.table), tokens[-1] % len(self.table)]

    def capture(self, layers: tuple[int, ...]) -> None:
        assert not layers, "tables have no hidden states"

    def hidden(self, tokens: Sequence[int]) -> None:
        """None: nothing is captured."""

    def missing(self, tokens: Sequence[int]) -> Sequence[int]:
        return tokens

    def forward(self, tokens: Sequence[int], draft: Draft = EMPTY) -> Tensor:
        self.work += Work(1)
        self._spelled = list(tokens)
        texts = [list(tokens)]
        for token, parent in zip(draft.tokens, draft.parents, strict=True):
            texts.append([*texts[parent + 1], token])
        return torch.stack([self.row(text) for text in texts])

    def extend(self, token: Tensor) -> Tensor:
        self.work += Work(1)
        self._spelled.append(int(token))
        return self.row(self._spelled)

    def settle(self, ids: Sequence[int]) -> None:
        assert list(ids[:-1]) == self._spelled[len(self._spelled) - len(ids) + 1 :]


class LoggedDraws(Seeded):
    """Remembers every address that was asked for."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.addresses: list[tuple[str, int, int]] = []

    def uniform(self, role: str, position: int, node: int) -> float:
        self.addresses.append((role, position, node))
        return super().uniform(role, position, node)


class TreeDrafter(Drafter):
    """A draft model over fixed widths. `grow(row q, width, draws, position, node)` yields (token, q or None)."""

    def __init__(self, lm: TableLM, widths: Sequence[int], grow: Callable) -> None:
        self.lm, self.widths, self.grow = lm, widths, grow

    def draft(self, context: Context, k: int) -> Draft:
        builder, frontier = DraftBuilder(), [(ROOT, list(context.tokens))]
        for width in self.widths[:k]:
            grown = []
            for parent, text in frontier:
                q = context.sampling.probs(self.lm.row(text))
                for token, probs in self.grow(q, width, context.draws, len(text), 100 * parent):
                    grown.append((builder.add(token, parent, probs), [*text, token]))
            frontier = grown
        return builder.build()


def independent(q: Tensor, width: int, draws: Draws, position: int, node: int):
    for i in range(width):
        yield int(draws.sample(q, DRAFT, position, node + i)), q


def without_replacement(q: Tensor, width: int, draws: Draws, position: int, node: int):
    for i in range(width):
        if q.sum() <= 0:
            return
        token = int(draws.sample(q, DRAFT, position, node + i))
        yield token, q / q.sum()
        q = q.clone()
        q[token] = 0


def top(q: Tensor, width: int, draws: Draws, position: int, node: int):
    yield from ((token, None) for token in q.topk(width).indices.tolist())


def pruned_by_value(q: Tensor, width: int, draws: Draws, position: int, node: int):
    """WRONG: draws several, keeps the likeliest, still claims that it was drawn from q."""
    drawn = [int(draws.sample(q, DRAFT, position, node + i)) for i in range(width)]
    yield max(drawn, key=lambda token: float(q[token])), q


def plan_of(target, drafter: Drafter | None = None, k: int = 3, sampling: Sampling | None = None, rule=RULE) -> Plan:
    return Plan(target, drafter or NoDraft(), rule, sampling or Sampling(), k)


def text_distribution(plan: Plan, prompt: Sequence[int], num_tokens: int) -> dict[tuple[int, ...], float]:
    """The exact joint law of the next `num_tokens` tokens, step by step through the real engine.

    A broken rule's drafts are drawn as wrongly as it says.
    """
    known: dict[tuple[int, ...], dict[tuple[int, ...], float]] = {}

    def first_step(context: tuple[int, ...], remaining: int) -> dict[tuple[int, ...], float]:
        def experiment(draws: Draws) -> tuple[int, ...]:
            used = tamper_if_broken(plan.rule, draws)
            return next(speculate(context, lambda: plan, used, max_new_tokens=remaining)).tokens

        return distribution(experiment)

    def distributions_after(context: tuple[int, ...], remaining: int) -> dict[tuple[int, ...], float]:
        if remaining == 0:
            return {(): 1.0}
        if context not in known:
            total: dict[tuple[int, ...], float] = {}
            for tokens, weight in first_step(context, remaining).items():
                for rest, chance in distributions_after((*context, *tokens), remaining - len(tokens)).items():
                    total[tokens + rest] = total.get(tokens + rest, 0.0) + weight * chance
            known[context] = total
        return known[context]

    return distributions_after(tuple(prompt), num_tokens)


def target_distribution(
    target: TableLM, prompt: Sequence[int], num_tokens: int, sampling: Sampling
) -> dict[tuple[int, ...], float]:
    """The same law without any speculation: products of the table's rows."""
    distributions = {(): 1.0}
    for _ in range(num_tokens):
        distributions = {
            (*text, token): chance * float(p)
            for text, chance in distributions.items()
            for token, p in enumerate(sampling.probs(target.row([*prompt, *text])))
        }
    return distributions


def total_variation(one: dict, other: dict) -> float:
    return sum(abs(one.get(key, 0.0) - other.get(key, 0.0)) for key in {*one, *other}) / 2
