"""RULES: how drafted tokens are judged, by name. One file per rule, and one entry in facts.py.

RULES and ANY_CHAIN are loaded when they are first asked for, and torch with them; `facts` loads neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specviz.rules.judges import ANY_CHAIN, RULES

__all__ = ["ANY_CHAIN", "RULES"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from specviz.rules import judges

    return getattr(judges, name)
