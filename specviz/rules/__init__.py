"""The rules that judge drafted tokens: one class per rule, and one entry in facts.py.

RULES and ANY_CHAIN stand in table.py. It is imported at their first use, because it loads torch and `facts` does not.
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
