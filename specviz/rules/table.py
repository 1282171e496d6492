"""RULES: every rule that a run can choose, by name. ANY_CHAIN: those that judge any draft without branches."""

from importlib import import_module

from specviz.decoding.draft import chain
from specviz.decoding.rule import Rule
from specviz.listing import Listing
from specviz.rules.facts import FACTS, RuleFacts


def _make_rule(facts: RuleFacts) -> Rule:
    module, _, name = facts.judge.partition(":")
    rule_class = getattr(import_module(f"specviz.rules.{module}"), name)
    return rule_class()


RULES: Listing[Rule] = Listing(
    map(_make_rule, FACTS.values()),
    {
        "title": lambda rule: rule.title,
        "lossless": lambda rule: "yes" if rule.lossless else "no",
        "what it does": lambda rule: rule.summary,
    },
)
ANY_CHAIN: dict[str, Rule] = {
    name: rule for name, rule in RULES.items() if rule.supports(chain([0]))
}
