"""METHODS: name -> Method, one line per method."""

from ..errors import SpecvizError
from ..listing import Listing
from . import (
    cross_vocabulary,
    draft_model,
    eagle,
    early_exit,
    lookahead,
    medusa,
    mtp,
    none,
    prompt_lookup,
    reasoning,
    staged,
    tree,
)
from .base import Method, needs

METHODS: Listing[Method] = Listing(
    (
        module.METHOD
        for module in (
            draft_model,
            prompt_lookup,
            early_exit,
            tree,
            medusa,
            eagle,
            mtp,
            staged,
            lookahead,
            cross_vocabulary,
            reasoning,
            none,
        )
    ),
    {
        "title": lambda method: method.title,
        "needs beside the target": needs,
        "its own rule": lambda method: method.default_rule,
    },
)


def method_named(name: object) -> Method:
    """The method of that name. SpecvizError lists the names where there is none."""
    if not isinstance(name, str) or name not in METHODS:
        raise SpecvizError(f"method must be one of {', '.join(METHODS)} (got {name!r:.100})")
    return METHODS[name]
