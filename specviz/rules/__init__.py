"""RULES: how drafted tokens are judged, by name. One file and one line here per rule."""

from __future__ import annotations

from ..accept import Rule
from .block_verification import BlockVerification
from .ensemble import Ensemble
from .lenience import Lenience
from .sample_and_match import SampleAndMatch
from .speculative_sampling import SpeculativeSampling
from .typical import Typical

RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (SpeculativeSampling(), BlockVerification(), SampleAndMatch(), Typical(), Lenience(), Ensemble())
}
