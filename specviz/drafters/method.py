"""Method: what the page, the command line, the checks and the help know of a way of drafting.

A module of a method loads no torch as it is imported: what needs torch is imported in a function, or is another file of
its folder.
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
"""What can judge a draft without branches."""
TREE_RULES = tuple(rule.name for rule in FACTS.values() if rule.judges_trees)
"""What can judge a token tree."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A model of a drafter. lm: its reader; another: makes more over the same weights; text: its ids as text."""

    name: str
    lm: CachedLM
    another: Callable[[], CachedLM]
    text: TokenText | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Everything a method drafts with. target.lm is the engine's own reader: look at its text, never drop its rows.

    heads: trained draft heads; others: further models by the names that the method's parameters give them.
    """

    target: Part | None = None
    draft: Part | None = None
    heads: nn.Module | None = None
    others: Mapping[str, Part] = field(default_factory=dict)


Build = Callable[[Parts, Mapping[str, Value]], "Drafter"]


def load_build(module: str) -> Build:
    """The function `build` of this module, which is imported when the first drafter is built."""
    return lambda parts, params: import_module(module).build(parts, params)


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A way to draft.

    summary: what it does, one sentence. caution: when it pays and when not, one sentence. roles: the models it needs
    beside the target ("draft", "heads"). target_has: what the target must bring along: a number in its configuration
    that is not 0 there, and in words. foreign: its draft model may have another vocabulary than the target.
    rules: the names of the rules that can judge its drafts, its own first. depth: the parameter that stands for K,
    where K is not what a person sets. is_common: it stands at the top of the page's list.
    proposer: the words before K in the headline. drafts_as: what its drafts are called there.
    chain_when: a Choice of its own, by name, and those of its options under which it drafts a chain; see `under`.
    is_plain: a draft model writes K tokens, each drawn from its own row of the text.
    replays_from_text: it needs no model: what it drafts at any place follows from the text before.
    needs_only_probabilities: it can draft over tables of probabilities; other methods need the layers or words of a
    real model.
    reads_ahead: what would be drafted at any place of a known text can be told (see Drafter.along).
    why_no_what_if: why other K cannot be told from a run's text, as a clause; empty: they can, or nothing is known.
    """

    name: str
    title: str
    summary: str
    build: Build
    source: str = ""
    caution: str = ""
    roles: tuple[str, ...] = ()
    params: tuple[Param, ...] = ()
    rules: tuple[str, ...] = CHAIN_RULES
    depth: str | None = None
    foreign: bool = False
    target_has: tuple[str, str] | None = None
    is_common: bool = False
    proposer: str = "The drafter proposes up to "
    drafts_as: Literal["chain", "token tree", "reasoning step", "nothing"] = "chain"
    chain_when: tuple[str, tuple[str, ...]] | None = None
    is_plain: bool = False
    replays_from_text: bool = False
    needs_only_probabilities: bool = False
    reads_ahead: bool = False
    why_no_what_if: str = ""

    def under(self, params: Mapping[str, object]) -> Method:
        """The method as it is with these parameters: what makes it draft a chain lets every chain's rule judge it."""
        if self.chain_when is None or params.get(self.chain_when[0]) not in self.chain_when[1]:
            return self
        return replace(self, rules=CHAIN_RULES, drafts_as="chain")

    @property
    def drafts(self) -> bool:
        return self.drafts_as != "nothing"

    @property
    def sets_k(self) -> bool:
        """Whether K is what a person sets for it."""
        return self.depth is None and self.drafts

    @property
    def in_chains(self) -> bool:
        """Whether its drafts are shown without branches."""
        return self.drafts_as in ("chain", "reasoning step")

    @property
    def needs_trees(self) -> bool:
        """Whether what the target checks may have branches: drafts that only a tree's rules can judge."""
        return self.rules == TREE_RULES

    @property
    def cost_is_known(self) -> bool:
        """Whether the measured costs of two models tell what a draft costs: the draft model's calls, or nothing."""
        return self.is_plain or self.replays_from_text

    @property
    def default_rule(self) -> str:
        return self.rules[0]

    def read(self, pairs: Sequence[str]) -> dict[str, object]:
        """Parameters that were typed as NAME=VALUE, for `validate`. SpecvizError for anything else."""
        known, values = {param.name: param for param in self.params}, {}
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
        if unknown := sorted(set(values) - set(known)):
            allowed = ", ".join(known) or "none"
            raise SpecvizError(
                f"the method {self.name} has no parameter {unknown[0]!r:.80} (it has: {allowed})"
            )
        given = {name: values.get(name, param.default) for name, param in known.items()}
        return {name: known[name].validate(value) for name, value in given.items()}

    def describe_needs(self) -> str:
        """What a run must give it beside the target, in words."""
        role_words = {"draft": "a draft model", "heads": "draft heads"}
        words = [role_words[role] for role in self.roles]
        words += [f"the target's own {self.target_has[1]}"] if self.target_has else []
        return ", ".join(words) or "nothing"
