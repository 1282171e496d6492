"""RULES: how drafted tokens are judged, by name. One file and one line here per rule."""

from __future__ import annotations

from ..accept import Rule, SpeculativeSampling

RULES: dict[str, Rule] = {rule.name: rule for rule in (SpeculativeSampling(),)}
