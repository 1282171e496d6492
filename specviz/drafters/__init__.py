"""METHODS: name -> Method. Each method has one file or folder here, which holds its METHOD, and one line below."""

from importlib import import_module

from specviz.drafters.method import Method
from specviz.errors import SpecvizError
from specviz.listing import Listing

_MODULES = (
    "draft_model",
    "prompt_lookup",
    "suffix",
    "hybrid",
    "early_exit",
    "tree",
    "medusa",
    "eagle",
    "assistant",
    "mtp",
    "block",
    "staged",
    "lookahead",
    "cross_vocabulary",
    "reasoning",
    "none",
)
METHODS: Listing[Method] = Listing(
    (import_module(f"{__name__}.{module}").METHOD for module in _MODULES),
    {
        "title": lambda method: method.title,
        "needs beside the target": Method.describe_needs,
        "its own rule": lambda method: method.default_rule,
    },
)
READABLE = tuple(method.name for method in METHODS.values() if method.reads_ahead)
"""The methods whose drafts can be read along a text."""
_UNKNOWN = Method(name="", title="", summary="", build=METHODS["none"].build)


def find_method(name: object) -> Method:
    """The method of that name. Raises SpecvizError with the names if there is none."""
    if not isinstance(name, str) or name not in METHODS:
        raise SpecvizError(f"method must be one of {', '.join(METHODS)} (got {name!r:.100})")
    return METHODS[name]


def split_draft(name: str) -> tuple[str, str, tuple[str, ...]]:
    """The method, heads and parameters of a draft named METHOD:HEADS,NAME=VALUE; no method for any other name."""
    method, _, rest = name.partition(":")
    if method not in READABLE:
        return "", name, ()
    words = [word for word in rest.split(",") if word]
    heads = "".join(word for word in words if "=" not in word)
    return method, heads, tuple(word for word in words if "=" in word)


def facts_of(name: str) -> Method:
    """The facts about the method that a trace names; Method's defaults for a name that is not in METHODS."""
    return METHODS.get(name, _UNKNOWN)
