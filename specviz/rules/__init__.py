"""RULES: how drafted tokens are judged, by name. One class per rule, and one entry in facts.py.

RULES and ANY_CHAIN (the rules that judge any draft without branches) are made when they are first asked for, since that
loads torch; `facts` does not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from specviz.listing import Listing
from specviz.rules.facts import FACTS

if TYPE_CHECKING:
    from specviz.decoding.rule import Rule

    RULES: Listing[Rule]
    ANY_CHAIN: dict[str, Rule]

__all__ = ["ANY_CHAIN", "RULES"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from specviz.decoding.draft import chain

    places = (facts.judge.partition(":") for facts in FACTS.values())
    rules = Listing(
        (getattr(import_module(f"{__name__}.{module}"), kind)() for module, _, kind in places),
        {
            "title": lambda rule: rule.title,
            "lossless": lambda rule: "yes" if rule.lossless else "no",
            "what it does": lambda rule: rule.summary,
        },
    )
    any_chain = {name: rule for name, rule in rules.items() if rule.supports(chain([0]))}
    globals().update(RULES=rules, ANY_CHAIN=any_chain)
    return globals()[name]
