"""RULES: every rule that a run can choose, by name. ANY_CHAIN: those that judge any draft without branches."""

from importlib import import_module

from specviz.decoding.draft import chain
from specviz.decoding.rule import Rule
from specviz.listing import Listing
from specviz.rules.facts import FACTS

_PLACES = (facts.judge.partition(":") for facts in FACTS.values())
RULES: Listing[Rule] = Listing(
    (getattr(import_module(f"specviz.rules.{module}"), kind)() for module, _, kind in _PLACES),
    {
        "title": lambda rule: rule.title,
        "lossless": lambda rule: "yes" if rule.lossless else "no",
        "what it does": lambda rule: rule.summary,
    },
)
ANY_CHAIN: dict[str, Rule] = {
    name: rule for name, rule in RULES.items() if rule.supports(chain([0]))
}
