"""See, check and debug speculative decoding.

The public names below are loaded when first used, so that importing the package costs nothing and a view of a
recorded trace never loads torch.
"""

from importlib import import_module
from importlib.util import find_spec

__version__ = "1.0.0"

_HOMES = {
    "METHODS": "drafters",
    "RULES": "rules",
    "Request": "request",
    "SpecvizError": "errors",
    "Trace": "trace",
    "align": "alignment.job",
    "costs": "analysis.costs",
    "expected_acceptance_by_position": "analysis.trainers",
    "expected_tokens_per_call": "analysis.trainers",
    "load_trace": "trace",
    "metrics": "trace.metrics",
    "prove": "checks.prove",
    "run": "api",
    "show": "notebook",
    "stream": "api",
    "what_if": "analysis.every_k",
}
__all__ = [*_HOMES]


def __getattr__(name: str):
    if name in _HOMES:
        value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        return value
    if find_spec(f"{__name__}.{name}") is None:
        raise AttributeError(f"module 'specviz' has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
