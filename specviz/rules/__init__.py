"""How drafted tokens are judged. One class per rule, and one entry in facts.py.

RULES and ANY_CHAIN are those of table.py, which is imported when they are first asked for: that loads torch, and
`facts` does not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specviz.rules.table import ANY_CHAIN, RULES

__all__ = ["ANY_CHAIN", "RULES"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.table"), name)
