"""METHODS: name -> Method, one line per method."""

from . import draft_model, none, prompt_lookup
from .base import Method

METHODS: dict[str, Method] = {
    module.METHOD.name: module.METHOD
    for module in (
        draft_model,
        prompt_lookup,
        none,
    )
}
