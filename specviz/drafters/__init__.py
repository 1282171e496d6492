"""METHODS: name -> Method, one line per method."""

from . import draft_model, none, prompt_lookup
from .base import Method

METHODS: dict[str, Method] = {method.name: method for method in (draft_model.METHOD, prompt_lookup.METHOD, none.METHOD)}
