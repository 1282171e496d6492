"""A method in words for the page's help panel (help.js): what it does, when it pays, its source, and its rule.

Takes a method and a rule; knows no models and loads none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from specviz.drafters.params import SizeParam
from specviz.views.explore.panels import MethodHelp, RuleHelp
from specviz.views.words import reveal

if TYPE_CHECKING:
    from specviz.decoding.rule import Rule
    from specviz.drafters.method import Method

ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")
EXACT = "The text is distributed exactly as if the target had written alone; bf16 or fp16 may differ at near-ties."
LOSSY = "The text is not distributed as if the target had written alone: this rule trades that for more acceptance."
K_WORDS = "K: how many tokens are drafted at most before the target checks them."
BEST_BY_TIME = "the best by time on this device, as measured"
LATER = "The settings below apply on the next run."


def method_help(
    method: Method,
    rule: Rule | None,
    *,
    has_k: bool,
    lacks: str = "",
    step_ms: Mapping[int, float] | None = None,
) -> MethodHelp:
    """The help on a method.

    rule: None where there is nothing to judge. has_k: whether a person sets K for the method. lacks: why it cannot run
    on the chosen target. step_ms: as SizeParam.best takes it, where it was measured.
    """
    notes = []
    if has_k:
        notes.append(K_WORDS)
    else:
        for param in method.params:
            if param.name == method.depth:
                notes.append(f"K is not used here: “{param.title}” limits how much is drafted.")
    for param in method.params:
        if isinstance(param, SizeParam) and step_ms and method.needs_trees:
            title = param.title.capitalize()
            notes.append(f"“{title}” at 0 drafts {param.best(step_ms)} here: {BEST_BY_TIME}.")
    if method.params:
        notes.append(LATER)
    return MethodHelp(
        method.title,
        method.summary,
        method.caution,
        list(sources(method.source)),
        reveal(lacks),
        None if rule is None else _rule_help(rule),
        notes,
    )


def _rule_help(rule: Rule) -> RuleHelp:
    if rule.lossless:
        return RuleHelp(rule.title, "exact", EXACT, rule.summary)
    return RuleHelp(rule.title, "lossy", LOSSY, rule.summary)


def sources(text: str) -> Iterator[tuple[str, str | None]]:
    """The pieces of a source with the address behind each: "X, arXiv:1234.56789" leads to arXiv, all else nowhere."""
    for piece in text.split(";"):
        piece = piece.strip()
        if piece:
            paper = ARXIV.search(piece)
            yield reveal(piece), f"https://arxiv.org/abs/{paper[1]}" if paper else None
