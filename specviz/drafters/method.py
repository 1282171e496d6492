"""Method: the facts about a way of drafting that the page, the command line, the checks and the help need.

A method's module loads no torch when it is imported. Code that needs torch is imported in a function, or stands in
another file of the method's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from specviz.drafters.params import Param, Value
from specviz.errors import SpecvizError
from specviz.rules.facts import FACTS

if TYPE_CHECKING:
    from torch import nn

    from specviz.decoding.cached_lm import CachedLM
    from specviz.decoding.drafter import Drafter
    from specviz.models.tokens import TokenText

CHAIN_RULES = tuple(rule.name for rule in FACTS.values() if not rule.judges_graded)
"""The rules that can judge a draft without branches."""
TREE_RULES = tuple(rule.name for rule in FACTS.values() if rule.judges_trees)
"""The rules that can judge a token tree."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A model that a drafter uses."""

    name: str
    lm: CachedLM  # a reader of the model's weights
    another: Callable[[], CachedLM]  # makes another reader of the same weights
    text: TokenText | None = None  # the texts of its ids


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """The models that a method drafts with."""

    target: Part | None = None
    """Its `lm` is the engine's own reader: a drafter may read behind its rows, and never drops them."""
    draft: Part | None = None
    heads: nn.Module | None = None  # trained draft heads
    others: Mapping[str, Part] = field(default_factory=dict)
    """Further models, by their names in the method's parameters."""
    answers: Sequence[Sequence[int]] = ()
    """The visitor's earlier answers in the target's tokens, the oldest first."""


Build = Callable[[Parts, Mapping[str, Value]], "Drafter"]


def load_build(module: str) -> Build:
    """The function `build` of this module. The module is imported when the first drafter is built."""
    return lambda parts, params: import_module(module).build(parts, params)


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A way to draft, with everything that a person or another room needs to know of it."""

    name: str
    title: str
    summary: str
    """What it does, in one sentence."""
    build: Build
    source: str = ""
    caution: str = ""
    """When it pays and when not."""
    roles: tuple[str, ...] = ()
    """The models that it needs beside the target: "draft", "heads"."""
    params: tuple[Param, ...] = ()
    rules: tuple[str, ...] = CHAIN_RULES
    """The names of the rules that can judge its drafts, its default rule first."""
    depth: str | None = None
    """The parameter that stands for K; None: a person sets K itself."""
    foreign: bool = False
    """Whether its draft model may have another vocabulary than the target."""
    target_has: tuple[str, str] | None = None
    """A number that the target's configuration must have, other than 0, and the words for what it counts."""
    is_common: bool = False
    """Whether it stands at the top of the page's list."""
    proposer: str = "The drafter proposes up to "
    """The words before K in the headline."""
    drafts_as: Literal["chain", "token tree", "reasoning step", "nothing"] = "chain"
    """The name of its drafts in the headline."""
    chain_when: tuple[str, tuple[str, ...]] | None = None
    """A Choice among its parameters, and the options under which it drafts a chain; see `under`."""
    text_alone_when: tuple[str, tuple[str, ...]] | None = None
    """A Choice among its parameters, and the options under which nothing but the text decides a draft; see `under`."""
    is_plain: bool = False
    """Whether a draft model writes K tokens, each drawn from its own distribution."""
    replays_from_text: bool = False
    """Whether it needs no model: the text before a place decides the draft there."""
    needs_only_probabilities: bool = False
    """Whether it can draft over tables of probabilities; other methods need a real model's layers or words."""
    reads_ahead: bool = False
    """Whether it can tell its drafts at any place of a known text; see `Drafter.along`."""
    why_no_what_if: str = ""
    """Why a run's text does not tell what other K would give, as a clause; empty: it does, or nothing is known."""

    def under(self, params: Mapping[str, object]) -> Method:
        """The method as it is with these parameters.

        If it then drafts a chain, every rule for chains can judge it. If more than the text then decides a draft, the
        text alone cannot tell what it would have drafted elsewhere.
        """
        method = self
        if _is_among(self.chain_when, params):
            method = replace(method, rules=CHAIN_RULES, drafts_as="chain")
        if self.text_alone_when is not None and not _is_among(self.text_alone_when, params):
            method = replace(method, replays_from_text=False, reads_ahead=False)
        return method

    @property
    def drafts(self) -> bool:
        return self.drafts_as != "nothing"

    @property
    def sets_k(self) -> bool:
        """Whether a person sets K itself."""
        return self.depth is None and self.drafts

    @property
    def in_chains(self) -> bool:
        """Whether its drafts are shown without branches."""
        return self.drafts_as in ("chain", "reasoning step")

    @property
    def needs_trees(self) -> bool:
        """Whether its drafts may have branches, so that only a tree's rules can judge them."""
        return self.rules == TREE_RULES

    @property
    def cost_is_known(self) -> bool:
        """Whether the measured costs of two models tell the cost of a draft: the draft model's calls, or nothing."""
        return self.is_plain or self.replays_from_text

    @property
    def default_rule(self) -> str:
        return self.rules[0]

    def read(self, pairs: Sequence[str]) -> dict[str, object]:
        """Reads parameters that were typed as NAME=VALUE, for `validate`. Raises SpecvizError for anything else."""
        known = {param.name: param for param in self.params}
        values: dict[str, object] = {}
        for pair in pairs:
            name, _, text = pair.partition("=")
            if not name or not text:
                raise SpecvizError(f"a parameter must be given as NAME=VALUE (got {pair!r:.100})")
            if name in values:
                raise SpecvizError(f"the parameter {name:.80} was given twice; give it once")
            values[name] = known[name].read(text) if name in known else text
        return values

    def validate(self, values: Mapping[str, object]) -> dict[str, Value]:
        """All parameters, defaults filled in. Raises SpecvizError for unknown names and values out of range."""
        known = {param.name: param for param in self.params}
        unknown = sorted(set(values) - set(known))
        if unknown:
            allowed = ", ".join(known) or "none"
            raise SpecvizError(
                f"the method {self.name} has no parameter {unknown[0]!r:.80} (it has: {allowed})"
            )
        checked: dict[str, Value] = {}
        for name, param in known.items():
            checked[name] = param.validate(values.get(name, param.default))
        return checked

    def describe_needs(self) -> str:
        """The words for what a run must give it beside the target."""
        role_words = {"draft": "a draft model", "heads": "draft heads"}
        words = [role_words[role] for role in self.roles]
        if self.target_has:
            words.append(f"the target's own {self.target_has[1]}")
        return ", ".join(words) or "nothing"


def _is_among(choice: tuple[str, tuple[str, ...]] | None, params: Mapping[str, object]) -> bool:
    """Whether a Choice has one of these options."""
    return choice is not None and params.get(choice[0]) in choice[1]
