"""RULES: every rule of FACTS with its algorithm, by name. ANY_CHAIN: those that judge any draft without branches."""

from __future__ import annotations

from importlib import import_module

from specviz.decoding.draft import chain
from specviz.decoding.rule import Rule
from specviz.listing import Listing
from specviz.rules.facts import FACTS


def _load(judge: str) -> Rule:
    """The rule of "module:class"."""
    module, _, kind = judge.partition(":")
    return getattr(import_module(f"specviz.rules.{module}"), kind)()


RULES: Listing[Rule] = Listing(
    (_load(facts.judge) for facts in FACTS.values()),
    {
        "title": lambda rule: rule.title,
        "lossless": lambda rule: "yes" if rule.lossless else "no",
        "what it does": lambda rule: rule.summary,
    },
)
ANY_CHAIN: dict[str, Rule] = {name: rule for name, rule in RULES.items() if rule.supports(chain([0]))}
