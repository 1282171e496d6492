"""A method in words: what it does, when it pays, where it comes from, and what the rule in force means for the text.

Takes a method and a rule, knows no models and loads none; gives props for the page's help panel (help.js).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from specviz.views.words import reveal

if TYPE_CHECKING:
    from specviz.decoding.rule import Rule
    from specviz.drafters.method import Method

ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")
EXACT = "The text is distributed exactly as if the target had written alone; bf16 or fp16 may differ at near-ties."
LOSSY = "The text is not distributed as if the target had written alone: this rule trades that for more acceptance."
K_WORDS = "K: how many tokens are drafted at most before the target checks them."
LATER = "The settings below apply on the next run."


def method_help(
    method: Method, rule: Rule | None, *, has_k: bool, lacks: str = ""
) -> dict[str, Any]:
    """Props of the help panel. rule: None where there is nothing to judge; has_k: whether K is what a person sets for
    the method; lacks: why it cannot run on the chosen target."""
    stand_ins = (param.title for param in method.params if param.name == method.depth)
    depth = (
        [K_WORDS]
        if has_k
        else [f"K is not used here: “{each}” limits how much is drafted." for each in stand_ins]
    )
    return {
        "title": method.title,
        "summary": method.summary,
        "caution": method.caution,
        "sources": [list(piece) for piece in sources(method.source)],
        "lacks": reveal(lacks),
        "rule": rule
        and {
            "title": rule.title,
            "badge": "exact" if rule.lossless else "lossy",
            "meaning": EXACT if rule.lossless else LOSSY,
            "summary": rule.summary,
        },
        "notes": [*depth, *([LATER] if method.params else [])],
    }


def sources(text: str) -> Iterator[tuple[str, str | None]]:
    """The pieces of a source with the address behind each: "X, arXiv:1234.56789" leads to arXiv, all else nowhere."""
    for piece in filter(None, (piece.strip() for piece in text.split(";"))):
        paper = ARXIV.search(piece)
        yield reveal(piece), f"https://arxiv.org/abs/{paper[1]}" if paper else None
