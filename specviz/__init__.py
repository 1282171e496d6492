"""specviz: see, check and debug speculative decoding.

The public names below are loaded when first used, so that importing the package costs nothing and a view of a
recorded trace never loads torch.
"""

from importlib import import_module

__version__ = "0.1.0"

_HOMES = {
    "METHODS": "drafters",
    "RULES": "rules",
    "Request": "request",
    "SpecvizError": "errors",
    "Trace": "trace",
    "align": "alignment.aligning",
    "costs": "costing",
    "load_trace": "trace",
    "metrics": "measures",
    "prove": "checks.proving",
    "run": "api",
    "show": "notebook",
    "stream": "api",
    "what_if": "planning",
}
__all__ = [*_HOMES]


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'specviz' has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
