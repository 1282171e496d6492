"""METHODS: name -> Method, one line per method."""

from specviz.drafters import draft_model, early_exit, lookahead, none, prompt_lookup
from specviz.drafters.cross_vocabulary import drafter as cross_vocabulary
from specviz.drafters.eagle import drafter as eagle
from specviz.drafters.medusa import drafter as medusa
from specviz.drafters.method import Method, needs
from specviz.drafters.mtp import drafter as mtp
from specviz.drafters.reasoning import drafter as reasoning
from specviz.drafters.staged import drafter as staged
from specviz.drafters.tree import drafter as tree
from specviz.errors import SpecvizError
from specviz.listing import Listing

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
